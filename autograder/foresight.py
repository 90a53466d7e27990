"""What a test asks whatever it is answered, so that it can be asked all at once.

A test that draws its inputs and compares answers asks the same of every implementation. What it
asks so is its `Script`; only what it makes of earlier answers is left out. Scripts are worked out
with the reference and the test itself, never with a submission, so that what goes to a submission
in one message does not depend on which others came before it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from autograder.executor import Outcome, Request, transform
from autograder.known import Departed, Step, same_request, snapshot
from autograder.script import MOST_FRAMES

MAX_BYTES = 8 << 20  # of requests in one message

Execute = Callable[[Request], Outcome]
# Carries several requests at once; see `sandbox.Session.ahead`.
Ask = Callable[[Sequence[bytes]], list[bytearray]]


@dataclass(frozen=True)
class Script:
    """What a test asks first, and whether that is all that it asks."""

    steps: Sequence[Step]
    whole: bool


def constant_requests(
    judge: Callable[[Execute], Any], reference: Execute
) -> tuple[list[Request], bool]:
    """The requests that a test begins with whatever it is answered, and whether they are all.

    The reference is asked first. Then the test is given the reference's answers with every
    floating-point number changed in its last bit, in which right implementations differ: what it
    asks as before up to there does not depend on them.

    Args:
        judge: runs the test with what is asked instead of a submission; may raise.
        reference: the reference, which nothing was asked before.
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
    return [request for request, _ in talk[:constant]], constant == len(talk) and not departed


def shaken(outcome: Outcome) -> Outcome:
    """The same outcome, each floating-point number in its tensors one bit further from zero."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype not in (torch.float32, torch.float64):
            return tensor
        with torch.no_grad():
            return torch.nextafter(tensor, 2 * tensor)

    return transform(outcome, change)


@dataclass
class Foretold:
    """The answers to the first steps of a script, before its test has begun.

    `passed_over` says that something else was asked after them: the test's modules may be gone.
    """

    script: Script
    replies: list[bytearray]
    passed_over: bool = False


class Messages:
    """Asks the scripts of several tests, one after the other, in as few messages as possible."""

    def __init__(self, ask: Ask, scripts: Sequence[Script]) -> None:
        self._ask = ask
        self._scripts = scripts
        self._foretold: list[Foretold] = []

    def of(self, index: int) -> Foretold:
        """What was answered to the script at `index`; those before have been looked at."""
        if index >= len(self._foretold):
            self._send(self._next(index))
        return self._foretold[index]

    def _next(self, index: int) -> list[Script]:
        """The scripts from `index` on that may share a message: the first in any case.

        Nothing follows a script that is not whole, for whose test more will be asked.
        """
        chosen: list[Script] = []
        count = size = 0
        for script in self._scripts[index:]:
            count += len(script.steps)
            size += sum(len(step.frame) for step in script.steps)
            if chosen and (count > MOST_FRAMES or size > MAX_BYTES):
                break
            chosen.append(script)
            if not script.whole:
                break
        return chosen

    def _send(self, scripts: list[Script]) -> None:
        frames = [step.frame for script in scripts for step in script.steps]
        replies = self._ask(frames) if frames else []
        for number, script in enumerate(scripts):
            count = len(script.steps)
            if number and not replies:
                return
            own, replies = replies[:count], replies[count:]
            self._foretold.append(Foretold(script, own, bool(replies)))
