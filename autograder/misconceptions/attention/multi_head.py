"""Known mistakes of `attention-multi_head`: heads and their layouts.

A view where a transpose belongs, a fused layout taken for a stacked one, a three-dimensional mask
that is read head by head.
"""

from __future__ import annotations

from autograder.misconceptions.attention.common import ATTEND, IF_MASK, SCORES
from autograder.units.variants import Misconception, Swap, mistakes_in

MISCONCEPTIONS: list[Misconception] = []
MASK_3D = "if mask is not None and mask.dim() == 3:"
ROWS_ARE_EXAMPLES = (
    "if mask is not None and mask.dim() == 2 and len(mask) == len({}):\n"
    f"            mask = mask.unsqueeze(1)\n        {MASK_3D}"
)


def _by_hand(weights: str) -> Swap:
    """Replaces the given attention by one that makes its weights of `scores` in one expression."""
    return (
        f"heads, attn_weights = {ATTEND}",
        f"scores = {SCORES}\n        attn_weights = {weights}\n        heads = attn_weights @ v",
    )


# What replaces masked scores, and what the student is told.
MASK_MISTAKES = {
    "mask_after_softmax": (
        "You set weights to 0 after the softmax, so that the others no longer add up to 1; mask "
        "the scores, before the softmax.",
        _by_hand("scores.softmax(dim=-1) * (1 if mask is None else mask)"),
    ),
    "mask_nan": (
        "A query that may see nothing gives NaN: its weights are 0/0, as in a softmax over nothing "
        "but -inf. Use scaled_dot_product_attention.",
        _by_hand(
            "(scores if mask is None else scores.masked_fill(~mask, -math.inf)).softmax(dim=-1)"
        ),
    ),
    "mask_finite_fill": (
        "A query that may see nothing attends to everything alike: a large negative number "
        "cancels when a whole row has it. Its weights should be 0.",
        _by_hand("(scores if mask is None else scores.masked_fill(~mask, -1e9)).softmax(dim=-1)"),
    ),
    "mask_added": (
        "You add a large negative number to masked scores; added to a whole row it cancels, and a "
        "query that may see nothing gets weights that sum to 1. They should be 0.",
        _by_hand("(scores if mask is None else scores - 1e9 * ~mask).softmax(dim=-1)"),
    ),
}
MASKED_OUTPUT_ZERO = (
    "You set the output to 0 where nothing may be seen; only the weights are 0 there, and out_proj "
    "still adds its bias."
)
WEIGHTS_DETACHED = (
    "The attn_weights that you return are detached; gradients reach through them, too, so return "
    "them as they are."
)

# --------------------------------------------------------------------------------------------
# Heads
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "split_heads", "att-heads")
SPLIT_VIEW = "x.view(batch, length, num_heads, width // num_heads)"
SPLIT_RETURN = "return heads.transpose(1, 2)"
add(
    "split_by_view",
    "Your heads match view(B, H, T, D/H), which cuts the sequence and not the features: a head "
    "then holds a stretch of tokens. View as (B, T, H, D/H) first, then swap T and H.",
    (SPLIT_RETURN, "return x.reshape(batch, num_heads, length, width // num_heads)"),
)
add(
    "split_not_transposed",
    "Your result has the shape (B, T, H, D/H); swap T and H with transpose(1, 2).",
    (SPLIT_RETURN, "return heads"),
)
add(
    "split_strided",
    "Your head h takes every H-th feature; it should take a block of neighbouring features: view "
    "as (B, T, H, D/H), not (B, T, D/H, H).",
    (SPLIT_VIEW, "x.reshape(batch, length, width // num_heads, num_heads).transpose(2, 3)"),
)
add(
    "split_head_width_swapped",
    "Your result has D/H heads of width H; num_heads is the number of heads.",
    (SPLIT_VIEW, "x.reshape(batch, length, width // num_heads, num_heads)"),
)
add(
    "split_into_batch",
    "Your heads are folded into the batch, (B·H, T, D/H); keep four dimensions.",
    (SPLIT_RETURN, "return heads.transpose(1, 2).flatten(0, 1)"),
)
add(
    "split_squeezed",
    "Dimensions of size 1 are missing in your result; leave out .squeeze(): it has four "
    "dimensions, also for one example, one token or one head.",
    (SPLIT_RETURN, "return heads.transpose(1, 2).squeeze()"),
)
add(
    "split_heads_last",
    "Your result has the shape (B, T, D/H, H); heads come second.",
    (SPLIT_RETURN, "return heads.transpose(2, 3)"),
)
add(
    "split_reversed",
    "Your heads stand in reverse order; head 0 takes the first features.",
    (SPLIT_RETURN, "return heads.transpose(1, 2).flip(1)"),
)
add(
    "split_list",
    "You return a list of heads; return one tensor of shape (B, H, T, D/H).",
    (SPLIT_RETURN, "return list(x.chunk(num_heads, dim=-1))"),
)
add(
    "split_unchecked",
    "A width that the number of heads doesn't divide is not refused with a ValueError; test the "
    "remainder first.",
    ("if width % num_heads != 0:", "if False:"),
)
add(
    "split_odd_refused",
    "An odd width is refused; all that counts is whether num_heads divides it, as 3 divides 9.",
    ("if width % num_heads != 0:", "if width % num_heads != 0 or width % 2 != 0:"),
)
add(
    "split_detached",
    "The values are right, but no gradient reaches x; don't detach it.",
    (SPLIT_RETURN, "return heads.transpose(1, 2).detach()"),
)

add = mistakes_in(MISCONCEPTIONS, "merge_heads", "att-heads")
MERGE_RETURN = "return tokens.view(batch, length, num_heads * head_dim)"
add(
    "merge_without_transpose",
    "Your result matches a reshape without swapping heads and positions: tokens get mixed. Swap "
    "them first, then join the last two dimensions.",
    (MERGE_RETURN, "return x.reshape(batch, length, num_heads * head_dim)"),
)
add(
    "merge_strided",
    "Your result interleaves the features of the heads; head 0 comes first as a whole, then head "
    "1.",
    (MERGE_RETURN, "return x.permute(0, 2, 3, 1).reshape(batch, length, num_heads * head_dim)"),
)
add(
    "merge_averaged",
    "Your result is the mean over the heads; put them side by side instead.",
    (MERGE_RETURN, "return x.mean(dim=1)"),
)
add(
    "merge_summed",
    "Your result is the sum over the heads; put them side by side instead.",
    (MERGE_RETURN, "return x.sum(dim=1)"),
)
add(
    "merge_not_joined",
    "Your result still has four dimensions; join the last two to H·Dh.",
    (MERGE_RETURN, "return tokens"),
)
add(
    "merge_first_head",
    "Your result holds one head only; all of them stand side by side.",
    (MERGE_RETURN, "return x[:, 0].repeat(1, 1, num_heads)"),
)
add(
    "merge_along_time",
    "Your heads are joined along the sequence; join them along the features.",
    (MERGE_RETURN, "return x.reshape(batch, num_heads * length, head_dim)"),
)
add(
    "merge_reversed",
    "Your heads stand in reverse order; head 0 comes first.",
    (MERGE_RETURN, "return tokens.flip(2).reshape(batch, length, num_heads * head_dim)"),
)
add(
    "merge_not_contiguous",
    "The values are right, but the result is not contiguous in memory; end with .contiguous().",
    (
        MERGE_RETURN,
        "result = tokens.view(batch, length, num_heads * head_dim)\n"
        "    return torch.empty_strided(\n"
        "        result.shape, (result[0].numel(), 1, length), dtype=x.dtype\n"
        "    ).copy_(result)",
    ),
)
add(
    "merge_detached",
    "The values are right, but no gradient reaches the heads; don't detach them.",
    (MERGE_RETURN, "return tokens.view(batch, length, num_heads * head_dim).detach()"),
)


def _by_view(inputs: dict[str, str]) -> list[Swap]:
    """Swaps that split heads by a view (B, H, T, Dh) of the projected inputs."""
    return [
        (
            f"split_heads(self.{layer}({source}), self.num_heads)",
            f"self.{layer}({source}).reshape(\n"
            f"            {source}.shape[0], self.num_heads, {source}.shape[1], -1\n        )",
        )
        for layer, source in inputs.items()
    ]


def _averaged(attend: str, mixed: str) -> Swap:
    """Replaces `return mixed` by heads that are averaged before the last layer."""
    layer = mixed.split("(")[0]
    return (
        f"return {mixed}, attn_weights",
        "merged = heads.mean(dim=1).repeat(1, 1, self.num_heads)\n"
        f"        return {layer}(merged), attn_weights",
    )


add = mistakes_in(MISCONCEPTIONS, "MultiHeadAttention", "att-multihead")
HEADS_ARGS = "q, k, v, mask, self.dropout, self.training"
HEADS_OUT = "self.out_proj(merge_heads(heads))"
HEADS_RETURN = f"return {HEADS_OUT}, attn_weights"
HEADS_CALL = (
    "heads, attn_weights = scaled_dot_product_attention(\n"
    "            q, k, v, mask, self.dropout, self.training\n"
    "        )"
)
HEADS_INPUTS = {"q_proj": "query", "k_proj": "key", "v_proj": "value"}
UNEQUAL = "if d_model % num_heads != 0:"
add(
    "heads_without_out_proj",
    "Your output matches leaving out out_proj; it mixes the heads and is always applied.",
    (HEADS_RETURN, "return merge_heads(heads), attn_weights"),
)
add(
    "heads_scaled_by_d_model",
    "Your weights match dividing by √d_model; each head scales by the root of its own width, "
    "√(d_model / H).",
    (HEADS_ARGS, "q / math.sqrt(self.num_heads), k, v, mask, self.dropout, self.training"),
    read="att-scaling",
)
add(
    "heads_not_scaled",
    "Your weights match scores that are not scaled; divide them by √(d_model / H).",
    (HEADS_ARGS, "q * math.sqrt(q.shape[-1]), k, v, mask, self.dropout, self.training"),
    read="att-scaling",
)
add(
    "heads_scaled_by_head_width",
    "Your weights match dividing by the width of a head (or twice by its root); divide once by "
    "√(d_model / H).",
    (HEADS_ARGS, "q / math.sqrt(q.shape[-1]), k, v, mask, self.dropout, self.training"),
    read="att-scaling",
)
add(
    "heads_scaled_by_heads",
    "Your weights match dividing by √H, the number of heads; divide by √(d_model / H), the root "
    "of a head's width.",
    (
        HEADS_ARGS,
        "q * math.sqrt(q.shape[-1] / self.num_heads), k, v, mask, self.dropout, self.training",
    ),
    read="att-scaling",
)
add(
    "heads_split_by_view",
    "Your heads match view(B, H, T, D/H) of the projections, which mixes positions and features; "
    "use split_heads.",
    *_by_view(HEADS_INPUTS),
    read="att-heads",
)
add(
    "heads_merged_without_transpose",
    "Your heads are joined without swapping heads and positions first, so tokens get mixed; use "
    "merge_heads.",
    (HEADS_OUT, "self.out_proj(heads.reshape(query.shape))"),
    read="att-heads",
)
add(
    "heads_merged_strided",
    "Your heads are joined feature by feature; head 0 comes first as a whole: use merge_heads.",
    (HEADS_OUT, "self.out_proj(heads.permute(0, 2, 3, 1).reshape(query.shape))"),
    read="att-heads",
)
add(
    "heads_output_averaged",
    "Your output matches averaging the heads; put them side by side, so that out_proj can mix "
    "them.",
    _averaged(ATTEND, HEADS_OUT),
)
add(
    "heads_split_result",
    "You attend once with the full width and split the result; each head has its own scores from "
    "its own part of q and k.",
    (
        HEADS_CALL,
        "joined = [merge_heads(part).unsqueeze(1) for part in (q, k, v)]\n"
        "        heads, attn_weights = scaled_dot_product_attention(\n"
        "            *joined, mask, self.dropout, self.training\n"
        "        )\n"
        "        heads = split_heads(heads.squeeze(1), self.num_heads)\n"
        "        attn_weights = attn_weights.expand(-1, self.num_heads, -1, -1)",
    ),
    read="att-heads",
)
add(
    "heads_weights_averaged",
    "You return the mean of the weights over the heads; return those of every head, "
    "(B, H, Tq, Tk).",
    (HEADS_RETURN, f"return {HEADS_OUT}, attn_weights.mean(dim=1)"),
)
add(
    "heads_weights_of_one_head",
    "You return the weights of one head; return those of every head, (B, H, Tq, Tk).",
    (HEADS_RETURN, f"return {HEADS_OUT}, attn_weights[:, 0]"),
)
add(
    "heads_returns_output_only",
    "You return the output only; return the pair (output, attn_weights).",
    (HEADS_RETURN, f"return {HEADS_OUT}"),
)
add(
    "heads_key_value_swapped",
    "Your result matches keys and values in each other's place: keys decide where to look, "
    "values what is returned.",
    (HEADS_ARGS, "q, v, k, mask, self.dropout, self.training"),
    read="att-soft-lookup",
)
add(
    "heads_query_key_swapped",
    "Your result matches query and key in each other's place: each row of weights belongs to a "
    "query.",
    (HEADS_ARGS, "k, q, v, mask, self.dropout, self.training"),
    read="att-soft-lookup",
)
add(
    "heads_value_from_key",
    "Your values are made from `key`; make them from `value`.",
    ("self.v_proj(value)", "self.v_proj(key)"),
    read="att-soft-lookup",
)
add(
    "heads_value_from_query",
    "Your values are made from `query`; make them from `value`.",
    ("self.v_proj(value)", "self.v_proj(query)"),
    read="att-cross",
)
add(
    "heads_key_from_query",
    "Your keys are made from `query`; make them from `key`, which may be another sequence.",
    ("self.k_proj(key)", "self.k_proj(query)"),
    read="att-cross",
)
add(
    "heads_self_only",
    "Your keys and values are made from `query`; make them from `key` and `value`, which may be "
    "another sequence.",
    ("self.k_proj(key)", "self.k_proj(query)"),
    ("self.v_proj(value)", "self.v_proj(query)"),
    read="att-cross",
)
add(
    "heads_one_projection",
    "Your keys and values go through q_proj too; use k_proj and v_proj.",
    ("self.k_proj(key)", "self.q_proj(key)"),
    ("self.v_proj(value)", "self.q_proj(value)"),
)
add(
    "heads_mask_per_head",
    "A (B, Tq, Tk) mask is aligned with the heads, not with the batch: an error if B ≠ H, and "
    "silently wrong if B = H. Insert the head dimension: mask.unsqueeze(1).",
    (MASK_3D, "if False:"),
    read="att-masks",
)
add(
    "heads_mask_always_unsqueezed",
    "You insert a head dimension into every mask; only one with three dimensions needs it.",
    (MASK_3D, IF_MASK),
    read="att-masks",
)
add(
    "heads_mask_for_each_example",
    "You take a mask with two dimensions for (B, Tk), one row for each example; it is (Tq, Tk), "
    "one row for each query, the same for every example.",
    (MASK_3D, ROWS_ARE_EXAMPLES.format("query")),
    read="att-masks",
)
add(
    "heads_mask_ignored",
    "Your weights match ignoring the mask; pass it to the attention.",
    (HEADS_ARGS, "q, k, v, None, self.dropout, self.training"),
    read="att-masks",
)
add(
    "heads_mask_inverted",
    "Your weights match a mask read the wrong way round (as PyTorch's own module reads it); here "
    "True means may attend.",
    (
        HEADS_ARGS,
        "q, k, v, None if mask is None else ~mask, self.dropout, self.training",
    ),
    read="att-masks",
)
add(
    "heads_mask_zero_before",
    "Your masked scores are 0 before the softmax; exp(0) is 1, so masked positions leak. Write "
    "-inf, or use scaled_dot_product_attention.",
    (
        HEADS_CALL,
        f"scores = {SCORES}\n"
        "        attn_weights = (scores if mask is None else scores.masked_fill(~mask, 0.0))\n"
        "        attn_weights = attn_weights.softmax(dim=-1)\n"
        "        heads = nn.functional.dropout(attn_weights, self.dropout, self.training) @ v",
    ),
    read="att-masks",
)
add(
    "heads_mask_nan",
    MASK_MISTAKES["mask_nan"][0],
    (
        HEADS_CALL,
        f"scores = {SCORES}\n"
        "        attn_weights = scores if mask is None else scores.masked_fill(~mask, -math.inf)\n"
        "        attn_weights = attn_weights.softmax(dim=-1)\n"
        "        heads = nn.functional.dropout(attn_weights, self.dropout, self.training) @ v",
    ),
    read="att-masks",
)
add(
    "heads_mask_finite_fill",
    MASK_MISTAKES["mask_finite_fill"][0],
    (
        HEADS_CALL,
        f"scores = {SCORES}\n"
        "        attn_weights = scores if mask is None else scores.masked_fill(~mask, -1e9)\n"
        "        attn_weights = attn_weights.softmax(dim=-1)\n"
        "        heads = nn.functional.dropout(attn_weights, self.dropout, self.training) @ v",
    ),
    read="att-masks",
)
add(
    "heads_mask_after_softmax",
    MASK_MISTAKES["mask_after_softmax"][0],
    (
        HEADS_CALL,
        f"scores = {SCORES}\n"
        "        attn_weights = scores.softmax(dim=-1) * (1 if mask is None else mask)\n"
        "        heads = nn.functional.dropout(attn_weights, self.dropout, self.training) @ v",
    ),
    read="att-masks",
)
add(
    "heads_masked_output_zero",
    MASKED_OUTPUT_ZERO,
    (
        HEADS_RETURN,
        "seen = attn_weights.sum(dim=(1, 3)).unsqueeze(2) > 0\n"
        f"        return {HEADS_OUT} * seen, attn_weights",
    ),
    read="att-masks",
)
add(
    "heads_softmax_over_queries",
    "Your weights sum to 1 over the queries (dim=-2); the softmax runs over the keys, dim=-1.",
    (
        HEADS_CALL,
        f"scores = {SCORES}\n"
        "        scores = scores if mask is None else scores.masked_fill(~mask, -math.inf)\n"
        "        attn_weights = scores.softmax(dim=-2).nan_to_num(0.0)\n"
        "        heads = nn.functional.dropout(attn_weights, self.dropout, self.training) @ v",
    ),
    read="att-softmax",
)
add(
    "heads_softmax_over_heads",
    "Your weights sum to 1 over the heads (dim=1 is the heads here); the softmax runs over the "
    "keys, dim=-1.",
    (
        HEADS_CALL,
        f"scores = {SCORES}\n"
        "        scores = scores if mask is None else scores.masked_fill(~mask, -math.inf)\n"
        "        attn_weights = scores.softmax(dim=1).nan_to_num(0.0)\n"
        "        heads = nn.functional.dropout(attn_weights, self.dropout, self.training) @ v",
    ),
    read="att-softmax",
)
add(
    "heads_weights_after_dropout",
    "The weights you return have been through dropout; return those before it.",
    (
        HEADS_CALL,
        "attn_weights = scaled_dot_product_attention(q, k, v, mask)[1]\n"
        "        attn_weights = nn.functional.dropout(attn_weights, self.dropout, self.training)\n"
        "        heads = attn_weights @ v",
    ),
    read="att-dropout",
)
add(
    "heads_dropout_ignored",
    "Dropout does nothing in train mode; pass the probability and self.training to the attention.",
    (HEADS_ARGS, "q, k, v, mask"),
    read="att-dropout",
)
add(
    "heads_dropout_lost_with_mask",
    "Given a mask, dropout does nothing in train mode; it acts on the weights with a mask as "
    "without.",
    (HEADS_ARGS, "q, k, v, mask, self.dropout * (mask is None), self.training"),
)
add(
    "heads_dropout_in_evaluation",
    "Dropout acts in eval mode; pass self.training to the attention.",
    (HEADS_ARGS, "q, k, v, mask, self.dropout, True"),
    read="att-dropout",
)
add(
    "heads_dropout_fixed",
    "Dropout acts with 0.1 whatever was asked for; store the argument `dropout` and use it.",
    ("self.dropout = dropout", "self.dropout = 0.1"),
    read="att-dropout",
)
add(
    "heads_dropout_on_output",
    "Dropout acts on the output; it drops weights, before they meet the values.",
    (HEADS_ARGS, "q, k, v, mask"),
    (
        HEADS_RETURN,
        f"output = nn.functional.dropout({HEADS_OUT}, self.dropout, self.training)\n"
        "        return output, attn_weights",
    ),
    read="att-dropout",
)
add(
    "heads_dropout_on_scores",
    "Dropout acts before the softmax, where a 0 is a score like any other; it drops weights, after "
    "the softmax.",
    (
        HEADS_CALL,
        "dropped = nn.functional.dropout(q, self.dropout, self.training)\n"
        f"        heads, attn_weights = {ATTEND.replace('(q', '(dropped')}",
    ),
    read="att-dropout",
)
DROPPED = (
    "attn_weights = scaled_dot_product_attention(q, k, v, mask)[1]\n"
    "        heads = {} @ v if self.training else attn_weights @ v"
)
add(
    "heads_dropout_not_rescaled",
    "Dropout leaves the surviving weights as they are; divide them by 1 - dropout, as "
    "attention_dropout and nn.functional.dropout do.",
    (
        HEADS_CALL,
        DROPPED.format("(attn_weights * (torch.rand_like(attn_weights) >= self.dropout))"),
    ),
    read="att-dropout",
)
add(
    "heads_dropout_shared",
    "Dropout drops several weights together, such as those of all heads or of all queries; each "
    "is dropped on its own: draw a number for each of the (B, H, Tq, Tk) weights.",
    (
        HEADS_CALL,
        DROPPED.format(
            "(attn_weights * nn.functional.dropout(torch.ones_like(attn_weights[:, :1]), "
            "self.dropout))"
        ),
    ),
    read="att-dropout",
)
add(
    "heads_dropout_keeps_p",
    "You keep weights with the probability `dropout`; it is the probability of dropping one.",
    (
        HEADS_CALL,
        DROPPED.format("nn.functional.dropout(attn_weights, (1 - self.dropout) % 1)"),
    ),
    read="att-dropout",
)
add(
    "heads_bias",
    "Your projections have no biases; here all four have one.",
    *(
        (
            f"self.{name} = nn.Linear(d_model, d_model)",
            f"self.{name} = nn.Linear(d_model, d_model, bias=False)",
        )
        for name in ("q_proj", "k_proj", "v_proj", "out_proj")
    ),
)
add(
    "heads_unchecked",
    "A d_model that the number of heads doesn't divide is not refused with a ValueError; test "
    "the remainder when the module is created.",
    (UNEQUAL, "if False:"),
)
add(
    "heads_detached",
    "The values are right, but no gradient reaches queries and keys; don't detach the weights.",
    (
        HEADS_CALL,
        "attn_weights = scaled_dot_product_attention(q, k, v, mask)[1].detach()\n"
        "        heads = nn.functional.dropout(attn_weights, self.dropout, self.training) @ v",
    ),
)
add(
    "heads_weights_detached",
    WEIGHTS_DETACHED,
    (HEADS_RETURN, f"return {HEADS_OUT}, attn_weights.detach()"),
)

# --------------------------------------------------------------------------------------------
# Layouts
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "FusedMultiHeadAttention", "att-layouts")
FUSED_QKV = "qkv = split_heads(self.qkv_proj(x), self.num_heads)"
FUSED_CHUNK = "q, k, v = qkv.chunk(3, dim=-1)"
FUSED_OUT = "self.o_proj(merge_heads(heads))"
FUSED_RETURN = f"return {FUSED_OUT}, attn_weights"
add(
    "fused_not_interleaved",
    "Your result matches qkv_proj with all of q first, then all of k and all of v; here the rows "
    "are interleaved per head: q, k, v of head 0, then of head 1.",
    (
        FUSED_CHUNK,
        "q, k, v = (\n"
        "            split_heads(part, self.num_heads)\n"
        "            for part in self.qkv_proj(x).chunk(3, dim=-1)\n"
        "        )",
    ),
)
add(
    "fused_interleaved_by_feature",
    "Your q, k and v take every third output; they are blocks of Dh neighbouring outputs.",
    (FUSED_CHUNK, "q, k, v = qkv.unflatten(-1, (-1, 3)).unbind(dim=-1)"),
)
add(
    "fused_width_overwritten",
    "Your joined heads are given the width of x, input_dim; together they are d_model wide, which "
    "may be another number.",
    (FUSED_OUT, "self.o_proj(merge_heads(heads).reshape(x.shape))"),
)
add(
    "fused_order_k_q_v",
    "Your result matches the order k, q, v inside a head; the order is q, k, v.",
    (FUSED_CHUNK, "k, q, v = qkv.chunk(3, dim=-1)"),
)
add(
    "fused_order_v_k_q",
    "Your result matches the order v, k, q inside a head; the order is q, k, v.",
    (FUSED_CHUNK, "v, k, q = qkv.chunk(3, dim=-1)"),
)
add(
    "fused_order_q_v_k",
    "Your result matches the order q, v, k inside a head; the order is q, k, v.",
    (FUSED_CHUNK, "q, v, k = qkv.chunk(3, dim=-1)"),
)
add(
    "fused_split_by_view",
    "Your heads match view(B, H, T, 3·Dh) of the projection, which mixes positions and features; "
    "use split_heads.",
    (FUSED_QKV, "qkv = self.qkv_proj(x).reshape(x.shape[0], self.num_heads, x.shape[1], -1)"),
    read="att-heads",
)
add(
    "fused_merged_without_transpose",
    "Your heads are joined without swapping heads and positions first; use merge_heads.",
    (FUSED_OUT, "self.o_proj(heads.reshape(x.shape[0], x.shape[1], -1))"),
    read="att-heads",
)
add(
    "fused_without_o_proj",
    "Your output matches leaving out o_proj; it mixes the heads and is always applied.",
    (FUSED_RETURN, "return merge_heads(heads), attn_weights"),
    read="att-multihead",
)
add(
    "fused_output_averaged",
    "Your output matches averaging the heads; put them side by side.",
    _averaged(ATTEND, FUSED_OUT),
    read="att-multihead",
)
add(
    "fused_scaled_by_embed_dim",
    "Your weights match dividing by √d_model; each head scales by the root of its own width.",
    (ATTEND, "scaled_dot_product_attention(q / math.sqrt(self.num_heads), k, v, mask)"),
    read="att-scaling",
)
add(
    "fused_not_scaled",
    "Your weights match scores that are not scaled; divide them by √(d_model / H).",
    (ATTEND, "scaled_dot_product_attention(q * math.sqrt(q.shape[-1]), k, v, mask)"),
    read="att-scaling",
)
add(
    "fused_scaled_by_block",
    "Your weights match dividing by √(3·Dh), the width of a head's block of q, k and v; divide "
    "by √Dh.",
    (ATTEND, "scaled_dot_product_attention(q / math.sqrt(3), k, v, mask)"),
    read="att-scaling",
)
add(
    "fused_scaled_by_input_width",
    "Your weights match dividing by √(input_dim / H); a head is d_model / H wide, whatever the "
    "width of x.",
    (
        ATTEND,
        "scaled_dot_product_attention(\n"
        "            q * math.sqrt(self.o_proj.in_features / x.shape[-1]), k, v, mask\n"
        "        )",
    ),
    read="att-scaling",
)
add(
    "fused_mask_per_head",
    "A (B, T, T) mask is aligned with the heads, not with the batch: an error if B ≠ H, and "
    "silently wrong if B = H. Insert the head dimension: mask.unsqueeze(1).",
    (MASK_3D, "if False:"),
    read="att-masks",
)
add(
    "fused_mask_always_unsqueezed",
    "You insert a head dimension into every mask; only one with three dimensions needs it.",
    (MASK_3D, IF_MASK),
    read="att-masks",
)
add(
    "fused_mask_for_each_example",
    "You take a mask with two dimensions for (B, T), one row for each example; it is (T, T), "
    "one row for each query, the same for every example.",
    (MASK_3D, ROWS_ARE_EXAMPLES.format("x")),
    read="att-masks",
)
add(
    "fused_mask_ignored",
    "Your weights match ignoring the mask; pass it to the attention.",
    (ATTEND, "scaled_dot_product_attention(q, k, v)"),
    read="att-masks",
)
add(
    "fused_mask_inverted",
    "Your weights match a mask read the wrong way round; True means may attend.",
    (ATTEND, "scaled_dot_product_attention(q, k, v, None if mask is None else ~mask)"),
    read="att-masks",
)
for name, (says, swap) in MASK_MISTAKES.items():
    add(f"fused_{name}", says, swap, read="att-masks")
add(
    "fused_weights_detached",
    WEIGHTS_DETACHED,
    (FUSED_RETURN, f"return {FUSED_OUT}, attn_weights.detach()"),
)
add(
    "fused_checks_input_dim",
    "You test whether num_heads divides input_dim; it has to divide d_model, and input_dim may be "
    "any width.",
    (UNEQUAL, "if input_dim % num_heads != 0:"),
)
add(
    "fused_weights_averaged",
    "You return the mean of the weights over the heads; return those of every head, (B, H, T, T).",
    (FUSED_RETURN, f"return {FUSED_OUT}, attn_weights.mean(dim=1)"),
)
add(
    "fused_bias",
    "Your layers have no biases; here both have one.",
    ("nn.Linear(input_dim, 3 * d_model)", "nn.Linear(input_dim, 3 * d_model, bias=False)"),
    ("nn.Linear(d_model, d_model)", "nn.Linear(d_model, d_model, bias=False)"),
)
add(
    "fused_unchecked",
    "A d_model that the number of heads doesn't divide is not refused with a ValueError; test "
    "the remainder when the module is created.",
    ("if d_model % num_heads != 0:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "PerHeadAttention", "att-layouts")
CONTRIBUTIONS = "contributions = heads @ self.w_o"
PER_HEAD_RETURN = "return contributions.sum(dim=1), attn_weights"
add(
    "per_head_averaged",
    "Your output is the mean of what the heads contribute; it is their sum.",
    (PER_HEAD_RETURN, "return contributions.mean(dim=1), attn_weights"),
)
add(
    "per_head_concatenated",
    "Your output puts the contributions side by side; each has the full width already, so they "
    "are added up.",
    (PER_HEAD_RETURN, "return merge_heads(contributions), attn_weights"),
)
add(
    "per_head_not_summed",
    "Your output still has a head dimension; sum over the heads.",
    (PER_HEAD_RETURN, "return contributions, attn_weights"),
)
add(
    "per_head_without_w_o",
    "Your output joins the heads and leaves out w_o; each head contributes Z_h w_o[h].",
    (PER_HEAD_RETURN, "return merge_heads(heads), attn_weights"),
    read="att-multihead",
)
add(
    "per_head_one_w_o",
    "Every head goes through w_o[0]; head h has its own w_o[h].",
    (CONTRIBUTIONS, "contributions = heads @ self.w_o[0]"),
)
add(
    "per_head_one_query_matrix",
    "Every head uses w_q[0]; head h has its own w_q[h].",
    (
        "query.unsqueeze(1) @ self.w_q",
        "query.unsqueeze(1) @ self.w_q[:1].expand_as(self.w_q)",
    ),
)
add(
    "per_head_keys_by_w_q",
    "Your keys are projected by w_q; use w_k.",
    ("key.unsqueeze(1) @ self.w_k", "key.unsqueeze(1) @ self.w_q"),
)
add(
    "per_head_values_by_w_k",
    "Your values are projected by w_k; use w_v.",
    ("value.unsqueeze(1) @ self.w_v", "value.unsqueeze(1) @ self.w_k"),
)
add(
    "per_head_value_from_key",
    "Your values are made from `key`; make them from `value`.",
    ("value.unsqueeze(1) @ self.w_v", "key.unsqueeze(1) @ self.w_v"),
)
add(
    "per_head_value_from_query",
    "Your values are made from `query`; make them from `value`.",
    ("value.unsqueeze(1)", "query.unsqueeze(1)"),
    read="att-cross",
)
add(
    "per_head_key_from_query",
    "Your keys are made from `query`; make them from `key`, which may be another sequence.",
    ("key.unsqueeze(1)", "query.unsqueeze(1)"),
    read="att-cross",
)
add(
    "per_head_self_only",
    "Your keys and values are made from `query`; make them from `key` and `value`.",
    ("key.unsqueeze(1)", "query.unsqueeze(1)"),
    ("value.unsqueeze(1)", "query.unsqueeze(1)"),
    read="att-cross",
)
add(
    "per_head_key_value_swapped",
    "Your result matches keys and values in each other's place: keys decide where to look, "
    "values what is returned.",
    (ATTEND, "scaled_dot_product_attention(q, v, k, mask)"),
    read="att-soft-lookup",
)
add(
    "per_head_scaled_by_d_model",
    "Your weights match dividing by √d_model; each head scales by the root of its own width.",
    (ATTEND, "scaled_dot_product_attention(q / math.sqrt(self.w_q.shape[0]), k, v, mask)"),
    read="att-scaling",
)
add(
    "per_head_not_scaled",
    "Your weights match scores that are not scaled; divide them by √(d_model / H).",
    (ATTEND, "scaled_dot_product_attention(q * math.sqrt(q.shape[-1]), k, v, mask)"),
    read="att-scaling",
)
add(
    "per_head_mask_per_head",
    "A (B, Tq, Tk) mask is aligned with the heads, not with the batch; insert the head "
    "dimension: mask.unsqueeze(1).",
    (MASK_3D, "if False:"),
    read="att-masks",
)
add(
    "per_head_mask_for_each_example",
    "You take a mask with two dimensions for (B, Tk), one row for each example; it is (Tq, Tk), "
    "one row for each query, the same for every example.",
    (MASK_3D, ROWS_ARE_EXAMPLES.format("query")),
    read="att-masks",
)
add(
    "per_head_mask_ignored",
    "Your weights match ignoring the mask; pass it to the attention.",
    (ATTEND, "scaled_dot_product_attention(q, k, v)"),
    read="att-masks",
)
add(
    "per_head_mask_inverted",
    "Your weights match a mask read the wrong way round; True means may attend.",
    (ATTEND, "scaled_dot_product_attention(q, k, v, None if mask is None else ~mask)"),
    read="att-masks",
)
add(
    "per_head_one_mask_for_heads",
    "A (B, H, Tq, Tk) mask is read at head 0 only; each head has its own part, mask[:, h].",
    (
        "heads, attn_weights = scaled_dot_product_attention(q, k, v, mask)",
        "if mask is not None and mask.dim() == 4:\n"
        "            mask = mask[:, :1]\n"
        "        heads, attn_weights = scaled_dot_product_attention(q, k, v, mask)",
    ),
    read="att-masks",
)
add(
    "per_head_mask_whole_for_each_head",
    "Your loop gives every head the whole (B, H, Tq, Tk) mask; head h takes its own part of it, "
    "mask[:, h].",
    (MASK_3D, "if False:"),
    (
        f"heads, attn_weights = {ATTEND}",
        "parts = [\n"
        "            scaled_dot_product_attention(q[:, h], k[:, h], v[:, h], mask)\n"
        "            for h in range(q.shape[1])\n"
        "        ]\n"
        "        heads, attn_weights = (torch.stack(part, dim=1) for part in zip(*parts))",
    ),
    read="att-masks",
)
for name, (says, swap) in MASK_MISTAKES.items():
    add(f"per_head_{name}", says, swap, read="att-masks")
add(
    "per_head_weights_detached",
    WEIGHTS_DETACHED,
    (PER_HEAD_RETURN, "return contributions.sum(dim=1), attn_weights.detach()"),
)
add(
    "per_head_weights_of_one_head",
    "You return the weights of one head; collect those of every head, (B, H, Tq, Tk).",
    (PER_HEAD_RETURN, "return contributions.sum(dim=1), attn_weights[:, -1]"),
)
add(
    "per_head_weights_averaged",
    "You return the mean of the weights over the heads; return those of every head, "
    "(B, H, Tq, Tk).",
    (PER_HEAD_RETURN, "return contributions.sum(dim=1), attn_weights.mean(dim=1)"),
)
add(
    "per_head_stored_transposed",
    "Your w_q, w_k and w_v have the shape (H, d_model/H, d_model), as nn.Linear would store "
    "them; here they multiply rows from the right: (H, d_model, d_model/H).",
    *(
        (
            f"self.{name} = nn.Parameter(torch.randn(num_heads, d_model, head_dim) * scale)",
            f"self.{name} = nn.Parameter(torch.randn(num_heads, head_dim, d_model) * scale)",
        )
        for name in ("w_q", "w_k", "w_v")
    ),
    ("query.unsqueeze(1) @ self.w_q", "query.unsqueeze(1) @ self.w_q.transpose(1, 2)"),
    ("key.unsqueeze(1) @ self.w_k", "key.unsqueeze(1) @ self.w_k.transpose(1, 2)"),
    ("value.unsqueeze(1) @ self.w_v", "value.unsqueeze(1) @ self.w_v.transpose(1, 2)"),
)
add(
    "per_head_unchecked",
    "A d_model that the number of heads doesn't divide is not refused with a ValueError; test "
    "the remainder when the module is created.",
    (UNEQUAL, "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "separate_to_fused", "att-layouts")
TO_NAMES = 'names = ("q_proj", "k_proj", "v_proj")'
FUSED_WEIGHT = "torch.stack(weights, dim=1).reshape(-1, width)"
FUSED_BIAS = "torch.stack(biases, dim=1).reshape(-1)"
TO_OUT_WEIGHT = 'state["out_proj.weight"].clone()'
TO_OUT_BIAS = 'state["out_proj.bias"].clone()'
add(
    "to_fused_stacked",
    "Your rows hold all of q, then all of k and all of v, as PyTorch stacks them; here they are "
    "interleaved per head.",
    (FUSED_WEIGHT, "torch.cat(weights).reshape(-1, width)"),
    (FUSED_BIAS, "torch.cat(biases).reshape(-1)"),
)
add(
    "to_fused_weight_stacked",
    "Your bias is interleaved per head, but your weight holds all of q, then all of k and all of "
    "v; rearrange both in the same way.",
    (FUSED_WEIGHT, "torch.cat(weights).reshape(-1, width)"),
)
add(
    "to_fused_bias_stacked",
    "Your weight is interleaved per head, but your bias holds all of q, then all of k and all of "
    "v; rearrange both in the same way.",
    (FUSED_BIAS, "torch.cat(biases).reshape(-1)"),
)
add(
    "to_fused_bias_zero",
    "Your biases are 0; carry them over, interleaved like the weights.",
    (FUSED_BIAS, "torch.zeros_like(torch.cat(biases).reshape(-1))"),
)
add(
    "to_fused_by_row",
    "Your rows alternate between q, k and v one by one; a head's q is a block of Dh rows, "
    "followed by the blocks of its k and its v.",
    (FUSED_WEIGHT, "torch.stack(weights, dim=2).reshape(-1, width)"),
    (FUSED_BIAS, "torch.stack(biases, dim=2).reshape(-1)"),
)
add(
    "to_fused_order_k_q_v",
    "Your result matches the order k, q, v inside a head; the order is q, k, v.",
    (TO_NAMES, 'names = ("k_proj", "q_proj", "v_proj")'),
)
add(
    "to_fused_order_v_k_q",
    "Your result matches the order v, k, q inside a head; the order is q, k, v.",
    (TO_NAMES, 'names = ("v_proj", "k_proj", "q_proj")'),
)
add(
    "to_fused_order_q_v_k",
    "Your result matches the order q, v, k inside a head; the order is q, k, v.",
    (TO_NAMES, 'names = ("q_proj", "v_proj", "k_proj")'),
)
add(
    "to_fused_transposed",
    "Your weights are transposed; both layouts store (out, in), so heads own rows and nothing is "
    "transposed.",
    (
        'state[f"{n}.weight"].reshape(num_heads, -1, width)',
        'state[f"{n}.weight"].T.reshape(num_heads, -1, width)',
    ),
)
add(
    "to_fused_out_transposed",
    "Your o_proj.weight is transposed; it is out_proj.weight as it stands.",
    (TO_OUT_WEIGHT, 'state["out_proj.weight"].T.contiguous()'),
)
add(
    "to_fused_head_width",
    "You cut the rows into Dh heads of width H; num_heads is the number of heads.",
    (
        'state[f"{n}.weight"].reshape(num_heads, -1, width)',
        'state[f"{n}.weight"].reshape(-1, num_heads, width)',
    ),
    (
        'state[f"{n}.bias"].reshape(num_heads, -1)',
        'state[f"{n}.bias"].reshape(-1, num_heads)',
    ),
)
add(
    "to_fused_out_name",
    "The output layer is called o_proj in the fused module; rename out_proj.",
    ('"o_proj.weight":', '"out_proj.weight":'),
    ('"o_proj.bias":', '"out_proj.bias":'),
)
add(
    "to_fused_in_place",
    "Your result is right, but the given state is changed; build new tensors in a new dict.",
    (
        TO_OUT_WEIGHT,
        'state["out_proj.weight"].clone() + state["out_proj.bias"].mul_(1.5).sum() * 0',
    ),
    (TO_OUT_BIAS, 'state["out_proj.bias"] / 1.5'),
)

add = mistakes_in(MISCONCEPTIONS, "separate_to_per_head", "att-layouts")
COLUMNS = "weight.T.reshape(len(weight), num_heads, -1).transpose(0, 1).contiguous()"
W_O = 'torch.stack(state["out_proj.weight"].T.chunk(num_heads))'
BIAS_CHECK = 'if name.endswith("bias") and tensor.any():'
add(
    "to_per_head_not_transposed",
    "Your w_q, w_k and w_v match the untransposed weights; nn.Linear computes x Wᵀ and per-head "
    "attention x W, so transpose each.",
    (COLUMNS, "weight.reshape(len(weight), num_heads, -1).transpose(0, 1).contiguous()"),
)
add(
    "to_per_head_nothing_transposed",
    "Your matrices are cut from the weights as nn.Linear stores them, for x Wᵀ; per-head attention "
    "computes x W: transpose all four weights first, then cut.",
    (COLUMNS, "weight.reshape(len(weight), num_heads, -1).transpose(0, 1).contiguous()"),
    (W_O, 'torch.stack(state["out_proj.weight"].chunk(num_heads))'),
)
add(
    "to_per_head_rows",
    "Your w_q, w_k and w_v have the shape (H, Dh, D); they multiply from the right, so each "
    "block is transposed to (D, Dh).",
    (COLUMNS, "weight.reshape(num_heads, -1, len(weight))"),
)
add(
    "to_per_head_reshaped",
    "Your blocks match a reshape of the transposed weight to (H, D, Dh), which mixes heads; cut "
    "the columns into heads first, then bring the heads forward.",
    (COLUMNS, "weight.T.reshape(num_heads, len(weight), -1)"),
)
add(
    "to_per_head_reshaped_as_stored",
    "Your blocks match a reshape of the weight, as nn.Linear stores it, to (H, D, Dh); a head owns "
    "Dh rows of it: cut these, and transpose each block.",
    (COLUMNS, "weight.reshape(num_heads, len(weight), -1)"),
)
add(
    "to_per_head_strided",
    "Your head h takes every H-th output; it takes a block of Dh neighbouring ones.",
    (COLUMNS, "weight.T.reshape(len(weight), -1, num_heads).permute(2, 0, 1).contiguous()"),
)
add(
    "to_per_head_out_not_transposed",
    "Your w_o is cut from out_proj.weight without transposing it; a head owns columns of "
    "out_proj.weight.",
    (W_O, 'torch.stack(state["out_proj.weight"].chunk(num_heads))'),
)
add(
    "to_per_head_out_columns",
    "Your w_o[h] holds the columns of out_proj.weight as (D, Dh) cut to another shape; transpose "
    "the block of columns to (Dh, D).",
    (
        W_O,
        'torch.stack(state["out_proj.weight"].chunk(num_heads, dim=1))'
        ".reshape(num_heads, -1, len(state['out_proj.weight']))",
    ),
)
add(
    "to_per_head_out_as_inputs",
    "Your w_o is made as w_q is; a head owns rows of q_proj.weight, but columns of "
    "out_proj.weight: cut those, and transpose each block to (Dh, D).",
    (W_O, 'columns(state["out_proj.weight"])'),
)
add(
    "to_per_head_out_blocks_as_they_stand",
    "Your w_o[h] is the block of columns of out_proj.weight as it stands, (D, Dh); transpose it "
    "to (Dh, D).",
    (W_O, 'torch.stack(state["out_proj.weight"].chunk(num_heads, dim=1))'),
)
add(
    "to_per_head_bias_dropped",
    "Biases that are not 0 are dropped silently; per-head attention has none, so raise a "
    "ValueError.",
    (BIAS_CHECK, "if False:"),
)
add(
    "to_per_head_bias_sum",
    "Biases that add up to 0 are taken for no bias; test every element.",
    (BIAS_CHECK, 'if name.endswith("bias") and tensor.sum() != 0:'),
)
add(
    "to_per_head_bias_positive",
    "Negative biases are taken for no bias; test whether any element differs from 0.",
    (BIAS_CHECK, 'if name.endswith("bias") and (tensor > 0).any():'),
)
add(
    "to_per_head_bias_tolerance",
    "Tiny biases are taken for no bias (torch.allclose lets 1e-8 pass); compare with 0 itself.",
    (
        BIAS_CHECK,
        'if name.endswith("bias") and not torch.allclose(tensor, torch.zeros_like(tensor)):',
    ),
)
add(
    "to_per_head_out_bias_dropped",
    "The bias of out_proj is dropped silently; it counts as well, so raise a ValueError.",
    (BIAS_CHECK, 'if name[:2] in ("q_", "k_", "v_") and name.endswith("bias") and tensor.any():'),
)
add(
    "to_per_head_bias_refused",
    "A state whose biases are all 0 is refused; only biases that are not 0 are a problem.",
    (BIAS_CHECK, 'if name.endswith("bias"):'),
)
add(
    "to_per_head_bias_required",
    "A state without biases ends in an error; look biases up only if they are there.",
    (
        "for name, tensor in state.items():",
        'for name, tensor in [(n, state[n]) for n in ("q_proj.bias", "k_proj.bias", '
        '"v_proj.bias", "out_proj.bias")]:',
    ),
)

add = mistakes_in(MISCONCEPTIONS, "separate_to_torch", "att-layouts")
IN_WEIGHT = 'torch.cat([state[f"{n}.weight"] for n in names])'
IN_BIAS = 'torch.cat([state[f"{n}.bias"] for n in names])'
add(
    "to_torch_order_k_q_v",
    "Your rows stand in the order k, q, v; PyTorch stacks q, k, v.",
    (TO_NAMES, 'names = ("k_proj", "q_proj", "v_proj")'),
)
add(
    "to_torch_order_v_k_q",
    "Your rows stand in the order v, k, q; PyTorch stacks q, k, v.",
    (TO_NAMES, 'names = ("v_proj", "k_proj", "q_proj")'),
)
add(
    "to_torch_order_q_v_k",
    "Your rows stand in the order q, v, k; PyTorch stacks q, k, v.",
    (TO_NAMES, 'names = ("q_proj", "v_proj", "k_proj")'),
)
add(
    "to_torch_transposed",
    "Your input weights are transposed; both store (out, in), so nothing is transposed.",
    (IN_WEIGHT, 'torch.cat([state[f"{n}.weight"].T for n in names])'),
)
add(
    "to_torch_out_transposed",
    "Your out_proj.weight is transposed; it is the same in both.",
    (TO_OUT_WEIGHT, 'state["out_proj.weight"].T.contiguous()'),
)
add(
    "to_torch_side_by_side",
    "Your input weight has the shape (D, 3D); stack the rows, along dimension 0.",
    (IN_WEIGHT, 'torch.cat([state[f"{n}.weight"] for n in names], dim=1)'),
)
add(
    "to_torch_interleaved",
    "Your rows alternate between q, k and v; PyTorch has all of q first, then all of k, then all "
    "of v.",
    (IN_WEIGHT, 'torch.stack([state[f"{n}.weight"] for n in names], dim=1).flatten(0, 1)'),
    (IN_BIAS, 'torch.stack([state[f"{n}.bias"] for n in names], dim=1).flatten()'),
)
add(
    "to_torch_bias_zero",
    "Your input bias is 0; carry the three biases over.",
    (IN_BIAS, 'torch.cat([state[f"{n}.bias"] * 0 for n in names])'),
)
add(
    "to_torch_dotted_names",
    "Your input projection is called in_proj.weight; PyTorch writes in_proj_weight and "
    "in_proj_bias.",
    ('"in_proj_weight":', '"in_proj.weight":'),
    ('"in_proj_bias":', '"in_proj.bias":'),
)
add(
    "to_torch_without_out_proj",
    "Your result lacks out_proj.weight and out_proj.bias; carry them over.",
    (f'"out_proj.weight": {TO_OUT_WEIGHT},', ""),
    (f'"out_proj.bias": {TO_OUT_BIAS},', ""),
)

# --------------------------------------------------------------------------------------------
# Cross-attention
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "CrossAttention", "att-cross")
CROSS_MASK = "memory_mask[:, None, None, :]"
CROSS_INPUTS = {"q_proj": "x", "k_proj": "memory", "v_proj": "memory"}
add(
    "cross_keys_from_decoder",
    "Your keys and values are made from x; in cross-attention both come from the memory.",
    ("self.k_proj(memory)", "self.k_proj(x)"),
    ("self.v_proj(memory)", "self.v_proj(x)"),
)
add(
    "cross_only_keys_from_decoder",
    "Your keys are made from x; keys and values both come from the memory.",
    ("self.k_proj(memory)", "self.k_proj(x)"),
)
add(
    "cross_values_from_decoder",
    "Your values are made from x; keys and values both come from the memory.",
    ("self.v_proj(memory)", "self.v_proj(x)"),
)
add(
    "cross_roles_reversed",
    "Your queries are made from the memory, and keys and values from x; it is the other way "
    "round: the decoder asks, the memory answers.",
    ("self.q_proj(x)", "self.q_proj(memory)"),
    ("self.k_proj(memory)", "self.k_proj(x)"),
    ("self.v_proj(memory)", "self.v_proj(x)"),
)
add(
    "cross_queries_from_memory",
    "Your queries are made from the memory and your values from x; the queries come from x, keys "
    "and values from the memory.",
    ("self.q_proj(x)", "self.q_proj(memory)"),
    ("self.v_proj(memory)", "self.v_proj(x)"),
)
add(
    "cross_key_value_swapped",
    "Your result matches keys and values in each other's place: keys decide where to look, "
    "values what is returned.",
    (ATTEND, "scaled_dot_product_attention(q, v, k, mask)"),
    read="att-soft-lookup",
)
add(
    "cross_values_by_k_proj",
    "Your values are projected by k_proj; use v_proj.",
    ("self.v_proj(memory)", "self.k_proj(memory)"),
)
add(
    "cross_mask_ignored",
    "Your weights match ignoring memory_mask; padding of the memory must get the weight 0.",
    (CROSS_MASK, "None"),
    read="att-masks",
)
add(
    "cross_mask_inverted",
    "Your weights match a mask read the wrong way round; True marks real tokens.",
    (CROSS_MASK, f"~{CROSS_MASK}"),
    read="att-masks",
)
for name, (says, swap) in MASK_MISTAKES.items():
    add(f"cross_{name}", says, swap, read="att-masks")
add(
    "cross_weights_detached",
    WEIGHTS_DETACHED,
    (f"return {HEADS_OUT}, attn_weights", f"return {HEADS_OUT}, attn_weights.detach()"),
)
add(
    "cross_checks_query_dim",
    "You test whether num_heads divides query_dim; it has to divide d_model, and query_dim may be "
    "any width.",
    (UNEQUAL, "if query_dim % num_heads != 0:"),
)
add(
    "cross_mask_on_queries",
    "memory_mask is applied to the rows, the queries; it hides keys, in the columns: "
    "memory_mask[:, None, None, :].",
    (CROSS_MASK, "memory_mask[:, None, :, None]"),
    read="att-masks",
)
add(
    "cross_mask_left_out",
    "You leave the mask out as soon as one memory of the batch has no padding; the shorter ones "
    "have some, so mask whenever memory_mask is given.",
    (
        "None if memory_mask is None else",
        "None if memory_mask is None or memory_mask.all(dim=1).any() else",
    ),
    read="att-masks",
)
add(
    "cross_padding_zeroed",
    "You set padding of the memory to 0 instead of masking it; a key made of zeros has a score, "
    "too, and gets weight. Mask the scores.",
    (
        "q = split_heads(self.q_proj(x)",
        "memory = memory if memory_mask is None else memory * memory_mask.unsqueeze(2)\n"
        "        q = split_heads(self.q_proj(x)",
    ),
    (CROSS_MASK, "None"),
    read="att-masks",
)
add(
    "cross_masked_output_zero",
    MASKED_OUTPUT_ZERO,
    (
        f"return {HEADS_OUT}, attn_weights",
        "seen = attn_weights.sum(dim=(1, 3)).unsqueeze(2) > 0\n"
        f"        return {HEADS_OUT} * seen, attn_weights",
    ),
    read="att-masks",
)
add(
    "cross_mask_not_unsqueezed",
    "memory_mask (B, Tk) meets the scores without dimensions for heads and queries, so that the "
    "batch is taken for queries; use memory_mask[:, None, None, :].",
    (CROSS_MASK, "memory_mask"),
    read="att-masks",
)
add(
    "cross_mask_per_head",
    "memory_mask lacks a dimension, so that the batch is taken for heads: an error if B ≠ H, and "
    "silently wrong if B = H. Use memory_mask[:, None, None, :].",
    (CROSS_MASK, "memory_mask[:, None, :]"),
    read="att-masks",
)
add(
    "cross_causal",
    "Your queries don't see the end of the memory; there is no causal mask here, since the whole "
    "source is known.",
    (
        CROSS_MASK + "  # (B, 1, 1, Tk)",
        f"{CROSS_MASK}\n"
        "        causal = torch.ones(x.shape[1], memory.shape[1], dtype=torch.bool).tril()\n"
        "        mask = causal if mask is None else mask & causal",
    ),
    read="att-causal",
)
add(
    "cross_scaled_by_embed_dim",
    "Your weights match dividing by √d_model; each head scales by the root of its own width.",
    (ATTEND, "scaled_dot_product_attention(q / math.sqrt(self.num_heads), k, v, mask)"),
    read="att-scaling",
)
add(
    "cross_scaled_by_query_dim",
    "Your weights match dividing by √(query_dim / H); a head is d_model / H wide, whatever the "
    "width of x.",
    (
        ATTEND,
        "scaled_dot_product_attention(\n"
        "            q * math.sqrt(self.out_proj.in_features / x.shape[-1]), k, v, mask\n"
        "        )",
    ),
    read="att-scaling",
)
add(
    "cross_not_scaled",
    "Your weights match scores that are not scaled; divide them by √(d_model / H).",
    (ATTEND, "scaled_dot_product_attention(q * math.sqrt(q.shape[-1]), k, v, mask)"),
    read="att-scaling",
)
add(
    "cross_without_out_proj",
    "Your output matches leaving out out_proj; it mixes the heads and is always applied.",
    (f"return {HEADS_OUT}, attn_weights", "return merge_heads(heads), attn_weights"),
    read="att-multihead",
)
add(
    "cross_output_averaged",
    "Your output matches averaging the heads; put them side by side.",
    _averaged(ATTEND, HEADS_OUT),
    read="att-multihead",
)
add(
    "cross_split_by_view",
    "Your heads match view(B, H, T, Dh) of the projections, which mixes positions and features; "
    "use split_heads.",
    *_by_view(CROSS_INPUTS),
    read="att-heads",
)
add(
    "cross_merged_without_transpose",
    "Your heads are joined without swapping heads and positions first; use merge_heads.",
    (HEADS_OUT, "self.out_proj(heads.reshape(x.shape[0], x.shape[1], -1))"),
    read="att-heads",
)
add(
    "cross_weights_averaged",
    "You return the mean of the weights over the heads; return those of every head, "
    "(B, H, Tq, Tk).",
    (f"return {HEADS_OUT}, attn_weights", f"return {HEADS_OUT}, attn_weights.mean(dim=1)"),
)
add(
    "cross_out_to_memory_width",
    "Your out_proj has memory_dim outputs; it leads back to query_dim, the width of x.",
    ("nn.Linear(d_model, query_dim)", "nn.Linear(d_model, memory_dim)"),
)
add(
    "cross_bias",
    "Your projections have no biases; here all four have one.",
    ("nn.Linear(query_dim, d_model)", "nn.Linear(query_dim, d_model, bias=False)"),
    ("nn.Linear(d_model, query_dim)", "nn.Linear(d_model, query_dim, bias=False)"),
    (
        "self.k_proj = nn.Linear(memory_dim, d_model)",
        "self.k_proj = nn.Linear(memory_dim, d_model, bias=False)",
    ),
    (
        "self.v_proj = nn.Linear(memory_dim, d_model)",
        "self.v_proj = nn.Linear(memory_dim, d_model, bias=False)",
    ),
)
add(
    "cross_unchecked",
    "A d_model that the number of heads doesn't divide is not refused with a ValueError; test "
    "the remainder when the module is created.",
    ("if d_model % num_heads != 0:", "if False:"),
)
