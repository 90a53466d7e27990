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
# # BERT: the model
#
# At the end of this unit BERT's input and encoder stand, and weights under the names of the
# released code load into it.
#
# A code cell below gives you, besides the constants, `pad_batch(rows)`: it makes a batch of
# inputs of different lengths. `rows` is a list of `(input_ids, token_type_ids)`, as exercise 1
# returns them; the result is `(input_ids, token_type_ids, mask)`, each `(B, T)`.

# %%
"""BERT's input, embeddings, layers, encoder, its parameters and their names."""

# The options of a cell must stand on one line, however long it gets.
# ruff: noqa: E501

# %%
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("bert-model")

# %%
PAD, UNK, CLS, SEP, MASK = 0, 1, 2, 3, 4


def pad_batch(rows: list[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor, Tensor]:
    """Make one batch of inputs of different lengths, padded on the right.

    Args:
        rows: the ids and the segments of each input, as ``build_input`` returns them.

    Returns:
        input_ids and token_type_ids, both (B, T) int64 with PAD and segment 0 after each row's end,
        and the mask (B, T) bool, True where a real token stands. T is the length of the longest
        row.
    """
    length = max(len(input_ids) for input_ids, _ in rows)
    input_ids = torch.full((len(rows), length), PAD)  # (B, T)
    token_type_ids = torch.zeros(len(rows), length, dtype=torch.int64)  # (B, T)
    mask = torch.zeros_like(input_ids, dtype=torch.bool)  # (B, T)
    for row, (numbers, parts) in enumerate(rows):
        input_ids[row, : len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
        token_type_ids[row, : len(parts)] = torch.tensor(parts, dtype=torch.int64)
        mask[row, : len(numbers)] = True
    return input_ids, token_type_ids, mask


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


# %% [markdown]
# ## The input
#
# ### Exercise 1: One input from one or two texts
#
# BERT reads a single text or a pair: two sentences, a question and a passage. Write
# `build_input(first, second=None, max_length=512)`, which makes one input of them:
#
# | | `input_ids` | `token_type_ids` |
# |---|---|---|
# | one text | `CLS` $A$ `SEP` | all 0 |
# | two texts | `CLS` $A$ `SEP` $B$ `SEP` | 0 up to the first `SEP`, 1 after it |
#
# <!-- id: one-or-two -->
#
# * `first` ($A$) and `second` ($B$) are lists of ids without special ones. The result is a pair of
#   lists of the same length, `(input_ids, token_type_ids)`.
# * If the input would be longer than `max_length`, special ids counted, tokens are removed one at a
#   time, each at the end of the text that is **longer** at that moment, and of the second if both
#   are equally long. A single text is cut at its end. <!-- id: truncation -->
# * The lists that come in stay as they are. <!-- id: lists-unchanged -->
# * `ValueError` if `first` is empty, or a `second` that is given; or if `max_length` leaves no room
#   for one token of each text: if it is smaller than 3 for one text, or 5 for two.
#   <!-- id: no-room -->
#
# *Example.* `build_input([5, 6], [7, 8, 9], max_length=6)` is
# `([2, 5, 6, 3, 7, 3], [0, 0, 0, 0, 1, 1])`: first 9 goes, since the second text is the longer
# one, then 8, since both are equally long.
#
# Book: `brt-input`.
#
# <details><summary>Hint 1</summary>
#
# Every text is closed by a `SEP`, also the last one. How many special ids are there in each case?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Ask for `second is None`, not for `not second`: an empty list was given and must be refused.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A loop that removes one token at a time needs no formula. `pop()` removes at the end, but from the
# list itself: copy it first.
#
# </details>


# %% exercise="build_input" points=3 section="brt-input"
def build_input(
    first: list[int], second: list[int] | None = None, max_length: int = 512
) -> tuple[list[int], list[int]]:
    """Join one or two texts to an input of BERT (Devlin et al. 2019, section 3).

    Args:
        first: A, the ids of the first text, at least one.
        second: B, the ids of the second text, at least one; None: there is none.
        max_length: the most ids that the input may have, special ones counted.

    Returns:
        The ids [CLS] A [SEP], or [CLS] A [SEP] B [SEP], and the segment of each: 0 up to the first
        SEP, 1 after it. What is too long is cut token by token, always at the end of the longer
        text, of the second if both are equally long.

    Raises:
        ValueError: if first, or a second that is given, is empty; or if max_length is smaller than
            3 (one text) or 5 (two texts).
    """
    ### BEGIN SOLUTION
    least = 3 if second is None else 5  # one token of each text, CLS, and SEP for each
    if max_length < least:
        raise ValueError(f"max_length must be at least {least} here, but is {max_length}")
    if not first or (second is not None and not second):
        raise ValueError("a text without tokens can't be an input")
    if second is None:
        input_ids = [CLS, *first[: max_length - 2], SEP]
        return input_ids, [0] * len(input_ids)
    first, second = list(first), list(second)  # the caller's lists stay as they are
    while len(first) + len(second) > max_length - 3:
        longer = first if len(first) > len(second) else second
        longer.pop()
    token_type_ids = [0] * (len(first) + 2) + [1] * (len(second) + 1)
    return [CLS, *first, SEP, *second, SEP], token_type_ids
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
# <!-- id: formula -->
#
# * `x` has any shape, and so has the result. <!-- id: any-shape -->
#   $\Phi$ is the distribution function of the standard
#   normal distribution.
# * It is the **exact** form, by `erf`. The approximation with `tanh`, which some programs use,
#   differs in the fourth decimal place and counts as wrong here. <!-- id: exact-form -->
# * Not to be called: `F.gelu`, `nn.GELU` and the functions behind them. <!-- id: not-called -->
#
# *Example.* $1$ becomes $0.8413$, $-1$ becomes $-0.1587$, and 0 stays 0. For large $|x|$ it is the
# ReLU.
#
# Book: `brt-encoder`.
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
# Write `BertEmbeddings(vocab_size, d_model, max_length=512, type_vocab_size=2, dropout=0.0)`. A
# token's first vector is the **sum** of three learned embeddings: one for the token, one for its
# position, one for its segment.
#
# $$x_t = \operatorname{dropout}\bigl(\operatorname{norm}(
# \text{token}_{i_t} + \text{position}_t + \text{segment}_{s_t})\bigr)$$
#
# <!-- id: normalised-sum -->
#
# * Submodules: `token = nn.Embedding(vocab_size, d_model)`,
#   `position = nn.Embedding(max_length, d_model)`, `segment = nn.Embedding(type_vocab_size,
#   d_model)`, and `norm = nn.LayerNorm(d_model, eps=1e-12)`. <!-- id: submodules -->
# * `forward(input_ids, token_type_ids=None)`: both `(B, T)` `torch.int64`; without segments all are
#   0. <!-- id: no-segments --> The result is `(B, T, D)`.
# * Positions count from 0 in every row. Nothing is scaled by $\sqrt D$.
#   <!-- id: positions-from-0 -->
# * `ValueError` (when it is called) if $T$ is larger than `max_length`; the message names both
#   numbers. <!-- id: too-long --> A learned embedding matrix has no row for what lies beyond it.
#
# *Example.* $D = 2$; the rows are $(1, 0)$ for the token, $(0, 1)$ for the position and $(2, 0)$
# for the segment. Their sum is $(3, 1)$, and the norm makes $(1, -1)$ of it.
#
# Book: `brt-embeddings`.
#
# <details><summary>Hint 1</summary>
#
# An `nn.Embedding` is called with ids. For the positions these are `torch.arange(T)`, on the device
# of `input_ids`; the result `(T, D)` broadcasts over the batch.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Without segments the row of segment 0 is added all the same: it is not the same as adding nothing.
#
# </details>


# %% exercise="BertEmbeddings" points=3 section="brt-embeddings"
class BertEmbeddings(nn.Module):
    """The sum of three learned embeddings, normalised (Devlin et al. 2019, section 3, figure 2).

    Submodules: ``token`` = nn.Embedding(vocab_size, d_model), ``position`` =
    nn.Embedding(max_length, d_model), ``segment`` = nn.Embedding(type_vocab_size, d_model),
    ``norm`` = nn.LayerNorm(d_model, eps=1e-12).
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        max_length: int = 512,
        type_vocab_size: int = 2,
        dropout: float = 0.0,
    ) -> None:
        """Create the three embeddings and the norm.

        Args:
            vocab_size: V.
            d_model: D.
            max_length: how many positions have an embedding.
            type_vocab_size: how many segments have an embedding.
            dropout: acts on the result, in training mode.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.token = nn.Embedding(vocab_size, d_model)
        self.position = nn.Embedding(max_length, d_model)
        self.segment = nn.Embedding(type_vocab_size, d_model)
        self.norm = nn.LayerNorm(d_model, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        ### END SOLUTION

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Look up token, position and segment, add the three, normalise.

        Args:
            input_ids: (B, T) int64.
            token_type_ids: (B, T) int64; None: segment 0 everywhere.

        Returns:
            (B, T, D), dropout(norm(token + position + segment)).

        Raises:
            ValueError: if T is larger than max_length.
        """
        ### BEGIN SOLUTION
        length, positions = input_ids.shape[1], self.position.num_embeddings
        if length > positions:
            raise ValueError(f"the input has {length} tokens, but there are {positions} positions")
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)  # (B, T)
        x = self.token(input_ids) + self.segment(token_type_ids)  # (B, T, D)
        x = x + self.position.weight[:length]  # (B, T, D)
        return self.dropout(self.norm(x))  # (B, T, D)
        ### END SOLUTION


# %% check="BertEmbeddings" tags=["active-ipynb"]
# check("BertEmbeddings")

# %% [markdown]
# ### Exercise 4: Self-attention
#
# In BERT every token attends to all real tokens, on both sides: there is no causal mask. Write
# `SelfAttention(d_model, num_heads, dropout=0.0)`.
#
# * Submodules: `q_proj`, `k_proj`, `v_proj`, `out_proj`, each `nn.Linear(d_model, d_model)` with
#   bias. <!-- id: layers -->
#   Head $h$ (from 0) has the features $h\,D/H$ to $(h + 1)\,D/H - 1$ of each projection.
#   <!-- id: order-of-features -->
# * `forward(x, mask=None)`: `x` `(B, T, D)`, `mask` `(B, T)` bool. The result is `(B, T, D)`. Keys
#   at padding get the weight 0; queries at padding are treated like all others.
#   <!-- id: masked-keys -->
# * Scores are divided by $\sqrt{D/H}$. <!-- id: scaled -->
#   Dropout acts on the weights, in training mode. <!-- id: dropout-on-weights -->
# * `ValueError` (when the module is created) if `num_heads` does not divide `d_model`.
#   <!-- id: heads-divide -->
# * Not to be called: `nn.MultiheadAttention`, `nn.TransformerEncoderLayer` and the functions behind
#   them. <!-- id: not-called -->
#
# *Example.* One head; `v_proj` and `out_proj` pass their input on unchanged, and `q_proj` is 0, so
# that all scores are equal. If the values are $2$, $4$, $9$ and the last token is padding, all
# three positions get the mean of the first two, $3$.
#
# Book: `brt-encoder`.
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

    Submodules: ``q_proj``, ``k_proj``, ``v_proj``, ``out_proj``, each nn.Linear(d_model, d_model)
    with bias.
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        """Create the four projections.

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
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
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
# Write `BertLayer(d_model, num_heads, d_ff, dropout=0.0)`, a layer of the Transformer's
# encoder with `gelu`:
#
# $$\begin{aligned}
# x' &= \operatorname{norm}_1\bigl(x + \operatorname{dropout}(\operatorname{attention}(x))\bigr)\\
# y &= \operatorname{norm}_2\bigl(x' +
# \operatorname{dropout}(W_2\,\operatorname{gelu}(W_1 x' + b_1) + b_2)\bigr)
# \end{aligned}$$
#
# <!-- id: formula -->
#
# * Submodules: `attention`, your `SelfAttention`; `attention_norm` (the first norm) and
#   `output_norm` (the second), each `nn.LayerNorm(d_model, eps=1e-12)`;
#   `w_1 = nn.Linear(d_model, d_ff)` and `w_2 = nn.Linear(d_ff, d_model)`. <!-- id: submodules -->
# * `forward(x, mask=None)`: `x` `(B, T, D)`, `mask` `(B, T)` bool. The result is `(B, T, D)`.
#   <!-- id: mask -->
# * `dropout` acts on the attention weights and where the formula has it, twice. Between `gelu` and $W_2$
#   there is none. <!-- id: dropout -->
# * `ValueError` (when the module is created) if `num_heads` does not divide `d_model`; it may come
#   from the attention.
# * Not to be called: `nn.TransformerEncoderLayer`, `nn.TransformerEncoder`. <!-- id: not-called -->
#
# *Example.* If all parameters of `attention.out_proj` and of `w_2` are 0, only residual connections
# and norms are left, and $(1, 3)$ becomes $(-1, 1)$.
#
# Book: `brt-encoder`.
#
# <details><summary>Hint 1</summary>
#
# It is post-norm: each norm acts on a sum, and what the second half adds to is the output of the
# first norm.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Dropout has no parameters; one `nn.Dropout` can serve both uses.
#
# </details>


# %% exercise="BertLayer" points=3 section="brt-encoder" forbids="TransformerEncoderLayer TransformerEncoder"
class BertLayer(nn.Module):
    """Self-attention and a feed-forward network, each with a residual connection and post-norm.

    As in Devlin et al. (2019), section 3, and Vaswani et al. (2017), section 3.1, with GELU for
    ReLU. Submodules: ``attention`` = SelfAttention, ``attention_norm`` and ``output_norm`` =
    nn.LayerNorm(d_model, eps=1e-12), ``w_1`` = nn.Linear(d_model, d_ff), ``w_2`` =
    nn.Linear(d_ff, d_model).
    """

    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout: float = 0.0) -> None:
        """Create the submodules.

        Args:
            d_model: D.
            num_heads: H, a divisor of d_model.
            d_ff: F.
            dropout: of the attention weights and of what each of the two parts returns.

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.attention = SelfAttention(d_model, num_heads, dropout)
        self.attention_norm = nn.LayerNorm(d_model, eps=1e-12)
        self.w_1 = nn.Linear(d_model, d_ff)
        self.w_2 = nn.Linear(d_ff, d_model)
        self.output_norm = nn.LayerNorm(d_model, eps=1e-12)
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
# Write `BertModel(vocab_size, d_model=768, num_layers=12, num_heads=12, d_ff=3072,
# max_length=512, type_vocab_size=2, dropout=0.1)`: embeddings, layers, and the *pooler*, a small
# network on the first token.
#
# * Submodules: `embeddings`, your `BertEmbeddings`; `layers`, an `nn.ModuleList` of `num_layers`
#   `BertLayer`s, each with parameters of its own; `pooler = nn.Linear(d_model, d_model)`.
#   <!-- id: submodules -->
# * `forward(input_ids, token_type_ids=None, mask=None)`: each `(B, T)`. <!-- id: mask -->
#   Returns `(hidden, pooled)`:
#   `hidden` `(B, T, D)`, the output of the last layer, and `pooled` `(B, D)`, $\tanh$ of the pooler
#   applied to `hidden` at the first token, `CLS`. <!-- id: hidden-and-pooled -->
# * `dropout` reaches the embeddings and all layers; the pooler has none. <!-- id: dropout -->
# * Weights begin as BERT's do: apply `init_weights`, which is given.
# * `ValueError`s of the parts may come through as they are: a number of heads that doesn't divide,
#   an input that is too long.
#
# *Example.* In evaluation mode, change the last token of a row: `hidden` changes at **every**
# position of the row, the first included, and at none of the other rows. Append columns of padding, masked
# out: nothing changes at the real positions.
#
# Book: `brt-encoder`.
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
    ``pooler`` = nn.Linear(d_model, d_model).
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int = 768,
        num_layers: int = 12,
        num_heads: int = 12,
        d_ff: int = 3072,
        max_length: int = 512,
        type_vocab_size: int = 2,
        dropout: float = 0.1,
    ) -> None:
        """Create the submodules; the defaults are those of BERT-base.

        Args:
            vocab_size: V.
            d_model: D.
            num_layers: N.
            num_heads: H, a divisor of d_model.
            d_ff: F.
            max_length: how many positions have an embedding.
            type_vocab_size: how many segments have an embedding.
            dropout: of the embeddings and of all layers.

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.embeddings = BertEmbeddings(vocab_size, d_model, max_length, type_vocab_size, dropout)
        self.layers = nn.ModuleList(
            BertLayer(d_model, num_heads, d_ff, dropout) for _ in range(num_layers)
        )
        self.pooler = nn.Linear(d_model, d_model)
        init_weights(self)
        ### END SOLUTION

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Encode a batch.

        Args:
            input_ids: (B, T) int64.
            token_type_ids: (B, T) int64; None: segment 0 everywhere.
            mask: (B, T) bool, True where a real token stands. None: everywhere.

        Returns:
            hidden (B, T, D), the output of the last layer, and pooled (B, D),
            tanh(pooler(hidden of the first token)).

        Raises:
            ValueError: if T is larger than max_length.
        """
        ### BEGIN SOLUTION
        x = self.embeddings(input_ids, token_type_ids)  # (B, T, D)
        for layer in self.layers:
            x = layer(x, mask)  # (B, T, D)
        return x, torch.tanh(self.pooler(x[:, 0]))  # (B, T, D), (B, D)
        ### END SOLUTION


# %% check="BertModel" tags=["active-ipynb"]
# check("BertModel")

# %% [markdown]
# ### Exercise 7: How large is it?
#
# Write `count_parameters(vocab_size=30522, d_model=768, num_layers=12, d_ff=3072,
# max_length=512, type_vocab_size=2, heads=False)`: how many numbers a `BertModel` of this size
# learns.
#
# * The result is an `int`. The pooler counts. <!-- id: an-int -->
#   It comes at once: drawing the 335 million numbers of BERT-large would take longer than a check
#   may (hint 3 knows a way around it).
# * `heads=True` adds the two heads of pre-training (`MaskedLanguageHead` and
#   `BertForPreTraining`, unit `pretraining`): for the masked language
#   model a linear layer $D \to D$, a norm and a bias `(V,)`; for the sentence pairs a linear layer
#   $D \to 2$. The matrix that turns vectors into logits of tokens is the token embedding itself and
#   counts once. <!-- id: heads -->
# * A linear layer has a bias; a norm has two vectors. <!-- id: biases-and-norms -->
#   The number of attention heads makes no
#   difference, and there is no parameter for it.
#
# *Example.* `count_parameters(10, 4, 1, 8, 6)` is 272: 80 in the embeddings, 88 in the attention
# with its norm, 84 in the feed-forward network with its norm, 20 in the pooler. With `heads=True`
# it is 320. The defaults are BERT-base.
#
# Book: `brt-parameters`.
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
    d_model: int = 768,
    num_layers: int = 12,
    d_ff: int = 3072,
    max_length: int = 512,
    type_vocab_size: int = 2,
    heads: bool = False,
) -> int:
    """How many numbers a BertModel learns; the number of heads of attention doesn't matter.

    Args:
        vocab_size: V.
        d_model: D.
        num_layers: N.
        d_ff: F.
        max_length: how many positions have an embedding.
        type_vocab_size: how many segments have an embedding.
        heads: whether to count the two pre-training heads as well; the embedding matrix that the masked
            language model shares with the embeddings counts once.

    Returns:
        The number of parameters, pooler included.
    """
    ### BEGIN SOLUTION
    norm = 2 * d_model  # weight and bias
    square = d_model * d_model + d_model  # a linear layer from D to D
    embeddings = (vocab_size + max_length + type_vocab_size) * d_model + norm
    attention = 4 * square + norm
    feed_forward = d_model * d_ff + d_ff + d_ff * d_model + d_model + norm
    total = embeddings + num_layers * (attention + feed_forward) + square  # the pooler
    if heads:
        masked = square + norm + vocab_size  # the matrix is the token embedding, counted above
        total += masked + 2 * d_model + 2
    return total
    ### END SOLUTION


# %% check="count_parameters" tags=["active-ipynb"]
# check("count_parameters")

# %% [markdown]
# ### Exercise 8: A checkpoint's names
#
# A checkpoint is a dictionary from names to tensors. Those of BERT on Hugging Face name the same numbers
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
# * `state` is a `dict` from name to tensor, and so is the result, with the **same** tensors.
#   <!-- id: same-tensors --> `*` is
#   `weight` or `bias`; `i` is the number of a layer. <!-- id: names -->
# * The names in the upper part of the table, down to the pooler, may begin with `bert.` (in a model
#   with heads) or not (in the bare encoder). The result keeps the prefix where it was.
#   <!-- id: prefix -->
# * In old checkpoints the parameters of norms are called `gamma` and `beta`: they become `weight`
#   and `bias`. <!-- id: gamma-and-beta -->
# * Left out: names that begin with `cls.predictions.decoder.` (the tied embedding matrix, which is there
#   already) and names that end with `position_ids` (no parameters). <!-- id: left-out -->
# * `ValueError` for any other name; the message says which. <!-- id: unknown-name -->
#
# *Example.* `bert.encoder.layer.3.attention.self.query.bias` becomes
# `bert.layers.3.attention.q_proj.bias`, and `encoder.layer.0.output.LayerNorm.gamma` becomes
# `layers.0.output_norm.weight`.
#
# Book: `brt-checkpoint`.
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
        matrix ``cls.predictions.decoder`` and ``position_ids`` are left out.

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
