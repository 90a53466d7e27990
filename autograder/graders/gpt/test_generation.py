"""Graders of `gpt-generation`: sampling and the cache."""

from __future__ import annotations

import functools
import math

import torch

from autograder.graders.common import of_type, pair, refuses, same_gradients, sizes, within
from autograder.graders.gpt.common import (
    chained,
    fitting,
    fused_state,
    gpt_options,
    gpt_state,
)
from autograder.graders.parts import alive, by_parts, same_values, to_blame
from autograder.judging import expectations
from autograder.judging.grader_marks import Mistake, aspect, exercise, hidden, promises
from autograder.judging.proxy import Generator, StudentError
from autograder.sandbox.executor import GLOBAL_GENERATOR, GRAPH
from toolkit.kv_cache import KVCache, LayerCache

# --------------------------------------------------------------------------------------------
# scale_temperature
# --------------------------------------------------------------------------------------------


@promises("divided-logits")
@exercise("scale_temperature", 2)
def test_temperature_values(student, reference, draw):
    """The logits divided by the temperature: above 1 they move together, below 1 apart."""
    for shape, temperature in [((4,), 2.0), ((2, 5), 0.5), ((2, 3, 4), 1.7)]:
        logits = draw.normal(*shape, scale=2)
        expectations.close(
            student.scale_temperature(logits, temperature),
            reference.scale_temperature(logits, temperature),
            what="the logits",
            case=f"shape {shape} and temperature={temperature}",
        )


@exercise("scale_temperature")
def test_temperature_impossible(student, reference, draw):
    """-inf stays -inf, and a temperature near 0 makes large numbers, no NaN."""
    logits = draw.normal(2, 4)
    logits[0, 1] = logits[1, 3] = -torch.inf
    for temperature in (0.01, 3.0, 1e-6, 1e6):
        expectations.close(
            student.scale_temperature(logits, temperature),
            reference.scale_temperature(logits, temperature),
            what="the logits",
            case=f"two entries of -inf and temperature={temperature}",
        )


@promises("bad-temperature")
@exercise("scale_temperature")
def test_temperature_refusals(student, draw):
    """A temperature of 0 or less is refused with a ValueError."""
    logits = draw.normal(2, 3)
    refuses(
        student.scale_temperature,
        {
            "temperature=0": (logits, 0.0),
            "temperature=-1": (logits, -1.0),
        },
    )


@hidden
@promises("dtype-kept")
@exercise("scale_temperature")
def test_temperature_flow(student, reference, draw):
    """float64, a strided input that is left as it was, and gradients."""
    logits = draw.normal(3, 4).double().mT
    seen = student.observe("scale_temperature", logits, 0.3)
    wanted = reference.observe("scale_temperature", logits, 0.3)
    expectations.close(seen.value, wanted.value, what="the logits", case="a strided float64 input")
    same_gradients(seen, wanted, {"0": "the logits"})
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# keep_top_k
# --------------------------------------------------------------------------------------------


def distinct(draw, *shape):
    """Logits of which no two in a row are closer than 0.05."""
    rows = [draw.permutation(shape[-1]) for _ in range(math.prod(shape[:-1]))]
    steps = torch.stack(rows).reshape(shape).float()
    return 0.4 * steps - 1.0 + draw.uniform(*shape, low=0.0, high=0.35)


def same_kept(student, reference, name, logits, amount, case):
    got, want = getattr(student, name)(logits, amount), getattr(reference, name)(logits, amount)
    expectations.close(got, want, what="the logits", case=case)


@promises("k-largest")
@exercise("keep_top_k", 2)
def test_top_k_values(student, reference, draw):
    """The k largest logits stay as they are, all others become -inf."""
    for size, k in [(4, 1), (5, 2), (7, 6)]:
        case = f"a row of {size} and k={k}"
        same_kept(student, reference, "keep_top_k", distinct(draw, 1, size), k, case)


@promises("k-largest")
@exercise("keep_top_k", 2)
def test_top_k_rows(student, reference, draw):
    """Every row keeps its own k, whatever the axes before the last."""
    for shape, k in [((3, 6), 2), ((2, 4, 5), 3), ((5,), 2)]:
        case = f"logits of shape {shape} and k={k}"
        same_kept(student, reference, "keep_top_k", distinct(draw, *shape), k, case)


@promises("ties-stay")
@exercise("keep_top_k")
def test_top_k_ties(student, reference):
    """What equals the k-th largest stays too."""
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0], [5.0, 5.0, 5.0, 1.0, 5.0, 0.0]])
    for k in (2, 3):
        same_kept(student, reference, "keep_top_k", logits, k, f"equal logits and k={k}")


@promises("large-k", "bad-k")
@exercise("keep_top_k")
def test_top_k_bounds(student, reference, draw):
    """A k below 1 is refused with a ValueError; one as large as the row or larger keeps all."""
    logits = distinct(draw, 2, 4)
    refuses(student.keep_top_k, {"k=0": (logits, 0), "k=-1": (logits, -1)})
    for k in (3, 4, 5, 100):
        same_kept(student, reference, "keep_top_k", logits, k, f"a row of 4 and k={k}")


@hidden
@exercise("keep_top_k")
def test_top_k_impossible(student, reference, draw):
    """-inf on the input stays -inf, also where fewer than k are left; negative logits."""
    logits = distinct(draw, 3, 6) - 9.0
    logits[0, :4] = logits[1, 2] = logits[2, :5] = -torch.inf
    for k in (1, 3, 6):
        same_kept(student, reference, "keep_top_k", logits, k, f"entries of -inf and k={k}")


@hidden
@exercise("keep_top_k")
def test_top_k_flow(student, reference, draw):
    """float64 stays float64, as precise, and a strided input is left as it was."""
    logits = distinct(draw, 5, 4).double().mT + 0.01 * draw.normal(4, 5).double()
    seen = student.observe("keep_top_k", logits, 2, grad=False)
    want = reference.keep_top_k(logits, 2)
    expectations.close(seen.value, want, what="the logits", case="a strided float64 input and k=2")
    expectations.unchanged(seen)
    logits = 1 + 1e-10 * draw.permutation(6).double().unsqueeze(0)
    same_kept(student, reference, "keep_top_k", logits, 2, "float64 logits 1e-10 apart and k=2")
    same_kept(student, reference, "keep_top_k", draw.normal(2, 1), 1, "a vocabulary of one and k=1")


# --------------------------------------------------------------------------------------------
# keep_top_p
# --------------------------------------------------------------------------------------------


def spread(draw, *shape, avoid=(), scale=1.3):
    """Logits whose probabilities differ, and sum to nothing near the values to avoid."""
    rows = []
    for _ in range(math.prod(shape[:-1])):
        while True:
            row = draw.normal(shape[-1], scale=scale)
            sizes_ = row.double().softmax(-1).sort(descending=True).values
            sums = sizes_.cumsum(-1)[:-1]
            apart = bool((sizes_[:-1] - sizes_[1:] > 2e-3).all())
            if apart and all(bool(((sums - value).abs() > 3e-3).all()) for value in avoid):
                rows.append(row)
                break
    return torch.stack(rows).reshape(shape)


@promises("smallest-set")
@exercise("keep_top_p", 2)
def test_top_p_values(student, reference):
    """The most probable tokens stay until they sum to p, the one that crosses it included."""
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log() + 1.0
    for p in (0.4, 0.6, 0.79, 0.9, 0.97):
        case = f"probabilities 0.5, 0.3, 0.15, 0.05 and p={p}"
        same_kept(student, reference, "keep_top_p", logits, p, case)


@promises("positions")
@exercise("keep_top_p", 2)
def test_top_p_order(student, reference, draw):
    """Tokens stay at their positions, whatever their order."""
    for p in (0.3, 0.7, 0.92):
        logits = spread(draw, 1, 6, avoid=(p,))
        case = f"the logits {[round(one, 3) for one in logits[0].tolist()]} and p={p}"
        same_kept(student, reference, "keep_top_p", logits, p, case)


@promises("smallest-set")
@exercise("keep_top_p", 2)
def test_top_p_rows(student, reference, draw):
    """Every row keeps as many as it needs, whatever the axes before the last."""
    for shape, p in [((4, 5), 0.6), ((2, 3, 5), 0.85), ((6,), 0.5)]:
        case = f"logits of shape {shape} and p={p}"
        same_kept(student, reference, "keep_top_p", spread(draw, *shape, avoid=(p,)), p, case)


@promises("one-stays", "all-stay", "bad-p")
@exercise("keep_top_p")
def test_top_p_bounds(student, reference, draw):
    """A p of 0 or less, or above 1, is refused; a tiny one keeps one token, and 1 keeps all."""
    logits = spread(draw, 3, 4, avoid=(0.9,), scale=0.7)
    refuses(
        student.keep_top_p,
        {"p=0": (logits, 0.0), "p=-0.5": (logits, -0.5), "p=1.01": (logits, 1.01)},
    )
    for p in (1e-4, 1e-12, 0.9, 1.0):
        same_kept(student, reference, "keep_top_p", logits, p, f"three rows of 4 and p={p}")
    # The first token has a probability of 1, rounded.
    logits = torch.tensor([[0.0, 25.0, 1.0, 2.0]])
    same_kept(student, reference, "keep_top_p", logits, 1.0, "the logits 0, 25, 1, 2 and p=1")


@hidden
@promises("smallest-set")
@exercise("keep_top_p")
def test_top_p_reached(student, reference):
    """Where the probabilities add up to exactly p no further token stays, equal ones neither."""
    logits = torch.zeros(2, 4)
    for p, count in [(0.25, 1), (0.5, 2), (0.75, 3)]:
        case = f"four equal logits and p={p}"
        got = student.keep_top_p(logits, p)
        expectations.shape(got, (2, 4), what="the logits", case=case)
        stays = torch.isfinite(got)
        expectations.true(
            bool((stays.sum(1) == count).all()),
            f"{count} token{'s' * (count > 1)} should stay, whose probabilities add up to p, but "
            f"{stays.sum(1).tolist()} do in the two rows of {case}; the smallest set has no more.",
        )
        expectations.close(got, logits.masked_fill(~stays, -torch.inf), "the logits", case=case)
    for little, given in [(1e-5, logits), (1e-8, logits.double())]:
        for p, count in [(0.5 - little, 2), (0.5 + little, 3)]:
            case = f"four equal {str(given.dtype).removeprefix('torch.')} logits and p={p:.9f}"
            got = student.keep_top_p(given, p)
            expectations.shape(got, (2, 4), what="the logits", case=case)
            stays = torch.isfinite(got).sum(1).tolist()
            expectations.true(
                stays == [count, count],
                f"{count} tokens should stay, but {stays} do in the two rows of {case}.",
            )
    logits = torch.tensor([[-torch.inf, 2.0], [7.0, -torch.inf]])
    same_kept(student, reference, "keep_top_p", logits, 0.5, "one possible token in each row")
    same_kept(student, reference, "keep_top_p", torch.ones(2, 1), 0.5, "a vocabulary of one")


@hidden
@promises("impossible-stays")
@exercise("keep_top_p")
def test_top_p_impossible(student, reference, draw):
    """-inf on the input stays -inf; what is left has the probabilities."""
    logits = spread(draw, 3, 4, avoid=(0.7, 0.95))
    gap = torch.full((3, 1), -torch.inf)
    logits = torch.cat([logits[:, :2], gap, logits[:, 2:], gap], dim=1)
    for p in (0.7, 0.95, 1.0):
        same_kept(student, reference, "keep_top_p", logits, p, f"two entries of -inf and p={p}")
    alone = torch.tensor([[-torch.inf, 0.3, -torch.inf]])
    same_kept(student, reference, "keep_top_p", alone, 0.5, "one token that is possible and p=0.5")


@hidden
@exercise("keep_top_p")
def test_top_p_flow(student, reference, draw):
    """A large vocabulary, float64; a strided input is left as it was."""
    logits = spread(draw, 4, 9, avoid=(0.8,)).double().mT.contiguous().mT
    seen = student.observe("keep_top_p", logits, 0.8, grad=False)
    want = reference.keep_top_p(logits, 0.8)
    expectations.close(
        seen.value, want, what="the logits", case="a strided float64 input and p=0.8"
    )
    expectations.unchanged(seen)
    # The largest probabilities: 0.3, 0.25 and 0.2; a thousand others share the rest.
    rest = draw.uniform(1000, low=0.5, high=1.5)
    shares = torch.cat([0.25 * rest / rest.sum(), torch.tensor([0.3, 0.2, 0.25])])
    logits = shares.log()[draw.permutation(1003)].unsqueeze(0)
    for p in (0.4, 0.7):
        same_kept(student, reference, "keep_top_p", logits, p, f"1003 tokens and p={p}")
    logits = 1000 + spread(draw, 2, 5, avoid=(0.6,)).double()
    same_kept(student, reference, "keep_top_p", logits, 0.6, "float64 logits around 1000 and p=0.6")


# --------------------------------------------------------------------------------------------
# sample_token
# --------------------------------------------------------------------------------------------


def shares_of(logits, temperature=1.0, top_k=None, top_p=None):
    """The probabilities (V,) with which a row's next token is drawn."""
    x = logits.double() / temperature
    if top_k is not None and top_k < len(x):
        x = x.masked_fill(x < x.topk(top_k).values[-1], -torch.inf)
    if top_p is not None:
        shares, order = x.softmax(-1).sort(descending=True)
        out = torch.zeros_like(x, dtype=torch.bool)
        out[order] = shares.cumsum(-1) - shares >= top_p
        x = x.masked_fill(out, -torch.inf)
    return x.softmax(-1)


def own_shares(parts, logits, temperature=1.0, top_k=None, top_p=None):
    """The same for every row (B, V) by the student's own three functions."""
    x = parts.proxy.scale_temperature(logits, temperature)
    if top_k is not None:
        x = parts.proxy.keep_top_k(x, top_k)
    if top_p is not None:
        x = parts.proxy.keep_top_p(x, top_p)
    shares = expectations.tensor(x, what="a part").double().softmax(-1)
    expectations.true(
        shares.ndim == 2 and shares.shape[1] <= logits.shape[1], "A part is of odd shape."
    )
    return torch.nn.functional.pad(shares, (0, logits.shape[1] - shares.shape[1]))


def spoilt(student, logits, **options):
    """Whether the student's own functions leave no token to some row, from which none can draw."""
    own = by_parts(student, lambda parts: own_shares(parts, logits, **options))
    return own is not None and bool(own.isnan().any())


def tokens_of(got, count, vocabulary, case, what="the tokens"):
    """(B,) int64, all in the vocabulary."""
    expectations.shape(got, (count,), what=what, case=case)
    expectations.true(
        got.dtype == torch.int64, f"{what} should be int64, but are {got.dtype} for {case}."
    )
    expectations.true(
        bool(((got >= 0) & (got < vocabulary)).all()),
        f"{what} should lie in the vocabulary for {case}.",
    )
    return got


def as_often(student, tokens, logits, case, whole=None, **options):
    """The tokens came as often as the logits (V,) of their rows say; returns how often that is.

    Args:
        whole: the logits (B, V) of all rows, as the student's own parts would get them.
    """

    def judge(shares):
        for token, share in enumerate(shares.tolist()):
            expectations.rate(
                int((tokens == token).sum()),
                len(tokens),
                share,
                what=f"the share of token {token} for {case}",
                false_alarm=1e-9 / len(shares),
            )
        return shares

    try:
        return judge(shares_of(logits, **options))
    except Mistake as mistake:
        whole = logits.repeat(len(tokens), 1) if whole is None else whole
        own = by_parts(student, lambda parts: own_shares(parts, whole, **options).mean(0))
        if own is None or bool(own.isnan().any()):
            raise
        try:
            return judge(own)
        except Mistake:
            raise mistake from None


DRAWS = 800


def same_shares(student, logits, **options):
    """Rows with the same logits (V,) draw each token as often as they should."""
    case = f"the probabilities {[round(one, 3) for one in logits.softmax(-1).tolist()]}" + "".join(
        f", {name}={value}" for name, value in options.items()
    )
    rows = logits.repeat(DRAWS, 1)
    try:
        got = student.sample_token(rows, **options)
    except StudentError:
        if not spoilt(student, rows, **options):
            raise
        return
    as_often(student, tokens_of(got, DRAWS, len(logits), case), logits, case, **options)


def certain(student, logits, case, **options):
    """Every row's token is the only possible one: that of the largest logit."""
    try:
        got = student.sample_token(logits, **options)
    except StudentError:
        if options.get("temperature", 1) == 0 or not spoilt(student, logits, **options):
            raise
        return
    got = tokens_of(got, *logits.shape, case)
    try:
        expectations.equal(got, logits.argmax(-1), what="the tokens", case=case)
    except Mistake:
        if options.get("temperature", 1) == 0:
            raise
        own = by_parts(student, lambda parts: own_shares(parts, logits, **options))
        # A wrong part may leave more than one possible, but not this token.
        if own is None or not bool((own.gather(1, got.unsqueeze(1)) > 0).all()):
            raise
        surest = own.amax(1) > 1 - 1e-9
        expectations.equal(got[surest], own.argmax(1)[surest], what="the tokens", case=case)


MANY = 0.001 * torch.arange(100)  # of 4000 draws one is missing with less than 100 e**-37


def all_seen(student, what, draw):
    """Each of 100 tokens is among 4000 that `draw` gives, if the student's own parts allow it."""
    rows = MANY.repeat(4000, 1)
    try:
        seen = len(draw().unique())
    except StudentError:
        if not spoilt(student, rows):
            raise
        return
    own = by_parts(student, lambda parts: len(parts.proxy.sample_token(rows).unique()))
    expectations.true(
        seen == len(MANY) or (what != "sample_token" and own is not None and own < len(MANY)),
        f"Of 100 tokens that are about equally likely your {what} draws {seen} in 4000 times; "
        "without top_k and top_p all can come.",
    )


@promises("int64", "greedy")
@exercise("sample_token")
def test_sample_greedy(student, draw):
    """Temperature 0 takes the largest logit, and the first of equal ones."""
    for batch in (1, 3):
        certain(student, distinct(draw, batch, 6), f"B={batch}, temperature=0", temperature=0.0)
    case = "temperature=0, top_k=2, top_p=0.5"
    certain(student, distinct(draw, 3, 6), case, temperature=0.0, top_k=2, top_p=0.5)
    logits = torch.tensor([[1.0, 4.0, 4.0, 0.0], [2.0, 2.0, 2.0, 2.0], [-1.0, -3.0, -2.0, -1.0]])
    got = tokens_of(student.sample_token(logits, 0), 3, 4, "equal logits, temperature=0")
    expectations.equal(
        got, torch.tensor([1, 0, 0]), what="the tokens", case="equal logits, temperature=0"
    )


@aspect
@exercise("sample_token")
def test_sample_certain(student, draw):
    """Where -inf, top_k=1 or a tiny top_p leaves one token, it is drawn; large logits too."""
    logits = distinct(draw, 40, 5)
    certain(student, logits[:1], "B=1, top_k=1", top_k=1)
    certain(student, logits, "top_k=1, temperature=3", top_k=1, temperature=3.0)
    certain(student, logits, "top_p=0.01", top_p=0.01)
    alone = torch.where(logits == logits.amax(1, keepdim=True), logits, -torch.inf)
    certain(student, alone, "one entry that is not -inf")
    certain(student, 1000 + logits, "logits around 1000, top_k=1", top_k=1)


@promises("order-of-filters")
@exercise("sample_token", 2)
def test_sample_shares(student):
    """Each token comes as often as the softmax says; the temperature sharpens or flattens it."""
    logits = torch.tensor([0.4, 0.1, 0.3, 0.2]).log() + 3.0  # which the softmax takes away
    same_shares(student, logits)
    for temperature in (0.5, 2.5):
        same_shares(student, logits, temperature=temperature)


@promises("order-of-filters")
@exercise("sample_token")
def test_sample_filters(student):
    """top_k and top_p take away, and what is left is drawn in proportion."""
    logits = torch.tensor([0.05, 0.3, 0.4, 0.25]).log()
    same_shares(student, logits, top_k=2)
    same_shares(student, logits, top_p=0.8)


@promises("generator")
@exercise("sample_token")
def test_sample_generator(student):
    """Draws come from the generator that is given: its seed decides, and nothing else."""
    logits = torch.zeros(30, 9)
    # Two times 30 draws from 9 tokens are the same with 9 ** -30.
    seeds = (11, 11, 12)
    found = []
    for seed in seeds:
        seen = student.drawing("sample_token", logits, generator=Generator(seed))
        found.append(tokens_of(seen.value, 30, 9, "a generator"))
        expectations.true(
            GLOBAL_GENERATOR not in seen.mutated,
            "your sample_token draws from PyTorch's own generator, or seeds it, although one is "
            "given.",
        )
    expectations.true(
        torch.equal(found[0], found[1]),
        "two generators with the same seed give different tokens; draw from the one that is given.",
    )
    expectations.true(
        not torch.equal(found[0], found[2]),
        "generators with different seeds give the same tokens.",
    )
    free = [tokens_of(student.sample_token(logits), 30, 9, "no generator") for _ in range(2)]
    expectations.true(
        not torch.equal(*free), "without a generator two calls give the same tokens; set no seed."
    )


@promises("bad-temperature")
@exercise("sample_token")
def test_sample_refusals(student, draw):
    """A negative temperature is refused; 0 for top_k or top_p does not mean None."""
    logits = draw.normal(2, 3)
    refuses(student.sample_token, {"temperature=-0.5": (logits, -0.5)})
    for option, part in [("top_k", "keep_top_k"), ("top_p", "keep_top_p")]:
        if to_blame(student, lambda parts, part=part: not takes(parts.proxy, part, logits, 0)):
            continue
        expectations.true(
            not takes(student, "sample_token", logits, **{option: 0}),
            f"{option}=0 is taken for {option}=None; {part} refuses it. Ask `is not None`.",
        )


def takes(proxy, name, *given, **options):
    """Whether the function answers at all."""
    try:
        getattr(proxy, name)(*given, **options)
    except StudentError:
        return False
    return True


@hidden
@promises("order-of-filters")
@exercise("sample_token", 2)
def test_sample_order(student):
    """First the temperature, then top_k, then top_p of what is left; without them all can come."""
    logits = torch.tensor([0.1, 0.32, 0.14, 0.24, 0.2]).log()
    same_shares(student, logits, temperature=2.0, top_p=0.6)
    # top_p leaves 3 of the 6 that top_k has left; of all 8 it would leave 4.
    logits = torch.tensor([0.12, 0.04, 0.25, 0.08, 0.15, 0.2, 0.06, 0.1]).log()
    same_shares(student, logits, top_k=6, top_p=0.65)
    same_shares(student, logits, temperature=0.5, top_k=4, top_p=0.85)
    rows = MANY.repeat(4000, 1)
    all_seen(
        student,
        "sample_token",
        lambda: tokens_of(student.sample_token(rows), 4000, 100, "100 tokens"),
    )


@hidden
@exercise("sample_token")
def test_sample_rows(student, draw):
    """Every row draws from its own logits, float64 too, and they stay as they are."""
    first, second = torch.tensor([[0.7, 0.1, 0.2], [0.1, 0.6, 0.3]]).log().double()
    logits = torch.stack([first, second]).repeat(DRAWS, 1)
    seen = student.observe("sample_token", logits, grad=False)
    got = tokens_of(seen.value, 2 * DRAWS, 3, "two kinds of rows")
    shares = [
        as_often(student, got[position::2], row, f"row {position} of two kinds of rows")
        for position, row in enumerate((first, second))
    ]
    expectations.unchanged(seen)
    # Neighbours that draw the same token do so by chance only.
    expectations.rate(
        int((got[0::2] == got[1::2]).sum()),
        DRAWS,
        float(shares[0] @ shares[1]),
        what="the share of neighbouring rows with the same token",
    )
    seen = student.observe("sample_token", logits[:4], 0.0, grad=False)
    expectations.equal(
        seen.value, torch.tensor([0, 1, 0, 1]), what="the tokens", case="temperature=0"
    )
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# generate
# --------------------------------------------------------------------------------------------


def table_of(draw, vocabulary=6, positions=0):
    """A table for a TableModel in which no two logits of a row are close."""
    shape = (positions, vocabulary, vocabulary) if positions else (vocabulary, vocabulary)
    return distinct(draw, *shape)


def table_pair(student, reference, table, **more):
    return pair(student, reference, "TableModel", table=table, **more)


def said_by(table, ids, context):
    """The logits of the next token (B, V) that a TableModel says."""
    ids = ids[:, -context:]
    return (
        table[ids[:, -1]]
        if table.ndim == 2
        else table[min(ids.shape[1], len(table)) - 1, ids[:, -1]]
    )


def own_text(parts, table, context, ids, count, stop=None, **options):
    """What the student's own sample_token writes; certain where each of its draws is."""
    over = torch.zeros(len(ids), dtype=torch.bool)
    for _ in range(count):
        token = parts.proxy.sample_token(said_by(table, ids, context), **options)
        tokens_of(token, len(ids), len(table[-1]), "a part")
        if stop is not None:
            token = token.masked_fill(over, stop)
            over |= token == stop
        ids = torch.cat([ids, token.unsqueeze(1)], dim=1)
        if stop is not None and bool(over.all()):
            break
    return ids


def text_of(got, ids, most, vocabulary, case):
    """(B, T + n) int64 with n <= most, all in the vocabulary, beginning with ids."""
    expectations.tensor(got, what="the text", case=case)
    expectations.true(
        got.dtype == torch.int64 and got.ndim == 2 and len(got) == len(ids),
        f"the text should be int64 with {len(ids)} rows, but is {got.dtype} of shape "
        f"{tuple(got.shape)} for {case}.",
    )
    expectations.true(
        ids.shape[1] <= got.shape[1] <= ids.shape[1] + most,
        f"the text should have {ids.shape[1]} tokens and at most {most} new ones, but has "
        f"{got.shape[1]} for {case}.",
    )
    expectations.equal(got[:, : ids.shape[1]], ids, what="the beginning of the text", case=case)
    expectations.true(
        bool(((got >= 0) & (got < vocabulary)).all()),
        f"the text should lie in the vocabulary for {case}.",
    )
    return got


def same_text(student, reference, table, ids, count, case, context=1024, **options):
    """A text of which every token is certain."""
    mine, theirs = table_pair(student, reference, table, max_length=context)
    want = reference.generate(theirs, ids, count, **options)
    try:
        seen = student.observe("generate", mine, ids, count, grad=False, **options)
    except StudentError:
        # Where the student's sample_token knows no temperature 0, top_k=1 is as certain.
        said = said_by(table, ids, context)
        if by_parts(student, lambda parts: parts.proxy.sample_token(said, 0.0)) is not None:
            raise
        options = {**options, "temperature": 1.0, "top_k": 1}
        seen = student.observe("generate", mine, ids, count, grad=False, **options)
    expectations.unchanged(seen)
    try:
        expectations.equal(seen.value, want, what="the text", case=case)
    except Mistake:
        own = by_parts(
            student, lambda parts: own_text(parts, table, context, ids, count, **options)
        )
        same = own is not None and isinstance(seen.value, torch.Tensor)
        if not (same and torch.equal(seen.value, own)):
            raise


def ending_circle(vocabulary, stop):
    """A table that counts on from token to token, and after the last begins anew at 0."""
    table = torch.full((vocabulary, vocabulary), -9.0)
    for token in range(vocabulary):
        table[token, (token + 1) % vocabulary] = 9.0
    table[stop, stop] = -9.0
    return table


@promises("appended", "last-position")
@exercise("generate", 2)
def test_generate_greedy(student, reference, draw):
    """Each new token is made from the logits at the last position, and appended."""
    table = table_of(draw, positions=5)
    for batch, length, count in [(1, 1, 1), (1, 3, 4), (3, 2, 6)]:
        ids = draw.integers(0, 6, batch, length)
        case = sizes(B=batch, T=length) + f", max_new_tokens={count}, temperature=0"
        same_text(student, reference, table, ids, count, case, temperature=0.0)


@promises("last-tokens")
@exercise("generate")
def test_generate_context(student, reference, draw):
    """The model sees the last model.max_length tokens, no more and no fewer."""
    table = table_of(draw, positions=8)
    for length, context, count in [(2, 4, 6), (7, 3, 4), (5, 5, 3), (3, 1, 2), (2, 6, 130)]:
        ids = draw.integers(0, 6, 2, length)
        case = f"T={length}, max_length={context}, max_new_tokens={count}, temperature=0"
        same_text(student, reference, table, ids, count, case, context, temperature=0.0)


@promises("stop")
@exercise("generate", 2)
def test_generate_stop(student, reference):
    """A row that wrote stop goes on with stop; when all have written it, writing ends."""
    table = ending_circle(6, 5)
    for rows, count in [([2], 9), ([1, 4, 2], 9), ([0, 3], 3)]:
        ids = torch.tensor([[row] for row in rows])
        case = f"rows that write stop after {[5 - row for row in rows]} tokens, at most {count}"
        same_text(student, reference, table, ids, count, case, stop=5, temperature=0.0)
    case = "the same without stop"
    same_text(student, reference, table, torch.tensor([[3], [1]]), 5, case, temperature=0.0)


@promises("bad-input")
@exercise("generate")
def test_generate_bounds(student, reference, draw):
    """No new tokens give the text as it is; fewer than none, and an empty text, are refused."""
    table, ids = table_of(draw), draw.integers(0, 6, 2, 3)
    mine = student.module("TableModel", table=table)
    refuses(
        student.generate,
        {
            "max_new_tokens=-1": (mine, ids, -1),
            "ids without a column": (mine, ids[:, :0], 3),
        },
    )
    for count in (1, 0):
        case = f"max_new_tokens={count}, temperature=0"
        same_text(student, reference, table, ids, count, case, temperature=0.0)


FREE = torch.tensor([0.2, 0.1, 0.4, 0.05, 0.25]).log()


def same_writing(student, **options):
    """Rows with one beginning write each token as often as they should, one by one."""
    model = student.module("TableModel", table=FREE.expand(5, 5))
    ids = torch.zeros(DRAWS // 2, 1, dtype=torch.int64)
    shown = "".join(f", {name}={value}" for name, value in options.items())
    case = f"the probabilities 0.2, 0.1, 0.4, 0.05, 0.25{shown}"
    as_written(student, model, ids, case, options, options)


def as_written(student, model, ids, case, given, options):
    """Two new tokens for each row come as often as they should, or as sample_token draws them."""
    rows = FREE.repeat(len(ids), 1)
    try:
        got = student.generate(model, ids, 2, **given)
    except StudentError:
        if not spoilt(student, rows, **options):
            raise
        return
    got = text_of(got, ids, 2, 5, case)
    expectations.shape(got, (len(ids), 3), what="the text", case=case)
    tokens = got[:, 1:].flatten()
    try:
        as_often(student, tokens, FREE, case, rows, **options)
    except Mistake:
        own = by_parts(student, lambda parts: own_draws(parts, rows, **options))
        if own is None or not alike(tokens, own, len(FREE)):
            raise


def own_draws(parts, rows, **options):
    """What the student's own sample_token draws for each row, some times."""
    drawn = [parts.proxy.sample_token(rows, **options) for _ in range(4)]
    return torch.cat([tokens_of(one, *rows.shape, "a part") for one in drawn])


def alike(some, others, count):
    """Whether two lists of tokens may well have been drawn with the same probabilities."""
    for token in range(count):
        counts = [int((one == token).sum()) for one in (some, others)]
        both = sum(counts) / (len(some) + len(others))
        try:
            for number, one in zip(counts, (some, others), strict=True):
                expectations.rate(number, len(one), both, "the share", false_alarm=1e-9)
        except Mistake:
            return False
    return True


@aspect
@exercise("generate")
def test_generate_shares(student):
    """Tokens are drawn, each row for itself, with temperature, top_k and top_p passed on."""
    same_writing(student)
    same_writing(student, temperature=0.5)
    same_writing(student, top_k=2)
    same_writing(student, top_p=0.7)


@aspect
@promises("own-generator")
@exercise("generate", 2)
def test_generate_seed(student):
    """The same seed writes the same text again, other seeds and no seed write others."""
    model = student.module("TableModel", table=torch.zeros(9, 9))
    ids = torch.zeros(3, 2, dtype=torch.int64)
    # 3 rows of 12 tokens out of 9: equal by chance with 9 ** -36.
    try:
        same_seeds(student, model, ids)
    except Mistake:
        if sound_draws(student):
            raise


def same_seeds(student, model, ids):
    """The seed decides, and nothing else."""
    texts = {}
    for name, seed in [("one", 5), ("again", 5), ("other", 6), ("zero", 0), ("zero again", 0)]:
        seen = student.drawing("generate", model, ids, 12, seed=seed)
        texts[name] = text_of(seen.value, ids, 12, 9, f"seed={seed}")
        expectations.shape(texts[name], (3, 14), what="the text", case=f"seed={seed}")
        expectations.true(
            GLOBAL_GENERATOR not in seen.mutated,
            "with a seed your generate changes the state of PyTorch's own generator; draw from a "
            "torch.Generator of your own.",
        )
    for one, other in [("one", "again"), ("zero", "zero again")]:
        expectations.true(
            torch.equal(texts[one], texts[other]), "the same seed writes a different text."
        )
    for one, other in [("one", "other"), ("one", "zero"), ("other", "zero")]:
        expectations.true(
            not torch.equal(texts[one], texts[other]), "different seeds write one text."
        )
    expectations.true(
        not torch.equal(texts["one"][:, 3:], texts["other"][:, 2:-1]),
        "the text of seed 6 is that of seed 5 from its second token on; seed one generator once, "
        "before the loop.",
    )
    free = [text_of(student.generate(model, ids, 12), ids, 12, 9, "no seed") for _ in range(2)]
    expectations.true(not torch.equal(*free), "without a seed two calls write the same text.")
    text = texts["one"]
    expectations.true(
        not (torch.equal(text[0], text[1]) and torch.equal(text[0], text[2]))
        and bool((text[:, 2:] != text[:, 2:3]).any()),
        "with a seed, rows or steps repeat the same draws; make one generator before the loop.",
    )


def sound_draws(student):
    """Whether the student's own sample_token draws from the generator that it is given."""

    def own(parts):
        rows = torch.zeros(40, 9)
        drawn = [
            parts.proxy.sample_token(rows, generator=one)
            for one in (Generator(1), Generator(1), Generator(2), None, None)
        ]
        return [tokens_of(one, *rows.shape, "a part") for one in drawn]

    drawn = by_parts(student, own)
    if drawn is None:
        return True
    same, free = torch.equal(drawn[0], drawn[1]), torch.equal(drawn[3], drawn[4])
    one = bool((drawn[0] == drawn[0][0]).all())
    return same and not free and not one and not torch.equal(drawn[0], drawn[2])


@hidden
@promises("mode-kept")
@exercise("generate")
def test_generate_mode(student, draw):
    """The model runs in the mode in which it comes: dropout acts in training mode only."""
    weight = distinct(draw, 5, 5)
    weight[:, 0] = weight[:, 4] = -9.0  # Neither the first nor the last of equal ones.
    for train in (False, True):
        table = {"weight": weight}
        model = chained(
            student,
            student.module("nn.Embedding", state=table, num_embeddings=5, embedding_dim=5),
            student.module("nn.Dropout", p=1.0),
        )
        model.method("__setattr__", "max_length", 8)
        model = model.train() if train else model.eval()
        ids = torch.tensor([[2], [4]])
        case = f"a model in {'training' if train else 'evaluation'} mode"
        got = text_of(student.generate(model, ids, 1, temperature=0.0), ids, 1, 5, case)
        same = got[:, 1:] == weight[ids[:, 0]].argmax(-1, keepdim=True)
        expectations.true(
            bool((same != train).all()),
            "your generate changes the mode of the model, which is the caller's business: "
            f"{case} writes what it should in the other.",
        )


@aspect
@hidden
@promises("no-gradient")
@exercise("generate")
def test_generate_gradient(student, draw):
    """Nothing is kept for a backward pass, and the weights can be trained as before."""
    weight = {"weight": distinct(draw, 5, 5)}
    model = chained(
        student, student.module("nn.Embedding", state=weight, num_embeddings=5, embedding_dim=5)
    )
    model.method("__setattr__", "max_length", 8)
    ids = torch.tensor([[2], [4]])
    seen = student.recording("generate", model, ids, 2)
    text_of(seen.value, ids, 2, 5, "two rows")
    expectations.true(
        GRAPH not in seen.mutated,
        "your generate records gradients while the model runs; call it under torch.no_grad().",
    )
    expectations.true(
        any(grad is not None for grad in model.observe(ids).grads.values()),
        "After your generate no gradient reaches the weights of the model any more; leave their "
        "requires_grad as it is, and use torch.no_grad() as a context.",
    )


@hidden
@promises("stop-in-the-prompt")
@exercise("generate")
def test_generate_stop_again(student, reference, draw):
    """stop may be 0 or stand in the beginning; a stopped row can't go on with anything else."""
    table = ending_circle(5, 0)
    ids = torch.tensor([[0, 3], [1, 2], [0, 1]])
    case = "stop=0, rows that begin with it"
    same_text(student, reference, table, ids, 8, case, stop=0, temperature=0.0)
    case = "stop=0, rows that end with it"
    for rows in ([[3, 0]], [[0, 0], [2, 0]], [[0], [4]]):
        ids = torch.tensor(rows)
        same_text(student, reference, table, ids, 8, case, stop=0, temperature=0.0)
    # The draw decides when a row ends, but what comes then is certain.
    model = student.module("TableModel", table=torch.zeros(4, 4))
    ids = torch.ones(40, 1, dtype=torch.int64)
    got = text_of(student.generate(model, ids, 10, stop=2), ids, 10, 4, "stop=2")[:, 1:]
    over = (got == 2).long().cumsum(1) > 0
    expectations.true(
        bool((got[over] == 2).all()),
        "a row that wrote stop should go on with stop and nothing else.",
    )
    expectations.true(
        got.shape[1] == 10 or bool(over[:, -1].all() & ~over[:, :-1].all(0).any()),
        "writing should end with the step in which the last row writes stop.",
    )


@aspect
@hidden
@exercise("generate")
def test_generate_seeded_shares(student):
    """With a seed too, temperature, top_k and top_p are passed on; without them all can come."""
    model = student.module("TableModel", table=FREE.expand(5, 5))
    ids = torch.zeros(DRAWS // 2, 1, dtype=torch.int64)
    options = {"temperature": 5.0, "top_k": 4, "top_p": 0.68}  # Without one, others stay.
    case = f"the probabilities 0.2, 0.1, 0.4, 0.05, 0.25, a seed, {options}"
    as_written(student, model, ids, case, {**options, "seed": 77}, options)
    model = student.module("TableModel", table=MANY.expand(100, 100))
    ids = torch.zeros(4000, 1, dtype=torch.int64)
    all_seen(
        student,
        "generate",
        lambda: text_of(student.generate(model, ids, 1), ids, 1, 100, "100 tokens")[:, 1:],
    )


# --------------------------------------------------------------------------------------------
# attend_cached
# --------------------------------------------------------------------------------------------


class Attentions:
    """The student's CausalSelfAttention and the reference's, with the same parameters.

    A cache answers for nobody's attention: where the student's is another one than the
    reference's, `right` is False, and steps are compared with what the student's own says of the
    whole.
    """

    def __init__(self, student, reference, draw, width=6, heads=2, dtype=torch.float64, **more):
        self.student, self.reference = student, reference
        self.width, self.heads = width, heads
        options = {"d_model": width, "num_heads": heads, **more}
        self.state = {name: one.to(dtype) for name, one in fused_state(draw, width).items()}
        own = fitting(student, "CausalSelfAttention", options, self.state)
        self.mine = student.module("CausalSelfAttention", state=own, dtype=dtype, **options)
        self.theirs = reference.module(
            "CausalSelfAttention", state=self.state, dtype=dtype, **options
        )
        x = draw.normal(2, 3, width).to(dtype)
        want = self.theirs(x)
        own = self.whole(x)
        self.right = own is not None and expectations.close_enough(own, want)

    def whole(self, x):
        """What the student's own attention says without a cache."""
        return by_parts(self.student, lambda parts: alive(parts.aside(self.mine)(x)))

    def by_mask(self, x, past):
        """The output as the student's own causal_mask makes it; None if that one refuses."""
        state, shape = self.state, (len(x), -1, self.heads, self.width // self.heads)
        parts = (x @ state["qkv.weight"].T + state["qkv.bias"]).chunk(3, dim=-1)
        queries, keys, values = (part.reshape(shape).transpose(1, 2) for part in parts)
        if past is not None:
            keys, values = torch.cat([past.keys, keys], 2), torch.cat([past.values, values], 2)

        def own(parts):
            alive(parts.proxy.causal_mask(4))
            mask = parts.proxy.causal_mask(x.shape[1], keys.shape[2] - x.shape[1])
            scores = queries @ keys.mT / math.sqrt(queries.shape[3])
            mixed = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ values
            return (
                mixed.transpose(1, 2).flatten(2) @ state["out_proj.weight"].T
                + state["out_proj.bias"]
            )

        return by_parts(self.student, own)

    def close(self, value, want, x, past, case):
        """The output is `want`, or what it is by the student's own mask."""
        try:
            expectations.close(value, want, what="the output", case=case)
        except Mistake:
            own = self.by_mask(x, past)
            if own is None or not same_values(value, own):
                raise

    def pair_of(self, got, rows, positions, case):
        """The result and the cache, in the right shapes."""
        value, cache = expectations.pair(got, what="the result (output, cache)")
        shape = (rows, self.heads, positions, self.width // self.heads)
        for words, part in zip(("keys", "values"), cached_pair(cache, case), strict=True):
            expectations.shape(part, shape, what=f"the cached {words}", case=case)
        return value, cache


def cached_pair(cache, case):
    """Keys and values of the cache of an attention."""
    of_type(cache, LayerCache, "the cache of an attention", case)
    return cache.keys, cache.values


def same_attended(both, x, past, case):
    """One call is the reference's, result and cache; `cache` stays as it is."""
    want, want_cache = both.reference.attend_cached(both.theirs, x, past)
    seen = both.student.observe("attend_cached", both.mine, x, past, grad=False)
    positions = x.shape[1] + (0 if past is None else past.past)
    value, cache = both.pair_of(seen.value, len(x), positions, case)
    expectations.unchanged(seen)
    expectations.shape(value, want.shape, what="the output", case=case)
    if both.right:
        for words in ("keys", "values"):
            got, part = getattr(cache, words), getattr(want_cache, words)
            expectations.close(got, part, what=f"the cached {words}", case=case)
        both.close(value, want, x, past, case)
    return value, cache


def attended_in_steps(both, x, lengths, case):
    """Steps of the given lengths say what attention says of the whole."""
    whole = both.whole(x)
    wanted = both.theirs(x)
    cache, before = None, 0
    for length in lengths:
        step = x[:, before : before + length]
        words = f"{case}, positions {before} to {before + length - 1}"
        got, past = both.student.attend_cached(both.mine, step, cache), cache
        value, cache = both.pair_of(got, len(x), before + length, words)
        want = wanted if both.right or whole is None else whole
        both.close(value, want[:, before : before + length], step, past, words)
        before += length


def random_past(draw, rows, heads, positions, width, dtype=torch.float64):
    """A cache of random numbers: keys and values."""
    size = rows, heads, positions, width // heads
    return LayerCache(*(draw.normal(*size).to(dtype) for _ in range(2)))


@promises("new-cache")
@exercise("attend_cached")
def test_attend_from_nothing(student, reference, draw):
    """Without a cache the result is that of the attention, and the cache holds all heads."""
    both = Attentions(student, reference, draw)
    for batch, length in [(1, 1), (2, 4)]:
        x = draw.normal(batch, length, 6).double()
        same_attended(both, x, None, sizes(B=batch, T=length, D=6, H=2) + " without a cache")
        attended_in_steps(both, x, [length], "one step without a cache")


@promises("equals-the-whole")
@exercise("attend_cached", 2)
def test_attend_one_by_one(student, reference, draw):
    """Position by position the results are those of the attention on the whole."""
    both = Attentions(student, reference, draw, heads=3)
    attended_in_steps(both, draw.normal(2, 5, 6).double(), [1] * 5, "five steps of one position")


@promises("equals-the-whole", "several-new")
@exercise("attend_cached", 2)
def test_attend_in_pieces(student, reference, draw):
    """So they are in pieces of any length: the new positions see each other causally too."""
    both = Attentions(student, reference, draw)
    for lengths in ([2, 3], [3, 1, 4], [1, 5, 2]):
        x = draw.normal(2, sum(lengths), 6).double()
        attended_in_steps(both, x, lengths, f"steps of {lengths} positions")


@promises("cache-unchanged", "new-cache")
@exercise("attend_cached")
def test_attend_past(student, reference, draw):
    """New keys and values come behind the old ones, which stay as they are."""
    both = Attentions(student, reference, draw, width=8, heads=2)
    for batch, length, positions in [(1, 1, 3), (3, 2, 4)]:
        x, past = draw.normal(batch, length, 8).double(), random_past(draw, batch, 2, positions, 8)
        case = sizes(B=batch, T=length, P=positions, D=8, H=2)
        _, cache = same_attended(both, x, past, case)
        for words in ("keys", "values"):
            got, part = getattr(cache, words)[:, :, :positions], getattr(past, words)
            expectations.close(got, part, what=f"the old part of the {words}", case=case)


@aspect
@hidden
@promises("no-dropout")
@exercise("attend_cached")
def test_attend_without_dropout(student, reference, draw):
    """Dropout is left out, whatever the mode."""
    both = Attentions(student, reference, draw, dropout=0.6)
    x, past = draw.normal(2, 2, 6).double(), random_past(draw, 2, 2, 3, 6)
    quiet, _ = same_attended(both, x, past, "evaluation mode, dropout=0.6")
    got, _ = expectations.pair(student.attend_cached(both.mine.train(), x, past))
    expectations.close(got, quiet, what="the output", case="training mode, dropout=0.6")


@aspect
@hidden
@exercise("attend_cached")
def test_attend_float32(student, reference, draw):
    """float32 stays float32; a long cache, one head, strided input."""
    both = Attentions(student, reference, draw, width=4, heads=1, dtype=torch.float32)
    x = draw.normal(2, 4, 3).mT
    past = random_past(draw, 2, 1, 20, 4, torch.float32)
    value, cache = same_attended(both, x, past, "float32, P=20, T=3, one head")
    for part in (value, cache.keys, cache.values):
        expectations.true(
            part.dtype == torch.float32, f"the results should be float32, not {part.dtype}."
        )
    same_attended(both, x, random_past(draw, 2, 1, 1030, 4, torch.float32), "float32, P=1030, T=3")


@hidden
@exercise("attend_cached")
def test_attend_far(student, reference, draw):
    """What lies ahead is hidden however low the visible scores are; as many rows as positions."""
    both = Attentions(student, reference, draw)
    for length, positions in [(2, 0), (2, 2), (1, 1), (2, 1)]:
        x = 3000 * draw.normal(2, length, 6).double()
        past = None
        if positions:
            old = random_past(draw, 2, 2, positions, 6)
            past = LayerCache(3000 * old.keys, old.values)
        case = sizes(B=2, T=length, P=positions) + ", scores of the order of a million"
        same_attended(both, x, past, case)


# --------------------------------------------------------------------------------------------
# cached_forward
# --------------------------------------------------------------------------------------------


class Cached:
    """The student's GPT and the reference's, with the same parameters; see `Attentions`."""

    def __init__(self, student, reference, draw, dtype=torch.float64, sharp=1.0, **more):
        self.student, self.reference = student, reference
        self.options = gpt_options(**more)
        state = {name: value.to(dtype) for name, value in gpt_state(draw, self.options).items()}
        for name in state:
            if name.endswith("qkv.weight"):
                state[name] = sharp * state[name]
        self.state = fitting(student, "GPT", self.options, state)
        self.mine = student.module("GPT", state=self.state, dtype=dtype, **self.options)
        self.theirs = reference.module("GPT", state=state, dtype=dtype, **self.options)
        ids = draw.integers(0, self.options["vocab_size"], 2, 4)
        want = self.theirs(ids)
        own = self.whole(ids)
        self.right = own is not None and expectations.close_enough(own, want)
        self.dtype = dtype

    def ids(self, draw, rows, length):
        return draw.integers(0, self.options["vocab_size"], rows, length)

    def past(self, draw, rows, positions):
        """A cache of random numbers, one layer for each block."""
        heads, width = self.options["num_heads"], self.options["d_model"]
        count = self.options["num_layers"]
        layers = [
            random_past(draw, rows, heads, positions, width, self.dtype) for _ in range(count)
        ]
        return KVCache(layers)

    def whole(self, ids):
        """What the student's own GPT says without a cache."""
        return by_parts(self.student, lambda parts: alive(parts.aside(self.mine)(ids)))

    def parts_of(self, got, ids, past, positions, case):
        """The logits and the caches, in the right shapes."""
        rows = len(ids)
        logits, cache = expectations.pair(got, what="the result (logits, cache)")
        count, heads = self.options["num_layers"], self.options["num_heads"]
        of_type(cache, KVCache, "the new cache", case)
        caches = cache.layers
        expectations.true(
            isinstance(caches, (list, tuple)) and len(caches) == count,
            f"the layers of the cache should be a list of {count}, one for each block, for {case}.",
        )
        shape = (rows, heads, positions, self.options["d_model"] // heads)
        try:
            for number, layer in enumerate(caches):
                for words, part in zip(("keys", "values"), cached_pair(layer, case), strict=True):
                    expectations.shape(
                        part, shape, what=f"the {words} of block {number}", case=case
                    )
        except Mistake:
            if not _own_caches(self, ids, past, caches):
                raise
        return logits, cache

    def close(self, logits, want, ids, past, case):
        """The logits are `want`, or what they are by the student's own attend_cached."""
        try:
            expectations.close(logits, want, what="the logits", case=case)
        except Mistake:
            for whole in (True, False):
                own = by_parts(
                    self.student,
                    lambda parts, whole=whole: self.by_parts(parts, ids, past, whole),
                )
                if own is not None and same_values(logits, own[0]):
                    return
            raise

    def by_parts(self, parts, ids, past, whole=True):
        """The network put together from the student's attend_cached and FeedForward.

        Without `whole` its two layers are applied as they should be, with the student's gelu.
        """
        options, state = self.options, self.state
        before = 0 if past is None else past.past
        x = state["token.weight"][ids] + state["position.weight"][before : before + ids.shape[1]]
        caches = []

        def norm(x, name):
            given = (state[f"{name}.weight"], state[f"{name}.bias"])
            return torch.nn.functional.layer_norm(x, x.shape[-1:], *given)

        for number in range(options["num_layers"]):
            block = f"blocks.{number}."
            attention = parts.proxy.module(
                "CausalSelfAttention",
                state=within(state, f"{block}attention."),
                dtype=self.dtype,
                d_model=options["d_model"],
                num_heads=options["num_heads"],
            )
            inner = within(state, f"{block}feed_forward.")
            forward = functools.partial(own_layers, parts, inner)
            if whole:
                forward = parts.make(
                    "FeedForward", state=inner, dtype=self.dtype, d_model=options["d_model"]
                )
            old = None if past is None else past.layers[number]
            inside = norm(x, f"{block}norm_1") if options.get("norm_first", True) else x
            value, cache = parts.proxy.attend_cached(attention, inside, old)
            caches.append(cache)
            x = x + alive(value)
            if options.get("norm_first", True):
                x = x + forward(norm(x, f"{block}norm_2"))
            else:
                x = norm(x, f"{block}norm_1")
                x = norm(x + forward(x), f"{block}norm_2")
        if options.get("norm_first", True):
            x = norm(x, "final_norm")
        return x @ state["token.weight"].T, caches


def own_layers(parts, state, x):
    """Two linear layers with the student's gelu between them."""
    inside = parts.proxy.gelu(x @ state["w_1.weight"].T + state["w_1.bias"])
    return inside @ state["w_2.weight"].T + state["w_2.bias"]


def same_forward(both, ids, past, case):
    """One call is the reference's, logits and caches; `cache` stays as it is."""
    want, want_cache = both.reference.cached_forward(both.theirs, ids, past)
    seen = both.student.observe("cached_forward", both.mine, ids, past, grad=False)
    positions = ids.shape[1] + (0 if past is None else past.past)
    logits, cache = both.parts_of(seen.value, ids, past, positions, case)
    caches = cache.layers
    if not _writes(both, past):
        expectations.unchanged(seen)
    expectations.shape(logits, want.shape, what="the logits", case=case)
    if past is not None:
        for number, (layer, old) in enumerate(zip(caches, past.layers, strict=True)):
            for words in ("keys", "values"):
                what = f"the old part of the {words} of block {number}"
                part = getattr(old, words)
                got = getattr(layer, words)[:, :, : part.shape[2]]
                if not expectations.close_enough(got, part) and not _own_caches(
                    both, ids, past, caches
                ):
                    expectations.close(got, part, what=what, case=case)
    if not both.right:
        return logits
    try:
        for number, (layer, right) in enumerate(zip(caches, want_cache.layers, strict=True)):
            for words in ("keys", "values"):
                got, part = getattr(layer, words), getattr(right, words)
                expectations.close(got, part, what=f"the {words} of block {number}", case=case)
    except Mistake:
        if not _own_caches(both, ids, past, caches):
            raise
    both.close(logits, want, ids, past, case)
    return logits


def _writes(both, past):
    """Whether it is the student's own attend_cached that changes a cache."""
    if past is None:
        return False
    width, heads = both.options["d_model"], both.options["num_heads"]
    inner = within(both.state, "blocks.0.attention.")

    def own(parts):
        given = {"state": inner, "dtype": both.dtype, "d_model": width, "num_heads": heads}
        attention = parts.proxy.module("CausalSelfAttention", **given)
        first = past.layers[0]
        x = torch.ones(len(first.keys), 1, width, dtype=both.dtype)
        return parts.proxy.observe("attend_cached", attention, x, first, grad=False).mutated

    return bool(by_parts(both.student, own))


def _own_caches(both, ids, past, caches):
    """Whether the caches are those that the student's own attend_cached makes."""
    own = by_parts(both.student, lambda parts: both.by_parts(parts, ids, past))
    return own is not None and all(
        isinstance(layer, LayerCache)
        and isinstance(made, LayerCache)
        and all(
            getattr(layer, words).dtype == getattr(made, words).dtype
            and expectations.close_enough(getattr(layer, words), getattr(made, words))
            for words in ("keys", "values")
        )
        for layer, made in zip(caches, own[1], strict=True)
    )


def forward_in_steps(both, ids, lengths, case):
    """Steps of the given lengths say what the model says of the whole."""
    whole, wanted = both.whole(ids), both.theirs(ids)
    past, before = None, 0
    for length in lengths:
        step = ids[:, before : before + length]
        words = f"{case}, positions {before} to {before + length - 1}"
        got = both.student.cached_forward(both.mine, step, past)
        logits, cache = both.parts_of(got, step, past, before + length, words)
        want = wanted if both.right or whole is None else whole
        both.close(logits, want[:, before : before + length], step, past, words)
        past, before = cache, before + length


@promises("new-cache")
@exercise("cached_forward")
def test_cached_from_nothing(student, reference, draw):
    """Without a cache the logits are the model's, and every block has a cache."""
    for norm_first in (True, False):
        both = Cached(student, reference, draw, norm_first=norm_first)
        case = f"{'pre' if norm_first else 'post'}-norm, B=2, T=4, without a cache"
        ids = both.ids(draw, 2, 4)
        same_forward(both, ids, None, case)
        forward_in_steps(both, ids, [4], case)


@promises("equals-the-whole", "positions-go-on", "both-orders")
@exercise("cached_forward", 2)
def test_cached_one_by_one(student, reference, draw):
    """With pre-norm, token by token the logits are those of the model on the whole."""
    both = Cached(student, reference, draw, heads=3)
    forward_in_steps(both, both.ids(draw, 2, 5), [1] * 5, "pre-norm, five steps of one token")


@promises("both-orders")
@exercise("cached_forward", 2)
def test_cached_post_norm(student, reference, draw):
    """With post-norm too: the norms stand after the sums."""
    both = Cached(student, reference, draw, norm_first=False, heads=3)
    forward_in_steps(both, both.ids(draw, 2, 6), [2, 1, 3], "post-norm, steps of 2, 1, 3 tokens")


@promises("too-long")
@exercise("cached_forward")
def test_cached_bounds(student, reference, draw):
    """Cached and new positions together may fill max_length; more are refused by ValueError."""
    both = Cached(student, reference, draw, context=5)
    refuses(
        lambda ids, past: student.cached_forward(both.mine, ids, past),
        {
            "6 tokens where max_length is 5": (both.ids(draw, 1, 6), None),
            "4 cached positions and 2 tokens where max_length is 5": (
                both.ids(draw, 2, 2),
                both.past(draw, 2, 4),
            ),
        },
    )
    forward_in_steps(both, both.ids(draw, 2, 5), [3, 2], "max_length=5, steps of 3 and 2 tokens")


@hidden
@promises("cache-unchanged", "new-cache")
@exercise("cached_forward", 2)
def test_cached_past(student, reference, draw):
    """Every block uses and prolongs its own cache, which stays as it was given."""
    for norm_first, layers in [(True, 3), (False, 2)]:
        both = Cached(student, reference, draw, norm_first=norm_first, layers=layers)
        case = f"{'pre' if norm_first else 'post'}-norm, {layers} blocks, P=3, T=2"
        same_forward(both, both.ids(draw, 2, 2), both.past(draw, 2, 3), case)


@hidden
@promises("no-dropout")
@exercise("cached_forward")
def test_cached_without_dropout(student, reference, draw):
    """Dropout is left out, whatever the mode; a model in float32 gives float32."""
    for norm_first in (True, False):
        both = Cached(
            student, reference, draw, dtype=torch.float32, dropout=0.5, norm_first=norm_first
        )
        ids, past = both.ids(draw, 2, 2), both.past(draw, 2, 3)
        words = f"{'pre' if norm_first else 'post'}-norm, dropout=0.5"
        quiet = same_forward(both, ids, past, f"{words}, evaluation mode, float32")
        expectations.true(
            quiet.dtype == torch.float32, f"the logits should be float32, but are {quiet.dtype}."
        )
        got, _ = expectations.pair(student.cached_forward(both.mine.train(), ids, past))
        expectations.close(got, quiet, what="the logits", case=f"{words}, training mode")


@hidden
@exercise("cached_forward")
def test_cached_far(student, reference, draw):
    """What lies ahead is hidden however low the visible scores are; long caches; PAD counts."""
    for norm_first in (True, False):
        both = Cached(student, reference, draw, sharp=600.0, norm_first=norm_first)
        case = f"{'pre' if norm_first else 'post'}-norm, scores of the order of a million"
        ids = both.ids(draw, 4, 6)
        ids[:, 2] = 0
        forward_in_steps(both, ids, [4, 2], case)
    both = Cached(student, reference, draw, context=1040, layers=1)
    same_forward(both, both.ids(draw, 1, 2), both.past(draw, 1, 1030), "P=1030, T=2")
