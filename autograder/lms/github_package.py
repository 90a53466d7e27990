"""A template repository for GitHub Classroom: the student's folder and a workflow that checks it.

The workflow reports points for the visible checks with GitHub Classroom's own actions, one step an
exercise. Whoever owns a repository can change what it reports: the marks that count come from
`import github` and `grade`.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import yaml

from autograder.assignments import bundle
from autograder.common.errors import ClassroomError
from autograder.units.assignment import Assignment, load

GRADER = "classroom-resources/autograding-command-grader@v1"
REPORTER = "classroom-resources/autograding-grading-reporter@v1"
MINUTES = 6
IGNORED = "__pycache__/\n.ipynb_checkpoints/\n.venv/\n"


def workflow(assignment: Assignment) -> dict[str, Any]:
    """`.github/workflows/classroom.yml` as data."""
    notebook = f"{assignment.unit}.ipynb"
    ids = {exercise.name: exercise.name.lower() for exercise in assignment.exercises}
    if len(set(ids.values())) != len(ids):
        raise ClassroomError(
            f"Two exercises of {assignment.unit} differ only in capital letters, which GitHub "
            "does not tell apart; rename one."
        )
    steps: list[dict[str, Any]] = [
        {"name": "Checkout code", "uses": "actions/checkout@v4"},
        {
            "name": "Python",
            "uses": "actions/setup-python@v5",
            "with": {"python-version": "3.12", "cache": "pip"},
        },
        {"name": "Packages", "run": "python -m pip install -r requirements.txt"},
    ]
    for exercise in assignment.exercises:
        steps.append(
            {
                "name": exercise.title,
                "id": ids[exercise.name],
                "uses": GRADER,
                "with": {
                    "test-name": exercise.title,
                    "setup-command": "",
                    "command": f"python -m autograder check {notebook} --exercise {exercise.name}",
                    "timeout": MINUTES,
                    "max-score": int(exercise.points)
                    if float(exercise.points).is_integer()
                    else exercise.points,
                },
            }
        )
    steps.append(
        {
            "name": "Autograding Reporter",
            "uses": REPORTER,
            "env": {
                f"{each.upper()}_RESULTS": f"${{{{steps.{each}.outputs.result}}}}"
                for each in ids.values()
            },
            "with": {"runners": ",".join(ids.values())},
        }
    )
    return {
        "name": "Autograding Tests",
        "on": ["push", "workflow_dispatch", "repository_dispatch"],
        "permissions": {"checks": "write", "actions": "read", "contents": "read"},
        "jobs": {
            "run-autograding-tests": {
                "runs-on": "ubuntu-latest",
                "if": "github.actor != 'github-classroom[bot]'",
                "timeout-minutes": 60,
                "steps": steps,
            }
        },
    }


def package(unit: str, out: Path, book: str = "") -> Path:
    """Write the template repository of `unit` to the new folder `out`."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ClassroomError(f"{out} is not empty; name a new folder.")
    files = bundle.contents(unit, book)
    # Not sorted: GitHub reads `on` whatever the order, people read from the top.
    text = yaml.safe_dump(workflow(load(unit)), sort_keys=False, width=100)
    files[".github/workflows/classroom.yml"] = text.encode()
    files[".gitignore"] = IGNORED.encode()
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    for name, data in files.items():
        target = part / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    if out.exists():
        out.rmdir()
    part.rename(out)
    return out
