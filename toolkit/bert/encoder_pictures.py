"""Pictures of the page on BERT's encoder: its layer beside GPT-2's, GELU, who reaches whom."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from toolkit import widgets
from toolkit.diagrams import SOFT, Sheet
from toolkit.plots import PALETTE
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
