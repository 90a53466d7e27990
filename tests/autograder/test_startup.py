"""A grading process begins without what it does not need."""

from __future__ import annotations

import gc
import subprocess
import sys

from autograder import paths
from autograder.startup import collecting_seldom


def test_grading_begins_without_a_grammar_of_addresses_and_without_pytorch():
    script = (
        "import sys; from autograder import classroom; import nbformat.v4 as v4, nbformat;"
        "assert 'rfc3987_syntax' not in sys.modules, 'imported';"
        "assert 'torch' not in sys.modules, 'PyTorch';"
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
