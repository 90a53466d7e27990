"""What a unit is given of earlier units is the course's own copy, whatever was handed in.

Students' own `given.py` reports itself when it is imported, and what it holds is wrong: whoever is
judged with it is seen to be, and earns less.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nbformat
import pytest

from autograder.common import paths
from autograder.grading import repair
from autograder.grading.collect import collect
from autograder.grading.worker_pool import grade_all
from autograder.judging.results import SubmissionResult
from autograder.units.assignment import load
from tests.autograder.helpers import put

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

UNIT = "attention-self_attention"
MINE = "MINE-WAS-IMPORTED"
OWN = f"""
print({MINE!r})

def masked_softmax(scores, mask=None, dim=-1):
    return scores * 0

def attention_dropout(weights, p, training):
    return weights * 0
"""
FILES = "\n".join(f"open({place!r}, 'w').write({OWN!r})" for place in ("given.py", "/tmp/given.py"))
PUTS = f"""
import sys, types

sys.modules["given"] = types.ModuleType("given")
exec({OWN!r}, vars(sys.modules["given"]))
"""
CHANGES = f"import given\nexec({OWN.replace(MINE, 'changed')!r}, vars(given))"
FINDS = f"import sys\n{FILES}\nsys.path[:0] = ['.', '/tmp']\nsys.modules.pop('given', None)"
IMPORT = "from given import attention_dropout, masked_softmax"


def in_front(source: str) -> Callable[[Any], None]:
    """A cell of the student's own before all others."""
    return lambda nb: nb.cells.insert(0, nbformat.v4.new_code_cell(source))


def without_setup(nb: Any) -> None:
    nb.cells = [cell for cell in nb.cells if grade_id(cell) != "setup"]


def without_the_import(nb: Any) -> None:
    (setup,) = (cell for cell in nb.cells if grade_id(cell) == "setup")
    assert IMPORT in setup.source
    setup.source = setup.source.replace(IMPORT, "")


def with_own_import(nb: Any) -> None:
    without_the_import(nb)
    (setup,) = (cell for cell in nb.cells if grade_id(cell) == "setup")
    setup.source += "from mine import masked_softmax"


def grade_id(cell: Any) -> str:
    return cell.metadata.get("nbgrader", {}).get("grade_id", "")


# What is done to a notebook with right answers that changes nothing of its points.
WAYS: dict[str, Callable[[Any], None]] = {
    "a file beside the notebook": lambda nb: None,
    "writes files": in_front(FILES),
    "writes files and finds them": in_front(FINDS),
    "puts a module": in_front(PUTS),
    "changes the module": in_front(CHANGES),
    "no setup cell": without_setup,
    "no import": without_the_import,
    "an import of its own": with_own_import,
}
REPAIRS = {
    "no setup cell": "restored the deleted cell setup",
    "no import": "restored the edited cell setup; what was written there runs as a cell of its own",
    "an import of its own": "restored the edited cell setup; what was written there runs as a cell "
    "of its own",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory, solved) -> dict[str, SubmissionResult]:
    """A class that hands in a `given.py` in every folder where one might be looked for."""
    folder = tmp_path_factory.mktemp("submitted")
    for student, change in WAYS.items():
        nb = solved(UNIT)
        change(nb)
        put(folder / student / UNIT / f"{UNIT}.ipynb", nb)
        for place in (folder / student / UNIT, folder / student, folder):
            put(place / paths.GIVEN, OWN)
    blank = repair.blank(repair.released(UNIT))
    blank.cells.append(nbformat.v4.new_code_cell("from given import scaled_dot_product_attention"))
    put(folder / "takes its answer from its file" / UNIT / f"{UNIT}.ipynb", blank)
    answer = solved(UNIT)
    (cell,) = (one for one in answer.cells if grade_id(one) == "scaled_dot_product_attention")
    text = "\n".join(["import math", "import torch", "from torch import Tensor", cell.source])
    put(folder / "takes its answer from its file" / UNIT / paths.GIVEN, text)
    options = {"unit": UNIT, "seed": 7}
    pairs = grade_all(collect(folder, UNIT), options, repair.released(UNIT), 2)
    return {submission.student: graded.result for submission, graded in pairs}


@pytest.mark.parametrize("student", WAYS)
def test_it_is_judged_with_the_courses_copy(results, student):
    result = results[student]
    assert result.score == result.max_score == load(UNIT).points
    printed = "\n".join(result.printed.values())
    # A module that a cell makes and fills says so there; it is not imported by any other.
    assert printed.count(MINE) == (student == "puts a module")
    assert result.repairs == ([REPAIRS[student]] if student in REPAIRS else [])
    assert result.status == ("repaired" if student in REPAIRS else "graded")


def test_what_stands_in_a_file_of_ones_own_is_no_answer(results):
    result = results["takes its answer from its file"]
    assert result.score == 0
    assert "cannot import name 'scaled_dot_product_attention'" in "".join(result.printed.values())


def test_nobody_else_is_in_the_class(results):
    assert len(results) == len(WAYS) + 1
