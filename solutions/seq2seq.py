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
# # Sequence to sequence by hand

# %%
"""Sequence to sequence: vocabulary, padding, recurrent cells, encoders, decoder, loss, decoding."""

# The options of a cell must stand on one line, however long it gets.
# ruff: noqa: E501

# %%
import math
from collections import Counter

import torch
from torch import Tensor, nn

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("seq2seq")

# %%
PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ["<pad>", "<bos>", "<eos>", "<unk>"]


class NextTokenTable(nn.Module):
    """A translator without a network: the logits of the next token stand in a table.

    Which row of the table is read depends on the first source token s, on the number t of the step
    (from 0) and on the previous token: ``table[s, t, previous]``. Steps beyond the table use its
    last one.
    """

    def __init__(self, table: Tensor) -> None:
        """Keep ``table`` (S, L, V, V): source tokens, steps, previous token, next token."""
        super().__init__()
        self.register_buffer("table", table)

    def start(self, source: Tensor, source_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The state before step 0: source (B, T) -> s (B,) int64 and t (B,) int64."""
        s = source[:, 0]  # (B,)
        return s, torch.zeros_like(s)

    def step(
        self, previous: Tensor, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """One step: previous (B,) int64 and the state -> logits (B, V) and the next state."""
        s, t = state
        row = t.clamp(max=self.table.shape[1] - 1)  # (B,)
        return self.table[s, row, previous], (s, t + 1)  # (B, V)


# %% [markdown]
# ## Words and ids
#
# ### Exercise 1: Vocabulary
#
# `build_vocabulary`
# (Text follows.)


# %% exercise="build_vocabulary" points=2 section="seq-vocabulary"
def build_vocabulary(
    sentences: list[list[str]], min_count: int = 1, max_size: int | None = None
) -> list[str]:
    """List the tokens of a corpus by frequency, after the four special ones.

    Args:
        sentences: at least one list of tokens.
        min_count: tokens that occur less often are left out; at least 1.
        max_size: the most entries the vocabulary may have, the specials counted; at least 4.

    Returns:
        SPECIALS, then the tokens, most frequent first, ties in alphabetical (code point) order. No
        entry occurs twice, not even a special one that also stands in the text.

    Raises:
        ValueError: if min_count < 1, max_size < 4, or there are no sentences.
    """
    ### BEGIN SOLUTION
    if not sentences:
        raise ValueError("there are no sentences to build a vocabulary from; give at least one")
    if min_count < 1:
        raise ValueError(f"min_count must be at least 1, but is {min_count}")
    if max_size is not None and max_size < len(SPECIALS):
        raise ValueError(f"max_size must leave room for the 4 specials, but is {max_size}")
    counts = Counter(token for sentence in sentences for token in sentence)
    for special in SPECIALS:
        counts.pop(special, None)
    frequent = [token for token, count in counts.items() if count >= min_count]
    frequent.sort(key=lambda token: (-counts[token], token))
    return (SPECIALS + frequent)[:max_size]
    ### END SOLUTION


# %% check="build_vocabulary" tags=["active-ipynb"]
# check("build_vocabulary")

# %% [markdown]
# ### Exercise 2: From tokens to ids
#
# `encode`
# (Text follows.)


# %% exercise="encode" points=1 section="seq-vocabulary"
def encode(
    tokens: list[str], vocabulary: list[str], add_bos: bool = False, add_eos: bool = False
) -> list[int]:
    """Replace every token by its position in the vocabulary.

    Args:
        tokens: the tokens of one sentence; may be empty.
        vocabulary: a list that begins with SPECIALS.
        add_bos: whether BOS is put in front.
        add_eos: whether EOS is put at the end.

    Returns:
        The ids; a token that the vocabulary doesn't hold becomes UNK.

    Raises:
        ValueError: if the vocabulary does not begin with SPECIALS.
    """
    ### BEGIN SOLUTION
    if vocabulary[: len(SPECIALS)] != SPECIALS:
        raise ValueError(f"the vocabulary must begin with {SPECIALS}")
    position = {token: i for i, token in enumerate(vocabulary)}
    ids = [position.get(token, UNK) for token in tokens]
    return [BOS] * add_bos + ids + [EOS] * add_eos
    ### END SOLUTION


# %% check="encode" tags=["active-ipynb"]
# check("encode")

# %% [markdown]
# ### Exercise 3: From ids to tokens
#
# `decode`
# (Text follows.)


# %% exercise="decode" points=1 section="seq-vocabulary"
def decode(ids: list[int], vocabulary: list[str]) -> list[str]:
    """Replace ids by tokens, up to the end of the sentence.

    Args:
        ids: positions in the vocabulary.
        vocabulary: a list that begins with SPECIALS.

    Returns:
        The tokens before the first EOS, without PAD and BOS; UNK stays as "<unk>".

    Raises:
        ValueError: if an id before the first EOS is negative or beyond the vocabulary.
    """
    ### BEGIN SOLUTION
    tokens = []
    for i in ids:
        if not 0 <= i < len(vocabulary):
            raise ValueError(f"id {i} is outside the vocabulary of {len(vocabulary)} tokens")
        if i == EOS:
            break
        if i not in (PAD, BOS):
            tokens.append(vocabulary[i])
    return tokens
    ### END SOLUTION


# %% check="decode" tags=["active-ipynb"]
# check("decode")

# %% [markdown]
# ## Sequences of different lengths in one tensor
#
# ### Exercise 4: Padding and cutting to a fixed length
#
# `pad_to_length`
# (Text follows.)


# %% exercise="pad_to_length" points=2 section="seq-padding"
def pad_to_length(
    sequences: list[list[int]], length: int, keep: str = "start"
) -> tuple[Tensor, Tensor]:
    """Bring all sequences to one given length: pad on the right, or cut.

    Args:
        sequences: at least one list of ids; a list may be empty.
        length: the length of every row, at least 1.
        keep: which part of a longer sequence stays, "start" or "end".

    Returns:
        ids (B, length) int64, filled up with PAD, and mask (B, length) bool, True = real token.

    Raises:
        ValueError: if there are no sequences, length < 1, keep is neither "start" nor "end", or an
            id is not an int (a bool is not an int here).
    """
    ### BEGIN SOLUTION
    if not sequences:
        raise ValueError("there are no sequences to pad; give at least one")
    if length < 1:
        raise ValueError(f"length must be at least 1, but is {length}")
    if keep not in ("start", "end"):
        raise ValueError(f'keep must be "start" or "end", but is {keep!r}')
    if any(type(i) is not int for sequence in sequences for i in sequence):
        raise ValueError("every id must be an int")
    ids = torch.full((len(sequences), length), PAD)  # (B, length)
    mask = torch.zeros(len(sequences), length, dtype=torch.bool)  # (B, length)
    for row, sequence in enumerate(sequences):
        kept = sequence[:length] if keep == "start" else sequence[-length:]
        ids[row, : len(kept)] = torch.tensor(kept, dtype=torch.int64)
        mask[row, : len(kept)] = True
    return ids, mask
    ### END SOLUTION


# %% check="pad_to_length" tags=["active-ipynb"]
# check("pad_to_length")

# %% [markdown]
# ### Exercise 5: Padding to the longest of a batch
#
# `pad_batch`
# (Text follows.)


# %% exercise="pad_batch" points=2 section="seq-padding"
def pad_batch(sequences: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Pad the sequences of one batch on the right, to the longest of them.

    Args:
        sequences: lists of ids, at least one of them not empty.

    Returns:
        ids (B, longest) int64, filled up with PAD, and mask (B, longest) bool, True = real token.
        An empty sequence becomes a row of padding.

    Raises:
        ValueError: if there are no sequences, all of them are empty, or an id is not an int (a bool
            is not an int here).
    """
    ### BEGIN SOLUTION
    longest = max((len(sequence) for sequence in sequences), default=0)
    if longest == 0:
        raise ValueError("there is nothing to pad; give at least one sequence that is not empty")
    return pad_to_length(sequences, longest)  # (B, longest), (B, longest)
    ### END SOLUTION


# %% check="pad_batch" tags=["active-ipynb"]
# check("pad_batch")

# %% [markdown]
# ### Exercise 6: Sliding windows
#
# `sliding_windows`
# (Text follows.)


# %% exercise="sliding_windows" points=3 section="seq-padding"
def sliding_windows(sequence: list[int], length: int, stride: int) -> tuple[Tensor, Tensor]:
    """Cut one long sequence into windows of one length that overlap or touch; nothing is lost.

    Args:
        sequence: ids, at least one.
        length: the length of every window, at least 1.
        stride: how far a window starts behind the one before it, from 1 to length.

    Returns:
        windows (W, length) int64 and mask (W, length) bool, True = real token. Windows start at 0,
        stride, 2 * stride, ...; the last is the first whose end reaches the end of the sequence,
        and it is filled up with PAD on the right.

    Raises:
        ValueError: if the sequence is empty, length < 1, stride < 1 or stride > length.
    """
    ### BEGIN SOLUTION
    if not sequence:
        raise ValueError("the sequence is empty; give at least one id")
    if length < 1:
        raise ValueError(f"length must be at least 1, but is {length}")
    if not 1 <= stride <= length:
        raise ValueError(f"stride must be between 1 and length={length}, but is {stride}")
    further = math.ceil(max(0, len(sequence) - length) / stride)  # windows after the first
    starts = [stride * w for w in range(further + 1)]
    return pad_to_length([sequence[s : s + length] for s in starts], length)  # 2 x (W, length)
    ### END SOLUTION


# %% check="sliding_windows" tags=["active-ipynb"]
# check("sliding_windows")

# %% [markdown]
# ## Recurrent cells
#
# ### Exercise 7: The plain recurrent cell
#
# `RNNCell`
# (Text follows.)


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
# ### Exercise 8: The gated recurrent unit
#
# `GRUCell`
# (Text follows.)


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
# ### Exercise 9: Long short-term memory
#
# `LSTMCell`
# (Text follows.)


# %% exercise="LSTMCell" points=3 section="seq-lstm" forbids="RNN GRU LSTM RNNCell GRUCell LSTMCell"
class LSTMCell(nn.Module):
    """Long short-term memory with a forget gate (Hochreiter and Schmidhuber 1997; Gers et al. 2000).

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
# ### Exercise 10: Encoder
#
# `Encoder`
# (Text follows.)


# %% exercise="Encoder" points=4 section="seq-encoder" forbids="RNN GRU LSTM RNNCell GRUCell LSTMCell"
class Encoder(nn.Module):
    """Read a sequence with a recurrent cell from left to right (Sutskever et al. 2014, section 2).

    Submodules: ``embedding`` = nn.Embedding(vocab_size, embed_dim); ``cell`` = your RNNCell, GRUCell
    or LSTMCell with inputs embed_dim and states hidden_size.
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
# ### Exercise 11: Bidirectional encoder and bridge
#
# `BidirectionalEncoder`
# (Text follows.)


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
# ### Exercise 12: One step of the decoder
#
# `DecoderStep`
# (Text follows.)


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
# ### Exercise 13: Teacher forcing
#
# `Seq2Seq`
# (Text follows.)


# %% exercise="Seq2Seq" points=5 section="seq-teacher-forcing" forbids="RNN GRU LSTM RNNCell GRUCell LSTMCell"
class Seq2Seq(nn.Module):
    """Encoder and decoder with a fixed context, trained by teacher forcing (Bengio et al. 2015).

    Submodules: ``encoder`` = Encoder(source_size, embed_dim, hidden_size, "gru"); ``decoder`` =
    DecoderStep(target_size, embed_dim, hidden_size, hidden_size).
    """

    def __init__(
        self, source_size: int, target_size: int, embed_dim: int, hidden_size: int
    ) -> None:
        """Create ``encoder`` and ``decoder``."""
        super().__init__()
        self.encoder = Encoder(source_size, embed_dim, hidden_size, "gru")
        self.decoder = DecoderStep(target_size, embed_dim, hidden_size, hidden_size)

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

# %% [markdown]
# ## Likelihood and loss
#
# ### Exercise 14: Log-likelihood of a sequence
#
# `sequence_log_prob`
# (Text follows.)


# %% exercise="sequence_log_prob" points=2 section="seq-likelihood" forbids="cross_entropy nll_loss CrossEntropyLoss NLLLoss"
def sequence_log_prob(logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    """Log-probability of each target sequence, by the chain rule (Sutskever et al. 2014, eq. 1).

    Args:
        logits: (B, U, V); those of step t are about targets[:, t].
        targets: (B, U) int64; where the mask is False any number may stand.
        mask: (B, U) bool, True = real step; None: all are real.

    Returns:
        (B,), the sum over the real steps of log softmax(logits)[target].

    Raises:
        ValueError: if the shapes don't fit, targets is not int64, mask is not bool, or a real
            target lies outside the vocabulary.
    """
    ### BEGIN SOLUTION
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"targets must be {tuple(logits.shape[:-1])} as the logits are, "
            f"but are {tuple(targets.shape)}"
        )
    if targets.dtype != torch.int64:
        raise ValueError(f"targets must be torch.int64, but are {targets.dtype}")
    if mask is None:
        mask = torch.ones_like(targets, dtype=torch.bool)  # (B, U)
    if mask.dtype != torch.bool or mask.shape != targets.shape:
        raise ValueError(
            f"mask must be torch.bool {tuple(targets.shape)}, "
            f"but is {mask.dtype} {tuple(mask.shape)}"
        )
    # Padded targets become id 0, so that any number may stand there; their terms are dropped below.
    ids = targets.masked_fill(~mask, 0)  # (B, U)
    vocab_size = logits.shape[-1]
    if ((ids < 0) | (ids >= vocab_size)).any():
        raise ValueError(f"targets must lie between 0 and {vocab_size - 1}, but one doesn't")
    log_probs = torch.log_softmax(logits, dim=-1)  # (B, U, V)
    chosen = log_probs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)  # (B, U)
    return chosen.masked_fill(~mask, 0.0).sum(dim=-1)  # (B,)
    ### END SOLUTION


# %% check="sequence_log_prob" tags=["active-ipynb"]
# check("sequence_log_prob")

# %% [markdown]
# ### Exercise 15: The loss of a batch
#
# `sequence_loss`
# (Text follows.)


# %% exercise="sequence_loss" points=2 section="seq-likelihood" forbids="cross_entropy nll_loss CrossEntropyLoss NLLLoss"
def sequence_loss(logits: Tensor, targets: Tensor, pad: int = PAD) -> Tensor:
    """Negative log-likelihood per real token of the batch.

    Args:
        logits: (B, U, V).
        targets: (B, U) int64.
        pad: the id that marks padding; such targets don't count.

    Returns:
        A scalar: minus the log-likelihood of all real targets, divided by how many there are in the
        whole batch.

    Raises:
        ValueError: as sequence_log_prob, or if no target is real.
    """
    ### BEGIN SOLUTION
    real = targets != pad  # (B, U)
    if not real.any():
        raise ValueError(f"every target is padding ({pad}); there is nothing to learn from")
    return -sequence_log_prob(logits, targets, real).sum() / real.sum()  # scalar
    ### END SOLUTION


# %% check="sequence_loss" tags=["active-ipynb"]
# check("sequence_loss")

# %% [markdown]
# ### Question: What is maximised over what?
#
# (Text follows.)

# %% [markdown] question="search_or_learning" points=3 section="seq-objective" title="What is maximised over what?"
# **Your answer:**
#
# ### BEGIN SOLUTION
# (Text follows.)
# ### END SOLUTION

# %% [markdown]
# ## Decoding
#
# ### Exercise 16: Greedy decoding
#
# `greedy_decode`
# (Text follows.)


# %% exercise="greedy_decode" points=4 section="seq-greedy"
def greedy_decode(
    model: nn.Module, source: Tensor, source_mask: Tensor | None = None, max_length: int = 20
) -> Tensor:
    """Produce for every source the token that looks best at each step.

    Args:
        model: a translator, with ``start`` and ``step``.
        source: (B, T) int64.
        source_mask: (B, T) bool, True = real token.
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
    state = model.start(source, source_mask)
    previous = torch.full_like(source[:, 0], BOS)  # (B,)
    finished = torch.zeros_like(previous, dtype=torch.bool)  # (B,)
    ids = []
    while len(ids) < max_length and not finished.all():
        logits, state = model.step(previous, state)  # (B, V)
        previous = logits.argmax(dim=-1).masked_fill(finished, PAD)  # (B,)
        ids.append(previous)
        finished = finished | (previous == EOS)  # (B,)
    return torch.stack(ids, dim=1)  # (B, n)
    ### END SOLUTION


# %% check="greedy_decode" tags=["active-ipynb"]
# check("greedy_decode")

# %% [markdown]
# ### Exercise 17: Exhaustive search
#
# `exhaustive_search`
# (Text follows.)


# %% exercise="exhaustive_search" points=2 section="seq-beam"
def exhaustive_search(
    model: nn.Module, source: Tensor, max_length: int, source_mask: Tensor | None = None
) -> tuple[list[int], float]:
    """Find the most probable finished sequence by looking at all of them.

    Args:
        model: a translator, with ``start`` and ``step``; its logits may hold -inf.
        source: (1, T) int64.
        max_length: the most tokens of a sequence, EOS counted; at least 1.
        source_mask: (1, T) bool, True = real token.

    Returns:
        The ids, EOS included, and their log-probability.

    Raises:
        ValueError: if the batch is not 1, max_length < 1, or no sequence of positive probability
            ends in EOS within max_length tokens.
    """
    ### BEGIN SOLUTION
    if len(source) != 1:
        raise ValueError(f"search takes one source at a time, but source holds {len(source)}")
    if max_length < 1:
        raise ValueError(f"max_length must be at least 1, but is {max_length}")
    state = model.start(source, source_mask)
    # All P unfinished prefixes of one length are the rows of one batch.
    prefixes: list[list[int]] = [[]]
    log_prob = torch.zeros(1, device=source.device)  # (P,)
    previous = torch.full_like(source[:, 0], BOS)  # (P,)
    best_ids, best = [], -math.inf
    while prefixes and len(prefixes[0]) < max_length:
        logits, state = model.step(previous, state)  # (P, V)
        total = log_prob[:, None] + torch.log_softmax(logits, dim=-1)  # (P, V)
        for prefix, finished in zip(prefixes, total[:, EOS].tolist(), strict=True):
            if finished > best:
                best_ids, best = [*prefix, EOS], finished
        total[:, EOS] = -math.inf  # what has ended is not extended
        rows, previous = (total > -math.inf).nonzero(as_tuple=True)  # both (P',)
        prefixes = [
            [*prefixes[row], token]
            for row, token in zip(rows.tolist(), previous.tolist(), strict=True)
        ]
        log_prob = total[rows, previous]  # (P',)
        state = tuple(part[rows] for part in state)
    if not best_ids:
        raise ValueError(f"no sequence of at most {max_length} tokens ends with EOS")
    return best_ids, best
    ### END SOLUTION


# %% check="exhaustive_search" tags=["active-ipynb"]
# check("exhaustive_search")

# %% [markdown]
# ### Exercise 18: Beam search
#
# `beam_search`
# (Text follows.)


# %% exercise="beam_search" points=5 section="seq-beam"
def beam_search(
    model: nn.Module,
    source: Tensor,
    beam_size: int,
    max_length: int,
    source_mask: Tensor | None = None,
    alpha: float = 0.0,
) -> list[tuple[list[int], float]]:
    """Keep the beam_size best beginnings at each step (Sutskever et al. 2014, section 3.2).

    Args:
        model: a translator, with ``start`` and ``step``; its logits may hold -inf.
        source: (1, T) int64.
        beam_size: how many hypotheses are kept, finished ones counted; at least 1.
        max_length: the most tokens of a hypothesis, EOS counted; at least 1.
        source_mask: (1, T) bool, True = real token.
        alpha: how strongly the scores are corrected for length; at least 0.

    Returns:
        At most beam_size pairs (ids, score), best score first, with score = log-probability /
        len(ids) ** alpha. The ids of a finished hypothesis include EOS; those that were still live
        after max_length tokens join as they are.

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
    state = model.start(source, source_mask)
    # The K live hypotheses are the rows of one batch.
    live: list[tuple[list[int], float]] = [([], 0.0)]
    finished: list[tuple[list[int], float]] = []
    previous = torch.full_like(source[:, 0], BOS)  # (K,)
    while live and len(live[0][0]) < max_length:
        logits, state = model.step(previous, state)  # (K, V)
        log_prob = logits.new_tensor([total for _, total in live])  # (K,)
        totals = log_prob[:, None] + torch.log_softmax(logits, dim=-1)  # (K, V)
        width = min(beam_size - len(finished), totals.numel())
        best, places = totals.flatten().topk(width)
        rows, extended = [], []
        for total, place in zip(best.tolist(), places.tolist(), strict=True):
            row, token = divmod(place, totals.shape[1])
            hypothesis = ([*live[row][0], token], total)
            if total == -math.inf:
                continue
            if token == EOS:
                finished.append(hypothesis)
            else:
                rows.append(row)
                extended.append(hypothesis)
        live = extended
        previous = source.new_tensor([ids[-1] for ids, _ in live])  # (K,)
        state = tuple(part[rows] for part in state)
    scored = [(ids, total / len(ids) ** alpha) for ids, total in finished + live]
    return sorted(scored, key=lambda pair: pair[1], reverse=True)
    ### END SOLUTION


# %% check="beam_search" tags=["active-ipynb"]
# check("beam_search")

# %% [markdown]
# ## What a fixed context can hold
#
# ### Question: Why is a fixed context a bottleneck?
#
# (Text follows.)

# %% [markdown] question="why_bottleneck" points=3 section="seq-bottleneck" title="Why is a fixed context a bottleneck?"
# **Your answer:**
#
# ### BEGIN SOLUTION
# (Text follows.)
# ### END SOLUTION
