"""Any damage at all leaves a notebook that can be graded, with all the text and no point more.

`HYPOTHESIS_PROFILE=long` tries 10,000 examples of each.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autograder.grading import repair
from tests.autograder.grading.test_repair import (
    CODE,
    NAMES,
    RELEASE,
    STUBS,
    assert_gradable,
    at,
    code,
    make_release,
    mend,
    source,
    where,
)

# More than other tests try: an example costs a few milliseconds.
fuzzed = settings(max_examples=max(300, settings.default.max_examples))

ACCIDENTS = [
    *["delete", "copy", "edit", "move", "retype", "strip", "split", "new", "merge"],
    *["points", "schema", "foreign", "id", "odd", "exchange", "empty"],
]


@st.composite
def damaged(draw: st.DrawFn) -> tuple[dict[str, Any], set[str]]:
    """A submission after a few accidents, and the marked pieces of text still in its cells."""
    notebook = make_release()
    for name in NAMES:
        at(notebook, name)["source"] = CODE[name].splitlines(keepends=True)
    at(notebook, "why")["source"] = ["Because token-why."]
    cells = notebook["cells"]
    for step in range(draw(st.integers(0, 8))):
        if not cells:
            break
        index = draw(st.integers(0, len(cells) - 1))
        cell = cells[index]
        accident = draw(st.sampled_from(ACCIDENTS))
        nbgrader = cell["metadata"].get("nbgrader") if isinstance(cell["metadata"], dict) else None
        if accident == "delete":
            del cells[index]
        elif accident == "copy":
            cells.insert(draw(st.integers(0, len(cells))), copy.deepcopy(cell))
        elif accident == "edit":
            cell["source"] = [*cell["source"], f"\nedit{step} = 1  # token-edit{step}"]
        elif accident == "move":
            cells.insert(draw(st.integers(0, len(cells) - 1)), cells.pop(index))
        elif accident == "retype":
            cell["cell_type"] = draw(st.sampled_from(["code", "markdown", "raw", "weird", 3]))
        elif accident == "strip":
            cell["metadata"] = {}
        elif accident == "split":
            cut = draw(st.integers(0, len(cell["source"])))
            rest = copy.deepcopy(cell)
            if draw(st.booleans()):
                rest["metadata"] = {}
            rest["source"], cell["source"] = cell["source"][cut:], cell["source"][:cut]
            cells.insert(index + 1, rest)
        elif accident == "new":
            text = draw(st.sampled_from(["x = 1", "def alpha(x): return 0", "%magic", "class ("]))
            cells.insert(index, code(f"{text}  # token-new{step}", f"new{step}"))
        elif accident == "merge" and index:
            cells[index - 1]["source"] = [*cells[index - 1]["source"], "\n", *cell["source"]]
            del cells[index]
        elif accident == "points" and nbgrader is not None:
            nbgrader["points"] = draw(st.sampled_from([-1, 1e9, "many", None, [], float("inf")]))
        elif accident == "schema" and nbgrader is not None:
            nbgrader["schema_version"] = draw(st.sampled_from([0, 1, 2, 9, None, "3"]))
        elif accident == "foreign" and nbgrader is not None:
            nbgrader["grade_id"] = draw(st.sampled_from(["other", "", None, 5, "check_beta"]))
        elif accident == "id":
            cell["id"] = draw(st.sampled_from(["alpha", "check_beta", "", "a b", None, 7]))
        elif accident == "odd":
            cell[draw(st.sampled_from(["metadata", "outputs", "attachments"]))] = draw(
                st.sampled_from([None, [], {}, "x", 1, {"a": {"b": 1}}])
            )
            if not isinstance(cell["metadata"], dict):
                cell["metadata"] = {}
        elif accident == "exchange":
            other = draw(st.integers(0, len(cells) - 1))
            cell["metadata"], cells[other]["metadata"] = cells[other]["metadata"], cell["metadata"]
        elif accident == "empty":
            cell["source"] = []
    text = "".join("".join(cell["source"]) + "\n" for cell in cells)
    tokens = {word for word in text.replace(".", " ").split() if word.startswith("token-")}
    return notebook, tokens


@fuzzed
@given(damaged())
def test_any_accident_leaves_a_gradable_notebook_with_all_the_text(accident):
    notebook, tokens = accident
    result = mend(notebook)
    everything = "\n".join(cell.source for cell in result.nb.cells)
    assert {token for token in tokens if token not in everything} == set()


def code_in_prose(cell_id: str) -> dict[str, Any]:
    """The code of `beta` stands in two markdown cells of another exercise, its own cell is gone."""
    notebook = make_release()
    cells = notebook["cells"]
    there = where(notebook, cell_id)
    cells[there] |= {"cell_type": "markdown", "source": [CODE["beta"]]}
    for key in ("outputs", "execution_count"):
        cells[there].pop(key, None)
    cells.insert(there, {**cells[there], "id": "other", "source": [CODE["beta"], "# Twice"]})
    del cells[where(notebook, "beta")]
    return notebook


def split_around(between: str) -> dict[str, Any]:
    """A class in two cells; what stands between them goes away or has its own place."""
    notebook = make_release()
    cells = notebook["cells"]
    there = where(notebook, "Gamma")
    head, *rest = CODE["Gamma"].splitlines(keepends=True)
    tail = {**copy.deepcopy(cells[there]), "source": rest, "id": "tail"}
    if between == "an empty cell":
        cells[there + 1 : there + 1] = [code("", "empty"), {**tail, "metadata": {}}]
    elif between == "its check":
        cells.insert(there + 2, tail)
    else:
        cells.insert(there + 1, tail)
        cells.insert(0, cells.pop(there))
    at(notebook, "Gamma")["source"] = [head]
    return notebook


@fuzzed
@given(damaged())
@example((split_around("an empty cell"), set()))
@example((split_around("its check"), set()))
@example((split_around("all other exercises"), set()))
@example((code_in_prose("check_alpha"), set()))
@example((code_in_prose("why"), set()))
def test_repairing_twice_changes_nothing_more(accident):
    once = mend(accident[0])
    twice = mend(json.loads(json.dumps(once.nb)))
    assert (twice.repairs, once.repairs) == ([], once.repairs)
    assert [cell.source for cell in twice.nb.cells] == [cell.source for cell in once.nb.cells]


@fuzzed
@given(damaged())
def test_no_accident_earns_a_point(accident):
    """A repaired notebook does not define what neither a run nor a cell of the damaged one did."""
    notebook, _ = accident
    texts = ["".join(cell["source"]) for cell in notebook["cells"]]
    result = mend(notebook)
    for name in NAMES:
        mine = source(result, name)
        if mine != STUBS[name] and not mine.startswith("# The code of"):
            # Made of the student's own cells, one or several after each other.
            assert all(line in "\n".join(texts) for line in mine.splitlines())


@fuzzed
@given(st.data())
def test_no_damage_to_the_file_is_an_error(data):
    notebook = make_release()
    for name in NAMES:
        at(notebook, name)["source"] = CODE[name].splitlines(keepends=True)
    raw = bytearray(json.dumps(notebook, indent=data.draw(st.sampled_from([None, 1]))).encode())
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(0, max(0, len(raw) - 1)))
        accident = data.draw(st.sampled_from(["flip", "cut", "insert", "drop", "double"]))
        if accident == "flip" and raw:
            raw[place] = data.draw(st.integers(0, 255))
        elif accident == "cut":
            del raw[place:]
        elif accident == "insert":
            raw[place:place] = data.draw(st.binary(min_size=1, max_size=20))
        elif accident == "drop":
            del raw[place : place + data.draw(st.integers(1, 200))]
        elif accident == "double":
            raw += raw[place:]
    mend(bytes(raw))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "cells",
                    "cell_type",
                    "source",
                    "metadata",
                    "nbgrader",
                    "worksheets",
                    "id",
                    "level",
                ]
            )
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@fuzzed
@given(JSON, st.lists(JSON, max_size=5))
@example({"metadata": {}, "cells": [None, 5]}, [])
def test_any_json_at_all_is_dealt_with(value, cells):
    mend(json.dumps(value).encode())
    mend(json.dumps({"cells": cells, "nbformat": 4, "nbformat_minor": 5}).encode())
    # Behind more open braces than are tried one by one, its cells are searched for.
    mend(b'{"x":' * 60 + json.dumps(value).encode())


# ---------------------------------------------------------------------------------------------
# Notebooks of a grammar


RELEASED = make_release()["cells"]
IDS = [cell["id"] for cell in RELEASED]
TOKENS = {name: f"token-{name}" for name in NAMES}
WRONG = st.sampled_from([None, True, 0, -1, 3, 1.5, "", "x", [], {}, [None], {"a": 1}, "\ud800"])
SOURCES = [cell["source"] for cell in RELEASED] + [
    text.splitlines(keepends=True)
    for text in (
        *CODE.values(),
        "%load_ext x\nx?",
        "x = (",
        "\x00\ufeff\u2028",
        'check("alpha")\ncheck("beta")',
        "def alpha(x): return 1\n\ndef beta(x): return 2",
        "class Gamma: pass\n" * 3,
        "~~~~\n<script>alert(1)</script>",
        "points = 99\n99.0",
        "",
    )
]
MARKS = st.fixed_dictionaries(
    {},
    optional={
        "grade_id": st.sampled_from([*IDS, "other", "", None, 5, "check_", "CHECK_ALPHA", "аlpha"]),
        "grade": st.booleans() | WRONG,
        "solution": st.booleans() | WRONG,
        "locked": st.booleans() | WRONG,
        "task": st.booleans() | WRONG,
        "points": st.sampled_from([99, -1, 1e308, float("nan"), float("inf"), "9", [9], None]),
        "checksum": st.text(max_size=4) | WRONG,
        "schema_version": st.integers(-1, 9) | WRONG,
        "cell_type": st.sampled_from(["code", "markdown"]) | WRONG,
        "remove": st.just(True),
    },
)
FULL = {"points": 99.0, "score": 99.0, "exercises": {"alpha": {"points": 99.0}}}
OUTPUTS = st.lists(
    st.sampled_from(
        [
            {"output_type": "execute_result", "data": {"text/plain": "99.0"}, "metadata": {}},
            {
                "output_type": "display_data",
                "data": {"application/vnd.transformers-by-hand.result+json": FULL},
                "metadata": {},
            },
            {"output_type": "stream", "name": "stdout", "text": ["99\n"]},
            {"output_type": "error", "ename": 1},
            {},
            None,
            "99.0",
        ]
    ),
    max_size=3,
)
CELLS = st.fixed_dictionaries(
    {
        "cell_type": st.sampled_from(["code", "code", "markdown", "raw", "heading", "html", "x"])
        | WRONG,
        "source": st.sampled_from(SOURCES) | st.text(max_size=10) | WRONG,
        "metadata": st.fixed_dictionaries({}, optional={"nbgrader": MARKS | WRONG}) | WRONG,
    },
    optional={
        "id": st.sampled_from([*IDS, "own", "a b", ""]) | WRONG,
        "outputs": OUTPUTS | WRONG,
        "execution_count": WRONG,
        "attachments": st.just({"a.svg": {"image/svg+xml": "<svg/>"}, "b": {"image/png": "QQ=="}})
        | WRONG,
        "level": st.integers(-2, 9) | WRONG,
        "fragment": st.booleans(),
        "input": st.sampled_from(SOURCES),
        "unknown": WRONG,
    },
)
NOTEBOOKS = st.fixed_dictionaries(
    {"cells": st.lists(CELLS | st.sampled_from(RELEASED) | WRONG, max_size=14)},
    optional={
        "nbformat": st.integers(-1, 6) | WRONG,
        "nbformat_minor": st.integers(-1, 9) | WRONG,
        "metadata": st.fixed_dictionaries(
            {},
            optional={
                "kernelspec": st.fixed_dictionaries(
                    {}, optional={"name": WRONG, "language": WRONG, "display_name": WRONG}
                )
                | WRONG,
                "transformers_by_hand": st.just(
                    {"status": "graded", "own": IDS, "repairs": ["<b>"], "score": 99}
                ),
                "celltoolbar": WRONG,
            },
        )
        | WRONG,
        "worksheets": st.just([{"cells": copy.deepcopy(RELEASED)}]) | WRONG,
    },
)


def flat(notebook: Any) -> str:
    """All the text of a JSON value, each string in a line of its own.

    A source that is no text counts as its JSON, and what is no text in a list of lines as Python
    prints it: so far may repair go to keep what was handed in.
    """
    parts: list[str] = []
    stack = [notebook]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            parts.append(item)
        elif isinstance(item, list):
            stack.extend(item)
        elif isinstance(item, dict):
            stack.extend(item.values())
            for source in (item[key] for key in ("source", "input") if key in item):
                if isinstance(source, list):
                    parts.append("".join(map(str, source)))
                elif not isinstance(source, str):
                    parts.append(json.dumps(source))
    return "\n".join(parts)


def assert_nothing_invented(handed_in: str, result: repair.RepairedNotebook) -> None:
    """Every line of a solution is the stub's or was handed in; nothing of the grading is theirs."""
    for name in NAMES:
        for line in source(result, name).splitlines():
            known = line in STUBS[name] or line.startswith("# The code of")
            # The heading cells of format 3 have a level, and become text with as many hashes.
            texts = (line.strip(), line.lstrip("#").strip())
            assert known or any(text in handed_in for text in texts), line
    assert "transformers_by_hand" not in result.nb.metadata
    assert result.nb.metadata == RELEASE.metadata


@fuzzed
@given(NOTEBOOKS)
@example({"cells": [{**at(make_release(), "alpha"), "source": True}]})
@example({"cells": [{**at(make_release(), "alpha"), "source": {"a": 1}}]})
@example({"cells": [{**at(make_release(), "alpha"), "source": ["x = ", None]}]})
@example({"cells": [{**at(make_release(), "alpha"), "cell_type": "heading", "source": "x = 1"}]})
def test_any_notebook_of_the_grammar_can_be_graded(notebook):
    result = mend(notebook)
    # NUL and half characters cannot be run and do not count as text.
    text = flat(notebook).replace("\x00", "").replace("\ud800", "?").replace("\r", "\n")
    assert_nothing_invented(text, result)
    own = [cell for cell in result.nb.cells if cell.id not in IDS]
    assert len(own) <= len(notebook["cells"]) + 1
    said = sum(len(line) for line in result.repairs)
    assert said < 4000
    assert all("\n" not in line and line.isprintable() for line in result.repairs)


def test_no_field_of_a_file_marks_a_cell_as_cut_short():
    """Found by repairing notebooks of the grammar twice."""
    notebook = make_release()
    lines = CODE["alpha"].splitlines(keepends=True)
    at(notebook, "alpha").update(source=lines, metadata={}, fragment=True)
    assert source(mend(notebook), "alpha") == CODE["alpha"]


@fuzzed
@given(NOTEBOOKS, st.lists(st.sampled_from(NAMES), unique=True, min_size=1), st.randoms())
def test_an_answer_in_its_own_cell_survives_any_company(notebook, written, random):
    """What a student wrote where it belongs counts, whatever else the file holds."""
    notebook = {**notebook, "cells": list(notebook["cells"])}
    # Nobody else claims the exercise: no cell defines it or goes by its name.
    for name in written:
        notebook["cells"] = [
            cell
            for cell in notebook["cells"]
            if not isinstance(cell, dict)
            or (name not in flat(cell) and f"check_{name}" not in flat(cell))
        ]
    for name in written:
        marks = copy.deepcopy(at(make_release(), name)["metadata"])
        cell = code(CODE[name], name, marks)
        notebook["cells"].insert(random.randint(0, len(notebook["cells"])), cell)
    result = mend(notebook)
    for name in written:
        assert source(result, name) == CODE[name]


@fuzzed
@given(st.one_of(NOTEBOOKS, damaged().map(lambda made: made[0])), st.data())
def test_any_bytes_of_a_file_are_dealt_with(tmp_path_factory, notebook, data):
    encoding = data.draw(
        st.sampled_from(["utf-8", "utf-8", "utf-16", "utf-32", "utf-8-sig", "cp1252", "utf-7"])
    )
    text = json.dumps(notebook, ensure_ascii=data.draw(st.booleans()))
    octets = bytearray(text.encode(encoding, "replace"))
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(octets)))
        accident = data.draw(st.sampled_from(["cut", "flip", "insert", "behead", "nest"]))
        if accident == "cut":
            del octets[place:]
        elif accident == "behead":
            del octets[:place]
        elif accident == "flip" and place < len(octets):
            octets[place] ^= data.draw(st.integers(1, 255))
        elif accident == "insert":
            octets[place:place] = data.draw(
                st.sampled_from(
                    [b"\x00", b"\xff\xfe", b"<<<<<<< a\n", b"=======\n", b"\n>>>>>>> b"]
                )
                | st.binary(max_size=9)
            )
        elif accident == "nest":
            octets[place:place] = b'{"source":[' * data.draw(st.integers(1, 2000))
    path = tmp_path_factory.getbasetemp() / f"fuzzed-{os.getpid()}.ipynb"
    path.write_bytes(octets)
    result = repair.repair_file(path, "attention-scores", RELEASE)
    assert_gradable(result)
    assert len(json.dumps(result.nb)) < 20 * len(octets) + 20_000
    for name in NAMES:  # Damage can lose an answer, but never makes one of nothing.
        if source(result, name) not in (
            STUBS[name],
            f"# The code of {name} stands in another cell.",
        ):
            assert result.status in ("ok", "repaired")


# ---------------------------------------------------------------------------------------------
# Files made to cost time or memory


def costly() -> dict[str, bytes]:
    """Files by name; a gigabyte, so not made before they are needed."""
    return {
        "open lists, each scanned from every start": b'{"id":[' * 900 + b"1," * (3 * 10**6 // 2),
        "open strings": b'{"id":' * 900 + b'"' + b"x" * 30_000_000,
        "a nest too deep, far behind many starts": b'{"id":[' * 800
        + b"7" * 3000
        + b"[" * 3_000_000,
        "starts without end": b'{"id":' * 3_000_000,
        "conflicts without end": b"<<<<<<< a\n" * 1000 + b"=======\n" * 400_000,
        "conflicts with many origins": (b"<<<<<<< a\n" + b"||||||| b\n" * 300_000 + b"=======\n")
        * 2,
        "a hundred million empty lists": b'{"cells":[' + b"[]," * 20_000_000 + b"[]]}",
        "millions of empty cells": b'{"cells":[' + b"{}," * 1_000_000 + b"{}]}",
        "a first line of megabytes": b'{"cells":['
        + b",".join(
            b'{"cell_type":"markdown","source":"' + b"ab " * 10**6 + b'"}' for _ in range(8)
        )
        + b"]}",
        "code of many megabytes": b'{"cells":['
        + b",".join(
            b'{"cell_type":"code","source":"' + b"x = [1, 2]\\n" * 15_000 + b'"}'
            for _ in range(300)
        )
        + b"]}",
        "code that nests": b'{"cells":[{"cell_type":"code","source":"'
        + b"x"
        + b".x" * 90_000
        + b'"}]}',
        "code of one huge number": b'{"cells":[{"cell_type":"code","source":"'
        + b"9" * 190_000
        + b'"}]}',
        "many blanks": b'{"cells":[{"source"' + b" " * 20_000_000 + b"{" + b" " * 20_000_000,
        "a file of the largest size": b'{"cells":["' + b"x" * (60 << 20) + b'\xf0\x9f\x98\x80"]}',
        "the same, damaged": b'{"cells":[{"cell_type":"code","source":"'
        + b"\xf0\x9f\x98\x80" * (15 << 20),
        "a picture of hundreds of megabytes": b'{"cells":[{"cell_type":"code","source":"x = 1",'
        + b'"outputs":[{"data":{"image/png":"'
        + b"A" * (250 << 20)
        + b'"}}]}]}',
        "outputs by the million": b'{"cells":[' + b'{"outputs":[]},' * (16 << 20) + b"{}]}",
    }


LIMITED = """
import json, resource, sys
from pathlib import Path
import nbformat
from autograder.grading import repair

resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
folder = Path(sys.argv[1])
release = nbformat.reads((folder / "release.json").read_text(), as_version=4)
for path in sorted(folder.glob("*.ipynb")):
    print(path.stem, flush=True)
    used = resource.getrusage(resource.RUSAGE_SELF)
    end = int(used.ru_utime + used.ru_stime) + 60
    resource.setrlimit(resource.RLIMIT_CPU, (end, resource.RLIM_INFINITY))
    result = repair.repair_file(path, "attention-scores", release)
    print(json.dumps([result.status, len(result.nb.cells), result.repairs, result.reason]))
    peak = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
    assert int(peak) < 1 << 20, "more than 1 GB"
"""


@pytest.mark.slow
def test_no_file_costs_more_than_a_minute_or_the_machines_memory(tmp_path):
    """In a process with a minute of a core for each and 6 GB; most take a second."""
    (tmp_path / "release.json").write_text(json.dumps(make_release()))
    names = []
    for name, octets in costly().items():
        (tmp_path / f"{name}.ipynb").write_bytes(octets)
        names.append(name)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=Path(repair.__file__).parents[2],
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"{lines[-1]}: {done.stderr[-500:]}"
    assert lines[::2] == sorted(names)
    for name, line in zip(lines[::2], lines[1::2], strict=True):
        status, cells, repairs, reason = json.loads(line)
        assert cells <= repair.MAX_CELLS + len(RELEASED), name
        assert repairs or reason, name
        assert status in ("repaired", "unreadable"), name
