"""What the demonstration classes of `bert` have beyond what every unit's has.

`MISTAKES` are the misconceptions that one student each makes; `FORBIDDEN` are cheats that call a
library function which the exercise asks to be written: each a right answer otherwise.
"""

from __future__ import annotations

from textwrap import dedent, indent

# Three or more a unit, each of another exercise and told apart from its neighbours.
MISTAKES = (
    "input_tie_cuts_first",
    "attention_causal",
    "model_pooler_without_tanh",
    "count_table_twice",
    "mask_always",
    "words_one_fate",
    "pairs_same_document",
    "head_norm_before_gelu",
    "loss_nsp_ignores_zero",
    "step_gradients_accumulate",
    "likelihood_all_at_once",
    "span_softmax",
    "best_span_end_before_start",
    "align_every_piece",
    "crf_partition_without_end",
    "viterbi_greedy",
    "permutation_masks_query_with_self",
    "relative_attention_distances_reversed",
    "update_memory_newest_first",
    "replaced_by_argmax",
)


def _gelu(call: str) -> str:
    """A right `gelu` that is the expression `call`."""
    return f"def gelu(x):\n    return {call}\n"


_ATTENTION = """
class SelfAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        if d_model % num_heads:
            raise ValueError("heads")
        self.num_heads, self.p = num_heads, dropout
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        {forward}
""".strip()


def _attention(body: str) -> str:
    """A right `SelfAttention` whose forward is `body`."""
    return _ATTENTION.format(forward=indent(dedent(body).strip(), " " * 8).strip()) + "\n"


_LAYER = """
class BertLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout=0.0):
        super().__init__()
        self.attention = SelfAttention(d_model, num_heads, dropout)
        self.attention_norm = nn.LayerNorm(d_model, eps=1e-12)
        self.w_1 = nn.Linear(d_model, d_ff)
        self.w_2 = nn.Linear(d_ff, d_model)
        self.output_norm = nn.LayerNorm(d_model, eps=1e-12)
        self.sizes, self.p = (d_model, num_heads, d_ff), dropout

    def forward(self, x, mask=None):
        layer = nn.TransformerEncoderLayer(
            *self.sizes, self.p, activation="gelu", layer_norm_eps=1e-12, batch_first=True
        )
        a = self.attention
        projections = (a.q_proj, a.k_proj, a.v_proj)
        ours = {
            "self_attn.in_proj_weight": torch.cat([one.weight for one in projections]),
            "self_attn.in_proj_bias": torch.cat([one.bias for one in projections]),
            "self_attn.out_proj.weight": a.out_proj.weight,
            "self_attn.out_proj.bias": a.out_proj.bias,
            "linear1.weight": self.w_1.weight,
            "linear1.bias": self.w_1.bias,
            "linear2.weight": self.w_2.weight,
            "linear2.bias": self.w_2.bias,
            "norm1.weight": self.attention_norm.weight,
            "norm1.bias": self.attention_norm.bias,
            "norm2.weight": self.output_norm.weight,
            "norm2.bias": self.output_norm.bias,
        }
        layer.dropout.p = 0.0  # That of the inner layer, which BERT does not have.
        layer.train(self.training)
        padding = None if mask is None else ~mask
        return torch.func.functional_call(
            layer, ours, (x,), {"src_key_padding_mask": padding}
        )
""".strip()

_STEP = """
{before}def pretraining_step(model, ids, token_type_ids, mask, labels, is_random, rate, clip=1.0):
    model.zero_grad()
    mlm_logits, nsp_logits = model(ids, token_type_ids, mask)
    loss = pretraining_loss(mlm_logits, nsp_logits, labels, is_random)
    nsp = F.cross_entropy(nsp_logits, is_random)
    loss.backward()
    norm = {call}
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= rate * parameter.grad
    numbers = {{"loss": loss, "mlm": loss - nsp, "nsp": nsp, "norm": norm}}
    return {{name: float(value) for name, value in numbers.items()}}
""".strip()


def _step(call: str, before: str = "") -> str:
    """A right `pretraining_step` that clips by `call`; `before` are lines above it."""
    return _STEP.format(call=call, before=before) + "\n"


# name: (exercise, what it does, cell)
FORBIDDEN = {
    "forbidden-direct": ("gelu", "calls F.gelu", _gelu("F.gelu(x)")),
    "forbidden-module": ("gelu", "calls nn.GELU", _gelu("nn.GELU()(x)")),
    "forbidden-low-level": (
        "gelu",
        "calls torch._C._nn.gelu",
        _gelu("torch._C._nn.gelu(x)"),
    ),
    "forbidden-computed-name": (
        "gelu",
        "puts the name of gelu together at run time",
        _gelu('getattr(F, "ge" + "lu")(x)'),
    ),
    "forbidden-attention": (
        "SelfAttention",
        "takes the attention out of an nn.TransformerEncoderLayer",
        _attention(
            """
            layer = nn.TransformerEncoderLayer(
                x.shape[2], self.num_heads, 1, self.p, batch_first=True
            )
            projections = (self.q_proj, self.k_proj, self.v_proj)
            ours = {
                "in_proj_weight": torch.cat([one.weight for one in projections]),
                "in_proj_bias": torch.cat([one.bias for one in projections]),
                "out_proj.weight": self.out_proj.weight,
                "out_proj.bias": self.out_proj.bias,
            }
            options = {"key_padding_mask": None if mask is None else ~mask, "need_weights": False}
            attention = layer.self_attn.train(self.training)
            return torch.func.functional_call(attention, ours, (x, x, x), options)[0]
            """
        ),
    ),
    "forbidden-layer": (
        "BertLayer",
        "puts its parameters into an nn.TransformerEncoderLayer",
        _LAYER + "\n",
    ),
    "forbidden-clipping": (
        "pretraining_step",
        "calls clip_grad_norm_",
        _step("nn.utils.clip_grad_norm_(model.parameters(), clip)"),
    ),
    "forbidden-alias": (
        "pretraining_step",
        "calls clip_grad_norm_ by another name",
        _step(
            "shorten(model.parameters(), clip)",
            "from torch.nn.utils import clip_grad_norm_ as shorten\n\n\n",
        ),
    ),
}
