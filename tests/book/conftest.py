"""The built book, once per run, and the pages it consists of."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

from toolkit.book import OUT, BookError, build_book


@pytest.fixture(scope="session")
def site(testrun_uid: str) -> Path:
    """The folder of the built book; what is already built and executed is used again."""
    OUT.mkdir(parents=True, exist_ok=True)
    built = OUT / "test.run"
    with FileLock(OUT / "test.lock"):
        # Several test processes share one book; the first builds it, so that no other rewrites
        # pages while they are being looked at.
        if built.exists() and testrun_uid == built.read_text(encoding="utf-8"):
            return OUT / "_build" / "html"
        try:
            folder = build_book(OUT, tell=lambda line: None).parent
        except BookError as error:
            pytest.fail(str(error), pytrace=False)
        built.write_text(testrun_uid, encoding="utf-8")
        return folder
