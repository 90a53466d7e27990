"""The border format: values come back exactly, and no bytes do anything but be refused."""

from __future__ import annotations

import ast
import json
import math
import socket
import threading
from collections import OrderedDict, namedtuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autograder.common.paths import PACKAGE
from autograder.sandbox import wire

PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=400)
)
DTYPES = st.sampled_from(sorted(wire.DTYPES))


@st.composite
def tensors(draw):
    dtype = wire.DTYPES[draw(DTYPES)]
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    return torch.randint(0, 2, shape, generator=generator).to(dtype)


VALUES = st.recursive(
    PLAIN | tensors(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=8), inner, max_size=4
        )
    ),
    max_leaves=12,
)


def same(left, right) -> bool:
    """Equal in type, order and value all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and left.shape == right.shape and torch.equal(left, right)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return left == right


def frame(body, payload_bytes: bytes = b"", **lies) -> bytes:
    """A frame with a header of one's own choosing, and lengths that may lie."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lengths = {"header": len(data), "payload": len(payload_bytes), **lies}
    return (
        wire.PREFIX.pack(wire.MAGIC, lengths["header"], lengths["payload"]) + data + payload_bytes
    )


@given(VALUES)
def test_any_value_comes_back_exactly(value):
    assert same(wire.decode(wire.encode(value)), value)


@pytest.mark.parametrize("name", sorted(wire.DTYPES))
def test_every_dtype_keeps_its_bits(name):
    dtype = wire.DTYPES[name]
    values = torch.tensor([0.0, 1.5, 3.25, 100.0]).to(dtype)
    if dtype.is_floating_point:
        values[1], values[2] = math.nan, -math.inf
    back = wire.decode(wire.encode(values))
    assert back.dtype == dtype
    assert torch.equal(back.reshape(-1).view(torch.uint8), values.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_special_numbers_come_back(number):
    back = wire.decode(wire.encode([number]))[0]
    assert type(back) is float
    assert back == number or (math.isnan(back) and math.isnan(number))


LAYOUTS = (
    lambda x: x.transpose(1, 2),
    lambda x: x[:, ::2],
    lambda x: x[:1, :, :1].expand(5, 4, 6),
    lambda x: x[..., 3],
    lambda x: x[:, :, 1:3].permute(2, 0, 1),
    lambda x: x.expand(3, 2, 4, 6)[:, :, 1::2],
)


@pytest.mark.parametrize("make", LAYOUTS)
def test_layout_in_memory_is_kept_when_asked_for(make):
    value = make(torch.arange(48.0).reshape(2, 4, 6))
    assert not value.is_contiguous()
    back = wire.decode(wire.encode(value, strides=True), strides=True)
    assert torch.equal(back, value)
    assert back.stride() == value.stride()
    plain = wire.decode(wire.encode(value))
    assert plain.is_contiguous()
    assert torch.equal(plain, value)


def test_gaps_between_the_elements_of_a_view_are_not_sent():
    secret = torch.full((4, 6), 123456.0)
    secret[:, 0] = 1.0
    assert torch.tensor(123456.0).numpy().tobytes() not in wire.encode(secret[:, 0], strides=True)


def test_overlapping_views_arrive_with_their_values():
    value = torch.arange(6.0).unfold(0, 3, 1)
    back = wire.decode(wire.encode(value, strides=True), strides=True)
    assert torch.equal(back, value)


def test_gradient_flag_and_parameters_survive():
    leaf = torch.ones(2, requires_grad=True)
    parameter = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    back = wire.decode(wire.encode([leaf, parameter, leaf * 2]))
    assert [type(item) for item in back] == [torch.Tensor, torch.nn.Parameter, torch.Tensor]
    assert [item.requires_grad for item in back] == [True, False, True]
    assert all(item.is_leaf for item in back)


def test_decoded_tensors_alias_nothing():
    data = bytearray(wire.encode([torch.zeros(3), torch.zeros(3)]))
    first, second = wire.decode(data)
    data[-24:] = b"\xff" * 24
    first += 1
    assert first.tolist() == [1, 1, 1]
    assert second.tolist() == [0, 0, 0]


Pair = namedtuple("Pair", "first second")


class Odd:
    def __repr__(self):
        return "x" * 1000


class Broken:
    def __repr__(self):
        raise ValueError("no")


def test_anything_else_arrives_as_a_named_foreigner():
    values = [{1, 2}, Odd(), Broken(), {1: 2}, 2**70, len, b"x", torch.float32]
    back = wire.decode(wire.encode(values))
    assert all(isinstance(item, wire.Foreign) for item in back)
    assert [item.type_name for item in back[:5]] == ["set", "Odd", "Broken", "dict", "int"]
    assert len(back[1].repr) == wire.REPR_CHARACTERS
    assert same(wire.decode(wire.encode(back)), back)


def test_foreign_tensors_are_described():
    sparse = torch.eye(2).to_sparse()
    meta = torch.empty(2, device="meta")
    back = wire.decode(wire.encode([sparse, meta]))
    assert [type(item) for item in back] == [wire.Foreign, wire.Foreign]
    assert "sparse" in back[0].repr
    assert "meta" in back[1].repr


def test_subclasses_of_containers_become_the_plain_thing():
    value = [Pair(1, 2), torch.Size([2, 3]), OrderedDict(a=1), torch.nn.Linear(1, 1).state_dict()]
    back = wire.decode(wire.encode(value))
    assert [type(item) for item in back] == [tuple, tuple, dict, dict]
    assert back[0] == (1, 2)


def test_half_characters_are_replaced_when_sent_and_refused_when_forged():
    assert wire.decode(wire.encode("a\ud800b")) == "a�b"
    assert wire.decode(wire.encode("\ud83d\ude00")) == "😀"
    for forged in (
        frame(b'"\\ud800"'),
        frame(b'{"d":{"\\ud800":1}}'),
        frame({"s": 3}, b"\xed\xa0\x80"),
    ):
        with pytest.raises(wire.WireError):
            wire.decode(forged)


def test_frames_are_the_bytes_that_earlier_ones_were():
    """Answers that were recorded with a course, and verdicts kept under them, depend on that."""
    value = {
        "none": [None, True, False, -3, 2**64 - 1, 2**64, 0.1, -0.0, 1e300],
        "é": ('\x00"\\/\x7f', "x" * 300, float("inf"), -float("inf"), float("nan")),
        "x": torch.tensor([[1, 2], [3, 4]], dtype=torch.int16).T,
        "p": torch.nn.Parameter(torch.zeros(1)),
        "o": 1j,
    }
    header = (
        r'{"d":{"none":[null,true,false,-3,18446744073709551615,{"o":["int","184467440737095516'
        r'16"]},0.1,-0.0,1e+300],"\u00e9":{"t":["\u0000\"\\/\u007f",{"s":300},{"f":"inf"},'
        r'{"f":"-inf"},{"f":"nan"}]},"x":{"x":["int16",[2,2],null,false,false]},'
        r'"p":{"x":["float32",[1],null,true,true]},"o":{"o":["complex","1j"]}}}'
    )
    payload = b"x" * 300 + b"\1\0\3\0\2\0\4\0" + bytes(4)
    assert wire.encode(value) == frame(header.encode(), payload)
    strided = wire.encode({"x": value["x"]}, strides=True)
    header = '{"d":{"x":{"x":["int16",[2,2],[1,2],false,false]}}}'
    assert strided == frame(header.encode(), b"\1\0\2\0\3\0\4\0")


class Endless(list):
    """Says that it is empty and yields without end."""

    def __iter__(self):
        while True:
            yield 0


class Keys(dict):
    """Holds the same keys again and again."""

    def items(self):
        while True:
            yield "key", 0


@pytest.mark.parametrize("value", [Endless(), Keys(), [Endless()], {"a": (Keys(), 1)}])
def test_what_yields_without_end_is_refused(value):
    with pytest.raises(wire.WireError, match="more than 200000 parts"):
        wire.encode(value, bounds=wire.ANSWER)


class Text(str):
    __slots__ = ()

    def __str__(self):
        return "another"

    def __hash__(self):
        return id(self)

    def __eq__(self, other):
        return self is other


@pytest.mark.parametrize(
    ("value", "arrives"),
    [
        ({"a": 1, "a\ud800": 2, "b": 3, "a" + chr(0xDFFF): 4}, {"a": 1, "a�": 4, "b": 3}),
        ({Text("a"): 1, "b": 2, Text("a"): 3}, {"a": 3, "b": 2}),
        (OrderedDict(a=Text("b"), c=[]), {"a": "b", "c": []}),
        ({"a": {}, "b": [], "c": ()}, {"a": {}, "b": [], "c": ()}),
    ],
)
def test_every_key_arrives_once_and_as_text(value, arrives):
    assert same(wire.decode(wire.encode(value)), arrives)


@pytest.mark.parametrize(
    ("bounds", "fits", "exceeds"),
    [
        (wire.Bounds(nodes=4), [1, [2]], [1, [2, 3]]),
        (wire.Bounds(nodes=4), {"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 2}, "d": 3}),
        (wire.Bounds(nodes=4), torch.Size([2, 3, 4]), torch.Size([2, 3, 4, 5])),
        (wire.Bounds(depth=2), [[0], [[]]], [[], [[0]]]),
        (wire.Bounds(depth=2), {"a": ({},)}, {"a": ({"b": 1},)}),
        (wire.Bounds(tensors=1), (torch.ones(1),), (torch.ones(1), torch.ones(1))),
    ],
)
def test_both_sides_count_alike(bounds, fits, exceeds):
    wire.decode(wire.encode(fits, bounds=bounds), bounds=bounds)
    with pytest.raises(wire.WireError):
        wire.encode(exceeds, bounds=bounds)
    with pytest.raises(wire.WireError):
        wire.decode(wire.encode(exceeds), bounds=bounds)


def test_encoding_is_bounded():
    loop: list = []
    loop.append(loop)
    wide = [[[[[[[0] * 40] * 40] * 40] * 40] * 40]]
    for value in (loop, wide, torch.zeros(1).expand(10**6, 10**6), torch.zeros(2000), "x" * 5000):
        with pytest.raises(wire.WireError):
            wire.encode(value, limit=4096, bounds=wire.ANSWER)


FORGERIES = {
    "an empty frame": b"",
    "a wrong magic word": b"GET / HTTP/1.1\r\n\r\n      ",
    "a header longer than the frame": frame([1], header=100),
    "a header of four gigabytes": frame([1], header=2**32 - 1),
    "a payload of many exabytes": frame([1], payload=2**64 - 1),
    "a payload that is not there": frame([1], payload=1),
    "bytes after the frame": frame([1]) + b"x",
    "bytes that the header does not name": frame([1], b"xx"),
    "no JSON": frame(b"[1,"),
    "bytes beyond ASCII": frame('"é"'.encode()),
    "two values": frame(b"1 2"),
    "a space before the value": frame(b" 1"),
    "a line after the value": frame(b"1\n"),
    "nothing": frame(b""),
    "NaN as JavaScript has it": frame(b"NaN"),
    "a number too large for a float": frame(b"1e999"),
    "an integer of 65 bits": frame(b"18446744073709551616"),
    "an integer of a million digits": frame(b"1" * 10**6),
    "a deep nest": frame(b"[" * 100 + b"]" * 100),
    "a nest deeper than the parser": frame(b"[" * 10**6 + b"]" * 10**6),
    "a nest of objects": frame(b'{"t":[' * 10**5 + b"]}" * 10**5),
    "more parts than allowed": frame([0] * (wire.ANSWER.nodes + 1)),
    "an unknown kind": frame({"pickle": "cos\nsystem\n"}),
    "no kind": frame({}),
    "two kinds at once": frame(b'{"t":[],"d":{}}'),
    "a key that stands twice": frame(b'{"d":{"a":1,"a":2}}'),
    "a dict that is a list": frame({"d": [1]}),
    "a tuple that is text": frame({"t": "abc"}),
    "an odd special number": frame({"f": "infinity"}),
    "a special number of no kind": frame({"f": [1]}),
    "a long text in the header": frame("x" * 1000),
    "a text of negative length": frame({"s": -1}),
    "a text of fractional length": frame({"s": 1.0}, b"x"),
    "a text of length True": frame({"s": True}, b"x"),
    "a text that is not UTF-8": frame({"s": 2}, b"\xff\xff"),
    "a text beyond the payload": frame({"s": 10}, b"x"),
    "a foreigner without repr": frame({"o": ["a"]}),
    "a foreigner with a long repr": frame({"o": ["a", "x" * 201]}),
    "a tensor without fields": frame({"x": []}),
    "a tensor of objects": frame({"x": ["object", [1], None, False, False]}, b"x" * 8),
    "a dtype that is a list": frame({"x": [["float32"], [1], None, False, False]}, b"x" * 4),
    "a negative size": frame({"x": ["uint8", [-1], None, False, False]}),
    "two negative sizes": frame({"x": ["uint8", [-1, -1], None, False, False]}, b"x"),
    "a size that is True": frame({"x": ["uint8", [True], None, False, False]}, b"x"),
    "a fractional size": frame({"x": ["uint8", [1.0], None, False, False]}, b"x"),
    "a shape larger than its bytes": frame({"x": ["float32", [9], None, False, False]}, b"x" * 8),
    "a shape smaller than its bytes": frame({"x": ["float32", [1], None, False, False]}, b"x" * 8),
    "a product that overflows": frame({"x": ["uint8", [2**32, 2**32], None, False, False]}),
    "a huge size beside a zero": frame({"x": ["uint8", [0, 2**39, 2**39], None, False, False]}),
    "a hundred dimensions": frame({"x": ["uint8", [1] * 100, None, False, False]}, b"x"),
    "strides where none are allowed": frame(
        {"x": ["uint8", [1000000, 1000000], [0, 0], False, False]}, b"x"
    ),
    "a bool of 2": frame({"x": ["bool", [1], None, False, False]}, b"\x02"),
    "an integer with a gradient": frame({"x": ["int64", [1], None, True, False]}, b"x" * 8),
    "a flag that is a number": frame({"x": ["uint8", [1], None, 1, False]}, b"x"),
    "a parameter flag that is text": frame({"x": ["uint8", [1], None, False, "yes"]}, b"x"),
}


@pytest.mark.parametrize("forged", FORGERIES.values(), ids=FORGERIES)
def test_forged_frames_are_refused_in_a_sentence(forged):
    with pytest.raises(wire.WireError, match=r"^[a-z].{10,}[^.]$"):
        wire.decode(forged, limit=1 << 22, bounds=wire.ANSWER)


@pytest.mark.parametrize(
    ("shape", "steps", "payload"),
    [
        ([2, 2], [0], 4),
        ([2, 2], [-1, 1], 4),
        ([2, 2], [2, 2**41], 4),
        ([2, 2], [2, 1], 3),
        ([2, 2], [2, 1], 5),
        ([10**4, 10**4], [0, 0], 1),
        ([0], [1], 0),
    ],
)
def test_forged_strides_are_refused_even_where_strides_are_allowed(shape, steps, payload):
    forged = frame({"x": ["uint8", shape, steps, False, False]}, b"\0" * payload)
    with pytest.raises(wire.WireError):
        wire.decode(forged, limit=1 << 20, strides=True)


SAMPLE = wire.encode(
    {
        "kind": "value",
        "value": (torch.arange(6.0).reshape(2, 3).T, [1, 2.5, math.nan], "x" * 300, {1}),
        "grads": {"0": torch.ones(2, dtype=torch.bool), "1": None},
    },
    strides=True,
)


def test_a_socket_carries_frames_both_ways():
    left, right = socket.socketpair()
    value = {"x": torch.randn(200_000), "y": ["…"]}  # more than a socket holds at once
    with left, right:
        sender = threading.Thread(target=wire.send, args=(left, value))
        sender.start()
        back = wire.recv(right, 1 << 24, 30)
        sender.join()
        assert same(back, value)
        wire.send(right, 1)
        assert wire.recv(left, 1 << 10, 30) == 1


def test_a_socket_that_says_too_little_too_much_or_nothing():
    left, right = socket.socketpair()
    with right:
        with left:
            with pytest.raises(TimeoutError):
                wire.recv(right, 1 << 10, 0.05)
            left.sendall(SAMPLE[:30])
            with pytest.raises(TimeoutError):
                wire.recv(right, 1 << 20, 0.05)
        with pytest.raises(EOFError):
            wire.recv(right, 1 << 10, 5)
    left, right = socket.socketpair()
    with left, right:
        left.sendall(frame([1], payload=2**40))
        with pytest.raises(wire.WireError, match="longer than 1024 bytes"):
            wire.recv(right, 1024, 5)


def sent_and_received(sent: bytes) -> tuple[int, bytearray]:
    """What arrives of a large frame that is sent with the number 7."""
    left, right = socket.socketpair()
    with left, right:
        sender = threading.Thread(target=wire.send_numbered, args=(left, 7, sent))
        sender.start()
        received = wire.recv_numbered(right, 1 << 24, 30)
        sender.join()
    return received


def test_a_numbered_frame_arrives_as_it_was_encoded():
    sent = wire.encode({"x": torch.arange(50_000)})
    number, frame = sent_and_received(sent)
    assert (number, bytes(frame)) == (7, sent)


def test_a_numbered_frame_may_come_in_pieces():
    sent = wire.encode([1, 2])
    left, right = socket.socketpair()
    with left, right:

        def trickle():
            other, end = socket.socketpair()
            with other, end:
                wire.send_numbered(other, 2**32 - 1, sent)
                for octet in end.recv(1 << 16):
                    left.sendall(bytes([octet]))

        sender = threading.Thread(target=trickle)
        sender.start()
        assert wire.recv_numbered(right, 1 << 10, 30) == (2**32 - 1, bytearray(sent))
        sender.join()


@pytest.mark.parametrize(
    "octets",
    [
        SAMPLE,  # without a number
        b"rubbish" * 10,
        wire.NUMBERED_PREFIX.pack(wire.NUMBERED, 1, 2**32 - 1, 0),
        wire.NUMBERED_PREFIX.pack(wire.NUMBERED, 1, 10, 2**63),
        wire.NUMBERED_PREFIX.pack(wire.NUMBERED, 1, 1, 0) + b"1 and more",
    ],
)
def test_anything_but_one_numbered_frame_is_refused_at_once(octets):
    left, right = socket.socketpair()
    with left, right:
        left.sendall(octets)
        with pytest.raises(wire.WireError):
            wire.recv_numbered(right, 1 << 20, 30, bounds=wire.ANSWER)


def test_a_numbered_frame_that_does_not_come_is_waited_for_no_longer_than_allowed():
    left, right = socket.socketpair()
    with right:
        with left:
            with pytest.raises(TimeoutError):
                wire.recv_numbered(right, 1 << 10, 0.05)
            left.sendall(wire.NUMBERED_PREFIX.pack(wire.NUMBERED, 1, 100, 0))
            with pytest.raises(TimeoutError):
                wire.recv_numbered(right, 1 << 10, 0.05)
        with pytest.raises(EOFError):
            wire.recv_numbered(right, 1 << 10, 5)


# ---------------------------------------------------------------------------------- requests


def described(value):
    """All that can be told of a value, tensors by their layout and bits."""
    if isinstance(value, torch.Tensor):
        return (
            type(value),
            (value.dtype, tuple(value.shape), value.stride()),
            (value.requires_grad, value.is_leaf),
            value.detach().reshape(-1).contiguous().view(torch.uint8).tolist(),
        )
    if isinstance(value, (list, tuple)):
        return type(value), [described(item) for item in value]
    if isinstance(value, dict):
        return dict, [(key, described(item)) for key, item in value.items()]
    return type(value), repr(value)  # which tells 0.0 from -0.0 and takes NaN for equal to itself


def arrived(request):
    return wire.decode(wire.encode(request, strides=True), strides=True)


ODD_TENSORS = {
    **{f"layout {place}": (lambda x, make=make: make(x)) for place, make in enumerate(LAYOUTS)},
    "overlapping": lambda x: x.flatten().unfold(0, 3, 1),
    "a row of a column": lambda x: x[:, :1, :1],
    "one number": lambda x: x[0, 0, 0],
    "empty": lambda x: x[:, :, :0],
    "empty in front": lambda x: x[:0],
    "empty and transposed": lambda x: x[:, :0].transpose(0, 2),
    "no dimension for long": lambda x: x.reshape(1, 48, 1)[:, ::5].expand(2, 10, 3),
    "many dimensions": lambda x: x.reshape([1] * 13 + [2, 4, 6]),
    "a leaf": lambda x: x.clone().requires_grad_(),
    "a leaf with strides": lambda x: x.clone().mT.detach().requires_grad_(),
    "a result": lambda x: x.clone().requires_grad_() * 2,
    "a parameter": lambda x: torch.nn.Parameter(x.clone()),
    "a frozen parameter": lambda x: torch.nn.Parameter(x.clone().mT, requires_grad=False),
    "a conjugate": lambda x: torch.complex(x, x).conj(),
    "a negation": lambda x: torch.complex(x, x).conj().imag,
    "not finite": lambda x: x / 0,
}


@pytest.mark.parametrize("make", ODD_TENSORS.values(), ids=ODD_TENSORS)
def test_a_tensor_in_a_request_keeps_its_values_and_flags(make):
    value = make(torch.arange(48.0).reshape(2, 4, 6) - 1)
    back = arrived({"args": [value, torch.ones(3)]})["args"][0]
    torch.testing.assert_close(back.detach(), value.detach(), rtol=0, atol=0, equal_nan=True)
    assert (type(back), back.requires_grad) == (type(value), value.requires_grad)
    assert back.is_leaf


@pytest.mark.parametrize("name", sorted(wire.DTYPES))
def test_every_dtype_keeps_its_bits_in_a_request(name):
    values = torch.tensor([[0.0, 1.5, 100.0], [3.25, 1.0, 2.0]]).to(wire.DTYPES[name])
    if values.dtype.is_floating_point:
        values[0, 1], values[1, 2] = math.nan, -math.inf
    request = [torch.ones(1, dtype=torch.bool), values, values.mT, values[:, :1].expand(2, 5)]
    back = arrived(request)
    assert described(back) == described(request)
    assert all(item.data_ptr() % item.element_size() == 0 for item in back)


def test_tensors_of_a_request_share_nothing_with_the_frame_or_each_other():
    zeros = [torch.zeros(3), torch.zeros(2, 2).T, torch.zeros(0), torch.zeros(5).to(torch.int8)]
    frame = bytearray(wire.encode(zeros, strides=True))
    first, again = wire.decode(frame, strides=True), wire.decode(frame, strides=True)
    frame[-33:] = b"\xff" * 33
    frame.clear()  # which bytes in use would not allow
    for place, tensor in enumerate(first, 1):
        tensor.fill_(place)
    assert [set(tensor.flatten().tolist()) for tensor in first] == [{1}, {2}, set(), {4}]
    assert all(not tensor.any() for tensor in again)


def test_where_a_student_makes_tensors_does_not_matter_to_a_request():
    frame = wire.encode([torch.ones(3), torch.eye(2).expand(2, 2, 2)], strides=True)
    with torch.device("meta"):
        back = wire.decode(frame, strides=True)
    assert back[0].tolist() == [1, 1, 1]
    assert back[1].tolist() == [[[1, 0], [0, 1]]] * 2


@pytest.mark.parametrize(
    "value", [torch.zeros(1).expand(10**6, 10**6), torch.zeros(2000), "x" * 5000, [0] * 5000]
)
def test_a_request_that_is_too_large_is_refused(value):
    with pytest.raises(wire.WireError, match="larger than 4096 bytes"):
        wire.encode(value, limit=4096, strides=True)


def test_nothing_is_unpickled():
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        names |= {node.name for node in ast.walk(tree) if isinstance(node, ast.alias)}
        assert "pickle" not in names, path


def test_a_numbered_request_arrives_as_it_was_encoded():
    sent = wire.encode({"do": "execute", "request": {"x": torch.arange(50_000)}}, strides=True)
    number, frame = sent_and_received(sent)
    assert (number, bytes(frame)) == (7, sent)
    read = wire.decode(frame, strides=True)
    assert torch.equal(read["request"]["x"], torch.arange(50_000))
