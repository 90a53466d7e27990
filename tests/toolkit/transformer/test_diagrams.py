"""Diagrams of the Transformer are read back as graphs, and compute what the model computes."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from torch import Tensor, nn

from solutions import transformer
from tests.toolkit.drawings import Drawings
from toolkit import diagrams, plots
from toolkit.transformer import diagrams as drawn

Edge = tuple[str, str, str]

ORDERS = pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])


def make(**changes: object) -> transformer.EncoderDecoder:
    sizes = {
        "src_vocab_size": 11, "tgt_vocab_size": 13, "num_layers": 2, "d_model": 16, "d_ff": 24,
        "num_heads": 4, "dropout": 0.0,
    }  # fmt: skip
    return transformer.make_model(**{**sizes, **changes}).double().eval()


def large(**changes: object) -> transformer.EncoderDecoder:
    """The paper's big model, without the memory that it would need."""
    with torch.device("meta"):
        return transformer.make_model(
            250_000, 250_000, d_model=1024, d_ff=4096, num_heads=16, **changes
        )


DRAWINGS: dict[str, Callable[[], Figure]] = {
    "connectivity": drawn.connectivity,
    "connectivity, 2": lambda: drawn.connectivity(2),
    "connectivity, 12": lambda: drawn.connectivity(12, kernel=5),
    "connectivity, centred": lambda: drawn.connectivity(7, kernel=5, causal=False),
}
for name, norm_first in (("post", False), ("pre", True)):
    for size, of in (("small", make), ("large", large)):
        model = of(norm_first=norm_first)
        DRAWINGS |= {
            f"architecture, {name}, {size}": lambda m=model: drawn.architecture(m),
            f"stacks, {name}, {size}": lambda m=model: drawn.stacks(m),
        }


@pytest.fixture(autouse=True)
def _fresh_figures() -> Iterator[None]:
    torch.manual_seed(0)
    with mpl.rc_context():
        mpl.use("Agg")
        plots.use_style()
        yield
    plt.close("all")


# --------------------------------------------------------------------------- reading a drawing


def words(figure: Figure) -> list[str]:
    return [text.get_text() for ax in figure.axes for text in ax.texts]


def arrows(figure: Figure) -> list[FancyArrowPatch]:
    return [p for p in figure.axes[0].patches if isinstance(p, FancyArrowPatch)]


def edges(figure: Figure) -> list[Edge]:
    """(source, target, part) of every arrow, as its name says."""
    return [re.fullmatch("(.+)>(.+):(.*)", arrow.get_gid()).groups() for arrow in arrows(figure)]


def boxes(figure: Figure) -> dict[str, mpl.transforms.Bbox]:
    """Where each named box is, in pixels."""
    figure.canvas.draw()
    return {
        patch.get_gid(): patch.get_window_extent()
        for patch in figure.axes[0].patches
        if patch.get_gid() and not isinstance(patch, FancyArrowPatch)
    }


def ways(figure: Figure) -> dict[str, np.ndarray]:
    """Points along each arrow, in pixels."""
    figure.canvas.draw()
    found = {}
    for arrow in arrows(figure):
        line = arrow._path_original if arrow._posA_posB is None else arrow.get_path()
        corners = np.array(figure.axes[0].transData.transform(line.vertices))
        steps = np.linspace(0, 1, 60)[:, None]
        pieces = [a + steps * (b - a) for a, b in itertools.pairwise(corners)]
        found[arrow.get_gid()] = np.concatenate(pieces)
    return found


def inside(points: np.ndarray, box: mpl.transforms.Bbox, margin: float) -> bool:
    x, y = points.T
    within = (x > box.x0 + margin) & (x < box.x1 - margin)
    return bool((within & (y > box.y0 + margin) & (y < box.y1 - margin)).any())


def evaluate(
    graph: list[Edge], goal: str, given: Mapping[str, Tensor],
    apply: Callable[[str, dict[str, Tensor]], Tensor],
) -> tuple[Tensor, set[str]]:  # fmt: skip
    """What the drawn graph computes, and the nodes that took part."""
    values = dict(given)

    def value(name: str) -> Tensor:
        if name not in values:
            inputs = {part: value(source) for source, target, part in graph if target == name}
            assert inputs, f"nothing goes into {name}"
            values[name] = apply(name, inputs)
        return values[name]

    return value(goal), set(values)


def applied(layer: nn.Module, name: str, inputs: dict[str, Tensor]) -> Tensor:
    """One box of a layer, by the layer's own module."""
    if name.startswith("add"):
        assert set(inputs) == {"", "skip"}
        return inputs[""] + inputs["skip"]
    if name.startswith("norm"):
        return layer.sublayer[int(name[4:])].norm(inputs[""])
    if name in ("self_attn", "src_attn"):
        return getattr(layer, name)(inputs["Q"], inputs["K"], inputs["V"])
    if name == "feed_forward":
        return layer.feed_forward(inputs[""])
    assert name == "output", name
    return inputs[""]


def shaken(module: nn.Module) -> nn.Module:
    """No parameter is as it was made, so that no two modules do the same."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return module


# --------------------------------------------------------------------------- all drawings


@functools.cache
def drawing(name: str) -> Figure:
    """Drawn once, for the tests that only look."""
    figure = DRAWINGS[name]()
    plt.close(figure)
    FigureCanvasAgg(figure)  # closing took its canvas away
    return figure


MADE = {name: functools.partial(drawing, name) for name in DRAWINGS}


class TestDrawings(Drawings):
    drawings = MADE


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_picture_is_no_wider_than_a_page(name: str) -> None:
    """At its own size, or nearly: the letters do not shrink. A phone halves them."""
    figure = drawing(name)
    assert figure.get_figwidth() * figure.dpi < 760
    assert min(text.get_fontsize() for text in figure.axes[0].texts) >= 9.5


ROUTED = [name for name in DRAWINGS if re.match("arch|stacks", name)]


@pytest.mark.parametrize("name", ROUTED)
def test_lines_run_across_or_up(name: str) -> None:
    for arrow in arrows(drawing(name)):
        steps = np.diff(arrow._path_original.vertices, axis=0)
        assert (np.abs(steps).min(axis=1) < 1e-9).all(), arrow.get_gid()


@pytest.mark.parametrize("name", ROUTED)
def test_arrows_touch_their_boxes_and_cross_no_other(name: str) -> None:
    figure = drawing(name)
    placed = boxes(figure)
    for (a, one), (b, other) in itertools.combinations(placed.items(), 2):
        assert not one.padded(-1).overlaps(other), f"{a} overlaps {b}"
    for gid, points in ways(figure).items():
        source, target, part = re.fullmatch("(.+)>(.+):(.*)", gid).groups()
        if target in placed:
            assert inside(points[-1:], placed[target], -2), gid
            assert not inside(points[:-8], placed[target], 2), gid
        # A skip leaves from the line behind its source.
        if source in placed and part not in ("skip", "Q", "V"):
            assert inside(points[:1], placed[source], -2), gid
        for other, box in placed.items():
            if other != target:
                assert not inside(points, box, 2), f"{gid} runs through {other}"


@pytest.mark.parametrize("name", ROUTED)
def test_arrows_cross_no_text(name: str) -> None:
    figure = drawing(name)
    lines = ways(figure)
    renderer = figure.canvas.get_renderer()
    for text in figure.axes[0].texts:
        extent = text.get_window_extent(renderer)
        crossed = [gid for gid, points in lines.items() if inside(points, extent, 1)]
        assert crossed == [], text.get_text()


def test_a_model_on_the_fast_path_looks_the_same() -> None:
    model = make()
    clear = [words(f) for f in (drawn.architecture(model), drawn.stacks(model))]
    fast = transformer.fused(model)
    assert clear == [words(f) for f in (drawn.architecture(fast), drawn.stacks(fast))]


# --------------------------------------------------------------------------- one layer


@pytest.mark.parametrize(("width", "inner", "heads"), [(16, 24, 4), (12, 48, 1)])
def test_the_layers_say_their_sizes(width: int, inner: int, heads: int) -> None:
    model = make(d_model=width, d_ff=inner, num_heads=heads)
    split = f"{heads} head{'s' if heads > 1 else ''} of {width // heads}"
    text = words(drawn.architecture(model))
    assert sum(split in word for word in text) == 3
    assert text.count(f"feed-forward\n{width} → {inner} → {width}") == 2


def test_a_layer_of_two_minds_is_refused() -> None:
    model = make()
    model.encoder.layers[0].sublayer[1].norm_first = True
    with pytest.raises(ValueError, match="different norm orders"):
        drawn.architecture(model)


def test_a_layer_with_a_connection_too_many_is_refused() -> None:
    model = make()
    sublayers = model.encoder.layers[0].sublayer
    sublayers.append(copy.deepcopy(sublayers[0]))
    with pytest.raises(ValueError, match="2 sub-layers, but 3 connections"):
        drawn.architecture(model)


# --------------------------------------------------------------------------- the model


def computed_by(figure: Figure, model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    """What the drawn architecture computes, each panel as often as is written beside it."""
    graph = edges(figure)
    counts = [int(word[:-2]) for word in words(figure) if re.fullmatch(r"\d+ ×", word)]
    assert counts == [len(model.encoder.layers), len(model.decoder.layers)]
    used: set[str] = set()

    def apply(name: str, inputs: dict[str, Tensor]) -> Tensor:
        side, _, part = name.rpartition(".")
        if part == "embed":
            return (model.src_embed if side == "encoder" else model.tgt_embed)(inputs[""])
        if part == "sum":
            return sum(inputs.values())
        if part == "norm":
            return getattr(model, side).norm(inputs[""])
        if part == "memory":
            return inputs[""]
        if part == "linear":
            return model.generator(inputs[""])
        return applied(layer, part, inputs)

    values: dict[str, Tensor] = {"encoder.ids": source, "decoder.ids": target}
    inner = {"self_attn", "src_attn", "feed_forward", *(f"{kind}{i}" for kind in ("add", "norm")
                                                         for i in range(3))}  # fmt: skip
    for side, ids, stack in (
        ("encoder", source, model.encoder), ("decoder", target, model.decoder)
    ):  # fmt: skip
        zeros = torch.zeros(*ids.shape, model.src_embed.lut.weight.shape[1], dtype=torch.float64)
        values[f"{side}.position"] = model.position(zeros)
        # Two arrows with the same part go into the sum: tell them apart by their sources.
        graph = [(a, b, a if b == f"{side}.sum" else part) for a, b, part in graph]
        x, seen = evaluate(graph, f"{side}.sum", values, apply)
        used |= seen
        inside_layer = {f"{side}.{part}" for part in inner}
        (end,) = {a for a, b, _ in graph if a in inside_layer and b not in inside_layer}
        for layer in stack.layers:  # noqa: B007 (used by `apply`)
            start = {**values, f"{side}.sum": x}
            x, seen = evaluate(graph, end, start, apply)
            used |= seen
        values[end] = x
        if side == "encoder":
            values["memory"], seen = evaluate(graph, "memory", values, apply)
            used |= seen
    result, seen = evaluate(
        [*graph], "output", values,
        lambda name, inputs: inputs[""] if name == "output" else apply(name, inputs),
    )  # fmt: skip
    assert set(boxes(figure)) <= used | seen
    return result


@ORDERS
@pytest.mark.parametrize("layers", [1, 3])
def test_the_drawn_architecture_computes_what_the_model_computes(
    norm_first: bool, layers: int
) -> None:
    model = shaken(make(norm_first=norm_first, num_layers=layers))
    source, target = torch.randint(4, 11, (2, 6)), torch.randint(4, 13, (2, 5))
    result = computed_by(drawn.architecture(model), model, source, target)
    memory = model.encode(source)
    # Without masks, which a box only names
    torch.testing.assert_close(result, model.generator(model.decode(memory, None, target, None)))


@ORDERS
def test_the_architecture_says_its_sizes(norm_first: bool) -> None:
    model = make(
        norm_first=norm_first, src_vocab_size=17, tgt_vocab_size=19, d_model=8, num_heads=2
    )
    text = words(drawn.architecture(model))
    assert "embedding × $\\sqrt{8}$\n17 × 8" in text
    assert "embedding × $\\sqrt{8}$\n19 × 8" in text
    assert "linear, log-softmax\n8 → 19" in text
    assert "memory\n(B, S, 8)" in text
    count = sum(p.numel() for p in model.parameters())
    (facts,) = (word for word in text if "parameters" in word)
    value, unit = re.search(r"([\d.]+) (k|M) parameters", facts).groups()
    assert math.isclose(float(value) * {"k": 1e3, "M": 1e6}[unit], count, rel_tol=5e-3)
    assert ("pre-norm" in facts) is norm_first
    assert ("post-norm" in facts) is not norm_first
    assert "one matrix" not in facts


def test_a_shared_table_is_said_and_counted_once() -> None:
    models = [
        make(src_vocab_size=4000, tgt_vocab_size=4000, tie_embeddings=shared)
        for shared in (True, False)
    ]
    facts = [next(w for w in words(drawn.architecture(m)) if "parameters" in w) for m in models]
    assert ["one matrix" in fact for fact in facts] == [True, False]
    counts = [transformer.count_parameters(4000, 2, 16, 24, shared) for shared in (True, False)]
    said = [f"{count / 1000:.3g} k parameters" for count in counts]
    assert [fact.splitlines()[1] for fact in facts] == said


@pytest.mark.parametrize("layers", [1, 4])
@ORDERS
def test_the_memory_goes_to_every_decoder_layer_and_comes_from_the_last_encoder_layer(
    layers: int, norm_first: bool
) -> None:
    graph = edges(drawn.stacks(make(num_layers=layers, norm_first=norm_first)))
    assert {b for a, b, part in graph if a == "memory" and part == "KV"} == {
        f"decoder.{index}" for index in range(layers)
    }
    for side, end in (("encoder", "memory"), ("decoder", "output")):
        middle = [f"{side}.norm"] if norm_first else []
        chain = [f"{side}.input", *(f"{side}.{i}" for i in range(layers)), *middle, end]
        own = [(a, b) for a, b, part in graph if a.startswith(side)]
        assert own == list(itertools.pairwise(chain))
    assert len(graph) == layers + 2 * (layers + 1 + norm_first)


def test_every_layer_carries_its_own_weight() -> None:
    model = make()
    model.encoder.layers[1].feed_forward.w_1.bias = None
    text = words(drawn.stacks(model))
    weights = [
        sum(p.numel() for p in layer.parameters())
        for layer in (*model.encoder.layers, *model.decoder.layers)
    ]
    assert weights[1] == weights[0] - 24
    for index, weight in enumerate(weights):
        assert f"layer {index % 2 + 1}   {weight / 1000:.3g} k" in text
    assert f"encoder: {sum(weights[:2]) / 1000:.3g} k parameters" in text


def test_layers_that_are_one_and_the_same_are_counted_once() -> None:
    model = make()
    model.encoder.layers[1] = model.encoder.layers[0]
    once = sum(p.numel() for p in model.encoder.layers[0].parameters())
    assert f"encoder: {once / 1000:.3g} k parameters" in words(drawn.stacks(model))


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0"), (999, "999"), (1000, "1 k"), (63_082_120, "63.1 M"), (999_499, "999 k"),
     (999_500, "1 M"), (213_900_000, "214 M"), (175 * 10**9, "175000 M")],
)  # fmt: skip
def test_parameters_are_rounded_to_three_figures(count: int, said: str) -> None:
    assert diagrams.millions(count) == said


# --------------------------------------------------------------------------- paths


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("tokens", "kernel"), [(2, 3), (5, 3), (7, 3), (8, 3), (9, 5)])
def test_the_paths_are_as_long_as_they_say(tokens: int, kernel: int, causal: bool) -> None:
    figure = drawn.connectivity(tokens, kernel, causal)
    bold = [arrow.get_gid().split(":")[0] for arrow in arrows(figure)
            if arrow.get_gid().endswith(":path")]  # fmt: skip
    reach = kernel - 1 if causal else kernel // 2
    layers = math.ceil((tokens - 1) / reach)
    name = f"{'causal ' if causal else ''}convolution, kernel {kernel}"
    expected = {"recurrent": tokens - 1, name: layers, "self-attention": 1}
    assert {name: bold.count(name) for name in set(bold)} == expected
    text = words(figure)
    for name, steps in expected.items():
        plural = "s" if steps > 1 else ""
        assert f"{name}: {steps} step{plural} from $x_1$ to $x_{{{tokens}}}$" in text
    assert sum(word == f"$x_{{{tokens}}}$" for word in text) == 3


@pytest.mark.parametrize("causal", [True, False])
def test_a_convolution_sees_as_many_tokens_as_its_kernel_is_wide(causal: bool) -> None:
    """What the last layer sees through all layers is what torch's convolutions let through."""
    tokens, kernel = 7, 3
    figure = drawn.connectivity(tokens, kernel, causal)
    names = [arrow.get_gid().split(":")[0] for arrow in arrows(figure)]
    (name,) = {name for name in names if "convolution" in name}
    x = torch.zeros(1, 1, tokens, requires_grad=True)
    sides = (kernel - 1, 0) if causal else (1, 1)
    weight = torch.ones(1, 1, kernel)
    y = nn.functional.conv1d(nn.functional.pad(x, sides), weight)
    seen = sum((torch.autograd.grad(y[0, 0, t], x, retain_graph=True)[0] != 0).sum().item()
               for t in range(tokens))  # fmt: skip
    layers = math.ceil((tokens - 1) / (kernel - 1 if causal else kernel // 2))
    assert names.count(name) == layers * seen


def test_in_self_attention_every_token_sees_every_token() -> None:
    names = [arrow.get_gid().split(":")[0] for arrow in arrows(drawn.connectivity(6))]
    assert names.count("self-attention") == 36
    assert names.count("recurrent") == 5


def test_a_shortest_path_is_found_and_a_missing_one_is_noticed() -> None:
    graph = [((0, 0), (0, 1)), ((0, 1), (0, 2)), ((0, 0), (0, 2))]
    assert drawn._shortest(graph, (0, 0), (0, 2)) == [(0, 0), (0, 2)]
    with pytest.raises(ValueError, match="reached"):
        drawn._shortest(graph, (0, 2), (0, 0))


@pytest.mark.parametrize(("tokens", "kernel"), [(1, 3), (4, 1)])
def test_too_little_to_connect_is_refused(tokens: int, kernel: int) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        drawn.connectivity(tokens, kernel)


def test_an_even_kernel_has_no_middle() -> None:
    drawn.connectivity(4, kernel=2)
    with pytest.raises(ValueError, match="no middle"):
        drawn.connectivity(4, kernel=2, causal=False)
