"""A class to demonstrate and test grading: honest work, mistakes, damage, accidents and cheats.

Everything is made from the committed student's notebook, the reference's cells, the list of
misconceptions and what stands in `autograder/demo`; the same files come out every time. Beside
the folder of submissions goes `expected.json`: what each student must earn, and why.

    python -m autograder.demo.make_class build/demo/submitted
"""

from __future__ import annotations

import argparse
import copy
import functools
import hashlib
import importlib
import importlib.util
import json
import random
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

from autograder.common import paths
from autograder.common.errors import AssignmentError
from autograder.demo.cheats import CHEATS, PREAMBLE
from autograder.demo.styles import Style, styles
from autograder.units.assignment import Assignment, load
from autograder.units.variants import (
    cells_of_source,
    changed_source,
    load_variant,
    misconception,
    misconceptions,
    reference_answers,
)

# The unit that is demonstrated when none is named: it is small and has whatever a unit may have,
# parts of an earlier unit, exercises that use one another, forbidden calls, and written questions.
SHOWN = "attention-self_attention"
DUE = "2029-12-31 12:00:00 UTC"
LATE = "2030-01-01 12:00:00.000000 UTC"


@dataclass(frozen=True)
class Expected:
    """What one student must earn.

    Args:
        student: the name of the folder.
        about: what was handed in, in one clause.
        kind: "honest", "mistake", "damage", "accident" or "cheat".
        statuses: the status is one of these.
        points: exact points of every exercise.
        diagnosed: the misconception that must be named, by exercise.
        words: each must appear in the repairs or the notes.
        late: whether it was handed in late.
    """

    student: str
    about: str
    kind: str
    statuses: tuple[str, ...]
    points: dict[str, float]
    diagnosed: dict[str, str]
    words: tuple[str, ...] = ()
    late: bool = False

    @property
    def score(self) -> float:
        """The exact score."""
        return round(sum(self.points.values()), 6)

    @property
    def zero(self) -> tuple[str, ...]:
        """The exercises that must earn nothing."""
        return tuple(name for name, points in self.points.items() if not points)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "score": self.score}


# ---------------------------------------------------------------------------------------------
# What answers are made of


@dataclass(frozen=True)
class Extras:
    """What a unit adds to its class, of what `autograder.demo.<chapter>` says of the chapter.

    Args:
        mistakes: the names of the misconceptions that one student each makes.
        forbidden: right answers with a forbidden call, by name: exercise, what it does, cell.
        tampering: cheats whose cell attacks the grader itself when it is run: that costs every
            exercise that forbids anything.
    """

    mistakes: tuple[str, ...]
    forbidden: dict[str, tuple[str, str, str]]
    tampering: tuple[str, ...]


def extras(unit: str) -> Extras:
    """What the unit's class has beyond what every unit's has."""
    content = importlib.import_module(f"autograder.demo.{paths.chapter_of(unit)}")
    known = {item.name for item in misconceptions(unit)}
    names = load(unit).names
    return Extras(
        tuple(name for name in content.MISTAKES if name in known),
        {
            name: cheat
            for name, cheat in getattr(content, "FORBIDDEN", {}).items()
            if cheat[0] in names
        },
        getattr(content, "TAMPERING", ()),
    )


class Notebook:
    """A student's notebook in the making: the released one, then changed."""

    def __init__(self, released: dict[str, Any]) -> None:
        self.data = copy.deepcopy(released)

    @property
    def cells(self) -> list[dict[str, Any]]:
        return self.data["cells"]

    def place(self, grade_id: str) -> int:
        """Where the cell with that nbgrader id stands."""
        for index, cell in enumerate(self.cells):
            if cell["metadata"].get("nbgrader", {}).get("grade_id") == grade_id:
                return index
        raise KeyError(f"the notebook has no cell {grade_id}")

    def cell(self, grade_id: str) -> dict[str, Any]:
        return self.cells[self.place(grade_id)]

    def write(self, grade_id: str, source: str) -> None:
        """Fill a cell in."""
        self.cell(grade_id)["source"] = _lines(source)

    def own(self, index: int, source: str, kind: str = "code") -> dict[str, Any]:
        """Insert a cell of the student's own."""
        digest = hashlib.sha256(f"{index}{source}".encode()).hexdigest()[:12]
        cell: dict[str, Any] = {"cell_type": kind, "id": f"own-{digest}", "metadata": {}}
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        cell["source"] = _lines(source)
        self.cells.insert(index, cell)
        return cell

    def append(self, source: str) -> dict[str, Any]:
        return self.own(len(self.cells), source)

    def answer(self, style: Style, names: Iterable[str]) -> Notebook:
        """Write a style's answers to the exercises named."""
        for name in names:
            self.write(name, style.answers[name])
            for source in style.own.get(name, ()):
                self.own(self.place(name), source)
        return self

    def checks(self) -> Iterator[dict[str, Any]]:
        """The check cells."""
        for cell in self.cells:
            marks = cell["metadata"].get("nbgrader", {})
            if marks.get("grade") and not marks.get("solution"):
                yield cell

    def text(self) -> str:
        return json.dumps(self.data, indent=1, ensure_ascii=False) + "\n"


def _lines(source: str) -> list[str]:
    return source.rstrip("\n").splitlines(keepends=True)


def _result(text: str) -> dict[str, Any]:
    return {
        "output_type": "execute_result",
        "execution_count": 1,
        "metadata": {},
        "data": {"text/plain": [text]},
    }


# ---------------------------------------------------------------------------------------------
# The class


class Maker:
    """Makes the students of one unit and says what each must earn."""

    def __init__(self, out: Path, unit: str, seed: int) -> None:
        self.out = out
        self.unit = unit
        self.seed = seed
        self.assignment: Assignment = load(unit)
        path = paths.EXERCISES / unit / f"{unit}.ipynb"
        self.released = json.loads(path.read_text(encoding="utf-8"))
        self.right = Style(reference_answers(unit), {})
        self.full = {item.name: float(item.points) for item in self.assignment.exercises}
        self.nothing = dict.fromkeys(self.full, 0.0)
        self.expected: list[Expected] = []

    # Notebooks to start from.

    def blank(self) -> Notebook:
        return Notebook(self.released)

    def complete(self) -> Notebook:
        """Everything right, as the reference has it."""
        return self.blank().answer(self.right, self.full)

    @functools.cached_property
    def leaves(self) -> list[str]:
        """Exercises that no other one uses; functions, where there are any among them."""
        used = {need for exercise in self.assignment.exercises for need in exercise.needs}
        unused = [name for name in self.full if name not in used]
        return [name for name in unused if not name[0].isupper()] or unused

    # Handing in.

    def hand_in(
        self,
        student: str,
        about: str,
        kind: str,
        work: Notebook | str | bytes | None,
        *,
        points: dict[str, float] | None = None,
        lost: Iterable[str] = (),
        statuses: Sequence[str] = ("graded",),
        file: str = "",
        late: bool = False,
        words: Sequence[str] = (),
        diagnosed: dict[str, str] | None = None,
    ) -> None:
        """Write one submission. Points are full but for `lost`, unless they are given."""
        folder = self.out / student / self.unit
        folder.mkdir(parents=True)
        if work is not None:
            data = work.text() if isinstance(work, Notebook) else work
            data = data.encode() if isinstance(data, str) else data
            (folder / (file or f"{self.unit}.ipynb")).write_bytes(data)
        if late:
            (folder / "timestamp.txt").write_text(LATE + "\n")
        earned = dict(self.full if points is None else points)
        earned |= dict.fromkeys(lost, 0.0)
        self.expected.append(
            Expected(
                student,
                about,
                kind,
                tuple(statuses),
                earned,
                diagnosed or {},
                tuple(words),
                late,
            )
        )

    # Who is in the class.

    def honest(self) -> None:
        """Right answers in several styles, unfinished work, mistakes."""
        done = styles(self.unit)
        about = "the reference's own answers"
        self.hand_in("full-reference", about, "honest", self.complete())
        for name, style in done.items():
            work = self.blank().answer(style, self.full)
            self.hand_in(f"full-{name}", f"right, in the style “{name}”", "honest", work)
        self.hand_in("blank", "nothing written", "honest", self.blank(), points=self.nothing)
        names = list(self.full)
        first = names[: len(names) // 2]
        work = self.blank().answer(self.right, first)
        points = {name: self.full[name] if name in first else 0.0 for name in names}
        self.hand_in("half-done", "the first half, right", "honest", work, points=points)
        self.hand_in("late", "right, but late", "honest", self.complete(), late=True)

    def mistakes(self) -> None:
        """One known mistake each; what the mistake costs is what the graders say in process."""
        for chosen in (misconception(self.unit, name) for name in extras(self.unit).mistakes):
            work, points = self.mistaken(chosen)
            self.hand_in(
                f"mistake-{chosen.name.replace('_', '-')}",
                f"one mistake in {chosen.exercise}: {chosen.says}",
                "mistake",
                work,
                points=points,
                diagnosed={chosen.exercise: chosen.name},
            )

    def mistaken(self, chosen: Any) -> tuple[Notebook, dict[str, float]]:
        """A notebook with one misconception, and the points that it earns."""
        source = changed_source(self.unit, chosen)
        work = self.complete()
        work.write(chosen.exercise, cells_of_source(source)[chosen.exercise])
        return work, self.full | self.judged(chosen)

    def judged(self, chosen: Any) -> dict[str, float]:
        """The points of the exercise that a misconception is in; it costs others nothing."""
        from autograder.sandbox.executor import Executor

        namespace = load_variant(changed_source(self.unit, chosen), f"demo_{chosen.name}")
        results = _graders(self.unit).run(
            Executor(namespace).execute,
            seed=self.seed,
            exercises=[chosen.exercise],
            diagnose=False,
        )
        return {name: result.points for name, result in results.items()}

    def accidents(self) -> None:
        """Code that hangs, dies or says more than it should, beside right answers."""
        hang, bomb, leave, broken = (self.leaves[-1 - k % len(self.leaves)] for k in range(4))
        work = self.complete()
        work.write(hang, f"def {hang}(*args, **kwargs):\n    while True:\n        pass\n")
        about = f"a loop without end in {hang}"
        self.hand_in(
            "endless-function", about, "accident", work, lost=[hang], statuses=["timed_out"]
        )
        work = self.complete()
        work.own(work.place(hang), "waiting = True\nwhile waiting:\n    pass\n")
        about = "a cell that never ends, beside right answers"
        self.hand_in("endless-cell", about, "accident", work, statuses=["timed_out"])

        work = self.complete()
        text = f"""
            def {bomb}(*args, **kwargs):
                kept = []
                while True:
                    kept.append(torch.ones(64, 1024, 1024))
            """
        work.write(bomb, dedent(text).strip())
        about = f"{bomb} fills the memory"
        self.hand_in("memory-bomb", about, "accident", work, lost=[bomb], statuses=["timed_out"])

        work = self.complete()
        work.own(
            work.place(bomb), "hoard = []\nwhile True:\n    hoard.append(bytearray(1 << 26))\n"
        )
        about = "a cell that fills the memory, beside right answers"
        self.hand_in("memory-bomb-cell", about, "accident", work, statuses=["timed_out"])

        work = self.complete()
        work.write(leave, f"import os\n\n\ndef {leave}(*args, **kwargs):\n    os._exit(0)\n")
        about = f"{leave} ends the process"
        self.hand_in("exit-function", about, "accident", work, lost=[leave], statuses=["crashed"])
        work = self.complete()
        work.own(work.place(leave), "import os\n\nos._exit(0)\n")
        about = "a cell that ends the process, beside right answers"
        self.hand_in("exit-cell", about, "accident", work, statuses=["crashed"])

        work = self.complete()
        work.own(0, 'raise RuntimeError("where is my data?")\n')
        self.hand_in("crash-at-import", "an error in the first cell", "accident", work)
        work = self.complete()
        work.write(broken, f"def {broken}(x:\n    return x\n")
        about = f"a syntax error in {broken}"
        self.hand_in("syntax-error", about, "accident", work, lost=[broken])

        work = self.complete()
        work.own(1, _NOISY)
        for name in self.full:
            work.own(work.place(name) + 1, f"warnings.warn('{name} is experimental')\n")
        self.hand_in("noisy", "warnings on stderr beside right answers", "accident", work)
        work = self.complete()
        work.own(1, _MARKUP)
        work.own(len(work.cells), "<script>document.title = 'taken over'</script>", "markdown")
        for question in self.assignment.questions:
            work.write(question.name, "**Your answer:** <script>alert('answer')</script>\n")
        about = "prints HTML, scripts and terminal escapes beside right answers"
        self.hand_in("markup", about, "accident", work)

    def damage(self) -> None:
        """Right answers in notebooks that something happened to."""
        names = list(self.full)
        middle = self.assignment.exercises[len(names) // 2].name
        leaf = self.leaves[-1]

        def damaged(student: str, about: str, work: Any, words: Sequence[str], **more: Any) -> None:
            more = {"statuses": ["repaired"], **more}
            self.hand_in(student, about, "damage", work, words=words, **more)

        work = self.complete()
        stub = Notebook(self.released).cell(leaf)
        work.cells.insert(work.place(leaf), copy.deepcopy(stub))
        about = f"the cell of {leaf} twice, once as it was handed out"
        damaged("duplicated-cell", about, work, [f"found {leaf} 2 times"])

        work = self.complete()
        cut = work.cell(leaf)
        source = "".join(cut["source"]).splitlines(keepends=True)
        half = max(3, len(source) // 2)
        while source[half - 1].rstrip().endswith((":", '"""')):
            half += 1
        cut["source"] = source[:half]
        work.own(work.place(leaf) + 1, "".join(source[half:]))
        damaged("split-cell", f"the cell of {leaf} cut in two", work, ["split in the middle"])

        work = self.complete()
        del work.cells[work.place(leaf)]
        del work.cells[work.place(f"check_{middle}")]
        words = [f"deleted solution cell of {leaf}", f"deleted check cell of {middle}"]
        damaged("deleted-cells", f"no cell for {leaf}", work, words, lost=[leaf])

        work = self.complete()
        for cell in work.cells:
            cell["metadata"] = {}
            cell.pop("id", None)
        work.data["metadata"] = {}
        damaged("stripped-metadata", "no metadata, no ids", work, ["without nbgrader's metadata"])

        work = self.complete()
        cell = work.cell(leaf)
        cell["cell_type"] = "markdown"
        del cell["outputs"], cell["execution_count"]
        about = f"the cell of {leaf} turned into text"
        damaged("retyped-cell", about, work, ["restored the type of a cell"])

        work = self.complete()
        for cell in work.cells:
            marks = cell["metadata"].get("nbgrader")
            if marks:
                marks["schema_version"] = 1
        work.data["metadata"]["kernelspec"] = {"name": "ir", "language": "R", "display_name": "R"}
        about = "an old schema and another kernel"
        damaged("old-schema", about, work, ["cell metadata up to date", "kernel"])

        text = self.complete().text()
        spot = text.index(f'"grade_id": "{middle}"')
        spot = text.index('"source"', spot) + 60
        kept = {name: self.full[name] for name in names[: names.index(middle)]}
        damaged(
            "truncated-file",
            f"the file ends within the cell of {middle}",
            text[:spot],
            ["recovered", "damaged file"],
            points=self.nothing | kept,
        )
        damaged(
            "utf-16",
            "saved in UTF-16",
            self.complete().text().encode("utf-16"),
            ["UTF-16"],
        )
        garbage = hashlib.sha256(self.unit.encode()).digest() * 64
        damaged("garbage", "bytes that are no notebook", garbage, [], points=self.nothing,
                statuses=["unreadable"])  # fmt: skip
        damaged("web-page", "the page that shows the notebook",
                "<!DOCTYPE html><html><script>alert(1)</script></html>", [],
                points=self.nothing, statuses=["unreadable"])  # fmt: skip
        damaged("missing", "a folder without a file", None, [], points=self.nothing,
                statuses=["missing"])  # fmt: skip
        file = f"My {self.unit.title()} (1) FINAL.ipynb"
        damaged("misnamed", f"called {file}", self.complete(), ["renamed"], file=file)

    def cheats(self) -> None:
        """Attempts to earn points without an answer."""
        preamble = PREAMBLE.format(unit=self.unit, exercises=list(self.full))
        for cheat in CHEATS:
            work = self.blank()
            for source in (preamble, cheat.source):
                cell = work.append(source)
                if cheat.outputs:
                    cell["outputs"] = [_result(cheat.outputs)]
            self.cheat(cheat.name, cheat.about, work, cheat.statuses)

        work = self.blank()
        for cell in work.checks():
            points = cell["metadata"]["nbgrader"]["points"]
            cell["outputs"], cell["execution_count"] = [_result(repr(points))], 1
            cell["metadata"]["nbgrader"]["auto_score"] = points
        work.data["metadata"]["transformers_by_hand"] = {"status": "graded", "score": 1000.0}
        about = "outputs and metadata that say full marks"
        self.cheat("forged-outputs", about, work)

        work = self.blank()
        for cell in work.checks():
            cell["source"] = _lines(f"{cell['metadata']['nbgrader']['points']}\n")
        about = "check cells that return full marks"
        self.cheat("edited-checks", about, work, ["repaired"], ["edited check cell"])

        work = self.blank()
        for cell in list(work.checks()):
            marks = cell["metadata"]["nbgrader"]
            marks |= {"points": 100.0, "solution": True, "locked": False, "task": False}
        for number in range(3):
            cell = work.append("100.0\n")
            cell["outputs"] = [_result("100.0")]
            cell["metadata"]["nbgrader"] = {
                "grade": True, "solution": False, "locked": True, "task": False, "points": 100.0,
                "grade_id": f"bonus-{number}", "schema_version": 3, "cell_type": "code",
            }  # fmt: skip
        about = "check cells worth more, and three of the student's own"
        self.cheat("inflated-points", about, work, ["graded", "repaired"])

    def forbidden(self) -> None:
        """Right answers that call the very function that the exercise asks for."""
        more = extras(self.unit)
        for name, (exercise, about, source) in more.forbidden.items():
            work = self.complete()
            work.write(exercise, source)
            lost = [exercise]
            if name in more.tampering:
                lost = [each.name for each in self.assignment.exercises if each.forbids]
            self.hand_in(
                f"cheat-{name}",
                f"{about}, right otherwise",
                "cheat",
                work,
                lost=lost,
                diagnosed={exercise: "forbidden"},
            )

    def cheat(
        self,
        name: str,
        about: str,
        work: Notebook,
        statuses: Sequence[str] = ("graded",),
        words: Sequence[str] = (),
    ) -> None:
        self.hand_in(f"cheat-{name}", about, "cheat", work, points=self.nothing,
                     statuses=statuses, words=words)  # fmt: skip


_NOISY = """
import logging
import os
import sys
import warnings

logging.basicConfig(level=logging.DEBUG)
logging.getLogger("student").error("ERROR: this is only a drill")
warnings.simplefilter("always")
warnings.warn("Traceback (most recent call last): nothing of the kind")
print("careful", file=sys.stderr)
sys.__stderr__.write("written past sys.stderr\\n")
os.write(2, b"written past Python\\n" * 100)
""".lstrip()

_MARKUP = """
print("<script>alert('printed')</script><img src=x onerror=alert(1)>")
print("</pre></div><h1>Full marks</h1><style>body { display: none }</style>")
print("\\x1b[2J\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07 \\x1b]52;c;cm0gLXJm\\x07 \\x9b31m")
print("\\x00 \\u202e")
print("[link](javascript:alert(2)) {{ resources }} {% raw %} $$\\\\href{javascript:alert(3)}{x}$$")
""".lstrip()


@functools.cache
def _graders(unit: str) -> Any:
    from autograder.judging.runner import Graders

    return Graders(unit)


def make(out: Path, unit: str = SHOWN, seed: int = 0, *, whole: bool = True) -> list[Expected]:
    """Write a class's submissions to `out` and what they must earn to `out/../expected.json`.

    Args:
        out: `out/<student>/<unit>/<unit>.ipynb`, as nbgrader has it; made anew.
        unit: the assignment.
        seed: of the inputs with which the cost of a mistake is found.
        whole: also the accidents, the damage and the cheats that attack the grading itself and
            not a unit: they are much the same whatever the assignment.

    Returns:
        What each student must earn, by name.

    Raises:
        AssignmentError: there is no such assignment.
    """
    out = Path(out)
    maker = _maker(out, unit, seed)
    parts = [maker.honest, maker.mistakes, maker.forbidden]
    if whole:
        parts += [maker.accidents, maker.damage, maker.cheats]
    for part in parts:
        part()
    expected = sorted(maker.expected, key=lambda one: one.student)
    data = {"assignment": unit, "students": [one.to_json() for one in expected]}
    text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    (out.parent / "expected.json").write_text(text, encoding="utf-8")
    return expected


# What makes every float that a submission returns differ from other submissions' in its last bit.
OWN_ROUNDING = """
import functools

import torch


def rounded(value):
    if isinstance(value, tuple):
        return tuple(map(rounded, value))
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    own = torch.sin({number} * torch.arange(1, value.numel() + 1, dtype=torch.float64))
    own = 1 + 2 * torch.finfo(value.dtype).eps * own.view(value.shape)
    return (value * own).to(value.dtype)


def with_own_rounding(function):
    if isinstance(function, type):
        if hasattr(function, "forward"):
            function.forward = with_own_rounding(function.forward)
        return function

    @functools.wraps(function)
    def answer(*args, **kwargs):
        return rounded(function(*args, **kwargs))

    return answer
"""


def make_honest(
    out: Path, unit: str = SHOWN, count: int = 10, *, different: bool = False
) -> list[str]:
    """Write `count` submissions without tricks, hardly two of them alike.

    Everybody has one style and makes up to three mistakes; one in six has not come to the end.
    Nothing in them hangs, crashes or is damaged, so that stock nbgrader can grade them too.

    Args:
        out: a new folder, or one that holds only such submissions.
        unit: the assignment.
        count: how many.
        different: no two give the same answer to anything that has floating-point numbers in it, so
            that nothing known of one submission helps with the next.

    Returns:
        The students' names.
    """
    maker = _maker(Path(out), unit, 0)
    names = list(maker.full)
    known = [maker.right, *styles(unit).values()]
    students = []
    for number in range(count):
        chance = random.Random(number)
        style = chance.choice(known)
        wrong = {
            mistake.exercise: mistake
            for mistake in chance.sample(misconceptions(unit), chance.choice((0, 0, 1, 1, 2, 3)))
        }
        done = names if chance.random() > 1 / 6 else names[: chance.randrange(1, len(names))]
        work = maker.blank().answer(style, done)
        for name in set(wrong) & set(done):
            work.write(name, cells_of_source(changed_source(unit, wrong[name]))[name])
        if different:
            for name in done:
                cell = work.cell(name)
                source = "".join(cell["source"])
                work.write(name, f"{source}\n\n{name} = with_own_rounding({name})\n")
            work.own(0, OWN_ROUNDING.format(number=number + 1))
        student = f"honest-{number + 1:03}"
        maker.hand_in(student, "honest work", "honest", work)
        students.append(student)
    return students


def _maker(out: Path, unit: str, seed: int) -> Maker:
    """An empty folder and a maker for it."""
    maker = Maker(out, unit, seed)
    if out.exists():
        # Only what looks like submissions is swept away.
        strangers = [item.name for item in out.iterdir() if not (item / unit).is_dir()]
        if strangers:
            raise AssignmentError(
                f"{out} holds other things than submissions ({strangers[0]}); name a new folder."
            )
        shutil.rmtree(out)
    out.mkdir(parents=True)
    return maker


def main(arguments: list[str] | None = None) -> int:
    """Make a class from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m autograder.demo.make_class",
        description="Make a class to demonstrate grading.",
    )
    parser.add_argument("out", type=Path, help="the folder of submissions to write")
    parser.add_argument("--unit", default=SHOWN, help="the assignment")
    parser.add_argument("--honest", type=int, metavar="N", help="only N students without tricks")
    options = parser.parse_args(arguments)
    try:
        if options.honest is not None:
            count = len(make_honest(options.out, options.unit, options.honest))
        else:
            count = len(make(options.out, options.unit))
    except AssignmentError as error:
        parser.exit(1, f"make_class: {error}\n")
    print(f"{count} submissions of {options.unit} in {options.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
