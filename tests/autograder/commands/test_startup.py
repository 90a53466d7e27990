"""A grading process begins without what it does not need."""

from __future__ import annotations

import subprocess
import sys

import pytest

from autograder.common import paths


@pytest.mark.parametrize(
    "first",
    [
        "from autograder.gradebook import classroom",
        "from autograder.gradebook import course",  # which the command imports before the others
        "import autograder.__main__, autograder.commands.grade",
    ],
)
def test_grading_begins_without_pytorch_and_nbgrader(first: str) -> None:
    script = (
        f"import sys; {first};"
        "assert 'torch' not in sys.modules, 'PyTorch';"
        "assert 'nbgrader' not in sys.modules, 'nbgrader, while nobody marks yet'"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=paths.ROOT)
