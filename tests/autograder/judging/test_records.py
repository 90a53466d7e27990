"""Records such as caches cross the border as dicts, and graders and students see records."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from autograder.judging.proxy import Proxy
from autograder.judging.records import restored
from autograder.sandbox import wire
from autograder.sandbox.executor import RECORD, Executor
from toolkit.kv_cache import DecoderCache, KVCache, LayerCache


@dataclass
class Own:
    number: int


def grow(cache: LayerCache) -> list[LayerCache]:
    return [LayerCache(torch.cat([cache.keys, cache.keys], 2), cache.values), cache]


def spoil(cache: DecoderCache) -> KVCache:
    cache.target.layers.append(cache.memory.layers[0])  # type: ignore[attr-defined]
    return cache.memory


def student() -> Proxy:
    names = {
        "LayerCache": LayerCache, "KVCache": KVCache, "DecoderCache": DecoderCache,
        "grow": grow, "spoil": spoil, "own": lambda: Own(3), "kind": lambda: Own,
    }  # fmt: skip
    executor = Executor(names)
    # There and back over the wire, as in the sandbox.
    return Proxy(
        lambda request: wire.decode(
            wire.encode(executor.execute(wire.decode(wire.encode(request))))
        )
    )


def layer() -> LayerCache:
    return LayerCache(torch.randn(2, 1, 3, 2), torch.randn(2, 1, 3, 2))


def test_a_record_arrives_as_such_and_comes_back_as_such() -> None:
    given = layer()
    found, same = student().grow(given)
    assert isinstance(found, LayerCache)
    assert torch.equal(found.keys, torch.cat([given.keys, given.keys], 2))
    assert torch.equal(found.values, given.values)
    assert torch.equal(same.keys, given.keys)


def test_what_changes_a_record_in_place_is_noticed() -> None:
    cache = DecoderCache(torch.ones(2, 1, 3) > 0, KVCache([layer()]), KVCache([layer()]))
    seen = student().observe("spoil", cache, grad=False)
    assert isinstance(seen.value, KVCache)
    assert seen.mutated
    assert not student().observe("grow", layer(), grad=False).mutated


def test_gradients_reach_the_tensors_of_a_record() -> None:
    seen = student().observe("grow", layer())
    assert set(seen.grads) == {"0.keys", "0.values"}
    assert all(gradient.abs().sum() > 0 for gradient in seen.grads.values())


def test_a_record_of_an_unknown_type_or_with_other_fields_stays_a_dict() -> None:
    assert student().own() == {RECORD: "Own", "number": 3}
    for odd in (
        {RECORD: "LayerCache", "keys": 1},
        {RECORD: "LayerCache", "keys": 1, "values": 2, "more": 3},
        {RECORD: ["LayerCache"], "keys": 1, "values": 2},
        {"keys": 1, "values": 2},
    ):
        assert restored(odd) == odd


def test_a_type_itself_is_no_record() -> None:
    assert isinstance(student().kind(), wire.Foreign)
