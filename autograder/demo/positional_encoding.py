"""What the demonstration class of `positional_encoding` has beyond what every chapter's has.

`MISTAKES` are the misconceptions that one student each makes. The chapter forbids no library
function, so there is nothing to cheat with.
"""

from __future__ import annotations

# Of as many exercises as possible, and each told apart from its neighbours.
MISTAKES = (
    "bpe_ties_larger",
    "encode_text_order",
    "wordpiece_partial",
    "embedding_not_scaled",
    "frequencies_i_not_2i",
    "encoding_batch_row",
    "rotation_transposed",
    "relative_offsets_unscaled",
)
