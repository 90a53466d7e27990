"""What the demonstration classes of `gpt` have beyond what every unit's has.

`MISTAKES` are the misconceptions that one student each makes; `FORBIDDEN` are cheats that call a
library function which the exercise asks to be written: each a right answer otherwise.
"""

from __future__ import annotations

from textwrap import dedent, indent

# Three or more a unit, each of another exercise and told apart from its neighbours.
MISTAKES = (
    "window_one_too_wide",
    "attention_unscaled",
    "ffn_relu",
    "post_second_shortcut_from_input",
    "gpt_head_untied",
    "init_residual_not_scaled",
    "count_head_twice",
    "rename_not_transposed",
    "likelihood_without_shift",
    "adamw_decay_in_gradient",
    "train_gradients_accumulate",
    "top_p_crossing_dropped",
    "generate_stop_goes_on",
    "cached_positions_restart",
    "classifier_reads_last_column",
    "prompt_trailing_space",
)


def _gelu(call: str) -> str:
    """A right `gelu` that is the expression `call`."""
    return f"def gelu(x):\n    return {call}\n"


_ATTENTION = """
class CausalSelfAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        if d_model % num_heads:
            raise ValueError("heads")
        self.num_heads, self.p = num_heads, dropout
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def lent(self):
        return {{
            "in_proj_weight": self.qkv.weight,
            "in_proj_bias": self.qkv.bias,
            "out_proj.weight": self.out_proj.weight,
            "out_proj.bias": self.out_proj.bias,
        }}

    def forward(self, x):
        {forward}
""".strip()


def _attention(body: str) -> str:
    """A right `CausalSelfAttention` whose forward is `body`."""
    return _ATTENTION.format(forward=indent(dedent(body).strip(), " " * 8).strip()) + "\n"


_BLOCK = """
class {name}(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        self.attention = CausalSelfAttention(d_model, num_heads, dropout)
        self.norm_1 = nn.LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model, dropout)
        self.norm_2 = nn.LayerNorm(d_model)
        self.sizes, self.p = (d_model, num_heads, 4 * d_model), dropout

    def forward(self, x):
        layer = nn.{layer}(
            *self.sizes, self.p, activation=gelu, batch_first=True, norm_first={norm_first}
        )
        attention, network = self.attention, self.feed_forward
        ours = {{
            "self_attn.in_proj_weight": attention.qkv.weight,
            "self_attn.in_proj_bias": attention.qkv.bias,
            "self_attn.out_proj.weight": attention.out_proj.weight,
            "self_attn.out_proj.bias": attention.out_proj.bias,
            "linear1.weight": network.w_1.weight,
            "linear1.bias": network.w_1.bias,
            "linear2.weight": network.w_2.weight,
            "linear2.bias": network.w_2.bias,
            "norm1.weight": self.norm_1.weight,
            "norm1.bias": self.norm_1.bias,
            "{last}.weight": self.norm_2.weight,
            "{last}.bias": self.norm_2.bias,
        }}
        layer.dropout.p = 0.0  # That of the inner layer, which GPT does not have.
        layer.train(self.training)
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        {call}
""".strip()

# A decoder layer's attention to an encoder adds nothing if its last projection is 0.
_DECODE = """
zero = torch.zeros(x.shape[2], x.shape[2], dtype=x.dtype)
ours["multihead_attn.out_proj.weight"], ours["multihead_attn.out_proj.bias"] = zero, zero[0]
return torch.func.functional_call(
    layer.to(x.dtype), ours, (x, x), {"tgt_mask": hidden, "tgt_is_causal": False}
)
"""


def _block(name: str, layer: str, norm_first: bool, last: str, call: str) -> str:
    """A right block that lends its parameters to a `layer` of PyTorch's."""
    call = indent(dedent(call).strip(), " " * 8).strip()
    more = {"norm_first": norm_first, "last": last, "call": call}
    return _BLOCK.format(name=name, layer=layer, **more) + "\n"


# name: (exercise, what it does, cell)
FORBIDDEN = {
    "forbidden-direct": (
        "gelu",
        "calls F.gelu",
        _gelu('nn.functional.gelu(x, approximate="tanh")'),
    ),
    "forbidden-module": ("gelu", "calls nn.GELU", _gelu('nn.GELU(approximate="tanh")(x)')),
    "forbidden-low-level": (
        "gelu",
        "calls torch.ops.aten.gelu",
        _gelu('torch.ops.aten.gelu(x, approximate="tanh")'),
    ),
    "forbidden-computed-name": (
        "gelu",
        "puts the name of gelu together at run time",
        _gelu('getattr(nn.functional, "ge" + "lu")(x, approximate="tanh")'),
    ),
    "forbidden-attention": (
        "CausalSelfAttention",
        "takes the attention out of an nn.TransformerEncoderLayer",
        _attention(
            """
            T, D = x.shape[1:]
            layer = nn.TransformerEncoderLayer(D, self.num_heads, 1, self.p, batch_first=True)
            hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
            inner = layer.self_attn.train(self.training)
            options = {"attn_mask": hidden, "need_weights": False}
            result = torch.func.functional_call(inner, self.lent(), (x, x, x), options)[0]
            return nn.functional.dropout(result, self.p, self.training)
            """
        ),
    ),
    "forbidden-alias": (
        "CausalSelfAttention",
        "takes the attention out of an nn.TransformerDecoderLayer by another name",
        "from torch.nn import TransformerDecoderLayer as Layer\n\n\n"
        + _attention(
            """
            T, D = x.shape[1:]
            inner = Layer(D, self.num_heads, 1, self.p).self_attn.train(self.training)
            hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
            y = x.transpose(0, 1)
            options = {"attn_mask": hidden}
            result = torch.func.functional_call(inner, self.lent(), (y, y, y), options)[0]
            return nn.functional.dropout(result.transpose(0, 1), self.p, self.training)
            """
        ),
    ),
    "forbidden-encoder-layer": (
        "PostNormBlock",
        "puts its parameters into an nn.TransformerEncoderLayer",
        _block(
            "PostNormBlock",
            "TransformerEncoderLayer",
            False,
            "norm2",
            "return torch.func.functional_call(layer, ours, (x, hidden))",
        ),
    ),
    "forbidden-decoder-layer": (
        "PreNormBlock",
        "puts its parameters into an nn.TransformerDecoderLayer",
        _block("PreNormBlock", "TransformerDecoderLayer", True, "norm3", _DECODE),
    ),
}
