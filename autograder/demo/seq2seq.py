"""What the demonstration classes of `seq2seq` have beyond what every unit's has.

`MISTAKES` are the misconceptions that one student each makes; `FORBIDDEN` are cheats that call a
library function which the exercise asks to be written: each a right answer otherwise.
"""

from __future__ import annotations

from textwrap import dedent, indent

# Three or more a unit, each of another exercise and told apart from its neighbours.
MISTAKES = (
    "vocabulary_ties_by_appearance",
    "decode_past_eos",
    "windows_lose_the_tail",
    "gru_reset_before_product",
    "encoder_final_after_padding",
    "bidirectional_halves",
    "forcing_per_step",
    "loss_mean_of_means",
    "greedy_rows_go_on",
    "beam_state_not_reordered",
)

_PARAMETERS = """
def __init__(self, input_size, hidden_size):
    super().__init__()
    rows = {gates} * hidden_size
    self.weight_ih = nn.Parameter(0.1 * torch.randn(rows, input_size))
    self.weight_hh = nn.Parameter(0.1 * torch.randn(rows, hidden_size))
    self.bias_ih = nn.Parameter(torch.zeros(rows))
    self.bias_hh = nn.Parameter(torch.zeros(rows))

@property
def parts(self):
    return self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh

def check(self, x, *state):
    wanted = len(x), self.weight_hh.shape[1]
    if x.shape[1] != self.weight_ih.shape[1] or any(part.shape != wanted for part in state):
        raise ValueError("sizes")
"""


def _cell(name: str, gates: int, call: str, before: str = "") -> str:
    """A right cell whose step is the expression `call`, of `self`, `x` and `h`."""
    body = indent(_PARAMETERS.format(gates=gates).strip(), "    ").strip()
    states = "*h" if name == "LSTMCell" else "h"
    text = f"class {name}(nn.Module):\n    {body}\n\n    def forward(self, x, h):\n"
    text += f"        self.check(x, {states})\n        return {call}\n"
    return f"{dedent(before).strip()}\n\n\n{text}".lstrip()


def _loss(before: str, call: str) -> str:
    """A right `sequence_loss` that is the expression `call`."""
    text = f"""
        def sequence_loss(logits, targets, pad=PAD):
            real = targets != pad
            if not real.any() or targets.dtype != torch.int64 or logits.shape[:-1] != targets.shape:
                raise ValueError("nothing to learn from")
            if ((targets < 0) | (targets >= logits.shape[-1]))[real].any():
                raise ValueError("a target outside the vocabulary")
            scores, ids = logits[real], targets[real]
            return {call}
        """
    return f"{dedent(before).strip()}\n\n\n{dedent(text).strip()}\n".lstrip()


_ENCODER = """
class Encoder(nn.Module):
    def __init__(self, vocab_size, embed_dim, hidden_size, cell="gru"):
        super().__init__()
        kinds = {"rnn": RNNCell, "gru": GRUCell, "lstm": LSTMCell}
        if cell not in kinds:
            raise ValueError(cell)
        layers = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.cell = kinds[cell](embed_dim, hidden_size)
        self.layer = [layers[cell](embed_dim, hidden_size, batch_first=True)]

    def forward(self, ids, mask=None):
        if ids.dtype != torch.int64 or ids.numel() == 0:
            raise ValueError("ids")
        if ids.min() < 0 or ids.max() >= self.embedding.num_embeddings:
            raise ValueError("vocabulary")
        mask = torch.ones_like(ids).bool() if mask is None else mask
        if mask.dtype != torch.bool or mask.shape != ids.shape or not mask.any(1).all():
            raise ValueError("mask")
        layer, lengths = self.layer[0], mask.sum(1)
        weights = {f"{name}_l0": value for name, value in self.cell.named_parameters()}
        place = torch.argsort(~mask, dim=1, stable=True)  # real tokens first
        back = torch.argsort(place, dim=1)
        x = self.embedding(ids.gather(1, place))
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        states, final = torch.func.functional_call(layer, weights, (packed,))
        states, _ = nn.utils.rnn.pad_packed_sequence(
            states, batch_first=True, total_length=ids.shape[1]
        )
        states = states.gather(1, back.unsqueeze(-1).expand_as(states))
        return states, (final[0][0], final[1][0]) if isinstance(final, tuple) else final[0]
""".strip()


# name: (exercise, what it does, cell)
FORBIDDEN = {
    "forbidden-direct": (
        "GRUCell",
        "calls torch.gru_cell",
        _cell("GRUCell", 3, "torch.gru_cell(x, h, *self.parts)"),
    ),
    "forbidden-module": (
        "LSTMCell",
        "puts its parameters into an nn.LSTMCell",
        _cell(
            "LSTMCell",
            4,
            "torch.func.functional_call(\n"
            "            nn.LSTMCell(x.shape[1], self.weight_hh.shape[1]),\n"
            "            dict(self.named_parameters()),\n"
            "            (x, tuple(h)),\n"
            "        )",
        ),
    ),
    "forbidden-layer": (
        "Encoder",
        "runs nn.GRU, nn.LSTM or nn.RNN over the packed sequences",
        _ENCODER,
    ),
    "forbidden-alias": (
        "sequence_loss",
        "imports cross_entropy under another name",
        _loss(
            "from torch.nn.functional import cross_entropy as distance",
            "distance(scores, ids)",
        ),
    ),
    "forbidden-loss-module": (
        "sequence_loss",
        "calls nn.NLLLoss on log-probabilities",
        _loss("", "nn.NLLLoss()(scores.log_softmax(-1), ids)"),
    ),
    "forbidden-computed-name": (
        "sequence_loss",
        "puts the name of cross_entropy together at run time",
        _loss("", 'getattr(torch.nn.functional, "cross" + "_entropy")(scores, ids)'),
    ),
}
