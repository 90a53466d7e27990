"""The graders of `transformer-model`: right answers in any style earn full marks."""

from __future__ import annotations

import textwrap

import pytest

from autograder.sandbox.executor import Executor
from autograder.units.variants import reference_namespace
from tests.autograder.unit_graders import (
    EarlierParts,
    Styles,
    UnitGraders,
    cell_with,
    graders_of,
    with_part,
)

UNIT = "transformer-model"

# Right answers that look unlike the reference and unlike those in autograder/demo.
STYLES = Styles()
style = STYLES.add

style(
    "clones",
    "a list that grows, parameters drawn anew by nobody",
    """
    def clones(module, n):
        if not n >= 1:
            raise ValueError
        made = nn.ModuleList([copy.deepcopy(module)])
        while len(made) < n:
            made.insert(len(made), copy.deepcopy(made[-1]))
        return made
    """,
)

# Stacks -------------------------------------------------------------------------------------------

style(
    "EncoderLayer",
    "connections unrolled by hand",
    """
    class EncoderLayer(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, dropout=0.0, norm_first=False):
            super().__init__()
            self.self_attn = MultiHeadAttention(d_model, num_heads, dropout)
            self.feed_forward = PositionwiseFeedForward(d_model, d_ff, dropout)
            self.sublayer = nn.ModuleList(
                SublayerConnection(d_model, dropout, norm_first) for _ in range(2)
            )
            self.norm_first, self.dropout = norm_first, nn.Dropout(dropout)

        def forward(self, x, mask=None):
            first, second = (connection.norm for connection in self.sublayer)
            if self.norm_first:
                y = first(x)
                x = x + self.dropout(self.self_attn(y, y, y, mask))
                return x + self.dropout(self.feed_forward(second(x)))
            x = first(x + self.dropout(self.self_attn(x, x, x, mask)))
            return second(x + self.dropout(self.feed_forward(x)))
    """,
)
style(
    "Encoder",
    "reduce, a norm that may be the identity",
    """
    from functools import reduce

    class Encoder(nn.Module):
        def __init__(self, num_layers, d_model, num_heads, d_ff, dropout=0.0, norm_first=False):
            super().__init__()
            if num_layers <= 0:
                raise ValueError(num_layers)
            sizes = dict(d_model=d_model, num_heads=num_heads, d_ff=d_ff)
            more = dict(dropout=dropout, norm_first=norm_first)
            self.layers = nn.ModuleList(EncoderLayer(**sizes, **more) for _ in range(num_layers))
            self.norm = (LayerNorm if norm_first else nn.Identity)(d_model)

        def forward(self, x, mask=None):
            return self.norm(reduce(lambda y, layer: layer(y, mask=mask), self.layers, x))
    """,
)
style(
    "DecoderLayer",
    "the stages of source attention apart, named functions",
    """
    class DecoderLayer(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, dropout=0.0, norm_first=False):
            super().__init__()
            self.sublayer = clones(SublayerConnection(d_model, dropout, norm_first=norm_first), 3)
            self.feed_forward = PositionwiseFeedForward(d_model, d_ff, dropout)
            self.src_attn, self.self_attn = (
                MultiHeadAttention(d_model, num_heads, dropout) for _ in range(2)
            )

        def forward(self, x, memory, src_mask=None, tgt_mask=None):
            def itself(y):
                keys, values = self.self_attn.project(y, y)
                return self.self_attn.attend(y, keys, values, tgt_mask)

            def source(y):
                return self.src_attn(query=y, key=memory, value=memory, mask=src_mask)

            steps = itself, source, self.feed_forward.forward
            for connection, step in zip(self.sublayer, steps):
                x = connection(x, step)
            return x
    """,
)
style(
    "Decoder",
    "layers called by recursion",
    """
    class Decoder(nn.Module):
        def __init__(self, num_layers, d_model, num_heads, d_ff, dropout=0.0, norm_first=False):
            super().__init__()
            one = DecoderLayer(d_model, num_heads, d_ff, dropout, norm_first)
            self.layers = clones(one, num_layers)
            self.last = nn.ModuleList()
            if norm_first:
                self.norm = LayerNorm(d_model)

        def run(self, count, x, *given):
            if count == 0:
                return x
            return self.layers[count - 1](self.run(count - 1, x, *given), *given)

        def forward(self, x, memory, src_mask=None, tgt_mask=None):
            x = self.run(len(self.layers), x, memory, src_mask, tgt_mask)
            return self.norm(x) if "norm" in dict(self.named_children()) else x
    """,
)

# The model ----------------------------------------------------------------------------------------

style(
    "Generator",
    "log_softmax of a product written out",
    """
    class Generator(nn.Module):
        def __init__(self, d_model, vocab_size):
            super().__init__()
            self.proj = nn.Linear(d_model, vocab_size)
            self.vocab_size = vocab_size

        def forward(self, hidden):
            logits = hidden @ self.proj.weight.mT + self.proj.bias
            return F.log_softmax(logits.double(), -1).to(hidden.dtype)
    """,
)
style(
    "EncoderDecoder",
    "two sides by one method, masks by hand",
    """
    from given import PAD


    class EncoderDecoder(nn.Module):
        def __init__(
            self,
            src_vocab_size,
            tgt_vocab_size,
            num_layers=6,
            d_model=512,
            d_ff=2048,
            num_heads=8,
            dropout=0.1,
            norm_first=False,
            max_length=5000,
        ):
            super().__init__()
            self.generator = Generator(d_model, tgt_vocab_size)
            for name, kind in (("encoder", Encoder), ("decoder", Decoder)):
                stack = kind(
                    num_layers=num_layers,
                    d_model=d_model,
                    num_heads=num_heads,
                    d_ff=d_ff,
                    dropout=dropout,
                    norm_first=norm_first,
                )
                self.add_module(name, stack)
            self.position = PositionalEncoding(d_model, dropout=dropout, max_length=max_length)
            sizes = src_vocab_size, tgt_vocab_size
            self.src_embed, self.tgt_embed = (Embeddings(size, d_model) for size in sizes)

        def side(self, name, ids):
            return self.position(getattr(self, f"{name}_embed")(ids), past=0)

        def encode(self, src, src_mask=None):
            return self.encoder(self.side("src", src), src_mask)

        def decode(self, memory, src_mask, tgt, tgt_mask):
            return self.decoder(self.side("tgt", tgt), memory, src_mask, tgt_mask)

        def forward(self, src, tgt):
            real, length = (src != PAD)[:, None, :], tgt.shape[1]
            past = torch.tril(torch.ones(length, length)).bool() & (tgt != PAD)[:, None, :]
            return self.generator(self.decode(self.encode(src, real), real, tgt, past))
    """,
)
style(
    "make_model",
    "every matrix by Xavier, the tables drawn again, buffers and biases by apply",
    """
    def make_model(
        src_vocab_size,
        tgt_vocab_size,
        num_layers=6,
        d_model=512,
        d_ff=2048,
        num_heads=8,
        dropout=0.1,
        norm_first=False,
        tie_embeddings=False,
    ):
        if tie_embeddings and src_vocab_size != tgt_vocab_size:
            raise ValueError(f"{src_vocab_size} and {tgt_vocab_size}")
        model = EncoderDecoder(
            src_vocab_size,
            tgt_vocab_size,
            num_layers,
            d_model,
            d_ff,
            num_heads,
            dropout,
            norm_first=norm_first,
        )
        for p in model.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)
        for module in model.modules():
            if getattr(module, "bias", None) is not None:
                module.bias.data.zero_()
            if isinstance(module, nn.Embedding):
                module.weight.data = torch.randn(module.weight.shape) * d_model**-0.5
        if tie_embeddings:
            model.generator.proj.weight = model.tgt_embed.lut.weight
            model.src_embed = model.tgt_embed
        return model
    """,
)
style(
    "make_model",
    "a subclass that draws its own parameters",
    """
    class Drawn(EncoderDecoder):
        @torch.no_grad()
        def draw(self, d_model):
            for name, p in self.named_parameters():
                kind = name.split(".")[-1]
                if kind == "gamma":
                    p.fill_(1)
                elif p.dim() == 1:
                    p.fill_(0)
                elif "lut" in name:
                    p.normal_(0, d_model**-0.5)
                else:
                    bound = (6 / (p.size(0) + p.size(1))) ** 0.5
                    p.copy_(2 * bound * torch.rand(p.shape) - bound)
            return self


    def make_model(
        src_vocab_size,
        tgt_vocab_size,
        num_layers=6,
        d_model=512,
        d_ff=2048,
        num_heads=8,
        dropout=0.1,
        norm_first=False,
        tie_embeddings=False,
    ):
        if tie_embeddings is True and src_vocab_size != tgt_vocab_size:
            raise ValueError
        sizes = num_layers, d_model, d_ff, num_heads
        model = Drawn(src_vocab_size, tgt_vocab_size, *sizes, dropout, norm_first)
        if tie_embeddings:
            model.src_embed.lut.weight = model.tgt_embed.lut.weight
            model.draw(d_model)
            model.generator.proj.weight = model.src_embed.lut.weight
            return model
        return model.draw(d_model)
    """,
)


NOTHING = """
    class {name}(nn.Module):
        def __init__(self, *args, **kwargs):
            super().__init__()
            self.inner = [{right}(*args, **kwargs)]
            for name, part in self.inner[0].named_children():
                self.add_module(name, part)
            for name, parameter in self.inner[0].named_parameters(recurse=False):
                self.register_parameter(name, parameter)

        def forward(self, x, *given, **more):
            return {answer}
"""


@pytest.mark.parametrize("answer", ["torch.zeros_like(x)", "x * float('nan')", "None"])
@pytest.mark.parametrize(
    ("part", "whole"),
    [
        ("LayerNorm", "SublayerConnection"),
        ("LayerNorm", "EncoderLayer"),
        ("EncoderLayer", "Encoder"),
        ("DecoderLayer", "Decoder"),
    ],
)
def test_parts_that_answer_nothing_excuse_nothing(part, whole, answer):
    unit = "transformer-parts" if whole == "SublayerConnection" else UNIT
    namespace = dict(reference_namespace(unit))
    for name in (part, whole):
        namespace[f"Right{name}"] = namespace[name]
        source = NOTHING.format(name=name, right=f"Right{name}", answer=answer)
        exec(textwrap.dedent(source), namespace)
    execute = Executor(namespace).execute
    results = graders_of(unit).run(execute, exercises=[whole], diagnose=False)
    passed = [test.name for test in results[whole].tests if test.outcome == "passed"]
    # What is asked of the making of a stack holds whatever it answers.
    assert [name for name in passed if not name.endswith("_refusals")] == []


def test_what_is_asked_aside_is_no_evidence(graders):
    namespace = with_part(UNIT, "norm_unbiased")
    exec(cell_with(UNIT, "encoder_layer_order"), namespace)
    result = graders.run(Executor(namespace).execute, exercises=["EncoderLayer"])["EncoderLayer"]
    assert result.points < result.max_points
    asked = []
    execute = Executor(namespace).execute

    def watch(request):
        asked.append(request)
        return execute(request)

    graders.run(watch, exercises=["EncoderLayer"], diagnose=False)
    right = []
    execute = Executor(reference_namespace(UNIT)).execute

    def watch_right(request):
        right.append(request)
        return execute(request)

    graders.run(watch_right, exercises=["EncoderLayer"], diagnose=False)
    assert len(right) < len(asked)
    assert max(request.get("handle", 0) for request in right) < 1 << 20


class TestGraders(UnitGraders):
    unit = UNIT
    styles = STYLES


# What becomes of an early mistake in the exercises that use it: those that must still pass.
KEPT = {
    "embeddings_unscaled": ["EncoderDecoder", "make_model"],
    "attention_unscaled": ["EncoderLayer", "Encoder", "DecoderLayer", "Decoder", "EncoderDecoder"],
    "std_mask_padding_only": ["make_model"],
    "subsequent_without_batch_axis": ["EncoderDecoder", "make_model"],
    "norm_unbiased": [
        "EncoderLayer",
        "Encoder",
        "DecoderLayer",
        "Decoder",
        "EncoderDecoder",
        "make_model",
    ],
    "norm_divided_by_variance": ["EncoderLayer", "DecoderLayer"],
    # Not Encoder: a norm over two features hides from its gradients' test that the values differ.
    "ffn_gelu": ["EncoderLayer", "DecoderLayer", "Decoder", "EncoderDecoder"],
    "connection_always_pre": ["EncoderLayer", "Encoder", "DecoderLayer", "Decoder"],
    "connection_norm_of_sublayer": ["EncoderLayer", "Encoder", "DecoderLayer", "Decoder"],
    "encoder_layer_order": ["Encoder", "EncoderDecoder"],
    "decoder_layer_source_first": ["Decoder", "EncoderDecoder"],
    "encoder_one_layer_again_and_again": ["EncoderDecoder", "make_model"],
    "decoder_memory_from_layer_before": ["EncoderDecoder", "make_model"],
    "generator_softmax": ["EncoderDecoder", "make_model"],
    "model_without_positions": ["make_model"],
}


class TestEarlierParts(EarlierParts):
    unit = UNIT
    kept = KEPT
    unexcused = (
        ("norm_unbiased", "encoder_layer_order"),
        ("attention_unscaled", "decoder_layer_memory_normalised"),
        ("connection_always_pre", "encoder_layer_keys_before_norm"),
        ("connection_norm_of_sublayer", "decoder_layer_source_first"),
        ("encoder_layer_order", "encoder_layers_backwards"),
        ("decoder_layer_source_first", "decoder_memory_from_layer_before"),
        ("clones_one_module", "encoder_layer_connections_shared"),
        ("clones_one_module", "encoder_layers_shared"),
        ("std_mask_or", "model_forward_without_std_mask"),
        ("pad_mask_inverted", "model_forward_decodes_without_src_mask"),
        ("embeddings_xavier", "make_model_kaiming"),
    )
