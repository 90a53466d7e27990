"""Known mistakes of `positional_encoding-relative`: learned and relative positions.

Offsets without the + k, i - j for j - i, values without offsets.
"""

from __future__ import annotations

from autograder.units.variants import Misconception, mistakes_in

MISCONCEPTIONS: list[Misconception] = []

add = mistakes_in(MISCONCEPTIONS, "LearnedPositions", "pos-learned")
LEARNED = "x + self.table.weight[: x.shape[1]]"
LEARNED_TOO_FAR = "if x.shape[1] > max_length:"
add(
    "learned_from_the_end",
    "You use the last rows of the table; token t gets row t, counted from the beginning.",
    (LEARNED, "x + self.table.weight[max_length - x.shape[1] :]"),
)
add(
    "learned_batch_row",
    "The table is indexed by the row of the batch: all tokens of example b get row b. The batch "
    "comes first, so cut the table to x.shape[1].",
    (LEARNED, "x + self.table.weight[: x.shape[0]].unsqueeze(1)"),
    (LEARNED_TOO_FAR, "if False:"),
)
add(
    "learned_batch_size",
    "The table is cut to the size of the batch; the positions are dimension 1.",
    (LEARNED, "x + self.table.weight[: x.shape[0]]"),
)
add(
    "learned_from_one",
    "Your first token gets row 1; positions start at row 0.",
    (LEARNED, "x + self.table.weight.roll(-1, 0)[: x.shape[1]]"),
)
add(
    "learned_one_row",
    "Every token gets row 0; token t gets row t.",
    (LEARNED, "x + self.table.weight[0]"),
)
add(
    "learned_scaled",
    "Your positions are multiplied by √d_model; they are added as they are.",
    (LEARNED, "x + self.table.weight[: x.shape[1]] * math.sqrt(d_model)"),
)
add(
    "learned_only",
    "You return the positions without the embeddings; add them to x.",
    (LEARNED, "self.table.weight[: x.shape[1]].expand(x.shape)"),
)
add(
    "learned_concatenated",
    "You put the positions beside the embeddings; they are added.",
    (LEARNED, "torch.cat([x, self.table.weight[: x.shape[1]].expand(x.shape)], dim=-1)"),
)
add(
    "learned_sinusoidal",
    "You add the sinusoidal table; here the rows are learned, so add those of self.table.",
    (
        f"return {LEARNED}",
        "positions = torch.arange(x.shape[1], dtype=torch.float64)[:, None]\n"
        "        exponents = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model\n"
        "        angles = positions * 10000.0**-exponents\n"
        "        pairs = torch.stack([angles.sin(), angles.cos()], dim=-1)\n"
        "        return x + pairs.flatten(1)[:, :d_model].float().to(x.dtype)",
    ),
)
add(
    "learned_plain_parameter",
    "Your table is a parameter called `table`; it is an nn.Embedding, whose parameter is called "
    "table.weight.",
    (
        "self.table = nn.Embedding(max_length, d_model)",
        "self.table = nn.Parameter(torch.randn(max_length, d_model))",
    ),
    ("max_length, d_model = self.table.weight.shape", "max_length, d_model = self.table.shape"),
    (LEARNED, "x + self.table[: x.shape[1]]"),
)
add(
    "learned_transposed",
    "Your table has d_model rows; it has one for each position: nn.Embedding(max_length, d_model).",
    (
        "self.table = nn.Embedding(max_length, d_model)",
        "self.table = nn.Embedding(d_model, max_length)",
    ),
)
add(
    "learned_detached",
    "The sum is right, but no gradient reaches the table, so it would never be learned; don't use "
    ".data or detach().",
    (LEARNED, "x + self.table.weight.detach()[: x.shape[1]]"),
)
add(
    "learned_in_place",
    "You add to x in place, which changes the caller's tensor; write x + ... instead of x += ....",
    (LEARNED, "x.add_(self.table.weight[: x.shape[1]])"),
)
add(
    "learned_length_unchecked",
    "A sequence longer than the table ends in another error or none; raise a ValueError.",
    (LEARNED_TOO_FAR, "if False:"),
)
add(
    "learned_full_length_refused",
    "A sequence of exactly max_length is refused; the table has a row for each of its tokens.",
    (LEARNED_TOO_FAR, "if x.shape[1] >= max_length:"),
)
add(
    "learned_wraps_around",
    "Positions beyond the table start again at 0; raise a ValueError, since no such position was "
    "learned.",
    (LEARNED_TOO_FAR, "if False:"),
    (LEARNED, "x + self.table.weight[torch.arange(x.shape[1]) % max_length]"),
)
add(
    "learned_last_row_repeated",
    "Positions beyond the table get its last row; raise a ValueError.",
    (LEARNED_TOO_FAR, "if False:"),
    (LEARNED, "x + self.table.weight[torch.arange(x.shape[1]).clamp(max=max_length - 1)]"),
)
add(
    "learned_width_unchecked",
    "An x of another width is not refused with a ValueError; width 1 would even be broadcast.",
    ("if x.shape[-1] != d_model:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "relative_indices", "pos-relative")
OFFSETS = "positions[None, :] - positions[:, None]"
CLIPPED = "offsets.clamp(-max_distance, max_distance) + max_distance"
add(
    "indices_i_minus_j",
    "Your entries are i - j; entry [i, j] looks from i to j, so it is j - i.",
    (OFFSETS, "positions[:, None] - positions[None, :]"),
)
add(
    "indices_not_clipped",
    "Your entries are not clipped; beyond max_distance there is no further vector, so cut j - i to "
    "-k..k.",
    (CLIPPED, "offsets + max_distance"),
)
add(
    "indices_not_shifted",
    "Your entries run from -k to k; add k, or Python reads the negative ones from the end of the "
    "table.",
    (CLIPPED, "offsets.clamp(-max_distance, max_distance)"),
)
add(
    "indices_absolute",
    "Your entries forget the direction; keep the sign of j - i.",
    (CLIPPED, "offsets.abs().clamp(max=max_distance)"),
)
add(
    "indices_absolute_shifted",
    "Left and right get the same entry; keep the sign of j - i before you add k.",
    (CLIPPED, "offsets.abs().clamp(max=max_distance) + max_distance"),
)
add(
    "indices_only_to_the_right",
    "All positions to the left get one entry: you clip to 0..k. Clip j - i to -k..k, then add k.",
    (CLIPPED, "offsets.clamp(0, max_distance)"),
)
add(
    "indices_clipped_to_2k",
    "You clip j - i to 0..2k; clip it to -k..k first and add k afterwards.",
    (CLIPPED, "offsets.clamp(0, 2 * max_distance)"),
)
add(
    "indices_upper_only",
    "You clip on one side only; far to the left the entry is cut to -k as well.",
    (CLIPPED, "offsets.clamp(max=max_distance) + max_distance"),
)
add(
    "indices_lower_only",
    "You clip on one side only; far to the right the entry is cut to k as well.",
    (CLIPPED, "offsets.clamp(min=-max_distance) + max_distance"),
)
add(
    "indices_one_less",
    "You clip to -(k-1)..k-1; the distance k itself still has a vector of its own.",
    (CLIPPED, "offsets.clamp(-max(max_distance - 1, 0), max(max_distance - 1, 0)) + max_distance"),
)
add(
    "indices_from_one",
    "Your entries are one too large: they run from 0 to 2k, the rows of the table.",
    (CLIPPED, "offsets.clamp(-max_distance, max_distance) + max_distance + 1"),
)
add(
    "indices_wrapped",
    "Your entries start again beyond 2k, as by a modulo; cut them instead.",
    (CLIPPED, "(offsets + max_distance) % (2 * max_distance + 1)"),
)
add(
    "indices_as_floats",
    "Your entries are floats and can't be an index; make them int64.",
    (CLIPPED, f"({CLIPPED}).float()"),
)
add(
    "indices_length_shift",
    "You add length - 1, as for a table with a row for each possible offset; after clipping to "
    "-k..k add k.",
    (CLIPPED, "offsets.clamp(-max_distance, max_distance) + length - 1"),
)
add(
    "indices_zero_refused",
    "max_distance=0 is refused; it is allowed, and all entries are 0.",
    ("if max_distance < 0:", "if max_distance < 1:"),
)
add(
    "indices_distance_unchecked",
    "A negative max_distance is not refused; raise a ValueError.",
    ("if max_distance < 0:", "if False:"),
)
add(
    "indices_length_unchecked",
    "A length below 1 is not refused with a ValueError.",
    ("if length < 1:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "RelativeSelfAttention", "pos-relative")
CONTENT = "scores = q @ k.transpose(-2, -1)  # (B, H, T, T)"
RELATIVE = 'scores = scores + torch.einsum("bhid,ijd->bhij", q, key_offsets)  # (B, H, T, T)'
SCALE = "scores = scores / math.sqrt(q.shape[-1])"
INDEX = "relative_indices(length, self.max_distance).to(x.device)"
CONTEXT = 'z = z + torch.einsum("bhij,ijd->bhid", attn_weights, value_offsets)  # (B, H, T, Dh)'
HIDDEN = "~mask.broadcast_to(batch, length, length).unsqueeze(1)"
FILL = "scores.masked_fill(hidden, torch.finfo(scores.dtype).min)"
ZEROED = "torch.softmax(scores, dim=-1).masked_fill(hidden, 0.0)"
PLAIN = "attn_weights = torch.softmax(scores, dim=-1)  # (B, H, T, T)\n        else:"
KEY_TABLE = "self.key_offsets[index]"
VALUE_TABLE = "self.value_offsets[index]"
KEY_PARAMETER = "self.key_offsets = nn.Parameter(torch.randn(distances, head_dim)"
VALUE_PARAMETER = "self.value_offsets = nn.Parameter(torch.randn(distances, head_dim)"
JOIN = "z.transpose(1, 2).reshape(batch, length, width)"
add(
    "relative_offsets_unscaled",
    "Only the content part of your scores is divided by √d_head; the product with the key offset "
    "is divided as well: add first, then scale.",
    (CONTENT, "scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])"),
    (SCALE, "pass"),
)
add(
    "relative_content_unscaled",
    "Only the offset part of your scores is divided by √d_head; add the two parts first, then "
    "scale the sum.",
    (RELATIVE, RELATIVE.replace("q, key_offsets", "q, key_offsets / math.sqrt(q.shape[-1])")),
    (SCALE, "pass"),
)
add(
    "relative_not_scaled",
    "Your scores are not divided by √d_head; divide the sum of both parts.",
    (SCALE, "pass"),
)
add(
    "relative_scaled_by_d_model",
    "Your scores are divided by √d_model; a head scales by the root of its own width, "
    "d_model / num_heads.",
    (SCALE, "scores = scores / math.sqrt(width)"),
)
add(
    "relative_scaled_by_width",
    "Your scores are divided by d_head; divide by its square root.",
    (SCALE, "scores = scores / q.shape[-1]"),
)
add(
    "relative_without_key_offsets",
    "Your scores lack the key offsets: nothing tells the query how far away a key is. Add q · a to "
    "q · k.",
    (RELATIVE, "pass"),
)
add(
    "relative_without_value_offsets",
    "Your output lacks the value offsets; what is averaged is v_j + a_ij, not v_j alone.",
    (CONTEXT, "pass"),
)
add(
    "relative_without_offsets",
    "Your result is that of attention without positions; both offset tables are unused.",
    (RELATIVE, "pass"),
    (CONTEXT, "pass"),
)
add(
    "relative_reversed",
    "Your offsets look the wrong way: pair (i, j) gets the vector of i - j. Use "
    "relative_indices(...)[i, j] for query i and key j.",
    (INDEX, f"{INDEX}.T"),
)
add(
    "relative_values_reversed",
    "Your value offsets look the wrong way: value j seen from i gets the vector of i - j.",
    (CONTEXT, CONTEXT.replace("ijd", "jid")),
)
add(
    "relative_keys_reversed",
    "Your key offsets look the wrong way: key j seen from i gets the vector of i - j.",
    (RELATIVE, RELATIVE.replace("ijd", "jid")),
)
add(
    "relative_offsets_swapped",
    "Your two tables have changed places; key_offsets belong into the scores and value_offsets "
    "into the output.",
    (KEY_TABLE, "nn.functional.embedding(index, self.value_offsets)"),
    (f"= {VALUE_TABLE}", "= self.key_offsets[index]"),
)
add(
    "relative_one_table",
    "You use key_offsets for the values too; they have a table of their own, value_offsets.",
    (VALUE_TABLE, "self.key_offsets[index]"),
)
add(
    "relative_offset_meets_key",
    "You multiply the offset by the key; the query i is what meets k_j + a_ij.",
    (
        RELATIVE,
        'scores = scores + torch.einsum("bhjd,ijd->bhij", k, key_offsets)',
    ),
)
add(
    "relative_values_not_weighted",
    "You add all value offsets of a row, each with weight 1; weigh them by the attention weights.",
    (CONTEXT, "z = z + value_offsets.sum(dim=1)"),
)
add(
    "relative_values_averaged",
    "You add the plain mean of the value offsets; weigh them by the attention weights.",
    (CONTEXT, "z = z + value_offsets.mean(dim=1)"),
)
add(
    "relative_softmax_over_queries",
    "Your weights sum to 1 over the queries; the softmax runs over the keys, dim=-1.",
    (PLAIN, PLAIN.replace("dim=-1", "dim=-2")),
    (ZEROED, ZEROED.replace("dim=-1", "dim=-2")),
)
add(
    "relative_mask_ignored",
    "Your result matches ignoring the mask; where it is False the weight is 0.",
    (FILL, "scores"),
    (ZEROED, "torch.softmax(scores, dim=-1)"),
)
add(
    "relative_mask_inverted",
    "Your mask is read the wrong way round; True means may attend.",
    (HIDDEN, HIDDEN.removeprefix("~")),
)
add(
    "relative_mask_zero_before",
    "You write 0 over masked scores; exp(0) is 1, so they still get weight. Write -inf or a very "
    "large negative number.",
    (FILL, "scores.masked_fill(hidden, 0.0)"),
    (ZEROED, "torch.softmax(scores, dim=-1)"),
)
add(
    "relative_mask_zero_after",
    "You write 0 over masked weights after the softmax only; the rest of the row then sums to less "
    "than 1. Mask the scores first.",
    (FILL, "scores"),
)
add(
    "relative_mask_per_head",
    "A (B, T, T) mask lacks the axis of the heads, so example b's mask falls on head b or fails; "
    "unsqueeze it at dimension 1.",
    (HIDDEN, "~mask"),
)
add(
    "relative_mask_on_queries",
    "Your mask hides rows where it should hide columns: it is transposed. mask[i, j] says whether "
    "i may attend to j.",
    (HIDDEN, f"({HIDDEN}).transpose(-2, -1)"),
)
add(
    "relative_nan_rows",
    "A fully masked row becomes NaN; a softmax of nothing but -inf has no value. Give such rows "
    "the weight 0.",
    (FILL, 'scores.masked_fill(hidden, float("-inf"))'),
    (ZEROED, "torch.softmax(scores, dim=-1)"),
)
add(
    "relative_uniform_rows",
    "A fully masked row becomes uniform, since all its scores are the same large negative number; "
    "set masked weights to 0 after the softmax.",
    (ZEROED, "torch.softmax(scores, dim=-1)"),
)
add(
    "relative_masked_row_zero",
    "The output of a fully masked row is 0 in your answer; it passes out_proj like the others, so "
    "its bias is what remains.",
    (
        "return self.out_proj(z), attn_weights",
        "output = self.out_proj(z)\n"
        "        if mask is not None:\n"
        "            output = output.masked_fill(hidden[:, 0].all(-1, keepdim=True), 0.0)\n"
        "        return output, attn_weights",
    ),
)
add(
    "relative_mask_unchecked",
    "A mask that is not bool is not refused; raise a ValueError, since ~ and masked_fill need "
    "True and False.",
    ("if mask.dtype != torch.bool:", "if False:"),
    (HIDDEN, HIDDEN.replace("mask.", "mask.bool().")),
)
add(
    "relative_offsets_per_head",
    "Each of your heads has offsets of its own; the tables are shared by the heads, "
    "(2k + 1, d_model / num_heads).",
    (KEY_PARAMETER, KEY_PARAMETER.replace("(distances", "(num_heads, distances")),
    (VALUE_PARAMETER, VALUE_PARAMETER.replace("(distances", "(num_heads, distances")),
    (KEY_TABLE, "self.key_offsets[:, index]"),
    (VALUE_TABLE, "self.value_offsets[:, index]"),
    (RELATIVE, RELATIVE.replace("ijd", "hijd")),
    (CONTEXT, CONTEXT.replace(",ijd", ",hijd")),
)
add(
    "relative_too_few_offsets",
    "Your tables have 2k rows; offsets from -k to k are 2k + 1, with 0 among them.",
    ("distances = 2 * max_distance + 1", "distances = 2 * max_distance"),
)
add(
    "relative_one_sided_offsets",
    "Your tables have k + 1 rows, for distances without direction; offsets from -k to k are "
    "2k + 1.",
    ("distances = 2 * max_distance + 1", "distances = max_distance + 1"),
    (INDEX, f"({INDEX} - self.max_distance).abs()"),
)
add(
    "relative_offsets_of_full_width",
    "Your offsets are d_model wide; they meet the queries of one head, so they are "
    "d_model / num_heads wide.",
    (KEY_PARAMETER, KEY_PARAMETER.replace("head_dim)", "d_model)")),
    (VALUE_PARAMETER, VALUE_PARAMETER.replace("head_dim)", "d_model)")),
)
add(
    "relative_offsets_detached",
    "No gradient reaches your offset tables, so they would never be learned; don't detach them.",
    (KEY_TABLE, "self.key_offsets.detach()[index]"),
    (VALUE_TABLE, "self.value_offsets.detach()[index]"),
)
add(
    "relative_split_by_view",
    "Your heads match view(B, H, T, Dh) of the projections, which mixes positions and features; "
    "view as (B, T, H, Dh), then swap the two.",
    ("q = self.q_proj(x).view(heads).transpose(1, 2)", "q = self.q_proj(x).view(split)"),
    ("k = self.k_proj(x).view(heads).transpose(1, 2)", "k = self.k_proj(x).view(split)"),
    ("v = self.v_proj(x).view(heads).transpose(1, 2)", "v = self.v_proj(x).view(split)"),
    (
        "heads = (batch, length, self.num_heads, -1)",
        "split = (batch, self.num_heads, length, -1)",
    ),
)
add(
    "relative_merged_without_transpose",
    "Your heads are joined without swapping heads and positions back; transpose(1, 2) before the "
    "reshape.",
    (JOIN, "z.reshape(batch, length, width)"),
)
add(
    "relative_weights_averaged",
    "You return the mean of the weights over the heads; return those of every head, (B, H, T, T).",
    ("return self.out_proj(z), attn_weights", "return self.out_proj(z), attn_weights.mean(dim=1)"),
)
add(
    "relative_without_out_proj",
    "Your output lacks out_proj; it mixes the heads and is always applied.",
    ("return self.out_proj(z), attn_weights", "return z, attn_weights"),
)
add(
    "relative_output_only",
    "You return the output only; return the pair (output, attn_weights).",
    ("return self.out_proj(z), attn_weights", "return self.out_proj(z)"),
)
add(
    "relative_without_biases",
    "Your projections have no biases; all four have one.",
    *(
        (
            f"self.{name} = nn.Linear(d_model, d_model)",
            f"self.{name} = nn.Linear(d_model, d_model, bias=False)",
        )
        for name in ("q_proj", "k_proj", "v_proj", "out_proj")
    ),
)
add(
    "relative_heads_unchecked",
    "Heads that don't divide d_model are not refused; test the remainder when the module is "
    "created.",
    ("if d_model % num_heads != 0:", "if False:"),
)
add(
    "relative_width_unchecked",
    "An x of another width than d_model is not refused with a ValueError.",
    ("if width != self.q_proj.in_features:", "if False:"),
)
add(
    "relative_nan_gradients",
    "The gradients of a fully masked row are NaN: its softmax is taken over -inf only, and what is "
    "added to the scores keeps the NaN. Fill with the smallest finite number instead.",
    (
        "scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)",
        "scores = scores + torch.zeros_like(scores).masked_fill(hidden, -torch.inf)",
    ),
    (
        "torch.softmax(scores, dim=-1).masked_fill(hidden, 0.0)",
        "torch.nan_to_num(torch.softmax(scores, dim=-1)).masked_fill(hidden, 0.0)",
    ),
)
