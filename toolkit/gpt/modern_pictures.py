"""Pictures of the pages on today's models: norms, gates, shared heads, the cache, windows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit import plots
from toolkit.gpt import modern
from toolkit.gpt.modern import Block, ModernGPT, RMSNorm, SwiGLU
from toolkit.gpt.modern_experiments import BASE, Found
from toolkit.plots import INK, PALETTE

_SHEET = (
    "<style>.sizes{width:min(34em,86vw)}.sizes table{border-collapse:collapse;width:100%}"
    ".sizes table :is(tr,th,td){border:0!important;padding:.15em .4em;background:none!important;"
    "color:inherit;font-weight:normal;text-align:left}"
    ".sizes .n{text-align:right!important;font-variant-numeric:tabular-nums;white-space:nowrap}"
    ".sizes th{white-space:nowrap}.sizes .t{width:45%}"
    ".sizes .t div{height:1em;border-radius:2px;background:#1f6fb2}"
    ".sizes .t div.o{background:#d1651c}</style>"
)

# --------------------------------------------------------------------------- norms


def layer_norm(x: Tensor) -> Tensor:
    """LayerNorm without scale, shift and epsilon."""
    return (x - x.mean()) / x.var(unbiased=False).sqrt()


def rms_norm(x: Tensor) -> Tensor:
    """RMSNorm without scale and epsilon."""
    return x / x.square().mean().sqrt()


def norms_page(x: Sequence[float], added: float, factor: float) -> str:
    """A vector, moved and stretched, and what both norms make of it, as an HTML table."""
    vector = factor * (torch.tensor(x, dtype=torch.float32) + added)  # (D,)
    rows = {"x": vector, "LayerNorm": layer_norm(vector), "RMSNorm": rms_norm(vector)}
    text = "".join(
        f"<tr><th scope=row>{name}</th>"
        + "".join(f"<td class=n>{_signed(v)}</td>" for v in values.tolist())
        + "</tr>"
        for name, values in rows.items()
    )
    rms = vector.square().mean().sqrt()
    return (
        f"{_SHEET}<div class=sizes><table>{text}</table><p style='margin:.2em .4em'>"
        f"mean of x {_signed(vector.mean().item())}, RMS {rms:.2f}</p></div>"
    )


def _signed(value: float) -> str:
    return f"{value + 0.0:.2f}".replace("-", "−")


def without_mean(model: nn.Module) -> nn.Module:
    """A copy of a model whose LayerNorms divide by the RMS and leave the mean where it is."""

    def forward(norm: nn.LayerNorm) -> Callable[[Tensor], Tensor]:
        return lambda x: F.rms_norm(x, x.shape[-1:], norm.weight, norm.eps) + norm.bias

    changed = copy.deepcopy(model)
    for module in changed.modules():
        if isinstance(module, nn.LayerNorm):
            module.forward = forward(module)  # type: ignore[method-assign]
    return changed


@torch.no_grad()
def mean_shares(model: nn.Module, ids: Tensor) -> Tensor:
    """Of what each LayerNorm of a model reads: squared mean / mean square, (norms,)."""
    found: list[Tensor] = []

    def note(module: nn.Module, given: tuple[Tensor, ...], result: Tensor) -> None:
        (x,) = given
        found.append((x.mean(-1).square() / x.square().mean(-1)).mean())

    hooks = [m.register_forward_hook(note) for m in model.modules() if isinstance(m, nn.LayerNorm)]
    model(ids)
    for hook in hooks:
        hook.remove()
    return torch.stack(found)


# --------------------------------------------------------------------------- gates


def gates() -> Figure:
    """GELU and SiLU, and what a gated unit makes of one gate with several up-projections."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(5.2, 2.5))
    x = torch.linspace(-4, 4, 161)
    left.plot(x, F.silu(x), label="SiLU", color=PALETTE[0])
    left.plot(x, F.gelu(x), label="GELU", color=PALETTE[1], ls="--")
    left.set(title="activations", xlabel="x")
    left.legend()
    for up, colour in ((3, PALETTE[0]), (1, PALETTE[2]), (-2, PALETTE[3])):
        right.plot(x, up * F.silu(x), color=colour)
        end = up * F.silu(x[-1]).item()
        right.text(4.15, end, f"up = {up}".replace("-", "−"), color=colour, va="center")
    right.plot(2, 3 * F.silu(torch.tensor(2.0)), "o", color=PALETTE[0], ms=6)
    right.set(title="SiLU(gate) · up", xlabel="gate", xlim=(-4, 6.6))
    for ax in (left, right):
        ax.axhline(0, color=INK, lw=0.7)
    return figure


# --------------------------------------------------------------------------- experiment


def compared(results: Mapping[str, Found], names: Mapping[str, str]) -> Figure:
    """Test loss of each contestant minus that of GPT-2 with the same seed; the line is the mean.

    Args:
        names: what to write for each contestant.
    """
    figure, ax = plt.subplots(figsize=(5.6, 0.85 + 0.38 * len(names)))
    for y, name in enumerate(names):
        apart = differences(results, name)
        ax.plot(apart, torch.full_like(apart, y), "o", color=PALETTE[0], ms=5.5, alpha=0.6, mew=0)
        ax.plot([apart.mean()] * 2, [y - 0.3, y + 0.3], color=INK, lw=2)
    ax.axvline(0, color=INK, lw=0.9, ls=":")
    ax.set_yticks(range(len(names)), list(names.values()))
    ax.invert_yaxis()
    ax.locator_params(axis="x", nbins=6)
    ax.set(xlabel="test loss minus GPT-2's (nats per token); left is better")
    return figure


def differences(results: Mapping[str, Found], name: str, to: str = BASE) -> Tensor:
    """Test losses of a contestant minus those of another, seed by seed: (seeds,)."""
    return torch.tensor(results[name].test) - torch.tensor(results[to].test)


def paired(results: Mapping[str, Found], name: str, to: str = BASE) -> tuple[float, float]:
    """Mean of `differences`, and its standard error."""
    apart = differences(results, name, to)
    return apart.mean().item(), (apart.std() / len(apart) ** 0.5).item()


# --------------------------------------------------------------------------- heads and cache


def sharing(num_heads: int = 4, choices: Sequence[int] = (4, 2, 1)) -> Figure:
    """Which key and value head each query head uses, for several numbers of the former."""
    names = {num_heads: "multi-head", 1: "multi-query"}
    figure, axes = plt.subplots(1, len(choices), figsize=(5.8, 1.7))
    for ax, count in zip(axes, choices, strict=True):
        groups = num_heads // count
        for head in range(num_heads):
            shared = head // groups
            middle = shared * groups + (groups - 1) / 2
            colour = PALETTE[shared]
            ax.plot([head, middle], [1, 0], color=colour, lw=1.5)
            for at, high, text in ((head, 1, f"q{head}"), (middle, 0, f"kv{shared}")):
                ax.text(
                    at, high, text, ha="center", va="center", color="white", fontsize=9.5,
                    bbox={"boxstyle": "round,pad=.3", "facecolor": colour, "edgecolor": "none"},
                )  # fmt: skip
        ax.set(xlim=(-0.6, num_heads - 0.4), ylim=(-0.35, 1.35))
        ax.set_title(f"{names.get(count, 'grouped-query')}: {count}")
        ax.axis("off")
    return figure


def cache_bytes(
    num_layers: int, num_kv_heads: int, head_dim: int, tokens: int, bytes_each: int = 2
) -> int:
    """Bytes of keys and values of all layers."""
    return 2 * num_layers * num_kv_heads * head_dim * tokens * bytes_each


def cache_page(num_kv_heads: int, tokens: int, window: int | None) -> str:
    """The cache of a model with Mistral 7B's 32 layers and heads of width 128, as HTML."""
    kept = tokens if window is None else min(tokens, window)
    size, most = (
        cache_bytes(32, heads, 128, count) / 2**30
        for heads, count in ((num_kv_heads, kept), (32, 32_768))
    )
    full = cache_bytes(32, 32, 128, tokens) / 2**30
    rows = "".join(
        f"<tr><th scope=row>{name}</th><td class=t><div class='{kind}' style='width:"
        f"{max(100 * value / most, 0.4):.1f}%'></div></td><td class=n>{value:.3g} GiB</td></tr>"
        for name, value, kind in (("this cache", size, ""), ("without both", full, "o"))
    )
    return (
        f"{_SHEET}<div class=sizes><table>{rows}</table><p style='margin:.2em .4em'>"
        f"{full / size:g} times smaller</p></div>"
    )


# --------------------------------------------------------------------------- windows


@torch.no_grad()
def reached(model: ModernGPT, length: int) -> Tensor:
    """Whether the last logits change when an input token does: (length,) bool."""
    vocabulary = model.embedding.num_embeddings
    ids = torch.arange(length) % vocabulary  # (T,)
    changed = ids.repeat(length, 1)  # (T, T)
    changed.fill_diagonal_(0).add_(torch.diag((ids + 1) % vocabulary))
    return ((model(changed)[:, -1] - model(ids[None])[:, -1]).abs() > 1e-5).any(-1)


def windows(maps: Mapping[str, Tensor]) -> Figure:
    """Masks, and which inputs each position reaches through a stack, side by side."""
    size = (1.95 * len(maps), 2.0)
    figure, axes = plt.subplots(1, len(maps), figsize=size, squeeze=False)
    for ax, (title, mask) in zip(axes.flat, maps.items(), strict=True):
        plots.mask_map(ax, mask, title=title, row_label="position", column_label="sees position")
        ticks = range(0, mask.shape[0], 2)
        ax.set_xticks(ticks, ticks)
        ax.set_yticks(ticks, ticks)
    return figure


def window_reach(length: int, window: int, num_layers: int) -> Tensor:
    """Which positions each one reaches through so many layers with a window: (T, T) bool."""
    back = torch.arange(length)[:, None] - torch.arange(length)  # (T, T)
    return (back >= 0) & (back <= num_layers * (window - 1))


# --------------------------------------------------------------------------- mistakes


def _wrong(forward: Callable[..., Tensor], kind: type) -> Any:
    return mock.patch.object(kind, "forward", forward)


def _mean_removed(self: RMSNorm, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], self.weight, None, self.eps)


def _other_gate(self: SwiGLU, x: Tensor) -> Tensor:
    return self.down_proj(self.gate_proj(x) * F.silu(self.up_proj(x)))


def _both_from_x(self: Block, x: Tensor, cache: Any = None) -> Tensor:
    return x + self.attn(self.attn_norm(x), cache) + self.mlp(self.mlp_norm(x))


def _neighbours(x: Tensor, positions: Tensor, base: float = 10_000.0) -> Tensor:
    half = x.shape[-1] // 2
    angles = positions[:, None] * base ** (-torch.arange(half) / half)
    a, b = x[..., ::2], x[..., 1::2]
    turned = (a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin())
    return torch.stack(turned, dim=-1).flatten(-2)


@contextmanager
def _heads_in_turn() -> Any:
    def repeat(self: Tensor, times: int, dim: int) -> Tensor:
        return self.repeat(1, times, 1, 1)

    with mock.patch.object(Tensor, "repeat_interleave", repeat):
        yield


@contextmanager
def _every_token_first() -> Any:
    rotate = modern.rotate

    def at_zero(x: Tensor, positions: Tensor, base: float) -> Tensor:
        return rotate(x, positions - positions[0], base)

    with mock.patch.object(modern, "rotate", at_zero):
        yield


BLOCK_MISTAKES: dict[str, Callable[[], Any]] = {
    "the norm subtracts the mean": lambda: _wrong(_mean_removed, RMSNorm),
    "SiLU on up, not on gate": lambda: _wrong(_other_gate, SwiGLU),
    "feed-forward reads block input": lambda: _wrong(_both_from_x, Block),
}
ATTENTION_MISTAKES: dict[str, Callable[[], Any]] = {
    "RoPE pairs neighbours": lambda: mock.patch.object(modern, "rotate", _neighbours),
    "heads repeated in turn: 0 1 0 1": _heads_in_turn,
    "new tokens rotated as position 0": _every_token_first,
}


@torch.no_grad()
def by_steps(model: ModernGPT, ids: Tensor) -> Tensor:
    """Logits of ids (B, T), read one token at a time with a cache: (B, T, V)."""
    caches = [modern.Cache() for _ in model.blocks]
    return torch.cat([model(ids[:, t : t + 1], caches) for t in range(ids.shape[1])], 1)


@torch.no_grad()
def with_mistakes(
    model: ModernGPT, ids: Tensor, mistakes: Mapping[str, Callable[[], Any]]
) -> dict[str, tuple[float, float]]:
    """What each mistake does to the logits of a model that reads token by token.

    Returns:
        By mistake: the largest change of a logit, and the share of positions whose most probable
        token stays the same.
    """
    right = by_steps(model, ids)
    found = {}
    for name, mistake in mistakes.items():
        with mistake():
            wrong = by_steps(model, ids)
        same = (wrong.argmax(-1) == right.argmax(-1)).float().mean().item()
        found[name] = ((wrong - right).abs().max().item(), same)
    return found
