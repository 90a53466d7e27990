"""Figures of one test are gone before the next."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

from toolkit import plots


@pytest.fixture(autouse=True)
def _fresh_figures() -> Iterator[None]:
    with mpl.rc_context():
        mpl.use("Agg")
        plots.use_style()
        yield
    plt.close("all")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each drawing of a chapter."""
    if "drawing" in metafunc.fixturenames:
        metafunc.parametrize("drawing", metafunc.cls.drawings)
