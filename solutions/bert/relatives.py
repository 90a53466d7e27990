# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # BERT: its relatives
#
# At the end of this unit the central idea of ALBERT, XLNet, Transformer-XL, ELECTRA and ELMo
# stands in a few lines each.

# %%
"""What came before and after: shared layers, permutations, relative attention, memory, replaced tokens, two directions."""

# The options of a cell must stand on one line, however long it gets.
# ruff: noqa: E501

# %%
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from solutions.bert.model import BertLayer
from solutions.bert.pretraining import IGNORE

# %% tags=["instructor"]
# isort: split
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from solutions.bert.fine_tuning import MultipleChoice, SequenceClassifier, SpanFinder, Tagger
from solutions.bert.model import BertModel, rename_parameters
from solutions.bert.pretraining import BertForPreTraining

if TYPE_CHECKING:
    from toolkit.tokenizer import WordPieceTokenizer

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("bert-relatives")


# %%
def relative_code(distances: Tensor, d_model: int) -> Tensor:
    """The sinusoidal code of distances (Dai et al. 2019, section 3.3).

    Args:
        distances: integers of any sign, any shape (...).
        d_model: D, the number of features of a code.

    Returns:
        (..., D) in the default floating type: sines in the first half, cosines in the second.
    """
    wavelengths = 10000.0 ** (torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)  # (D/2,)
    wavelengths = wavelengths.to(distances.device)
    angles = distances.unsqueeze(-1).to(torch.float64) / wavelengths  # (..., D/2)
    code = torch.cat([angles.sin(), angles.cos()], dim=-1)[..., :d_model]  # (..., D)
    return code.to(torch.get_default_dtype())


# %% [markdown]
# ## Relatives
#
# ### Exercise 1: ALBERT's shared layer
#
# Write `SharedEncoder(num_layers, d_model, num_heads, d_ff, dropout=0.0)`: a deep encoder
# with the parameters of one layer.
#
# * Submodule: `layer`, one `BertLayer(d_model, num_heads, d_ff, dropout)`. <!-- id: one-layer -->
# * `forward(x, mask=None)`: `x` `(B, T, D)`, `mask` `(B, T)` bool; applies the layer `num_layers`
#   times, with the mask each time. <!-- id: applied-again --> The result is `(B, T, D)`.
# * `ValueError` (when the module is created) if `num_heads` does not divide `d_model`; it may come
#   from the layer. <!-- id: heads-divide -->
#
# *Example.* `SharedEncoder(2, ...)` and `SharedEncoder(12, ...)` have the same number of
# parameters. The second still takes six times as long: sharing saves memory, not time.
#
# Book: `brt-albert`.
#
# <details><summary>Hint 1</summary>
#
# The output of each application is the input of the next.
#
# </details>
# <details><summary>Hint 2</summary>
#
# There is no `nn.ModuleList`: one module, stored under one name, and a loop in `forward`.
#
# </details>


# %% exercise="SharedEncoder" points=1 section="brt-albert"
class SharedEncoder(nn.Module):
    """One layer, applied again and again (ALBERT: Lan et al. 2020, section 3.1).

    Submodule: ``layer`` = BertLayer(d_model, num_heads, d_ff, dropout).
    """

    def __init__(
        self,
        num_layers: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout: float = 0.0,
    ) -> None:
        """Create the one layer.

        Args:
            num_layers: N, how often it is applied.
            d_model: D.
            num_heads: H, a divisor of d_model.
            d_ff: F.
            dropout: of the layer.

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.num_layers = num_layers
        self.layer = BertLayer(d_model, num_heads, d_ff, dropout)
        ### END SOLUTION

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Apply the layer num_layers times.

        Args:
            x: (B, T, D).
            mask: (B, T) bool, True where a real token stands. None: everywhere.

        Returns:
            (B, T, D).
        """
        ### BEGIN SOLUTION
        for _ in range(self.num_layers):
            x = self.layer(x, mask)  # (B, T, D)
        return x
        ### END SOLUTION


# %% check="SharedEncoder" tags=["active-ipynb"]
# check("SharedEncoder")

# %% [markdown]
# ### Exercise 2: XLNet's masks
#
# XLNet predicts the tokens one after another, but in a random order. The tokens stay where they
# are; only masks say who may see whom. Write `permutation_masks(order)`.
#
# * `order` `(T,)` `torch.int64` is a permutation of $0 \dots T - 1$: `order[k]` is the **position**
#   that is predicted as number $k$.
# * Returns `(content, query)`, both `(T, T)` bool, row $i$ and column $j$ at the tokens' own
#   positions:
#
# | mask | position $i$ may see position $j$ if |
# |---|---|
# | `query` | $j$ comes before $i$ in the order |
# | `content` | $j$ comes before $i$ in the order, or $j = i$ |
#
# <!-- id: content-and-query -->
#
# * The query stream predicts the token at $i$, so it must not see it; the content stream is what
#   later positions see of $i$, so it must.
# * `ValueError` if `order` is not a permutation. <!-- id: no-permutation -->
#
# *Example.* For the order $2, 0, 1$ the query mask is
# $\begin{pmatrix}0&0&1\\1&0&1\\0&0&0\end{pmatrix}$: position 0 sees position 2, position 1 sees both others,
# position 2 comes first and sees nothing.
#
# Book: `brt-xlnet`.
#
# <details><summary>Hint 1</summary>
#
# You need the other direction: for each position its number in the order. That is the inverse of the
# permutation; `argsort` finds it.
#
# </details>
# <details><summary>Hint 2</summary>
#
# With the numbers as a column and as a row, one comparison makes the whole mask.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Sorted, a permutation is $0, 1, \dots, T - 1$. Compare shapes too.
#
# </details>


# %% exercise="permutation_masks" points=2 section="brt-xlnet"
def permutation_masks(order: Tensor) -> tuple[Tensor, Tensor]:
    """Who may see whom when the tokens are predicted in a given order (Yang et al. 2019, 2.3).

    Args:
        order: (T,) int64, a permutation: order[k] is the position that is predicted as number k.

    Returns:
        content and query, both (T, T) bool. Row i of ``query`` is True at the positions that come
        before position i in the order, row i of ``content`` at these and at i itself.

    Raises:
        ValueError: if order is not a permutation of 0 .. T - 1.
    """
    ### BEGIN SOLUTION
    if order.dim() != 1 or not order.sort().values.equal(torch.arange(len(order)).to(order)):
        raise ValueError(f"order must hold each of 0 to {order.numel() - 1} once")
    rank = order.argsort()  # (T,), when each position is predicted
    query = rank < rank.unsqueeze(1)  # (T, T), [i, j]: j comes before i
    content = rank <= rank.unsqueeze(1)  # (T, T)
    return content, query
    ### END SOLUTION


# %% check="permutation_masks" tags=["active-ipynb"]
# check("permutation_masks")

# %% [markdown]
# ### Exercise 3: Transformer-XL's attention
#
# Transformer-XL reads a long text in segments. Each layer also sees what it computed for the
# segment before, its *memory*, and positions are distances: with the absolute positions of BERT a
# token of the memory and one of the new segment would look as if they stood at the same position.
# Write `RelativeAttention(d_model, num_heads, dropout=0.0)`. The score of query $i$ and key $j$ in
# a head is
#
# $$\frac{(q_i + u)^\top k_j + (q_i + v)^\top r_{i-j}}{\sqrt{D/H}},\qquad
# r_d = W_r\,\operatorname{code}(d)$$
#
# <!-- id: formula -->
#
# * Submodules: `q_proj`, `k_proj`, `v_proj`, `r_proj` ($W_r$), `out_proj`, each
#   `nn.Linear(d_model, d_model, bias=False)`, split into heads as in `SelfAttention` (unit
#   `model`). Parameters: `content_bias` ($u$) and `position_bias` ($v$), both `(H, D/H)`, zeros at
#   first. <!-- id: parameters -->
# * `forward(x, memory=None)`: `x` `(B, T, D)`; `memory` `(B, M, D)`, the $M$ positions before it, or
#   `None`. The result is `(B, T, D)`.
# * Queries come from `x`; keys and values from memory and `x`, **joined along the length**.
#   <!-- id: joined --> No
#   gradient reaches the memory (the projections get theirs all the same). <!-- id: no-gradient -->
# * It is causal: the position $t$ of `x` sees the whole memory and $x_0, \dots, x_t$.
#   <!-- id: causal -->
# * $i - j$ counts in the joined sequence, where $x_t$ stands at $M + t$. <!-- id: distances -->
#   The code is
#   `relative_code(i - j, D)`, which is given; $W_r$ acts on it, and the result is split into heads.
# * Dropout acts on every weight by itself, in training mode. <!-- id: dropout-on-weights -->
# * `ValueError` (when the module is created) if `num_heads` does not divide `d_model`.
#   <!-- id: heads-divide -->
#
# *Example.* `q_proj` and both biases are 0, `v_proj` and `out_proj` pass their input on: every
# position gets the mean of what it sees. With the memory $2$ and $x = (4, 9)$ that is $3$ and $5$.
#
# Book: `brt-transformer-xl`.
#
# <details><summary>Hint 1</summary>
#
# `memory.detach()` has the same numbers and no history. With `torch.cat([...], dim=1)` it becomes
# the front of the context; sizes of the keys are $S = M + T$.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The distances form a matrix `(T, S)`: `i` is `torch.arange(M, S)` as a column, `j` is
# `torch.arange(S)` as a row. Negative ones are those that must not be seen.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Simple and right: the codes of the whole matrix, `(T, S, D)`, through `r_proj`, split into heads,
# and an `einsum` with the queries. The layer is small enough here.
#
# </details>
# <details><summary>Hint 4</summary>
#
# Cheaper: there are only $S$ distances from 0 to $S - 1$. Multiply the queries with these,
# `(B, H, T, S)`, and let `gather` along the last axis pick the distance of each pair. Distances
# below 0 need any valid index; they are masked afterwards.
#
# </details>


# %% exercise="RelativeAttention" points=5 section="brt-transformer-xl"
class RelativeAttention(nn.Module):
    """Causal self-attention with memory and relative positions (Dai et al. 2019, section 3).

    Parameters: ``content_bias`` and ``position_bias``, both (H, D/H), zeros at first. Submodules:
    ``q_proj``, ``k_proj``, ``v_proj``, ``r_proj``, ``out_proj``, each nn.Linear(d_model, d_model,
    bias=False).
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        """Create the projections and the two biases.

        Args:
            d_model: D.
            num_heads: H, a divisor of d_model.
            dropout: probability with which a weight is dropped in training mode.

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        ### BEGIN SOLUTION
        if num_heads < 1 or d_model % num_heads != 0:
            raise ValueError(f"d_model={d_model} can't be split into {num_heads} equal heads")
        self.num_heads = num_heads
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, d_model, bias=False)
        self.r_proj = nn.Linear(d_model, d_model, bias=False)
        self.out_proj = nn.Linear(d_model, d_model, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(num_heads, d_model // num_heads))
        self.position_bias = nn.Parameter(torch.zeros(num_heads, d_model // num_heads))
        self.dropout = nn.Dropout(dropout)
        ### END SOLUTION

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """Attend to the memory and to the positions up to the own one.

        Args:
            x: (B, T, D).
            memory: (B, M, D), the M positions before x; gets no gradient. None: there are none.

        Returns:
            (B, T, D).
        """
        ### BEGIN SOLUTION
        batch, length, width = x.shape
        head = width // self.num_heads
        context = x if memory is None else torch.cat([memory.detach(), x], dim=1)  # (B, S, D)
        total = context.shape[1]  # S = M + T

        def split(vectors: Tensor) -> Tensor:
            return vectors.unflatten(-1, (self.num_heads, head)).transpose(-2, -3)

        queries = split(self.q_proj(x))  # (B, H, T, D/H)
        keys = split(self.k_proj(context))  # (B, H, S, D/H)
        values = split(self.v_proj(context))  # (B, H, S, D/H)
        codes = relative_code(torch.arange(total, device=x.device), width).to(x)  # (S, D)
        relative = split(self.r_proj(codes))  # (H, S, D/H), one for each distance

        positions = torch.arange(total, device=x.device)  # (S,)
        distance = positions[total - length :].unsqueeze(1) - positions  # (T, S), i - j
        by_content = (queries + self.content_bias.unsqueeze(1)) @ keys.transpose(-2, -1)
        by_distance = (queries + self.position_bias.unsqueeze(1)) @ relative.transpose(-2, -1)
        # by_distance[..., t, d] is for distance d; key j needs that for i - j.
        index = distance.clamp(min=0).expand(by_distance.shape)  # (B, H, T, S)
        scores = (by_content + by_distance.gather(3, index)) / math.sqrt(head)  # (B, H, T, S)
        scores = scores.masked_fill(distance < 0, torch.finfo(scores.dtype).min)
        attn_weights = self.dropout(torch.softmax(scores, dim=-1))  # (B, H, T, S)
        joined = (attn_weights @ values).transpose(1, 2).reshape(batch, length, width)  # (B, T, D)
        return self.out_proj(joined)  # (B, T, D)
        ### END SOLUTION


# %% check="RelativeAttention" tags=["active-ipynb"]
# check("RelativeAttention")

# %% [markdown]
# ### Exercise 4: The memory
#
# Write `update_memory(memory, hidden, length)`: what the next segment may look back at.
#
# * `memory` `(B, M, D)` or `None`; `hidden` `(B, T, D)`, the vectors of the segment just read.
# * The result: the last `length` positions of memory and `hidden` joined along the length, or all of
#   them if there are fewer. <!-- id: last-positions --> It is detached: no gradient passes.
#   <!-- id: detached --> For `length=0` it is `(B, 0, D)`. <!-- id: length-0 -->
# * `ValueError` if `length` is negative. <!-- id: negative-length -->
#
# *Example.* With positions 1, 2, 3 in the memory, 4, 5 in the segment and `length=4` it is 2, 3, 4, 5:
# joined, never added.
#
# Book: `brt-transformer-xl`.
#
# <details><summary>Hint 1</summary>
#
# The memory comes first, the new positions after it.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `x[:, -0:]` is all of `x`. Count from the front instead: where do the last positions begin?
#
# </details>


# %% exercise="update_memory" points=1 section="brt-transformer-xl"
def update_memory(memory: Tensor | None, hidden: Tensor, length: int) -> Tensor:
    """What the next segment may look back at (Dai et al. 2019, section 3.2).

    Args:
        memory: (B, M, D), what this segment could look back at; None: nothing.
        hidden: (B, T, D), the vectors of this segment.
        length: how many positions to keep, at least 0.

    Returns:
        The last ``length`` positions of memory and hidden, joined along the length; all of them if
        there are fewer. Detached: no gradient passes.

    Raises:
        ValueError: if length < 0.
    """
    ### BEGIN SOLUTION
    if length < 0:
        raise ValueError(f"length must be at least 0, but is {length}")
    joined = hidden if memory is None else torch.cat([memory, hidden], dim=1)  # (B, M + T, D)
    # Not [:, -length:], which would keep everything for length 0.
    return joined[:, max(joined.shape[1] - length, 0) :].detach()  # (B, length, D)
    ### END SOLUTION


# %% check="update_memory" tags=["active-ipynb"]
# check("update_memory")


# %% tags=["instructor"]
class NezhaAttention(nn.Module):
    """Fixed relative positions on keys and values (NEZHA: Wei et al. 2019, section 2.2).

    The form is that of Shaw et al. (2018): score = q_i (k_j + a_ij) / sqrt(D/H), and the result is
    the weighted sum of v_j + a_ij, where a_ij is the sinusoidal code of j - i, cut off at ``clip``
    in both directions and the same for all heads. NEZHA alternates sines and cosines, here they
    stand in two halves: another order of the features of a head, which the projections learn.

    Submodules: ``q_proj``, ``k_proj``, ``v_proj``, ``out_proj``, as in SelfAttention.
    """

    def __init__(self, d_model: int, num_heads: int, clip: int = 64) -> None:
        """Create the four projections.

        Raises:
            ValueError: if num_heads does not divide d_model, or clip < 1.
        """
        super().__init__()
        if num_heads < 1 or d_model % num_heads != 0:
            raise ValueError(f"d_model={d_model} can't be split into {num_heads} equal heads")
        if clip < 1:
            raise ValueError(f"clip must be at least 1, but is {clip}")
        self.num_heads, self.clip = num_heads, clip
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x (B, T, D), mask (B, T) bool, True where a real token stands -> (B, T, D)."""
        batch, length, width = x.shape
        heads = (batch, length, self.num_heads, width // self.num_heads)
        queries = self.q_proj(x).reshape(heads).transpose(1, 2)  # (B, H, T, D/H)
        keys = self.k_proj(x).reshape(heads).transpose(1, 2)  # (B, H, T, D/H)
        values = self.v_proj(x).reshape(heads).transpose(1, 2)  # (B, H, T, D/H)
        positions = torch.arange(length, device=x.device)  # (T,)
        distance = (positions - positions.unsqueeze(1)).clamp(
            -self.clip, self.clip
        )  # (T, T), j - i
        relative = relative_code(distance, heads[-1]).to(x)  # (T, T, D/H)
        scores = queries @ keys.transpose(-2, -1)  # (B, H, T, T)
        scores = scores + torch.einsum("bhid,ijd->bhij", queries, relative)  # (B, H, T, T)
        scores = scores / math.sqrt(heads[-1])  # (B, H, T, T)
        if mask is not None:
            padding = ~mask[:, None, None, :]  # (B, 1, 1, T)
            scores = scores.masked_fill(padding, torch.finfo(scores.dtype).min)
        attn_weights = torch.softmax(scores, dim=-1)  # (B, H, T, T)
        joined = attn_weights @ values  # (B, H, T, D/H)
        joined = joined + torch.einsum("bhij,ijd->bhid", attn_weights, relative)  # (B, H, T, D/H)
        return self.out_proj(joined.transpose(1, 2).reshape(batch, length, width))  # (B, T, D)


# %% [markdown]
# ### Exercise 5: ELECTRA's replaced tokens
#
# ELECTRA has two networks. A small *generator*, a masked language model, fills the masked positions; a
# *discriminator* then says for **every** token whether it is the original one. Write
# `replace_tokens(ids, labels, logits)`, which makes the discriminator's input.
#
# * `ids` `(B, T)` `torch.int64`: the **original** tokens. `labels` `(B, T)`: as from `mask_tokens`,
#   different from `IGNORE` where a token was chosen. `logits` `(B, T, V)`: the generator's.
# * Returns `(replaced, is_replaced)`, both `(B, T)`. `replaced`: a token **drawn** from the softmax
#   of the logits where one was chosen, the original everywhere else. <!-- id: replaced -->
#   `is_replaced`: bool, `True`
#   where the two differ. <!-- id: is-replaced -->
# * Each position has its own draw. <!-- id: own-draw --> No gradient passes: the result has none.
#
# *Example.* Where the generator happens to draw the original token, `is_replaced` is `False`: the
# token is the right one, wherever it came from.
#
# Book: `brt-electra`.
#
# <details><summary>Hint 1</summary>
#
# `torch.multinomial(probabilities, 1)` draws one column for each row of a matrix `(n, V)`. The best
# token (`argmax`) is not a draw.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `logits[chosen]` with a bool tensor `(B, T)` is `(n, V)`, and `replaced[chosen] = ...` writes
# back. Write into a copy. It may be that nothing was chosen.
#
# </details>


# %% exercise="replace_tokens" points=3 section="brt-electra"
def replace_tokens(ids: Tensor, labels: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Put what a generator draws in place of the chosen tokens (ELECTRA: Clark et al. 2020, 2).

    Args:
        ids: (B, T) int64, the original tokens.
        labels: (B, T) int64, as from ``mask_tokens``: not IGNORE where a token was chosen.
        logits: (B, T, V), of the generator.

    Returns:
        replaced (B, T) int64: where chosen a token drawn from softmax(logits), elsewhere the
        original; is_replaced (B, T) bool: where it differs from the original. No gradient passes.
    """
    ### BEGIN SOLUTION
    chosen = labels != IGNORE  # (B, T)
    replaced = ids.clone()  # (B, T)
    if chosen.any():
        probabilities = torch.softmax(logits.detach()[chosen], dim=-1)  # (n, V)
        replaced[chosen] = torch.multinomial(probabilities, 1).squeeze(1)  # (n,)
    return replaced, replaced != ids  # (B, T), (B, T)
    ### END SOLUTION


# %% check="replace_tokens" tags=["active-ipynb"]
# check("replace_tokens")

# %% [markdown]
# ### Exercise 6: The discriminator's loss
#
# Write `replaced_token_loss(scores, is_replaced, mask)`.
#
# $$\frac1{|R|} \sum_{(b,t)\,\in\,R} \begin{cases}
# -\log \sigma(z_{b,t}) & \text{if the token is replaced}\\
# -\log\bigl(1 - \sigma(z_{b,t})\bigr) & \text{otherwise}\end{cases}$$
#
# <!-- id: formula -->
#
# * `scores` ($z$) `(B, T)`, before the sigmoid; `is_replaced` `(B, T)` bool; `mask` `(B, T)` bool.
#   $R$ are **all** real tokens, special ones too, not only the chosen ones.
#   <!-- id: all-real-tokens -->
# * The result is a scalar, also for large scores: nothing may overflow. <!-- id: stable -->
#
# *Example.* If all scores are 0 it is $\log 2 \approx 0.693$.
#
# Book: `brt-electra`.
#
# <details><summary>Hint 1</summary>
#
# `F.binary_cross_entropy_with_logits` takes scores and targets; the targets must be of a floating
# type.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `scores[mask]` are the real ones of the whole batch, in one vector. Then a mean is a mean over them.
#
# </details>


# %% exercise="replaced_token_loss" points=1 section="brt-electra"
def replaced_token_loss(scores: Tensor, is_replaced: Tensor, mask: Tensor) -> Tensor:
    """The loss of the discriminator, on every real token (ELECTRA: Clark et al. 2020, section 2).

    Args:
        scores: (B, T), large where a token looks replaced.
        is_replaced: (B, T) bool.
        mask: (B, T) bool, True where a real token stands.

    Returns:
        A scalar: the mean binary cross-entropy over all real tokens.
    """
    ### BEGIN SOLUTION
    targets = is_replaced[mask].to(scores.dtype)  # (n,)
    return F.binary_cross_entropy_with_logits(scores[mask], targets)  # scalar
    ### END SOLUTION


# %% check="replaced_token_loss" tags=["active-ipynb"]
# check("replaced_token_loss")

# %% [markdown]
# ### Exercise 7: ELMo's two directions
#
# ELMo sees both sides without masking anything: one language model reads from left to right,
# another from right to left, and their states are put side by side. Write
# `TwoDirections(vocab_size, embed_dim, hidden_size)`.
#
# * Submodules: `embedding = nn.Embedding(vocab_size, embed_dim)`; `forward_lstm` and
#   `backward_lstm`, each `nn.LSTM(embed_dim, hidden_size, batch_first=True)`;
#   `output = nn.Linear(hidden_size, vocab_size)`, used by both directions. <!-- id: submodules -->
# * `forward(ids, mask=None)`: both `(B, T)`. The result is `(B, T, 2 * hidden_size)`: at position $t$
#   first the state of the forward LSTM, which has read tokens $0$ to $t$, then that of the backward
#   LSTM, which has read from the **last real** token down to $t$. <!-- id: two-states -->
#   Padding is never read before a
#   real token; what stands at padding is of no importance. <!-- id: padding -->
# * `loss(ids, mask=None)`: two means, added.
#
# $$\operatorname*{mean}_{t \text{ has a next one}} -\log p(i_{t+1} \mid \overrightarrow{h_t})
# \;+\;
# \operatorname*{mean}_{t \text{ has a previous one}} -\log p(i_{t-1} \mid \overleftarrow{h_t})$$
#
# <!-- id: loss -->
#
# * Each mean is over all such real positions of the batch; the next and the previous token are real
#   ones too. <!-- id: real-targets --> At least one row has two real tokens.
#
# *Example.* If all parameters of `output` are 0, the loss is $2 \log V$.
#
# Book: `brt-elmo`.
#
# <details><summary>Hint 1</summary>
#
# `nn.LSTM` returns `(states, last)`; the states of all positions are the first. To read backwards,
# flip the input, run the LSTM, and flip its states back.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `flip` alone would bring the padding to the front. Flip only the real part: with the row's length
# $n$, position $t$ takes what stands at $n - 1 - t$, and padding stays where it is. The same step
# turns the states back. Or use `pack_padded_sequence`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The forward state at $t$ has already read token $t$; it predicts $t + 1$. So `forwards[:, :-1]`
# goes with `ids[:, 1:]`, and `backwards[:, 1:]` with `ids[:, :-1]`. Which of these pairs are real?
#
# </details>


# %% exercise="TwoDirections" points=4 section="brt-elmo"
class TwoDirections(nn.Module):
    """Two language models, one in each direction (ELMo: Peters et al. 2018, section 3.1).

    Submodules: ``embedding`` = nn.Embedding(vocab_size, embed_dim); ``forward_lstm`` and
    ``backward_lstm``, each nn.LSTM(embed_dim, hidden_size, batch_first=True); ``output`` =
    nn.Linear(hidden_size, vocab_size), used by both directions.
    """

    def __init__(self, vocab_size: int, embed_dim: int, hidden_size: int) -> None:
        """Create the submodules.

        Args:
            vocab_size: V.
            embed_dim: E, the width of an embedding.
            hidden_size: the width of the state of each direction.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.forward_lstm = nn.LSTM(embed_dim, hidden_size, batch_first=True)
        self.backward_lstm = nn.LSTM(embed_dim, hidden_size, batch_first=True)
        self.output = nn.Linear(hidden_size, vocab_size)
        ### END SOLUTION

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """The states of both directions, side by side.

        Args:
            ids: (B, T) int64.
            mask: (B, T) bool, True where a real token stands. None: everywhere.

        Returns:
            (B, T, 2 hidden_size): at position t the state of the forward LSTM, which has read tokens 0
            to t, and that of the backward LSTM, which has read from the last real token to t. What
            stands at padding is of no importance.
        """
        ### BEGIN SOLUTION
        x = self.embedding(ids)  # (B, T, E)
        length = x.new_full((len(ids), 1), ids.shape[1]) if mask is None else mask.sum(1, True)
        position = torch.arange(ids.shape[1], device=ids.device)  # (T,)
        # The real tokens of each row from the last to the first; padding stays where it is.
        turned = torch.where(position < length, length.long() - 1 - position, position)  # (B, T)

        def turn(vectors: Tensor) -> Tensor:
            return vectors.gather(1, turned.unsqueeze(2).expand(-1, -1, vectors.shape[2]))

        forwards, _ = self.forward_lstm(x)  # (B, T, hidden_size)
        backwards, _ = self.backward_lstm(turn(x))  # (B, T, hidden_size), in reading order
        return torch.cat([forwards, turn(backwards)], dim=2)  # (B, T, 2 hidden_size)
        ### END SOLUTION

    def loss(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """How badly both directions predict the token that each reads next.

        Args:
            ids: (B, T) int64.
            mask: (B, T) bool, True where a real token stands. None: everywhere.

        Returns:
            A scalar: the mean of -log p(next token) over all real positions that have a next one, by
            the forward state; plus the mean of -log p(previous token) over all real positions that
            have a previous one, by the backward state.
        """
        ### BEGIN SOLUTION
        forwards, backwards = self(ids, mask).chunk(2, dim=2)  # (B, T, hidden_size) each
        # A real position and its neighbour: both are real where the right one of them is.
        both = torch.ones_like(ids[:, 1:], dtype=torch.bool) if mask is None else mask[:, 1:]
        following = F.cross_entropy(self.output(forwards[:, :-1])[both], ids[:, 1:][both])
        preceding = F.cross_entropy(self.output(backwards[:, 1:])[both], ids[:, :-1][both])
        return following + preceding  # scalar
        ### END SOLUTION


# %% check="TwoDirections" tags=["active-ipynb"]
# check("TwoDirections")


# %% tags=["instructor"]
def from_pretrained(
    folder: str | Path, kind: str = "pretraining", *, course_ids: bool = False, **more: Any
) -> tuple[nn.Module, "WordPieceTokenizer | None"]:
    """Build a model of ours, and its tokenizer, from a folder with a Hugging Face BERT checkpoint.

    Args:
        folder: holds config.json and model.safetensors, and for the tokenizer vocab.txt (or
            tokenizer.json) and perhaps tokenizer_config.json.
        kind: "model" (BertModel), "pretraining" (BertForPreTraining), "sequence"
            (SequenceClassifier), "choice" (MultipleChoice), "span" (SpanFinder) or "tagging"
            (Tagger).
        course_ids: whether the special tokens are renumbered as the course's, PAD, UNK, CLS, SEP,
            MASK = 0 to 4, in the tokenizer and in the rows of the model. Then ``build_input``,
            ``pad_batch``, ``mask_tokens`` and the others work on this model as on one of our own.
            Else all ids are the checkpoint's (in bert-base-uncased CLS is 101 and MASK 103), and
            such functions would misread them: the ids are in the tokenizer's ``special``.
        **more: ``num_labels`` for "sequence" and "tagging" (else as many as the checkpoint's
            configuration names, or 2); ``dropout`` for all kinds (else the configuration's).

    Returns:
        The model in evaluation mode, in the floating type of the checkpoint, and the tokenizer;
        None if the folder has no file of one. What the checkpoint lacks of the heads and of the
        pooler is drawn at random, and a warning names it; heads that this kind doesn't have, or
        that were trained for another kind, are left aside.

    Raises:
        ValueError: if the kind or an option is unknown; a file is missing or damaged; the
            checkpoint is not a BERT encoder with GELU, absolute positions, eps = 1e-12, one rate of
            dropout (unless it is given) and, for "pretraining", tied matrices; a name is foreign or
            there twice; a part of the encoder is missing; a shape or a type of numbers does not
            fit; the vocabulary lacks a special token, or does not go with the configuration's size
            and padding; or ``course_ids`` without a tokenizer.
    """
    # Needed here only: the rest of the chapter works without these.
    from toolkit import checkpoint
    from toolkit.tokenizer import WordPieceTokenizer

    kinds = ("model", "pretraining", "sequence", "choice", "span", "tagging")
    if kind not in kinds:
        raise ValueError(f"kind must be one of {', '.join(kinds)}, but is {kind!r}")
    config = checkpoint.read_config(folder, ("bert",))
    for key, value in (
        ("hidden_act", "gelu"),
        ("position_embedding_type", "absolute"),
        ("layer_norm_eps", 1e-12),
        ("is_decoder", False),
        ("add_cross_attention", False),
    ):
        checkpoint.only(config, key, value)
    if kind == "pretraining":
        checkpoint.only(config, "tie_word_embeddings", True)
    dropout = more.pop("dropout", None)
    if dropout is None:
        rates = ["hidden_dropout_prob", "attention_probs_dropout_prob"]
        if kind in ("sequence", "choice", "tagging"):
            rates.append("classifier_dropout")
        dropout = checkpoint.probability(config, *rates, default=0.1)
    num_labels = len(config.get("id2label") or ()) or 2
    if kind in ("sequence", "tagging"):
        num_labels = more.pop("num_labels", num_labels)
    if more:
        raise ValueError(f"the kind {kind!r} has no option {', '.join(sorted(more))}")

    vocab_size = checkpoint.positive(config, "vocab_size", default=30522)
    tokenizer, order = WordPieceTokenizer.read(folder), None
    if tokenizer is not None:
        pad = tokenizer.special.pad
        checkpoint.room(vocab_size, len(tokenizer))
        checkpoint.agree(config, "pad_token_id", pad, tokenizer.names[pad])
    if course_ids:
        if tokenizer is None:
            raise ValueError("without a tokenizer nobody knows which ids are special")
        tokenizer, order = tokenizer.in_course_order()
        order += range(len(order), vocab_size)  # rows without a token stay where they are

    sizes = (
        vocab_size,
        checkpoint.positive(config, "hidden_size", default=768),
        checkpoint.positive(config, "num_hidden_layers", default=12),
        checkpoint.positive(config, "num_attention_heads", default=12),
        checkpoint.positive(config, "intermediate_size", default=3072),
        checkpoint.positive(config, "max_position_embeddings", default=512),
        checkpoint.positive(config, "type_vocab_size", default=2),
        dropout,
    )
    if kind == "model":
        model: nn.Module = BertModel(*sizes)
    elif kind == "pretraining":
        model = BertForPreTraining(*sizes)
    elif kind == "sequence":
        model = SequenceClassifier(BertModel(*sizes), num_labels, dropout)
    elif kind == "choice":
        model = MultipleChoice(BertModel(*sizes), dropout)
    elif kind == "span":
        model = SpanFinder(BertModel(*sizes))
    else:
        model = Tagger(BertModel(*sizes), num_labels, dropout)

    stored = checkpoint.read_weights(folder)
    # The heads of four kinds have one name for us; two sentences and a span both have two rows.
    trained_for = {
        "BertForSequenceClassification": "sequence",
        "BertForMultipleChoice": "choice",
        "BertForTokenClassification": "tagging",
    }
    said = {trained_for.get(name) for name in config.get("architectures") or ()} - {None}
    asked = {"span"} if "qa_outputs.weight" in stored else said or set(trained_for.values())
    heads = ("mlm.", "nsp.", "classifier.")
    wanted = model.state_dict()
    found = {}
    for name, tensor in checkpoint.renamed(stored, rename_parameters).items():
        if name.startswith(heads):
            if name in wanted and (kind in asked or not name.startswith("classifier.")):
                found[name] = tensor
        else:  # a part of the encoder, with or without the prefix
            name = name.removeprefix("bert.")
            full = name if kind == "model" else f"bert.{name}"
            if full in found:
                raise ValueError(f"the checkpoint has {name} twice, with and without the prefix")
            found[full] = tensor
    table = "embeddings.token.weight" if kind == "model" else "bert.embeddings.token.weight"
    checkpoint.fit(found, wanted)
    optional = (*heads, "pooler.", "bert.pooler.")
    tied = "mlm.token.weight"  # it is stored once
    missing = [name for name in wanted if name not in found and name != tied]
    for name in missing:
        if not name.startswith(optional):
            raise ValueError(f"the checkpoint lacks {name}")
    if kind == "pretraining":
        found[tied] = found[table]
        for end, ours in (("weight", tied), ("bias", "mlm.bias")):
            if ours in found:
                name = f"cls.predictions.decoder.{end}"
                checkpoint.same(stored, name, found[ours], ours)
    if order is not None:
        for name in {table, tied, "mlm.bias"} & found.keys():
            found[name] = found[name][order]
    if missing:
        names = ", ".join(missing)
        warnings.warn(f"the checkpoint lacks {names}: drawn at random", stacklevel=2)
    model.to(found[table].dtype)
    model.load_state_dict(found, strict=False)  # what is missing was judged above
    return model.eval(), tokenizer
