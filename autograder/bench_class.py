"""The bench's part on grading a class: beside stock nbgrader, and from 10 to 1,000 submissions.

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
from dataclasses import dataclass
from pathlib import Path

from autograder import paths
from autograder.timing import Figure

COUNTS = (10, 30, 100, 300, 1000)

# What is run in a new process, with the bench's arguments behind it.
STOCK = (
    "import sys; from nbgrader.apps import NbGraderApp; NbGraderApp.launch_instance(sys.argv[1:])"
)
QUIET = "--log-level=ERROR"
OURS = """
import resource, sys
from autograder.__main__ import main
try:
    main(sys.argv[1:])
finally:
    peak = {who: resource.getrusage(getattr(resource, f"RUSAGE_{who}")).ru_maxrss
            for who in ("SELF", "CHILDREN")}
    print("PEAK", peak["SELF"], peak["CHILDREN"])
"""


@dataclass(frozen=True)
class Run:
    """What one command took: seconds, and peak memory in MB of its processes, the largest first."""

    seconds: float
    memory: tuple[float, ...] = ()


def _timed(program: str, arguments: list[str], folder: Path) -> tuple[float, str]:
    """Seconds of a new Python process in `folder`, and what it printed.

    Raises:
        RuntimeError: it failed.
    """
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(paths.ROOT)},
    )
    seconds = time.perf_counter() - started
    if done.returncode:
        said = (done.stdout + done.stderr)[-500:]
        raise RuntimeError(f"{' '.join(arguments[:2])} ended with {done.returncode}: {said}")
    return seconds, done.stdout


def ours(folder: Path, chapter: str, submitted: Path) -> tuple[Run, dict[str, float]]:
    """`python -m autograder grade` in a new course below `folder`, and the marks."""
    course = folder / "ours"
    shutil.rmtree(course, ignore_errors=True)
    arguments = ["grade", chapter, "--submitted", str(submitted), "--course", str(course)]
    seconds, said = _timed(OURS, [*arguments, "--seed", "0"], folder)
    peaks = next(line for line in said.splitlines() if line.startswith("PEAK")).split()[1:]
    results = json.loads((course / "graded" / chapter / "results.json").read_text("utf-8"))
    marks = {one["student"]: round(one["score"], 2) for one in results["submissions"]}
    return Run(seconds, tuple(sorted((int(peak) / 1024 for peak in peaks), reverse=True))), marks


def stock(
    folder: Path, chapter: str, submitted: Path, options: tuple[str, ...] = ()
) -> tuple[float, dict[str, float]]:
    """Seconds of stock nbgrader's `autograde`, and the marks; its course is left in `folder`."""
    from autograder.builder import prepare_course

    course = folder / "stock"
    shutil.rmtree(course, ignore_errors=True)
    prepare_course(course, [chapter])
    shutil.copytree(submitted, course / "submitted")
    (course / "nbgrader_config.py").write_text(
        "c = get_config()\n"
        f"c.CourseDirectory.root = {str(course)!r}\n"
        "c.ExecutePreprocessor.timeout = 300\n"
    )
    seconds, _ = _timed(STOCK, ["autograde", chapter, QUIET, *options], course)
    return seconds, stock_marks(course, chapter)


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
    """A class of `count` honest submissions by us, by stock nbgrader, and its bookkeeping alone.

    Raises:
        RuntimeError: the marks differ, or a command failed.
    """
    from autograder import demo_class

    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        submitted = folder / "submitted"
        demo_class.make_honest(submitted, chapter, count)
        run, marks = ours(folder, chapter, submitted)
        kept, _ = stock(folder, chapter, submitted, ("--no-execute",))
        pages, _ = _timed(STOCK, ["generate_feedback", chapter, QUIET], folder / "stock")
        graded, theirs = stock(folder, chapter, submitted)
        # Stock takes minutes, in which a machine may become faster or slower: we run on both sides.
        again, _ = ours(folder, chapter, submitted)
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


def growth(chapter: str, counts: tuple[int, ...] = COUNTS) -> list[Figure]:
    """What classes of several sizes cost, and a picture of it in build/.

    Returns:
        For each class its seconds and peak memory; the line through them, and how far the classes
        are from it.
    """
    import numpy as np

    from autograder import demo_class

    runs = []
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        everybody = folder / "everybody"
        demo_class.make_honest(everybody, chapter, max(counts))
        students = sorted(everybody.iterdir())
        for count in counts:
            submitted = folder / "submitted"
            shutil.rmtree(submitted, ignore_errors=True)
            submitted.mkdir()
            for student in students[:count]:
                shutil.copytree(student, submitted / student.name)
            runs.append(ours(folder, chapter, submitted)[0])
    seconds = np.array([run.seconds for run in runs])
    slope, start = np.polyfit(counts, seconds, 1)
    off = np.abs(seconds - (start + slope * np.array(counts))).max() / seconds.max()
    picture = paths.BUILD / "grading-cost.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    plot(counts, runs, (float(slope), float(start)), picture)
    figures = []
    for count, run in zip(counts, runs, strict=True):
        figures.append(Figure(f"class of {count}", run.seconds, "s", "start-up included"))
        figures.append(
            Figure(f"class of {count}, memory", run.memory[0], "MB", "largest process, peak")
        )
    return [
        *figures,
        Figure("each further submission", float(slope), "s", "slope of the line through them"),
        Figure("start-up", float(start), "s", "where the line begins"),
        Figure("off the line", 100 * float(off), "%", "furthest class, of the largest one's time"),
    ]


def plot(counts: tuple[int, ...], runs: list[Run], line: tuple[float, float], path: Path) -> None:
    """Seconds and memory against the number of submissions."""
    from matplotlib.figure import Figure as Picture

    slope, start = line
    picture = Picture(figsize=(8, 3.4), layout="constrained")
    left, right = picture.subplots(1, 2)
    ends = (0, max(counts))
    left.plot(ends, [start + slope * end for end in ends], color="#5b7fc7", linewidth=1.5,
              label=f"{start:.0f} s, and {slope:.2f} s for each")  # fmt: skip
    left.plot(counts, [run.seconds for run in runs], "o", color="#c2571a", label="measured")
    left.set(xlabel="submissions", ylabel="seconds", title="Each further submission costs the same")
    left.legend(frameon=False)
    right.plot(counts, [run.memory[0] for run in runs], "o-", color="#c2571a", clip_on=False)
    right.set(xlabel="submissions", ylabel="peak memory (MB)",
              title="The largest process, whatever the class")  # fmt: skip
    for axes in (left, right):
        axes.set_xlim(0, None)
        axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
        axes.spines[["top", "right"]].set_visible(False)
    picture.savefig(path, dpi=150)
