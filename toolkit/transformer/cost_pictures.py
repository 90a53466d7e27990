"""Pictures of the page on costs: multiplications, seconds, and how far a token reaches.

    python -m toolkit.transformer.cost_pictures build/layer_seconds.csv

measures the seconds of `toolkit/measured/layer_seconds.csv` again on this machine. Those that are
stored are from one H100 and from one core of the machine it stands in.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit import many_models, plots
from toolkit.transformer.translation_task import crossover

MEASURED = many_models.FOLDER / "layer_seconds.csv"
# What is measured: device, batch sizes, widths, lengths, repeats
PLAN = (
    ("cuda", (1, 32), (64, 128, 256, 512), [2**k for k in range(4, 13)], 15),
    ("cpu", (1, 8), (64, 128, 256), [2**k for k in range(4, 12)], 7),
)
_SHEET = (
    "<style>.costs{background:#fbfaf7;color:#22252b;padding:.4em .7em;margin:.3em 0;"
    "width:min(33em,80vw);max-width:100%;box-sizing:border-box;overflow-x:auto;font-size:13px;"
    "line-height:1.6}"
    ".costs table{border-collapse:collapse;width:100%!important;background:none!important;"
    "margin:.2em 0}.costs :is(td,th){border:0!important;padding:.15em .4em;font-weight:normal;"
    "color:#22252b!important;background:none!important;text-align:left}"
    ".costs td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}"
    ".costs td.t{width:45%}.costs td.t div{height:1em;background:#1f6fb2}"
    ".costs td.t div.o{background:#d1651c}.costs .cells{display:flex;gap:2px}"
    ".costs .cells i{flex:1;height:1.5em;background:#e6e3dc}.costs .cells i.y{background:#1f6fb2}"
    "</style>"
)


# --------------------------------------------------------------------------- counting


def attention_count(n: int, d: int) -> int:
    """Multiplications of self-attention with its four projections."""
    return 4 * n * d**2 + 2 * n**2 * d


def gru_count(n: int, d: int) -> int:
    """Multiplications of a GRU layer."""
    return 6 * n * d**2


def cost_page(n: int, d: int) -> str:
    """The multiplications of an encoder layer, part by part, beside those of a GRU, as HTML."""
    parts = {
        "four projections": (4 * n * d * d, ""),
        "scores and mixing": (2 * n * n * d, "o"),
        "feed-forward, 4d inside": (8 * n * d * d, ""),
        "for comparison: a GRU": (gru_count(n, d), ""),
    }
    most = max(count for count, _ in parts.values())
    rows = "".join(
        f"<tr><th scope=row>{name}</th><td class=t><div class='{kind}' "
        f"style='width:{100 * count / most:.1f}%'></div></td><td class=n>{_number(count)}</td></tr>"
        for name, (count, kind) in parts.items()
    )
    layer = sum(count for count, _ in list(parts.values())[:3])
    share = 2 * n * n * d / layer
    return (
        f"{_SHEET}<div class=costs><table>{rows}</table><p style='margin:.2em .4em'>"
        f"scores and mixing: <b>{share:.1%}</b> of the layer</p></div>"
    )


def _number(count: float) -> str:
    for unit, size in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:,.0f}"


# --------------------------------------------------------------------------- reach


def connected(network: str, n: int) -> Tensor:
    """Which input each output of one layer may depend on: (n, n) bool, row t sees column s.

    Args:
        network: "recurrent", "convolution", "dilated 1", "dilated 2", ... or "self-attention"; all
            but the last look back only, the kernel of convolutions has three entries.
    """
    back = torch.arange(n)[:, None] - torch.arange(n)  # (n, n)
    if network == "self-attention":
        return torch.ones(n, n, dtype=torch.bool)
    if network == "recurrent":
        return back >= 0
    gap = int(network.removeprefix("dilated ")) if network.startswith("dilated") else 1
    return (back == 0) | (back == gap) | (back == 2 * gap)


def reach(network: str, layers: int, n: int) -> Tensor:
    """What the last output of a stack may depend on: (n,) bool. "dilated" doubles with depth."""
    seen = torch.zeros(n, dtype=torch.bool)
    seen[-1] = True
    for layer in reversed(range(layers)):  # from the output down
        kind = f"dilated {2**layer}" if network == "dilated" else network
        seen = connected(kind, n)[seen].any(0)
    return seen


def reach_page(network: str, layers: int, n: int = 33) -> str:
    """Which of n inputs the last output may depend on, as a row of cells in HTML."""
    seen = reach(network, layers, n)
    cells = "".join(f"<i{' class=y' if on else ''}></i>" for on in seen.tolist())
    farthest = n - 1 - int(seen.int().argmax())
    return (
        f"{_SHEET}<div class=costs><div class=cells role=img aria-label='the last {farthest + 1} "
        f"of {n} inputs are reached'>{cells}</div><p style='margin:.2em 0'>first input left, last "
        f"right; the last output reaches <b>{farthest}</b> positions back</p></div>"
    )


def fading(curves: Mapping[str, Tensor]) -> Figure:
    """How strongly the last output depends on inputs further back: name -> (seeds, positions)."""
    figure, ax = plt.subplots(figsize=(6.2, 3.0))
    for index, (name, runs) in enumerate(curves.items()):
        runs = torch.where(runs > 0, runs, torch.nan)
        across = range(1, runs.shape[1])
        ax.fill_between(
            across, runs.amin(0)[1:].numpy(), runs.amax(0)[1:].numpy(),
            color=plots.PALETTE[index], alpha=0.2, lw=0,
        )  # fmt: skip
        ax.semilogy(across, runs.mean(0)[1:], ".-", color=plots.PALETTE[index], label=name)
    ax.set(xlabel="positions back", ylabel="gradient, share of\nthat at distance 0")
    ax.set_ylim(top=30)
    ax.legend(fontsize=10, loc="upper right", ncols=2)
    return figure


# --------------------------------------------------------------------------- seconds


@dataclass(frozen=True)
class Seconds:
    """Measured seconds of a training step of one layer, at several lengths.

    lengths: n. attention, gru: medians. low, high: attention / GRU from the fastest and the slowest
    of the repeats, crosswise, so that they enclose the ratio.
    """

    lengths: list[int]
    attention: list[float]
    gru: list[float]
    low: list[float]
    high: list[float]

    @property
    def ratio(self) -> list[float]:
        return [a / g for a, g in zip(self.attention, self.gru, strict=True)]

    @property
    def equal(self) -> float | None:
        """The length at which attention becomes the slower one; None if it never does."""
        return crossover(self.lengths, self.attention, self.gru)


def seconds(device: str, batch: int, width: int, file: Path = MEASURED) -> Seconds:
    """What was measured of one device, batch size and width."""
    rows = [
        row for row in many_models.read_rows(file)
        if (row["device"], int(row["batch"]), int(row["width"])) == (device, batch, width)
    ]  # fmt: skip
    found = {
        layer: [
            [float(row[name]) for name in ("low", "median", "high")]
            for row in rows
            if row["layer"] == layer
        ]
        for layer in ("attention", "GRU")
    }
    pairs = list(zip(found["attention"], found["GRU"], strict=True))
    return Seconds(
        [int(row["length"]) for row in rows if row["layer"] == "GRU"],
        [a[1] for a, _ in pairs],
        [g[1] for _, g in pairs],
        [a[0] / g[2] for a, g in pairs],
        [a[2] / g[0] for a, g in pairs],
    )


def ratios(panels: Mapping[str, tuple[str, int, Sequence[int]]]) -> Figure:
    """Attention / GRU against length: title -> (device, batch, widths); squares where n = d."""
    figure, axes = plt.subplots(len(panels), 1, figsize=(5.2, 5.4), sharex=True)
    for ax, (title, (device, batch, widths)) in zip(axes, panels.items(), strict=True):
        for index, width in enumerate(widths):
            found = seconds(device, batch, width)
            ax.loglog(
                found.lengths, found.ratio, "-", color=plots.PALETTE[index], label=f"d = {width}"
            )
            at = found.lengths.index(width)
            ax.plot(width, found.ratio[at], "s", ms=7, color=plots.PALETTE[index])
        ax.axhline(1, color=plots.INK, lw=0.9, ls=":")
        ax.set_xscale("log", base=4)
        ax.xaxis.set_major_formatter(plt.FuncFormatter(lambda v, _: f"{v:g}"))
        ax.set_title(title)
        ax.set_yticks([0.1, 0.3, 1, 3], ["0.1", "0.3", "1", "3"])
        ax.yaxis.set_minor_locator(plt.NullLocator())
        ax.set_ylabel("attention / GRU")
    axes[-1].set_xlabel("length n")
    handles, labels = axes[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=10.5)
    return figure


class _Attention(nn.Module):
    """Self-attention with four heads by one fused kernel: (B, n, d) -> (B, n, d)."""

    def __init__(self, d: int, num_heads: int = 4) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.in_proj, self.out_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (B, H, n, d/H)
            for part in self.in_proj(x).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


def _once(layer: nn.Module, x: Tensor) -> float:
    """Seconds of a training step: forward and backward, for weights and input."""
    wait: Callable[[], None] = torch.cuda.synchronize if x.is_cuda else lambda: None
    x = x.detach().requires_grad_()
    layer.zero_grad()
    wait()
    began = time.perf_counter()
    result = layer(x)
    (result[0] if isinstance(result, tuple) else result).sum().backward()
    wait()
    return time.perf_counter() - began


def measure(file: Path, plan: Sequence[tuple] = PLAN) -> Path:
    """Measure training steps of both layers in turn, in float32 and with one thread.

    Args:
        file: where the table goes. plan: see `PLAN`; devices that are not here are left out.
    """
    torch.backends.cudnn.allow_tf32 = False
    torch.set_num_threads(1)
    rows = []
    for device, batches, widths, lengths, repeats in plan:
        if device == "cuda" and not torch.cuda.is_available():
            continue
        for batch in batches:
            for d in widths:
                torch.manual_seed(0)
                layers = {"attention": _Attention(d), "GRU": nn.GRU(d, d, batch_first=True)}
                layers = {name: layer.to(device) for name, layer in layers.items()}
                for n in lengths:
                    x = torch.randn(batch, n, d, device=device)
                    for layer in (*layers.values(), *layers.values()):
                        _once(layer, x)  # the first calls set things up
                    took: dict[str, list[float]] = {name: [] for name in layers}
                    for _ in range(repeats):
                        for name, layer in layers.items():
                            took[name].append(_once(layer, x))
                    for name, values in took.items():
                        shown = (min(values), statistics.median(values), max(values))
                        rows.append(
                            {"device": device, "layer": name, "batch": batch, "width": d}
                            | {"length": n}
                            | {
                                key: f"{value:.3g}"
                                for key, value in zip(("low", "median", "high"), shown, strict=True)
                            }
                        )
    return many_models.write_rows(file, rows)


if __name__ == "__main__":
    print(measure(Path(sys.argv[1] if len(sys.argv) > 1 else "build/layer_seconds.csv")))
