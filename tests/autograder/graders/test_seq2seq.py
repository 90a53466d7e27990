"""The graders of `seq2seq`: every legitimate style earns full marks, known mistakes don't."""

from __future__ import annotations

import pytest

from autograder.sandbox.executor import Executor
from autograder.units.variants import Misconception, changed_source, load_variant, misconceptions
from tests.autograder.chapter_graders import ChapterGraders, Styles, changed, failures

CHAPTER = "seq2seq"
SEARCHES = ("greedy_decode", "exhaustive_search", "beam_search")
ANCHORS = {
    f"seq-{name}"
    for name in (
        *("families", "vocabulary", "padding", "rnn", "gru", "lstm", "memory", "encoder"),
        *("bidirectional", "decoder", "objective", "likelihood", "teacher-forcing", "greedy"),
        *("beam", "bottleneck", "alignment"),
    )
}

# Right answers that look unlike the reference and unlike those in autograder/demo.
STYLES = Styles()
style = STYLES.add


style(
    "build_vocabulary",
    "most_common of a sorted text, a tuple",
    """
    def build_vocabulary(sentences, min_count=1, max_size=None):
        if not sentences or min_count < 1 or (max_size is not None and max_size < 4):
            raise ValueError("limits")
        text = sorted(token for sentence in sentences for token in sentence)
        ranked = Counter(text).most_common()
        words = [token for token, count in ranked if count >= min_count and token not in SPECIALS]
        room = len(words) if max_size is None else max_size - 4
        return tuple(SPECIALS) + tuple(words[:room])
    """,
)
style(
    "encode",
    "index and insert",
    """
    def encode(tokens, vocabulary, add_bos=False, add_eos=False):
        if tuple(vocabulary[:4]) != tuple(SPECIALS):
            raise ValueError("specials")
        ids = []
        for token in tokens:
            try:
                ids.append(vocabulary.index(token))
            except ValueError:
                ids.append(UNK)
        if add_bos:
            ids.insert(0, BOS)
        if add_eos:
            ids.append(EOS)
        return tuple(ids)
    """,
)
style(
    "decode",
    "everything checked first",
    """
    def decode(ids, vocabulary):
        if EOS in ids:
            ids = ids[: ids.index(EOS)]
        if ids and not (min(ids) >= 0 and max(ids) < len(vocabulary)):
            raise ValueError("ids")
        return [vocabulary[i] for i in ids if vocabulary[i] not in ("<pad>", "<bos>")]
    """,
)
style(
    "pad_to_length",
    "rows concatenated",
    """
    def pad_to_length(sequences, length, keep="start"):
        if len(sequences) == 0 or length <= 0 or keep not in ("start", "end"):
            raise ValueError("input")
        rows, masks = [], []
        for sequence in sequences:
            if not all(isinstance(i, int) and not isinstance(i, bool) for i in sequence):
                raise ValueError("ids")
            row = torch.tensor(sequence, dtype=torch.long)
            row = row[:length] if keep == "start" else row[max(len(row) - length, 0) :]
            gap = length - len(row)
            rows.append(torch.cat([row, torch.full((gap,), PAD)]))
            masks.append(torch.cat([torch.ones(len(row)), torch.zeros(gap)]).bool())
        return [torch.stack(rows), torch.vstack(masks)]
    """,
)
style(
    "sliding_windows",
    "range and break",
    """
    def sliding_windows(sequence, length, stride):
        if not len(sequence) or length < 1 or stride < 1 or stride > length:
            raise ValueError("input")
        windows, masks = [], []
        for start in range(0, len(sequence), stride):
            window = list(sequence[start : start + length])
            masks.append([True] * len(window) + [False] * (length - len(window)))
            windows.append(window + [PAD] * (length - len(window)))
            if start + length >= len(sequence):
                break
        return torch.LongTensor(windows), torch.BoolTensor(masks)
    """,
)
style(
    "GRUCell",
    "weights cut by hand, h + (1 - z)(n - h)",
    """
    class GRUCell(nn.Module):
        def __init__(self, input_size, hidden_size):
            super().__init__()
            self.I, self.H = input_size, hidden_size
            self.weight_ih = nn.Parameter(torch.zeros(3 * hidden_size, input_size))
            self.weight_hh = nn.Parameter(torch.zeros(3 * hidden_size, hidden_size))
            self.bias_ih = nn.Parameter(torch.zeros(3 * hidden_size))
            self.bias_hh = nn.Parameter(torch.zeros(3 * hidden_size))

        def forward(self, x, h):
            if x.size(1) != self.I or h.size(1) != self.H or x.size(0) != h.size(0):
                raise ValueError("sizes")
            def cut(k):
                rows = slice(k * self.H, (k + 1) * self.H)
                return (
                    torch.einsum("hi,bi->bh", self.weight_ih[rows], x) + self.bias_ih[rows],
                    torch.einsum("hk,bk->bh", self.weight_hh[rows], h) + self.bias_hh[rows],
                )
            (ri, rh), (zi, zh), (ni, nh) = cut(0), cut(1), cut(2)
            r = 1 / (1 + torch.exp(-(ri + rh).clamp(-60, 60)))
            z = (zi + zh).sigmoid()
            n = (ni + nh * r).tanh()
            return h + (1 - z) * (n - h)
    """,
)
style(
    "LSTMCell",
    "gates by name",
    """
    class LSTMCell(nn.Module):
        def __init__(self, input_size, hidden_size):
            super().__init__()
            shapes = [(4 * hidden_size, k) for k in (input_size, hidden_size)]
            self.weight_ih, self.weight_hh = (nn.Parameter(torch.randn(s)) for s in shapes)
            self.bias_ih, self.bias_hh = (nn.Parameter(torch.randn(s[0])) for s in shapes)

        def forward(self, x, state):
            h, c = state
            if x.shape[-1] != self.weight_ih.shape[1]:
                raise ValueError("x")
            if not h.shape == c.shape == (x.shape[0], self.weight_hh.shape[1]):
                raise ValueError("state")
            both = torch.cat([x, h], -1) @ torch.cat([self.weight_ih, self.weight_hh], 1).T
            a = both + (self.bias_ih + self.bias_hh)
            gate = dict(zip("ifgo", a.tensor_split(4, dim=1)))
            c = c * gate["f"].sigmoid()
            c += gate["i"].sigmoid() * gate["g"].tanh()
            return [gate["o"].sigmoid() * c.tanh(), c]
    """,
)
style(
    "Encoder",
    "states written into a tensor, rows that wait left out of the step",
    """
    class Encoder(nn.Module):
        def __init__(self, vocab_size, embed_dim, hidden_size, cell="gru"):
            super().__init__()
            if cell not in ("rnn", "gru", "lstm"):
                raise ValueError(cell)
            self.embedding = nn.Embedding(vocab_size, embed_dim)
            self.cell = dict(rnn=RNNCell, gru=GRUCell, lstm=LSTMCell)[cell](embed_dim, hidden_size)
            self.H = hidden_size

        def forward(self, ids, mask=None):
            if ids.dtype is not torch.long or ids.numel() == 0:
                raise ValueError("ids")
            if (ids < 0).any() or (ids >= self.embedding.num_embeddings).any():
                raise ValueError("vocabulary")
            if mask is None:
                mask = torch.ones(ids.shape).bool()
            if mask.dtype is not torch.bool or mask.shape != ids.shape:
                raise ValueError("mask")
            if (mask.sum(1) == 0).any():
                raise ValueError("empty row")
            B, T = ids.shape
            dtype = self.embedding.weight.dtype
            states = torch.zeros(B, T, self.H, dtype=dtype)
            h, c = torch.zeros(B, self.H, dtype=dtype), torch.zeros(B, self.H, dtype=dtype)
            for t in range(T):
                rows = mask[:, t].nonzero().squeeze(1)
                if len(rows) == 0:
                    continue
                x = self.embedding(ids[rows, t])
                if isinstance(self.cell, LSTMCell):
                    new, memory = self.cell(x, (h[rows], c[rows]))
                    c = c.index_copy(0, rows, memory)
                else:
                    new = self.cell(x, h[rows])
                h = h.index_copy(0, rows, new)
                states[rows, t] = new
            return [states, (h, c) if isinstance(self.cell, LSTMCell) else h]
    """,
)
style(
    "BidirectionalEncoder",
    "an Encoder's way, with a loop from the back",
    """
    class BidirectionalEncoder(nn.Module):
        def __init__(self, vocab_size, embed_dim, hidden_size, decoder_size):
            super().__init__()
            self.embedding = nn.Embedding(vocab_size, embed_dim)
            self.bridge = nn.Linear(hidden_size * 2, decoder_size)
            self.backward_cell = GRUCell(embed_dim, hidden_size)
            self.forward_cell = GRUCell(embed_dim, hidden_size)
            self.H = hidden_size

        def forward(self, ids, mask=None):
            if ids.dtype is not torch.long or min(ids.shape) == 0:
                raise ValueError("ids")
            if ids.min() < 0 or ids.max() > self.embedding.num_embeddings - 1:
                raise ValueError("vocabulary")
            if mask is None:
                mask = torch.ones_like(ids) == 1
            if mask.dtype is not torch.bool or mask.shape != ids.shape:
                raise ValueError("mask")
            if not all(row.any() for row in mask):
                raise ValueError("row")
            m = mask.unsqueeze(-1).to(self.embedding.weight.dtype)
            e = self.embedding(ids)
            B, T, _ = e.shape
            f, b = [e.new_zeros(B, self.H)], [e.new_zeros(B, self.H)]
            for t in range(T):
                f.append(m[:, t] * self.forward_cell(e[:, t], f[-1]) + (1 - m[:, t]) * f[-1])
                s = T - 1 - t
                b.insert(0, m[:, s] * self.backward_cell(e[:, s], b[0]) + (1 - m[:, s]) * b[0])
            states = torch.cat([torch.stack(f[1:], 1), torch.stack(b[:-1], 1)], -1) * m
            return states, torch.tanh(self.bridge(torch.cat([f[-1], b[0]], -1)))
    """,
)
FORCING = """
class Seq2Seq(nn.Module):
    def __init__(self, source_size, target_size, embed_dim, hidden_size):
        super().__init__()
        self.encoder = Encoder(source_size, embed_dim, hidden_size, "gru")
        self.decoder = DecoderStep(target_size, embed_dim, hidden_size, hidden_size)

    def start(self, source, source_mask=None):
        _, context = self.encoder(source, source_mask)
        return context, context

    def step(self, previous, state):
        logits, s = self.decoder(previous, *state)
        return logits, (s, state[1])

    def forward(self, source, target_in, source_mask=None, teacher_forcing_ratio=1.0):
        if not (0 <= teacher_forcing_ratio <= 1) or target_in.size(1) < 1:
            raise ValueError("ratio")
        state = self.start(source, source_mask)
        B, U = target_in.shape
        word, result = target_in[:, 0], []
        for t in range(U):
            logits, state = self.step(word, state)
            result.append(logits[:, None])
            if t + 1 < U:
                own = torch.max(logits, dim=1).indices
                COINS
        return torch.cat(result, dim=1)
"""
style(
    "Seq2Seq",
    "numbers of Python's random",
    "import random\n"
    + FORCING.replace(
        "COINS",
        "word = own.clone()\n"
        "                for b in range(B):\n"
        "                    if random.random() < teacher_forcing_ratio:\n"
        "                        word[b] = target_in[b, t + 1]",
    ),
)
style(
    "Seq2Seq",
    "the other coin, masked_scatter",
    FORCING.replace(
        "COINS",
        "free = torch.rand(B) >= teacher_forcing_ratio\n"
        "                word = target_in[:, t + 1].masked_scatter(free, own[free])",
    ),
)
style(
    "sequence_log_prob",
    "one-hot targets",
    """
    def sequence_log_prob(logits, targets, mask=None):
        if logits.dim() != 3 or targets.shape != logits.shape[:2]:
            raise ValueError("targets")
        if targets.dtype != torch.int64:
            raise ValueError("dtype")
        if mask is None:
            mask = torch.ones_like(targets, dtype=torch.bool)
        if mask.shape != targets.shape or mask.dtype != torch.bool:
            raise ValueError("mask")
        real = targets[mask]
        if ((real < 0) | (real >= logits.shape[2])).any():
            raise ValueError("vocabulary")
        safe = torch.where(mask, targets, 0)
        chosen = nn.functional.one_hot(safe, logits.shape[2]).bool() & mask[..., None]
        log_probs = nn.functional.log_softmax(logits, dim=2)
        return log_probs.where(chosen, torch.zeros_like(log_probs)).sum(dim=(1, 2))
    """,
)
style(
    "sequence_loss",
    "the mean over what is real, by rows",
    """
    def sequence_loss(logits, targets, pad=PAD):
        mask = torch.logical_not(targets == pad)
        count = int(mask.sum())
        if count == 0:
            raise ValueError("nothing real")
        rows = sequence_log_prob(logits, targets, mask)
        return sum(-row / count for row in rows)
    """,
)
style(
    "greedy_decode",
    "every column kept, cut afterwards",
    """
    def greedy_decode(model, source, source_mask=None, max_length=20):
        if max_length < 1:
            raise ValueError("max_length")
        with torch.no_grad():
            state = model.start(source, source_mask)
            word = torch.full((len(source),), BOS)
            columns = []
            for _ in range(max_length):
                logits, state = model.step(word, state)
                word = torch.max(logits, dim=-1)[1]
                columns.append(word)
        ids = torch.stack(columns, dim=1)
        ended = (ids == EOS).long().cumsum(dim=1) - (ids == EOS).long() > 0
        ids[ended] = PAD
        lengths = (~ended).sum(dim=1)
        return ids[:, : int(lengths.max())].contiguous()
    """,
)
style(
    "exhaustive_search",
    "itertools.product, every sequence scored from the start",
    """
    import itertools

    def exhaustive_search(model, source, max_length, source_mask=None):
        if len(source) != 1 or max_length < 1:
            raise ValueError("input")
        first = model.start(source, source_mask)
        vocabulary = model.step(torch.tensor([BOS]), first)[0].shape[1]
        others = [i for i in range(vocabulary) if i != EOS]
        best, best_ids = -math.inf, None
        for length in range(max_length):
            for body in itertools.product(others, repeat=length):
                state, total, previous = first, 0.0, BOS
                for token in (*body, EOS):
                    logits, state = model.step(torch.tensor([previous]), state)
                    total += float(logits.log_softmax(-1)[0, token])
                    if total == -math.inf:
                        break
                    previous = token
                if total > best:
                    best, best_ids = total, (*body, EOS)
        if best_ids is None:
            raise ValueError("no end")
        return [list(best_ids), best]
    """,
)
style(
    "beam_search",
    "the best of each hypothesis merged, states in a list",
    """
    def beam_search(model, source, beam_size, max_length, source_mask=None, alpha=0.0):
        if beam_size < 1 or max_length < 1 or alpha < 0 or source.size(0) != 1:
            raise ValueError("input")
        beam, done = [(0.0, [], model.start(source, source_mask))], []
        while beam and len(beam[0][1]) < max_length:
            found = []
            for total, ids, state in beam:
                previous = torch.tensor([ids[-1]]) if ids else torch.tensor([BOS])
                logits, after = model.step(previous, state)
                top = torch.log_softmax(logits[0], 0).topk(min(beam_size, logits.shape[1]))
                for value, token in zip(top.values, top.indices):
                    if torch.isfinite(value):
                        found.append((total + value.item(), [*ids, token.item()], after))
            found = sorted(found, key=lambda one: one[0], reverse=True)
            found = found[: beam_size - len(done)]
            done.extend(one for one in found if one[1][-1] == EOS)
            beam = [one for one in found if one[1][-1] != EOS]
        result = [(tuple(ids), total / len(ids) ** alpha) for total, ids, _ in done + beam]
        result.sort(key=lambda pair: pair[1], reverse=True)
        return tuple(result)
    """,
)

style(
    "build_vocabulary",
    "a heap, a list of its own type, an exception of its own",
    """
    import heapq

    class Vocabulary(list):
        pass

    class Refused(ValueError):
        pass

    def build_vocabulary(sentences, min_count=1, max_size=None):
        if len(sentences) == 0 or not min_count >= 1 or (max_size is not None and max_size <= 3):
            raise Refused
        counts = {}
        for token in sum(sentences, []):
            counts[token] = counts.get(token, 0) + 1
        heap = [(-n, t) for t, n in counts.items() if t not in SPECIALS and n >= min_count]
        heapq.heapify(heap)
        words = Vocabulary(SPECIALS)
        while heap and (max_size is None or len(words) < max_size):
            words.append(heapq.heappop(heap)[1])
        return words
    """,
)
style(
    "decode",
    "strings of NumPy",
    """
    import itertools
    import numpy as np

    def decode(ids, vocabulary):
        read = list(itertools.takewhile(lambda i: i != EOS, ids))
        if any(i not in range(len(vocabulary)) for i in read):
            raise ValueError
        words = np.array(vocabulary)
        return [words[i] for i in read if i > BOS]
    """,
)
style(
    "pad_to_length",
    "pad_sequence, a named tuple",
    """
    from collections import namedtuple

    Padded = namedtuple("Padded", "ids mask")

    def pad_to_length(sequences, length, keep="start"):
        cut = {"start": slice(None, length), "end": slice(-length, None)}.get(keep)
        if len(sequences) < 1 or length < 1 or cut is None:
            raise ValueError
        if {type(i) for s in sequences for i in s} - {int}:
            raise ValueError
        rows = [torch.tensor(s[cut], dtype=torch.int64) for s in sequences]
        rows.append(torch.zeros(length, dtype=torch.int64))
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)[:-1]
        lengths = torch.tensor([len(row) for row in rows[:-1]])
        return Padded(ids, torch.arange(length) < lengths[:, None])
    """,
)
style(
    "sliding_windows",
    "unfold: windows that share memory",
    """
    def sliding_windows(sequence, length, stride):
        n = len(sequence)
        if n == 0 or length < 1 or stride < 1 or stride > length:
            raise ValueError
        total = -(-max(0, n - length) // stride) * stride + length
        padded = nn.functional.pad(torch.tensor(sequence), (0, total - n))
        real = torch.arange(total) < n
        return padded.unfold(0, length, stride), real.unfold(0, length, stride)
    """,
)
style(
    "RNNCell",
    "register_parameter, in place on its own, things kept on the module",
    """
    class RNNCell(nn.Module):
        def __init__(self, input_size, hidden_size):
            super().__init__()
            self.register_parameter("bias_hh", nn.Parameter(torch.zeros(hidden_size)))
            self.register_parameter("bias_ih", nn.Parameter(torch.zeros(hidden_size)))
            for name, width in (("weight_ih", input_size), ("weight_hh", hidden_size)):
                self.register_parameter(name, nn.Parameter(torch.zeros(hidden_size, width)))
            self.history, self.notes = [], {"x": torch.ones(3)}

        @property
        def sizes(self):
            return self.weight_ih.size(1), self.weight_hh.size(1)

        def forward(self, x, h):
            if (x.size(-1), h.size(-1)) != self.sizes or x.shape[:-1] != h.shape[:-1]:
                raise ValueError
            a = torch.addmm(self.bias_ih, x, self.weight_ih.t())
            return a.addmm(h, self.weight_hh.t()).add_(self.bias_hh).tanh_()
    """,
)
style(
    "Encoder",
    "each row alone, lists of real tokens only",
    """
    class Encoder(nn.Module):
        CELLS = {"rnn": RNNCell, "gru": GRUCell, "lstm": LSTMCell}

        def __init__(self, vocab_size, embed_dim, hidden_size, cell="gru"):
            super().__init__()
            if cell not in self.CELLS:
                raise ValueError
            self.memory, self.hidden_size = cell == "lstm", hidden_size
            self.embedding = nn.Embedding(vocab_size, embed_dim)
            self.cell = self.CELLS[cell](embed_dim, hidden_size)

        def forward(self, ids, mask=None):
            if ids.dtype is not torch.int64 or 0 in ids.shape:
                raise ValueError
            if not bool(((ids >= 0) & (ids < self.embedding.num_embeddings)).all()):
                raise ValueError
            mask = torch.full(ids.shape, True) if mask is None else mask
            if mask.dtype != torch.bool or mask.shape != ids.shape or not mask.any(1).all():
                raise ValueError
            rows, ends = [], []
            for tokens, real in zip(ids, mask):
                h = torch.zeros(1, self.hidden_size).to(self.embedding.weight)
                state, row = (h, h), []
                for token, is_real in zip(tokens, real.tolist()):
                    if is_real:
                        x = self.embedding(token)[None]
                        state = self.cell(x, state) if self.memory else (self.cell(x, state[0]), h)
                    row.append(state[0] if is_real else h)
                rows.append(torch.cat(row))
                ends.append(state)
            h, c = (torch.cat(parts) for parts in zip(*ends))
            return torch.stack(rows), [h, c] if self.memory else h
    """,
)
style(
    "sequence_log_prob",
    "torch.distributions",
    """
    def sequence_log_prob(logits, targets, mask=None):
        if logits.ndim != 3 or targets.shape != logits.shape[:2] or targets.dtype != torch.int64:
            raise ValueError
        real = torch.ones(targets.shape).bool() if mask is None else mask
        if real.dtype != torch.bool or real.shape != targets.shape:
            raise ValueError
        if (((targets < 0) | (targets >= logits.shape[-1])) & real).any():
            raise ValueError
        said = torch.distributions.Categorical(logits=logits, validate_args=False)
        return torch.where(real, said.log_prob(torch.where(real, targets, 0)), 0.0).sum(1)
    """,
)
style(
    "exhaustive_search",
    "the most probable beginning first, from a heap; a float of NumPy",
    """
    import heapq
    import numpy as np

    @torch.inference_mode()
    def exhaustive_search(model, source, max_length, source_mask=None):
        if source.shape[0] != 1 or max_length < 1:
            raise ValueError
        heap, number = [(0.0, 0, [], model.start(source, source_mask))], 0
        while heap:
            cost, _, ids, state = heapq.heappop(heap)
            if ids and ids[-1] == EOS:
                return ids, np.float64(-cost)
            if len(ids) < max_length:
                logits, new = model.step(torch.tensor([ids[-1] if ids else BOS]), state)
                for token, p in enumerate(logits[0].double().log_softmax(0).numpy()):
                    if np.isfinite(p):
                        number += 1
                        heapq.heappush(heap, (cost - float(p), number, [*ids, token], new))
        raise ValueError
    """,
)
style(
    "beam_search",
    "every hypothesis read again from the start, floats of NumPy, pairs as lists",
    """
    import numpy as np

    def beam_search(model, source, beam_size, max_length, source_mask=None, alpha=0.0):
        if min(beam_size, max_length) < 1 or alpha < 0 or len(source) != 1:
            raise ValueError

        @torch.no_grad()
        def after(ids):
            state = model.start(source, source_mask)
            for token in (BOS, *ids):
                logits, state = model.step(torch.tensor([token]), state)
            return logits[0].double().log_softmax(-1).numpy()

        live, done = [((), np.float64(0))], []
        for _ in range(max_length):
            found = [((*ids, v), s + p) for ids, s in live for v, p in enumerate(after(ids))]
            found = [one for one in found if one[1] > -np.inf]
            found = sorted(found, key=lambda one: -one[1])[: beam_size - len(done)]
            done += [one for one in found if one[0][-1] == EOS]
            live = [one for one in found if one[0][-1] != EOS]
        pairs = [[list(ids), s / np.power(len(ids), alpha)] for ids, s in done + live]
        return sorted(pairs, key=lambda pair: -pair[1])
    """,
)


# Right answers -----------------------------------------------------------------------------------


BROKEN = {
    "missing": "    def __init__(self, *args):\n        raise NotImplementedError\n",
    "failing": "    def __init__(self, *args):\n        raise RuntimeError\n",
    "without parameters": "    def forward(self, *args):\n        return None\n",
}


@pytest.mark.parametrize("name", [*BROKEN, "gru_z_swapped", "encoder_mask_ignored"])
def test_a_search_does_not_answer_for_the_encoder(graders, name):
    if name in BROKEN:
        code = "class Encoder(nn.Module):\n" + BROKEN[name]
        mistake = Misconception(name, "Encoder", "", "", code=code)
    else:
        mistake = next(item for item in misconceptions(CHAPTER) if item.name == name)
    namespace = load_variant(changed_source(CHAPTER, mistake))
    assert failures(graders, namespace, [mistake.exercise]) != []
    assert failures(graders, namespace, list(SEARCHES)) == []


# Answers without work, and forbidden ones -------------------------------------------------------


# The shape of the graders, and the known mistakes ------------------------------------------------


@pytest.mark.parametrize(
    ("coins", "name"),
    [
        (
            "word = own.clone()\n"
            "                for b in range(B):\n"
            "                    if random.random() > teacher_forcing_ratio:\n"
            "                        word[b] = target_in[b, t + 1]",
            "forcing_inverted",
        ),
        (
            "forced = random.random() < teacher_forcing_ratio\n"
            "                word = target_in[:, t + 1] if forced else own",
            "forcing_per_step",
        ),
    ],
)
def test_a_mistake_with_random_numbers_of_its_own_is_still_named(graders, coins, name):
    namespace = changed(CHAPTER, "import random\n" + FORCING.replace("COINS", coins))
    result = graders.run(Executor(namespace).execute, exercises=["Seq2Seq"])["Seq2Seq"]
    assert result.points < result.max_points
    assert result.misconception == name


class TestGraders(ChapterGraders):
    chapter = CHAPTER
    styles = STYLES
    notable = (
        "vocabulary_specials_twice",
        "pad_keep_swapped",
        "pad_mask_from_ids",
        "windows_lose_the_tail",
        "rnn_without_state_bias",
        "gru_z_swapped",
        "gru_order_z_r_n",
        "gru_reset_before_product",
        "lstm_input_and_forget_swapped",
        "lstm_output_without_tanh",
        "encoder_final_after_padding",
        "encoder_final_column_of_states",
        "bidirectional_halves",
        "bidirectional_backward_in_padding",
        "step_relu_on_embedding",
        "forcing_inverted",
        "forcing_per_batch",
        "forcing_per_step",
        "forcing_per_row",
        "forcing_shifted",
        "forcing_starts_from_zeros",
        "log_prob_log_of_product",
        "loss_mean_of_means",
        "loss_padding_counted",
        "greedy_rows_go_on",
        "greedy_eos_dropped",
        "greedy_bos_included",
        "exhaustive_greedy",
        "exhaustive_product",
        "beam_state_not_reordered",
        "beam_length_with_bos",
        "beam_normalised_during_search",
    )
