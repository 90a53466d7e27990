"""Answers of implementations of our own, kept for as long as the same is asked."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from autograder.judging.diagnosis import Replay
from autograder.judging.known_answers import same_request
from autograder.judging.proxy import Exchange
from autograder.sandbox.executor import Executor, Outcome, Request
from autograder.sandbox.nesting import walk

# Answers of wrong modules that are kept for the next submission with the same mistake, in bytes.
MAX_REPLAYED = 96 << 20

# What was asked and answered, in order.
Conversation = list[tuple[Request, Any]]


@contextlib.contextmanager
def unwarned() -> Iterator[None]:
    """What is wrong on purpose warns of what nobody need mend."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def asking(unit: str, name: str, *, alone: bool = False) -> Callable[[Request], Outcome]:
    """Asks a unit's module with the mistake `name`, or its reference where that is "".

    It is made with the first request; `alone` is the executor's.
    """

    @functools.cache
    def executor() -> Executor:
        from autograder.units import variants  # In a student's bundle there is none.

        if name:
            return Executor(variants.wrong_namespace(unit, name), alone=alone)
        return Executor(variants.reference_namespace(unit), alone=alone)

    def execute(request: Request) -> Outcome:
        with unwarned():
            return executor().execute(request)

    return execute


class Remember:
    """Answers from memory while the requests are the remembered ones, then from `execute`.

    Args:
        execute: of an implementation that was asked nothing yet.
        known: what is remembered; it grows.
        keep: what to remember of a request whose tensors may still be changed.
    """

    def __init__(
        self,
        execute: Callable[[Request], Any],
        known: Conversation,
        keep: Callable[[Request], Request] = lambda request: request,
    ) -> None:
        self.execute = execute
        self.known = known
        self.keep = keep
        self.requests: list[Request] = []
        self.asked = 0  # how many requests the implementation has carried out
        self.parted = False  # whether an earlier request was another than the remembered one

    def __call__(self, request: Request) -> Any:
        position = len(self.requests)
        if position < len(self.known) and not self.parted:
            earlier, outcome = self.known[position]
            if same_request(earlier, request):
                self.requests.append(earlier)
                return outcome
            # From here on the remembered answers belong to modules made in another way.
            self.parted = True
        request = self.keep(request)
        self.requests.append(request)
        # Modules live in the executor: bring it up to date before asking.
        outcome = {}
        while self.asked < len(self.requests):
            outcome = self.execute(self.requests[self.asked])
            self.asked += 1
        if position == len(self.known) and not self.parted:
            self.known.append((request, outcome))
        return outcome


class Memory:
    """Conversations with the reference and the wrong modules, kept for the next submission."""

    def __init__(self) -> None:
        self._conversations: dict[tuple[str, int, str], Conversation] = {}
        self._bytes = 0

    def conversation(self, name: str, seed: int, test: str) -> Conversation:
        """What is remembered of one test with one of them; it grows."""
        if self._bytes > MAX_REPLAYED:
            self._conversations.clear()
            self._bytes = 0
        return self._conversations.setdefault((name, seed, test), [])

    def grew(self, value: Any) -> None:
        """An answer was added to a conversation."""
        sizes = (tensor.numel() * tensor.element_size() for _, tensor in walk(value))
        self._bytes += 1000 + sum(sizes)


class Replays:
    """Answers of a unit's reference and its wrong modules to one submission's requests.

    Each is worked out once, and when it is needed.
    """

    def __init__(self, unit: str, seed: int, memory: Memory) -> None:
        self._unit = unit
        self._seed = seed
        self._memory = memory
        self._answers: dict[tuple[str, str], tuple[Remember, list[Outcome]]] = {}

    def of(self, name: str) -> Replay:
        """The answers of the module with the mistake `name`, or of the reference where it is ""."""
        return functools.partial(self._replay, name)

    def _replay(self, name: str, test: str, transcript: list[Exchange]) -> Iterable[Outcome | None]:
        if (name, test) not in self._answers:
            known = self._memory.conversation(name, self._seed, test)
            asked = asking(self._unit, name, alone=True)
            self._answers[name, test] = Remember(asked, known), []
        remember, answers = self._answers[name, test]
        for position, exchange in enumerate(transcript):
            if position == len(answers):
                before = len(remember.known)
                answers.append(remember(exchange.request))
                if len(remember.known) > before:
                    self._memory.grew(answers[position])
            yield answers[position]
