"""Known mistakes of the chapter `bert`: the reference with one cell changed.

Each says to the student which mistake it is and what to do. Many stand in circulating notes and
code: inputs without the closing [SEP], position vectors that are appended instead of added, GELU by
tanh, pre-norm, a pooler that averages, a loss that ignores one of the two NSP classes, spans that
end before they start.

Within an exercise the order matters only where two mistakes give the same answers to everything
that a test asked: the first is then named.
"""

from __future__ import annotations

from autograder.units.variants import Misconception, mistakes_in

MISCONCEPTIONS: list[Misconception] = []

# --------------------------------------------------------------------------------------------
# Input and encoder
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "build_input", "brt-input")
LONGER = "longer = first if len(first) > len(second) else second"
PAIR = "return [CLS, *first, SEP, *second, SEP], segments"
SEGMENTS = "segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)"
SINGLE = "ids = [CLS, *first[: max_length - 2], SEP]"
add(
    "input_without_closing_sep",
    "Your input ends with the last token of the text; a [SEP] closes every piece, the last one "
    "too.",
    (SINGLE, "ids = [CLS, *first[: max_length - 2]]"),
    (SEGMENTS, "segments = [0] * (len(first) + 2) + [1] * len(second)"),
    (PAIR, "return [CLS, *first, SEP, *second], segments"),
)
add(
    "input_pair_without_closing_sep",
    "A pair ends with a [SEP] too: [CLS] A [SEP] B [SEP].",
    (SEGMENTS, "segments = [0] * (len(first) + 2) + [1] * len(second)"),
    (PAIR, "return [CLS, *first, SEP, *second], segments"),
)
add(
    "input_without_cls",
    "Your input does not begin with [CLS], whose output the heads for whole inputs read.",
    (SINGLE, "ids = [*first[: max_length - 2], SEP]"),
    (SEGMENTS, "segments = [0] * (len(first) + 1) + [1] * (len(second) + 1)"),
    (PAIR, "return [*first, SEP, *second, SEP], segments"),
)
add(
    "input_no_sep_between",
    "Nothing separates your two pieces; put a [SEP] behind the first.",
    (SEGMENTS, "segments = [0] * (len(first) + 1) + [1] * (len(second) + 1)"),
    (PAIR, "return [CLS, *first, *second, SEP], segments"),
)
add(
    "input_second_cls",
    "Your second piece begins with a [CLS] of its own; there is one only, at the very beginning.",
    (SEGMENTS, "segments = [0] * (len(first) + 2) + [1] * (len(second) + 2)"),
    (PAIR, "return [CLS, *first, SEP, CLS, *second, SEP], segments"),
)
add(
    "input_first_sep_in_segment_1",
    "The [SEP] behind the first piece belongs to it: its segment is 0.",
    (SEGMENTS, "segments = [0] * (len(first) + 1) + [1] * (len(second) + 2)"),
)
add(
    "input_last_sep_in_segment_0",
    "The [SEP] behind the second piece belongs to it: its segment is 1.",
    (SEGMENTS, "segments = [0] * (len(first) + 2) + [1] * len(second) + [0]"),
)
add(
    "input_one_segment",
    "All your segments are 0; the second piece and its [SEP] are segment 1.",
    (SEGMENTS, "segments = [0] * (len(first) + len(second) + 3)"),
)
add(
    "input_segments_from_1",
    "Your segments are 1 and 2; they count from 0.",
    ("return ids, [0] * len(ids)", "return ids, [1] * len(ids)"),
    (SEGMENTS, "segments = [1] * (len(first) + 2) + [2] * (len(second) + 1)"),
)
add(
    "input_cuts_second_only",
    "You shorten the second piece only; take tokens from the longer of the two, one at a time.",
    (LONGER, "longer = second or first"),
)
add(
    "input_cuts_first_only",
    "You shorten the first piece only; take tokens from the longer of the two, one at a time.",
    (LONGER, "longer = first or second"),
)
add(
    "input_tie_cuts_first",
    "Of two pieces of one length you shorten the first; it is the second that loses a token.",
    (LONGER, "longer = first if len(first) >= len(second) else second"),
)
add(
    "input_cuts_at_the_front",
    "You take tokens away at the beginning of a piece; take them from its end.",
    (SINGLE, "ids = [CLS, *first[max(len(first) - max_length + 2, 0) :], SEP]"),
    ("longer.pop()", "longer.pop(0)"),
)
add(
    "input_cuts_the_result",
    "You build the whole input and cut its end off, the closing [SEP] included; shorten the pieces "
    "first.",
    (SINGLE, "ids = [CLS, *first, SEP][:max_length]"),
    ("while len(first) + len(second) > max_length - 3:", "while False:"),
    (PAIR, "return [CLS, *first, SEP, *second, SEP][:max_length], segments[:max_length]"),
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
    "A piece without tokens is not refused; raise a ValueError.",
    ("if not first or (second is not None and not second):", "if False:"),
)
add(
    "input_empty_second_is_none",
    "An empty second piece is no missing one: refuse it with a ValueError. Ask whether it is None.",
    (
        "least = 3 if second is None else 5",
        "second = second or None\n    least = 3 if second is None else 5",
    ),
)
add(
    "input_no_room_accepted",
    "A max_length without room for one token of each piece is not refused; raise a ValueError.",
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
LOOK = "x = self.token(ids) + self.segment(segment_ids)"
PLACE = "x = x + self.position.weight[:length]"
LAST = "return self.dropout(self.norm(x))"
NORM = "self.norm = nn.LayerNorm(hidden, eps=1e-12)"
add(
    "embeddings_concatenated",
    "You join the three vectors end to end, so that the width is 3 D; add them, element by "
    "element.",
    (NORM, "self.norm = nn.LayerNorm(3 * hidden, eps=1e-12)"),
    (LOOK, "x = torch.cat([self.token(ids), self.segment(segment_ids)], dim=-1)"),
    (PLACE, "x = torch.cat([x, self.position.weight[:length].expand(len(ids), -1, -1)], dim=-1)"),
)
add(
    "embeddings_third_each",
    "You give each table a third of the width and join the three vectors; every table is D wide, "
    "and the vectors are added.",
    (
        "self.token = nn.Embedding(vocab_size, hidden)",
        "third = hidden // 3\n        self.token = nn.Embedding(vocab_size, hidden - 2 * third)",
    ),
    (
        "self.position = nn.Embedding(max_length, hidden)",
        "self.position = nn.Embedding(max_length, third)",
    ),
    (
        "self.segment = nn.Embedding(segments, hidden)",
        "self.segment = nn.Embedding(segments, third)",
    ),
    (LOOK, "x = torch.cat([self.token(ids), self.segment(segment_ids)], dim=-1)"),
    (PLACE, "x = torch.cat([x, self.position.weight[:length].expand(len(ids), -1, -1)], dim=-1)"),
)
add(
    "embeddings_without_segments",
    "You leave the segment vectors out; add them to the token and position vectors.",
    (LOOK, "x = self.token(ids)"),
)
add(
    "embeddings_no_segment_vector_by_default",
    "Without segment ids you add no segment vector; every token is then of segment 0, whose vector "
    "is added.",
    (
        "segment_ids = torch.zeros_like(ids)",
        "return self.dropout(self.norm(self.token(ids) + self.position.weight[:length]))",
    ),
)
add(
    "embeddings_segment_1_by_default",
    "Without segment ids you take segment 1; it is segment 0.",
    ("torch.zeros_like(ids)", "torch.ones_like(ids)"),
)
add(
    "embeddings_without_positions",
    "You leave the position vectors out; without them BERT sees a bag of words.",
    (PLACE, "pass"),
)
add(
    "embeddings_position_by_row",
    "Your positions follow the rows of the batch; they count the tokens within a row.",
    (PLACE, "x = x + self.position.weight[: len(ids)].unsqueeze(1)"),
)
add(
    "embeddings_positions_from_1",
    "Your first token has position 1; positions count from 0.",
    (PLACE, "x = x + self.position((torch.arange(length) + 1) % positions)"),
)
add(
    "embeddings_scaled",
    "You multiply the token vectors by sqrt(D), as the Transformer does; BERT does not.",
    ("self.token(ids) +", "math.sqrt(self.token.embedding_dim) * self.token(ids) +"),
)
add(
    "embeddings_without_norm",
    "You return the sum as it is; norm comes after it.",
    (LAST, "return self.dropout(x)"),
)
add(
    "embeddings_norm_of_token",
    "You normalise the token vectors and add the others afterwards; the norm takes the whole sum.",
    ("self.token(ids) +", "self.norm(self.token(ids)) +"),
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
    "embeddings_eps",
    "Your norm has the eps of nn.LayerNorm, 1e-5; BERT's is 1e-12.",
    (NORM, "self.norm = nn.LayerNorm(hidden)"),
)
add(
    "embeddings_padding_fixed",
    "With padding_idx the row of PAD never learns; the mask takes care of padding, so create "
    "nn.Embedding without it.",
    (
        "self.token = nn.Embedding(vocab_size, hidden)",
        "self.token = nn.Embedding(vocab_size, hidden, padding_idx=PAD)",
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
    "Your mask acts on the rows of the scores; it hides keys, which are the columns.",
    (MASKED, "None if mask is None else mask[:, None, :, None].expand(-1, -1, -1, length)"),
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
    "attention_mask_added_as_numbers",
    "You add the mask to the scores as 0 and 1, which hides nothing; fill the scores of hidden "
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
add(
    "attention_heads_interleaved",
    "Head h takes every H-th feature; its features stand next to each other, so cut the width into "
    "(H, D/H).",
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
    "attention_one_head",
    "You attend with a single head of the whole width; split the features into num_heads heads.",
    (
        "heads = (batch, length, self.num_heads, width // self.num_heads)",
        "heads = (batch, length, 1, width)",
    ),
)
add(
    "attention_query_and_key_exchanged",
    "Your keys ask and your queries answer; the weights of a row belong to one query.",
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
    "You drop features of the output; dropout acts on the weights.",
    (DROP, ""),
    (
        MERGE,
        "joined = F.dropout(joined, self.dropout, self.training)\n        "
        "return self.out_proj(joined.transpose(1, 2).reshape(batch, length, width))",
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
    ("if num_heads < 1 or hidden % num_heads != 0:", "if False:"),
)
add(
    "attention_without_biases",
    "Your projections of queries, keys and values have no bias; BERT's have one.",
    (
        "self.q_proj = nn.Linear(hidden, hidden)",
        "self.q_proj = nn.Linear(hidden, hidden, bias=False)",
    ),
    (
        "self.k_proj = nn.Linear(hidden, hidden)",
        "self.k_proj = nn.Linear(hidden, hidden, bias=False)",
    ),
    (
        "self.v_proj = nn.Linear(hidden, hidden)",
        "self.v_proj = nn.Linear(hidden, hidden, bias=False)",
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
    "Your second shortcut begins at the layer's input; it begins after the first norm.",
    (FIRST, "whole = x\n        " + FIRST),
    (SECOND, "return self.output_norm(whole + self.dropout(self.w_2(inner)))"),
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
    "Your two norms stand in each other's place: attention_norm follows the attention.",
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
    "layer_mask_not_passed",
    "The mask does not reach the attention; pass it on.",
    ("self.attention(x, mask)", "self.attention(x)"),
)
add(
    "layer_attention_without_dropout",
    "Your attention never hears of dropout; pass it on.",
    ("SelfAttention(hidden, num_heads, dropout)", "SelfAttention(hidden, num_heads)"),
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
    "layer_eps",
    "Your norms have the eps of nn.LayerNorm, 1e-5; BERT's is 1e-12.",
    (
        "self.attention_norm = nn.LayerNorm(hidden, eps=1e-12)",
        "self.attention_norm = nn.LayerNorm(hidden)",
    ),
    (
        "self.output_norm = nn.LayerNorm(hidden, eps=1e-12)",
        "self.output_norm = nn.LayerNorm(hidden)",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "BertModel", "brt-encoder")
POOLED = "torch.tanh(self.pooler(x[:, 0]))"
STACK = "BertLayer(hidden, num_heads, intermediate, dropout) for _ in range(num_layers)"
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
        "layer = BertLayer(hidden, num_heads, intermediate, dropout)\n"
        "        self.layers = nn.ModuleList([layer] * num_layers)",
    ),
)
add(
    "model_not_initialised",
    "Your weights begin as PyTorch draws them; apply init_weights, which is given, at the end.",
    ("init_weights(self)", "pass"),
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
    ("x = layer(x, mask)", "x = layer(x, ids != PAD)"),
)
add(
    "model_segments_not_passed",
    "The segment ids do not reach the embeddings; pass them on.",
    ("self.embeddings(ids, segment_ids)", "self.embeddings(ids)"),
)
add(
    "model_embeddings_without_dropout",
    "Your embeddings never hear of dropout; pass it on.",
    ("max_length, segments, dropout)", "max_length, segments)"),
)
add(
    "model_layers_without_dropout",
    "Your layers never hear of dropout; pass it on.",
    (STACK, "BertLayer(hidden, num_heads, intermediate) for _ in range(num_layers)"),
)
add(
    "model_sizes_not_passed",
    "Your embeddings always have 512 positions and two segments; pass max_length and segments on.",
    (
        "BertEmbeddings(vocab_size, hidden, max_length, segments, dropout)",
        "BertEmbeddings(vocab_size, hidden, dropout=dropout)",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "count_parameters", "brt-parameters")
EMBEDDED = "embeddings = (vocab_size + max_length + segments) * hidden + norm"
INSIDE = "hidden * intermediate + intermediate + intermediate * hidden + hidden + norm"
add(
    "count_without_biases",
    "You count the matrices of linear layers and forget their biases.",
    ("square = hidden * hidden + hidden", "square = hidden * hidden"),
    (INSIDE, "hidden * intermediate + intermediate * hidden + norm"),
    ("total += masked + 2 * hidden + 2", "total += masked + 2 * hidden"),
)
add(
    "count_without_norms",
    "You forget the norms: each has a weight and a bias of width D.",
    ("norm = 2 * hidden", "norm = 0"),
)
add(
    "count_norms_without_bias",
    "You count D numbers for a norm; it has a weight and a bias, 2 D.",
    ("norm = 2 * hidden", "norm = hidden"),
)
add(
    "count_embeddings_without_norm",
    "You forget the norm of the embeddings.",
    (EMBEDDED, "embeddings = (vocab_size + max_length + segments) * hidden"),
)
add(
    "count_one_norm_per_layer",
    "You count one norm for each layer; there are two, after the attention and at the end.",
    (INSIDE, "hidden * intermediate + intermediate + intermediate * hidden + hidden"),
)
add(
    "count_tokens_only",
    "You count the token table only; positions and segments have tables of width D too.",
    (EMBEDDED, "embeddings = vocab_size * hidden + norm"),
)
add(
    "count_without_segments",
    "You forget the table of the segments.",
    ("(vocab_size + max_length + segments)", "(vocab_size + max_length)"),
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
    (INSIDE, "hidden * intermediate + intermediate + norm"),
)
add(
    "count_biases_of_feed_forward_exchanged",
    "Your biases of w_1 and w_2 have one length; that of w_1 is F long, that of w_2 is D long.",
    (INSIDE, "hidden * intermediate + hidden + intermediate * hidden + hidden + norm"),
)
add(
    "count_one_layer",
    "You count the parameters of one layer; there are num_layers of them.",
    ("num_layers * (attention + feed_forward)", "(attention + feed_forward)"),
)
add(
    "count_table_twice",
    "You count the matrix of the language model's head again; it is the token table, counted once.",
    (
        "masked = square + norm + vocab_size",
        "masked = square + norm + vocab_size + vocab_size * hidden",
    ),
)
add(
    "count_head_without_transform",
    "You forget the head's own linear layer from D to D and its norm, which come before the table.",
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
    ("total += masked + 2 * hidden + 2", "total += masked"),
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
    "You exchange two tables: token_type_embeddings are the segments.",
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
    "You keep cls.predictions.decoder; it is the token table once more, and is left out.",
    (
        'if name.startswith("cls.predictions.decoder.") or name.endswith("position_ids"):',
        'if name.startswith("cls.predictions.decoder."):\n'
        '            renamed[name.replace("cls.predictions", "mlm")] = tensor\n'
        '        if name.startswith("cls.predictions.decoder.") or name.endswith("position_ids"):',
    ),
)
add(
    "rename_decoder_refused",
    "You refuse cls.predictions.decoder; it is the token table once more, and is left out.",
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

# --------------------------------------------------------------------------------------------
# Masking
# --------------------------------------------------------------------------------------------

# What both ways to mask have in common; each cell has these lines once.
LABELS = "labels = ids.masked_fill(~chosen, IGNORE)  # (B, T)"
FATE = "fate = torch.rand(ids.shape, device=ids.device)  # (B, T)"
OTHERS = "others = torch.randint_like(ids, SPECIAL, vocab_size)  # (B, T)"
HIDDEN = "corrupted = ids.masked_fill(chosen & (fate < 0.8), MASK)  # (B, T)"
REPLACED = "corrupted = torch.where(chosen & (fate >= 0.9), others, corrupted)  # (B, T)"
RESULT = "    return corrupted, labels\n"
RATE_CHECKED = "if not 0 <= rate <= 1:"
VOCABULARY_CHECKED = "if vocab_size <= SPECIAL:"

add = mistakes_in(MISCONCEPTIONS, "mask_tokens", "brt-masking")
CHOSEN = "chosen = (ids >= SPECIAL) & (torch.rand(ids.shape, device=ids.device) < rate)  # (B, T)"
add(
    "mask_always",
    "Every chosen token becomes MASK; 10 percent should become a random token and 10 percent stay, "
    "since fine-tuning never shows a MASK.",
    (HIDDEN, "corrupted = ids.masked_fill(chosen, MASK)"),
    (REPLACED, ""),
    read="brt-mismatch",
)
add(
    "mask_never_kept",
    "No chosen token stays as it is; of the 20 percent that do not become MASK one half stays.",
    ("fate >= 0.9", "fate >= 0.8"),
)
add(
    "mask_never_random",
    "No chosen token becomes a random one; of the 20 percent that do not become MASK one half "
    "does.",
    (REPLACED, ""),
)
add(
    "mask_rest_drawn_twice",
    "You draw again for the tokens that do not become MASK and replace 10 percent of those, which "
    "is 2 percent of the chosen; it should be 10, half of the rest.",
    ("chosen & (fate >= 0.9)", "chosen & (fate >= 0.8) & (torch.rand(ids.shape) < 0.1)"),
)
add(
    "mask_chosen_without_kept",
    "A chosen token that stays as it is has no label in your result; it is to be predicted like "
    "the others, so keep its original id in labels.",
    (RESULT, "    return corrupted, ids.masked_fill(corrupted == ids, IGNORE)\n"),
)
add(
    "mask_all_tokens",
    "You corrupt tokens that were not chosen: the 80, 10 and 10 percent are shares of the chosen "
    "tokens, not of all.",
    (HIDDEN, "corrupted = ids.masked_fill((ids >= SPECIAL) & (fate < 0.8), MASK)"),
    ("chosen & (fate >= 0.9)", "(ids >= SPECIAL) & (fate >= 0.9)"),
)
add(
    "mask_one_draw_per_row",
    "One draw decides for a whole row, so that all of its tokens are chosen or none; draw a number "
    "for each token.",
    ("torch.rand(ids.shape, device=ids.device) < rate", "torch.rand(len(ids), 1) < rate"),
)
add(
    "mask_one_fate_per_row",
    "One draw decides what becomes of all the chosen tokens of a row; draw a number for each "
    "token.",
    (FATE, "fate = torch.rand(len(ids), 1)"),
)
add(
    "mask_fixed_number",
    "You choose the same number of tokens in every row; each token is to be chosen on its own, so "
    "that the number is left to chance.",
    (
        CHOSEN,
        "lots = torch.rand(ids.shape).masked_fill(ids < SPECIAL, 2.0)\n"
        "    count = ((ids >= SPECIAL).sum(1, keepdim=True) * rate).round()\n"
        "    chosen = lots.argsort(1).argsort(1) < count",
    ),
)
add(
    "mask_specials_chosen",
    "Special tokens such as CLS, SEP or padding are chosen too; only ids of SPECIAL and above may "
    "be.",
    (CHOSEN, "chosen = torch.rand(ids.shape) < rate"),
)
add(
    "mask_labels_everywhere",
    "Your labels hold every token, chosen or not; put IGNORE wherever nothing was chosen, or the "
    "model is trained to copy what it sees.",
    (LABELS, "labels = ids.clone()"),
)
add(
    "mask_labels_zero",
    "Your labels hold 0 where nothing was chosen; that is the id of PAD, which the loss would "
    "count. Put IGNORE there.",
    (LABELS, "labels = ids.masked_fill(~chosen, PAD)"),
)
add(
    "mask_labels_corrupted",
    "Your labels hold the tokens after corruption, MASK among them; they should hold the original "
    "ones.",
    (RESULT, "    return corrupted, corrupted.masked_fill(~chosen, IGNORE)\n"),
)
add(
    "mask_random_special",
    "Your random tokens are drawn from all ids, special ones among them; draw from SPECIAL to "
    "vocab_size - 1.",
    (OTHERS, "others = torch.randint_like(ids, 0, vocab_size)"),
)
add(
    "mask_last_id_missing",
    "The last id of the vocabulary is never drawn at random: the upper bound of torch.randint is "
    "not drawn itself, so give it vocab_size.",
    (OTHERS, "others = torch.randint_like(ids, SPECIAL, vocab_size - 1)"),
)
add(
    "mask_one_random_id",
    "All tokens that are replaced at random get the same id; draw one for each.",
    (OTHERS, "others = torch.randint(SPECIAL, vocab_size, (1,))"),
)
add(
    "mask_in_place",
    "You write into the ids that you were given; the caller still needs them, so work on a copy.",
    (LABELS, LABELS + "\n    ids[chosen] = ids[chosen]"),
    (HIDDEN, "corrupted = ids.masked_fill_(chosen & (fate < 0.8), MASK)"),
)
add(
    "mask_rate_unchecked",
    "A rate below 0 or above 1 is not refused; raise a ValueError.",
    (RATE_CHECKED, "if False:"),
)
add(
    "mask_vocabulary_unchecked",
    "A vocabulary without ordinary ids is not refused; raise a ValueError if vocab_size is SPECIAL "
    "or less.",
    (VOCABULARY_CHECKED, "if False:"),
    (OTHERS, "others = torch.randint_like(ids, SPECIAL, max(vocab_size, SPECIAL + 1))"),
)

add = mistakes_in(MISCONCEPTIONS, "mask_whole_words", "brt-whole-words")
DRAWN = "chosen = drawn[word] & ordinary  # (B, T)"
BEGINS = "begins = ordinary & (starts | alone)  # (B, T)"
add(
    "words_by_pieces",
    "Each piece is chosen on its own, as in mask_tokens; draw once for a word and choose all its "
    "pieces or none.",
    (DRAWN, "chosen = (torch.rand(ids.shape) < rate) & ordinary"),
)
add(
    "words_first_piece_only",
    "Only the first piece of a chosen word is chosen; its later pieces, where starts is False, "
    "belong to it.",
    (DRAWN, "chosen = drawn[word] & begins"),
)
add(
    "words_one_fate",
    "One draw decides what becomes of all the pieces of a word; the 80, 10 and 10 percent are "
    "drawn for each piece.",
    (FATE, "fate = torch.rand(words + 1)[word]"),
)
add(
    "words_across_rows",
    "A word goes on at the beginning of the next row, or after a special token; both end a word.",
    (BEGINS, "begins = ordinary & starts"),
)
add(
    "words_across_specials",
    "A word goes on after a special token; that ends a word, and what follows is another.",
    ("alone[:, 1:] &= ~ordinary[:, :-1]", "alone[:, 1:] = False"),
)
add(
    "words_one_draw_per_row",
    "One draw decides for all words of a row; draw once for each word.",
    (DRAWN, "chosen = (torch.rand(len(ids), 1) < rate) & ordinary"),
)
add(
    "words_fixed_number",
    "You choose a fixed number of words in a batch; each word is to be chosen on its own.",
    (
        "drawn = torch.rand(words + 1, device=ids.device) < rate",
        "drawn = torch.cat([torch.tensor([False]), torch.randperm(words) < round(rate * words)])",
    ),
)
add(
    "words_always",
    "Every piece of a chosen word becomes MASK; 10 percent should become a random token and 10 "
    "percent stay.",
    (HIDDEN, "corrupted = ids.masked_fill(chosen, MASK)"),
    (REPLACED, ""),
    read="brt-masking",
)
add(
    "words_never_kept",
    "No piece of a chosen word stays as it is; of the 20 percent that do not become MASK one half "
    "stays.",
    ("fate >= 0.9", "fate >= 0.8"),
    read="brt-masking",
)
add(
    "words_never_random",
    "No piece of a chosen word becomes a random token; of the 20 percent that do not become MASK "
    "one half does.",
    (REPLACED, ""),
    read="brt-masking",
)
add(
    "words_specials_chosen",
    "A special token after a chosen word is chosen with it; special tokens belong to no word.",
    (DRAWN, "chosen = drawn[word]"),
)
add(
    "words_all_tokens",
    "You corrupt pieces of words that were not chosen; the 80, 10 and 10 percent are shares of the "
    "chosen pieces.",
    (LABELS, "labels = ids.masked_fill(~(chosen & begins), IGNORE)"),
)
add(
    "words_labels_everywhere",
    "Your labels hold every token, chosen or not; put IGNORE wherever no word was chosen.",
    (LABELS, "labels = ids.clone()"),
    read="brt-masking",
)
add(
    "words_labels_zero",
    "Your labels hold 0 where no word was chosen; that is the id of PAD. Put IGNORE there.",
    (LABELS, "labels = ids.masked_fill(~chosen, PAD)"),
    read="brt-masking",
)
add(
    "words_labels_corrupted",
    "Your labels hold the tokens after corruption; they should hold the original ones.",
    (RESULT, "    return corrupted, corrupted.masked_fill(~chosen, IGNORE)\n"),
    read="brt-masking",
)
add(
    "words_random_special",
    "Your random tokens are drawn from all ids, special ones among them; draw from SPECIAL to "
    "vocab_size - 1.",
    (OTHERS, "others = torch.randint_like(ids, 0, vocab_size)"),
    read="brt-masking",
)
add(
    "words_last_id_missing",
    "The last id of the vocabulary is never drawn at random: the upper bound of torch.randint is "
    "not drawn itself.",
    (OTHERS, "others = torch.randint_like(ids, SPECIAL, vocab_size - 1)"),
    read="brt-masking",
)
add(
    "words_in_place",
    "You write into the ids that you were given; the caller still needs them, so work on a copy.",
    (HIDDEN, "corrupted = ids.masked_fill_(chosen & (fate < 0.8), MASK)"),
)
add(
    "words_unchecked",
    "A rate outside 0 to 1, or a vocabulary of special ids alone, is not refused; raise a "
    "ValueError.",
    (RATE_CHECKED, "if False:"),
    (VOCABULARY_CHECKED, "if False:"),
    (OTHERS, "others = torch.randint_like(ids, SPECIAL, max(vocab_size, SPECIAL + 1))"),
)

add = mistakes_in(MISCONCEPTIONS, "masking_epochs", "brt-roberta")
ANEW = "return [mask_tokens(ids, vocab_size, rate) for _ in range(epochs)]"
STORE = "store = [mask_tokens(ids, vocab_size, rate) for _ in range(duplicates)]"
IN_TURN = "store[epoch % duplicates]"
add(
    "epochs_drawn_once",
    "Without duplicates all your epochs share one masking; draw it anew for each.",
    (ANEW, "return [mask_tokens(ids, vocab_size, rate)] * epochs"),
)
add(
    "epochs_always_anew",
    "With duplicates=k every epoch is masked anew; draw k maskings once and use them in turn.",
    (IN_TURN, "mask_tokens(ids, vocab_size, rate)"),
)
add(
    "epochs_in_blocks",
    "You use each masking for a run of epochs before the next one comes; epoch e takes number "
    "e mod k.",
    (IN_TURN, "store[epoch * duplicates // epochs]"),
)
add(
    "epochs_store_exhausted",
    "After k epochs you stay with the last masking; begin again with the first: epoch e takes "
    "number e mod k.",
    (IN_TURN, "store[min(epoch, duplicates - 1)]"),
)
add(
    "epochs_drawn_from_store",
    "You draw one of the k maskings for each epoch; they are used in turn, epoch e takes number "
    "e mod k.",
    (IN_TURN, "random.choice(store)"),
)
add(
    "epochs_store_too_small",
    "You keep one masking too few, so that they come round too early; there are k of them.",
    (IN_TURN, "store[epoch % max(duplicates - 1, 1)]"),
)
add(
    "epochs_times_duplicates",
    "Your list has epochs times duplicates entries; it has one for each epoch.",
    (
        "return [store[epoch % duplicates] for epoch in range(epochs)]",
        "return store * epochs",
    ),
)
add(
    "epochs_masked_again",
    "An epoch masks what the one before has already corrupted; begin from the original ids each "
    "time.",
    (
        ANEW,
        "found = []\n        for _ in range(epochs):\n"
        "            found.append(mask_tokens(found[-1][0] if found else ids, vocab_size, rate))\n"
        "        return found",
    ),
)
add(
    "epochs_rate_forgotten",
    "The rate is not passed on to mask_tokens, which then takes its own default.",
    (ANEW, "return [mask_tokens(ids, vocab_size) for _ in range(epochs)]"),
    (STORE, "store = [mask_tokens(ids, vocab_size) for _ in range(duplicates)]"),
)
add(
    "epochs_unchecked",
    "Fewer than one epoch, or than one duplicate, is not refused; raise a ValueError.",
    ("if epochs < 1:", "if False:"),
    ("if duplicates < 1:", "if duplicates < 1:\n        duplicates = 1\n    if False:"),
)

# --------------------------------------------------------------------------------------------
# Pairs
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "next_sentence_pairs", "brt-pairs")
ELSEWHERE = "[s for n, other in enumerate(documents) if n != number for s in other]"
COIN = "if random.random() < 0.5:"
TRUE_PAIR = "pairs.append((first, second, 0))"
RANDOM_PAIR = "pairs.append((first, random.choice(others), 1))"
add(
    "pairs_same_document",
    "Your random sentences are drawn from all documents, the sentence's own among them; a random "
    "one may then be the true next one. Leave its own document out.",
    (ELSEWHERE, "[s for other in documents for s in other]"),
)
add(
    "pairs_labels_swapped",
    "Your label is 1 for a true next sentence; in BERT 0 means is next and 1 means random.",
    (TRUE_PAIR, "pairs.append((first, second, 1))"),
    (RANDOM_PAIR, "pairs.append((first, random.choice(others), 0))"),
    read="brt-nsp",
)
add(
    "pairs_document_first",
    "You draw a document and then one of its sentences, which favours those of short documents; "
    "draw evenly from all sentences of the other documents.",
    (
        ELSEWHERE,
        "[other for n, other in enumerate(documents) if n != number and other]",
    ),
    ("random.choice(others)", "random.choice(random.choice(others))"),
)
add(
    "pairs_from_next_document",
    "Your random sentences come from one other document only; draw from all the others.",
    (
        ELSEWHERE,
        "next(\n            other\n"
        "            for other in [*documents[number + 1 :], *documents[:number]]\n"
        "            if other\n        )",
    ),
)
add(
    "pairs_first_sentence_only",
    "Your random sentences are the first ones of other documents; draw from all their sentences.",
    (ELSEWHERE, "[o[0] for n, o in enumerate(documents) if n != number and o]"),
)
add(
    "pairs_always_next",
    "All your pairs are true ones; half of them should have a random second sentence.",
    (COIN, "if True:"),
)
add(
    "pairs_never_next",
    "All your second sentences are random; half of them should be the true next ones.",
    (COIN, "if False:"),
)
add(
    "pairs_alternate",
    "True and random pairs take turns; toss a coin for each pair.",
    (COIN, "if len(pairs) % 2 == 0:"),
)
add(
    "pairs_coin_per_document",
    "One coin decides for all pairs of a document; toss one for each pair.",
    (f"others = {ELSEWHERE}", f"others, coin = {ELSEWHERE}, random.random()"),
    (COIN, "if coin < 0.5:"),
)
add(
    "pairs_across_documents",
    "The last sentence of a document is paired with the first one of the next; a sentence without "
    "a next one in its own document makes no pair.",
    (
        "for first, second in itertools.pairwise(document):",
        "rest = [s for other in documents[number + 1 :] for s in other][:1]\n"
        "        for first, second in itertools.pairwise([*document, *rest] if document else []):",
    ),
)
add(
    "pairs_random_first",
    "In your random pairs the first sentence is the random one; the first stays, and the second is "
    "drawn.",
    (RANDOM_PAIR, "pairs.append((random.choice(others), second, 1))"),
)
add(
    "pairs_unchecked",
    "Fewer than two documents with sentences are not refused; there is then nothing to draw a "
    "random sentence from, so raise a ValueError.",
    ("if sum(bool(document) for document in documents) < 2:", "if False:"),
    ("random.choice(others)", "random.choice(others or [[]])"),
)

# --------------------------------------------------------------------------------------------
# Heads
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "MaskedLanguageHead", "brt-heads")
TRANSFORMED = "self.norm(gelu(self.dense(hidden)))"
SCORED = "transformed @ self.token.weight.T + self.bias"
TIED = "self.token = token"
add(
    "head_untied",
    "Your head works on a copy of the table, which goes its own way in training; keep the very "
    "embedding that you are given.",
    (
        TIED,
        "self.token = nn.Embedding.from_pretrained(token.weight.detach().clone(), freeze=False)",
    ),
)
add(
    "head_table_detached",
    "No gradient of the scores reaches the table; use its weight without detach or .data.",
    (SCORED, "transformed @ self.token.weight.detach().T + self.bias"),
)
add(
    "head_without_bias",
    "You do not add the bias; every token of the vocabulary has one of its own.",
    (SCORED, "transformed @ self.token.weight.T + 0 * self.bias.sum()"),
)
add(
    "head_without_activation",
    "There is no gelu between dense and norm.",
    (TRANSFORMED, "self.norm(self.dense(hidden))"),
)
add(
    "head_relu",
    "You use relu; the head's activation is gelu, as in the encoder.",
    (TRANSFORMED, "self.norm(torch.relu(self.dense(hidden)))"),
)
add(
    "head_gelu_by_tanh",
    "You use the approximation of gelu by tanh; use your own exact gelu.",
    (TRANSFORMED, 'self.norm(F.gelu(self.dense(hidden), approximate="tanh"))'),
)
add(
    "head_without_norm",
    "You leave out the norm after gelu.",
    (TRANSFORMED, "gelu(self.dense(hidden)) + 0 * self.norm(hidden)"),
)
add(
    "head_norm_before_gelu",
    "You normalise before gelu; the order is dense, gelu, norm.",
    (TRANSFORMED, "gelu(self.norm(self.dense(hidden)))"),
)
add(
    "head_without_dense",
    "You leave out the layer dense; it comes first, before gelu and norm.",
    (TRANSFORMED, "self.norm(gelu(hidden)) + 0 * self.dense(hidden)"),
)
add(
    "head_eps",
    "Your norm keeps PyTorch's eps of 1e-5; BERT's is 1e-12.",
    ("nn.LayerNorm(hidden, eps=1e-12)", "nn.LayerNorm(hidden)"),
)
add(
    "head_decoder_layer",
    "Your head has a linear layer of its own to the vocabulary; its parameters are dense, norm, "
    "bias and the embedding token that it is given.",
    (TIED, "self.decoder = nn.Linear(hidden, vocab_size)"),
    (SCORED, "self.decoder(transformed)"),
)

add = mistakes_in(MISCONCEPTIONS, "BertForPreTraining", "brt-heads")
HEAD = "self.mlm = MaskedLanguageHead(self.bert.embeddings.token)"
ENCODED = "hidden, pooled = self.bert(ids, segment_ids, mask)"
BOTH = "return self.mlm(hidden), self.nsp(pooled)"
add(
    "pretraining_untied",
    "The head has a table of its own, with as many numbers again; give it the model's own "
    "bert.embeddings.token.",
    (HEAD, "self.mlm = MaskedLanguageHead(nn.Embedding(vocab_size, hidden))"),
)
add(
    "pretraining_nsp_not_pooled",
    "You score the pair from the first token's vector as it is; nsp works on pooled, which has "
    "been through the pooler and tanh.",
    (BOTH, "return self.mlm(hidden), self.nsp(hidden[:, 0])"),
)
add(
    "pretraining_nsp_on_mean",
    "You score the pair from the mean over all places; nsp works on pooled, from the first token.",
    (BOTH, "return self.mlm(hidden), self.nsp(hidden.mean(dim=1))"),
)
add(
    "pretraining_segments_lost",
    "The segments never reach the encoder; pass segment_ids on.",
    (ENCODED, "hidden, pooled = self.bert(ids, None, mask)"),
)
add(
    "pretraining_mask_lost",
    "The mask never reaches the encoder, so that padding is attended to; pass it on.",
    (ENCODED, "hidden, pooled = self.bert(ids, segment_ids)"),
)
add(
    "pretraining_scores_exchanged",
    "You return the scores of the pair first; the scores of the tokens come first.",
    (BOTH, "return self.nsp(pooled), self.mlm(hidden)"),
)
add(
    "pretraining_softmaxed",
    "You return log-probabilities; return the scores as they are, the loss normalises them.",
    (
        BOTH,
        "return self.mlm(hidden).log_softmax(-1), self.nsp(pooled).log_softmax(-1)",
    ),
    read="brt-loss",
)
add(
    "pretraining_one_nsp_score",
    "Your nsp gives one score; it gives two, one for each answer.",
    ("self.nsp = nn.Linear(hidden, 2)", "self.nsp = nn.Linear(hidden, 1)"),
    read="brt-nsp",
)
add(
    "pretraining_segments_fixed",
    "The number of segments is not passed on to BertModel, nor is dropout.",
    ("max_length, segments, dropout", "max_length"),
)
add(
    "pretraining_dropout_lost",
    "dropout is not passed on to BertModel, which then takes its own default or none.",
    ("max_length, segments, dropout", "max_length, segments, 0.0"),
)

# --------------------------------------------------------------------------------------------
# Pre-training
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "pretraining_loss", "brt-loss")
IGNORED = "ignore_index=IGNORE,"
COUNTED = "mlm = total / (labels != IGNORE).sum().clamp(min=1)"
SUMMED = "return mlm + F.cross_entropy(nsp_scores, is_random)"
add(
    "loss_nsp_ignores_zero",
    "Your loss of the pairs leaves out class 0, as a loss with ignore_index=0 does that both tasks "
    "share: true pairs then teach nothing. Give it a loss of its own.",
    (SUMMED, "return mlm + F.cross_entropy(nsp_scores, is_random, ignore_index=0)"),
    read="brt-codertimo",
)
add(
    "loss_mlm_ignores_zero",
    "Labels of 0 are left out; what is left out is IGNORE, and 0 is a token like others here.",
    (
        IGNORED,
        "ignore_index=IGNORE,\n"
        "        weight=torch.arange(mlm_scores.shape[-1]).clamp(max=1).to(mlm_scores),",
    ),
    ("(labels != IGNORE)", "(labels > 0)"),
    read="brt-codertimo",
)
add(
    "loss_over_all_places",
    "You divide by all places; the mean goes over the places with a label only.",
    (COUNTED, "mlm = total / labels.numel()"),
)
add(
    "loss_nan_without_labels",
    "Without any label your loss is 0 / 0, and the gradient NaN; that part is then 0.",
    (COUNTED, "mlm = total / (labels != IGNORE).sum()"),
)
add(
    "loss_skips_without_labels",
    "Without any label you return 0 altogether; the pairs still count.",
    (SUMMED, "return (mlm + F.cross_entropy(nsp_scores, is_random)) * bool((labels >= 0).any())"),
)
add(
    "loss_mlm_summed",
    "You add up the losses of the masked places; take their mean.",
    (COUNTED, "mlm = total"),
)
add(
    "loss_nsp_summed",
    "You add up the losses of the pairs; take their mean over the batch.",
    (SUMMED, 'return mlm + F.cross_entropy(nsp_scores, is_random, reduction="sum")'),
)
add(
    "loss_by_rows",
    "You take the mean of each row and then of the rows, so that a masked place counts less where "
    "there are many; every place counts the same.",
    (
        COUNTED,
        "each = F.cross_entropy(mlm_scores.mT, labels, ignore_index=IGNORE, reduction='none')\n"
        "    mlm = (each.sum(1) / (labels != IGNORE).sum(1).clamp(min=1)).mean()",
    ),
)
add(
    "loss_halved",
    "You take the mean of the two losses; BERT's is their sum.",
    (SUMMED, "return (mlm + F.cross_entropy(nsp_scores, is_random)) / 2"),
)
add(
    "loss_without_pairs",
    "The loss of the pairs is missing from your sum.",
    (SUMMED, "return mlm + 0 * nsp_scores.sum()"),
    read="brt-nsp",
)
add(
    "loss_classes_exchanged",
    "You exchange the classes of the pairs: is_random is the class itself, 0 for a true next one.",
    (SUMMED, "return mlm + F.cross_entropy(nsp_scores, 1 - is_random)"),
    read="brt-nsp",
)
add(
    "loss_softmax_twice",
    "You apply softmax before F.cross_entropy, which does it itself; give it the scores.",
    ("mlm_scores.flatten(0, 1),", "mlm_scores.flatten(0, 1).softmax(-1),"),
)

add = mistakes_in(MISCONCEPTIONS, "pretraining_step", "brt-loss")
GRADIENTS = "gradients = torch.autograd.grad(loss, parameters, allow_unused=True)"
NORM = "norm = math.sqrt(sum(g.double().square().sum().item() for _, g in pairs))"
SCALE = "scale = clip / norm if norm > clip else 1.0"
DESCENT = "parameter -= rate * scale * gradient"
PARAMETERS = "parameters = [p for p in model.parameters() if p.requires_grad]"
FORWARD = "mlm_scores, nsp_scores = model(ids, segment_ids, mask)"
add(
    "step_gradients_accumulate",
    "Gradients of earlier batches are still in .grad when you go backward, and add up; clear them "
    "before each step.",
    (GRADIENTS, "loss.backward()\n    gradients = [p.grad for p in parameters]"),
)
add(
    "step_not_clipped",
    "The gradient is not clipped; where its norm exceeds clip, scale it by clip / norm.",
    (SCALE, "scale = 1.0"),
)
add(
    "step_clipped_by_parameter",
    "You clip each parameter's gradient by its own norm, which changes the direction; there is one "
    "norm, over all parameters together.",
    (
        DESCENT,
        "parameter -= rate * gradient * min(1.0, clip / max(float(gradient.norm()), 1e-30))",
    ),
)
add(
    "step_clipped_by_value",
    "You clamp every number of the gradient to clip; scale all of it by clip / norm instead.",
    (DESCENT, "parameter -= rate * gradient.clamp(-clip, clip)"),
)
add(
    "step_always_scaled",
    "You scale the gradient to the norm clip even where it is shorter; leave a shorter one as it "
    "is.",
    (SCALE, "scale = clip / norm"),
)
add(
    "step_norm_after_clipping",
    'Your "norm" is that after clipping; return the one before, which tells whether a step was '
    "clipped.",
    ('"norm": norm}', '"norm": min(norm, clip)}'),
)
add(
    "step_norms_added",
    "You add up the parameters' norms; the norm of all together is the root of the sum of all "
    "squares.",
    (NORM, "norm = sum(g.double().norm().item() for _, g in pairs)"),
)
add(
    "step_norm_squared",
    "Your norm is the sum of squares; take its square root.",
    (NORM, "norm = sum(g.double().square().sum().item() for _, g in pairs)"),
)
add(
    "step_shared_twice",
    "The table that embeddings and head share is counted and updated twice; take every parameter "
    "once.",
    (
        PARAMETERS,
        "parameters = [p for _, p in model.named_parameters(remove_duplicate=False)]",
    ),
)
add(
    "step_numbers_after",
    "Your losses are those after the step; return what they were before it.",
    (
        "both, second = loss.item(), nsp.item()",
        "with torch.no_grad():\n        mlm_scores, nsp_scores = model(ids, segment_ids, mask)\n"
        "        both = pretraining_loss(mlm_scores, nsp_scores, labels, is_random).item()\n"
        "        second = F.cross_entropy(nsp_scores, is_random).item()",
    ),
)
add(
    "step_uphill",
    "You add the gradient, so that the loss grows; subtract it.",
    (DESCENT, "parameter += rate * scale * gradient"),
)
add(
    "step_unused_parameters",
    "A parameter that the loss does not depend on has no gradient, and stops your step; leave it "
    "as it is.",
    (GRADIENTS, "gradients = torch.autograd.grad(loss, parameters)"),
)
add(
    "step_mode_train",
    "Your step puts the model into train mode; the mode is the caller's business.",
    (FORWARD, "model.train()\n    " + FORWARD),
)
add(
    "step_mode_eval",
    "Your step puts the model into eval mode, so that dropout never acts; the mode is the caller's "
    "business.",
    (FORWARD, "model.eval()\n    " + FORWARD),
)
add(
    "step_mlm_is_loss",
    'Your "mlm" is the whole loss; it is the part of the masked places, without the pairs.',
    ('"mlm": both - second', '"mlm": both'),
)

# --------------------------------------------------------------------------------------------
# Scores
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "pseudo_log_likelihood", "brt-scores")
PLACES = "places = (ids >= SPECIAL).nonzero().squeeze(1)"
MASKED = "masked[rows, places] = MASK"
SUM = "log_probs[rows, ids[places]].sum().item()"
add(
    "likelihood_all_at_once",
    "You mask all tokens at once, so that the model sees none of them; mask one at a time, with "
    "all others as they are.",
    (MASKED, "masked[:, places] = MASK"),
)
add(
    "likelihood_unmasked",
    "You score tokens that the model can see; put MASK in the place of the one to be scored.",
    (MASKED, ""),
)
add(
    "likelihood_left_to_right",
    "You hide all tokens after the scored one too; BERT may see both sides, so mask one only.",
    (MASKED, "masked[(ids >= SPECIAL) & (torch.arange(len(ids)) >= places[:, None])] = MASK"),
)
add(
    "likelihood_masks_stay",
    "The masks of earlier tokens stay; put each token back before you mask the next one.",
    (MASKED, "masked[(ids >= SPECIAL) & (torch.arange(len(ids)) <= places[:, None])] = MASK"),
)
add(
    "likelihood_specials_scored",
    "Special tokens are scored too; the sum goes over ordinary tokens only.",
    (
        PLACES,
        "places = torch.arange(len(ids)) if (ids >= SPECIAL).any() else ids[:0]",
    ),
)
add(
    "likelihood_mean",
    "You take the mean over the tokens; the pseudo-log-likelihood is the sum.",
    (SUM, "log_probs[rows, ids[places]].mean().item()"),
)
add(
    "likelihood_of_scores",
    "You add up the scores as they are; apply log_softmax over the vocabulary first.",
    ("torch.log_softmax(scores, dim=-1)", "scores"),
)
add(
    "likelihood_of_probabilities",
    "You add up probabilities; add up their logarithms.",
    ("torch.log_softmax(scores, dim=-1)", "torch.softmax(scores, dim=-1)"),
)
add(
    "likelihood_negative",
    "Your sum has the other sign: it is the sum of log-probabilities, which are negative.",
    (SUM, "-log_probs[rows, ids[places]].sum().item()"),
)
add(
    "likelihood_of_mask",
    "You score the token MASK itself; score the original token that stood in the place.",
    (SUM, "log_probs[:, MASK].sum().item()"),
)
add(
    "likelihood_tensor",
    "You return a tensor; .item() makes a float of it.",
    (SUM, "log_probs[rows, ids[places]].sum()"),
)
add(
    "likelihood_nothing_accepted",
    "An input without ordinary tokens is not refused; raise a ValueError.",
    ("if len(places) == 0:", "if False:"),
)

# --------------------------------------------------------------------------------------------
# Fine-tuning
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "SequenceClassifier", "brt-single")
GET = "_, pooled = self.bert(ids, segment_ids, mask)"
SCORES = "return self.classifier(self.dropout(pooled))"
add(
    "classifier_reads_hidden_cls",
    "You classify the hidden state of [CLS]; the pooled vector, to which pooler and tanh were "
    "applied, is the second result of bert.",
    (GET, "pooled = self.bert(ids, segment_ids, mask)[0][:, 0]"),
)
add(
    "classifier_reads_mean",
    "You classify the mean of the hidden states; take the pooled vector.",
    (GET, "pooled = self.bert(ids, segment_ids, mask)[0].mean(dim=1)"),
)
add(
    "classifier_tanh_again",
    "You apply tanh once more; the pooled vector has it already.",
    (SCORES, "return self.classifier(self.dropout(torch.tanh(pooled)))"),
)
add(
    "classifier_softmax",
    "Your scores are probabilities; return them as they are, since the cross-entropy takes the "
    "softmax itself.",
    (SCORES, "return self.classifier(self.dropout(pooled)).softmax(dim=-1)"),
)
add(
    "classifier_log_softmax",
    "You return log-probabilities; return the scores as they are.",
    (SCORES, "return self.classifier(self.dropout(pooled)).log_softmax(dim=-1)"),
)
add(
    "classifier_segments_not_passed",
    "The segment ids do not reach the BERT; pass them on.",
    (GET, "_, pooled = self.bert(ids, None, mask)"),
)
add(
    "classifier_mask_not_passed",
    "The mask does not reach the BERT; pass it on.",
    (GET, "_, pooled = self.bert(ids, segment_ids)"),
)
add(
    "classifier_mask_as_segments",
    "You pass the mask where bert expects the segment ids; they come second, the mask third.",
    (GET, "_, pooled = self.bert(ids, None if mask is None else mask.long(), segment_ids)"),
)
add(
    "classifier_without_dropout",
    "Nothing is dropped in training mode; apply dropout to the pooled vector.",
    (SCORES, "return self.classifier(pooled)"),
)
add(
    "classifier_scores_dropped",
    "You drop scores; dropout acts on the pooled vector, before the classifier.",
    (SCORES, "return self.dropout(self.classifier(pooled))"),
)
add(
    "classifier_bert_frozen",
    "No gradient reaches the BERT; fine-tuning trains all of it.",
    (SCORES, "return self.classifier(self.dropout(pooled.detach()))"),
)
add(
    "classifier_loss_summed",
    "Your loss is the sum over the batch; take the mean.",
    ("F.cross_entropy(scores, labels)", 'F.cross_entropy(scores, labels, reduction="sum")'),
)
add(
    "classifier_loss_of_probabilities",
    "You take the softmax before F.cross_entropy, which does so itself.",
    ("F.cross_entropy(scores, labels)", "F.cross_entropy(scores.softmax(dim=-1), labels)"),
)
add(
    "classifier_loss_without_log",
    "You leave the logarithm of the softmax out: F.nll_loss expects log-probabilities.",
    ("F.cross_entropy(scores, labels)", "F.nll_loss(scores, labels)"),
)
add(
    "classifier_loss_without_class_0",
    "Your loss leaves label 0 out; it is a class like any other.",
    (
        "return F.cross_entropy(scores, labels)",
        "total = F.cross_entropy(scores, labels, ignore_index=0, reduction='sum')\n"
        "        return total / (labels != 0).sum().clamp(min=1)",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "SpanFinder", "brt-span")
READ = "hidden, _ = self.bert(ids, segment_ids, mask)"
HIDE = "scores = scores.masked_fill(~mask.unsqueeze(-1), torch.finfo(scores.dtype).min)"
INSIDE_SPAN = "inside = (places >= 0) & (places < scores.shape[1])"
HALF = "halves.append(0.5 * total / inside.sum().clamp(min=1))"
add(
    "span_exchanged",
    "The first output of the classifier is for the start, the second for the end; yours are "
    "exchanged.",
    ("start, end = scores.unbind(dim=-1)", "end, start = scores.unbind(dim=-1)"),
)
add(
    "span_softmax",
    "Your scores are probabilities; return them as they are.",
    (
        READ + "  # (B, T, D)\n        scores = self.classifier(hidden)",
        READ + "  # (B, T, D)\n        scores = self.classifier(hidden).softmax(dim=1)",
    ),
)
add(
    "span_softmax_of_start_and_end",
    "You take the softmax over start and end of one token; return the scores as they are.",
    ("scores = self.classifier(hidden)", "scores = self.classifier(hidden).softmax(dim=-1)"),
)
add(
    "span_padding_not_hidden",
    "Scores at padding stay as they are; set them to the smallest number where a mask is given.",
    ("if mask is not None:", "if False:"),
)
add(
    "span_padding_zero",
    "You set scores at padding to 0, which may be the best score of all; take the smallest finite "
    "number, torch.finfo(dtype).min.",
    ("torch.finfo(scores.dtype).min", "0.0"),
)
add(
    "span_padding_infinite",
    "You set scores at padding to -inf; take the smallest finite number, torch.finfo(dtype).min.",
    ("torch.finfo(scores.dtype).min", "-math.inf"),
)
add(
    "span_padding_minus_10000",
    "You set scores at padding to -10000; take the smallest finite number, torch.finfo(dtype).min.",
    ("torch.finfo(scores.dtype).min", "-1e4"),
)
add(
    "span_mask_inverted",
    "You hide the real tokens; True in the mask means a real token.",
    ("~mask.unsqueeze(-1)", "mask.unsqueeze(-1)"),
)
add(
    "span_mask_not_passed",
    "The mask hides scores, but does not reach the BERT; pass it on.",
    (READ, "hidden, _ = self.bert(ids, segment_ids)"),
)
add(
    "span_segments_not_passed",
    "The segment ids, which tell question from passage, do not reach the BERT; pass them on.",
    (READ, "hidden, _ = self.bert(ids, None, mask)"),
)
add(
    "span_loss_not_halved",
    "Your loss is the sum of both cross-entropies; take half of it.",
    ("0.5 * total", "total"),
)
add(
    "span_loss_start_only",
    "Your loss judges the start only; the end counts as much.",
    ("return halves[0] + halves[1]", "return 2 * halves[0]"),
)
add(
    "span_loss_outside_counted",
    "You divide by the whole batch; a target outside the input is left out of the mean.",
    (HALF, "halves.append(0.5 * total / len(places))"),
)
add(
    "span_loss_outside_at_the_last_place",
    "You move a target outside the input to its last place; it is left out.",
    (
        INSIDE_SPAN,
        "places = places.clamp(0, scores.shape[1] - 1)\n            " + INSIDE_SPAN,
    ),
)
add(
    "span_loss_examples_left_out",
    "You leave an example out if either target is outside; the other one still counts.",
    (
        INSIDE_SPAN,
        "inside = (starts >= 0) & (starts < start.shape[1]) & (ends >= 0) & (ends < end.shape[1])",
    ),
)
add(
    "span_loss_negative_kept",
    "Targets below 0 are outside the input too; leave them out.",
    (INSIDE_SPAN, "inside = places < scores.shape[1]"),
    (
        "targets = places.masked_fill(~inside, IGNORE)",
        "targets = places.clamp(min=0).masked_fill(~inside, IGNORE)",
    ),
)
add(
    "span_loss_nan",
    "Your loss divides 0 by 0 if no target is inside the input; it is then 0.",
    ("inside.sum().clamp(min=1)", "inside.sum()"),
)
add(
    "span_loss_summed",
    "Your loss sums over the batch; take the mean.",
    (HALF, "halves.append(0.5 * total)"),
)
add(
    "span_loss_outside_refused",
    "A target outside the input makes your loss fail; leave it out of the mean.",
    ("targets = places.masked_fill(~inside, IGNORE)", "targets = places"),
)

add = mistakes_in(MISCONCEPTIONS, "best_span", "brt-span")
ALLOWED = "allowed = passage.unsqueeze(1) & passage & (length >= 1) & (length <= max_answer)"
TOTALS = "totals = start[i] + end[j]"
NULL = "if null_threshold is not None and start[0] + end[0] - totals[best] > null_threshold:"
BEST = "return int(i[best]), int(j[best])"
add(
    "best_span_each_alone",
    "You take the best start and the best end on their own, so that an answer may end before it "
    "begins; maximise the sum over allowed pairs.",
    (
        BEST,
        "outside = ~passage\n"
        "    first = start.masked_fill(outside, -math.inf).argmax()\n"
        "    return int(first), int(end.masked_fill(outside, -math.inf).argmax())",
    ),
)
add(
    "best_span_start_first",
    "You take the best start and then the best end for it; the best pair may begin elsewhere.",
    (
        BEST,
        "first = int(start.masked_fill(~passage, -math.inf).argmax())\n"
        "    ends = [k for k in range(first, min(first + max_answer, len(end))) if passage[k]]\n"
        "    return first, max(ends, key=lambda k: float(end[k]))",
    ),
)
add(
    "best_span_end_before_start",
    "Your answer may end before it begins; allow i <= j only.",
    (ALLOWED, "allowed = passage.unsqueeze(1) & passage & (length <= max_answer)"),
)
add(
    "best_span_one_token_refused",
    "You leave out answers of one token; i = j is allowed.",
    (
        ALLOWED,
        "allowed = passage.unsqueeze(1) & passage & (length >= min(2, max_answer, "
        "int(passage.sum()))) & (length <= max_answer)",
    ),
)
add(
    "best_span_passage_ignored",
    "Your answer may lie in the question or in padding; both ends must be in the passage.",
    (ALLOWED, "allowed = (length >= 1) & (length <= max_answer)"),
)
add(
    "best_span_only_cls_left_out",
    "You leave out [CLS] only; both ends must be in the passage.",
    (ALLOWED, "allowed = (places.unsqueeze(1) >= 1) & (length >= 1) & (length <= max_answer)"),
)
add(
    "best_span_end_outside",
    "Only the start of your answer must be in the passage; the end must too.",
    (ALLOWED, "allowed = passage.unsqueeze(1) & (length >= 1) & (length <= max_answer)"),
)
add(
    "best_span_start_outside",
    "Only the end of your answer must be in the passage; the start must too.",
    (ALLOWED, "allowed = passage & (length >= 1) & (length <= max_answer)"),
)
add(
    "best_span_limit_ignored",
    "Your answer may have any length; it has at most max_answer tokens.",
    (" & (length <= max_answer)", ""),
)
add(
    "best_span_limit_too_long",
    "Your answer may have max_answer + 1 tokens: j < i + max_answer.",
    ("(length <= max_answer)", "(length <= max_answer + 1)"),
)
add(
    "best_span_limit_too_short",
    "Your answer has at most max_answer - 1 tokens; max_answer are allowed.",
    ("(length <= max_answer)", "(length <= max(max_answer - 1, 1))"),
)
add(
    "best_span_last_of_equal",
    "Of equal spans you return the last; the first start counts, then the first end.",
    ("best = int(totals.argmax())", "best = len(totals) - 1 - int(totals.flip(0).argmax())"),
)
add(
    "best_span_product",
    "You multiply the two scores; add them.",
    (TOTALS, "totals = start[i] * end[j]"),
)
add(
    "best_span_exchanged",
    "Your scores of start and end are exchanged.",
    (TOTALS, "totals = end[i] + start[j]"),
)
add(
    "best_span_null_always",
    "You compare with no answer although null_threshold is None; there always is an answer then.",
    (NULL, "if start[0] + end[0] - totals[best] > (null_threshold or 0.0):"),
)
add(
    "best_span_null_never",
    "You never return (0, 0); with a null_threshold there may be no answer.",
    (NULL, "if False:"),
)
add(
    "best_span_threshold_0_is_none",
    "You take a null_threshold of 0 for None; ask whether it is None.",
    ("null_threshold is not None and", "null_threshold and"),
)
add(
    "best_span_threshold_ignored",
    "You return no answer as soon as it is better; it must be so by more than null_threshold.",
    ("totals[best] > null_threshold:", "totals[best] > 0:"),
)
add(
    "best_span_null_reversed",
    "You compare the wrong way round: no answer wins if its score exceeds the best span's by more "
    "than the threshold.",
    (
        "start[0] + end[0] - totals[best] > null_threshold",
        "totals[best] - start[0] - end[0] > null_threshold",
    ),
)
add(
    "best_span_null_at_the_threshold",
    "No answer wins if it is better by more than null_threshold; exactly as much is not enough.",
    ("totals[best] > null_threshold:", "totals[best] >= null_threshold:"),
)
add(
    "best_span_null_start_only",
    "The score of no answer is start[0] + end[0]; you take start[0] alone.",
    ("start[0] + end[0] - totals[best]", "start[0] - totals[best]"),
)
add(
    "best_span_tensors",
    "You return tensors; int(...) or .item() makes numbers of them.",
    (BEST, "return i[best], j[best]"),
)
add(
    "best_span_relative_to_passage",
    "Your places count from the beginning of the passage; they count from the beginning of the "
    "input.",
    (
        BEST,
        "shift = int(passage.int().argmax())\n"
        "    return int(i[best]) - shift, int(j[best]) - shift",
    ),
)
add(
    "best_span_unchecked",
    "A passage without tokens, or a max_answer below 1, is not refused with a ValueError.",
    ("if max_answer < 1:", "if False:"),
    ("if not passage.any():", "if False:"),
    (
        "i, j = allowed.nonzero(as_tuple=True)",
        "if not allowed.any():\n        return 0, 0\n    i, j = allowed.nonzero(as_tuple=True)",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "align_labels", "brt-tagging")
LABEL = "labels.append(IGNORE if word is None or word in seen else word_labels[word])"
CHECK = "if word is not None and not 0 <= word < len(word_labels):"
add(
    "align_every_piece",
    "Every piece of a word gets its label; only the first does, the others are IGNORE.",
    (LABEL, "labels.append(IGNORE if word is None else word_labels[word])"),
)
add(
    "align_last_piece",
    "You label the last piece of a word; label the first.",
    ("for word in word_ids:", "for word in reversed(word_ids):"),
    ("return labels", "return labels[::-1]"),
)
add(
    "align_word_0_is_special",
    "You take word 0 for a special token; ask whether the word is None.",
    ("IGNORE if word is None or word in seen", "IGNORE if not word or word in seen"),
)
add(
    "align_specials_0",
    "Special tokens get label 0, which is a label; give them IGNORE.",
    (LABEL, "labels.append(0 if word is None else IGNORE if word in seen else word_labels[word])"),
)
add(
    "align_later_pieces_0",
    "Later pieces of a word get label 0, which is a label; give them IGNORE.",
    (LABEL, "labels.append(IGNORE if word is None else 0 if word in seen else word_labels[word])"),
)
add(
    "align_specials_left_out",
    "You leave special tokens out; the result has an entry for every token, IGNORE for those.",
    (
        LABEL,
        "if word is not None:\n            labels.append(IGNORE if word in seen else "
        "word_labels[word])",
    ),
)
add(
    "align_words_only",
    "You return one label for each word; the result has an entry for every token.",
    (
        LABEL,
        "if word is not None and word not in seen:\n            labels.append(word_labels[word])",
    ),
)
add(
    "align_equal_labels_are_one_word",
    "You take a label that is equal to the one before for a later piece; compare the words' "
    "numbers.",
    (
        LABEL,
        "labels.append(IGNORE if word is None or word in seen else word_labels[word])\n"
        "        if word and word not in seen and word_labels[word] == word_labels[word - 1]:\n"
        "            labels[-1] = IGNORE",
    ),
)
add(
    "align_by_position",
    "You count labels by tokens; word_ids says which word a token belongs to.",
    (
        LABEL,
        "labels.append(IGNORE if word is None or word in seen else word_labels[len(labels) % "
        "len(word_labels)])",
    ),
)
add(
    "align_pad_as_ignore",
    "You mark what has no label by -1; the losses leave out IGNORE, -100.",
    (LABEL, "labels.append(-1 if word is None or word in seen else word_labels[word])"),
)
add(
    "align_unchecked",
    "A word without a label is not refused with a ValueError.",
    (CHECK, "if False:"),
)
add(
    "align_missing_label_ignored",
    "A word without a label gets IGNORE; refuse it with a ValueError, since the lists do not fit.",
    (CHECK, "if False:"),
    ("word in seen else", "word in seen or word >= len(word_labels) else"),
)

add = mistakes_in(MISCONCEPTIONS, "Tagger", "brt-tagging")
TAGGED = "return self.classifier(self.dropout(hidden))"
MEAN = "return total / (labels != IGNORE).sum().clamp(min=1)"
add(
    "tagger_reads_pooled",
    "You classify the pooled vector, the same for every token; each token has its hidden state.",
    (
        READ,
        "pooled = self.bert(ids, segment_ids, mask)[1]\n"
        "        hidden = pooled.unsqueeze(1).expand(-1, ids.shape[1], -1)",
    ),
)
add(
    "tagger_first_token_only",
    "You score [CLS] only; every token gets scores.",
    (TAGGED, "return self.classifier(self.dropout(hidden[:, 0]))"),
)
add(
    "tagger_softmax",
    "Your scores are probabilities; return them as they are.",
    (TAGGED, "return self.classifier(self.dropout(hidden)).softmax(dim=-1)"),
)
add(
    "tagger_segments_not_passed",
    "The segment ids do not reach the BERT; pass them on.",
    (READ, "hidden, _ = self.bert(ids, None, mask)"),
)
add(
    "tagger_mask_not_passed",
    "The mask does not reach the BERT; pass it on.",
    (READ, "hidden, _ = self.bert(ids, segment_ids)"),
)
add(
    "tagger_padding_zero",
    "You set the scores at padding to 0; the loss leaves padding out by its labels.",
    (
        TAGGED,
        "scores = self.classifier(self.dropout(hidden))\n"
        "        return scores if mask is None else scores * mask.unsqueeze(-1)",
    ),
)
add(
    "tagger_without_dropout",
    "Nothing is dropped in training mode; apply dropout to the hidden states.",
    (TAGGED, "return self.classifier(hidden)"),
)
add(
    "tagger_scores_dropped",
    "You drop scores; dropout acts on the hidden states, before the classifier.",
    (TAGGED, "return self.dropout(self.classifier(hidden))"),
)
add(
    "tagger_bert_frozen",
    "No gradient reaches the BERT; fine-tuning trains all of it.",
    (TAGGED, "return self.classifier(self.dropout(hidden.detach()))"),
)
add(
    "tagger_loss_nan",
    "Without any label your loss divides 0 by 0; it is then 0.",
    (MEAN, "return total / (labels != IGNORE).sum()"),
)
add(
    "tagger_loss_over_all_tokens",
    "You divide by the number of all tokens; divide by that of tokens with a label.",
    (MEAN, "return total / labels.numel()"),
)
add(
    "tagger_loss_ignored_as_0",
    "Tokens without a label count as tokens of label 0; leave them out.",
    (MEAN, "return F.cross_entropy(scores.flatten(0, 1), labels.flatten().clamp(min=0))"),
)
add(
    "tagger_loss_without_label_0",
    "Your loss leaves label 0 out as well; it is a label like any other.",
    (
        MEAN,
        "keep = labels > 0\n        if not keep.any():\n            return scores.sum() * 0\n"
        "        return F.cross_entropy(scores[keep], labels[keep])",
    ),
)
add(
    "tagger_loss_mean_of_sentences",
    "You take the mean of each sentence and then of all; every token with a label counts alike.",
    (
        MEAN,
        "each = [F.cross_entropy(s, y, ignore_index=IGNORE, reduction='sum')"
        " / (y != IGNORE).sum().clamp(min=1) for s, y in zip(scores, labels, strict=True)]\n"
        "        return torch.stack(each).mean()",
    ),
)
add(
    "tagger_loss_summed",
    "Your loss sums over the tokens; take the mean.",
    (MEAN, "return total"),
)

add = mistakes_in(MISCONCEPTIONS, "word_tags", "brt-tagging")
TAGS = "best = scores.argmax(dim=-1).tolist()"
KEEP = "tags.setdefault(word, label)"
add(
    "tags_last_piece",
    "The last piece of a word decides; the first does.",
    (KEEP, "tags[word] = label"),
)
add(
    "tags_every_token",
    "You return a tag for every token; one for each word is asked for.",
    ("tags = {}\n", "return best\n    tags = {}\n"),
)
add(
    "tags_every_piece",
    "You return a tag for every piece; the first piece of a word decides, the others are silent.",
    (
        "tags = {}\n",
        "return [label for word, label in zip(word_ids, best, strict=True) if word is not None]\n"
        "    tags = {}\n",
    ),
)
add(
    "tags_word_0_left_out",
    "You take word 0 for a special token; ask whether the word is None.",
    ("if word is not None:", "if word:"),
)
add(
    "tags_specials_kept",
    "You give special tokens a tag as well; they belong to no word.",
    ("if word is not None:", "if True:"),
)
add(
    "tags_mean_of_pieces",
    "You add the scores of all pieces of a word; the first piece alone decides.",
    (
        "tags = {}\n",
        "words = [word for word in dict.fromkeys(word_ids) if word is not None]\n"
        "    places = [[t for t, other in enumerate(word_ids) if other == word] for word in "
        "words]\n"
        "    return [int(scores[t].mean(dim=0).argmax()) for t in places]\n    tags = {}\n",
    ),
)
add(
    "tags_best_piece",
    "The piece with the largest score decides; the first does.",
    (
        "tags = {}\n",
        "words = [word for word in dict.fromkeys(word_ids) if word is not None]\n"
        "    places = [[t for t, other in enumerate(word_ids) if other == word] for word in "
        "words]\n"
        "    return [int(scores[t].amax(dim=0).argmax()) for t in places]\n    tags = {}\n",
    ),
)
add(
    "tags_worst_label",
    "You take the label with the smallest score; take the largest.",
    (TAGS, "best = scores.argmin(dim=-1).tolist()"),
)
add(
    "tags_equal_merged",
    "Two words in a row with one tag become one; every word has a tag of its own.",
    (
        "return list(tags.values())",
        "return [label for label, _ in itertools.groupby(tags.values())]",
    ),
)
add(
    "tags_scores",
    "You return the best scores; return the labels that have them.",
    (TAGS, "best = scores.amax(dim=-1).tolist()"),
)

# --------------------------------------------------------------------------------------------
# Tags in sequence: the CRF
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "crf_score", "brt-crf")
CRF_SUM = "return start[tags[:, 0]] + inside + between + end[last]"
MOVED = "transitions[tags[:, :-1], tags[:, 1:]]"
INSIDE = "emitted.masked_fill(~mask, 0.0).sum(dim=1)"
LAST_TAG = "tags.gather(1, mask.sum(dim=1, keepdim=True) - 1).squeeze(1)"
add(
    "crf_score_without_start",
    "The score of the first tag as a beginning is missing; add start[y_0].",
    (CRF_SUM, "return inside + between + end[last]"),
)
add(
    "crf_score_without_end",
    "The score of the last tag as an end is missing; add end at each row's last real tag.",
    (CRF_SUM, "return start[tags[:, 0]] + inside + between"),
)
add(
    "crf_score_start_and_end_exchanged",
    "You read `end` at the first tag and `start` at the last; it is the other way round.",
    (CRF_SUM, "return end[tags[:, 0]] + inside + between + start[last]"),
)
add(
    "crf_score_transitions_transposed",
    "You read the transitions from column to row; transitions[a, b] is for b after a.",
    (MOVED, "transitions[tags[:, 1:], tags[:, :-1]]"),
)
add(
    "crf_score_without_transitions",
    "Only single tags are scored; add the transition between each two neighbours.",
    ("+ inside + between +", "+ inside +"),
)
add(
    "crf_score_padding_emissions",
    "Emissions at padding are added too; leave out what stands where the mask is False.",
    (INSIDE, "emitted.sum(dim=1)"),
)
add(
    "crf_score_moves_into_padding",
    "The move from the last real token into the padding counts; a transition counts where the "
    "token that it leads to is real.",
    ("moved.masked_fill(~mask[:, 1:], 0.0)", "moved.masked_fill(~mask[:, :-1], 0.0)"),
)
add(
    "crf_score_padding_transitions",
    "Transitions between padded places are added too; they count between real tokens only.",
    ("moved.masked_fill(~mask[:, 1:], 0.0)", "moved"),
)
add(
    "crf_score_end_at_last_column",
    "You take the last tag from the last column, where short rows have padding; it stands at each "
    "row's length - 1.",
    (LAST_TAG, "tags[:, -1]"),
)
add(
    "crf_score_end_at_length",
    "You look for the last tag at the row's length, one place behind it; places count from 0.",
    (LAST_TAG, "torch.nn.functional.pad(tags, (0, 1))[range(len(tags)), mask.sum(dim=1)]"),
)
add(
    "crf_score_looks_up_ignored_tags",
    "Tags at padding may be IGNORE, which is no index; put a valid tag there first and leave out "
    "what it adds.",
    ("tags = tags.masked_fill(~mask, 0)", "tags = tags.clone()"),
)

add = mistakes_in(MISCONCEPTIONS, "crf_partition", "brt-crf")
SUMS_BEGIN = "sums = start + emissions[:, 0]"
SUMS_END = "torch.logsumexp(sums + end, dim=1)"
SUMS_STEP = "torch.logsumexp(ways, dim=1)"
SUMS_KEPT = "torch.where(mask[:, t : t + 1], longer, sums)"
add(
    "crf_partition_without_start",
    "The recursion begins without the start scores; it begins with start + emissions[:, 0].",
    (SUMS_BEGIN, "sums = emissions[:, 0]"),
)
add(
    "crf_partition_without_end",
    "The end scores are missing; add them before the last logsumexp.",
    (SUMS_END, "torch.logsumexp(sums, dim=1)"),
)
add(
    "crf_partition_transitions_transposed",
    "Your transitions lead from column to row; transitions[a, b] is for b after a.",
    ("sums.unsqueeze(2) + transitions", "sums.unsqueeze(2) + transitions.T"),
)
add(
    "crf_partition_sums_over_next_tag",
    "You sum over the tags that follow; sum over those before, so that a vector for the tag now is "
    "left.",
    (SUMS_STEP, "torch.logsumexp(ways, dim=2)"),
)
add(
    "crf_partition_maximum",
    "You keep the best path only, as viterbi does; here all paths are summed, with logsumexp.",
    (SUMS_STEP, "ways.amax(dim=1)"),
    (SUMS_END, "(sums + end).amax(dim=1)"),
)
add(
    "crf_partition_maximum_at_the_end",
    "The last step takes the best tag; sum over the last tags too, with logsumexp.",
    (SUMS_END, "(sums + end).amax(dim=1)"),
)
add(
    "crf_partition_overflows",
    "exp of scores of 1000 is infinite, and of -1000 it is 0; take the largest one out first, as "
    "torch.logsumexp does.",
    (SUMS_STEP, "ways.exp().sum(dim=1).log()"),
    (SUMS_END, "(sums + end).exp().sum(dim=1).log()"),
)
add(
    "crf_partition_one_maximum_for_all",
    "You take out one maximum for the whole batch, against which other rows vanish; each sum needs "
    "its own.",
    (SUMS_STEP, "((ways - ways.max()).exp().sum(dim=1).log() + ways.max())"),
    (
        SUMS_END,
        "((sums + end - (sums + end).max()).exp().sum(dim=1).log() + (sums + end).max())",
    ),
)
add(
    "crf_partition_padding_counted",
    "The recursion goes on through padding; where the mask is False the sums stay as they are.",
    (SUMS_KEPT, "longer"),
)
add(
    "crf_partition_zeros_at_padding",
    "Sums become 0 at padding, and what was summed before is lost; they stay as they are there.",
    (SUMS_KEPT, "longer * mask[:, t : t + 1]"),
)
add(
    "crf_partition_mask_of_place_before",
    "You ask whether the place before is real, so that one step into the padding counts; ask for "
    "the place itself.",
    (SUMS_KEPT, "torch.where(mask[:, t - 1 : t], longer, sums)"),
)
add(
    "crf_partition_emissions_shifted",
    "A step adds the emissions of the place before; add those of the place that it leads to.",
    ("+ emissions[:, t]", "+ emissions[:, t - 1]"),
)

add = mistakes_in(MISCONCEPTIONS, "viterbi", "brt-crf")
BEST_END = "(best + end).max(dim=1)"
BEST_KEPT = "torch.where(mask[:, t : t + 1], longer + emissions[:, t], best)"
BACK = "for tag in reversed(before[: length - 1]):"
FOLLOW = "path.append(int(tag[row, path[-1]]))"
add(
    "viterbi_greedy",
    "You take each token's best tag by itself; follow the pointers back from the best last tag.",
    (
        "paths.append(path[::-1])",
        "paths.append(emissions[row, :length].argmax(dim=-1).tolist())",
    ),
)
add(
    "viterbi_without_start",
    "Paths begin without the start scores; begin with start + emissions[:, 0].",
    ("best = start + emissions[:, 0]", "best = emissions[:, 0]"),
)
add(
    "viterbi_without_end",
    "The last tag is chosen without the end scores; add them before the last max.",
    (BEST_END, "best.max(dim=1)"),
)
add(
    "viterbi_transitions_transposed",
    "Your transitions lead from column to row; transitions[a, b] is for b after a.",
    ("best.unsqueeze(2) + transitions", "best.unsqueeze(2) + transitions.T"),
)
add(
    "viterbi_path_reversed",
    "Your paths run from the last token to the first; turn them round at the end.",
    ("path[::-1]", "path"),
)
add(
    "viterbi_follows_last_tag",
    "You read every pointer at the last tag; read each at the tag found just before.",
    (FOLLOW, "path.append(int(tag[row, path[0]]))"),
)
add(
    "viterbi_pointers_shifted",
    "Your pointers are off by one: the first of them belong to the step into the second token, so "
    "that a row of n tokens has n - 1, and those of its last step are followed first.",
    ("before = []", "before = [torch.zeros_like(best, dtype=torch.int64)]"),
)
add(
    "viterbi_paths_over_padding",
    "All your paths are T long; a path ends at its row's last real token.",
    (BACK, "for tag in reversed(before):"),
)
add(
    "viterbi_padding_counted",
    "The recursion goes on through padding; where the mask is False the best scores stay as they "
    "are.",
    (BEST_KEPT, "longer + emissions[:, t]"),
)
add(
    "viterbi_pointers_into_padding",
    "You follow one pointer too many where a row has padding; a row of n tokens has n - 1 steps.",
    (BACK, "for tag in reversed(before[:length]):"),
)
add(
    "viterbi_sums_paths",
    "You sum over paths, as crf_partition does; keep the best one, with max.",
    ("longer, tag = ways.max(dim=1)", "longer, tag = ways.logsumexp(dim=1), ways.argmax(dim=1)"),
)
add(
    "viterbi_tensors_in_paths",
    "The tags in your paths are tensors; they are to be ints, which .item() or .tolist() gives.",
    ("path = [int(last[row])]", "path = [last[row]]"),
    (FOLLOW, "path.append(tag[row, path[-1]])"),
)

add = mistakes_in(MISCONCEPTIONS, "BiLSTMCRF", "brt-crf")
LSTM = "self.lstm = nn.LSTM(embedding, hidden, batch_first=True, bidirectional=True)"
RUN = """states, _ = nn.utils.rnn.pad_packed_sequence(
            self.lstm(packed)[0], batch_first=True, total_length=ids.shape[1]
        )"""
CRF_LOSS = "self.crf.loss(self(ids, mask), tags, mask)"
CRF_DECODE = "self.crf.decode(self(ids, mask), mask)"
add(
    "bilstm_reads_padding_first",
    "Your backward direction reads the padding before the tokens; pack the sequences, so that it "
    "begins at the last real one.",
    (RUN, "states, _ = self.lstm(self.embedding(ids))"),
)
add(
    "bilstm_reads_zeros_first",
    "Embeddings of 0 at padding still change the state of the backward direction; pack the "
    "sequences, so that padding is not read at all.",
    (RUN, "states, _ = self.lstm(self.embedding(ids) * mask.unsqueeze(2))"),
)
add(
    "bilstm_result_too_short",
    "Unpacked states end at the longest row, which may be shorter than the input; give "
    "pad_packed_sequence total_length=T.",
    (", total_length=ids.shape[1]", ""),
)
add(
    "bilstm_batch_taken_for_time",
    "Your LSTM runs along the batch; create it with batch_first=True.",
    (LSTM, "self.lstm = nn.LSTM(embedding, hidden, bidirectional=True)"),
    (RUN, "states, _ = self.lstm(self.embedding(ids))"),
)
add(
    "bilstm_one_direction",
    "Your LSTM reads in one direction only; create it with bidirectional=True, and the linear "
    "layer for 2 hidden features.",
    (LSTM, "self.lstm = nn.LSTM(embedding, hidden, batch_first=True)"),
    ("nn.Linear(2 * hidden, num_tags)", "nn.Linear(hidden, num_tags)"),
)
add(
    "bilstm_loss_is_likelihood",
    "Your loss is the log-likelihood, which training would make small; it is the negative one.",
    (CRF_LOSS, "-" + CRF_LOSS),
)
add(
    "bilstm_loss_summed",
    "Your loss is summed over the batch; it is the mean.",
    (CRF_LOSS, CRF_LOSS + " * len(ids)"),
)
add(
    "bilstm_loss_over_padding",
    "Padding counts in your loss; hand the mask to the CRF.",
    (CRF_LOSS, "self.crf.loss(self(ids, mask), tags.clamp(min=0), torch.ones_like(mask))"),
)
add(
    "bilstm_loss_by_token",
    "Your loss is the cross-entropy of each token's emissions; the CRF's loss knows transitions.",
    (CRF_LOSS, "F.cross_entropy(self(ids, mask)[mask], tags[mask])"),
)
add(
    "bilstm_decodes_greedily",
    "You take the best emission of each token; decode with the CRF.",
    (CRF_DECODE, "[row[real].argmax(-1).tolist() for row, real in zip(self(ids, mask), mask)]"),
)
add(
    "bilstm_decodes_padding",
    "You decode padding too; hand the mask to the CRF.",
    (CRF_DECODE, "self.crf.decode(self(ids, mask), torch.ones_like(mask))"),
)

# --------------------------------------------------------------------------------------------
# Relatives
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "SharedEncoder", "brt-albert")
ONE_LAYER = "self.layer = BertLayer(hidden, num_heads, intermediate, dropout)"
AGAIN = "for _ in range(self.num_layers):"
SHARED = "x = self.layer(x, mask)"
add(
    "shared_encoder_separate_layers",
    "You make a layer for each depth, each with parameters of its own; make one and apply it again "
    "and again.",
    (
        ONE_LAYER,
        "self.layer = nn.ModuleList(\n"
        "            BertLayer(hidden, num_heads, intermediate, dropout) for _ in "
        "range(num_layers)\n        )",
    ),
    (AGAIN, "for layer in self.layer:"),
    (SHARED, "x = layer(x, mask)"),
)
add(
    "shared_encoder_applied_once",
    "The layer is applied once, or every time to the same input; apply it num_layers times, each "
    "time to what it returned.",
    (AGAIN, "for _ in range(1):"),
)
add(
    "shared_encoder_once_too_often",
    "The layer is applied once more than num_layers times.",
    (AGAIN, "for _ in range(self.num_layers + 1):"),
)
add(
    "shared_encoder_without_mask",
    "The mask does not reach the layer; hand it over each time.",
    (SHARED, "x = self.layer(x)"),
)
add(
    "shared_encoder_mask_only_once",
    "Only the first application sees the mask; hand it over each time.",
    (AGAIN, "for step in range(self.num_layers):"),
    (SHARED, "x = self.layer(x, None if step else mask)"),
)
add(
    "shared_encoder_residual",
    "You add the layer's input to its output; the layer has its own residual connections.",
    (SHARED, "x = x + self.layer(x, mask)"),
)
add(
    "shared_encoder_without_dropout",
    "Nothing is dropped in train mode; pass dropout on to the layer.",
    ("intermediate, dropout)\n        ### END", "intermediate)\n        ### END"),
)
add(
    "shared_encoder_gradient_of_last_use",
    "Gradients come from the last application only; do not detach what goes from one to the next.",
    (SHARED, "x = self.layer(x.detach(), mask)"),
)

add = mistakes_in(MISCONCEPTIONS, "permutation_masks", "brt-xlnet")
RANK = "rank = order.argsort()"
QUERY = "query = rank < rank.unsqueeze(1)"
CONTENT = "content = rank <= rank.unsqueeze(1)"
add(
    "permutation_masks_order_for_rank",
    "You compare the entries of order, which are places; compare when each place is predicted: the "
    "inverse permutation, order.argsort().",
    (RANK, "rank = order"),
)
add(
    "permutation_masks_content_without_self",
    "Your content mask hides a place from itself; content may see its own token.",
    (CONTENT, "content = rank < rank.unsqueeze(1)"),
)
add(
    "permutation_masks_query_with_self",
    "Your query mask shows a place to itself, so that the token to be predicted is seen; query may "
    "see only what comes before.",
    (QUERY, "query = rank <= rank.unsqueeze(1)"),
)
add(
    "permutation_masks_transposed",
    "Rows and columns are exchanged: row i says what place i may see, so it is True where j comes "
    "before i.",
    (QUERY, "query = rank > rank.unsqueeze(1)"),
    (CONTENT, "content = rank >= rank.unsqueeze(1)"),
)
add(
    "permutation_masks_swapped",
    "You return query and content; content comes first.",
    ("return content, query", "return query, content"),
)
add(
    "permutation_masks_left_to_right",
    "Your masks are triangles whatever the order; take the order into account.",
    (RANK, "rank = torch.arange(len(order))"),
)
add(
    "permutation_masks_in_order_of_prediction",
    "Row k of your masks belongs to the place predicted as number k; rows stand at the places' own "
    "numbers, so it should be row order[k].",
    (QUERY, "query = rank < torch.arange(len(order)).unsqueeze(1)"),
    (CONTENT, "content = rank <= torch.arange(len(order)).unsqueeze(1)"),
)
add(
    "permutation_masks_unchecked",
    "An order that is no permutation is not refused; raise a ValueError.",
    (
        "if order.dim() != 1 or not order.sort().values.equal(torch.arange(len(order)).to(order)):",
        "if False:",
    ),
)
add(
    "permutation_masks_only_doubles_refused",
    "You refuse doubles, but not places outside 0 .. T - 1; an order such as [1, 2, 3] is no "
    "permutation either.",
    (
        "if order.dim() != 1 or not order.sort().values.equal(torch.arange(len(order)).to(order)):",
        "if len(set(order.tolist())) < len(order):",
    ),
)
add(
    "permutation_masks_of_numbers",
    "Your masks hold numbers; they are to be bool.",
    ("return content, query", "return content.float(), query.float()"),
)

add = mistakes_in(MISCONCEPTIONS, "RelativeAttention", "brt-transformer-xl")
BY_CONTENT = "(queries + self.content_bias.unsqueeze(1))"
BY_DISTANCE = "(queries + self.position_bias.unsqueeze(1))"
SCALED = "(by_content + by_distance.gather(3, index)) / math.sqrt(head)"
JOINED = "torch.cat([memory.detach(), x], dim=1)"
CODES = "relative_code(torch.arange(total, device=x.device), width)"
RELATIVE_INDEX = "index = distance.clamp(min=0).expand(by_distance.shape)"
RELATIVE_WEIGHTS = "self.dropout(torch.softmax(scores, dim=-1))"
PAST_ONLY = "scores.masked_fill(distance < 0, torch.finfo(scores.dtype).min)"
HEADS_DIVIDE = "if num_heads < 1 or hidden % num_heads != 0:"
add(
    "relative_attention_unscaled",
    "Your scores are not scaled; divide both terms by sqrt(D/H).",
    (SCALED, "by_content + by_distance.gather(3, index)"),
)
add(
    "relative_attention_scale_of_whole_width",
    "Your scores are divided by sqrt(D); each head divides by the root of its own width, D/H.",
    (SCALED, SCALED.replace("head)", "width)")),
)
add(
    "relative_attention_only_content_scaled",
    "You scale the content term only; the sum of both terms is divided by sqrt(D/H).",
    (SCALED, "by_content / math.sqrt(head) + by_distance.gather(3, index)"),
)
add(
    "relative_attention_distances_reversed",
    "You encode j - i, with the wrong sign; the distance is i - j, 0 for the place itself and "
    "positive for what is before it.",
    (CODES, "relative_code(-torch.arange(total, device=x.device), width)"),
)
add(
    "relative_attention_absolute_places",
    "You encode the place of the key; what counts is its distance from the query, i - j.",
    (RELATIVE_INDEX, "index = places.expand(by_distance.shape)"),
)
add(
    "relative_attention_codes_not_shifted",
    "The terms of distance 0, 1, ... stand at keys 0, 1, ..., for every query; key j needs the one "
    "for i - j, counted backwards from the query.",
    (RELATIVE_INDEX, "index = places.flip(0).expand(by_distance.shape)"),
)
add(
    "relative_attention_without_content_bias",
    "content_bias is not used; add it to the queries of the content term.",
    (BY_CONTENT, "queries"),
)
add(
    "relative_attention_without_position_bias",
    "position_bias is not used; add it to the queries of the position term.",
    (BY_DISTANCE, "queries"),
)
add(
    "relative_attention_biases_exchanged",
    "The two biases are exchanged: content_bias belongs to the keys' term, position_bias to that "
    "of the distances.",
    (BY_CONTENT, "(queries + self.position_bias.unsqueeze(1)) "),
    (BY_DISTANCE + " @ relative", "(queries + self.content_bias.unsqueeze(1)) @ relative"),
)
add(
    "relative_attention_without_positions",
    "Your scores know no distance; add the term (q + position_bias) . r of i - j.",
    ("by_content + by_distance.gather(3, index)", "by_content"),
)
add(
    "relative_attention_codes_not_projected",
    "The codes of the distances skip r_proj; project them before they meet the queries.",
    ("split(self.r_proj(codes))", "split(codes)"),
)
add(
    "relative_attention_gradient_to_memory",
    "A gradient flows into the memory; detach it, so that training stays within the segment.",
    (JOINED, "torch.cat([memory, x], dim=1)"),
)
add(
    "relative_attention_memory_ignored",
    "The memory is not read; keys and values come from memory and x, joined along the length.",
    (JOINED, "x"),
)
add(
    "relative_attention_memory_after_x",
    "You put the memory behind x; it comes before.",
    (JOINED, "torch.cat([x, memory.detach()], dim=1)"),
)
add(
    "relative_attention_memory_added",
    "You add the memory to x; join them along the length.",
    (
        JOINED,
        "x + F.pad(memory.detach(), (0, 0, 0, x.shape[1]))[:, : x.shape[1]]",
    ),
)
add(
    "relative_attention_queries_count_from_zero",
    "Your queries are numbered from 0 although the memory stands before them; place t of x is "
    "place M + t, which sees the whole memory.",
    ("places[total - length :]", "places[:length]"),
)
add(
    "relative_attention_sees_the_future",
    "A place sees those after it; mask keys with a negative distance before softmax.",
    (PAST_ONLY, "scores"),
)
add(
    "relative_attention_hides_itself",
    "A place does not see itself; mask distances below 0 only.",
    ("distance < 0", "distance <= 0"),
)
add(
    "relative_attention_without_output_projection",
    "The joined heads are returned as they are; out_proj comes last.",
    ("self.out_proj(joined)", "joined"),
)
add(
    "relative_attention_without_dropout",
    "Nothing is dropped in train mode; apply dropout to the weights.",
    (RELATIVE_WEIGHTS, "torch.softmax(scores, dim=-1)"),
)
add(
    "relative_attention_dropout_on_output",
    "Your dropout acts on the output; it acts on the weights, after softmax.",
    (RELATIVE_WEIGHTS, "torch.softmax(scores, dim=-1)"),
    ("self.out_proj(joined)", "self.dropout(self.out_proj(joined))"),
)
add(
    "relative_attention_projections_with_bias",
    "Your projections have a bias; the five of them have none, content_bias and position_bias take "
    "its place.",
    *(
        (
            f"self.{name} = nn.Linear(hidden, hidden, bias=False)",
            f"self.{name} = nn.Linear(hidden, hidden)",
        )
        for name in ("q_proj", "k_proj", "v_proj", "r_proj", "out_proj")
    ),
)
add(
    "relative_attention_random_biases",
    "content_bias and position_bias are drawn at random; they begin with zeros.",
    (
        "self.content_bias = nn.Parameter(torch.zeros(",
        "self.content_bias = nn.Parameter(torch.randn(",
    ),
    (
        "self.position_bias = nn.Parameter(torch.zeros(",
        "self.position_bias = nn.Parameter(torch.randn(",
    ),
)
add(
    "relative_attention_heads_unchecked",
    "A number of heads that does not divide hidden is not refused; raise a ValueError.",
    (HEADS_DIVIDE, "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "update_memory", "brt-transformer-xl")
KEPT = "joined[:, max(joined.shape[1] - length, 0) :].detach()"
TOGETHER = "torch.cat([memory, hidden], dim=1)"
add(
    "update_memory_added",
    "You add the new states to the memory; join them along the length.",
    (TOGETHER, "memory + hidden"),
)
add(
    "update_memory_newest_first",
    "You put the new states before the memory; the memory is older and comes first.",
    (TOGETHER, "torch.cat([hidden, memory], dim=1)"),
)
add(
    "update_memory_along_batch",
    "You join along the batch; dim=1 is the length.",
    (TOGETHER, "torch.cat([memory, hidden], dim=0)"),
)
add(
    "update_memory_forgets_the_old",
    "The old memory is dropped even where it would still fit; keep the last places of both.",
    ("hidden if memory is None else " + TOGETHER, "hidden"),
)
add(
    "update_memory_not_detached",
    "The memory still hangs on the graph, so that training would reach back through all earlier "
    "segments; detach it.",
    (KEPT, "joined[:, max(joined.shape[1] - length, 0) :]"),
)
add(
    "update_memory_oldest_kept",
    "You keep the first places; keep the last ones, which are the newest.",
    (KEPT, "joined[:, :length].detach()"),
)
add(
    "update_memory_zero_keeps_all",
    "With length 0 the slice [:, -0:] is the whole; count from the front, or treat 0 by itself.",
    (KEPT, "joined[:, -length:].detach()"),
)
add(
    "update_memory_zero_refused",
    "A length of 0 is refused; it means no memory, (B, 0, D).",
    ("if length < 0:", "if length <= 0:"),
)
add(
    "update_memory_grows",
    "Your memory grows without end; keep the last `length` places.",
    (KEPT, "joined.detach()"),
)
add(
    "update_memory_length_unchecked",
    "A negative length is not refused; raise a ValueError.",
    ("if length < 0:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "replace_tokens", "brt-electra")
GENERATED = "torch.softmax(scores.detach()[chosen], dim=-1)"
DRAWN = "torch.multinomial(probabilities, 1).squeeze(1)"
DIFFERS = "return replaced, replaced != ids"
add(
    "replaced_by_argmax",
    "You take the generator's best token; draw one from softmax(scores), so that likely mistakes "
    "occur in their proportion.",
    (DRAWN, "probabilities.argmax(dim=-1)"),
)
add(
    "replaced_wherever_chosen",
    "You call every chosen token replaced; where the generator drew the original, nothing was "
    "replaced.",
    (DIFFERS, "return replaced, chosen"),
)
add(
    "replaced_compared_with_labels",
    "You compare with labels, which hold IGNORE where nothing was chosen; compare with ids.",
    (DIFFERS, "return replaced, replaced != labels"),
)
add(
    "replaced_marks_inverted",
    "is_replaced is inverted: True means that the token differs from the original.",
    (DIFFERS, "return replaced, replaced == ids"),
)
add(
    "replaced_everywhere",
    "You draw at every place; only where labels is not IGNORE a token is replaced.",
    ("chosen = labels != IGNORE", "chosen = torch.ones_like(labels, dtype=torch.bool)"),
)
add(
    "replaced_uniformly",
    "You draw all tokens with the same probability; softmax(scores) over the vocabulary, the last "
    "axis, decides.",
    (GENERATED, "torch.ones_like(scores.detach()[chosen])"),
)
add(
    "replaced_softmax_over_places",
    "Your softmax runs over the places; it runs over the vocabulary, the last axis.",
    (GENERATED, "torch.softmax(scores.detach()[chosen], dim=0)"),
)
add(
    "replaced_never_by_original",
    "The original is never drawn; leave it among the candidates, the generator may be right.",
    (
        GENERATED,
        "torch.softmax(\n            scores.detach()[chosen].scatter(1, ids[chosen].unsqueeze(1), "
        "-1e4), dim=-1\n        )",
    ),
)
add(
    "replaced_one_draw_for_all",
    "One token is drawn for all chosen places; each needs a draw of its own, from its own scores.",
    (DRAWN, "torch.multinomial(probabilities[:1], 1).squeeze(1)"),
)
add(
    "replaced_in_place",
    "You write into ids, so that nothing seems to be replaced, and the caller's tokens are lost; "
    "work on a copy.",
    ("replaced = ids.clone()", "replaced = ids"),
)

add = mistakes_in(MISCONCEPTIONS, "replaced_token_loss", "brt-electra")
TARGETS = "is_replaced[mask].to(scores.dtype)"
DETECTED = "F.binary_cross_entropy_with_logits(scores[mask], targets)"
add(
    "detection_only_where_replaced",
    "Only replaced tokens count in your loss; all real tokens do, so that ELECTRA learns from "
    "every place.",
    (DETECTED, "F.softplus(-scores[mask & is_replaced]).mean()"),
)
add(
    "detection_padding_counted",
    "Padding counts in your loss; take the mean over real tokens only.",
    (TARGETS, "is_replaced.to(scores.dtype)"),
    (DETECTED, "F.binary_cross_entropy_with_logits(scores, targets)"),
)
add(
    "detection_divided_by_all_places",
    "You divide by the number of all places, padding included; divide by that of real tokens.",
    (
        DETECTED,
        "F.binary_cross_entropy_with_logits(scores[mask], targets, reduction='sum') / mask.numel()",
    ),
)
add(
    "detection_mean_of_rows",
    "You take the mean of the rows' means, so that tokens of short rows weigh more; every real "
    "token weighs the same.",
    (
        DETECTED,
        "torch.stack([F.binary_cross_entropy_with_logits(s[m], r[m].to(s.dtype)) "
        "for s, r, m in zip(scores, is_replaced, mask)]).mean()",
    ),
)
add(
    "detection_summed",
    "Your loss is a sum; it is the mean over the real tokens.",
    (DETECTED, "F.binary_cross_entropy_with_logits(scores[mask], targets, reduction='sum')"),
)
add(
    "detection_labels_inverted",
    "Your targets are inverted: a large score says replaced, so the target is 1 where is_replaced.",
    (TARGETS, "(~is_replaced[mask]).to(scores.dtype)"),
)
add(
    "detection_sigmoid_twice",
    "You apply a sigmoid and then a loss that applies it again; give the scores as they are.",
    (DETECTED, "F.binary_cross_entropy_with_logits(torch.sigmoid(scores[mask]), targets)"),
)
add(
    "detection_log_of_sigmoid",
    "The sigmoid of scores of +-1000 is 1 or 0, whose logarithm is lost; use the loss that takes "
    "scores, or logsigmoid.",
    (DETECTED, "F.binary_cross_entropy(torch.sigmoid(scores[mask]), targets)"),
)
add(
    "detection_mask_inverted",
    "Your mean runs over the padding; True in the mask means a real token.",
    (TARGETS, "is_replaced[~mask].to(scores.dtype)"),
    (DETECTED, "F.binary_cross_entropy_with_logits(scores[~mask], targets)"),
)

add = mistakes_in(MISCONCEPTIONS, "TwoDirections", "brt-elmo")
TURNED = "torch.where(place < length, length.long() - 1 - place, place)"
BACKWARDS = "self.backward_lstm(turn(x))"
SIDE_BY_SIDE = "torch.cat([forwards, turn(backwards)], dim=2)"
FOLLOWING = "F.cross_entropy(self.output(forwards[:, :-1])[both], ids[:, 1:][both])"
PRECEDING = "F.cross_entropy(self.output(backwards[:, 1:])[both], ids[:, :-1][both])"
REAL_PAIRS = "both = torch.ones_like(ids[:, 1:], dtype=torch.bool) if mask is None else mask[:, 1:]"
add(
    "two_directions_padding_read_first",
    "The backward LSTM reads the padding before the tokens; turn only the real tokens of each row "
    "round.",
    (TURNED, "(ids.shape[1] - 1 - place).expand(ids.shape)"),
)
add(
    "two_directions_not_turned_back",
    "The backward states stand in reading order; turn them round again, so that they stand at "
    "their tokens.",
    (SIDE_BY_SIDE, "torch.cat([forwards, backwards], dim=2)"),
)
add(
    "two_directions_both_forward",
    "Both LSTMs read from left to right; give the backward one the tokens turned round.",
    (BACKWARDS, "self.backward_lstm(x)"),
    (SIDE_BY_SIDE, "torch.cat([forwards, backwards], dim=2)"),
)
add(
    "two_directions_halves_exchanged",
    "The backward states stand first; the forward ones do.",
    (SIDE_BY_SIDE, "torch.cat([turn(backwards), forwards], dim=2)"),
    ("forwards, backwards = self(ids, mask)", "backwards, forwards = self(ids, mask)"),
)
add(
    "two_directions_one_lstm",
    "forward_lstm reads in both directions; each direction has an LSTM of its own.",
    (BACKWARDS, "self.forward_lstm(turn(x))"),
)
add(
    "two_directions_both_predict_next",
    "Your backward states predict the next token, which they have already read; they predict the "
    "one before.",
    (PRECEDING, "F.cross_entropy(self.output(backwards[:, :-1])[both], ids[:, 1:][both])"),
)
add(
    "two_directions_predict_themselves",
    "Each state predicts the token at its own place, which it has read; the forward one predicts "
    "the next, the backward one the one before.",
    (FOLLOWING, "F.cross_entropy(self.output(forwards[:, 1:])[both], ids[:, 1:][both])"),
    (PRECEDING, "F.cross_entropy(self.output(backwards[:, :-1])[both], ids[:, :-1][both])"),
)
add(
    "two_directions_neighbours_exchanged",
    "Each direction predicts the token that it has read just before; the forward states predict "
    "the next one, the backward states the one before.",
    (FOLLOWING, "F.cross_entropy(self.output(forwards[:, 1:])[both], ids[:, :-1][both])"),
    (PRECEDING, "F.cross_entropy(self.output(backwards[:, :-1])[both], ids[:, 1:][both])"),
)
add(
    "two_directions_padding_predicted",
    "Padding is predicted, and predicts; only real tokens with a real neighbour count.",
    (REAL_PAIRS, "both = torch.ones_like(ids[:, 1:], dtype=torch.bool)"),
)
add(
    "two_directions_last_predicts_padding",
    "The last real token of a row predicts the padding behind it; a pair counts where both are "
    "real.",
    (
        REAL_PAIRS,
        "both = torch.ones_like(ids[:, 1:], dtype=torch.bool) if mask is None else mask[:, :-1]",
    ),
)
add(
    "two_directions_only_next",
    "Your loss is that of the forward direction alone; add that of the backward one.",
    ("return following + preceding", "return following"),
)
add(
    "two_directions_loss_halved",
    "Your loss is the mean of both directions; it is their sum.",
    ("return following + preceding", "return (following + preceding) / 2"),
)
