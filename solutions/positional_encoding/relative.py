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
# # Positions: learned and relative
#
# At the end of this unit positions are learned, and attention uses distances instead of
# positions, in three ways: with vectors for distances, with rotations (RoPE), and with a penalty that
# grows with the distance (ALiBi).

# %%
"""Learned positions, and three ways in which attention knows distances: Shaw's, RoPE, ALiBi."""

# The options of a cell must stand on one line, however long it gets.
# ruff: noqa: E501

# %%
import math

import torch
from torch import Tensor, nn

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("positional_encoding-relative")

# %% [markdown]
# ### Exercise 1: Learned positions
#
# BERT and GPT don't compute the code of a position, they learn it: one vector per position, added to the
# embedding. Write `LearnedPositions(max_length, d_model)`:
#
# $$y_{bt} = x_{bt} + P_t$$
#
# <!-- id: sum -->
#
# * Layer: `table = nn.Embedding(max_length, d_model)`. Nothing else, no dropout. <!-- id: layer -->
# * `forward(x)`: `x` `(B, T, D)`; the result has the same shape. Position $t$ is the **second**
#   dimension. <!-- id: second-dimension -->
# * `ValueError` if `x` is not `d_model` wide, or if $T$ is larger than `max_length`: behind the
#   table there is nothing to add. <!-- id: too-long -->
#
# *Example.* With the table $\begin{pmatrix}1&2\\3&4\end{pmatrix}$ the sequence $(10, 10), (10, 10)$
# becomes $(11, 12), (13, 14)$, in every example of a batch.
#
# Book: `pos-learned`.
#
# <details><summary>Hint 1</summary>
#
# The rows of the table are `self.table.weight`; you need the first $T$.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A sequence of length 1 would be broadcast in silence against more rows, so take exactly as many
# rows as `x` has positions. Both sizes can be read from `self.table`.
#
# </details>


# %% exercise="LearnedPositions" points=2 section="pos-learned"
class LearnedPositions(nn.Module):
    """Add a learned vector per position (Gehring et al. 2017, section 3.1; BERT and GPT).

    Layer: ``table`` = nn.Embedding(max_length, d_model).
    """

    def __init__(self, max_length: int, d_model: int) -> None:
        """Create ``table``."""
        super().__init__()
        ### BEGIN SOLUTION
        self.table = nn.Embedding(max_length, d_model)
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """Add row t of the table to every x[:, t].

        Args:
            x: (B, T, D).

        Returns:
            (B, T, D).

        Raises:
            ValueError: if x is longer than the table, or of another width.
        """
        ### BEGIN SOLUTION
        max_length, d_model = self.table.weight.shape
        if x.shape[-1] != d_model:
            raise ValueError(f"x is {x.shape[-1]} wide, but the position table is {d_model} wide")
        if x.shape[1] > max_length:
            raise ValueError(f"x has {x.shape[1]} positions, but the table ends after {max_length}")
        return x + self.table.weight[: x.shape[1]]  # (B, T, D)
        ### END SOLUTION


# %% check="LearnedPositions" tags=["active-ipynb"]
# check("LearnedPositions")

# %% [markdown]
# ## Relative positions
#
# ### Exercise 2: Which pair has which distance?
#
# Shaw et al. (2018) let attention know how far apart two tokens are, instead of where each of them
# stands. Each distance from $-k$ to $k$ has a learned vector; greater distances share the
# outermost. Write `relative_indices(length, max_distance)`, which says for every pair which vector
# is meant:
#
# $$\text{index}_{ij} = \operatorname{clip}(j - i,\, -k,\, k) + k,\qquad k = \text{max\_distance}$$
#
# <!-- id: clipped-distance -->
#
# * Row $i$ belongs to the query, column $j$ to the key: a key to the *left* of its query has an
#   index below $k$, the query itself has exactly $k$. <!-- id: rows-are-queries -->
# * The result is `int64` `(T, T)` with entries in $0, \dots, 2k$; $k = 0$ gives zeros only.
#   <!-- id: int64 -->
# * `ValueError` if `length` is smaller than 1, or if `max_distance` is negative.
#   <!-- id: bad-input -->
#
# *Example.* `relative_indices(4, 2)` is
# $\begin{pmatrix}2&3&4&4\\1&2&3&4\\0&1&2&3\\0&0&1&2\end{pmatrix}$.
#
# Book: `pos-relative`.
#
# <details><summary>Hint 1</summary>
#
# All differences at once: positions as a row minus positions as a column.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `.clamp(low, high)` clips a tensor. Clip first, then move by $k$.
#
# </details>


# %% exercise="relative_indices" points=2 section="pos-relative"
def relative_indices(length: int, max_distance: int) -> Tensor:
    """Which offset vector belongs to each pair of positions (Shaw et al. 2018, section 3.2).

    Args:
        length: number of positions T, at least 1.
        max_distance: k, at least 0; pairs further apart count as k apart.

    Returns:
        int64 (T, T); entry [i, j] is clip(j - i, -k, k) + k, in 0 .. 2k.

    Raises:
        ValueError: if length is smaller than 1, or max_distance is negative.
    """
    ### BEGIN SOLUTION
    if length < 1:
        raise ValueError(f"length must be at least 1, but is {length}")
    if max_distance < 0:
        raise ValueError(f"max_distance must be at least 0, but is {max_distance}")
    positions = torch.arange(length)  # (T,)
    offsets = positions[None, :] - positions[:, None]  # (T, T), j - i
    return offsets.clamp(-max_distance, max_distance) + max_distance  # (T, T)
    ### END SOLUTION


# %% check="relative_indices" tags=["active-ipynb"]
# check("relative_indices")

# %% [markdown]
# ### Exercise 3: Self-attention with relative positions
#
# Write `RelativeSelfAttention(d_model, num_heads, max_distance)`: multi-head self-attention in
# which every pair of positions adds the vector of its distance to the key, and another one to the
# value (Shaw et al., 2018, section 3.1). With $a_{ij}$ = row `relative_indices(T, max_distance)[i,
# j]` of a table, for every head:
#
# $$e_{ij} = \frac{q_i \cdot (k_j + a^K_{ij})}{\sqrt{D_h}},\qquad
# w_{ij} = \operatorname{softmax}_j(e_{ij}),\qquad
# z_i = \sum_j w_{ij}\,(v_j + a^V_{ij})$$
#
# <!-- id: formula -->
#
# * Layers, with bias: `q_proj`, `k_proj`, `v_proj`, `out_proj`, each `nn.Linear(d_model, d_model)`.
#   Head $h$ has the features $h D_h$ to $(h + 1) D_h - 1$ of each projection; the heads' results
#   are joined in the same order and go through `out_proj`. <!-- id: layers -->
# * Parameters: `key_offsets` ($a^K$) and `value_offsets` ($a^V$), each `(2 * max_distance + 1,
#   d_model // num_heads)`, shared by all heads. <!-- id: offsets -->
# * `forward(x, mask=None)`: `x` `(B, T, D)`; `mask` bool, broadcastable to `(B, T, T)`, `True` =
#   may attend, the same for all heads. <!-- id: mask -->
# * Returns `(output, attn_weights)`: `(B, T, D)` and `(B, H, T, T)`. Weights are exactly 0 where
#   the mask is `False`. <!-- id: zero-weights -->
#   A fully masked row has weights 0, its output is the bias of `out_proj`, and
#   its gradients are finite. <!-- id: fully-masked-row -->
# * `ValueError` if `num_heads` doesn't divide `d_model` (when the module is created), if `x` is not
#   `d_model` wide, or if the mask is not bool or not broadcastable to `(B, T, T)`.
#   <!-- id: bad-input -->
#
# *Example.* One head of width 1, $T = 3$, `max_distance` 2, all queries 1, all keys 0, and $a^K =
# (0, \ln 2, 0, 0, 0)$: the key just before its query counts double, wherever it stands. The weights
# are $\begin{pmatrix}1/3&1/3&1/3\\1/2&1/4&1/4\\1/4&1/2&1/4\end{pmatrix}$. With both tables 0 it is
# ordinary multi-head self-attention.
#
# Book: `pos-relative`.
#
# <details><summary>Hint 1</summary>
#
# `self.key_offsets[index]` with an index `(T, T)` is `(T, T, Dh)`: the vector of every pair.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Split both sums: $q_i\cdot k_j + q_i\cdot a^K_{ij}$ is a matrix product and
# `torch.einsum("bhid,ijd->bhij", ...)`; the values go the same way with another `einsum`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A softmax over nothing but $-\infty$ is NaN, and so may be its gradient, even where you overwrite
# the value. Fill with the smallest finite number instead, `torch.finfo(scores.dtype).min`, and set
# what is masked to 0 *after* the softmax. (Where you write the softmax yourself, as in the
# attention chapter, you can keep $-\infty$ and repair its maximum and its denominator;
# `torch.softmax` lets you do neither.) Give the mask its head axis: `(B, 1, T, T)`.
#
# </details>


# %% exercise="RelativeSelfAttention" points=5 section="pos-relative"
class RelativeSelfAttention(nn.Module):
    """Multi-head self-attention with relative positions (Shaw et al. 2018, section 3.1).

    Layers, all with bias: ``q_proj``, ``k_proj``, ``v_proj``, ``out_proj``, each d_model ->
    d_model. Parameters shared by the heads: ``key_offsets`` and ``value_offsets``, each
    (2 max_distance + 1, d_model / num_heads).
    """

    def __init__(self, d_model: int, num_heads: int, max_distance: int) -> None:
        """Create the four projections and the two tables of offset vectors.

        Args:
            d_model: width of inputs and outputs.
            num_heads: H, a divisor of d_model.
            max_distance: k, at least 0; pairs further apart count as k apart.

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        ### BEGIN SOLUTION
        if d_model % num_heads != 0:
            raise ValueError(f"d_model={d_model} can't be split into {num_heads} equal heads")
        head_dim = d_model // num_heads
        self.num_heads = num_heads
        self.max_distance = max_distance
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        distances = 2 * max_distance + 1
        self.key_offsets = nn.Parameter(torch.randn(distances, head_dim) / math.sqrt(head_dim))
        self.value_offsets = nn.Parameter(torch.randn(distances, head_dim) / math.sqrt(head_dim))
        ### END SOLUTION

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Let every token attend to every token, aware of how far apart they are.

        Args:
            x: (B, T, D).
            mask: bool, broadcastable to (B, T, T), True = may attend; the same for all heads.

        Returns:
            The output (B, T, D) and the weights (B, H, T, T). A fully masked row has weights 0,
            and its output is the bias of out_proj.

        Raises:
            ValueError: if x is not d_model wide, or the mask is not bool or not broadcastable to
                (B, T, T).
        """
        ### BEGIN SOLUTION
        batch, length, width = x.shape
        if width != self.q_proj.in_features:
            raise ValueError(f"x is {width} wide, but d_model is {self.q_proj.in_features}")
        heads = (batch, length, self.num_heads, -1)
        q = self.q_proj(x).view(heads).transpose(1, 2)  # (B, H, T, Dh)
        k = self.k_proj(x).view(heads).transpose(1, 2)  # (B, H, T, Dh)
        v = self.v_proj(x).view(heads).transpose(1, 2)  # (B, H, T, Dh)
        index = relative_indices(length, self.max_distance).to(x.device)  # (T, T)
        key_offsets = self.key_offsets[index]  # (T, T, Dh)
        value_offsets = self.value_offsets[index]  # (T, T, Dh)

        scores = q @ k.transpose(-2, -1)  # (B, H, T, T)
        scores = scores + torch.einsum("bhid,ijd->bhij", q, key_offsets)  # (B, H, T, T)
        scores = scores / math.sqrt(q.shape[-1])
        if mask is None:
            attn_weights = torch.softmax(scores, dim=-1)  # (B, H, T, T)
        else:
            if mask.dtype != torch.bool:
                raise ValueError(f"mask must be torch.bool, but is {mask.dtype}")
            try:
                hidden = ~mask.broadcast_to(batch, length, length).unsqueeze(1)  # (B, 1, T, T)
            except RuntimeError:
                raise ValueError(
                    f"mask {tuple(mask.shape)} can't be broadcast to {(batch, length, length)}"
                ) from None
            # Not -inf, which would make a fully masked row NaN in value and gradient.
            scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
            attn_weights = torch.softmax(scores, dim=-1).masked_fill(hidden, 0.0)  # (B, H, T, T)

        z = attn_weights @ v  # (B, H, T, Dh)
        z = z + torch.einsum("bhij,ijd->bhid", attn_weights, value_offsets)  # (B, H, T, Dh)
        z = z.transpose(1, 2).reshape(batch, length, width)  # (B, T, D)
        return self.out_proj(z), attn_weights
        ### END SOLUTION


# %% check="RelativeSelfAttention" tags=["active-ipynb"]
# check("RelativeSelfAttention")


# %% tags=["instructor"]
def fast_relative_self_attention(
    module: RelativeSelfAttention, x: Tensor, mask: Tensor | None = None
) -> Tensor:
    """The output of ``module(x, mask)`` without a vector for every pair of positions.

    A query meets only 2k + 1 different offset vectors, so it is multiplied with each of them once,
    and the products are handed out to the pairs. The values go the other way: weights are added up
    per distance before they meet the vectors. (T, T, Dh) shrinks to (B, H, T, 2k + 1).

    Args:
        module: the layers to use.
        x: (B, T, D).
        mask: as for RelativeSelfAttention.

    Returns:
        (B, T, D), the same as the first result of the module.
    """
    batch, length, width = x.shape
    heads = (batch, length, module.num_heads, -1)
    q = module.q_proj(x).view(heads).transpose(1, 2)  # (B, H, T, Dh)
    k = module.k_proj(x).view(heads).transpose(1, 2)  # (B, H, T, Dh)
    v = module.v_proj(x).view(heads).transpose(1, 2)  # (B, H, T, Dh)
    index = relative_indices(length, module.max_distance).to(x.device)  # (T, T)
    index = index.expand(batch, module.num_heads, length, length)  # (B, H, T, T)

    by_distance = q @ module.key_offsets.T  # (B, H, T, 2k+1)
    scores = q @ k.transpose(-2, -1) + by_distance.gather(-1, index)  # (B, H, T, T)
    scores = scores / math.sqrt(q.shape[-1])
    if mask is not None:
        hidden = ~mask.broadcast_to(batch, length, length).unsqueeze(1)  # (B, 1, T, T)
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    attn_weights = torch.softmax(scores, dim=-1)  # (B, H, T, T)
    if mask is not None:
        attn_weights = attn_weights.masked_fill(hidden, 0.0)

    # (B,H,T,2k+1)
    per_distance = torch.zeros_like(by_distance).scatter_add(-1, index, attn_weights)
    z = attn_weights @ v + per_distance @ module.value_offsets  # (B, H, T, Dh)
    return module.out_proj(z.transpose(1, 2).reshape(batch, length, width))  # (B, T, D)


# %% [markdown]
# ### Exercise 4: Rotary position embeddings (RoPE)
#
# Most of today's language models add nothing to their embeddings. They *rotate* queries and keys,
# each pair of features by an angle that grows with the position, and then the product of a query and
# a key knows how far apart they are (Su et al., 2021, *RoFormer*, section 3.2). At position $m$ the
# pair number $i$, with the features $a$ and $b$, becomes
#
# $$a' = a\cos(m\,\omega_i) - b\sin(m\,\omega_i),\qquad b' = a\sin(m\,\omega_i) +
# b\cos(m\,\omega_i),\qquad \omega_i = \text{base}^{-2i/\text{head\_dim}}$$
#
# Write the module `RotaryEmbedding(head_dim, base=10000.0, interleaved=False)`.
#
# 1. `tables(position_ids)` takes positions `(..., T)`, int64, and **returns the pair** `(cos, sin)`,
#    each `float32` `(..., T, head_dim // 2)`: <!-- id: tables-shape -->
#    cosine and sine of the angle
#    $m\,\omega_i$, for $i = 0, \dots, \text{head\_dim}/2 - 1$. <!-- id: angles -->
# 2. `forward(x, position_ids=None)` takes `x` `(..., T, head_dim)` and **rotates** every pair by its
#    angle; <!-- id: rotates --> each feature stays where it is. <!-- id: same-place -->
# 3. **Which features are a pair?** `interleaved=False`: $i$ and $i + \text{head\_dim}/2$, as in
#    GPT-NeoX and in Hugging Face's LLaMA (`rotate_half`). <!-- id: half-pairs -->
#    `interleaved=True`: the neighbours $2i$ and $2i + 1$, as in the paper and in GPT-J.
#    <!-- id: interleaved-pairs -->
# 4. `position_ids` is broadcastable to `x.shape[:-1]`, and says **where each token stands**: `(T,)`
#    for all, `(B, 1, T)` for each example of `x` `(B, H, T, head_dim)`.
#    <!-- id: given-positions -->
#    Without it positions are 0, 1, …, T - 1. <!-- id: default-positions -->
# 5. The result has the **shape and the dtype of `x`**: `float32`, `float64` or `bfloat16`.
#    <!-- id: dtype-of-x -->
# 6. **Angles** are computed in `float32` at least, also once the module was converted with
#    `.to(torch.bfloat16)`, which can't tell position 257 from 256. <!-- id: angles-in-float32 -->
#    Positions reach 10,000; there an error of 0.002 in cosine and sine, which `float32` may leave,
#    is accepted. <!-- id: far-positions -->
# 7. The module has **no parameters** and an empty `state_dict()`. <!-- id: nothing-saved -->
#
# Raise `ValueError`, when the module is created, if `head_dim` is odd; <!-- id: odd-width -->
# and if
# the last dimension of `x` is not `head_dim`. <!-- id: other-width -->
#
# What you get for it: position 0 changes nothing, <!-- id: position-zero --> no vector changes its
# length, <!-- id: same-norm -->
# and the dot product of a given query at position $m$ and a given key at position
# $n$ depends on $m - n$ only. <!-- id: relative-only -->
#
# *Example.* `head_dim` 4 and base 100 have the frequencies $(1, 0.1)$. At position 1 the vector
# $(1, 0, 0, 1)$ becomes $(0.5403, -0.0998, 0.8415, 0.9950)$: features 0 and 2, $(1, 0)$, turn by 1,
# and features 1 and 3, $(0, 1)$, by 0.1. With `interleaved=True` it becomes
# $(0.5403, 0.8415, -0.0998, 0.9950)$: the same two pairs, other positions in the vector.
#
# Book: `pos-rope`.
#
# <details><summary>Hint 1</summary>
#
# Take `x` apart into all the $a$ and all the $b$, two tensors of half the width. Then the two
# formulas are written once for all pairs, and only taking apart and putting together depend on
# `interleaved`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `position_ids[..., None]` times a row of frequencies gives all angles. `x.chunk(2, dim=-1)` cuts
# into halves and `torch.cat` joins them again; `x[..., 0::2]` takes every second feature.
#
# </details>
# <details><summary>Hint 3</summary>
#
# To put neighbours side by side again: `torch.stack([a, b], dim=-1)` is `(..., T, head_dim // 2,
# 2)`, and `.flatten(-2)` makes one dimension of the last two. `bfloat16` times `float32` is
# `float32`, so convert the result back.
#
# </details>


# %% exercise="RotaryEmbedding" points=4 section="pos-rope"
class RotaryEmbedding(nn.Module):
    """Rotary position embeddings, RoPE (Su et al. 2021, RoFormer, section 3.2).

    No parameters and an empty state_dict.
    """

    def __init__(self, head_dim: int, base: float = 10000.0, interleaved: bool = False) -> None:
        """Set the frequencies and the pairs.

        Args:
            head_dim: width of one head, even.
            base: of the frequencies omega_i = base**(-2i / head_dim).
            interleaved: pair features 2i and 2i + 1 (the paper, GPT-J) instead of i and
                i + head_dim/2 (GPT-NeoX, Hugging Face's LLaMA).

        Raises:
            ValueError: if head_dim is odd.
        """
        super().__init__()
        ### BEGIN SOLUTION
        if head_dim % 2 != 0:
            raise ValueError(f"head_dim={head_dim} is odd, so its features don't make pairs")
        self.head_dim = head_dim
        self.base = base
        self.interleaved = interleaved
        ### END SOLUTION

    def tables(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the angle of every pair at every position.

        Args:
            position_ids: (..., T), int64.

        Returns:
            cos and sin, each float32 (..., T, head_dim // 2), of position_ids * omega_i.
        """
        ### BEGIN SOLUTION
        # In float64: an angle of 10,000 rounded to float32 is off by up to 5e-4.
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim
        frequencies = (self.base**-exponents).to(position_ids.device)  # (head_dim/2,)
        angles = position_ids[..., None] * frequencies  # (..., T, head_dim/2)
        return angles.cos().float(), angles.sin().float()  # (..., T, head_dim/2) each
        ### END SOLUTION

    def forward(self, x: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """Rotate the queries or the keys of one head, or of several.

        Args:
            x: (..., T, head_dim).
            position_ids: int64, broadcastable to x.shape[:-1]; None means 0, 1, ..., T - 1.

        Returns:
            (..., T, head_dim), of the dtype of x.

        Raises:
            ValueError: if the last dimension of x is not head_dim.
        """
        ### BEGIN SOLUTION
        if x.shape[-1] != self.head_dim:
            raise ValueError(f"x is {x.shape[-1]} wide, but head_dim is {self.head_dim}")
        if position_ids is None:
            position_ids = torch.arange(x.shape[-2], device=x.device)  # (T,)
        cos, sin = self.tables(position_ids)  # (..., T, head_dim/2) each
        if self.interleaved:
            a, b = x[..., 0::2], x[..., 1::2]  # (..., T, head_dim/2) each
        else:
            a, b = x.chunk(2, dim=-1)  # (..., T, head_dim/2) each
        rotated = [a * cos - b * sin, a * sin + b * cos]  # (..., T, head_dim/2) each
        if self.interleaved:
            y = torch.stack(rotated, dim=-1).flatten(-2)  # (..., T, head_dim)
        else:
            y = torch.cat(rotated, dim=-1)  # (..., T, head_dim)
        return y.to(x.dtype)  # (..., T, head_dim)
        ### END SOLUTION


# %% check="RotaryEmbedding" tags=["active-ipynb"]
# check("RotaryEmbedding")

# %% [markdown]
# ### Exercise 5: Attention with linear biases (ALiBi)
#
# ALiBi has no vectors for positions at all: the further a key is from its query, the more is
# subtracted from their score, and every head has a slope of its own (Press et al., 2022, section 3).
# A head with a large slope sees its neighbours only; one with a small slope sees far. Nothing is
# learned.
#
# Write `alibi_biases(num_heads, length)`: what is added to the scaled scores.
#
# $$\text{bias}_{hij} = -m_h\,|i - j|$$
#
# 1. The **result** is `float32` `(H, T, T)` with $H$ = `num_heads` and $T$ = `length`:
#    <!-- id: biases-shape --> head $h$, query $i$, key $j$. <!-- id: linear-in-distance -->
# 2. If $H$ is a **power of two**, the slopes are $m_h = 2^{-8(h+1)/H}$ for $h = 0, \dots, H - 1$.
#    <!-- id: power-of-two --> They run from $2^{-8/H}$ to $2^{-8}$, each by the same factor smaller
#    than the one before.
# 3. **Otherwise**, let $N$ be the largest power of two below $H$. First come the $N$ slopes for $N$
#    heads; then, from the slopes for $2N$ heads, the 1st, 3rd, 5th, … until there are $H$.
#    <!-- id: other-numbers --> (The paper writes the formula of 2 for every $H$; this is the rule
#    of its authors' code, which BLOOM and MPT follow.)
# 4. Keys to the **right** of their query are as far away as those to the left.
#    <!-- id: both-sides --> A causal model has its mask beside the biases; it is not in them.
#    <!-- id: no-mask -->
#
# Raise `ValueError` if `num_heads` <!-- id: no-heads --> or `length` is smaller than 1.
# <!-- id: no-length -->
#
# *Example.* `alibi_biases(2, 3)` has the slopes $2^{-4} = 1/16$ and $2^{-8} = 1/256$; head 0 is
# $\frac{1}{16}\begin{pmatrix}0&-1&-2\\-1&0&-1\\-2&-1&0\end{pmatrix}$. Three heads have the slopes
# $2^{-4}, 2^{-8}, 2^{-2}$: those for two heads, then the 1st of $2^{-2}, 2^{-4}, 2^{-6}, 2^{-8}$.
#
# Book: `pos-alibi`.
#
# <details><summary>Hint 1</summary>
#
# Slopes and distances have nothing to do with each other. Make the $H$ slopes, make the $(T, T)$
# distances, and multiply each distance by each slope at the end.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Positions as a row minus positions as a column give all differences. Slopes of shape `(H, 1, 1)`
# times distances `(T, T)` broadcast to `(H, T, T)`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A small function that gives the slopes for a power of two can be called twice, for $N$ and for
# $2N$; `[::2]` takes the 1st, 3rd, 5th, …. An integer's `.bit_length()` helps to find $N$.
#
# </details>


# %% exercise="alibi_biases" points=3 section="pos-alibi"
def alibi_biases(num_heads: int, length: int) -> Tensor:
    """What ALiBi adds to the scaled scores of attention (Press et al. 2022, section 3).

    Args:
        num_heads: H, at least 1.
        length: number of positions T, at least 1.

    Returns:
        float32 (H, T, T); entry [h, i, j] is -m_h |i - j|, with the slope m_h of head h.

    Raises:
        ValueError: if num_heads or length is smaller than 1.
    """
    ### BEGIN SOLUTION
    if num_heads < 1 or length < 1:
        raise ValueError(
            f"num_heads and length must be at least 1, but are {num_heads} and {length}"
        )
    power = 2 ** (num_heads.bit_length() - 1)  # N, or H if that is a power of two
    own = torch.arange(1, power + 1) / power  # (N,), for N heads
    between = torch.arange(1, 2 * power, 2) / (2 * power)  # (N,), every second for 2N heads
    slopes = 2.0 ** (-8 * torch.cat([own, between])[:num_heads])  # (H,)
    positions = torch.arange(length)  # (T,)
    distances = (positions - positions[:, None]).abs()  # (T, T)
    return slopes[:, None, None] * -distances  # (H, T, T)
    ### END SOLUTION


# %% check="alibi_biases" tags=["active-ipynb"]
# check("alibi_biases")

# %% [markdown]
# ### Question: Does it extrapolate?
#
# A model was trained on sequences of up to 20 tokens and is used on sequences of 40. What happens
# to positions 20 to 39 with a table of learned positions, with the sinusoidal code, and with
# relative positions that are clipped at a maximal distance? Distinguish between *a position has a
# code* and *the model works there*, say what the paper claims for sinusoids, and how you would test
# it.
#
# Book: `pos-extrapolation`. 3 points, marked by a person.

# %% [markdown] question="does_it_extrapolate" points=3 section="pos-extrapolation" title="Does it extrapolate?"
# **Your answer:**
#
# ### BEGIN SOLUTION
# *Learned positions:* a table of 20 rows has no code for position 20, and the model can't be run. A
# longer table has rows for it, but no training example ever reached them: they still hold their
# random initial values.
#
# *Sinusoids:* the code of every position can be computed, so the model *runs*. But its projections
# were fitted to the codes of positions 0 to 19 only. The slow waves then take values that never
# occurred in training, and nothing forces the learned layers to treat them sensibly. That moving by
# an offset is one rotation makes it *possible* to learn an attention by distance that works
# everywhere; it doesn't make training find it. The paper says no more than that sinusoids *may*
# allow longer sequences. In an experiment with a small model that names the symbol three positions
# back, one of eight, the accuracy falls from 100 percent inside the training length to 30 percent
# behind it for sinusoids, and to 13 percent, which is chance, for learned positions.
#
# *Clipped relative positions:* the vectors belong to distances, and all distances up to the clip
# occur in training at many positions; greater ones share one vector. So the pair *three positions
# back* looks the same at position 35 as at 10, and such a task carries over. It is no guarantee:
# the softmax runs over more keys than ever in training, and beyond the clip distances can't be told
# apart.
#
# *Test:* train on short lengths, evaluate on longer ones from the same source, position by position
# rather than by an average that hides the break, against chance and against the training range.
#
# *Points by part, and what commonly goes wrong:* `solutions/marking_guides.md`.
# ### END SOLUTION
