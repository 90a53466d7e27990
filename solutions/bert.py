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
# # BERT by hand
#
# In this notebook you build BERT (Devlin et al., 2019): its input, its encoder, the two tasks on
# which it is pre-trained, the heads with which it is fine-tuned, a conditional random field for
# tagging, and the central idea of each of its relatives: ELMo, ALBERT, RoBERTa, XLNet,
# Transformer-XL and ELECTRA. There are 34 exercises to code and two questions to answer in words.
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
# | `T` | length of the input, padding counted |
# | `D`, `F` | width of the model, `hidden`; width inside the feed-forward network, `intermediate` |
# | `H` | number of heads; each is $D/H$ wide |
# | `N` | number of layers |
# | `V` | size of the vocabulary |
# | `L` | number of labels or tags |
#
# * **Ids, segments and labels** are `torch.int64`. Five ids are *special*: `PAD = 0` fills rows up,
#   `UNK = 1` stands for an unknown token, `CLS = 2` begins every input, `SEP = 3` ends every piece
#   of text in it, `MASK = 4` hides a token. All ids from `SPECIAL = 5` on are *ordinary*.
# * `IGNORE = -100` as a label means *no target here*; PyTorch's cross-entropy leaves it out.
# * A **mask** is a `torch.bool` tensor `(B, T)`; `True` means *a real token*, and `None` means that
#   all are real. It hides keys only: padding gets an output too, as a query, which nobody uses.
#   Padding stands on the right, and every row has at least one real token.
# * **Norms** stand after the sum (*post-norm*), and their `eps` is `1e-12`, as in BERT.
# * **Dropout** acts only in training mode (`model.train()`), never in evaluation mode
#   (`model.eval()`).
# * You have built layer normalisation, scaled dot-product attention and LSTMs in earlier chapters.
#   So you may use `nn.LayerNorm`, `F.scaled_dot_product_attention`, `F.cross_entropy`, `nn.LSTM`
#   and `nn.Dropout` wherever an exercise doesn't forbid it.
# * **Chance** comes from PyTorch's generator or from Python's `random`, as you like; the checks
#   judge it by counting.
# * **Bad input is refused** with a `ValueError` and one clear sentence. Each exercise lists what it
#   must refuse; nothing else needs a check.
# * Results keep the floating-point type of the module's parameters (`float32` or `float64`).
# * No function changes its inputs in place (but `pretraining_step` changes the model: that is what
#   it is for).
# * Modules are `nn.Module`s and have exactly the named parameters and submodules, because weights
#   are loaded into them by name. Parts without parameters, such as `nn.Dropout`, you may add under
#   any name. How you initialise a module is up to you, unless the exercise says how.
#
# One of the code cells below hands you, besides these constants:
#
# * `pad_batch(rows)`: makes a batch of inputs of different lengths. `rows` is a list of
#   `(ids, segments)`, as exercise 1 returns them; the result is `(ids, segments, mask)`, each
#   `(B, T)`.
# * `init_weights(model)`: draws the weights of all linear layers and embeddings in a model from
#   $\mathcal N(0, 0.02^2)$, sets biases to 0 and norms to 1 and 0, and returns the model.
# * `relative_code(distances, width)`: the sinusoidal code `(..., width)` of integer distances,
#   which may be negative; sines in the first half, cosines in the second. You need it in exercise
#   30.

# %%
"""BERT: input, encoder, pre-training, fine-tuning heads, a CRF, and what came after."""

# The options of a cell must stand on one line, however long it gets.
# ruff: noqa: E501

# %%
import itertools
import math
import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# %% tags=["instructor"]
# isort: split
import json
import warnings
from pathlib import Path
from typing import Any

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("bert")

# %%
PAD, UNK, CLS, SEP, MASK = 0, 1, 2, 3, 4
SPECIAL = 5  # ids below it are special
IGNORE = -100  # no target here; PyTorch's losses leave it out


def pad_batch(rows: list[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor, Tensor]:
    """Make one batch of inputs of different lengths, padded on the right.

    Args:
        rows: the ids and the segments of each input, as ``build_input`` returns them.

    Returns:
        ids and segments, both (B, T) int64 with PAD and segment 0 after each row's end, and the
        mask (B, T) bool, True where a real token stands. T is the length of the longest row.
    """
    length = max(len(ids) for ids, _ in rows)
    ids = torch.full((len(rows), length), PAD)  # (B, T)
    segments = torch.zeros_like(ids)  # (B, T)
    mask = torch.zeros_like(ids, dtype=torch.bool)  # (B, T)
    for row, (numbers, parts) in enumerate(rows):
        ids[row, : len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
        segments[row, : len(parts)] = torch.tensor(parts, dtype=torch.int64)
        mask[row, : len(numbers)] = True
    return ids, segments, mask


def init_weights(model: nn.Module) -> nn.Module:
    """Draw all weights of linear layers and embeddings anew, in place, and return the model.

    Weights come from N(0, 0.02^2), biases are 0, and norms begin with weight 1 and bias 0 (Devlin
    et al. 2019, released code; it also cuts the normal distribution off at two deviations).
    """
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
        if isinstance(module, (nn.Linear, nn.LayerNorm)) and module.bias is not None:
            nn.init.zeros_(module.bias)
    return model


def relative_code(distances: Tensor, width: int) -> Tensor:
    """The sinusoidal code of distances (Dai et al. 2019, section 3.3).

    Args:
        distances: integers of any sign, any shape (...).
        width: D, the number of features of a code.

    Returns:
        (..., D) in the default floating type: sines in the first half, cosines in the second.
    """
    wavelengths = 10000.0 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)  # (D/2,)
    wavelengths = wavelengths.to(distances.device)
    angles = distances.unsqueeze(-1).to(torch.float64) / wavelengths  # (..., D/2)
    code = torch.cat([angles.sin(), angles.cos()], dim=-1)[..., :width]  # (..., D)
    return code.to(torch.get_default_dtype())


# %% [markdown]
# ## The input
#
# ### Exercise 1: One input from one or two pieces
#
# BERT reads a single text or a pair: two sentences, a question and a passage. Write
# `build_input(first, second=None, max_length=512)`, which makes one input of them:
#
# | | ids | segments |
# |---|---|---|
# | one piece | `CLS` $A$ `SEP` | all 0 |
# | two pieces | `CLS` $A$ `SEP` $B$ `SEP` | 0 up to the first `SEP`, 1 after it |
#
# * `first` ($A$) and `second` ($B$) are lists of ids without special ones. The result is a pair of
#   lists of the same length, `(ids, segments)`.
# * If the input would be longer than `max_length`, special ids counted, tokens are removed one at a
#   time, each at the end of the piece that is **longer** at that moment, and of the second if both
#   are equally long. A single piece is cut at its end.
# * The lists that come in stay as they are.
# * `ValueError` if `first` is empty, or a `second` that is given; or if `max_length` leaves no room
#   for one token of each piece: if it is smaller than 3 for one piece, or 5 for two.
#
# *Example.* `build_input([5, 6], [7, 8, 9], max_length=6)` is
# `([2, 5, 6, 3, 7, 3], [0, 0, 0, 0, 1, 1])`: first 9 goes, since the second piece is the longer
# one, then 8, since both are equally long.
#
# Book: section *input* (`brt-input`).
#
# <details><summary>Hint 1</summary>
#
# Every piece is closed by a `SEP`, also the last one. How many special ids are there in each case?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Ask for `second is None`, not for `not second`: an empty list was given and must be refused.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A loop that removes one token per round needs no formula. `pop()` removes at the end, but from the
# list itself: copy it first.
#
# </details>


# %% exercise="build_input" points=3 section="brt-input"
def build_input(
    first: list[int], second: list[int] | None = None, max_length: int = 512
) -> tuple[list[int], list[int]]:
    """Join one or two pieces of text to an input of BERT (Devlin et al. 2019, section 3).

    Args:
        first: A, the ids of the first piece, at least one.
        second: B, the ids of the second piece, at least one; None: there is none.
        max_length: the most ids that the input may have, special ones counted.

    Returns:
        The ids [CLS] A [SEP], or [CLS] A [SEP] B [SEP], and the segment of each: 0 up to the first
        SEP, 1 after it. What is too long is cut token by token, always at the end of the longer
        piece, of the second if both are equally long.

    Raises:
        ValueError: if first, or a second that is given, is empty; or if max_length is smaller than
            3 (one piece) or 5 (two pieces).
    """
    ### BEGIN SOLUTION
    least = 3 if second is None else 5  # one token of each piece, CLS, and SEP for each
    if max_length < least:
        raise ValueError(f"max_length must be at least {least} here, but is {max_length}")
    if not first or (second is not None and not second):
        raise ValueError("a piece of text without tokens can't be an input")
    if second is None:
        ids = [CLS, *first[: max_length - 2], SEP]
        return ids, [0] * len(ids)
    first, second = list(first), list(second)  # the caller's lists stay as they are
    while len(first) + len(second) > max_length - 3:
        longer = first if len(first) > len(second) else second
        longer.pop()
    segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
    return [CLS, *first, SEP, *second, SEP], segments
    ### END SOLUTION


# %% check="build_input" tags=["active-ipynb"]
# check("build_input")

# %% [markdown]
# ## The encoder
#
# ### Exercise 2: The Gaussian error linear unit
#
# Where the Transformer has a ReLU, BERT has a smooth relative of it. Write `gelu(x)`:
#
# $$\operatorname{gelu}(x) = x\,\Phi(x),\qquad
# \Phi(x) = \tfrac12\Bigl(1 + \operatorname{erf}\frac{x}{\sqrt 2}\Bigr)$$
#
# * `x` has any shape, and so has the result. $\Phi$ is the distribution function of the standard
#   normal distribution.
# * It is the **exact** form, by `erf`. The approximation with `tanh`, which some programs use,
#   differs in the fourth decimal place and counts as wrong here.
# * Not to be called: `F.gelu`, `nn.GELU` and the functions behind them.
#
# *Example.* $1$ becomes $0.8413$, $-1$ becomes $-0.1587$, and 0 stays 0. For large $|x|$ it is the
# ReLU.
#
# Book: section *encoder* (`brt-encoder`).
#
# <details><summary>Hint 1</summary>
#
# `torch.erf` works entry by entry.
#
# </details>
# <details><summary>Hint 2</summary>
#
# $\sqrt 2$ is a number, not a tensor: `math.sqrt(2)` keeps the type of `x`.
#
# </details>


# %% exercise="gelu" points=1 section="brt-encoder" forbids="gelu GELU"
def gelu(x: Tensor) -> Tensor:
    """The Gaussian error linear unit (Hendrycks and Gimpel 2016, section 2).

    Args:
        x: any shape.

    Returns:
        The same shape: x Phi(x), with the distribution function Phi of the standard normal
        distribution, exactly (by erf), not by an approximation with tanh.
    """
    ### BEGIN SOLUTION
    return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))
    ### END SOLUTION


# %% check="gelu" tags=["active-ipynb"]
# check("gelu")

# %% [markdown]
# ### Exercise 3: Embeddings
#
# Write `BertEmbeddings(vocab_size, hidden, max_length=512, segments=2, dropout=0.0)`. A token's
# first vector is the **sum** of three rows, each from a table that is learned: one for the token,
# one for its position, one for its segment.
#
# $$x_t = \operatorname{dropout}\bigl(\operatorname{norm}(
# \text{token}_{i_t} + \text{position}_t + \text{segment}_{s_t})\bigr)$$
#
# * Submodules: `token = nn.Embedding(vocab_size, hidden)`,
#   `position = nn.Embedding(max_length, hidden)`, `segment = nn.Embedding(segments, hidden)`, and
#   `norm = nn.LayerNorm(hidden, eps=1e-12)`.
# * `forward(ids, segment_ids=None)`: both `(B, T)` `torch.int64`; without segments all are 0. The
#   result is `(B, T, D)`.
# * Positions count from 0 in every row. Nothing is scaled by $\sqrt D$.
# * `ValueError` (when it is called) if $T$ is larger than `max_length`; the message names both
#   numbers. A learned table has no row for what lies beyond it.
#
# *Example.* $D = 2$; the rows are $(1, 0)$ for the token, $(0, 1)$ for the position and $(2, 0)$
# for the segment. Their sum is $(3, 1)$, and the norm makes $(1, -1)$ of it.
#
# Book: section *embeddings* (`brt-embeddings`).
#
# <details><summary>Hint 1</summary>
#
# An `nn.Embedding` is called with ids. For the positions these are `torch.arange(T)`, on the device
# of `ids`; the result `(T, D)` broadcasts over the batch.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Without segments the row of segment 0 is added all the same: it is not the same as adding nothing.
#
# </details>


# %% exercise="BertEmbeddings" points=3 section="brt-embeddings"
class BertEmbeddings(nn.Module):
    """The sum of three learned tables, normalised (Devlin et al. 2019, section 3, figure 2).

    Submodules: ``token`` = nn.Embedding(vocab_size, hidden), ``position`` =
    nn.Embedding(max_length, hidden), ``segment`` = nn.Embedding(segments, hidden), ``norm`` =
    nn.LayerNorm(hidden, eps=1e-12).
    """

    def __init__(
        self,
        vocab_size: int,
        hidden: int,
        max_length: int = 512,
        segments: int = 2,
        dropout: float = 0.0,
    ) -> None:
        """Create the three tables and the norm.

        Args:
            vocab_size: V.
            hidden: D.
            max_length: how many positions have a row.
            segments: how many segments have a row.
            dropout: acts on the result, in training mode.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.token = nn.Embedding(vocab_size, hidden)
        self.position = nn.Embedding(max_length, hidden)
        self.segment = nn.Embedding(segments, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        ### END SOLUTION

    def forward(self, ids: Tensor, segment_ids: Tensor | None = None) -> Tensor:
        """Look up token, position and segment, add the three, normalise.

        Args:
            ids: (B, T) int64.
            segment_ids: (B, T) int64; None: segment 0 everywhere.

        Returns:
            (B, T, D), dropout(norm(token + position + segment)).

        Raises:
            ValueError: if T is larger than max_length.
        """
        ### BEGIN SOLUTION
        length, positions = ids.shape[1], self.position.num_embeddings
        if length > positions:
            raise ValueError(f"the input has {length} tokens, but there are {positions} positions")
        if segment_ids is None:
            segment_ids = torch.zeros_like(ids)  # (B, T)
        x = self.token(ids) + self.segment(segment_ids)  # (B, T, D)
        x = x + self.position.weight[:length]  # (B, T, D)
        return self.dropout(self.norm(x))  # (B, T, D)
        ### END SOLUTION


# %% check="BertEmbeddings" tags=["active-ipynb"]
# check("BertEmbeddings")

# %% [markdown]
# ### Exercise 4: Self-attention
#
# In BERT every token attends to all real tokens, on both sides: there is no causal mask. Write
# `SelfAttention(hidden, num_heads, dropout=0.0)`.
#
# * Submodules: `q_proj`, `k_proj`, `v_proj`, `out_proj`, each `nn.Linear(hidden, hidden)` with
#   bias. Head $h$ (from 0) has the features $h\,D/H$ to $(h + 1)\,D/H - 1$ of each projection.
# * `forward(x, mask=None)`: `x` `(B, T, D)`, `mask` `(B, T)` bool. The result is `(B, T, D)`. Keys
#   at padding get the weight 0; queries at padding are treated like all others.
# * Scores are divided by $\sqrt{D/H}$. Dropout acts on the weights, in training mode.
# * `ValueError` (when the module is created) if `num_heads` does not divide `hidden`.
# * Not to be called: `nn.MultiheadAttention`, `nn.TransformerEncoderLayer` and the functions behind
#   them.
#
# *Example.* One head; `v_proj` and `out_proj` pass their input on unchanged, and `q_proj` is 0, so
# that all scores are equal. If the values are $2$, $4$, $9$ and the last token is padding, all
# three places get the mean of the first two, $3$.
#
# Book: section *encoder* (`brt-encoder`).
#
# <details><summary>Hint 1</summary>
#
# You built this for the Transformer. To split into heads, cut the last axis into two and exchange
# the axes of length `T` and `H`; to join, go the same way back.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The mask belongs to the keys, the last axis of the scores `(B, H, T, T)`. Which two axes of length
# 1 must be added to `(B, T)`, and where?
#
# </details>
# <details><summary>Hint 3</summary>
#
# `F.scaled_dot_product_attention` has a parameter for dropout and doesn't know whether your module
# is training; `self.training` tells.
#
# </details>


# %% exercise="SelfAttention" points=3 section="brt-encoder" forbids="MultiheadAttention multi_head_attention_forward TransformerEncoderLayer"
class SelfAttention(nn.Module):
    """Every token attends to all real ones, left and right (Vaswani et al. 2017, section 3.2.2).

    Submodules: ``q_proj``, ``k_proj``, ``v_proj``, ``out_proj``, each nn.Linear(hidden, hidden)
    with bias.
    """

    def __init__(self, hidden: int, num_heads: int, dropout: float = 0.0) -> None:
        """Create the four projections.

        Args:
            hidden: D.
            num_heads: H, a divisor of hidden.
            dropout: probability with which a weight is dropped in training mode.

        Raises:
            ValueError: if num_heads does not divide hidden.
        """
        super().__init__()
        ### BEGIN SOLUTION
        if num_heads < 1 or hidden % num_heads != 0:
            raise ValueError(f"hidden={hidden} can't be split into {num_heads} equal heads")
        self.num_heads = num_heads
        self.q_proj = nn.Linear(hidden, hidden)
        self.k_proj = nn.Linear(hidden, hidden)
        self.v_proj = nn.Linear(hidden, hidden)
        self.out_proj = nn.Linear(hidden, hidden)
        self.dropout = dropout
        ### END SOLUTION

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend to all real tokens.

        Args:
            x: (B, T, D).
            mask: (B, T) bool, True where a real token stands; hides keys, not queries. None: all
                tokens are real.

        Returns:
            (B, T, D).
        """
        ### BEGIN SOLUTION
        batch, length, width = x.shape
        heads = (batch, length, self.num_heads, width // self.num_heads)
        queries = self.q_proj(x).reshape(heads).transpose(1, 2)  # (B, H, T, D/H)
        keys = self.k_proj(x).reshape(heads).transpose(1, 2)  # (B, H, T, D/H)
        values = self.v_proj(x).reshape(heads).transpose(1, 2)  # (B, H, T, D/H)
        joined = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=None if mask is None else mask[:, None, None, :],  # (B, 1, 1, T)
            dropout_p=self.dropout if self.training else 0.0,
        )  # (B, H, T, D/H)
        return self.out_proj(joined.transpose(1, 2).reshape(batch, length, width))  # (B, T, D)
        ### END SOLUTION


# %% check="SelfAttention" tags=["active-ipynb"]
# check("SelfAttention")

# %% [markdown]
# ### Exercise 5: A layer
#
# Write `BertLayer(hidden, num_heads, intermediate, dropout=0.0)`, a layer of the Transformer's
# encoder with `gelu`:
#
# $$\begin{aligned}
# x' &= \operatorname{norm}_1\bigl(x + \operatorname{dropout}(\operatorname{attention}(x))\bigr)\\
# y &= \operatorname{norm}_2\bigl(x' +
# \operatorname{dropout}(W_2\,\operatorname{gelu}(W_1 x' + b_1) + b_2)\bigr)
# \end{aligned}$$
#
# * Submodules: `attention`, your `SelfAttention`; `attention_norm` (the first norm) and
#   `output_norm` (the second), each `nn.LayerNorm(hidden, eps=1e-12)`;
#   `w_1 = nn.Linear(hidden, intermediate)` and `w_2 = nn.Linear(intermediate, hidden)`.
# * `forward(x, mask=None)`: `x` `(B, T, D)`, `mask` `(B, T)` bool. The result is `(B, T, D)`.
# * `dropout` reaches the attention weights and both places in the formula. Between `gelu` and $W_2$
#   there is none.
# * `ValueError` (when the module is created) if `num_heads` does not divide `hidden`; it may come
#   from the attention.
# * Not to be called: `nn.TransformerEncoderLayer`, `nn.TransformerEncoder`.
#
# *Example.* If all parameters of `attention.out_proj` and of `w_2` are 0, only shortcuts and norms
# are left, and $(1, 3)$ becomes $(-1, 1)$.
#
# Book: section *encoder* (`brt-encoder`).
#
# <details><summary>Hint 1</summary>
#
# It is post-norm: each norm acts on a sum, and what the second half adds to is the output of the
# first norm.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Dropout has no parameters; one `nn.Dropout` can serve both places.
#
# </details>


# %% exercise="BertLayer" points=3 section="brt-encoder" forbids="TransformerEncoderLayer TransformerEncoder"
class BertLayer(nn.Module):
    """Self-attention and a feed-forward network, each with shortcut and post-norm.

    As in Devlin et al. (2019), section 3, and Vaswani et al. (2017), section 3.1, with GELU for
    ReLU. Submodules: ``attention`` = SelfAttention, ``attention_norm`` and ``output_norm`` =
    nn.LayerNorm(hidden, eps=1e-12), ``w_1`` = nn.Linear(hidden, intermediate), ``w_2`` =
    nn.Linear(intermediate, hidden).
    """

    def __init__(
        self, hidden: int, num_heads: int, intermediate: int, dropout: float = 0.0
    ) -> None:
        """Create the submodules.

        Args:
            hidden: D.
            num_heads: H, a divisor of hidden.
            intermediate: F.
            dropout: of the attention weights and of what each of the two parts returns.

        Raises:
            ValueError: if num_heads does not divide hidden.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.attention = SelfAttention(hidden, num_heads, dropout)
        self.attention_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.w_1 = nn.Linear(hidden, intermediate)
        self.w_2 = nn.Linear(intermediate, hidden)
        self.output_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        ### END SOLUTION

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Let every token look at all, then transform each for itself.

        Args:
            x: (B, T, D).
            mask: (B, T) bool, True where a real token stands. None: everywhere.

        Returns:
            (B, T, D).
        """
        ### BEGIN SOLUTION
        x = self.attention_norm(x + self.dropout(self.attention(x, mask)))  # (B, T, D)
        inner = gelu(self.w_1(x))  # (B, T, F)
        return self.output_norm(x + self.dropout(self.w_2(inner)))  # (B, T, D)
        ### END SOLUTION


# %% check="BertLayer" tags=["active-ipynb"]
# check("BertLayer")

# %% [markdown]
# ### Exercise 6: The model
#
# Write `BertModel(vocab_size, hidden=768, num_layers=12, num_heads=12, intermediate=3072,
# max_length=512, segments=2, dropout=0.1)`: embeddings, layers, and the *pooler*, a small network
# on the first token.
#
# * Submodules: `embeddings`, your `BertEmbeddings`; `layers`, an `nn.ModuleList` of `num_layers`
#   `BertLayer`s, each with parameters of its own; `pooler = nn.Linear(hidden, hidden)`.
# * `forward(ids, segment_ids=None, mask=None)`: each `(B, T)`. Returns `(hidden, pooled)`: `hidden`
#   `(B, T, D)`, the output of the last layer, and `pooled` `(B, D)`, $\tanh$ of the pooler applied
#   to `hidden` at the first token, `CLS`.
# * `dropout` reaches the embeddings and all layers; the pooler has none.
# * Weights begin as BERT's do: apply `init_weights`, which is given.
# * `ValueError`s of the parts may come through as they are: a number of heads that doesn't divide,
#   an input that is too long.
#
# *Example.* In evaluation mode, change the last token of a row: `hidden` changes at **every** place
# of the row, the first included, and at none of the other rows. Append columns of padding, hidden
# by the mask: nothing changes at the real places.
#
# Book: section *encoder* (`brt-encoder`).
#
# <details><summary>Hint 1</summary>
#
# `nn.ModuleList` takes a generator: `nn.ModuleList(BertLayer(...) for _ in range(num_layers))`. A
# list of one layer repeated would share its parameters.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The mask goes into every layer. Padding has a vector after the embeddings too, and each layer
# would attend to it.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `hidden[:, 0]` is `(B, D)`.
#
# </details>


# %% exercise="BertModel" points=4 section="brt-encoder"
class BertModel(nn.Module):
    """Embeddings, layers and pooler (Devlin et al. 2019, section 3; pooler: released code).

    Submodules: ``embeddings`` = BertEmbeddings, ``layers`` = nn.ModuleList of BertLayers,
    ``pooler`` = nn.Linear(hidden, hidden).
    """

    def __init__(
        self,
        vocab_size: int,
        hidden: int = 768,
        num_layers: int = 12,
        num_heads: int = 12,
        intermediate: int = 3072,
        max_length: int = 512,
        segments: int = 2,
        dropout: float = 0.1,
    ) -> None:
        """Create the submodules; the defaults are those of BERT-base.

        Args:
            vocab_size: V.
            hidden: D.
            num_layers: N.
            num_heads: H, a divisor of hidden.
            intermediate: F.
            max_length: how many positions have a row.
            segments: how many segments have a row.
            dropout: of the embeddings and of all layers.

        Raises:
            ValueError: if num_heads does not divide hidden.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.embeddings = BertEmbeddings(vocab_size, hidden, max_length, segments, dropout)
        self.layers = nn.ModuleList(
            BertLayer(hidden, num_heads, intermediate, dropout) for _ in range(num_layers)
        )
        self.pooler = nn.Linear(hidden, hidden)
        init_weights(self)
        ### END SOLUTION

    def forward(
        self, ids: Tensor, segment_ids: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Encode a batch.

        Args:
            ids: (B, T) int64.
            segment_ids: (B, T) int64; None: segment 0 everywhere.
            mask: (B, T) bool, True where a real token stands. None: everywhere.

        Returns:
            hidden (B, T, D), the output of the last layer, and pooled (B, D),
            tanh(pooler(hidden of the first token)).

        Raises:
            ValueError: if T is larger than max_length.
        """
        ### BEGIN SOLUTION
        x = self.embeddings(ids, segment_ids)  # (B, T, D)
        for layer in self.layers:
            x = layer(x, mask)  # (B, T, D)
        return x, torch.tanh(self.pooler(x[:, 0]))  # (B, T, D), (B, D)
        ### END SOLUTION


# %% check="BertModel" tags=["active-ipynb"]
# check("BertModel")

# %% [markdown]
# ### Exercise 7: How large is it?
#
# Write `count_parameters(vocab_size=30522, hidden=768, num_layers=12, intermediate=3072,
# max_length=512, segments=2, heads=False)`: how many numbers a `BertModel` of this size learns.
#
# * The result is an `int`. The pooler counts.
# * `heads=True` adds the two heads of pre-training (exercises 13 and 14): for the masked language
#   model a linear layer $D \to D$, a norm and a bias `(V,)`; for the sentence pairs a linear layer
#   $D \to 2$. The matrix that turns vectors into scores of tokens is the token table itself and
#   counts once.
# * A linear layer has a bias; a norm has two vectors. The number of attention heads makes no
#   difference, and there is no parameter for it.
#
# *Example.* `count_parameters(10, 4, 1, 8, 6)` is 272: 80 in the embeddings, 88 in the attention
# with its norm, 84 in the feed-forward network with its norm, 20 in the pooler. With `heads=True`
# it is 320. The defaults are BERT-base.
#
# Book: section *parameters* (`brt-parameters`).
#
# <details><summary>Hint 1</summary>
#
# Write down the shape of every parameter of exercises 3 to 6. A linear layer from $D$ to $F$ has
# $DF + F$ numbers.
#
# </details>
# <details><summary>Hint 2</summary>
#
# There is a norm in the embeddings, and there are two in every layer.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Or let PyTorch count: inside `with torch.device("meta"):` a model is made without any memory for
# its numbers, and `numel()` of its parameters still works.
#
# </details>


# %% exercise="count_parameters" points=2 section="brt-parameters"
def count_parameters(
    vocab_size: int = 30522,
    hidden: int = 768,
    num_layers: int = 12,
    intermediate: int = 3072,
    max_length: int = 512,
    segments: int = 2,
    heads: bool = False,
) -> int:
    """How many numbers a BertModel learns; the number of heads of attention doesn't matter.

    Args:
        vocab_size: V.
        hidden: D.
        num_layers: N.
        intermediate: F.
        max_length: how many positions have a row.
        segments: how many segments have a row.
        heads: whether to count the two pre-training heads as well; the table that the masked
            language model shares with the embeddings counts once.

    Returns:
        The number of parameters, pooler included.
    """
    ### BEGIN SOLUTION
    norm = 2 * hidden  # weight and bias
    square = hidden * hidden + hidden  # a linear layer from D to D
    embeddings = (vocab_size + max_length + segments) * hidden + norm
    attention = 4 * square + norm
    feed_forward = hidden * intermediate + intermediate + intermediate * hidden + hidden + norm
    total = embeddings + num_layers * (attention + feed_forward) + square  # the pooler
    if heads:
        masked = square + norm + vocab_size  # the matrix is the token table, counted above
        total += masked + 2 * hidden + 2
    return total
    ### END SOLUTION


# %% check="count_parameters" tags=["active-ipynb"]
# check("count_parameters")

# %% [markdown]
# ### Exercise 8: A checkpoint's names
#
# A checkpoint is a table from names to tensors. Those of BERT on Hugging Face name the same numbers
# differently. Write `rename_parameters(state)`, which gives them our names.
#
# | theirs | ours |
# |---|---|
# | `embeddings.word_embeddings.weight` | `embeddings.token.weight` |
# | `embeddings.position_embeddings.weight` | `embeddings.position.weight` |
# | `embeddings.token_type_embeddings.weight` | `embeddings.segment.weight` |
# | `embeddings.LayerNorm.*` | `embeddings.norm.*` |
# | `encoder.layer.i.attention.self.query.*` | `layers.i.attention.q_proj.*` |
# | `encoder.layer.i.attention.self.key.*` | `layers.i.attention.k_proj.*` |
# | `encoder.layer.i.attention.self.value.*` | `layers.i.attention.v_proj.*` |
# | `encoder.layer.i.attention.output.dense.*` | `layers.i.attention.out_proj.*` |
# | `encoder.layer.i.attention.output.LayerNorm.*` | `layers.i.attention_norm.*` |
# | `encoder.layer.i.intermediate.dense.*` | `layers.i.w_1.*` |
# | `encoder.layer.i.output.dense.*` | `layers.i.w_2.*` |
# | `encoder.layer.i.output.LayerNorm.*` | `layers.i.output_norm.*` |
# | `pooler.dense.*` | `pooler.*` |
# | `cls.predictions.transform.dense.*` | `mlm.dense.*` |
# | `cls.predictions.transform.LayerNorm.*` | `mlm.norm.*` |
# | `cls.predictions.bias` | `mlm.bias` |
# | `cls.seq_relationship.*` | `nsp.*` |
# | `classifier.*` | `classifier.*` |
# | `qa_outputs.*` | `classifier.*` |
#
# * `state` is a `dict` from name to tensor, and so is the result, with the **same** tensors. `*` is
#   `weight` or `bias`; `i` is the number of a layer.
# * The names in the upper part of the table, down to the pooler, may begin with `bert.` (in a model
#   with heads) or not (in the bare encoder). The result keeps the prefix where it was.
# * In old checkpoints the parameters of norms are called `gamma` and `beta`: they become `weight`
#   and `bias`.
# * Left out: names that begin with `cls.predictions.decoder.` (the tied table, which is there
#   already) and names that end with `position_ids` (no parameters).
# * `ValueError` for any other name; the message says which.
#
# *Example.* `bert.encoder.layer.3.attention.self.query.bias` becomes
# `bert.layers.3.attention.q_proj.bias`, and `encoder.layer.0.output.LayerNorm.gamma` becomes
# `layers.0.output_norm.weight`.
#
# Book: section *checkpoint* (`brt-checkpoint`).
#
# <details><summary>Hint 1</summary>
#
# Take a name apart first: the prefix `bert.` if it is there (`str.removeprefix`), and the last
# word, `weight` or `bias` (`str.rpartition(".")`). What is left can be looked up in a `dict`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Split the name of something in a layer at the dots: the third word is its number, and the words
# after it can be looked up in a second `dict`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A chain of `str.replace` is short but dangerous: `output.dense` also occurs inside
# `attention.output.dense`, so the order matters, and an unknown name passes unseen.
#
# </details>


# %% exercise="rename_parameters" points=2 section="brt-checkpoint"
def rename_parameters(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Give the tensors of a Hugging Face BERT checkpoint the names that our modules have.

    Args:
        state: name -> tensor; the names of the encoder begin with ``bert.``, or all without it.

    Returns:
        Our name -> the same tensor, with the prefix ``bert.`` where the old name had it. The tied
        table ``cls.predictions.decoder`` and ``position_ids`` are left out.

    Raises:
        ValueError: if a name is not one of a BERT checkpoint; the message says which.
    """
    ### BEGIN SOLUTION
    parts = {
        "embeddings.word_embeddings": "embeddings.token",
        "embeddings.position_embeddings": "embeddings.position",
        "embeddings.token_type_embeddings": "embeddings.segment",
        "embeddings.LayerNorm": "embeddings.norm",
        "pooler.dense": "pooler",
    }
    in_layer = {
        "attention.self.query": "attention.q_proj",
        "attention.self.key": "attention.k_proj",
        "attention.self.value": "attention.v_proj",
        "attention.output.dense": "attention.out_proj",
        "attention.output.LayerNorm": "attention_norm",
        "intermediate.dense": "w_1",
        "output.dense": "w_2",
        "output.LayerNorm": "output_norm",
    }
    heads = {
        "cls.predictions.transform.dense": "mlm.dense",
        "cls.predictions.transform.LayerNorm": "mlm.norm",
        "cls.predictions": "mlm",
        "cls.seq_relationship": "nsp",
        "classifier": "classifier",
        "qa_outputs": "classifier",
    }
    renamed = {}
    for name, tensor in state.items():
        if name.startswith("cls.predictions.decoder.") or name.endswith("position_ids"):
            continue
        part, _, ending = name.rpartition(".")
        if part.endswith("LayerNorm"):  # as TensorFlow calls the two
            ending = {"gamma": "weight", "beta": "bias"}.get(ending, ending)
        prefix = "bert." if part.startswith("bert.") else ""
        inside = part.removeprefix("bert.")
        words = inside.split(".")
        if not prefix and part in heads:
            new = heads[part]
        elif inside in parts:
            new = prefix + parts[inside]
        elif words[:2] == ["encoder", "layer"] and ".".join(words[3:]) in in_layer:
            new = f"{prefix}layers.{words[2]}.{in_layer['.'.join(words[3:])]}"
        else:
            raise ValueError(f"{name} is no parameter of BERT that we know")
        if ending not in ("weight", "bias"):
            raise ValueError(f"{name} is neither a weight nor a bias")
        renamed[f"{new}.{ending}"] = tensor
    return renamed
    ### END SOLUTION


# %% check="rename_parameters" tags=["active-ipynb"]
# check("rename_parameters")

# %% [markdown]
# ## Data for pre-training
#
# ### Exercise 9: Masked tokens
#
# Pre-training hides some tokens and asks for them. Write `mask_tokens(ids, vocab_size, rate=0.15)`.
#
# * `ids` `(B, T)` `torch.int64`. Each **ordinary** token (id at least `SPECIAL`) is *chosen* with
#   probability `rate`, independently of all others. Special ones never are.
# * Of a chosen token becomes, by a draw of its own:
#
# | with probability | in its place stands |
# |---|---|
# | 0.8 | `MASK` |
# | 0.1 | an ordinary id, drawn evenly from `SPECIAL` to $V - 1$ (it may be the same one) |
# | 0.1 | the token itself |
#
# * Returns `(corrupted, labels)`, both `(B, T)` `torch.int64`: the input with the chosen tokens
#   corrupted, and the **original** id where a token was chosen, `IGNORE` everywhere else.
# * `ValueError` if `rate` is not between 0 and 1 (both allowed), or if `vocab_size` is not larger
#   than `SPECIAL`.
#
# *Example.* The row `[2, 17, 8, 30, 3]` with the 17 chosen may become `[2, 4, 8, 30, 3]`,
# `[2, 25, 8, 30, 3]` or `[2, 17, 8, 30, 3]`; its labels are `[-100, 17, -100, -100, -100]` in all
# three cases.
#
# Book: section *masking* (`brt-masking`).
#
# <details><summary>Hint 1</summary>
#
# `torch.rand(ids.shape) < rate` is `True` with probability `rate`, at each place for itself.
#
# </details>
# <details><summary>Hint 2</summary>
#
# One more uniform number for each place decides its fate: below 0.8, below 0.9, or not. Two
# separate draws, one against 0.8 and one against 0.1, would need a second look at the
# probabilities.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `torch.where(condition, a, b)` and `masked_fill` make new tensors. Draw random ids for all places
# with `torch.randint`, and use those you need.
#
# </details>


# %% exercise="mask_tokens" points=4 section="brt-masking"
def mask_tokens(ids: Tensor, vocab_size: int, rate: float = 0.15) -> tuple[Tensor, Tensor]:
    """Choose tokens to predict and corrupt them (Devlin et al. 2019, section 3.1 and A.1).

    Args:
        ids: (B, T) int64; ids below SPECIAL are special and never chosen.
        vocab_size: V.
        rate: the probability with which each ordinary token is chosen.

    Returns:
        corrupted (B, T): a chosen token is MASK with probability 0.8, a random ordinary id with
        0.1, itself with 0.1; labels (B, T): the original id where chosen, IGNORE elsewhere.

    Raises:
        ValueError: if not 0 <= rate <= 1, or vocab_size <= SPECIAL.
    """
    ### BEGIN SOLUTION
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must lie between 0 and 1, but is {rate}")
    if vocab_size <= SPECIAL:
        raise ValueError(f"vocab_size must be larger than {SPECIAL}, but is {vocab_size}")
    chosen = (ids >= SPECIAL) & (torch.rand(ids.shape, device=ids.device) < rate)  # (B, T)
    labels = ids.masked_fill(~chosen, IGNORE)  # (B, T)
    fate = torch.rand(ids.shape, device=ids.device)  # (B, T)
    others = torch.randint_like(ids, SPECIAL, vocab_size)  # (B, T)
    corrupted = ids.masked_fill(chosen & (fate < 0.8), MASK)  # (B, T)
    corrupted = torch.where(chosen & (fate >= 0.9), others, corrupted)  # (B, T)
    return corrupted, labels
    ### END SOLUTION


# %% check="mask_tokens" tags=["active-ipynb"]
# check("mask_tokens")

# %% [markdown]
# ### Exercise 10: Whole words
#
# A word of several pieces is easy to guess from the pieces that are left. Later models of the BERT
# family hide whole words. Write `mask_whole_words(ids, starts, vocab_size, rate=0.15)`.
#
# * `ids` `(B, T)` `torch.int64`; `starts` `(B, T)` bool is `True` at the first piece of each word,
#   and `False` at its later pieces and at special tokens.
# * A word is a first piece and the later pieces that follow it directly. It ends where the next
#   word begins, at a special token, and at the end of the row. (An ordinary piece that stands first
#   in its row, or directly after a special token, begins a word in any case.)
# * Each **word** is chosen with probability `rate`, independently of all others, with all its
#   pieces.
# * Each **piece** of a chosen word then has its own draw of 0.8, 0.1, 0.1, as in exercise
#   9.
# * Returns `(corrupted, labels)` and refuses as exercise 9 does: a `ValueError` if
#   `rate` is not between 0 and 1, or if `vocab_size` is not larger than `SPECIAL`.
#
# *Example.* In `[2, 9, 12, 8, 3]` with starts at places 1 and 3 there are two words, `9 12` and
# `8`. The labels at places 1 and 2 are either both `IGNORE` or 9 and 12.
#
# Book: section *whole words* (`brt-whole-words`).
#
# <details><summary>Hint 1</summary>
#
# `cumsum` of the starts numbers the words of a row: all pieces of a word have the same number.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Draw one uniform number for each word and look it up at each piece: `draws[number]`. Two rows must
# not share a draw: number the words through the whole batch, or draw a row of numbers for each.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Special tokens between two words have the number of the word before them. Take them out of what is
# chosen at the end. And a piece that follows a special token must not get the number of the word
# before it.
#
# </details>


# %% exercise="mask_whole_words" points=3 section="brt-whole-words"
def mask_whole_words(
    ids: Tensor, starts: Tensor, vocab_size: int, rate: float = 0.15
) -> tuple[Tensor, Tensor]:
    """Choose whole words to predict and corrupt them (released code of Devlin et al., May 2019).

    Args:
        ids: (B, T) int64; ids below SPECIAL are special, never chosen, and end a word.
        starts: (B, T) bool, True at the first piece of each word.
        vocab_size: V.
        rate: the probability with which each word is chosen, with all its pieces.

    Returns:
        corrupted and labels, both (B, T), as ``mask_tokens`` returns them; each piece of a chosen
        word becomes MASK, a random ordinary id or itself by a draw of its own.

    Raises:
        ValueError: if not 0 <= rate <= 1, or vocab_size <= SPECIAL.
    """
    ### BEGIN SOLUTION
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must lie between 0 and 1, but is {rate}")
    if vocab_size <= SPECIAL:
        raise ValueError(f"vocab_size must be larger than {SPECIAL}, but is {vocab_size}")
    ordinary = ids >= SPECIAL  # (B, T)
    # A piece that stands first in its row, or after a special token, continues no word.
    alone = ordinary.clone()  # (B, T)
    alone[:, 1:] &= ~ordinary[:, :-1]
    begins = ordinary & (starts | alone)  # (B, T)
    # Words are numbered through the whole batch, so that each has one draw.
    word = begins.flatten().cumsum(0).reshape(ids.shape)  # (B, T)
    words = int(begins.sum())
    drawn = torch.rand(words + 1, device=ids.device) < rate  # (words + 1,), number 0 is no word
    chosen = drawn[word] & ordinary  # (B, T)
    labels = ids.masked_fill(~chosen, IGNORE)  # (B, T)
    fate = torch.rand(ids.shape, device=ids.device)  # (B, T)
    others = torch.randint_like(ids, SPECIAL, vocab_size)  # (B, T)
    corrupted = ids.masked_fill(chosen & (fate < 0.8), MASK)  # (B, T)
    corrupted = torch.where(chosen & (fate >= 0.9), others, corrupted)  # (B, T)
    return corrupted, labels
    ### END SOLUTION


# %% check="mask_whole_words" tags=["active-ipynb"]
# check("mask_whole_words")

# %% [markdown]
# ### Exercise 11: Static and dynamic masks
#
# The original BERT masked its data ten times beforehand and used the ten versions in turn; RoBERTa
# (Liu et al., 2019) masks anew each time. Write
# `masking_epochs(ids, vocab_size, epochs, duplicates=None, rate=0.15)`.
#
# * The result is a list of `epochs` pairs `(corrupted, labels)`, as from `mask_tokens`.
# * `duplicates=None`: each epoch draws a masking of its own.
# * `duplicates=k`: only $k$ maskings are drawn, and epoch $e$ (from 0) uses number $e \bmod k$.
# * `ValueError` if `epochs` or `duplicates` is smaller than 1.
#
# *Example.* With `epochs=5, duplicates=2` epochs 0, 2 and 4 are equal, and so are 1 and 3. In the
# original BERT, 40 epochs with 10 duplicates, each masking was seen four times.
#
# Book: section *RoBERTa* (`brt-roberta`).
#
# <details><summary>Hint 1</summary>
#
# Both cases are lists made by `mask_tokens`; they differ in how many there are.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `not duplicates` is also true for 0, which must be refused.
#
# </details>


# %% exercise="masking_epochs" points=2 section="brt-roberta"
def masking_epochs(
    ids: Tensor, vocab_size: int, epochs: int, duplicates: int | None = None, rate: float = 0.15
) -> list[tuple[Tensor, Tensor]]:
    """The masking of every epoch, drawn anew or from a store (Liu et al. 2019, section 4.1).

    Args:
        ids: (B, T) int64.
        vocab_size: V.
        epochs: how many, at least 1.
        duplicates: how many maskings are drawn beforehand and used in turn, at least 1; None: each
            epoch draws its own.
        rate: as for ``mask_tokens``.

    Returns:
        (corrupted, labels) of each epoch, as ``mask_tokens`` returns them.

    Raises:
        ValueError: if epochs < 1 or duplicates < 1.
    """
    ### BEGIN SOLUTION
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, but is {epochs}")
    if duplicates is None:
        return [mask_tokens(ids, vocab_size, rate) for _ in range(epochs)]
    if duplicates < 1:
        raise ValueError(f"duplicates must be at least 1, but is {duplicates}")
    store = [mask_tokens(ids, vocab_size, rate) for _ in range(duplicates)]
    return [store[epoch % duplicates] for epoch in range(epochs)]
    ### END SOLUTION


# %% check="masking_epochs" tags=["active-ipynb"]
# check("masking_epochs")

# %% [markdown]
# ### Exercise 12: Pairs of sentences
#
# The second task of BERT's pre-training: does the second sentence follow the first? Write
# `next_sentence_pairs(documents)`.
#
# * `documents` is a list of documents, each a list of sentences, each a list of ids.
# * For every sentence that has a next one **in its document**, in order, the result has one triple
#   `(first, second, label)`:
#
# | with probability | second | label |
# |---|---|---|
# | 1/2 | the true next sentence | 0, *is next* |
# | 1/2 | a sentence drawn evenly from all sentences of all **other** documents | 1, *is random* |
#
# * Every pair has its own draw. The lists that come in stay as they are.
# * `ValueError` if fewer than two documents have a sentence: then there may be no other one to draw
#   from.
#
# *Example.* Two documents, one with the sentences $a, b, c$, the other with $d$ alone, give two
# triples. The first is $(a, b, 0)$ or $(a, d, 1)$, the second $(b, c, 0)$ or $(b, d, 1)$.
#
# Book: section *pairs* (`brt-pairs`).
#
# <details><summary>Hint 1</summary>
#
# `itertools.pairwise(document)` yields each sentence with the next.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Drawing a document first and then a sentence in it would prefer the sentences of short documents.
# Put all sentences of the other documents into one list.
#
# </details>
# <details><summary>Hint 3</summary>
#
# *Other* means another place in the list: two documents may have the same content. Compare their
# numbers.
#
# </details>


# %% exercise="next_sentence_pairs" points=3 section="brt-pairs"
def next_sentence_pairs(
    documents: list[list[list[int]]],
) -> list[tuple[list[int], list[int], int]]:
    """Pairs of sentences, half of them true neighbours (Devlin et al. 2019, section 3.1).

    Args:
        documents: a list of documents, each a list of sentences, each a list of ids.

    Returns:
        (first, second, label) for every sentence that has a next one in its document, in order:
        with probability 1/2 the next one and label 0, else a sentence drawn evenly from all
        sentences of the other documents and label 1.

    Raises:
        ValueError: if fewer than two documents have a sentence.
    """
    ### BEGIN SOLUTION
    if sum(bool(document) for document in documents) < 2:
        raise ValueError("a random sentence must come from another document; give two or more")
    pairs = []
    for number, document in enumerate(documents):
        others = [s for n, other in enumerate(documents) if n != number for s in other]
        for first, second in itertools.pairwise(document):
            if random.random() < 0.5:
                pairs.append((first, second, 0))
            else:
                pairs.append((first, random.choice(others), 1))
    return pairs
    ### END SOLUTION


# %% check="next_sentence_pairs" tags=["active-ipynb"]
# check("next_sentence_pairs")


# %% tags=["instructor"]
def sentence_order_pairs(
    documents: list[list[list[int]]],
) -> list[tuple[list[int], list[int], int]]:
    """Neighbours in their order or exchanged, half each (ALBERT: Lan et al. 2020, section 3.1).

    Args:
        documents: a list of documents, each a list of sentences, each a list of ids.

    Returns:
        (first, second, label) for every sentence that has a next one in its document, in order:
        label 0 for the right order, 1 for the exchanged one.
    """
    pairs = []
    for document in documents:
        for first, second in itertools.pairwise(document):
            if random.random() < 0.5:
                pairs.append((first, second, 0))
            else:
                pairs.append((second, first, 1))
    return pairs


# %% [markdown]
# ## Pre-training
#
# ### Exercise 13: The head of the masked language model
#
# Write `MaskedLanguageHead(token)`: from a vector of the encoder to a score for each token of the
# vocabulary.
#
# $$\text{scores} = E\,\operatorname{norm}\bigl(\operatorname{gelu}(W h + b)\bigr) + c$$
#
# * `token` is the `nn.Embedding` of the model, with its table $E$ `(V, D)`. The head uses **the
#   same object**: there is one table, and both of its uses add to its gradient.
# * Submodules: `dense = nn.Linear(D, D)`, `norm = nn.LayerNorm(D, eps=1e-12)`, and `token`, the one
#   that is given. Parameter: `bias` ($c$) `(V,)`, zeros at first.
# * `forward(hidden)`: `(..., D)`; the result is `(..., V)`, scores before any softmax. There is one
#   row for every place, not one for the whole input.
#
# *Example.* If all parameters of `dense` are 0, the scores are `bias` at every place.
#
# Book: section *heads* (`brt-heads`).
#
# <details><summary>Hint 1</summary>
#
# The sizes stand in the table: `token.weight.shape` is `(V, D)`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Don't copy the table and don't make a linear layer of it: multiply by `self.token.weight.T`.
# Assigning the embedding to `self.token` is all the tying there is.
#
# </details>


# %% exercise="MaskedLanguageHead" points=3 section="brt-heads"
class MaskedLanguageHead(nn.Module):
    """From BERT's vectors to scores of all tokens (Devlin et al. 2019, A.1 and released code).

    Parameters: ``bias`` (V,), zeros at first. Submodules: ``dense`` = nn.Linear(D, D), ``norm`` =
    nn.LayerNorm(D, eps=1e-12), ``token`` = the embedding that is given, the very same object.
    """

    def __init__(self, token: nn.Embedding) -> None:
        """Create ``dense``, ``norm`` and ``bias``, and share ``token``.

        Args:
            token: the model's table of tokens (V, D).
        """
        super().__init__()
        ### BEGIN SOLUTION
        vocab_size, hidden = token.weight.shape
        self.dense = nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.token = token
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        ### END SOLUTION

    def forward(self, hidden: Tensor) -> Tensor:
        """Score every token of the vocabulary.

        Args:
            hidden: (..., D).

        Returns:
            (..., V), norm(gelu(dense(hidden))) times the transposed table, plus bias.
        """
        ### BEGIN SOLUTION
        transformed = self.norm(gelu(self.dense(hidden)))  # (..., D)
        return transformed @ self.token.weight.T + self.bias  # (..., V)
        ### END SOLUTION


# %% check="MaskedLanguageHead" tags=["active-ipynb"]
# check("MaskedLanguageHead")

# %% [markdown]
# ### Exercise 14: BERT with both heads
#
# Write `BertForPreTraining(vocab_size, hidden=768, num_layers=12, num_heads=12, intermediate=3072,
# max_length=512, segments=2, dropout=0.1)`.
#
# * Submodules: `bert`, your `BertModel`; `mlm`, your `MaskedLanguageHead` on
#   `bert.embeddings.token`; `nsp = nn.Linear(hidden, 2)`.
# * `forward(ids, segment_ids=None, mask=None)`: each `(B, T)`. Returns `(mlm_scores, nsp_scores)`:
#   `(B, T, V)`, for every place, and `(B, 2)`, from the pooled vector. Column 0 of the second is
#   for *is next*, column 1 for *is random*.
# * `ValueError`s of the parts may come through as they are.
#
# *Example.* `BertForPreTraining(30522)` has 110,106,428 parameters, 624,188 more than the encoder
# alone: the token table counts once.
#
# Book: section *heads* (`brt-heads`).
#
# <details><summary>Hint 1</summary>
#
# The model returns two things. Which of them has a vector for every place, and which has one for
# the whole input?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Make the head after the model: it needs the model's table.
#
# </details>


# %% exercise="BertForPreTraining" points=3 section="brt-heads"
class BertForPreTraining(nn.Module):
    """BERT with its two pre-training heads (Devlin et al. 2019, section 3.1).

    Submodules: ``bert`` = BertModel, ``mlm`` = MaskedLanguageHead on the model's table of tokens,
    ``nsp`` = nn.Linear(hidden, 2).
    """

    def __init__(
        self,
        vocab_size: int,
        hidden: int = 768,
        num_layers: int = 12,
        num_heads: int = 12,
        intermediate: int = 3072,
        max_length: int = 512,
        segments: int = 2,
        dropout: float = 0.1,
    ) -> None:
        """Create the submodules; all arguments are BertModel's.

        Args:
            vocab_size: V.
            hidden: D.
            num_layers: N.
            num_heads: H, a divisor of hidden.
            intermediate: F.
            max_length: how many positions have a row.
            segments: how many segments have a row.
            dropout: of the embeddings and of all layers.

        Raises:
            ValueError: if num_heads does not divide hidden.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.bert = BertModel(
            vocab_size, hidden, num_layers, num_heads, intermediate, max_length, segments, dropout
        )
        self.mlm = MaskedLanguageHead(self.bert.embeddings.token)
        self.nsp = nn.Linear(hidden, 2)
        init_weights(self.mlm.dense)
        init_weights(self.nsp)
        ### END SOLUTION

    def forward(
        self, ids: Tensor, segment_ids: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Score the tokens of every place, and whether the second piece follows the first.

        Args:
            ids: (B, T) int64.
            segment_ids: (B, T) int64; None: segment 0 everywhere.
            mask: (B, T) bool, True where a real token stands. None: everywhere.

        Returns:
            The scores of the tokens (B, T, V), from ``hidden``, and of the two answers (B, 2), from
            ``pooled``.

        Raises:
            ValueError: if T is larger than max_length.
        """
        ### BEGIN SOLUTION
        hidden, pooled = self.bert(ids, segment_ids, mask)  # (B, T, D), (B, D)
        return self.mlm(hidden), self.nsp(pooled)  # (B, T, V), (B, 2)
        ### END SOLUTION


# %% check="BertForPreTraining" tags=["active-ipynb"]
# check("BertForPreTraining")

# %% [markdown]
# ### Exercise 15: The loss
#
# Write `pretraining_loss(mlm_scores, nsp_scores, labels, is_random)`: the sum of two means.
#
# $$\text{loss} = \frac1{|C|}\sum_{(b,t)\,\in\,C} -\log p(\text{labels}_{b,t})
# \;+\; \frac1B\sum_{b} -\log p(\text{is\_random}_b)$$
#
# * `mlm_scores` `(B, T, V)`, `nsp_scores` `(B, 2)`; `labels` `(B, T)` and `is_random` `(B,)`
#   `torch.int64`. $C$ are the places whose label is not `IGNORE`; the probabilities come from a
#   softmax of the scores.
# * The first mean is over all chosen places **of the batch**, not over rows. If nothing was chosen
#   it is 0, and all gradients stay finite.
# * In the second, class 0 counts like class 1.
# * The result is a scalar.
#
# *Example.* $V = 4$ and all scores are 0: the loss is $\log 4 + \log 2 \approx 2.079$, and
# $\log 2 \approx 0.693$ if no place was chosen.
#
# Book: section *loss* (`brt-loss`).
#
# <details><summary>Hint 1</summary>
#
# `F.cross_entropy` wants `(n, V)` and `(n,)`: flatten places and rows together. It leaves out
# targets of −100.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Without any target its mean is $0/0$. With `reduction="sum"` it gives 0, and you can divide by the
# number of targets, or by 1 if there is none.
#
# </details>


# %% exercise="pretraining_loss" points=2 section="brt-loss"
def pretraining_loss(
    mlm_scores: Tensor, nsp_scores: Tensor, labels: Tensor, is_random: Tensor
) -> Tensor:
    """The sum of both pre-training losses (Devlin et al. 2019, A.2).

    Args:
        mlm_scores: (B, T, V).
        nsp_scores: (B, 2).
        labels: (B, T) int64, the token to predict, or IGNORE.
        is_random: (B,) int64, 0: the second piece is the next one, 1: it is a random one.

    Returns:
        A scalar: the mean cross-entropy over the places with a label (0 if there is none), plus the
        mean cross-entropy over the batch of the two answers.
    """
    ### BEGIN SOLUTION
    total = F.cross_entropy(
        mlm_scores.flatten(0, 1),  # (B T, V)
        labels.flatten(),  # (B T,)
        ignore_index=IGNORE,
        reduction="sum",
    )  # scalar
    # Not the mean of PyTorch: without any label it would be 0 / 0.
    mlm = total / (labels != IGNORE).sum().clamp(min=1)  # scalar
    return mlm + F.cross_entropy(nsp_scores, is_random)  # scalar
    ### END SOLUTION


# %% check="pretraining_loss" tags=["active-ipynb"]
# check("pretraining_loss")

# %% [markdown]
# ### Exercise 16: A step of pre-training
#
# Put it together. Write
# `pretraining_step(model, ids, segment_ids, mask, labels, is_random, rate, clip=1.0)`: one step of
# plain gradient descent on one batch.
#
# 1. Apply `model` to `ids`, `segment_ids` and `mask`, and compute the loss of
#    exercise 15.
# 2. Compute the gradients of **this** loss. Gradients that the parameters carry from elsewhere (in
#    `.grad`) must not matter.
# 3. The norm is that of all gradients together, $\sqrt{\sum_i g_i^2}$ over all numbers of all
#    parameters; a parameter that is used at several places counts once, with the sum of its
#    gradients. If the norm is larger than `clip`, all gradients are multiplied by
#    $\text{clip}/\text{norm}$.
# 4. Every parameter that has a gradient changes in place: minus `rate` times its gradient. One
#    without (frozen, or without influence on the loss) stays as it is.
#
# * `model` is any module that maps these three to the two scores. Leave its mode (training or
#   evaluation) as it is.
# * Returns a `dict` of four `float`s, as they were before the step: `"loss"`, its two parts `"mlm"`
#   and `"nsp"`, and `"norm"`, before it was cut.
# * Not to be called: `clip_grad_norm_`.
#
# *Example.* With `rate=0.1`, `clip=1` and a norm of 4 every number moves by 0.1 times a quarter of
# its gradient, and all together by 0.1. With a norm of 0.5 every number moves by 0.1 times its
# gradient.
#
# Book: section *loss* (`brt-loss`).
#
# <details><summary>Hint 1</summary>
#
# `model.parameters()` yields a shared parameter once. `loss.backward()` **adds** to what stands in
# `.grad`; `torch.autograd.grad(loss, parameters, allow_unused=True)` returns fresh gradients,
# `None` where there is none.
#
# </details>
# <details><summary>Hint 2</summary>
#
# There is one norm for the whole model, not one for each tensor: add up the squares of all first.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A parameter can only be changed in place where nothing is recorded: `with torch.no_grad():`.
# `item()` makes a `float` of a scalar.
#
# </details>


# %% exercise="pretraining_step" points=3 section="brt-loss" forbids="clip_grad_norm_"
def pretraining_step(
    model: nn.Module,
    ids: Tensor,
    segment_ids: Tensor,
    mask: Tensor,
    labels: Tensor,
    is_random: Tensor,
    rate: float,
    clip: float = 1.0,
) -> dict[str, float]:
    """Improve the model on one batch, in place, with clipped gradients (Pascanu et al. 2013).

    Args:
        model: (ids, segment_ids, mask) -> (mlm scores (B, T, V), nsp scores (B, 2)); left in its
            mode.
        ids: (B, T) int64, corrupted.
        segment_ids: (B, T) int64.
        mask: (B, T) bool, True where a real token stands.
        labels: (B, T) int64, the token to predict, or IGNORE.
        is_random: (B,) int64.
        rate: the learning rate.
        clip: the largest norm that all gradients together may have.

    Returns:
        "loss", its parts "mlm" and "nsp", and "norm", the norm of all gradients together before
        clipping; all as they were before the step.
    """
    ### BEGIN SOLUTION
    mlm_scores, nsp_scores = model(ids, segment_ids, mask)  # (B, T, V), (B, 2)
    loss = pretraining_loss(mlm_scores, nsp_scores, labels, is_random)  # scalar
    nsp = F.cross_entropy(nsp_scores.detach(), is_random)  # scalar
    # parameters() yields a shared one once, and its gradient is the sum over its uses.
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    pairs = [(p, g) for p, g in zip(parameters, gradients, strict=True) if g is not None]
    norm = math.sqrt(sum(g.double().square().sum().item() for _, g in pairs))
    scale = clip / norm if norm > clip else 1.0
    with torch.no_grad():
        for parameter, gradient in pairs:
            parameter -= rate * scale * gradient
    both, second = loss.item(), nsp.item()
    return {"loss": both, "mlm": both - second, "nsp": second, "norm": norm}
    ### END SOLUTION


# %% check="pretraining_step" tags=["active-ipynb"]
# check("pretraining_step")

# %% [markdown]
# ### Exercise 17: Pseudo-log-likelihood
#
# A masked language model has no probability for a sentence, but one for each token given all
# others. Their sum is a score of the sentence (Salazar et al., 2020). Write
# `pseudo_log_likelihood(model, ids)`:
#
# $$\text{score} = \sum_{t\,:\,i_t \text{ ordinary}} \log p\bigl(i_t \mid
# \text{the input with MASK at place } t\bigr)$$
#
# * `ids` `(T,)` `torch.int64`: one input with its special tokens. Only one place at a time is
#   masked; all others are there to be seen.
# * `model` maps ids `(B, T)` to a tuple whose first entry are the scores `(B, T, V)`, as
#   `BertForPreTraining` does; it is in evaluation mode.
# * The result is a `float`, at most 0. It is **not** the logarithm of a probability of the
#   sentence: over all sentences these products don't add up to 1.
# * `ValueError` if there is no ordinary token.
#
# *Example.* If the model scores all of 50 tokens equally, an input with three ordinary tokens has
# $-3 \log 50 \approx -11.74$.
#
# Book: section *scores* (`brt-scores`).
#
# <details><summary>Hint 1</summary>
#
# Make a batch with one row for each ordinary place: the same ids, and `MASK` at another place in
# each row. Then one call of the model is enough.
#
# </details>
# <details><summary>Hint 2</summary>
#
# With `rows = torch.arange(n)` and the places `(n,)`, an assignment to `copies[rows, places]`
# writes one entry in each row, and `scores[rows, places]` picks `(n, V)`. Write into a copy, not
# into `ids`.
#
# </details>


# %% exercise="pseudo_log_likelihood" points=2 section="brt-scores"
def pseudo_log_likelihood(model: nn.Module, ids: Tensor) -> float:
    """How well each token fits all the others (Salazar et al. 2020, section 2).

    Args:
        model: ids (B, T) -> (mlm scores (B, T, V), ...), in evaluation mode.
        ids: (T,) int64, one input with its special tokens.

    Returns:
        The sum over the ordinary tokens of the log-probability of the token, given the input with
        MASK in its place and all others as they are.

    Raises:
        ValueError: if there is no ordinary token.
    """
    ### BEGIN SOLUTION
    places = (ids >= SPECIAL).nonzero().squeeze(1)  # (n,)
    if len(places) == 0:
        raise ValueError("the input holds special tokens only; there is nothing to score")
    rows = torch.arange(len(places), device=ids.device)  # (n,)
    masked = ids.repeat(len(places), 1)  # (n, T), a row for each place
    masked[rows, places] = MASK
    with torch.no_grad():
        scores = model(masked)[0][rows, places]  # (n, V)
    log_probs = torch.log_softmax(scores, dim=-1)  # (n, V)
    return log_probs[rows, ids[places]].sum().item()
    ### END SOLUTION


# %% check="pseudo_log_likelihood" tags=["active-ipynb"]
# check("pseudo_log_likelihood")

# %% [markdown]
# ### Question: Why not always [MASK]?
#
# A set of notes explains the 80/10/10 of masking so: a word that occurs only once in the data and
# is masked there would seem predictable only through [MASK]. They add that a sentence is fed $N$
# times, 80 percent of them with [MASK]. Neither is right. What would be wrong with a [MASK] in
# every chosen place? What does each of the three parts do, and why does a random token in 10
# percent of the cases not spoil the language that the model learns? When are the 80, 10 and 10
# percent decided? And does masking anew in every epoch, as RoBERTa does, remove the problem?
#
# Book: section *mismatch* (`brt-mismatch`). 3 points, marked by a person.

# %% [markdown] question="why_not_always_mask" points=3 section="brt-mismatch" title="Why not always [MASK]?"
# **Your answer:**
#
# ### BEGIN SOLUTION
# *The problem.* [MASK] occurs in pre-training and never afterwards: inputs of fine-tuning have
# none. If every chosen place held [MASK], a place would need a good prediction only where [MASK]
# stands. The loss would say nothing about the vectors of ordinary tokens themselves (they would be
# trained only as context for others), and the places that are read in fine-tuning hold ordinary
# tokens. That is the mismatch between the two stages; how often a word occurs has nothing to do
# with it.
#
# *The three parts.* The 80 percent with [MASK] are the task itself: a prediction from the context
# alone. In the 10 percent that keep their token the target stands in the input, so the vector of an
# ordinary token is trained to hold its own token. If that were all besides [MASK], copying every
# token that is not [MASK] would be perfect. In the 10 percent with a random token copying is wrong.
# The model can't see from a token whether it is real, kept or replaced, so it has to compare
# **every** token with its context and keep a contextual vector at every place.
#
# *Why random tokens do little harm.* They are 10 percent of 15 percent, 1.5 percent of all tokens:
# the context of a prediction is almost everywhere the true one, and the target is always the
# original token, never the random one. The model is asked to notice and repair an error, not to
# produce it.
#
# *When.* For each chosen token on its own, by a random draw. The same sentence has places of all
# three kinds. The released code makes ten copies of the data with new draws; it does not feed a
# sentence in fixed shares.
#
# *Dynamic masking* only changes which places are chosen in which epoch. [MASK] is still in the
# input of pre-training and still not in that of fine-tuning. So it gives more variety and leaves
# the mismatch as it was; ELECTRA, whose discriminator never sees [MASK], removes it.
#
# *Marking:* 1 point for the mismatch ([MASK] is absent in fine-tuning, and with [MASK] alone
# unmasked places get no prediction), 1 for what kept and random tokens do together **and** why 1.5
# percent are harmless, 1 for the draw per chosen token and for saying that dynamic masking leaves
# the mismatch.
# ### END SOLUTION

# %% [markdown]
# ### Question: What does next-sentence prediction learn?
#
# Next-sentence prediction reaches an accuracy of 97 to 98 percent, and soon. What may a model look
# at to solve it, given how the negative pairs are made? Is that what the task was meant to teach?
# The paper on BERT finds that its results get worse without it, the one on RoBERTa that they don't:
# how can both be? And how does sentence-order prediction, ALBERT's task, differ?
#
# Book: section *next-sentence prediction* (`brt-nsp`). 3 points, marked by a person.

# %% [markdown] question="what_nsp_learns" points=3 section="brt-nsp" title="What does next-sentence prediction learn?"
# **Your answer:**
#
# ### BEGIN SOLUTION
# *What suffices.* A negative second sentence comes from **another document**, and so usually from
# another topic, with other names, words and style. Whether the two sentences share their topic is
# enough to answer nearly always, and topic shows in single words: a comparison of two bags of words
# does well. The masked language model needs such information anyway. That is why the accuracy is
# high early, and a high accuracy of this classifier is no evidence that relations between sentences
# were learned.
#
# *What was meant.* The task should teach coherence: does the second sentence follow from the first,
# as in inference or question answering? That would take negatives of the same topic, where only
# order or logic decides. So the task mixes two questions, topic and coherence, and the easy one
# answers it.
#
# *The two findings.* In the paper on BERT (section 5.1) a model without the task is worse, by 3.5
# points on QNLI and by about half a point on MNLI and SQuAD. In the paper on RoBERTa (section 4.2)
# dropping the task changes little or helps. But they don't compare the same: the RoBERTa paper
# takes away the loss **and** changes the input, from pairs of segments to long runs of full
# sentences. Long context helps, and pairs of single sentences hurt. It suspects that BERT's
# ablation kept the input in pairs, negative pairs included, and took away only the loss. So both
# can be right: what the input looks like matters as much as the loss.
#
# *Sentence order.* ALBERT takes two neighbours from the same document for both classes, in their
# order or exchanged. The topic is the same in both, so it can't decide, and the order must. Trained
# on next-sentence prediction, a model is near chance on sentence order (52 percent); trained on
# order, it solves most of the other (79 percent). (Lan et al., 2020, section 4.6.)
#
# *Marking:* 1 point for topic as a sufficient cue that comes from the way negatives are drawn, 1
# for an explanation of the two findings that names a difference in the set-up (input, length,
# negatives) and not only "more data", 1 for sentence order: same document for both classes, hence
# no topic cue.
# ### END SOLUTION

# %% [markdown]
# ## Fine-tuning
#
# ### Exercise 18: A label for an input
#
# Write `SequenceClassifier(bert, num_labels, dropout=0.1)`: the head for a single sentence (is this
# review good?) and, with the segments set, for a pair (does the first entail the second?).
#
# $$\text{scores} = W\,\operatorname{dropout}(\text{pooled}) + b$$
#
# * Submodules: `bert`, the `BertModel` that is given (the very same, so that fine-tuning trains it
#   too); `classifier`, an `nn.Linear` from $D$ to `num_labels`, with bias.
# * `forward(ids, segment_ids=None, mask=None)`: each `(B, T)`; the result is `(B, L)`, scores
#   before any softmax.
# * `loss(scores, labels)`: `(B, L)` and `(B,)` `torch.int64`; the mean cross-entropy, a scalar.
#
# *Example.* For a batch of 2 and 3 labels the scores are `(2, 3)`. If they are all 0, the loss is
# $\log 3 \approx 1.099$.
#
# Book: section *single* (`brt-single`).
#
# <details><summary>Hint 1</summary>
#
# $D$ can be read off the model's parameters, for example `bert.pooler.in_features`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The model returns `(hidden, pooled)`. This head needs the second, which has one vector for the
# whole input.
#
# </details>


# %% exercise="SequenceClassifier" points=2 section="brt-single"
class SequenceClassifier(nn.Module):
    """One label for a whole input, a sentence or a pair (Devlin et al. 2019, section 4.1).

    Submodules: ``bert`` = the encoder that is given, ``classifier`` = nn.Linear(D, num_labels).
    """

    def __init__(self, bert: BertModel, num_labels: int, dropout: float = 0.1) -> None:
        """Keep the encoder and create ``classifier``.

        Args:
            bert: a BertModel.
            num_labels: L.
            dropout: acts on the pooled vector, in training mode.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.bert = bert
        self.classifier = init_weights(nn.Linear(bert.pooler.in_features, num_labels))
        self.dropout = nn.Dropout(dropout)
        ### END SOLUTION

    def forward(
        self, ids: Tensor, segment_ids: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Score the labels.

        Args:
            ids: (B, T) int64.
            segment_ids: (B, T) int64; None: segment 0 everywhere.
            mask: (B, T) bool, True where a real token stands. None: everywhere.

        Returns:
            (B, L), classifier(dropout(pooled)).
        """
        ### BEGIN SOLUTION
        _, pooled = self.bert(ids, segment_ids, mask)  # (B, D)
        return self.classifier(self.dropout(pooled))  # (B, L)
        ### END SOLUTION

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy.

        Args:
            scores: (B, L), from ``forward``.
            labels: (B,) int64.

        Returns:
            A scalar.
        """
        ### BEGIN SOLUTION
        return F.cross_entropy(scores, labels)  # scalar
        ### END SOLUTION


# %% check="SequenceClassifier" tags=["active-ipynb"]
# check("SequenceClassifier")


# %% tags=["instructor"]
class MultipleChoice(nn.Module):
    """One score for each of several inputs, the answers to one question (Devlin et al. 2019, 4.4).

    Submodules: ``bert`` = the encoder that is given, ``classifier`` = nn.Linear(D, 1).
    """

    def __init__(self, bert: BertModel, dropout: float = 0.1) -> None:
        """Keep the encoder and create ``classifier``."""
        super().__init__()
        self.bert = bert
        self.classifier = init_weights(nn.Linear(bert.pooler.in_features, 1))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, ids: Tensor, segment_ids: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """ids, segment_ids, mask (B, C, T), one row for each of C choices -> scores (B, C)."""
        batch, choices, _ = ids.shape
        segment_ids = None if segment_ids is None else segment_ids.flatten(0, 1)  # (B C, T)
        mask = None if mask is None else mask.flatten(0, 1)  # (B C, T)
        _, pooled = self.bert(ids.flatten(0, 1), segment_ids, mask)  # (B C, D)
        return self.classifier(self.dropout(pooled)).reshape(batch, choices)  # (B, C)

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy of scores (B, C) over the choices; labels (B,) int64."""
        return F.cross_entropy(scores, labels)  # scalar


# %% [markdown]
# ### Exercise 19: Where is the answer?
#
# The input is a question and a passage, and the answer stands in the passage, word for word. Write
# `SpanFinder(bert)`: every place gets a score as the start of the answer and one as its end.
#
# * Submodules: `bert`, the model that is given; `classifier`, an `nn.Linear` from $D$ to 2, with
#   bias, on `hidden`. Its first output is for the start, the second for the end.
# * `forward(ids, segment_ids=None, mask=None)`: returns `(start, end)`, each `(B, T)`. Where a mask
#   is given and `False`, both are the smallest finite number of their type,
#   `torch.finfo(dtype).min`.
# * `loss(start, end, starts, ends)`: `starts` and `ends` `(B,)` `torch.int64` are the right places.
#   Each half is a mean cross-entropy over the **places**: the softmax runs along $T$. The result is
#   half the sum of the two.
# * A right place outside $0 \dots T - 1$ (the answer was cut off, or there is none) is left out of
#   its mean. A mean over nothing is 0.
#
# *Example.* $T = 4$ and all scores 0. With `starts = [1]`, `ends = [2]` the loss is
# $\log 4 \approx 1.386$; with `ends = [7]` it is half of that, $0.693$.
#
# Book: section *span* (`brt-span`).
#
# <details><summary>Hint 1</summary>
#
# The classifier makes `(B, T, 2)`. `unbind(dim=-1)` takes the last axis apart.
#
# </details>
# <details><summary>Hint 2</summary>
#
# For `F.cross_entropy` the places are the classes: the scores `(B, T)` have $T$ of them.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Put `IGNORE` in place of targets outside, negative ones too, and divide the sum by the number of
# those inside, or by 1.
#
# </details>


# %% exercise="SpanFinder" points=3 section="brt-span"
class SpanFinder(nn.Module):
    """Where an answer begins and ends in the input (Devlin et al. 2019, section 4.2).

    Submodules: ``bert`` = the encoder that is given, ``classifier`` = nn.Linear(D, 2), whose first
    output is for the start, the second for the end.
    """

    def __init__(self, bert: BertModel) -> None:
        """Keep the encoder and create ``classifier``.

        Args:
            bert: a BertModel.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.bert = bert
        self.classifier = init_weights(nn.Linear(bert.pooler.in_features, 2))
        ### END SOLUTION

    def forward(
        self, ids: Tensor, segment_ids: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Score every place as start and as end.

        Args:
            ids: (B, T) int64.
            segment_ids: (B, T) int64; None: segment 0 everywhere.
            mask: (B, T) bool, True where a real token stands. None: everywhere.

        Returns:
            start (B, T) and end (B, T); at padding both are the smallest finite number of their
            type.
        """
        ### BEGIN SOLUTION
        hidden, _ = self.bert(ids, segment_ids, mask)  # (B, T, D)
        scores = self.classifier(hidden)  # (B, T, 2)
        if mask is not None:
            scores = scores.masked_fill(~mask.unsqueeze(-1), torch.finfo(scores.dtype).min)
        start, end = scores.unbind(dim=-1)  # (B, T) each
        return start, end
        ### END SOLUTION

    def loss(self, start: Tensor, end: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
        """The mean of both cross-entropies over the places.

        Args:
            start: (B, T), from ``forward``.
            end: (B, T), from ``forward``.
            starts: (B,) int64, the right place; one outside 0 .. T - 1 is left out.
            ends: (B,) int64, likewise.

        Returns:
            A scalar: half the sum of the two means; a mean over nothing is 0.
        """
        ### BEGIN SOLUTION
        halves = []
        for scores, places in ((start, starts), (end, ends)):
            inside = (places >= 0) & (places < scores.shape[1])  # (B,)
            targets = places.masked_fill(~inside, IGNORE)  # (B,)
            total = F.cross_entropy(scores, targets, ignore_index=IGNORE, reduction="sum")
            halves.append(0.5 * total / inside.sum().clamp(min=1))
        return halves[0] + halves[1]  # scalar
        ### END SOLUTION


# %% check="SpanFinder" tags=["active-ipynb"]
# check("SpanFinder")

# %% [markdown]
# ### Exercise 20: The best span
#
# Taking the best start and the best end separately may give an end before its start. Write
# `best_span(start, end, passage, max_answer=30, null_threshold=None)`, which finds the best answer
# that is one:
#
# $$(\hat\imath, \hat\jmath) = \operatorname*{arg\,max}_{i \,\le\, j \,<\, i + \text{max\_answer}}
# \bigl(\text{start}_i + \text{end}_j\bigr)$$
#
# * `start`, `end` `(T,)`: the scores of one input. `passage` `(T,)` bool: `True` where an answer
#   may begin and end; $i$ and $j$ must both be such places.
# * Returns `(i, j)`, two `int`s. Of equally good ones it is that with the smallest $i$, then the
#   smallest $j$.
# * With `null_threshold`, a number $\tau$, there may be no answer. Its score is that of `CLS`,
#   $\text{start}_0 + \text{end}_0$, and it wins if it exceeds the best answer's by **more than**
#   $\tau$. Then the result is `(0, 0)`. With `None` there always is an answer.
# * `ValueError` if `passage` holds no `True`, or if `max_answer` is smaller than 1.
#
# *Example.* `start = [0, 1, 3]`, `end = [0, 3, 2]`, all places allowed. Separately the best start
# is 2 and the best end 1; the best span is `(2, 2)` with 5. With `max_answer=30` and a `passage`
# that allows only places 0 and 1 it is `(1, 1)` with 4.
#
# Book: section *span* (`brt-span`).
#
# <details><summary>Hint 1</summary>
#
# Two loops are fine: for every $i$, all $j$ from $i$ to $i + \text{max\_answer} - 1$ that exist.
# Keep the best so far.
#
# </details>
# <details><summary>Hint 2</summary>
#
# To keep the first of equal ones, replace the best only by something strictly better.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Without loops: `start.unsqueeze(1) + end` is a table `(T, T)` of all sums. Mark the allowed
# entries in a bool table of the same shape, and take the best among these.
#
# </details>


# %% exercise="best_span" points=4 section="brt-span"
def best_span(
    start: Tensor,
    end: Tensor,
    passage: Tensor,
    max_answer: int = 30,
    null_threshold: float | None = None,
) -> tuple[int, int]:
    """The best answer that is one (Devlin et al. 2019, sections 4.2 and 4.3).

    Args:
        start: (T,), the scores of the places as start.
        end: (T,), the scores of the places as end.
        passage: (T,) bool, True where an answer may begin and end.
        max_answer: the most tokens of an answer, at least 1.
        null_threshold: by how much "no answer", start[0] + end[0], must be better than the best
            answer to win; None: there always is an answer.

    Returns:
        (i, j) with the largest start[i] + end[j] among i <= j < i + max_answer, both in the
        passage; of equal ones that with the smallest i, then the smallest j. Or (0, 0): no answer.

    Raises:
        ValueError: if passage holds no True, or max_answer < 1.
    """
    ### BEGIN SOLUTION
    if max_answer < 1:
        raise ValueError(f"max_answer must be at least 1, but is {max_answer}")
    if not passage.any():
        raise ValueError("the passage is empty; there is no place for an answer")
    places = torch.arange(len(start), device=start.device)  # (T,)
    length = places - places.unsqueeze(1) + 1  # (T, T), from row to column
    allowed = passage.unsqueeze(1) & passage & (length >= 1) & (length <= max_answer)  # (T, T)
    i, j = allowed.nonzero(as_tuple=True)  # in the order of i, then j
    totals = start[i] + end[j]
    best = int(totals.argmax())  # the first of equal ones
    if null_threshold is not None and start[0] + end[0] - totals[best] > null_threshold:
        return 0, 0
    return int(i[best]), int(j[best])
    ### END SOLUTION


# %% check="best_span" tags=["active-ipynb"]
# check("best_span")

# %% [markdown]
# ### Exercise 21: Labels for pieces
#
# Tagging gives every **word** a label, but the model reads pieces of words. Only the first piece of
# each word carries the label. Write `align_labels(word_labels, word_ids)`.
#
# * `word_labels`: list of the words' labels. `word_ids`: for each token the number of its word,
#   from 0, or `None` for a special token.
# * The result is a list as long as `word_ids`: the word's label at its first token, `IGNORE` at its
#   later ones and at special tokens.
# * `ValueError` if a word has no label: if its number is negative, or not smaller than the number
#   of labels.
#
# *Example.* `align_labels([1, 0], [None, 0, 0, 1, None])` is `[-100, 1, -100, 0, -100]`.
#
# Book: section *tagging* (`brt-tagging`).
#
# <details><summary>Hint 1</summary>
#
# A token is its word's first if the word has not occurred before it.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Word 0 is a word: ask for `word is None`, not for `not word`. And a list takes negative indices
# without complaint.
#
# </details>


# %% exercise="align_labels" points=2 section="brt-tagging"
def align_labels(word_labels: list[int], word_ids: list[int | None]) -> list[int]:
    """From a label for each word to one for each token (Devlin et al. 2019, section 5.3).

    Args:
        word_labels: the label of each word.
        word_ids: for each token the number of its word, from 0, or None for a special token.

    Returns:
        For each token the label of its word if it is the word's first token, else IGNORE.

    Raises:
        ValueError: if a word has no label.
    """
    ### BEGIN SOLUTION
    labels, seen = [], set()
    for word in word_ids:
        if word is not None and not 0 <= word < len(word_labels):
            raise ValueError(f"word {word} has no label; there are {len(word_labels)}")
        labels.append(IGNORE if word is None or word in seen else word_labels[word])
        seen.add(word)
    return labels
    ### END SOLUTION


# %% check="align_labels" tags=["active-ipynb"]
# check("align_labels")

# %% [markdown]
# ### Exercise 22: A label for every token
#
# Write `Tagger(bert, num_labels, dropout=0.1)`.
#
# * Submodules: `bert`, the model that is given; `classifier`, an `nn.Linear` from $D$ to
#   `num_labels`, with bias, on dropout of `hidden`.
# * `forward(ids, segment_ids=None, mask=None)`: each `(B, T)`; the result is `(B, T, L)`.
# * `loss(scores, labels)`: `(B, T, L)` and `(B, T)` `torch.int64`; the mean cross-entropy over the
#   places of the batch whose label is not `IGNORE`. The softmax runs over the labels. If there is
#   no such place the loss is 0.
#
# *Example.* All scores 0, three labels, and labels `[[-100, 2, -100, 0, -100]]`: the loss is
# $\log 3 \approx 1.099$, whatever the number of places left out.
#
# Book: section *tagging* (`brt-tagging`).
#
# <details><summary>Hint 1</summary>
#
# It is the masked language model's loss with labels for tokens: flatten rows and places together.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A batch may hold no label at all (after cutting). Then a mean would be $0/0$.
#
# </details>


# %% exercise="Tagger" points=2 section="brt-tagging"
class Tagger(nn.Module):
    """A label for every token (Devlin et al. 2019, section 5.3).

    Submodules: ``bert`` = the encoder that is given, ``classifier`` = nn.Linear(D, num_labels).
    """

    def __init__(self, bert: BertModel, num_labels: int, dropout: float = 0.1) -> None:
        """Keep the encoder and create ``classifier``.

        Args:
            bert: a BertModel.
            num_labels: L.
            dropout: acts on the hidden vectors, in training mode.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.bert = bert
        self.classifier = init_weights(nn.Linear(bert.pooler.in_features, num_labels))
        self.dropout = nn.Dropout(dropout)
        ### END SOLUTION

    def forward(
        self, ids: Tensor, segment_ids: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Score the labels of every token.

        Args:
            ids: (B, T) int64.
            segment_ids: (B, T) int64; None: segment 0 everywhere.
            mask: (B, T) bool, True where a real token stands. None: everywhere.

        Returns:
            (B, T, L), classifier(dropout(hidden)).
        """
        ### BEGIN SOLUTION
        hidden, _ = self.bert(ids, segment_ids, mask)  # (B, T, D)
        return self.classifier(self.dropout(hidden))  # (B, T, L)
        ### END SOLUTION

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy over the tokens that have a label.

        Args:
            scores: (B, T, L), from ``forward``.
            labels: (B, T) int64, or IGNORE.

        Returns:
            A scalar; 0 if no token has a label.
        """
        ### BEGIN SOLUTION
        total = F.cross_entropy(
            scores.flatten(0, 1),  # (B T, L)
            labels.flatten(),  # (B T,)
            ignore_index=IGNORE,
            reduction="sum",
        )  # scalar
        return total / (labels != IGNORE).sum().clamp(min=1)  # scalar
        ### END SOLUTION


# %% check="Tagger" tags=["active-ipynb"]
# check("Tagger")

# %% [markdown]
# ### Exercise 23: Labels for words
#
# The way back: write `word_tags(scores, word_ids)`.
#
# * `scores` `(T, L)`, of one input; `word_ids` as in exercise 21, one for each token.
# * The result is a list with one label for each word, in the order in which the words occur: the
#   one with the largest score **at its first token**.
#
# *Example.* If the best labels of four tokens are 2, 1, 0 and 1, and `word_ids` is
# `[None, 0, 0, 1]`, the result is `[1, 1]`.
#
# Book: section *tagging* (`brt-tagging`).
#
# <details><summary>Hint 1</summary>
#
# `scores.argmax(dim=-1).tolist()` is the best label of each token.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `dict.setdefault(word, label)` keeps what was there first, and a `dict` keeps the order.
#
# </details>


# %% exercise="word_tags" points=1 section="brt-tagging"
def word_tags(scores: Tensor, word_ids: list[int | None]) -> list[int]:
    """From scores for every token to one label for each word (Devlin et al. 2019, section 5.3).

    Args:
        scores: (T, L), of one input.
        word_ids: for each token the number of its word, or None for a special token.

    Returns:
        The label with the largest score at the first token of each word, in the order of the words.
    """
    ### BEGIN SOLUTION
    best = scores.argmax(dim=-1).tolist()  # T labels
    tags = {}
    for word, label in zip(word_ids, best, strict=True):
        if word is not None:
            tags.setdefault(word, label)  # what the first token says stays
    return list(tags.values())
    ### END SOLUTION


# %% check="word_tags" tags=["active-ipynb"]
# check("word_tags")

# %% [markdown]
# ## A conditional random field
#
# A tagger decides at every token for itself, so nothing keeps it from tags that can't follow each
# other. A *conditional random field* (CRF) scores the whole sequence of tags $y$ at once. It gets
# *emissions* $e$, a score of each tag at each token, and learns *transitions* $A$, a score of each
# pair of neighbours, and scores of the first and of the last tag:
#
# $$s(y) = \text{start}_{y_1} + \sum_{t=1}^{n} e_{t, y_t} + \sum_{t=2}^{n} A_{y_{t-1},\, y_t}
# + \text{end}_{y_n},\qquad p(y) = \frac{e^{s(y)}}{\sum_{y'} e^{s(y')}}$$
#
# The next three exercises compute $s(y)$, the logarithm of the denominator, and the best $y$.
#
# ### Exercise 24: The score of a sequence
#
# Write `crf_score(emissions, tags, mask, transitions, start, end)`: $s(y)$ for each row.
#
# * `emissions` `(B, T, L)`; `tags` `(B, T)` `torch.int64`; `mask` `(B, T)` bool, padding on the
#   right and at least one real token in each row. $n$ is the row's number of real tokens.
# * `transitions` `(L, L)`: the row is the tag before, the column the tag after. `start`, `end`
#   `(L,)`.
# * The result is `(B,)`. Emissions and tags at padding must not matter; the tags there may be
#   anything, also `IGNORE`.
#
# *Example.* Two tokens and two tags with emissions $\begin{pmatrix}1&0\\0&2\end{pmatrix}$,
# transitions $\begin{pmatrix}0.5&-1\\0&1\end{pmatrix}$, `start` and `end` 0. The tags $0, 1$ have
# $1 + 2 - 1 = 2$, and the tags $1, 1$ have $0 + 2 + 1 = 3$.
#
# Book: section *CRF* (`brt-crf`).
#
# <details><summary>Hint 1</summary>
#
# Put a harmless tag, such as 0, at padding first: −100 can't be looked up.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `transitions[tags[:, :-1], tags[:, 1:]]` is `(B, T - 1)`: all neighbours at once. A pair counts if
# its **right** token is real.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The last real token of a row stands at `mask.sum(dim=1) - 1`, not at the end of the row.
#
# </details>


# %% exercise="crf_score" points=2 section="brt-crf"
def crf_score(
    emissions: Tensor, tags: Tensor, mask: Tensor, transitions: Tensor, start: Tensor, end: Tensor
) -> Tensor:
    """The score of a sequence of tags (Lample et al. 2016, section 2.2).

    Args:
        emissions: (B, T, L).
        tags: (B, T) int64; at padding they may be anything.
        mask: (B, T) bool, True where a real token stands; each row has one, and padding only after
            its last one.
        transitions: (L, L), from the tag of the row to that of the column.
        start: (L,), of the first tag.
        end: (L,), of the last tag.

    Returns:
        (B,): start, emissions and transitions of the real tokens, and end, all added up.
    """
    ### BEGIN SOLUTION
    tags = tags.masked_fill(~mask, 0)  # (B, T), so that padding can be looked up too
    emitted = emissions.gather(2, tags.unsqueeze(2)).squeeze(2)  # (B, T)
    moved = transitions[tags[:, :-1], tags[:, 1:]]  # (B, T - 1)
    last = tags.gather(1, mask.sum(dim=1, keepdim=True) - 1).squeeze(1)  # (B,)
    inside = emitted.masked_fill(~mask, 0.0).sum(dim=1)  # (B,)
    between = moved.masked_fill(~mask[:, 1:], 0.0).sum(dim=1)  # (B,)
    return start[tags[:, 0]] + inside + between + end[last]  # (B,)
    ### END SOLUTION


# %% check="crf_score" tags=["active-ipynb"]
# check("crf_score")

# %% [markdown]
# ### Exercise 25: The sum over all sequences
#
# Write `crf_partition(emissions, mask, transitions, start, end)`:
#
# $$\log Z = \log \sum_{y} e^{s(y)}$$
#
# There are $L^n$ sequences, but the sum can be taken token by token (the *forward algorithm*). Let
# $a_t(y)$ be the logarithm of the sum over all beginnings of length $t$ that end with the tag $y$:
#
# $$a_1(y) = \text{start}_y + e_{1,y},\qquad
# a_t(y) = e_{t,y} + \log \sum_{y'} e^{a_{t-1}(y') + A_{y',y}},\qquad
# \log Z = \log \sum_y e^{a_n(y) + \text{end}_y}$$
#
# * The arguments are those of exercise 24. The result is `(B,)`.
# * It is exact for scores of $\pm 1000$ too: nothing may overflow.
# * It is differentiable. (The gradient with respect to the emissions is the probability of each tag
#   at each token.)
# * Padding must not matter.
#
# *Example.* In the example of exercise 24 the four sequences have the scores 1.5, 2, 0 and
# 3, so $\log Z = \log(e^{1.5} + e^2 + e^0 + e^3) \approx 3.495$.
#
# Book: section *CRF* (`brt-crf`).
#
# <details><summary>Hint 1</summary>
#
# `a.unsqueeze(2) + transitions` is `(B, L, L)`: the axis in the middle is the tag before, and it is
# the one over which is summed.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.logsumexp(x, dim)` takes the largest entry out before it computes any power.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A row that has ended keeps its $a$: `torch.where(mask[:, t:t+1], new, old)`.
#
# </details>


# %% exercise="crf_partition" points=3 section="brt-crf"
def crf_partition(
    emissions: Tensor, mask: Tensor, transitions: Tensor, start: Tensor, end: Tensor
) -> Tensor:
    """The log of the sum over all sequences of tags (forward algorithm; Lafferty et al. 2001).

    Args:
        emissions: (B, T, L).
        mask: (B, T) bool, as for ``crf_score``.
        transitions: (L, L), from row to column.
        start: (L,).
        end: (L,).

    Returns:
        (B,): log of the sum of exp(score) over all L^(length of the row) sequences.
    """
    ### BEGIN SOLUTION
    # sums[b, y]: log of the sum over all beginnings that end with the tag y.
    sums = start + emissions[:, 0]  # (B, L)
    for t in range(1, emissions.shape[1]):
        ways = sums.unsqueeze(2) + transitions  # (B, L before, L now)
        longer = torch.logsumexp(ways, dim=1) + emissions[:, t]  # (B, L)
        sums = torch.where(mask[:, t : t + 1], longer, sums)  # (B, L), as it is at padding
    return torch.logsumexp(sums + end, dim=1)  # (B,)
    ### END SOLUTION


# %% check="crf_partition" tags=["active-ipynb"]
# check("crf_partition")

# %% [markdown]
# ### Exercise 26: The best sequence
#
# Write `viterbi(emissions, mask, transitions, start, end)`: the sequence with the largest score. It
# is the forward algorithm with a maximum in place of the sum, and a note at each token from where
# the maximum came.
#
# * The arguments are those of exercise 24.
# * Returns `(paths, scores)`: `paths` is a list of `B` lists of `int`, each with the tags of the
#   row's real tokens and no more; `scores` `(B,)` are the scores of these sequences. Of equally
#   good sequences any will do.
#
# *Example.* In the example of exercise 24 the best sequence is $1, 1$ with 3, although the
# best tag of the first token, seen alone, is 0.
#
# Book: section *CRF* (`brt-crf`).
#
# <details><summary>Hint 1</summary>
#
# `x.max(dim=1)` returns the largest values and their indices: the score, and the tag before.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Go back from the best last tag. Each step looks up, in the note for its token, the tag before; at
# the end the list is the wrong way round.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Rows of different length: the running scores of a row stay as they are after its end, and its way
# back begins at its own last token.
#
# </details>


# %% exercise="viterbi" points=3 section="brt-crf"
def viterbi(
    emissions: Tensor, mask: Tensor, transitions: Tensor, start: Tensor, end: Tensor
) -> tuple[list[list[int]], Tensor]:
    """The sequences of tags with the largest score (Viterbi 1967; Lample et al. 2016, 2.2).

    Args:
        emissions: (B, T, L).
        mask: (B, T) bool, as for ``crf_score``.
        transitions: (L, L), from row to column.
        start: (L,).
        end: (L,).

    Returns:
        For each row the best tags of its real tokens, and the scores (B,) of these sequences. Of
        equally good ones any.
    """
    ### BEGIN SOLUTION
    best = start + emissions[:, 0]  # (B, L), of all beginnings that end with each tag
    before = []  # for each place t > 0: (B, L), the tag at t - 1 of the best beginning
    for t in range(1, emissions.shape[1]):
        ways = best.unsqueeze(2) + transitions  # (B, L before, L now)
        longer, tag = ways.max(dim=1)  # (B, L), (B, L)
        best = torch.where(mask[:, t : t + 1], longer + emissions[:, t], best)  # (B, L)
        before.append(tag)
    scores, last = (best + end).max(dim=1)  # (B,), (B,)
    paths = []
    for row, length in enumerate(mask.sum(dim=1).tolist()):
        path = [int(last[row])]
        for tag in reversed(before[: length - 1]):
            path.append(int(tag[row, path[-1]]))
        paths.append(path[::-1])
    return paths, scores
    ### END SOLUTION


# %% check="viterbi" tags=["active-ipynb"]
# check("viterbi")

# %% [markdown]
# The next cell hands you `CRF(num_tags)`, which keeps `transitions`, `start` and `end` as
# parameters and calls your functions. It works on emissions of any origin:
# `loss(emissions, tags, mask)` is the mean of $-\log p(y) = \log Z - s(y)$ over the batch, and
# `decode(emissions, mask)` gives the best tags.


# %% tags=["given"]
class CRF(nn.Module):
    """A conditional random field on emissions of any origin (Lample et al. 2016, section 2.2).

    Parameters: ``transitions`` (L, L), from row to column; ``start`` (L,); ``end`` (L,).
    """

    def __init__(self, num_tags: int) -> None:
        """Draw all parameters from N(0, 0.1^2)."""
        super().__init__()
        self.transitions = nn.Parameter(0.1 * torch.randn(num_tags, num_tags))
        self.start = nn.Parameter(0.1 * torch.randn(num_tags))
        self.end = nn.Parameter(0.1 * torch.randn(num_tags))

    def loss(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """The mean of -log p(tags) over the batch: (B, T, L), (B, T), (B, T) -> scalar."""
        scores = (self.transitions, self.start, self.end)
        total = crf_partition(emissions, mask, *scores)  # (B,)
        return (total - crf_score(emissions, tags, mask, *scores)).mean()  # scalar

    def decode(self, emissions: Tensor, mask: Tensor) -> list[list[int]]:
        """The best tags of every row's real tokens: (B, T, L), (B, T) -> B lists."""
        return viterbi(emissions, mask, self.transitions, self.start, self.end)[0]


# %% [markdown]
# ### Exercise 27: A tagger without BERT
#
# Before BERT, the best taggers were LSTMs in both directions with a CRF on top. Write
# `BiLSTMCRF(vocab_size, embedding, hidden, num_tags)`.
#
# * Submodules: `embedding = nn.Embedding(vocab_size, embedding)`;
#   `lstm = nn.LSTM(embedding, hidden, batch_first=True, bidirectional=True)`;
#   `emission = nn.Linear(2 * hidden, num_tags)`; `crf = CRF(num_tags)`, which is given.
# * `forward(ids, mask)`: both `(B, T)`; the emissions `(B, T, L)`. At real places padding must make
#   **no difference**: the backward direction starts at the last real token. What stands at padding
#   is of no importance.
# * `loss(ids, tags, mask)`: the CRF's loss, a scalar. `decode(ids, mask)`: its best tags, a list of
#   lists.
#
# *Example.* Append columns of padding to a batch: loss and tags stay the same.
#
# Book: section *CRF* (`brt-crf`).
#
# <details><summary>Hint 1</summary>
#
# An LSTM that reads a padded row backwards begins with the padding, and its state at the last real
# token already comes from it. Masking the result afterwards is too late.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `nn.utils.rnn.pack_padded_sequence` tells the LSTM how long each row is (on the CPU; with
# `enforce_sorted=False` in any order), and `pad_packed_sequence` makes a tensor of the result;
# `total_length` keeps it as long as the input.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A loop over rows, each cut to its length, is slow but right.
#
# </details>


# %% exercise="BiLSTMCRF" points=3 section="brt-crf"
class BiLSTMCRF(nn.Module):
    """Tags from an LSTM in both directions and a CRF (Huang et al. 2015; Lample et al. 2016, 2).

    Submodules: ``embedding`` = nn.Embedding(vocab_size, embedding), ``lstm`` = nn.LSTM(embedding,
    hidden, batch_first=True, bidirectional=True), ``emission`` = nn.Linear(2 hidden, num_tags),
    ``crf`` = CRF(num_tags).
    """

    def __init__(self, vocab_size: int, embedding: int, hidden: int, num_tags: int) -> None:
        """Create the submodules.

        Args:
            vocab_size: V.
            embedding: E, the width of an embedding.
            hidden: the width of the state of each direction.
            num_tags: L.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.embedding = nn.Embedding(vocab_size, embedding)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True, bidirectional=True)
        self.emission = nn.Linear(2 * hidden, num_tags)
        self.crf = CRF(num_tags)
        ### END SOLUTION

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The emissions of every tag at every token.

        Args:
            ids: (B, T) int64.
            mask: (B, T) bool, True where a real token stands.

        Returns:
            (B, T, L). At real places padding has no influence: the backward direction begins at the
            last real token. What stands at padding is of no importance.
        """
        ### BEGIN SOLUTION
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(ids),  # (B, T, E)
            mask.sum(dim=1).cpu(),
            batch_first=True,
            enforce_sorted=False,
        )
        states, _ = nn.utils.rnn.pad_packed_sequence(
            self.lstm(packed)[0], batch_first=True, total_length=ids.shape[1]
        )  # (B, T, 2 hidden)
        return self.emission(states)  # (B, T, L)
        ### END SOLUTION

    def loss(self, ids: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """The loss of the CRF.

        Args:
            ids: (B, T) int64.
            tags: (B, T) int64.
            mask: (B, T) bool.

        Returns:
            A scalar.
        """
        ### BEGIN SOLUTION
        return self.crf.loss(self(ids, mask), tags, mask)  # scalar
        ### END SOLUTION

    def decode(self, ids: Tensor, mask: Tensor) -> list[list[int]]:
        """The best tags.

        Args:
            ids: (B, T) int64.
            mask: (B, T) bool.

        Returns:
            For each row the tags of its real tokens.
        """
        ### BEGIN SOLUTION
        return self.crf.decode(self(ids, mask), mask)
        ### END SOLUTION


# %% check="BiLSTMCRF" tags=["active-ipynb"]
# check("BiLSTMCRF")


# %% tags=["instructor"]
class BertCRF(nn.Module):
    """BERT with a CRF on the emissions of the tokens that have a tag.

    Submodules: ``tagger`` = Tagger(bert, num_tags), ``crf`` = CRF(num_tags). Special tokens and
    later pieces of words have no tag: the CRF runs over the others as if they stood side by side.
    """

    def __init__(self, bert: BertModel, num_tags: int, dropout: float = 0.1) -> None:
        """Create ``tagger`` on the encoder that is given, and ``crf``."""
        super().__init__()
        self.tagger = Tagger(bert, num_tags, dropout)
        self.crf = CRF(num_tags)

    def forward(
        self, ids: Tensor, segment_ids: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """The emissions (B, T, L) of every tag at every token."""
        return self.tagger(ids, segment_ids, mask)  # (B, T, L)

    def loss(self, emissions: Tensor, labels: Tensor) -> Tensor:
        """The loss of the CRF: emissions (B, T, L), labels (B, T) with IGNORE -> scalar."""
        order, mask = self._together(labels != IGNORE)  # (B, T), (B, T)
        emissions = emissions.gather(1, order.unsqueeze(2).expand_as(emissions))  # (B, T, L)
        return self.crf.loss(emissions, labels.gather(1, order), mask)  # scalar

    def decode(self, emissions: Tensor, tagged: Tensor) -> list[list[int]]:
        """The best tags of the places where tagged (B, T) bool is True, for each row a list."""
        order, mask = self._together(tagged)  # (B, T), (B, T)
        emissions = emissions.gather(1, order.unsqueeze(2).expand_as(emissions))  # (B, T, L)
        return self.crf.decode(emissions, mask)

    @staticmethod
    def _together(tagged: Tensor) -> tuple[Tensor, Tensor]:
        """The places (B, T) with the tagged ones first, in their order, and which they are."""
        order = torch.argsort((~tagged).long(), dim=1, stable=True)  # (B, T)
        return order, tagged.gather(1, order)


# %% [markdown]
# ## Relatives
#
# ### Exercise 28: ALBERT's shared layer
#
# Write `SharedEncoder(num_layers, hidden, num_heads, intermediate, dropout=0.0)`: a deep encoder
# with the parameters of one layer.
#
# * Submodule: `layer`, one `BertLayer(hidden, num_heads, intermediate, dropout)`.
# * `forward(x, mask=None)`: `x` `(B, T, D)`, `mask` `(B, T)` bool; applies the layer `num_layers`
#   times, with the mask each time. The result is `(B, T, D)`.
# * `ValueError` (when the module is created) if `num_heads` does not divide `hidden`; it may come
#   from the layer.
#
# *Example.* `SharedEncoder(2, ...)` and `SharedEncoder(12, ...)` have the same number of
# parameters. The second still takes six times as long: sharing saves memory, not time.
#
# Book: section *ALBERT* (`brt-albert`).
#
# <details><summary>Hint 1</summary>
#
# The output of each round is the input of the next.
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

    Submodule: ``layer`` = BertLayer(hidden, num_heads, intermediate, dropout).
    """

    def __init__(
        self,
        num_layers: int,
        hidden: int,
        num_heads: int,
        intermediate: int,
        dropout: float = 0.0,
    ) -> None:
        """Create the one layer.

        Args:
            num_layers: N, how often it is applied.
            hidden: D.
            num_heads: H, a divisor of hidden.
            intermediate: F.
            dropout: of the layer.

        Raises:
            ValueError: if num_heads does not divide hidden.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.num_layers = num_layers
        self.layer = BertLayer(hidden, num_heads, intermediate, dropout)
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
# ### Exercise 29: XLNet's masks
#
# XLNet predicts the tokens one after another, but in a random order. The tokens stay where they
# are; only masks say who may see whom. Write `permutation_masks(order)`.
#
# * `order` `(T,)` `torch.int64` is a permutation of $0 \dots T - 1$: `order[k]` is the **place**
#   that is predicted as number $k$.
# * Returns `(content, query)`, both `(T, T)` bool, row $i$ and column $j$ at the tokens' own
#   places:
#
# | mask | place $i$ may see place $j$ if |
# |---|---|
# | `query` | $j$ comes before $i$ in the order |
# | `content` | $j$ comes before $i$ in the order, or $j = i$ |
#
# * The query stream predicts the token at $i$, so it must not see it; the content stream is what
#   later places see of $i$, so it must.
# * `ValueError` if `order` is not a permutation.
#
# *Example.* For the order $2, 0, 1$ the query mask is
# $\begin{pmatrix}0&0&1\\1&0&1\\0&0&0\end{pmatrix}$: place 0 sees place 2, place 1 sees both others,
# place 2 comes first and sees nothing.
#
# Book: section *XLNet* (`brt-xlnet`).
#
# <details><summary>Hint 1</summary>
#
# You need the other direction: for each place its number in the order. That is the inverse of the
# permutation; `argsort` finds it.
#
# </details>
# <details><summary>Hint 2</summary>
#
# With the numbers as a column and as a row, one comparison makes the whole table.
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
        order: (T,) int64, a permutation: order[k] is the place that is predicted as number k.

    Returns:
        content and query, both (T, T) bool. Row i of ``query`` is True at the places that come
        before place i in the order, row i of ``content`` at these and at i itself.

    Raises:
        ValueError: if order is not a permutation of 0 .. T - 1.
    """
    ### BEGIN SOLUTION
    if order.dim() != 1 or not order.sort().values.equal(torch.arange(len(order)).to(order)):
        raise ValueError(f"order must hold each of 0 to {order.numel() - 1} once")
    rank = order.argsort()  # (T,), when each place is predicted
    query = rank < rank.unsqueeze(1)  # (T, T), [i, j]: j comes before i
    content = rank <= rank.unsqueeze(1)  # (T, T)
    return content, query
    ### END SOLUTION


# %% check="permutation_masks" tags=["active-ipynb"]
# check("permutation_masks")

# %% [markdown]
# ### Exercise 30: Transformer-XL's attention
#
# Transformer-XL reads a long text in segments. Each layer also sees what it computed for the
# segment before, its *memory*, and positions are distances: with the absolute positions of BERT a
# token of the memory and one of the new segment would look as if they stood at the same place.
# Write `RelativeAttention(hidden, num_heads, dropout=0.0)`. The score of query $i$ and key $j$ in a
# head is
#
# $$\frac{(q_i + u)^\top k_j + (q_i + v)^\top r_{i-j}}{\sqrt{D/H}},\qquad
# r_d = W_r\,\operatorname{code}(d)$$
#
# * Submodules: `q_proj`, `k_proj`, `v_proj`, `r_proj` ($W_r$), `out_proj`, each
#   `nn.Linear(hidden, hidden, bias=False)`, split into heads as in exercise 4. Parameters:
#   `content_bias` ($u$) and `position_bias` ($v$), both `(H, D/H)`, zeros at first.
# * `forward(x, memory=None)`: `x` `(B, T, D)`; `memory` `(B, M, D)`, the $M$ places before it, or
#   `None`. The result is `(B, T, D)`.
# * Queries come from `x`; keys and values from memory and `x`, **joined along the length**. No
#   gradient reaches the memory (the projections get theirs all the same).
# * It is causal: the place $t$ of `x` sees the whole memory and $x_0, \dots, x_t$.
# * $i - j$ counts in the joined sequence, where $x_t$ stands at $M + t$. The code is
#   `relative_code(i - j, D)`, which is given; $W_r$ acts on it, and the result is split into heads.
# * Dropout acts on the weights, in training mode.
# * `ValueError` (when the module is created) if `num_heads` does not divide `hidden`.
#
# *Example.* `q_proj` and both biases are 0, `v_proj` and `out_proj` pass their input on: every
# place gets the mean of what it sees. With the memory $2$ and $x = (4, 9)$ that is $3$ and $5$.
#
# Book: section *Transformer-XL* (`brt-transformer-xl`).
#
# <details><summary>Hint 1</summary>
#
# `memory.detach()` has the same numbers and no history. With `torch.cat([...], dim=1)` it becomes
# the front of the context; sizes of the keys are $S = M + T$.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The distances form a table `(T, S)`: `i` is `torch.arange(M, S)` as a column, `j` is
# `torch.arange(S)` as a row. Negative ones are those that must not be seen.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Simple and right: the codes of the whole table, `(T, S, D)`, through `r_proj`, split into heads,
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
    ``q_proj``, ``k_proj``, ``v_proj``, ``r_proj``, ``out_proj``, each nn.Linear(hidden, hidden,
    bias=False).
    """

    def __init__(self, hidden: int, num_heads: int, dropout: float = 0.0) -> None:
        """Create the projections and the two biases.

        Args:
            hidden: D.
            num_heads: H, a divisor of hidden.
            dropout: probability with which a weight is dropped in training mode.

        Raises:
            ValueError: if num_heads does not divide hidden.
        """
        super().__init__()
        ### BEGIN SOLUTION
        if num_heads < 1 or hidden % num_heads != 0:
            raise ValueError(f"hidden={hidden} can't be split into {num_heads} equal heads")
        self.num_heads = num_heads
        self.q_proj = nn.Linear(hidden, hidden, bias=False)
        self.k_proj = nn.Linear(hidden, hidden, bias=False)
        self.v_proj = nn.Linear(hidden, hidden, bias=False)
        self.r_proj = nn.Linear(hidden, hidden, bias=False)
        self.out_proj = nn.Linear(hidden, hidden, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(num_heads, hidden // num_heads))
        self.position_bias = nn.Parameter(torch.zeros(num_heads, hidden // num_heads))
        self.dropout = nn.Dropout(dropout)
        ### END SOLUTION

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """Attend to the memory and to the places up to the own one.

        Args:
            x: (B, T, D).
            memory: (B, M, D), the M places before x; gets no gradient. None: there are none.

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

        places = torch.arange(total, device=x.device)  # (S,)
        distance = places[total - length :].unsqueeze(1) - places  # (T, S), i - j
        by_content = (queries + self.content_bias.unsqueeze(1)) @ keys.transpose(-2, -1)
        by_distance = (queries + self.position_bias.unsqueeze(1)) @ relative.transpose(-2, -1)
        # by_distance[..., t, d] is for distance d; key j needs that for i - j.
        index = distance.clamp(min=0).expand(by_distance.shape)  # (B, H, T, S)
        scores = (by_content + by_distance.gather(3, index)) / math.sqrt(head)  # (B, H, T, S)
        scores = scores.masked_fill(distance < 0, torch.finfo(scores.dtype).min)
        weights = self.dropout(torch.softmax(scores, dim=-1))  # (B, H, T, S)
        joined = (weights @ values).transpose(1, 2).reshape(batch, length, width)  # (B, T, D)
        return self.out_proj(joined)  # (B, T, D)
        ### END SOLUTION


# %% check="RelativeAttention" tags=["active-ipynb"]
# check("RelativeAttention")

# %% [markdown]
# ### Exercise 31: The memory
#
# Write `update_memory(memory, hidden, length)`: what the next segment may look back at.
#
# * `memory` `(B, M, D)` or `None`; `hidden` `(B, T, D)`, the vectors of the segment just read.
# * The result: the last `length` places of memory and `hidden` joined along the length, or all of
#   them if there are fewer. It is detached: no gradient passes. For `length=0` it is `(B, 0, D)`.
# * `ValueError` if `length` is negative.
#
# *Example.* With places 1, 2, 3 in the memory, 4, 5 in the segment and `length=4` it is 2, 3, 4, 5:
# joined, never added.
#
# Book: section *Transformer-XL* (`brt-transformer-xl`).
#
# <details><summary>Hint 1</summary>
#
# The memory comes first, the new places after it.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `x[:, -0:]` is all of `x`. Count from the front instead: where do the last places begin?
#
# </details>


# %% exercise="update_memory" points=1 section="brt-transformer-xl"
def update_memory(memory: Tensor | None, hidden: Tensor, length: int) -> Tensor:
    """What the next segment may look back at (Dai et al. 2019, section 3.2).

    Args:
        memory: (B, M, D), what this segment could look back at; None: nothing.
        hidden: (B, T, D), the vectors of this segment.
        length: how many places to keep, at least 0.

    Returns:
        The last ``length`` places of memory and hidden, joined along the length; all of them if
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

    def __init__(self, hidden: int, num_heads: int, clip: int = 64) -> None:
        """Create the four projections.

        Raises:
            ValueError: if num_heads does not divide hidden, or clip < 1.
        """
        super().__init__()
        if num_heads < 1 or hidden % num_heads != 0:
            raise ValueError(f"hidden={hidden} can't be split into {num_heads} equal heads")
        if clip < 1:
            raise ValueError(f"clip must be at least 1, but is {clip}")
        self.num_heads, self.clip = num_heads, clip
        self.q_proj = nn.Linear(hidden, hidden)
        self.k_proj = nn.Linear(hidden, hidden)
        self.v_proj = nn.Linear(hidden, hidden)
        self.out_proj = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x (B, T, D), mask (B, T) bool, True where a real token stands -> (B, T, D)."""
        batch, length, width = x.shape
        heads = (batch, length, self.num_heads, width // self.num_heads)
        queries = self.q_proj(x).reshape(heads).transpose(1, 2)  # (B, H, T, D/H)
        keys = self.k_proj(x).reshape(heads).transpose(1, 2)  # (B, H, T, D/H)
        values = self.v_proj(x).reshape(heads).transpose(1, 2)  # (B, H, T, D/H)
        places = torch.arange(length, device=x.device)  # (T,)
        distance = (places - places.unsqueeze(1)).clamp(-self.clip, self.clip)  # (T, T), j - i
        relative = relative_code(distance, heads[-1]).to(x)  # (T, T, D/H)
        scores = queries @ keys.transpose(-2, -1)  # (B, H, T, T)
        scores = scores + torch.einsum("bhid,ijd->bhij", queries, relative)  # (B, H, T, T)
        scores = scores / math.sqrt(heads[-1])  # (B, H, T, T)
        if mask is not None:
            padding = ~mask[:, None, None, :]  # (B, 1, 1, T)
            scores = scores.masked_fill(padding, torch.finfo(scores.dtype).min)
        weights = torch.softmax(scores, dim=-1)  # (B, H, T, T)
        joined = weights @ values  # (B, H, T, D/H)
        joined = joined + torch.einsum("bhij,ijd->bhid", weights, relative)  # (B, H, T, D/H)
        return self.out_proj(joined.transpose(1, 2).reshape(batch, length, width))  # (B, T, D)


# %% [markdown]
# ### Exercise 32: ELECTRA's replaced tokens
#
# ELECTRA has two networks. A small *generator*, a masked language model, fills the masked places; a
# *discriminator* then says for **every** token whether it is the original one. Write
# `replace_tokens(ids, labels, scores)`, which makes the discriminator's input.
#
# * `ids` `(B, T)` `torch.int64`: the **original** tokens. `labels` `(B, T)`: as from `mask_tokens`,
#   different from `IGNORE` where a token was chosen. `scores` `(B, T, V)`: the generator's.
# * Returns `(replaced, is_replaced)`, both `(B, T)`. `replaced`: a token **drawn** from the softmax
#   of the scores where one was chosen, the original everywhere else. `is_replaced`: bool, `True`
#   where the two differ.
# * Each place has its own draw. No gradient passes: the result has none.
#
# *Example.* Where the generator happens to draw the original token, `is_replaced` is `False`: the
# token is the right one, wherever it came from.
#
# Book: section *ELECTRA* (`brt-electra`).
#
# <details><summary>Hint 1</summary>
#
# `torch.multinomial(probabilities, 1)` draws one column for each row of a table `(n, V)`. The best
# token (`argmax`) is not a draw.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `scores[chosen]` with a bool tensor `(B, T)` is `(n, V)`, and `replaced[chosen] = ...` writes
# back. Write into a copy. It may be that nothing was chosen.
#
# </details>


# %% exercise="replace_tokens" points=3 section="brt-electra"
def replace_tokens(ids: Tensor, labels: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Put what a generator draws in place of the chosen tokens (ELECTRA: Clark et al. 2020, 2).

    Args:
        ids: (B, T) int64, the original tokens.
        labels: (B, T) int64, as from ``mask_tokens``: not IGNORE where a token was chosen.
        scores: (B, T, V), of the generator.

    Returns:
        replaced (B, T) int64: where chosen a token drawn from softmax(scores), elsewhere the
        original; is_replaced (B, T) bool: where it differs from the original. No gradient passes.
    """
    ### BEGIN SOLUTION
    chosen = labels != IGNORE  # (B, T)
    replaced = ids.clone()  # (B, T)
    if chosen.any():
        probabilities = torch.softmax(scores.detach()[chosen], dim=-1)  # (n, V)
        replaced[chosen] = torch.multinomial(probabilities, 1).squeeze(1)  # (n,)
    return replaced, replaced != ids  # (B, T), (B, T)
    ### END SOLUTION


# %% check="replace_tokens" tags=["active-ipynb"]
# check("replace_tokens")

# %% [markdown]
# ### Exercise 33: The discriminator's loss
#
# Write `replaced_token_loss(scores, is_replaced, mask)`.
#
# $$\frac1{|R|} \sum_{(b,t)\,\in\,R} \begin{cases}
# -\log \sigma(z_{b,t}) & \text{if the token is replaced}\\
# -\log\bigl(1 - \sigma(z_{b,t})\bigr) & \text{otherwise}\end{cases}$$
#
# * `scores` ($z$) `(B, T)`, before the sigmoid; `is_replaced` `(B, T)` bool; `mask` `(B, T)` bool.
#   $R$ are **all** real tokens, special ones too, not only the chosen ones.
# * The result is a scalar, also for large scores: nothing may overflow.
#
# *Example.* If all scores are 0 it is $\log 2 \approx 0.693$.
#
# Book: section *ELECTRA* (`brt-electra`).
#
# <details><summary>Hint 1</summary>
#
# `F.binary_cross_entropy_with_logits` takes scores and targets; the targets must be of a floating
# type.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `scores[mask]` are the real ones of the whole batch, in one row. Then a mean is a mean over them.
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
# ### Exercise 34: ELMo's two directions
#
# ELMo sees both sides without masking anything: one language model reads from left to right,
# another from right to left, and their states are put side by side. Write
# `TwoDirections(vocab_size, embedding, hidden)`.
#
# * Submodules: `embedding = nn.Embedding(vocab_size, embedding)`; `forward_lstm` and
#   `backward_lstm`, each `nn.LSTM(embedding, hidden, batch_first=True)`;
#   `output = nn.Linear(hidden, vocab_size)`, used by both directions.
# * `forward(ids, mask=None)`: both `(B, T)`. The result is `(B, T, 2 * hidden)`: at place $t$ first
#   the state of the forward LSTM, which has read tokens $0$ to $t$, then that of the backward LSTM,
#   which has read from the **last real** token down to $t$. Padding is never read before a real
#   token; what stands at padding is of no importance.
# * `loss(ids, mask=None)`: two means, added.
#
# $$\operatorname*{mean}_{t \text{ has a next one}} -\log p(i_{t+1} \mid \overrightarrow{h_t})
# \;+\;
# \operatorname*{mean}_{t \text{ has a previous one}} -\log p(i_{t-1} \mid \overleftarrow{h_t})$$
#
# * Each mean is over all such real places of the batch; the next and the previous token are real
#   ones too. At least one row has two real tokens.
#
# *Example.* If all parameters of `output` are 0, the loss is $2 \log V$.
#
# Book: section *ELMo* (`brt-elmo`).
#
# <details><summary>Hint 1</summary>
#
# `nn.LSTM` returns `(states, last)`; the states of all places are the first. To read backwards,
# turn the input round, run the LSTM, and turn its states back.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `flip` alone would bring the padding to the front. Turn only the real part: with the row's length
# $n$, place $t$ takes what stands at $n - 1 - t$, and padding stays where it is. The same step
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

    Submodules: ``embedding`` = nn.Embedding(vocab_size, embedding); ``forward_lstm`` and
    ``backward_lstm``, each nn.LSTM(embedding, hidden, batch_first=True); ``output`` =
    nn.Linear(hidden, vocab_size), used by both directions.
    """

    def __init__(self, vocab_size: int, embedding: int, hidden: int) -> None:
        """Create the submodules.

        Args:
            vocab_size: V.
            embedding: E, the width of an embedding.
            hidden: the width of the state of each direction.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.embedding = nn.Embedding(vocab_size, embedding)
        self.forward_lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.backward_lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.output = nn.Linear(hidden, vocab_size)
        ### END SOLUTION

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """The states of both directions, side by side.

        Args:
            ids: (B, T) int64.
            mask: (B, T) bool, True where a real token stands. None: everywhere.

        Returns:
            (B, T, 2 hidden): at place t the state of the forward LSTM, which has read tokens 0 to
            t, and that of the backward LSTM, which has read from the last real token to t. What
            stands at padding is of no importance.
        """
        ### BEGIN SOLUTION
        x = self.embedding(ids)  # (B, T, E)
        length = x.new_full((len(ids), 1), ids.shape[1]) if mask is None else mask.sum(1, True)
        place = torch.arange(ids.shape[1], device=ids.device)  # (T,)
        # The real tokens of each row from the last to the first; padding stays where it is.
        turned = torch.where(place < length, length.long() - 1 - place, place)  # (B, T)

        def turn(vectors: Tensor) -> Tensor:
            return vectors.gather(1, turned.unsqueeze(2).expand(-1, -1, vectors.shape[2]))

        forwards, _ = self.forward_lstm(x)  # (B, T, hidden)
        backwards, _ = self.backward_lstm(turn(x))  # (B, T, hidden), in reading order
        return torch.cat([forwards, turn(backwards)], dim=2)  # (B, T, 2 hidden)
        ### END SOLUTION

    def loss(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """How badly both directions predict the token that each reads next.

        Args:
            ids: (B, T) int64.
            mask: (B, T) bool, True where a real token stands. None: everywhere.

        Returns:
            A scalar: the mean of -log p(next token) over all real places that have a next one, by
            the forward state; plus the mean of -log p(previous token) over all real places that
            have a previous one, by the backward state.
        """
        ### BEGIN SOLUTION
        forwards, backwards = self(ids, mask).chunk(2, dim=2)  # (B, T, hidden) each
        # A real place and its neighbour: both are real where the right one of them is.
        both = torch.ones_like(ids[:, 1:], dtype=torch.bool) if mask is None else mask[:, 1:]
        following = F.cross_entropy(self.output(forwards[:, :-1])[both], ids[:, 1:][both])
        preceding = F.cross_entropy(self.output(backwards[:, 1:])[both], ids[:, :-1][both])
        return following + preceding  # scalar
        ### END SOLUTION


# %% check="TwoDirections" tags=["active-ipynb"]
# check("TwoDirections")


# %% tags=["instructor"]
def from_pretrained(folder: str | Path, kind: str = "pretraining", **more: Any) -> nn.Module:
    """Build a model of ours from a folder with a Hugging Face BERT checkpoint.

    Args:
        folder: holds config.json and model.safetensors.
        kind: "model" (BertModel), "pretraining" (BertForPreTraining), "sequence"
            (SequenceClassifier), "choice" (MultipleChoice), "span" (SpanFinder) or "tagging"
            (Tagger).
        **more: ``num_labels`` for "sequence" and "tagging" (else as many as the checkpoint's
            configuration names, or 2); ``dropout`` for all kinds (else ``hidden_dropout_prob``).

    Returns:
        The model in evaluation mode, in the floating type of the checkpoint. What the checkpoint
        lacks of the heads and of the pooler is drawn at random, and a warning names it; heads that
        this kind doesn't have are left aside.

    Raises:
        ValueError: if the kind or an option is unknown; a file is missing or damaged; the
            checkpoint is not a BERT encoder with GELU, absolute positions and eps = 1e-12; a name
            is foreign; a part of the encoder is missing; or a shape does not fit.
    """
    # Needed here only: the rest of the chapter works without the library.
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    kinds = ("model", "pretraining", "sequence", "choice", "span", "tagging")
    if kind not in kinds:
        raise ValueError(f"kind must be one of {', '.join(kinds)}, but is {kind!r}")
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
    for key, only in (
        ("model_type", "bert"),
        ("hidden_act", "gelu"),
        ("position_embedding_type", "absolute"),
        ("layer_norm_eps", 1e-12),
        ("is_decoder", False),
    ):
        if config.get(key, only) != only:
            raise ValueError(f"{key} must be {only!r}, but the checkpoint has {config[key]!r}")
    dropout = more.pop("dropout", config.get("hidden_dropout_prob", 0.1))
    num_labels = len(config.get("id2label", ())) or 2
    if kind in ("sequence", "tagging"):
        num_labels = more.pop("num_labels", num_labels)
    if more:
        raise ValueError(f"the kind {kind!r} has no option {', '.join(sorted(more))}")
    sizes = (
        config.get("vocab_size", 30522),
        config.get("hidden_size", 768),
        config.get("num_hidden_layers", 12),
        config.get("num_attention_heads", 12),
        config.get("intermediate_size", 3072),
        config.get("max_position_embeddings", 512),
        config.get("type_vocab_size", 2),
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

    heads = ("mlm.", "nsp.", "classifier.")
    wanted = model.state_dict()
    found = {}
    try:
        stored = load_file(folder / "model.safetensors")
    except SafetensorError as error:
        raise ValueError("model.safetensors is damaged, or no file of this kind") from error
    for name, tensor in rename_parameters(stored).items():
        if name.startswith(heads):
            if name in wanted:
                found[name] = tensor
        else:  # a part of the encoder, with or without the prefix
            name = name.removeprefix("bert.")
            found[name if kind == "model" else f"bert.{name}"] = tensor
    table = "embeddings.token.weight" if kind == "model" else "bert.embeddings.token.weight"
    if kind == "pretraining" and table in found:
        found["mlm.token.weight"] = found[table]  # tied: it is stored once
    for name, tensor in found.items():
        if name not in wanted:
            raise ValueError(f"the model has no {name}, but the checkpoint does")
        if tensor.shape != wanted[name].shape:
            raise ValueError(
                f"{name} must have the shape {tuple(wanted[name].shape)}, "
                f"but the checkpoint has {tuple(tensor.shape)}"
            )
    missing = [name for name in wanted if name not in found]
    optional = (*heads, "pooler.", "bert.pooler.")
    for name in missing:
        if not name.startswith(optional):
            raise ValueError(f"the checkpoint lacks {name}")
    if missing:
        names = ", ".join(missing)
        warnings.warn(f"the checkpoint lacks {names}: drawn at random", stacklevel=2)
    model.to(found[table].dtype)
    model.load_state_dict(found, strict=False)  # what is missing was judged above
    return model.eval()
