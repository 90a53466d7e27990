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
# # GPT by hand
#
# In this notebook you build GPT: the model of Radford et al. (2018) and the changes that GPT-2
# (Radford et al., 2019) and GPT-3 (Brown et al., 2020) made to it. You write its masks, its blocks
# in both orders of norm, its loss, its optimiser and its training; you sample from it in several
# ways and with a cache; you fine-tune it on labelled texts, and you ask it with examples in the
# prompt. There are 33 exercises to code and two questions to answer in words.
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
# | `T` | length of the input |
# | `P` | how many places stand before it, in a cache |
# | `C` | context: the longest input that a model can read |
# | `D` | width of the model; the feed-forward network is $4D$ wide inside |
# | `H` | number of heads; each is $D/H$ wide |
# | `N` | number of blocks |
# | `V` | size of the vocabulary |
# | `L` | number of labels |
#
# * **Ids and labels** are `torch.int64`. Five ids are *special*: `PAD = 0` fills rows up,
#   `START = 1` begins an input of fine-tuning, `DELIMITER = 2` stands between two pieces of it,
#   `EXTRACT = 3` ends it, and `END = 4` closes a document or a response. All ids from `SPECIAL = 5`
#   on are *ordinary*.
# * **Padding** stands on the right, and there is no mask for it: in a causal model no real token
#   sees what stands behind it. What a model says at padding is left out of the loss by a mask over
#   *targets*, a `torch.bool` tensor `(B, T)`; `True` means *this token counts as a target*, and
#   `None` means that all count.
# * **Logits** are scores before any softmax. Those at place $t$ are about the token at place $t+1$.
# * **Norms** are `nn.LayerNorm` with its own `eps`, `1e-5`.
# * **Dropout** acts only in training mode (`model.train()`), never in evaluation mode
#   (`model.eval()`).
# * You have built layer normalisation, scaled dot-product attention, cross-entropy and Adam in
#   earlier chapters. So you may use `nn.LayerNorm`, `F.scaled_dot_product_attention`,
#   `F.cross_entropy`, `nn.Dropout`, `torch.optim.AdamW`, `torch.topk`, `torch.sort` and
#   `torch.multinomial` wherever an exercise doesn't forbid it.
# * **Chance** comes from PyTorch's global generator, unless an exercise has a parameter `seed` or
#   `generator`. The checks judge it by counting.
# * **Bad input is refused** with a `ValueError` and one clear sentence. Each exercise lists what it
#   must refuse; nothing else needs a check.
# * Results keep the floating-point type of the module's parameters (`float32` or `float64`), and
#   they stay on the device of the input.
# * No function changes its inputs in place (but `init_weights` and `train` change the model: that
#   is what they are for).
# * Modules are `nn.Module`s and have exactly the named parameters and submodules, because weights
#   are loaded into them by name. Parts without parameters, such as `nn.Dropout`, you may add under
#   any name. How you initialise a module is up to you, unless the exercise says how.
#
# One of the code cells below hands you, besides the constants, `TableModel(table, context=1024)`: a
# "model" without a network. Its logits after a token are a row of a table, so you know them
# beforehand. It is called like your GPT, and it is good for trying `generate` and `answer_scores`.

# %%
"""GPT: causal attention, pre-training, sampling, a cache, fine-tuning and prompting."""

# The options of a cell must stand on one line, however long it gets.
# ruff: noqa: E501

# %%
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# %% tags=["instructor"]
# isort: split
import json
from pathlib import Path
from typing import Any

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("gpt")

# %%
PAD, START, DELIMITER, EXTRACT, END = 0, 1, 2, 3, 4
SPECIAL = 5  # ids below it are special


class TableModel(nn.Module):
    """A model without a network: the logits of the next token stand in a table.

    Which row is read depends on the token before, and, if the table has three axes, on the place t
    (from 0) where that token stands: ``table[previous]`` or ``table[t, previous]``. Places beyond
    the table use its last one. ``context`` is the longest input.
    """

    def __init__(self, table: Tensor, context: int = 1024) -> None:
        """Keep ``table``: (V, V), previous token and next token; or (L, V, V), place first."""
        super().__init__()
        self.register_buffer("table", table)
        self.context = context

    def forward(self, ids: Tensor) -> Tensor:
        """ids (B, T) -> the logits (B, T, V) of the token after each of them."""
        size = ids.shape[1]
        if size > self.context:
            raise ValueError(
                f"this table reads at most {self.context} tokens, and these are {size}"
            )
        if self.table.dim() == 2:
            return self.table[ids]  # (B, T, V)
        rows = torch.arange(size, device=ids.device).clamp(max=len(self.table) - 1)  # (T,)
        return self.table[rows, ids]  # (B, T, V)


# %% [markdown]
# ## Masks
#
# ### Exercise 1: Who may look where
#
# A language model predicts each token from those before it. So a place may look at itself and to
# its left, never to its right. Write `causal_mask(length, past=0)`:
#
# $$\text{mask}_{i,j} = \begin{cases}\text{True} & \text{if } j \le P + i\\
# \text{False} & \text{otherwise}\end{cases}$$
#
# * `length` ($T$) places look. `past` ($P$) places stand before them, which may be looked at from
#   everywhere but don't look themselves. With a cache, in exercise 24, they will be the
#   tokens that were read earlier.
# * The result is a `torch.bool` tensor `(T, P + T)`; `True` means *may look*. Row $i$ is the place
#   $P + i$.
# * A place sees **itself**: the token that stands there is known. What it must not see is its
#   target, and that is the next token.
# * `ValueError` if `length` is smaller than 1 or `past` is negative.
#
# *Example.* `causal_mask(3)` is $\begin{pmatrix}1&0&0\\1&1&0\\1&1&1\end{pmatrix}$, with 1 for
# `True`, and `causal_mask(2, past=1)` is $\begin{pmatrix}1&1&0\\1&1&1\end{pmatrix}$.
#
# Book: section *mask* (`gpt-mask`).
#
# <details><summary>Hint 1</summary>
#
# Write the numbers of the places that look into a column, and those of the places that are looked
# at into a row. A comparison of the two makes the table.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.arange(a, b)` counts from $a$ to $b - 1$, and `unsqueeze(1)` makes a column of it. The
# places that look begin at $P$.
#
# </details>


# %% exercise="causal_mask" points=1 section="gpt-mask"
def causal_mask(length: int, past: int = 0) -> Tensor:
    """Which places may be looked at from where (Vaswani et al. 2017, section 3.2.3).

    Args:
        length: T, how many places look, at least 1.
        past: P, how many places stand before them, at least 0.

    Returns:
        (T, P + T) bool: row i is the place P + i; True at the columns 0 .. P + i, itself included.

    Raises:
        ValueError: if length < 1 or past < 0.
    """
    ### BEGIN SOLUTION
    if length < 1:
        raise ValueError(f"length must be at least 1, but is {length}")
    if past < 0:
        raise ValueError(f"past must be at least 0, but is {past}")
    rows = torch.arange(past, past + length).unsqueeze(1)  # (T, 1)
    columns = torch.arange(past + length)  # (P + T,)
    return columns <= rows  # (T, P + T)
    ### END SOLUTION


# %% check="causal_mask" tags=["active-ipynb"]
# check("causal_mask")

# %% [markdown]
# ### Exercise 2: A sliding window
#
# The paper on GPT writes $P(u_i \mid u_{i-k}, \dots, u_{i-1})$, as if every token were predicted
# from exactly $k$ tokens. In practice a text is cut into blocks, and the mask of exercise 1 gives
# each place all that stands before it **in its block**. To see the difference, write the mask of a
# strict window, `window_mask(length, window)`:
#
# * The result is a `torch.bool` tensor `(T, T)` with $T$ = `length`. Place $i$ sees itself and the
#   `window` $- 1$ places before it, as far as they exist, and nothing else.
# * `ValueError` if `length` or `window` is smaller than 1.
#
# *Example.* `window_mask(4, 2)` is
# $\begin{pmatrix}1&0&0&0\\1&1&0&0\\0&1&1&0\\0&0&1&1\end{pmatrix}$. With `window` $\ge T$ it is the
# causal mask.
#
# Book: section *window* (`gpt-window`).
#
# <details><summary>Hint 1</summary>
#
# How far does the column lie behind the row? It must not lie ahead, and not too far behind.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Two bool tensors of the same shape are joined by `&`. Mind the ends: with `window=1` only the
# diagonal is left.
#
# </details>


# %% exercise="window_mask" points=1 section="gpt-window"
def window_mask(length: int, window: int) -> Tensor:
    """A strict sliding window: every place sees a fixed number of places, itself the last.

    Args:
        length: T, at least 1.
        window: how many places are seen, itself included, at least 1.

    Returns:
        (T, T) bool: row i is True at the columns i - window + 1 .. i that exist.

    Raises:
        ValueError: if length < 1 or window < 1.
    """
    ### BEGIN SOLUTION
    for name, value in (("length", length), ("window", window)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, but is {value}")
    places = torch.arange(length)  # (T,)
    back = places.unsqueeze(1) - places  # (T, T), how far the column lies behind the row
    return (back >= 0) & (back < window)  # (T, T)
    ### END SOLUTION


# %% check="window_mask" tags=["active-ipynb"]
# check("window_mask")

# %% [markdown]
# ## Blocks
#
# ### Exercise 3: Causal self-attention
#
# Write `CausalSelfAttention(width, num_heads, dropout=0.0)`. One linear layer makes queries, keys
# and values at once:
#
# $$[Q\; K\; V] = x W^{\mathsf T} + b,\qquad
# \text{head}_h = \operatorname{softmax}\Bigl(\frac{Q_h K_h^{\mathsf T}}{\sqrt{D/H}} + M\Bigr) V_h,
# \qquad M_{ij} = \begin{cases}0 & j \le i\\ -\infty & j > i\end{cases}$$
#
# * Submodules: `qkv = nn.Linear(width, 3 * width)` and `out_proj = nn.Linear(width, width)`, both
#   with bias. Attribute: `num_heads`.
# * The $3D$ features of `qkv` are first all queries, then all keys, then all values. Within each of
#   the three, head $h$ (from 0) has the features $h\,D/H$ to $(h + 1)\,D/H - 1$.
# * `forward(x)`: `(B, T, D)`; the result is `(B, T, D)`: the heads side by side, through
#   `out_proj`.
# * Dropout acts twice, in training mode: on the weights after the softmax, and on the result.
# * `ValueError` (when the module is created) if `num_heads` does not divide `width`.
# * Not to be called: `nn.MultiheadAttention`, `nn.TransformerEncoderLayer`,
#   `nn.TransformerDecoderLayer` and the functions behind them.
#
# *Example.* One head of width 1, all queries are 0, so that all scores are equal, and values and
# result pass on unchanged: of $2, 4, 9$ it makes $2, 3, 5$, the mean of each beginning.
#
# Book: section *attention* (`gpt-attention`).
#
# <details><summary>Hint 1</summary>
#
# Cut the last axis into three equal parts first, and each part into heads afterwards. The other way
# round, every head would get a bit of queries, keys and values in turn.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `unflatten(-1, (H, -1))` cuts an axis into two, and `flatten(2)` joins the axes from 2 on. Between
# the two the axes of length `T` and `H` must change places, there and back.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Hide what lies to the right **before** the softmax, with $-\infty$, so that the weights of a row
# still add up to 1. `F.scaled_dot_product_attention` can do this too; its `dropout_p` doesn't know
# whether the module is training.
#
# </details>


# %% exercise="CausalSelfAttention" points=4 section="gpt-attention" forbids="MultiheadAttention multi_head_attention_forward TransformerEncoderLayer TransformerDecoderLayer"
class CausalSelfAttention(nn.Module):
    """Every token attends to itself and to those before it (Radford et al. 2018, section 3.1).

    Submodules: ``qkv`` = nn.Linear(width, 3 width), queries, keys and values in this order;
    ``out_proj`` = nn.Linear(width, width). Attribute: ``num_heads``.
    """

    def __init__(self, width: int, num_heads: int, dropout: float = 0.0) -> None:
        """Create both linear layers.

        Args:
            width: D.
            num_heads: H, a divisor of width.
            dropout: acts on the weights and on the result, in training mode.

        Raises:
            ValueError: if num_heads does not divide width.
        """
        super().__init__()
        ### BEGIN SOLUTION
        if num_heads < 1 or width % num_heads != 0:
            raise ValueError(f"a width of {width} can't be split into {num_heads} equal heads")
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out_proj = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """Attend to the places up to each one's own.

        Args:
            x: (B, T, D).

        Returns:
            (B, T, D).
        """
        ### BEGIN SOLUTION
        parts = self.qkv(x).chunk(3, dim=-1)  # 3 x (B, T, D)
        heads = [part.unflatten(-1, (self.num_heads, -1)) for part in parts]  # 3 x (B, T, H, D/H)
        queries, keys, values = (part.transpose(1, 2) for part in heads)  # (B, H, T, D/H) each
        scores = queries @ keys.transpose(2, 3) / math.sqrt(queries.shape[3])  # (B, H, T, T)
        visible = causal_mask(x.shape[1]).to(x.device)  # (T, T)
        scores = scores.masked_fill(~visible, -math.inf)  # (B, H, T, T)
        weights = self.dropout(torch.softmax(scores, dim=3))  # (B, H, T, T)
        mixed = (weights @ values).transpose(1, 2).flatten(2)  # (B, T, D)
        return self.dropout(self.out_proj(mixed))  # (B, T, D)
        ### END SOLUTION


# %% check="CausalSelfAttention" tags=["active-ipynb"]
# check("CausalSelfAttention")

# %% [markdown]
# ### Exercise 4: GELU as GPT has it
#
# GPT and BERT both use a smooth relative of the ReLU. GPT's code computes it by $\tanh$. Write
# `gelu(x)`:
#
# $$\operatorname{gelu}(x) = \frac x2\Bigl(1 + \tanh\Bigl(\sqrt{\tfrac2\pi}\,
# \bigl(x + 0.044715\, x^3\bigr)\Bigr)\Bigr)$$
#
# * `x` has any shape, and so has the result.
# * It is this form, **not** the exact one by `erf`, which differs in the fourth decimal place. The
#   weights of GPT-1 and GPT-2 were trained with this one.
# * Not to be called: `F.gelu`, `nn.GELU` and the functions behind them.
#
# *Example.* $1$ becomes $0.8412$ (the exact form: $0.8413$), $-1$ becomes $-0.1588$, and 0 stays 0.
#
# Book: section *block* (`gpt-block`).
#
# <details><summary>Hint 1</summary>
#
# `torch.tanh` works entry by entry, and `x**3` is the third power.
#
# </details>
# <details><summary>Hint 2</summary>
#
# $\sqrt{2/\pi}$ is a number, not a tensor: `math.sqrt` and `math.pi` keep the type of `x`.
#
# </details>


# %% exercise="gelu" points=1 section="gpt-block" forbids="gelu GELU"
def gelu(x: Tensor) -> Tensor:
    """The Gaussian error linear unit, by tanh (Hendrycks and Gimpel 2016, section 2).

    Args:
        x: any shape.

    Returns:
        The same shape: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), as GPT-1 and GPT-2
        have it.
    """
    ### BEGIN SOLUTION
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    ### END SOLUTION


# %% check="gelu" tags=["active-ipynb"]
# check("gelu")

# %% [markdown]
# ### Exercise 5: The feed-forward network
#
# Write `FeedForward(width, dropout=0.0)`, the second half of every block. It is applied to every
# place by itself:
#
# $$\operatorname{ff}(x) =
# \operatorname{dropout}\bigl(W_2 \operatorname{gelu}(W_1 x + b_1) + b_2\bigr)$$
#
# * Submodules: `w_1 = nn.Linear(width, 4 * width)` and `w_2 = nn.Linear(4 * width, width)`, both
#   with bias.
# * `forward(x)`: `(..., D)`; the result has the same shape. Use your `gelu`.
# * Dropout acts on the result, and nowhere inside.
#
# *Example.* $D = 1$, all weights of `w_1` are 1, all of `w_2` are $\tfrac14$, and the biases are 0:
# of 1 it makes $\operatorname{gelu}(1) \approx 0.8412$.
#
# Book: section *block* (`gpt-block`).
#
# <details><summary>Hint 1</summary>
#
# Three steps, and dropout as the fourth. A linear layer works on the last axis and leaves all
# others alone.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `nn.Dropout` is a module: make it once, in `__init__`, so that it learns of `train()` and
# `eval()`.
#
# </details>


# %% exercise="FeedForward" points=1 section="gpt-block"
class FeedForward(nn.Module):
    """Two linear layers with a GELU between them, four times as wide inside.

    Submodules: ``w_1`` = nn.Linear(width, 4 width), ``w_2`` = nn.Linear(4 width, width)
    (Radford et al. 2018, section 4.1).
    """

    def __init__(self, width: int, dropout: float = 0.0) -> None:
        """Create both linear layers.

        Args:
            width: D.
            dropout: acts on the result, in training mode.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.w_1 = nn.Linear(width, 4 * width)
        self.w_2 = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network to every place by itself.

        Args:
            x: (..., D).

        Returns:
            (..., D), dropout(w_2(gelu(w_1(x)))).
        """
        ### BEGIN SOLUTION
        inside = gelu(self.w_1(x))  # (..., 4 D)
        return self.dropout(self.w_2(inside))  # (..., D)
        ### END SOLUTION


# %% check="FeedForward" tags=["active-ipynb"]
# check("FeedForward")

# %% [markdown]
# ### Exercise 6: A block of GPT-1
#
# Write `PostNormBlock(width, num_heads, dropout=0.0)`. Each half is added to its input, and the
# norm stands **after** the sum, as in the Transformer:
#
# $$\begin{aligned}
# y &= \operatorname{norm}_1\bigl(x + \operatorname{attention}(x)\bigr)\\
# \text{block}(x) &= \operatorname{norm}_2\bigl(y + \operatorname{ff}(y)\bigr)
# \end{aligned}$$
#
# * Submodules: `attention`, your `CausalSelfAttention`; `norm_1 = nn.LayerNorm(width)`;
#   `feed_forward`, your `FeedForward`; `norm_2 = nn.LayerNorm(width)`.
# * `forward(x)`: `(B, T, D)`; the result is `(B, T, D)`.
# * `dropout` goes to both parts, which have it already: the block has none of its own.
# * A `ValueError` of the attention (a number of heads that doesn't divide) may come through as it
#   is.
# * Not to be called: `nn.TransformerEncoderLayer`, `nn.TransformerDecoderLayer`.
#
# *Example.* If `out_proj` and `w_2` are 0, only the norms are left: $(1, 3)$ becomes $(-1, 1)$.
#
# Book: section *block* (`gpt-block`).
#
# <details><summary>Hint 1</summary>
#
# There is no attention to a source here: of the three parts of a Transformer's decoder layer GPT
# keeps two.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The feed-forward network reads what the first norm made, and that is also what it is added to.
#
# </details>


# %% exercise="PostNormBlock" points=2 section="gpt-block" forbids="TransformerEncoderLayer TransformerDecoderLayer"
class PostNormBlock(nn.Module):
    """A block of GPT-1: the norm stands after each sum (Radford et al. 2018, section 4.1).

    Submodules: ``attention`` = CausalSelfAttention, ``norm_1`` = nn.LayerNorm(width),
    ``feed_forward`` = FeedForward, ``norm_2`` = nn.LayerNorm(width); eps is 1e-5.
    """

    def __init__(self, width: int, num_heads: int, dropout: float = 0.0) -> None:
        """Create the submodules.

        Args:
            width: D.
            num_heads: H, a divisor of width.
            dropout: of the attention and of the feed-forward network.

        Raises:
            ValueError: if num_heads does not divide width.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.attention = CausalSelfAttention(width, num_heads, dropout)
        self.norm_1 = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, dropout)
        self.norm_2 = nn.LayerNorm(width)
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then the feed-forward network; add and norm after each.

        Args:
            x: (B, T, D).

        Returns:
            (B, T, D).
        """
        ### BEGIN SOLUTION
        x = self.norm_1(x + self.attention(x))  # (B, T, D)
        return self.norm_2(x + self.feed_forward(x))  # (B, T, D)
        ### END SOLUTION


# %% check="PostNormBlock" tags=["active-ipynb"]
# check("PostNormBlock")

# %% [markdown]
# ### Exercise 7: A block of GPT-2
#
# GPT-2 moves the norms. Write `PreNormBlock(width, num_heads, dropout=0.0)`:
#
# $$\begin{aligned}
# y &= x + \operatorname{attention}\bigl(\operatorname{norm}_1(x)\bigr)\\
# \text{block}(x) &= y + \operatorname{ff}\bigl(\operatorname{norm}_2(y)\bigr)
# \end{aligned}$$
#
# * Submodules, shapes, dropout, what must not be called and the `ValueError` are those of exercise
#   6.
# * The norm stands **inside** the branch, before attention or network. On the way past them, from
#   `x` to the result, nothing is normalised.
#
# *Example.* If `out_proj` and `w_2` are 0, both branches add 0, and the block passes on its input:
# $(1, 3)$ stays $(1, 3)$.
#
# Book: section *block* (`gpt-block`).
#
# <details><summary>Hint 1</summary>
#
# Compare with exercise 6: the same four parts, called in another order.
#
# </details>
# <details><summary>Hint 2</summary>
#
# What is added to is the old $x$, not its norm.
#
# </details>


# %% exercise="PreNormBlock" points=2 section="gpt-block" forbids="TransformerEncoderLayer TransformerDecoderLayer"
class PreNormBlock(nn.Module):
    """A block of GPT-2: the norm stands inside each branch (Radford et al. 2019, section 2.3).

    Submodules: ``attention`` = CausalSelfAttention, ``norm_1`` = nn.LayerNorm(width),
    ``feed_forward`` = FeedForward, ``norm_2`` = nn.LayerNorm(width); eps is 1e-5.
    """

    def __init__(self, width: int, num_heads: int, dropout: float = 0.0) -> None:
        """Create the submodules.

        Args:
            width: D.
            num_heads: H, a divisor of width.
            dropout: of the attention and of the feed-forward network.

        Raises:
            ValueError: if num_heads does not divide width.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.attention = CausalSelfAttention(width, num_heads, dropout)
        self.norm_1 = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, dropout)
        self.norm_2 = nn.LayerNorm(width)
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then the feed-forward network, each of what its norm makes of x; add.

        Args:
            x: (B, T, D).

        Returns:
            (B, T, D), the sum, which nothing has normalised.
        """
        ### BEGIN SOLUTION
        x = x + self.attention(self.norm_1(x))  # (B, T, D)
        return x + self.feed_forward(self.norm_2(x))  # (B, T, D)
        ### END SOLUTION


# %% check="PreNormBlock" tags=["active-ipynb"]
# check("PreNormBlock")

# %% [markdown]
# ## The model
#
# ### Exercise 8: GPT
#
# Write `GPT(vocab_size, context, width, num_layers, num_heads, dropout=0.1, pre_norm=True)`. With
# ids $u$, the table $W_e$ of tokens and the table $W_p$ of positions:
#
# $$\begin{aligned}
# h_0 &= \operatorname{dropout}\bigl(W_e[u] + W_p[0 \dots T-1]\bigr)\\
# h_l &= \text{block}_l(h_{l-1}) \quad\text{for } l = 1, \dots, N\\
# \text{features} &= \text{final norm}(h_N),\qquad \text{logits} = \text{features}\; W_e^{\mathsf T}
# \end{aligned}$$
#
# * Submodules: `token = nn.Embedding(vocab_size, width)`; `position = nn.Embedding(context,
#   width)`; `blocks`, an `nn.ModuleList` of `num_layers` blocks, each with parameters of its own:
#   `PreNormBlock`s if `pre_norm`, else `PostNormBlock`s; `final_norm`, which is
#   `nn.LayerNorm(width)` if `pre_norm` and `nn.Identity()` otherwise. Attribute: `context`.
# * `features(ids)`: `(B, T)` ids; the result is `(B, T, D)`. `forward(ids)`: the logits `(B, T,
#   V)`.
# * The output matrix **is** the table of tokens: there is no further parameter, and no bias.
# * `dropout` goes to the embeddings and to all blocks.
# * `ValueError` (when it is called) if $T$ is larger than `context`; the message names both
#   numbers. One about the number of heads may come through as it is.
# * How you initialise is up to you; exercise 9 draws the weights as GPT does. (PyTorch
#   draws embeddings from $\mathcal N(0, 1)$. With a tied output such logits are large, and training
#   begins badly: draw the two tables smaller, say with a deviation of 0.02.)
#
# *Example.* `GPT(40, 12, 16, 2, 4)` has 7424 parameters. In evaluation mode, change the last token
# of a row: of all logits only those at the last place change.
#
# Book: section *model* (`gpt-model`).
#
# <details><summary>Hint 1</summary>
#
# `nn.ModuleList` takes a generator: one block is made for each of `range(num_layers)`. A list of
# one block repeated would share its parameters.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The input may be shorter than `context`. Ask the table of positions for the rows
# `torch.arange(T)` only, on the device of `ids`; `(T, D)` broadcasts over the batch.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Multiply by the transposed `weight` of the embedding. A linear layer would be a second matrix.
#
# </details>


# %% exercise="GPT" points=5 section="gpt-model"
class GPT(nn.Module):
    """A language model of causal blocks (Radford et al. 2018, 3.1; Radford et al. 2019, 2.3).

    Submodules: ``token`` = nn.Embedding(vocab_size, width), also the output matrix; ``position`` =
    nn.Embedding(context, width); ``blocks`` = nn.ModuleList of PreNormBlocks or PostNormBlocks;
    ``final_norm`` = nn.LayerNorm(width) with pre-norm, else nn.Identity(). Attribute: ``context``.
    """

    def __init__(
        self,
        vocab_size: int,
        context: int,
        width: int,
        num_layers: int,
        num_heads: int,
        dropout: float = 0.1,
        pre_norm: bool = True,
    ) -> None:
        """Create the submodules.

        Args:
            vocab_size: V.
            context: C, the longest input.
            width: D.
            num_layers: N.
            num_heads: H, a divisor of width.
            dropout: of the embeddings and of all blocks.
            pre_norm: PreNormBlocks and a final norm (GPT-2), or PostNormBlocks and none (GPT-1).

        Raises:
            ValueError: if num_heads does not divide width.
        """
        super().__init__()
        ### BEGIN SOLUTION
        block = PreNormBlock if pre_norm else PostNormBlock
        self.context = context
        self.token = nn.Embedding(vocab_size, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(block(width, num_heads, dropout) for _ in range(num_layers))
        self.final_norm = nn.LayerNorm(width) if pre_norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        for table in (self.token, self.position):  # so that the tied logits begin near 0
            nn.init.normal_(table.weight, std=0.02)
        ### END SOLUTION

    def features(self, ids: Tensor) -> Tensor:
        """The vectors of which the logits are made.

        Args:
            ids: (B, T) int64.

        Returns:
            (B, T, D): embeddings and positions, through all blocks and the final norm.

        Raises:
            ValueError: if T is larger than context; the message names both.
        """
        ### BEGIN SOLUTION
        length = ids.shape[1]
        if length > self.context:
            raise ValueError(f"{length} tokens are too many for a context of {self.context}")
        places = torch.arange(length, device=ids.device)  # (T,)
        x = self.dropout(self.token(ids) + self.position(places))  # (B, T, D)
        for block in self.blocks:
            x = block(x)  # (B, T, D)
        return self.final_norm(x)  # (B, T, D)
        ### END SOLUTION

    def forward(self, ids: Tensor) -> Tensor:
        """Score every token as the next one, after every place.

        Args:
            ids: (B, T) int64.

        Returns:
            (B, T, V), the logits: features times the transposed table of tokens.

        Raises:
            ValueError: if T is larger than context.
        """
        ### BEGIN SOLUTION
        return self.features(ids) @ self.token.weight.T  # (B, T, V)
        ### END SOLUTION


# %% check="GPT" tags=["active-ipynb"]
# check("GPT")

# %% [markdown]
# ### Exercise 9: How the weights begin
#
# Write `init_weights(model)`: draw all parameters of a `GPT` anew, in place, and return the model.
#
# | parameters | begin as |
# |---|---|
# | weights of linear layers, both tables | $\mathcal N(0,\; 0.02^2)$ |
# | with pre-norm: `out_proj.weight` and `w_2.weight` | $\mathcal N\bigl(0,\; 0.02^2/(2N)\bigr)$ |
# | biases of linear layers and norms | 0 |
# | weights of norms | 1 |
#
# * $N$ is the number of blocks. The second row is GPT-2's: with pre-norm $2N$ branches are added
#   up, and each begins smaller by $\sqrt{2N}$, so that the sum doesn't grow with the depth. With
#   post-norm (GPT-1) these weights belong to the first row.
# * Whether the model is pre-norm shows in `final_norm`: it is an `nn.LayerNorm` then, and an
#   `nn.Identity` otherwise.
#
# *Example.* With 8 blocks, `out_proj.weight` has a deviation of $0.02 / \sqrt{16} = 0.005$ with
# pre-norm, and 0.02 with post-norm.
#
# Book: section *initialisation* (`gpt-init`).
#
# <details><summary>Hint 1</summary>
#
# `model.modules()` yields every module inside; `isinstance` tells linear layers, embeddings and
# norms apart. `nn.init.normal_(tensor, std=...)` draws into a parameter.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `std` is the deviation, the root of the variance in the table.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Draw everything with 0.02 first; then go through the blocks once more, if the model is pre-norm,
# and draw the two special weights again.
#
# </details>


# %% exercise="init_weights" points=3 section="gpt-init"
def init_weights(model: GPT) -> GPT:
    """Draw all weights anew, in place (Radford et al. 2018, section 4.1; 2019, section 2.3).

    Args:
        model: a GPT of N blocks.

    Returns:
        The same model. Weights of linear layers and both tables come from N(0, 0.02^2); with a
        final norm (GPT-2) ``out_proj.weight`` and ``w_2.weight`` from N(0, 0.02^2 / (2 N)). Biases
        are 0; norms begin with weight 1 and bias 0.
    """
    ### BEGIN SOLUTION
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
        if isinstance(module, (nn.Linear, nn.LayerNorm)):
            nn.init.zeros_(module.bias)
    if isinstance(model.final_norm, nn.LayerNorm):
        # 2 N branches add to the sum; so scaled, it stays as large as one of them would be.
        small = 0.02 / math.sqrt(2 * len(model.blocks))
        for block in model.blocks:
            nn.init.normal_(block.attention.out_proj.weight, std=small)
            nn.init.normal_(block.feed_forward.w_2.weight, std=small)
    return model
    ### END SOLUTION


# %% check="init_weights" tags=["active-ipynb"]
# check("init_weights")

# %% [markdown]
# ### Exercise 10: How large is it?
#
# Write `count_parameters(vocab_size, context, width, num_layers, pre_norm=True)`: how many numbers
# a `GPT` of this size learns.
#
# * The result is an `int`.
# * The table of tokens counts once, though it is used twice. A linear layer has a bias; a norm has
#   two vectors. With `pre_norm` there is a final norm.
# * The number of heads makes no difference, and there is no parameter for it.
#
# *Example.* `count_parameters(10, 6, 4, 1)` is 316: 64 in the tables, 244 in the block, 8 in the
# final norm. Without pre-norm it is 308. GPT-1, `(40478, 512, 768, 12, False)`, has 116,534,784.
#
# Book: section *parameters* (`gpt-parameters`).
#
# <details><summary>Hint 1</summary>
#
# Write down the shape of every parameter of exercises 3 to 8. A linear
# layer from $D$ to $F$ has $DF + F$ numbers.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A block has four linear layers, which together have $12 D^2$ weights, and two norms. Don't forget
# the four biases.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Or let PyTorch count: inside `with torch.device("meta"):` a model is made without any memory for
# its numbers, and `numel()` of its parameters still works.
#
# </details>


# %% exercise="count_parameters" points=2 section="gpt-parameters"
def count_parameters(
    vocab_size: int, context: int, width: int, num_layers: int, pre_norm: bool = True
) -> int:
    """How many numbers a GPT learns; the number of heads doesn't matter.

    Args:
        vocab_size: V.
        context: C.
        width: D.
        num_layers: N.
        pre_norm: whether there is a final norm.

    Returns:
        The number of parameters; the table of tokens, which is the output matrix too, counts once.
    """
    ### BEGIN SOLUTION
    norm = 2 * width  # weight and bias
    attention = (width + 1) * 3 * width + (width + 1) * width  # qkv, out_proj
    feed_forward = (width + 1) * 4 * width + (4 * width + 1) * width  # w_1, w_2
    block = attention + feed_forward + 2 * norm
    tables = (vocab_size + context) * width
    return tables + num_layers * block + (norm if pre_norm else 0)
    ### END SOLUTION


# %% check="count_parameters" tags=["active-ipynb"]
# check("count_parameters")

# %% [markdown]
# ### Exercise 11: A checkpoint's names
#
# A checkpoint is a table from names to tensors. Those of GPT-1 and GPT-2 on Hugging Face name the
# same numbers differently, and store some of them turned. Write `rename_parameters(state)`.
#
# | theirs | ours |
# |---|---|
# | `wte.weight` or `tokens_embed.weight` | `token.weight` |
# | `wpe.weight` or `positions_embed.weight` | `position.weight` |
# | `h.i.attn.c_attn.*` | `blocks.i.attention.qkv.*` |
# | `h.i.attn.c_proj.*` | `blocks.i.attention.out_proj.*` |
# | `h.i.mlp.c_fc.*` | `blocks.i.feed_forward.w_1.*` |
# | `h.i.mlp.c_proj.*` | `blocks.i.feed_forward.w_2.*` |
# | `h.i.ln_1.*` and `h.i.ln_2.*` | `blocks.i.norm_1.*` and `blocks.i.norm_2.*` |
# | `ln_f.*` | `final_norm.*` |
#
# * `state` is a `dict` from name to tensor, and so is the result. `*` is `weight` or `bias`; `i` is
#   the number of a block, which may have two digits.
# * All names may begin with `transformer.`; ours never do.
# * Their four `c_` layers keep the weight as `(in, out)`, an `nn.Linear` as `(out, in)`: these
#   **weights** are transposed, and the result is contiguous. Everything else is the **same**
#   tensor.
# * Left out: `lm_head.weight` (the tied table, which is there already), `h.i.attn.bias` and
#   `h.i.attn.masked_bias` (the mask, no parameters), `position_ids`.
# * `ValueError` for any other name; the message says which.
#
# *Example.* `transformer.h.11.mlp.c_fc.weight` `(768, 3072)` becomes
# `blocks.11.feed_forward.w_1.weight` `(3072, 768)`, and `h.0.attn.c_attn.bias` becomes
# `blocks.0.attention.qkv.bias`, the same tensor.
#
# Book: section *checkpoint* (`gpt-checkpoint`).
#
# <details><summary>Hint 1</summary>
#
# Take the prefix off first (`str.removeprefix`). Names of the first, second and last row of the
# table can be looked up whole, in a `dict`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A name of a block falls apart at its dots: `h`, the number, what it is, and `weight` or `bias`.
# `str.partition` cuts at the first dot, `str.rpartition` at the last.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `.T` is only another view of the same memory; `.contiguous()` copies it into the new order. A bias
# has one axis and is not turned. And `attn.bias` is a mask, while `attn.c_attn.bias` is a bias.
#
# </details>


# %% exercise="rename_parameters" points=3 section="gpt-checkpoint"
def rename_parameters(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Give the tensors of a Hugging Face GPT-1 or GPT-2 checkpoint our names and shapes.

    Args:
        state: name -> tensor; a name may begin with ``transformer.``.

    Returns:
        Our name -> tensor. The weights of ``c_attn``, ``c_proj`` and ``c_fc`` are transposed and
        contiguous, all others the same tensors. ``lm_head.weight``, the masks ``attn.bias`` and
        ``attn.masked_bias``, and ``position_ids`` are left out.

    Raises:
        ValueError: if a name is not one of these; the message says which.
    """
    ### BEGIN SOLUTION
    tables = {
        "wte.weight": "token.weight",
        "tokens_embed.weight": "token.weight",
        "wpe.weight": "position.weight",
        "positions_embed.weight": "position.weight",
        "ln_f.weight": "final_norm.weight",
        "ln_f.bias": "final_norm.bias",
    }
    parts = {
        "attn.c_attn": "attention.qkv",
        "attn.c_proj": "attention.out_proj",
        "mlp.c_fc": "feed_forward.w_1",
        "mlp.c_proj": "feed_forward.w_2",
        "ln_1": "norm_1",
        "ln_2": "norm_2",
    }
    renamed = {}
    for name, tensor in state.items():
        short = name.removeprefix("transformer.")
        if short in ("lm_head.weight", "position_ids"):
            continue
        if short in tables:
            renamed[tables[short]] = tensor
            continue
        first, _, rest = short.partition(".")
        number, _, rest = rest.partition(".")
        part, _, ending = rest.rpartition(".")
        in_block = first == "h" and number.isdecimal()
        if in_block and rest in ("attn.bias", "attn.masked_bias"):  # the mask, no parameter
            continue
        if not in_block or part not in parts or ending not in ("weight", "bias"):
            raise ValueError(f"{name} is no parameter of GPT-1 or GPT-2 that we know")
        if ".c_" in part and ending == "weight":
            tensor = tensor.T.contiguous()  # (in, out) -> (out, in)
        renamed[f"blocks.{number}.{parts[part]}.{ending}"] = tensor
    return renamed
    ### END SOLUTION


# %% check="rename_parameters" tags=["active-ipynb"]
# check("rename_parameters")

# %% [markdown]
# ## The objective
#
# ### Exercise 12: The likelihood of a text
#
# GPT is trained to make texts likely. Write `log_likelihood(logits, ids, mask=None)`: for each row
#
# $$L_1 = \sum_{\substack{t = 1 \dots T-1\\ \text{mask}_t}}
# \log P(u_t \mid u_0, \dots, u_{t-1}),\qquad
# P(\,\cdot \mid u_0, \dots, u_{t-1}) = \operatorname{softmax}(\text{logits}_{t-1})$$
#
# * `logits` `(B, T, V)` are what the model says after each token; `ids` `(B, T)` are the tokens.
#   **The token at $t$ is predicted by the logits at $t - 1$.** The first token is nobody's target,
#   and nobody is asked about the logits at the last place.
# * `mask` `(B, T)` bool belongs to the targets: the term of the token at $t$ counts if it is `True`
#   there. `None`: all count.
# * The result is `(B,)`, a sum for each row, never positive.
# * `ValueError` if $T$ is smaller than 2.
#
# *Example.* $V = 4$, $T = 3$ and all logits are 0: $2 \log \tfrac14 \approx -2.773$. With a mask
# that is `True` at the last token only it is $\log \tfrac14 \approx -1.386$.
#
# Book: section *loss* (`gpt-loss`).
#
# <details><summary>Hint 1</summary>
#
# `logits[:, :-1]` and `ids[:, 1:]` belong together: both have $T - 1$ places.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.log_softmax` over the last axis, then `gather` along it: the index must have as many axes
# as the table, so the targets need one more, of length 1.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The mask has $T$ columns, of which the first is never asked. A term that doesn't count is replaced
# by 0.
#
# </details>


# %% exercise="log_likelihood" points=2 section="gpt-loss"
def log_likelihood(logits: Tensor, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """The log-probability of each row, token after token (Radford et al. 2018, equation 1).

    Args:
        logits: (B, T, V); those at place t are for the token at t + 1.
        ids: (B, T) int64.
        mask: (B, T) bool, True at the targets that count; None: all count. The first token is
            nobody's target.

    Returns:
        (B,): the sum over t = 1 .. T - 1 with mask of log P(ids[:, t] | the tokens before it).

    Raises:
        ValueError: if T < 2.
    """
    ### BEGIN SOLUTION
    if ids.shape[1] < 2:
        raise ValueError("a row of fewer than two tokens has no target")
    targets = ids[:, 1:].unsqueeze(2)  # (B, T - 1, 1)
    log_probs = torch.log_softmax(logits[:, :-1], dim=2)  # (B, T - 1, V)
    terms = log_probs.gather(2, targets).squeeze(2)  # (B, T - 1)
    if mask is not None:
        terms = terms.masked_fill(~mask[:, 1:], 0.0)  # (B, T - 1)
    return terms.sum(dim=1)  # (B,)
    ### END SOLUTION


# %% check="log_likelihood" tags=["active-ipynb"]
# check("log_likelihood")

# %% [markdown]
# ### Exercise 13: The loss
#
# Write `language_model_loss(logits, ids, mask=None)`, what training makes small:
#
# $$\text{loss} = -\frac{1}{n} \sum_{b} \sum_{t\,:\,\text{mask}_{b,t}}
# \log P(u_{b,t} \mid u_{b,0}, \dots, u_{b,t-1})$$
#
# * The arguments are those of exercise 12. $n$ is the number of terms that count, in
#   the whole batch: the mean is over **targets**, not over rows.
# * The result is a scalar. If no target counts it is 0, and its gradient is finite.
# * $e^{\text{loss}}$ is the *perplexity*: a model that chooses evenly among $m$ tokens has $m$.
# * `ValueError` if $T$ is smaller than 2.
#
# *Example.* $V = 4$ and all logits are 0: the loss is $\log 4 \approx 1.386$, whatever $T$ and the
# mask are, and the perplexity is 4.
#
# Book: section *loss* (`gpt-loss`).
#
# <details><summary>Hint 1</summary>
#
# The sum is the one you have: add the rows up.
#
# </details>
# <details><summary>Hint 2</summary>
#
# How many targets are there? Without a mask $B\,(T - 1)$; with one, count `True`s, but not in the
# first column. `clamp(min=1)` keeps a division from being $0/0$.
#
# </details>


# %% exercise="language_model_loss" points=2 section="gpt-loss"
def language_model_loss(logits: Tensor, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """The mean of -log P of the targets that count, over the whole batch.

    Args:
        logits: (B, T, V); those at place t are for the token at t + 1.
        ids: (B, T) int64.
        mask: (B, T) bool, True at the targets that count; None: all count.

    Returns:
        A scalar; 0 if no target counts.

    Raises:
        ValueError: if T < 2.
    """
    ### BEGIN SOLUTION
    total = log_likelihood(logits, ids, mask).sum()  # scalar
    count = ids[:, 1:].numel() if mask is None else mask[:, 1:].sum().clamp(min=1)
    return -total / count  # scalar
    ### END SOLUTION


# %% check="language_model_loss" tags=["active-ipynb"]
# check("language_model_loss")

# %% [markdown]
# ### Question: Why does one causal pass train all places?
#
# A batch of one block with $T$ tokens gives $T - 1$ predictions, and all of them come from a single
# pass. Why is every one of them an honest prediction, made from its own past only? What would have
# to be computed instead, and how often, if there were no mask? What exactly would break if the
# targets were not shifted by one place, with the mask as it is? And a masked language model such as
# BERT gets far fewer predictions from the same pass: why?
#
# Book: section *loss* (`gpt-loss`). 3 points, marked by a person.
#

# %% [markdown] question="why_train_all_places" points=3 section="gpt-loss" title="Why does one causal pass train all places?"
# **Your answer:**
#
# ### BEGIN SOLUTION
# *Why all are honest.* The mask lets place $i$ attend to the places $j \le i$ only. Norms, the
# feed-forward network and the output matrix work on each place by itself, so attention is the only
# way by which tokens meet. By induction over the blocks, the vector at place $i$ is a function of
# the tokens $0 \dots i$ in every block, and so are its logits. They are the same numbers that a
# pass over the beginning $u_0 \dots u_i$ alone would give. So one pass over $T$ tokens holds the
# passes over all its beginnings, and the loss adds up $T - 1$ predictions, none of which has seen
# its target. The chain rule makes their product the probability of the whole block.
#
# *Without the mask* every place would see the whole block, its own target included. To predict each
# token from its past alone, one would have to run the model on each beginning by itself: $T - 1$
# passes in place of one, for the same number of predictions. (And keys and values of earlier places
# would change with each new token, so a cache would be impossible too.)
#
# *Without the shift.* Place $i$ sees itself: the mask has $j \le i$, not $j < i$. If its target
# were the token at $i$, the answer would stand in the input. The loss falls towards 0 by copying
# (with a tied output matrix the model hardly has to learn anything for it), and no prediction is
# learned: in generation the model repeats its last token. A smaller mask, $j < i$, in place of the
# shift doesn't help: the first place would see nothing, and through the residual connection the
# token at $i$ would still reach its own logits.
#
# *Compared with BERT.* A masked language model sees both sides. A token that is to be predicted
# must therefore be hidden in the input, and hidden tokens are missing as context for all others; so
# only about 15 percent are hidden, and only these are predicted. The causal model hides the target
# by order, not by removing it: every token is context for those behind it and target of the one
# before it at the same time.
#
# *Marking:* 1 point for the mask as the reason (each place depends on its past only, in all blocks)
# **and** what it saves, $T - 1$ passes; 1 for the missing shift: the target stands in the input,
# since $j \le i$ includes $i$, and copying is learned; 1 for the comparison with BERT (tokens must
# be hidden there, so only a part can be targets).
# ### END SOLUTION

# %% [markdown]
# ## Training
#
# ### Exercise 14: Blocks of a long text
#
# The training text is one long row of tokens. Write `sample_blocks(stream, length, batch_size)`,
# which cuts a batch out of it.
#
# * `stream` `(M,)` `torch.int64`. Returns `(inputs, targets)`, both `(B, T)`, with $T$ = `length`
#   and $B$ = `batch_size`.
# * Each row of `inputs` is a **contiguous** block of the stream, and the row of `targets` is the
#   same block one token further. So the shift is made here, once for all.
# * The start of each row is drawn evenly from **all** places at which a block and its last target
#   fit, independently of the other rows, from PyTorch's global generator.
# * `ValueError` if `length` or `batch_size` is smaller than 1, or if $M$ is smaller than
#   `length + 1`.
#
# *Example.* In the stream $10, 11, 12, 13$ there are two blocks of length 2: $10, 11$ with the
# targets $11, 12$, and $11, 12$ with the targets $12, 13$.
#
# Book: section *batches* (`gpt-batches`).
#
# <details><summary>Hint 1</summary>
#
# The last block begins at $M - T - 1$, so there are $M - T$ starts.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.randint(n, shape)` draws from 0 to $n - 1$; the upper end is not included.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A column of starts plus a row of steps is a table of places, and a tensor can be asked for all of
# them at once.
#
# </details>


# %% exercise="sample_blocks" points=2 section="gpt-batches"
def sample_blocks(stream: Tensor, length: int, batch_size: int) -> tuple[Tensor, Tensor]:
    """Contiguous blocks of a long text, from anywhere in it (Radford et al. 2018, section 4.1).

    Args:
        stream: (M,) int64, the whole text.
        length: T, at least 1.
        batch_size: B, at least 1.

    Returns:
        inputs and targets, both (B, T) int64: each row begins at a place drawn evenly from all
        M - T, and its targets are the same block one token further.

    Raises:
        ValueError: if length or batch_size is smaller than 1, or M < T + 1.
    """
    ### BEGIN SOLUTION
    for name, value in (("length", length), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, but is {value}")
    if len(stream) < length + 1:
        raise ValueError(f"a block of {length} and its last target need more than {len(stream)}")
    starts = torch.randint(len(stream) - length, (batch_size, 1), device=stream.device)  # (B, 1)
    places = starts + torch.arange(length, device=stream.device)  # (B, T)
    return stream[places], stream[places + 1]  # (B, T) each
    ### END SOLUTION


# %% check="sample_blocks" tags=["active-ipynb"]
# check("sample_blocks")

# %% [markdown]
# ### Exercise 15: What decays
#
# Weight decay pulls parameters towards 0. GPT applies it to matrices and tables, but not to biases
# and norms. Write `decay_groups(model, weight_decay)`, which sorts the parameters of a module into
# two groups, as PyTorch's optimisers take them:
#
# ```
# [{"params": [...], "weight_decay": weight_decay},
#  {"params": [...], "weight_decay": 0.0}]
# ```
#
# * The first group has the parameters with two or more axes, the second all others, both in the
#   order of `model.parameters()`.
# * A parameter that is used at several places stands in the list once. One that doesn't require a
#   gradient (it is frozen) stands in neither.
# * `ValueError` if `weight_decay` is negative.
#
# *Example.* Of an `nn.Linear(3, 2)` the weight is in the first group and the bias in the second.
#
# Book: section *optimiser* (`gpt-optimiser`).
#
# <details><summary>Hint 1</summary>
#
# `dim()` is the number of axes of a tensor. The names of the parameters don't matter.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `model.parameters()` yields a shared parameter once already, and `requires_grad` tells which are
# trained.
#
# </details>


# %% exercise="decay_groups" points=2 section="gpt-optimiser"
def decay_groups(
    model: nn.Module, weight_decay: float
) -> list[dict[str, list[nn.Parameter] | float]]:
    """Which parameters shrink (Radford et al. 2018, section 4.1: all non bias or gain weights).

    Args:
        model: any module.
        weight_decay: of the first group, at least 0.

    Returns:
        Two groups as PyTorch's optimisers take them, {"params": ..., "weight_decay": ...}: the
        parameters with two or more axes with weight_decay, all others with 0; each parameter that
        requires a gradient once, in the order of model.parameters().

    Raises:
        ValueError: if weight_decay < 0.
    """
    ### BEGIN SOLUTION
    if weight_decay < 0:
        raise ValueError(f"weight_decay must be at least 0, but is {weight_decay}")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    ### END SOLUTION


# %% check="decay_groups" tags=["active-ipynb"]
# check("decay_groups")

# %% [markdown]
# ### Exercise 16: A step of AdamW
#
# In Adam, a decay that is added to the gradient is divided by $\sqrt{\hat v}$ like all the rest, so
# that parameters with large gradients hardly decay. AdamW (Loshchilov and Hutter, 2019) takes it
# out. Write `adamw_step(parameter, gradient, first, second, step, rate, betas=(0.9, 0.95),
# eps=1e-8, weight_decay=0.1)`:
#
# $$\begin{aligned}
# m' &= \beta_1 m + (1 - \beta_1)\, g & v' &= \beta_2 v + (1 - \beta_2)\, g^2\\
# \hat m &= \frac{m'}{1 - \beta_1^{t}} & \hat v &= \frac{v'}{1 - \beta_2^{t}}\\
# \theta' &= (1 - \text{rate} \cdot \lambda)\,\theta
# - \text{rate}\,\frac{\hat m}{\sqrt{\hat v} + \epsilon}
# \end{aligned}$$
#
# * `parameter` ($\theta$), `gradient` ($g$), `first` ($m$) and `second` ($v$) have one and the same
#   shape; `step` is $t$, from 1; `weight_decay` is $\lambda$. Before the first step both means are
#   0.
# * The decay acts on the **old** parameter. The two means know nothing of it.
# * Returns `(parameter, first, second)`, the new ones: the means as they are **before** the
#   correction by $1 - \beta^t$. The inputs stay as they are.
# * `ValueError` if `step` is smaller than 1.
#
# *Example.* $\theta = 1$, $g = 0.5$, both means 0, $t = 1$, rate $0.1$: the decay takes $0.01$ away
# and the step of Adam $0.1$, so the new parameter is $0.89$. The means are $0.05$ and $0.0125$.
#
# Book: section *optimiser* (`gpt-optimiser`).
#
# <details><summary>Hint 1</summary>
#
# Begin with your step of Adam from the chapter on the Transformer. One factor is new.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Methods that end in `_`, and `+=`, change a tensor in place. Here that would change the caller's.
#
# </details>


# %% exercise="adamw_step" points=3 section="gpt-optimiser"
def adamw_step(
    parameter: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    step: int,
    rate: float,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.1,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of Adam with decoupled decay (Loshchilov and Hutter 2019, algorithm 2).

    Args:
        parameter: any shape.
        gradient: the same shape, as all tensors here.
        first: the running mean of gradients before this step, 0 before the first.
        second: the running mean of squared gradients before this step, 0 before the first.
        step: number of this step, from 1.
        rate: the learning rate.
        betas: how much of each running mean is kept.
        eps: added to the root of the second mean, outside the root.
        weight_decay: the old parameter shrinks by rate * weight_decay of itself.

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
    # The decay is no part of the gradient: the running means know nothing of it.
    shrunk = (1 - rate * weight_decay) * parameter
    return shrunk - rate * first_corrected / (second_corrected.sqrt() + eps), first, second
    ### END SOLUTION


# %% check="adamw_step" tags=["active-ipynb"]
# check("adamw_step")

# %% [markdown]
# ### Exercise 17: The learning rate
#
# Write `cosine_rate(step, peak, warmup, total, floor=0.0)`: up in a line, then down in half a
# cosine.
#
# $$\text{rate}(s) = \begin{cases}
# \text{peak} \cdot s/\text{warmup} & s \le \text{warmup}\\
# \text{floor} + (\text{peak} - \text{floor})\,\tfrac12\Bigl(1 + \cos\Bigl(\pi\,
# \dfrac{s - \text{warmup}}{\text{total} - \text{warmup}}\Bigr)\Bigr)
# & \text{warmup} < s < \text{total}\\
# \text{floor} & s \ge \text{total}
# \end{cases}$$
#
# * `step` ($s$) counts from 1. `warmup` may be 0: then the rate begins near its peak and only
#   falls.
# * The result is a Python `float`.
# * `ValueError` if `step` is smaller than 1, or if `warmup` is negative or not smaller than
#   `total`.
#
# *Example.* With `peak=1.0, warmup=10, total=110`, step 5 has 0.5, step 10 has 1, step 60 has 0.5,
# and from step 110 on the rate is 0.
#
# Book: section *schedule* (`gpt-schedule`).
#
# <details><summary>Hint 1</summary>
#
# Three cases, three returns. The fraction in the cosine goes from 0 at the peak to 1 at the end.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `math.cos` takes radians: half a turn is `math.pi`. After `total` a cosine would rise again.
#
# </details>


# %% exercise="cosine_rate" points=2 section="gpt-schedule"
def cosine_rate(step: int, peak: float, warmup: int, total: int, floor: float = 0.0) -> float:
    """The rate of a step: up in a line, down in half a cosine (Radford et al. 2018, section 4.1).

    Args:
        step: number of the step, from 1.
        peak: the rate at step ``warmup``.
        warmup: in how many steps the rate rises, from 0 to total - 1.
        total: the step from which on the rate is ``floor``.
        floor: the rate at the end.

    Returns:
        peak step / warmup up to ``warmup``, then floor + (peak - floor) (1 + cos(pi f)) / 2 with
        the fraction f = (step - warmup) / (total - warmup), and floor from ``total`` on.

    Raises:
        ValueError: if step < 1 or not 0 <= warmup < total.
    """
    ### BEGIN SOLUTION
    if step < 1:
        raise ValueError(f"step must be at least 1, but is {step}")
    if not 0 <= warmup < total:
        raise ValueError(f"warmup must be at least 0 and less than {total}, but is {warmup}")
    if step <= warmup:
        return peak * step / warmup
    if step >= total:
        return floor
    fraction = (step - warmup) / (total - warmup)
    return floor + (peak - floor) * (1 + math.cos(math.pi * fraction)) / 2
    ### END SOLUTION


# %% check="cosine_rate" tags=["active-ipynb"]
# check("cosine_rate")

# %% [markdown]
# ### Exercise 18: Training
#
# Put it together. Write `train(model, stream, steps, length, batch_size, peak, warmup,
# weight_decay=0.1, clip=1.0)`. First the model is put into training mode; then each of `steps`
# steps
#
# 1. takes a batch from `sample_blocks` and applies `model` to its inputs;
# 2. computes the mean cross-entropy of logits and targets, over all places (`sample_blocks` has
#    shifted them already);
# 3. computes the gradients of **this** loss alone, and cuts them to a common norm of at most
#    `clip`;
# 4. improves the parameters by AdamW with `betas=(0.9, 0.95)`, `eps=1e-8` and the decay of
#    `decay_groups`, at the rate that `cosine_rate` gives this step, with `steps` as `total`.
#
# * `model` is any module that maps ids `(B, T)` to logits `(B, T, V)`. It is changed in place.
# * Returns a list of `steps` `float`s: the loss of each step, **before** its update.
# * A parameter that doesn't require a gradient stays as it is.
# * `torch.optim.AdamW` and `nn.utils.clip_grad_norm_` may be used. The optimiser is made once: its
#   running means belong to the whole training.
#
# *Example.* A `GPT(12, 8, 16, 1, 2, dropout=0.0)` on a stream that repeats five tokens again and
# again: in 80 steps of 8 blocks of length 8, with `peak=0.02` and `warmup=8`, the loss falls from
# $\log 12 \approx 2.48$ to under 0.1.
#
# Book: section *training* (`gpt-training`).
#
# <details><summary>Hint 1</summary>
#
# PyTorch's optimisers keep a list `param_groups`, and each of its groups has an entry `"lr"`, which
# may be changed before a step.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `backward()` **adds** to what stands in `.grad`. Empty it in every step, before or after.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `F.cross_entropy` wants `(n, V)` and `(n,)`: flatten rows and places together. `loss.item()` makes
# a `float`; a list of tensors would keep every step's graph alive.
#
# </details>


# %% exercise="train" points=5 section="gpt-training"
def train(
    model: nn.Module,
    stream: Tensor,
    steps: int,
    length: int,
    batch_size: int,
    peak: float,
    warmup: int,
    weight_decay: float = 0.1,
    clip: float = 1.0,
) -> list[float]:
    """Train a language model on a long text, in place (Radford et al. 2018, section 4.1).

    The numbers of AdamW and the norm to which gradients are cut are GPT-3's (Brown et al. 2020,
    appendix B).

    Args:
        model: ids (B, T) -> logits (B, T, V); put into training mode.
        stream: (M,) int64, the text.
        steps: how many.
        length: T, of a block.
        batch_size: B, blocks in a step.
        peak: the highest learning rate.
        warmup: in how many steps the rate rises, fewer than ``steps``.
        weight_decay: of the parameters with two or more axes.
        clip: the largest norm of all gradients together.

    Returns:
        The loss of each step, before its update.
    """
    ### BEGIN SOLUTION
    model.train()
    groups = decay_groups(model, weight_decay)
    optimiser = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(1, steps + 1):
        for group in optimiser.param_groups:
            group["lr"] = cosine_rate(step, peak, warmup, steps)
        inputs, targets = sample_blocks(stream, length, batch_size)  # (B, T) each
        logits = model(inputs)  # (B, T, V)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())  # scalar
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimiser.step()
        losses.append(loss.item())
    return losses
    ### END SOLUTION


# %% check="train" tags=["active-ipynb"]
# check("train")

# %% [markdown]
# ## Writing
#
# ### Exercise 19: Temperature
#
# A trained model gives a distribution of the next token. Before a token is drawn, the distribution
# is often made sharper or flatter. Write `scale_temperature(logits, temperature)`:
#
# $$P(v) = \operatorname{softmax}(\text{logits} / \tau)_v$$
#
# * `logits` has any shape, and so has the result: the logits divided by `temperature` ($\tau$), not
#   yet the probabilities.
# * Below 1 the best token gains, above 1 all tokens become more alike.
# * `ValueError` unless `temperature` is larger than 0. (That includes *not a number*.)
#
# *Example.* The logits $0$ and $\log 3$ stand for the probabilities $\tfrac14$ and $\tfrac34$. With
# $\tau = \tfrac12$ they become $\tfrac1{10}$ and $\tfrac9{10}$.
#
# Book: section *temperature* (`gpt-temperature`).
#
# <details><summary>Hint 1</summary>
#
# One line after the check.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Comparisons with *not a number* are never true: ask whether it **is** larger, and refuse if not.
#
# </details>


# %% exercise="scale_temperature" points=1 section="gpt-temperature"
def scale_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Make a distribution sharper (below 1) or flatter (above 1).

    Args:
        logits: any shape.
        temperature: larger than 0.

    Returns:
        The same shape, logits / temperature.

    Raises:
        ValueError: unless temperature > 0.
    """
    ### BEGIN SOLUTION
    if not temperature > 0:
        raise ValueError(f"temperature must be larger than 0, but is {temperature}")
    return logits / temperature
    ### END SOLUTION


# %% check="scale_temperature" tags=["active-ipynb"]
# check("scale_temperature")

# %% [markdown]
# ### Exercise 20: The best k
#
# Many unlikely tokens together are likely. Write `keep_top_k(logits, k)`, which cuts them off.
#
# * `logits` `(..., V)`; the result has the same shape. In each row the `k` largest entries stay as
#   they are, and all others become $-\infty$.
# * Entries **equal** to the $k$-th largest stay too, so there may be more than `k`.
# * If `k` is not smaller than $V$, all stay.
# * `ValueError` if `k` is smaller than 1.
#
# *Example.* `[3, 1, 3, 2]` with `k=3` becomes `[3, -inf, 3, 2]`; with `k=1` it becomes
# `[3, -inf, 3, -inf]`, since two are equally large.
#
# Book: section *top-k* (`gpt-top-k`).
#
# <details><summary>Hint 1</summary>
#
# What is the smallest number that stays in a row? All that is smaller goes.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.topk` returns the largest values in order, and complains if there are fewer than it is
# asked for. A slice such as `[..., -1:]` keeps the axis, so that the comparison broadcasts.
#
# </details>


# %% exercise="keep_top_k" points=2 section="gpt-top-k"
def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Leave only the best tokens (Fan et al. 2018).

    Args:
        logits: (..., V).
        k: how many stay in each row, at least 1; all if there are no more than k.

    Returns:
        (..., V): the k largest of each row as they are, -inf in place of the others; entries equal
        to the k-th largest stay too.

    Raises:
        ValueError: if k < 1.
    """
    ### BEGIN SOLUTION
    if k < 1:
        raise ValueError(f"k must be at least 1, but is {k}")
    best = logits.topk(min(k, logits.shape[-1]), dim=-1).values  # (..., k)
    return logits.masked_fill(logits < best[..., -1:], -math.inf)  # (..., V)
    ### END SOLUTION


# %% check="keep_top_k" tags=["active-ipynb"]
# check("keep_top_k")

# %% [markdown]
# ### Exercise 21: The nucleus
#
# How many tokens are good differs from place to place. Write `keep_top_p(logits, p)`, which keeps
# as many as it takes to have the probability $p$ (Holtzman et al., 2020).
#
# * `logits` `(..., V)`; the result has the same shape. In each row stays the **smallest** set of
#   most probable tokens whose probabilities, by the softmax of the row, add up to **at least** `p`.
#   All others become $-\infty$. The most probable token always stays, even if `p` is tiny.
# * With `p=1` all stay. An entry that is $-\infty$ already stays so.
# * The entries that stay are not changed, and each remains at its place.
# * `ValueError` unless $0 < p \le 1$.
#
# *Example.* The probabilities are $0.15, 0.5, 0.05, 0.3$. With $p = 0.7$ the second and the fourth
# stay, together $0.8$; with $p = 0.4$ only the second.
#
# Book: section *top-p* (`gpt-top-p`).
#
# <details><summary>Hint 1</summary>
#
# Sort each row from the best down, and add up the probabilities from there (`cumsum`).
#
# </details>
# <details><summary>Hint 2</summary>
#
# The token with which the sum reaches $p$ belongs to the set. So ask what stands **before** a
# token: it stays if the better ones alone have less than $p$.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `sort` also returns where each entry came from. `scatter` with these indices puts values back to
# their old places; or sort the indices to find each token's rank.
#
# </details>


# %% exercise="keep_top_p" points=3 section="gpt-top-p"
def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Leave the nucleus: few tokens with most of the probability (Holtzman et al. 2020, 3.1).

    Args:
        logits: (..., V).
        p: the probability that must stay, larger than 0 and at most 1.

    Returns:
        (..., V): of each row the smallest set of most probable tokens whose probabilities add up to
        at least p as they are, -inf in place of the others.

    Raises:
        ValueError: unless 0 < p <= 1.
    """
    ### BEGIN SOLUTION
    if not 0 < p <= 1:
        raise ValueError(f"p must be larger than 0 and at most 1, but is {p}")
    if p == 1:  # all tokens; a rounded sum might reach 1 before the last ones
        return logits.clone()
    sorted_logits, order = logits.sort(dim=-1, descending=True, stable=True)  # (..., V) each
    probabilities = torch.softmax(sorted_logits, dim=-1)  # (..., V)
    before = probabilities.cumsum(dim=-1) - probabilities  # (..., V), of all better tokens
    kept = sorted_logits.masked_fill(before >= p, -math.inf)  # (..., V)
    return torch.empty_like(logits).scatter(-1, order, kept)  # (..., V), in the old order
    ### END SOLUTION


# %% check="keep_top_p" tags=["active-ipynb"]
# check("keep_top_p")

# %% [markdown]
# ### Exercise 22: One token
#
# Write `sample_token(logits, temperature=1.0, top_k=None, top_p=None, generator=None)`: choose the
# next token of every row.
#
# * `logits` `(B, V)`; the result is `(B,)` `torch.int64`.
# * `temperature=0`: the token with the largest logit, the first of equal ones, without chance.
# * Otherwise, in this order: the temperature; `top_k`, unless it is `None`; `top_p`, unless it is
#   `None`, of the probabilities **of what is left**; then one draw for each row from the softmax.
# * The draw uses `generator`, a `torch.Generator`; `None` means PyTorch's global one.
# * `ValueError` if `temperature` is negative. Those of the parts may come through as they are.
#
# *Example.* The probabilities are $0.4, 0.3, 0.2, 0.1$. With `top_p=0.5` two tokens stay. With
# `top_k=2, top_p=0.5` only the first does: of the two that are left it has $\tfrac47$.
#
# Book: section *sampling* (`gpt-sampling`).
#
# <details><summary>Hint 1</summary>
#
# The case of temperature 0 comes first: nothing can be divided by it.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.multinomial` draws from rows of probabilities, has a parameter `generator`, and returns
# `(B, 1)`.
#
# </details>


# %% exercise="sample_token" points=2 section="gpt-sampling"
def sample_token(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Choose the next token of every row.

    Args:
        logits: (B, V).
        temperature: 0: the largest logit, without chance.
        top_k: how many tokens stay; None: all.
        top_p: how much probability stays, of what top_k left; None: all.
        generator: of the random numbers; None: PyTorch's global one.

    Returns:
        (B,) int64: one draw from the softmax of what temperature, top_k and top_p, in this order,
        make of each row; at temperature 0 the first of the largest logits.

    Raises:
        ValueError: if temperature < 0.
    """
    ### BEGIN SOLUTION
    if temperature < 0:
        raise ValueError(f"temperature must be at least 0, but is {temperature}")
    if temperature == 0:
        return logits.argmax(dim=1)  # (B,)
    logits = scale_temperature(logits, temperature)  # (B, V)
    if top_k is not None:
        logits = keep_top_k(logits, top_k)  # (B, V)
    if top_p is not None:
        logits = keep_top_p(logits, top_p)  # (B, V)
    probabilities = torch.softmax(logits, dim=1)  # (B, V)
    return torch.multinomial(probabilities, 1, generator=generator).squeeze(1)  # (B,)
    ### END SOLUTION


# %% check="sample_token" tags=["active-ipynb"]
# check("sample_token")

# %% [markdown]
# ### Exercise 23: A text
#
# Write `generate(model, ids, max_new_tokens, temperature=1.0, top_k=None, top_p=None, stop=None,
# seed=None)`: go on from `ids`, one token after the other.
#
# * `ids` `(B, T)`, all rows equally long. The result is `(B, T + n)`: the old tokens and $n$ new
#   ones, at most `max_new_tokens`. Each new token is chosen by `sample_token` from the logits at
#   the last place, and is read in the next step.
# * `model` maps ids `(B, T)` to logits `(B, T, V)` and has an attribute `context`. It is shown only
#   the **last** `model.context` tokens.
# * `stop`: a row that has *written* this id is filled with it from then on, and when all rows have
#   written it, the writing ends at once. A `stop` that stands in `ids` from the beginning means
#   nothing.
# * `seed`: all draws come from one `torch.Generator` of their own, made on the device of `ids` and
#   seeded with it. So equal seeds give equal texts, and the global generator is left alone. `None`:
#   the global one.
# * No gradient is recorded, and the model's mode is left as it is.
# * `ValueError` if `max_new_tokens` is negative, or if `ids` has no column.
#
# *Example.* In a `TableModel` 6 always follows 5, 7 follows 6, and `END` (4) follows 7. From
# `[[5]]`, at temperature 0, with `stop=END` and 9 new tokens at most, comes `[[5, 6, 7, 4]]`.
#
# Book: section *sampling* (`gpt-sampling`).
#
# <details><summary>Hint 1</summary>
#
# A slice with a negative start takes the last ones, or all if there are fewer.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Make the generator once, before the loop. Seeded anew in every step, it would draw the same number
# each time.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Keep a bool tensor `(B,)` of the rows that have stopped. Replace their new tokens first, and then
# look which rows have stopped now.
#
# </details>


# %% exercise="generate" points=4 section="gpt-sampling"
def generate(
    model: nn.Module,
    ids: Tensor,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: int | None = None,
    seed: int | None = None,
) -> Tensor:
    """Go on writing, one token after the other.

    Args:
        model: ids (B, T) -> logits (B, T, V), with ``context``, the longest input; left in its
            mode. It sees the last ``context`` tokens.
        ids: (B, T) int64, what is there already, at least one column.
        max_new_tokens: at least 0.
        temperature: as for ``sample_token``.
        top_k: as for ``sample_token``.
        top_p: as for ``sample_token``.
        stop: a row that has written it is filled with it; when all have, the writing ends.
        seed: of a generator of its own for all draws; None: the global generator.

    Returns:
        (B, T + n) int64: ids, and n <= max_new_tokens new columns. No gradient.

    Raises:
        ValueError: if max_new_tokens < 0, or ids has no column.
    """
    ### BEGIN SOLUTION
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens must be at least 0, but is {max_new_tokens}")
    if ids.shape[1] < 1:
        raise ValueError("there must be at least one token to go on from")
    generator = None
    if seed is not None:
        generator = torch.Generator(device=ids.device).manual_seed(seed)
    stopped = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)  # (B,)
    with torch.no_grad():
        for _ in range(max_new_tokens):
            logits = model(ids[:, -model.context :])[:, -1]  # (B, V), after the last token
            token = sample_token(logits, temperature, top_k, top_p, generator)  # (B,)
            if stop is not None:
                token = token.masked_fill(stopped, stop)  # (B,)
                stopped = stopped | (token == stop)  # (B,)
            ids = torch.cat([ids, token.unsqueeze(1)], dim=1)  # (B, T + 1)
            if stop is not None and stopped.all():
                break
    return ids
    ### END SOLUTION


# %% check="generate" tags=["active-ipynb"]
# check("generate")

# %% [markdown]
# ## A cache
#
# ### Exercise 24: Attention to what is remembered
#
# With each new token `generate` computes everything anew, though keys and values of the earlier
# places stay the same: they depend on nothing that stands behind them. Write
# `attend_cached(attention, x, past=None)`: the attention of new places to themselves and to earlier
# ones, whose keys and values are there already.
#
# * `attention` is a `CausalSelfAttention`, whose weights are used; its dropout is left out, in any
#   mode. `x` `(B, T, D)` are the new places. `past` is a pair `(keys, values)`, each
#   `(B, H, P, D/H)`, or `None` if there are none.
# * Returns `(result, (keys, values))`: the result `(B, T, D)`, and keys and values of **all**
#   places, each `(B, H, P + T, D/H)`, which are the next `past`.
# * The result equals the last $T$ places of the attention on all $P + T$ inputs. $T$ may be larger
#   than 1; then the new places are masked among each other.
# * `past` is left unchanged.
#
# *Example.* In the example of exercise 3, feed $2, 4$ first: the result is
# $2, 3$. With what that remembers feed $9$: the result is $5$.
#
# Book: section *cache* (`gpt-cache`).
#
# <details><summary>Hint 1</summary>
#
# Only the queries are for the new places alone. `torch.cat` along the axis of places makes a new
# tensor of old and new keys, and another of old and new values.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Exercise 1 has a `past` for this: its mask has a row for each query and a column for
# each key.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `is_causal=True` of `F.scaled_dot_product_attention` counts rows and columns from the same corner,
# which is wrong here as soon as there is a past. Hand it the mask.
#
# </details>


# %% exercise="attend_cached" points=3 section="gpt-cache"
def attend_cached(
    attention: CausalSelfAttention, x: Tensor, past: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Attention of new places only; keys and values of the earlier ones are remembered.

    Args:
        attention: the module whose weights are used; dropout is left out.
        x: (B, T, D), the new places.
        past: keys and values (B, H, P, D/H) each of the P places before; None: there are none.
            Left unchanged.

    Returns:
        (B, T, D), the last T places of the attention to all P + T; and the keys and values
        (B, H, P + T, D/H) of all.
    """
    ### BEGIN SOLUTION
    parts = attention.qkv(x).chunk(3, dim=-1)  # 3 x (B, T, D)
    heads = [part.unflatten(-1, (attention.num_heads, -1)) for part in parts]  # (B, T, H, D/H)
    queries, keys, values = (part.transpose(1, 2) for part in heads)  # (B, H, T, D/H) each
    if past is not None:
        keys = torch.cat([past[0], keys], dim=2)  # (B, H, P + T, D/H)
        values = torch.cat([past[1], values], dim=2)  # (B, H, P + T, D/H)
    scores = queries @ keys.transpose(2, 3) / math.sqrt(queries.shape[3])  # (B, H, T, P + T)
    visible = causal_mask(x.shape[1], keys.shape[2] - x.shape[1]).to(x.device)  # (T, P + T)
    weights = torch.softmax(scores.masked_fill(~visible, -math.inf), dim=3)  # (B, H, T, P + T)
    mixed = (weights @ values).transpose(1, 2).flatten(2)  # (B, T, D)
    return attention.out_proj(mixed), (keys, values)  # (B, T, D), 2 x (B, H, P + T, D/H)
    ### END SOLUTION


# %% check="attend_cached" tags=["active-ipynb"]
# check("attend_cached")

# %% [markdown]
# ### Exercise 25: The model with a cache
#
# Write `cached_forward(model, ids, past=None)`: the logits of new tokens, when keys and values of
# the earlier ones are remembered.
#
# * `model` is a `GPT`, pre-norm or post-norm; `ids` `(B, T)` are the new tokens. `past` is a list
#   with one pair `(keys, values)` for each block, or `None`.
# * Returns `(logits, cache)`: `(B, T, V)`, and a **new** list of pairs, each tensor
#   `(B, H, P + T, D/H)`. `past` is left unchanged: neither its list nor its tensors.
# * The logits equal the last $T$ places of `model` on all $P + T$ tokens. Positions go on: the
#   first new token stands at place $P$.
# * Dropout is left out, in any mode of the model.
# * `ValueError` if $P + T$ is larger than the model's `context`.
#
# *Example.* Feed the first 4 of 10 tokens, and the other 6 with the cache that comes back: the two
# results side by side are `model(ids)`.
#
# Book: section *cache* (`gpt-cache`).
#
# <details><summary>Hint 1</summary>
#
# How many places are remembered shows in the keys of the first block, at the axis of places.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A block can't be called as it is, since its attention is another one now. Write its two halves
# out, for both kinds: `isinstance(block, PreNormBlock)` tells which.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Dropout also hides in the feed-forward network. Its parts `w_1` and `w_2` have none.
#
# </details>


# %% exercise="cached_forward" points=4 section="gpt-cache"
def cached_forward(
    model: GPT, ids: Tensor, past: list[tuple[Tensor, Tensor]] | None = None
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """The logits of new tokens only; a cache stands for those before.

    Args:
        model: a GPT of either kind; dropout is left out.
        ids: (B, T) int64, the new tokens.
        past: for each block the keys and values of the P tokens before; None: there are none. Left
            unchanged.

    Returns:
        (B, T, V), the logits of the last T of all P + T tokens; and the new cache.

    Raises:
        ValueError: if P + T is larger than the model's context.
    """
    ### BEGIN SOLUTION
    start = 0 if past is None else past[0][0].shape[2]  # P
    end = start + ids.shape[1]  # P + T
    if end > model.context:
        raise ValueError(f"{end} tokens are too many for a context of {model.context}")
    places = torch.arange(start, end, device=ids.device)  # (T,)
    x = model.token(ids) + model.position(places)  # (B, T, D)
    cache = []
    for number, block in enumerate(model.blocks):
        before = None if past is None else past[number]
        pre_norm = isinstance(block, PreNormBlock)
        inner = block.norm_1(x) if pre_norm else x  # (B, T, D)
        attended, pair = attend_cached(block.attention, inner, before)  # (B, T, D)
        cache.append(pair)
        x = x + attended if pre_norm else block.norm_1(x + attended)  # (B, T, D)
        inner = block.norm_2(x) if pre_norm else x  # (B, T, D)
        # Not block.feed_forward(inner), which has dropout.
        added = block.feed_forward.w_2(gelu(block.feed_forward.w_1(inner)))  # (B, T, D)
        x = x + added if pre_norm else block.norm_2(x + added)  # (B, T, D)
    return model.final_norm(x) @ model.token.weight.T, cache  # (B, T, V)
    ### END SOLUTION


# %% check="cached_forward" tags=["active-ipynb"]
# check("cached_forward")

# %% [markdown]
# ## Fine-tuning
#
# ### Exercise 26: Prompt and response
#
# A model with a decoder only has no second input for the question. Question and answer stand in
# **one** row, and the loss is taken of the answer alone. Write
# `prompt_and_response(prompt, response)`:
#
# | ids | `START` | prompt | `DELIMITER` | response | `END` |
# |---|---|---|---|---|---|
# | mask | `False` | `False` | `False` | `True` | `True` |
#
# * Both arguments are lists of ids. Returns `(ids, mask)`, two lists of the same length; the mask
#   has `bool`s.
# * The mask is one over targets, as `language_model_loss` takes it: the response counts, and so
#   does `END`, from which the model learns to stop.
# * The lists that come in stay as they are.
# * `ValueError` if `prompt` or `response` is empty.
#
# *Example.* `prompt_and_response([9], [8, 7])` is `[1, 9, 2, 8, 7, 4]` and
# `[False, False, False, True, True, True]`.
#
# Book: section *response* (`gpt-response`).
#
# <details><summary>Hint 1</summary>
#
# `[a, *b, c]` makes a new list with the entries of `b` in the middle.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Count what is `True` from the end: the response, and one more.
#
# </details>


# %% exercise="prompt_and_response" points=2 section="gpt-response"
def prompt_and_response(prompt: list[int], response: list[int]) -> tuple[list[int], list[bool]]:
    """A question and its answer in one row, and which targets count.

    Args:
        prompt: ids, at least one.
        response: ids, at least one.

    Returns:
        The ids [START] prompt [DELIMITER] response [END], and a mask of the same length: True at
        the response and at END.

    Raises:
        ValueError: if prompt or response is empty.
    """
    ### BEGIN SOLUTION
    if not prompt or not response:
        raise ValueError("prompt and response must have at least one token each")
    ids = [START, *prompt, DELIMITER, *response, END]
    counted = len(response) + 1  # the response and END
    return ids, [False] * (len(ids) - counted) + [True] * counted
    ### END SOLUTION


# %% check="prompt_and_response" tags=["active-ipynb"]
# check("prompt_and_response")

# %% [markdown]
# ### Exercise 27: Two texts with an order
#
# For its tasks GPT-1 changes the input, not the model. Write `entailment_input(premise,
# hypothesis)`, the input for the question whether the first text implies the second:
#
# $$\texttt{START}\;\text{premise}\;\texttt{DELIMITER}\;\text{hypothesis}\;\texttt{EXTRACT}$$
#
# * Both are lists of ids, and so is the result. At `EXTRACT` the model has seen both texts; there a
#   classifier reads.
# * `ValueError` if one of the two is empty.
#
# *Example.* `entailment_input([7, 8], [9])` is `[1, 7, 8, 2, 9, 3]`.
#
# Book: section *inputs* (`gpt-inputs`).
#
# <details><summary>Hint 1</summary>
#
# The order matters: the model reads from left to right.
#
# </details>
# <details><summary>Hint 2</summary>
#
# It is one list. An empty list is `False` in a condition.
#
# </details>


# %% exercise="entailment_input" points=1 section="gpt-inputs"
def entailment_input(premise: list[int], hypothesis: list[int]) -> list[int]:
    """A pair of texts, one after the other (Radford et al. 2018, section 3.3, figure 1).

    Args:
        premise: ids, at least one.
        hypothesis: ids, at least one.

    Returns:
        [START] premise [DELIMITER] hypothesis [EXTRACT].

    Raises:
        ValueError: if premise or hypothesis is empty.
    """
    ### BEGIN SOLUTION
    if not premise or not hypothesis:
        raise ValueError("each of the two texts must have at least one token")
    return [START, *premise, DELIMITER, *hypothesis, EXTRACT]
    ### END SOLUTION


# %% check="entailment_input" tags=["active-ipynb"]
# check("entailment_input")

# %% [markdown]
# ### Exercise 28: Two texts without an order
#
# Whether two texts say the same doesn't depend on which stands first, but a causal model reads one
# of them before the other. Write `similarity_inputs(first, second)`, which gives it both orders.
#
# * The result is a list of two inputs of the form of exercise 27: `first` before
#   `second`, then `second` before `first`. (The model's vectors at both `EXTRACT`s are added.)
# * `ValueError` if one of the two is empty.
#
# *Example.* `similarity_inputs([7, 8], [9])` is `[[1, 7, 8, 2, 9, 3], [1, 9, 2, 7, 8, 3]]`.
#
# Book: section *inputs* (`gpt-inputs`).
#
# <details><summary>Hint 1</summary>
#
# You have a function for one of the two.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Its checks do for both.
#
# </details>


# %% exercise="similarity_inputs" points=1 section="gpt-inputs"
def similarity_inputs(first: list[int], second: list[int]) -> list[list[int]]:
    """A pair without an order, in both orders (Radford et al. 2018, section 3.3, figure 1).

    Args:
        first: ids, at least one.
        second: ids, at least one.

    Returns:
        Two inputs of the same form, the first text first in one, the second in the other.

    Raises:
        ValueError: if first or second is empty.
    """
    ### BEGIN SOLUTION
    return [entailment_input(first, second), entailment_input(second, first)]
    ### END SOLUTION


# %% check="similarity_inputs" tags=["active-ipynb"]
# check("similarity_inputs")

# %% [markdown]
# ### Exercise 29: One input for each answer
#
# A question with several answers: write `choice_inputs(context, answers)`. Each answer gets an
# input of its own, each input will get a score, and a softmax over the scores compares them.
#
# * `context` is a list of ids, the document and the question, one after the other. `answers` is a
#   list of lists of ids.
# * The result is a list with one input for each answer, in order:
#   `START`, context, `DELIMITER`, answer, `EXTRACT`.
# * `ValueError` if `context`, `answers` or one of the answers is empty.
#
# *Example.* `choice_inputs([7, 8], [[9], [10]])` is
# `[[1, 7, 8, 2, 9, 3], [1, 7, 8, 2, 10, 3]]`.
#
# Book: section *inputs* (`gpt-inputs`).
#
# <details><summary>Hint 1</summary>
#
# Each input has the form of exercise 27.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Without any answer a loop over the answers checks nothing: that case needs a check of its own.
#
# </details>


# %% exercise="choice_inputs" points=1 section="gpt-inputs"
def choice_inputs(context: list[int], answers: list[list[int]]) -> list[list[int]]:
    """One input for each answer (Radford et al. 2018, section 3.3, figure 1).

    Args:
        context: ids of the document and the question, at least one.
        answers: the ids of each answer, at least one; at least one answer.

    Returns:
        For each answer [START] context [DELIMITER] answer [EXTRACT].

    Raises:
        ValueError: if context, answers or one of the answers is empty.
    """
    ### BEGIN SOLUTION
    if not answers:
        raise ValueError("there must be at least one answer")
    return [entailment_input(context, answer) for answer in answers]
    ### END SOLUTION


# %% check="choice_inputs" tags=["active-ipynb"]
# check("choice_inputs")

# %% [markdown]
# ### Exercise 30: A classifier
#
# Write `GPTClassifier(gpt, num_labels, dropout=0.1)`: a GPT with two heads. One is the language
# model's; the other reads the last block's vector at `EXTRACT`:
#
# $$\text{scores} =
# W_y\,\operatorname{dropout}\bigl(\text{features}_{\,t(\texttt{EXTRACT})}\bigr) + b_y,\qquad
# \text{logits} = \text{features}\; W_e^{\mathsf T}$$
#
# * Submodules: `gpt`, the model that is given (the very same, so that fine-tuning trains it too);
#   `classifier`, an `nn.Linear` from $D$ to `num_labels`, with bias.
# * `forward(ids)`: `(B, T)`, each row with exactly one `EXTRACT`, padded with `PAD` behind it. The
#   place may differ from row to row. Returns `(scores, logits)`: `(B, L)` and `(B, T, V)`.
# * **One** pass through the blocks serves both heads.
# * Dropout acts on the vector that the classifier reads, not on the features of the language model.
# * `ValueError` if a row has no `EXTRACT`, or more than one.
#
# *Example.* In evaluation mode, append columns of `PAD`: the scores stay the same, though nothing
# masks the padding.
#
# Book: section *classifier* (`gpt-classifier`).
#
# <details><summary>Hint 1</summary>
#
# `gpt.features` gives the vectors, and the logits are only one product away. Calling `gpt` as well
# would be a second pass.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `ids == EXTRACT` is a bool tensor `(B, T)`. Its sum over each row is what must be checked.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Where each row has exactly one `True`, such a bool tensor used as an index picks one vector for
# each row, in order. The width of a GPT is the `embedding_dim` of its table.
#
# </details>


# %% exercise="GPTClassifier" points=4 section="gpt-classifier"
class GPTClassifier(nn.Module):
    """A label for an input, read at its EXTRACT (Radford et al. 2018, section 3.2).

    Submodules: ``gpt`` = the model that is given, ``classifier`` = nn.Linear(D, num_labels).
    """

    def __init__(self, gpt: GPT, num_labels: int, dropout: float = 0.1) -> None:
        """Keep the model and create ``classifier``.

        Args:
            gpt: a GPT.
            num_labels: L.
            dropout: acts on the vector that the classifier reads, in training mode.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.gpt = gpt
        self.classifier = nn.Linear(gpt.token.embedding_dim, num_labels)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.classifier.weight, std=0.02)
        nn.init.zeros_(self.classifier.bias)
        ### END SOLUTION

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Score the labels, and every token as the next one: one pass for both heads.

        Args:
            ids: (B, T) int64, each row with exactly one EXTRACT; padding stands after it.

        Returns:
            The scores of the labels (B, L), and the logits (B, T, V) of the language model.

        Raises:
            ValueError: if a row has no EXTRACT, or several.
        """
        ### BEGIN SOLUTION
        found = ids == EXTRACT  # (B, T)
        if (found.sum(dim=1) != 1).any():
            raise ValueError("every row must have exactly one EXTRACT")
        hidden = self.gpt.features(ids)  # (B, T, D)
        read = self.dropout(hidden[found])  # (B, D), one place of each row
        logits = hidden @ self.gpt.token.weight.T  # (B, T, V)
        return self.classifier(read), logits  # (B, L), (B, T, V)
        ### END SOLUTION


# %% check="GPTClassifier" tags=["active-ipynb"]
# check("GPTClassifier")


# %% tags=["instructor"]
class SimilarityClassifier(GPTClassifier):
    """A label for two texts without an order (Radford et al. 2018, section 3.3).

    Submodules as in GPTClassifier. The vectors of both orders are added before the classifier.
    """

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """ids (B, 2, T), both orders, each with one EXTRACT -> (B, L) and (B, 2, T, V)."""
        found = ids == EXTRACT  # (B, 2, T)
        if (found.sum(dim=2) != 1).any():
            raise ValueError("every row must have exactly one EXTRACT")
        hidden = self.gpt.features(ids.flatten(0, 1))  # (2 B, T, D)
        both = hidden[found.flatten(0, 1)].unflatten(0, (-1, 2)).sum(dim=1)  # (B, D)
        logits = hidden @ self.gpt.token.weight.T  # (2 B, T, V)
        return self.classifier(self.dropout(both)), logits.unflatten(0, (-1, 2))


class ChoiceClassifier(GPTClassifier):
    """One score for each of several answers (Radford et al. 2018, section 3.3).

    Submodules as in GPTClassifier, with one label.
    """

    def __init__(self, gpt: GPT, dropout: float = 0.1) -> None:
        """Keep the model and create ``classifier``, a linear layer from D to 1."""
        super().__init__(gpt, 1, dropout)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """ids (B, A, T), a row with one EXTRACT for each answer -> (B, A) and (B, A, T, V)."""
        scores, logits = super().forward(ids.flatten(0, 1))  # (B A, 1), (B A, T, V)
        return scores.reshape(ids.shape[:2]), logits.unflatten(0, ids.shape[:2])


# %% [markdown]
# ### Exercise 31: The joint loss
#
# In fine-tuning GPT-1 goes on predicting tokens, as an auxiliary task. Write
# `joint_loss(scores, labels, logits, ids, weight=0.5)`:
#
# $$L_3 = L_2 + \lambda\, L_1,\qquad
# L_2 = -\frac1B \sum_b \log P(y_b \mid u_b),\qquad
# L_1 = -\frac1n \sum_{(b,t)\,:\,t \ge 1,\; u_{b,t} \ne \texttt{PAD}}
# \log P(u_{b,t} \mid u_{b,0}, \dots, u_{b,t-1})$$
#
# * `scores` `(B, L)` and `logits` `(B, T, V)` come from `GPTClassifier`; `labels` `(B,)`, `ids`
#   `(B, T)`; `weight` is $\lambda$. The paper maximises sums of logarithms; here all three are
#   **losses**, means to be made small.
# * $L_1$ is `language_model_loss` over the targets that are not `PAD`, special ones like `EXTRACT`
#   included; $n$ is their number.
# * Returns `(L3, L2, L1)`, three scalars in this order.
# * `ValueError` if `weight` is negative.
#
# *Example.* Three labels, $V = 4$, and all scores and logits are 0: $L_2 = \log 3 \approx 1.099$,
# $L_1 = \log 4 \approx 1.386$, and $L_3 \approx 1.792$.
#
# Book: section *joint loss* (`gpt-joint`).
#
# <details><summary>Hint 1</summary>
#
# Exercise 13 takes a mask over targets, with the columns of `ids`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `F.cross_entropy` of `(B, L)` and `(B,)` is a mean over the batch already.
#
# </details>


# %% exercise="joint_loss" points=3 section="gpt-joint"
def joint_loss(
    scores: Tensor, labels: Tensor, logits: Tensor, ids: Tensor, weight: float = 0.5
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of fine-tuning, with the language model's (Radford et al. 2018, equation 5).

    Args:
        scores: (B, L).
        labels: (B,) int64.
        logits: (B, T, V).
        ids: (B, T) int64, padded with PAD.
        weight: of the language model's loss, at least 0.

    Returns:
        Three scalars to be made small: L3 = L2 + weight * L1; L2, the mean cross-entropy of the
        labels; L1, the mean of -log P over all targets that are not PAD.

    Raises:
        ValueError: if weight < 0.
    """
    ### BEGIN SOLUTION
    if weight < 0:
        raise ValueError(f"weight must be at least 0, but is {weight}")
    task = F.cross_entropy(scores, labels)  # scalar
    text = language_model_loss(logits, ids, ids != PAD)  # scalar
    return task + weight * text, task, text
    ### END SOLUTION


# %% check="joint_loss" tags=["active-ipynb"]
# check("joint_loss")

# %% [markdown]
# ## Prompting
#
# ### Exercise 32: Examples in the prompt
#
# GPT-3 is not fine-tuned: the task is described in the prompt, perhaps with examples, and the model
# goes on from there. Write `build_prompt(task, examples, query, arrow=" =>")`, which makes one
# text:
#
# * First the description `task`, on a line of its own; if it is empty, there is no such line.
# * Then one line for each of `examples`, a list of pairs of strings: the question, `arrow`, a
#   space, the answer.
# * At last a line with `query` and `arrow`. **Nothing** stands after it, not even a space: the
#   answer is what the model writes.
# * The lines are joined by newlines; there is none at the end. Without examples it is a *zero-shot*
#   prompt, with one a *one-shot*, with more a *few-shot* prompt.
#
# *Example.* `build_prompt("Translate English to French:", [("sea otter", "loutre de mer")],
# "cheese")` is
#
# ```
# Translate English to French:
# sea otter => loutre de mer
# cheese =>
# ```
#
# Book: section *prompting* (`gpt-prompting`).
#
# <details><summary>Hint 1</summary>
#
# Collect the lines in a list; `"\n".join(lines)` puts newlines between them, and only there.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The default of `arrow` begins with a space. The one behind it stands only where an answer follows.
#
# </details>


# %% exercise="build_prompt" points=2 section="gpt-prompting"
def build_prompt(task: str, examples: list[tuple[str, str]], query: str, arrow: str = " =>") -> str:
    """A task, examples of it and a question as one text (Brown et al. 2020, figure 2.1).

    Args:
        task: a description; left out if it is empty.
        examples: pairs of question and answer, as many as there are shots.
        query: the question that the model is to answer.
        arrow: what stands after a question; a space follows before the answer.

    Returns:
        The description, a line for each example, and the query with its arrow, joined by newlines.
        Nothing stands after the last arrow.
    """
    ### BEGIN SOLUTION
    lines = [task] if task else []
    lines += [f"{question}{arrow} {answer}" for question, answer in examples]
    return "\n".join([*lines, f"{query}{arrow}"])
    ### END SOLUTION


# %% check="build_prompt" tags=["active-ipynb"]
# check("build_prompt")

# %% [markdown]
# ### Exercise 33: Which answer fits best
#
# To choose among given answers, a language model need not write anything: it is asked how likely
# each of them is. Write `answer_scores(model, prompt, answers, per_token=True)`. For the answer
# $a = a_1 \dots a_m$ after the prompt $q$:
#
# $$\text{score}(a) = \frac1m \sum_{k=1}^{m} \log P(a_k \mid q, a_1, \dots, a_{k-1})$$
#
# * `prompt` is a list of ids, `answers` a list of lists of ids; `model` maps ids `(B, T)` to logits
#   `(B, T, V)` and has an attribute `context`. The result is a tensor `(A,)`, one score for each of
#   the $A$ answers, without a gradient.
# * `per_token=False`: the sum in place of the mean. Sums favour short answers.
# * Only the answer's tokens are scored, **all** of them, the first included: it is predicted from
#   the prompt's last token.
# * `ValueError` if `prompt`, `answers` or one of the answers is empty, or if the prompt and an
#   answer together are longer than `model.context`.
#
# *Example.* A `TableModel` of 8 tokens with the table 0: the answers `[6]` and `[6, 7]` both have
# $-\log 8 \approx -2.079$ by token; their sums are $-2.079$ and $-4.159$.
#
# Book: section *prompting* (`gpt-prompting`).
#
# <details><summary>Hint 1</summary>
#
# Apply the model to prompt and answer as one row. The answer's tokens are the targets that count.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `log_likelihood` with a mask gives the sum. The mask belongs to the targets: it is `True` where
# the answer stands.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A loop with one call for each answer is fine. For a single call pad the rows on the right: no
# token of an answer can see what stands behind it.
#
# </details>


# %% exercise="answer_scores" points=3 section="gpt-prompting"
def answer_scores(
    model: nn.Module, prompt: list[int], answers: list[list[int]], per_token: bool = True
) -> Tensor:
    """How well each answer goes on from the prompt (Brown et al. 2020, section 2.4).

    Args:
        model: ids (B, T) -> logits (B, T, V), with ``context``, the longest input.
        prompt: ids, at least one.
        answers: the ids of each of A answers, at least one.
        per_token: the mean over the answer's tokens, which doesn't favour short answers; False:
            the sum.

    Returns:
        (A,): log P(answer | prompt), by token or whole. No gradient.

    Raises:
        ValueError: if prompt, answers or one of the answers is empty, or a prompt with an answer is
            longer than the model's context.
    """
    ### BEGIN SOLUTION
    if not prompt or not answers or not all(answers):
        raise ValueError("the prompt and every answer must have at least one token")
    lengths = [len(answer) for answer in answers]
    longest = len(prompt) + max(lengths)
    if longest > model.context:
        raise ValueError(f"{longest} tokens are too many for a context of {model.context}")
    # Padding stands on the right, where no token of the answer can see it.
    rows = [prompt + answer + [PAD] * (longest - len(prompt + answer)) for answer in answers]
    device = next((part.device for part in (*model.parameters(), *model.buffers())), None)
    ids = torch.tensor(rows, device=device)  # (A, T)
    counts = torch.tensor(lengths, device=device)  # (A,)
    places = torch.arange(longest, device=device) - len(prompt)  # (T,), from the answer's first
    mask = (places >= 0) & (places < counts.unsqueeze(1))  # (A, T)
    with torch.no_grad():
        scores = log_likelihood(model(ids), ids, mask)  # (A,)
    return scores / counts if per_token else scores  # (A,)
    ### END SOLUTION


# %% check="answer_scores" tags=["active-ipynb"]
# check("answer_scores")

# %% [markdown]
# ### Question: What changes inside the model when a prompt holds examples?
#
# GPT-3 is often said to *learn* a task from a few examples in its prompt. Compare that with
# fine-tuning on the same examples: what changes in the model, and what stays as it is? Where is
# what the examples tell kept while the answer is written, and what is left of it afterwards? What
# limits how many examples can be used, and what do more of them cost? And what may make a prompt
# with examples work better than one without, although not every such gain shows that a new task was
# learned?
#
# Book: section *prompting* (`gpt-prompting`). 3 points, marked by a person.
#

# %% [markdown] question="what_few_shot_learns" points=3 section="gpt-prompting" title="What changes inside the model when a prompt holds examples?"
# **Your answer:**
#
# ### BEGIN SOLUTION
# *What changes.* No parameter does. There is no loss, no gradient and no step of an optimiser; the
# examples are input, read like any other text. What differs from a prompt without them are the
# *activations*: at each place, in every block, keys and values are made of what stands there, and
# the later places attend to them. The function $f(\text{tokens})$ is the same, its argument is
# another one. Fine-tuning changes the function: gradients of the examples' loss move the weights,
# and the examples themselves are gone afterwards.
#
# *Where it is kept, and for how long.* In the context alone: in the keys and values of the
# examples' tokens (the cache holds just these). They act through attention as long as they stand in
# the context. With the next prompt, or when the context moves past them, nothing is left; a second
# query must bring the examples again. A fine-tuned model has the task in its weights, and needs no
# examples in its input.
#
# *Limits and cost.* The context $C$ limits how many examples fit (2048 tokens in GPT-3, some 10 to
# 100 examples). Each token of the prompt has to go through all blocks for each new prompt, and the
# attention grows with the square of its length; keys and values take memory in proportion to it. In
# fine-tuning the cost is paid once, in training, and there may be any number of examples.
#
# *Why it can help.* The prompt changes the conditional distribution of what follows: examples show
# the format, which labels there are, and which of the tasks that the model met in pre-training is
# meant. Text with such patterns stood in the training data, and predicting the next token well in
# it rewards making use of earlier lines. So a gain may be *recognition* of a known task (a format,
# a list of labels, a language) rather than a rule that was new. To tell them apart one must test:
# with wrong labels in the examples, with an invented task or with meaningless names for the labels,
# against a prompt with the description alone. The paper itself (Brown et al., 2020, section 5)
# leaves open whether tasks are learned anew or recognised.
#
# *Marking:* 1 point for what changes: activations and not parameters, no gradient, with fine-tuning
# as the contrast; 1 for where the examples act (keys and values in the context, by attention)
# **and** that nothing remains, with a limit or cost that follows from it; 1 for conditioning or
# recognising a task as an explanation, with a way to tell it from learning a new one.
# ### END SOLUTION


# %% tags=["instructor"]
def from_pretrained(folder: str | Path, **more: Any) -> GPT:
    """Build a GPT from a folder with a Hugging Face GPT-1 or GPT-2 checkpoint.

    Args:
        folder: holds config.json and model.safetensors.
        **more: ``dropout`` (else ``resid_pdrop`` of the configuration).

    Returns:
        The model in evaluation mode, in the floating type of the checkpoint.

    Raises:
        ValueError: if an option is unknown; a file is missing or damaged; the checkpoint is neither
            GPT-1 nor GPT-2, or has a part that our model hasn't (another activation, norm, width
            inside, scale or output matrix); a name is foreign or missing; or a shape does not fit.
    """
    # Needed here only: the rest of the chapter works without the library.
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = Path(folder)
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise ValueError(f"the checkpoint's folder must hold {name}, but it doesn't")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError("config.json is no JSON, or it is cut off") from error
    if not isinstance(config, dict):
        raise ValueError("config.json must hold a table of settings, but doesn't")
    kind = config.get("model_type")
    if kind not in ("gpt2", "openai-gpt"):
        raise ValueError(f"model_type must be 'gpt2' or 'openai-gpt', but is {kind!r}")

    def setting(*names: str, default: Any) -> Any:
        return next((config[name] for name in names if config.get(name) is not None), default)

    # The "gelu" of GPT-1's code is the form with tanh, which GPT-2's calls "gelu_new".
    key, activations = ("afn", ("gelu", "gelu_new"))
    if kind == "gpt2":
        key, activations = ("activation_function", ("gelu_new", "gelu_pytorch_tanh"))
    activation = config.get(key, activations[0])
    if activation not in activations:
        raise ValueError(f"{key} must be {activations[0]!r}, but the checkpoint has {activation!r}")
    width = setting("n_embd", "hidden_size", default=768)
    for key, only in (
        ("n_inner", 4 * width),
        ("layer_norm_epsilon", 1e-5),
        ("scale_attn_weights", True),
        ("scale_attn_by_inverse_layer_idx", False),
        ("add_cross_attention", False),
        ("tie_word_embeddings", True),
    ):
        if config.get(key) not in (None, only):
            raise ValueError(f"{key} must be {only!r}, but the checkpoint has {config[key]!r}")
    dropout = more.pop("dropout", config.get("resid_pdrop", 0.1))
    if more:
        raise ValueError(f"there is no option {', '.join(sorted(more))}")
    model = GPT(
        config.get("vocab_size", 50257 if kind == "gpt2" else 40478),
        setting("n_positions", "max_position_embeddings", default=1024 if kind == "gpt2" else 512),
        width,
        setting("n_layer", "num_hidden_layers", default=12),
        setting("n_head", "num_attention_heads", default=12),
        dropout,
        pre_norm=kind == "gpt2",
    )
    try:
        stored = load_file(folder / "model.safetensors")
    except SafetensorError as error:
        raise ValueError("model.safetensors is damaged, or no file of this kind") from error
    found = rename_parameters(stored)
    wanted = model.state_dict()
    for name, tensor in found.items():
        if name not in wanted:
            raise ValueError(f"the model has no {name}, but the checkpoint does")
        if tensor.shape != wanted[name].shape:
            raise ValueError(
                f"{name} must have the shape {tuple(wanted[name].shape)}, "
                f"but the checkpoint has {tuple(tensor.shape)}"
            )
    for name in wanted:
        if name not in found:
            raise ValueError(f"the checkpoint lacks {name}")
    head = stored.get("lm_head.weight")
    if head is not None and not torch.equal(head, found["token.weight"]):
        raise ValueError("lm_head.weight must be the table of tokens, but the checkpoint differs")
    model.to(found["token.weight"].dtype)
    model.load_state_dict(found)
    return model.eval()


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


class _FastAttention(CausalSelfAttention):
    """CausalSelfAttention by PyTorch's kernel."""

    def forward(self, x: Tensor) -> Tensor:
        """As in CausalSelfAttention."""
        parts = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))  # (B, T, 3, H, D/H)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4).unbind(0)  # (B, H, T, D/H) each
        rate = self.dropout.p if self.training else 0.0
        if rate > 0 and x.device.type == "cpu":
            # PyTorch has no fused kernel for this case, and its dropout is the slow one.
            hidden = torch.full((x.shape[1], x.shape[1]), -math.inf, dtype=x.dtype).triu(
                1
            )  # (T, T)
            queries = queries * (1 / math.sqrt(queries.shape[3]))  # (B, H, T, D/H)
            weights = torch.softmax(queries @ keys.transpose(2, 3) + hidden, dim=3)  # (B, H, T, T)
            mixed = self.dropout(weights) @ values  # (B, H, T, D/H)
        else:
            mixed = F.scaled_dot_product_attention(
                queries, keys, values, dropout_p=rate, is_causal=True
            )  # (B, H, T, D/H)
        return self.dropout(self.out_proj(mixed.transpose(1, 2).flatten(2)))  # (B, T, D)


class _FastFeedForward(FeedForward):
    """FeedForward with the GELU of PyTorch, one kernel in place of eight."""

    def forward(self, x: Tensor) -> Tensor:
        """As in FeedForward."""
        return self.dropout(self.w_2(F.gelu(self.w_1(x), approximate="tanh")))  # (..., D)


def use_fast_path(model: nn.Module, on: bool = True) -> nn.Module:
    """Compute attention, GELU and dropout by fused or leaner code; the parameters stay the same.

    Args:
        model: any module; every CausalSelfAttention, FeedForward and nn.Dropout in it is switched,
            in place.
        on: False switches back.

    Returns:
        The same model. Its results agree up to rounding; with dropout, in distribution.
    """
    kinds = {
        CausalSelfAttention: _FastAttention,
        FeedForward: _FastFeedForward,
        nn.Dropout: _FastDropout,
    }
    if not on:
        kinds = {fast: clear for clear, fast in kinds.items()}
    for module in model.modules():
        if type(module) in kinds:
            module.__class__ = kinds[type(module)]
    return model


class _Remembering(nn.Module):
    """A GPT that computes the last token alone if it has seen all others; dropout is left out."""

    def __init__(self, model: GPT, batch: int, length: int) -> None:
        """Lay out keys and values of every block for ``length`` places of ``batch`` rows."""
        super().__init__()
        self.model = model
        self.context = model.context
        self.seen = 0
        self.cache = []
        for block in model.blocks:
            heads = block.attention.num_heads
            size = (batch, heads, length, model.token.embedding_dim // heads)
            empty = model.token.weight.new_empty
            self.cache.append((empty(size), empty(size)))  # (B, H, length, D/H) each

    def forward(self, ids: Tensor) -> Tensor:
        """ids (B, T), one more than before, or others -> the last logits (B, 1, V)."""
        model, end = self.model, ids.shape[1]
        # Else the row is new, or the context is full, and every token has another position.
        start = self.seen if end == self.seen + 1 else 0
        self.seen = end
        x = model.token(ids[:, start:]) + model.position.weight[start:end]  # (B, T - start, D)
        for block, (keys, values) in zip(model.blocks, self.cache, strict=True):
            pre_norm = isinstance(block, PreNormBlock)
            attention, network = block.attention, block.feed_forward
            parts = attention.qkv(block.norm_1(x) if pre_norm else x)  # (B, T - start, 3 D)
            parts = parts.unflatten(-1, (3, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)
            queries, keys[:, :, start:end], values[:, :, start:end] = parts.unbind(0)
            mixed = F.scaled_dot_product_attention(
                queries, keys[:, :, :end], values[:, :, :end], is_causal=start == 0
            )  # (B, H, T - start, D/H)
            x = x + attention.out_proj(mixed.transpose(1, 2).flatten(2))  # (B, T - start, D)
            x = x if pre_norm else block.norm_1(x)
            inside = network.w_1(block.norm_2(x) if pre_norm else x)  # (B, T - start, 4 D)
            x = x + network.w_2(F.gelu(inside, approximate="tanh"))  # (B, T - start, D)
            x = x if pre_norm else block.norm_2(x)
        return model.final_norm(x[:, -1:]) @ model.token.weight.T  # (B, 1, V)


def fast_generate(
    model: GPT,
    ids: Tensor,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: int | None = None,
    seed: int | None = None,
) -> Tensor:
    """The result of ``generate`` with a cache that is laid out once; dropout is left out.

    Args:
        model: a GPT.
        ids: (B, T) int64.
        max_new_tokens: as for ``generate``, and so are all others.
        temperature: of the draws.
        top_k: how many tokens stay.
        top_p: how much probability stays.
        stop: ends a row.
        seed: of the draws.

    Returns:
        (B, T + n) int64. When the context is full every token's position changes with each new one:
        from then on each step computes the last ``context`` tokens anew, as ``generate`` does.

    Raises:
        ValueError: as ``generate`` does.
    """
    length = min(model.context, ids.shape[1] + max(max_new_tokens, 0))
    remembering = _Remembering(model, len(ids), length)
    return generate(remembering, ids, max_new_tokens, temperature, top_k, top_p, stop, seed)


def fast_optimiser(model: nn.Module, rate: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW over ``decay_groups``, all parameters in one kernel (CPU and CUDA).

    Args:
        model: any module.
        rate: the learning rate.
        weight_decay: as for ``decay_groups``.

    Returns:
        The optimiser, with the betas and eps of ``train``.
    """
    groups = decay_groups(model, weight_decay)
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), eps=1e-8, fused=True)


def flops_per_token(model: GPT, length: int) -> int:
    """Operations of a training step for each token (Chowdhery et al. 2022, appendix B).

    Args:
        model: a GPT.
        length: T, of the blocks on which it is trained.

    Returns:
        6 for each number in a matrix that tokens are multiplied by (2 forward, 4 backward; the
        table of tokens once, as output matrix), and 12 N D T for the scores and the weighted sums
        of the attention, the masked ones included.
    """
    width = model.token.embedding_dim
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    matrices = sum(layer.weight.numel() for layer in layers) + model.token.weight.numel()
    return 6 * matrices + 12 * len(model.blocks) * width * length
