"""Known mistakes of `gpt-model`: masks, attention, blocks, the model.

Heads that are joined without a transpose, residual connections that start from the norm, a head
that is not tied.
"""

from __future__ import annotations

from autograder.units.variants import Misconception, mistakes_in

MISCONCEPTIONS: list[Misconception] = []

# --------------------------------------------------------------------------------------------
# Masks and attention
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "causal_mask", "gpt-mask")
ROWS = "rows = torch.arange(past, past + length).unsqueeze(1)"
VISIBLE = "return columns <= rows"
add(
    "mask_without_itself",
    "Your positions do not see themselves; the diagonal is True too.",
    (VISIBLE, "return columns < rows"),
)
add(
    "mask_upper",
    "Your positions see what comes after them; True belongs on and below the diagonal.",
    (VISIBLE, "return columns >= rows"),
)
add(
    "mask_hidden_true",
    "Your mask is True where attending is forbidden; True means *may attend*.",
    (VISIBLE, "return columns > rows"),
)
add(
    "mask_one_ahead",
    "Your positions see the token after them, the very one that they shall predict.",
    (VISIBLE, "return columns <= rows + 1"),
)
add(
    "mask_past_ignored",
    "Your rows begin at position 0; with past positions in front row i is the position past + i.",
    (ROWS, "rows = torch.arange(length).unsqueeze(1)"),
)
add(
    "mask_past_behind",
    "Your past positions stand behind the new ones; they are the first columns.",
    (
        VISIBLE,
        "mask = torch.arange(length) <= torch.arange(length).unsqueeze(1)\n"
        "    return torch.cat([mask, torch.ones(length, past) > 0], dim=1)",
    ),
)
add(
    "mask_square",
    "Your mask has as many rows as columns; only the new positions have rows.",
    (ROWS, "rows = torch.arange(past + length).unsqueeze(1)"),
)
add(
    "mask_without_past_columns",
    "Your mask has no columns for the past positions; it is (length, past + length).",
    ("columns = torch.arange(past + length)", "columns = torch.arange(past, past + length)"),
)
add(
    "mask_of_numbers",
    "Your mask holds numbers; it is of bool. A comparison makes one.",
    (VISIBLE, "return (columns <= rows).float()"),
)
add(
    "mask_of_infinities",
    "Your mask holds 0 and -inf, to be added to scores; it is of bool here.",
    (VISIBLE, "return torch.zeros(length, past + length).masked_fill(columns > rows, -math.inf)"),
)
add(
    "mask_length_unchecked",
    "A length below 1 is not refused; raise a ValueError.",
    ("if length < 1:", "if False:"),
)
add(
    "mask_past_unchecked",
    "A negative past is not refused; raise a ValueError.",
    ("if past < 0:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "window_mask", "gpt-window")
NEAR = "return (back >= 0) & (back < window)"
add(
    "window_one_too_wide",
    "Your window has window positions before each one; the position itself is one of the window.",
    (NEAR, "return (back >= 0) & (back <= window)"),
)
add(
    "window_one_too_narrow",
    "Your window is one position too narrow: a position sees itself and window - 1 before it.",
    (NEAR, "return (back >= 0) & (back < max(window - 1, 1))"),
)
add(
    "window_both_ways",
    "Your window opens to both sides; a position sees nothing that comes after it.",
    (NEAR, "return back.abs() < window"),
)
add(
    "window_without_itself",
    "Your positions do not see themselves; each is the last of its own window.",
    (NEAR, "return (back > 0) & (back < window)"),
)
add(
    "window_shifted",
    "Your window ends before the position itself: it sees the window positions before it.",
    (NEAR, "return (back > 0) & (back <= window)"),
)
add(
    "window_of_blocks",
    "You cut the text into blocks, and each position sees its block only; a sliding window moves "
    "along with every position.",
    (
        NEAR,
        "same = positions.unsqueeze(1) // window == positions // window\n"
        "    return (back >= 0) & same",
    ),
)
add(
    "window_ahead",
    "Your window lies after the position; it ends with it.",
    (NEAR, "return (back <= 0) & (-back < window)"),
)
add(
    "window_far_ones",
    "You let through what lies outside the window and mask what is in it.",
    (NEAR, "return (back >= 0) & (back >= window)"),
)
add(
    "window_only_causal",
    "Your window never ends: what lies window positions back, or further, is hidden.",
    (NEAR, "return back >= 0"),
)
add(
    "window_unchecked",
    "A length or a window below 1 is not refused; raise a ValueError.",
    ("if value < 1:", "if False:"),
)
add(
    "window_only_length_checked",
    "A window below 1 is not refused; raise a ValueError.",
    ('(("length", length), ("window", window))', '(("length", length),)'),
)

add = mistakes_in(MISCONCEPTIONS, "CausalSelfAttention", "gpt-attention")
PARTS = "parts = self.qkv(x).chunk(3, dim=-1)"
HEADS = "heads = [part.unflatten(-1, (self.num_heads, -1)) for part in parts]"
TURN = "queries, keys, values = (part.transpose(1, 2) for part in heads)"
SCORES = "scores = queries @ keys.transpose(2, 3) / math.sqrt(queries.shape[3])"
SEEN = "visible = causal_mask(x.shape[1]).to(x.device)"
FILL = "scores = scores.masked_fill(~visible, -math.inf)"
WEIGHTS = "attn_weights = self.dropout(torch.softmax(scores, dim=3))"
MIX = "mixed = (attn_weights @ values).transpose(1, 2).flatten(2)"
LAST = "return self.dropout(self.out_proj(mixed))"
add(
    "attention_unscaled",
    "You do not divide the scores by the root of the width of a head.",
    (SCORES, "scores = queries @ keys.transpose(2, 3)"),
)
add(
    "attention_scaled_by_width",
    "You divide the scores by sqrt(D); divide by the root of the width of one head, D/H.",
    (SCORES, "scores = queries @ keys.transpose(2, 3) / math.sqrt(x.shape[2])"),
)
add(
    "attention_scaled_without_root",
    "You divide the scores by the width of a head; divide by its root.",
    (SCORES, "scores = queries @ keys.transpose(2, 3) / queries.shape[3]"),
)
add(
    "attention_not_masked",
    "Your positions attend to what comes after them; mask it with causal_mask.",
    (FILL, "pass"),
)
add(
    "attention_mask_without_itself",
    "Your positions do not see themselves; each attends to itself and to all before it.",
    (
        SEEN,
        SEEN + "\n        visible = torch.arange(len(visible)).unsqueeze(1) > "
        "torch.arange(len(visible))\n        visible[0, 0] = True",
    ),
)
add(
    "attention_mask_inverted",
    "You mask what may be attended to; True in causal_mask means *may attend*, so fill where it "
    "is False.",
    (FILL, "scores = scores.masked_fill(visible, -math.inf)"),
)
add(
    "attention_mask_transposed",
    "Your mask acts the wrong way round: rows of the scores are queries, and a query sees the "
    "columns up to its own.",
    (FILL, "scores = scores.masked_fill(~visible.T, -math.inf)"),
)
add(
    "attention_mask_filled_with_zero",
    "You put 0 where a position may not attend; a score of 0 still gets weight. Fill with -inf.",
    (FILL, "scores = scores.masked_fill(~visible, 0.0)"),
)
add(
    "attention_mask_after_softmax",
    "You set weights to 0 after the softmax, so that a row no longer sums to 1; fill the scores "
    "with -inf before it.",
    (FILL, "pass"),
    (
        WEIGHTS,
        "attn_weights = self.dropout(torch.softmax(scores, dim=3).masked_fill(~visible, 0.0))",
    ),
)
add(
    "attention_mask_added",
    "You add the mask to the scores as 0 and 1, which masks nothing; fill with -inf.",
    (FILL, "scores = scores + visible.to(scores.dtype)"),
)
add(
    "attention_softmax_over_queries",
    "Your softmax runs over the queries; the weights of one query, over the keys, sum to 1.",
    (FILL, "scores = scores.masked_fill(~visible, -1e9)"),
    (WEIGHTS, "attn_weights = self.dropout(torch.softmax(scores, dim=2))"),
)
add(
    "attention_softmax_over_heads",
    "Your softmax runs over the heads; it runs over the keys, the last axis.",
    (FILL, "scores = scores.masked_fill(~visible, -1e9)"),
    (WEIGHTS, "attn_weights = self.dropout(torch.softmax(scores, dim=1))"),
)
add(
    "attention_parts_in_another_order",
    "You read keys, queries, values out of qkv; the order is queries, keys, values.",
    (TURN, "keys, queries, values = (part.transpose(1, 2) for part in heads)"),
)
add(
    "attention_values_first",
    "You read values, keys, queries out of qkv; the order is queries, keys, values.",
    (TURN, "values, keys, queries = (part.transpose(1, 2) for part in heads)"),
)
add(
    "attention_parts_within_heads",
    "You cut the 3 D features into heads first and each head into query, key and value; all "
    "queries come first, then all keys, then all values.",
    (
        PARTS,
        "whole = self.qkv(x).unflatten(-1, (self.num_heads, 3, -1))\n"
        "        parts = [part.flatten(2) for part in whole.unbind(3)]",
    ),
)
add(
    "attention_parts_interleaved",
    "You take every third feature of qkv for the queries; they are the first D features.",
    (PARTS, "parts = self.qkv(x).unflatten(-1, (-1, 3)).unbind(-1)"),
)
add(
    "attention_heads_interleaved",
    "Head h takes every H-th feature; its features stand next to each other, so cut the width into "
    "(H, D/H).",
    (HEADS, "heads = [part.unflatten(-1, (-1, self.num_heads)).transpose(2, 3) for part in parts]"),
)
add(
    "attention_heads_without_transpose",
    "You reshape to (B, H, T, D/H) at once, which mixes positions and features; make "
    "(B, T, H, D/H) and transpose.",
    (
        HEADS,
        "shape = (len(x), self.num_heads, x.shape[1], -1)\n"
        "        heads = [part.reshape(shape).transpose(1, 2) for part in parts]",
    ),
)
add(
    "attention_merged_without_transpose",
    "You join the heads without bringing the positions in front of them again; transpose first.",
    (MIX, "mixed = (attn_weights @ values).reshape(x.shape)"),
)
add(
    "attention_merged_interleaved",
    "You join the heads feature by feature; head after head is right: (B, T, H, D/H), flattened.",
    (MIX, "mixed = (attn_weights @ values).permute(0, 2, 3, 1).flatten(2)"),
)
add(
    "attention_one_head",
    "You attend with a single head of the whole width; split the features into num_heads heads.",
    (HEADS, "heads = [part.unflatten(-1, (1, -1)) for part in parts]"),
)
add(
    "attention_heads_not_stored",
    "The attribute num_heads does not hold the number of heads; later exercises read it there.",
    ("self.num_heads = num_heads", "self.num_heads = d_model // num_heads"),
    (HEADS, "heads = [part.unflatten(-1, (-1, self.num_heads)) for part in parts]"),
)
add(
    "attention_without_output",
    "You return the joined heads; out_proj comes after them.",
    (LAST, "return self.dropout(mixed)"),
)
add(
    "attention_without_biases",
    "qkv has no bias; both linear layers of GPT's attention have one.",
    (
        "self.qkv = nn.Linear(d_model, 3 * d_model)",
        "self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)",
    ),
)
add(
    "attention_output_without_bias",
    "out_proj has no bias; both linear layers of GPT's attention have one.",
    (
        "self.out_proj = nn.Linear(d_model, d_model)",
        "self.out_proj = nn.Linear(d_model, d_model, bias=False)",
    ),
)
add(
    "attention_weights_not_dropped",
    "No attention weight is dropped in training mode; dropout acts on the weights and on the "
    "result.",
    (WEIGHTS, "attn_weights = torch.softmax(scores, dim=3)"),
)
add(
    "attention_result_not_dropped",
    "Your result is not dropped in training mode; dropout acts on the weights, and again on what "
    "out_proj returns.",
    (LAST, "return self.out_proj(mixed)"),
)
add(
    "attention_scores_dropped",
    "You drop scores before the softmax; a score of 0 still gets weight. Drop the weights.",
    (FILL, "scores = self.dropout(scores).masked_fill(~visible, -math.inf)"),
    (WEIGHTS, "attn_weights = torch.softmax(scores, dim=3)"),
)
add(
    "attention_dropped_before_output",
    "You drop what goes into out_proj; dropout acts on what it returns.",
    (LAST, "return self.out_proj(self.dropout(mixed))"),
)
add(
    "attention_input_dropped",
    "You drop what goes into qkv as well; dropout acts on the weights and on the result.",
    (PARTS, "parts = self.qkv(self.dropout(x)).chunk(3, dim=-1)"),
)
add(
    "attention_one_draw_for_all_calls",
    "You draw once which weights are dropped; every call in training mode draws anew.",
    (
        WEIGHTS,
        "attn_weights = torch.softmax(scores, dim=3)\n"
        "        if self.training:\n"
        "            if getattr(self, 'kept', None) is None or self.kept.shape != scores.shape:\n"
        "                self.kept = self.dropout(torch.ones_like(scores))\n"
        "            attn_weights = attn_weights * self.kept",
    ),
)
add(
    "attention_heads_dropped",
    "You drop all weights of a head at once; dropout decides about every weight by itself.",
    (
        WEIGHTS,
        "attn_weights = nn.functional.dropout2d(torch.softmax(scores, dim=3), "
        "self.dropout.p, self.training)",
    ),
)
add(
    "attention_one_draw_for_all_heads",
    "All your heads lose the same weights; dropout decides about every weight by itself.",
    (
        WEIGHTS,
        "attn_weights = torch.softmax(scores, dim=3)\n"
        "        attn_weights = attn_weights * self.dropout(torch.ones_like(attn_weights[:, :1]))",
    ),
)
add(
    "attention_one_draw_for_the_batch",
    "All examples of a batch lose the same weights; dropout decides about every weight by itself.",
    (
        WEIGHTS,
        "attn_weights = torch.softmax(scores, dim=3)\n"
        "        attn_weights = attn_weights * self.dropout(torch.ones_like(attn_weights[:1]))",
    ),
)
add(
    "attention_values_dropped",
    "You drop the values; dropout acts on the weights that they are multiplied by.",
    (WEIGHTS, "attn_weights = torch.softmax(scores, dim=3)\n        values = self.dropout(values)"),
)
add(
    "attention_weights_left_undivided",
    "You set weights to 0 in training mode and leave the others as they are; dropout divides them "
    "by 1 - p.",
    (
        WEIGHTS,
        "attn_weights = torch.softmax(scores, dim=3)\n"
        "        attn_weights = attn_weights * (self.dropout(torch.ones_like(attn_weights)) > 0)",
    ),
)
add(
    "attention_vectors_dropped",
    "You drop the whole vector of a position; dropout decides about every entry by itself.",
    (LAST, "return nn.functional.dropout1d(self.out_proj(mixed), self.dropout.p, self.training)"),
)
add(
    "attention_dropout_in_eval",
    "You drop in evaluation mode too; use nn.Dropout, or pass self.training on to F.dropout.",
    (WEIGHTS, "attn_weights = nn.functional.dropout(torch.softmax(scores, dim=3), self.dropout.p)"),
)
add(
    "attention_many_heads_accepted",
    "More heads than features are not refused; d_model must be a multiple of the number of heads.",
    (
        "if num_heads < 1 or d_model % num_heads != 0:",
        "if num_heads < d_model and d_model % num_heads != 0:",
    ),
)
add(
    "attention_dropout_with_gradients",
    "You drop in evaluation mode too where gradients are wanted; only self.training decides.",
    (
        WEIGHTS,
        "attn_weights = nn.functional.dropout(\n"
        "            torch.softmax(scores, 3), self.dropout.p, self.training or x.requires_grad\n"
        "        )",
    ),
)
add(
    "attention_heads_unchecked",
    "A d_model that the number of heads does not divide is not refused; raise a ValueError.",
    ("if num_heads < 1 or d_model % num_heads != 0:", "if False:"),
)

# --------------------------------------------------------------------------------------------
# Blocks
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "gelu", "gpt-block")
GELU = "0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))"
add(
    "gelu_exact",
    "Your values are those of the exact form with the error function; GPT-1 and GPT-2 have the one "
    "with tanh.",
    (GELU, "0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))"),
)
add(
    "gelu_by_sigmoid",
    "Your values are those of x * sigmoid(1.702 x); GPT has the form with tanh.",
    (GELU, "x * torch.sigmoid(1.702 * x)"),
)
add(
    "gelu_silu",
    "You multiply x by its sigmoid: that is SiLU, another function.",
    (GELU, "x * torch.sigmoid(x)"),
)
add(
    "gelu_relu",
    "Your function is ReLU, 0 for every negative x; GELU is smooth and dips below 0.",
    (GELU, "torch.relu(x)"),
)
add(
    "gelu_without_cube",
    "You leave the cube out: tanh takes x + 0.044715 x^3.",
    ("x + 0.044715 * x**3", "x"),
)
add(
    "gelu_square",
    "You take the square of x; it is the cube, x^3.",
    ("x**3", "x**2"),
)
add(
    "gelu_root_of_half_pi",
    "You multiply by sqrt(pi / 2); it is sqrt(2 / pi).",
    ("math.sqrt(2.0 / math.pi)", "math.sqrt(math.pi / 2.0)"),
)
add(
    "gelu_root_of_2_alone",
    "You divide the root of 2 by pi; take the root of 2 / pi.",
    ("math.sqrt(2.0 / math.pi)", "math.sqrt(2.0) / math.pi"),
)
add(
    "gelu_without_root",
    "You multiply by 2 / pi; take its root.",
    ("math.sqrt(2.0 / math.pi)", "2.0 / math.pi"),
)
add(
    "gelu_factor_outside",
    "sqrt(2 / pi) stands before the whole sum x + 0.044715 x^3, not before x alone.",
    (
        "math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)",
        "math.sqrt(2.0 / math.pi) * x + 0.044715 * x**3",
    ),
)
add(
    "gelu_twice_too_large",
    "Your values are twice too large: 1 + tanh lies between 0 and 2, so halve it.",
    ("0.5 * x * (1.0", "x * (1.0"),
)
add(
    "gelu_only_weight",
    "You return the weight alone; multiply x by it.",
    ("0.5 * x * (1.0", "0.5 * (1.0"),
)
add(
    "gelu_mirrored",
    "You subtract the tanh, so that large x vanish; add it.",
    ("1.0 + torch.tanh", "1.0 - torch.tanh"),
)

add = mistakes_in(MISCONCEPTIONS, "FeedForward", "gpt-block")
INSIDE = "inside = gelu(self.w_1(x))"
OUT = "return self.dropout(self.w_2(inside))"
add(
    "ffn_relu",
    "Between w_1 and w_2 you use ReLU; GPT uses GELU.",
    (INSIDE, "inside = torch.relu(self.w_1(x))"),
)
add(
    "ffn_exact_gelu",
    "Between w_1 and w_2 you use the exact GELU; GPT has the form with tanh, your gelu.",
    (INSIDE, "inside = nn.functional.gelu(self.w_1(x))"),
)
add(
    "ffn_without_activation",
    "There is no activation between w_1 and w_2: two linear layers in a row are one.",
    (INSIDE, "inside = self.w_1(x)"),
)
add(
    "ffn_activation_twice",
    "Your gelu acts after w_2 too; it stands between w_1 and w_2 only.",
    (OUT, "return self.dropout(gelu(self.w_2(inside)))"),
)
add(
    "ffn_activation_at_the_end",
    "Your gelu comes after w_2; it belongs between w_1 and w_2.",
    (INSIDE, "inside = self.w_1(x)"),
    (OUT, "return self.dropout(gelu(self.w_2(inside)))"),
)
add(
    "ffn_not_wider",
    "Your inner layer is as wide as the model; it is four times as wide.",
    ("nn.Linear(d_model, 4 * d_model)", "nn.Linear(d_model, d_model)"),
    ("nn.Linear(4 * d_model, d_model)", "nn.Linear(d_model, d_model)"),
)
add(
    "ffn_twice_as_wide",
    "Your inner layer is twice as wide as the model; it is four times as wide.",
    ("nn.Linear(d_model, 4 * d_model)", "nn.Linear(d_model, 2 * d_model)"),
    ("nn.Linear(4 * d_model, d_model)", "nn.Linear(2 * d_model, d_model)"),
)
add(
    "ffn_without_biases",
    "Your linear layers have no bias; GPT's have one.",
    ("nn.Linear(d_model, 4 * d_model)", "nn.Linear(d_model, 4 * d_model, bias=False)"),
    ("nn.Linear(4 * d_model, d_model)", "nn.Linear(4 * d_model, d_model, bias=False)"),
)
add(
    "ffn_residual_inside",
    "You add x to the result; the block that holds this network does that.",
    (OUT, "return x + self.dropout(self.w_2(inside))"),
)
add(
    "ffn_not_dropped",
    "Nothing is dropped in training mode; dropout acts on what w_2 returns.",
    (OUT, "return self.w_2(inside)"),
)
add(
    "ffn_dropped_inside",
    "You drop what stands between w_1 and w_2; dropout acts on what w_2 returns.",
    (INSIDE, "inside = self.dropout(gelu(self.w_1(x)))"),
    (OUT, "return self.w_2(inside)"),
)
add(
    "ffn_input_dropped",
    "You drop what goes into w_1; dropout acts on what w_2 returns.",
    (INSIDE, "inside = gelu(self.w_1(self.dropout(x)))"),
    (OUT, "return self.w_2(inside)"),
)
add(
    "ffn_one_draw_for_all_calls",
    "You draw once which entries are dropped; every call in training mode draws anew.",
    (
        OUT,
        "if not self.training:\n"
        "            return self.w_2(inside)\n"
        "        if getattr(self, 'kept', None) is None or self.kept.shape != x.shape:\n"
        "            self.kept = self.dropout(torch.ones_like(x))\n"
        "        return self.w_2(inside) * self.kept",
    ),
)
add(
    "ffn_vectors_dropped",
    "You drop the whole vector of a position; dropout decides about every entry by itself.",
    (OUT, "x = self.w_2(inside)\n        return x * self.dropout(torch.ones_like(x[..., :1]))"),
)
add(
    "ffn_one_draw_for_the_batch",
    "All examples of a batch lose the same entries; dropout decides about every entry by itself.",
    (OUT, "x = self.w_2(inside)\n        return x * self.dropout(torch.ones_like(x[:1]))"),
)
add(
    "ffn_dropped_twice",
    "You drop between w_1 and w_2 as well; dropout acts on what w_2 returns only.",
    (INSIDE, "inside = self.dropout(gelu(self.w_1(x)))"),
)
add(
    "ffn_dropout_in_eval",
    "You drop in evaluation mode too; use nn.Dropout, or pass self.training on to F.dropout.",
    (OUT, "return nn.functional.dropout(self.w_2(inside), self.dropout.p)"),
)


def of_both_blocks(prefix, first, second, again):
    """The mistakes that both kinds of block share; `first` and `second` are their two lines."""
    add(
        f"{prefix}_without_shortcuts",
        "You do not add what came in; each part's result is added to its input.",
        (first, first.replace("x + ", "")),
        (second, second.replace("x + ", "")),
    )
    add(
        f"{prefix}_first_shortcut_missing",
        "You do not add the block's input to what the attention returns.",
        (first, first.replace("x + ", "")),
    )
    add(
        f"{prefix}_second_shortcut_missing",
        "You do not add what went into the feed-forward network to its result.",
        (second, second.replace("x + ", "")),
    )
    add(
        f"{prefix}_second_shortcut_from_input",
        "Your second residual connection begins at the block's input; it begins after the "
        "attention.",
        (first, "whole = x\n        " + first),
        (second, second.replace("x + ", "whole + ")),
    )
    add(
        f"{prefix}_norms_exchanged",
        "Your two norms stand in each other's position: norm_1 belongs to the attention.",
        (first, first.replace("norm_1", "norm_2")),
        (second, second.replace("norm_2", "norm_1")),
    )
    add(
        f"{prefix}_one_norm_twice",
        "You use norm_1 twice and norm_2 never; each part has a norm of its own.",
        (second, second.replace("norm_2", "norm_1")),
    )
    add(
        f"{prefix}_one_norm",
        "Both norms are one module; each has a weight and a bias of its own.",
        ("self.norm_2 = nn.LayerNorm(d_model)", "self.norm_2 = self.norm_1"),
    )
    add(
        f"{prefix}_eps",
        "Your norms have another eps; it is 1e-5, that of nn.LayerNorm.",
        ("self.norm_1 = nn.LayerNorm(d_model)", "self.norm_1 = nn.LayerNorm(d_model, eps=1e-12)"),
        ("self.norm_2 = nn.LayerNorm(d_model)", "self.norm_2 = nn.LayerNorm(d_model, eps=1e-12)"),
    )
    add(
        f"{prefix}_heads_fixed",
        "The heads of your attention do not follow num_heads; pass it on.",
        ("CausalSelfAttention(d_model, num_heads,", "CausalSelfAttention(d_model, 1,"),
    )
    add(
        f"{prefix}_attention_without_dropout",
        "Your attention never hears of dropout; pass it on.",
        (
            "CausalSelfAttention(d_model, num_heads, dropout)",
            "CausalSelfAttention(d_model, num_heads)",
        ),
    )
    add(
        f"{prefix}_feed_forward_without_dropout",
        "Your feed-forward network never hears of dropout; pass it on.",
        ("FeedForward(d_model, dropout)", "FeedForward(d_model)"),
    )
    add(
        f"{prefix}_dropped_again",
        "You drop what a part returns once more; attention and feed-forward network drop it "
        "themselves.",
        (second, again),
    )


add = mistakes_in(MISCONCEPTIONS, "PostNormBlock", "gpt-block")
FIRST = "x = self.norm_1(x + self.attention(x))"
SECOND = "return self.norm_2(x + self.feed_forward(x))"
add(
    "post_pre_norm",
    "You normalise what goes into each part: that is the other block. Here the sum is normalised.",
    (FIRST, "x = x + self.attention(self.norm_1(x))"),
    (SECOND, "return x + self.feed_forward(self.norm_2(x))"),
)
add(
    "post_norm_of_part",
    "You normalise what a part returns and add it then; the norm takes the sum.",
    (FIRST, "x = x + self.norm_1(self.attention(x))"),
    (SECOND, "return x + self.norm_2(self.feed_forward(x))"),
)
add(
    "post_norm_before_and_after",
    "You normalise what goes into a part as well; post-norm has one norm for each sum.",
    (FIRST, "x = self.norm_1(x + self.attention(self.norm_1(x)))"),
    (SECOND, "return self.norm_2(x + self.feed_forward(self.norm_2(x)))"),
)
add(
    "post_without_first_norm",
    "Nothing is normalised between attention and feed-forward network; norm_1 belongs there.",
    (FIRST, "x = x + self.attention(x)"),
)
add(
    "post_without_second_norm",
    "Your block ends without norm_2.",
    (SECOND, "return x + self.feed_forward(x)"),
)
add(
    "post_feed_forward_first",
    "Your feed-forward network comes first; attention does.",
    (FIRST, "x = self.norm_1(x + self.feed_forward(x))"),
    (SECOND, "return self.norm_2(x + self.attention(x))"),
)
add(
    "post_side_by_side",
    "Your feed-forward network reads the block's input; it reads what the attention has made of "
    "it.",
    (FIRST, "whole = x\n        " + FIRST),
    (SECOND, "return self.norm_2(x + self.feed_forward(whole))"),
)
of_both_blocks(
    "post",
    FIRST,
    SECOND,
    "return self.norm_2(x + self.attention.dropout(self.feed_forward(x)))",
)

add = mistakes_in(MISCONCEPTIONS, "PreNormBlock", "gpt-block")
FIRST = "x = x + self.attention(self.norm_1(x))"
SECOND = "return x + self.feed_forward(self.norm_2(x))"
add(
    "pre_post_norm",
    "You normalise each sum: that is the other block. Here a part reads normalised vectors, and "
    "the sum stays as it is.",
    (FIRST, "x = self.norm_1(x + self.attention(x))"),
    (SECOND, "return self.norm_2(x + self.feed_forward(x))"),
)
add(
    "pre_norm_of_part",
    "You normalise what a part returns; the norm acts on what goes into it.",
    (FIRST, "x = x + self.norm_1(self.attention(x))"),
    (SECOND, "return x + self.norm_2(self.feed_forward(x))"),
)
add(
    "pre_shortcut_from_norm",
    "You add the normalised vectors; the residual connection passes x on as it came in.",
    (FIRST, "x = self.norm_1(x)\n        x = x + self.attention(x)"),
    (SECOND, "x = self.norm_2(x)\n        return x + self.feed_forward(x)"),
)
add(
    "pre_first_shortcut_from_norm",
    "Your first residual connection begins after norm_1; it passes x on as it came in.",
    (FIRST, "x = self.norm_1(x)\n        x = x + self.attention(x)"),
)
add(
    "pre_second_shortcut_from_norm",
    "Your second residual connection begins after norm_2; it passes on the sum as it was.",
    (SECOND, "x = self.norm_2(x)\n        return x + self.feed_forward(x)"),
)
add(
    "pre_norm_at_the_end",
    "Your block ends with norm_2 once more; it returns the sum, which nothing has normalised.",
    (SECOND, "return self.norm_2(x + self.feed_forward(self.norm_2(x)))"),
)
add(
    "pre_without_first_norm",
    "Your attention reads x itself; norm_1 comes before it.",
    (FIRST, "x = x + self.attention(x)"),
)
add(
    "pre_without_second_norm",
    "Your feed-forward network reads x itself; norm_2 comes before it.",
    (SECOND, "return x + self.feed_forward(x)"),
)
add(
    "pre_feed_forward_first",
    "Your feed-forward network comes first; attention does.",
    (FIRST, "x = x + self.feed_forward(self.norm_1(x))"),
    (SECOND, "return x + self.attention(self.norm_2(x))"),
)
add(
    "pre_side_by_side",
    "Your feed-forward network reads the block's input; it reads the sum with the attention's "
    "result.",
    (FIRST, "whole = x\n        " + FIRST),
    (SECOND, "return x + self.feed_forward(self.norm_2(whole))"),
)
of_both_blocks(
    "pre",
    FIRST,
    SECOND,
    "return x + self.attention.dropout(self.feed_forward(self.norm_2(x)))",
)

# --------------------------------------------------------------------------------------------
# The model
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "GPT", "gpt-model")
KIND = "block = PreNormBlock if norm_first else PostNormBlock"
STACK = "self.blocks = nn.ModuleList(block(d_model, num_heads, dropout) for _ in range(num_layers))"
FINAL = "self.final_norm = nn.LayerNorm(d_model) if norm_first else nn.Identity()"
EMBED = "x = self.dropout(self.token(ids) + self.position(positions))"
LOOP = "for block in self.blocks:"
STEP = "x = block(x)"
NORMED = "return self.final_norm(x)"
HEAD = "return self.features(ids) @ self.token.weight.T"
add(
    "gpt_dropped_before_the_logits",
    "You drop entries of the features before the logits; dropout acts on the embeddings and in the "
    "blocks.",
    ("return self.features(ids) @", "return self.dropout(self.features(ids)) @"),
)
add(
    "gpt_head_untied",
    "Your head has a matrix of its own; the logits are the features times the transposed token "
    "embedding.",
    (FINAL, FINAL + "\n        self.head = nn.Linear(d_model, vocab_size, bias=False)"),
    (HEAD, "return self.head(self.features(ids))"),
)
add(
    "gpt_head_tied_once",
    "Your head is a copy of the token embedding that goes its own way in training; use it itself.",
    (HEAD, "return self.features(ids) @ self.token.weight.detach().T"),
)
add(
    "gpt_head_with_bias",
    "Your head adds a bias; it has no parameter but the token embedding.",
    (FINAL, FINAL + "\n        self.bias = nn.Parameter(torch.zeros(vocab_size))"),
    (HEAD, HEAD + " + self.bias"),
)
add(
    "gpt_head_scaled",
    "You divide the logits by sqrt(D); they are the plain products.",
    (HEAD, HEAD + " / math.sqrt(self.token.embedding_dim)"),
)
add(
    "gpt_probabilities",
    "You return probabilities; forward returns logits, and losses and sampling take the softmax.",
    (HEAD, "return torch.softmax(self.features(ids) @ self.token.weight.T, dim=2)"),
)
add(
    "gpt_log_probabilities",
    "You return logarithms of probabilities; forward returns logits, the plain products.",
    (HEAD, "return torch.log_softmax(self.features(ids) @ self.token.weight.T, dim=2)"),
)
add(
    "gpt_last_place_only",
    "You return the logits of the last position only; all are trained, so return (B, T, V).",
    (HEAD, "return self.features(ids)[:, -1:] @ self.token.weight.T"),
)
add(
    "gpt_without_positions",
    "You leave the position vectors out.",
    (EMBED, "x = self.dropout(self.token(ids))"),
)
add(
    "gpt_positions_twice",
    "You add the position vectors again before every block; they are added once, at the beginning.",
    (STEP, "x = block(x + (self.position(positions) if block is not self.blocks[0] else 0))"),
)
add(
    "gpt_positions_from_1",
    "Your first token has position 1; positions count from 0.",
    (EMBED, EMBED.replace("positions", "(positions + 1) % self.max_length")),
)
add(
    "gpt_positions_from_the_end",
    "You take the last rows of position; a text of T tokens has positions 0 to T - 1.",
    (EMBED, EMBED.replace("positions", "positions + self.max_length - length")),
)
add(
    "gpt_positions_backwards",
    "Your positions run from the end of the text to its beginning.",
    (EMBED, EMBED.replace("positions", "positions.flip(0)")),
)
add(
    "gpt_position_by_row",
    "Your positions follow the rows of the batch; they count the tokens within a row.",
    (
        EMBED,
        "rows = torch.arange(len(ids), device=ids.device).unsqueeze(1)\n"
        "        x = self.dropout(self.token(ids) + self.position(rows))",
    ),
)
add(
    "gpt_position_of_id",
    "You look positions up by token ids; they are the numbers 0 to T - 1.",
    (EMBED, EMBED.replace("positions", "ids % self.max_length")),
)
add(
    "gpt_padding_idx",
    "Your token embedding has a padding_idx, so that PAD's row never learns; no row is special.",
    (
        "token = nn.Embedding(vocab_size, d_model)",
        "token = nn.Embedding(vocab_size, d_model, padding_idx=0)",
    ),
)
add(
    "gpt_embeddings_scaled",
    "You multiply the token vectors by sqrt(D), as the first Transformer does; GPT does not.",
    ("self.token(ids) +", "math.sqrt(self.token.embedding_dim) * self.token(ids) +"),
)
add(
    "gpt_embeddings_normalised",
    "You normalise the embeddings before the first block; GPT does not.",
    (EMBED, EMBED + "\n        x = nn.functional.layer_norm(x, x.shape[-1:])"),
)
add(
    "gpt_without_final_norm",
    "Your pre-norm model ends without final_norm, so that nothing has ever normalised the sum that "
    "the head reads.",
    (NORMED, "return x"),
)
add(
    "gpt_final_norm_missing",
    "You have not made final_norm, the nn.LayerNorm after the last pre-norm block.",
    (FINAL, "self.final_norm = nn.Identity()"),
)
add(
    "gpt_final_norm_always",
    "You have a last norm with post-norm too; GPT-1 has none, its last block ends with a norm.",
    (FINAL, "self.final_norm = nn.LayerNorm(d_model)"),
)
add(
    "gpt_final_norm_in_the_head",
    "Your features come before final_norm; it is their last step.",
    (NORMED, "return x"),
    (HEAD, "return self.final_norm(self.features(ids)) @ self.token.weight.T"),
)
add(
    "gpt_final_norm_twice",
    "You normalise twice at the end: features ends with final_norm, and forward applies it again.",
    (HEAD, "return self.final_norm(self.features(ids)) @ self.token.weight.T"),
)
add(
    "gpt_final_norm_after_every_block",
    "You apply final_norm after every block; it comes once, after the last.",
    (STEP, "x = self.final_norm(block(x))"),
    (NORMED, "return x"),
)
add(
    "gpt_blocks_exchanged",
    "You take PostNormBlocks with norm_first=True and the other way round.",
    (KIND, "block = PostNormBlock if norm_first else PreNormBlock"),
)
add(
    "gpt_always_pre_norm",
    "You take PreNormBlocks whatever norm_first says; with norm_first=False they are "
    "PostNormBlocks.",
    (KIND, "block = PreNormBlock"),
)
add(
    "gpt_blocks_shared",
    "All your blocks are one module; every block has parameters of its own.",
    (STACK, "self.blocks = nn.ModuleList([block(d_model, num_heads, dropout)] * num_layers)"),
)
add(
    "gpt_block_missing",
    "You make one block too few.",
    ("range(num_layers)", "range(num_layers - 1)"),
)
add(
    "gpt_blocks_in_a_list",
    "Your blocks stand in a plain list, so that their parameters belong to no module; take "
    "nn.ModuleList.",
    (STACK, "self.blocks = [block(d_model, num_heads, dropout) for _ in range(num_layers)]"),
)
add(
    "gpt_blocks_read_embeddings",
    "Each of your blocks reads the embeddings, so that only the last one counts; each reads what "
    "the one before returned.",
    (LOOP, "start = x\n        " + LOOP),
    (STEP, "x = block(start)"),
)
add(
    "gpt_blocks_backwards",
    "Your blocks run from last to first.",
    (LOOP, "for block in reversed(self.blocks):"),
)
add(
    "gpt_shortcut_around_blocks",
    "You add what went into a block to what it returns; it has done so itself.",
    (STEP, "x = x + block(x)"),
)
add(
    "gpt_embeddings_not_dropped",
    "The sum of the embeddings is not dropped in training mode.",
    (EMBED, "x = self.token(ids) + self.position(positions)"),
)
add(
    "gpt_embeddings_dropped_apart",
    "You drop token and position vectors apart; dropout acts on their sum.",
    (EMBED, "x = self.dropout(self.token(ids)) + self.dropout(self.position(positions))"),
)
add(
    "gpt_embeddings_one_draw_for_the_batch",
    "All rows of a batch lose the same entries of the embeddings; dropout decides about every "
    "entry by itself.",
    (
        EMBED,
        "x = self.token(ids) + self.position(positions)\n"
        "        x = x * self.dropout(torch.ones_like(x[:1]))",
    ),
)
add(
    "gpt_blocks_without_dropout",
    "Your blocks never hear of dropout; pass it on.",
    (STACK, STACK.replace(", dropout)", ")")),
)
add(
    "gpt_first_block_dropped",
    "Only your first block hears of dropout; all do.",
    (STACK, STACK.replace(", dropout)", ", 0.0 if _ else dropout)")),
)
add(
    "gpt_heads_fixed",
    "The heads of your blocks do not follow num_heads; pass it on.",
    (STACK, STACK.replace("num_heads", "2")),
)
add(
    "gpt_features_dropped",
    "You drop the features once more at the end; dropout acts on the embeddings and in the blocks.",
    (NORMED, "return self.dropout(self.final_norm(x))"),
)
add(
    "gpt_length_unchecked",
    "More tokens than max_length are not refused with a ValueError.",
    ("if length > self.max_length:", "if False:"),
)
add(
    "gpt_rows_counted",
    "You compare the number of rows of the batch with max_length; T is the length of a row.",
    ("if length > self.max_length:", "if len(ids) > self.max_length:"),
)
add(
    "gpt_longest_refused",
    "You refuse a text of max_length tokens, which has positions for all of them.",
    ("if length > self.max_length:", "if length >= self.max_length:"),
)
