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
# # Attention: scores, weights and a decoder that looks back
#
# At the end of this unit a recurrent decoder looks back at every word of its source, with any of
# four ways to score how well a word fits.

# %%
"""Attention in a decoder: four scores, the masked softmax, the context, one step, dropout."""

# The options of a cell must stand on one line, however long it gets.
# ruff: noqa: E501

# %%
import math

import torch
from torch import Tensor, nn

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("attention-scores")

# %% [markdown]
# ## Scores: how well does a key fit a query?
#
# A score function gives one number for every pair of a query $q_i$ and a key $k_j$: how well they
# fit. The next four exercises share one interface:
#
# ```python
# scores = score(query, key, mask)   # (B, Tq, Dq), (B, Tk, Dk), mask -> (B, Tq, Tk)
# ```
#
# `mask` is `None` or a boolean tensor broadcastable to `(B, Tq, Tk)`, `True` = may attend. Where it
# is `False`, the score is $-\infty$ (`float("-inf")`), so that a softmax gives this key the weight 0.
#
# ### Exercise 1: Dot-product score
#
# The simplest score is the dot product of query and key (Luong et al., 2015, *dot*):
#
# $$e_{ij} = q_i^\top k_j = \sum_{d=1}^{D} q_{id}\,k_{jd}$$
#
# Write the module `DotScore`. Its `forward(query, key, mask=None)` takes `query` `(B, Tq, D)`, `key`
# `(B, Tk, D)` and a mask as above, and
#
# 1. **scores** every query against every key: the result is `(B, Tq, Tk)`, with $q_i^\top k_j$ in
#    row $i$ and column $j$; <!-- id: dot-products -->
# 2. **doesn't scale**: nothing is divided by anything (scaling comes in
#    `scaled_dot_product_attention`, unit `self_attention`); <!-- id: unscaled -->
# 3. **masks**: where the mask is `False`, the score is $-\infty$. <!-- id: masked-scores -->
#
# The module has no parameters. <!-- id: no-parameters -->
#
# Raise `ValueError` if `query` and `key` differ in width, even if one of them is 1 wide.
# <!-- id: other-widths -->
#
# *Example.* For $q = (1, 2)$ and keys $(3, -1)$ and $(0, 4)$ the scores are
# $1\cdot3 + 2\cdot(-1) = 1$ and $8$. With the mask `[True, False]` they are $1$ and $-\infty$.
#
# Book: `att-scores`.
#
# <details><summary>Hint 1</summary>
#
# All dot products at once are one matrix product per example, $Q K^\top$.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `key.transpose(1, 2)` is `(B, D, Tk)`; `@` multiplies the last two dimensions.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `scores.masked_fill(~mask, float("-inf"))` writes where the mask is `False` and broadcasts.
#
# </details>


# %% exercise="DotScore" points=2 section="att-scores"
class DotScore(nn.Module):
    """Dot-product score e_ij = q_i . k_j, unscaled (Luong et al. 2015, section 3.1, "dot").

    The module has no parameters.
    """

    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
        """Score every pair of a query and a key.

        Args:
            query: (B, Tq, D).
            key: (B, Tk, D).
            mask: bool, broadcastable to (B, Tq, Tk), True = may attend.

        Returns:
            (B, Tq, Tk) scores; -inf where the mask is False.

        Raises:
            ValueError: if the widths of query and key differ.
        """
        ### BEGIN SOLUTION
        if query.shape[-1] != key.shape[-1]:
            raise ValueError(f"query is {query.shape[-1]} wide, but key is {key.shape[-1]} wide")
        scores = query @ key.transpose(1, 2)  # (B, Tq, Tk)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return scores
        ### END SOLUTION


# %% check="DotScore" tags=["active-ipynb"]
# check("DotScore")

# %% [markdown]
# ### Exercise 2: Bilinear score
#
# A dot product needs queries and keys of the same width. A learned matrix $W$ between them lifts that
# restriction (Luong et al., 2015, *general*):
#
# $$e_{ij} = q_i^\top W k_j = \sum_{a}\sum_{b} q_{ia}\,W_{ab}\,k_{jb}$$
#
# Write the module `BilinearScore(query_dim, key_dim)`.
#
# 1. It has **one parameter**, `weight` of shape `(query_dim, key_dim)`, and no bias.
#    <!-- id: weight -->
#    The same $W$ serves every pair $(i, j)$, whatever the lengths. <!-- id: one-matrix -->
# 2. `forward(query, key, mask=None)` takes `query` `(B, Tq, query_dim)`, `key` `(B, Tk, key_dim)` and
#    **scores** every pair: the result is `(B, Tq, Tk)`, with $q_i^\top W k_j$ in row $i$ and column
#    $j$, <!-- id: bilinear-form --> not scaled. <!-- id: unscaled -->
# 3. It **masks** as in exercise 1: where the mask is `False`, the score is $-\infty$.
#    <!-- id: masked-scores -->
#
# *Example.* $q = (1, 2)$, $k = (3, 1)$, $W = \begin{pmatrix}1 & 0\\ 1 & 2\end{pmatrix}$:
# $q^\top W = (3, 4)$, so $e = 3\cdot3 + 4\cdot1 = 13$. With $W^\top$ instead it would be $8$.
#
# Book: `att-scores`.
#
# <details><summary>Hint 1</summary>
#
# A tensor becomes a parameter by `self.weight = nn.Parameter(...)`. Start from small random
# numbers, for example `torch.randn(...)` divided by the square root of `key_dim`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `query @ self.weight` carries the queries into the space of the keys; from there on it is
# exercise 1.
#
# </details>


# %% exercise="BilinearScore" points=2 section="att-scores"
class BilinearScore(nn.Module):
    """Bilinear score e_ij = s_i^T W h_j (Luong et al. 2015, section 3.1, "general").

    Parameters of the module: ``weight`` (query_dim, key_dim).
    """

    def __init__(self, query_dim: int, key_dim: int) -> None:
        """Create ``weight`` for queries of width query_dim and keys of width key_dim."""
        super().__init__()
        ### BEGIN SOLUTION
        self.weight = nn.Parameter(torch.randn(query_dim, key_dim) / math.sqrt(key_dim))
        ### END SOLUTION

    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
        """Score every pair of a query and a key.

        Args:
            query: (B, Tq, query_dim).
            key: (B, Tk, key_dim).
            mask: bool, broadcastable to (B, Tq, Tk), True = may attend.

        Returns:
            (B, Tq, Tk) scores; -inf where the mask is False.
        """
        ### BEGIN SOLUTION
        scores = query @ self.weight @ key.transpose(1, 2)  # (B, Tq, Tk)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return scores
        ### END SOLUTION


# %% check="BilinearScore" tags=["active-ipynb"]
# check("BilinearScore")

# %% [markdown]
# ### Exercise 3: Additive score
#
# Here a small network with one hidden layer scores each pair (Bahdanau et al., 2015):
#
# $$e_{ij} = v^\top \tanh(W_q\, q_i + W_k\, k_j)$$
#
# Write the module `AdditiveScore(query_dim, key_dim, hidden_dim)`.
#
# 1. It has **three linear layers without bias**: `query_projection` (`query_dim` to `hidden_dim`) for
#    $W_q$, `key_projection` (`key_dim` to `hidden_dim`) for $W_k$, and `energy` (`hidden_dim` to 1)
#    for $v$. <!-- id: layers -->
# 2. `forward(query, key, mask=None)` takes `query` `(B, Tq, query_dim)`, `key` `(B, Tk, key_dim)` and
#    **scores** every pair by the formula: the result is `(B, Tq, Tk)`, queries in rows,
#    <!-- id: additive-formula --> not scaled. <!-- id: unscaled -->
# 3. It **masks** as in exercise 1: where the mask is `False`, the score is $-\infty$.
#    <!-- id: masked-scores -->
#
# *Example.* With widths 1, $W_q = W_k = 1$ and $v = 2$: for $q = 0.5$ and $k = 0.5$ the score is
# $2\tanh(1) \approx 1.523$.
#
# Book: `att-scores`.
#
# <details><summary>Hint 1</summary>
#
# Project queries and keys first, each once: `(B, Tq, hidden)` and `(B, Tk, hidden)`. The pairs come
# afterwards.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Insert a dimension of size 1 into each, so that broadcasting adds every query to every key:
# `(B, Tq, 1, hidden) + (B, 1, Tk, hidden)`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `energy` returns `(B, Tq, Tk, 1)`; `.squeeze(-1)` drops the last dimension and only that one.
#
# </details>


# %% exercise="AdditiveScore" points=3 section="att-scores"
class AdditiveScore(nn.Module):
    """Additive score e_ij = v^T tanh(W_q q_i + W_k k_j) (Bahdanau et al. 2015, appendix A.1.2).

    Layers, all without bias: ``query_projection`` query_dim -> hidden_dim, ``key_projection``
    key_dim -> hidden_dim, ``energy`` hidden_dim -> 1.
    """

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int) -> None:
        """Create the three linear layers."""
        super().__init__()
        ### BEGIN SOLUTION
        self.query_projection = nn.Linear(query_dim, hidden_dim, bias=False)
        self.key_projection = nn.Linear(key_dim, hidden_dim, bias=False)
        self.energy = nn.Linear(hidden_dim, 1, bias=False)
        ### END SOLUTION

    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
        """Score every pair of a query and a key.

        Args:
            query: (B, Tq, query_dim).
            key: (B, Tk, key_dim).
            mask: bool, broadcastable to (B, Tq, Tk), True = may attend.

        Returns:
            (B, Tq, Tk) scores; -inf where the mask is False.
        """
        ### BEGIN SOLUTION
        q = self.query_projection(query).unsqueeze(2)  # (B, Tq, 1, hidden)
        k = self.key_projection(key).unsqueeze(1)  # (B, 1, Tk, hidden)
        hidden = torch.tanh(q + k)  # (B, Tq, Tk, hidden)
        scores = self.energy(hidden).squeeze(-1)  # (B, Tq, Tk)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return scores
        ### END SOLUTION


# %% check="AdditiveScore" tags=["active-ipynb"]
# check("AdditiveScore")

# %% [markdown]
# ### Exercise 4: Concatenation score
#
# Query and key can also be concatenated and go through one layer (Luong et al., 2015, *concat*):
#
# $$e_{ij} = v^\top \tanh\bigl(W\,[q_i; k_j]\bigr)$$
#
# $[q_i; k_j]$ is the query followed by the key, one vector of width `query_dim + key_dim`.
#
# Write the module `ConcatScore(query_dim, key_dim, hidden_dim)`.
#
# 1. It has **two linear layers without bias**: `projection` (`query_dim + key_dim` to `hidden_dim`)
#    for $W$ and `energy` (`hidden_dim` to 1) for $v$. <!-- id: layers -->
# 2. The **query comes first** in the concatenation. <!-- id: query-first -->
# 3. `forward(query, key, mask=None)` takes `query` `(B, Tq, query_dim)`, `key` `(B, Tk, key_dim)` and
#    **scores** every pair by the formula: the result is `(B, Tq, Tk)`, queries in rows,
#    <!-- id: concat-formula --> not scaled. <!-- id: unscaled -->
# 4. It **masks** as in exercise 1: where the mask is `False`, the score is $-\infty$.
#    <!-- id: masked-scores -->
#
# *Why tanh?* Without it the query's part of the score is the same for every key. It cancels in the
# softmax, and attention no longer depends on the query. <!-- id: query-matters -->
#
# *Example.* With widths 1, $W = (1, -1)$ and $v = 1$: for $q = 2$, $k = 1$ the score is
# $\tanh(2 - 1) \approx 0.762$; with the two swapped it is $-0.762$.
#
# Book: `att-scores`.
#
# <details><summary>Hint 1</summary>
#
# You need the tensor of all pairs, `(B, Tq, Tk, query_dim + key_dim)`: at `[b, i, j]` stand query
# `i` and then key `j`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `query.unsqueeze(2).expand(-1, -1, Tk, -1)` repeats each query for every key without copying;
# do the same for the keys on the other axis, then `torch.cat` along the last one.
#
# </details>


# %% exercise="ConcatScore" points=3 section="att-scores"
class ConcatScore(nn.Module):
    """Concatenation score e_ij = v^T tanh(W [q_i; k_j]) (Luong et al. 2015, section 3.1, "concat").

    Layers, both without bias: ``projection`` query_dim + key_dim -> hidden_dim (query first),
    ``energy`` hidden_dim -> 1.
    """

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int) -> None:
        """Create the two linear layers."""
        super().__init__()
        ### BEGIN SOLUTION
        self.projection = nn.Linear(query_dim + key_dim, hidden_dim, bias=False)
        self.energy = nn.Linear(hidden_dim, 1, bias=False)
        ### END SOLUTION

    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
        """Score every pair of a query and a key.

        Args:
            query: (B, Tq, query_dim).
            key: (B, Tk, key_dim).
            mask: bool, broadcastable to (B, Tq, Tk), True = may attend.

        Returns:
            (B, Tq, Tk) scores; -inf where the mask is False.
        """
        ### BEGIN SOLUTION
        q = query.unsqueeze(2).expand(-1, -1, key.shape[1], -1)  # (B, Tq, Tk, query_dim)
        k = key.unsqueeze(1).expand(-1, query.shape[1], -1, -1)  # (B, Tq, Tk, key_dim)
        pairs = torch.cat([q, k], dim=-1)  # (B, Tq, Tk, query_dim + key_dim)
        hidden = torch.tanh(self.projection(pairs))  # (B, Tq, Tk, hidden)
        scores = self.energy(hidden).squeeze(-1)  # (B, Tq, Tk)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return scores
        ### END SOLUTION


# %% check="ConcatScore" tags=["active-ipynb"]
# check("ConcatScore")

# %% [markdown]
# ## Weights and context
#
# ### Exercise 5: Masked softmax
#
# Scores in, attention weights out. Write `masked_softmax(scores, mask=None, dim=-1)`, a softmax over
# the positions that may be attended to. With $M$ the set of these positions,
#
# $$\alpha_{ij} = \frac{\exp(e_{ij} - m_i)}{\sum_{k \in M} \exp(e_{ik} - m_i)}\quad (j \in M),
# \qquad \alpha_{ij} = 0\quad (j \notin M),\qquad m_i = \max_{k \in M} e_{ik}.$$
#
# Subtracting the maximum $m_i$ changes nothing, since it cancels, but keeps `exp` from overflowing.
#
# 1. `scores` has any shape and is floating point; the **result** has the same shape and dtype,
#    <!-- id: same-shape --> and holds the weights of the formula, which sum to 1 along `dim`.
#    <!-- id: softmax-along-dim -->
# 2. `mask` is `None` or bool, broadcastable to the shape of `scores`; `True` = may attend.
#    **Masked positions** get the weight 0, exactly, <!-- id: masked-weights-zero --> whatever score
#    stands there, NaN and infinity included: it has no influence on the other weights,
#    <!-- id: masked-scores-ignored --> and its gradient is 0. <!-- id: masked-gradient -->
# 3. A score of $-\infty$ counts as masked. <!-- id: minus-infinity-masked -->
# 4. A **fully masked** slice along `dim` gets the weights 0, not NaN, <!-- id: fully-masked-slice -->
#    and its gradient is finite. <!-- id: fully-masked-gradient -->
# 5. **Large scores**, such as 10000 or −10000, neither overflow nor underflow to NaN.
#    <!-- id: large-scores -->
# 6. Not to be called: `softmax`, `log_softmax`, `softmin`, from wherever. `exp`, `logsumexp`, `sum`
#    and `amax` are fine. <!-- id: not-called -->
#
# Raise `ValueError` if `mask` is not of dtype `torch.bool`, <!-- id: mask-not-bool --> or can't be
# broadcast to the shape of `scores`; a mask with more dimensions than `scores` is refused too.
# <!-- id: mask-does-not-fit -->
#
# *Example.* Scores $(2, 1, 0)$ with mask `[True, True, False]`:
# $\bigl(\tfrac{e^0}{e^0 + e^{-1}}, \tfrac{e^{-1}}{e^0 + e^{-1}}, 0\bigr) \approx (0.731, 0.269, 0)$.
# With mask `[False, False, False]`: $(0, 0, 0)$.
#
# Book: `att-softmax`.
#
# <details><summary>Hint 1</summary>
#
# Write $-\infty$ where the mask is `False`; $\exp(-\infty)$ is exactly 0. From here on, the mask is
# not needed any more.
#
# </details>
# <details><summary>Hint 2</summary>
#
# In a fully masked slice the maximum is $-\infty$, and $-\infty - (-\infty)$ is NaN. Replace such a
# maximum by 0 before you subtract it.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The denominator of a fully masked slice is 0. Replace it by 1 *before* dividing. Repairing the NaN
# after the division (`nan_to_num`, `torch.where`) mends the value, but where `scores` themselves
# hold $-\infty$ the gradient stays NaN.
#
# </details>
# <details><summary>Hint 4</summary>
#
# `torch.broadcast_to(mask, scores.shape)` raises `RuntimeError` if the shapes don't fit; turn it
# into a `ValueError`.
#
# </details>


# %% exercise="masked_softmax" points=4 section="att-softmax" forbids="softmax log_softmax softmin special_softmax"
def masked_softmax(scores: Tensor, mask: Tensor | None = None, dim: int = -1) -> Tensor:
    """Softmax along ``dim`` over the positions that may be attended to.

    Args:
        scores: any shape, floating point; -inf counts as masked.
        mask: bool, broadcastable to the shape of scores, True = may attend.
        dim: the dimension along which the weights sum to 1.

    Returns:
        Weights of the shape and dtype of scores, exactly 0 where masked. A fully masked slice
        is all 0, with finite gradient.

    Raises:
        ValueError: if mask is not bool or not broadcastable to the shape of scores.
    """
    ### BEGIN SOLUTION
    if mask is not None:
        if mask.dtype != torch.bool:
            raise ValueError(f"mask must be torch.bool, but is {mask.dtype}")
        try:
            mask = mask.broadcast_to(scores.shape)
        except RuntimeError:
            raise ValueError(
                f"mask {tuple(mask.shape)} can't be broadcast to scores {tuple(scores.shape)}"
            ) from None
        scores = scores.masked_fill(~mask, float("-inf"))
    # The maximum cancels in the quotient, so no gradient needs to flow through it.
    top = scores.detach().amax(dim=dim, keepdim=True)  # 1 along dim
    # A fully masked slice has the maximum -inf, and -inf - (-inf) would be NaN.
    top = top.masked_fill(top == float("-inf"), 0.0)
    numerator = torch.exp(scores - top)  # like scores; exp(-inf) is exactly 0
    denominator = numerator.sum(dim=dim, keepdim=True)  # 1 along dim
    # Replaced before the division: 0/0 would poison the gradient even if it was repaired later.
    denominator = denominator.masked_fill(denominator == 0.0, 1.0)
    return numerator / denominator
    ### END SOLUTION


# %% check="masked_softmax" tags=["active-ipynb"]
# check("masked_softmax")

# %% [markdown]
# ### Exercise 6: Context vector
#
# The context of a query is the weighted sum of **all** values:
#
# $$c_i = \sum_{j} \alpha_{ij}\, v_j$$
#
# Write `context_vector(attn_weights, values)`.
#
# 1. `attn_weights` is `(B, Tq, Tk)`, `values` `(B, Tk, Dv)`; the **result** is `(B, Tq, Dv)`, with
#    $c_i$ in row $i$. <!-- id: weighted-sum -->
# 2. The weights are **used as they are**, also where they don't sum to 1.
#    <!-- id: weights-as-they-are -->
#
# Raise `ValueError` if `attn_weights` and `values` disagree about `Tk`, even if one of the two sizes
# is 1. <!-- id: other-lengths -->
#
# *Example.* Weights $(0.25, 0.75)$ and values $(4, 0)$, $(0, 8)$ give $c = (1, 6)$.
#
# Book: `att-context`.
#
# <details><summary>Hint 1</summary>
#
# The sum runs over the last dimension of `attn_weights` and the second of `values`: that is a
# matrix product.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Without a check of your own, a wrong `Tk` ends in PyTorch's `RuntimeError`. Compare the two sizes
# first.
#
# </details>


# %% exercise="context_vector" points=1 section="att-context"
def context_vector(attn_weights: Tensor, values: Tensor) -> Tensor:
    """Weighted sum of the values, c_i = sum_j alpha_ij v_j (Bahdanau et al. 2015, equation 5).

    Args:
        attn_weights: (B, Tq, Tk).
        values: (B, Tk, Dv).

    Returns:
        (B, Tq, Dv).

    Raises:
        ValueError: if attn_weights and values disagree about Tk.
    """
    ### BEGIN SOLUTION
    if attn_weights.shape[-1] != values.shape[-2]:
        raise ValueError(
            f"attn_weights for {attn_weights.shape[-1]} keys, but {values.shape[-2]} values"
        )
    return attn_weights @ values  # (B, Tq, Dv)
    ### END SOLUTION


# %% check="context_vector" tags=["active-ipynb"]
# check("context_vector")

# %% [markdown]
# ### Exercise 7: One step of the attention decoder
#
# An encoder has turned the source sentence into annotations $h_1, \dots, h_T$. One step of the
# decoder looks back at all of them (Bahdanau et al., 2015):
#
# $$e_j = \operatorname{score}(s_{t-1}, h_j),\qquad
# \alpha = \operatorname{softmax}(e),\qquad
# c_t = \sum_j \alpha_j h_j,\qquad
# s_t = \operatorname{GRU}\bigl([y_{t-1}; c_t],\; s_{t-1}\bigr)$$
#
# The scores use the **previous** state $s_{t-1}$: the new one doesn't exist yet, since it needs the
# context.
#
# Write the module `AttentionDecoderStep(embed_dim, hidden_size, annotation_dim, attention_dim)`.
#
# 1. It has **two submodules**: `score`, an `AdditiveScore` with queries `hidden_size` wide, keys
#    `annotation_dim` wide and a hidden layer of `attention_dim`; and
#    `cell = nn.GRUCell(embed_dim + annotation_dim, hidden_size)`. <!-- id: submodules -->
# 2. `forward(y_prev, s_prev, annotations, source_mask=None)` takes `y_prev` `(B, embed_dim)`, the
#    embedding of the previous output word, `s_prev` `(B, hidden_size)` and `annotations`
#    `(B, T, annotation_dim)`, and computes **weights and context** by the formulas, with the scores
#    of `s_prev`. <!-- id: attends-with-previous-state -->
# 3. The **input of the cell** is `y_prev` followed by the context, its state is `s_prev`.
#    <!-- id: cell-input -->
# 4. It **returns** `(s, context, attn_weights)`, of shapes `(B, hidden_size)`, `(B, annotation_dim)`
#    and `(B, T)`. <!-- id: returns -->
# 5. `source_mask` is `None` or `(B, T)` bool, `True` = real source token. **Masked positions** get
#    the weight 0, the others sum to 1, and what stands in the annotations there changes nothing.
#    <!-- id: masked-source -->
# 6. If a source is **fully masked**, its weights and its context are 0. <!-- id: empty-source -->
#
# Book: `att-decoder`.
#
# <details><summary>Hint 1</summary>
#
# The score wants queries of shape `(B, Tq, hidden_size)`. Here there is one query per example:
# `s_prev.unsqueeze(1)`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `source_mask` is `(B, T)` but scores are `(B, 1, T)`. Broadcasting aligns from the right, so give
# the mask the missing middle dimension.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Drop the query dimension with `.squeeze(1)`, concatenate `[y_prev, context]` along the last
# dimension, and call `self.cell(input, s_prev)`.
#
# </details>


# %% exercise="AttentionDecoderStep" points=4 section="att-decoder"
class AttentionDecoderStep(nn.Module):
    """One step of a recurrent decoder with additive attention (Bahdanau et al. 2015, section 3.1).

    Submodules: ``score`` = AdditiveScore(hidden_size, annotation_dim, attention_dim);
    ``cell`` = nn.GRUCell(embed_dim + annotation_dim, hidden_size), fed with [y_prev; context].
    """

    def __init__(
        self, embed_dim: int, hidden_size: int, annotation_dim: int, attention_dim: int
    ) -> None:
        """Create ``score`` and ``cell``."""
        super().__init__()
        ### BEGIN SOLUTION
        self.score = AdditiveScore(hidden_size, annotation_dim, attention_dim)
        self.cell = nn.GRUCell(embed_dim + annotation_dim, hidden_size)
        ### END SOLUTION

    def forward(
        self,
        y_prev: Tensor,
        s_prev: Tensor,
        annotations: Tensor,
        source_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Attend with the previous state, then update it.

        Args:
            y_prev: (B, embed_dim), embedding of the previous output word.
            s_prev: (B, hidden_size), previous state of the decoder.
            annotations: (B, T, annotation_dim), states of the encoder.
            source_mask: (B, T) bool, True = real source token.

        Returns:
            The new state (B, hidden_size), the context (B, annotation_dim), the weights (B, T).
        """
        ### BEGIN SOLUTION
        mask = None if source_mask is None else source_mask.unsqueeze(1)  # (B, 1, T)
        scores = self.score(s_prev.unsqueeze(1), annotations)  # (B, 1, T)
        attn_weights = masked_softmax(scores, mask)  # (B, 1, T)
        context = context_vector(attn_weights, annotations).squeeze(1)  # (B, annotation_dim)
        cell_input = torch.cat([y_prev, context], dim=-1)  # (B, embed_dim + annotation_dim)
        s = self.cell(cell_input, s_prev)  # (B, hidden_size)
        return s, context, attn_weights.squeeze(1)
        ### END SOLUTION


# %% check="AttentionDecoderStep" tags=["active-ipynb"]
# check("AttentionDecoderStep")

# %% [markdown]
# ### Exercise 8: Dropout on attention weights
#
# Dropout on attention weights makes a model rely on more than one key. Write
# `attention_dropout(attn_weights, dropout, training)`, inverted dropout by hand: with $p$ = `dropout`,
#
# $$\tilde\alpha_{ij} = \frac{b_{ij}}{1 - p}\,\alpha_{ij},\qquad b_{ij} \sim
# \operatorname{Bernoulli}(1 - p)$$
#
# `attn_weights` has any shape; the result has the same shape and dtype. <!-- id: same-shape -->
#
# 1. In training, each weight is **dropped** (set to 0) with probability `dropout`,
#    <!-- id: drop-probability --> **independently** of all others: it is drawn for itself in every
#    batch entry, head, row and call, so that the number of dropped weights varies.
#    <!-- id: independent-draws -->
# 2. The **survivors are scaled** by $1/(1 - p)$, so that the expectation stays the same.
#    <!-- id: survivors-scaled --> The rows are **not** normalised again. <!-- id: not-normalised -->
# 3. If `training` is `False`, or `dropout` is 0, the **values come back unchanged**.
#    <!-- id: off -->
# 4. If `dropout` is 1, the result is **all zeros** in training, not NaN (mind $0/0$).
#    <!-- id: drops-everything -->
# 5. Not to be called: PyTorch's own dropout, as a function or as a module. <!-- id: not-called -->
#
# Raise `ValueError` if `dropout` lies outside $[0, 1]$, in training or not.
# <!-- id: bad-probability -->
#
# *Example.* $p = 0.5$ and weights $(0.5, 0.3, 0.2)$: if only the second is dropped, the result is
# $(1.0, 0, 0.4)$.
#
# Book: `att-dropout`.
#
# <details><summary>Hint 1</summary>
#
# `torch.rand(shape)` is uniform on $[0, 1)$, so `torch.rand(shape) >= dropout` is `True` with
# probability $1 - p$.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Check `dropout` first. Then treat the two cases without randomness, and $p = 1$ on its own; what
# is left is one line.
#
# </details>


# %% exercise="attention_dropout" points=2 section="att-dropout" forbids="dropout dropout_ dropout1d dropout2d dropout3d alpha_dropout feature_dropout feature_alpha_dropout native_dropout Dropout"
def attention_dropout(attn_weights: Tensor, dropout: float, training: bool) -> Tensor:
    """Inverted dropout: drop each weight with probability p, divide the survivors by 1 - p.

    Source: Srivastava et al. 2014, section 10, in the inverted form. Vaswani et al. 2017,
    section 5.4, does not list dropout on attention weights; implementations added it.

    Args:
        attn_weights: any shape.
        dropout: p, the probability of being dropped, in [0, 1].
        training: whether to drop at all.

    Returns:
        Tensor of the same shape and dtype; unchanged values if not training or dropout is 0,
        zeros if dropout is 1.

    Raises:
        ValueError: if dropout is outside [0, 1].
    """
    ### BEGIN SOLUTION
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(f"dropout must be between 0 and 1, but is {dropout}")
    if not training or dropout == 0.0:
        return attn_weights
    if dropout == 1.0:
        return attn_weights * 0.0
    # float32 whatever the dtype of the weights: in half precision rand is too coarse for small
    # rates.
    keep = torch.rand_like(attn_weights, dtype=torch.float32) >= dropout  # like attn_weights, bool
    return attn_weights * keep / (1.0 - dropout)
    ### END SOLUTION


# %% check="attention_dropout" tags=["active-ipynb"]
# check("attention_dropout")
