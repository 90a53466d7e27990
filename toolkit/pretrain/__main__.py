"""The command line: train a model of the book anew, and compare it with the one that is shipped."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from toolkit import command_line, device, models, translate
from toolkit.pretrain import bert, cards, common, gpt, measures, translator
from toolkit.pretrain.common import Job

OUT = Path("build/models")
# How far a new model may stay behind the card: another processor or another Python's library
# changes the numbers, and so does one's own code. Losses and bits may be so much larger, shares so
# much smaller.
TOLERANCE = {"loss": 0.15, "bits_per_byte": 0.05, "accuracy": 0.03, "exact": 0.03}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")


def worse(name: str, new: float, card: float) -> bool:
    """Whether a metric of a new model misses the card's by more than `TOLERANCE`."""
    allowed = next(value for part, value in TOLERANCE.items() if name.endswith(part))
    less_is_better = name.endswith(("loss", "bits_per_byte"))
    return new > card + allowed if less_is_better else new < card - allowed


@app.command()
def pretrain(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(models.KINDS)}.")],
    model: Annotated[
        str | None, typer.Option(help="The module with its classes, or a .py file.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help=f"Folder; {OUT}/NAME if not given.")] = None,
    steps: Annotated[int | None, typer.Option(help="Instead of the preset's.", min=1)] = None,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Keep the weights after 1, 10 and 100 percent.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin again.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Also measure what takes minutes, and write the card.")
    ] = False,
    threads: Annotated[int, typer.Option(help="Threads on a CPU.", min=1)] = 1,
) -> None:
    """Train a model of the book anew. The same command goes on after an interruption.

    On a GPU the models are larger, and the card's metrics are to be beaten.
    """
    if name not in models.KINDS:
        raise ValueError(f"there is no model {name!r}; there are {', '.join(models.KINDS)}")
    torch.set_num_threads(threads)
    module = translate.load_module(model or models.default_module(name), models.needed(name))
    folder = out or OUT / name
    if fresh and folder.exists():
        shutil.rmtree(folder)
    job = Job(folder, module, device.preset(), steps, checkpoints, say=command_line.say)
    part, kind, target = models.KINDS[name]
    began = time.process_time()
    if part is translator:
        translator.train(job, kind, target)
    elif part is gpt:
        gpt.train(job)
    else:
        bert.train(job)
    command_line.say(f"{name}: {(time.process_time() - began) / 60:.1f} minutes of processor time")
    made = models.load(name, model, folder)
    found = models.measure(made)
    if full:
        found |= measures.more(made)
        common.write_json(folder / models.METRICS, {k: round(v, 4) for k, v in found.items()})
        common.write_text(folder / common.CARD, cards.card(made))
    if not _compare(name, found):
        raise typer.Exit(1)


def _compare(name: str, found: dict[str, float]) -> bool:
    """Print new metrics beside the card's; whether none misses it."""
    path = models.FOLDER / name / models.METRICS
    card = models.load(name).metrics if path.is_file() else {}
    table = Table(box=None, title=name, title_justify="left")
    for column in ("metric", "new", "card"):
        table.add_column(column, justify="left" if column == "metric" else "right")
    good = True
    for metric, value in found.items():
        known = card.get(metric)
        judged = known is not None and any(metric.endswith(part) for part in TOLERANCE)
        miss = judged and worse(metric, value, known)
        good = good and not miss
        shown = "" if known is None else f"{known:.3f}"
        table.add_row(metric, f"{value:.3f}{' (worse)' if miss else ''}", shown)
    Console().print(table)
    return good


def main(arguments: list[str] | None = None) -> None:
    """Run the command. What goes wrong in a foreseen way is said in one sentence, status 2."""
    command_line.run(app, "python -m toolkit.pretrain", arguments, _fail)


def _fail(text: str, status: int) -> None:
    command_line.fail(f"pretrain: {text}", status)


if __name__ == "__main__":
    main()
