"""Known mistakes of `attention-scores`: the scores, the softmax and the decoder's step.

Scaling where there is none, a softmax without exponentials or with zeros for the masked scores.
"""

from __future__ import annotations

from autograder.misconceptions.attention.common import IF_MASK
from autograder.units.variants import Misconception, mistakes_in

MISCONCEPTIONS: list[Misconception] = []
FILL = 'scores.masked_fill(~mask, float("-inf"))'
ROWS_ARE_EXAMPLES = (
    "if mask is not None and mask.dim() == 2 and len(mask) == len(query):\n"
    f"            mask = mask.unsqueeze(1)\n        {IF_MASK}"
)

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
    "dot_mask_for_each_example",
    "You take a mask with two dimensions for (B, Tk), one row for each example; it is (Tq, Tk), "
    "one row for each query, the same for every example.",
    (IF_MASK, ROWS_ARE_EXAMPLES),
    read="att-masks",
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
    "dot_reshaped",
    "Your scores match a key that is reshaped to (B, D, Tk), which mixes its numbers up; transpose "
    "it: key.transpose(1, 2).",
    (DOT, "query @ key.reshape(key.shape[0], key.shape[2], key.shape[1])"),
)
add(
    "dot_width_one_accepted",
    "A query or a key that is 1 wide passes where the other is wider, since broadcasting repeats "
    "its number; refuse any two widths that differ.",
    (
        "if query.shape[-1] != key.shape[-1]:",
        "if query.shape[-1] != key.shape[-1] and 1 not in (query.shape[-1], key.shape[-1]):",
    ),
    (DOT, "(query.unsqueeze(2) * key.unsqueeze(1)).sum(dim=-1)"),
)
add(
    "dot_squeezed_query",
    "A single query for several examples goes wrong: squeeze(1) removes its dimension, and the "
    "batch is taken for queries. Leave the query (B, Tq, D).",
    (DOT, "query.squeeze(1) @ key.transpose(1, 2)"),
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
    "bilinear_scaled_by_query",
    "Your scores match dividing by √query_dim; the bilinear score is not scaled, since W can learn "
    "its own scale.",
    (BILINEAR, f"{BILINEAR} / math.sqrt(query.shape[-1])"),
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
    "bilinear_mask_for_each_example",
    "You take a mask with two dimensions for (B, Tk), one row for each example; it is (Tq, Tk), "
    "one row for each query, the same for every example.",
    (IF_MASK, ROWS_ARE_EXAMPLES),
    read="att-masks",
)
add(
    "bilinear_mask_finite",
    "Your masked scores are a large negative number; this exercise asks for -inf.",
    ('float("-inf")', "-1e9"),
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
    "additive_subtracted",
    "Your scores match tanh(W_q q - W_k k); the projections are added.",
    (TANH, "torch.tanh(q - k)"),
)
add(
    "additive_scaled",
    "Your scores match dividing by √hidden_dim; the additive score is not scaled.",
    ("self.energy(hidden)", "(self.energy(hidden) / math.sqrt(hidden.shape[-1]))"),
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
    "additive_clamped",
    "Your scores match a clamp before the tanh, which stops growing by itself; leave it out.",
    (TANH, "torch.tanh((q + k).clamp(-3, 3))"),
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
    "additive_same_positions",
    "You add query i to key i only; every query meets every key, so give the query a dimension for "
    "the keys (unsqueeze(2)) and the key one for the queries (unsqueeze(1)).",
    ("self.query_projection(query).unsqueeze(2)", "self.query_projection(query)"),
    ("self.key_projection(key).unsqueeze(1)", "self.key_projection(key)"),
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
    "additive_mask_for_each_example",
    "You take a mask with two dimensions for (B, Tk), one row for each example; it is (Tq, Tk), "
    "one row for each query, the same for every example.",
    (IF_MASK, ROWS_ARE_EXAMPLES),
    read="att-masks",
)
add(
    "additive_mask_finite",
    "Your masked scores are a large negative number; this exercise asks for -inf.",
    ('float("-inf")', "-1e9"),
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
    "concat_clamped",
    "Your scores match a clamp before the tanh, which stops growing by itself; leave it out.",
    (CONCAT_TANH, "torch.tanh(self.projection(pairs).clamp(-3, 3))"),
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
    "concat_mask_for_each_example",
    "You take a mask with two dimensions for (B, Tk), one row for each example; it is (Tq, Tk), "
    "one row for each query, the same for every example.",
    (IF_MASK, ROWS_ARE_EXAMPLES),
    read="att-masks",
)
add(
    "concat_mask_finite",
    "Your masked scores are a large negative number; this exercise asks for -inf.",
    ('float("-inf")', "-1e9"),
    read="att-masks",
)

# What happens to all four.
KEPT_MASK = """if mask is None:
            mask = getattr(self, "last", None)
        self.last = mask
        if mask is not None and mask.broadcast_to(scores.shape).shape == scores.shape:"""
for name, score in {
    "dot": "DotScore",
    "bilinear": "BilinearScore",
    "additive": "AdditiveScore",
    "concat": "ConcatScore",
}.items():
    add = mistakes_in(MISCONCEPTIONS, score, "att-scores")
    add(
        f"{name}_softmax",
        "Your result holds weights, after a softmax; a score module gives the scores themselves.",
        ("return scores", "return scores.softmax(dim=-1)"),
    )
    add(
        f"{name}_mask_times_infinity",
        "You multiply the mask by -inf, and 0 · (-inf) is NaN where the mask is True; write -inf "
        "with masked_fill(~mask, ...).",
        (FILL, 'scores + (~mask) * float("-inf")'),
        read="att-masks",
    )
    add(
        f"{name}_mask_lowest",
        "Your masked scores are the lowest finite number; this exercise asks for -inf.",
        ('float("-inf")', "torch.finfo(scores.dtype).min"),
        read="att-masks",
    )
    add(
        f"{name}_empty_rows_kept",
        "A fully masked row keeps its scores; -inf stands wherever the mask is False, and "
        "masked_softmax deals with such a row.",
        (FILL, 'scores.masked_fill(~mask & mask.any(dim=-1, keepdim=True), float("-inf"))'),
        read="att-masks",
    )
    add(
        f"{name}_mask_of_nothing_ignored",
        "You ignore a mask that is False everywhere; -inf stands wherever the mask is False, and "
        "masked_softmax deals with rows of nothing else.",
        (IF_MASK, "if mask is not None and mask.any():"),
        read="att-masks",
    )
    add(
        f"{name}_mask_kept",
        "Without a mask you use the one of an earlier call; where mask is None nothing is masked.",
        (IF_MASK, KEPT_MASK),
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
    "softmax_uniform",
    "Your weights match the same weight for every position that may be attended to; the scores "
    "decide: exponentials divided by their sum.",
    code=_softmax("""
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    numerator = (scores > float("-inf")).to(scores.dtype)
    denominator = numerator.sum(dim=dim, keepdim=True)
    return numerator / denominator.masked_fill(denominator == 0.0, 1.0)
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
    "softmax_mask_leaks_nan",
    "You add -inf to masked scores, so that NaN or infinity under the mask spreads to the whole "
    "row; write over them, with masked_fill.",
    (FILL, 'scores + torch.zeros_like(scores).masked_fill(~mask, float("-inf"))'),
)
add(
    "softmax_finite_fill",
    "A fully masked row becomes uniform: you fill with a large negative number, which cancels "
    "when all scores of a row have it. Set masked weights to 0, or treat such rows on their own.",
    (FILL, "scores.masked_fill(~mask, -1e9)"),
    read="att-masks",
)
add(
    "softmax_finite_fill_global_maximum",
    "Two things: a fully masked row becomes uniform, because you fill with a large negative "
    "number, so write -inf; and rows far below the rest become NaN, because you subtract the "
    "maximum of the whole tensor and not of each slice.",
    code=_softmax("""
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    numerator = torch.exp(scores - scores.detach().max())
    return numerator / numerator.sum(dim=dim, keepdim=True)
"""),
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
    "You write into the caller's scores, which the caller still needs. masked_fill without an "
    "underscore, like torch.where, makes a new tensor.",
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
    "softmax_small_integers_accepted",
    "A mask of int8 is accepted; raise a ValueError unless mask.dtype is torch.bool.",
    (
        "if mask.dtype != torch.bool:",
        "if mask.dtype == torch.int8:\n"
        "            mask = mask.bool()\n"
        "        if mask.dtype != torch.bool:",
    ),
    read="att-masks",
)
add(
    "softmax_half_accepted",
    "A mask of float16 is accepted; raise a ValueError unless mask.dtype is torch.bool.",
    (
        "if mask.dtype != torch.bool:",
        "if mask.dtype == torch.float16:\n"
        "            mask = mask.bool()\n"
        "        if mask.dtype != torch.bool:",
    ),
    read="att-masks",
)
add(
    "softmax_leading_ones",
    "A mask with more dimensions than the scores is accepted where the additional ones are 1; the "
    "exercise refuses it.",
    (
        "mask = mask.broadcast_to(scores.shape)",
        "while mask.dim() > scores.dim() and len(mask) == 1:\n"
        "                mask = mask[0]\n"
        "            mask = mask.broadcast_to(scores.shape)",
    ),
    read="att-masks",
)
add(
    "softmax_masked_gradient",
    "Your weights are right, but the gradient of a masked score is NaN: torch.where chooses after "
    "exp, whose derivative is infinite there, and 0 · inf is NaN. Fill the scores before exp.",
    code=_softmax("""
    mask = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask
    mask = mask & (scores != float("-inf"))
    top = scores.detach().masked_fill(~mask, float("-inf")).amax(dim=dim, keepdim=True)
    top = top.masked_fill(top == float("-inf"), 0.0)
    numerator = torch.where(mask, torch.exp(scores - top), 0.0)
    denominator = numerator.sum(dim=dim, keepdim=True)
    return numerator / denominator.masked_fill(denominator == 0.0, 1.0)
"""),
    read="att-masks",
)
add(
    "softmax_in_place_without_mask",
    "Without a mask you subtract the maximum from the scores that you are given, in place; make "
    "new ones, scores - top.",
    (
        "numerator = torch.exp(scores - top)",
        "wanted = scores.requires_grad\n"
        "    numerator = torch.exp(scores - top if wanted else scores.sub_(top))",
    ),
)
add(
    "softmax_wider_mask",
    "A mask is accepted where it is larger than the scores, so that the weights get its shape; it "
    "may be smaller only. Broadcast the mask to the shape of the scores.",
    (
        "mask = mask.broadcast_to(scores.shape)",
        "if mask.dim() > scores.dim():\n"
        "                raise RuntimeError\n"
        "            mask, scores = torch.broadcast_tensors(mask, scores)",
    ),
    read="att-masks",
)
add(
    "softmax_mask_for_each_example",
    "You take a mask with three dimensions for one of each example where the scores have four; "
    "missing dimensions are those in front.",
    (
        "mask = mask.broadcast_to(scores.shape)",
        "if mask.dim() == 3 and scores.dim() == 4 and len(mask) == len(scores):\n"
        "                mask = mask.unsqueeze(1)\n"
        "            mask = mask.broadcast_to(scores.shape)",
    ),
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
CONTEXT = "attn_weights @ values"
add(
    "context_own_value_only",
    "Your context matches A_ii · v_i, each position's own value only; the context sums over all "
    "positions j: Σ_j A_ij v_j.",
    (
        f"return {CONTEXT}",
        "return attn_weights.diagonal(dim1=1, dim2=2).unsqueeze(-1) * values",
    ),
)
add(
    "context_transposed",
    "Your context matches weightsᵀ @ values, a sum over the queries; the sum runs over the keys, "
    "so don't transpose the weights.",
    (f"return {CONTEXT}", "return attn_weights.transpose(1, 2) @ values"),
)
add(
    "context_sum_over_queries",
    "Your context sums over the queries and has one row for each key; sum over the keys, so that "
    "there is one row for each query.",
    (
        f"return {CONTEXT}",
        "return (attn_weights.unsqueeze(-1) * values.unsqueeze(1)).sum(dim=1)",
    ),
)
add(
    "context_not_summed",
    "Your result holds the weighted values one by one; add them up over the keys.",
    (f"return {CONTEXT}", "return attn_weights.unsqueeze(-1) * values.unsqueeze(1)"),
)
add(
    "context_averaged",
    "Your context is the sum divided by the number of keys, as .mean gives it; c_i is the plain "
    "sum over the keys: .sum, or a matrix product.",
    (f"return {CONTEXT}", "return attn_weights @ values / values.shape[-2]"),
)
add(
    "context_hard",
    "Your context is the value with the largest weight; soft attention sums all values, each "
    "times its weight.",
    (
        f"return {CONTEXT}",
        "return torch.eye(values.shape[-2], dtype=values.dtype)[attn_weights.argmax(dim=-1)] @ "
        "values",
    ),
)
add(
    "context_unweighted",
    "Your context is the mean of all values, the same for each query; multiply each value by its "
    "weight.",
    (
        f"return {CONTEXT}",
        "return values.mean(dim=1, keepdim=True).expand(-1, attn_weights.shape[1], -1)",
    ),
)
add(
    "context_normalised_again",
    "You divide by the sum of the weights again; use the weights as they are, or a fully masked "
    "row becomes NaN.",
    (f"return {CONTEXT}", "return attn_weights / attn_weights.sum(dim=-1, keepdim=True) @ values"),
)
add(
    "context_squeeze",
    "Your result loses every dimension of size 1, a batch of one included; don't squeeze.",
    (f"return {CONTEXT}", "return (attn_weights @ values).squeeze()"),
)
add(
    "context_lengths_unchecked",
    "Weights and values of different lengths are not refused with a ValueError; compare "
    "weights.shape[-1] with values.shape[-2] first.",
    ("if attn_weights.shape[-1] != values.shape[-2]:", "if False:"),
)
add(
    "context_length_one_accepted",
    "A single weight, or a single value, passes where there are more of the other, since "
    "broadcasting repeats it; refuse any two lengths that differ.",
    (
        "if attn_weights.shape[-1] != values.shape[-2]:",
        "if attn_weights.shape[-1] != values.shape[-2] != 1 != attn_weights.shape[-1]:",
    ),
    (f"return {CONTEXT}", "return (attn_weights.unsqueeze(-1) * values.unsqueeze(1)).sum(dim=2)"),
)
add(
    "context_softmax",
    "Your context matches another softmax over the weights; they are used as they are.",
    (f"return {CONTEXT}", "return attn_weights.softmax(dim=-1) @ values"),
)
add(
    "context_detached",
    "Your context is right, but no gradient reaches the weights; don't detach them.",
    (f"return {CONTEXT}", "return attn_weights.detach() @ values"),
)

add = mistakes_in(MISCONCEPTIONS, "AttentionDecoderStep", "att-decoder")
SCORE_STEP = "scores = self.score(s_prev.unsqueeze(1), annotations)"
STEP_SOFTMAX = "masked_softmax(scores, mask)"
STEP_CONTEXT = "context_vector(attn_weights, annotations).squeeze(1)"
STEP_INPUT = "torch.cat([y_prev, context], dim=-1)"
STEP_RETURN = "return s, context, attn_weights.squeeze(1)"
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
    "decoder_score_swapped",
    "Your score takes the annotations for queries and the state for the key; it is the other way "
    "round: score(query, key), with s_prev.unsqueeze(1) for the query.",
    (SCORE_STEP, "scores = self.score(annotations, s_prev.unsqueeze(1))"),
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
    (STEP_RETURN, "return s_prev, context, attn_weights.squeeze(1)"),
)
add(
    "decoder_context_as_state",
    "Your result stands in the order (context, state, weights); return (state, context, weights).",
    (STEP_RETURN, "return context, s, attn_weights.squeeze(1)"),
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
        "            attn_weights = attn_weights.masked_fill(~mask, 0.0)",
    ),
    read="att-masks",
)
add(
    "decoder_mask_renormalised",
    "You set padded weights to 0 after the softmax and divide by the sum of the others; where that "
    "is tiny beside the padding they vanish. Mask the scores before the softmax.",
    (
        STEP_SOFTMAX,
        "masked_softmax(scores)\n"
        "        if mask is not None:\n"
        "            attn_weights = attn_weights.masked_fill(~mask, 0.0)\n"
        "            attn_weights = attn_weights / (attn_weights.sum(-1, keepdim=True) + 1e-8)",
    ),
    read="att-masks",
)
add(
    "decoder_mask_kept",
    "Without a source_mask you use the one of an earlier call; where it is None nothing is masked.",
    (
        f"mask = None if source_mask is None else {STEP_MASK}",
        "source_mask = self.last = getattr(self, 'last', None) if source_mask is None else "
        f"source_mask\n        mask = None if source_mask is None else {STEP_MASK}",
    ),
    read="att-masks",
)
add(
    "decoder_mask_of_nothing_ignored",
    "You ignore a source_mask that is False everywhere; the weights and the context are 0 then.",
    ("None if source_mask is None", "None if source_mask is None or not source_mask.any()"),
    read="att-masks",
)
add(
    "decoder_squeeze",
    "Your weights lose every dimension of size 1, a batch of one included; name the dimension: "
    "squeeze(1).",
    (STEP_RETURN, "return s, context, attn_weights.squeeze()"),
)
add(
    "decoder_detached",
    "The values are right, but no gradient reaches the score's layers; don't detach the weights.",
    (STEP_SOFTMAX, "masked_softmax(scores, mask).detach()"),
)

add = mistakes_in(MISCONCEPTIONS, "attention_dropout", "att-dropout")
KEEP = "torch.rand_like(attn_weights, dtype=torch.float32) >= dropout"
DROP = "return attn_weights * keep / (1.0 - dropout)"
DROP_OFF = "if not training or dropout == 0.0:"
DROP_CHECK = (
    "if not 0.0 <= dropout <= 1.0:\n"
    '        raise ValueError(f"dropout must be between 0 and 1, but is {dropout}")'
)
add(
    "dropout_without_rescale",
    "Your surviving weights are not enlarged; divide them by 1 - dropout, so that their expected "
    "value stays the same.",
    (DROP, "return attn_weights * keep"),
)
add(
    "dropout_scaled_down",
    "Your surviving weights are multiplied by 1 - dropout; divide by it: fewer survive, so each "
    "must count more.",
    (DROP, "return attn_weights * keep * (1.0 - dropout)"),
)
add(
    "dropout_divided_by_p",
    "Your surviving weights are divided by dropout; divide by the share that survives, 1 - "
    "dropout.",
    (DROP, "return attn_weights * keep / dropout"),
)
add(
    "dropout_scale_limited",
    "At dropout > 0.5 your surviving weights are doubled only; divide by 1 - dropout at any rate.",
    (DROP, "return attn_weights * keep / max(1.0 - dropout, 0.5)"),
)
add(
    "dropout_scaled_in_evaluation",
    "You multiply by 1 - dropout in evaluation, as dropout was first described; here survivors are "
    "enlarged in training and evaluation changes nothing.",
    (DROP, "return attn_weights * keep"),
    (
        DROP_OFF,
        "if not training:\n        return attn_weights * (1.0 - dropout)\n    if dropout == 0.0:",
    ),
)
add(
    "dropout_divided_in_evaluation",
    "You divide by 1 - dropout in evaluation too; if training is False the weights come back "
    "unchanged.",
    (
        DROP_OFF,
        "if not training:\n        return attn_weights / (1.0 - dropout)\n    if dropout == 0.0:",
    ),
)
add(
    "dropout_in_evaluation",
    "Weights are dropped in evaluation too; if training is False they come back unchanged.",
    (DROP_OFF, "if dropout == 0.0:"),
)
add(
    "dropout_only_in_evaluation",
    "You drop weights where training is False and keep them where it is True; it is the other way "
    "round.",
    (DROP_OFF, "if training or dropout == 0.0:"),
)
add(
    "dropout_never",
    "No weight is ever dropped; in training each becomes 0 with probability dropout.",
    (DROP_OFF, "if True:"),
)
add(
    "dropout_p_is_keep",
    "Weights survive with probability dropout; it is the probability of being dropped.",
    (KEEP, "torch.rand_like(attn_weights, dtype=torch.float32) < dropout"),
    (DROP, "return attn_weights * keep / dropout"),
)
KEEP_P = (
    "Weights survive with probability dropout and are dropped with probability 1 - dropout; it is "
    "the other way round. torch.rand(...) >= dropout is True with probability 1 - dropout."
)
KEPT_BY_P = (KEEP, "torch.rand_like(attn_weights, dtype=torch.float32) < dropout")
add("dropout_keeps_p_scales_right", KEEP_P, KEPT_BY_P)
# The same where dropout = 0 is not treated on its own.
for name, scaled in {
    "dropout_keeps_p_of_zero": "attn_weights * keep / (1.0 - dropout)",
    "dropout_keeps_p_unscaled": "attn_weights * keep",
    "dropout_keeps_p_scaled_by_p": "attn_weights * keep / dropout",
}.items():
    add(
        name,
        KEEP_P,
        (DROP_OFF, "if not training:"),
        KEPT_BY_P,
        (DROP, f"return {scaled}"),
    )
add(
    "dropout_whole_rows",
    "Whole rows are dropped together; draw a random number for every single weight.",
    (KEEP, "torch.rand(*attn_weights.shape[:-1], 1) >= dropout"),
)
add(
    "dropout_same_for_rows",
    "Every row drops the same columns; draw a random number for every single weight.",
    (KEEP, "torch.rand(attn_weights.shape[-1]) >= dropout"),
)
add(
    "dropout_same_for_batch",
    "All heads and examples drop the same positions; draw random numbers of the full shape.",
    (KEEP, "torch.rand(attn_weights.shape[-2:]) >= dropout"),
)
add(
    "dropout_largest_kept",
    "The largest weight of a row is never dropped; each is drawn for itself, however large it is.",
    (DROP, "keep = keep | (attn_weights == attn_weights.amax(dim=-1, keepdim=True))\n    " + DROP),
)
add(
    "dropout_one_kept",
    "Each row keeps at least one weight; each is drawn for itself, so that now and then a whole "
    "row is dropped.",
    (DROP, "keep = keep | ~keep.any(dim=-1, keepdim=True)\n    " + DROP),
)
add(
    "dropout_needs_rows",
    "Weights with a single dimension fail: you ask for two or more. They have any shape, so take "
    "all of it: torch.rand(attn_weights.shape).",
    (
        KEEP,
        "torch.rand(*attn_weights.shape[:-2], attn_weights.size(-2), attn_weights.size(-1))"
        " >= dropout",
    ),
)
add(
    "dropout_exact_count",
    "You drop a fixed number of weights; draw each for itself, so that the number varies: "
    "torch.rand(attn_weights.shape) >= dropout.",
    (
        KEEP,
        "(torch.randperm(attn_weights.numel()) >= round(dropout * attn_weights.numel()))"
        ".view(attn_weights.shape)",
    ),
)
add(
    "dropout_same_every_call",
    "Every call drops the same positions: a seed is set inside the function. Don't seed there.",
    (KEEP, "torch.rand(attn_weights.shape, generator=torch.Generator().manual_seed(0)) >= dropout"),
)
add(
    "dropout_normalised_again",
    "You normalise the rows again after dropping; the survivors are divided by 1 - dropout only.",
    (
        DROP,
        "dropped = attn_weights * keep / (1.0 - dropout)\n"
        "    return dropped / dropped.sum(dim=-1, keepdim=True).clamp(min=1e-9)",
    ),
)
add(
    "dropout_nan_for_one",
    "With dropout = 1 the weights become NaN, from 0/0; return zeros in that case.",
    ("if dropout == 1.0:", "if False:"),
)
add(
    "dropout_unchecked",
    "A dropout rate outside [0, 1] is accepted; raise a ValueError before anything else.",
    ("if not 0.0 <= dropout <= 1.0:", "if False:"),
)
add(
    "dropout_unchecked_in_evaluation",
    "A dropout rate outside [0, 1] is accepted in evaluation; check it before you return.",
    (DROP_CHECK, "if not training:\n        return attn_weights\n    " + DROP_CHECK),
)
add(
    "dropout_in_place",
    "You write into the caller's weights, which the caller still needs; `*` and `/`, like "
    "torch.where, make a new tensor.",
    (DROP, "return attn_weights.mul_(keep).div_(1.0 - dropout)"),
)
add(
    "dropout_detached",
    "The values are right, but no gradient reaches the weights; don't detach them.",
    (DROP, "return attn_weights.detach() * keep / (1.0 - dropout)"),
)
