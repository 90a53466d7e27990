"""The BERT reference against implementations written by others or another way."""

import functools
import itertools
import json
import math
import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from solutions import bert as br
from solutions.bert import CLS, IGNORE, MASK, PAD, SEP, SPECIAL
from tests import vocabularies
from tests.solutions import common
from tests.solutions.common import (
    DTYPES,
    FALSE_ALARM,
    close,
    cotangent,
    filled,
    same_with_gradients,
    within_rate,
)
from toolkit.bert.fine_tuning import fill_mask

SOURCE = Path(br.__file__).parent  # a file a unit
# Repeatable, and without a limit on the time of an example: this machine may be busy.
examples = settings(derandomize=True, deadline=None, database=None, max_examples=100)
VOCAB, WIDTH, HEADS, INNER, PLACES = 40, 16, 4, 24, 20
SIZES = {  # of the small models, in Hugging Face's words
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "max_position_embeddings": PLACES,
    "type_vocab_size": 3,
}


def small(dropout: float = 0.0) -> br.BertModel:
    return br.BertModel(VOCAB, WIDTH, 2, HEADS, INNER, PLACES, 3, dropout)


@pytest.fixture(scope="module")
def hf() -> Iterator[ModuleType]:
    """Hugging Face's library, imported late because it takes seconds, and told to stay offline."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        import transformers

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        yield transformers


def perturbed(module: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The module in dtype, with noise on every parameter, biases and norms included."""
    module = module.to(dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return module


def theirs_of(hf: ModuleType, kind: str, dtype: torch.dtype, **more: Any) -> nn.Module:
    """A small model of Hugging Face with weights that nobody chose, in evaluation mode."""
    model = getattr(hf, kind)(hf.BertConfig(**{**SIZES, **more}))
    # Theirs keeps the gradient of padding from its row of the table; in ours it is a row like any
    # other. What padding does to the values is the same.
    model.base_model.embeddings.word_embeddings.padding_idx = None
    return perturbed(model, dtype).eval()


def given_the_weights(ours: nn.Module, theirs: nn.Module) -> nn.Module:
    """Ours with their weights; fails if a parameter on either side stands for none."""
    state = br.rename_parameters(theirs.state_dict())
    if isinstance(ours, br.BertForPreTraining):
        state["mlm.token.weight"] = state["bert.embeddings.token.weight"]
    ours = ours.to(next(theirs.parameters()).dtype).eval()
    missing, foreign = ours.load_state_dict(state, strict=False)
    assert foreign == []
    # Their models for spans and tags have no pooler, and ours don't use it there.
    assert set(missing) <= {"bert.pooler.weight", "bert.pooler.bias"}
    return ours


def agree(
    ours: nn.Module, theirs: nn.Module, our_outputs: list[Tensor], their_outputs: list[Tensor]
) -> None:
    """Same values, and same gradients with respect to all parameters."""
    gradients = []
    for module, outputs in ((ours, our_outputs), (theirs, their_outputs)):
        named = dict(module.named_parameters())
        total = sum((o * cotangent(o)).sum() for o in outputs)
        found = torch.autograd.grad(total, list(named.values()), allow_unused=True)
        gradients.append({n: g for n, g in zip(named, found, strict=True) if g is not None})
    for number, (a, b) in enumerate(zip(our_outputs, their_outputs, strict=True)):
        close(a, b, f"output {number}")
    found, wanted = gradients[0], br.rename_parameters(gradients[1])
    assert found.keys() == wanted.keys()
    assert len(found) > 30
    for name, gradient in found.items():
        close(gradient, wanted[name], name)


def batch(lengths: Iterable[int] = (9, 5, 12), vocab: int = VOCAB) -> tuple[Tensor, Tensor, Tensor]:
    """Random ids and segments of these lengths, padded on the right, and their mask."""
    lengths = list(lengths)
    shape = (len(lengths), max(lengths))
    mask = torch.arange(shape[1]) < torch.tensor(lengths)[:, None]
    ids = torch.randint(SPECIAL, vocab, shape).masked_fill(~mask, PAD)
    ids[:, 0] = CLS
    return ids, torch.randint(3, shape).masked_fill(~mask, 0), mask


def leaf(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def follows(sample: Tensor, deviation: float) -> bool:
    """Whether a sample fits N(0, deviation^2), by the bound of Dvoretzky et al."""
    n = sample.numel()
    expected = torch.special.ndtr(sample.detach().double().flatten().sort().values / deviation)
    steps = torch.arange(n, dtype=torch.float64) / n
    distance = torch.maximum((expected - steps).abs(), (expected - steps - 1 / n).abs()).max()
    return bool(distance <= math.sqrt(math.log(2 / FALSE_ALARM) / (2 * n)))


# -------------------------------------------------------------------------------- what is given


def test_a_batch_is_padded_on_the_right():
    rows = [([2, 7, 3, 8, 3], [0, 0, 0, 1, 1]), ([2, 9, 3], [0, 0, 0])]
    ids, segments, mask = br.pad_batch(rows)
    assert ids.tolist() == [[2, 7, 3, 8, 3], [2, 9, 3, PAD, PAD]]
    assert segments.tolist() == [[0, 0, 0, 1, 1], [0] * 5]
    assert mask.tolist() == [[True] * 5, [True] * 3 + [False] * 2]
    assert (ids.dtype, segments.dtype, mask.dtype) == (torch.int64, torch.int64, torch.bool)


def test_weights_begin_as_berts():
    model = br.BertModel(300, 64, 2, 4, 128, 50)
    modules = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        owner = modules[name.rpartition(".")[0]]
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif isinstance(owner, nn.LayerNorm):
            assert (parameter == 1).all(), name
        else:
            assert follows(parameter, 0.02), name
    head = br.BertForPreTraining(300, 64, 1, 4, 128)
    for weight in (head.mlm.dense.weight, head.mlm.token.weight, head.nsp.weight):
        assert follows(weight, 0.02)
    assert not head.mlm.bias.any()
    for module in (
        br.SequenceClassifier(model, 30),
        br.Tagger(model, 30),
        br.SpanFinder(model),
        br.MultipleChoice(model),
    ):
        assert follows(module.classifier.weight, 0.02)
        assert not module.classifier.bias.any()


@pytest.mark.parametrize("width", [2, 7, 16])
def test_the_relative_code_holds_sines_then_cosines(width):
    distances = torch.tensor([[0, 1, 5], [-3, 90, 2]])
    code = br.relative_code(distances, width)
    assert code.shape == (2, 3, width)
    assert code.dtype == torch.float32
    half = (width + 1) // 2
    for row, column, k in itertools.product(range(2), range(3), range(width)):
        angle = distances[row, column].item() / 10000 ** (2 * (k % half) / width)
        expected = math.sin(angle) if k < half else math.cos(angle)
        assert code[row, column, k].item() == pytest.approx(expected, abs=1e-6)


# ----------------------------------------------------------------------------------------- input

pieces = st.lists(st.integers(SPECIAL, 99), min_size=1, max_size=12)


@given(pieces, st.none() | pieces, st.integers(5, 30))
@examples
def test_an_input_is_what_the_released_code_makes_of_it(first, second, max_length):
    """Written after create_pretraining_data.py: cut, then join."""
    a, b = list(first), list(second or [])
    while len(a) + len(b) > max_length - (2 if second is None else 3):
        del (a if len(a) > len(b) else b)[-1]
    tokens, types = [CLS, *a, SEP], [0] * (len(a) + 2)
    if second is not None:
        tokens, types = [*tokens, *b, SEP], types + [1] * (len(b) + 1)
    before = list(first), None if second is None else list(second)
    assert br.build_input(first, second, max_length) == (tokens, types)
    assert (first, second) == before


def test_the_shortest_inputs_keep_a_token_of_each_piece():
    assert br.build_input([7, 8, 9], max_length=3) == ([CLS, 7, SEP], [0, 0, 0])
    expected = ([CLS, 7, SEP, 9, SEP], [0, 0, 0, 1, 1])
    assert br.build_input([7, 8], [9, 9, 9], max_length=5) == expected
    assert len(br.build_input([7] * 600)[0]) == 512


# --------------------------------------------------------------------------------------- encoder


@DTYPES
def test_gelu_equals_torchs_exact_one(dtype):
    x = 3 * torch.randn(5, 40, dtype=dtype)
    same_with_gradients(br.gelu, F.gelu, [x])
    x = torch.tensor([-40.0, 0.0, 40.0], dtype=dtype)
    close(br.gelu(x), torch.relu(x))


@DTYPES
def test_embeddings_are_the_normalised_sum_of_one_hot_rows(dtype):
    module = perturbed(br.BertEmbeddings(VOCAB, WIDTH, PLACES, 3), dtype)
    names = ["token", "position", "segment"]
    assert [name for name, _ in module.named_parameters()] == [
        *(f"{name}.weight" for name in names),
        "norm.weight",
        "norm.bias",
    ]
    ids, segments, _ = batch()
    place = torch.arange(12).expand(3, 12)

    def theirs(kinds: Tensor) -> Tensor:
        tables = [module.get_submodule(name).weight for name in names]
        x = sum(
            F.one_hot(numbers, len(table)).to(dtype) @ table
            for numbers, table in zip((ids, place, kinds), tables, strict=True)
        )
        centred = x - x.sum(-1, keepdim=True) / WIDTH
        variance = (centred * centred).sum(-1, keepdim=True) / WIDTH
        return module.norm.weight * centred / (variance + 1e-12).sqrt() + module.norm.bias

    parameters = list(module.parameters())
    same_with_gradients(lambda: module(ids, segments), lambda: theirs(segments), [], parameters)
    close(module(ids), theirs(torch.zeros_like(ids)))
    module(torch.zeros(1, PLACES, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"21.*20"):
        module(torch.zeros(1, PLACES + 1, dtype=torch.int64))


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_embeddings_drop_after_the_norm_in_training_only(p):
    module = br.BertEmbeddings(VOCAB, 64, 400, dropout=p)
    ids = torch.randint(VOCAB, (4, 400))
    whole = module.eval()(ids)
    dropped = module.train()(ids)
    gone = dropped == 0
    assert within_rate(int(gone.sum()), gone.numel(), p)
    close(dropped[~gone], (whole / (1 - p))[~gone])


@DTYPES
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(("width", "heads"), [(16, 4), (6, 1), (15, 5), (8, 8)])
def test_self_attention_equals_torchs(dtype, masked, width, heads):
    ours = perturbed(br.SelfAttention(width, heads), dtype)
    theirs = nn.MultiheadAttention(width, heads, batch_first=True, dtype=dtype)
    mask = batch()[2] if masked else None
    projections = [getattr(ours, f"{letter}_proj") for letter in "qkv"]
    sources = [*projections, ours.out_proj]
    parameters = [p for layer in sources for p in (layer.weight, layer.bias)]

    def expected(x: Tensor) -> Tensor:
        joined = {
            "in_proj_weight": torch.cat([p.weight for p in projections]),
            "in_proj_bias": torch.cat([p.bias for p in projections]),
            "out_proj.weight": ours.out_proj.weight,
            "out_proj.bias": ours.out_proj.bias,
        }
        options = {"key_padding_mask": None if mask is None else ~mask, "need_weights": False}
        return torch.func.functional_call(theirs, joined, (x, x, x), options)[0]

    inputs = [torch.randn(3, 12, width, dtype=dtype)]
    same_with_gradients(lambda x: ours(x, mask), expected, inputs, parameters)


def test_what_the_mask_hides_has_no_weight_at_all():
    module = perturbed(br.SelfAttention(8, 2))
    mask = batch()[2]
    x = leaf(3, 12, 8)
    changed = torch.where(mask[:, :, None], x, 1e6)
    assert torch.equal(module(changed, mask)[mask], module(x, mask)[mask])
    (gradient,) = torch.autograd.grad(module(x, mask)[mask].sum(), [x])
    assert torch.equal(gradient.ne(0).any(-1), mask)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_attention_drops_weights_at_rate_p_in_training_only(p):
    """All scores 0, values and output as they come in: one-hot values show the weights."""
    keys = 50
    module = br.SelfAttention(keys, 1, dropout=p)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        for layer in (module.v_proj, module.out_proj):
            layer.weight.copy_(torch.eye(keys))
    x = torch.eye(keys).expand(40, keys, keys)
    even = torch.full((40, keys, keys), 1 / keys)
    close(module.eval()(x), even)
    weights = module.train()(x)
    gone = weights == 0
    assert within_rate(int(gone.sum()), gone.numel(), p)
    close(weights[~gone], (even / (1 - p))[~gone])


def torchs_layer(ours: br.BertLayer, dtype: torch.dtype) -> tuple[nn.Module, dict[str, Tensor]]:
    """PyTorch's layer, and our parameters under its names."""
    theirs = nn.TransformerEncoderLayer(
        WIDTH, HEADS, INNER, 0.0, "gelu", layer_norm_eps=1e-12, batch_first=True, dtype=dtype
    )
    attention = ours.attention
    projections = [getattr(attention, f"{letter}_proj") for letter in "qkv"]
    named = {
        "self_attn.in_proj_weight": torch.cat([p.weight for p in projections]),
        "self_attn.in_proj_bias": torch.cat([p.bias for p in projections]),
    }
    for name, layer in {
        "self_attn.out_proj": attention.out_proj,
        "linear1": ours.w_1,
        "linear2": ours.w_2,
        "norm1": ours.attention_norm,
        "norm2": ours.output_norm,
    }.items():
        named |= {f"{name}.weight": layer.weight, f"{name}.bias": layer.bias}
    assert named.keys() == theirs.state_dict().keys()
    return theirs.train(), named


@DTYPES
@pytest.mark.parametrize("masked", [True, False])
def test_a_layer_equals_torchs_with_post_norm_and_gelu(dtype, masked):
    ours = perturbed(br.BertLayer(WIDTH, HEADS, INNER), dtype).train()
    mask = batch()[2] if masked else None

    def expected(x: Tensor) -> Tensor:
        theirs, named = torchs_layer(ours, dtype)
        options = {"src_key_padding_mask": None if mask is None else ~mask}
        return torch.func.functional_call(theirs, named, (x,), options)

    x = torch.randn(3, 12, WIDTH, dtype=dtype)
    same_with_gradients(lambda x: ours(x, mask), expected, [x], list(ours.parameters()))


def test_a_layer_drops_in_three_places_in_training_only():
    x = torch.randn(2, 6, WIDTH)
    without = br.BertLayer(WIDTH, HEADS, INNER).train()
    assert torch.equal(without(x), without(x))
    layer = br.BertLayer(WIDTH, HEADS, INNER, dropout=0.3)
    assert torch.equal(layer.eval()(x), layer(x))
    assert not torch.equal(layer.train()(x), layer(x))
    assert layer.attention.dropout == 0.3
    # With everything dropped only the shortcuts are left: each of the two parts has its dropout.
    closed = br.BertLayer(WIDTH, HEADS, INNER, dropout=1.0).train()
    close(closed(x), F.layer_norm(F.layer_norm(x, (WIDTH,), eps=1e-12), (WIDTH,), eps=1e-12))


@DTYPES
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("segmented", [True, False])
def test_the_model_equals_hugging_faces(hf, dtype, masked, segmented):
    theirs = theirs_of(hf, "BertModel", dtype)
    ours = given_the_weights(small(), theirs)
    ids, segments, mask = batch()
    segments = segments if segmented else None
    mask = mask if masked else None
    hidden, pooled = ours(ids, segments, mask)
    expected = theirs(ids, attention_mask=mask, token_type_ids=segments)
    agree(ours, theirs, [hidden, pooled], [expected.last_hidden_state, expected.pooler_output])


def test_every_place_sees_every_real_place_of_its_row_and_no_other():
    model = perturbed(small()).eval()
    ids, segments, mask = batch([6, 3])
    hidden, _ = model(ids, segments, mask)
    longer = [F.pad(x, (0, 4)) for x in (ids, segments, mask)]
    close(model(*longer)[0][:, :6][mask], hidden[mask])
    close(model(*longer)[1], model(ids, segments, mask)[1])
    for place in range(6):
        changed = ids.clone()
        changed[0, place] = 5 + (ids[0, place] - 4) % (VOCAB - 5)
        after, _ = model(changed, segments, mask)
        assert after.ne(hidden).any(-1)[0].all()
        assert torch.equal(after[1], hidden[1])


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize(
    "sizes",
    [
        (30522, 768, 12, 12, 3072, 512, 2),
        (30522, 1024, 24, 16, 4096, 512, 2),
        (50, 8, 3, 2, 20, 11, 3),
    ],
    ids=["base", "large", "small"],
)
def test_parameters_are_as_many_as_hugging_faces(hf, sizes, heads):
    vocab, hidden, layers, attention, inner, places, segments = sizes
    config = hf.BertConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=attention,
        intermediate_size=inner,
        max_position_embeddings=places,
        type_vocab_size=segments,
    )
    with torch.device("meta"):
        theirs = (hf.BertForPreTraining if heads else hf.BertModel)(config)
        ours = (br.BertForPreTraining if heads else br.BertModel)(*sizes)
    expected = sum(p.numel() for p in theirs.parameters())
    assert sum(p.numel() for p in ours.parameters()) == expected
    assert br.count_parameters(vocab, hidden, layers, inner, places, segments, heads) == expected
    known = {
        (768, False): 109_482_240,
        (1024, False): 335_141_888,
        (768, True): 110_106_428,
        (1024, True): 336_226_108,
    }
    assert known.get((hidden, heads), expected) == expected


def test_the_defaults_are_those_of_the_base_model():
    assert br.count_parameters() == 109_482_240
    with torch.device("meta"):
        model = br.BertModel(30522)
    assert sum(p.numel() for p in model.parameters()) == 109_482_240
    assert model.layers[0].attention.num_heads == 12
    assert model.embeddings.dropout.p == model.layers[3].dropout.p == 0.1


# ------------------------------------------------------------------------------------ checkpoints


def test_old_names_and_what_is_no_parameter():
    numbers = [torch.zeros(n + 1) for n in range(8)]
    state = dict(
        zip(
            [
                "bert.embeddings.LayerNorm.gamma",
                "bert.encoder.layer.11.attention.output.LayerNorm.beta",
                "cls.predictions.transform.LayerNorm.gamma",
                "bert.embeddings.position_ids",
                "cls.predictions.decoder.weight",
                "cls.predictions.decoder.bias",
                "encoder.layer.0.output.dense.weight",
                "qa_outputs.bias",
            ],
            numbers,
            strict=True,
        )
    )
    before = dict(state)
    renamed = br.rename_parameters(state)
    assert list(renamed) == [
        "bert.embeddings.norm.weight",
        "bert.layers.11.attention_norm.bias",
        "mlm.norm.weight",
        "layers.0.w_2.weight",
        "classifier.bias",
    ]
    for tensor, number in zip(renamed.values(), (0, 1, 2, 6, 7), strict=True):
        assert tensor is numbers[number]
    assert state == before


@pytest.mark.parametrize(
    "name",
    [
        "bert.encoder.layer.0.crossattention.self.query.weight",
        "roberta.embeddings.word_embeddings.weight",
        "transformer.h.0.attn.c_attn.weight",
        "bert.encoder.layer.0.attention.self.query.gamma",
        "bert.cls.predictions.bias",
        "weight",
    ],
)
def test_a_foreign_name_is_refused_by_name(name):
    with pytest.raises(ValueError, match=name):
        br.rename_parameters({name: torch.zeros(1)})


KINDS = {
    "BertModel": "model",
    "BertForPreTraining": "pretraining",
    "BertForSequenceClassification": "sequence",
    "BertForMultipleChoice": "choice",
    "BertForQuestionAnswering": "span",
    "BertForTokenClassification": "tagging",
}
LABELS = {"BertForSequenceClassification": 5, "BertForTokenClassification": 5}


def saved(hf: ModuleType, folder: Path, kind: str, dtype: torch.dtype, **more: Any) -> nn.Module:
    if kind in LABELS:
        more["num_labels"] = LABELS[kind]
    theirs = theirs_of(hf, kind, dtype, **more)
    theirs.save_pretrained(folder)
    return theirs


def outputs_of(model: nn.Module, ids: Tensor, segments: Tensor, mask: Tensor) -> list[Tensor]:
    """What a model of ours or of Hugging Face's returns, as a list of tensors."""
    if isinstance(model, (br.MultipleChoice,)) or "MultipleChoice" in type(model).__name__:
        ids, segments, mask = (torch.stack([x, x.flip(0)], 1) for x in (ids, segments, mask))
    if type(model).__module__.startswith(f"{br.__name__}."):
        out = model(ids, segments, mask)
        return list(out) if isinstance(out, tuple) else [out]
    out = model(ids, attention_mask=mask, token_type_ids=segments)
    return [value for value in out.values() if isinstance(value, Tensor)]


@pytest.mark.parametrize("kind", KINDS)
@DTYPES
def test_a_checkpoint_of_hugging_face_gives_the_same_model(hf, tmp_path, kind, dtype):
    theirs = saved(hf, tmp_path, kind, dtype)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ours, tokenizer = br.from_pretrained(tmp_path, KINDS[kind])
    assert tokenizer is None
    # Their models for spans and tags are made without a pooler.
    lacking = [str(w.message) for w in told if "checkpoint lacks" in str(w.message)]
    assert len(lacking) == (KINDS[kind] in ("span", "tagging"))
    assert all("bert.pooler.weight, bert.pooler.bias" in message for message in lacking)
    assert not ours.training
    ids, segments, mask = batch([7, 7]) if KINDS[kind] == "span" else batch()
    agree(
        ours, theirs, outputs_of(ours, ids, segments, mask), outputs_of(theirs, ids, segments, mask)
    )


@pytest.mark.parametrize("kind", sorted(set(KINDS.values()) - {"pretraining"}))
@pytest.mark.parametrize("origin", ["BertModel", "BertForPreTraining"])
def test_an_encoder_gets_a_new_head_and_says_so(hf, tmp_path, kind, origin):
    theirs = saved(hf, tmp_path, origin, torch.float32)
    encoder = theirs if origin == "BertModel" else theirs.bert
    if kind == "model":
        ours, _ = br.from_pretrained(str(tmp_path), kind)
    else:
        more = {"num_labels": 4} if kind in ("sequence", "tagging") else {}
        with pytest.warns(UserWarning, match=r"classifier\.weight, classifier\.bias: drawn"):
            model, _ = br.from_pretrained(tmp_path, kind, dropout=0.25, **more)
        ours = model.bert
        rows = {"sequence": 4, "tagging": 4, "span": 2, "choice": 1}[kind]
        assert model.classifier.weight.shape == (rows, WIDTH)
        assert ours.embeddings.dropout.p == 0.25
    ids, segments, mask = batch()
    for a, b in zip(
        ours(ids, segments, mask), outputs_of(encoder, ids, segments, mask), strict=True
    ):
        close(a, b)


def test_a_bare_encoder_can_be_pretrained_further(hf, tmp_path):
    theirs = saved(hf, tmp_path, "BertModel", torch.float32)
    with pytest.warns(UserWarning, match=r"mlm\.bias, mlm\.dense\.weight.*nsp\.bias"):
        model, _ = br.from_pretrained(tmp_path)
    table = model.bert.embeddings.token
    assert model.mlm.token is table
    assert torch.equal(table.weight, theirs.embeddings.word_embeddings.weight)


def rewrite(folder: Path, config: dict[str, Any], rename: Callable[[str], str | None]) -> None:
    """Change a saved checkpoint with the library that wrote it."""
    from safetensors.torch import load_file, save_file

    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    state = load_file(folder / "model.safetensors")
    kept = {rename(name): tensor for name, tensor in state.items() if rename(name)}
    save_file(kept, folder / "model.safetensors")


def test_a_checkpoint_with_tensorflows_names_of_norms_is_read(hf, tmp_path):
    theirs = saved(hf, tmp_path, "BertForPreTraining", torch.float32)

    def old(name: str) -> str:
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        return name.replace("LayerNorm.bias", "LayerNorm.beta")

    rewrite(tmp_path, {}, old)
    ours, _ = br.from_pretrained(tmp_path)
    inputs = batch()
    for a, b in zip(outputs_of(ours, *inputs), outputs_of(theirs, *inputs), strict=True):
        close(a, b)


REFUSED = {
    "another architecture": ({"model_type": "roberta"}, None, "model_type must be 'bert'"),
    "no architecture": ({"model_type": None}, None, "model_type must be 'bert'"),
    "cross-attention": ({"add_cross_attention": True}, None, "add_cross_attention"),
    "untied": ({"tie_word_embeddings": False}, None, "tie_word_embeddings"),
    "a size in words": ({"hidden_size": "16"}, None, "hidden_size must be a whole number"),
    "no layer": ({"num_hidden_layers": 0}, None, "num_hidden_layers must be a whole number"),
    "dropout": ({"hidden_dropout_prob": 1.5}, None, "hidden_dropout_prob must lie between"),
    "another activation": ({"hidden_act": "relu"}, None, "hidden_act must be 'gelu'"),
    "gelu by tanh": ({"hidden_act": "gelu_new"}, None, "gelu_new"),
    "relative": ({"position_embedding_type": "relative_key"}, None, "position_embedding_type"),
    "another eps": ({"layer_norm_eps": 1e-5}, None, "layer_norm_eps"),
    "a decoder": ({"is_decoder": True}, None, "is_decoder"),
    "more tokens": ({"vocab_size": 41}, None, r"token.*\(41, 16\).*\(40, 16\)"),
    "another width": ({"hidden_size": 32}, None, r"\(32,\)"),
    "more layers": ({"num_hidden_layers": 3}, None, "checkpoint lacks bert.layers.2"),
    "fewer layers": ({"num_hidden_layers": 1}, None, "has no bert.layers.1"),
    "heads": ({"num_attention_heads": 5}, None, "5 equal heads"),
    "a hole": ({}, lambda n: None if "layer.0.output.dense.bias" in n else n, "w_2.bias"),
    "foreign": ({}, lambda n: n.replace("pooler", "summary"), "summary"),
}


@pytest.fixture(scope="module")
def checkpoint(hf: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The two files of a checkpoint with its pre-training heads."""
    folder = tmp_path_factory.mktemp("checkpoint")
    saved(hf, folder, "BertForPreTraining", torch.float32)
    return {name: (folder / name).read_bytes() for name in ("config.json", "model.safetensors")}


def unpacked(checkpoint: dict[str, bytes], folder: Path) -> Path:
    for name, data in checkpoint.items():
        (folder / name).write_bytes(data)
    return folder


refused = functools.partial(common.refused, source=SOURCE)


@pytest.mark.parametrize("case", REFUSED)
def test_a_checkpoint_that_does_not_fit_is_refused(checkpoint, tmp_path, case):
    config, rename, words = REFUSED[case]
    rewrite(unpacked(checkpoint, tmp_path), config, rename or (lambda name: name))
    refused(lambda: br.from_pretrained(tmp_path), words)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_and_damaged_files_are_refused(checkpoint, tmp_path, name):
    path = unpacked(checkpoint, tmp_path) / name
    whole = path.read_bytes()
    for damaged in (b"", whole[:100], b"\xff" * 100, b"[]"):
        path.write_bytes(damaged)
        refused(lambda: br.from_pretrained(tmp_path), name)
    path.unlink()
    refused(lambda: br.from_pretrained(tmp_path), name)
    path.write_bytes(whole)
    br.from_pretrained(tmp_path)


# What a published checkpoint has: its vocabulary and ids, and weights that nobody chose.
MASKED = [
    "The capital of France is [MASK].",
    "[MASK] children play in the garden behind the old [MASK]; their dog sleeps.",
    "Déjà vu: the naïve café owner's [MASK] costs 3.50!",
]


@pytest.fixture(scope="module")
def published(hf: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like that of bert-base-uncased, but small inside."""
    folder = tmp_path_factory.mktemp("published")
    sizes = {"vocab_size": vocabularies.BERT_SIZE, "type_vocab_size": 2}
    saved(
        hf, folder, "BertForPreTraining", torch.float32, **{**sizes, "max_position_embeddings": 64}
    )
    vocabularies.write_bert(folder)
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    return folder


@pytest.mark.parametrize("text", MASKED)
def test_a_published_checkpoint_fills_masks_as_the_pipeline_does(hf, published, text):
    pipeline = hf.pipeline(
        "fill-mask",
        hf.BertForMaskedLM.from_pretrained(published),
        tokenizer=hf.BertTokenizer.from_pretrained(published),
    )
    wanted = pipeline(text, top_k=7)
    wanted = wanted if isinstance(wanted[0], list) else [wanted]
    for course_ids in (False, True):
        model, tokenizer = br.from_pretrained(published, course_ids=course_ids)
        blanks = fill_mask(model, tokenizer, text, 7, special_too=True)
        assert len(blanks) == len(wanted) == text.count("[MASK]")
        for blank, answers in zip(blanks, wanted, strict=True):
            pieces = pipeline.tokenizer.convert_ids_to_tokens([a["token"] for a in answers])
            assert [piece for piece, _ in blank.guesses] == pieces
            for (_, probability), answer in zip(blank.guesses, answers, strict=True):
                assert probability == pytest.approx(answer["score"], rel=1e-4)


@pytest.mark.parametrize("second", [None, "The river that flows through it is the Seine."])
def test_a_published_checkpoint_has_the_ids_and_logits_of_hugging_face(hf, published, second):
    theirs = hf.BertForPreTraining.from_pretrained(published).eval()
    reader = hf.BertTokenizer.from_pretrained(published)
    model, tokenizer = br.from_pretrained(published)
    assert tuple(tokenizer.special) == (0, 100, 101, 102, 103)
    for text in MASKED:
        batch = reader(text, second, return_tensors="pt")
        ids, segments = tokenizer.build_input(text, second)
        assert ids == batch["input_ids"][0].tolist()
        assert segments == batch["token_type_ids"][0].tolist()
        row = (torch.tensor([ids]), torch.tensor([segments]))
        wanted = theirs(**batch)
        mlm, nsp = model(*row)
        close(mlm, wanted.prediction_logits)
        close(nsp, wanted.seq_relationship_logits)


def test_with_the_ids_of_the_course_its_functions_read_a_published_checkpoint(hf, published):
    theirs = hf.BertForPreTraining.from_pretrained(published).eval()
    reader = hf.BertTokenizer.from_pretrained(published)
    model, tokenizer = br.from_pretrained(published, course_ids=True)
    assert tuple(tokenizer.special) == (PAD, br.UNK, CLS, SEP, MASK)
    first, second = MASKED[0], "The river is the Seine."
    pair = br.build_input(tokenizer.encode(first), tokenizer.encode(second))
    single = br.build_input(tokenizer.encode(first))
    ids, segments, mask = br.pad_batch([pair, single])
    batch = reader([first, first], [second, ""], return_tensors="pt", padding=True)
    # An empty second text gets a [SEP] of its own there; ours is a single one.
    batch["input_ids"][1, len(single[0])] = 0
    batch["attention_mask"][1] = mask[1]
    batch["token_type_ids"][1] = 0
    wanted = theirs(**batch)
    mlm, nsp = model(ids, segments, mask)
    close(nsp, wanted.seq_relationship_logits)
    _, order = br.from_pretrained(published)[1].in_course_order()
    close(mlm, wanted.prediction_logits[:, :, order])

    # One mask at a time, by the ids of the checkpoint and by those of the course.
    row = reader(vocabularies.SENTENCES[0], return_tensors="pt")["input_ids"]
    total = 0.0
    for place in range(1, row.shape[1] - 1):
        masked = row.clone()
        masked[0, place] = 103
        logits = theirs(masked).prediction_logits[0, place]
        total += torch.log_softmax(logits, 0)[row[0, place]].item()
    ours, _ = br.build_input(tokenizer.encode(vocabularies.SENTENCES[0]))
    assert br.pseudo_log_likelihood(model, torch.tensor(ours)) == pytest.approx(total, rel=1e-5)


def edited(folder: Path, published: Path, **files: Any) -> Path:
    """A copy of the published folder; settings of config.json, or the text of another file."""
    shutil.copytree(published, folder, dirs_exist_ok=True)
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        if name == "config":
            path = folder / "config.json"
            content = json.dumps(json.loads(path.read_text()) | content)
        path.write_text(content, encoding="utf-8")
    return folder


def test_a_tokenizer_that_does_not_go_with_the_model_is_refused(published, tmp_path):
    names = (published / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
    cased = "".join(f"{name}\n" for name in names[:28996])
    refused(
        lambda: br.from_pretrained(edited(tmp_path / "a", published, vocab__txt=cased)),
        "28996 tokens, but vocab_size is 30522",
    )
    more = "".join(f"{name}\n" for name in [*names, "more"])
    refused(
        lambda: br.from_pretrained(edited(tmp_path / "b", published, vocab__txt=more)),
        "30523 tokens",
    )
    refused(
        lambda: br.from_pretrained(edited(tmp_path / "c", published, config={"pad_token_id": 1})),
        r"pad_token_id is 1 in config\.json, but \[PAD\] is 0",
    )
    unnamed = "".join(f"{name.replace('[MASK]', '<mask>')}\n" for name in names)
    folder = edited(tmp_path / "d", published, vocab__txt=unnamed)
    refused(lambda: br.from_pretrained(folder), r"lacks the special token \[MASK\]")
    (folder / "tokenizer_config.json").write_text('{"mask_token": "<mask>"}')
    assert br.from_pretrained(folder)[1].special.mask == 103
    (folder / "vocab.txt").unlink()
    assert br.from_pretrained(folder)[1] is None
    refused(lambda: br.from_pretrained(folder, course_ids=True), "without a tokenizer")


def test_rows_without_a_token_are_never_guessed(published, tmp_path):
    names = (published / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
    fewer = "".join(f"{name}\n" for name in names[:-100])
    folder = edited(tmp_path / "rounded", published, vocab__txt=fewer)
    for course_ids in (False, True):
        model, tokenizer = br.from_pretrained(folder, course_ids=course_ids)
        assert len(tokenizer) == vocabularies.BERT_SIZE - 100
        blank = fill_mask(model, tokenizer, MASKED[0], vocabularies.BERT_SIZE, special_too=True)[0]
        assert len(blank.guesses) == len(tokenizer)
        model.mlm.bias.data[-1] = 50.0  # the best of all, if it could be read
        again = fill_mask(model, tokenizer, MASKED[0], 3, special_too=True)[0]
        assert again.guesses == blank.guesses[:3]


# What a loaded model would silently have wrong.


def test_a_head_of_another_kind_is_left_aside(hf, tmp_path):
    saved(hf, tmp_path, "BertForSequenceClassification", torch.float32)
    rewrite(tmp_path, {"id2label": {"0": "no", "1": "yes"}}, lambda name: name)
    theirs = saved(hf, tmp_path, "BertForTokenClassification", torch.float32)
    for kind in ("sequence", "choice", "span"):
        with pytest.warns(UserWarning, match=r"classifier\.weight, classifier\.bias: drawn"):
            model, _ = br.from_pretrained(tmp_path, kind)
        assert not torch.equal(model.classifier.weight, theirs.classifier.weight)
    with pytest.warns(UserWarning, match="pooler") as told:
        model, _ = br.from_pretrained(tmp_path, "tagging")
    assert not any("classifier" in str(w.message) for w in told)
    assert torch.equal(model.classifier.weight, theirs.classifier.weight)


def test_two_answers_are_not_the_ends_of_a_span(hf, tmp_path):
    theirs = theirs_of(hf, "BertForSequenceClassification", torch.float32, num_labels=2)
    theirs.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=r"classifier\.weight, classifier\.bias: drawn"):
        model, _ = br.from_pretrained(tmp_path, "span")
    assert model.classifier.weight.shape == theirs.classifier.weight.shape
    assert not torch.equal(model.classifier.weight, theirs.classifier.weight)
    theirs = theirs_of(hf, "BertForQuestionAnswering", torch.float32)
    theirs.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=r"pooler.*classifier\.bias: drawn"):
        model, _ = br.from_pretrained(tmp_path, "sequence")
    assert not torch.equal(model.classifier.weight, theirs.qa_outputs.weight)


def stored(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """Change the weights of a saved checkpoint."""
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    state = load_file(path)
    save_file(state | change(state), path)


TABLE, DECODER = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder"
CHANGED = {
    "an output matrix of its own": (
        lambda s: {f"{DECODER}.weight": s[TABLE] + 1},
        r"decoder\.weight must be the same as mlm\.token\.weight",
    ),
    "an output bias of its own": (
        lambda s: {f"{DECODER}.bias": s["cls.predictions.bias"] + 1},
        r"decoder\.bias must be the same",
    ),
    "a norm twice": (
        lambda s: {
            "bert.embeddings.LayerNorm.gamma": s["bert.embeddings.LayerNorm.weight"].clone()
        },
        r"LayerNorm\.\w+ are the same parameter",
    ),
    "with and without a prefix": (
        lambda s: {"pooler.dense.bias": s["bert.pooler.dense.bias"].clone()},
        r"pooler\.bias twice",
    ),
    "two types": (
        lambda s: {"bert.pooler.dense.bias": s["bert.pooler.dense.bias"].double()},
        "one floating type, but are of float32, float64",
    ),
    "whole numbers": (
        lambda s: {name: tensor.to(torch.int8) for name, tensor in s.items()},
        "one floating type, but are of int8",
    ),
}


@pytest.mark.parametrize("case", CHANGED)
def test_weights_that_our_model_would_misread_are_refused(checkpoint, tmp_path, case):
    change, words = CHANGED[case]
    stored(unpacked(checkpoint, tmp_path), change)
    refused(lambda: br.from_pretrained(tmp_path), words)


def test_tied_matrices_may_be_stored_twice(checkpoint, tmp_path):
    stored(
        unpacked(checkpoint, tmp_path),
        lambda s: {
            f"{DECODER}.weight": s[TABLE].clone(),
            f"{DECODER}.bias": s["cls.predictions.bias"].clone(),
        },
    )
    assert br.from_pretrained(tmp_path)[0].mlm.bias.shape == (VOCAB,)


def test_one_rate_of_dropout_is_read_and_two_are_refused(checkpoint, tmp_path):
    folder = unpacked(checkpoint, tmp_path)
    rewrite(folder, {"attention_probs_dropout_prob": 0.3}, lambda name: name)
    refused(lambda: br.from_pretrained(folder), "one rate of dropout")
    assert br.from_pretrained(folder, dropout=0.2)[0].bert.embeddings.dropout.p == 0.2
    rewrite(folder, {"hidden_dropout_prob": 0.3}, lambda name: name)
    assert br.from_pretrained(folder)[0].bert.embeddings.dropout.p == 0.3


def test_unknown_kinds_and_options_and_labels_that_do_not_fit_are_refused(hf, tmp_path):
    saved(hf, tmp_path, "BertForSequenceClassification", torch.float32)
    refused(lambda: br.from_pretrained(tmp_path, "causal"), "'causal'")
    refused(lambda: br.from_pretrained(tmp_path, "sequence", labels=2), "option labels")
    refused(lambda: br.from_pretrained(tmp_path, "span", num_labels=2), "option num_labels")
    refused(lambda: br.from_pretrained(tmp_path, "sequence", num_labels=3), "classifier")
    refused(lambda: br.from_pretrained(tmp_path / "nowhere"), "config.json")


# --------------------------------------------------------------------------------------- masking


def ordinary_batch(rows: int = 400, length: int = 250) -> Tensor:
    """Ids with special ones strewn in, about one in ten."""
    ids = torch.randint(SPECIAL, VOCAB, (rows, length))
    special = torch.randint(SPECIAL, (rows, length))
    return torch.where(torch.rand(rows, length) < 0.1, special, ids)


def judged(ids: Tensor, corrupted: Tensor, labels: Tensor, rate: float) -> None:
    """Shares of 0.8, 0.1 and 0.1 of what was chosen, at the rate, and nothing else changed."""
    assert corrupted.dtype == labels.dtype == torch.int64
    chosen = labels != IGNORE
    ordinary = ids >= SPECIAL
    n = int(ordinary.sum())
    assert not (chosen & ~ordinary).any()
    assert torch.equal(corrupted[~chosen], ids[~chosen])
    assert torch.equal(labels[chosen], ids[chosen])
    became, was = corrupted[chosen], ids[chosen]
    mask, same = became == MASK, became == was
    strange = 1 / (VOCAB - SPECIAL)
    assert within_rate(int(mask.sum()), n, 0.8 * rate)
    assert within_rate(int(same.sum()), n, (0.1 + 0.1 * strange) * rate)
    other = became[~mask & ~same]
    assert within_rate(len(other), n, 0.1 * (1 - strange) * rate)
    assert (other >= SPECIAL).all()
    for token in range(SPECIAL, VOCAB):
        expected = 0.1 * rate * strange
        assert within_rate(int((became[~mask & ~same] == token).sum()), n, expected)


@pytest.mark.parametrize("rate", [0.15, 0.6])
def test_tokens_are_masked_at_the_papers_rates(rate):
    """12, 1.5 and 1.5 percent of all tokens; each count fails once in a billion runs."""
    ids = ordinary_batch()
    before = ids.clone()
    corrupted, labels = br.mask_tokens(ids, VOCAB, rate)
    assert torch.equal(ids, before)
    judged(ids, corrupted, labels, rate)
    chosen, ordinary = labels != IGNORE, ids >= SPECIAL
    # Each on its own: neighbours, rows and columns are chosen together no more often than others.
    for step in ((0, 1), (1, 0)):
        pairs = ordinary & ordinary.roll(step, (0, 1))
        both = chosen & chosen.roll(step, (0, 1))
        # Neighbouring pairs share a token; every second one doesn't.
        every = torch.zeros_like(pairs)
        every[:: 1 + step[0], :: 1 + step[1]] = True
        assert within_rate(int((both & every).sum()), int((pairs & every).sum()), rate**2)
    assert not torch.equal(br.mask_tokens(ids, VOCAB, rate)[1], labels)


def test_the_rate_is_15_percent_unless_told_otherwise():
    ids = ordinary_batch()
    judged(ids, *br.mask_tokens(ids, VOCAB), 0.15)


def test_a_rate_of_0_or_1_is_no_matter_of_chance():
    ids = ordinary_batch(20, 50)
    corrupted, labels = br.mask_tokens(ids, VOCAB, 0.0)
    assert torch.equal(corrupted, ids)
    assert (labels == IGNORE).all()
    _, labels = br.mask_tokens(ids, VOCAB, 1.0)
    assert torch.equal(labels != IGNORE, ids >= SPECIAL)


def words_of(ids: Tensor, starts: Tensor) -> list[list[tuple[int, int]]]:
    """The places of each word, found by reading row after row."""
    words: list[list[tuple[int, int]]] = []
    for b in range(len(ids)):
        inside = False
        for t in range(ids.shape[1]):
            if ids[b, t] < SPECIAL:
                inside = False
            elif starts[b, t] or not inside:
                words.append([(b, t)])
                inside = True
            else:
                words[-1].append((b, t))
    return words


@pytest.mark.parametrize("rate", [0.15, 0.5])
def test_whole_words_are_chosen_with_all_their_pieces(rate):
    ids = ordinary_batch(200, 120)
    starts = (torch.rand(ids.shape) < 0.6) & (ids >= SPECIAL)
    corrupted, labels = br.mask_whole_words(ids, starts, VOCAB, rate)
    chosen = labels != IGNORE
    assert not chosen[ids < SPECIAL].any()
    words = words_of(ids, starts)
    picked = [[bool(chosen[place]) for place in word] for word in words]
    assert all(len(set(flags)) == 1 for flags in picked)
    assert within_rate(sum(flags[0] for flags in picked), len(words), rate)
    # Neighbouring words are chosen independently, also across rows and special tokens.
    pairs = list(zip(picked[::2], picked[1::2], strict=False))
    assert within_rate(sum(a[0] and b[0] for a, b in pairs), len(pairs), rate**2)
    # Each piece has its own draw: both pieces of a word become MASK with 0.64, not with 0.8.
    twice = [w for w, f in zip(words, picked, strict=True) if f[0] and len(w) >= 2]
    masked = sum(bool(corrupted[w[0]] == MASK and corrupted[w[1]] == MASK) for w in twice)
    assert within_rate(masked, len(twice), 0.64)
    assert torch.equal(corrupted[~chosen], ids[~chosen])
    assert torch.equal(labels[chosen], ids[chosen])
    became, was = corrupted[chosen], ids[chosen]
    n = len(became)
    assert within_rate(int((became == MASK).sum()), n, 0.8)
    assert within_rate(int((became == was).sum()), n, 0.1 + 0.1 / (VOCAB - SPECIAL))
    assert ((became >= SPECIAL) | (became == MASK)).all()


def test_words_of_one_piece_are_masked_like_tokens():
    ids = ordinary_batch()
    judged(ids, *br.mask_whole_words(ids, ids >= SPECIAL, VOCAB), 0.15)


def test_a_word_ends_with_its_row_and_at_a_special_token():
    """The pieces after these ends are drawn for themselves, though no start is marked."""
    ids = torch.tensor([[7, 8, SEP, 9], [10, 11, 12, 13]])
    starts = torch.zeros(2, 4, dtype=torch.bool)
    starts[0, 0] = True
    starts[0, 2] = True  # at a special token: of no importance
    words = [[(0, 0), (0, 1)], [(0, 3)], [(1, t) for t in range(4)]]
    assert words_of(ids, starts) == words
    seen = set()
    for _ in range(200):  # one of the eight patterns is missed once in 10^10 runs
        _, labels = br.mask_whole_words(ids, starts, VOCAB, 0.5)
        flags = [[bool(labels[place] != IGNORE) for place in word] for word in words]
        assert all(len(set(f)) == 1 for f in flags)
        seen.add(tuple(f[0] for f in flags))
    assert len(seen) == 8


def test_epochs_draw_anew_or_take_turns():
    ids = ordinary_batch(20, 50)
    fresh = br.masking_epochs(ids, VOCAB, 6)
    assert len(fresh) == 6
    for (_, a), (_, b) in itertools.combinations(fresh, 2):
        assert not torch.equal(a, b)
    for duplicates in (1, 2, 4, 9):
        epochs = br.masking_epochs(ids, VOCAB, 6, duplicates, mask_prob=0.4)
        for (i, a), (j, b) in itertools.combinations(enumerate(epochs), 2):
            same = i % duplicates == j % duplicates
            assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True)) == same
        for corrupted, labels in epochs:
            count, n = int((labels != IGNORE).sum()), int((ids >= SPECIAL).sum())
            assert within_rate(count, n, 0.4)
            assert torch.equal(corrupted[labels == IGNORE], ids[labels == IGNORE])


# ----------------------------------------------------------------------------------------- pairs


def documents() -> list[list[list[int]]]:
    """Five documents of 1, 0, 40, 200 and 3 sentences; every sentence is unlike all others."""
    numbers = itertools.count(SPECIAL)
    return [[[next(numbers)] for _ in range(n)] for n in (1, 0, 40, 200, 3)]


def test_pairs_are_neighbours_or_come_from_another_document():
    corpus = documents()
    home = {s[0]: d for d, document in enumerate(corpus) for s in document}
    firsts = [s for document in corpus for s in document[:-1]]
    nexts = {a[0]: b for document in corpus for a, b in itertools.pairwise(document)}
    random.seed(1)
    rounds = 60
    random_second: Counter[tuple[int, int]] = Counter()
    negatives: Counter[int] = Counter()
    positive = 0
    for _ in range(rounds):
        pairs = br.next_sentence_pairs(corpus)
        assert [first for first, _, _ in pairs] == firsts
        for first, second, label in pairs:
            if label == 0:
                assert second == nexts[first[0]]
                positive += 1
            else:
                assert label == 1
                assert home[second[0]] != home[first[0]]
                negatives[home[first[0]]] += 1
                random_second[home[first[0]], home[second[0]]] += 1
    assert within_rate(positive, rounds * len(firsts), 0.5)
    for here, n in negatives.items():
        others = sum(len(d) for k, d in enumerate(corpus) if k != here)
        for there, document in enumerate(corpus):
            if there != here and document:
                assert within_rate(random_second[here, there], n, len(document) / others)
    assert corpus == documents()


def test_sentence_order_exchanges_half_of_the_neighbours():
    corpus = documents()
    random.seed(2)
    exchanged = total = 0
    for _ in range(40):
        pairs = br.sentence_order_pairs(corpus)
        true = [p for document in corpus for p in itertools.pairwise(document)]
        assert len(pairs) == len(true)
        for (a, b), (first, second, label) in zip(true, pairs, strict=True):
            assert (first, second) == ((b, a) if label else (a, b))
            exchanged += label
            total += 1
    assert within_rate(exchanged, total, 0.5)


# ----------------------------------------------------------------------------------- pre-training


def targets(ids: Tensor, rate: float = 0.4) -> Tensor:
    return torch.where((torch.rand(ids.shape) < rate) & (ids >= SPECIAL), ids, IGNORE)


def test_the_head_is_tied_to_the_table():
    table = nn.Embedding(VOCAB, WIDTH)
    head = perturbed(br.MaskedLanguageHead(table))
    assert head.token is table
    names = {"bias", "dense.weight", "dense.bias", "norm.weight", "norm.bias", "token.weight"}
    assert {name for name, _ in head.named_parameters()} == names
    hidden = torch.randn(2, 3, 5, WIDTH, dtype=torch.float64)

    def theirs(h: Tensor) -> Tensor:
        inner = F.gelu(F.linear(h, head.dense.weight, head.dense.bias))
        normed = F.layer_norm(inner, (WIDTH,), head.norm.weight, head.norm.bias, 1e-12)
        return F.linear(normed, table.weight, head.bias)

    same_with_gradients(head, theirs, [hidden], list(head.parameters()))


@DTYPES
@pytest.mark.parametrize("masked", [True, False])
def test_pretraining_equals_hugging_faces(hf, dtype, masked):
    theirs = theirs_of(hf, "BertForPreTraining", dtype)
    ours = br.BertForPreTraining(VOCAB, WIDTH, 2, HEADS, INNER, PLACES, 3)
    ours = given_the_weights(ours, theirs)
    ids, segments, mask = batch()
    mask = mask if masked else None
    labels, is_random = targets(ids), torch.tensor([0, 1, 1])
    scores = ours(ids, segments, mask)
    expected = theirs(
        ids,
        attention_mask=mask,
        token_type_ids=segments,
        labels=labels,
        next_sentence_label=is_random,
    )
    agree(ours, theirs, list(scores), [expected[1], expected[2]])
    ours.zero_grad()
    scores = ours(ids, segments, mask)
    expected = theirs(
        ids,
        attention_mask=mask,
        token_type_ids=segments,
        labels=labels,
        next_sentence_label=is_random,
    )
    loss = br.pretraining_loss(*scores, labels, is_random)
    assert loss.shape == ()
    agree(ours, theirs, [loss], [expected.loss])


def test_the_tied_table_has_one_gradient_for_both_uses(hf):
    ours = br.BertForPreTraining(VOCAB, WIDTH, 2, HEADS, INNER, PLACES, 3)
    assert ours.mlm.token is ours.bert.embeddings.token
    names = [name for name, _ in ours.named_parameters()]
    assert "bert.embeddings.token.weight" in names
    assert "mlm.token.weight" not in names
    assert {n.split(".")[0] for n in names} == {"bert", "mlm", "nsp"}


def test_the_loss_without_a_masked_place_is_that_of_the_pairs():
    scores, pairs = leaf(2, 5, VOCAB), leaf(2, 2)
    labels, is_random = torch.full((2, 5), IGNORE), torch.tensor([1, 0])
    loss = br.pretraining_loss(scores, pairs, labels, is_random)
    close(loss, F.cross_entropy(pairs, is_random))
    gradients = torch.autograd.grad(loss, [scores, pairs])
    assert not gradients[0].any()
    assert gradients[1].ne(0).all()  # class 0 counts like class 1


def test_the_loss_is_a_mean_over_the_places_of_the_batch():
    scores, pairs = leaf(2, 4, 7), leaf(2, 2)
    labels = torch.tensor([[1, IGNORE, 2, 6], [IGNORE, IGNORE, IGNORE, 0]])
    is_random = torch.tensor([0, 1])

    def theirs(scores: Tensor, pairs: Tensor) -> Tensor:
        total = scores.new_zeros(())
        for b, t in ((0, 0), (0, 2), (0, 3), (1, 3)):
            total = total + scores[b, t].exp().sum().log() - scores[b, t, labels[b, t]]
        second = scores.new_zeros(())
        for b in range(2):
            second = second + pairs[b].exp().sum().log() - pairs[b, is_random[b]]
        return total / 4 + second / 2

    def ours(scores: Tensor, pairs: Tensor) -> Tensor:
        return br.pretraining_loss(scores, pairs, labels, is_random)

    same_with_gradients(ours, theirs, [scores, pairs])


def pretrainable(dropout: float = 0.0) -> br.BertForPreTraining:
    model = br.BertForPreTraining(VOCAB, WIDTH, 2, HEADS, INNER, PLACES, 3, dropout)
    return perturbed(model)


def pretraining_batch() -> tuple[Tensor, ...]:
    ids, segments, mask = batch()
    labels = targets(ids)
    return ids.masked_fill(labels != IGNORE, MASK), segments, mask, labels, torch.tensor([0, 1, 1])


@pytest.mark.parametrize("clip", [0.05, 1.0, 1e6])
def test_a_step_equals_torchs_descent_and_clipping(clip):
    ours = pretrainable()
    theirs = pretrainable()
    theirs.load_state_dict(ours.state_dict())
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.3)
    for _ in range(3):
        inputs = pretraining_batch()
        before = [p.detach().clone() for p in ours.parameters()]
        told = br.pretraining_step(ours, *inputs, lr=0.3, clip=clip)
        optimizer.zero_grad()
        scores, pairs = theirs(*inputs[:3])
        mlm = nn.CrossEntropyLoss()(scores.flatten(0, 1), inputs[3].flatten())
        nsp = nn.CrossEntropyLoss()(pairs, inputs[4])
        (mlm + nsp).backward()
        norm = nn.utils.clip_grad_norm_(theirs.parameters(), clip).item()
        optimizer.step()
        expected = {"loss": (mlm + nsp).item(), "mlm": mlm.item(), "nsp": nsp.item(), "norm": norm}
        assert told.keys() == expected.keys()
        for name, value in expected.items():
            assert type(told[name]) is float
            assert told[name] == pytest.approx(value, rel=1e-12), name
        # PyTorch divides by the norm plus 1e-6, and never multiplies by more than 1.
        factor = 1.0 if norm <= clip else norm / (norm + 1e-6)
        for old, a, b in zip(before, ours.parameters(), theirs.parameters(), strict=True):
            close(old + (a - old) * factor, b)
        theirs.load_state_dict(ours.state_dict())
    assert (norm > clip) == (clip < 10)  # both cases have been here


def test_a_step_uses_its_own_gradient_and_leaves_frozen_parameters_and_the_mode_alone():
    inputs = pretraining_batch()
    for training in (True, False):
        clean, stale = pretrainable(), pretrainable()
        stale.load_state_dict(clean.state_dict())
        for model in (clean, stale):
            model.train(training)
            model.bert.pooler.weight.requires_grad_(False)
        for parameter in stale.parameters():
            parameter.grad = torch.full_like(parameter, 1e3)
        frozen = clean.bert.pooler.weight.clone()
        first, second = (br.pretraining_step(m, *inputs, lr=0.1) for m in (clean, stale))
        assert first == second
        for a, b in zip(clean.parameters(), stale.parameters(), strict=True):
            assert torch.equal(a, b)
        assert torch.equal(clean.bert.pooler.weight, frozen)
        assert clean.training == training
        assert all(module.training == training for module in clean.modules())


def test_steps_teach_a_small_model_both_tasks():
    torch.manual_seed(3)
    model = br.BertForPreTraining(VOCAB, WIDTH, 2, HEADS, INNER, PLACES, 3, 0.0)
    inputs = pretraining_batch()
    told = [br.pretraining_step(model, *inputs, lr=0.5) for _ in range(150)]
    assert told[0]["mlm"] == pytest.approx(math.log(VOCAB), rel=0.1)
    assert told[0]["nsp"] == pytest.approx(math.log(2), rel=0.1)
    assert told[-1]["mlm"] < 0.5 * told[0]["mlm"]
    assert told[-1]["nsp"] < 0.5 * told[0]["nsp"]


def test_the_pseudo_likelihood_equals_masking_one_place_after_the_other():
    model = pretrainable().eval()
    ids = torch.tensor([CLS, 9, 12, 1, SEP, 33, 9, SEP])
    before = ids.clone()
    total = 0.0
    for place in (1, 2, 5, 6):
        masked = ids.clone()
        masked[place] = MASK
        scores = model(masked[None])[0][0, place]
        total += (scores[ids[place]] - scores.exp().sum().log()).item()
    found = br.pseudo_log_likelihood(model, ids)
    assert type(found) is float
    assert found == pytest.approx(total, rel=1e-12)
    assert torch.equal(ids, before)


# ----------------------------------------------------------------------------------- fine-tuning


@DTYPES
def test_classification_equals_hugging_faces(hf, dtype):
    theirs = theirs_of(hf, "BertForSequenceClassification", dtype, num_labels=3)
    ours = given_the_weights(br.SequenceClassifier(small(), 3), theirs)
    ids, segments, mask = batch()
    labels = torch.tensor([2, 0, 1])
    for target in (None, labels):
        scores = ours(ids, segments, mask)
        expected = theirs(ids, attention_mask=mask, token_type_ids=segments, labels=target)
        if target is None:
            agree(ours, theirs, [scores], [expected.logits])
        else:
            agree(ours, theirs, [ours.loss(scores, labels)], [expected.loss])


@DTYPES
def test_multiple_choice_equals_hugging_faces(hf, dtype):
    theirs = theirs_of(hf, "BertForMultipleChoice", dtype)
    ours = given_the_weights(br.MultipleChoice(small()), theirs)
    ids, segments, mask = (x.reshape(2, 3, -1) for x in batch([9, 5, 12, 7, 2, 8]))
    labels = torch.tensor([2, 0])
    for target in (None, labels):
        scores = ours(ids, segments, mask)
        expected = theirs(ids, attention_mask=mask, token_type_ids=segments, labels=target)
        if target is None:
            assert scores.shape == (2, 3)
            agree(ours, theirs, [scores], [expected.logits])
        else:
            agree(ours, theirs, [ours.loss(scores, labels)], [expected.loss])
    close(ours(ids), theirs(ids).logits)


@DTYPES
def test_tagging_equals_hugging_faces(hf, dtype):
    theirs = theirs_of(hf, "BertForTokenClassification", dtype, num_labels=4)
    ours = given_the_weights(br.Tagger(small(), 4), theirs)
    ids, segments, mask = batch()
    labels = torch.randint(4, ids.shape).masked_fill(torch.rand(ids.shape) < 0.5, IGNORE)
    for target in (None, labels):
        scores = ours(ids, segments, mask)
        expected = theirs(ids, attention_mask=mask, token_type_ids=segments, labels=target)
        if target is None:
            agree(ours, theirs, [scores], [expected.logits])
        else:
            agree(ours, theirs, [ours.loss(scores, labels)], [expected.loss])


@DTYPES
def test_spans_equal_hugging_faces(hf, dtype):
    """On rows without padding, which theirs doesn't hide."""
    theirs = theirs_of(hf, "BertForQuestionAnswering", dtype)
    ours = given_the_weights(br.SpanFinder(small()), theirs)
    ids, segments, mask = batch([9, 9, 9])
    for starts, ends in (([1, 4, 2], [3, 8, 2]), ([0, 30, 8], [9, 11, 8])):
        starts, ends = torch.tensor(starts), torch.tensor(ends)
        start, end = ours(ids, segments, mask)
        expected = theirs(ids, token_type_ids=segments, start_positions=starts, end_positions=ends)
        agree(ours, theirs, [start, end], [expected.start_logits, expected.end_logits])
        start, end = ours(ids, segments)
        expected = theirs(ids, token_type_ids=segments, start_positions=starts, end_positions=ends)
        agree(ours, theirs, [ours.loss(start, end, starts, ends)], [expected.loss])


@DTYPES
def test_padding_is_never_the_start_or_the_end_of_an_answer(dtype):
    module = perturbed(br.SpanFinder(small()), dtype).eval()
    ids, segments, mask = batch()
    plain = module(ids, segments)
    for scores, hidden in zip(module(ids, segments, mask), plain, strict=True):
        assert scores.shape == ids.shape
        assert (scores[~mask] == torch.finfo(dtype).min).all()
        assert (scores[mask] > -100).all()
        assert hidden.isfinite().all()
        assert (hidden > -100).all()
    start, end = module(ids, segments, mask)
    loss = module.loss(start, end, torch.tensor([1, 2, 3]), torch.tensor([2, 3, 4]))
    for gradient in torch.autograd.grad(loss, list(module.parameters()), allow_unused=True):
        assert gradient is None or gradient.isfinite().all()
    for row, length in enumerate(mask.sum(1).tolist()):
        alone = module(ids[row : row + 1, :length], segments[row : row + 1, :length])
        close(start[row, :length], alone[0][0])
        close(end[row, :length], alone[1][0])


def test_an_answer_that_was_cut_off_is_left_out_of_its_mean():
    start, end = leaf(4, 6), leaf(4, 6)
    starts, ends = torch.tensor([2, -1, 6, 0]), torch.tensor([IGNORE, 99, 7, 5])
    module = br.SpanFinder(small())

    def theirs(start: Tensor, end: Tensor) -> Tensor:
        first = [start[b].exp().sum().log() - start[b, y] for b, y in ((0, 2), (3, 0))]
        return (sum(first) / 2 + end[3].exp().sum().log() - end[3, 5]) / 2

    same_with_gradients(
        lambda start, end: module.loss(start, end, starts, ends), theirs, [start, end]
    )
    nothing = module.loss(start, end, starts * 0 - 1, starts * 0 - 1)
    assert nothing.item() == 0.0
    assert all(not g.any() for g in torch.autograd.grad(nothing, [start, end]))


def test_tags_without_a_target_have_loss_0():
    module, scores = br.Tagger(small(), 4), leaf(2, 5, 4)
    loss = module.loss(scores, torch.full((2, 5), IGNORE))
    assert loss.item() == 0.0
    assert not torch.autograd.grad(loss, [scores])[0].any()


def test_the_heads_train_the_encoder_that_they_are_given():
    bert = small()
    for module in (
        br.SequenceClassifier(bert, 3),
        br.Tagger(bert, 3),
        br.SpanFinder(bert),
        br.MultipleChoice(bert),
        br.BertCRF(bert, 3).tagger,
    ):
        assert module.bert is bert
        names = {n.split(".")[0] for n, _ in module.named_parameters()}
        assert names == {"bert", "classifier"}


@pytest.mark.parametrize("kind", ["sequence", "tagging", "choice"])
def test_the_heads_drop_in_training_only(kind):
    """The encoder in evaluation mode, the classifier the identity or a sum: only the head drops."""
    bert = perturbed(small(), torch.float32)
    bert.forward = lambda *_: (torch.ones(9, 200, WIDTH), torch.ones(1800, WIDTH))
    made = {
        "sequence": lambda: br.SequenceClassifier(bert, WIDTH, 0.3),
        "tagging": lambda: br.Tagger(bert, WIDTH, 0.3),
        "choice": lambda: br.MultipleChoice(bert, 0.3),
    }[kind]()
    with torch.no_grad():
        made.classifier.weight.copy_(torch.eye(len(made.classifier.weight), WIDTH))
        made.classifier.bias.zero_()
    ids = torch.zeros((1800, 1, 1) if kind == "choice" else (9, 200), dtype=torch.int64)
    out = made.train()(ids)
    gone = out == 0
    assert within_rate(int(gone.sum()), gone.numel(), 0.3)
    assert (made.eval()(ids) == 1).all()


spans = st.lists(
    st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.booleans()), min_size=1, max_size=9
).filter(lambda rows: any(inside for _, _, inside in rows))


@given(spans, st.integers(1, 5), st.none() | st.integers(-4, 4))
@examples
def test_the_best_span_equals_trying_all(rows, longest, threshold):
    start, end, inside = zip(*rows, strict=True)
    best, where = -math.inf, None
    for i, j in itertools.product(range(len(rows)), repeat=2):
        if i <= j < i + longest and inside[i] and inside[j] and start[i] + end[j] > best:
            best, where = start[i] + end[j], (i, j)
    if threshold is not None and start[0] + end[0] - best > threshold:
        where = (0, 0)
    tensors = (
        torch.tensor(start, dtype=torch.float32),
        torch.tensor(end, dtype=torch.float32),
        torch.tensor(inside),
    )
    found = br.best_span(*tensors, longest, threshold)
    assert found == where
    assert all(type(place) is int for place in found)


def test_the_best_span_among_the_smallest_numbers_is_in_the_passage():
    low = torch.finfo(torch.float32).min
    start, end = torch.tensor([9.0, low, low]), torch.tensor([9.0, low, low])
    assert br.best_span(start, end, torch.tensor([False, True, True])) == (1, 1)
    start = torch.arange(100.0)
    span = br.best_span(-start, start, torch.ones(100, dtype=torch.bool))
    assert span == (0, 29)  # at most 30 tokens unless told otherwise


@given(st.lists(st.integers(1, 4), max_size=6), st.integers(0, 10**6))
@examples
def test_labels_go_to_the_first_piece_of_each_word_and_come_back_from_it(lengths, seed):
    generator = random.Random(seed)
    words = [generator.randrange(3) for _ in lengths]
    ids: list[int | None] = [None]
    expected = [IGNORE]
    for word, length in enumerate(lengths):
        ids += [word] * length
        expected += [words[word]] + [IGNORE] * (length - 1)
    ids, expected = [*ids, None], [*expected, IGNORE]
    assert br.align_labels(words, ids) == expected
    scores = torch.rand(len(ids), 3)
    for place, label in enumerate(expected):
        if label != IGNORE:
            scores[place, label] = 2.0
    assert br.word_tags(scores, ids) == words


# ------------------------------------------------------------------------------------------ CRFs


def crf_case(
    lengths: list[int], tags: int, scale: float = 1.0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    emissions = scale * torch.randn(len(lengths), max(lengths), tags, dtype=dtype)
    scores = (
        scale * torch.randn(tags, tags, dtype=dtype),
        scale * torch.randn(tags, dtype=dtype),
        scale * torch.randn(tags, dtype=dtype),
    )
    return emissions, mask, scores


def naive_score(
    emissions: Tensor, path: Iterable[int], transitions: Tensor, start: Tensor, end: Tensor
) -> Tensor:
    path = list(path)
    total = start[path[0]] + end[path[-1]]
    for t, tag in enumerate(path):
        total = total + emissions[t, tag]
    for before, after in itertools.pairwise(path):
        total = total + transitions[before, after]
    return total


def all_scores(
    emissions: Tensor, length: int, scores: tuple[Tensor, ...]
) -> dict[tuple[int, ...], Tensor]:
    """The score of every sequence of tags of one row."""
    paths = itertools.product(range(emissions.shape[-1]), repeat=length)
    return {path: naive_score(emissions, path, *scores) for path in paths}


CRFS = pytest.mark.parametrize(
    ("lengths", "tags"), [([4, 2, 1], 3), ([1], 2), ([5, 5], 2), ([3, 1, 2], 1)]
)


@CRFS
def test_the_score_of_tags_equals_a_loop(lengths, tags):
    emissions, mask, scores = crf_case(lengths, tags)
    path = torch.randint(tags, mask.shape).masked_fill(~mask, IGNORE)

    def theirs(emissions: Tensor, *scores: Tensor) -> Tensor:
        rows = range(len(lengths))
        naive = [naive_score(emissions[b], path[b, : lengths[b]].tolist(), *scores) for b in rows]
        return torch.stack(naive) + 0 * scores[0].sum()  # one token alone has no transition

    def ours(emissions: Tensor, *scores: Tensor) -> Tensor:
        return br.crf_score(emissions, path, mask, *scores)

    same_with_gradients(ours, theirs, [emissions, *scores])
    before = path.clone()
    worse = emissions.masked_fill(~mask[:, :, None], math.inf)
    close(ours(worse, *scores), theirs(emissions, *scores))
    assert torch.equal(path, before)


@CRFS
@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_the_partition_equals_the_sum_over_all_sequences(lengths, tags, scale):
    emissions, mask, scores = crf_case(lengths, tags, scale)

    def theirs(emissions: Tensor, *scores: Tensor) -> Tensor:
        sums = []
        for b, length in enumerate(lengths):
            every = torch.stack(list(all_scores(emissions[b], length, scores).values()))
            highest = every.max().detach()
            sums.append(highest + (every - highest).exp().sum().log())
        return torch.stack(sums)

    def ours(emissions: Tensor, *scores: Tensor) -> Tensor:
        return br.crf_partition(emissions, mask, *scores)

    same_with_gradients(ours, theirs, [emissions, *scores])
    single = ours(*(x.float() for x in (emissions, *scores)))
    assert single.dtype == torch.float32
    assert single.isfinite().all()


@CRFS
def test_the_best_path_is_the_best_of_all(lengths, tags):
    for _ in range(10):
        emissions, mask, scores = crf_case(lengths, tags)
        paths, best = br.viterbi(emissions, mask, *scores)
        assert best.shape == (len(lengths),)
        for b, length in enumerate(lengths):
            every = all_scores(emissions[b], length, scores)
            assert paths[b] == list(max(every, key=lambda path: every[path].item()))
            assert all(type(tag) is int for tag in paths[b])
            close(best[b], max(every.values()))


def test_ties_give_one_of_the_best_paths():
    emissions, mask, _ = crf_case([4, 3], 3)
    zeros = torch.zeros(3, 3), torch.zeros(3), torch.zeros(3)
    paths, best = br.viterbi(emissions * 0, mask, *(z.double() for z in zeros))
    assert [len(path) for path in paths] == [4, 3]
    assert best.tolist() == [0.0, 0.0]


def test_the_given_crf_makes_a_distribution_over_sequences():
    torch.manual_seed(5)
    crf = br.CRF(40)
    for parameter, shape in ((crf.transitions, (40, 40)), (crf.start, (40,)), (crf.end, (40,))):
        assert parameter.shape == shape
    assert follows(torch.cat([p.flatten() for p in crf.parameters()]), 0.1)
    crf = perturbed(br.CRF(3))
    emissions, mask, _ = crf_case([4, 2], 3)
    scores = (crf.transitions, crf.start, crf.end)
    tags = torch.randint(3, mask.shape)
    expected = []
    for b, length in enumerate([4, 2]):
        every = all_scores(emissions[b], length, scores)
        total = torch.stack(list(every.values())).exp().sum()
        expected.append(-(every[tuple(tags[b, :length].tolist())].exp() / total).log())
    close(crf.loss(emissions, tags, mask), torch.stack(expected).mean())
    assert crf.decode(emissions, mask) == br.viterbi(emissions, mask, *scores)[0]


def test_the_lstm_tagger_equals_itself_row_by_row():
    """Also in gradient: padding has no influence on any parameter."""
    model = perturbed(br.BiLSTMCRF(VOCAB, 6, 5, 3))
    ids, _, mask = batch([9, 1, 12, 5])
    parameters = list(model.parameters())
    rows = list(enumerate(mask.sum(1).tolist()))

    def together() -> Tensor:
        return model(ids, mask)[mask]

    def alone() -> Tensor:
        states = []
        for b, length in rows:
            x = model.embedding(ids[b : b + 1, :length])
            states.append(model.emission(model.lstm(x)[0])[0])
        return torch.cat(states)

    assert model(ids, mask).shape == (4, 12, 3)
    same_with_gradients(together, alone, [], parameters)
    tags = torch.randint(3, ids.shape).masked_fill(~mask, IGNORE)
    losses = [
        model.loss(ids[b : b + 1, :n], tags[b : b + 1, :n], mask[b : b + 1, :n]) for b, n in rows
    ]
    close(model.loss(ids, tags, mask), torch.stack(losses).mean())
    single = [model.decode(ids[b : b + 1, :n], mask[b : b + 1, :n])[0] for b, n in rows]
    assert model.decode(ids, mask) == single
    longer = F.pad(ids, (0, 3), value=7), F.pad(mask, (0, 3))
    close(model(*longer)[:, :12][mask], model(ids, mask)[mask])


def test_a_crf_on_bert_runs_over_the_tagged_places_only():
    model = perturbed(br.BertCRF(small(), 3)).eval()
    ids, segments, mask = batch([8, 6])
    emissions = model(ids, segments, mask)
    close(emissions, model.tagger(ids, segments, mask))
    labels = torch.full(ids.shape, IGNORE)
    places = [[1, 2, 5], [2, 4]]
    for b, row in enumerate(places):
        labels[b, row] = torch.randint(3, (len(row),))
    losses, paths = [], []
    for b, row in enumerate(places):
        real = torch.ones(1, len(row), dtype=torch.bool)
        picked = emissions[b : b + 1, row]
        losses.append(model.crf.loss(picked, labels[b : b + 1, row], real))
        paths += model.crf.decode(picked, real)
    close(model.loss(emissions, labels), torch.stack(losses).mean())
    assert model.decode(emissions, labels != IGNORE) == paths


# ------------------------------------------------------------------------------------- relatives


@DTYPES
@pytest.mark.parametrize("layers", [1, 3])
def test_the_shared_encoder_equals_a_stack_of_equal_layers(dtype, layers):
    module = perturbed(br.SharedEncoder(layers, WIDTH, HEADS, INNER), dtype).train()
    assert {n.split(".")[0] for n, _ in module.named_parameters()} == {"layer"}
    mask = batch()[2]

    def theirs(x: Tensor) -> Tensor:
        layer, named = torchs_layer(module.layer, dtype)
        for _ in range(layers):
            options = {"src_key_padding_mask": ~mask}
            x = torch.func.functional_call(layer, named, (x,), options)
        return x

    x = torch.randn(3, 12, WIDTH, dtype=dtype)
    same_with_gradients(lambda x: module(x, mask), theirs, [x], list(module.parameters()))


@given(st.permutations(range(6)))
@examples
def test_permutation_masks_equal_the_definition(order):
    content, query = br.permutation_masks(torch.tensor(order))
    assert content.dtype == query.dtype == torch.bool
    for i, j in itertools.product(range(6), repeat=2):
        before = order.index(j) < order.index(i)
        assert query[i, j].item() == before
        assert content[i, j].item() == (before or i == j)


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3], [0]])
def test_with_both_streams_each_place_sees_exactly_the_earlier_ones(order):
    """Two layers of attention with two streams (Yang et al. 2019, 2.3), judged by gradients."""
    length = len(order)
    content_mask, query_mask = br.permutation_masks(torch.tensor(order))
    layers = [[torch.randn(8, 8, dtype=torch.float64) for _ in range(3)] for _ in range(2)]
    tokens = leaf(length, 8)
    content = tokens
    query = torch.randn(length, 8, dtype=torch.float64)  # the place alone, not the token

    def attend(x: Tensor, context: Tensor, mask: Tensor, weights: list[Tensor]) -> Tensor:
        q, k, v = weights
        scores = ((x @ q) @ (context @ k).T / 10).masked_fill(~mask, -math.inf)
        # The first in the order sees nothing: weights of 0.
        shares = torch.softmax(scores, -1).masked_fill(~mask, 0.0)
        return x + shares.nan_to_num() @ (context @ v)

    for weights in layers:
        query, content = (
            attend(query, content, query_mask, weights),
            attend(content, content, content_mask, weights),
        )
    for number, place in enumerate(order):
        for stream, seen in ((query, order[:number]), (content, order[: number + 1])):
            (gradient,) = torch.autograd.grad(
                stream[place].sum(), [tokens], retain_graph=True, allow_unused=True
            )
            reached = set() if gradient is None else set(gradient.any(-1).nonzero()[:, 0].tolist())
            assert reached == set(seen)


def loop_attention(module: br.RelativeAttention, x: Tensor, memory: Tensor | None) -> Tensor:
    """The scores of Dai et al. (2019), section 3.3, entry by entry."""
    context = x if memory is None else torch.cat([memory.detach(), x], 1)
    heads, head = module.content_bias.shape
    offset = context.shape[1] - x.shape[1]
    rows = []
    for b, t in itertools.product(range(x.shape[0]), range(x.shape[1])):
        i, joined = offset + t, []
        for h in range(heads):
            part = slice(h * head, (h + 1) * head)
            q = module.q_proj.weight[part] @ x[b, t]
            scores, values = [], []
            for j in range(i + 1):
                k = module.k_proj.weight[part] @ context[b, j]
                code = br.relative_code(torch.tensor(i - j), heads * head).to(x)
                r = module.r_proj.weight[part] @ code
                content = (q + module.content_bias[h]) @ k
                position = (q + module.position_bias[h]) @ r
                scores.append((content + position) / math.sqrt(head))
                values.append(module.v_proj.weight[part] @ context[b, j])
            weights = torch.stack(scores).softmax(0)
            joined.append(weights @ torch.stack(values))
        rows.append(module.out_proj.weight @ torch.cat(joined))
    return torch.stack(rows).reshape(x.shape)


def xlnets_attention(
    hf: ModuleType, module: br.RelativeAttention, x: Tensor, memory: Tensor | None
) -> Tensor:
    """XLNet's core of attention, which is Transformer-XL's, on our parameters."""
    from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

    context = x if memory is None else torch.cat([memory.detach(), x], 1)
    heads, head = module.content_bias.shape
    width, length, total = heads * head, x.shape[1], context.shape[1]
    core = SimpleNamespace(
        r_w_bias=module.content_bias,
        r_r_bias=module.position_bias,
        scale=1 / head**0.5,
        dropout=nn.Identity(),
        rel_shift_bnij=XLNetRelativeAttention.rel_shift_bnij,
    )
    frequencies = 1 / 10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    distances = torch.arange(total, -1, -1, dtype=torch.float64)
    codes = XLNetModel.positional_embedding(distances, frequencies)  # (S + 1, 1, D)
    codes = codes.float().to(x.dtype).expand(-1, len(x), -1)

    def split(vectors: Tensor, layer: nn.Linear) -> Tensor:
        weight = layer.weight.T.reshape(width, heads, head)
        return torch.einsum("ibh,hnd->ibnd", vectors, weight)

    hidden = torch.ones(length, total, dtype=x.dtype).triu(total - length + 1)[:, :, None, None]
    joined = XLNetRelativeAttention.rel_attn_core(
        core,
        split(x.transpose(0, 1), module.q_proj),
        split(context.transpose(0, 1), module.k_proj),
        split(context.transpose(0, 1), module.v_proj),
        split(codes, module.r_proj),
        attn_mask=hidden.expand(-1, -1, len(x), heads),
    )
    weight = module.out_proj.weight.reshape(width, heads, head)
    return torch.einsum("ibnd,hnd->ibh", joined, weight).transpose(0, 1)


MEMORIES = pytest.mark.parametrize(
    ("length", "memory", "width", "heads"),
    [(4, 3, 8, 2), (3, None, 6, 1), (1, 5, 8, 4), (5, 1, 6, 3)],
)


@MEMORIES
def test_relative_attention_equals_a_loop(length, memory, width, heads):
    module = perturbed(br.RelativeAttention(width, heads))
    x = torch.randn(2, length, width, dtype=torch.float64)
    past = None if memory is None else torch.randn(2, memory, width, dtype=torch.float64)
    same_with_gradients(
        lambda x: module(x, past),
        lambda x: loop_attention(module, x, past),
        [x],
        list(module.parameters()),
    )


@DTYPES
@MEMORIES
def test_relative_attention_equals_hugging_faces_in_xlnet(hf, dtype, length, memory, width, heads):
    module = perturbed(br.RelativeAttention(width, heads), dtype)
    x = torch.randn(2, length, width, dtype=dtype)
    past = None if memory is None else torch.randn(2, memory, width, dtype=dtype)
    same_with_gradients(
        lambda x: module(x, past),
        lambda x: xlnets_attention(hf, module, x, past),
        [x],
        list(module.parameters()),
    )


def test_relative_attention_has_the_named_parameters():
    module = br.RelativeAttention(12, 3)
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    projections = {f"{letter}_proj.weight": (12, 12) for letter in ("q", "k", "v", "r", "out")}
    assert shapes == {"content_bias": (3, 4), "position_bias": (3, 4)} | projections
    assert not module.content_bias.any()
    assert not module.position_bias.any()
    x = torch.randn(2, 9, 12)
    assert torch.equal(module(x), module(x))
    dropping = br.RelativeAttention(12, 3, 0.5)
    assert not torch.equal(dropping(x), dropping(x))
    assert torch.equal(dropping.eval()(x), dropping(x))


def test_no_gradient_reaches_the_memory_but_the_projections_learn_from_it():
    module = perturbed(br.RelativeAttention(8, 2))
    x, memory = leaf(2, 3, 8), leaf(2, 4, 8)
    out = module(x, memory)
    assert torch.autograd.grad(out.sum(), [memory], retain_graph=True, allow_unused=True) == (None,)
    assert not torch.equal(out, module(x, 2 * memory))
    with_memory = torch.autograd.grad(out[:, 0].sum(), [module.k_proj.weight])[0]
    assert with_memory.any()  # without memory, the first place has one key and no choice
    alone = torch.autograd.grad(module(x)[:, 0].sum(), [module.k_proj.weight])[0]
    assert alone.abs().max() < 1e-12


@pytest.mark.parametrize("layers", [1, 2])
def test_segments_with_memory_equal_one_long_forward(layers):
    """Where the memory reaches back to the beginning; with a shorter one they differ."""
    stack = [perturbed(br.RelativeAttention(8, 2)) for _ in range(layers)]
    x = torch.randn(2, 10, 8, dtype=torch.float64)
    whole = x
    for layer in stack:
        whole = whole + layer(whole)
    for keep in (10, 2, 0):
        memories: list[Tensor | None] = [None] * layers
        parts = []
        for segment in x.split([4, 3, 3], dim=1):
            hidden = segment
            for number, layer in enumerate(stack):
                memory, memories[number] = (
                    memories[number],
                    br.update_memory(memories[number], hidden, keep),
                )
                hidden = hidden + layer(hidden, memory)
            parts.append(hidden)
        joined = torch.cat(parts, 1)
        if keep == 10:
            close(joined, whole)
        else:
            close(joined[:, :4], whole[:, :4])
            assert not torch.allclose(joined[:, 7:], whole[:, 7:])


@pytest.mark.parametrize("length", [0, 1, 3, 5, 8, 20])
@pytest.mark.parametrize("before", [None, 0, 4])
def test_the_memory_holds_the_last_places(length, before):
    hidden = leaf(2, 4, 3)
    memory = None if before is None else leaf(2, before, 3)
    parts = [x for x in (memory, hidden) if x is not None]
    columns = [x[:, t] for x in parts for t in range(x.shape[1])]
    found = br.update_memory(memory, hidden, length)
    expected = columns[len(columns) - min(length, len(columns)) :]
    assert found.shape == (2, len(expected), 3)
    assert not found.requires_grad
    for t, column in enumerate(expected):
        assert torch.equal(found[:, t], column)


@DTYPES
@pytest.mark.parametrize("clip", [1, 2, 64])
@pytest.mark.parametrize("masked", [True, False])
def test_nezhas_attention_equals_a_loop(dtype, clip, masked):
    module = perturbed(br.NezhaAttention(8, 2, clip), dtype)
    mask = batch([5, 3])[2] if masked else None

    def theirs(x: Tensor) -> Tensor:
        rows = []
        for b, i in itertools.product(range(2), range(5)):
            joined = []
            for h in range(2):
                part = slice(4 * h, 4 * h + 4)
                q = (module.q_proj(x[b, i]))[part]
                scores, values = [], []
                for j in range(5):
                    if mask is not None and not mask[b, j]:
                        continue
                    step = torch.tensor(max(-clip, min(clip, j - i)))
                    relative = br.relative_code(step, 4).to(dtype)
                    scores.append(q @ (module.k_proj(x[b, j])[part] + relative) / 2)
                    values.append(module.v_proj(x[b, j])[part] + relative)
                joined.append(torch.stack(scores).softmax(0) @ torch.stack(values))
            rows.append(module.out_proj(torch.cat(joined)))
        return torch.stack(rows).reshape(2, 5, 8)

    x = torch.randn(2, 5, 8, dtype=dtype)
    same_with_gradients(lambda x: module(x, mask), theirs, [x], list(module.parameters()))


# --------------------------------------------------------------------------------------- ELECTRA


def test_tokens_are_replaced_by_draws_from_the_generator():
    """Every frequency of every token fails once in a billion runs."""
    rows, length, vocab = 300, 100, 8
    ids = torch.randint(vocab, (rows, length))
    labels = torch.where(torch.rand(rows, length) < 0.5, ids, IGNORE)
    pattern = torch.randn(2, vocab)
    kind = torch.randint(2, (rows, length))
    scores = (3 + pattern[kind]).requires_grad_()
    before = ids.clone()
    replaced, is_replaced = br.replace_tokens(ids, labels, scores)
    assert (replaced.dtype, is_replaced.dtype) == (torch.int64, torch.bool)
    assert not replaced.requires_grad
    chosen = labels != IGNORE
    assert torch.equal(replaced[~chosen], ids[~chosen])
    assert torch.equal(is_replaced, replaced != before)
    assert torch.equal(ids, before)
    for k in range(2):
        drawn = replaced[chosen & (kind == k)]
        for token, p in enumerate(pattern[k].softmax(0).tolist()):
            assert within_rate(int((drawn == token).sum()), len(drawn), p)
    # Neighbours have draws of their own.
    pairs = chosen[:, ::2] & chosen[:, 1::2] & (kind[:, ::2] == 0) & (kind[:, 1::2] == 0)
    p = pattern[0].softmax(0)[0].item()
    both = (replaced[:, ::2] == 0) & (replaced[:, 1::2] == 0) & pairs
    assert within_rate(int(both.sum()), int(pairs.sum()), p * p)


def test_nothing_chosen_means_nothing_replaced():
    ids = torch.randint(VOCAB, (2, 5))
    replaced, is_replaced = br.replace_tokens(
        ids, torch.full((2, 5), IGNORE), torch.randn(2, 5, VOCAB)
    )
    assert torch.equal(replaced, ids)
    assert replaced is not ids
    assert not is_replaced.any()


@DTYPES
def test_the_discriminators_loss_is_a_mean_over_all_real_tokens(dtype):
    mask = batch()[2]
    is_replaced = torch.rand(mask.shape) < 0.3

    def theirs(scores: Tensor) -> Tensor:
        total = scores.new_zeros(())
        for b, t in mask.nonzero().tolist():
            p = 1 / (1 + (-scores[b, t]).exp())
            total = total - (p if is_replaced[b, t] else 1 - p).log()
        return total / int(mask.sum())

    scores = torch.randn(mask.shape, dtype=dtype)
    same_with_gradients(
        lambda scores: br.replaced_token_loss(scores, is_replaced, mask), theirs, [scores]
    )
    large = torch.full(mask.shape, 1000.0, dtype=dtype)
    wrong = (~is_replaced & mask).sum().to(dtype) / mask.sum()
    close(br.replaced_token_loss(large, is_replaced, mask), 1000 * wrong)


def test_the_discriminators_loss_equals_hugging_faces(hf):
    config = hf.ElectraConfig(**SIZES, embedding_size=WIDTH)
    theirs = perturbed(hf.ElectraForPreTraining(config), torch.float32).eval()
    ids, segments, mask = batch()
    is_replaced = torch.rand(mask.shape) < 0.3
    out = theirs(ids, attention_mask=mask, token_type_ids=segments, labels=is_replaced.long())
    close(br.replaced_token_loss(out.logits, is_replaced, mask), out.loss)


# ------------------------------------------------------------------------------------------ ELMo


def test_two_directions_equal_torchs_bidirectional_lstm_row_by_row():
    model = perturbed(br.TwoDirections(VOCAB, 6, 5))
    theirs = nn.LSTM(6, 5, batch_first=True, bidirectional=True, dtype=torch.float64)
    ids, _, mask = batch([7, 2, 9, 1])
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    parameters = [model.embedding.weight]
    named = {}
    for name in names:
        named[name] = getattr(model.forward_lstm, name)
        named[f"{name}_reverse"] = getattr(model.backward_lstm, name)
    parameters += named.values()

    def expected() -> Tensor:
        rows = []
        for b, length in enumerate(mask.sum(1).tolist()):
            x = model.embedding(ids[b : b + 1, :length])
            rows.append(torch.func.functional_call(theirs, named, (x,))[0][0])
        return torch.cat(rows)

    same_with_gradients(lambda: model(ids, mask)[mask], expected, [], parameters)
    assert model(ids, mask).shape == (4, 9, 10)
    real = torch.ones_like(mask)
    close(model(ids), model(ids, real))
    assert {n.split(".")[0] for n, _ in model.named_parameters()} == {
        "embedding",
        "forward_lstm",
        "backward_lstm",
        "output",
    }


def test_each_direction_reads_its_side_and_no_padding():
    """By gradients with respect to what the embedding returns at each place."""
    model = perturbed(br.TwoDirections(VOCAB, 6, 5))
    ids, _, mask = batch([4, 7])
    vectors = leaf(2, 7, 6)
    model.embedding.forward = lambda _: vectors
    states = model(ids, mask)
    for b, length in enumerate([4, 7]):
        for t in range(length):
            for part, seen in ((slice(0, 5), range(t + 1)), (slice(5, 10), range(t, length))):
                total = states[b, t, part].sum()
                (gradient,) = torch.autograd.grad(total, [vectors], retain_graph=True)
                reached = {tuple(place) for place in gradient.any(-1).nonzero().tolist()}
                assert reached == {(b, place) for place in seen}


@pytest.mark.parametrize("lengths", [[7, 2, 9, 1], [5], [6, 6]])
def test_the_loss_of_two_directions_equals_a_loop(lengths):
    model = perturbed(br.TwoDirections(VOCAB, 6, 5))
    ids, _, mask = batch(lengths)

    def theirs() -> Tensor:
        following, preceding = [], []
        for b, length in enumerate(lengths):
            states = model(ids[b : b + 1, :length])[0]
            for t in range(length):
                forwards, backwards = (model.output(s) for s in states[t].chunk(2))
                if t + 1 < length:
                    following.append(-forwards.log_softmax(0)[ids[b, t + 1]])
                if t > 0:
                    preceding.append(-backwards.log_softmax(0)[ids[b, t - 1]])
        return torch.stack(following).mean() + torch.stack(preceding).mean()

    parameters = list(model.parameters())
    same_with_gradients(lambda: model.loss(ids, mask), theirs, [], parameters)
    if len(set(lengths)) == 1:
        close(model.loss(ids), theirs())


# ------------------------------------------------------------------------------------- refusals

ROW = torch.tensor([[CLS, 7, SEP]])
ONES = torch.ones(3, dtype=torch.bool)
REFUSALS = {
    "empty first": lambda: br.build_input([]),
    "empty first of two": lambda: br.build_input([], [7]),
    "empty second": lambda: br.build_input([7], []),
    "no room": lambda: br.build_input([7], max_length=2),
    "no room for two": lambda: br.build_input([7], [8], max_length=4),
    "too long": lambda: br.BertEmbeddings(9, 4, 2)(ROW),
    "too long for the model": lambda: br.BertModel(9, 4, 1, 1, 8, 2)(ROW),
    "heads": lambda: br.SelfAttention(8, 3),
    "no heads": lambda: br.SelfAttention(8, 0),
    "heads of a layer": lambda: br.BertLayer(8, 3, 8),
    "heads of the model": lambda: br.BertModel(9, 8, 1, 3, 8),
    "heads of both": lambda: br.BertForPreTraining(9, 8, 1, 3, 8),
    "heads of the shared layer": lambda: br.SharedEncoder(2, 8, 3, 8),
    "relative heads": lambda: br.RelativeAttention(8, 3),
    "nezha heads": lambda: br.NezhaAttention(8, 3),
    "nezha clip": lambda: br.NezhaAttention(8, 2, 0),
    "name": lambda: br.rename_parameters({"bert.pooler.weight": torch.zeros(1)}),
    "negative rate": lambda: br.mask_tokens(ROW, 9, -0.1),
    "rate above 1": lambda: br.mask_tokens(ROW, 9, 1.1),
    "rate nan": lambda: br.mask_tokens(ROW, 9, math.nan),
    "no ordinary ids": lambda: br.mask_tokens(ROW, 5),
    "negative rate of words": lambda: br.mask_whole_words(ROW, ROW > 4, 9, -0.1),
    "rate of words above 1": lambda: br.mask_whole_words(ROW, ROW > 4, 9, 1.1),
    "no ordinary ids for words": lambda: br.mask_whole_words(ROW, ROW > 4, 5),
    "no epochs": lambda: br.masking_epochs(ROW, 9, 0),
    "no duplicates": lambda: br.masking_epochs(ROW, 9, 1, 0),
    "no documents": lambda: br.next_sentence_pairs([]),
    "one document": lambda: br.next_sentence_pairs([[[7], [8]]]),
    "one with sentences": lambda: br.next_sentence_pairs([[[7], [8]], []]),
    "only special": lambda: br.pseudo_log_likelihood(nn.Identity(), torch.tensor([CLS, SEP])),
    "no passage": lambda: br.best_span(torch.zeros(3), torch.zeros(3), ~ONES),
    "no answer": lambda: br.best_span(torch.zeros(3), torch.zeros(3), ONES, 0),
    "no label": lambda: br.align_labels([1, 0], [None, 0, 1, 2]),
    "negative word": lambda: br.align_labels([1, 0], [None, 0, -1]),
    "twice in the order": lambda: br.permutation_masks(torch.tensor([0, 1, 1])),
    "beyond the order": lambda: br.permutation_masks(torch.tensor([1, 2, 3])),
    "order of two axes": lambda: br.permutation_masks(torch.tensor([[0, 1]])),
    "memory": lambda: br.update_memory(None, torch.zeros(1, 2, 3), -1),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_input_is_refused_in_one_sentence(case):
    refused(REFUSALS[case])


# ------------------------------------------------------------------------- the file as a notebook


def test_the_examples_about_the_encoder_are_right():
    assert br.build_input([5, 6], [7, 8, 9], max_length=6) == (
        [2, 5, 6, 3, 7, 3],
        [0, 0, 0, 0, 1, 1],
    )
    x = br.gelu(torch.tensor([1.0, -1.0, 0.0]))
    assert x.tolist() == pytest.approx([0.8413, -0.1587, 0.0], abs=5e-5)
    grid = torch.linspace(-5, 5, 10_001, dtype=torch.float64)
    off = (br.gelu(grid) - F.gelu(grid, approximate="tanh")).abs().max().item()
    assert 1e-4 < off < 1e-3
    embeddings = filled(
        br.BertEmbeddings(9, 2, 4),
        token__weight=torch.tensor([1.0, 0.0]).expand(9, 2),
        position__weight=torch.tensor([0.0, 1.0]).expand(4, 2),
        segment__weight=torch.tensor([2.0, 0.0]).expand(2, 2),
        norm__weight=torch.ones(2),
    )
    close(embeddings(ROW[:, :1]), torch.tensor([[[1.0, -1.0]]]))
    one = torch.ones(1, 1)
    attention = filled(br.SelfAttention(1, 1), v_proj__weight=one, out_proj__weight=one)
    values = torch.tensor([[[2.0], [4.0], [9.0]]])
    close(attention(values, torch.tensor([[True, True, False]])), torch.full((1, 3, 1), 3.0))
    layer = br.BertLayer(2, 1, 4)
    for part in (layer.attention.out_proj, layer.w_2):
        filled(part)
    close(layer(torch.tensor([[[1.0, 3.0]]])), torch.tensor([[[-1.0, 1.0]]]))
    assert br.count_parameters(10, 4, 1, 8, 6) == 272
    assert br.count_parameters(10, 4, 1, 8, 6, heads=True) == 320
    tensor = torch.zeros(1)
    assert br.rename_parameters(
        {
            "bert.encoder.layer.3.attention.self.query.bias": tensor,
            "encoder.layer.0.output.LayerNorm.gamma": tensor,
        }
    ) == {"bert.layers.3.attention.q_proj.bias": tensor, "layers.0.output_norm.weight": tensor}
    with torch.device("meta"):
        model = br.BertForPreTraining(30522)
    assert sum(p.numel() for p in model.parameters()) == 110_106_428 == 624_188 + 109_482_240


def test_the_examples_about_pretraining_are_right():
    corpus = [[[5], [6], [7]], [[8]]]
    for _ in range(20):
        (a, b, first), (c, d, second) = br.next_sentence_pairs(corpus)
        assert (a, b, first) in (([5], [6], 0), ([5], [8], 1))
        assert (c, d, second) in (([6], [7], 0), ([6], [8], 1))
    ids = torch.tensor([[2, 9, 12, 8, 3]])
    starts = torch.tensor([[False, True, False, True, False]])
    for _ in range(50):
        _, labels = br.mask_whole_words(ids, starts, 20, 0.5)
        assert labels[0, 1:3].tolist() in ([9, 12], [IGNORE, IGNORE])
    head = br.MaskedLanguageHead(nn.Embedding(7, 4))
    filled(head.dense)
    with torch.no_grad():
        head.bias.copy_(torch.arange(7.0))
    close(head(torch.randn(2, 3, 4)), torch.arange(7.0).expand(2, 3, 7))
    labels = torch.tensor([[1, IGNORE]])
    zeros = torch.zeros(1, 2, 4), torch.zeros(1, 2)
    loss = br.pretraining_loss(*zeros, labels, torch.tensor([1]))
    assert loss.item() == pytest.approx(2.079, abs=5e-4)
    loss = br.pretraining_loss(*zeros, labels * 0 + IGNORE, torch.tensor([1]))
    assert loss.item() == pytest.approx(0.693, abs=5e-4)
    even = br.pseudo_log_likelihood(
        lambda ids: (torch.zeros(*ids.shape, 50),), torch.tensor([CLS, 5, 6, 7, SEP])
    )
    assert even == pytest.approx(-11.74, abs=5e-3)


def test_the_examples_about_heads_and_relatives_are_right():
    classifier = br.SequenceClassifier(small(), 3)
    loss = classifier.loss(torch.zeros(2, 3), torch.tensor([0, 2]))
    assert loss.item() == pytest.approx(1.099, abs=5e-4)
    finder, zeros = br.SpanFinder(small()), torch.zeros(1, 4)
    for end, expected in ((2, 1.386), (7, 0.693)):
        loss = finder.loss(zeros, zeros, torch.tensor([1]), torch.tensor([end]))
        assert loss.item() == pytest.approx(expected, abs=5e-4)
    start, end = torch.tensor([0.0, 1.0, 3.0]), torch.tensor([0.0, 3.0, 2.0])
    assert (start.argmax(), end.argmax()) == (2, 1)
    assert br.best_span(start, end, ONES) == (2, 2)
    assert br.best_span(start, end, torch.tensor([True, True, False])) == (1, 1)
    assert br.align_labels([1, 0], [None, 0, 0, 1, None]) == [-100, 1, -100, 0, -100]
    scores = F.one_hot(torch.tensor([2, 1, 0, 1]), 3).float()
    assert br.word_tags(scores, [None, 0, 0, 1]) == [1, 1]
    labels = torch.tensor([[-100, 2, -100, 0, -100]])
    loss = br.Tagger(small(), 3).loss(torch.zeros(1, 5, 3), labels)
    assert loss.item() == pytest.approx(1.099, abs=5e-4)
    emissions = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]])
    crf = (torch.tensor([[0.5, -1.0], [0.0, 1.0]]), torch.zeros(2), torch.zeros(2))
    real = torch.ones(1, 2, dtype=torch.bool)
    for tags, expected in (((0, 0), 1.5), ((0, 1), 2.0), ((1, 0), 0.0), ((1, 1), 3.0)):
        assert br.crf_score(emissions, torch.tensor([tags]), real, *crf).tolist() == [expected]
    assert br.crf_partition(emissions, real, *crf).item() == pytest.approx(3.495, abs=5e-4)
    paths, best = br.viterbi(emissions, real, *crf)
    assert (paths, best.tolist()) == ([[1, 1]], [3.0])
    assert emissions[0, 0].argmax() == 0
    _, query = br.permutation_masks(torch.tensor([2, 0, 1]))
    assert query.long().tolist() == [[0, 0, 1], [1, 0, 1], [0, 0, 0]]
    one = torch.ones(1, 1)
    attention = filled(br.RelativeAttention(1, 1), v_proj__weight=one, out_proj__weight=one)
    with torch.no_grad():
        attention.k_proj.weight.fill_(1.7)
        attention.r_proj.weight.fill_(0.3)
    found = attention(torch.tensor([[[4.0], [9.0]]]), torch.tensor([[[2.0]]]))
    close(found, torch.tensor([[[3.0], [5.0]]]))
    places = torch.arange(1.0, 6.0).reshape(1, 5, 1)
    memory = br.update_memory(places[:, :3], places[:, 3:], 4)
    assert memory.flatten().tolist() == [2, 3, 4, 5]
    loss = br.replaced_token_loss(torch.zeros(1, 3), ONES[None], ONES[None])
    assert loss.item() == pytest.approx(0.693, abs=5e-4)
    model = br.TwoDirections(VOCAB, 3, 4)
    filled(model.output)
    ids, _, mask = batch([4, 2])
    assert model.loss(ids, mask).item() == pytest.approx(2 * math.log(VOCAB), rel=1e-5)
    sizes = {sum(p.numel() for p in br.SharedEncoder(n, 8, 2, 16).parameters()) for n in (2, 12)}
    assert len(sizes) == 1


def test_the_exercises_are_the_34_of_the_chapter():
    cells = common.exercise_cells(SOURCE).values()
    assert len(cells) == 34
    assert sum(c.metadata["points"] for c in cells) == 88
