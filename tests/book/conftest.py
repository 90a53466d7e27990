"""The built book, once per run, and the pages it consists of."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

from toolkit.book import OUT, BookError, build_book, site_of


@pytest.fixture(scope="session")
def site(testrun_uid: str) -> Path:
    """The folder of the built book; what is already built and executed is used again."""
    return built(testrun_uid, "reader")


@pytest.fixture(scope="session")
def course_site(testrun_uid: str, site: Path) -> Path:
    """The folder of the built course edition, which takes what the book has executed."""
    return built(testrun_uid, "course")


def built(run: str, edition: str) -> Path:
    """The folder of an edition, built once in a run of the tests."""
    OUT.mkdir(parents=True, exist_ok=True)
    note = OUT / f"test-{edition}.run"
    with FileLock(OUT / "test.lock"):
        # Several test processes share one book; the first builds it, so that no other rewrites
        # pages while they are being looked at.
        if not note.exists() or run != note.read_text(encoding="utf-8"):
            try:
                build_book(OUT, edition=edition, tell=lambda line: None)
            except BookError as error:
                pytest.fail(str(error), pytrace=False)
            note.write_text(run, encoding="utf-8")
    return site_of(OUT, edition)
