"""What grading yields, as plain data: one test, one exercise, one submission."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# With this begins a note that is for the instructor alone.
FOR_A_LOOK = "worth a look"
# So begins what a test says that is passed and doesn't count yet: never the reason for a loss.
PUT_OFF = "This counts once"


@dataclass
class TestResult:
    """One grader's verdict. `outcome` is "passed", "failed" or "todo" (nothing written yet).

    `kind` says how a failure shows, such as "values" (`Mistake.kind`), or "error" where good input
    ends in one; "" tells nothing. With `follows` it says nothing of what the test is for: an
    earlier test fails, perhaps for the same reason.
    """

    __test__ = False  # not a test class, whatever its name suggests to pytest

    name: str
    purpose: str
    hidden: bool
    weight: float
    outcome: str
    message: str = ""
    kind: str = ""
    follows: bool = False

    @property
    def seen_wrong(self) -> bool:
        """Whether it has failed by what it saw, and is not merely put off."""
        return self.outcome == "failed" and not self.message.startswith(PUT_OFF)


@dataclass
class ExerciseResult:
    """Points and the reason for them. `message` is the first line a student reads."""

    name: str
    points: float
    max_points: float
    misconception: str | None = None
    message: str = ""
    section: str = ""
    tests: list[TestResult] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return all(test.outcome == "passed" for test in self.tests)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain data."""
        # vars and not dataclasses.asdict, which takes twenty times as long.
        return {**vars(self), "tests": [dict(vars(test)) for test in self.tests]}


@dataclass
class SubmissionResult:
    """Everything known about one student's submission of one assignment.

    `status` is "graded", "repaired", "unreadable", "missing", "timed_out" or "crashed"; all but
    "unreadable" and "missing" carry the marks that were earned. What they were earned with: the
    graders (`marker.grader_hash`), the seed of their inputs, and the file handed in (the SHA-256 of
    its bytes, "" for none), which is the student's first, second, ... attempt.
    """

    student: str
    status: str = "graded"
    score: float = 0.0
    max_score: float = 0.0
    seconds: float = 0.0
    repairs: list[str] = field(default_factory=list)
    exercises: dict[str, ExerciseResult] = field(default_factory=dict)
    printed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    grader: str = ""
    seed: int | None = None
    submission: str = ""
    attempt: int = 1

    def to_json(self) -> dict[str, Any]:
        """The object that stands in `results.json`: tests shrink to name and outcome."""
        data = self.to_dict()
        for exercise in data["exercises"].values():
            exercise.pop("name")
            exercise["tests"] = {test["name"]: test["outcome"] for test in exercise["tests"]}
        data.pop("printed")
        return data

    def to_dict(self) -> dict[str, Any]:
        """Everything, for the result cache or another process; `from_dict` is the inverse."""
        return {
            **vars(self),
            "repairs": list(self.repairs),
            "exercises": {name: item.to_dict() for name, item in self.exercises.items()},
            "printed": dict(self.printed),
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SubmissionResult:
        exercises = {
            name: ExerciseResult(
                **{**value, "tests": [TestResult(**test) for test in value["tests"]]}
            )
            for name, value in data["exercises"].items()
        }
        return cls(**{**data, "exercises": exercises})
