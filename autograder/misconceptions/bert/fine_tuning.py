"""Known mistakes of `bert-fine_tuning`: classifying, finding spans, tagging.

Spans that end before they start, every piece of a word tagged, a CRF that is greedy.
"""

from __future__ import annotations

from autograder.units.variants import Misconception, mistakes_in

MISCONCEPTIONS: list[Misconception] = []

# --------------------------------------------------------------------------------------------
# Fine-tuning
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "SequenceClassifier", "brt-single")
GET = "_, pooled = self.bert(input_ids, token_type_ids, mask)"
SCORES = "return self.classifier(self.dropout(pooled))"
add(
    "classifier_reads_hidden_cls",
    "You classify the hidden state of [CLS]; the pooled vector, to which pooler and tanh were "
    "applied, is the second result of bert.",
    (GET, "pooled = self.bert(input_ids, token_type_ids, mask)[0][:, 0]"),
)
add(
    "classifier_reads_mean",
    "You classify the mean of the hidden states; take the pooled vector.",
    (GET, "pooled = self.bert(input_ids, token_type_ids, mask)[0].mean(dim=1)"),
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
    (GET, "_, pooled = self.bert(input_ids, None, mask)"),
)
add(
    "classifier_mask_not_passed",
    "The mask does not reach the BERT; pass it on.",
    (GET, "_, pooled = self.bert(input_ids, token_type_ids)"),
)
add(
    "classifier_mask_as_segments",
    "You pass the mask where bert expects the segment ids; they come second, the mask third.",
    (
        GET,
        "_, pooled = self.bert(input_ids, None if mask is None else mask.long(), token_type_ids)",
    ),
)
add(
    "classifier_segments_from_mask",
    "Where a mask comes without segment ids, your real tokens are of segment 1; hand on None: "
    "segment 0 everywhere.",
    (
        GET,
        "if token_type_ids is None and mask is not None:\n"
        "            token_type_ids = mask.long()\n        " + GET,
    ),
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
    "classifier_dropout_not_by_default",
    "Unless dropout is given, yours is 0; it is 0.1 then.",
    ("dropout: float = 0.1", "dropout: float = 0.0"),
)
add(
    "classifier_dropped_alike",
    "You drop the same features in every example of the batch; dropout decides for every entry "
    "anew.",
    ("self.dropout(pooled)", "pooled * self.dropout(torch.ones_like(pooled[:1]))"),
)
add(
    "classifier_bert_drawn_anew",
    "You draw the weights of the BERT that is given anew, so that what it has learned is lost; "
    "init_weights is for the classifier alone.",
    (
        "self.classifier = init_weights(nn.Linear(bert.pooler.in_features, num_labels))",
        "self.classifier = nn.Linear(bert.pooler.in_features, num_labels)\n"
        "        init_weights(self)",
    ),
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
READ = "hidden, _ = self.bert(input_ids, token_type_ids, mask)"
INSIDE_SPAN = "inside = (positions >= 0) & (positions < scores.shape[1])"
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
    ("torch.finfo(scores.dtype).min", "-torch.inf"),
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
    "The mask reaches your scores, but not the BERT; pass it on.",
    (READ, "hidden, _ = self.bert(input_ids, token_type_ids)"),
)
add(
    "span_segments_not_passed",
    "The segment ids, which tell question from passage, do not reach the BERT; pass them on.",
    (READ, "hidden, _ = self.bert(input_ids, None, mask)"),
)
add(
    "span_bert_drawn_anew",
    "You draw the weights of the BERT that is given anew, so that what it has learned is lost; "
    "init_weights is for the classifier alone.",
    (
        "self.classifier = init_weights(nn.Linear(bert.pooler.in_features, 2))",
        "self.classifier = nn.Linear(bert.pooler.in_features, 2)\n        init_weights(self)",
    ),
)
add(
    "span_segments_from_mask",
    "Where a mask comes without segment ids, your real tokens are of segment 1; hand on None: "
    "segment 0 everywhere.",
    (
        READ,
        "if token_type_ids is None and mask is not None:\n"
        "            token_type_ids = mask.long()\n        " + READ,
    ),
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
    (HALF, "halves.append(0.5 * total / len(positions))"),
)
add(
    "span_loss_outside_at_the_last_place",
    "You move a target outside the input to its last position; it is left out.",
    (
        INSIDE_SPAN,
        "positions = positions.clamp(0, scores.shape[1] - 1)\n            " + INSIDE_SPAN,
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
    (INSIDE_SPAN, "inside = positions < scores.shape[1]"),
    (
        "targets = positions.masked_fill(~inside, IGNORE)",
        "targets = positions.clamp(min=0).masked_fill(~inside, IGNORE)",
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
    ("targets = positions.masked_fill(~inside, IGNORE)", "targets = positions"),
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
        "    first = start.masked_fill(outside, -torch.inf).argmax()\n"
        "    return int(first), int(end.masked_fill(outside, -torch.inf).argmax())",
    ),
)
add(
    "best_span_start_first",
    "You take the best start and then the best end for it; the best pair may begin elsewhere.",
    (
        BEST,
        "first = int(start.masked_fill(~passage, -torch.inf).argmax())\n"
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
    (ALLOWED, "allowed = (positions.unsqueeze(1) >= 1) & (length >= 1) & (length <= max_answer)"),
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
    "best_span_of_probabilities",
    "You take the softmax of the scores first, and the best sum of probabilities is another one; "
    "add the scores as they are.",
    (
        "positions = torch.arange(",
        "start, end = start.softmax(dim=0), end.softmax(dim=0)\n    positions = torch.arange(",
    ),
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
    "best_span_null_in_passage",
    "You return (0, 0) for no answer only where position 0 belongs to the passage; the score of "
    "[CLS] counts in any case.",
    (NULL, NULL.replace("and start", "and passage[0] and start")),
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
    "best_span_null_not_beaten_enough",
    "No answer wins in yours wherever the best span is not better by the threshold; it wins where "
    "it is better itself, by more than the threshold.",
    (
        "start[0] + end[0] - totals[best] > null_threshold",
        "totals[best] - start[0] - end[0] < null_threshold",
    ),
)
add(
    "best_span_null_without_best",
    "You compare the score of no answer with the threshold itself; compare by how much it exceeds "
    "the best span's.",
    ("start[0] + end[0] - totals[best]", "start[0] + end[0]"),
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
    "Your positions count from the beginning of the passage; they count from the beginning of the "
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
        "pooled = self.bert(input_ids, token_type_ids, mask)[1]\n"
        "        hidden = pooled.unsqueeze(1).expand(-1, input_ids.shape[1], -1)",
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
    (READ, "hidden, _ = self.bert(input_ids, None, mask)"),
)
add(
    "tagger_mask_not_passed",
    "The mask does not reach the BERT; pass it on.",
    (READ, "hidden, _ = self.bert(input_ids, token_type_ids)"),
)
add(
    "tagger_segments_from_mask",
    "Where a mask comes without segment ids, your real tokens are of segment 1; hand on None: "
    "segment 0 everywhere.",
    (
        READ,
        "if token_type_ids is None and mask is not None:\n"
        "            token_type_ids = mask.long()\n        " + READ,
    ),
)
add(
    "tagger_one_token_squeezed",
    "You squeeze the hidden states, so that an input of one token loses its axis; leave them "
    "(B, T, D).",
    ("self.dropout(hidden)", "self.dropout(hidden.squeeze(1))"),
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
    "tagger_dropout_not_by_default",
    "Unless dropout is given, yours is 0; it is 0.1 then.",
    ("dropout: float = 0.1", "dropout: float = 0.0"),
)
add(
    "tagger_dropped_alike",
    "You drop the same features in every example of the batch; dropout decides for every entry "
    "anew.",
    ("self.dropout(hidden)", "hidden * self.dropout(torch.ones_like(hidden[:1]))"),
)
add(
    "tagger_dropped_as_wholes",
    "You drop whole vectors; dropout decides for every entry anew.",
    ("self.dropout(hidden)", "hidden * self.dropout(torch.ones_like(hidden[..., :1]))"),
)
add(
    "tagger_bert_drawn_anew",
    "You draw the weights of the BERT that is given anew, so that what it has learned is lost; "
    "init_weights is for the classifier alone.",
    (
        "self.classifier = init_weights(nn.Linear(bert.pooler.in_features, num_labels))",
        "self.classifier = nn.Linear(bert.pooler.in_features, num_labels)\n"
        "        init_weights(self)",
    ),
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
        "    positions = [[t for t, other in enumerate(word_ids) if other == word] for word in "
        "words]\n"
        "    return [int(scores[t].mean(dim=0).argmax()) for t in positions]\n    tags = {}\n",
    ),
)
add(
    "tags_best_piece",
    "The piece with the largest score decides; the first does.",
    (
        "tags = {}\n",
        "words = [word for word in dict.fromkeys(word_ids) if word is not None]\n"
        "    positions = [[t for t, other in enumerate(word_ids) if other == word] for word in "
        "words]\n"
        "    return [int(scores[t].amax(dim=0).argmax()) for t in positions]\n    tags = {}\n",
    ),
)
add(
    "tags_worst_label",
    "You take the label with the smallest score; take the largest.",
    (TAGS, "best = scores.argmin(dim=-1).tolist()"),
)
add(
    "tags_over_tokens",
    "You look for the best token of each label; look for the best label of each token: "
    "argmax(dim=-1).",
    (TAGS, "best = scores.argmax(dim=0).tolist()"),
    ("zip(word_ids, best, strict=True)", "zip(word_ids, best, strict=False)"),
)
add(
    "tags_equal_merged",
    "Two words in a row with one tag become one; every word has a tag of its own.",
    (
        "return list(tags.values())",
        "found = list(tags.values())\n"
        "    return [tag for n, tag in enumerate(found) if n == 0 or tag != found[n - 1]]",
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
    "crf_score_squeezed",
    "You squeeze every axis of length 1, so that rows of one token lose theirs; give .squeeze the "
    "axis of the tags.",
    (
        "emissions.gather(2, tags.unsqueeze(2)).squeeze(2)",
        "emissions.gather(2, tags.unsqueeze(2)).squeeze()",
    ),
)
add(
    "crf_score_moves_into_padding",
    "The move from the last real token into the padding counts; a transition counts where the "
    "token that it leads to is real.",
    ("moved.masked_fill(~mask[:, 1:], 0.0)", "moved.masked_fill(~mask[:, :-1], 0.0)"),
)
add(
    "crf_score_padding_transitions",
    "Transitions between padded positions are added too; they count between real tokens only.",
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
    "You look for the last tag at the row's length, one position too far; positions count from 0.",
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
    "crf_partition_mask_of_first_row",
    "Where the first row ends, all of yours do; each row has its own mask.",
    (SUMS_KEPT, "torch.where(mask[:1, t : t + 1], longer, sums)"),
)
add(
    "crf_partition_zeros_at_padding",
    "Sums become 0 at padding, and what was summed before is lost; they stay as they are there.",
    (SUMS_KEPT, "longer * mask[:, t : t + 1]"),
)
add(
    "crf_partition_mask_of_place_before",
    "You ask whether the position before is real, so that one step into the padding counts; ask "
    "for the position itself.",
    (SUMS_KEPT, "torch.where(mask[:, t - 1 : t], longer, sums)"),
)
add(
    "crf_partition_emissions_shifted",
    "A step adds the emissions of the position before; add those of the position that it leads to.",
    ("+ emissions[:, t]", "+ emissions[:, t - 1]"),
)

add = mistakes_in(MISCONCEPTIONS, "viterbi", "brt-viterbi")
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
    "viterbi_scores_without_end",
    "The scores that you return lack the end scores, by which the last tag is chosen; return the "
    "maximum with them.",
    ("return paths, scores", "return paths, scores - end[last]"),
)
add(
    "viterbi_maximum_over_next_tag",
    "You take the maximum over the tags that follow; take it over those before, so that a vector "
    "for the tag now is left.",
    ("ways.max(dim=1)", "ways.max(dim=2)"),
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
    "viterbi_length_of_first_row",
    "All your paths are as long as the first; each row has its own length.",
    ("enumerate(mask.sum(dim=1).tolist())", "enumerate([int(mask[0].sum())] * len(mask))"),
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

add = mistakes_in(MISCONCEPTIONS, "BiLSTMCRF", "brt-viterbi")
LSTM = "self.lstm = nn.LSTM(embed_dim, hidden_size, batch_first=True, bidirectional=True)"
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
    (LSTM, "self.lstm = nn.LSTM(embed_dim, hidden_size, bidirectional=True)"),
    (RUN, "states, _ = self.lstm(self.embedding(ids))"),
)
add(
    "bilstm_one_direction",
    "Your LSTM reads in one direction only; create it with bidirectional=True, and the linear "
    "layer for 2 hidden features.",
    (LSTM, "self.lstm = nn.LSTM(embed_dim, hidden_size, batch_first=True)"),
    ("nn.Linear(2 * hidden_size, num_tags)", "nn.Linear(hidden_size, num_tags)"),
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
    "bilstm_decodes_tensors",
    "You return tensors, one for each row; the CRF's lists of int are the result.",
    (CRF_DECODE, "[torch.tensor(path) for path in " + CRF_DECODE + "]"),
)
add(
    "bilstm_decodes_padding",
    "You decode padding too; hand the mask to the CRF.",
    (CRF_DECODE, "self.crf.decode(self(ids, mask), torch.ones_like(mask))"),
)
