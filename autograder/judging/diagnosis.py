"""Which mistake is it? Replays what a student's code was asked on the known wrong modules."""

from __future__ import annotations

import functools
import hashlib
import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from autograder.judging.expectations import GRADIENT_SLACK, close_enough
from autograder.judging.proxy import Exchange
from autograder.sandbox.executor import Outcome, Request
from autograder.sandbox.nesting import walk

# Of mistakes between which the evidence does not decide so many are said.
MOST_SAID = 3
# Kinds of outcome that say nothing about which mistake was made.
MUTE = ("todo", "missing", "timeout", "crash", "memory", "protocol")


def same_outcome(left: Outcome, right: Outcome) -> bool:
    """Two implementations answered alike: same values, gradients, changed inputs, or same error."""
    if left["kind"] != right["kind"] or left["kind"] in MUTE:
        return False
    if left["kind"] == "error":
        # Two modules with wrong parameters are alike only if the same parameters are wrong.
        same_words = left["type"] != "StateMismatch" or left["message"] == right["message"]
        return left["type"] == right["type"] and same_words
    if sorted(left["mutated"]) != sorted(right["mutated"]):
        return False
    if not same_value(left["value"], right["value"]):
        return False
    if left["grads"].keys() != right["grads"].keys():
        return False
    return all(
        _same_gradient(gradient, right["grads"][label]) for label, gradient in left["grads"].items()
    )


def same_value(left: Any, right: Any) -> bool:
    """Equal up to rounding, through nested lists, tuples and dicts."""
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        return (
            isinstance(left, torch.Tensor)
            and isinstance(right, torch.Tensor)
            and left.dtype == right.dtype
            and close_enough(left, right)
        )
    if isinstance(left, (list, tuple)):
        return (
            isinstance(right, (list, tuple))
            and len(left) == len(right)
            and all(map(same_value, left, right))
        )
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and left.keys() == right.keys()
            and all(same_value(value, right[key]) for key, value in left.items())
        )
    if isinstance(left, float) and isinstance(right, float):
        return left == right or abs(left - right) <= 1e-6 * max(abs(left), abs(right))
    return type(left) is type(right) and left == right


def _same_gradient(left: torch.Tensor | None, right: torch.Tensor | None) -> bool:
    if left is None or right is None:
        present = right if left is None else left
        return present is None or not bool(present.abs().max() > 0)
    return close_enough(left, right, GRADIENT_SLACK)


def fingerprint(request: Request) -> str:
    """A short digest of a request, to see that a replay was asked the same thing."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(repr(_skeleton(request)).encode())
    for _, tensor in walk(request):
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _skeleton(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), tuple(value.shape), value.stride())
    if isinstance(value, dict):
        return sorted((key, _skeleton(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return [_skeleton(item) for item in value]
    return value


@dataclass
class Evidence:
    """What one test saw, and how it ended.

    Args:
        test: its name.
        failed: whether it found a mistake.
        hint: the misconception that the test itself names.
        answered: whether good input was answered.
        forbidden: forbidden functions that the code was seen to call.
        timed_out: whether the test ended because the code did not.
        recall: makes the transcript, which is needed only where a mistake is to be named.
    """

    test: str
    failed: bool
    hint: str | None
    answered: bool
    forbidden: tuple[str, ...]
    timed_out: bool
    recall: Callable[[], list[Exchange]] = field(repr=False)

    @functools.cached_property
    def transcript(self) -> list[Exchange]:
        """The exchanges with the student's code."""
        return self.recall()


# Answers a transcript's requests, in order, as another implementation would; None where unknown.
# Most candidates differ at the first answer, so the others are worked out only when asked for.
Replay = Callable[[str, list[Exchange]], Iterable[Outcome | None]]


@dataclass
class Candidate:
    """A wrong module that might explain the failures.

    Args:
        name: of the mistake.
        replay: its answers to a test's transcript.
    """

    name: str
    replay: Replay = field(repr=False)


def diagnose(
    evidence: list[Evidence],
    reference: Replay,
    candidates: Iterable[Candidate],
) -> tuple[str | None, bool]:
    """The candidate that explains most of the failed tests, and whether the first is among them.

    A candidate explains a failed test when it answers every request of the test as the student's
    code did, and at least one of those answers is not the reference's. It is ruled out when,
    in a test that was passed, the student's code answers as the reference and it doesn't. Much
    raises a RuntimeError: errors alone speak for a candidate only if they explain the first
    failure, too, word for word.
    """
    failed = [item for item in evidence if item.failed and item.transcript]
    if not failed:
        return None, False
    passed = [item for item in evidence if not item.failed]
    search = _CandidateSearch(failed, passed, reference)
    known = list(candidates)
    winner = search.winner(known)
    if winner is None and search.accepts_refused():
        search.refused_values_count = False
        winner = search.winner(known)
    if winner is not None:
        return winner
    hints = [item.hint for item in failed if item.hint and item.hint != "forbidden"]
    if not hints:
        return None, False
    name = max(hints, key=hints.count)
    first = failed[0].hint == name
    # A hint from a minority of the failures is a side effect of some other mistake.
    return (name, first) if first or 2 * hints.count(name) > len(failed) else (None, False)


class Fits(NamedTuple):
    """The mistakes that explain the same failed tests, and these tests."""

    names: list[str]
    tests: list[str]


def fitting(
    evidence: list[Evidence], reference: Replay, candidates: Iterable[Candidate], name: str
) -> Fits:
    """Which mistakes the evidence for `name`, which `diagnose` has found, speaks for.

    Much raises the same error: where some of them raise it in the student's own words, only these.
    """
    failed = [item for item in evidence if item.failed and item.transcript]
    search = _CandidateSearch(failed, [item for item in evidence if not item.failed], reference)
    known = list(candidates)
    winner = next(one for one in known if one.name == name)
    tests = search.explained_by(winner)
    if not tests and search.accepts_refused():
        search.refused_values_count = False
        tests = search.explained_by(winner)
    if not tests:  # A test itself has named it.
        return Fits([name], [seen.test for seen in failed if seen.hint == name])
    fit = [one for one in known if one is winner or search.explains_too(one, tests)]
    worded = [one for one in fit if search.same_words(one, tests)]
    return Fits([one.name for one in worded or fit][:MOST_SAID], [seen.test for seen in tests])


def explained(
    evidence: list[Evidence],
    reference: Replay,
    candidates: Iterable[Candidate],
) -> bool:
    """Whether one of the candidates explains every failed test and is not ruled out."""
    failed = [item for item in evidence if item.failed and item.transcript]
    passed = [item for item in evidence if not item.failed]
    search = _CandidateSearch(failed, passed, reference)
    return bool(failed) and any(map(search.explains_all, candidates))


class _CandidateSearch:
    """Finds the candidate with as few questions as it takes."""

    def __init__(
        self,
        failed: list[Evidence],
        passed: list[Evidence],
        reference: Replay,
    ) -> None:
        self._failed = failed
        self._passed = passed
        self._reference = reference
        self._right: dict[str, list[Outcome | None]] = {}
        # Whether it matters which value is given where the reference refuses: another student's
        # module has other parameters.
        self.refused_values_count = True

    def winner(self, candidates: list[Candidate]) -> tuple[str, bool] | None:
        """Who explains most of the failed tests, and whether the first; of equals the first.

        Most candidates are out after one test. Who does not explain the first failure is asked
        about the tests that were passed: who contradicts one of them need not be asked about the
        other failures. Whoever explains all of them is not compared with those that come later.
        """
        queue = [(-len(self._failed), place) for place in range(len(candidates))]
        found: dict[int, list[bool]] = {place: [] for _, place in queue}
        while queue:
            most, place = heapq.heappop(queue)
            if not most:
                return None
            candidate, explains = candidates[place], found[place]
            if len(explains) == len(self._failed):
                if self._is_established(candidate, explains) and not self._contradicts(candidate):
                    return candidate.name, explains[0]
                continue
            explains.append(self._explains(candidate, self._failed[len(explains)]))
            heapq.heappush(queue, (most + (not explains[-1]), place))
        return None

    def explained_by(self, candidate: Candidate) -> list[Evidence]:
        """The failed tests that a candidate explains."""
        return [seen for seen in self._failed if self._explains(candidate, seen)]

    def explains_too(self, candidate: Candidate, tests: list[Evidence]) -> bool:
        """Whether a candidate explains these failed tests and is not ruled out."""
        if not all(self._explains(candidate, seen) for seen in tests):
            return False
        explains = [seen in tests for seen in self._failed]
        return self._is_established(candidate, explains) and not self._contradicts(candidate)

    def same_words(self, candidate: Candidate, tests: list[Evidence]) -> bool:
        """Whether a candidate's errors in these tests have the messages of the student's."""
        return all(
            answer is None or exchange.outcome.get("message") == answer.get("message")
            for seen in tests
            for exchange, answer in zip(
                seen.transcript, candidate.replay(seen.test, seen.transcript), strict=True
            )
        )

    def accepts_refused(self) -> bool:
        """Whether the student's code gives a value where the reference refuses."""
        return any(
            exchange.outcome["kind"] == "value" and self._is_refused(seen, place)
            for seen in self._failed
            for place, exchange in enumerate(seen.transcript)
        )

    def explains_all(self, candidate: Candidate) -> bool:
        """Whether a candidate answers every test as the student's code did."""
        return all(
            self._explains(candidate, seen) for seen in self._failed
        ) and not self._contradicts(candidate)

    def _is_established(self, candidate: Candidate, explains: list[bool]) -> bool:
        """Whether a wrong value, or the first failure in the same words, speaks for a candidate."""
        for seen in itertools.compress(self._failed, explains):
            if any(outcome["kind"] == "value" for outcome in self._wrong(seen)):
                return True
        return explains[0] and self.same_words(candidate, self._failed[:1])

    def _explains(self, candidate: Candidate, seen: Evidence) -> bool:
        if any(exchange.outcome["kind"] in MUTE for exchange in seen.transcript):
            return False  # No candidate need be asked, which may take long.
        answers = candidate.replay(seen.test, seen.transcript)
        return self._agrees(seen, answers) and any(True for _ in self._wrong(seen))

    def _agrees(self, seen: Evidence, answers: Iterable[Outcome | None]) -> bool:
        return all(
            answer is not None
            and (
                same_outcome(exchange.outcome, answer)
                or self._both_accept(seen, place, exchange.outcome, answer)
            )
            for place, (exchange, answer) in enumerate(zip(seen.transcript, answers, strict=True))
        )

    def _both_accept(self, seen: Evidence, place: int, own: Outcome, other: Outcome) -> bool:
        """Whether both give a value where the reference refuses, if that is enough."""
        if self.refused_values_count or not (own["kind"] == other["kind"] == "value"):
            return False
        return self._is_refused(seen, place)

    def _is_refused(self, seen: Evidence, place: int) -> bool:
        """Whether the reference refuses what was asked there."""
        correct = self._correct(seen)[place]
        return correct is not None and correct["kind"] == "error"

    def _correct(self, seen: Evidence) -> list[Outcome | None]:
        """The reference's answers."""
        if seen.test not in self._right:
            self._right[seen.test] = list(self._reference(seen.test, seen.transcript))
        return self._right[seen.test]

    def _wrong(self, seen: Evidence) -> Iterator[Outcome]:
        """What the student's code has answered otherwise than the reference."""
        for exchange, correct in zip(seen.transcript, self._correct(seen), strict=True):
            if correct is not None and not same_outcome(exchange.outcome, correct):
                yield exchange.outcome

    def _contradicts(self, candidate: Candidate) -> bool:
        return any(
            self._differs(seen, candidate.replay(seen.test, seen.transcript))
            for seen in self._passed
        )

    def _differs(self, seen: Evidence, answers: Iterable[Outcome | None]) -> bool:
        """Whether these answers differ where the student's is the reference's.

        Elsewhere a test that was passed takes more than one answer, as where something is drawn.
        """
        return any(
            answer is not None
            and not same_outcome(exchange.outcome, answer)
            and self._is_right(seen, place)
            for place, (exchange, answer) in enumerate(zip(seen.transcript, answers, strict=False))
        )

    def _is_right(self, seen: Evidence, place: int) -> bool:
        """Whether the student's code answered there as the reference does, as far as is known."""
        correct = self._correct(seen)[place]
        return correct is None or same_outcome(seen.transcript[place].outcome, correct)
