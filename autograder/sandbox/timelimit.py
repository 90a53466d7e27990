"""A limit on how long a call of a student's code may take, for Python of one's own process."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

SECONDS_PER_CALL = 10.0
# How much longer than its limit a call may take to be stopped before something else is done.
GRACE_SECONDS = 2.0
INTERVAL = 0.1  # between two looks at the clock, and between two interrupts


class TimeUp(Exception):
    """A call was stopped. It was in line `line` of `code`, if that is known."""

    def __init__(self, code: CodeType | None, line: int) -> None:
        super().__init__("the call took too long")
        self.code = code
        self.line = line


def did_not_return(what: str, seconds: float, where: str) -> str:
    """One sentence on a call of `what` that was stopped, and `where` it was if that is known."""
    ends = f"it was in {where}" if where else "is there a loop that never ends?"
    return f"{what} did not return within {seconds:g} seconds; {ends}"


class _Interrupt(KeyboardInterrupt):
    """What the limit raises in a call; Ctrl-C and Jupyter's stop button raise its base class."""


class TimeLimit:
    """Stops calls that take longer than `seconds`. Use it as a context manager.

    A thread interrupts the main thread as Ctrl-C would, again and again until the call has ended,
    since the code may catch it. A single long call of native code ends first. In any other thread
    than the main one, which alone can be interrupted, calls take as long as they take.

    Args:
        namespace: the globals of the code that is called, by which its lines are known.
        seconds: how long a call may take; SECONDS_PER_CALL by default.
        tell: is called, once for a call and in another thread, when it can't be stopped so far.
    """

    def __init__(
        self,
        namespace: dict[str, Any],
        seconds: float | None = None,
        tell: Callable[[TimeUp], None] = lambda _: None,
    ) -> None:
        self.namespace = namespace
        self.tell = tell
        self.seconds = SECONDS_PER_CALL if seconds is None else seconds
        self._began: float | None = None  # when the call that runs now began
        self._sent = False  # an interrupt that the main thread has not noticed yet is ours
        self._raised = 0.0
        self._stopped: TimeUp | None = None
        self._attempts = self._skip = 0
        self._over = threading.Event()
        self._watcher: threading.Thread | None = None

    def __enter__(self) -> TimeLimit:
        self._previous = signal.getsignal(signal.SIGINT)
        main = threading.main_thread()
        if threading.current_thread() is main and self._previous is not None:
            signal.signal(signal.SIGINT, self._on_interrupt)
            self._watcher = threading.Thread(target=self._watch, args=(main.ident,), daemon=True)
            self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._watcher is None:
            return
        try:
            # After this no interrupt is sent, and `signal.signal` first answers one that was.
            self._over.set()
            self._watcher.join()
        finally:
            signal.signal(signal.SIGINT, self._previous)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The value of `function(*arguments)`.

        Raises:
            TimeUp: it was stopped, whatever it made of that.
        """
        if self._watcher is None:
            return function(*arguments)
        trace = sys.gettrace()
        self._stopped = None
        self._attempts = 0
        self._began = time.monotonic()
        value = None
        try:
            try:
                value = function(*arguments)
            finally:
                self._began = None
        except BaseException:
            self._began = None  # again, for an interrupt that came just before the first time
            if self._stopped is None:
                raise
        if self._stopped is not None:
            sys.settrace(trace)
            raise self._stopped
        return value

    def _watch(self, main: int) -> None:
        told = None
        while not self._over.wait(INTERVAL):
            began = self._began
            if began is None or time.monotonic() - began < self.seconds:
                continue
            self._sent = True
            if hasattr(signal, "pthread_kill"):
                signal.pthread_kill(main, signal.SIGINT)  # wakes `time.sleep` too
            else:
                _thread.interrupt_main()
            if told != began and time.monotonic() - began >= self.seconds + GRACE_SECONDS:
                told = began
                self.tell(self._place(sys._current_frames().get(main)))

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        """Python's handler of SIGINT, which runs in the main thread, between two of its steps."""
        if not self._sent:
            if callable(self._previous):
                self._previous(number, frame)
            return
        self._sent = False
        now = time.monotonic()
        if self._began is None or now - self._began < self.seconds:
            return  # The call that was too long has ended meanwhile.
        if now - self._raised < INTERVAL / 2:
            return  # The last interrupt is still on its way up.
        self._raised = now
        self._stopped = self._stopped or self._place(frame)
        self._interrupt_again(frame)
        raise _Interrupt

    def _place(self, frame: FrameType | None) -> TimeUp:
        frames = self._frames(frame)
        return TimeUp(frames[0].f_code, frames[0].f_lineno) if frames else TimeUp(None, 0)

    def _frames(self, frame: FrameType | None) -> list[FrameType]:
        """The frames of the code in the call, the innermost first."""
        frames = []
        while frame is not None and frame.f_code is not TimeLimit.call.__code__:
            if frame.f_globals is self.namespace:
                frames.append(frame)
            frame = frame.f_back
        return frames

    def _interrupt_again(self, frame: FrameType | None) -> None:
        """Raise also at a line that the code begins after this interrupt.

        A loop around `try: time.sleep(1)` and `except: pass` would catch any number of interrupts,
        each in its sleep. The line after one is that of the `except`, where nothing catches. As it
        may be caught there by another function, or a further `try`, each attempt takes another
        function or a later line.
        """
        frames = self._frames(frame)[::-1]
        if frames:
            self._skip, which = divmod(self._attempts, len(frames))
            frames[which].f_trace = self._at_event
            self._attempts += 1
            sys.settrace(lambda *_: None)

    def _at_event(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        if self._began is None:
            return None
        if event == "line":
            if self._skip == 0:
                raise _Interrupt
            self._skip -= 1
        return self._at_event
