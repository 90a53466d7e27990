"""The attention reference against implementations written by others, in value and gradient."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from solutions import attention
from tests.solutions.common import DTYPES, close, same_with_gradients, within_rate

INF = float("inf")


def fill(scores: Tensor, mask: Tensor | None) -> Tensor:
    return scores if mask is None else torch.where(mask, scores, torch.full_like(scores, -INF))


# ---------------------------------------------------------------------------------------- scores


def pairwise(score: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """The scores of all pairs by three loops, from a function of one query and one key."""

    def scores(query: Tensor, key: Tensor) -> Tensor:
        return torch.stack(
            [
                torch.stack([torch.stack([score(q, k) for k in keys]) for q in queries])
                for queries, keys in zip(query, key, strict=True)
            ]
        )

    return scores


SCORES = {
    "dot": (attention.DotScore, {}, lambda m: lambda q, k: q.dot(k)),
    "bilinear": (
        attention.BilinearScore,
        {"query_dim": 4, "key_dim": 3},
        lambda m: lambda q, k: F.bilinear(q[None], k[None], m.weight[None])[0, 0],
    ),
    "additive": (
        attention.AdditiveScore,
        {"query_dim": 4, "key_dim": 3, "hidden_dim": 5},
        lambda m: (
            lambda q, k: torch.dot(
                m.energy.weight[0],
                torch.tanh(
                    torch.mv(m.query_projection.weight, q) + torch.mv(m.key_projection.weight, k)
                ),
            )
        ),
    ),
    "concat": (
        attention.ConcatScore,
        {"query_dim": 4, "key_dim": 3, "hidden_dim": 5},
        lambda m: (
            lambda q, k: torch.dot(
                m.energy.weight[0],
                torch.tanh(
                    torch.mv(m.projection.weight[:, :4], q)
                    + torch.mv(m.projection.weight[:, 4:], k)
                ),
            )
        ),
    ),
}


@DTYPES
@pytest.mark.parametrize("name", SCORES)
def test_scores_equal_the_formula_pair_by_pair(name, dtype):
    cls, options, formula = SCORES[name]
    module = cls(**options).to(dtype)
    query, key = torch.randn(2, 3, 4, dtype=dtype), torch.randn(2, 5, 3, dtype=dtype)
    if name == "dot":
        key = torch.randn(2, 5, 4, dtype=dtype)
    same_with_gradients(module, pairwise(formula(module)), [query, key], list(module.parameters()))


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("shape", [(2, 3, 5), (3, 5), (2, 1, 5), (5,), (1, 3, 1)])
def test_scores_are_minus_infinity_exactly_where_masked(name, shape):
    cls, options, _ = SCORES[name]
    module = cls(**options)
    query, key = torch.randn(2, 3, 4), torch.randn(2, 5, 4 if name == "dot" else 3)
    mask = torch.rand(shape) < 0.5
    scores = module(query, key, mask)
    assert torch.equal(scores, fill(module(query, key), mask.expand(2, 3, 5)))


PARAMETERS = {
    attention.DotScore: ({}, {}),
    attention.BilinearScore: ({"query_dim": 4, "key_dim": 3}, {"weight": (4, 3)}),
    attention.AdditiveScore: (
        {"query_dim": 4, "key_dim": 3, "hidden_dim": 5},
        {
            "query_projection.weight": (5, 4),
            "key_projection.weight": (5, 3),
            "energy.weight": (1, 5),
        },
    ),
    attention.ConcatScore: (
        {"query_dim": 4, "key_dim": 3, "hidden_dim": 5},
        {"projection.weight": (5, 7), "energy.weight": (1, 5)},
    ),
    attention.AttentionDecoderStep: (
        {"embed_dim": 2, "hidden_size": 4, "annotation_dim": 3, "attention_dim": 5},
        {
            "score.query_projection.weight": (5, 4),
            "score.key_projection.weight": (5, 3),
            "score.energy.weight": (1, 5),
            "cell.weight_ih": (12, 5),
            "cell.weight_hh": (12, 4),
            "cell.bias_ih": (12,),
            "cell.bias_hh": (12,),
        },
    ),
    attention.SelfAttention: (
        {"input_dim": 6, "head_dim": 4},
        {f"{n}_proj.weight": (4, 6) for n in "qkv"},
    ),
    attention.MaskedSelfAttention: (
        {"input_dim": 6, "head_dim": 4},
        {f"{n}_proj.weight": (4, 6) for n in "qkv"},
    ),
    attention.MultiHeadAttention: (
        {"d_model": 6, "num_heads": 2},
        {f"{n}_proj.weight": (6, 6) for n in ("q", "k", "v", "out")}
        | {f"{n}_proj.bias": (6,) for n in ("q", "k", "v", "out")},
    ),
    attention.FusedMultiHeadAttention: (
        {"input_dim": 5, "d_model": 6, "num_heads": 2},
        {
            "qkv_proj.weight": (18, 5),
            "qkv_proj.bias": (18,),
            "o_proj.weight": (6, 6),
            "o_proj.bias": (6,),
        },
    ),
    attention.PerHeadAttention: (
        {"d_model": 6, "num_heads": 2},
        {"w_q": (2, 6, 3), "w_k": (2, 6, 3), "w_v": (2, 6, 3), "w_o": (2, 3, 6)},
    ),
    attention.CrossAttention: (
        {"query_dim": 5, "memory_dim": 7, "d_model": 6, "num_heads": 2},
        {
            "q_proj.weight": (6, 5),
            "k_proj.weight": (6, 7),
            "v_proj.weight": (6, 7),
            "out_proj.weight": (5, 6),
            "q_proj.bias": (6,),
            "k_proj.bias": (6,),
            "v_proj.bias": (6,),
            "out_proj.bias": (5,),
        },
    ),
}


@pytest.mark.parametrize("cls", PARAMETERS, ids=lambda cls: cls.__name__)
def test_modules_have_exactly_the_named_parameters(cls):
    options, shapes = PARAMETERS[cls]
    module = cls(**options)
    assert {name: tuple(p.shape) for name, p in module.named_parameters()} == shapes
    assert set(module.state_dict()) == set(shapes)
    for name, parameter in module.named_parameters():
        assert parameter.std() > 0, f"{name} starts constant"


def test_dot_score_refuses_different_widths():
    with pytest.raises(ValueError, match="3"):
        attention.DotScore()(torch.randn(1, 2, 3), torch.randn(1, 2, 4))


def test_the_linear_concatenation_score_would_ignore_the_query_and_tanh_does_not():
    module = attention.ConcatScore(4, 3, 5)
    query, key = torch.randn(1, 2, 4), torch.randn(1, 6, 3)
    weights = attention.masked_softmax(module(query, key))
    assert not torch.allclose(weights[0, 0], weights[0, 1], atol=1e-4)


# ---------------------------------------------------------------------------- softmax and context


@DTYPES
@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2])
def test_masked_softmax_equals_torch(dtype, dim):
    scores = 3 * torch.randn(3, 4, 5, dtype=dtype)
    same_with_gradients(
        lambda s: attention.masked_softmax(s, dim=dim), lambda s: torch.softmax(s, dim), [scores]
    )
    mask = torch.rand(3, 4, 5) < 0.6
    mask.select(dim, 0).fill_(True)
    same_with_gradients(
        lambda s: attention.masked_softmax(s, mask, dim),
        lambda s: torch.softmax(fill(s, mask), dim),
        [scores],
    )


@pytest.mark.parametrize("shape", [(5,), (1,), (4, 5), (4, 1), (1, 5), (3, 1, 5), (1, 4, 5), ()])
def test_masked_softmax_broadcasts_the_mask(shape):
    scores = torch.randn(3, 4, 5)
    mask = torch.rand(shape) < 0.7
    full = mask.expand(3, 4, 5)
    expected = torch.softmax(fill(scores, full), -1).nan_to_num(0.0)
    close(attention.masked_softmax(scores, mask), expected)


@DTYPES
def test_fully_masked_slices_are_zero_with_finite_gradient(dtype):
    scores = torch.randn(2, 3, 4, dtype=dtype, requires_grad=True)
    mask = torch.rand(2, 3, 4) < 0.7
    mask[0, 1] = False
    mask[1, 0, 0] = True
    weights = attention.masked_softmax(scores, mask)
    assert torch.equal(weights[0, 1], torch.zeros(4, dtype=dtype))
    (weights * torch.randn(2, 3, 4, dtype=dtype)).sum().backward()
    assert scores.grad.isfinite().all()
    assert torch.equal(scores.grad[0, 1], torch.zeros(4, dtype=dtype))
    assert torch.equal(scores.grad[~mask], torch.zeros((~mask).sum(), dtype=dtype))
    assert scores.grad[1, 0].abs().sum() > 0 or mask[1, 0].sum() == 1


def test_minus_infinity_counts_as_masked():
    scores = torch.tensor([[1.0, -INF, 2.0], [-INF, -INF, -INF]], requires_grad=True)
    weights = attention.masked_softmax(scores)
    close(weights[0].detach(), torch.tensor([1 / (1 + math.e), 0.0, math.e / (1 + math.e)]))
    assert torch.equal(weights[1], torch.zeros(3))
    (weights * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert scores.grad.isfinite().all()
    combined = attention.masked_softmax(
        torch.tensor([1.0, -INF, 2.0]), torch.tensor([True, True, False])
    )
    assert combined.tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("offset", [1e4, -1e4, 1e30, -1e30])
def test_huge_scores_do_not_overflow(offset):
    scores = torch.tensor([[offset, offset, offset], [offset, 0.0, -offset]])
    mask = torch.tensor([[True, True, False]])
    weights = attention.masked_softmax(scores, mask)
    assert weights[0].tolist() == [0.5, 0.5, 0.0]
    assert weights[1].tolist() == ([1.0, 0.0, 0.0] if offset > 0 else [0.0, 1.0, 0.0])


def test_nothing_leaks_from_masked_entries():
    for leak in (INF, -INF, float("nan"), 1e30):
        scores = torch.tensor([0.0, 1.0, leak], requires_grad=True)
        weights = attention.masked_softmax(scores, torch.tensor([True, True, False]))
        close(weights.detach(), torch.tensor([1 / (1 + math.e), math.e / (1 + math.e), 0.0]))
        weights[0].backward()
        assert scores.grad.isfinite().all()
        assert scores.grad[2] == 0.0


def test_masked_softmax_passes_gradcheck():
    mask = torch.tensor([[True, False, True, True], [False] * 4, [False, True, False, False]])
    scores = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: attention.masked_softmax(s, mask), scores)


@pytest.mark.parametrize(
    "mask",
    [
        torch.ones(2, 3),
        torch.ones(2, 3, dtype=torch.int64),
        torch.ones(2, 4, dtype=torch.bool),
        torch.ones(3, 1, dtype=torch.bool),
        torch.ones(5, 2, 3, dtype=torch.bool),
        torch.ones(1, 2, 3, dtype=torch.bool),
    ],
    ids=["float", "int", "wrong keys", "wrong queries", "larger", "more dimensions"],
)
def test_masked_softmax_refuses_masks_that_do_not_fit(mask):
    with pytest.raises(ValueError, match="mask"):
        attention.masked_softmax(torch.randn(2, 3), mask)


@DTYPES
def test_context_vector_is_the_weighted_sum(dtype):
    weights, values = torch.rand(2, 3, 4, dtype=dtype), torch.randn(2, 4, 5, dtype=dtype)
    same_with_gradients(
        attention.context_vector,
        lambda w, v: torch.einsum("bij,bjd->bid", w, v),
        [weights, values],
    )


def test_context_vector_refuses_another_number_of_values():
    with pytest.raises(ValueError, match="4"):
        attention.context_vector(torch.rand(2, 3, 4), torch.randn(2, 5, 4))


# -------------------------------------------------------------------------------- decoder step


@DTYPES
@pytest.mark.parametrize("masked", [False, True])
def test_decoder_step_equals_the_formulas_of_attention_and_gru(dtype, masked):
    step = attention.AttentionDecoderStep(3, 4, 5, 6).to(dtype)
    y, s, h = (torch.randn(*n, dtype=dtype) for n in [(2, 3), (2, 4), (2, 7, 5)])
    mask = torch.tensor([[True] * 5 + [False] * 2, [True] * 7]) if masked else None

    def by_hand(y: Tensor, s: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        score, cell = step.score, step.cell
        states, contexts, weights = [], [], []
        for b in range(2):
            e = torch.stack(
                [
                    (
                        score.energy.weight[0]
                        * torch.tanh(
                            score.query_projection.weight @ s[b]
                            + score.key_projection.weight @ h[b, j]
                        )
                    ).sum()
                    for j in range(7)
                ]
            )
            alpha = torch.softmax(e if mask is None else fill(e, mask[b]), 0)
            c = sum(alpha[j] * h[b, j] for j in range(7))
            gi = cell.weight_ih @ torch.cat([y[b], c]) + cell.bias_ih
            gh = cell.weight_hh @ s[b] + cell.bias_hh
            r = torch.sigmoid(gi[0:4] + gh[0:4])
            z = torch.sigmoid(gi[4:8] + gh[4:8])
            n = torch.tanh(gi[8:12] + r * gh[8:12])
            states.append((1 - z) * n + z * s[b])
            contexts.append(c)
            weights.append(alpha)
        return torch.stack(states), torch.stack(contexts), torch.stack(weights)

    same_with_gradients(
        lambda *inputs: step(*inputs, mask), by_hand, [y, s, h], list(step.parameters())
    )


def test_decoder_step_with_no_source_at_all_has_context_zero():
    step = attention.AttentionDecoderStep(3, 4, 5, 6)
    y, s, h = torch.randn(2, 3), torch.randn(2, 4), torch.randn(2, 7, 5, requires_grad=True)
    mask = torch.tensor([[False] * 7, [True] * 7])
    state, context, weights = step(y, s, h, mask)
    assert torch.equal(weights[0], torch.zeros(7))
    assert torch.equal(context[0], torch.zeros(5))
    close(state[0], step.cell(torch.cat([y[0], torch.zeros(5)])[None], s[:1])[0])
    state.sum().backward()
    assert h.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in step.parameters())


# ------------------------------------------------------------------------------------- dropout


@pytest.mark.parametrize("p", [0.002, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dropout_drops_at_rate_p_and_enlarges_the_rest(p, dtype):
    weights = torch.rand(4, 5, 100, 100).add(0.5).to(dtype)
    dropped = attention.attention_dropout(weights, p, True)
    assert dropped.dtype == dtype
    gone = dropped == 0
    assert within_rate(int(gone.sum()), weights.numel(), p)
    close(dropped[~gone], (weights / (1 - p))[~gone])


def test_dropout_draws_every_element_for_itself():
    ones = torch.ones(100, 100, 100)
    gone = attention.attention_dropout(ones, 0.5, True) == 0
    for dim in range(3):  # Neighbours agree half the time along every dimension.
        agree = gone.narrow(dim, 0, 99) == gone.narrow(dim, 1, 99)
        assert within_rate(int(agree.sum()), agree.numel(), 0.5)


def test_dropout_follows_the_seed_and_differs_between_calls():
    weights = torch.rand(50, 50)
    torch.manual_seed(3)
    first, second = (attention.attention_dropout(weights, 0.5, True) for _ in range(2))
    torch.manual_seed(3)
    assert torch.equal(attention.attention_dropout(weights, 0.5, True), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize(("p", "training"), [(0.0, True), (0.0, False), (0.7, False), (1.0, False)])
def test_dropout_is_the_identity_unless_training(p, training):
    weights = torch.rand(3, 4)
    assert torch.equal(attention.attention_dropout(weights, p, training), weights)


def test_dropout_of_everything_is_zero_and_differentiable():
    weights = torch.rand(3, 4, requires_grad=True)
    dropped = attention.attention_dropout(weights, 1.0, True)
    assert torch.equal(dropped, torch.zeros(3, 4))
    dropped.sum().backward()
    assert torch.equal(weights.grad, torch.zeros(3, 4))


def test_dropout_gradient_is_the_same_pattern():
    weights = torch.rand(30, 30).add(0.1).requires_grad_()
    dropped = attention.attention_dropout(weights, 0.25, True)
    dropped.sum().backward()
    close(weights.grad, (dropped != 0) / 0.75)


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan"), INF])
@pytest.mark.parametrize("training", [True, False])
def test_dropout_refuses_a_p_that_is_no_probability(p, training):
    with pytest.raises(ValueError, match="between 0 and 1"):
        attention.attention_dropout(torch.rand(2, 2), p, training)


# ------------------------------------------------------------------- scaled dot-product attention

LEADING = pytest.mark.parametrize("leading", [(), (2,), (2, 3), (2, 1, 3)], ids=str)


def qkv(leading: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [torch.randn(*leading, *s, dtype=dtype) for s in [(4, 6), (5, 6), (5, 3)]]


@DTYPES
@LEADING
@pytest.mark.parametrize("masked", ["none", "keys", "pairs", "leading", "causal"])
def test_attention_equals_torch(dtype, leading, masked):
    q, k, v = qkv(leading, dtype)
    mask = {
        "none": None,
        "keys": torch.tensor([True, False, True, True, False]),
        "pairs": torch.rand(4, 5) < 0.6,
        "leading": torch.rand(*leading, 1, 5) < 0.6,
        "causal": torch.ones(4, 5, dtype=torch.bool).tril(),
    }[masked]
    full = mask
    if mask is not None:
        mask[..., 0] = True
        full = mask.expand(*leading, 4, 5)  # PyTorch itself refuses a mask of one dimension.
    same_with_gradients(
        lambda *t: attention.scaled_dot_product_attention(*t, mask)[0],
        lambda *t: F.scaled_dot_product_attention(*t, attn_mask=full),
        [q, k, v],
    )


@LEADING
def test_weights_apply_to_any_value(leading):
    q, k, v = qkv(leading)
    output, weights = attention.scaled_dot_product_attention(q, k, v)
    identity = torch.eye(5, dtype=v.dtype).expand(*leading, 5, 5)
    close(weights, F.scaled_dot_product_attention(q, k, identity))
    close(output, weights @ v)
    close(weights.sum(-1), torch.ones(*leading, 4, dtype=v.dtype))


@DTYPES
def test_fully_masked_rows_give_zero_and_the_others_what_torch_gives(dtype):
    q, k, v = (t.requires_grad_() for t in qkv((2,), dtype))
    mask = torch.rand(2, 4, 5) < 0.6
    mask[..., 0] = True
    mask[:, 2] = False
    rows = [0, 1, 3]
    output, weights = attention.scaled_dot_product_attention(q, k, v, mask)
    assert torch.equal(output[:, 2], torch.zeros(2, 3, dtype=dtype))
    assert torch.equal(weights[:, 2], torch.zeros(2, 5, dtype=dtype))
    expected = F.scaled_dot_product_attention(q[:, rows], k, v, attn_mask=mask[:, rows])
    close(output[:, rows], expected)
    seed = torch.randn(2, 4, 3, dtype=dtype)
    ours = torch.autograd.grad((output * seed).sum(), (q, k, v))
    theirs = torch.autograd.grad((expected * seed[:, rows]).sum(), (q, k, v))
    for a, b in zip(ours, theirs, strict=True):
        close(a, b)


def test_everything_masked_is_zero_with_finite_gradients():
    q, k, v = (t.requires_grad_() for t in qkv((2,)))
    output, weights = attention.scaled_dot_product_attention(
        q, k, v, torch.zeros(4, 5, dtype=torch.bool)
    )
    assert torch.equal(output, torch.zeros_like(output))
    assert torch.equal(weights, torch.zeros_like(weights))
    output.sum().backward()
    assert all(torch.equal(t.grad, torch.zeros_like(t)) for t in (q, k, v))


def test_attention_accepts_other_memory_layouts():
    q = torch.randn(6, 4, 2).permute(2, 1, 0)
    k = torch.randn(5, 2, 6).transpose(0, 1)
    v = torch.randn(1, 5, 3).expand(2, 5, 3)
    close(
        attention.scaled_dot_product_attention(q, k, v)[0],
        F.scaled_dot_product_attention(q, k, v),
    )


def test_attention_returns_weights_before_dropout_and_uses_them_after():
    q, k = torch.randn(2, 50, 8), torch.randn(2, 40, 8)
    v = torch.eye(40).expand(2, 40, 40)  # The output is then the weights used.
    used, weights = attention.scaled_dot_product_attention(q, k, v, dropout=0.25, training=True)
    _, plain = attention.scaled_dot_product_attention(q, k, v)
    assert torch.equal(weights, plain)
    gone = used == 0
    assert within_rate(int(gone.sum()), gone.numel(), 0.25)
    close(used[~gone], (plain / 0.75)[~gone])
    unused, _ = attention.scaled_dot_product_attention(q, k, v, dropout=0.25)
    close(unused, plain)


@pytest.mark.parametrize(
    ("shapes", "mask"),
    [
        (((2, 3, 4), (2, 5, 6), (2, 5, 4)), None),
        (((2, 3, 4), (2, 5, 4), (2, 6, 4)), None),
        (((2, 3, 4), (2, 5, 4), (2, 5, 4)), torch.ones(3, 5)),
        (((2, 3, 4), (2, 5, 4), (2, 5, 4)), torch.ones(3, 4, dtype=torch.bool)),
    ],
    ids=["widths", "lengths", "mask type", "mask shape"],
)
def test_attention_refuses_what_does_not_fit(shapes, mask):
    with pytest.raises(ValueError, match=r"wide|values|mask"):
        attention.scaled_dot_product_attention(*(torch.randn(s) for s in shapes), mask)


def test_the_documents_example_with_seed_42():
    """Document 001, section 1: rounded 3x2 matrices, computed by hand and by the program."""
    torch.manual_seed(42)
    q, k, v = (torch.randn(3, 2).round(decimals=1) for _ in range(3))
    output, weights = attention.scaled_dot_product_attention(q, k, v)
    assert [round(x, 3) for x in weights[0].tolist()] == [0.398, 0.296, 0.306]
    assert [round(x, 3) for x in output[0].tolist()] == [0.540, -0.136]
    rows = []
    for i in range(3):
        e = [sum(q[i, d].item() * k[j, d].item() for d in range(2)) / 2**0.5 for j in range(3)]
        total = sum(math.exp(x) for x in e)
        rows.append([math.exp(x) / total for x in e])
    close(weights, torch.tensor(rows))


def test_scores_of_independent_components_have_variance_one_after_scaling():
    """Var(q.k) = d_k, and the weights come from scores divided by its root."""
    d_k = 256
    q, k = torch.randn(1, 400, d_k), torch.randn(1, 400, d_k)
    raw = attention.DotScore()(q, k)
    _, weights = attention.scaled_dot_product_attention(q, k, k)
    assert raw.var().item() == pytest.approx(d_k, rel=0.1)
    scaled = weights.log() - weights.log().mean(-1, keepdim=True)
    assert scaled.var().item() == pytest.approx(1.0, rel=0.1)


# --------------------------------------------------------------------------------------- masks


@pytest.mark.parametrize("length", [1, 2, 7])
def test_causal_mask_is_true_up_to_the_diagonal(length):
    mask = attention.causal_mask(length)
    assert mask.dtype == torch.bool
    assert mask.tolist() == [[j <= i for j in range(length)] for i in range(length)]


@pytest.mark.parametrize("length", [0, -1, 2.0, "3", None, torch.tensor(3)], ids=repr)
def test_causal_mask_refuses_what_is_no_length(length):
    with pytest.raises(ValueError, match="length"):
        attention.causal_mask(length)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("max_length", [None, 4, 6])
def test_padding_and_decoder_mask_by_definition(dtype, max_length):
    counts = [2, 0, 4, 1]
    lengths = torch.tensor(counts, dtype=dtype)
    size = max_length or 4
    padding = attention.padding_mask(lengths, max_length)
    assert padding.dtype == torch.bool
    assert padding.tolist() == [[[j < n for j in range(size)]] for n in counts]
    both = attention.decoder_mask(lengths, max_length)
    assert both.dtype == torch.bool
    assert both.tolist() == [
        [[j <= i and j < n for j in range(size)] for i in range(size)] for n in counts
    ]


@pytest.mark.parametrize("function", [attention.padding_mask, attention.decoder_mask])
@pytest.mark.parametrize(
    ("lengths", "max_length"),
    [
        (torch.tensor([1, -1]), None),
        (torch.tensor([1, -1]), 4),
        (torch.tensor([1, 5]), 4),
        (torch.tensor([1.0, 2.0]), None),
        (torch.tensor([True, True]), None),
    ],
    ids=["negative", "negative with room", "too long", "float", "bool"],
)
def test_padding_mask_refuses_impossible_lengths(function, lengths, max_length):
    with pytest.raises(ValueError, match="lengths"):
        function(lengths, max_length)


def test_padded_keys_get_no_weight():
    lengths = torch.tensor([2, 5])
    x = torch.randn(2, 5, 8)
    _, weights = attention.scaled_dot_product_attention(x, x, x, attention.padding_mask(lengths))
    assert torch.equal(weights[0, :, 2:], torch.zeros(5, 3))
    assert (weights[1] > 0).all()


# -------------------------------------------------------------------------------- self-attention


@DTYPES
def test_self_attention_equals_torch_on_the_projections(dtype):
    module = attention.SelfAttention(6, 4).to(dtype)
    x = torch.randn(3, 5, 6, dtype=dtype)
    mask = torch.rand(3, 5, 5) < 0.6
    mask[..., 0] = True

    def theirs(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        q, k, v = (x @ getattr(module, f"{n}_proj").weight.T for n in "qkv")
        identity = torch.eye(5, dtype=dtype).expand(3, 5, 5)
        return (
            F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
            F.scaled_dot_product_attention(q, k, identity, attn_mask=mask),
        )

    for m in (None, mask, mask[0], mask[:, :1]):
        same_with_gradients(
            lambda x, m=m: module(x, m),
            lambda x, m=m: theirs(x, m),
            [x],
            list(module.parameters()),
        )


@DTYPES
def test_masked_self_attention_equals_torch_with_is_causal(dtype):
    module = attention.MaskedSelfAttention(6, 4).to(dtype)
    x = torch.randn(3, 5, 6, dtype=dtype)
    same_with_gradients(
        lambda x: module(x)[0],
        lambda x: F.scaled_dot_product_attention(
            *(F.linear(x, getattr(module, f"{n}_proj").weight) for n in "qkv"), is_causal=True
        ),
        [x],
        list(module.parameters()),
    )


def test_masked_self_attention_hides_padding_too():
    module = attention.MaskedSelfAttention(6, 4)
    plain = attention.SelfAttention(6, 4)
    plain.load_state_dict(module.state_dict())
    x = torch.randn(2, 5, 6)
    padding = torch.tensor([[True, True, True, False, False], [False, False, True, True, True]])
    output, weights = module(x, padding)
    mask = torch.ones(5, 5, dtype=torch.bool).tril() & padding[:, None, :]
    for a, b in zip((output, weights), plain(x, mask), strict=True):
        close(a, b)
    # Padded on the left: the first two queries have nobody to attend to.
    assert torch.equal(output[1, :2], torch.zeros(2, 4))
    close(weights.sum(-1), torch.tensor([[1.0] * 5, [0, 0, 1, 1, 1]]))


@pytest.mark.parametrize("position", range(5))
def test_the_future_is_hidden_in_value_and_gradient(position):
    module = attention.MaskedSelfAttention(6, 4)
    x = torch.randn(2, 5, 6, requires_grad=True)
    output, _ = module(x)
    (gradient,) = torch.autograd.grad(output[:, position].sum(), x)
    assert torch.equal(gradient[:, position + 1 :], torch.zeros(2, 4 - position, 6))
    if position:
        assert (gradient[:, : position + 1].abs().sum(-1) > 0).all()
    changed = x.detach().clone()
    changed[:, position + 1 :] = 100 * torch.randn(2, 4 - position, 6)
    assert torch.equal(module(changed)[0][:, : position + 1], output[:, : position + 1])


def permutable() -> dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]]:
    multi, per_head = attention.MultiHeadAttention(8, 2), attention.PerHeadAttention(8, 2)
    return {
        "SelfAttention": attention.SelfAttention(8, 4),
        "MultiHeadAttention": lambda x: multi(x, x, x),
        "FusedMultiHeadAttention": attention.FusedMultiHeadAttention(8, 6, 2),
        "PerHeadAttention": lambda x: per_head(x, x, x),
    }


@pytest.mark.parametrize("name", permutable())
def test_self_attention_is_permutation_equivariant(name):
    function = permutable()[name]
    x, order = torch.randn(2, 6, 8), torch.tensor([3, 0, 5, 1, 4, 2])
    output, weights = function(x)
    moved_output, moved_weights = function(x[:, order])
    close(moved_output, output[:, order])
    close(moved_weights, weights[..., order, :][..., order])
    assert not torch.allclose(moved_output, output, atol=1e-3)


def test_masked_self_attention_is_not_permutation_equivariant():
    module, x = attention.MaskedSelfAttention(8, 4), torch.randn(2, 6, 8)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    assert not torch.allclose(module(x[:, order])[0], module(x)[0][:, order], atol=1e-3)


# ------------------------------------------------------------------------------------ multi-head


@pytest.mark.parametrize("heads", [1, 2, 4, 8])
def test_split_heads_gives_each_head_its_features_and_merge_undoes_it(heads):
    x = torch.randn(3, 5, 8)
    split = attention.split_heads(x, heads)
    width = 8 // heads
    assert split.shape == (3, heads, 5, width)
    for b, h, t, d in itertools.product(range(3), range(heads), range(5), range(width)):
        assert split[b, h, t, d] == x[b, t, h * width + d]
    merged = attention.merge_heads(split)
    assert merged.is_contiguous()
    assert torch.equal(merged, x)
    assert torch.equal(attention.split_heads(attention.merge_heads(split), heads), split)


def test_split_and_merge_accept_other_memory_layouts():
    x = torch.randn(8, 5, 3).permute(2, 1, 0)
    assert torch.equal(attention.split_heads(x, 2), torch.stack([x[..., :4], x[..., 4:]], dim=1))
    swapped, repeated = torch.randn(3, 5, 2, 4).transpose(1, 2), torch.randn(1, 1, 1, 4)
    for heads in (swapped, repeated.expand(3, 1, 5, 4)):
        merged = attention.merge_heads(heads)
        assert merged.is_contiguous()
        assert torch.equal(merged, torch.cat(list(heads.unbind(1)), dim=-1))


def test_split_heads_is_not_a_plain_view():
    x = torch.arange(80.0).reshape(1, 10, 8)
    assert not torch.equal(attention.split_heads(x, 2), x.view(1, 2, 10, 4))


DIVISION = {
    "split_heads": lambda: attention.split_heads(torch.randn(1, 2, 10), 4),
    "MultiHeadAttention": lambda: attention.MultiHeadAttention(10, 4),
    "FusedMultiHeadAttention": lambda: attention.FusedMultiHeadAttention(8, 10, 4),
    "PerHeadAttention": lambda: attention.PerHeadAttention(10, 4),
    "CrossAttention": lambda: attention.CrossAttention(8, 8, 10, 4),
}


@pytest.mark.parametrize("name", DIVISION)
def test_a_width_that_the_heads_do_not_divide_is_refused(name):
    with pytest.raises(ValueError, match="10"):
        DIVISION[name]()


def torch_attention(module: attention.MultiHeadAttention) -> nn.MultiheadAttention:
    """PyTorch's module with the weights of ours."""
    width = module.q_proj.in_features
    theirs = nn.MultiheadAttention(width, module.num_heads, batch_first=True)
    theirs.to(module.q_proj.weight.dtype)
    theirs.load_state_dict(attention.separate_to_torch(module.state_dict()))
    return theirs


def masks(batch: int, heads: int, tq: int, tk: int) -> dict[str, Tensor | None]:
    """One mask of every kind that multi-head attention accepts; key 0 is always real."""
    result = {
        "none": None,
        "pairs": torch.rand(tq, tk) < 0.6,
        "examples": torch.rand(batch, tq, tk) < 0.6,
        "keys": torch.rand(batch, 1, tk) < 0.6,
        "heads": torch.rand(batch, heads, tq, tk) < 0.6,
    }
    for mask in result.values():
        if mask is not None:
            mask[..., 0] = True
    return result


def per_head_mask(mask: Tensor | None, batch: int, heads: int, tq: int, tk: int) -> Tensor | None:
    """The same mask with all four dimensions written out."""
    if mask is None:
        return None
    full = mask if mask.dim() == 4 else mask.reshape(-1, 1, *mask.shape[-2:])
    return full.expand(batch, heads, tq, tk)


@DTYPES
@pytest.mark.parametrize("kind", ["none", "pairs", "examples", "keys", "heads"])
@pytest.mark.parametrize(("batch", "heads"), [(3, 2), (2, 2), (1, 4), (2, 1)])
def test_multi_head_attention_equals_torch(dtype, kind, batch, heads):
    tq, tk = 4, 5
    module = attention.MultiHeadAttention(8, heads).to(dtype)
    theirs = torch_attention(module)
    mask = masks(batch, heads, tq, tk)[kind]
    full = per_head_mask(mask, batch, heads, tq, tk)
    blocked = None if full is None else ~full.reshape(batch * heads, tq, tk)
    inputs = [torch.randn(batch, n, 8, dtype=dtype) for n in (tq, tk, tk)]
    same_with_gradients(
        lambda q, k, v: module(q, k, v, mask),
        lambda q, k, v: theirs(q, k, v, attn_mask=blocked, average_attn_weights=False),
        inputs,
    )
    # The gradients of the parameters, rearranged like the parameters themselves.
    module(*inputs, mask)[0].square().sum().backward()
    theirs(*inputs, attn_mask=blocked)[0].square().sum().backward()
    ours = attention.separate_to_torch({n: p.grad for n, p in module.named_parameters()})
    for name, parameter in theirs.named_parameters():
        close(ours[name], parameter.grad, name)


def test_key_padding_equals_torch():
    module = attention.MultiHeadAttention(8, 2)
    theirs = torch_attention(module)
    x = torch.randn(3, 5, 8)
    real = attention.padding_mask(torch.tensor([5, 2, 3]))
    padding = ~real[:, 0]
    ours = module(x, x, x, real)
    expected = theirs(x, x, x, key_padding_mask=padding, average_attn_weights=False)
    for a, b in zip(ours, expected, strict=True):
        close(a, b)
    causal = attention.decoder_mask(torch.tensor([5, 2, 3]))
    ours = module(x, x, x, causal)
    expected = theirs(
        x,
        x,
        x,
        key_padding_mask=padding,
        attn_mask=~attention.causal_mask(5),
        average_attn_weights=False,
    )
    for a, b in zip(ours, expected, strict=True):
        close(a, b)


def test_a_query_without_keys_leaves_the_bias_of_the_output():
    module = attention.MultiHeadAttention(8, 2)
    x = torch.randn(2, 5, 8, requires_grad=True)
    mask = torch.ones(2, 5, 5, dtype=torch.bool)
    mask[0, 3] = False
    output, weights = module(x, x, x, mask)
    close(output[0, 3], module.out_proj.bias)
    assert torch.equal(weights[0, :, 3], torch.zeros(2, 5))
    output.sum().backward()
    assert x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in module.parameters())


def test_dropout_acts_in_train_mode_only_and_not_on_the_returned_weights():
    module = attention.MultiHeadAttention(8, 2, dropout=0.5)
    x = torch.randn(2, 6, 8)
    module.eval()
    output, weights = module(x, x, x)
    plain = attention.MultiHeadAttention(8, 2).train()
    plain.load_state_dict(module.state_dict())
    for a, b in zip(plain(x, x, x), (output, weights), strict=True):
        close(a, b)
    module.train()
    noisy, kept = module(x, x, x)
    assert torch.equal(kept, weights)
    assert not torch.allclose(noisy, output, atol=1e-3)
    assert not torch.equal(noisy, module(x, x, x)[0])


def test_dropout_in_multi_head_attention_has_rate_p():
    module = attention.MultiHeadAttention(64, 1, dropout=0.25).train()
    for name, parameter in module.named_parameters():
        nn.init.zeros_(parameter) if name.endswith("bias") else nn.init.eye_(parameter)
    x = torch.eye(64).expand(20, 64, 64)  # The values are unit vectors: the output is the weights.
    used, weights = module(x, x, x)
    gone = used == 0
    assert within_rate(int(gone.sum()), gone.numel(), 0.25)
    close(used[~gone], (weights[:, 0] / 0.75)[~gone])


@DTYPES
@pytest.mark.parametrize("kind", ["none", "pairs", "examples", "keys", "heads"])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_fused_equals_separate_through_conversion(dtype, kind, heads):
    separate = attention.MultiHeadAttention(8, heads).to(dtype)
    fused = attention.FusedMultiHeadAttention(8, 8, heads).to(dtype)
    fused.load_state_dict(attention.separate_to_fused(separate.state_dict(), heads))
    x = torch.randn(2, 5, 8, dtype=dtype)
    mask = masks(2, heads, 5, 5)[kind]
    same_with_gradients(lambda x: fused(x, mask), lambda x: separate(x, x, x, mask), [x])
    fused(x, mask)[0].square().sum().backward()
    separate(x, x, x, mask)[0].square().sum().backward()
    gradients = {n: p.grad for n, p in separate.named_parameters()}
    expected = attention.separate_to_fused(gradients, heads)
    for name, parameter in fused.named_parameters():
        close(parameter.grad, expected[name], name)


@pytest.mark.parametrize("heads", [2, 4])
def test_a_plain_copy_into_the_fused_layout_would_differ(heads):
    separate = attention.MultiHeadAttention(8, heads)
    fused = attention.FusedMultiHeadAttention(8, 8, heads)
    plain = attention.separate_to_torch(separate.state_dict())
    fused.load_state_dict(
        {
            "qkv_proj.weight": plain["in_proj_weight"],
            "qkv_proj.bias": plain["in_proj_bias"],
            "o_proj.weight": plain["out_proj.weight"],
            "o_proj.bias": plain["out_proj.bias"],
        }
    )
    x = torch.randn(2, 5, 8)
    assert not torch.allclose(fused(x)[0], separate(x, x, x)[0], atol=1e-3)


@DTYPES
@pytest.mark.parametrize(("input_dim", "embed_dim"), [(16, 32), (32, 16), (6, 6)])
def test_fused_with_other_input_width_equals_torch_head_by_head(dtype, input_dim, embed_dim):
    heads = 2
    module = attention.FusedMultiHeadAttention(input_dim, embed_dim, heads).to(dtype)
    x = torch.randn(3, 5, input_dim, dtype=dtype)
    width = embed_dim // heads

    def theirs(x: Tensor) -> Tensor:
        outputs = []
        for h in range(heads):
            start = 3 * width * h
            blocks = [slice(start + width * n, start + width * (n + 1)) for n in range(3)]
            q, k, v = (
                F.linear(x, module.qkv_proj.weight[b], module.qkv_proj.bias[b]) for b in blocks
            )
            outputs.append(F.scaled_dot_product_attention(q, k, v))
        return F.linear(torch.cat(outputs, -1), module.o_proj.weight, module.o_proj.bias)

    same_with_gradients(lambda x: module(x)[0], theirs, [x], list(module.parameters()))
    assert module(x)[1].shape == (3, heads, 5, 5)


@DTYPES
@pytest.mark.parametrize("kind", ["none", "pairs", "examples", "keys", "heads"])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_per_head_equals_torch_without_biases(dtype, kind, heads):
    separate = attention.MultiHeadAttention(8, heads).to(dtype)
    for name, parameter in separate.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
    per_head = attention.PerHeadAttention(8, heads).to(dtype)
    per_head.load_state_dict(attention.separate_to_per_head(separate.state_dict(), heads))
    theirs = nn.MultiheadAttention(8, heads, bias=False, batch_first=True).to(dtype)
    state = attention.separate_to_torch(separate.state_dict())
    theirs.load_state_dict({n: t for n, t in state.items() if not n.endswith("bias")})
    mask = masks(2, heads, 4, 5)[kind]
    full = per_head_mask(mask, 2, heads, 4, 5)
    blocked = None if full is None else ~full.reshape(2 * heads, 4, 5)
    inputs = [torch.randn(2, n, 8, dtype=dtype) for n in (4, 5, 5)]
    same_with_gradients(
        lambda q, k, v: per_head(q, k, v, mask),
        lambda q, k, v: theirs(q, k, v, attn_mask=blocked, average_attn_weights=False),
        inputs,
    )
    per_head(*inputs, mask)[0].square().sum().backward()
    separate(*inputs, mask)[0].square().sum().backward()
    gradients = {n: p.grad for n, p in separate.named_parameters() if n.endswith("weight")}
    expected = attention.separate_to_per_head(gradients, heads)
    for name, parameter in per_head.named_parameters():
        close(parameter.grad, expected[name], name)


CONVERSIONS = {
    "fused": lambda state: attention.separate_to_fused(state, 2),
    "per head": lambda state: attention.separate_to_per_head(state, 2),
    "torch": attention.separate_to_torch,
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_conversion_leaves_its_input_alone_and_shares_no_memory(name):
    module = attention.MultiHeadAttention(8, 2)
    for n, p in module.named_parameters():
        if n.endswith("bias"):
            nn.init.zeros_(p)
    state = module.state_dict()
    before = {n: t.clone() for n, t in state.items()}
    converted = CONVERSIONS[name](state)
    for tensor in converted.values():
        assert tensor.is_contiguous()
        tensor.add_(1.0)
    assert list(state) == list(before)
    assert all(torch.equal(state[n], before[n]) for n in state)


@pytest.mark.parametrize("bias", ["q_proj.bias", "k_proj.bias", "v_proj.bias", "out_proj.bias"])
def test_per_head_conversion_refuses_biases(bias):
    state = attention.MultiHeadAttention(8, 2).state_dict()
    state = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    attention.separate_to_per_head(state, 2)
    state[bias][5] = -0.1
    with pytest.raises(ValueError, match=bias):
        attention.separate_to_per_head(state, 2)


@DTYPES
@pytest.mark.parametrize("kind", ["none", "pairs", "examples", "keys", "heads"])
def test_the_fast_path_gives_the_same(dtype, kind):
    module = attention.MultiHeadAttention(8, 2).to(dtype)
    mask = masks(2, 2, 4, 5)[kind]
    same_with_gradients(
        lambda q, k, v: attention.fast_multi_head_attention(module, q, k, v, mask),
        lambda q, k, v: module(q, k, v, mask)[0],
        [torch.randn(2, n, 8, dtype=dtype) for n in (4, 5, 5)],
        list(module.parameters()),
    )


def test_the_fast_path_gives_the_same_for_fully_masked_rows():
    module = attention.MultiHeadAttention(8, 2)
    q, k = torch.randn(2, 4, 8), torch.randn(2, 5, 8)
    mask = torch.ones(2, 4, 5, dtype=torch.bool)
    mask[0, 2] = False
    close(attention.fast_multi_head_attention(module, q, k, k, mask), module(q, k, k, mask)[0])


def test_the_fast_path_drops_in_train_mode_only():
    module = attention.MultiHeadAttention(8, 2, dropout=0.5)
    q, k = torch.randn(2, 4, 8), torch.randn(2, 5, 8)
    module.eval()
    quiet = attention.fast_multi_head_attention(module, q, k, k)
    close(quiet, module(q, k, k)[0])
    module.train()
    noisy = attention.fast_multi_head_attention(module, q, k, k)
    assert not torch.allclose(noisy, quiet, atol=1e-3)


# --------------------------------------------------------------------------------- cross-attention


@DTYPES
@pytest.mark.parametrize("masked", [False, True])
def test_cross_attention_equals_torch_with_kdim_and_vdim(dtype, masked):
    module = attention.CrossAttention(8, 6, 8, 2).to(dtype)
    theirs = nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True).to(dtype)
    state = module.state_dict()
    theirs.load_state_dict(
        {f"{n}_proj_weight": state[f"{n}_proj.weight"] for n in "qkv"}
        | {"in_proj_bias": torch.cat([state[f"{n}_proj.bias"] for n in "qkv"])}
        | {f"out_proj.{n}": state[f"out_proj.{n}"] for n in ("weight", "bias")}
    )
    real = torch.tensor([[True] * 7, [True] * 3 + [False] * 4, [True, False] * 3 + [True]])
    inputs = [torch.randn(3, 4, 8, dtype=dtype), torch.randn(3, 7, 6, dtype=dtype)]
    same_with_gradients(
        lambda x, m: module(x, m, real if masked else None),
        lambda x, m: theirs(
            x, m, m, key_padding_mask=~real if masked else None, average_attn_weights=False
        ),
        inputs,
    )
    module(*inputs)[0].square().sum().backward()
    theirs(inputs[0], inputs[1], inputs[1])[0].square().sum().backward()
    for n in "qkv":
        close(getattr(module, f"{n}_proj").weight.grad, getattr(theirs, f"{n}_proj_weight").grad, n)
    close(module.out_proj.weight.grad, theirs.out_proj.weight.grad)


@DTYPES
def test_cross_attention_between_three_widths_equals_torch_head_by_head(dtype):
    module = attention.CrossAttention(5, 7, 6, 3).to(dtype)

    def theirs(x: Tensor, memory: Tensor) -> Tensor:
        q, k, v = module.q_proj(x), module.k_proj(memory), module.v_proj(memory)
        heads = [
            F.scaled_dot_product_attention(*(t[..., 2 * h : 2 * h + 2] for t in (q, k, v)))
            for h in range(3)
        ]
        return module.out_proj(torch.cat(heads, -1))

    same_with_gradients(
        lambda x, m: module(x, m)[0],
        theirs,
        [torch.randn(2, 4, 5, dtype=dtype), torch.randn(2, 9, 7, dtype=dtype)],
        list(module.parameters()),
    )


def test_cross_attention_to_an_empty_memory_gives_the_bias():
    module = attention.CrossAttention(5, 7, 6, 3)
    x, memory = torch.randn(2, 4, 5), torch.randn(2, 9, 7, requires_grad=True)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1] = False
    output, weights = module(x, memory, mask)
    close(output[1], module.out_proj.bias.expand(4, 5))
    assert torch.equal(weights[1], torch.zeros(3, 4, 9))
    output.sum().backward()
    assert memory.grad.isfinite().all()


def test_masked_memory_has_no_influence():
    module = attention.CrossAttention(5, 7, 6, 3)
    x, memory = torch.randn(2, 4, 5), torch.randn(2, 9, 7)
    mask = torch.arange(9) < torch.tensor([[4], [9]])
    changed = memory.clone()
    changed[0, 4:] = 100.0
    assert torch.equal(module(x, memory, mask)[0], module(x, changed, mask)[0])


# ------------------------------------------------------------------------------ contract and text


def test_inputs_are_left_unchanged():
    x, mask = torch.randn(2, 5, 8), torch.rand(2, 5, 5) < 0.5
    inputs = {"x": x.clone(), "mask": mask.clone()}
    attention.DotScore()(x, x, mask)
    attention.masked_softmax(x @ x.transpose(1, 2), mask)
    attention.scaled_dot_product_attention(x, x, x, mask, 0.5, True)
    attention.MultiHeadAttention(8, 2)(x, x, x, mask)
    attention.FusedMultiHeadAttention(8, 8, 2)(x, mask)
    attention.PerHeadAttention(8, 2)(x, x, x, mask)
    attention.MaskedSelfAttention(8, 4)(x, mask[:, 0])
    assert torch.equal(x, inputs["x"])
    assert torch.equal(mask, inputs["mask"])


def test_the_worked_examples_of_the_text():
    one = lambda *rows: torch.tensor([[list(map(float, r)) for r in rows]])  # noqa: E731
    a = attention
    dot = a.DotScore()
    assert dot(one((1, 2)), one((3, -1), (0, 4))).tolist() == [[[1.0, 8.0]]]
    bilinear = a.BilinearScore(2, 2)
    bilinear.load_state_dict({"weight": torch.tensor([[1.0, 0.0], [1.0, 2.0]])})
    assert bilinear(one((1, 2)), one((3, 1))).item() == 13.0
    bilinear.load_state_dict({"weight": bilinear.weight.detach().T.clone()})
    assert bilinear(one((1, 2)), one((3, 1))).item() == 8.0
    additive = a.AdditiveScore(1, 1, 1)
    additive.load_state_dict(
        {
            "query_projection.weight": torch.ones(1, 1),
            "key_projection.weight": torch.ones(1, 1),
            "energy.weight": 2 * torch.ones(1, 1),
        }
    )
    assert additive(one((0.5,)), one((0.5,))).item() == pytest.approx(1.523, abs=5e-4)
    concat = a.ConcatScore(1, 1, 1)
    concat.load_state_dict(
        {"projection.weight": torch.tensor([[1.0, -1.0]]), "energy.weight": torch.ones(1, 1)}
    )
    assert concat(one((2,)), one((1,))).item() == pytest.approx(0.762, abs=5e-4)
    assert concat(one((1,)), one((2,))).item() == pytest.approx(-0.762, abs=5e-4)
    weights = a.masked_softmax(torch.tensor([2.0, 1.0, 0.0]), torch.tensor([True, True, False]))
    assert [round(w, 3) for w in weights.tolist()] == [0.731, 0.269, 0.0]
    assert a.context_vector(one((0.25, 0.75)), one((4, 0), (0, 8))).tolist() == [[[1.0, 6.0]]]
    output, weights = a.scaled_dot_product_attention(
        torch.ones(1, 4), torch.tensor([[1.0] * 4, [0.0] * 4]), torch.tensor([[10.0], [0.0]])
    )
    assert [round(w, 3) for w in weights[0].tolist()] == [0.881, 0.119]
    assert round(output.item(), 2) == 8.81
    assert a.padding_mask(torch.tensor([1, 3])).int().tolist() == [[[1, 0, 0]], [[1, 1, 1]]]
    decoder = a.decoder_mask(torch.tensor([2]), 3).int().tolist()
    assert decoder == [[[1, 0, 0], [1, 1, 0], [1, 1, 0]]]
    heads = a.split_heads(one((1, 2, 3, 4), (5, 6, 7, 8)), 2)
    assert heads.tolist() == [[[[1, 2], [5, 6]], [[3, 4], [7, 8]]]]
    state = {f"{n}_proj.weight": torch.zeros(2, 2) for n in ("q", "k", "v", "out")}
    state["q_proj.weight"] = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert a.separate_to_per_head(state, 2)["w_q"].tolist() == [[[1], [2]], [[3], [4]]]
    for first, name in zip((1.0, 3.0, 5.0), "qkv", strict=True):
        state[f"{name}_proj.bias"] = torch.tensor([first, first + 1])
    state["out_proj.bias"] = torch.zeros(2)
    assert a.separate_to_fused(state, 2)["qkv_proj.bias"].tolist() == [1, 3, 5, 2, 4, 6]


def test_masks_and_random_numbers_are_made_where_the_inputs_are():
    """On the meta device, which refuses to mix with the CPU as any other device does."""
    x = torch.randn(2, 5, 8, device="meta")
    real = torch.ones(2, 5, dtype=torch.bool, device="meta")
    outputs = [
        attention.MaskedSelfAttention(8, 4).to("meta")(x, real)[0],
        attention.MultiHeadAttention(8, 2, 0.5).to("meta").train()(x, x, x, real[:, None])[0],
        attention.FusedMultiHeadAttention(8, 8, 2).to("meta")(x, real[:, None])[0],
        attention.PerHeadAttention(8, 2).to("meta")(x, x, x, real[:, None])[0],
        attention.CrossAttention(8, 8, 8, 2).to("meta")(x, x, real)[0],
        attention.ConcatScore(8, 8, 4).to("meta")(x, x, real[:, None]),
        attention.attention_dropout(x, 0.5, True),
    ]
    assert all(output.device.type == "meta" for output in outputs)
    with pytest.raises(RuntimeError, match=r"device|meta|cpu"):
        attention.scaled_dot_product_attention(x, x, x, attention.causal_mask(5))
