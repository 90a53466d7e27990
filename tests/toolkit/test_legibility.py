"""What a page asks of its reader, counted in its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.legibility import BUDGETS, is_machinery, over_budget, source_figures, words

HEAD = """\
---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

"""
PAGE = """\
```{code-cell} ipython3
:tags: [remove-cell]
from myst_nb import glue as keep

def helper():
    return 1
assert helper() == 1
```

(att-one)=
# Three words here

Then four words more.

```{code-cell} ipython3
x = 1
x + 1
```

```{code-cell} ipython3
---
tags: [hide-input]
---
print("a")
print("b")
print("c")
print("d")
```

```{code-cell} ipython3
keep("x", x)
```
"""


def test_prose_is_counted_and_code_formulas_and_tables_are_not() -> None:
    text = (
        "(label)=\n## One two\n\nThree $a + b$ four, **five** {ref}`six`.\n\n$$\nx + y\n$$\n\n"
        "| a | b |\n|---|---|\n| 1 | 2 |\n\n```{note}\nno prose\n```\n\n:::{tip}\nseven\n:::\n"
        "\\begin{align}\nz\n\\end{align}\n\n% nothing\n- eight — nine\n"
    )
    assert words(text) == 9


def test_figures_of_a_page_leave_hidden_cells_out(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(HEAD + PAGE)
    assert source_figures(page) == {
        "words": 7,
        "visible cells": 2,
        "lines of the longest visible cell": 2,
        "visible cells that check, glue, define or plot": 1,  # with glue by another name
    }


@pytest.mark.parametrize(
    "code",
    [
        "assert x == 1",
        "def double(x):\n    return 2 * x",
        "class A:\n    pass",
        "torch.testing.assert_close(x, y)",
        "glue('x', x, display=False)",
        "plt.plot(x)",
        "axes[0].imshow(x)",
        "%matplotlib inline\nfor one in x:\n    ax.plot(one)",
    ],
)
def test_cells_that_check_glue_define_or_plot_are_found(code: str) -> None:
    assert is_machinery(code)


@pytest.mark.parametrize(
    "code",
    [
        "scores = q @ k.T / math.sqrt(4)\nscores.softmax(-1)",
        "import matplotlib.pyplot as plt",
        "plots.heatmap(weights, tokens)",
        "%time model(x)\n!ls",
        "print(f'{axes = }', 'assert')",
    ],
)
def test_cells_that_a_reader_would_type_are_not_machinery(code: str) -> None:
    assert not is_machinery(code)


def test_what_is_over_budget_says_by_how_much() -> None:
    within = {name: most for name, (_, most) in BUDGETS.items()}
    assert over_budget(within) == []
    assert over_budget({**within, "screens": 12.34, "words": 599}) == [
        "12.3 screens, at most 12",
        "599 words, at least 600",
    ]
