"""The build driver on small books of its own: what fails a build, and what is executed again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from toolkit.book import (
    SOURCE,
    BookError,
    build_book,
    code_key,
    is_executed,
    missing_anchors,
    page_modules,
)

NOTEBOOK = """\
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
EXTENSIONS = SOURCE / "_ext"
CONFIG = """\
title: A small book
only_build_toc_files: true
execute: {execute_notebooks: cache, raise_on_error: true, timeout: 30}
"""


class SmallBook:
    """A book of a few lines with modules of its own, built as the real one is."""

    def __init__(self, root: Path) -> None:
        self.root, self.source, self.lines = root, root / "book", []
        self.source.mkdir()
        (root / "solutions").mkdir()
        (root / "solutions" / "__init__.py").write_text("")
        (root / "_config.yml").write_text(CONFIG)
        self.page("index", "# Home\n")

    def page(self, name: str, text: str, *, run: bool = False) -> None:
        page = self.source / f"{name}.md"
        page.parent.mkdir(exist_ok=True)
        page.write_text((NOTEBOOK if run else "") + text)
        pages = (p.relative_to(self.source).with_suffix("") for p in self.source.rglob("*.md"))
        others = sorted(page.as_posix() for page in pages if page != Path("index"))
        files = "".join(f"  - file: {other}\n" for other in others)
        toc = "format: jb-book\nroot: index\n" + (f"chapters:\n{files}" if files else "")
        (self.source / "_toc.yml").write_text(toc)

    def module(self, name: str, text: str) -> None:
        (self.root / "solutions" / f"{name}.py").write_text(text)

    def build(self) -> Path:
        self.lines.clear()
        return build_book(
            self.root / "out", source=self.source, config=self.root / "_config.yml",
            root=self.root, tell=self.lines.append,
        ).parent  # fmt: skip

    def executed(self) -> list[str]:
        return [line.split()[1] for line in self.lines if line.strip().startswith("executed ")]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallBook:
    # The course's own modules must not stand in for those of the small book.
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return SmallBook(tmp_path)


def cell(code: str) -> str:
    return f"# Page\n\n```{{code-cell}} python3\n{code}\n```\n"


@pytest.mark.book
def test_a_page_is_executed_again_only_when_its_own_modules_change(small: SmallBook) -> None:
    small.module("one", "VALUE = 'first'\n")
    small.module("deep", "from solutions.one import VALUE\n")
    small.module("two", "VALUE = 'other'\n")
    small.page("a", cell("from solutions import deep\nprint(deep.VALUE + ' value')"), run=True)
    small.page("b", cell("from solutions.two import VALUE\nprint(VALUE)"), run=True)
    site = small.build()
    assert sorted(small.executed()) == ["a", "b"]
    assert "first value" in (site / "a.html").read_text()

    small.build()
    assert small.executed() == []

    small.module("one", "VALUE = 'second'\n")
    small.build()
    assert small.executed() == ["a"]
    assert "second value" in (site / "a.html").read_text()


@pytest.mark.book
def test_a_page_that_was_moved_does_not_bring_what_its_old_modules_said(small: SmallBook) -> None:
    said = cell("from solutions.one import VALUE\nprint(VALUE + ' value')")
    small.module("one", "VALUE = 'first'\n")
    small.page("a", said, run=True)
    small.build()

    (small.source / "a.md").unlink()
    small.module("one", "VALUE = 'second'\n")
    small.page("part/index", said, run=True)
    site = small.build()
    assert small.executed() == ["part/index"]
    assert "second value" in (site / "part" / "index.html").read_text()

    small.build()
    assert small.executed() == []


@pytest.mark.book
@pytest.mark.browser
def test_an_old_address_leads_to_where_its_section_is_now(small: SmallBook, browser: Any) -> None:
    ours = f"{CONFIG}sphinx: {{local_extensions: {{course: {EXTENSIONS}}}}}\n"
    (small.root / "_config.yml").write_text(ours)
    small.page("part/index", "# Part\n\n(here)=\n## Here\n")
    small.page("part/second", "# Second\n\n(there)=\n## There\n")
    (small.source / "moved.csv").write_text("old,new\npart,part/index\n")
    site, tab = small.build(), browser.new_page()
    for anchor, page in {"": "index", "#here": "index", "#there": "second"}.items():
        tab.goto((site / "part.html").as_uri() + anchor)
        tab.wait_for_url((site / "part" / f"{page}.html").as_uri() + anchor)
        assert tab.locator(anchor or "h1").count()
    tab.close()

    (small.source / "moved.csv").write_text("old,new\npart,part/third\n")
    with pytest.raises(BookError, match=r"moved.csv: part leads to part/third, which is not there"):
        small.build()


@pytest.mark.book
@pytest.mark.parametrize("name", ["a", "part/index"])
def test_a_failing_cell_fails_the_build_with_page_line_and_error(
    small: SmallBook, name: str
) -> None:
    small.page(name, cell("x = 1\n") + "\n" + cell("assert x == 2, 'x must be two'"), run=True)
    with pytest.raises(BookError) as caught:
        small.build()
    message = str(caught.value)
    lines = (small.source / f"{name}.md").read_text().splitlines()
    line = lines.index("assert x == 2, 'x must be two'") + 1
    assert f"book/{name}.md, cell at line {line} " in message
    assert "AssertionError: x must be two" in message
    assert "\n" not in message
    assert "Traceback" not in message
    assert (small.root / "out" / "_build" / "error.txt").exists()


@pytest.mark.book
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core executes one page at a time")
def test_pages_are_executed_beside_each_other(small: SmallBook) -> None:
    # Each page waits for what the other one writes: one after the other would never end.
    meet = "import pathlib, time\npathlib.Path('{mine}').touch()\n"
    meet += "while not pathlib.Path('{other}').exists():\n    time.sleep(0.05)\nprint('we met')"
    for mine, other in (("a", "b"), ("b", "a")):
        places = {"mine": small.root / mine, "other": small.root / other}
        small.page(mine, cell(meet.format(**places)), run=True)
    site = small.build()
    assert sorted(small.executed()) == ["a", "b"]
    for name in "ab":
        assert "we met" in (site / f"{name}.html").read_text()


@pytest.mark.book
def test_of_several_pages_the_one_that_fails_is_named_and_the_others_are_kept(
    small: SmallBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.book.MOST_PAGES", 2)  # however many cores there are
    small.page("a", cell("print('fine')"), run=True)
    # The longest pages are begun first; the others wait for their turn, which never comes.
    failing = (
        "import os\nfrom pathlib import Path\nPath('kernel.tmp').write_text(str(os.getpid()))\n"
        "Path('kernel.tmp').rename('kernel')\nassert False, 'never'\n"
    )
    small.page("b", cell(failing + "# long\n" * 50), run=True)
    # This one ends when the failing page's kernel is gone, however long either takes.
    patient = (
        "import os, time\nfrom pathlib import Path\nwhile not Path('kernel').exists():\n"
        "    time.sleep(0.05)\ntry:\n    while True:\n"
        "        os.kill(int(Path('kernel').read_text()), 0)\n        time.sleep(0.05)\n"
        "except ProcessLookupError:\n    time.sleep(2)\n    print('kept')\n"
    )
    small.page("c", cell(patient + "# long\n" * 40), run=True)
    for name in "de":  # When b fails, one of them may take its place; the other stays behind.
        small.page(name, cell("print('waits')"), run=True)
    with pytest.raises(BookError, match=r"book/b.md.*AssertionError: never"):
        small.build()
    assert "c" in small.executed()
    assert len(small.executed()) < 3
    small.page("b", cell("print('mended')"), run=True)
    small.build()
    assert "c" not in small.executed()


@pytest.mark.book
def test_a_page_that_is_not_in_the_contents_is_not_executed(small: SmallBook) -> None:
    small.page("a", cell("print('fine')"), run=True)
    small.page("b", cell("print('half written')"), run=True)
    small.page("c", cell("print('fine too')"), run=True)
    toc = small.source / "_toc.yml"
    toc.write_text(toc.read_text().replace("  - file: b\n", ""))
    small.build()
    assert sorted(small.executed()) == ["a", "c"]


@pytest.mark.book
def test_a_broken_reference_fails_every_build_until_it_is_mended(small: SmallBook) -> None:
    small.page("a", "# Page\n\nSee {ref}`nowhere` and [this](#neither).\n")
    for _ in range(2):
        with pytest.raises(BookError, match="2 problems") as caught:
            small.build()
        assert "book/a.md:3" in str(caught.value)
        assert "nowhere" in str(caught.value)
        assert "neither" in str(caught.value)
    small.page("a", "# Page\n\nSee [home](index.md).\n")
    assert (small.build() / "a.html").exists()


@pytest.mark.book
def test_a_build_leaves_pages_and_environment_as_they_were(small: SmallBook) -> None:
    small.page("a", cell("print('hello')"), run=True)
    before, environment = sorted(small.source.rglob("*")), dict(os.environ)
    small.build()
    assert sorted(small.source.rglob("*")) == before
    assert dict(os.environ) == environment


@pytest.mark.book
def test_a_coverage_row_without_its_anchor_fails_the_build(small: SmallBook) -> None:
    small.page("a", "# Page\n\n(there)=\n## There\n")
    coverage = small.source / "coverage.csv"
    coverage.write_text("id,page,anchor\nX-001,a,there\n")
    small.build()
    coverage.write_text("id,page,anchor\nX-001,a,there\nX-002,a,missing\nX-003,b,there\n")
    with pytest.raises(BookError) as caught:
        small.build()
    assert "X-002 points at a#missing" in str(caught.value)
    assert "X-003 names the page b" in str(caught.value)
    assert "X-001" not in str(caught.value)


def test_missing_anchors_reads_page_names_with_and_without_extension(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<h2 id="here">Here</h2>')
    coverage = tmp_path / "coverage.csv"
    coverage.write_text("id,page,anchor\n1,a,here\n2,a.md,here\n3,a.html,here\n4,a,her\n")
    assert missing_anchors(coverage, tmp_path) == [
        "coverage.csv: 4 points at a#her, which is not there"
    ]


def test_page_modules_follows_every_form_of_import(tmp_path: Path) -> None:
    for name in ("solutions", "toolkit"):
        (tmp_path / name).mkdir()
    (tmp_path / "solutions" / "a.py").write_text("from toolkit import (\n    c,\n    d,\n)\n")
    for name in ("solutions/b", "toolkit/c", "toolkit/d", "toolkit/unused"):
        (tmp_path / f"{name}.py").write_text("import torch\n")
    page = tmp_path / "page.md"
    page.write_text("from solutions import a as x\nimport solutions.b\nText about toolkit.unused\n")
    found = [str(path.relative_to(tmp_path)) for path in page_modules(page, tmp_path)]
    assert found == ["solutions/a.py", "solutions/b.py", "toolkit/c.py", "toolkit/d.py"]


def test_a_page_depends_on_the_known_mistakes_of_a_unit_that_it_names(tmp_path: Path) -> None:
    mistakes = tmp_path / "autograder" / "misconceptions" / "gpt"
    mistakes.mkdir(parents=True)
    (mistakes / "model.py").write_text("import solutions.common\n")
    (mistakes / "training.py").write_text("")
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / "common.py").write_text("")
    page = tmp_path / "page.md"
    page.write_text('unit = "gpt-model"\nwords = "left-out"\n')
    found = [str(path.relative_to(tmp_path)) for path in page_modules(page, tmp_path)]
    assert found == ["autograder/misconceptions/gpt/model.py", "solutions/common.py"]


def test_code_key_changes_with_a_module_and_not_with_an_unrelated_one(tmp_path: Path) -> None:
    (tmp_path / "solutions").mkdir()
    used, unused = tmp_path / "solutions" / "a.py", tmp_path / "solutions" / "b.py"
    used.write_text("A = 1\n")
    unused.write_text("B = 1\n")
    page = tmp_path / "page.md"
    page.write_text("from solutions.a import A\n")
    key = code_key(page, tmp_path)
    unused.write_text("B = 2\n")
    assert code_key(page, tmp_path) == key
    used.write_text("A = 2\n")
    assert code_key(page, tmp_path) != key


def test_only_pages_with_notebook_front_matter_are_executed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(NOTEBOOK + "# Title\n")
    assert is_executed(page)
    page.write_text("# Title\n\n---\ntext_representation:\n---\n")
    assert not is_executed(page)


def test_a_folder_without_contents_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BookError, match=r"no _toc\.yml") as caught:
        build_book(tmp_path / "out", source=tmp_path, tell=lambda line: None)
    assert "\n" not in str(caught.value)
