"""What tests share: a browser, an order, which are fast, how long is searched for examples.

`HYPOTHESIS_PROFILE=long` searches for many minutes; name the tests that are to do so.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Where tests assert in a module that is no test file, a failure shows the values too.
pytest.register_assert_rewrite(
    "tests.autograder.exploits.checks",
    "tests.autograder.graders.positional_encoding.common",
    "tests.autograder.helpers",
    "tests.autograder.unit_graders",
    "tests.solutions.common",
)

# How long an example takes says more about the machine's load than about the code.
PATIENT = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
settings.register_profile("short", max_examples=100, derandomize=True, **PATIENT)
settings.register_profile("long", max_examples=10_000, print_blob=True, **PATIENT)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "short"))


# Files that take longest, with that first. A file's tests stay in one process: begun last, they
# would run alone. (pytest-xdist would begin with the files of most tests; see pyproject.toml.)
LONG = (
    "test_make_class.py",
    "test_exploits.py",
    "test_cluster.py",
    "test_browser.py",
    "test_exploits_people.py",
    "test_grading_equality.py",
    "test_kill.py",
    "test_full_disk.py",
    "test_stock.py",
    "test_recorder.py",
)


# What `pytest -m fast` runs: something of every package, in at most a minute of two idle cores.
# Folders with all that is in them, and files; what is marked slow is left out.
HERE = Path(__file__).parent
FAST = [
    HERE / name
    for name in (
        "autograder/assignments/test_given.py",
        "autograder/assignments/test_picture.py",
        "autograder/benchmarks/test_lines.py",
        "autograder/benchmarks/test_timing.py",
        "autograder/checking/test_check.py",
        "autograder/commands/test_startup.py",
        "autograder/common",
        "autograder/demo/test_styles.py",
        "autograder/gradebook/test_course.py",
        "autograder/graders/seq2seq/test_text.py",
        "autograder/grading/test_collect.py",
        "autograder/grading/test_result_cache.py",
        "autograder/grading/test_settings_file.py",
        "autograder/judging/test_diagnosis.py",
        "autograder/judging/test_expectations.py",
        "autograder/judging/test_known_answers.py",
        "autograder/judging/test_runner.py",
        "autograder/lms/test_import.py",
        "autograder/reports/test_feedback.py",
        "autograder/sandbox/test_executor.py",
        "autograder/sandbox/test_wire.py",
        "autograder/units",
        "autograder/verification/test_mutants.py",
        "book/test_prose.py",
        "solutions/test_attention.py",
        "solutions/test_every_unit.py",
        "test_contributing.py",
        "toolkit/test_device.py",
        "toolkit/test_models.py",
        "toolkit/test_plots.py",
        "toolkit/corpora/test_tasks.py",
        "toolkit/corpora/test_text.py",
    )
]


def _fast(path: Path) -> bool:
    return any(path.is_relative_to(place) for place in FAST)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m fast`, leave the other files unread: that would take longer than the tests do."""
    asked = config.option.markexpr == "fast" and collection_path.name.startswith("test_")
    return True if asked and not _fast(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is fast, and begin with the files that take longest; their own order stays."""
    for item in items:
        if _fast(item.path) and item.get_closest_marker("slow") is None:
            item.add_marker("fast")
    places = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONG)))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One Chromium per test process; Playwright allows no second one beside it."""
    if shutil.which("chromium") is None:
        pytest.skip("no browser here: sudo apt-get install chromium")
    from toolkit.browser import chromium

    with chromium() as launched:
        yield launched
