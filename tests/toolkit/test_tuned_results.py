"""What experiments with fine-tuning store, read again."""

from __future__ import annotations

from toolkit import tuned_results
from toolkit.tuned_results import Row, Seeds


def row(way: str, labelled: int, lr: float, seed: int, validation: float) -> Row:
    return {"task": "name", "way": way, "labelled": labelled, "lr": lr, "seed": seed,
            "validation": validation, "curve": "512 640"}  # fmt: skip


ROWS = [
    row("network", 10, 1e-3, 1, 0.5), row("network", 10, 1e-3, 0, 0.7),
    row("network", 10, 2e-3, 0, 0.9), row("network", 10, 2e-3, 2, 0.0),
    row("network", 50, 2e-3, 0, 0.2), row("constant", 10, 0, 0, 0.0),
]  # fmt: skip


def test_of_equally_good_learning_rates_the_smaller_is_taken() -> None:
    assert tuned_results.best({1e-3: 0.5, 2e-3: 0.7, 5e-3: 0.7}) == 2e-3
    assert tuned_results.best({2e-3: 0.7, 1e-3: 0.7, 5e-4: 0.6}) == 1e-3


def test_a_search_is_the_mean_of_its_own_seeds_and_number_of_labels() -> None:
    found = tuned_results.searched(ROWS, "name", "network", 10, seeds=2)
    assert found == {1e-3: 0.6, 2e-3: 0.9}


def test_each_setting_is_read_once_at_its_learning_rate_in_the_order_of_seeds() -> None:
    groups = list(tuned_results.grouped(ROWS, lambda one: 1e-3 if one["labelled"] == 10 else 2e-3))
    assert [(setting, [one["seed"] for one in mine]) for setting, _, mine in groups] == [
        (("name", "network", 10), [0, 1]), (("name", "network", 50), [0]),
        (("name", "constant", 10), []),
    ]  # fmt: skip
    assert tuned_results.curve(ROWS[0]) == [0.512, 0.64]
    assert len(set(map(tuned_results.key, ROWS))) == len(ROWS)


def test_a_network_has_the_learning_rate_of_its_search_and_all_else_its_own() -> None:
    lr = tuned_results.lr_of(ROWS, ["network"], lambda rows, task, way: 2e-3)
    assert [lr(ROWS[0]), lr(ROWS[-1])] == [2e-3, 0.0]


def test_one_seed_has_no_spread() -> None:
    assert (Seeds(0, [0.5]).spread, Seeds(0, [0.25, 0.75]).mean) == (0.0, 0.5)
    assert round(Seeds(0, [0.25, 0.75]).spread, 3) == 0.354
