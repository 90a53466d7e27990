"""Where the parts of the course live, relative to this package and never to the caller."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
ROOT = PACKAGE.parent
SOLUTIONS = ROOT / "solutions"
EXERCISES = ROOT / "exercises"
GRADERS = PACKAGE / "graders"
BUILD = ROOT / "build"

CHAPTERS = ("seq2seq", "attention", "positional_encoding", "transformer", "bert", "gpt")


def chapters() -> list[str]:
    """The chapters that exist in this checkout, in the order of the book."""
    return [name for name in CHAPTERS if (EXERCISES / name / "assignment.json").exists()]
