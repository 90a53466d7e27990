"""The graders of `seq2seq-recurrent`: right answers in any style earn full marks."""

from __future__ import annotations

import pytest

from autograder.sandbox.executor import Executor
from tests.autograder.unit_graders import Styles, UnitGraders, changed

UNIT = "seq2seq-recurrent"

# Right answers that look unlike the reference and unlike those in autograder/demo.
STYLES = Styles()
style = STYLES.add

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
    def __init__(self, src_vocab_size, tgt_vocab_size, embed_dim, hidden_size):
        super().__init__()
        self.encoder = Encoder(src_vocab_size, embed_dim, hidden_size, "gru")
        self.decoder = DecoderStep(tgt_vocab_size, embed_dim, hidden_size, hidden_size)

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
    "the other coin, masked_scatter",
    FORCING.replace(
        "COINS",
        "free = torch.rand(B) >= teacher_forcing_ratio\n"
        "                word = target_in[:, t + 1].masked_scatter(free, own[free])",
    ),
)
style(
    "Seq2Seq",
    "BOS from no target, with which each begins",
    FORCING.replace("target_in[:, 0], []", "torch.ones_like(target_in[:, 0]), []").replace(
        "COINS",
        "forced = torch.rand(B) < teacher_forcing_ratio\n"
        "                word = torch.where(forced, target_in[:, t + 1], own)",
    ),
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
    namespace = changed(UNIT, "import random\n" + FORCING.replace("COINS", coins))
    result = graders.run(Executor(namespace).execute, exercises=["Seq2Seq"])["Seq2Seq"]
    assert result.points < result.max_points
    assert result.misconception == name


class TestGraders(UnitGraders):
    unit = UNIT
    styles = STYLES
