"""What runs inside Gradescope's container: grades one submission and writes results.json.

Reference and hidden tests lie in the same container as student code. Where bubblewrap works, the
code runs in the sandbox as ever. Where it does not, which is usual in a container, and this runs
as root, everything below /autograder is closed to other users and the code runs under a user id
that owns nothing, with the same limits and filter of system calls, but with the container's view
of its own files and network. Where neither can be had, nothing is graded.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autograder.judging.results import ExerciseResult, SubmissionResult
    from autograder.units.assignment import Assignment

WAYS = ("auto", "bubblewrap", "apart")


def stands_apart(root: Path, way: str = "auto") -> bool:
    """Whether student code has to run as another user, because bubblewrap does not work here.

    Everything below `root` is then closed to that user.

    Raises:
        SandboxUnavailable: student code could read the reference here.
    """
    from autograder.sandbox.launcher import require_sandbox
    from autograder.sandbox.limits import SandboxUnavailable

    refusal = "it was asked for another way"
    if way in ("auto", "bubblewrap"):
        try:
            require_sandbox()
            return False
        except SandboxUnavailable as error:
            if way == "bubblewrap":
                raise
            refusal = str(error)
    if os.geteuid() != 0:
        raise SandboxUnavailable(
            f"student code cannot be kept from the reference in this container ({refusal}), and "
            "only root could run it as another user"
        )
    torch = importlib.util.find_spec("torch")
    for file in (os.__file__, torch.origin if torch else None):
        if file and (closed := _closed(Path(file))):
            raise SandboxUnavailable(
                f"student code would run as another user, to whom {closed} is closed; install "
                "Python and its packages elsewhere, such as /opt/course"
            )
    close_to_others(root)
    return True


def _closed(file: Path) -> Path | None:
    """The folder on the way to `file` that other users may not enter."""
    return next((each for each in file.resolve().parents if not each.stat().st_mode & 0o001), None)


def close_to_others(root: Path) -> None:
    """Let nobody but root look below `root`."""
    for folder in (root, root / "source", root / "results", root / "submission"):
        if folder.is_dir() and not folder.is_symlink():
            folder.chmod(0o700)


def grade(
    submitted: Path, release: Path, unit: str, root: Path, seed: int, way: str
) -> SubmissionResult:
    """The result of what lies in `submitted`."""
    import nbformat

    from autograder.grading.collect import Submission, collect
    from autograder.grading.worker_pool import grade_all
    from autograder.lms.archive import Archive
    from autograder.lms.base import Attempt, Found, Handed, People, place

    blank = nbformat.read(release, as_version=4)
    with tempfile.TemporaryDirectory(prefix="submission-") as scratch:
        to = Path(scratch) / "submitted"
        refused: list[str] = []
        submission = Submission("student")
        if submitted.is_dir():
            archive = Archive(submitted)
            files = [(entry.name, entry) for entry in archive.entries]
            found = Found([Handed({}, "student", attempts=[Attempt(files)])], archive.refused)
            refused = place(found, unit, to, People(), ()).problems if files else found.problems
            if (to / "student").is_dir():
                submission = collect(to, unit)[0]
        submission.notes += refused
        apart = submission.runnable and stands_apart(root, way)
        options = {"unit": unit, "seed": seed, "hide": [root], "apart": apart}
        ((_, graded),) = grade_all([submission], options, blank, 1)
        return graded.result


def results(
    result: SubmissionResult, assignment: Assignment, hidden: str, seconds: float
) -> dict[str, Any]:
    """results.json in Gradescope's form.

    An exercise is one entry with its visible tests and one with its hidden ones; its points are
    divided as its passed tests weigh.
    """
    from autograder.common.escaping import visible

    tests = []
    for number, exercise in enumerate(assignment.exercises, 1):
        one = result.exercises.get(exercise.name)
        if one is not None:
            tests += _entries(one, exercise.title, number, hidden)
    lines = []
    if result.status != "graded":
        lines.append(f"Your submission is {result.status.replace('_', ' ')}.")
    lines += [*result.repairs, *result.notes]
    written = assignment.written_points
    if written:
        lines.append(f"Written answers ({written:g} points) are marked by a person.")
    return {
        "score": round(result.score, 4),
        "execution_time": round(seconds, 2),
        "output": visible("\n".join(lines), 10_000),
        "output_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "extra_data": {"status": result.status, "assignment": assignment.unit},
        "tests": tests,
    }


def _entries(one: ExerciseResult, title: str, number: int, hidden: str) -> list[dict[str, Any]]:
    from autograder.common.escaping import visible

    parts = {shown: [test for test in one.tests if test.hidden != shown] for shown in (True, False)}
    weight = sum(test.weight for test in one.tests) or 1.0
    passed = sum(test.weight for test in one.tests if test.outcome == "passed")
    entries = []
    told = False
    for shown, tests in parts.items():
        if not tests and (one.tests or not shown):
            continue
        good = sum(test.weight for test in tests if test.outcome == "passed")
        most = one.max_points * (sum(test.weight for test in tests) / weight if tests else 1)
        score = one.points * good / passed if passed else (0.0 if tests else one.points)
        whole = bool(tests) and all(test.outcome == "passed" for test in tests)
        lines = []
        if not whole and not told and one.message:
            lines.append(one.message)
            told = True
        signs = {"passed": "passed", "failed": "FAILED", "todo": "not written yet"}
        for test in tests:
            lines.append(f"{signs.get(test.outcome, test.outcome)}: {test.purpose or test.name}")
            # A hidden test's own words may show its inputs; its purpose does not.
            if shown and test.outcome == "failed" and test.message and test.message != one.message:
                lines.append(f"    {test.message}")
        entries.append(
            {
                "name": title if shown else f"{title}: hidden tests",
                "number": f"{number}.{1 if shown else 2}",
                "score": round(score, 4),
                "max_score": round(most, 4),
                "status": "passed" if whole and score >= most - 1e-6 else "failed",
                "output": visible("\n".join(lines), 10_000),
                "output_format": "text",
                "visibility": "visible" if shown else hidden,
            }
        )
    return entries


def refusal(reason: str) -> dict[str, Any]:
    """results.json when nothing was graded."""
    said = (
        f"Nothing was graded: {reason}. This says nothing about your work; your instructor can "
        "run the autograder again."
    )
    return {
        "score": 0.0,
        "output": said,
        "output_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": [],
    }


def main(arguments: list[str] | None = None) -> int:
    """Grade the submission in the container; exit status 0 if it has a result."""
    parser = argparse.ArgumentParser(prog="run_autograder", description=__doc__)
    parser.add_argument("--root", type=Path, default=Path("/autograder"))
    parser.add_argument("--assignment", required=True)
    parser.add_argument("--hidden", default="after_published")
    parser.add_argument("--way", choices=WAYS, default=os.environ.get("AUTOGRADER_WAY", "auto"))
    options = parser.parse_args(arguments)
    began = time.monotonic()
    root: Path = options.root
    code = 0
    try:
        from autograder.common.errors import AssignmentError
        from autograder.sandbox.limits import SandboxUnavailable
        from autograder.units.assignment import load

        assignment = load(options.assignment)
        seed = int((root / "source" / "seed.txt").read_text(encoding="ascii"))
        try:
            result = grade(
                root / "submission",
                root / "source" / "release.ipynb",
                options.assignment,
                root,
                seed,
                options.way,
            )
            data = results(result, assignment, options.hidden, time.monotonic() - began)
        except (AssignmentError, SandboxUnavailable) as error:
            data, code = refusal(str(error).rstrip(".")), 1
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # for the instructor's eyes
        data, code = refusal(f"the autograder failed ({type(error).__name__})"), 1
    _write(root / "results" / "results.json", data)
    return code


def _write(path: Path, data: dict[str, Any]) -> None:
    text = json.dumps(data, indent=1, ensure_ascii=False).encode("utf-8", "replace")
    part = path.with_name(".results.part")
    part.write_bytes(text + b"\n")
    part.replace(path)


if __name__ == "__main__":
    sys.exit(main())
