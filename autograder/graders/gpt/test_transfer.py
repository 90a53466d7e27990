"""Graders of `gpt-transfer`: somebody else's weights, fine-tuning, prompts."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from autograder.graders.common import (
    dropped,
    linear,
    pair,
    refused_naming,
    refuses,
    same_parameters,
    sizes,
    within,
)
from autograder.graders.gpt.common import (
    SPECIAL,
    chained,
    fitting,
    gpt_options,
    gpt_state,
    likely,
    table,
    texts,
)
from autograder.graders.parts import (
    alive,
    by_parts,
    same_by_parts,
    same_flow,
    same_values,
    to_blame,
)
from autograder.judging import expectations
from autograder.judging.grader_marks import Mistake, aspect, exercise, hidden, promises
from autograder.sandbox.executor import COPIED, SCATTERED

PAD, START, DELIMITER, EXTRACT, END = 0, 1, 2, 3, 4


# --------------------------------------------------------------------------------------------
# rename_parameters
# --------------------------------------------------------------------------------------------

CONV_SHAPES = {
    "attn.c_attn": (2, 6),
    "attn.c_proj": (2, 2),
    "mlp.c_fc": (2, 8),
    "mlp.c_proj": (8, 2),
}


def checkpoint(draw, layers=(0,), prefix="", first=False, more=()):
    """Small tensors under the names of a Hugging Face checkpoint, of GPT-1 (`first`) or GPT-2."""
    tables = ("tokens_embed", "positions_embed") if first else ("wte", "wpe")
    shapes = {f"{tables[0]}.weight": (5, 2), f"{tables[1]}.weight": (3, 2)}
    for number in layers:
        for name, (rows, columns) in CONV_SHAPES.items():
            shapes[f"h.{number}.{name}.weight"] = (rows, columns)
            shapes[f"h.{number}.{name}.bias"] = (columns,)
        for name in ("ln_1", "ln_2"):
            shapes |= {f"h.{number}.{name}.{end}": (2,) for end in ("weight", "bias")}
    if not first:
        shapes |= {"ln_f.weight": (2,), "ln_f.bias": (2,)}
    shapes = {prefix + name: shape for name, shape in shapes.items()} | dict.fromkeys(more, (2, 2))
    return {name: draw.normal(*shape) for name, shape in shapes.items()}


def same_names(student, reference, state, case):
    """The reference's names, each with the tensor that belongs there."""
    got, want = student.rename_parameters(state), reference.rename_parameters(state)
    expectations.true(isinstance(got, dict), f"the result should be a dict for {case}.")
    missing, extra = sorted(set(want) - set(got)), sorted(map(str, set(got) - set(want)))
    expectations.true(
        not missing, f"There is no {', '.join(missing[:4])} in the result for {case}."
    )
    expectations.true(not extra, f"The result should not have {', '.join(extra[:4])} for {case}.")
    for name, value in want.items():
        expectations.close(got[name], value, what=f"the tensor called {name}", case=case)


@promises("names", "prefix")
@exercise("rename_parameters")
def test_rename_tables(student, reference, draw):
    """The tables and the last norm, with the prefix transformer. and without; ours have none."""
    same_names(student, reference, checkpoint(draw, ()), "GPT-2 without a block")
    state = checkpoint(draw, (), "transformer.")
    same_names(student, reference, state, "GPT-2 without a block, names with transformer.")


@promises("names", "transposed", "same-tensor")
@exercise("rename_parameters", 3)
def test_rename_blocks(student, reference, draw):
    """Blocks: weights of the four c_ layers are transposed, all other tensors stay as they are."""
    same_names(student, reference, checkpoint(draw), "GPT-2 with one block")
    state = checkpoint(draw, (0, 1), "transformer.")
    same_names(student, reference, state, "GPT-2 with two blocks, names with transformer.")


@aspect
@promises("transposed", "same-tensor")
@exercise("rename_parameters")
def test_rename_memory(student, draw):
    """What is transposed is contiguous; all else is the tensor that was given, no copy of it."""
    seen = student.placing("rename_parameters", checkpoint(draw))
    expectations.true(isinstance(seen.value, dict), "the result should be a dict.")
    for name in seen.value:
        where = f"the tensor called {name}"
        expectations.true(
            f"{SCATTERED}{name}" not in seen.mutated,
            f"{where} is a transposed view of theirs; it should be contiguous.",
        )
        new = str(name).startswith("blocks.") and "norm" not in name and name.endswith("weight")
        expectations.true(
            new or f"{COPIED}{name}" not in seen.mutated,
            f"{where} is a copy; it should be the very tensor that was given.",
        )


@promises("names")
@exercise("rename_parameters")
def test_rename_first(student, reference, draw):
    """GPT-1 calls its tables tokens_embed and positions_embed and has no last norm."""
    for prefix in ("", "transformer."):
        state = checkpoint(draw, (0,), prefix, first=True)
        case = f"GPT-1 with one block{', names with transformer.' if prefix else ''}"
        same_names(student, reference, state, case)


@promises("left-out")
@exercise("rename_parameters")
def test_rename_left_out(student, reference, draw):
    """The tied head, the masks in the attention and the position ids are left out."""
    for prefix, more in [
        ("", ["lm_head.weight"]),
        ("", ["h.0.attn.bias", "h.0.attn.masked_bias"]),
        ("transformer.", ["transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias"]),
        ("transformer.", ["lm_head.weight", "transformer.position_ids"]),
        ("", ["position_ids"]),
    ]:
        state = checkpoint(draw, (0,), prefix, "position_ids" in more, more=more)
        same_names(student, reference, state, f"a checkpoint with {' and '.join(more)}")
    state = {"lm_head.weight": draw.normal(5, 2)}
    same_names(student, reference, state, "a checkpoint with lm_head.weight alone")


@promises("unknown-name")
@exercise("rename_parameters")
def test_rename_unknown(student, reference, draw):
    """Any other name is refused with a ValueError that says which."""
    same_names(student, reference, checkpoint(draw, ()), "GPT-2 without a block")
    for name in [
        "h.0.crossattention.c_attn.weight",
        "h.0.ln_3.weight",
        "transformer.h.0.attn.rotary_emb.inv_freq",
        "score.weight",
        "h.0.mlp.c_gate.weight",
        "decoder.0.ln_1.weight",
        "h.0.mlp.c_attn.weight",
        "h.0.attn.c_fc.bias",
        "h.0.mlp.bias",
        "encoder.h.0.ln_1.weight",
        "model.wte.weight",
        "wte.bias",
        "lm_head.bias",
        "h.0.attn.c_attn.scale",
        "wte.transformer.weight",
        "h.0.position_ids",
        "ln_f.scale",
        "encoder.0.attn.bias",
        "h.0.crossattention.masked_bias",
    ]:
        state = checkpoint(draw, more=[name])
        refuses(student.rename_parameters, {f"a tensor called {name}": (state,)})
    name = "h.0.ln_3.weight"
    state = checkpoint(draw, more=[name])
    refused_naming(lambda: student.rename_parameters(state), f"a tensor called {name}", name)


@hidden
@promises("block-numbers")
@exercise("rename_parameters")
def test_rename_layers(student, reference, draw):
    """Blocks of two digits in any order, any dtype; the given tensors stay as they are."""
    state = checkpoint(draw, (11, 1, 9, 10, 21), "transformer.", more=["lm_head.weight"])
    state["transformer.h.9.attn.c_attn.weight"] = draw.normal(3, 9).double()
    state["transformer.h.9.attn.c_attn.bias"] = draw.normal(9).to(torch.float16)
    state["transformer.wte.weight"] = draw.normal(5, 2).to(torch.float16)
    state["transformer.h.10.mlp.c_proj.weight"] = draw.normal(2, 8).mT
    same_names(student, reference, state, "transformer. and blocks 1, 9, 10, 11 and 21")
    seen = student.observe("rename_parameters", state, grad=False)
    expectations.true(isinstance(seen.value, dict), "the result should be a dict.")
    expectations.unchanged(seen)


@hidden
@exercise("rename_parameters")
def test_rename_loads(student, reference, draw):
    """Checkpoints of whole small models, GPT-1 and GPT-2: square matrices are transposed too."""
    for first in (True, False):
        state = checkpoint(draw, (0, 1, 2), "transformer.", first)
        for number in range(3):
            state[f"transformer.h.{number}.mlp.c_fc.weight"] = draw.normal(4, 4)
            state[f"transformer.h.{number}.attn.c_attn.weight"] = draw.normal(3, 3)
        state["transformer.h.2.attn.c_proj.bias"] = draw.normal(4)
        case = f"GPT-{1 if first else 2} with three blocks and square matrices"
        same_names(student, reference, state, case)


# --------------------------------------------------------------------------------------------
# prompt_and_response
# --------------------------------------------------------------------------------------------


def some_ids(draw, length):
    """A list of ordinary ids, no two of them alike."""
    return (SPECIAL + draw.permutation(90)[:length]).tolist()


def same_response(student, reference, prompt, response, only=None):
    """Ids and mask are the reference's, both lists."""
    got = expectations.items(
        student.prompt_and_response(prompt, response), 2, "the result (ids, mask)"
    )
    want = reference.prompt_and_response(prompt, response)
    case = f"a prompt of {len(prompt)} and a response of {len(response)}"
    for name, actual, expected in zip(("ids", "mask"), got, want, strict=True):
        if only in (None, name):
            expectations.equal(actual, expected, what=f"the list {name}", case=case)
    kinds = {type(value) for value in got[1]}
    expectations.true(
        only == "ids" or kinds == {bool},
        f"the mask should hold True and False only for {case}.",
    )


@promises("one-sequence")
@exercise("prompt_and_response", 2)
def test_response_ids(student, reference, draw):
    """The ids are [START] prompt [DELIMITER] response [END]."""
    for first, second in [(1, 1), (2, 3), (4, 2)]:
        same_response(student, reference, some_ids(draw, first), some_ids(draw, second), "ids")


@promises("one-sequence", "end-counts")
@exercise("prompt_and_response", 2)
def test_response_mask(student, reference, draw):
    """The mask is True at every token of the response and at END, False before."""
    for first, second in [(1, 1), (3, 2), (2, 5)]:
        same_response(student, reference, some_ids(draw, first), some_ids(draw, second))


@promises("empty")
@exercise("prompt_and_response")
def test_response_refusals(student, reference, draw):
    """An empty prompt or response is refused with a ValueError, one token of each is not."""
    one, two = some_ids(draw, 1), some_ids(draw, 3)
    refuses(
        student.prompt_and_response,
        {
            "an empty prompt and an empty response": ([], []),
            "an empty prompt": ([], two),
            "an empty response": (two, []),
        },
    )
    same_response(student, reference, one, one)


@hidden
@exercise("prompt_and_response")
def test_response_repeated(student, reference, draw):
    """Tokens that stand in both parts, twice in one, or are special count by where they stand."""
    one, two = some_ids(draw, 5), some_ids(draw, 40)
    for prompt, response in [
        (one, one),
        (one * 2, one[::-1]),
        (two, two[:7]),
        (one[:1] * 4, one),
        ([0], [0]),
        ([8, 9, END], [PAD, 8, END, START]),
        ([50256, 70000], [123456]),
        (list(range(100, 800)), list(range(100, 1400))),
    ]:
        same_response(student, reference, prompt, response)


@hidden
@promises("lists-unchanged")
@exercise("prompt_and_response")
def test_response_leaves_lists(student, draw):
    """The lists that are given stay as they are."""
    given = some_ids(draw, 3), some_ids(draw, 4)
    seen = student.observe("prompt_and_response", *given, grad=False)
    ids, _ = expectations.items(seen.value, 2, what="the result (ids, mask)")
    expectations.equal(ids, [START, *given[0], DELIMITER, *given[1], END], what="the list ids")
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# entailment_input, similarity_inputs, choice_inputs: what they share
# --------------------------------------------------------------------------------------------


def own_inputs(student, pairs):
    """What the student's own entailment_input makes of the pairs; None if it makes no lists."""
    made = by_parts(student, lambda parts: [parts.proxy.entailment_input(*each) for each in pairs])
    sound = made and all(isinstance(each, list) and len(set(each)) > 2 for each in made)
    return made if sound else None


def same_inputs(student, got, want, pairs, case):
    """A list of inputs is the reference's, or what the student's own entailment_input makes."""
    rows = expectations.items(got, len(want), what=f"the result for {case}", kind="list")
    if list(rows) == own_inputs(student, pairs):
        return
    for number, (actual, expected) in enumerate(zip(rows, want, strict=True)):
        expectations.equal(actual, expected, what=f"input {number} (counted from 0)", case=case)


def refuses_input(student, name, words, given, pairs):
    """Bad input is refused, unless the student's own entailment_input, used rightly, takes it."""
    try:
        expectations.raises("ValueError", lambda: getattr(student, name)(*given), what=words)
    except Mistake:
        made = own_inputs(student, pairs)
        answer = by_parts(student, lambda parts: getattr(parts.proxy, name)(*given))
        if made is None or not isinstance(answer, (list, tuple)) or list(answer) != made:
            raise


# --------------------------------------------------------------------------------------------
# entailment_input
# --------------------------------------------------------------------------------------------


def same_entailment(student, reference, draw, first, second):
    given = some_ids(draw, first), some_ids(draw, second)
    case = f"a premise of {first} and a hypothesis of {second} tokens"
    got, want = student.entailment_input(*given), reference.entailment_input(*given)
    expectations.equal(got, want, what="the list of ids", case=case)


@promises("format")
@exercise("entailment_input", 2)
def test_entailment_small(student, reference, draw):
    """[START] premise [DELIMITER] hypothesis [EXTRACT]."""
    for first, second in [(1, 1), (2, 3), (4, 1)]:
        same_entailment(student, reference, draw, first, second)


@promises("format")
@exercise("entailment_input")
def test_entailment_lengths(student, reference, draw):
    """Texts of any lengths, whole."""
    for first, second in [(1, 12), (20, 3), (30, 40)]:
        same_entailment(student, reference, draw, first, second)


@promises("empty")
@exercise("entailment_input")
def test_entailment_refusals(student, reference, draw):
    """An empty premise or hypothesis is refused with a ValueError."""
    text = some_ids(draw, 2)
    refuses(
        student.entailment_input,
        {
            "two empty texts": ([], []),
            "an empty premise": ([], text),
            "an empty hypothesis": (text, []),
        },
    )
    same_entailment(student, reference, draw, 1, 1)


@hidden
@exercise("entailment_input")
def test_entailment_leaves_lists(student, draw):
    """The lists that are given stay as they are; two equal texts are two."""
    text = some_ids(draw, 3)
    for given in [
        (text, some_ids(draw, 2)),
        (text, list(text)),
        ([0], [0]),
        ([EXTRACT, 70000], [DELIMITER, PAD]),
        (list(range(100, 800)), list(range(100, 1400))),
    ]:
        seen = student.observe("entailment_input", *given, grad=False)
        want = [START, *given[0], DELIMITER, *given[1], EXTRACT]
        expectations.equal(seen.value, want, what="the list of ids")
        expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# similarity_inputs
# --------------------------------------------------------------------------------------------


def same_similarity(student, reference, first, second):
    got, want = student.similarity_inputs(first, second), reference.similarity_inputs(first, second)
    pairs = [(first, second), (second, first)]
    case = f"texts of {len(first)} and {len(second)} tokens"
    same_inputs(student, got, want, pairs, case)


@promises("both-orders")
@exercise("similarity_inputs", 2)
def test_similarity_both_orders(student, reference, draw):
    """Two inputs: first [DELIMITER] second, and second [DELIMITER] first."""
    for first, second in [(1, 1), (3, 2), (2, 5)]:
        same_similarity(student, reference, some_ids(draw, first), some_ids(draw, second))


@exercise("similarity_inputs")
def test_similarity_lengths(student, reference, draw):
    """Texts of any lengths; both inputs are as long."""
    for first, second in [(1, 9), (25, 4)]:
        same_similarity(student, reference, some_ids(draw, first), some_ids(draw, second))


@promises("empty")
@exercise("similarity_inputs")
def test_similarity_refusals(student, reference, draw):
    """An empty text, be it the first or the second, is refused with a ValueError."""
    text = some_ids(draw, 3)
    for words, given in {"an empty first text": ([], text), "an empty second": (text, [])}.items():
        refuses_input(student, "similarity_inputs", words, given, [given, given[::-1]])
    same_similarity(student, reference, text, text[:1])


@hidden
@exercise("similarity_inputs")
def test_similarity_leaves_lists(student, reference, draw):
    """The lists that are given stay as they are; equal texts give two equal inputs."""
    text = some_ids(draw, 3)
    same_similarity(student, reference, text, list(text))
    same_similarity(student, reference, [0], [EXTRACT, 0])
    given = text, some_ids(draw, 2)
    seen = student.observe("similarity_inputs", *given, grad=False)
    want = reference.similarity_inputs(*given)
    same_inputs(student, seen.value, want, [given, given[::-1]], "texts of 3 and 2 tokens")
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# choice_inputs
# --------------------------------------------------------------------------------------------


def same_choice(student, reference, context, answers):
    got, want = student.choice_inputs(context, answers), reference.choice_inputs(context, answers)
    lengths = ", ".join(str(len(each)) for each in answers)
    case = f"a context of {len(context)} and answers of {lengths} tokens"
    same_inputs(student, got, want, [(context, each) for each in answers], case)


@promises("one-for-each")
@exercise("choice_inputs", 2)
def test_choice_each_answer(student, reference, draw):
    """One input per answer: [START] context [DELIMITER] answer [EXTRACT]."""
    for context, lengths in [(1, [1]), (3, [2, 1]), (2, [1, 4, 2])]:
        answers = [some_ids(draw, length) for length in lengths]
        same_choice(student, reference, some_ids(draw, context), answers)


@exercise("choice_inputs")
def test_choice_lengths(student, reference, draw):
    """Every answer stays as long as it is, in the order given."""
    answers = [some_ids(draw, length) for length in (7, 1, 12, 3)]
    same_choice(student, reference, some_ids(draw, 20), answers)


@promises("empty")
@exercise("choice_inputs")
def test_choice_refusals(student, reference, draw):
    """No context, no answers, or an answer without tokens: refused with a ValueError."""
    text, one, two = some_ids(draw, 3), some_ids(draw, 2), some_ids(draw, 1)
    refuses(student.choice_inputs, {"an empty list of answers": (text, [])})
    for words, context, answers in [
        ("an empty context", [], [one, two]),
        ("an empty only answer", text, [[]]),
        ("an empty first answer", text, [[], one]),
        ("an empty last answer", text, [one, two, []]),
    ]:
        pairs = [(context, each) for each in answers]
        refuses_input(student, "choice_inputs", words, (context, answers), pairs)
    same_choice(student, reference, text, [one])


@hidden
@exercise("choice_inputs")
def test_choice_leaves_lists(student, reference, draw):
    """The lists that are given stay as they are; equal answers keep their positions."""
    context, one, two = some_ids(draw, 4), some_ids(draw, 2), some_ids(draw, 3)
    for answers in ([one, two, one], [two, two]):
        same_choice(student, reference, context, answers)
    same_choice(student, reference, [0], [[0], [DELIMITER, 0], [0]])
    seen = student.observe("choice_inputs", context, [one, two], grad=False)
    want = reference.choice_inputs(context, [one, two])
    pairs = [(context, one), (context, two)]
    same_inputs(student, seen.value, want, pairs, "answers of 2 and 3 tokens")
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# GPTClassifier
# --------------------------------------------------------------------------------------------

HEADS = ("scores", "logits")


def extract_rows(draw, lengths, high=9):
    """Rows [START] ... [EXTRACT] of the given lengths, PAD behind them."""
    ids = draw.integers(SPECIAL, high, len(lengths), max(lengths))
    ids[:, 0] = START
    for row, length in zip(ids, lengths, strict=True):
        row[length - 1] = EXTRACT
        row[length:] = PAD
    return ids


class Classifiers:
    """A classifier on a small GPT, the student's on the student's own, and the reference's."""

    def __init__(self, student, reference, draw, outputs, dtype=torch.float32, **more) -> None:
        rate = {"dropout": more.pop("head_dropout")} if "head_dropout" in more else {}
        self.student, self.dtype = student, dtype
        self.options = gpt_options(context=10, **more)
        state = gpt_state(draw, self.options, "gpt.")
        state |= linear(draw, "classifier", outputs, self.options["d_model"])
        state = {name: value.to(dtype) for name, value in state.items()}
        self.state = fitting(student, "GPT", self.options, state, "gpt.")
        self.given, self.mine = self.made(student, outputs, self.state, **rate)
        _, self.theirs = self.made(reference, outputs, state, **rate)

    def made(self, proxy, outputs, state, **rate):
        """A GPT and a classifier of `proxy` with these parameters."""
        inside = within(state, "gpt.")
        gpt = proxy.module("GPT", state=inside, dtype=self.dtype, **self.options)
        given = {"gpt": gpt, "num_labels": outputs, **rate}
        return gpt, proxy.module("GPTClassifier", state=state, dtype=self.dtype, **given)

    def own_gpt(self, parts):
        """The student's own GPT with the same parameters, asked aside."""
        inside = within(self.state, "gpt.")
        return parts.proxy.module("GPT", state=inside, dtype=self.dtype, **self.options)

    def by_parts(self, parts, ids, logits):
        """Scores and logits as the student's own GPT gives them.

        Logits may be the GPT's own or its features times its table. If the two differ, which they
        do in no right GPT, the pair is made with those that `logits` agrees with.
        """
        gpt = self.own_gpt(parts)
        features = alive(gpt.method("features", ids))
        head = self.state["classifier.weight"], self.state["classifier.bias"]
        scores = F.linear(features[ids == EXTRACT], *head)
        tied = F.linear(features, self.state["gpt.token.weight"])
        return scores, tied if same_values(logits, tied) else alive(gpt(ids))

    def same(self, ids, case, train=False):
        """Scores and logits are right."""
        got = (self.mine.train() if train else self.mine.eval())(ids)
        expectations.items(got, 2, what=f"the result ({', '.join(HEADS)})")
        same_by_parts(
            self.student,
            got,
            self.theirs(ids),
            lambda parts: self.by_parts(parts, ids, got[1]),
            HEADS,
            case=case,
        )


@promises("formula")
@exercise("GPTClassifier", 2)
def test_classifier_values(student, reference, draw):
    """Scores are a linear function of the features at EXTRACT; logits stand at every position."""
    both = Classifiers(student, reference, draw, 3)
    for lengths in ([3], [5, 5]):
        ids = extract_rows(draw, lengths)
        both.same(ids, f"{sizes(B=len(lengths), T=lengths[0], L=3)} without padding, in eval mode")
    both = Classifiers(student, reference, draw, 1)
    both.same(extract_rows(draw, [4, 4]), "one label, L=1")


@promises("own-position")
@exercise("GPTClassifier", 2)
def test_classifier_padding(student, reference, draw):
    """Each row is read at its own EXTRACT, wherever padding begins."""
    both = Classifiers(student, reference, draw, 2)
    for lengths in ([3, 6], [7, 3, 5, 6], [4, 4, 8]):
        both.same(extract_rows(draw, lengths), f"rows of {lengths} tokens and padding")
    padded = F.pad(extract_rows(draw, [4, 3]), (0, 3))
    both.same(padded, "rows of 4 and 3 tokens that all end with PAD")
    both.same(extract_rows(draw, [1, 3]), "a row that begins with its EXTRACT")


@promises("classifier")
@exercise("GPTClassifier")
def test_classifier_parameters(student):
    """The GPT that is given, and a classifier with as many outputs as there are labels."""
    gpt = student.module("GPT", **gpt_options())
    mine = student.module("GPTClassifier", gpt=gpt, num_labels=4)
    expected = {f"gpt.{name}": tuple(shape) for name, shape in gpt.parameters().items()}
    expected |= {"classifier.weight": (4, 6), "classifier.bias": (4,)}
    same_parameters(mine, expected)


@aspect
@promises("the-very-gpt")
@exercise("GPTClassifier")
def test_classifier_keeps_the_gpt(student, reference, draw):
    """It is the very GPT that is given which is trained, not a copy of it."""
    both = Classifiers(student, reference, draw, 2)
    after = both.mine.step(extract_rows(draw, [4, 3]), lr=0.5)
    given = both.given.state()
    expectations.true(
        all(
            torch.equal(value, after.get(f"gpt.{name}", value + 1)) for name, value in given.items()
        ),
        "A step of training leaves the GPT that was given as it was; keep the very model, no copy.",
        misconception="classifier_copies_gpt",
    )


@promises("one-extract")
@exercise("GPTClassifier")
def test_classifier_refusals(student, reference, draw):
    """A row without EXTRACT, or with two, is refused with a ValueError, alone or among others."""
    both = Classifiers(student, reference, draw, 2)
    ids = extract_rows(draw, [5, 4])
    none, two = ids.clone(), ids.clone()
    none[1, 3] = SPECIAL
    two[1, 2] = EXTRACT
    refuses(
        both.mine,
        {
            "a single row without EXTRACT": (none[1:],),
            "a row without EXTRACT in a batch": (none,),
            "a single row with two EXTRACT": (two[1:],),
            "a row with two EXTRACT in a batch": (two,),
            "a row with two EXTRACT and one without": (torch.stack([none[1], two[1]]),),
        },
    )
    both.same(ids, "rows of 5 and 4 tokens")


@hidden
@promises("dropout")
@exercise("GPTClassifier")
def test_classifier_dropout(student, reference, draw):
    """dropout, 0.1 unless told otherwise, acts on what the classifier reads, and on nothing else.

    The classifier passes on what it gets, and the GPT drops nothing.
    """
    ids = extract_rows(draw, [4]).expand(40, 4).clone()
    ids[:, 1:3] = draw.integers(SPECIAL, 9, 40, 2)
    for p in (0.1, 0.5):
        rate = {} if p == 0.1 else {"head_dropout": p}
        both = Classifiers(student, reference, draw, 16, width=16, **rate)
        state = {
            **both.state,
            "classifier.weight": torch.eye(16),
            "classifier.bias": torch.ones(16),
        }
        if noisy(student, both, ids):
            return  # The student's own GPT drops something, or answers nothing.
        _, mine = both.made(student, 16, state, **({} if p == 0.1 else {"dropout": p}))
        kept = expectations.items(mine(ids), 2, what=f"the result ({', '.join(HEADS)})")
        value = expectations.items(mine.train()(ids), 2, what=f"the result ({', '.join(HEADS)})")
        expectations.finite(kept[0], what="the scores", case="eval mode")
        expectations.close(value[1], kept[1], what="the logits", case=f"train mode at dropout={p}")
        expectations.shape(value[0], (40, 16), what="the scores")
        dropped(value[0] - 1, kept[0] - 1, p, "the features at EXTRACT")
    # Of 40 rows of 16 entries, each dropped with probability 1/2, six or more are alike throughout
    # once in 10**20 times, and a column of 40 entries is so still less often.
    gone = (value[0] - 1).abs() < 1e-9
    alike = [int((gone == gone.narrow(axis, 0, 1)).all(axis).sum()) for axis in (0, 1)]
    expectations.true(
        alike[0] == 0 and alike[1] < 6,
        "Dropout keeps or drops whole vectors in your answer, or the same features in all rows; it "
        "decides anew for every entry, as nn.Dropout does.",
    )


def noisy(student, both, ids):
    """Whether the student's own GPT, though told to drop nothing, answers otherwise in training."""

    def twice(parts):
        gpt = both.own_gpt(parts)
        still = alive(gpt.method("features", ids))
        return still, gpt.train().method("features", ids)

    return to_blame(student, lambda parts: same_values(*twice(parts)))


@aspect
@hidden
@promises("one-pass")
@exercise("GPTClassifier")
def test_classifier_one_pass(student, reference, draw):
    """One pass of the network serves both heads: what is drawn in it, both see.

    The classifier has the token embeddings for its weight, so that it says at EXTRACT what the
    language model says there.
    """
    both = Classifiers(student, reference, draw, 9, dropout=0.3)
    ids = extract_rows(draw, [6, 4, 6, 5])
    if not tied(student, both, ids):
        return
    _, mine = both.made(student, 9, with_table(both.state), dropout=0.0)
    for words in ("eval", "train"):
        same_pass(mine.train() if words == "train" else mine.eval(), ids, f"{words} mode")
    # In evaluation mode nothing of GPT tells one pass from another; a pooling whose regions are
    # drawn does, in place of the nn.Identity that ends a post-norm GPT.
    both = Classifiers(student, reference, draw, 9, norm_first=False)
    width = both.options["d_model"]
    if not tied(student, both, ids):
        return
    both.given.method(
        "add_module",
        "final_norm",
        chained(
            student,
            student.module("nn.ConstantPad1d", padding=(0, 5), value=0.0),
            student.module("nn.FractionalMaxPool2d", kernel_size=(1, 2), output_size=(6, width)),
        ),
    )
    mine = student.module(
        "GPTClassifier", state=with_table(both.state), gpt=both.given, num_labels=9
    )
    same_pass(mine, ids, "eval mode and a final_norm that draws")


def with_table(state):
    """A classifier's parameters, with the token embeddings as the weight of the classifier."""
    head = {"classifier.weight": state["gpt.token.weight"], "classifier.bias": torch.zeros(9)}
    return {**state, **head}


def same_pass(mine, ids, words):
    """Scores are the logits at EXTRACT, as they are if both heads read the same features."""
    scores, logits = expectations.items(mine(ids), 2, what=f"the result ({', '.join(HEADS)})")
    expectations.shape(scores, (4, 9), what="the scores", case=words)
    expectations.shape(logits, (4, 6, 9), what="the logits", case=words)
    expectations.close(
        scores,
        logits[ids == EXTRACT],
        what="the scores",
        case=f"{words}, with the token embeddings as the classifier's weight: both heads read the "
        "features of one and the same pass",
    )


def tied(student, both, ids):
    """Whether the logits of the student's own GPT are its features times the table."""

    def ways(parts):
        gpt = both.own_gpt(parts)
        features = alive(gpt.method("features", ids))
        return F.linear(features, both.state["gpt.token.weight"]), gpt(ids)

    return not to_blame(student, lambda parts: same_values(*ways(parts)))


@hidden
@exercise("GPTClassifier", 2)
def test_classifier_gradients(student, reference, draw):
    """Fine-tuning trains all of it, of GPT-1 and of GPT-2: gradients reach every parameter."""
    for kind, norm_first in [("pre-norm", True), ("post-norm", False)]:
        both = Classifiers(student, reference, draw, 3, torch.float64, norm_first=norm_first)
        ids = extract_rows(draw, [3, 5, 4])
        seen, wanted = both.mine.observe(ids), both.theirs.observe(ids)
        case = f"rows of 3, 5 and 4 tokens, {kind}, float64"
        expectations.items(seen.value, 2, what=f"the result ({', '.join(HEADS)})")
        same_by_parts(
            student,
            seen.value,
            wanted.value,
            lambda parts, both=both, ids=ids, seen=seen: both.by_parts(parts, ids, seen.value[1]),
            HEADS,
            case=case,
        )
        # A table that also goes by another name may have its gradient under that one. Of another
        # GPT than the reference's not each part need have any.
        names = {label: label.split()[-1] for label in wanted.grads if label in seen.grads}
        if not same_values(seen.value, wanted.value):
            reached = ("classifier.weight", "classifier.bias", "gpt.token.weight")
            names = {label: name for label, name in names.items() if name in reached}
        same_flow(seen, wanted, names, case)
        expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# joint_loss
# --------------------------------------------------------------------------------------------

LOSSES = ("L3", "L2", "L1")


def joint_inputs(draw, lengths, outputs=3, vocabulary=9, dtype=torch.float32):
    """Scores, labels, logits and ids of rows of the given lengths."""
    ids = extract_rows(draw, lengths, vocabulary)
    return (
        draw.normal(len(lengths), outputs, scale=2.0).to(dtype),
        draw.integers(0, outputs, len(lengths)),
        draw.normal(*ids.shape, vocabulary, scale=2.0).to(dtype),
        ids,
    )


def own_auxiliary(student, given, value):
    """What gradients the student's own earlier exercises have, either of them that says `value`.

    L1 may be made by language_model_loss, or by log_likelihood.
    """
    logits, ids = given[2:]
    mask = ids != PAD

    def loss(parts):
        seen = parts.proxy.observe("language_model_loss", logits, ids, mask)
        return seen.value, seen.grads.get("0")

    def likelihood(parts):
        seen = parts.proxy.observe("log_likelihood", logits, ids, mask)
        return -seen.value.sum() / mask[:, 1:].sum(), seen.grads.get("0")

    def says(own):
        if isinstance(own, torch.Tensor):
            return not bool(own.isnan().any()) and same_values(value, own)
        return isinstance(own, float) and isinstance(value, float) and math.isclose(own, value)

    found = (by_parts(student, own) for own in (loss, likelihood))
    return [own[1] for own in found if own is not None and says(own[0])]


def same_losses(student, got, want, given, weight, case):
    """L2 is the reference's, L1 too or the student's own parts', L3 what the two make."""
    expectations.items(got, 3, what=f"the result ({', '.join(LOSSES)})")
    expectations.close(got[1], want[1], what="L2, the loss of the labels", case=case)
    try:
        expectations.close(got[2], want[2], what="L1, the loss of the language model", case=case)
    except Mistake:
        if not own_auxiliary(student, given, got[2]):
            raise
    expectations.close(got[0], want[1] + weight * got[2], what="L3", case=case)


def same_joint(student, reference, given, case, weight=None):
    more = {} if weight is None else {"weight": weight}
    got, want = student.joint_loss(*given, **more), reference.joint_loss(*given, **more)
    weight = 0.5 if weight is None else weight
    same_losses(student, got, want, given, weight, f"{case}, weight={weight}")


@promises("means", "three-scalars")
@exercise("joint_loss", 2)
def test_joint_values(student, reference, draw):
    """L2 is the mean over the labels, L1 the mean over the targets, L3 = L2 + L1 / 2."""
    for lengths in ([3], [2], [4, 4], [5, 5, 5]):
        given = joint_inputs(draw, lengths)
        same_joint(student, reference, given, sizes(B=len(lengths), T=lengths[0], L=3, V=9))


@exercise("joint_loss")
def test_joint_weights(student, reference, draw):
    """The weight scales L1 alone; 0 leaves it out of L3, and it may be more than 1."""
    for weight in (0.25, 0.0, 1.0, 3.0):
        given = joint_inputs(draw, [4, 4, 4])
        same_joint(student, reference, given, sizes(B=3, T=4), weight)


@promises("no-padding")
@exercise("joint_loss", 2)
def test_joint_padding(student, reference, draw):
    """Targets that are PAD do not count, neither in the sum nor in the number; all others do."""
    for lengths in ([3, 6], [6, 2, 4], [2, 8, 2, 3]):
        given = joint_inputs(draw, lengths, outputs=2)
        same_joint(student, reference, given, f"rows of {lengths} tokens and padding")


@promises("negative-weight")
@exercise("joint_loss")
def test_joint_refusals(student, reference, draw):
    """A negative weight is refused with a ValueError, 0 is not."""
    given = joint_inputs(draw, [4, 3])
    refuses(
        student.joint_loss,
        {f"weight={weight}": (*given, weight) for weight in (-0.5, -1e-3, -2.0)},
    )
    same_joint(student, reference, given, "rows of 4 and 3 tokens", 0.0)


@hidden
@promises("dtype-kept")
@exercise("joint_loss", 2)
def test_joint_gradients(student, reference, draw):
    """Gradients reach scores and logits, in float64; none reaches logits before padding."""
    given = joint_inputs(draw, [5, 3, 2], dtype=torch.float64)
    given = (given[0], given[1], given[2].mT.contiguous().mT, given[3])
    both = [reference.observe("joint_loss", *given, weight) for weight in (0.5, 2.0)]
    total = gradients_of_total(given, both)
    for weight, wanted in zip((0.5, 2.0), both, strict=True):
        case = f"rows of 5, 3 and 2 tokens, weight={weight}, float64"
        seen = student.observe("joint_loss", *given, weight)
        same_losses(student, seen.value, wanted.value, given, weight, case)
        same = same_values(seen.value[2], wanted.value[2])
        for label, words, alone in zip("02", ("scores", "logits"), total[weight], strict=True):
            got = seen.grads.get(label)
            if (
                got is None
                and words == "logits"
                and None in own_auxiliary(student, given, seen.value[2])
            ):
                continue  # The student's own loss of a language model has none either.
            expectations.true(
                got is not None,
                f"No gradient reaches the {words}; look for detach(), .data, .item() or no_grad().",
            )
            if same and not expectations.close_enough(got, alone):
                want = wanted.grads[label]
                expectations.close(got, want, what=f"the gradient of the {words}", case=case)
        expectations.unchanged(seen)


def gradients_of_total(given, both):
    """By weight, what the gradients of scores and logits are if L2 and L1 are detached.

    They may be: they are reported, and L3 is what trains. `both` was seen of the reference at the
    weights 0.5 and 2, where the gradient of the logits differs by 1.5 times what L1 has in L3.
    """
    scores, marks, logits, ids = (each.detach() for each in given)
    scores, logits = scores.requires_grad_(), logits.requires_grad_()
    targets = torch.where(ids == PAD, -100, ids)[:, 1:]
    text = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten())
    (of_text,) = torch.autograd.grad(text, logits)
    (of_task,) = torch.autograd.grad(F.cross_entropy(scores, marks), scores)
    slope = (both[1].grads["2"] - both[0].grads["2"]) / 1.5
    share = (slope * of_text).sum() / of_text.square().sum()
    return {weight: (share * of_task, share * weight * of_text) for weight in (0.5, 2.0)}


@hidden
@exercise("joint_loss")
def test_joint_extremes(student, reference, draw):
    """What the logits are where PAD is the target does not matter; large ones overflow nothing."""
    scores, marks, logits, ids = joint_inputs(draw, [6, 3, 2])
    marks = torch.zeros_like(marks)  # a class like any other
    logits[1:, 3:] = 1e4 * draw.normal(2, 3, 9)
    logits[:, -1] = 50 * draw.normal(3, 9)
    same_joint(student, reference, (scores, marks, logits, ids), "large logits at padded positions")
    given = (300 * scores, marks, 300 * logits[:, :2], ids[:, :2])
    same_joint(student, reference, given, "scores and logits times 300", 1.5)


# --------------------------------------------------------------------------------------------
# build_prompt
# --------------------------------------------------------------------------------------------

FRENCH = [
    ("sea otter", "loutre de mer"),
    ("peppermint", "menthe poivrée"),
    ("plush giraffe", "girafe en peluche"),
    ("cheese", "fromage"),
]
TASK = "Translate English to French:"


def same_prompt(student, reference, *given, **more):
    """The prompt is the reference's; what differs is said line by line."""
    got, want = student.build_prompt(*given, **more), reference.build_prompt(*given, **more)
    count = len(given[1])
    case = f"{count} example{'' if count == 1 else 's'}" + ("" if given[0] else " and no task")
    case += "".join(f", {key}={value!r}" for key, value in more.items())
    if not isinstance(got, str):
        expectations.equal(got, want, what="the prompt", case=case)
    if got == want:
        return
    mine, right = got.split("\n"), want.split("\n")
    for number, (actual, expected) in enumerate(zip(mine, right, strict=False), start=1):
        expectations.equal(actual, expected, what=f"line {number} of the prompt", case=case)
    raise Mistake(f"the prompt should have {len(right)} lines, but has {len(mine)} for {case}.")


@promises("task", "query-last", "newlines")
@exercise("build_prompt")
def test_prompt_zero_shot(student, reference):
    """Without examples: the task's description and the query with its arrow, nothing behind it."""
    for query, _ in FRENCH[2:]:
        same_prompt(student, reference, TASK, [], query)


@promises("examples", "newlines")
@exercise("build_prompt", 2)
def test_prompt_few_shot(student, reference):
    """One line `x => y` for each example, in order, between the task and the query."""
    for count in (1, 3):
        same_prompt(student, reference, TASK, FRENCH[:count], "cheese")


@promises("task")
@exercise("build_prompt")
def test_prompt_without_task(student, reference):
    """An empty description is left out, with its line."""
    for count in (0, 2):
        same_prompt(student, reference, "", FRENCH[:count], "cheese")


@promises("examples")
@exercise("build_prompt")
def test_prompt_arrows(student, reference):
    """The arrow is the caller's: it stands right behind x, and one space before y."""
    for arrow in (" ->", ":", " means", " ⇒"):
        same_prompt(student, reference, TASK, FRENCH[1:3], "cheese", arrow=arrow)


@hidden
@exercise("build_prompt")
def test_prompt_many(student, reference, draw):
    """Many examples, twice the same, the query among them, and text with signs of its own."""
    words = [f"word {number}" for number in draw.permutation(30).tolist()]
    examples = list(zip(words[:15], words[15:], strict=True))
    same_prompt(student, reference, "Map each word to another.", examples * 2, words[0])
    odd = [("2 + 2 => 4", "yes"), ("{x} %s", "\\n"), ("a  b", "c"), (" a ", " b ")]
    same_prompt(student, reference, " Is {this} right? ", odd, "{0} => %d")
    for task in ("", TASK):
        same_prompt(student, reference, task, [], " a ", arrow=" => ")


@hidden
@exercise("build_prompt")
def test_prompt_leaves_examples(student, reference):
    """The list of examples stays as it is."""
    seen = student.observe("build_prompt", TASK, FRENCH[:2], "cheese", grad=False)
    want = reference.build_prompt(TASK, FRENCH[:2], "cheese")
    expectations.equal(seen.value, want, what="the prompt", case="2 examples")
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# answer_scores
# --------------------------------------------------------------------------------------------


class Tables:
    """The student's TableModel and the reference's, with the same table."""

    def __init__(self, student, reference, values, **more) -> None:
        self.student, self.reference = student, reference
        self.mine, self.theirs = (
            proxy.module("TableModel", table=values, **more) for proxy in (student, reference)
        )

    def same(self, prompt, answers, case, **more):
        """The scores are the reference's, or the student's own log_likelihood's."""
        got = self.student.answer_scores(self.mine, prompt, answers, **more)
        want = self.reference.answer_scores(self.theirs, prompt, answers, **more)
        case += "".join(f", {key}={value}" for key, value in more.items())
        given = prompt, answers, more.get("per_token", True)
        same_answers(self.student, got, want, lambda parts: self.theirs, *given, case)


def same_answers(student, got, want, make, prompt, answers, per_token, case):
    """The scores are the ones wanted, or those of the student's own log_likelihood.

    It is asked answer by answer and for all at once: what it should leave out it may count, so
    that the two need not be the same. `make(parts)` is the model.
    """
    longest = len(prompt) + max(map(len, answers))
    rows = [[*prompt, *answer] for answer in answers]
    inside = torch.arange(longest) >= len(prompt)
    counts = torch.tensor([len(answer) for answer in answers]) if per_token else 1

    def at_once(parts):
        ids = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
        mask = inside & (torch.arange(longest) < torch.tensor([[len(row)] for row in rows]))
        return parts.proxy.log_likelihood(make(parts)(ids), ids, mask) / counts

    def one_by_one(parts):
        model, found = make(parts), []
        for row in rows:
            ids = torch.tensor([row])
            found.append(parts.proxy.log_likelihood(model(ids), ids, inside[None, : len(row)]))
        return torch.cat(found) / counts

    try:
        expectations.close(got, want, what="the result", case=case)
    except Mistake:
        found = (by_parts(student, own) for own in (at_once, one_by_one))
        if not (by_parts(student, likely) and any(same_values(got, own) for own in found)):
            raise


@promises("all-of-the-answer")
@exercise("answer_scores")
def test_answers_one_token(student, reference, draw):
    """Answers of one token: the log-probability of each after the last token of the prompt."""
    both = Tables(student, reference, table(draw))
    for length in (1, 3):
        (prompt,) = texts(draw, length)
        answers = [[5], [8], [6]]
        both.same(prompt, answers, f"a prompt of {length} and answers {answers}")


@promises("mean", "all-of-the-answer")
@exercise("answer_scores", 2)
def test_answers_mean(student, reference, draw):
    """Longer answers: the mean over their tokens, each after the prompt and those before it."""
    both = Tables(student, reference, table(draw))
    for lengths in ([3], [2, 2], [3, 1, 4]):
        prompt, *answers = texts(draw, 3, *lengths)
        both.same(prompt, answers, f"a prompt of 3 and answers of {lengths} tokens")


@promises("sum")
@exercise("answer_scores")
def test_answers_sum(student, reference, draw):
    """With per_token=False it is the sum."""
    both = Tables(student, reference, table(draw))
    for lengths in ([1], [3, 1, 2]):
        prompt, *answers = texts(draw, 2, *lengths)
        case = f"a prompt of 2 and answers of {lengths} tokens"
        both.same(prompt, answers, case, per_token=False)


@promises("bad-input")
@exercise("answer_scores")
def test_answers_refusals(student, reference, draw):
    """Empty prompts and answers, and more than the context, are refused; a full context is not."""
    both = Tables(student, reference, table(draw), max_length=6)
    prompt, one, two, long = texts(draw, 3, 1, 2, 3)
    refuses(
        lambda *given: student.answer_scores(both.mine, *given),
        {
            "an empty prompt": ([], [two, long]),
            "an empty list of answers": (prompt, []),
            "an empty answer": (prompt, [one, []]),
            "a prompt of 3 and an answer of 9 where the context is 6": (prompt, [long * 3]),
            "a prompt of 3 and answers of 1 and 4 where the context is 6": (prompt, [one, two * 2]),
        },
    )
    both.same(prompt, [long, one], "a prompt of 3 and answers of 3 and 1 where the context is 6")


@hidden
@exercise("answer_scores")
def test_answers_places(student, reference, draw):
    """A model that looks at positions: everything stands where it does in the whole text."""
    both = Tables(student, reference, table(draw, positions=9), max_length=9)
    for length, lengths in [(1, [3, 1]), (5, [4, 2, 3]), (2, [1, 7])]:
        prompt, *answers = texts(draw, length, *lengths)
        for per_token in (True, False):
            case = f"a prompt of {length} and answers of {lengths} tokens"
            both.same(prompt, answers, case, per_token=per_token)


@hidden
@exercise("answer_scores")
def test_answers_ordinary(student, reference, draw):
    """PAD and all special ids count like others; float64 stays; a long prompt."""
    both = Tables(student, reference, table(draw).double())
    for prompt, answers in [
        ([5], [[6, PAD, 7], [PAD], [8]]),
        ([PAD, 5, PAD], [[PAD, PAD], [END], [START, EXTRACT, DELIMITER]]),
    ]:
        both.same(prompt, answers, f"a prompt {prompt} and answers {answers}, float64")
    values = table(draw)
    values[:, PAD] = -torch.inf
    both = Tables(student, reference, values)
    case = "a model that never says PAD, a prompt of 2 and answers of 1, 3 and 2 tokens"
    both.same([5, 6], [[7], [8, 5, 6], [7, 7]], case)
    both = Tables(student, reference, table(draw), max_length=1100)
    case = "a prompt of 1050 and answers of 1 and 2 tokens"
    both.same(texts(draw, 1050)[0], [[7], [8, 5]], case, per_token=False)


@exercise("answer_scores")
def test_answers_lengths(student, reference, draw):
    """What is longer than max_length is refused, though the model itself would take it."""
    options = {"num_embeddings": 9, "embedding_dim": 9}
    values = table(draw)
    model, theirs = pair(student, reference, "nn.Embedding", state={"weight": values}, **options)
    for each in (model, theirs):
        each.method("__setattr__", "max_length", 3)
    given = [5, 6], [[7], [8]]
    got, want = student.answer_scores(model, *given), reference.answer_scores(theirs, *given)
    case = "as many tokens as max_length"
    same_answers(student, got, want, lambda parts: theirs, *given, True, case)
    refuses(
        lambda *given: student.answer_scores(model, *given),
        {
            "a prompt of 2 and an answer of 2 where max_length is 3": ([5, 6], [[7, 8]]),
            "a prompt of 2 and answers of 1, 2 and 1 where max_length is 3": (
                [5, 6],
                [[7], [8, 5], [6]],
            ),
        },
    )


@hidden
@promises("one-score-each")
@exercise("answer_scores")
def test_answers_order(student, reference, draw):
    """Scores stand in the order of the answers, equal ones too; the lists stay; nothing overflows.

    Logits are in the hundreds.
    """
    both = Tables(student, reference, 200 * table(draw))
    prompt, one, two, three = texts(draw, 3, 2, 4, 1)
    answers = [two, one, two, three, one]
    both.same(prompt, answers, "five answers, two of them twice, and logits in the hundreds")
    seen = student.observe("answer_scores", both.mine, prompt, answers, grad=False)
    expectations.shape(seen.value, (5,), what="the result")
    expectations.unchanged(seen)


@hidden
@promises("one-score-each")
@exercise("answer_scores", 2)
def test_answers_gpt(student, reference, draw):
    """A GPT, up to its max_length: every answer is scored by itself, and without a gradient."""
    options = gpt_options(context=7, dropout=0.2)
    state = gpt_state(draw, options)
    prompt, *answers = texts(draw, 3, 2, 4, 1, 4)

    def model(parts):
        return parts.proxy.module("GPT", state=state, **options)

    own = own_gpt_scores(student, model, prompt, answers)
    if own is None:  # The student's own GPT is none that can be asked: a table is.
        both = Tables(student, reference, table(draw, positions=7), max_length=7)
        both.same(
            prompt, answers, "a model of 7 positions, a prompt of 3, answers of 2, 4, 1 and 4"
        )
        return
    mine = student.module("GPT", state=state, **options)
    before, ids = mine.state(), torch.tensor([prompt])
    learns = learning(mine, ids)
    for per_token, want in zip((True, False), own, strict=True):
        seen = student.observe("answer_scores", mine, prompt, answers, per_token)
        case = f"your GPT, a prompt of 3, answers of 2, 4, 1 and 4 tokens, per_token={per_token}"
        given = prompt, answers, per_token
        same_answers(student, seen.value, want, model, *given, case)
        expectations.true(
            all(grad is None for grad in seen.grads.values()),
            "The scores carry gradients that nobody needs; compute them under torch.no_grad().",
        )
        expectations.unchanged(seen)
    for name, value in mine.state().items():
        expectations.close(value, before[name], what=f"the parameter {name} afterwards")
    expectations.true(
        learning(mine, ids) or not learns,
        "After your answer_scores no gradient reaches the weights of the model any more; leave "
        "their requires_grad as it is, and use torch.no_grad() as a context.",
    )


def learning(model, ids):
    """Whether a gradient reaches any weight of the model."""
    return any(grad is not None for grad in model.observe(ids).grads.values())


def own_gpt_scores(student, model, prompt, answers):
    """Means and sums as the student's own GPT gives them; None unless it is causal.

    If it is not, they would depend on what else the network is shown, which is free.
    """

    def scores(parts):
        gpt = model(parts)
        sums = []
        for answer in answers:
            ids = torch.tensor([[*prompt, *answer]])
            logits = alive(gpt(ids))
            if not expectations.close_enough(gpt(ids[:, :-1]), logits[:, :-1]):
                return None
            positions = torch.arange(len(prompt) - 1, ids.shape[1] - 1)
            sums.append(logits[0].log_softmax(-1)[positions, ids[0, positions + 1]].sum())
        return torch.stack(sums)

    sums = by_parts(student, scores)
    if sums is None:
        return None
    return sums / torch.tensor([len(answer) for answer in answers]), sums
