"""Known mistakes of `gpt-transfer`: somebody else's weights, fine-tuning, prompts.

Weights of a checkpoint that nobody transposed, a mask on the prompt, one order where both belong,
prompts that end in the middle.
"""

from __future__ import annotations

from autograder.units.variants import Misconception, mistakes_in

MISCONCEPTIONS: list[Misconception] = []

# --------------------------------------------------------------------------------------------
# Somebody else's weights
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "rename_parameters", "gpt-checkpoint")
TURN = 'if ".c_" in part and ending == "weight":'
TURNED = "tensor = tensor.T.contiguous()"
PUT = 'renamed[f"blocks.{number}.{parts[part]}.{ending}"] = tensor'
SHORT = 'short = name.removeprefix("transformer.")'
SKIP = 'if short in ("lm_head.weight", "position_ids"):'
MASKS = 'if in_block and rest in ("attn.bias", "attn.masked_bias"):'
REFUSE = 'if not in_block or part not in parts or ending not in ("weight", "bias"):'
LOST = "renamed[tables[short]] = tensor"
add(
    "rename_not_transposed",
    "You leave the weights of the c_ layers as they are; those layers are Conv1D, with weights "
    "(in, out), so transpose them.",
    (TURNED, "pass"),
)
add(
    "rename_reshaped",
    "You reshape the weights to (out, in), which scrambles them; transpose them.",
    (TURNED, "tensor = tensor.reshape(tensor.shape[::-1])"),
)
add(
    "rename_not_contiguous",
    "Your transposed weights are views of theirs, .T alone; .contiguous() copies them into the new "
    "order.",
    (TURNED, "tensor = tensor.T"),
)
add(
    "rename_copied",
    "You copy tensors that stay as they are; hand on the very ones that are given, or a large "
    "checkpoint needs its memory twice.",
    (PUT, PUT.replace("= tensor", "= tensor.clone()")),
    (LOST, LOST.replace("= tensor", "= tensor.clone()")),
)
add(
    "rename_to_float32",
    "You convert the tensors to float32; each keeps its dtype.",
    (PUT, PUT.replace("= tensor", "= tensor.float()")),
    (LOST, LOST.replace("= tensor", "= tensor.float()")),
)
add(
    "rename_all_transposed",
    "You transpose every matrix; the embeddings of tokens and positions stay as they are.",
    (LOST, "renamed[tables[short]] = tensor.T if tensor.ndim == 2 else tensor"),
)
add(
    "rename_tokens_transposed",
    "You transpose the token embedding; it is (V, D) in both.",
    (LOST, 'renamed[tables[short]] = tensor.T if "token" in tables[short] else tensor'),
)
add(
    "rename_square_not_transposed",
    "You transpose by shape and leave square matrices as they are; c_proj of the attention is one, "
    "and is transposed too.",
    (TURN, TURN.replace(":", " and len(set(tensor.shape)) == 2:")),
)
add(
    "rename_only_qkv_transposed",
    "You transpose c_attn only; c_proj and c_fc are Conv1D as well.",
    (TURN, 'if "c_attn" in part and ending == "weight":'),
)
add(
    "rename_c_fc_not_transposed",
    "You forget to transpose c_fc; all four c_ layers are Conv1D.",
    (TURN, 'if ".c_" in part and part != "mlp.c_fc" and ending == "weight":'),
)
add(
    "rename_projections_exchanged",
    "You exchange the two c_proj: that of attn is attention.out_proj, that of mlp "
    "feed_forward.w_2.",
    ('"attn.c_proj": "attention.out_proj"', '"attn.c_proj": "feed_forward.w_2"'),
    ('"mlp.c_proj": "feed_forward.w_2"', '"mlp.c_proj": "attention.out_proj"'),
)
add(
    "rename_projections_confused",
    "Both c_proj end up under one name, so that a tensor is lost; that of attn is "
    "attention.out_proj.",
    ('"attn.c_proj": "attention.out_proj"', '"attn.c_proj": "feed_forward.w_2"'),
)
add(
    "rename_feed_forward_exchanged",
    "You exchange w_1 and w_2: c_fc is w_1, c_proj is w_2.",
    ('"mlp.c_fc": "feed_forward.w_1"', '"mlp.c_fc": "feed_forward.w_2"'),
    ('"mlp.c_proj": "feed_forward.w_2"', '"mlp.c_proj": "feed_forward.w_1"'),
)
add(
    "rename_norms_exchanged",
    "You exchange the two norms of a block: ln_1 is norm_1, before the attention in GPT-2.",
    ('"ln_1": "norm_1"', '"ln_1": "norm_2"'),
    ('"ln_2": "norm_2"', '"ln_2": "norm_1"'),
)
add(
    "rename_tables_exchanged",
    "You exchange two embeddings: wte holds the tokens, wpe the positions.",
    ('"wte.weight": "token.weight"', '"wte.weight": "position.weight"'),
    ('"wpe.weight": "position.weight"', '"wpe.weight": "token.weight"'),
)
add(
    "rename_final_norm_lost",
    "You lose ln_f; it is final_norm.",
    (LOST, 'if short[:4] != "ln_f":\n                renamed[tables[short]] = tensor'),
)
add(
    "rename_first_unknown",
    "You do not know GPT-1's names of the embeddings, tokens_embed and positions_embed.",
    ('"tokens_embed.weight": "token.weight",', ""),
    ('"positions_embed.weight": "position.weight",', ""),
)
add(
    "rename_prefix_kept",
    "You keep the prefix transformer.; our names have none.",
    (PUT, "renamed[name[: len(name) - len(short)] + " + PUT.removeprefix("renamed[")),
    (LOST, "renamed[name[: len(name) - len(short)] + tables[short]] = tensor"),
)
add(
    "rename_prefix_unknown",
    "You refuse names that begin with transformer.; take the prefix away.",
    (SHORT, "short = name"),
)
add(
    "rename_head_kept",
    "You keep lm_head.weight; the head is the token embedding, so leave it out.",
    (
        SKIP,
        'if short == "lm_head.weight":\n            renamed["head.weight"] = tensor\n        '
        + SKIP,
    ),
)
add(
    "rename_head_for_tokens",
    "You take lm_head.weight for the token embedding where there is none; leave it out always.",
    (
        SKIP,
        'if short == "lm_head.weight":\n'
        '            renamed.setdefault("token.weight", tensor)\n        ' + SKIP,
    ),
)
add(
    "rename_head_refused",
    "You refuse lm_head.weight; it is the token embedding again, so leave it out.",
    (SKIP, 'if short == "position_ids":'),
)
add(
    "rename_masks_kept",
    "You keep h.i.attn.bias as a parameter; it is the causal mask, so leave it out.",
    (
        MASKS,
        'if in_block and rest == "attn.bias":\n'
        '            renamed[f"blocks.{number}.attention.bias"] = tensor\n        ' + MASKS,
    ),
)
add(
    "rename_masks_refused",
    "You refuse h.i.attn.bias and masked_bias; they hold the causal mask, so leave them out.",
    (MASKS, "if False:"),
)
add(
    "rename_every_bias_dropped",
    "You leave out biases of the attention together with its masks; only attn.bias and "
    "attn.masked_bias are to go.",
    (MASKS, 'if in_block and rest.endswith("bias") and "attn" in rest:'),
)
add(
    "rename_position_ids_refused",
    "You refuse position_ids; they are the numbers 0, 1, 2, so leave them out.",
    (SKIP, 'if short == "lm_head.weight":'),
)
add(
    "rename_unknown_dropped",
    "You leave out names that you don't know; refuse them with a ValueError, so that no weight is "
    "lost unseen.",
    (REFUSE, REFUSE + "\n            continue"),
)
add(
    "rename_any_ending",
    "You accept whatever stands behind a layer's name; refuse endings other than weight and bias "
    "with a ValueError.",
    (REFUSE, "if not in_block or part not in parts:"),
)
add(
    "rename_prefix_anywhere",
    "You take transformer. away wherever it stands in a name; it is a prefix, so take it from the "
    "beginning only.",
    (SHORT, 'short = name.replace("transformer.", "")'),
)
add(
    "rename_left_out_by_ending",
    "You leave out every name that ends in lm_head.weight or position_ids; compare the whole name, "
    "and refuse others.",
    (SKIP, 'if short.endswith(("lm_head.weight", "position_ids")):'),
)
add(
    "rename_masks_by_ending",
    "You leave out every name that ends like a mask's; compare the whole name, and refuse others.",
    (MASKS, 'if short.endswith((".attn.bias", ".masked_bias")):'),
)
add(
    "rename_final_norm_any_ending",
    "You take whatever stands behind ln_f. for a weight or a bias; refuse other endings with a "
    "ValueError.",
    (
        "        if short in tables:",
        '        if short.startswith("ln_f."):\n'
        '            renamed[f"final_norm.{short[5:]}"] = tensor\n'
        "            continue\n"
        "        if short in tables:",
    ),
)
add(
    "rename_unknown_kept",
    "You keep names that you don't know; refuse them with a ValueError.",
    (REFUSE, REFUSE + "\n            renamed[name] = tensor\n            continue"),
)
add(
    "rename_one_digit",
    "You read one digit of the number of a block; there may be two.",
    (PUT, PUT.replace("{number}", "{number[0]}")),
)
add(
    "rename_state_emptied",
    "You take the tensors out of the dict that was given; the caller still needs it.",
    (
        "for name, tensor in state.items():",
        "for name in list(state):\n        tensor = state.pop(name)",
    ),
)

# --------------------------------------------------------------------------------------------
# Fine-tuning: inputs
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "prompt_and_response", "gpt-response")
IDS = "ids = [START, *prompt, DELIMITER, *response, END]"
EMPTY = "if not prompt or not response:"
MASK = "return ids, [False] * (len(ids) - counted) + [True] * counted"
add(
    "response_mask_on_prompt",
    "Your mask marks the prompt; it is the response and END that the model learns to write.",
    (MASK, "return ids, [True] * (len(ids) - counted) + [False] * counted"),
)
add(
    "response_mask_everywhere",
    "All your targets count; the prompt is given, so only the response and END do.",
    (MASK, "return ids, [True] * len(ids)"),
)
add(
    "response_end_not_counted",
    "END does not count with you, so that the model never learns to stop; it is a target as well.",
    (MASK, "return ids, [False] * (len(ids) - counted) + [True] * len(response) + [False]"),
)
add(
    "response_mask_shifted",
    "Your mask begins at DELIMITER, as if it were over inputs: it is over targets, so the first "
    "True stands at the response's first token.",
    (MASK, "return ids, [False] * (len(ids) - counted - 1) + [True] * counted + [False]"),
)
add(
    "response_delimiter_counted",
    "DELIMITER counts with you; the model need not write it, so the mask begins behind it.",
    (MASK, "return ids, [False] * (len(ids) - counted - 1) + [True] * (counted + 1)"),
)
add(
    "response_first_token_left_out",
    "The response's first token does not count with you; it is what follows DELIMITER, so the "
    "model must learn to write it.",
    (MASK, "return ids, [False] * (len(ids) - counted + 1) + [True] * (counted - 1)"),
)
add(
    "response_without_start",
    "Your ids do not begin with START.",
    (IDS, "ids = [*prompt, DELIMITER, *response, END]"),
)
add(
    "response_without_delimiter",
    "Nothing stands between prompt and response; put DELIMITER there.",
    (IDS, "ids = [START, *prompt, *response, END]"),
)
add(
    "response_without_end",
    "Your ids end with the response; END closes it.",
    (IDS, "ids = [START, *prompt, DELIMITER, *response]"),
    ("counted = len(response) + 1", "counted = len(response)"),
)
add(
    "response_mask_by_token",
    "Your mask asks whether a token stands in the response; a token of the prompt may stand there "
    "too, so count by positions.",
    (MASK, "return ids, [token in (*response, END) for token in ids]"),
)
add(
    "response_empty_accepted",
    "An empty prompt or response is not refused; raise a ValueError.",
    (EMPTY, "if False:"),
)
add(
    "response_one_empty_accepted",
    "You accept an empty prompt if the response is not empty; one empty part is enough for a "
    "ValueError.",
    (EMPTY, "if not prompt and not response:"),
)

add = mistakes_in(MISCONCEPTIONS, "entailment_input", "gpt-inputs")
ROW = "return [START, *premise, DELIMITER, *hypothesis, EXTRACT]"
add(
    "entailment_without_start",
    "Your input does not begin with START.",
    (ROW, "return [*premise, DELIMITER, *hypothesis, EXTRACT]"),
)
add(
    "entailment_without_extract",
    "Your input has no EXTRACT at its end, so the classifier finds no position to read.",
    (ROW, "return [START, *premise, DELIMITER, *hypothesis]"),
)
add(
    "entailment_without_delimiter",
    "Nothing stands between the two texts; put DELIMITER there.",
    (ROW, "return [START, *premise, *hypothesis, EXTRACT]"),
)
add(
    "entailment_end_for_extract",
    "Your input ends with END; what the classifier reads is EXTRACT.",
    (ROW, "return [START, *premise, DELIMITER, *hypothesis, END]"),
)
add(
    "entailment_swapped",
    "Your hypothesis stands first; the premise does.",
    (ROW, "return [START, *hypothesis, DELIMITER, *premise, EXTRACT]"),
)
add(
    "entailment_extract_first",
    "Your EXTRACT stands in front, where a causal model has seen nothing yet; put it at the end.",
    (ROW, "return [EXTRACT, *premise, DELIMITER, *hypothesis, END]"),
)
add(
    "entailment_two_delimiters",
    "You put a DELIMITER behind the second text too; one stands between the texts, and EXTRACT "
    "behind them.",
    (ROW, "return [START, *premise, DELIMITER, *hypothesis, DELIMITER, EXTRACT]"),
)
add(
    "entailment_empty_accepted",
    "An empty text is not refused; raise a ValueError.",
    ("if not premise or not hypothesis:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "similarity_inputs", "gpt-inputs")
BOTH = "return [entailment_input(first, second), entailment_input(second, first)]"
add(
    "similarity_one_order",
    "You make one input only; there are two, one for each order.",
    (BOTH, "return [entailment_input(first, second)]"),
)
add(
    "similarity_same_order",
    "Both your inputs have the first text in front; the other order is missing.",
    (BOTH, "return [entailment_input(first, second), entailment_input(first, second)]"),
)
add(
    "similarity_orders_swapped",
    "Your inputs stand the other way round: the one with the first text in front comes first.",
    (BOTH, "return [entailment_input(second, first), entailment_input(first, second)]"),
)
add(
    "similarity_joined",
    "You join both orders to one long input; they are two inputs, which the network sees apart.",
    (BOTH, "return entailment_input(first, second) + entailment_input(second, first)"),
)
add(
    "similarity_reversed_tokens",
    "You turn the whole row around, token by token; only the two texts trade positions.",
    (BOTH, "return [entailment_input(first, second), entailment_input(first, second)[::-1]]"),
)
add(
    "similarity_empty_accepted",
    "An empty text is not refused; raise a ValueError.",
    (
        BOTH,
        "return [[START, *a, DELIMITER, *b, EXTRACT] for a, b in [(first, second), (second, "
        "first)]]",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "choice_inputs", "gpt-inputs")
EACH = "return [entailment_input(context, answer) for answer in answers]"
add(
    "choice_one_input",
    "You put all answers into one input; every answer gets an input of its own.",
    (EACH, "return [entailment_input(context, [token for each in answers for token in each])]"),
)
add(
    "choice_without_context",
    "Your inputs hold the answers alone; the context stands in front of each.",
    (
        EACH,
        "rows = [entailment_input(context, answer) for answer in answers]\n"
        "    return [[START, *row[len(context) + 2 :]] for row in rows]",
    ),
)
add(
    "choice_without_delimiter",
    "Nothing stands between context and answer; put DELIMITER there.",
    (
        EACH,
        "rows = [entailment_input(context, answer) for answer in answers]\n"
        "    return [[START, *context, *row[len(context) + 2 :]] for row in rows]",
    ),
)
add(
    "choice_answer_first",
    "Your answers stand in front of the context; the context comes first, so that the answer is "
    "read with it in view.",
    (EACH, "return [entailment_input(answer, context) for answer in answers]"),
)
add(
    "choice_padded",
    "You pad the inputs to one length; each stays as long as it is, padding comes with the batch.",
    (
        EACH,
        "rows = [entailment_input(context, answer) for answer in answers]\n"
        "    return [row + [PAD] * (max(map(len, rows)) - len(row)) for row in rows]",
    ),
)
add(
    "choice_no_answers_accepted",
    "No answers at all are not refused; raise a ValueError.",
    ("if not answers:", "if False:"),
)
add(
    "choice_empty_accepted",
    "An empty context is not refused; raise a ValueError, as for an empty answer.",
    (EACH, "return [[START, *context, DELIMITER, *answer, EXTRACT] for answer in answers]"),
)
add(
    "choice_empty_skipped",
    "You leave an empty answer out without a word; refuse it with a ValueError.",
    (EACH, "return [entailment_input(context, answer) for answer in answers if answer]"),
)

# --------------------------------------------------------------------------------------------
# Fine-tuning: the classifier and its loss
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "GPTClassifier", "gpt-classifier")
READ = "read = self.dropout(hidden[found])"
CHECKED = "if (found.sum(dim=1) != 1).any():"
LOGITS = "logits = hidden @ self.gpt.token.weight.T"
RESULT = "return self.classifier(read), logits"
RATE = "self.dropout = nn.Dropout(dropout)"
HIDDEN = "hidden = self.gpt.features(ids)"
add(
    "classifier_reads_first",
    "You read the first token, which has seen nothing but itself in a causal model; read EXTRACT.",
    (READ, "read = self.dropout(hidden[:, 0])"),
)
add(
    "classifier_reads_last_column",
    "You read the last column, which is padding in shorter rows; read each row at its EXTRACT.",
    (READ, "read = self.dropout(hidden[:, -1])"),
)
add(
    "classifier_reads_mean",
    "You read the mean over all positions; read the features at EXTRACT alone.",
    (READ, "read = self.dropout(hidden.mean(dim=1))"),
)
add(
    "classifier_reads_before_extract",
    "You read one position too early; the features at EXTRACT itself have seen the whole input.",
    (READ, "read = self.dropout(hidden[:, :-1][found[:, 1:]])"),
)
add(
    "classifier_reads_by_first_row",
    "You look for EXTRACT in the first row and read all rows there; each row has its own position.",
    (READ, "read = self.dropout(hidden[:, int(found[0].int().argmax())])"),
)
add(
    "classifier_reads_embedding",
    "You read the token embedding at EXTRACT, which is the same for every input; read the features "
    "that the blocks made.",
    (READ, "read = self.dropout(self.gpt.token(ids)[found])"),
)
add(
    "classifier_without_dropout",
    "Nothing is dropped in training mode; apply dropout to what the classifier reads.",
    (READ, "read = hidden[found]"),
)
add(
    "classifier_dropout_always",
    "You drop in evaluation mode too; use nn.Dropout, or pass self.training on.",
    (READ, "read = F.dropout(hidden[found], self.dropout.p)"),
)
add(
    "classifier_drops_scores",
    "You drop scores; dropout acts on the vector that the classifier reads.",
    (READ, "read = hidden[found]"),
    (RESULT, "return self.dropout(self.classifier(read)), logits"),
)
add(
    "classifier_drops_vectors",
    "Your dropout keeps or drops whole vectors; it decides anew for every entry, as nn.Dropout "
    "does.",
    (RATE, "self.dropout = nn.Dropout1d(dropout)"),
)
add(
    "classifier_one_score_squeezed",
    "With one label your scores lose their last axis; they are (B, 1).",
    (RESULT, "return self.classifier(read).squeeze(-1), logits"),
)
add(
    "classifier_drops_logits",
    "The logits of the language model are dropped too; dropout acts on what the classifier reads.",
    (HIDDEN, "hidden = self.dropout(self.gpt.features(ids))"),
    (READ, "read = hidden[found]"),
)
add(
    "classifier_dropout_fixed",
    "Your dropout is 0.1 whatever is asked for; pass the argument on.",
    (RATE, "self.dropout = nn.Dropout(0.1)"),
)
add(
    "classifier_two_passes",
    "The network runs twice, once for each head: twice the time, and in training mode two "
    "different dropouts. Make the logits of the same features.",
    (LOGITS, "logits = self.gpt(ids)"),
)
add(
    "classifier_frozen",
    "No gradient of the scores reaches the GPT; fine-tuning trains all of it.",
    (READ, "read = self.dropout(hidden[found].detach())"),
)
add(
    "classifier_copies_gpt",
    "You keep a copy of the GPT, so that the model that was given stays untrained; keep it itself.",
    (
        "self.gpt = gpt\n",
        "import copy\n\n        self.gpt = copy.deepcopy(gpt)\n",
    ),
)
add(
    "classifier_features_for_logits",
    "Your second result holds features (B, T, D); multiply them by the token embedding to get "
    "logits (B, T, V).",
    (LOGITS, "logits = hidden"),
)
add(
    "classifier_logits_at_extract",
    "You return the logits of one position for each row; the loss of the language model needs "
    "those of all positions.",
    (LOGITS, "logits = hidden[found] @ self.gpt.token.weight.T"),
)
add(
    "classifier_scores_only",
    "You return the scores alone; the logits of the language model are the second result.",
    (RESULT, "return self.classifier(read)"),
)
add(
    "classifier_results_swapped",
    "Your results stand the wrong way round: the scores come first, then the logits.",
    (RESULT, "return logits, self.classifier(read)"),
)
add(
    "classifier_softmax",
    "Your scores are probabilities; return them as they are, since the cross-entropy takes the "
    "softmax itself.",
    (RESULT, "return self.classifier(read).softmax(dim=-1), logits"),
)
add(
    "classifier_tanh",
    "You apply a tanh before the classifier, as BERT's pooler does; GPT reads the features as they "
    "are.",
    (READ, "read = self.dropout(torch.tanh(hidden[found]))"),
)
add(
    "classifier_extract_unchecked",
    "A row without EXTRACT is not refused; raise a ValueError unless each row has exactly one.",
    (CHECKED, "if False:"),
    (READ, "read = self.dropout(hidden[torch.arange(len(ids)), found.int().argmax(dim=1)])"),
)
add(
    "classifier_only_missing_refused",
    "A row with two EXTRACT is not refused; raise a ValueError unless each row has exactly one.",
    (CHECKED, "if not found.any(dim=1).all():"),
    (READ, "read = self.dropout(hidden[torch.arange(len(ids)), found.int().argmax(dim=1)])"),
)
add(
    "classifier_extract_counted_in_all",
    "You count EXTRACT over the whole batch, so that a row with two makes up for one without; "
    "count row by row.",
    (CHECKED, "if found.sum() != len(ids):"),
)

add = mistakes_in(MISCONCEPTIONS, "joint_loss", "gpt-joint")
TOTAL = "return task + weight * text, task, text"
TASK_LOSS = "task = F.cross_entropy(scores, labels)"
TEXT_LOSS = "text = language_model_loss(logits, ids, ids != PAD)"
add(
    "joint_without_weight",
    "L3 adds L1 as it is; multiply it by weight.",
    (TOTAL, "return task + text, task, text"),
)
add(
    "joint_weight_on_task",
    "You weight the loss of the labels; the weight belongs to L1, the language model's.",
    (TOTAL, "return weight * task + text, task, text"),
)
add(
    "joint_convex",
    "You mix the two as (1 - weight) L2 + weight L1; L3 = L2 + weight L1.",
    (TOTAL, "return (1 - weight) * task + weight * text, task, text"),
)
add(
    "joint_subtracted",
    "You subtract the language model's loss; both are losses to be made small, so add them.",
    (TOTAL, "return task - weight * text, task, text"),
)
add(
    "joint_order",
    "Your results stand in the order L1, L2, L3; it is L3, L2, L1.",
    (TOTAL, "return text, task, task + weight * text"),
)
add(
    "joint_parts_swapped",
    "Your second and third results have traded positions: L3, then L2 (labels), then L1 (language "
    "model).",
    (TOTAL, "return task + weight * text, text, task"),
)
add(
    "joint_total_only",
    "You return L3 alone; L2 and L1 come with it.",
    (TOTAL, "return task + weight * text"),
)
add(
    "joint_padding_counted",
    "Targets that are PAD count in your L1; leave them out by a mask.",
    (TEXT_LOSS, "text = language_model_loss(logits, ids)"),
    read="gpt-loss",
)
add(
    "joint_padding_in_the_mean",
    "You divide by all positions; the mean goes over the targets that are not PAD only.",
    (
        TEXT_LOSS,
        "targets = ids[:, 1:]\n"
        "    text = F.cross_entropy(logits[:, :-1].mT, targets, reduction='none')\n"
        "    text = (text * (targets != PAD)).mean()",
    ),
    read="gpt-loss",
)
add(
    "joint_mean_by_rows",
    "You take the mean of each row and then of the rows, so that a token of a short row counts "
    "more; every target of the batch counts the same.",
    (
        TEXT_LOSS,
        "real = (ids != PAD)[:, 1:]\n"
        "    text = F.cross_entropy(logits[:, :-1].mT, ids[:, 1:], reduction='none') * real\n"
        "    text = (text.sum(dim=1) / real.sum(dim=1)).mean()",
    ),
)
add(
    "joint_text_summed",
    "Your L1 is the sum over the targets; take their mean.",
    (
        TEXT_LOSS,
        "text = language_model_loss(logits, ids, ids != PAD) * (ids[:, 1:] != PAD).sum()",
    ),
)
add(
    "joint_task_summed",
    "Your L2 is the sum over the batch; take the mean.",
    (TASK_LOSS, "task = F.cross_entropy(scores, labels, reduction='sum')"),
)
add(
    "joint_without_shift",
    "You compare the logits at a position with the token at the same position; they are for the "
    "next one, so shift by one.",
    (
        TEXT_LOSS,
        "text = F.cross_entropy(logits.mT, ids, ignore_index=PAD)",
    ),
    read="gpt-loss",
)
add(
    "joint_extract_left_out",
    "EXTRACT does not count as a target with you; only PAD is left out.",
    (
        TEXT_LOSS,
        "text = language_model_loss(logits, ids, ids >= 5)",
    ),
)
add(
    "joint_mask_inverted",
    "Your mask marks PAD; True means that a target counts, so it is ids != PAD.",
    (TEXT_LOSS, TEXT_LOSS.replace("!=", "==")),
)
add(
    "joint_negative_accepted",
    "A negative weight is not refused; raise a ValueError.",
    ("if weight < 0:", "if False:"),
)
add(
    "joint_zero_refused",
    "You refuse a weight of 0, which is allowed: it is fine-tuning without the auxiliary loss.",
    ("if weight < 0:", "if weight <= 0:"),
)
add(
    "joint_default_one",
    "Without a weight given you take 1; the default is 0.5.",
    ("weight: float = 0.5", "weight: float = 1.0"),
)
add(
    "joint_text_detached",
    "No gradient of L1 reaches the logits, so the auxiliary loss teaches nothing.",
    (TEXT_LOSS, "text = language_model_loss(logits.detach(), ids, ids != PAD)"),
)

# --------------------------------------------------------------------------------------------
# Prompting
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "build_prompt", "gpt-prompting")
LINES = "lines = [task] if task else []"
SHOTS = 'lines += [f"{question}{arrow} {answer}" for question, answer in examples]'
JOINED = 'return "\\n".join([*lines, f"{query}{arrow}"])'
add(
    "prompt_trailing_space",
    "A space stands behind your last arrow; the model writes it itself, as part of its next token.",
    (JOINED, 'return "\\n".join([*lines, f"{query}{arrow} "])'),
)
add(
    "prompt_trailing_newline",
    "A newline stands behind your last arrow, so that the model goes on in a line of its own.",
    (JOINED, 'return "\\n".join([*lines, f"{query}{arrow}\\n"])'),
)
add(
    "prompt_without_last_arrow",
    "Your last line is the query alone; its arrow asks for the answer.",
    (JOINED, 'return "\\n".join([*lines, query])'),
)
add(
    "prompt_query_first",
    "Your query stands before the examples; it comes last, where the model goes on.",
    (SHOTS, 'shots = [f"{question}{arrow} {answer}" for question, answer in examples]'),
    (JOINED, 'return "\\n".join([*lines, f"{query}{arrow}", *shots])'),
)
add(
    "prompt_empty_task_kept",
    "An empty description leaves an empty line at the beginning; leave it out.",
    (LINES, "lines = [task]"),
)
add(
    "prompt_task_stripped",
    "You take spaces away from the description; it stands in the prompt as it is given.",
    (LINES, "lines = [task.strip()] if task else []"),
)
add(
    "prompt_without_task",
    "The description of the task is missing; it is the first line.",
    (LINES, "lines = []"),
)
add(
    "prompt_one_line",
    "You join the parts with spaces; each stands in a line of its own.",
    (JOINED, 'return " ".join([*lines, f"{query}{arrow}"])'),
)
add(
    "prompt_no_space_after_arrow",
    "No space stands between arrow and answer in your examples.",
    (SHOTS, 'lines += [f"{question}{arrow}{answer}" for question, answer in examples]'),
)
add(
    "prompt_examples_reversed",
    "Your examples stand in the reverse order; keep the order that is given.",
    ("for question, answer in examples]", "for question, answer in examples[::-1]]"),
)
add(
    "prompt_pairs_swapped",
    "In your examples the answer stands before the arrow; the question does.",
    ("for question, answer in examples]", "for answer, question in examples]"),
)
add(
    "prompt_arrow_fixed",
    "Your arrow is => whatever is asked for; use the argument.",
    (SHOTS, 'arrow = " =>"\n    ' + SHOTS),
)
add(
    "prompt_first_example_only",
    "You build the examples but use the first one only; all of them belong into the prompt.",
    ("for question, answer in examples]", "for question, answer in examples[:1]]"),
)

add = mistakes_in(MISCONCEPTIONS, "answer_scores", "gpt-prompting")
NOTHING = "if not prompt or not answers or not all(answers):"
LONG = "if longest > model.max_length:"
INSIDE = "mask = (positions >= 0) & (positions < counts.unsqueeze(1))"
SCORED = "scores = log_likelihood(model(ids), ids, mask)"
GIVEN = "return scores / counts if per_token else scores"
GRAD = "with torch.no_grad():"
add(
    "answers_without_shift",
    "You read a token's probability at its own position; the logits there are for the next token, "
    "so read one position earlier.",
    (
        SCORED,
        "log_probs = torch.log_softmax(model(ids), dim=2)\n"
        "        terms = log_probs.gather(2, ids.unsqueeze(2)).squeeze(2)\n"
        "        scores = (terms * mask).sum(dim=1)",
    ),
    read="gpt-loss",
)
add(
    "answers_prompt_counted",
    "The tokens of the prompt count too; it is given, so that only the answer is scored.",
    (INSIDE, "mask = positions < counts.unsqueeze(1)"),
)
add(
    "answers_padding_counted",
    "Padding behind a shorter answer counts too; leave it out, or score each answer by itself.",
    (INSIDE, "mask = (positions >= 0).expand(len(answers), -1)"),
)
add(
    "answers_first_token_left_out",
    "The first token of an answer does not count with you; the last token of the prompt predicts "
    "it.",
    (INSIDE, "mask = (positions >= 1) & (positions < counts.unsqueeze(1))"),
)
add(
    "answers_first_token_only",
    "You score the first token of each answer alone; all of its tokens count.",
    (INSIDE, "mask = (positions == 0).expand(len(answers), -1)"),
)
add(
    "answers_sum_for_mean",
    "You return the sum though the mean over the tokens is asked for; longer answers then lose.",
    (GIVEN, "return scores"),
)
add(
    "answers_mean_for_sum",
    "You return the mean whatever per_token says; with per_token=False it is the sum.",
    (GIVEN, "return scores / counts"),
)
add(
    "answers_per_token_turned",
    "You have per_token the wrong way round: True asks for the mean, False for the sum.",
    (GIVEN, "return scores if per_token else scores / counts"),
)
add(
    "answers_mean_over_longest",
    "You divide by the length of the longest answer; divide each sum by its own answer's length.",
    (GIVEN, "return scores / max(lengths) if per_token else scores"),
)
add(
    "answers_softmax_over_answers",
    "You apply a softmax over the answers; return each one's log-probability as it is.",
    (GIVEN, "return torch.log_softmax(scores / counts if per_token else scores, dim=0)"),
)
add(
    "answers_probabilities",
    "You return probabilities; return their logarithms.",
    (GIVEN, "return (scores / counts if per_token else scores).exp()"),
)
add(
    "answers_negative",
    "Your scores have the other sign: they are log-probabilities, which are negative.",
    (GIVEN, "return -scores / counts if per_token else -scores"),
)
add(
    "answers_of_logits",
    "You add up logits as they are; apply log_softmax over the vocabulary first.",
    (
        SCORED,
        "terms = model(ids)[:, :-1].gather(2, ids[:, 1:].unsqueeze(2)).squeeze(2)\n"
        "        scores = (terms * mask[:, 1:]).sum(dim=1)",
    ),
)
add(
    "answers_without_prompt",
    "The model does not see the prompt; an answer is scored as its continuation.",
    (
        SCORED,
        "scores = log_likelihood(model(ids[:, len(prompt) - 1 :]), ids[:, len(prompt) - 1 :], "
        "mask[:, len(prompt) - 1 :])",
    ),
)
add(
    "answers_sorted",
    "You return the scores in order of size; they belong to the answers in the order given.",
    (GIVEN, "return (scores / counts if per_token else scores).sort(descending=True).values"),
)
add(
    "answers_with_gradient",
    "The scores carry a graph that nobody needs; compute them under torch.no_grad().",
    (GRAD, "if True:"),
)
add(
    "answers_freeze_the_model",
    "You set requires_grad of the model's weights to False, and it stays so; torch.no_grad() does "
    "without a gradient and leaves them as they are.",
    (GRAD, f"model.requires_grad_(False)\n    {GRAD}"),
)
add(
    "answers_empty_accepted",
    "An empty prompt is not refused; raise a ValueError, as for an empty answer.",
    (NOTHING, "if not answers:"),
)
add(
    "answers_too_long_accepted",
    "A prompt and an answer that are longer than the context are not refused; raise a ValueError.",
    (LONG, "if False:"),
    (
        SCORED,
        "ids, mask = ids[:, : model.max_length], mask[:, : model.max_length]\n"
        "        scores = log_likelihood(model(ids), ids, mask)",
    ),
)
add(
    "answers_full_context_refused",
    "You refuse what just fills the context; only what is longer is refused.",
    (LONG, "if longest >= model.max_length:"),
)
