"""Known mistakes of `bert-model`: the input and the encoder.

Inputs without the closing [SEP], position vectors that are appended instead of added, GELU by tanh,
pre-norm, a pooler that averages.
"""

from __future__ import annotations

from autograder.units.variants import Misconception, mistakes_in

MISCONCEPTIONS: list[Misconception] = []

# --------------------------------------------------------------------------------------------
# Input and encoder
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "build_input", "brt-input")
LONGER = "longer = first if len(first) > len(second) else second"
PAIR = "return [CLS, *first, SEP, *second, SEP], token_type_ids"
SEGMENTS = "token_type_ids = [0] * (len(first) + 2) + [1] * (len(second) + 1)"
SINGLE = "input_ids = [CLS, *first[: max_length - 2], SEP]"
add(
    "input_without_closing_sep",
    "Your input ends with the last token of the text; a [SEP] closes every text, the last one too.",
    (SINGLE, "input_ids = [CLS, *first[: max_length - 2]]"),
    (SEGMENTS, "token_type_ids = [0] * (len(first) + 2) + [1] * len(second)"),
    (PAIR, "return [CLS, *first, SEP, *second], token_type_ids"),
)
add(
    "input_pair_without_closing_sep",
    "A pair ends with a [SEP] too: [CLS] A [SEP] B [SEP].",
    (SEGMENTS, "token_type_ids = [0] * (len(first) + 2) + [1] * len(second)"),
    (PAIR, "return [CLS, *first, SEP, *second], token_type_ids"),
)
add(
    "input_without_cls",
    "Your input does not begin with [CLS], whose output the heads for whole inputs read.",
    (SINGLE, "input_ids = [*first[: max_length - 2], SEP]"),
    (SEGMENTS, "token_type_ids = [0] * (len(first) + 1) + [1] * (len(second) + 1)"),
    (PAIR, "return [*first, SEP, *second, SEP], token_type_ids"),
)
add(
    "input_no_sep_between",
    "Nothing separates your two texts; put a [SEP] behind the first.",
    (SEGMENTS, "token_type_ids = [0] * (len(first) + 1) + [1] * (len(second) + 1)"),
    (PAIR, "return [CLS, *first, *second, SEP], token_type_ids"),
)
add(
    "input_second_cls",
    "Your second text begins with a [CLS] of its own; there is one only, at the very beginning.",
    (SEGMENTS, "token_type_ids = [0] * (len(first) + 2) + [1] * (len(second) + 2)"),
    (PAIR, "return [CLS, *first, SEP, CLS, *second, SEP], token_type_ids"),
)
add(
    "input_first_sep_in_segment_1",
    "The [SEP] behind the first text belongs to it: its segment is 0.",
    (SEGMENTS, "token_type_ids = [0] * (len(first) + 1) + [1] * (len(second) + 2)"),
)
add(
    "input_last_sep_in_segment_0",
    "The [SEP] behind the second text belongs to it: its segment is 1.",
    (SEGMENTS, "token_type_ids = [0] * (len(first) + 2) + [1] * len(second) + [0]"),
)
add(
    "input_one_segment",
    "All your segments are 0; the second text and its [SEP] are segment 1.",
    (SEGMENTS, "token_type_ids = [0] * (len(first) + len(second) + 3)"),
)
add(
    "input_segments_from_1",
    "Your segments are 1 and 2; they count from 0.",
    ("return input_ids, [0] * len(input_ids)", "return input_ids, [1] * len(input_ids)"),
    (SEGMENTS, "token_type_ids = [1] * (len(first) + 2) + [2] * (len(second) + 1)"),
)
add(
    "input_cuts_second_only",
    "You shorten the second text only; take tokens from the longer of the two, one at a time.",
    (LONGER, "longer = second or first"),
)
add(
    "input_cuts_first_only",
    "You shorten the first text only; take tokens from the longer of the two, one at a time.",
    (LONGER, "longer = first or second"),
)
add(
    "input_tie_cuts_first",
    "Of two texts of one length you shorten the first; it is the second that loses a token.",
    (LONGER, "longer = first if len(first) >= len(second) else second"),
)
add(
    "input_cuts_at_the_front",
    "You take tokens away at the beginning of a text; take them from its end.",
    (SINGLE, "input_ids = [CLS, *first[max(len(first) - max_length + 2, 0) :], SEP]"),
    ("longer.pop()", "longer.pop(0)"),
)
add(
    "input_cuts_the_result",
    "You build the whole input and cut its end off, the closing [SEP] included; shorten the texts "
    "first.",
    (SINGLE, "input_ids = [CLS, *first, SEP][:max_length]"),
    ("while len(first) + len(second) > max_length - 3:", "while False:"),
    (PAIR, "return [CLS, *first, SEP, *second, SEP][:max_length], token_type_ids[:max_length]"),
)
add(
    "input_specials_not_counted",
    "Your text alone fills max_length; [CLS] and [SEP] count too.",
    ("first[: max_length - 2]", "first[:max_length]"),
    ("> max_length - 3:", "> max_length:"),
)
add(
    "input_lists_changed",
    "You take tokens out of the lists that were given; the caller still needs them, so work on "
    "copies.",
    ("first, second = list(first), list(second)", "pass"),
)
add(
    "input_empty_accepted",
    "A text without tokens is not refused; raise a ValueError.",
    ("if not first or (second is not None and not second):", "if False:"),
)
add(
    "input_empty_second_is_none",
    "An empty second text is no missing one: refuse it with a ValueError. Ask whether it is None.",
    (
        "least = 3 if second is None else 5",
        "second = second or None\n    least = 3 if second is None else 5",
    ),
)
add(
    "input_no_room_accepted",
    "A max_length without room for one token of each text is not refused; raise a ValueError.",
    ("if max_length < least:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "gelu", "brt-encoder")
GELU = "0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))"
add(
    "gelu_by_tanh",
    "Your values are those of the approximation by tanh; use the error function, torch.erf.",
    (GELU, "0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))"),
)
add(
    "gelu_by_sigmoid",
    "Your values are those of the approximation x * sigmoid(1.702 x); use the error function.",
    (GELU, "x * torch.sigmoid(1.702 * x)"),
)
add(
    "gelu_silu",
    "You multiply x by its sigmoid: that is SiLU. GELU takes the distribution function of the "
    "normal distribution.",
    (GELU, "x * torch.sigmoid(x)"),
)
add(
    "gelu_relu",
    "Your function is ReLU, 0 for every negative x; GELU weighs x with Phi(x).",
    (GELU, "torch.relu(x)"),
)
add(
    "gelu_without_root",
    "You take erf(x); Phi needs erf(x / sqrt(2)).",
    ("x / math.sqrt(2.0)", "x"),
)
add(
    "gelu_half_without_root",
    "You divide x by 2 in the error function; divide it by the root of 2.",
    ("x / math.sqrt(2.0)", "x / 2.0"),
)
add(
    "gelu_times_root",
    "You multiply by the root of 2 in the error function; divide by it.",
    ("x / math.sqrt(2.0)", "x * math.sqrt(2.0)"),
)
add(
    "gelu_twice_too_large",
    "Your values are twice too large: 1 + erf lies between 0 and 2, so halve it.",
    ("0.5 * x", "x"),
)
add(
    "gelu_only_phi",
    "You return Phi(x), the weight; multiply x by it.",
    ("0.5 * x", "0.5"),
)
add(
    "gelu_density",
    "You multiply x by the density of the normal distribution; take its distribution function Phi.",
    (GELU, "x * torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)"),
)
add(
    "gelu_mirrored",
    "You weigh x with Phi(-x), so that large x vanish; the error function is added, not "
    "subtracted.",
    ("1.0 + torch.erf", "1.0 - torch.erf"),
)

add = mistakes_in(MISCONCEPTIONS, "BertEmbeddings", "brt-embeddings")
LOOK = "x = self.token(input_ids) + self.segment(token_type_ids)"
PLACE = "x = x + self.position.weight[:length]"
LAST = "return self.dropout(self.norm(x))"
NORM = "self.norm = nn.LayerNorm(d_model, eps=1e-12)"
add(
    "embeddings_concatenated",
    "You join the three vectors end to end, so that the width is 3 D; add them, element by "
    "element.",
    (NORM, "self.norm = nn.LayerNorm(3 * d_model, eps=1e-12)"),
    (LOOK, "x = torch.cat([self.token(input_ids), self.segment(token_type_ids)], dim=-1)"),
    (
        PLACE,
        "x = torch.cat([x, self.position.weight[:length].expand(len(input_ids), -1, -1)], dim=-1)",
    ),
)
add(
    "embeddings_third_each",
    "You give each embedding a third of the width and join the three vectors; each is D wide, "
    "and the vectors are added.",
    (
        "self.token = nn.Embedding(vocab_size, d_model)",
        "third = d_model // 3\n        self.token = nn.Embedding(vocab_size, d_model - 2 * third)",
    ),
    (
        "self.position = nn.Embedding(max_length, d_model)",
        "self.position = nn.Embedding(max_length, third)",
    ),
    (
        "self.segment = nn.Embedding(type_vocab_size, d_model)",
        "self.segment = nn.Embedding(type_vocab_size, third)",
    ),
    (LOOK, "x = torch.cat([self.token(input_ids), self.segment(token_type_ids)], dim=-1)"),
    (
        PLACE,
        "x = torch.cat([x, self.position.weight[:length].expand(len(input_ids), -1, -1)], dim=-1)",
    ),
)
add(
    "embeddings_without_segments",
    "You leave the segment vectors out; add them to the token and position vectors.",
    (LOOK, "x = self.token(input_ids)"),
)
add(
    "embeddings_no_segment_vector_by_default",
    "Without segment ids you add no segment vector; every token is then of segment 0, whose vector "
    "is added.",
    (
        "token_type_ids = torch.zeros_like(input_ids)",
        "return self.dropout(self.norm(self.token(input_ids) + self.position.weight[:length]))",
    ),
)
add(
    "embeddings_segment_1_by_default",
    "Without segment ids you take segment 1; it is segment 0.",
    ("torch.zeros_like(input_ids)", "torch.ones_like(input_ids)"),
)
add(
    "embeddings_without_positions",
    "You leave the position vectors out; without them BERT sees a bag of words.",
    (PLACE, "pass"),
)
add(
    "embeddings_position_by_row",
    "Your positions follow the rows of the batch; they count the tokens within a row.",
    (PLACE, "x = x + self.position.weight[: len(input_ids)].unsqueeze(1)"),
)
add(
    "embeddings_positions_of_first_call",
    "You keep the positions of the first call; a later input may have another length, and its "
    "positions count from 0 too.",
    (
        PLACE,
        "if not hasattr(self, 'places'):\n"
        "            self.places = torch.arange(length)\n"
        "        x = x + self.position(self.places[-length:])",
    ),
)
add(
    "embeddings_positions_from_1",
    "Your first token has position 1; positions count from 0.",
    (PLACE, "x = x + self.position((torch.arange(length) + 1) % positions)"),
)
add(
    "embeddings_scaled",
    "You multiply the token vectors by sqrt(D), as the Transformer does; BERT does not.",
    ("self.token(input_ids) +", "math.sqrt(self.token.embedding_dim) * self.token(input_ids) +"),
)
add(
    "embeddings_without_norm",
    "You return the sum as it is; norm comes after it.",
    (LAST, "return self.dropout(x)"),
)
add(
    "embeddings_norm_of_token",
    "You normalise the token vectors and add the others afterwards; the norm takes the whole sum.",
    ("self.token(input_ids) +", "self.norm(self.token(input_ids)) +"),
    (LAST, "return self.dropout(x)"),
)
add(
    "embeddings_dropout_before_norm",
    "You drop before the norm; dropout acts on what the norm returns.",
    (LAST, "return self.norm(self.dropout(x))"),
)
add(
    "embeddings_without_dropout",
    "Nothing is dropped in training mode; apply dropout to what the norm returns.",
    (LAST, "return self.norm(x)"),
)
add(
    "embeddings_dropout_in_eval",
    "You drop in evaluation mode too; use nn.Dropout, or pass self.training on to F.dropout.",
    (LAST, "return F.dropout(self.norm(x), self.dropout.p)"),
)
add(
    "embeddings_dropped_as_wholes",
    "You drop whole vectors; dropout decides for every entry anew.",
    (
        LAST,
        "x = self.norm(x)\n        return x * self.dropout(torch.ones_like(x[..., :1]))",
    ),
)
add(
    "embeddings_dropped_alike",
    "You drop the same entries in every example of the batch; dropout decides for every entry "
    "anew.",
    (LAST, "x = self.norm(x)\n        return x * self.dropout(torch.ones_like(x[:1]))"),
)
add(
    "embeddings_eps",
    "Your norm has the eps of nn.LayerNorm, 1e-5; BERT's is 1e-12.",
    (NORM, "self.norm = nn.LayerNorm(d_model)"),
)
add(
    "embeddings_padding_fixed",
    "With padding_idx the embedding of PAD never learns; the mask takes care of padding, so create "
    "nn.Embedding without it.",
    (
        "self.token = nn.Embedding(vocab_size, d_model)",
        "self.token = nn.Embedding(vocab_size, d_model, padding_idx=PAD)",
    ),
)
add(
    "embeddings_length_unchecked",
    "An input longer than max_length is not refused with a ValueError; compare its length with the "
    "number of positions.",
    ("if length > positions:", "if False:"),
)
add(
    "embeddings_longest_refused",
    "You refuse an input of max_length tokens, which has positions for all of them.",
    ("if length > positions:", "if length >= positions:"),
)

add = mistakes_in(MISCONCEPTIONS, "SelfAttention", "brt-encoder")
MASKED = "None if mask is None else mask[:, None, None, :]"
DROP = "dropout_p=self.dropout if self.training else 0.0,"
MERGE = "return self.out_proj(joined.transpose(1, 2).reshape(batch, length, width))"
add(
    "attention_mask_inverted",
    "You hide the real tokens and show the padding; True in the mask means a real token.",
    (MASKED, "None if mask is None else ~mask[:, None, None, :]"),
)
add(
    "attention_mask_on_queries",
    "Your mask acts on the rows of the scores; it masks keys, which are the columns.",
    (MASKED, "None if mask is None else mask[:, None, :, None].expand(-1, -1, -1, length)"),
)
add(
    "attention_mask_on_queries_by_number",
    "Your mask acts on the rows of the scores; it masks keys, which are the columns.",
    (
        MASKED,
        "None if mask is None else "
        "-1e9 * (~mask[:, None, :, None].expand(-1, -1, -1, length)).to(x.dtype)",
    ),
)
add(
    "attention_mask_of_first_row",
    "You use the mask of the first row for the whole batch; each row has its own.",
    (MASKED, "None if mask is None else mask[:1, None, None, :]"),
)
add(
    "attention_mask_after_softmax",
    "You take the weights of padded keys away after the softmax, so that the others no longer sum "
    "to 1; fill their scores with -inf before it.",
    (
        "values = self.v_proj(x).reshape(heads).transpose(1, 2)",
        "values = self.v_proj(x).reshape(heads).transpose(1, 2)\n"
        "        values = values if mask is None else values * mask[:, None, :, None]",
    ),
    (MASKED, "None"),
)
add(
    "attention_mask_both_ways",
    "You hide padded queries as well; they too get an output, from the real keys.",
    (
        MERGE,
        "joined = joined.transpose(1, 2).reshape(batch, length, width)\n"
        "        if mask is not None:\n"
        "            joined = joined * mask.unsqueeze(-1)\n"
        "        return self.out_proj(joined)",
    ),
)
add(
    "attention_mask_ignored",
    "The mask changes nothing; padded keys must get the weight 0.",
    (MASKED, "None"),
)
add(
    "attention_mask_kept",
    "Without a mask you take the one of an earlier call; None means that all tokens are real.",
    (
        "batch, length, width = x.shape",
        "batch, length, width = x.shape\n"
        "        kept = getattr(self, 'kept', None)\n"
        "        if mask is None and kept is not None and kept.shape == x.shape[:2]:\n"
        "            mask = kept\n"
        "        self.kept = mask",
    ),
)
add(
    "attention_mask_added_as_numbers",
    "You add the mask to the scores as 0 and 1, which masks nothing; fill the scores of masked "
    "keys "
    "with -inf.",
    (MASKED, "None if mask is None else mask[:, None, None, :].to(x.dtype)"),
)
add(
    "attention_causal",
    "Your tokens see only what stands before them; BERT looks both ways.",
    (
        MASKED,
        "(x.new_ones(length, length).tril() > 0) & "
        "(x.new_ones(1, 1, 1, length) > 0 if mask is None else mask[:, None, None, :])",
    ),
)
add(
    "attention_not_itself",
    "Your tokens do not see themselves; each attends to all real tokens, itself included.",
    (
        MASKED,
        "(torch.eye(length) == (2 if length == 1 else 0)) & "
        "(x.new_ones(1, 1, 1, length) > 0 if mask is None else mask[:, None, None, :])",
    ),
)
add(
    "attention_unscaled",
    "You do not divide the scores by the root of the width of a head.",
    (DROP, DROP + "\n            scale=1.0,"),
)
add(
    "attention_scaled_by_width",
    "You divide the scores by sqrt(D); divide by the root of the width of one head, D/H.",
    (DROP, DROP + "\n            scale=width**-0.5,"),
)
add(
    "attention_scaled_without_root",
    "You divide the scores by the width of a head; divide by its root.",
    (DROP, DROP + "\n            scale=self.num_heads / width,"),
)
add(
    "attention_heads_without_transpose",
    "You reshape to (B, H, T, D/H) at once, which mixes positions and features; make (B, T, H, "
    "D/H) "
    "and transpose.",
    (
        "queries = self.q_proj(x).reshape(heads).transpose(1, 2)",
        "heads = (batch, self.num_heads, length, width // self.num_heads)\n"
        "        queries = self.q_proj(x).reshape(heads)",
    ),
    (
        "keys = self.k_proj(x).reshape(heads).transpose(1, 2)",
        "keys = self.k_proj(x).reshape(heads)",
    ),
    (
        "values = self.v_proj(x).reshape(heads).transpose(1, 2)",
        "values = self.v_proj(x).reshape(heads)",
    ),
)
add(
    "attention_merged_without_transpose",
    "You join the heads without bringing the positions in front of them again; transpose first.",
    (
        "joined.transpose(1, 2).reshape(batch, length, width)",
        "joined.reshape(batch, length, width)",
    ),
)
EVERY_HTH = (
    "Head h takes every H-th feature; its features stand next to each other, so cut the width into "
    "(H, D/H)."
)
INTERLEAVED = (
    (
        "queries = self.q_proj(x).reshape(heads).transpose(1, 2)",
        "heads = (batch, length, width // self.num_heads, self.num_heads)\n"
        "        queries = self.q_proj(x).reshape(heads).permute(0, 3, 1, 2)",
    ),
    (
        "keys = self.k_proj(x).reshape(heads).transpose(1, 2)",
        "keys = self.k_proj(x).reshape(heads).permute(0, 3, 1, 2)",
    ),
    (
        "values = self.v_proj(x).reshape(heads).transpose(1, 2)",
        "values = self.v_proj(x).reshape(heads).permute(0, 3, 1, 2)",
    ),
)
add(
    "attention_heads_interleaved",
    EVERY_HTH,
    *INTERLEAVED,
)
add(
    "attention_heads_interleaved_both_ways",
    EVERY_HTH,
    *INTERLEAVED,
    ("joined.transpose(1, 2).reshape", "joined.permute(0, 2, 3, 1).reshape"),
)
add(
    "attention_one_head",
    "You attend with a single head of the whole width; split the features into num_heads heads.",
    (
        "heads = (batch, length, self.num_heads, width // self.num_heads)",
        "heads = (batch, length, 1, width)",
    ),
)
add(
    "attention_query_and_key_exchanged",
    "You exchange queries and keys; the weights of a row belong to one query.",
    ("queries = self.q_proj(x)", "queries = self.k_proj(x)"),
    ("keys = self.k_proj(x)", "keys = self.q_proj(x)"),
)
add(
    "attention_values_not_projected",
    "Your values are x itself; they are v_proj(x).",
    ("values = self.v_proj(x)", "values = x"),
)
add(
    "attention_without_output",
    "You return the joined heads; out_proj comes after them.",
    (MERGE, "return joined.transpose(1, 2).reshape(batch, length, width)"),
)
add(
    "attention_dropout_on_output",
    "You drop features of the values or of the output; dropout acts on the weights.",
    (DROP, ""),
    (
        MERGE,
        "joined = F.dropout(joined, self.dropout, self.training)\n        "
        "return self.out_proj(joined.transpose(1, 2).reshape(batch, length, width))",
    ),
)
add(
    "attention_dropout_shared_by_heads",
    "You drop the same weights in every head; dropout decides for each head anew.",
    (DROP, ""),
    (
        MERGE,
        "weights = (queries @ keys.mT * (width // self.num_heads) ** -0.5)\n"
        "        if mask is not None:\n"
        "            weights = weights.masked_fill(~mask[:, None, None, :], -math.inf)\n"
        "        weights = torch.softmax(weights, dim=-1)\n"
        "        kept = F.dropout(torch.ones_like(weights[:, :1]), self.dropout, self.training)\n"
        "        joined = weights * kept @ values\n        " + MERGE,
    ),
)
add(
    "attention_without_dropout",
    "No weight is dropped in training mode.",
    (DROP, ""),
)
add(
    "attention_dropout_in_eval",
    "You drop weights in evaluation mode too; F.scaled_dot_product_attention does not know whether "
    "your module is training, so pass 0 if it is not.",
    (DROP, "dropout_p=self.dropout,"),
)
add(
    "attention_heads_unchecked",
    "A width that the number of heads does not divide is not refused; raise a ValueError.",
    ("if num_heads < 1 or d_model % num_heads != 0:", "if False:"),
)
add(
    "attention_heads_of_one_feature_refused",
    "You refuse as many heads as there are features; each is then one feature wide.",
    ("d_model % num_heads != 0:", "d_model % num_heads != 0 or 1 < num_heads == d_model:"),
)
add(
    "attention_without_biases",
    "Your projections of queries, keys and values have no bias; BERT's have one.",
    (
        "self.q_proj = nn.Linear(d_model, d_model)",
        "self.q_proj = nn.Linear(d_model, d_model, bias=False)",
    ),
    (
        "self.k_proj = nn.Linear(d_model, d_model)",
        "self.k_proj = nn.Linear(d_model, d_model, bias=False)",
    ),
    (
        "self.v_proj = nn.Linear(d_model, d_model)",
        "self.v_proj = nn.Linear(d_model, d_model, bias=False)",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "BertLayer", "brt-encoder")
FIRST = "x = self.attention_norm(x + self.dropout(self.attention(x, mask)))"
INNER = "inner = gelu(self.w_1(x))"
SECOND = "return self.output_norm(x + self.dropout(self.w_2(inner)))"
add(
    "layer_pre_norm",
    "You normalise what goes into each part (pre-norm); BERT normalises the sum after it.",
    (FIRST, "x = x + self.dropout(self.attention(self.attention_norm(x), mask))"),
    (INNER, "inner = gelu(self.w_1(self.output_norm(x)))"),
    (SECOND, "return x + self.dropout(self.w_2(inner))"),
)
add(
    "layer_norm_of_part",
    "You normalise what a part returns and add it then; the norm takes the sum.",
    (FIRST, "x = x + self.attention_norm(self.dropout(self.attention(x, mask)))"),
    (SECOND, "return x + self.output_norm(self.dropout(self.w_2(inner)))"),
)
add(
    "layer_without_shortcuts",
    "You do not add what came in; each part's result is added to its input.",
    (FIRST, "x = self.attention_norm(self.dropout(self.attention(x, mask)))"),
    (SECOND, "return self.output_norm(self.dropout(self.w_2(inner)))"),
)
add(
    "layer_second_shortcut_from_input",
    "Your second residual connection starts from the layer's input; it starts after the first "
    "norm.",
    (FIRST, "whole = x\n        " + FIRST),
    (SECOND, "return self.output_norm(whole + self.dropout(self.w_2(inner)))"),
)
add(
    "layer_first_shortcut_missing",
    "You normalise what the attention returns alone; add it to what came in.",
    (FIRST, "x = self.attention_norm(self.dropout(self.attention(x, mask)))"),
)
add(
    "layer_second_shortcut_missing",
    "You normalise the feed-forward part alone; add it to what came in.",
    (SECOND, "return self.output_norm(self.dropout(self.w_2(inner)))"),
)
add(
    "layer_without_attention_norm",
    "Nothing is normalised between attention and feed-forward part; attention_norm belongs there.",
    (FIRST, "x = x + self.dropout(self.attention(x, mask))"),
)
add(
    "layer_without_output_norm",
    "Your layer ends without output_norm.",
    (SECOND, "return x + self.dropout(self.w_2(inner))"),
)
add(
    "layer_norms_exchanged",
    "Your two norms stand in each other's position: attention_norm follows the attention.",
    (FIRST, "x = self.output_norm(x + self.dropout(self.attention(x, mask)))"),
    (SECOND, "return self.attention_norm(x + self.dropout(self.w_2(inner)))"),
)
add(
    "layer_relu",
    "Between w_1 and w_2 you use ReLU; BERT uses GELU.",
    (INNER, "inner = torch.relu(self.w_1(x))"),
)
add(
    "layer_gelu_by_tanh",
    "Between w_1 and w_2 you use the approximation of GELU by tanh; use your gelu, which is exact.",
    (INNER, 'inner = F.gelu(self.w_1(x), approximate="tanh")'),
)
add(
    "layer_without_activation",
    "There is no activation between w_1 and w_2: two linear layers in a row are one.",
    (INNER, "inner = self.w_1(x)"),
)
add(
    "layer_activation_after_w_2",
    "Your gelu comes after w_2; it belongs between w_1 and w_2.",
    (INNER, "inner = self.w_1(x)"),
    ("self.w_2(inner)", "gelu(self.w_2(inner))"),
)
add(
    "layer_feed_forward_first",
    "Your feed-forward part comes first; attention does.",
    (FIRST, "x = self.output_norm(x + self.dropout(self.w_2(gelu(self.w_1(x)))))"),
    (INNER, "pass"),
    (SECOND, "return self.attention_norm(x + self.dropout(self.attention(x, mask)))"),
)
add(
    "layer_one_head",
    "Your attention always has a single head; pass num_heads on to it.",
    ("SelfAttention(d_model, num_heads, dropout)", "SelfAttention(d_model, 1, dropout)"),
)
add(
    "layer_mask_not_passed",
    "The mask does not reach the attention; pass it on.",
    ("self.attention(x, mask)", "self.attention(x)"),
)
add(
    "layer_mask_kept",
    "Without a mask you take the one of an earlier call; None means that all tokens are real.",
    (
        "x = self.attention_norm(",
        "kept = getattr(self, 'kept', None)\n"
        "        if mask is None and kept is not None and kept.shape == x.shape[:2]:\n"
        "            mask = kept\n"
        "        self.kept = mask\n"
        "        x = self.attention_norm(",
    ),
)
add(
    "layer_attention_without_dropout",
    "Your attention never hears of dropout; pass it on.",
    ("SelfAttention(d_model, num_heads, dropout)", "SelfAttention(d_model, num_heads)"),
)
add(
    "layer_attention_result_not_dropped",
    "Dropout does not act on what the attention returns; apply it before the sum.",
    ("self.dropout(self.attention(x, mask))", "self.attention(x, mask)"),
)
add(
    "layer_feed_forward_not_dropped",
    "Dropout does not act on what w_2 returns; apply it before the sum.",
    ("self.dropout(self.w_2(inner))", "self.w_2(inner)"),
)
add(
    "layer_dropout_inside",
    "You drop between w_1 and w_2 as well; BERT drops only what each part returns, and weights.",
    (INNER, "inner = self.dropout(gelu(self.w_1(x)))"),
)
add(
    "layer_dropout_after_norm",
    "You drop after the norms; dropout acts on what each part returns, before the sum.",
    (FIRST, "x = self.dropout(self.attention_norm(x + self.attention(x, mask)))"),
    (SECOND, "return self.dropout(self.output_norm(x + self.w_2(inner)))"),
)
add(
    "layer_output_dropped",
    "You drop what the last norm returns as well; dropout acts on what each part returns, before "
    "the sum.",
    (SECOND, "return self.dropout(self.output_norm(x + self.dropout(self.w_2(inner))))"),
)
add(
    "layer_sums_dropped",
    "You drop the sums, and with them what came in; dropout acts on what each part returns, before "
    "the sum.",
    (FIRST, "x = self.attention_norm(self.dropout(x + self.attention(x, mask)))"),
    (SECOND, "return self.output_norm(self.dropout(x + self.w_2(inner)))"),
)
add(
    "layer_dropped_as_wholes",
    "You drop a part's whole vector, as stochastic depth does; dropout decides for every entry "
    "anew.",
    (
        FIRST,
        "y = self.attention(x, mask)\n"
        "        x = self.attention_norm(x + y * self.dropout(torch.ones_like(y[..., :1])))",
    ),
    (
        SECOND,
        "y = self.w_2(inner)\n"
        "        return self.output_norm(x + y * self.dropout(torch.ones_like(y[..., :1])))",
    ),
)
add(
    "layer_eps",
    "Your norms have the eps of nn.LayerNorm, 1e-5; BERT's is 1e-12.",
    (
        "self.attention_norm = nn.LayerNorm(d_model, eps=1e-12)",
        "self.attention_norm = nn.LayerNorm(d_model)",
    ),
    (
        "self.output_norm = nn.LayerNorm(d_model, eps=1e-12)",
        "self.output_norm = nn.LayerNorm(d_model)",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "BertModel", "brt-encoder")
POOLED = "torch.tanh(self.pooler(x[:, 0]))"
STACK = "BertLayer(d_model, num_heads, d_ff, dropout) for _ in range(num_layers)"
add(
    "model_pooler_without_tanh",
    "Your pooled vector is pooler(h) as it is; tanh comes after it.",
    (POOLED, "self.pooler(x[:, 0])"),
)
add(
    "model_pooler_before_linear",
    "You take tanh first and the linear layer then; it is tanh(pooler(h)).",
    (POOLED, "self.pooler(torch.tanh(x[:, 0]))"),
)
add(
    "model_pooler_unused",
    "Your pooled vector is the hidden state of [CLS] as it is; pooler and tanh come after it.",
    (POOLED, "x[:, 0]"),
)
add(
    "model_pooler_mean",
    "You pool the mean over all tokens; BERT's pooler reads the first one, [CLS].",
    (POOLED, "torch.tanh(self.pooler(x.mean(dim=1)))"),
)
add(
    "model_pooler_max",
    "You pool the maximum over all tokens; BERT's pooler reads the first one, [CLS].",
    (POOLED, "torch.tanh(self.pooler(x.amax(dim=1)))"),
)
add(
    "model_pooler_last",
    "You pool the last token; BERT's pooler reads the first one, [CLS].",
    (POOLED, "torch.tanh(self.pooler(x[:, -1]))"),
)
add(
    "model_pooler_first_example",
    "You pool the first example of the batch, not the first token of each; take x[:, 0].",
    (POOLED, "torch.tanh(self.pooler(x[0]))"),
)
add(
    "model_pooler_reads_embeddings",
    "Your pooler reads the embeddings; it reads what the last layer returns.",
    ("for layer in self.layers:", "first = x[:, 0]\n        for layer in self.layers:"),
    (POOLED, "torch.tanh(self.pooler(first))"),
)
add(
    "model_results_exchanged",
    "You return the pooled vector first; the hidden states come first.",
    ("return x, " + POOLED, "return " + POOLED + ", x"),
)
add(
    "model_hidden_only",
    "You return the hidden states alone; the pooled vector belongs to the result.",
    ("return x, " + POOLED, "return x"),
)
add(
    "model_layers_shared",
    "All your layers are one module; every layer has parameters of its own.",
    (
        f"self.layers = nn.ModuleList(\n            {STACK}\n        )",
        "layer = BertLayer(d_model, num_heads, d_ff, dropout)\n"
        "        self.layers = nn.ModuleList([layer] * num_layers)",
    ),
)
add(
    "model_not_initialised",
    "Your weights begin as PyTorch draws them; apply init_weights, which is given, at the end.",
    ("init_weights(self)", "pass"),
)
add(
    "model_layers_begin_alike",
    "Your layers are copies of one that was drawn before, and begin with the same numbers; draw "
    "those of each for itself.",
    (
        "init_weights(self)",
        "init_weights(self)\n"
        "        for layer in self.layers[1:]:\n"
        "            layer.load_state_dict(self.layers[0].state_dict())",
    ),
)
add(
    "model_scaled_by_depth",
    "You make weights smaller in deep models, as GPT-2 does; BERT's all begin with a deviation of "
    "0.02.",
    (
        "init_weights(self)",
        "init_weights(self)\n"
        "        for layer in self.layers:\n"
        "            layer.w_2.weight.data *= (2 * num_layers) ** -0.5\n"
        "            layer.attention.out_proj.weight.data *= (2 * num_layers) ** -0.5",
    ),
)
add(
    "model_pad_begins_as_zeros",
    "The embedding of PAD begins as zeros; no row of an embedding is special, so leave it as "
    "init_weights has drawn it.",
    (
        "init_weights(self)",
        "init_weights(self)\n        nn.init.zeros_(self.embeddings.token.weight[PAD].detach())",
    ),
)
add(
    "model_layer_missing",
    "You make one layer too few.",
    ("range(num_layers)", "range(num_layers - 1)"),
)
add(
    "model_layers_read_embeddings",
    "Each of your layers reads the embeddings, so that only the last one counts; each reads what "
    "the one before returned.",
    ("for layer in self.layers:", "start = x\n        for layer in self.layers:"),
    ("x = layer(x, mask)", "x = layer(start, mask)"),
)
add(
    "model_layers_backwards",
    "Your layers run from last to first.",
    ("for layer in self.layers:", "for layer in reversed(self.layers):"),
)
add(
    "model_mask_not_passed",
    "The mask does not reach the layers; pass it to each.",
    ("x = layer(x, mask)", "x = layer(x)"),
)
add(
    "model_mask_first_layer_only",
    "Only your first layer gets the mask; every layer needs it.",
    ("x = layer(x, mask)", "x, mask = layer(x, mask), None"),
)
add(
    "model_mask_from_ids",
    "You make the mask from PAD yourself and ignore the one that is given.",
    ("x = layer(x, mask)", "x = layer(x, input_ids != PAD)"),
)
add(
    "model_mask_kept",
    "Without a mask you take the one of an earlier call; None means that all tokens are real.",
    (
        "        for layer in self.layers:",
        "        kept = getattr(self, 'kept', None)\n"
        "        if mask is None and kept is not None and kept.shape == input_ids.shape:\n"
        "            mask = kept\n"
        "        self.kept = mask\n"
        "        for layer in self.layers:",
    ),
)
add(
    "model_segments_not_passed",
    "The segment ids do not reach the embeddings; pass them on.",
    ("self.embeddings(input_ids, token_type_ids)", "self.embeddings(input_ids)"),
)
add(
    "model_segments_from_mask",
    "Where a mask comes without segment ids, your real tokens are of segment 1; without segment "
    "ids all are of segment 0.",
    (
        "x = self.embeddings(input_ids, token_type_ids)",
        "if token_type_ids is None and mask is not None:\n"
        "            token_type_ids = mask.long()\n"
        "        x = self.embeddings(input_ids, token_type_ids)",
    ),
)
add(
    "model_embeddings_without_dropout",
    "Your embeddings never hear of dropout; pass it on.",
    ("max_length, type_vocab_size, dropout)", "max_length, type_vocab_size)"),
)
add(
    "model_dropout_not_by_default",
    "Unless dropout is given, yours is 0; it is 0.1 then.",
    ("dropout: float = 0.1", "dropout: float = 0.0"),
)
add(
    "model_pooler_dropped",
    "You drop features before or after the pooler; it has no dropout.",
    (
        "self.pooler = nn.Linear(d_model, d_model)",
        "self.pooler = nn.Linear(d_model, d_model)\n        self.dropout = nn.Dropout(dropout)",
    ),
    (POOLED, "torch.tanh(self.pooler(self.dropout(x[:, 0])))"),
)
add(
    "model_layers_without_dropout",
    "Your layers never hear of dropout; pass it on.",
    (STACK, "BertLayer(d_model, num_heads, d_ff) for _ in range(num_layers)"),
)
add(
    "model_sizes_not_passed",
    "Not every size reaches your embeddings, which have 512 positions and two segments unless they "
    "are told; pass max_length and type_vocab_size on.",
    (
        "BertEmbeddings(vocab_size, d_model, max_length, type_vocab_size, dropout)",
        "BertEmbeddings(vocab_size, d_model, dropout=dropout)",
    ),
)

# --------------------------------------------------------------------------------------------
# Parameters: their number and their names
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "count_parameters", "brt-parameters")
EMBEDDED = "embeddings = (vocab_size + max_length + type_vocab_size) * d_model + norm"
INSIDE = "d_model * d_ff + d_ff + d_ff * d_model + d_model + norm"
add(
    "count_without_biases",
    "You count the matrices of linear layers and forget their biases.",
    ("square = d_model * d_model + d_model", "square = d_model * d_model"),
    (INSIDE, "d_model * d_ff + d_ff * d_model + norm"),
    ("total += masked + 2 * d_model + 2", "total += masked + 2 * d_model"),
)
add(
    "count_feed_forward_without_biases",
    "You forget the biases of w_1 and w_2: F numbers and D numbers for each layer.",
    (INSIDE, "d_model * d_ff + d_ff * d_model + norm"),
)
add(
    "count_attention_without_biases",
    "You forget the biases of the four projections in the attention.",
    ("attention = 4 * square + norm", "attention = 4 * d_model * d_model + norm"),
)
add(
    "count_without_norms",
    "You forget the norms: each has a weight and a bias of width D.",
    ("norm = 2 * d_model", "norm = 0"),
)
add(
    "count_norms_without_bias",
    "You count D numbers for a norm; it has a weight and a bias, 2 D.",
    ("norm = 2 * d_model", "norm = d_model"),
)
add(
    "count_embeddings_without_norm",
    "You forget the norm of the embeddings.",
    (EMBEDDED, "embeddings = (vocab_size + max_length + type_vocab_size) * d_model"),
)
add(
    "count_one_norm_per_layer",
    "You count one norm for each layer; there are two, after the attention and at the end.",
    (INSIDE, "d_model * d_ff + d_ff + d_ff * d_model + d_model"),
)
add(
    "count_tokens_only",
    "You count the token embedding only; positions and segments have embeddings too.",
    (EMBEDDED, "embeddings = vocab_size * d_model + norm"),
)
add(
    "count_without_segments",
    "You forget the embedding of the segments.",
    ("(vocab_size + max_length + type_vocab_size)", "(vocab_size + max_length)"),
)
add(
    "count_without_pooler",
    "You forget the pooler, a linear layer from D to D.",
    ("num_layers * (attention + feed_forward) + square", "num_layers * (attention + feed_forward)"),
)
add(
    "count_three_projections",
    "You count three projections in the attention; there are four, out_proj included.",
    ("attention = 4 * square + norm", "attention = 3 * square + norm"),
)
add(
    "count_feed_forward_once",
    "You count one of the two linear layers of the feed-forward part.",
    (INSIDE, "d_model * d_ff + d_ff + norm"),
)
add(
    "count_biases_of_feed_forward_exchanged",
    "Your biases of w_1 and w_2 have one length; that of w_1 is F long, that of w_2 is D long.",
    (INSIDE, "d_model * d_ff + d_model + d_ff * d_model + d_model + norm"),
)
add(
    "count_one_layer",
    "You count the parameters of one layer; there are num_layers of them.",
    ("num_layers * (attention + feed_forward)", "(attention + feed_forward)"),
)
add(
    "count_table_twice",
    "You count the matrix of the head for tokens again; it is the token embedding, counted once.",
    (
        "masked = square + norm + vocab_size",
        "masked = square + norm + vocab_size + vocab_size * d_model",
    ),
)
add(
    "count_head_without_transform",
    "You forget the head's own linear layer from D to D and its norm, before the embedding.",
    ("masked = square + norm + vocab_size", "masked = vocab_size"),
)
add(
    "count_head_without_bias",
    "You forget the bias of the language model's head, one number for each word.",
    ("masked = square + norm + vocab_size", "masked = square + norm"),
)
add(
    "count_without_nsp",
    "You forget the head of next-sentence prediction, a linear layer from D to 2.",
    ("total += masked + 2 * d_model + 2", "total += masked"),
)
add(
    "count_heads_always",
    "You count the heads of pre-training always; they count with heads=True only.",
    ("if heads:", "if True:"),
)
add(
    "count_float",
    "Your number is a float; use whole numbers only, so // for /.",
    ("return total", "return total / 1"),
)

add = mistakes_in(MISCONCEPTIONS, "rename_parameters", "brt-checkpoint")
add(
    "rename_query_and_key_exchanged",
    "You put the query's tensors under the key's name and the other way round.",
    ('"attention.self.query": "attention.q_proj"', '"attention.self.query": "attention.k_proj"'),
    ('"attention.self.key": "attention.k_proj"', '"attention.self.key": "attention.q_proj"'),
)
add(
    "rename_norms_exchanged",
    "You exchange the two norms of a layer: attention.output.LayerNorm is attention_norm.",
    (
        '"attention.output.LayerNorm": "attention_norm"',
        '"attention.output.LayerNorm": "output_norm"',
    ),
    ('"output.LayerNorm": "output_norm"', '"output.LayerNorm": "attention_norm"'),
)
add(
    "rename_outputs_confused",
    "Both attention.output.dense and output.dense end up as one name, so that a tensor is lost; "
    "the "
    "first is attention.out_proj.",
    ('"attention.output.dense": "attention.out_proj"', '"attention.output.dense": "w_2"'),
)
add(
    "rename_feed_forward_exchanged",
    "You exchange w_1 and w_2: intermediate.dense is w_1, output.dense is w_2.",
    ('"intermediate.dense": "w_1"', '"intermediate.dense": "w_2"'),
    ('"output.dense": "w_2"', '"output.dense": "w_1"'),
)
add(
    "rename_positions_and_segments_exchanged",
    "You exchange two embeddings: token_type_embeddings are the segments.",
    ('"embeddings.position"', '"embeddings.segment "'),
    (
        '"embeddings.token_type_embeddings": "embeddings.segment"',
        '"embeddings.token_type_embeddings": "embeddings.position"',
    ),
    (
        "renamed = {}",
        'parts["embeddings.position_embeddings"] = "embeddings.segment"\n    renamed = {}',
    ),
)
add(
    "rename_prefix_lost",
    "You take the prefix bert. away; a name that had it keeps it.",
    ('prefix = "bert." if part.startswith("bert.") else ""', 'prefix = ""'),
)
add(
    "rename_prefix_always",
    "You put bert. before names that had no prefix; only those that had it keep it.",
    (
        'prefix = "bert." if part.startswith("bert.") else ""',
        'prefix = "" if part in heads else "bert."',
    ),
)
add(
    "rename_prefix_not_understood",
    "You refuse names that begin with bert.; they are those of a checkpoint with heads.",
    ('inside = part.removeprefix("bert.")', "inside = part"),
)
add(
    "rename_unknown_half_renamed",
    "You rename what you know in a name that you do not know, as a chain of replacements does, and "
    "keep it; refuse it with a ValueError.",
    (
        'raise ValueError(f"{name} is no parameter of BERT that we know")',
        'renamed[name.replace("encoder.layer", "layers")] = tensor\n            continue',
    ),
)
add(
    "rename_layers_from_1",
    "Your layers count from 1; the numbers stay as they are.",
    ('f"{prefix}layers.{words[2]}.', 'f"{prefix}layers.{int(words[2]) + 1}.'),
)
add(
    "rename_one_digit",
    "You read one digit of the layer's number: layer 10 becomes layer 1.",
    ('f"{prefix}layers.{words[2]}.', 'f"{prefix}layers.{words[2][0]}.'),
)
add(
    "rename_decoder_kept",
    "You keep cls.predictions.decoder; it is the token embedding once more, and is left out.",
    (
        'if name.startswith("cls.predictions.decoder.") or name.endswith("position_ids"):',
        'if name.startswith("cls.predictions.decoder."):\n'
        '            renamed[name.replace("cls.predictions", "mlm")] = tensor\n'
        '        if name.startswith("cls.predictions.decoder.") or name.endswith("position_ids"):',
    ),
)
add(
    "rename_decoder_refused",
    "You refuse cls.predictions.decoder; it is the token embedding once more, and is left out.",
    ('name.startswith("cls.predictions.decoder.") or ', ""),
)
add(
    "rename_position_ids_refused",
    "You refuse position_ids; it is a list of numbers that older checkpoints hold, and is left "
    "out.",
    (' or name.endswith("position_ids")', ""),
)
add(
    "rename_position_ids_kept",
    "You keep position_ids, which is no parameter; leave it out.",
    (
        ' or name.endswith("position_ids"):',
        ":\n            continue\n"
        '        if name.endswith("position_ids"):\n'
        "            renamed[name] = tensor",
    ),
)
add(
    "rename_unknown_dropped",
    "You drop a name that you do not know; refuse it with a ValueError, or a weight is lost in "
    "silence.",
    ('raise ValueError(f"{name} is no parameter of BERT that we know")', "continue"),
)
add(
    "rename_unknown_kept",
    "You keep a name that you do not know; refuse it with a ValueError.",
    (
        'raise ValueError(f"{name} is no parameter of BERT that we know")',
        "renamed[name] = tensor\n            continue",
    ),
)
add(
    "rename_beginnings_compared",
    "You accept a name for its beginning, whatever comes after it; compare all of it, or an "
    "unknown name passes unseen.",
    (
        'words = inside.split(".")',
        "inside = next((each for each in parts if inside.startswith(each)), inside)\n"
        '        words = inside.split(".")',
    ),
)
add(
    "rename_old_norms_refused",
    "You do not know the names gamma and beta, by which old checkpoints call a norm's weight and "
    "bias.",
    ('{"gamma": "weight", "beta": "bias"}.get(ending, ending)', "ending"),
)
add(
    "rename_gamma_and_beta_exchanged",
    "gamma becomes the weight of a norm and beta the bias; yours is the other way round.",
    ('{"gamma": "weight", "beta": "bias"}', '{"gamma": "bias", "beta": "weight"}'),
)
add(
    "rename_span_head_kept",
    "You keep the name qa_outputs; our span finder calls this layer classifier.",
    ('"qa_outputs": "classifier"', '"qa_outputs": "qa_outputs"'),
)
add(
    "rename_pooler_dense",
    "You keep the word dense in the name of the pooler, which is a linear layer itself.",
    ('"pooler.dense": "pooler"', '"pooler.dense": "pooler.dense"'),
)
add(
    "rename_transposed",
    "You transpose weights; both sides keep them as PyTorch does.",
    (
        'renamed[f"{new}.{ending}"] = tensor',
        'renamed[f"{new}.{ending}"] = tensor.mT if tensor.dim() > 1 else tensor',
    ),
)
