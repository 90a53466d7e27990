"""Known mistakes of `transformer-parts`: embeddings, attention, masks, norms.

A batch size that is known only under a mask, the sample deviation with eps outside the root, a
residual connection that is normalised.
"""

from __future__ import annotations

from autograder.units.variants import Misconception, mistakes_in

MISCONCEPTIONS: list[Misconception] = []

# --------------------------------------------------------------------------------------------
# Parts
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "Embeddings", "trf-embeddings")
SCALED = "self.lut(ids) * math.sqrt(self.d_model)"
DRAWN = "nn.init.normal_(self.lut.weight, std=1.0 / math.sqrt(d_model))"
add(
    "embeddings_unscaled",
    "You return the rows of the embedding matrix as they are; multiply them by sqrt(d_model) in "
    "forward.",
    (SCALED, "self.lut(ids)"),
)
add(
    "embeddings_times_width",
    "You multiply by d_model; multiply by its square root.",
    (SCALED, "self.lut(ids) * self.d_model"),
)
add(
    "embeddings_divided",
    "You divide by sqrt(d_model), as attention does with its scores; multiply the embeddings by "
    "it.",
    (SCALED, "self.lut(ids) / math.sqrt(self.d_model)"),
)
add(
    "embeddings_times_root_of_vocabulary",
    "You multiply by the square root of the vocabulary size; multiply by that of d_model.",
    (SCALED, "self.lut(ids) * math.sqrt(self.lut.num_embeddings)"),
)
add(
    "embeddings_standard_normal",
    "Your embedding matrix keeps nn.Embedding's initialisation with variance 1, so scaled vectors "
    "have variance d_model; initialise it from N(0, 1/d_model).",
    (DRAWN, "pass"),
)
add(
    "embeddings_xavier",
    "You initialise the embedding matrix by Xavier's rule, whose variance falls with the "
    "vocabulary size, so scaled vectors of a large vocabulary are far too short; initialise it "
    "from N(0, 1/d_model).",
    (DRAWN, "nn.init.xavier_uniform_(self.lut.weight)"),
)
add(
    "embeddings_deviation_is_variance",
    "You initialise the embedding matrix with standard deviation 1/d_model; that should be the "
    "variance, so pass std=1/sqrt(d_model) to nn.init.normal_.",
    (DRAWN, "nn.init.normal_(self.lut.weight, std=1.0 / d_model)"),
)
add(
    "embeddings_uniform",
    "You initialise the embedding matrix from a uniform distribution; the variance is right, but "
    "use a normal distribution.",
    (DRAWN, "nn.init.uniform_(self.lut.weight, -math.sqrt(3 / d_model), math.sqrt(3 / d_model))"),
)
add(
    "embeddings_padding_row_fixed",
    "With padding_idx the embedding of PAD never learns; masks take care of padding, so create "
    "nn.Embedding without it.",
    (
        "self.lut = nn.Embedding(vocab_size, d_model)",
        "self.lut = nn.Embedding(vocab_size, d_model, padding_idx=PAD)",
    ),
)
add(
    "embeddings_padding_row_zero",
    "You set the row of PAD to zeros; masks take care of padding, so leave it as it is drawn.",
    (DRAWN, f"{DRAWN}\n        self.lut.weight.data[PAD] = 0.0"),
)
add(
    "embeddings_sizes_unchecked",
    "Your Embeddings accepts a vocab_size or d_model below 1; raise a ValueError when it is "
    "created.",
    ("if value < 1:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "MultiHeadAttention", "trf-attention")
SCORES = "queries @ keys.transpose(-2, -1) / math.sqrt(queries.shape[-1])"
MASKED = "scores.masked_fill(~mask, torch.finfo(scores.dtype).min)"
WEIGHTS = "self.dropout(torch.softmax(scores, dim=-1))"
# What makes the weights of a query that may attend to nothing 0, which most solutions leave out.
PLAIN = ("attn_weights.masked_fill(~mask, 0.0)", "attn_weights")
MERGED = "(attn_weights @ values).transpose(1, 2).reshape(batch, length, width)"
QUERY_SHAPE = """        batch, length, width = query.shape
"""
add(
    "attention_scale_d_model",
    "You divide the scores by sqrt(d_model); divide by the square root of a head's width, d_model "
    "/ num_heads.",
    (SCORES, "queries @ keys.transpose(-2, -1) / math.sqrt(query.shape[-1])"),
)
add(
    "attention_unscaled",
    "You don't scale the scores, so the softmax saturates; divide them by the square root of a "
    "head's width.",
    (SCORES, "queries @ keys.transpose(-2, -1)"),
)
add(
    "attention_scale_without_root",
    "You divide the scores by a head's width; divide by its square root.",
    (SCORES, "queries @ keys.transpose(-2, -1) / queries.shape[-1]"),
)
add(
    "attention_scale_multiplied",
    "You multiply the scores by the square root of a head's width; divide by it.",
    (SCORES, "queries @ keys.transpose(-2, -1) * math.sqrt(queries.shape[-1])"),
)
add(
    "attention_batch_size_under_mask",
    "You read the batch size only where a mask is given, so a call without a mask ends in a "
    "NameError; read it before the `if`.",
    (QUERY_SHAPE, "        if mask is not None:\n            batch, length, width = query.shape\n"),
)
add(
    "attention_mask_ignored",
    "Your attention ignores the mask; where it is False, fill the scores with -inf before the "
    "softmax.",
    (MASKED, "scores"),
    PLAIN,
)
add(
    "attention_mask_inverted",
    "Your mask works the wrong way round: True means «may attend», so fill the scores where it is "
    "False.",
    (MASKED, "scores.masked_fill(mask, torch.finfo(scores.dtype).min)"),
    PLAIN,
)
add(
    "attention_mask_after_softmax",
    "You set masked weights to 0 after the softmax, so the others no longer sum to 1; mask the "
    "scores before the softmax.",
    (MASKED, "scores"),
)
add(
    "attention_mask_by_zero",
    "Your masked scores become 0 or nearly 0, which is a score like any other; fill in -inf or a "
    "very large negative number.",
    (MASKED, "scores.masked_fill(~mask, 0.0)"),
    PLAIN,
)
add(
    "attention_mask_over_heads",
    "Broadcasting aligns a mask of three axes from the right, so its batch axis meets the heads; "
    "insert an axis for the heads with mask.unsqueeze(1).",
    ("mask = mask.unsqueeze(1)", "pass"),
)
add(
    "attention_mask_for_first_example",
    "You use the first example's mask for the whole batch; use each example's own.",
    ("mask = mask.unsqueeze(1)", "mask = mask[:1].unsqueeze(1)"),
)
add(
    "attention_mask_kept",
    "You keep the mask of an earlier call and use it where none is given; without a mask every "
    "query may attend to every key.",
    (
        QUERY_SHAPE,
        QUERY_SHAPE + "        if mask is None:\n            mask = getattr(self, 'mask', None)\n"
        "        self.mask = mask\n"
        "        if mask is not None and mask.shape[-1] != keys.shape[2]:\n"
        "            mask = None\n",
    ),
)
add(
    "attention_heads_without_transpose",
    "You reshape (B, T, D) to (B, H, T, D/H) at once, which cuts the sequence into heads; reshape "
    "to (B, T, H, D/H) and transpose axes 1 and 2.",
    (
        "keys = self.k_proj(key).reshape(heads).transpose(1, 2)",
        "keys = self.k_proj(key).reshape(batch, self.num_heads, length, -1)",
    ),
    (
        "values = self.v_proj(value).reshape(heads).transpose(1, 2)",
        "values = self.v_proj(value).reshape(batch, self.num_heads, length, -1)",
    ),
    (
        "queries = self.q_proj(query).reshape(heads).transpose(1, 2)",
        "queries = self.q_proj(query).reshape(batch, self.num_heads, length, -1)",
    ),
)
EVERY_HTH = (
    "Head h takes every H-th feature; its features stand next to each other, so cut the width into "
    "(H, D/H)."
)
APART = "reshape(batch, length, -1, self.num_heads).permute(0, 3, 1, 2)"
INTERLEAVED = tuple(
    (f"self.{made}.reshape(heads).transpose(1, 2)", f"self.{made}.{APART}")
    for made in ("k_proj(key)", "v_proj(value)", "q_proj(query)")
)
add("attention_heads_interleaved", EVERY_HTH, *INTERLEAVED)
add(
    "attention_heads_interleaved_both_ways",
    EVERY_HTH,
    *INTERLEAVED,
    (MERGED, "(attn_weights @ values).permute(0, 2, 3, 1).reshape(batch, length, width)"),
)
add(
    "attention_merge_without_transpose",
    "You reshape (B, H, T, D/H) to (B, T, D) at once, which mixes positions; transpose axes 1 and "
    "2 first.",
    (MERGED, "(attn_weights @ values).reshape(batch, length, width)"),
)
add(
    "attention_softmax_over_queries",
    "Your softmax runs over the queries; use the last axis, the keys, so that each query's weights "
    "sum to 1.",
    (WEIGHTS, "self.dropout(torch.softmax(scores, dim=-2))"),
    PLAIN,
)
add(
    "attention_softmax_over_heads",
    "Your softmax runs over the heads; use the last axis, the keys.",
    (WEIGHTS, "self.dropout(torch.softmax(scores, dim=1))"),
    PLAIN,
)
add(
    "attention_without_output_projection",
    "You return the merged heads as they are; apply out_proj to them.",
    ("self.out_proj(merged)", "merged"),
)
add(
    "attention_query_not_projected",
    "You use the query unprojected; apply q_proj to it in attend.",
    ("self.q_proj(query)", "query"),
)
add(
    "attention_values_from_key",
    "You compute the values from `key`; apply v_proj to `value`.",
    ("self.v_proj(value)", "self.v_proj(key)"),
)
add(
    "attention_values_by_k_proj",
    "You compute the values with k_proj; use v_proj.",
    ("self.v_proj(value)", "self.k_proj(value)"),
)
add(
    "attention_keys_from_query",
    "Your forward computes the keys from the query; call project(key, value).",
    ("self.project(key, value)", "self.project(query, value)"),
)
add(
    "attention_mask_not_passed",
    "Your forward doesn't pass the mask on; pass it to attend.",
    ("self.attend(query, keys, values, mask)", "self.attend(query, keys, values)"),
)
add(
    "attention_project_without_heads",
    "Your project returns (B, Tk, D); split keys and values into heads, (B, H, Tk, D/H).",
    (
        "return keys, values\n",
        "return keys.transpose(1, 2).flatten(2), values.transpose(1, 2).flatten(2)\n",
    ),
    (
        "keys, values = self.project(key, value)  # (B, H, Tk, D/H) each",
        "keys, values = self.project(key, value)\n"
        "        heads = (*keys.shape[:2], self.num_heads, -1)\n"
        "        keys = keys.reshape(heads).transpose(1, 2)\n"
        "        values = values.reshape(heads).transpose(1, 2)",
    ),
)
add(
    "attention_project_swapped",
    "Your project returns (values, keys); return (keys, values).",
    ("return keys, values\n", "return values, keys\n"),
    ("keys, values = self.project(key, value)", "values, keys = self.project(key, value)"),
)
add(
    "attention_dropout_on_output",
    "You apply dropout to the output; apply it to the attention weights, after the softmax.",
    (WEIGHTS, "torch.softmax(scores, dim=-1)"),
    ("return self.out_proj(merged)", "return self.dropout(self.out_proj(merged))"),
)
add(
    "attention_dropout_ignored",
    "Your attention has no dropout in training mode; apply dropout to the attention weights, after "
    "the softmax.",
    (WEIGHTS, "torch.softmax(scores, dim=-1)"),
)
add(
    "attention_dropout_before_softmax",
    "You apply dropout to the scores, where a 0 is a score like any other; apply it to the "
    "weights, after the softmax.",
    (WEIGHTS, "torch.softmax(self.dropout(scores), dim=-1)"),
)
add(
    "attention_dropout_for_all_heads",
    "All your heads drop the same weights; apply dropout to the weights of all heads, (B, H, Tq, "
    "Tk), so that each is drawn independently.",
    (
        WEIGHTS,
        "torch.softmax(scores, dim=-1) * self.dropout(torch.ones_like(scores[:, :1]))",
    ),
)
add(
    "attention_dropout_for_all_examples",
    "All your examples drop the same weights; apply dropout to the weights of all examples, (B, H, "
    "Tq, Tk), so that each is drawn independently.",
    (
        WEIGHTS,
        "torch.softmax(scores, dim=-1) * self.dropout(torch.ones_like(scores[:1]))",
    ),
)
add(
    "attention_dropout_for_all_queries",
    "You drop keys, the same for all queries; apply dropout to the weights, (B, H, Tq, Tk), so "
    "that each is drawn independently.",
    (
        WEIGHTS,
        "torch.softmax(scores, dim=-1) * self.dropout(torch.ones_like(scores[:, :, :1]))",
    ),
)
add(
    "attention_dropout_on_values",
    "You apply dropout to the values; apply it to the attention weights, after the softmax.",
    (WEIGHTS, "torch.softmax(scores, dim=-1)"),
    ("attn_weights @ values", "attn_weights @ self.dropout(values)"),
)
add(
    "attention_dropout_in_eval",
    "Your dropout acts in evaluation mode, too; use nn.Dropout, or drop only if self.training.",
    (WEIGHTS, "nn.functional.dropout(torch.softmax(scores, dim=-1), self.dropout.p)"),
)
add(
    "attention_dropout_not_rescaled",
    "You leave the weights that are not dropped as they are; divide them by 1 - p, as nn.Dropout "
    "does.",
    (
        WEIGHTS,
        "torch.softmax(scores, dim=-1) * (self.dropout(torch.ones_like(scores)) != 0)",
    ),
)
add(
    "attention_dropout_is_keep",
    "You use dropout as the probability of keeping a weight; it is the probability of dropping "
    "one.",
    ("nn.Dropout(dropout)", "nn.Dropout(1 - dropout if dropout else 0.0)"),
)
add(
    "attention_overflow",
    "Your softmax overflows for large scores; subtract the maximum first, as torch.softmax does.",
    (WEIGHTS, "self.dropout(scores.exp() / scores.exp().sum(-1, keepdim=True))"),
)
add(
    "attention_softmax_in_float32",
    "Your softmax runs in float32; keep the dtype of the scores, or float64 loses half its digits.",
    (WEIGHTS, "self.dropout(torch.softmax(scores.float(), dim=-1).to(scores.dtype))"),
)
add(
    "attention_heads_unchecked",
    "Your module accepts a num_heads that doesn't divide d_model; raise a ValueError when it is "
    "created.",
    ("if num_heads < 1 or d_model % num_heads != 0:", "if False:"),
)
add(
    "attention_heads_of_one_feature_refused",
    "You refuse as many heads as features, but d_model divides d_model, too: each head is then 1 "
    "wide.",
    (
        "if num_heads < 1 or d_model % num_heads != 0:",
        "if num_heads < 1 or d_model % num_heads != 0 or 1 < num_heads == d_model:",
    ),
)

# --------------------------------------------------------------------------------------------
# Masks
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "pad_mask", "trf-masks")
REAL = "(ids != pad).unsqueeze(1)"
add(
    "pad_mask_inverted",
    "Your mask is inverted: it is True at padding, but True means «may attend». Compare with ids "
    "!= pad.",
    (REAL, "(ids == pad).unsqueeze(1)"),
)
add(
    "pad_mask_without_axis",
    "Your mask has shape (B, T); insert an axis for the queries: (B, 1, T).",
    (REAL, "ids != pad"),
)
add(
    "pad_mask_over_queries",
    "Your mask has shape (B, T, 1), which masks queries; padding must not be attended to as a key, "
    "so return (B, 1, T).",
    (REAL, "(ids != pad).unsqueeze(2)"),
)
add(
    "pad_mask_with_head_axis",
    "Your mask has shape (B, 1, 1, T); the attention adds the axis for the heads itself, so return "
    "(B, 1, T).",
    (REAL, "(ids != pad).unsqueeze(1).unsqueeze(1)"),
)
add(
    "pad_mask_pad_ignored",
    "You compare with 0 whatever `pad` is; compare with the argument.",
    (REAL, "(ids != PAD).unsqueeze(1)"),
)
add(
    "pad_mask_greater",
    "Your mask is True only for ids greater than pad; make it True for all ids other than pad.",
    (REAL, "(ids > pad).unsqueeze(1)"),
)
add(
    "pad_mask_of_numbers",
    "Your mask holds integers; return dtype bool.",
    (REAL, "(ids != pad).unsqueeze(1).long()"),
)
add(
    "pad_mask_of_floats",
    "Your mask holds floats; return dtype bool.",
    (REAL, "(ids != pad).unsqueeze(1).float()"),
)
add(
    "pad_mask_by_count",
    "You count the real tokens and assume that the row begins with them; padding may be anywhere, "
    "so compare each id with pad.",
    (REAL, "(torch.arange(ids.shape[1]) < (ids != pad).sum(1, keepdim=True)).unsqueeze(1)"),
)
add(
    "pad_mask_changes_ids",
    "You subtract pad from the caller's ids in place; compare the ids with pad instead.",
    (REAL, "(ids.sub_(pad) != 0).unsqueeze(1)"),
)
add(
    "pad_mask_specials_masked",
    "You mask BOS and EOS, too; mask only ids equal to pad.",
    (REAL, "((ids != pad) & (ids != BOS) & (ids != EOS)).unsqueeze(1)"),
)

add = mistakes_in(MISCONCEPTIONS, "subsequent_mask", "trf-masks")
LOWER = "torch.ones(1, size, size, dtype=torch.bool).tril()"
add(
    "subsequent_without_self",
    "Your mask lacks the diagonal, so the first position may attend to nothing; let each position "
    "attend to itself.",
    (LOWER, "torch.ones(1, size, size, dtype=torch.bool).tril(-1)"),
)
add(
    "subsequent_one_ahead",
    "Your positions may attend to the next one, which is what they should predict; end at the "
    "diagonal.",
    (LOWER, "torch.ones(1, size, size, dtype=torch.bool).tril(1)"),
)
add(
    "subsequent_upper",
    "Your triangle is the upper one, so positions attend to later ones; row i, the query, should "
    "be True in columns 0 to i.",
    (LOWER, "torch.ones(1, size, size, dtype=torch.bool).triu()"),
)
add(
    "subsequent_inverted",
    "Your mask is inverted: True must mean «may attend», so row i is True in columns 0 to i.",
    (LOWER, "torch.ones(1, size, size, dtype=torch.bool).triu(1)"),
)
add(
    "subsequent_without_batch_axis",
    "Your mask has shape (size, size); add a batch axis of length 1: (1, size, size).",
    (LOWER, "torch.ones(size, size, dtype=torch.bool).tril()"),
)
add(
    "subsequent_of_numbers",
    "Your mask holds numbers; return dtype bool.",
    (LOWER, "torch.ones(1, size, size).tril()"),
)
add(
    "subsequent_cut_from_last_rows",
    "You cut a small mask out of the last rows of a larger one that you keep, which see more; cut "
    "out the first rows.",
    code="""KEPT = {}


def subsequent_mask(size: int) -> Tensor:
    if size < 1:
        raise ValueError("size must be at least 1")
    if len(KEPT.get("mask", [])) < size:
        KEPT["mask"] = torch.ones(size, size, dtype=torch.bool).tril()
    return KEPT["mask"][None, -size:, :size].clone()
""",
)
add(
    "subsequent_size_unchecked",
    "Your subsequent_mask accepts a size below 1; raise a ValueError.",
    ("if size < 1:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "make_std_mask", "trf-masks")
BOTH = "pad_mask(target, pad) & earlier"
add(
    "std_mask_or",
    "You combine the two masks with «or», so one permission is enough; both must hold, so use &.",
    (BOTH, "pad_mask(target, pad) | earlier"),
)
add(
    "std_mask_padding_only",
    "You mask padding only; combine it with subsequent_mask to mask later positions, too.",
    (BOTH, "pad_mask(target, pad).expand(-1, target.shape[1], -1)"),
)
add(
    "std_mask_triangle_only",
    "You mask later positions only; combine it with pad_mask to mask padding, too.",
    (BOTH, "earlier.expand(len(target), -1, -1)"),
)
add(
    "std_mask_padded_queries",
    "You mask padding as a query instead of as a key; make the columns of padding False and leave "
    "its rows alone.",
    (BOTH, "pad_mask(target, pad).transpose(1, 2) & earlier"),
)
add(
    "std_mask_padded_rows_too",
    "You also make the rows of padded queries False, so they may attend to nothing; mask only the "
    "columns, the keys.",
    (BOTH, "pad_mask(target, pad) & pad_mask(target, pad).transpose(1, 2) & earlier"),
)
add(
    "std_mask_without_self",
    "Your mask lacks the diagonal, so the first position may attend to nothing; let each position "
    "attend to itself.",
    (BOTH, "pad_mask(target, pad) & earlier.tril(-1)"),
)
add(
    "std_mask_pad_not_passed",
    "Your mask takes 0 for padding whatever `pad` is; pass it on to pad_mask.",
    (BOTH, "pad_mask(target) & earlier"),
)
add(
    "std_mask_later",
    "Your mask lets positions attend to later ones; use the lower triangle.",
    (BOTH, "pad_mask(target, pad) & earlier.transpose(1, 2)"),
)
add(
    "std_mask_of_numbers",
    "Your mask is a product of numbers; use & on the two bool masks, so that the dtype is bool.",
    (BOTH, "pad_mask(target, pad).long() * earlier.long()"),
)
add(
    "std_mask_of_first_row",
    "You use the padding of the first row for the whole batch; use each row's own.",
    (BOTH, "(pad_mask(target, pad)[:1] & earlier).expand(len(target), -1, -1)"),
)

# --------------------------------------------------------------------------------------------
# Norm, feed-forward, residual connections
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "LayerNorm", "trf-norm")
MEAN = "x.mean(dim=-1, keepdim=True)"
VARIANCE = "x.var(dim=-1, unbiased=False, keepdim=True)"
NORMALISED = "(x - mean) / torch.sqrt(variance + self.eps)"
AFFINE = "self.gamma * normalised + self.beta"
add(
    "norm_sample_deviation_eps_outside",
    "You divide by x.std() + eps, the sample standard deviation with eps outside the root; use the "
    "biased variance and add eps to it inside the root.",
    (NORMALISED, "(x - mean) / (x.std(dim=-1, keepdim=True) + self.eps)"),
)
add(
    "norm_unbiased",
    "Your variance divides by D - 1; divide by D with var(..., unbiased=False).",
    (VARIANCE, "x.var(dim=-1, keepdim=True)"),
)
add(
    "norm_eps_outside_root",
    "You add eps to the standard deviation; add it to the variance, inside the root.",
    (NORMALISED, "(x - mean) / (torch.sqrt(variance) + self.eps)"),
)
add(
    "norm_eps_subtracted",
    "You subtract eps, so a constant vector needs the root of a negative number; add it.",
    (NORMALISED, "(x - mean) / torch.sqrt(variance - self.eps)"),
)
add(
    "norm_eps_missing",
    "You leave out eps, so a constant vector becomes NaN; add eps to the variance.",
    (NORMALISED, "(x - mean) / torch.sqrt(variance)"),
)
add(
    "norm_deviation_clamped",
    "You clamp the standard deviation at eps; add eps to the variance, inside the root.",
    (NORMALISED, "(x - mean) / torch.sqrt(variance).clamp(min=self.eps)"),
)
add(
    "norm_eps_other_default",
    "Your default for eps is not 1e-5; change it to 1e-5.",
    ("eps: float = 1e-5", "eps: float = 1e-6"),
)
add(
    "norm_eps_fixed",
    "You use 1e-5 whatever eps is; store the argument and use it.",
    ("self.eps = eps", "self.eps = 1e-5"),
)
add(
    "norm_variance_squared",
    "You square the variance, but σ² already is the variance; divide by sqrt(variance + eps).",
    (NORMALISED, "(x - mean) / torch.sqrt(variance**2 + self.eps)"),
)
add(
    "norm_divided_by_variance",
    "You divide by the variance; divide by its square root.",
    (NORMALISED, "(x - mean) / (variance + self.eps)"),
)
add(
    "norm_mean_kept",
    "You don't subtract the mean; divide x - mean by the standard deviation, not x.",
    (NORMALISED, "x / torch.sqrt(variance + self.eps)"),
)
add(
    "norm_without_gamma",
    "You leave out gamma; multiply the normalised vector by it.",
    (AFFINE, "normalised + self.beta"),
)
add(
    "norm_without_beta",
    "You leave out beta; add it at the end.",
    (AFFINE, "self.gamma * normalised"),
)
add(
    "norm_without_parameters",
    "Your norm has no gamma or beta; create both as nn.Parameter of shape (d_model,).",
    ("self.gamma = nn.Parameter(torch.ones(d_model))", "self.features = d_model"),
    ("        self.beta = nn.Parameter(torch.zeros(d_model))\n", ""),
    ("if x.shape[-1] != len(self.gamma):", "if x.shape[-1] != self.features:"),
    (
        'raise ValueError(f"x must be {len(self.gamma)} wide, but is {x.shape[-1]} wide")',
        'raise ValueError("width")',
    ),
    (AFFINE, "normalised"),
)
add(
    "norm_beta_scaled",
    "You add beta before you multiply by gamma; multiply first.",
    (AFFINE, "self.gamma * (normalised + self.beta)"),
)
add(
    "norm_over_batch",
    "You compute mean and variance over the first axis, across vectors; compute them for each "
    "vector by itself, over the last axis.",
    (MEAN, "x.mean(dim=0, keepdim=True)"),
    (VARIANCE, "x.var(dim=0, unbiased=False, keepdim=True)"),
    read="trf-batchnorm",
)
add(
    "norm_over_positions",
    "You compute mean and variance over all axes but the last, padding included; compute them for "
    "each vector by itself, over the last axis.",
    (MEAN, "x.mean(dim=tuple(range(x.dim() - 1)), keepdim=True)"),
    (VARIANCE, "x.var(dim=tuple(range(x.dim() - 1)), unbiased=False, keepdim=True)"),
    read="trf-batchnorm",
)
add(
    "norm_over_time",
    "You compute mean and variance over the positions of a sequence; compute them for each vector "
    "by itself, over the last axis.",
    (MEAN, "x.mean(dim=max(x.dim() - 2, 0), keepdim=True)"),
    (VARIANCE, "x.var(dim=max(x.dim() - 2, 0), unbiased=False, keepdim=True)"),
    read="trf-batchnorm",
)
add(
    "norm_over_everything",
    "You use one mean and one variance for all vectors; compute them for each vector by itself, "
    "over the last axis.",
    (MEAN, "x.mean()"),
    (VARIANCE, "x.var(unbiased=False)"),
)
add(
    "norm_initial_gamma_zero",
    "You initialise gamma with zeros, so the norm returns beta for every input; initialise it with "
    "ones.",
    ("torch.ones(d_model)", "torch.zeros(d_model)"),
)
add(
    "norm_initial_random",
    "You initialise gamma and beta randomly; initialise gamma with ones and beta with zeros.",
    ("torch.ones(d_model)", "torch.randn(d_model)"),
    ("torch.zeros(d_model)", "torch.randn(d_model)"),
)
add(
    "norm_statistics_detached",
    "You cut mean and variance out of the graph, so the gradient of x is wrong; leave out detach() "
    "and no_grad().",
    (NORMALISED, "(x - mean.detach()) / torch.sqrt(variance.detach() + self.eps)"),
)
add(
    "norm_in_float32",
    "You compute in float32 whatever the dtype of x, so float64 loses digits; leave out .float().",
    (NORMALISED, "(x.float() - mean.float()) / torch.sqrt(variance.float() + self.eps)"),
)
add(
    "norm_width_unchecked",
    "Your forward accepts vectors whose width is not d_model, as broadcasting allows; raise a "
    "ValueError.",
    ("if x.shape[-1] != len(self.gamma):", "if False:"),
)
add(
    "norm_features_unchecked",
    "Your LayerNorm accepts a d_model below 1; raise a ValueError when it is created.",
    ("if d_model < 1:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "PositionwiseFeedForward", "trf-ffn")
INNER = "torch.relu(self.w_1(x))"
OUTER = "self.w_2(self.dropout(inner))"
add(
    "ffn_without_relu",
    "You leave out the ReLU, so your two layers are one linear map; apply it to w_1(x).",
    (INNER, "self.w_1(x)"),
)
add(
    "ffn_relu_on_output",
    "You apply ReLU to the output; apply it between the two layers.",
    (INNER, "self.w_1(x)"),
    (OUTER, "torch.relu(self.w_2(self.dropout(inner)))"),
)
add(
    "ffn_relu_twice",
    "You apply a second ReLU to the output; apply it only to the inner layer.",
    (OUTER, "torch.relu(self.w_2(self.dropout(inner)))"),
)
add(
    "ffn_relu_on_input",
    "You apply ReLU to x; apply it to w_1(x).",
    (INNER, "self.w_1(torch.relu(x))"),
)
add(
    "ffn_gelu",
    "You use GELU in the inner layer, as BERT and GPT do; use ReLU.",
    (INNER, "nn.functional.gelu(self.w_1(x))"),
)
add(
    "ffn_shortcut_inside",
    "Your network adds x; leave the residual connection to SublayerConnection.",
    (OUTER, "x + self.w_2(self.dropout(inner))"),
)
add(
    "ffn_dropout_missing",
    "Your network has no dropout in training mode; apply dropout to the inner layer, after the "
    "ReLU.",
    (OUTER, "self.w_2(inner)"),
)
add(
    "ffn_dropout_on_output",
    "You apply dropout to the output; apply it to the inner layer, after the ReLU.",
    (OUTER, "self.dropout(self.w_2(inner))"),
)
add(
    "ffn_dropout_on_input",
    "You apply dropout to x; apply it to the inner layer, after the ReLU.",
    (INNER, "torch.relu(self.w_1(self.dropout(x)))"),
    (OUTER, "self.w_2(inner)"),
)
add(
    "ffn_dropout_twice",
    "You apply dropout to the inner layer and to the output; apply it only to the inner layer.",
    (OUTER, "self.dropout(self.w_2(self.dropout(inner)))"),
)
add(
    "ffn_dropout_for_all_positions",
    "All positions lose the same inner features; draw for each position by itself, as nn.Dropout "
    "on the inner layer does.",
    (OUTER, "self.w_2(inner * self.dropout(inner.new_ones(inner.shape[-1])))"),
)
add(
    "ffn_dropout_of_whole_vectors",
    "You drop a position's whole inner vector or nothing of it; draw for each feature by itself, "
    "as nn.Dropout on the inner layer does.",
    (OUTER, "self.w_2(inner * self.dropout(torch.ones_like(inner[..., :1])))"),
)
add(
    "ffn_dropout_in_eval",
    "Your dropout acts in evaluation mode, too; use nn.Dropout, or drop only if self.training.",
    (OUTER, "self.w_2(nn.functional.dropout(inner, self.dropout.p))"),
)
add(
    "ffn_mixes_positions",
    "Your reshape mixes features of several positions; nn.Linear acts on the last axis by itself, "
    "so leave (B, T, D) as it is.",
    (INNER, "torch.relu(self.w_1(x.transpose(0, -2).reshape(x.shape)))"),
)
add(
    "ffn_position_mean",
    "You apply the network to the mean over all positions; apply it to each position by itself.",
    (INNER, "torch.relu(self.w_1(x.mean(-2, keepdim=True).expand_as(x)))"),
)
add(
    "ffn_without_bias",
    "Your linear layers have no bias; leave out bias=False.",
    (
        "nn.Linear(d_model, d_ff)\n        self.w_2",
        "nn.Linear(d_model, d_ff, bias=False)\n        self.w_2",
    ),
    (
        "= nn.Linear(d_ff, d_model)\n        self.dropout",
        "= nn.Linear(d_ff, d_model, bias=False)\n        self.dropout",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "ResidualBlock", "trf-residual")
RESIDUAL = "self.w_2(torch.relu(self.w_1(x)))"
SUM = "torch.relu(residual + x)"
add(
    "block_without_shortcut",
    "Your block has no residual connection; add x to the output of w_2.",
    (SUM, "torch.relu(residual)"),
)
add(
    "block_without_outer_relu",
    "You return the sum as it is; apply ReLU to it.",
    (SUM, "residual + x"),
)
add(
    "block_relu_before_sum",
    "You apply the second ReLU before you add x; add x first.",
    (SUM, "torch.relu(residual) + x"),
)
add(
    "block_without_inner_relu",
    "You leave out the ReLU between the two layers; apply it to w_1(x).",
    (RESIDUAL, "self.w_2(self.w_1(x))"),
)
add(
    "block_shortcut_past_second",
    "Your residual connection skips only w_2, as you add relu(w_1(x)); add x.",
    (
        f"{RESIDUAL}  # (..., d_model)\n        return {SUM}",
        "torch.relu(self.w_1(x))\n        return torch.relu(self.w_2(residual) + residual)",
    ),
)
add(
    "block_shortcut_past_first",
    "Your residual connection skips only w_1, as you add x before w_2; add it to the output of "
    "w_2.",
    (RESIDUAL, "self.w_2(torch.relu(self.w_1(x)) + x)"),
    (SUM, "torch.relu(residual)"),
)
add(
    "block_one_layer",
    "You apply w_1 twice; use w_2 as the second layer.",
    (RESIDUAL, "self.w_1(torch.relu(self.w_1(x)))"),
)
add(
    "block_with_bias",
    "Your layers have biases; create both with bias=False.",
    (
        "self.w_1 = nn.Linear(d_model, d_model, bias=False)",
        "self.w_1 = nn.Linear(d_model, d_model)",
    ),
    (
        "self.w_2 = nn.Linear(d_model, d_model, bias=False)",
        "self.w_2 = nn.Linear(d_model, d_model)",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "SublayerConnection", "trf-norm-order")
PRE = "x + self.dropout(sublayer(self.norm(x)))"
POST = "self.norm(x + self.dropout(sublayer(x)))"
add(
    "connection_order_swapped",
    "Your two orders are swapped: the norm comes after the sum if norm_first is False, and before "
    "the sub-layer if it is True.",
    ("if self.norm_first:", "if not self.norm_first:"),
)
add(
    "connection_always_pre",
    "You always put the norm before the sub-layer; by default it comes after the sum, as in the "
    "paper.",
    ("if self.norm_first:", "if True:"),
)
add(
    "connection_always_post",
    "You always put the norm after the sum; with norm_first, put it before the sub-layer.",
    ("if self.norm_first:", "if False:"),
)
add(
    "connection_norm_of_sublayer",
    "In post-norm you normalise the sub-layer's output and then add x; normalise the sum.",
    (POST, "x + self.norm(self.dropout(sublayer(x)))"),
)
add(
    "connection_without_shortcut",
    "You leave out the residual connection; add x to the sub-layer's output.",
    (PRE, "self.dropout(sublayer(self.norm(x)))"),
    (POST, "self.norm(self.dropout(sublayer(x)))"),
    read="trf-residual",
)
add(
    "connection_shortcut_normalised",
    "In pre-norm you add the normalised x; add x itself, so that no norm is on the residual "
    "connection.",
    (PRE, "self.norm(x) + self.dropout(sublayer(self.norm(x)))"),
)
add(
    "connection_pre_norm_outside",
    "In pre-norm you normalise the sub-layer's output; normalise its input: sublayer(norm(x)).",
    (PRE, "x + self.dropout(self.norm(sublayer(x)))"),
)
add(
    "connection_pre_and_post",
    "With norm_first you normalise before the sub-layer and after the sum; normalise only before.",
    (PRE, "self.norm(x + self.dropout(sublayer(self.norm(x))))"),
)
add(
    "connection_without_norm",
    "You never normalise; apply the norm to the sum, or with norm_first to the sub-layer's input.",
    (PRE, "x + self.dropout(sublayer(x))"),
    (POST, "x + self.dropout(sublayer(x))"),
)
add(
    "connection_dropout_missing",
    "Your connection has no dropout in training mode; apply dropout to the sub-layer's output, and "
    "to nothing else.",
    (PRE, "x + sublayer(self.norm(x))"),
    (POST, "self.norm(x + sublayer(x))"),
    read="trf-residual",
)
add(
    "connection_dropout_only_post",
    "With norm_first your connection has no dropout; apply dropout to the sub-layer's output, "
    "there, too.",
    (PRE, "x + sublayer(self.norm(x))"),
    read="trf-residual",
)
add(
    "connection_dropout_only_pre",
    "In post-norm your connection has no dropout; apply dropout to the sub-layer's output, there, "
    "too.",
    (POST, "self.norm(x + sublayer(x))"),
    read="trf-residual",
)
add(
    "connection_dropout_on_input",
    "You apply dropout to the sub-layer's input; apply it to its output.",
    (PRE, "x + sublayer(self.dropout(self.norm(x)))"),
    (POST, "self.norm(x + sublayer(self.dropout(x)))"),
    read="trf-residual",
)
add(
    "connection_dropout_for_all_positions",
    "All positions lose the same features of the sub-layer's output; draw for each position by "
    "itself, as nn.Dropout on that output does.",
    (PRE, "x + sublayer(self.norm(x)) * self.dropout(torch.ones_like(x[:, :1]))"),
    (POST, "self.norm(x + sublayer(x) * self.dropout(torch.ones_like(x[:, :1])))"),
    read="trf-residual",
)
add(
    "connection_dropout_on_sum",
    "You apply dropout to the sum, x included; apply it only to the sub-layer's output.",
    (PRE, "self.dropout(x + sublayer(self.norm(x)))"),
    (POST, "self.norm(self.dropout(x + sublayer(x)))"),
    read="trf-residual",
)
add(
    "connection_dropout_last",
    "In post-norm you apply dropout to the result; apply it to the sub-layer's output, before the "
    "sum.",
    (POST, "self.dropout(self.norm(x + sublayer(x)))"),
    read="trf-residual",
)
add(
    "connection_changes_x",
    "x += ... changes the caller's tensor; create a new one with x = x + ...",
    (f"return {PRE}", "x += self.dropout(sublayer(self.norm(x)))\n            return x"),
    (f"return {POST}", "x += self.dropout(sublayer(x))\n        return self.norm(x)"),
    read="trf-residual",
)
add(
    "connection_changes_sublayer_output",
    "You add x in place to what the sub-layer returns, which may be the caller's x itself; create "
    "a new tensor with x + ...",
    (
        f"return {POST}",
        "total = self.dropout(sublayer(x))\n        total += x\n        return self.norm(total)",
    ),
    read="trf-residual",
)
add(
    "connection_calls_twice",
    "You call the sub-layer twice; call it once and keep what it returns.",
    (
        "if self.norm_first:",
        "if sublayer(x).shape != x.shape:\n"
        '            raise ValueError("the sub-layer must keep the shape")\n'
        "        if self.norm_first:",
    ),
    read="trf-residual",
)
add(
    "connection_stores_sublayer",
    "You store the sub-layer in self, so its parameters become this module's; leave self alone.",
    ("if self.norm_first:", "self.sublayer = sublayer\n        if self.norm_first:"),
    read="trf-residual",
)
add(
    "connection_order_of_the_class",
    "You keep norm_first in the class, where the next connection overwrites it; keep it in self.",
    ("self.norm_first = norm_first", "SublayerConnection.norm_first = norm_first"),
)
add(
    "connection_shortcut_detached",
    "Your residual connection passes no gradient back to x; leave out detach().",
    (PRE, "x.detach() + self.dropout(sublayer(self.norm(x)))"),
    (POST, "self.norm(x.detach() + self.dropout(sublayer(x)))"),
    read="trf-residual",
)
