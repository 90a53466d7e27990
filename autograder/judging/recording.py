"""What the reference and the misconceptions answer, recorded for notebooks without either.

A student's bundle holds no reference. For the visible tests at a fixed seed the inputs are known,
so the answers can be recorded once: the reference's, to compare with, and each misconception's,
to name a mistake. The file is in the wire format: data, never code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autograder.judging import diagnosis
from autograder.judging.proxy import Exchange
from autograder.sandbox.executor import Outcome, Request

if TYPE_CHECKING:
    from autograder.judging.runner import Graders

SEED = 0
FILE = "recorded.bin"
LIMIT = 64 * 2**20


class Recording:
    """Recorded answers of one unit's visible tests.

    `data` is {"unit", "tests": {test: {"exercise", "reference": [outcome], "asked":
    [fingerprint], "answers": {name: [outcome]}}}, "says": {name: [sentence, section, exercise]}};
    the answers of the reference stand under the name "".
    """

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.says: dict[str, tuple[str, str]] = {
            name: (says, section) for name, (says, section, _) in data["says"].items()
        }

    def reference(self, test: str) -> Callable[[Request], Outcome]:
        """Answers the reference's requests of `test` in the order in which they were recorded."""
        outcomes = iter(self.data["tests"][test]["reference"])

        def execute(request: Request) -> Outcome:
            return next(outcomes)

        return execute

    def requests(self, test: str) -> list[Request]:
        """What `asked_again` asks in `test`."""
        return self.data["tests"][test]["requests"]

    def candidates(self, exercise: str) -> list[str]:
        """The misconceptions of an exercise, in their file's order."""
        return [name for name, entry in self.data["says"].items() if entry[2] == exercise]

    def replay(self, name: str) -> diagnosis.Replay:
        """The recorded answers of one misconception ("" is the reference) to a test's requests."""

        def answers(test: str, transcript: list[Exchange]) -> list[Outcome | None]:
            recorded = self.data["tests"].get(test, {})
            known = recorded.get("answers", {}).get(name, [])
            asked = recorded.get("asked", [])
            found: list[Outcome | None] = []
            same = True
            for position, exchange in enumerate(transcript):
                same = (
                    same
                    and position < len(known)
                    and asked[position] == diagnosis.fingerprint(exchange.request)
                )
                found.append(known[position] if same else None)
            return found

        return answers


def record(unit: str, graders: Graders) -> Recording:
    """Ask the reference and every misconception what the visible tests ask a student's code.

    Args:
        graders: the unit's graders without the hidden ones.

    Raises:
        ValueError: the reference fails one of its own tests.
    """
    from autograder.judging.memory import asking
    from autograder.units.variants import misconceptions, reference_namespace

    tests: dict[str, Any] = {}
    for item, student, reference in graders.transcripts(reference_namespace(unit), SEED):
        answers = {"": [exchange.outcome for exchange in student]}
        for mistake in misconceptions(unit):
            if mistake.exercise == item.exercise:
                execute = asking(unit, mistake.name)
                answers[mistake.name] = [execute(exchange.request) for exchange in student]
        tests[item.name] = {
            "exercise": item.exercise,
            "reference": [exchange.outcome for exchange in reference],
            "asked": [diagnosis.fingerprint(exchange.request) for exchange in student],
            "answers": answers,
            "requests": graders.requests_again(item.exercise, SEED) if item.item is None else [],
        }
    says = {
        mistake.name: [mistake.says, mistake.section, mistake.exercise]
        for mistake in misconceptions(unit)
    }
    return Recording({"unit": unit, "tests": tests, "says": says})
