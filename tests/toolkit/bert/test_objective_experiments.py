"""The language of weekdays, its best predictions, and the stored experiments on objectives."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch

from toolkit.bert import objective_experiments as experiments
from toolkit.bert.objective_experiments import DAYS, LENGTH, MASK

EVERY = torch.tensor(list(itertools.product(range(DAYS), repeat=LENGTH)))


@pytest.fixture(scope="module")
def log_p() -> torch.Tensor:
    return experiments.log_likelihood(EVERY)


def test_all_texts_together_have_probability_one(log_p: torch.Tensor) -> None:
    assert log_p.exp().sum().item() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("known", [(0, 1, None, 3, 4, 5), (0, None, 2, None, None, 1)])
def test_the_best_masked_model_agrees_with_counting_all_texts(
    known: tuple[int | None, ...], log_p: torch.Tensor
) -> None:
    fits = torch.ones(len(EVERY), dtype=torch.bool)
    for t, day in enumerate(known):
        fits &= torch.tensor(True) if day is None else EVERY[:, t] == day
    at = known.index(None)
    counted = torch.zeros(DAYS).index_add(0, EVERY[fits][:, at], log_p[fits].exp())
    ids = torch.tensor([[MASK if day is None else day for day in known]])
    found = experiments.best_from_both(ids)[0, at].exp()
    torch.testing.assert_close(found, counted / counted.sum(), atol=1e-4, rtol=1e-3)


def test_a_causal_model_does_not_see_later_days() -> None:
    torch.manual_seed(0)
    model = experiments.Model(True, 2)
    at = model.parameters()
    ids, _ = experiments.texts(2, 3, draw=torch.Generator().manual_seed(1))
    other = ids.clone()
    other[..., 3] = (other[..., 3] + 1) % DAYS
    before, after = model.logits(at, ids), model.logits(at, other)
    torch.testing.assert_close(before[:, :, :4], after[:, :, :4])
    assert not torch.allclose(before[:, :, 4:], after[:, :, 4:])


def test_the_best_masked_model_writes_real_texts_one_at_a_time_but_not_all_at_once() -> None:
    draw = torch.Generator().manual_seed(3)

    def nats(ids: torch.Tensor) -> float:
        return -experiments.log_likelihood(ids).mean().item() / LENGTH

    real = nats(experiments.texts(2000, draw=draw)[0])
    best = experiments.best_from_both
    assert nats(experiments.write_by_filling(best, 2000, draw, (1,))[1]) == pytest.approx(
        real, abs=0.04
    )
    assert nats(experiments.write_at_once(best, 2000, draw)) > real + 1


def test_short_trainings_fill_the_tables_that_the_pages_read(tmp_path: Path) -> None:
    kept = tmp_path / "kept.pt"
    rows = experiments.learning(("masked",), search=2, looks=(1, 2), kept=kept)
    stored = experiments.read("learning")
    assert list(rows[0]) == list(stored[0])
    assert {row["part"] for row in rows} == {"search", "training"}
    assert set(torch.load(kept)) == {"masked, 1", "masked, 2"}


@pytest.mark.parametrize("objective", experiments.OBJECTIVES)
def test_the_chosen_learning_rate_is_not_at_an_end(objective: str) -> None:
    search = [r for r in experiments.read("learning")
              if r["objective"] == objective and r["part"] == "search"]  # fmt: skip
    lrs = {float(r["lr"]) for r in search}
    assert min(lrs) < experiments.best_lr(search, "excess", least=True) < max(lrs)


def test_exact_losses_agree_with_many_random_texts() -> None:
    exact = experiments.best_losses()
    ids, _ = experiments.texts(20_000, draw=torch.Generator().manual_seed(4))
    left = -experiments.log_likelihood(ids).mean().item() / LENGTH
    assert exact["left to right"] == pytest.approx(left, abs=0.02)
    one = 0.0
    for t in range(LENGTH):
        given = ids.clone()
        given[:, t] = MASK
        found = experiments.best_from_both(given)[:, t].gather(-1, ids[:, t : t + 1])
        one -= found.mean().item() / LENGTH
    assert exact["one masked"] == pytest.approx(one, abs=0.02)
    chosen = torch.rand(ids.shape, generator=torch.Generator().manual_seed(5)) < 0.15
    found = experiments.best_from_both(ids.masked_fill(chosen, MASK)).gather(-1, ids[..., None])
    assert exact["masked"] == pytest.approx(-found[..., 0][chosen].mean().item(), abs=0.03)


def test_where_all_is_masked_nothing_is_known() -> None:
    assert experiments.best_losses(mask_prob=1.0)["masked"] == pytest.approx(math.log(DAYS))
