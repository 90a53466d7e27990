"""The same network with both masks, and texts that it writes, for BERT's pages.

    causal = left_to_right(model)
    text = sample_filling(model, ...)

* One network, two masks: a left-to-right copy, and which output depends on which token.
* Sampling: appending to a masked model, filling its gaps again and again; an n-gram judge.

A *model* has `bert`, whose forward takes (ids (B, T), token_type_ids, mask) and returns hidden
(B, T, D) and pooled (B, D), and `mlm` from hidden to logits. Ids below 5 are special: PAD 0, UNK 1,
CLS 2, SEP 3, MASK 4.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit.corpora.docstrings import CLS, MASK, PAD, SEP, SPECIAL, UNK

# --------------------------------------------------------------------------- one network, two masks


def rescale(model: nn.Module, factor: float) -> nn.Module:
    """Multiply all weights of linear maps and tables by a factor, in place; returns the model.

    BERT's start N(0, 0.02^2) is made for width 768. Narrow models learn faster from a wider one.
    """
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                module.weight.mul_(factor)
    return model


class CausalAttention(nn.Module):
    """The attention of a BERT layer with the same parameters, but blind to what comes later.

    Attributes:
        q_proj, k_proj, v_proj, out_proj: those of the attention it was made from.
    """

    def __init__(self, attention: nn.Module) -> None:
        """attention has the four projections and `num_heads`."""
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(self, name, getattr(attention, name))
        self.num_heads = attention.num_heads

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x (B, T, D), mask (B, T) True at real tokens -> (B, T, D)."""
        q, k, v = (
            layer(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (B, H, T, D/H)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        if mask is None:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            length = x.shape[1]
            earlier = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=earlier & mask[:, None, None])
        return self.out_proj(mixed.transpose(1, 2).flatten(2))  # (B, T, D)


def left_to_right(model: nn.Module) -> nn.Module:
    """A copy of a model whose attention sees no later position: nothing else is different.

    Names and values of the parameters are the same, so that `load_state_dict` works both ways.

    Raises:
        ValueError: the model has no plain attention with q_proj, k_proj, v_proj, out_proj and
            num_heads.
    """
    copied = copy.deepcopy(model)
    needed = ("q_proj", "k_proj", "v_proj", "out_proj", "num_heads")
    found = [
        (parent, name, child)
        for parent in copied.modules()
        for name, child in parent.named_children()
        if all(hasattr(child, part) for part in needed)
        and not any(hasattr(child, part) for part in ("r_proj", "clip"))  # these know distances
    ]
    if not found:
        raise ValueError(f"no plain attention with {', '.join(needed)} in this model")
    for parent, name, child in found:
        setattr(parent, name, CausalAttention(child))
    return copied.train(model.training)


@torch.no_grad()
def dependence(states: Callable[[Tensor], Tensor], ids: Tensor, other: int) -> Tensor:
    """Which outputs notice a change of which token.

    Args:
        states: ids (B, T) -> (B, T, D).
        ids: (T,). other: the id that replaces one token after the other; none of `ids`.

    Returns:
        (T, T) bool: row i is True at j if the output at position i moves when token j is replaced.
    """
    if bool((ids == other).any()):
        raise ValueError(f"{other} is one of the ids, so exchanging for it changes nothing")
    changed = ids.repeat(len(ids), 1)  # (T, T), row j: token j exchanged
    changed.fill_diagonal_(other)
    before, after = states(ids[None]), states(changed)  # (1, T, D), (T, T, D)
    return ((after - before).abs().amax(-1) > 1e-6).T  # (T, T)


def scores_at(model: nn.Module, ids: Tensor, places: Tensor) -> Tensor:
    """Scores (n, V) at the places that are True in places (B, T): the head runs only there."""
    mask = ids != PAD
    hidden = model.bert(ids, None, None if bool(mask.all()) else mask)[0]  # (B, T, D)
    return model.mlm(hidden[places])  # (n, V)


# --------------------------------------------------------------------------- probabilities of text


@torch.no_grad()
def pseudo_log_likelihood(model: nn.Module, row: Tensor) -> Tensor:
    """What a masked model says of each ordinary token of row (T,), given all the others.

    Returns:
        (n,) natural logarithms; their sum is not the logarithm of a probability of the row.
    """
    at = ((row >= SPECIAL) | (row == UNK)).nonzero()[:, 0]  # (n,)
    several = row.repeat(len(at), 1)  # (n, T)
    places = F.one_hot(at, len(row)).bool()
    several[places] = MASK
    log_probs = F.log_softmax(scores_at(model, several, places), -1)  # (n, V)
    return log_probs.gather(-1, row[at][:, None])[:, 0]  # (n,)


# --------------------------------------------------------------------------- generation


def _draw(scores: Tensor, temperature: float, draw: torch.Generator) -> Tensor:
    """scores (B, V) -> ordinary ids (B,)."""
    scores = scores.clone()
    scores[:, :SPECIAL] = -torch.inf
    return torch.multinomial((scores / temperature).softmax(-1), 1, generator=draw)[:, 0]


def _begin(count: int, prefix: Sequence[int]) -> Tensor:
    return torch.tensor([CLS, *prefix]).repeat(count, 1)  # (B, 1 + n)


@torch.no_grad()
def sample_appending(
    model: nn.Module, count: int, length: int, *, prefix: Sequence[int] = (),
    temperature: float = 1.0, seed: int = 0, sep: bool = True,
) -> Tensor:  # fmt: skip
    """A masked model made to write from left to right: [CLS] tokens [MASK] [SEP], again and again.

    Args:
        count, length: how many texts, and of how many tokens each.
        prefix: ids that every text begins with.
        temperature: of the softmax that tokens are drawn from.
        seed: of the draws.
        sep: put [SEP] after the [MASK], as at the end of a text; without it nothing follows.

    Returns:
        ids (count, length), the prefix included.
    """
    ids, draw = _begin(count, prefix), torch.Generator().manual_seed(seed)
    end = ids.new_tensor([[MASK, SEP] if sep else [MASK]]).repeat(count, 1)
    while ids.shape[1] <= length:
        asked = torch.cat([ids, end], 1)  # (B, n + 2), or (B, n + 1) without [SEP]
        new = _draw(scores_at(model, asked, asked == MASK), temperature, draw)  # (B,)
        ids = torch.cat([ids, new[:, None]], 1)
    return ids[:, 1:]


@torch.no_grad()
def sample_filling(
    model: nn.Module, count: int, length: int, *, sweeps: int = 2, prefix: Sequence[int] = (),
    temperature: float = 1.0, seed: int = 0, history: list[Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """Samples of a masked model by filling in: all [MASK] at first, one position at a time.

    In every sweep each position is masked once more, in a random order, and drawn given all others
    (Wang and Cho 2019; Gibbs sampling, if the conditionals belonged to one distribution).

    Args:
        history: if a list is given, the ids (count, length) after each draw are appended to it.

    Returns and other arguments as `sample_appending`.
    """
    draw = torch.Generator().manual_seed(seed)
    free = length - len(prefix)
    ids = torch.cat([_begin(count, prefix), torch.full((count, free), MASK)], 1)
    ids = F.pad(ids, (0, 1), value=SEP)  # (B, length + 2)
    for _ in range(sweeps):
        orders = torch.stack([torch.randperm(free, generator=draw) for _ in range(count)])
        for at in (orders + 1 + len(prefix)).unbind(1):  # (B,)
            ids.scatter_(1, at[:, None], MASK)
            asked = F.one_hot(at, ids.shape[1]).bool()  # (B, length + 2)
            new = _draw(scores_at(model, ids, asked), temperature, draw)
            ids.scatter_(1, at[:, None], new[:, None])
            if history is not None:
                history.append(ids[:, 1:-1].clone())
    return ids[:, 1:-1]


class NgramJudge:
    """An n-gram model with Witten-Bell smoothing: a judge of samples that is none of the models.

    Args of the constructor:
        rows: rows of ids; special ones other than [UNK] are left out.
        vocab_size: V.
        order: how many tokens are looked at, the one judged included.
    """

    def __init__(self, rows: Iterable[Sequence[int]], vocab_size: int, order: int = 3) -> None:
        self.order, self.vocab_size = order, vocab_size
        self._counts: Counter[tuple[int, ...]] = Counter()
        self._totals: Counter[tuple[int, ...]] = Counter()
        self._kinds: Counter[tuple[int, ...]] = Counter()
        for row in rows:
            tokens = _ordinary(row)
            for place in range(len(tokens)):
                for n in range(min(order - 1, place) + 1):
                    before, gram = (
                        tuple(tokens[place - n : place]),
                        tuple(tokens[place - n : place + 1]),
                    )
                    self._kinds[before] += gram not in self._counts
                    self._counts[gram] += 1
                    self._totals[before] += 1

    def probability(self, token: int, before: Sequence[int]) -> float:
        """p(token | the last order - 1 of `before`)."""
        value = 1.0 / (self.vocab_size - SPECIAL + 1)
        context = tuple(before[-(self.order - 1) :]) if self.order > 1 else ()
        for n in range(len(context) + 1):
            seen = context[len(context) - n :]
            total, kinds = self._totals[seen], self._kinds[seen]
            if total == 0:
                break
            value = (self._counts[(*seen, token)] + kinds * value) / (total + kinds)
        return value

    def perplexity(self, rows: Iterable[Sequence[int]]) -> float:
        """Of all tokens of all rows."""
        total = count = 0.0
        for row in rows:
            tokens = _ordinary(row)
            for place, token in enumerate(tokens):
                total -= math.log(self.probability(token, tokens[:place]))
                count += 1
        return math.exp(total / count)


def _ordinary(row: Sequence[int] | Tensor) -> list[int]:
    ids = row.tolist() if isinstance(row, Tensor) else row
    return [i for i in ids if i >= SPECIAL or i == UNK]


def repetition(rows: Tensor, window: int = 4) -> float:
    """Share of tokens in rows (B, T) that already stood among the `window` places before."""
    same = torch.zeros_like(rows[:, 1:], dtype=torch.bool)
    for back in range(1, window + 1):
        again = rows[:, back:] == rows[:, :-back]  # (B, T - back)
        same[:, back - 1 :] |= again
    return float(same.double().mean())
