"""Key-value caches: what attention keeps of earlier positions while a model generates.

All of them are records that are never changed: a step returns a new cache, so that one may go on
from an old one twice, as beam search does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class LayerCache:
    """Keys and values of one attention, split into heads.

    Attributes:
        keys: (B, H, P, D/H), those of the P positions so far.
        values: (B, H, P, D/H).
    """

    keys: Tensor
    values: Tensor

    @property
    def past(self) -> int:
        """P, the number of positions."""
        return self.keys.shape[2]

    def select(self, rows: Tensor) -> LayerCache:
        """The cache of other rows: rows (R,) int64, the old row of each new one; may repeat."""
        return LayerCache(self.keys.index_select(0, rows), self.values.index_select(0, rows))


@dataclass(frozen=True)
class KVCache:
    """The caches of a stack of layers.

    Attributes:
        layers: one LayerCache for each layer, in their order.
    """

    layers: Sequence[LayerCache]

    @property
    def past(self) -> int:
        """P, the number of positions."""
        return self.layers[0].past

    def select(self, rows: Tensor) -> KVCache:
        """The cache of other rows, as for LayerCache."""
        return KVCache([layer.select(rows) for layer in self.layers])


@dataclass(frozen=True)
class DecoderCache:
    """What a decoder with attention to a source keeps.

    Attributes:
        src_mask: (B, 1, S) bool, True where the source has a real token.
        memory: the encoder's output of S positions, as the attention to the source of each layer
            projects it.
        target: what the self-attention of each layer keeps of the target so far.
    """

    src_mask: Tensor
    memory: KVCache
    target: KVCache

    @property
    def past(self) -> int:
        """P, the number of target positions so far."""
        return self.target.past

    def select(self, rows: Tensor) -> DecoderCache:
        """The cache of other rows, as for LayerCache."""
        mask = self.src_mask.index_select(0, rows)  # (R, 1, S)
        return DecoderCache(mask, self.memory.select(rows), self.target.select(rows))
