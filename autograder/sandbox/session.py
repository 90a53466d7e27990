"""Student code in a sandbox, seen from the trusted process: requests go in, outcomes come out.

A `Sandbox` (see `launcher.py`) owns one process, the *fork server*, behind bubblewrap's walls. A
`Session` is one submission: a child forked from the fork server in namespaces of its own, with
limits on time, memory, processes, files and output (see `fork_server.py`).

Whatever student code does, a session answers with an outcome: a loop without end is a "timeout",
a dead process a "crash", too much memory "memory", and rubbish on the wire "protocol".
"""

from __future__ import annotations

import contextlib
import json
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from autograder.common.cells import Cell
from autograder.sandbox import batch, forbidden_calls, fork_server, wire
from autograder.sandbox.launcher import START_SECONDS, Sandbox
from autograder.sandbox.limits import Limits, SandboxUnavailable
from autograder.sandbox.meter import Meter

Outcome = dict[str, Any]
Request = dict[str, Any]

END_SECONDS = 30.0
MESSAGE_CHARACTERS = 2000
# Words for which the fork server knows what to import; see `fork_server.warm_up`.
WARM_WORDS = ("matplotlib", "broadcast_shapes", "assert_close", "optim.")
SHORTEST_CALL = 2.0  # what is left of a call's limit after its function has hung repeatedly
# A busy machine stretches time limits by what a submission waited for a core, up to this factor.
MOST_STRETCH = 10.0
JUDGING_SHARE = 0.1  # of a submission's time, kept back so that what was answered can be judged
SMALL_ANSWER = 1 << 20  # bytes that an answer may have even when all answers have had theirs
WORTH_WAITING = 0.02  # the part of a limit below which a remainder is not waited for


@dataclass
class CellReport:
    """What became of one cell: "ok", "error", "timeout", "crash", "memory" or "protocol"."""

    cell: Cell
    status: str
    printed: str = ""
    error: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.status == "ok"


# ---------------------------------------------------------------------------------- sessions


@dataclass(frozen=True)
class _End:
    """How a worker ended: the kind of outcome, in words, and what it had printed."""

    kind: str
    message: str
    printed: str = ""


class Answer:
    """What came back for one request.

    `frame` holds the worker's own bytes, and is None where the worker gave no valid answer. They
    are read when the outcome is asked for: whoever knows the bytes already need not.
    """

    def __init__(self, kind: str, frame: bytearray | None, outcome: Outcome | None = None) -> None:
        self.kind = kind
        self.frame = frame
        self._outcome = outcome

    @property
    def outcome(self) -> Outcome:
        if self._outcome is None:
            assert self.frame is not None
            self._outcome = _read_outcome(self.frame)
        return self._outcome


def _read_outcome(frame: bytearray) -> Outcome:
    return clean_outcome(wire.decode(frame, bounds=wire.ANSWER))


def request_frame(request: Request) -> bytes:
    """The message that carries a request to any worker.

    Raises:
        ValueError: the request cannot be sent, which is the caller's mistake.
    """
    try:
        return wire.encode({"do": "execute", "request": request}, strides=True)
    except wire.WireError as error:
        raise ValueError(f"the request cannot be sent: {error}") from None


class _Line:
    """The socket to a worker, for whom time stands still while others have its core.

    It is used in place of the socket by `wire`, which is told of no time limit.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.deadline = 0.0
        self.more: Callable[[], float] = lambda: 0.0
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(sock, select.POLLIN)
        self._writable.register(sock, select.POLLOUT)

    def allow(self, seconds: float, more: Callable[[], float]) -> None:
        """End in `seconds`; then, as long as `more` says so, that many seconds later."""
        self.deadline = time.monotonic() + seconds
        self.more = more

    def gettimeout(self) -> None:
        """The time limit is that of `allow`."""

    def settimeout(self, seconds: float | None) -> None:
        """The time limit is that of `allow`."""

    def recv(self, count: int) -> bytes:
        return self._patiently(self._readable, self.sock.recv, count)

    def recv_into(self, view: memoryview) -> int:
        return self._patiently(self._readable, self.sock.recv_into, view)

    def sendall(self, data: bytes) -> None:
        try:
            sent = self.sock.send(data)  # A worker that waits for a request has room for it.
        except BlockingIOError:
            sent = 0
        view = memoryview(data)[sent:]
        while view:
            view = view[self._patiently(self._writable, self.sock.send, view) :]

    def _patiently(self, ready: select.poll, action: Callable[[Any], Any], argument: Any) -> Any:
        left = self.deadline - time.monotonic()
        while left > 0:
            if ready.poll(left * 1000):
                try:
                    return action(argument)
                except BlockingIOError:  # It was only said to be ready.
                    left = self.deadline - time.monotonic()
            else:
                left = self.more()
                self.deadline = time.monotonic() + left
        # It may be this process that had to wait: what has come has come in time.
        try:
            return action(argument)
        except BlockingIOError:
            raise TimeoutError from None

    def close(self) -> None:
        self.sock.close()


def _in_queue() -> float:
    """Seconds for which this thread has waited for a core; 0 where the kernel does not say."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_bytes().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


class _Ended(Exception):
    def __init__(self, end: _End) -> None:
        super().__init__(end.message)
        self.end = end


class Session:
    """One submission's code, running. For one thread at a time. Nothing runs before `load`.

    Args:
        sandbox: where it runs.
        cells: the notebook's code.
        limits: what it may use, if not what the sandbox's submissions usually may.
        meter: what the submission has cost so far, and is to cost here.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        cells: Sequence[Cell],
        limits: Limits | None = None,
        *,
        meter: Meter | None = None,
    ) -> None:
        limits = limits or sandbox.limits
        self.sandbox = sandbox
        self.meter = meter or Meter()
        self.cells = list(cells)
        self.words = [word for word in WARM_WORDS if any(word in cell.source for cell in cells)]
        self.limits = limits
        self.reports: list[CellReport] = []
        self.restarts = 0
        self._elapsed = 0.0  # seconds in which this session's workers were waited for
        self._waited = 0.0  # seconds in which the present worker had no core, as far as is known
        self._waited_before = 0.0  # the same of the workers before it
        self._queued = 0.0  # how long we ourselves had waited for a core when the worker began
        self._ran = 0.0  # seconds of processor that the present worker has used, as far as is known
        self._ran_before = 0.0  # the same of the workers before it
        self._answers_left = limits.answers_bytes
        self._used_up = False  # whether the time for all of it is over
        self._loaded = False
        self._skip: set[int] = set()
        self._worker: _Line | None = None
        self._status: socket.socket | None = None
        self._number = 0
        self._created: dict[int, tuple[Request, bytes]] = {}
        self._live: set[int] = set()
        self._changed: set[int] = set()
        self._hung: dict[str, int] = {}
        self._refused: tuple[str, ...] = ()  # what is to be refused to what is asked
        self._in_force: tuple[str, ...] = ()  # what the worker refuses now
        self._scripts = True  # whether requests may go out several at a time

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What callers use.

    @property
    def limit(self) -> float:
        """Seconds after which nothing more is asked of the submission."""
        return (1 - JUDGING_SHARE) * self.limits.seconds_total

    @property
    def used_up(self) -> str:
        """That the time for all of the submission's code is over, in words; empty if it is not."""
        words = f"the submission used up the {self.limit:g} seconds that its code may take"
        return words if self._used_up else ""

    @property
    def spent(self) -> float:
        """Seconds that this submission has cost; waiting for a core is not its own."""
        waited_for = self._elapsed - self._waited_before - self._waited
        ran = self._ran_before + self._ran
        self.meter.running = max(waited_for, self._elapsed / MOST_STRETCH, ran)
        return self.meter.seconds

    def load(self) -> list[CellReport]:
        """Run the cells, one after the other in one namespace, and report on each.

        A cell that fails or hangs does not keep the others from running. What a hanging or
        killed cell had defined before is not kept.
        """
        if not self._loaded:
            self._loaded = True
            self._replay(reporting=True)
        return self.reports

    def execute(self, request: Request) -> Outcome:
        """The outcome of one request; loads the cells first if that has not been done.

        Raises:
            ValueError: the request itself cannot be sent, which is the caller's mistake.
        """
        return self.ask(request, request_frame(request)).outcome

    def ask(
        self,
        request: Request,
        frame: bytes,
        kind_of: Callable[[bytearray], str | None] = lambda frame: None,
        reply: bytearray | None = None,
    ) -> Answer:
        """Like `execute`, with the message to send, made beforehand by `request_frame`.

        Args:
            kind_of: says of an answer's bytes of which kind the outcome is, where they were read
                before; they are not read again then.
            reply: the answer's bytes, where `ahead` has already asked.
        """
        if not self._loaded:
            self.load()
        try:
            if reply is None:
                return self._execute(request, frame, kind_of)
            return self._note(request, frame, self._received(reply, kind_of))
        except _Ended as ended:
            outcome = {"kind": ended.end.kind, "message": ended.end.message}
            if self._used_up:  # Whatever was asked last, it need not be to blame.
                outcome["used_up"] = self.used_up
            return Answer(ended.end.kind, None, outcome)

    def ahead(self, frames: Sequence[bytes]) -> list[bytearray]:
        """Ask for all that `frames` say in one message; what came back for the first of them.

        Fewer answers than requests are no fault: the rest has not been asked then. None at all
        came where the limits for one request did not do for all: what they had done to the worker
        is as if it had not been, but for what the notebook itself keeps, and each is to be asked
        by `ask`. It is not tried again with this submission.
        """
        if not self._loaded:
            self.load()
        if not self._scripts or self._exhausted():
            return []
        try:
            self._prepare()
            room = 2 * self.limits.answer_bytes
            reply = self._exchange(batch.join(frames), self.limits.seconds_per_call, room)
            try:
                return batch.split(reply, len(frames))
            except wire.WireError as error:
                self._finish("protocol", str(error))
        except _Ended:
            pass
        self._scripts = False
        return []

    @contextlib.contextmanager
    def refusing(self, names: Sequence[str]) -> Iterator[list[str]]:
        """Within it the code cannot call the library functions that are named.

        Yields a list, in which stands at the end which of them it could call all the same.
        """
        undone: list[str] = []
        self._refused = tuple(names)
        try:
            yield undone
        finally:
            self._refused = ()
            if self._in_force and self._worker is not None:
                with contextlib.suppress(_Ended):
                    undone += self._allow()

    def close(self) -> None:
        """End every process of the submission."""
        if self._worker is not None:
            self._stop()

    # How it is done.

    def _execute(
        self, request: Request, frame: bytes, kind_of: Callable[[bytearray], str | None]
    ) -> Answer:
        self._prepare()
        used = self._used(request)
        for needed in self._with_parts(used) if used else ():
            if needed not in self._created or needed in self._live:
                continue
            name = self._created[needed][0]["name"]
            if needed in self._changed:
                message = f"the trained {name} was lost when its process had to be ended"
                return Answer("crash", None, {"kind": "crash", "message": message})
            again = self._ask(*self._created[needed], kind_of=lambda frame: None)
            if again.kind != "value":
                # Not an answer to this request, and so nothing to be remembered as one.
                return Answer(again.kind, None, again.outcome)
            self._live.add(needed)
        return self._note(request, frame, self._ask(request, frame, kind_of))

    def _note(self, request: Request, frame: bytes, answer: Answer) -> Answer:
        """Take down which modules an answered request has made or trained."""
        operation, handle = request["op"], request.get("handle", -1)
        if answer.kind == "value" and operation == "create":
            self._created[handle] = request, frame
            self._live.add(handle)
            self._changed.discard(handle)
        if operation == "step":
            self._changed.add(handle)
        if request.get("autograd"):
            self._changed.update(self._used(request))
        return answer

    def _used(self, request: Request) -> list[int]:
        """The handles of the modules that a request needs."""
        used = [int(name) for name in request.get("modules", ())]
        if request["op"] != "create" and request.get("handle") is not None:
            used.append(request["handle"])
        return used

    def _with_parts(self, handles: list[int]) -> Iterator[int]:
        """The handles, each after those that it was made from."""
        for handle in handles:
            if handle in self._created:
                parts = self._created[handle][0].get("modules", ())
                yield from self._with_parts([int(part) for part in parts])
            yield handle

    def _ask(
        self, request: Request, frame: bytes, kind_of: Callable[[bytearray], str | None]
    ) -> Answer:
        """One request to the worker there is; it is gone afterwards if it did not behave."""
        self._prepare()
        seconds = self.limits.seconds_per_call
        if self._hung:
            times = self._hung.get(self._title(request), 0)
            if times:
                seconds = max(seconds / 2**times, min(seconds, SHORTEST_CALL))
        try:
            reply = self._exchange(frame, seconds)
        except _Ended as ended:
            if ended.end.kind == "timeout":
                name = self._title(request)
                self._hung[name] = self._hung.get(name, 0) + 1
            raise
        return self._received(reply, kind_of)

    def _prepare(self) -> None:
        """See to it that there is a worker, and that it refuses what is to be refused."""
        if self._worker is None:
            self._replay(reporting=False)
        if self._refused and not self._in_force:
            message = {"do": "refuse", "names": list(self._refused)}
            reply = self._exchange(wire.encode(message, strides=True), self.limits.seconds_per_call)
            if self._said(reply, "refused", bool):
                self._in_force = self._refused
            else:
                self._stop()
                raise _Ended(_End("crash", "the code left no process or file to judge it with"))

    def _allow(self) -> list[str]:
        """End what answers while something is refused; which of it could be called there."""
        reply = self._exchange(wire.encode({"do": "allow"}), self.limits.seconds_per_call)
        undone = self._said(reply, "undone", list)
        refused = map(forbidden_calls.entry, self._in_force)
        self._in_force = ()
        self._live.clear()
        return [name for name in refused if name in undone]

    def _said(self, reply: bytearray, key: str, kind: type) -> Any:
        """What a reply that is no outcome says; the worker is gone if it is not what was asked."""
        with contextlib.suppress(wire.WireError):
            said = wire.decode(reply, bounds=wire.ANSWER)
            if type(said) is dict and type(said.get(key)) is kind:
                return said[key]
        raise _Ended(self._finish("protocol", "the answer is not valid"))

    def _received(self, reply: bytearray, kind_of: Callable[[bytearray], str | None]) -> Answer:
        """What an answer's bytes say; the worker is gone afterwards if it did not behave."""
        try:
            kind = kind_of(reply)
            outcome = _read_outcome(reply) if kind is None else None
        except wire.WireError as error:
            raise _Ended(self._finish("protocol", f"the answer is not valid: {error}")) from None
        answer = Answer(outcome["kind"] if outcome else str(kind), reply, outcome)
        if answer.kind == "memory":
            # Whatever filled the memory may still hold it.
            self._stop()
        return answer

    def _title(self, request: Request) -> str:
        """What a request calls, by the name that the notebook has for it."""
        name = str(request.get("name") or request.get("method") or request["op"])
        if request["op"] not in ("call", "create") and request.get("handle") in self._created:
            name = f"{self._created[request['handle']][0]['name']}.{name}"
        return name

    def _replay(self, reporting: bool) -> None:
        """Run the cells in a new worker, again from the start whenever one kills it."""
        reports: dict[int, CellReport] = {}
        while True:
            self._begin()
            for index, cell in enumerate(self.cells):
                if index in self._skip:
                    continue
                report = self._run_cell(cell)
                # The first report on a cell stands: later runs are only to get its names back.
                reports.setdefault(index, report)
                if self._worker is None:
                    self._skip.add(index)
                    if not reporting:
                        self.reports[index] = report
                    break
            else:
                break
            if self._exhausted():
                for index, cell in enumerate(self.cells):
                    reports.setdefault(index, CellReport(cell, "timeout", error=self.used_up))
                break
        if reporting:
            self.reports = [reports[index] for index in range(len(self.cells))]

    def _run_cell(self, cell: Cell) -> CellReport:
        began = self.spent
        try:
            message = {"do": "cell", "name": cell.name, "source": cell.source}
            frame = self._exchange(wire.encode(message, strides=True), self.limits.seconds_per_cell)
            reply = wire.decode(frame, bounds=wire.ANSWER)
            if type(reply) is not dict:
                raise wire.WireError("a cell's report has another form")
            status, error, printed = (reply.get(key) for key in ("status", "error", "printed"))
            if status not in ("ok", "error", "memory") or type(error) is not str:
                raise wire.WireError("a cell's report has another form")
            if type(printed) is not str:
                raise wire.WireError("what a cell printed is not text")
            if status == "memory":
                self._stop()
        except _Ended as ended:
            status, error, printed = ended.end.kind, ended.end.message, ended.end.printed
        except wire.WireError as fault:
            end = self._finish("protocol", f"the report is not valid: {fault}")
            status, error, printed = end.kind, end.message, end.printed
        return CellReport(
            cell=cell,
            status=status,
            printed=printed[: self.limits.output_bytes],
            error=error[:MESSAGE_CHARACTERS],
            seconds=self.spent - began,
        )

    def _exhausted(self) -> bool:
        if not self._used_up and self.spent >= self.limit:
            self._ask_waited(time.monotonic())
            self._used_up = self.spent >= self.limit
        return self._used_up

    def _ask_waited(self, since: float) -> float:
        """How long the worker has waited for a core since a moment, as its keeper knows it."""
        if self._status is None:
            return 0.0
        try:
            self._status.settimeout(END_SECONDS)
            self._status.sendall(fork_server.SINCE.pack(since))
            size = fork_server.WAITED.size
            if self._status.recv(1, socket.MSG_PEEK) != fork_server.WAITED_MARK:
                return 0.0  # the worker has ended, and this is the report
            answer = self._status.recv(size, socket.MSG_WAITALL)
            _, waited, ever, self._ran = fork_server.WAITED.unpack(answer)
        except (OSError, struct.error):
            return 0.0
        self._waited = self._both_waited(ever)
        return waited

    def _both_waited(self, worker: float) -> float:
        """What a worker has waited, and we meanwhile, who are on the same busy machine."""
        return max(0.0, worker + max(0.0, _in_queue() - self._queued))

    def _begin(self) -> None:
        """Start a worker; whoever has ended one pays for the next."""
        if self._exhausted():
            return
        if self._worker is not None:
            self._stop()
        began = time.monotonic()
        self._number = 0
        self._live.clear()
        self.restarts += 1
        left = replace(self.limits, seconds_total=max(1.0, self.limit - self.spent))
        for attempt in (1, 2):
            self._queued = _in_queue()
            worker, self._status = self.sandbox.fork(left, self.words)
            self._worker = _Line(worker)
            try:
                if wire.recv(worker, 1 << 10, START_SECONDS) == {"n": 0}:
                    worker.setblocking(False)
                    if self.restarts > 1:
                        self._elapsed += time.monotonic() - began
                    return
                raise EOFError
            except (EOFError, OSError, wire.WireError):
                # A fork server that has just died is replaced by the next fork.
                self._finish("crash", "")
                if attempt == 2:
                    raise SandboxUnavailable("the sandbox's Python ends at once") from None

    def _exchange(self, frame: bytes, seconds: float, room: int | None = None) -> bytearray:
        """Send one message and wait for the frame that answers it, of `room` bytes at most.

        Raises:
            _Ended: there is no answer; the worker and all its processes are gone.
        """
        if self._exhausted():
            if self._worker is not None:
                self._stop()
            raise _Ended(_End("timeout", self.used_up))
        assert self._worker is not None
        self._number += 1
        began = time.monotonic()
        spent = self._elapsed

        def more() -> float:
            """What is left of the limits once the time without a core is taken off."""
            waited = self._ask_waited(began)
            passed = time.monotonic() - began
            self._elapsed = spent + passed
            own = max(passed - waited, passed / MOST_STRETCH)
            total = self.limit - self.spent
            left = min(seconds - own, total)
            if left > WORTH_WAITING * seconds:
                return left
            self._used_up = total <= WORTH_WAITING * seconds
            return 0.0

        self._worker.allow(min(seconds, self.limit - self.spent), more)
        try:
            wire.send_numbered(self._worker, self._number, frame)
            room = min(room or self.limits.answer_bytes, max(SMALL_ANSWER, self._answers_left))
            number, reply = wire.recv_numbered(self._worker, room, bounds=wire.ANSWER)
            self._answers_left -= len(reply)
            if number != self._number:
                raise wire.WireError("it answers another question")
            return reply
        except TimeoutError:
            raise _Ended(
                self._finish("timeout", f"it was still running after {seconds:g} seconds")
            ) from None
        except (EOFError, OSError):
            raise _Ended(self._finish("crash", "the Python process ended")) from None
        except wire.WireError as error:
            raise _Ended(self._finish("protocol", f"the answer is not valid: {error}")) from None
        finally:
            self._elapsed = spent + time.monotonic() - began

    def _finish(self, kind: str, message: str) -> _End:
        """End the worker, and say how it ended in the words of its keeper where it knows more."""
        report = self._stop(dead=kind == "crash")
        printed = report.get("printed", "")
        reason = report.get("reason", "")
        if "setup" in report:
            raise SandboxUnavailable(
                f"a submission could not be isolated ({report['setup']}); `python -m autograder "
                "doctor` says what this machine allows"
            )
        if kind == "crash":
            if reason == "memory":
                kind = "memory"
                message = "the code used more memory than it may have"
            elif reason == "processes":
                message = "the code started more processes than it may have"
            elif reason == "cpu":
                kind, message = "timeout", "the code used up its processor time"
            elif report.get("exit") == 71:
                kind, message = "memory", "the code asked for more memory than it may have"
            elif "signal" in report:
                with contextlib.suppress(ValueError):
                    name = signal.Signals(report["signal"]).name
                    message = f"the Python process was ended by the signal {name}"
            elif "exit" in report:
                message = f"the code ended the Python process with exit status {report['exit']}"
        return _End(kind, message, printed)

    def _stop(self, dead: bool = False) -> dict[str, Any]:
        """End every process of the worker and return the keeper's report (empty if none came)."""
        began = time.monotonic()
        worker, status = self._worker, self._status
        self._worker = self._status = None
        self._in_force = ()
        self._live.clear()
        if worker is None or status is None:
            return {}
        report = b""
        with status:
            worker.close()
            try:
                if not dead:
                    status.shutdown(socket.SHUT_WR)
                deadline = time.monotonic() + END_SECONDS
                while time.monotonic() < deadline and len(report) < 1 << 24:
                    status.settimeout(max(0.001, deadline - time.monotonic()))
                    part = status.recv(1 << 20)
                    if not part:
                        break
                    report += part
            except OSError:
                pass
        while report.startswith(
            fork_server.WAITED_MARK
        ):  # an answer that nobody waited for any more
            report = report[fork_server.WAITED.size :]
        try:
            parsed = json.loads(report) if report else {}
        except ValueError:
            parsed = {}
        parsed = parsed if isinstance(parsed, dict) else {}
        if "waited" in parsed:
            self._waited = self._both_waited(parsed["waited"])
            self._ran = parsed["ran"]
        self._waited_before += self._waited
        self._ran_before += self._ran
        self._waited = self._ran = 0.0
        self._elapsed += time.monotonic() - began
        return parsed


# ---------------------------------------------------------------------------------- outcomes

_TEXTS = {
    "error": ("type", "message", "where"),
    "missing": ("message",),
    "todo": ("message",),
    "memory": ("message",),
    "protocol": ("message",),
}


def clean_outcome(raw: Any) -> Outcome:
    """The outcome that a worker sent, with exactly the keys of its kind and of the right types.

    Raises:
        wire.WireError: it has another form.
    """
    if type(raw) is not dict or type(raw.get("kind")) is not str:
        raise wire.WireError("an outcome has no kind")
    kind = raw["kind"]
    if kind == "value":
        mutated, grads, forbidden = (
            raw.get("mutated", []),
            raw.get("grads", {}),
            raw.get("forbidden", []),
        )
        for texts in (mutated, forbidden):
            if type(texts) is not list or any(type(text) is not str for text in texts):
                raise wire.WireError("the names in an outcome are not a list of texts")
        if type(grads) is not dict or not all(
            grad is None or isinstance(grad, torch.Tensor) for grad in grads.values()
        ):
            raise wire.WireError("the gradients in an outcome are not tensors")
        return {
            "kind": "value",
            "value": raw.get("value"),
            "mutated": mutated,
            "grads": grads,
            "forbidden": forbidden,
        }
    if kind not in _TEXTS:
        raise wire.WireError("an outcome is of no known kind")
    outcome: Outcome = {"kind": kind}
    for key in _TEXTS[kind]:
        text = raw.get(key, "")
        if type(text) is not str:
            raise wire.WireError("a message in an outcome is not text")
        outcome[key] = text[:MESSAGE_CHARACTERS]
    if kind == "error":
        types = raw.get("types", [])
        if type(types) is not list or any(type(name) is not str for name in types):
            raise wire.WireError("the types of an error are not a list of texts")
        outcome["types"] = types[:64]
    return outcome


# ---------------------------------------------------------------------------------- doctor


def probe() -> list[str]:
    """What of the sandbox works on this machine, one sentence each.

    Raises:
        SandboxUnavailable: none of it does; says why and what to do.
    """
    with Sandbox() as sandbox, Session(sandbox, [Cell("probe", "answer = 42", "probe")]) as session:
        hello = sandbox.hello
        version = subprocess.run(["bwrap", "--version"], capture_output=True, text=True).stdout
        if hello["way"] == "root":
            user = f"student code runs as the unused user id {hello['uid']}"
        else:
            user = "student code runs under your own user id, in a user namespace without rights"
        if hello["nested"]:
            inner = "every submission gets namespaces of its own, forked from one Python"
        else:
            inner = (
                "namespaces within the sandbox are refused, so that every submission starts a "
                f"Python of its own: slower ({hello['refused']})"
            )
        began = time.monotonic()
        reports = session.load()
        seconds = time.monotonic() - began
        if not all(report.ok for report in reports):
            raise SandboxUnavailable(f"a first cell did not run: {reports[0].error}")
        return [
            f"{version.strip() or 'bubblewrap'} works: no network, no files but Python's own",
            user,
            inner,
            "dangerous system calls are filtered"
            if hello["seccomp"]
            else "system calls are not filtered: the processor is neither x86-64 nor aarch64",
            f"the sandbox starts in {sandbox.start_seconds:.1f} s, a submission in {seconds:.2f} s",
        ]
