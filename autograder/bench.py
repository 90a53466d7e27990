"""What things cost on this machine, measured in one run: `make bench`.

Seconds per submission beside stock nbgrader on the same honest submissions, with the marks
compared; the latency of `check`; the kill rate of `verify`; seconds to build the book. Printed as
a table and written to build/bench.json.

Grading is measured on one core: a class of 24 by both, and for the plug-in a class three times as
large too, since what it costs to begin is shared by everybody. What each further submission costs
is measured within stock nbgrader's run, and between the plug-in's two.
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

LARGER = 3  # how many times the class is, from which the cost of each further one is taken
CLASS = 400  # for how many submissions the time is worked out


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
    from autograder import demo_class

    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        many = LARGER * count
        demo_class.make_honest(folder / "larger", chapter, many)
        for student in sorted((folder / "larger").iterdir())[:count]:
            shutil.copytree(student, folder / "submitted" / student.name)
        our_seconds, marks = _ours(folder, chapter, "submitted")
        more_seconds, _ = _ours(folder, chapter, "larger")
        stock_seconds, stock_further, stock_marks = _stock(folder, chapter)
    if stock_marks != marks:
        differing = {
            student: (mark, stock_marks.get(student))
            for student, mark in marks.items()
            if stock_marks.get(student) != mark
        }
        raise RuntimeError(f"the marks differ (ours, stock): {differing}")
    further = (more_seconds - our_seconds) / (many - count)
    ours, stock = our_seconds / count, stock_seconds / count
    class_of = f"{count} honest submissions, one core"
    whole = more_seconds + (CLASS - many) * further
    stock_whole = stock_seconds + (CLASS - count) * stock_further
    return [
        Figure("plug-in", ours, "s per submission", f"{class_of}, start-up included"),
        Figure("stock nbgrader", stock, "s per submission", f"{class_of}, start-up included"),
        Figure("ratio", stock / ours, "times faster", "start-up included, identical marks"),
        Figure("plug-in, each further", further, "s", f"from {count} to {many} submissions"),
        Figure("stock nbgrader, each further", stock_further, "s", f"among {count} submissions"),
        Figure("ratio, each further", stock_further / further, "times faster", "identical marks"),
        Figure("plug-in, class of 400", whole / 60, "minutes", "start-up, and each further"),
        Figure("stock nbgrader, class of 400", stock_whole / 60, "minutes", "the same"),
        Figure("ratio, class of 400", stock_whole / whole, "times faster", "worked out"),
    ]


def _ours(folder: Path, chapter: str, submitted: str) -> tuple[float, dict[str, float]]:
    """Seconds for a new process to grade a class in a new course, and the marks."""
    from autograder import classroom

    course = folder / f"course-{submitted}"
    script = (
        "from pathlib import Path; from autograder import bench, classroom; bench.one_core();"
        f"classroom.grade({chapter!r}, Path({submitted!r}), Path({course.name!r}),"
        " jobs=1, seed=0, cache=False)"
    )
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", script], check=True, cwd=folder)
    seconds = time.perf_counter() - started
    results = classroom.Class.read(course, chapter).results
    return seconds, {item.student: item.score for item in results}


def _stock(folder: Path, chapter: str) -> tuple[float, float, dict[str, float]]:
    """Seconds for stock nbgrader's autograde, those for each further submission, and the marks."""
    from autograder.builder import prepare_course

    course = folder / "stock"
    prepare_course(course, [chapter])
    shutil.copytree(folder / "submitted", course / "submitted")
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
    seconds = time.perf_counter() - started
    if done.returncode:
        raise RuntimeError(f"stock nbgrader failed: {done.stderr[-500:]}")
    written = sorted(
        path.stat().st_mtime for path in (course / "autograded").glob(f"*/*/{chapter}.ipynb")
    )
    further = (written[-1] - written[0]) / (len(written) - 1)
    return seconds, further, stock_marks(course, chapter)


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
    parser.add_argument("--chapter", choices=paths.chapters(), help="only this chapter")
    parser.add_argument("--count", type=int, default=24, help="submissions for the comparison")
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
            "load": os.getloadavg()[0],
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

    chapters = [options.chapter] if options.chapter else paths.chapters()
    for chapter in chapters:
        for name, measure in parts.items():
            # Stock nbgrader takes minutes: it is compared on the first chapter.
            if options.only in (None, name) and (name != "grading" or chapter == chapters[0]):
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
