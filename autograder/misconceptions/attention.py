"""Known mistakes of the chapter `attention`: the reference with one cell changed.

Each says to the student which mistake it is and what to do. Many stand in circulating notes and
code: scaling by d_k or not at all, a softmax without exponentials, zeros written over the
future, a fused layout taken for a stacked one, a three-dimensional mask that is read head by head.

Within an exercise the order matters only where two mistakes give the same answers to everything
that a test asked: the first is then named.
"""

from __future__ import annotations

from collections.abc import Callable

from autograder.units.variants import Misconception, Swap, mistakes_in

MISCONCEPTIONS: list[Misconception] = []


# What several cells have in common.
IF_MASK = "if mask is not None:"
MASK_3D = "if mask is not None and mask.dim() == 3:"
FILL = 'scores.masked_fill(~mask, float("-inf"))'
ATTEND = "scaled_dot_product_attention(q, k, v, mask)"
SCORES = "q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])"

# --------------------------------------------------------------------------------------------
# Scores
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "DotScore", "att-scores")
DOT = "query @ key.transpose(1, 2)"
add(
    "dot_scaled",
    "Your scores match dividing by √D; DotScore is not scaled, so leave the division out. "
    "Scaling comes later, in scaled dot-product attention.",
    (DOT, f"{DOT} / math.sqrt(query.shape[-1])"),
    read="att-scaled",
)
add(
    "dot_averaged",
    "Your scores match the mean of the products instead of their sum; an inner product adds "
    "them up, so don't divide by D.",
    (DOT, f"{DOT} / query.shape[-1]"),
)
add(
    "dot_transposed",
    "Your scores match key · queryᵀ, which puts keys in rows; queries belong in rows and keys in "
    "columns: query @ key.transpose(1, 2).",
    (DOT, "key @ query.transpose(1, 2)"),
)
add(
    "dot_same_positions",
    "Your scores match comparing query i with key i only; every query meets every key, which is "
    "a matrix product and not an element-wise one.",
    (DOT, "(query * key).sum(dim=-1)"),
)
add(
    "dot_cosine",
    "Your scores match the cosine of query and key; the dot score keeps their lengths, so don't "
    "normalise them.",
    (
        DOT,
        "(query / query.norm(dim=-1, keepdim=True))"
        " @ (key / key.norm(dim=-1, keepdim=True)).transpose(1, 2)",
    ),
)
add(
    "dot_mask_ignored",
    "Your scores match ignoring the mask; where it is False the score must be -inf.",
    (IF_MASK, "if False:"),
    read="att-masks",
)
add(
    "dot_mask_inverted",
    "Your scores match a mask read the wrong way round; True means may attend, so -inf goes where "
    "the mask is False: masked_fill(~mask, ...).",
    ("~mask", "mask"),
    read="att-masks",
)
add(
    "dot_mask_zero",
    "Your masked scores are 0; a score of 0 still gets weight in the softmax, so write -inf.",
    ('float("-inf")', "0.0"),
    read="att-masks",
)
add(
    "dot_mask_finite",
    "Your masked scores are a large negative number; this exercise asks for -inf, which no real "
    "score can reach.",
    ('float("-inf")', "-1e9"),
    read="att-masks",
)
add(
    "dot_mask_added",
    "Your scores match adding the mask as numbers (1 where True); write -inf where it is False "
    "and leave the other scores alone.",
    (FILL, "scores + mask.to(scores.dtype)"),
    read="att-masks",
)
add(
    "dot_widths_unchecked",
    "Queries and keys of different widths are not refused with a ValueError; compare the last "
    "sizes first and raise it yourself.",
    ("if query.shape[-1] != key.shape[-1]:", "if False:"),
)
add(
    "dot_detached",
    "Your scores are right, but no gradient reaches the queries; don't detach them or use .data.",
    (DOT, "query.detach() @ key.transpose(1, 2)"),
)

add = mistakes_in(MISCONCEPTIONS, "BilinearScore", "att-scores")
BILINEAR = "query @ self.weight @ key.transpose(1, 2)"
WEIGHT = "self.weight = nn.Parameter(torch.randn(query_dim, key_dim) / math.sqrt(key_dim))"
add(
    "bilinear_transposed",
    "Your scores match query · Wᵀ · key; W maps the query's side to the key's side, so it is "
    "query @ weight @ keyᵀ without a transpose of W.",
    (BILINEAR, "query @ self.weight.T @ key.transpose(1, 2)"),
)
add(
    "bilinear_weight_shape",
    "Your weight has the shape (key_dim, query_dim), as nn.Linear would store it; this exercise "
    "fixes (query_dim, key_dim).",
    (WEIGHT, "self.weight = nn.Parameter(torch.randn(key_dim, query_dim))"),
    (BILINEAR, "query @ self.weight.T @ key.transpose(1, 2)"),
)
add(
    "bilinear_weight_per_position",
    "You have one matrix for every position; there is a single W, shared by all pairs of "
    "positions, whatever the length.",
    (WEIGHT, "self.weight = nn.Parameter(torch.randn(64, query_dim, key_dim))"),
    (
        BILINEAR,
        'torch.einsum("bqa,kac,bkc->bqk", query, self.weight[: key.shape[1]], key)',
    ),
)
add(
    "bilinear_not_a_parameter",
    "Your weight is a plain tensor, so no optimiser would train it; wrap it in nn.Parameter.",
    (WEIGHT, "self.weight = torch.randn(query_dim, key_dim)"),
)
add(
    "bilinear_quadratic",
    "Your scores match a quadratic form, with the query on both sides of W; a bilinear score has "
    "the query on the left and the key on the right.",
    (BILINEAR, "query @ self.weight @ query.transpose(1, 2)"),
)
add(
    "bilinear_without_key",
    "Your result is query · W, a vector for each query; multiply it by each key to get one number "
    "for each pair.",
    (BILINEAR, "query @ self.weight"),
)
add(
    "bilinear_without_weight",
    "Your scores match the plain inner product; W stands between query and key.",
    (BILINEAR, "query @ key.transpose(1, 2)"),
)
add(
    "bilinear_tanh",
    "Your scores match a tanh around query · W · key; the bilinear score has no non-linearity.",
    (BILINEAR, f"torch.tanh({BILINEAR})"),
)
add(
    "bilinear_scaled",
    "Your scores match dividing by √key_dim; the bilinear score is not scaled, since W can learn "
    "its own scale.",
    (BILINEAR, f"{BILINEAR} / math.sqrt(key.shape[-1])"),
)
add(
    "bilinear_mask_ignored",
    "Your scores match ignoring the mask; where it is False the score must be -inf.",
    (IF_MASK, "if False:"),
    read="att-masks",
)
add(
    "bilinear_mask_inverted",
    "Your scores match a mask read the wrong way round; True means may attend.",
    ("~mask", "mask"),
    read="att-masks",
)
add(
    "bilinear_mask_zero",
    "Your masked scores are 0, which still gets weight in the softmax; write -inf.",
    ('float("-inf")', "0.0"),
    read="att-masks",
)

add = mistakes_in(MISCONCEPTIONS, "AdditiveScore", "att-scores")
TANH = "torch.tanh(q + k)"
add(
    "additive_linear",
    "Your scores match leaving out the tanh; without it the query adds the same number to all "
    "scores of its row and cancels in the softmax.",
    (TANH, "q + k"),
)
add(
    "additive_sigmoid",
    "Your scores match a sigmoid in place of the tanh; use torch.tanh.",
    (TANH, "torch.sigmoid(q + k)"),
)
add(
    "additive_relu",
    "Your scores match a ReLU in place of the tanh; use torch.tanh.",
    (TANH, "torch.relu(q + k)"),
)
add(
    "additive_tanh_each",
    "Your scores match tanh(W_q q) + tanh(W_k k); add the two projections first and take the tanh "
    "of the sum, or query and key never interact.",
    (TANH, "torch.tanh(q) + torch.tanh(k)"),
)
add(
    "additive_tanh_last",
    "Your scores match a tanh around the energy; the tanh comes before it: v · tanh(...).",
    (TANH, "q + k"),
    ("self.energy(hidden).squeeze(-1)", "torch.tanh(self.energy(hidden)).squeeze(-1)"),
)
add(
    "additive_multiplied",
    "Your scores match tanh(W_q q · W_k k), element by element; the projections are added.",
    (TANH, "torch.tanh(q * k)"),
)
add(
    "additive_without_energy",
    "Your scores match summing the hidden units; the learned vector `energy` weighs them.",
    ("self.energy(hidden).squeeze(-1)", "hidden.sum(dim=-1)"),
)
add(
    "additive_transposed",
    "Your scores have keys in rows and queries in columns; unsqueeze the query at dimension 2 and "
    "the key at dimension 1.",
    ("self.query_projection(query).unsqueeze(2)", "self.query_projection(query).unsqueeze(1)"),
    ("self.key_projection(key).unsqueeze(1)", "self.key_projection(key).unsqueeze(2)"),
)
add(
    "additive_projections_swapped",
    "Your scores match the two projections in each other's place; query_projection is for the "
    "query and key_projection for the key.",
    ("self.query_projection(query)", "self.key_projection(query)"),
    ("self.key_projection(key)", "self.query_projection(key)"),
)
add(
    "additive_shared_projection",
    "Your scores match projecting the key by query_projection too; the key has its own layer.",
    ("self.key_projection(key)", "self.query_projection(key)"),
)
add(
    "additive_bias",
    "Your energy layer has a bias; all three layers are without: nn.Linear(..., bias=False).",
    ("nn.Linear(hidden_dim, 1, bias=False)", "nn.Linear(hidden_dim, 1)"),
)
add(
    "additive_squeeze",
    "Your result loses every dimension of size 1, a batch of one included; name the dimension: "
    "squeeze(-1).",
    ("squeeze(-1)", "squeeze()"),
)
add(
    "additive_mask_ignored",
    "Your scores match ignoring the mask; where it is False the score must be -inf.",
    (IF_MASK, "if False:"),
    read="att-masks",
)
add(
    "additive_mask_inverted",
    "Your scores match a mask read the wrong way round; True means may attend.",
    ("~mask", "mask"),
    read="att-masks",
)
add(
    "additive_mask_zero",
    "Your masked scores are 0, which still gets weight in the softmax; write -inf.",
    ('float("-inf")', "0.0"),
    read="att-masks",
)

add = mistakes_in(MISCONCEPTIONS, "ConcatScore", "att-scores")
CONCAT_TANH = "torch.tanh(self.projection(pairs))"
add(
    "concat_linear",
    "Your scores match leaving out the tanh; a linear score W[q; k] makes attention ignore the "
    "query, because its part is the same for every key and cancels in the softmax.",
    (CONCAT_TANH, "self.projection(pairs)"),
)
add(
    "concat_key_first",
    "Your scores match [key; query]; the query comes first in the concatenation.",
    (
        "torch.cat([q, k], dim=-1)",
        "torch.cat([k, q], dim=-1)",
    ),
)
add(
    "concat_relu",
    "Your scores match a ReLU in place of the tanh; use torch.tanh.",
    (CONCAT_TANH, "torch.relu(self.projection(pairs))"),
)
add(
    "concat_sigmoid",
    "Your scores match a sigmoid in place of the tanh; use torch.tanh.",
    (CONCAT_TANH, "torch.sigmoid(self.projection(pairs))"),
)
add(
    "concat_tanh_first",
    "Your scores match W tanh([q; k]); project the pair first and take the tanh of the result.",
    (CONCAT_TANH, "self.projection(torch.tanh(pairs))"),
)
add(
    "concat_tanh_last",
    "Your scores match a tanh around the energy; the tanh comes before it: v · tanh(...).",
    (CONCAT_TANH, "self.projection(pairs)"),
    ("self.energy(hidden).squeeze(-1)", "torch.tanh(self.energy(hidden)).squeeze(-1)"),
)
add(
    "concat_without_energy",
    "Your scores match summing the hidden units; the learned vector `energy` weighs them.",
    ("self.energy(hidden).squeeze(-1)", "hidden.sum(dim=-1)"),
)
add(
    "concat_transposed",
    "Your scores have keys in rows and queries in columns; in the tensor of pairs the query "
    "varies along dimension 1 and the key along dimension 2.",
    (
        "query.unsqueeze(2).expand(-1, -1, key.shape[1], -1)",
        "query.unsqueeze(1).expand(-1, key.shape[1], -1, -1)",
    ),
    (
        "key.unsqueeze(1).expand(-1, query.shape[1], -1, -1)",
        "key.unsqueeze(2).expand(-1, -1, query.shape[1], -1)",
    ),
)
add(
    "concat_bias",
    "Your projection has a bias; both layers are without: nn.Linear(..., bias=False).",
    (
        "nn.Linear(query_dim + key_dim, hidden_dim, bias=False)",
        "nn.Linear(query_dim + key_dim, hidden_dim)",
    ),
)
add(
    "concat_squeeze",
    "Your result loses every dimension of size 1, a batch of one included; name the dimension: "
    "squeeze(-1).",
    ("squeeze(-1)", "squeeze()"),
)
add(
    "concat_mask_ignored",
    "Your scores match ignoring the mask; where it is False the score must be -inf.",
    (IF_MASK, "if False:"),
    read="att-masks",
)
add(
    "concat_mask_inverted",
    "Your scores match a mask read the wrong way round; True means may attend.",
    ("~mask", "mask"),
    read="att-masks",
)
add(
    "concat_mask_finite",
    "Your masked scores are a large negative number; this exercise asks for -inf.",
    ('float("-inf")', "-1e9"),
    read="att-masks",
)

# --------------------------------------------------------------------------------------------
# Weights and context
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "masked_softmax", "att-softmax")


def _softmax(body: str) -> str:
    """A masked_softmax that checks its mask and goes on with `body`."""
    return f"""
def masked_softmax(scores: Tensor, mask: Tensor | None = None, dim: int = -1) -> Tensor:
    if mask is not None:
        if mask.dtype != torch.bool:
            raise ValueError("mask must be torch.bool")
        try:
            mask = mask.broadcast_to(scores.shape)
        except RuntimeError:
            raise ValueError("mask can't be broadcast") from None
{body}
"""


TOP = "scores.detach().amax(dim=dim, keepdim=True)"
TOP_FIX = 'top = top.masked_fill(top == float("-inf"), 0.0)'
SUM = "numerator.sum(dim=dim, keepdim=True)"
SUM_FIX = "denominator = denominator.masked_fill(denominator == 0.0, 1.0)"
EXP = "torch.exp(scores - top)"
SOFTMAX_END = "return numerator / denominator"

add(
    "softmax_without_exp",
    "Your weights match dividing each score by the sum of the scores; take exponentials first, "
    "or negative scores give negative weights.",
    code=_softmax("""
    if mask is not None:
        scores = scores.masked_fill(~mask, 0.0)
    return scores / scores.sum(dim=dim, keepdim=True)
"""),
)
add(
    "softmax_sigmoid",
    "Your weights match a sigmoid of each score on its own; a softmax divides by the sum over the "
    "row, so that the weights compete and sum to 1.",
    code=_softmax("""
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.sigmoid(scores)
"""),
)
add(
    "softmax_argmax",
    "Your weights match putting everything on the largest score; a softmax spreads the weight: "
    "exponentials divided by their sum.",
    code=_softmax("""
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.zeros_like(scores).scatter(dim, scores.argmax(dim=dim, keepdim=True), 1.0)
"""),
)
add(
    "softmax_over_everything",
    "Your weights match dividing by the sum over the whole tensor; each slice along `dim` sums to "
    "1 on its own, so sum with dim=dim, keepdim=True.",
    (SUM, "numerator.sum()"),
)
add(
    "softmax_over_queries",
    "Your weights match a default of dim=-2, a sum over the queries; the normaliser runs over the "
    "keys, the last dimension.",
    ("dim: int = -1", "dim: int = -2"),
)
add(
    "softmax_over_first_dim",
    "Your weights match normalising over dimension 0 by default; the default is the last, dim=-1.",
    ("dim: int = -1", "dim: int = 0"),
)
add(
    "softmax_dim_ignored",
    "Your weights always sum to 1 along the last dimension; use the argument `dim` in the maximum "
    "and in the sum.",
    (TOP, "scores.detach().amax(dim=-1, keepdim=True)"),
    (SUM, "numerator.sum(dim=-1, keepdim=True)"),
)
add(
    "softmax_overflow",
    "Large scores overflow: exp(1000) is infinite. Subtract the maximum of each row before taking "
    "exponentials; it cancels in the quotient.",
    (EXP, "torch.exp(scores)"),
)
add(
    "softmax_global_maximum",
    "You subtract the maximum of the whole tensor; in a row that lies far below it every "
    "exponential underflows to 0. Subtract the maximum of each slice along `dim`.",
    (TOP, "scores.detach().max()"),
)
add(
    "softmax_maximum_under_mask",
    "You take the maximum before masking; a large masked score then makes all others underflow "
    "to 0. Mask first, then take the maximum.",
    code=_softmax("""
    top = scores.detach().amax(dim=dim, keepdim=True)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    top = top.masked_fill(top == float("-inf"), 0.0)
    numerator = torch.exp(scores - top)
    denominator = numerator.sum(dim=dim, keepdim=True)
    return numerator / denominator.masked_fill(denominator == 0.0, 1.0)
"""),
)
add(
    "softmax_mask_ignored",
    "Your weights match ignoring the mask; where it is False the weight must be 0.",
    (FILL, "scores"),
    read="att-masks",
)
add(
    "softmax_mask_inverted",
    "Your weights match a mask read the wrong way round; True means may attend, so write -inf "
    "where the mask is False: masked_fill(~mask, ...).",
    (FILL, 'scores.masked_fill(mask, float("-inf"))'),
    read="att-masks",
)
add(
    "softmax_mask_zero_before",
    "Your weights match writing 0 over masked scores before the softmax; exp(0) is 1, so masked "
    "positions still get weight. Write -inf.",
    (FILL, "scores.masked_fill(~mask, 0.0)"),
    read="att-masks",
)
add(
    "softmax_mask_multiplied_before",
    "Your weights match multiplying the exponents by the mask after the maximum was subtracted; a "
    "masked entry then counts exp(0) = 1. Write -inf over the score instead.",
    code=_softmax("""
    top = scores.detach().amax(dim=dim, keepdim=True)
    shifted = scores - top
    if mask is not None:
        shifted = shifted * mask
    numerator = torch.exp(shifted)
    return numerator / numerator.sum(dim=dim, keepdim=True)
"""),
    read="att-masks",
)
add(
    "softmax_mask_zero_after",
    "Your weights match writing 0 over masked weights after the softmax; the rest of the row then "
    "sums to less than 1. Mask the scores with -inf before the softmax.",
    code=_softmax("""
    numerator = torch.exp(scores - scores.detach().amax(dim=dim, keepdim=True))
    weights = numerator / numerator.sum(dim=dim, keepdim=True)
    return weights if mask is None else weights.masked_fill(~mask, 0.0)
"""),
    read="att-masks",
)
add(
    "softmax_mask_added",
    "Your weights match adding the mask to the scores as numbers; True would then mean +1 and "
    "False nothing at all. Write -inf where the mask is False.",
    (FILL, "scores + mask.to(scores.dtype)"),
    read="att-masks",
)
add(
    "softmax_finite_fill",
    "A fully masked row becomes uniform: you fill with a large negative number, which cancels "
    "when all scores of a row have it. Set masked weights to 0, or treat such rows on their own.",
    (FILL, "scores.masked_fill(~mask, -1e9)"),
    read="att-masks",
)
add(
    "softmax_small_fill",
    "Masked positions keep a little weight: the number you fill with is not negative enough. Use "
    "-inf.",
    (FILL, "scores.masked_fill(~mask, -10.0)"),
    read="att-masks",
)
add(
    "softmax_nan_rows",
    "A fully masked row becomes NaN: with -inf everywhere, -inf - (-inf) and 0/0 have no value. "
    "Replace the maximum -inf by 0 and the sum 0 by 1.",
    (TOP_FIX, "pass"),
    (SUM_FIX, "pass"),
    read="att-masks",
)
add(
    "softmax_nan_repaired",
    "Your weights are right, but a row of -inf has the gradient NaN: nan_to_num repairs the value, "
    "not the derivative. Avoid 0/0 before it happens.",
    (TOP_FIX, "pass"),
    (SUM_FIX, "pass"),
    (SOFTMAX_END, "return (numerator / denominator).nan_to_num(0.0)"),
    read="att-masks",
)
add(
    "softmax_only_all_masked",
    "You give zeros only if the whole mask is False; a single fully masked row among others still "
    "becomes NaN. Decide row by row, along `dim`.",
    code=_softmax("""
    if mask is not None:
        if not mask.any():
            return torch.zeros_like(scores)
        scores = scores.masked_fill(~mask, float("-inf"))
    numerator = torch.exp(scores - scores.detach().amax(dim=dim, keepdim=True))
    return numerator / numerator.sum(dim=dim, keepdim=True)
"""),
    read="att-masks",
)
add(
    "softmax_infinite_scores",
    "A row whose scores are all -inf becomes NaN, although fully masked rows are right; a score "
    "of -inf counts as masked too.",
    code=_softmax("""
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
        scores = scores.masked_fill(~mask.any(dim=dim, keepdim=True), 0.0)
    numerator = torch.exp(scores - scores.detach().amax(dim=dim, keepdim=True))
    weights = numerator / numerator.sum(dim=dim, keepdim=True)
    return weights if mask is None else weights.masked_fill(~mask, 0.0)
"""),
    read="att-masks",
)
add(
    "softmax_in_place",
    "Your weights are right, but you write -inf into the caller's scores: masked_fill_ with an "
    "underscore works in place. Use masked_fill.",
    (FILL, 'scores.masked_fill_(~mask, float("-inf"))'),
)
add(
    "softmax_detached",
    "Your weights are right, but no gradient reaches the scores; only the maximum may be detached.",
    (EXP, "torch.exp(scores.detach() - top)"),
)
add(
    "softmax_float32",
    "Your weights are always float32; keep the dtype of the scores (no .float()).",
    (SOFTMAX_END, "return (numerator / denominator).float()"),
)
add(
    "softmax_mask_type_unchecked",
    "A mask of numbers is accepted; raise a ValueError unless mask.dtype is torch.bool.",
    ("if mask.dtype != torch.bool:", "mask = mask.bool()\n        if False:"),
    read="att-masks",
)
add(
    "softmax_mask_shape_unchecked",
    "A mask that doesn't fit the scores is not refused with a ValueError; try to broadcast it to "
    "the shape of the scores, and turn the RuntimeError into a ValueError.",
    ("mask = mask.broadcast_to(scores.shape)", "pass"),
    read="att-masks",
)

add = mistakes_in(MISCONCEPTIONS, "context_vector", "att-context")
CONTEXT = "weights @ values"
add(
    "context_own_value_only",
    "Your context matches A_ii · v_i, each position's own value only; the context sums over all "
    "positions j: Σ_j A_ij v_j.",
    (
        f"return {CONTEXT}",
        "return weights.diagonal(dim1=1, dim2=2).unsqueeze(-1) * values",
    ),
)
add(
    "context_transposed",
    "Your context matches weightsᵀ @ values, a sum over the queries; the sum runs over the keys, "
    "so don't transpose the weights.",
    (f"return {CONTEXT}", "return weights.transpose(1, 2) @ values"),
)
add(
    "context_sum_over_queries",
    "Your context sums over the queries and has one row for each key; sum over the keys, so that "
    "there is one row for each query.",
    (
        f"return {CONTEXT}",
        "return (weights.unsqueeze(-1) * values.unsqueeze(1)).sum(dim=1)",
    ),
)
add(
    "context_not_summed",
    "Your result holds the weighted values one by one; add them up over the keys.",
    (f"return {CONTEXT}", "return weights.unsqueeze(-1) * values.unsqueeze(1)"),
)
add(
    "context_averaged",
    "Your context is divided by the number of keys; the weights sum to 1 already, so it is a "
    "plain sum.",
    (f"return {CONTEXT}", "return weights @ values / values.shape[-2]"),
)
add(
    "context_hard",
    "Your context is the value with the largest weight; soft attention sums all values, each "
    "times its weight.",
    (
        f"return {CONTEXT}",
        "return torch.eye(values.shape[-2], dtype=values.dtype)[weights.argmax(dim=-1)] @ values",
    ),
)
add(
    "context_unweighted",
    "Your context is the mean of all values, the same for each query; multiply each value by its "
    "weight.",
    (
        f"return {CONTEXT}",
        "return values.mean(dim=1, keepdim=True).expand(-1, weights.shape[1], -1)",
    ),
)
add(
    "context_normalised_again",
    "You divide by the sum of the weights again; use the weights as they are, or a fully masked "
    "row becomes NaN.",
    (f"return {CONTEXT}", "return weights / weights.sum(dim=-1, keepdim=True) @ values"),
)
add(
    "context_squeeze",
    "Your result loses every dimension of size 1, a batch of one included; don't squeeze.",
    (f"return {CONTEXT}", "return (weights @ values).squeeze()"),
)
add(
    "context_lengths_unchecked",
    "Weights and values of different lengths are not refused with a ValueError; compare "
    "weights.shape[-1] with values.shape[-2] first.",
    ("if weights.shape[-1] != values.shape[-2]:", "if False:"),
)
add(
    "context_detached",
    "Your context is right, but no gradient reaches the weights; don't detach them.",
    (f"return {CONTEXT}", "return weights.detach() @ values"),
)

add = mistakes_in(MISCONCEPTIONS, "AttentionDecoderStep", "att-decoder")
SCORE_STEP = "scores = self.score(s_prev.unsqueeze(1), annotations)"
STEP_SOFTMAX = "masked_softmax(scores, mask)"
STEP_CONTEXT = "context_vector(weights, annotations).squeeze(1)"
STEP_INPUT = "torch.cat([y_prev, context], dim=-1)"
STEP_RETURN = "return s, context, weights.squeeze(1)"
STEP_MASK = "source_mask.unsqueeze(1)"
add(
    "decoder_scores_new_state",
    "Your weights match scoring with the new state s_t; the step scores the previous state, since "
    "s_t is computed from the context.",
    (
        SCORE_STEP,
        "empty = annotations.new_zeros(annotations.shape[0], annotations.shape[2])\n"
        "        new = self.cell(torch.cat([y_prev, empty], dim=-1), s_prev)\n"
        "        scores = self.score(new.unsqueeze(1), annotations)",
    ),
)
add(
    "decoder_scores_word",
    "Your weights match scoring with the previous word; the query is the decoder's previous state "
    "s_prev.",
    (SCORE_STEP, "scores = self.score(y_prev.unsqueeze(1), annotations)"),
)
add(
    "decoder_context_not_fed",
    "Your new state doesn't depend on the context; the cell's input is [y_prev; context].",
    (STEP_INPUT, "torch.cat([y_prev, torch.zeros_like(context)], dim=-1)"),
)
add(
    "decoder_context_first",
    "Your state matches [context; y_prev] as the cell's input; y_prev comes first.",
    (STEP_INPUT, "torch.cat([context, y_prev], dim=-1)"),
)
add(
    "decoder_state_forgotten",
    "Your new state doesn't depend on the previous one; pass s_prev to the cell as its second "
    "argument.",
    ("self.cell(cell_input, s_prev)", "self.cell(cell_input)"),
)
add(
    "decoder_state_not_updated",
    "You return the previous state; return what the cell gives.",
    (STEP_RETURN, "return s_prev, context, weights.squeeze(1)"),
)
add(
    "decoder_context_as_state",
    "Your result stands in the order (context, state, weights); return (state, context, weights).",
    (STEP_RETURN, "return context, s, weights.squeeze(1)"),
)
add(
    "decoder_fixed_context",
    "Your context is the last annotation, as in a decoder without attention; it is the weighted "
    "sum of all annotations.",
    (STEP_CONTEXT, "annotations[:, -1]"),
)
add(
    "decoder_uniform_context",
    "Your context is the mean of the annotations; weigh each by its attention weight.",
    (STEP_CONTEXT, "annotations.mean(dim=1)"),
)
add(
    "decoder_raw_scores",
    "Your context matches using the scores themselves as weights; normalise them with "
    "masked_softmax first.",
    (
        STEP_SOFTMAX,
        "scores if mask is None else scores.masked_fill(~mask, 0.0)",
    ),
    read="att-softmax",
)
add(
    "decoder_returns_scores",
    "The third result holds the scores; return the weights, after the softmax.",
    (STEP_RETURN, "return s, context, scores.squeeze(1)"),
)
add(
    "decoder_softmax_over_batch",
    "Your weights sum to 1 over the batch; the softmax runs over the source positions, the last "
    "dimension.",
    (STEP_SOFTMAX, "masked_softmax(scores, mask, dim=0)"),
    read="att-softmax",
)
add(
    "decoder_softmax_over_queries",
    "Your weights are all 1: the softmax runs over the dimension of the single query. It runs "
    "over the source positions, the last dimension.",
    (STEP_SOFTMAX, "masked_softmax(scores, mask, dim=1)"),
    read="att-softmax",
)
add(
    "decoder_mask_ignored",
    "Your weights match ignoring source_mask; padded source positions must get the weight 0.",
    (STEP_SOFTMAX, "masked_softmax(scores)"),
    read="att-masks",
)
add(
    "decoder_mask_inverted",
    "Your weights match a mask read the wrong way round; True marks real tokens.",
    (STEP_MASK, f"~{STEP_MASK}"),
    read="att-masks",
)
add(
    "decoder_mask_wrong_axis",
    "source_mask (B, T) meets scores (B, 1, T) without its query dimension, so that the batch is "
    "taken for queries; insert it with unsqueeze(1).",
    (STEP_MASK, "source_mask"),
    read="att-masks",
)
add(
    "decoder_mask_after_softmax",
    "Your weights match setting padded weights to 0 after the softmax, so that the rest doesn't "
    "sum to 1; mask the scores before it.",
    (
        STEP_SOFTMAX,
        "masked_softmax(scores)\n"
        "        if mask is not None:\n"
        "            weights = weights.masked_fill(~mask, 0.0)",
    ),
    read="att-masks",
)
add(
    "decoder_squeeze",
    "Your weights lose every dimension of size 1, a batch of one included; name the dimension: "
    "squeeze(1).",
    (STEP_RETURN, "return s, context, weights.squeeze()"),
)
add(
    "decoder_detached",
    "The values are right, but no gradient reaches the score's layers; don't detach the weights.",
    (STEP_SOFTMAX, "masked_softmax(scores, mask).detach()"),
)

add = mistakes_in(MISCONCEPTIONS, "attention_dropout", "att-dropout")
KEEP = "torch.rand_like(weights, dtype=torch.float32) >= p"
DROP = "return weights * keep / (1.0 - p)"
DROP_OFF = "if not training or p == 0.0:"
DROP_CHECK = (
    'if not 0.0 <= p <= 1.0:\n        raise ValueError(f"p must be between 0 and 1, but is {p}")'
)
add(
    "dropout_without_rescale",
    "Your surviving weights are not enlarged; divide them by 1 - p, so that their expected value "
    "stays the same.",
    (DROP, "return weights * keep"),
)
add(
    "dropout_scaled_down",
    "Your surviving weights are multiplied by 1 - p; divide by it: fewer survive, so each must "
    "count more.",
    (DROP, "return weights * keep * (1.0 - p)"),
)
add(
    "dropout_divided_by_p",
    "Your surviving weights are divided by p; divide by the share that survives, 1 - p.",
    (DROP, "return weights * keep / p"),
)
add(
    "dropout_scaled_in_evaluation",
    "You multiply by 1 - p in evaluation, as dropout was first described; here survivors are "
    "enlarged in training and evaluation changes nothing.",
    (DROP, "return weights * keep"),
    (DROP_OFF, "if not training:\n        return weights * (1.0 - p)\n    if p == 0.0:"),
)
add(
    "dropout_in_evaluation",
    "Weights are dropped in evaluation too; if training is False they come back unchanged.",
    (DROP_OFF, "if p == 0.0:"),
)
add(
    "dropout_never",
    "No weight is ever dropped; in training each becomes 0 with probability p.",
    (DROP_OFF, "if True:"),
)
add(
    "dropout_p_is_keep",
    "Weights survive with probability p; p is the probability of being dropped.",
    (KEEP, "torch.rand_like(weights, dtype=torch.float32) < p"),
    (DROP, "return weights * keep / p"),
)
add(
    "dropout_keeps_p_scales_right",
    "Weights are dropped with probability 1 - p: the comparison with the random number is the "
    "wrong way round. torch.rand(...) >= p is True with probability 1 - p.",
    (KEEP, "torch.rand_like(weights, dtype=torch.float32) < p"),
)
add(
    "dropout_whole_rows",
    "Whole rows are dropped together; draw a random number for every single weight.",
    (KEEP, "torch.rand(*weights.shape[:-1], 1) >= p"),
)
add(
    "dropout_same_for_rows",
    "Every row drops the same columns; draw a random number for every single weight.",
    (KEEP, "torch.rand(weights.shape[-1]) >= p"),
)
add(
    "dropout_same_for_batch",
    "All heads and examples drop the same positions; draw random numbers of the full shape.",
    (KEEP, "torch.rand(weights.shape[-2:]) >= p"),
)
add(
    "dropout_same_every_call",
    "Every call drops the same positions: a seed is set inside the function. Don't seed there.",
    (KEEP, "torch.rand(weights.shape, generator=torch.Generator().manual_seed(0)) >= p"),
)
add(
    "dropout_normalised_again",
    "You normalise the rows again after dropping; the survivors are divided by 1 - p only.",
    (
        DROP,
        "dropped = weights * keep / (1.0 - p)\n"
        "    return dropped / dropped.sum(dim=-1, keepdim=True).clamp(min=1e-9)",
    ),
)
add(
    "dropout_nan_for_one",
    "With p = 1 the weights become NaN, from 0/0; return zeros in that case.",
    ("if p == 1.0:", "if False:"),
)
add(
    "dropout_unchecked",
    "A p outside [0, 1] is accepted; raise a ValueError before anything else.",
    ("if not 0.0 <= p <= 1.0:", "if False:"),
)
add(
    "dropout_unchecked_in_evaluation",
    "A p outside [0, 1] is accepted in evaluation; check p before you return.",
    (DROP_CHECK, "if not training:\n        return weights\n    " + DROP_CHECK),
)
add(
    "dropout_in_place",
    "The result is right, but you change the caller's weights: mul_ and div_ work in place. Use "
    "* and /.",
    (DROP, "return weights.mul_(keep).div_(1.0 - p)"),
)
add(
    "dropout_detached",
    "The values are right, but no gradient reaches the weights; don't detach them.",
    (DROP, "return weights.detach() * keep / (1.0 - p)"),
)

# --------------------------------------------------------------------------------------------
# Scaled dot-product attention
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "scaled_dot_product_attention", "att-scaled")
SCALED = "query @ key.transpose(-2, -1) / math.sqrt(d_k)"
UNSCALED = "query @ key.transpose(-2, -1)"
WEIGHTS = "masked_softmax(scores, mask)"
DROPPED = "attention_dropout(weights, dropout_p, training)"
ATTENTION_RETURN = "return dropped @ value, weights"
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
        "    weights = weights / weights.sum(dim=-1, keepdim=True)",
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
        "    weights = torch.eye(key.shape[-2], dtype=scores.dtype)[weights.argmax(dim=-1)]",
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
        "        weights = weights.masked_fill(~mask, 0.0)",
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
    "output should be 0; your masked_softmax does that.",
    (
        WEIGHTS,
        "scores if mask is None else scores.masked_fill(~mask, float('-inf'))\n"
        "    weights = weights.softmax(dim=-1)",
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
        "return (dropped if mask is None else dropped * mask) @ value, weights",
    ),
    read="att-masks",
)
add(
    "attention_own_value_only",
    "Your output matches A_ii · v_i, each position's own value only; sum over all positions j: "
    "Σ_j A_ij v_j.",
    (
        ATTENTION_RETURN,
        "return dropped.diagonal(dim1=-2, dim2=-1).unsqueeze(-1) * value, weights",
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
    (ATTENTION_RETURN, "return dropped @ key, weights"),
    read="att-soft-lookup",
)
add(
    "attention_transpose_1_2",
    "You transpose dimensions 1 and 2, which is right for three dimensions only; the last two are "
    "transpose(-2, -1).",
    (SCALED, "query @ key.transpose(1, 2) / math.sqrt(d_k)"),
)
add(
    "attention_returns_scores",
    "The second result holds the scores; return the weights, after the softmax.",
    (ATTENTION_RETURN, "return dropped @ value, scores"),
)
add(
    "attention_results_swapped",
    "Your results stand in the order (weights, output); return (output, weights).",
    (ATTENTION_RETURN, "return weights, dropped @ value"),
)
add(
    "attention_returns_output_only",
    "You return the output only; return the pair (output, weights).",
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
    (SCALED, f"attention_dropout({SCALED}, dropout_p, training)"),
    (DROPPED, "weights"),
    read="att-dropout",
)
add(
    "attention_dropout_on_output",
    "Dropout acts on the output; drop weights, before they meet the values.",
    (DROPPED, "weights"),
    (
        ATTENTION_RETURN,
        "return attention_dropout(dropped @ value, dropout_p, training), weights",
    ),
    read="att-dropout",
)
add(
    "attention_dropout_without_rescale",
    "Dropped weights are not made up for; divide the survivors by 1 - dropout_p, as your "
    "attention_dropout does.",
    (DROPPED, f"weights * ({DROPPED} != 0)"),
    read="att-dropout",
)
add(
    "attention_dropout_in_evaluation",
    "Dropout acts although training is False; pass `training` on.",
    (DROPPED, "attention_dropout(weights, dropout_p, True)"),
    read="att-dropout",
)
add(
    "attention_dropout_ignored",
    "dropout_p does nothing; in training, drop weights before they meet the values.",
    (DROPPED, "weights"),
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
    "Your mask lets padding through; combine the causal mask with the padding mask.",
    (BOTH, "return causal.expand(len(lengths), -1, -1)"),
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
            f"weights = masked_softmax({SCORES}, mask, dim=-2)\n"
            "        return weights @ v, weights",
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
        f"{prefix}_returns_output_only",
        "You return the output only; return the pair (output, weights).",
        (f"return {ATTEND}", f"return {ATTEND}[0]"),
    )


add = mistakes_in(MISCONCEPTIONS, "SelfAttention", "att-self")
_attention_mistakes(add, "self")
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
        f"output, weights = {ATTEND}\n"
        "        return output + x[..., : output.shape[-1]].sum() * 0 + "
        "torch.nn.functional.pad(x, (0, max(0, output.shape[-1] - x.shape[-1])))"
        "[..., : output.shape[-1]], weights",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "MaskedSelfAttention", "att-causal")
_attention_mistakes(add, "masked_self")
CAUSAL = "causal_mask(x.shape[1]).to(x.device)"
AND_PADDING = "mask = mask & padding.unsqueeze(1)"
add(
    "masked_self_sees_future",
    "Your tokens see the future: there is no causal mask. Position i may attend to 0, ..., i.",
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
        f"weights = masked_softmax(({SCORES}).masked_fill(~mask, 0.0))\n"
        "        return weights @ v, weights",
    ),
    read="att-masks",
)
add(
    "masked_self_zero_after",
    "Your weights on the future are overwritten by 0 after the softmax, so that rows sum to less "
    "than 1; mask the scores with -inf before it.",
    (
        f"return {ATTEND}",
        f"weights = masked_softmax({SCORES}).masked_fill(~mask, 0.0)\n"
        "        return weights @ v, weights",
    ),
    read="att-masks",
)
add(
    "masked_self_padding_ignored",
    "Your tokens attend to padding; combine the padding mask with the causal one.",
    (AND_PADDING, "pass"),
    read="att-masks",
)
add(
    "masked_self_padding_inverted",
    "You hide the real tokens and show the padding; True marks real tokens.",
    (AND_PADDING, "mask = mask & ~padding.unsqueeze(1)"),
    read="att-masks",
)
add(
    "masked_self_padding_replaces_causal",
    "With padding given, your tokens see the future: the padding mask replaces the causal one. "
    "Both hold: combine them with &.",
    (AND_PADDING, "mask = padding.unsqueeze(1)"),
    read="att-masks",
)
add(
    "masked_self_padding_or",
    "Your masks are joined with or; a key must be in the past and real: use &.",
    (AND_PADDING, "mask = mask | padding.unsqueeze(1)"),
    read="att-masks",
)
add(
    "masked_self_padding_on_queries",
    "Your padding mask empties the rows of padded queries; it is the keys that are hidden, in "
    "the columns: padding.unsqueeze(1).",
    (AND_PADDING, "mask = mask & padding.unsqueeze(2)"),
    read="att-masks",
)
add(
    "masked_self_padding_wrong_axis",
    "padding (B, T) meets the causal mask (T, T) without a query dimension, so that the batch is "
    "taken for queries; insert it with unsqueeze(1).",
    (AND_PADDING, "mask = mask & padding"),
    read="att-masks",
)
add(
    "masked_self_nan",
    "A token that may see nothing gives NaN: a softmax over nothing but -inf is 0/0. Its weights "
    "and output should be 0; your masked_softmax does that.",
    (
        f"return {ATTEND}",
        f"weights = ({SCORES}).masked_fill(~mask, float('-inf')).softmax(dim=-1)\n"
        "        return weights @ v, weights",
    ),
    read="att-masks",
)
add(
    "masked_self_finite_fill",
    "A token that may see nothing attends to everything alike, the future included; its weights "
    "and output should be 0.",
    (
        f"return {ATTEND}",
        f"weights = ({SCORES}).masked_fill(~mask, -1e9).softmax(dim=-1)\n"
        "        return weights @ v, weights",
    ),
    read="att-masks",
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
        f"return {mixed}, weights",
        "merged = heads.mean(dim=1).repeat(1, 1, self.num_heads)\n"
        f"        return {layer}(merged), weights",
    )


add = mistakes_in(MISCONCEPTIONS, "MultiHeadAttention", "att-multihead")
HEADS_ARGS = "q, k, v, mask, self.dropout, self.training"
HEADS_OUT = "self.out_proj(merge_heads(heads))"
HEADS_RETURN = f"return {HEADS_OUT}, weights"
HEADS_CALL = (
    "heads, weights = scaled_dot_product_attention(\n"
    "            q, k, v, mask, self.dropout, self.training\n"
    "        )"
)
HEADS_INPUTS = {"q_proj": "query", "k_proj": "key", "v_proj": "value"}
UNEQUAL = "if d_model % num_heads != 0:"
add(
    "heads_without_out_proj",
    "Your output matches leaving out out_proj; it mixes the heads and is always applied.",
    (HEADS_RETURN, "return merge_heads(heads), weights"),
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
        "        heads, weights = scaled_dot_product_attention(\n"
        "            *joined, mask, self.dropout, self.training\n"
        "        )\n"
        "        heads = split_heads(heads.squeeze(1), self.num_heads)\n"
        "        weights = weights.expand(-1, self.num_heads, -1, -1)",
    ),
    read="att-heads",
)
add(
    "heads_weights_averaged",
    "You return the mean of the weights over the heads; return those of every head, "
    "(B, H, Tq, Tk).",
    (HEADS_RETURN, f"return {HEADS_OUT}, weights.mean(dim=1)"),
)
add(
    "heads_weights_of_one_head",
    "You return the weights of one head; return those of every head, (B, H, Tq, Tk).",
    (HEADS_RETURN, f"return {HEADS_OUT}, weights[:, 0]"),
)
add(
    "heads_returns_output_only",
    "You return the output only; return the pair (output, weights).",
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
    "-inf, or use your scaled_dot_product_attention.",
    (
        HEADS_CALL,
        f"scores = {SCORES}\n"
        "        weights = (scores if mask is None else scores.masked_fill(~mask, 0.0))\n"
        "        weights = weights.softmax(dim=-1)\n"
        "        heads = attention_dropout(weights, self.dropout, self.training) @ v",
    ),
    read="att-masks",
)
add(
    "heads_mask_nan",
    "A query that may see nothing gives NaN: a softmax over nothing but -inf is 0/0. Use your "
    "masked_softmax.",
    (
        HEADS_CALL,
        f"scores = {SCORES}\n"
        "        weights = scores if mask is None else scores.masked_fill(~mask, -math.inf)\n"
        "        weights = weights.softmax(dim=-1)\n"
        "        heads = attention_dropout(weights, self.dropout, self.training) @ v",
    ),
    read="att-masks",
)
add(
    "heads_mask_finite_fill",
    "A query that may see nothing attends to everything alike: a large negative number cancels "
    "when a whole row has it. Its weights should be 0.",
    (
        HEADS_CALL,
        f"scores = {SCORES}\n"
        "        weights = scores if mask is None else scores.masked_fill(~mask, -1e9)\n"
        "        weights = weights.softmax(dim=-1)\n"
        "        heads = attention_dropout(weights, self.dropout, self.training) @ v",
    ),
    read="att-masks",
)
add(
    "heads_softmax_over_heads",
    "Your weights sum to 1 over the heads (dim=1 is the heads here); the softmax runs over the "
    "keys, dim=-1.",
    (
        HEADS_CALL,
        f"weights = masked_softmax({SCORES}, mask, dim=1)\n"
        "        heads = attention_dropout(weights, self.dropout, self.training) @ v",
    ),
    read="att-softmax",
)
add(
    "heads_weights_after_dropout",
    "The weights you return have been through dropout; return those before it.",
    (
        HEADS_CALL,
        "weights = scaled_dot_product_attention(q, k, v, mask)[1]\n"
        "        weights = attention_dropout(weights, self.dropout, self.training)\n"
        "        heads = weights @ v",
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
        f"output = attention_dropout({HEADS_OUT}, self.dropout, self.training)\n"
        "        return output, weights",
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
        "weights = scaled_dot_product_attention(q, k, v, mask)[1].detach()\n"
        "        heads = attention_dropout(weights, self.dropout, self.training) @ v",
    ),
)

# --------------------------------------------------------------------------------------------
# Layouts
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "FusedMultiHeadAttention", "att-layouts")
FUSED_QKV = "qkv = split_heads(self.qkv_proj(x), self.num_heads)"
FUSED_CHUNK = "q, k, v = qkv.chunk(3, dim=-1)"
FUSED_OUT = "self.o_proj(merge_heads(heads))"
FUSED_RETURN = f"return {FUSED_OUT}, weights"
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
    "Your last reshape uses the width of the input; after merging the width is embed_dim, so "
    "don't reuse the name that holds the input's.",
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
    (FUSED_RETURN, "return merge_heads(heads), weights"),
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
    "Your weights match dividing by √embed_dim; each head scales by the root of its own width.",
    (ATTEND, "scaled_dot_product_attention(q / math.sqrt(self.num_heads), k, v, mask)"),
    read="att-scaling",
)
add(
    "fused_not_scaled",
    "Your weights match scores that are not scaled; divide them by √(embed_dim / H).",
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
add(
    "fused_weights_averaged",
    "You return the mean of the weights over the heads; return those of every head, (B, H, T, T).",
    (FUSED_RETURN, f"return {FUSED_OUT}, weights.mean(dim=1)"),
)
add(
    "fused_bias",
    "Your layers have no biases; here both have one.",
    ("nn.Linear(input_dim, 3 * embed_dim)", "nn.Linear(input_dim, 3 * embed_dim, bias=False)"),
    ("nn.Linear(embed_dim, embed_dim)", "nn.Linear(embed_dim, embed_dim, bias=False)"),
)
add(
    "fused_unchecked",
    "An embed_dim that the number of heads doesn't divide is not refused with a ValueError; test "
    "the remainder when the module is created.",
    ("if embed_dim % num_heads != 0:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "PerHeadAttention", "att-layouts")
CONTRIBUTIONS = "contributions = heads @ self.w_o"
PER_HEAD_RETURN = "return contributions.sum(dim=1), weights"
add(
    "per_head_averaged",
    "Your output is the mean of what the heads contribute; it is their sum.",
    (PER_HEAD_RETURN, "return contributions.mean(dim=1), weights"),
)
add(
    "per_head_concatenated",
    "Your output puts the contributions side by side; each has the full width already, so they "
    "are added up.",
    (PER_HEAD_RETURN, "return merge_heads(contributions), weights"),
)
add(
    "per_head_not_summed",
    "Your output still has a head dimension; sum over the heads.",
    (PER_HEAD_RETURN, "return contributions, weights"),
)
add(
    "per_head_without_w_o",
    "Your output joins the heads and leaves out w_o; each head contributes Z_h w_o[h].",
    (PER_HEAD_RETURN, "return merge_heads(heads), weights"),
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
        "heads, weights = scaled_dot_product_attention(q, k, v, mask)",
        "if mask is not None and mask.dim() == 4:\n"
        "            mask = mask[:, :1]\n"
        "        heads, weights = scaled_dot_product_attention(q, k, v, mask)",
    ),
    read="att-masks",
)
add(
    "per_head_weights_averaged",
    "You return the mean of the weights over the heads; return those of every head, "
    "(B, H, Tq, Tk).",
    (PER_HEAD_RETURN, "return contributions.sum(dim=1), weights.mean(dim=1)"),
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
add(
    "cross_mask_on_queries",
    "memory_mask is applied to the rows, the queries; it hides keys, in the columns: "
    "memory_mask[:, None, None, :].",
    (CROSS_MASK, "memory_mask[:, None, :, None]"),
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
    "Your weights match dividing by √embed_dim; each head scales by the root of its own width.",
    (ATTEND, "scaled_dot_product_attention(q / math.sqrt(self.num_heads), k, v, mask)"),
    read="att-scaling",
)
add(
    "cross_not_scaled",
    "Your weights match scores that are not scaled; divide them by √(embed_dim / H).",
    (ATTEND, "scaled_dot_product_attention(q * math.sqrt(q.shape[-1]), k, v, mask)"),
    read="att-scaling",
)
add(
    "cross_without_out_proj",
    "Your output matches leaving out out_proj; it mixes the heads and is always applied.",
    (f"return {HEADS_OUT}, weights", "return merge_heads(heads), weights"),
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
    (f"return {HEADS_OUT}, weights", f"return {HEADS_OUT}, weights.mean(dim=1)"),
)
add(
    "cross_out_to_memory_width",
    "Your out_proj has memory_dim outputs; it leads back to query_dim, the width of x.",
    ("nn.Linear(embed_dim, query_dim)", "nn.Linear(embed_dim, memory_dim)"),
)
add(
    "cross_bias",
    "Your projections have no biases; here all four have one.",
    ("nn.Linear(query_dim, embed_dim)", "nn.Linear(query_dim, embed_dim, bias=False)"),
    ("nn.Linear(embed_dim, query_dim)", "nn.Linear(embed_dim, query_dim, bias=False)"),
    (
        "self.k_proj = nn.Linear(memory_dim, embed_dim)",
        "self.k_proj = nn.Linear(memory_dim, embed_dim, bias=False)",
    ),
    (
        "self.v_proj = nn.Linear(memory_dim, embed_dim)",
        "self.v_proj = nn.Linear(memory_dim, embed_dim, bias=False)",
    ),
)
add(
    "cross_unchecked",
    "An embed_dim that the number of heads doesn't divide is not refused with a ValueError; test "
    "the remainder when the module is created.",
    ("if embed_dim % num_heads != 0:", "if False:"),
)
