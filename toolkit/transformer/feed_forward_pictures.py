"""The page on the feed-forward network: a network of four detectors, and a trained one's units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit import plots
from toolkit.corpora.translation import PAD, Pair, collate
from toolkit.models import Shipped
from toolkit.plots import INK, MAP, PALETTE

# Two features a token: whether «not» belongs to it, and whether it is good (1) or bad (-1).
INPUTS = {"good": (0.0, 1.0), "bad": (0.0, -1.0), "not good": (1.0, 1.0), "not bad": (1.0, -1.0)}
WEIGHTS = {
    "w_1.weight": torch.tensor([[-1.0, 1], [-1, -1], [1, 1], [1, -1]]),  # (F, D), a row a unit
    "w_1.bias": torch.tensor([0.0, 0, -1, -1]),  # (F,)
    "w_2.weight": torch.tensor([[1.0, 0, 0, 1], [0, 1, 1, 0]]),  # (D, F), a column a unit
    "w_2.bias": torch.zeros(2),  # (D,)
}
OUTPUTS = ("praise", "blame")


def vectors() -> Tensor:
    """The example's tokens (4, 2), in the order of `INPUTS`."""
    return torch.tensor(list(INPUTS.values()))


def hidden(x: Tensor) -> Tensor:
    """The example's hidden units, after the ReLU: (..., 2) -> (..., 4)."""
    return F.relu(F.linear(x, WEIGHTS["w_1.weight"], WEIGHTS["w_1.bias"]))


# --------------------------------------------------------------------------- figures


def detectors() -> Figure:
    """Where in the plane of the two features each hidden unit is above 0, and how far."""
    figure, panels = plt.subplots(1, 4, figsize=(5.4, 1.9), sharey=True)
    steps = torch.linspace(0, 1, 60)
    across, up = torch.meshgrid(-0.5 + 2 * steps, -1.6 + 3.2 * steps, indexing="xy")
    plane = hidden(torch.stack([across, up], -1))  # (60, 60, 4)
    points = vectors()
    for unit, (ax, name) in enumerate(zip(panels, INPUTS, strict=True)):
        ax.imshow(plane[..., unit], cmap=MAP, vmin=0, vmax=2.6, origin="lower", aspect="auto",
                  extent=(-0.5, 1.5, -1.6, 1.6))  # fmt: skip
        for x, value in zip(points, hidden(points)[:, unit], strict=True):
            ax.plot(*x.tolist(), "o", ms=9, mec=INK, mfc=PALETTE[1] if value > 0 else "white")
        ax.set_title(f"unit {unit + 1}:\n{name}", loc="center", fontsize=11.5)
        ax.set_xticks([0, 1], ["–", "not"], fontsize=11)
        ax.set_yticks([-1, 1], ["bad", "good"], fontsize=11)
        ax.tick_params(length=0)
    return figure


def verdicts(results: Mapping[str, Tensor]) -> Figure:
    """Outputs (4, 2) of several networks for the example's tokens, with their numbers."""
    figure, panels = plt.subplots(1, len(results), figsize=(5.4, 2.2), sharey=True)
    for ax, (title, values) in zip(panels, results.items(), strict=True):
        shown = plots.array(values)
        ax.imshow(shown, cmap="PuOr_r", vmin=-2.2, vmax=2.2, aspect="auto")
        for row, column in ((r, c) for r in range(4) for c in range(2)):
            text = f"{shown[row, column] + 0.0:.2f}".replace("-0.00", "0.00").replace("-", "−")
            ax.text(column, row, text, ha="center", va="center", fontsize=10.5)
        ax.set_title(title, loc="center", fontsize=11.5)
        ax.set_xticks(range(2), OUTPUTS, fontsize=10)
        ax.set_yticks(range(4), list(INPUTS), fontsize=11)
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    return figure


def gates(seed: int = 19, samples: int = 400_000) -> Figure:
    """GELU and ReLU: the curves, and the densities of what they make of normal numbers."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(5.4, 2.3))
    grid = torch.linspace(-3, 3, 200)
    left.plot(grid, 0.5 * (1 + torch.erf(grid / 2**0.5)), "--", color="#77726a", label="Φ")
    draws = torch.randn(samples, generator=torch.Generator().manual_seed(seed))
    bins = torch.linspace(-0.3, 3, 67)
    for colour, (name, gate) in zip(PALETTE, (("GELU", F.gelu), ("ReLU", F.relu)), strict=False):
        left.plot(grid, gate(grid), color=colour, label=name)
        right.hist(gate(draws).numpy(), bins.tolist(), density=True, histtype="step",
                   color=colour, lw=1.6, label=name)  # fmt: skip
    left.set(xlabel="input", ylabel="output", title="two gates")
    left.legend(fontsize=10)
    right.set(yscale="log", xlabel="output", ylabel="density", title="of a normal input")
    return figure


# --------------------------------------------------------------------------- a trained model


@dataclass(frozen=True)
class Readings:
    """What the hidden units of a decoder's feed-forward network do while given translations.

    hidden: (N, F), after the ReLU, a row a position. next_ids: (N,), the token to be written.
    pair: (N,), the number of the sentence.
    """

    hidden: Tensor
    next_ids: Tensor
    pair: Tensor

    def half(self, second: bool) -> Readings:
        """The sentences of the first or of the second half."""
        chosen = (self.pair > self.pair.max() // 2) == second
        return Readings(self.hidden[chosen], self.next_ids[chosen], self.pair[chosen])

    def strongest(self, count: int = 20) -> Tensor:
        """The next tokens where each unit is most active: (count, F)."""
        return self.next_ids[self.hidden.topk(count, dim=0).indices]


def last_network(shipped: Shipped) -> nn.Module:
    """The feed-forward network of the decoder's last layer."""
    return shipped.model.decoder.layers[-1].feed_forward


@torch.no_grad()
def readings(
    shipped: Shipped, pairs: Sequence[Pair], off: Sequence[int] = ()
) -> tuple[Readings, Tensor]:
    """Give a translator its sentences and their translations, and watch the last network.

    Args:
        off: units that are set to 0.

    Returns:
        The readings at all real positions, and the log-probabilities (N, V) there.
    """
    words, network = shipped.tokenizer, last_network(shipped)
    batch = collate(*zip(*((words.ids(p.source_tokens), words.ids(p.target_tokens)) for p in pairs),
                         strict=True))  # fmt: skip
    seen: list[Tensor] = []

    def watch(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        changed = inputs[0].clone()
        changed[..., list(off)] = 0
        seen.append(changed)
        return (changed, *inputs[1:])

    handle = network.w_2.register_forward_pre_hook(watch)
    try:
        log_probs = shipped.model(batch.source, batch.target_in)  # (B, U, V)
    finally:
        handle.remove()
    real = batch.target_out != PAD  # (B, U)
    pair = torch.arange(len(pairs))[:, None].expand_as(real)
    return Readings(seen[0][real], batch.target_out[real], pair[real]), log_probs[real]


def names(shipped: Shipped, ids: Tensor) -> list[str]:
    """The tokens of ids (N,), the end as well."""
    return ["".join(shipped.tokenizer.tokens([i])) or "<eos>" for i in ids.tolist()]


@torch.no_grad()
def promoted(shipped: Shipped) -> Tensor:
    """What each unit's value adds to the logits by the last norm's scale: (F, V).

    The norm divides a position's sum by its deviation, the same number for all logits; that
    division is left out.
    """
    layer, output = shipped.model.decoder.layers[-1], shipped.model.generator.proj.weight
    values = last_network(shipped).w_2.weight.T  # (F, D)
    values = values - values.mean(-1, keepdim=True)
    return (values * layer.sublayer[-1].norm.gamma) @ output.T
