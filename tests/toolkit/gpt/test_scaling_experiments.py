"""The stored experiments on scaling: their models, what counts as copied, their files."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
import torch

from solutions.gpt import count_parameters
from toolkit.gpt import scaling_experiments as experiments
from toolkit.gpt import scaling_pictures as pictures


def test_a_tied_model_has_as_many_parameters_as_the_course_counts() -> None:
    size = experiments.Size(12, 30)
    assert size.parameters == count_parameters(30, experiments.LENGTH, 12, experiments.NUM_LAYERS)
    own = experiments.Size(12, 30, tied=False)
    assert own.parameters == size.parameters + 30 * 12


def test_models_are_causal_and_independent_of_each_other() -> None:
    torch.manual_seed(0)
    at = experiments.fresh(experiments.Size(8, 20))
    ids = torch.randint(20, (1, 2, 10)).expand(experiments.SEEDS, -1, -1).clone()
    before = experiments.logits(at, ids).view(experiments.SEEDS, 2, 10, 20)
    ids[3, 1, 7] = (ids[3, 1, 7] + 1) % 20
    after = experiments.logits(at, ids).view(experiments.SEEDS, 2, 10, 20)
    changed = (before - after).abs().amax(-1) > 1e-6  # (seeds, 2, 10)
    assert changed[3, 1].tolist() == [False] * 7 + [True] * 3
    assert int(changed.sum()) == 3


@pytest.mark.parametrize(
    ("row", "run"), [([2, 3, 4, 9, 0, 1], (0, 3)), ([9, 9], (0, 0)), ([9, 0, 1, 2], (1, 4))]
)
def test_the_longest_copied_run_is_found(row: list[int], run: tuple[int, int]) -> None:
    assert experiments.copied(row, "".join(map(chr, range(6)))) == run


def test_no_stored_learning_rate_was_best_at_an_end() -> None:
    for name, (how, _, _, lrs) in stored().items():
        for chosen in ("train", "validation") if how == experiments.LITTLE else ("validation",):
            if (name, chosen) != ("little 12 0.0", "validation"):
                assert lrs[0] < experiments.read(name, chosen).lr < lrs[-1]
    for one in experiments.read_tying().values():
        assert experiments.TYING_LRS[0] < one.lr < experiments.TYING_LRS[-1]


def stored() -> dict[str, tuple[str, int, float, tuple[float, ...]]]:
    rows = experiments.read_rows(experiments.MEMORY_FILE)
    names = {row["contestant"] for row in rows}
    return {name: one for name, one in experiments.READERS.items() if name in names}


def test_pictures_draw_a_line_for_each_contestant() -> None:
    found = {"a": experiments.read("little 48 0.0"), "b": experiments.read("little 12 0.0")}
    figure = pictures.memorising(found, 16, experiments.WRITTEN)
    assert [t.get_text() for t in figure.axes[0].get_legend().get_texts()] == ["a", "b"]
    plt.close(figure)
    figure = pictures.regularised({"read often": found}, 16)
    assert len(figure.axes) == 1
    plt.close(figure)
    ways = experiments.read_tying()
    figure = pictures.output_matrices(ways)
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == list(ways)
    plt.close(figure)
    figure = pictures.computation({"a": [(1, 2.0), (2, 1.0)]}, {"a": 100})
    assert figure.axes[1].get_lines()[0].get_xdata()[0] == 100
    plt.close(figure)


def test_a_copied_run_is_shaded_and_escaped() -> None:
    assert "<span>&lt;b</span>c" in pictures.copy_sheet("a<bc", 1, 3, "two")
