"""What the pictures of the feed-forward network show, and what is read from a trained one."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
import torch

from toolkit.models import Shipped, load
from toolkit.transformer import feed_forward_pictures as pictures


@pytest.fixture(scope="module")
def shipped() -> Shipped:
    return load("transformer-en-zh")


def test_each_hidden_unit_answers_to_one_token() -> None:
    assert torch.equal(pictures.hidden(pictures.vectors()), torch.eye(4))
    outputs = torch.eye(4) @ pictures.WEIGHTS["w_2.weight"].T + pictures.WEIGHTS["w_2.bias"]
    assert outputs.tolist() == [[1, 0], [0, 1], [0, 1], [1, 0]]


def test_pictures_can_be_drawn() -> None:
    assert len(pictures.detectors().axes) == 4
    drawn = pictures.verdicts({"one": torch.eye(4)[:, :2], "other": -torch.ones(4, 2)})
    assert [text.get_text() for text in drawn.axes[1].texts] == ["−1.00"] * 8
    assert len(pictures.gates(samples=1000).axes) == 2
    plt.close("all")


def test_readings_hold_a_row_for_each_token_and_can_be_split(shipped: Shipped) -> None:
    pairs = shipped.held_out()[:6]
    found, log_probs = pictures.readings(shipped, pairs)
    assert found.hidden.shape == (len(found.next_ids), shipped.config["d_ff"])
    assert log_probs.shape == (len(found.next_ids), shipped.config["vocab_size"])
    assert found.hidden.min() == 0
    halves = [found.half(second) for second in (False, True)]
    assert [sorted(set(half.pair.tolist())) for half in halves] == [[0, 1, 2], [3, 4, 5]]
    assert pictures.names(shipped, found.next_ids).count("<eos>") == len(pairs)
    top = found.strongest(1)[0]
    unit = int(found.hidden.amax(0).argmax())
    assert top[unit] == found.next_ids[found.hidden[:, unit].argmax()]


def test_units_that_are_off_change_what_is_predicted(shipped: Shipped) -> None:
    pairs = shipped.held_out()[:3]
    (_, with_all), (found, without) = (
        pictures.readings(shipped, pairs, off) for off in ([], range(384))
    )
    assert not found.hidden.any()
    assert not torch.allclose(with_all, without)
    assert pictures.readings(shipped, pairs)[1].equal(with_all)  # and nothing stays changed


def test_what_a_value_promotes_has_an_entry_for_each_token(shipped: Shipped) -> None:
    found = pictures.promoted(shipped)
    assert found.shape == (384, shipped.config["vocab_size"])
