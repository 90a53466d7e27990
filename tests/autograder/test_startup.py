"""A grading process begins without what it does not need."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from autograder import paths
from autograder.startup import collecting_seldom


@pytest.mark.parametrize(
    "first",
    [
        "from autograder import classroom",
        "from autograder import books",  # which the command imports before the others
        "import autograder.__main__, autograder.commands.grade",
    ],
)
def test_grading_begins_without_a_grammar_of_addresses_and_without_pytorch(first: str) -> None:
    script = (
        f"import sys; {first}; import nbformat.v4 as v4, nbformat;"
        "from autograder.startup import FORMATS;"
        "assert not set(FORMATS) & set(sys.modules), 'imported';"
        "assert 'torch' not in sys.modules, 'PyTorch';"
        "assert 'nbgrader' not in sys.modules, 'nbgrader, while nobody marks yet';"
        "nbformat.validate(v4.new_notebook());"
        "import importlib.util; assert 'rfc3987_syntax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=paths.ROOT)


def test_unreachable_objects_are_collected_as_before_in_the_end():
    before = gc.get_threshold()
    with collecting_seldom():
        assert gc.get_threshold()[0] > before[0]
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_a_process_that_ends_quickly_leaves_its_objects_alone_and_does_what_it_put_off(tmp_path):
    script = (
        "import gc, atexit; from autograder import startup\n"
        "class Cycle:\n"
        "    def __init__(self): self.me = self\n"
        "    def __del__(self): print('looked through')\n"
        "gc.disable(); one = Cycle(); del one\n"
        "atexit.register(print, 'put off')\n"
        "{}print('done')"
    )
    told = []
    for quickly in ("startup.end_quickly(); ", ""):
        command = [sys.executable, "-c", script.format(quickly)]
        done = subprocess.run(command, check=True, cwd=paths.ROOT, capture_output=True, text=True)
        told.append(done.stdout.split("\n")[:-1])
    assert told == [["done", "put off"], ["done", "put off", "looked through"]]
