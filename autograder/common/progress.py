"""Progress bars for work that takes a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Task

WORDS = {
    "grading": "Running and grading",
    "books": "Gradebook and feedback",
    "feedback": "Feedback",
}


def rate(task: Task) -> str:
    """How fast a task goes, in the unit in which the number is easy to read."""
    speed = task.finished_speed or task.speed
    if not speed:
        return ""
    return f"{speed:.1f} a second" if speed >= 1 else f"{60 * speed:.0f} a minute"


@contextmanager
def showing_progress(quiet: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on stderr: submissions done, how fast it goes, and the time that is left."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class RateColumn(ProgressColumn):
        """The rate of the last submissions."""

        def render(self, task: Task) -> Text:
            return Text(rate(task), style="progress.data.speed")

    columns = (
        TextColumn("{task.description:<22}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        RateColumn(),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )
    with Progress(
        *columns, console=Console(stderr=True), disable=quiet, speed_estimate_period=60
    ) as bar:
        tasks: dict[str, Any] = {}

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(WORDS.get(stage, stage), total=total)
            bar.update(tasks[stage], completed=done)

        yield tell
