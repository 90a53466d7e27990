"""The stored experiment of the Transformer's training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import solutions.transformer as parts
from toolkit.corpora.translation import BOS, EOS
from toolkit.transformer import training_experiments as experiments


class Reverser(nn.Module):
    """Reverses without having learned it: what `greedy_decode` asks for, by rule."""

    def encode(self, source: Tensor, src_mask: Tensor) -> Tensor:
        lengths = (source != 0).sum(1)
        rows = [
            [*reversed(row[:n]), EOS]
            for row, n in zip(source.tolist(), lengths.tolist(), strict=True)
        ]
        wide = max(map(len, rows))
        return torch.tensor([[*row, *[EOS] * (wide - len(row))] for row in rows])[..., None].float()

    def decode(self, memory: Tensor, src_mask: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        return memory[:, : target.shape[1]]

    def generator(self, hidden: Tensor) -> Tensor:
        return nn.functional.one_hot(hidden[..., 0].long(), 14).float().log()


def test_a_model_that_reverses_has_every_sequence_right() -> None:
    assert experiments.exact(Reverser(), parts, count=20) == 1.0


def test_few_steps_give_a_row_for_each_checkpoint_and_one_for_the_average(monkeypatch) -> None:
    monkeypatch.setattr(experiments, "EVERY", 1)
    monkeypatch.setattr(experiments, "KEPT", 2)
    rows = experiments.averaging(parts, seeds=1, steps=3)
    assert [row["step"] for row in rows] == [2, 3, experiments.AVERAGE]


def test_the_stored_averages_beat_their_checkpoints_mean() -> None:
    singles, means = experiments.read()
    assert len(singles) == len(means) == experiments.SEEDS
    assert all(len(five) == experiments.KEPT for five in singles)
    assert all(mean > sum(five) / 5 for five, mean in zip(singles, means, strict=True))


def test_targets_begin_with_bos_and_hold_the_end() -> None:
    from toolkit.corpora import tasks

    batch = tasks.reverse_task(2, (3, 3), 5, torch.Generator().manual_seed(0))
    target = experiments.target_of(batch)
    assert target.shape == (2, 5)
    assert target[:, 0].tolist() == [BOS, BOS]
    assert target[:, -1].tolist() == [EOS, EOS]
