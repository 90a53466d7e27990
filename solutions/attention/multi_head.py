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
# # Attention: many heads, three layouts
#
# At the end of this unit multi-head attention stands in three layouts, weights move from one to
# another and into PyTorch, and one sequence attends to another.

# %%
"""Multi-head attention in three layouts, weights carried between them, cross-attention."""

# The options of a cell must stand on one line, however long it gets.
# ruff: noqa: E501

# %%
import math

import torch
from torch import Tensor, nn

from solutions.attention.self_attention import scaled_dot_product_attention

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("attention-multi_head")

# %% [markdown]
# ## Many heads
#
# ### Exercise 1: Split heads
#
# To attend several times at once, each token's features are cut into blocks, one for each head. Write
# `split_heads(x, num_heads)`:
#
# $$\text{heads}_{b,h,t,d} = x_{b,\,t,\,h D_h + d},\qquad D_h = D / H$$
#
# 1. `x` is `(B, T, D)`; the **result** is `(B, H, T, D/H)`, so that heads act like one more batch
#    dimension. <!-- id: heads-in-front -->
# 2. Head 0 gets the first $D_h$ features of **every token**, head 1 the next, and so on.
#    <!-- id: blocks-of-features -->
#
# Raise `ValueError` if `num_heads` doesn't divide $D$. <!-- id: not-divisible -->
#
# *Example.* One sequence of two tokens $(1, 2, 3, 4)$ and $(5, 6, 7, 8)$, two heads: head 0 is
# $\begin{pmatrix}1&2\\5&6\end{pmatrix}$, head 1 is $\begin{pmatrix}3&4\\7&8\end{pmatrix}$. A plain
# `view(B, H, T, D/H)` has the right shape, but its head 0 would be
# $\begin{pmatrix}1&2\\3&4\end{pmatrix}$: both halves of token 0 and nothing of token 1.
#
# Book: `att-heads`.
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
# ### Exercise 2: Merge heads
#
# After attention, the heads of each token are put side by side again, so that one last projection can
# mix them. Write `merge_heads(x)`, the exact inverse of `split_heads`.
#
# 1. `x` is `(B, H, T, Dh)`; the **result** is `(B, T, H*Dh)`, <!-- id: merged-shape --> with the
#    features of head 0 first, then those of head 1, and so on. <!-- id: undoes-split -->
# 2. The result is **contiguous** in memory (`result.is_contiguous()`), whatever strides `x` has, also
#    for one head. <!-- id: contiguous -->
#
# *Example.* The two heads of the example above give back $(1, 2, 3, 4)$ and $(5, 6, 7, 8)$.
#
# Book: `att-heads`.
#
# <details><summary>Hint 1</summary>
#
# Undo the two steps of exercise 1 in reverse order.
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
# ### Exercise 3: Multi-head attention
#
# Several heads can look at several things at once (Vaswani et al., 2017):
#
# $$\operatorname{head}_h = \operatorname{Attention}\bigl(Q W^Q_h,\; K W^K_h,\; V W^V_h\bigr),\qquad
# \operatorname{MultiHead}(Q, K, V) = \bigl[\operatorname{head}_1, \dots, \operatorname{head}_H\bigr]
# W^O$$
#
# One `d_model` × `d_model` projection split into $H$ blocks is the same as $H$ projections of
# `d_model` × `d_model/H`, so all heads are computed at once.
#
# Write the module `MultiHeadAttention(d_model, num_heads, dropout=0.0)`.
#
# 1. It has **four linear layers**: `q_proj`, `k_proj`, `v_proj`, `out_proj`, each
#    `nn.Linear(d_model, d_model)` with bias. <!-- id: layers -->
# 2. `forward(query, key, value, mask=None)` takes `query` `(B, Tq, D)`, `key` and `value`
#    `(B, Tk, D)`, and **attends** with each head by the formula, <!-- id: multi-head-formula --> with
#    scores divided by $\sqrt{d_{\text{model}}/H}$, the root of a head's own width.
#    <!-- id: scaled-by-head -->
# 3. The heads are merged, and `out_proj` is **always applied**, also for one head.
#    <!-- id: out-proj-applied -->
# 4. `mask` is `None` or bool, `True` = may attend, of shape `(Tq, Tk)`, `(B, Tq, Tk)`, `(B, 1, Tk)` or
#    `(B, H, Tq, Tk)`. <!-- id: mask-shapes --> A mask with **two dimensions** holds for all examples
#    and heads; <!-- id: mask-for-all --> one with **three** holds for all heads of its **example**.
#    <!-- id: mask-for-each-example --> `(B, 1, Tk)` hides keys: every query still attends, also one
#    at a position whose key is hidden.
# 5. In a **fully masked** row all weights are 0, so the output there is the bias of `out_proj`.
#    <!-- id: fully-masked-query -->
# 6. `dropout` is the probability of **dropping** an attention weight, each on its own,
#    <!-- id: dropout-on-weights --> in train mode only (`self.training`).
#    <!-- id: dropout-in-training -->
# 7. It **returns** `(output, attn_weights)`, of shapes `(B, Tq, D)` and `(B, H, Tq, Tk)`,
#    <!-- id: returns --> the weights as they are before dropout. <!-- id: weights-before-dropout -->
# 8. Not to be called: `nn.MultiheadAttention`, `multi_head_attention_forward`, PyTorch's
#    `scaled_dot_product_attention`. <!-- id: not-called -->
#
# Raise `ValueError`, when the module is created, if `num_heads` doesn't divide `d_model`.
# <!-- id: not-divisible -->
#
# Book: `att-multihead`.
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
        heads, attn_weights = scaled_dot_product_attention(
            q, k, v, mask, self.dropout, self.training
        )  # (B, H, Tq, D/H), (B, H, Tq, Tk)
        return self.out_proj(merge_heads(heads)), attn_weights  # (B, Tq, D), (B, H, Tq, Tk)
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
# ### Exercise 4: Multi-head attention with one fused projection
#
# For self-attention the three input projections can be one matrix product. Write the module
# `FusedMultiHeadAttention(input_dim, d_model, num_heads)`.
#
# 1. It has **two linear layers with bias**: `qkv_proj = nn.Linear(input_dim, 3 * d_model)` and
#    `o_proj = nn.Linear(d_model, d_model)`. <!-- id: layers --> `input_dim` and `d_model` may differ.
#    <!-- id: other-input-width -->
# 2. The outputs of `qkv_proj` are **interleaved per head**. With $D_h$ = `d_model / num_heads` they
#    are, in blocks of $D_h$: <!-- id: interleaved -->
#
#    `q of head 0 | k of head 0 | v of head 0 | q of head 1 | k of head 1 | v of head 1 | …`
#
#    (Other libraries put all of q first, then all of k, then all of v. The weights of one layout
#    don't fit the other.)
# 3. `forward(x, mask=None)` takes `x` `(B, T, input_dim)` and **attends** as exercise 3 does, each
#    head with scores divided by $\sqrt{D_h}$; `o_proj` follows. <!-- id: attends -->
# 4. `mask` has the **shapes** of exercise 3 with `Tq = Tk = T`, and their meaning; <!-- id: mask-shapes -->
#    a fully masked row gives weights 0. <!-- id: fully-masked-query -->
# 5. It **returns** `(output, attn_weights)`, of shapes `(B, T, d_model)` and `(B, H, T, T)`.
#    <!-- id: returns -->
# 6. Not to be called: PyTorch's own attention, as in `scaled_dot_product_attention` (unit
#    `self_attention`). <!-- id: not-called -->
#
# Raise `ValueError`, when the module is created, if `num_heads` doesn't divide `d_model`.
# <!-- id: not-divisible -->
#
# Book: `att-layouts`.
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
# After merging, the width is `d_model`, not the width of `x`. Don't reuse a name that holds the
# width of the input.
#
# </details>


# %% exercise="FusedMultiHeadAttention" points=4 section="att-layouts" forbids="MultiheadAttention multi_head_attention_forward scaled_dot_product_attention"
class FusedMultiHeadAttention(nn.Module):
    """Multi-head self-attention with one projection for queries, keys and values.

    Layers, both with bias: ``qkv_proj`` input_dim -> 3*d_model, whose outputs are interleaved per
    head (q of head 0, k of head 0, v of head 0, q of head 1, ...); ``o_proj``
    d_model -> d_model. Source: Vaswani et al. 2017, section 3.2.2, in another layout.
    """

    def __init__(self, input_dim: int, d_model: int, num_heads: int) -> None:
        """Create the two projections.

        Args:
            input_dim: width of the input.
            d_model: width of all heads together and of the output; may differ from input_dim.
            num_heads: H, a divisor of d_model.

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        ### BEGIN SOLUTION
        if d_model % num_heads != 0:
            raise ValueError(f"d_model={d_model} can't be split into {num_heads} equal heads")
        self.num_heads = num_heads
        self.qkv_proj = nn.Linear(input_dim, 3 * d_model)
        self.o_proj = nn.Linear(d_model, d_model)
        ### END SOLUTION

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Let every token attend to every token with every head.

        Args:
            x: (B, T, input_dim).
            mask: bool (T, T), (B, T, T), (B, 1, T) or (B, H, T, T), True = may attend.

        Returns:
            The output (B, T, d_model) and the weights (B, H, T, T).
        """
        ### BEGIN SOLUTION
        qkv = split_heads(self.qkv_proj(x), self.num_heads)  # (B, H, T, 3*Dh)
        q, k, v = qkv.chunk(3, dim=-1)  # each (B, H, T, Dh)
        if mask is not None and mask.dim() == 3:
            mask = mask.unsqueeze(1)  # (B, 1, T or 1, T)
        heads, attn_weights = scaled_dot_product_attention(q, k, v, mask)  # (B,H,T,Dh), (B,H,T,T)
        return self.o_proj(merge_heads(heads)), attn_weights  # (B, T, d_model), (B, H, T, T)
        ### END SOLUTION


# %% check="FusedMultiHeadAttention" tags=["active-ipynb"]
# check("FusedMultiHeadAttention")

# %% [markdown]
# ### Exercise 5: Multi-head attention with matrices per head
#
# The formula of the paper, word for word: every head has its own matrices. With
# $D_h$ = `d_model / num_heads`:
#
# $$Z_h = \operatorname{Attention}\bigl(Q\,W^Q_h,\; K\,W^K_h,\; V\,W^V_h\bigr),\qquad
# \text{output} = [Z_1, \dots, Z_H]\,W^O = \sum_{h} Z_h\, W^O_h$$
#
# $W^O_h$ is the block of $D_h$ rows of $W^O$ that meets head $h$: joining the heads and multiplying
# is the same as adding up what each head contributes.
#
# Write the module `PerHeadAttention(d_model, num_heads)`.
#
# 1. It has **four parameters** (`nn.Parameter`, no biases): `w_q`, `w_k`, `w_v`, each
#    `(H, d_model, Dh)`, and `w_o` `(H, Dh, d_model)`. <!-- id: parameters --> They multiply rows from
#    the right, `x @ w_q[h]`. <!-- id: from-the-right -->
# 2. `forward(query, key, value, mask=None)` **attends** by the formula, with scores divided by
#    $\sqrt{D_h}$; shapes are those of exercise 3. <!-- id: per-head-formula -->
# 3. `mask` has the **shapes** of exercise 3, and their meaning; <!-- id: mask-shapes --> a fully
#    masked row gives weights 0 and output 0. <!-- id: fully-masked-query -->
# 4. It **returns** `(output, attn_weights)`, of shapes `(B, Tq, D)` and `(B, H, Tq, Tk)`.
#    <!-- id: returns -->
# 5. Not to be called: PyTorch's own attention, as in `scaled_dot_product_attention` (unit
#    `self_attention`). <!-- id: not-called -->
#
# Raise `ValueError`, when the module is created, if `num_heads` doesn't divide `d_model`.
# <!-- id: not-divisible -->
#
# Book: `att-layouts`.
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
        # (B,H,Tq,Dh), (B,H,Tq,Tk)
        heads, attn_weights = scaled_dot_product_attention(q, k, v, mask)
        contributions = heads @ self.w_o  # (B, H, Tq, D)
        return contributions.sum(dim=1), attn_weights  # (B, Tq, D), (B, H, Tq, Tk)
        ### END SOLUTION


# %% check="PerHeadAttention" tags=["active-ipynb"]
# check("PerHeadAttention")

# %% [markdown]
# ## Four layouts, one function
#
# The weights of `MultiHeadAttention` can be rearranged so that the other layouts compute exactly
# the same. Whoever loads a trained model into another library's class has to do that: the shapes often
# fit, and a wrong order raises no error. A *state* is a plain `dict` from parameter names to tensors, as `module.state_dict()`
# gives it and `module.load_state_dict(...)` takes it. The state of `MultiHeadAttention` is
#
# | name | shape |
# |---|---|
# | `q_proj.weight`, `k_proj.weight`, `v_proj.weight`, `out_proj.weight` | `(D, D)` as `(out, in)` |
# | `q_proj.bias`, `k_proj.bias`, `v_proj.bias`, `out_proj.bias` | `(D,)` |
#
# The three functions that follow return a **new** `dict` and leave their input unchanged. A state is
# loaded, not trained: no gradient needs to pass through these three.
#
# ### Exercise 6: From separate to fused
#
# Write `separate_to_fused(state, num_heads)`, which rearranges the state of a `MultiHeadAttention`
# for `FusedMultiHeadAttention(D, D, num_heads)`, so that both compute the same function of `x` (as
# `query`, `key` and `value`).
#
# 1. The **result** is a new `dict` with exactly `qkv_proj.weight` `(3D, D)`, `qkv_proj.bias` `(3D,)`,
#    `o_proj.weight` `(D, D)` and `o_proj.bias` `(D,)`. <!-- id: names-and-shapes -->
# 2. The **rows** of `qkv_proj` are interleaved per head, weights and biases alike, as exercise 4 says.
#    <!-- id: rows-interleaved -->
#
# *Example.* $D = 2$ with two heads, so $D_h = 1$, and biases $b^q = (1, 2)$, $b^k = (3, 4)$,
# $b^v = (5, 6)$: `qkv_proj.bias` is $(1, 3, 5, 2, 4, 6)$.
#
# Book: `att-layouts`.
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
# ### Exercise 7: From separate to per-head
#
# Write `separate_to_per_head(state, num_heads)`, which rearranges the state of a `MultiHeadAttention`
# for `PerHeadAttention(D, num_heads)`, so that both compute the same.
#
# 1. The **result** is a new `dict` with exactly `w_q`, `w_k`, `w_v` `(H, D, Dh)` and `w_o`
#    `(H, Dh, D)`, <!-- id: names-and-shapes --> which compute the same. <!-- id: same-function -->
# 2. The state may also be one **without biases**. <!-- id: state-without-biases -->
#
# Raise `ValueError` if any bias in the state is not 0, however small, because `PerHeadAttention` has
# none.
# <!-- id: bias-not-zero -->
#
# *Example.* $D = 2$, two heads, `q_proj.weight` $= \begin{pmatrix}1&2\\3&4\end{pmatrix}$:
# `w_q[0]` is the column $(1, 2)^\top$ and `w_q[1]` is $(3, 4)^\top$.
#
# Book: `att-layouts`.
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
# ### Exercise 8: From separate to PyTorch
#
# Write `separate_to_torch(state)`, which rearranges the state of a `MultiHeadAttention` for
# `torch.nn.MultiheadAttention(D, num_heads)`, so that both compute the same, for any number of heads:
# PyTorch cuts the features into heads as exercise 1 does.
#
# 1. The **result** is a new `dict` with exactly `in_proj_weight` `(3D, D)`, `in_proj_bias` `(3D,)`,
#    `out_proj.weight` `(D, D)` and `out_proj.bias` `(D,)`. <!-- id: names-and-shapes -->
# 2. PyTorch **stacks** all of q, then all of k, then all of v. <!-- id: stacked -->
#    With them it computes the same. <!-- id: same-function -->
#
# (If you compare the two yourself: PyTorch's masks have the opposite meaning, `True` = must not
# attend.)
#
# Book: `att-layouts`.
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
# ### Exercise 9: Cross-attention
#
# In cross-attention the queries come from one sequence (the decoder's), and keys and values from
# another, the *memory* (the encoder's output). Write the module
# `CrossAttention(query_dim, memory_dim, d_model, num_heads)`.
#
# 1. It has **four linear layers with bias**: `q_proj` `nn.Linear(query_dim, d_model)`, `k_proj` and
#    `v_proj` `nn.Linear(memory_dim, d_model)`, `out_proj` `nn.Linear(d_model, query_dim)`.
#    <!-- id: layers -->
# 2. `forward(x, memory, memory_mask=None)` takes `x` `(B, Tq, query_dim)` and `memory`
#    `(B, Tk, memory_dim)`; widths and lengths may all differ. It **attends** with queries from `x`,
#    keys and values from `memory`, <!-- id: queries-from-x --> each head with scores divided by
#    $\sqrt{d_{\text{model}}/H}$. <!-- id: scaled-by-head -->
# 3. There is **no causal mask**: the whole memory is known. <!-- id: not-causal -->
# 4. `memory_mask` is `None` or `(B, Tk)` bool, `True` = real token. **Padding** gets the weight 0, in
#    every head and for every query, and what stands there changes nothing. <!-- id: memory-padding -->
# 5. If an example's memory is **fully masked**, its weights are 0 and its output is the bias of
#    `out_proj`. <!-- id: empty-memory -->
# 6. It **returns** `(output, attn_weights)`, of shapes `(B, Tq, query_dim)` and `(B, H, Tq, Tk)`.
#    <!-- id: returns -->
# 7. Not to be called: PyTorch's own attention, as in `scaled_dot_product_attention` (unit
#    `self_attention`). <!-- id: not-called -->
#
# Raise `ValueError`, when the module is created, if `num_heads` doesn't divide `d_model`.
# <!-- id: not-divisible -->
#
# Book: `att-cross`.
#
# <details><summary>Hint 1</summary>
#
# It is exercise 3 with other widths: `x` makes the queries, `memory` makes keys **and** values.
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

    Layers, all with bias: ``q_proj`` query_dim -> d_model, ``k_proj`` and ``v_proj``
    memory_dim -> d_model, ``out_proj`` d_model -> query_dim.
    """

    def __init__(self, query_dim: int, memory_dim: int, d_model: int, num_heads: int) -> None:
        """Create the four projections.

        Args:
            query_dim: width of the attending sequence and of the output.
            memory_dim: width of the memory.
            d_model: width of all heads together.
            num_heads: H, a divisor of d_model.

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        ### BEGIN SOLUTION
        if d_model % num_heads != 0:
            raise ValueError(f"d_model={d_model} can't be split into {num_heads} equal heads")
        self.num_heads = num_heads
        self.q_proj = nn.Linear(query_dim, d_model)
        self.k_proj = nn.Linear(memory_dim, d_model)
        self.v_proj = nn.Linear(memory_dim, d_model)
        self.out_proj = nn.Linear(d_model, query_dim)
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
        # (B,H,Tq,Dh), (B,H,Tq,Tk)
        heads, attn_weights = scaled_dot_product_attention(q, k, v, mask)
        return self.out_proj(merge_heads(heads)), attn_weights  # (B, Tq, query_dim), (B, H, Tq, Tk)
        ### END SOLUTION


# %% check="CrossAttention" tags=["active-ipynb"]
# check("CrossAttention")
