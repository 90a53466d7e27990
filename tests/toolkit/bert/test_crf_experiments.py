"""The experiment on transitions: its CRFs agree with the reference, and its file is whole."""

from __future__ import annotations

import itertools

import torch

from solutions import bert
from toolkit.bert import crf_experiments as experiments


def test_side_by_side_crfs_agree_with_the_reference() -> None:
    torch.manual_seed(0)
    emissions = torch.randn(2, 3, 6, 5)  # (M, B, T, L)
    tags = torch.randint(5, (2, 3, 6))
    at = {"transitions": torch.randn(2, 5, 5), "start": torch.randn(2, 5)}
    mask, end = torch.ones(3, 6, dtype=torch.bool), torch.zeros(5)
    for model in range(2):
        rules = at["transitions"][model], at["start"][model], end
        torch.testing.assert_close(
            experiments.score(emissions, tags, at)[model],
            bert.crf_score(emissions[model], tags[model], mask, *rules),
        )
        torch.testing.assert_close(
            experiments.partition(emissions, at)[model],
            bert.crf_partition(emissions[model], mask, *rules),
        )
        found = experiments.best_sequences(emissions, at)[model].tolist()
        assert found == bert.viterbi(emissions[model], mask, *rules)[0]


def test_sentences_keep_the_grammar() -> None:
    words, tags = experiments.sentences(50, 3)
    assert words.shape == tags.shape == (50, experiments.LENGTH)
    assert experiments.judge(tags[None], tags).broken.item() == 0


def test_the_stored_file_has_every_seed_of_every_setting() -> None:
    rows = experiments.read_rows(experiments.FILE)
    found = {(r["variant"], int(r["steps"]), float(r["lr"]), int(r["seed"])) for r in rows}
    seeds = range(experiments.SEEDS)
    wanted = itertools.product(experiments.VARIANTS, experiments.STEPS, experiments.LRS, seeds)
    assert found == set(wanted)
    assert len(rows) == len(found)
