"""The course's own parts, for what you have not written before seq2seq-decoding.

From solutions/seq2seq/text.py and solutions/seq2seq/recurrent.py.
seq2seq-mine.ipynb takes them, and yours wherever there is one.
"""

# What each unit asks for.
EXERCISES = {
    "seq2seq-text": [
        "build_vocabulary",
        "encode",
        "decode",
        "pad_to_length",
        "pad_batch",
        "sliding_windows",
    ],
    "seq2seq-recurrent": [
        "RNNCell",
        "GRUCell",
        "LSTMCell",
        "Encoder",
        "BidirectionalEncoder",
        "DecoderStep",
        "Seq2Seq",
    ],
    "seq2seq-decoding": [
        "sequence_log_prob",
        "sequence_loss",
        "greedy_decode",
        "exhaustive_search",
        "beam_search",
    ],
}

import math
from collections import Counter

import torch
from torch import Tensor, nn


PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ["<pad>", "<bos>", "<eos>", "<unk>"]


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
        The ids; a token that is not in the vocabulary becomes UNK.

    Raises:
        ValueError: if the vocabulary does not begin with SPECIALS.
    """
    if vocabulary[: len(SPECIALS)] != SPECIALS:
        raise ValueError(f"the vocabulary must begin with {SPECIALS}")
    position = {token: i for i, token in enumerate(vocabulary)}
    ids = [position.get(token, UNK) for token in tokens]
    return [BOS] * add_bos + ids + [EOS] * add_eos


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
    tokens = []
    for i in ids:
        if not 0 <= i < len(vocabulary):
            raise ValueError(f"id {i} is outside the vocabulary of {len(vocabulary)} tokens")
        if i == EOS:
            break
        if i not in (PAD, BOS):
            tokens.append(vocabulary[i])
    return tokens


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
    longest = max((len(sequence) for sequence in sequences), default=0)
    if longest == 0:
        raise ValueError("there is nothing to pad; give at least one sequence that is not empty")
    return pad_to_length(sequences, longest)  # (B, longest), (B, longest)


class RNNCell(nn.Module):
    """Plain recurrent cell, h' = tanh(W_ih x + b_ih + W_hh h + b_hh) (Elman 1990).

    Parameters: ``weight_ih`` (H, I), ``weight_hh`` (H, H), ``bias_ih`` (H,), ``bias_hh`` (H,).
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        """Create the four parameters for inputs of width I and states of width H."""
        super().__init__()
        bound = 1.0 / math.sqrt(hidden_size)
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size).uniform_(-bound, bound))
        self.weight_hh = nn.Parameter(torch.empty(hidden_size, hidden_size).uniform_(-bound, bound))
        self.bias_ih = nn.Parameter(torch.empty(hidden_size).uniform_(-bound, bound))
        self.bias_hh = nn.Parameter(torch.empty(hidden_size).uniform_(-bound, bound))

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
        hidden_size, input_size = self.weight_ih.shape
        if x.shape[-1] != input_size:
            raise ValueError(f"x must be {input_size} wide, but is {x.shape[-1]} wide")
        if h.shape != (x.shape[0], hidden_size):
            raise ValueError(f"h must be {(x.shape[0], hidden_size)}, but is {tuple(h.shape)}")
        from_input = x @ self.weight_ih.T + self.bias_ih  # (B, H)
        from_state = h @ self.weight_hh.T + self.bias_hh  # (B, H)
        return torch.tanh(from_input + from_state)  # (B, H)


class GRUCell(nn.Module):
    """Gated recurrent unit (Cho et al. 2014, section 2.3), as PyTorch computes it.

    Parameters: ``weight_ih`` (3H, I), ``weight_hh`` (3H, H), ``bias_ih`` (3H,), ``bias_hh`` (3H,);
    in each, the rows of r come first, then those of z, then those of n.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        """Create the four parameters for inputs of width I and states of width H."""
        super().__init__()
        rows, bound = 3 * hidden_size, 1.0 / math.sqrt(hidden_size)
        self.weight_ih = nn.Parameter(torch.empty(rows, input_size).uniform_(-bound, bound))
        self.weight_hh = nn.Parameter(torch.empty(rows, hidden_size).uniform_(-bound, bound))
        self.bias_ih = nn.Parameter(torch.empty(rows).uniform_(-bound, bound))
        self.bias_hh = nn.Parameter(torch.empty(rows).uniform_(-bound, bound))

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


class LSTMCell(nn.Module):
    """Long short-term memory (Hochreiter and Schmidhuber 1997; forget gate: Gers et al. 2000).

    Parameters: ``weight_ih`` (4H, I), ``weight_hh`` (4H, H), ``bias_ih`` (4H,), ``bias_hh`` (4H,);
    in each, the rows of i come first, then those of f, of g and of o.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        """Create the four parameters for inputs of width I and states of width H."""
        super().__init__()
        rows, bound = 4 * hidden_size, 1.0 / math.sqrt(hidden_size)
        self.weight_ih = nn.Parameter(torch.empty(rows, input_size).uniform_(-bound, bound))
        self.weight_hh = nn.Parameter(torch.empty(rows, hidden_size).uniform_(-bound, bound))
        self.bias_ih = nn.Parameter(torch.empty(rows).uniform_(-bound, bound))
        self.bias_hh = nn.Parameter(torch.empty(rows).uniform_(-bound, bound))

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
        cells = {"rnn": RNNCell, "gru": GRUCell, "lstm": LSTMCell}
        if cell not in cells:
            raise ValueError(f'cell must be "rnn", "gru" or "lstm", but is {cell!r}')
        self.kind = cell
        self.hidden_size = hidden_size
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.cell = cells[cell](embed_dim, hidden_size)

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
        self.hidden_size = hidden_size
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.forward_cell = GRUCell(embed_dim, hidden_size)
        self.backward_cell = GRUCell(embed_dim, hidden_size)
        self.bridge = nn.Linear(2 * hidden_size, decoder_size)

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
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.cell = GRUCell(embed_dim + context_size, hidden_size)
        self.output = nn.Linear(hidden_size + context_size, vocab_size)
        self.hidden_size, self.context_size = hidden_size, context_size

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
