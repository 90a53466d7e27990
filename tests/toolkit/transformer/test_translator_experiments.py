"""The stored experiment on translators, label smoothing and numbers of heads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import solutions.attention
import solutions.transformer
from toolkit.corpora.translation import EOS, PAD
from toolkit.many_models import SEEDS
from toolkit.transformer import translator_experiments as experiments
from toolkit.transformer.translation_task import parameters

SOURCE = torch.tensor([[5, 6, 7, 8], [9, 4, PAD, PAD]])
TARGET = torch.tensor([[1, 6, 7, 8, 9], [1, 9, 4, PAD, PAD]])


def made(variant: str) -> nn.Module:
    torch.manual_seed(0)
    return experiments.make(variant, 51, solutions.transformer, solutions.attention).eval()


@pytest.mark.parametrize("variant", experiments.VARIANTS)
def test_translators_are_equally_large(variant: str) -> None:
    size = parameters(made(experiments.TRANSFORMER))
    assert abs(parameters(made(variant)) / size - 1) < 0.04


@pytest.mark.parametrize("variant", experiments.TRANSLATORS)
def test_a_translator_does_not_see_what_it_has_to_write(variant: str) -> None:
    model, other = made(variant), TARGET.clone()
    other[:, 2] = 20
    before, after = (model(SOURCE, t).log_softmax(-1) for t in (TARGET, other))
    torch.testing.assert_close(before[:, :2], after[:, :2])
    assert (before[:, 2] - after[:, 2]).abs().max() > 1e-4


@pytest.mark.parametrize("variant", experiments.TRANSLATORS)
def test_padding_of_the_source_changes_nothing(variant: str) -> None:
    model = made(variant)
    whole, short = model(SOURCE, TARGET), model(SOURCE[1:, :2], TARGET[1:])
    torch.testing.assert_close(whole[1].log_softmax(-1), short[0].log_softmax(-1))


class Copies(nn.Module):
    """Writes the source, and begins with `wrong` instead of its first token if that is given."""

    def __init__(self, wrong: int = 0) -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        length = target_in.shape[1]
        ends = F.pad(source, (0, length))[:, :length]
        ends = ends.masked_fill(ends == PAD, EOS)
        if self.wrong:
            ends[:, 0] = self.wrong
        return F.one_hot(ends, 51).float()


def test_a_sentence_is_right_only_if_every_token_and_its_end_are() -> None:
    rows = [([5, 6, 7], [5, 6, 7]), ([8], [8]), ([5, 6], [5, 6, 7]), ([5, 6], [5])]
    assert experiments.exact(Copies(), rows) == [True, True, False, False]
    assert experiments.exact(Copies(wrong=9), rows) == [False] * 4


def test_the_loss_is_that_of_real_tokens() -> None:
    loss, accuracy = experiments.per_token(Copies(), [([5, 6, 7], [5, 6, 7]), ([8], [9])])
    right = F.one_hot(torch.tensor(5), 51).float().log_softmax(-1)
    assert accuracy == pytest.approx(5 / 6)
    assert loss == pytest.approx(-(5 * right[5] + right[0]).item() / 6)


def test_training_learns() -> None:
    rows = experiments._data().train[:2]
    model = made(experiments.TRANSFORMER).train()
    before, _ = experiments.per_token(model, rows)
    experiments.train(model, rows, 3.2e-2, 0.0, seed=0, steps=40)
    assert experiments.per_token(model, rows)[0] < before / 2


BEST = experiments.LRS[0] / 2


def _measured(key: experiments._Key) -> dict[str, object]:
    """As if trained."""
    variant, lr, seed = key
    row: dict[str, object] = {"variant": variant, "lr": lr, "seed": seed}
    row["validation"] = abs(lr - BEST)
    return row | dict.fromkeys(experiments.MEASURES, seed) | {"parameters": 1, "seconds": 1}


def _never(key: experiments._Key) -> dict[str, object]:
    raise AssertionError(f"{key} was there already")


def test_the_search_goes_on_at_its_ends_and_the_best_gets_the_other_seeds(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    experiments.experiment(["1 head"], file, _measured)
    found = experiments.read(file)["1 head"]
    assert found.lr == BEST
    assert found.measures["exact"] == list(range(SEEDS))
    assert found.span("exact") == (0, SEEDS - 1)
    lrs = {float(row["lr"]) for row in experiments.read_rows(file)}
    assert min(lrs) == BEST / 2


def test_what_is_there_is_not_trained_again(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    for work in (_measured, _never):
        experiments.experiment(["1 head"], file, work)


def test_what_is_stored_is_whole() -> None:
    found = experiments.read()
    assert tuple(found) == experiments.VARIANTS
    assert all(len(variant.measures["exact"]) == SEEDS for variant in found.values())
