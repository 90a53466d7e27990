"""Graders of `transformer-training`: batches, the loss, the optimiser."""

from __future__ import annotations

import torch

from autograder.graders.common import pair, refuses, same_number
from autograder.graders.transformer.common import (
    BOS,
    EOS,
    PAD,
    SMALL,
    Models,
    as_list,
    filled_up,
    own_model,
    small,
    small_state,
    smoothed,
    sources_of,
    targets_of,
    train,
    whole_number,
)
from autograder.judging import expectations
from autograder.judging.grader_marks import Mistake, exercise, hidden, promises
from autograder.judging.proxy import StudentError

# --------------------------------------------------------------------------------------------
# shift_targets
# --------------------------------------------------------------------------------------------


def same_shift(student, reference, target, case, *pad):
    seen = student.observe("shift_targets", target, *pad, grad=False)
    mine = seen.value
    theirs = reference.shift_targets(target, *pad)
    expectations.items(mine, 3, what="the result (tgt_in, tgt_out, count)")
    expectations.close(mine[0], theirs[0], what="tgt_in", case=case)
    expectations.close(mine[1], theirs[1], what="tgt_out", case=case)
    number = whole_number(mine[2], "the number of real tokens", case)
    expectations.true(
        number == theirs[2],
        f"the number of real tokens should be {theirs[2]}, but is {number} for {case}.",
    )
    expectations.unchanged(seen)


@promises("shifted")
@exercise("shift_targets")
def test_shift_values(student, reference, draw):
    """tgt_in is all but the last id of each row, tgt_out all but the first."""
    same_shift(student, reference, torch.tensor([[BOS, 4, 5, EOS]]), "the target BOS, 4, 5, EOS")
    target = targets_of(draw, [4, 4])
    same_shift(student, reference, target, "two targets without padding")


@promises("count")
@exercise("shift_targets")
def test_shift_padding(student, reference, draw):
    """The count is that of the ids of tgt_out that are not padding, EOS included."""
    target = targets_of(draw, [0, 5, 2])
    same_shift(student, reference, target, "0, 5 and 2 words between BOS and EOS")


@promises("too-short")
@exercise("shift_targets")
def test_shift_refusals(student):
    """Rows of fewer than 2 ids raise a ValueError; 2 are enough."""
    refuses(
        student.shift_targets,
        {
            "rows of 1 id": (torch.tensor([[BOS], [BOS]]),),
            "rows of 0 ids": (torch.zeros(2, 0, dtype=torch.int64),),
        },
    )
    ids = student.shift_targets(torch.tensor([[BOS, EOS]]))
    expectations.items(ids, 3, what="the result (tgt_in, tgt_out, count)")
    expectations.equal(ids[1], torch.tensor([[EOS]]), what="tgt_out", case="the target BOS, EOS")


@hidden
@exercise("shift_targets", weight=2)
def test_shift_other_pad(student, reference, draw):
    """`pad` says which id is padding, wherever it is; 0 is then a token."""
    for pad in (5, -100):
        target = targets_of(draw, [2, 4, 1], pad=pad)
        target[0, 1] = PAD
        target[1, 3] = pad
        same_shift(student, reference, target, f"pad={pad}", pad)


# --------------------------------------------------------------------------------------------
# token_batches
# --------------------------------------------------------------------------------------------


def same_batches(student, reference, lengths, max_tokens, words=""):
    case = words or f"the lengths {lengths} and max_tokens={max_tokens}"
    seen = student.observe("token_batches", lengths, max_tokens, grad=False)
    wanted = reference.token_batches(lengths, max_tokens)
    batches = [as_list(batch, "a batch", case) for batch in as_list(seen.value, "the result", case)]
    for batch in batches:
        for index in batch:
            whole_number(index, "an index in a batch", case)
    for place, (batch, right) in enumerate(zip(batches, wanted, strict=False)):
        expectations.true(
            batch == right, f"batch {place} should be {right}, but is {batch} for {case}."
        )
    expectations.true(
        len(batches) == len(wanted),
        f"there should be {len(wanted)} batches, but there are {len(batches)} for {case}.",
    )
    expectations.unchanged(seen)


@promises("order")
@exercise("token_batches")
def test_batches_order(student, reference):
    """Sentences are sorted by source length, then target length, then index."""
    lengths = [(3, 2), (1, 4), (6, 1), (1, 4), (2, 9)]
    same_batches(student, reference, lengths, 100)
    lengths = [(4, 4), (2, 3), (4, 3), (2, 2), (4, 4)]
    same_batches(student, reference, lengths, 8)


@promises("both-sides")
@exercise("token_batches")
def test_batches_count_padding(student, reference):
    """A batch has number of sentences times longest length tokens, and may reach max_tokens."""
    # Lengths add up to 9 and 12, but 4 sentences padded to the longest one have 16 positions.
    same_batches(student, reference, [(1, 1), (2, 2), (2, 2), (4, 4)], 12)
    same_batches(student, reference, [(2, 2), (2, 2), (2, 2), (2, 2)], 6)


@promises("both-sides")
@exercise("token_batches")
def test_batches_both_sides(student, reference):
    """The limit holds for the source and for the target, each with its own longest sentence."""
    same_batches(student, reference, [(1, 4), (1, 4), (1, 4)], 7)
    same_batches(student, reference, [(1, 1), (1, 6), (2, 1), (2, 1)], 12)
    same_batches(student, reference, [(1, 4), (2, 4), (3, 4)], 9)
    # A long target early in the order still pads the targets after it.
    same_batches(student, reference, [(1, 6), (2, 1), (2, 1), (3, 1)], 12)
    same_batches(student, reference, [(4, 1), (4, 1), (5, 1), (5, 1)], 10)
    # In each batch anew: the long one of the batch before does not count.
    same_batches(student, reference, [(1, 9), (2, 2), (2, 2), (3, 3), (3, 3)], 12)


@promises("too-long")
@exercise("token_batches")
def test_batches_refusals(student):
    """max_tokens below 1 or a sentence that is too long (give its index) raises a ValueError."""
    refuses(
        student.token_batches,
        {"max_tokens=0 and no sentences": ([], 0), "max_tokens=-3": ([(1, 1)], -3)},
    )
    for words, lengths in [
        ("a source of 41 tokens", [(2, 3), (3, 3), (5, 2), (41, 2), (2, 2)]),
        ("a target of 41 tokens", [(2, 3), (3, 3), (5, 2), (2, 41), (2, 2)]),
    ]:
        try:
            student.token_batches(lengths, 20)
        except StudentError as error:
            kinds = error.outcome.get("types", [])
            if error.kind != "error" or "ValueError" not in kinds:
                raise Mistake(
                    f"{words} with max_tokens=20 should raise ValueError, "
                    f"but ended in {kinds[0] if kinds else error.kind}."
                ) from None
            # Its index, counted from 0 or from 1, or its length.
            numbers = "".join(c if c.isdigit() else " " for c in error.outcome["message"]).split()
            expectations.true(
                bool({"3", "4", "41"} & set(numbers)),
                f"the ValueError for {words} should say which sentence it is: give its index, 3.",
                misconception="batches_too_long_unnamed",
            )
        else:
            raise Mistake(f"{words} with max_tokens=20 should raise ValueError, but was accepted.")


@hidden
@promises("each-once")
@exercise("token_batches", weight=2)
def test_batches_random(student, reference, draw):
    """Fifty sentences of random lengths, for a tight limit and a generous one."""
    lengths = [tuple(pair) for pair in draw.integers(1, 13, 50, 2).tolist()]
    for limit in (12, 40):
        words = f"50 sentences of 1 to 12 tokens and max_tokens={limit}"
        same_batches(student, reference, lengths, limit, words)


@hidden
@promises("each-once")
@exercise("token_batches")
def test_batches_of_one(student, reference):
    """One sentence makes one batch, even if it fills it exactly; no sentences make no batch."""
    same_batches(student, reference, [], 5)
    same_batches(student, reference, [(7, 5)], 7)
    same_batches(student, reference, [(1, 1), (1, 1)], 1)
    case = "130 sentences of 1 token each and max_tokens=130"
    same_batches(student, reference, [(1, 1)] * 130, 130, case)


# --------------------------------------------------------------------------------------------
# label_smoothing_loss
# --------------------------------------------------------------------------------------------


def distributions(draw, *shape, dtype=torch.float32):
    """Random log-probabilities over the last axis."""
    return draw.normal(*shape, scale=2.0).double().log_softmax(-1).to(dtype)


def tokens_to_say(draw, lengths, vocabulary, pad=PAD):
    """Targets (B, U) of the given lengths, filled up with pad; no real one is pad."""
    rows = []
    for length in lengths:
        row = draw.integers(1, vocabulary, length).tolist()
        rows.append([PAD if token == pad else token for token in row])
    return filled_up(rows, pad)


def same_smoothing(student, reference, log_probs, target, case, *arguments):
    expectations.close(
        student.label_smoothing_loss(log_probs, target, *arguments),
        reference.label_smoothing_loss(log_probs, target, *arguments),
        what="the loss",
        case=case,
    )


@promises("formula", "all-tokens")
@exercise("label_smoothing_loss")
def test_smoothing_values(student, reference, draw):
    """The share eps is spread over all V tokens, the right one and PAD included."""
    for batch, steps, vocabulary in [(1, 1, 4), (2, 3, 5)]:
        log_probs = distributions(draw, batch, steps, vocabulary)
        target = draw.integers(1, vocabulary, batch, steps)
        case = f"smoothing=0.1 and V={vocabulary}"
        same_smoothing(student, reference, log_probs, target, case)
    same_smoothing(student, reference, log_probs, target, "smoothing=0.6", 0.6)
    log_probs, target = distributions(draw, 3, 1, 4), draw.integers(1, 4, 3, 1)
    same_smoothing(student, reference, log_probs, target, "B=3 and U=1")
    log_probs = (1e4 * draw.normal(2, 3, 5)).log_softmax(-1)
    target = draw.integers(1, 5, 2, 3)
    same_smoothing(student, reference, log_probs, target, "log-probabilities of -10000 and less")


@exercise("label_smoothing_loss")
def test_smoothing_none(student, reference, draw):
    """Without smoothing it is the negative log-likelihood per real token."""
    log_probs = distributions(draw, 2, 4, 6)
    target = tokens_to_say(draw, [4, 2], 6)
    same_smoothing(student, reference, log_probs, target, "smoothing=0", 0.0)


@promises("mean-over-tokens")
@exercise("label_smoothing_loss")
def test_smoothing_padding(student, reference, draw):
    """Padding is ignored in the sum and in the number of tokens; real tokens weigh the same."""
    for lengths in ([1, 4], [5, 1, 0, 2]):
        target = tokens_to_say(draw, lengths, 6)
        log_probs = distributions(draw, *target.shape, 6)
        case = f"{lengths} real tokens"
        same_smoothing(student, reference, log_probs, target, case)
    changed = torch.where((target == PAD).unsqueeze(-1), log_probs.flip(-1) - 40.0, log_probs)
    case = f"{lengths} real tokens, and other log-probabilities at the padding"
    same_smoothing(student, reference, changed, target, case, 0.3)


@promises("bad-input")
@exercise("label_smoothing_loss")
def test_smoothing_refusals(student, draw):
    """A smoothing outside [0, 1) or a batch of padding only raises a ValueError."""
    log_probs, target = distributions(draw, 2, 3, 5), draw.integers(1, 5, 2, 3)
    refuses(
        student.label_smoothing_loss,
        {
            "smoothing=-0.1": (log_probs, target, -0.1),
            "smoothing=1": (log_probs, target, 1.0),
            "a batch of padding only": (log_probs, torch.zeros_like(target)),
            "a batch of pad=-100 only": (log_probs, torch.full_like(target, -100), 0.1, -100),
        },
    )


@hidden
@promises("pad")
@exercise("label_smoothing_loss")
def test_smoothing_other_pad(student, reference, draw):
    """`pad` says which id is padding; it may lie outside the vocabulary, and 0 is then a token."""
    for pad in (5, -100, 999):
        target = tokens_to_say(draw, [2, 4], 6, pad)
        target[0, 0] = PAD
        log_probs = distributions(draw, *target.shape, 6)
        given = log_probs, target, 0.2, pad
        seen = student.observe("label_smoothing_loss", *given, grad=False)
        wanted = reference.label_smoothing_loss(*given)
        expectations.close(seen.value, wanted, what="the loss", case=f"pad={pad}")
        expectations.unchanged(seen)
    target = torch.zeros(2, 4, dtype=torch.int64)
    case = "targets that are all 0, and pad=-100"
    same_smoothing(student, reference, log_probs, target, case, 0.2, -100)


@hidden
@exercise("label_smoothing_loss", weight=2)
def test_smoothing_gradients(student, reference, draw):
    """The gradient is right, 0 at padding, and the inputs are not changed."""
    target = tokens_to_say(draw, [4, 1, 2], 5)
    log_probs = distributions(draw, 3, 4, 5, dtype=torch.float64)
    seen = student.observe("label_smoothing_loss", log_probs, target)
    wanted = reference.observe("label_smoothing_loss", log_probs, target)
    expectations.close(seen.value, wanted.value, what="the loss", case="float64")
    expectations.unchanged(seen)
    gradient = seen.grads.get("0")
    expectations.true(
        gradient is not None,
        "No gradient reaches the log-probabilities; look for detach(), .data, .item() or "
        "no_grad().",
    )
    # As it reaches the logits: whether they are normalised once more makes no difference there.
    gradient, right = (
        one - log_probs.exp() * one.sum(-1, keepdim=True) for one in (gradient, wanted.grads["0"])
    )
    expectations.close(
        gradient, right, what="the gradient with respect to the logits", case="float64"
    )


# --------------------------------------------------------------------------------------------
# learning_rate
# --------------------------------------------------------------------------------------------


def same_rate(student, reference, case, *arguments, **options):
    got = student.learning_rate(*arguments, **options)
    want = reference.learning_rate(*arguments, **options)
    same_number(got, want, what="the learning rate", case=case, least=0.0)


@promises("formula", "a-float")
@exercise("learning_rate")
def test_rate_rises(student, reference):
    """During warm-up the learning rate rises in proportion to the step."""
    for step in (1, 3000):
        same_rate(
            student, reference, f"step {step}, within 4000 steps of warm-up, d_model=512", step
        )


@promises("formula")
@exercise("learning_rate")
def test_rate_falls(student, reference):
    """After warm-up the learning rate falls with the inverse square root of the step."""
    for step in (4000, 16000):
        same_rate(
            student, reference, f"step {step}, after 4000 steps of warm-up, d_model=512", step
        )


@promises("formula")
@exercise("learning_rate")
def test_rate_settings(student, reference):
    """d_model, warmup_steps and factor are used as in the formula."""
    for step, width, warmup, factor in [(5, 64, 10, 1.0), (40, 64, 10, 2.5), (9, 64, 1, 1.0)]:
        case = f"step={step}, d_model={width}, warmup_steps={warmup}, factor={factor}"
        same_rate(student, reference, case, step, width, warmup, factor)


@promises("bad-steps")
@exercise("learning_rate")
def test_rate_refusals(student):
    """A step or a warmup_steps below 1 raises a ValueError."""
    refuses(
        student.learning_rate,
        {
            "step=0": (0,),
            "step=-1": (-1,),
            "warmup_steps=0": (1, 512, 0),
        },
    )


@hidden
@exercise("learning_rate", weight=2)
def test_rate_random(student, reference, draw):
    """Other settings, as keyword arguments, too."""
    step, width, warmup = draw.integers(1, 900, 3).tolist()
    case = f"step={step}, d_model={width}, warmup_steps={warmup}, factor=0.3"
    same_rate(student, reference, case, step, factor=0.3, warmup_steps=warmup, d_model=width)


# --------------------------------------------------------------------------------------------
# adam_step
# --------------------------------------------------------------------------------------------

ADAM = ("new parameter", "new first moment", "new second moment")


def same_adam(student, reference, tensors, step, rate, case, **options):
    seen = student.observe("adam_step", *tensors, step, rate, grad=False, **options)
    wanted = reference.adam_step(*tensors, step, rate, **options)
    expectations.items(seen.value, 3, what="the result (parameter, exp_avg, exp_avg_sq)")
    # The means first: the parameter follows from them.
    for place in (1, 2, 0):
        expectations.close(seen.value[place], wanted[place], what=f"the {ADAM[place]}", case=case)
    expectations.unchanged(seen)


def adam_tensors(draw, *shape, dtype=torch.float64, scale=1.0):
    """A parameter, its gradient and two moments as they are after some steps."""
    return (
        draw.normal(*shape).to(dtype),
        draw.normal(*shape, scale=scale).to(dtype),
        draw.normal(*shape, scale=0.5 * scale).to(dtype),
        draw.uniform(*shape, low=0.1 * scale**2, high=scale**2).to(dtype),
    )


@promises("formula")
@exercise("adam_step")
def test_adam_first_step(student, reference, draw):
    """The first step, from moments of 0, moves each entry by lr, whatever its gradient."""
    parameter, gradient, *_ = adam_tensors(draw, 2, 3)
    zeros = torch.zeros_like(parameter)
    tensors = (parameter, gradient, zeros, zeros)
    same_adam(student, reference, tensors, 1, 0.1, "step 1, moments of 0")


@promises("formula", "uncorrected-moments")
@exercise("adam_step", weight=2)
def test_adam_later_steps(student, reference, draw):
    """Later steps update both moments, and divide them by 1 - beta ** step."""
    for step in (2, 30):
        tensors = adam_tensors(draw, 3, 2)
        tensors[1][0, 0] = 0.0  # Moved by earlier gradients nevertheless.
        same_adam(student, reference, tensors, step, 0.05, f"step {step}, moments of earlier steps")


@hidden
@exercise("adam_step")
def test_adam_betas(student, reference, draw):
    """The first beta belongs to the mean of gradients, the second to that of their squares."""
    tensors = adam_tensors(draw, 4)
    same_adam(
        student, reference, tensors, 3, 0.1, "step 3, betas=(0.5, 0.8)", betas=(0.5, 0.8), eps=1e-8
    )


@promises("eps")
@exercise("adam_step")
def test_adam_eps(student, reference, draw):
    """eps is added to the root of the corrected second moment, not inside it."""
    zeros = torch.zeros(2, dtype=torch.float64)
    same_adam(student, reference, (zeros + 3, zeros, zeros, zeros), 1, 0.1, "a gradient of 0")
    tensors = adam_tensors(draw, 3)
    same_adam(student, reference, tensors, 4, 0.1, "step 4, eps=5", eps=5.0)
    tensors = adam_tensors(draw, 3, scale=1e-9)
    same_adam(student, reference, tensors, 4, 0.1, "step 4, gradients near 1e-9, eps not given")


@promises("steps-from-1")
@exercise("adam_step")
def test_adam_refusals(student, draw):
    """A step below 1 raises a ValueError."""
    tensors = adam_tensors(draw, 2)
    refuses(student.adam_step, {"step=0": (*tensors, 0, 0.1)})


@hidden
@promises("dtype-kept")
@exercise("adam_step", weight=2)
def test_adam_shapes(student, reference, draw):
    """Any shape, float32, large and tiny gradients, and a late step."""
    for shape, scale, step in [((), 1e-4, 2), ((2, 3, 2), 1e4, 100_000)]:
        tensors = adam_tensors(draw, *shape, dtype=torch.float32, scale=scale)
        case = f"shape {shape}, gradients of order {scale:g}, step {step}"
        same_adam(student, reference, tensors, step, 1e-3, case)


# --------------------------------------------------------------------------------------------
# train_step
# --------------------------------------------------------------------------------------------


# Smaller still: a step's answer holds every parameter three times.
TINY = {"src_vocab_size": 6, "tgt_vocab_size": 6, "d_model": 4, "d_ff": 3}


def trainees(student, reference, draw, norm_first=False):
    """Two tiny models with the same parameters."""
    state = small_state(draw, 1, norm_first, **TINY)
    return Models(student, reference, draw, state, **small(1, norm_first, **TINY))


def batch_of(draw, sources, targets):
    """A batch for a tiny model."""
    return sources_of(draw, sources, 6), targets_of(draw, targets, 6)


def same_moments(mine, theirs, case):
    """The same moments for the same parameters."""
    expectations.true(
        isinstance(mine, dict),
        f"the moments should be a dict, but are a {expectations.type_name(mine)}.",
    )
    for name, means in theirs.items():
        expectations.true(name in mine, f"the moments of {name} are missing for {case}.")
        pair_ = expectations.items(mine[name], 2, what=f"the entry of {name} in the moments")
        for words, got, want in zip(("first", "second"), pair_, means, strict=True):
            what = f"the {words} moment of {name}"
            expectations.shape(got, want.shape, what, case=case)
            expectations.true(
                expectations.close_enough(got, want, expectations.GRADIENT_SLACK),
                f"{what} is wrong for {case}: the largest difference is "
                f"{float((got.double() - want).abs().max()):.3g}.",
            )
    extra = sorted(set(mine) - set(theirs))
    expectations.true(
        not extra,
        f"the moments hold {', '.join(extra)}, but only parameters with a gradient have moments.",
    )


def same_state(models, case):
    """The two models have the same parameters now."""
    want = models.theirs.state()
    if not models.right:
        return  # `own_training` has looked
    got = models.mine.state()
    for name, value in want.items():
        expectations.shape(got.get(name), value.shape, f"the parameter {name}", case=case)
        # A step divides by the root of the second moment, which may be next to nothing.
        expectations.true(
            expectations.close_enough(got[name], value, 10 * expectations.GRADIENT_SLACK),
            f"the parameter {name} is wrong after {case}: the largest difference is "
            f"{float((got[name] - value).abs().max()):.3g}.",
        )


def same_training(student, reference, draw, models, batch, moments, step, rate, case, **options):
    """One step of training is the reference's; returns the new moments."""
    given = (*batch, moments, step, rate)
    wanted_loss, wanted = train(reference, models.theirs, *given, **options)
    before = {} if models.right else models.mine.state()
    loss, got = train(student, models.mine, *given, **options)
    if models.right:
        same_number(loss, wanted_loss, "the loss", case)
        same_moments(got, wanted, case)
    else:
        own_training(draw, models, before, given, loss, got, case, **options)
    return wanted if models.right else got


def own_training(draw, models, before, given, loss, got, case, smoothing=0.1):
    """A step is right for the student's own model, whose gradient is measured by differences.

    What a step made of the gradient is read from the moments, and so is the gradient itself.
    """
    source, target, moments, step, rate = given
    own_state = {name: before[name] for name in models.state}
    loss_there = models.loss_at(own_state, source, target, smoothing)
    same_number(loss, loss_there, "the loss", case)
    after, gradients = models.mine.state(), {}
    for name in before:
        if not (isinstance(got, dict) and name in got):
            continue
        first, second = expectations.items(got[name], 2, what=f"the entry of {name} in the moments")
        zero = torch.zeros_like(before[name])
        old = moments.get(name, (zero, zero))
        gradients[name] = gradient = (first - 0.9 * old[0]) / 0.1
        right = 0.98 * old[1] + 0.02 * gradient**2
        change = first / (1 - 0.9**step) / ((right / (1 - 0.98**step)).sqrt() + 1e-9)
        for what, value, wanted in (
            (f"the second moment of {name}", second, right),
            (f"the parameter {name}", after[name], before[name] - rate * change),
        ):
            close = expectations.close_enough(value, wanted, 10 * expectations.GRADIENT_SLACK)
            expectations.true(close, f"{what} is wrong for {case}.")
    for _ in range(2):
        way = {name: draw.normal(*value.shape).double() for name, value in own_state.items()}
        if models.options.get("tie_embeddings"):
            shared = way["src_embed.lut.weight"]
            way |= {"tgt_embed.lut.weight": shared, "generator.proj.weight": shared}
        up, down = (
            models.loss_at(
                {name: value + sign * 1e-6 * way[name] for name, value in own_state.items()},
                source,
                target,
                smoothing,
            )
            for sign in (1, -1)
        )
        slope = (up - down) / 2e-6
        said = sum(float((gradients[name] * way[name]).sum()) for name in gradients if name in way)
        expectations.true(
            abs(slope - said) <= 1e-4 * max(1.0, abs(slope)),
            f"the moments come from another gradient than that of this batch's loss, for {case}.",
        )


def moments_of(draw, state):
    """Moments as they may be after some steps, for every parameter."""
    return {
        name: (
            draw.normal(*value.shape, scale=0.1).double(),
            draw.uniform(*value.shape, low=0.01, high=0.1).double(),
        )
        for name, value in state.items()
    }


@promises("loss")
@exercise("train_step")
def test_train_loss(student, draw):
    """The loss is that of the model before the step, on the shifted, padded target."""
    state = small_state(draw, 1, **TINY)
    options = small(1, **TINY)
    model = student.module("EncoderDecoder", state=state, dtype=torch.float64, **options)
    source, target = batch_of(draw, [4, 2, 3], [1, 4, 2])
    said = expectations.tensor(model(source, target[:, :-1]), what="the output of the model")
    loss, _ = train(student, model, source, target, {}, 1, 0.5)
    same_number(loss, smoothed(said, target), "the loss", "a batch with padding")
    said = model(source, target[:, :-1])
    loss, _ = train(student, model, source, target, {}, 1, 0.5, smoothing=0.4)
    same_number(loss, smoothed(said, target, 0.4), "the loss", "the next step, smoothing=0.4")


@promises("update", "own-gradients")
@exercise("train_step", weight=2)
def test_train_two_steps(student, reference, draw):
    """Every parameter is updated by adam_step, with the gradient of this batch alone."""
    models = trainees(student, reference, draw)
    moments = {}
    for step in (1, 2):
        batch = batch_of(draw, [2, 8], [3, 1])
        given = (models, batch, moments, step, 0.02, f"step {step}")
        # From the right moments: up to rounding they are the student's own.
        moments = same_training(student, reference, draw, *given)
    same_state(models, "two steps")


@promises("moments")
@exercise("train_step")
def test_train_settings(student, reference, draw):
    """step, lr, smoothing and the given moments are used; the given dict is not changed."""
    models = trainees(student, reference, draw, norm_first=True)
    batch = batch_of(draw, [3, 2], [2, 3])
    moments = moments_of(draw, models.state)
    case = "step=7, lr=0.3, smoothing=0 and given moments"
    given = (models, batch, moments, 7, 0.3, case)
    same_training(student, reference, draw, *given, smoothing=0.0)
    same_state(models, f"a step with {case}")


def add_layer(student, reference, draw, models, name, words):
    """A linear map to so many words under this name in both models; both maps."""
    state = {"proj.weight": draw.normal(words, 4), "proj.bias": draw.normal(words)}
    options = {"d_model": 4, "vocab_size": words}
    layers = pair(student, reference, "Generator", state, torch.float64, **options)
    for model, layer in zip((models.mine, models.theirs), layers, strict=True):
        model.method("add_module", name, layer)
    return layers


@hidden
@promises("without-gradient")
@exercise("train_step")
def test_train_without_gradient(student, reference, draw):
    """A parameter without a gradient is not changed and gets no moments."""
    models = trainees(student, reference, draw)
    add_layer(student, reference, draw, models, "spare", 3)
    batch = batch_of(draw, [2, 3], [3, 2])
    case = "a model with an unused part"
    same_training(student, reference, draw, models, batch, {}, 1, 0.1, case)
    same_state(models, f"a step of {case}")


@hidden
@promises("without-gradient")
@exercise("train_step")
def test_train_frozen(student, reference, draw):
    """A layer that is frozen after a step stays as it is, stays frozen and gets no moments."""
    models = trainees(student, reference, draw)
    layers = add_layer(student, reference, draw, models, "generator", 6)
    batch = batch_of(draw, [2, 3], [3, 2])
    same_training(student, reference, draw, models, batch, {}, 1, 0.1, "a first step")
    for proxy, layer in zip((student, reference), layers, strict=True):
        proxy.module("nn.Module.requires_grad_", self=layer, requires_grad=False)
    case = "a model whose generator was frozen after its first step"
    for step in (2, 3):
        same_training(student, reference, draw, models, batch, {}, step, 0.1, case)
    same_state(models, f"two steps of {case}")


@exercise("train_step")
def test_train_new_moments(student, reference, draw):
    """A parameter without moments begins with moments of 0, at any step."""
    models = trainees(student, reference, draw)
    batch = batch_of(draw, [2, 3], [3, 2])
    moments = moments_of(draw, models.state)
    del moments["generator.proj.bias"], moments["tgt_embed.lut.weight"]
    case = "step 5, when two parameters have no moments yet"
    same_training(student, reference, draw, models, batch, moments, 5, 0.1, case)
    same_state(models, case)


@hidden
@exercise("train_step")
def test_train_shared(student, reference, draw):
    """A parameter that three modules share is updated once."""
    options = {**SMALL, **TINY, "num_layers": 1, "norm_first": False, "tie_embeddings": True}
    state = small_state(draw, 1, **TINY)
    table = state["src_embed.lut.weight"]
    state |= {"tgt_embed.lut.weight": table, "generator.proj.weight": table}
    models = Models(student, reference, draw, state, "make_model", **options)
    batch = batch_of(draw, [3, 2], [1, 3])
    case = "a model with shared embeddings"
    same_training(student, reference, draw, models, batch, {}, 1, 0.1, case)
    same_state(models, f"a step of {case}")


@hidden
@promises("mode-kept", "own-gradients")
@exercise("train_step")
def test_train_mode(student, draw):
    """Dropout acts in training mode only, and once: the loss is that whose gradients count."""
    model = own_model(student, draw, dropout=0.5)
    source, target = sources_of(draw, [4, 4]), targets_of(draw, [3, 3])
    said = expectations.tensor(model(source, target[:, :-1]), what="the output of the model")
    noisy = model.train()(source, target[:, :-1])
    loss, _ = train(student, model.eval(), source, target, {}, 1, 0.0)
    same_number(loss, smoothed(said, target), "the loss", "a model in evaluation mode")
    loss, _ = train(student, model.train(), source, target, {}, 1, 0.0)
    whole = not expectations.close_enough(said, noisy)  # its dropout works
    expectations.true(
        not whole or abs(loss - smoothed(said, target)) > 1e-9,
        "your train_step switches dropout off; leave the mode of the model to the caller.",
    )
    # Ways to the model whose first requests have the same seed. Whoever lets it read all of target
    # and leaves out what it says of the last place draws other numbers, and may.
    way = student.aside()
    loss, _ = train(way, model.through(way).train(), source, target, {}, 1, 0.0)
    read = (target[:, :-1], target)
    noisy = [model.through(student.aside()).train()(source, ids)[:, :4] for ids in read]
    wanted = min((smoothed(each, target) for each in noisy), key=lambda one: abs(one - loss))
    case = "a model in training mode, after the same seed"
    same_number(loss, wanted, "the loss", case)
