"""The Transformer reference against implementations written by others or another way."""

import copy
import itertools
import math
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from autograder.common.paths import ROOT
from autograder.sandbox.forbidden_calls import ForbiddenCall, Refusal
from solutions import positional_encoding
from solutions import transformer as tr
from solutions.transformer import BOS, EOS, PAD, TableModel
from tests.solutions.common import (
    DTYPES,
    FALSE_ALARM,
    close,
    cotangent,
    exercise_cells,
    within_rate,
)

SOURCE = Path(tr.__file__).parent  # a file a unit
INF = float("inf")
ORDERS = pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
PATHS = pytest.mark.parametrize("fast", [False, True], ids=["clear", "fast"])
# Repeatable, and without a limit on the time of an example: this machine may be busy.
examples = settings(derandomize=True, deadline=None, database=None, max_examples=100)


def perturbed(module: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The module in dtype, with noise on every parameter, biases and norms included."""
    module = module.to(dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return module


def under(prefix: str, names: dict[str, tuple]) -> dict[str, tuple]:
    return {f"{prefix}.{name}": ours for name, ours in names.items()}


def linear(ours: nn.Linear) -> dict[str, tuple[Tensor, ...]]:
    return {"weight": (ours.weight,), "bias": (ours.bias,)}


def correspondence(ours: nn.Module) -> dict[str, tuple[Tensor, ...]]:
    """For each parameter of torch's module of this kind: ours, whose join it is."""
    if isinstance(ours, tr.LayerNorm):
        return {"weight": (ours.gamma,), "bias": (ours.beta,)}
    if isinstance(ours, tr.MultiHeadAttention):
        projections = (ours.q_proj, ours.k_proj, ours.v_proj)
        return {
            "in_proj_weight": tuple(p.weight for p in projections),
            "in_proj_bias": tuple(p.bias for p in projections),
            **under("out_proj", linear(ours.out_proj)),
        }
    names: dict[str, tuple[Tensor, ...]] = {}
    if isinstance(ours, (tr.EncoderLayer, tr.DecoderLayer)):
        names |= under("self_attn", correspondence(ours.self_attn))
        if isinstance(ours, tr.DecoderLayer):
            names |= under("multihead_attn", correspondence(ours.src_attn))
        names |= under("linear1", linear(ours.feed_forward.w_1))
        names |= under("linear2", linear(ours.feed_forward.w_2))
        for number, connection in enumerate(ours.sublayer, 1):
            names |= under(f"norm{number}", correspondence(connection.norm))
    elif isinstance(ours, (tr.Encoder, tr.Decoder)):
        for number, layer in enumerate(ours.layers):
            names |= under(f"layers.{number}", correspondence(layer))
        if ours.norm is not None:
            names |= under("norm", correspondence(ours.norm))
    else:
        names |= under("encoder", correspondence(ours.encoder))
        names |= under("decoder", correspondence(ours.decoder))
    return names


def given_the_weights(theirs: nn.Module, ours: nn.Module) -> nn.Module:
    """Theirs with our weights; fails if a parameter on either side stands for none."""
    names = correspondence(ours)
    theirs = theirs.to(next(ours.parameters()).dtype)
    theirs.load_state_dict({name: torch.cat(parts).detach() for name, parts in names.items()})
    return theirs


def agree(
    ours: nn.Module,
    theirs: nn.Module,
    our_outputs: Tensor,
    their_outputs: Tensor,
    leaves: Sequence[Tensor] = (),
) -> None:
    """Same values, and same gradients with respect to inputs and to all parameters."""
    close(our_outputs, their_outputs, "output")
    names = correspondence(ours)
    parts = list(itertools.chain.from_iterable(names.values()))
    parameters = dict(theirs.named_parameters())
    weight = cotangent(our_outputs)
    found = torch.autograd.grad((our_outputs * weight).sum(), [*leaves, *parts])
    wanted = torch.autograd.grad(
        (their_outputs * weight).sum(), [*leaves, *(parameters[name] for name in names)]
    )
    for number, (a, b) in enumerate(zip(found, wanted, strict=False)):
        if number < len(leaves):
            close(a, b, f"gradient of input {number}")
    rest = iter(found[len(leaves) :])
    for name, b in zip(names, wanted[len(leaves) :], strict=True):
        close(torch.cat([next(rest) for _ in names[name]]), b, f"gradient of {name}")


def leaf(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def ids_of_lengths(lengths: list[int], vocab: int, begin: int | None = None) -> Tensor:
    """Random real ids, padded on the right; the first is `begin` if that is given."""
    ids = torch.randint(4, vocab, (len(lengths), max(lengths)))
    if begin is not None:
        ids[:, 0] = begin
    return ids.masked_fill(torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None], PAD)


def follows(sample: Tensor, distribution: Callable[[Tensor], Tensor]) -> bool:
    """Whether a sample fits a distribution function, by the bound of Dvoretzky et al."""
    n = sample.numel()
    expected = distribution(sample.detach().double().flatten().sort().values)
    steps = torch.arange(n, dtype=torch.float64) / n
    distance = torch.maximum((expected - steps).abs(), (expected - steps - 1 / n).abs()).max()
    return bool(distance <= math.sqrt(math.log(2 / FALSE_ALARM) / (2 * n)))


def normal(variance: float) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.special.ndtr(x / math.sqrt(variance))


def xavier(weight: Tensor) -> Callable[[Tensor], Tensor]:
    bound = math.sqrt(6 / sum(weight.shape))
    return lambda x: ((x + bound) / (2 * bound)).clamp(0, 1)


# -------------------------------------------------------------------------------- what is given


@pytest.mark.parametrize("d_model", [1, 2, 7, 64])
def test_positional_encoding_adds_the_table_of_the_chapter_on_positions(d_model):
    module = tr.PositionalEncoding(d_model, max_length=50)
    table = positional_encoding.sinusoidal_table(50, d_model)
    x = torch.randn(2, 9, d_model)
    close(module(x), x + table[:9])
    close(module(x, past=41), x + table[41:])
    assert list(module.parameters()) == []
    assert module.state_dict() == {}
    assert module.double()(x.double()).dtype == torch.float64
    with pytest.raises(ValueError, match="50"):
        module(x.double(), past=42)


def test_positional_encoding_drops_from_the_sum_in_training_only():
    module = tr.PositionalEncoding(64, dropout=0.3)
    x = torch.full((3, 100, 64), 5.0)
    sums = module.eval()(x)
    dropped = module.train()(x)
    gone = dropped == 0
    assert within_rate(int(gone.sum()), gone.numel(), 0.3)
    close(dropped[~gone], sums[~gone] / 0.7)


def test_the_table_model_reads_the_row_of_source_place_and_token():
    table = torch.randn(3, 2, 5, 5)
    model = TableModel(table)
    source = torch.tensor([[2, 1, 0], [0, 1, 1]])
    target = torch.tensor([[1, 4, 3, 3], [1, 0, 2, 4]])
    memory = model.encode(source, tr.pad_mask(source))
    hidden = model.decode(memory, tr.pad_mask(source), target, tr.subsequent_mask(4))
    for b, t in itertools.product(range(2), range(4)):
        row = table[source[b, 0], min(t, 1), target[b, t]]
        assert torch.equal(hidden[b, t], row)
    close(model.generator(hidden).exp().sum(-1), torch.ones(2, 4))


# ------------------------------------------------------------------------------------ embeddings


@DTYPES
@pytest.mark.parametrize(("vocab", "width"), [(7, 5), (1, 1), (30, 64)])
def test_embeddings_are_one_hot_vectors_times_the_scaled_table(dtype, vocab, width):
    module = tr.Embeddings(vocab, width).to(dtype)
    assert [name for name, _ in module.named_parameters()] == ["lut.weight"]
    ids = torch.randint(vocab, (3, 6))
    ours = module(ids)
    theirs = F.one_hot(ids, vocab).to(dtype) @ module.lut.weight * width**0.5
    close(ours, theirs)
    for a, b in zip(
        *(
            torch.autograd.grad((y * cotangent(y)).sum(), [module.lut.weight])
            for y in (ours, theirs)
        ),
        strict=True,
    ):
        close(a, b)


@pytest.mark.parametrize("width", [4, 64, 300])
def test_scaled_embeddings_begin_with_variance_1(width):
    module = tr.Embeddings(60_000 // width, width)
    assert follows(module.lut.weight, normal(1 / width))
    assert follows(module(torch.arange(60_000 // width)[None]), normal(1))


# ------------------------------------------------------------------------------------- attention

SIZES = pytest.mark.parametrize(
    ("batch", "queries", "keys", "width", "heads"),
    [(2, 5, 7, 8, 2), (1, 1, 1, 4, 4), (3, 4, 9, 12, 1), (2, 6, 3, 15, 5), (4, 20, 20, 8, 4)],
)


def maybe_fused(module: nn.Module, fast: bool) -> nn.Module:
    """The module on its fast path, or as it is."""
    return tr.fused(module) if fast else module


def masks(kind: str, batch: int, queries: int, keys: int) -> Tensor | None:
    """A random mask of one of the shapes allowed; every query may attend to something."""
    shapes = {"pairs": (queries, keys), "each": (batch, queries, keys), "keys": (batch, 1, keys)}
    if kind == "none":
        return None
    mask = torch.rand(shapes[kind]) < 0.5
    mask[..., 0] |= ~mask.any(-1)
    return mask


@SIZES
@DTYPES
@PATHS
@pytest.mark.parametrize("kind", ["none", "pairs", "each", "keys"])
def test_attention_equals_torchs(batch, queries, keys, width, heads, dtype, fast, kind):
    ours = perturbed(tr.MultiHeadAttention(width, heads), dtype)
    theirs = given_the_weights(nn.MultiheadAttention(width, heads, batch_first=True), ours)
    ours = maybe_fused(ours, fast)
    inputs = [leaf(batch, n, width, dtype=dtype) for n in (queries, keys, keys)]
    mask = masks(kind, batch, queries, keys)
    hidden = None
    if mask is not None:
        hidden = ~mask
        if mask.dim() == 3:  # Theirs are (B H, Tq, Tk).
            hidden = hidden.expand(batch, queries, keys).repeat_interleave(heads, dim=0)
    expected, _ = theirs(*inputs, attn_mask=hidden, need_weights=False)
    agree(ours, theirs, ours(*inputs, mask), expected, inputs)


@DTYPES
@PATHS
@pytest.mark.parametrize("length", [2, 9])
def test_self_attention_equals_torchs(dtype, fast, length):
    """The fast path makes queries, keys and values at once here, if there are enough tokens."""
    ours = perturbed(tr.MultiHeadAttention(8, 2), dtype)
    theirs = given_the_weights(nn.MultiheadAttention(8, 2, batch_first=True), ours)
    ours = maybe_fused(ours, fast)
    x = leaf(3, length, 8, dtype=dtype)
    mask = tr.subsequent_mask(length)
    expected, _ = theirs(x, x, x, attn_mask=~mask[0], need_weights=False)
    agree(ours, theirs, ours(x, x, x, mask), expected, [x])
    y = leaf(3, length, 8, dtype=dtype)
    for inputs in ((x, x, y), (x, y, x), (y, x, x)):
        expected, _ = theirs(*inputs, attn_mask=~mask[0], need_weights=False)
        close(ours(*inputs, mask), expected)


@PATHS
def test_projected_keys_and_values_are_split_head_by_head(fast):
    module = maybe_fused(perturbed(tr.MultiHeadAttention(12, 3)), fast)
    for key, value in ((leaf(2, 5, 12), leaf(2, 5, 12)), (leaf(2, 9, 12),) * 2):
        keys, values = module.project(key, value)
        length = key.shape[1]
        assert keys.shape == values.shape == (2, 3, length, 4)
        for head in range(3):
            part = slice(4 * head, 4 * head + 4)
            close(keys[:, head], module.k_proj(key)[..., part])
            close(values[:, head], module.v_proj(value)[..., part])
        query = leaf(2, 3, 12)
        close(module.attend(query, keys, values), module(query, key, value))
        # What is attended to is what is handed over: exchange two keys with their values.
        order = [1, 0, *range(2, length)]
        close(
            module.attend(query, keys[:, :, order], values[:, :, order]), module(query, key, value)
        )


@PATHS
def test_what_the_mask_hides_has_no_weight_at_all(fast):
    module = maybe_fused(perturbed(tr.MultiHeadAttention(8, 2)), fast)
    query, key = leaf(2, 5, 8), leaf(2, 7, 8)
    mask = masks("keys", 2, 5, 7)
    changed = torch.where(mask.transpose(1, 2), key, 1e6)
    assert torch.equal(module(query, changed, changed, mask), module(query, key, key, mask))
    (gradient,) = torch.autograd.grad(module(query, key, key, mask).sum(), [key])
    assert torch.equal(gradient.ne(0).any(-1), mask[:, 0])
    # However unlikely what may be seen is: these scores are far below any that is filled in.
    extreme = module(1e9 * query, key, changed, mask)
    close(extreme, module(1e9 * query, key, key, mask))


def revealing(module: tr.MultiHeadAttention) -> tr.MultiHeadAttention:
    """All scores 0, values and output as they come in: one-hot values show the weights."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        for layer in (module.v_proj, module.out_proj):
            layer.weight.copy_(torch.eye(len(layer.weight)))
    return module


@PATHS
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_attention_drops_weights_at_rate_p_in_training_only(fast, p):
    keys = 40
    module = maybe_fused(revealing(tr.MultiHeadAttention(keys, 1, dropout=p)), fast)
    query, value = torch.zeros(20, 50, keys), torch.eye(keys).expand(20, keys, keys)
    even = torch.full((20, 50, keys), 1 / keys)
    close(module.eval()(query, value, value), even)
    weights = module.train()(query, value, value)
    gone = weights == 0
    assert within_rate(int(gone.sum()), gone.numel(), p)
    close(weights[~gone], even[~gone] / (1 - p))
    again = module(query, value, value) == 0
    assert within_rate(int((gone & again).sum()), gone.numel(), p * p)


# ----------------------------------------------------------------------------------------- masks

ids_lists = st.integers(1, 6).flatmap(
    lambda n: st.lists(st.lists(st.integers(0, 4), min_size=n, max_size=n), min_size=1, max_size=3)
)


@given(ids_lists, st.integers(0, 5))
@examples
def test_masks_are_as_defined_entry_by_entry(rows, pad):
    ids = torch.tensor(rows)
    n = len(rows[0])
    for mask, shape in (
        (tr.pad_mask(ids, pad), (len(rows), 1, n)),
        (tr.subsequent_mask(n), (1, n, n)),
        (tr.make_std_mask(ids, pad), (len(rows), n, n)),
    ):
        assert mask.dtype == torch.bool
        assert mask.shape == shape
    assert tr.pad_mask(ids, pad).tolist() == [[[i != pad for i in row]] for row in rows]
    assert tr.make_std_mask(ids, pad).tolist() == [
        [[j <= i and row[j] != pad for j in range(n)] for i in range(n)] for row in rows
    ]


@pytest.mark.parametrize("size", [1, 2, 9])
def test_the_subsequent_mask_is_torchs_with_the_opposite_sign(size):
    theirs = nn.Transformer.generate_square_subsequent_mask(size)  # -inf: may not attend
    assert torch.equal(tr.subsequent_mask(size)[0], theirs == 0)


def test_masks_take_0_for_padding_unless_told_otherwise():
    ids = torch.tensor([[4, 0, 9]])
    assert torch.equal(tr.pad_mask(ids), tr.pad_mask(ids, 0))
    assert torch.equal(tr.make_std_mask(ids), tr.make_std_mask(ids, 0))
    assert tr.pad_mask(ids, 9).tolist() == [[[True, True, False]]]


# ----------------------------------------------------------------------------------------- norms


@DTYPES
@PATHS
@pytest.mark.parametrize("shape", [(5,), (3, 4, 16), (2, 1, 7), (2, 3, 4, 33)])
@pytest.mark.parametrize("eps", [1e-5, 0.1])
def test_layer_norm_equals_torchs(dtype, fast, shape, eps):
    ours = perturbed(tr.LayerNorm(shape[-1], eps), dtype)
    theirs = given_the_weights(nn.LayerNorm(shape[-1], eps), ours)
    ours = maybe_fused(ours, fast)
    x = (3 + 2 * torch.randn(shape, dtype=dtype)).requires_grad_()
    agree(ours, theirs, ours(x), theirs(x), [x])


def test_layer_norm_begins_as_torchs_and_has_its_default_eps():
    x = 1e-3 * torch.randn(4, 6)
    close(tr.LayerNorm(6)(x), nn.LayerNorm(6)(x))
    assert list(tr.LayerNorm(6).state_dict()) == ["gamma", "beta"]


def test_layer_norm_of_equal_numbers_is_beta_with_finite_gradients():
    module = perturbed(tr.LayerNorm(4))
    x = torch.full((2, 4), 5.0, dtype=torch.float64, requires_grad=True)
    out = module(x)
    assert torch.equal(out, module.beta.expand(2, 4))
    (gradient,) = torch.autograd.grad((out * cotangent(out)).sum(), [x])
    assert gradient.isfinite().all()


@pytest.mark.parametrize(("width", "ratio"), [(4, 0.866), (8, 0.935), (64, 0.992), (512, 0.999)])
def test_the_unbiased_variant_is_smaller_by_a_factor(width, ratio):
    x = torch.randn(5, width, dtype=torch.float64)
    module = tr.UnbiasedLayerNorm(width, eps=0.0).double()
    assert list(module.state_dict()) == ["a_2", "b_2"]
    close(module(x), F.layer_norm(x, (width,), eps=0.0) * math.sqrt((width - 1) / width))
    assert round(math.sqrt((width - 1) / width), 3) == ratio
    with_eps = tr.UnbiasedLayerNorm(width, eps=0.5).double()
    mean, deviation = x.mean(-1, keepdim=True), torch.std(x, dim=-1, correction=1, keepdim=True)
    close(with_eps(x), (x - mean) / (deviation + 0.5))


def test_the_unbiased_variant_fails_at_width_1():
    with pytest.warns(UserWarning, match="degrees of freedom"):
        assert tr.UnbiasedLayerNorm(1)(torch.ones(2, 1)).isnan().all()
    assert torch.equal(tr.LayerNorm(1)(torch.ones(2, 1)), torch.zeros(2, 1))


# ------------------------------------------------------------- feed-forward network and residual


@DTYPES
@pytest.mark.parametrize(("width", "inner", "length"), [(4, 16, 5), (1, 2, 1), (7, 3, 12)])
def test_the_feed_forward_network_is_two_convolutions_of_size_1(dtype, width, inner, length):
    module = perturbed(tr.PositionwiseFeedForward(width, inner), dtype)
    convolutions = nn.Sequential(
        nn.Conv1d(width, inner, 1), nn.ReLU(), nn.Conv1d(inner, width, 1)
    ).to(dtype)
    pairs = [(module.w_1, convolutions[0]), (module.w_2, convolutions[2])]
    with torch.no_grad():
        for ours, theirs in pairs:
            theirs.weight.copy_(ours.weight[:, :, None])
            theirs.bias.copy_(ours.bias)
    x = leaf(3, length, width, dtype=dtype)
    outputs = module(x), convolutions(x.transpose(1, 2)).transpose(1, 2)
    close(*outputs)
    gradients = []
    for out, side in zip(outputs, zip(*pairs, strict=True), strict=True):
        wanted = [x, *(p for layer in side for p in layer.parameters())]
        gradients.append(torch.autograd.grad((out * cotangent(out)).sum(), wanted))
    for a, b in zip(*gradients, strict=True):
        close(a, b.reshape(a.shape))


def test_the_feed_forward_network_drops_from_the_inner_layer_after_the_relu():
    module = tr.PositionwiseFeedForward(1, 2, dropout=0.25).double()
    with torch.no_grad():  # Two inner features that are 1 and -1 before the ReLU.
        module.w_1.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        module.w_2.weight.copy_(torch.tensor([[3.0, 3.0]]))
        module.w_1.bias.zero_()
        module.w_2.bias.fill_(0.5)
    x = torch.ones(100_000, 1, dtype=torch.float64)
    out = module.train()(x)
    gone = out == 0.5
    close(out[~gone], torch.full_like(out[~gone], 0.5 + 3 / 0.75))
    assert within_rate(int(gone.sum()), len(x), 0.25)
    assert torch.equal(module.eval()(x), torch.full_like(x, 3.5))


@DTYPES
@pytest.mark.parametrize("shape", [(3,), (2, 5), (2, 3, 4)])
def test_the_residual_block_equals_two_bilinear_steps(dtype, shape):
    module = tr.ResidualBlock(shape[-1]).to(dtype)
    assert [name for name, _ in module.named_parameters()] == ["w_1.weight", "w_2.weight"]
    x = leaf(*shape, dtype=dtype)
    first, second = module.w_1.weight, module.w_2.weight
    inner = torch.einsum("...i,oi->...o", x, first).clamp(min=0)
    expected = (torch.einsum("...i,oi->...o", inner, second) + x).clamp(min=0)
    outputs = module(x), expected
    close(*outputs)
    found, wanted = (
        torch.autograd.grad((out * cotangent(out)).sum(), [x, first, second]) for out in outputs
    )
    for a, b in zip(found, wanted, strict=True):
        close(a, b)


@DTYPES
@ORDERS
def test_the_connection_puts_the_norm_where_its_order_says(dtype, norm_first):
    module = perturbed(tr.SublayerConnection(6, norm_first=norm_first), dtype)
    assert [name for name, _ in module.named_parameters()] == ["norm.gamma", "norm.beta"]
    norm = given_the_weights(nn.LayerNorm(6), module.norm)
    sublayer = nn.Linear(6, 6).to(dtype)
    x = leaf(2, 5, 6, dtype=dtype)
    calls = []

    def counted(z: Tensor) -> Tensor:
        calls.append(z.shape)
        return sublayer(z)

    ours = module(x, counted)
    assert calls == [(2, 5, 6)]
    expected = x + sublayer(norm(x)) if norm_first else norm(x + sublayer(x))
    agree(module.norm, norm, ours, expected, [x, *sublayer.parameters()])
    close(module(x, sublayer), ours)
    assert len(list(module.parameters())) == 2


@ORDERS
def test_the_connection_drops_from_what_the_sublayer_returns(norm_first):
    module = tr.SublayerConnection(8, dropout=0.4, norm_first=norm_first)
    module.norm = nn.Identity()  # So that single numbers can be seen.
    x = torch.full((100, 20, 8), 5.0)
    out = module.train()(x, lambda z: z)
    gone = out == 5
    assert within_rate(int(gone.sum()), gone.numel(), 0.4)
    close(out[~gone], (x + x / 0.6)[~gone])
    assert torch.equal(module.eval()(x, lambda z: z), 2 * x)


# ---------------------------------------------------------------------------------------- stacks


def test_clones_are_equal_and_independent():
    module = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    layers = tr.clones(module, 3)
    assert isinstance(layers, nn.ModuleList)
    assert len(layers) == 3
    everything = [*module.parameters(), *layers.parameters()]
    assert len({p.data_ptr() for p in everything}) == len(everything) == 16
    for layer in layers:
        assert layer is not module
        for name, parameter in layer.named_parameters():
            assert torch.equal(parameter, module.get_parameter(name))
    with torch.no_grad():
        layers[0][0].weight.zero_()
    assert layers[1][0].weight.any()
    assert module[0].weight.any()


SHAPES = pytest.mark.parametrize(
    ("source_lengths", "target_lengths"),
    [([7, 4, 1], [3, 6, 2]), ([1], [1]), ([5, 5], [8, 2])],
    ids=["ragged", "single", "longer target"],
)


def torch_masks(src: Tensor, tgt: Tensor) -> dict[str, Tensor]:
    """The masks of nn.Transformer, in which True means hidden."""
    return {
        "tgt_mask": torch.ones(tgt.shape[1], tgt.shape[1]).triu(1).bool(),
        "src_key_padding_mask": src == PAD,
        "tgt_key_padding_mask": tgt == PAD,
        "memory_key_padding_mask": src == PAD,
    }


@SHAPES
@DTYPES
@ORDERS
@PATHS
def test_encoder_layer_and_stack_equal_torchs(
    source_lengths, target_lengths, dtype, norm_first, fast
):
    src = ids_of_lengths(source_lengths, 9)
    ours = perturbed(tr.Encoder(2, 8, 2, 16, norm_first=norm_first), dtype)
    layer = nn.TransformerEncoderLayer(
        8, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first
    )
    norm = nn.LayerNorm(8) if norm_first else None
    theirs = nn.TransformerEncoder(layer, 2, norm, enable_nested_tensor=False)
    theirs = given_the_weights(theirs, ours)
    ours = maybe_fused(ours, fast)
    x = leaf(*src.shape, 8, dtype=dtype)
    hidden = {"src_key_padding_mask": src == PAD}
    agree(ours, theirs, ours(x, tr.pad_mask(src)), theirs(x, **hidden), [x])
    agree(ours, theirs, ours(x), theirs(x), [x])
    one, their_one = ours.layers[0], theirs.layers[0]
    agree(one, their_one, one(x, tr.pad_mask(src)), their_one(x, **hidden), [x])


@SHAPES
@DTYPES
@ORDERS
@PATHS
def test_decoder_layer_and_stack_equal_torchs(
    source_lengths, target_lengths, dtype, norm_first, fast
):
    src, tgt = ids_of_lengths(source_lengths, 9), ids_of_lengths(target_lengths, 9)
    ours = perturbed(tr.Decoder(2, 8, 2, 16, norm_first=norm_first), dtype)
    layer = nn.TransformerDecoderLayer(
        8, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first
    )
    norm = nn.LayerNorm(8) if norm_first else None
    theirs = given_the_weights(nn.TransformerDecoder(layer, 2, norm), ours)
    ours = maybe_fused(ours, fast)
    x, memory = leaf(*tgt.shape, 8, dtype=dtype), leaf(len(tgt), src.shape[1], 8, dtype=dtype)
    hidden = torch_masks(src, tgt)
    del hidden["src_key_padding_mask"]
    seen = (tr.pad_mask(src), tr.make_std_mask(tgt))
    agree(ours, theirs, ours(x, memory, *seen), theirs(x, memory, **hidden), [x, memory])
    agree(ours, theirs, ours(x, memory), theirs(x, memory), [x, memory])
    one, their_one = ours.layers[0], theirs.layers[0]
    agree(one, their_one, one(x, memory, *seen), their_one(x, memory, **hidden), [x, memory])


@ORDERS
@pytest.mark.parametrize(("stack", "per_layer"), [(tr.Encoder, 16), (tr.Decoder, 26)])
def test_stacks_have_so_many_layers_and_a_norm_only_with_norm_first(stack, per_layer, norm_first):
    for number in (1, 2, 5):
        module = stack(number, 8, 2, 16, norm_first=norm_first)
        assert len(module.layers) == number
        assert len(list(module.parameters())) == number * per_layer + 2 * norm_first
        assert ("norm.gamma" in module.state_dict()) == norm_first
        assert {c.norm_first for layer in module.layers for c in layer.sublayer} == {norm_first}


# ------------------------------------------------------------------------------------- the model


def transformer(norm_first: bool = False, dropout: float = 0.0, layers: int = 2) -> nn.Module:
    """A small model in float64 whose parameters are all different."""
    model = tr.make_model(11, 13, layers, 8, 16, 2, dropout=dropout, norm_first=norm_first)
    return perturbed(model)


@DTYPES
@pytest.mark.parametrize("shape", [(2,), (3, 4), (2, 3, 8)])
def test_the_generator_is_the_logarithm_of_a_softmax(dtype, shape):
    module = perturbed(tr.Generator(shape[-1], 7), dtype)
    assert [name for name, _ in module.named_parameters()] == ["proj.weight", "proj.bias"]
    x = leaf(*shape, dtype=dtype)
    logits = F.linear(x, module.proj.weight, module.proj.bias)
    outputs = module(x), logits - torch.logsumexp(logits, -1, keepdim=True)
    close(*outputs)
    wanted = [x, *module.parameters()]
    found, expected = (torch.autograd.grad((o * cotangent(o)).sum(), wanted) for o in outputs)
    for a, b in zip(found, expected, strict=True):
        close(a, b)


def test_improbable_tokens_have_a_finite_logarithm():
    module = tr.Generator(1, 2)
    with torch.no_grad():
        module.proj.weight.copy_(torch.tensor([[0.0], [-1.0]]))
        module.proj.bias.zero_()
    close(module(torch.tensor([[500.0]])), torch.tensor([[0.0, -500.0]]))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@SHAPES
@DTYPES
@ORDERS
@PATHS
def test_the_model_equals_torchs(source_lengths, target_lengths, dtype, norm_first, fast):
    ours = transformer(norm_first).to(dtype)
    theirs = nn.Transformer(8, 2, 2, 2, 16, 0.0, batch_first=True, norm_first=norm_first, bias=True)
    if not norm_first:
        theirs.encoder.norm = theirs.decoder.norm = None
    theirs = given_the_weights(theirs, ours)
    ours = maybe_fused(ours, fast)
    src = ids_of_lengths(source_lengths, 11)
    tgt = ids_of_lengths(target_lengths, 13, BOS)

    def embedded(table: nn.Module, ids: Tensor) -> Tensor:
        codes = positional_encoding.sinusoidal_table(ids.shape[1], 8).to(dtype)
        return F.embedding(ids, table.lut.weight) * 8**0.5 + codes

    hidden = theirs(
        embedded(ours.src_embed, src), embedded(ours.tgt_embed, tgt), **torch_masks(src, tgt)
    )
    expected = torch.log_softmax(
        F.linear(hidden, ours.generator.proj.weight, ours.generator.proj.bias), dim=-1
    )
    rest = [ours.src_embed.lut.weight, ours.tgt_embed.lut.weight, *ours.generator.parameters()]
    agree(ours, theirs, ours(src, tgt), expected, rest)
    counted = sum(len(parts) for parts in correspondence(ours).values()) + len(rest)
    assert counted == len(list(ours.parameters()))
    memory = ours.encode(src, tr.pad_mask(src))
    close(ours.decode(memory, tr.pad_mask(src), tgt, tr.make_std_mask(tgt)), hidden)


@ORDERS
def test_no_output_depends_on_later_targets_or_on_padding(norm_first):
    model = transformer(norm_first).eval()
    src, tgt = ids_of_lengths([5, 3], 11), ids_of_lengths([6, 6], 13, BOS)
    out = model(src, tgt)
    for place in range(6):
        changed = tgt.clone()
        changed[:, place] = 4 + (changed[:, place] - 3) % 9
        other = model(src, changed)
        assert torch.equal(other[:, :place], out[:, :place])
        assert not torch.isclose(other[:, place:], out[:, place:]).all(-1).any()
    close(model(F.pad(src, (0, 3)), tgt), out)
    close(model(src, F.pad(tgt, (0, 2)))[:, :6], out)
    close(model(src[1:, :3], tgt[1:]), out[1:])


@PATHS
@ORDERS
def test_dropout_reaches_every_part_and_each_has_an_effect(norm_first, fast):
    model = maybe_fused(transformer(norm_first, dropout=0.3, layers=1), fast)
    src, tgt = ids_of_lengths([5, 3], 11), ids_of_lengths([6, 4], 13, BOS)
    parts = [m for m in model.modules() if isinstance(m, nn.Dropout)]
    # Positions; attention, feed-forward and two connections; two attentions, and so on.
    assert len(parts) == 1 + 4 + 6
    assert {part.p for part in parts} == {0.3}
    for part in parts:
        part.p = 0.0
    assert torch.equal(model.train()(src, tgt), model(src, tgt))
    calm = model(src, tgt)
    for part in parts:
        part.p = 0.5
        assert not torch.allclose(model(src, tgt), calm)
        assert not torch.equal(model(src, tgt), model(src, tgt))
        part.p = 0.0
    for part in parts:
        part.p = 0.5
    close(model.eval()(src, tgt), calm)


def test_a_model_without_dropout_computes_the_same_twice_in_training():
    model = tr.make_model(11, 11, 2, 16, 32, 2, dropout=0.0).train()
    src, tgt = ids_of_lengths([5, 3], 11), ids_of_lengths([6, 4], 11, BOS)
    assert torch.equal(model(src, tgt), model(src, tgt))


@pytest.mark.parametrize("shared", [False, True])
@ORDERS
def test_make_model_draws_every_parameter_as_stated(shared, norm_first):
    model = tr.make_model(300, 300, 2, 32, 64, 4, norm_first=norm_first, tie_embeddings=shared)
    linear_layers = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    assert len(linear_layers) == 2 * (6 + 10) + 1
    for name, module in linear_layers:
        assert not module.bias.any(), name
        if not (shared and name == "generator.proj"):
            assert follows(module.weight, xavier(module.weight)), name
            # The bound is reached: nothing narrower was drawn.
            assert module.weight.abs().max() > 0.97 * math.sqrt(6 / sum(module.weight.shape))
    norms = [m for m in model.modules() if isinstance(m, tr.LayerNorm)]
    assert len(norms) == 2 * (2 + 3) + 2 * norm_first
    for norm in norms:
        assert torch.equal(norm.gamma, torch.ones(32))
        assert torch.equal(norm.beta, torch.zeros(32))
    tables = [model.src_embed.lut.weight, model.tgt_embed.lut.weight]
    for table in [*tables, model.generator.proj.weight][: 3 if shared else 2]:
        assert follows(table, normal(1 / 32))
    assert (tables[0] is tables[1] is model.generator.proj.weight) == shared
    weights = [m.weight for _, m in linear_layers]
    alike = [(a, b) for a, b in itertools.combinations(weights, 2) if a.shape == b.shape]
    assert not any(torch.equal(a, b) for a, b in alike)
    assert not any(isinstance(m, nn.Dropout) and m.p != 0.1 for m in model.modules())


def test_one_shared_table_gathers_the_gradients_of_all_three_places():
    model = perturbed(tr.make_model(11, 11, 1, 8, 16, 2, dropout=0.0, tie_embeddings=True))
    apart = perturbed(tr.make_model(11, 11, 1, 8, 16, 2, dropout=0.0))
    apart.load_state_dict(model.state_dict())
    src, tgt = ids_of_lengths([5, 3], 11), ids_of_lengths([6, 4], 11, BOS)
    for module in (model, apart):
        out = module(src, tgt)
        (out * cotangent(out)).sum().backward()
    together = model.src_embed.lut.weight.grad
    close(
        together,
        apart.src_embed.lut.weight.grad
        + apart.tgt_embed.lut.weight.grad
        + apart.generator.proj.weight.grad,
    )


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(
    ("vocab", "layers", "width", "inner", "heads"),
    [(11, 1, 4, 8, 2), (11, 2, 16, 32, 2), (37_000, 6, 512, 2048, 8), (37_000, 6, 1024, 4096, 16)],
)
@pytest.mark.parametrize("shared", [False, True])
def test_the_formula_counts_the_parameters(vocab, layers, width, inner, heads, shared, norm_first):
    with torch.device("meta"):  # Shapes without numbers.
        model = tr.make_model(
            vocab, vocab, layers, width, inner, heads, norm_first=norm_first, tie_embeddings=shared
        )
    counted = tr.count_parameters(vocab, layers, width, inner, shared)
    assert size(model) == counted + 4 * width * norm_first


def test_base_and_big_are_as_large_as_the_paper_says():
    base = tr.count_parameters(37_000, 6, 512, 2048)
    assert round(base / 1e6, 1) == 63.1
    assert base == pytest.approx(65e6, rel=0.03)
    assert round(tr.count_parameters(37_000, 6, 512, 2048, tie_embeddings=False) / 1e6, 1) == 101.0
    big = tr.count_parameters(37_000, 6, 1024, 4096)
    assert round(big / 1e6) == 214
    assert big == pytest.approx(213e6, rel=0.007)
    with torch.device("meta"):
        assert size(tr.make_model(37_000, 37_000, tie_embeddings=True)) == base
        assert size(tr.EncoderDecoder(37_000, 37_000)) == base + 2 * 37_000 * 512


# ------------------------------------------------------------------------------------- fast path


def test_a_fused_model_shares_the_parameters_and_leaves_the_clear_one_as_it_is():
    model = transformer(True, dropout=0.2).eval()
    src, tgt = ids_of_lengths([5, 3], 11), ids_of_lengths([6, 4], 13, BOS)
    expected, kinds = model(src, tgt), [type(m) for m in model.modules()]
    fast = tr.fused(model)
    assert [type(m) for m in model.modules()] == kinds
    fused_kinds = [type(m) for m in fast.modules()]
    assert {a for a, b in zip(kinds, fused_kinds, strict=True) if a is not b} == {
        tr.MultiHeadAttention,
        tr.LayerNorm,
    }
    assert not fast.training
    theirs = dict(model.named_parameters())
    assert list(fast.state_dict()) == list(model.state_dict())
    assert all(parameter is theirs[name] for name, parameter in fast.named_parameters())
    assert [type(m) for m in tr.fused(fast).modules()] == fused_kinds
    for twin in (fast, copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        close(twin(src, tgt), expected)
    with torch.no_grad():
        theirs["generator.proj.bias"].add_(torch.arange(13))
    close(fast(src, tgt), model(src, tgt))


@DTYPES
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_a_query_that_may_attend_to_nothing_gets_zero_on_both_paths(dtype, training):
    clear = perturbed(tr.MultiHeadAttention(8, 2, dropout=0.3), dtype).train(training)
    x = leaf(2, 5, 8, dtype=dtype)
    mask = masks("each", 2, 5, 5)
    mask[0, 3] = False
    for module in (clear, tr.fused(clear)):
        result = module(x, x, x, mask)
        close(result[0, 3], clear.out_proj.bias.detach())
        others = torch.autograd.grad(result.sum(), [x, *clear.parameters()])
        assert all(gradient.isfinite().all() for gradient in others)
        # Nothing of that row reaches any key or value.
        (gradient,) = torch.autograd.grad(module(x, x, x, mask)[0, 3].sum(), [x])
        assert not gradient.any()


@ORDERS
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_the_fast_path_has_the_same_values_and_gradients(norm_first, training):
    clear = transformer(norm_first).train(training)
    fast = tr.fused(copy.deepcopy(clear))
    src, tgt = ids_of_lengths([9, 4, 6], 11), ids_of_lengths([5, 8, 3], 13, BOS)
    gradients = []
    for model in (clear, fast):
        out = model(src, tgt)
        gradients.append(
            (out, *torch.autograd.grad((out * cotangent(out)).sum(), model.parameters()))
        )
    for a, b in zip(*gradients, strict=True):
        close(b, a)


@PATHS
def test_a_compiled_model_has_the_same_values_and_gradients(fast):
    """In a process of its own: what other tests have compiled changes what is recorded."""
    code = f"from tests.solutions.test_transformer import compiled_agrees; compiled_agrees({fast})"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def compiled_agrees(fast):
    """As one graph: with ``fullgraph`` a part that can't be captured raises an error."""
    model = maybe_fused(transformer(True), fast)
    src, tgt = ids_of_lengths([9, 4, 6], 11), ids_of_lengths([5, 8, 3], 13, BOS)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    found, expected = (
        (out, *torch.autograd.grad((out * cotangent(out)).sum(), model.parameters()))
        for out in (compiled(src, tgt), model(src, tgt))
    )
    for a, b in zip(found, expected, strict=True):
        close(a, b)


@PATHS
def test_a_compiled_step_takes_and_returns_typed_caches(fast):
    model = maybe_fused(transformer(), fast).eval()
    step = torch.compile(tr.decode_step, fullgraph=True, backend="aot_eager", dynamic=True)
    with torch.no_grad():
        cache = other = tr.start_cache(model, ids_of_lengths([4, 3], 11))
        for token in (BOS, 4, 5):
            found, other = step(model, torch.tensor([token, token]), other)
            expected, cache = tr.decode_step(model, torch.tensor([token, token]), cache)
            close(found, expected)
        assert other.past == cache.past == 3


@ORDERS
def test_the_fast_path_drops_as_much_as_the_clear_one(norm_first):
    """The mean of many noisy passes, measured in its own standard error."""
    clear = transformer(norm_first, dropout=0.2, layers=1).train()
    fast = tr.fused(copy.deepcopy(clear))
    src = ids_of_lengths([4], 11).expand(4000, -1)
    tgt = ids_of_lengths([3], 13, BOS).expand(4000, -1)
    with torch.no_grad():
        a, b = clear(src, tgt), fast(src, tgt)  # (4000, 3, 13)
    error = ((a.var(0) + b.var(0)) / 4000).sqrt()
    # A normal deviate exceeds 6.6 with a probability of 4e-11; there are 39 numbers.
    assert ((a.mean(0) - b.mean(0)) / error).abs().max() < 6.6
    assert (a.std(0) / b.std(0)).log().abs().max() < 0.15
    assert a.std(0).min() > 0.01


# -------------------------------------------------------------------------------------- training


def test_targets_are_cut_into_input_and_output():
    target = ids_of_lengths([6, 2, 4], 9, BOS)
    tgt_in, tgt_out, count = tr.shift_targets(target)
    assert tgt_in.tolist() == [row[:-1] for row in target.tolist()]
    assert tgt_out.tolist() == [row[1:] for row in target.tolist()]
    assert (type(count), count) == (int, 5 + 1 + 3)
    _, _, others = tr.shift_targets(torch.tensor([[7, 8, 7], [8, 7, 7]]), pad=7)
    assert others == 1


pair_lists = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), max_size=25)


@given(pair_lists, st.integers(12, 60))
@example([], 1)
@example([(3, 12), (4, 1), (4, 1), (4, 1)], 12)
@example([(5, 5)] * 7, 15)
@examples
def test_batches_hold_as_many_sentences_in_order_as_fit(lengths, max_tokens):
    """These four properties leave only one answer."""
    before = list(lengths)
    batches = tr.token_batches(lengths, max_tokens)
    assert lengths == before
    assert all(batches)
    order = list(itertools.chain.from_iterable(batches))
    assert order == sorted(range(len(lengths)), key=lambda i: (lengths[i][0], lengths[i][1], i))

    def fits(batch: list[int]) -> bool:
        return all(
            len(batch) * max(lengths[i][side] for i in batch) <= max_tokens for side in (0, 1)
        )

    assert all(fits(batch) for batch in batches)
    for batch, following in itertools.pairwise(batches):
        assert not fits([*batch, following[0]])


@DTYPES
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("pad", [0, 3, -100])
def test_label_smoothing_equals_torchs_loss(dtype, smoothing, pad):
    logits = (3 * torch.randn(3, 5, 7, dtype=dtype)).requires_grad_()
    target = torch.randint(7, (3, 5))
    target[0, 0] = 5
    target[1:, 3:] = pad
    ours = tr.label_smoothing_loss(torch.log_softmax(logits, -1), target, smoothing, pad)
    criterion = nn.CrossEntropyLoss(label_smoothing=smoothing, ignore_index=pad)
    theirs = criterion(logits.transpose(1, 2), target)
    close(ours, theirs)
    for a, b in zip(
        torch.autograd.grad(ours, [logits]), torch.autograd.grad(theirs, [logits]), strict=True
    ):
        close(a, b)


def test_a_token_of_probability_0_elsewhere_leaves_the_loss_without_smoothing_finite():
    log_probs = torch.tensor([[[0.25, 0.75, 0.0], [0.5, 0.5, 0.0]]]).log().requires_grad_()
    target = torch.tensor([[1, 0]])
    loss = tr.label_smoothing_loss(log_probs, target, 0.0, pad=-1)
    close(loss.detach(), -torch.tensor([0.75, 0.5]).log().mean())
    (gradient,) = torch.autograd.grad(loss, [log_probs])
    assert gradient.tolist() == [[[0, -0.5, 0], [-0.5, 0, 0]]]
    assert tr.label_smoothing_loss(log_probs, target, 0.1, pad=-1) == math.inf


def test_label_smoothing_is_a_tenth_and_ignores_0_unless_told_otherwise():
    log_probs = torch.log_softmax(torch.randn(2, 3, 5), -1)
    target = torch.tensor([[4, 1, 0], [2, 0, 0]])
    expected = tr.label_smoothing_loss(log_probs, target, 0.1, 0)
    assert torch.equal(tr.label_smoothing_loss(log_probs, target), expected)
    # What the model says at padding doesn't matter, were it nonsense.
    broken = log_probs.masked_fill((target == 0)[:, :, None], math.nan)
    assert torch.equal(tr.label_smoothing_loss(broken, target), expected)


@pytest.mark.parametrize(("width", "warmup", "factor"), [(512, 4000, 1.0), (64, 10, 2.0)])
def test_the_learning_rate_equals_a_schedule_of_torch(width, warmup, factor):
    parameter = nn.Parameter(torch.zeros(()))
    optimiser = torch.optim.SGD([parameter], lr=factor / math.sqrt(width * warmup))
    rise = torch.optim.lr_scheduler.LinearLR(optimiser, 1 / warmup, 1.0, warmup - 1)
    rates = []
    for _ in range(warmup):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        rise.step()
    base = factor / math.sqrt(width * warmup)
    fall = torch.optim.lr_scheduler.LambdaLR(
        torch.optim.SGD([parameter], lr=base), lambda n: math.sqrt(warmup / (warmup + n))
    )
    for _ in range(warmup):
        rates.append(fall.get_last_lr()[0])
        fall.optimizer.step()
        fall.step()
    steps = [*range(1, warmup + 1), *range(warmup, 2 * warmup)]
    ours = [tr.learning_rate(step, width, warmup, factor) for step in steps]
    assert ours == pytest.approx(rates, rel=1e-9)
    assert all(type(rate) is float for rate in ours)


def test_the_rate_of_the_base_model_peaks_at_step_4000():
    rates = [tr.learning_rate(step) for step in range(1, 20_001)]
    assert rates.index(max(rates)) == 3999
    assert f"{max(rates):.2e}" == "6.99e-04"
    assert rates[15_999] / rates[3999] == pytest.approx(0.5)
    assert rates[1999] / rates[3999] == pytest.approx(0.5)


@DTYPES
@pytest.mark.parametrize(
    "options", [{}, {"betas": (0.9, 0.999), "eps": 1e-8}, {"betas": (0.0, 0.5), "eps": 0.1}]
)
def test_adam_equals_torchs_over_many_steps(dtype, options):
    theirs = nn.Parameter(torch.randn(4, 5, dtype=dtype))
    settings_ = {"betas": (0.9, 0.98), "eps": 1e-9} | options
    optimiser = torch.optim.Adam([theirs], lr=0.0, **settings_)
    ours, first, second = theirs.detach().clone(), *torch.zeros(2, 4, 5, dtype=dtype)
    for step in range(1, 201):
        rate = 0.1 / math.sqrt(step)
        gradient = torch.randn(4, 5, dtype=dtype) * 10 ** torch.empty(()).uniform_(-3, 2).item()
        theirs.grad = gradient.clone()
        optimiser.param_groups[0]["lr"] = rate
        optimiser.step()
        inputs = [ours, gradient, first, second]
        before = [x.clone() for x in inputs]
        ours, first, second = tr.adam_step(*inputs, step, rate, **options)
        assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))
        assert (ours - theirs).abs().max() <= 1e4 * torch.finfo(dtype).eps * (1 + ours.abs().max())
    state = optimiser.state[theirs]
    close(first, state["exp_avg"])
    close(second, state["exp_avg_sq"])


def noisy(name: str) -> bool:
    """A constant added to all keys changes no softmax: its gradient is nothing but rounding."""
    return name.endswith("k_proj.bias")


@ORDERS
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("smoothing", [0.1, 0.0])
def test_training_equals_a_loop_with_torchs_adam_and_loss(norm_first, shared, smoothing):
    options = {"dropout": 0.0, "norm_first": norm_first, "tie_embeddings": shared}
    ours = perturbed(tr.make_model(11, 11, 1, 8, 16, 2, **options))
    theirs = copy.deepcopy(ours)
    optimiser = torch.optim.Adam(theirs.parameters(), betas=(0.9, 0.98), eps=1e-9)
    criterion = nn.CrossEntropyLoss(label_smoothing=smoothing, ignore_index=PAD)
    moments: dict = {}
    for step in range(1, 13):
        rate = tr.learning_rate(step, 8, warmup_steps=4, factor=0.1)
        src = ids_of_lengths([5, 3, 1], 11)
        tgt = ids_of_lengths([6, 4, 2], 11, BOS)
        before, old = moments, copy.deepcopy(moments)
        loss, moments = tr.train_step(ours, src, tgt, before, step, rate, smoothing)
        assert before.keys() == old.keys()
        assert all(torch.equal(before[name][i], old[name][i]) for name in old for i in (0, 1))
        optimiser.param_groups[0]["lr"] = rate
        expected = criterion(theirs(src, tgt[:, :-1]).transpose(1, 2), tgt[:, 1:])
        optimiser.zero_grad()
        expected.backward()
        optimiser.step()
        assert type(loss) is float
        assert loss == pytest.approx(expected.item(), rel=1e-8)
    assert moments.keys() == dict(ours.named_parameters()).keys()
    other = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        if not noisy(name):
            assert torch.allclose(parameter, other[name], rtol=1e-7, atol=1e-8), name
            close(moments[name][0], optimiser.state[other[name]]["exp_avg"], name)


def test_a_training_step_uses_its_own_gradient_and_leaves_frozen_parameters_alone():
    model = perturbed(tr.make_model(11, 11, 1, 8, 16, 2, dropout=0.0))
    twin = copy.deepcopy(model)
    src, tgt = ids_of_lengths([5, 3], 11), ids_of_lengths([6, 4], 11, BOS)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    frozen = [*model.generator.parameters(), *twin.generator.parameters()]
    unused = [model.extra, twin.extra] = [nn.Linear(2, 2).double() for _ in range(2)]
    for parameter in frozen:
        parameter.requires_grad_(False)
        parameter.grad = None
    before = [p.clone() for module in (model.generator, model.extra) for p in module.parameters()]
    given: dict = {}
    loss, moments = tr.train_step(model, src, tgt, given, 1, 0.01)
    again, _ = tr.train_step(twin, src, tgt, {}, 1, 0.01)
    assert given == {}
    assert loss == again
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        if a.shape != (2, 2) and a.shape != (2,):
            assert torch.equal(a, b)
    after = [p for module in (model.generator, model.extra) for p in module.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    names = {n for n, _ in model.named_parameters() if not n.startswith(("generator", "extra"))}
    assert moments.keys() == names
    assert unused


@pytest.mark.parametrize("training", [True, False])
def test_a_training_step_leaves_the_mode_as_it_is(training):
    model = transformer(dropout=0.5).train(training)
    src, tgt = ids_of_lengths([5, 3], 11), ids_of_lengths([6, 4], 13, BOS)
    losses = {tr.train_step(copy.deepcopy(model), src, tgt, {}, 1, 0.1)[0] for _ in range(4)}
    assert len(losses) == (4 if training else 1)
    tr.train_step(model, src, tgt, {}, 1, 0.1)
    assert {m.training for m in model.modules()} == {training}


@ORDERS
def test_a_trained_model_writes_what_it_was_taught(norm_first):
    model = tr.make_model(12, 12, 1, 16, 32, 2, dropout=0.0, norm_first=norm_first)
    model = tr.fused(model)
    src = ids_of_lengths([5, 3, 4], 12)
    wanted = [[i for i in reversed(row) if i != PAD] + [EOS] for row in src.tolist()]
    tgt = torch.tensor([[BOS, *row] + [PAD] * (6 - len(row)) for row in wanted])
    moments: dict = {}
    for step in range(1, 81):
        rate = tr.learning_rate(step, 16, warmup_steps=20, factor=0.5)
        loss, moments = tr.train_step(model, src, tgt, moments, step, rate, smoothing=0.0)
    assert loss < 0.1
    with torch.no_grad():
        written = tr.greedy_decode(model.eval(), src, 10)
    assert written.tolist() == tgt[:, 1:].tolist()


def test_averaged_states_are_the_mean_of_each_number():
    models = [transformer() for _ in range(3)]
    states = [model.state_dict() for model in models]
    mean = tr.average_states(states)
    assert mean.keys() == states[0].keys()
    for name, value in mean.items():
        close(value, (states[0][name] + states[1][name] + states[2][name]) / 3)
    models[0].load_state_dict(mean)
    shared = tr.make_model(11, 11, 1, 8, 16, 2, tie_embeddings=True)
    shared.load_state_dict(tr.average_states([shared.state_dict()] * 2))
    with pytest.raises(ValueError, match="no states"):
        tr.average_states([])


# -------------------------------------------------------------------------------------- decoding


def table_model(vocab: int = 6, length: int = 4, sharpness: float = 2.0) -> TableModel:
    return TableModel(sharpness * torch.randn(3, length, vocab, vocab, dtype=torch.float64))


def log_probs_after(model: nn.Module, source: Tensor, ids: Sequence[int]) -> list[float]:
    """Of each next token after BOS and `ids`, from one row that stands alone."""
    mask = (source != PAD)[:, None]
    target = torch.tensor([[BOS, *ids]])
    future = torch.ones(len(ids) + 1, len(ids) + 1).triu(1).bool()
    hidden = model.decode(model.encode(source, mask), mask, target, ~future[None])
    return model.generator(hidden)[0, -1].tolist()


def written_alone(model: nn.Module, source: Tensor, max_length: int) -> list[int]:
    """Greedy decoding by its definition, without a batch."""
    ids: list[int] = []
    while len(ids) < max_length and EOS not in ids:
        options = log_probs_after(model, source, ids)
        ids.append(options.index(max(options)))
    return ids


def ending(model: nn.Module, after: float) -> nn.Module:
    """The model with another liking for EOS, so that rows end at different steps."""
    with torch.no_grad():
        model.generator.proj.bias[EOS] += after
    return model


CASES = {
    "table": lambda: (table_model(), torch.tensor([[0, 1], [1, 1], [2, 0]])),
    "post": lambda: (ending(transformer(False), 1.5).eval(), ids_of_lengths([6, 2, 4, 1], 11)),
    "pre": lambda: (ending(transformer(True), 1.5).eval(), ids_of_lengths([6, 2, 4, 1], 11)),
}
MODELS = pytest.mark.parametrize("case", CASES)


@MODELS
@pytest.mark.parametrize("max_length", [1, 3, 12])
@torch.no_grad()
def test_greedy_decoding_equals_each_row_alone(case, max_length):
    for seed in range(4):
        torch.manual_seed(seed)
        model, source = CASES[case]()
        rows = [written_alone(model, source[i : i + 1], max_length) for i in range(len(source))]
        longest = max(map(len, rows))
        ids = tr.greedy_decode(model, source, max_length)
        assert ids.dtype == torch.int64
        assert ids.tolist() == [row + [PAD] * (longest - len(row)) for row in rows]


class Script(nn.Module):
    """Writes each row of a script, whatever is fed; counts what it is asked for."""

    def __init__(self, *rows: Sequence[int]) -> None:
        super().__init__()
        self.rows = torch.tensor(rows)
        self.fed: list[list[list[int]]] = []
        self.encoded = 0

    def encode(self, source: Tensor, src_mask: Tensor) -> Tensor:
        assert torch.equal(src_mask, (source != PAD)[:, None])
        self.encoded += 1
        return torch.arange(len(source))[:, None, None].expand(-1, source.shape[1], 4)

    def decode(self, memory: Tensor, src_mask: Tensor, tgt: Tensor, tgt_mask: Tensor) -> Tensor:
        assert memory.shape[0] == src_mask.shape[0] == tgt.shape[0]
        assert torch.equal(
            tgt_mask.expand(len(tgt), -1, -1),
            torch.ones(len(tgt), tgt.shape[1], tgt.shape[1]).tril().bool(),
        )
        self.fed.append(tgt.tolist())
        return self.rows[memory[:, 0, 0], : tgt.shape[1]]

    def generator(self, hidden: Tensor) -> Tensor:
        return torch.log_softmax(5.0 * F.one_hot(hidden, 9), -1)


def test_a_row_that_has_ended_is_padded_and_the_last_one_ends_it_all():
    script = Script([7, EOS, 4, 4, 4], [5, 6, 8, EOS, 4])
    source = torch.tensor([[4, 5], [6, 0]])
    assert tr.greedy_decode(script, source, 20).tolist() == [[7, 2, 0, 0], [5, 6, 8, 2]]
    assert script.encoded == 1
    # EOS is not read in again: nothing is asked once it has been produced everywhere.
    assert [len(fed[0]) for fed in script.fed] == [1, 2, 3, 4]
    assert script.fed[-1][1] == [BOS, 5, 6, 8]
    assert tr.greedy_decode(script, source, 3).tolist() == [[7, 2, 0], [5, 6, 8]]
    assert tr.greedy_decode(script, source[:1], 9).tolist() == [[7, 2]]


def test_a_padding_id_that_a_live_row_writes_is_a_token_like_any_other():
    model = table_model()
    model.table[0, 0, BOS] = -INF
    model.table[0, 0, BOS, PAD] = 0.0
    source = torch.zeros(1, 1, dtype=torch.int64)
    ids = tr.greedy_decode(model, source, 5).tolist()[0]
    assert ids == written_alone(model, source, 5)
    assert ids[0] == PAD
    assert len(ids) > 1


Hypotheses = list[tuple[list[int], float]]


def naive_beam(model: nn.Module, source: Tensor, size: int, max_length: int) -> Hypotheses:
    """Beam search by its five rules, hypothesis by hypothesis; log-probabilities, no order."""
    live: Hypotheses = [([], 0.0)]
    finished: Hypotheses = []
    for _ in range(max_length):
        extended = [
            ([*ids, token], total + value)
            for ids, total in live
            for token, value in enumerate(log_probs_after(model, source, ids))
            if value > -INF
        ]
        extended.sort(key=lambda pair: -pair[1])
        survivors = extended[: size - len(finished)]
        finished += [pair for pair in survivors if pair[0][-1] == EOS]
        live = [pair for pair in survivors if pair[0][-1] != EOS]
        if not live:
            break
    return finished + live


def penalised(found: Hypotheses, alpha: float) -> Hypotheses:
    scored = [(ids, total * (6 / (5 + len(ids))) ** alpha) for ids, total in found]
    return sorted(scored, key=lambda pair: -pair[1])


def same_hypotheses(found: Hypotheses, expected: Hypotheses) -> None:
    assert [ids for ids, _ in found] == [ids for ids, _ in expected]
    assert [score for _, score in found] == pytest.approx([score for _, score in expected])
    assert all(type(score) is float for _, score in found)
    assert all(type(i) is int for ids, _ in found for i in ids)


@MODELS
@pytest.mark.parametrize("beam_size", [1, 2, 5])
@pytest.mark.parametrize("alpha", [0.0, 0.6])
@torch.no_grad()
def test_beam_search_equals_a_naive_one(case, beam_size, alpha):
    model, source = CASES[case]()
    for row, max_length in itertools.product(source[:2], (1, 4)):
        found = tr.beam_search(model, row[None], beam_size, max_length, alpha)
        expected = penalised(naive_beam(model, row[None], beam_size, max_length), alpha)
        same_hypotheses(found, expected)


@torch.no_grad()
def test_the_penalty_has_the_exponent_of_the_paper_unless_told_otherwise():
    model, source = CASES["post"]()
    found = tr.beam_search(model, source[:1], 4, 6)
    assert found == tr.beam_search(model, source[:1], 4, 6, alpha=0.6)
    assert found != tr.beam_search(model, source[:1], 4, 6, alpha=0.0)


def every_sequence(model: TableModel, source: Tensor, max_length: int) -> Hypotheses:
    """All that end with EOS within max_length tokens, and all of max_length that don't."""
    vocab = model.table.shape[-1]
    rows = torch.log_softmax(model.table[source[0, 0]], -1)  # (L, V, V)
    found = []
    for length in range(1, max_length + 1):
        for ids in itertools.product(range(vocab), repeat=length):
            if EOS in ids[:-1] or (ids[-1] != EOS and length < max_length):
                continue
            total = sum(
                rows[min(t, len(rows) - 1), before, token].item()
                for t, (before, token) in enumerate(itertools.pairwise((BOS, *ids)))
            )
            found.append((list(ids), total))
    return found


@pytest.mark.parametrize("max_length", [1, 2, 4])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_a_beam_that_drops_nothing_finds_every_sequence_there_is(max_length, alpha):
    model = table_model(vocab=4, length=3)
    source = torch.tensor([[2, 1]])
    every = penalised(every_sequence(model, source, max_length), alpha)
    same_hypotheses(tr.beam_search(model, source, 4**max_length, max_length, alpha), every)
    assert sum(math.exp(p) for _, p in every_sequence(model, source, max_length)) == pytest.approx(
        1
    )


@given(st.integers(0, 10**6), st.integers(1, 6), st.floats(0, 2))
@settings(derandomize=True, deadline=None, database=None, max_examples=30)
def test_a_beam_of_one_is_greedy(seed, max_length, alpha):
    torch.manual_seed(seed)
    model, source = table_model(), torch.tensor([[1]])
    ((ids, _),) = tr.beam_search(model, source, 1, max_length, alpha)
    assert ids == written_alone(model, source, max_length)


def test_a_search_ends_when_nothing_is_left_to_extend():
    table = torch.full((1, 1, 6, 6), -INF)
    table[..., EOS] = 0.0
    source = torch.zeros(1, 1, dtype=torch.int64)
    assert tr.beam_search(TableModel(table), source, 4, 10) == [([EOS], 0.0)]
    table[0, 0, BOS, 4] = 0.0
    found = tr.beam_search(TableModel(table), source, 4, 10, alpha=0.0)
    assert sorted(ids for ids, _ in found) == [[2], [4, 2]]
    assert [score for _, score in found] == pytest.approx([-math.log(2)] * 2)


# ----------------------------------------------------------------------------------------- cache


@ORDERS
@DTYPES
@PATHS
@torch.no_grad()
def test_a_step_with_a_cache_equals_the_whole_model(norm_first, dtype, fast):
    model = maybe_fused(transformer(norm_first).to(dtype).eval(), fast)
    source = ids_of_lengths([6, 2, 4], 11)
    fed = torch.randint(13, (3, 7))  # Any id, padding included.
    fed[:, 0] = BOS
    src_mask = tr.pad_mask(source)
    cache = tr.start_cache(model, source)
    memory = model.encode(source, src_mask)
    for t in range(7):
        log_probs, cache = tr.decode_step(model, fed[:, t], cache)
        mask = tr.subsequent_mask(t + 1)
        hidden = model.decode(memory, src_mask, fed[:, : t + 1], mask)
        close(log_probs, model.generator(hidden)[:, -1])
        assert cache.past == t + 1
        for layer in cache.target.layers:
            assert layer.keys.shape == layer.values.shape == (3, 2, t + 1, 4)


@ORDERS
@torch.no_grad()
def test_the_cache_holds_what_each_layer_makes_of_the_memory(norm_first):
    model = transformer(norm_first).eval()
    source = ids_of_lengths([6, 2, 4], 11)
    calls = []
    model.encoder.register_forward_hook(lambda *_: calls.append(1))
    cache = tr.start_cache(model, source)
    assert calls == [1]
    assert cache.past == 0
    assert torch.equal(cache.src_mask, tr.pad_mask(source))
    assert len(cache.memory.layers) == len(cache.target.layers) == 2
    memory = model.encode(source, tr.pad_mask(source))
    for n, layer in enumerate(model.decoder.layers):
        keys, values = layer.src_attn.k_proj(memory), layer.src_attn.v_proj(memory)
        kept, empty = cache.memory.layers[n], cache.target.layers[n]
        for part, projected in ((kept.keys, keys), (kept.values, values)):
            close(torch.cat(part.unbind(1), dim=-1), projected)
        for part in (empty.keys, empty.values):
            assert part.shape == (3, 2, 0, 4)
            assert part.dtype == torch.float64


@torch.no_grad()
def test_a_step_leaves_the_given_cache_alone_and_can_be_taken_twice():
    model = transformer().eval()
    source = ids_of_lengths([6, 2], 11)
    _, cache = tr.decode_step(model, torch.tensor([BOS, BOS]), tr.start_cache(model, source))
    before = copy.deepcopy(cache)
    first, one = tr.decode_step(model, torch.tensor([4, 5]), cache)
    second, other = tr.decode_step(model, torch.tensor([6, 7]), cache)
    again, _ = tr.decode_step(model, torch.tensor([4, 5]), cache)
    assert torch.equal(first, again)
    assert not torch.allclose(first, second)
    for now, then in ((cache.memory, before.memory), (cache.target, before.target)):
        for a, b in zip(now.layers, then.layers, strict=True):
            assert torch.equal(a.keys, b.keys)
            assert torch.equal(a.values, b.values)
    assert one.past == other.past == 2


@torch.no_grad()
def test_only_one_position_runs_through_the_layers():
    model = transformer().eval()
    source = ids_of_lengths([6, 2], 11)
    lengths = []
    for layer in model.decoder.layers:
        layer.feed_forward.register_forward_pre_hook(lambda _, x: lengths.append(x[0].shape[1]))
    cache = tr.start_cache(model, source)
    for token in (BOS, 4, 5):
        _, cache = tr.decode_step(model, torch.tensor([token, token]), cache)
    assert lengths == [1] * 6


@MODELS
@PATHS
@pytest.mark.parametrize("max_length", [1, 12])
@torch.no_grad()
def test_greedy_decoding_with_a_cache_writes_the_same(case, fast, max_length):
    for seed in range(4):
        torch.manual_seed(seed)
        model, source = CASES[case]()
        if case == "table":  # It has no layers; a model with one layer instead.
            model = ending(transformer(layers=1), 1.0).eval()
        ids = tr.greedy_decode(model, source, max_length)
        cached = tr.cached_greedy_decode(maybe_fused(model, fast), source, max_length)
        assert torch.equal(cached, ids)


@ORDERS
@PATHS
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_beam_search_with_a_cache_finds_for_each_row_what_it_finds_alone(
    norm_first, fast, size, alpha
):
    for seed in range(3):
        torch.manual_seed(seed)
        model = ending(transformer(norm_first), 1.0).eval()
        source = ids_of_lengths([6, 2, 4, 1], 11)
        found = tr.cached_beam_search(maybe_fused(model, fast), source, size, 7, alpha)
        assert len(found) == 4
        for row, ours in zip(source, found, strict=True):
            wanted = tr.beam_search(model, row[None], size, 7, alpha)
            same_hypotheses(ours, wanted)


def test_decoding_records_no_gradient():
    model, source, seen = transformer().eval(), ids_of_lengths([4], 11), []
    model.generator.register_forward_hook(lambda *call: seen.append(call[2].requires_grad))
    for decode in (
        lambda: tr.greedy_decode(model, source, 3),
        lambda: tr.beam_search(model, source, 2, 3),
        lambda: tr.cached_greedy_decode(model, source, 3),
        lambda: tr.cached_beam_search(model, source, 2, 3),
    ):
        decode()
        assert seen
        assert not any(seen)
        seen.clear()


def test_gradients_flow_through_the_cache():
    model = transformer().eval()
    source = ids_of_lengths([4], 11)
    cache = tr.start_cache(model, source)
    outputs = []
    for token in (BOS, 4, 5):
        log_probs, cache = tr.decode_step(model, torch.tensor([token]), cache)
        outputs.append(log_probs)
    ours, theirs = torch.stack(outputs, 1), model(source, torch.tensor([[BOS, 4, 5]]))
    weight = cotangent(theirs)
    found, expected = (
        torch.autograd.grad((out * weight).sum(), model.parameters()) for out in (ours, theirs)
    )
    for a, b in zip(found, expected, strict=True):
        close(a, b)


# ------------------------------------------------------------------------------------- refusals

ROW, ROWS = torch.tensor([[4, 5]]), torch.tensor([[4, 5], [4, 5]])
LOG_PROBS = torch.zeros(2, 2, 6)
REFUSALS = {
    "no vocabulary": lambda: tr.Embeddings(0, 4),
    "no width": lambda: tr.Embeddings(4, 0),
    "heads": lambda: tr.MultiHeadAttention(8, 3),
    "no heads": lambda: tr.MultiHeadAttention(8, 0),
    "mask of size 0": lambda: tr.subsequent_mask(0),
    "norm of nothing": lambda: tr.LayerNorm(0),
    "wider than the norm": lambda: tr.LayerNorm(4)(torch.zeros(2, 5)),
    "width 1 for a norm of 4": lambda: tr.LayerNorm(4)(torch.zeros(2, 1)),
    "width 4 for a norm of 1": lambda: tr.LayerNorm(1)(torch.zeros(2, 4)),
    "no clones": lambda: tr.clones(nn.Identity(), 0),
    "encoder layer heads": lambda: tr.EncoderLayer(8, 3, 16),
    "decoder layer heads": lambda: tr.DecoderLayer(8, 3, 16),
    "encoder without layers": lambda: tr.Encoder(0, 8, 2, 16),
    "decoder without layers": lambda: tr.Decoder(0, 8, 2, 16),
    "model without layers": lambda: tr.EncoderDecoder(9, 9, 0, 8, 16, 2),
    "model heads": lambda: tr.make_model(9, 9, 1, 8, 16, 3),
    "longer than the codes": lambda: tr.EncoderDecoder(9, 9, 1, 8, 16, 2, max_length=1)(ROW, ROW),
    "shared between sizes": lambda: tr.make_model(9, 10, 1, 8, 16, 2, tie_embeddings=True),
    "one column": lambda: tr.shift_targets(ROW[:, :1]),
    "no tokens in a batch": lambda: tr.token_batches([], 0),
    "long source": lambda: tr.token_batches([(2, 2), (5, 2)], 4),
    "long target": lambda: tr.token_batches([(2, 5), (2, 2)], 4),
    "negative smoothing": lambda: tr.label_smoothing_loss(LOG_PROBS, ROWS, -0.1),
    "smoothing of 1": lambda: tr.label_smoothing_loss(LOG_PROBS, ROWS, 1.0),
    "smoothing nan": lambda: tr.label_smoothing_loss(LOG_PROBS, ROWS, math.nan),
    "only padding": lambda: tr.label_smoothing_loss(LOG_PROBS, torch.zeros_like(ROWS)),
    "only other padding": lambda: tr.label_smoothing_loss(LOG_PROBS, ROWS * 0 + 3, pad=3),
    "rate of step 0": lambda: tr.learning_rate(0),
    "no warm-up": lambda: tr.learning_rate(1, warmup_steps=0),
    "Adam at step 0": lambda: tr.adam_step(*torch.zeros(4, 2), 0, 0.1),
    "greedy length": lambda: tr.greedy_decode(table_model(), ROW % 3, 0),
    "beam batch": lambda: tr.beam_search(table_model(), ROWS % 3, 2, 3),
    "beam empty batch": lambda: tr.beam_search(table_model(), ROWS[:0], 2, 3),
    "beam size": lambda: tr.beam_search(table_model(), ROW % 3, 0, 3),
    "beam length": lambda: tr.beam_search(table_model(), ROW % 3, 2, 0),
    "beam alpha": lambda: tr.beam_search(table_model(), ROW % 3, 2, 3, -0.1),
    "cached beam of 0": lambda: tr.cached_beam_search(transformer(), ROW, 0, 3),
    "cached beam's length": lambda: tr.cached_beam_search(transformer(), ROW, 1, 0),
    "cached beam's alpha": lambda: tr.cached_beam_search(transformer(), ROW, 1, 1, -0.1),
    "cached length": lambda: tr.cached_greedy_decode(transformer(), ROW, 0),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_input_is_refused_in_one_sentence(case):
    with pytest.raises(ValueError, match=r"\A[^\n]+\Z") as caught:
        REFUSALS[case]()
    assert 15 < len(str(caught.value)) < 150
    # A sentence of ours, not one that PyTorch or Python raised on the way.
    assert Path(caught.traceback[-1].path).parent == SOURCE


def test_a_sentence_that_is_too_long_is_named():
    with pytest.raises(ValueError, match="sentence 1 "):
        tr.token_batches([(2, 2), (5, 2), (1, 1)], 4)
    with pytest.raises(ValueError, match="sentence 0 "):
        tr.token_batches([(2, 5), (2, 2)], 4)


# ------------------------------------------------------------------------- the file as a notebook


def filled(module: nn.Module, **values: Iterable) -> nn.Module:
    """The module in float64 with these numbers for the parameters named, 0 for the others."""
    module = module.double().eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            value = values.get(name.replace(".", "_"), 0.0)
            parameter.copy_(torch.as_tensor(value, dtype=torch.float64))
    return module


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def about(values: Tensor) -> list:
    return pytest.approx(values.flatten().tolist(), abs=1e-4)


def test_the_examples_about_layers_are_right():
    table = torch.zeros(6, 4)
    table[5] = torch.tensor([0.5, -0.5, 1, 0])
    embeddings = filled(tr.Embeddings(6, 4), lut_weight=table)
    assert embeddings(torch.tensor([[5]])).tolist() == [[[1, -1, 2, 0]]]

    eye = torch.eye(2)
    attention = filled(tr.MultiHeadAttention(2, 1), v_proj_weight=eye, out_proj_weight=eye)
    value = torch.tensor([[[2, 0], [4, 2], [9, 9]]]).double()
    mask = torch.tensor([[[True, True, False]]])
    out = attention(torch.randn(1, 4, 2).double(), value, value, mask)
    assert out.flatten().tolist() == about(numbers(3, 1).expand(4, 2))

    mask = tr.pad_mask(torch.tensor([[5, 6, 0], [7, 0, 0]]))
    assert mask.shape == (2, 1, 3)
    assert mask.long().tolist() == [[[1, 1, 0]], [[1, 0, 0]]]
    assert tr.subsequent_mask(3)[0].long().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    std_mask = tr.make_std_mask(torch.tensor([[1, 5, 0]]))
    assert std_mask.long().tolist() == [[[1, 0, 0], [1, 1, 0], [1, 1, 0]]]

    norm = tr.LayerNorm(2).double()
    assert norm(numbers(1, 3)).tolist() == about(numbers(-1, 1))
    assert norm(numbers(5, 5)).tolist() == [0, 0]
    network = filled(
        tr.PositionwiseFeedForward(1, 2), w_1_weight=[[1.0], [-1.0]], w_2_weight=[[1.0, 1.0]]
    )
    assert network(numbers(-3)).tolist() == [3]
    block = filled(tr.ResidualBlock(2), w_1_weight=eye, w_2_weight=eye)
    assert block(numbers(-1, 2)).tolist() == [0, 4]
    assert filled(tr.ResidualBlock(2))(numbers(-1, 2)).tolist() == [0, 2]
    for norm_first, expected in ((False, (-1, 1)), (True, (-1, 5))):
        connection = tr.SublayerConnection(2, norm_first=norm_first).double()
        out = connection(numbers(1, 3), lambda z: 2 * z)
        assert out.tolist() == about(numbers(*expected))

    layers = tr.clones(nn.Linear(2, 2), 3)
    assert len(list(layers.parameters())) == 6
    layer = perturbed(tr.EncoderLayer(8, 2, 16))
    x, order = leaf(2, 5, 8), [0, 3, 2, 1, 4]
    close(layer(x[:, order]), layer(x)[:, order])
    for stack, norm_first, count in (
        (tr.Encoder, False, 32),
        (tr.Encoder, True, 34),
        (tr.Decoder, False, 52),
        (tr.Decoder, True, 54),
    ):
        assert len(list(stack(2, 8, 2, 16, norm_first=norm_first).parameters())) == count
    decoder = tr.DecoderLayer(8, 2, 16)
    out = decoder(torch.randn(1, 6, 8), torch.randn(1, 9, 8), torch.ones(1, 1, 9).bool())
    assert out.shape == (1, 6, 8)
    generator = filled(tr.Generator(3, 4))
    assert generator(numbers(1, 2, 3)).tolist() == pytest.approx([-1.386] * 4, abs=5e-4)
    sizes = {"num_layers": 2, "d_model": 16, "d_ff": 32, "num_heads": 2}
    assert size(tr.make_model(11, 11, **sizes)) == 11675
    assert size(tr.make_model(11, 11, **sizes, tie_embeddings=True)) == 11323 == 11675 - 2 * 11 * 16


def counter_example() -> TableModel:
    """After 4 or 5 (0.6, 0.4) an end with 0.5 or 0.95."""
    table = torch.zeros(1, 2, 8, 8, dtype=torch.float64)
    table[0, 0, BOS, 4], table[0, 0, BOS, 5] = 0.6, 0.4
    table[0, 1, 4, EOS], table[0, 1, 4, 6], table[0, 1, 4, 7] = 0.5, 0.25, 0.25
    table[0, 1, 5, EOS], table[0, 1, 5, 6] = 0.95, 0.05
    return TableModel(table.log())


def test_the_examples_about_training_and_decoding_are_right():
    tgt_in, tgt_out, count = tr.shift_targets(torch.tensor([[1, 5, 6, 2], [1, 7, 2, 0]]))
    assert tgt_in.tolist() == [[1, 5, 6], [1, 7, 2]]
    assert tgt_out.tolist() == [[5, 6, 2], [7, 2, 0]]
    assert count == 5
    assert tr.token_batches([(3, 4), (1, 1), (9, 2), (3, 3)], 9) == [[1, 3], [0], [2]]
    log_probs = numbers(0.1, 0.7, 0.1, 0.1).log()[None, None]
    one = torch.ones(1, 1, dtype=torch.int64)
    assert tr.label_smoothing_loss(log_probs, one).item() == pytest.approx(0.503, abs=5e-4)
    assert tr.label_smoothing_loss(log_probs, one, 0.0).item() == pytest.approx(0.357, abs=5e-4)
    assert f"{tr.learning_rate(1):.2e}" == "1.75e-07"
    assert f"{tr.learning_rate(4000):.2e}" == "6.99e-04"
    assert tr.learning_rate(16000) == pytest.approx(tr.learning_rate(4000) / 2)
    zero = numbers(0.0)
    new, first, second = tr.adam_step(numbers(1.0), numbers(0.5), zero, zero, 1, 0.1)
    assert [new.item(), first.item(), second.item()] == pytest.approx([0.9, 0.05, 0.005])
    new, _, _ = tr.adam_step(numbers(1.0), numbers(50.0), zero, zero, 1, 0.1)
    assert new.item() == pytest.approx(0.9)
    model = transformer()
    before = [p.clone() for p in model.parameters()]
    src, tgt = ids_of_lengths([5, 3], 11), ids_of_lengths([6, 4], 13, BOS)
    tr.train_step(model, src, tgt, {}, 1, 0.01)
    moved = torch.cat(
        [(a - b).abs().flatten() for a, b in zip(model.parameters(), before, strict=True)]
    )
    assert moved.max() <= 0.01 * (1 + 1e-9)
    assert moved.quantile(0.9) > 0.0099

    model, source = counter_example(), torch.zeros(1, 1, dtype=torch.int64)
    assert tr.greedy_decode(model, source, 5).tolist() == [[4, 2]]
    same_hypotheses(tr.beam_search(model, source, 1, 2, 0.0), [([4, 2], math.log(0.30))])
    best = [([5, 2], math.log(0.38)), ([4, 2], math.log(0.30))]
    assert [round(score, 3) for _, score in best] == [-0.968, -1.204]
    same_hypotheses(tr.beam_search(model, source, 2, 2, 0.0), best)
    shorter = [(ids, score / 1.097) for ids, score in best]
    for (ids, score), (wanted, expected) in zip(
        tr.beam_search(model, source, 2, 2), shorter, strict=True
    ):
        assert ids == wanted
        assert score == pytest.approx(expected, rel=1e-3)

    model = tr.make_model(11, 13, 2, 8, 16, 2).eval()
    cache = tr.start_cache(model, ids_of_lengths([5, 2, 3], 11))
    assert [layer.keys.shape for layer in cache.memory.layers] == [(3, 2, 5, 4)] * 2
    assert [layer.values.shape for layer in cache.target.layers] == [(3, 2, 0, 4)] * 2
    source = ids_of_lengths([5], 11)
    cache = tr.start_cache(model, source)
    expected = model(source, torch.tensor([[1, 5, 6]]))
    for t, token in enumerate((1, 5, 6)):
        log_probs, cache = tr.decode_step(model, torch.tensor([token]), cache)
        close(log_probs, expected[:, t])


def forbidden(name: str) -> list[str]:
    """What the cell of an exercise says must not be called."""
    return exercise_cells(SOURCE)[name].metadata["forbids"].split()


WAYS_ROUND = {
    "nn.LayerNorm": lambda x: nn.LayerNorm(4)(x),
    "F.layer_norm": lambda x: F.layer_norm(x, (4,)),
    "torch.native_layer_norm": lambda x: torch.native_layer_norm(x, (4,), None, None, 1e-5)[0],
    "nn.GroupNorm": lambda x: nn.GroupNorm(1, 4)(x),
    "F.instance_norm": lambda x: F.instance_norm(x[None]),
    "nn.BatchNorm1d": lambda x: nn.BatchNorm1d(3)(x.T[:3].T[:, :, None]),
    "F.rms_norm": lambda x: F.rms_norm(x - x.mean(-1, keepdim=True), (4,)),
}


@pytest.mark.parametrize("way", WAYS_ROUND)
def test_torchs_norms_are_refused_where_layer_norm_is_to_be_written(way):
    x = torch.randn(5, 4)
    with Refusal(forbidden("LayerNorm")) as refusal:
        with pytest.raises(ForbiddenCall):
            WAYS_ROUND[way](x)
        assert refusal.take()
        tr.LayerNorm(4)(x)
        assert refusal.take() == []
