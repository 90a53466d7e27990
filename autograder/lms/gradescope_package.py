"""The zip that Gradescope runs: two scripts, our package, the reference and the graders."""

from __future__ import annotations

import ast
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

from autograder.assignments.bundle import notebook_code, pins, toolkit_files, write_zip
from autograder.common import paths
from autograder.common.errors import ClassroomError
from autograder.units.assignment import load
from autograder.units.dependencies import dependencies

NEEDED = (
    *("torch", "numpy", "matplotlib", "ipykernel", "ipywidgets", "pytest", "rich", "typer"),
    *("nbgrader", "nbformat", "nbconvert", "jinja2", "Pygments"),
)

SETUP = """#!/usr/bin/env bash
# Runs once, as root, when Gradescope builds the image: Python and packages outside /autograder,
# where student code can read them, and bubblewrap, with which it is kept apart where that works.
set -euo pipefail
source_folder="${AUTOGRADER_ROOT:-/autograder}/source"
target="${AUTOGRADER_PYTHON_HOME:-/opt/course}"
apt-get update
apt-get install -y --no-install-recommends bubblewrap || true
python=""
for version in 3.13 3.12 3.11; do
    if command -v "python$version" > /dev/null; then python="python$version"; break; fi
done
if [ -z "$python" ]; then
    for version in 3.13 3.12 3.11; do
        if apt-get install -y "python$version" "python$version-venv"; then
            python="python$version"; break
        fi
    done
fi
if [ -z "$python" ]; then
    echo "This image has no Python 3.11, 3.12 or 3.13: choose a newer base image." >&2
    exit 1
fi
"$python" -m venv "$target" || {
    apt-get install -y "$python-venv"
    "$python" -m venv "$target"
}
"$target/bin/pip" install --no-cache-dir -r "$source_folder/requirements.txt"
"$target/bin/python" -m compileall -q "$source_folder" || true
chmod -R go+rX "$target"
"""

RUN = """#!/usr/bin/env bash
# Gradescope starts this for every submission, in {root}; the paths are its own.
root="${{AUTOGRADER_ROOT:-/autograder}}"
python="${{AUTOGRADER_PYTHON:-${{AUTOGRADER_PYTHON_HOME:-/opt/course}}/bin/python}}"
mkdir -p "$root/results"
# What is there if anything below fails, so that there is always a result that says so.
cat > "$root/results/results.json" <<'END'
{{"score": 0, "stdout_visibility": "hidden", "output": "The autograder did not come to its end, \
so that nothing was graded. This says nothing about your work: tell your instructor, who can run \
it again.", "tests": []}}
END
cd "$root/source" || exit 1
export PYTHONPATH="$root/source" PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
exec "$python" -m autograder.lms.container --root "$root" {options}
"""

CONTENT = ("graders", "misconceptions", "equivalents")
# In place of a chapter's own, which imports all of its units.
CHAPTER = '"""The reference modules that {unit} needs."""\n'
VISIBILITIES = ("visible", "hidden", "after_due_date", "after_published")


def files(unit: str, hidden: str = "after_published") -> dict[str, bytes]:
    """What the zip holds: {name: bytes}.

    Args:
        unit: the assignment.
        hidden: when students see how hidden tests went, in Gradescope's words.
    """
    load(unit)  # an unknown one is a sentence
    if hidden not in VISIBILITIES:
        raise ClassroomError(
            f"Gradescope knows no visibility {hidden!r}; say {', '.join(VISIBILITIES)}."
        )
    out: dict[str, bytes] = {}
    for file in _sources(unit):
        out[file.relative_to(paths.ROOT).as_posix()] = file.read_bytes()
    chapter = f"solutions/{paths.chapter_of(unit)}/__init__.py"
    out[chapter] = CHAPTER.format(unit=unit).encode()
    out["release.ipynb"] = _release(unit)
    out["seed.txt"] = f"{secrets.randbelow(2**31)}\n".encode()
    wanted = pins(NEEDED)
    out["requirements.txt"] = "".join(f"{line}\n" for line in wanted).encode()
    out["setup.sh"] = SETUP.encode()
    options = f"--assignment {unit} --hidden {hidden}"
    out["run_autograder"] = RUN.format(root="/autograder", options=options).encode()
    return out


def _sources(unit: str) -> Iterator[Path]:
    """Our own files that grading the unit needs; of the content, what belongs to the unit."""
    needed = set(dependencies(unit))
    for content in (paths.PACKAGE / name for name in CONTENT):
        needed |= {content / "__init__.py", content / paths.chapter_of(unit) / "__init__.py"}
    for file in sorted(paths.PACKAGE.rglob("*")):
        parts = file.relative_to(paths.PACKAGE).parts
        if file.suffix not in (".py", ".j2", ".css", ".toml") or "__pycache__" in parts:
            continue
        if parts[0] != "demo" and (parts[0] not in CONTENT or file in needed):
            yield file
    # Of the toolkit, what marks depend on and what the student's zip holds: cells may import it.
    used = toolkit_files([notebook_code((paths.EXERCISES / unit / f"{unit}.ipynb").read_bytes())])
    yield from sorted({*used, *(file for file in needed if paths.ROOT / "toolkit" in file.parents)})
    yield from _reference(unit)
    # Answers are recorded for a student's own check alone.
    handed_out = (f"{unit}.ipynb", "assignment.json", paths.GIVEN)
    yield from (file for name in handed_out if (file := paths.EXERCISES / unit / name).is_file())


def _reference(unit: str) -> list[Path]:
    """The unit's reference module and those that it imports, of this and no other chapter."""
    found = {paths.SOLUTIONS / "__init__.py"}
    waiting = [paths.solution(unit)]
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found.add(file)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            if module.startswith("solutions."):
                waiting.append(paths.ROOT.joinpath(*module.split(".")).with_suffix(".py"))
    return sorted(found)


def _release(unit: str) -> bytes:
    """The released notebook as a course has it, with which damaged ones are repaired."""
    from autograder.gradebook.course import prepare

    with tempfile.TemporaryDirectory(prefix="package-") as folder:
        prepare(Path(folder), unit)
        return (Path(folder) / "release" / unit / f"{unit}.ipynb").read_bytes()


def package(unit: str, out: Path, hidden: str = "after_published") -> Path:
    """Write the autograder zip of `unit` to `out`."""
    write_zip(out, files(unit, hidden), executable=("setup.sh", "run_autograder"))
    return out
