"""The built book, once per run, and the pages it consists of."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

from toolkit.book import OUT, BookError, build_book


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the built book; what is already built and executed is used again."""
    OUT.mkdir(parents=True, exist_ok=True)
    with FileLock(OUT / "test.lock"):  # several test processes share one book
        try:
            return build_book(OUT, tell=lambda line: None).parent
        except BookError as error:
            pytest.fail(str(error), pytrace=False)
