"""The student's zip: notebook, checks and recorded answers; no solutions and no hidden tests.

It unpacks to one folder that works where it is, without installing anything of ours:

    gpt-training/gpt-training.ipynb       with given.py beside it, README.md, requirements.txt
    gpt-training/autograder/              the checks: the modules that they import, and no others
    gpt-training/toolkit/                 what notebook and checks import of it, and no more
    gpt-training/models/gpt/              the trained models that the notebook's last cells read
    gpt-training/exercises/gpt-training/  assignment.json, recorded.bin

`given.py` holds parts of earlier units, as the reference has them: these are no secret any more.
The folder of a chapter's last unit also has the notebook that puts all of them together, with what
it needs: `gpt-transfer/gpt-mine.ipynb`, and `gpt-given.py` beside it.
"""

from __future__ import annotations

import ast
import re
import zipfile
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from autograder.assignments import whole_chapter
from autograder.common import paths
from autograder.common.cells import is_ungraded, source_of
from autograder.common.errors import AssignmentError
from autograder.judging.recording import FILE
from autograder.units.assignment import Assignment, load

# What a student's folder never holds, even if a module of the checks mentions it.
PRIVATE = frozenset(
    {
        *("benchmarks", "demo", "gradebook", "grading", "lms", "misconceptions", "reports"),
        "verification",
        *("assignments.builder", "assignments.bundle", "assignments.given"),
        *("assignments.overview", "assignments.picture", "assignments.recorder"),
        *("assignments.stock", "assignments.whole_chapter"),
        *("common.escaping", "common.files", "common.progress"),
        *("sandbox.fork_server", "sandbox.launcher", "sandbox.limits", "sandbox.meter"),
        *("sandbox.session", "sandbox.worker"),
        *("units.dependencies", "units.variants"),
    }
)
START = (
    "autograder",
    "autograder.checking.check",
    "autograder.commands",
    "autograder.commands.check",
)
GRADERS = "autograder.graders"
NEEDED = ("torch", "numpy", "ipykernel", "jupyterlab", "notebook", "pytest", "rich", "typer")
OPTIONAL = ("matplotlib", "ipywidgets", "safetensors", "tokenizers", "tqdm", "babel")
STAMP = (1980, 1, 1, 0, 0, 0)  # The oldest time a zip can tell: the same bytes for each run.

MAIN = '''"""`python -m autograder check NOTEBOOK`: the checks, from the command line."""

from __future__ import annotations

import typer

from autograder.commands.check import run

app = typer.Typer(name="autograder", add_completion=False, pretty_exceptions_enable=False)
app.command("check")(run)


@app.callback()
def main() -> None:
    """Check a notebook."""


if __name__ == "__main__":
    app(prog_name="python -m autograder")
'''

README = """# {title}

{count} exercises to code, {points} points{written}.
Write your code in `{unit}.ipynb`; under each exercise a cell with `check("…")` says what holds,
what does not, and what to reread.

## Begin

You need Python 3.11, 3.12 or 3.13.

```
python -m venv .venv
.venv/bin/pip install -r requirements.txt
.venv/bin/jupyter lab {unit}.ipynb
```

On Windows write `.venv\\Scripts` in place of `.venv/bin`.

## While you work

* `check("{first}")` judges one exercise, `check()` shows all of them.
* `python -m autograder check {unit}.ipynb` does the same for the whole notebook.
* Keep the cells that are there, with their order and the names in them; add as many as you like.
* The grade also counts tests that are not in this folder: other inputs, the same contract.
{given}{mine}
## Hand in

Save the notebook and hand in `{unit}.ipynb`, and nothing else, under that name.
{book}"""

GIVEN = """\
* The notebook imports `given.py`, what earlier units have built: keep it beside the notebook.
"""
MINE = """\
* `{notebook}` puts together what you have built in all units of this chapter: unpack their zips
  beside this one, and keep `{given}` where it is.
"""


class BundleError(AssignmentError):
    """The zip cannot be made; one sentence with the remedy."""


def bundle(unit: str, out: Path, book: str = "") -> Path:
    """Write the student's zip of `unit` to `out`; the same bytes for each run.

    Args:
        unit: the unit's name.
        out: the zip to write.
        book: where students read the book: the URL of its first page's folder.

    Raises:
        AssignmentError: something is missing; the message says what to run.
    """
    files = contents(unit, book)
    write_zip(out, {f"{unit}/{name}": data for name, data in files.items()})
    return out


def write_zip(out: Path, files: Mapping[str, bytes], executable: Collection[str] = ()) -> None:
    """Write a zip that has the same bytes for each run."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(out, "w") as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, STAMP)
            entry.external_attr = (0o100755 if name in executable else 0o100644) << 16
            entry.create_system = 3
            archive.writestr(entry, files[name], zipfile.ZIP_DEFLATED)


def contents(unit: str, book: str = "") -> dict[str, bytes]:
    """The files of the student's folder: {path in the folder: bytes}.

    Answers that are not recorded yet, or no longer hold, are recorded on the way.
    """
    from autograder.assignments import recorder

    assignment = replace(load(unit), book=book)
    recorder.record(unit)
    source, place = paths.EXERCISES / unit, f"exercises/{unit}"
    notebook = f"{unit}.ipynb"
    files: dict[str, bytes] = {}
    for name, target in ((notebook, notebook), (FILE, f"{place}/{FILE}")):
        try:
            files[target] = (source / name).read_bytes()
        except FileNotFoundError:
            raise BundleError(
                f"exercises/{unit}/{name} is missing; run python -m autograder build {unit}."
            ) from None
    given = source / paths.GIVEN
    if given.is_file():
        files[paths.GIVEN] = given.read_bytes()
    files[f"{place}/assignment.json"] = assignment.to_json().encode()
    mine = _together(unit)
    files |= mine
    graders = visible_graders(unit)
    needed = {name for text in graders.values() for name in _imports(text, "autograder")}
    needed = {name for name in needed if not name.startswith(GRADERS)}
    notebooks = [notebook_code(data) for name, data in files.items() if name.endswith(".ipynb")]
    needed |= {name for text in notebooks for name in _imports(text, "autograder")}
    for module in sorted(modules({*START, *needed}, "autograder")):
        file = _file(module)
        files[file.relative_to(paths.ROOT).as_posix()] = file.read_bytes()
    files["autograder/__main__.py"] = MAIN.encode()
    files |= {name: text.encode() for name, text in graders.items()}
    code = notebooks + [text.decode() for name, text in files.items() if name.endswith(".py")]
    for file in toolkit_files(code):
        files[file.relative_to(paths.ROOT).as_posix()] = file.read_bytes()
    for name in sorted(set().union(*map(_models, notebooks))):
        files |= _model_files(name)
    files["requirements.txt"] = _requirements(files).encode()
    files["README.md"] = _readme(assignment, paths.GIVEN in files, list(mine)).encode()
    return files


def _together(unit: str) -> dict[str, bytes]:
    """With a chapter's last unit the notebook of them all, and what is given beside it."""
    chapter = paths.chapter_of(unit)
    last = f"{chapter}-{paths.CHAPTERS[chapter][-1]}"
    if unit != last or not paths.ungraded(f"{chapter}-mine").is_file():
        return {}
    try:
        return {
            name: (paths.EXERCISES / name).read_bytes() for name in whole_chapter.files(chapter)
        }
    except FileNotFoundError as error:
        missing = Path(error.filename).name
        raise BundleError(
            f"exercises/{missing} is missing; run python -m autograder build {unit}."
        ) from None


def _models(code: str) -> set[str]:
    """The trained models that a notebook's cells read: `own_models.read("gpt")`."""
    return {
        str(node.args[0].value)
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "own_models.read"
        and isinstance(node.args[0], ast.Constant)
    }


def _model_files(name: str) -> dict[str, bytes]:
    """What reading a model needs: weights, sizes, tokenizer, held-out text; and its card."""
    folder = paths.ROOT / "models" / name
    wanted = ["model.safetensors", "config.json", "tokenizer.json", "held_out.*", "README.md"]
    found = [path for pattern in wanted for path in folder.glob(pattern)]
    if len(found) < len(wanted):
        raise BundleError(f"models/{name} is not complete; git checkout models/{name} brings it.")
    return {path.relative_to(paths.ROOT).as_posix(): path.read_bytes() for path in found}


def modules(start: Iterable[str], package: str) -> set[str]:
    """`start` and every module of `package` that it imports, directly or not; never PRIVATE.

    The packages around a module come with it.
    """
    hidden = {f"autograder.{name}" for name in PRIVATE}
    found: set[str] = set()
    waiting = list(start)
    while waiting:
        module = waiting.pop()
        parts = module.split(".")
        around = [".".join(parts[:length]) for length in range(1, len(parts))]
        if module in found or any(name in hidden for name in (*around, module)):
            continue
        found.add(module)
        waiting.extend(around)
        waiting.extend(_imports(_file(module).read_text(encoding="utf-8"), package))
    return found


def toolkit_files(code: Iterable[str]) -> list[Path]:
    """The modules of the toolkit that these sources import, directly or not."""
    used = {name for text in code for name in _imports(text, "toolkit")}
    return [_file(module) for module in sorted(modules({"toolkit", *used}, "toolkit"))]


def _imports(code: str, package: str) -> set[str]:
    """The modules of `package` that `code` imports anywhere."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name for name in names if name.split(".")[0] == package and _file(name).is_file()}


def _file(module: str) -> Path:
    path = paths.ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def notebook_code(data: bytes) -> str:
    """All code cells of a notebook as one source; without the line that marks one as ungraded."""
    import json

    sources = [source_of(c) for c in json.loads(data)["cells"] if c["cell_type"] == "code"]
    return "\n".join(
        source.partition("\n")[2] if is_ungraded(source) else source for source in sources
    )


# Graders without their hidden tests.


def visible_graders(unit: str) -> dict[str, str]:
    """The unit's graders without hidden tests, and what of their common parts all units use.

    A common part is the same in every unit's folder: on a JupyterHub they lie in one.

    Returns:
        {path in the student's folder: source}, the packages' `__init__` included.
    """
    texts = {_grader(one): _shown(one) for one in {*paths.units(), unit}}
    waiting = list(texts)
    while waiting:
        # Whatever it imports, it imports by name: a part that grows is reduced anew.
        for module in _names_from(texts[waiting.pop()]):
            wanted = {name for text in texts.values() for name in _names_from(text).get(module, ())}
            part = reduced(_file(module).read_text(encoding="utf-8"), wanted)
            if texts.get(module) != part:
                texts[module] = part
                waiting.append(module)
    own, waiting = set(), [_grader(unit)]
    while waiting:
        own.add(module := waiting.pop())
        waiting.extend(set(_names_from(texts[module])) - own)
    files = {f"{module.replace('.', '/')}.py": texts[module] for module in own}
    for module in own:
        parts = module.split(".")
        for length in range(2, len(parts)):
            package = "/".join(parts[:length])
            files[f"{package}/__init__.py"] = ""
    return files


def _grader(unit: str) -> str:
    file = paths.graders(unit)
    return f"{GRADERS}.{file.parent.name}.{file.stem}"


def _shown(unit: str) -> str:
    file = paths.graders(unit)
    return visible(file.read_text(encoding="utf-8"), file.name)


@cache
def _names_from(source: str) -> dict[str, set[str]]:
    """What a grader's source imports from the graders' common parts: {module: names}."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{GRADERS}."):
            found.setdefault(str(node.module), set()).update(alias.name for alias in node.names)
    return found


@cache
def visible(source: str, name: str = "the graders") -> str:
    """The graders' source without hidden tests and what only they use.

    Raises:
        BundleError: a hidden test stands where it cannot be taken out.
    """
    source = _without(source, [node for node in ast.parse(source).body if _is_hidden(node)])
    source = reduced(source)
    rest = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Name, ast.Attribute))
        and (node.id if isinstance(node, ast.Name) else node.attr) == "hidden"
    ]
    if rest:
        raise BundleError(
            f"{name}, line {rest[0].lineno} of its visible part: only a whole test function can "
            "be hidden; make it a function of its own with @hidden."
        )
    return source


def _is_hidden(node: ast.stmt) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any(
        isinstance(part, (ast.Name, ast.Attribute))
        and (part.id if isinstance(part, ast.Name) else part.attr) == "hidden"
        for decorator in decorators
        for part in ast.walk(decorator)
    )


def reduced(source: str, wanted: Collection[str] = ()) -> str:
    """A grader's source without the helpers, constants and imports that nothing uses.

    Args:
        source: the source.
        wanted: names that others import from it.
    """
    while out := _unused(ast.parse(source), wanted):
        source = _without(source, out)
    tree = ast.parse(source)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | set(wanted)
    for node in reversed(tree.body):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            source = _with_names(source, node, used)
    return source


def _unused(tree: ast.Module, wanted: Collection[str]) -> list[ast.stmt]:
    """Helpers and constants at the top level that nothing refers to any more."""
    within = [_names(node) for node in tree.body]
    users = Counter(name for names in within for name in names)
    out: list[ast.stmt] = []
    for node, own in zip(tree.body, within, strict=True):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            if node.name.lower().startswith("test") or node.decorator_list:
                continue
            names = {node.name}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {name for target in targets for name in _names(target)}
            if any(name.startswith(("pytest", "__")) for name in names):
                continue
        else:
            continue
        # Used by anything but itself?
        if names and not any(users[name] > (name in own) or name in wanted for name in names):
            out.append(node)
    return out


def _names(node: ast.AST) -> set[str]:
    """The names that stand in a piece of code."""
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _without(source: str, nodes: Iterable[ast.stmt]) -> str:
    """`source` without the lines of `nodes` and the comments that stand directly above them."""
    lines = source.split("\n")
    gone: set[int] = set()
    for node in nodes:
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
        while first > 1 and lines[first - 2].startswith("#"):
            first -= 1
        gone.update(range(first, (node.end_lineno or node.lineno) + 1))
    kept = [line for number, line in enumerate(lines, 1) if number not in gone]
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(kept)).rstrip("\n") + "\n"


def _with_names(source: str, node: ast.Import | ast.ImportFrom, used: Collection[str]) -> str:
    """`source` with only those names in an import that are used."""
    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        return source
    kept = [one for one in node.names if (one.asname or one.name).split(".")[0] in used]
    if len(kept) == len(node.names):
        return source
    if not kept:
        return re.sub(r"\n{3}(?=from|import)", "\n\n", _without(source, [node]))
    lines = source.split("\n")
    node.names = kept
    lines[node.lineno - 1 : node.end_lineno] = [ast.unparse(node)]
    return "\n".join(lines)


# Words.


def pinned() -> dict[str, str]:
    """The lines of the course's requirements.txt, by the package's name in small letters."""
    text = (paths.ROOT / "requirements.txt").read_text(encoding="utf-8")
    lines = re.findall(r"^[A-Za-z0-9_.-]+==\S+", text, re.MULTILINE)
    return {line.partition("==")[0].lower(): line for line in lines}


def pins(wanted: Iterable[str]) -> list[str]:
    """The lines of the course's requirements.txt that fix the versions of `wanted`."""
    known = pinned()
    names = [name.lower() for name in wanted]
    missing = [name for name in names if name not in known]
    if missing:
        raise BundleError(f"requirements.txt pins no {', '.join(missing)}; add the version.")
    return [known[name] for name in names]


def _requirements(files: dict[str, bytes]) -> str:
    """The course's pins of what the folder needs."""
    code = "\n".join(
        data.decode() if name.endswith(".py") else notebook_code(data)
        for name, data in files.items()
        if name.endswith((".py", ".ipynb"))
    )
    wanted = [
        *NEEDED,
        *(name for name in OPTIONAL if re.search(rf"\bimport {name}\b|\bfrom {name}\b", code)),
    ]
    return "".join(f"{line}\n" for line in pins(wanted))


def _readme(assignment: Assignment, given: bool, mine: Sequence[str]) -> str:
    from autograder.common.cards import number

    count = len(assignment.questions)
    words = f"{count} written question{'s' if count != 1 else ''}"
    return README.format(
        title=assignment.title,
        unit=assignment.unit,
        count=len(assignment.exercises),
        points=number(assignment.points),
        written=f", and {words}, {number(assignment.written_points)} points" if count else "",
        first=assignment.exercises[0].name,
        given=GIVEN if given else "",
        mine=MINE.format(notebook=mine[0], given=mine[1]) if mine else "",
        book=f"\nThe book: {assignment.book}\n" if assignment.book else "",
    )
