"""What things cost on this machine, measured in one run: `make bench`.

Seconds per submission beside stock nbgrader on the same honest submissions, with the marks
compared; the latency of `check`; the kill rate of `verify`; seconds to build the book. Printed as
a table and written to build/bench.json.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from autograder import paths


@dataclass
class Figure:
    """One measurement. `detail` says on what it was taken."""

    name: str
    value: float
    unit: str
    detail: str = ""


def one_core() -> None:
    """Stay on one processor core, children included."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def honest_class(folder: Path, chapter: str, count: int) -> None:
    """`count` submissions without tricks: right answers, single mistakes, and half-done work."""
    from autograder import demo_class

    demo_class.make_honest(folder, chapter, count)


def stock_marks(course: Path, chapter: str) -> dict[str, float]:
    """The marks in an nbgrader gradebook, written questions left out."""
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        return {
            submission.student.id: round(
                sum(
                    grade.auto_score or 0.0 for one in submission.notebooks for grade in one.grades
                ),
                2,
            )
            for submission in book.assignment_submissions(chapter)
        }


def grading(chapter: str, count: int) -> list[Figure]:
    """Our plug-in and stock nbgrader on one core, on the same submissions.

    Raises:
        RuntimeError: the marks differ, or stock nbgrader failed.
    """
    from autograder import classroom
    from autograder.builder import prepare_course

    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        submitted = folder / "submitted"
        honest_class(submitted, chapter, count)

        script = (
            "from pathlib import Path; from autograder import bench, classroom; bench.one_core();"
            f"classroom.grade({chapter!r}, Path('submitted'), Path('ours'),"
            " jobs=1, seed=0, cache=False)"
        )
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", script], check=True, cwd=folder)
        ours = (time.perf_counter() - started) / count
        results = classroom.Class.read(folder / "ours", chapter).results
        our_marks = {item.student: item.score for item in results}

        course = folder / "stock"
        prepare_course(course, [chapter])
        shutil.copytree(submitted, course / "submitted")
        (course / "nbgrader_config.py").write_text(
            "c = get_config()\n"
            f"c.CourseDirectory.root = {str(course)!r}\n"
            "c.ExecutePreprocessor.timeout = 300\n"
        )
        command = f"import autograder.bench as b; b.one_core(); b.stock({chapter!r})"
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", command],
            cwd=course,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(paths.ROOT)},
        )
        stock_seconds = (time.perf_counter() - started) / count
        if done.returncode:
            raise RuntimeError(f"stock nbgrader failed: {done.stderr[-500:]}")
        stock_scores = stock_marks(course, chapter)
        if stock_scores != our_marks:
            differing = {
                student: (mark, stock_scores.get(student))
                for student, mark in our_marks.items()
                if stock_scores.get(student) != mark
            }
            raise RuntimeError(f"the marks differ (ours, stock): {differing}")
    detail = f"{count} honest submissions of {chapter}, one core, start-up included"
    return [
        Figure("plug-in", ours, "s per submission", detail),
        Figure("stock nbgrader", stock_seconds, "s per submission", detail),
        Figure("ratio", stock_seconds / ours, "times faster", "identical marks"),
    ]


def stock(chapter: str) -> None:
    """Run nbgrader's own autograde as its command line does."""
    from nbgrader.apps import NbGraderApp

    NbGraderApp.launch_instance(argv=["autograde", chapter, "--log-level=ERROR"])


def check_latency(chapter: str) -> list[Figure]:
    """Seconds that a student waits for `check`, on right and on wrong code."""
    from autograder import checks_for, variants

    mistakes = variants.misconceptions(chapter)
    tasks = [(variants.source_of(chapter), mistakes[0].exercise)]
    tasks += [(variants.changed_source(chapter, item), item.exercise) for item in mistakes]
    seconds = []
    for source, exercise in tasks:
        namespace = variants.load_variant(source, "student")
        namespace["check"] = checks_for(chapter)
        started = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            exec(f"check({exercise!r})", namespace)
        seconds.append(time.perf_counter() - started)
    first, *later = seconds
    return [
        Figure("check, first", first, "s", "imports and recorded answers included"),
        Figure("check, median", statistics.median(later), "s", f"{len(later)} wrong answers"),
        Figure("check, slowest", max(later), "s", f"{len(later)} wrong answers"),
    ]


def kill_rate(chapter: str) -> list[Figure]:
    """What `verify` finds, and how long it takes."""
    from autograder.verify import verify

    started = time.perf_counter()
    verdict = verify(chapter, jobs=os.cpu_count() or 1)
    seconds = time.perf_counter() - started
    return [
        Figure(
            "mutants killed",
            100 * verdict.killed / max(verdict.mutants - verdict.equivalent, 1),
            "%",
            f"{verdict.killed} of {verdict.mutants}, {verdict.equivalent} equivalent",
        ),
        Figure(
            "misconceptions named",
            100 * verdict.diagnosed / max(verdict.misconceptions, 1),
            "%",
            f"{verdict.rejected} of {verdict.misconceptions} rejected",
        ),
        Figure("verify", seconds, "s", f"{os.cpu_count()} processes"),
    ]


def book_seconds() -> list[Figure]:
    """Build the book cold, and again with nothing changed."""
    figures = []
    with tempfile.TemporaryDirectory(prefix="bench-book-") as name:
        for label in ("book, cold", "book, cached"):
            started = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "toolkit.book", "--out", name],
                cwd=paths.ROOT,
                check=True,
                stdout=subprocess.DEVNULL,
            )
            figures.append(Figure(label, time.perf_counter() - started, "s", "all pages"))
    return figures


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write build/bench.json."""
    parser = argparse.ArgumentParser(prog="python -m autograder.bench", description=__doc__)
    parser.add_argument("--only", choices=("grading", "check", "verify", "book"))
    parser.add_argument("--count", type=int, default=6, help="submissions for the comparison")
    options = parser.parse_args(arguments)
    console = Console()
    parts: dict[str, Callable[[str], list[Figure]]] = {
        "grading": lambda chapter: grading(chapter, options.count),
        "check": check_latency,
        "verify": kill_rate,
    }
    report: dict[str, Any] = {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        },
        "figures": [],
    }
    table = Table(title="Measured on this machine, in one run")
    for heading in ("what", "value", "unit", "on what"):
        table.add_column(heading, justify="right" if heading == "value" else "left")

    def add(where: str, figures: list[Figure]) -> None:
        for figure in figures:
            report["figures"].append({"of": where, **asdict(figure)})
            table.add_row(
                f"{where}: {figure.name}", f"{figure.value:.3g}", figure.unit, figure.detail
            )

    for chapter in paths.chapters():
        for name, measure in parts.items():
            if options.only in (None, name):
                console.print(f"measuring {name} of {chapter} ...")
                add(chapter, measure(chapter))
    if options.only in (None, "book"):
        console.print("measuring the book ...")
        add("book", book_seconds())
    console.print(table)
    target = paths.BUILD / "bench.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    console.print(f"written to {target.relative_to(paths.ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
