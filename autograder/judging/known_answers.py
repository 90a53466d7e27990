"""What tests asked, what they were answered and how they judged it, kept for the next submission.

With one seed a test is a function of the answers that it gets: they decide what it asks next and
how it ends. `Known` keeps both as a tree. Where the next submission answers as an earlier one did,
byte for byte, requests go out as they were encoded then, and the verdict is the earlier one's;
from the first answer that nobody gave before, the test itself runs.

Some of what a test asks may have been asked and answered before it begins (`foresight.py`). Where a
submission makes it ask something else, the test begins anew and its requests go out one by one.

Only a worker's own valid answers are kept: what a limit, a crash or rubbish made of a request may
be another thing the next time.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from autograder.judging.diagnosis import Evidence
from autograder.judging.proxy import Exchange
from autograder.judging.results import TestResult
from autograder.sandbox.executor import Outcome, Request, clone_input
from autograder.sandbox.nesting import transform

if TYPE_CHECKING:
    from autograder.sandbox.session import Answer

# Carries a request, already encoded, to the implementation; see `Session.ask`.
Ask = Callable[[Request, bytes, Callable[[bytearray], "str | None"], "bytearray | None"], "Answer"]

MAX_NODES = 150_000  # about 100 MB; a test of a class that answers alike has as many as requests
MAX_BYTES = 64 << 20  # of encoded requests, and as much again of their tensors
ALIKE = 16  # requests at one place of one test that are compared with a new one
KEPT = ("value", "error", "todo", "missing")

_EXACT = frozenset([str, int, bool, type(None)])  # equal when they compare equal
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Inconstant(Exception):
    """A test asked something else although it was answered the same."""


class Departed(Exception):
    """A test asked something else than was asked ahead of it."""


def same_request(left: Any, right: Any) -> bool:
    """Equal to the last bit, the layout of tensors included."""
    if left is right:
        return True
    kind = type(left)
    if kind in _EXACT:
        return kind is type(right) and left == right
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and _same_bits(left, right)
    if kind is not type(right):
        return False
    if isinstance(left, dict):
        if len(left) != len(right):
            return False
        for (name, item), (other, its) in zip(left.items(), right.items(), strict=True):
            if name != other or not same_request(item, its):
                return False
        return True
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same_request, left, right))
    if isinstance(left, float):
        return struct.pack("=d", left) == struct.pack("=d", right)
    return left == right


def _same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.layout is not torch.strided or right.layout is not torch.strided:
        return False
    if left.dtype != right.dtype or left.shape != right.shape or left.stride() != right.stride():
        return False
    if left.requires_grad:
        left = left.detach()
    if right.requires_grad:
        right = right.detach()
    if left.is_complex():
        left = torch.view_as_real(left.resolve_conj())
        right = torch.view_as_real(right.resolve_conj())
    bits = _BITS[left.element_size()]
    if left.dtype is bits:
        return torch.equal(left, right)
    return torch.equal(left.view(bits), right.view(bits))


def snapshot(request: Request) -> Request:
    """A copy that stays as it is, whatever a test does with its tensors afterwards."""
    return transform(request, clone_input)


@dataclass(frozen=True, eq=False)
class Step:
    """A request, and the message that carries it."""

    request: Request
    frame: bytes


@dataclass
class _Node:
    """After an answer of this kind: what is asked next, or the verdict."""

    kind: str
    then: Step | tuple[TestResult, Evidence] | None = None


class Known:
    """All conversations of one set of graders with implementations that could be asked."""

    def __init__(self) -> None:
        self._nodes: dict[bytes, _Node] = {}
        self._steps: dict[tuple[bytes, int], list[Step]] = {}
        self._bytes = 0

    def talk(
        self,
        seed: int,
        test: str,
        ask: Ask,
        ahead: Sequence[tuple[Step, bytearray]] = (),
        closed: bool = False,
    ) -> Talk:
        """Begin a test with an implementation, and go on for as long as it is known how.

        Args:
            ahead: what has been asked for the test already, and what came back.
            closed: nothing more can be asked for it.

        Raises:
            Departed: the answers lead to other requests than those.
        """
        if self._full():  # What the class needs most will be there again soon.
            self._nodes.clear()
            self._steps.clear()
            self._bytes = 0
        root = _root(seed, test)
        self._nodes.setdefault(root, _Node(""))
        talk = Talk(self, root, ask, ahead, closed)
        talk.follow()
        return talk

    def steps(self, seed: int, test: str, requests: Sequence[Request]) -> list[Step]:
        """The requests with which a test begins, encoded."""
        root = _root(seed, test)
        return [self.step(root, position, request) for position, request in enumerate(requests)]

    def _full(self) -> bool:
        return len(self._nodes) >= MAX_NODES or self._bytes >= MAX_BYTES

    def node(self, path: bytes, kind: str) -> _Node | None:
        """The node at `path`, made if there is room."""
        node = self._nodes.get(path)
        if node is None and not self._full():
            node = self._nodes[path] = _Node(kind)
        return node

    def get(self, path: bytes) -> _Node | None:
        return self._nodes.get(path)

    def step(self, root: bytes, position: int, request: Request) -> Step:
        """The request as it was encoded before, or encoded now."""
        from autograder.sandbox.session import request_frame

        known = self._steps.setdefault((root, position), [])
        for step in known:
            if same_request(step.request, request):
                return step
        frame = request_frame(request)
        step = Step(snapshot(request), frame)
        if len(known) < ALIKE and not self._full():
            known.append(step)
        self._bytes += len(frame)
        return step


def _root(seed: int, test: str) -> bytes:
    """Where a test's conversations begin."""
    return hashlib.blake2b(f"{seed}:{test}".encode(), digest_size=16).digest()


class Talk:
    """One test's conversation with one implementation, the beginning of which may be over."""

    def __init__(
        self,
        known: Known,
        root: bytes,
        ask: Ask,
        ahead: Sequence[tuple[Step, bytearray]],
        closed: bool,
    ) -> None:
        self.departed = False
        self._ahead = ahead
        self._closed = closed
        self._known = known
        self._root = root
        self._ask = ask
        self._path: bytes = root  # empty once something happened that is not to be kept
        self._steps: list[Step] = []
        self._answers: list[Answer] = []
        self._taken = 0  # answers that the running test has been given

    def follow(self) -> None:
        """Ask on while the answers are known ones."""
        while self._path:
            node = self._known.get(self._path)
            if node is None or not isinstance(node.then, Step):
                return
            self._put(node.then)

    @property
    def verdict(self) -> tuple[TestResult, Evidence] | None:
        """How the test ended with the same answers before; None if it has still to be run."""
        node = self._known.get(self._path) if self._path else None
        if node is None or not isinstance(node.then, tuple):
            return None
        test, seen = node.then
        return TestResult(**vars(test)), replace(seen, recall=self._recall(len(self._steps)))

    def execute(self, request: Request) -> Outcome:
        """Answer the running test: first what was asked ahead of it, then live.

        Raises:
            Inconstant: the test asks something else than it did with the same answers.
            Departed: it asks something else than was asked ahead of it.
        """
        position = self._taken
        self._taken += 1
        if position < len(self._steps):
            if not same_request(self._steps[position].request, request):
                raise Inconstant
            return self._answers[position].outcome
        node = self._known.get(self._path) if self._path else None
        if node is None or node.then is None:
            step = self._known.step(self._root, position, request)
            if node is not None:
                node.then = step
        elif isinstance(node.then, Step) and same_request(node.then.request, request):
            step = node.then
        else:
            raise Inconstant
        return self._put(step).outcome

    def conclude(self, test: TestResult, seen: Evidence) -> Evidence:
        """Keep the verdict; returns the evidence with its transcript in the steps' own requests."""
        if self._taken < len(self._steps):
            raise Inconstant
        node = self._known.get(self._path) if self._path else None
        if node is not None:
            node.then = replace(test), replace(seen, recall=list)
        return replace(seen, recall=self._recall(len(self._steps)))

    def _put(self, step: Step) -> Answer:
        """Ask, and go to the node behind the answer."""
        path, reply = b"", None
        if len(self._steps) < len(self._ahead):
            asked, reply = self._ahead[len(self._steps)]
            if step is not asked and not same_request(step.request, asked.request):
                self.departed = True
        elif self._closed:
            self.departed = True
        if self.departed:
            raise Departed

        def kind_of(frame: bytearray) -> str | None:
            nonlocal path
            if not self._path:
                return None
            path = hashlib.blake2b(frame, digest_size=16, key=self._path).digest()
            node = self._known.get(path)
            return node.kind if node is not None else None

        answer = self._ask(step.request, step.frame, kind_of, reply)
        self._steps.append(step)
        self._answers.append(answer)
        kept = path and answer.frame is not None and answer.kind in KEPT
        self._path = path if kept and self._known.node(path, answer.kind) else b""
        return answer

    def _recall(self, count: int) -> Callable[[], list[Exchange]]:
        def recall() -> list[Exchange]:
            pairs = zip(self._steps[:count], self._answers[:count], strict=True)
            return [Exchange(step.request, answer.outcome) for step, answer in pairs]

        return recall
