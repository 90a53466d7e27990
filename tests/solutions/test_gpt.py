"""The GPT reference against implementations written by others or another way."""

import copy
import functools
import itertools
import json
import math
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from solutions import gpt
from solutions.gpt import DELIMITER, END, EXTRACT, PAD, SPECIAL, START
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

SOURCE = Path(gpt.__file__).parent  # a file a unit
# Repeatable, and without a limit on the time of an example: this machine may be busy.
examples = settings(derandomize=True, deadline=None, database=None, max_examples=100)
VOCAB, CONTEXT, WIDTH, LAYERS, HEADS = 40, 12, 16, 2, 4
NORMS = pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
PATHS = pytest.mark.parametrize("fast", [False, True], ids=["clear", "fast"])
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


def small(norm_first: bool = True, dropout: float = 0.0) -> gpt.GPT:
    return gpt.GPT(VOCAB, CONTEXT, WIDTH, LAYERS, HEADS, dropout, norm_first)


def perturbed(module: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The module in dtype, with noise on every parameter, biases and norms included."""
    module = module.to(dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return module


def tokens(*shape: int, vocab: int = VOCAB) -> Tensor:
    return torch.randint(SPECIAL, vocab, shape)


@pytest.fixture(scope="module")
def hf() -> Iterator[ModuleType]:
    """Hugging Face's library, imported late because it takes seconds, and told to stay offline."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        import transformers

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        yield transformers


def theirs_of(
    hf: ModuleType, kind: str, dtype: torch.dtype = torch.float64, **more: Any
) -> nn.Module:
    """A small model of Hugging Face with weights that nobody chose, in evaluation mode."""
    config = hf.GPT2Config if kind.startswith("GPT2") else hf.OpenAIGPTConfig
    sizes = {
        "vocab_size": VOCAB,
        "n_positions": CONTEXT,
        "n_embd": WIDTH,
        "n_layer": LAYERS,
        "n_head": HEADS,
        "bos_token_id": START,
        "eos_token_id": END,
        "pad_token_id": PAD,
    }
    return perturbed(getattr(hf, kind)(config(**{**sizes, **more})), dtype).eval()


def body(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """What belongs to the GPT, without the head of a task."""
    return {name: tensor for name, tensor in state.items() if name.startswith("transformer.")}


def maybe_fused(module: nn.Module, fast: bool) -> nn.Module:
    """The module on its fast path, or as it is."""
    return gpt.fused(module) if fast else module


def given_the_weights(theirs: nn.Module, fast: bool = False) -> gpt.GPT:
    """Ours with their weights; fails if a parameter on either side stands for none."""
    config = theirs.config
    ours = gpt.GPT(
        config.vocab_size,
        config.n_positions,
        config.n_embd,
        config.n_layer,
        config.n_head,
        0.0,
        config.model_type == "gpt2",
    )
    ours.to(next(theirs.parameters()).dtype).eval()
    ours.load_state_dict(gpt.rename_parameters(body(theirs.state_dict())))
    return maybe_fused(ours, fast)


def agree(
    ours: gpt.GPT,
    theirs: nn.Module,
    our_outputs: list[Tensor],
    their_outputs: list[Tensor],
) -> None:
    """Same values, and same gradients with respect to all parameters of the GPT."""
    for number, (a, b) in enumerate(zip(our_outputs, their_outputs, strict=True)):
        close(a, b, f"output {number}")
    gradients = []
    for module, outputs in ((ours, our_outputs), (theirs, their_outputs)):
        named = dict(module.named_parameters())
        if module is theirs:
            named = body(named)
        total = sum((o * cotangent(o)).sum() for o in outputs)
        found = torch.autograd.grad(total, list(named.values()))
        gradients.append(dict(zip(named, found, strict=True)))
    found, wanted = gradients[0], gpt.rename_parameters(gradients[1])
    assert found.keys() == wanted.keys()
    assert len(found) == len(list(ours.parameters())) >= 2 + 12 * len(ours.blocks)
    for name, gradient in found.items():
        close(gradient, wanted[name], name)


def follows(sample: Tensor, deviation: float) -> bool:
    """Whether a sample fits N(0, deviation^2), by the bound of Dvoretzky et al."""
    n = sample.numel()
    expected = torch.special.ndtr(sample.detach().double().flatten().sort().values / deviation)
    steps = torch.arange(n, dtype=torch.float64) / n
    distance = torch.maximum((expected - steps).abs(), (expected - steps - 1 / n).abs()).max()
    return bool(distance <= math.sqrt(math.log(2 / FALSE_ALARM) / (2 * n)))


refused = functools.partial(common.refused, source=SOURCE)


# -------------------------------------------------------------------------------- what is given


def test_a_table_model_reads_its_table():
    flat = torch.randn(7, 7)
    ids = torch.tensor([[3, 0, 6], [1, 1, 2]])
    model = gpt.TableModel(flat)
    assert model.max_length == 1024
    for b, t in itertools.product(range(2), range(3)):
        assert torch.equal(model(ids)[b, t], flat[ids[b, t]])
    deep = torch.randn(2, 7, 7)
    for b, t in itertools.product(range(2), range(3)):
        assert torch.equal(gpt.TableModel(deep)(ids)[b, t], deep[min(t, 1), ids[b, t]])
    assert gpt.TableModel(flat, 3)(ids).shape == (2, 3, 7)
    refused(lambda: gpt.TableModel(flat, 2)(ids), "2.*3")


# ---------------------------------------------------------------------------------------- masks


@examples
@given(length=st.integers(1, 9), past=st.integers(0, 5))
def test_the_causal_mask_equals_its_definition(length, past):
    mask = gpt.causal_mask(length, past)
    assert mask.dtype == torch.bool
    assert mask.tolist() == [[j <= past + i for j in range(past + length)] for i in range(length)]
    if not past:
        assert torch.equal(mask, ~nn.Transformer.generate_square_subsequent_mask(length).isinf())


@examples
@given(length=st.integers(1, 9), window=st.integers(1, 12))
def test_the_window_mask_equals_its_definition(length, window):
    mask = gpt.window_mask(length, window)
    assert mask.dtype == torch.bool
    places = range(length)
    assert mask.tolist() == [[i - window < j <= i for j in places] for i in places]
    if window >= length:
        assert torch.equal(mask, gpt.causal_mask(length))


# -------------------------------------------------------------------------- attention and blocks


@pytest.mark.parametrize(("width", "heads", "length"), [(8, 1, 1), (8, 2, 5), (12, 3, 7)])
@PATHS
@DTYPES
def test_attention_equals_torchs(dtype, fast, width, heads, length):
    ours = maybe_fused(perturbed(gpt.CausalSelfAttention(width, heads), dtype), fast)
    theirs = nn.MultiheadAttention(width, heads, batch_first=True, dtype=dtype)
    # Both stack queries, keys and values in one matrix, head after head in each.
    theirs.in_proj_weight, theirs.in_proj_bias = ours.qkv.weight, ours.qkv.bias
    theirs.out_proj.weight, theirs.out_proj.bias = ours.out_proj.weight, ours.out_proj.bias
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    same_with_gradients(
        ours,
        lambda x: theirs(x, x, x, attn_mask=hidden, need_weights=False)[0],
        [torch.randn(3, length, width, dtype=dtype)],
        list(ours.parameters()),
    )
    shapes = {name: tuple(p.shape) for name, p in ours.named_parameters()}
    assert shapes == {
        "qkv.weight": (3 * width, width),
        "qkv.bias": (3 * width,),
        "out_proj.weight": (width, width),
        "out_proj.bias": (width,),
    }
    assert ours.num_heads == heads


@pytest.mark.parametrize("p", [0.2, 0.5])
@PATHS
def test_attention_drops_weights_and_result_in_training_only(fast, p):
    length = 32
    module = gpt.CausalSelfAttention(length, 1, dropout=p)
    eye = torch.eye(length)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        module.qkv.weight[2 * length :] = eye  # values are inputs, all scores are equal
        module.out_proj.weight.copy_(eye)
    module = maybe_fused(module, fast)
    x = eye.expand(50, length, length)  # so the result holds the weights themselves
    weights = torch.ones(length, length).tril() / torch.arange(1.0, length + 1)[:, None]
    found = module.train()(x)
    kept = found != 0
    assert not kept[:, gpt.causal_mask(length).logical_not()].any()
    count, n = int(kept.sum()), 50 * length * (length + 1) // 2
    assert within_rate(count, n, (1 - p) ** 2)
    close(found[kept], (weights / (1 - p) ** 2).expand_as(found)[kept])
    close(module.eval()(x), weights.expand_as(found))


@DTYPES
def test_gelu_equals_torchs_with_tanh(dtype):
    x = torch.linspace(-8, 8, 1001, dtype=dtype)
    same_with_gradients(gpt.gelu, lambda x: F.gelu(x, approximate="tanh"), [x])


@PATHS
@DTYPES
def test_the_feed_forward_network_equals_its_formula(dtype, fast):
    ours = maybe_fused(perturbed(gpt.FeedForward(6), dtype), fast)
    assert ours.w_1.weight.shape == (24, 6)

    def formula(x: Tensor) -> Tensor:
        inside = F.gelu(x @ ours.w_1.weight.T + ours.w_1.bias, approximate="tanh")
        return inside @ ours.w_2.weight.T + ours.w_2.bias

    same_with_gradients(ours, formula, [torch.randn(2, 3, 6, dtype=dtype)], list(ours.parameters()))


@PATHS
def test_the_feed_forward_network_drops_its_result_in_training_only(fast):
    module = maybe_fused(gpt.FeedForward(4, 0.25), fast)
    with torch.no_grad():
        module.w_2.weight.zero_()
        module.w_2.bias.fill_(3.0)
    found = module.train()(torch.zeros(5000, 4))
    assert within_rate(int((found == 0).sum()), found.numel(), 0.25)
    close(found[found != 0], torch.full_like(found, 4.0)[found != 0])
    assert (module.eval()(torch.zeros(2, 4)) == 3).all()


@PATHS
@NORMS
@DTYPES
def test_a_block_equals_torchs_layer(dtype, norm_first, fast):
    kind = gpt.PreNormBlock if norm_first else gpt.PostNormBlock
    ours = maybe_fused(perturbed(kind(12, 3), dtype), fast)
    theirs = nn.TransformerEncoderLayer(
        12,
        3,
        48,
        dropout=0.0,
        activation=lambda x: F.gelu(x, approximate="tanh"),
        batch_first=True,
        norm_first=norm_first,
        dtype=dtype,
    )
    attention, network = ours.attention, ours.feed_forward
    theirs.self_attn.in_proj_weight = attention.qkv.weight
    theirs.self_attn.in_proj_bias = attention.qkv.bias
    theirs.self_attn.out_proj = attention.out_proj
    theirs.linear1, theirs.linear2 = network.w_1, network.w_2
    theirs.norm1, theirs.norm2 = ours.norm_1, ours.norm_2
    hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)
    same_with_gradients(
        ours,
        lambda x: theirs(x, src_mask=hidden),
        [torch.randn(2, 6, 12, dtype=dtype)],
        list(ours.parameters()),
    )


# ------------------------------------------------------------------------------------- the model

SIZES = {
    "small": {},
    "one head": {"n_head": 1, "n_layer": 1},
    "deep": {"n_layer": 5, "n_embd": 12, "n_head": 3},
}


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("kind", ["GPT2LMHeadModel", "OpenAIGPTLMHeadModel"])
@PATHS
@DTYPES
def test_the_model_equals_hugging_faces(hf, dtype, fast, kind, sizes):
    """Logits and loss, and the gradients of all parameters."""
    theirs = theirs_of(hf, kind, dtype, **SIZES[sizes])
    ours = given_the_weights(theirs, fast)
    for length in (2, CONTEXT):
        ids = tokens(3, length)
        logits, out = ours(ids), theirs(ids, labels=ids)
        loss = gpt.language_model_loss(logits, ids)
        wanted = out.loss
        if wanted.dtype != dtype:  # GPT-2's rounds its loss to float32
            assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
            wanted = F.cross_entropy(out.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        agree(ours, theirs, [logits, loss], [out.logits, wanted])


def test_the_output_matrix_is_the_table_of_tokens():
    model = small()
    names = set(dict(model.named_parameters()))
    assert {name for name in names if not name.startswith("blocks.")} == {
        "token.weight",
        "position.weight",
        "final_norm.weight",
        "final_norm.bias",
    }
    assert type(small(False).final_norm) is nn.Identity
    ids = tokens(2, 5)
    close(model(ids), model.features(ids) @ model.token.weight.T)


@PATHS
@NORMS
def test_logits_depend_on_the_tokens_up_to_their_place_and_on_none_later(norm_first, fast):
    model = maybe_fused(perturbed(small(norm_first)), fast)
    seen: list[Tensor] = []
    model.token.register_forward_hook(lambda module, args, out: seen.append(out))
    logits = model(tokens(2, 7))
    for i in range(7):
        gradient = torch.autograd.grad(logits[0, i].square().sum(), seen[0], retain_graph=True)[0]
        reached = (gradient != 0).any(dim=2)  # (2, 7)
        assert reached.tolist() == [[j <= i for j in range(7)], [False] * 7]


def test_dropout_reaches_the_embeddings_in_training_only():
    model = gpt.GPT(VOCAB, 64, 100, 0, 1, 0.3, norm_first=False)
    ids = tokens(20, 64)
    plain = model.token(ids) + model.position.weight
    found = model.train().features(ids)
    assert within_rate(int((found == 0).sum()), found.numel(), 0.3)
    close(found[found != 0], (plain / 0.7)[found != 0])
    close(model.eval().features(ids), plain)
    rates = [m.p for m in small(dropout=0.4).modules() if isinstance(m, nn.Dropout)]
    assert len(rates) == 1 + 2 * LAYERS
    assert set(rates) == {0.4}


@NORMS
def test_weights_begin_as_gpts_do(norm_first):
    model = gpt.GPT(500, 64, 64, 8, 4, norm_first=norm_first)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    assert gpt.init_weights(model) is model
    branches = 0.02 / math.sqrt(16) if norm_first else 0.02
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        else:
            ends = name.endswith(("out_proj.weight", "w_2.weight"))
            assert follows(parameter, branches if ends else 0.02), name
            # The deviation itself, at six times that of its estimate.
            expected = branches if ends else 0.02
            assert abs(parameter.std().item() / expected - 1) < 6 / math.sqrt(2 * parameter.numel())


def test_a_new_model_begins_near_even_logits():
    ids = tokens(4, CONTEXT)
    for norm_first in (True, False):
        loss = gpt.language_model_loss(gpt.init_weights(small(norm_first))(ids), ids)
        assert loss.item() == pytest.approx(math.log(VOCAB), abs=0.1)


COUNTS = {
    "GPT-1": ((40478, 512, 768, 12, False), 116_534_784),
    "GPT-2 small": ((50257, 1024, 768, 12), 124_439_808),
    "GPT-2 medium": ((50257, 1024, 1024, 24), 354_823_168),
    "GPT-2 large": ((50257, 1024, 1280, 36), 774_030_080),
    "GPT-2 XL": ((50257, 1024, 1600, 48), 1_557_611_200),
    "GPT-3": ((50257, 2048, 12288, 96), 174_604_259_328),
}


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_are_as_many_as_hugging_faces(hf, name):
    (vocab, context, width, layers, *rest), count = COUNTS[name]
    sizes = {
        "vocab_size": vocab,
        "n_positions": context,
        "n_embd": width,
        "n_layer": layers,
        "n_head": 12 if width == 768 else 16 if width < 1600 else 25 if width == 1600 else 96,
    }
    with torch.device("meta"):
        if name == "GPT-1":
            theirs = hf.OpenAIGPTLMHeadModel(hf.OpenAIGPTConfig(**sizes))
        else:
            theirs = hf.GPT2LMHeadModel(hf.GPT2Config(**sizes))
        ours = gpt.GPT(vocab, context, width, layers, sizes["n_head"], 0.0, *rest)
    assert gpt.count_parameters(vocab, context, width, layers, *rest) == count
    assert theirs.num_parameters() == count
    assert sum(p.numel() for p in ours.parameters()) == count


@examples
@given(
    vocab=st.integers(1, 30),
    context=st.integers(1, 9),
    width=st.integers(1, 8),
    layers=st.integers(0, 3),
    norm_first=st.booleans(),
)
def test_the_formula_equals_counting(vocab, context, width, layers, norm_first):
    with torch.device("meta"):
        model = gpt.GPT(vocab, context, width, layers, 1, norm_first=norm_first)
    count = gpt.count_parameters(vocab, context, width, layers, norm_first)
    assert count == sum(p.numel() for p in model.parameters())
    assert type(count) is int


# ------------------------------------------------------------------------------------ checkpoints

KINDS = ["GPT2LMHeadModel", "OpenAIGPTLMHeadModel"]


@pytest.mark.parametrize("kind", KINDS)
@DTYPES
def test_a_checkpoint_of_hugging_face_gives_the_same_model(hf, tmp_path, kind, dtype):
    theirs = theirs_of(hf, kind, dtype)
    theirs.save_pretrained(tmp_path)
    ours, tokenizer = gpt.from_pretrained(tmp_path)
    assert tokenizer is None
    assert not ours.training
    ids = tokens(3, 5)
    agree(ours, theirs, [ours(ids)], [theirs(ids).logits])
    wanted = theirs.generate(ids, max_new_tokens=7, do_sample=False, eos_token_id=None)
    for function in (gpt.generate, gpt.fast_generate):
        assert torch.equal(function(ours, ids, 7, temperature=0), wanted)


@pytest.mark.parametrize("kind", ["GPT2Model", "OpenAIGPTModel"])
def test_a_bare_model_is_read_too(hf, tmp_path, kind):
    theirs = theirs_of(hf, kind, torch.float32)
    theirs.save_pretrained(tmp_path)
    ours, _ = gpt.from_pretrained(str(tmp_path), dropout=0.25)
    ids = tokens(2, 4)
    close(ours.features(ids), theirs(ids).last_hidden_state)
    assert ours.dropout.p == 0.25


def rewrite(folder: Path, config: dict[str, Any], rename: Callable[[str], str | None]) -> None:
    """Change a saved checkpoint with the library that wrote it."""
    from safetensors.torch import load_file, save_file

    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    state = load_file(folder / "model.safetensors")
    kept = {rename(name): tensor for name, tensor in state.items() if rename(name)}
    save_file(kept, folder / "model.safetensors")


@pytest.fixture(scope="module")
def checkpoint(hf: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The two files of a checkpoint of GPT-2."""
    folder = tmp_path_factory.mktemp("checkpoint")
    theirs_of(hf, "GPT2LMHeadModel", torch.float32).save_pretrained(folder)
    return {name: (folder / name).read_bytes() for name in ("config.json", "model.safetensors")}


def unpacked(checkpoint: dict[str, bytes], folder: Path) -> Path:
    for name, data in checkpoint.items():
        (folder / name).write_bytes(data)
    return folder


def test_the_names_of_other_configurations_are_understood(checkpoint, tmp_path):
    plain, _ = gpt.from_pretrained(unpacked(checkpoint, tmp_path))
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for short, long in (
        ("n_embd", "hidden_size"),
        ("n_positions", "max_position_embeddings"),
        ("n_layer", "num_hidden_layers"),
        ("n_head", "num_attention_heads"),
    ):
        config[long] = config.pop(short)
    path.write_text(json.dumps(config | {"activation_function": "gelu_pytorch_tanh"}))
    ids = tokens(2, 4)
    ours, _ = gpt.from_pretrained(tmp_path)
    close(ours(ids), plain(ids))


REFUSED = {
    "another architecture": ({"model_type": "gptj"}, None, "model_type must be"),
    "gelu by erf": ({"activation_function": "gelu"}, None, "activation_function.*'gelu'"),
    "another activation": ({"activation_function": "relu"}, None, "activation_function"),
    "a size in words": ({"n_layer": "2"}, None, "n_layer must be a whole number"),
    "two rates": ({"attn_pdrop": 0.0}, None, "one rate of dropout"),
    "another width inside": ({"n_inner": 32}, None, "n_inner must be 64"),
    "scaled by layer": ({"scale_attn_by_inverse_layer_idx": True}, None, "inverse_layer_idx"),
    "unscaled": ({"scale_attn_weights": False}, None, "scale_attn_weights"),
    "cross-attention": ({"add_cross_attention": True}, None, "add_cross_attention"),
    "untied": ({"tie_word_embeddings": False}, None, "tie_word_embeddings"),
    "another eps": ({"layer_norm_epsilon": 1e-6}, None, "layer_norm_epsilon"),
    "more tokens": ({"vocab_size": 41}, None, r"token.*\(41, 16\).*\(40, 16\)"),
    "a shorter context": ({"n_positions": 11}, None, r"position.*\(11, 16\)"),
    "another width": ({"n_embd": 32}, None, r"shape \(96,\).*\(48,\)"),
    "more layers": ({"n_layer": 3}, None, "checkpoint lacks blocks.2"),
    "fewer layers": ({"n_layer": 1}, None, "has no blocks.1"),
    "heads": ({"n_head": 5}, None, "5 equal heads"),
    "a hole": ({}, lambda n: None if "h.0.mlp.c_proj.bias" in n else n, "lacks.*w_2.bias"),
    "foreign": ({}, lambda n: n.replace("ln_f", "ln_x"), "ln_x"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_checkpoint_that_does_not_fit_is_refused(checkpoint, tmp_path, case):
    config, rename, words = REFUSED[case]
    rewrite(unpacked(checkpoint, tmp_path), config, rename or (lambda name: name))
    refused(lambda: gpt.from_pretrained(tmp_path), words)


def test_gpt_1_with_another_activation_is_refused(hf, tmp_path):
    theirs_of(hf, "OpenAIGPTLMHeadModel", afn="relu").save_pretrained(tmp_path)
    refused(lambda: gpt.from_pretrained(tmp_path), "afn must be 'gelu'")


def test_an_output_matrix_of_its_own_is_refused(checkpoint, tmp_path):
    from safetensors.torch import load_file, save_file

    path = unpacked(checkpoint, tmp_path) / "model.safetensors"
    state = load_file(path)
    table = state["transformer.wte.weight"]
    save_file({**state, "lm_head.weight": table.clone()}, path)
    ids = tokens(2, 3)
    ours, _ = gpt.from_pretrained(tmp_path)
    assert torch.equal(ours.token.weight, table)
    assert ours(ids).shape == (2, 3, VOCAB)
    save_file({**state, "lm_head.weight": table + 1}, path)
    refused(lambda: gpt.from_pretrained(tmp_path), "lm_head")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_and_damaged_files_are_refused(checkpoint, tmp_path, name):
    path = unpacked(checkpoint, tmp_path) / name
    whole = path.read_bytes()
    for damaged in (b"", whole[:100], b"\xff" * 100, b"[]"):
        path.write_bytes(damaged)
        refused(lambda: gpt.from_pretrained(tmp_path), name)
    path.unlink()
    refused(lambda: gpt.from_pretrained(tmp_path), name)
    path.write_bytes(whole)
    gpt.from_pretrained(tmp_path)


# A published checkpoint: its vocabulary and ids, and weights that nobody chose.
PUBLISHED = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Tokenizer", vocabularies.GPT2_SIZE, 50256),
    "openai-gpt": ("OpenAIGPTLMHeadModel", "OpenAIGPTTokenizer", vocabularies.GPT1_SIZE, None),
}


@pytest.fixture(scope="module")
def published(hf: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders like those of gpt2 and openai-gpt, but small inside."""
    folders = {}
    for kind, (name, _, size, end) in PUBLISHED.items():
        folders[kind] = tmp_path_factory.mktemp(kind)
        more = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": None, "n_positions": 128}
        torch.manual_seed(3)
        model = theirs_of(hf, name, torch.float32, vocab_size=size, **more)
        table = model.get_input_embeddings().weight
        with torch.no_grad():  # else the longest one is the likeliest token everywhere
            table.div_(table.norm(dim=1, keepdim=True))
        model.save_pretrained(folders[kind])
        vocabularies.write_gpt(folders[kind], kind)
    return folders


@pytest.mark.parametrize("kind", PUBLISHED)
def test_a_published_checkpoint_has_the_ids_logits_and_texts_of_hugging_face(hf, published, kind):
    name, reader, size, end = PUBLISHED[kind]
    theirs = getattr(hf, name).from_pretrained(published[kind]).eval()
    reader = getattr(hf, reader).from_pretrained(published[kind])
    ours, tokenizer = gpt.from_pretrained(published[kind])
    assert ours.token.num_embeddings == len(tokenizer) == size
    assert tokenizer.end == end
    for text in vocabularies.SENTENCES:
        batch = reader(text, return_tensors="pt")
        ids = torch.tensor([tokenizer.encode(text)])
        assert torch.equal(ids, batch["input_ids"])
        close(ours(ids), theirs(**batch).logits)
        # The pipeline for text generation, with the likeliest token each time.
        answer = hf.pipeline("text-generation", theirs, tokenizer=reader)(
            text, max_new_tokens=12, do_sample=False, return_full_text=False
        )[0]["generated_text"]
        written = gpt.generate(ours, ids, 12, temperature=0, stop=tokenizer.end)
        new = written[0, ids.shape[1] :]
        assert tokenizer.decode(new) == answer
        assert len(set(new.tolist())) > 1  # not the same one over and over


def test_generation_ends_with_the_checkpoints_own_token(published):
    ours, tokenizer = gpt.from_pretrained(published["gpt2"])
    ids = torch.tensor([tokenizer.encode("The river")])
    plain = gpt.generate(ours, ids, 5, temperature=0)
    with torch.no_grad():  # the vector after the second new token, as if it meant the end
        ours.token.weight[tokenizer.end] = 9 * ours.features(plain[:, :-3])[0, -1]
    ended = gpt.generate(ours, ids, 5, temperature=0, stop=tokenizer.end)
    assert ended[0, -1] == 50256
    assert ended.shape[1] <= ids.shape[1] + 3


def edited(folder: Path, published: Path, config: dict[str, Any]) -> Path:
    shutil.copytree(published, folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return folder


def test_a_tokenizer_that_does_not_go_with_the_model_is_refused(published, tmp_path):
    folder = edited(tmp_path / "a", published["gpt2"], {"eos_token_id": 4})
    refused(lambda: gpt.from_pretrained(folder), "eos_token_id is 4 .* is 50256")
    folder = edited(tmp_path / "b", published["gpt2"], {})
    ids = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    fewer = {name: number for name, number in ids.items() if number < 40000}
    (folder / "vocab.json").write_text(json.dumps({**fewer, "<|endoftext|>": 40000}))
    refused(lambda: gpt.from_pretrained(folder), "40001 tokens, but vocab_size is 50257")
    (folder / "merges.txt").unlink()
    refused(lambda: gpt.from_pretrained(folder), r"only vocab\.json")
    (folder / "vocab.json").unlink()
    assert gpt.from_pretrained(folder)[1] is None


def stored(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """Change the weights of a saved checkpoint."""
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    state = load_file(path)
    save_file(state | change(state), path)


CHANGED = {
    "with and without a prefix": (
        lambda s: {"ln_f.bias": s["transformer.ln_f.bias"].clone()},
        "are the same parameter, final_norm.bias",
    ),
    "two types": (
        lambda s: {"transformer.ln_f.bias": s["transformer.ln_f.bias"].half()},
        "of float16, float32",
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
    refused(lambda: gpt.from_pretrained(tmp_path), words)


def test_an_unknown_option_is_refused(checkpoint, tmp_path):
    folder = unpacked(checkpoint, tmp_path)
    refused(lambda: gpt.from_pretrained(folder, layers=3), "no option layers")


def test_renaming_transposes_four_and_leaves_masks_out():
    kept = torch.randn(4)
    state = {
        "h.11.attn.c_attn.weight": torch.randn(4, 12),
        "transformer.h.3.mlp.c_fc.weight": torch.randn(4, 16),
        "h.3.attn.c_attn.bias": kept,
        "h.3.ln_1.weight": kept,
        "ln_f.bias": kept,
        "transformer.tokens_embed.weight": torch.randn(5, 4),
        "h.0.attn.bias": kept,
        "transformer.h.0.attn.masked_bias": kept,
        "lm_head.weight": kept,
        "position_ids": kept,
        "transformer.position_ids": kept,
    }
    before = {name: tensor.clone() for name, tensor in state.items()}
    ours = gpt.rename_parameters(state)
    assert list(ours) == [
        "blocks.11.attention.qkv.weight",
        "blocks.3.feed_forward.w_1.weight",
        "blocks.3.attention.qkv.bias",
        "blocks.3.norm_1.weight",
        "final_norm.bias",
        "token.weight",
    ]
    assert torch.equal(ours["blocks.11.attention.qkv.weight"], state["h.11.attn.c_attn.weight"].T)
    assert ours["blocks.11.attention.qkv.weight"].is_contiguous()
    for name in ("blocks.3.attention.qkv.bias", "blocks.3.norm_1.weight", "final_norm.bias"):
        assert ours[name] is kept
    assert all(torch.equal(state[name], tensor) for name, tensor in before.items())


FOREIGN = [
    "h.0.attn.c_attn",
    "h.0.attn.c_attn.scale",
    "h.attn.c_attn.weight",
    "h.x.ln_1.weight",
    "g.0.ln_1.weight",
    "h.0.ln_3.weight",
    "h.0.mlp.c_attn.weight",
    "wte.bias",
    "wte",
    "bert.pooler.dense.weight",
]


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_name_is_refused_by_name(name):
    for full in (name, f"transformer.{name}"):
        refused(lambda full=full: gpt.rename_parameters({full: torch.zeros(2, 2)}), full)


# ----------------------------------------------------------------------------------------- losses


def by_loop(logits: Tensor, ids: Tensor, mask: Tensor | None) -> list[list[Tensor]]:
    """The terms that count, of each row, by the definition."""
    rows = []
    for b in range(len(ids)):
        terms = []
        for t in range(1, ids.shape[1]):
            if mask is None or mask[b, t]:
                scores = logits[b, t - 1]
                terms.append(scores[ids[b, t]] - torch.logsumexp(scores, 0))
        rows.append(terms)
    return rows


@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@DTYPES
def test_likelihood_and_loss_equal_a_loop_and_torchs(dtype, masked):
    ids = torch.randint(9, (4, 6))
    mask = torch.rand(4, 6) < 0.6 if masked else None
    logits = 3 * torch.randn(4, 6, 9, dtype=dtype)
    zero = torch.zeros((), dtype=dtype)

    def likelihood(x: Tensor) -> Tensor:
        return torch.stack([sum(terms, zero) for terms in by_loop(x, ids, mask)])

    same_with_gradients(lambda x: gpt.log_likelihood(x, ids, mask), likelihood, [logits])

    def loss(x: Tensor) -> Tensor:
        targets = ids if mask is None else ids.masked_fill(~mask, -100)
        return F.cross_entropy(x[:, :-1].flatten(0, 1), targets[:, 1:].flatten())

    same_with_gradients(lambda x: gpt.language_model_loss(x, ids, mask), loss, [logits])


def test_likelihood_minus_loss_and_perplexity_are_one_quantity():
    ids, logits = torch.randint(9, (3, 5)), torch.randn(3, 5, 9, dtype=torch.float64)
    whole = gpt.log_likelihood(logits, ids).sum()
    loss = gpt.language_model_loss(logits, ids)
    close(-whole / 12, loss)
    uniform = gpt.language_model_loss(torch.zeros(3, 5, 9), ids).exp()
    assert uniform.item() == pytest.approx(9, rel=1e-5)


def test_without_a_target_the_loss_is_0_and_the_gradient_finite():
    logits = torch.randn(2, 3, 5, requires_grad=True)
    mask = torch.zeros(2, 3, dtype=torch.bool)
    mask[:, 0] = True  # the first token is nobody's target
    loss = gpt.language_model_loss(logits, torch.randint(5, (2, 3)), mask)
    loss.backward()
    assert loss.item() == 0
    assert (logits.grad == 0).all()


# ------------------------------------------------------------------------------ batches, training


def test_blocks_are_contiguous_and_begin_anywhere():
    stream = torch.randperm(1000)[:13]
    place = {int(token): at for at, token in enumerate(stream)}
    count: dict[int, int] = dict.fromkeys(range(9), 0)
    pairs = dict.fromkeys(itertools.product(range(9), repeat=2), 0)
    for _ in range(200):
        inputs, targets = gpt.sample_blocks(stream, 4, 50)
        assert inputs.shape == targets.shape == (50, 4)
        assert inputs.dtype == targets.dtype == torch.int64
        starts = [place[int(row[0])] for row in inputs]
        for start, row, following in zip(starts, inputs, targets, strict=True):
            assert torch.equal(row, stream[start : start + 4])
            assert torch.equal(following, stream[start + 1 : start + 5])
            count[start] += 1
        for pair in zip(starts[::2], starts[1::2], strict=True):
            pairs[pair] += 1
    assert all(within_rate(n, 10_000, 1 / 9) for n in count.values())
    assert all(within_rate(n, 5000, 1 / 81) for n in pairs.values())


def test_the_shortest_stream_has_one_block():
    stream = torch.arange(5)
    inputs, targets = gpt.sample_blocks(stream, 4, 3)
    assert inputs.tolist() == [[0, 1, 2, 3]] * 3
    assert targets.tolist() == [[1, 2, 3, 4]] * 3


def test_matrices_and_tables_decay_biases_and_norms_do_not():
    model = small()
    model.blocks[0].feed_forward.w_1.weight.requires_grad_(False)
    model.again = model.token  # shared: counts once
    decaying, others = gpt.decay_groups(model, 0.3)
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.3, 0.0)
    names = {id(p): name for name, p in model.named_parameters()}
    first = [names[id(p)] for p in decaying["params"]]
    second = [names[id(p)] for p in others["params"]]
    frozen = "blocks.0.feed_forward.w_1.weight"
    wanted = [n for n, p in model.named_parameters() if p.dim() >= 2 and n != frozen]
    assert first == wanted
    assert second == [n for n, p in model.named_parameters() if p.dim() < 2]
    assert all(n.endswith("bias") or "norm" in n for n in second)
    torch.optim.AdamW([decaying, others])


@pytest.mark.parametrize("decay", [0.0, 0.1, 3.0])
@pytest.mark.parametrize("more", [{}, {"betas": (0.8, 0.999), "eps": 1e-3}])
@DTYPES
def test_a_step_of_adamw_equals_torchs(dtype, more, decay):
    ours = torch.randn(3, 4, dtype=dtype)
    theirs = nn.Parameter(ours.clone())
    options = {"betas": (0.9, 0.95), "eps": 1e-8, **more}
    optimiser = torch.optim.AdamW([theirs], lr=0.01, weight_decay=decay, **options)
    first = second = torch.zeros_like(ours)
    for step in range(1, 41):
        rate = 0.02 / step
        gradient = torch.randn(3, 4, dtype=dtype) * 10 ** random.Random(step).uniform(-3, 3)
        optimiser.param_groups[0]["lr"] = rate
        theirs.grad = gradient.clone()
        optimiser.step()
        before = [x.clone() for x in (ours, gradient, first, second)]
        new = gpt.adamw_step(ours, gradient, first, second, step, rate, weight_decay=decay, **more)
        for kept, x in zip(before, (ours, gradient, first, second), strict=True):
            assert torch.equal(kept, x)
        ours, first, second = new
        close(ours, theirs.detach(), f"step {step}")
        state = optimiser.state[theirs]
        close(first, state["exp_avg"])
        close(second, state["exp_avg_sq"])


@pytest.mark.parametrize(("warmup", "total"), [(0, 1), (0, 10), (4, 20), (19, 20)])
def test_the_rate_equals_hugging_faces(hf, warmup, total):
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.3)
    schedule = hf.get_cosine_schedule_with_warmup(optimiser, warmup, total)
    for step in range(1, total + 1):  # theirs counts from 0
        optimiser.step()
        schedule.step()
        assert gpt.cosine_lr(step, 0.3, warmup, total) == pytest.approx(
            schedule.get_last_lr()[0], abs=1e-12
        )


def test_the_rate_rises_in_a_line_falls_to_the_floor_and_stays():
    assert gpt.cosine_lr(3, 1.0, 6, 20) == 0.5
    assert gpt.cosine_lr(6, 1.0, 6, 20, 0.1) == 1.0
    assert gpt.cosine_lr(13, 1.0, 6, 20, 0.1) == pytest.approx(0.55)
    for step in (20, 21, 1000):
        assert gpt.cosine_lr(step, 1.0, 6, 20, 0.1) == 0.1
    assert gpt.cosine_lr(20, 1.0, 6, 20) == 0.0
    assert isinstance(gpt.cosine_lr(20, 1.0, 6, 20), float)
    rates = [gpt.cosine_lr(step, 1.0, 6, 20, 0.1) for step in range(6, 22)]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize("clip", [0.05, 1.0, 1e9])
@NORMS
def test_training_equals_a_loop_with_steps_of_our_own(norm_first, clip):
    """One possible block, so nothing is left to chance."""
    ours = perturbed(small(norm_first))
    theirs = copy.deepcopy(ours)
    # Gradients from elsewhere and the mode must not matter.
    for parameter in ours.parameters():
        parameter.grad = torch.ones_like(parameter)
    ours.eval()
    stream = tokens(9)
    found = gpt.train(ours, stream, 6, 8, 2, 0.01, 2, weight_decay=0.5, clip=clip)
    assert ours.training
    named = dict(theirs.named_parameters())
    moments = {n: (torch.zeros_like(p), torch.zeros_like(p)) for n, p in named.items()}
    losses = []
    for step in range(1, 7):
        inputs, targets = stream[:-1].repeat(2, 1), stream[1:].repeat(2, 1)
        log_probs = torch.log_softmax(theirs(inputs), -1)
        loss = -log_probs.gather(2, targets.unsqueeze(2)).mean()
        losses.append(loss.item())
        gradients = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
        norm = torch.sqrt(sum(g.square().sum() for g in gradients.values())).item()
        factor = min(1.0, clip / (norm + 1e-6))
        rate = 0.01 * step / 2 if step <= 2 else 0.005 * (1 + math.cos(math.pi * (step - 2) / 4))
        for name, parameter in named.items():
            decay = 0.5 if parameter.dim() >= 2 else 0.0
            new, *means = gpt.adamw_step(
                parameter.detach(),
                factor * gradients[name],
                *moments[name],
                step,
                rate,
                weight_decay=decay,
            )
            moments[name] = tuple(means)
            with torch.no_grad():
                parameter.copy_(new)
    assert found == pytest.approx(losses, rel=1e-9)
    for name, parameter in ours.named_parameters():
        error = (parameter - named[name]).abs().max().item()
        assert error < 1e-9, f"{name}: off by {error}"


def test_training_teaches_a_small_model_its_text():
    stream = torch.tensor([5, 9, 7, 11, 6] * 40)
    model = gpt.make_model(12, 8, 16, 1, 2, dropout=0.0)
    losses = gpt.train(model, stream, 80, 8, 8, 0.02, 8)
    assert len(losses) == 80
    assert all(isinstance(loss, float) for loss in losses)
    assert losses[0] == pytest.approx(math.log(12), abs=0.1)
    assert sum(losses[-5:]) / 5 < 0.1
    assert gpt.generate(model.eval(), torch.tensor([[5, 9]]), 4, temperature=0).tolist() == [
        [5, 9, 7, 11, 6, 5]
    ]


def test_training_leaves_what_is_frozen_alone():
    model = perturbed(small(), torch.float32)
    model.position.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    gpt.train(model, tokens(30), 3, 6, 2, 0.01, 1)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]) == name.startswith("position"), name


# --------------------------------------------------------------------------------------- sampling

ROWS = [(1, 7), (4, 30), (2, 3, 11)]


@pytest.mark.parametrize("shape", ROWS)
@DTYPES
def test_temperature_top_k_and_top_p_equal_hugging_faces(hf, dtype, shape):
    logits = 4 * torch.randn(shape, dtype=dtype)
    kept = logits.clone()
    flat = logits.flatten(0, -2)  # theirs have two axes

    def same(found: Tensor, warper: Any) -> None:
        assert found.dtype == dtype
        assert torch.equal(found, warper(None, flat).reshape(shape))
        assert torch.equal(logits, kept)

    for temperature in (0.3, 1.0, 2.5):
        same(gpt.scale_temperature(logits, temperature), hf.TemperatureLogitsWarper(temperature))
    for k in (1, 2, 5, shape[-1], shape[-1] + 3):
        same(gpt.keep_top_k(logits, k), hf.TopKLogitsWarper(k))
    for p in (0.01, 0.3, 0.8, 0.95, 1.0):
        same(gpt.keep_top_p(logits, p), hf.TopPLogitsWarper(p))


@examples
@given(data=st.data())
def test_the_nucleus_is_the_smallest_set_with_enough(data):
    size = data.draw(st.integers(1, 6))
    weights = data.draw(st.lists(st.integers(0, 50), min_size=size, max_size=size, unique=True))
    if not any(weights):
        weights[0] = 1
    p = data.draw(st.floats(0.01, 0.99))
    probabilities = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    found = ~gpt.keep_top_p(probabilities.log(), p).isinf()
    sets = [
        chosen
        for n in range(1, size + 1)
        for chosen in itertools.combinations(range(size), n)
        if abs(sum(probabilities[list(chosen)]).item() - p) < 1e-9
    ]
    if sets:  # a sum that may be rounded to either side
        return
    enough = [
        (n, -sum(probabilities[list(chosen)]).item(), chosen)
        for n in range(1, size + 1)
        for chosen in itertools.combinations(range(size), n)
        if sum(probabilities[list(chosen)]) > p
    ]
    assert found.nonzero().flatten().tolist() == list(min(enough)[2])


def test_ties_and_what_is_out_already():
    inf = math.inf
    tied = torch.tensor([[3.0, 1.0, 3.0, 2.0, 2.0]])
    assert gpt.keep_top_k(tied, 3).tolist() == [[3.0, -inf, 3.0, 2.0, 2.0]]
    out = torch.tensor([[-inf, 1.0, -inf, 0.5]])
    assert torch.equal(gpt.keep_top_k(out, 3), out)
    assert torch.equal(gpt.keep_top_p(out, 0.99), out)
    assert gpt.keep_top_p(out, 0.5).tolist() == [[-inf, 1.0, -inf, -inf]]
    # Exactly p is enough, and of equal ones the first stays.
    assert gpt.keep_top_p(torch.zeros(1, 4), 0.5).tolist() == [[0.0, 0.0, -inf, -inf]]
    sharp = torch.tensor([[0.0, 50.0]])
    assert torch.equal(gpt.keep_top_p(sharp, 1.0), sharp)
    assert gpt.keep_top_p(sharp, 1e-9).tolist() == [[-inf, 50.0]]


CHOICES = [
    {},
    {"temperature": 0.5},
    {"top_k": 3},
    {"top_p": 0.6},
    {"temperature": 2.0, "top_k": 4, "top_p": 0.7},
]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_tokens_are_drawn_at_their_probabilities(choice):
    n = 30_000
    logits = torch.tensor([1.5, -0.3, 0.8, 0.1, 2.0, -1.0])
    wanted = logits / choice.get("temperature", 1.0)
    order = wanted.argsort(descending=True)
    keep = order[: choice.get("top_k", 6)]
    p = torch.zeros(6).index_copy(0, keep, torch.softmax(wanted[keep], 0))
    total, nucleus = 0.0, []
    for token in keep.tolist():
        if total < choice.get("top_p", 1.0):
            nucleus.append(token)
        total += p[token].item()
    p = torch.zeros(6).index_copy(0, torch.tensor(nucleus), p[nucleus] / p[nucleus].sum())
    found = gpt.sample_token(logits.expand(n, 6), **choice)
    assert found.shape == (n,)
    assert found.dtype == torch.int64
    for token in range(6):
        count = int((found == token).sum())
        assert within_rate(count, n, p[token].item()), (token, count / n, p[token].item())
        assert (count == 0) == (p[token] == 0)


def test_the_nucleus_is_taken_of_what_top_k_left():
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().expand(20_000, 4)
    # Of the best two 0.4 is 4/7, so the nucleus of 0.5 is one token; of all it would be two.
    assert (gpt.sample_token(logits, top_k=2, top_p=0.5) == 0).all()
    assert (gpt.sample_token(logits, top_p=0.5) == 1).any()


def test_temperature_0_takes_the_first_of_the_largest():
    logits = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [0.0, 1.0, 5.0]])
    state = torch.get_rng_state()
    assert gpt.sample_token(logits, temperature=0).tolist() == [1, 0, 2]
    assert gpt.sample_token(logits, temperature=0.0, top_k=1, top_p=0.1).tolist() == [1, 0, 2]
    assert torch.equal(torch.get_rng_state(), state)


def test_draws_come_from_the_generator_that_is_given():
    logits = torch.zeros(50, 100)
    state = torch.get_rng_state()
    rows = [
        gpt.sample_token(logits, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    ]
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])
    assert torch.equal(torch.get_rng_state(), state)
    gpt.sample_token(logits)
    assert not torch.equal(torch.get_rng_state(), state)


# --------------------------------------------------------------------------------------- generate

WRITERS = pytest.mark.parametrize("write", [gpt.generate, gpt.fast_generate])


@pytest.mark.parametrize("kind", KINDS)
@WRITERS
def test_greedy_writing_equals_hugging_faces(hf, kind, write):
    theirs = theirs_of(hf, kind)
    ours = given_the_weights(theirs)
    ids = tokens(6, 3)
    plain = theirs.generate(ids, max_new_tokens=9, do_sample=False, eos_token_id=None)
    assert torch.equal(write(ours, ids, 9, temperature=0), plain)
    # A token that one row writes early, so that rows end at different places.
    stop = int(plain[2, 4])
    wanted = theirs.generate(
        ids, max_new_tokens=9, do_sample=False, eos_token_id=stop, pad_token_id=stop
    )
    assert torch.equal(write(ours, ids, 9, temperature=0, stop=stop), wanted)
    assert (wanted[2, 4:] == stop).all()


@NORMS
@WRITERS
def test_a_full_context_moves_on(norm_first, write):
    model = perturbed(small(norm_first)).eval()
    for start in (1, CONTEXT - 1, CONTEXT, CONTEXT + 3):
        ids = tokens(3, start)
        wanted = ids
        for _ in range(CONTEXT + 2):
            token = model(wanted[:, -CONTEXT:])[:, -1].argmax(dim=1)
            wanted = torch.cat([wanted, token.unsqueeze(1)], dim=1)
        before = ids.clone()
        assert torch.equal(write(model, ids, CONTEXT + 2, temperature=0), wanted)
        assert torch.equal(ids, before)


@WRITERS
def test_a_seed_decides_all_draws(write):
    model = perturbed(small(), torch.float32).eval()
    ids = tokens(4, 2)
    state = torch.get_rng_state()
    one, again, other = (write(model, ids, 20, seed=seed) for seed in (7, 7, 8))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    assert torch.equal(one, again)
    assert torch.equal(one, write(model, ids, 20, seed=7))
    assert not torch.equal(one, other)
    assert not torch.equal(write(model, ids, 20), write(model, ids, 20))
    assert one.shape == (4, 22)
    assert torch.equal(one[:, :2], ids)


def test_both_writers_draw_alike():
    """The same draws from logits that agree up to rounding."""
    model = perturbed(small())
    ids = tokens(5, 4)
    for more in ({}, {"temperature": 0.7, "top_k": 5}, {"top_p": 0.8, "stop": 9}):
        one = gpt.generate(model, ids, 15, seed=3, **more)
        assert torch.equal(one, gpt.fast_generate(model, ids, 15, seed=3, **more))


def test_texts_follow_the_models_distribution():
    table = torch.randn(6, 6)
    model = gpt.TableModel(table)
    n = 20_000
    found = gpt.generate(model, torch.full((n, 1), 2), 2)
    p = torch.softmax(table, 1)
    for first, second in itertools.product(range(6), repeat=2):
        count = int(((found[:, 1] == first) & (found[:, 2] == second)).sum())
        assert within_rate(count, n, (p[2, first] * p[first, second]).item())


def test_what_stop_does_to_a_row():
    # 0 -> 1 -> 2 -> 3 -> 3 ... and 4 -> 3
    table = torch.full((5, 5), -100.0)
    for token, following in ((0, 1), (1, 2), (2, 3), (3, 0), (4, 3)):
        table[token, following] = 0.0
    model = gpt.TableModel(table)
    ids = torch.tensor([[0], [4]])
    found = gpt.generate(model, ids, 9, temperature=0, stop=3)
    assert found.tolist() == [[0, 1, 2, 3], [4, 3, 3, 3]]
    # A stop in the prompt is no stop.
    found = gpt.generate(model, torch.tensor([[3, 0]]), 2, temperature=0, stop=3)
    assert found.tolist() == [[3, 0, 1, 2]]
    assert torch.equal(gpt.generate(model, ids, 0), ids)


@WRITERS
def test_writing_keeps_the_mode_and_has_no_gradient(write):
    for training in (True, False):
        model = small().train(training)
        found = write(model, tokens(2, 3), 4)
        assert model.training is training
        assert found.dtype == torch.int64
        assert all(parameter.grad is None for parameter in model.parameters())


# ------------------------------------------------------------------------------------------ cache


@pytest.mark.parametrize("pieces", [(7,), (1, 1, 1, 1, 1, 1, 1), (3, 4), (5, 1, 1)])
@PATHS
@DTYPES
def test_cached_attention_equals_the_whole(dtype, fast, pieces):
    module = maybe_fused(perturbed(gpt.CausalSelfAttention(12, 3, 0.5), dtype), fast).eval()

    def cached(x: Tensor) -> Tensor:
        module.train()  # dropout is left out in any mode
        past, found = None, []
        for piece in x.split(pieces, dim=1):
            kept = None if past is None else (past.keys.clone(), past.values.clone())
            out, new = gpt.attend_cached(module, piece, past)
            if past is not None:
                assert torch.equal(past.keys, kept[0])
                assert torch.equal(past.values, kept[1])
            past = new
            found.append(out)
        assert past.keys.shape == past.values.shape == (2, 3, 7, 4)
        module.eval()
        return torch.cat(found, dim=1)

    x = torch.randn(2, 7, 12, dtype=dtype)
    same_with_gradients(cached, module, [x], list(module.parameters()))


@pytest.mark.parametrize("pieces", [(9,), (4, 5), (1,) * 9, (6, 1, 2)])
@NORMS
@DTYPES
def test_the_cached_model_equals_the_whole(dtype, norm_first, pieces):
    model = perturbed(small(norm_first, dropout=0.5), dtype).eval()
    ids = tokens(3, 9)
    past, found = None, []
    model.train()
    for piece in ids.split(pieces, dim=1):
        old = [] if past is None else past.layers
        kept = [(layer.keys.clone(), layer.values.clone()) for layer in old]
        logits, new = gpt.cached_forward(model, piece, past)
        if past is not None:
            for layer, (keys, values) in zip(past.layers, kept, strict=True):
                assert torch.equal(layer.keys, keys)
                assert torch.equal(layer.values, values)
        past = new
        found.append(logits)
    assert past.past == 9
    for layer in past.layers:
        assert layer.keys.shape == layer.values.shape == (3, HEADS, 9, 4)
    assert len(past.layers) == LAYERS
    joined = torch.cat(found, dim=1)
    whole = model.eval()(ids)
    close(joined, whole)
    parameters = list(model.parameters())
    ours, theirs = (
        torch.autograd.grad((out * cotangent(out)).sum(), parameters) for out in (joined, whole)
    )
    for a, b in zip(ours, theirs, strict=True):
        close(a, b)


def test_a_full_cache_is_refused():
    model = small()
    _, past = gpt.cached_forward(model, tokens(1, CONTEXT - 1))
    gpt.cached_forward(model, tokens(1, 1), past)
    refused(lambda: gpt.cached_forward(model, tokens(1, 2), past), f"{CONTEXT + 1}.*{CONTEXT}")


# ------------------------------------------------------------------------------------ fine-tuning


def test_inputs_have_the_form_of_the_paper():
    a, b, c = [7, 8], [9], [10, 11, 12]
    assert gpt.entailment_input(a, b) == [START, 7, 8, DELIMITER, 9, EXTRACT]
    assert gpt.similarity_inputs(a, b) == [gpt.entailment_input(a, b), gpt.entailment_input(b, a)]
    assert gpt.choice_inputs(a, [b, c]) == [gpt.entailment_input(a, x) for x in (b, c)]
    ids, mask = gpt.prompt_and_response(a, c)
    assert ids == [START, 7, 8, DELIMITER, 10, 11, 12, END]
    assert mask == [False] * 4 + [True] * 4
    assert (a, b, c) == ([7, 8], [9], [10, 11, 12])


def test_only_the_response_has_a_loss():
    ids, mask = (torch.tensor([x]) for x in gpt.prompt_and_response([7, 8], [10, 11]))
    logits = torch.randn(1, 7, 20, requires_grad=True)
    gpt.language_model_loss(logits, ids, mask).backward()
    counted = (logits.grad != 0).any(dim=2)[0]
    # The place of the delimiter predicts the response's first token; END is the last target.
    assert counted.tolist() == [False, False, False, True, True, True, False]


def labelled(lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Rows of these lengths that end with EXTRACT, padded, and its places."""
    rows = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in zip(rows, lengths, strict=True):
        row[:length] = torch.cat([tokens(length - 1), torch.tensor([EXTRACT])])
    return rows, torch.tensor(lengths) - 1


@pytest.mark.parametrize("kind", ["GPT2DoubleHeadsModel", "OpenAIGPTDoubleHeadsModel"])
@PATHS
@DTYPES
def test_choice_equals_hugging_faces_double_heads(hf, dtype, kind, fast):
    theirs = theirs_of(hf, kind, dtype)
    ours = gpt.ChoiceClassifier(given_the_weights(theirs, fast), dropout=0.5).to(dtype).eval()
    head = theirs.multiple_choice_head.summary
    ours.classifier.load_state_dict(head.state_dict())
    ids, places = labelled((9, 5, 7, 12, 3, 6))
    ids, places = ids.reshape(2, 3, -1), places.reshape(2, 3)
    scores, logits = ours(ids)
    assert scores.shape == (2, 3)
    out = theirs(ids, mc_token_ids=places)
    agree(ours.gpt, theirs, [scores, logits], [out.mc_logits, out.logits])


@pytest.mark.parametrize("labels", [2, 5])
@pytest.mark.parametrize("kind", ["GPT2DoubleHeadsModel", "OpenAIGPTDoubleHeadsModel"])
@DTYPES
def test_the_classifier_equals_hugging_faces_double_heads(hf, dtype, kind, labels):
    theirs = theirs_of(hf, kind, dtype)
    ours = gpt.GPTClassifier(given_the_weights(theirs), labels, dropout=0.5)
    ours = ours.to(dtype).eval()
    perturbed(ours.classifier, dtype)
    theirs.multiple_choice_head.summary = ours.classifier  # theirs has one output
    ids, places = labelled((9, 5, 7))
    answers = torch.arange(3) % labels
    targets = ids.masked_fill(ids == PAD, -100)
    for weight in (0.0, 2.0, 0.5):
        scores, logits = ours(ids)
        out = theirs(ids, mc_token_ids=places, labels=targets)
        task, text = F.cross_entropy(out.mc_logits, answers), out.loss
        agree(
            ours.gpt,
            theirs,
            [scores, logits, *gpt.joint_loss(scores, answers, logits, ids, weight)],
            [out.mc_logits, out.logits, task + weight * text, task, text],
        )
    close(gpt.joint_loss(scores, answers, logits, ids)[0], task + 0.5 * text)


@pytest.mark.parametrize(
    "kind", ["GPT2ForSequenceClassification", "OpenAIGPTForSequenceClassification"]
)
def test_the_classifier_equals_hugging_faces_for_sequences(hf, kind):
    """Theirs reads the last token that is no padding, which is where EXTRACT stands."""
    theirs = theirs_of(hf, kind, num_labels=3)
    ours = gpt.GPTClassifier(given_the_weights(theirs), 3).double().eval()
    with torch.no_grad():
        ours.classifier.weight.copy_(theirs.score.weight)
    ids, _ = labelled((9, 5, 12))
    agree(ours.gpt, theirs, [ours(ids)[0]], [theirs(ids).logits])


def test_similarity_adds_both_orders_before_the_head():
    model = perturbed(gpt.SimilarityClassifier(small(), 3)).eval()
    rows = [gpt.similarity_inputs([7, 8], [9, 10]), gpt.similarity_inputs([11], [12, 13, 14])]
    ids = torch.tensor(rows)
    scores, logits = model(ids)
    close(logits, torch.stack([model.gpt(ids[:, order]) for order in (0, 1)], dim=1))
    vectors = sum(model.gpt.features(ids[:, order])[:, -1] for order in (0, 1))
    close(scores, model.classifier(vectors))
    swapped, _ = model(ids.flip(1))
    close(swapped, scores)


def test_the_classifier_keeps_its_model_begins_small_and_drops_in_training_only():
    body = small()
    for kind, more in ((gpt.GPTClassifier, (3,)), (gpt.ChoiceClassifier, ())):
        assert kind(body, *more).gpt is body
    wide = gpt.GPTClassifier(gpt.GPT(9, 4, 400, 0, 1), 50)
    assert follows(wide.classifier.weight, 0.02)
    assert (wide.classifier.bias == 0).all()
    model = gpt.GPTClassifier(perturbed(small(), torch.float32), 3, dropout=0.5)
    ids, _ = labelled((6, 6))
    model.train()
    assert not torch.equal(model(ids)[0], model(ids)[0])
    assert torch.equal(model(ids)[1], model(ids)[1])  # the language model's head has none
    model.eval()
    assert torch.equal(model(ids)[0], model(ids)[0])


def test_padding_makes_no_difference():
    model = perturbed(gpt.GPTClassifier(small(), 3)).eval()
    ids, _ = labelled((6, 4))
    more = F.pad(ids, (0, 4), value=PAD)
    scores, logits = model(ids)
    padded, longer = model(more)
    close(padded, scores)
    close(longer[:, :6], logits)
    labels = torch.tensor([2, 0])
    for a, b in zip(
        gpt.joint_loss(padded, labels, longer, more),
        gpt.joint_loss(scores, labels, logits, ids),
        strict=True,
    ):
        close(a, b)


# -------------------------------------------------------------------------------------- prompting


def test_prompts_have_the_form_of_figure_2_1():
    shots = [("sea otter", "loutre de mer"), ("plush girafe", "girafe peluche")]
    task = "Translate English to French:"
    assert gpt.build_prompt(task, [], "cheese") == "Translate English to French:\ncheese =>"
    assert gpt.build_prompt(task, shots, "cheese") == (
        "Translate English to French:\nsea otter => loutre de mer\n"
        "plush girafe => girafe peluche\ncheese =>"
    )
    assert gpt.build_prompt("", shots[:1], "x", arrow=" ->") == "sea otter -> loutre de mer\nx ->"
    assert gpt.build_prompt("", [], "x") == "x =>"


@pytest.mark.parametrize("per_token", [True, False])
@NORMS
def test_answers_are_scored_one_by_one(norm_first, per_token):
    model = perturbed(small(norm_first)).eval()
    prompt, answers = [7, 8, 9], [[10], [11, 12, 13], [14, 15]]
    found = gpt.answer_scores(model, prompt, answers, per_token)
    assert not found.requires_grad
    wanted = []
    for answer in answers:
        logits = model(torch.tensor([prompt + answer]))[0].log_softmax(1)
        terms = [logits[len(prompt) - 1 + n, token] for n, token in enumerate(answer)]
        wanted.append(sum(terms) / (len(terms) if per_token else 1))
    close(found, torch.stack(wanted).detach())
    assert (prompt, answers) == ([7, 8, 9], [[10], [11, 12, 13], [14, 15]])


def test_the_mean_does_not_favour_short_answers():
    table = torch.zeros(8, 8)
    table[6, 7] = 2.0
    model = gpt.TableModel(table)
    prompt, answers = [5], [[6], [6, 7, 5]]
    whole = gpt.answer_scores(model, prompt, answers, per_token=False)
    mean = gpt.answer_scores(model, prompt, answers)
    assert whole[0] > whole[1]
    assert mean[0] < mean[1]
    assert gpt.answer_scores(gpt.TableModel(table, 4), prompt, answers).shape == (2,)
    refused(lambda: gpt.answer_scores(gpt.TableModel(table, 3), prompt, answers), "4.*3")


# ------------------------------------------------------------------------- fast path and operations


def flat_step(model: nn.Module, ids: Tensor) -> list[Tensor]:
    """The loss of a model on ids, and the gradient of each parameter."""
    loss = gpt.language_model_loss(model(ids), ids)
    return [loss, *torch.autograd.grad(loss, list(model.parameters()))]


@NORMS
@DTYPES
def test_the_fast_path_equals_the_clear_one(dtype, norm_first):
    clear = perturbed(small(norm_first), dtype)
    fast = gpt.fused(copy.deepcopy(clear))
    assert list(fast.state_dict()) == list(clear.state_dict())
    ids = tokens(3, CONTEXT)
    for a, b in zip(*(flat_step(model, ids) for model in (fast, clear)), strict=True):
        close(a, b)


@PATHS
def test_a_compiled_model_has_the_same_loss_and_gradients(fast):
    """As one graph: with ``fullgraph`` a part that can't be captured raises an error."""
    model, ids = maybe_fused(perturbed(small()), fast), tokens(3, CONTEXT)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for a, b in zip(*(flat_step(each, ids) for each in (compiled, model)), strict=True):
        close(a, b)


@PATHS
def test_a_compiled_step_takes_and_returns_typed_caches(fast):
    model, ids = maybe_fused(perturbed(small()), fast).eval(), tokens(3, 5)
    step = torch.compile(gpt.cached_forward, fullgraph=True, backend="aot_eager", dynamic=True)
    with torch.no_grad():
        cache, found = None, []
        for piece in ids.split((2, 1, 1, 1), dim=1):
            logits, cache = step(model, piece, cache)
            found.append(logits)
        close(torch.cat(found, dim=1), model(ids))
    assert cache.past == 5


def test_a_fused_model_shares_the_parameters_and_leaves_the_clear_one_as_it_is():
    model = gpt.GPTClassifier(small(dropout=0.1), 2)
    before = [type(module) for module in model.modules()]
    fast = gpt.fused(model)
    assert [type(module) for module in model.modules()] == before
    after = [type(module) for module in fast.modules()]
    changed = [a for a, b in zip(before, after, strict=True) if a is not b]
    assert changed == [gpt.CausalSelfAttention, gpt.FeedForward] * 2
    assert [type(module) for module in gpt.fused(fast).modules()] == after
    theirs = dict(model.named_parameters())
    assert all(parameter is theirs[name] for name, parameter in fast.named_parameters())


@NORMS
def test_making_a_model_draws_its_weights(norm_first):
    torch.manual_seed(4)
    made = gpt.make_model(VOCAB, CONTEXT, 24, 2, 4, norm_first=norm_first)
    torch.manual_seed(4)
    drawn = gpt.init_weights(gpt.GPT(VOCAB, CONTEXT, 24, 2, 4, norm_first=norm_first))
    assert made.training
    for (name, a), b in zip(made.named_parameters(), drawn.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_the_fast_optimiser_trains_as_trains_own():
    one = perturbed(small())
    other = gpt.fused(copy.deepcopy(one))
    stream = tokens(CONTEXT + 1)
    gpt.train(one, stream, 5, CONTEXT, 2, 0.01, 1, weight_decay=0.2, clip=1e9)
    optimiser = gpt.fast_optimiser(other, 0.01, 0.2)
    for step in range(1, 6):
        for group in optimiser.param_groups:
            group["lr"] = gpt.cosine_lr(step, 0.01, 1, 5)
        optimiser.zero_grad()
        ids = stream.repeat(2, 1)
        logits = other(ids[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimiser.step()
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        error = (a - b).abs().max().item()
        assert error < 1e-9, f"{name}: off by {error}"


@pytest.mark.parametrize("length", [2, 7, CONTEXT])
@NORMS
def test_operations_are_those_that_pytorch_counts(norm_first, length):
    model = gpt.GPT(VOCAB, CONTEXT, 24, 3, 4, 0.0, norm_first)
    ids = tokens(5, length)
    with FlopCounterMode(display=False) as counter:
        gpt.language_model_loss(model(ids), ids).backward()
    assert counter.get_total_flops() == gpt.flops_per_token(model, length) * ids.numel()


# --------------------------------------------------------------------------------------- on a GPU


def step_of(model: nn.Module, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The loss and its gradients, on the CPU and in float32."""
    loss = gpt.language_model_loss(model(ids).float(), ids)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return loss.detach().cpu().float(), [g.cpu().float() for g in gradients]


def distance(found: list[Tensor], wanted: list[Tensor]) -> float:
    """How far all gradients together are from others, in parts of their length."""
    off = sum((a - b).square().sum() for a, b in zip(found, wanted, strict=True))
    return math.sqrt(off / sum(b.square().sum() for b in wanted))


@CUDA
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@PATHS
@NORMS
def test_the_gpu_computes_what_the_cpu_does(norm_first, fast, compiled):
    """float32: within 1e-4 of the length of all gradients; bfloat16: within 5 percent."""
    model = gpt.make_model(256, 64, 64, 3, 4, 0.0, norm_first)
    ids = tokens(4, 64, vocab=256)
    loss, gradients = step_of(model, ids)
    there = maybe_fused(copy.deepcopy(model).cuda(), fast)
    running = torch.compile(there) if compiled else there
    found, its = step_of(running, ids.cuda())
    assert found.item() == pytest.approx(loss.item(), rel=1e-4)
    assert distance(its, gradients) < 1e-4
    with torch.autocast("cuda", torch.bfloat16):
        found, its = step_of(running, ids.cuda())
    assert found.item() == pytest.approx(loss.item(), rel=1e-2)
    assert distance(its, gradients) < 0.05


@CUDA
def test_training_on_the_gpu_goes_as_on_the_cpu():
    """One possible block and no dropout: losses within 0.1 percent over 20 steps."""
    stream = tokens(33, vocab=64)
    model = gpt.make_model(64, 32, 32, 2, 4, 0.0)
    there = copy.deepcopy(model).cuda()
    losses = gpt.train(model, stream, 20, 32, 4, 0.01, 4)
    assert gpt.train(there, stream.cuda(), 20, 32, 4, 0.01, 4) == pytest.approx(losses, rel=1e-3)
    optimiser = gpt.fast_optimiser(there, 0.01, 0.1)
    ids = stream[:32].cuda().unsqueeze(0)
    before = gpt.language_model_loss(there(ids), ids)
    before.backward()
    optimiser.step()
    assert optimiser.defaults["fused"]
    assert gpt.language_model_loss(there(ids), ids).item() != before.item()


@CUDA
def test_writing_on_the_gpu_is_greedy_alike_and_seeded_there():
    model = gpt.make_model(64, 16, 32, 2, 4, 0.0).double()
    there = copy.deepcopy(model).cuda()
    ids = tokens(3, 4, vocab=64)
    wanted = gpt.generate(model, ids, 20, temperature=0)
    state = torch.cuda.get_rng_state()
    for write in (gpt.generate, gpt.fast_generate):
        assert torch.equal(write(there, ids.cuda(), 20, temperature=0).cpu(), wanted)
        one, again = (write(there, ids.cuda(), 20, seed=5) for _ in range(2))
        assert one.is_cuda
        assert torch.equal(one, again)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    scores = gpt.answer_scores(there, [7, 8], [[9], [10, 11]])
    close(scores.cpu(), gpt.answer_scores(model, [7, 8], [[9], [10, 11]]))
    logits, past = gpt.cached_forward(there, ids.cuda())
    close(logits.cpu(), model(ids))
    assert all(layer.keys.is_cuda and layer.values.is_cuda for layer in past.layers)


# ------------------------------------------------------------------------------------- refusals

ZEROS = torch.zeros(2, 3, 5)
IDS = torch.zeros(2, 3, dtype=torch.int64)
ONE = torch.zeros(1)
TABLE = gpt.TableModel(torch.zeros(9, 9), 5)


def classified(ids: list[list[int]]) -> Any:
    return gpt.GPTClassifier(small(), 2)(torch.tensor(ids))


REFUSALS = {
    "no length": lambda: gpt.causal_mask(0),
    "negative past": lambda: gpt.causal_mask(2, -1),
    "no length of a window": lambda: gpt.window_mask(0, 1),
    "no window": lambda: gpt.window_mask(3, 0),
    "heads": lambda: gpt.CausalSelfAttention(8, 3),
    "no heads": lambda: gpt.CausalSelfAttention(8, 0),
    "heads of a block": lambda: gpt.PostNormBlock(8, 3),
    "heads of a pre-norm block": lambda: gpt.PreNormBlock(8, 3),
    "heads of the model": lambda: gpt.GPT(9, 4, 8, 1, 3),
    "too long": lambda: small()(tokens(1, CONTEXT + 1)),
    "features of what is too long": lambda: small().features(tokens(1, CONTEXT + 1)),
    "name": lambda: gpt.rename_parameters({"h.0.ln_9.weight": ONE}),
    "one token": lambda: gpt.log_likelihood(ZEROS[:, :1], IDS[:, :1]),
    "loss of one token": lambda: gpt.language_model_loss(ZEROS[:, :1], IDS[:, :1]),
    "short stream": lambda: gpt.sample_blocks(torch.arange(4), 4, 1),
    "no block": lambda: gpt.sample_blocks(torch.arange(4), 0, 1),
    "no batch": lambda: gpt.sample_blocks(torch.arange(4), 2, 0),
    "negative decay": lambda: gpt.decay_groups(small(), -0.1),
    "step 0": lambda: gpt.adamw_step(ONE, ONE, ONE, ONE, 0, 0.1),
    "rate of step 0": lambda: gpt.cosine_lr(0, 1.0, 2, 4),
    "negative warm-up": lambda: gpt.cosine_lr(1, 1.0, -1, 4),
    "warm-up to the end": lambda: gpt.cosine_lr(1, 1.0, 4, 4),
    "training that only warms up": lambda: gpt.train(small(), tokens(20), 3, 4, 1, 0.1, 3),
    "temperature 0": lambda: gpt.scale_temperature(ZEROS, 0),
    "k 0": lambda: gpt.keep_top_k(ZEROS, 0),
    "p 0": lambda: gpt.keep_top_p(ZEROS, 0.0),
    "p above 1": lambda: gpt.keep_top_p(ZEROS, 1.01),
    "p nan": lambda: gpt.keep_top_p(ZEROS, math.nan),
    "negative temperature": lambda: gpt.sample_token(ZEROS[:, 0], -1.0),
    "k 0 of a draw": lambda: gpt.sample_token(ZEROS[:, 0], top_k=0),
    "p 0 of a draw": lambda: gpt.sample_token(ZEROS[:, 0], top_p=0.0),
    "negative tokens": lambda: gpt.generate(TABLE, IDS, -1),
    "nothing to go on from": lambda: gpt.generate(TABLE, IDS[:, :0], 1),
    "negative tokens, fast": lambda: gpt.fast_generate(small(), IDS, -1),
    "nothing to go on from, fast": lambda: gpt.fast_generate(small(), IDS[:, :0], 1),
    "full cache": lambda: gpt.cached_forward(small(), tokens(1, CONTEXT + 1)),
    "empty prompt": lambda: gpt.prompt_and_response([], [7]),
    "empty response": lambda: gpt.prompt_and_response([7], []),
    "empty premise": lambda: gpt.entailment_input([], [7]),
    "empty hypothesis": lambda: gpt.entailment_input([7], []),
    "empty first": lambda: gpt.similarity_inputs([], [7]),
    "empty second": lambda: gpt.similarity_inputs([7], []),
    "empty context": lambda: gpt.choice_inputs([], [[7]]),
    "no answers": lambda: gpt.choice_inputs([7], []),
    "empty answer": lambda: gpt.choice_inputs([7], [[8], []]),
    "no EXTRACT": lambda: classified([[START, 7, 8]]),
    "two EXTRACTs": lambda: classified([[7, EXTRACT, 8], [7, EXTRACT, EXTRACT]]),
    "no EXTRACT of a choice": lambda: gpt.ChoiceClassifier(small())(IDS[None]),
    "no EXTRACT of a pair": lambda: gpt.SimilarityClassifier(small(), 2)(IDS[None]),
    "negative weight": lambda: gpt.joint_loss(ZEROS[:, 0], IDS[:, 0], ZEROS, IDS, -0.5),
    "empty prompt of scores": lambda: gpt.answer_scores(TABLE, [], [[7]]),
    "no answers to score": lambda: gpt.answer_scores(TABLE, [7], []),
    "empty answer to score": lambda: gpt.answer_scores(TABLE, [7], [[8], []]),
    "long answer": lambda: gpt.answer_scores(TABLE, [7, 7], [[8], [8] * 4]),
    "long row of a table": lambda: TABLE(tokens(1, 6, vocab=9)),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_input_is_refused_in_one_sentence(case):
    refused(REFUSALS[case])


# ------------------------------------------------------------------------- the file as a notebook


def test_the_exercises_are_the_33_of_the_chapter():
    cells = common.exercise_cells(SOURCE).values()
    assert len(cells) == 33
    assert sum(c.metadata["points"] for c in cells) == 79


def test_the_examples_about_the_model_are_right():
    assert gpt.causal_mask(3).int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert gpt.causal_mask(2, past=1).int().tolist() == [[1, 1, 0], [1, 1, 1]]
    wanted = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    assert gpt.window_mask(4, 2).int().tolist() == wanted
    values = torch.tensor([[0.0], [0.0], [1.0]])
    attention = filled(gpt.CausalSelfAttention(1, 1), qkv__weight=values, out_proj__weight=1.0)
    close(attention(torch.tensor([[[2.0], [4.0], [9.0]]])).flatten(), torch.tensor([2.0, 3, 5]))
    first, past = gpt.attend_cached(attention, torch.tensor([[[2.0], [4.0]]]))
    second, _ = gpt.attend_cached(attention, torch.tensor([[[9.0]]]), past)
    close(torch.cat([first, second], 1).flatten(), torch.tensor([2.0, 3, 5]))
    x = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
    assert gpt.gelu(x).tolist() == pytest.approx([0.8412, -0.1588, 0.0], abs=5e-5)
    assert F.gelu(x).tolist() == pytest.approx([0.8413, -0.1587, 0.0], abs=5e-5)
    network = filled(gpt.FeedForward(1), w_1__weight=1.0, w_2__weight=0.25)
    assert network(torch.ones(1)).item() == pytest.approx(0.8412, abs=5e-5)
    x = torch.tensor([[[1.0, 3.0]]])
    ones = {"norm_1__weight": 1.0, "norm_2__weight": 1.0}
    post, pre = filled(gpt.PostNormBlock(2, 1), **ones), filled(gpt.PreNormBlock(2, 1), **ones)
    assert post(x).flatten().tolist() == pytest.approx([-1, 1], abs=1e-4)
    assert torch.equal(pre(x), x)
    assert sum(p.numel() for p in small().parameters()) == 7424
    assert gpt.count_parameters(10, 6, 4, 1) == 316 == 64 + 244 + 8
    assert gpt.count_parameters(10, 6, 4, 1, norm_first=False) == 308
    state = {
        "transformer.h.11.mlp.c_fc.weight": torch.zeros(768, 3072),
        "h.0.attn.c_attn.bias": torch.zeros(1),
    }
    ours = gpt.rename_parameters(state)
    assert ours["blocks.11.feed_forward.w_1.weight"].shape == (3072, 768)
    assert ours["blocks.0.attention.qkv.bias"] is state["h.0.attn.c_attn.bias"]


def test_the_examples_about_training_are_right():
    logits, ids = torch.zeros(1, 3, 4), torch.tensor([[0, 1, 2]])
    last = torch.tensor([[False, False, True]])
    assert gpt.log_likelihood(logits, ids).item() == pytest.approx(-2.773, abs=5e-4)
    assert gpt.log_likelihood(logits, ids, last).item() == pytest.approx(-1.386, abs=5e-4)
    for mask in (None, last):
        loss = gpt.language_model_loss(logits, ids, mask)
        assert loss.item() == pytest.approx(1.386, abs=5e-4)
        assert loss.exp().item() == pytest.approx(4)
    stream = torch.tensor([10, 11, 12, 13])
    inputs, targets = gpt.sample_blocks(stream, 2, 50)
    pairs = {(tuple(a), tuple(b)) for a, b in zip(inputs.tolist(), targets.tolist(), strict=True)}
    assert pairs == {((10, 11), (11, 12)), ((11, 12), (12, 13))}
    layer = nn.Linear(3, 2)
    first, second = gpt.decay_groups(layer, 0.1)
    assert first["params"] == [layer.weight]
    assert second["params"] == [layer.bias]
    zero = torch.zeros(1)
    new = gpt.adamw_step(torch.ones(1), torch.full((1,), 0.5), zero, zero, 1, 0.1)
    assert [x.item() for x in new] == pytest.approx([0.89, 0.05, 0.0125])
    rates = [gpt.cosine_lr(step, 1.0, 10, 110) for step in (5, 10, 60, 110, 200)]
    assert rates == pytest.approx([0.5, 1.0, 0.5, 0.0, 0.0])


def test_the_examples_about_writing_and_fine_tuning_are_right():
    inf = math.inf
    logits = torch.tensor([0.0, math.log(3.0)])
    for temperature, wanted in ((1, [1 / 4, 3 / 4]), (0.5, [1 / 10, 9 / 10])):
        p = torch.softmax(gpt.scale_temperature(logits, temperature), 0)
        assert p.tolist() == pytest.approx(wanted)
    logits = torch.tensor([3.0, 1.0, 3.0, 2.0])
    assert gpt.keep_top_k(logits, 3).tolist() == [3, -inf, 3, 2]
    assert gpt.keep_top_k(logits, 1).tolist() == [3, -inf, 3, -inf]
    logits = torch.tensor([0.15, 0.5, 0.05, 0.3]).log()
    kept = [gpt.keep_top_p(logits, p).isfinite().nonzero().flatten().tolist() for p in (0.7, 0.4)]
    assert kept == [[1, 3], [1]]
    table = torch.zeros(8, 8)
    for token, following in ((5, 6), (6, 7), (7, END)):
        table[token, following] = 1.0
    found = gpt.generate(gpt.TableModel(table), torch.tensor([[5]]), 9, temperature=0, stop=END)
    assert found.tolist() == [[5, 6, 7, 4]]
    assert gpt.prompt_and_response([9], [8, 7]) == (
        [1, 9, 2, 8, 7, 4],
        [False, False, False, True, True, True],
    )
    assert gpt.entailment_input([7, 8], [9]) == [1, 7, 8, 2, 9, 3]
    assert gpt.similarity_inputs([7, 8], [9]) == [[1, 7, 8, 2, 9, 3], [1, 9, 2, 7, 8, 3]]
    assert gpt.choice_inputs([7, 8], [[9], [10]]) == [[1, 7, 8, 2, 9, 3], [1, 7, 8, 2, 10, 3]]
    losses = gpt.joint_loss(
        torch.zeros(1, 3), torch.tensor([1]), torch.zeros(1, 3, 4), torch.tensor([[1, 2, 3]])
    )
    assert [x.item() for x in losses] == pytest.approx([1.792, 1.099, 1.386], abs=5e-4)
    shots = [("sea otter", "loutre de mer")]
    assert gpt.build_prompt("Translate English to French:", shots, "cheese").split("\n") == [
        "Translate English to French:",
        "sea otter => loutre de mer",
        "cheese =>",
    ]
    even, answers = gpt.TableModel(torch.zeros(8, 8)), [[6], [6, 7]]
    for per_token, wanted in ((True, [-2.079, -2.079]), (False, [-2.079, -4.159])):
        scores = gpt.answer_scores(even, [5], answers, per_token)
        assert scores.tolist() == pytest.approx(wanted, abs=5e-4)
