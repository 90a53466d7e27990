"""Right answers to `seq2seq` by someone who writes everything as a loop.

Read as text, cell by cell, by `make_class`: `exercise` cells replace the stubs, `own`
cells are cells that the student added before the next exercise.
"""

import math

import torch
from torch import nn

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ["<pad>", "<bos>", "<eos>", "<unk>"]


# %% exercise="build_vocabulary"
def build_vocabulary(sentences, min_count=1, max_size=None):
    if len(sentences) == 0 or min_count < 1:
        raise ValueError("nothing to count, or counted less than once")
    if max_size is not None and max_size < 4:
        raise ValueError("no room for the special tokens")
    counts = {}
    for sentence in sentences:
        for token in sentence:
            if token not in SPECIALS:
                counts[token] = counts.get(token, 0) + 1
    words = []
    while counts:
        best = None
        for token in counts:
            if (
                best is None
                or counts[token] > counts[best]
                or (counts[token] == counts[best] and token < best)
            ):
                best = token
        if counts.pop(best) >= min_count:
            words.append(best)
    vocabulary = list(SPECIALS)
    for word in words:
        if max_size is None or len(vocabulary) < max_size:
            vocabulary.append(word)
    return vocabulary


# %% exercise="encode"
def encode(tokens, vocabulary, add_bos=False, add_eos=False):
    for place, special in enumerate(SPECIALS):
        if place >= len(vocabulary) or vocabulary[place] != special:
            raise ValueError(f"{special} is not at place {place}")
    ids = []
    if add_bos:
        ids.append(BOS)
    for token in tokens:
        if token in vocabulary:
            ids.append(vocabulary.index(token))
        else:
            ids.append(UNK)
    if add_eos:
        ids.append(EOS)
    return ids


# %% exercise="decode"
def decode(ids, vocabulary):
    tokens = []
    for number in ids:
        if number < 0 or number >= len(vocabulary):
            raise ValueError(number)
        if number == EOS:
            return tokens
        if number in (PAD, BOS):
            continue
        tokens.append(vocabulary[number])
    return tokens


# %% exercise="pad_to_length"
def pad_to_length(sequences, length, keep="start"):
    if not sequences or length < 1 or keep not in {"start", "end"}:
        raise ValueError("no sequences, no length, or an unknown part to keep")
    rows, masks = [], []
    for sequence in sequences:
        row, mask = [], []
        first = 0 if keep == "start" else max(0, len(sequence) - length)
        for number in sequence:
            if isinstance(number, bool) or not isinstance(number, int):
                raise ValueError(f"{number!r} is no id")
        for place in range(first, first + length):
            real = place < len(sequence)
            row.append(sequence[place] if real else PAD)
            mask.append(real)
        rows.append(row)
        masks.append(mask)
    return torch.tensor(rows), torch.tensor(masks)


# %% exercise="pad_batch"
def pad_batch(sequences):
    longest = 0
    for sequence in sequences:
        longest = max(longest, len(sequence))
    if longest == 0:
        raise ValueError("no ids at all")
    return pad_to_length(sequences, longest)


# %% exercise="sliding_windows"
def sliding_windows(sequence, length, stride):
    if not sequence or length < 1 or stride < 1 or stride > length:
        raise ValueError("an empty sequence, or windows that do not cover it")
    windows, start = [], 0
    while True:
        windows.append(sequence[start : start + length])
        if start + length >= len(sequence):
            return pad_to_length(windows, length)
        start += stride


# %% own="one number at a time"
def cell_parameters(module, gates, input_size, hidden_size):
    """The four parameters of a cell with that many gates."""
    rows = gates * hidden_size
    module.input_size, module.hidden_size = input_size, hidden_size
    module.weight_ih = nn.Parameter(0.1 * torch.randn(rows, input_size))
    module.weight_hh = nn.Parameter(0.1 * torch.randn(rows, hidden_size))
    module.bias_ih = nn.Parameter(torch.zeros(rows))
    module.bias_hh = nn.Parameter(torch.zeros(rows))


def check_sizes(module, x, *states):
    for state in states:
        if len(state) != len(x) or state.shape[1] != module.hidden_size:
            raise ValueError("a state of another size")
    if x.shape[1] != module.input_size:
        raise ValueError("an input of another width")


def unit(weight, bias, vector, row):
    """One number: a row of the weight times a vector, plus the bias."""
    total = bias[row]
    for column in range(len(vector)):
        total = total + weight[row, column] * vector[column]
    return total


# %% exercise="RNNCell"
class RNNCell(nn.Module):
    def __init__(self, input_size, hidden_size):
        super().__init__()
        cell_parameters(self, 1, input_size, hidden_size)

    def forward(self, x, h):
        check_sizes(self, x, h)
        rows = []
        for b in range(len(x)):
            row = []
            for k in range(self.hidden_size):
                left = unit(self.weight_ih, self.bias_ih, x[b], k)
                row.append(torch.tanh(left + unit(self.weight_hh, self.bias_hh, h[b], k)))
            rows.append(torch.stack(row))
        return torch.stack(rows)


# %% exercise="GRUCell"
class GRUCell(nn.Module):
    def __init__(self, input_size, hidden_size):
        super().__init__()
        cell_parameters(self, 3, input_size, hidden_size)

    def forward(self, x, h):
        check_sizes(self, x, h)
        size = self.hidden_size
        rows = []
        for b in range(len(x)):
            left = self.weight_ih.mv(x[b]) + self.bias_ih
            right = self.weight_hh.mv(h[b]) + self.bias_hh
            row = []
            for k in range(size):
                r = torch.sigmoid(left[k] + right[k])
                z = torch.sigmoid(left[size + k] + right[size + k])
                n = torch.tanh(left[2 * size + k] + r * right[2 * size + k])
                row.append(n + z * (h[b, k] - n))
            rows.append(torch.stack(row))
        return torch.stack(rows)


# %% exercise="LSTMCell"
class LSTMCell(nn.Module):
    def __init__(self, input_size, hidden_size):
        super().__init__()
        cell_parameters(self, 4, input_size, hidden_size)

    def forward(self, x, state):
        h, c = state
        check_sizes(self, x, h, c)
        size = self.hidden_size
        outputs, memories = [], []
        for b in range(len(x)):
            total = self.weight_ih.mv(x[b]) + self.weight_hh.mv(h[b])
            total = total + self.bias_ih + self.bias_hh
            output, memory = [], []
            for k in range(size):
                i, f = torch.sigmoid(total[k]), torch.sigmoid(total[size + k])
                g, o = torch.tanh(total[2 * size + k]), torch.sigmoid(total[3 * size + k])
                memory.append(f * c[b, k] + i * g)
                output.append(o * torch.tanh(memory[-1]))
            outputs.append(torch.stack(output))
            memories.append(torch.stack(memory))
        return torch.stack(outputs), torch.stack(memories)


# %% own="what both encoders refuse"
def real_places(ids, mask, vocab_size):
    """For each row the places of its real tokens."""
    if ids.dim() != 2 or 0 in ids.shape or ids.dtype != torch.int64:
        raise ValueError("ids must be int64, and some")
    for number in ids.flatten().tolist():
        if number < 0 or number >= vocab_size:
            raise ValueError(f"{number} is outside the vocabulary")
    if mask is None:
        return [list(range(ids.shape[1])) for _ in ids]
    if mask.dtype != torch.bool or mask.shape != ids.shape:
        raise ValueError("the mask does not fit")
    places = [[t for t in range(ids.shape[1]) if row[t]] for row in mask]
    if [] in places:
        raise ValueError("a row of nothing but padding")
    return places


# %% exercise="Encoder"
class Encoder(nn.Module):
    def __init__(self, vocab_size, embed_dim, hidden_size, cell="gru"):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        if cell == "rnn":
            self.cell = RNNCell(embed_dim, hidden_size)
        elif cell == "gru":
            self.cell = GRUCell(embed_dim, hidden_size)
        elif cell == "lstm":
            self.cell = LSTMCell(embed_dim, hidden_size)
        else:
            raise ValueError(cell)
        self.hidden_size, self.lstm = hidden_size, cell == "lstm"

    def forward(self, ids, mask=None):
        places = real_places(ids, mask, self.embedding.num_embeddings)
        nothing = torch.zeros(1, self.hidden_size, dtype=self.embedding.weight.dtype)
        every, finals = [], []
        for b in range(len(ids)):
            state = (nothing, nothing) if self.lstm else nothing
            row = [nothing[0]] * ids.shape[1]
            for t in places[b]:
                state = self.cell(self.embedding(ids[b, t : t + 1]), state)
                row[t] = (state[0] if self.lstm else state)[0]
            every.append(torch.stack(row))
            finals.append(state)
        if self.lstm:
            final = (torch.cat([h for h, _ in finals]), torch.cat([c for _, c in finals]))
        else:
            final = torch.cat(finals)
        return torch.stack(every), final


# %% exercise="BidirectionalEncoder"
class BidirectionalEncoder(nn.Module):
    def __init__(self, vocab_size, embed_dim, hidden_size, decoder_size):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.forward_cell = GRUCell(embed_dim, hidden_size)
        self.backward_cell = GRUCell(embed_dim, hidden_size)
        self.bridge = nn.Linear(2 * hidden_size, decoder_size)
        self.hidden_size = hidden_size

    def forward(self, ids, mask=None):
        places = real_places(ids, mask, self.embedding.num_embeddings)
        nothing = torch.zeros(1, self.hidden_size, dtype=self.embedding.weight.dtype)
        every, ends = [], []
        for b in range(len(ids)):
            rows = []
            for cell, order in (
                (self.forward_cell, places[b]),
                (self.backward_cell, places[b][::-1]),
            ):
                state, row = nothing, [nothing[0]] * ids.shape[1]
                for t in order:
                    state = cell(self.embedding(ids[b, t : t + 1]), state)
                    row[t] = state[0]
                rows.append(torch.stack(row))
                ends.append(state[0])
            every.append(torch.cat(rows, dim=1))
        both = [torch.cat([ends[2 * b], ends[2 * b + 1]]) for b in range(len(ids))]
        return torch.stack(every), torch.stack([self.bridge(row).tanh() for row in both])


# %% exercise="DecoderStep"
class DecoderStep(nn.Module):
    def __init__(self, vocab_size, embed_dim, hidden_size, context_size):
        super().__init__()
        self.sizes = vocab_size, hidden_size, context_size
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.cell = GRUCell(embed_dim + context_size, hidden_size)
        self.output = nn.Linear(hidden_size + context_size, vocab_size)

    def forward(self, previous, state, context):
        vocab_size, hidden_size, context_size = self.sizes
        if previous.dtype != torch.int64:
            raise ValueError("ids must be int64")
        for number in previous.tolist():
            if not 0 <= number < vocab_size:
                raise ValueError(number)
        if tuple(state.shape) != (len(previous), hidden_size):
            raise ValueError("state")
        if tuple(context.shape) != (len(previous), context_size):
            raise ValueError("context")
        logits, states = [], []
        for b in range(len(previous)):
            word = self.embedding(previous[b])
            new = self.cell(torch.cat([word, context[b]])[None], state[b][None])[0]
            logits.append(self.output(torch.cat([new, context[b]])))
            states.append(new)
        return torch.stack(logits), torch.stack(states)


# %% exercise="Seq2Seq"
class Seq2Seq(nn.Module):
    def __init__(self, src_vocab_size, tgt_vocab_size, embed_dim, hidden_size):
        super().__init__()
        self.encoder = Encoder(src_vocab_size, embed_dim, hidden_size, "gru")
        self.decoder = DecoderStep(tgt_vocab_size, embed_dim, hidden_size, hidden_size)

    def start(self, source, source_mask=None):
        _, context = self.encoder(source, source_mask)
        return context, context

    def step(self, previous, state):
        s, context = state
        logits, s = self.decoder(previous, s, context)
        return logits, (s, context)

    def forward(self, source, target_in, source_mask=None, teacher_forcing_ratio=1.0):
        if teacher_forcing_ratio < 0 or teacher_forcing_ratio > 1 or target_in.shape[1] == 0:
            raise ValueError("a ratio outside [0, 1], or no step")
        state = self.start(source, source_mask)
        result = []
        for t in range(target_in.shape[1]):
            tokens = []
            for b in range(len(source)):
                if t == 0 or torch.rand(1).item() < teacher_forcing_ratio:
                    tokens.append(target_in[b, t].item())
                else:
                    tokens.append(result[-1][b].argmax().item())
            logits, state = self.step(torch.tensor(tokens), state)
            result.append(logits)
        return torch.stack(result, dim=1)


# %% exercise="sequence_log_prob"
def sequence_log_prob(logits, targets, mask=None):
    batch, steps, vocabulary = logits.shape
    if tuple(targets.shape) != (batch, steps) or targets.dtype != torch.int64:
        raise ValueError("targets")
    if mask is not None and (mask.dtype != torch.bool or mask.shape != targets.shape):
        raise ValueError("mask")
    totals = []
    for b in range(batch):
        total = logits.new_zeros(())
        for t in range(steps):
            if mask is not None and not mask[b, t]:
                continue
            target = targets[b, t].item()
            if target < 0 or target >= vocabulary:
                raise ValueError(target)
            total = total + logits[b, t, target] - torch.logsumexp(logits[b, t], dim=0)
        totals.append(total)
    return torch.stack(totals)


# %% exercise="sequence_loss"
def sequence_loss(logits, targets, pad=PAD):
    mask = torch.tensor([[number != pad for number in row] for row in targets.tolist()])
    count = 0
    for row in mask.tolist():
        count += sum(row)
    if count == 0:
        raise ValueError("nothing but padding")
    total = 0
    for row in sequence_log_prob(logits, targets, mask):
        total = total - row
    return total / count


# %% exercise="greedy_decode"
def greedy_decode(model, source, source_mask=None, max_length=20):
    if max_length < 1:
        raise ValueError(max_length)
    rows = []
    for b in range(len(source)):
        mask = None if source_mask is None else source_mask[b : b + 1]
        state = model.start(source[b : b + 1], mask)
        row, token = [], BOS
        while len(row) < max_length and token != EOS:
            logits, state = model.step(torch.tensor([token]), state)
            token = logits[0].argmax().item()
            row.append(token)
        rows.append(row)
    longest = max(len(row) for row in rows)
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


# %% exercise="exhaustive_search"
def exhaustive_search(model, source, max_length, source_mask=None):
    if len(source) != 1 or max_length < 1:
        raise ValueError("one source, and at least one token")
    found = []

    def look(ids, total, state):
        logits, state = model.step(torch.tensor([ids[-1] if ids else BOS]), state)
        log_probs = torch.log_softmax(logits[0], dim=0).tolist()
        for token, log_prob in enumerate(log_probs):
            if log_prob == -math.inf:
                continue
            if token == EOS:
                found.append((total + log_prob, [*ids, EOS]))
            elif len(ids) + 1 < max_length:
                look([*ids, token], total + log_prob, state)

    look([], 0.0, model.start(source, source_mask))
    if not found:
        raise ValueError("nothing ends")
    total, ids = max(found)
    return ids, total


# %% exercise="beam_search"
def beam_search(model, source, beam_size, max_length, source_mask=None, alpha=0.0):
    if len(source) != 1 or beam_size < 1 or max_length < 1 or alpha < 0:
        raise ValueError("one source, a beam, a length, and no negative alpha")
    live = [([], 0.0, model.start(source, source_mask))]
    finished = []
    for _ in range(max_length):
        extensions = []
        for ids, total, state in live:
            logits, new = model.step(torch.tensor([ids[-1] if ids else BOS]), state)
            for token, log_prob in enumerate(torch.log_softmax(logits[0], dim=0).tolist()):
                if log_prob > -math.inf:
                    extensions.append(([*ids, token], total + log_prob, new))
        extensions.sort(key=lambda one: -one[1])
        live_next = []
        for ids, total, state in extensions[: beam_size - len(finished)]:
            live_next.append((ids, total, state))
        live = [one for one in live_next if one[0][-1] != EOS]
        finished += [one for one in live_next if one[0][-1] == EOS]
    pairs = [(ids, total / len(ids) ** alpha) for ids, total, _ in finished + live]
    pairs.sort(key=lambda one: -one[1])
    return pairs
