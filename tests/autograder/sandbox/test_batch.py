"""Several frames in one come apart as they were, or not at all."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autograder.sandbox import batch, wire

fuzzed = settings(max_examples=max(300, settings.default.max_examples))

FRAMES = [wire.encode({"number": number, "text": "a" * 300 * number}) for number in range(4)]


@pytest.mark.parametrize("count", range(5))
def test_what_is_joined_comes_apart_again(count):
    joined = batch.join(FRAMES[:count])
    assert batch.is_script(joined)
    assert [bytes(part) for part in batch.split(bytearray(joined))] == FRAMES[:count]


def test_an_ordinary_frame_is_no_script():
    for frame in FRAMES:
        assert not batch.is_script(frame)
        with pytest.raises(wire.WireError, match="not several frames"):
            batch.split(bytearray(frame))


def test_more_frames_than_were_asked_for_are_refused():
    joined = bytearray(batch.join(FRAMES))
    with pytest.raises(wire.WireError, match="not several frames"):
        batch.split(joined, most=len(FRAMES) - 1)


def bent(lengths: list[int], body: bytes, header: int | None = None) -> bytearray:
    """Frames in one, whose lengths are whatever is said."""
    text = batch.MARK + struct.pack(f"<{len(lengths)}I", *lengths)
    header = len(text) if header is None else header
    payload = len(text) + len(body) - header
    return bytearray(wire.PREFIX.pack(wire.MAGIC, header, payload) + text + body)


@pytest.mark.parametrize(
    "octets",
    [
        bent([3], b"ab"),
        bent([1], b"ab"),
        bent([2**32 - 1, 3], b"ab"),
        bent([1, 1], b"ab", header=4),
        bent([], b"a"),
    ],
    ids=["beyond", "rest", "wrapped", "odd", "nothing"],
)
def test_lengths_that_do_not_fit_are_refused(octets):
    with pytest.raises(wire.WireError):
        batch.split(octets)


@fuzzed
@given(
    st.lists(st.integers(0, 40) | st.integers(0, 2**32 - 1), max_size=6),
    st.binary(max_size=120),
    st.none() | st.integers(0, 30),
)
def test_whatever_comes_is_taken_apart_whole_or_refused(lengths, body, header):
    octets = bent(lengths, body, header if header is None or header <= len(body) else None)
    try:
        parts = batch.split(octets, most=4)
    except wire.WireError:
        return
    assert len(parts) <= 4
    assert octets.endswith(b"".join(parts))
    assert sum(map(len, parts)) == wire.PREFIX.unpack_from(octets)[2]
