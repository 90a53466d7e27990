"""Whatever bytes come over the border, they are a value within bounds or refused in a sentence.

`HYPOTHESIS_PROFILE=long` tries 10,000 examples of each.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autograder.sandbox import wire
from autograder.sandbox.session import MESSAGE_CHARACTERS, clean_outcome
from tests.autograder.sandbox.test_wire import SAMPLE, VALUES, frame

# More than other tests try: an example costs a few milliseconds.
fuzzed = settings(max_examples=max(300, settings.default.max_examples))

LIMIT = 1 << 16
BOUNDS = wire.Bounds(header_bytes=4096, nodes=200, depth=12, string_characters=2000, tensors=20)
REFUSED = (wire.WireError, EOFError, TimeoutError)


def weigh(value: Any, depth: int = 0) -> tuple[int, int, int, int]:
    """How many parts, levels, tensors and bytes of tensors and texts a value has."""
    if isinstance(value, torch.Tensor):
        stored = value.untyped_storage().nbytes()
        assert stored <= LIMIT, "a tensor holds more than the frame could bring"
        return 1, depth, 1, stored
    if isinstance(value, (list, tuple, dict)):
        inner = list(value.values()) if isinstance(value, dict) else list(value)
        below = [weigh(item, depth + 1) for item in inner]
        return (
            1 + sum(one[0] for one in below),
            max([depth, *(one[1] for one in below)]),
            sum(one[2] for one in below),
            sum(one[3] for one in below),
        )
    assert value is None or type(value) in (bool, int, float, str, wire.Foreign)
    return 1, depth, 0, len(value) if isinstance(value, str) else 0


def decoded(data: bytes, *, strides: bool = False) -> Any:
    """The value, checked against the bounds; the sentence of the refusal otherwise."""
    try:
        value = wire.decode(data, limit=LIMIT, strides=strides, bounds=BOUNDS)
    except wire.WireError as error:
        said = str(error)
        assert said
        assert said[0].islower() or said[0].isdigit()
        assert "\n" not in said
        assert len(said) < 200
        return error
    nodes, depth, tensors, octets = weigh(value)
    assert nodes <= BOUNDS.nodes
    assert depth <= BOUNDS.depth
    assert tensors <= BOUNDS.tensors
    assert octets <= LIMIT
    return value


def through_sockets(data: bytes, expected: Any, pieces: int) -> None:
    """The same bytes through `recv` and, with a number, through `recv_numbered`."""
    for numbered in (False, True):
        sent = data
        if numbered and len(data) >= wire.PREFIX.size:
            _, header, payload = wire.PREFIX.unpack_from(data)
            prefix = wire.NUMBERED_PREFIX.pack(wire.NUMBERED, 7, header, payload)
            sent = prefix + data[wire.PREFIX.size :]
        # Nobody reads further, and what nobody reads would at last keep the sender waiting.
        sent = sent[: 2 * LIMIT]
        left, right = socket.socketpair()
        with right:
            with left:
                step = max(1, len(sent) // pieces)
                for start in range(0, len(sent), step):
                    left.sendall(sent[start : start + step])
            try:
                if numbered:
                    number, came = wire.recv_numbered(right, LIMIT, 5, bounds=BOUNDS)
                    assert number == 7
                    value = wire.decode(came, limit=LIMIT, bounds=BOUNDS)
                else:
                    value = wire.recv(right, LIMIT, 5, bounds=BOUNDS)
            except REFUSED:
                # Without a number, bytes behind the frame are the beginning of the next.
                magic = data[: len(wire.MAGIC)] == wire.MAGIC
                assert isinstance(expected, wire.WireError) or (numbered and not magic)
            else:
                whole = not isinstance(expected, wire.WireError)
                assert not numbered or data[:8] != wire.MAGIC or whole
                if whole:
                    # Bit by bit: NaN is not equal to itself.
                    again = wire.encode(value, limit=1 << 20)
                    assert again == wire.encode(expected, limit=1 << 20)


# ---------------------------------------------------------------------------------------------
# Headers from a grammar


ODD = st.sampled_from(
    [None, True, -1, 0, 1, 2**31, 2**40, 2**63, 2**64, 1.5, "", "x", "float32", [], {}, [[]]]
)
NAMES = st.sampled_from([*sorted(wire.DTYPES), "object", "float128", "", "Float32"])
SIZES = st.lists(
    st.integers(0, 5) | st.sampled_from([-1, 2**31, 2**39, 2**40, 2**63, True, 1.0, "2", None]),
    max_size=5,
)


LEAVES = ["plain", "text", "special", "foreign", "tensor", "odd"]
LEAF, NODE = st.sampled_from(LEAVES), st.sampled_from([*LEAVES, "list", "tuple", "dict"])
# Made once: a strategy made for each draw costs more than the draw.
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9)
COUNTS, FLAGS, KEY = st.integers(0, 4), st.booleans() | ODD, st.text(max_size=3)
SHORT, LENGTHS = st.text(max_size=20), st.integers(0, 40)
SPECIALS = st.sampled_from(["nan", "inf", "-inf"]) | ODD
FOREIGN = st.lists(st.text(max_size=5), min_size=2, max_size=2) | ODD
STRANGE = st.dictionaries(st.sampled_from([*"xtdsfo", "q", ""]), ODD, max_size=2) | ODD.map(
    lambda odd: [odd] * 3
)


@st.composite
def headers(draw: st.DrawFn) -> tuple[Any, int]:
    """The JSON of a header, well-formed or nearly so, and how many bytes its payload should be."""
    wanted = 0

    def node(depth: int) -> Any:
        nonlocal wanted
        kind = draw(NODE if depth < 5 else LEAF)
        if kind == "plain":
            return draw(SCALARS)
        if kind == "text":
            if draw(st.booleans()):
                return draw(SHORT)
            length = draw(LENGTHS)
            wanted += length
            return {"s": length}
        if kind == "special":
            return {"f": draw(SPECIALS)}
        if kind == "foreign":
            return {"o": draw(FOREIGN)}
        if kind == "tensor":
            name, sizes = draw(NAMES), draw(SIZES)
            plain = all(type(size) is int and 0 <= size < 6 for size in sizes)
            steps = None
            if draw(st.integers(0, 3)) == 0:
                steps = draw(SIZES)
            elif name in wire.DTYPES and plain:
                wanted += torch.Size(sizes).numel() * wire.DTYPES[name].itemsize
            flags = [draw(FLAGS) for _ in range(2)]
            return {"x": [name, sizes, steps, *flags][: draw(st.integers(3, 5)) + 2]}
        if kind == "odd":
            return draw(STRANGE)
        count = draw(COUNTS)
        if kind == "list":
            return [node(depth + 1) for _ in range(count)]
        if kind == "tuple":
            return {"t": [node(depth + 1) for _ in range(count)]}
        return {"d": {draw(KEY): node(depth + 1) for _ in range(count)}}

    return node(0), min(wanted, 4 * LIMIT)


LIES = st.just({}) | st.dictionaries(
    st.sampled_from(["header", "payload"]),
    st.sampled_from([0, 1, 17, 2**16, 2**31, 2**32 - 1]),
    max_size=2,
)


@fuzzed
@given(headers(), st.integers(-2, 2), st.binary(max_size=8), st.booleans(), st.data())
def test_headers_of_the_grammar_with_payloads_that_fit_or_nearly_so(made, off, fill, strides, data):
    header, wanted = made
    size = max(0, wanted + data.draw(st.just(0) | st.just(off)))
    payload = (fill * (size // len(fill) + 1))[:size] if fill else bytes(size)
    lies = data.draw(LIES)
    octets = frame(header, payload, **lies)
    value = decoded(octets, strides=strides)
    if isinstance(value, wire.WireError):
        return
    # What was let in can be sent on, and lengths that were let in were the right ones.
    again = wire.encode(value, limit=1 << 20, strides=strides)
    if lies:
        honest = decoded(frame(header, payload), strides=strides)
        assert again == wire.encode(honest, limit=1 << 20, strides=strides)


@fuzzed
@given(headers(), st.binary(max_size=64), st.integers(1, 5))
def test_sockets_take_and_refuse_what_decode_does(made, payload, pieces):
    octets = frame(made[0], payload)
    through_sockets(octets, decoded(octets), pieces)


# ---------------------------------------------------------------------------------------------
# Valid frames, damaged


VALID = st.just(SAMPLE) | VALUES.map(lambda value: wire.encode(value, strides=True))
ACCIDENTS = st.sampled_from(["flip", "cut", "insert", "drop", "double", "digit", "len"])


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A valid frame after a few accidents to its bytes."""
    data = bytearray(draw(VALID))
    for _ in range(draw(st.integers(0, 6))):
        place = draw(st.integers(0, max(0, len(data) - 1)))
        accident = draw(ACCIDENTS)
        if accident == "flip" and data:
            data[place] = draw(st.integers(0, 255))
        elif accident == "cut":
            del data[place:]
        elif accident == "insert":
            data[place:place] = draw(st.binary(min_size=1, max_size=9))
        elif accident == "drop":
            del data[place : place + draw(st.integers(1, 20))]
        elif accident == "double":
            data += data[place:]
        elif accident == "digit":
            digits = [at for at, octet in enumerate(data) if 48 <= octet < 58]
            if digits:
                data[draw(st.sampled_from(digits))] = draw(st.integers(48, 57))
        elif accident == "len" and len(data) >= wire.PREFIX.size:
            # Lengths that fit again, so that more than the prefix is looked at.
            header = draw(st.integers(0, len(data) - wire.PREFIX.size))
            rest = len(data) - wire.PREFIX.size - header
            data[: wire.PREFIX.size] = wire.PREFIX.pack(wire.MAGIC, header, rest)
    return bytes(data)


@fuzzed
@given(damaged(), st.booleans())
def test_damaged_frames_are_values_or_refused(octets, strides):
    value = decoded(octets, strides=strides)
    if not isinstance(value, wire.WireError):
        wire.encode(value, limit=1 << 20, strides=strides)


@fuzzed
@given(damaged(), st.integers(1, 5))
def test_damaged_frames_on_a_socket_are_values_or_refused(octets, pieces):
    through_sockets(octets, decoded(octets), pieces)


@fuzzed
@given(st.binary(max_size=300), st.sampled_from(["plain", "header", "numbered"]))
def test_random_bytes_are_refused(octets, place):
    if place == "numbered":
        left, right = socket.socketpair()
        with right:
            with left:
                left.sendall(wire.NUMBERED + octets)
            with suppress(*REFUSED):  # Or a small value by chance, as good as any other.
                decoded(wire.recv_numbered(right, LIMIT, 5, bounds=BOUNDS)[1])
        return
    value = decoded(frame(octets) if place == "header" else octets, strides=True)
    if not isinstance(value, wire.WireError):
        again = wire.encode(value)
        assert wire.encode(wire.decode(again)) == again


@fuzzed
@given(st.text('[]{}",:0123456789.eE-tdxsfonaulrse \\', max_size=60), st.integers(0, 16))
def test_headers_that_look_like_headers_never_do_more_than_fail(text, size):
    decoded(frame(text.encode(), bytes(size)), strides=True)


# ---------------------------------------------------------------------------------------------
# Outcomes


KINDS = ["value", "error", "missing", "todo", "memory", "protocol", "crash", "timeout", ""]
KEYS = ["kind", "value", "mutated", "grads", "forbidden", "type", "message", "where", "types", "n"]


FIELDS = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6)
LISTED = st.lists(st.text(max_size=5), max_size=80)
LONG = st.tuples(st.text(max_size=20), st.sampled_from([1, 1, 1000])).map(
    lambda two: two[0] * two[1]
)
USUAL = {
    "kind": st.sampled_from(KINDS),
    **dict.fromkeys(("mutated", "forbidden", "types"), LISTED),
    "grads": st.builds(lambda: {"0": torch.ones(2), "1": None}),
    **dict.fromkeys(("type", "message", "where"), LONG),
}


@st.composite
def outcomes(draw: st.DrawFn) -> Any:
    """What a worker might send as an outcome, rightly or not."""
    fields = draw(FIELDS)
    for key, usual in USUAL.items():
        if draw(st.booleans()):
            fields[key] = draw(usual)
    return draw(st.sampled_from([fields, fields, fields, [fields], {"outcome": fields}, None]))


@fuzzed
@given(outcomes())
def test_an_outcome_has_the_keys_of_its_kind_or_is_refused(raw):
    with suppress(wire.WireError):
        raw = wire.decode(wire.encode(raw), bounds=wire.ANSWER)
        outcome = clean_outcome(raw)
        assert outcome["kind"] == raw["kind"]
        if outcome["kind"] == "value":
            assert set(outcome) == {"kind", "value", "mutated", "grads", "forbidden"}
            assert all(type(name) is str for name in outcome["mutated"] + outcome["forbidden"])
            assert all(
                grad is None or isinstance(grad, torch.Tensor) for grad in outcome["grads"].values()
            )
        else:
            assert set(outcome) <= {"kind", "type", "message", "where", "types"}
            for key in outcome.keys() - {"types"}:
                assert type(outcome[key]) is str
                assert len(outcome[key]) <= MESSAGE_CHARACTERS
            assert len(outcome.get("types", [])) <= 64
