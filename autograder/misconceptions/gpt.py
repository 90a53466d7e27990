"""Known mistakes of the chapter `gpt`: the reference with one cell changed.

Each says to the student which mistake it is and what to do. Many stand in circulating notes and
code: heads that are joined without a transpose, a head that is not tied, a loss without the shift,
padding that counts, a residual path scaled by the wrong root, weights of a checkpoint that nobody
transposed, nuclei that lose the token which crosses the threshold, prompts that end in the middle.

Within an exercise the order matters only where two mistakes give the same answers to everything
that a test asked: the first is then named.
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
    "Your places do not see themselves; the diagonal is True too.",
    (VISIBLE, "return columns < rows"),
)
add(
    "mask_upper",
    "Your places see what comes after them; True belongs on and below the diagonal.",
    (VISIBLE, "return columns >= rows"),
)
add(
    "mask_hidden_true",
    "Your mask is True where looking is forbidden; True means that a place may look.",
    (VISIBLE, "return columns > rows"),
)
add(
    "mask_one_ahead",
    "Your places see the token after them, the very one that they shall predict.",
    (VISIBLE, "return columns <= rows + 1"),
)
add(
    "mask_past_ignored",
    "Your rows begin at place 0; with past places in front row i is the place past + i.",
    (ROWS, "rows = torch.arange(length).unsqueeze(1)"),
)
add(
    "mask_past_behind",
    "Your past places stand behind the new ones; they are the first columns.",
    (
        VISIBLE,
        "mask = torch.arange(length) <= torch.arange(length).unsqueeze(1)\n"
        "    return torch.cat([mask, torch.ones(length, past) > 0], dim=1)",
    ),
)
add(
    "mask_square",
    "Your mask has as many rows as columns; only the new places have rows.",
    (ROWS, "rows = torch.arange(past + length).unsqueeze(1)"),
)
add(
    "mask_without_past_columns",
    "Your mask has no columns for the past places; it is (length, past + length).",
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
    "Your window has window places before each one; the place itself is one of the window.",
    (NEAR, "return (back >= 0) & (back <= window)"),
)
add(
    "window_one_too_narrow",
    "Your window is one place too narrow: a place sees itself and window - 1 before it.",
    (NEAR, "return (back >= 0) & (back < max(window - 1, 1))"),
)
add(
    "window_both_ways",
    "Your window opens to both sides; a place sees nothing that comes after it.",
    (NEAR, "return back.abs() < window"),
)
add(
    "window_without_itself",
    "Your places do not see themselves; each is the last of its own window.",
    (NEAR, "return (back > 0) & (back < window)"),
)
add(
    "window_shifted",
    "Your window ends before the place itself: it sees the window places before it.",
    (NEAR, "return (back > 0) & (back <= window)"),
)
add(
    "window_of_blocks",
    "You cut the text into blocks, and each place sees its block only; a sliding window moves "
    "along with every place.",
    (
        NEAR,
        "same = places.unsqueeze(1) // window == places // window\n    return (back >= 0) & same",
    ),
)
add(
    "window_ahead",
    "Your window lies after the place; it ends with it.",
    (NEAR, "return (back <= 0) & (-back < window)"),
)
add(
    "window_far_ones",
    "You show what lies outside the window and hide what is in it.",
    (NEAR, "return (back >= 0) & (back >= window)"),
)
add(
    "window_only_causal",
    "Your window never ends: what lies window places back, or further, is hidden.",
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
WEIGHTS = "weights = self.dropout(torch.softmax(scores, dim=3))"
MIX = "mixed = (weights @ values).transpose(1, 2).flatten(2)"
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
    "Your places see what comes after them; hide it with causal_mask.",
    (FILL, "pass"),
)
add(
    "attention_mask_without_itself",
    "Your places do not see themselves; each attends to itself and to all before it.",
    (
        SEEN,
        SEEN + "\n        visible = torch.arange(len(visible)).unsqueeze(1) > "
        "torch.arange(len(visible))\n        visible[0, 0] = True",
    ),
)
add(
    "attention_mask_inverted",
    "You hide what may be seen; True in causal_mask means that a place may look, so fill where it "
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
    "You put 0 where a place may not look; a score of 0 still gets weight. Fill with -inf.",
    (FILL, "scores = scores.masked_fill(~visible, 0.0)"),
)
add(
    "attention_mask_after_softmax",
    "You set weights to 0 after the softmax, so that a row no longer sums to 1; fill the scores "
    "with -inf before it.",
    (FILL, "pass"),
    (WEIGHTS, "weights = self.dropout(torch.softmax(scores, dim=3).masked_fill(~visible, 0.0))"),
)
add(
    "attention_mask_added",
    "You add the mask to the scores as 0 and 1, which hides nothing; fill with -inf.",
    (FILL, "scores = scores + visible.to(scores.dtype)"),
)
add(
    "attention_softmax_over_queries",
    "Your softmax runs over the queries; the weights of one query, over the keys, sum to 1.",
    (FILL, "scores = scores.masked_fill(~visible, -1e9)"),
    (WEIGHTS, "weights = self.dropout(torch.softmax(scores, dim=2))"),
)
add(
    "attention_softmax_over_heads",
    "Your softmax runs over the heads; it runs over the keys, the last axis.",
    (FILL, "scores = scores.masked_fill(~visible, -1e9)"),
    (WEIGHTS, "weights = self.dropout(torch.softmax(scores, dim=1))"),
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
    "You reshape to (B, H, T, D/H) at once, which mixes places and features; make (B, T, H, D/H) "
    "and transpose.",
    (
        HEADS,
        "shape = (len(x), self.num_heads, x.shape[1], -1)\n"
        "        heads = [part.reshape(shape).transpose(1, 2) for part in parts]",
    ),
)
add(
    "attention_merged_without_transpose",
    "You join the heads without bringing the places in front of them again; transpose first.",
    (MIX, "mixed = (weights @ values).reshape(x.shape)"),
)
add(
    "attention_merged_interleaved",
    "You join the heads feature by feature; head after head is right: (B, T, H, D/H), flattened.",
    (MIX, "mixed = (weights @ values).permute(0, 2, 3, 1).flatten(2)"),
)
add(
    "attention_one_head",
    "You attend with a single head of the whole width; split the features into num_heads heads.",
    (HEADS, "heads = [part.unflatten(-1, (1, -1)) for part in parts]"),
)
add(
    "attention_heads_not_stored",
    "The attribute num_heads does not hold the number of heads; later exercises read it there.",
    ("self.num_heads = num_heads", "self.num_heads = width // num_heads"),
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
        "self.qkv = nn.Linear(width, 3 * width)",
        "self.qkv = nn.Linear(width, 3 * width, bias=False)",
    ),
)
add(
    "attention_output_without_bias",
    "out_proj has no bias; both linear layers of GPT's attention have one.",
    (
        "self.out_proj = nn.Linear(width, width)",
        "self.out_proj = nn.Linear(width, width, bias=False)",
    ),
)
add(
    "attention_weights_not_dropped",
    "No attention weight is dropped in training mode; dropout acts on the weights and on the "
    "result.",
    (WEIGHTS, "weights = torch.softmax(scores, dim=3)"),
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
    (WEIGHTS, "weights = torch.softmax(scores, dim=3)"),
)
add(
    "attention_dropped_before_output",
    "You drop what goes into out_proj; dropout acts on what it returns.",
    (LAST, "return self.out_proj(self.dropout(mixed))"),
)
add(
    "attention_dropout_in_eval",
    "You drop in evaluation mode too; use nn.Dropout, or pass self.training on to F.dropout.",
    (WEIGHTS, "weights = F.dropout(torch.softmax(scores, dim=3), self.dropout.p)"),
)
add(
    "attention_heads_unchecked",
    "A width that the number of heads does not divide is not refused; raise a ValueError.",
    ("if num_heads < 1 or width % num_heads != 0:", "if False:"),
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
    (INSIDE, "inside = F.gelu(self.w_1(x))"),
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
    ("nn.Linear(width, 4 * width)", "nn.Linear(width, width)"),
    ("nn.Linear(4 * width, width)", "nn.Linear(width, width)"),
)
add(
    "ffn_twice_as_wide",
    "Your inner layer is twice as wide as the model; it is four times as wide.",
    ("nn.Linear(width, 4 * width)", "nn.Linear(width, 2 * width)"),
    ("nn.Linear(4 * width, width)", "nn.Linear(2 * width, width)"),
)
add(
    "ffn_without_biases",
    "Your linear layers have no bias; GPT's have one.",
    ("nn.Linear(width, 4 * width)", "nn.Linear(width, 4 * width, bias=False)"),
    ("nn.Linear(4 * width, width)", "nn.Linear(4 * width, width, bias=False)"),
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
    "ffn_dropped_twice",
    "You drop between w_1 and w_2 as well; dropout acts on what w_2 returns only.",
    (INSIDE, "inside = self.dropout(gelu(self.w_1(x)))"),
)
add(
    "ffn_dropout_in_eval",
    "You drop in evaluation mode too; use nn.Dropout, or pass self.training on to F.dropout.",
    (OUT, "return F.dropout(self.w_2(inside), self.dropout.p)"),
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
        f"{prefix}_second_shortcut_missing",
        "You do not add what went into the feed-forward network to its result.",
        (second, second.replace("x + ", "")),
    )
    add(
        f"{prefix}_second_shortcut_from_input",
        "Your second shortcut begins at the block's input; it begins after the attention.",
        (first, "whole = x\n        " + first),
        (second, second.replace("x + ", "whole + ")),
    )
    add(
        f"{prefix}_norms_exchanged",
        "Your two norms stand in each other's place: norm_1 belongs to the attention.",
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
        ("self.norm_2 = nn.LayerNorm(width)", "self.norm_2 = self.norm_1"),
    )
    add(
        f"{prefix}_eps",
        "Your norms have another eps; it is 1e-5, that of nn.LayerNorm.",
        ("self.norm_1 = nn.LayerNorm(width)", "self.norm_1 = nn.LayerNorm(width, eps=1e-12)"),
        ("self.norm_2 = nn.LayerNorm(width)", "self.norm_2 = nn.LayerNorm(width, eps=1e-12)"),
    )
    add(
        f"{prefix}_attention_without_dropout",
        "Your attention never hears of dropout; pass it on.",
        ("CausalSelfAttention(width, num_heads, dropout)", "CausalSelfAttention(width, num_heads)"),
    )
    add(
        f"{prefix}_feed_forward_without_dropout",
        "Your feed-forward network never hears of dropout; pass it on.",
        ("FeedForward(width, dropout)", "FeedForward(width)"),
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
    "You add the normalised vectors; the shortcut passes x on as it came in.",
    (FIRST, "x = self.norm_1(x)\n        x = x + self.attention(x)"),
    (SECOND, "x = self.norm_2(x)\n        return x + self.feed_forward(x)"),
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
KIND = "block = PreNormBlock if pre_norm else PostNormBlock"
STACK = "self.blocks = nn.ModuleList(block(width, num_heads, dropout) for _ in range(num_layers))"
FINAL = "self.final_norm = nn.LayerNorm(width) if pre_norm else nn.Identity()"
EMBED = "x = self.dropout(self.token(ids) + self.position(places))"
LOOP = "for block in self.blocks:"
STEP = "x = block(x)"
NORMED = "return self.final_norm(x)"
HEAD = "return self.features(ids) @ self.token.weight.T"
add(
    "gpt_head_untied",
    "Your head has a matrix of its own; the logits are the features times the transposed table of "
    "tokens.",
    (FINAL, FINAL + "\n        self.head = nn.Linear(width, vocab_size, bias=False)"),
    (HEAD, "return self.head(self.features(ids))"),
)
add(
    "gpt_head_tied_once",
    "Your head is a copy of the token table that goes its own way in training; use the table "
    "itself.",
    (HEAD, "return self.features(ids) @ self.token.weight.detach().T"),
)
add(
    "gpt_head_with_bias",
    "Your head adds a bias; it has no parameter but the token table.",
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
    "gpt_last_place_only",
    "You return the logits of the last place only; all places are trained, so return (B, T, V).",
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
    (STEP, "x = block(x + (self.position(places) if block is not self.blocks[0] else 0))"),
)
add(
    "gpt_positions_from_1",
    "Your first token has position 1; positions count from 0.",
    (EMBED, EMBED.replace("places", "(places + 1) % self.context")),
)
add(
    "gpt_positions_from_the_end",
    "You take the last rows of the position table; a text of T tokens has positions 0 to T - 1.",
    (EMBED, EMBED.replace("places", "places + self.context - length")),
)
add(
    "gpt_positions_backwards",
    "Your positions run from the end of the text to its beginning.",
    (EMBED, EMBED.replace("places", "places.flip(0)")),
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
    (EMBED, EMBED.replace("places", "ids % self.context")),
)
add(
    "gpt_embeddings_scaled",
    "You multiply the token vectors by sqrt(D), as the first Transformer does; GPT does not.",
    ("self.token(ids) +", "math.sqrt(self.token.embedding_dim) * self.token(ids) +"),
)
add(
    "gpt_embeddings_normalised",
    "You normalise the embeddings before the first block; GPT does not.",
    (EMBED, EMBED + "\n        x = F.layer_norm(x, x.shape[-1:])"),
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
    (FINAL, "self.final_norm = nn.LayerNorm(width)"),
)
add(
    "gpt_final_norm_in_the_head",
    "Your features come before final_norm; it is their last step.",
    (NORMED, "return x"),
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
    "You take PostNormBlocks with pre_norm=True and the other way round.",
    (KIND, "block = PostNormBlock if pre_norm else PreNormBlock"),
)
add(
    "gpt_always_pre_norm",
    "You take PreNormBlocks whatever pre_norm says; with pre_norm=False they are PostNormBlocks.",
    (KIND, "block = PreNormBlock"),
)
add(
    "gpt_blocks_shared",
    "All your blocks are one module; every block has parameters of its own.",
    (STACK, "self.blocks = nn.ModuleList([block(width, num_heads, dropout)] * num_layers)"),
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
    (STACK, "self.blocks = [block(width, num_heads, dropout) for _ in range(num_layers)]"),
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
    (EMBED, "x = self.token(ids) + self.position(places)"),
)
add(
    "gpt_embeddings_dropped_apart",
    "You drop token and position vectors apart; dropout acts on their sum.",
    (EMBED, "x = self.dropout(self.token(ids)) + self.dropout(self.position(places))"),
)
add(
    "gpt_blocks_without_dropout",
    "Your blocks never hear of dropout; pass it on.",
    (STACK, STACK.replace(", dropout)", ")")),
)
add(
    "gpt_features_dropped",
    "You drop the features once more at the end; dropout acts on the embeddings and in the blocks.",
    (NORMED, "return self.dropout(self.final_norm(x))"),
)
add(
    "gpt_length_unchecked",
    "More tokens than context are not refused with a ValueError.",
    ("if length > self.context:", "if False:"),
)
add(
    "gpt_longest_refused",
    "You refuse a text of context tokens, which has positions for all of them.",
    ("if length > self.context:", "if length >= self.context:"),
)

add = mistakes_in(MISCONCEPTIONS, "init_weights", "gpt-init")
DRAW = "nn.init.normal_(module.weight, std=0.02)"
KINDS = "if isinstance(module, (nn.Linear, nn.Embedding)):"
SMALL = "small = 0.02 / math.sqrt(2 * len(model.blocks))"
WHEN = "if isinstance(model.final_norm, nn.LayerNorm):"
OUTER = "nn.init.normal_(block.attention.out_proj.weight, std=small)"
SECOND = "nn.init.normal_(block.feed_forward.w_2.weight, std=small)"
add(
    "init_residual_by_root_of_n",
    "You divide by sqrt(N); every block adds to the sum twice, so divide by sqrt(2N).",
    (SMALL, "small = 0.02 / math.sqrt(len(model.blocks))"),
)
add(
    "init_residual_without_root",
    "You divide by 2N; variances add up, so divide the deviation by its root.",
    (SMALL, "small = 0.02 / (2 * len(model.blocks))"),
)
add(
    "init_residual_not_scaled",
    "In a pre-norm model out_proj and w_2 begin smaller: their deviation is 0.02 / sqrt(2N).",
    (OUTER, "pass"),
    (SECOND, "pass"),
)
add(
    "init_residual_enlarged",
    "You multiply by sqrt(2N); divide by it, so that the sum of all branches stays small.",
    (SMALL, "small = 0.02 * math.sqrt(2 * len(model.blocks))"),
)
add(
    "init_w_1_scaled",
    "You scale w_1; it is w_2, the last layer of the branch, that begins smaller.",
    (SECOND, "nn.init.normal_(block.feed_forward.w_1.weight, std=small)"),
)
add(
    "init_qkv_scaled",
    "You scale qkv; it is out_proj, the last layer of the branch, that begins smaller.",
    (OUTER, "nn.init.normal_(block.attention.qkv.weight, std=small)"),
)
add(
    "init_only_attention_scaled",
    "You scale out_proj only; w_2 ends a branch too.",
    (SECOND, "pass"),
)
add(
    "init_only_feed_forward_scaled",
    "You scale w_2 only; out_proj ends a branch too.",
    (OUTER, "pass"),
)
add(
    "init_all_scaled",
    "You scale every linear layer; only those that end a branch, out_proj and w_2, begin smaller.",
    (OUTER, OUTER + "\n            nn.init.normal_(block.attention.qkv.weight, std=small)"),
    (SECOND, SECOND + "\n            nn.init.normal_(block.feed_forward.w_1.weight, std=small)"),
)
add(
    "init_one_block_scaled",
    "You scale the last block only; every block ends in two branches.",
    ("for block in model.blocks:", "for block in model.blocks[-1:]:"),
)
add(
    "init_by_block_number",
    "You scale each block by its own number; N is the number of all blocks, the same for each.",
    (
        "for block in model.blocks:",
        "for number, block in enumerate(model.blocks, start=1):\n"
        "            small = 0.02 / math.sqrt(2 * number)",
    ),
)
add(
    "init_post_norm_scaled",
    "You scale the last layers of branches in a post-norm model too; GPT-1 has 0.02 everywhere.",
    (WHEN, "if True:"),
)
add(
    "init_pre_and_post_exchanged",
    "You scale in post-norm models and not in pre-norm ones; it is the other way round.",
    (WHEN, "if not isinstance(model.final_norm, nn.LayerNorm):"),
)
add(
    "init_variance",
    "0.02 is the standard deviation, not the variance.",
    (DRAW, "nn.init.normal_(module.weight, std=math.sqrt(0.02))"),
)
add(
    "init_squared",
    "You take 0.02 squared for the deviation; N(0, 0.02^2) has the deviation 0.02.",
    (DRAW, "nn.init.normal_(module.weight, std=0.02**2)"),
)
add(
    "init_uniform",
    "You draw from a uniform distribution; the weights are normally distributed.",
    (DRAW, "nn.init.uniform_(module.weight, -0.02 * math.sqrt(3), 0.02 * math.sqrt(3))"),
)
add(
    "init_by_width",
    "You choose the deviation by the width of the layer; here it is 0.02 everywhere.",
    (DRAW, "nn.init.normal_(module.weight, std=module.weight.shape[1] ** -0.5)"),
)
add(
    "init_tables_left",
    "You leave both tables as they were; they are drawn with 0.02 as well.",
    (KINDS, "if isinstance(module, nn.Linear):"),
)
add(
    "init_positions_left",
    "You leave the position table as it was; it is drawn with 0.02 as well.",
    (KINDS, "if isinstance(module, (nn.Linear, nn.Embedding)) and module is not model.position:"),
)
add(
    "init_linear_left",
    "You leave the linear layers as they were; only the tables are drawn anew.",
    (KINDS, "if isinstance(module, nn.Embedding):"),
)
add(
    "init_biases_random",
    "Your biases are drawn at random; they are 0.",
    ("nn.init.zeros_(module.bias)", "nn.init.normal_(module.bias, std=0.02)"),
)
add(
    "init_biases_left",
    "You leave the biases as they were; they become 0.",
    ("nn.init.zeros_(module.bias)", "pass"),
)
add(
    "init_norm_biases_left",
    "You leave the biases of the norms as they were; they become 0.",
    ("if isinstance(module, (nn.Linear, nn.LayerNorm)):", "if isinstance(module, nn.Linear):"),
)
add(
    "init_norms_zero",
    "You set the weights of the norms to 0, so that nothing passes; they are 1.",
    ("nn.init.ones_(module.weight)", "nn.init.zeros_(module.weight)"),
)
add(
    "init_norms_random",
    "You draw the weights of the norms; they are 1.",
    ("nn.init.ones_(module.weight)", "nn.init.normal_(module.weight, std=0.02)"),
)
add(
    "init_norms_left",
    "You leave the weights of the norms as they were; they become 1.",
    ("nn.init.ones_(module.weight)", "pass"),
)
add(
    "init_nothing_returned",
    "You return nothing; return the model, so that init_weights(GPT(...)) can be written in one "
    "line.",
    ("return model", "return None"),
)
add(
    "init_copy",
    "You draw the weights of a copy; change the model that is given.",
    (
        "for module in model.modules():",
        "import copy\n\n    model = copy.deepcopy(model)\n    for module in model.modules():",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "count_parameters", "gpt-parameters")
NORM = "norm = 2 * width"
ATTENTION = "attention = (width + 1) * 3 * width + (width + 1) * width"
INNER = "feed_forward = (width + 1) * 4 * width + (4 * width + 1) * width"
BLOCK = "block = attention + feed_forward + 2 * norm"
TABLES = "tables = (vocab_size + context) * width"
TOTAL = "return tables + num_layers * block + (norm if pre_norm else 0)"
add(
    "count_head_twice",
    "You count the output matrix for itself; it is the token table, which counts once.",
    (TABLES, "tables = (2 * vocab_size + context) * width"),
)
add(
    "count_without_final_norm",
    "You forget the norm after the last block of a pre-norm model.",
    (TOTAL, "return tables + num_layers * block"),
)
add(
    "count_final_norm_always",
    "You count a last norm for post-norm too; GPT-1 has none.",
    (TOTAL, "return tables + num_layers * block + norm"),
)
add(
    "count_final_norm_with_post",
    "You count the last norm with post-norm; it is pre-norm that has one.",
    (TOTAL, "return tables + num_layers * block + (0 if pre_norm else norm)"),
)
add(
    "count_without_biases",
    "You count the matrices of linear layers and forget their biases.",
    (ATTENTION, "attention = 4 * width * width"),
    (INNER, "feed_forward = 8 * width * width"),
)
add(
    "count_feed_forward_without_biases",
    "You forget the biases of w_1 and w_2: 4 D and D numbers.",
    (INNER, "feed_forward = 8 * width * width"),
)
add(
    "count_w_1_bias_short",
    "You count D numbers for the bias of w_1; it has 4 D.",
    (INNER, "feed_forward = 8 * width * width + 2 * width"),
)
add(
    "count_w_2_bias_long",
    "You count 4 D numbers for the bias of w_2; it has D.",
    (INNER, "feed_forward = 8 * width * width + 8 * width"),
)
add(
    "count_without_positions",
    "You forget the position table, which has context rows of width D.",
    (TABLES, "tables = vocab_size * width"),
)
add(
    "count_without_tokens",
    "You forget the token table, which has a row of width D for each token.",
    (TABLES, "tables = context * width"),
)
add(
    "count_without_norms",
    "You forget the norms in the blocks: two in each, with a weight and a bias.",
    (BLOCK, "block = attention + feed_forward"),
)
add(
    "count_one_norm_per_block",
    "You count one norm for each block; there are two.",
    (BLOCK, "block = attention + feed_forward + norm"),
)
add(
    "count_norms_without_bias",
    "You count D numbers for a norm; it has a weight and a bias, 2 D.",
    (NORM, "norm = width"),
)
add(
    "count_without_out_proj",
    "You forget out_proj, a linear layer from D to D.",
    (ATTENTION, "attention = (width + 1) * 3 * width"),
)
add(
    "count_feed_forward_once",
    "You count one of the two linear layers of the feed-forward network.",
    (INNER, "feed_forward = (width + 1) * 4 * width"),
)
add(
    "count_one_block",
    "You count the parameters of one block; there are num_layers of them.",
    (TOTAL, "return tables + block + (norm if pre_norm else 0)"),
)
add(
    "count_by_rule_of_thumb",
    "You count 12 D^2 for a block, the rule of thumb; biases and norms count too.",
    (BLOCK, "block = 12 * width * width"),
)
add(
    "count_float",
    "Your number is a float; use whole numbers only, so // for /.",
    (TOTAL, "return (tables + num_layers * block + (norm if pre_norm else 0)) / 1"),
)

add = mistakes_in(MISCONCEPTIONS, "rename_parameters", "gpt-checkpoint")
TURN = 'if ".c_" in part and ending == "weight":'
TURNED = "tensor = tensor.T.contiguous()"
PUT = 'renamed[f"blocks.{number}.{parts[part]}.{ending}"] = tensor'
SHORT = 'short = name.removeprefix("transformer.")'
SKIP = 'if short in ("lm_head.weight", "position_ids"):'
MASKS = 'if in_block and rest in ("attn.bias", "attn.masked_bias"):'
REFUSE = 'if not in_block or part not in parts or ending not in ("weight", "bias"):'
LOST = "renamed[tables[short]] = tensor"
add(
    "rename_not_transposed",
    "You leave the weights of the c_ layers as they are; those layers are Conv1D, with weights "
    "(in, out), so transpose them.",
    (TURNED, "pass"),
)
add(
    "rename_reshaped",
    "You reshape the weights to (out, in), which scrambles them; transpose them.",
    (TURNED, "tensor = tensor.reshape(tensor.shape[::-1])"),
)
add(
    "rename_all_transposed",
    "You transpose every matrix; the tables of tokens and positions stay as they are.",
    (LOST, "renamed[tables[short]] = tensor.T if tensor.ndim == 2 else tensor"),
)
add(
    "rename_tokens_transposed",
    "You transpose the token table; it is (V, D) in both.",
    (LOST, 'renamed[tables[short]] = tensor.T if "token" in tables[short] else tensor'),
)
add(
    "rename_square_not_transposed",
    "You transpose by shape and leave square matrices as they are; c_proj of the attention is one, "
    "and is transposed too.",
    (TURN, TURN.replace(":", " and len(set(tensor.shape)) == 2:")),
)
add(
    "rename_only_qkv_transposed",
    "You transpose c_attn only; c_proj and c_fc are Conv1D as well.",
    (TURN, 'if "c_attn" in part and ending == "weight":'),
)
add(
    "rename_c_fc_not_transposed",
    "You forget to transpose c_fc; all four c_ layers are Conv1D.",
    (TURN, 'if ".c_" in part and part != "mlp.c_fc" and ending == "weight":'),
)
add(
    "rename_projections_exchanged",
    "You exchange the two c_proj: that of attn is attention.out_proj, that of mlp "
    "feed_forward.w_2.",
    ('"attn.c_proj": "attention.out_proj"', '"attn.c_proj": "feed_forward.w_2"'),
    ('"mlp.c_proj": "feed_forward.w_2"', '"mlp.c_proj": "attention.out_proj"'),
)
add(
    "rename_projections_confused",
    "Both c_proj end up under one name, so that a tensor is lost; that of attn is "
    "attention.out_proj.",
    ('"attn.c_proj": "attention.out_proj"', '"attn.c_proj": "feed_forward.w_2"'),
)
add(
    "rename_feed_forward_exchanged",
    "You exchange w_1 and w_2: c_fc is w_1, c_proj is w_2.",
    ('"mlp.c_fc": "feed_forward.w_1"', '"mlp.c_fc": "feed_forward.w_2"'),
    ('"mlp.c_proj": "feed_forward.w_2"', '"mlp.c_proj": "feed_forward.w_1"'),
)
add(
    "rename_norms_exchanged",
    "You exchange the two norms of a block: ln_1 is norm_1, before the attention in GPT-2.",
    ('"ln_1": "norm_1"', '"ln_1": "norm_2"'),
    ('"ln_2": "norm_2"', '"ln_2": "norm_1"'),
)
add(
    "rename_tables_exchanged",
    "You exchange two tables: wte holds the tokens, wpe the positions.",
    ('"wte.weight": "token.weight"', '"wte.weight": "position.weight"'),
    ('"wpe.weight": "position.weight"', '"wpe.weight": "token.weight"'),
)
add(
    "rename_final_norm_lost",
    "You lose ln_f; it is final_norm.",
    (LOST, 'if short[:4] != "ln_f":\n                renamed[tables[short]] = tensor'),
)
add(
    "rename_first_unknown",
    "You do not know GPT-1's names of the tables, tokens_embed and positions_embed.",
    ('"tokens_embed.weight": "token.weight",', ""),
    ('"positions_embed.weight": "position.weight",', ""),
)
add(
    "rename_prefix_kept",
    "You keep the prefix transformer.; our names have none.",
    (PUT, "renamed[name[: len(name) - len(short)] + " + PUT.removeprefix("renamed[")),
    (LOST, "renamed[name[: len(name) - len(short)] + tables[short]] = tensor"),
)
add(
    "rename_prefix_unknown",
    "You refuse names that begin with transformer.; take the prefix away.",
    (SHORT, "short = name"),
)
add(
    "rename_head_kept",
    "You keep lm_head.weight; the head is the token table, so leave it out.",
    (
        SKIP,
        'if short == "lm_head.weight":\n            renamed["head.weight"] = tensor\n        '
        + SKIP,
    ),
)
add(
    "rename_head_refused",
    "You refuse lm_head.weight; it is the token table again, so leave it out.",
    (SKIP, 'if short == "position_ids":'),
)
add(
    "rename_masks_kept",
    "You keep h.i.attn.bias as a parameter; it is the causal mask, so leave it out.",
    (
        MASKS,
        'if in_block and rest == "attn.bias":\n'
        '            renamed[f"blocks.{number}.attention.bias"] = tensor\n        ' + MASKS,
    ),
)
add(
    "rename_masks_refused",
    "You refuse h.i.attn.bias and masked_bias; they hold the causal mask, so leave them out.",
    (MASKS, "if False:"),
)
add(
    "rename_every_bias_dropped",
    "You leave out every name that ends in attn.bias or contains bias; only the masks attn.bias "
    "and attn.masked_bias have no place with us.",
    (MASKS, 'if in_block and rest.endswith("bias") and "attn" in rest:'),
)
add(
    "rename_position_ids_refused",
    "You refuse position_ids; they are the numbers 0, 1, 2, so leave them out.",
    (SKIP, 'if short == "lm_head.weight":'),
)
add(
    "rename_unknown_dropped",
    "You leave out names that you don't know; refuse them with a ValueError, so that no weight is "
    "lost unseen.",
    (REFUSE, REFUSE + "\n            continue"),
)
add(
    "rename_unknown_kept",
    "You keep names that you don't know; refuse them with a ValueError.",
    (REFUSE, REFUSE + "\n            renamed[name] = tensor\n            continue"),
)
add(
    "rename_one_digit",
    "You read one digit of the number of a block; there may be two.",
    (PUT, PUT.replace("{number}", "{number[0]}")),
)
add(
    "rename_state_emptied",
    "You take the tensors out of the dict that was given; the caller still needs it.",
    (
        "for name, tensor in state.items():",
        "for name in list(state):\n        tensor = state.pop(name)",
    ),
)

# --------------------------------------------------------------------------------------------
# Losses
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "log_likelihood", "gpt-loss")
TARGETS = "targets = ids[:, 1:].unsqueeze(2)"
PROBS = "log_probs = torch.log_softmax(logits[:, :-1], dim=2)"
GATHER = "terms = log_probs.gather(2, targets).squeeze(2)"
COUNT = "terms = terms.masked_fill(~mask[:, 1:], 0.0)"
SUM = "return terms.sum(dim=1)"
add(
    "likelihood_without_shift",
    "Place t has seen token t: its logits are for token t + 1. Shift one against the other.",
    (TARGETS, "targets = ids.unsqueeze(2)"),
    (PROBS, "log_probs = torch.log_softmax(logits, dim=2)"),
    (COUNT, "terms = terms.masked_fill(~mask, 0.0)"),
)
add(
    "likelihood_not_shifted_but_cut",
    "You leave out the first token and its logits; the logits before token t are those at t - 1.",
    (PROBS, "log_probs = torch.log_softmax(logits[:, 1:], dim=2)"),
)
add(
    "likelihood_shifted_the_wrong_way",
    "You shift the wrong way, so that place t predicts token t - 1.",
    (TARGETS, "targets = ids[:, :-1].unsqueeze(2)"),
    (PROBS, "log_probs = torch.log_softmax(logits[:, 1:], dim=2)"),
)
add(
    "likelihood_shifted_twice",
    "You shift by two: place t predicts token t + 1.",
    (
        PROBS,
        "log_probs = torch.log_softmax(logits.roll(1, dims=1)[:, :-1], dim=2)",
    ),
)
add(
    "likelihood_rolled",
    "You roll the ids, so that the last place has the first token for a target; it has none.",
    (TARGETS, "targets = ids.roll(-1, dims=1).unsqueeze(2)"),
    (PROBS, "log_probs = torch.log_softmax(logits, dim=2)"),
    (COUNT, "terms = terms.masked_fill(~mask.roll(-1, dims=1), 0.0)"),
)
add(
    "likelihood_mask_by_inputs",
    "You read the mask at the place that predicts; it marks targets, so read it one place further.",
    (COUNT, "terms = terms.masked_fill(~mask[:, :-1], 0.0)"),
)
add(
    "likelihood_mask_ignored",
    "The mask changes nothing; targets where it is False do not count.",
    (COUNT, "pass"),
)
add(
    "likelihood_mask_inverted",
    "You count the targets where the mask is False; True marks those that count.",
    (COUNT, "terms = terms.masked_fill(mask[:, 1:], 0.0)"),
)
add(
    "likelihood_masked_logits",
    "You set logits to 0 where a target does not count; that still is a prediction. Leave the term "
    "out.",
    (
        PROBS,
        PROBS.replace(
            "logits[:, :-1]",
            "logits[:, :-1] if mask is None else "
            "logits[:, :-1].masked_fill(~mask[:, 1:, None], 0.0)",
        ),
    ),
    (COUNT, "pass"),
)
add(
    "likelihood_sum_over_batch",
    "You add up all rows; each row has a sum of its own, so the result is (B,).",
    (SUM, "return terms.sum()"),
)
add(
    "likelihood_sum_over_rows",
    "You add up over the batch; add up over the places of each row.",
    (SUM, "return terms.sum(dim=0)"),
)
add(
    "likelihood_mean",
    "You take the mean over the places; the log-probability of a text is the sum.",
    (SUM, "return terms.mean(dim=1)"),
)
add(
    "likelihood_terms",
    "You return each token's term; add up those of a row.",
    (SUM, "return terms"),
)
add(
    "likelihood_negative",
    "Your sign is that of a loss; a log-probability is 0 at most.",
    (SUM, "return -terms.sum(dim=1)"),
)
add(
    "likelihood_of_probabilities",
    "You add up probabilities; it is their logarithms that are added.",
    (PROBS, "log_probs = torch.softmax(logits[:, :-1], dim=2)"),
)
add(
    "likelihood_product",
    "You multiply the probabilities and return the product; return its logarithm, a sum.",
    (SUM, "return terms.sum(dim=1).exp()"),
)
add(
    "likelihood_of_logits",
    "You add up logits; log_softmax makes log-probabilities of them.",
    (PROBS, "log_probs = logits[:, :-1]"),
)
add(
    "likelihood_over_places",
    "Your softmax runs over the places; it runs over the vocabulary, the last axis.",
    (PROBS, "log_probs = torch.log_softmax(logits[:, :-1], dim=1)"),
)
add(
    "likelihood_overflows",
    "Large logits make infinities: you take exp before log. torch.log_softmax does both safely.",
    (
        PROBS,
        "log_probs = logits[:, :-1] - logits[:, :-1].exp().sum(dim=2, keepdim=True).log()",
    ),
)
add(
    "likelihood_logarithm_of_zero",
    "You take the logarithm of softmax, which is -inf where a probability rounds to 0; use "
    "torch.log_softmax.",
    (PROBS, "log_probs = torch.softmax(logits[:, :-1], dim=2).log()"),
)
add(
    "likelihood_base_two",
    "You take logarithms to the base 2; they are natural ones.",
    (SUM, "return terms.sum(dim=1) / math.log(2)"),
)
add(
    "likelihood_without_gradient",
    "You cut the graph: no gradient reaches the logits. Look for detach(), .data or no_grad().",
    (SUM, "return terms.sum(dim=1).detach()"),
)
add(
    "likelihood_length_unchecked",
    "A row of one token, which has no target, is not refused; raise a ValueError.",
    ("if ids.shape[1] < 2:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "language_model_loss", "gpt-loss")
SUM = "total = log_likelihood(logits, ids, mask).sum()"
COUNT = "count = ids[:, 1:].numel() if mask is None else mask[:, 1:].sum().clamp(min=1)"
MEAN = "return -total / count"
add(
    "lm_loss_without_shift",
    "Place t has seen token t: its logits are for token t + 1. Shift one against the other.",
    (
        SUM,
        "if ids.shape[1] < 2:\n        raise ValueError('T < 2')\n"
        "    terms = -F.cross_entropy(logits.mT, ids, reduction='none')\n"
        "    total = (terms if mask is None else terms * mask).sum()",
    ),
    (COUNT, "count = ids.numel() if mask is None else mask.sum().clamp(min=1)"),
)
add(
    "lm_loss_shifted_the_wrong_way",
    "You shift the wrong way, so that place t predicts token t - 1.",
    (SUM, SUM.replace("logits, ids, mask", "logits.flip(1), ids.flip(1), mask")),
)
add(
    "lm_loss_mask_by_inputs",
    "You read the mask at the place that predicts; it marks targets, so read it one place further.",
    (SUM, SUM.replace("mask)", "None if mask is None else mask.roll(1, dims=1))")),
    (COUNT, COUNT.replace("mask[:, 1:]", "mask[:, :-1]")),
)
add(
    "lm_loss_mask_ignored",
    "The mask changes nothing; targets where it is False do not count.",
    (SUM, SUM.replace(", mask)", ")")),
    (COUNT, "count = ids[:, 1:].numel()"),
)
add(
    "lm_loss_divided_by_all",
    "You divide by the number of all targets; divide by the number of those that count.",
    (COUNT, "count = ids[:, 1:].numel()"),
)
add(
    "lm_loss_first_token_counted",
    "You count the mask at the first token, which is nobody's target.",
    (COUNT, COUNT.replace("mask[:, 1:].sum()", "mask.sum()")),
)
add(
    "lm_loss_divided_by_tokens",
    "You divide by the number of tokens; T tokens have T - 1 targets.",
    (COUNT, COUNT.replace("ids[:, 1:].numel()", "ids.numel()")),
)
add(
    "lm_loss_divided_by_rows",
    "You divide by the number of rows; divide by the number of targets.",
    (MEAN, "return -total / len(ids)"),
)
add(
    "lm_loss_mean_of_means",
    "You average each row and then the rows, so that targets of short rows weigh more; divide one "
    "sum by one number.",
    (SUM, "total = log_likelihood(logits, ids, mask)"),
    (
        COUNT,
        "count = (torch.ones_like(ids) if mask is None else mask)[:, 1:].sum(dim=1).clamp(min=1)",
    ),
    (MEAN, "return (-total / count).mean()"),
)
add(
    "lm_loss_summed",
    "You return the sum; divide it by the number of targets that count.",
    (MEAN, "return -total"),
)
add(
    "lm_loss_positive_logs",
    "Your loss has the wrong sign: it falls when predictions get worse.",
    (MEAN, "return total / count"),
)
add(
    "lm_loss_nan_without_targets",
    "Where no target counts your loss is NaN, 0 divided by 0; it is 0.",
    (COUNT, COUNT.replace(".clamp(min=1)", "")),
)
add(
    "lm_loss_one_added",
    "You add 1 to the number of targets to avoid dividing by 0, which changes every loss; divide "
    "by at least 1 instead.",
    (COUNT, COUNT.replace(".clamp(min=1)", " + 1")),
)
add(
    "lm_loss_perplexity",
    "You return the perplexity; the loss is its logarithm.",
    (MEAN, "return torch.exp(-total / count)"),
)
add(
    "lm_loss_bits",
    "You measure in bits; the logarithm is the natural one.",
    (MEAN, "return -total / count / math.log(2)"),
)
add(
    "lm_loss_padding_left_out",
    "You leave out targets with the id 0 unasked; what counts is said by the mask alone.",
    (
        SUM,
        "mask = (ids != PAD) & (mask if mask is not None else ids == ids)\n    " + SUM,
    ),
)
add(
    "lm_loss_number",
    "You return a number; return a tensor, so that gradients can flow.",
    (MEAN, "return (-total / count).item()"),
)
add(
    "lm_loss_without_gradient",
    "You cut the graph: no gradient reaches the logits. Look for detach(), .data or no_grad().",
    (MEAN, "return (-total / count).detach()"),
)
add(
    "lm_loss_one_row_only",
    "You look at the first row only; the loss is over the whole batch.",
    (SUM, SUM.replace(".sum()", "[0]")),
    (COUNT, "count = len(ids[0]) - 1 if mask is None else mask[0, 1:].sum().clamp(min=1)"),
)

# --------------------------------------------------------------------------------------------
# Training
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "sample_blocks", "gpt-batches")
STARTS = "torch.randint(len(stream) - length, (batch_size, 1), device=stream.device)"
BLOCKS = "return stream[places], stream[places + 1]"
add(
    "blocks_last_start_left_out",
    "The last possible block never comes: there are M - T starts, 0 to M - T - 1, and the end of "
    "torch.randint's range is left out already.",
    (STARTS, "torch.randint(max(len(stream) - length - 1, 1), (batch_size, 1))"),
)
add(
    "blocks_first_start_left_out",
    "No block begins at the first token; starts count from 0.",
    (
        STARTS,
        "torch.randint(min(1, len(stream) - length - 1), len(stream) - length, (batch_size, 1))",
    ),
)
add(
    "blocks_start_too_late",
    "Some of your blocks begin so late that their last target lies beyond the stream: there are "
    "M - T starts, not M - T + 1.",
    (STARTS, "torch.randint(len(stream) - length + 1, (batch_size, 1))"),
)
add(
    "blocks_targets_are_inputs",
    "Your targets are the inputs themselves; the target of a place is the token after it, one "
    "further.",
    (BLOCKS, "return stream[places], stream[places].clone()"),
)
add(
    "blocks_targets_behind",
    "Your targets stand one token before the inputs; they are the tokens after them.",
    (BLOCKS, "return stream[places + 1], stream[places]"),
)
add(
    "blocks_targets_rolled",
    "The target of a row's last place is its first token; it is the token behind the block, so "
    "take length + 1 tokens.",
    (BLOCKS, "return stream[places], stream[places].roll(-1, dims=1)"),
)
add(
    "blocks_one_start",
    "All rows of a batch are the same block; draw a start for each row.",
    (STARTS, "torch.randint(len(stream) - length, (1, 1)).expand(batch_size, 1)"),
)
add(
    "blocks_side_by_side",
    "Your rows follow one another in the stream; each row draws its start by itself.",
    (
        STARTS,
        "(torch.randint(len(stream) - length, (1, 1)) + length * torch.arange(batch_size)"
        ".unsqueeze(1)) % (len(stream) - length)",
    ),
)
add(
    "blocks_whole_multiples",
    "Your blocks begin at multiples of their length only; every place of the stream is a start.",
    (STARTS, "torch.randint((len(stream) - 1) // length, (batch_size, 1)) * length"),
)
add(
    "blocks_scattered",
    "Your rows are made of tokens from all over the stream; a block is contiguous.",
    (STARTS, "torch.randint(len(stream) - length, (batch_size, length)) - torch.arange(length)"),
)
add(
    "blocks_same_every_call",
    "Your blocks are the same at every call; don't set a seed.",
    (
        STARTS,
        "torch.randint(len(stream) - length, (batch_size, 1), "
        "generator=torch.Generator().manual_seed(0))",
    ),
)
add(
    "blocks_from_the_front",
    "Your blocks are the first of the stream; their starts are drawn.",
    (STARTS, "torch.arange(batch_size).unsqueeze(1) % (len(stream) - length)"),
)
add(
    "blocks_one_too_long",
    "Your inputs have length + 1 tokens; the last one is a target only.",
    ("torch.arange(length, device=stream.device)", "torch.arange(length + 1)"),
    (BLOCKS, "return stream[places], stream[places]"),
)
add(
    "blocks_short_stream_accepted",
    "A stream that is as long as a block has no target for the last place; refuse it with a "
    "ValueError.",
    ("if len(stream) < length + 1:", "if False:"),
)
add(
    "blocks_sizes_accepted",
    "A length or batch_size below 1 is not refused; raise a ValueError.",
    ("if value < 1:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "decay_groups", "gpt-optimiser")
MATRICES = "[p for p in trained if p.dim() >= 2]"
OTHERS = "[p for p in trained if p.dim() < 2]"
TRAINED = "[parameter for parameter in model.parameters() if parameter.requires_grad]"
add(
    "groups_exchanged",
    "Your groups have changed places: what has two or more axes decays and stands first.",
    ("p.dim() >= 2", "not p.dim() >= 2"),
    ("p.dim() < 2", "not p.dim() < 2"),
)
add(
    "groups_matrices_only",
    "A parameter with three axes is no bias; two or more axes decay.",
    ("p.dim() >= 2", "p.dim() == 2"),
    ("p.dim() < 2", "p.dim() != 2"),
)
add(
    "groups_by_name_bias",
    "The weights of your norms decay: only parameters called bias are left out. Ask for the number "
    "of axes.",
    (
        MATRICES,
        '[p for n, p in model.named_parameters() if p.requires_grad and not n.endswith("bias")]',
    ),
    (OTHERS, '[p for n, p in model.named_parameters() if p.requires_grad and n.endswith("bias")]'),
)
add(
    "groups_everything_decays",
    "Biases and norm weights decay too; they belong to the second group.",
    (MATRICES, "trained"),
    (OTHERS, "[]"),
)
add(
    "groups_embeddings_left_out",
    "Your tables of embeddings don't decay; here everything with two or more axes does.",
    (
        TRAINED,
        TRAINED
        + "\n    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}",
    ),
    (MATRICES, "[p for p in trained if p.dim() >= 2 and id(p) not in tables]"),
    (OTHERS, "[p for p in trained if p.dim() < 2 or id(p) in tables]"),
)
add(
    "groups_frozen_included",
    "A parameter that requires no gradient is in a group; leave it out.",
    (TRAINED, "list(model.parameters())"),
)
add(
    "groups_shared_twice",
    "A parameter that stands in two places of the model is in its group twice; model.parameters() "
    "names it once.",
    (
        TRAINED,
        "[p for _, p in model.named_parameters(remove_duplicate=False) if p.requires_grad]",
    ),
)
add(
    "groups_all_decay_alike",
    "Both groups have the same weight_decay; that of the second is 0.",
    ('"weight_decay": 0.0}', '"weight_decay": weight_decay}'),
)
add(
    "groups_empty_left_out",
    "A group without parameters is missing; there are always two.",
    ("    return [\n", "    groups = [\n"),
    (
        '"weight_decay": 0.0},\n    ]',
        '"weight_decay": 0.0},\n    ]\n    return [group for group in groups if group["params"]]',
    ),
)
add(
    "groups_own_order",
    "Your parameters are not in the order of model.parameters().",
    (TRAINED, TRAINED + "[::-1]"),
)
add(
    "groups_decay_fixed",
    "The weight_decay of your first group is not the one that was given.",
    ('"weight_decay": weight_decay}', '"weight_decay": 0.1}'),
)
add(
    "groups_negative_accepted",
    "A negative weight_decay is not refused; raise a ValueError.",
    ("if weight_decay < 0:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "adamw_step", "gpt-optimiser")
NEW = "return shrunk - rate * first_corrected / (second_corrected.sqrt() + eps), first, second"
SHRUNK = "shrunk = (1 - rate * weight_decay) * parameter"
MEANS = "first = beta_1 * first + (1 - beta_1) * gradient"
add(
    "adamw_decay_in_gradient",
    "Your decay is added to the gradient (L2): it passes through both means and is divided by the "
    "root. AdamW shrinks the parameter beside them.",
    (MEANS, "gradient = gradient + weight_decay * parameter\n    " + MEANS),
    (SHRUNK, "shrunk = parameter"),
)
add(
    "adamw_decay_not_times_rate",
    "The parameter shrinks by weight_decay of itself; it is rate * weight_decay.",
    (SHRUNK, "shrunk = (1 - weight_decay) * parameter"),
)
add(
    "adamw_decay_of_new",
    "You shrink the parameter after Adam's step; it is the old one that shrinks.",
    (SHRUNK, "shrunk = parameter"),
    (
        NEW,
        "new = shrunk - rate * first_corrected / (second_corrected.sqrt() + eps)\n"
        "    return (1 - rate * weight_decay) * new, first, second",
    ),
)
add(
    "adamw_no_decay",
    "Your parameter does not shrink: rate * weight_decay of the old one goes, besides Adam's step.",
    (SHRUNK, "shrunk = parameter"),
)
add(
    "adamw_decay_grows",
    "Your decay makes the parameter larger; subtract it.",
    (SHRUNK, "shrunk = (1 + rate * weight_decay) * parameter"),
)
add(
    "adamw_no_correction",
    "You use both means as they are; divide each by 1 - beta ** step, since they began at 0.",
    ("first_corrected = first / (1 - beta_1**step)", "first_corrected = first"),
    ("second_corrected = second / (1 - beta_2**step)", "second_corrected = second"),
)
add(
    "adamw_first_correction_missing",
    "The mean of the gradients is not corrected; divide it by 1 - beta_1 ** step.",
    ("first_corrected = first / (1 - beta_1**step)", "first_corrected = first"),
)
add(
    "adamw_second_correction_missing",
    "The mean of the squares is not corrected; divide it by 1 - beta_2 ** step.",
    ("second_corrected = second / (1 - beta_2**step)", "second_corrected = second"),
)
add(
    "adamw_corrected_returned",
    "You return the corrected means; the next step needs them as they are before the correction.",
    (
        NEW,
        "return (\n        shrunk - rate * first_corrected / (second_corrected.sqrt() + eps),\n"
        "        first_corrected,\n        second_corrected,\n    )",
    ),
)
add(
    "adamw_eps_inside_root",
    "Your eps stands under the root; add it to the root.",
    ("(second_corrected.sqrt() + eps)", "(second_corrected + eps).sqrt()"),
)
add(
    "adamw_no_root",
    "You divide by the mean of the squares itself; divide by its root.",
    ("(second_corrected.sqrt() + eps)", "(second_corrected + eps)"),
)
add(
    "adamw_betas_exchanged",
    "Your betas have changed places: the first belongs to the mean of gradients, the second to "
    "that of their squares.",
    ("beta_1, beta_2 = betas", "beta_2, beta_1 = betas"),
)
add(
    "adamw_transformer_betas",
    "Your betas are those of the Transformer's Adam by default; GPT's are 0.9 and 0.95.",
    ("betas: tuple[float, float] = (0.9, 0.95)", "betas: tuple[float, float] = (0.9, 0.98)"),
)
add(
    "adamw_gradient_not_squared",
    "The second mean is one of squared gradients; yours takes the gradients as they are.",
    (
        "second = beta_2 * second + (1 - beta_2) * gradient**2",
        "second = beta_2 * second + (1 - beta_2) * gradient.abs()",
    ),
)
add(
    "adamw_means_add_up",
    "The new gradient enters your means with its full weight; it gets 1 - beta.",
    (MEANS, "first = beta_1 * first + gradient"),
    ("+ (1 - beta_2) * gradient**2", "+ gradient**2"),
)
add(
    "adamw_changes_inputs",
    "You change the tensors that were given; return new ones.",
    (MEANS, "first.mul_(beta_1).add_((1 - beta_1) * gradient)"),
    (
        "second = beta_2 * second + (1 - beta_2) * gradient**2",
        "second.mul_(beta_2).add_((1 - beta_2) * gradient**2)",
    ),
)
add(
    "adamw_step_0_accepted",
    "A step below 1 is not refused; steps count from 1, and at 0 the correction divides by 0.",
    ("if step < 1:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "cosine_rate", "gpt-schedule")
RISE = "return peak * step / warmup"
COSINE = "return floor + (peak - floor) * (1 + math.cos(math.pi * fraction)) / 2"
FRACTION = "fraction = (step - warmup) / (total - warmup)"
add(
    "rate_no_warmup",
    "Your rate does not rise; the first `warmup` steps lead in a line up to peak.",
    ("    if step <= warmup:\n        return peak * step / warmup\n", ""),
)
add(
    "rate_whole_period",
    "Your cosine runs through a whole period and rises again; it is half of one, from pi * 0 to "
    "pi * 1.",
    ("math.cos(math.pi * fraction)", "math.cos(2 * math.pi * fraction)"),
)
add(
    "rate_quarter_period",
    "Your rate follows a quarter of a period, cos(pi / 2 f); it is (1 + cos(pi f)) / 2.",
    (COSINE, "return floor + (peak - floor) * math.cos(math.pi / 2 * fraction)"),
)
add(
    "rate_linear_decay",
    "After the warm-up your rate falls in a line; it follows half a cosine.",
    (COSINE, "return floor + (peak - floor) * (1 - fraction)"),
)
add(
    "rate_fraction_from_0",
    "Your cosine counts from the first step; it begins where the warm-up ends: "
    "(step - warmup) / (total - warmup).",
    (FRACTION, "fraction = step / total"),
)
add(
    "rate_total_after_warmup",
    "Your cosine takes total steps after the warm-up; those of the warm-up are among them.",
    (FRACTION, "fraction = (step - warmup) / total"),
)
add(
    "rate_restarts",
    "Your rate rises again after `total`; it stays at the floor.",
    ("if step >= total:", "if step == total:"),
)
add(
    "rate_counts_from_0",
    "Your steps count from 0; the first step is 1, and its rate is peak / warmup.",
    (RISE, "return peak * (step - 1) / warmup"),
    (FRACTION, "fraction = (step - 1 - warmup) / (total - warmup)"),
)
add(
    "rate_warmup_from_0",
    "Your first step has the rate 0; it is peak / warmup, since steps count from 1.",
    (RISE, "return peak * (step - 1) / warmup"),
)
add(
    "rate_floor_added",
    "You add the floor to the cosine of the whole peak, so that the rate begins above peak; scale "
    "by peak - floor.",
    (COSINE, "return floor + peak * (1 + math.cos(math.pi * fraction)) / 2"),
)
add(
    "rate_floor_cut_off",
    "You cut the rate off at the floor; the cosine itself ends there.",
    (COSINE, "return max(floor, peak * (1 + math.cos(math.pi * fraction)) / 2)"),
)
add(
    "rate_warmup_from_floor",
    "Your warm-up begins at the floor; it rises from 0, whatever the floor.",
    (RISE, "return floor + (peak - floor) * step / warmup"),
)
add(
    "rate_floor_ignored",
    "Your rate goes down to 0 whatever the floor.",
    ("        return floor\n", "        return 0.0\n"),
    (COSINE, "return peak * (1 + math.cos(math.pi * fraction)) / 2"),
)
add(
    "rate_not_halved",
    "Your cosine begins at twice the peak; (1 + cos) goes from 2 to 0, so halve it.",
    (COSINE, "return floor + (peak - floor) * (1 + math.cos(math.pi * fraction))"),
)
add(
    "rate_sine_up",
    "Your rate rises after the warm-up: 1 - cos instead of 1 + cos.",
    (COSINE, "return floor + (peak - floor) * (1 - math.cos(math.pi * fraction)) / 2"),
)
add(
    "rate_step_accepted",
    "A step below 1 is not refused; raise a ValueError.",
    ("if step < 1:", "if False:"),
)
add(
    "rate_warmup_accepted",
    "A warm-up that is negative, or as long as the whole, is not refused; raise a ValueError.",
    ("if not 0 <= warmup < total:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "train", "gpt-training")
ZERO = "        optimiser.zero_grad()\n"
CLIP = "nn.utils.clip_grad_norm_(model.parameters(), clip)"
RATE = 'group["lr"] = cosine_rate(step, peak, warmup, steps)'
GROUPS = "groups = decay_groups(model, weight_decay)"
OPTIMISER = "optimiser = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95), eps=1e-8)"
LOSS = "F.cross_entropy(logits.flatten(0, 1), targets.flatten())"
add(
    "train_gradients_accumulate",
    "Your gradients add up from step to step; clear them before each backward pass.",
    (ZERO, ""),
)
add(
    "train_no_clipping",
    "Your gradients are not clipped; scale them to the norm `clip` where they are longer.",
    (CLIP, "pass"),
)
add(
    "train_clips_values",
    "You clip every number of the gradients by itself, which changes their direction; scale all of "
    "them by the same factor.",
    (CLIP, "nn.utils.clip_grad_value_(model.parameters(), clip)"),
)
add(
    "train_clips_each",
    "You clip each parameter's gradient by itself; it is the norm of all of them together that is "
    "bounded.",
    (CLIP, "[nn.utils.clip_grad_norm_([p], clip) for p in model.parameters()]"),
)
add(
    "train_always_scaled",
    "You scale short gradients up to `clip`; only longer ones are scaled.",
    (
        CLIP,
        "norm = nn.utils.clip_grad_norm_(model.parameters(), math.inf)\n"
        "        for p in model.parameters():\n            p.grad *= clip / norm",
    ),
)
add(
    "train_constant_rate",
    "Your rate is peak at every step; set the rate of cosine_rate before each.",
    (RATE, 'group["lr"] = peak'),
)
add(
    "train_rate_from_0",
    "Your steps count from 0 where the rate is asked for; they count from 1.",
    (RATE, 'group["lr"] = cosine_rate(max(step - 1, 1), peak, warmup, steps)'),
)
add(
    "train_no_warmup",
    "Your training does not warm up; pass warmup on to cosine_rate.",
    (RATE, 'group["lr"] = cosine_rate(step, peak, 0, steps)'),
)
add(
    "train_rate_of_one_group",
    "You set the rate of the first group only; biases and norms keep peak.",
    ("for group in optimiser.param_groups:", "for group in optimiser.param_groups[:1]:"),
)
add(
    "train_all_decay",
    "Biases and norms decay too; give the groups of decay_groups to the optimiser.",
    (GROUPS, 'groups = [{"params": model.parameters(), "weight_decay": weight_decay}]'),
)
add(
    "train_no_decay",
    "Your training does not use weight_decay.",
    (GROUPS, "groups = decay_groups(model, 0.0)"),
)
add(
    "train_adam",
    "Your optimiser is Adam, whose decay goes through the gradient; use AdamW.",
    ("torch.optim.AdamW(groups", "torch.optim.Adam(groups"),
)
add(
    "train_sgd",
    "Your optimiser is plain gradient descent; use AdamW.",
    (OPTIMISER, "optimiser = torch.optim.SGD(groups, lr=peak)"),
)
add(
    "train_default_betas",
    "Your betas are AdamW's own; GPT's are 0.9 and 0.95.",
    ("betas=(0.9, 0.95), ", ""),
)
add(
    "train_new_optimiser",
    "You make a new optimiser in every step, which forgets the running means; make one before the "
    "loop.",
    (
        "        inputs, targets =",
        "        " + OPTIMISER + "\n        for group in "
        "optimiser.param_groups:\n            " + RATE + "\n        inputs, targets =",
    ),
)
add(
    "train_summed_loss",
    "Your loss is the sum over the batch; it is the mean.",
    (LOSS, 'F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")'),
)
add(
    "train_targets_are_inputs",
    "Your model learns to repeat its input; compare its logits with the targets.",
    (LOSS, "F.cross_entropy(logits.flatten(0, 1), inputs.flatten())"),
)
add(
    "train_shifted_twice",
    "Your loss shifts the targets once more; those of sample_blocks stand one token further "
    "already.",
    (
        LOSS,
        "F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten()) "
        "if length > 1 else " + LOSS,
    ),
)
add(
    "train_last_place_only",
    "Your loss looks at the last place of each row only; every place is trained.",
    (LOSS, "F.cross_entropy(logits[:, -1], targets[:, -1])"),
)
add(
    "train_eval_mode",
    "Your model is trained in evaluation mode, without dropout; call model.train().",
    ("    model.train()\n", "    model.eval()\n"),
)
add(
    "train_mode_as_it_came",
    "Your model is trained in whichever mode it came; call model.train().",
    ("    model.train()\n", ""),
)
add(
    "train_one_batch",
    "You draw one batch and train on it in every step; draw a new one each time.",
    (
        "    losses = []\n",
        "    losses = []\n    inputs, targets = sample_blocks(stream, length, batch_size)\n",
    ),
    ("        inputs, targets = sample_blocks(stream, length, batch_size)  # (B, T) each\n", ""),
)
add(
    "train_first_block",
    "You train on the beginning of the stream alone; draw blocks by sample_blocks.",
    (
        "inputs, targets = sample_blocks(stream, length, batch_size)",
        "inputs, targets = sample_blocks(stream[: 5 * length + 1], length, batch_size)",
    ),
)
add(
    "train_loss_after_step",
    "You return the losses after each update; they are those before it.",
    (
        "losses.append(loss.item())",
        "with torch.no_grad():\n"
        "            after = model(inputs)\n"
        "        losses.append(F.cross_entropy(after.flatten(0, 1), targets.flatten()).item())",
    ),
)
add(
    "train_losses_as_tensors",
    "Your losses are tensors, each of which keeps its whole graph alive; .item() makes floats.",
    ("losses.append(loss.item())", "losses.append(loss)"),
)
add(
    "train_mean_loss_only",
    "You return one number; the result is a list with the loss of each step.",
    ("return losses", "return sum(losses) / len(losses)"),
)

# --------------------------------------------------------------------------------------------
# Sampling
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "scale_temperature", "gpt-temperature")
DIVIDE = "return logits / temperature"
add(
    "temperature_multiplied",
    "You multiply by the temperature; divide, so that a high one makes all tokens more alike.",
    (DIVIDE, "return logits * temperature"),
)
add(
    "temperature_after_softmax",
    "You divide probabilities; the logits are divided, before any softmax.",
    (DIVIDE, "return torch.softmax(logits, dim=-1) / temperature"),
)
add(
    "temperature_softmax",
    "You return probabilities; the result is the scaled logits.",
    (DIVIDE, "return torch.softmax(logits / temperature, dim=-1)"),
)
add(
    "temperature_root",
    "You divide by the root of the temperature; divide by the temperature itself.",
    (DIVIDE, "return logits / math.sqrt(temperature)"),
)
add(
    "temperature_in_place",
    "You change the logits that were given; return new ones.",
    (DIVIDE, "return logits.div_(temperature)"),
)
add(
    "temperature_clipped",
    "You cut large results off; a low temperature may make the logits as large as it likes.",
    (DIVIDE, "return (logits / temperature).clamp(-10.0, 10.0)"),
)
add(
    "temperature_zero_accepted",
    "A temperature of 0 or less is not refused; raise a ValueError.",
    ("if not temperature > 0:", "if False:"),
)
add(
    "temperature_negative_accepted",
    "A negative temperature is not refused, which would turn the order of the tokens round.",
    ("if not temperature > 0:", "if temperature == 0:"),
)

add = mistakes_in(MISCONCEPTIONS, "keep_top_k", "gpt-top-k")
BEST = "best = logits.topk(min(k, logits.shape[-1]), dim=-1).values"
KEPT = "return logits.masked_fill(logits < best[..., -1:], -math.inf)"
add(
    "top_k_smallest",
    "You keep the k smallest logits; keep the largest.",
    (BEST, "best = logits.topk(min(k, logits.shape[-1]), dim=-1, largest=False).values"),
    (KEPT, "return logits.masked_fill(logits > best[..., -1:], -math.inf)"),
)
add(
    "top_k_zeros",
    "You set the others to 0, which is an ordinary logit and often not a small one; -inf makes "
    "their probability 0.",
    (KEPT, "return logits.masked_fill(logits < best[..., -1:], 0.0)"),
)
add(
    "top_k_large_negative",
    "You set the others to a large negative number; -inf is right whatever the logits are.",
    (KEPT, "return logits.masked_fill(logits < best[..., -1:], -1e9)"),
)
add(
    "top_k_one_fewer",
    "You keep one token fewer than k: the k-th largest stays too.",
    (KEPT, "return logits.masked_fill(logits <= best[..., -1:], -math.inf)"),
)
add(
    "top_k_one_more",
    "You keep k + 1 tokens.",
    ("min(k, logits.shape[-1])", "min(k + 1, logits.shape[-1])"),
)
add(
    "top_k_ties_cut",
    "Of equal logits you keep some and drop others; what equals the k-th largest stays.",
    (BEST, "best = logits.topk(min(k, logits.shape[-1]), dim=-1)"),
    (
        KEPT,
        "kept = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, best.indices, True)\n"
        "    return logits.masked_fill(~kept, -math.inf)",
    ),
)
add(
    "top_k_whole_batch",
    "Your threshold is that of all rows together; each row has its own.",
    (BEST, "best = logits.flatten().topk(min(k, logits.shape[-1])).values"),
    (KEPT, "return logits.masked_fill(logits < best[-1], -math.inf)"),
)
add(
    "top_k_first_axis",
    "You compare along the first axis; the vocabulary is the last.",
    (BEST, "best = logits.topk(min(k, logits.shape[0]), dim=0).values"),
    (KEPT, "return logits.masked_fill(logits < best[-1:], -math.inf)"),
)
add(
    "top_k_sorted_result",
    "You return the k largest logits in order; every logit stays at its place, and the shape as it "
    "is.",
    (KEPT, "return best"),
)
add(
    "top_k_too_large_fails",
    "A k larger than the vocabulary ends in an error; all tokens stay then.",
    ("min(k, logits.shape[-1])", "k"),
)
add(
    "top_k_in_place",
    "You change the logits that were given; return new ones.",
    (KEPT, "return logits.masked_fill_(logits < best[..., -1:], -math.inf)"),
)
add(
    "top_k_zero_accepted",
    "A k below 1 is not refused; raise a ValueError.",
    ("if k < 1:", "if False:"),
    ("min(k, logits.shape[-1])", "min(max(k, 1), logits.shape[-1])"),
)

add = mistakes_in(MISCONCEPTIONS, "keep_top_p", "gpt-top-p")
SORT = "logits.sort(dim=-1, descending=True, stable=True)"
SUMS = "before = probabilities.cumsum(dim=-1) - probabilities"
OUT = "kept = sorted_logits.masked_fill(before >= p, -math.inf)"
BACK = "return torch.empty_like(logits).scatter(-1, order, kept)"
add(
    "top_p_crossing_dropped",
    "You drop the token with which the sum reaches p; it belongs to the set, which otherwise stays "
    "below p.",
    (SUMS, "before = probabilities.cumsum(dim=-1)"),
    (OUT, "kept = sorted_logits.masked_fill(before > p, -math.inf)"),
)
add(
    "top_p_crossing_dropped_but_first",
    "You drop the token with which the sum reaches p unless it is the only one; it always stays.",
    (SUMS, "before = probabilities.cumsum(dim=-1)\n    before[..., 0] = 0.0"),
    (OUT, "kept = sorted_logits.masked_fill(before > p, -math.inf)"),
)
add(
    "top_p_ascending",
    "You sort from the least probable token on and keep those; begin with the most probable.",
    (SORT, "logits.sort(dim=-1, descending=False, stable=True)"),
)
add(
    "top_p_not_sorted_back",
    "You return the logits in the order of their probabilities; put each back to its token's "
    "place.",
    (BACK, "return kept"),
)
add(
    "top_p_mask_not_sorted_back",
    "Your mask belongs to the sorted logits, but you apply it to the unsorted ones; put it back "
    "into the order of the tokens.",
    (BACK, "return logits.masked_fill(before >= p, -math.inf)"),
)
add(
    "top_p_gathered_back",
    "You put the logits back by gather with the order of the sort, which sorts once more; scatter "
    "is its inverse.",
    (BACK, "return kept.gather(-1, order)"),
)
add(
    "top_p_not_sorted",
    "You add the probabilities up in the order of the vocabulary; sort them first.",
    ("sorted_logits, order = " + SORT, "sorted_logits = logits"),
    (BACK, "return kept"),
)
add(
    "top_p_single_threshold",
    "You compare single probabilities with p; it is their sum that decides.",
    (OUT, "kept = sorted_logits.masked_fill(probabilities < p, -math.inf)"),
)
add(
    "top_p_share_of_largest",
    "You keep what has at least the share p of the largest probability; the sum of the largest "
    "decides.",
    (
        OUT,
        "least = p * probabilities[..., :1]\n"
        "    kept = sorted_logits.masked_fill(probabilities < least, -math.inf)",
    ),
)
add(
    "top_p_one_more",
    "You keep one token more than needed: the set is the smallest that reaches p.",
    (
        OUT,
        "kept = sorted_logits.masked_fill(before - probabilities.roll(1, -1).masked_fill("
        "probabilities == probabilities[..., :1], 0.0) >= p, -math.inf)",
    ),
)
add(
    "top_p_without_softmax",
    "You add up logits; they are no probabilities yet.",
    ("probabilities = torch.softmax(sorted_logits, dim=-1)", "probabilities = sorted_logits"),
)
add(
    "top_p_whole_batch",
    "You sort and add up all rows together; each row has its own set.",
    (SORT, "logits.flatten().sort(descending=True, stable=True)"),
    (BACK, "return torch.empty_like(kept).scatter(-1, order, kept).reshape(logits.shape)"),
)
add(
    "top_p_first_axis",
    "You work along the first axis; the vocabulary is the last.",
    (SORT, "logits.sort(dim=0, descending=True, stable=True)"),
    ("torch.softmax(sorted_logits, dim=-1)", "torch.softmax(sorted_logits, dim=0)"),
    (SUMS, "before = probabilities.cumsum(dim=0) - probabilities"),
    (BACK, "return torch.empty_like(logits).scatter(0, order, kept)"),
)
add(
    "top_p_count_of_first_row",
    "Every row keeps as many tokens as the first needs; each has its own number.",
    (
        OUT,
        "count = int((before.flatten(0, -2)[0] < p).sum()) if logits.dim() > 1 else "
        "int((before < p).sum())\n    kept = sorted_logits.clone()\n"
        "    kept[..., count:] = -math.inf",
    ),
)
add(
    "top_p_zeros",
    "You set the others to 0, an ordinary logit; -inf makes their probability 0.",
    (OUT, "kept = sorted_logits.masked_fill(before >= p, 0.0)"),
)
add(
    "top_p_probabilities_returned",
    "You return probabilities; what stays keeps its logit.",
    (OUT, "kept = probabilities.masked_fill(before >= p, -math.inf)"),
)
add(
    "top_p_in_place",
    "You change the logits that were given; return new ones.",
    (BACK, "return logits.scatter_(-1, order, kept)"),
)
add(
    "top_p_zero_accepted",
    "A p of 0 or less, or above 1, is not refused; raise a ValueError.",
    ("if not 0 < p <= 1:", "if False:"),
)
add(
    "top_p_one_refused",
    "p = 1 is allowed and keeps all tokens.",
    ("if not 0 < p <= 1:", "if not 0 < p < 1:"),
)

add = mistakes_in(MISCONCEPTIONS, "sample_token", "gpt-sampling")
SCALE = "logits = scale_temperature(logits, temperature)"
ONLY_K = "    if top_k is not None:\n        logits = keep_top_k(logits, top_k)  # (B, V)\n"
ONLY_P = "    if top_p is not None:\n        logits = keep_top_p(logits, top_p)  # (B, V)\n"
SHARES = "probabilities = torch.softmax(logits, dim=1)"
DRAW = "return torch.multinomial(probabilities, 1, generator=generator).squeeze(1)"
GREEDY = "return logits.argmax(dim=1)"
add(
    "sample_always_greedy",
    "You always take the most probable token; only temperature 0 does, otherwise one is drawn.",
    (DRAW, "return probabilities.argmax(dim=1)"),
)
add(
    "sample_uniform",
    "You draw among the tokens that are left with equal probabilities; draw from the softmax.",
    (
        DRAW,
        "return torch.multinomial((probabilities > 0).float(), 1, generator=generator).squeeze(1)",
    ),
)
add(
    "sample_temperature_ignored",
    "Your temperature has no effect; scale the logits first.",
    ("    " + SCALE + "  # (B, V)\n", ""),
)
add(
    "sample_temperature_last",
    "You apply the temperature after top_p; it comes first, so that top_p sees the scaled "
    "probabilities.",
    ("    " + SCALE + "  # (B, V)\n", ""),
    (SHARES, "probabilities = torch.softmax(logits / temperature, dim=1)"),
)
add(
    "sample_top_p_first",
    "You apply top_p before top_k; top_p comes last, on the probabilities of what top_k has left.",
    (ONLY_K, ONLY_P),
    (ONLY_P + "    " + SHARES, ONLY_K + "    " + SHARES),
)
add(
    "sample_top_k_ignored",
    "Your top_k has no effect.",
    ("if top_k is not None:", "if False:"),
)
add(
    "sample_top_p_ignored",
    "Your top_p has no effect.",
    ("if top_p is not None:", "if False:"),
)
add(
    "sample_either_filter",
    "With top_k given, your top_p has no effect; both act, top_k first.",
    ("    if top_p is not None:", "    elif top_p is not None:"),
)
add(
    "sample_generator_ignored",
    "You draw from PyTorch's own generator although another one is given; pass it to "
    "torch.multinomial.",
    ("probabilities, 1, generator=generator", "probabilities, 1"),
)
add(
    "sample_seeded",
    "Your draws are the same at every call; set no seed.",
    ("generator=generator", "generator=generator or torch.Generator().manual_seed(0)"),
)
add(
    "sample_one_for_all",
    "All rows get the token of the first one's draw; each row draws by itself.",
    (
        DRAW,
        "return torch.multinomial(probabilities[:1], len(logits), replacement=True, "
        "generator=generator).squeeze(0)",
    ),
)
add(
    "sample_same_noise",
    "All rows share one random number, so that equal rows get equal tokens; draw for each row.",
    (
        DRAW,
        "r = torch.rand(1, 1, generator=generator)\n    return (probabilities.cumsum(1) < r)"
        ".sum(1).clamp(max=logits.shape[1] - 1)",
    ),
)
add(
    "sample_column",
    "Your result is (B, 1); it is (B,).",
    (DRAW, "return torch.multinomial(probabilities, 1, generator=generator)"),
)
add(
    "sample_greedy_last_tie",
    "At temperature 0 you take the last of equal logits; take the first.",
    (GREEDY, "return logits.shape[1] - 1 - logits.flip(1).argmax(dim=1)"),
)
add(
    "sample_zero_refused",
    "Temperature 0 is allowed here: it takes the largest logit.",
    ("    if temperature == 0:\n        " + GREEDY + "  # (B,)\n", ""),
)
add(
    "sample_negative_accepted",
    "A negative temperature is not refused; raise a ValueError.",
    ("if temperature < 0:", "if False:"),
    ("if temperature == 0:", "if temperature <= 0:"),
)

add = mistakes_in(MISCONCEPTIONS, "generate", "gpt-sampling")
LOGITS = "logits = model(ids[:, -model.context :])[:, -1]"
TOKEN = "token = sample_token(logits, temperature, top_k, top_p, generator)"
FILL = "                token = token.masked_fill(stopped, stop)  # (B,)\n"
MARK = "stopped = stopped | (token == stop)"
SEEDED = "generator = torch.Generator(device=ids.device).manual_seed(seed)"
APPEND = "ids = torch.cat([ids, token.unsqueeze(1)], dim=1)"
add(
    "generate_not_cropped",
    "Your text outgrows the model's context; show it the last model.context tokens only.",
    (LOGITS, "logits = model(ids)[:, -1]"),
)
add(
    "generate_first_tokens",
    "You show the model the first tokens of a long text; it needs the last model.context.",
    (LOGITS, "logits = model(ids[:, : model.context])[:, -1]"),
)
add(
    "generate_crops_too_much",
    "You show the model one token fewer than its context holds.",
    (LOGITS, "logits = model(ids[:, -max(model.context - 1, 1) :])[:, -1]"),
)
add(
    "generate_last_token_only",
    "You show the model the last token alone; it needs all that its context holds.",
    (LOGITS, "logits = model(ids[:, -1:])[:, -1]"),
)
add(
    "generate_first_logits",
    "You read the logits at the first place; those for the next token stand at the last.",
    (LOGITS, "logits = model(ids[:, -model.context :])[:, 0]"),
)
add(
    "generate_frozen_prompt",
    "Every new token is made from the beginning alone; show the model what it has written too.",
    ("    stopped = torch.zeros", "    prompt = ids\n    stopped = torch.zeros"),
    (LOGITS, "logits = model(prompt[:, -model.context :])[:, -1]"),
)
add(
    "generate_only_new",
    "You return the new tokens only; the result begins with ids.",
    ("    stopped = torch.zeros", "    prompt = ids.shape[1]\n    stopped = torch.zeros"),
    ("    return ids\n", "    return ids[:, prompt:]\n"),
)
add(
    "generate_prepended",
    "You put new tokens in front; they go to the end.",
    (APPEND, "ids = torch.cat([token.unsqueeze(1), ids], dim=1)"),
)
add(
    "generate_stop_goes_on",
    "A row that has written stop goes on with other tokens; fill it with stop.",
    (FILL, ""),
)
add(
    "generate_stops_at_first",
    "You end as soon as one row has written stop; the others go on until all have.",
    ("stopped.all()", "stopped.any()"),
)
add(
    "generate_never_ends_early",
    "You go on after all rows have written stop; end then.",
    ("if stop is not None and stopped.all():", "if False:"),
)
add(
    "generate_stop_left_out",
    "You leave the last stop out; a row that ends has written it.",
    (
        "            " + APPEND + "  # (B, T + 1)\n"
        "            if stop is not None and stopped.all():\n                break\n",
        "            if stop is not None and stopped.all():\n                break\n            "
        + APPEND
        + "\n",
    ),
)
add(
    "generate_stop_in_prompt",
    "A row whose beginning holds stop counts as ended; only what is written counts.",
    (
        "            if stop is not None:\n",
        "            if stop is not None:\n"
        "                stopped = stopped | (ids == stop).any(1)\n",
    ),
)
add(
    "generate_stop_zero_ignored",
    "stop = 0 counts as no stop; ask whether it is None.",
    ("            if stop is not None:\n", "            if stop:\n"),
    ("if stop is not None and stopped.all():", "if stop and stopped.all():"),
)
add(
    "generate_pads",
    "A row that has ended is filled with 0; fill it with stop.",
    ("token.masked_fill(stopped, stop)", "token.masked_fill(stopped, 0)"),
)
add(
    "generate_seed_ignored",
    "Your seed has no effect; draw from a torch.Generator that is seeded with it.",
    (SEEDED, "pass"),
)
add(
    "generate_seeds_globally",
    "You seed PyTorch's own generator, which changes what comes after; make one of your own.",
    (SEEDED, "torch.manual_seed(seed)"),
)
add(
    "generate_seed_zero_ignored",
    "seed = 0 counts as no seed; ask whether it is None.",
    ("if seed is not None:", "if seed:"),
)
add(
    "generate_seeded_each_step",
    "You seed the generator anew for each token, so that the draws repeat; do it once, before the "
    "loop.",
    (TOKEN, "if seed is not None:\n                " + SEEDED + "\n            " + TOKEN),
)
add(
    "generate_temperature_ignored",
    "Your temperature has no effect; pass it on to sample_token.",
    (TOKEN, "token = sample_token(logits, 1.0, top_k, top_p, generator)"),
)
add(
    "generate_filters_ignored",
    "top_k and top_p have no effect; pass them on to sample_token.",
    (TOKEN, "token = sample_token(logits, temperature, generator=generator)"),
)
add(
    "generate_greedy",
    "You always take the most probable token; draw by sample_token.",
    (TOKEN, "token = logits.argmax(dim=1)"),
)
add(
    "generate_eval_mode",
    "You switch the model to evaluation mode; its mode is the caller's business.",
    (
        "    with torch.no_grad():\n",
        "    if hasattr(model, 'eval'):\n        model.eval()\n    with torch.no_grad():\n",
    ),
)
add(
    "generate_bad_input_accepted",
    "A negative max_new_tokens is not refused; raise a ValueError.",
    ("if max_new_tokens < 0:", "if False:"),
)
add(
    "generate_empty_accepted",
    "A text without any token is not refused; raise a ValueError.",
    ("if ids.shape[1] < 1:", "if False:"),
)

# --------------------------------------------------------------------------------------------
# The cache
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "attend_cached", "gpt-cache")
JOIN_K = "keys = torch.cat([past[0], keys], dim=2)"
JOIN_V = "values = torch.cat([past[1], values], dim=2)"
VISIBLE = "visible = causal_mask(x.shape[1], keys.shape[2] - x.shape[1]).to(x.device)"
RESULT = "return attention.out_proj(mixed), (keys, values)"
add(
    "cache_mask_without_past",
    "Your mask takes the new places for the first ones, so that they don't see all of the past; "
    "count from P on.",
    (VISIBLE, "visible = torch.ones(x.shape[1], keys.shape[2], dtype=torch.bool).tril()"),
)
add(
    "cache_no_mask",
    "The new places see each other without a mask; among several the later are hidden.",
    (VISIBLE, "visible = torch.ones(x.shape[1], keys.shape[2], dtype=torch.bool)"),
)
add(
    "cache_mask_strict",
    "A new place doesn't see itself; its own key belongs to what it sees.",
    (
        VISIBLE,
        "visible = torch.ones(x.shape[1], keys.shape[2], dtype=torch.bool)"
        ".tril(keys.shape[2] - x.shape[1] - 1)\n    visible[:, 0] = True",
    ),
)
add(
    "cache_appended_in_front",
    "You put the new keys and values in front of the old ones; they come behind.",
    (JOIN_K, "keys = torch.cat([keys, past[0]], dim=2)"),
    (JOIN_V, "values = torch.cat([values, past[1]], dim=2)"),
)
add(
    "cache_only_new_returned",
    "Your cache holds the new places only; the next step needs the old ones too.",
    ("    if past is not None:\n", "    new = (keys, values)\n    if past is not None:\n"),
    (RESULT, "return attention.out_proj(mixed), new"),
)
add(
    "cache_past_ignored",
    "Your new places see each other alone; join the old keys and values.",
    ("if past is not None:", "if False:"),
)
add(
    "cache_values_not_joined",
    "You join the keys alone; the values belong to them, place by place.",
    (JOIN_V, "values = torch.cat([torch.zeros_like(past[1]), values], dim=2)"),
)
add(
    "cache_exchanged",
    "Your cache is (values, keys); keys come first.",
    (RESULT, "return attention.out_proj(mixed), (values, keys)"),
    (JOIN_K, "keys = torch.cat([past[1], keys], dim=2)"),
    (JOIN_V, "values = torch.cat([past[0], values], dim=2)"),
)
add(
    "cache_not_split",
    "Your cache holds keys and values before they are split into heads; it is (B, H, P + T, D/H).",
    (
        RESULT,
        "joined = tuple(part.transpose(1, 2).flatten(2) for part in (keys, values))\n"
        "    return attention.out_proj(mixed), joined",
    ),
    (
        JOIN_K,
        "past = [part.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) "
        "if part.dim() == 3 else part for part in past]\n        " + JOIN_K,
    ),
)
add(
    "cache_not_transposed",
    "Your cache is (B, places, H, D/H); the heads come before the places.",
    (RESULT, "return attention.out_proj(mixed), (keys.transpose(1, 2), values.transpose(1, 2))"),
    (JOIN_K, "past = [part.transpose(1, 2) for part in past]\n        " + JOIN_K),
)
add(
    "cache_wrong_axis",
    "You join along the axis of the features; the places are the third axis.",
    (JOIN_K, "keys = torch.cat([past[0], keys], dim=3)"),
    (JOIN_V, "values = torch.cat([past[1], values], dim=3)"),
)
add(
    "cache_in_place",
    "You write into the past that was given; other continuations still need it, so make new "
    "tensors.",
    (JOIN_K, "past[0].mul_(1.0 + 1e-3)\n        " + JOIN_K),
)
add(
    "cache_queries_stored",
    "You store queries in place of the keys; past queries are never needed again.",
    (
        RESULT,
        "return attention.out_proj(mixed), (torch.cat([keys[:, :, : -x.shape[1]], queries], "
        "dim=2), values)",
    ),
)
add(
    "cache_without_out_proj",
    "You return the joined heads; out_proj comes after them.",
    (RESULT, "return mixed, (keys, values)"),
)
add(
    "cache_scale_of_width",
    "You divide the scores by the root of the whole width; it is that of one head, as in your "
    "attention.",
    ("math.sqrt(queries.shape[3])", "math.sqrt(x.shape[2])"),
)
add(
    "cache_dropout_applied",
    "Dropout acts in your result; with a cache it is left out.",
    (
        RESULT,
        "mixed = F.dropout(attention.out_proj(mixed), 0.6, attention.training)\n"
        "    return mixed, (keys, values)",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "cached_forward", "gpt-cache")
START = "start = 0 if past is None else past[0][0].shape[2]"
PLACES = "places = torch.arange(start, end, device=ids.device)"
OLD = "before = None if past is None else past[number]"
KIND = "pre_norm = isinstance(block, PreNormBlock)"
add(
    "cached_positions_restart",
    "Your positions begin at 0 in every step; they go on after the P cached ones.",
    (PLACES, "places = torch.arange(ids.shape[1])"),
)
add(
    "cached_positions_one_late",
    "Your positions with a cache are one too high; the first new one is P.",
    (PLACES, "places = torch.arange(start, end).add(int(start > 0)).clamp(max=model.context - 1)"),
)
add(
    "cached_position_repeated",
    "All new tokens of a step get the same position; they are P, P + 1 and so on.",
    (PLACES, "places = torch.full((ids.shape[1],), start)"),
)
add(
    "cached_one_cache_for_all",
    "All blocks use the first one's cache; each has its own.",
    (OLD, "before = None if past is None else past[0]"),
)
add(
    "cached_caches_reversed",
    "Your list of caches runs from the last block to the first.",
    ("cache.append(pair)", "cache.insert(0, pair)"),
    (OLD, "before = None if past is None else past[len(past) - 1 - number]"),
)
add(
    "cached_last_cache_only",
    "You return the cache of the last block only; there is one for each.",
    ("cache.append(pair)", "cache = [pair]"),
    (OLD, "before = None if past is None else past[min(number, len(past) - 1)]"),
)
add(
    "cached_past_appended",
    "You put the new caches into the list that was given; return a new list.",
    ("    cache = []\n", "    cache = [] if past is None else past\n"),
    ("cache.append(pair)", "cache[number:number + 1] = [pair]"),
)
add(
    "cached_no_position",
    "Your tokens have no positions; add their vectors.",
    ("x = model.token(ids) + model.position(places)", "x = model.token(ids)"),
)
add(
    "cached_always_pre_norm",
    "Your cached model has its norms before each part whatever the model; with post-norm they "
    "stand after the sums.",
    (KIND, "pre_norm = True"),
)
add(
    "cached_always_post_norm",
    "Your cached model has its norms after each sum whatever the model; with pre-norm they stand "
    "before each part.",
    (KIND, "pre_norm = False"),
)
add(
    "cached_no_final_norm",
    "The last norm is missing before the logits.",
    ("model.final_norm(x) @", "x @"),
)
add(
    "cached_no_shortcut",
    "The shortcut around the attention is missing.",
    (
        "x = x + attended if pre_norm else block.norm_1(x + attended)",
        "x = attended if pre_norm else block.norm_1(attended)",
    ),
)
add(
    "cached_last_logits_only",
    "You return the logits of the last place only; each new place has its own.",
    (
        "return model.final_norm(x) @ model.token.weight.T, cache",
        "return (model.final_norm(x) @ model.token.weight.T)[:, -1:], cache",
    ),
)
add(
    "cached_features_returned",
    "You return features; the logits are those times the transposed table of tokens.",
    ("model.final_norm(x) @ model.token.weight.T", "model.final_norm(x)"),
)
add(
    "cached_dropout_applied",
    "Dropout acts in your cached model when it is in training mode; with a cache it is left out.",
    (
        "added = block.feed_forward.w_2(gelu(block.feed_forward.w_1(inner)))",
        "added = block.feed_forward(inner)",
    ),
)
add(
    "cached_context_of_new_only",
    "Cached and new tokens together are longer than the context, and you don't refuse them; count "
    "both.",
    ("if end > model.context:", "if ids.shape[1] > model.context:"),
    (PLACES, "places = torch.arange(start, end).clamp(max=model.context - 1)"),
)
add(
    "cached_long_accepted",
    "More tokens than the context holds are not refused; raise a ValueError.",
    ("if end > model.context:", "if False:"),
)
add(
    "cached_full_context_refused",
    "A full context is refused; P + T may be as large as the context.",
    ("if end > model.context:", "if end >= model.context:"),
)

# --------------------------------------------------------------------------------------------
# Fine-tuning: inputs
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "prompt_and_response", "gpt-response")
IDS = "ids = [START, *prompt, DELIMITER, *response, END]"
EMPTY = "if not prompt or not response:"
MASK = "return ids, [False] * (len(ids) - counted) + [True] * counted"
add(
    "response_mask_on_prompt",
    "Your mask marks the prompt; it is the response and END that the model learns to write.",
    (MASK, "return ids, [True] * (len(ids) - counted) + [False] * counted"),
)
add(
    "response_mask_everywhere",
    "All your targets count; the prompt is given, so only the response and END do.",
    (MASK, "return ids, [True] * len(ids)"),
)
add(
    "response_end_not_counted",
    "END does not count with you, so that the model never learns to stop; it is a target as well.",
    (MASK, "return ids, [False] * (len(ids) - counted) + [True] * len(response) + [False]"),
)
add(
    "response_mask_shifted",
    "Your mask begins at DELIMITER, as if it were over inputs: it is over targets, so the first "
    "True stands at the response's first token.",
    (MASK, "return ids, [False] * (len(ids) - counted - 1) + [True] * counted + [False]"),
)
add(
    "response_delimiter_counted",
    "DELIMITER counts with you; the model need not write it, so the mask begins behind it.",
    (MASK, "return ids, [False] * (len(ids) - counted - 1) + [True] * (counted + 1)"),
)
add(
    "response_first_token_left_out",
    "The response's first token does not count with you; it is what follows DELIMITER, so the "
    "model must learn to write it.",
    (MASK, "return ids, [False] * (len(ids) - counted + 1) + [True] * (counted - 1)"),
)
add(
    "response_without_start",
    "Your ids do not begin with START.",
    (IDS, "ids = [*prompt, DELIMITER, *response, END]"),
)
add(
    "response_without_delimiter",
    "Nothing stands between prompt and response; put DELIMITER there.",
    (IDS, "ids = [START, *prompt, *response, END]"),
)
add(
    "response_without_end",
    "Your ids end with the response; END closes it.",
    (IDS, "ids = [START, *prompt, DELIMITER, *response]"),
    ("counted = len(response) + 1", "counted = len(response)"),
)
add(
    "response_mask_by_token",
    "Your mask asks whether a token stands in the response; a token of the prompt may stand there "
    "too, so count by places.",
    (MASK, "return ids, [token in (*response, END) for token in ids]"),
)
add(
    "response_empty_accepted",
    "An empty prompt or response is not refused; raise a ValueError.",
    (EMPTY, "if False:"),
)
add(
    "response_one_empty_accepted",
    "You refuse only if both parts are empty; one empty part is enough for a ValueError.",
    (EMPTY, "if not prompt and not response:"),
)

add = mistakes_in(MISCONCEPTIONS, "entailment_input", "gpt-inputs")
ROW = "return [START, *premise, DELIMITER, *hypothesis, EXTRACT]"
add(
    "entailment_without_start",
    "Your input does not begin with START.",
    (ROW, "return [*premise, DELIMITER, *hypothesis, EXTRACT]"),
)
add(
    "entailment_without_extract",
    "Your input has no EXTRACT at its end, so the classifier finds no place to read.",
    (ROW, "return [START, *premise, DELIMITER, *hypothesis]"),
)
add(
    "entailment_without_delimiter",
    "Nothing stands between the two texts; put DELIMITER there.",
    (ROW, "return [START, *premise, *hypothesis, EXTRACT]"),
)
add(
    "entailment_end_for_extract",
    "Your input ends with END; what the classifier reads is EXTRACT.",
    (ROW, "return [START, *premise, DELIMITER, *hypothesis, END]"),
)
add(
    "entailment_swapped",
    "Your hypothesis stands first; the premise does.",
    (ROW, "return [START, *hypothesis, DELIMITER, *premise, EXTRACT]"),
)
add(
    "entailment_extract_first",
    "Your EXTRACT stands in front, where a causal model has seen nothing yet; put it at the end.",
    (ROW, "return [EXTRACT, *premise, DELIMITER, *hypothesis, END]"),
)
add(
    "entailment_two_delimiters",
    "You put a DELIMITER behind the second text too; one stands between the texts, and EXTRACT "
    "behind them.",
    (ROW, "return [START, *premise, DELIMITER, *hypothesis, DELIMITER, EXTRACT]"),
)
add(
    "entailment_empty_accepted",
    "An empty text is not refused; raise a ValueError.",
    ("if not premise or not hypothesis:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "similarity_inputs", "gpt-inputs")
BOTH = "return [entailment_input(first, second), entailment_input(second, first)]"
add(
    "similarity_one_order",
    "You make one input only; there are two, one for each order.",
    (BOTH, "return [entailment_input(first, second)]"),
)
add(
    "similarity_same_order",
    "Both your inputs have the first text in front; the other order is missing.",
    (BOTH, "return [entailment_input(first, second), entailment_input(first, second)]"),
)
add(
    "similarity_orders_swapped",
    "Your inputs stand the other way round: the one with the first text in front comes first.",
    (BOTH, "return [entailment_input(second, first), entailment_input(first, second)]"),
)
add(
    "similarity_joined",
    "You join both orders to one long input; they are two inputs, which the network sees apart.",
    (BOTH, "return entailment_input(first, second) + entailment_input(second, first)"),
)
add(
    "similarity_reversed_tokens",
    "You turn the whole row around, token by token; only the two texts trade places.",
    (BOTH, "return [entailment_input(first, second), entailment_input(first, second)[::-1]]"),
)
add(
    "similarity_empty_accepted",
    "An empty text is not refused; raise a ValueError.",
    (
        BOTH,
        "return [[START, *a, DELIMITER, *b, EXTRACT] for a, b in [(first, second), (second, "
        "first)]]",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "choice_inputs", "gpt-inputs")
EACH = "return [entailment_input(context, answer) for answer in answers]"
add(
    "choice_one_input",
    "You put all answers into one input; every answer gets an input of its own.",
    (EACH, "return [entailment_input(context, [token for each in answers for token in each])]"),
)
add(
    "choice_without_context",
    "Your inputs hold the answers alone; the context stands in front of each.",
    (EACH, "return [[START, *answer, EXTRACT] for answer in answers]"),
)
add(
    "choice_without_delimiter",
    "Nothing stands between context and answer; put DELIMITER there.",
    (EACH, "return [[START, *context, *answer, EXTRACT] for answer in answers]"),
)
add(
    "choice_answer_first",
    "Your answers stand in front of the context; the context comes first, so that the answer is "
    "read with it in view.",
    (EACH, "return [entailment_input(answer, context) for answer in answers]"),
)
add(
    "choice_padded",
    "You pad the inputs to one length; each stays as long as it is, padding comes with the batch.",
    (
        EACH,
        "rows = [entailment_input(context, answer) for answer in answers]\n"
        "    return [row + [PAD] * (max(map(len, rows)) - len(row)) for row in rows]",
    ),
)
add(
    "choice_no_answers_accepted",
    "No answers at all are not refused; raise a ValueError.",
    ("if not answers:", "if False:"),
)
add(
    "choice_empty_accepted",
    "An empty context or answer is not refused; raise a ValueError.",
    (EACH, "return [[START, *context, DELIMITER, *answer, EXTRACT] for answer in answers]"),
)
add(
    "choice_empty_skipped",
    "You leave an empty answer out without a word; refuse it with a ValueError.",
    (EACH, "return [entailment_input(context, answer) for answer in answers if answer]"),
)

# --------------------------------------------------------------------------------------------
# Fine-tuning: the classifier and its loss
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "GPTClassifier", "gpt-classifier")
READ = "read = self.dropout(hidden[found])"
CHECKED = "if (found.sum(dim=1) != 1).any():"
LOGITS = "logits = hidden @ self.gpt.token.weight.T"
RESULT = "return self.classifier(read), logits"
RATE = "self.dropout = nn.Dropout(dropout)"
HIDDEN = "hidden = self.gpt.features(ids)"
add(
    "classifier_reads_first",
    "You read the first token, which has seen nothing but itself in a causal model; read EXTRACT.",
    (READ, "read = self.dropout(hidden[:, 0])"),
)
add(
    "classifier_reads_last_column",
    "You read the last column, which is padding in shorter rows; read each row at its EXTRACT.",
    (READ, "read = self.dropout(hidden[:, -1])"),
)
add(
    "classifier_reads_mean",
    "You read the mean over all places; read the features at EXTRACT alone.",
    (READ, "read = self.dropout(hidden.mean(dim=1))"),
)
add(
    "classifier_reads_before_extract",
    "You read one place too early; the features at EXTRACT itself have seen the whole input.",
    (READ, "read = self.dropout(hidden[:, :-1][found[:, 1:]])"),
)
add(
    "classifier_reads_by_first_row",
    "You look for EXTRACT in the first row and read all rows there; each row has its own place.",
    (READ, "read = self.dropout(hidden[:, int(found[0].int().argmax())])"),
)
add(
    "classifier_reads_embedding",
    "You read the table of tokens at EXTRACT, which is the same for every input; read the features "
    "that the blocks made.",
    (READ, "read = self.dropout(self.gpt.token(ids)[found])"),
)
add(
    "classifier_without_dropout",
    "Nothing is dropped in training mode; apply dropout to what the classifier reads.",
    (READ, "read = hidden[found]"),
)
add(
    "classifier_dropout_always",
    "You drop in evaluation mode too; use nn.Dropout, or pass self.training on.",
    (READ, "read = F.dropout(hidden[found], self.dropout.p)"),
)
add(
    "classifier_drops_scores",
    "You drop scores; dropout acts on the vector that the classifier reads.",
    (READ, "read = hidden[found]"),
    (RESULT, "return self.dropout(self.classifier(read)), logits"),
)
add(
    "classifier_drops_logits",
    "The logits of the language model are dropped too; dropout acts on what the classifier reads.",
    (HIDDEN, "hidden = self.dropout(self.gpt.features(ids))"),
    (READ, "read = hidden[found]"),
)
add(
    "classifier_dropout_fixed",
    "Your dropout is 0.1 whatever is asked for; pass the argument on.",
    (RATE, "self.dropout = nn.Dropout(0.1)"),
)
add(
    "classifier_two_passes",
    "The network runs twice, once for each head: twice the time, and in training mode two "
    "different dropouts. Make the logits of the same features.",
    (LOGITS, "logits = self.gpt(ids)"),
)
add(
    "classifier_frozen",
    "No gradient of the scores reaches the GPT; fine-tuning trains all of it.",
    (READ, "read = self.dropout(hidden[found].detach())"),
)
add(
    "classifier_copies_gpt",
    "You keep a copy of the GPT, so that the model that was given stays untrained; keep it itself.",
    (
        "self.gpt = gpt\n",
        "import copy\n\n        self.gpt = copy.deepcopy(gpt)\n",
    ),
)
add(
    "classifier_features_for_logits",
    "Your second result holds features (B, T, D); multiply them by the table of tokens to get "
    "logits (B, T, V).",
    (LOGITS, "logits = hidden"),
)
add(
    "classifier_logits_at_extract",
    "You return the logits of one place for each row; the loss of the language model needs those "
    "of all places.",
    (LOGITS, "logits = hidden[found] @ self.gpt.token.weight.T"),
)
add(
    "classifier_scores_only",
    "You return the scores alone; the logits of the language model are the second result.",
    (RESULT, "return self.classifier(read)"),
)
add(
    "classifier_results_swapped",
    "Your results stand the wrong way round: the scores come first, then the logits.",
    (RESULT, "return logits, self.classifier(read)"),
)
add(
    "classifier_softmax",
    "Your scores are probabilities; return them as they are, since the cross-entropy takes the "
    "softmax itself.",
    (RESULT, "return self.classifier(read).softmax(dim=-1), logits"),
)
add(
    "classifier_tanh",
    "You apply a tanh before the classifier, as BERT's pooler does; GPT reads the features as they "
    "are.",
    (READ, "read = self.dropout(torch.tanh(hidden[found]))"),
)
add(
    "classifier_extract_unchecked",
    "Rows without EXTRACT, or with two, are not refused; raise a ValueError unless each row has "
    "exactly one.",
    (CHECKED, "if False:"),
    (READ, "read = self.dropout(hidden[torch.arange(len(ids)), found.int().argmax(dim=1)])"),
)
add(
    "classifier_only_missing_refused",
    "A row with two EXTRACT is not refused; raise a ValueError unless each row has exactly one.",
    (CHECKED, "if not found.any(dim=1).all():"),
    (READ, "read = self.dropout(hidden[torch.arange(len(ids)), found.int().argmax(dim=1)])"),
)
add(
    "classifier_extract_counted_in_all",
    "You count EXTRACT over the whole batch, so that a row with two makes up for one without; "
    "count row by row.",
    (CHECKED, "if found.sum() != len(ids):"),
)

add = mistakes_in(MISCONCEPTIONS, "joint_loss", "gpt-joint")
TOTAL = "return task + weight * text, task, text"
TASK_LOSS = "task = F.cross_entropy(scores, labels)"
TEXT_LOSS = "text = language_model_loss(logits, ids, ids != PAD)"
add(
    "joint_without_weight",
    "L3 adds L1 as it is; multiply it by weight.",
    (TOTAL, "return task + text, task, text"),
)
add(
    "joint_weight_on_task",
    "You weight the loss of the labels; the weight belongs to L1, the language model's.",
    (TOTAL, "return weight * task + text, task, text"),
)
add(
    "joint_convex",
    "You mix the two as (1 - weight) L2 + weight L1; L3 = L2 + weight L1.",
    (TOTAL, "return (1 - weight) * task + weight * text, task, text"),
)
add(
    "joint_subtracted",
    "You subtract the language model's loss; both are losses to be made small, so add them.",
    (TOTAL, "return task - weight * text, task, text"),
)
add(
    "joint_order",
    "Your results stand in the order L1, L2, L3; it is L3, L2, L1.",
    (TOTAL, "return text, task, task + weight * text"),
)
add(
    "joint_parts_swapped",
    "Your second and third results have traded places: L3, then L2 (labels), then L1 (language "
    "model).",
    (TOTAL, "return task + weight * text, text, task"),
)
add(
    "joint_total_only",
    "You return L3 alone; L2 and L1 come with it.",
    (TOTAL, "return task + weight * text"),
)
add(
    "joint_padding_counted",
    "Targets that are PAD count in your L1; leave them out by a mask.",
    (TEXT_LOSS, "text = language_model_loss(logits, ids)"),
    read="gpt-loss",
)
add(
    "joint_padding_in_the_mean",
    "You divide by all places; the mean goes over the targets that are not PAD only.",
    (
        TEXT_LOSS,
        "targets = ids[:, 1:]\n"
        "    text = F.cross_entropy(logits[:, :-1].mT, targets, reduction='none')\n"
        "    text = (text * (targets != PAD)).mean()",
    ),
    read="gpt-loss",
)
add(
    "joint_mean_by_rows",
    "You take the mean of each row and then of the rows, so that a token of a short row counts "
    "more; every target of the batch counts the same.",
    (
        TEXT_LOSS,
        "real = (ids != PAD)[:, 1:]\n"
        "    text = F.cross_entropy(logits[:, :-1].mT, ids[:, 1:], reduction='none') * real\n"
        "    text = (text.sum(dim=1) / real.sum(dim=1)).mean()",
    ),
)
add(
    "joint_text_summed",
    "Your L1 is the sum over the targets; take their mean.",
    (
        TEXT_LOSS,
        "text = language_model_loss(logits, ids, ids != PAD) * (ids[:, 1:] != PAD).sum()",
    ),
)
add(
    "joint_task_summed",
    "Your L2 is the sum over the batch; take the mean.",
    (TASK_LOSS, "task = F.cross_entropy(scores, labels, reduction='sum')"),
)
add(
    "joint_without_shift",
    "You compare the logits at a place with the token at the same place; they are for the next "
    "one, so shift by one.",
    (
        TEXT_LOSS,
        "text = F.cross_entropy(logits.mT, ids, ignore_index=PAD)",
    ),
    read="gpt-loss",
)
add(
    "joint_extract_left_out",
    "EXTRACT does not count as a target with you; only PAD is left out.",
    (
        TEXT_LOSS,
        "text = language_model_loss(logits, ids, ids >= SPECIAL)",
    ),
)
add(
    "joint_negative_accepted",
    "A negative weight is not refused; raise a ValueError.",
    ("if weight < 0:", "if False:"),
)
add(
    "joint_zero_refused",
    "You refuse a weight of 0, which is allowed: it is fine-tuning without the auxiliary loss.",
    ("if weight < 0:", "if weight <= 0:"),
)
add(
    "joint_default_one",
    "Without a weight given you take 1; the default is 0.5.",
    ("weight: float = 0.5", "weight: float = 1.0"),
)
add(
    "joint_text_detached",
    "No gradient of L1 reaches the logits, so the auxiliary loss teaches nothing.",
    (TEXT_LOSS, "text = language_model_loss(logits.detach(), ids, ids != PAD)"),
)

# --------------------------------------------------------------------------------------------
# Prompting
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "build_prompt", "gpt-prompting")
LINES = "lines = [task] if task else []"
SHOTS = 'lines += [f"{question}{arrow} {answer}" for question, answer in examples]'
JOINED = 'return "\\n".join([*lines, f"{query}{arrow}"])'
add(
    "prompt_trailing_space",
    "A space stands behind your last arrow; the model writes it itself, as part of its next token.",
    (JOINED, 'return "\\n".join([*lines, f"{query}{arrow} "])'),
)
add(
    "prompt_trailing_newline",
    "A newline stands behind your last arrow, so that the model goes on in a line of its own.",
    (JOINED, 'return "\\n".join([*lines, f"{query}{arrow}\\n"])'),
)
add(
    "prompt_without_last_arrow",
    "Your last line is the query alone; its arrow asks for the answer.",
    (JOINED, 'return "\\n".join([*lines, query])'),
)
add(
    "prompt_query_first",
    "Your query stands before the examples; it comes last, where the model goes on.",
    (SHOTS, 'shots = [f"{question}{arrow} {answer}" for question, answer in examples]'),
    (JOINED, 'return "\\n".join([*lines, f"{query}{arrow}", *shots])'),
)
add(
    "prompt_empty_task_kept",
    "An empty description leaves an empty line at the beginning; leave it out.",
    (LINES, "lines = [task]"),
)
add(
    "prompt_without_task",
    "The description of the task is missing; it is the first line.",
    (LINES, "lines = []"),
)
add(
    "prompt_one_line",
    "You join the parts with spaces; each stands in a line of its own.",
    (JOINED, 'return " ".join([*lines, f"{query}{arrow}"])'),
)
add(
    "prompt_no_space_after_arrow",
    "No space stands between arrow and answer in your examples.",
    (SHOTS, 'lines += [f"{question}{arrow}{answer}" for question, answer in examples]'),
)
add(
    "prompt_examples_reversed",
    "Your examples stand in the reverse order; keep the order that is given.",
    ("for question, answer in examples]", "for question, answer in examples[::-1]]"),
)
add(
    "prompt_pairs_swapped",
    "In your examples the answer stands before the arrow; the question does.",
    ("for question, answer in examples]", "for answer, question in examples]"),
)
add(
    "prompt_arrow_fixed",
    "Your arrow is => whatever is asked for; use the argument.",
    (SHOTS, 'arrow = " =>"\n    ' + SHOTS),
)
add(
    "prompt_first_example_only",
    "You build the examples but use the first one only; all of them belong into the prompt.",
    ("for question, answer in examples]", "for question, answer in examples[:1]]"),
)

add = mistakes_in(MISCONCEPTIONS, "answer_scores", "gpt-prompting")
NOTHING = "if not prompt or not answers or not all(answers):"
LONG = "if longest > model.context:"
INSIDE = "mask = (places >= 0) & (places < counts.unsqueeze(1))"
SCORED = "scores = log_likelihood(model(ids), ids, mask)"
GIVEN = "return scores / counts if per_token else scores"
GRAD = "with torch.no_grad():"
add(
    "answers_without_shift",
    "You read a token's probability at its own place; the logits there are for the next token, so "
    "read one place earlier.",
    (
        SCORED,
        "log_probs = torch.log_softmax(model(ids), dim=2)\n"
        "        terms = log_probs.gather(2, ids.unsqueeze(2)).squeeze(2)\n"
        "        scores = (terms * mask).sum(dim=1)",
    ),
    read="gpt-loss",
)
add(
    "answers_prompt_counted",
    "The tokens of the prompt count too; it is given, so that only the answer is scored.",
    (INSIDE, "mask = places < counts.unsqueeze(1)"),
)
add(
    "answers_padding_counted",
    "Padding behind a shorter answer counts too; leave it out, or score each answer by itself.",
    (INSIDE, "mask = (places >= 0).expand(len(answers), -1)"),
)
add(
    "answers_first_token_left_out",
    "The first token of an answer does not count with you; the last token of the prompt predicts "
    "it.",
    (INSIDE, "mask = (places >= 1) & (places < counts.unsqueeze(1))"),
)
add(
    "answers_first_token_only",
    "You score the first token of each answer alone; all of its tokens count.",
    (INSIDE, "mask = (places == 0).expand(len(answers), -1)"),
)
add(
    "answers_sum_for_mean",
    "You return the sum though the mean over the tokens is asked for; longer answers then lose.",
    (GIVEN, "return scores"),
)
add(
    "answers_mean_for_sum",
    "You return the mean whatever per_token says; with per_token=False it is the sum.",
    (GIVEN, "return scores / counts"),
)
add(
    "answers_per_token_turned",
    "You have per_token the wrong way round: True asks for the mean, False for the sum.",
    (GIVEN, "return scores if per_token else scores / counts"),
)
add(
    "answers_mean_over_longest",
    "You divide by the length of the longest answer; divide each sum by its own answer's length.",
    (GIVEN, "return scores / max(lengths) if per_token else scores"),
)
add(
    "answers_softmax_over_answers",
    "You apply a softmax over the answers; return each one's log-probability as it is.",
    (GIVEN, "return torch.log_softmax(scores / counts if per_token else scores, dim=0)"),
)
add(
    "answers_probabilities",
    "You return probabilities; return their logarithms.",
    (GIVEN, "return (scores / counts if per_token else scores).exp()"),
)
add(
    "answers_negative",
    "Your scores have the other sign: they are log-probabilities, which are negative.",
    (GIVEN, "return -scores / counts if per_token else -scores"),
)
add(
    "answers_of_logits",
    "You add up logits as they are; apply log_softmax over the vocabulary first.",
    (
        SCORED,
        "terms = model(ids)[:, :-1].gather(2, ids[:, 1:].unsqueeze(2)).squeeze(2)\n"
        "        scores = (terms * mask[:, 1:]).sum(dim=1)",
    ),
)
add(
    "answers_without_prompt",
    "The model does not see the prompt; an answer is scored as its continuation.",
    (
        SCORED,
        "scores = log_likelihood(model(ids[:, len(prompt) - 1 :]), ids[:, len(prompt) - 1 :], "
        "mask[:, len(prompt) - 1 :])",
    ),
)
add(
    "answers_sorted",
    "You return the scores in order of size; they belong to the answers in the order given.",
    (GIVEN, "return (scores / counts if per_token else scores).sort(descending=True).values"),
)
add(
    "answers_with_gradient",
    "The scores carry a graph that nobody needs; compute them under torch.no_grad().",
    (GRAD, "if True:"),
)
add(
    "answers_empty_accepted",
    "An empty prompt or answer is not refused; raise a ValueError.",
    (NOTHING, "if not answers:"),
)
add(
    "answers_too_long_accepted",
    "A prompt and an answer that are longer than the context are not refused; raise a ValueError.",
    (LONG, "if False:"),
    (
        SCORED,
        "ids, mask = ids[:, : model.context], mask[:, : model.context]\n"
        "        scores = log_likelihood(model(ids), ids, mask)",
    ),
)
add(
    "answers_full_context_refused",
    "You refuse what just fills the context; only what is longer is refused.",
    (LONG, "if longest >= model.context:"),
)
