"""What the demonstration classes of `positional_encoding` have beyond what every unit's has.

`MISTAKES` are the misconceptions that one student each makes. The chapter forbids no library
function, so there is nothing to cheat with.
"""

from __future__ import annotations

# Three or more a unit, each of another exercise and told apart from its neighbours.
MISTAKES = (
    "bpe_ties_larger",
    "encode_text_order",
    "wordpiece_partial",
    "embedding_not_scaled",
    "frequencies_i_not_2i",
    "encoding_batch_row",
    "rotation_transposed",
    "learned_batch_row",
    "indices_not_clipped",
    "relative_offsets_unscaled",
    "rotary_pairings_swapped",
    "alibi_direct",
)
