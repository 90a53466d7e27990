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
# # Attention: scaled dot products, masks, self-attention
#
# At the end of this unit a sequence attends to itself, and neither padding nor the future is
# seen.

# %%
"""Scaled dot-product attention, masks, self-attention with and without the future."""

# The options of a cell must stand on one line, however long it gets.
# ruff: noqa: E501

# %%
import math

import torch
from torch import Tensor, nn

from solutions.attention.scores import attention_dropout, masked_softmax

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("attention-self_attention")

# %% [markdown]
# ## Scaled dot-product attention
#
# ### Exercise 1: Scaled dot-product attention
#
# The heart of the Transformer (Vaswani et al., 2017): each query takes a weighted mean of the values,
# with weights from its dot products with the keys.
#
# $$\operatorname{Attention}(Q, K, V) = \operatorname{softmax}\!\left(\frac{Q K^\top}{\sqrt{d_k}}
# \right) V$$
#
# Write `scaled_dot_product_attention(query, key, value, mask=None, dropout=0.0, training=False)`.
# `query` is `(..., Tq, D)`, `key` `(..., Tk, D)`, `value` `(..., Tk, Dv)`, and $d_k$ is $D$, the width
# of queries and keys. The function
#
# 1. takes any number of **leading dimensions**, the same in all three: none, a batch, a batch and
#    heads, …; <!-- id: any-leading-dimensions -->
# 2. computes the **weights**: the scores $Q K^\top$ divided by $\sqrt{d_k}$, then a softmax over the
#    keys; <!-- id: scaled-softmax -->
# 3. **masks** the scores before the softmax: `mask` is `None` or bool, broadcastable to
#    `(..., Tq, Tk)`, `True` = may attend. A key that a query must not attend to gets the weight 0,
#    however large its score is; <!-- id: masked-weights -->
# 4. gives a **fully masked** query the weights 0 and the output 0, with finite gradients;
#    <!-- id: fully-masked-query -->
# 5. applies **dropout** to the weights, <!-- id: dropout-on-weights --> as `attention_dropout` (unit
#    `scores`) does, only if `training` is `True`; <!-- id: dropout-in-training -->
# 6. **returns** `(output, attn_weights)`, of shapes `(..., Tq, Dv)` and `(..., Tq, Tk)`: the output is
#    the weighted sum of the values, <!-- id: weighted-sum --> and the weights are those **before**
#    dropout, so that they can be plotted. <!-- id: weights-before-dropout -->
#
# Raise `ValueError` if the widths of `query` and `key` differ, <!-- id: other-widths --> or the
# lengths of `key` and `value`, <!-- id: other-lengths --> or if the mask is not bool or doesn't fit,
# which `masked_softmax` (unit `scores`) refuses as well. <!-- id: bad-mask -->
#
# Not to be called: PyTorch's own attention, `torch.nn.functional.scaled_dot_product_attention`,
# `multi_head_attention_forward`, `nn.MultiheadAttention`. <!-- id: not-called --> (Your function has
# the same name as PyTorch's; that is all right.)
#
# *Example.* One query $(1, 1, 1, 1)$, keys $(1, 1, 1, 1)$ and $(0, 0, 0, 0)$, values $(10)$ and
# $(0)$: the scores are $4$ and $0$, divided by $\sqrt4$ they are $2$ and $0$, the weights are
# $(0.881, 0.119)$, and the output is $8.81$.
#
# Book: `att-scaled` and `att-scaling`.
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
    dropout: float = 0.0,
    training: bool = False,
) -> tuple[Tensor, Tensor]:
    """softmax(Q K^T / sqrt(d_k)) V with mask and dropout (Vaswani et al. 2017, section 3.2.1).

    Args:
        query: (..., Tq, D).
        key: (..., Tk, D).
        value: (..., Tk, Dv).
        mask: bool, broadcastable to (..., Tq, Tk), True = may attend.
        dropout: probability of dropping a weight, in training only.
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
    attn_weights = masked_softmax(scores, mask)  # (..., Tq, Tk)
    dropped = attention_dropout(attn_weights, dropout, training)  # (..., Tq, Tk)
    return dropped @ value, attn_weights  # (..., Tq, Dv), (..., Tq, Tk)
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
# Book: `att-scaling`. 3 points, marked by a person.

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
# *Points by part, and what commonly goes wrong:* `solutions/marking_guides.md`.
# ### END SOLUTION

# %% [markdown]
# ## Masks
#
# ### Exercise 2: Causal mask
#
# A decoder must not look at tokens that it has yet to predict. Write `causal_mask(length)`, the mask
# that hides them.
#
# 1. The **result** is bool, of shape `(length, length)`; row $i$ belongs to query $i$, column $j$ to
#    key $j$. <!-- id: bool-square -->
# 2. Position $i$ **may attend** to position $j$ if and only if $j \le i$: to itself and to what came
#    before. <!-- id: itself-and-before -->
#
# Raise `ValueError` if `length` is not an `int` <!-- id: length-not-int --> or is smaller than 1 (0
# is refused). <!-- id: length-below-one -->
#
# *Example.* `causal_mask(3)` is
# $\begin{pmatrix}1&0&0\\1&1&0\\1&1&1\end{pmatrix}$ with 1 for `True`.
#
# Book: `att-causal`.
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
# ### Exercise 3: Padding mask
#
# Sequences of a batch are padded on the right to one length. Write
# `padding_mask(lengths, max_length=None)`, which says which positions hold real tokens.
#
# 1. `lengths` is `(B,)`, of an integer dtype, mostly `torch.int64`: <!-- id: integer-lengths --> how
#    many real tokens each sequence has; 0 is allowed. <!-- id: length-zero --> `max_length` is the
#    padded length, by default the largest of `lengths`. <!-- id: padded-length -->
# 2. The **result** is bool, of shape `(B, 1, max_length)`. The dimension of size 1 stands for the
#    queries, so that the mask broadcasts to scores `(B, Tq, Tk)`: it hides *keys*.
#    <!-- id: bool-keys -->
# 3. It is `True` at **real tokens**, the first `lengths[b]` of sequence `b`, and `False` at padding.
#    <!-- id: real-tokens -->
#
# Raise `ValueError` if a length is negative <!-- id: negative-length --> or larger than `max_length`,
# <!-- id: length-too-large --> or if `lengths` is not of an integer dtype (floating point and bool
# are refused). <!-- id: lengths-not-integer -->
#
# *Example.* `padding_mask(torch.tensor([1, 3]))` is, with 1 for `True`,
# $[[[1, 0, 0]], [[1, 1, 1]]]$.
#
# Book: `att-masks`.
#
# <details><summary>Hint 1</summary>
#
# Position $j$ is real if $j$ is smaller than the sequence's length: that is one comparison for all
# positions of all sequences.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.arange(max_length)` holds the positions, and `lengths[:, None, None]` is `(B, 1, 1)`; a
# comparison broadcasts like an addition.
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
# ### Exercise 4: The decoder's mask
#
# In the decoder's self-attention both conditions hold at once. Write
# `decoder_mask(lengths, max_length=None)`, with `lengths` and `max_length` as in exercise 3.
#
# 1. The **result** is bool, of shape `(B, T, T)` with `T = max_length` (at least 1).
#    <!-- id: bool-square -->
# 2. Query $i$ **may attend** to key $j$ if and only if $j \le i$ **and** token $j$ is real.
#    <!-- id: past-and-real -->
# 3. The rows of padded *queries* are not emptied: only keys are masked. <!-- id: padded-queries -->
#
# Raise `ValueError` where `padding_mask` does. <!-- id: bad-lengths -->
#
# *Example.* For length 2 padded to 3:
# $\begin{pmatrix}1&0&0\\1&1&0\\1&1&0\end{pmatrix}$.
#
# Book: `att-masks`.
#
# <details><summary>Hint 1</summary>
#
# You have a function for each of the two conditions already; both must hold.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `&` combines two masks and broadcasts. `T` is the last dimension of the padding mask, whether
# `max_length` was given or not.
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
# Book: `att-masks`. 3 points, marked by a person.

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
# *Points by part, and what commonly goes wrong:* `solutions/marking_guides.md`.
# ### END SOLUTION

# %% [markdown]
# ## Self-attention
#
# ### Exercise 5: Single-head self-attention
#
# In self-attention queries, keys and values come from the **same** sequence, through three different
# projections:
#
# $$Q = X W_Q,\quad K = X W_K,\quad V = X W_V,\qquad
# Z = \operatorname{softmax}\!\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V,\qquad d_k =
# \text{head\_dim}$$
#
# Write the module `SelfAttention(input_dim, head_dim)`.
#
# 1. It has **three linear layers without bias**: `q_proj`, `k_proj`, `v_proj`, each
#    `nn.Linear(input_dim, head_dim, bias=False)`. <!-- id: layers -->
# 2. `forward(x, mask=None)` takes `x` `(B, T, input_dim)` and **attends** by the formula, with scores
#    divided by $\sqrt{\text{head\_dim}}$. <!-- id: self-attention-formula -->
# 3. `mask` is `None` or bool, broadcastable to `(B, T, T)`, `True` = may attend: **masked positions**
#    get the weight 0. <!-- id: masked-weights --> A fully masked query gets the weights 0 and the
#    output 0. <!-- id: fully-masked-query -->
# 4. It **returns** `(output, attn_weights)`, of shapes `(B, T, head_dim)` and `(B, T, T)`.
#    <!-- id: returns -->
# 5. Not to be called: PyTorch's own attention, as in exercise 1. <!-- id: not-called -->
#
# Book: `att-self`.
#
# <details><summary>Hint 1</summary>
#
# Three projections, then exercise 1. Mind the order of the arguments: query, key, value.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The scale is that of the *projected* width, `head_dim`; exercise 1 takes it from its input.
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
# ### Exercise 6: Masked self-attention
#
# A decoder's self-attention must not see the future. Write the module
# `MaskedSelfAttention(input_dim, head_dim)`.
#
# 1. It has the **layers** of exercise 5, under the same names: `q_proj`, `k_proj`, `v_proj`, without
#    bias. <!-- id: layers -->
# 2. `forward(x, padding_mask=None)` takes `x` `(B, T, input_dim)`. The **causal mask** acts always:
#    position $i$ attends to positions $j \le i$, <!-- id: causal --> so that its output stays the
#    same whatever the tokens after it are. <!-- id: no-future -->
# 3. `padding_mask` is `None` or `(B, T)` bool, `True` = real token. It acts **in addition**: padding
#    gets the weight 0. <!-- id: padding --> The rows of padded queries are not emptied, as in
#    exercise 4. <!-- id: padded-queries --> (Inside `forward` the name means this argument; you
#    don't need the function of exercise 3, and lengths couldn't say where padding on the left ends.)
# 4. A **fully masked** query gets the weights 0 and the output 0. Such queries occur when a sequence
#    is padded on the left or has no real token at all. <!-- id: fully-masked-query -->
# 5. It **returns** `(output, attn_weights)`, of shapes `(B, T, head_dim)` and `(B, T, T)`.
#    <!-- id: returns -->
# 6. Not to be called: PyTorch's own attention, as in exercise 1. <!-- id: not-called -->
#
# Book: `att-causal`.
#
# <details><summary>Hint 1</summary>
#
# Build the mask first, `(T, T)` or `(B, T, T)`; the rest goes as in exercise 5. Make the three layers
# in this class, too: a `SelfAttention` kept inside it would change the names of the parameters.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The argument `padding_mask` says which *keys* are real: `padding_mask[:, None, :]` is `(B, 1, T)` and
# broadcasts over the queries.
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

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Let every token attend to itself and to the real tokens before it.

        Args:
            x: (B, T, input_dim).
            padding_mask: (B, T) bool, True = real token.

        Returns:
            The output (B, T, head_dim) and the weights (B, T, T).
        """
        ### BEGIN SOLUTION
        mask = causal_mask(x.shape[1]).to(x.device)  # (T, T)
        if padding_mask is not None:
            mask = mask & padding_mask.unsqueeze(1)  # (B, T, T)
        q = self.q_proj(x)  # (B, T, head_dim)
        k = self.k_proj(x)  # (B, T, head_dim)
        v = self.v_proj(x)  # (B, T, head_dim)
        return scaled_dot_product_attention(q, k, v, mask)  # (B, T, head_dim), (B, T, T)
        ### END SOLUTION


# %% check="MaskedSelfAttention" tags=["active-ipynb"]
# check("MaskedSelfAttention")
