"""Several frames in one: all that a test is known to ask goes out at once, and comes back at once.

A script is a frame as in `wire.py` whose header is no JSON: the letter S and the length of each
frame (u32), which follow one another in the payload.

This file is copied into the sandbox: it imports PyTorch and the standard library only.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence

from autograder.sandbox import wire

MARK = b"S"
MOST_FRAMES = 1024


def join(frames: Sequence[bytes | bytearray]) -> bytes:
    """One frame that holds `frames` in their order."""
    header = MARK + struct.pack(f"<{len(frames)}I", *map(len, frames))
    size = sum(map(len, frames))
    return b"".join([wire.PREFIX.pack(wire.MAGIC, len(header), size), header, *frames])


def is_script(frame: bytes | bytearray) -> bool:
    """Whether `join` made a frame; `frame` is as long as its prefix says."""
    return frame[wire.PREFIX.size : wire.PREFIX.size + 1] == MARK


def split(frame: bytearray, most: int = MOST_FRAMES) -> list[bytearray]:
    """The frames that `join` put into one; what is in them has still to be read.

    Raises:
        wire.WireError: it is not exactly that, or holds more than `most` frames.
    """
    _, header, payload = wire.PREFIX.unpack_from(frame)
    count, odd = divmod(header - len(MARK), 4)
    if not is_script(frame) or odd or not 0 <= count <= most:
        raise wire.WireError("it is not several frames in one")
    begin = wire.PREFIX.size + header
    lengths = struct.unpack_from(f"<{count}I", frame, wire.PREFIX.size + len(MARK))
    ends = list(itertools.accumulate(lengths, initial=begin))
    if ends[-1] != len(frame) or begin + payload != len(frame):
        raise wire.WireError("the frames in one are not as long as it says")
    return [frame[start:end] for start, end in itertools.pairwise(ends)]
