"""Where the parts of the course live, relative to this package and never to the caller.

A unit has one name in every room: `attention-scores` is `solutions/attention/scores.py`,
`autograder/graders/attention/test_scores.py`, `exercises/attention-scores/`, and so on.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
ROOT = PACKAGE.parent
SOLUTIONS = ROOT / "solutions"
EXERCISES = ROOT / "exercises"
BOOK = ROOT / "book"
CONVENTIONS = SOLUTIONS / "conventions.md"  # of all chapters
GRADERS = PACKAGE / "graders"
BUILD = ROOT / "build"
GIVEN = "given.py"  # beside a notebook: what earlier units of its chapter have built

# The units of each chapter, in the order of the book.
CHAPTERS = {
    "seq2seq": ("text", "recurrent", "decoding"),
    "attention": ("scores", "self_attention", "multi_head"),
    "positional_encoding": ("tokens", "sinusoidal", "relative"),
    "transformer": ("parts", "model", "training", "decoding"),
    "bert": ("model", "pretraining", "fine_tuning", "relatives"),
    "gpt": ("model", "training", "generation", "transfer"),
}
UNITS = tuple(f"{chapter}-{name}" for chapter, names in CHAPTERS.items() for name in names)


def units() -> list[str]:
    """The units that exist in this checkout, in the order of the book."""
    return [unit for unit in UNITS if (EXERCISES / unit / "assignment.json").exists()]


def chapter_of(unit: str) -> str:
    """`attention` for `attention-scores`."""
    return unit.partition("-")[0]


def first_page(chapter: str) -> str:
    """The page of the book with which the chapter begins, named as Sphinx names it."""
    return f"{chapter}/index"


def pages(chapter: str, root: Path = ROOT) -> list[Path]:
    """The sources of the chapter's pages in the book."""
    return sorted((root / "book" / chapter).glob("*.md"))


def inside(unit: str, suffix: str = "", prefix: str = "") -> str:
    """The unit's place in a room: `attention/scores`, the file's name between the two texts."""
    chapter, _, name = unit.partition("-")
    return f"{chapter}/{prefix}{name}{suffix}"


def solution(unit: str, root: Path = ROOT) -> Path:
    """The unit's reference module."""
    return root / "solutions" / inside(unit, ".py")


def graders(unit: str, root: Path = ROOT) -> Path:
    """The unit's graders."""
    return root / "autograder" / "graders" / inside(unit, ".py", "test_")


def ungraded(unit: str, root: Path = ROOT) -> Path:
    """The cells at the end of the unit's notebook, which are not graded."""
    return root / "autograder" / "ungraded" / inside(unit, ".py")


def given(unit: str, root: Path = ROOT) -> Path:
    """What the unit is given of earlier units; there is no such file if it needs nothing."""
    return root / "exercises" / unit / GIVEN


def module(package: str, unit: str) -> str:
    """The dotted name of the unit's module: `solutions.attention.scores`."""
    return f"{package}." + unit.replace("-", ".")
