"""The last cells of every unit's notebook run with right answers, and say what is missing."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import nbformat
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from matplotlib.text import Text
from nbformat import NotebookNode

from autograder.assignments import last_cells
from autograder.common import cells, paths
from autograder.common.errors import AssignmentError
from tests.autograder.helpers import put

# What a unit's cells print or draw when all is right.
SAYS = {
    "seq2seq-text": ["entries, the first: ['<pad>'", "tokens: "],
    "seq2seq-recurrent": ["→ 2021年3月5日和13天", "8:15 PM → "],
    "seq2seq-decoding": ["→ 2021年3月5日和13天", "  2021年3月5日和13天"],
    "attention-scores": ["→ 2021年3月5日和13天"],
    "attention-self_attention": ["before", "after, causal"],
    "attention-multi_head": ["head 0", "head 3"],
    "positional_encoding-tokens": ["bytes become", "unreadable = unre ##ad ##able"],
    "positional_encoding-sinusoidal": ["yours: 5. März 2021 und 13", "none: "],
    "positional_encoding-relative": ["positions 0 to 59 of BERT", "trained on 16 positions"],
    "transformer-parts": ["→ 5. März 2021 und 13", "modules of yours"],
    "transformer-model": ["→ 5. März 2021 und 13", "head 3"],
    "transformer-training": ["from random weights", "  → "],
    "transformer-decoding": ["→ 5. März 2021 und 13", "  5. März 2021 und 13", "s with yours"],
    "bert-model": ["mean vectors, centred"],
    "bert-pretraining": ["from random weights", "number"],
    "bert-fine_tuning": ["Which words name a parameter?"],
    "bert-relatives": ["both directions together", "["],
    "gpt-model": ["def __len__(self):", "  of "],
    "gpt-training": ["from random weights", "def close(self"],
    "gpt-generation": ["def is_empty(self):", "-" * 40],
    "gpt-transfer": ["was called", "a token  len(self._data)"],
}
TRAINED = ["bert-fine_tuning", "bert-pretraining", "bert-relatives", "gpt-training", "gpt-transfer"]
TRAINED.append("transformer-training")
# 20 steps of training in place of as many as 30 or 40 seconds allow, and fewer of others.
SHORT = {"seconds = 30": "seconds = 0", "seconds = 40": "seconds = 0", "steps = 800": "steps = 80",
         "steps = 400": "steps = 100"}  # fmt: skip
# What the first last cell says in a notebook in which nothing is written.
EMPTY = re.compile(r"Write (\w+) first: this cell uses it\.")


class Notebook:
    """A notebook run in IPython as Jupyter does, without what `check` says and prints."""

    def __init__(self, unit: str, notebook: NotebookNode) -> None:
        self.unit, self.notebook = unit, notebook
        self.shell = InteractiveShell.instance()
        self.shell.reset(new_session=False)

    def run(self) -> str:
        """Run all cells but the checks; what the last ones print, show and draw."""
        torch.manual_seed(0)
        random.seed(0)
        said: list[str] = []
        for cell in self.notebook.cells:
            if cell.cell_type != "code" or cell.source.startswith('check("'):
                continue
            last = cells.is_ungraded(cell.source)
            with capture_output(display=True) as output:
                done = self.shell.run_cell(self.short(cell.source) if last else cell.source)
            assert done.success, output.stdout
            if last:
                said += [output.stdout, output.stderr, *_drawn(), *map(_shown, output.outputs)]
                said.append(_shown(done.result))
        return "\n".join(said)

    def short(self, source: str) -> str:
        """A training that takes seconds in place of a minute."""
        for long, short in SHORT.items():
            source = source.replace(long, short)
        return source

    @property
    def names(self) -> dict[str, Any]:
        return dict(self.shell.user_ns)


def _shown(output: Any) -> str:
    return str(getattr(output, "data", output) or "")


def _drawn() -> list[str]:
    """The texts of the pictures that were drawn, which are closed."""
    texts = [
        text.get_text() for number in plt.get_fignums() for text in plt.figure(number).findobj(Text)
    ]
    plt.close("all")
    return texts


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, NotebookNode], Notebook]]:
    """Opens a unit's notebook beside its given parts, in an IPython of its own."""

    def open_(unit: str, notebook: NotebookNode) -> Notebook:
        monkeypatch.syspath_prepend(paths.EXERCISES / unit)
        monkeypatch.delitem(sys.modules, "given", raising=False)
        return Notebook(unit, notebook)

    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)
    yield open_
    sys.modules.pop("given", None)
    InteractiveShell.clear_instance()


@pytest.mark.parametrize("unit", paths.UNITS)
def test_the_last_cells_use_what_was_built(
    unit: str,
    solved: Callable[..., NotebookNode],
    opened: Callable[[str, NotebookNode], Notebook],
) -> None:
    notebook = opened(unit, solved(unit))
    said = notebook.run()
    assert "stopped" not in said
    assert "first: this cell" not in said
    for words in SAYS[unit]:
        assert words in said, said
    if unit in TRAINED:
        losses = notebook.names["losses"]
        half = len(losses) // 2
        assert sum(losses[-half:]) < 0.97 * sum(losses[:half]), losses
    if unit == "positional_encoding-relative":  # 1 of 8 is chance
        assert notebook.names["found"]["relative"][20:].mean() > 0.3


@pytest.mark.parametrize("unit", paths.UNITS)
def test_the_last_cells_name_what_is_not_written(
    unit: str, opened: Callable[[str, NotebookNode], Notebook]
) -> None:
    notebook = nbformat.read(paths.EXERCISES / unit / f"{unit}.ipynb", as_version=4)
    said = opened(unit, notebook).run()
    first = said.splitlines()[0]
    assert EMPTY.fullmatch(first), said
    assert "Traceback" not in said


def test_a_script_without_a_sentence_or_a_cell_is_refused(tmp_path: Path) -> None:
    script = paths.ungraded("gpt-model", tmp_path)
    assert last_cells.of("gpt-model", tmp_path) == []
    for text, said in (("# %%\n1", "has no docstring"), ('"""Does."""', "has no cell")):
        put(script, text)
        with pytest.raises(AssignmentError, match=f"gpt/model.py {said}"):
            last_cells.of("gpt-model", tmp_path)
