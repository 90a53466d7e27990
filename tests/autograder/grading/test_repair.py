"""Repair: whatever is handed in becomes the released notebook with the student's text in it."""

from __future__ import annotations

import copy
import gzip
import io
import json
import zipfile
from typing import Any

import nbformat
import pytest
from nbgrader.nbgraderformat import MetadataValidator

from autograder.grading import repair
from autograder.grading.repair import RepairedNotebook

NAMES = ("alpha", "beta", "Gamma")
STUBS = {
    "alpha": 'def alpha(x):\n    """One."""\n    raise NotImplementedError("alpha is yours")\n',
    "beta": 'def beta(x):\n    raise NotImplementedError("beta is yours to write")\n',
    "Gamma": 'class Gamma:\n    def forward(self, x):\n        raise NotImplementedError("G")\n',
}
CODE = {
    "alpha": 'def alpha(x):\n    """One."""\n    y = x + 1\n    return y  # token-alpha\n',
    "beta": "def beta(x):\n    return alpha(x) * 2  # token-beta\n",
    "Gamma": "class Gamma:\n    def forward(self, x):\n        return beta(x)  # token-Gamma\n",
}


def meta(grade_id: str, **traits: Any) -> dict[str, Any]:
    flags = {"grade": False, "solution": False, "locked": False, "task": False, **traits}
    return {"nbgrader": {"schema_version": 3, "grade_id": grade_id, **flags}}


def code(source: str, cell_id: str, metadata: dict | None = None) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": cell_id,
        "metadata": metadata or {},
        "outputs": [],
        "source": source.splitlines(keepends=True),
    }


def markdown(source: str, cell_id: str, metadata: dict | None = None) -> dict[str, Any]:
    return {
        "cell_type": "markdown",
        "id": cell_id,
        "metadata": metadata or {},
        "source": source.splitlines(keepends=True),
    }


def make_release() -> dict[str, Any]:
    cells = [
        markdown("# A small assignment", "text-0"),
        code("import math\ncheck = print\n", "setup", meta("setup", locked=True)),
    ]
    for name in NAMES:
        cells.append(markdown(f"## Write `{name}`\nIt is easy.", f"text-{name}"))
        cells.append(code(STUBS[name], name, meta(name, solution=True)))
        grade = meta(f"check_{name}", grade=True, locked=True, points=2.0)
        cells.append(code(f'check("{name}")', f"check_{name}", grade))
    cells.append(markdown("## Say why", "text-why"))
    why = meta("why", grade=True, solution=True, points=3.0)
    cells.append(markdown("*Your answer here.*", "why", why))
    cells.append(markdown("The end.", "text-end"))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": cells,
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


RELEASE = nbformat.reads(json.dumps(make_release()), as_version=4)
VALIDATED: set[str] = set()


@pytest.fixture
def answers() -> dict[str, Any]:
    """A complete and undamaged submission."""
    notebook = make_release()
    for name in NAMES:
        at(notebook, name)["source"] = CODE[name].splitlines(keepends=True)
    at(notebook, "why")["source"] = ["Because token-why."]
    return notebook


def at(notebook: dict[str, Any], cell_id: str) -> dict[str, Any]:
    return notebook["cells"][where(notebook, cell_id)]


def where(notebook: dict[str, Any], cell_id: str) -> int:
    return next(n for n, cell in enumerate(notebook["cells"]) if cell["id"] == cell_id)


def mend(notebook: Any) -> RepairedNotebook:
    data = notebook if isinstance(notebook, bytes) else json.dumps(notebook).encode()
    result = repair.repair(data, RELEASE)
    assert_gradable(result)
    return result


def assert_gradable(result: RepairedNotebook) -> None:
    """Valid, and exactly the released cells in order, with nothing but solutions changed."""
    nbformat.validate(result.nb)
    # nbgrader needs long for what is the same in nearly every result, and looks at no other cells.
    marked = [cell for cell in result.nb.cells if "nbgrader" in cell.metadata]
    marks = json.dumps([(cell.cell_type, cell.metadata) for cell in marked])
    if marks not in VALIDATED:
        MetadataValidator().validate_nb(result.nb)
        VALIDATED.add(marks)
    json.dumps(result.nb).encode("utf-8")
    released = {cell.id for cell in RELEASE.cells}
    kept = [cell for cell in result.nb.cells if cell.id in released]
    assert [cell.id for cell in kept] == [cell.id for cell in RELEASE.cells]
    for cell, original in zip(kept, RELEASE.cells, strict=True):
        assert cell.metadata == original.metadata
        assert cell.cell_type == original.cell_type
        if not original.metadata.get("nbgrader", {}).get("solution"):
            assert cell.source == original.source
        if cell.cell_type == "code":
            assert cell.outputs == []
    for cell in result.nb.cells:
        if cell.id not in released:
            assert cell.metadata == {}
    assert result.status in ("ok", "repaired", "unreadable")
    assert (result.status == "repaired") == bool(result.repairs)
    assert (result.status == "unreadable") == bool(result.reason)


def source(result: RepairedNotebook, cell_id: str) -> str:
    return next(cell.source for cell in result.nb.cells if cell.id == cell_id)


def run(result: RepairedNotebook) -> dict[str, Any]:
    """The names a run of all code cells leaves, cell errors ignored as in grading."""
    namespace: dict[str, Any] = {"check": print}
    for cell in result.nb.cells:
        if cell.cell_type == "code" and not cell.source.startswith("check("):
            try:
                exec(cell.source, namespace)
            except Exception:
                continue
    return namespace


def own(result: RepairedNotebook) -> list[tuple[str, str]]:
    """The student's own cells: type and source."""
    released = {cell.id for cell in RELEASE.cells}
    return [(cell.cell_type, cell.source) for cell in result.nb.cells if cell.id not in released]


def test_an_undamaged_notebook_is_left_alone(answers):
    result = mend(answers)
    assert result.status == "ok"
    for name in NAMES:
        assert source(result, name) == CODE[name]
    assert source(result, "why") == "Because token-why."


def test_outputs_and_own_cells_are_no_damage(answers):
    answers["cells"].insert(3, code("import os\n", "mine"))
    at(answers, "check_alpha")["outputs"] = [
        {"output_type": "execute_result", "data": {"text/plain": "99"}, "metadata": {}}
    ]
    result = mend(answers)
    assert result.status == "ok"
    ids = [cell.id for cell in result.nb.cells]
    assert ids.index("mine") == ids.index("text-alpha") + 1


class TestDuplicates:
    def test_the_last_filled_in_copy_counts(self, answers):
        first = copy.deepcopy(at(answers, "alpha"))
        first["source"] = ["def alpha(x):\n", "    return 'old'\n"]
        first["id"] = "copy"
        answers["cells"].insert(where(answers, "alpha"), first)
        result = mend(answers)
        assert source(result, "alpha") == CODE["alpha"]
        assert run(result)["alpha"](1) == 2
        assert ("code", "def alpha(x):\n    return 'old'\n") in own(result)
        assert result.repairs == ["found alpha 2 times: the last one counts"]

    def test_a_copy_of_the_stub_does_not_hide_the_work(self, answers):
        stub = copy.deepcopy(at(make_release(), "alpha"))
        stub["id"] = "copy"
        answers["cells"].insert(where(answers, "alpha") + 1, stub)
        result = mend(answers)
        assert run(result)["alpha"](1) == 2
        assert own(result) == []

    def test_a_commented_stub_keeps_its_comments(self, answers):
        stub = copy.deepcopy(at(make_release(), "alpha"))
        stub["id"] = "copy"
        stub["source"].append("# token-remark\n")
        answers["cells"].insert(where(answers, "alpha") + 1, stub)
        result = mend(answers)
        assert run(result)["alpha"](1) == 2
        assert any("token-remark" in text for _, text in own(result))

    def test_check_cells_count_once(self, answers):
        answers["cells"].append(copy.deepcopy(at(answers, "check_alpha")))
        mend(answers)

    def test_the_last_answer_to_a_question_counts_and_the_other_stays(self, answers):
        again = copy.deepcopy(at(answers, "why"))
        again["source"], again["id"] = ["A second answer."], "again"
        answers["cells"].append(again)
        result = mend(answers)
        assert source(result, "why") == "A second answer."
        assert ("markdown", "Because token-why.") in own(result)


class TestSplit:
    def test_a_continuation_stays_directly_after_its_cell(self, answers):
        cell = at(answers, "alpha")
        cell["source"].append("helper_before = 1\n")
        answers["cells"].insert(where(answers, "alpha") + 1, code("helper = 2\n", "rest"))
        result = mend(answers)
        ids = [cell.id for cell in result.nb.cells]
        assert ids.index("rest") == ids.index("alpha") + 1
        assert run(result)["helper"] == 2

    @pytest.mark.parametrize("keeps_metadata", [False, True])
    def test_a_function_cut_in_the_middle_is_joined(self, answers, keeps_metadata):
        lines = CODE["alpha"].splitlines(keepends=True)
        at(answers, "alpha")["source"] = lines[:3]
        metadata = copy.deepcopy(at(answers, "alpha")["metadata"]) if keeps_metadata else None
        rest = code("".join(lines[3:]), "rest", metadata)
        answers["cells"].insert(where(answers, "alpha") + 1, rest)
        result = mend(answers)
        assert run(result)["alpha"](1) == 2
        assert any("joined" in line for line in result.repairs)
        assert own(result) == []

    def test_a_scratch_cell_that_does_not_parse_is_not_drawn_in(self, answers):
        scratch = code("and then I tried this", "scratch")
        answers["cells"].insert(where(answers, "alpha") + 1, scratch)
        result = mend(answers)
        assert source(result, "alpha") == CODE["alpha"]
        assert ("code", "and then I tried this") in own(result)

    def test_parts_that_share_the_metadata_keep_their_order(self, answers):
        cell = at(answers, "beta")
        helper = copy.deepcopy(cell)
        helper["source"], helper["id"] = ["factor = 2\n"], "helper"
        answers["cells"].insert(where(answers, "beta"), helper)
        result = mend(answers)
        assert source(result, "beta") == CODE["beta"]
        assert run(result)["factor"] == 2

    def test_two_exercises_in_one_cell_are_not_undone_by_a_stub(self, answers):
        at(answers, "alpha")["source"] = [CODE["alpha"], "\n", CODE["beta"]]
        del answers["cells"][where(answers, "beta")]
        result = mend(answers)
        assert run(result)["beta"](1) == 4
        assert "raise" not in source(result, "beta")


class TestDeleted:
    def test_a_check_cell_is_restored(self, answers):
        del answers["cells"][where(answers, "check_beta")]
        result = mend(answers)
        assert result.repairs == ["restored the deleted check cell of beta"]

    def test_a_solution_cell_comes_back_as_its_stub(self, answers):
        del answers["cells"][where(answers, "beta")]
        result = mend(answers)
        assert source(result, "beta") == STUBS["beta"]
        assert result.repairs == ["restored the deleted solution cell of beta"]

    def test_a_question_and_the_setup_come_back(self, answers):
        del answers["cells"][where(answers, "why")]
        del answers["cells"][where(answers, "setup")]
        result = mend(answers)
        assert source(result, "why") == "*Your answer here.*"
        assert len(result.repairs) == 2

    def test_everything_gone_gives_the_released_notebook(self, answers):
        answers["cells"] = []
        result = mend(answers)
        assert [cell.id for cell in result.nb.cells] == [cell.id for cell in RELEASE.cells]
        assert source(result, "alpha") == STUBS["alpha"]


class TestEdited:
    def test_a_check_cell_is_the_released_one_and_the_edit_never_runs(self, answers):
        at(answers, "check_alpha")["source"] = ["def alpha(x): return 'cheat'\n", "99.0"]
        result = mend(answers)
        assert run(result)["alpha"](1) == 2
        assert ("raw", "def alpha(x): return 'cheat'\n99.0") in own(result)

    def test_marks_in_the_metadata_are_the_released_ones(self, answers):
        at(answers, "check_alpha")["metadata"]["nbgrader"]["points"] = 1000
        at(answers, "alpha")["metadata"]["nbgrader"]["locked"] = True
        mend(answers)

    def test_an_edited_setup_cell_still_runs_beside_the_released_one(self, answers):
        at(answers, "setup")["source"].append("import os as mine\n")
        result = mend(answers)
        assert "mine" in run(result)
        assert any("setup" in line for line in result.repairs)

    @pytest.mark.parametrize("kind", ["markdown", "raw"])
    def test_a_retyped_cell_gets_its_type_back(self, answers, kind):
        cell = at(answers, "alpha")
        cell["cell_type"] = kind
        del cell["outputs"], cell["execution_count"]
        result = mend(answers)
        assert run(result)["alpha"](1) == 2
        assert result.repairs == [f"restored the type of a cell: alpha ({kind} to code)"]

    def test_cells_in_another_order_return_to_theirs(self, answers):
        answers["cells"].reverse()
        result = mend(answers)
        for name in NAMES:
            assert source(result, name) == CODE[name]


class TestMetadata:
    def test_stripped_metadata_is_found_by_what_the_cells_define(self, answers):
        for number, cell in enumerate(answers["cells"]):
            cell["metadata"] = {}
            cell["id"] = f"cell-{number}"
        result = mend(answers)
        for name in NAMES:
            assert source(result, name) == CODE[name]
        assert source(result, "why") == "Because token-why."
        assert own(result) == []

    def test_stripped_cells_without_ids_as_older_notebooks_have_them(self, answers):
        for cell in answers["cells"]:
            cell["metadata"] = {}
            del cell["id"]
        answers["nbformat_minor"] = 4
        result = mend(answers)
        assert run(result)["Gamma"]().forward(1) == 4
        assert source(result, "why") == "Because token-why."

    def test_work_in_a_new_cell_above_an_untouched_stub_counts(self, answers):
        at(answers, "alpha")["source"] = STUBS["alpha"].splitlines(keepends=True)
        answers["cells"].insert(where(answers, "alpha"), code(CODE["alpha"], "mine"))
        result = mend(answers)
        assert run(result)["alpha"](1) == 2

    @pytest.mark.parametrize("version", [0, 1, 2, 7, "x", None, True])
    def test_other_schema_versions_do_not_stop_anything(self, answers, version):
        for cell in answers["cells"]:
            if "nbgrader" in cell["metadata"]:
                cell["metadata"]["nbgrader"]["schema_version"] = version
        result = mend(answers)
        assert source(result, "alpha") == CODE["alpha"]
        assert any("metadata up to date" in line for line in result.repairs)

    def test_cells_of_another_unit_lose_their_metadata_and_stay(self, answers):
        grade = meta("check_lstm", grade=True, locked=True, points=50)
        answers["cells"].append(code("lstm = 1", "lstm", meta("lstm", solution=True)))
        answers["cells"].append(code('check("lstm")', "check_lstm", grade))
        result = mend(answers)
        assert ("code", "lstm = 1") in own(result)
        assert any("2 cells from another unit" in line for line in result.repairs)

    def test_ids_that_are_missing_or_used_twice_are_replaced(self, answers):
        answers["cells"] += [code("a = 1", "alpha"), code("b = 1", "x y"), code("c = 1", "z")]
        del answers["cells"][-1]["id"]
        result = mend(answers)
        assert len({cell.id for cell in result.nb.cells}) == len(result.nb.cells)
        assert any("new id" in line for line in result.repairs)

    def test_the_kernel_is_pythons(self, answers):
        answers["metadata"]["kernelspec"] = {"name": "ir", "language": "R", "display_name": "R"}
        result = mend(answers)
        assert result.nb.metadata.kernelspec.name == "python3"
        assert any("kernel ir" in line for line in result.repairs)

    def test_an_environment_of_ones_own_is_no_damage(self, answers):
        answers["metadata"]["kernelspec"] = {"name": "venv", "display_name": "my Python"}
        assert mend(answers).status == "ok"

    def test_huge_outputs_are_dropped_and_said(self, answers):
        picture = {"image/png": "A" * 3 * 2**20}
        at(answers, "alpha")["outputs"] = [
            {"output_type": "display_data", "data": picture, "metadata": {}}
        ]
        assert mend(answers).repairs == ["dropped 3 MB of outputs"]

    @pytest.mark.parametrize("bound", ["MAX_BYTES", "MAX_VALUES"])
    def test_a_notebook_too_large_by_its_outputs_alone_is_graded(self, answers, monkeypatch, bound):
        monkeypatch.setattr(repair, bound, 2 * len(json.dumps(answers)))
        without = mend(answers)
        outputs = [
            {"output_type": "stream", "name": "stdout", "text": ['a "quoted" ] [ line\n'] * 2**17},
            {"output_type": "display_data", "data": {"x": [[1, 2], []] * 2**17}, "metadata": {}},
        ]
        for name in ("alpha", "beta"):
            at(answers, name)["outputs"] = outputs
        result = mend(answers)
        assert result.nb == without.nb
        assert result.repairs == [*without.repairs, "dropped 10 MB of outputs"]

    def test_what_is_too_large_without_its_outputs_is_told(self, answers, monkeypatch):
        monkeypatch.setattr(repair, "MAX_BYTES", 2**20)
        at(answers, "alpha")["source"] = "x" * 2**21
        at(answers, "beta")["outputs"] = [{"output_type": "stream", "text": "x" * 2**21}]
        result = mend(answers)
        assert result.status == "unreadable"
        assert "2 MB, more than 1 MB, besides its outputs" in result.reason

    def test_outputs_that_are_damaged_take_no_cell_with_them(self, answers, monkeypatch):
        at(answers, "alpha")["outputs"] = [{"output_type": "stream", "text": "abc" * 2**10}]
        text = json.dumps(answers).replace("abcabc", 'abc"abc', 1)
        monkeypatch.setattr(repair, "MAX_BYTES", len(text) - 1)
        assert repair._without_outputs(text.encode()).count(b"cell_type") == text.count("cell_type")

    def test_a_picture_in_an_answer_stays_and_a_script_does_not(self, answers):
        at(answers, "why")["attachments"] = {
            "a.png": {"image/png": "QUJD"},
            "b.svg": {"image/svg+xml": "<svg onload='x()'>"},
        }
        result = mend(answers)
        cell = next(cell for cell in result.nb.cells if cell.id == "why")
        assert list(cell.attachments) == ["a.png"]


class TestFiles:
    def test_notebook_format_3(self, answers):
        cells = []
        for cell in answers["cells"]:
            cell = {key: value for key, value in cell.items() if key != "id"}
            if cell["cell_type"] == "code":
                cell["input"] = cell.pop("source")
                cell["language"], cell["prompt_number"] = "python", 1
            cells.append(cell)
        cells.insert(0, {"cell_type": "heading", "level": 2, "metadata": {}, "source": "Mine"})
        old = {"nbformat": 3, "nbformat_minor": 0, "worksheets": [{"cells": cells}]}
        result = mend({**old, "metadata": {"name": ""}})
        assert run(result)["beta"](1) == 4
        assert ("markdown", "## Mine") in own(result)
        assert any("format 3" in line for line in result.repairs)

    @pytest.mark.parametrize(
        "encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp1252"]
    )
    def test_other_encodings(self, answers, encoding):
        at(answers, "why")["source"] = ["Weil es schön ist."]
        result = mend(json.dumps(answers, ensure_ascii=False).encode(encoding))
        assert source(result, "why") == "Weil es schön ist."
        assert result.status == "repaired"

    def test_garbage_after_and_before_the_notebook(self, answers):
        text = json.dumps(answers)
        for damaged in (text + "\n}}garbage", "\n# note\n" + text, text + "\x00\x00"):
            result = mend(damaged.encode())
            assert source(result, "alpha") == CODE["alpha"]

    def test_a_truncated_file_keeps_its_complete_cells(self, answers):
        text = json.dumps(answers, indent=1)
        cut = text.index("token-beta") + 4
        result = mend(text[:cut].encode())
        assert source(result, "alpha") == CODE["alpha"]
        assert source(result, "beta") == STUBS["beta"]
        assert any("return alpha(x) * 2  # toke" in t for kind, t in own(result) if kind == "raw")
        assert any("recovered" in line for line in result.repairs)

    def test_one_damaged_cell_costs_at_most_itself(self, answers):
        text = json.dumps(answers, indent=1)
        broken = text.replace('"id": "beta",', '"id": "beta"', 1)
        result = mend(broken.encode())
        for name in NAMES:
            assert source(result, name) == CODE[name]

    def test_merge_conflicts_keep_both_sides(self, answers):
        text = json.dumps(answers, indent=1)
        line = next(row for row in text.splitlines() if "token-alpha" in row)
        other = line.replace("return y", "return y + 100").replace("token-alpha", "token-other")
        conflict = f"<<<<<<< HEAD\n{line}\n=======\n{other}\n>>>>>>> theirs"
        result = mend(text.replace(line, conflict).encode())
        everything = "\n".join(cell.source for cell in result.nb.cells)
        assert "token-alpha" in everything
        assert "token-other" in everything
        assert "<<<<" not in everything

    def test_lone_surrogates_and_nul_do_not_survive(self, answers):
        at(answers, "alpha")["source"] = ["x = '\ud800'\x00\n", CODE["alpha"]]
        assert run(mend(answers))["alpha"](1) == 2

    def test_files_of_another_kind_are_named(self):
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("attention-scores.ipynb", "{}")
        for data, kind in (
            (archive.getvalue(), "zip archive"),
            (gzip.compress(b"{}"), "gzip archive"),
            (b"import torch\n\ndef alpha(x):\n    return x\n", "Python script"),
            (b"<!DOCTYPE html><html></html>", "web page"),
            (b"%PDF-1.7", "PDF"),
            (b"", "empty"),
            (b"   \n", "empty"),
            (b'{"a": 1}', "other data"),
            (b"[1, 2]", "other data"),
            (b"hello", "not a notebook"),
            (b'{"cells": 3, "metadata"', "damaged"),
            (b"[" * 100_000, "damaged"),
        ):
            result = mend(data)
            assert result.status == "unreadable"
            assert kind in result.reason, data[:20]
            assert source(result, "alpha") == STUBS["alpha"]

    def test_a_file_that_cannot_be_opened_is_reported(self, tmp_path):
        result = repair.repair_file(tmp_path / "nothing.ipynb", "attention-scores", RELEASE)
        assert result.status == "unreadable"
        assert "cannot be opened" in result.reason
