"""Known mistakes of `attention-self_attention`: scaled dot products, masks, self-attention.

Scaling by d_k or not at all, zeros written over the future, padding hidden from queries.
"""

from __future__ import annotations

from collections.abc import Callable

from autograder.misconceptions.attention.common import ATTEND, SCORES
from autograder.units.variants import Misconception, mistakes_in

MISCONCEPTIONS: list[Misconception] = []

# --------------------------------------------------------------------------------------------
# Scaled dot-product attention
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "scaled_dot_product_attention", "att-scaled")
SCALED = "query @ key.transpose(-2, -1) / math.sqrt(d_k)"
UNSCALED = "query @ key.transpose(-2, -1)"
WEIGHTS = "masked_softmax(scores, mask)"
DROPPED = "attention_dropout(attn_weights, dropout, training)"
ATTENTION_RETURN = "return dropped @ value, attn_weights"
add(
    "attention_scaled_by_d_k",
    "Your weights match dividing the scores by d_k instead of √d_k (dividing by √d_k twice is the "
    "same); divide once by math.sqrt(d_k).",
    (SCALED, f"{UNSCALED} / d_k"),
    read="att-scaling",
)
add(
    "attention_not_scaled",
    "Your weights match scores that are not scaled; divide them by √d_k before the softmax.",
    (SCALED, UNSCALED),
    read="att-scaling",
)
add(
    "attention_scale_inverted",
    "Your weights match multiplying the scores by √d_k; divide by it.",
    (SCALED, f"{UNSCALED} * math.sqrt(d_k)"),
    read="att-scaling",
)
add(
    "attention_scaled_by_length",
    "Your weights match dividing by √Tk, the number of keys; divide by √d_k, the width of "
    "queries and keys (their last size).",
    (SCALED, f"{UNSCALED} / math.sqrt(key.shape[-2])"),
    read="att-scaling",
)
add(
    "attention_scaled_by_queries",
    "Your weights match dividing by √Tq, the number of queries; divide by √d_k, the width of "
    "queries and keys (their last size).",
    (SCALED, f"{UNSCALED} / math.sqrt(query.shape[-2])"),
    read="att-scaling",
)
add(
    "attention_scaled_by_value_width",
    "Your weights match dividing by the root of the values' width; it is the width of queries and "
    "keys that makes scores large.",
    (SCALED, f"{UNSCALED} / math.sqrt(value.shape[-1])"),
    read="att-scaling",
)
add(
    "attention_scaled_after_softmax",
    "Your weights match dividing by √d_k after the softmax; the scores are scaled, before it, so "
    "that the weights still sum to 1.",
    (SCALED, UNSCALED),
    (WEIGHTS, f"{WEIGHTS} / math.sqrt(d_k)"),
    read="att-scaling",
)
add(
    "attention_softmax_over_queries",
    "Your weights sum to 1 over the queries; the softmax runs over the keys, the last dimension.",
    (WEIGHTS, "masked_softmax(scores, mask, dim=-2)"),
    read="att-softmax",
)
add(
    "attention_softmax_over_everything",
    "Your weights sum to 1 over the whole map; each row, one for each query, sums to 1.",
    (
        WEIGHTS,
        "masked_softmax(\n"
        "        scores.flatten(-2),\n"
        "        None if mask is None else mask.broadcast_to(scores.shape).flatten(-2),\n"
        "    ).view(scores.shape)",
    ),
    read="att-softmax",
)
add(
    "attention_without_exp",
    "Your weights match dividing each score by the sum of the scores; a softmax takes "
    "exponentials first.",
    (
        WEIGHTS,
        "scores if mask is None else scores.masked_fill(~mask, 0.0)\n"
        "    attn_weights = attn_weights / attn_weights.sum(dim=-1, keepdim=True)",
    ),
    read="att-softmax",
)
add(
    "attention_raw_scores",
    "Your output matches summing the values with the scores themselves; the weights are the "
    "softmax of the scores.",
    (WEIGHTS, "scores if mask is None else scores.masked_fill(~mask, 0.0)"),
    read="att-softmax",
)
add(
    "attention_hard",
    "Your weights match giving everything to the best key; attention is soft: take a softmax.",
    (
        WEIGHTS,
        "scores if mask is None else scores.masked_fill(~mask, float('-inf'))\n"
        "    attn_weights = torch.eye(key.shape[-2], "
        "dtype=scores.dtype)[attn_weights.argmax(dim=-1)]",
    ),
    read="att-soft-lookup",
)
add(
    "attention_mask_ignored",
    "Your weights match ignoring the mask; where it is False the weight must be 0.",
    (WEIGHTS, "masked_softmax(scores)"),
    read="att-masks",
)
add(
    "attention_mask_inverted",
    "Your weights match a mask read the wrong way round; True means may attend.",
    (WEIGHTS, "masked_softmax(scores, None if mask is None else ~mask)"),
    read="att-masks",
)
add(
    "attention_mask_zero_before",
    "Your weights match writing 0 over masked scores before the softmax; exp(0) is 1, so the "
    "masked positions leak. Write -inf.",
    (WEIGHTS, "masked_softmax(scores if mask is None else scores.masked_fill(~mask, 0.0))"),
    read="att-masks",
)
add(
    "attention_mask_zero_after",
    "Your weights match writing 0 over masked weights after the softmax, so that rows sum to less "
    "than 1; mask the scores with -inf before it.",
    (
        WEIGHTS,
        "masked_softmax(scores)\n"
        "    if mask is not None:\n"
        "        attn_weights = attn_weights.masked_fill(~mask, 0.0)",
    ),
    read="att-masks",
)
add(
    "attention_mask_renormalised",
    "You take the softmax over all keys and rescale the rows after blanking out masked ones; a "
    "large masked score then leaves nothing to rescale. Mask the scores before the softmax.",
    (
        WEIGHTS,
        "masked_softmax(scores)\n"
        "    if mask is not None:\n"
        "        if mask.dtype != torch.bool or mask.dim() > scores.dim():\n"
        "            raise ValueError\n"
        "        if any(a not in (1, b) for a, b in zip(mask.shape[::-1], scores.shape[::-1])):\n"
        "            raise ValueError\n"
        "        attn_weights = attn_weights * mask\n"
        "        total = attn_weights.sum(dim=-1, keepdim=True)\n"
        "        attn_weights = attn_weights / total.clamp(min=1e-9)",
    ),
    read="att-masks",
)
add(
    "attention_mask_finite_fill",
    "A fully masked row attends to everything alike: a large negative number cancels when a whole "
    "row has it. Its weights and output should be 0.",
    (WEIGHTS, "masked_softmax(scores if mask is None else scores.masked_fill(~mask, -1e9))"),
    read="att-masks",
)
add(
    "attention_mask_small_fill",
    "Masked positions keep a little weight: the number you fill with is not negative enough. Use "
    "-inf.",
    (WEIGHTS, "masked_softmax(scores if mask is None else scores.masked_fill(~mask, -10.0))"),
    read="att-masks",
)
add(
    "attention_mask_nan",
    "A fully masked row becomes NaN: a softmax over nothing but -inf is 0/0. Its weights and "
    "output should be 0; masked_softmax does that.",
    (
        WEIGHTS,
        "scores if mask is None else scores.masked_fill(~mask, float('-inf'))\n"
        "    attn_weights = attn_weights.softmax(dim=-1)",
    ),
    read="att-masks",
)
add(
    "attention_mask_added",
    "Your weights match adding the mask to the scores as numbers; True would then mean +1 and "
    "False nothing at all.",
    (WEIGHTS, "masked_softmax(scores if mask is None else scores + mask.to(scores.dtype))"),
    read="att-masks",
)
add(
    "attention_mask_on_values",
    "You blank out masked values instead of masking scores: the weights don't know about it. Pass "
    "the mask to the softmax.",
    (WEIGHTS, "masked_softmax(scores)"),
    (
        ATTENTION_RETURN,
        "return (dropped if mask is None else dropped * mask) @ value, attn_weights",
    ),
    read="att-masks",
)
add(
    "attention_own_value_only",
    "Your output matches A_ii · v_i, each position's own value only; sum over all positions j: "
    "Σ_j A_ij v_j.",
    (
        ATTENTION_RETURN,
        "return dropped.diagonal(dim1=-2, dim2=-1).unsqueeze(-1) * value, attn_weights",
    ),
    read="att-context",
)
add(
    "attention_key_value_swapped",
    "Your result matches keys and values in each other's place: keys decide where to look, "
    "values what is returned.",
    ("d_k = query.shape[-1]", "key, value = value, key\n    d_k = query.shape[-1]"),
    read="att-soft-lookup",
)
add(
    "attention_query_key_swapped",
    "Your weights match key · queryᵀ, with keys in rows; each row belongs to a query: "
    "query @ key.transpose(-2, -1).",
    (SCALED, "key @ query.transpose(-2, -1) / math.sqrt(d_k)"),
    read="att-soft-lookup",
)
add(
    "attention_value_is_key",
    "Your output is a weighted sum of the keys; sum the values.",
    (ATTENTION_RETURN, "return dropped @ key, attn_weights"),
    read="att-soft-lookup",
)
add(
    "attention_transpose_1_2",
    "You transpose dimensions 1 and 2, which is right for three dimensions only; the last two are "
    "transpose(-2, -1).",
    (SCALED, "query @ key.transpose(1, 2) / math.sqrt(d_k)"),
)
add(
    "attention_key_reshaped",
    "You reshape the keys to (D, Tk), which keeps the order of their numbers and tears each key "
    "apart; exchange the last two dimensions: key.transpose(-2, -1).",
    (SCALED, "query @ key.reshape(*key.shape[:-2], d_k, key.shape[-2]) / math.sqrt(d_k)"),
)
add(
    "attention_mask_for_each_example",
    "You take a mask with three dimensions for (B, Tq, Tk) where the scores have four; missing "
    "dimensions are those in front, so that it is (H, Tq, Tk), the same for every example.",
    (
        SCALED,
        f"{SCALED}\n    if mask is not None and mask.dim() == 3 and scores.dim() == 4:\n"
        "        mask = mask.unsqueeze(1) if len(mask) == len(query) else mask",
    ),
    read="att-masks",
)
add(
    "attention_scaled_by_whole_root",
    "Your weights match dividing by √d_k cut to a whole number; math.isqrt and int() do that. Use "
    "math.sqrt(d_k).",
    (SCALED, f"{UNSCALED} / math.isqrt(d_k)"),
    read="att-scaling",
)
add(
    "attention_output_over_queries",
    "Your output sums over the queries, as with transposed weights; row i of the output is "
    "Σ_j A_ij v_j, a sum over the keys.",
    (ATTENTION_RETURN, "return dropped.transpose(-2, -1) @ value, attn_weights"),
    read="att-context",
)
add(
    "attention_returns_scores",
    "The second result holds the scores; return the weights, after the softmax.",
    (ATTENTION_RETURN, "return dropped @ value, scores"),
)
add(
    "attention_results_swapped",
    "Your results stand in the order (attn_weights, output); return (output, attn_weights).",
    (ATTENTION_RETURN, "return attn_weights, dropped @ value"),
)
add(
    "attention_returns_output_only",
    "You return the output only; return the pair (output, attn_weights).",
    (ATTENTION_RETURN, "return dropped @ value"),
)
add(
    "attention_weights_after_dropout",
    "The weights you return have been through dropout, so their rows don't sum to 1; return those "
    "before it and use the others for the output.",
    (ATTENTION_RETURN, "return dropped @ value, dropped"),
    read="att-dropout",
)
add(
    "attention_dropout_before_softmax",
    "Dropout acts on the scores; a score of 0 still gets weight. Drop weights, after the softmax.",
    (SCALED, f"attention_dropout({SCALED}, dropout, training)"),
    (DROPPED, "attn_weights"),
    read="att-dropout",
)
add(
    "attention_dropout_on_output",
    "Dropout acts on the output; drop weights, before they meet the values.",
    (DROPPED, "attn_weights"),
    (
        ATTENTION_RETURN,
        "return attention_dropout(dropped @ value, dropout, training), attn_weights",
    ),
    read="att-dropout",
)
add(
    "attention_dropout_without_rescale",
    "Dropped weights are not made up for; divide the survivors by 1 - dropout, as "
    "attention_dropout does.",
    (DROPPED, f"attn_weights * ({DROPPED} != 0)"),
    read="att-dropout",
)
add(
    "attention_dropout_renormalised",
    "You rescale the weights after dropout so that rows sum to 1; survivors are divided by "
    "1 - dropout, as attention_dropout does, and rows need not sum to 1.",
    (
        ATTENTION_RETURN,
        "total = dropped.sum(dim=-1, keepdim=True)\n"
        "    dropped = dropped / total.masked_fill(total == 0, 1.0)\n"
        f"    {ATTENTION_RETURN}",
    ),
    read="att-dropout",
)
add(
    "attention_dropout_of_scores",
    "Your output uses a softmax of scores that went through dropout; a score of 0 still gets "
    "weight. Drop weights, after the softmax.",
    (DROPPED, "masked_softmax(attention_dropout(scores, dropout, training), mask)"),
    read="att-dropout",
)
add(
    "attention_dropout_is_keep",
    "You give attention_dropout the probability of keeping a weight; it takes that of dropping "
    "one, `dropout` itself.",
    (DROPPED, "attention_dropout(attn_weights, 1.0 - dropout, training)"),
    read="att-dropout",
)
add(
    "attention_dropout_in_evaluation",
    "Dropout acts although training is False; pass `training` on.",
    (DROPPED, "attention_dropout(attn_weights, dropout, True)"),
    read="att-dropout",
)
add(
    "attention_dropout_ignored",
    "dropout does nothing; in training, drop weights before they meet the values.",
    (DROPPED, "attn_weights"),
    read="att-dropout",
)
add(
    "attention_shapes_unchecked",
    "Sizes that don't fit are not refused with a ValueError; compare the widths of query and key "
    "and the lengths of key and value first.",
    ("if key.shape[-1] != d_k:", "if False:"),
    ("if key.shape[-2] != value.shape[-2]:", "if False:"),
)
add(
    "attention_float32",
    "Your result is always float32; keep the dtype of the inputs (no .float()).",
    (
        "d_k = query.shape[-1]",
        "query, key, value = query.float(), key.float(), value.float()\n    d_k = query.shape[-1]",
    ),
)
add(
    "attention_weights_detached",
    "The values are right, but no gradient reaches queries and keys; don't detach the weights.",
    (DROPPED, f"{DROPPED}.detach()"),
)

# --------------------------------------------------------------------------------------------
# Masks
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "causal_mask", "att-causal")
TRIL = "torch.ones(length, length, dtype=torch.bool).tril()"
CAUSAL_CHECK = "if not isinstance(length, int) or length < 1:"
add(
    "causal_upper",
    "Your mask is the upper triangle: each position would see the future only. Keep the lower "
    "triangle, diagonal included.",
    (TRIL, "torch.ones(length, length, dtype=torch.bool).triu()"),
)
add(
    "causal_without_diagonal",
    "In your mask no position sees itself, and the first sees nothing; the diagonal is True: "
    "j ≤ i.",
    (TRIL, "torch.ones(length, length, dtype=torch.bool).tril(-1)"),
)
add(
    "causal_inverted",
    "Your mask is True where attention is forbidden; here True means may attend. Invert it.",
    (TRIL, "torch.ones(length, length, dtype=torch.bool).triu(1)"),
)
add(
    "causal_one_ahead",
    "In your mask each position sees one step into the future; the diagonal is the last that is "
    "True in a row.",
    (TRIL, "torch.ones(length, length, dtype=torch.bool).tril(1)"),
)
add(
    "causal_everything",
    "Your mask hides nothing; entries above the diagonal must be False.",
    (TRIL, "torch.ones(length, length, dtype=torch.bool)"),
)
add(
    "causal_float",
    "Your mask holds numbers; a mask is of dtype torch.bool.",
    (TRIL, "torch.ones(length, length).tril()"),
)
add(
    "causal_additive",
    "Your mask holds 0 and -inf, to be added to scores; here a mask is of dtype torch.bool.",
    (TRIL, "torch.full((length, length), float('-inf')).triu(1)"),
)
add(
    "causal_batch_dimension",
    "Your mask has a batch dimension; its shape is (length, length), and broadcasting does the "
    "rest.",
    (TRIL, f"{TRIL}.unsqueeze(0)"),
)
add(
    "causal_zero_accepted",
    "A length of 0 is accepted; raise a ValueError for every length below 1.",
    (CAUSAL_CHECK, "if not isinstance(length, int) or length < 0:"),
)
add(
    "causal_type_unchecked",
    "A length that is not an int is not refused with a ValueError; test it with isinstance.",
    (CAUSAL_CHECK, "if isinstance(length, int) and length < 1:"),
)

add(
    "causal_upside_down",
    "The rows of your mask stand in reverse order; row 0 belongs to the first position and has one "
    "True, and no flip is needed.",
    (TRIL, f"{TRIL}.flip(0)"),
)

add = mistakes_in(MISCONCEPTIONS, "padding_mask", "att-masks")
REAL = "positions < lengths[:, None, None]"
PADDING_CHECK = "if int(lengths.min()) < 0 or longest > max_length:"
PADDING_TYPE = (
    "if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:"
)
add(
    "padding_inverted",
    "Your mask is True at padding; True marks real tokens.",
    (REAL, "positions >= lengths[:, None, None]"),
)
add(
    "padding_one_too_many",
    "Your mask lets one padded position through in each row; positions count from 0, so use <, "
    "not <=.",
    (REAL, "positions <= lengths[:, None, None]"),
)
add(
    "padding_one_too_few",
    "Your mask hides the last real token; positions count from 0, and all that are < length are "
    "real.",
    (REAL, "positions < lengths[:, None, None] - 1"),
)
add(
    "padding_without_query_dimension",
    "Your mask has the shape (B, max_length); it needs a dimension of size 1 for the queries, or "
    "broadcasting takes the batch for queries.",
    (REAL, "positions < lengths[:, None]"),
)
add(
    "padding_on_queries",
    "Your mask has the shape (B, max_length, 1) and hides queries; it is the keys that are "
    "hidden: (B, 1, max_length).",
    (REAL, "positions[:, None] < lengths[:, None, None]"),
)
add(
    "padding_head_dimension",
    "Your mask has four dimensions; its shape here is (B, 1, max_length).",
    (REAL, "positions < lengths[:, None, None, None]"),
)
add(
    "padding_on_the_left",
    "Your mask has its real tokens at the end; padding stands on the right, so the first "
    "positions are real.",
    (REAL, "positions >= max_length - lengths[:, None, None]"),
)
add(
    "padding_slice_from_end",
    "A row without padding comes out as if all of it were padding: the slice [-0:] is everything. "
    "Compare positions with lengths instead.",
    (
        f"return {REAL}",
        f"mask = {REAL}\n    mask[lengths == max_length] = False\n    return mask",
    ),
)
add(
    "padding_as_long_as_batch",
    "Without max_length you take the number of sequences for it; it is the largest of lengths.",
    ("        max_length = longest", "        max_length = len(lengths)"),
)
add(
    "padding_float",
    "Your mask holds numbers; a mask is of dtype torch.bool.",
    (REAL, f"({REAL}).float()"),
)
add(
    "padding_max_length_ignored",
    "Your mask is as wide as the longest sequence although max_length was given; use it.",
    ("positions = torch.arange(max_length,", "positions = torch.arange(longest,"),
)
add(
    "padding_too_long_accepted",
    "Lengths above max_length are accepted; raise a ValueError.",
    (PADDING_CHECK, "if int(lengths.min()) < 0:"),
)
add(
    "padding_negative_accepted",
    "Negative lengths are accepted; raise a ValueError.",
    (PADDING_CHECK, "if longest > max_length:"),
)
add(
    "padding_type_unchecked",
    "Lengths that are not integers are accepted; raise a ValueError for floating point and bool.",
    (PADDING_TYPE, "if False:"),
)
add(
    "padding_int64_only",
    "You refuse lengths of every dtype but torch.int64; int32 and the other integer types are "
    "integers as well.",
    (PADDING_TYPE, "if lengths.dtype != torch.int64:"),
)
add(
    "padding_half_accepted",
    "You refuse some floating-point types only; lengths.is_floating_point() asks for all of them, "
    "float16 and float64 included.",
    (PADDING_TYPE, "if lengths.dtype in (torch.float32, torch.bool):"),
)
add(
    "padding_bool_accepted",
    "Boolean lengths are accepted; they are a mask, not lengths. Raise a ValueError.",
    (PADDING_TYPE, "if lengths.is_floating_point():"),
)

add = mistakes_in(MISCONCEPTIONS, "decoder_mask", "att-masks")
BOTH = "return causal & real"
add(
    "decoder_mask_or",
    "Your mask joins the two conditions with or; a key must be in the past and real: use &.",
    (BOTH, "return causal | real"),
)
add(
    "decoder_mask_causal_only",
    "Your mask lets padding through. In every row, those of padded queries too, padded keys are "
    "False: combine the causal mask with the padding mask by &.",
    (BOTH, "return causal.expand(len(lengths), -1, -1)"),
)
add(
    "decoder_mask_causal_of_batch",
    "Your causal mask has the size of the batch; it has that of the sequence, max_length or the "
    "largest of lengths.",
    ("causal_mask(real.shape[-1])", "causal_mask(len(lengths))"),
)
add(
    "decoder_mask_padding_only",
    "Your mask lets the future through; combine the padding mask with the causal mask.",
    (BOTH, "return real.expand(-1, real.shape[-1], -1)"),
    read="att-causal",
)
add(
    "decoder_mask_not_broadcast",
    "Your mask is the padding mask alone, with one row for all queries; combine it with the "
    "causal mask to (B, T, T).",
    (BOTH, "return real"),
)
add(
    "decoder_mask_on_queries",
    "Your mask empties the rows of padded queries; padding hides keys, so it belongs in the "
    "columns.",
    (BOTH, "return causal & real.transpose(1, 2)"),
)
add(
    "decoder_mask_negated",
    "Your mask is True where attention is forbidden; True means may attend.",
    (BOTH, "return ~(causal & real)"),
)
add(
    "decoder_mask_upper",
    "Your mask lets each position see the future instead of the past; use the lower triangle.",
    (BOTH, "return causal.T & real"),
    read="att-causal",
)
add(
    "decoder_mask_without_diagonal",
    "In your mask no position sees itself; the diagonal is allowed: j ≤ i.",
    (BOTH, "return causal.tril(-1) & real"),
    read="att-causal",
)
add(
    "decoder_mask_keeps_diagonal",
    "Padded tokens may attend to themselves in your mask; a padded key is hidden from every query, "
    "its own included.",
    (BOTH, "return causal & real | torch.eye(real.shape[-1], dtype=torch.bool)"),
)
add(
    "decoder_mask_one_for_all",
    "Every sequence gets the same mask, as if all were as long as the longest; row b has a padding "
    "mask of its own.",
    (BOTH, "return (causal & real.any(dim=0)).expand(len(lengths), -1, -1)"),
)
add(
    "decoder_mask_transposed",
    "Rows and columns of your mask are exchanged: queries stand in rows, keys in columns.",
    (BOTH, "return (causal & real).transpose(1, 2)"),
)
add(
    "decoder_mask_head_dimension",
    "Your mask has four dimensions; its shape here is (B, T, T).",
    (BOTH, "return (causal & real).unsqueeze(1)"),
)
add(
    "decoder_mask_max_length_ignored",
    "Your mask is as large as the longest sequence although max_length was given; pass it on.",
    ("padding_mask(lengths, max_length)", "padding_mask(lengths)"),
)
add(
    "decoder_mask_float",
    "Your mask holds numbers; a mask is of dtype torch.bool. Use & and not *.",
    (BOTH, "return causal.float() * real"),
)

# --------------------------------------------------------------------------------------------
# Self-attention
# --------------------------------------------------------------------------------------------


def _attention_mistakes(add: Callable[..., None], prefix: str) -> None:
    """Mistakes that the two single-head modules share."""
    add(
        f"{prefix}_not_scaled",
        "Your weights match scores that are not scaled; divide them by √head_dim.",
        (ATTEND, "scaled_dot_product_attention(q * math.sqrt(q.shape[-1]), k, v, mask)"),
        read="att-scaling",
    )
    add(
        f"{prefix}_scaled_by_input",
        "Your weights match dividing by √input_dim; divide by the root of the projected width, "
        "√head_dim.",
        (
            ATTEND,
            "scaled_dot_product_attention(q * math.sqrt(q.shape[-1] / x.shape[-1]), k, v, mask)",
        ),
        read="att-scaling",
    )
    add(
        f"{prefix}_scaled_by_width",
        "Your weights match dividing by head_dim (or twice by its root); divide once by √head_dim.",
        (ATTEND, "scaled_dot_product_attention(q / math.sqrt(q.shape[-1]), k, v, mask)"),
        read="att-scaling",
    )
    add(
        f"{prefix}_softmax_over_queries",
        "Your weights sum to 1 over the queries; the softmax runs over the keys, the last "
        "dimension.",
        (
            f"return {ATTEND}",
            f"attn_weights = masked_softmax({SCORES}, mask, dim=-2)\n"
            "        return attn_weights @ v, attn_weights",
        ),
        read="att-softmax",
    )
    add(
        f"{prefix}_query_key_swapped",
        "Your weights match query and key in each other's place: row i should hold the weights "
        "that query i gives to the keys.",
        (ATTEND, "scaled_dot_product_attention(k, q, v, mask)"),
        read="att-soft-lookup",
    )
    add(
        f"{prefix}_key_value_swapped",
        "Your result matches keys and values in each other's place: keys decide where to look, "
        "values what is returned.",
        (ATTEND, "scaled_dot_product_attention(q, v, k, mask)"),
        read="att-soft-lookup",
    )
    add(
        f"{prefix}_key_is_query",
        "Your keys are projected by q_proj; each of q, k and v has its own projection, or a token "
        "would mostly find itself.",
        ("self.k_proj(x)", "self.q_proj(x)"),
        read="att-soft-lookup",
    )
    add(
        f"{prefix}_value_is_key",
        "Your values are projected by k_proj; use v_proj.",
        ("self.v_proj(x)", "self.k_proj(x)"),
        read="att-soft-lookup",
    )
    add(
        f"{prefix}_value_is_query",
        "Your values are projected by q_proj; use v_proj.",
        ("self.v_proj(x)", "self.q_proj(x)"),
        read="att-soft-lookup",
    )
    add(
        f"{prefix}_value_not_projected",
        "Your output sums the inputs themselves; project them by v_proj first.",
        ("self.v_proj(x)", "x"),
        read="att-soft-lookup",
    )
    add(
        f"{prefix}_not_projected",
        "Your queries and keys are the inputs themselves; project them by q_proj and k_proj.",
        ("self.q_proj(x)", "x"),
        ("self.k_proj(x)", "x"),
        read="att-soft-lookup",
    )
    add(
        f"{prefix}_bias",
        "Your projections have biases; create them with bias=False.",
        *(
            (
                f"self.{name} = nn.Linear(input_dim, head_dim, bias=False)",
                f"self.{name} = nn.Linear(input_dim, head_dim)",
            )
            for name in ("q_proj", "k_proj", "v_proj")
        ),
    )
    add(
        f"{prefix}_returns_scores",
        "The second result holds scores; return the weights, after the softmax.",
        (
            f"return {ATTEND}",
            f"return {ATTEND}[0], {SCORES}",
        ),
    )
    add(
        f"{prefix}_weights_transposed",
        "Your output is right, but the weights you return are transposed: row i holds those that "
        "query i gives to the keys.",
        (
            f"return {ATTEND}",
            f"output, attn_weights = {ATTEND}\n"
            "        return output, attn_weights.transpose(-2, -1)",
        ),
    )
    add(
        f"{prefix}_one_layer_for_all",
        "q_proj, k_proj and v_proj are one and the same layer; create three.",
        *(
            (
                f"self.{name} = nn.Linear(input_dim, head_dim, bias=False)",
                f"self.{name} = self.q_proj",
            )
            for name in ("k_proj", "v_proj")
        ),
    )
    add(
        f"{prefix}_returns_output_only",
        "You return the output only; return the pair (output, attn_weights).",
        (f"return {ATTEND}", f"return {ATTEND}[0]"),
    )


add = mistakes_in(MISCONCEPTIONS, "SelfAttention", "att-self")
_attention_mistakes(add, "self")
add(
    "self_mask_for_each_example",
    "You take a mask with two dimensions for (B, T), one row for each example; it is (T, T), "
    "one row for each query, the same for every example.",
    (
        f"return {ATTEND}",
        "if mask is not None and mask.dim() == 2 and len(mask) == len(x):\n"
        f"            mask = mask.unsqueeze(1)\n        return {ATTEND}",
    ),
    read="att-masks",
)
add(
    "self_mask_kept",
    "Without a mask you use the one of an earlier call; where mask is None nothing is masked.",
    (
        f"return {ATTEND}",
        "mask = self.last = getattr(self, 'last', None) if mask is None else mask\n"
        f"        return {ATTEND}",
    ),
    read="att-masks",
)
add(
    "self_mask_ignored",
    "Your weights match ignoring the mask; pass it to the attention.",
    (ATTEND, "scaled_dot_product_attention(q, k, v)"),
    read="att-masks",
)
add(
    "self_mask_inverted",
    "Your weights match a mask read the wrong way round; True means may attend.",
    (ATTEND, "scaled_dot_product_attention(q, k, v, None if mask is None else ~mask)"),
    read="att-masks",
)
add(
    "self_nan",
    "A query that may attend to nothing gives NaN: a softmax over nothing but -inf is 0/0. Its "
    "weights and output should be 0; masked_softmax does that.",
    (
        f"return {ATTEND}",
        f"scores = {SCORES}\n"
        "        if mask is not None:\n"
        "            scores = scores.masked_fill(~mask, float('-inf'))\n"
        "        attn_weights = scores.softmax(dim=-1)\n"
        "        return attn_weights @ v, attn_weights",
    ),
    read="att-masks",
)
add(
    "self_finite_fill",
    "A query that may attend to nothing attends to everything alike: a large negative number "
    "cancels when a whole row has it. Its weights and output should be 0.",
    (
        f"return {ATTEND}",
        f"scores = {SCORES}\n"
        "        if mask is not None:\n"
        "            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)\n"
        "        attn_weights = scores.softmax(dim=-1)\n"
        "        return attn_weights @ v, attn_weights",
    ),
    read="att-masks",
)
add(
    "self_mask_symmetric",
    "Your mask hides a pair in both directions if it is hidden in one; row i of the mask is about "
    "query i only.",
    (
        f"return {ATTEND}",
        "if mask is not None and mask.shape[-2] == mask.shape[-1]:\n"
        f"            mask = mask & mask.transpose(-2, -1)\n        return {ATTEND}",
    ),
    read="att-masks",
)
add(
    "self_always_causal",
    "Your tokens see only earlier ones; plain self-attention has no causal mask of its own.",
    (
        f"return {ATTEND}",
        "causal = causal_mask(x.shape[1])\n"
        "        mask = causal if mask is None else mask & causal\n"
        f"        return {ATTEND}",
    ),
    read="att-causal",
)
add(
    "self_residual",
    "Your output has the input added to it; the residual connection comes later, in the "
    "Transformer's layer.",
    (
        f"return {ATTEND}",
        f"output, attn_weights = {ATTEND}\n"
        "        return output + x[..., : output.shape[-1]].sum() * 0 + "
        "torch.nn.functional.pad(x, (0, max(0, output.shape[-1] - x.shape[-1])))"
        "[..., : output.shape[-1]], attn_weights",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "MaskedSelfAttention", "att-causal")
_attention_mistakes(add, "masked_self")
CAUSAL = "causal_mask(x.shape[1]).to(x.device)"
AND_PADDING = "mask = mask & padding_mask.unsqueeze(1)"
add(
    "masked_self_sees_future",
    "Your tokens see the future: no causal mask acts. Position i may attend to 0, ..., i, in "
    "training and in evaluation.",
    (CAUSAL, "torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)"),
)
add(
    "masked_self_upper",
    "Your tokens see the future instead of the past; keep the lower triangle.",
    (CAUSAL, "causal_mask(x.shape[1]).T"),
)
add(
    "masked_self_without_diagonal",
    "Your tokens don't see themselves, and the first sees nothing; the diagonal is allowed.",
    (CAUSAL, "causal_mask(x.shape[1]).tril(-1)"),
)
add(
    "masked_self_one_ahead",
    "Your tokens see one step into the future; the diagonal is the last allowed entry of a row.",
    (CAUSAL, "torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(1)"),
)
add(
    "masked_self_zero_before",
    "Your scores of the future are overwritten by 0 before the softmax; exp(0) is 1, so the "
    "future leaks. Write -inf.",
    (
        f"return {ATTEND}",
        f"attn_weights = masked_softmax(({SCORES}).masked_fill(~mask, 0.0))\n"
        "        return attn_weights @ v, attn_weights",
    ),
    read="att-masks",
)
add(
    "masked_self_zero_after",
    "Your weights on the future are overwritten by 0 after the softmax, so that rows sum to less "
    "than 1; mask the scores with -inf before it.",
    (
        f"return {ATTEND}",
        f"attn_weights = masked_softmax({SCORES}).masked_fill(~mask, 0.0)\n"
        "        return attn_weights @ v, attn_weights",
    ),
    read="att-masks",
)
add(
    "masked_self_renormalised",
    "You take the softmax over all tokens and rescale the rows after blanking out the future; a "
    "large future score then leaves nothing to rescale. Mask the scores before the softmax.",
    (
        f"return {ATTEND}",
        f"attn_weights = masked_softmax({SCORES}) * mask\n"
        "        total = attn_weights.sum(dim=-1, keepdim=True).clamp(min=1e-9)\n"
        "        return attn_weights / total @ v, attn_weights / total",
    ),
    read="att-masks",
)
add(
    "masked_self_padding_ignored",
    "Your tokens attend to padding; combine the padding mask with the causal one, in training and "
    "in evaluation.",
    (AND_PADDING, "pass"),
    read="att-masks",
)
add(
    "masked_self_padding_inverted",
    "You hide the real tokens and show the padding; True marks real tokens.",
    (AND_PADDING, "mask = mask & ~padding_mask.unsqueeze(1)"),
    read="att-masks",
)
add(
    "masked_self_padding_replaces_causal",
    "With padding_mask given, your tokens see the future: the padding mask replaces the causal "
    "one. Both hold: combine them with &.",
    (AND_PADDING, "mask = padding_mask.unsqueeze(1)"),
    read="att-masks",
)
add(
    "masked_self_padding_or",
    "Your masks are joined with or; a key must be in the past and real: use &.",
    (AND_PADDING, "mask = mask | padding_mask.unsqueeze(1)"),
    read="att-masks",
)
add(
    "masked_self_padding_on_queries",
    "Your padding mask empties the rows of padded queries; it is the keys that are hidden, in "
    "the columns: padding_mask.unsqueeze(1).",
    (AND_PADDING, "mask = mask & padding_mask.unsqueeze(2)"),
    read="att-masks",
)
add(
    "masked_self_padding_wrong_axis",
    "padding (B, T) meets the causal mask (T, T) without a query dimension, so that the batch is "
    "taken for queries; insert it with unsqueeze(1).",
    (AND_PADDING, "mask = mask & padding_mask"),
    read="att-masks",
)
add(
    "masked_self_nan",
    "A token that may see nothing gives NaN: a softmax over nothing but -inf is 0/0. Its weights "
    "and output should be 0; masked_softmax does that.",
    (
        f"return {ATTEND}",
        f"attn_weights = ({SCORES}).masked_fill(~mask, float('-inf')).softmax(dim=-1)\n"
        "        return attn_weights @ v, attn_weights",
    ),
    read="att-masks",
)
add(
    "masked_self_finite_fill",
    "A token that may see nothing attends to everything alike, the future included; its weights "
    "and output should be 0.",
    (
        f"return {ATTEND}",
        f"attn_weights = ({SCORES}).masked_fill(~mask, -1e9).softmax(dim=-1)\n"
        "        return attn_weights @ v, attn_weights",
    ),
    read="att-masks",
)
add(
    "masked_self_causal_of_batch",
    "Your causal mask has the size of the batch, x.shape[0]; it has that of the sequence, "
    "x.shape[1].",
    (CAUSAL, "causal_mask(x.shape[0])"),
)
add(
    "masked_self_causal_with_padding_only",
    "Without padding_mask your tokens see the future; the causal mask holds always.",
    (
        f"return {ATTEND}",
        f"if padding_mask is None:\n            mask = None\n        return {ATTEND}",
    ),
)
add(
    "masked_self_padding_both_ways",
    "Your padding mask hides padded keys and empties the rows of padded queries as well; only keys "
    "are hidden.",
    (AND_PADDING, f"{AND_PADDING} & padding_mask.unsqueeze(2)"),
    read="att-masks",
)
add(
    "masked_self_keeps_diagonal",
    "Padded tokens attend to themselves; a padded key is hidden from every query, its own "
    "included.",
    (AND_PADDING, f"{AND_PADDING} | torch.eye(x.shape[1], dtype=torch.bool)"),
    read="att-masks",
)
add(
    "masked_self_padding_as_lengths",
    "You count the real tokens and take the first so many for real; padding may stand anywhere. "
    "padding_mask already says which tokens are real.",
    (
        AND_PADDING,
        "mask = mask & (\n"
        "                torch.arange(x.shape[1]) < padding_mask.sum(dim=1)[:, None, None]\n"
        "            )",
    ),
    read="att-masks",
)
add(
    "masked_self_input_zeroed",
    "You set padded tokens to 0, but a score of 0 still gets weight; mask the scores of padded "
    "keys.",
    (
        AND_PADDING,
        "x = x * padding_mask.unsqueeze(-1)\n            q, k, v = self.q_proj(x), "
        "self.k_proj(x), self.v_proj(x)",
    ),
    read="att-masks",
)
add(
    "masked_self_output_zeroed",
    "The outputs of padded queries are set to 0; only keys are masked, and what a padded query "
    "gives nobody reads.",
    (
        f"return {ATTEND}",
        f"output, attn_weights = {ATTEND}\n"
        "        if padding_mask is not None:\n"
        "            output = output * padding_mask.unsqueeze(-1)\n"
        "        return output, attn_weights",
    ),
    read="att-masks",
)
add(
    "masked_self_padding_after_softmax",
    "Weights on padding are set to 0 after the softmax, so that rows sum to less than 1; combine "
    "the padding mask with the causal one, before it.",
    (AND_PADDING, "pass"),
    (
        f"return {ATTEND}",
        f"_, attn_weights = {ATTEND}\n"
        "        if padding_mask is not None:\n"
        "            attn_weights = attn_weights * padding_mask.unsqueeze(1)\n"
        "        return attn_weights @ v, attn_weights",
    ),
    read="att-masks",
)
add(
    "masked_self_padding_kept",
    "Without a padding_mask you use the one of an earlier call; where it is None every token is "
    "real.",
    (
        "        if padding_mask is not None:",
        "        if padding_mask is None:\n"
        "            padding_mask = getattr(self, 'last', None)\n"
        "        self.last = padding_mask\n"
        "        if padding_mask is not None:",
    ),
    read="att-masks",
)
