"""The bench's part on grading a class: beside stock nbgrader, and from 10 to 1,000 submissions.

Classes grow in two ways: as real ones do, and with nothing in one submission like in another.

Everybody gets all cores of this machine and the same honest submissions, and begins with an empty
course. What is timed are whole commands, from the start of Python to the last byte written. Stock
nbgrader runs twice: as it grades, and with the execution of notebooks switched off, which leaves
its own bookkeeping. The marks must be the same, or nothing is reported.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from autograder.benchmarks.timing import Figure
from autograder.common import paths

COUNTS = (10, 30, 100, 300, 1000)

# What is run in a new process, with the bench's arguments behind it.
STOCK = (
    "import sys; from nbgrader.apps import NbGraderApp; NbGraderApp.launch_instance(sys.argv[1:])"
)
QUIET = "--log-level=ERROR"
OURS = "import sys; from autograder.__main__ import main; main(sys.argv[1:])"
LOOK_SECONDS = 0.2  # between two looks at the memory of a command's processes


@dataclass(frozen=True)
class Run:
    """What one command took: seconds, and the most memory that any of its processes had, in MB."""

    seconds: float
    memory: float


def _timed(program: str, arguments: list[str], folder: Path) -> Run:
    """What a new Python process in `folder` took, with all that it started.

    Raises:
        RuntimeError: it failed.
    """
    started = time.perf_counter()
    most = 0
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            cwd=folder,
            stdout=said,
            stderr=said,
            env={**os.environ, "PYTHONPATH": str(paths.ROOT)},
        )
        while process.poll() is None:
            with suppress(psutil.NoSuchProcess):
                for one in (
                    family := psutil.Process(process.pid),
                    *family.children(recursive=True),
                ):
                    with suppress(psutil.NoSuchProcess):
                        most = max(most, one.memory_info().rss)
            with suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_SECONDS)
        seconds = time.perf_counter() - started
        if process.returncode:
            said.seek(0)
            text = said.read().decode("utf-8", "replace")[-500:]
            what = " ".join(arguments[:2])
            raise RuntimeError(f"{what} ended with {process.returncode}: {text}")
    return Run(seconds, most / 2**20)


def ours(folder: Path, unit: str, submitted: Path) -> tuple[Run, dict[str, float]]:
    """`python -m autograder grade` in a new course below `folder`, and the marks."""
    course = folder / "ours"
    shutil.rmtree(course, ignore_errors=True)
    arguments = ["grade", unit, "--submitted", str(submitted), "--course", str(course)]
    run = _timed(OURS, [*arguments, "--seed", "0"], folder)
    results = json.loads((course / "graded" / unit / "results.json").read_text("utf-8"))
    marks = {one["student"]: round(one["score"], 2) for one in results["submissions"]}
    return run, marks


def stock(
    folder: Path, unit: str, submitted: Path, options: tuple[str, ...] = ()
) -> tuple[float, dict[str, float]]:
    """Seconds of stock nbgrader's `autograde`, and the marks; its course is left in `folder`."""
    from autograder.assignments.builder import prepare_course

    course = folder / "stock"
    shutil.rmtree(course, ignore_errors=True)
    prepare_course(course, [unit])
    shutil.copytree(submitted, course / "submitted")
    (course / "nbgrader_config.py").write_text(
        "c = get_config()\n"
        f"c.CourseDirectory.root = {str(course)!r}\n"
        "c.ExecutePreprocessor.timeout = 300\n"
    )
    run = _timed(STOCK, ["autograde", unit, QUIET, *options], course)
    return run.seconds, stock_marks(course, unit)


def stock_marks(course: Path, unit: str) -> dict[str, float]:
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
            for submission in book.assignment_submissions(unit)
        }


def grading(unit: str, count: int) -> list[Figure]:
    """A class of `count` honest submissions by us, by stock nbgrader, and its bookkeeping alone.

    Raises:
        RuntimeError: the marks differ, or a command failed.
    """
    from autograder.demo import make_class

    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        submitted = folder / "submitted"
        make_class.make_honest(submitted, unit, count)
        run, marks = ours(folder, unit, submitted)
        kept, _ = stock(folder, unit, submitted, ("--no-execute",))
        pages = _timed(STOCK, ["generate_feedback", unit, QUIET], folder / "stock").seconds
        graded, theirs = stock(folder, unit, submitted)
        # Stock takes minutes, in which a machine may become faster or slower: we run on both sides.
        again, _ = ours(folder, unit, submitted)
    seconds = (run.seconds + again.seconds) / 2
    if theirs != marks:
        differing = {
            student: (mark, theirs.get(student))
            for student, mark in marks.items()
            if theirs.get(student) != mark
        }
        raise RuntimeError(f"the marks differ (ours, stock): {differing}")
    whom = f"{count} honest submissions, {os.cpu_count()} cores, start-up included"
    return [
        Figure("grade, with feedback and report", seconds, "s", whom),
        Figure("stock nbgrader, autograde", graded, "s", whom),
        Figure("stock nbgrader, no execution", kept, "s", f"{whom}; autograde alone"),
        Figure("stock nbgrader, feedback", pages, "s", whom),
        Figure("ratio to stock", graded / seconds, "times faster", "autograde alone"),
        Figure(
            "ratio to stock with feedback",
            (graded + pages) / seconds,
            "times faster",
            "autograde and feedback, as grade does both",
        ),
        Figure("ratio to bookkeeping", seconds / kept, "times its time", "autograde alone"),
        Figure(
            "ratio to bookkeeping with feedback",
            seconds / (kept + pages),
            "times its time",
            "autograde and feedback, as grade does both",
        ),
    ]


KINDS = {False: "as in a real class", True: "no answer like another"}
COLOURS = {False: "#c2571a", True: "#5b7fc7"}


@dataclass(frozen=True)
class Growth:
    """Classes of several sizes, and the line through what they took."""

    counts: tuple[int, ...]
    runs: list[Run]

    @property
    def line(self) -> tuple[float, float]:
        """Seconds for each further submission, and where the line begins."""
        import numpy as np

        slope, start = np.polyfit(self.counts, [run.seconds for run in self.runs], 1)
        return float(slope), float(start)

    @property
    def off(self) -> float:
        """How far the furthest class is from the line, as a share of the longest time."""
        slope, start = self.line
        pairs = zip(self.counts, self.runs, strict=True)
        furthest = max(abs(run.seconds - start - slope * count) for count, run in pairs)
        return furthest / max(run.seconds for run in self.runs)


def growth(unit: str, counts: tuple[int, ...] = COUNTS) -> list[Figure]:
    """What classes of several sizes cost, and a picture of it in build/.

    Returns:
        For each class its seconds and peak memory; the line through them, and how far the classes
        are from it.
    """
    found = {different: _grown(unit, counts, different) for different in KINDS}
    picture = paths.BUILD / "grading-cost.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    plot(found, picture)
    figures = []
    for different, grown in found.items():
        kind = KINDS[different]
        for count, run in zip(counts, grown.runs, strict=True):
            figures.append(Figure(f"class of {count}", run.seconds, "s", kind))
            figures.append(
                Figure(f"class of {count}, memory", run.memory, "MB", f"{kind}; largest process")
            )
        slope, start = grown.line
        figures += [
            Figure("each further submission", slope, "s", f"{kind}; slope of the line"),
            Figure("start-up", start, "s", f"{kind}; where the line begins"),
            Figure("off the line", 100 * grown.off, "%", f"{kind}; of the largest one's time"),
        ]
    return figures


def _grown(unit: str, counts: tuple[int, ...], different: bool) -> Growth:
    from autograder.demo import make_class

    runs = []
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        everybody = folder / "everybody"
        make_class.make_honest(everybody, unit, max(counts), different=different)
        students = sorted(everybody.iterdir())
        for count in counts:
            submitted = folder / "submitted"
            shutil.rmtree(submitted, ignore_errors=True)
            submitted.mkdir()
            for student in students[:count]:
                shutil.copytree(student, submitted / student.name)
            runs.append(ours(folder, unit, submitted)[0])
    return Growth(counts, runs)


def plot(found: dict[bool, Growth], path: Path) -> None:
    """Seconds and memory against the number of submissions."""
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=(8, 3.4), layout="constrained")
    left, right = picture.subplots(1, 2)
    for different, grown in found.items():
        colour, (slope, start) = COLOURS[different], grown.line
        ends = (0, max(grown.counts))
        left.plot(ends, [start + slope * end for end in ends], color=colour, linewidth=1.2)
        left.plot(grown.counts, [run.seconds for run in grown.runs], "o", color=colour,
                  label=f"{KINDS[different]}: {slope:.2f} s each")  # fmt: skip
        right.plot(grown.counts, [run.memory for run in grown.runs], "o-", color=colour,
                   clip_on=False, label=KINDS[different])  # fmt: skip
    left.set(xlabel="submissions", ylabel="seconds", title="Each further submission costs the same")
    right.set(xlabel="submissions", ylabel="peak memory (MB)", title="The largest process")
    for axes in (left, right):
        axes.legend(frameon=False)
        axes.set_xlim(0, None)
        axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
        axes.spines[["top", "right"]].set_visible(False)
    picture.savefig(path, dpi=150)
