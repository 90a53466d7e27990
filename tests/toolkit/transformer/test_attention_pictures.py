"""The three attentions' masks, who depends on whom, and the pictures."""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch

from solutions.transformer import MultiHeadAttention, make_std_mask, pad_mask, subsequent_mask
from tests.toolkit.drawings import words
from toolkit.transformer import attention_pictures as pictures

SOURCE, TARGET = ["March", "5", "<pad>"], ["<bos>", "5", ".", "März"]


def example() -> tuple[pictures.Attention, ...]:
    ids, target = torch.tensor([[4, 5, 0]]), torch.tensor([[1, 5, 6, 7]])
    return pictures.three(SOURCE, TARGET, pad_mask(ids)[0], make_std_mask(target)[0])


def test_each_attention_has_its_own_shape_and_mask() -> None:
    encoder, decoder, cross = example()
    assert [tuple(one.mask.shape) for one in (encoder, decoder, cross)] == [(3, 3), (4, 4), (4, 3)]
    assert torch.equal(decoder.mask, subsequent_mask(4)[0])
    assert not encoder.mask[:, 2].any()
    assert not cross.mask[:, 2].any()


def test_the_overview_names_each_token_where_it_asks_and_where_it_is_asked() -> None:
    shown = words(pictures.overview(example()))
    assert shown.count("March") == 3
    assert shown.count("März") == 3
    plt.close("all")


def test_a_causal_attention_depends_on_nothing_later() -> None:
    torch.manual_seed(0)
    attention = MultiHeadAttention(8, 2)
    mask = subsequent_mask(5)
    moved = pictures.dependence(lambda x: attention(x, x, x, mask), torch.randn(1, 5, 8))
    assert torch.equal(moved > 1e-6, mask[0])
    axes = pictures.dependences({"one": moved}, list("abcde")).axes
    assert [t.get_text() for t in axes[0].get_xticklabels()] == list("abcde")
    plt.close("all")
