"""Known mistakes of `transformer-parts`: embeddings, attention, masks, norms.

A batch size that is known only under a mask, the sample deviation with eps outside the root, a
shortcut that is normalised.
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
    "Your vectors are the rows of the table as they are; multiply them by sqrt(d_model).",
    (SCALED, "self.lut(ids)"),
)
add(
    "embeddings_times_width",
    "You multiply by d_model; the factor is its square root.",
    (SCALED, "self.lut(ids) * self.d_model"),
)
add(
    "embeddings_divided",
    "You divide by sqrt(d_model), as attention does with its scores; embeddings are multiplied by "
    "it.",
    (SCALED, "self.lut(ids) / math.sqrt(self.d_model)"),
)
add(
    "embeddings_times_root_of_vocabulary",
    "Your factor is the square root of the size of the vocabulary; it is that of d_model.",
    (SCALED, "self.lut(ids) * math.sqrt(self.lut.num_embeddings)"),
)
add(
    "embeddings_standard_normal",
    "Your table keeps the values of nn.Embedding, of variance 1, so that scaled vectors have the "
    "variance d_model; draw it from N(0, 1/d_model).",
    (DRAWN, "pass"),
)
add(
    "embeddings_xavier",
    "Your table is drawn by Xavier's rule, which divides by the size of the vocabulary too: scaled "
    "vectors are then far too short. Draw it from N(0, 1/d_model).",
    (DRAWN, "nn.init.xavier_uniform_(self.lut.weight)"),
)
add(
    "embeddings_deviation_is_variance",
    "Your table has the standard deviation 1/d_model; that is to be the variance, so give "
    "nn.init.normal_ the square root of it.",
    (DRAWN, "nn.init.normal_(self.lut.weight, std=1.0 / d_model)"),
)
add(
    "embeddings_uniform",
    "Your table has the right variance but is drawn uniformly; draw it from a normal distribution.",
    (DRAWN, "nn.init.uniform_(self.lut.weight, -math.sqrt(3 / d_model), math.sqrt(3 / d_model))"),
)
add(
    "embeddings_padding_row_fixed",
    "With padding_idx the row of PAD stays zero or never learns; masks take care of padding, so "
    "create nn.Embedding without it.",
    (
        "self.lut = nn.Embedding(vocab_size, d_model)",
        "self.lut = nn.Embedding(vocab_size, d_model, padding_idx=PAD)",
    ),
)
add(
    "embeddings_sizes_unchecked",
    "A vocabulary or a width below 1 is not refused; raise a ValueError.",
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
    "Your scores are divided by sqrt(d_model); each head divides by the root of its own width, "
    "d_model / num_heads.",
    (SCORES, "queries @ keys.transpose(-2, -1) / math.sqrt(query.shape[-1])"),
)
add(
    "attention_unscaled",
    "Your scores are not scaled; divide them by the square root of a head's width, or softmax "
    "saturates.",
    (SCORES, "queries @ keys.transpose(-2, -1)"),
)
add(
    "attention_scale_without_root",
    "Your scores are divided by the width of a head; divide by its square root.",
    (SCORES, "queries @ keys.transpose(-2, -1) / queries.shape[-1]"),
)
add(
    "attention_scale_multiplied",
    "Your scores are multiplied by the square root of a head's width; divide by it.",
    (SCORES, "queries @ keys.transpose(-2, -1) * math.sqrt(queries.shape[-1])"),
)
add(
    "attention_batch_size_under_mask",
    "You take the batch size only where a mask is given, so that a call without a mask ends in a "
    "NameError; take it before the if.",
    (QUERY_SHAPE, "        if mask is not None:\n            batch, length, width = query.shape\n"),
)
add(
    "attention_mask_ignored",
    "Your attention takes no notice of the mask; fill the scores where it is False before softmax.",
    (MASKED, "scores"),
    PLAIN,
)
add(
    "attention_mask_inverted",
    "Your mask works the wrong way round: True means that a position may be attended to.",
    (MASKED, "scores.masked_fill(mask, torch.finfo(scores.dtype).min)"),
    PLAIN,
)
add(
    "attention_mask_after_softmax",
    "Your mask sets weights to 0 after softmax, so that the rest no longer sums to 1; mask the "
    "scores before softmax.",
    (MASKED, "scores"),
)
add(
    "attention_mask_by_zero",
    "Masked scores become 0, or nearly so, and 0 is a score like any other; fill in -inf or a very "
    "large negative number.",
    (MASKED, "scores.masked_fill(~mask, 0.0)"),
    PLAIN,
)
add(
    "attention_mask_over_heads",
    "A mask with three axes is aligned from the right, so that its batch axis meets the heads; "
    "insert an axis for the heads, mask.unsqueeze(1).",
    ("mask = mask.unsqueeze(1)", "pass"),
)
add(
    "attention_mask_for_first_example",
    "All examples get the mask of the first; each has its own.",
    ("mask = mask.unsqueeze(1)", "mask = mask[:1].unsqueeze(1)"),
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
add(
    "attention_merge_without_transpose",
    "You reshape (B, H, T, D/H) to (B, T, D) at once, which mixes positions; transpose axes 1 and "
    "2 back first.",
    (MERGED, "(attn_weights @ values).reshape(batch, length, width)"),
)
add(
    "attention_softmax_over_queries",
    "Your softmax runs over the queries; it runs over the keys, the last axis, so that each "
    "query's weights sum to 1.",
    (WEIGHTS, "self.dropout(torch.softmax(scores, dim=-2))"),
    PLAIN,
)
add(
    "attention_softmax_over_heads",
    "Your softmax runs over the heads; it runs over the keys, the last axis.",
    (WEIGHTS, "self.dropout(torch.softmax(scores, dim=1))"),
    PLAIN,
)
add(
    "attention_without_output_projection",
    "The merged heads are returned as they are; out_proj comes last.",
    ("self.out_proj(merged)", "merged"),
)
add(
    "attention_query_not_projected",
    "Your queries skip q_proj; attend gets them unprojected.",
    ("self.q_proj(query)", "query"),
)
add(
    "attention_values_from_key",
    "Your values are made of `key`; v_proj acts on `value`.",
    ("self.v_proj(value)", "self.v_proj(key)"),
)
add(
    "attention_values_by_k_proj",
    "Your values are made by k_proj; v_proj makes them.",
    ("self.v_proj(value)", "self.k_proj(value)"),
)
add(
    "attention_keys_from_query",
    "forward makes the keys of the query; project(key, value) makes them of the key.",
    ("self.project(key, value)", "self.project(query, value)"),
)
add(
    "attention_mask_not_passed",
    "forward keeps the mask to itself; hand it to attend.",
    ("self.attend(query, keys, values, mask)", "self.attend(query, keys, values)"),
)
add(
    "attention_project_without_heads",
    "project returns (B, Tk, D); split keys and values into heads, (B, H, Tk, D/H).",
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
    "project returns values and keys; keys come first.",
    ("return keys, values\n", "return values, keys\n"),
    ("keys, values = self.project(key, value)", "values, keys = self.project(key, value)"),
)
add(
    "attention_dropout_on_output",
    "Your dropout acts on the output; it acts on the weights, after softmax.",
    (WEIGHTS, "torch.softmax(scores, dim=-1)"),
    ("return self.out_proj(merged)", "return self.dropout(self.out_proj(merged))"),
)
add(
    "attention_dropout_ignored",
    "Nothing is dropped in train mode; apply dropout to the weights.",
    (WEIGHTS, "torch.softmax(scores, dim=-1)"),
)
add(
    "attention_dropout_before_softmax",
    "Your dropout acts on the scores, where a 0 is a score like any other; drop weights, after "
    "softmax.",
    (WEIGHTS, "torch.softmax(self.dropout(scores), dim=-1)"),
)
add(
    "attention_dropout_for_all_heads",
    "All heads drop the same weights; the decision is taken for each weight of each head.",
    (
        WEIGHTS,
        "torch.softmax(scores, dim=-1) * self.dropout(torch.ones_like(scores[:, :1]))",
    ),
)
add(
    "attention_dropout_in_eval",
    "Your dropout acts in eval mode too; nn.Dropout, or training=self.training, turns it off.",
    (WEIGHTS, "nn.functional.dropout(torch.softmax(scores, dim=-1), self.dropout.p)"),
)
add(
    "attention_dropout_not_rescaled",
    "The weights that are left keep their size; dropout divides them by 1 - p.",
    (
        WEIGHTS,
        "torch.softmax(scores, dim=-1) * (self.dropout(torch.ones_like(scores)) != 0)",
    ),
)
add(
    "attention_dropout_is_keep",
    "You take dropout for the probability of keeping a weight; it is that of dropping one.",
    ("nn.Dropout(dropout)", "nn.Dropout(1 - dropout if dropout else 0.0)"),
)
add(
    "attention_overflow",
    "Your softmax overflows for large scores; subtract the maximum first, as torch.softmax does.",
    (WEIGHTS, "self.dropout(scores.exp() / scores.exp().sum(-1, keepdim=True))"),
)
add(
    "attention_heads_unchecked",
    "A d_model that num_heads does not divide is not refused when the module is created; raise a "
    "ValueError.",
    ("if num_heads < 1 or d_model % num_heads != 0:", "if False:"),
)

# --------------------------------------------------------------------------------------------
# Masks
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "pad_mask", "trf-masks")
REAL = "(ids != pad).unsqueeze(1)"
add(
    "pad_mask_inverted",
    "Your mask is True at the padding; True means that a position may be attended to.",
    (REAL, "(ids == pad).unsqueeze(1)"),
)
add(
    "pad_mask_without_axis",
    "Your mask has the shape (B, T); insert an axis for the queries, (B, 1, T).",
    (REAL, "ids != pad"),
)
add(
    "pad_mask_over_queries",
    "Your mask has the shape (B, T, 1), which masks queries; padding must not be a key: (B, 1, T).",
    (REAL, "(ids != pad).unsqueeze(2)"),
)
add(
    "pad_mask_with_head_axis",
    "Your mask has the shape (B, 1, 1, T); the axis of the heads is the attention's business: "
    "(B, 1, T).",
    (REAL, "(ids != pad).unsqueeze(1).unsqueeze(1)"),
)
add(
    "pad_mask_pad_ignored",
    "Your mask compares with 0 whatever `pad` says; compare with the argument.",
    (REAL, "(ids != PAD).unsqueeze(1)"),
)
add(
    "pad_mask_greater",
    "Your mask asks for ids greater than pad; padding is the one id that equals it.",
    (REAL, "(ids > pad).unsqueeze(1)"),
)
add(
    "pad_mask_of_numbers",
    "Your mask holds numbers; it is of dtype bool.",
    (REAL, "(ids != pad).unsqueeze(1).long()"),
)
add(
    "pad_mask_of_floats",
    "Your mask holds floats; it is of dtype bool.",
    (REAL, "(ids != pad).unsqueeze(1).float()"),
)
add(
    "pad_mask_by_count",
    "You count the real tokens and take the row to begin with them; look at each id, for padding "
    "may stand anywhere.",
    (REAL, "(torch.arange(ids.shape[1]) < (ids != pad).sum(1, keepdim=True)).unsqueeze(1)"),
)
add(
    "pad_mask_specials_masked",
    "Your mask hides BOS and EOS as well; they are tokens that a sentence has.",
    (REAL, "((ids != pad) & (ids != BOS) & (ids != EOS)).unsqueeze(1)"),
)

add = mistakes_in(MISCONCEPTIONS, "subsequent_mask", "trf-masks")
LOWER = "torch.ones(1, size, size, dtype=torch.bool).tril()"
add(
    "subsequent_without_self",
    "Your triangle lacks its diagonal, so that the first position may attend to nothing; a "
    "position attends to itself too.",
    (LOWER, "torch.ones(1, size, size, dtype=torch.bool).tril(-1)"),
)
add(
    "subsequent_one_ahead",
    "Your positions may attend to the one that follows, which is what they are to predict; end at "
    "the diagonal.",
    (LOWER, "torch.ones(1, size, size, dtype=torch.bool).tril(1)"),
)
add(
    "subsequent_upper",
    "Your triangle is the upper one: positions attend to what follows. Row i, the query, has True "
    "in columns 0 to i.",
    (LOWER, "torch.ones(1, size, size, dtype=torch.bool).triu()"),
)
add(
    "subsequent_inverted",
    "Your mask is True where attending is forbidden; True means that a position may be attended "
    "to.",
    (LOWER, "torch.ones(1, size, size, dtype=torch.bool).triu(1)"),
)
add(
    "subsequent_without_batch_axis",
    "Your mask has the shape (size, size); the batch axis in front is 1: (1, size, size).",
    (LOWER, "torch.ones(size, size, dtype=torch.bool).tril()"),
)
add(
    "subsequent_of_numbers",
    "Your mask holds numbers; it is of dtype bool.",
    (LOWER, "torch.ones(1, size, size).tril()"),
)
add(
    "subsequent_size_unchecked",
    "A size below 1 is not refused with a ValueError.",
    ("if size < 1:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "make_std_mask", "trf-masks")
BOTH = "pad_mask(target, pad) & earlier"
add(
    "std_mask_or",
    "Your mask joins the two with or, so that one permission is enough; both must hold: use &.",
    (BOTH, "pad_mask(target, pad) | earlier"),
)
add(
    "std_mask_padding_only",
    "Your mask hides padding only; positions that follow must be hidden too.",
    (BOTH, "pad_mask(target, pad).expand(-1, target.shape[1], -1)"),
)
add(
    "std_mask_triangle_only",
    "Your mask hides what follows only; padding must be hidden too.",
    (BOTH, "earlier.expand(len(target), -1, -1)"),
)
add(
    "std_mask_padded_queries",
    "Your mask hides padding as a query instead of as a key; the columns of padding are False, its "
    "rows are like others.",
    (BOTH, "pad_mask(target, pad).transpose(1, 2) & earlier"),
)
add(
    "std_mask_padded_rows_too",
    "Your mask also empties the rows of padded queries, which then may attend to nothing; only the "
    "columns, the keys, are hidden.",
    (BOTH, "pad_mask(target, pad) & pad_mask(target, pad).transpose(1, 2) & earlier"),
)
add(
    "std_mask_without_self",
    "No position may attend to itself in your mask, the first one to nothing at all; the triangle "
    "has its diagonal.",
    (BOTH, "pad_mask(target, pad) & earlier.tril(-1)"),
)
add(
    "std_mask_pad_not_passed",
    "Your mask takes 0 for padding whatever `pad` says; hand it on to pad_mask.",
    (BOTH, "pad_mask(target) & earlier"),
)
add(
    "std_mask_later",
    "Your mask lets positions attend to what follows; take the lower triangle.",
    (BOTH, "pad_mask(target, pad) & earlier.transpose(1, 2)"),
)
add(
    "std_mask_of_numbers",
    "Your mask is a product of numbers; it is of dtype bool: use & on two boolean masks.",
    (BOTH, "pad_mask(target, pad).long() * earlier.long()"),
)
add(
    "std_mask_of_first_row",
    "Your mask holds the padding of the first row for all; each row has its own.",
    (BOTH, "(pad_mask(target, pad)[:1] & earlier).expand(len(target), -1, -1)"),
)

# --------------------------------------------------------------------------------------------
# Norm, feed-forward, shortcuts
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "LayerNorm", "trf-norm")
MEAN = "x.mean(dim=-1, keepdim=True)"
VARIANCE = "x.var(dim=-1, unbiased=False, keepdim=True)"
NORMALISED = "(x - mean) / torch.sqrt(variance + self.eps)"
AFFINE = "self.gamma * normalised + self.beta"
add(
    "norm_sample_deviation_eps_outside",
    "You divide by x.std() + eps, as the Annotated Transformer does: the sample deviation, with "
    "eps outside the root. Take the biased variance and add eps to it inside the root.",
    (NORMALISED, "(x - mean) / (x.std(dim=-1, keepdim=True) + self.eps)"),
)
add(
    "norm_unbiased",
    "Your variance divides by D - 1; give var(..., unbiased=False), which divides by D.",
    (VARIANCE, "x.var(dim=-1, keepdim=True)"),
)
add(
    "norm_eps_outside_root",
    "Your eps is added to the standard deviation; it is added to the variance, inside the root.",
    (NORMALISED, "(x - mean) / (torch.sqrt(variance) + self.eps)"),
)
add(
    "norm_eps_subtracted",
    "Your eps is subtracted, so that a constant vector takes the root of a negative number; add "
    "it.",
    (NORMALISED, "(x - mean) / torch.sqrt(variance - self.eps)"),
)
add(
    "norm_eps_missing",
    "Your norm has no eps, so that a constant vector becomes NaN; add eps to the variance.",
    (NORMALISED, "(x - mean) / torch.sqrt(variance)"),
)
add(
    "norm_eps_other_default",
    "Your eps is another than 1e-5 by default.",
    ("eps: float = 1e-5", "eps: float = 1e-6"),
)
add(
    "norm_eps_fixed",
    "Your norm takes 1e-5 whatever eps says; keep the argument and use it.",
    ("self.eps = eps", "self.eps = 1e-5"),
)
add(
    "norm_variance_squared",
    "Your norm squares the variance once more: sigma squared already is the variance. Divide by "
    "sqrt(variance + eps).",
    (NORMALISED, "(x - mean) / torch.sqrt(variance**2 + self.eps)"),
)
add(
    "norm_divided_by_variance",
    "Your norm divides by the variance; divide by its square root.",
    (NORMALISED, "(x - mean) / (variance + self.eps)"),
)
add(
    "norm_mean_kept",
    "Your norm does not subtract the mean; that is RMSNorm. Subtract it.",
    (NORMALISED, "x / torch.sqrt(variance + self.eps)"),
)
add(
    "norm_without_gamma",
    "Your norm leaves out gamma; the normalised vector is multiplied by it.",
    (AFFINE, "normalised + self.beta"),
)
add(
    "norm_without_beta",
    "Your norm leaves out beta; it is added at the end.",
    (AFFINE, "self.gamma * normalised"),
)
add(
    "norm_without_parameters",
    "Your norm has no gamma and beta; both are nn.Parameters of the width of a vector.",
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
    "Your norm adds beta before it multiplies by gamma; multiply first.",
    (AFFINE, "self.gamma * (normalised + self.beta)"),
)
add(
    "norm_over_batch",
    "Your statistics are taken over the first axis, across vectors; each vector has its own mean "
    "and variance, over the last axis.",
    (MEAN, "x.mean(dim=0, keepdim=True)"),
    (VARIANCE, "x.var(dim=0, unbiased=False, keepdim=True)"),
    read="trf-batchnorm",
)
add(
    "norm_over_positions",
    "Your statistics are taken across the vectors in front of the last axis, padding included; "
    "each vector has its own mean and variance, over the last axis.",
    (MEAN, "x.mean(dim=tuple(range(x.dim() - 1)), keepdim=True)"),
    (VARIANCE, "x.var(dim=tuple(range(x.dim() - 1)), unbiased=False, keepdim=True)"),
    read="trf-batchnorm",
)
add(
    "norm_over_time",
    "Your statistics are taken over the positions of a sentence; each vector has its own mean and "
    "variance, over the last axis.",
    (MEAN, "x.mean(dim=max(x.dim() - 2, 0), keepdim=True)"),
    (VARIANCE, "x.var(dim=max(x.dim() - 2, 0), unbiased=False, keepdim=True)"),
    read="trf-batchnorm",
)
add(
    "norm_over_everything",
    "One mean and one variance serve all vectors; each has its own, over the last axis.",
    (MEAN, "x.mean()"),
    (VARIANCE, "x.var(unbiased=False)"),
)
add(
    "norm_initial_gamma_zero",
    "Your gamma begins with zeros, so that the norm answers beta to everything; begin with ones.",
    ("torch.ones(d_model)", "torch.zeros(d_model)"),
)
add(
    "norm_initial_random",
    "Your gamma and beta begin with random numbers; begin with ones and zeros.",
    ("torch.ones(d_model)", "torch.randn(d_model)"),
    ("torch.zeros(d_model)", "torch.randn(d_model)"),
)
add(
    "norm_statistics_detached",
    "Mean and variance are cut out of the graph, so that the gradient of x is wrong; leave "
    "detach() and no_grad() out.",
    (NORMALISED, "(x - mean.detach()) / torch.sqrt(variance.detach() + self.eps)"),
)
add(
    "norm_width_unchecked",
    "Vectors of another width than `d_model` are not refused with a ValueError; broadcasting lets "
    "some of them pass.",
    ("if x.shape[-1] != len(self.gamma):", "if False:"),
)
add(
    "norm_features_unchecked",
    "d_model below 1 is not refused with a ValueError.",
    ("if d_model < 1:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "PositionwiseFeedForward", "trf-ffn")
INNER = "torch.relu(self.w_1(x))"
OUTER = "self.w_2(self.dropout(inner))"
add(
    "ffn_without_relu",
    "Your two layers have no ReLU between them, so that they are one linear map; apply it to "
    "w_1(x).",
    (INNER, "self.w_1(x)"),
)
add(
    "ffn_relu_on_output",
    "Your ReLU acts on the output; it acts between the two layers.",
    (INNER, "self.w_1(x)"),
    (OUTER, "torch.relu(self.w_2(self.dropout(inner)))"),
)
add(
    "ffn_relu_twice",
    "Your output passes a second ReLU; only the inner layer has one.",
    (OUTER, "torch.relu(self.w_2(self.dropout(inner)))"),
)
add(
    "ffn_relu_on_input",
    "Your ReLU acts on x; it acts on w_1(x).",
    (INNER, "self.w_1(torch.relu(x))"),
)
add(
    "ffn_gelu",
    "Your inner layer uses GELU, as BERT and GPT do; this network uses ReLU.",
    (INNER, "nn.functional.gelu(self.w_1(x))"),
)
add(
    "ffn_shortcut_inside",
    "Your network adds x; the shortcut is the business of SublayerConnection.",
    (OUTER, "x + self.w_2(self.dropout(inner))"),
)
add(
    "ffn_dropout_missing",
    "Nothing is dropped in train mode; dropout acts on the inner layer, after ReLU.",
    (OUTER, "self.w_2(inner)"),
)
add(
    "ffn_dropout_on_output",
    "Your dropout acts on the output; it acts on the inner layer, after ReLU.",
    (OUTER, "self.dropout(self.w_2(inner))"),
)
add(
    "ffn_dropout_on_input",
    "Your dropout acts on x; it acts on the inner layer, after ReLU.",
    (INNER, "torch.relu(self.w_1(self.dropout(x)))"),
    (OUTER, "self.w_2(inner)"),
)
add(
    "ffn_dropout_twice",
    "Your dropout acts on the inner layer and on the output; only the inner layer is meant here.",
    (OUTER, "self.dropout(self.w_2(self.dropout(inner)))"),
)
add(
    "ffn_dropout_in_eval",
    "Your dropout acts in eval mode too; nn.Dropout, or training=self.training, turns it off.",
    (OUTER, "self.w_2(nn.functional.dropout(inner, self.dropout.p))"),
)
add(
    "ffn_mixes_positions",
    "Your reshape lays features of several positions side by side; a linear layer acts on the last "
    "axis by itself, so leave (B, T, D) as it is.",
    (INNER, "torch.relu(self.w_1(x.transpose(0, -2).reshape(x.shape)))"),
)
add(
    "ffn_position_mean",
    "Every position gets the network's answer to the mean of all; the network sees one position "
    "at a time.",
    (INNER, "torch.relu(self.w_1(x.mean(-2, keepdim=True).expand_as(x)))"),
)
add(
    "ffn_without_bias",
    "Your linear layers have no bias; both have one.",
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
    "Your block has no shortcut; add x to w_2's answer.",
    (SUM, "torch.relu(residual)"),
)
add(
    "block_without_outer_relu",
    "Your sum is returned as it is; apply ReLU to it.",
    (SUM, "residual + x"),
)
add(
    "block_relu_before_sum",
    "Your second ReLU acts on w_2's answer before x is added; add first.",
    (SUM, "torch.relu(residual) + x"),
)
add(
    "block_without_inner_relu",
    "Your two layers have no ReLU between them; apply it to w_1(x).",
    (RESIDUAL, "self.w_2(self.w_1(x))"),
)
add(
    "block_shortcut_past_second",
    "Your shortcut leads past w_2 only: it adds relu(w_1(x)). Add x.",
    (
        f"{RESIDUAL}  # (..., d_model)\n        return {SUM}",
        "torch.relu(self.w_1(x))\n        return torch.relu(self.w_2(residual) + residual)",
    ),
)
add(
    "block_shortcut_past_first",
    "Your shortcut leads past w_1 only: x is added before w_2. Add it to w_2's answer.",
    (RESIDUAL, "self.w_2(torch.relu(self.w_1(x)) + x)"),
    (SUM, "torch.relu(residual)"),
)
add(
    "block_one_layer",
    "Your block applies w_1 twice; the second layer is w_2.",
    (RESIDUAL, "self.w_1(torch.relu(self.w_1(x)))"),
)
add(
    "block_with_bias",
    "Your layers have biases; the equations have none: bias=False.",
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
    "Your norm comes first where norm_first is False, and last where it is True.",
    ("if self.norm_first:", "if not self.norm_first:"),
)
add(
    "connection_always_pre",
    "Your norm always comes before the sub-layer, as in the Annotated Transformer's code; by "
    "default it comes after the sum, as in the paper.",
    ("if self.norm_first:", "if True:"),
)
add(
    "connection_always_post",
    "Your norm always comes after the sum; with norm_first it comes before the sub-layer.",
    ("if self.norm_first:", "if False:"),
)
add(
    "connection_norm_of_sublayer",
    "Your post-norm normalises what the sub-layer returns and adds x then; normalise the sum.",
    (POST, "x + self.norm(self.dropout(sublayer(x)))"),
)
add(
    "connection_without_shortcut",
    "Your connection has no shortcut; add x to what the sub-layer returns.",
    (PRE, "self.dropout(sublayer(self.norm(x)))"),
    (POST, "self.norm(self.dropout(sublayer(x)))"),
    read="trf-residual",
)
add(
    "connection_shortcut_normalised",
    "In your pre-norm the shortcut carries the normalised x; it carries x as it came.",
    (PRE, "self.norm(x) + self.dropout(sublayer(self.norm(x)))"),
)
add(
    "connection_pre_norm_outside",
    "Your pre-norm normalises the sub-layer's output instead of its input: sublayer(norm(x)).",
    (PRE, "x + self.dropout(self.norm(sublayer(x)))"),
)
add(
    "connection_pre_and_post",
    "With norm_first your connection normalises before the sub-layer and after the sum; once is "
    "enough, before.",
    (PRE, "self.norm(x + self.dropout(sublayer(self.norm(x))))"),
)
add(
    "connection_without_norm",
    "Your connection does not normalise at all.",
    (PRE, "x + self.dropout(sublayer(x))"),
    (POST, "x + self.dropout(sublayer(x))"),
)
add(
    "connection_dropout_missing",
    "Nothing that the sub-layer returns is dropped in train mode; apply dropout to it, and to "
    "nothing else.",
    (PRE, "x + sublayer(self.norm(x))"),
    (POST, "self.norm(x + sublayer(x))"),
    read="trf-residual",
)
add(
    "connection_dropout_on_sum",
    "Your dropout acts on the sum, the shortcut included; it acts on what the sub-layer returns.",
    (PRE, "self.dropout(x + sublayer(self.norm(x)))"),
    (POST, "self.norm(self.dropout(x + sublayer(x)))"),
    read="trf-residual",
)
add(
    "connection_dropout_last",
    "Your post-norm drops entries of the result; dropout acts on what the sub-layer returns, "
    "before the sum.",
    (POST, "self.dropout(self.norm(x + sublayer(x)))"),
    read="trf-residual",
)
add(
    "connection_changes_x",
    "x += ... writes into the caller's tensor; make a new one: x = x + ...",
    (f"return {PRE}", "x += self.dropout(sublayer(self.norm(x)))\n            return x"),
    (f"return {POST}", "x += self.dropout(sublayer(x))\n        return self.norm(x)"),
    read="trf-residual",
)
add(
    "connection_shortcut_detached",
    "Your shortcut carries no gradient, which is what it is there for; leave detach() out.",
    (PRE, "x.detach() + self.dropout(sublayer(self.norm(x)))"),
    (POST, "self.norm(x.detach() + self.dropout(sublayer(x)))"),
    read="trf-residual",
)
