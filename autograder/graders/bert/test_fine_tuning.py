"""Graders of `bert-fine_tuning`: classifying, finding spans, tagging."""

from __future__ import annotations

import itertools
import math

import torch

from autograder.graders.bert.common import (
    IGNORE,
    PAD,
    SPECIAL,
    arriving_gradients,
    at_real_places,
    bert_options,
    bert_state,
    inputs,
    lstm_state,
    parameters_of,
    real,
    strided,
)
from autograder.graders.common import (
    EACH_ENTRY,
    State,
    dropped,
    linear,
    pair,
    refuses,
    same_gradients,
    same_parameters,
    within,
)
from autograder.graders.parts import by_parts, flows, same_by_parts
from autograder.judging import expectations
from autograder.judging.grader_marks import Mistake, aspect, exercise, hidden, promises

# --------------------------------------------------------------------------------------------
# SequenceClassifier, SpanFinder, Tagger: what they share
# --------------------------------------------------------------------------------------------


def task_pair(student, reference, draw, name, outputs, dtype=None, named=True, **more):
    """A model for a task on a small BERT, the student's on the student's, and its state.

    `more` goes to the task's model, but for the sizes of the BERT.
    """
    sizes_of = {key: more.pop(key) for key in ("width", "length") if key in more}
    options = bert_options(**sizes_of)
    state = bert_state(draw, options, "bert.")
    state |= linear(draw, "classifier", outputs, options["d_model"])
    if named:
        more["num_labels"] = outputs
    made = []
    for proxy in (student, reference):
        bert = proxy.module("BertModel", **options)
        given = {key: value.to(dtype) for key, value in state.items()} if dtype else state
        made.append(proxy.module(name, bert=bert, state=given, dtype=dtype, **more))
    return state, *made


def task_parameters(student, name, outputs, **more):
    """The task's model has the parameters of its BERT and a classifier, and no others."""
    bert = student.module("BertModel", **bert_options())
    mine = student.module(name, bert=bert, **more)
    own = {key: tuple(shape) for key, shape in bert.parameters().items()}
    expected = {f"bert.{key}": shape for key, shape in own.items()}
    same_parameters(
        mine, {**expected, "classifier.weight": (outputs, 6), "classifier.bias": (outputs,)}
    )


def same_encoder(student, draw, name, outputs, **more):
    """The encoder inside is the one that was given, with its weights, not a copy of it."""
    options = bert_options()
    state = bert_state(draw, options, "bert.") | linear(draw, "classifier", outputs, 6)
    given, keys = within(state, "bert."), ("embeddings.token.weight", "pooler.weight")
    bert = student.module("BertModel", state=given, **options)
    student.module(name, bert=bert, **more)
    before = bert.state()
    state = {key: value + 1.0 for key, value in state.items()}
    student.module(name, bert=bert, state=state, **more)
    after = bert.state()
    for key in keys:
        expectations.shape(before.get(key), given[key].shape, what=key)
        expectations.true(
            torch.equal(before[key], given[key]),
            f"Your {name} changes {key} of the BERT that was given when it is created; what was "
            "learned in pre-training is lost.",
        )
    for key in keys:
        expectations.shape(after.get(key), given[key].shape, what=key)
        expectations.true(
            torch.equal(after[key], state[f"bert.{key}"]),
            f"Other weights loaded into your {name} do not reach {key} of the BERT that was given; "
            "keep that very model, not a copy.",
        )


def zeros_among(draw, batch=2, length=4):
    """Ids of 0 that are real: without a mask, and with one."""
    ids, segments, mask = inputs(draw, [length] * batch)
    ids[0, 2] = ids[-1, 1] = PAD
    return {
        "ids of 0 among them and no mask: all are real": (ids,),
        "ids of 0 where the mask is True": (ids, segments, mask),
        "a mask and no segment ids": (ids, None, mask),
    }


def cross_entropy_case(draw, *shape):
    """Scores and labels for a loss; every label occurs where there is room for all."""
    *rows, classes = shape
    order = draw.permutation(math.prod(rows)).reshape(rows)
    labels = (order + draw.integers(0, classes)) % classes
    return draw.normal(*shape, scale=2).double(), labels


def same_loss(mine, theirs, given, case):
    """The loss is the reference's, with its gradient; a scalar, and no input is changed."""
    seen, wanted = (handle.observe_method("loss", *given) for handle in (mine, theirs))
    expectations.close(seen.value, wanted.value, what="the loss", case=case)
    for label, words in [("0", "the first argument"), ("1", "the second argument")]:
        want = wanted.grads.get(label)
        if want is not None and bool(want.abs().max() > 0):
            got = seen.grads.get(label)
            expectations.true(got is not None, f"No gradient of the loss reaches {words}.")
            expectations.close(got, want, what=f"the gradient of {words}", case=case)
        elif seen.grads.get(label) is not None:
            expectations.finite(seen.grads[label], what=f"the gradient of {words}", case=case)
    expectations.unchanged(seen, "your loss")


# --------------------------------------------------------------------------------------------
# SequenceClassifier
# --------------------------------------------------------------------------------------------


def classify_by_parts(parts, mine, *given):
    return parts.of(mine, "classifier")(parts.of(mine, "bert")(*given)[1])


@promises("scores")
@exercise("SequenceClassifier", 2)
def test_classifier_values(student, reference, draw):
    """Scores are a linear function of the pooled vector; segments and mask reach the BERT."""
    _, mine, theirs = task_pair(student, reference, draw, "SequenceClassifier", 3)
    ids, segments, mask = inputs(draw, [4, 2])
    for words, given in {
        "one sentence without padding": (ids[:1],),
        "a pair with segment ids": (ids[:1], segments[:1]),
        "B=2, lengths 4 and 2": (ids, segments, mask),
        **zeros_among(draw),
    }.items():
        same_by_parts(
            student,
            mine(*given),
            theirs(*given),
            lambda parts, given=given: classify_by_parts(parts, mine, *given),
            "the scores",
            case=f"{words}, L=3, in eval mode",
        )


@promises("loss")
@exercise("SequenceClassifier")
def test_classifier_loss(student, reference, draw):
    """The loss is the mean cross-entropy."""
    _, mine, theirs = task_pair(student, reference, draw, "SequenceClassifier", 3)
    for batch in (1, 4):
        given = cross_entropy_case(draw, batch, 3)
        same_loss(mine, theirs, given, f"labels {given[1].tolist()}")
    scores, targets = cross_entropy_case(draw, 3, 3)
    same_loss(mine, theirs, (1e6 * scores, targets), "scores in the millions")


@promises("classifier")
@exercise("SequenceClassifier")
def test_classifier_parameters(student):
    """A BERT, and a classifier with as many outputs as there are labels."""
    task_parameters(student, "SequenceClassifier", 4, num_labels=4)


@hidden
@promises("the-very-bert")
@exercise("SequenceClassifier")
def test_classifier_shares_bert(student, draw):
    """The encoder is the very one that is given: loading weights into the whole changes it."""
    same_encoder(student, draw, "SequenceClassifier", 3, num_labels=3)


@hidden
@promises("scores")
@exercise("SequenceClassifier")
def test_classifier_dropout(student, reference, draw):
    """In train mode dropout acts on the pooled vector, with 0.1 unless told otherwise."""
    for p in (0.5, 0.1):
        more = {} if p == 0.1 else {"dropout": p}
        task_dropout(student, draw, "SequenceClassifier", (40,), 1, p, **more)


def task_dropout(student, draw, name, shape, position, p, **more):
    """dropout in front of the classifier: with a classifier that passes on what it gets."""
    options = bert_options(width=16)
    state = bert_state(draw, options, "bert.")
    state["classifier.weight"], state["classifier.bias"] = torch.eye(16), torch.ones(16)
    bert = student.module("BertModel", **options)
    mine = student.module(name, bert=bert, num_labels=16, state=state, **more)
    ids = draw.integers(SPECIAL, 9, *(shape if len(shape) == 2 else (*shape, 3)))
    kept = expectations.items(mine.method("bert", ids), 2, what="the result of bert")[position]
    what = ("the hidden states", "the pooled vector")[position]
    kept = expectations.tensor(kept, what=what)
    expectations.close(mine(ids), kept + 1, what="the scores", case="eval mode")
    value = expectations.tensor(mine.train()(ids), what="the scores")
    axes = EACH_ENTRY if position == 0 else EACH_ENTRY[::2]
    dropped(value - 1, kept, p, what, axes=axes)


@hidden
@promises("dtype-kept")
@exercise("SequenceClassifier")
def test_classifier_gradients(student, reference, draw):
    """Fine-tuning trains all of it: gradients reach every parameter, in float64."""
    _, mine, theirs = task_pair(student, reference, draw, "SequenceClassifier", 2, torch.float64)
    given = inputs(draw, [3, 5])
    flows(
        student,
        mine,
        theirs,
        given,
        lambda parts: classify_by_parts(parts, mine, *given),
        "the scores",
        "lengths 3 and 5, float64",
    )


# --------------------------------------------------------------------------------------------
# SpanFinder
# --------------------------------------------------------------------------------------------

ENDS = ("start scores", "end scores")


def spans_by_parts(parts, mine, *given):
    scores = parts.of(mine, "classifier")(parts.of(mine, "bert")(*given)[0])
    if len(given) > 2:
        least = torch.finfo(scores.dtype).min
        scores = scores.masked_fill(~given[2].unsqueeze(-1), least)
    return scores[..., 0], scores[..., 1]


def same_spans(student, got, want, mask, own, case):
    """Scores at real tokens are the reference's, those at padding the smallest number there is.

    They are compared apart: beside that number every score is small.
    """
    expectations.items(got, 2, what=f"the result ({', '.join(ENDS)})")
    for name, actual, expected in zip(ENDS, got, want, strict=True):
        expectations.shape(actual, expected.shape, what=f"the {name}", case=case)
        expectations.true(
            actual.dtype == expected.dtype and bool((actual[~mask] == expected[~mask]).all()),
            f"the {name} at padded positions should be {expected[~mask][0]:.4g}, the smallest "
            f"number of their dtype, but are {actual[~mask].tolist()[:4]} for {case}.",
        )
    same_by_parts(
        student,
        tuple(each[mask] for each in got),
        tuple(each[mask] for each in want),
        lambda parts: tuple(each[mask] for each in own(parts)),
        ENDS,
        case=case,
    )


@promises("start-and-end")
@exercise("SpanFinder", 2)
def test_spans_values(student, reference, draw):
    """Every position gets a score as the start and one as the end."""
    _, mine, theirs = task_pair(student, reference, draw, "SpanFinder", 2, named=False)
    ids, segments, _ = inputs(draw, [5, 5])
    for words, given in {
        "one sentence": (ids[:1],),
        "B=2, T=5 with segment ids": (ids, segments),
        "ids of 0 among them": zeros_among(draw)["ids of 0 among them and no mask: all are real"],
    }.items():
        same_by_parts(
            student,
            mine(*given),
            theirs(*given),
            lambda parts, given=given: spans_by_parts(parts, mine, *given),
            ENDS,
            case=f"{words}, no mask",
        )


@promises("padding")
@exercise("SpanFinder")
def test_spans_padding(student, reference, draw):
    """With a mask, padded positions get the smallest finite number, and nothing leaks from them."""
    for dtype in (torch.float32, torch.float64):
        _, mine, theirs = task_pair(
            student, reference, draw, "SpanFinder", 2, dtype=dtype, named=False
        )
        ids, segments, mask = inputs(draw, [2, 4, 3])
        ids[1, 2] = PAD  # where the mask is True
        given = ids, segments if dtype == torch.float32 else None, mask
        # With gradients, by which a mask that does not reach the BERT is known from others.
        seen, wanted = mine.observe(*given), theirs.observe(*given)
        same_spans(
            student,
            seen.value,
            wanted.value,
            given[2],
            lambda parts, given=given, mine=mine: spans_by_parts(parts, mine, *given),
            f"lengths 2, 4 and 3, {str(dtype).removeprefix('torch.')}",
        )
        expectations.unchanged(seen)


def span_scores(draw, batch, length, padded=0):
    """Scores of starts and ends, in float64, the smallest number at padding."""
    scores = draw.normal(2, batch, length, scale=2).double()
    if padded:
        scores[:, 0, -padded:] = torch.finfo(torch.float64).min
    return scores[0], scores[1]


@promises("loss")
@exercise("SpanFinder", 2)
def test_spans_loss(student, reference, draw):
    """Half the sum of two cross-entropies over positions, each a mean over the batch."""
    _, mine, theirs = task_pair(student, reference, draw, "SpanFinder", 2, named=False)
    for batch, length in [(1, 3), (4, 6)]:
        starts = draw.integers(0, length - 1, batch)
        ends = starts + 1
        given = (*span_scores(draw, batch, length, padded=0), starts, ends)
        case = f"T={length}, starts {starts.tolist()}, ends {ends.tolist()}"
        same_loss(mine, theirs, given, case)


@hidden
@promises("cut-off")
@exercise("SpanFinder", 2)
def test_spans_cut_off(student, reference, draw):
    """Targets beyond the input are left out of the mean; none left is a loss of 0."""
    _, mine, theirs = task_pair(student, reference, draw, "SpanFinder", 2, named=False)
    for starts, ends in [
        ([2, 4, 1], [3, 5, 2]),
        ([0, 2, 3], [1, 4, 90]),
        ([3, IGNORE, 0], [-1, 2, 0]),
        ([4, 5, -1], [1, 2, 3]),
        ([4, 7, -1], [6, 4, 4]),
    ]:
        scores = (each.float() for each in span_scores(draw, 3, 4))
        given = (*scores, torch.tensor(starts), torch.tensor(ends))
        same_loss(mine, theirs, given, f"T=4, starts {starts}, ends {ends}")
    given = (*span_scores(draw, 2, 5, padded=2), torch.tensor([1, 4]), torch.tensor([2, 4]))
    same_loss(mine, theirs, given, "two padded positions in the first row")
    start, end = span_scores(draw, 2, 5)
    outside = torch.tensor([7, -1])
    case = "T=5, float64, no right position inside"
    same_loss(mine, theirs, (start, end, outside, outside), case)
    given = (1e6 * start, 1e6 * end, torch.tensor([1, 4]), torch.tensor([2, 4]))
    same_loss(mine, theirs, given, "scores in the millions")


@hidden
@promises("the-very-bert")
@exercise("SpanFinder")
def test_spans_shares_bert(student, draw):
    """The encoder is the very one that is given: loading weights into the whole changes it."""
    same_encoder(student, draw, "SpanFinder", 2)


@hidden
@exercise("SpanFinder")
def test_spans_gradients(student, reference, draw):
    """Gradients reach every parameter that has a part in it, in float64; nothing is dropped."""
    state, mine, theirs = task_pair(
        student, reference, draw, "SpanFinder", 2, torch.float64, named=False
    )
    given = inputs(draw, [4, 4])[:2]
    flows(
        student,
        mine.train(),
        theirs,
        given,
        lambda parts: spans_by_parts(parts, mine, *given),
        ENDS,
        "T=4, float64, in train mode on a BERT without dropout",
    )
    same_names = {name: tuple(value.shape) for name, value in state.items()}
    same_parameters(mine, same_names)


# --------------------------------------------------------------------------------------------
# best_span
# --------------------------------------------------------------------------------------------


def same_span(student, reference, given, case, **more):
    got = expectations.items(student.best_span(*given, **more), 2, what="the span (i, j)")
    want = reference.best_span(*given, **more)
    for value in got:
        expectations.true(
            isinstance(value, int) and not isinstance(value, bool),
            f"the span should be two ints, but has a {expectations.type_name(value)} for {case}"
            + ("; .item() makes an int." if isinstance(value, torch.Tensor) else "."),
        )
    case += "".join(f", {key}={value:.4g}" for key, value in more.items())
    expectations.true(
        tuple(got) == tuple(want), f"the span should be {want}, but is {tuple(got)} for {case}."
    )


def question(draw, length, before, after=1, scale=2.0):
    """Scores of starts and ends, and a passage that begins at `before`; [SEP] behind it."""
    passage = torch.zeros(length, dtype=torch.bool)
    passage[before : length - after] = True
    start, end = draw.normal(2, length, scale=scale).unbind()
    return start, end, passage


@promises("best-pair")
@exercise("best_span", 2)
def test_best_span_small(student, reference):
    """The best sum of a start and an end that is not before it."""
    for start, end in [
        ([0.0, 0.0, 3.0], [0.0, 0.0, 1.0]),
        ([0.0, 1.0, 2.0, 4.0], [0.0, 5.0, 3.0, 1.0]),
        ([0.0, 3.0, 1.0, 2.0], [0.0, -1.0, 0.5, 2.0]),
        ([0.0, -3.0, -1.0, -2.0], [0.0, -4.0, -5.0, -2.5]),
        ([-9.0, 1.0, 5.0, 4.5, 0.0], [-9.0, 4.0, -9.0, 0.0, 0.2]),
    ]:
        passage = torch.tensor([False] + [True] * (len(start) - 1))
        case = f"start {start}, end {end}, where all but the first belong to the passage"
        same_span(student, reference, (torch.tensor(start), torch.tensor(end), passage), case)
    one = torch.tensor([2.0])
    same_span(student, reference, (one, one, torch.tensor([True])), "one position")


@promises("in-the-passage")
@exercise("best_span", 2)
def test_best_span_passage(student, reference, draw):
    """Both ends lie in the passage, however high the scores are elsewhere."""
    for length, before, after in [(5, 2, 1), (9, 4, 2), (12, 3, 5)]:
        for _ in range(4):
            start, end, passage = question(draw, length, before, after)
            start[~passage] += 3.0
            end[~passage] += 3.0
            case = f"T={length}, passage from {before} to {length - after - 1}"
            same_span(student, reference, (start, end, passage), case)
    for below in (9e3, 1e6):
        start, end, passage = question(draw, 7, 2)
        start, end = start.double() - below, end.double() - below
        case = f"scores of about {-below:g} in float64, T=7, passage from 2 to 5"
        same_span(student, reference, (start, end, passage), case, max_answer=2)
    least = torch.finfo(torch.float32).min
    start, end, passage = question(draw, 8, 3, 2)
    start[6:], end[6:] = least, least
    same_span(student, reference, (start, end, passage), "T=8, the last two positions padding")


@promises("best-pair")
@exercise("best_span")
def test_best_span_limit(student, reference, draw):
    """An answer has at most max_answer tokens."""
    start, end = torch.zeros(2, 12).unbind()
    start[2], start[6], end[3], end[10] = 5.0, 4.0, 3.0, 6.0
    passage = torch.arange(12) > 1
    same_span(student, reference, (start, end, passage), "T=12", max_answer=2)
    for limit in (1, 2, 3, 5):
        for _ in range(4):
            given = question(draw, 12, 3)
            same_span(student, reference, given, "T=12", max_answer=limit)
    start, end = torch.zeros(2, 50).unbind()
    start[1], end[41], end[20] = 5.0, 5.0, 3.0
    passage = torch.arange(50) > 0
    for limit in (40, 41, 50, 1000):
        case = "T=50, the best end 40 positions after the best start"
        same_span(student, reference, (start, end, passage), case, max_answer=limit)


@promises("bad-input")
@exercise("best_span")
def test_best_span_refusals(student, reference, draw):
    """A passage without tokens and a max_answer below 1 are refused with a ValueError."""
    start, end, passage = question(draw, 5, 2)
    refuses(
        lambda *given: student.best_span(*given),
        {
            "a passage without any True": (start, end, torch.zeros(5, dtype=torch.bool)),
            "max_answer=0": (start, end, passage, 0),
        },
    )
    same_span(student, reference, (start, end, passage), "T=5", max_answer=1)


@hidden
@promises("no-answer")
@exercise("best_span", 2)
def test_best_span_null(student, reference, draw):
    """No answer is (0, 0): if the score of [CLS] beats the best span by more than the threshold."""
    for threshold in (1.0, -1.0):
        for above, alone in [(-6, -40), (0.5, 40), (-6, 40), (-1.5, -40), (-0.5, 40), (0, -40)]:
            same_null(student, reference, draw, threshold, above, alone)


@hidden
@promises("no-answer")
@exercise("best_span")
def test_best_span_null_at_zero(student, reference, draw):
    """A threshold of 0 is one; without a threshold there always is an answer."""
    # Answers may begin at position 0, too, if the passage says so.
    start, end = torch.tensor([5.0, 0.0, 0.0]), torch.tensor([0.0, 5.0, 0.0])
    case = f"start {start.tolist()}, end {end.tolist()}, all positions in the passage"
    every = start, end, torch.ones(3, dtype=torch.bool)
    same_span(student, reference, every, case, null_threshold=-20.0)
    for above, alone in [(0.5, 40), (-0.5, 40), (0, -40)]:
        given = same_null(student, reference, draw, 0.0, above, alone)
        same_span(student, reference, given, f"a [CLS] that is {above:g} better")
    for threshold in (10.0, 0.0):
        same_span(student, reference, every, case, null_threshold=threshold)


def same_null(student, reference, draw, threshold, above, alone):
    """[CLS] is better than the best span by the threshold and as much as `above`.

    Its start alone scores as much as `alone`: each case is right for some who get others wrong.
    """
    # Integers and halves: sums and differences are exact.
    start, end = draw.integers(-8, 9, 2, 7).float().unbind()
    passage = torch.tensor([False, False, True, True, True, True, False])
    first, last = reference.best_span(start, end, passage)
    start[0] = alone
    end[0] = start[first] + end[last] + threshold + above - start[0]
    case = f"a [CLS] that is {threshold + above:g} better than the best span"
    same_span(student, reference, (start, end, passage), case, null_threshold=threshold)
    return start, end, passage


@hidden
@promises("ties")
@exercise("best_span", 2)
def test_best_span_ties(student, reference, draw):
    """Of equal spans the first start counts, then the first end; 30 tokens at most by default."""
    for _ in range(8):
        start, end = draw.integers(0, 2, 2, 9).float().unbind()
        passage = draw.mask(9, keep=0.7)
        case = f"start {start.tolist()}, end {end.tolist()}, passage {passage.int().tolist()}"
        same_span(student, reference, (start, end, passage), case, max_answer=4)
    for position in (31, 32, 33):
        start, end, passage = question(draw, 45, 2, scale=0.1)
        start[3], end[position], end[10] = 9.0, 9.0, 3.0
        case = f"the best end {position - 2} tokens on"
        same_span(student, reference, (start, end, passage), case)
    close = torch.tensor([1.0, 1.0, 1.0 + 1e-10], dtype=torch.float64)
    given = close, close, torch.tensor([False, True, True])
    case = "float64 scores that differ by 1e-10"
    same_span(student, reference, given, case, max_answer=1)
    start, end, passage = question(draw, 6, 2)
    seen = student.observe("best_span", start.double(), end.double(), passage, grad=False)
    expectations.items(seen.value, 2, what="the span (i, j)")
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# align_labels, word_tags
# --------------------------------------------------------------------------------------------

WORDS = [None, 0, 1, 1, 2, 3, 3, 3, None]


def same_labels(student, reference, given, words, what="the list of labels", **more):
    case = f"word_ids {words}"
    expectations.equal(
        student.align_labels(given, words), reference.align_labels(given, words), what, case=case
    )


@promises("first-piece")
@exercise("align_labels")
def test_align_whole(student, reference):
    """A word that is one token keeps its label; [CLS] and [SEP] have none."""
    same_labels(student, reference, [3], [0])
    same_labels(student, reference, [2, 5, 0], [None, 0, 1, 2, None])


@promises("first-piece")
@exercise("align_labels", 2)
def test_align_pieces(student, reference):
    """Of a word in pieces the first has the label, the others IGNORE."""
    same_labels(student, reference, [4, 2], [None, 0, 0, 1, None])
    same_labels(student, reference, [1, 7, 0, 2], WORDS)
    same_labels(student, reference, [5, 5, 5], [None, 0, 1, 1, 2, None])


@promises("no-label")
@exercise("align_labels")
def test_align_refusals(student, reference):
    """A word without a label is refused with a ValueError."""
    same_labels(student, reference, [1, 2, 3], [None, 0, 1, 2, None])
    refuses(
        lambda *given: student.align_labels(*given),
        {
            "word 2 with two labels": ([1, 2], [None, 0, 1, 2, None]),
            "word 0 without labels": ([], [None, 0, None]),
            "word -1": ([1, 2], [None, 0, -1, None]),
            "word 7 with two labels, after many others": ([1, 2], [0, 1] + 40 * [1] + [7]),
        },
    )


@hidden
@exercise("align_labels")
def test_align_many(student, reference, draw):
    """Longer inputs, words that were cut off or left out, padding; the lists stay as they are."""
    for _ in range(4):
        counts = draw.integers(1, 4, 7).tolist()
        words = [None] + [word for word, count in enumerate(counts) for _ in range(count)]
        given = draw.integers(0, 4, 9).tolist()
        same_labels(student, reference, given, [*words, None, None])
        same_labels(student, reference, given, words[4:])
    same_labels(student, reference, [1, 2], [None, None])
    same_labels(student, reference, [1, 2], [])
    same_labels(student, reference, [4, IGNORE, 3], [None, 0, 1, 1, 2, 2])
    seen = student.observe("align_labels", [1, 2], [None, 0, 1, 1], grad=False)
    expectations.equal(seen.value, [IGNORE, 1, 2, IGNORE], what="the list of labels")
    expectations.unchanged(seen)


def same_tags(student, reference, scores, words):
    want = reference.word_tags(scores, words)
    got = student.word_tags(scores, words)
    expectations.equal(got, want, what="the list of tags", case=f"word_ids {words}")


@promises("first-token")
@exercise("word_tags")
def test_tags_whole(student, reference, draw):
    """One tag for each word, and none for [CLS] and [SEP]."""
    for _ in range(3):
        same_tags(student, reference, draw.normal(5, 4), [None, 0, 1, 2, None])
    same_tags(student, reference, draw.normal(1, 3), [0])


@promises("first-token")
@exercise("word_tags", 2)
def test_tags_pieces(student, reference, draw):
    """The first token of a word decides."""
    for _ in range(4):
        same_tags(student, reference, draw.normal(9, 5), WORDS)


@aspect
@exercise("word_tags")
def test_tags_same(student, reference, draw):
    """Two words in a row may have one tag."""
    scores = draw.normal(6, 3)
    scores[:, 1] += 9.0
    same_tags(student, reference, scores, [None, 0, 1, 1, 2, None])


@hidden
@exercise("word_tags")
def test_tags_many(student, reference, draw):
    """Longer inputs, more tags than tokens, no words at all; the scores stay as they are."""
    for _ in range(3):
        counts = draw.integers(1, 4, 6).tolist()
        words = [None] + [word for word, count in enumerate(counts) for _ in range(count)] + [None]
        same_tags(student, reference, draw.normal(len(words), 40).double(), words)
        same_tags(student, reference, draw.normal(len(words) - 3, 3), words[3:])
    same_tags(student, reference, draw.normal(2, 3), [None, None])
    same_tags(student, reference, draw.normal(9, 6) - 1e6, WORDS)
    scores, words = draw.normal(6, 9), [None, 3, 1, 1, 0, None]
    same_tags(student, reference, scores, words)
    expectations.true(
        not any(isinstance(tag, torch.Tensor) for tag in student.word_tags(scores, words)),
        "The tags should be ints; .tolist() makes them of a tensor, and .item() of one number.",
    )
    seen = student.observe("word_tags", draw.normal(3, 4).mT.contiguous().mT, [None, 0, 1])
    expectations.true(isinstance(seen.value, list), "the tags should be a list.")
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# Tagger
# --------------------------------------------------------------------------------------------


def tag_by_parts(parts, mine, *given):
    return parts.of(mine, "classifier")(parts.of(mine, "bert")(*given)[0])


@promises("scores")
@exercise("Tagger", 2)
def test_tagger_values(student, reference, draw):
    """Every position gets a score for each label; segments and mask reach the BERT."""
    _, mine, theirs = task_pair(student, reference, draw, "Tagger", 3)
    ids, segments, mask = inputs(draw, [4, 2])
    for words, given in {
        "one sentence without padding": (ids[:1],),
        "one token": (ids[:1, :1],),
        "with segment ids": (ids[:1], segments[:1]),
        "B=2, lengths 4 and 2": (ids, segments, mask),
        **zeros_among(draw),
    }.items():
        same_by_parts(
            student,
            mine(*given),
            theirs(*given),
            lambda parts, given=given: tag_by_parts(parts, mine, *given),
            "the scores",
            case=f"{words}, L=3, in eval mode",
        )


@promises("loss")
@exercise("Tagger", 2)
def test_tagger_loss(student, reference, draw):
    """The mean cross-entropy of the tokens with a label; without any it is 0."""
    _, mine, theirs = task_pair(student, reference, draw, "Tagger", 3)
    scores, targets = cross_entropy_case(draw, 2, 4, 3)
    ignored = targets.clone()
    ignored[0, 0] = ignored[1, 2:] = IGNORE
    for given in (targets[:1, :1], targets, ignored):
        case = f"labels {given.tolist()}"
        same_loss(mine, theirs, (scores[: len(given), : given.shape[1]], given), case)
    none = torch.full_like(targets, IGNORE)
    for dtype in (torch.float32, torch.float64):
        case = f"no label but IGNORE, {str(dtype).removeprefix('torch.')}"
        same_loss(mine, theirs, (scores.to(dtype), none), case)
    case = "strided scores in the millions, strided labels"
    same_loss(mine, theirs, strided(1e6 * scores, ignored), case)


@promises("classifier")
@exercise("Tagger")
def test_tagger_parameters(student):
    """A BERT, and a classifier with as many outputs as there are labels."""
    task_parameters(student, "Tagger", 4, num_labels=4)


@hidden
@promises("the-very-bert")
@exercise("Tagger")
def test_tagger_shares_bert(student, draw):
    """The encoder is the very one that is given: loading weights into the whole changes it."""
    same_encoder(student, draw, "Tagger", 3, num_labels=3)


@hidden
@promises("classifier")
@exercise("Tagger")
def test_tagger_dropout(student, reference, draw):
    """In train mode dropout acts on the hidden states, with 0.1 unless told otherwise."""
    for p in (0.5, 0.1):
        more = {} if p == 0.1 else {"dropout": p}
        task_dropout(student, draw, "Tagger", (8, 6), 0, p, **more)


@hidden
@exercise("Tagger")
def test_tagger_gradients(student, reference, draw):
    """Gradients reach every parameter but the pooler's, in float64."""
    _, mine, theirs = task_pair(student, reference, draw, "Tagger", 2, torch.float64)
    given = inputs(draw, [3, 5])
    flows(
        student,
        mine,
        theirs,
        given,
        lambda parts: tag_by_parts(parts, mine, *given),
        "the scores",
        "lengths 3 and 5, float64",
    )


# --------------------------------------------------------------------------------------------
# crf_score
# --------------------------------------------------------------------------------------------


def crf_tables(draw, count, dtype=torch.float32):
    """Transitions (L, L), start (L,) and end (L,) scores."""
    sizes = (count, count), (count,), (count,)
    return tuple(draw.normal(*shape).to(dtype) for shape in sizes)


def crf_case(draw, lengths, count, longest=None, dtype=torch.float32):
    """Emissions, tags and a mask; what stands at padding is large and means nothing."""
    mask = real(lengths, longest)
    emissions = draw.normal(*mask.shape, count).to(dtype)
    emissions = torch.where(mask.unsqueeze(2), emissions, 7.0 + 30.0 * emissions)
    tags = draw.integers(0, count, *mask.shape).masked_fill(~mask, IGNORE)
    return emissions, tags, mask


def same_crf_score(student, reference, given, tables, case):
    arguments = (*given, *tables)
    expectations.close(
        student.crf_score(*arguments),
        reference.crf_score(*arguments),
        what="the scores",
        case=case,
    )


@promises("real-tokens")
@exercise("crf_score")
def test_crf_score_values(student, reference, draw):
    """Start, emissions, transitions and end are added up."""
    for lengths, count in [([1, 1], 2), ([2], 3), ([4, 4, 4], 3), ([2, 2], 1), ([3, 3, 3], 3)]:
        case = f"B={len(lengths)}, T={lengths[0]}, L={count}, no padding"
        given, tables = crf_case(draw, lengths, count), crf_tables(draw, count)
        same_crf_score(student, reference, given, tables, case)
    given = given[0].double() - 1e5, *given[1:]
    tables = tuple(table.double() for table in tables)
    same_crf_score(student, reference, given, tables, "emissions of about -100000, float64")


@promises("row-to-column")
@exercise("crf_score")
def test_crf_score_transitions(student, reference):
    """Transitions are read from row to column, between real tokens only."""
    transitions = torch.tensor([[0.0, 1.0, 2.0], [4.0, 8.0, 16.0], [32.0, 64.0, 128.0]])
    nothing, mask = torch.zeros(3), real([2, 2, 3, 3], 3)
    tags = torch.tensor([[0, 1, 2], [1, 0, 0], [2, 0, 1], [1, 2, 0]])
    case = (
        f"transitions {transitions.tolist()}, tags {tags.tolist()}, rows of 2, 2, 3 and 3 real "
        "tokens, all else 0"
    )
    given = torch.zeros(4, 3, 3), tags, mask
    same_crf_score(student, reference, given, (transitions, nothing, nothing), case)


@promises("padding")
@exercise("crf_score", 2)
def test_crf_score_padding(student, reference, draw):
    """Nothing at padding counts, whatever the tags are there: IGNORE, or any other number."""
    for lengths, longest, filler in [([1, 3], 3, IGNORE), ([2, 4, 1], 5, IGNORE), ([3, 1], 4, 99)]:
        emissions, tags, mask = crf_case(draw, lengths, 3, longest)
        tags = tags.masked_fill(~mask, filler)
        case = f"lengths {lengths} of {longest}, tags at padding {filler}"
        same_crf_score(student, reference, (emissions, tags, mask), crf_tables(draw, 3), case)


@hidden
@exercise("crf_score")
def test_crf_score_gradients(student, reference, draw):
    """Gradients reach emissions and tables; strided float64 inputs are left as they were."""
    given = strided(*crf_case(draw, [3, 1, 4], 3, dtype=torch.float64))
    arguments = (*given, *crf_tables(draw, 3, torch.float64))
    seen = student.observe("crf_score", *arguments)
    wanted = reference.observe("crf_score", *arguments)
    case = "strided float64 inputs, lengths [3, 1, 4]"
    expectations.close(seen.value, wanted.value, what="the scores", case=case)
    names = {"0": "the emissions", "3": "the transitions"}
    names |= {"4": "the start scores", "5": "the end scores"}
    same_gradients(seen, wanted, names, case)
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# crf_partition
# --------------------------------------------------------------------------------------------


def same_partition(student, reference, emissions, mask, tables, case):
    got = student.crf_partition(emissions, mask, *tables)
    want = reference.crf_partition(emissions, mask, *tables)
    expectations.close(got, want, what="the result", case=case)


@promises("log-sum")
@exercise("crf_partition")
def test_crf_partition_values(student, reference, draw):
    """The logarithm of the sum over all tag sequences."""
    for lengths, count in [([1], 2), ([2], 2), ([4, 4], 3), ([3, 3], 1)]:
        emissions, _, mask = crf_case(draw, lengths, count)
        case = f"B={len(lengths)}, T={lengths[0]}, L={count}, no padding"
        same_partition(student, reference, emissions, mask, crf_tables(draw, count), case)


@promises("padding")
@exercise("crf_partition", 2)
def test_crf_partition_padding(student, reference, draw):
    """Each row ends at its own last real token, where its end scores are added."""
    for lengths, longest in [([1, 3], 3), ([2, 4, 1], 6), ([2, 2], 4), ([70, 1], 72)]:
        emissions, _, mask = crf_case(draw, lengths, 3, longest)
        case = f"lengths {lengths} of {longest}"
        same_partition(student, reference, emissions, mask, crf_tables(draw, 3), case)


@promises("stable")
@exercise("crf_partition")
def test_crf_partition_is_stable(student, reference, draw):
    """Scores of +-1000 neither overflow nor vanish."""
    transitions, *_ = crf_tables(draw, 3)
    nothing, mask = torch.zeros(3), real([2, 3, 3])
    signs = torch.tensor([1.0, -1.0, 1.0]).reshape(3, 1, 1)
    emissions = draw.normal(3, 3, 3)
    either = torch.where(draw.normal(3, 3, 3) > 0, 1000.0, -1000.0)
    large = torch.where(transitions > 0, 1000.0, -1000.0)
    for words, values, table in [
        ("emissions of about 1000, -1000 and 1000", emissions + 1000.0 * signs, transitions),
        ("emissions of 1000 or -1000", either, transitions),
        ("emissions of about -100000", emissions - 1e5, transitions),
        ("transitions of 1000 or -1000", emissions, large),
    ]:
        case = f"{words}, start and end of 0"
        same_partition(student, reference, values, mask, (table, nothing, nothing), case)


def path_score(emissions, tables, path):
    """The score of a path through the emissions (T, L) of one row, in float64."""
    transitions, start, end = (table.double() for table in tables)
    total = start[path[0]] + end[path[-1]]
    total = total + sum(emissions[position, tag].double() for position, tag in enumerate(path))
    return float(total + sum(transitions[a, b] for a, b in itertools.pairwise(path)))


@hidden
@exercise("crf_partition")
def test_crf_partition_sums_all_paths(student, draw):
    """It is the sum over all paths, written out, and more than any one of them."""
    lengths, tables = [3, 1, 2], crf_tables(draw, 2, torch.float64)
    emissions, _, mask = crf_case(draw, lengths, 2, 4, torch.float64)
    got = expectations.tensor(student.crf_partition(emissions, mask, *tables), what="the result")
    expectations.shape(got, (3,), what="the result")
    for row, length in enumerate(lengths):
        paths = itertools.product(range(2), repeat=length)
        scores = torch.tensor(
            [path_score(emissions[row], tables, path) for path in paths], dtype=torch.float64
        )
        expectations.true(
            bool(got[row] > scores.max()),
            f"For a row of {length} tokens the result is {float(got[row]):.5g}, but one path alone "
            f"scores {float(scores.max()):.5g}; the sum over all paths is larger than each.",
        )
        what = f"the result for a row of {length} tokens and its {len(scores)} paths"
        expectations.close(got[row], scores.logsumexp(0), what=what)


@hidden
@promises("gradients")
@exercise("crf_partition")
def test_crf_partition_gradients(student, reference, draw):
    """Gradients are the tags' probabilities, and finite at +-1000; inputs stay as they were."""
    emissions, _, mask = crf_case(draw, [3, 1, 4], 3, dtype=torch.float64)
    tables = crf_tables(draw, 3, torch.float64)
    for scale, words in [(1.0, "strided float64 inputs"), (500.0, "float64 scores of +-1000")]:
        emissions, mask = strided(emissions * scale, mask)
        arguments = (emissions, mask, *(table * scale for table in tables))
        seen = student.observe("crf_partition", *arguments)
        wanted = reference.observe("crf_partition", *arguments)
        case = f"{words}, lengths [3, 1, 4]"
        expectations.close(seen.value, wanted.value, what="the result", case=case)
        names = {"0": "the emissions", "2": "the transitions"}
        names |= {"3": "the start scores", "4": "the end scores"}
        same_gradients(seen, wanted, names, case)
        expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# viterbi
# --------------------------------------------------------------------------------------------


def right_paths(paths, lengths, count, case):
    """A list for each row, of as many tags as it has real tokens; tags are ints."""
    expectations.true(
        isinstance(paths, (list, tuple)) and all(isinstance(path, (list, tuple)) for path in paths),
        f"The paths should be a list of lists of int, but are {_kind_of_paths(paths)}.",
    )
    found = [len(path) for path in paths]
    expectations.true(
        found == list(lengths),
        f"The paths should have as many tags as the rows have real tokens, {list(lengths)}; "
        f"yours have {found} for {case}.",
    )
    for tag in (tag for path in paths for tag in path):
        expectations.true(
            isinstance(tag, int) and not isinstance(tag, bool),
            f"A tag should be an int, but is a {expectations.type_name(tag)}; .item() makes one.",
        )
        expectations.true(
            0 <= tag < count,
            f"A path holds the tag {tag}; tags go from 0 to {count - 1} for {case}.",
        )


def _kind_of_paths(paths) -> str:
    if not isinstance(paths, (list, tuple)):
        return f"a {expectations.type_name(paths)}"
    return f"a list of {expectations.type_name(paths[0])}" if paths else "an empty list"


def best_paths(paths, best, emissions, mask, tables, case):
    """Each path scores as much as the best there is; which of several best ones is free."""
    right_paths(paths, mask.sum(dim=1).tolist(), emissions.shape[2], case)
    for row, path in enumerate(paths):
        score, most = path_score(emissions[row], tables, path), float(best[row])
        expectations.true(
            abs(score - most) <= 2e-5 * max(1.0, float(best.abs().max())),
            f"The path of row {row}, {list(path)}, scores {score:.5g}, but the best one scores "
            f"{most:.5g} for {case}.",
        )


def same_viterbi(student, reference, emissions, mask, tables, case):
    """Scores are the reference's; each path earns them."""
    got = student.viterbi(emissions, mask, *tables)
    paths, scores = expectations.pair(got, what="the result (paths, scores)")
    _, best = reference.viterbi(emissions, mask, *tables)
    best_paths(paths, best, emissions, mask, tables, case)
    expectations.close(scores, best, what="the scores", case=case)


@promises("scores")
@exercise("viterbi")
def test_viterbi_scores(student, reference, draw):
    """The score of the best path of each row."""
    for lengths, count in [([5] * 8, 3), ([1], 2), ([2], 3), ([3, 3], 1)]:
        emissions, _, mask = crf_case(draw, lengths, count)
        transitions, start, end = crf_tables(draw, count)
        tables = transitions, start, 20 * end  # It decides between the last tags.
        got = student.viterbi(emissions, mask, *tables)
        _, scores = expectations.pair(got, what="the result (paths, scores)")
        _, best = reference.viterbi(emissions, mask, *tables)
        case = f"B={len(lengths)}, T={lengths[0]}, L={count}, no padding"
        expectations.close(scores, best, what="the scores", case=case)


@promises("paths")
@exercise("viterbi")
def test_viterbi_paths(student, reference, draw):
    """The best path of each row, as ints; each token's best tag need not be on it."""
    for lengths, count in [([1], 2), ([2], 3), ([4, 4], 3)]:
        emissions, _, mask = crf_case(draw, lengths, count)
        tables = crf_tables(draw, count)
        case = f"B={len(lengths)}, T={lengths[0]}, L={count}, no padding"
        same_viterbi(student, reference, emissions, mask, tables, case)
    emissions = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])
    transitions = torch.full((3, 3), -4.0)
    transitions[1, 0] = transitions[0, 2] = 0.5
    for words, start, end in [
        ("start and end of 0", torch.zeros(3), torch.zeros(3)),
        ("end = [0, 6, 0]", torch.zeros(3), torch.tensor([0.0, 6.0, 0.0])),
        ("start = [0, 0, 6]", torch.tensor([0.0, 0.0, 6.0]), torch.zeros(3)),
    ]:
        case = f"the identity as emissions, transitions {transitions.tolist()} and {words}"
        tables = transitions, start, end
        same_viterbi(student, reference, emissions, torch.ones(1, 3).bool(), tables, case)


@promises("paths")
@exercise("viterbi", 2)
def test_viterbi_padding(student, reference, draw):
    """A path ends at its row's last real token, a row of one token included."""
    for lengths, longest in [([1, 3], 3), ([2, 5, 1, 4], 6), ([2, 2], 4), ([70, 1], 72)]:
        emissions, _, mask = crf_case(draw, lengths, 3, longest)
        case = f"lengths {lengths} of {longest}"
        same_viterbi(student, reference, emissions, mask, crf_tables(draw, 3), case)


@hidden
@promises("ties")
@exercise("viterbi")
def test_viterbi_ties(student, reference, draw):
    """Of several best paths any will do; scores of +-1000 make no difference."""
    tables = tuple(torch.zeros_like(table) for table in crf_tables(draw, 3))
    mask = real([2, 4])
    same_viterbi(student, reference, torch.zeros(2, 4, 3), mask, tables, "scores of 0 throughout")
    emissions = draw.integers(0, 2, 2, 4, 3).float()
    same_viterbi(student, reference, emissions, mask, tables, "emissions of 0 and 1")
    emissions = torch.where(draw.normal(2, 4, 3) > 0, 1000.0, -1000.0)
    tables = crf_tables(draw, 3)
    same_viterbi(student, reference, emissions, mask, tables, "emissions of 1000 or -1000")
    same_viterbi(student, reference, emissions - 3000.0, mask, tables, "negative scores only")
    emissions = draw.normal(2, 4, 3).double() - 1e5
    tables = tuple(table.double() for table in tables)
    same_viterbi(student, reference, emissions, mask, tables, "scores of about -100000, float64")


@hidden
@exercise("viterbi")
def test_viterbi_inputs(student, reference, draw):
    """Strided float64 inputs with many tags; none is changed."""
    emissions, _, mask = crf_case(draw, [3, 6, 1], 7, dtype=torch.float64)
    emissions, mask = strided(emissions, mask)
    tables = crf_tables(draw, 7, torch.float64)
    seen = student.observe("viterbi", emissions, mask, *tables, grad=False)
    paths, scores = expectations.pair(seen.value, what="the result (paths, scores)")
    _, best = reference.viterbi(emissions, mask, *tables)
    case = "strided float64 inputs, L=7, lengths [3, 6, 1]"
    best_paths(paths, best, emissions, mask, tables, case)
    expectations.close(scores, best, what="the scores", case=case)
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# BiLSTMCRF
# --------------------------------------------------------------------------------------------

BILSTM = {"vocab_size": 9, "embed_dim": 3, "hidden_size": 2, "num_tags": 3}


def bilstm_state(draw) -> State:
    state = {"embedding.weight": draw.normal(9, 3)}
    state |= lstm_state(draw, "lstm", 3, 2, ("", "_reverse"))
    state |= linear(draw, "emission", 3, 4)
    transitions, start, end = crf_tables(draw, 3)
    # Large, so that a token's best tag is seldom that of the best path.
    return state | {"crf.transitions": 3.0 * transitions, "crf.start": start, "crf.end": end}


def bilstm_pair(student, reference, draw, dtype=None):
    state = bilstm_state(draw)
    return state, *pair(student, reference, "BiLSTMCRF", state, dtype, **BILSTM)


def tagged(draw, lengths, longest=None):
    """Ids with PAD, tags with IGNORE after the end, and the mask."""
    mask = real(lengths, longest)
    ids = draw.integers(SPECIAL, 9, *mask.shape).masked_fill(~mask, PAD)
    return ids, draw.integers(0, 3, *mask.shape).masked_fill(~mask, IGNORE), mask


def own_crf(parts, state, dtype):
    """The CRF of the notebook, which uses the student's crf_score, crf_partition and viterbi."""
    tables = {
        name.removeprefix("crf."): value.to(dtype)
        for name, value in state.items()
        if name.startswith("crf.")
    }
    return parts.proxy.module("CRF", state=tables, dtype=dtype, num_tags=3)


@promises("submodules", "emissions")
@exercise("BiLSTMCRF")
def test_bilstm_crf_emissions(student, reference, draw):
    """Embedding, LSTM in both directions, linear layer: emissions (B, T, L)."""
    _, mine, theirs = bilstm_pair(student, reference, draw)
    for lengths in ([1], [4], [3, 3]):
        ids, _, mask = tagged(draw, lengths)
        case = f"ids {ids.tolist()}, no padding"
        expectations.close(mine(ids, mask), theirs(ids, mask), what="the emissions", case=case)


@promises("padding")
@exercise("BiLSTMCRF", 2)
def test_bilstm_crf_padding(student, reference, draw):
    """The backward direction begins at the last real token; the result is as long as the input."""
    _, mine, theirs = bilstm_pair(student, reference, draw)
    for lengths, longest in [([3, 1], 3), ([2, 4, 3], 4), ([2, 1], 4), ([3, 3], 5)]:
        ids, _, mask = tagged(draw, lengths, longest)
        ids[0, 1] = PAD  # where the mask is True
        case = f"lengths {lengths} of {longest}"
        at_real_places(mine(ids, mask), theirs(ids, mask), mask, "the emissions", case)


@promises("loss")
@exercise("BiLSTMCRF")
def test_bilstm_crf_loss(student, reference, draw):
    """The loss is that of the CRF on the emissions: mean over the batch, padding left out."""
    state, mine, theirs = bilstm_pair(student, reference, draw, torch.float64)
    for lengths, longest in [([3], 3), ([2, 4, 1], 5)]:
        given = tagged(draw, lengths, longest)

        def own(parts, given=given):
            ids, tags, mask = given
            crf = own_crf(parts, state, torch.float64)
            return crf.method("loss", parts.of(mine, "forward")(ids, mask), tags, mask)

        got = expectations.tensor(mine.method("loss", *given), what="the loss")
        want = theirs.method("loss", *given)
        case = f"lengths {lengths} of {longest}, float64"
        same_by_parts(student, got, want, own, "the loss", case)


@promises("decode")
@exercise("BiLSTMCRF")
def test_bilstm_crf_decode(student, reference, draw):
    """decode gives the best path of each row through the emissions."""
    state = bilstm_state(draw)
    # Tags are to change from token to token; the best tags seldom do, each by itself.
    state["crf.transitions"] = state["crf.transitions"] - 6 * torch.eye(3)
    mine, theirs = pair(student, reference, "BiLSTMCRF", state, **BILSTM)
    tables = state["crf.transitions"], state["crf.start"], state["crf.end"]
    lengths = [2, 6, 1, 5, 7, 4, 6, 3]
    ids, _, mask = tagged(draw, lengths)
    got, emissions = mine.method("decode", ids, mask), theirs(ids, mask)
    _, best = reference.viterbi(emissions, mask, *tables)
    case = f"lengths {lengths}"
    try:
        best_paths(got, best, emissions, mask, tables, case)
    except Mistake:

        def own(parts):
            crf = own_crf(parts, state, torch.float32)
            return crf.method("decode", parts.of(mine, "forward")(ids, mask), mask)

        if not as_own_paths(student, got, own):
            raise


def as_own_paths(student, got, own) -> bool:
    """Whether the paths are what the student's own earlier parts say, right or wrong."""

    def listed(said):
        return [(type(path), [int(tag) for tag in path]) for path in said]

    both = by_parts(student, lambda parts: (listed(own(parts)), listed(got)))
    return both is not None and both[0] == both[1] and bool(both[1]) and all(both[1])


@hidden
@exercise("BiLSTMCRF")
def test_bilstm_crf_ignores_padding(student, reference, draw):
    """Other ids at padding, more padding and other rows change nothing at real positions."""
    _, mine, theirs = bilstm_pair(student, reference, draw, torch.float64)
    ids, _, mask = tagged(draw, [2, 4, 1])
    before = theirs(ids, mask)
    other = torch.where(mask, ids, draw.integers(SPECIAL, 9, 3, 4))
    wide, wider = torch.nn.functional.pad(ids, (0, 2)), torch.nn.functional.pad(mask, (0, 2))
    for case, given in [
        ("other ids at padding", (other, mask)),
        ("two more columns of padding", (wide, wider)),
        ("a row alone, with its padding", (ids[:1], mask[:1])),
    ]:
        got = expectations.tensor(mine(*given), what="the emissions")
        expectations.shape(got, (*given[0].shape, 3), what="the emissions", case=case)
        rows, length = len(got), 4
        want, where = before[:rows], mask[:rows]
        at_real_places(got[:, :length], want, where, "the emissions", f"{case}, float64")


@hidden
@exercise("BiLSTMCRF")
def test_bilstm_crf_gradients(student, reference, draw):
    """The loss trains every parameter, and padding no row of the embedding."""
    state, mine, theirs = bilstm_pair(student, reference, draw, torch.float64)
    given = strided(*tagged(draw, [2, 4, 1]))
    seen, wanted = (handle.observe_method("loss", *given) for handle in (mine, theirs))
    expectations.finite(seen.value, what="the loss")
    arriving_gradients(seen, wanted, parameters_of(state), "float64, lengths [2, 4, 1]")
    expectations.unchanged(seen)
