"""The small model of today: its parts by hand, and as a whole against `transformers`."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from toolkit.gpt.modern import Attention, Cache, ModernGPT, RMSNorm, rotate

SIZES = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2,
}  # fmt: skip
RENAMED = {
    "model.": "", "embed_tokens": "embedding", "layers": "blocks", "self_attn": "attn",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "mlp_norm",
}  # fmt: skip


def theirs(window: int | None) -> nn.Module:
    torch.manual_seed(0)
    if window is None:
        model = LlamaForCausalLM(LlamaConfig(**SIZES))
    else:
        model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=window))
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, mean=1.0, std=0.2)
    return model.eval()


def copied(model: nn.Module, window: int | None) -> ModernGPT:
    weights = model.state_dict()
    for old, new in RENAMED.items():
        weights = {name.replace(old, new): weight for name, weight in weights.items()}
    ours = ModernGPT(50, 32, 2, 4, 2, 48, window).eval()
    ours.load_state_dict(weights)
    return ours


@pytest.mark.parametrize("window", [None, 5])
@torch.no_grad()
def test_logits_are_those_of_a_llama_or_a_mistral_with_the_same_weights(window: int | None) -> None:
    other = theirs(window)
    ours, ids = copied(other, window), torch.randint(50, (3, 20))
    torch.testing.assert_close(ours(ids), other(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("window", [None, 5])
@torch.no_grad()
def test_reading_in_parts_with_a_cache_gives_the_same_logits(window: int | None) -> None:
    ours, ids = copied(theirs(window), window), torch.randint(50, (3, 20))
    caches = [Cache(), Cache()]
    parts = [ours(ids[:, :7], caches), *(ours(ids[:, t : t + 1], caches) for t in range(7, 20))]
    torch.testing.assert_close(torch.cat(parts, 1), ours(ids), rtol=1e-4, atol=1e-4)
    assert caches[0].keys.shape == (3, 2, 20 if window is None else window, 8)
    assert caches[0].seen == 20


def test_norm_and_rotation_of_small_numbers() -> None:
    x = torch.tensor([9.0, 1, 3, 3])
    torch.testing.assert_close(RMSNorm(4)(x), torch.tensor([1.8, 0.2, 0.6, 0.6]))
    turned = rotate(torch.tensor([[5.0, 0]]), torch.tensor([0.6435]))
    torch.testing.assert_close(turned, torch.tensor([[4.0, 3.0]]), rtol=0, atol=1e-3)


def test_heads_that_do_not_fit_are_refused() -> None:
    for heads, kv_heads in ((5, 1), (4, 3)):
        with pytest.raises(ValueError, match="must divide"):
            Attention(32, heads, kv_heads)
