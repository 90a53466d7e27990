"""Known mistakes of the chapter `transformer`: the reference with one cell changed.

Each says to the student which mistake it is and what to do. Many stand in circulating notes and
code: a batch size that is known only under a mask, the sample deviation with eps outside the root,
queries from the encoder, an attention that never hears of dropout, Xavier on the embeddings, layers
that begin as copies of one another.

Within an exercise the order matters only where two mistakes give the same answers to everything
that a test asked: the first is then named.
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
MERGED = "(weights @ values).transpose(1, 2).reshape(batch, length, width)"
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
    ("if mask is not None:", "if False:"),
)
add(
    "attention_mask_inverted",
    "Your mask works the wrong way round: True means that a position may be attended to.",
    (MASKED, "scores.masked_fill(mask, torch.finfo(scores.dtype).min)"),
)
add(
    "attention_mask_after_softmax",
    "Your mask sets weights to 0 after softmax, so that the rest no longer sums to 1; mask the "
    "scores before softmax.",
    (MASKED, "scores"),
    (
        WEIGHTS,
        "self.dropout(torch.softmax(scores, dim=-1) * (1 if mask is None else mask))",
    ),
)
add(
    "attention_mask_by_zero",
    "Masked scores become 0, or nearly so, and 0 is a score like any other; fill in -inf or a very "
    "large negative number.",
    (MASKED, "scores.masked_fill(~mask, 0.0)"),
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
    (MERGED, "(weights @ values).reshape(batch, length, width)"),
)
add(
    "attention_softmax_over_queries",
    "Your softmax runs over the queries; it runs over the keys, the last axis, so that each "
    "query's weights sum to 1.",
    (WEIGHTS, "self.dropout(torch.softmax(scores, dim=-2))"),
)
add(
    "attention_softmax_over_heads",
    "Your softmax runs over the heads; it runs over the keys, the last axis.",
    (WEIGHTS, "self.dropout(torch.softmax(scores, dim=1))"),
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
    (WEIGHTS, "F.dropout(torch.softmax(scores, dim=-1), self.dropout.p)"),
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
    ("self.gamma = nn.Parameter(torch.ones(features))", "self.features = features"),
    ("        self.beta = nn.Parameter(torch.zeros(features))\n", ""),
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
    ("torch.ones(features)", "torch.zeros(features)"),
)
add(
    "norm_initial_random",
    "Your gamma and beta begin with random numbers; begin with ones and zeros.",
    ("torch.ones(features)", "torch.randn(features)"),
    ("torch.zeros(features)", "torch.randn(features)"),
)
add(
    "norm_statistics_detached",
    "Mean and variance are cut out of the graph, so that the gradient of x is wrong; leave "
    "detach() and no_grad() out.",
    (NORMALISED, "(x - mean.detach()) / torch.sqrt(variance.detach() + self.eps)"),
)
add(
    "norm_width_unchecked",
    "Vectors of another width than `features` are not refused with a ValueError; broadcasting lets "
    "some of them pass.",
    ("if x.shape[-1] != len(self.gamma):", "if False:"),
)
add(
    "norm_features_unchecked",
    "features below 1 is not refused with a ValueError.",
    ("if features < 1:", "if False:"),
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
    (INNER, "F.gelu(self.w_1(x))"),
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
    (OUTER, "self.w_2(F.dropout(inner, self.dropout.p))"),
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
        f"{RESIDUAL}  # (..., width)\n        return {SUM}",
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
    ("self.w_1 = nn.Linear(width, width, bias=False)", "self.w_1 = nn.Linear(width, width)"),
    ("self.w_2 = nn.Linear(width, width, bias=False)", "self.w_2 = nn.Linear(width, width)"),
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

# --------------------------------------------------------------------------------------------
# Encoder
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "clones", "trf-encoder")
COPIES = "nn.ModuleList(copy.deepcopy(module) for _ in range(n))"
add(
    "clones_one_module",
    "Your list holds one module n times, so that all layers share their parameters; copy it anew "
    "for every place.",
    (COPIES, "nn.ModuleList([copy.deepcopy(module)] * n)"),
)
add(
    "clones_the_original",
    "Your list holds the original n times, or shallow copies around its parameters; every place "
    "needs its own copy.deepcopy(module).",
    (COPIES, "nn.ModuleList([module] * n)"),
)
add(
    "clones_original_first",
    "Your first entry is the original itself; all n entries are copies.",
    (COPIES, "nn.ModuleList([module] + [copy.deepcopy(module) for _ in range(n - 1)])"),
)
add(
    "clones_one_too_many",
    "Your list holds n + 1 modules; the original is no part of it.",
    (COPIES, "nn.ModuleList(copy.deepcopy(module) for _ in range(n + 1))"),
)
add(
    "clones_unchecked",
    "n below 1 is not refused with a ValueError; a stack without layers would pass unnoticed.",
    ("if n < 1:", "if False:"),
)
add(
    "clones_zero_accepted",
    "n = 0 is accepted; at least one copy is asked for.",
    ("if n < 1:", "if n < 0:"),
)

add = mistakes_in(MISCONCEPTIONS, "EncoderLayer", "trf-encoder")
SELF = "x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))"
FEED = "self.sublayer[1](x, self.feed_forward)"
MADE = "clones(SublayerConnection(d_model, dropout, norm_first), 2)"
add(
    "encoder_layer_order",
    "Your feed-forward network comes before self-attention; attention comes first.",
    (
        f"{SELF}  # (B, S, D)\n        return {FEED}",
        "x = self.sublayer[1](x, self.feed_forward)\n"
        "        return self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))",
    ),
)
add(
    "encoder_layer_one_connection",
    "Both sub-layers go through sublayer[0], and sublayer[1] learns nothing; each has its own.",
    (FEED, "self.sublayer[0](x, self.feed_forward)"),
)
add(
    "encoder_layer_connections_shared",
    "Your two connections are one module, with one norm; make copies.",
    (MADE, "nn.ModuleList([SublayerConnection(d_model, dropout, norm_first)] * 2)"),
)
add(
    "encoder_layer_mask_ignored",
    "Your self-attention gets no mask, so that padding is attended to; hand it on.",
    (SELF, "x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x))"),
    read="trf-mask-errors",
)
add(
    "encoder_layer_keys_before_norm",
    "With norm_first your queries are normalised, but keys and values are not: the inner function "
    "must use its own argument for all three.",
    (SELF, "x = self.sublayer[0](x, lambda y: self.self_attn(y, x, x, mask))"),
)
add(
    "encoder_layer_query_before_norm",
    "With norm_first your keys and values are normalised, but queries are not: the inner function "
    "must use its own argument for all three.",
    (SELF, "x = self.sublayer[0](x, lambda y: self.self_attn(x, y, y, mask))"),
)
add(
    "encoder_layer_without_feed_forward",
    "Your layer ends after self-attention; the feed-forward sub-layer follows.",
    (f"return {FEED}", "return x"),
)
add(
    "encoder_layer_without_connections",
    "Your sub-layers follow each other without shortcut and norm; pass each through its "
    "connection.",
    (SELF, "x = self.self_attn(x, x, x, mask)"),
    (FEED, "self.feed_forward(x)"),
)
add(
    "encoder_layer_feed_forward_of_input",
    "Your feed-forward sub-layer gets the layer's input; it gets what self-attention made of it.",
    (SELF, "y = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))"),
)
add(
    "encoder_layer_parallel",
    "Both sub-layers of yours read the layer's input, and their results are added; the second "
    "reads what the first returned.",
    (SELF, "y = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))"),
    (FEED, "y + self.sublayer[1](x, self.feed_forward) - x"),
)
add(
    "encoder_layer_norm_order_not_passed",
    "Your layer is post-norm whatever norm_first says; hand it on to the connections.",
    (MADE, "clones(SublayerConnection(d_model, dropout), 2)"),
    read="trf-norm-order",
)
add(
    "encoder_layer_attention_without_dropout",
    "dropout does not reach self_attn: no attention weight is dropped. Hand it on as the third "
    "argument of MultiHeadAttention.",
    ("MultiHeadAttention(d_model, num_heads, dropout)", "MultiHeadAttention(d_model, num_heads)"),
)
add(
    "encoder_layer_feed_forward_without_dropout",
    "dropout does not reach feed_forward; hand it on.",
    ("PositionwiseFeedForward(d_model, d_ff, dropout)", "PositionwiseFeedForward(d_model, d_ff)"),
)
add(
    "encoder_layer_connections_without_dropout",
    "dropout does not reach the connections; hand it on.",
    (MADE, "clones(SublayerConnection(d_model, norm_first=norm_first), 2)"),
)
add(
    "encoder_layer_dropout_fixed",
    "Your attention drops weights with probability 0.1 whatever dropout says, as the printed "
    "make_model does; hand the argument on.",
    (
        "MultiHeadAttention(d_model, num_heads, dropout)",
        "MultiHeadAttention(d_model, num_heads, 0.1)",
    ),
)
add(
    "encoder_layer_d_ff_ignored",
    "Your feed-forward network is 4 d_model wide inside; d_ff says how wide.",
    (
        "PositionwiseFeedForward(d_model, d_ff, dropout)",
        "PositionwiseFeedForward(d_model, 4 * d_model, dropout)",
    ),
)
add(
    "encoder_layer_changes_x",
    "Your layer writes into the caller's x; make new tensors.",
    (SELF, "x.copy_(self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask)))"),
)

add = mistakes_in(MISCONCEPTIONS, "Encoder", "trf-encoder")
LAYER = "EncoderLayer(d_model, num_heads, d_ff, dropout, norm_first)"
LOOP = "        for layer in self.layers:\n            x = layer(x, mask)"
FINAL = "x if self.norm is None else self.norm(x)"
NORM = "LayerNorm(d_model) if norm_first else None"
add(
    "encoder_norm_never",
    "Your pre-norm stack has no final norm: the last layer's sum goes out as it is. With "
    "norm_first add self.norm = LayerNorm(d_model).",
    (NORM, "None"),
    read="trf-norm-order",
)
add(
    "encoder_norm_always",
    "Your post-norm stack has a final norm, though its layers end with one already; only with "
    "norm_first there is one.",
    (NORM, "LayerNorm(d_model)"),
    read="trf-norm-order",
)
add(
    "encoder_norm_unused",
    "Your final norm exists but is not applied.",
    (f"return {FINAL}", "return x"),
    read="trf-norm-order",
)
add(
    "encoder_norm_first_of_all",
    "Your final norm acts on the input of the stack; it acts on the output of the last layer.",
    (LOOP, f"        x = {FINAL}\n{LOOP}"),
    (f"return {FINAL}", "return x"),
    read="trf-norm-order",
)
add(
    "encoder_norm_after_every_layer",
    "Your final norm acts after every layer; it acts once, after the last.",
    (LOOP, f"{LOOP}\n            x = {FINAL}"),
    (f"        return {FINAL}  # (B, S, D)\n        ### END", "        return x\n        ### END"),
    read="trf-norm-order",
)
add(
    "encoder_one_layer_again_and_again",
    "Your first layer runs num_layers times and the others never; the stack has num_layers layers "
    "with parameters of their own.",
    (LOOP, "        for _ in self.layers:\n            x = self.layers[0](x, mask)"),
)
add(
    "encoder_layers_shared",
    "All your layers are one module, as in ALBERT; make copies with clones.",
    ("clones(layer, num_layers)", "nn.ModuleList([layer] * num_layers)"),
)
add(
    "encoder_first_layer_only",
    "Only your first layer runs; each reads what the one before returned.",
    (LOOP, "        for layer in self.layers[:1]:\n            x = layer(x, mask)"),
)
add(
    "encoder_layers_side_by_side",
    "Every layer of yours reads the input of the stack, and the last one wins; each reads what the "
    "one before returned.",
    (
        LOOP,
        "        start = x\n        for layer in self.layers:\n            x = layer(start, mask)",
    ),
)
add(
    "encoder_layers_backwards",
    "Your layers run from the last to the first; layers[0] comes first.",
    (LOOP, "        for layer in reversed(self.layers):\n            x = layer(x, mask)"),
)
add(
    "encoder_mask_not_passed",
    "Your layers get no mask, so that padding is attended to; hand it to every layer.",
    ("x = layer(x, mask)", "x = layer(x)"),
    read="trf-mask-errors",
)
add(
    "encoder_mask_for_first_layer",
    "Only your first layer gets the mask; padding must be hidden from every layer.",
    ("x = layer(x, mask)", "x, mask = layer(x, mask), None"),
    read="trf-mask-errors",
)
add(
    "encoder_dropout_not_passed",
    "dropout does not reach the layers; hand it on.",
    (LAYER, "EncoderLayer(d_model, num_heads, d_ff, norm_first=norm_first)"),
)
add(
    "encoder_norm_order_not_passed",
    "Your layers are post-norm whatever norm_first says; hand it on.",
    (LAYER, "EncoderLayer(d_model, num_heads, d_ff, dropout)"),
    read="trf-norm-order",
)
add(
    "encoder_layers_unchecked",
    "A stack without layers is not refused; raise a ValueError for num_layers below 1.",
    (
        "clones(layer, num_layers)",
        "nn.ModuleList(copy.deepcopy(layer) for _ in range(num_layers))",
    ),
)

# --------------------------------------------------------------------------------------------
# Decoder
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "DecoderLayer", "trf-decoder")
SELF = "self.self_attn(x, x, x, tgt_mask)"
LOOK = "self.src_attn(x, memory, memory, src_mask)"
MADE = "clones(SublayerConnection(d_model, dropout, norm_first), 3)"
add(
    "decoder_layer_query_and_key_from_memory",
    "Your cross-attention takes queries and keys from the encoder and values from the decoder: "
    "that can't even work when the lengths differ. Queries come from the decoder, keys and values "
    "from memory.",
    (LOOK, "self.src_attn(memory, memory, x, src_mask)"),
)
add(
    "decoder_layer_query_from_memory",
    "Your cross-attention takes queries from memory, keys and values from the decoder; it is the "
    "other way round.",
    (LOOK, "self.src_attn(memory, x, x, src_mask)"),
)
add(
    "decoder_layer_value_from_decoder",
    "Your cross-attention takes values from the decoder; keys and values both come from memory.",
    (LOOK, "self.src_attn(x, memory, x, src_mask)"),
)
add(
    "decoder_layer_all_from_memory",
    "Your cross-attention takes queries, keys and values from memory; queries come from the "
    "decoder.",
    (LOOK, "self.src_attn(memory, memory, memory, src_mask)"),
)
add(
    "decoder_layer_memory_unused",
    "Your second attention is self-attention again and the source is never read; keys and values "
    "come from memory.",
    (LOOK, "self.src_attn(x, x, x, tgt_mask)"),
)
add(
    "decoder_layer_src_mask_ignored",
    "Your cross-attention gets no mask, so that padding of the source is attended to; hand it "
    "src_mask.",
    (LOOK, "self.src_attn(x, memory, memory)"),
    read="trf-mask-errors",
)
add(
    "decoder_layer_tgt_mask_ignored",
    "Your self-attention gets no mask, so that positions see what they are to predict; hand it "
    "tgt_mask.",
    (SELF, "self.self_attn(x, x, x)"),
    read="trf-mask-errors",
)
add(
    "decoder_layer_masks_swapped",
    "Your masks have changed places: tgt_mask belongs to self-attention, src_mask to "
    "cross-attention.",
    (SELF, "self.self_attn(x, x, x, src_mask)"),
    (LOOK, "self.src_attn(x, memory, memory, tgt_mask)"),
    read="trf-mask-errors",
)
add(
    "decoder_layer_memory_normalised",
    "Your layer normalises memory; it is used as it is, for the encoder's last norm is behind it.",
    (LOOK, "self.src_attn(x, *[self.sublayer[1].norm(memory)] * 2, src_mask)"),
)
add(
    "decoder_layer_source_first",
    "Your cross-attention comes before self-attention; the decoder looks at its own words first.",
    (
        "x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, tgt_mask))  # (B, U, D)\n"
        "        x = self.sublayer[1](x, lambda x: self.src_attn(x, memory, memory, src_mask))",
        "x = self.sublayer[1](x, lambda x: self.src_attn(x, memory, memory, src_mask))\n"
        "        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, tgt_mask))",
    ),
)
add(
    "decoder_layer_attention_shared",
    "Both attentions of yours use self_attn; cross-attention has its own projections, src_attn.",
    (LOOK, "self.self_attn(x, memory, memory, src_mask)"),
)
add(
    "decoder_layer_without_feed_forward",
    "Your layer ends after cross-attention; the feed-forward sub-layer follows.",
    ("return self.sublayer[2](x, self.feed_forward)", "return x"),
)
add(
    "decoder_layer_without_source",
    "Your layer leaves cross-attention out, so that the source is never read.",
    ("x = self.sublayer[1](x, lambda x: self.src_attn(x, memory, memory, src_mask))", "pass"),
)
add(
    "decoder_layer_one_connection",
    "All three sub-layers go through sublayer[0]; each has its own connection.",
    ("x = self.sublayer[1](x, lambda", "x = self.sublayer[0](x, lambda"),
    ("self.sublayer[2](x,", "self.sublayer[0](x,"),
)
add(
    "decoder_layer_connections_shared",
    "Your three connections are one module, with one norm; make copies.",
    (MADE, "nn.ModuleList([SublayerConnection(d_model, dropout, norm_first)] * 3)"),
)
add(
    "decoder_layer_attentions_are_one",
    "self_attn and src_attn are one module of yours; make two.",
    (
        "self.src_attn = MultiHeadAttention(d_model, num_heads, dropout)",
        "self.src_attn = self.self_attn",
    ),
)
add(
    "decoder_layer_keys_before_norm",
    "With norm_first your self-attention normalises queries, but not keys and values: the inner "
    "function must use its own argument for all three.",
    (f"lambda x: {SELF}", "lambda y: self.self_attn(y, x, x, tgt_mask)"),
)
add(
    "decoder_layer_source_query_before_norm",
    "With norm_first the queries of your cross-attention are not normalised: the inner function "
    "must use its own argument.",
    (f"lambda x: {LOOK}", "lambda y: self.src_attn(x, memory, memory, src_mask)"),
)
add(
    "decoder_layer_norm_order_not_passed",
    "Your layer is post-norm whatever norm_first says; hand it on to the connections.",
    (MADE, "clones(SublayerConnection(d_model, dropout), 3)"),
    read="trf-norm-order",
)
add(
    "decoder_layer_self_attention_without_dropout",
    "dropout does not reach self_attn; hand it on.",
    (
        "self.self_attn = MultiHeadAttention(d_model, num_heads, dropout)",
        "self.self_attn = MultiHeadAttention(d_model, num_heads)",
    ),
)
add(
    "decoder_layer_source_attention_without_dropout",
    "dropout does not reach src_attn; hand it on.",
    (
        "self.src_attn = MultiHeadAttention(d_model, num_heads, dropout)",
        "self.src_attn = MultiHeadAttention(d_model, num_heads)",
    ),
)
add(
    "decoder_layer_feed_forward_without_dropout",
    "dropout does not reach feed_forward; hand it on.",
    ("PositionwiseFeedForward(d_model, d_ff, dropout)", "PositionwiseFeedForward(d_model, d_ff)"),
)
add(
    "decoder_layer_connections_without_dropout",
    "dropout does not reach the connections; hand it on.",
    (MADE, "clones(SublayerConnection(d_model, norm_first=norm_first), 3)"),
)
add(
    "decoder_layer_memory_detached",
    "Memory is cut out of the graph, so that the encoder learns nothing; leave detach() out.",
    (LOOK, "self.src_attn(x, *[memory.detach()] * 2, src_mask)"),
)

add = mistakes_in(MISCONCEPTIONS, "Decoder", "trf-decoder")
LAYER = "DecoderLayer(d_model, num_heads, d_ff, dropout, norm_first)"
LOOP = "        for layer in self.layers:\n            x = layer(x, memory, src_mask, tgt_mask)"
FINAL = "x if self.norm is None else self.norm(x)"
NORM = "LayerNorm(d_model) if norm_first else None"
add(
    "decoder_memory_from_layer_before",
    "From the second layer on, your layers read the layer before as memory; every layer reads the "
    "encoder's output.",
    (LOOP, f"{LOOP}\n            memory, src_mask = x, tgt_mask"),
)
add(
    "decoder_memory_for_first_layer",
    "Only your first layer reads memory, the others read zeros; every layer reads it.",
    (LOOP, f"{LOOP}\n            memory = torch.zeros_like(memory)"),
)
add(
    "decoder_memory_normalised",
    "Your final norm is applied to memory as well; memory comes from the encoder as it is.",
    (LOOP, f"        memory = memory if self.norm is None else self.norm(memory)\n{LOOP}"),
)
add(
    "decoder_norm_never",
    "Your pre-norm stack has no final norm; with norm_first add self.norm = LayerNorm(d_model).",
    (NORM, "None"),
    read="trf-norm-order",
)
add(
    "decoder_norm_always",
    "Your post-norm stack has a final norm, though its layers end with one already; only with "
    "norm_first there is one.",
    (NORM, "LayerNorm(d_model)"),
    read="trf-norm-order",
)
add(
    "decoder_norm_unused",
    "Your final norm exists but is not applied.",
    (f"return {FINAL}", "return x"),
    read="trf-norm-order",
)
add(
    "decoder_one_layer_again_and_again",
    "Your first layer runs num_layers times and the others never; the stack has num_layers layers "
    "with parameters of their own.",
    (
        LOOP,
        "        for _ in self.layers:\n"
        "            x = self.layers[0](x, memory, src_mask, tgt_mask)",
    ),
)
add(
    "decoder_layers_shared",
    "All your layers are one module; make copies with clones.",
    ("clones(layer, num_layers)", "nn.ModuleList([layer] * num_layers)"),
)
add(
    "decoder_src_mask_not_passed",
    "Your layers get no src_mask, so that padding of the source is attended to; hand it on.",
    ("layer(x, memory, src_mask, tgt_mask)", "layer(x, memory, None, tgt_mask)"),
    read="trf-mask-errors",
)
add(
    "decoder_tgt_mask_not_passed",
    "Your layers get no tgt_mask, so that positions see what they are to predict; hand it on.",
    ("layer(x, memory, src_mask, tgt_mask)", "layer(x, memory, src_mask)"),
    read="trf-mask-errors",
)
add(
    "decoder_masks_swapped",
    "You hand src_mask and tgt_mask on in the wrong order.",
    ("layer(x, memory, src_mask, tgt_mask)", "layer(x, memory, tgt_mask, src_mask)"),
    read="trf-mask-errors",
)
add(
    "decoder_tgt_mask_for_first_layer",
    "Only your first layer gets tgt_mask; through the second, positions see what follows.",
    (LOOP, f"{LOOP}\n            tgt_mask = None"),
    read="trf-mask-errors",
)
add(
    "decoder_of_encoder_layers",
    "Your decoder is a stack of EncoderLayers and never reads memory; it is made of DecoderLayers.",
    (LAYER, "EncoderLayer(d_model, num_heads, d_ff, dropout, norm_first)"),
    ("layer(x, memory, src_mask, tgt_mask)", "layer(x, tgt_mask)"),
)
add(
    "decoder_dropout_not_passed",
    "dropout does not reach the layers; hand it on.",
    (LAYER, "DecoderLayer(d_model, num_heads, d_ff, norm_first=norm_first)"),
)
add(
    "decoder_norm_order_not_passed",
    "Your layers are post-norm whatever norm_first says; hand it on.",
    (LAYER, "DecoderLayer(d_model, num_heads, d_ff, dropout)"),
    read="trf-norm-order",
)
add(
    "decoder_layers_unchecked",
    "A stack without layers is not refused; raise a ValueError for num_layers below 1.",
    (
        "clones(layer, num_layers)",
        "nn.ModuleList(copy.deepcopy(layer) for _ in range(num_layers))",
    ),
)

# --------------------------------------------------------------------------------------------
# The model
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "Generator", "trf-generator")
SCORED = "torch.log_softmax(self.proj(hidden), dim=-1)"
add(
    "generator_softmax",
    "Your generator returns probabilities; it returns their logarithms: log_softmax.",
    (SCORED, "torch.softmax(self.proj(hidden), dim=-1)"),
)
add(
    "generator_logits",
    "Your generator returns logits, the scores before softmax; apply log_softmax to them.",
    (SCORED, "self.proj(hidden)"),
)
add(
    "generator_over_positions",
    "Your log_softmax runs over the positions; it runs over the vocabulary, the last axis.",
    (SCORED, "torch.log_softmax(self.proj(hidden), dim=max(hidden.dim() - 2, 0))"),
)
add(
    "generator_over_batch",
    "Your log_softmax runs over the first axis; it runs over the vocabulary, the last one.",
    (SCORED, "torch.log_softmax(self.proj(hidden), dim=0)"),
)
add(
    "generator_log_of_softmax",
    "You take the logarithm of softmax, which is -inf where a probability is rounded to 0; "
    "log_softmax works it out in one step.",
    (SCORED, "torch.log(torch.softmax(self.proj(hidden), dim=-1))"),
)
add(
    "generator_log_with_eps",
    "You add a small number before the logarithm, which spoils the small probabilities; "
    "log_softmax needs none.",
    (SCORED, "torch.log(torch.softmax(self.proj(hidden), dim=-1) + 1e-9)"),
)
add(
    "generator_negative",
    "Your generator returns the negative logarithm; the loss changes the sign.",
    (SCORED, "-torch.log_softmax(self.proj(hidden), dim=-1)"),
)
add(
    "generator_relu",
    "Your logits pass a ReLU; log_softmax takes them as they are.",
    (SCORED, "torch.log_softmax(torch.relu(self.proj(hidden)), dim=-1)"),
)
add(
    "generator_without_bias",
    "Your proj has no bias; nn.Linear(d_model, vocab_size) has one.",
    (
        "self.proj = nn.Linear(d_model, vocab_size)",
        "self.proj = nn.Linear(d_model, vocab_size, bias=False)",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "EncoderDecoder", "trf-model")
ENCODED = "self.encoder(self.position(self.src_embed(src)), src_mask)"
X = "x = self.position(self.tgt_embed(tgt))"
DECODED = "self.decoder(x, memory, src_mask, tgt_mask)"
FORWARD = "self.decode(memory, src_mask, tgt, make_std_mask(tgt))"
MAKE_ENCODER = (
    "Encoder(num_layers, d_model, num_heads, d_ff, dropout, norm_first)\n        self.decoder"
)
MAKE_DECODER = (
    "Decoder(num_layers, d_model, num_heads, d_ff, dropout, norm_first)\n        self.gen"
)
add(
    "model_source_without_positions",
    "Your source has no positions: the encoder reads a bag of words. Apply `position` to the "
    "embeddings.",
    (ENCODED, "self.encoder(self.src_embed(src), src_mask)"),
)
add(
    "model_target_without_positions",
    "Your target has no positions; apply `position` to its embeddings.",
    (X, "x = self.tgt_embed(tgt)"),
)
add(
    "model_without_positions",
    "Neither side of your model has positions; apply `position` to both embeddings.",
    (ENCODED, "self.encoder(self.src_embed(src), src_mask)"),
    (X, "x = self.tgt_embed(tgt)"),
)
add(
    "model_scaled_after_positions",
    "Your scaling by sqrt(d_model) acts on the positions too; Embeddings scales, then position "
    "adds.",
    (
        ENCODED,
        "self.encoder(\n"
        "            self.position(self.src_embed.lut(src)) * self.src_embed.d_model**0.5,\n"
        "            src_mask,\n"
        "        )",
    ),
    (
        X,
        "x = self.position(self.tgt_embed.lut(tgt)) * self.tgt_embed.d_model**0.5",
    ),
)
add(
    "model_source_table_for_target",
    "Your target is looked up in the source's table; it has its own, tgt_embed.",
    (X, "x = self.position(self.src_embed(tgt))"),
)
add(
    "model_embeddings_are_one",
    "src_embed and tgt_embed are one module of yours; make two. make_model shares them if it is "
    "asked to.",
    ("self.tgt_embed = Embeddings(tgt_vocab, d_model)", "self.tgt_embed = self.src_embed"),
)
add(
    "model_vocabularies_swapped",
    "Your vocabularies have changed places: src_vocab is the source's, tgt_vocab the target's.",
    (
        "self.src_embed = Embeddings(src_vocab, d_model)",
        "self.src_embed = Embeddings(tgt_vocab, d_model)",
    ),
    (
        "self.tgt_embed = Embeddings(tgt_vocab, d_model)",
        "self.tgt_embed = Embeddings(src_vocab, d_model)",
    ),
    ("Generator(d_model, tgt_vocab)", "Generator(d_model, src_vocab)"),
)
add(
    "model_src_mask_not_used",
    "encode ignores src_mask; hand it to the encoder.",
    (ENCODED, "self.encoder(self.position(self.src_embed(src)))"),
    read="trf-mask-errors",
)
add(
    "model_forward_encodes_without_mask",
    "forward encodes the source without its padding mask; hand pad_mask(src) to encode.",
    ("memory = self.encode(src, src_mask)", "memory = self.encode(src)"),
    read="trf-mask-errors",
)
add(
    "model_forward_decodes_without_src_mask",
    "forward hands no src_mask to decode, so that cross-attention reads the source's padding.",
    (FORWARD, "self.decode(memory, None, tgt, make_std_mask(tgt))"),
    read="trf-mask-errors",
)
add(
    "model_forward_without_std_mask",
    "forward hands no mask of the target to decode, so that every position sees what it is to "
    "predict; use make_std_mask(tgt).",
    (FORWARD, "self.decode(memory, src_mask, tgt, None)"),
    read="trf-mask-errors",
)
add(
    "model_forward_padding_mask_for_target",
    "forward masks only the padding of the target; later positions must be hidden too: "
    "make_std_mask(tgt).",
    (FORWARD, "self.decode(memory, src_mask, tgt, pad_mask(tgt))"),
    read="trf-mask-errors",
)
add(
    "model_forward_triangle_for_target",
    "forward masks only what follows in the target; its padding is masked too: make_std_mask(tgt).",
    (FORWARD, "self.decode(memory, src_mask, tgt, subsequent_mask(tgt.shape[1]))"),
    read="trf-mask-errors",
)
add(
    "model_forward_without_masks",
    "forward makes no masks at all; it needs pad_mask(src) and make_std_mask(tgt).",
    ("src_mask = pad_mask(src)", "src_mask = None"),
    (FORWARD, "self.decode(memory, src_mask, tgt, None)"),
    read="trf-mask-errors",
)
add(
    "model_forward_source_as_memory",
    "Your decoder reads the embedded source; memory is the encoder's output.",
    ("memory = self.encode(src, src_mask)", "memory = self.position(self.src_embed(src))"),
)
add(
    "model_decode_generates",
    "Your decode applies the generator; it returns the decoder's vectors (B, U, D), for decoding "
    "may want those of the last position only.",
    (f"return {DECODED}", f"return self.generator({DECODED})"),
    ("return self.generator(hidden)", "return hidden"),
)
add(
    "model_forward_without_generator",
    "forward returns the decoder's vectors; apply the generator to them.",
    ("return self.generator(hidden)", "return hidden"),
)
add(
    "model_decode_swaps_masks",
    "decode hands the masks on in the wrong order: src_mask comes before tgt_mask.",
    (DECODED, "self.decoder(x, memory, tgt_mask, src_mask)"),
    read="trf-mask-errors",
)
add(
    "model_decode_ignores_src_mask",
    "decode ignores src_mask; hand it to the decoder.",
    (DECODED, "self.decoder(x, memory, None, tgt_mask)"),
    read="trf-mask-errors",
)
add(
    "model_decode_makes_its_own_mask",
    "decode makes a mask of its own and ignores tgt_mask; the caller decides.",
    (DECODED, "self.decoder(x, memory, src_mask, make_std_mask(tgt))"),
)
add(
    "model_position_without_dropout",
    "dropout does not reach `position`; it acts on the sum of embeddings and positions too.",
    ("PositionalEncoding(d_model, max_length, dropout)", "PositionalEncoding(d_model, max_length)"),
)
add(
    "model_encoder_without_dropout",
    "dropout does not reach the encoder; hand it on.",
    (
        MAKE_ENCODER,
        "Encoder(num_layers, d_model, num_heads, d_ff, norm_first=norm_first)\n"
        "        self.decoder",
    ),
)
add(
    "model_decoder_without_dropout",
    "dropout does not reach the decoder; hand it on.",
    (
        MAKE_DECODER,
        "Decoder(num_layers, d_model, num_heads, d_ff, norm_first=norm_first)\n        self.gen",
    ),
)
add(
    "model_norm_order_not_passed",
    "Your stacks are post-norm whatever norm_first says; hand it to both.",
    (MAKE_ENCODER, "Encoder(num_layers, d_model, num_heads, d_ff, dropout)\n        self.decoder"),
    (MAKE_DECODER, "Decoder(num_layers, d_model, num_heads, d_ff, dropout)\n        self.gen"),
    read="trf-norm-order",
)
add(
    "model_max_length_not_passed",
    "max_length does not reach `position`, which keeps its default; hand it on.",
    (
        "PositionalEncoding(d_model, max_length, dropout)",
        "PositionalEncoding(d_model, dropout=dropout)",
    ),
)
add(
    "model_d_ff_and_heads_swapped",
    "You hand num_heads and d_ff to the stacks in the wrong order.",
    (
        MAKE_ENCODER,
        "Encoder(num_layers, d_model, d_ff, num_heads, dropout, norm_first)\n        self.decoder",
    ),
    (
        MAKE_DECODER,
        "Decoder(num_layers, d_model, d_ff, num_heads, dropout, norm_first)\n        self.gen",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "make_model", "trf-model")
CALL = """src_vocab, tgt_vocab, num_layers, d_model, d_ff, num_heads, dropout, norm_first
    )
    for"""
LINEAR = """        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
"""
SHARED = """        model.tgt_embed.lut.weight = model.src_embed.lut.weight
        model.generator.proj.weight = model.src_embed.lut.weight
"""
DRAW = "    for module in model.modules():\n" + LINEAR
add(
    "make_model_layers_begin_alike",
    "Your layers begin as copies of one another, because clones copies one layer; draw every "
    "weight anew in a loop over the finished model.",
    (DRAW, ""),
)
add(
    "make_model_xavier_on_embeddings",
    "Your loop draws every matrix by Xavier's rule, embedding tables too; after scaling by "
    "sqrt(d_model) they are far too short. Leave the tables as Embeddings drew them.",
    (
        DRAW,
        "    for parameter in model.parameters():\n"
        "        if parameter.dim() > 1:\n"
        "            nn.init.xavier_uniform_(parameter)\n"
        "    for module in model.modules():\n"
        "        if isinstance(module, nn.Linear):\n"
        "            nn.init.zeros_(module.bias)\n",
    ),
    read="trf-embeddings",
)
add(
    "make_model_annotated",
    "Your loop draws every matrix by Xavier's rule, embedding tables too, and leaves biases as "
    "nn.Linear drew them; draw linear weights only, and set their biases to 0.",
    (
        DRAW,
        "    for parameter in model.parameters():\n"
        "        if parameter.dim() > 1:\n"
        "            nn.init.xavier_uniform_(parameter)\n",
    ),
    read="trf-embeddings",
)
add(
    "make_model_biases_kept",
    "Your biases keep the values that nn.Linear drew; set them to 0.",
    ("            nn.init.zeros_(module.bias)\n", ""),
)
add(
    "make_model_xavier_normal",
    "Your weights are drawn from a normal distribution; Xavier's uniform one is asked for.",
    ("nn.init.xavier_uniform_(module.weight)", "nn.init.xavier_normal_(module.weight)"),
)
add(
    "make_model_kaiming",
    "Your weights are drawn by the rule of He et al.; Xavier's uniform one is asked for.",
    ("nn.init.xavier_uniform_(module.weight)", "nn.init.kaiming_uniform_(module.weight)"),
)
add(
    "make_model_normal_weights",
    "Your linear weights are drawn from N(0, 1/D) like the tables; Xavier's uniform distribution "
    "is asked for.",
    (
        "nn.init.xavier_uniform_(module.weight)",
        "nn.init.normal_(module.weight, std=d_model**-0.5)",
    ),
)
add(
    "make_model_generator_left_out",
    "Your loop leaves the generator out; its weight is drawn by Xavier's rule and its bias is 0.",
    (
        "    for module in model.modules():\n",
        "    for module in [*model.encoder.modules(), *model.decoder.modules()]:\n",
    ),
)
add(
    "make_model_shared_ignored",
    "shared=True changes nothing; let both tables and the generator's weight be one parameter.",
    ("    if shared:\n", "    if False:\n"),
)
add(
    "make_model_shared_always",
    "Your weights are shared whether or not shared is True.",
    ("    if shared:\n", "    if src_vocab == tgt_vocab:\n"),
)
add(
    "make_model_shared_by_copying",
    "Your three weights begin with equal values but are three parameters, which training drives "
    "apart; assign the same nn.Parameter.",
    (
        SHARED,
        "        with torch.no_grad():\n"
        "            model.tgt_embed.lut.weight.copy_(model.src_embed.lut.weight)\n"
        "            model.generator.proj.weight.copy_(model.src_embed.lut.weight)\n",
    ),
)
add(
    "make_model_generator_apart",
    "Only your two tables are one; the generator's weight belongs to them.",
    ("        model.generator.proj.weight = model.src_embed.lut.weight\n", ""),
)
add(
    "make_model_source_apart",
    "Only your target's table and the generator's weight are one; the source's table belongs to "
    "them.",
    (
        SHARED,
        "        model.generator.proj.weight = model.tgt_embed.lut.weight\n",
    ),
)
add(
    "make_model_target_apart",
    "Only your source's table and the generator's weight are one; the target's table belongs to "
    "them.",
    ("        model.tgt_embed.lut.weight = model.src_embed.lut.weight\n", ""),
)
add(
    "make_model_shared_by_xavier",
    "The weight in common is drawn by Xavier's rule: share after the loop, or leave it out of the "
    "loop, so that it stays N(0, 1/D).",
    (
        SHARED,
        SHARED + "        nn.init.xavier_uniform_(model.generator.proj.weight)\n",
    ),
)
add(
    "make_model_shared_twice_scaled",
    "The weight in common is drawn from N(0, 1); its variance is 1/D.",
    (SHARED, SHARED + "        nn.init.normal_(model.generator.proj.weight)\n"),
)
add(
    "make_model_vocabularies_unchecked",
    "Vocabularies of two sizes with shared=True are not refused with a ValueError.",
    ("if shared and src_vocab != tgt_vocab:", "if False:"),
)
add(
    "make_model_dropout_not_passed",
    "dropout does not reach the model, which keeps its 0.1; hand it on.",
    (
        CALL,
        "src_vocab, tgt_vocab, num_layers, d_model, d_ff, num_heads, norm_first=norm_first\n"
        "    )\n    for",
    ),
)
add(
    "make_model_norm_order_not_passed",
    "Your model is post-norm whatever norm_first says; hand it on.",
    (CALL, "src_vocab, tgt_vocab, num_layers, d_model, d_ff, num_heads, dropout\n    )\n    for"),
    read="trf-norm-order",
)
add(
    "make_model_sizes_swapped",
    "You hand d_ff and num_heads on in the wrong order.",
    (
        CALL,
        "src_vocab, tgt_vocab, num_layers, d_model, num_heads, d_ff, dropout, norm_first\n"
        "    )\n    for",
    ),
)

# --------------------------------------------------------------------------------------------
# Targets and batches
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "shift_targets", "trf-shift")
CUT = "tgt_in, tgt_out = target[:, :-1], target[:, 1:]"
COUNT = "int((tgt_out != pad).sum())"
add(
    "shift_swapped",
    "You give the decoder what it is to say, and ask for what it reads; tgt_in is all but the last "
    "id, tgt_out all but the first.",
    (CUT, "tgt_in, tgt_out = target[:, 1:], target[:, :-1]"),
)
add(
    "shift_none",
    "Your input and output are the same ids, so the model only learns to copy; tgt_out is one "
    "position ahead of tgt_in.",
    (CUT, "tgt_in, tgt_out = target[:, :-1], target[:, :-1]"),
)
add(
    "shift_by_two",
    "Your tgt_out is two positions ahead of tgt_in; one is asked for: all but the last id, and all "
    "but the first.",
    (CUT, "tgt_in, tgt_out = target[:, :-2], target[:, 2:]"),
    ("if target.shape[1] < 2:", "if target.shape[1] < 3:"),
)
add(
    "shift_eos_dropped",
    "Your tgt_out lacks the last id of each row, so the model never learns to write EOS; drop only "
    "BOS from it.",
    (CUT, "tgt_in, tgt_out = target[:, :-1], target[:, 1:-1]"),
)
add(
    "shift_whole_input",
    "Your tgt_in is the whole target; leave out its last id, for which there is nothing left to "
    "say.",
    (CUT, "tgt_in, tgt_out = target, target[:, 1:]"),
)
add(
    "shift_eos_out_of_input",
    "You replace EOS by padding in tgt_in; it is simply all but the last id of each row.",
    (
        CUT,
        "tgt_in, tgt_out = target[:, :-1].masked_fill(target[:, :-1] == EOS, pad), target[:, 1:]",
    ),
)
add(
    "shift_counts_padding",
    "Your number counts padding too; only ids of tgt_out that are not pad are real.",
    (COUNT, "tgt_out.numel()"),
)
add(
    "shift_counts_input",
    "You count the real ids of tgt_in; count those of tgt_out, which the loss is about.",
    (COUNT, "int((tgt_in != pad).sum())"),
)
add(
    "shift_counts_target",
    "You count the real ids of the whole target; BOS is never said, so count those of tgt_out.",
    (COUNT, "int((target != pad).sum())"),
)
add(
    "shift_counts_words",
    "Your number leaves EOS out; it is said like every other token.",
    (COUNT, "int(((tgt_out != pad) & (tgt_out != EOS)).sum())"),
)
add(
    "shift_pad_ignored",
    "You compare with 0 whatever pad says; padding is what equals pad.",
    (COUNT, "int((tgt_out != 0).sum())"),
)
add(
    "shift_number_tensor",
    "Your number is a tensor; an int is asked for, .item() makes one.",
    (COUNT, "(tgt_out != pad).sum()"),
)
add(
    "shift_short_accepted",
    "A target of fewer than 2 ids is not refused; raise a ValueError.",
    ("if target.shape[1] < 2:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "token_batches", "trf-batches")
ORDER = "sorted(range(len(lengths)), key=lambda i: (*lengths[i], i))"
LENGTH = "length = max(lengths[i])"
LONGEST = "longest = max(longest, length)"
FITS = "if batches and (len(batches[-1]) + 1) * longest <= max_tokens:"
TOO_LONG = "if length > max_tokens:"
add(
    "batches_not_sorted",
    "Your sentences stay in the order in which they came; sort them by source length, target "
    "length and index, so that a batch needs little padding.",
    (ORDER, "range(len(lengths))"),
)
add(
    "batches_by_target",
    "You sort by the target length first; the source length comes first.",
    (ORDER, "sorted(range(len(lengths)), key=lambda i: (lengths[i][1], lengths[i][0], i))"),
)
add(
    "batches_by_source_only",
    "You sort by the source length alone; among equal ones the target length decides, then the "
    "index.",
    (ORDER, "sorted(range(len(lengths)), key=lambda i: lengths[i][0])"),
)
add(
    "batches_by_sum",
    "You sort by the sum of both lengths; the source length comes first, then the target length.",
    (ORDER, "sorted(range(len(lengths)), key=lambda i: (sum(lengths[i]), i))"),
)
add(
    "batches_longest_first",
    "Your longest sentences come first; the order begins with the shortest.",
    (ORDER, "sorted(range(len(lengths)), key=lambda i: (*lengths[i], i), reverse=True)"),
)
add(
    "batches_ties_reversed",
    "Sentences of equal lengths stand in reverse order of their index; the smaller index first.",
    (ORDER, "sorted(range(len(lengths)), key=lambda i: (*lengths[i], -i))"),
)
add(
    "batches_count_sentences",
    "You limit the number of sentences in a batch; max_tokens limits its places, number times "
    "longest sentence.",
    (FITS, "if batches and len(batches[-1]) + 1 <= max_tokens:"),
)
add(
    "batches_source_only",
    "You watch the source side alone; the limit holds for the target side as well.",
    (LENGTH, "length = lengths[i][0]"),
)
add(
    "batches_target_only",
    "You watch the target side alone; the limit holds for the source side as well.",
    (LENGTH, "length = lengths[i][1]"),
)
add(
    "batches_padding_free",
    "You add up the lengths; padding takes places too: a batch has number times longest sentence "
    "of them, on each side.",
    (LONGEST, "longest += length"),
    (FITS, "if batches and longest <= max_tokens:"),
)
add(
    "batches_both_sides_together",
    "You let source and target share max_tokens; each side has that many places for itself.",
    (LENGTH, "length = sum(lengths[i])"),
)
add(
    "batches_longest_of_the_last",
    "You multiply by the length of the sentence that comes; the longest of the batch decides, and "
    "a target may be longer earlier on.",
    (LONGEST, "longest = length"),
)
add(
    "batches_longest_kept",
    "The longest sentence of one batch still counts in the next; begin anew with every batch.",
    ("batches.append([i])\n            longest = length", "batches.append([i])"),
)
add(
    "batches_one_too_many",
    "You check the limit before you count the sentence that comes, so a batch grows beyond "
    "max_tokens; count it first.",
    (FITS, "if batches and len(batches[-1]) * longest <= max_tokens:"),
)
add(
    "batches_never_full",
    "Your batches stay below max_tokens; they may reach it.",
    (FITS, "if batches and (len(batches[-1]) + 1) * longest < max_tokens:"),
)
add(
    "batches_last_lost",
    "Your last batch is missing; what is left when the sentences end is a batch too.",
    ("return batches", "return batches[:-1]"),
)
add(
    "batches_too_long_dropped",
    "You drop sentences that are too long without a word; raise a ValueError that names the first.",
    (
        '            raise ValueError(f"sentence {i} has {length} tokens, more than '
        'max_tokens={max_tokens}")',
        "            continue",
    ),
)
add(
    "batches_too_long_alone",
    "You give a sentence that is too long a batch of its own; raise a ValueError that says which "
    "it is.",
    (TOO_LONG, "if False:"),
)
add(
    "batches_too_long_unnamed",
    "Your ValueError doesn't say which sentence is too long; put its index into the message.",
    (
        'f"sentence {i} has {length} tokens, more than max_tokens={max_tokens}"',
        '"a sentence is too long"',
    ),
)
add(
    "batches_limit_unchecked",
    "A max_tokens below 1 is not refused; raise a ValueError.",
    ("if max_tokens < 1:", "max_tokens = max(1, max_tokens)\n    if False:"),
)

# --------------------------------------------------------------------------------------------
# The loss
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "label_smoothing_loss", "trf-smoothing")
CORRECT = "correct = -log_probs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)"
UNIFORM = "uniform = -log_probs.mean(dim=-1)"
MIX = "loss = (1 - smoothing) * correct + smoothing * uniform"
MEAN = "return loss.masked_fill(~real, 0.0).sum() / real.sum()"
add(
    "smoothing_over_the_others",
    "You spread eps over the V - 1 other tokens; here it is spread over all V, the right one "
    "included, as PyTorch does.",
    (
        MIX,
        "loss = (1 - smoothing) * correct + smoothing / (log_probs.shape[-1] - 1) "
        "* (uniform * log_probs.shape[-1] - correct)",
    ),
)
add(
    "smoothing_without_pad",
    "You spread eps over V - 2 tokens, leaving out PAD and the right one, as the annotated "
    "Transformer does; here it is spread over all V.",
    (
        MIX,
        "loss = (1 - smoothing) * correct + smoothing / (log_probs.shape[-1] - 2) "
        "* (uniform * log_probs.shape[-1] - correct + log_probs[..., 0])",
    ),
)
add(
    "smoothing_pad_left_out",
    "You leave PAD out of the tokens that share eps; all V share it.",
    (
        UNIFORM,
        "uniform = -(log_probs.sum(dim=-1) - log_probs[..., 0]) / (log_probs.shape[-1] - 1)",
    ),
)
add(
    "smoothing_denominator",
    "You divide the sum over all V tokens by V - 1; the share of each is eps / V.",
    (UNIFORM, "uniform = -log_probs.sum(dim=-1) / (log_probs.shape[-1] - 1)"),
)
add(
    "smoothing_sum",
    "You multiply eps by the sum over the vocabulary; each of the V tokens gets eps / V.",
    (UNIFORM, "uniform = -log_probs.sum(dim=-1)"),
)
add(
    "smoothing_not_taken_away",
    "Your right token keeps its whole weight; it gets 1 - eps, and its share of eps.",
    (MIX, "loss = correct + smoothing * uniform"),
)
add(
    "smoothing_right_token_without_share",
    "Your right token gets 1 - eps only; it also has its share eps / V, as all V tokens have.",
    (
        MIX,
        "loss = (1 - smoothing) * correct + smoothing * (uniform - correct / log_probs.shape[-1])",
    ),
)
add(
    "smoothing_weights_swapped",
    "Your weights are swapped: eps belongs to the mean over the vocabulary, 1 - eps to the right "
    "token.",
    (MIX, "loss = smoothing * correct + (1 - smoothing) * uniform"),
)
add(
    "smoothing_ignored",
    "Your loss ignores smoothing; a share eps of the target is spread over the vocabulary.",
    (MIX, "loss = correct"),
)
add(
    "smoothing_always_a_tenth",
    "You always smooth by 0.1; use the argument smoothing.",
    (MIX, "loss = 0.9 * correct + 0.1 * uniform"),
)
add(
    "smoothing_entropy",
    "You subtract the entropy of the smoothed target, which makes it a Kullback-Leibler "
    "divergence; the cross-entropy itself is asked for.",
    (
        MIX,
        "rest = smoothing / log_probs.shape[-1]\n"
        "    most = 1 - smoothing + rest\n"
        "    entropy = -most * math.log(most)\n"
        "    if smoothing:\n"
        "        entropy -= (log_probs.shape[-1] - 1) * rest * math.log(rest)\n"
        "    loss = (1 - smoothing) * correct + smoothing * uniform - entropy",
    ),
)
add(
    "smoothing_log_of_log",
    "You take the logarithm once more; log_probs are logarithms already.",
    (MIX, f"correct, uniform = (-correct).exp(), (-uniform).exp()\n    {MIX}"),
)
add(
    "smoothing_probabilities",
    "You average probabilities; the loss is made of log-probabilities.",
    (
        UNIFORM,
        "uniform = -log_probs.exp().mean(dim=-1)\n    correct = -(-correct).exp()",
    ),
)
add(
    "smoothing_of_the_mean",
    "You take the logarithm of the mean probability, which is a constant; take the mean of the "
    "log-probabilities.",
    (UNIFORM, "uniform = -log_probs.exp().mean(dim=-1).log()"),
)
add(
    "smoothing_positive",
    "Your loss has the wrong sign; it is minus a log-probability, at least 0.",
    (MEAN, "return -loss.masked_fill(~real, 0.0).sum() / real.sum()"),
)
add(
    "smoothing_summed",
    "Your loss is a sum; divide by the number of real tokens.",
    (MEAN, "return loss.masked_fill(~real, 0.0).sum()"),
)
add(
    "smoothing_divided_by_all",
    "You divide by all B * U places; divide by the number of real tokens.",
    (MEAN, "return loss.masked_fill(~real, 0.0).mean()"),
)
add(
    "smoothing_divided_by_rows",
    "You divide by the number of sentences; divide by the number of real tokens.",
    (MEAN, "return loss.masked_fill(~real, 0.0).sum() / len(target)"),
)
add(
    "smoothing_mean_of_means",
    "You average the means of the sentences, so that tokens of short ones weigh more; average over "
    "all real tokens of the batch at once.",
    (
        MEAN,
        "kept = real.any(dim=1)\n"
        "    rows = loss.masked_fill(~real, 0.0).sum(dim=1)[kept] / real.sum(dim=1)[kept]\n"
        "    return rows.mean()",
    ),
)
add(
    "smoothing_padding_counted",
    "Padding counts in your loss as if it were a token to say; leave it out of the sum and of the "
    "number.",
    (MEAN, "return loss.mean()"),
    (
        "ids = target.masked_fill(~real, 0)",
        "ids = torch.where((target < 0) | (target >= log_probs.shape[-1]), 0, target)",
    ),
)
add(
    "smoothing_padding_in_the_sum",
    "Padding is left out of your number but not of the sum; leave it out of both.",
    (MEAN, "return loss.sum() / real.sum()"),
)
add(
    "smoothing_padding_still_smoothed",
    "You leave padding out of the term of the right token, but not out of the smoothing term; "
    "leave it out of both.",
    (MIX, "loss = (1 - smoothing) * correct.masked_fill(~real, 0.0) + smoothing * uniform"),
    (MEAN, "return loss.sum() / real.sum()"),
)
add(
    "smoothing_pad_ignored",
    "You compare with 0 whatever pad says; padding is what equals pad.",
    ("real = target != pad", "real = target != 0"),
    (
        "ids = target.masked_fill(~real, 0)",
        "ids = torch.where((target < 0) | (target >= log_probs.shape[-1]), 0, target)",
    ),
)
add(
    "smoothing_pad_outside_fails",
    "A pad outside the vocabulary reaches gather; put a harmless id at the padding first.",
    ("ids = target.masked_fill(~real, 0)", "ids = target"),
)
add(
    "smoothing_one_accepted",
    "smoothing=1 is not refused: nothing would be left for the right token; raise a ValueError.",
    ("if not 0 <= smoothing < 1:", "if not 0 <= smoothing <= 1:"),
)
add(
    "smoothing_unchecked",
    "A smoothing outside [0, 1) is not refused; raise a ValueError.",
    ("if not 0 <= smoothing < 1:", "if False:"),
)
add(
    "smoothing_nothing_real",
    "A batch of padding only is not refused: 0 / 0 is NaN; raise a ValueError.",
    ("if not real.any():", "if False:"),
)
add(
    "smoothing_detached",
    "Your loss has no gradient; look for detach(), .data, .item() or no_grad().",
    (MEAN, f"{MEAN.replace('loss.', 'loss.detach().')}"),
)

# --------------------------------------------------------------------------------------------
# The optimiser
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "learning_rate", "trf-optimiser")
RATE = "return factor * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)"
add(
    "rate_inverse_square",
    "Your rate falls with the inverse square of the step; it is the inverse square root, "
    "step ** -0.5.",
    (RATE, "return factor * d_model**-0.5 * min(step**-2.0, step * warmup**-1.5)"),
)
add(
    "rate_inverse_square_joined",
    "Your rate falls with the inverse square of the step; it is the inverse square root, "
    "step ** -0.5.",
    (RATE, "return factor * d_model**-0.5 * min(step**-2.0, step * warmup**-3.0)"),
)
add(
    "rate_max",
    "You take the larger of the two; the smaller one makes the rate rise first and fall later.",
    (RATE, "return factor * d_model**-0.5 * max(step**-0.5, step * warmup**-1.5)"),
)
add(
    "rate_without_warmup",
    "Your rate has no warm-up: it falls from the first step; take the smaller of step ** -0.5 and "
    "step * warmup ** -1.5, and mind the signs of both exponents.",
    (RATE, "return factor * d_model**-0.5 * step**-0.5"),
)
add(
    "rate_only_rises",
    "Your rate never falls; after the warm-up it is step ** -0.5, with a negative exponent.",
    (RATE, "return factor * d_model**-0.5 * step * warmup**-1.5"),
)
add(
    "rate_constant_after_warmup",
    "Your rate stays constant after the warm-up; it falls with step ** -0.5.",
    (RATE, "return factor * d_model**-0.5 * min(warmup**-0.5, step * warmup**-1.5)"),
)
add(
    "rate_without_width",
    "Your rate lacks the factor d_model ** -0.5.",
    (RATE, "return factor * min(step**-0.5, step * warmup**-1.5)"),
)
add(
    "rate_width_inverse",
    "You divide by d_model; divide by its square root.",
    (RATE, "return factor / d_model * min(step**-0.5, step * warmup**-1.5)"),
)
add(
    "rate_width_multiplied",
    "You multiply by the square root of d_model; divide by it.",
    (RATE, "return factor * d_model**0.5 * min(step**-0.5, step * warmup**-1.5)"),
)
add(
    "rate_warmup_exponent",
    "Your warmup has the exponent -0.5; with -1.5 the two branches meet at step = warmup.",
    (RATE, "return factor * d_model**-0.5 * min(step**-0.5, step * warmup**-0.5)"),
)
add(
    "rate_warmup_linear",
    "You divide step by warmup, which ends the warm-up too early; it is step * warmup ** -1.5.",
    (RATE, "return factor * d_model**-0.5 * min(step**-0.5, step / warmup)"),
)
add(
    "rate_factor_ignored",
    "Your rate ignores factor; it multiplies the whole.",
    (RATE, RATE.replace("factor * ", "")),
)
add(
    "rate_from_step_zero",
    "You count steps from 0; step is 1 at the first one and goes into the formula as it is.",
    (RATE, "step += 1\n    return factor * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)"),
)
add(
    "rate_tensor",
    "Your rate is a tensor; a float is asked for.",
    (RATE, f"{RATE.replace('return ', 'return torch.tensor(')})"),
)
add(
    "rate_unchecked",
    "A step or a warmup below 1 is not refused; raise a ValueError.",
    ("if value < 1:", "if False:"),
    (RATE, "step, warmup = max(step, 1), max(warmup, 1)\n    " + RATE),
)
add(
    "rate_warmup_unchecked",
    "A warmup below 1 is not refused; raise a ValueError.",
    ('(("step", step), ("warmup", warmup))', '(("step", step),)'),
    (RATE, "warmup = max(warmup, 1)\n    " + RATE),
)

add = mistakes_in(MISCONCEPTIONS, "adam_step", "trf-optimiser")
FIRST = "first = beta_1 * first + (1 - beta_1) * gradient"
SECOND = "second = beta_2 * second + (1 - beta_2) * gradient**2"
FIRST_CORRECTED = "first_corrected = first / (1 - beta_1**step)"
SECOND_CORRECTED = "second_corrected = second / (1 - beta_2**step)"
NEW = "new = parameter - rate * first_corrected / (second_corrected.sqrt() + eps)"
add(
    "adam_not_corrected",
    "You don't correct the bias; divide the means by 1 - beta_1 ** step and 1 - beta_2 ** step "
    "before you use them.",
    (FIRST_CORRECTED, "first_corrected = first"),
    (SECOND_CORRECTED, "second_corrected = second"),
)
add(
    "adam_first_not_corrected",
    "You don't correct the bias of the first mean; divide it by 1 - beta_1 ** step.",
    (FIRST_CORRECTED, "first_corrected = first"),
)
add(
    "adam_second_not_corrected",
    "You don't correct the bias of the second mean; divide it by 1 - beta_2 ** step.",
    (SECOND_CORRECTED, "second_corrected = second"),
)
add(
    "adam_corrected_without_step",
    "You divide by 1 - beta whatever the step; the bias dies out: divide by 1 - beta ** step.",
    (FIRST_CORRECTED, "first_corrected = first / (1 - beta_1)"),
    (SECOND_CORRECTED, "second_corrected = second / (1 - beta_2)"),
)
add(
    "adam_corrected_from_zero",
    "You correct the bias with step - 1, as if steps counted from 0; the first step is 1.",
    (FIRST_CORRECTED, "first_corrected = first / (1 - beta_1 ** max(step - 1, 1))"),
    (SECOND_CORRECTED, "second_corrected = second / (1 - beta_2 ** max(step - 1, 1))"),
)
add(
    "adam_corrected_by_next",
    "You correct the bias with step + 1; step is 1 at the first step already.",
    (FIRST_CORRECTED, "first_corrected = first / (1 - beta_1 ** (step + 1))"),
    (SECOND_CORRECTED, "second_corrected = second / (1 - beta_2 ** (step + 1))"),
)
add(
    "adam_corrected_means_returned",
    "You return the corrected means; the next step needs them without the correction.",
    ("return new, first, second", "return new, first_corrected, second_corrected"),
)
add(
    "adam_eps_in_the_root",
    "You add eps under the root; it is added to the root.",
    (NEW, "new = parameter - rate * first_corrected / (second_corrected + eps).sqrt()"),
)
add(
    "adam_eps_before_correction",
    "You add eps to the root of the uncorrected second mean, which makes it a larger one in early "
    "steps; add it to the root of the corrected mean.",
    (
        NEW,
        "root = (second.sqrt() + eps) / math.sqrt(1 - beta_2**step)\n"
        "    new = parameter - rate * first_corrected / root",
    ),
)
add(
    "adam_eps_missing",
    "You don't add eps; where the gradient is 0, 0 / 0 is NaN.",
    (NEW, "new = parameter - rate * first_corrected / second_corrected.sqrt()"),
)
add(
    "adam_eps_ignored",
    "You add 1e-9 whatever eps says; use the argument.",
    (NEW, NEW.replace("eps", "1e-9")),
)
add(
    "adam_without_root",
    "You divide by the second mean; divide by its square root.",
    (NEW, "new = parameter - rate * first_corrected / (second_corrected + eps)"),
)
add(
    "adam_betas_swapped",
    "Your betas are swapped: the first belongs to the mean of gradients, the second to that of "
    "their squares.",
    ("beta_1, beta_2 = betas", "beta_2, beta_1 = betas"),
)
add(
    "adam_shares_swapped",
    "Your shares are swapped: beta belongs to the old mean, 1 - beta to the new gradient.",
    (FIRST, "first = (1 - beta_1) * first + beta_1 * gradient"),
    (SECOND, "second = (1 - beta_2) * second + beta_2 * gradient**2"),
)
add(
    "adam_gradient_in_full",
    "You add the gradient in full; its share is 1 - beta, that of its square as well.",
    (FIRST, "first = beta_1 * first + gradient"),
    (SECOND, "second = beta_2 * second + gradient**2"),
)
add(
    "adam_first_in_full",
    "Your first mean adds the gradient in full, as momentum does; its share is 1 - beta_1.",
    (FIRST, "first = beta_1 * first + gradient"),
)
add(
    "adam_first_squared",
    "Your first mean is one of squares; it averages the gradients themselves.",
    (FIRST, "first = beta_1 * first + (1 - beta_1) * gradient**2"),
)
add(
    "adam_second_not_squared",
    "Your second mean averages the size of the gradients; it averages their squares.",
    (SECOND, "second = beta_2 * second + (1 - beta_2) * gradient.abs()"),
)
add(
    "adam_second_of_the_first",
    "Your second mean averages the squares of the first mean; it averages those of the gradient.",
    (SECOND, "second = beta_2 * second + (1 - beta_2) * first**2"),
)
add(
    "adam_gradient_not_averaged",
    "You step along the gradient itself; step along its running mean, the first mean.",
    (NEW, NEW.replace("first_corrected", "gradient")),
)
add(
    "adam_plain_descent",
    "You step along the gradient and use neither mean; divide the corrected first mean by the root "
    "of the corrected second.",
    (NEW, "new = parameter - rate * gradient"),
)
add(
    "adam_ascends",
    "You add the step, which makes the loss larger; subtract it.",
    (NEW, NEW.replace("parameter -", "parameter +")),
)
add(
    "adam_rate_ignored",
    "Your step ignores rate; multiply by it.",
    (NEW, NEW.replace("rate * ", "")),
)
add(
    "adam_weight_decay",
    "You also shrink the parameter; that is weight decay, which Adam does not have.",
    (NEW, f"{NEW}\n    new = new - 0.01 * rate * parameter"),
)
add(
    "adam_l2",
    "You add a share of the parameter to the gradient; that is a penalty on large weights, which "
    "this step does not have.",
    (FIRST, f"gradient = gradient + 0.01 * parameter\n    {FIRST}"),
)
add(
    "adam_in_place",
    "You change the tensors that you were given; make new ones, the caller still needs the old.",
    (FIRST, "first.mul_(beta_1).add_((1 - beta_1) * gradient)"),
    (SECOND, "second.mul_(beta_2).add_((1 - beta_2) * gradient**2)"),
)
add(
    "adam_parameter_in_place",
    "You change the parameter that you were given; return a new tensor.",
    (NEW, "new = parameter.sub_(rate * first_corrected / (second_corrected.sqrt() + eps))"),
)
add(
    "adam_parameter_last",
    "Your results stand in the order (first, second, parameter); it is (parameter, first, second).",
    ("return new, first, second", "return first, second, new"),
)
add(
    "adam_means_swapped",
    "Your means are swapped; the result is (parameter, first, second).",
    ("return new, first, second", "return new, second, first"),
)
add(
    "adam_step_unchecked",
    "A step below 1 is not refused; raise a ValueError.",
    ("if step < 1:", "step = max(step, 1)\n    if False:"),
)

# --------------------------------------------------------------------------------------------
# Training
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "train_step", "trf-training")
SHIFT = "tgt_in, tgt_out, _ = shift_targets(target)"
LOSS = "loss = label_smoothing_loss(model(source, tgt_in), tgt_out, smoothing)"
CLEAR = "    model.zero_grad()\n"
UPDATED = "updated = dict(moments)"
STEP = "new, *means = adam_step(parameter, parameter.grad, *updated[name], step, rate)"
DONE = "return loss.item(), updated"
add(
    "train_gradients_pile_up",
    "Gradients of earlier batches are still in .grad and are added to the new ones; clear them "
    "before backward().",
    (CLEAR, ""),
)
add(
    "train_gradients_cleared_late",
    "You clear the gradients after backward(), so nothing is learned; clear them before.",
    ("    model.zero_grad()\n    loss.backward()", "    loss.backward()\n    model.zero_grad()"),
)
add(
    "train_loss_after",
    "You return the loss after the step; return the one from which the gradients came.",
    (
        DONE,
        "with torch.no_grad():\n"
        "        loss = label_smoothing_loss(model(source, tgt_in), tgt_out, smoothing)\n"
        f"    {DONE}",
    ),
)
add(
    "train_not_shifted",
    "You train on unshifted targets: the model is to say what it reads at the same position; read "
    "tgt_in and say tgt_out.",
    (LOSS, "loss = label_smoothing_loss(model(source, tgt_in), tgt_in, smoothing)"),
)
add(
    "train_reads_the_answer",
    "The decoder reads what it is to say; it reads tgt_in, one position behind.",
    (LOSS, "loss = label_smoothing_loss(model(source, tgt_out), tgt_out, smoothing)"),
)
add(
    "train_roles_swapped",
    "Source and target are swapped; the model is called as model(source, tgt_in).",
    (LOSS, "loss = label_smoothing_loss(model(tgt_in, source)[:, :1], tgt_out[:, :1], smoothing)"),
)
add(
    "train_smoothing_ignored",
    "You train without smoothing; hand the argument to label_smoothing_loss.",
    (LOSS, "loss = label_smoothing_loss(model(source, tgt_in), tgt_out, 0.0)"),
)
add(
    "train_smoothing_default",
    "You always smooth by 0.1; hand the argument smoothing to label_smoothing_loss.",
    (LOSS, "loss = label_smoothing_loss(model(source, tgt_in), tgt_out)"),
)
add(
    "train_moments_forgotten",
    "You begin with means of 0 in every step; go on with the moments that you are given.",
    ("if name not in moments:", "if True:"),
)
add(
    "train_moments_not_returned",
    "You return the moments as they were before the step; return the new ones.",
    (DONE, "return loss.item(), dict(moments)"),
)
add(
    "train_moments_changed",
    "You change the dict of moments that you were given; put the new means into a new one.",
    (UPDATED, "updated = moments"),
)
add(
    "train_moments_swapped",
    "Your moments are swapped; the entry of a name is (first, second).",
    ("updated[name] = tuple(means)", "updated[name] = tuple(reversed(means))"),
)
add(
    "train_moments_in_place",
    "You write the new means into the tensors that you were given; make new ones.",
    (
        "updated[name] = tuple(means)",
        "for old, mean in zip(updated[name], means, strict=True):\n                old.copy_(mean)",
    ),
)
add(
    "train_step_ignored",
    "You correct the bias as if every step were the first; hand step to adam_step.",
    (STEP, STEP.replace("step, rate", "1, rate")),
)
add(
    "train_rate_ignored",
    "You ignore rate and use learning_rate(step); the caller chooses the rate.",
    (STEP, STEP.replace("step, rate", "step, learning_rate(step)")),
)
add(
    "train_plain_descent",
    "You step along the gradient; let adam_step make the step.",
    (STEP, f"{STEP}\n            new = parameter - rate * parameter.grad"),
)
add(
    "train_not_in_place",
    "Your new parameters never reach the model; copy them into it in place, under no_grad.",
    ("            parameter.copy_(new)\n", ""),
)
add(
    "train_weights_only",
    "You update matrices only; biases and norms are parameters too.",
    ("if parameter.grad is None:", "if parameter.grad is None or parameter.dim() < 2:"),
)
add(
    "train_decoder_only",
    "You update the decoder's side only; the gradient reaches the encoder as well.",
    (
        "if parameter.grad is None:",
        'if parameter.grad is None or name.startswith(("encoder", "src_embed")):',
    ),
)
add(
    "train_missing_gradient_fails",
    "A parameter that the loss does not depend on has no gradient, None; leave it as it is.",
    (
        "            if parameter.grad is None:\n                continue\n",
        "",
    ),
)
add(
    "train_twice_where_shared",
    "A parameter that stands in several places is updated several times; named_parameters lists it "
    "once.",
    (
        "for name, parameter in model.named_parameters():",
        "for name, parameter in model.named_parameters(remove_duplicate=False):",
    ),
)
add(
    "train_loss_tensor",
    "Your loss is a tensor; a float is asked for, .item() makes one.",
    (DONE, "return loss.detach(), updated"),
)
add(
    "train_loss_summed",
    "You multiply the loss by the number of tokens; the loss per real token is what is trained.",
    (SHIFT, "tgt_in, tgt_out, number = shift_targets(target)"),
    (LOSS, f"{LOSS} * number"),
)
add(
    "train_gradients_clipped",
    "You shorten the gradients to the length 1; here they are used as they are.",
    ("loss.backward()", "loss.backward()\n    nn.utils.clip_grad_norm_(model.parameters(), 1.0)"),
)
add(
    "train_mode_on",
    "You switch the model to training mode; its mode is the caller's business.",
    (LOSS, f"model.train()\n    {LOSS}"),
)
add(
    "train_mode_off",
    "You switch the model to evaluation mode, so that dropout never acts; its mode is the caller's "
    "business.",
    (LOSS, f"model.eval()\n    {LOSS}"),
)
add(
    "train_only_the_loss",
    "You return the loss alone; the result is (loss, moments).",
    (DONE, "return loss.item()"),
)

# --------------------------------------------------------------------------------------------
# Decoding
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "greedy_decode", "trf-greedy")
ENCODE = "memory = model.encode(source, src_mask)"
LOOP = "while target.shape[1] <= max_length and not finished.all():"
LAST = "log_probs = model.generator(hidden[:, -1])"
TOKEN = "token = log_probs.argmax(dim=-1).masked_fill(finished, PAD)"
OVER = "finished = finished | (token == EOS)"
RESULT = "return target[:, 1:]"
add(
    "greedy_first_position",
    "You read the distribution of the first position at every step; the last position says what "
    "comes next.",
    (LAST, "log_probs = model.generator(hidden[:, 0])"),
)
add(
    "greedy_all_positions_again",
    "You replace the whole target by the argmax of all positions; only the last position's token "
    "is appended.",
    (
        "target = torch.cat([target, token.unsqueeze(1)], dim=1)",
        "best = model.generator(hidden).argmax(dim=-1)\n"
        "        target = torch.cat([target[:, :1], best[:, :-1], token.unsqueeze(1)], dim=1)",
    ),
)
add(
    "greedy_begins_with_source",
    "Your target begins with the first token of the source; it begins with BOS.",
    ("target = torch.full_like(source[:, :1], BOS)", "target = source[:, :1]"),
)
add(
    "greedy_begins_with_pad",
    "Your target begins with PAD; it begins with BOS.",
    ("target = torch.full_like(source[:, :1], BOS)", "target = torch.zeros_like(source[:, :1])"),
)
add(
    "greedy_begins_with_eos",
    "Your target begins with EOS; it begins with BOS.",
    (
        "target = torch.full_like(source[:, :1], BOS)",
        "target = torch.full_like(source[:, :1], EOS)",
    ),
)
add(
    "greedy_encodes_the_target",
    "You encode the target and decode the source; encode(source, src_mask) makes the memory once.",
    (ENCODE, "memory = model.encode(torch.full_like(source, BOS), src_mask)"),
)
add(
    "greedy_bos_kept",
    "Your ids begin with BOS; it is fed to the model but is no part of the result.",
    (RESULT, "return target"),
)
add(
    "greedy_eos_dropped",
    "Your rows lack EOS; it belongs to the result.",
    (
        RESULT,
        "ids = target[:, 1:].masked_fill(target[:, 1:] == EOS, PAD)\n"
        "    return ids[:, : max(1, int((ids != PAD).sum(dim=1).max()))]",
    ),
)
add(
    "greedy_tokens_after_eos",
    "Your rows go on after EOS; they get PAD from then on.",
    (TOKEN, "token = log_probs.argmax(dim=-1)"),
)
add(
    "greedy_eos_repeated",
    "Your rows get EOS again and again once they have ended; they get PAD.",
    (TOKEN, TOKEN.replace("PAD", "EOS")),
)
add(
    "greedy_stops_with_the_first",
    "You stop when the first row ends; go on until every row has ended.",
    (LOOP, "while target.shape[1] <= max_length and not finished.any():"),
)
add(
    "greedy_never_stops",
    "You always take max_length steps; stop when every row has ended, so that no column is padding "
    "alone.",
    (LOOP, "while target.shape[1] <= max_length:"),
)
add(
    "greedy_stops_on_read",
    "You stop one step late, when EOS has been read; a row ends when it writes EOS.",
    (
        LOOP,
        "while target.shape[1] <= max_length and not (target == EOS).any(dim=1).logical_and("
        "target[:, -1] != EOS).all():",
    ),
)
add(
    "greedy_one_short",
    "Your rows get max_length - 1 tokens; BOS is not counted.",
    (LOOP, "while target.shape[1] < max(2, max_length) and not finished.all():"),
)
add(
    "greedy_one_too_many",
    "Your rows get max_length + 1 tokens; EOS is counted.",
    (LOOP, "while target.shape[1] <= max_length + 1 and not finished.all():"),
)
add(
    "greedy_ends_at_pad",
    "Your rows end at PAD; only EOS ends a row.",
    (OVER, "finished = finished | (token == EOS) | (token == PAD)"),
)
add(
    "greedy_source_not_masked",
    "Your model attends to the padding of the source; hand pad_mask(source) to encode and decode.",
    ("src_mask = pad_mask(source)", "src_mask = torch.ones_like(pad_mask(source))"),
)
add(
    "greedy_encoder_not_masked",
    "Your encoder attends to the padding; it needs pad_mask(source) as decode does.",
    (ENCODE, "memory = model.encode(source)"),
    read="trf-mask-errors",
)
add(
    "greedy_decoder_not_masked",
    "Your decoder attends to the padding of the source; hand src_mask to decode too.",
    (
        "model.decode(memory, src_mask, target, tgt_mask)",
        "model.decode(memory, torch.ones_like(src_mask), target, tgt_mask)",
    ),
    read="trf-mask-errors",
)
add(
    "greedy_target_not_masked",
    "Your earlier positions see later ones; the causal mask matters when decoding too, as soon as "
    "there are two layers.",
    (
        "tgt_mask = subsequent_mask(target.shape[1]).to(target.device)",
        "tgt_mask = None",
    ),
    read="trf-mask-errors",
)
add(
    "greedy_last_token_only",
    "You feed only the last token; without a cache the model needs the whole target so far.",
    (
        "model.decode(memory, src_mask, target, tgt_mask)",
        "model.decode(memory, src_mask, target[:, -1:], tgt_mask[:, -1:, -1:])",
    ),
)
add(
    "greedy_sampled",
    "You draw the token at random; greedy decoding takes the likeliest.",
    (TOKEN, TOKEN.replace("argmax(dim=-1)", "exp().multinomial(1).squeeze(1)")),
)
add(
    "greedy_specials_forbidden",
    "You never write PAD, BOS and UNK; every id may be the likeliest.",
    (
        LAST,
        f"{LAST}.clone()\n        log_probs[:, [PAD, BOS, UNK]] = -math.inf",
    ),
)
add(
    "greedy_same_token_for_all",
    "All rows get the token of the first one; each row has its own argmax.",
    (TOKEN, TOKEN.replace("argmax(dim=-1)", "argmax(dim=-1)[:1].expand(len(source))")),
)
add(
    "greedy_log_probs",
    "You return log-probabilities; the ids are asked for.",
    (RESULT, "return log_probs"),
)
add(
    "greedy_length_unchecked",
    "A max_length below 1 is not refused; raise a ValueError.",
    ("if max_length < 1:", "max_length = max(1, max_length)\n    if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "beam_search", "trf-beam")
WIDTH = "width = min(beam_size - len(finished), totals.numel())"
TOTALS = "totals = so_far.unsqueeze(1) + log_probs"
SCORE = "total / ((5 + len(ids)) / 6) ** alpha"
SCORED = f"scored = [(ids, {SCORE}) for ids, total in finished + live]"
SORTED = "sorted(scored, key=lambda pair: pair[1], reverse=True)"
AT_EOS = "(finished if token == EOS else extended).append(hypothesis)"
ON = "while live and len(live[0][0]) < max_length:"
add(
    "beam_no_penalty",
    "Your score is the bare log-probability; divide it by ((5 + len(ids)) / 6) ** alpha.",
    (SCORE, "total"),
)
add(
    "beam_plain_length",
    "You divide by len(ids) ** alpha, as in sequence to sequence; here it is "
    "((5 + len(ids)) / 6) ** alpha.",
    (SCORE, "total / len(ids) ** alpha"),
)
add(
    "beam_sixth_missing",
    "You divide by (5 + len(ids)) ** alpha; it is ((5 + len(ids)) / 6) ** alpha, which is 1 for "
    "one token.",
    (SCORE, "total / (5 + len(ids)) ** alpha"),
)
add(
    "beam_sixth_outside",
    "Your 6 has no exponent; it is (5 + len(ids)) ** alpha / 6 ** alpha.",
    (SCORE, "total / ((5 + len(ids)) ** alpha / 6)"),
)
add(
    "beam_penalty_multiplied",
    "You multiply by the penalty; divide by it, so that long hypotheses lose less.",
    (SCORE, "total * ((5 + len(ids)) / 6) ** alpha"),
)
add(
    "beam_alpha_factor",
    "You multiply by alpha; it is an exponent: ((5 + len(ids)) / 6) ** alpha.",
    (SCORE, "total / (alpha * (5 + len(ids)) / 6 if alpha else 1)"),
)
add(
    "beam_alpha_fixed",
    "You always use 0.6; use the argument alpha.",
    (SCORE, SCORE.replace("alpha", "0.6")),
)
add(
    "beam_length_with_bos",
    "Your length counts BOS; len(ids) counts the tokens of the result, EOS included.",
    (SCORE, SCORE.replace("5 + len(ids)", "6 + len(ids)")),
)
add(
    "beam_length_without_eos",
    "Your length leaves EOS out; len(ids) counts it.",
    (SCORE, SCORE.replace("len(ids)", "len(ids) - (ids[-1] == EOS)")),
)
add(
    "beam_same_length_for_all",
    "You divide every score by the penalty of max_length; each hypothesis has a length of its own.",
    (SCORE, SCORE.replace("len(ids)", "max_length")),
)
add(
    "beam_sorted_before_penalty",
    "Your hypotheses are sorted by log-probability; the order follows the score.",
    (
        f"return {SORTED}",
        "by_total = sorted(finished + live, key=lambda pair: pair[1], reverse=True)\n"
        f"    return [(ids, {SCORE}) for ids, total in by_total]",
    ),
)
add(
    "beam_penalty_during_search",
    "Your survivors are chosen by the score; during the search the log-probability decides, and "
    "the penalty only counts at the end.",
    (
        WIDTH,
        f"{WIDTH}\n"
        "        steps = len(live[0][0]) + 1\n"
        "        ended = torch.arange(totals.shape[1]) == EOS\n"
        "        real = totals\n"
        "        totals = torch.where(ended, totals / ((5 + steps) / 6) ** alpha, totals)",
    ),
    (
        "row, token = divmod(place, totals.shape[1])",
        "row, token = divmod(place, totals.shape[1])\n            total = real[row, token].item()",
    ),
)
add(
    "beam_penalty_every_step",
    "You divide by the penalty at every step, so that it counts again and again; divide once, at "
    "the end.",
    (TOTALS, f"{TOTALS}\n        totals = totals / ((6 + len(live[0][0])) / 6) ** alpha"),
    (SCORE, "total"),
)
add(
    "beam_greedy",
    "Your search keeps one hypothesis whatever beam_size says; keep the beam_size best.",
    ("    src_mask = pad_mask(source)", "    beam_size = 1\n    src_mask = pad_mask(source)"),
)
add(
    "beam_each_extended_once",
    "You take the best extension of each hypothesis; the survivors are the best among the "
    "extensions of all hypotheses together.",
    (
        "best, places = totals.flatten().topk(width)",
        "if len(live) > 1:\n"
        "            keep = torch.full_like(totals, -math.inf)\n"
        "            top = totals.argmax(dim=-1, keepdim=True)\n"
        "            totals = keep.scatter(1, top, totals.gather(1, top))\n"
        "        best, places = totals.flatten().topk(width)",
    ),
)
add(
    "beam_never_shrinks",
    "Your beam stays as wide as before when hypotheses finish; those that end leave it, and it "
    "shrinks by as many.",
    (WIDTH, "width = min(beam_size, totals.numel())"),
    (SORTED, f"{SORTED}[:beam_size]"),
)
add(
    "beam_too_many_results",
    "You return more than beam_size hypotheses: the beam must shrink by as many as have finished.",
    (WIDTH, "width = min(beam_size, totals.numel())"),
)
add(
    "beam_stops_with_the_first",
    "Your search ends when the first hypothesis finishes; go on until nothing is live or "
    "max_length is reached.",
    (ON, "while live and not finished and len(live[0][0]) < max_length:"),
)
add(
    "beam_finished_dropped",
    "Your finished hypotheses are lost; put them aside, they belong to the result.",
    (
        AT_EOS,
        "if token != EOS:\n"
        "                extended.append(hypothesis)\n"
        "            elif not extended and not finished:\n"
        "                finished.append(hypothesis)",
    ),
)
add(
    "beam_finished_extended",
    "Your hypotheses go on after EOS; those that end are finished and leave the beam.",
    (AT_EOS, "extended.append(hypothesis)"),
)
add(
    "beam_unfinished_dropped",
    "You drop what is still live after max_length tokens; it joins the result as it is.",
    ("for ids, total in finished + live]", "for ids, total in finished]"),
)
add(
    "beam_unfinished_only_without_finished",
    "You use live hypotheses only if none has finished; what is live after max_length tokens joins "
    "the finished ones.",
    ("for ids, total in finished + live]", "for ids, total in finished or live]"),
)
add(
    "beam_eos_dropped",
    "Your finished hypotheses lack EOS; it belongs to the ids.",
    (
        SCORED,
        f"scored = [(ids[:-1] if ids[-1] == EOS else ids, {SCORE}) "
        "for ids, total in finished + live]",
    ),
)
add(
    "beam_bos_included",
    "Your hypotheses begin with BOS; it is fed to the model but is no part of the ids.",
    (SCORED, f"scored = [([BOS, *ids], {SCORE}) for ids, total in finished + live]"),
)
add(
    "beam_bos_not_fed",
    "You don't feed BOS; every target begins with it.",
    ("[[BOS, *ids] for ids, _ in live]", "[ids or [BOS] for ids, _ in live]"),
)
add(
    "beam_worst_first",
    "Your worst hypothesis comes first; the best score does.",
    (SORTED, "sorted(scored, key=lambda pair: pair[1])"),
)
add(
    "beam_not_sorted",
    "Your hypotheses stand in the order in which they finished; sort them by score, best first.",
    (f"return {SORTED}", "return scored"),
)
add(
    "beam_best_only",
    "You return the best hypothesis only; all finished and remaining ones are asked for.",
    (SORTED, f"{SORTED}[:1]"),
)
add(
    "beam_log_probs_not_added",
    "Your scores are those of the last step; add up the log-probabilities of all tokens.",
    (TOTALS, "totals = 0 * so_far.unsqueeze(1) + log_probs"),
)
add(
    "beam_probabilities_added",
    "You add up probabilities; the probability of a sequence is a product: add log-probabilities.",
    (TOTALS, "totals = (so_far.unsqueeze(1) + log_probs.exp())"),
)
add(
    "beam_product",
    "You multiply probabilities, which vanish in improbable hypotheses; add log-probabilities.",
    (TOTALS, "totals = (so_far.exp().unsqueeze(1) * log_probs.exp()).log()"),
)
add(
    "beam_probabilities",
    "Your scores are probabilities; log-probabilities are asked for.",
    (SCORE, f"math.exp({SCORE})"),
)
add(
    "beam_impossible_kept",
    "Hypotheses of probability 0 stay in your beam; drop them, even if fewer than beam_size are "
    "left.",
    ("if total == -math.inf:", "if False:"),
)
add(
    "beam_one_short",
    "Your search ends one token early; max_length tokens are allowed, BOS not counted.",
    (ON, "while live and len(live[0][0]) < max(1, max_length - 1):"),
)
add(
    "beam_one_too_many",
    "Your hypotheses may have max_length + 1 tokens; EOS is counted.",
    (ON, "while live and len(live[0][0]) < max_length + 1:"),
)
add(
    "beam_first_position",
    "You read the distribution of the first position at every step; the last position says what "
    "comes next.",
    ("model.generator(hidden[:, -1])", "model.generator(hidden[:, 0])"),
)
add(
    "beam_last_token_only",
    "You feed only the last token of each hypothesis; without a cache the model needs all of them.",
    ("[[BOS, *ids] for ids, _ in live]", "[[BOS, *ids][-1:] for ids, _ in live]"),
)
add(
    "beam_source_not_masked",
    "Your model attends to the padding of the source; hand pad_mask(source) to encode and decode.",
    ("src_mask = pad_mask(source)", "src_mask = torch.ones_like(pad_mask(source))"),
)
add(
    "beam_encoder_not_masked",
    "Your encoder attends to the padding; it needs pad_mask(source) as decode does.",
    (ENCODE, "memory = model.encode(source)"),
    read="trf-mask-errors",
)
add(
    "beam_target_not_masked",
    "Your earlier positions see later ones; the causal mask matters when decoding too, as soon as "
    "there are two layers.",
    (
        "            target,\n            tgt_mask,\n",
        "            target,\n            None,\n",
    ),
    read="trf-mask-errors",
)
add(
    "beam_tensor_ids",
    "Your ids are tensors; lists of ints are asked for, .tolist() makes them.",
    (SCORED, f"scored = [(torch.tensor(ids), {SCORE}) for ids, total in finished + live]"),
)
add(
    "beam_score_first",
    "Your pairs are (score, ids); they are (ids, score).",
    (f"return {SORTED}", f"return [(score, ids) for ids, score in {SORTED}]"),
)
add(
    "beam_settings_unchecked",
    "A beam_size or max_length below 1, or a negative alpha, is not refused; raise a ValueError.",
    ("if value < least:", "if False:"),
    (
        "    src_mask = pad_mask(source)",
        "    beam_size, max_length = max(1, beam_size), max(1, max_length)\n"
        "    src_mask = pad_mask(source)",
    ),
)
add(
    "beam_batch_accepted",
    "More than one source is not refused; raise a ValueError.",
    ("if len(source) != 1:", "source = source[:1]\n    if False:"),
)

# --------------------------------------------------------------------------------------------
# The cache
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "start_cache", "trf-cache")
PAIRS = "pairs = [layer.src_attn.project(memory, memory) for layer in model.decoder.layers]"
add(
    "start_projected_by_self_attn",
    "You project the memory with the layers' self_attn; its keys and values come from src_attn.",
    (PAIRS, PAIRS.replace("src_attn", "self_attn")),
)
add(
    "start_not_projected",
    "Your memory is split into heads without k_proj and v_proj; call src_attn.project.",
    (
        PAIRS,
        "whole = memory.unflatten(-1, (model.decoder.layers[0].src_attn.num_heads, -1))\n"
        "    whole = whole.transpose(1, 2)\n"
        "    pairs = [(whole, whole) for _ in model.decoder.layers]",
    ),
)
add(
    "start_one_layer_for_all",
    "All of your layers have the keys and values of the first; each projects the memory itself.",
    (
        PAIRS,
        "pairs = [model.decoder.layers[0].src_attn.project(memory, memory)] "
        "* len(model.decoder.layers)",
    ),
)
add(
    "start_embedding_projected",
    "You project the embedded source; the memory is what the whole encoder makes of it.",
    (ENCODE, "memory = model.position(model.src_embed(source))"),
)
add(
    "start_encoder_not_masked",
    "Your encoder attends to the padding; hand src_mask to encode.",
    (ENCODE, "memory = model.encode(source)"),
    read="trf-mask-errors",
)
add(
    "start_mask_missing",
    'Your "src_mask" is None; every later step needs the mask of the source.',
    ('"src_mask": src_mask,', '"src_mask": None,'),
)
add(
    "start_mask_flat",
    'Your "src_mask" has the shape (B, S); it is (B, 1, S), as pad_mask makes it.',
    ('"src_mask": src_mask,', '"src_mask": src_mask.squeeze(1),'),
)
add(
    "start_mask_inverted",
    'Your "src_mask" is True at the padding; True means may be attended to.',
    ('"src_mask": src_mask,', '"src_mask": ~src_mask,'),
)
add(
    "start_memory_instead",
    "Your cache holds the memory itself; it holds its keys and values for each layer.",
    (
        '        "memory_keys": [keys for keys, _ in pairs],  # N x (B, H, S, D/H)\n'
        '        "memory_values": [values for _, values in pairs],  # N x (B, H, S, D/H)\n',
        '        "memory": memory,\n',
    ),
)
add(
    "start_keys_and_values_swapped",
    "Keys and values of your memory are swapped; project returns (keys, values).",
    (
        '"memory_keys": [keys for keys, _ in pairs]',
        '"memory_keys": [values for _, values in pairs]',
    ),
    (
        '"memory_values": [values for _, values in pairs]',
        '"memory_values": [keys for keys, _ in pairs]',
    ),
)
add(
    "start_values_are_keys",
    "Your values of the memory are its keys; project returns (keys, values).",
    (
        '"memory_values": [values for _, values in pairs]',
        '"memory_values": [keys for keys, _ in pairs]',
    ),
)
add(
    "start_not_empty",
    'Your "keys" and "values" begin with those of the memory; before the first step they are '
    "empty.",
    ("[keys[:, :, :0] for keys, _ in pairs]", "[keys for keys, _ in pairs]"),
    ("[values[:, :, :0] for _, values in pairs]", "[values for _, values in pairs]"),
)
add(
    "start_zero_position",
    'Your "keys" and "values" begin with one position of zeros, which would be attended to; begin '
    "with none.",
    ("[keys[:, :, :0] for keys, _ in pairs]", "[0 * keys[:, :, :1] for keys, _ in pairs]"),
    (
        "[values[:, :, :0] for _, values in pairs]",
        "[0 * values[:, :, :1] for _, values in pairs]",
    ),
)
add(
    "start_none",
    'Your "keys" and "values" are None at first; empty tensors (B, H, 0, D/H) need no case of '
    "their own.",
    ("[keys[:, :, :0] for keys, _ in pairs]", "[None for _ in pairs]"),
    ("[values[:, :, :0] for _, values in pairs]", "[None for _ in pairs]"),
)
add(
    "start_empty_lists",
    'Your "keys" and "values" are empty lists; they hold one empty tensor for each layer.',
    ("[keys[:, :, :0] for keys, _ in pairs]", "[]"),
    ("[values[:, :, :0] for _, values in pairs]", "[]"),
)
add(
    "start_heads_merged",
    "Your tensors have the shape (B, S, D); they are split into heads, (B, H, S, D/H).",
    (
        PAIRS,
        f"{PAIRS}\n"
        "    pairs = [tuple(x.transpose(1, 2).flatten(2) for x in pair) for pair in pairs]",
    ),
    ("[keys[:, :, :0] for keys, _ in pairs]", "[keys[:, :0] for keys, _ in pairs]"),
    ("[values[:, :, :0] for _, values in pairs]", "[values[:, :0] for _, values in pairs]"),
)
add(
    "start_stacked",
    "Your layers are stacked in one tensor; a list with one tensor for each layer is asked for.",
    (
        '"memory_keys": [keys for keys, _ in pairs]',
        '"memory_keys": torch.stack([keys for keys, _ in pairs])',
    ),
    (
        '"memory_values": [values for _, values in pairs]',
        '"memory_values": torch.stack([values for _, values in pairs])',
    ),
)

add = mistakes_in(MISCONCEPTIONS, "decode_step", "trf-cache")
POSITION = 'position = cache["keys"][0].shape[2]'
EMBED = "x = model.position(model.tgt_embed(token.unsqueeze(1)), start=position)"
PROJECT = "new_keys, new_values = layer.self_attn.project(x, x)"
KEYS = 'keys.append(torch.cat([cache["keys"][n], new_keys], dim=2))'
VALUES = 'values.append(torch.cat([cache["values"][n], new_values], dim=2))'
ATTEND = "return layer.self_attn.attend(x, keys[n], values[n])"
MEMORY = 'memory = cache["memory_keys"][n], cache["memory_values"][n]'
LOOK = 'return layer.src_attn.attend(x, *memory, cache["src_mask"])'
CLOSE = 'return model.generator(x[:, 0]), {**cache, "keys": keys, "values": values}'
add(
    "step_position_zero",
    "Your token always stands at position 0; its position is the number of cached keys.",
    (POSITION, "position = 0"),
)
add(
    "step_position_from_one",
    "Your positions begin at 1; the first token stands at position 0.",
    (POSITION, f"{POSITION} + 1"),
)
add(
    "step_position_late",
    "Your position is one behind from the second step on; it is the number of cached keys.",
    (POSITION, f"position = max(0, {POSITION.removeprefix('position = ')} - 1)"),
)
add(
    "step_position_missing",
    "You don't add the code of the position; model.position does, with start=.",
    (EMBED, "x = model.tgt_embed(token.unsqueeze(1))"),
)
add(
    "step_position_of_the_source",
    "You take the position from the length of the source; it is the number of cached keys.",
    (POSITION, 'position = cache["memory_keys"][0].shape[2]'),
)
add(
    "step_keys_overwritten",
    "Your new keys and values replace the cached ones; append them.",
    (KEYS, "keys.append(new_keys)"),
    (VALUES, "values.append(new_values)"),
)
add(
    "step_keys_in_front",
    "Your new keys and values stand before the cached ones; append them at the end.",
    (KEYS, 'keys.append(torch.cat([new_keys, cache["keys"][n]], dim=2))'),
    (VALUES, 'values.append(torch.cat([new_values, cache["values"][n]], dim=2))'),
)
add(
    "step_values_not_appended",
    "Your values stay those of the new token alone; append them to the cached ones as the keys.",
    (VALUES, "values.append(new_values.expand_as(keys[n]))"),
)
add(
    "step_itself_not_seen",
    "Your token attends to the cached positions only; it sees itself as well, so append first.",
    (
        ATTEND,
        'if cache["keys"][n].shape[2] == 0:\n'
        "                return layer.self_attn.attend(x, keys[n], values[n])\n"
        '            return layer.self_attn.attend(x, cache["keys"][n], cache["values"][n])',
    ),
)
add(
    "step_cache_unused",
    "Your token attends to itself alone; it attends to all cached keys and values and its own.",
    (ATTEND, "return layer.self_attn.attend(x, new_keys, new_values)"),
)
add(
    "step_one_layer_for_all",
    "All layers use the cached keys and values of the first one; each has its own.",
    (KEYS, KEYS.replace("[n]", "[0]")),
    (VALUES, VALUES.replace("[n]", "[0]")),
)
add(
    "step_memory_of_the_first_layer",
    "All layers attend to the memory as the first one projects it; each has its own keys and "
    "values.",
    (MEMORY, MEMORY.replace("[n]", "[0]")),
)
add(
    "step_memory_from_x",
    "Your src_attn projects the new token; its keys and values are those of the memory, in the "
    "cache.",
    (LOOK, "return layer.src_attn(x, x, x)"),
)
add(
    "step_memory_swapped",
    "Keys and values of the memory are swapped; attend takes the keys first.",
    (MEMORY, 'memory = cache["memory_values"][n], cache["memory_keys"][n]'),
)
add(
    "step_source_not_masked",
    "Your token attends to the padding of the source; hand src_mask to src_attn.attend.",
    (LOOK, "return layer.src_attn.attend(x, *memory)"),
    read="trf-mask-errors",
)
add(
    "step_norm_order_ignored",
    "You always put the norm after the sum; call sublayer, which knows the order of its model.",
    (
        "x = layer.sublayer[0](x, attend_to_target)",
        "first, second, third = layer.sublayer\n        x = first.norm(x + attend_to_target(x))",
    ),
    (
        "x = layer.sublayer[1](x, attend_to_source)",
        "x = second.norm(x + attend_to_source(x))",
    ),
    (
        "x = layer.sublayer[2](x, layer.feed_forward)",
        "x = third.norm(x + layer.feed_forward(x))",
    ),
    read="trf-norm-order",
)
add(
    "step_norm_first_always",
    "You always normalise the input of a sub-layer; call sublayer, which knows the order of its "
    "model.",
    (
        "x = layer.sublayer[0](x, attend_to_target)",
        "first, second, third = layer.sublayer\n        x = x + attend_to_target(first.norm(x))",
    ),
    (
        "x = layer.sublayer[1](x, attend_to_source)",
        "x = x + attend_to_source(second.norm(x))",
    ),
    (
        "x = layer.sublayer[2](x, layer.feed_forward)",
        "x = x + layer.feed_forward(third.norm(x))",
    ),
    read="trf-norm-order",
)
add(
    "step_final_norm_missing",
    "With the norms first the decoder ends with a norm; apply it before the generator.",
    ("if model.decoder.norm is not None:", "if False:"),
    read="trf-norm-order",
)
add(
    "step_keys_not_normalised",
    "Your keys and values come from the input before the norm; project what the sub-layer is "
    "given.",
    (
        "        def attend_to_target(",
        "        before = x\n\n        def attend_to_target(",
    ),
    (PROJECT, "new_keys, new_values = layer.self_attn.project(before, before)"),
    read="trf-norm-order",
)
add(
    "step_no_residual",
    "Your sub-layers replace x; each adds to it, as sublayer does.",
    ("x = layer.sublayer[0](x, attend_to_target)", "x = attend_to_target(x)"),
    ("x = layer.sublayer[1](x, attend_to_source)", "x = attend_to_source(x)"),
    ("x = layer.sublayer[2](x, layer.feed_forward)", "x = layer.feed_forward(x)"),
)
add(
    "step_source_attention_missing",
    "Your step leaves out the attention to the source; it is the second sub-layer.",
    ("x = layer.sublayer[1](x, attend_to_source)", "pass"),
)
add(
    "step_feed_forward_missing",
    "Your step leaves out the feed-forward network; it is the third sub-layer.",
    ("x = layer.sublayer[2](x, layer.feed_forward)", "pass"),
)
add(
    "step_first_layer_only",
    "Your step runs through the first layer only; it runs through all of them.",
    ("enumerate(model.decoder.layers)", "enumerate(model.decoder.layers[:1])"),
)
add(
    "step_cache_changed",
    "You change the cache that you were given; put the longer keys and values into a new one.",
    (
        CLOSE,
        'cache["keys"], cache["values"] = keys, values\n    return model.generator(x[:, 0]), cache',
    ),
)
add(
    "step_cache_not_grown",
    "You return the cache as it was; its keys and values are one position longer now.",
    (CLOSE, "return model.generator(x[:, 0]), {**cache}"),
)
add(
    "step_memory_dropped",
    "Your new cache holds keys and values only; the next step needs src_mask and the memory too.",
    (CLOSE, 'return model.generator(x[:, 0]), {"keys": keys, "values": values}'),
)
add(
    "step_source_mask_grown",
    'You make "src_mask" one place longer; it belongs to the source, which does not grow.',
    (
        CLOSE,
        'mask = cache["src_mask"]\n'
        '    longer = {**cache, "src_mask": torch.cat([mask, mask[:, :, :1]], dim=2)}\n'
        '    return model.generator(x[:, 0]), {**longer, "keys": keys, "values": values}',
    ),
)
add(
    "step_three_axes",
    "Your log-probabilities have the shape (B, 1, V); there is one position only: (B, V).",
    (CLOSE, CLOSE.replace("x[:, 0]", "x")),
)
add(
    "step_hidden_returned",
    "You return the decoder's vector; apply the generator to it.",
    (CLOSE, CLOSE.replace("model.generator(x[:, 0])", "x[:, 0]")),
)
add(
    "step_logits_returned",
    "You return logits; the generator makes log-probabilities of them.",
    (CLOSE, CLOSE.replace("model.generator(", "model.generator.proj(")),
)
add(
    "step_source_embedding",
    "You embed the token with src_embed; it is a token of the target.",
    (EMBED, EMBED.replace("tgt_embed", "src_embed").replace("token.", "(token % 7).")),
)
add(
    "step_embedding_not_scaled",
    "You look the token up without the factor sqrt(D); call tgt_embed itself.",
    (EMBED, EMBED.replace("model.tgt_embed(", "model.tgt_embed.lut(")),
    read="trf-embeddings",
)
