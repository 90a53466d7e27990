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
# # Sequence to sequence: recurrent networks
#
# At the end of this unit the three recurrent cells run, and an encoder and a decoder made of them
# are one model that reads a sentence and scores another.

# %%
"""Recurrent cells, encoders in one and both directions, the decoder's step, the whole model."""

# The options of a cell must stand on one line, however long it gets.
# ruff: noqa: E501

# %%
import math

import torch
from torch import Tensor, nn

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("seq2seq-recurrent")

# %% [markdown]
# ## Recurrent cells
#
# ### Exercise 1: The plain recurrent cell
#
# A recurrent cell is one step of a recurrent network: from an input $x$ and the state $h$ it makes
# the new state. The same cell, with the same parameters, serves every step. Write
# `RNNCell(input_size, hidden_size)`:
#
# $$h' = \tanh(W_{ih}\, x + b_{ih} + W_{hh}\, h + b_{hh})$$
#
# <!-- id: formula -->
#
# * Parameters (`nn.Parameter`, named as in PyTorch): `weight_ih` `(H, I)`, `weight_hh` `(H, H)`,
#   `bias_ih` `(H,)`, `bias_hh` `(H,)`, with `I` = `input_size` and `H` = `hidden_size`.
#   <!-- id: parameters --> (One bias
#   would do; two make the weights interchangeable with PyTorch's.)
# * `forward(x, h)`: `x` `(B, I)`, `h` `(B, H)`; the result is `(B, H)`.
# * `ValueError` if `x` or `h` has another width, or another batch size than the other.
#   <!-- id: other-sizes --> Broadcasting
#   would accept some of these silently.
# * Not to be called: PyTorch's own recurrent modules and cells (`nn.RNN`, `nn.GRU`, `nn.LSTM`,
#   `nn.RNNCell`, `nn.GRUCell`, `nn.LSTMCell`, and the functions behind them).
#   <!-- id: not-called --> Your class may have
#   the same name as PyTorch's.
#
# *Example.* All widths 1, $W_{ih} = 1$, $W_{hh} = 0.5$, $b_{ih} = 0.5$, $b_{hh} = 0$: for $x = 1$
# and $h = -1$ the new state is $\tanh(1 + 0.5 - 0.5) = \tanh(1) \approx 0.762$.
#
# Book: `seq-rnn`.
#
# <details><summary>Hint 1</summary>
#
# Rows are examples and the weights are `(out, in)`, so $W x$ for a whole batch is `x @ weight.T`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Start from small random numbers, for example `torch.empty(H, I).uniform_(-a, a)` with
# $a = 1/\sqrt{H}$, as PyTorch does.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `h.shape != (x.shape[0], hidden_size)` compares batch and width at once. The widths themselves
# stand in the shapes of the weights.
#
# </details>


# %% exercise="RNNCell" points=2 section="seq-rnn" forbids="RNN GRU LSTM RNNCell GRUCell LSTMCell"
class RNNCell(nn.Module):
    """Plain recurrent cell, h' = tanh(W_ih x + b_ih + W_hh h + b_hh) (Elman 1990).

    Parameters: ``weight_ih`` (H, I), ``weight_hh`` (H, H), ``bias_ih`` (H,), ``bias_hh`` (H,).
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        """Create the four parameters for inputs of width I and states of width H."""
        super().__init__()
        ### BEGIN SOLUTION
        bound = 1.0 / math.sqrt(hidden_size)
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size).uniform_(-bound, bound))
        self.weight_hh = nn.Parameter(torch.empty(hidden_size, hidden_size).uniform_(-bound, bound))
        self.bias_ih = nn.Parameter(torch.empty(hidden_size).uniform_(-bound, bound))
        self.bias_hh = nn.Parameter(torch.empty(hidden_size).uniform_(-bound, bound))
        ### END SOLUTION

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        """One step.

        Args:
            x: (B, I), the input.
            h: (B, H), the state.

        Returns:
            (B, H), the new state.

        Raises:
            ValueError: if x or h has another width, or their batch sizes differ.
        """
        ### BEGIN SOLUTION
        hidden_size, input_size = self.weight_ih.shape
        if x.shape[-1] != input_size:
            raise ValueError(f"x must be {input_size} wide, but is {x.shape[-1]} wide")
        if h.shape != (x.shape[0], hidden_size):
            raise ValueError(f"h must be {(x.shape[0], hidden_size)}, but is {tuple(h.shape)}")
        from_input = x @ self.weight_ih.T + self.bias_ih  # (B, H)
        from_state = h @ self.weight_hh.T + self.bias_hh  # (B, H)
        return torch.tanh(from_input + from_state)  # (B, H)
        ### END SOLUTION


# %% check="RNNCell" tags=["active-ipynb"]
# check("RNNCell")

# %% [markdown]
# ### Exercise 2: The gated recurrent unit
#
# The plain cell overwrites its whole state at every step. The gated recurrent unit decides, number
# by number, how much to keep. Write `GRUCell(input_size, hidden_size)`:
#
# $$\begin{aligned}
# r &= \sigma(W_{ir} x + b_{ir} + W_{hr} h + b_{hr})\\
# z &= \sigma(W_{iz} x + b_{iz} + W_{hz} h + b_{hz})\\
# n &= \tanh\bigl(W_{in} x + b_{in} + r \odot (W_{hn} h + b_{hn})\bigr)\\
# h' &= (1 - z) \odot n + z \odot h
# \end{aligned}$$
#
# <!-- id: formula -->
#
# $\sigma$ is the logistic sigmoid and $\odot$ multiplies number by number. Two details differ
# between publications; this is PyTorch's form of both: the reset gate $r$ multiplies
# $W_{hn} h + b_{hn}$ **after** the product with the matrix, bias included (Cho et al., 2014, reset
# $h$ before it), and $z$ is the share of the **old** state. <!-- id: pytorch-form -->
#
# * Parameters: `weight_ih` `(3H, I)`, `weight_hh` `(3H, H)`, `bias_ih` `(3H,)`, `bias_hh` `(3H,)`.
#   The first `H` rows of each belong to $r$, the next to $z$, the last to $n$.
#   <!-- id: parameters -->
# * `forward(x, h)`: `x` `(B, I)`, `h` `(B, H)`; the result is `(B, H)`.
# * `ValueError` <!-- id: other-sizes --> and what is not to be called: as in exercise 1.
#   <!-- id: not-called -->
#
# *Example.* If all parameters are 0, then $r = z = \tfrac12$ and $n = 0$, so $h = 4$ becomes $2$.
# If only $b_{hn} = 2$, then $n = \tanh(\tfrac12 \cdot 2) \approx 0.762$ and $h = 4$ becomes
# $\tfrac12 \cdot 0.762 + 2 \approx 2.381$.
#
# Book: `seq-gru`.
#
# <details><summary>Hint 1</summary>
#
# Compute `x @ weight_ih.T + bias_ih` and `h @ weight_hh.T + bias_hh`, both `(B, 3H)`, and cut both
# into three parts with `chunk(3, dim=-1)`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# For $r$ and $z$ you may add the two products first. For $n$ you must not: $r$ acts only on the
# part that comes from the state.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The width `H` is `weight_hh.shape[1]`; the first dimension is three times as large.
#
# </details>


# %% exercise="GRUCell" points=3 section="seq-gru" forbids="RNN GRU LSTM RNNCell GRUCell LSTMCell"
class GRUCell(nn.Module):
    """Gated recurrent unit (Cho et al. 2014, section 2.3), as PyTorch computes it.

    Parameters: ``weight_ih`` (3H, I), ``weight_hh`` (3H, H), ``bias_ih`` (3H,), ``bias_hh`` (3H,);
    in each, the rows of r come first, then those of z, then those of n.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        """Create the four parameters for inputs of width I and states of width H."""
        super().__init__()
        ### BEGIN SOLUTION
        rows, bound = 3 * hidden_size, 1.0 / math.sqrt(hidden_size)
        self.weight_ih = nn.Parameter(torch.empty(rows, input_size).uniform_(-bound, bound))
        self.weight_hh = nn.Parameter(torch.empty(rows, hidden_size).uniform_(-bound, bound))
        self.bias_ih = nn.Parameter(torch.empty(rows).uniform_(-bound, bound))
        self.bias_hh = nn.Parameter(torch.empty(rows).uniform_(-bound, bound))
        ### END SOLUTION

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        """One step.

        Args:
            x: (B, I), the input.
            h: (B, H), the state.

        Returns:
            (B, H), the new state.

        Raises:
            ValueError: if x or h has another width, or their batch sizes differ.
        """
        ### BEGIN SOLUTION
        input_size, hidden_size = self.weight_ih.shape[1], self.weight_hh.shape[1]
        if x.shape[-1] != input_size:
            raise ValueError(f"x must be {input_size} wide, but is {x.shape[-1]} wide")
        if h.shape != (x.shape[0], hidden_size):
            raise ValueError(f"h must be {(x.shape[0], hidden_size)}, but is {tuple(h.shape)}")
        from_input = x @ self.weight_ih.T + self.bias_ih  # (B, 3H)
        from_state = h @ self.weight_hh.T + self.bias_hh  # (B, 3H)
        x_r, x_z, x_n = from_input.chunk(3, dim=-1)  # 3 x (B, H)
        h_r, h_z, h_n = from_state.chunk(3, dim=-1)  # 3 x (B, H)
        r = torch.sigmoid(x_r + h_r)  # (B, H)
        z = torch.sigmoid(x_z + h_z)  # (B, H)
        n = torch.tanh(x_n + r * h_n)  # (B, H)
        return (1 - z) * n + z * h  # (B, H)
        ### END SOLUTION


# %% check="GRUCell" tags=["active-ipynb"]
# check("GRUCell")

# %% [markdown]
# ### Exercise 3: Long short-term memory
#
# The long short-term memory has a second state, the memory $c$, to which a step only adds and from
# which it only fades. Write `LSTMCell(input_size, hidden_size)`:
#
# $$\begin{aligned}
# i &= \sigma(W_{ii} x + b_{ii} + W_{hi} h + b_{hi}) &
# f &= \sigma(W_{if} x + b_{if} + W_{hf} h + b_{hf})\\
# g &= \tanh(W_{ig} x + b_{ig} + W_{hg} h + b_{hg}) &
# o &= \sigma(W_{io} x + b_{io} + W_{ho} h + b_{ho})\\
# c' &= f \odot c + i \odot g & h' &= o \odot \tanh(c')
# \end{aligned}$$
#
# <!-- id: formula -->
#
# * Parameters: `weight_ih` `(4H, I)`, `weight_hh` `(4H, H)`, `bias_ih` `(4H,)`, `bias_hh` `(4H,)`,
#   the rows in the order $i$, $f$, $g$, $o$. <!-- id: parameters -->
# * `forward(x, state)`: `x` `(B, I)`, `state` the pair `(h, c)`, both `(B, H)`. Returns the new
#   pair `(h, c)`, in this order. <!-- id: pair -->
# * `ValueError` if `x`, `h` or `c` has another width or batch size. <!-- id: other-sizes -->
#   What is not to be called: as in
#   exercise 1. <!-- id: not-called -->
#
# *Example.* If all parameters are 0, then $i = f = o = \tfrac12$ and $g = 0$: $c = 4$ becomes $2$,
# and $h' = \tfrac12 \tanh(2) \approx 0.482$, whatever $h$ was.
#
# Book: `seq-lstm`.
#
# <details><summary>Hint 1</summary>
#
# Unlike the GRU, all four parts add the products of input and state in the same way: add first,
# then cut into four.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Three of the four are gates (sigmoid); $g$, the third in the order, is a content (tanh).
#
# </details>
# <details><summary>Hint 3</summary>
#
# $h'$ is made from the **new** memory.
#
# </details>


# %% exercise="LSTMCell" points=3 section="seq-lstm" forbids="RNN GRU LSTM RNNCell GRUCell LSTMCell"
class LSTMCell(nn.Module):
    """Long short-term memory (Hochreiter and Schmidhuber 1997; forget gate: Gers et al. 2000).

    Parameters: ``weight_ih`` (4H, I), ``weight_hh`` (4H, H), ``bias_ih`` (4H,), ``bias_hh`` (4H,);
    in each, the rows of i come first, then those of f, of g and of o.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        """Create the four parameters for inputs of width I and states of width H."""
        super().__init__()
        ### BEGIN SOLUTION
        rows, bound = 4 * hidden_size, 1.0 / math.sqrt(hidden_size)
        self.weight_ih = nn.Parameter(torch.empty(rows, input_size).uniform_(-bound, bound))
        self.weight_hh = nn.Parameter(torch.empty(rows, hidden_size).uniform_(-bound, bound))
        self.bias_ih = nn.Parameter(torch.empty(rows).uniform_(-bound, bound))
        self.bias_hh = nn.Parameter(torch.empty(rows).uniform_(-bound, bound))
        ### END SOLUTION

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """One step.

        Args:
            x: (B, I), the input.
            state: h (B, H), the output of the step before, and c (B, H), the memory.

        Returns:
            The new h (B, H) and the new c (B, H).

        Raises:
            ValueError: if x, h or c has another width, or their batch sizes differ.
        """
        ### BEGIN SOLUTION
        h, c = state
        input_size, hidden_size = self.weight_ih.shape[1], self.weight_hh.shape[1]
        if x.shape[-1] != input_size:
            raise ValueError(f"x must be {input_size} wide, but is {x.shape[-1]} wide")
        for name, part in (("h", h), ("c", c)):
            wanted = (x.shape[0], hidden_size)
            if part.shape != wanted:
                raise ValueError(f"{name} must be {wanted}, but is {tuple(part.shape)}")
        from_input = x @ self.weight_ih.T + self.bias_ih  # (B, 4H)
        from_state = h @ self.weight_hh.T + self.bias_hh  # (B, 4H)
        i, f, g, o = (from_input + from_state).chunk(4, dim=-1)  # 4 x (B, H)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)  # (B, H)
        h = torch.sigmoid(o) * torch.tanh(c)  # (B, H)
        return h, c
        ### END SOLUTION


# %% check="LSTMCell" tags=["active-ipynb"]
# check("LSTMCell")

# %% [markdown]
# ## Encoders
#
# ### Exercise 4: Encoder
#
# An encoder reads a whole sequence with one cell. Write
# `Encoder(vocab_size, embed_dim, hidden_size, cell="gru")`:
#
# $$x_t = \operatorname{embedding}(\text{id}_t),\qquad
# h_t = \operatorname{cell}(x_t, h_{t-1}),\qquad h_0 = 0$$
#
# <!-- id: from-zeros -->
#
# The encoder starts from **zeros**. What it knows at the end is handed to the decoder, not the
# other way round.
#
# * Submodules: `embedding = nn.Embedding(vocab_size, embed_dim)`, and `cell`, your `RNNCell`,
#   `GRUCell` or `LSTMCell` for `"rnn"`, `"gru"` or `"lstm"`. <!-- id: submodules -->
#   `ValueError` (when the module is
#   created) for any other name. <!-- id: other-cell -->
# * `forward(ids, mask=None)`: `ids` `(B, T)` `torch.int64`; `mask` `(B, T)` bool, `True` = real
#   token, or `None`, when all are real.
# * Where the mask is `False`, the state is carried over unchanged, and the row of `states` is 0. So
#   each sequence is encoded as if it stood alone, whatever its neighbours in the batch are.
#   <!-- id: padding -->
# * Returns `(states, final)`: `states` `(B, T, H)` and the state after the **last real token**,
#   `(B, H)`. For the LSTM, `final` is the pair `(h, c)` and `states` hold $h$.
#   <!-- id: states-and-final -->
# * `ValueError` if the batch is empty or `T` is 0, if `ids` are not `torch.int64`, if an id lies
#   outside the vocabulary (negative ones too; padded positions count), if `mask` is not bool or not
#   `(B, T)`, or if a row has no real token at all. <!-- id: bad-input -->
# * Not to be called: PyTorch's own recurrent modules and cells, as in exercise 1.
#   <!-- id: not-called -->
#
# *Example.* With the mask `[True, True, False]`, `states[:, 2]` is 0 and `final` equals
# `states[:, 1]`. The token at the third position may be any in the vocabulary: nothing changes.
#
# Book: `seq-encoder`.
#
# <details><summary>Hint 1</summary>
#
# Embed all ids at once, `(B, T, E)`, then loop over the `T` positions and collect the states in a
# list; `torch.stack(states, dim=1)` makes `(B, T, H)`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.where(mask[:, t, None], new, old)` chooses for each row whether it steps or waits. After
# the loop the state is the final one, for every row.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Make the zeros from the embeddings, `x.new_zeros(B, H)`: then they have the right type and stand
# on the right device.
#
# </details>
# <details><summary>Hint 4</summary>
#
# For the LSTM both $h$ and $c$ wait at padding. If you keep the state as a tuple, of one or of two
# tensors, the loop is the same for all three cells.
#
# </details>


# %% exercise="Encoder" points=4 section="seq-encoder" forbids="RNN GRU LSTM RNNCell GRUCell LSTMCell"
class Encoder(nn.Module):
    """Read a sequence with a recurrent cell from left to right (Sutskever et al. 2014, section 2).

    Submodules: ``embedding`` = nn.Embedding(vocab_size, embed_dim); ``cell`` = your RNNCell,
    GRUCell or LSTMCell with inputs embed_dim and states hidden_size.
    """

    def __init__(
        self, vocab_size: int, embed_dim: int, hidden_size: int, cell: str = "gru"
    ) -> None:
        """Create ``embedding`` and ``cell``.

        Args:
            vocab_size: V, the number of ids.
            embed_dim: E, the width of the embeddings.
            hidden_size: H, the width of the states.
            cell: "rnn", "gru" or "lstm".

        Raises:
            ValueError: if cell is none of the three.
        """
        super().__init__()
        ### BEGIN SOLUTION
        cells = {"rnn": RNNCell, "gru": GRUCell, "lstm": LSTMCell}
        if cell not in cells:
            raise ValueError(f'cell must be "rnn", "gru" or "lstm", but is {cell!r}')
        self.kind = cell
        self.hidden_size = hidden_size
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.cell = cells[cell](embed_dim, hidden_size)
        ### END SOLUTION

    def forward(
        self, ids: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor | tuple[Tensor, Tensor]]:
        """Encode a batch of sequences, each as if it stood alone.

        Args:
            ids: (B, T) int64.
            mask: (B, T) bool, True = real token; None: all are real.

        Returns:
            The states (B, T, H), 0 at padding, and the state after the last real token: (B, H), or
            for the LSTM the pair h (B, H), c (B, H).

        Raises:
            ValueError: if B or T is 0, ids is not int64, an id lies outside the vocabulary, or the
                mask is not bool, not (B, T), or leaves a row without a real token.
        """
        ### BEGIN SOLUTION
        if ids.numel() == 0:
            raise ValueError(f"ids must hold at least one token, but are {tuple(ids.shape)}")
        if ids.dtype != torch.int64:
            raise ValueError(f"ids must be torch.int64, but are {ids.dtype}")
        vocab_size = self.embedding.num_embeddings
        if ids.min() < 0 or ids.max() >= vocab_size:
            raise ValueError(f"ids must lie between 0 and {vocab_size - 1}, but one doesn't")
        if mask is None:
            mask = torch.ones_like(ids, dtype=torch.bool)  # (B, T)
        if mask.dtype != torch.bool or mask.shape != ids.shape:
            raise ValueError(
                f"mask must be torch.bool {tuple(ids.shape)}, "
                f"but is {mask.dtype} {tuple(mask.shape)}"
            )
        if not mask.any(dim=1).all():
            raise ValueError("every row of the mask needs at least one real token")
        x = self.embedding(ids)  # (B, T, E)
        zeros = x.new_zeros(len(ids), self.hidden_size)  # (B, H)
        lstm = self.kind == "lstm"
        state = (zeros, zeros) if lstm else (zeros,)
        states = []
        for t in range(ids.shape[1]):
            new = self.cell(x[:, t], state) if lstm else (self.cell(x[:, t], *state),)
            real = mask[:, t, None]  # (B, 1)
            state = tuple(torch.where(real, a, b) for a, b in zip(new, state, strict=True))
            states.append(torch.where(real, state[0], zeros))  # (B, H)
        final = state if lstm else state[0]
        return torch.stack(states, dim=1), final  # (B, T, H), (B, H)
        ### END SOLUTION


# %% check="Encoder" tags=["active-ipynb"]
# check("Encoder")

# %% [markdown]
# ### Exercise 5: Bidirectional encoder and bridge
#
# When $h_t$ of exercise 4 is made, the words after $t$ have not been read. A second cell reads
# from right to left, and each position gets both views. Each direction reads the **whole**
# sequence. Write `BidirectionalEncoder(vocab_size, embed_dim, hidden_size, decoder_size)`:
#
# $$\overrightarrow{h}_t = \operatorname{GRU}_f(x_t, \overrightarrow{h}_{t-1}),\qquad
# \overleftarrow{h}_t = \operatorname{GRU}_b(x_t, \overleftarrow{h}_{t+1}),\qquad
# h_t = [\overrightarrow{h}_t; \overleftarrow{h}_t]$$
#
# <!-- id: two-directions -->
#
# The decoder has one state of its own width. A *bridge* makes it from what both directions know at
# their ends, the last real position and position 0:
#
# $$s_0 = \tanh\bigl(W\,[\overrightarrow{h}_{\text{last}}; \overleftarrow{h}_{0}] + b\bigr)$$
#
# <!-- id: bridge -->
#
# * Submodules: `embedding = nn.Embedding(vocab_size, embed_dim)`; `forward_cell` and
#   `backward_cell`, each your `GRUCell(embed_dim, hidden_size)`;
#   `bridge = nn.Linear(2 * hidden_size, decoder_size)`. <!-- id: submodules -->
# * `forward(ids, mask=None)` as in exercise 4: where the mask is `False`, wherever that is, both
#   directions carry their states over. The backward direction starts from zeros at each row's
#   **last real token**, not in the padding behind it. <!-- id: padding -->
# * Returns `(states, state)`: `states` `(B, T, 2H)`, the forward half first, 0 at padding; `state`
#   `(B, decoder_size)`. <!-- id: states-and-state -->
# * `ValueError` <!-- id: bad-input --> and what is not to be called: as in exercise 4.
#   <!-- id: not-called -->
#
# *Example.* Change the first token of a sentence: the forward half of `states` changes at every
# position, the backward half only at position 0.
#
# Book: `seq-bidirectional`.
#
# <details><summary>Hint 1</summary>
#
# Run the loop of exercise 4 twice, the second time over `reversed(range(T))`, each with its own
# cell.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The rule "where the mask is `False` the state is carried over" makes the backward direction right
# as well: it carries its zeros through the padding until the last real token.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Put the backward states into the list at their position `t`, not in the order in which they are
# made; otherwise they stand the wrong way round.
#
# </details>
# <details><summary>Hint 4</summary>
#
# The final backward state is the one after the whole backward loop, at position 0. At the last
# position the backward cell has read a single word.
#
# </details>


# %% exercise="BidirectionalEncoder" points=4 section="seq-bidirectional" forbids="RNN GRU LSTM RNNCell GRUCell LSTMCell"
class BidirectionalEncoder(nn.Module):
    """Read a sequence in both directions (Schuster and Paliwal 1997; Bahdanau et al. 2015, 3.2).

    Submodules: ``embedding`` = nn.Embedding(vocab_size, embed_dim); ``forward_cell`` and
    ``backward_cell`` = your GRUCell(embed_dim, hidden_size); ``bridge`` =
    nn.Linear(2 * hidden_size, decoder_size).
    """

    def __init__(
        self, vocab_size: int, embed_dim: int, hidden_size: int, decoder_size: int
    ) -> None:
        """Create ``embedding``, ``forward_cell``, ``backward_cell`` and ``bridge``."""
        super().__init__()
        ### BEGIN SOLUTION
        self.hidden_size = hidden_size
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.forward_cell = GRUCell(embed_dim, hidden_size)
        self.backward_cell = GRUCell(embed_dim, hidden_size)
        self.bridge = nn.Linear(2 * hidden_size, decoder_size)
        ### END SOLUTION

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Encode a batch of sequences, and make the first state of a decoder.

        Args:
            ids: (B, T) int64.
            mask: (B, T) bool, True = real token; None: all are real.

        Returns:
            The states (B, T, 2H), forward part first, 0 at padding; and the decoder's state
            (B, decoder_size), the tanh of the bridge of both final states.

        Raises:
            ValueError: if B or T is 0, ids is not int64, an id lies outside the vocabulary, or the
                mask is not bool, not (B, T), or leaves a row without a real token.
        """
        ### BEGIN SOLUTION
        if ids.numel() == 0:
            raise ValueError(f"ids must hold at least one token, but are {tuple(ids.shape)}")
        if ids.dtype != torch.int64:
            raise ValueError(f"ids must be torch.int64, but are {ids.dtype}")
        vocab_size = self.embedding.num_embeddings
        if ids.min() < 0 or ids.max() >= vocab_size:
            raise ValueError(f"ids must lie between 0 and {vocab_size - 1}, but one doesn't")
        if mask is None:
            mask = torch.ones_like(ids, dtype=torch.bool)  # (B, T)
        if mask.dtype != torch.bool or mask.shape != ids.shape:
            raise ValueError(
                f"mask must be torch.bool {tuple(ids.shape)}, "
                f"but is {mask.dtype} {tuple(mask.shape)}"
            )
        if not mask.any(dim=1).all():
            raise ValueError("every row of the mask needs at least one real token")
        x = self.embedding(ids)  # (B, T, E)
        length = ids.shape[1]
        directions, finals = [], []
        for cell, order in (
            (self.forward_cell, range(length)),
            (self.backward_cell, reversed(range(length))),
        ):
            h = x.new_zeros(len(ids), self.hidden_size)  # (B, H)
            states = [h] * length
            for t in order:
                # Before a row's first real token (seen in this direction) the state stays 0.
                h = torch.where(mask[:, t, None], cell(x[:, t], h), h)  # (B, H)
                states[t] = h
            directions.append(torch.stack(states, dim=1))  # (B, T, H)
            finals.append(h)
        states = torch.cat(directions, dim=-1).masked_fill(~mask[:, :, None], 0.0)  # (B, T, 2H)
        return states, torch.tanh(self.bridge(torch.cat(finals, dim=-1)))  # (B, decoder_size)
        ### END SOLUTION


# %% check="BidirectionalEncoder" tags=["active-ipynb"]
# check("BidirectionalEncoder")

# %% [markdown]
# ## Decoder and training
#
# ### Exercise 6: One step of the decoder
#
# A decoder writes one token per step. It sees the token before, its own state, and the context, the
# encoder's summary of the source. Write
# `DecoderStep(vocab_size, embed_dim, hidden_size, context_size)`:
#
# $$s_t = \operatorname{GRU}\bigl([\operatorname{embedding}(y_{t-1}); C],\; s_{t-1}\bigr),\qquad
# \text{logits}_t = W\,[s_t; C] + b$$
#
# <!-- id: formula -->
#
# * Submodules: `embedding = nn.Embedding(vocab_size, embed_dim)`; `cell`, your
#   `GRUCell(embed_dim + context_size, hidden_size)`;
#   `output = nn.Linear(hidden_size + context_size, vocab_size)`. The order inside the brackets is
#   as written: the embedding before the context, the state before the context.
#   <!-- id: submodules -->
# * `forward(previous, state, context)`: `previous` `(B,)` `torch.int64`, `state` `(B, H)`,
#   `context` `(B, C)`.
# * Returns `(logits, state)`: `(B, V)` and the **new** state `(B, H)`. <!-- id: new-state -->
#   Logits are not probabilities:
#   there is no softmax here.
# * `ValueError` if `previous` is not `torch.int64` or holds an id outside the vocabulary, or if
#   `state` or `context` has another width or batch size. <!-- id: bad-input -->
# * Not to be called: PyTorch's own recurrent modules and cells, as in exercise 1.
#   <!-- id: not-called -->
#
# *Example.* Take a trained step and change only $y_{t-1}$, only $s_{t-1}$, or only $C$: the logits
# change every time.
#
# Book: `seq-decoder`.
#
# <details><summary>Hint 1</summary>
#
# `torch.cat([a, b], dim=-1)` joins along the width.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Make the new state first; the output layer reads the new one.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `torch.cat` raises `RuntimeError` when the batch sizes differ. Compare the shapes with
# `(len(previous), width)` before anything else.
#
# </details>


# %% exercise="DecoderStep" points=3 section="seq-decoder" forbids="RNN GRU LSTM RNNCell GRUCell LSTMCell"
class DecoderStep(nn.Module):
    """One step of a decoder that sees the context at every step (Cho et al. 2014, section 2.2).

    Submodules: ``embedding`` = nn.Embedding(vocab_size, embed_dim); ``cell`` = your
    GRUCell(embed_dim + context_size, hidden_size), fed [embedding; context]; ``output`` =
    nn.Linear(hidden_size + context_size, vocab_size), fed [new state; context].
    """

    def __init__(
        self, vocab_size: int, embed_dim: int, hidden_size: int, context_size: int
    ) -> None:
        """Create ``embedding``, ``cell`` and ``output``."""
        super().__init__()
        ### BEGIN SOLUTION
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.cell = GRUCell(embed_dim + context_size, hidden_size)
        self.output = nn.Linear(hidden_size + context_size, vocab_size)
        self.hidden_size, self.context_size = hidden_size, context_size
        ### END SOLUTION

    def forward(self, previous: Tensor, state: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Read one token, update the state, score the next token.

        Args:
            previous: (B,) int64, the previous token.
            state: (B, H).
            context: (B, C).

        Returns:
            The logits (B, V) of the next token and the new state (B, H).

        Raises:
            ValueError: if previous is not int64 or holds an id outside the vocabulary, or state or
                context has another width or batch size.
        """
        ### BEGIN SOLUTION
        if previous.dtype != torch.int64:
            raise ValueError(f"previous must be torch.int64, but is {previous.dtype}")
        vocab_size = self.embedding.num_embeddings
        if ((previous < 0) | (previous >= vocab_size)).any():
            raise ValueError(f"ids must lie between 0 and {vocab_size - 1}, but one doesn't")
        for name, part, width in (
            ("state", state, self.hidden_size),
            ("context", context, self.context_size),
        ):
            if part.shape != (len(previous), width):
                wanted = (len(previous), width)
                raise ValueError(f"{name} must be {wanted}, but is {tuple(part.shape)}")
        cell_input = torch.cat([self.embedding(previous), context], dim=-1)  # (B, E + C)
        state = self.cell(cell_input, state)  # (B, H)
        logits = self.output(torch.cat([state, context], dim=-1))  # (B, V)
        return logits, state
        ### END SOLUTION


# %% check="DecoderStep" tags=["active-ipynb"]
# check("DecoderStep")

# %% [markdown]
# ### Exercise 7: Teacher forcing
#
# `Seq2Seq(src_vocab_size, tgt_vocab_size, embed_dim, hidden_size)` joins an `Encoder` (GRU) and a
# `DecoderStep`. The context $C$ is the encoder's final state, and it is also the decoder's first
# state, $s_0 = C$. The class gives you `start` and `step`, the interface of a translator; the
# methods that make the submodules and these two are complete. Write `forward`, the pass for
# training.
#
# The target `y` is fed as `target_in` = `BOS, y_1, y_2, ...`, and the logits of step `t` are about
# the token after it: they are to be compared with `y_1, y_2, ..., EOS`. What does the decoder read
# at step `t`?
#
# $$\text{input}_t = \begin{cases}
# \text{target\_in}_t & \text{if } t = 0, \text{ or with probability } \rho\\
# \arg\max \text{logits}_{t-1} & \text{otherwise}
# \end{cases}$$
#
# <!-- id: inputs -->
#
# $\rho = 1$ is *teacher forcing*: always the reference. $\rho = 0$ is *free running*: always the
# decoder's own choice, as in use.
#
# * `forward(source, target_in, source_mask=None, teacher_forcing_ratio=1.0)`: `source` `(B, T)` and
#   `target_in` `(B, U)`, both `torch.int64`; `source_mask` `(B, T)` bool; <!-- id: source-mask -->
#   `teacher_forcing_ratio`
#   is $\rho$.
# * The choice is made **for every row and every step on its own**, with random numbers from
#   PyTorch's global generator. With $\rho = 1$ and with $\rho = 0$ nothing is left to chance.
#   <!-- id: own-draws -->
# * Returns logits `(B, U, V)`. There are `U` steps, whether or not a row has produced `EOS`.
#   <!-- id: all-steps -->
# * `ValueError` if `teacher_forcing_ratio` lies outside $[0, 1]$, or if `U` is 0.
#   <!-- id: bad-input --> What else is
#   wrong with the input (an id outside the vocabulary, a mask of another shape, another batch size)
#   is refused by the parts that it reaches.
# * Not to be called: PyTorch's own recurrent modules and cells, as in exercise 1.
#   <!-- id: not-called -->
#
# *Example.* With the vocabulary of `encode` (unit `text`), the target `to be` is fed as `[1, 5, 4]`, and the
# logits are compared with `[5, 4, 2]`.
#
# Book: `seq-teacher-forcing`.
#
# <details><summary>Hint 1</summary>
#
# Call `self.start` once, then `self.step` in a loop over `U`; collect the logits and stack them
# along dimension 1.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.rand(B) < ratio` is `True` with probability `ratio`, drawn for each row. `torch.rand`
# yields numbers from 0 up to, but not including, 1, so the ratios 0 and 1 need no case of their
# own.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `torch.where(forced, target_in[:, t], own)` chooses row by row; `own` is the `argmax` of the
# logits of the step before. At step 0 there are none yet.
#
# </details>


# %% exercise="Seq2Seq" points=5 section="seq-teacher-forcing" forbids="RNN GRU LSTM RNNCell GRUCell LSTMCell"
class Seq2Seq(nn.Module):
    """Encoder and decoder with a fixed context, trained by teacher forcing (Williams, Zipser 1989).

    Submodules: ``encoder`` = Encoder(src_vocab_size, embed_dim, hidden_size, "gru"); ``decoder`` =
    DecoderStep(tgt_vocab_size, embed_dim, hidden_size, hidden_size).
    """

    def __init__(
        self, src_vocab_size: int, tgt_vocab_size: int, embed_dim: int, hidden_size: int
    ) -> None:
        """Create ``encoder`` and ``decoder``."""
        super().__init__()
        self.encoder = Encoder(src_vocab_size, embed_dim, hidden_size, "gru")
        self.decoder = DecoderStep(tgt_vocab_size, embed_dim, hidden_size, hidden_size)

    def start(self, source: Tensor, source_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Encode source (B, T): the decoder's first state (B, H) and the context (B, H)."""
        _, context = self.encoder(source, source_mask)  # (B, H)
        return context, context

    def step(
        self, previous: Tensor, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Feed previous (B,): the logits (B, V) of the next token and the new state."""
        s, context = state  # (B, H), (B, H)
        logits, s = self.decoder(previous, s, context)  # (B, V), (B, H)
        return logits, (s, context)

    def forward(
        self,
        source: Tensor,
        target_in: Tensor,
        source_mask: Tensor | None = None,
        teacher_forcing_ratio: float = 1.0,
    ) -> Tensor:
        """The logits of every step.

        Args:
            source: (B, T) int64.
            target_in: (B, U) int64, U at least 1; begins with BOS.
            source_mask: (B, T) bool, True = real token.
            teacher_forcing_ratio: probability, in [0, 1], that an input after the first is the
                token of target_in rather than the decoder's own; drawn for each row and step.

        Returns:
            Logits (B, U, V); those of step t are about the token after target_in[:, t].

        Raises:
            ValueError: if teacher_forcing_ratio lies outside [0, 1] or U is 0.
        """
        ### BEGIN SOLUTION
        if not 0.0 <= teacher_forcing_ratio <= 1.0:
            raise ValueError(
                f"teacher_forcing_ratio must be between 0 and 1, but is {teacher_forcing_ratio}"
            )
        if target_in.shape[1] == 0:
            raise ValueError("target_in must hold at least one step, the one that feeds BOS")
        state = self.start(source, source_mask)
        # rand is in [0, 1): a ratio of 1 always forces, a ratio of 0 never.
        forced = torch.rand(target_in.shape, device=source.device) < teacher_forcing_ratio  # (B, U)
        previous = target_in[:, 0]  # (B,)
        steps = []
        for t in range(target_in.shape[1]):
            if t > 0:
                own = steps[-1].argmax(dim=-1)  # (B,)
                previous = torch.where(forced[:, t], target_in[:, t], own)  # (B,)
            logits, state = self.step(previous, state)  # (B, V)
            steps.append(logits)
        return torch.stack(steps, dim=1)  # (B, U, V)
        ### END SOLUTION


# %% check="Seq2Seq" tags=["active-ipynb"]
# check("Seq2Seq")
