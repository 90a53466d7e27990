"""Right answers to `seq2seq` by someone who keeps common parts in functions and base classes.

Read as text, cell by cell, by `make_class`. The exercises that are missing here are
answered as in the reference.
"""

import math

# %% own="imports"
from heapq import nlargest

import torch
from torch import Tensor, nn

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ["<pad>", "<bos>", "<eos>", "<unk>"]


# %% own="refusals"
def require(condition: bool, message: str) -> None:
    """Refuse bad input."""
    if not condition:
        raise ValueError(message)


# %% exercise="build_vocabulary"
def build_vocabulary(sentences, min_count=1, max_size=None):
    require(len(sentences) > 0, "give at least one sentence")
    require(min_count >= 1, "min_count must be at least 1")
    require(max_size is None or max_size >= 4, "max_size must be at least 4")
    counts: dict[str, int] = {}
    for token in (token for sentence in sentences for token in sentence):
        counts[token] = counts.get(token, 0) + 1
    ranked = sorted((-count, token) for token, count in counts.items() if count >= min_count)
    return [*SPECIALS, *(token for _, token in ranked if token not in SPECIALS)][:max_size]


# %% exercise="decode"
def decode(ids, vocabulary):
    def words():
        for i in ids:
            require(0 <= i < len(vocabulary), "an id outside the vocabulary")
            if i == EOS:
                return
            if i not in (PAD, BOS):
                yield vocabulary[i]

    return list(words())


# %% own="one row"
def padded(sequence: list[int], length: int) -> list[int]:
    """The sequence with PAD behind it."""
    require(all(type(i) is int for i in sequence), "ids must be ints")
    return list(sequence) + [PAD] * (length - len(sequence))


def tensors(sequences: list[list[int]], length: int) -> tuple[Tensor, Tensor]:
    """Ids and mask of sequences that are no longer than `length`."""
    ids = torch.tensor([padded(sequence, length) for sequence in sequences])
    mask = torch.tensor([[i < len(sequence) for i in range(length)] for sequence in sequences])
    return ids, mask


# %% exercise="pad_to_length"
def pad_to_length(sequences, length, keep="start"):
    require(len(sequences) > 0, "give at least one sequence")
    require(length >= 1, "length must be at least 1")
    require(keep in ("start", "end"), "keep must be start or end")
    for sequence in sequences:
        padded(sequence, 0)
    if keep == "start":
        return tensors([sequence[:length] for sequence in sequences], length)
    return tensors([sequence[max(0, len(sequence) - length) :] for sequence in sequences], length)


# %% exercise="pad_batch"
def pad_batch(sequences):
    longest = max([0, *map(len, sequences)])
    require(longest > 0, "give at least one id")
    return tensors(sequences, longest)


# %% exercise="sliding_windows"
def sliding_windows(sequence, length, stride):
    require(len(sequence) > 0, "give at least one id")
    require(length >= 1, "length must be at least 1")
    require(1 <= stride <= length, "stride must be between 1 and length")
    starts = [0]
    while starts[-1] + length < len(sequence):
        starts.append(starts[-1] + stride)
    return tensors([sequence[start : start + length] for start in starts], length)


# %% own="what cells have in common"
class Cell(nn.Module):
    """A recurrent cell with the parameters of so many gates."""

    gates = 1

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        rows = self.gates * hidden_size
        for name, shape in (
            ("weight_ih", (rows, input_size)),
            ("weight_hh", (rows, hidden_size)),
            ("bias_ih", (rows,)),
            ("bias_hh", (rows,)),
        ):
            self.register_parameter(name, nn.Parameter(0.1 * torch.randn(shape)))

    def parts(self, x: Tensor, h: Tensor) -> list[tuple[Tensor, Tensor]]:
        """For each gate what the input and what the state contribute."""
        require(x.shape[-1] == self.weight_ih.shape[-1], "x has another width")
        require(h.shape == (len(x), self.weight_hh.shape[-1]), "the state has another shape")
        left = torch.addmm(self.bias_ih, x, self.weight_ih.t())
        right = torch.addmm(self.bias_hh, h, self.weight_hh.t())
        width = h.shape[-1]
        return list(zip(left.split(width, -1), right.split(width, -1), strict=True))


def gate(part: tuple[Tensor, Tensor]) -> Tensor:
    return torch.sigmoid(part[0] + part[1])


# %% exercise="RNNCell"
class RNNCell(Cell):
    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        ((left, right),) = self.parts(x, h)
        return (left + right).tanh()


# %% exercise="GRUCell"
class GRUCell(Cell):
    gates = 3

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        reset, update, (left, right) = self.parts(x, h)
        candidate = torch.tanh(left + gate(reset) * right)
        keep = gate(update)
        return keep * h + (1 - keep) * candidate


# %% exercise="LSTMCell"
class LSTMCell(Cell):
    gates = 4

    def forward(self, x: Tensor, state):
        h, c = state
        require(h.shape == c.shape, "h and c have different shapes")
        write, keep, (left, right), show = self.parts(x, h)
        c = gate(keep) * c + gate(write) * torch.tanh(left + right)
        return [gate(show) * torch.tanh(c), c]


# %% own="reading in either direction"
class Reader(nn.Module):
    """An embedding, and a loop over the real tokens."""

    def __init__(self, vocab_size: int, embed_dim: int, hidden_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.width = hidden_size

    def checked(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        require(ids.dtype == torch.int64 and ids.numel() > 0, "ids must be int64, and some")
        low, high = ids.aminmax()
        require(low >= 0 and high < self.embedding.num_embeddings, "an id beyond the vocabulary")
        if mask is None:
            return torch.full(ids.shape, True)
        require(mask.dtype == torch.bool, "the mask must be bool")
        require(mask.shape == ids.shape, "the mask must have the shape of ids")
        require(bool(mask.any(-1).all()), "a row without a token")
        return mask

    def read(self, cell: nn.Module, ids: Tensor, mask: Tensor, backwards: bool = False):
        """States with 0 at padding, and what the last step left: one tensor or several."""
        x = self.embedding(ids)
        count = 2 if isinstance(cell, LSTMCell) else 1
        state = [x.new_zeros(len(ids), self.width) for _ in range(count)]
        states: dict[int, Tensor] = {}
        steps = range(ids.shape[1])
        for t in reversed(steps) if backwards else steps:
            new = cell(x[:, t], tuple(state)) if count == 2 else [cell(x[:, t], state[0])]
            real = mask[:, t].unsqueeze(-1)
            state = [old.where(~real, fresh) for old, fresh in zip(state, new, strict=True)]
            states[t] = state[0].masked_fill(~real, 0)
        return torch.stack([states[t] for t in steps], 1), state


# %% exercise="Encoder"
class Encoder(Reader):
    def __init__(self, vocab_size, embed_dim, hidden_size, cell="gru"):
        super().__init__(vocab_size, embed_dim, hidden_size)
        require(cell in ("rnn", "gru", "lstm"), "cell must be rnn, gru or lstm")
        kind = RNNCell if cell == "rnn" else GRUCell if cell == "gru" else LSTMCell
        self.cell = kind(embed_dim, hidden_size)

    def forward(self, ids, mask=None):
        states, final = self.read(self.cell, ids, self.checked(ids, mask))
        return states, (final if len(final) == 2 else final[0])


# %% exercise="BidirectionalEncoder"
class BidirectionalEncoder(Reader):
    def __init__(self, vocab_size, embed_dim, hidden_size, decoder_size):
        super().__init__(vocab_size, embed_dim, hidden_size)
        self.forward_cell = GRUCell(embed_dim, hidden_size)
        self.backward_cell = GRUCell(embed_dim, hidden_size)
        self.bridge = nn.Linear(2 * hidden_size, decoder_size)

    def forward(self, ids, mask=None):
        mask = self.checked(ids, mask)
        ahead, (last,) = self.read(self.forward_cell, ids, mask)
        back, (first,) = self.read(self.backward_cell, ids, mask, backwards=True)
        return torch.cat([ahead, back], -1), self.bridge(torch.cat([last, first], -1)).tanh()


# %% exercise="DecoderStep"
class DecoderStep(nn.Module):
    def __init__(self, vocab_size, embed_dim, hidden_size, context_size):
        super().__init__()
        self.output = nn.Linear(hidden_size + context_size, vocab_size)
        self.cell = GRUCell(embed_dim + context_size, hidden_size)
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.shape = (hidden_size, context_size)

    def forward(self, previous, state, context):
        require(previous.dtype == torch.int64, "ids must be int64")
        inside = (previous >= 0) & (previous < self.embedding.num_embeddings)
        require(bool(inside.all()), "an id beyond the vocabulary")
        for part, width in zip((state, context), self.shape, strict=True):
            require(part.shape == (len(previous), width), "state or context has another shape")

        def joined(left):
            return torch.cat([left, context], -1)

        state = self.cell(joined(self.embedding(previous)), state)
        return [self.output(joined(state)), state]


# %% own="log-probabilities"
def log_softmax(logits: Tensor) -> Tensor:
    """Logarithms of the probabilities, by hand."""
    top = logits.amax(-1, keepdim=True)
    return logits - top - (logits - top).exp().sum(-1, keepdim=True).log()


# %% exercise="sequence_log_prob"
def sequence_log_prob(logits, targets, mask=None):
    require(logits.shape[:2] == targets.shape, "shapes")
    require(targets.dtype == torch.int64, "targets must be int64")
    if mask is None:
        mask = torch.ones_like(targets).bool()
    require(mask.dtype == torch.bool and mask.shape == targets.shape, "mask")
    inside = (targets >= 0) & (targets < logits.shape[-1])
    require(bool((inside | ~mask).all()), "a target beyond the vocabulary")
    ids = targets.clamp(0, logits.shape[-1] - 1)
    chosen = torch.take_along_dim(log_softmax(logits), ids[..., None], -1)[..., 0]
    return torch.where(mask, chosen, 0.0).sum(-1)


# %% own="a translator, one row at a time"
def next_tokens(model, token: int, state) -> tuple[list[tuple[int, float]], tuple]:
    """Each possible next token with its log-probability, and the state after the step."""
    logits, state = model.step(torch.tensor([token]), state)
    log_probs = log_softmax(logits.double())[0].tolist()
    return [(i, value) for i, value in enumerate(log_probs) if value > -math.inf], state


# %% exercise="exhaustive_search"
def exhaustive_search(model, source, max_length, source_mask=None):
    require(len(source) == 1, "one source at a time")
    require(max_length >= 1, "max_length must be at least 1")
    best = ([], -math.inf)
    stack = [([], 0.0, model.start(source, source_mask))]
    while stack:
        ids, total, state = stack.pop()
        choices, state = next_tokens(model, ids[-1] if ids else BOS, state)
        for token, value in choices:
            if token == EOS and total + value > best[1]:
                best = ([*ids, EOS], total + value)
            # A beginning that is already less probable than the best can be left out.
            elif token != EOS and len(ids) < max_length - 1 and total + value > best[1]:
                stack.append(([*ids, token], total + value, state))
    require(bool(best[0]), "no sequence ends")
    return best


# %% exercise="beam_search"
def beam_search(model, source, beam_size, max_length, source_mask=None, alpha=0.0):
    require(len(source) == 1, "one source at a time")
    require(beam_size >= 1 and max_length >= 1 and alpha >= 0, "settings")
    live = [([], 0.0, model.start(source, source_mask))]
    done = []
    for _ in range(max_length):
        extensions = []
        for ids, total, state in live:
            choices, after = next_tokens(model, ids[-1] if ids else BOS, state)
            extensions += [([*ids, token], total + value, after) for token, value in choices]
        best = nlargest(beam_size - len(done), extensions, key=lambda one: one[1])
        done += [one for one in best if one[0][-1] == EOS]
        live = [one for one in best if one[0][-1] != EOS]
    return sorted(
        ([ids, total / len(ids) ** alpha] for ids, total, _ in done + live),
        key=lambda pair: -pair[1],
    )
