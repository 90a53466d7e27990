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
# # GPT: the model
#
# At the end of this unit GPT stands, in the order of norms of GPT and in that of GPT-2.

# %%
"""Masks, causal attention, blocks in both orders of norm, GPT."""

# The options of a cell must stand on one line, however long it gets.
# ruff: noqa: E501

# %%
import math

import torch
from torch import Tensor, nn

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("gpt-model")

# %% [markdown]
# ## Masks
#
# ### Exercise 1: The causal mask
#
# A language model predicts each token from those before it. So a position may attend to itself and
# to those on its left, never to its right. Write `causal_mask(length, past=0)`:
#
# $$\text{mask}_{i,j} = \begin{cases}\text{True} & \text{if } j \le P + i\\
# \text{False} & \text{otherwise}\end{cases}$$
#
# * `length` ($T$) positions are queries. `past` ($P$) positions stand before them: they are keys for
#   all queries, and no queries themselves. <!-- id: past -->
#   With a cache, in `attend_cached` (unit `generation`), they
#   will be the tokens that were read earlier.
# * The result is a `torch.bool` tensor `(T, P + T)`; `True` means *may attend*.
#   <!-- id: bool-mask --> Row $i$ is the query at
#   position $P + i$. <!-- id: rows-are-queries -->
# * A position attends to **itself** too: the token there is known. <!-- id: itself -->
#   What it must not see is its
#   target, and that is the next token.
# * `ValueError` if `length` is smaller than 1 or `past` is negative. <!-- id: bad-sizes -->
#
# *Example.* `causal_mask(3)` is $\begin{pmatrix}1&0&0\\1&1&0\\1&1&1\end{pmatrix}$, with 1 for
# `True`, and `causal_mask(2, past=1)` is $\begin{pmatrix}1&1&0\\1&1&1\end{pmatrix}$.
#
# Book: `gpt-mask`.
#
# <details><summary>Hint 1</summary>
#
# Write the positions of the queries into a column, and those of the keys into a row. A comparison of
# the two makes the mask.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.arange(a, b)` counts from $a$ to $b - 1$, and `unsqueeze(1)` makes a column of it. The
# queries begin at $P$.
#
# </details>


# %% exercise="causal_mask" points=1 section="gpt-mask"
def causal_mask(length: int, past: int = 0) -> Tensor:
    """Which positions each query may attend to (Vaswani et al. 2017, section 3.2.3).

    Args:
        length: T, how many queries, at least 1.
        past: P, how many keys stand before the first query, at least 0.

    Returns:
        (T, P + T) bool: row i is the query at P + i; True at the columns 0 .. P + i.

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
# from exactly $k$ tokens. In practice a text is cut into chunks, and the mask of exercise 1 gives
# each position all that stands before it **in its chunk**. To see the difference, write the mask of
# a strict window, `window_mask(length, window)`:
#
# * The result is a `torch.bool` tensor `(T, T)` with $T$ = `length`. <!-- id: bool-mask -->
#   Position $i$ sees itself and
#   the `window` $- 1$ positions before it, as far as they exist, and nothing else.
#   <!-- id: window -->
# * `ValueError` if `length` or `window` is smaller than 1. <!-- id: bad-sizes -->
#
# *Example.* `window_mask(4, 2)` is
# $\begin{pmatrix}1&0&0&0\\1&1&0&0\\0&1&1&0\\0&0&1&1\end{pmatrix}$. With `window` $\ge T$ it is the
# causal mask.
#
# Book: `gpt-window`.
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
    """A strict sliding window: every position sees a fixed number of positions, itself the last.

    Args:
        length: T, at least 1.
        window: how many positions are seen, itself included, at least 1.

    Returns:
        (T, T) bool: row i is True at the columns i - window + 1 .. i that exist.

    Raises:
        ValueError: if length < 1 or window < 1.
    """
    ### BEGIN SOLUTION
    for name, value in (("length", length), ("window", window)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, but is {value}")
    positions = torch.arange(length)  # (T,)
    back = positions.unsqueeze(1) - positions  # (T, T), how far the column lies behind the row
    return (back >= 0) & (back < window)  # (T, T)
    ### END SOLUTION


# %% check="window_mask" tags=["active-ipynb"]
# check("window_mask")

# %% [markdown]
# ## Blocks
#
# ### Exercise 3: Causal self-attention
#
# Write `CausalSelfAttention(d_model, num_heads, dropout=0.0)`. One linear layer makes queries, keys
# and values at once:
#
# $$[Q\; K\; V] = x W^{\mathsf T} + b,\qquad
# \text{head}_h = \operatorname{softmax}\Bigl(\frac{Q_h K_h^{\mathsf T}}{\sqrt{D/H}} + M\Bigr) V_h,
# \qquad M_{ij} = \begin{cases}0 & j \le i\\ -\infty & j > i\end{cases}$$
#
# <!-- id: causal-softmax -->
#
# * Submodules: `qkv = nn.Linear(d_model, 3 * d_model)` and `out_proj = nn.Linear(d_model,
#   d_model)`, both with bias. Attribute: `num_heads`. <!-- id: layers -->
# * The $3D$ features of `qkv` are first all queries, then all keys, then all values. Within each of
#   the three, head $h$ (from 0) has the features $h\,D/H$ to $(h + 1)\,D/H - 1$.
#   <!-- id: order-of-features -->
# * `forward(x)`: `(B, T, D)`, of any length `T`; the result is `(B, T, D)`: the heads side by side,
#   through `out_proj`. <!-- id: heads-joined -->
# * Dropout acts twice, in training mode: on the weights after the softmax, and on the result, in
#   both on every entry by itself. <!-- id: dropout-twice -->
# * `ValueError` (when the module is created) if `num_heads` does not divide `d_model`.
#   <!-- id: heads-divide -->
# * Not to be called: `nn.MultiheadAttention`, `nn.TransformerEncoderLayer`,
#   `nn.TransformerDecoderLayer` and the functions behind them. <!-- id: not-called -->
#
# *Example.* One head of width 1, all queries are 0, so that all scores are equal, and values and
# result pass on unchanged: of $2, 4, 9$ it makes $2, 3, 5$, the mean of each beginning.
#
# Book: `gpt-attention`.
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
# the two the axes of length `T` and `H` must change positions, there and back.
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

    Submodules: ``qkv`` = nn.Linear(d_model, 3 d_model), queries, keys and values in this order;
    ``out_proj`` = nn.Linear(d_model, d_model). Attribute: ``num_heads``.
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        """Create both linear layers.

        Args:
            d_model: D.
            num_heads: H, a divisor of d_model.
            dropout: acts on the weights and on the result, in training mode.

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        ### BEGIN SOLUTION
        if num_heads < 1 or d_model % num_heads != 0:
            raise ValueError(f"a width of {d_model} can't be split into {num_heads} equal heads")
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """Attend to the positions up to each one's own.

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
        attn_weights = self.dropout(torch.softmax(scores, dim=3))  # (B, H, T, T)
        mixed = (attn_weights @ values).transpose(1, 2).flatten(2)  # (B, T, D)
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
# <!-- id: tanh-formula -->
#
# * `x` has any shape, and so has the result. <!-- id: any-shape -->
# * It is this form, **not** the exact one by `erf`, which differs in the fourth decimal place.
#   <!-- id: not-exact-form --> The
#   weights of GPT-1 and GPT-2 were trained with this one.
# * Not to be called: `F.gelu`, `nn.GELU` and the functions behind them. <!-- id: not-called -->
#
# *Example.* $1$ becomes $0.8412$ (the exact form: $0.8413$), $-1$ becomes $-0.1588$, and 0 stays 0.
#
# Book: `gpt-block`.
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
# Write `FeedForward(d_model, dropout=0.0)`, the second half of every block. It is applied to every
# position by itself:
#
# $$\operatorname{ff}(x) =
# \operatorname{dropout}\bigl(W_2 \operatorname{gelu}(W_1 x + b_1) + b_2\bigr)$$
#
# <!-- id: two-layers -->
#
# * Submodules: `w_1 = nn.Linear(d_model, 4 * d_model)` and `w_2 = nn.Linear(4 * d_model, d_model)`,
#   both with bias. <!-- id: layers -->
# * `forward(x)`: `(..., D)`; the result has the same shape. <!-- id: any-axes --> Use your `gelu`.
# * Dropout acts on every entry of the result by itself, and nowhere inside.
#   <!-- id: dropout-on-result -->
#
# *Example.* $D = 1$, all weights of `w_1` are 1, all of `w_2` are $\tfrac14$, and the biases are 0:
# of 1 it makes $\operatorname{gelu}(1) \approx 0.8412$.
#
# Book: `gpt-block`.
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

    Submodules: ``w_1`` = nn.Linear(d_model, 4 d_model), ``w_2`` = nn.Linear(4 d_model, d_model)
    (Radford et al. 2018, section 4.1).
    """

    def __init__(self, d_model: int, dropout: float = 0.0) -> None:
        """Create both linear layers.

        Args:
            d_model: D.
            dropout: acts on the result, in training mode.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.w_1 = nn.Linear(d_model, 4 * d_model)
        self.w_2 = nn.Linear(4 * d_model, d_model)
        self.dropout = nn.Dropout(dropout)
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network to every position by itself.

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
# Write `PostNormBlock(d_model, num_heads, dropout=0.0)`. Each half is added to its input, and the
# norm stands **after** the sum, as in the Transformer:
#
# $$\begin{aligned}
# y &= \operatorname{norm}_1\bigl(x + \operatorname{attention}(x)\bigr)\\
# \text{block}(x) &= \operatorname{norm}_2\bigl(y + \operatorname{ff}(y)\bigr)
# \end{aligned}$$
#
# <!-- id: norm-after-sum -->
#
# * Submodules: `attention`, your `CausalSelfAttention`; `norm_1 = nn.LayerNorm(d_model)`;
#   `feed_forward`, your `FeedForward`; `norm_2 = nn.LayerNorm(d_model)`. <!-- id: submodules -->
# * `forward(x)`: `(B, T, D)`; the result is `(B, T, D)`.
# * `dropout` goes to both parts, which have it already: the block has none of its own.
#   <!-- id: dropout-in-parts -->
# * A `ValueError` of the attention (a number of heads that doesn't divide) may come through as it
#   is.
# * Not to be called: `nn.TransformerEncoderLayer`, `nn.TransformerDecoderLayer`.
#   <!-- id: not-called -->
#
# *Example.* If `out_proj` and `w_2` are 0, only the norms are left: $(1, 3)$ becomes $(-1, 1)$.
#
# Book: `gpt-block`.
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

    Submodules: ``attention`` = CausalSelfAttention, ``norm_1`` = nn.LayerNorm(d_model),
    ``feed_forward`` = FeedForward, ``norm_2`` = nn.LayerNorm(d_model); eps is 1e-5.
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        """Create the submodules.

        Args:
            d_model: D.
            num_heads: H, a divisor of d_model.
            dropout: of the attention and of the feed-forward network.

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.attention = CausalSelfAttention(d_model, num_heads, dropout)
        self.norm_1 = nn.LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model, dropout)
        self.norm_2 = nn.LayerNorm(d_model)
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
# GPT-2 moves the norms. Write `PreNormBlock(d_model, num_heads, dropout=0.0)`:
#
# $$\begin{aligned}
# y &= x + \operatorname{attention}\bigl(\operatorname{norm}_1(x)\bigr)\\
# \text{block}(x) &= y + \operatorname{ff}\bigl(\operatorname{norm}_2(y)\bigr)
# \end{aligned}$$
#
# <!-- id: norm-inside-branch -->
#
# * Submodules, shapes, <!-- id: submodules --> dropout, <!-- id: dropout-in-parts -->
#   what must not be called <!-- id: not-called --> and the `ValueError` are those of exercise
#   6.
# * The norm stands **inside** the branch, before attention or network. On the residual path, from `x`
#   to the result, nothing is normalised. <!-- id: residual-path -->
#
# *Example.* If `out_proj` and `w_2` are 0, both branches add 0, and the block passes on its input:
# $(1, 3)$ stays $(1, 3)$.
#
# Book: `gpt-block`.
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

    Submodules: ``attention`` = CausalSelfAttention, ``norm_1`` = nn.LayerNorm(d_model),
    ``feed_forward`` = FeedForward, ``norm_2`` = nn.LayerNorm(d_model); eps is 1e-5.
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        """Create the submodules.

        Args:
            d_model: D.
            num_heads: H, a divisor of d_model.
            dropout: of the attention and of the feed-forward network.

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.attention = CausalSelfAttention(d_model, num_heads, dropout)
        self.norm_1 = nn.LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model, dropout)
        self.norm_2 = nn.LayerNorm(d_model)
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
# Write `GPT(vocab_size, max_length, d_model, num_layers, num_heads, dropout=0.1, norm_first=True)`.
# With ids $u$, the embedding matrices $W_e$ of tokens and $W_p$ of positions:
#
# $$\begin{aligned}
# h_0 &= \operatorname{dropout}\bigl(W_e[u] + W_p[0 \dots T-1]\bigr)\\
# h_l &= \text{block}_l(h_{l-1}) \quad\text{for } l = 1, \dots, N\\
# \text{features} &= \text{final norm}(h_N),\qquad \text{logits} = \text{features}\; W_e^{\mathsf T}
# \end{aligned}$$
#
# <!-- id: formula -->
#
# * Submodules: `token = nn.Embedding(vocab_size, d_model)`; `position = nn.Embedding(max_length,
#   d_model)`; `blocks`, an `nn.ModuleList` of `num_layers` blocks, each with parameters of its own:
#   <!-- id: own-parameters -->
#   `PreNormBlock`s if `norm_first`, else `PostNormBlock`s; `final_norm`, which is
#   `nn.LayerNorm(d_model)` if `norm_first` and `nn.Identity()` otherwise. <!-- id: both-orders -->
#   Attribute: `max_length`. <!-- id: submodules -->
# * `features(ids)`: `(B, T)` ids; the result is `(B, T, D)`. <!-- id: features -->
#   `forward(ids)`: the logits `(B, T,
#   V)`.
# * The output matrix **is** the token embedding: there is no further parameter, and no bias.
#   <!-- id: tied-output -->
# * `dropout` goes to the embeddings and to all blocks. <!-- id: dropout -->
# * `ValueError` (when it is called) if $T$ is larger than `max_length`; the message names both
#   numbers. <!-- id: too-long --> One about the number of heads may come through as it is.
# * How you initialise is up to you; `init_weights` (unit `training`) draws the weights as GPT does. (PyTorch
#   draws embeddings from $\mathcal N(0, 1)$. With a tied output such logits are large, and training
#   begins badly: draw the two matrices smaller, say with a deviation of 0.02.)
#
# *Example.* `GPT(40, 12, 16, 2, 4)` has 7424 parameters. In evaluation mode, change the last token
# of a row: of all logits only those at the last position change.
#
# Book: `gpt-model`.
#
# <details><summary>Hint 1</summary>
#
# `nn.ModuleList` takes a generator: one block is made for each of `range(num_layers)`. A list of
# one block repeated would share its parameters.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The input may be shorter than `max_length`. Ask the position embedding for the rows
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

    Submodules: ``token`` = nn.Embedding(vocab_size, d_model), also the output matrix; ``position``
        =
    nn.Embedding(max_length, d_model); ``blocks`` = nn.ModuleList of PreNormBlocks or
    PostNormBlocks; ``final_norm`` = nn.LayerNorm(d_model) with pre-norm, else nn.Identity().
    Attribute: ``max_length``.
    """

    def __init__(
        self,
        vocab_size: int,
        max_length: int,
        d_model: int,
        num_layers: int,
        num_heads: int,
        dropout: float = 0.1,
        norm_first: bool = True,
    ) -> None:
        """Create the submodules.

        Args:
            vocab_size: V.
            max_length: C, the longest input.
            d_model: D.
            num_layers: N.
            num_heads: H, a divisor of d_model.
            dropout: of the embeddings and of all blocks.
            norm_first: PreNormBlocks and a final norm (GPT-2), or PostNormBlocks and none (GPT-1).

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        ### BEGIN SOLUTION
        block = PreNormBlock if norm_first else PostNormBlock
        self.max_length = max_length
        self.token = nn.Embedding(vocab_size, d_model)
        self.position = nn.Embedding(max_length, d_model)
        self.blocks = nn.ModuleList(block(d_model, num_heads, dropout) for _ in range(num_layers))
        self.final_norm = nn.LayerNorm(d_model) if norm_first else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        for embedding in (self.token, self.position):  # so that the tied logits begin near 0
            nn.init.normal_(embedding.weight, std=0.02)
        ### END SOLUTION

    def features(self, ids: Tensor) -> Tensor:
        """The vectors of which the logits are made.

        Args:
            ids: (B, T) int64.

        Returns:
            (B, T, D): embeddings and positions, through all blocks and the final norm.

        Raises:
            ValueError: if T is larger than max_length; the message names both.
        """
        ### BEGIN SOLUTION
        length = ids.shape[1]
        if length > self.max_length:
            raise ValueError(f"{length} tokens are too many for a max_length of {self.max_length}")
        positions = torch.arange(length, device=ids.device)  # (T,)
        x = self.dropout(self.token(ids) + self.position(positions))  # (B, T, D)
        for block in self.blocks:
            x = block(x)  # (B, T, D)
        return self.final_norm(x)  # (B, T, D)
        ### END SOLUTION

    def forward(self, ids: Tensor) -> Tensor:
        """Score every token as the next one, after every position.

        Args:
            ids: (B, T) int64.

        Returns:
            (B, T, V), the logits: features times the transposed embedding matrix.

        Raises:
            ValueError: if T is larger than max_length.
        """
        ### BEGIN SOLUTION
        return self.features(ids) @ self.token.weight.T  # (B, T, V)
        ### END SOLUTION


# %% check="GPT" tags=["active-ipynb"]
# check("GPT")
