"""Pictures of the page on BERT's encoder: its layer beside GPT-2's, GELU, who reaches whom."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit import widgets
from toolkit.diagrams import FAINT, SOFT, Sheet
from toolkit.plots import INK, PALETTE
from toolkit.pretrain import bert

# Of each stack from below: height above the ground, and what stands there.
STACKS = {
    "BERT": (
        (2.3, "norm"), (4.8, "self-attention\nboth sides"), (6.45, "+"), (7.55, "norm"),
        (9.4, "feed-forward\nGELU"), (11.05, "+"), (12.15, "norm"),
    ),
    "GPT-2": (
        (4.15, "norm"), (5.6, "self-attention\nleft side only"), (7.2, "+"), (8.5, "norm"),
        (9.95, "feed-forward\nGELU, tanh"), (11.55, "+"), (13.75, "norm"),
    ),
}  # fmt: skip
ENDS = {
    "BERT": ("token + position\n+ segment", "hidden, pooled"),
    "GPT-2": ("token + position", "logits"),
}
FLOOR, CEILING = 2.95, 12.9  # of what is repeated


def layers() -> Figure:
    """BERT's stack and GPT-2's side by side, from the embeddings to what comes out."""
    sheet = Sheet(12.4, 16.3)
    for x, (name, parts) in zip((3.0, 9.4), STACKS.items(), strict=True):
        below, above = ENDS[name]
        sheet.text(x, 15.95, name, 13)
        sheet.words(f"{name}.in", x, 0.75, below, width=4.6, height=1.3, size=11.5)
        sheet.panel(x - 2.8, FLOOR, x + 2.8, CEILING)
        sheet.text(x + 2.6, CEILING - 0.45, "× N", 11.5, ha="right", color=SOFT)
        before = f"{name}.in"
        forks = [FLOOR + 0.36]  # where each residual connection leaves the stream
        for number, (y, part) in enumerate(parts):
            label = f"{name}.{number}"
            if part == "+":
                sheet.plus(label, x, y, 0.33)
            elif part == "norm":
                sheet.node(label, x, y, part, "output", width=2.2, height=0.9, size=11.5)
            else:
                sheet.node(label, x, y, part, "weights", width=3.9, height=1.5, size=11.5)
            sheet.link(before, label)
            if part == "+":
                fork = forks.pop()
                sheet.link(before, label, "skip", start=(x, fork),
                           via=((x - 2.35, fork), (x - 2.35, y)), end="left",
                           color=PALETTE[1])  # fmt: skip
                sheet.dot(x, fork, PALETTE[1])
                forks.append(y + (1.75 if name == "BERT" else 0.58))
            before = label
        sheet.words(f"{name}.out", x, 15.1, above, width=3.4, height=0.7, size=11.5)
        sheet.link(before, f"{name}.out")
    return sheet.figure


def gelu_curve() -> Figure:
    """GELU beside ReLU, with the two values of the page."""
    figure, ax = plt.subplots(figsize=(5.2, 2.9))
    x = torch.linspace(-3, 2.2, 300)
    ax.axhline(0, color=FAINT, lw=0.8)
    ax.axvline(0, color=FAINT, lw=0.8)
    ax.plot(x, F.relu(x), "--", color=PALETTE[1], label="ReLU")
    ax.plot(x, F.gelu(x), color=PALETTE[0], label="GELU")
    for point in (-1.0, 1.0):
        value = F.gelu(torch.tensor(point)).item()
        ax.plot(point, value, "o", color=INK, ms=5)
        side = (0.12, -0.16) if point > 0 else (-0.1, -0.34)
        ax.text(point + side[0], value + side[1], f"({point:g}, {value:.2f})".replace("-", "−"),
                fontsize=11, ha="left" if point > 0 else "center")  # fmt: skip
    ax.set(xlabel="x", ylabel="output", ylim=(-0.7, 2.3))
    ax.legend(fontsize=11, loc="upper left")
    return figure


# --------------------------------------------------------------------------- who reaches whom


@torch.no_grad()
def influence(encoder: nn.Module, input_ids: Tensor, mask_id: int) -> Tensor:
    """How far each output vector moves when one token is masked.

    Args:
        encoder: a `BertModel` in evaluation mode.
        input_ids: (1, T), from [CLS] to [SEP].
        mask_id: of [MASK].

    Returns:
        (T, T - 2): length of the change over the length of the vector, a row an output, a column
        a masked token; [CLS] and [SEP] are never masked.
    """
    plain = encoder(input_ids)[0][0]  # (T, D)
    columns = []
    for position in range(1, input_ids.shape[1] - 1):
        masked = input_ids.clone()
        masked[0, position] = mask_id
        moved = encoder(masked)[0][0] - plain  # (T, D)
        columns.append(moved.norm(dim=-1) / plain.norm(dim=-1))
    return torch.stack(columns, 1)


def influence_tables(found: dict[str, Tensor], tokens: list[str]) -> str:
    """Maps of `influence` side by side as HTML; what can't move at all is 0.

    Args:
        tokens: T, from [CLS] to [SEP].
    """
    return widgets.side_by_side(
        *(
            widgets.heat_table(values, tokens, tokens[1:-1], title)
            for title, values in found.items()
        )
    )


# --------------------------------------------------------------------------- what goes wrong


def with_encoder(shipped: Any, kind: type[nn.Module]) -> nn.Module:
    """The shipped model with its weights in another class of encoder, in evaluation mode."""
    model = shipped.module.BertForPreTraining(**shipped.config)
    model.bert = kind(**shipped.config)
    model.mlm.token = model.bert.embeddings.token  # tied
    model.load_state_dict(shipped.model.state_dict())
    return model.eval()


def accuracies(shipped: Any, models: dict[str, nn.Module], pairs: int) -> dict[str, float]:
    """Share of masked tokens that each model predicts right, the same held-out ones for all.

    Args:
        pairs: of held-out sentences.
    """
    documents = bert.encode(shipped.held_out(), shipped.tokenizer)
    return {
        name: bert.evaluate(
            model, documents, shipped.module, len(shipped.tokenizer), most=pairs, single=True
        )["mlm_accuracy"]
        for name, model in models.items()
    }
