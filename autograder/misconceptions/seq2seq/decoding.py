"""Known mistakes of `seq2seq-decoding`: the loss and three ways to decode.

A loss that averages averages, rows that go on after their end, a beam that forgets whose state is
whose.
"""

from __future__ import annotations

from autograder.units.variants import Misconception, mistakes_in

MISCONCEPTIONS: list[Misconception] = []

STEP = "logits, state = model.step(previous, state)"
TWO_PARTS = (
    "You take the model's state apart into two tensors; hand it on as it is, since nothing about "
    "it is fixed but that it is a tuple: another translator's may hold one tensor or three."
)

# --------------------------------------------------------------------------------------------
# Likelihood and loss
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "sequence_log_prob", "seq-likelihood")
LOG = "torch.log_softmax(logits, dim=-1)"
CHOSEN = "log_probs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)"
TOTAL = "chosen.masked_fill(~mask, 0.0).sum(dim=-1)"
add(
    "log_prob_negative",
    "Your result is minus the log-probability; that is a loss. The log-probability itself is at "
    "most 0.",
    (TOTAL, f"-{TOTAL}"),
)
add(
    "log_prob_mean",
    "Your result is divided by the number of steps; the log-probability of a sequence is the sum "
    "over its steps.",
    (TOTAL, f"{TOTAL} / mask.sum(dim=-1).clamp(min=1)"),
)
add(
    "log_prob_over_all_steps",
    "Your mean counts masked steps too; neither they nor any division belong here: sum over the "
    "real steps.",
    (TOTAL, "chosen.masked_fill(~mask, 0.0).mean(dim=-1)"),
)
add(
    "log_prob_mask_ignored",
    "Your sum counts masked steps; only steps where the mask is True belong to the sequence.",
    (TOTAL, "chosen.sum(dim=-1)"),
)
add(
    "log_prob_mask_inverted",
    "You read the mask the wrong way round; True means real step.",
    (TOTAL, "chosen.masked_fill(mask, 0.0).sum(dim=-1)"),
)
add(
    "log_prob_pads_by_id",
    "You leave out targets that are 0, whatever the mask says; the mask tells which steps are "
    "real.",
    (TOTAL, "chosen.masked_fill(~mask | (targets == PAD), 0.0).sum(dim=-1)"),
)
add(
    "log_prob_one_number",
    "Your result is one number for the batch; each row has a log-probability of its own, shape "
    "(B,).",
    (TOTAL, "chosen.masked_fill(~mask, 0.0).sum()"),
)
add(
    "log_prob_per_step",
    "Your result has one number for each step; add them up along the steps, shape (B,).",
    (TOTAL, "chosen.masked_fill(~mask, 0.0)"),
)
add(
    "log_prob_over_the_batch",
    "You add up over the batch; the sum goes over the steps of each row.",
    (TOTAL, "chosen.masked_fill(~mask, 0.0).sum(dim=0)"),
)
add(
    "log_prob_without_softmax",
    "You add up the logits of the targets; they are not probabilities yet: take log_softmax over "
    "the vocabulary first.",
    (LOG, "logits"),
)
add(
    "log_prob_probability",
    "Your result is the product of the probabilities; take the sum of their logarithms.",
    (LOG, "torch.softmax(logits, dim=-1)"),
    (TOTAL, "chosen.masked_fill(~mask, 1.0).prod(dim=-1)"),
)
add(
    "log_prob_sum_of_probabilities",
    "You add up probabilities; it is their logarithms that are added.",
    (LOG, "torch.softmax(logits, dim=-1)"),
)
add(
    "log_prob_log_of_product",
    "You take the logarithm of a product of probabilities; for long sequences the product is 0 and "
    "its logarithm -inf. Add logarithms instead.",
    (LOG, "torch.softmax(logits, dim=-1)"),
    (TOTAL, "chosen.masked_fill(~mask, 1.0).prod(dim=-1).log()"),
)
add(
    "log_prob_log_of_softmax",
    "You take the logarithm of a softmax, which is -inf where a probability rounds to 0; "
    "log_softmax avoids that.",
    (LOG, "torch.softmax(logits, dim=-1).log()"),
)
add(
    "log_prob_log_with_epsilon",
    "You add a small number before the logarithm, which changes the value of improbable tokens; "
    "use log_softmax.",
    (LOG, "(torch.softmax(logits, dim=-1) + 1e-9).log()"),
)
add(
    "log_prob_softmax_over_steps",
    "Your softmax goes over the steps; it goes over the vocabulary, the last dimension.",
    (LOG, "torch.log_softmax(logits, dim=1)"),
)
add(
    "log_prob_base_2",
    "Your logarithms are to the base 2; natural logarithms are asked for.",
    (LOG, f"{LOG} / math.log(2)"),
)
add(
    "log_prob_best_token",
    "You add up the log-probability of the best token at each step; that of the target is asked "
    "for.",
    (CHOSEN, "log_probs.max(dim=-1).values"),
)
add(
    "log_prob_mask_multiplied",
    "You multiply by the mask, and 0 times -inf is NaN; replace masked terms by 0 with masked_fill "
    "or torch.where.",
    (TOTAL, "(chosen * mask).sum(dim=-1)"),
)
add(
    "log_prob_masked_targets_looked_up",
    "Your code stumbles over numbers at masked steps; replace them by any valid id before you look "
    "them up, since they do not count.",
    ("ids = targets.masked_fill(~mask, 0)", "ids = targets"),
)
add(
    "log_prob_targets_unchecked",
    "Real targets outside the vocabulary are not refused with a ValueError.",
    (
        "if ((ids < 0) | (ids >= vocab_size)).any():",
        "ids = ids.clamp(0, vocab_size - 1)\n    if False:",
    ),
)
add(
    "log_prob_shapes_unchecked",
    "Targets or masks whose shape does not fit are not refused with a ValueError.",
    ("if logits.shape[:-1] != targets.shape:", "if False:"),
    ("if mask.dtype != torch.bool or mask.shape != targets.shape:", "if False:"),
)
add(
    "log_prob_mask_stretched",
    "A mask of one row is stretched over the batch; its shape is that of the targets, so refuse "
    "any other with a ValueError.",
    (
        "    if mask.dtype != torch.bool or",
        "    if mask.shape in (targets.shape[1:], (1, targets.shape[1])):\n"
        "        mask = mask.expand_as(targets)\n"
        "    if mask.dtype != torch.bool or",
    ),
)
add(
    "log_prob_ends_at_first_gap",
    "A row ends at its first masked step; the mask may be False anywhere, and the steps behind it "
    "that are real count.",
    ("chosen.masked_fill(~mask, 0.0)", "chosen.masked_fill(~mask.cumprod(dim=1).bool(), 0.0)"),
)

add(
    "log_prob_zeros_are_padding",
    "Without a mask you leave out targets that are 0; then all steps are real, whatever their "
    "targets.",
    ("torch.ones_like(targets, dtype=torch.bool)", "targets != PAD"),
)

add = mistakes_in(MISCONCEPTIONS, "sequence_loss", "seq-likelihood")
LOSS = "-sequence_log_prob(logits, targets, real).sum() / real.sum()"
add(
    "loss_mean_of_means",
    "Your loss is the mean of the sentences' means, in which a token of a short sentence weighs "
    "more; divide the sum over all tokens by their number in the batch.",
    (
        LOSS,
        "-(sequence_log_prob(logits, targets, real)[real.any(dim=1)]"
        " / real.sum(dim=1)[real.any(dim=1)]).mean()",
    ),
)
add(
    "loss_padding_counted",
    "Padding counts in your loss; leave it out of the sum and of the number of tokens.",
    (
        LOSS,
        "-sequence_log_prob(logits, targets.clamp(0, logits.shape[-1] - 1)).sum() / real.numel()",
    ),
)
add(
    "loss_divided_by_all_steps",
    "Your loss is divided by the number of all steps, padding included; divide by the number of "
    "real targets.",
    (LOSS, "-sequence_log_prob(logits, targets, real).sum() / real.numel()"),
)
add(
    "loss_per_sentence",
    "Your loss is divided by the number of sentences; divide by the number of real targets in the "
    "batch.",
    (LOSS, "-sequence_log_prob(logits, targets, real).sum() / len(targets)"),
)
add(
    "loss_summed",
    "Your loss is the sum over the batch; divide it by the number of real targets.",
    (LOSS, "-sequence_log_prob(logits, targets, real).sum()"),
)
add(
    "loss_positive_likelihood",
    "Your loss lacks its minus sign: it would be lowest for the worst model.",
    (LOSS, "sequence_log_prob(logits, targets, real).sum() / real.sum()"),
)
add(
    "loss_per_row",
    "Your loss is a number for each row; one number for the batch is asked for.",
    (LOSS, "-sequence_log_prob(logits, targets, real) / real.sum()"),
)
add(
    "loss_one_element",
    "Your loss is a tensor of shape (1,); a scalar, of shape (), is asked for.",
    (LOSS, f"({LOSS}).reshape(1)"),
)
add(
    "loss_pad_fixed",
    "Your loss takes 0 for padding whatever `pad` says; compare the targets with `pad`.",
    ("real = targets != pad", "real = targets != PAD"),
)
add(
    "loss_pad_inverted",
    "Your loss counts the padding only; real targets are those that differ from `pad`.",
    ("real = targets != pad", "real = targets == pad"),
)
add(
    "loss_ignores_eos",
    "Your loss leaves EOS out; it is a target like others, or the model never learns to stop.",
    ("real = targets != pad", "real = (targets != pad) & (targets != EOS)"),
)
add(
    "loss_shifted",
    "You shift the targets by one step inside the loss; the logits of step t are about "
    "targets[:, t] already.",
    (
        "real = targets != pad",
        "if targets.shape[1] > 1:\n"
        "        logits, targets = logits[:, :-1], targets[:, 1:]\n"
        "    real = targets != pad",
    ),
)
add(
    "loss_bits",
    "Your loss is in bits; natural logarithms are asked for.",
    (LOSS, f"{LOSS} / math.log(2)"),
)
add(
    "loss_perplexity",
    "Your result is the perplexity, exp of the loss; the loss itself is asked for.",
    (LOSS, f"torch.exp({LOSS})"),
)
add(
    "loss_nothing_accepted",
    "A batch of padding only is not refused; there is nothing to divide by, so raise a ValueError.",
    ("if not real.any():", "if False:"),
)
add(
    "loss_nothing_is_zero",
    "A batch of padding only gives a loss of 0; it is an error of the caller: raise a ValueError.",
    (
        'raise ValueError(f"every target is padding ({pad}); there is nothing to learn from")',
        "return logits.sum() * 0",
    ),
)
add(
    "loss_ends_at_first_pad",
    "A row ends at its first padding; every target that is not `pad` counts, wherever it stands.",
    ("real = targets != pad", "real = (targets != pad).cumprod(dim=1).bool()"),
)

# --------------------------------------------------------------------------------------------
# Decoding
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "greedy_decode", "seq-greedy")
BEST = "previous = logits.argmax(dim=-1).masked_fill(finished, PAD)"
ENDED = "finished = finished | (previous == EOS)"
LOOP = "while len(ids) < max_length and not finished.all():"
IDS = "torch.stack(ids, dim=1)"
FIRST = "previous = torch.full_like(source[:, 0], BOS)"
add(
    "greedy_two_part_state",
    TWO_PARTS,
    (STEP, "s, context = state\n        logits, state = model.step(previous, (s, context))"),
)
add(
    "greedy_rows_go_on",
    "Your rows go on after their EOS; from then on a row gets PAD.",
    (BEST, "previous = logits.argmax(dim=-1)"),
)
add(
    "greedy_eos_repeated",
    "Your rows repeat EOS after their end; what follows the first EOS is PAD.",
    (BEST, "previous = logits.argmax(dim=-1).masked_fill(finished, EOS)"),
)
add(
    "greedy_stops_with_the_first",
    "Your decoding stops as soon as one row has finished; it stops when all have.",
    (LOOP, "while len(ids) < max_length and not finished.any():"),
)
add(
    "greedy_never_stops_early",
    "Your result always has max_length columns; stop when every row has produced EOS.",
    (LOOP, "while len(ids) < max_length:"),
)
add(
    "greedy_all_eos_at_once",
    "You stop only when all rows produce EOS at the same step; remember which rows have finished.",
    (ENDED, "finished = previous == EOS"),
    (BEST, "previous = logits.argmax(dim=-1)"),
)
add(
    "greedy_eos_dropped",
    "Your result lacks EOS; it is the last token of a finished row.",
    (IDS, "torch.stack(ids, dim=1).masked_fill(torch.stack(ids, dim=1) == EOS, PAD)"),
)
add(
    "greedy_eos_cut_off",
    "Your last column is missing: you stop before the EOS is written; it belongs to the result.",
    (
        IDS,
        "torch.stack(ids[:-1] if finished.all() else ids, dim=1) if len(ids) > 1 else "
        "torch.stack(ids, dim=1)[:, : 0 if finished.all() else 1]",
    ),
)
add(
    "greedy_bos_included",
    "Your result begins with BOS; it is fed to the model but is no part of the result.",
    ("    ids = []\n", "    ids = [previous]\n"),
    (LOOP, "while len(ids) <= max_length and not finished.all():"),
)
add(
    "greedy_starts_with_eos",
    "You feed EOS first; decoding begins with BOS.",
    (FIRST, "previous = torch.full_like(source[:, 0], EOS)"),
)
add(
    "greedy_starts_with_pad",
    "You feed PAD first; decoding begins with BOS.",
    (FIRST, "previous = torch.full_like(source[:, 0], PAD)"),
)
add(
    "greedy_starts_with_source",
    "You feed the source's first token first; decoding begins with BOS, the source is the "
    "encoder's business.",
    (FIRST, "previous = source[:, 0].clamp(max=5)"),
)
add(
    "greedy_feeds_bos",
    "Your model is fed BOS at every step; feed back what the step before produced.",
    (
        "logits, state = model.step(previous, state)",
        "logits, state = model.step(torch.full_like(previous, BOS), state)",
    ),
)
add(
    "greedy_state_not_kept",
    "Your model is asked with its first state at every step; hand on the state that it returns.",
    ("logits, state = model.step(previous, state)", "logits, _ = model.step(previous, state)"),
)
add(
    "greedy_samples",
    "You draw the next token at random; greedy decoding takes the argmax.",
    (
        "logits.argmax(dim=-1)",
        "torch.multinomial(torch.softmax(logits, dim=-1), 1).squeeze(-1)",
    ),
)
add(
    "greedy_pad_ends",
    "You take PAD for an end; a row ends with EOS only.",
    (ENDED, "finished = finished | (previous == EOS) | (previous == PAD)"),
)
for name, forbidden in (
    ("greedy_specials_forbidden", "[PAD, BOS, 3]"),
    ("greedy_pad_and_bos_forbidden", "[PAD, BOS]"),
    ("greedy_pad_forbidden", "[PAD]"),
):
    add(
        name,
        "Your decoding never chooses some of the special tokens; the argmax goes over all ids, "
        "PAD, BOS and UNK included.",
        (
            BEST,
            "logits = logits.clone()\n"
            f'        logits[:, {forbidden}] = float("-inf")\n'
            f"        {BEST}",
        ),
    )
add(
    "greedy_mask_ignored",
    "Your model does not get source_mask; pass it to start.",
    ("model.start(source, source_mask)", "model.start(source)"),
)
add(
    "greedy_mask_made_from_pad",
    "Without a source_mask you make one from PAD; pass None on to start, since all tokens are real "
    "then.",
    (
        "model.start(source, source_mask)",
        "model.start(source, source != PAD if source_mask is None else source_mask)",
    ),
)
add(
    "greedy_eos_forced",
    "You write EOS into rows that have produced none; after max_length tokens a row stays as it "
    "is.",
    (IDS, "torch.stack([*ids[:-1], ids[-1].masked_fill(~finished, EOS)], dim=1)"),
)
add(
    "greedy_one_step_more",
    "Your result may have max_length + 1 tokens; max_length tokens are allowed, EOS counted.",
    (LOOP, "while len(ids) <= max_length and not finished.all():"),
)
add(
    "greedy_one_step_short",
    "Your result may have max_length - 1 tokens only; max_length tokens are allowed, BOS not "
    "counted.",
    (LOOP, "while len(ids) < max(1, max_length - 1) and not finished.all():"),
)
add(
    "greedy_time_first",
    "Your result has the shape (n, B); rows are sentences: stack along dim=1.",
    (IDS, "torch.stack(ids, dim=0)"),
)
add(
    "greedy_lists",
    "Your result is a list of lists; a tensor (B, n), padded with PAD, is asked for.",
    (IDS, "torch.stack(ids, dim=1).tolist()"),
)
add(
    "greedy_length_unchecked",
    "A max_length below 1 is not refused; raise a ValueError.",
    ("if max_length < 1:", "max_length = max(1, max_length)\n    if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "exhaustive_search", "seq-beam")
EXTEND = "total[:, EOS] = -math.inf"
PICK = "if finished > best:"
NO_END = "if not best_ids:"
ADVANCE = "state = tuple(part[rows] for part in state)"
SUM = "total = log_prob[:, None] + torch.log_softmax(logits, dim=-1)"
add(
    "exhaustive_two_part_state",
    TWO_PARTS,
    (STEP, "s, context = state\n        logits, state = model.step(previous, (s, context))"),
)
add(
    "exhaustive_greedy",
    "Your search takes the likeliest token at each step; that is greedy search, and the best "
    "sequence may begin with a less likely token. Look at all of them.",
    (
        "rows, previous = (total > -math.inf).nonzero(as_tuple=True)",
        "rows, previous = (total >= total.max()).nonzero(as_tuple=True)",
    ),
)
add(
    "exhaustive_probability",
    "You return the probability; its logarithm is asked for.",
    ("return best_ids, best", "return best_ids, math.exp(best)"),
)
add(
    "exhaustive_negative",
    "You return minus the log-probability; the log-probability itself, at most 0, is asked for.",
    ("return best_ids, best", "return best_ids, -best"),
)
add(
    "exhaustive_product",
    "You multiply probabilities; tiny ones become 0. Add log-probabilities instead.",
    ("best_ids, best = [], -math.inf", "best_ids, best = [], 0.0"),
    (
        "zip(prefixes, total[:, EOS].tolist(), strict=True)",
        "zip(prefixes, total[:, EOS].exp().tolist(), strict=True)",
    ),
    ("return best_ids, best", "return best_ids, math.log(best)"),
)
add(
    "exhaustive_logits_added",
    "You add up logits; they are not log-probabilities: take log_softmax over the vocabulary "
    "first.",
    (SUM, "total = log_prob[:, None] + logits"),
)
add(
    "exhaustive_last_step_only",
    "Your score is the log-probability of the last token alone; add up those of all tokens.",
    (SUM, "total = 0 * log_prob[:, None] + torch.log_softmax(logits, dim=-1)"),
)
add(
    "exhaustive_eos_dropped",
    "Your sequence lacks EOS; it belongs to the result.",
    ("return best_ids, best", "return best_ids[:-1], best"),
)
add(
    "exhaustive_eos_not_counted",
    "Your score leaves out the probability of EOS; ending is a choice like any other.",
    (
        "zip(prefixes, total[:, EOS].tolist(), strict=True)",
        "zip(prefixes, log_prob.tolist(), strict=True)",
    ),
)
add(
    "exhaustive_bos_included",
    "Your sequence begins with BOS; it is fed to the model but is no part of the result.",
    ("return best_ids, best", "return [BOS, *best_ids], best"),
)
add(
    "exhaustive_unfinished_counted",
    "Your search takes sequences without EOS into account; only what ends in EOS counts.",
    (
        "    if not best_ids:",
        "    for prefix, value in zip(prefixes, log_prob.tolist(), strict=True):\n"
        "        if value > best:\n"
        "            best_ids, best = prefix, value\n"
        "    if not best_ids:",
    ),
)
add(
    "exhaustive_exact_length",
    "Your search looks at sequences of exactly max_length tokens; shorter ones that end in EOS "
    "count too.",
    (PICK, "if finished > best and len(prefix) == max_length - 1:"),
)
add(
    "exhaustive_one_step_more",
    "Your search allows max_length tokens before EOS; EOS is counted, so the last token to choose "
    "may be EOS only.",
    ("len(prefixes[0]) < max_length:", "len(prefixes[0]) < max_length + 1:"),
)
add(
    "exhaustive_one_step_short",
    "Your search ends one token early; max_length tokens are allowed, EOS counted and BOS not.",
    ("len(prefixes[0]) < max_length:", "len(prefixes[0]) < max(1, max_length - 1):"),
)
for name, forbidden in (
    ("exhaustive_specials_forbidden", "[PAD, BOS, EOS, 3]"),
    ("exhaustive_pad_and_bos_forbidden", "[PAD, BOS, EOS]"),
    ("exhaustive_pad_forbidden", "[PAD, EOS]"),
):
    add(
        name,
        "Your search leaves out special tokens; every id of the vocabulary may occur, PAD, BOS and "
        "UNK included.",
        (EXTEND, f"total[:, {forbidden}] = -math.inf"),
    )
add(
    "exhaustive_length_normalised",
    "Your search divides by the length; the most probable sequence is asked for, without any "
    "normalisation.",
    (PICK, "finished = finished / (len(prefix) + 1)\n            if finished > best:"),
)
add(
    "exhaustive_states_mixed_up",
    "Your states no longer belong to their prefixes; choose the same rows of every part of the "
    "state as of the prefixes.",
    (ADVANCE, "state = tuple(part[torch.zeros_like(rows)] for part in state)"),
)
add(
    "exhaustive_mask_ignored",
    "Your model does not get source_mask; pass it to start.",
    ("model.start(source, source_mask)", "model.start(source)"),
)
add(
    "exhaustive_tensor_ids",
    "Your ids are a tensor; a list of ints is asked for, .tolist() makes one.",
    ("return best_ids, best", "return torch.tensor(best_ids), best"),
)
add(
    "exhaustive_nothing_found",
    "You return a result although every candidate has probability 0; raise a ValueError.",
    (NO_END, "if False:"),
)
add(
    "exhaustive_batch_accepted",
    "More than one source is not refused; raise a ValueError.",
    ("if len(source) != 1:", "source = source[:1]\n    if False:"),
)
add(
    "exhaustive_pruned",
    "Your search drops beginnings that look improbable, as a beam does; a rare beginning may still "
    "lead to the most probable sequence, so drop none but those of probability 0.",
    (
        "        log_prob = total[rows, previous]  # (P',)",
        "        log_prob = total[rows, previous]  # (P',)\n"
        "        keep = log_prob.topk(min(50, len(log_prob))).indices\n"
        "        rows, previous, log_prob = rows[keep], previous[keep], log_prob[keep]\n"
        "        prefixes = [prefixes[place] for place in keep.tolist()]",
    ),
)
add(
    "exhaustive_most_likely_tokens",
    "Your search extends a beginning by its most probable tokens only; a rare token may still lead "
    "to the most probable sequence, so take every one.",
    (
        "        total[:, EOS] = -math.inf  # what has ended is not extended",
        "        total[:, EOS] = -math.inf\n"
        "        least = total.topk(min(50, total.shape[1])).values[:, -1:]\n"
        "        total = total.masked_fill(total < least, -math.inf)",
    ),
)
add(
    "exhaustive_viterbi",
    "Your search keeps the best beginning for each last token only, as Viterbi's algorithm does; "
    "the state may remember all tokens, so keep every beginning.",
    (
        "        log_prob = total[rows, previous]  # (P',)",
        "        log_prob = total[rows, previous]  # (P',)\n"
        "        order = log_prob.sort().indices.tolist()\n"
        "        keep = list({int(previous[place]): place for place in order}.values())\n"
        "        rows, previous, log_prob = rows[keep], previous[keep], log_prob[keep]\n"
        "        prefixes = [prefixes[place] for place in keep]",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "beam_search", "seq-beam")
TOTALS = "totals = log_prob[:, None] + torch.log_softmax(logits, dim=-1)"
WIDTH = "width = min(beam_size - len(finished), totals.numel())"
SCORE = "total / len(ids) ** alpha"
SCORED = f"scored = [(ids, {SCORE}) for ids, total in finished + live]"
SORTED = "sorted(scored, key=lambda pair: pair[1], reverse=True)"
REORDER = "state = tuple(part[rows] for part in state)"
AT_EOS = "if token == EOS:"
add(
    "beam_two_part_state",
    TWO_PARTS,
    (STEP, "s, context = state\n        logits, state = model.step(previous, (s, context))"),
)
add(
    "beam_state_not_reordered",
    "Your states no longer belong to their hypotheses; after choosing the survivors, choose the "
    "same rows of every part of the state.",
    (REORDER, "state = tuple(part[[k % len(part) for k in range(len(rows))]] for part in state)"),
)
add(
    "beam_state_of_the_best",
    "All of your hypotheses go on with the state of the first one; each needs the state of the "
    "hypothesis it extends.",
    (REORDER, "state = tuple(part[[0] * len(rows)] for part in state)"),
)
add(
    "beam_token_not_fed",
    "Your hypotheses are all fed the token of the best one; each is fed its own last token.",
    (
        "source.new_tensor([ids[-1] for ids, _ in live])",
        "source.new_tensor([live[0][0][-1] for _ in live])",
    ),
)
add(
    "beam_begins_with_copies",
    "Your beam begins with beam_size copies of the empty hypothesis, so that copies of the best "
    "one fill it; begin with one.",
    ("= [([], 0.0)]\n", "= [([], 0.0)] * beam_size\n"),
    (
        "state = model.start(source, source_mask)",
        "first = model.start(source, source_mask)\n"
        "    state = tuple(part.repeat_interleave(beam_size, 0) for part in first)",
    ),
    (
        "previous = torch.full_like(source[:, 0], BOS)",
        "previous = source.new_full((beam_size,), BOS)",
    ),
)
add(
    "beam_softmax_over_the_beam",
    "Your softmax goes over the tokens of all hypotheses together; each hypothesis has a "
    "distribution of its own: take log_softmax over the vocabulary.",
    (TOTALS, TOTALS.replace("logits, dim=-1", "logits.flatten(), dim=0") + ".view_as(logits)"),
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
    (
        "while live and len(live[0][0]) < max_length:",
        "while live and not finished and len(live[0][0]) < max_length:",
    ),
)
add(
    "beam_stops_when_the_best_is_finished",
    "Your search ends when the best finished hypothesis is more probable than every live one; go "
    "on until nothing is live or max_length is reached, since the others are asked for too.",
    (
        "while live and len(live[0][0]) < max_length:",
        "while (\n"
        "        live\n"
        "        and len(live[0][0]) < max_length\n"
        "        and not any(total > live[0][1] for _, total in finished)\n"
        "    ):",
    ),
)
add(
    "beam_no_wider_than_the_vocabulary",
    "You keep at most as many extensions as there are tokens; the best of all extensions of all "
    "hypotheses survive, as many as the beam has room for.",
    (WIDTH, "width = min(beam_size - len(finished), totals.shape[1])"),
)
for name, forbidden in (
    ("beam_specials_forbidden", "[PAD, BOS, 3]"),
    ("beam_pad_and_bos_forbidden", "[PAD, BOS]"),
    ("beam_pad_forbidden", "[PAD]"),
):
    add(
        name,
        "Your beam never takes some of the special tokens; every token of the vocabulary may "
        "extend a hypothesis, PAD, BOS and UNK included.",
        (TOTALS, f"{TOTALS}\n        totals[:, {forbidden}] = -math.inf"),
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
    "beam_eos_appended",
    "You append EOS to what is still live at the end; it joins as it is, without an EOS that the "
    "model did not choose.",
    (
        "for ids, total in finished + live]",
        "for ids, total in finished + [([*ids, EOS], total) for ids, total in live]]",
    ),
    (SCORE, "total / max(1, min(len(ids), max_length)) ** alpha"),
)
add(
    "beam_goes_on_after_eos",
    "Your hypotheses go on after EOS; those that end are finished and leave the beam.",
    (AT_EOS, "if False:"),
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
    "beam_length_with_bos",
    "Your length counts BOS; len(ids) counts the tokens of the result, EOS included.",
    (SCORE, "total / (len(ids) + 1) ** alpha"),
)
add(
    "beam_length_without_eos",
    "Your length leaves EOS out; len(ids) counts it.",
    (SCORE, "total / max(1, len(ids) - (ids[-1] == EOS)) ** alpha"),
)
add(
    "beam_multiplied_by_length",
    "You multiply by the length; a score is the log-probability divided by len(ids) ** alpha.",
    (SCORE, "total * len(ids) ** alpha"),
)
add(
    "beam_alpha_times_length",
    "You divide by alpha * len(ids); alpha is an exponent: len(ids) ** alpha.",
    (SCORE, "total / (alpha * len(ids) if alpha else 1)"),
)
add(
    "beam_always_mean",
    "You always divide by the length; with alpha = 0 the score is the log-probability itself.",
    (SCORE, "total / len(ids)"),
)
add(
    "beam_alpha_ignored",
    "Your score ignores alpha; divide the log-probability by len(ids) ** alpha.",
    (SCORE, "total"),
)
add(
    "beam_google_penalty",
    "Your score uses ((5 + length) / 6) ** alpha, as Wu et al. do; here it is the plain "
    "len(ids) ** alpha.",
    (SCORE, "total / ((5 + len(ids)) / 6) ** alpha"),
)
add(
    "beam_same_length_for_all",
    "You divide every score by max_length ** alpha; each hypothesis has a length of its own.",
    (SCORE, "total / max_length ** alpha"),
)
add(
    "beam_sorted_before_normalising",
    "Your hypotheses are sorted by log-probability; the order follows the normalised score.",
    (
        f"return {SORTED}",
        "by_total = sorted(finished + live, key=lambda pair: pair[1], reverse=True)\n"
        f"    return [(ids, {SCORE}) for ids, total in by_total]",
    ),
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
    "beam_finished_first",
    "Your finished hypotheses stand before those that are still live; sort all of them together by "
    "score.",
    (
        f"return {SORTED}",
        "parts = scored[: len(finished)], scored[len(finished) :]\n"
        f"    return [pair for part in parts for pair in {SORTED.replace('scored', 'part')}]",
    ),
)
add(
    "beam_best_only",
    "You return the best hypothesis only; all finished and remaining ones are asked for.",
    (SORTED, f"{SORTED}[:1]"),
)
add(
    "beam_log_probs_not_added",
    "Your scores are those of the last step; add up the log-probabilities of all tokens.",
    (TOTALS, "totals = 0 * log_prob[:, None] + torch.log_softmax(logits, dim=-1)"),
)
add(
    "beam_logits_added",
    "You add up logits; they are not log-probabilities: take log_softmax over the vocabulary "
    "first.",
    (TOTALS, "totals = log_prob[:, None] + logits"),
)
add(
    "beam_product",
    "You multiply probabilities, which vanish in long hypotheses; add log-probabilities instead.",
    (TOTALS, "totals = (log_prob.exp()[:, None] * torch.softmax(logits, dim=-1)).log()"),
)
add(
    "beam_probabilities",
    "Your scores are probabilities; log-probabilities are asked for.",
    (SCORE, "math.exp(total / len(ids) ** alpha)"),
)
add(
    "beam_impossible_kept",
    "Hypotheses of probability 0 stay in your beam; drop them, even if fewer than beam_size are "
    "left.",
    ("if total == -math.inf:", "if False:"),
)
add(
    "beam_one_step_short",
    "Your search ends one token early; max_length tokens are allowed, BOS not counted.",
    ("len(live[0][0]) < max_length:", "len(live[0][0]) < max(1, max_length - 1):"),
)
add(
    "beam_one_step_more",
    "Your hypotheses may have max_length + 1 tokens; EOS is counted.",
    ("len(live[0][0]) < max_length:", "len(live[0][0]) < max_length + 1:"),
)
add(
    "beam_greedy",
    "Your search keeps one hypothesis whatever beam_size says; keep the beam_size best.",
    ("    state = model.start", "    beam_size = 1\n    state = model.start"),
)
add(
    "beam_normalised_during_search",
    "Your survivors are chosen by the normalised score; during the search the log-probability "
    "decides, and alpha only counts at the end.",
    (
        WIDTH,
        f"{WIDTH}\n"
        "        steps = len(live[0][0]) + 1\n"
        "        ended = torch.arange(totals.shape[1]) == EOS\n"
        "        real = totals\n"
        "        totals = torch.where(ended, totals / steps**alpha, totals)",
    ),
    (
        "row, token = divmod(place, totals.shape[1])",
        "row, token = divmod(place, totals.shape[1])\n            total = real[row, token].item()",
    ),
)
add(
    "beam_mask_ignored",
    "Your model does not get source_mask; pass it to start.",
    ("model.start(source, source_mask)", "model.start(source)"),
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
        "    state = model.start",
        "    beam_size, max_length = max(1, beam_size), max(1, max_length)\n"
        "    state = model.start",
    ),
)
add(
    "beam_batch_accepted",
    "More than one source is not refused; raise a ValueError.",
    ("if len(source) != 1:", "source = source[:1]\n    if False:"),
)
