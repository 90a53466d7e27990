"""Known mistakes of `bert-relatives`: ALBERT, XLNet, ELECTRA, ELMo.

Layers that are not shared, an order taken for ranks, memory that learns, padding that is read
first.
"""

from __future__ import annotations

from autograder.units.variants import Misconception, mistakes_in

MISCONCEPTIONS: list[Misconception] = []

add = mistakes_in(MISCONCEPTIONS, "SharedEncoder", "brt-albert")
ONE_LAYER = "self.layer = BertLayer(d_model, num_heads, d_ff, dropout)"
AGAIN = "for _ in range(self.num_layers):"
SHARED = "x = self.layer(x, mask)"
add(
    "shared_encoder_separate_layers",
    "You make a layer for each depth, each with parameters of its own; make one and apply it again "
    "and again.",
    (
        ONE_LAYER,
        "self.layer = nn.ModuleList(\n"
        "            BertLayer(d_model, num_heads, d_ff, dropout) for _ in "
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
    "shared_encoder_once_too_few",
    "The layer is applied once less than num_layers times.",
    (AGAIN, "for _ in range(self.num_layers - 1):"),
)
add(
    "shared_encoder_dropped_again",
    "You drop what the layer returns; dropout is the layer's own, and it has done so already.",
    (SHARED, "x = self.layer.dropout(self.layer(x, mask))"),
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
    ("d_ff, dropout)\n        ### END", "d_ff)\n        ### END"),
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
    "You compare the entries of order, which are positions; compare when each position is "
    "predicted: the inverse permutation, order.argsort().",
    (RANK, "rank = order"),
)
add(
    "permutation_masks_content_without_self",
    "Your content mask hides a position from itself; content may see its own token.",
    (CONTENT, "content = rank < rank.unsqueeze(1)"),
)
add(
    "permutation_masks_query_with_self",
    "Your query mask lets a position see itself, so that the token to be predicted is seen; query "
    "may see only what comes before.",
    (QUERY, "query = rank <= rank.unsqueeze(1)"),
)
add(
    "permutation_masks_inverted",
    "True and False are exchanged in both masks; True means *may see*.",
    (QUERY, "query = rank >= rank.unsqueeze(1)"),
    (CONTENT, "content = rank > rank.unsqueeze(1)"),
)
add(
    "permutation_masks_transposed",
    "Rows and columns are exchanged: row i says what position i may see, so it is True where j "
    "comes before i.",
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
    "Row k of your masks belongs to the position predicted as number k; rows stand at the "
    "positions' own numbers, so it should be row order[k].",
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
    "You refuse doubles, but not positions outside 0 .. T - 1; an order such as [1, 2, 3] is no "
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
HEADS_DIVIDE = "if num_heads < 1 or d_model % num_heads != 0:"
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
    "You encode j - i, with the wrong sign; the distance is i - j, 0 for the position itself and "
    "positive for what is before it.",
    (CODES, "relative_code(-torch.arange(total, device=x.device), width)"),
)
add(
    "relative_attention_absolute_places",
    "You encode the position of the key; what counts is its distance from the query, i - j.",
    (RELATIVE_INDEX, "index = positions.expand(by_distance.shape)"),
)
add(
    "relative_attention_codes_not_shifted",
    "The terms of distance 0, 1, ... stand at keys 0, 1, ..., for every query; key j needs the one "
    "for i - j, counted backwards from the query.",
    (RELATIVE_INDEX, "index = positions.flip(0).expand(by_distance.shape)"),
)
add(
    "relative_attention_distances_without_memory",
    "Your distances count x_t as position t although the memory stands before it; in the joined "
    "sequence it is position M + t.",
    (CODES, "relative_code(torch.arange(length - total, length, device=x.device), width)"),
)
add(
    "relative_attention_one_bias_for_both",
    "content_bias stands in both terms; position_bias belongs to that of the distances.",
    (BY_DISTANCE, "(queries + self.content_bias.unsqueeze(1))"),
)
add(
    "relative_attention_biases_alias",
    "content_bias and position_bias are one and the same parameter; make two.",
    (
        "self.position_bias = nn.Parameter(torch.zeros(num_heads, d_model // num_heads))",
        "self.position_bias = self.content_bias",
    ),
)
add(
    "relative_attention_heads_interleaved",
    "Head h takes every H-th feature; its features stand next to each other, so cut the width into "
    "(H, D/H).",
    (
        "vectors.unflatten(-1, (self.num_heads, head)).transpose(-2, -3)",
        "vectors.unflatten(-1, (head, self.num_heads)).movedim(-1, -3)",
    ),
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
    "relative_attention_x_detached",
    "You detach x along with the memory, so that keys and values pass no gradient to it; detach "
    "the memory alone.",
    (
        "context = x if memory is None else " + JOINED,
        "context = x if memory is None else torch.cat([memory, x], dim=1).detach()",
    ),
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
    "Your queries are numbered from 0 although the memory stands before them; position t of x is "
    "position M + t, which sees the whole memory.",
    ("positions[total - length :]", "positions[:length]"),
)
add(
    "relative_attention_sees_the_future",
    "A position sees those after it; mask keys with a negative distance before softmax.",
    (PAST_ONLY, "scores"),
)
add(
    "relative_attention_hides_itself",
    "A position does not see itself; mask distances below 0 only.",
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
    "relative_attention_scores_dropped",
    "You drop scores before the softmax; a score of 0 still gets weight. Drop the weights.",
    (SCALED, f"self.dropout({SCALED})"),
    (RELATIVE_WEIGHTS, "torch.softmax(scores, dim=-1)"),
)
add(
    "relative_attention_heads_dropped",
    "You drop all weights of a head at once; dropout decides about every weight by itself.",
    (
        RELATIVE_WEIGHTS,
        RELATIVE_WEIGHTS.replace("self.dropout(", "F.dropout2d(")[:-1]
        + ", self.dropout.p, self.training)",
    ),
)
add(
    "relative_attention_one_draw_for_all_heads",
    "All your heads lose the same weights; dropout decides about every weight by itself.",
    (
        RELATIVE_WEIGHTS,
        "torch.softmax(scores, dim=-1) * self.dropout(torch.ones_like(scores[:, :1]))",
    ),
)
add(
    "relative_attention_one_draw_for_the_batch",
    "All examples of a batch lose the same weights; dropout decides about every weight by itself.",
    (RELATIVE_WEIGHTS, "torch.softmax(scores, dim=-1) * self.dropout(torch.ones_like(scores[:1]))"),
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
    "its position.",
    *(
        (
            f"self.{name} = nn.Linear(d_model, d_model, bias=False)",
            f"self.{name} = nn.Linear(d_model, d_model)",
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
    "relative_attention_many_heads_accepted",
    "More heads than features are not refused; d_model must be a multiple of the number of heads.",
    (HEADS_DIVIDE, "if num_heads < d_model and d_model % num_heads != 0:"),
)
add(
    "relative_attention_heads_unchecked",
    "A number of heads that does not divide d_model is not refused; raise a ValueError.",
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
    "The old memory is dropped even where it would still fit; keep the last positions of both.",
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
    "You keep the first positions; keep the last ones, which are the newest.",
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
    "Your memory grows without end; keep the last `length` positions.",
    (KEPT, "joined.detach()"),
)
add(
    "update_memory_length_unchecked",
    "A negative length is not refused; raise a ValueError.",
    ("if length < 0:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "replace_tokens", "brt-electra")
GENERATED = "torch.softmax(logits.detach()[chosen], dim=-1)"
DRAWN = "torch.multinomial(probabilities, 1).squeeze(1)"
DIFFERS = "return replaced, replaced != ids"
add(
    "replaced_by_argmax",
    "You take the generator's best token; draw one from softmax(logits), so that likely mistakes "
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
    "You draw at every position; only where labels is not IGNORE a token is replaced.",
    ("chosen = labels != IGNORE", "chosen = torch.ones_like(labels, dtype=torch.bool)"),
)
add(
    "replaced_uniformly",
    "You draw all tokens with the same probability; softmax(logits) over the vocabulary, the last "
    "axis, decides.",
    (GENERATED, "torch.ones_like(logits.detach()[chosen])"),
)
add(
    "replaced_softmax_over_places",
    "Your softmax runs over the positions; it runs over the vocabulary, the last axis.",
    (GENERATED, "torch.softmax(logits.detach()[chosen], dim=0)"),
)
add(
    "replaced_never_by_original",
    "The original is never drawn; leave it among the candidates, the generator may be right.",
    (
        GENERATED,
        "torch.softmax(\n            logits.detach()[chosen].scatter(1, ids[chosen].unsqueeze(1), "
        "-1e4), dim=-1\n        )",
    ),
)
add(
    "replaced_by_the_likeliest",
    "You draw among the most probable tokens only; ELECTRA draws from the whole softmax.",
    (
        "        replaced[chosen] = ",
        "        least = probabilities.topk(min(8, logits.shape[2])).values[:, -1:]\n"
        "        probabilities = probabilities.where(probabilities >= least, 0.0)\n"
        "        replaced[chosen] = ",
    ),
)
add(
    "replaced_one_draw_for_all",
    "One token is drawn for all chosen positions; each needs a draw from its own logits.",
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
    "every position.",
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
    "You divide by the number of all positions, padding included; divide by that of real tokens.",
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
    "detection_balanced",
    "You add the means over replaced and over original tokens; every real token weighs the same.",
    (
        DETECTED,
        "sum(F.binary_cross_entropy_with_logits(scores[mask][targets == each], "
        "targets[targets == each]) for each in (0, 1)) / 2",
    ),
)
add(
    "detection_first_token_left_out",
    "The first token of a row does not count in your loss; all real tokens do, special ones too.",
    (TARGETS, "is_replaced[:, 1:][mask[:, 1:]].to(scores.dtype)"),
    (
        DETECTED,
        "F.binary_cross_entropy_with_logits(scores[:, 1:][mask[:, 1:]], targets)",
    ),
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
TURNED = "torch.where(position < length, length.long() - 1 - position, position)"
BACKWARDS = "self.backward_lstm(turn(x))"
SIDE_BY_SIDE = "torch.cat([forwards, turn(backwards)], dim=2)"
FOLLOWING = "F.cross_entropy(self.output(forwards[:, :-1])[both], ids[:, 1:][both])"
PRECEDING = "F.cross_entropy(self.output(backwards[:, 1:])[both], ids[:, :-1][both])"
REAL_PAIRS = "both = torch.ones_like(ids[:, 1:], dtype=torch.bool) if mask is None else mask[:, 1:]"
add(
    "two_directions_padding_read_first",
    "The backward LSTM reads the padding before the tokens; flip only the real tokens of each row "
    "round.",
    (TURNED, "(ids.shape[1] - 1 - position).expand(ids.shape)"),
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
    "Each state predicts the token at its own position, which it has read; the forward one "
    "predicts the next, the backward one the one before.",
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
    "two_directions_padding_guessed",
    "Without a mask you take ids of 0 for padding; None means that all tokens are real.",
    (
        "length = x.new_full((len(ids), 1), ids.shape[1]) if mask is None else mask.sum(1, True)",
        "length = ((ids != 0) if mask is None else mask).sum(1, True)",
    ),
)
add(
    "two_directions_loss_without_mask",
    "loss makes its states without the mask, so that the backward LSTM has read padding first.",
    ("self(ids, mask).chunk", "self(ids).chunk"),
)
add(
    "two_directions_mean_of_rows",
    "You take the mean of the rows' means, so that tokens of short rows weigh more; every position "
    "with a neighbour weighs the same.",
    (
        FOLLOWING,
        "torch.stack([F.cross_entropy(self.output(states[:-1])[real], row[1:][real]) "
        "for states, row, real in zip(forwards, ids, both) if real.any()]).mean()",
    ),
    (
        PRECEDING,
        "torch.stack([F.cross_entropy(self.output(states[1:])[real], row[:-1][real]) "
        "for states, row, real in zip(backwards, ids, both) if real.any()]).mean()",
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
