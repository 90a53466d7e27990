"""The experiment of the page on sampling: what it measures, and what is stored."""

from __future__ import annotations

import torch

import solutions.gpt as parts
from toolkit.corpora.code_corpus import Corpus, Function
from toolkit.gpt import sampling_experiments as experiments
from toolkit.gpt.measures import Sample
from toolkit.models import load


def test_a_copied_run_is_the_longest_that_stands_in_one_source() -> None:
    sources = [[5, 6, 7, 9], [9, 8], [4]]
    texts = [[1, 6, 7, 9, 8], [9, 8, 4], [3], []]
    assert experiments.copied_runs(texts, sources) == [3, 2, 0, 0]


def test_a_text_loops_when_it_ends_in_the_same_piece_three_times() -> None:
    assert experiments.loops([9, 1, 2, 1, 2, 1, 2])
    assert experiments.loops([7, 7, 7])
    assert not experiments.loops([1, 2, 1, 2, 3])
    assert not experiments.loops([])


def test_a_verdict_counts_what_compiles_ends_and_repeats() -> None:
    good = Sample("def f():\n    pass", "def f():", [5, 6, 7, 8], True, 2)
    stuck = Sample("def f():\n    x x x", "def f():", [5, 6, 9, 9, 9], False, 3)
    (row,) = experiments.verdicts([[good, stuck]], [[7, 8]], {good.text})
    assert (row["compiles"], row["finished"], row["loops"], row["whole"]) == (0.5, 0.5, 0.5, 0.5)
    assert (row["copied"], row["copied_most"], row["length"], row["different"]) == (1, 2, 2.5, 2)


def test_a_function_taken_for_a_sample_has_its_body_as_what_was_written() -> None:
    encode = lambda text: [ord(letter) for letter in text]  # noqa: E731
    sample = experiments.as_sample(Function("m", "f", "def f():\n  1"), encode)
    assert experiments.written(sample) == encode("\n  1")


def test_small_models_differ_by_their_seed_alone(monkeypatch) -> None:
    functions = tuple(Function("m", f"f{n}", f"def f{n}(self):\n    return {n}") for n in range(40))
    made = Corpus(functions, load("gpt").tokenizer, 128)
    monkeypatch.setattr(experiments.gpt, "long_functions", lambda: functions * 20)
    one, same, other = (experiments.small(parts, made, seed, 2) for seed in (0, 0, 1))
    assert torch.equal(one.token.weight, same.token.weight)
    assert not torch.equal(one.token.weight, other.token.weight)


def test_the_stored_rows_have_all_settings_and_seeds() -> None:
    rows = experiments.read()
    for setting in experiments.SETTINGS:
        draws = experiments.result(rows, experiments.SHIPPED, setting)
        assert len(draws) == (1 if setting == "greedy" else experiments.SEEDS)
        assert len(experiments.result(rows, experiments.SMALL, setting)) == experiments.SEEDS
    assert {int(row["count"]) for row in rows} == {experiments.COUNT}
    assert {row["training_seed"] for row in rows if row["model"] == experiments.SMALL} == set(
        "01234"
    )
