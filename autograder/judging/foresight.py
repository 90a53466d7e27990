"""What a test asks whatever it is answered, so that it can be asked all at once.

A test that draws its inputs and compares answers asks the same of every implementation. What it
asks so is its `Script`; only what it makes of earlier answers is left out. Scripts are worked out
with the reference and the test itself, never with a submission, so that what goes to a submission
in one message does not depend on which others came before it. Student code can look through all of
a message before it answers the first request in it; so none holds the answer to an earlier one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from autograder.judging.known_answers import Departed, Step, same_request, snapshot
from autograder.sandbox.batch import MOST_FRAMES
from autograder.sandbox.executor import Outcome, Request
from autograder.sandbox.nesting import transform, walk

MAX_BYTES = 8 << 20  # of requests in one message

Execute = Callable[[Request], Outcome]
# Requests and answers in their order, and whether they are all of a test's.
Part = tuple[list[tuple[Request, Outcome]], bool]
# Carries several requests at once; see `Session.ahead`.
Ask = Callable[[Sequence[bytes]], list[bytearray]]


@dataclass(frozen=True)
class Script:
    """What a test asks first, and whether that is all that it asks."""

    steps: Sequence[Step]
    whole: bool
    breaks: frozenset[int] = frozenset()  # the steps that must begin a message


def constant_part(judge: Callable[[Execute], Any], reference: Execute) -> Part:
    """What a test begins with whatever it is answered, and whether that is all.

    The reference is asked first. Then the test is given the reference's answers with every
    floating-point number changed in its last bit, in which right implementations differ: what it
    asks as before up to there does not depend on them.

    Args:
        judge: runs the test with what is asked instead of a submission; may raise.
        reference: the reference, which nothing was asked before.

    Returns:
        The requests with the reference's answers, and whether the test asks nothing else.
    """
    talk: list[tuple[Request, Outcome]] = []
    constant, departed = 0, False

    def first(request: Request) -> Outcome:
        request = snapshot(request)
        talk.append((request, reference(request)))
        return talk[-1][1]

    def second(request: Request) -> Outcome:
        nonlocal constant, departed
        if departed or constant == len(talk) or not same_request(talk[constant][0], request):
            departed = True
            raise Departed
        constant += 1
        return shaken(talk[constant - 1][1])

    for execute in (first, second):
        with contextlib.suppress(Exception):
            judge(execute)
    return talk[:constant], constant == len(talk) and not departed


def shaken(outcome: Outcome) -> Outcome:
    """The same outcome, each floating-point number in its tensors one bit further from zero."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype not in (torch.float32, torch.float64):
            return tensor
        with torch.no_grad():
            return torch.nextafter(tensor, 2 * tensor)

    return transform(outcome, change)


def scripts_of(
    tests: Sequence[str], parts: Sequence[Part], encode: Callable[[str, Sequence[Request]], Any]
) -> list[Script]:
    """The scripts of an exercise's tests.

    Args:
        tests: their names, in the order in which they are asked.
        parts: the `constant_part` of each.
        encode: makes steps of a test's requests.
    """
    breaks = revealing([pair for talk, _ in parts for pair in talk])
    scripts: list[Script] = []
    start = 0
    for test, (talk, whole) in zip(tests, parts, strict=True):
        own = frozenset(place - start for place in breaks if start <= place < start + len(talk))
        steps = encode(test, [request for request, _ in talk])
        scripts.append(Script(steps, whole, own))
        start += len(talk)
    return scripts


def revealing(talk: Sequence[tuple[Request, Outcome]]) -> set[int]:
    """The positions of requests with something in them that answers an earlier request.

    A floating-point number is recognised wherever it stands, but for those that turn up by
    themselves (multiples of 1/64); whole numbers and truth values as a tensor of four at least.
    """
    asked, answered = _Occurrences(), _Occurrences()
    for position, (request, outcome) in enumerate(talk):
        given = [request.get(key) for key in ("args", "kwargs", "state")]
        asked.add(position, given)
        if request["op"] != "inspect":
            answered.add(position, [outcome.get("value"), outcome.get("grads")])
    numbers, first = asked.numbers()
    others, other_first = answered.numbers()
    _, ours, theirs = np.intersect1d(numbers, others, assume_unique=True, return_indices=True)
    early = other_first[theirs] < first[ours]
    found = set(first[ours][early].tolist())
    for bits, position in asked.tensors.items():
        if answered.tensors.get(bits, position) < position:
            found.add(position)
    return found


class _Occurrences:
    """Where in a conversation a number, or a tensor of other things, occurs first."""

    def __init__(self) -> None:
        self.tensors: dict[tuple[str, bytes], int] = {}
        self._values: list[np.ndarray] = []
        self._positions: list[np.ndarray] = []

    def add(self, position: int, values: Any) -> None:
        for _, tensor in walk(values):
            if tensor.is_floating_point():
                self._values.append(tensor.detach().double().reshape(-1).numpy())
                self._positions.append(np.full(tensor.numel(), position))
            elif tensor.numel() >= 4:
                bits = str(tensor.dtype), tensor.numpy().tobytes()
                self.tensors.setdefault(bits, position)

    def numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """The numbers that say something, in order, and the first position of each."""
        values = np.concatenate([np.zeros(0), *self._values])
        positions = np.concatenate([np.zeros(0, dtype=int), *self._positions])
        finite = np.isfinite(values)
        values, positions = values[finite], positions[finite]
        telling = values % (1 / 64) != 0
        # Of equal numbers the index is that of the first.
        unique, index = np.unique(values[telling], return_index=True)
        return unique, positions[telling][index]


@dataclass
class Foretold:
    """The answers to the first steps of a script, before its test has begun.

    `passed_over` says that something else was asked after them: the test's modules may be gone.
    """

    script: Script
    replies: list[bytearray]
    passed_over: bool = False


class Messages:
    """Asks the scripts of an exercise's tests, in their order and in as few messages as may be.

    Once a message was not answered to its end, nothing more is asked ahead: code that is slow, or
    not written yet, would be sent the same requests again and again.
    """

    def __init__(self, ask: Ask, scripts: Sequence[Script]) -> None:
        self._ask = ask
        self._scripts = scripts
        self._foretold: list[Foretold] = []
        self._short = False  # whether an answer was missing

    def of(self, index: int) -> Foretold:
        """What was answered to the script at `index`; those before have been looked at."""
        if index >= len(self._foretold):
            if self._short:
                self._foretold.append(Foretold(self._scripts[index], []))
            else:
                self._send(self._next(index))
        return self._foretold[index]

    def disturb(self, index: int) -> None:
        """The test at `index` has begun anew, so that the modules of later ones may be gone.

        What was asked for them in whole is as good as before; of the others nothing is.
        """
        for later in self._foretold[index + 1 :]:
            if later.script.whole and len(later.replies) == len(later.script.steps):
                later.passed_over = True
            else:
                later.replies = []

    def _next(self, index: int) -> list[Script]:
        """The scripts from `index` on up to one that is not whole, for whose test more is asked."""
        for end in range(index, len(self._scripts)):
            if not self._scripts[end].whole:
                return list(self._scripts[index : end + 1])
        return list(self._scripts[index:])

    def _send(self, scripts: list[Script]) -> None:
        replies: list[bytearray] = []
        for frames in _messages(scripts):
            came = self._ask(frames)
            replies += came
            self._short = len(came) < len(frames)
            if self._short:
                break
        for number, script in enumerate(scripts):
            if number and not replies:
                return
            count = len(script.steps)
            own, replies = replies[:count], replies[count:]
            self._foretold.append(Foretold(script, own, bool(replies)))


def _messages(scripts: Sequence[Script]) -> Iterator[list[bytes]]:
    """The requests of scripts in as few messages as they may be."""
    frames: list[bytes] = []
    size = 0
    for script in scripts:
        for position, step in enumerate(script.steps):
            size += len(step.frame)
            full = len(frames) == MOST_FRAMES or size > MAX_BYTES
            if frames and (full or position in script.breaks):
                yield frames
                frames, size = [], len(step.frame)
            frames.append(step.frame)
    if frames:
        yield frames
