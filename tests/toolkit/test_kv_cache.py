"""Typed caches of keys and values."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from toolkit.kv_cache import DecoderCache, KVCache, LayerCache


def layer(rows: int = 3, past: int = 5) -> LayerCache:
    return LayerCache(torch.randn(rows, 2, past, 4), torch.randn(rows, 2, past, 4))


def decoder() -> DecoderCache:
    mask = torch.rand(3, 1, 7) < 0.5
    return DecoderCache(
        mask, KVCache([layer(past=7) for _ in range(2)]), KVCache([layer() for _ in range(2)])
    )


def test_past_is_the_number_of_positions_and_in_a_decoder_that_of_the_target() -> None:
    assert layer().past == KVCache([layer()]).past == decoder().past == 5
    assert layer(past=0).past == 0


def test_rows_are_selected_in_every_tensor() -> None:
    cache, rows = decoder(), torch.tensor([2, 0, 0, 1])
    found = cache.select(rows)
    assert torch.equal(found.src_mask, cache.src_mask[rows])
    for new, old in ((found.memory, cache.memory), (found.target, cache.target)):
        for a, b in zip(new.layers, old.layers, strict=True):
            assert torch.equal(a.keys, b.keys[rows])
            assert torch.equal(a.values, b.values[rows])


def test_a_cache_cannot_be_changed() -> None:
    for cache, name in ((layer(), "keys"), (KVCache([layer()]), "layers"), (decoder(), "target")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(cache, name, None)
