"""Where the shipped BERT's attention heads look, and what both losses are without them.

    python -m toolkit.bert.attention_heads  # measures all on held-out text, some minutes of a core

The results lie in `toolkit/measured/`; `read`, `read_cuts` and `read_sep` read them.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit import training
from toolkit.attention.heads import without_head
from toolkit.bert.fine_tuning import Rows
from toolkit.corpora.docstrings import CLS, IGNORE, SEP, SPECIAL
from toolkit.many_models import FOLDER, read_rows, write_rows
from toolkit.models import Shipped, load
from toolkit.pretrain import bert

HEADS, LAST_SEP = FOLDER / "bert_heads.csv", FOLDER / "bert_last_sep.csv"
CUTS = FOLDER / "bert_heads_cut.csv"
PAIRS = 545  # all that the held-out text gives
TARGETS = ("previous", "next", "itself", "[SEP]", "[CLS]", "same token")
TASKS = ("masked tokens", "next sentence")
Cuts = tuple[tuple[int, int], ...]  # (layer, head) of each head that is cut


def held_out_rows(shipped: Shipped, count: int = PAIRS, seed: int = 0) -> Rows:
    """Inputs of two runs of held-out sentences, half of them neighbours, as in pre-training."""
    return held_out_pairs(shipped, count, seed)[0]


def held_out_pairs(shipped: Shipped, count: int = PAIRS, seed: int = 0) -> tuple[Rows, Tensor]:
    """The inputs of `held_out_rows`, and whether each second text is a random one (B,)."""
    documents = bert.encode(shipped.held_out(), shipped.tokenizer)
    with training.seeded(seed):
        pairs = shipped.module.next_sentence_pairs(bert.runs(documents, random.Random(seed)))
        chosen = random.sample(pairs, min(count, len(pairs)))
        chosen.sort(key=lambda pair: len(pair[0]) + len(pair[1]))  # little padding in a batch
        return bert._inputs(chosen, shipped.module)


@torch.no_grad()
def attn_weights(
    model: nn.Module, ids: Tensor, token_type_ids: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """The attention weights of every layer and head (B, N, H, T, T); ids (B, T)."""
    with weights(model) as seen:
        model(ids, token_type_ids, mask)
    return torch.stack(seen, 1)


@contextlib.contextmanager
def weights(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collects the attention weights (B, H, T, T) of every layer while a BERT is called.

    They are computed again from the projections of each layer's self-attention, whatever kernel the
    layer uses, and from the mask (B, T) that it is given.
    """
    seen: list[Tensor] = []

    def look(attention: nn.Module, inputs: tuple[Any, ...]) -> None:
        x, mask = (*inputs, None)[:2]  # (B, T, D), and (B, T) or None
        q, k = projected(attention, x)
        scores = q @ k.mT / q.shape[-1] ** 0.5  # (B, H, T, T)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None], -torch.inf)
        seen.append(scores.softmax(-1))

    hooks = [
        module.register_forward_pre_hook(look)
        for module in model.modules()
        if all(hasattr(module, name) for name in ("q_proj", "k_proj", "v_proj", "num_heads"))
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def projected(attention: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys of all heads (B, H, T, d); x (B, T, D)."""
    return tuple(
        p(x).unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
        for p in (attention.q_proj, attention.k_proj)
    )


def kinds(ids: Tensor) -> dict[str, Tensor]:
    """For ids (B, T): which keys are of which kind for which query, each (B, T, T) bool."""
    T = ids.shape[1]
    at = torch.arange(T)
    apart = (at - at[:, None]).expand(len(ids), T, T)  # key minus query
    same = (ids[:, None] == ids[:, :, None]) & (apart != 0) & (ids >= SPECIAL)[:, None]
    return {
        "previous": apart == -1, "next": apart == 1, "itself": apart == 0,
        "[SEP]": (ids == SEP)[:, None].expand(-1, T, -1),
        "[CLS]": (ids == CLS)[:, None].expand(-1, T, -1), "same token": same,
    }  # fmt: skip


def shares(model: nn.Module, rows: Rows) -> tuple[Tensor, Tensor]:
    """How much attention goes to keys of each kind of `TARGETS`, on average over all queries.

    Returns:
        For each layer and head (N, H, kinds), and what even attention would give (kinds,).
    """
    total, even, queries = torch.zeros(()), torch.zeros(len(TARGETS)), 0
    for chosen in torch.arange(len(rows.ids)).split(50):
        part = rows.take(chosen, torch.device("cpu"))
        found = attn_weights(model, part.ids, part.token_type_ids, part.mask)
        found = found * part.mask[:, None, None, :, None]  # (B, N, H, T, T), no padded queries
        flat = (part.mask / part.mask.sum(1, keepdim=True))[:, None] * part.mask[:, :, None]
        of = torch.stack(list(kinds(part.ids).values())).float()  # (kinds, B, T, T)
        total = total + torch.einsum("bnhqk,cbqk->nhc", found, of)
        even += torch.einsum("bqk,cbqk->c", flat, of)
        queries += int(part.mask.sum())
    return total / queries, even / queries


def _masked_states(
    model: nn.Module, rows: Rows, corrupted: Tensor, labels: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Some rows after the other: which they are, and what a BERT makes of them.

    Yields:
        rows (B,), hidden states of the masked tokens (n, D), what stood there (n,), and pooled
        outputs (B, D); `rows.mask` says what is attended to.
    """
    for chosen in torch.arange(len(rows.ids)).split(50):
        part = rows.take(chosen, torch.device("cpu"))
        T = part.ids.shape[1]
        hidden, pooled = model.bert(corrupted[chosen, :T], part.token_type_ids, part.mask)
        wanted = labels[chosen, :T]
        at = wanted != IGNORE
        yield chosen, hidden[at], wanted[at], pooled


@torch.no_grad()
def token_losses(model: nn.Module, rows: Rows, corrupted: Tensor, labels: Tensor) -> Tensor:
    """The loss at each masked position, in order (n,); `rows.mask` says what is attended to."""
    return torch.cat(
        [
            F.cross_entropy(model.mlm(hidden), wanted, reduction="none")
            for _, hidden, wanted, _ in _masked_states(model, rows, corrupted, labels)
        ]
    )


@torch.no_grad()
def task_losses(
    model: nn.Module, rows: Rows, corrupted: Tensor, labels: Tensor, is_random: Tensor
) -> dict[str, tuple[Tensor, Tensor]]:
    """For each of `TASKS` the losses, one a masked token or pair, and which answers are right."""
    found: dict[str, list[tuple[Tensor, Tensor]]] = {task: [] for task in TASKS}
    for chosen, hidden, wanted, pooled in _masked_states(model, rows, corrupted, labels):
        for task, logits, right in (
            (TASKS[0], model.mlm(hidden), wanted),
            (TASKS[1], model.nsp(pooled), is_random[chosen]),
        ):
            losses = F.cross_entropy(logits, right, reduction="none")
            found[task].append((losses, logits.argmax(-1) == right))
    return {task: tuple(map(torch.cat, zip(*parts, strict=True))) for task, parts in found.items()}


@contextlib.contextmanager
def without_heads(model: nn.Module, cut: Cuts) -> Iterator[None]:
    """In the block that it begins, several heads return zeros."""
    with contextlib.ExitStack() as stack:
        for layer, head in cut:
            stack.enter_context(without_head(model, layer, head))
        yield


# --------------------------------------------------------------------------- stored measurements


@dataclass(frozen=True)
class Head:
    """What is known of a head: shares of its attention by `TARGETS`, and the loss without it.

    change: of the loss of masked tokens, in nats, when the head returns zeros; error: its standard
    error over the tokens.
    """

    shares: dict[str, float]
    change: float
    error: float


def _change(found: Tensor, before: Tensor) -> dict[str, float]:
    difference = found - before
    error = difference.std() / len(difference) ** 0.5
    return {"change": round(difference.mean().item(), 4), "error": round(error.item(), 4)}


def measure() -> None:
    """Measure all heads and the closing [SEP] on the held-out text, and write the files."""
    shipped = load("bert")
    model, (rows, is_random) = shipped.model, held_out_pairs(shipped)
    with training.seeded(1):
        corrupted, labels = shipped.module.mask_tokens(rows.ids, len(shipped.tokenizer))
    cuts = _cuts(shipped, rows, corrupted, labels, is_random)
    write_rows(CUTS, cuts)
    alone = {row["without"]: row for row in cuts if row["task"] == TASKS[0]}
    before = token_losses(model, rows, corrupted, labels)
    of, even = shares(model.bert, rows)
    made: list[dict[str, object]] = [
        {"layer": "even", "head": ""} | dict(zip(TARGETS, _rounded(even), strict=True))
        | {"change": before.mean().item(), "error": len(before)}
    ]  # fmt: skip
    for layer in range(of.shape[0]):
        for head in range(of.shape[1]):
            part = dict(zip(TARGETS, _rounded(of[layer, head]), strict=True))
            change = {name: alone[f"{layer}.{head}"][name] for name in ("change", "error")}
            made.append({"layer": layer, "head": head} | part | change)
    write_rows(HEADS, made)

    last = rows.mask.sum(1, keepdim=True) - 1  # (B, 1), where the closing [SEP] stands
    at = torch.arange(rows.ids.shape[1])
    asked = labels != IGNORE
    before_sep = ((last - at).expand_as(asked) == 1)[asked]  # (n,)
    stop = labels[asked] == shipped.tokenizer.names.index(".")  # (n,)
    groups = {
        "last": before_sep, "others": ~before_sep,
        "last, full stop": before_sep & stop, "last, another": before_sep & ~stop,
    }  # fmt: skip
    first = ((rows.ids == SEP) & (at != last)).int().argmax(1, keepdim=True)
    hidden = {"closing [SEP]": last, "first [SEP]": first, "[CLS]": torch.zeros_like(last)}
    made = []
    for cut in ((), (0, 3)):
        with without_head(model.bert, *cut) if cut else contextlib.nullcontext():
            before = token_losses(model, rows, corrupted, labels)
            for name, where in list(hidden.items())[: 1 if cut else None]:
                part = Rows(rows.ids, rows.token_type_ids, rows.mask & (at != where))
                found = token_losses(model, part, corrupted, labels)
                for group, chosen in groups.items():
                    made.append({"hidden": name, "without": ".".join(map(str, cut)),
                                 "positions": group, "count": int(chosen.sum()),
                                 "before": round(before[chosen].mean().item(), 4)}
                                | _change(found[chosen], before[chosen]))  # fmt: skip
    write_rows(LAST_SEP, made)


def _cuts(
    shipped: Shipped, rows: Rows, corrupted: Tensor, labels: Tensor, is_random: Tensor
) -> list[dict[str, object]]:
    """Both tasks without each head, each layer's heads, and all above the first layer."""
    layers, heads = shipped.config["num_layers"], shipped.config["num_heads"]
    every = [[(layer, head) for head in range(heads)] for layer in range(layers)]
    cuts: dict[str, Cuts] = {"none": ()}
    cuts |= {f"{layer}.{head}": ((layer, head),) for row in every for layer, head in row}
    cuts |= {f"layer {layer}": tuple(row) for layer, row in enumerate(every)}
    cuts["above the first"] = tuple(pair for row in every[1:] for pair in row)
    made: list[dict[str, object]] = []
    before: dict[str, tuple[Tensor, Tensor]] = {}
    for name, cut in cuts.items():
        with without_heads(shipped.model.bert, cut):
            found = task_losses(shipped.model, rows, corrupted, labels, is_random)
        before = before or found
        for task, (losses, right) in found.items():
            made.append({"without": name, "task": task, "count": len(losses),
                         "loss": round(losses.mean().item(), 4)}
                        | _change(losses, before[task][0])
                        | {"accuracy": round(right.float().mean().item(), 4)})  # fmt: skip
    return made


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]


def read() -> tuple[dict[tuple[int, int], Head], dict[str, float], float, int]:
    """The heads by (layer, head), what even attention gives, and the loss of so many tokens."""
    even, *rows = read_rows(HEADS)
    heads = {
        (int(row["layer"]), int(row["head"])): Head(
            {name: float(row[name]) for name in TARGETS}, float(row["change"]), float(row["error"])
        )
        for row in rows
    }
    return heads, {n: float(even[n]) for n in TARGETS}, float(even["change"]), int(even["error"])


def read_cuts() -> dict[tuple[str, str], dict[str, float]]:
    """Loss, its change and standard error, and accuracy, by what is cut and by task.

    What is cut: "none", a head such as "0.2", "layer 2" with all its heads, "above the first".
    """
    return {
        (row["without"], row["task"]): {
            name: float(row[name]) for name in ("count", "loss", "change", "error", "accuracy")
        }
        for row in read_rows(CUTS)
    }


def read_sep() -> dict[tuple[str, str, str], dict[str, float]]:
    """What concealing [SEP] or [CLS] changes: by what, which head is cut ("": none), and where.

    Where: at the "last" token before the closing [SEP], or at the "others"; of the last also those
    that are a full stop ("last, full stop") and those that aren't ("last, another").
    """
    return {
        (row["hidden"], row["without"], row["positions"]): {
            name: float(row[name]) for name in ("count", "before", "change", "error")
        }
        for row in read_rows(LAST_SEP)
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    measure()
