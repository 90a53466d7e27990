"""What goes wrong in a foreseen way: one sentence with the remedy, for a person to read."""

from __future__ import annotations


class AssignmentError(Exception):
    """Something is wrong with an assignment; the message is one sentence with the remedy."""


class ClassroomError(AssignmentError):
    """The class cannot be graded at all; the message is one sentence with the remedy."""
