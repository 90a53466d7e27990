"""The file of recorded answers: compressed, and read one exercise at a time.

Hundreds of misconceptions answer every visible test, mostly like the reference. Each exercise is
one compressed part of exercises/<unit>/recorded.bin, so that the file stays small and a check
reads only what it needs. Inside is the wire format: data, never code.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from autograder.judging.recording import FILE, LIMIT, Recording
from autograder.sandbox import wire

__all__ = ["FILE", "read", "write"]


class _Tests(Mapping[str, Any]):
    """The tests' answers, decompressed when the first test of an exercise is asked for."""

    def __init__(self, exercises: dict[str, str], parts: dict[str, torch.Tensor]) -> None:
        self.exercises = exercises  # test -> exercise
        self.parts = parts
        self.known: dict[str, dict[str, Any]] = {}

    def __getitem__(self, test: str) -> Any:
        exercise = self.exercises[test]
        if exercise not in self.known:
            self.known[exercise] = _decompress(self.parts[exercise])
        return self.known[exercise][test]

    def __iter__(self) -> Iterator[str]:
        return iter(self.exercises)

    def __len__(self) -> int:
        return len(self.exercises)


def _compress(value: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(zlib.compress(wire.encode(value), 9)), dtype=torch.uint8)


def _decompress(part: torch.Tensor) -> Any:
    machine = zlib.decompressobj()
    try:
        data = machine.decompress(part.numpy().tobytes(), LIMIT)
    except zlib.error as error:
        raise wire.WireError(f"a part of the recorded answers is damaged ({error})") from error
    if not machine.eof:
        raise wire.WireError("a part of the recorded answers is cut short or too long")
    return wire.decode(data, limit=LIMIT)


def write(recording: Recording, path: Path) -> None:
    """Write a recording to `path`."""
    tests = recording.data["tests"]
    exercises = {test: entry["exercise"] for test, entry in tests.items()}
    parts = {
        exercise: _compress(
            {test: tests[test] for test, owner in exercises.items() if owner == exercise}
        )
        for exercise in dict.fromkeys(exercises.values())
    }
    plain = {key: value for key, value in recording.data.items() if key != "tests"}
    path.write_bytes(wire.encode({**plain, "exercises": exercises, "parts": parts}))


def read(path: Path) -> Recording:
    """Read a recording.

    Raises:
        FileNotFoundError: there is none at `path`.
        autograder.sandbox.wire.WireError: the file is damaged.
    """
    data = wire.decode(path.read_bytes(), limit=LIMIT)
    if not isinstance(data, dict) or not {"unit", "says", "exercises", "parts"} <= data.keys():
        raise wire.WireError("this is no file of recorded answers")
    tests = _Tests(data.pop("exercises"), data.pop("parts"))
    return Recording({**data, "tests": tests})
