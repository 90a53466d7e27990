"""Graders of `transformer-decoding`: greedy decoding, beam search, the cache."""

from __future__ import annotations

import dataclasses

import torch

from autograder.graders.common import of_type, pair, refuses, same_number
from autograder.graders.transformer.common import (
    BOS,
    EOS,
    PAD,
    UNK,
    Models,
    as_list,
    heads,
    own_model,
    small,
    small_state,
    sources_of,
    triangle,
    whole_number,
)
from autograder.judging import expectations
from autograder.judging.grader_marks import aspect, exercise, hidden, promises
from autograder.judging.proxy import StudentError, Todo
from toolkit.kv_cache import DecoderCache, KVCache, LayerCache


def uncached(model, source, target):
    """A model's log-probabilities after each token of target, by encode, decode and generator.

    Every mask is the grader's own, since a model's own forward makes masks that may be wrong.
    """
    mask = (source != PAD).unsqueeze(1)
    causal = triangle(target.shape[1])
    memory = expectations.tensor(
        model.method("encode", source, mask), what="the memory of your model"
    )
    states = model.method("decode", memory, mask, target, causal)
    said = expectations.tensor(model.method("generator", states), what="the output of your model")
    expectations.true(not bool(said.isnan().all()), "Your model returns nothing but NaN.")
    return memory, said


# --------------------------------------------------------------------------------------------
# What the searches share
# --------------------------------------------------------------------------------------------


def random_table(draw, sources=1, steps=4, vocabulary=6, scale=1.5):
    """A table of random logits, which depend on source, position and previous token."""
    return draw.normal(sources, steps, vocabulary, vocabulary, scale=scale).double()


def table_pair(student, reference, table):
    return pair(student, reference, "TableModel", table=table)


def first_tokens(*first):
    """Sources whose first tokens are given: a table needs no more."""
    return torch.tensor([[token] for token in first])


def misleading_table():
    """Token 4 is more probable, 0.6 to 0.4, but EOS follows 5 with 0.95 and 4 with 0.5."""
    table = torch.full((1, 2, 6, 6), -20.0, dtype=torch.float64)
    table[0, 0, BOS, [4, 5]] = torch.tensor([0.6, 0.4], dtype=torch.float64).log()
    table[0, 1, 4, [EOS, 4, 5]] = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    table[0, 1, 5, [EOS, 4]] = torch.tensor([0.95, 0.05], dtype=torch.float64).log()
    return table


def ending_table(draw, ends, steps=6, vocabulary=6):
    """A random table in which source s ends after ends[s] tokens, or never for None."""
    table = random_table(draw, len(ends), steps, vocabulary)
    table[:, :, :, EOS] = -20.0
    for source, end in enumerate(ends):
        if end is not None:
            table[source, end - 1, :, EOS] = 20.0
    return table


def telling_state(draw):
    """Parameters of a Transformer that tells whether a search hides what it should hide.

    Most random Transformers write much the same for every source, mask or no mask. This one, the
    best of a thousand, writes something else for seven padded sources in ten as soon as one of the
    masks is missing. Its numbers are the same for every draw and do not depend on the order of the
    names; PAD is never likely, so that it makes no difference whether a search masks it.
    """
    state = {}
    for name, like in small_state(draw, 2, tgt_vocab_size=16).items():
        numbers = type(draw)(520, name)
        kind = name.split(".")[-1]
        if kind == "weight":
            scale = (4.0 if "lut" in name else 1.2) * like.shape[1] ** -0.5
        else:
            scale = 0.3 if kind == "bias" else 0.2
        state[name] = numbers.normal(*like.shape, scale=scale).double() + (kind == "gamma")
    state["generator.proj.bias"][PAD] = -60.0
    return state


class OwnModel:
    """The student's own Transformer; a table while there is none that runs.

    The searches must work with any model, and mistakes in the layers cost nothing here: where the
    output of the student's model differs from the reference's, `right` is False, and its own output
    is what counts.
    """

    def __init__(self, student, reference, draw):
        state = telling_state(draw)
        self.table = random_table(draw, sources=7, vocabulary=16)
        self.table[..., PAD] = -60.0
        options = small(2, tgt_vocab_size=16)
        self.theirs = reference.module(
            "EncoderDecoder", state=state, dtype=torch.float64, **options
        )
        start = sources_of(draw, [4, 2]), draw.integers(UNK + 1, 16, 2, 3)
        wanted = self.theirs(*start)
        try:
            self.model = student.module(
                "EncoderDecoder", state=state, dtype=torch.float64, **options
            )
            said = self.model(*start)
            self.whole = isinstance(said, torch.Tensor) and said.shape == wanted.shape
        except (StudentError, Todo):
            self.whole = False
        self.right = self.whole and expectations.close_enough(said, wanted)
        if not self.whole:
            self.model = student.module("TableModel", table=self.table)

    def log_probs(self, source, ids):
        """Its log-probabilities of the next token along the rows of ids: (B, n, V)."""
        fed = torch.cat([torch.full_like(ids[:, :1], BOS), ids[:, :-1]], dim=1)
        if self.whole:
            return uncached(self.model, source, fed)[1].double()
        place = torch.arange(fed.shape[1]).clamp(max=self.table.shape[1] - 1)
        return self.table[source[:, :1], place, fed].log_softmax(-1)


# --------------------------------------------------------------------------------------------
# greedy_decode
# --------------------------------------------------------------------------------------------


def same_greedy(student, reference, models, source, length, case):
    mine, theirs = models
    expectations.close(
        student.greedy_decode(mine, source, length),
        reference.greedy_decode(theirs, source, length),
        what="the ids",
        case=case,
    )


@promises("all-tokens-so-far")
@exercise("greedy_decode")
def test_greedy_one_row(student, reference, draw):
    """From BOS on, each step takes the most probable token; EOS is in the result, BOS is not."""
    ends = [1, 4]
    models = table_pair(student, reference, ending_table(draw, ends))
    for row, end in enumerate(ends):
        case = f"one source, EOS at token {end}"
        same_greedy(student, reference, models, first_tokens(row), 6, case)


@hidden
@promises("when-to-stop")
@exercise("greedy_decode")
def test_greedy_max_length(student, reference, draw):
    """Without EOS the result has max_length tokens, and no more."""
    models = table_pair(student, reference, ending_table(draw, [None, 3]))
    for length in (1, 5, 150):
        case = f"a source that never ends, max_length={length}"
        same_greedy(student, reference, models, first_tokens(0), length, case)
    case = "two sources, one of which never ends, max_length=4"
    same_greedy(student, reference, models, first_tokens(0, 1), 4, case)


@promises("finished-rows", "length")
@exercise("greedy_decode", weight=2)
def test_greedy_rows_end_apart(student, reference, draw):
    """A finished row gets PAD while others continue; the longest determines the result's length."""
    ends = [2, 5, 1, 2, 3]
    table = ending_table(draw, ends)
    # After EOS this table would go on with token 5, EOS again and so on.
    table[:, :, EOS, 5] += 9.0
    models = table_pair(student, reference, table)
    for rows in ([2, 4], [0, 1, 2, 3, 4]):
        case = f"sources that end after {[ends[row] for row in rows]} tokens"
        same_greedy(student, reference, models, first_tokens(*rows), 8, case)


def encodes_once(student, name, model, *args):
    calls = student.calls("encode", name, model, *args)
    expectations.true(
        calls <= 1,
        f"Your {name} calls `encode` {calls} times for one source; call it once, before the first "
        "step: the memory stays the same.",
        misconception=f"{name.partition('_')[0]}_encodes_each_step",
    )


@aspect
@promises("encoded-once")
@exercise("greedy_decode")
def test_greedy_encodes_once(student, draw):
    """The source is encoded once, however many tokens are written."""
    mine = student.module("TableModel", table=ending_table(draw, [4]))
    encodes_once(student, "greedy_decode", mine, first_tokens(0), 6)


@promises("bad-length")
@exercise("greedy_decode")
def test_greedy_refusals(student, draw):
    """A max_length below 1 raises a ValueError."""
    mine = student.module("TableModel", table=random_table(draw))
    refuses(
        lambda length: student.greedy_decode(mine, first_tokens(0), length),
        {"max_length=0": (0,), "max_length=-3": (-3,)},
    )


@aspect
@promises("source-mask")
@exercise("greedy_decode", weight=2)
def test_greedy_transformer(student, reference, draw):
    """Every row follows the model's own argmax, and never attends to padding of its source."""
    own = OwnModel(student, reference, draw)
    source = sources_of(draw, [6, 2, 4, 1, 3, 4, 2, 3, 1, 2, 4, 3])
    case = "padded sources, a Transformer as the model"
    wanted = reference.greedy_decode(own.theirs, source, 7)
    seen = student.observe("greedy_decode", own.model, source, 7, grad=False)
    expectations.unchanged(seen)
    ids = expectations.tensor(seen.value, what="the ids")
    if own.right:
        expectations.close(ids, wanted, what="the ids", case=case)
        for row in range(1, 7):
            case = f"row {row} of these sources alone, padding included"
            models = own.model, own.theirs
            same_greedy(student, reference, models, source[row : row + 1], 7, case)
        return
    expectations.true(
        ids.ndim == 2 and len(ids) == 12 and 1 <= ids.shape[1] <= 7 and ids.dtype == torch.int64,
        f"the ids should be int64 of the shape (12, at most 7), but are {ids.dtype} of "
        f"{tuple(ids.shape)} for {case}.",
    )
    expectations.true(
        bool(((ids >= 0) & (ids < 16)).all()), f"the ids should be in the vocabulary for {case}."
    )
    over = torch.cumsum(ids == EOS, dim=1) - (ids == EOS).long() > 0  # after the first EOS
    expectations.true(
        not bool(over.all(0).any()) and (ids.shape[1] == 7 or bool((ids == EOS).any(1).all())),
        f"the ids should end when every row has produced EOS, or after 7 tokens, for {case}.",
    )
    wanted = own.log_probs(source, ids).argmax(-1).masked_fill(over, PAD)
    expectations.equal(ids, wanted, what="the ids", case=case)


@hidden
@exercise("greedy_decode", weight=3)
def test_greedy_random_tables(student, reference, draw):
    """Any table, any batch; PAD, BOS and UNK are tokens like others, and some are impossible."""
    table = random_table(draw, 5, 7, 7)
    table[:, :, :, PAD] += 1.0
    table[draw.uniform(*table.shape) < 0.2] = -torch.inf
    table[:, :, :, 5] = 0.0
    models = table_pair(student, reference, table)
    for batch, length in [(1, 20), (9, 9)]:
        source = draw.integers(0, 5, batch, 3)
        case = f"a random table, B={batch} and max_length={length}"
        same_greedy(student, reference, models, source, length, case)


# --------------------------------------------------------------------------------------------
# beam_search
# --------------------------------------------------------------------------------------------


def ids_of(found, what, case):
    """The ids of a hypothesis: a list of ints."""
    return [whole_number(token, what, case) for token in as_list(found, what, case)]


def same_hypotheses(got, want, case=""):
    """The same hypotheses with the same scores, best first; equal scores in any order."""
    pairs = []
    for place, entry in enumerate(as_list(got, "the result", case)):
        ids, score = expectations.pair(entry, what=f"entry {place} of the result")
        pairs.append((ids_of(ids, f"the ids of hypothesis {place}", case), score))
    left = [(list(ids), score) for ids, score in want]
    for place, (ids, score) in enumerate(pairs[: len(want)]):
        wanted = left[0]
        equal = [one for one in left if abs(one[1] - wanted[1]) <= 1e-9]
        wanted = next((one for one in equal if one[0] == ids), wanted)
        expectations.true(
            ids == wanted[0],
            f"the ids of hypothesis {place} should be {wanted[0]}, but are {ids} for {case}.",
        )
        same_number(score, wanted[1], what=f"the score of hypothesis {place}", case=case)
        left.remove(wanted)
    expectations.true(
        len(pairs) == len(want),
        f"the result should hold {len(want)} hypotheses, but holds {len(pairs)} for {case}.",
    )


def same_beam(student, reference, models, case, *arguments, source=0, **options):
    mine, theirs = models
    same_hypotheses(
        student.beam_search(mine, first_tokens(source), *arguments, **options),
        reference.beam_search(theirs, first_tokens(source), *arguments, **options),
        case,
    )


@promises("pairs", "encoded-once")
@exercise("beam_search")
def test_beam_of_one(student, reference, draw):
    """A beam of 1 is greedy search: one hypothesis, scored for alpha=0; one call of encode."""
    models = table_pair(student, reference, ending_table(draw, [3, None]))
    for source, words, length in [(0, "at token 3", 4), (1, "never", 3)]:
        case = f"a beam of 1, EOS {words}, max_length={length}, alpha=0"
        same_beam(student, reference, models, case, 1, length, 0.0, source=source)
    encodes_once(student, "beam_search", models[0], first_tokens(0), 1, 4)


@exercise("beam_search")
def test_beam_beats_greedy(student, reference):
    """A beam of 2 finds what greedy search misses: 0.4 · 0.95 against 0.6 · 0.5."""
    models = table_pair(student, reference, misleading_table())
    case = "0.4 · 0.95 against 0.6 · 0.5, a beam of 2, alpha=0"
    same_beam(student, reference, models, case, 2, 2, 0.0)


@promises("extensions", "k-best-of-all")
@exercise("beam_search")
def test_beam_values(student, reference, draw):
    """Hypotheses, their order and their scores, for beams of several sizes."""
    table = random_table(draw, 2, 5)
    table[:, 0, :, EOS] -= 3.0
    models = table_pair(student, reference, table)
    for beam, length, source in [(2, 3, 0), (6, 5, 1)]:
        case = f"a beam of {beam}, max_length={length}"
        same_beam(student, reference, models, case, beam, length, source=source)


@promises("finished-leave", "live-join")
@exercise("beam_search", weight=2)
def test_beam_finished_leave(student, reference, draw):
    """Finished hypotheses leave the beam, which shrinks; live ones join at the end as they are."""
    table = random_table(draw, 2, 5)
    table[0, :, :, EOS] += 1.5
    table[1, :, :, EOS] = -20.0
    models = table_pair(student, reference, table)
    for beam, length in [(3, 4), (4, 5)]:
        case = f"hypotheses that end early, a beam of {beam}, max_length={length}"
        same_beam(student, reference, models, case, beam, length)
    for length in (3, 150):
        case = f"no hypothesis that ends, a beam of 3, max_length={length}"
        same_beam(student, reference, models, case, 3, length, source=1)


@promises("length-penalty")
@exercise("beam_search", weight=2)
def test_beam_length_penalty(student, reference, draw):
    """The score is the log-probability divided by ((5 + len(ids)) / 6) ** alpha, EOS counted."""
    # exp(-1) at once against exp(-1.24) in three tokens: the order turns with alpha.
    table = torch.full((2, 5, 6, 6), -30.0, dtype=torch.float64)
    table[0, 0, BOS, [EOS, 4]] = torch.tensor([-1.0, -0.46], dtype=torch.float64)
    table[0, 1, 4, [5, 3]] = torch.tensor([-0.48, -0.97], dtype=torch.float64)
    table[0, 2, 5, [EOS, 4]] = torch.tensor([-0.3, -1.35], dtype=torch.float64)
    table[1] = random_table(draw, 1, 5)
    table[1, :, :, EOS] += 1.5
    models = table_pair(student, reference, table)
    for alpha in (0.0, 1.0):
        case = f"a short and a long hypothesis, alpha={alpha}"
        same_beam(student, reference, models, case, 2, 3, alpha)
    for alpha in (0.6, 5.0):
        case = f"a beam of 4, alpha={alpha}"
        same_beam(student, reference, models, case, 4, 5, source=1, alpha=alpha)


@promises("bad-input")
@exercise("beam_search")
def test_beam_refusals(student, draw):
    """beam_size or max_length below 1, negative alpha or several sources raise a ValueError."""
    mine = student.module("TableModel", table=random_table(draw, 2))
    one = first_tokens(0)
    refuses(
        student.beam_search,
        {
            "beam_size=0": (mine, one, 0, 3),
            "max_length=0": (mine, one, 2, 0),
            "alpha=-0.5": (mine, one, 2, 3, -0.5),
            "two sources": (mine, first_tokens(0, 1), 2, 3),
            "no source": (mine, torch.zeros(0, 3, dtype=torch.int64), 2, 3),
        },
    )


@promises("masks")
@exercise("beam_search")
def test_beam_transformer(student, reference, draw):
    """Each score is the Transformer's own score of the hypothesis, for a padded source."""
    own = OwnModel(student, reference, draw)
    source = sources_of(draw, [5, 3])[1:]  # (1, 5), two of them padding
    case = "a padded source, a Transformer as the model"
    wanted = reference.beam_search(own.theirs, source, 4, 5)
    found = student.beam_search(own.model, source, 4, 5)
    if own.right:
        same_hypotheses(found, wanted, case)
        return
    found = as_list(found, "the result", case)
    expectations.true(
        len(found) == 4, f"the result should hold 4 hypotheses for a beam of 4 and {case}."
    )
    pairs = [expectations.pair(entry, what="a hypothesis") for entry in found]
    rows = [ids_of(ids, "the ids of a hypothesis", case) for ids, _ in pairs]
    expectations.true(
        all(1 <= len(ids) <= 5 and min(ids) >= 0 and max(ids) < 16 for ids in rows),
        f"the ids of a hypothesis should be 1 to max_length ids of the vocabulary for {case}.",
    )
    padded = torch.tensor([[*ids, *[PAD] * (5 - len(ids))] for ids in rows])
    said = own.log_probs(source.expand(4, -1), padded).gather(-1, padded.unsqueeze(-1))
    for ids, (_, score), steps in zip(rows, pairs, said.squeeze(-1), strict=True):
        total = float(steps[: len(ids)].sum()) / ((5 + len(ids)) / 6) ** 0.6
        same_number(score, total, what=f"the score of {ids}", case=case)
    scores = [score for _, score in pairs]
    expectations.true(
        scores == sorted(scores, reverse=True),
        "the hypotheses should be sorted by score, best first.",
    )


@hidden
@exercise("beam_search", weight=2)
def test_beam_wide(student, reference, draw):
    """A beam that is wide enough finds all sequences, best first; with alpha, too."""
    models = table_pair(student, reference, random_table(draw, 1, 3, 5))
    case = "a beam of 150, V=5, max_length=3, alpha=1"
    same_beam(student, reference, models, case, 150, 3, alpha=1.0)


@hidden
@promises("k-best-of-all")
@exercise("beam_search", weight=2)
def test_beam_impossible_tokens(student, reference, draw):
    """Hypotheses of probability 0 are dropped, so that fewer than beam_size may be left."""
    table = random_table(draw, 1, 4, 6)
    table[:, :, :, [PAD, BOS, UNK]] = -torch.inf
    table[:, 0, :, 5] = -torch.inf
    table[:, 2, 4, :] = -torch.inf
    table[:, 2, 4, EOS] = 0.0
    models = table_pair(student, reference, table)
    for beam, length in [(3, 1), (8, 4)]:
        case = f"tokens of probability 0, a beam of {beam}, max_length={length}"
        same_beam(student, reference, models, case, beam, length)


@hidden
@exercise("beam_search", weight=2)
def test_beam_tiny_probabilities(student, reference, draw):
    """Log-probabilities are added, so improbable hypotheses don't vanish; ties in any order."""
    table = random_table(draw, 2, 2, 5)
    table[0, :, :, 3:] -= 900.0
    table[0, :, :, EOS] -= 901.0
    table[0, :, :, BOS] -= 900.0
    # Two tokens that are equally probable, whatever comes before.
    table[1] = -torch.inf
    table[1, :, :, [EOS, 4]] = 0.0
    models = table_pair(student, reference, table)
    case = "tokens of probability exp(-900), a beam of 9"
    same_beam(student, reference, models, case, 9, 2)
    case = "tokens of equal probability, a beam of 5"
    same_beam(student, reference, models, case, 5, 2, source=1)


# --------------------------------------------------------------------------------------------
# What the tests of the cache share
# --------------------------------------------------------------------------------------------


def cache_of(memory, mask, state, num_layers, num_heads=2):
    """The cache before the first step, of a memory that is given."""
    layers = [f"decoder.layers.{index}.src_attn" for index in range(num_layers)]
    nothing = memory.new_zeros(len(memory), num_heads, 0, memory.shape[-1] // num_heads)
    kept = [
        LayerCache(*(heads(memory, state, f"{name}.{kind}_proj", num_heads) for kind in "kv"))
        for name in layers
    ]
    empty = [LayerCache(nothing.clone(), nothing.clone()) for _ in layers]
    return DecoderCache(mask, KVCache(kept), KVCache(empty))


def whole_cache(cache, num_layers, case):
    """A cache has the stated types, and as many layers: its tensors, by their names."""
    of_type(cache, DecoderCache, "the cache", case)
    tensors = {"src_mask": cache.src_mask}
    for name in ("memory", "target"):
        part = getattr(cache, name)
        of_type(part, KVCache, f"{name} of the cache", case)
        layers = as_list(part.layers, f"the layers of {name}", case)
        expectations.true(
            len(layers) == num_layers,
            f"{name} should have {num_layers} layers, one for each of the decoder, "
            f"but has {len(layers)} for {case}.",
        )
        for number, layer in enumerate(layers):
            of_type(layer, LayerCache, f"{name}.layers[{number}]", case)
            for kind in ("keys", "values"):
                tensors[f"{name}.layers[{number}].{kind}"] = getattr(layer, kind)
    return tensors


def shaped(tensors, shapes, case):
    """Tensors of a cache have their shapes."""
    for name, shape in shapes.items():
        expectations.shape(tensors[name], shape, f"{name} of the cache", case=case)


def same_cache(cache, wanted, case, values=True):
    """A cache is the wanted one, at least in the shapes of its tensors."""
    right = whole_cache(wanted, len(wanted.memory.layers), case)
    tensors = whole_cache(cache, len(wanted.memory.layers), case)
    shaped(tensors, {name: tuple(tensor.shape) for name, tensor in right.items()}, case)
    expectations.true(
        tensors["src_mask"].dtype == torch.bool, f"src_mask should be bool for {case}."
    )
    for name, tensor in right.items() if values else ():
        expectations.close(tensors[name], tensor, what=f"{name} of the cache", case=case)


# --------------------------------------------------------------------------------------------
# start_cache
# --------------------------------------------------------------------------------------------


def started(student, draw, num_layers, lengths, norm_first=False, dtype=torch.float64, **sizes):
    """The student's cache before the first step, and the right one for their model's memory."""
    options = small(num_layers, norm_first, **sizes)
    state = small_state(draw, num_layers, norm_first)
    state = {name: value.to(dtype) for name, value in state.items()}
    model = student.module("EncoderDecoder", state=state, dtype=dtype, **options)
    source = sources_of(draw, lengths)
    seen = student.observe("start_cache", model, source, grad=False)
    mask = (source != PAD).unsqueeze(1)
    memory = expectations.tensor(
        model.method("encode", source, mask), what="the memory of your model"
    )
    return seen, cache_of(memory, mask, state, num_layers, options["num_heads"])


@aspect
@promises("empty-target")
@exercise("start_cache")
def test_cache_contract(student, draw):
    """A DecoderCache of two KVCaches, with all layers of the decoder and the stated shapes."""
    seen, wanted = started(student, draw, 2, [3, 4])
    same_cache(seen.value, wanted, "2 layers, B=2, S=4", values=False)
    expectations.unchanged(seen)


@promises("memory")
@exercise("start_cache")
def test_cache_memory(student, draw):
    """Each layer's own src_attn projects the memory, keys by k_proj and values by v_proj."""
    seen, wanted = started(student, draw, 2, [4, 4])
    same_cache(seen.value, wanted, "2 layers, sources of 4 tokens")


@promises("source-mask")
@exercise("start_cache")
def test_cache_padding(student, draw):
    """src_mask is the padding mask, and the encoder gets it, too."""
    seen, wanted = started(student, draw, 1, [2, 5, 3])
    same_cache(seen.value, wanted, "sources of 2, 5 and 3 tokens")


@hidden
@exercise("start_cache", weight=2)
def test_cache_other_models(student, draw):
    """Pre-norm, more heads, float32."""
    seen, wanted = started(
        student, draw, 2, [5, 1], norm_first=True, dtype=torch.float32, num_heads=4
    )
    same_cache(seen.value, wanted, "pre-norm, 4 heads, float32")


# --------------------------------------------------------------------------------------------
# decode_step
# --------------------------------------------------------------------------------------------


def random_cache(draw, num_layers, batch, length, sources, dtype=torch.float64):
    """A cache after `length` steps, of random numbers; `sources` are the lengths of the sources."""

    def layers(steps):
        pairs = [draw.normal(2, batch, 2, steps, 4).to(dtype) for _ in range(num_layers)]
        return KVCache([LayerCache(*pair.unbind()) for pair in pairs])

    longest = max(sources)
    mask = (torch.arange(longest) < torch.tensor(sources).unsqueeze(1)).unsqueeze(1)
    return DecoderCache(mask, layers(longest), layers(length))


def same_step(student, reference, models, token, cache, case):
    wanted, cache_after = reference.decode_step(models.theirs, token, cache)
    seen = student.observe("decode_step", models.mine, token, cache, grad=False)
    log_probs, after = expectations.pair(seen.value, what="the result (log_probs, cache)")
    if models.right:
        expectations.close(log_probs, wanted, what="the log-probabilities", case=case)
        same_cache(after, cache_after, case)
    expectations.unchanged(seen)


def steppers(student, reference, draw, num_layers, norm_first=False):
    """Two small models with the same parameters."""
    state = small_state(draw, num_layers, norm_first)
    return Models(student, reference, draw, state, **small(num_layers, norm_first))


@promises("position", "attends-to-all")
@exercise("decode_step", weight=2)
def test_step_values(student, reference, draw):
    """A step attends to all cached keys and its own; its position follows the cached ones."""
    models = steppers(student, reference, draw, 2)
    cache = random_cache(draw, 2, 2, 0, [3, 3])
    same_step(student, reference, models, torch.tensor([BOS, BOS]), cache, "an empty cache")
    cache = random_cache(draw, 2, 3, 4, [2, 4, 3])
    same_step(student, reference, models, draw.integers(4, 8, 3), cache, "4 cached positions")
    cache = random_cache(draw, 2, 1, 2, [2])
    cache = dataclasses.replace(cache, src_mask=torch.tensor([[[True, False]]]))
    case = "one row whose source ends with padding, the token EOS"
    same_step(student, reference, models, torch.tensor([EOS]), cache, case)
    cache = random_cache(draw, 2, 3, 1, [2, 3, 1])
    same_step(student, reference, models, torch.tensor([PAD, UNK, BOS]), cache, "PAD, UNK and BOS")
    if not models.right:  # Then the step is to agree with the student's own model.
        same_chain(student, models.mine, models.state, draw, 2, [3, 4], 3)


@exercise("decode_step", weight=2)
def test_step_norm_first(student, reference, draw):
    """Pre-norm: keys and values come from the normalised input, and there is a final norm."""
    models = steppers(student, reference, draw, 2, norm_first=True)
    cache = random_cache(draw, 2, 2, 3, [4, 2])
    token = draw.integers(4, 8, 2)
    same_step(student, reference, models, token, cache, "3 cached positions, pre-norm")
    if not models.right:
        same_chain(student, models.mine, models.state, draw, 2, [3, 4], 3)


@promises("new-cache")
@exercise("decode_step")
def test_step_grows_the_cache(student, draw):
    """Keys and values grow by one position; nothing else changes, nor does the given cache."""
    model = own_model(student, draw, num_layers=2)
    cache = random_cache(draw, 2, 2, 3, [3, 4])
    seen = student.observe("decode_step", model, draw.integers(4, 8, 2), cache, grad=False)
    log_probs, after = expectations.pair(seen.value, what="the result (log_probs, cache)")
    case = "3 cached positions"
    expectations.shape(log_probs, (2, 8), what="the log-probabilities", case=case)
    tensors = whole_cache(after, 2, case)
    shaped(tensors, {name: (2, 2, 4, 4) for name in tensors if name.startswith("target")}, case)
    old = [LayerCache(one.keys[:, :, :3], one.values[:, :, :3]) for one in after.target.layers]
    cut = DecoderCache(after.src_mask, after.memory, KVCache(old))
    same_cache(cut, cache, f"{case}, the old part")
    expectations.unchanged(seen)


@promises("attends-to-all")
@exercise("decode_step")
def test_step_source_mask(student, draw):
    """Masked positions of memory don't matter; the others do, and so does every cached key."""
    model = own_model(student, draw)
    cache = random_cache(draw, 1, 2, 3, [2, 4])
    token = draw.integers(4, 8, 2)

    def log_probs(**changes):
        changed = dataclasses.replace(cache, **changes)
        return expectations.tensor(
            expectations.pair(student.decode_step(model, token, changed))[0],
            what="the log-probabilities",
        )

    before = log_probs()
    padding = ~cache.src_mask.unsqueeze(-1)  # (2, 1, 4, 1)
    (memory,), (target,) = cache.memory.layers, cache.target.layers
    other = [torch.where(padding, part + 5.0, part) for part in (memory.keys, memory.values)]
    expectations.close(
        log_probs(memory=KVCache([LayerCache(*other)])),
        before,
        what="the log-probabilities",
        case="other memory at the padding",
    )
    for name, kind, place in (("memory", "values", 1), ("target", "keys", 0)):
        layer = {"memory": memory, "target": target}[name]
        part = getattr(layer, kind).clone()
        part[:, :, place] += draw.normal(2, 2, 4).double()
        changed = KVCache([dataclasses.replace(layer, **{kind: part})])
        gap = (log_probs(**{name: changed}) - before).abs().amax(-1)
        expectations.true(
            bool((gap > 1e-9).all()),
            f"the log-probabilities do not depend on position {place} of the {kind} in {name}.",
        )


def same_chain(student, model, state, draw, num_layers, lengths, steps):
    """Steps with a cache return what the student's own model returns without one."""
    source = sources_of(draw, lengths)
    target = draw.integers(4, 8, len(lengths), steps)
    target[:, 0] = BOS
    memory, said = uncached(model, source, target)
    cache = cache_of(memory, (source != PAD).unsqueeze(1), state, num_layers)
    for step in range(steps):
        got = student.decode_step(model, target[:, step], cache)
        log_probs, cache = expectations.pair(got, what="the result (log_probs, cache)")
        case = f"step {step} of {steps}, compared with the model without a cache"
        expectations.close(log_probs, said[:, step], what="the log-probabilities", case=case)


def chain(student, draw, num_layers, norm_first, lengths, steps):
    state = small_state(draw, num_layers, norm_first)
    options = small(num_layers, norm_first)
    model = student.module("EncoderDecoder", state=state, dtype=torch.float64, **options)
    same_chain(student, model, state, draw, num_layers, lengths, steps)


@hidden
@promises("equals-uncached")
@exercise("decode_step", weight=2)
def test_step_equals_uncached(student, draw):
    """Step by step the log-probabilities are those of the model without a cache."""
    chain(student, draw, 2, False, [4, 2, 3], 4)


@hidden
@exercise("decode_step")
def test_step_equals_uncached_norm_first(student, draw):
    """The same with pre-norm, for one row."""
    chain(student, draw, 1, True, [3], 3)


@hidden
@exercise("decode_step")
def test_step_extremes(student, reference, draw):
    """Seventy cached positions all count; improbable tokens have finite log-probabilities."""
    state = small_state(draw, 1)
    state["generator.proj.weight"] = 300.0 * state["generator.proj.weight"]
    models = Models(student, reference, draw, state, **small(1, max_length=80))
    cache = random_cache(draw, 1, 2, 70, [3, 2])
    case = "70 cached positions, logits of some hundreds"
    same_step(student, reference, models, draw.integers(4, 8, 2), cache, case)


@hidden
@promises("dtype-kept")
@exercise("decode_step")
def test_step_float32(student, draw):
    """Twelve cached positions, one row; a float32 model returns float32, in the cache, too."""
    state = {name: value.float() for name, value in small_state(draw, 1).items()}
    model = student.module("EncoderDecoder", state=state, dtype=torch.float32, **small())
    cache = random_cache(draw, 1, 1, 12, [2], torch.float32)
    got = student.decode_step(model, torch.tensor([6]), cache)
    log_probs, after = expectations.pair(got, what="the result (log_probs, cache)")
    case = "12 cached positions, float32"
    expectations.shape(log_probs, (1, 8), what="the log-probabilities", case=case)
    tensors = whole_cache(after, 1, case)
    shaped(tensors, {name: (1, 2, 13, 4) for name in tensors if name.startswith("target")}, case)
    (grown,) = after.target.layers
    for tensor in (log_probs, grown.keys, grown.values):
        expectations.true(
            tensor.dtype == torch.float32, f"the results should be float32, not {tensor.dtype}."
        )
    expectations.true(
        abs(float(log_probs.double().exp().sum()) - 1) < 1e-4,
        f"the probabilities should sum to 1 for {case}.",
    )
