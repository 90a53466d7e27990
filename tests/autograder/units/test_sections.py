"""Where the sections of the book stand."""

from __future__ import annotations

from pathlib import Path

from autograder.common import paths
from autograder.units.assignment import load
from autograder.units.sections import Section, named, plain, sections


def test_sections_of_all_pages_of_a_chapter_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "book" / "attention"
    folder.mkdir(parents=True)
    (folder / "index.md").write_text(
        "(attention)=\n# Attention\n\n(att-sum)=\n\n## A `sum` over $j$ \n\n"
        "(att-picture)=\n```{figure} x.png\n```\n"
    )
    (folder / "masks.md").write_text(
        "```{code-cell}\n# No title\n```\n# Masks\n\n(att-causal)=\n(att-mask)=\n### Looking back\n"
    )
    (tmp_path / "book" / "attention.md").write_text("(att-old)=\n# Not a page of the chapter\n")
    assert sections("attention", tmp_path) == {
        "attention": Section("Attention", "attention/index", "Attention"),
        "att-sum": Section("A sum over j", "attention/index", "Attention"),
        "att-causal": Section("Looking back", "attention/masks", "Masks"),
        "att-mask": Section("Looking back", "attention/masks", "Masks"),
    }
    assert sections("bert", tmp_path) == {}


def test_each_units_file_says_where_its_sections_stand() -> None:
    for unit in paths.units():
        explained, assignment = sections(paths.chapter_of(unit)), load(unit)
        assert set(assignment.sections) == set(assignment.pages) == set(explained), unit
        for anchor, section in explained.items():
            assert (assignment.sections[anchor], assignment.page(anchor)) == section[:2]
        for part in (*assignment.exercises, *assignment.questions):
            assert part.section in explained, f"{unit}: {part.name}"


def test_headings_are_written_without_marks_and_formulas() -> None:
    assert plain("Why divide by $\\sqrt{d_k}$?") == "Why divide by √d_k?"
    assert plain("The `Mask` of $i$") == "The Mask of i"
    for chapter in paths.CHAPTERS:
        for found in sections(chapter).values():
            assert not set("\\$`") & set(found.heading), found


def test_an_exercises_text_names_the_heading_and_the_page_that_explain_it() -> None:
    explained = {
        "att-sum": Section("A sum", "attention/index", "Attention"),
        "attention": Section("Attention", "attention/index", "Attention"),
    }
    text = "Write `att-sum`.\n\nBook: `att-sum` and `attention`; `new`.\n"
    said = "Book: *A sum* on the page *Attention* and the page *Attention*; `new`."
    assert named(text, explained) == f"Write `att-sum`.\n\n{said}\n"
