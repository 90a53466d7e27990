"""Notebooks are copied, written and read as nbformat does it."""

from __future__ import annotations

import copy

import nbformat
import pytest
from nbformat import NotebookNode, v4

from autograder import notebooks, paths
from autograder.notebooks import copied, handed_on, reads, writes


def everything():
    """A notebook with all that a notebook can hold."""
    code = v4.new_code_cell('print("ä \\u2028 \\x0b")\n\nx = 1\n')
    code.execution_count = 3
    code.metadata["trusted"] = True
    code.outputs = [
        v4.new_output("stream", name="stdout", text="one\ntwo\r\nthree \ud800 \x00\x1f"),
        v4.new_output(
            "display_data",
            {
                "text/html": "<b>\n</b>",
                "image/svg+xml": "<svg>\n",
                "image/png": "aGk=\n",
                "application/json": {"b": [1, 2.5, None, True, {}], "a": []},
                "application/vnd.x+json": {"points": 1e-7, "big": 10**20, "text": "a\nb"},
            },
            metadata={"nested": {"deep": [[], {}, [1, "x"]]}},
        ),
        v4.new_output("execute_result", {"text/plain": "3.0"}, execution_count=3),
        v4.new_output("error", ename="E", evalue="e", traceback=["a", "b\nc"]),
    ]
    text = v4.new_markdown_cell("")
    text["attachments"] = {"p.png": {"image/png": "aGk=", "text/plain": "a\nb"}}
    notebook = v4.new_notebook(cells=[code, text, v4.new_raw_cell("raw\n")])
    notebook.metadata.update({"signature": "x", "orig_nbformat": 3, "é": {"list": [1, [2]]}})
    return notebook


def examples():
    yield "everything", everything()
    yield "empty", v4.new_notebook()
    for chapter in paths.chapters():
        path = paths.EXERCISES / chapter / f"{chapter}.ipynb"
        yield chapter, nbformat.read(path, as_version=4)


@pytest.mark.parametrize("notebook", [pytest.param(nb, id=name) for name, nb in examples()])
def test_a_notebook_is_written_as_nbformat_writes_it(notebook):
    before = copy.deepcopy(notebook)
    text = writes(notebook)
    assert notebook == before
    assert text == nbformat.writes(notebook, version=4)
    assert reads(text) == reads(text + "\n") == nbformat.reads(text, as_version=4)


def test_what_no_notebook_holds_is_left_to_nbformat():
    for odd in ((1, 2), b"bytes", {3: "number"}, float("nan"), float("inf")):
        notebook = v4.new_notebook(metadata={"odd": odd, "words": {"a": "b"}})
        assert writes(notebook) == nbformat.writes(notebook, version=4)


def test_only_a_text_that_was_just_written_is_taken_for_valid(monkeypatch):
    asked = []
    validate = nbformat.validate
    monkeypatch.setattr(nbformat, "validate", lambda *a, **k: asked.append(1) or validate(*a, **k))
    notebook = everything()
    text = writes(notebook)
    asked.clear()
    assert reads(text).cells
    assert not asked
    assert reads(text.replace("x = 1", "x = 2")).cells
    assert asked
    for number in range(notebooks.KEPT + 1):
        writes(v4.new_notebook(metadata={"number": number}))
    asked.clear()
    reads(text)
    assert asked


def test_an_invalid_notebook_is_written_as_it_is_and_never_taken_for_valid(caplog):
    notebook = everything()
    notebook.cells[0].outputs = "none"
    with pytest.raises(Exception):  # noqa: B017, PT011 - nbformat's own, as ever
        nbformat.writes(notebook, version=4)
    notebook = v4.new_notebook()
    notebook.metadata["kernelspec"] = "none"
    text = writes(notebook)
    assert text == nbformat.writes(notebook, version=4)
    assert notebooks._digest(text) not in notebooks._valid


def test_a_copy_shares_nothing_that_can_change():
    notebook = everything()
    twin = copied(notebook)
    assert twin == notebook
    assert type(twin.cells[0].metadata) is NotebookNode

    def parts(value):
        if isinstance(value, (dict, list)):
            yield id(value)
            for item in value.values() if isinstance(value, dict) else value:
                yield from parts(item)

    assert not set(parts(twin)) & set(parts(notebook))


def test_a_notebook_is_handed_on_once_and_others_find_an_empty_one():
    notebook = reads(writes(everything()).replace("\\ud800", "x"))
    before = copied(notebook)
    text = handed_on(notebook)
    shown = nbformat.reads(text, as_version=4)
    nbformat.validate(shown)
    assert shown.cells == []
    assert reads(text + "\n") is notebook
    assert notebook == before
    assert reads(text).cells == []  # The second time it is what it says.
    assert handed_on(notebook) != text
    assert reads(text).cells == []  # Nor is another one's text enough.


def test_who_reads_what_was_given_away_is_given_the_notebook_once():
    notebook = reads(writes(everything()).replace("\\ud800", "x"))
    text = writes(notebook, last=True)
    read = nbformat.reads(text, as_version=4)
    assert reads(text + "\n") is notebook
    assert notebook == read
    again = reads(text)
    assert again == read
    assert again is not notebook
    writes(notebook, last=True)
    other = writes(v4.new_notebook())
    assert reads(other).cells == []
    writes(again, last=True)
    again.cells[0].metadata["trusted"] = True  # What no text keeps, nobody is given.
    assert "trusted" not in reads(text).cells[0].metadata


def test_a_text_that_was_written_elsewhere_can_be_trusted(monkeypatch):
    text = nbformat.writes(everything(), version=4)
    plain = nbformat.reads(text, as_version=4)
    notebooks.trust(text)
    monkeypatch.setattr(nbformat, "reads", None)
    found = reads(text + "\n")
    assert found == plain
    assert all(type(cell.metadata) is NotebookNode for cell in found.cells)


def test_what_is_known_to_be_valid_is_written_alike_without_being_validated(monkeypatch):
    notebook = everything()
    text = writes(notebook)
    monkeypatch.setattr(nbformat, "validate", None)
    assert writes(notebook, checked=True) == text
