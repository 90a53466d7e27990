"""Which mistake is it? Replays what a student's code was asked on the known wrong modules."""

from __future__ import annotations

import functools
import hashlib
import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from autograder.executor import Outcome, Request, walk
from autograder.expect import GRADIENT_SLACK, close_enough
from autograder.proxy import Exchange

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
    plain = {key: value for key, value in request.items() if key != "forbids"}
    digest.update(repr(_skeleton(plain)).encode())
    for _, tensor in walk(plain):
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
        path: the same for the same exchanges with the same seed; empty where that is not known.
    """

    test: str
    failed: bool
    hint: str | None
    answered: bool
    forbidden: tuple[str, ...]
    timed_out: bool
    recall: Callable[[], list[Exchange]] = field(repr=False)
    path: bytes = b""

    @functools.cached_property
    def transcript(self) -> list[Exchange]:
        """The exchanges with the student's code."""
        return self.recall()


class _Alike:
    """`same_outcome`, once for each pair: many wrong modules give one and the same answer."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[Outcome, Outcome, bool]] = {}

    def __call__(self, left: Outcome, right: Outcome) -> bool:
        key = id(left), id(right)
        if key not in self._known:  # The outcomes are kept too, so that their ids stay theirs.
            self._known[key] = left, right, same_outcome(left, right)
        return self._known[key][2]


# Answers a transcript's requests, in order, as another implementation would; None where unknown.
# Most candidates differ at the first answer, so the others are worked out only when asked for.
Replay = Callable[[str, list[Exchange]], Iterable[Outcome | None]]


@dataclass
class Candidate:
    """A wrong module that might explain the failures. `replay` takes a test and its transcript."""

    name: str
    replay: Replay = field(repr=False)


def diagnose(
    evidence: list[Evidence], reference: Replay, candidates: Iterable[Candidate]
) -> tuple[str | None, bool]:
    """The candidate that explains most of the failed tests, and whether the first is among them.

    A candidate explains a failed test when it answers every request of the test as the student's
    code did, and at least one of those answers is not the reference's. It is ruled out when,
    in a test that was passed, it answers differently from the student's code.
    """
    failed = [item for item in evidence if item.failed and item.transcript]
    if not failed:
        return None, False
    right = functools.cache(
        lambda position: list(reference(failed[position].test, failed[position].transcript))
    )
    alike = _Alike()
    for candidate, explains in _by_explained(failed, right, list(candidates), alike):
        if not any(
            _contradicts(item.transcript, candidate.replay(item.test, item.transcript), alike)
            for item in evidence
            if not item.failed
        ):
            return candidate.name, explains[0]
    hints = [item.hint for item in failed if item.hint and item.hint != "forbidden"]
    if not hints:
        return None, False
    name = max(hints, key=hints.count)
    first = failed[0].hint == name
    # A hint from a minority of the failures is a side effect of some other mistake.
    return (name, first) if first or 2 * hints.count(name) > len(failed) else (None, False)


def _by_explained(
    failed: list[Evidence],
    right: Callable[[int], list[Outcome | None]],
    candidates: list[Candidate],
    alike: _Alike,
) -> Iterator[tuple[Candidate, list[bool]]]:
    """Candidates with which of the failed tests they explain: those that explain most first.

    Of equals the first comes first, and who explains nothing does not come. Candidates are asked no
    more than it takes to know this: most are out after one test, and whoever explains all of them
    is not compared with those that come later.
    """
    queue = [(-len(failed), place) for place in range(len(candidates))]
    found: dict[int, list[bool]] = {place: [] for place in range(len(candidates))}
    while queue:
        most, place = heapq.heappop(queue)
        explains = found[place]
        if not most:
            return
        if len(explains) == len(failed):
            yield candidates[place], explains
            continue
        position = len(explains)
        item = failed[position]
        answers = candidates[place].replay(item.test, item.transcript)
        correct = functools.partial(right, position)
        explains.append(_explains(item.transcript, answers, correct, alike))
        heapq.heappush(queue, (most + (not explains[-1]), place))


def _explains(
    transcript: list[Exchange],
    answers: Iterable[Outcome | None],
    right: Callable[[], list[Outcome | None]],
    alike: _Alike,
) -> bool:
    for exchange, answer in zip(transcript, answers, strict=True):
        if answer is None or not alike(exchange.outcome, answer):
            return False
    return any(
        correct is not None and not alike(exchange.outcome, correct)
        for exchange, correct in zip(transcript, right(), strict=True)
    )


def _contradicts(
    transcript: list[Exchange], answers: Iterable[Outcome | None], alike: _Alike
) -> bool:
    return any(
        answer is not None and not alike(exchange.outcome, answer)
        for exchange, answer in zip(transcript, answers, strict=True)
    )
