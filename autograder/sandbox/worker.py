"""Runs one student's cells and answers requests about what they define, inside the sandbox.

The fork server forks, confines the child and calls `serve`. From there on everything in this
process may be in the student's hands: nothing that it says is believed, only compared.

This file is copied into the sandbox: it imports PyTorch, IPython and the standard library only.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import contextlib
import inspect
import io
import linecache
import os
import socket
import sys
import time
import types
import warnings
from typing import Any, NamedTuple

from autograder.sandbox import batch, wire
from autograder.sandbox.executor import Executor
from autograder.sandbox.forbidden_calls import Refusal

REQUEST_LIMIT = 1 << 30
MESSAGE_LIMIT = 2000
# A script is left at the first answer after so much time or memory, or of a kind that ends a test:
# the rest is asked as if there were no scripts, so that the limits hold for each request.
SCRIPT_SECONDS = 0.25
REFUSED = {"refused": True}  # how a fork says that it is its turn
ENDS_A_TEST = ("todo", "missing", "memory")
MEMORY = "the code asked for more memory than it may have"
RUNS_ITS_BODY = {"time", "timeit", "capture", "prun"}  # magics whose code defines things
SILENT = {"matplotlib", "load_ext", "autoreload", "config", "reload_ext"}


class _Output(io.RawIOBase):
    """Standard output: a file that takes so much and lets the rest fall."""

    def __init__(self, descriptor: int, budget: int) -> None:
        self.descriptor = descriptor
        self.budget = budget
        self.left = budget

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.descriptor

    def write(self, data: Any) -> int:
        octets = bytes(data)
        kept = octets[: self.left]
        self.left -= len(kept)
        if kept:
            # A full or closed descriptor is the student's doing and no reason to fail a cell.
            with contextlib.suppress(OSError):
                os.write(self.descriptor, kept)
        return len(octets)


class _Printed:
    """What was written to file descriptors 1 and 2 since the last `take`."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.raw = _Output(1, budget)
        raw: Any = self.raw
        stream = io.TextIOWrapper(
            raw, encoding="utf-8", errors="backslashreplace", write_through=True
        )
        for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
            setattr(sys, name, stream)

    def take(self) -> str:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        spilled = self.raw.left <= 0
        self.raw.left = self.budget
        try:
            size = os.fstat(1).st_size
            if not size:
                return ""
            data = os.pread(1, self.budget, 0)
            os.ftruncate(1, 0)
        except OSError:
            return ""
        text = data.decode("utf-8", "replace")
        return text + "\n… more was printed" if spilled or size > len(data) else text


class _Shell:
    """What stands for IPython: magics and shell lines say that they were not run."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def run_line_magic(self, name: str, line: str = "", **_: Any) -> None:
        if name in RUNS_ITS_BODY:
            self._run(line)
        elif name not in SILENT:
            print(f"[%{name} was not run: magics are left out when a notebook is graded]")

    def run_cell_magic(self, name: str, line: str = "", cell: str = "") -> None:
        if name in RUNS_ITS_BODY:
            self._run(cell)
        else:
            print(f"[%%{name} was not run: magics are left out when a notebook is graded]")

    def magic(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        self.run_line_magic(name, rest)

    def system(self, command: str) -> None:
        print(f"[!{command} was not run: shell commands are left out when a notebook is graded]")

    def getoutput(self, command: str, **_: Any) -> list[str]:
        self.system(command)
        return []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing


def _nothing(*_: Any, **__: Any) -> None:
    """Accepts any call that is meant for IPython and does nothing."""


def display(*objects: Any, **_: Any) -> None:
    """Print what a notebook would show."""
    for item in objects:
        print(item)


class _Fork(NamedTuple):
    """A process in which something is refused, and what its turn is told and noticed by."""

    pid: int
    wake: int
    rests: int


class _Turns(NamedTuple):
    """The same, seen from that process."""

    awake: int
    rest: int


class Worker:
    """The namespace of one notebook and what is asked of it."""

    def __init__(self, output_bytes: int) -> None:
        from IPython.core.inputtransformer2 import TransformerManager

        self.transform = TransformerManager().transform_cell
        self.printed = _Printed(output_bytes)
        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module
        self.namespace = module.__dict__
        self.executor = Executor(self.namespace, alone=True)
        # The course's own, which the fork server has imported; no cell is to find another one.
        self.given = sys.modules.get("given")
        self.parts = dict(vars(self.given)) if self.given is not None else {}
        self.forks: dict[tuple[str, ...], _Fork] = {}
        self.turns: _Turns | None = None
        shell = _Shell(self._run_text)
        for name, value in {
            "get_ipython": lambda: shell,
            "display": display,
            "exit": sys.exit,
            "quit": sys.exit,
        }.items():
            setattr(builtins, name, value)
        warnings.filterwarnings("ignore", message=".*non-interactive.*")

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """The reply to one message: what became of a cell, or the outcome of a request."""
        if message["do"] == "cell":
            status, error = self._cell(message["name"], message["source"])
            text = self.printed.take()
            return {"status": status, "error": error, "printed": text}
        try:
            outcome = self.executor.execute(message["request"])
        except MemoryError:
            outcome = {"kind": "memory", "message": MEMORY}
        except BaseException as error:
            outcome = {
                "kind": "error",
                "type": type(error).__name__,
                "types": [cls.__name__ for cls in type(error).__mro__[:-1]],
                "message": _words(error),
                "where": "",
            }
        return outcome

    def refuse(self, number: int, names: tuple[str, ...]) -> dict[str, Any] | None:
        """Let a fork answer, in which the code cannot call what is named, nor undo that.

        It answers until it is told to `allow` again, and the next time that the same is refused;
        meanwhile this process waits, and has nothing to say afterwards. It ends as the fork ends.

        Args:
            number: that of the message that is answered with this.
            names: as `Refusal` takes them.
        """
        # Refused here too, before the fork is asked: a thread that a cell has started might call
        # it for the fork.
        with Refusal(names) as refusal:
            if names in self.forks:
                os.write(self.forks[names].wake, number.to_bytes(8))
            else:
                try:
                    (awake, wake), (rests, rest) = os.pipe(), os.pipe()
                    pid = os.fork()
                except OSError:
                    return {"refused": False}
                if pid == 0:
                    os.close(wake)
                    os.close(rests)
                    refusal.seal()
                    self.executor.refusal = refusal
                    self.turns = _Turns(awake, rest)
                    return REFUSED
                os.close(awake)
                os.close(rest)
                self.forks[names] = _Fork(pid, wake, rests)
            fork = self.forks[names]
            turn = os.read(fork.rests, 1)
        if not turn:
            code = os.waitstatus_to_exitcode(os.waitpid(fork.pid, 0)[1])
            os._exit(code if code >= 0 else 128 - code)  # as a shell says it of a signal
        return None

    def allow(self) -> dict[str, Any]:
        """Say what could be called although it was refused, which only meddling can bring about."""
        assert self.executor.refusal is not None
        return {"undone": self.executor.refusal.unrefused()}

    def rest(self) -> int:
        """Let the process that has forked this one answer, until it is this one's turn again.

        Returns:
            The number of the message that says so.
        """
        assert self.turns is not None
        os.write(self.turns.rest, b"1")
        number = os.read(self.turns.awake, 8)
        if not number:
            os._exit(0)
        return int.from_bytes(number)

    def _cell(self, name: str, source: str) -> tuple[str, str]:
        filename = f"<{name}>"
        try:
            self._put_given_back()
            text = self.transform(source)
            # Lets tracebacks and inspect.getsource find the lines of a cell.
            linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
            self._run(_compiled(text, filename))
        except MemoryError:
            return "memory", MEMORY
        except BaseException as error:
            if "DefaultCPUAllocator" in _words(error):
                return "memory", MEMORY
            return "error", self._described(error, filename)
        return "ok", ""

    def _put_given_back(self) -> None:
        """Undo what a cell has done to the given parts, such as putting its own in their place."""
        if self.given is not None:
            sys.modules["given"] = self.given
            found = vars(self.given)
            for name in found.keys() - self.parts.keys():
                del found[name]
            found |= self.parts

    def _run_text(self, text: str) -> None:
        self._run(_compiled(text, "<magic>"))

    def _run(self, code: types.CodeType) -> None:
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, self.namespace))
        else:
            exec(code, self.namespace)

    def _described(self, error: BaseException, filename: str) -> str:
        """`ValueError: the message (line 3: the line)`."""
        if isinstance(error, SyntaxError) and error.filename == filename:
            line = (error.text or "").strip()[:200]
            return f"{type(error).__name__}: {error.msg} (line {error.lineno}: {line})"
        where = ""
        frame = error.__traceback__
        while frame is not None:
            if frame.tb_frame.f_globals is self.namespace:
                line = linecache.getline(frame.tb_frame.f_code.co_filename, frame.tb_lineno)
                where = f" (line {frame.tb_lineno}: {line.strip()[:200]})"
            frame = frame.tb_next
        return f"{type(error).__name__}: {_words(error)}{where}"


def _compiled(text: str, filename: str) -> types.CodeType:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return compile(text, filename, "exec", flags=flags, dont_inherit=True)


def _words(error: BaseException) -> str:
    try:
        return str(error)[:MESSAGE_LIMIT]
    except BaseException:  # an exception of the student's own whose __str__ fails
        return ""


def serve(sock: socket.socket, output_bytes: int, answer_bytes: int) -> None:
    """Answer messages until the connection is closed."""
    worker = Worker(output_bytes)
    # Time is counted from here on: how long the fork took is not the student's doing.
    wire.send(sock, {"n": 0})
    while True:
        try:
            number, frame = wire.recv_numbered(sock, REQUEST_LIMIT)
        except BlockingIOError:  # The notebook has changed how the line waits, which is shared.
            sock.setblocking(True)
            continue
        except (EOFError, OSError):
            return
        if batch.is_script(frame):
            reply = batch.join(_answers(worker, batch.split(frame), answer_bytes))
        else:
            message = wire.decode(frame, strides=True)
            if message["do"] == "refuse":
                answer = worker.refuse(number, tuple(message["names"]))
                if answer is None:
                    continue
                reply = wire.encode(answer)
            elif message["do"] == "allow":
                wire.send_numbered(sock, number, wire.encode(worker.allow()))
                number = worker.rest()
                reply = wire.encode(REFUSED)
            else:
                reply, _ = _answer(worker, message, answer_bytes)
        worker.printed.take()  # What is printed outside of cells is nobody's to read.
        wire.send_numbered(sock, number, reply)


def _answer(worker: Worker, message: dict[str, Any], answer_bytes: int) -> tuple[bytes, str]:
    """The frame that answers one message, and of which kind the outcome in it is."""
    reply = worker.answer(message)
    try:
        return wire.encode(reply, limit=answer_bytes, bounds=wire.ANSWER), reply.get("kind", "")
    except MemoryError:
        reply = _instead(message, "memory", MEMORY)
    except BaseException as error:
        reply = _instead(message, "protocol", f"{_words(error)}")
    return wire.encode(reply), reply.get("kind", "")


def _answers(worker: Worker, frames: list[bytearray], answer_bytes: int) -> list[bytes]:
    """The answers to the first of several requests, to all of them where nothing speaks against."""
    answers: list[bytes] = []
    size, began = 0, time.monotonic()
    for frame in frames:
        answer, kind = _answer(worker, wire.decode(frame, strides=True), answer_bytes)
        answers.append(answer)
        size += len(answer)
        late = time.monotonic() - began > SCRIPT_SECONDS
        if kind in ENDS_A_TEST or late or size > answer_bytes // 2:
            break
    return answers


def _instead(message: dict[str, Any], kind: str, words: str) -> dict[str, Any]:
    if message["do"] == "cell":
        return {"status": "ok", "error": words, "printed": ""}
    words = words if kind == "memory" else f"the answer cannot be sent: {words}"
    return {"kind": kind, "message": words}
