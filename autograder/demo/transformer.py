"""What the demonstration classes of `transformer` have beyond what every unit's has.

`MISTAKES` are the misconceptions that one student each makes; `FORBIDDEN` are cheats that call a
library function which the exercise asks to be written: each a right answer otherwise.
"""

from __future__ import annotations

from textwrap import dedent, indent

# Three or more a unit, each of another exercise and told apart from its neighbours.
MISTAKES = (
    "attention_scale_d_model",
    "std_mask_padded_queries",
    "norm_sample_deviation_eps_outside",
    "connection_shortcut_normalised",
    "encoder_layer_attention_without_dropout",
    "decoder_memory_from_layer_before",
    "make_model_xavier_on_embeddings",
    "shift_swapped",
    "batches_padding_free",
    "smoothing_without_pad",
    "train_moments_forgotten",
    "greedy_stops_with_the_first",
    "beam_plain_length",
    "step_position_zero",
)

_NORM = """
class LayerNorm(nn.Module):
    def __init__(self, d_model, eps=1e-5):
        super().__init__()
        if d_model < 1:
            raise ValueError("d_model")
        self.eps = eps
        self.gamma = nn.Parameter(torch.ones(d_model))
        self.beta = nn.Parameter(torch.zeros(d_model))

    def forward(self, x):
        if x.shape[-1:] != self.gamma.shape:
            raise ValueError("width")
        return {call}
""".strip()


def _norm(call: str) -> str:
    """A right `LayerNorm` that is the expression `call`, of `self` and `x`."""
    return _NORM.format(call=call) + "\n"


_ATTENTION = """
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        if d_model % num_heads:
            raise ValueError("heads")
        self.num_heads, self.p = num_heads, dropout
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def split(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def project(self, key, value):
        return self.split(self.k_proj(key)), self.split(self.v_proj(value))

    def attend(self, query, keys, values, mask=None):
        if mask is not None and mask.dim() == 3:
            mask = mask.unsqueeze(1)
        heads = nn.functional.scaled_dot_product_attention(
            self.split(self.q_proj(query)), keys, values, mask, self.p if self.training else 0.0
        )
        return self.out_proj(heads.transpose(1, 2).flatten(2))

    def forward(self, query, key, value, mask=None):
        {forward}
""".strip()

_MASK = """
if mask is not None and mask.dim() == 3:
    mask = mask.expand(len(query), query.shape[1], -1)
    mask = mask.repeat_interleave(self.num_heads, dim=0)
if mask is not None:
    mask = ~mask
"""


def _attention(call: str) -> str:
    """A right `MultiHeadAttention` whose forward ends in `call`, which takes mask upside down."""
    body = indent((_MASK + dedent(call)).strip(), " " * 8).strip()
    return _ATTENTION.format(forward=body) + "\n"


def _loss(call: str) -> str:
    """A right `label_smoothing_loss` that is the expression `call`."""
    text = f"""
        def label_smoothing_loss(log_probs, target, smoothing=0.1, pad=PAD):
            if not 0 <= smoothing < 1 or not (target != pad).any():
                raise ValueError("nothing to learn from")
            scores, ids = log_probs[target != pad], target[target != pad]
            return {call}
        """
    return f"{dedent(text).strip()}\n"


# name: (exercise, what it does, cell)
FORBIDDEN = {
    "forbidden-direct": (
        "LayerNorm",
        "calls torch.layer_norm",
        _norm("torch.layer_norm(x, self.gamma.shape, self.gamma, self.beta, self.eps)"),
    ),
    "forbidden-native": (
        "LayerNorm",
        "calls torch.native_layer_norm",
        _norm("torch.native_layer_norm(x, self.gamma.shape, self.gamma, self.beta, self.eps)[0]"),
    ),
    "forbidden-relative": (
        "LayerNorm",
        "normalises one group of channels by F.group_norm",
        _norm(
            "nn.functional.group_norm(\n"
            "            x.reshape(-1, x.shape[-1]), 1, self.gamma, self.beta, self.eps\n"
            "        ).reshape(x.shape)"
        ),
    ),
    "forbidden-module": (
        "LayerNorm",
        "puts its parameters into an nn.LayerNorm",
        _norm(
            "torch.func.functional_call(\n"
            "            nn.LayerNorm(x.shape[-1], self.eps),\n"
            '            {"weight": self.gamma, "bias": self.beta},\n'
            "            (x,),\n"
            "        )"
        ),
    ),
    "forbidden-attention": (
        "MultiHeadAttention",
        "calls multi_head_attention_forward",
        _attention(
            """
            weights = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])
            biases = torch.cat([self.q_proj.bias, self.k_proj.bias, self.v_proj.bias])
            inputs = (x.transpose(0, 1) for x in (query, key, value))
            output, _ = nn.functional.multi_head_attention_forward(
                *inputs, query.shape[2], self.num_heads, weights, biases, None, None, False,
                self.p, self.out_proj.weight, self.out_proj.bias, self.training, None, False, mask,
            )
            return output.transpose(0, 1)
            """
        ),
    ),
    "forbidden-alias": (
        "label_smoothing_loss",
        "calls cross_entropy by another name",
        "from torch.nn.functional import cross_entropy as distance\n\n\n"
        + _loss("distance(scores, ids, label_smoothing=smoothing)"),
    ),
    "forbidden-loss-module": (
        "label_smoothing_loss",
        "calls nn.NLLLoss for the part that is not smoothed",
        _loss("(1 - smoothing) * nn.NLLLoss()(scores, ids) - smoothing * scores.mean()"),
    ),
    "forbidden-computed-name": (
        "label_smoothing_loss",
        "puts the name of cross_entropy together at run time",
        _loss(
            'getattr(nn.functional, "cross" + "_entropy")(scores, ids, label_smoothing=smoothing)'
        ),
    ),
}
