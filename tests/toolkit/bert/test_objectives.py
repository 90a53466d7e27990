"""Experiments about training objectives: what they count, and that they measure what they say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from solutions.bert import (
    BertForPreTraining,
)
from solutions.bert import pseudo_log_likelihood as chapters_score
from toolkit.bert import objectives as lab

V = 17  # five special tokens and the twelve symbols of cycle_rows


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Models this small gain nothing from a second thread, which would mostly wait."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make(seed: int = 0, **more: object) -> nn.Module:
    torch.manual_seed(seed)
    sizes = {
        "d_model": 16, "num_layers": 2, "num_heads": 2, "d_ff": 32, "max_length": 40,
        "dropout": 0.0, **more,
    }  # fmt: skip
    return lab.rescale(BertForPreTraining(V, **sizes), 3.0).eval()


@pytest.fixture(scope="module")
def documents() -> list[list[list[int]]]:
    draw = torch.Generator().manual_seed(0)
    return [
        torch.randint(5 + 3 * (n % 4), 8 + 3 * (n % 4), (12, 6), generator=draw).tolist()
        for n in range(8)
    ]


# --------------------------------------------------------------------------- rows


# --------------------------------------------------------------------------- objectives


@pytest.mark.parametrize("padded", [False, True])
def test_a_left_to_right_copy_sees_nothing_later(padded: bool) -> None:
    model = make()
    causal = lab.left_to_right(model)
    ids = torch.tensor([2, 6, 7, 8, 9, 3])
    mask = torch.ones(1, 6, dtype=torch.bool) if padded else None
    see = lambda m: lab.dependence(  # noqa: E731
        lambda x: m.bert(x, None, None if mask is None else mask.expand(len(x), -1))[0], ids, 15
    )
    everything = torch.ones(6, 6, dtype=torch.bool)
    assert torch.equal(see(model), everything)
    assert torch.equal(see(causal), everything.tril())
    # nothing but the mask is different: at the last place the first layer sees everything
    assert causal.state_dict().keys() == model.state_dict().keys()
    one, same = make(num_layers=1), None
    same = lab.left_to_right(one)
    last = torch.tensor([[2, 6, 7, 8]])
    torch.testing.assert_close(same.bert(last)[0][:, -1], one.bert(last)[0][:, -1])


def test_padding_does_not_reach_a_left_to_right_model() -> None:
    causal = lab.left_to_right(make())
    ids = torch.tensor([[2, 6, 7, 8, 3]])
    longer = F.pad(ids, (2, 0))  # on the left, where causality does not hide it
    mask = longer != lab.PAD
    moved = causal.bert(longer, None, mask)[0]
    swapped = longer.clone()
    swapped[:, :2] = 9
    torch.testing.assert_close(causal.bert(swapped, None, mask)[0][:, 2:], moved[:, 2:])


def test_dependence_needs_a_token_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="one of the ids"):
        lab.dependence(lambda x: x[..., None].float(), torch.tensor([5, 6]), 6)


# --------------------------------------------------------------------------- yardsticks


# --------------------------------------------------------------------------- probabilities


def test_pseudo_log_likelihood_is_the_chapters() -> None:
    model, row = make(), torch.tensor([2, 6, 7, 8, 3])
    ours = lab.pseudo_log_likelihood(model, row).sum().item()
    assert ours == pytest.approx(chapters_score(model, row), abs=1e-4)


# --------------------------------------------------------------------------- generation


@pytest.mark.parametrize("sep", [True, False])
def test_appending_reads_one_mask_at_the_end_and_a_sep_behind_it_if_wanted(sep: bool) -> None:
    model, seen = make(), []
    model.bert.register_forward_pre_hook(lambda _, given: seen.append(given[0][0].tolist()))
    found = lab.sample_appending(model, 1, 3, sep=sep)[0].tolist()
    end = [lab.MASK, lab.SEP] if sep else [lab.MASK]
    assert seen == [[lab.CLS, *found[:t], *end] for t in range(3)]


def test_filling_in_draws_each_position_once_a_sweep() -> None:
    history: list[Tensor] = []
    found = lab.sample_filling(make(), 2, 5, sweeps=2, history=history)
    assert len(history) == 10
    assert torch.equal(history[-1], found)
    for step, ids in enumerate(history[:5], 1):
        assert ((ids != lab.MASK).sum(1) == step).all()


def test_the_judge_is_a_distribution_and_likes_what_it_has_read() -> None:
    rows = [[2, 5, 6, 7, 8, 3], [2, 5, 6, 9, 3]]
    judge = lab.NgramJudge(rows, 12)
    for before in ([], [5], [5, 6], [11], [11, 6]):
        total = sum(judge.probability(token, before) for token in [1, *range(5, 12)])
        assert total == pytest.approx(1)
    # by hand: after «5 6» came 7 and 9; «6» alone was seen in the same two places
    base = 1 / 8
    one = (1 + 5 * base) / (7 + 5)
    two = (1 + 2 * one) / (2 + 2)
    assert judge.probability(7, [5, 6]) == pytest.approx((1 + 2 * two) / (2 + 2))
    assert judge.perplexity(rows) < judge.perplexity([[8, 5, 7, 6]])


# --------------------------------------------------------------------------- mismatch


# --------------------------------------------------------------------------- next sentences


# --------------------------------------------------------------------------- relatives
