"""Right answers to `seq2seq` by someone who avoids loops wherever a tensor will do.

Read as text, cell by cell, by `make_class`.
"""

import math
from collections import Counter

# %% own="imports"
from itertools import chain

import torch
from torch import Tensor, einsum, nn

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ["<pad>", "<bos>", "<eos>", "<unk>"]


# %% exercise="build_vocabulary"
def build_vocabulary(
    sentences: list[list[str]], min_count: int = 1, max_size: int | None = None
) -> list[str]:
    if not sentences:
        raise ValueError("no sentences")
    if min_count < 1 or (max_size or len(SPECIALS)) < len(SPECIALS) or max_size == 0:
        raise ValueError("limits")
    counts = Counter(chain.from_iterable(sentences))
    # Sorting is stable: first by the alphabet, then by frequency.
    words = sorted(token for token in set(counts) - set(SPECIALS) if counts[token] >= min_count)
    words = sorted(words, key=counts.__getitem__, reverse=True)
    return (SPECIALS + words)[: max_size or None]


# %% exercise="encode"
def encode(
    tokens: list[str], vocabulary: list[str], add_bos: bool = False, add_eos: bool = False
) -> list[int]:
    if list(vocabulary)[:4] != SPECIALS:
        raise ValueError("specials")
    table = dict(zip(vocabulary, range(len(vocabulary)), strict=True))
    middle = map(table.get, tokens, [UNK] * len(tokens))
    return [*([BOS] if add_bos else []), *middle, *([EOS] if add_eos else [])]


# %% exercise="decode"
def decode(ids: list[int], vocabulary: list[str]) -> list[str]:
    read = ids[: ids.index(EOS)] if EOS in ids else ids
    if any(i not in range(len(vocabulary)) for i in read):
        raise ValueError("an id outside the vocabulary")
    return [vocabulary[i] for i in read if i > EOS]


# %% exercise="pad_to_length"
def pad_to_length(
    sequences: list[list[int]], length: int, keep: str = "start"
) -> tuple[Tensor, Tensor]:
    if not sequences or length < 1:
        raise ValueError("sizes")
    cut = {"start": slice(None, length), "end": slice(-length, None)}
    if keep not in cut:
        raise ValueError(f"keep={keep}")
    if {type(i) for sequence in sequences for i in sequence} - {int}:
        raise ValueError("ids are ints")
    kept = [sequence[cut[keep]] for sequence in sequences]
    lengths = torch.tensor([len(sequence) for sequence in kept])  # (B,)
    mask = torch.arange(length) < lengths[:, None]  # (B, length)
    ids = torch.zeros(mask.shape, dtype=torch.int64)  # (B, length)
    ids[mask] = torch.tensor([*chain(*kept)], dtype=torch.int64)
    return ids, mask


# %% exercise="pad_batch"
def pad_batch(sequences: list[list[int]]) -> tuple[Tensor, Tensor]:
    if not any(sequences):
        raise ValueError("nothing to pad")
    if not all(type(i) is int for sequence in sequences for i in sequence):
        raise ValueError("ids are ints")
    rows = [torch.tensor(sequence, dtype=torch.int64) for sequence in sequences]
    marks = [torch.ones(len(sequence), dtype=torch.bool) for sequence in sequences]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    return ids, nn.utils.rnn.pad_sequence(marks, batch_first=True)


# %% exercise="sliding_windows"
def sliding_windows(sequence: list[int], length: int, stride: int) -> tuple[Tensor, Tensor]:
    total = len(sequence)
    if total == 0 or length < 1 or not 0 < stride <= length:
        raise ValueError("windows")
    rest = (length - total) if total < length else (length - total) % stride
    ids = torch.tensor([*sequence, *[PAD] * rest])
    real = torch.arange(total + rest) < total
    return ids.unfold(0, length, stride), real.unfold(0, length, stride)


# %% exercise="RNNCell"
class RNNCell(nn.Module):
    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.randn(hidden_size, input_size) / input_size**0.5)
        self.weight_hh = nn.Parameter(nn.init.orthogonal_(torch.empty(hidden_size, hidden_size)))
        self.bias_ih = nn.Parameter(torch.zeros(hidden_size))
        self.bias_hh = nn.Parameter(torch.zeros(hidden_size))

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        weight = torch.cat([self.weight_ih, self.weight_hh], dim=1)  # (H, I + H)
        if (x.shape[1], h.shape[1]) != (self.weight_ih.shape[1], len(weight)) or len(x) != len(h):
            raise ValueError("sizes")
        joined = torch.cat([x, h], dim=1)  # (B, I + H)
        return (joined @ weight.mT + self.bias_ih + self.bias_hh).tanh()


# %% exercise="GRUCell"
class GRUCell(nn.Module):
    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.randn(3 * hidden_size, input_size) / input_size**0.5)
        self.weight_hh = nn.Parameter(torch.randn(3 * hidden_size, hidden_size) / hidden_size**0.5)
        self.bias_ih = nn.Parameter(torch.zeros(3 * hidden_size))
        self.bias_hh = nn.Parameter(torch.zeros(3 * hidden_size))

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        if x.shape[1] != self.weight_ih.shape[1] or h.shape != (len(x), self.weight_hh.shape[1]):
            raise ValueError("sizes")
        left = nn.functional.linear(x, self.weight_ih, self.bias_ih).unflatten(1, (3, -1))
        right = nn.functional.linear(h, self.weight_hh, self.bias_hh).unflatten(1, (3, -1))
        r, z = (left[:, :2] + right[:, :2]).sigmoid().unbind(dim=1)
        return torch.lerp(torch.tanh(left[:, 2] + r * right[:, 2]), h, z)


# %% exercise="LSTMCell"
class LSTMCell(nn.Module):
    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.randn(4 * hidden_size, input_size) / input_size**0.5)
        self.weight_hh = nn.Parameter(torch.randn(4 * hidden_size, hidden_size) / hidden_size**0.5)
        self.bias_ih = nn.Parameter(torch.zeros(4 * hidden_size))
        self.bias_hh = nn.Parameter(torch.zeros(4 * hidden_size))

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        wanted = (len(x), self.weight_hh.shape[1])
        if any(part.shape != wanted for part in state) or x.shape[1] != self.weight_ih.shape[1]:
            raise ValueError("sizes")
        total = einsum("gi,bi->gb", self.weight_ih, x) + einsum(
            "gh,bh->gb", self.weight_hh, state[0]
        )
        total = (total.T + self.bias_ih + self.bias_hh).unflatten(1, (4, -1))  # (B, 4, H)
        share = total.sigmoid()
        c = share[:, 1] * state[1] + share[:, 0] * total[:, 2].tanh()
        return share[:, 3] * c.tanh(), c


# %% exercise="Encoder"
class Encoder(nn.Module):
    def __init__(
        self, vocab_size: int, embed_dim: int, hidden_size: int, cell: str = "gru"
    ) -> None:
        super().__init__()
        try:
            kind = {"rnn": RNNCell, "gru": GRUCell, "lstm": LSTMCell}[cell]
        except KeyError:
            raise ValueError(f"unknown cell {cell}") from None
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.cell = kind(embed_dim, hidden_size)

    def forward(self, ids: Tensor, mask: Tensor | None = None):
        if ids.ndim != 2 or not ids.numel() or ids.dtype != torch.int64:
            raise ValueError("ids")
        if not ((ids >= 0) & (ids < self.vocab_size)).all():
            raise ValueError("vocabulary")
        if mask is None:
            mask = ids == ids
        if mask.dtype != torch.bool or mask.shape != ids.shape or not mask.any(1).all():
            raise ValueError("mask")
        paired = isinstance(self.cell, LSTMCell)
        x = self.embedding(ids)  # (B, T, E)
        state = x.new_zeros(2 if paired else 1, len(ids), self.hidden_size)  # (1 or 2, B, H)
        history = []
        for token, real in zip(x.unbind(1), mask.unbind(1), strict=True):
            if paired:
                new = torch.stack(self.cell(token, (state[0], state[1])))
            else:
                new = self.cell(token, state[0])[None]
            share = real[:, None].to(x.dtype)  # (B, 1)
            state = share * new + (1 - share) * state
            history.append(state[0])
        states = torch.stack(history, 1) * mask[..., None]  # (B, T, H)
        return states, (state[0], state[1]) if paired else state[0]


# %% exercise="BidirectionalEncoder"
class BidirectionalEncoder(nn.Module):
    def __init__(
        self, vocab_size: int, embed_dim: int, hidden_size: int, decoder_size: int
    ) -> None:
        super().__init__()
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.forward_cell, self.backward_cell = (GRUCell(embed_dim, hidden_size) for _ in "fb")
        self.bridge = nn.Linear(2 * hidden_size, decoder_size)

    def run(self, cell: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
        h, history = x.new_zeros(len(x), self.hidden_size), []
        for token, real in zip(x.unbind(1), mask[..., None].unbind(1), strict=True):
            h = torch.where(real, cell(token, h), h)
            history.append(h)
        return torch.stack(history, 1)  # (B, T, H)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if ids.ndim != 2 or not ids.numel() or ids.dtype != torch.int64:
            raise ValueError("ids")
        if not ((ids >= 0) & (ids < self.vocab_size)).all():
            raise ValueError("vocabulary")
        if mask is None:
            mask = torch.ones(ids.shape, dtype=torch.bool)
        if mask.dtype != torch.bool or mask.shape != ids.shape or not mask.any(1).all():
            raise ValueError("mask")
        x = self.embedding(ids)  # (B, T, E)
        ahead = self.run(self.forward_cell, x, mask)
        back = self.run(self.backward_cell, x.flip(1), mask.flip(1)).flip(1)
        ends = torch.cat([ahead[:, -1], back[:, 0]], dim=1)  # (B, 2H)
        states = torch.cat([ahead, back], dim=2)  # (B, T, 2H)
        return states * mask[..., None], self.bridge(ends).tanh()


# %% exercise="DecoderStep"
class DecoderStep(nn.Module):
    def __init__(
        self, vocab_size: int, embed_dim: int, hidden_size: int, context_size: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.cell = GRUCell(embed_dim + context_size, hidden_size)
        self.output = nn.Linear(hidden_size + context_size, vocab_size)

    def forward(self, previous: Tensor, state: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        vocab_size, width = self.output.weight.shape
        if previous.dtype != torch.int64 or not len(previous) == len(state) == len(context):
            raise ValueError("previous")
        if bool(previous.lt(0).any()) or bool(previous.ge(vocab_size).any()):
            raise ValueError("vocabulary")
        if (
            state.shape[1] != self.cell.weight_hh.shape[1]
            or state.shape[1] + context.shape[1] != width
        ):
            raise ValueError("widths")
        state = self.cell(torch.hstack([self.embedding(previous), context]), state)
        return self.output(torch.hstack([state, context])), state


# %% exercise="Seq2Seq"
class Seq2Seq(nn.Module):
    def __init__(
        self, src_vocab_size: int, tgt_vocab_size: int, embed_dim: int, hidden_size: int
    ) -> None:
        super().__init__()
        self.encoder = Encoder(src_vocab_size, embed_dim, hidden_size, "gru")
        self.decoder = DecoderStep(tgt_vocab_size, embed_dim, hidden_size, hidden_size)

    def start(self, source: Tensor, source_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        _, context = self.encoder(source, source_mask)
        return context, context

    def step(self, previous: Tensor, state: tuple[Tensor, Tensor]):
        s, context = state
        logits, s = self.decoder(previous, s, context)
        return logits, (s, context)

    def forward(
        self,
        source: Tensor,
        target_in: Tensor,
        source_mask: Tensor | None = None,
        teacher_forcing_ratio: float = 1.0,
    ) -> Tensor:
        if not 0 <= teacher_forcing_ratio <= 1:
            raise ValueError("ratio")
        if not target_in.shape[1]:
            raise ValueError("no step")
        state, logits = self.start(source, source_mask), None
        total = source.new_zeros(0)
        for reference in target_in.unbind(1):
            chosen = reference
            if logits is not None:
                forced = torch.bernoulli(torch.full(reference.shape, teacher_forcing_ratio)).bool()
                chosen = reference * forced + logits.argmax(1) * ~forced
            logits, state = self.step(chosen, state)
            total = torch.cat([total.to(logits.dtype), logits.flatten()])
        return total.view(target_in.shape[1], len(source), -1).transpose(0, 1)


# %% exercise="sequence_log_prob"
def sequence_log_prob(logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    if logits.shape[:2] != targets.shape or targets.dtype != torch.int64:
        raise ValueError("targets")
    real = torch.ones_like(targets, dtype=torch.bool) if mask is None else mask
    if real.dtype != torch.bool or real.shape != targets.shape:
        raise ValueError("mask")
    vocabulary = torch.arange(logits.shape[-1])
    hit = targets[..., None] == vocabulary  # (B, U, V)
    if not (hit.any(-1) | ~real).all():
        raise ValueError("a target outside the vocabulary")
    zero = logits.new_zeros(())
    normal = torch.where(real, logits.logsumexp(-1), zero)  # (B, U)
    return torch.where(hit & real[..., None], logits, zero).sum((1, 2)) - normal.sum(1)


# %% exercise="sequence_loss"
def sequence_loss(logits: Tensor, targets: Tensor, pad: int = PAD) -> Tensor:
    if logits.shape[:2] != targets.shape or targets.dtype != torch.int64:
        raise ValueError("targets")
    real = targets.ne(pad)
    if not real.any():
        raise ValueError("only padding")
    chosen, ids = logits[real], targets[real]  # (N, V), (N,)
    if (ids < 0).any() or (ids >= logits.shape[-1]).any():
        raise ValueError("a target outside the vocabulary")
    return -chosen.log_softmax(1)[torch.arange(len(ids)), ids].mean()


# %% exercise="greedy_decode"
def greedy_decode(
    model: nn.Module, source: Tensor, source_mask: Tensor | None = None, max_length: int = 20
) -> Tensor:
    if max_length <= 0:
        raise ValueError("max_length")
    ids = source.new_full((len(source), max_length + 1), PAD)  # (B, 1 + max_length)
    ids[:, 0] = BOS
    alive = torch.arange(len(source))  # the rows that have not ended
    state = model.start(source, source_mask)
    for t in range(max_length):
        logits, state = model.step(ids[alive, t], state)
        ids[alive, t + 1] = logits.argmax(-1)
        going = ids[alive, t + 1] != EOS
        alive, state = alive[going], tuple(part[going] for part in state)
        if not len(alive):
            return ids[:, 1 : t + 2]
    return ids[:, 1:]


# %% exercise="exhaustive_search"
def exhaustive_search(
    model: nn.Module, source: Tensor, max_length: int, source_mask: Tensor | None = None
) -> tuple[list[int], float]:
    if source.shape[0] != 1 or max_length < 1:
        raise ValueError("one source, one token at least")
    state = model.start(source, source_mask)
    prefixes = source.new_full((1, 1), BOS)  # (P, 1 + t)
    totals = torch.zeros(1, 1)  # (P, 1)
    candidates = []
    for _ in range(max_length):
        logits, state = model.step(prefixes[:, -1], state)
        scores = totals + logits.log_softmax(-1)  # (P, V)
        value, row = scores[:, EOS].max(0)
        candidates.append((value.item(), [*prefixes[row, 1:].tolist(), EOS]))
        size = scores.shape[1]
        others = torch.arange(size)[torch.arange(size) != EOS]  # (V - 1,)
        rows = torch.arange(len(prefixes)).repeat_interleave(size - 1)
        tokens = others.repeat(len(prefixes))
        prefixes = torch.cat([prefixes[rows], tokens[:, None]], dim=1)
        totals = scores[:, others].reshape(-1, 1)
        state = tuple(part[rows] for part in state)
    best = max(candidates, key=lambda pair: pair[0])
    if best[0] == -math.inf:
        raise ValueError("no sequence ends")
    return best[1], best[0]


# %% exercise="beam_search"
def beam_search(
    model: nn.Module,
    source: Tensor,
    beam_size: int,
    max_length: int,
    source_mask: Tensor | None = None,
    alpha: float = 0.0,
) -> list[tuple[list[int], float]]:
    if source.shape[0] != 1 or min(beam_size, max_length) < 1 or alpha < 0:
        raise ValueError("settings")
    state = model.start(source, source_mask)
    beams = source.new_full((1, 1), BOS)  # (K, 1 + t)
    totals = torch.zeros(1, 1)  # (K, 1)
    results, room = [], beam_size
    for _ in range(max_length):
        logits, state = model.step(beams[:, -1], state)
        flat = (totals + logits.log_softmax(-1)).flatten()  # (K * V,)
        best, order = flat.sort(descending=True)
        best, order = best[:room], order[:room]
        best, order = best[best > -math.inf], order[best > -math.inf]
        rows, tokens = order // logits.shape[1], order % logits.shape[1]
        beams = torch.cat([beams[rows], tokens[:, None]], dim=1)
        ended = tokens == EOS
        results += zip(beams[ended].tolist(), best[ended].tolist(), strict=True)
        room -= int(ended.sum())
        beams, totals = beams[~ended], best[~ended][:, None]
        state = tuple(part[rows[~ended]] for part in state)
        if not len(beams):
            break
    results += zip(beams.tolist(), totals[:, 0].tolist(), strict=True)
    scored = [(ids[1:], total / (len(ids) - 1) ** alpha) for ids, total in results]
    return sorted(scored, key=lambda pair: pair[1])[::-1]
