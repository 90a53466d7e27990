"""What the demonstration classes of `attention` have beyond what every unit's has.

`MISTAKES` are the misconceptions that one student each makes; `FORBIDDEN` are cheats that call a
library function which the exercise asks to be written: each a right answer otherwise.
"""

from __future__ import annotations

from textwrap import dedent, indent

# Three or more a unit, each of another exercise and told apart from its neighbours.
MISTAKES = (
    "attention_scaled_by_d_k",
    "softmax_overflow",
    "causal_without_diagonal",
    "additive_shared_projection",
    "dropout_without_rescale",
    "padding_one_too_many",
    "decoder_mask_padding_only",
    "self_not_scaled",
    "masked_self_sees_future",
    "context_averaged",
    "split_by_view",
    "heads_mask_per_head",
    "fused_not_interleaved",
    "to_fused_order_k_q_v",
    "cross_keys_from_decoder",
)

_MASKED = """
    if mask is not None:
        if mask.dtype != torch.bool:
            raise ValueError("mask must be bool")
        try:
            mask = mask.broadcast_to(scores.shape)
        except RuntimeError:
            raise ValueError("mask does not fit") from None
        scores = scores.masked_fill(~mask, float("-inf"))
    dead = (scores == float("-inf")).all(dim, keepdim=True)
    scores = scores.masked_fill(dead, 0.0)
"""


def _softmax(before: str, call: str) -> str:
    """A right `masked_softmax` whose normalisation is the expression `call`."""
    head = "def masked_softmax(scores, mask=None, dim=-1):"
    tail = f"    return ({call}).masked_fill(dead, 0.0)\n"
    return f"{dedent(before).strip()}\n\n\n{head}{_MASKED}{tail}".lstrip()


def _attention(before: str, call: str) -> str:
    """A right `scaled_dot_product_attention` whose output, without dropout, is `call`."""
    return dedent(before).strip() + dedent(
        f"""


        def scaled_dot_product_attention(
            query, key, value, mask=None, dropout=0.0, training=False
        ):
            if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
                raise ValueError("shapes")
            scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
            attn_weights = masked_softmax(scores, mask)
            if training and dropout:
                return attention_dropout(attn_weights, dropout, training) @ value, attn_weights
            if mask is None:
                mask = torch.ones_like(scores, dtype=torch.bool)
            output = {call}
            return output.nan_to_num(0.0) * mask.any(-1, keepdim=True), attn_weights
        """
    )


_HEADS = """
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        if d_model % num_heads:
            raise ValueError("heads")
        self.h, self.p = num_heads, dropout
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, query, key, value, mask=None):
        inner = nn.MultiheadAttention(query.shape[-1], self.h, batch_first=True).to(query.dtype)
        del inner.in_proj_weight, inner.in_proj_bias
        layers = (self.q_proj, self.k_proj, self.v_proj)
        inner.in_proj_weight = torch.cat([layer.weight for layer in layers])
        inner.in_proj_bias = torch.cat([layer.bias for layer in layers])
        inner.out_proj.weight, inner.out_proj.bias = self.out_proj.weight, self.out_proj.bias
        if mask is not None:
            if mask.dim() == 3:
                mask = mask.unsqueeze(1)
            shape = (len(query), self.h, query.shape[1], key.shape[1])
            mask = ~mask.broadcast_to(shape).flatten(0, 1)
        output, weights = inner(
            query, key, value, attn_mask=mask, average_attn_weights=False
        )
        # A fully masked row is NaN there; of zeros the output projection leaves its bias.
        output = torch.where(output.isnan(), self.out_proj.bias, output)
        return output, weights.nan_to_num(0.0)
""".strip()

_ONE_HEAD = """
class {name}(nn.Module):
    def __init__(self, input_dim, head_dim):
        super().__init__()
        self.q_proj = nn.Linear(input_dim, head_dim, bias=False)
        self.k_proj = nn.Linear(input_dim, head_dim, bias=False)
        self.v_proj = nn.Linear(input_dim, head_dim, bias=False)

    def forward(self, x, {mask}=None):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        {body}
""".strip()


def _one_head(name: str, mask: str, body: str) -> str:
    """A right module of one head that is `body`, of `q`, `k`, `v` and `mask`."""
    return _ONE_HEAD.format(name=name, mask=mask, body=indent(dedent(body), " " * 8).strip()) + "\n"


_DROPOUT = """
def attention_dropout(attn_weights, dropout, training):
    if not 0 <= dropout <= 1:
        raise ValueError("dropout")
    layer = nn.Dropout(dropout)
    return layer.train(training)(attn_weights)
""".strip()

# Of the cheats below those whose cell tampers with the grader itself when it is run: that costs
# every exercise that forbids anything.
TAMPERING = ("forbidden-unrefused",)

# name: (exercise, what it does, cell)
FORBIDDEN = {
    "forbidden-direct": (
        "masked_softmax",
        "calls torch.softmax",
        _softmax("", "torch.softmax(scores, dim)"),
    ),
    "forbidden-method": (
        "masked_softmax",
        "calls the softmax of the tensor",
        _softmax("", "scores.softmax(dim)"),
    ),
    "forbidden-alias": (
        "masked_softmax",
        "imports softmax under another name and hands it on",
        _softmax(
            """
            from torch.nn.functional import softmax as normalise

            TOOLS = {"n": normalise}
            """,
            'TOOLS["n"](scores, dim=dim)',
        ),
    ),
    "forbidden-computed-name": (
        "masked_softmax",
        "puts the name of softmax together at run time",
        _softmax("", 'getattr(torch.nn.functional, "".join(["soft", "max"]))(scores, dim=dim)'),
    ),
    "forbidden-operator": (
        "masked_softmax",
        "calls the operator below softmax through torch.ops.aten",
        _softmax("", 'getattr(torch.ops.aten, "_soft" + "max")(scores, dim, False)'),
    ),
    "forbidden-log": (
        "masked_softmax",
        "exponentiates log_softmax",
        _softmax("", "nn.LogSoftmax(dim)(scores).exp()"),
    ),
    "forbidden-binding": (
        "scaled_dot_product_attention",
        "calls PyTorch's attention in torch._C._nn",
        _attention(
            "",
            'getattr(torch._C._nn, "scaled_dot_" + "product_attention")'
            "(query, key, value, attn_mask=mask)",
        ),
    ),
    "forbidden-wrapped": (
        "SelfAttention",
        "puts unit matrices into an nn.MultiheadAttention of one head",
        _one_head(
            "SelfAttention",
            "mask",
            """
            width, length = q.shape[-1], x.shape[1]
            inner = nn.MultiheadAttention(width, 1, bias=False, batch_first=True).to(x.dtype)
            one = torch.eye(width, dtype=x.dtype)
            ours = {"in_proj_weight": one.repeat(3, 1), "out_proj.weight": one}
            allowed = torch.ones(len(x), length, length, dtype=torch.bool)
            allowed = allowed if mask is None else allowed & mask
            output, weights = torch.func.functional_call(
                inner, ours, (q, k, v), {"attn_mask": ~allowed}
            )
            return output.nan_to_num(0.0), weights.nan_to_num(0.0)
            """,
        ),
    ),
    "forbidden-causal": (
        "MaskedSelfAttention",
        "calls F.scaled_dot_product_attention for the output, and its own for the weights",
        _one_head(
            "MaskedSelfAttention",
            "padding",
            """
            mask = causal_mask(x.shape[1])
            if padding is not None:
                mask = mask & padding.unsqueeze(1)
            output = nn.functional.scaled_dot_product_attention(q, k, v, mask)
            output = output.nan_to_num(0.0) * mask.any(-1, keepdim=True)
            return output, scaled_dot_product_attention(q, k, v, mask)[1]
            """,
        ),
    ),
    "forbidden-module": (
        "MultiHeadAttention",
        "wraps nn.MultiheadAttention",
        _HEADS,
    ),
    "forbidden-dropout": (
        "attention_dropout",
        "wraps nn.Dropout",
        _DROPOUT,
    ),
    "forbidden-thread": (
        "masked_softmax",
        "calls softmax, under a name put together at run time, in a thread of its own",
        _softmax(
            """
            from concurrent.futures import ThreadPoolExecutor

            POOL = ThreadPoolExecutor(1)
            """,
            'POOL.submit(getattr(torch, "soft" + "max"), scores, dim).result()',
        ),
    ),
    "forbidden-not-overridden": (
        "masked_softmax",
        "calls softmax where PyTorch lets nothing override its functions",
        _softmax(
            """
            def quietly(name, *args):
                with torch._C.DisableTorchFunction():
                    return getattr(torch, name)(*args)
            """,
            'quietly("soft" + "max", scores, dim)',
        ),
    ),
    "forbidden-caught": (
        "masked_softmax",
        "calls softmax, and writes it out where that fails",
        _softmax(
            """
            def normalised(scores, dim):
                try:
                    return scores.softmax(dim)
                except RuntimeError:
                    powers = (scores - scores.amax(dim, keepdim=True)).exp()
                    return powers / powers.sum(dim, keepdim=True)
            """,
            "normalised(scores, dim)",
        ),
    ),
    "forbidden-script": (
        "masked_softmax",
        "calls a script that TorchScript has made of softmax when the cell was run",
        _softmax(
            """
            SCRIPT = torch.jit.trace(lambda x: torch._safe_softmax(x, -1), torch.ones(2, 2))
            """,
            "SCRIPT(scores.transpose(dim, -1)).transpose(dim, -1)",
        ),
    ),
    "forbidden-unrefused": (
        "masked_softmax",
        "makes what refuses softmax do nothing",
        _softmax(
            """
            import sys

            for module in list(sys.modules.values()):
                if hasattr(module, "Refusal"):
                    module.Refusal.__enter__ = lambda self: self
            """,
            'getattr(torch, "soft" + "max")(scores, dim)',
        ),
    ),
    "forbidden-executed-text": (
        "masked_softmax",
        "hides the call in a text that it executes in a thread",
        _softmax(
            """
            import base64
            import threading

            TEXT = base64.b64decode("b3V0LmFwcGVuZCh0b3JjaC5zb2Z0bWF4KHMsIGQpKQ==")


            def run(s, d):
                out = []
                names = {"out": out, "torch": torch, "s": s, "d": d}
                thread = threading.Thread(target=lambda: exec(TEXT, names))
                thread.start()
                thread.join()
                return out[0]
            """,
            "run(scores, dim)",
        ),
    ),
}
