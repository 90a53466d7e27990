"""The graders of `attention-scores`: right answers in any style earn full marks."""

from __future__ import annotations

import pytest

from autograder.sandbox.executor import Executor
from autograder.units.variants import (
    reference_namespace,
)
from tests.autograder.unit_graders import Styles, UnitGraders

UNIT = "attention-scores"

# Right answers that look unlike the reference and unlike those in autograder/demo.
STYLES = Styles()
style = STYLES.add


# The four score functions -------------------------------------------------------------------------

style(
    "DotScore",
    "einsum and torch.where",
    """
class DotScore(nn.Module):
    def forward(self, query, key, mask=None):
        if query.size(2) != key.size(2):
            raise ValueError("widths")
        scores = torch.einsum("bqd,bkd->bqk", query, key)
        if mask is None:
            return scores
        return torch.where(mask, scores, torch.tensor(-math.inf, dtype=scores.dtype))
""",
)
style(
    "DotScore",
    "loops",
    """
class DotScore(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, query, key, mask=None):
        B, Tq, D = query.shape
        Tk = key.shape[1]
        if key.shape[2] != D:
            raise ValueError("widths")
        rows = []
        for b in range(B):
            for i in range(Tq):
                rows.append(torch.stack([(query[b, i] * key[b, j]).sum() for j in range(Tk)]))
        scores = torch.stack(rows).view(B, Tq, Tk)
        if mask is not None:
            allowed = mask.expand(B, Tq, Tk)
            scores[~allowed] = float("-inf")
        return scores
""",
)
style(
    "DotScore",
    "an additive mask of 0 and -inf, torch.bmm",
    """
class DotScore(nn.Module):
    def forward(self, query, key, mask=None):
        if query.shape[-1] != key.shape[-1]:
            raise ValueError("widths")
        scores = torch.bmm(query, key.permute(0, 2, 1))
        if mask is not None:
            bias = torch.zeros(mask.shape, dtype=scores.dtype)
            scores = scores + bias.masked_fill(mask.logical_not(), -torch.inf)
        return scores
""",
)
style(
    "BilinearScore",
    "the key projected first, Xavier",
    """
class BilinearScore(nn.Module):
    def __init__(self, query_dim, key_dim):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(query_dim, key_dim))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, query, key, mask=None):
        projected = nn.functional.linear(key, self.weight)
        scores = torch.matmul(query, projected.mT)
        return scores if mask is None else torch.where(mask, scores, -math.inf)
""",
)
style(
    "BilinearScore",
    "one einsum",
    """
class BilinearScore(nn.Module):
    def __init__(self, query_dim, key_dim):
        super().__init__()
        self.register_parameter("weight", nn.Parameter(torch.zeros(query_dim, key_dim)))

    def forward(self, query, key, mask=None):
        scores = torch.einsum("bia,ac,bjc->bij", query, self.weight, key)
        if mask is not None:
            scores = scores.masked_fill(mask == False, float("-inf"))
        return scores
""",
)
style(
    "AdditiveScore",
    "einsum with the energy's weight",
    """
class AdditiveScore(nn.Module):
    def __init__(self, query_dim, key_dim, hidden_dim):
        super().__init__()
        self.energy = nn.Linear(hidden_dim, 1, bias=False)
        self.key_projection = nn.Linear(key_dim, hidden_dim, bias=False)
        self.query_projection = nn.Linear(query_dim, hidden_dim, bias=False)

    def forward(self, query, key, mask=None):
        q, k = self.query_projection(query), self.key_projection(key)
        hidden = (q[:, :, None, :] + k[:, None, :, :]).tanh()
        scores = torch.einsum("bijh,h->bij", hidden, self.energy.weight[0])
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return scores
""",
)
style(
    "AdditiveScore",
    "a loop over the queries and a base class",
    """
class Masked(nn.Module):
    def masked(self, scores, mask):
        return scores if mask is None else scores.masked_fill(~mask, -torch.inf)

class AdditiveScore(Masked):
    def __init__(self, query_dim, key_dim, hidden_dim):
        super().__init__()
        self.query_projection = nn.Linear(query_dim, hidden_dim, False)
        self.key_projection = nn.Linear(key_dim, hidden_dim, False)
        self.energy = nn.Linear(hidden_dim, 1, False)

    def forward(self, query, key, mask=None):
        keys = self.key_projection(key)
        rows = []
        for i in range(query.size(1)):
            hidden = torch.tanh(self.query_projection(query[:, i : i + 1]) + keys)
            rows.append(self.energy(hidden)[..., 0])
        return self.masked(torch.stack(rows, dim=1), mask)
""",
)
style(
    "ConcatScore",
    "the projection cut into its query part and its key part",
    """
class ConcatScore(nn.Module):
    def __init__(self, query_dim, key_dim, hidden_dim):
        super().__init__()
        self.query_dim = query_dim
        self.projection = nn.Linear(query_dim + key_dim, hidden_dim, bias=False)
        self.energy = nn.Linear(hidden_dim, 1, bias=False)

    def forward(self, query, key, mask=None):
        weight = self.projection.weight
        w_q, w_k = weight[:, : self.query_dim], weight[:, self.query_dim :]
        hidden = torch.tanh((query @ w_q.T).unsqueeze(2) + (key @ w_k.T).unsqueeze(1))
        scores = (hidden * self.energy.weight.squeeze(0)).sum(-1)
        if mask is not None:
            scores = torch.where(mask, scores, torch.full_like(scores, -math.inf))
        return scores
""",
)
style(
    "ConcatScore",
    "repeat and loops",
    """
class ConcatScore(nn.Module):
    def __init__(self, query_dim, key_dim, hidden_dim):
        super().__init__()
        self.projection = nn.Linear(query_dim + key_dim, hidden_dim, bias=False)
        self.energy = nn.Linear(hidden_dim, 1, bias=False)

    def forward(self, query, key, mask=None):
        columns = []
        for j in range(key.shape[1]):
            repeated = key[:, j].unsqueeze(1).repeat(1, query.shape[1], 1)
            pair = torch.cat((query, repeated), 2)
            columns.append(self.energy(torch.tanh(self.projection(pair))))
        scores = torch.cat(columns, 2)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return scores
""",
)

# Softmax, context, decoder, dropout ---------------------------------------------------------------

CHECKED = """
def checked(scores, mask):
    if mask is None:
        return torch.ones_like(scores, dtype=torch.bool)
    if mask.dtype is not torch.bool:
        raise ValueError("bool please")
    try:
        return torch.broadcast_to(mask, scores.shape)
    except RuntimeError as error:
        raise ValueError("shape") from error
"""
style(
    "masked_softmax",
    "a large negative number, then zeros",
    CHECKED
    + """
def masked_softmax(scores, mask=None, dim=-1):
    allowed = checked(scores, mask) & (scores != -math.inf)
    filled = scores.masked_fill(~allowed, -1e9)
    e = (filled - filled.max(dim, keepdim=True).values).exp() * allowed
    total = e.sum(dim, keepdim=True)
    return e / torch.where(total > 0, total, torch.ones_like(total))
""",
)
style(
    "masked_softmax",
    "logsumexp of the allowed scores",
    CHECKED
    + """
def masked_softmax(scores, mask=None, dim=-1):
    allowed = checked(scores, mask) & torch.isfinite(scores)
    some = allowed.any(dim, keepdim=True)
    filled = torch.where(allowed, scores, torch.finfo(scores.dtype).min)
    log_weights = filled - torch.logsumexp(filled, dim, keepdim=True)
    return torch.where(allowed & some, log_weights.exp(), 0.0)
""",
)
style(
    "masked_softmax",
    "loops over slices",
    CHECKED
    + """
def masked_softmax(scores, mask=None, dim=-1):
    allowed = checked(scores, mask) & (scores > -math.inf)
    moved, kept = scores.movedim(dim, -1), allowed.movedim(dim, -1)
    rows, flags = moved.reshape(-1, moved.shape[-1]), kept.reshape(-1, moved.shape[-1])
    result = []
    for row, flag in zip(rows, flags):
        weights = torch.zeros_like(row)
        if flag.any():
            chosen = row[flag]
            e = torch.exp(chosen - chosen.max())
            weights[flag] = e / e.sum()
        result.append(weights + 0 * torch.where(flag, row, 0.0))
    return torch.stack(result).view(moved.shape).movedim(-1, dim)
""",
)
style(
    "context_vector",
    "einsum",
    """
def context_vector(attn_weights, values):
    if attn_weights.size(-1) != values.size(1):
        raise ValueError("Tk")
    return torch.einsum("bqk,bkd->bqd", attn_weights, values)
""",
)
style(
    "context_vector",
    "broadcasting and a sum",
    """
def context_vector(attn_weights, values):
    batch, queries, keys = attn_weights.shape
    if values.shape[1] != keys:
        raise ValueError("Tk")
    return (attn_weights[..., None] * values[:, None]).sum(2)
""",
)
style(
    "context_vector",
    "a loop over the keys",
    """
def context_vector(attn_weights, values):
    if attn_weights.shape[2] != values.shape[1]:
        raise ValueError("Tk")
    total = 0
    for j in range(values.shape[1]):
        total = total + attn_weights[:, :, j : j + 1] * values[:, j : j + 1, :]
    return total
""",
)
style(
    "AttentionDecoderStep",
    "the mask in the score, bmm, results in a list",
    """
class AttentionDecoderStep(nn.Module):
    def __init__(self, embed_dim, hidden_size, annotation_dim, attention_dim):
        super().__init__()
        self.cell = nn.GRUCell(annotation_dim + embed_dim, hidden_size)
        self.score = AdditiveScore(hidden_size, annotation_dim, attention_dim)

    def forward(self, y_prev, s_prev, annotations, source_mask=None):
        mask = source_mask if source_mask is None else source_mask[:, None, :]
        attn_weights = masked_softmax(self.score(s_prev[:, None], annotations, mask))
        context = torch.bmm(attn_weights, annotations)[:, 0]
        return [self.cell(torch.hstack([y_prev, context]), s_prev), context, attn_weights[:, 0]]
""",
)
style(
    "AttentionDecoderStep",
    "PyTorch's softmax with empty rows set to 0",
    """
class AttentionDecoderStep(nn.Module):
    def __init__(self, embed_dim, hidden_size, annotation_dim, attention_dim):
        super().__init__()
        self.score = AdditiveScore(hidden_size, annotation_dim, attention_dim)
        self.cell = nn.GRUCell(embed_dim + annotation_dim, hidden_size)

    def forward(self, y_prev, s_prev, annotations, source_mask=None):
        e = self.score(s_prev.unsqueeze(1), annotations).squeeze(1)
        if source_mask is None:
            source_mask = torch.ones_like(e, dtype=torch.bool)
        e = e.masked_fill(~source_mask, -1e9)
        attn_weights = torch.softmax(e, dim=1) * source_mask
        context = torch.einsum("bt,bta->ba", attn_weights, annotations)
        return self.cell(torch.cat([y_prev, context], 1), s_prev), context, attn_weights
""",
)
style(
    "attention_dropout",
    "bernoulli and torch.where",
    """
def attention_dropout(attn_weights, dropout, training):
    if dropout < 0 or dropout > 1:
        raise ValueError("dropout")
    if not training:
        return attn_weights
    if dropout == 1:
        return torch.zeros_like(attn_weights)
    keep = torch.bernoulli(torch.full(attn_weights.shape, 1 - dropout)).bool()
    return torch.where(
        keep, attn_weights / (1 - dropout), torch.zeros((), dtype=attn_weights.dtype)
    )
""",
)
style(
    "attention_dropout",
    "a scaled mask in the dtype of the weights",
    """
def attention_dropout(attn_weights, dropout, training):
    if not (0 <= dropout <= 1):
        raise ValueError("dropout")
    if training and dropout > 0:
        keep = 1.0 - dropout
        mask = (torch.rand(attn_weights.shape) < keep).to(attn_weights.dtype)
        return attn_weights.clone() * (mask / keep if keep else mask)
    return attn_weights.clone()
""",
)
style(
    "attention_dropout",
    "masked_fill of what is dropped",
    """
def attention_dropout(attn_weights, dropout, training):
    if not 0 <= dropout <= 1:
        raise ValueError("dropout")
    if dropout == 1 and training:
        return attn_weights.masked_fill(torch.ones_like(attn_weights).bool(), 0)
    dropped = torch.empty(attn_weights.shape).uniform_() < dropout * training
    return attn_weights.masked_fill(dropped, 0.0).div(1 - dropout * training)
""",
)


@pytest.mark.parametrize(
    ("exercise", "source", "name"),
    [
        (
            "attention_dropout",
            "def attention_dropout(w, dropout, training):\n"
            "    if not 0 <= dropout <= 1:\n        raise ValueError\n"
            "    return w if not training else w * torch.bernoulli(torch.full(w.shape, 1 - "
            "dropout))\n",
            "dropout_without_rescale",
        ),
        (
            "attention_dropout",
            "def attention_dropout(w, dropout, training):\n"
            "    if not 0 <= dropout <= 1:\n        raise ValueError\n"
            "    if dropout == 1:\n        return w * 0\n"
            "    return w * torch.bernoulli(torch.full(w.shape, 1 - dropout)) / (1 - dropout)\n",
            "dropout_in_evaluation",
        ),
    ],
)
def test_a_mistake_with_random_numbers_of_its_own_is_still_named(graders, exercise, source, name):
    namespace = dict(reference_namespace(UNIT))
    exec(source, namespace)
    result = graders.run(Executor(namespace).execute, exercises=[exercise])[exercise]
    assert result.misconception == name


class TestGraders(UnitGraders):
    unit = UNIT
    styles = STYLES
