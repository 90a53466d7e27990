"""What the logit lens reads from a decoder, and that its pictures can be drawn."""

from __future__ import annotations

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch

from solutions.transformer import DecoderLayer, make_model, make_std_mask, pad_mask, subsequent_mask
from toolkit.models import Shipped, load
from toolkit.transformer import logit_lens

matplotlib.use("Agg")


@pytest.fixture(scope="module")
def shipped() -> Shipped:
    return load("transformer-en-de")


@pytest.mark.parametrize("norm_first", [False, True])
def test_states_run_from_the_embedded_target_to_what_the_generator_gets(norm_first: bool) -> None:
    torch.manual_seed(0)
    model = make_model(9, 9, 2, 16, 32, 2, norm_first=norm_first).train()
    src, tgt = torch.tensor([[4, 5, 6, 0]]), torch.tensor([[1, 7, 8]])
    states = logit_lens.decoder_states(model, src, tgt)
    assert tuple(states) == logit_lens.STATES
    assert model.training  # as it was
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(states["input"], model.position(model.tgt_embed(tgt)))
        memory = model.encode(src, pad_mask(src))
        one = model.decoder.layers[0](states["input"], memory, pad_mask(src), make_std_mask(tgt))
        torch.testing.assert_close(states["feed-forward 1"], one)
        last = logit_lens.log_probabilities(model, states["feed-forward 2"])
        torch.testing.assert_close(last, model(src, tgt))


def test_the_last_state_says_what_the_translator_says(shipped: Shipped) -> None:
    best, chances = logit_lens.last_position(shipped, "5 days ago", ["vor", "5"], ["5", "Tagen"])
    assert (best[0], best[-1]) == ("5", "Tagen")
    assert chances.shape == (7, 2)
    assert chances[-1, 1] > 0.8
    page = logit_lens.page(shipped, "5 days ago", ["vor", "5"], ["5", "Tagen"])
    assert "feed-forward 2: <b>Tagen</b>" in page
    assert page.index("feed-forward 2") < page.index("input: <b>5</b>")


def test_shares_begin_with_what_was_given_and_end_with_what_comes_next(shipped: Shipped) -> None:
    shares, positions = logit_lens.handover(shipped, most=20)
    assert positions == sum(len(pair.target_tokens) + 1 for pair in shipped.held_out()[:20])
    assert shares["input"][0] == 1
    assert shares["feed-forward 2"][1] > 0.98
    without = logit_lens.without(shipped, most=20)
    assert max(without.values()) <= shares["feed-forward 2"][1]
    # A pre-norm model without its last sub-layer is what the lens reads before it.
    assert without["feed-forward 2"] == pytest.approx(shares["cross-attention 2"][1])
    plt.close(logit_lens.handover_figure(shares))


def test_a_decoder_layer_is_not_moved_by_later_tokens() -> None:
    torch.manual_seed(0)
    layer = DecoderLayer(16, 2, 32).eval()
    x, memory = torch.randn(1, 3, 16), torch.randn(1, 5, 16)
    moved = logit_lens.influence(layer, x, memory, subsequent_mask(3))
    assert moved.triu(1).max() < 1e-5
    assert moved.tril().diagonal().min() > 0.1
    plt.close(logit_lens.influences({"right": moved}, ["a", "b", "c"]))
