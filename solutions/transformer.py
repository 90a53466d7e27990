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
# # The Transformer by hand
#
# In this notebook you build the Transformer of Vaswani et al. (2017): its layers and masks, both
# stacks, the whole model, the recipe by which it is trained (batches by tokens, label smoothing,
# Adam with warm-up), and three ways to decode: greedy, by beam search, and with a cache. There are
# 27 exercises to code and two questions to answer in words.
#
# **How to work.** Write your code in place of the line `raise NotImplementedError(...)`; a class
# has such a line in each method that you write. Then run the cell below it, `check("...")`: it says
# what holds, what does not, and which section of the book to reread. Exercises may use the ones
# before them. You may add cells and helper functions of your own; keep the names, the parameters
# and their order as they are. Every text ends with hints: open them one by one, only as far as you
# need.
#
# **Conventions, the same everywhere**
#
# | sign | meaning |
# |---|---|
# | `B` | batch size; the batch is always the first dimension |
# | `S`, `U` | length of the source, length of the target |
# | `T` | length of either, where it makes no difference; `Tq`, `Tk`: number of queries, of keys |
# | `D`, `F` | width of the model, `d_model`; width inside the feed-forward network, `d_ff` |
# | `H` | number of heads; each is $D/H$ wide |
# | `N` | number of layers in each stack |
# | `V` | size of a vocabulary |
#
# * **Ids** are `torch.int64`. Four of them have a meaning of their own: `PAD = 0` fills rows up,
#   `BOS = 1` begins a target, `EOS = 2` ends it, `UNK = 3` stands for an unknown word.
# * A **mask** is a `torch.bool` tensor; `True` means *may attend*. A row of it belongs to a query,
#   a column to a key.
# * **Dropout** has one probability for the whole model, 0 unless told otherwise, and acts only in
#   training mode (`model.train()`), never in evaluation mode (`model.eval()`).
# * `norm_first=False` means *post-norm*, the order of the paper; `norm_first=True` means
#   *pre-norm*.
# * **Bad input is refused** with a `ValueError` and one clear sentence. Each exercise lists what it
#   must refuse; nothing else needs a check.
# * Results keep the floating-point type of the module's parameters (`float32` or `float64`).
# * No function changes its inputs in place (but `train_step` changes the model: that is what it is
#   for), and everything that is a number of the network is differentiable.
# * Modules are `nn.Module`s and have exactly the named parameters, because the checks load weights
#   into them by name. Parts without parameters, such as `nn.Dropout`, you may add under any name.
#   How you initialise a module is up to you, unless the exercise says how.
#
# One of the code cells below hands you three things:
#
# * the ids `PAD`, `BOS`, `EOS` and `UNK`;
# * `PositionalEncoding(d_model, max_length=5000, dropout=0.0)`, the sinusoidal code of the chapter
#   on positions: `position(x)` adds to `x` `(B, T, D)` the codes of positions 0 to $T - 1$, and
#   `position(x, start=7)` those from 7 on;
# * `TableModel(table)`, a *model* whose probabilities stand in a table instead of coming from a
#   network, so that you can try exercises 24 and 25 on examples that fit on a slip of paper. For
#   these two exercises a model is any module with these methods:
#
# ```python
# encode(source, src_mask) -> memory                   # (B, S) ids -> (B, S, D)
# decode(memory, src_mask, tgt, tgt_mask) -> hidden    # (B, U) ids -> (B, U, ...)
# generator(hidden) -> log_probs                       # (..., V), about the token after each
# ```

# %%
"""The Transformer: layers, stacks, masks, training with its recipe, three ways to decode."""

# The options of a cell must stand on one line, however long it gets.
# ruff: noqa: E501

# %%
import copy
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("transformer")

# %%
PAD, BOS, EOS, UNK = 0, 1, 2, 3


class PositionalEncoding(nn.Module):
    """Add the sinusoidal code of every position, then dropout (Vaswani et al. 2017, 3.5, 5.4)."""

    def __init__(self, d_model: int, max_length: int = 5000, dropout: float = 0.0) -> None:
        """Compute the codes of positions 0 .. max_length - 1, in float64 and rounded once."""
        super().__init__()
        wavelengths = 10000.0 ** (torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
        angles = torch.outer(torch.arange(max_length, dtype=torch.float64), 1.0 / wavelengths)
        pairs = torch.stack((angles.sin(), angles.cos()), dim=2)  # (max_length, ceil(D/2), 2)
        table = pairs.flatten(1)[:, :d_model].to(torch.get_default_dtype())  # (max_length, D)
        self.register_buffer("table", table, persistent=False)
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """x (B, T, D), whose first vector stands at position ``start`` -> (B, T, D)."""
        end = start + x.shape[1]
        if end > len(self.table):
            raise ValueError(
                f"position {end - 1} has no code; the last one is {len(self.table) - 1}"
            )
        return self.dropout(x + self.table[start:end])  # (B, T, D)


class TableModel(nn.Module):
    """A model without a network: the logits of the next token stand in a table.

    Which row is read depends on the first source token s, on the place t in the target (from 0) and
    on the token at that place: ``table[s, t, previous]``. Places beyond the table use its last one.
    """

    def __init__(self, table: Tensor) -> None:
        """Keep ``table`` (S, L, V, V): source tokens, places, previous token, next token."""
        super().__init__()
        self.register_buffer("table", table)

    def encode(self, source: Tensor, src_mask: Tensor | None = None) -> Tensor:
        """The memory (B, S, 1) of source (B, S): its ids as numbers."""
        return source.unsqueeze(-1).to(self.table.dtype)  # (B, S, 1)

    def decode(
        self, memory: Tensor, src_mask: Tensor | None, tgt: Tensor, tgt_mask: Tensor | None
    ) -> Tensor:
        """The logits (B, U, V) after every token of tgt (B, U)."""
        s = memory[:, :1, 0].long()  # (B, 1)
        t = torch.arange(tgt.shape[1], device=tgt.device)  # (U,)
        return self.table[s, t.clamp(max=self.table.shape[1] - 1), tgt]  # (B, U, V)

    def generator(self, hidden: Tensor) -> Tensor:
        """Logits (..., V) -> log-probabilities (..., V)."""
        return torch.log_softmax(hidden, dim=-1)  # (..., V)


# %% [markdown]
# ## Parts
#
# ### Exercise 1: Embeddings
#
# Write `Embeddings(vocab_size, d_model)`: every id becomes a row of a table $E$, times $\sqrt{D}$.
#
# $$\text{embedding}(i) = \sqrt{D}\; E_i$$
#
# * Submodule: `lut` (for *look-up table*), an `nn.Embedding(vocab_size, d_model)`, so the parameter
#   is `lut.weight` `(V, D)`. Its entries are drawn from the normal distribution with mean 0 and
#   **variance** $1/D$. Then the entries of a scaled vector have variance 1, about as large as those
#   of the positional code that is added to it.
# * `forward(ids)`: `(B, T)` `torch.int64`; the result is `(B, T, D)`.
# * `ValueError` (when the module is created) if `vocab_size` or `d_model` is smaller than 1.
#
# *Example.* $D = 4$, and row 5 of the table is $(0.5, -0.5, 1, 0)$: the id 5 becomes
# $(1, -1, 2, 0)$.
#
# Book: section *embeddings* (`trf-embeddings`).
#
# <details><summary>Hint 1</summary>
#
# `nn.init.normal_(tensor, std=...)` draws new entries into a parameter. It asks for the standard
# deviation, the root of the variance.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The factor belongs into `forward`, not into the table. A table that was scaled once when it was
# made would be another parameter, with another gradient.
#
# </details>


# %% exercise="Embeddings" points=2 section="trf-embeddings"
class Embeddings(nn.Module):
    """Token embeddings times sqrt(d_model) (Vaswani et al. 2017, section 3.4).

    Submodule: ``lut`` = nn.Embedding(vocab_size, d_model), the look-up table.
    """

    def __init__(self, vocab_size: int, d_model: int) -> None:
        """Create ``lut``, its weight (V, D) drawn from N(0, 1/D).

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
        """Look every id up and scale what is found.

        Args:
            ids: (B, T) int64.

        Returns:
            (B, T, D), the row of each id times sqrt(D).
        """
        ### BEGIN SOLUTION
        return self.lut(ids) * math.sqrt(self.d_model)  # (B, T, D)
        ### END SOLUTION


# %% check="Embeddings" tags=["active-ipynb"]
# check("Embeddings")

# %% [markdown]
# ### Exercise 2: Multi-head attention
#
# You built this in the chapter on attention; here it gets the form in which the Transformer uses
# it. Write `MultiHeadAttention(d_model, num_heads, dropout=0.0)`. For every head $h$:
#
# $$\text{weights}_h = \operatorname{softmax}\Bigl(\frac{Q_h K_h^\top}{\sqrt{D/H}}\Bigr),\qquad
# \text{head}_h = \operatorname{dropout}(\text{weights}_h)\, V_h$$
#
# The heads' results are joined in their order and go through a last linear layer. The work is cut
# in two, because a decoder that writes token by token keeps projected keys and values (exercises 26
# and 27):
#
# * `project(key, value)`: `(B, Tk, D)` each. Returns the pair `(keys, values)`: `k_proj(key)` and
#   `v_proj(value)`, split into heads, each `(B, H, Tk, D/H)`.
# * `attend(query, keys, values, mask=None)`: `query` `(B, Tq, D)` is **not** projected yet; `keys`
#   and `values` come from `project`. Projects the query, attends, joins the heads, applies
#   `out_proj`. Returns `(B, Tq, D)`.
# * `forward(query, key, value, mask=None)`: both of them, one after the other.
#
# The rest of the contract:
#
# * Submodules: `q_proj`, `k_proj`, `v_proj`, `out_proj`, each `nn.Linear(d_model, d_model)` with
#   bias. Head $h$ (from 0) has the features $h\,D/H$ to $(h + 1)\,D/H - 1$ of each projection.
# * `mask`: bool `(Tq, Tk)`, `(1, Tq, Tk)`, `(B, Tq, Tk)` or `(B, 1, Tk)`, the same for all heads, or
#   `None`: then everything may be attended to. Where it is `False` the weight is exactly 0. Every
#   query may attend to something; what happens to one that may not is up to you.
# * Dropout acts on the weights, in training mode.
# * `ValueError` (when the module is created) if `num_heads` does not divide `d_model`.
# * Not to be called: `nn.MultiheadAttention` and the function behind it. You may call
#   `F.scaled_dot_product_attention`, which you have built before.
#
# *Example.* One head; `v_proj` and `out_proj` pass their input on unchanged, and `q_proj` is 0, so
# that all scores are equal. If the values are $(2, 0)$, $(4, 2)$, $(9, 9)$ and the mask allows only
# the first two, every query gets their mean, $(3, 1)$.
#
# Book: section *attention* (`trf-attention`).
#
# <details><summary>Hint 1</summary>
#
# To split into heads, cut the last axis into two, `(B, T, H, D/H)`, and then exchange the axes of
# length `T` and `H`. To join, go the same way back. Cutting into `(B, H, T, D/H)` at once would mix
# positions and features.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Scores are `(B, H, Tq, Tk)`. A mask of three axes needs one of length 1 for the heads, at place 1;
# a mask of two axes fits as it is. Take the sizes from the query, and outside any `if`: they are
# needed without a mask as well.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `F.scaled_dot_product_attention` has a parameter for dropout, and it doesn't know whether your
# module is training: pass 0 if it isn't. `self.training` tells.
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
            dropout: probability with which a weight is dropped in training mode.

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
        """Make the keys and values of all heads.

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
        """Let every query attend to keys and values that have been projected already.

        Args:
            query: (B, Tq, D), not projected yet.
            keys: (B, H, Tk, D/H), from ``project``.
            values: (B, H, Tk, D/H), from ``project``.
            mask: bool (Tq, Tk), (1, Tq, Tk), (B, Tq, Tk) or (B, 1, Tk), True = may attend; the
                same for all heads. Every query may attend to something. None: to everything.

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
        weights = self.dropout(torch.softmax(scores, dim=-1))  # (B, H, Tq, Tk)
        merged = (weights @ values).transpose(1, 2).reshape(batch, length, width)  # (B, Tq, D)
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
# Write `pad_mask(ids, pad=PAD)`: nobody may attend to padding.
#
# * `ids` `(B, T)` `torch.int64`; `pad` is the id that marks padding.
# * The result is `(B, 1, T)` bool, `True` where a real token stands. The axis of length 1 is that
#   of the queries: it is the same for all of them, however many there are.
#
# *Example.* For $\begin{pmatrix}5&6&0\\7&0&0\end{pmatrix}$ the two rows of the mask are
# $\begin{pmatrix}1&1&0\end{pmatrix}$ and $\begin{pmatrix}1&0&0\end{pmatrix}$, with 1 for `True`;
# its shape is `(2, 1, 3)`.
#
# Book: section *masks* (`trf-masks`).
#
# <details><summary>Hint 1</summary>
#
# A comparison of a tensor with a number is a bool tensor of the same shape.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `unsqueeze(dim)` and indexing with `None` both add an axis. Adding it at the wrong place makes
# `(B, T, 1)`: a mask of queries, not of keys.
#
# </details>


# %% exercise="pad_mask" points=1 section="trf-masks"
def pad_mask(ids: Tensor, pad: int = PAD) -> Tensor:
    """Which tokens may be attended to: those that are real.

    Args:
        ids: (B, T) int64.
        pad: the id that marks padding.

    Returns:
        (B, 1, T) bool, True where a real token stands; the same for every query.
    """
    ### BEGIN SOLUTION
    return (ids != pad).unsqueeze(1)  # (B, 1, T)
    ### END SOLUTION


# %% check="pad_mask" tags=["active-ipynb"]
# check("pad_mask")

# %% [markdown]
# ### Exercise 4: The subsequent mask
#
# Write `subsequent_mask(size)`: no position may attend to those that follow it, each may to itself.
#
# * The result is `(1, size, size)` bool; the entry at $[0, i, j]$ is `True` if $j \le i$.
# * `ValueError` if `size` is smaller than 1.
#
# *Example.* `subsequent_mask(3)[0]` is $\begin{pmatrix}1&0&0\\1&1&0\\1&1&1\end{pmatrix}$, with 1
# for `True`.
#
# Book: section *masks* (`trf-masks`).
#
# <details><summary>Hint 1</summary>
#
# `torch.tril` keeps what stands on and below the diagonal; it works on bool tensors as well.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Or compare two `torch.arange(size)`, one as a column, the other as a row.
#
# </details>


# %% exercise="subsequent_mask" points=1 section="trf-masks"
def subsequent_mask(size: int) -> Tensor:
    """Which positions may be attended to: the own one and those before it.

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
# ### Exercise 5: The mask of a target
#
# Write `make_std_mask(target, pad=PAD)`: the mask of the decoder's self-attention, in which a
# position may attend only to real tokens, and to none that follows it.
#
# * `target` `(B, U)` `torch.int64`; `pad` is the id that marks padding.
# * The result is `(B, U, U)` bool: `True` where exercise 3 **and** exercise 4 allow it.
# * Queries at padding have a row like any other: what comes out at these places is never used.
#
# *Example.* For the target `[[1, 5, 0]]` it is $\begin{pmatrix}1&0&0\\1&1&0\\1&1&0\end{pmatrix}$,
# with 1 for `True`.
#
# Book: section *masks* (`trf-masks`).
#
# <details><summary>Hint 1</summary>
#
# Which shapes do the two masks have, and what does broadcasting make of them together?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `&` is the *and* of bool tensors, entry by entry; Python's `and` is not.
#
# </details>


# %% exercise="make_std_mask" points=2 section="trf-masks"
def make_std_mask(target: Tensor, pad: int = PAD) -> Tensor:
    """Which positions of a target may be attended to: real tokens, none that follow.

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
# Write `LayerNorm(features, eps=1e-5)`. Every vector is brought to mean 0 and variance 1 by its
# **own** numbers, whatever stands beside it in the batch; then each feature is scaled and shifted:
#
# $$\mu = \frac{1}{D}\sum_{i=1}^{D} x_i,\qquad
# \sigma^2 = \frac{1}{D}\sum_{i=1}^{D} (x_i - \mu)^2,\qquad
# y_i = \gamma_i\,\frac{x_i - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta_i$$
#
# * Parameters: `gamma` `(D,)`, ones at first, and `beta` `(D,)`, zeros at first, with
#   $D$ = `features`.
# * `forward(x)`: `x` `(..., D)` with any number of axes; the result has the same shape.
# * The variance is the **biased** one (divided by $D$, not by $D - 1$), and `eps` stands **inside**
#   the root.
# * `ValueError` (when the module is created) if `features` is smaller than 1; (when it is called)
#   if the last axis of `x` is not `features` long.
# * Not to be called: PyTorch's own norms (`nn.LayerNorm`, `F.layer_norm`, `nn.GroupNorm`,
#   `nn.BatchNorm1d`, `F.instance_norm`, `nn.RMSNorm` and the functions behind them). Your class may
#   have the same name as PyTorch's.
#
# *Example.* $(1, 3)$ has mean 2 and variance 1, so it becomes $(-1, 1)$ (up to `eps`). All numbers
# equal, as in $(5, 5)$, become exactly 0, not NaN.
#
# Book: section *layer normalisation* (`trf-norm`).
#
# <details><summary>Hint 1</summary>
#
# `mean` and `var` take `dim` and `keepdim`. With `keepdim=True` the result can be subtracted from
# `x` at once.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `x.var(...)` divides by $D - 1$ unless you tell it not to: `unbiased=False`, or `correction=0`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Before you compute, ask whether the widths fit: broadcasting would silently accept `features` 1,
# or an `x` whose last axis is 1.
#
# </details>


# %% exercise="LayerNorm" points=4 section="trf-norm" forbids="layer_norm native_layer_norm LayerNorm group_norm native_group_norm GroupNorm batch_norm native_batch_norm instance_norm rms_norm RMSNorm"
class LayerNorm(nn.Module):
    """Layer normalisation over the last axis (Ba et al. 2016, section 3.1).

    Parameters: ``gamma`` (features,), ones at first; ``beta`` (features,), zeros at first.
    """

    def __init__(self, features: int, eps: float = 1e-5) -> None:
        """Create ``gamma`` and ``beta``.

        Args:
            features: D, the size of the last axis, at least 1.
            eps: added to the variance, inside the root.

        Raises:
            ValueError: if features < 1.
        """
        super().__init__()
        ### BEGIN SOLUTION
        if features < 1:
            raise ValueError(f"features must be at least 1, but is {features}")
        self.eps = eps
        self.gamma = nn.Parameter(torch.ones(features))
        self.beta = nn.Parameter(torch.zeros(features))
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """Bring every vector to mean 0 and variance 1, then scale and shift.

        Args:
            x: (..., D).

        Returns:
            (..., D), gamma (x - mean) / sqrt(variance + eps) + beta, with mean and biased variance
            over the last axis.

        Raises:
            ValueError: if the last axis of x is not ``features`` long.
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
    """The variant of the Annotated Transformer: sample deviation, eps added outside the root.

    Parameters: ``a_2`` (features,), ones at first; ``b_2`` (features,), zeros at first. It differs
    from LayerNorm by the factor sqrt((D - 1) / D), and is NaN for D = 1.
    """

    def __init__(self, features: int, eps: float = 1e-6) -> None:
        """Create ``a_2`` and ``b_2``."""
        super().__init__()
        self.eps = eps
        self.a_2 = nn.Parameter(torch.ones(features))
        self.b_2 = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        """x (..., D) -> (..., D)."""
        mean = x.mean(dim=-1, keepdim=True)  # (..., 1)
        deviation = x.std(dim=-1, keepdim=True)  # (..., 1), divided by D - 1
        return self.a_2 * (x - mean) / (deviation + self.eps) + self.b_2  # (..., D)


# %% [markdown]
# ### Exercise 7: The position-wise feed-forward network
#
# Attention moves information between positions; this network transforms each position for itself,
# all of them with the same weights. Write `PositionwiseFeedForward(d_model, d_ff, dropout=0.0)`:
#
# $$\operatorname{FFN}(x) =
# W_2\,\operatorname{dropout}\bigl(\operatorname{ReLU}(W_1 x + b_1)\bigr) + b_2$$
#
# * Submodules: `w_1 = nn.Linear(d_model, d_ff)` and `w_2 = nn.Linear(d_ff, d_model)`, both with
#   bias.
# * `forward(x)`: `x` `(..., D)`; the result has the same shape.
#
# *Example.* $D = 1$, $F = 2$, all biases 0, $W_1 = \binom{1}{-1}$ and $W_2 = (1, 1)$: the network
# computes $|x|$, so $-3$ becomes 3. A linear layer alone can't do that.
#
# Book: section *feed-forward network* (`trf-ffn`).
#
# <details><summary>Hint 1</summary>
#
# `nn.Linear` acts on the last axis and leaves all others alone. There is no loop over positions.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Dropout acts on the inner layer, after the ReLU. What comes out at the end gets its dropout in
# exercise 9.
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
        """Transform every position for itself.

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
# only what is to be **added** to its input, the residual; the input itself takes a shortcut. Write
# `ResidualBlock(width)`:
#
# $$y = \operatorname{ReLU}\bigl(W_2\,\operatorname{ReLU}(W_1 x) + x\bigr)$$
#
# * Submodules: `w_1` and `w_2`, each `nn.Linear(width, width)` **without** bias.
# * `forward(x)`: `x` `(..., width)`; the result has the same shape.
#
# *Example.* If both matrices are the identity, $(-1, 2)$ becomes $(0, 4)$: the residual is
# $(0, 2)$, the sum $(-1, 4)$. If both are 0, only the shortcut is left, and $(-1, 2)$ becomes
# $(0, 2)$.
#
# Book: section *residual connections* (`trf-residual`).
#
# <details><summary>Hint 1</summary>
#
# There are two ReLUs. What stands between the second matrix and the second ReLU?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `nn.Linear` takes `bias=False`.
#
# </details>


# %% exercise="ResidualBlock" points=1 section="trf-residual"
class ResidualBlock(nn.Module):
    """Two layers and a shortcut past them (He et al. 2016, section 3.2).

    Submodules: ``w_1``, ``w_2``, each nn.Linear(width, width, bias=False).
    """

    def __init__(self, width: int) -> None:
        """Create ``w_1`` and ``w_2``."""
        super().__init__()
        ### BEGIN SOLUTION
        self.w_1 = nn.Linear(width, width, bias=False)
        self.w_2 = nn.Linear(width, width, bias=False)
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """Add what two layers make of x to x.

        Args:
            x: (..., width).

        Returns:
            (..., width), relu(w_2(relu(w_1(x))) + x).
        """
        ### BEGIN SOLUTION
        residual = self.w_2(torch.relu(self.w_1(x)))  # (..., width)
        return torch.relu(residual + x)  # (..., width)
        ### END SOLUTION


# %% check="ResidualBlock" tags=["active-ipynb"]
# check("ResidualBlock")

# %% [markdown]
# ### Exercise 9: The sub-layer connection
#
# Each attention and each feed-forward network of the Transformer stands in the same frame: a
# shortcut, dropout and a norm. Write `SublayerConnection(d_model, dropout=0.0, norm_first=False)`,
# which applies the frame to any sub-layer. There are two orders:
#
# $$\begin{aligned}
# \text{post-norm:}\quad
# y &= \operatorname{norm}\bigl(x + \operatorname{dropout}(\operatorname{sublayer}(x))\bigr)\\
# \text{pre-norm:}\quad
# y &= x + \operatorname{dropout}\bigl(\operatorname{sublayer}(\operatorname{norm}(x))\bigr)
# \end{aligned}$$
#
# * Submodule: `norm`, your `LayerNorm(d_model)`.
# * `forward(x, sublayer)`: `x` `(B, T, D)`; `sublayer` is any function or module from `(B, T, D)`
#   to `(B, T, D)`, and it is called once. The result is `(B, T, D)`.
# * `norm_first=False` is post-norm (the paper), `True` is pre-norm.
# * The sub-layer is no part of this module: it comes with every call and is not stored.
#
# *Example.* The sub-layer doubles its input, $x = (1, 3)$, no dropout. Post-norm:
# $x + 2x = (3, 9)$, and the norm makes $(-1, 1)$ of it. Pre-norm: the norm makes $(-1, 1)$, the
# sub-layer $(-2, 2)$, and the sum is $(-1, 5)$. (Both up to `eps`.)
#
# Book: section *residual connections* (`trf-residual`).
#
# <details><summary>Hint 1</summary>
#
# A function can be an argument like any other: write its name and, where it is to act, parentheses.
#
# </details>
# <details><summary>Hint 2</summary>
#
# In pre-norm the shortcut starts **before** the norm: what is added is the $x$ that came in.
#
# </details>


# %% exercise="SublayerConnection" points=3 section="trf-residual"
class SublayerConnection(nn.Module):
    """A shortcut and a norm around a sub-layer (Vaswani et al. 2017, 3.1; Xiong et al. 2020).

    Submodule: ``norm`` = your LayerNorm(d_model).
    """

    def __init__(self, d_model: int, dropout: float = 0.0, norm_first: bool = False) -> None:
        """Create ``norm``.

        Args:
            d_model: D.
            dropout: acts on what the sub-layer returns, in training mode.
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
        """Apply the sub-layer, add the shortcut, normalise in the order chosen.

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

# %% [markdown]
# ## The two stacks
#
# ### Exercise 10: Clones
#
# A stack is made of layers that are built alike, each with parameters of its own. Write
# `clones(module, n)`.
#
# * The result is an `nn.ModuleList` of `n` copies of `module`. All copies are equal at first, but
#   no two share a parameter, and `module` itself is not among them.
# * `ValueError` if `n` is smaller than 1.
#
# Mind that a stack made in this way starts with equal layers. `make_model` (exercise 17) therefore
# draws all weights anew.
#
# *Example.* `layers = clones(nn.Linear(2, 2), 3)` holds 6 parameters. Setting `layers[0].weight` to
# 0 leaves the other two as they are.
#
# Book: section *encoder* (`trf-encoder`).
#
# <details><summary>Hint 1</summary>
#
# `[module] * n` is a list of one and the same module, `n` times.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The module `copy` is imported above. One of its functions also copies everything inside.
#
# </details>


# %% exercise="clones" points=1 section="trf-encoder"
def clones(module: nn.Module, n: int) -> nn.ModuleList:
    """Make n independent copies of a module.

    Args:
        module: what to copy; it is no member of the result.
        n: how many copies, at least 1.

    Returns:
        A list of n modules, equal at first, that share no parameter with each other or with the
        original.

    Raises:
        ValueError: if n < 1.
    """
    ### BEGIN SOLUTION
    if n < 1:
        raise ValueError(f"n must be at least 1, but is {n}")
    return nn.ModuleList(copy.deepcopy(module) for _ in range(n))
    ### END SOLUTION


# %% check="clones" tags=["active-ipynb"]
# check("clones")

# %% [markdown]
# ### Exercise 11: An encoder layer
#
# Write `EncoderLayer(d_model, num_heads, d_ff, dropout=0.0, norm_first=False)`: self-attention,
# then the feed-forward network, each in a connection of exercise 9.
#
# $$\begin{aligned}
# x' &= \operatorname{connection}_0\bigl(x,\; z \mapsto \operatorname{attention}(z, z, z, M)\bigr)\\
# y &= \operatorname{connection}_1(x',\; \operatorname{FFN})
# \end{aligned}$$
#
# * Submodules: `self_attn`, your `MultiHeadAttention`; `feed_forward`, your
#   `PositionwiseFeedForward`; `sublayer`, an `nn.ModuleList` of two `SublayerConnection`s, in the
#   order of their use.
# * `forward(x, mask=None)`: `x` `(B, S, D)`; `mask`, $M$ above, as in exercise 2, usually
#   `(B, 1, S)`. The result is `(B, S, D)`.
# * `dropout` reaches **all** parts: the attention weights, the inside of the feed-forward network,
#   and both connections. With `dropout=0.0` two passes in training mode are equal.
# * `norm_first` is that of both connections.
# * `ValueError` (when the module is created) if `num_heads` does not divide `d_model`.
#
# *Example.* Without a mask, a layer doesn't know the order of its input: exchange two positions of
# `x`, and the same two positions of the result are exchanged.
#
# Book: section *encoder* (`trf-encoder`).
#
# <details><summary>Hint 1</summary>
#
# A connection calls its sub-layer with **one** argument. Self-attention needs three, and the mask:
# a `lambda` of one argument can pass them on.
#
# </details>
# <details><summary>Hint 2</summary>
#
# All three inputs of the attention are what the connection hands to the sub-layer: in pre-norm that
# is the normalised `x`, not the `x` of `forward`. Use the argument of the `lambda`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `clones` makes the two connections. The feed-forward network takes one argument already and can be
# handed over as it is.
#
# </details>


# %% exercise="EncoderLayer" points=3 section="trf-encoder"
class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each in its connection (Vaswani et al. 2017, 3.1).

    Submodules: ``self_attn`` = MultiHeadAttention, ``feed_forward`` = PositionwiseFeedForward,
    ``sublayer`` = nn.ModuleList of two SublayerConnections, in the order of use.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout: float = 0.0,
        norm_first: bool = False,
    ) -> None:
        """Create the submodules.

        Args:
            d_model: D.
            num_heads: H, a divisor of D, of each attention.
            d_ff: F.
            dropout: of attention weights, feed-forward network and connections.
            norm_first: the order of the norms, as for SublayerConnection.

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.self_attn = MultiHeadAttention(d_model, num_heads, dropout)
        self.feed_forward = PositionwiseFeedForward(d_model, d_ff, dropout)
        self.sublayer = clones(SublayerConnection(d_model, dropout, norm_first), 2)
        ### END SOLUTION

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Let every position look at all, then transform each for itself.

        Args:
            x: (B, S, D).
            mask: as for MultiHeadAttention, usually (B, 1, S).

        Returns:
            (B, S, D).
        """
        ### BEGIN SOLUTION
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))  # (B, S, D)
        return self.sublayer[1](x, self.feed_forward)  # (B, S, D)
        ### END SOLUTION


# %% check="EncoderLayer" tags=["active-ipynb"]
# check("EncoderLayer")

# %% [markdown]
# ### Exercise 12: The encoder
#
# Write `Encoder(num_layers, d_model, num_heads, d_ff, dropout=0.0, norm_first=False)`: the output
# of each layer is the input of the next.
#
# * Submodules: `layers`, an `nn.ModuleList` of `num_layers` `EncoderLayer`s, each with parameters
#   of its own; and, **only if** `norm_first`, a final `norm`, your `LayerNorm(d_model)`. A
#   post-norm layer ends with a norm; a pre-norm layer ends with a sum that nothing has normalised.
# * `forward(x, mask=None)`: `x` `(B, S, D)`; every layer gets the same mask. The result is
#   `(B, S, D)`.
# * `ValueError` (when the module is created) if `num_layers` is smaller than 1, or if `num_heads`
#   does not divide `d_model`.
#
# *Example.* `Encoder(2, 8, 2, 16)` has 32 parameter tensors, 16 in each layer;
# `Encoder(2, 8, 2, 16, norm_first=True)` has two more, `norm.gamma` and `norm.beta`.
#
# Book: section *encoder* (`trf-encoder`).
#
# <details><summary>Hint 1</summary>
#
# An `nn.ModuleList` can be iterated over like a list.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `self.norm = None` is allowed in a module and adds no parameter. `forward` can ask for it.
#
# </details>


# %% exercise="Encoder" points=2 section="trf-encoder"
class Encoder(nn.Module):
    """A stack of encoder layers (Vaswani et al. 2017, section 3.1).

    Submodules: ``layers`` = nn.ModuleList of num_layers EncoderLayers; only with norm_first also
    ``norm`` = LayerNorm(d_model), which acts on the output of the last layer.
    """

    def __init__(
        self,
        num_layers: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout: float = 0.0,
        norm_first: bool = False,
    ) -> None:
        """Create the layers, and with norm_first the final norm.

        Args:
            num_layers: N, at least 1.
            d_model: D.
            num_heads: H, a divisor of D, of each attention.
            d_ff: F.
            dropout: of attention weights, feed-forward network and connections.
            norm_first: the order of the norms in the layers, as for SublayerConnection.

        Raises:
            ValueError: if num_layers < 1 or num_heads does not divide d_model.
        """
        super().__init__()
        ### BEGIN SOLUTION
        layer = EncoderLayer(d_model, num_heads, d_ff, dropout, norm_first)
        self.layers = clones(layer, num_layers)
        # Post-norm layers end with a norm already.
        self.norm = LayerNorm(d_model) if norm_first else None
        ### END SOLUTION

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pass x through all layers.

        Args:
            x: (B, S, D).
            mask: the same for every layer, as for EncoderLayer.

        Returns:
            (B, S, D), the memory.
        """
        ### BEGIN SOLUTION
        for layer in self.layers:
            x = layer(x, mask)  # (B, S, D)
        return x if self.norm is None else self.norm(x)  # (B, S, D)
        ### END SOLUTION


# %% check="Encoder" tags=["active-ipynb"]
# check("Encoder")

# %% [markdown]
# ### Exercise 13: A decoder layer
#
# Write `DecoderLayer(d_model, num_heads, d_ff, dropout=0.0, norm_first=False)`. It has three
# sub-layers, each in a connection: self-attention over the target, attention to the source, and the
# feed-forward network. In the second the **queries** come from the decoder, **keys and values**
# from the memory, the encoder's output.
#
# * Submodules: `self_attn` and `src_attn`, your `MultiHeadAttention`; `feed_forward`, your
#   `PositionwiseFeedForward`; `sublayer`, an `nn.ModuleList` of three `SublayerConnection`s, in the
#   order of their use.
# * `forward(x, memory, src_mask=None, tgt_mask=None)`: `x` `(B, U, D)`; `memory` `(B, S, D)`;
#   `src_mask`, usually `(B, 1, S)`, for the attention to the source; `tgt_mask`, usually
#   `(B, U, U)`, for the self-attention. The result is `(B, U, D)`.
# * The memory is used as it is: in pre-norm too, the layer normalises only its own `x`.
# * `dropout` reaches both attentions, the feed-forward network and all three connections.
# * `ValueError` (when the module is created) if `num_heads` does not divide `d_model`.
#
# *Example.* With $U = 6$ and $S = 9$ the attention to the source has weights `(B, H, 6, 9)`, and
# the result has the length 6. With the roles exchanged the length would be 9, and the shortcut
# could not be added.
#
# Book: section *decoder* (`trf-decoder`).
#
# <details><summary>Hint 1</summary>
#
# Which mask belongs to which attention follows from the shapes: columns belong to keys.
#
# </details>
# <details><summary>Hint 2</summary>
#
# In the second sub-layer only the query is what the connection hands over. The memory comes from
# the arguments of `forward`; a `lambda` can use them too.
#
# </details>


# %% exercise="DecoderLayer" points=4 section="trf-decoder"
class DecoderLayer(nn.Module):
    """Self-attention, attention to the source, feed-forward (Vaswani et al. 2017, 3.1).

    Submodules: ``self_attn`` and ``src_attn`` = MultiHeadAttention, ``feed_forward`` =
    PositionwiseFeedForward, ``sublayer`` = nn.ModuleList of three SublayerConnections, in the order
    of use.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout: float = 0.0,
        norm_first: bool = False,
    ) -> None:
        """Create the submodules.

        Args:
            d_model: D.
            num_heads: H, a divisor of D, of each attention.
            d_ff: F.
            dropout: of attention weights, feed-forward network and connections.
            norm_first: the order of the norms, as for SublayerConnection.

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.self_attn = MultiHeadAttention(d_model, num_heads, dropout)
        self.src_attn = MultiHeadAttention(d_model, num_heads, dropout)
        self.feed_forward = PositionwiseFeedForward(d_model, d_ff, dropout)
        self.sublayer = clones(SublayerConnection(d_model, dropout, norm_first), 3)
        ### END SOLUTION

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
    ) -> Tensor:
        """Look at the target so far, look at the source, transform every position.

        Args:
            x: (B, U, D).
            memory: (B, S, D), the encoder's output; used as it is, without a norm.
            src_mask: which source positions may be attended to, usually (B, 1, S).
            tgt_mask: which target positions may be attended to, usually (B, U, U).

        Returns:
            (B, U, D).
        """
        ### BEGIN SOLUTION
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, tgt_mask))  # (B, U, D)
        x = self.sublayer[1](x, lambda x: self.src_attn(x, memory, memory, src_mask))  # (B, U, D)
        return self.sublayer[2](x, self.feed_forward)  # (B, U, D)
        ### END SOLUTION


# %% check="DecoderLayer" tags=["active-ipynb"]
# check("DecoderLayer")

# %% [markdown]
# ### Exercise 14: The decoder
#
# Write `Decoder(num_layers, d_model, num_heads, d_ff, dropout=0.0, norm_first=False)`, the stack of
# decoder layers. Every layer reads the same memory, the output of the **last** encoder layer.
#
# * Submodules: `layers`, an `nn.ModuleList` of `num_layers` `DecoderLayer`s; and, only if
#   `norm_first`, a final `norm`, your `LayerNorm(d_model)`.
# * `forward(x, memory, src_mask=None, tgt_mask=None)`: `x` `(B, U, D)`, `memory` `(B, S, D)`; the
#   memory and both masks are the same for all layers. The result is `(B, U, D)`.
# * `ValueError` (when the module is created) if `num_layers` is smaller than 1, or if `num_heads`
#   does not divide `d_model`.
#
# *Example.* `Decoder(2, 8, 2, 16)` has 52 parameter tensors, 26 in each layer;
# `Decoder(2, 8, 2, 16, norm_first=True)` has 54.
#
# Book: section *decoder* (`trf-decoder`).
#
# <details><summary>Hint 1</summary>
#
# It is the encoder of exercise 12 with other layers and three more arguments.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Only `x` goes from layer to layer.
#
# </details>


# %% exercise="Decoder" points=2 section="trf-decoder"
class Decoder(nn.Module):
    """A stack of decoder layers that all read the same memory (Vaswani et al. 2017, section 3.1).

    Submodules: ``layers`` = nn.ModuleList of num_layers DecoderLayers; only with norm_first also
    ``norm`` = LayerNorm(d_model), which acts on the output of the last layer.
    """

    def __init__(
        self,
        num_layers: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout: float = 0.0,
        norm_first: bool = False,
    ) -> None:
        """Create the layers, and with norm_first the final norm.

        Args:
            num_layers: N, at least 1.
            d_model: D.
            num_heads: H, a divisor of D, of each attention.
            d_ff: F.
            dropout: of attention weights, feed-forward network and connections.
            norm_first: the order of the norms in the layers, as for SublayerConnection.

        Raises:
            ValueError: if num_layers < 1 or num_heads does not divide d_model.
        """
        super().__init__()
        ### BEGIN SOLUTION
        layer = DecoderLayer(d_model, num_heads, d_ff, dropout, norm_first)
        self.layers = clones(layer, num_layers)
        # Post-norm layers end with a norm already.
        self.norm = LayerNorm(d_model) if norm_first else None
        ### END SOLUTION

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
    ) -> Tensor:
        """Pass x through all layers; each of them reads the whole memory.

        Args:
            x: (B, U, D).
            memory: (B, S, D).
            src_mask: the same for every layer, as for DecoderLayer.
            tgt_mask: the same for every layer, as for DecoderLayer.

        Returns:
            (B, U, D).
        """
        ### BEGIN SOLUTION
        for layer in self.layers:
            x = layer(x, memory, src_mask, tgt_mask)  # (B, U, D)
        return x if self.norm is None else self.norm(x)  # (B, U, D)
        ### END SOLUTION


# %% check="Decoder" tags=["active-ipynb"]
# check("Decoder")

# %% [markdown]
# ### Question: Where does the norm go, and what changes?
#
# A set of slides describes a sub-layer as *"add the residual, then layer norm"*, and prints
# `x + dropout(sublayer(norm(x)))` as its code. Which order do the words describe, and which the
# code? Which of them is the paper's? Then explain what the order changes: on the way that the
# shortcut takes through $N$ layers, in the size of the vectors, in whether the stack needs a norm
# at its end, and in how it trains.
#
# Book: section *norm order* (`trf-norm-order`). 3 points, marked by a person.

# %% [markdown] question="why_norm_order" points=3 section="trf-norm-order" title="Where does the norm go, and what changes?"
# **Your answer:**
#
# ### BEGIN SOLUTION
# *Which is which.* The words describe post-norm, $x_{l+1} = \operatorname{LN}(x_l + F(x_l))$, the
# order of the paper. The code is pre-norm, $x_{l+1} = x_l + F(\operatorname{LN}(x_l))$. They are
# two different models: the same weights give different outputs.
#
# *The shortcut.* In pre-norm nothing stands on it. Written out,
# $x_N = x_0 + \sum_l F(\operatorname{LN}(x_l))$, so each layer's Jacobian is $I + J_l$ and the
# gradient has a way from the loss to the embedding on which no factor acts. In post-norm every
# layer ends with a norm, and the shortcut passes through all $N$ of them: the Jacobian of a layer
# is that of the norm times $I + J_l$. The norm divides by the deviation of a sum that is larger
# than $x_l$ alone, so the direct contribution of a low layer shrinks with every norm above it.
#
# *Size, and the final norm.* In post-norm every layer's output has mean 0 and variance 1 for each
# token (while gamma is 1 and beta 0), and nothing is missing at the end. In pre-norm each layer
# adds to the sum and the vectors grow with depth; the last layer's output was normalised by nobody.
# So the encoder and the decoder each need one more norm at the end, or the generator and the
# attention to the source would see numbers whose size depends on the depth.
#
# *Training.* At the start, gradients in post-norm are large near the output and much smaller far
# below it (Xiong et al., 2020),
# so the first steps with a full learning rate can spoil the weights: it needs warm-up, and deep
# stacks may not train at all. Pre-norm has gradients of similar size in all layers, trains with
# less or no warm-up and in deeper stacks. In its favour, post-norm is often at least as good at the
# end where it does train, with few layers: in a deep pre-norm stack the high layers change the sum
# only a little.
#
# *Marking:* 1 point for the two formulas with the right names (paper and slides' words: post; code:
# pre), 1 for the free shortcut in pre-norm against the norms on it in post-norm, 1 for the growing
# sum with its final norm **and** a consequence for training.
# ### END SOLUTION

# %% [markdown]
# ## The whole model
#
# ### Exercise 15: The generator
#
# Write `Generator(d_model, vocab_size)`: from the decoder's vectors to the distribution of the next
# token.
#
# $$\log p = \operatorname{log\,softmax}(W h + b)$$
#
# * Submodule: `proj = nn.Linear(d_model, vocab_size)`, with bias. Its output, before the softmax,
#   is called the logits.
# * `forward(hidden)`: `(..., D)`; the result is `(..., V)`, the **logarithms** of the
#   probabilities: that is what the loss and beam search need.
#
# *Example.* If all parameters are 0 and $V = 4$, every entry is $\log\tfrac14 \approx -1.386$.
#
# Book: section *generator* (`trf-generator`).
#
# <details><summary>Hint 1</summary>
#
# `log(softmax(...))` becomes $-\infty$ where a probability is too small for its type. PyTorch has
# one function for both steps that doesn't.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The softmax runs over the vocabulary, the last axis, however many axes there are.
#
# </details>


# %% exercise="Generator" points=1 section="trf-generator"
class Generator(nn.Module):
    """From the decoder's vectors to log-probabilities of tokens (Vaswani et al. 2017, 3.4).

    Submodule: ``proj`` = nn.Linear(d_model, vocab_size).
    """

    def __init__(self, d_model: int, vocab_size: int) -> None:
        """Create ``proj``."""
        super().__init__()
        ### BEGIN SOLUTION
        self.proj = nn.Linear(d_model, vocab_size)
        ### END SOLUTION

    def forward(self, hidden: Tensor) -> Tensor:
        """Score every token of the vocabulary.

        Args:
            hidden: (..., D).

        Returns:
            (..., V), the logarithm of the probability of each token.
        """
        ### BEGIN SOLUTION
        return torch.log_softmax(self.proj(hidden), dim=-1)  # (..., V)
        ### END SOLUTION


# %% check="Generator" tags=["active-ipynb"]
# check("Generator")

# %% [markdown]
# ### Exercise 16: Encoder and decoder together
#
# Write `EncoderDecoder(src_vocab, tgt_vocab, num_layers=6, d_model=512, d_ff=2048, num_heads=8,
# dropout=0.1, norm_first=False, max_length=5000)`, the whole Transformer.
#
# * Submodules: `src_embed` and `tgt_embed`, your `Embeddings` for the two vocabularies; `position`,
#   one `PositionalEncoding(d_model, max_length, dropout)` (given) for both sides; `encoder` and
#   `decoder`, your stacks; `generator`, your `Generator` for the target vocabulary.
# * `encode(src, src_mask=None)`: `src` `(B, S)` ids; embedding, position, encoder. Returns the
#   memory `(B, S, D)`.
# * `decode(memory, src_mask, tgt, tgt_mask)`: `tgt` `(B, U)` ids; embedding, position, decoder.
#   Returns `(B, U, D)`, **before** the generator.
# * `forward(src, tgt)`: makes the masks itself, `pad_mask(src)` for **both** attentions to the
#   source and `make_std_mask(tgt)` for the target's own. Returns log-probabilities `(B, U, V)`;
#   those at place $t$ are about the token after `tgt[:, t]`.
# * `dropout` and `norm_first` reach all parts that have them.
# * `ValueError`s of the parts (a vocabulary of 0, a number of heads that doesn't divide, no layers)
#   may come through as they are.
#
# *Example.* In evaluation mode, append columns of `PAD` to `src`: the result stays the same (up to
# rounding). Change `tgt[:, 3]`: the places 0 to 2 of the result stay the same.
#
# Book: section *model* (`trf-model`).
#
# <details><summary>Hint 1</summary>
#
# Nothing new is computed here; each method is a chain of parts that you have. Write `encode` and
# `decode` first, and let `forward` call them.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The encoder's self-attention and the decoder's attention to the source have the same keys, the
# source's positions. So they have the same mask.
#
# </details>


# %% exercise="EncoderDecoder" points=4 section="trf-model"
class EncoderDecoder(nn.Module):
    """The whole Transformer (Vaswani et al. 2017, section 3).

    Submodules: ``src_embed`` and ``tgt_embed`` = Embeddings; ``position`` = PositionalEncoding, the
    same for both sides; ``encoder`` = Encoder; ``decoder`` = Decoder; ``generator`` = Generator.
    """

    def __init__(
        self,
        src_vocab: int,
        tgt_vocab: int,
        num_layers: int = 6,
        d_model: int = 512,
        d_ff: int = 2048,
        num_heads: int = 8,
        dropout: float = 0.1,
        norm_first: bool = False,
        max_length: int = 5000,
    ) -> None:
        """Create the submodules.

        Args:
            src_vocab: size of the source vocabulary.
            tgt_vocab: size of the target vocabulary.
            num_layers: N, of each stack.
            d_model: D.
            d_ff: F.
            num_heads: H.
            dropout: of ``position`` and of both stacks.
            norm_first: the order of the norms, as for SublayerConnection.
            max_length: how many positions have a code.

        Raises:
            ValueError: if a part can't be made of these sizes.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.src_embed = Embeddings(src_vocab, d_model)
        self.tgt_embed = Embeddings(tgt_vocab, d_model)
        self.position = PositionalEncoding(d_model, max_length, dropout)
        self.encoder = Encoder(num_layers, d_model, num_heads, d_ff, dropout, norm_first)
        self.decoder = Decoder(num_layers, d_model, num_heads, d_ff, dropout, norm_first)
        self.generator = Generator(d_model, tgt_vocab)
        ### END SOLUTION

    def encode(self, src: Tensor, src_mask: Tensor | None = None) -> Tensor:
        """Read the source.

        Args:
            src: (B, S) int64.
            src_mask: as for Encoder.

        Returns:
            The memory (B, S, D).
        """
        ### BEGIN SOLUTION
        return self.encoder(self.position(self.src_embed(src)), src_mask)  # (B, S, D)
        ### END SOLUTION

    def decode(
        self, memory: Tensor, src_mask: Tensor | None, tgt: Tensor, tgt_mask: Tensor | None
    ) -> Tensor:
        """Read the target so far, and the memory.

        Args:
            memory: (B, S, D).
            src_mask: as for Decoder.
            tgt: (B, U) int64.
            tgt_mask: as for Decoder.

        Returns:
            (B, U, D), what the generator is to be applied to.
        """
        ### BEGIN SOLUTION
        x = self.position(self.tgt_embed(tgt))  # (B, U, D)
        return self.decoder(x, memory, src_mask, tgt_mask)  # (B, U, D)
        ### END SOLUTION

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """The log-probabilities of the next token after every token of the target.

        Args:
            src: (B, S) int64, padded with PAD.
            tgt: (B, U) int64, begins with BOS, padded with PAD.

        Returns:
            (B, U, V); those at place t depend on tgt[:, : t + 1] only.
        """
        ### BEGIN SOLUTION
        src_mask = pad_mask(src)  # (B, 1, S)
        memory = self.encode(src, src_mask)  # (B, S, D)
        hidden = self.decode(memory, src_mask, tgt, make_std_mask(tgt))  # (B, U, D)
        return self.generator(hidden)  # (B, U, V)
        ### END SOLUTION


# %% check="EncoderDecoder" tags=["active-ipynb"]
# check("EncoderDecoder")

# %% [markdown]
# ### Question: Which masks may one leave out, and when?
#
# Three people want to save masks. The first says: *"In the decoder's self-attention the subsequent
# mask makes the padding mask superfluous."* The second: *"The encoder has masked the padding
# already, so the attention to the source needs no mask."* The third: *"When the model writes a
# translation, later words don't exist yet, so no subsequent mask is needed."* Say for each of the
# three whether it is true, under which conditions, and why.
#
# Book: section *mask errors* (`trf-mask-errors`). 3 points, marked by a person.

# %% [markdown] question="which_masks" points=3 section="trf-mask-errors" title="Which masks may one leave out, and when?"
# **Your answer:**
#
# ### BEGIN SOLUTION
# *The first is right under two conditions.* If padding stands on the **right**, a real token at
# place $i$ sees only the places $j \le i$, and these are real. The places of the padding themselves
# compute nonsense, so the second condition is that the **loss ignores** them. If padding stands on
# the left, it comes before the real tokens, the subsequent mask lets it through, and the outputs at
# real tokens change. In the encoder there is no subsequent mask: every token sees all
# padding, on whichever side it stands, and the padding mask can't be left out.
#
# *The second is wrong.* The encoder's mask keeps real tokens from attending **to** padding. But the
# encoder returns a vector at every place, at padding as well: there the query is the padding's own.
# These vectors are in the memory, and without a mask the decoder's attention gives them weight.
# Then a translation depends on how far its source was padded, that is, on its neighbours in the
# batch.
#
# *The third is wrong as soon as there are two layers.* Without the mask the earlier places of the
# target attend to words written after them. In the first layer that changes the outputs of the
# earlier places; the second layer makes keys and values of these, and so the last place, which is
# the one that is read, changes too. Only for $N = 1$ does it stay the same, because its keys and
# values come from the embeddings, which depend on one token each. For $N \ge 2$ the model computes
# something that it wasn't trained for, and its keys and values can't be kept in a cache, since each
# new word would change all of them. A step with a cache needs no subsequent mask: only the last
# place runs through the layers, and it may see everything in the cache.
#
# *Marking:* 1 point for the first with its conditions (padding on the right, ignored by the loss),
# 1 for the second with the reason (memory has vectors at padding), 1 for the third (last place
# changes for $N \ge 2$, or the cache).
# ### END SOLUTION

# %% [markdown]
# ### Exercise 17: Make a model
#
# Write `make_model(src_vocab, tgt_vocab, num_layers=6, d_model=512, d_ff=2048, num_heads=8,
# dropout=0.1, norm_first=False, shared=False)`: make an `EncoderDecoder` of these sizes and draw
# its parameters.
#
# * The weight of **every** linear layer is drawn anew by `nn.init.xavier_uniform_`, so that the
#   layers of a stack, clones until now, differ from each other. The bias of every linear layer is
#   0.
# * Norms have `gamma` 1 and `beta` 0. Embedding tables are drawn from $N(0, 1/D)$ (variance $1/D$),
#   **not** by Xavier, which would make them far too small beside the positional code.
# * `shared=True`, as in the paper: `src_embed.lut.weight`, `tgt_embed.lut.weight` and
#   `generator.proj.weight` are **one** parameter, not three equal ones, and it is drawn from
#   $N(0, 1/D)$. The generator keeps a bias of its own.
# * `dropout` reaches all parts: `make_model(..., dropout=0.0)` computes the same twice in training
#   mode.
# * `ValueError` if `shared` and the two vocabularies differ in size; those of the parts may come
#   through.
#
# *Example.* `make_model(11, 11, num_layers=2, d_model=16, d_ff=32, num_heads=2)` has 11675
# parameters; with `shared=True` it has 11323, two tables of $11 \cdot 16$ less.
#
# Book: section *model* (`trf-model`).
#
# <details><summary>Hint 1</summary>
#
# `model.modules()` yields all modules within a module; `isinstance(..., nn.Linear)` finds the
# linear ones.
#
# </details>
# <details><summary>Hint 2</summary>
#
# To tie two weights, assign the one parameter to the attribute of the other module. Afterwards
# `model.parameters()` yields it once.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Mind the order: the generator is a linear layer. If you tie first and draw afterwards, Xavier's
# numbers end up in the embedding tables.
#
# </details>


# %% exercise="make_model" points=4 section="trf-model"
def make_model(
    src_vocab: int,
    tgt_vocab: int,
    num_layers: int = 6,
    d_model: int = 512,
    d_ff: int = 2048,
    num_heads: int = 8,
    dropout: float = 0.1,
    norm_first: bool = False,
    shared: bool = False,
) -> EncoderDecoder:
    """Make a Transformer and draw its parameters (Vaswani et al. 2017, sections 3 and 3.4).

    Args:
        src_vocab: size of the source vocabulary.
        tgt_vocab: size of the target vocabulary.
        num_layers: N, of each stack.
        d_model: D.
        d_ff: F.
        num_heads: H.
        dropout: acts everywhere, also on attention weights.
        norm_first: order of the norms, as for SublayerConnection.
        shared: whether both embeddings and the generator have one weight in common.

    Returns:
        An EncoderDecoder. The weight of every linear layer is drawn anew by
        nn.init.xavier_uniform_, so that layers differ; biases are 0; norms have gamma 1 and beta 0;
        embedding tables, and the weight in common, are drawn from N(0, 1/D).

    Raises:
        ValueError: if shared and the vocabularies differ in size, or a part can't be made.
    """
    ### BEGIN SOLUTION
    if shared and src_vocab != tgt_vocab:
        raise ValueError(
            f"one table can't serve vocabularies of {src_vocab} and {tgt_vocab} tokens"
        )
    model = EncoderDecoder(
        src_vocab, tgt_vocab, num_layers, d_model, d_ff, num_heads, dropout, norm_first
    )
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    if shared:
        # After the loop, which would have drawn the generator's weight by Xavier.
        model.tgt_embed.lut.weight = model.src_embed.lut.weight
        model.generator.proj.weight = model.src_embed.lut.weight
    return model
    ### END SOLUTION


# %% check="make_model" tags=["active-ipynb"]
# check("make_model")


# %% tags=["instructor"]
def count_parameters(
    vocab: int, num_layers: int, d_model: int, d_ff: int, shared: bool = True
) -> int:
    """How many numbers a post-norm Transformer learns, by formula.

    Args:
        vocab: size of both vocabularies.
        num_layers: N, of each stack.
        d_model: D.
        d_ff: F.
        shared: whether both embeddings and the generator have one weight in common.

    Returns:
        The number of parameters of make_model(vocab, vocab, ...); pre-norm has 4 D more.
    """
    attention = 4 * (d_model * d_model + d_model)
    feed_forward = 2 * d_model * d_ff + d_ff + d_model
    norm = 2 * d_model
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    tables = (1 if shared else 3) * vocab * d_model + vocab
    return num_layers * (encoder_layer + decoder_layer) + tables


# %% tags=["instructor"]
class _FastDropout(nn.Dropout):
    """Dropout that draws four numbers of 16 bits where PyTorch draws one, on a CPU.

    The probability is rounded to a multiple of 2^-16 and the scale follows it, so the mean of the
    output is the input. (On small models PyTorch's own takes a fifth of a training step.)
    """

    def forward(self, x: Tensor) -> Tensor:
        """As in nn.Dropout."""
        steps = round(self.p * 65536)
        if not self.training or not 0 < steps < 65536 or x.device.type != "cpu":
            return F.dropout(x, self.p, self.training)
        draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        bits = draws.view(torch.int16)[: x.numel()].view(x.shape)  # evenly in -32768 .. 32767
        scale = (bits >= steps - 32768).to(x.dtype).mul_(65536 / (65536 - steps))
        return x * scale


class _FastAttention(MultiHeadAttention):
    """MultiHeadAttention by PyTorch's kernel, with fewer matrix products."""

    def project(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """As in MultiHeadAttention; one product if keys and values are made of the same."""
        if key is not value:
            return super().project(key, value)
        return self._heads(key, self.k_proj, self.v_proj)  # (B, H, Tk, D/H) each

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """As in MultiHeadAttention."""
        heads = (*query.shape[:2], self.num_heads, query.shape[2] // self.num_heads)
        queries = self.q_proj(query).view(heads).transpose(1, 2)  # (B, H, Tq, D/H)
        return self._mix(queries, keys, values, mask)  # (B, Tq, D)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """As in MultiHeadAttention; one product for all three if they are the same."""
        if query is key and key is value:
            parts = self._heads(query, self.q_proj, self.k_proj, self.v_proj)
            return self._mix(*parts, mask)  # (B, Tq, D)
        return super().forward(query, key, value, mask)

    def _heads(self, x: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
        """What each of the layers makes of x (B, T, D), split into heads (B, H, T, D/H)."""
        batch, length, width = x.shape
        # Joining the weights copies them, which pays only if enough tokens share the product.
        if batch * length < width:
            made = [layer(x) for layer in layers]  # n x (B, T, D)
        else:
            weight = torch.cat([layer.weight for layer in layers])  # (n D, D)
            bias = torch.cat([layer.bias for layer in layers])  # (n D,)
            made = F.linear(x, weight, bias).chunk(len(layers), dim=-1)  # n x (B, T, D)
        return tuple(part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in made)

    def _mix(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Attend, merge the heads and project the result: (B, Tq, D)."""
        if mask is not None and mask.dim() == 3:
            mask = mask.unsqueeze(1)  # (B, 1, Tq, Tk) or (B, 1, 1, Tk)
        rate = self.dropout.p if self.training else 0.0
        if rate > 0 and queries.device.type == "cpu":
            # PyTorch has no fused kernel for this case, and its dropout is the slow one.
            scores = queries * (1 / math.sqrt(queries.shape[-1])) @ keys.transpose(-2, -1)
            if mask is not None:
                scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
            mixed = self.dropout(torch.softmax(scores, dim=-1)) @ values  # (B, H, Tq, D/H)
        else:
            mixed = F.scaled_dot_product_attention(queries, keys, values, mask, rate)
        return self.out_proj(mixed.transpose(1, 2).flatten(2))  # (B, Tq, D)


class _FastNorm(LayerNorm):
    """LayerNorm by PyTorch's kernel."""

    def forward(self, x: Tensor) -> Tensor:
        """As in LayerNorm."""
        return F.layer_norm(x, self.gamma.shape, self.gamma, self.beta, self.eps)


def use_fast_path(model: nn.Module, on: bool = True) -> nn.Module:
    """Compute attention, norms and dropout by fused or leaner code; the parameters stay the same.

    Args:
        model: any module; every MultiHeadAttention, LayerNorm and nn.Dropout in it is switched, in
            place.
        on: False switches back.

    Returns:
        The same model. Its results agree up to rounding; with dropout, in distribution.
    """
    kinds = {
        MultiHeadAttention: _FastAttention,
        LayerNorm: _FastNorm,
        nn.Dropout: _FastDropout,
    }
    if not on:
        kinds = {fast: clear for clear, fast in kinds.items()}
    for module in model.modules():
        if type(module) in kinds:
            module.__class__ = kinds[type(module)]
    return model


# %% [markdown]
# ## Training
#
# ### Exercise 18: Input and output of the decoder
#
# In training the decoder reads the target one place behind what it is to say: at each place it sees
# the tokens so far and is asked for the next. Write `shift_targets(target, pad=PAD)`.
#
# * `target` `(B, U + 1)` `torch.int64`: each row goes from `BOS` to `EOS`, then `pad` fills it up.
# * Returns `(tgt_in, tgt_out, count)`: `(B, U)`, all but the last column; `(B, U)`, all but the
#   first; and how many ids of `tgt_out` are not `pad`, a Python `int`.
# * A short row's `EOS` stays in `tgt_in`. What the model says there is compared with padding, so it
#   doesn't count.
# * `ValueError` if the rows have fewer than 2 ids.
#
# *Example.* $\begin{pmatrix}1&5&6&2\\1&7&2&0\end{pmatrix}$ gives
# $\begin{pmatrix}1&5&6\\1&7&2\end{pmatrix}$, $\begin{pmatrix}5&6&2\\7&2&0\end{pmatrix}$ and 5.
#
# Book: section *shifted targets* (`trf-shift`).
#
# <details><summary>Hint 1</summary>
#
# Slices along the second axis: `[:, a:b]`; a negative end counts from the back.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The sum of a bool tensor is the number of `True`s, as a tensor of one entry. `int(...)` or
# `.item()` makes a Python number of it.
#
# </details>


# %% exercise="shift_targets" points=1 section="trf-shift"
def shift_targets(target: Tensor, pad: int = PAD) -> tuple[Tensor, Tensor, int]:
    """Cut targets into what the decoder reads and what it is to say.

    Args:
        target: (B, U + 1) int64, from BOS to EOS, padded with pad.
        pad: the id that marks padding.

    Returns:
        tgt_in (B, U), all but the last id of each row; tgt_out (B, U), all but the first; and how
        many ids of tgt_out are real.

    Raises:
        ValueError: if the rows have fewer than 2 ids.
    """
    ### BEGIN SOLUTION
    if target.shape[1] < 2:
        raise ValueError(f"a target needs at least 2 ids, but the rows have {target.shape[1]}")
    tgt_in, tgt_out = target[:, :-1], target[:, 1:]  # (B, U) each
    return tgt_in, tgt_out, int((tgt_out != pad).sum())
    ### END SOLUTION


# %% check="shift_targets" tags=["active-ipynb"]
# check("shift_targets")

# %% [markdown]
# ### Exercise 19: Batches by tokens
#
# A batch of 64 sentences may hold 300 words or 3000. The Transformer's batches are measured in
# tokens instead, and sentences of similar length stand together, so that little is padding. Write
# `token_batches(lengths, max_tokens)`.
#
# * `lengths`: a list of `(source length, target length)`, one for each sentence. The result is a
#   list of batches, each a list of indices into `lengths`.
# * Sentences are taken in the order of source length, then target length, then index.
# * The next sentence joins the current batch as long as **both** sides fit, padding counted:
#
# $$\text{number of sentences} \cdot \text{longest source} \le \text{max\_tokens}
# \quad\text{and}\quad
# \text{number of sentences} \cdot \text{longest target} \le \text{max\_tokens}$$
#
# * Otherwise the current batch is done, and the sentence begins the next. So each index occurs
#   exactly once, and no batch is empty. No sentences give `[]`.
# * `ValueError` if `max_tokens` is smaller than 1, or if one sentence alone is too long; then the
#   message says which one (its index).
#
# *Example.* `token_batches([(3, 4), (1, 1), (9, 2), (3, 3)], 9)` is `[[1, 3], [0], [2]]`: sentence
# 0 would make three rows of four target places, 12 in all.
#
# Book: section *batches* (`trf-batches`).
#
# <details><summary>Hint 1</summary>
#
# `sorted(range(n), key=...)` sorts indices; the key is a tuple of three numbers.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The sources come sorted, so the newest is the longest. The targets don't: keep the longest one of
# the current batch, and begin anew with each batch.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Ask whether the sentence fits **with itself counted**: the number of sentences is one more than
# the batch has now, and the longest is the longest including the new one.
#
# </details>


# %% exercise="token_batches" points=3 section="trf-batches"
def token_batches(lengths: list[tuple[int, int]], max_tokens: int) -> list[list[int]]:
    """Put sentences of similar length together, as many as fit (Vaswani et al. 2017, 5.1).

    Args:
        lengths: (source length, target length) of each sentence.
        max_tokens: the most places, padding counted, that a batch may have on either side; at
            least 1.

    Returns:
        The indices of each batch. Sentences are taken in the order of (source length, target
        length, index), and a batch ends where the next one would exceed max_tokens.

    Raises:
        ValueError: if max_tokens < 1, or one sentence alone is too long.
    """
    ### BEGIN SOLUTION
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, but is {max_tokens}")
    batches: list[list[int]] = []
    longest = 0
    for i in sorted(range(len(lengths)), key=lambda i: (*lengths[i], i)):
        length = max(lengths[i])
        if length > max_tokens:
            raise ValueError(f"sentence {i} has {length} tokens, more than max_tokens={max_tokens}")
        longest = max(longest, length)
        # The longer side decides: it has the larger product.
        if batches and (len(batches[-1]) + 1) * longest <= max_tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
            longest = length
    return batches
    ### END SOLUTION


# %% check="token_batches" tags=["active-ipynb"]
# check("token_batches")

# %% [markdown]
# ### Exercise 20: Label smoothing
#
# A one-hot target asks for the probability 1, which no softmax reaches; the model can only grow its
# logits for ever. Label smoothing (Szegedy et al., 2016) gives a share $\epsilon$ of the target to
# all tokens evenly. Write `label_smoothing_loss(log_probs, target, smoothing=0.1, pad=PAD)`. For
# one real token $y$:
#
# $$\ell = (1 - \epsilon)\,(-\log p_y) + \frac{\epsilon}{V}\sum_{v=1}^{V} (-\log p_v)$$
#
# * `log_probs` `(B, U, V)`: logarithms of probabilities, as the generator returns them; `target`
#   `(B, U)` `torch.int64`; `smoothing` is $\epsilon$.
# * The sum runs over **all** $V$ tokens, the right one and `PAD` included, as in PyTorch. (Some
#   programs spread $\epsilon$ over $V - 1$ or $V - 2$ tokens.)
# * A target equal to `pad` doesn't count. The result is a scalar: the sum of $\ell$ over the real
#   tokens of the batch, divided by their number. `pad` may be an id outside the vocabulary, such as
#   −100.
# * `ValueError` if `smoothing` is negative, or 1 or more, or if no target is real.
# * Not to be called: `cross_entropy`, `nll_loss` and their modules.
#
# *Example.* $V = 4$, $p = (0.1, 0.7, 0.1, 0.1)$, target 1, $\epsilon = 0.1$:
# $\ell = 0.9 \cdot 0.357 + 0.025 \cdot (0.357 + 3 \cdot 2.303) \approx 0.503$. Without smoothing it
# is $0.357$.
#
# Book: section *label smoothing* (`trf-smoothing`).
#
# <details><summary>Hint 1</summary>
#
# `gather` along the last axis, with an index of shape `(B, U, 1)`, picks $\log p_y$ for each token.
# It needs valid ids at padding too: put a harmless one there first.
#
# </details>
# <details><summary>Hint 2</summary>
#
# $\frac1V\sum_v$ is a mean over the last axis.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Set the terms of padding to 0, sum up, and divide by the number of real tokens, not by $B\,U$.
#
# </details>


# %% exercise="label_smoothing_loss" points=4 section="trf-smoothing" forbids="cross_entropy nll_loss CrossEntropyLoss NLLLoss cross_entropy_loss nll_loss_nd nll_loss2d"
def label_smoothing_loss(
    log_probs: Tensor, target: Tensor, smoothing: float = 0.1, pad: int = PAD
) -> Tensor:
    """Cross-entropy against smoothed targets, per real token (Szegedy et al. 2016, section 7).

    Args:
        log_probs: (B, U, V), logarithms of probabilities.
        target: (B, U) int64.
        smoothing: eps, the share of the target that is spread evenly over all V tokens; in [0, 1).
        pad: the id that marks padding; such targets don't count.

    Returns:
        A scalar: (1 - eps) (-log p[target]) + eps / V sum over v of (-log p[v]), averaged over the
        real tokens of the whole batch.

    Raises:
        ValueError: if not 0 <= smoothing < 1, or no target is real.
    """
    ### BEGIN SOLUTION
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing must be at least 0 and below 1, but is {smoothing}")
    real = target != pad  # (B, U)
    if not real.any():
        raise ValueError(f"every target is padding ({pad}); there is nothing to learn from")
    ids = target.masked_fill(~real, 0)  # (B, U), so that pad may lie outside the vocabulary
    correct = -log_probs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)  # (B, U)
    uniform = -log_probs.mean(dim=-1)  # (B, U), the mean over V
    loss = (1 - smoothing) * correct + smoothing * uniform  # (B, U)
    return loss.masked_fill(~real, 0.0).sum() / real.sum()  # scalar
    ### END SOLUTION


# %% check="label_smoothing_loss" tags=["active-ipynb"]
# check("label_smoothing_loss")

# %% [markdown]
# ### Exercise 21: The learning rate
#
# Write `learning_rate(step, d_model=512, warmup=4000, factor=1.0)`, the schedule of the paper: the
# rate rises in proportion to the step, and after `warmup` steps it falls by the inverse square
# **root** of the step.
#
# $$\text{rate} = \text{factor} \cdot D^{-1/2} \cdot
# \min\bigl(\text{step}^{-1/2},\; \text{step} \cdot \text{warmup}^{-3/2}\bigr)$$
#
# * `step` counts from 1. The result is a Python `float`.
# * `ValueError` if `step` or `warmup` is smaller than 1.
#
# *Example.* With the defaults, step 1 has $1.75 \cdot 10^{-7}$, step 4000 has the peak of
# $6.99 \cdot 10^{-4}$, and step 16000 has half of that.
#
# Book: section *optimiser* (`trf-optimiser`).
#
# <details><summary>Hint 1</summary>
#
# `**` is the power, and it binds tighter than `*`: `step**-0.5` needs no parentheses.
#
# </details>
# <details><summary>Hint 2</summary>
#
# At `step == warmup` both expressions are equal; that is where the curve has its peak.
#
# </details>


# %% exercise="learning_rate" points=1 section="trf-optimiser"
def learning_rate(step: int, d_model: int = 512, warmup: int = 4000, factor: float = 1.0) -> float:
    """The rate of a step: rises linearly, then falls as 1 / sqrt(step) (Vaswani et al. 2017, 5.3).

    Args:
        step: number of the step, from 1.
        d_model: D.
        warmup: number of steps in which the rate rises; at least 1.
        factor: multiplies the whole.

    Returns:
        factor D^-0.5 min(step^-0.5, step warmup^-1.5).

    Raises:
        ValueError: if step < 1 or warmup < 1.
    """
    ### BEGIN SOLUTION
    for name, value in (("step", step), ("warmup", warmup)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, but is {value}")
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
    ### END SOLUTION


# %% check="learning_rate" tags=["active-ipynb"]
# check("learning_rate")

# %% [markdown]
# ### Exercise 22: A step of Adam
#
# Adam (Kingma and Ba, 2015) keeps two running means for each number it trains: one of the gradient
# $g$, one of its square. Write `adam_step(parameter, gradient, first, second, step, rate,
# betas=(0.9, 0.98), eps=1e-9)`:
#
# $$\begin{aligned}
# m' &= \beta_1 m + (1 - \beta_1)\, g & v' &= \beta_2 v + (1 - \beta_2)\, g^2\\
# \hat m &= \frac{m'}{1 - \beta_1^{t}} & \hat v &= \frac{v'}{1 - \beta_2^{t}}\\
# \theta' &= \theta - \text{rate}\,\frac{\hat m}{\sqrt{\hat v} + \epsilon}
# \end{aligned}$$
#
# * `parameter` ($\theta$), `gradient` ($g$), `first` ($m$) and `second` ($v$) have one and the same
#   shape; `step` is $t$, from 1. Before the first step both means are 0.
# * `eps` stands **outside** the root.
# * Returns `(parameter, first, second)`, the new ones $\theta'$, $m'$, $v'$: the means as they are
#   **before** the correction by $1 - \beta^t$, because the next step goes on from them. The inputs
#   stay as they are.
# * `ValueError` if `step` is smaller than 1.
#
# *Example.* $\theta = 1$, $g = 0.5$, both means 0, $t = 1$, rate $0.1$: the new parameter is $0.9$,
# the means are $0.05$ and $0.005$. With $g = 50$ the new parameter would be $0.9$ as well: the
# first step has the length of the rate, whatever the size of the gradient.
#
# Book: section *optimiser* (`trf-optimiser`).
#
# <details><summary>Hint 1</summary>
#
# Each formula is a line. Use names of their own for the corrected means, so that you can return the
# others.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Methods that end in `_`, and `+=`, change a tensor in place. Here that would change the caller's.
#
# </details>


# %% exercise="adam_step" points=3 section="trf-optimiser"
def adam_step(
    parameter: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    step: int,
    rate: float,
    betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-9,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of Adam (Kingma and Ba 2015, algorithm 1; numbers: Vaswani et al. 2017, 5.3).

    Args:
        parameter: any shape.
        gradient: the same shape, as all tensors here.
        first: the running mean of gradients before this step, 0 before the first.
        second: the running mean of squared gradients before this step, 0 before the first.
        step: number of this step, from 1.
        rate: the learning rate.
        betas: how much of each running mean is kept.
        eps: added to the root of the second mean, outside the root.

    Returns:
        The new parameter, the new first and the new second mean; the means without bias correction,
        as the next step needs them.

    Raises:
        ValueError: if step < 1.
    """
    ### BEGIN SOLUTION
    if step < 1:
        raise ValueError(f"step must be at least 1, but is {step}")
    beta_1, beta_2 = betas
    first = beta_1 * first + (1 - beta_1) * gradient
    second = beta_2 * second + (1 - beta_2) * gradient**2
    # Both means began at 0 and are too small by these factors.
    first_corrected = first / (1 - beta_1**step)
    second_corrected = second / (1 - beta_2**step)
    new = parameter - rate * first_corrected / (second_corrected.sqrt() + eps)
    return new, first, second
    ### END SOLUTION


# %% check="adam_step" tags=["active-ipynb"]
# check("adam_step")

# %% [markdown]
# ### Exercise 23: A training step
#
# Put the recipe together. Write
# `train_step(model, source, target, moments, step, rate, smoothing=0.1)`: one step on one batch.
#
# 1. Cut `target` `(B, U + 1)` by exercise 18, apply `model` to `source` `(B, S)` and the input, and
#    compute the loss of its log-probabilities by exercise 20.
# 2. Compute the gradients of **this** loss. Gradients that the parameters carry from elsewhere (in
#    `.grad`) must not matter.
# 3. Replace every parameter that has a gradient by what exercise 22 makes of it, in place, with the
#    `betas` and `eps` of the paper, its defaults.
#
# * `model` is any module that maps `(B, S)` and `(B, U)` ids to log-probabilities `(B, U, V)`.
#   Leave its mode (training or evaluation) as it is: that is the caller's business.
# * `moments` is a `dict` from a parameter's name (as in `model.named_parameters()`) to the pair
#   `(first, second)`, and `{}` before the first step. It is left unchanged; the new one is
#   returned.
# * A parameter without a gradient (one that is frozen, or that the loss doesn't depend on) stays as
#   it is and gets no moments.
# * Returns `(loss, moments)`: the loss **before** the step, a Python `float`, and the new `dict`.
#
# *Example.* After `train_step(model, source, target, {}, 1, 0.01)` no number of the model has moved
# by more than 0.01, and those with a clear gradient have moved by just about that.
#
# Book: section *training* (`trf-training`).
#
# <details><summary>Hint 1</summary>
#
# `loss.backward()` **adds** to what stands in `.grad`. `model.zero_grad()` empties it first.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A parameter that is a leaf of the graph can only be changed in place where nothing is recorded:
# `with torch.no_grad():`. There `parameter.copy_(...)` writes new numbers into it.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A weight that several modules share appears once in `named_parameters()`, with the sum of its
# gradients. `torch.zeros_like` makes the first moments.
#
# </details>


# %% exercise="train_step" points=4 section="trf-training"
def train_step(
    model: nn.Module,
    source: Tensor,
    target: Tensor,
    moments: dict[str, tuple[Tensor, Tensor]],
    step: int,
    rate: float,
    smoothing: float = 0.1,
) -> tuple[float, dict[str, tuple[Tensor, Tensor]]]:
    """Improve the model on one batch, in place (Vaswani et al. 2017, section 5).

    Args:
        model: (B, S) ids and (B, U) ids -> log-probabilities (B, U, V); left in its mode.
        source: (B, S) int64.
        target: (B, U + 1) int64, from BOS to EOS.
        moments: for each parameter's name Adam's two running means; {} before the first step. Left
            unchanged.
        step: number of this step, from 1.
        rate: the learning rate.
        smoothing: as for label_smoothing_loss.

    Returns:
        The loss before the step, and the new moments.
    """
    ### BEGIN SOLUTION
    tgt_in, tgt_out, _ = shift_targets(target)  # (B, U) each
    loss = label_smoothing_loss(model(source, tgt_in), tgt_out, smoothing)  # scalar
    model.zero_grad()
    loss.backward()
    updated = dict(moments)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.grad is None:
                continue
            if name not in moments:
                updated[name] = (torch.zeros_like(parameter), torch.zeros_like(parameter))
            new, *means = adam_step(parameter, parameter.grad, *updated[name], step, rate)
            parameter.copy_(new)
            updated[name] = tuple(means)
    return loss.item(), updated
    ### END SOLUTION


# %% check="train_step" tags=["active-ipynb"]
# check("train_step")


# %% tags=["instructor"]
def average_states(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several states of one model (checkpoint averaging, Vaswani et al. 2017, 6.1).

    Args:
        states: at least one result of ``model.state_dict()``, all with the same names and shapes.

    Returns:
        A state to load: for each name the mean of all.

    Raises:
        ValueError: if there are no states.
    """
    if not states:
        raise ValueError("there are no states to average; give at least one")
    return {name: torch.stack([state[name] for state in states]).mean(dim=0) for name in states[0]}


# %% [markdown]
# ## Decoding
#
# ### Exercise 24: Greedy decoding
#
# From here on there is no target to read. Write `greedy_decode(model, source, max_length)`: for a
# whole batch, at each step the most probable token, which is then appended to what the decoder
# reads.
#
# * `model` is any module with `encode`, `decode` and `generator` (see the top of the notebook);
#   assume nothing else about it.
# * `source` `(B, S)` `torch.int64`, padded with `PAD`. It is encoded **once**, and its mask is
#   `pad_mask(source)`, for the encoder and for the decoder.
# * The decoder reads `BOS` first, and then all that the row has written so far, with
#   `subsequent_mask` of that length. (Where nothing is padding, `make_std_mask` is the same.)
# * A row that has produced `EOS` is finished; it gets `PAD` from then on. `EOS` itself belongs to
#   the result, `BOS` doesn't.
# * Decoding stops when **every** row has finished, as soon as `EOS` is produced and without reading
#   it in again, or after `max_length` tokens. A row without `EOS` by then stays as it is.
# * The result is `(B, n)` `torch.int64`; `n` is the length of the longest row, so the last column
#   is never padding alone.
# * `ValueError` if `max_length` is smaller than 1.
#
# (Decoding needs neither gradients nor dropout. Where you use it for real, call `model.eval()`
# before and wrap the call in `torch.no_grad()`.)
#
# *Example.* If the first row becomes `7, EOS` and the second `5, 6, 8, EOS`, the result is
# $\begin{pmatrix}7&2&0&0\\5&6&8&2\end{pmatrix}$.
#
# Book: section *greedy decoding* (`trf-greedy`).
#
# <details><summary>Hint 1</summary>
#
# Keep what the decoder reads as one tensor `(B, t)` that begins with a column of `BOS` and grows by
# a column in each step; the result is all of it but that column.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Only the last place of `decode`'s result is about the next token: `hidden[:, -1]`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Keep a bool tensor `finished` `(B,)`. All rows go through the model at every step, the finished
# ones too; write `PAD` where a row was finished **before** this step, and only then update
# `finished`.
#
# </details>


# %% exercise="greedy_decode" points=4 section="trf-greedy"
def greedy_decode(model: nn.Module, source: Tensor, max_length: int) -> Tensor:
    """Produce for every source the token that looks best at each step.

    Args:
        model: anything with ``encode``, ``decode`` and ``generator``.
        source: (B, S) int64, padded with PAD.
        max_length: the most tokens a row may get, at least 1.

    Returns:
        (B, n) int64 without BOS, with EOS; PAD after a row's EOS; n is the length of the longest
        row.

    Raises:
        ValueError: if max_length < 1.
    """
    ### BEGIN SOLUTION
    if max_length < 1:
        raise ValueError(f"max_length must be at least 1, but is {max_length}")
    src_mask = pad_mask(source)  # (B, 1, S)
    memory = model.encode(source, src_mask)  # (B, S, D)
    target = torch.full_like(source[:, :1], BOS)  # (B, 1)
    finished = torch.zeros_like(source[:, 0], dtype=torch.bool)  # (B,)
    while target.shape[1] <= max_length and not finished.all():
        tgt_mask = subsequent_mask(target.shape[1]).to(target.device)  # (1, t, t)
        hidden = model.decode(memory, src_mask, target, tgt_mask)  # (B, t, D)
        log_probs = model.generator(hidden[:, -1])  # (B, V)
        token = log_probs.argmax(dim=-1).masked_fill(finished, PAD)  # (B,)
        target = torch.cat([target, token.unsqueeze(1)], dim=1)  # (B, t + 1)
        finished = finished | (token == EOS)  # (B,)
    return target[:, 1:]  # (B, n)
    ### END SOLUTION


# %% check="greedy_decode" tags=["active-ipynb"]
# check("greedy_decode")

# %% [markdown]
# ### Exercise 25: Beam search
#
# Write `beam_search(model, source, beam_size, max_length, alpha=0.6)`, as in the chapter on
# sequence-to-sequence models, but for models with `encode`, `decode` and `generator`, and with the
# length penalty that the paper takes from Wu et al. (2016).
#
# 1. One hypothesis is *live* at first, the empty one; its log-probability is 0, and the decoder
#    reads `BOS`.
# 2. In each step every live hypothesis is extended by every token of the vocabulary, and the
#    log-probability of the extension is that of the hypothesis plus that of the token.
# 3. Of **all** extensions together, the $k$ with the largest log-probability survive. Those of
#    probability 0 never do.
# 4. Survivors that end with `EOS` are *finished*: they are put aside, and the beam becomes narrower
#    by as many. So $k$ is `beam_size` at first, and `beam_size` minus the number of finished
#    hypotheses later.
# 5. It ends when nothing is live, or after `max_length` tokens. What is live then joins the
#    finished ones as it is, without `EOS`.
#
# Only the **final order** is corrected for length:
#
# $$\text{score}(y) = \frac{\log P(y \mid x)}{\bigl((5 + |y|)/6\bigr)^{\alpha}},\qquad
# |y| = \text{number of ids, EOS counted}$$
#
# * `model` as in exercise 24; `source` `(1, S)`, one sentence, encoded once. Masks as in exercise
#   24. `decode` gets a memory and a source mask with as many rows as `tgt` has.
# * Returns a list of at most `beam_size` pairs `(ids, score)`, best score first: `ids` a `list` of
#   `int` without `BOS`, `score` a `float`. Equal scores may come in any order.
# * `ValueError` if `beam_size` or `max_length` is smaller than 1, if `alpha` is negative, or if the
#   batch is not 1.
#
# *Example.* Tokens 4 and 5 begin a target with probability 0.6 and 0.4. After 4 comes `EOS` with
# 0.5, or 6 or 7 with 0.25 each; after 5 comes `EOS` with 0.95 or 6 with 0.05. For `max_length=2`
# and `alpha=0`, `beam_size=1` gives `[([4, 2], -1.204)]`, the greedy path, and `beam_size=2` gives
# `[([5, 2], -0.968), ([4, 2], -1.204)]`. With `alpha=0.6` both scores are divided by
# $(7/6)^{0.6} \approx 1.097$.
#
# Book: section *beam search* (`trf-beam`).
#
# <details><summary>Hint 1</summary>
#
# Let the live hypotheses be the rows of one batch `(K, t)`. Add their log-probabilities as a column
# to the generator's `(K, V)`, and you have all extensions in one tensor.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `flatten().topk(k)` finds the best of all. From a place in the flat tensor, `divmod(place, V)`
# gives row and token. `topk` complains if `k` is larger than the tensor.
#
# </details>
# <details><summary>Hint 3</summary>
#
# All hypotheses read the same source: `expand` repeats the one row of memory and mask without
# copying it. There is no state to reorder, because `decode` reads the whole target every time.
#
# </details>
# <details><summary>Hint 4</summary>
#
# To test yourself: with `beam_size=1` you get what `greedy_decode` gives. With a beam so wide that
# nothing is ever dropped and `alpha=0`, the first result that ends with `EOS` is the most probable
# of all sequences that end within `max_length` tokens.
#
# </details>


# %% exercise="beam_search" points=5 section="trf-beam"
def beam_search(
    model: nn.Module, source: Tensor, beam_size: int, max_length: int, alpha: float = 0.6
) -> list[tuple[list[int], float]]:
    """Keep the beam_size best beginnings at each step (length penalty: Wu et al. 2016, eq. 14).

    Args:
        model: anything with ``encode``, ``decode`` and ``generator``; probabilities may be 0.
        source: (1, S) int64.
        beam_size: how many hypotheses are kept, finished ones counted; at least 1.
        max_length: the most tokens of a hypothesis, EOS counted; at least 1.
        alpha: how strongly the scores are corrected for length; at least 0.

    Returns:
        At most beam_size pairs (ids, score), best score first, with score = log-probability /
        ((5 + len(ids)) / 6) ** alpha. The ids of a finished hypothesis include EOS; those that were
        still live after max_length tokens join as they are.

    Raises:
        ValueError: if beam_size < 1, max_length < 1, alpha < 0, or the batch is not 1.
    """
    ### BEGIN SOLUTION
    if len(source) != 1:
        raise ValueError(f"search takes one source at a time, but source holds {len(source)}")
    for name, value, least in (
        ("beam_size", beam_size, 1),
        ("max_length", max_length, 1),
        ("alpha", alpha, 0),
    ):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, but is {value}")
    src_mask = pad_mask(source)  # (1, 1, S)
    memory = model.encode(source, src_mask)  # (1, S, D)
    # The K live hypotheses are the rows of one batch; all of them read the same source.
    live: list[tuple[list[int], float]] = [([], 0.0)]
    finished: list[tuple[list[int], float]] = []
    while live and len(live[0][0]) < max_length:
        target = source.new_tensor([[BOS, *ids] for ids, _ in live])  # (K, t)
        tgt_mask = subsequent_mask(target.shape[1]).to(target.device)  # (1, t, t)
        hidden = model.decode(
            memory.expand(len(live), -1, -1),  # (K, S, D)
            src_mask.expand(len(live), -1, -1),  # (K, 1, S)
            target,
            tgt_mask,
        )  # (K, t, D)
        log_probs = model.generator(hidden[:, -1])  # (K, V)
        so_far = log_probs.new_tensor([total for _, total in live])  # (K,)
        totals = so_far.unsqueeze(1) + log_probs  # (K, V)
        width = min(beam_size - len(finished), totals.numel())
        best, places = totals.flatten().topk(width)
        extended = []
        for total, place in zip(best.tolist(), places.tolist(), strict=True):
            if total == -math.inf:
                continue
            row, token = divmod(place, totals.shape[1])
            hypothesis = ([*live[row][0], token], total)
            (finished if token == EOS else extended).append(hypothesis)
        live = extended
    scored = [(ids, total / ((5 + len(ids)) / 6) ** alpha) for ids, total in finished + live]
    return sorted(scored, key=lambda pair: pair[1], reverse=True)
    ### END SOLUTION


# %% check="beam_search" tags=["active-ipynb"]
# check("beam_search")

# %% [markdown]
# ### Exercise 26: The start of a cache
#
# `greedy_decode` computes everything anew at each step, although earlier places never change: the
# mask keeps later tokens from them. So keys and values can be kept. Write
# `start_cache(model, source)`, which prepares what is known before the first token.
#
# * `model` is an `EncoderDecoder` with `N` layers (in the decoder); `source` `(B, S)`
#   `torch.int64`, padded with `PAD`.
# * The result is a `dict` with five entries. The lists have one tensor for each layer of the
#   decoder, in their order:
#
# | key | value |
# |---|---|
# | `"src_mask"` | `pad_mask(source)`, `(B, 1, S)` |
# | `"memory_keys"` | list of `(B, H, S, D/H)`: the keys of each layer's `src_attn` |
# | `"memory_values"` | list of `(B, H, S, D/H)`: its values |
# | `"keys"` | list of `(B, H, 0, D/H)`: no keys yet for each layer's `self_attn` |
# | `"values"` | list of `(B, H, 0, D/H)`: no values yet |
#
# * The source is encoded once, with its mask, and each layer projects the memory once, by
#   `src_attn.project`.
#
# *Example.* For $N = 2$, $H = 2$, $D = 8$ and a source of 3 rows and 5 columns, `"memory_keys"`
# holds two tensors `(3, 2, 5, 4)`, and `"keys"` holds two tensors `(3, 2, 0, 4)`.
#
# Book: section *cache* (`trf-cache`).
#
# <details><summary>Hint 1</summary>
#
# The layers are `model.decoder.layers`; each of them has projections of its own.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A tensor may have an axis of length 0. A slice `[:, :, :0]` has one, and it keeps type and device.
#
# </details>


# %% exercise="start_cache" points=2 section="trf-cache"
def start_cache(model: EncoderDecoder, source: Tensor) -> dict[str, Any]:
    """Encode the source, and project it once for every layer of the decoder.

    Args:
        model: an EncoderDecoder with N layers.
        source: (B, S) int64, padded with PAD.

    Returns:
        "src_mask": (B, 1, S) bool; "memory_keys" and "memory_values": lists of N tensors
        (B, H, S, D/H), what the ``src_attn`` of each layer makes of the memory; "keys" and
        "values": lists of N empty tensors (B, H, 0, D/H).
    """
    ### BEGIN SOLUTION
    src_mask = pad_mask(source)  # (B, 1, S)
    memory = model.encode(source, src_mask)  # (B, S, D)
    pairs = [layer.src_attn.project(memory, memory) for layer in model.decoder.layers]
    return {
        "src_mask": src_mask,
        "memory_keys": [keys for keys, _ in pairs],  # N x (B, H, S, D/H)
        "memory_values": [values for _, values in pairs],  # N x (B, H, S, D/H)
        "keys": [keys[:, :, :0] for keys, _ in pairs],  # N x (B, H, 0, D/H)
        "values": [values[:, :, :0] for _, values in pairs],  # N x (B, H, 0, D/H)
    }
    ### END SOLUTION


# %% check="start_cache" tags=["active-ipynb"]
# check("start_cache")

# %% [markdown]
# ### Exercise 27: A step with a cache
#
# Write `decode_step(model, token, cache)`: feed one more token, and let only its position run
# through the layers. The rest of the target is in the cache.
#
# * `model` is an `EncoderDecoder`, post-norm or pre-norm, in evaluation mode; `token` `(B,)`
#   `torch.int64` is the next token of each row, `BOS` at first; `cache` comes from `start_cache` or
#   from the step before.
# * The token's position is the number of tokens fed before, which is the length of the cached keys.
# * In each layer, the self-attention's keys and values of the new token are appended to those in
#   the cache, and the new token attends to all of them, itself included. The attention to the
#   source uses the cached keys and values of the memory, with the source's mask.
# * Returns `(log_probs, cache)`: `(B, V)` about the token after this one, and a **new** cache, in
#   which `"keys"` and `"values"` are one position longer. The given cache is not changed, neither
#   the `dict` nor its lists nor its tensors: one may go on from it twice.
# * The result equals the last place of the uncached model, `decode` with `subsequent_mask` and the
#   generator, up to rounding.
#
# *Example.* Feed `1`, then `5`, then `6`: the three results are the three places of
# `model(source, torch.tensor([[1, 5, 6]]))`.
#
# Book: section *cache* (`trf-cache`).
#
# <details><summary>Hint 1</summary>
#
# `position(x, start=...)` adds the code of a later position. An axis of length 1 makes `(B, 1, D)`
# of the token's vector.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A connection takes any function of one argument. So give each layer's connections functions of
# your own: one that projects what it gets, appends and attends, one that attends to the cached
# memory, and the feed-forward network. Then norm and shortcut come in the right order by
# themselves, in both variants.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `torch.cat([old, new], dim=...)` makes a new tensor, along the axis of positions. The new token
# may see all that is there, so the self-attention needs no mask.
#
# </details>
# <details><summary>Hint 4</summary>
#
# With pre-norm the decoder has a final norm, which your loop over the layers doesn't call.
#
# </details>


# %% exercise="decode_step" points=4 section="trf-cache"
def decode_step(
    model: EncoderDecoder, token: Tensor, cache: dict[str, Any]
) -> tuple[Tensor, dict[str, Any]]:
    """Feed one more token; only its position runs through the layers.

    Args:
        model: an EncoderDecoder with N layers, in evaluation mode.
        token: (B,) int64, the token at the next position; BOS at first.
        cache: from start_cache or from the step before; left unchanged.

    Returns:
        The log-probabilities (B, V) of the token after it, as the last position of the uncached
        model has them, and the new cache: "keys" and "values" are one position longer.
    """
    ### BEGIN SOLUTION
    position = cache["keys"][0].shape[2]  # as many tokens were fed before
    x = model.position(model.tgt_embed(token.unsqueeze(1)), start=position)  # (B, 1, D)
    keys, values = [], []
    for n, layer in enumerate(model.decoder.layers):

        def attend_to_target(x: Tensor, n: int = n, layer: nn.Module = layer) -> Tensor:
            new_keys, new_values = layer.self_attn.project(x, x)  # (B, H, 1, D/H) each
            keys.append(torch.cat([cache["keys"][n], new_keys], dim=2))  # (B, H, t, D/H)
            values.append(torch.cat([cache["values"][n], new_values], dim=2))  # (B, H, t, D/H)
            return layer.self_attn.attend(x, keys[n], values[n])  # (B, 1, D)

        def attend_to_source(x: Tensor, n: int = n, layer: nn.Module = layer) -> Tensor:
            memory = cache["memory_keys"][n], cache["memory_values"][n]  # (B, H, S, D/H) each
            return layer.src_attn.attend(x, *memory, cache["src_mask"])  # (B, 1, D)

        x = layer.sublayer[0](x, attend_to_target)  # (B, 1, D)
        x = layer.sublayer[1](x, attend_to_source)  # (B, 1, D)
        x = layer.sublayer[2](x, layer.feed_forward)  # (B, 1, D)
    if model.decoder.norm is not None:
        x = model.decoder.norm(x)  # (B, 1, D)
    return model.generator(x[:, 0]), {**cache, "keys": keys, "values": values}  # (B, V)
    ### END SOLUTION


# %% check="decode_step" tags=["active-ipynb"]
# check("decode_step")


# %% tags=["instructor"]
def cached_greedy_decode(model: EncoderDecoder, source: Tensor, max_length: int) -> Tensor:
    """The result of ``greedy_decode(model, source, max_length)`` by start_cache and decode_step.

    Args:
        model: an EncoderDecoder.
        source: (B, S) int64.
        max_length: as for greedy_decode.

    Returns:
        (B, n) int64, the same ids.

    Raises:
        ValueError: if max_length < 1.
    """
    if max_length < 1:
        raise ValueError(f"max_length must be at least 1, but is {max_length}")
    cache = start_cache(model, source)
    token = torch.full_like(source[:, 0], BOS)  # (B,)
    finished = torch.zeros_like(token, dtype=torch.bool)  # (B,)
    tokens: list[Tensor] = []
    while len(tokens) < max_length and not finished.all():
        log_probs, cache = decode_step(model, token, cache)  # (B, V)
        token = log_probs.argmax(dim=-1).masked_fill(finished, PAD)  # (B,)
        tokens.append(token)
        finished = finished | (token == EOS)  # (B,)
    return torch.stack(tokens, dim=1)  # (B, n)
