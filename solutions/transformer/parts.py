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
# # The Transformer: its parts
#
# At the end of this unit you have every part of a layer: embeddings, attention, masks, norm,
# feed-forward network and the connection around them.
#
# One of the code cells below gives you `PositionalEncoding(d_model, max_length=5000, dropout=0.0)`,
# the sinusoidal encoding from the chapter on positions. For `position = PositionalEncoding(D)`,
# `position(x)` adds the encodings of positions 0 to $T - 1$ to `x` `(B, T, D)`, and
# `position(x, past=7)` those from position 7 on.

# %%
"""The parts of a layer: embeddings, attention, masks, norm, feed-forward network, residuals."""

# The options of a cell must stand on one line, however long it gets.
# ruff: noqa: E501

# %%
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("transformer-parts")

# %%
PAD, BOS, EOS, UNK = 0, 1, 2, 3


class PositionalEncoding(nn.Module):
    """Add sinusoidal positional encodings, then apply dropout (Vaswani et al. 2017, 3.5, 5.4)."""

    def __init__(self, d_model: int, max_length: int = 5000, dropout: float = 0.0) -> None:
        """Compute the encodings of positions 0 .. max_length - 1, in float64 and rounded once."""
        super().__init__()
        wavelengths = 10000.0 ** (torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
        angles = torch.outer(torch.arange(max_length, dtype=torch.float64), 1.0 / wavelengths)
        pairs = torch.stack((angles.sin(), angles.cos()), dim=2)  # (max_length, ceil(D/2), 2)
        table = pairs.flatten(1)[:, :d_model].to(torch.get_default_dtype())  # (max_length, D)
        self.register_buffer("table", table, persistent=False)
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, x: Tensor, past: int = 0) -> Tensor:
        """x (B, T, D), whose first vector is at position ``past`` -> (B, T, D)."""
        end = past + x.shape[1]
        if end > len(self.table):
            raise ValueError(
                f"position {end - 1} has no code; the last one is {len(self.table) - 1}"
            )
        return self.dropout(x + self.table[past:end])  # (B, T, D)


# %% [markdown]
# ## Parts
#
# ### Exercise 1: Embeddings
#
# Write `Embeddings(vocab_size, d_model)`: every id becomes its row of the embedding matrix $E$,
# times $\sqrt{D}$.
#
# $$\text{embedding}(i) = \sqrt{D}\; E_i$$
#
# <!-- id: scaled-embedding -->
#
# * Submodule: `lut` (for *look-up table*), an `nn.Embedding(vocab_size, d_model)`, so the parameter
#   is `lut.weight` `(V, D)`. Initialise it from the normal distribution with mean 0 and
#   **variance** $1/D$. <!-- id: initial-variance -->
#    Then the entries of a scaled vector have variance 1, about as large as those
#   of the positional encoding that is added to it.
# * `forward(ids)`: `(B, T)` `torch.int64`; the result is `(B, T, D)`. <!-- id: any-batch -->
# * `ValueError` (when the module is created) if `vocab_size` or `d_model` is smaller than 1.
#   <!-- id: bad-sizes -->
#
# *Example.* $D = 4$, and row 5 of the embedding matrix is $(0.5, -0.5, 1, 0)$: the id 5 becomes
# $(1, -1, 2, 0)$.
#
# Book: `trf-embeddings`.
#
# <details><summary>Hint 1</summary>
#
# `nn.init.normal_(tensor, std=...)` fills a parameter with new random entries. It takes the
# standard deviation, the square root of the variance.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Put the factor in `forward`, not in the embedding matrix. A matrix that is scaled once, at
# initialisation, gives the same vectors but is another parameter, with another gradient.
#
# </details>


# %% exercise="Embeddings" points=2 section="trf-embeddings"
class Embeddings(nn.Module):
    """Token embeddings times sqrt(d_model) (Vaswani et al. 2017, section 3.4).

    Submodule: ``lut`` = nn.Embedding(vocab_size, d_model), the embedding matrix.
    """

    def __init__(self, vocab_size: int, d_model: int) -> None:
        """Create ``lut`` and initialise its weight (V, D) from N(0, 1/D).

        Args:
            vocab_size: V, at least 1.
            d_model: D, at least 1.

        Raises:
            ValueError: if vocab_size < 1 or d_model < 1.
        """
        super().__init__()
        ### BEGIN SOLUTION
        for name, value in (("vocab_size", vocab_size), ("d_model", d_model)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, but is {value}")
        self.d_model = d_model
        self.lut = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.lut.weight, std=1.0 / math.sqrt(d_model))
        ### END SOLUTION

    def forward(self, ids: Tensor) -> Tensor:
        """Look up the embedding of every id and scale it.

        Args:
            ids: (B, T) int64.

        Returns:
            (B, T, D), the embedding of each id times sqrt(D).
        """
        ### BEGIN SOLUTION
        return self.lut(ids) * math.sqrt(self.d_model)  # (B, T, D)
        ### END SOLUTION


# %% check="Embeddings" tags=["active-ipynb"]
# check("Embeddings")

# %% [markdown]
# ### Exercise 2: Multi-head attention
#
# You built this in the chapter on attention; here it takes the form that the Transformer needs.
# Write `MultiHeadAttention(d_model, num_heads, dropout=0.0)`. For every head $h$:
#
# $$\text{weights}_h = \operatorname{softmax}\Bigl(\frac{Q_h K_h^\top}{\sqrt{D/H}}\Bigr),\qquad
# \text{head}_h = \operatorname{dropout}(\text{weights}_h)\, V_h$$
#
# <!-- id: formula -->
#
# The heads' outputs are concatenated in their order and go through a last linear layer. The work is
# split in two, because a decoder that generates token by token keeps its projected keys and values
# (in `start_cache` and `decode_step`, unit `decoding`):
#
# * `project(key, value)`: `(B, Tk, D)` each. Returns the pair `(keys, values)`: `k_proj(key)` and
#   `v_proj(value)`, split into heads, each `(B, H, Tk, D/H)`. <!-- id: project -->
# * `attend(query, keys, values, mask=None)`: `query` `(B, Tq, D)` is **not** projected yet; `keys`
#   and `values` come from `project`. Projects the query, attends, concatenates the heads, applies
#   `out_proj`. Returns `(B, Tq, D)`. <!-- id: attend -->
# * `forward(query, key, value, mask=None)`: the two, one after the other.
#
# The rest of the contract:
#
# * Submodules: `q_proj`, `k_proj`, `v_proj`, `out_proj`, each `nn.Linear(d_model, d_model)` with
#   bias. <!-- id: layers -->
#   Head $h$ (from 0) has the features $h\,D/H$ to $(h + 1)\,D/H - 1$ of each projection.
#   <!-- id: order-of-features -->
# * `mask`: bool `(Tq, Tk)`, `(1, Tq, Tk)`, `(B, Tq, Tk)` or `(B, 1, Tk)`, the same for all heads,
#   or `None`: then every query may attend to every key. Where the mask is `False`, the weight is
#   exactly zero. <!-- id: mask --> You can assume that every query may attend to at least one key.
# * Dropout acts on the attention weights, in training mode. <!-- id: dropout-on-weights -->
# * `ValueError` (when the module is created) if `num_heads` does not divide `d_model`.
#   <!-- id: heads-divide -->
# * Not to be called: `nn.MultiheadAttention` and the function behind it. <!-- id: not-called -->
#   You may call
#   `F.scaled_dot_product_attention`, which you have built before.
#
# *Example.* One head; `v_proj` and `out_proj` return their input unchanged, and `q_proj` is 0, so
# all scores are equal. If the values are $(2, 0)$, $(4, 2)$, $(9, 9)$ and the mask allows only
# the first two, every query gets their mean, $(3, 1)$.
#
# Book: `trf-attention`.
#
# <details><summary>Hint 1</summary>
#
# To split into heads, reshape the last axis into two, `(B, T, H, D/H)`, and then transpose the axes
# of length `T` and `H`. To merge the heads, do the reverse. A reshape to `(B, H, T, D/H)` at once
# would mix positions and features.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Scores are `(B, H, Tq, Tk)`. A mask of three axes needs one more, of length 1, for the heads: its
# axis 1. A mask of two axes fits as it is. Read the sizes from the query, and outside any `if`: you
# need them without a mask as well.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `F.scaled_dot_product_attention` has a parameter for dropout, but it doesn't know whether your
# module is in training mode: pass 0 if `self.training` is `False`.
#
# </details>


# %% exercise="MultiHeadAttention" points=5 section="trf-attention" forbids="MultiheadAttention multi_head_attention_forward"
class MultiHeadAttention(nn.Module):
    """Multi-head attention in two stages (Vaswani et al. 2017, section 3.2.2).

    Submodules: ``q_proj``, ``k_proj``, ``v_proj``, ``out_proj``, each
    nn.Linear(d_model, d_model) with bias.
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        """Create the four projections.

        Args:
            d_model: D, the width of inputs and outputs.
            num_heads: H, a divisor of d_model.
            dropout: the probability of dropping an attention weight in training mode.

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        ### BEGIN SOLUTION
        if num_heads < 1 or d_model % num_heads != 0:
            raise ValueError(f"d_model={d_model} can't be split into {num_heads} equal heads")
        self.num_heads = num_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)
        ### END SOLUTION

    def project(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the keys and values of all heads.

        Args:
            key: (B, Tk, D).
            value: (B, Tk, D).

        Returns:
            The keys k_proj(key) and the values v_proj(value), both split into heads,
            (B, H, Tk, D/H).
        """
        ### BEGIN SOLUTION
        batch, length, width = key.shape
        heads = (batch, length, self.num_heads, width // self.num_heads)
        keys = self.k_proj(key).reshape(heads).transpose(1, 2)  # (B, H, Tk, D/H)
        values = self.v_proj(value).reshape(heads).transpose(1, 2)  # (B, H, Tk, D/H)
        return keys, values
        ### END SOLUTION

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Let every query attend to keys and values that are already projected.

        Args:
            query: (B, Tq, D), not projected yet.
            keys: (B, H, Tk, D/H), from ``project``.
            values: (B, H, Tk, D/H), from ``project``.
            mask: bool (Tq, Tk), (1, Tq, Tk), (B, Tq, Tk) or (B, 1, Tk), True = may attend; the
                same for all heads. Every query may attend to at least one key. None: to all keys.

        Returns:
            (B, Tq, D).
        """
        ### BEGIN SOLUTION
        batch, length, width = query.shape
        heads = (batch, length, self.num_heads, width // self.num_heads)
        queries = self.q_proj(query).reshape(heads).transpose(1, 2)  # (B, H, Tq, D/H)
        scores = queries @ keys.transpose(-2, -1) / math.sqrt(queries.shape[-1])  # (B, H, Tq, Tk)
        if mask is not None:
            if mask.dim() == 3:
                mask = mask.unsqueeze(1)  # (B, 1, Tq, Tk) or (B, 1, 1, Tk)
            # Not -inf: a query that may attend to nothing would become NaN and spread.
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        attn_weights = self.dropout(torch.softmax(scores, dim=-1))  # (B, H, Tq, Tk)
        if mask is not None:
            attn_weights = attn_weights.masked_fill(~mask, 0.0)  # such a query gets no weights
        merged = (attn_weights @ values).transpose(1, 2).reshape(batch, length, width)  # (B, Tq, D)
        return self.out_proj(merged)  # (B, Tq, D)
        ### END SOLUTION

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Project keys and values, and attend.

        Args:
            query: (B, Tq, D).
            key: (B, Tk, D).
            value: (B, Tk, D).
            mask: as for ``attend``.

        Returns:
            (B, Tq, D).
        """
        ### BEGIN SOLUTION
        keys, values = self.project(key, value)  # (B, H, Tk, D/H) each
        return self.attend(query, keys, values, mask)  # (B, Tq, D)
        ### END SOLUTION


# %% check="MultiHeadAttention" tags=["active-ipynb"]
# check("MultiHeadAttention")

# %% [markdown]
# ## Masks
#
# ### Exercise 3: The padding mask
#
# Write `pad_mask(ids, pad=PAD)`: no query may attend to padding.
#
# * `ids` `(B, T)` `torch.int64`; `pad` is the id that marks padding. <!-- id: pad -->
# * The result is `(B, 1, T)` bool, `True` at real tokens. <!-- id: real-tokens -->
#   The axis of length 1 is that of the
#   queries: the mask is the same for all of them, however many there are.
#
# *Example.* For $\begin{pmatrix}5&6&0\\7&0&0\end{pmatrix}$ the two rows of the mask are
# $\begin{pmatrix}1&1&0\end{pmatrix}$ and $\begin{pmatrix}1&0&0\end{pmatrix}$, with 1 for `True`;
# its shape is `(2, 1, 3)`.
#
# Book: `trf-masks`.
#
# <details><summary>Hint 1</summary>
#
# A comparison of a tensor with a number is a bool tensor of the same shape.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `unsqueeze(dim)` and indexing with `None` both add an axis. Added at the end it gives `(B, T, 1)`,
# which masks queries instead of keys.
#
# </details>


# %% exercise="pad_mask" points=1 section="trf-masks"
def pad_mask(ids: Tensor, pad: int = PAD) -> Tensor:
    """Which tokens may be attended to: the real ones.

    Args:
        ids: (B, T) int64.
        pad: the id that marks padding.

    Returns:
        (B, 1, T) bool, True at real tokens; the same for every query.
    """
    ### BEGIN SOLUTION
    return (ids != pad).unsqueeze(1)  # (B, 1, T)
    ### END SOLUTION


# %% check="pad_mask" tags=["active-ipynb"]
# check("pad_mask")

# %% [markdown]
# ### Exercise 4: The causal mask
#
# Write `subsequent_mask(size)`: each position may attend to itself and to earlier positions, but
# not to subsequent ones.
#
# * The result is `(1, size, size)` bool; the entry at $[0, i, j]$ is `True` if $j \le i$.
#   <!-- id: lower-triangle -->
# * `ValueError` if `size` is smaller than 1. <!-- id: bad-size -->
#
# *Example.* `subsequent_mask(3)[0]` is $\begin{pmatrix}1&0&0\\1&1&0\\1&1&1\end{pmatrix}$, with 1
# for `True`.
#
# Book: `trf-masks`.
#
# <details><summary>Hint 1</summary>
#
# `torch.tril` keeps the entries on and below the diagonal; it works on bool tensors as well.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Or compare two `torch.arange(size)`, one as a column, the other as a row.
#
# </details>


# %% exercise="subsequent_mask" points=1 section="trf-masks"
def subsequent_mask(size: int) -> Tensor:
    """The causal mask: each position may attend to itself and to earlier ones.

    Args:
        size: the number of positions, at least 1.

    Returns:
        (1, size, size) bool; entry [0, i, j] is True if j <= i.

    Raises:
        ValueError: if size < 1.
    """
    ### BEGIN SOLUTION
    if size < 1:
        raise ValueError(f"size must be at least 1, but is {size}")
    return torch.ones(1, size, size, dtype=torch.bool).tril()  # (1, size, size)
    ### END SOLUTION


# %% check="subsequent_mask" tags=["active-ipynb"]
# check("subsequent_mask")

# %% [markdown]
# ### Exercise 5: The target mask
#
# Write `make_std_mask(target, pad=PAD)`: the mask of the decoder's self-attention, in which each
# position may attend only to real tokens, and not to later ones.
#
# * `target` `(B, U)` `torch.int64`; `pad` is the id that marks padding. <!-- id: pad -->
# * The result is `(B, U, U)` bool: `True` where exercise 3 **and** exercise 4 allow it.
#   <!-- id: both-masks -->
# * Queries at padding have rows like any other: <!-- id: queries-at-padding -->
#   the outputs at these positions are never used.
#
# *Example.* For the target `[[1, 5, 0]]` it is $\begin{pmatrix}1&0&0\\1&1&0\\1&1&0\end{pmatrix}$,
# with 1 for `True`.
#
# Book: `trf-masks`.
#
# <details><summary>Hint 1</summary>
#
# Which shapes do the two masks have, and to which shape does broadcasting expand them?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `&` is the *and* of bool tensors, entry by entry; Python's `and` is not.
#
# </details>


# %% exercise="make_std_mask" points=2 section="trf-masks"
def make_std_mask(target: Tensor, pad: int = PAD) -> Tensor:
    """The mask of a target: each position may attend to real tokens, but not to later ones.

    Args:
        target: (B, U) int64.
        pad: the id that marks padding.

    Returns:
        (B, U, U) bool; entry [b, i, j] is True if j <= i and target[b, j] is a real token.
    """
    ### BEGIN SOLUTION
    earlier = subsequent_mask(target.shape[1]).to(target.device)  # (1, U, U)
    return pad_mask(target, pad) & earlier  # (B, U, U)
    ### END SOLUTION


# %% check="make_std_mask" tags=["active-ipynb"]
# check("make_std_mask")

# %% [markdown]
# ## Norm, feed-forward network, residual connection
#
# ### Exercise 6: Layer normalisation
#
# Write `LayerNorm(d_model, eps=1e-5)`. Every vector is normalised to mean 0 and variance 1 by its
# **own** mean and variance, whatever else is in the batch; then each feature is scaled and shifted:
#
# $$\mu = \frac{1}{D}\sum_{i=1}^{D} x_i,\qquad
# \sigma^2 = \frac{1}{D}\sum_{i=1}^{D} (x_i - \mu)^2,\qquad
# y_i = \gamma_i\,\frac{x_i - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta_i$$
#
# <!-- id: own-mean-and-variance -->
#
# * Parameters: `gamma` `(D,)`, initialised with ones, and `beta` `(D,)`, initialised with zeros;
#   <!-- id: parameters -->
#   $D$ = `d_model`.
# * `forward(x)`: `x` `(..., D)` with any number of axes; the result has the same shape.
#   <!-- id: any-axes -->
# * The variance is the **biased** one (divided by $D$, not by $D - 1$), and `eps` is added
#   **inside** the root. <!-- id: biased-variance -->
# * `ValueError` (when the module is created) if `d_model` is smaller than 1; (when it is called)
#   if the last axis of `x` is not `d_model` long. <!-- id: bad-sizes -->
# * Not to be called: PyTorch's own norms (`nn.LayerNorm`, `F.layer_norm`, `nn.GroupNorm`,
#   `nn.BatchNorm1d`, `F.instance_norm`, `nn.RMSNorm` and the functions behind them).
#   <!-- id: not-called --> Your class may
#   have the same name as PyTorch's.
#
# *Example.* $(1, 3)$ has mean 2 and variance 1, so it becomes $(-1, 1)$ (up to `eps`). $(5, 5)$ has
# variance 0 and becomes $(0, 0)$, not NaN, thanks to `eps`.
#
# Book: `trf-norm`.
#
# <details><summary>Hint 1</summary>
#
# `mean` and `var` take `dim` and `keepdim`. With `keepdim=True` you can subtract the result from
# `x` directly.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `x.var(...)` divides by $D - 1$ unless you tell it not to: `unbiased=False`, or `correction=0`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Before you compute, check that the widths agree: broadcasting would silently accept a `d_model` of
# 1, or an `x` whose last axis has length 1.
#
# </details>


# %% exercise="LayerNorm" points=4 section="trf-norm" forbids="layer_norm native_layer_norm LayerNorm group_norm native_group_norm GroupNorm batch_norm native_batch_norm instance_norm rms_norm RMSNorm"
class LayerNorm(nn.Module):
    """Layer normalisation over the last axis (Ba et al. 2016, section 3.1).

    Parameters: ``gamma`` (d_model,), initially ones; ``beta`` (d_model,), initially zeros.
    """

    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        """Create ``gamma`` and ``beta``.

        Args:
            d_model: D, the size of the last axis, at least 1.
            eps: added to the variance, inside the root.

        Raises:
            ValueError: if d_model < 1.
        """
        super().__init__()
        ### BEGIN SOLUTION
        if d_model < 1:
            raise ValueError(f"d_model must be at least 1, but is {d_model}")
        self.eps = eps
        self.gamma = nn.Parameter(torch.ones(d_model))
        self.beta = nn.Parameter(torch.zeros(d_model))
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """Normalise every vector to mean 0 and variance 1, then scale and shift.

        Args:
            x: (..., D).

        Returns:
            (..., D), gamma (x - mean) / sqrt(variance + eps) + beta, with mean and biased variance
            over the last axis.

        Raises:
            ValueError: if the last axis of x is not ``d_model`` long.
        """
        ### BEGIN SOLUTION
        if x.shape[-1] != len(self.gamma):
            raise ValueError(f"x must be {len(self.gamma)} wide, but is {x.shape[-1]} wide")
        mean = x.mean(dim=-1, keepdim=True)  # (..., 1)
        variance = x.var(dim=-1, unbiased=False, keepdim=True)  # (..., 1)
        normalised = (x - mean) / torch.sqrt(variance + self.eps)  # (..., D)
        return self.gamma * normalised + self.beta  # (..., D)
        ### END SOLUTION


# %% check="LayerNorm" tags=["active-ipynb"]
# check("LayerNorm")


# %% tags=["instructor"]
class UnbiasedLayerNorm(nn.Module):
    """The Annotated Transformer's variant: sample standard deviation, eps outside the root.

    Parameters: ``a_2`` (d_model,), initially ones; ``b_2`` (d_model,), initially zeros. Up to eps
    it differs from LayerNorm by the factor sqrt((D - 1) / D), and it is NaN for D = 1.
    """

    def __init__(self, d_model: int, eps: float = 1e-6) -> None:
        """Create ``a_2`` and ``b_2``."""
        super().__init__()
        self.eps = eps
        self.a_2 = nn.Parameter(torch.ones(d_model))
        self.b_2 = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Tensor) -> Tensor:
        """x (..., D) -> (..., D)."""
        mean = x.mean(dim=-1, keepdim=True)  # (..., 1)
        deviation = x.std(dim=-1, keepdim=True)  # (..., 1), divided by D - 1
        return self.a_2 * (x - mean) / (deviation + self.eps) + self.b_2  # (..., D)


# %% [markdown]
# ### Exercise 7: The position-wise feed-forward network
#
# Attention moves information between positions; this network transforms each position by itself,
# all of them with the same weights. Write `PositionwiseFeedForward(d_model, d_ff, dropout=0.0)`:
#
# $$\operatorname{FFN}(x) =
# W_2\,\operatorname{dropout}\bigl(\operatorname{ReLU}(W_1 x + b_1)\bigr) + b_2$$
#
# <!-- id: formula -->
#
# * Submodules: `w_1 = nn.Linear(d_model, d_ff)` and `w_2 = nn.Linear(d_ff, d_model)`, both with
#   bias. <!-- id: layers -->
# * `forward(x)`: `x` `(..., D)`; the result has the same shape. <!-- id: any-axes -->
#
# *Example.* $D = 1$, $F = 2$, all biases 0, $W_1 = \binom{1}{-1}$ and $W_2 = (1, 1)$: the network
# computes $|x|$, so $-3$ becomes 3. A linear layer alone can't do that.
#
# Book: `trf-ffn`.
#
# <details><summary>Hint 1</summary>
#
# `nn.Linear` acts on the last axis and leaves all others alone. You need no loop over positions.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Dropout acts on the inner layer, after the ReLU. The output gets its dropout in exercise 9.
#
# </details>


# %% exercise="PositionwiseFeedForward" points=2 section="trf-ffn"
class PositionwiseFeedForward(nn.Module):
    """The same two-layer network at every position (Vaswani et al. 2017, section 3.3).

    Submodules: ``w_1`` = nn.Linear(d_model, d_ff); ``w_2`` = nn.Linear(d_ff, d_model).
    """

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.0) -> None:
        """Create ``w_1`` and ``w_2``.

        Args:
            d_model: D.
            d_ff: F, the width of the inner layer.
            dropout: acts on the inner layer, after the ReLU, in training mode.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.w_1 = nn.Linear(d_model, d_ff)
        self.w_2 = nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """Transform every position by itself.

        Args:
            x: (..., D).

        Returns:
            (..., D), w_2(dropout(relu(w_1(x)))).
        """
        ### BEGIN SOLUTION
        inner = torch.relu(self.w_1(x))  # (..., F)
        return self.w_2(self.dropout(inner))  # (..., D)
        ### END SOLUTION


# %% check="PositionwiseFeedForward" tags=["active-ipynb"]
# check("PositionwiseFeedForward")

# %% [markdown]
# ### Exercise 8: A residual block
#
# Residual connections come from image recognition (He et al., 2016). A block of two layers computes
# only what is **added** to its input, the residual; the residual connection (or skip connection)
# carries the input itself past the layers. Write `ResidualBlock(d_model)`:
#
# $$y = \operatorname{ReLU}\bigl(W_2\,\operatorname{ReLU}(W_1 x) + x\bigr)$$
#
# <!-- id: formula -->
#
# * Submodules: `w_1` and `w_2`, each `nn.Linear(d_model, d_model)` **without** bias.
#   <!-- id: no-bias -->
# * `forward(x)`: `x` `(..., d_model)`; the result has the same shape.
#
# *Example.* If both matrices are the identity, $(-1, 2)$ becomes $(0, 4)$: the residual is
# $(0, 2)$, the sum $(-1, 4)$. If both are 0, only the residual connection is left, and $(-1, 2)$
# becomes $(0, 2)$.
#
# Book: `trf-residual`.
#
# <details><summary>Hint 1</summary>
#
# There are two ReLUs. What happens between the second matrix and the second ReLU?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `nn.Linear` takes `bias=False`.
#
# </details>


# %% exercise="ResidualBlock" points=1 section="trf-residual"
class ResidualBlock(nn.Module):
    """Two layers with a residual connection around them (He et al. 2016, section 3.2).

    Submodules: ``w_1``, ``w_2``, each nn.Linear(d_model, d_model, bias=False).
    """

    def __init__(self, d_model: int) -> None:
        """Create ``w_1`` and ``w_2``."""
        super().__init__()
        ### BEGIN SOLUTION
        self.w_1 = nn.Linear(d_model, d_model, bias=False)
        self.w_2 = nn.Linear(d_model, d_model, bias=False)
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """Add the output of two layers to x.

        Args:
            x: (..., d_model).

        Returns:
            (..., d_model), relu(w_2(relu(w_1(x))) + x).
        """
        ### BEGIN SOLUTION
        residual = self.w_2(torch.relu(self.w_1(x)))  # (..., d_model)
        return torch.relu(residual + x)  # (..., d_model)
        ### END SOLUTION


# %% check="ResidualBlock" tags=["active-ipynb"]
# check("ResidualBlock")

# %% [markdown]
# ### Exercise 9: The sub-layer connection
#
# Around each attention and each feed-forward network the Transformer has the same three things: a
# residual connection, dropout and a norm. Write
# `SublayerConnection(d_model, dropout=0.0, norm_first=False)`, which puts them around any
# sub-layer. There are two orders:
#
# $$\begin{aligned}
# \text{post-norm:}\quad
# y &= \operatorname{norm}\bigl(x + \operatorname{dropout}(\operatorname{sublayer}(x))\bigr)\\
# \text{pre-norm:}\quad
# y &= x + \operatorname{dropout}\bigl(\operatorname{sublayer}(\operatorname{norm}(x))\bigr)
# \end{aligned}$$
#
# <!-- id: two-orders -->
#
# * Submodule: `norm`, your `LayerNorm(d_model)`. <!-- id: own-norm -->
# * `forward(x, sublayer)`: `x` `(B, T, D)`; `sublayer` is any function or module from `(B, T, D)`
#   to `(B, T, D)`, <!-- id: any-sublayer -->
#   and it is called once. <!-- id: called-once --> The result is `(B, T, D)`.
# * `norm_first=False` is post-norm (the paper), `True` is pre-norm. <!-- id: norm-first -->
# * The sub-layer is not part of this module: it is passed with every call and is not stored.
#   <!-- id: not-stored -->
#
# *Example.* The sub-layer doubles its input, $x = (1, 3)$, no dropout. Post-norm:
# $x + 2x = (3, 9)$, which the norm turns into $(-1, 1)$. Pre-norm: the norm gives $(-1, 1)$, the
# sub-layer $(-2, 2)$, and the sum is $(-1, 5)$. (Both up to `eps`.)
#
# Book: `trf-norm-order`.
#
# <details><summary>Hint 1</summary>
#
# A function can be an argument like any other; `sublayer(...)` calls it.
#
# </details>
# <details><summary>Hint 2</summary>
#
# In pre-norm the residual connection branches off **before** the norm: add the $x$ that came in.
#
# </details>


# %% exercise="SublayerConnection" points=3 section="trf-norm-order"
class SublayerConnection(nn.Module):
    """A residual connection and a norm around a sub-layer (Vaswani et al. 2017; Xiong et al. 2020).

    Submodule: ``norm`` = your LayerNorm(d_model).
    """

    def __init__(self, d_model: int, dropout: float = 0.0, norm_first: bool = False) -> None:
        """Create ``norm``.

        Args:
            d_model: D.
            dropout: acts on the sub-layer's output, in training mode.
            norm_first: False: norm after the sum (post-norm); True: before the sub-layer
                (pre-norm).
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.norm = LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)
        self.norm_first = norm_first
        ### END SOLUTION

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply the sub-layer, the residual connection and the norm, in the chosen order.

        Args:
            x: (B, T, D).
            sublayer: any function or module from (B, T, D) to (B, T, D); called once.

        Returns:
            (B, T, D): norm(x + dropout(sublayer(x))), or with norm_first
            x + dropout(sublayer(norm(x))).
        """
        ### BEGIN SOLUTION
        if self.norm_first:
            return x + self.dropout(sublayer(self.norm(x)))  # (B, T, D)
        return self.norm(x + self.dropout(sublayer(x)))  # (B, T, D)
        ### END SOLUTION


# %% check="SublayerConnection" tags=["active-ipynb"]
# check("SublayerConnection")
