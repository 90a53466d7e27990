"""What tests of several packages share: a browser, an order, how long is searched for examples.

`HYPOTHESIS_PROFILE=long` searches for many minutes; name the tests that are to do so.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
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


# Files that take longest. A file's tests stay in one process: begun last, they would run alone.
LONG = (
    "test_make_class.py",
    "test_exploits.py",
    "test_cluster.py",
    "test_grading_equality.py",
    "test_exploits_people.py",
    "test_kill.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest; each file's own order stays."""
    places = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONG)))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One Chromium per test process; Playwright allows no second one beside it."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no browser here: sudo apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        launched = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield launched
        launched.close()
