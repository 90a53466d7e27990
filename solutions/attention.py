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
# # Attention by hand
#
# In this notebook you build attention from its parts: scores, a softmax that respects masks, the
# weighted sum, one step of an attention decoder, scaled dot-product attention, masks, and
# multi-head attention in three layouts. There are 23 exercises to code and two questions to
# answer in words.
#
# **How to work.** Write your code in place of the line `raise NotImplementedError(...)`; a class has
# such a line in each method that you write. Then run the cell below it, `check("...")`: it says
# what holds, what does not, and which section of the book to reread. Exercises may use the ones
# before them. You may add cells and helper functions of your own; keep the names, the parameters and
# their order as they are. Every text ends with hints: open them one by one, only as far as you
# need.
#
# **Conventions, the same everywhere**
#
# | sign | meaning |
# |---|---|
# | `B` | batch size |
# | `T`, `Tq`, `Tk` | length of a sequence, number of queries, number of keys |
# | `D`, `Dv`, `Dh` | width of queries and keys, width of values, width of one head |
# | `H` | number of heads |
# | `(..., Tq, D)` | any number of leading dimensions, none included |
#
# * A **mask** is a `torch.bool` tensor; `True` means *may attend*, `False` means *must not*. It may
#   be smaller than the scores wherever broadcasting allows it: a dimension may be missing in front
#   or be 1.
# * A query that may attend to nothing at all (a *fully masked row*) gets weights 0 and output 0,
#   never NaN, and its gradients are finite.
# * Results keep the floating-point type of the inputs (`float32` in, `float32` out; the same for
#   `float64`).
# * Vectors are rows: a sequence is a matrix with one token per row, and a projection is
#   $X W$. PyTorch stores the weight of `nn.Linear` transposed, as `(out, in)`.
# * No function changes its inputs in place, and everything is differentiable.
# * Modules are `nn.Module`s and have exactly the named parameters, no others, because the
#   checks load weights into them by name. How you initialise them is up to you.

# %%
"""Attention: scores, masked softmax, decoder step, masks, single-head and multi-head attention."""

# The options of a cell must stand on one line, however long it gets.
# ruff: noqa: E501

# %%
import math

import torch
from torch import Tensor, nn

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("attention")

# %% [markdown]
# ## Scores: how well does a key fit a query?
#
# A score function gives one number for every pair of a query $q_i$ and a key $k_j$. The next four
# exercises share one interface:
#
# ```python
# scores = score(query, key, mask)   # (B, Tq, Dq), (B, Tk, Dk), mask -> (B, Tq, Tk)
# ```
#
# `mask` is `None` or a boolean tensor broadcastable to `(B, Tq, Tk)`, `True` = may attend. Where it
# is `False`, the score is $-\infty$ (`float("-inf")`), so that a softmax gives it weight 0.
#
# ### Exercise 1: Dot-product score
#
# Write `DotScore`, the score of Luong et al. (2015) called *dot*:
#
# $$e_{ij} = q_i^\top k_j = \sum_{d=1}^{D} q_{id}\,k_{jd}$$
#
# It is **not** divided by anything; scaling comes in exercise 9. The module has no parameters.
#
# * `query` `(B, Tq, D)`, `key` `(B, Tk, D)`, `mask` as above; the result is `(B, Tq, Tk)`.
# * `ValueError` if the widths of `query` and `key` differ.
#
# *Example.* For $q = (1, 2)$ and keys $(3, -1)$ and $(0, 4)$ the scores are
# $1\cdot3 + 2\cdot(-1) = 1$ and $8$. With the mask `[True, False]` they are $1$ and $-\infty$.
#
# Book: section *scores* (`att-scores`).
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
# Write `BilinearScore(query_dim, key_dim)`, called *general* by Luong et al. (2015):
#
# $$e_{ij} = s_i^\top W h_j = \sum_{a}\sum_{b} s_{ia}\,W_{ab}\,h_{jb}$$
#
# One matrix $W$ serves all pairs $(i, j)$. It lets queries and keys have different widths.
#
# * Parameter: `weight` `(query_dim, key_dim)`. Nothing else, no bias.
# * `query` `(B, Tq, query_dim)`, `key` `(B, Tk, key_dim)`, `mask` as in exercise 1; the result is
#   `(B, Tq, Tk)`, $-\infty$ where the mask is `False`. Not scaled.
#
# *Example.* $s = (1, 2)$, $h = (3, 1)$, $W = \begin{pmatrix}1 & 0\\ 1 & 2\end{pmatrix}$:
# $s^\top W = (3, 4)$, so $e = 3\cdot3 + 4\cdot1 = 13$. With $W^\top$ instead it would be $8$.
#
# Book: section *scores* (`att-scores`).
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
# Write `AdditiveScore(query_dim, key_dim, hidden_dim)`, the score of Bahdanau et al. (2015): a
# small network with one hidden layer looks at the pair.
#
# $$e_{ij} = v^\top \tanh(W_q\, q_i + W_k\, k_j)$$
#
# * Parameters: three linear layers **without bias**: `query_projection` (`query_dim` to
#   `hidden_dim`), `key_projection` (`key_dim` to `hidden_dim`), `energy` (`hidden_dim` to 1).
# * `query` `(B, Tq, query_dim)`, `key` `(B, Tk, key_dim)`, `mask` as in exercise 1; the result is
#   `(B, Tq, Tk)`, $-\infty$ where the mask is `False`. Not scaled.
#
# *Example.* With widths 1, $W_q = W_k = 1$ and $v = 2$: for $q = 0.5$ and $k = 0.5$ the score is
# $2\tanh(1) \approx 1.523$.
#
# Book: section *scores* (`att-scores`).
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
# Write `ConcatScore(query_dim, key_dim, hidden_dim)`, called *concat* by Luong et al. (2015):
#
# $$e_{ij} = v^\top \tanh\bigl(W\,[q_i; k_j]\bigr)$$
#
# $[q_i; k_j]$ is the query followed by the key, one vector of width `query_dim + key_dim`. The tanh
# matters: without it the query's part of the score is the same for every key, cancels in the
# softmax, and attention no longer depends on the query.
#
# * Parameters: two linear layers **without bias**: `projection` (`query_dim + key_dim` to
#   `hidden_dim`, query first) and `energy` (`hidden_dim` to 1).
# * `query` `(B, Tq, query_dim)`, `key` `(B, Tk, key_dim)`, `mask` as in exercise 1; the result is
#   `(B, Tq, Tk)`, $-\infty$ where the mask is `False`. Not scaled.
#
# *Example.* With widths 1, $W = (1, -1)$ and $v = 1$: for $q = 2$, $k = 1$ the score is
# $\tanh(2 - 1) \approx 0.762$; with the two swapped it is $-0.762$.
#
# Book: section *scores* (`att-scores`).
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
# Write `masked_softmax(scores, mask=None, dim=-1)`: scores in, weights out. With $M$ the set of
# positions that may be attended to,
#
# $$\alpha_{ij} = \frac{\exp(e_{ij} - m_i)}{\sum_{k \in M} \exp(e_{ik} - m_i)}\quad (j \in M),
# \qquad \alpha_{ij} = 0\quad (j \notin M),\qquad m_i = \max_{k \in M} e_{ik}.$$
#
# Subtracting the maximum $m_i$ changes nothing, since it cancels, but keeps `exp` from overflowing.
#
# * `scores`: any shape, floating point; the result has the same shape and type and sums to 1 along
#   `dim`.
# * `mask`: `None` or bool, broadcastable to the shape of `scores`, `True` = may attend. Masked
#   entries come out as **exactly** 0, whatever stands in `scores` there.
# * A score of $-\infty$ counts as masked.
# * A slice along `dim` in which everything is masked gives all 0: no NaN, neither in the value nor
#   in the gradient.
# * Scores as large as 10000 (or as small as −10000) must not overflow or underflow to NaN.
# * `ValueError` if `mask` is not of type `torch.bool`, or cannot be broadcast to the shape of
#   `scores` (a mask that would make the result *larger* than `scores` is refused too).
# * Not to be called: `softmax`, `log_softmax`, `softmin`, from wherever. `exp`, `logsumexp`, `sum`
#   and `amax` are fine.
#
# *Example.* Scores $(2, 1, 0)$ with mask `[True, True, False]`:
# $\bigl(\tfrac{e^0}{e^0 + e^{-1}}, \tfrac{e^{-1}}{e^0 + e^{-1}}, 0\bigr) \approx (0.731, 0.269, 0)$.
# With mask `[False, False, False]`: $(0, 0, 0)$.
#
# Book: section *softmax* (`att-softmax`).
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
# Write `context_vector(weights, values)`: for every query the weighted sum of **all** values.
#
# $$c_i = \sum_{j} \alpha_{ij}\, v_j$$
#
# * `weights` `(B, Tq, Tk)`, `values` `(B, Tk, Dv)`; the result is `(B, Tq, Dv)`.
# * `ValueError` if `weights` and `values` disagree about `Tk`.
#
# *Example.* Weights $(0.25, 0.75)$ and values $(4, 0)$, $(0, 8)$ give $c = (1, 6)$.
#
# Book: section *context* (`att-context`).
#
# <details><summary>Hint 1</summary>
#
# The sum runs over the last dimension of `weights` and the second of `values`: that is a matrix
# product.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Without a check of your own, a wrong `Tk` ends in PyTorch's `RuntimeError`. Compare the two sizes
# first.
#
# </details>


# %% exercise="context_vector" points=1 section="att-context"
def context_vector(weights: Tensor, values: Tensor) -> Tensor:
    """Weighted sum of the values, c_i = sum_j alpha_ij v_j (Bahdanau et al. 2015, equation 5).

    Args:
        weights: (B, Tq, Tk).
        values: (B, Tk, Dv).

    Returns:
        (B, Tq, Dv).

    Raises:
        ValueError: if weights and values disagree about Tk.
    """
    ### BEGIN SOLUTION
    if weights.shape[-1] != values.shape[-2]:
        raise ValueError(f"weights for {weights.shape[-1]} keys, but {values.shape[-2]} values")
    return weights @ values  # (B, Tq, Dv)
    ### END SOLUTION


# %% check="context_vector" tags=["active-ipynb"]
# check("context_vector")

# %% [markdown]
# ### Exercise 7: One step of the attention decoder
#
# An encoder has turned the source into annotations $h_1, \dots, h_T$. Write `AttentionDecoderStep`,
# one step of a decoder that looks back at all of them (Bahdanau et al., 2015):
#
# $$e_j = \operatorname{score}(s_{t-1}, h_j),\qquad
# \alpha = \operatorname{softmax}(e),\qquad
# c_t = \sum_j \alpha_j h_j,\qquad
# s_t = \operatorname{GRU}\bigl([y_{t-1}; c_t],\; s_{t-1}\bigr)$$
#
# The scores use the **previous** state $s_{t-1}$: the new one doesn't exist yet, since it needs the
# context. The context is different at every step; the annotations stay the same.
#
# * `AttentionDecoderStep(embed_dim, hidden_dim, annotation_dim, attention_dim)`
# * Submodules: `score`, an `AdditiveScore` with queries `hidden_dim`, keys `annotation_dim` and
#   hidden layer `attention_dim`; `cell = nn.GRUCell(embed_dim + annotation_dim, hidden_dim)`, whose
#   input is `y_prev` followed by the context.
# * `forward(y_prev, s_prev, annotations, source_mask=None)`: `y_prev` `(B, embed_dim)`, the
#   embedding of the previous output word; `s_prev` `(B, hidden_dim)`; `annotations`
#   `(B, T, annotation_dim)`; `source_mask` `(B, T)` bool, `True` = real source token, or `None`.
# * Returns `(s, context, weights)`: `(B, hidden_dim)`, `(B, annotation_dim)`, `(B, T)`. Weights of
#   masked positions are 0; they sum to 1 over the source. If a source is fully masked, its weights
#   and its context are 0.
#
# Book: section *decoder* (`att-decoder`).
#
# <details><summary>Hint 1</summary>
#
# The score wants queries of shape `(B, Tq, hidden_dim)`. Here there is one query per example:
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

    Submodules: ``score`` = AdditiveScore(hidden_dim, annotation_dim, attention_dim);
    ``cell`` = nn.GRUCell(embed_dim + annotation_dim, hidden_dim), fed with [y_prev; context].
    """

    def __init__(
        self, embed_dim: int, hidden_dim: int, annotation_dim: int, attention_dim: int
    ) -> None:
        """Create ``score`` and ``cell``."""
        super().__init__()
        ### BEGIN SOLUTION
        self.score = AdditiveScore(hidden_dim, annotation_dim, attention_dim)
        self.cell = nn.GRUCell(embed_dim + annotation_dim, hidden_dim)
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
            s_prev: (B, hidden_dim), previous state of the decoder.
            annotations: (B, T, annotation_dim), states of the encoder.
            source_mask: (B, T) bool, True = real source token.

        Returns:
            The new state (B, hidden_dim), the context (B, annotation_dim), the weights (B, T).
        """
        ### BEGIN SOLUTION
        mask = None if source_mask is None else source_mask.unsqueeze(1)  # (B, 1, T)
        scores = self.score(s_prev.unsqueeze(1), annotations)  # (B, 1, T)
        weights = masked_softmax(scores, mask)  # (B, 1, T)
        context = context_vector(weights, annotations).squeeze(1)  # (B, annotation_dim)
        cell_input = torch.cat([y_prev, context], dim=-1)  # (B, embed_dim + annotation_dim)
        s = self.cell(cell_input, s_prev)  # (B, hidden_dim)
        return s, context, weights.squeeze(1)
        ### END SOLUTION


# %% check="AttentionDecoderStep" tags=["active-ipynb"]
# check("AttentionDecoderStep")

# %% [markdown]
# ### Exercise 8: Dropout on attention weights
#
# Write `attention_dropout(weights, p, training)`, inverted dropout by hand: in training every
# weight is dropped (set to 0) with probability $p$, independently of all others, and the survivors
# are enlarged so that the expectation stays the same.
#
# $$\tilde\alpha_{ij} = \frac{b_{ij}}{1 - p}\,\alpha_{ij},\qquad b_{ij} \sim
# \operatorname{Bernoulli}(1 - p)$$
#
# * `weights`: any shape; the result has the same shape and type. The input is left unchanged.
# * If `training` is `False`, or `p` is 0: the values come back unchanged.
# * If `p` is 1: all zeros (not NaN: mind $0/0$).
# * The rows of the result need not sum to 1, and they are **not** normalised again.
# * Random numbers come from PyTorch's global generator, so that `torch.manual_seed` makes them
#   repeatable. Every element is drawn for itself, in every batch entry, head and row.
# * `ValueError` if `p` lies outside $[0, 1]$, in training or not.
# * Not to be called: PyTorch's own dropout, as a function or as a module.
#
# *Example.* $p = 0.5$ and weights $(0.5, 0.3, 0.2)$: if only the second is dropped, the result is
# $(1.0, 0, 0.4)$.
#
# Book: section *dropout* (`att-dropout`).
#
# <details><summary>Hint 1</summary>
#
# `torch.rand(shape)` is uniform on $[0, 1)$, so `torch.rand(shape) >= p` is `True` with probability
# $1 - p$.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Check `p` first. Then treat the two cases without randomness, and $p = 1$ on its own; what is left
# is one line.
#
# </details>


# %% exercise="attention_dropout" points=2 section="att-dropout" forbids="dropout dropout_ dropout1d dropout2d dropout3d alpha_dropout feature_dropout feature_alpha_dropout native_dropout Dropout"
def attention_dropout(weights: Tensor, p: float, training: bool) -> Tensor:
    """Inverted dropout: drop each weight with probability p, divide the survivors by 1 - p.

    Source: Srivastava et al. 2014, section 10, in the inverted form. Vaswani et al. 2017,
    section 5.4, does not list dropout on attention weights; implementations added it.

    Args:
        weights: any shape.
        p: probability of being dropped, in [0, 1].
        training: whether to drop at all.

    Returns:
        Tensor of the same shape and dtype; unchanged values if not training or p is 0, zeros if
        p is 1.

    Raises:
        ValueError: if p is outside [0, 1].
    """
    ### BEGIN SOLUTION
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"p must be between 0 and 1, but is {p}")
    if not training or p == 0.0:
        return weights
    if p == 1.0:
        return weights * 0.0
    # float32 whatever the dtype of weights: in half precision rand is too coarse for a rate of p.
    keep = torch.rand_like(weights, dtype=torch.float32) >= p  # like weights, bool
    return weights * keep / (1.0 - p)
    ### END SOLUTION


# %% check="attention_dropout" tags=["active-ipynb"]
# check("attention_dropout")

# %% [markdown]
# ## Scaled dot-product attention
#
# ### Exercise 9: Scaled dot-product attention
#
# Write `scaled_dot_product_attention(query, key, value, mask=None, dropout_p=0.0, training=False)`,
# the heart of the Transformer (Vaswani et al., 2017):
#
# $$\operatorname{Attention}(Q, K, V) = \operatorname{softmax}\!\left(\frac{Q K^\top}{\sqrt{d_k}}
# \right) V$$
#
# $d_k$ is the width of queries and keys. The order is: scores, divide by $\sqrt{d_k}$, mask,
# softmax over the keys, dropout on the weights, weighted sum.
#
# * `query` `(..., Tq, D)`, `key` `(..., Tk, D)`, `value` `(..., Tk, Dv)`, with the same leading
#   dimensions: none, a batch, batch and heads, any number.
# * `mask`: `None` or bool, broadcastable to `(..., Tq, Tk)`, `True` = may attend. A fully masked
#   row gives weights 0 and output 0, with finite gradients.
# * `dropout_p` acts only if `training` is `True`.
# * Returns `(output, weights)`: `(..., Tq, Dv)` and `(..., Tq, Tk)`. The weights returned are those
#   **before** dropout (rows sum to 1), so that they can be plotted; the output uses those after it.
# * `ValueError` if the widths of `query` and `key` differ, or the lengths of `key` and `value`;
#   and, as in exercise 5, for a mask that is not bool or doesn't fit.
# * Not to be called: PyTorch's own attention, `torch.nn.functional.scaled_dot_product_attention`,
#   `multi_head_attention_forward`, `nn.MultiheadAttention`. (Your function has the same name as
#   PyTorch's; that is all right.)
#
# *Example.* One query $(1, 1, 1, 1)$, keys $(1, 1, 1, 1)$ and $(0, 0, 0, 0)$, values $(10)$ and
# $(0)$: the scores are $4$ and $0$, divided by $\sqrt4$ they are $2$ and $0$, the weights are
# $(0.881, 0.119)$, and the output is $8.81$.
#
# Book: sections *scaled dot-product attention* (`att-scaled`) and *why scale* (`att-scaling`).
#
# <details><summary>Hint 1</summary>
#
# `key.transpose(-2, -1)` works for any number of leading dimensions; `transpose(1, 2)` doesn't.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `masked_softmax` does masking, normalising and the fully masked rows; `attention_dropout` does
# the rest.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Keep two names, the weights and the dropped weights: return the first, multiply `value` by the
# second.
#
# </details>


# %% exercise="scaled_dot_product_attention" points=5 section="att-scaled" forbids="scaled_dot_product_attention multi_head_attention_forward MultiheadAttention"
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout_p: float = 0.0,
    training: bool = False,
) -> tuple[Tensor, Tensor]:
    """softmax(Q K^T / sqrt(d_k)) V with mask and dropout (Vaswani et al. 2017, section 3.2.1).

    Args:
        query: (..., Tq, D).
        key: (..., Tk, D).
        value: (..., Tk, Dv).
        mask: bool, broadcastable to (..., Tq, Tk), True = may attend.
        dropout_p: probability of dropping a weight, in training only.
        training: whether dropout acts.

    Returns:
        The output (..., Tq, Dv) and the weights before dropout (..., Tq, Tk). A fully masked row
        has weights 0 and output 0.

    Raises:
        ValueError: if query and key differ in width, key and value in length, or the mask is not
            bool or not broadcastable to the scores.
    """
    ### BEGIN SOLUTION
    d_k = query.shape[-1]
    if key.shape[-1] != d_k:
        raise ValueError(f"query is {d_k} wide, but key is {key.shape[-1]} wide")
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(f"{key.shape[-2]} keys, but {value.shape[-2]} values")
    scores = query @ key.transpose(-2, -1) / math.sqrt(d_k)  # (..., Tq, Tk)
    weights = masked_softmax(scores, mask)  # (..., Tq, Tk)
    dropped = attention_dropout(weights, dropout_p, training)  # (..., Tq, Tk)
    return dropped @ value, weights  # (..., Tq, Dv), (..., Tq, Tk)
    ### END SOLUTION


# %% check="scaled_dot_product_attention" tags=["active-ipynb"]
# check("scaled_dot_product_attention")

# %% [markdown]
# ### Question: Why divide by $\sqrt{d_k}$?
#
# Explain in a few sentences why the scores of scaled dot-product attention are divided by
# $\sqrt{d_k}$: what happens to the scores, to the weights and to the gradients without it when
# $d_k$ is large? On which assumption about queries and keys does the argument rest, and why is the
# divisor $\sqrt{d_k}$ rather than $d_k$?
#
# Book: section *why scale* (`att-scaling`). 3 points, marked by a person.

# %% [markdown] question="why_scale" points=3 section="att-scaling" title="Why divide by √d_k?"
# **Your answer:**
#
# ### BEGIN SOLUTION
# *Assumption:* the components of $q$ and $k$ are independent of each other, with mean 0 and
# variance 1 (no normal distribution is needed). Then $q \cdot k = \sum_{d} q_d k_d$ is a sum of
# $d_k$ uncorrelated terms, each with mean 0 and variance $1 \cdot 1$, so its mean is 0 and its
# variance is $d_k$, its standard deviation $\sqrt{d_k}$.
#
# *Without scaling* typical scores grow like $\sqrt{d_k}$. The softmax sees differences of that size
# and saturates: one weight is nearly 1 and the others nearly 0, whichever key happens to be ahead.
# There the softmax's derivative $\partial\alpha_j/\partial e_k = \alpha_j(\delta_{jk} - \alpha_k)$
# is nearly 0, so hardly any gradient reaches the queries, the keys and their projections, and
# training starts slowly or stalls.
#
# *With scaling* the variance is $d_k / (\sqrt{d_k})^2 = 1$ for every width. Dividing by $d_k$ would
# give the variance $1/d_k$, all weights nearly equal for large $d_k$: too much. If the assumption
# fails (for instance $q = k$, where the mean is $d_k$, or learned projections that have grown), the
# variance is no longer $d_k$ and the divisor only a sensible starting point.
#
# *Marking:* 1 point for the variance $d_k$ and its assumption, 1 for saturation and vanishing
# gradients, 1 for why the square root.
# ### END SOLUTION

# %% [markdown]
# ## Masks
#
# ### Exercise 10: Causal mask
#
# Write `causal_mask(length)`: position $i$ may attend to position $j$ if and only if $j \le i$, to
# itself and to what came before.
#
# * Result: bool `(length, length)`; row $i$ belongs to query $i$, column $j$ to key $j$.
# * `ValueError` if `length` is not an `int` or is smaller than 1 (0 is refused).
#
# *Example.* `causal_mask(3)` is
# $\begin{pmatrix}1&0&0\\1&1&0\\1&1&1\end{pmatrix}$ with 1 for `True`.
#
# Book: section *causal attention* (`att-causal`).
#
# <details><summary>Hint 1</summary>
#
# Compare a column of query positions with a row of key positions, or look up `torch.tril`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The type must be `torch.bool`: give `dtype=torch.bool` where you create the tensor.
#
# </details>


# %% exercise="causal_mask" points=1 section="att-causal"
def causal_mask(length: int) -> Tensor:
    """Mask in which position i may attend to j <= i (Vaswani et al. 2017, section 3.2.3).

    Args:
        length: number of positions, at least 1.

    Returns:
        bool (length, length), True on and below the diagonal.

    Raises:
        ValueError: if length is not an int or is smaller than 1.
    """
    ### BEGIN SOLUTION
    if not isinstance(length, int) or length < 1:
        raise ValueError(f"length must be an integer of at least 1, but is {length!r}")
    return torch.ones(length, length, dtype=torch.bool).tril()  # (length, length)
    ### END SOLUTION


# %% check="causal_mask" tags=["active-ipynb"]
# check("causal_mask")

# %% [markdown]
# ### Exercise 11: Padding mask
#
# Sequences of a batch are padded on the right to one length. Write
# `padding_mask(lengths, max_length=None)`: which positions hold real tokens?
#
# * `lengths` `(B,)`, integers (`torch.int64`): how many real tokens each sequence has; 0 is
#   allowed.
# * `max_length`: the padded length; by default the largest of `lengths`.
# * Result: bool `(B, 1, max_length)`, `True` at real tokens. The dimension of size 1 stands for the
#   queries, so that the mask broadcasts to scores `(B, Tq, Tk)`: it hides *keys*.
# * `ValueError` if a length is negative or larger than `max_length`, or if `lengths` is not of an
#   integer type (floating point and bool are refused).
#
# *Example.* `padding_mask(torch.tensor([1, 3]))` is, with 1 for `True`,
# $[[[1, 0, 0]], [[1, 1, 1]]]$.
#
# Book: section *masks* (`att-masks`).
#
# <details><summary>Hint 1</summary>
#
# Position $j$ is real if $j$ is smaller than the sequence's length: compare
# `torch.arange(max_length)` with `lengths`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `lengths[:, None, None]` is `(B, 1, 1)`; a comparison broadcasts like an addition.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Integer types are those that are neither `is_floating_point()`, nor `is_complex()`, nor
# `torch.bool`.
#
# </details>


# %% exercise="padding_mask" points=2 section="att-masks"
def padding_mask(lengths: Tensor, max_length: int | None = None) -> Tensor:
    """Mask that hides the padded keys of a batch.

    Args:
        lengths: (B,) integers, the number of real tokens of each sequence.
        max_length: the padded length; by default the largest of lengths.

    Returns:
        bool (B, 1, max_length), True at real tokens.

    Raises:
        ValueError: if lengths is not of an integer type, a length is negative, or a length exceeds
            max_length.
    """
    ### BEGIN SOLUTION
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise ValueError(f"lengths must be integers, but are {lengths.dtype}")
    longest = int(lengths.max())
    if max_length is None:
        max_length = longest
    if int(lengths.min()) < 0 or longest > max_length:
        raise ValueError(f"lengths must lie between 0 and {max_length}, but are {lengths.tolist()}")
    positions = torch.arange(max_length, device=lengths.device)  # (max_length,)
    return positions < lengths[:, None, None]  # (B, 1, max_length)
    ### END SOLUTION


# %% check="padding_mask" tags=["active-ipynb"]
# check("padding_mask")

# %% [markdown]
# ### Exercise 12: The decoder's mask
#
# In the decoder's self-attention both conditions hold at once. Write
# `decoder_mask(lengths, max_length=None)`: query $i$ may attend to key $j$ if and only if $j \le i$
# **and** token $j$ is real.
#
# * `lengths` and `max_length` as in exercise 11, with the same `ValueError`s.
# * Result: bool `(B, T, T)` with `T = max_length` (at least 1).
# * The rows of padded *queries* are not emptied: only keys are masked.
#
# *Example.* For length 2 padded to 3:
# $\begin{pmatrix}1&0&0\\1&1&0\\1&1&0\end{pmatrix}$.
#
# Book: section *masks* (`att-masks`).
#
# <details><summary>Hint 1</summary>
#
# You have both masks already; combine them with `&`. Broadcasting does the rest.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `T` is the last dimension of the padding mask, whether `max_length` was given or not.
#
# </details>


# %% exercise="decoder_mask" points=2 section="att-masks"
def decoder_mask(lengths: Tensor, max_length: int | None = None) -> Tensor:
    """Causal and padding mask together, for the self-attention of a decoder.

    Args:
        lengths: (B,) integers, the number of real tokens of each sequence.
        max_length: the padded length T; by default the largest of lengths.

    Returns:
        bool (B, T, T), True where j <= i and token j is real.

    Raises:
        ValueError: as padding_mask.
    """
    ### BEGIN SOLUTION
    real = padding_mask(lengths, max_length)  # (B, 1, T)
    causal = causal_mask(real.shape[-1]).to(lengths.device)  # (T, T)
    return causal & real  # (B, T, T)
    ### END SOLUTION


# %% check="decoder_mask" tags=["active-ipynb"]
# check("decoder_mask")

# %% [markdown]
# ### Question: Which mask acts where?
#
# A Transformer for translation has three kinds of attention: self-attention in the encoder,
# self-attention in the decoder, and cross-attention from the decoder to the encoder. Which masks
# (causal, padding of the source, padding of the target) does each of them need in training? For
# each mask say what goes wrong without it.
#
# Book: section *masks* (`att-masks`). 3 points, marked by a person.

# %% [markdown] question="which_mask" points=3 section="att-masks" title="Which mask acts where?"
# **Your answer:**
#
# ### BEGIN SOLUTION
# | attention | queries | keys | masks |
# |---|---|---|---|
# | encoder self-attention | source | source | padding of the source |
# | decoder self-attention | target | target | causal, and padding of the target |
# | cross-attention | target | source | padding of the source |
#
# *Without the source padding mask in the encoder*, real words mix in the vectors of padding tokens,
# so that the encoding of a sentence depends on how long its neighbours in the batch are: the same
# sentence gives different results in different batches.
#
# *Without it in cross-attention*, the decoder spends part of its weight on padding positions, with
# the same dependence on the batch. The encoder's mask doesn't help here: it protects real queries
# inside the encoder, but the encoder still puts out vectors at the padded positions.
#
# *Without the causal mask*, position $i$ sees the token it is to predict. The training loss falls
# to nearly nothing by copying, and generation, where the future isn't there, fails.
#
# *Padding of the target:* with padding on the right, the causal mask alone already keeps
# real positions from seeing the padding behind them, so their outputs don't change; the mask
# matters with padding on the left, and it keeps padded rows clean. The padded positions must in any
# case be left out of the loss. A causal mask in cross-attention would be wrong: the whole source is
# known.
#
# *Marking:* 1 point per row of the table with its reason.
# ### END SOLUTION

# %% [markdown]
# ## Self-attention
#
# ### Exercise 13: Single-head self-attention
#
# In self-attention queries, keys and values come from the **same** sequence through three
# different projections. Write `SelfAttention(input_dim, head_dim)`:
#
# $$Q = X W_Q,\quad K = X W_K,\quad V = X W_V,\qquad
# Z = \operatorname{softmax}\!\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V,\qquad d_k =
# \text{head\_dim}$$
#
# * Layers: `q_proj`, `k_proj`, `v_proj`, each `nn.Linear(input_dim, head_dim, bias=False)`.
# * `forward(x, mask=None)`: `x` `(B, T, input_dim)`; `mask` bool, broadcastable to `(B, T, T)`,
#   `True` = may attend.
# * Returns `(output, weights)`: `(B, T, head_dim)` and `(B, T, T)`. Fully masked rows give 0.
# * Not to be called: PyTorch's own attention, as in exercise 9.
#
# Book: section *self-attention* (`att-self`).
#
# <details><summary>Hint 1</summary>
#
# Three projections, then exercise 9. Mind the order of the arguments: query, key, value.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The scale is that of the *projected* width, `head_dim`; exercise 9 takes it from its input.
#
# </details>


# %% exercise="SelfAttention" points=3 section="att-self" forbids="MultiheadAttention multi_head_attention_forward scaled_dot_product_attention"
class SelfAttention(nn.Module):
    """Self-attention with one head (Vaswani et al. 2017, sections 3.2.1 and 3.2.3).

    Layers, all without bias: ``q_proj``, ``k_proj``, ``v_proj``, each input_dim -> head_dim.
    """

    def __init__(self, input_dim: int, head_dim: int) -> None:
        """Create the three projections."""
        super().__init__()
        ### BEGIN SOLUTION
        self.q_proj = nn.Linear(input_dim, head_dim, bias=False)
        self.k_proj = nn.Linear(input_dim, head_dim, bias=False)
        self.v_proj = nn.Linear(input_dim, head_dim, bias=False)
        ### END SOLUTION

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Let every token attend to every token.

        Args:
            x: (B, T, input_dim).
            mask: bool, broadcastable to (B, T, T), True = may attend.

        Returns:
            The output (B, T, head_dim) and the weights (B, T, T).
        """
        ### BEGIN SOLUTION
        q = self.q_proj(x)  # (B, T, head_dim)
        k = self.k_proj(x)  # (B, T, head_dim)
        v = self.v_proj(x)  # (B, T, head_dim)
        return scaled_dot_product_attention(q, k, v, mask)  # (B, T, head_dim), (B, T, T)
        ### END SOLUTION


# %% check="SelfAttention" tags=["active-ipynb"]
# check("SelfAttention")

# %% [markdown]
# ### Exercise 14: Masked self-attention
#
# Write `MaskedSelfAttention(input_dim, head_dim)`, self-attention that can't see the future: the
# output at position $i$ stays the same when tokens after $i$ change, and no gradient flows to them.
#
# * Layers as in exercise 13: `q_proj`, `k_proj`, `v_proj`, without bias.
# * `forward(x, padding=None)`: `x` `(B, T, input_dim)`; `padding` `(B, T)` bool, `True` = real
#   token, or `None`. The causal mask acts always, the padding mask in addition if given.
# * Returns `(output, weights)`: `(B, T, head_dim)` and `(B, T, T)`. Fully masked rows give 0: they
#   occur when a sequence is padded on the left or has no real token at all.
# * Not to be called: PyTorch's own attention, as in exercise 9.
#
# Book: section *causal attention* (`att-causal`).
#
# <details><summary>Hint 1</summary>
#
# Build the mask first, `(T, T)` or `(B, T, T)`; the rest is exercise 13.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `padding` says which *keys* are real: `padding[:, None, :]` is `(B, 1, T)` and broadcasts over the
# queries.
#
# </details>


# %% exercise="MaskedSelfAttention" points=2 section="att-causal" forbids="MultiheadAttention multi_head_attention_forward scaled_dot_product_attention"
class MaskedSelfAttention(nn.Module):
    """Causal self-attention with one head (Vaswani et al. 2017, section 3.2.3).

    Layers, all without bias: ``q_proj``, ``k_proj``, ``v_proj``, each input_dim -> head_dim.
    """

    def __init__(self, input_dim: int, head_dim: int) -> None:
        """Create the three projections."""
        super().__init__()
        ### BEGIN SOLUTION
        self.q_proj = nn.Linear(input_dim, head_dim, bias=False)
        self.k_proj = nn.Linear(input_dim, head_dim, bias=False)
        self.v_proj = nn.Linear(input_dim, head_dim, bias=False)
        ### END SOLUTION

    def forward(self, x: Tensor, padding: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Let every token attend to itself and to the real tokens before it.

        Args:
            x: (B, T, input_dim).
            padding: (B, T) bool, True = real token.

        Returns:
            The output (B, T, head_dim) and the weights (B, T, T).
        """
        ### BEGIN SOLUTION
        mask = causal_mask(x.shape[1]).to(x.device)  # (T, T)
        if padding is not None:
            mask = mask & padding.unsqueeze(1)  # (B, T, T)
        q = self.q_proj(x)  # (B, T, head_dim)
        k = self.k_proj(x)  # (B, T, head_dim)
        v = self.v_proj(x)  # (B, T, head_dim)
        return scaled_dot_product_attention(q, k, v, mask)  # (B, T, head_dim), (B, T, T)
        ### END SOLUTION


# %% check="MaskedSelfAttention" tags=["active-ipynb"]
# check("MaskedSelfAttention")

# %% [markdown]
# ## Many heads
#
# ### Exercise 15: Split heads
#
# Write `split_heads(x, num_heads)`: cut the features of each token into `H` blocks of
# $D_h = D / H$ and bring the heads forward, where they act like one more batch dimension.
#
# $$\text{heads}_{b,h,t,d} = x_{b,\,t,\,h D_h + d}$$
#
# * `x` `(B, T, D)`; the result is `(B, H, T, D/H)`. Head 0 gets the first $D_h$ features of every
#   token.
# * `ValueError` if `num_heads` doesn't divide $D$.
#
# *Example.* One sequence of two tokens $(1, 2, 3, 4)$ and $(5, 6, 7, 8)$, two heads: head 0 is
# $\begin{pmatrix}1&2\\5&6\end{pmatrix}$, head 1 is $\begin{pmatrix}3&4\\7&8\end{pmatrix}$. A plain
# `view(B, H, T, D/H)` has the right shape, but its head 0 would be
# $\begin{pmatrix}1&2\\3&4\end{pmatrix}$: both halves of token 0 and nothing of token 1.
#
# Book: section *heads* (`att-heads`).
#
# <details><summary>Hint 1</summary>
#
# Two steps: first cut the last dimension into two, then swap two dimensions.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `x.view(B, T, H, D // H)`, then `.transpose(1, 2)`.
#
# </details>


# %% exercise="split_heads" points=2 section="att-heads"
def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Cut the features of every token into one block per head.

    Args:
        x: (B, T, D).
        num_heads: H, a divisor of D.

    Returns:
        (B, H, T, D/H); head h holds the features h*D/H up to (h+1)*D/H of every token.

    Raises:
        ValueError: if num_heads does not divide D.
    """
    ### BEGIN SOLUTION
    batch, length, width = x.shape
    if width % num_heads != 0:
        raise ValueError(f"a width of {width} can't be split into {num_heads} equal heads")
    heads = x.view(batch, length, num_heads, width // num_heads)  # (B, T, H, D/H)
    return heads.transpose(1, 2)  # (B, H, T, D/H)
    ### END SOLUTION


# %% check="split_heads" tags=["active-ipynb"]
# check("split_heads")

# %% [markdown]
# ### Exercise 16: Merge heads
#
# Write `merge_heads(x)`, the exact inverse of `split_heads`: the heads of each token are put side
# by side again, head 0 first.
#
# * `x` `(B, H, T, Dh)`; the result is `(B, T, H*Dh)` and contiguous in memory
#   (`result.is_contiguous()`).
#
# *Example.* The two heads of the example above give back $(1, 2, 3, 4)$ and $(5, 6, 7, 8)$.
#
# Book: section *heads* (`att-heads`).
#
# <details><summary>Hint 1</summary>
#
# Undo the two steps of exercise 15 in reverse order.
#
# </details>
# <details><summary>Hint 2</summary>
#
# After `transpose` the memory is no longer in order and `view` refuses; `.contiguous()` puts it in
# order first.
#
# </details>


# %% exercise="merge_heads" points=1 section="att-heads"
def merge_heads(x: Tensor) -> Tensor:
    """Put the heads of every token side by side, the inverse of split_heads.

    Args:
        x: (B, H, T, Dh).

    Returns:
        (B, T, H*Dh), contiguous.
    """
    ### BEGIN SOLUTION
    batch, num_heads, length, head_dim = x.shape
    tokens = x.transpose(1, 2).contiguous()  # (B, T, H, Dh)
    return tokens.view(batch, length, num_heads * head_dim)  # (B, T, H*Dh)
    ### END SOLUTION


# %% check="merge_heads" tags=["active-ipynb"]
# check("merge_heads")

# %% [markdown]
# ### Exercise 17: Multi-head attention
#
# Write `MultiHeadAttention(d_model, num_heads, dropout=0.0)` with four separate linear layers
# (Vaswani et al., 2017):
#
# $$\operatorname{head}_h = \operatorname{Attention}\bigl(Q W^Q_h,\; K W^K_h,\; V W^V_h\bigr),\qquad
# \operatorname{MultiHead}(Q, K, V) = \bigl[\operatorname{head}_1, \dots, \operatorname{head}_H\bigr]
# W^O$$
#
# All heads are computed at once: one `d_model` × `d_model` projection split into `H` blocks
# is the same as `H` projections of `d_model` × `d_model/H`. Each head scales by
# $\sqrt{d_{model}/H}$, its own width.
#
# * Layers: `q_proj`, `k_proj`, `v_proj`, `out_proj`, each `nn.Linear(d_model, d_model)` with bias.
#   `out_proj` is always applied, also for one head.
# * `forward(query, key, value, mask=None)`: `query` `(B, Tq, D)`, `key` and `value` `(B, Tk, D)`.
# * `mask`: bool, `True` = may attend, of shape `(Tq, Tk)`, `(B, Tq, Tk)`, `(B, 1, Tk)` or
#   `(B, H, Tq, Tk)`. A mask with three dimensions has one entry per **example**, the same for all
#   heads.
# * Returns `(output, weights)`: `(B, Tq, D)` and `(B, H, Tq, Tk)`.
# * `dropout` is the probability of dropping an attention weight, in training mode only
#   (`self.training`). The weights returned are those before dropout.
# * In a fully masked row all weights are 0, so the output there is the bias of `out_proj`.
# * `ValueError` (when the module is created) if `num_heads` doesn't divide `d_model`.
# * Not to be called: `nn.MultiheadAttention`, `multi_head_attention_forward`, PyTorch's
#   `scaled_dot_product_attention`.
#
# Book: section *multi-head attention* (`att-multihead`).
#
# <details><summary>Hint 1</summary>
#
# The order is: project, split, attend, merge, project.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Scores are `(B, H, Tq, Tk)`. A mask `(B, Tq, Tk)` would be aligned from the right and its `B`
# taken for heads: an error if `B` isn't `H`, and silently wrong if it is. It needs a head
# dimension: `mask.unsqueeze(1)`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Your own `scaled_dot_product_attention` takes the dropout probability and `self.training`, and
# accepts the four-dimensional tensors as they are.
#
# </details>


# %% exercise="MultiHeadAttention" points=5 section="att-multihead" forbids="MultiheadAttention multi_head_attention_forward scaled_dot_product_attention"
class MultiHeadAttention(nn.Module):
    """Multi-head attention with four separate projections (Vaswani et al. 2017, section 3.2.2).

    Layers, all with bias: ``q_proj``, ``k_proj``, ``v_proj``, ``out_proj``, each
    d_model -> d_model.
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        """Create the four projections.

        Args:
            d_model: width of inputs and outputs.
            num_heads: H, a divisor of d_model.
            dropout: probability of dropping an attention weight in training mode.

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        ### BEGIN SOLUTION
        if d_model % num_heads != 0:
            raise ValueError(f"d_model={d_model} can't be split into {num_heads} equal heads")
        self.num_heads = num_heads
        self.dropout = dropout
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        ### END SOLUTION

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attend with every head, then mix the heads.

        Args:
            query: (B, Tq, D).
            key: (B, Tk, D).
            value: (B, Tk, D).
            mask: bool (Tq, Tk), (B, Tq, Tk), (B, 1, Tk) or (B, H, Tq, Tk), True = may attend.

        Returns:
            The output (B, Tq, D) and the weights before dropout (B, H, Tq, Tk).
        """
        ### BEGIN SOLUTION
        q = split_heads(self.q_proj(query), self.num_heads)  # (B, H, Tq, D/H)
        k = split_heads(self.k_proj(key), self.num_heads)  # (B, H, Tk, D/H)
        v = split_heads(self.v_proj(value), self.num_heads)  # (B, H, Tk, D/H)
        if mask is not None and mask.dim() == 3:
            mask = mask.unsqueeze(1)  # (B, 1, Tq or 1, Tk): the same for all heads
        heads, weights = scaled_dot_product_attention(
            q, k, v, mask, self.dropout, self.training
        )  # (B, H, Tq, D/H), (B, H, Tq, Tk)
        return self.out_proj(merge_heads(heads)), weights  # (B, Tq, D), (B, H, Tq, Tk)
        ### END SOLUTION


# %% check="MultiHeadAttention" tags=["active-ipynb"]
# check("MultiHeadAttention")


# %% tags=["instructor"]
def fast_multi_head_attention(
    module: MultiHeadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    """The output of ``module(query, key, value, mask)`` by PyTorch's fused attention kernel.

    The kernel never stores the (Tq, Tk) weights, so it can't return them; that is where its speed
    and its small memory come from.

    Args:
        module: the layers to use; its dropout acts in training mode.
        query: (B, Tq, D).
        key: (B, Tk, D).
        value: (B, Tk, D).
        mask: as for MultiHeadAttention.

    Returns:
        (B, Tq, D), the same as the first result of the module.
    """
    q = split_heads(module.q_proj(query), module.num_heads)  # (B, H, Tq, D/H)
    k = split_heads(module.k_proj(key), module.num_heads)  # (B, H, Tk, D/H)
    v = split_heads(module.v_proj(value), module.num_heads)  # (B, H, Tk, D/H)
    if mask is not None and mask.dim() == 3:
        mask = mask.unsqueeze(1)  # (B, 1, Tq or 1, Tk)
    heads = nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=module.dropout if module.training else 0.0
    )  # (B, H, Tq, D/H)
    return module.out_proj(merge_heads(heads))  # (B, Tq, D)


# %% [markdown]
# ### Exercise 18: Multi-head attention with one fused projection
#
# For self-attention the three input projections can be one matrix product. Write
# `FusedMultiHeadAttention(input_dim, embed_dim, num_heads)`.
#
# * Layers, with bias: `qkv_proj = nn.Linear(input_dim, 3 * embed_dim)` and
#   `o_proj = nn.Linear(embed_dim, embed_dim)`.
# * The outputs of `qkv_proj` are **interleaved per head**. With $D_h$ = `embed_dim / num_heads`
#   they are, in blocks of $D_h$:
#
#   `q of head 0 | k of head 0 | v of head 0 | q of head 1 | k of head 1 | v of head 1 | …`
#
#   (Other libraries put all of q first, then all of k, then all of v. Both are possible; the
#   weights of one don't fit the other.)
# * `forward(x, mask=None)`: `x` `(B, T, input_dim)`; `mask` as in exercise 17 with `Tq = Tk = T`.
# * Returns `(output, weights)`: `(B, T, embed_dim)` and `(B, H, T, T)`. `input_dim` and `embed_dim`
#   may differ.
# * `ValueError` (when the module is created) if `num_heads` doesn't divide `embed_dim`.
# * Not to be called: PyTorch's own attention, as in exercise 9.
#
# Book: section *layouts* (`att-layouts`).
#
# <details><summary>Hint 1</summary>
#
# Each head owns a block of $3 D_h$ outputs: that is `split_heads` with `num_heads` heads of width
# $3 D_h$.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `chunk(3, dim=-1)` cuts the block of each head into q, k and v, each `(B, H, T, Dh)`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# After merging, the width is `embed_dim`, not the width of `x`. Don't reuse a name that holds the
# width of the input.
#
# </details>


# %% exercise="FusedMultiHeadAttention" points=4 section="att-layouts" forbids="MultiheadAttention multi_head_attention_forward scaled_dot_product_attention"
class FusedMultiHeadAttention(nn.Module):
    """Multi-head self-attention with one projection for queries, keys and values.

    Layers, both with bias: ``qkv_proj`` input_dim -> 3*embed_dim, whose outputs are interleaved per
    head (q of head 0, k of head 0, v of head 0, q of head 1, ...); ``o_proj``
    embed_dim -> embed_dim. Source: Vaswani et al. 2017, section 3.2.2, in another layout.
    """

    def __init__(self, input_dim: int, embed_dim: int, num_heads: int) -> None:
        """Create the two projections.

        Args:
            input_dim: width of the input.
            embed_dim: width of all heads together and of the output; may differ from input_dim.
            num_heads: H, a divisor of embed_dim.

        Raises:
            ValueError: if num_heads does not divide embed_dim.
        """
        super().__init__()
        ### BEGIN SOLUTION
        if embed_dim % num_heads != 0:
            raise ValueError(f"embed_dim={embed_dim} can't be split into {num_heads} equal heads")
        self.num_heads = num_heads
        self.qkv_proj = nn.Linear(input_dim, 3 * embed_dim)
        self.o_proj = nn.Linear(embed_dim, embed_dim)
        ### END SOLUTION

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Let every token attend to every token with every head.

        Args:
            x: (B, T, input_dim).
            mask: bool (T, T), (B, T, T), (B, 1, T) or (B, H, T, T), True = may attend.

        Returns:
            The output (B, T, embed_dim) and the weights (B, H, T, T).
        """
        ### BEGIN SOLUTION
        qkv = split_heads(self.qkv_proj(x), self.num_heads)  # (B, H, T, 3*Dh)
        q, k, v = qkv.chunk(3, dim=-1)  # each (B, H, T, Dh)
        if mask is not None and mask.dim() == 3:
            mask = mask.unsqueeze(1)  # (B, 1, T or 1, T)
        heads, weights = scaled_dot_product_attention(q, k, v, mask)  # (B,H,T,Dh), (B,H,T,T)
        return self.o_proj(merge_heads(heads)), weights  # (B, T, embed_dim), (B, H, T, T)
        ### END SOLUTION


# %% check="FusedMultiHeadAttention" tags=["active-ipynb"]
# check("FusedMultiHeadAttention")

# %% [markdown]
# ### Exercise 19: Multi-head attention with matrices per head
#
# The formula of the paper, word for word: every head has its own matrices. Write
# `PerHeadAttention(d_model, num_heads)`. With $D_h$ = `d_model / num_heads`:
#
# $$Z_h = \operatorname{Attention}\bigl(Q\,W^Q_h,\; K\,W^K_h,\; V\,W^V_h\bigr),\qquad
# \text{output} = [Z_1, \dots, Z_H]\,W^O = \sum_{h} Z_h\, W^O_h$$
#
# $W^O_h$ is the block of $D_h$ rows of $W^O$ that meets head $h$: joining the heads and multiplying
# is the same as adding up what each head contributes.
#
# * Parameters (`nn.Parameter`, no biases): `w_q`, `w_k`, `w_v`, each `(H, d_model, Dh)`;
#   `w_o` `(H, Dh, d_model)`. They multiply rows from the right, `x @ w_q[h]`.
# * `forward(query, key, value, mask=None)`, shapes, mask and results as in exercise 17:
#   `(B, Tq, D)` and `(B, H, Tq, Tk)`.
# * `ValueError` (when the module is created) if `num_heads` doesn't divide `d_model`.
# * Not to be called: PyTorch's own attention, as in exercise 9.
#
# Book: section *layouts* (`att-layouts`).
#
# <details><summary>Hint 1</summary>
#
# A loop over the heads is fine. Attend with each head, collect the weights, add up the
# contributions; `torch.stack(..., dim=1)` makes `(B, H, Tq, Tk)` of the collected weights.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Without a loop: `query.unsqueeze(1) @ self.w_q` is `(B, 1, Tq, D) @ (H, D, Dh)`, which broadcasts
# to `(B, H, Tq, Dh)`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# In a loop, a mask with four dimensions differs from head to head: take `mask[:, h]`.
#
# </details>


# %% exercise="PerHeadAttention" points=3 section="att-layouts" forbids="MultiheadAttention multi_head_attention_forward scaled_dot_product_attention"
class PerHeadAttention(nn.Module):
    """Multi-head attention with matrices per head (Vaswani et al. 2017, section 3.2.2).

    Parameters, no biases: ``w_q``, ``w_k``, ``w_v`` (H, d_model, d_model/H) and
    ``w_o`` (H, d_model/H, d_model).
    """

    def __init__(self, d_model: int, num_heads: int) -> None:
        """Create the four parameters.

        Args:
            d_model: width of inputs and outputs.
            num_heads: H, a divisor of d_model.

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        ### BEGIN SOLUTION
        if d_model % num_heads != 0:
            raise ValueError(f"d_model={d_model} can't be split into {num_heads} equal heads")
        head_dim = d_model // num_heads
        scale = 1.0 / math.sqrt(d_model)
        self.w_q = nn.Parameter(torch.randn(num_heads, d_model, head_dim) * scale)
        self.w_k = nn.Parameter(torch.randn(num_heads, d_model, head_dim) * scale)
        self.w_v = nn.Parameter(torch.randn(num_heads, d_model, head_dim) * scale)
        self.w_o = nn.Parameter(torch.randn(num_heads, head_dim, d_model) * scale)
        ### END SOLUTION

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attend with every head, then add up what the heads contribute.

        Args:
            query: (B, Tq, D).
            key: (B, Tk, D).
            value: (B, Tk, D).
            mask: bool (Tq, Tk), (B, Tq, Tk), (B, 1, Tk) or (B, H, Tq, Tk), True = may attend.

        Returns:
            The output (B, Tq, D) and the weights (B, H, Tq, Tk).
        """
        ### BEGIN SOLUTION
        q = query.unsqueeze(1) @ self.w_q  # (B, H, Tq, D/H)
        k = key.unsqueeze(1) @ self.w_k  # (B, H, Tk, D/H)
        v = value.unsqueeze(1) @ self.w_v  # (B, H, Tk, D/H)
        if mask is not None and mask.dim() == 3:
            mask = mask.unsqueeze(1)  # (B, 1, Tq or 1, Tk)
        heads, weights = scaled_dot_product_attention(q, k, v, mask)  # (B,H,Tq,Dh), (B,H,Tq,Tk)
        contributions = heads @ self.w_o  # (B, H, Tq, D)
        return contributions.sum(dim=1), weights  # (B, Tq, D), (B, H, Tq, Tk)
        ### END SOLUTION


# %% check="PerHeadAttention" tags=["active-ipynb"]
# check("PerHeadAttention")

# %% [markdown]
# ## Four layouts, one function
#
# The weights of `MultiHeadAttention` can be rearranged so that the other layouts compute exactly
# the same. A *state* is a plain `dict` from parameter names to tensors, as `module.state_dict()`
# gives it and `module.load_state_dict(...)` takes it. The state of `MultiHeadAttention` is
#
# | name | shape |
# |---|---|
# | `q_proj.weight`, `k_proj.weight`, `v_proj.weight`, `out_proj.weight` | `(D, D)` as `(out, in)` |
# | `q_proj.bias`, `k_proj.bias`, `v_proj.bias`, `out_proj.bias` | `(D,)` |
#
# The three functions that follow return a **new** `dict` and leave their input unchanged.
#
# ### Exercise 20: From separate to fused
#
# Write `separate_to_fused(state, num_heads)`: the state for
# `FusedMultiHeadAttention(D, D, num_heads)` that computes the same function of `x` as
# `MultiHeadAttention` of `(x, x, x)`.
#
# * Result: exactly `qkv_proj.weight` `(3D, D)`, `qkv_proj.bias` `(3D,)`, `o_proj.weight` `(D, D)`,
#   `o_proj.bias` `(D,)`.
# * The rows are interleaved per head, as exercise 18 says.
#
# *Example.* $D = 2$ with two heads, so $D_h = 1$, and biases $b^q = (1, 2)$, $b^k = (3, 4)$,
# $b^v = (5, 6)$: `qkv_proj.bias` is $(1, 3, 5, 2, 4, 6)$.
#
# Book: section *layouts* (`att-layouts`).
#
# <details><summary>Hint 1</summary>
#
# `nn.Linear` stores `(out, in)`, so the outputs of head `h` are the *rows* `h*Dh` up to `(h+1)*Dh`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Cut each of the three weights into `(H, Dh, D)`, stack them to `(H, 3, Dh, D)`, and flatten the
# first three dimensions. The biases go the same way.
#
# </details>


# %% exercise="separate_to_fused" points=3 section="att-layouts"
def separate_to_fused(state: dict[str, Tensor], num_heads: int) -> dict[str, Tensor]:
    """Rearrange the state of MultiHeadAttention for FusedMultiHeadAttention.

    Args:
        state: {q_proj, k_proj, v_proj, out_proj}.weight (D, D) and .bias (D,); left unchanged.
        num_heads: H, a divisor of D.

    Returns:
        qkv_proj.weight (3D, D) and qkv_proj.bias (3D,), interleaved per head; o_proj.weight (D, D)
        and o_proj.bias (D,).
    """
    ### BEGIN SOLUTION
    names = ("q_proj", "k_proj", "v_proj")
    width = state["q_proj.weight"].shape[1]  # D
    weights = [state[f"{n}.weight"].reshape(num_heads, -1, width) for n in names]  # (H, Dh, D)
    biases = [state[f"{n}.bias"].reshape(num_heads, -1) for n in names]  # (H, Dh)
    return {
        "qkv_proj.weight": torch.stack(weights, dim=1).reshape(-1, width),  # (H,3,Dh,D) -> (3D, D)
        "qkv_proj.bias": torch.stack(biases, dim=1).reshape(-1),  # (H, 3, Dh) -> (3D,)
        "o_proj.weight": state["out_proj.weight"].clone(),  # (D, D)
        "o_proj.bias": state["out_proj.bias"].clone(),  # (D,)
    }
    ### END SOLUTION


# %% check="separate_to_fused" tags=["active-ipynb"]
# check("separate_to_fused")

# %% [markdown]
# ### Exercise 21: From separate to per-head
#
# Write `separate_to_per_head(state, num_heads)`: the state for `PerHeadAttention(D, num_heads)`
# that computes the same.
#
# * Result: exactly `w_q`, `w_k`, `w_v` `(H, D, Dh)` and `w_o` `(H, Dh, D)`.
# * `PerHeadAttention` has no biases, so only a state whose biases are all 0 (or that has none) can
#   be converted: `ValueError` if any bias in the state is not 0.
#
# *Example.* $D = 2$, two heads, `q_proj.weight` $= \begin{pmatrix}1&2\\3&4\end{pmatrix}$:
# `w_q[0]` is the column $(1, 2)^\top$ and `w_q[1]` is $(3, 4)^\top$.
#
# Book: section *layouts* (`att-layouts`).
#
# <details><summary>Hint 1</summary>
#
# `nn.Linear` computes $x W^\top$ and `PerHeadAttention` computes $x W$: every block has to be
# transposed.
#
# </details>
# <details><summary>Hint 2</summary>
#
# For q, k, v a head owns rows (outputs) of the weight; for `out_proj` it owns columns (inputs).
#
# </details>


# %% exercise="separate_to_per_head" points=2 section="att-layouts"
def separate_to_per_head(state: dict[str, Tensor], num_heads: int) -> dict[str, Tensor]:
    """Rearrange the state of MultiHeadAttention for PerHeadAttention.

    Args:
        state: {q_proj, k_proj, v_proj, out_proj}.weight (D, D), and .bias (D,) that are 0 or
            absent; left unchanged.
        num_heads: H, a divisor of D.

    Returns:
        w_q, w_k, w_v (H, D, D/H) and w_o (H, D/H, D).

    Raises:
        ValueError: if a bias in the state is not 0.
    """
    ### BEGIN SOLUTION
    for name, tensor in state.items():
        if name.endswith("bias") and tensor.any():
            raise ValueError(f"{name} is not 0, but per-head attention has no biases")

    def columns(weight: Tensor) -> Tensor:
        """(D, D) as (out, in) -> (H, D, D/H): a head owns outputs."""
        return weight.T.reshape(len(weight), num_heads, -1).transpose(0, 1).contiguous()

    return {
        "w_q": columns(state["q_proj.weight"]),  # (H, D, D/H)
        "w_k": columns(state["k_proj.weight"]),  # (H, D, D/H)
        "w_v": columns(state["v_proj.weight"]),  # (H, D, D/H)
        "w_o": torch.stack(state["out_proj.weight"].T.chunk(num_heads)),  # (H, D/H, D)
    }
    ### END SOLUTION


# %% check="separate_to_per_head" tags=["active-ipynb"]
# check("separate_to_per_head")

# %% [markdown]
# ### Exercise 22: From separate to PyTorch
#
# Write `separate_to_torch(state)`: the state for `torch.nn.MultiheadAttention(D, num_heads)` that
# computes the same. PyTorch stacks all of q, then all of k, then all of v.
#
# * Result: exactly `in_proj_weight` `(3D, D)`, `in_proj_bias` `(3D,)`, `out_proj.weight` `(D, D)`,
#   `out_proj.bias` `(D,)`.
# * The number of heads is not needed: PyTorch cuts the features into heads as exercise 15 does.
#
# (If you compare the two yourself: PyTorch's masks have the opposite meaning, `True` = must not
# attend.)
#
# Book: section *layouts* (`att-layouts`).
#
# <details><summary>Hint 1</summary>
#
# `torch.cat` along the rows. The names of the result have no dot before `weight` for the input
# projection: `in_proj_weight`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Both are `(out, in)`, so nothing is transposed.
#
# </details>


# %% exercise="separate_to_torch" points=2 section="att-layouts"
def separate_to_torch(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rearrange the state of MultiHeadAttention for torch.nn.MultiheadAttention.

    Args:
        state: {q_proj, k_proj, v_proj, out_proj}.weight (D, D) and .bias (D,); left unchanged.

    Returns:
        in_proj_weight (3D, D) and in_proj_bias (3D,), all of q, then k, then v; out_proj.weight
        (D, D) and out_proj.bias (D,).
    """
    ### BEGIN SOLUTION
    names = ("q_proj", "k_proj", "v_proj")
    return {
        "in_proj_weight": torch.cat([state[f"{n}.weight"] for n in names]),  # (3D, D)
        "in_proj_bias": torch.cat([state[f"{n}.bias"] for n in names]),  # (3D,)
        "out_proj.weight": state["out_proj.weight"].clone(),  # (D, D)
        "out_proj.bias": state["out_proj.bias"].clone(),  # (D,)
    }
    ### END SOLUTION


# %% check="separate_to_torch" tags=["active-ipynb"]
# check("separate_to_torch")

# %% [markdown]
# ## Cross-attention
#
# ### Exercise 23: Cross-attention
#
# In cross-attention the queries come from one sequence (the decoder's) and keys and values from
# another, the *memory* (the encoder's output). Write
# `CrossAttention(query_dim, memory_dim, embed_dim, num_heads)`; widths and lengths may all
# differ.
#
# * Layers, with bias: `q_proj` `nn.Linear(query_dim, embed_dim)`, `k_proj` and `v_proj`
#   `nn.Linear(memory_dim, embed_dim)`, `out_proj` `nn.Linear(embed_dim, query_dim)`.
# * `forward(x, memory, memory_mask=None)`: `x` `(B, Tq, query_dim)`, `memory`
#   `(B, Tk, memory_dim)`, `memory_mask` `(B, Tk)` bool, `True` = real token of the memory.
# * Returns `(output, weights)`: `(B, Tq, query_dim)` and `(B, H, Tq, Tk)`. Each head scales by
#   $\sqrt{\text{embed\_dim}/H}$. There is no causal mask: the whole memory is known.
# * If an example's memory is fully masked, its weights are 0 and its output is the bias of
#   `out_proj`.
# * `ValueError` (when the module is created) if `num_heads` doesn't divide `embed_dim`.
# * Not to be called: PyTorch's own attention, as in exercise 9.
#
# Book: section *cross-attention* (`att-cross`).
#
# <details><summary>Hint 1</summary>
#
# It is exercise 17 with other widths: `x` makes the queries, `memory` makes keys **and** values.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `memory_mask` `(B, Tk)` must broadcast to `(B, H, Tq, Tk)`: `memory_mask[:, None, None, :]`.
#
# </details>


# %% exercise="CrossAttention" points=3 section="att-cross" forbids="MultiheadAttention multi_head_attention_forward scaled_dot_product_attention"
class CrossAttention(nn.Module):
    """Multi-head attention from one sequence to another (Vaswani et al. 2017, section 3.2.3).

    Layers, all with bias: ``q_proj`` query_dim -> embed_dim, ``k_proj`` and ``v_proj``
    memory_dim -> embed_dim, ``out_proj`` embed_dim -> query_dim.
    """

    def __init__(self, query_dim: int, memory_dim: int, embed_dim: int, num_heads: int) -> None:
        """Create the four projections.

        Args:
            query_dim: width of the attending sequence and of the output.
            memory_dim: width of the memory.
            embed_dim: width of all heads together.
            num_heads: H, a divisor of embed_dim.

        Raises:
            ValueError: if num_heads does not divide embed_dim.
        """
        super().__init__()
        ### BEGIN SOLUTION
        if embed_dim % num_heads != 0:
            raise ValueError(f"embed_dim={embed_dim} can't be split into {num_heads} equal heads")
        self.num_heads = num_heads
        self.q_proj = nn.Linear(query_dim, embed_dim)
        self.k_proj = nn.Linear(memory_dim, embed_dim)
        self.v_proj = nn.Linear(memory_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, query_dim)
        ### END SOLUTION

    def forward(
        self, x: Tensor, memory: Tensor, memory_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Let every token of x attend to the real tokens of memory.

        Args:
            x: (B, Tq, query_dim).
            memory: (B, Tk, memory_dim).
            memory_mask: (B, Tk) bool, True = real token of the memory.

        Returns:
            The output (B, Tq, query_dim) and the weights (B, H, Tq, Tk).
        """
        ### BEGIN SOLUTION
        q = split_heads(self.q_proj(x), self.num_heads)  # (B, H, Tq, Dh)
        k = split_heads(self.k_proj(memory), self.num_heads)  # (B, H, Tk, Dh)
        v = split_heads(self.v_proj(memory), self.num_heads)  # (B, H, Tk, Dh)
        mask = None if memory_mask is None else memory_mask[:, None, None, :]  # (B, 1, 1, Tk)
        heads, weights = scaled_dot_product_attention(q, k, v, mask)  # (B,H,Tq,Dh), (B,H,Tq,Tk)
        return self.out_proj(merge_heads(heads)), weights  # (B, Tq, query_dim), (B, H, Tq, Tk)
        ### END SOLUTION


# %% check="CrossAttention" tags=["active-ipynb"]
# check("CrossAttention")
