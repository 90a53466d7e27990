"""What the page on [MASK] shows of the shipped model."""

from __future__ import annotations

import pytest
import torch

from toolkit.bert import mask_token_pictures as pictures
from toolkit.models import load


def test_every_ordinary_token_has_one_fate_whatever_the_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bert = load("bert")
    found = pictures.by_fate(bert, count=12)
    monkeypatch.setattr(pictures, "BATCH", 5)
    again = pictures.by_fate(bert, count=12)
    assert tuple(found) == pictures.FATES
    for fate in found:
        assert found[fate].shape == again[fate].shape == (len(found[fate]), 3)
        assert torch.allclose(found[fate], again[fate], atol=1e-4)
    chosen = sum(len(each) for fate, each in found.items() if fate != "not chosen")
    assert 0.1 < chosen / (chosen + len(found["not chosen"])) < 0.2
    for fate in ("kept", "not chosen"):  # what is read is right
        assert torch.equal(found[fate][:, 0], found[fate][:, 1])
    assert not (found["random"][:, 0] * found["random"][:, 1]).any()
    assert found["[MASK]"][:, 2].max() < 0.01  # it never predicts [MASK]


def test_the_three_parts_of_a_bar_add_up() -> None:
    found = {
        "random": torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]]),
        "kept": torch.tensor([[1.0, 1, 1], [1, 1, 1]]),
    }
    bars = pictures.fates(found).axes[0].patches
    wide = [round(bar.get_width()) for bar in bars]
    assert wide == [25, 25, 50, 100, 0, 0]
