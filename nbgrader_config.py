"""nbgrader's settings: grading in the sandbox, notebook repair and our feedback pages.

Used by every `nbgrader` command typed in this folder; the course lives in build/course, where
`python -m autograder grade` makes it.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from autograder.gradebook.plugin import configure  # noqa: E402

configure(get_config(), HERE / "build" / "course")  # noqa: F821
