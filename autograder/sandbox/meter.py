"""What one submission has cost so far, where the process that hands out the work can read it."""

from __future__ import annotations

import mmap
import struct
import time

_SECONDS = struct.Struct("=d")


class Meter:
    """Seconds that a submission has used: of its own processes, and of the one that judges it.

    Made in the process that hands out the work, before it forks the one that judges.
    """

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, _SECONDS.size)
        self._began = time.process_time()

    def begin(self) -> None:
        """Another submission begins, to be judged in this process."""
        self._began = time.process_time()
        self.running = 0.0

    @property
    def running(self) -> float:
        """Seconds in which the submission's own processes ran or slept."""
        return _SECONDS.unpack(self._shared[:])[0]

    @running.setter
    def running(self, seconds: float) -> None:
        self._shared[:] = _SECONDS.pack(seconds)

    @property
    def judging(self) -> float:
        """Seconds of processor that this process has used since the submission began."""
        return time.process_time() - self._began

    @property
    def seconds(self) -> float:
        """What the submission has cost; to be asked in the process that judges it."""
        return self.running + self.judging
