"""What the graders of several units of BERT share."""

from __future__ import annotations

import torch

from autograder.graders.common import State, attention_state, linear, norm_state
from autograder.graders.parts import arrive
from autograder.judging import expectations

PAD, UNK, CLS, SEP, MASK = 0, 1, 2, 3, 4
SPECIAL = 5  # ids below it are special
IGNORE = -100


def embeddings_state(draw, vocabulary, width, length, segments=2, prefix="") -> State:
    return {
        f"{prefix}token.weight": draw.normal(vocabulary, width),
        f"{prefix}position.weight": draw.normal(length, width),
        f"{prefix}segment.weight": draw.normal(segments, width),
        **norm_state(draw, f"{prefix}norm", width),
    }


def layer_state(draw, width, inner, prefix="") -> State:
    return {
        **attention_state(draw, width, f"{prefix}attention."),
        **norm_state(draw, f"{prefix}attention_norm", width),
        **linear(draw, f"{prefix}w_1", inner, width),
        **linear(draw, f"{prefix}w_2", width, inner),
        **norm_state(draw, f"{prefix}output_norm", width),
    }


def bert_options(vocabulary=9, width=6, layers=1, heads=2, inner=5, length=8, **more):
    return {
        "vocab_size": vocabulary,
        "d_model": width,
        "num_layers": layers,
        "num_heads": heads,
        "d_ff": inner,
        "max_length": length,
        "dropout": 0.0,
        **more,
    }


def bert_state(draw, options, prefix="") -> State:
    """Random parameters of a BertModel; none of them is 0 or 1."""
    width, inner = options["d_model"], options["d_ff"]
    state = embeddings_state(
        draw,
        options["vocab_size"],
        width,
        options["max_length"],
        options.get("type_vocab_size", 2),
        f"{prefix}embeddings.",
    )
    for number in range(options["num_layers"]):
        state |= layer_state(draw, width, inner, f"{prefix}layers.{number}.")
    return state | linear(draw, f"{prefix}pooler", width, width)


def real(lengths, longest=None):
    """The mask (B, T) of rows with the given numbers of real tokens."""
    return torch.arange(longest or max(lengths)) < torch.tensor(lengths).unsqueeze(1)


def inputs(draw, lengths, longest=None, high=9, segments=2):
    """Ids, segments and mask of rows with the given numbers of tokens; PAD and 0 behind them."""
    mask = real(lengths, longest)
    ids = draw.integers(SPECIAL, high, *mask.shape).masked_fill(~mask, PAD)
    ids[:, 0] = CLS
    return ids, draw.integers(0, segments, *mask.shape).masked_fill(~mask, 0), mask


def same_names(student, reference, state, case):
    """The reference's names, each with the tensor that it had."""
    got, want = student.rename_parameters(state), reference.rename_parameters(state)
    expectations.true(isinstance(got, dict), f"the result should be a dict{f' for {case}'}.")
    missing, extra = sorted(set(want) - set(got)), sorted(map(str, set(got) - set(want)))
    expectations.true(
        not missing, f"There is no {', '.join(missing[:4])} in the result for {case}."
    )
    expectations.true(not extra, f"The result should not have {', '.join(extra[:4])} for {case}.")
    for name, value in want.items():
        expectations.close(got[name], value, what=f"the tensor called {name}", case=case)


def same_default_sizes(student, name):
    """Without their arguments a model has BERT-base's sizes; next to nothing is computed."""
    mine = student.module(name, vocab_size=7, d_model=12)
    shapes = {key.removeprefix("bert."): shape for key, shape in mine.parameters().items()}
    layers = {key.split(".")[1] for key in shapes if key.startswith("layers.")}
    expectations.equal(len(layers), 12, what="the number of layers", case="num_layers not given")
    for key, rows, argument in [
        ("layers.0.w_1.weight", 3072, "d_ff"),
        ("embeddings.position.weight", 512, "max_length"),
        ("embeddings.segment.weight", 2, "type_vocab_size"),
    ]:
        found = shapes.get(key, [0])[0]
        expectations.equal(
            found, rows, what=f"the number of rows of {key}", case=f"{argument} not given"
        )
    few = {"vocab_size": 7, "num_layers": 1, "d_ff": 2}
    for words, given in {
        "d_model=8 with the 12 heads of the default": {"d_model": 8},
        "d_model=18 with the 12 heads of the default": {"d_model": 18},
        "512 heads with the d_model=768 of the default": {"num_heads": 512},
    }.items():
        expectations.raises(
            "ValueError", lambda given=given: student.module(name, **few, **given), what=words
        )


# --------------------------------------------------------------------------------------------
# What the tests of tagging, relatives and language models share
# --------------------------------------------------------------------------------------------


def lstm_state(draw, name, inputs, width, directions=("",)) -> State:
    """The parameters of an nn.LSTM of one layer; a direction is the end of their names."""
    state = {}
    for end in directions:
        state |= {
            f"{name}.weight_ih_l0{end}": draw.normal(4 * width, inputs, scale=0.8),
            f"{name}.weight_hh_l0{end}": draw.normal(4 * width, width, scale=0.8),
            f"{name}.bias_ih_l0{end}": draw.normal(4 * width, scale=0.5),
            f"{name}.bias_hh_l0{end}": draw.normal(4 * width, scale=0.5),
        }
    return state


def arriving_gradients(mine, theirs, names, case=""):
    """In float64: a gradient reaches each of `names`; it is right where the values are."""
    same = expectations.close_enough(
        expectations.tensor(mine.value, what="the result"), theirs.value
    )
    arrive(mine, theirs, names, same, case)


def parameters_of(state, without=()):
    """The labels of the gradients of a module's parameters."""
    return {f"parameter {name}": name for name in state if name not in without}


def at_real_places(got, want, mask, what, case):
    """Vectors (B, T, ...) agree at real positions; what stands at padding is free."""
    expectations.shape(got, want.shape, what=what, case=case)
    for row, length in enumerate(mask.sum(dim=1).tolist()):
        expectations.close(
            got[row, :length],
            want[row, :length],
            what=f"{what} at the real positions of row {row}",
            case=case,
        )


def strided(*tensors):
    """The same values, laid out the other way round."""
    return tuple(value.mT.contiguous().mT for value in tensors)
