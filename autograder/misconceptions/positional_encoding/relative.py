"""Known mistakes of `positional_encoding-relative`: learned, relative, rotary positions, ALiBi.

Offsets without the + k, i - j for j - i, values without offsets; pairs of the other layout,
rotations backwards; slopes that ignore the number of heads.
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
    "The sum is right, but no gradient reaches the table, so it would never be learned; look "
    "for .data, detach(), no_grad() and requires_grad_(False).",
    (LEARNED, "x + self.table.weight.detach()[: x.shape[1]]"),
)
add(
    "learned_in_place",
    "You add to x in place, which changes the caller's tensor; x + ... makes a new one.",
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
    "learned_too_long_answered",
    "A sequence longer than the table gets an answer, though nothing was learned for its last "
    "positions; raise a ValueError.",
    (LEARNED_TOO_FAR, "if False:"),
    (LEARNED, "x + self.table.weight[torch.arange(x.shape[1]) % max_length]"),
)
add(
    "learned_rows_kept",
    "After a longer input the tokens of a shorter one get other rows, since you keep the position "
    "ids; take the first T rows in each call.",
    (
        f"return {LEARNED}",
        "if x.shape[1] > len(getattr(self, 'ids', ())):\n"
        "            self.ids = torch.arange(x.shape[1])\n"
        "        return x + self.table(self.ids[-x.shape[1] :])",
    ),
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
LOWEST = "torch.finfo(scores.dtype).min"
FILL = f"scores.masked_fill(hidden, {LOWEST})"
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
    "Your value offsets look the wrong way: you add the vector of i - j to value j; seen from i it "
    "has that of j - i.",
    (CONTEXT, CONTEXT.replace("ijd", "jid")),
)
add(
    "relative_keys_reversed",
    "Your key offsets look the wrong way: you add the vector of i - j to key j; seen from i it has "
    "that of j - i.",
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
    "relative_zero_scores_masked",
    "You hide every key whose score is 0, as if the mask had made it so; a score may be 0 where "
    "the mask is True. Ask the mask itself.",
    (FILL, f"(scores * ~hidden).masked_fill(scores * ~hidden == 0, {LOWEST})"),
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
    "relative_mask_enlarges",
    "You accept a mask that is larger than (B, T, T) where B or T is 1: the scores are broadcast "
    "to the mask, not the mask to (B, T, T). Compare its shape with (B, T, T), or expand it.",
    (
        HIDDEN,
        "~mask.broadcast_to(torch.broadcast_shapes(mask.shape, (batch, length, length)))"
        ".unsqueeze(-3)",
    ),
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
    "relative_heads_interleaved",
    "Your head h has every num_heads-th feature, h, h + H, …; it has a block of neighbours, "
    "h Dh to (h + 1) Dh - 1: view as (B, T, H, Dh), not (B, T, Dh, H).",
    *(
        (
            f"{name}_proj(x).view(heads).transpose(1, 2)",
            f"{name}_proj(x).view(heads).permute(0, 3, 1, 2)",
        )
        for name in "qkv"
    ),
    (
        "heads = (batch, length, self.num_heads, -1)",
        "heads = (batch, length, -1, self.num_heads)",
    ),
    (JOIN, "z.permute(0, 2, 3, 1).reshape(batch, length, width)"),
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
    "relative_softmax_in_float32",
    "Your softmax runs in float32; keep the dtype of the scores, or float64 loses half its digits.",
    (
        "torch.softmax(scores, dim=-1).masked_fill(hidden, 0.0)",
        "torch.softmax(scores.float(), dim=-1).to(x.dtype).masked_fill(hidden, 0.0)",
    ),
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

add = mistakes_in(MISCONCEPTIONS, "RotaryEmbedding", "pos-rope")
STORED = "self.interleaved = interleaved"
ODD = "if head_dim % 2 != 0:"
EXPONENTS = "torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim"
FREQUENCIES = "(self.base**-exponents).to(position_ids.device)"
ANGLES = "position_ids[..., None] * frequencies"
TABLES = "return angles.cos().float(), angles.sin().float()"
WIDTH = "if x.shape[-1] != self.head_dim:"
DEFAULT = "torch.arange(x.shape[-2], device=x.device)"
COUNTED = "if position_ids is None:"
ASKED = "cos, sin = self.tables(position_ids)"
NEIGHBOURS = "a, b = x[..., 0::2], x[..., 1::2]"
HALVES = "a, b = x.chunk(2, dim=-1)"
ROTATED = "[a * cos - b * sin, a * sin + b * cos]"
STACKED = "torch.stack(rotated, dim=-1).flatten(-2)"
JOINED = "torch.cat(rotated, dim=-1)"
RESULT = "return y.to(x.dtype)"
AS_BUFFER = (
    "\n        exponents = torch.arange(0, head_dim, 2) / head_dim"
    '\n        self.register_buffer("inv_freq", base**-exponents'
)
add(
    "rotary_pairings_swapped",
    "Your two pairings are exchanged: interleaved=True pairs features 2i and 2i + 1, "
    "interleaved=False pairs i and i + head_dim/2.",
    (STORED, "self.interleaved = not interleaved"),
)
add(
    "rotary_always_halves",
    "You ignore interleaved and always pair i with i + head_dim/2; with interleaved=True the "
    "neighbours 2i and 2i + 1 are a pair.",
    (STORED, "self.interleaved = False"),
)
add(
    "rotary_always_neighbours",
    "You always pair neighbours, 2i and 2i + 1; with interleaved=False i and i + head_dim/2 are a "
    "pair.",
    (STORED, "self.interleaved = True"),
)
add(
    "rotary_backwards",
    "You rotate by minus the angle; the minus stands in a cos - b sin, the plus in a sin + b cos.",
    (ROTATED, "[a * cos + b * sin, b * cos - a * sin]"),
)
add(
    "rotary_two_plus",
    "Both of your formulas add; the first subtracts, a cos - b sin, or it is no rotation.",
    (ROTATED, "[a * cos + b * sin, a * sin + b * cos]"),
)
add(
    "rotary_two_minus",
    "Both of your formulas subtract; the second adds, a sin + b cos, or it is no rotation.",
    (ROTATED, "[a * cos - b * sin, b * cos - a * sin]"),
)
add(
    "rotary_halves_backwards",
    "With interleaved=False you rotate by minus the angle; rotate_half is (-b, a), with the minus "
    "before the second half.",
    (JOINED, "torch.cat([a * cos + b * sin, b * cos - a * sin], dim=-1)"),
)
add(
    "rotary_halves_two_plus",
    "With interleaved=False the minus is missing; rotate_half is (-b, a), so a becomes "
    "a cos - b sin.",
    (JOINED, "torch.cat([a * cos + b * sin, a * sin + b * cos], dim=-1)"),
)
add(
    "rotary_neighbours_backwards",
    "With interleaved=True you rotate by minus the angle; the neighbours (a, b) become "
    "a cos - b sin and a sin + b cos.",
    (STACKED, "torch.stack([a * cos + b * sin, b * cos - a * sin], dim=-1).flatten(-2)"),
)
add(
    "rotary_neighbours_two_plus",
    "With interleaved=True the minus is missing; the neighbours (a, b) become a cos - b sin and "
    "a sin + b cos.",
    (STACKED, "torch.stack([a * cos + b * sin, a * sin + b * cos], dim=-1).flatten(-2)"),
)
add(
    "rotary_features_exchanged",
    "The two features of each pair have changed places in your result; a cos - b sin comes first.",
    (ROTATED, "[a * sin + b * cos, a * cos - b * sin]"),
)
add(
    "rotary_partners_not_exchanged",
    "The sine multiplies the feature itself instead of its partner: b goes into the first formula "
    "with the sine, and a into the second.",
    (ROTATED, "[a * cos - a * sin, b * cos + b * sin]"),
)
add(
    "rotary_first_one_reused",
    "Your second formula takes the a that is rotated already; keep the old a until both are done.",
    (ROTATED, "[a * cos - b * sin, (a * cos - b * sin) * sin + b * cos]"),
)
add(
    "rotary_without_sine",
    "You only multiply by the cosine, which shrinks vectors; a rotation needs the other feature of "
    "the pair, times the sine.",
    (ROTATED, "[a * cos, b * cos]"),
)
add(
    "rotary_first_of_pair_only",
    "Only the first feature of each pair changes in your result; the second becomes a sin + b cos.",
    (ROTATED, "[a * cos - b * sin, b * torch.ones_like(cos)]"),
)
add(
    "rotary_half_of_the_pairs",
    "Only the first half of your pairs is rotated; all head_dim features are.",
    (
        ASKED,
        f"{ASKED}\n"
        "        still = torch.arange(self.head_dim // 2) >= (self.head_dim + 2) // 4\n"
        "        cos, sin = cos.masked_fill(still, 1.0), sin.masked_fill(still, 0.0)",
    ),
)
add(
    "rotary_tables_exchanged",
    "Your tables come as (sin, cos); tables returns cos first.",
    (TABLES, "return angles.sin().float(), angles.cos().float()"),
    (ASKED, "sin, cos = self.tables(position_ids)"),
)
add(
    "rotary_sine_for_cosine",
    "You take the sine where the cosine belongs, so position 0 does not stay as it is.",
    (ASKED, "sin, cos = self.tables(position_ids)"),
)
add(
    "rotary_sine_first",
    "Your tables are (sin, cos), and forward takes the first for the cosine; return cos first.",
    (TABLES, "return angles.sin().float(), angles.cos().float()"),
)
add(
    "rotary_tables_full_width",
    "Your tables are head_dim wide; each pair has one angle, so return head_dim // 2 columns.",
    (
        TABLES,
        "angles = torch.cat([angles, angles], dim=-1)\n"
        "        return angles.cos().float(), angles.sin().float()",
    ),
    (
        ASKED,
        "cos, sin = (table[..., : self.head_dim // 2] for table in self.tables(position_ids))",
    ),
)
add(
    "rotary_tables_float64",
    "Your tables are float64; return them as float32.",
    (TABLES, "return angles.cos(), angles.sin()"),
)
add(
    "rotary_frequencies_grow",
    "Your frequencies grow from pair to pair; the exponent has a minus, base ** (-2i / head_dim).",
    (FREQUENCIES, "(self.base**exponents).to(position_ids.device)"),
)
add(
    "rotary_i_for_2i",
    "Your exponent is i / head_dim; it is 2i / head_dim.",
    (EXPONENTS, "torch.arange(self.head_dim // 2, dtype=torch.float64) / self.head_dim"),
)
add(
    "rotary_4i_for_2i",
    "Your exponent is 4i / head_dim; divide 2i by head_dim, not by its half.",
    (EXPONENTS, f"2 * {EXPONENTS}"),
)
add(
    "rotary_frequencies_to_the_end",
    "Your last frequency is 1 / base: you divide by the largest 2i. Divide by head_dim.",
    (
        EXPONENTS,
        "torch.arange(0, self.head_dim, 2, dtype=torch.float64) / max(self.head_dim - 2, 1)",
    ),
)
add(
    "rotary_frequencies_from_one",
    "Your first frequency is not 1: i starts at 0.",
    (EXPONENTS, "torch.arange(2, self.head_dim + 2, 2, dtype=torch.float64) / self.head_dim"),
)
add(
    "rotary_base_ignored",
    "You ignore base and always take 10000.",
    ("self.base = base", "self.base = 10000.0"),
)
add(
    "rotary_two_pi",
    "Your angles are multiplied by 2π; position times frequency is the angle in radians already.",
    (ANGLES, f"2 * math.pi * {ANGLES}"),
)
add(
    "rotary_one_frequency",
    "All your pairs turn by the same angle, position times 1; pair i has the frequency "
    "base ** (-2i / head_dim).",
    (ANGLES, f"{ANGLES}**0"),
)
add(
    "rotary_from_one",
    "Your positions start at 1; without position_ids they are 0, 1, …, T - 1.",
    (DEFAULT, "torch.arange(1, x.shape[-2] + 1, device=x.device)"),
)
add(
    "rotary_position_ids_ignored",
    "You ignore position_ids and always count from 0.",
    (COUNTED, "if True:"),
)
add(
    "rotary_first_position_only",
    "You take only the first of position_ids and count on from it; each token has its own.",
    (
        ASKED,
        "position_ids = position_ids[..., :1] + torch.arange(x.shape[-2], device=x.device)\n"
        f"        {ASKED}",
    ),
)
add(
    "rotary_first_examples_positions",
    "You use the position_ids of the first example for all; each example has its own.",
    (
        ASKED,
        f"position_ids = position_ids[(0,) * (position_ids.dim() - 1)]\n        {ASKED}",
    ),
)
add(
    "rotary_heads_as_positions",
    "Your angles grow along dimension -3, the heads; positions are dimension -2.",
    (DEFAULT, "torch.arange(x.shape[-3], device=x.device)[:, None]"),
)
add(
    "rotary_batch_row",
    "Your angle depends on the row of the batch, dimension 0; positions are dimension -2.",
    (
        DEFAULT,
        "torch.arange(len(x), device=x.device).view(-1, *(1,) * (x.dim() - 2))",
    ),
)
add(
    "rotary_positions_as_batch",
    "You read positions with two axes as (B, T) and put an axis for the heads between; "
    "position_ids is broadcastable to x.shape[:-1] as it is, so beside (B, H, T) it is (H, T).",
    (
        ASKED,
        "if position_ids.dim() == 2 and x.dim() == 4:\n"
        "            position_ids = position_ids.unsqueeze(1)\n"
        f"        {ASKED}",
    ),
)
add(
    "rotary_tables_kept",
    "You keep the tables of an earlier call with as many tokens; position_ids may be others, so "
    "make them anew.",
    (
        ASKED,
        "if getattr(self, 'length', None) != x.shape[-2]:\n"
        "            self.length, self.kept = x.shape[-2], self.tables(position_ids)\n"
        "        cos, sin = self.kept",
    ),
)
add(
    "rotary_one_position_each",
    "A position_ids that is broadcast along T is refused; one position may stand for all tokens.",
    (
        ASKED,
        "if position_ids.shape[-1] != x.shape[-2]:\n"
        '            raise ValueError("each token needs a position of its own")\n'
        f"        {ASKED}",
    ),
)
add(
    "rotary_layout_batch_length_heads",
    "You expect x as (B, T, H, head_dim); here T is dimension -2, behind the heads.",
    (DEFAULT, "torch.arange(x.shape[-3], device=x.device)"),
    (ASKED, "cos, sin = (table.unsqueeze(-2) for table in self.tables(position_ids))"),
)
add(
    "rotary_tables_unsqueezed",
    "You put an axis for the heads into the tables of positions (B, T); position_ids is "
    "broadcastable to x.shape[:-1] as it is, (B, 1, T) where there are heads.",
    (
        ASKED,
        f"{ASKED}\n"
        "        if position_ids.dim() == 2:\n"
        "            cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)",
    ),
)
add(
    "rotary_length_from_dimension_1",
    "You take T from dimension 1; x is (..., T, head_dim), so T is dimension -2.",
    (DEFAULT, "torch.arange(x.shape[1], device=x.device)"),
)
add(
    "rotary_length_from_dimension_2",
    "You take T from dimension 2 where x has more than three; x is (..., T, head_dim), so T is "
    "dimension -2.",
    (DEFAULT, "torch.arange(x.shape[2 if x.dim() > 3 else -2], device=x.device)"),
)
add(
    "rotary_neighbours_not_put_back",
    "With interleaved=True you join the rotated features as halves; put each pair back to columns "
    "2i and 2i + 1.",
    (STACKED, "torch.cat(rotated, dim=-1)"),
)
add(
    "rotary_halves_not_put_back",
    "With interleaved=False you put the rotated features side by side; put each pair back to i "
    "and i + head_dim/2.",
    (JOINED, "torch.stack(rotated, dim=-1).flatten(-2)"),
)
add(
    "rotary_angles_as_neighbours",
    "Your halves get the angles of neighbours, two equal ones side by side; features i and "
    "i + head_dim/2 share angle i.",
    (
        JOINED,
        "torch.cat([-b, a], dim=-1) * sin.repeat_interleave(2, -1)\n"
        "            y = y + x * cos.repeat_interleave(2, -1)",
    ),
)
add(
    "rotary_angles_as_halves",
    "Your neighbours get the angles of halves, 0, 1, … twice in a row; features 2i and 2i + 1 "
    "share angle i.",
    (
        STACKED,
        "torch.stack([-b, a], dim=-1).flatten(-2) * torch.cat([sin, sin], dim=-1)\n"
        "            y = y + x * torch.cat([cos, cos], dim=-1)",
    ),
)
add(
    "rotary_added",
    "You add cosine and sine to x, as a sinusoidal code; RoPE rotates x by them.",
    (ROTATED, "[a + sin, b + cos]"),
)
add(
    "rotary_scaled",
    "Your result is scaled by 1/√head_dim; a rotation changes no length, and scores are scaled "
    "elsewhere.",
    (RESULT, "return (y / math.sqrt(self.head_dim)).to(x.dtype)"),
)
add(
    "rotary_in_place",
    "You write the rotated features into x itself; the caller still needs it. Write into a new "
    "tensor.",
    (RESULT, "return x.copy_(y) if not x.requires_grad else y.to(x.dtype)"),
)
add(
    "rotary_dtype_of_the_tables",
    "A bfloat16 x comes back as float32, the dtype of your tables; convert the result to x.dtype.",
    (RESULT, "return y"),
)
add(
    "rotary_always_float32",
    "Your result is always float32; convert it to x.dtype.",
    (RESULT, "return y.float()"),
)
add(
    "rotary_in_float32",
    "You rotate in float32, so that an x of float64 loses digits; leave x as it is.",
    (
        "            a, b = x[..., 0::2], x[..., 1::2]",
        "            a, b = x.float()[..., 0::2], x.float()[..., 1::2]",
    ),
    ("a, b = x.chunk(2, dim=-1)", "a, b = x.float().chunk(2, dim=-1)"),
)
add(
    "rotary_buffer_converted",
    "After .to(torch.bfloat16) your frequencies are bfloat16, and far positions get wrong angles. "
    "Compute them in float32 in each call, or keep them out of buffers.",
    (STORED, f"{STORED}{AS_BUFFER}, persistent=False)"),
    (f"frequencies = {FREQUENCIES}", "frequencies = self.inv_freq"),
)
add(
    "rotary_buffer_rounded",
    "After .to(torch.bfloat16) your frequencies have lost digits, which float32 positions don't "
    "bring back. Compute them in float32 in each call, or keep them out of buffers.",
    (STORED, f"{STORED}{AS_BUFFER}, persistent=False)"),
    (f"frequencies = {FREQUENCIES}", "frequencies = self.inv_freq.float()"),
)
add(
    "rotary_frequencies_learned",
    "Your frequencies are a parameter; they are fixed numbers, and the module has no parameters.",
    (
        STORED,
        f"{STORED}\n"
        "        exponents = torch.arange(0, head_dim, 2) / head_dim\n"
        "        self.inv_freq = nn.Parameter(base**-exponents)",
    ),
    (f"frequencies = {FREQUENCIES}", "frequencies = self.inv_freq.float()"),
)
add(
    "rotary_buffer_saved",
    "Your frequencies are a buffer that is saved with the weights and rounded by "
    ".to(torch.bfloat16). Compute them in float32 in each call, or keep them out of buffers.",
    (STORED, f"{STORED}{AS_BUFFER})"),
    (f"frequencies = {FREQUENCIES}", "frequencies = self.inv_freq"),
)
add(
    "rotary_tables_end",
    "Your tables end at position 2047; compute the angles from position_ids, however large.",
    (
        TABLES,
        "if angles.shape[-1] and position_ids.max() >= 2048:\n"
        '            raise IndexError("index 2048 is out of bounds")\n'
        f"        {TABLES}",
    ),
)
add(
    "rotary_detached",
    "No gradient reaches x: your rotation works on a copy that is cut off (detach, no_grad).",
    (NEIGHBOURS, "a, b = x.detach()[..., 0::2], x.detach()[..., 1::2]"),
    (HALVES, "a, b = x.detach().chunk(2, dim=-1)"),
)
add(
    "rotary_odd_unchecked",
    "An odd head_dim is not refused; raise a ValueError when the module is created.",
    (ODD, "if False:"),
)
add(
    "rotary_width_unchecked",
    "An x whose last dimension is not head_dim is not refused with a ValueError.",
    (WIDTH, "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "alibi_biases", "pos-alibi")
TOO_SMALL = "if num_heads < 1 or length < 1:"
POWER = "2 ** (num_heads.bit_length() - 1)"
OWN = "torch.arange(1, power + 1) / power"
BETWEEN = "torch.arange(1, 2 * power, 2) / (2 * power)"
TAKEN = "torch.cat([own, between])[:num_heads]"
SLOPES = f"2.0 ** (-8 * {TAKEN})"
DISTANCES = "(positions - positions[:, None]).abs()"
BIASES = "return slopes[:, None, None] * -distances"
DIRECT = "torch.arange(1, num_heads + 1) / num_heads"
add(
    "alibi_positive",
    "Your biases are positive, so distant keys gain; they are subtracted: -m |i - j|.",
    (BIASES, "return slopes[:, None, None] * distances"),
)
add(
    "alibi_slopes_from_one",
    "Your first slope is 1: h counts from 0, but the exponent holds h + 1.",
    (SLOPES, f"2.0 ** (-8 * ({TAKEN} - own[0]))"),
)
add(
    "alibi_halved_each",
    "Your slopes halve from head to head, 1/2, 1/4, …, whatever the number of heads; the ratio is "
    "2 ** (-8 / H).",
    (SLOPES, "2.0 ** -torch.arange(1, num_heads + 1)"),
)
add(
    "alibi_eighth_of_heads",
    "Your exponent is (h + 1) H / 8; it is 8 (h + 1) / H.",
    (SLOPES, f"2.0 ** (-(power**2) / 8 * {TAKEN})"),
)
add(
    "alibi_reversed",
    "Your slopes are in reverse order; head 0 has the largest.",
    (SLOPES, f"({SLOPES}).flip(0)"),
)
add(
    "alibi_direct",
    "You use 2 ** (-8 (h + 1) / H) for every H; if H is no power of two, the slopes come from "
    "those for the powers of two below and above it.",
    (TAKEN, DIRECT),
)
add(
    "alibi_own_twice",
    "Where H is no power of two, the slopes for N heads come twice in your result: the 2nd, 4th, "
    "6th, … of those for 2N heads are the same ones. Take the 1st, 3rd, 5th, ….",
    (BETWEEN, "torch.arange(2, 2 * power + 1, 2) / (2 * power)"),
)
add(
    "alibi_next_power_cut",
    "Where H is no power of two, you cut the slopes for the next power of two to H; begin with all "
    "N slopes for N heads.",
    (
        TAKEN,
        "(torch.arange(1, 2 * power + 1) / (2 * power) if num_heads > power else own)[:num_heads]",
    ),
)
add(
    "alibi_all_of_next",
    "Where H is no power of two, you append the first of the slopes for 2N heads one by one; take "
    "every second, the 1st, 3rd, 5th, ….",
    (BETWEEN, "torch.arange(1, power + 1) / (2 * power)"),
)
add(
    "alibi_own_continued",
    "Where H is no power of two, you continue the slopes for N heads beyond 2 ** -8; take the rest "
    "from the slopes for 2N heads.",
    (BETWEEN, "1 + own"),
)
add(
    "alibi_rest_from_the_third",
    "Where H is no power of two, you begin with the 3rd of the slopes for 2N heads, the geometric "
    "mean of the first two for N; begin with the 1st, 2 ** (-4 / N).",
    (BETWEEN, "torch.arange(3, 2 * power + 2, 2) / (2 * power)"),
)
add(
    "alibi_rest_from_the_end",
    "Where H is no power of two, you take the last of the slopes 1st, 3rd, 5th, … for 2N heads; "
    "take the first H - N of them.",
    (TAKEN, "torch.cat([own, between[2 * power - num_heads :]])"),
)
add(
    "alibi_rest_first",
    "Where H is no power of two, the slopes for N heads come first; you put those taken from 2N "
    "heads before them.",
    (TAKEN, "torch.cat([between[: num_heads - power], own])"),
)
add(
    "alibi_all_of_the_rest_first",
    "Where H is no power of two, the N slopes for N heads come first; you begin with N slopes "
    "taken from 2N heads.",
    (TAKEN, "torch.cat([between, own] if num_heads > power else [own])[:num_heads]"),
)
add(
    "alibi_power_not_kept",
    "Where H is a power of two, you take its half for N; only another H needs an N, and here the "
    "slopes are 2 ** (-8 (h + 1) / H).",
    (POWER, "2 ** max((num_heads - 1).bit_length() - 1, 0)"),
)
add(
    "alibi_sorted",
    "Where H is no power of two, you sort the slopes; the N slopes for N heads come first, and the "
    "others behind them.",
    (TAKEN, f"{TAKEN}.sort().values"),
)
add(
    "alibi_base_e",
    "Your slopes are powers of e; they are powers of 2.",
    (SLOPES, f"torch.exp(-8 * {TAKEN})"),
)
add(
    "alibi_exponents_as_slopes",
    "You use the exponents themselves as slopes; the slope is 2 to the power of minus that.",
    (SLOPES, f"8 * {TAKEN}"),
)
add(
    "alibi_slopes_grow",
    "Your slopes are larger than 1 and grow: the exponent has a minus, 2 ** (-8 (h + 1) / H).",
    (SLOPES, f"2.0 ** (8 * {TAKEN})"),
)
add(
    "alibi_one_slope",
    "All your heads have the first slope; each has its own.",
    (SLOPES, f"({SLOPES})[:1].expand(num_heads)"),
)
add(
    "alibi_without_heads",
    "Your result is (T, T) and has no heads; it is (H, T, T), with a slope for each head.",
    (BIASES, "return slopes[0] * -distances"),
)
add(
    "alibi_heads_last",
    "Your heads are the last dimension; they are the first, (H, T, T).",
    (BIASES, "return slopes * -distances[:, :, None]"),
)
add(
    "alibi_with_batch",
    "Your result has an axis for the batch in front; it is (H, T, T).",
    (BIASES, "return slopes[None, :, None, None] * -distances"),
)
add(
    "alibi_squared",
    "Your penalty grows with the square of the distance; it is linear.",
    (DISTANCES, "(positions - positions[:, None]) ** 2"),
)
add(
    "alibi_right_free",
    "Keys to the right of their query have the bias 0 in your result; they are as far away as "
    "those to the left.",
    (DISTANCES, "(positions[:, None] - positions).clamp(min=0)"),
)
add(
    "alibi_left_free",
    "Keys to the left of their query have the bias 0 in your result; they are as far away as those "
    "to the right.",
    (DISTANCES, "(positions - positions[:, None]).clamp(min=0)"),
)
add(
    "alibi_masked",
    "You write -inf to the right of the diagonal; the causal mask stands beside the biases, and "
    "keys there have -m |i - j| as well.",
    (
        BIASES,
        "future = torch.ones(length, length, dtype=torch.bool).triu(1)\n"
        "    return (slopes[:, None, None] * -distances).masked_fill(future, -torch.inf)",
    ),
)
add(
    "alibi_right_gains",
    "Keys to the right of their query gain in your result: you use i - j without its absolute "
    "value.",
    (DISTANCES, "positions[:, None] - positions"),
)
add(
    "alibi_left_gains",
    "Keys to the left of their query gain in your result: you use j - i without its absolute "
    "value.",
    (DISTANCES, "positions - positions[:, None]"),
)
add(
    "alibi_position_of_the_key",
    "Your biases depend on the key's position alone, m j, as in BLOOM, which agrees only under a "
    "causal mask; here they are -m |i - j|.",
    (BIASES, "return slopes[:, None, None] * positions.expand(length, length)"),
)
add(
    "alibi_one_row",
    "Your result has one row for all queries, (H, 1, T), as in BLOOM and MPT under a causal mask; "
    "it is (H, T, T), with the distance of each pair.",
    (BIASES, "return slopes[:, None, None] * -distances[-1:]"),
)
add(
    "alibi_distance_from_one",
    "Your distances are one too large: a position is 0 away from itself.",
    (DISTANCES, "(positions - positions[:, None]).abs() + 1"),
)
add(
    "alibi_relative_to_length",
    "You divide the distances by length; each step costs m, however long the sequence.",
    (BIASES, "return slopes[:, None, None] * -distances / length"),
)
add(
    "alibi_factors",
    "You return the factors exp(-m |i - j|); the biases are added to the scores, before the "
    "softmax takes the exponential.",
    (BIASES, "return (slopes[:, None, None] * -distances).exp()"),
)
add(
    "alibi_integers",
    "Your biases are integers, so the small slopes are lost; return float32.",
    (BIASES, "return (slopes[:, None, None] * -distances).long()"),
)
add(
    "alibi_float64",
    "Your biases are float64; return float32.",
    (BIASES, "return slopes[:, None, None].double() * -distances"),
)
add(
    "alibi_heads_unchecked",
    "A num_heads smaller than 1 is not refused with a ValueError.",
    (TOO_SMALL, "if length < 1:"),
    (POWER, "2 ** max(num_heads.bit_length() - 1, 0)"),
)
add(
    "alibi_length_unchecked",
    "A length smaller than 1 is not refused with a ValueError.",
    (TOO_SMALL, "if num_heads < 1:"),
)
add(
    "alibi_one_refused",
    "One head, or one position, is refused; both are allowed.",
    (TOO_SMALL, "if num_heads < 2 or length < 2:"),
)
