"""Progress bars for work that takes a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def showing_progress(quiet: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on stderr that counts submissions."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    words = {
        "grading": "Running and grading",
        "books": "Gradebook and feedback",
        "feedback": "Feedback",
    }
    columns = (TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeElapsedColumn(), console=Console(stderr=True), disable=quiet
    ) as bar:
        tasks: dict[str, Any] = {}

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(words.get(stage, stage), total=total)
            bar.update(tasks[stage], completed=done)

        yield tell
