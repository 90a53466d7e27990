"""Graders of `seq2seq-decoding`: the loss and three ways to decode.

Decoding is judged on a `NextTokenTable`, a given translator whose answers stand in a table. Its
state, one tensor, is the same for every hypothesis, though, and it has no use for a mask: one test
of each search asks the `Seq2Seq` of the notebook, whose state is two, and compares with what that
very model says.
"""

from __future__ import annotations

import torch

from autograder.graders.common import pair, refuses, same_gradients, same_number, sizes
from autograder.graders.seq2seq.common import (
    BOS,
    EOS,
    PAD,
    UNK,
    encoder_state,
    right_padded,
    same_list,
    translator_options,
)
from autograder.judging import expectations
from autograder.judging.grader_marks import aspect, exercise, hidden, promises
from autograder.judging.proxy import StudentError, Todo

# --------------------------------------------------------------------------------------------
# sequence_log_prob
# --------------------------------------------------------------------------------------------


@promises("formula", "sum-of-a-row")
@exercise("sequence_log_prob")
def test_log_prob_values(student, reference, draw):
    """For each row the log-probabilities of its targets are added up."""
    for batch, steps, vocabulary in [
        (1, 1, 2),
        (3, 1, 5),
        (1, 3, 5),
        (2, 4, 4),
        (4, 4, 4),
        (3, 2, 7),
    ]:
        logits = draw.normal(batch, steps, vocabulary, scale=2.0)
        targets = draw.integers(0, vocabulary, batch, steps)
        case = sizes(B=batch, U=steps, V=vocabulary)
        got = student.sequence_log_prob(logits, targets)
        want = reference.sequence_log_prob(logits, targets)
        expectations.close(got, want, what="the log-probability", case=case)


@promises("sum-of-a-row")
@exercise("sequence_log_prob")
def test_log_prob_mask(student, reference, draw):
    """Only steps where the mask is True count; a row without any has the log-probability 0."""
    for lengths in ([1, 2], [3, 0, 2]):
        mask = right_padded(lengths)
        logits = draw.normal(*mask.shape, 5, scale=2.0)
        targets = draw.integers(0, 5, *mask.shape)
        got = student.sequence_log_prob(logits, targets, mask)
        want = reference.sequence_log_prob(logits, targets, mask)
        expectations.close(got, want, what="the log-probability", case=f"{lengths} real steps")
    mask = torch.tensor([[True, False, True, True], [False, True, False, True]])
    logits, targets = draw.normal(2, 4, 5, scale=2.0), draw.integers(0, 5, 2, 4)
    got = student.sequence_log_prob(logits, targets, mask)
    want = reference.sequence_log_prob(logits, targets, mask)
    expectations.close(got, want, what="the log-probability", case="masked steps between real ones")


@promises("masked-targets")
@exercise("sequence_log_prob")
def test_log_prob_masked_targets(student, reference, draw):
    """Where the mask is False any number may stand, -100 or one beyond the vocabulary."""
    mask = right_padded([2, 4, 1])
    logits = draw.normal(3, 4, 5, scale=2.0)
    targets = draw.integers(0, 5, 3, 4)
    for number in (0, 4, -100, 5, 1000):
        given = targets.masked_fill(~mask, number)
        got = student.sequence_log_prob(logits, given, mask)
        want = reference.sequence_log_prob(logits, given, mask)
        case = f"masked targets of {number}"
        expectations.close(got, want, what="the log-probability", case=case)


@promises("bad-input")
@exercise("sequence_log_prob")
def test_log_prob_refusals(student, draw):
    """Shapes that do not fit and real targets outside the vocabulary are refused."""
    logits, targets = draw.normal(2, 3, 4), draw.integers(0, 4, 2, 3)
    mask = torch.ones(2, 3, dtype=torch.bool)
    beyond, below, hundred = targets.clone(), targets.clone(), targets.clone()
    beyond[1, 2], below[0, 1], hundred[0, 1] = 4, -1, -100
    refuses(
        student.sequence_log_prob,
        {
            "targets of shape (2, 2) for logits of shape (2, 3, 4)": (logits, targets[:, :2]),
            "targets of shape (1, 3) for logits of shape (2, 3, 4)": (logits, targets[:1]),
            "targets of shape (3, 3) for logits of shape (2, 3, 4)": (
                logits,
                torch.cat([targets, targets[:1]]),
            ),
            "a mask of shape (2, 2) for targets of shape (2, 3)": (logits, targets, mask[:, :2]),
            "a mask of shape (2, 1) for targets of shape (2, 3)": (logits, targets, mask[:, :1]),
            "a mask of shape (1, 3) for targets of shape (2, 3)": (logits, targets, mask[:1]),
            "a mask of shape (3,) for targets of shape (2, 3)": (logits, targets, mask[0]),
            "a real target of 4 with a vocabulary of 4": (logits, beyond),
            "targets of shape (3,) for logits of shape (2, 3, 4)": (logits, targets[0]),
            "targets of shape (2, 4) for logits of shape (2, 3, 4)": (
                logits,
                torch.cat([targets, targets[:, :1]], dim=1),
            ),
            "a real target of -1": (logits, below, mask),
            "a real target of -100": (logits, hundred),
            "a real target of -100 with a mask": (logits, hundred, mask),
        },
    )


@hidden
@exercise("sequence_log_prob")
def test_log_prob_other_types(student):
    """Targets that are no ids, and a mask that is not boolean, are refused with a ValueError."""
    logits, targets = torch.zeros(2, 3, 4), torch.ones(2, 3, dtype=torch.int64)
    refuses(
        student.sequence_log_prob,
        {
            "targets of dtype float32": (logits, targets.float()),
            "targets of dtype int32": (logits, targets.int()),
            "a mask of dtype float32": (logits, targets, torch.ones(2, 3)),
            "a mask of dtype int64": (logits, targets, targets),
        },
    )


@hidden
@promises("impossible-tokens")
@exercise("sequence_log_prob")
def test_log_prob_extremes(student, reference, draw):
    """Large logits, long sequences and logits of -inf give finite numbers wherever there are."""
    logits, targets = draw.normal(2, 3, 4) * 1000, draw.integers(0, 4, 2, 3)
    long, many = draw.normal(1, 400, 8, scale=3.0), draw.integers(0, 8, 1, 400)
    closed = draw.normal(2, 3, 4)
    closed[:, :, PAD] = -torch.inf
    padded = torch.tensor([[1, 2, 3], [3, PAD, PAD]])
    zeros = torch.zeros(1, 2, dtype=torch.int64)
    for case, *given in [
        ("400 steps", long, many, None),
        ("logits of the order of 1000", logits, targets, None),
        ("logits of the order of 10**6", 1000 * logits, targets, None),
        ("a real target of probability 0", closed, padded, None),
        ("logits of -inf for PAD", closed, padded, padded != PAD),
        ("a vocabulary of one token", draw.normal(1, 2, 1), zeros, right_padded([1], 2)),
    ]:
        got, want = student.sequence_log_prob(*given), reference.sequence_log_prob(*given)
        expectations.close(got, want, what="the log-probability", case=case)


@hidden
@exercise("sequence_log_prob")
def test_log_prob_gradients(student, reference, draw):
    """The gradient is right, 0 at masked steps, and the inputs are left as they were."""
    logits = draw.normal(4, 2, 3).double().transpose(0, 1)
    targets, mask = draw.integers(0, 3, 2, 4), right_padded([4, 1])
    targets[1, 3] = -100
    seen = student.observe("sequence_log_prob", logits, targets, mask)
    wanted = reference.observe("sequence_log_prob", logits, targets, mask)
    expectations.close(
        seen.value, wanted.value, what="the log-probability", case="float64, strided"
    )
    same_gradients(seen, wanted, {"0": "the logits"})
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# sequence_loss
# --------------------------------------------------------------------------------------------


def padded_targets(draw, lengths, vocabulary, pad=PAD):
    """Targets of the given lengths that are never `pad`, then `pad`."""
    mask = right_padded(lengths)
    targets = draw.integers(0, vocabulary - 1, *mask.shape)
    targets = targets + (targets >= pad) if 0 <= pad < vocabulary else targets
    return targets.masked_fill(~mask, pad)


@promises("a-scalar")
@exercise("sequence_loss")
def test_loss_values(student, reference, draw):
    """Without padding: minus the mean log-probability of the targets, one number."""
    for batch, steps, vocabulary in [(1, 1, 3), (2, 3, 5), (4, 4, 4)]:
        logits = draw.normal(batch, steps, vocabulary, scale=2.0)
        targets = padded_targets(draw, [steps] * batch, vocabulary)
        got, want = student.sequence_loss(logits, targets), reference.sequence_loss(logits, targets)
        expectations.close(got, want, what="the loss", case=sizes(B=batch, U=steps, V=vocabulary))


@promises("padding", "mean-over-tokens")
@exercise("sequence_loss")
def test_loss_padding(student, reference, draw):
    """Padding does not count, and every real target of the batch counts the same."""
    for lengths in ([1, 3], [5, 1, 2], [4, 0]):
        targets = padded_targets(draw, lengths, 6)
        logits = draw.normal(*targets.shape, 6, scale=2.0)
        got, want = student.sequence_loss(logits, targets), reference.sequence_loss(logits, targets)
        expectations.close(got, want, what="the loss", case=f"{lengths} real targets")
    targets = padded_targets(draw, [4, 3], 6)
    targets[0, 1] = targets[1, 0] = PAD
    logits = draw.normal(2, 4, 6, scale=2.0)
    got, want = student.sequence_loss(logits, targets), reference.sequence_loss(logits, targets)
    expectations.close(got, want, what="the loss", case="padding between real targets")


@exercise("sequence_loss")
def test_loss_other_pad(student, reference, draw):
    """`pad` says which id is padding; it may lie outside the vocabulary, and 0 is then a target."""
    for pad in (5, 2, -100, 99):
        targets = padded_targets(draw, [2, 4], 6, pad)
        targets[0, 0] = PAD
        logits = draw.normal(2, 4, 6, scale=2.0)
        got = student.sequence_loss(logits, targets, pad)
        want = reference.sequence_loss(logits, targets, pad)
        expectations.close(got, want, what="the loss", case=f"pad={pad}")


@promises("bad-input")
@exercise("sequence_loss")
def test_loss_refusals(student, draw):
    """No real target, and whatever sequence_log_prob refuses, raise a ValueError."""
    logits, targets = draw.normal(2, 3, 5), draw.integers(1, 5, 2, 3)
    one_below = targets.clone()
    one_below[1, 1] = -100
    refuses(
        student.sequence_loss,
        {
            "a batch of padding only": (logits, torch.zeros_like(targets)),
            "a batch of -100 only with pad=-100": (logits, torch.full_like(targets, -100), -100),
            "targets of shape (2, 2) for logits of shape (2, 3, 5)": (logits, targets[:, :2]),
            "the real target 5 with a vocabulary of 5": (logits, torch.full_like(targets, 5)),
            "the real target -100 with pad=0": (logits, one_below),
            "targets of dtype float32": (logits, targets.float()),
            "targets of dtype int32": (logits, targets.int()),
        },
    )


@hidden
@exercise("sequence_loss")
def test_loss_long(student, reference, draw):
    """Long sequences and large logits do not underflow or overflow."""
    for case, scale, steps in [("600 steps", 2.0, 600), ("logits of order 1000", 1000.0, 4)]:
        logits = draw.normal(2, steps, 7, scale=scale)
        targets = padded_targets(draw, [steps, steps // 2], 7)
        got, want = student.sequence_loss(logits, targets), reference.sequence_loss(logits, targets)
        expectations.close(got, want, what="the loss", case=case)


@hidden
@exercise("sequence_loss")
def test_loss_gradients(student, reference, draw):
    """The gradient is right, 0 at padding, and the inputs are left as they were."""
    targets = padded_targets(draw, [4, 1, 2], 5)
    logits = draw.normal(3, 4, 5).double()
    seen = student.observe("sequence_loss", logits, targets)
    wanted = reference.observe("sequence_loss", logits, targets)
    expectations.close(seen.value, wanted.value, what="the loss", case="float64")
    same_gradients(seen, wanted, {"0": "the logits"})
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# What the three searches share
# --------------------------------------------------------------------------------------------


def random_table(draw, sources=1, steps=4, vocabulary=6, scale=1.5):
    """A table of random logits: what is likely next depends on source, step and previous token."""
    return draw.normal(sources, steps, vocabulary, vocabulary, scale=scale).double()


def table_pair(student, reference, table):
    return pair(student, reference, "NextTokenTable", table=table)


def misleading_table():
    """Token 4 looks best, 0.6 to 0.4 for 5, but 5 goes on to EOS with 0.95 and 4 with 0.5."""
    table = torch.full((1, 2, 6, 6), -20.0, dtype=torch.float64)
    table[0, 0, BOS, [4, 5]] = torch.tensor([0.6, 0.4], dtype=torch.float64).log()
    table[0, 1, 4, [EOS, 4, 5]] = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    table[0, 1, 5, [EOS, 4]] = torch.tensor([0.95, 0.05], dtype=torch.float64).log()
    return table


def likely_table(ids, rest=-1000.0):
    """Token t of `ids` is likely at step t, whatever came before; others have logits of `rest`."""
    table = torch.full((1, len(ids), 6, 6), rest, dtype=torch.float64)
    for step, token in enumerate(ids):
        table[0, step, :, token] = 1.0
    return table


def sources_of(*first):
    """Sources whose first tokens are given: a table needs no more."""
    return torch.tensor([[token] for token in first])


def remembering_state(draw):
    """A Seq2Seq in which it matters whose state is whose.

    A state is the mean of the one before and of the token just read, so that every choice depends
    on all earlier ones. No token is certain, but EOS is: likely after 5, 5 and unlikely elsewhere.
    """
    size = 6
    state = encoder_state(draw, "gru", 7, size, size, "encoder.")
    state = {name: 0.4 * value for name, value in state.items()}
    weight_ih = torch.zeros(3 * size, 2 * size)
    weight_ih[2 * size :, :size] = 3 * torch.eye(size)
    output = torch.cat([draw.normal(size, size, scale=0.4), draw.normal(size, size)], dim=1)
    output[EOS] = 0.0
    output[EOS, 5] = 40.0
    bias = torch.zeros(size)
    bias[EOS] = -25.0
    state |= {
        "decoder.embedding.weight": torch.eye(size),
        "decoder.cell.weight_ih": weight_ih,
        "decoder.cell.weight_hh": torch.zeros(3 * size, size),
        "decoder.cell.bias_ih": torch.zeros(3 * size),
        "decoder.cell.bias_hh": torch.zeros(3 * size),
        "decoder.output.weight": output,
        "decoder.output.bias": bias,
    }
    return {name: value.double() for name, value in state.items()}


def forked_state(draw):
    """A `remembering_state` in which 5 follows 4 and 3 alike, but EOS follows 3, 5 only.

    Of the two ways to 5, that through 4 is more probable; EOS is likely on the other.
    """
    state = remembering_state(draw)
    state |= {name: 0 * value for name, value in state.items() if name.startswith("encoder.")}
    output = torch.zeros_like(state["decoder.output.weight"])
    output[[4, UNK, EOS], BOS] = torch.tensor([10.8, 10.0, -80.0], dtype=output.dtype)
    output[5, [4, UNK, 5]] = torch.tensor([20.0, 20.0, -20.0], dtype=output.dtype)
    output[EOS, [UNK, 5]] = torch.tensor([16.0, 18.0], dtype=output.dtype)
    bias = torch.zeros_like(state["decoder.output.bias"])
    return state | {"decoder.output.weight": output, "decoder.output.bias": bias}


def own_translator(student, draw, batch, make_state=remembering_state):
    """The student's own Seq2Seq, a source and a mask; a table while there is no Seq2Seq that runs.

    The searches must work with any translator, but answer for nobody's encoder.
    """
    options = translator_options(7, 6, 6, 6)
    state = make_state(draw)
    table = random_table(draw, sources=7)
    source = draw.integers(0, 7, batch, 4)
    mask = right_padded([1 + row % 4 for row in range(batch)], 4)
    try:
        model = student.module("Seq2Seq", state=state, dtype=torch.float64, **options)
        model.method("step", source[:, 0] * 0 + BOS, tuple(model.method("start", source, mask)))
    except (StudentError, Todo, TypeError):
        model = student.module("NextTokenTable", table=table)
    return model, source, mask


def log_probs(model, source, mask, targets):
    """What the model itself says of each next token along the rows of targets: (B, U, V).

    One source serves any number of rows.
    """
    times = len(targets) // len(source)
    state = tuple(part.repeat_interleave(times, 0) for part in model.method("start", source, mask))
    previous = torch.full_like(targets[:, 0], BOS)
    steps = []
    for step in range(targets.shape[1]):
        logits, state = model.method("step", previous, tuple(state))
        steps.append(logits.double().log_softmax(-1))
        previous = targets[:, step]
    return torch.stack(steps, dim=1)


# --------------------------------------------------------------------------------------------
# greedy_decode
# --------------------------------------------------------------------------------------------


def same_greedy(student, reference, table, source, case, **options):
    mine, theirs = table_pair(student, reference, table)
    expectations.close(
        student.greedy_decode(mine, source, **options),
        reference.greedy_decode(theirs, source, **options),
        what="the ids",
        case=case,
    )


def ending_table(draw, ends, steps=6, vocabulary=6):
    """A random table in which source s ends after ends[s] tokens, or never for None."""
    table = random_table(draw, len(ends), steps, vocabulary)
    table[:, :, :, EOS] = -20.0
    for source, end in enumerate(ends):
        if end is not None:
            table[source, end - 1, :, EOS] = 20.0
    return table


@promises("own-last-token")
@exercise("greedy_decode")
def test_greedy_one_row(student, reference, draw):
    """From BOS, each step takes the likeliest token; EOS belongs to the result, BOS does not."""
    for end in (1, 2, 4):
        table = ending_table(draw, [end])
        same_greedy(student, reference, table, sources_of(0), f"one source, EOS at token {end}")
    table = misleading_table()
    same_greedy(student, reference, table, sources_of(0), "a table in which token 4 looks best")
    for token in (PAD, BOS, UNK):
        table = likely_table([token, token, EOS])
        case = f"a source for which {token}, {token}, EOS is likeliest: ids like any other"
        same_greedy(student, reference, table, sources_of(0), case)


@promises("when-to-stop")
@exercise("greedy_decode")
def test_greedy_max_length(student, reference, draw):
    """Without EOS the result has max_length tokens, and no more."""
    table = ending_table(draw, [None, 3])
    for length in (1, 2, 5):
        case = f"a source that never ends, max_length={length}"
        same_greedy(student, reference, table, sources_of(0), case, max_length=length)
    case = "a source that never ends, and no max_length given"
    same_greedy(student, reference, table, sources_of(0), case)
    case = "a source that never ends, max_length=130"
    same_greedy(student, reference, table, sources_of(0), case, max_length=130)
    case = "two sources of which one never ends, max_length=5"
    same_greedy(student, reference, table, sources_of(0, 1), case, max_length=5)
    table = likely_table([5, PAD, PAD, PAD])
    case = "a source that never ends and writes PAD (no padding before EOS), max_length=3"
    same_greedy(student, reference, table, sources_of(0), case, max_length=3)


@promises("finished-rows", "length")
@exercise("greedy_decode")
def test_greedy_rows_end_apart(student, reference, draw):
    """A row that has produced EOS gets PAD, while the others go on; the longest one ends it all."""
    for ends in ([1, 6], [4, 2, 3], [2, 5, 1, 2, 3]):
        table = ending_table(draw, ends)
        # After EOS this table would go on with token 5, EOS again and so on.
        table[:, :, EOS, 5] += 9.0
        same_greedy(
            student,
            reference,
            table,
            sources_of(*range(len(ends))),
            f"sources that end after {ends} tokens",
        )


@promises("bad-length")
@exercise("greedy_decode")
def test_greedy_refusals(student, draw):
    """A max_length below 1 is refused with a ValueError."""
    mine = student.module("NextTokenTable", table=random_table(draw))
    refuses(
        lambda length: student.greedy_decode(mine, sources_of(0), max_length=length),
        {"max_length=0": (0,), "max_length=-3": (-3,)},
    )


@hidden
@exercise("greedy_decode")
def test_greedy_random_tables(student, reference, draw):
    """Any table, any batch; PAD, BOS and UNK are tokens like others until EOS is there."""
    for batch in (1, 4, 9):
        table = random_table(draw, 5, 7, 7)
        table[:, :, :, PAD] += 1.0
        source = draw.integers(0, 5, batch, 3)
        case = f"a random table, {sizes(B=batch)}"
        same_greedy(student, reference, table, source, case)
        same_greedy(student, reference, table, source, f"{case}, max_length=4", max_length=4)


@aspect
@hidden
@promises("any-translator")
@exercise("greedy_decode")
def test_greedy_any_translator(student, draw):
    """Every row follows the model's own argmax, with the source's mask, also for a Seq2Seq."""
    model, source, mask = own_translator(student, draw, 12)
    for case, given in [("a source without a mask", None), ("a source with a mask", mask)]:
        ids = student.greedy_decode(model, source, source_mask=given, max_length=7)
        expectations.tensor(ids, what="the ids")
        expectations.true(
            ids.ndim == 2 and len(ids) == 12 and 1 <= ids.shape[1] <= 7,
            f"the ids should have shape (12, at most 7), but have {tuple(ids.shape)} for {case}.",
        )
        expectations.true(
            ids.dtype == torch.int64 and bool(((ids >= 0) & (ids < 6)).all()),
            f"the ids should be int64 and lie in the vocabulary, for {case}.",
        )
        best = log_probs(model, source, given, ids).argmax(-1)  # (6, n)
        over = torch.cumsum(ids == EOS, dim=1) - (ids == EOS).long() > 0  # after the first EOS
        wanted = best.masked_fill(over, PAD)
        expectations.equal(ids, wanted, what="the ids", case=f"{case}, a Seq2Seq as the translator")
        expectations.true(
            ids.shape[1] == 7 or bool((ids == EOS).any(1).all()),
            f"the ids end after {ids.shape[1]} tokens, though max_length is 7 and not every row "
            f"has produced EOS, for {case}.",
        )


# --------------------------------------------------------------------------------------------
# exhaustive_search
# --------------------------------------------------------------------------------------------


def same_search(got, want, case=""):
    ids, log_prob = expectations.pair(got, what="the result (ids, log_prob)")
    same_list(ids, want[0], what="the ids", case=case)
    same_number(log_prob, want[1], what="the log-probability", case=case)


def same_exhaustive(student, reference, table, case, length, source=None):
    mine, theirs = table_pair(student, reference, table)
    source = sources_of(0) if source is None else source
    same_search(
        student.exhaustive_search(mine, source, length),
        reference.exhaustive_search(theirs, source, length),
        case,
    )


@exercise("exhaustive_search")
def test_exhaustive_beats_greedy(student, reference):
    """The best sequence need not begin with the likeliest token: 0.4 · 0.95 against 0.6 · 0.5."""
    table = misleading_table()
    same_exhaustive(student, reference, table, "0.4 · 0.95 against 0.6 · 0.5", 2)


@promises("best-candidate")
@exercise("exhaustive_search")
def test_exhaustive_values(student, reference, draw):
    """The best of all sequences that end in EOS, and its log-probability."""
    for vocabulary, length in [(5, 1), (5, 2), (6, 3), (5, 4)]:
        table = random_table(draw, 1, length, vocabulary)
        table[:, :, :, EOS] -= 1.0
        table[0, length - 1, :, EOS] += 5.0
        case = f"V={vocabulary}, max_length={length}"
        same_exhaustive(student, reference, table, case, length)


@exercise("exhaustive_search")
def test_exhaustive_looks_at_all(student, reference, draw):
    """The best sequence may look worse than all others of its length until its very last token."""
    for vocabulary, length in [(5, 3), (6, 4), (60, 2)]:
        table = random_table(draw, 1, length, vocabulary, scale=0.5)
        rare = vocabulary - 1
        table[:, :, :, EOS] = -30.0
        table[:, length - 2, :, rare] = -8.0
        table[:, length - 1, rare, EOS] = 30.0
        case = f"V={vocabulary}, max_length={length}, EOS likely only after the rare token {rare}"
        same_exhaustive(student, reference, table, case, length)


@promises("all-candidates")
@exercise("exhaustive_search")
def test_exhaustive_any_token(student, reference):
    """PAD, BOS and UNK are tokens like others before the EOS."""
    for token in (PAD, BOS, UNK):
        table = likely_table([token, token, EOS], rest=-3.0)
        case = f"a table in which {token}, {token}, EOS is likeliest"
        same_exhaustive(student, reference, table, case, 3)


@exercise("exhaustive_search")
def test_exhaustive_length_limit(student, reference, draw):
    """A sequence counts only if its EOS is among the first max_length tokens."""
    table = ending_table(draw, [3], steps=4, vocabulary=5)
    for length in (1, 2, 3, 4):
        case = f"a table that wants EOS at token 3, max_length={length}"
        same_exhaustive(student, reference, table, case, length)


@promises("bad-input")
@exercise("exhaustive_search")
def test_exhaustive_refusals(student, draw):
    """Several sources, a max_length below 1, and no sequence that ends are refused."""
    table = random_table(draw, 2)
    mine = student.module("NextTokenTable", table=table)
    endless = table.clone()
    endless[:, :, :, EOS] = -torch.inf
    never = student.module("NextTokenTable", table=endless)
    refuses(
        student.exhaustive_search,
        {
            "two sources": (mine, sources_of(0, 1), 2),
            "max_length=0": (mine, sources_of(0), 0),
            "max_length=-1": (mine, sources_of(0), -1),
            "a model that gives EOS the probability 0": (never, sources_of(0), 3),
        },
    )


@hidden
@promises("impossible-tokens")
@exercise("exhaustive_search")
def test_exhaustive_impossible_tokens(student, reference, draw):
    """Logits of -inf close a token, and EOS may be open at one step only."""
    for length in (1, 3, 4):
        table = random_table(draw, 1, 4, 6)
        table[draw.uniform(*table.shape) < 0.5] = -torch.inf
        table[:, :, :, EOS] = -torch.inf
        table[:, :, :, 4] = draw.normal(1, 4, 6).double()
        table[:, length - 1, :, EOS] = -1.0
        case = f"EOS possible at token {length} only"
        same_exhaustive(student, reference, table, case, 4)


@hidden
@exercise("exhaustive_search")
def test_exhaustive_tiny_probabilities(student, reference, draw):
    """Log-probabilities are added, so that a probability that no float can hold does no harm."""
    table = random_table(draw, 1, 3, 5)
    table[:, :, :, EOS] -= 900.0
    same_exhaustive(student, reference, table, "an EOS of probability exp(-900)", 3)
    one_step = table[:, :1].clone()
    same_exhaustive(student, reference, one_step, "an EOS of probability exp(-900)", 1)
    for rare in (-20.0, -800.0):
        # 5, EOS has the probability exp(rare), and all others less, though they begin better.
        table = torch.full((1, 2, 6, 6), 3 * rare, dtype=torch.float64)
        table[0, 0, BOS, [4, 5]] = torch.tensor([0.0, rare], dtype=torch.float64)
        table[0, 1, :, 4] = 0.0
        table[0, 1, 5, [EOS, 4]] = torch.tensor([0.0, rare], dtype=torch.float64)
        case = f"a best sequence that begins with a token of probability exp({rare:g})"
        same_exhaustive(student, reference, table, case, 2)


@hidden
@exercise("exhaustive_search")
def test_exhaustive_any_translator(student, draw):
    """By the model's own account nothing is more probable, with a mask too, for a Seq2Seq."""
    forked, one, _ = own_translator(student, draw, 1, forked_state)
    model, sources, masks = own_translator(student, draw, 4)
    every = torch.cartesian_prod(*[torch.arange(6)] * 3)  # (216, 3)
    ends = (every == EOS) & ((every == EOS).cumsum(-1) == 1)
    asked = [(model, sources[[row]], masks[[row]] if row % 2 else None) for row in range(4)]
    for model, source, mask in [(forked, one, None), *asked]:
        got = student.exhaustive_search(model, source, 3, source_mask=mask)
        said = log_probs(model, source, mask, every).gather(-1, every.unsqueeze(-1))
        total = said.squeeze(-1).cumsum(-1)  # (216, 3)
        row, step = divmod(int(total.masked_fill(~ends, -torch.inf).argmax()), 3)
        wanted = (every[row, : step + 1].tolist(), float(total[row, step]))
        words = "without a mask" if mask is None else "with a mask"
        same_search(got, wanted, f"a source {words}, a Seq2Seq as the translator")


# --------------------------------------------------------------------------------------------
# beam_search
# --------------------------------------------------------------------------------------------


def same_hypotheses(got, want, case=""):
    """The same hypotheses in the same order, with the same scores."""
    expectations.true(
        isinstance(got, (list, tuple)),
        f"the result should be a list of pairs (ids, score), but is a "
        f"{expectations.type_name(got)}.",
    )
    for place, (found, wanted) in enumerate(zip(got, want, strict=False)):
        ids, score = expectations.pair(found, what=f"entry {place} of the result")
        same_list(ids, list(wanted[0]), what=f"the ids of hypothesis {place}", case=case)
        same_number(score, wanted[1], what=f"the score of hypothesis {place}", case=case)
    expectations.true(
        len(got) == len(want),
        f"the result should hold {len(want)} hypotheses, but holds {len(got)} for {case}.",
    )


def same_beam(student, reference, table, case, *arguments, **options):
    mine, theirs = table_pair(student, reference, table)
    same_hypotheses(
        student.beam_search(mine, sources_of(0), *arguments, **options),
        reference.beam_search(theirs, sources_of(0), *arguments, **options),
        case,
    )


@promises("pairs")
@exercise("beam_search")
def test_beam_of_one(student, reference, draw):
    """A beam of 1 is greedy search: one hypothesis, with its log-probability."""
    for end, length in [(1, 1), (2, 4), (None, 3), (3, 3)]:
        table = ending_table(draw, [end])
        words = "never" if end is None else f"at token {end}"
        case = f"a beam of 1, EOS {words}, max_length={length}"
        same_beam(student, reference, table, case, 1, length)


@exercise("beam_search")
def test_beam_beats_greedy(student, reference):
    """A beam of 2 finds what greedy search misses: 0.4 · 0.95 against 0.6 · 0.5."""
    table = misleading_table()
    same_beam(student, reference, table, "0.4 · 0.95 against 0.6 · 0.5, a beam of 2", 2, 2)


@promises("extensions", "k-best-of-all")
@exercise("beam_search")
def test_beam_values(student, reference, draw):
    """Hypotheses, their order and their scores; PAD, BOS and UNK are tokens like others."""
    for beam, length, vocabulary in [(2, 2, 5), (2, 3, 6), (3, 4, 6), (4, 5, 6), (6, 5, 5)]:
        table = random_table(draw, 1, length, vocabulary)
        table[:, 0, :, EOS] -= 3.0
        case = f"a beam of {beam}, max_length={length}, V={vocabulary}"
        same_beam(student, reference, table, case, beam, length)
    for token in (PAD, BOS, UNK):
        table = likely_table([token, token, EOS], rest=-3.0)
        table[0, :, :, 4] = torch.tensor([[0.0], [0.4], [-0.5]])  # no two sums are equal
        case = f"a table in which {token}, {token}, EOS is likeliest, a beam of 2"
        same_beam(student, reference, table, case, 2, 3)


@promises("finished-leave", "live-join")
@exercise("beam_search")
def test_beam_finished_leave(student, reference, draw):
    """What ends in EOS leaves the beam, which shrinks; what is live at the end joins as it is."""
    for beam, length in [(2, 2), (3, 3), (3, 5), (5, 4)]:
        table = random_table(draw, 1, length)
        table[:, :, :, EOS] += 1.5
        case = f"hypotheses that end early, a beam of {beam}, max_length={length}"
        same_beam(student, reference, table, case, beam, length)
        table = ending_table(draw, [None])
        case = f"no hypothesis that ends, a beam of {beam}, max_length={length}"
        same_beam(student, reference, table, case, beam, length)


@promises("length-normalised")
@exercise("beam_search")
def test_beam_length_normalised(student, reference, draw):
    """The score is the log-probability divided by len(ids) ** alpha, EOS counted."""
    for alpha in (1.0, 0.6, 2.0):
        table = random_table(draw, 1, 5)
        table[:, :, :, EOS] += 1.5
        case = f"a beam of 4, alpha={alpha}"
        same_beam(student, reference, table, case, 4, 5, alpha=alpha)
    # exp(-1) at once against exp(-1.2) in three tokens: the order turns with alpha.
    table = torch.full((1, 3, 6, 6), -30.0, dtype=torch.float64)
    table[0, 0, BOS, [EOS, 4]] = torch.tensor([-1.0, -0.46], dtype=torch.float64)
    table[0, 1, 4, [5, 3]] = torch.tensor([-0.48, -0.97], dtype=torch.float64)
    table[0, 2, 5, [EOS, 4]] = torch.tensor([-0.3, -1.35], dtype=torch.float64)
    for alpha in (0.0, 1.0):
        case = f"a short and a long hypothesis, alpha={alpha}"
        same_beam(student, reference, table, case, 2, 3, alpha=alpha)


@promises("bad-input")
@exercise("beam_search")
def test_beam_refusals(student, draw):
    """A beam or max_length below 1, a negative alpha and several sources are refused."""
    mine = student.module("NextTokenTable", table=random_table(draw, 2))
    one = sources_of(0)
    refuses(
        student.beam_search,
        {
            "beam_size=0": (mine, one, 0, 3),
            "beam_size=-2": (mine, one, -2, 3),
            "max_length=0": (mine, one, 2, 0),
            "max_length=-1": (mine, one, 2, -1),
            "alpha=-0.5": (mine, one, 2, 3, None, -0.5),
            "two sources": (mine, sources_of(0, 1), 2, 3),
        },
    )


@exercise("beam_search")
def test_beam_any_translator(student, draw):
    """Each score is what a Seq2Seq itself says of the hypothesis: state and mask are its own."""
    model, sources, masks = own_translator(student, draw, 4)
    for number in range(4):
        source, mask = sources[number : number + 1], masks[number : number + 1]
        mask = mask if number % 2 == 0 else None
        found = student.beam_search(model, source, 4, 5, source_mask=mask)
        expectations.true(
            isinstance(found, (list, tuple)) and len(found) == 4,
            "the result should be a list of 4 hypotheses for a beam of 4.",
        )
        pairs = [expectations.pair(entry, what="a hypothesis") for entry in found]
        for ids, _ in pairs:
            expectations.true(
                isinstance(ids, (list, tuple))
                and 1 <= len(ids) <= 5
                and all(type(token) is int and 0 <= token < 6 for token in ids),
                "the ids of a hypothesis should be a list of 1 to max_length ints.",
            )
        padded = torch.tensor([[*ids, *[PAD] * (5 - len(ids))] for ids, _ in pairs])
        said = log_probs(model, source, mask, padded).gather(-1, padded.unsqueeze(-1))
        words = "without a mask" if mask is None else "with a mask"
        for (ids, score), steps in zip(pairs, said.squeeze(-1), strict=True):
            wanted = float(steps[: len(ids)].sum())
            case = f"a source {words}, a Seq2Seq as the translator"
            same_number(score, wanted, what=f"the score of {list(ids)}", case=case)
        scores = [score for _, score in pairs]
        expectations.true(
            scores == sorted(scores, reverse=True),
            "the hypotheses should stand best first.",
        )


@hidden
@exercise("beam_search")
def test_beam_wide(student, reference, draw):
    """A beam with room for everything finds all there is, the best first; alpha as well."""
    for vocabulary, length in [(5, 1), (5, 2), (5, 3)]:
        table = random_table(draw, 1, length, vocabulary)
        for alpha in (0.0, 1.0):
            case = f"a beam of 150, V={vocabulary}, max_length={length}, alpha={alpha}"
            same_beam(student, reference, table, case, 150, length, alpha=alpha)


@hidden
@promises("k-best-of-all")
@exercise("beam_search")
def test_beam_impossible_tokens(student, reference, draw):
    """What has the probability 0 is dropped, so that fewer than beam_size may be left."""
    for beam, length in [(3, 1), (4, 3), (8, 4)]:
        table = random_table(draw, 1, 4, 6)
        table[:, :, :, [PAD, BOS, UNK]] = -torch.inf
        table[:, 0, :, 5] = -torch.inf
        table[:, 2, 4, :] = -torch.inf
        table[:, 2, 4, EOS] = 0.0
        case = f"tokens of probability 0, a beam of {beam}, max_length={length}"
        same_beam(student, reference, table, case, beam, length)


@hidden
@exercise("beam_search")
def test_beam_tiny_probabilities(student, reference, draw):
    """Log-probabilities are added, so that long or improbable hypotheses do not vanish."""
    table = random_table(draw, 1, 40, 6)
    table[:, :, :, EOS] -= 30.0
    same_beam(student, reference, table, "40 tokens, a beam of 3", 3, 40)
    table = random_table(draw, 1, 2, 5)
    table[:, :, :, 3:] -= 900.0
    table[:, :, :, EOS] -= 901.0
    table[:, :, :, BOS] -= 900.0
    same_beam(student, reference, table, "tokens of probability exp(-900), a beam of 9", 9, 2)
    table = likely_table([4, 4, EOS], rest=-torch.inf)
    table[0, 0, :, 5] = -(10.0**6)
    same_beam(student, reference, table, "a token of probability exp(-10**6), a beam of 2", 2, 3)
