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
# # The Transformer: the whole model
#
# At the end of this unit you have stacked the layers into an encoder and a decoder, and joined the
# two into the Transformer of Vaswani et al. (2017).

# %%
"""Layers, both stacks, the generator, the whole model and its initialisation."""

# The options of a cell must stand on one line, however long it gets.
# ruff: noqa: E501

# %%
import copy

import torch
from torch import Tensor, nn

from solutions.transformer.parts import (
    Embeddings,
    LayerNorm,
    MultiHeadAttention,
    PositionalEncoding,
    PositionwiseFeedForward,
    SublayerConnection,
    make_std_mask,
    pad_mask,
)

# %% tags=["instructor"]
# isort: split
import torch.nn.functional as F

from toolkit.module_swap import swap_modules

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("transformer-model")


# %% [markdown]
# ## The two stacks
#
# ### Exercise 1: Clones
#
# A stack consists of layers of the same kind, each with parameters of its own. Write
# `clones(module, n)`.
#
# * The result is an `nn.ModuleList` of `n` copies of `module`. All copies have equal values, but
#   no two share a parameter, and `module` itself is not among them. <!-- id: own-parameters -->
# * `ValueError` if `n` is smaller than 1. <!-- id: bad-number -->
#
# Note that all layers of a stack made in this way have the same initialisation. `make_model`
# (exercise 8) therefore draws all weights anew.
#
# *Example.* `layers = clones(nn.Linear(2, 2), 3)` holds 6 parameters. Setting `layers[0].weight` to
# 0 leaves the other two as they are.
#
# Book: `trf-encoder`.
#
# <details><summary>Hint 1</summary>
#
# `[module] * n` is a list that holds the same module `n` times.
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
        module: the module to copy; it is not part of the result.
        n: how many copies, at least 1.

    Returns:
        A list of n modules with equal values that share no parameter with each other or with the
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
# ### Exercise 2: An encoder layer
#
# Write `EncoderLayer(d_model, num_heads, d_ff, dropout=0.0, norm_first=False)`: self-attention,
# then the feed-forward network, each in a `SublayerConnection` (unit `parts`).
#
# $$\begin{aligned}
# x' &= \operatorname{connection}_0\bigl(x,\; z \mapsto \operatorname{attention}(z, z, z, M)\bigr)\\
# y &= \operatorname{connection}_1(x',\; \operatorname{FFN})
# \end{aligned}$$
#
# <!-- id: two-sublayers -->
#
# * Submodules: `self_attn`, your `MultiHeadAttention`; `feed_forward`, your
#   `PositionwiseFeedForward`; `sublayer`, an `nn.ModuleList` of two `SublayerConnection`s, in the
#   order of their use. <!-- id: submodules -->
# * `forward(x, mask=None)`: `x` `(B, S, D)`; `mask`, $M$ above, as in `MultiHeadAttention` (unit
#   `parts`), usually `(B, 1, S)`. The result is `(B, S, D)`. <!-- id: mask -->
# * `dropout` reaches **all** parts: the attention weights, the inner layer of the feed-forward
#   network, and both connections. <!-- id: dropout -->
#   With `dropout=0.0` two passes in training mode are equal.
# * `norm_first` reaches both connections. <!-- id: norm-first -->
# * `ValueError` (when the module is created) if `num_heads` does not divide `d_model`.
#
# *Example.* Without a mask, a layer doesn't know the order of its input: swap two positions of `x`,
# and the same two positions of the result are swapped.
#
# Book: `trf-encoder`.
#
# <details><summary>Hint 1</summary>
#
# A connection calls its sub-layer with **one** argument. Self-attention needs three, and the mask:
# wrap it in a `lambda` of one argument.
#
# </details>
# <details><summary>Hint 2</summary>
#
# All three inputs of the attention are what the connection passes to the sub-layer: in pre-norm
# that is the normalised `x`, not the `x` of `forward`. Use the argument of the `lambda`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `clones` makes the two connections. The feed-forward network takes only one argument, so you can
# pass it as it is.
#
# </details>


# %% exercise="EncoderLayer" points=3 section="trf-encoder"
class EncoderLayer(nn.Module):
    """Self-attention and feed-forward network, each in its connection (Vaswani et al. 2017, 3.1).

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
        """Let every position attend to all others, then transform each by itself.

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
# ### Exercise 3: The encoder
#
# Write `Encoder(num_layers, d_model, num_heads, d_ff, dropout=0.0, norm_first=False)`: the output
# of each layer is the input of the next.
#
# * Submodules: `layers`, an `nn.ModuleList` of `num_layers` `EncoderLayer`s, each with parameters
#   of its own; <!-- id: own-parameters -->
#   and, **only if** `norm_first`, a final `norm`, your `LayerNorm(d_model)`. A
#   post-norm layer ends with a norm; a pre-norm layer ends with an unnormalised sum.
#   <!-- id: final-norm -->
# * `forward(x, mask=None)`: `x` `(B, S, D)`; every layer gets the same mask. <!-- id: mask -->
#   The result is
#   `(B, S, D)`.
# * `ValueError` (when the module is created) if `num_layers` is smaller than 1,
#   <!-- id: bad-number --> or if `num_heads`
#   does not divide `d_model`.
#
# *Example.* `Encoder(2, 8, 2, 16)` has 32 parameter tensors, 16 in each layer;
# `Encoder(2, 8, 2, 16, norm_first=True)` has two more, `norm.gamma` and `norm.beta`.
#
# Book: `trf-encoder`.
#
# <details><summary>Hint 1</summary>
#
# An `nn.ModuleList` can be iterated over like a list.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `self.norm = None` is allowed in a module and adds no parameter; `forward` can check for it.
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
# ### Exercise 4: A decoder layer
#
# Write `DecoderLayer(d_model, num_heads, d_ff, dropout=0.0, norm_first=False)`. It has three
# sub-layers, each in a connection: self-attention over the target, cross-attention to the source,
# and the feed-forward network. In cross-attention the **queries** come from the decoder, **keys and
# values** from the memory, the encoder's output. <!-- id: cross-attention -->
#
# * Submodules: `self_attn` and `src_attn`, your `MultiHeadAttention`; `feed_forward`, your
#   `PositionwiseFeedForward`; `sublayer`, an `nn.ModuleList` of three `SublayerConnection`s, in the
#   order of their use. <!-- id: submodules -->
# * `forward(x, memory, src_mask=None, tgt_mask=None)`: `x` `(B, U, D)`; `memory` `(B, S, D)`;
#   `src_mask`, usually `(B, 1, S)`, for cross-attention; `tgt_mask`, usually
#   `(B, U, U)`, for self-attention. <!-- id: masks --> The result is `(B, U, D)`.
# * The memory is used as it is: in pre-norm, too, the layer normalises only its own `x`.
#   <!-- id: memory-as-it-is -->
# * `dropout` reaches both attentions, the feed-forward network and all three connections.
#   <!-- id: dropout -->
# * `ValueError` (when the module is created) if `num_heads` does not divide `d_model`.
#
# *Example.* With $U = 6$ and $S = 9$ cross-attention has weights `(B, H, 6, 9)`, and its output has
# length 6. With the roles swapped the length would be 9, and the residual connection could not add
# it to `x`.
#
# Book: `trf-decoder`.
#
# <details><summary>Hint 1</summary>
#
# The shapes tell which mask belongs to which attention: rows are queries, columns are keys.
#
# </details>
# <details><summary>Hint 2</summary>
#
# In the second sub-layer only the query is the argument that the connection passes. The memory is
# an argument of `forward`; a `lambda` can use it, too.
#
# </details>


# %% exercise="DecoderLayer" points=4 section="trf-decoder"
class DecoderLayer(nn.Module):
    """Self-attention, cross-attention, feed-forward network (Vaswani et al. 2017, 3.1).

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
        """Attend to the target so far, attend to the source, transform every position.

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
# ### Exercise 5: The decoder
#
# Write `Decoder(num_layers, d_model, num_heads, d_ff, dropout=0.0, norm_first=False)`, the stack of
# decoder layers. Every layer reads the same memory, the output of the **whole** encoder.
#
# * Submodules: `layers`, an `nn.ModuleList` of `num_layers` `DecoderLayer`s; and, only if
#   `norm_first`, a final `norm`, your `LayerNorm(d_model)`. <!-- id: final-norm -->
# * `forward(x, memory, src_mask=None, tgt_mask=None)`: `x` `(B, U, D)`, `memory` `(B, S, D)`; the
#   memory and both masks are the same for all layers. <!-- id: same-memory -->
#   The result is `(B, U, D)`.
# * `ValueError` (when the module is created) if `num_layers` is smaller than 1,
#   <!-- id: bad-number --> or if `num_heads`
#   does not divide `d_model`.
#
# *Example.* `Decoder(2, 8, 2, 16)` has 52 parameter tensors, 26 in each layer;
# `Decoder(2, 8, 2, 16, norm_first=True)` has 54.
#
# Book: `trf-decoder`.
#
# <details><summary>Hint 1</summary>
#
# It is the encoder of exercise 3 with other layers and three more arguments.
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
# A description of the Transformer says of each sub-layer: *"add the residual, then layer norm"*.
# The code beside it reads `x + dropout(sublayer(norm(x)))`. Which order do the words describe, and
# which the code? Which of them is the paper's? Then explain what the order changes: for the
# residual connections through $N$ layers, for the size of the vectors, for whether the stack needs
# a norm at its end, and for training.
#
# Book: `trf-norm-order`. 3 points, marked by a person.

# %% [markdown] question="why_norm_order" points=3 section="trf-norm-order" title="Where does the norm go, and what changes?"
# **Your answer:**
#
# ### BEGIN SOLUTION
# *Which is which.* The words describe post-norm, $x_{l+1} = \operatorname{LN}(x_l + F(x_l))$, the
# order of the paper. The code is pre-norm, $x_{l+1} = x_l + F(\operatorname{LN}(x_l))$. They are
# two different models: the same weights give different outputs.
#
# *The residual connection.* In pre-norm there is no norm on it. Written out,
# $x_L = x_0 + \sum_l F_l(\operatorname{LN}(x_l))$ after $L$ sub-layers, so each sub-layer's
# Jacobian is $I + J_l$, and the gradient has a path from the last sum to the embeddings on which
# nothing scales it. In post-norm every sub-layer ends with a norm, and the residual connections
# pass through all of them: the Jacobian of a sub-layer is that of the norm times $I + J_l$. The
# norm divides by the standard deviation of a sum that is larger than $x_l$ alone, so the direct
# contribution of an early layer shrinks with every norm behind it.
#
# *Size, and the final norm.* In post-norm every layer's output has mean 0 and variance 1 for each
# token (while gamma is 1 and beta 0), so the stack needs no norm at its end. In pre-norm each
# sub-layer adds to the sum, the vectors grow with depth, and the last sum is not normalised. So the
# encoder and the decoder each need a final norm; otherwise cross-attention and the generator would
# get vectors whose size depends on the depth.
#
# *Training.* In an encoder at initialisation, the first layers get about equal gradients in both
# orders; the last layers get smaller ones in pre-norm (in the book's measurement 0.24 in the last
# of 12 layers, against 0.86 in post-norm), because the final norm behind them divides the gradient
# by the size of the grown sum: for the last layer by about $\sqrt{N}$ (Xiong et al., 2020). In
# post-norm the last layer's gradient does not fall with depth, so the first steps at the full
# learning rate are large there. Warm-up lets larger learning rates work, in the book's task in both
# orders. A deep post-norm stack may not train at all at learning rates that pre-norm tolerates:
# with 12 layers and 400 steps the book's doesn't, with or without warm-up. (In a post-norm decoder,
# gradients also shrink towards the first layers; Liu et al., 2020.) In its favour, post-norm is
# often at least as good where it does train: in a deep pre-norm stack the last layers change the
# sum only a little.
#
# *Points by part, and what commonly goes wrong:* `solutions/marking_guides.md`.
# ### END SOLUTION

# %% [markdown]
# ## The whole model
#
# ### Exercise 6: The generator
#
# Write `Generator(d_model, vocab_size)`: from the decoder's vectors to the distribution of the next
# token.
#
# $$\log p = \operatorname{log\,softmax}(W h + b)$$
#
# <!-- id: log-softmax -->
#
# * Submodule: `proj = nn.Linear(d_model, vocab_size)`, with bias. Its output, before the softmax,
#   is called the logits.
# * `forward(hidden)`: `(..., D)`; the result is `(..., V)`, <!-- id: any-axes -->
#   the **logarithms** of the
#   probabilities: that is what the loss and beam search need.
#
# *Example.* If all parameters are 0 and $V = 4$, every entry is $\log\tfrac14 \approx -1.386$.
#
# Book: `trf-generator`.
#
# <details><summary>Hint 1</summary>
#
# `log(softmax(...))` becomes $-\infty$ where a probability is too small for its dtype. PyTorch has
# one function for both steps that avoids this.
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
        """Compute the log-probability of every token of the vocabulary.

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
# ### Exercise 7: Encoder and decoder together
#
# Write `EncoderDecoder(src_vocab_size, tgt_vocab_size, num_layers=6, d_model=512, d_ff=2048,
# num_heads=8, dropout=0.1, norm_first=False, max_length=5000)`, the whole Transformer.
#
# * Submodules: `src_embed` and `tgt_embed`, your `Embeddings` for the two vocabularies; `position`,
#   one `PositionalEncoding(d_model, max_length, dropout)` for both sides; `encoder` and
#   `decoder`, your stacks; `generator`, your `Generator` for the target vocabulary.
#   <!-- id: submodules -->
# * `encode(src, src_mask=None)`: `src` `(B, S)` ids; embedding, position, encoder. Returns the
#   memory `(B, S, D)`. <!-- id: encode -->
# * `decode(memory, src_mask, tgt, tgt_mask)`: `tgt` `(B, U)` ids; embedding, position, decoder.
#   Returns `(B, U, D)`, **before** the generator. <!-- id: decode -->
# * `forward(src, tgt)`: makes the masks itself, `pad_mask(src)` for the encoder's self-attention
#   **and** for cross-attention, and `make_std_mask(tgt)` for the decoder's self-attention. Returns
#   log-probabilities `(B, U, V)`; those at position $t$ predict the token after `tgt[:, t]`.
#   <!-- id: forward-and-its-masks -->
# * `dropout` and `norm_first` reach all parts that have them. <!-- id: settings -->
# * `ValueError`s of the parts (a vocabulary of 0, a `num_heads` that doesn't divide `d_model`, no
#   layers) may pass through as they are.
#
# *Example.* In evaluation mode, append columns of `PAD` to `src`: the result stays the same (up to
# rounding). Change `tgt[:, 3]`: positions 0 to 2 of the result stay the same.
#
# Book: `trf-model`.
#
# <details><summary>Hint 1</summary>
#
# Nothing new is computed here; each method chains parts that you have. Write `encode` and `decode`
# first, and let `forward` call them.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The encoder's self-attention and cross-attention have the same keys, the positions of the source.
# So they have the same mask.
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
        src_vocab_size: int,
        tgt_vocab_size: int,
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
            src_vocab_size: size of the source vocabulary.
            tgt_vocab_size: size of the target vocabulary.
            num_layers: N, of each stack.
            d_model: D.
            d_ff: F.
            num_heads: H.
            dropout: of ``position`` and of both stacks.
            norm_first: the order of the norms, as for SublayerConnection.
            max_length: the number of positions that have an encoding.

        Raises:
            ValueError: if a part can't be created with these sizes.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.src_embed = Embeddings(src_vocab_size, d_model)
        self.tgt_embed = Embeddings(tgt_vocab_size, d_model)
        self.position = PositionalEncoding(d_model, max_length, dropout)
        self.encoder = Encoder(num_layers, d_model, num_heads, d_ff, dropout, norm_first)
        self.decoder = Decoder(num_layers, d_model, num_heads, d_ff, dropout, norm_first)
        self.generator = Generator(d_model, tgt_vocab_size)
        ### END SOLUTION

    def encode(self, src: Tensor, src_mask: Tensor | None = None) -> Tensor:
        """Encode the source.

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
        """Decode the target so far, reading the memory.

        Args:
            memory: (B, S, D).
            src_mask: as for Decoder.
            tgt: (B, U) int64.
            tgt_mask: as for Decoder.

        Returns:
            (B, U, D), the input of the generator.
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
            (B, U, V); those at position t depend on tgt[:, : t + 1] only.
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
# Three people want to do without masks. The first says: *"In the decoder's self-attention the
# causal mask makes the padding mask superfluous."* The second: *"The encoder has already masked the
# padding, so cross-attention needs no mask."* The third: *"At inference, later tokens don't exist
# yet, so no causal mask is needed."* Say for each of the three whether it is true, under which
# conditions, and why.
#
# Book: `trf-mask-errors`. 3 points, marked by a person.

# %% [markdown] question="which_masks" points=3 section="trf-mask-errors" title="Which masks may one leave out, and when?"
# **Your answer:**
#
# ### BEGIN SOLUTION
# *The first is right under two conditions.* If padding is on the **right**, a real token at
# position $i$ sees only positions $j \le i$, and these are real. The outputs at padding are
# meaningless, so the second condition is that the **loss ignores** them. If padding is on the left,
# it comes before the real tokens, the causal mask lets it through, and the outputs at real tokens
# change. In the encoder there is no causal mask: every token sees all padding, on whichever side it
# is, and the padding mask can't be left out.
#
# *The second is wrong.* The encoder's mask keeps real tokens from attending **to** padding. But the
# encoder returns a vector at every position, at padding as well: there the query is the padding
# itself. These vectors are in the memory, and without a mask cross-attention gives them weight.
# Then a translation depends on how much its source was padded, that is, on its neighbours in the
# batch.
#
# *The third is wrong as soon as there are two layers.* Without the mask the earlier positions of
# the target attend to tokens generated after them. In the first layer that changes the outputs at
# the earlier positions; the second layer computes keys and values from these, and so the output at
# the last position, the one that is used, changes, too. Only for $N = 1$ does it stay the same,
# because its keys and values come from the embeddings, which depend on one token each. For
# $N \ge 2$ the model computes something that it wasn't trained for, and its keys and values can't
# be kept in a cache, since each new token would change all of them. A step with a cache needs no
# causal mask: only the last position runs through the layers, and it may see everything in the
# cache.
#
# *Points by part, and what commonly goes wrong:* `solutions/marking_guides.md`.
# ### END SOLUTION

# %% [markdown]
# ### Exercise 8: Make a model
#
# Write `make_model(src_vocab_size, tgt_vocab_size, num_layers=6, d_model=512, d_ff=2048,
# num_heads=8, dropout=0.1, norm_first=False, tie_embeddings=False)`: create an `EncoderDecoder` of
# these sizes and initialise its parameters.
#
# * The weight of **every** linear layer is drawn anew by `nn.init.xavier_uniform_`, so that the
#   layers of a stack, until then clones, differ from each other. The bias of every linear layer is
#   set to zero. <!-- id: xavier -->
# * Norms have `gamma` 1 and `beta` 0. <!-- id: norms -->
#   Embedding matrices are drawn from $N(0, 1/D)$ (variance
#   $1/D$), **not** by Xavier, which for a large vocabulary makes embeddings far too small compared
#   with the positional encoding. <!-- id: embeddings -->
# * `tie_embeddings=True`, as in the paper: `src_embed.lut.weight`, `tgt_embed.lut.weight` and
#   `generator.proj.weight` are **one** parameter, not three equal ones, and it is drawn from
#   $N(0, 1/D)$. The generator keeps its own bias. <!-- id: tied -->
# * `dropout` reaches all parts: `make_model(..., dropout=0.0)` computes the same twice in training
#   mode. <!-- id: dropout -->
# * `ValueError` if `tie_embeddings` is `True` and the two vocabularies differ in size;
#   <!-- id: other-sizes --> those of the
#   parts may pass through.
#
# *Example.* `make_model(11, 11, num_layers=2, d_model=16, d_ff=32, num_heads=2)` has 11675
# parameters; with `tie_embeddings=True` it has 11323, two matrices of $11 \cdot 16$ fewer.
#
# Book: `trf-model`.
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
# Mind the order: the generator is a linear layer. If you tie first and draw afterwards, the
# embedding matrices are drawn by Xavier, too.
#
# </details>


# %% exercise="make_model" points=4 section="trf-model"
def make_model(
    src_vocab_size: int,
    tgt_vocab_size: int,
    num_layers: int = 6,
    d_model: int = 512,
    d_ff: int = 2048,
    num_heads: int = 8,
    dropout: float = 0.1,
    norm_first: bool = False,
    tie_embeddings: bool = False,
) -> EncoderDecoder:
    """Create and initialise a Transformer (Vaswani et al. 2017, sections 3 and 3.4).

    Args:
        src_vocab_size: size of the source vocabulary.
        tgt_vocab_size: size of the target vocabulary.
        num_layers: N, of each stack.
        d_model: D.
        d_ff: F.
        num_heads: H.
        dropout: acts everywhere, also on attention weights.
        norm_first: the order of the norms, as for SublayerConnection.
        tie_embeddings: whether both embeddings and the generator share one weight.

    Returns:
        An EncoderDecoder. The weight of every linear layer is drawn anew by
        nn.init.xavier_uniform_, so that layers differ; biases are 0; norms have gamma 1 and beta 0;
        embedding matrices, and the shared weight, are drawn from N(0, 1/D).

    Raises:
        ValueError: if tie_embeddings and the vocabularies differ in size, or a part raises it.
    """
    ### BEGIN SOLUTION
    if tie_embeddings and src_vocab_size != tgt_vocab_size:
        raise ValueError(
            f"can't tie embeddings of vocabularies of {src_vocab_size} and {tgt_vocab_size} tokens"
        )
    model = EncoderDecoder(
        src_vocab_size, tgt_vocab_size, num_layers, d_model, d_ff, num_heads, dropout, norm_first
    )
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    if tie_embeddings:
        # After the loop, which would have drawn the generator's weight by Xavier.
        model.tgt_embed.lut.weight = model.src_embed.lut.weight
        model.generator.proj.weight = model.src_embed.lut.weight
    return model
    ### END SOLUTION


# %% check="make_model" tags=["active-ipynb"]
# check("make_model")


# %% tags=["instructor"]
def count_parameters(
    vocab_size: int, num_layers: int, d_model: int, d_ff: int, tie_embeddings: bool = True
) -> int:
    """The number of parameters of a post-norm Transformer, by formula.

    Args:
        vocab_size: size of both vocabularies.
        num_layers: N, of each stack.
        d_model: D.
        d_ff: F.
        tie_embeddings: whether both embeddings and the generator share one weight.

    Returns:
        The number of parameters of make_model(vocab_size, vocab_size, ...); pre-norm has 4 D more.
    """
    attention = 4 * (d_model * d_model + d_model)
    feed_forward = 2 * d_model * d_ff + d_ff + d_model
    norm = 2 * d_model
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    tables = (1 if tie_embeddings else 3) * vocab_size * d_model + vocab_size
    return num_layers * (encoder_layer + decoder_layer) + tables


# %% tags=["instructor"]
class FusedAttention(MultiHeadAttention):
    """MultiHeadAttention by ``scaled_dot_product_attention``, with fewer matrix products."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        """Share the projections, the dropout and the mode of ``attention``."""
        nn.Module.__init__(self)
        self.num_heads = attention.num_heads
        self.q_proj, self.k_proj = attention.q_proj, attention.k_proj
        self.v_proj, self.out_proj = attention.v_proj, attention.out_proj
        self.dropout = attention.dropout
        self.training = attention.training

    def project(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """As in MultiHeadAttention; one product if keys and values have the same input."""
        if key is not value:
            return super().project(key, value)
        return self._heads(key, self.k_proj, self.v_proj)  # (B, H, Tk, D/H) each

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """As in MultiHeadAttention."""
        (queries,) = self._heads(query, self.q_proj)  # (B, H, Tq, D/H)
        return self._mix(queries, keys, values, mask)  # (B, Tq, D)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """As in MultiHeadAttention; one product for all three if they are the same tensor."""
        if query is key and key is value:
            parts = self._heads(query, self.q_proj, self.k_proj, self.v_proj)
            return self._mix(*parts, mask)  # (B, Tq, D)
        return super().forward(query, key, value, mask)

    def _heads(self, x: Tensor, *projections: nn.Linear) -> tuple[Tensor, ...]:
        """Each projection of x (B, T, D), split into heads (B, H, T, D/H)."""
        batch, length, width = x.shape
        # Joining the weights copies them, which pays only if enough tokens share the product.
        if len(projections) == 1 or batch * length < width:
            made = [projection(x) for projection in projections]  # n x (B, T, D)
        else:
            weight = torch.cat([projection.weight for projection in projections])  # (n D, D)
            bias = torch.cat([projection.bias for projection in projections])  # (n D,)
            made = F.linear(x, weight, bias).chunk(len(projections), dim=-1)  # n x (B, T, D)
        return tuple(part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in made)

    def _mix(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Attend, merge the heads and project the result: (B, Tq, D)."""
        if mask is not None and mask.dim() == 3:
            mask = mask.unsqueeze(1)  # (B, 1, Tq, Tk) or (B, 1, 1, Tk)
        rate = self.dropout.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(queries, keys, values, mask, rate)
        return self.out_proj(mixed.transpose(1, 2).flatten(2))  # (B, Tq, D)


class FusedLayerNorm(LayerNorm):
    """LayerNorm by PyTorch's kernel."""

    def __init__(self, norm: LayerNorm) -> None:
        """Share the parameters of ``norm``."""
        nn.Module.__init__(self)
        self.eps = norm.eps
        self.gamma, self.beta = norm.gamma, norm.beta
        self.training = norm.training

    def forward(self, x: Tensor) -> Tensor:
        """As in LayerNorm."""
        return F.layer_norm(x, self.gamma.shape, self.gamma, self.beta, self.eps)


def fused(model: nn.Module) -> nn.Module:
    """A copy of a model that computes attention and norms by fused kernels.

    Args:
        model: any module; it stays as it is. Move it to its device first.

    Returns:
        A copy that shares the parameters and buffers of ``model``, so that training one trains the
        other, with a fused module for each MultiHeadAttention and LayerNorm. Results agree up to
        rounding; with dropout, in distribution.
    """
    return swap_modules(model, {MultiHeadAttention: FusedAttention, LayerNorm: FusedLayerNorm})
