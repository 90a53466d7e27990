"""Known mistakes of `transformer-training`: batches, the loss, the optimiser.

Targets that are not shifted, padding that counts, gradients that accumulate, moments that are
forgotten.
"""

from __future__ import annotations

from autograder.units.variants import Misconception, mistakes_in

MISCONCEPTIONS: list[Misconception] = []

# --------------------------------------------------------------------------------------------
# Targets and batches
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "shift_targets", "trf-shift")
CUT = "tgt_in, tgt_out = target[:, :-1], target[:, 1:]"
COUNT = "int((tgt_out != pad).sum())"
add(
    "shift_swapped",
    "You swap input and output; tgt_in should be all but the last id of each row, tgt_out all but "
    "the first.",
    (CUT, "tgt_in, tgt_out = target[:, 1:], target[:, :-1]"),
)
add(
    "shift_none",
    "Your input and output are the same ids, so the model only learns to copy; tgt_out should be "
    "one position ahead of tgt_in.",
    (CUT, "tgt_in, tgt_out = target[:, :-1], target[:, :-1]"),
)
add(
    "shift_by_two",
    "Your tgt_out is two positions ahead of tgt_in; leave out only the last id of the one and the "
    "first of the other.",
    (CUT, "tgt_in, tgt_out = target[:, :-2], target[:, 2:]"),
    ("if target.shape[1] < 2:", "if target.shape[1] < 3:"),
)
add(
    "shift_eos_dropped",
    "Your tgt_out lacks the last id of each row, so the model never learns to predict EOS; leave "
    "out only the first id.",
    (CUT, "tgt_in, tgt_out = target[:, :-1], target[:, 1:-1]"),
)
add(
    "shift_whole_input",
    "Your tgt_in is the whole target; leave out its last id, after which there is nothing to "
    "predict.",
    (CUT, "tgt_in, tgt_out = target, target[:, 1:]"),
)
add(
    "shift_eos_out_of_input",
    "You replace EOS by padding in tgt_in; return all but the last id of each row as they are.",
    (
        CUT,
        "tgt_in, tgt_out = target[:, :-1].masked_fill(target[:, :-1] == 2, pad), target[:, 1:]",
    ),
)
add(
    "shift_counts_padding",
    "You count padding, too; count only the ids of tgt_out that are not pad.",
    (COUNT, "tgt_out.numel()"),
)
add(
    "shift_counts_input",
    "You count the ids of tgt_in that are not pad; count those of tgt_out, which the loss is "
    "about.",
    (COUNT, "int((tgt_in != pad).sum())"),
)
add(
    "shift_counts_target",
    "You count the whole target; BOS is never predicted, so count only the ids of tgt_out that are "
    "not pad.",
    (COUNT, "int((target != pad).sum())"),
)
add(
    "shift_counts_words",
    "You don't count EOS; count every id of tgt_out that is not pad.",
    (COUNT, "int(((tgt_out != pad) & (tgt_out != 2)).sum())"),
)
add(
    "shift_pad_ignored",
    "You compare with 0 whatever `pad` is; compare with the argument.",
    (COUNT, "int((tgt_out != 0).sum())"),
)
add(
    "shift_number_tensor",
    "Your count is a tensor; return an int with .item().",
    (COUNT, "(tgt_out != pad).sum()"),
)
add(
    "shift_short_accepted",
    "Your shift_targets accepts targets of fewer than 2 ids; raise a ValueError.",
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
    "You keep the order in which the sentences came; sort them by source length, target length and "
    "index, so that a batch needs little padding.",
    (ORDER, "range(len(lengths))"),
)
add(
    "batches_by_target",
    "You sort by target length first; sort by source length first.",
    (ORDER, "sorted(range(len(lengths)), key=lambda i: (lengths[i][1], lengths[i][0], i))"),
)
add(
    "batches_by_source_only",
    "You sort by source length alone; break ties by target length, then by index.",
    (ORDER, "sorted(range(len(lengths)), key=lambda i: lengths[i][0])"),
)
add(
    "batches_by_sum",
    "You sort by the sum of both lengths; sort by source length, then by target length.",
    (ORDER, "sorted(range(len(lengths)), key=lambda i: (sum(lengths[i]), i))"),
)
add(
    "batches_longest_first",
    "You begin with the longest sentences; begin with the shortest.",
    (ORDER, "sorted(range(len(lengths)), key=lambda i: (*lengths[i], i), reverse=True)"),
)
add(
    "batches_ties_reversed",
    "You take sentences of equal lengths in reverse order of their index; the smaller index comes "
    "first.",
    (ORDER, "sorted(range(len(lengths)), key=lambda i: (*lengths[i], -i))"),
)
add(
    "batches_count_sentences",
    "You limit the number of sentences in a batch; max_tokens limits the number of sentences times "
    "the longest length.",
    (FITS, "if batches and len(batches[-1]) + 1 <= max_tokens:"),
)
add(
    "batches_source_only",
    "You check the source side alone; apply the limit to the target side as well.",
    (LENGTH, "length = lengths[i][0]"),
)
add(
    "batches_target_only",
    "You check the target side alone; apply the limit to the source side as well.",
    (LENGTH, "length = lengths[i][1]"),
)
add(
    "batches_padding_free",
    "You add up the lengths, but padding counts, too; multiply the number of sentences by the "
    "longest length, on each side.",
    (LONGEST, "longest += length"),
    (FITS, "if batches and longest <= max_tokens:"),
)
add(
    "batches_both_sides_together",
    "You apply max_tokens to source and target together; apply it to each side by itself.",
    (LENGTH, "length = sum(lengths[i])"),
)


def limited(fits: str) -> str:
    """The answer with another limit, for which it knows both sides of the batch and the next."""
    return f"""def token_batches(lengths, max_tokens: int) -> list[list[int]]:
    if max_tokens < 1:
        raise ValueError("max_tokens must be at least 1")
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: (*lengths[i], i)):
        if max(lengths[i]) > max_tokens:
            raise ValueError(f"sentence {{i}} is too long")
        batch = [lengths[j] for j in (*(batches[-1] if batches else ()), i)]
        sources, targets = zip(*batch)
        if batches and {fits}:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches
"""


add(
    "batches_limit_for_source_only",
    "You apply the limit of a batch to the source side alone; apply it to the target side as well.",
    code=limited("len(batch) * max(sources) <= max_tokens"),
)
add(
    "batches_limit_for_both_sides_together",
    "You add source and target; apply the limit to each side by itself.",
    code=limited("len(batch) * (max(sources) + max(targets)) <= max_tokens"),
)
add(
    "batches_limit_without_padding",
    "You add up the lengths of each side, but padding counts, too; multiply the number of "
    "sentences by the longest length, on each side.",
    code=limited("max(sum(sources), sum(targets)) <= max_tokens"),
)
add(
    "batches_of_64_at_most",
    "You limit the number of sentences, too; max_tokens is the only limit.",
    (FITS, FITS.replace("batches and", "batches and len(batches[-1]) < 64 and")),
)
add(
    "batches_longest_of_the_last",
    "You multiply by the length of the newest sentence; multiply by the longest length in the "
    "batch, since an earlier target may be longer.",
    (LONGEST, "longest = length"),
)
add(
    "batches_longest_kept",
    "You carry the longest length over from one batch to the next; reset it when you start a new "
    "batch.",
    ("batches.append([i])\n            longest = length", "batches.append([i])"),
)
add(
    "batches_one_too_many",
    "You check the limit before you count the next sentence, so a batch exceeds max_tokens; count "
    "it first.",
    (FITS, "if batches and len(batches[-1]) * longest <= max_tokens:"),
)
add(
    "batches_one_target_too_many",
    "You count the next sentence on the source side only; on the target side, too, there is one "
    "more with it.",
    code=limited(
        "len(batch) * max(sources) <= max_tokens and (len(batch) - 1) * max(targets) <= max_tokens"
    ),
)
add(
    "batches_first_length_forgotten",
    "You forget how long a batch's first sentence is; when you begin a batch, its longest length "
    "is that sentence's.",
    (
        "batches.append([i])\n            longest = length",
        "batches.append([i])\n            longest = 0",
    ),
)
add(
    "batches_never_full",
    "Your batches stay below max_tokens; allow them to reach it.",
    (FITS, "if batches and (len(batches[-1]) + 1) * longest < max_tokens:"),
)
add(
    "batches_last_lost",
    "You lose the last batch; add what is left when the sentences end.",
    ("return batches", "return batches[:-1]"),
)
add(
    "batches_too_long_dropped",
    "You silently drop sentences that are too long; raise a ValueError that gives the index of the "
    "sentence.",
    (
        '            raise ValueError(f"sentence {i} has {length} tokens, more than '
        'max_tokens={max_tokens}")',
        "            continue",
    ),
)
add(
    "batches_too_long_alone",
    "You put a sentence that is too long in a batch of its own; raise a ValueError that gives its "
    "index.",
    (TOO_LONG, "if False:"),
)
add(
    "batches_too_long_unnamed",
    "Your ValueError doesn't say which sentence is too long; put its index in the message.",
    (
        'f"sentence {i} has {length} tokens, more than max_tokens={max_tokens}"',
        '"a sentence is too long"',
    ),
)
add(
    "batches_limit_unchecked",
    "Your token_batches accepts a max_tokens below 1; raise a ValueError.",
    ("if max_tokens < 1:", "max_tokens = max(1, max_tokens)\n    if False:"),
)

# --------------------------------------------------------------------------------------------
# The loss
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "label_smoothing_loss", "trf-smoothing")
UNIFORM = "uniform = -log_probs.mean(dim=-1)"
MIX = "loss = (1 - smoothing) * correct + smoothing * uniform"
MEAN = "return loss.masked_fill(~real, 0.0).sum() / real.sum()"
add(
    "smoothing_over_the_others",
    "You spread eps over the V - 1 other tokens; spread it over all V, the right one included.",
    (
        MIX,
        "loss = (1 - smoothing) * correct + smoothing / (log_probs.shape[-1] - 1) "
        "* (uniform * log_probs.shape[-1] - correct)",
    ),
)
add(
    "smoothing_without_pad",
    "You spread eps over V - 2 tokens, without PAD and the right one; spread it over all V.",
    (
        MIX,
        "loss = (1 - smoothing) * correct + smoothing / (log_probs.shape[-1] - 2) "
        "* (uniform * log_probs.shape[-1] - correct + log_probs[..., 0])",
    ),
)
add(
    "smoothing_pad_left_out",
    "You leave PAD out when you spread eps; spread it over all V tokens.",
    (
        UNIFORM,
        "uniform = -(log_probs.sum(dim=-1) - log_probs[..., 0]) / (log_probs.shape[-1] - 1)",
    ),
)
add(
    "smoothing_denominator",
    "You divide the sum over all V tokens by V - 1; divide by V.",
    (UNIFORM, "uniform = -log_probs.sum(dim=-1) / (log_probs.shape[-1] - 1)"),
)
add(
    "smoothing_sum",
    "You multiply eps by the sum over the vocabulary; multiply it by the mean, so that each of the "
    "V tokens gets eps / V.",
    (UNIFORM, "uniform = -log_probs.sum(dim=-1)"),
)
add(
    "smoothing_not_taken_away",
    "Your right token keeps its full weight of 1; multiply its term by 1 - eps.",
    (MIX, "loss = correct + smoothing * uniform"),
)
add(
    "smoothing_of_the_right_token_only",
    "You give eps / V to the right token only, so the shares don't sum to 1; give it to each of "
    "the V tokens.",
    (MIX, "loss = (1 - smoothing + smoothing / log_probs.shape[-1]) * correct"),
)
add(
    "smoothing_right_token_without_share",
    "Your right token gets only 1 - eps; add its share eps / V, which all V tokens get.",
    (
        MIX,
        "loss = (1 - smoothing) * correct + smoothing * (uniform - correct / log_probs.shape[-1])",
    ),
)
add(
    "smoothing_weights_swapped",
    "Your weights are swapped; multiply the right token's term by 1 - eps and the mean over the "
    "vocabulary by eps.",
    (MIX, "loss = smoothing * correct + (1 - smoothing) * uniform"),
)
add(
    "smoothing_ignored",
    "You ignore smoothing; spread a share eps of the target over the vocabulary.",
    (MIX, "loss = correct"),
)
add(
    "smoothing_always_a_tenth",
    "You always smooth by 0.1; use the argument smoothing.",
    (MIX, "loss = 0.9 * correct + 0.1 * uniform"),
)
add(
    "smoothing_entropy",
    "You subtract the entropy of the smoothed target, which makes the loss a Kullback-Leibler "
    "divergence; return the cross-entropy itself.",
    (
        MIX,
        "import math\n"
        "    rest = smoothing / log_probs.shape[-1]\n"
        "    most = 1 - smoothing + rest\n"
        "    entropy = -most * math.log(most)\n"
        "    if smoothing:\n"
        "        entropy -= (log_probs.shape[-1] - 1) * rest * math.log(rest)\n"
        "    loss = (1 - smoothing) * correct + smoothing * uniform - entropy",
    ),
)
add(
    "smoothing_log_of_log",
    "You take the logarithm once more; use log_probs as they are.",
    (MIX, f"correct, uniform = (-correct).exp(), (-uniform).exp()\n    {MIX}"),
)
add(
    "smoothing_probabilities",
    "You average probabilities; average log-probabilities.",
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
    "Your loss has the wrong sign; negate the log-probabilities, so that it is at least 0.",
    (MEAN, "return -loss.masked_fill(~real, 0.0).sum() / real.sum()"),
)
add(
    "smoothing_summed",
    "Your loss is a sum; divide it by the number of real tokens.",
    (MEAN, "return loss.masked_fill(~real, 0.0).sum()"),
)
add(
    "smoothing_divided_by_all",
    "You divide by B * U, padding included; divide by the number of real tokens.",
    (MEAN, "return loss.masked_fill(~real, 0.0).mean()"),
)
add(
    "smoothing_divided_by_rows",
    "You divide by the number of sentences; divide by the number of real tokens.",
    (MEAN, "return loss.masked_fill(~real, 0.0).sum() / len(target)"),
)
add(
    "smoothing_mean_of_means",
    "You average the means of the sentences, so tokens of short sentences weigh more; average over "
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
    "Your loss counts padding as a token to predict; leave it out of the sum and of the number of "
    "tokens.",
    (MEAN, "return loss.mean()"),
    (
        "ids = target.masked_fill(~real, 0)",
        "ids = torch.where((target < 0) | (target >= log_probs.shape[-1]), 0, target)",
    ),
)
add(
    "smoothing_padding_in_the_sum",
    "You leave padding out of the number of tokens but not out of the sum; leave it out of both.",
    (MEAN, "return loss.sum() / real.sum()"),
)
add(
    "smoothing_padding_still_smoothed",
    "You leave padding out of the right token's term but not out of the smoothing term; leave it "
    "out of both.",
    (MIX, "loss = (1 - smoothing) * correct.masked_fill(~real, 0.0) + smoothing * uniform"),
    (MEAN, "return loss.sum() / real.sum()"),
)
add(
    "smoothing_pad_ignored",
    "You compare with 0 whatever `pad` is; compare with the argument.",
    ("real = target != pad", "real = target != 0"),
    (
        "ids = target.masked_fill(~real, 0)",
        "ids = torch.where((target < 0) | (target >= log_probs.shape[-1]), 0, target)",
    ),
)
add(
    "smoothing_pad_outside_fails",
    "You pass a pad id outside the vocabulary to gather; replace it by a valid id first, such as "
    "0.",
    ("ids = target.masked_fill(~real, 0)", "ids = target"),
)
add(
    "smoothing_one_accepted",
    "You accept smoothing=1, which would leave nothing for the right token; raise a ValueError.",
    ("if not 0 <= smoothing < 1:", "if not 0 <= smoothing <= 1:"),
)
add(
    "smoothing_unchecked",
    "You accept a smoothing outside [0, 1); raise a ValueError.",
    ("if not 0 <= smoothing < 1:", "if False:"),
)
add(
    "smoothing_nothing_real",
    "You accept a batch of padding only, for which 0 / 0 is NaN; raise a ValueError.",
    ("if not real.any():", "if False:"),
)
add(
    "smoothing_row_of_padding_refused",
    "You refuse a batch in which one row is padding; refuse it only if all of them are.",
    ("if not real.any():", "if not real.any(dim=1).all():"),
)
add(
    "smoothing_detached",
    "Your loss has no gradient; leave out detach(), .data, .item() and no_grad().",
    (MEAN, f"{MEAN.replace('loss.', 'loss.detach().')}"),
)

# --------------------------------------------------------------------------------------------
# The optimiser
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "learning_rate", "trf-optimiser")
RATE = "return factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)"
add(
    "rate_inverse_square",
    "Your learning rate falls with the inverse square of the step; let it fall with the inverse "
    "square root, step ** -0.5.",
    (RATE, "return factor * d_model**-0.5 * min(step**-2.0, step * warmup_steps**-1.5)"),
)
add(
    "rate_inverse_square_joined",
    "Your learning rate falls with the inverse square of the step; let it fall with the inverse "
    "square root, step ** -0.5.",
    (RATE, "return factor * d_model**-0.5 * min(step**-2.0, step * warmup_steps**-3.0)"),
)
add(
    "rate_max",
    "You take the larger of the two terms; take the smaller, so that the learning rate first rises "
    "and then falls.",
    (RATE, "return factor * d_model**-0.5 * max(step**-0.5, step * warmup_steps**-1.5)"),
)
add(
    "rate_without_warmup",
    "Your learning rate has no warm-up and falls from the first step; take the smaller of step ** "
    "-0.5 and step * warmup_steps ** -1.5, and check the signs of both exponents.",
    (RATE, "return factor * d_model**-0.5 * step**-0.5"),
)
add(
    "rate_only_rises",
    "Your learning rate never falls; after the warm-up, let it fall with step ** -0.5 (mind the "
    "minus).",
    (RATE, "return factor * d_model**-0.5 * step * warmup_steps**-1.5"),
)
add(
    "rate_constant_after_warmup",
    "Your learning rate stays constant after the warm-up; let it fall with step ** -0.5.",
    (RATE, "return factor * d_model**-0.5 * min(warmup_steps**-0.5, step * warmup_steps**-1.5)"),
)
add(
    "rate_without_width",
    "Your learning rate lacks the factor d_model ** -0.5; multiply by it.",
    (RATE, "return factor * min(step**-0.5, step * warmup_steps**-1.5)"),
)
add(
    "rate_width_inverse",
    "You divide by d_model; divide by its square root.",
    (RATE, "return factor / d_model * min(step**-0.5, step * warmup_steps**-1.5)"),
)
add(
    "rate_width_multiplied",
    "You multiply by the square root of d_model; divide by it.",
    (RATE, "return factor * d_model**0.5 * min(step**-0.5, step * warmup_steps**-1.5)"),
)
add(
    "rate_warmup_exponent",
    "Your warmup_steps has the exponent -0.5; use -1.5, so that both terms meet at step = "
    "warmup_steps.",
    (RATE, "return factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-0.5)"),
)
add(
    "rate_warmup_linear",
    "You divide step by warmup_steps, which ends the warm-up too early; use step * warmup_steps ** "
    "-1.5.",
    (RATE, "return factor * d_model**-0.5 * min(step**-0.5, step / warmup_steps)"),
)
add(
    "rate_factor_ignored",
    "You ignore factor; multiply the whole by it.",
    (RATE, RATE.replace("factor * ", "")),
)
add(
    "rate_from_step_zero",
    "You add 1 to step, as if steps counted from 0; they count from 1, so use step as it is.",
    (
        RATE,
        "step += 1\n    return factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)",
    ),
)
add(
    "rate_tensor",
    "Your learning rate is a tensor; return a float.",
    (RATE, f"{RATE.replace('return ', 'return torch.tensor(')})"),
)
add(
    "rate_unchecked",
    "You accept a step or a warmup_steps below 1; raise a ValueError.",
    ("if value < 1:", "if False:"),
    (RATE, "step, warmup_steps = max(step, 1), max(warmup_steps, 1)\n    " + RATE),
)
add(
    "rate_warmup_of_one_refused",
    "You refuse a warm-up of 1 step; refuse only fewer.",
    ("if value < 1:", 'if value < 1 + (name == "warmup_steps"):'),
)
add(
    "rate_warmup_unchecked",
    "You accept a warmup_steps below 1; raise a ValueError.",
    ('(("step", step), ("warmup_steps", warmup_steps))', '(("step", step),)'),
    (RATE, "warmup_steps = max(warmup_steps, 1)\n    " + RATE),
)

add = mistakes_in(MISCONCEPTIONS, "adam_step", "trf-optimiser")
FIRST = "exp_avg = beta_1 * exp_avg + (1 - beta_1) * gradient"
SECOND = "exp_avg_sq = beta_2 * exp_avg_sq + (1 - beta_2) * gradient**2"
FIRST_CORRECTED = "first_corrected = exp_avg / (1 - beta_1**step)"
SECOND_CORRECTED = "second_corrected = exp_avg_sq / (1 - beta_2**step)"
NEW = "new = parameter - lr * first_corrected / (second_corrected.sqrt() + eps)"
add(
    "adam_not_corrected",
    "You don't correct the bias; divide the moments by 1 - beta_1 ** step and 1 - beta_2 ** step "
    "before you use them.",
    (FIRST_CORRECTED, "first_corrected = exp_avg"),
    (SECOND_CORRECTED, "second_corrected = exp_avg_sq"),
)
add(
    "adam_first_not_corrected",
    "You don't correct the bias of the first moment; divide it by 1 - beta_1 ** step.",
    (FIRST_CORRECTED, "first_corrected = exp_avg"),
)
add(
    "adam_second_not_corrected",
    "You don't correct the bias of the second moment; divide it by 1 - beta_2 ** step.",
    (SECOND_CORRECTED, "second_corrected = exp_avg_sq"),
)
add(
    "adam_corrected_without_step",
    "You divide by 1 - beta at every step, but the bias fades; divide by 1 - beta ** step.",
    (FIRST_CORRECTED, "first_corrected = exp_avg / (1 - beta_1)"),
    (SECOND_CORRECTED, "second_corrected = exp_avg_sq / (1 - beta_2)"),
)
add(
    "adam_corrected_from_zero",
    "You correct the bias with step - 1, as if steps counted from 0; use step, which is 1 at the "
    "first step.",
    (FIRST_CORRECTED, "first_corrected = exp_avg / (1 - beta_1 ** max(step - 1, 1))"),
    (SECOND_CORRECTED, "second_corrected = exp_avg_sq / (1 - beta_2 ** max(step - 1, 1))"),
)
add(
    "adam_corrected_by_next",
    "You correct the bias with step + 1; use step, which is 1 at the first step.",
    (FIRST_CORRECTED, "first_corrected = exp_avg / (1 - beta_1 ** (step + 1))"),
    (SECOND_CORRECTED, "second_corrected = exp_avg_sq / (1 - beta_2 ** (step + 1))"),
)
add(
    "adam_corrected_means_returned",
    "You return the corrected moments; return them uncorrected, as the next step needs them.",
    ("return new, exp_avg, exp_avg_sq", "return new, first_corrected, second_corrected"),
)
add(
    "adam_eps_in_the_root",
    "You add eps inside the root; add it to the root.",
    (NEW, "new = parameter - lr * first_corrected / (second_corrected + eps).sqrt()"),
)
add(
    "adam_eps_before_correction",
    "You add eps to the root of the uncorrected second moment, which enlarges it in early steps; "
    "add it to the root of the corrected moment.",
    (
        NEW,
        "root = (exp_avg_sq.sqrt() + eps) / (1 - beta_2**step) ** 0.5\n"
        "    new = parameter - lr * first_corrected / root",
    ),
)
add(
    "adam_eps_missing",
    "You don't add eps, so a gradient of 0 gives 0 / 0, which is NaN; add it to the root.",
    (NEW, "new = parameter - lr * first_corrected / second_corrected.sqrt()"),
)
add(
    "adam_eps_ignored",
    "You add 1e-9 whatever eps is; use the argument.",
    (NEW, NEW.replace("eps", "1e-9")),
)
add(
    "adam_eps_other_default",
    "Your default for eps is not 1e-9; change it to 1e-9.",
    ("eps: float = 1e-9", "eps: float = 1e-8"),
)
add(
    "adam_eps_clamped",
    "You clamp the root of the second moment at eps; add eps to it.",
    (NEW, NEW.replace("second_corrected.sqrt() + eps", "second_corrected.sqrt().clamp(min=eps)")),
)
add(
    "adam_zero_gradients_skipped",
    "You leave entries alone whose gradient is 0; the first moment still moves them, as it "
    "remembers earlier gradients.",
    (NEW, NEW + "\n    new = torch.where(gradient == 0, parameter, new)"),
)
add(
    "adam_without_root",
    "You divide by the second moment; divide by its square root.",
    (NEW, "new = parameter - lr * first_corrected / (second_corrected + eps)"),
)
add(
    "adam_betas_swapped",
    "Your betas are swapped; use the first for the mean of gradients, the second for the mean of "
    "their squares.",
    ("beta_1, beta_2 = betas", "beta_2, beta_1 = betas"),
)
add(
    "adam_shares_swapped",
    "Your weights are swapped; multiply the old moment by beta and the new term by 1 - beta.",
    (FIRST, "exp_avg = (1 - beta_1) * exp_avg + beta_1 * gradient"),
    (SECOND, "exp_avg_sq = (1 - beta_2) * exp_avg_sq + beta_2 * gradient**2"),
)
add(
    "adam_gradient_in_full",
    "You add the gradient and its square in full; multiply them by 1 - beta_1 and 1 - beta_2.",
    (FIRST, "exp_avg = beta_1 * exp_avg + gradient"),
    (SECOND, "exp_avg_sq = beta_2 * exp_avg_sq + gradient**2"),
)
add(
    "adam_first_in_full",
    "Your first moment adds the gradient in full, as momentum does; multiply it by 1 - beta_1.",
    (FIRST, "exp_avg = beta_1 * exp_avg + gradient"),
)
add(
    "adam_first_squared",
    "Your first moment averages squared gradients; average the gradients themselves.",
    (FIRST, "exp_avg = beta_1 * exp_avg + (1 - beta_1) * gradient**2"),
)
add(
    "adam_second_not_squared",
    "Your second moment averages the absolute gradients; average their squares.",
    (SECOND, "exp_avg_sq = beta_2 * exp_avg_sq + (1 - beta_2) * gradient.abs()"),
)
add(
    "adam_second_of_the_first",
    "Your second moment averages the squares of the first moment; average those of the gradient.",
    (SECOND, "exp_avg_sq = beta_2 * exp_avg_sq + (1 - beta_2) * exp_avg**2"),
)
add(
    "adam_gradient_not_averaged",
    "You step along the gradient itself; step along its running mean, the first moment.",
    (NEW, NEW.replace("first_corrected", "gradient")),
)
add(
    "adam_plain_descent",
    "You step along the gradient and use neither moment; divide the corrected first moment by the "
    "root of the corrected second.",
    (NEW, "new = parameter - lr * gradient"),
)
add(
    "adam_ascends",
    "You add the step, which makes the loss larger; subtract it.",
    (NEW, NEW.replace("parameter -", "parameter +")),
)
add(
    "adam_rate_ignored",
    "Your step ignores lr; multiply by it.",
    (NEW, NEW.replace("lr * ", "")),
)
add(
    "adam_weight_decay",
    "You also shrink the parameter, which is weight decay; leave it out.",
    (NEW, f"{NEW}\n    new = new - 0.01 * lr * parameter"),
)
add(
    "adam_l2",
    "You add a share of the parameter to the gradient, which is an L2 penalty; leave it out.",
    (FIRST, f"gradient = gradient + 0.01 * parameter\n    {FIRST}"),
)
add(
    "adam_in_place",
    "You change the caller's tensors in place; create new ones.",
    (FIRST, "exp_avg.mul_(beta_1).add_((1 - beta_1) * gradient)"),
    (SECOND, "exp_avg_sq.mul_(beta_2).add_((1 - beta_2) * gradient**2)"),
)
add(
    "adam_parameter_in_place",
    "You change the caller's parameter in place; return a new tensor.",
    (NEW, "new = parameter.sub_(lr * first_corrected / (second_corrected.sqrt() + eps))"),
)
add(
    "adam_parameter_last",
    "You return (exp_avg, exp_avg_sq, parameter); return (parameter, exp_avg, exp_avg_sq).",
    ("return new, exp_avg, exp_avg_sq", "return exp_avg, exp_avg_sq, new"),
)
add(
    "adam_means_swapped",
    "You return the moments in the wrong order; return (parameter, exp_avg, exp_avg_sq).",
    ("return new, exp_avg, exp_avg_sq", "return new, exp_avg_sq, exp_avg"),
)
add(
    "adam_step_unchecked",
    "You accept a step below 1; raise a ValueError.",
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
STEP = "new, *means = adam_step(parameter, parameter.grad, *updated[name], step, lr)"
DONE = "return loss.item(), updated"
add(
    "train_gradients_pile_up",
    "Gradients of earlier batches are still in .grad and add to the new ones; clear them before "
    "backward().",
    (CLEAR, ""),
)
add(
    "train_gradients_cleared_late",
    "You clear the gradients after backward(), so nothing is learned; clear them before it.",
    ("    model.zero_grad()\n    loss.backward()", "    loss.backward()\n    model.zero_grad()"),
)
add(
    "train_loss_after",
    "You return the loss after the step; return the one whose gradients you used.",
    (
        DONE,
        "with torch.no_grad():\n"
        "        loss = label_smoothing_loss(model(source, tgt_in), tgt_out, smoothing)\n"
        f"    {DONE}",
    ),
)
add(
    "train_loss_of_another_pass",
    "You compute the loss a second time before you return it; in training mode dropout then drops "
    "something else. Return the loss whose gradients you used.",
    (
        "    loss.backward()\n",
        "    loss.backward()\n"
        "    with torch.no_grad():\n"
        "        loss = label_smoothing_loss(model(source, tgt_in), tgt_out, smoothing)\n",
    ),
)
add(
    "train_not_shifted",
    "You train on unshifted targets, so the model learns to copy its input; feed tgt_in and "
    "compute the loss on tgt_out.",
    (LOSS, "loss = label_smoothing_loss(model(source, tgt_in), tgt_in, smoothing)"),
)
add(
    "train_reads_the_answer",
    "You feed tgt_out to the decoder, which is what it should predict; feed tgt_in.",
    (LOSS, "loss = label_smoothing_loss(model(source, tgt_out), tgt_out, smoothing)"),
)
add(
    "train_roles_swapped",
    "You swap source and target; call model(source, tgt_in).",
    (LOSS, "loss = label_smoothing_loss(model(tgt_in, source)[:, :1], tgt_out[:, :1], smoothing)"),
)
add(
    "train_source_cut",
    "You cut the source to the length of the target; pass it to the model as it is.",
    (LOSS, f"source = source[:, : target.shape[1]]\n    {LOSS}"),
)
add(
    "train_smoothing_ignored",
    "You train without smoothing; pass the argument smoothing to label_smoothing_loss.",
    (LOSS, "loss = label_smoothing_loss(model(source, tgt_in), tgt_out, 0.0)"),
)
add(
    "train_smoothing_default",
    "You always smooth by 0.1; pass the argument smoothing to label_smoothing_loss.",
    (LOSS, "loss = label_smoothing_loss(model(source, tgt_in), tgt_out)"),
)
add(
    "train_moments_forgotten",
    "You begin every step with moments of 0; continue with the given ones.",
    ("if name not in moments:", "if True:"),
)
add(
    "train_moments_not_returned",
    "You return the moments from before the step; return the new ones.",
    (DONE, "return loss.item(), dict(moments)"),
)
add(
    "train_moments_changed",
    "You change the given dict of moments; put the new moments into a new dict.",
    (UPDATED, "updated = moments"),
)
add(
    "train_moments_swapped",
    "You store the moments in the wrong order; store the pair (first, second).",
    ("updated[name] = tuple(means)", "updated[name] = tuple(reversed(means))"),
)
add(
    "train_moments_in_place",
    "You write the new moments into the given tensors; create new ones.",
    (
        "updated[name] = tuple(means)",
        "for old, mean in zip(updated[name], means, strict=True):\n                old.copy_(mean)",
    ),
)
add(
    "train_step_ignored",
    "You correct the bias as if every step were the first; pass step to adam_step.",
    (STEP, STEP.replace("step, lr", "1, lr")),
)
add(
    "train_rate_ignored",
    "You ignore lr and use learning_rate(step); use lr, which the caller chooses.",
    (STEP, STEP.replace("step, lr", "step, learning_rate(step)")),
)
add(
    "train_plain_descent",
    "You step along the gradient; use the parameter that adam_step returns.",
    (STEP, f"{STEP}\n            new = parameter - lr * parameter.grad"),
)
add(
    "train_not_in_place",
    "Your new parameters never reach the model; copy them into it in place, under torch.no_grad().",
    ("            parameter.copy_(new)\n", ""),
)
add(
    "train_weights_only",
    "You update only matrices; update biases and the parameters of norms, too.",
    ("if parameter.grad is None:", "if parameter.grad is None or parameter.dim() < 2:"),
)
add(
    "train_decoder_only",
    "You update only the decoder's side; update the encoder and its embeddings, too.",
    (
        "if parameter.grad is None:",
        'if parameter.grad is None or name.startswith(("encoder", "src_embed")):',
    ),
)
add(
    "train_missing_gradient_fails",
    "You use .grad where it is None, for parameters that the loss does not depend on; leave these "
    "as they are.",
    (
        "            if parameter.grad is None:\n                continue\n",
        "",
    ),
)
add(
    "train_old_gradients_zeroed",
    "You set old gradients to 0, so that a frozen parameter has one and is updated; set them to "
    "None, as model.zero_grad() does.",
    (CLEAR, "    model.zero_grad(set_to_none=False)\n"),
)
add(
    "train_thaws",
    "You switch requires_grad on for all parameters; leave frozen ones frozen.",
    (DONE, f"model.requires_grad_(True)\n    {DONE}"),
)
add(
    "train_twice_where_shared",
    "You update a shared parameter several times; go through named_parameters(), which lists it "
    "once.",
    (
        "for name, parameter in model.named_parameters():",
        "for name, parameter in model.named_parameters(remove_duplicate=False):",
    ),
)
add(
    "train_loss_tensor",
    "Your loss is a tensor; return a float with .item().",
    (DONE, "return loss.detach(), updated"),
)
add(
    "train_loss_summed",
    "You multiply the loss by the number of tokens; use the loss per real token.",
    (SHIFT, "tgt_in, tgt_out, number = shift_targets(target)"),
    (LOSS, f"{LOSS} * number"),
)
add(
    "train_gradients_clipped",
    "You clip the gradients to norm 1; use them as they are.",
    ("loss.backward()", "loss.backward()\n    nn.utils.clip_grad_norm_(model.parameters(), 1.0)"),
)
add(
    "train_mode_on",
    "You switch the model to training mode; leave its mode to the caller.",
    (LOSS, f"model.train()\n    {LOSS}"),
)
add(
    "train_mode_off",
    "You switch the model to evaluation mode, so dropout never acts; leave its mode to the caller.",
    (LOSS, f"model.eval()\n    {LOSS}"),
)
add(
    "train_only_the_loss",
    "You return only the loss; return (loss, moments).",
    (DONE, "return loss.item()"),
)
