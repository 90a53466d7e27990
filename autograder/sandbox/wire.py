"""The small strict format in which values cross the border between trusted and student code.

A frame is a magic word, the length of a JSON header (u32), the length of the payload (u64), the
header, and the payload: raw bytes of tensors and long strings, one after the other in the order
in which the header names them. There are no offsets to lie about, nothing is ever executed to
read a frame, and every count is bounded before memory is taken for it.

Values: None, bool, int (64 bits), float (nan and infinities included), str, list, tuple, dict
with str keys, torch.Tensor and torch.nn.Parameter. Any other thing travels as `Foreign`: the name
of its type and the beginning of its repr, enough to tell a student what came back.

This file is copied into the sandbox: it imports PyTorch and the standard library only.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import math
import struct
import time
from dataclasses import dataclass
from typing import Any, Protocol

import torch

MAGIC = b"TbHwire1"
PREFIX = struct.Struct("<8sIQ")
# A frame that belongs to an exchange has the exchange's number in the place of half the magic word.
NUMBERED = b"TbHn"
NUMBERED_PREFIX = struct.Struct("<4sIIQ")
AT_ONCE = 1 << 16
INLINE_STRING = 256  # longer strings go to the payload
TYPE_CHARACTERS = 100
REPR_CHARACTERS = 200
MAX_DIMENSIONS = 16
DEFAULT_LIMIT = 1 << 30

DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
    )
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_SIZES = {name: torch.empty((), dtype=dtype).element_size() for name, dtype in DTYPES.items()}
_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_INT_LOW, _INT_HIGH = -(1 << 63), (1 << 64) - 1


class WireError(Exception):
    """A value cannot be sent, or the bytes that came are not a valid frame; says why."""


@dataclass(frozen=True)
class Foreign:
    """What stands for a value that is neither number, text, container nor tensor."""

    type_name: str
    repr: str

    def __str__(self) -> str:
        return f"{self.type_name}: {self.repr}"


@dataclass(frozen=True)
class Bounds:
    """The most that one frame may hold, apart from its total length in bytes."""

    header_bytes: int = 64 << 20
    nodes: int = 2_000_000
    depth: int = 64
    string_characters: int = 8 << 20
    tensors: int = 200_000


FILE = Bounds()
ANSWER = Bounds(
    header_bytes=4 << 20, nodes=200_000, depth=32, string_characters=2 << 20, tensors=10_000
)


# ---------------------------------------------------------------------------------- encoding


class Line(Protocol):
    """What messages travel over: a socket, or something that waits in a way of its own."""

    def gettimeout(self) -> float | None: ...
    def settimeout(self, value: float | None, /) -> None: ...
    def recv(self, count: int, /) -> bytes: ...
    def recv_into(self, view: memoryview, /) -> int: ...
    def sendall(self, data: Any, /) -> None: ...


class _Encoder:
    """Writes the header's JSON in one go, and collects the payload."""

    def __init__(self, limit: int, strides: bool, bounds: Bounds) -> None:
        self.limit = limit
        self.strides = strides
        self.bounds = bounds
        self.nodes = 1
        self.tensors = 0
        self.size = 0
        self.parts: list[bytes] = []

    def reserve(self, count: int) -> None:
        self.size += count
        if self.size > self.limit:
            raise WireError(f"the value is larger than {self.limit} bytes")

    def enter(self, count: int, depth: int) -> None:
        """Take note of the parts of a container, at this depth."""
        self.nodes += count
        if self.nodes > self.bounds.nodes:
            raise WireError(f"the value has more than {self.bounds.nodes} parts")
        if count and depth > self.bounds.depth:
            raise WireError(f"the value is nested more than {self.bounds.depth} levels deep")

    def node(self, value: Any, depth: int) -> str:
        # What outcomes are made of comes first, by its exact type: most values are that.
        kind = type(value)
        if kind is str:
            if len(value) <= INLINE_STRING and value.isascii():
                return _quoted(value)
            return self.text(value)
        if kind is torch.Tensor:
            return self.tensor(value)
        if kind is list:
            return self.of_list(value, depth) if value else "[]"
        if kind is dict:
            return self.of_dict(value, depth) if value else '{"d":{}}'
        if kind is tuple:
            return f'{{"t":{self.of_list(value, depth)}}}'
        if value is None:
            return "null"
        if value is True:
            return "true"
        if value is False:
            return "false"
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, str):
            return self.text(str.__str__(value))
        if isinstance(value, int):
            number = int(value)
            return int.__repr__(number) if _INT_LOW <= number <= _INT_HIGH else self.foreign(value)
        if isinstance(value, float):
            real = float(value)
            if math.isfinite(real):
                return float.__repr__(real)
            return '{"f":"nan"}' if real != real else _INFINITE[real > 0]
        if isinstance(value, (list, tuple)):
            # What is derived from them may yield more than it says, without end even.
            items = self.of_list(list(itertools.islice(value, self.bounds.nodes)), depth)
            return items if isinstance(value, list) else f'{{"t":{items}}}'
        if isinstance(value, dict):
            return self.odd_dict(value, depth + 1)
        return self.foreign(value)

    def of_list(self, value: list[Any] | tuple[Any, ...], depth: int) -> str:
        depth += 1
        self.enter(len(value), depth)
        return f"[{','.join([self.node(item, depth) for item in value])}]"

    def of_dict(self, value: dict[Any, Any], depth: int) -> str:
        depth += 1
        for key in value:
            if type(key) is not str or not key.isascii():
                return self.odd_dict(value, depth)
        self.enter(len(value), depth)
        pairs = [f"{_quoted(key)}:{self.node(item, depth)}" for key, item in value.items()]
        return f'{{"d":{{{",".join(pairs)}}}}}'

    def odd_dict(self, value: dict[Any, Any], depth: int) -> str:
        """Also what is derived from a dict, and keys that are no text or equal once tidied."""
        if not all(isinstance(key, str) for key in value):
            return self.foreign(value)
        parts: dict[str, str] = {}
        for key, item in value.items():
            self.enter(1, depth)
            parts[_tidy(key)] = self.node(item, depth)
        pairs = [f"{_quoted(key)}:{part}" for key, part in parts.items()]
        return f'{{"d":{{{",".join(pairs)}}}}}'

    def text(self, value: str) -> str:
        if len(value) > self.bounds.string_characters:
            raise WireError(f"a text is longer than {self.bounds.string_characters} characters")
        value = _tidy(value)
        if len(value) <= INLINE_STRING:
            return _quoted(value)
        data = value.encode("utf-8")
        self.reserve(len(data))
        self.parts.append(data)
        return f'{{"s":{len(data)}}}'

    def foreign(self, value: Any) -> str:
        if isinstance(value, Foreign):
            kind, text = value.type_name, value.repr
        else:
            kind, text = type(value).__name__, _safe_repr(value)
        kind, text = _tidy(kind)[:TYPE_CHARACTERS], _tidy(text)[:REPR_CHARACTERS]
        return f'{{"o":[{_quoted(kind)},{_quoted(text)}]}}'

    def tensor(self, value: torch.Tensor) -> str:
        name = _NAMES.get(value.dtype)
        if name is None or value.layout is not torch.strided:
            described = f"a tensor of dtype {value.dtype} and layout {value.layout}"
            return self.foreign(Foreign(type(value).__name__, described))
        shape = value.shape
        if value.is_meta or len(shape) > MAX_DIMENSIONS:
            described = f"a tensor on {value.device} with {value.dim()} dimensions"
            return self.foreign(Foreign(type(value).__name__, described))
        self.tensors += 1
        if self.tensors > self.bounds.tensors:
            raise WireError(f"the value has more than {self.bounds.tensors} tensors")
        # Checked before anything is copied: an expanded tensor can be far larger than its memory.
        nbytes = value.numel() * _SIZES[name]
        if nbytes > self.limit:
            raise WireError(f"a tensor is larger than {self.limit} bytes")
        plain, flags = value, "false,false"
        if value.requires_grad or type(value) is not torch.Tensor:
            plain = value.detach()
            if type(plain) is not torch.Tensor:
                plain = plain.as_subclass(torch.Tensor)
            flag = "true" if value.requires_grad else "false"
            flags = f"{flag},{'true' if isinstance(value, torch.nn.Parameter) else 'false'}"
        if not plain.is_cpu or plain.is_conj() or plain.is_neg():
            plain = plain.cpu().resolve_conj().resolve_neg()
        strides = "null"
        if not plain.is_contiguous():
            if self.strides:
                plain, steps = _laid_out(plain, self.limit)
                nbytes = plain.numel() * _SIZES[name]
                if steps is not None:
                    strides = f"[{_COMMAS[len(steps)] % steps}]"
            else:
                plain = plain.contiguous()
        self.reserve(nbytes)
        if nbytes:
            self.parts.append(ctypes.string_at(plain.data_ptr(), nbytes))
        return f'{{"x":["{name}",[{_COMMAS[len(shape)] % shape}],{strides},{flags}]}}'


# Templates for so many numbers.
_COMMAS = [",".join(["%d"] * count) for count in range(MAX_DIMENSIONS + 1)]
# The text of a string in JSON, pure ASCII.
_quoted = json.encoder.encode_basestring_ascii
_INFINITE = {True: '{"f":"inf"}', False: '{"f":"-inf"}'}


def _laid_out(tensor: torch.Tensor, limit: int) -> tuple[torch.Tensor, tuple[int, ...] | None]:
    """The memory of a non-contiguous tensor, gaps zeroed so that they tell nothing, and strides."""
    if tensor.numel() == 0:
        return tensor.contiguous(), None
    steps = tensor.stride()
    span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, steps, strict=True))
    if span * tensor.element_size() > limit:
        return tensor.contiguous(), None
    stored = torch.zeros(span, dtype=tensor.dtype)
    one = tuple(
        slice(0, 1) if step == 0 else slice(None) for step in steps
    )  # an expanded axis is stored once
    source = tensor[one]
    try:
        stored.as_strided(source.shape, steps).copy_(source)
    except RuntimeError:  # elements that overlap otherwise, as unfold makes them
        return tensor.contiguous(), None
    return stored, steps


def _tidy(text: str) -> str:
    """Text that UTF-8 can carry: what Python allows beyond that becomes a replacement mark."""
    if text.isascii():
        return str.__str__(text)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _safe_repr(value: Any) -> str:
    try:
        text = repr(value)
        return text[:REPR_CHARACTERS] if isinstance(text, str) else "(no repr)"
    except (Exception, SystemExit, GeneratorExit):
        return "(its repr fails)"


def encode(
    obj: Any, *, limit: int = DEFAULT_LIMIT, strides: bool = False, bounds: Bounds = FILE
) -> bytes:
    """One frame holding `obj`.

    With `strides`, a non-contiguous or expanded tensor arrives as such; otherwise tensors are
    sent contiguous.

    Raises:
        WireError: the value is too large, too deep, or has too many parts.
    """
    encoder = _Encoder(limit, strides, bounds)
    try:
        data = encoder.node(obj, 0).encode("ascii")
    except RecursionError:
        raise WireError("the value is nested too deeply") from None
    if len(data) > bounds.header_bytes:
        raise WireError(f"the value has more structure than {bounds.header_bytes} bytes can hold")
    if PREFIX.size + len(data) + encoder.size > limit:
        raise WireError(f"the value is larger than {limit} bytes")
    return b"".join((PREFIX.pack(MAGIC, len(data), encoder.size), data, *encoder.parts))


# ---------------------------------------------------------------------------------- decoding


def _no_constant(name: str) -> Any:
    raise WireError(f"the header holds {name}, which is not JSON")


# An object of JSON becomes the tuple of its pairs, so that a key that stands twice can be refused.
_JSON = json.JSONDecoder(object_pairs_hook=tuple, parse_constant=_no_constant)


class _Decoder:
    def __init__(
        self, frame: bytearray, start: int, limit: int, strides: bool, bounds: Bounds
    ) -> None:
        self.frame = frame
        self.start = start  # of the payload
        self.size = len(frame) - start
        self.held: Any = None  # what keeps the frame at its place in memory, once that is needed
        self.limit = limit
        self.strides = strides
        self.bounds = bounds
        self.cursor = 0
        self.nodes = 1
        self.tensors = 0

    def take(self, count: int) -> int:
        """Where in the frame the next `count` bytes of the payload begin."""
        start, end = self.cursor, self.cursor + count
        if end > self.size:
            raise WireError("the header names more bytes than the payload has")
        self.cursor = end
        return self.start + start

    def enter(self, count: int, depth: int) -> None:
        """Take note of the parts of a container, at this depth."""
        self.nodes += count
        if self.nodes > self.bounds.nodes:
            raise WireError(f"the frame has more than {self.bounds.nodes} parts")
        if count and depth > self.bounds.depth:
            raise WireError(f"the frame is nested more than {self.bounds.depth} levels deep")

    def node(self, raw: Any, depth: int) -> Any:
        kind = type(raw)
        if kind is tuple:
            if len(raw) != 1:
                raise WireError("an object of the header has not exactly one key")
            tag, body = raw[0]
            reader = _READERS.get(tag)
            if reader is None:
                raise WireError("the header names an unknown kind of value")
            return reader(self, body, depth)
        if kind is str:
            if len(raw) > INLINE_STRING:
                raise WireError("a long text stands in the header")
            return raw if raw.isascii() else _checked(raw)
        if kind is int:
            if not _INT_LOW <= raw <= _INT_HIGH:
                raise WireError("an integer does not fit in 64 bits")
            return raw
        if kind is list:
            return self.list(raw, depth)
        if kind is float and not math.isfinite(raw):
            raise WireError("a number overflows a float")
        return raw  # a float, a truth value or None

    def list(self, body: list[Any], depth: int) -> list[Any]:
        depth += 1
        self.enter(len(body), depth)
        return [self.node(item, depth) for item in body]

    def special(self, body: Any, depth: int) -> float:
        if type(body) is not str or body not in _SPECIAL:
            raise WireError("a special number is neither nan nor infinite")
        return _SPECIAL[body]

    def long_text(self, body: Any, depth: int) -> str:
        if type(body) is not int or body < 0:
            raise WireError("the length of a text is not a length")
        if body > 4 * self.bounds.string_characters:
            raise WireError("a text is too long")
        start = self.take(body)
        try:
            text = str(memoryview(self.frame)[start : start + body], "utf-8")
        except UnicodeDecodeError:
            raise WireError("a text is not UTF-8") from None
        if len(text) > self.bounds.string_characters:
            raise WireError("a text is too long")
        return text

    def tuple(self, body: Any, depth: int) -> tuple[Any, ...]:
        if type(body) is not list:
            raise WireError("a tuple is not a list of values")
        return tuple(self.list(body, depth))

    def dict(self, body: Any, depth: int) -> dict[str, Any]:
        if type(body) is not tuple:
            raise WireError("a dict is not an object")
        depth += 1
        self.enter(len(body), depth)
        result: dict[str, Any] = {}
        for key, item in body:
            if not key.isascii():
                _checked(key)
            if key in result:
                raise WireError("a key stands twice in one dict")
            result[key] = None if item is None else self.node(item, depth)
        return result

    def foreign(self, body: Any, depth: int) -> Foreign:
        if type(body) is not list or len(body) != 2 or any(type(item) is not str for item in body):
            raise WireError("a foreign value is not described by two texts")
        if len(body[0]) > TYPE_CHARACTERS or len(body[1]) > REPR_CHARACTERS:
            raise WireError("the description of a foreign value is too long")
        return Foreign(_checked(body[0]), _checked(body[1]))

    def tensor(self, body: Any, depth: int) -> torch.Tensor:
        self.tensors += 1
        if self.tensors > self.bounds.tensors:
            raise WireError(f"the frame has more than {self.bounds.tensors} tensors")
        if type(body) is not list or len(body) != 5:
            raise WireError("a tensor is not described by five fields")
        name, shape, steps, requires_grad, parameter = body
        if type(name) is not str or name not in DTYPES:
            raise WireError("a tensor has an unknown dtype")
        if type(requires_grad) is not bool or type(parameter) is not bool:
            raise WireError("a flag of a tensor is not a bool")
        dtype, itemsize = DTYPES[name], _SIZES[name]
        if requires_grad and not (dtype.is_floating_point or dtype.is_complex):
            raise WireError("a tensor of integers asks for a gradient")
        stored = count = self.elements(shape, itemsize)
        if steps is not None:
            if not self.strides:
                raise WireError("a tensor has strides where none are allowed")
            _check_naturals(steps, "strides")
            if len(steps) != len(shape) or count == 0:
                raise WireError("the strides of a tensor do not fit its shape")
            stored = 1 + sum((size - 1) * step for size, step in zip(shape, steps, strict=True))
        octets = stored * itemsize
        start = self.take(octets)
        if dtype is torch.bool and self.frame[start : start + octets].translate(None, b"\0\1"):
            raise WireError("a bool is neither 0 nor 1")
        # Memory of the tensor's own, aligned, and of which nobody else holds a view.
        size = shape if steps is None else stored
        result = torch.empty(size, dtype=dtype, device="cpu")  # whatever the student's default is
        if octets:
            if self.held is None:
                self.held = ctypes.c_char.from_buffer(self.frame)
            ctypes.memmove(result.data_ptr(), ctypes.addressof(self.held) + start, octets)
        if steps is not None:
            result = result.as_strided(shape, steps)
        if parameter:
            return torch.nn.Parameter(result, requires_grad=requires_grad)
        return result.requires_grad_() if requires_grad else result

    def elements(self, sizes: Any, itemsize: int) -> int:
        """The product of the sizes, refused as soon as it exceeds what may be allocated."""
        _check_naturals(sizes, "shape")
        bound = max(1, self.limit // itemsize)
        product = 1
        for size in sizes:
            # Sizes beside a zero are bounded too: torch computes with them.
            product *= size or 1
            if product > bound:
                raise WireError("a tensor is larger than the frame may be")
        return 0 if 0 in sizes else product


_READERS = {
    "x": _Decoder.tensor,
    "t": _Decoder.tuple,
    "d": _Decoder.dict,
    "s": _Decoder.long_text,
    "f": _Decoder.special,
    "o": _Decoder.foreign,
}


def _check_naturals(raw: Any, what: str) -> None:
    if type(raw) is not list or len(raw) > MAX_DIMENSIONS:
        raise WireError(f"the {what} of a tensor is not a short list")
    for size in raw:
        if type(size) is not int or not 0 <= size < 1 << 40:
            raise WireError(f"the {what} of a tensor holds something other than a size")


def _checked(text: str) -> str:
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise WireError("a text holds half of a character") from None
    return text


def _lengths(prefix: bytes | bytearray | memoryview, limit: int, bounds: Bounds) -> tuple[int, int]:
    magic, header, payload = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise WireError("the bytes do not begin as a frame does")
    if header > bounds.header_bytes:
        raise WireError(f"the header is longer than {bounds.header_bytes} bytes")
    if PREFIX.size + header + payload > limit:
        raise WireError(f"the frame is longer than {limit} bytes")
    return header, payload


def decode(
    data: bytes | bytearray | memoryview,
    *,
    limit: int = DEFAULT_LIMIT,
    strides: bool = False,
    bounds: Bounds = FILE,
) -> Any:
    """The value in one frame. Tensors own their memory and alias nothing.

    With `strides`, tensors may come non-contiguous or expanded; refused otherwise, because a
    few bytes could then stand for a tensor of any size.

    Raises:
        WireError: the bytes are not exactly one valid frame, or exceed `limit` or `bounds`.
    """
    if len(data) < PREFIX.size:
        raise WireError("the frame ends before its header")
    if len(data) > limit:
        raise WireError(f"the frame is longer than {limit} bytes")
    # Memory has an address for ctypes only where it may be written: bytes are copied for that.
    frame = data if isinstance(data, bytearray) else bytearray(data)
    header, payload = _lengths(frame[: PREFIX.size], limit, bounds)
    if len(frame) != PREFIX.size + header + payload:
        raise WireError("the frame is not as long as it says")
    end = PREFIX.size + header
    try:
        text = frame[PREFIX.size : end].decode("ascii")
        root, read = _JSON.scan_once(text, 0)  # type: ignore[attr-defined]
    except (ValueError, StopIteration, RecursionError):
        raise WireError("the header is not JSON") from None
    if read != header:
        raise WireError("the header is not JSON")
    decoder = _Decoder(frame, end, limit, strides, bounds)
    value = decoder.node(root, 0)
    if decoder.cursor != payload:
        raise WireError("the payload has bytes that the header does not name")
    return value


# ---------------------------------------------------------------------------------- sockets


def send(
    sock: Line,
    obj: Any,
    *,
    limit: int = DEFAULT_LIMIT,
    timeout: float | None = None,
    strides: bool = False,
    bounds: Bounds = FILE,
) -> None:
    """Send one frame.

    Raises:
        WireError: see `encode`; nothing was sent then.
        TimeoutError: the other side did not take it within `timeout` seconds.
        OSError: the other side is gone.
    """
    data = encode(obj, limit=limit, strides=strides, bounds=bounds)
    send_bytes(sock, data, timeout=timeout)


def send_bytes(sock: Line, data: bytes, *, timeout: float | None = None) -> None:
    """Send a frame that `encode` made; errors as for `send`."""
    sock.settimeout(timeout)
    sock.sendall(data)


def recv(
    sock: Line,
    limit: int = DEFAULT_LIMIT,
    timeout: float | None = None,
    *,
    strides: bool = False,
    bounds: Bounds = FILE,
) -> Any:
    """Receive one frame and decode it.

    Raises:
        WireError: what came is not a valid frame.
        TimeoutError: it was not complete within `timeout` seconds.
        EOFError: the other side closed the connection.
        OSError: the connection broke.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    prefix = bytearray(PREFIX.size)
    _fill(sock, memoryview(prefix), deadline)
    header, payload = _lengths(prefix, limit, bounds)
    frame = bytearray(PREFIX.size + header + payload)
    frame[: PREFIX.size] = prefix
    _fill(sock, memoryview(frame)[PREFIX.size :], deadline)
    return decode(frame, limit=limit, strides=strides, bounds=bounds)


def send_numbered(
    sock: Line, number: int, frame: bytes | bytearray, *, timeout: float | None = None
) -> None:
    """Send a frame that `encode` made, with the number of its exchange; errors as for `send`."""
    _, header, payload = PREFIX.unpack_from(frame)
    prefix = NUMBERED_PREFIX.pack(NUMBERED, number, header, payload)
    _limit(sock, timeout)
    sock.sendall(prefix + memoryview(frame)[PREFIX.size :])


def recv_numbered(
    sock: Line,
    limit: int = DEFAULT_LIMIT,
    timeout: float | None = None,
    *,
    bounds: Bounds = FILE,
) -> tuple[int, bytearray]:
    """Receive a number and the frame that belongs to it, which `decode` has still to read.

    Nothing may follow: who sends numbered frames waits for the answer to each.

    Raises:
        WireError: what came does not begin as a frame does, is too long, or has bytes behind it.
        TimeoutError, EOFError, OSError: as for `recv`.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    _limit(sock, timeout)
    data = bytearray(sock.recv(AT_ONCE))
    if not data:
        raise EOFError("the connection was closed")
    have = len(data)
    if have < PREFIX.size:
        data.extend(bytes(PREFIX.size - have))
        _fill(sock, memoryview(data)[have:], deadline)
        have = PREFIX.size
    word, number, header, payload = NUMBERED_PREFIX.unpack_from(data)
    if word != NUMBERED:
        raise WireError("the bytes do not begin as an answer does")
    data[: PREFIX.size] = PREFIX.pack(MAGIC, header, payload)
    _lengths(data[: PREFIX.size], limit, bounds)
    size = PREFIX.size + header + payload
    if have > size:
        raise WireError("more came than one frame")
    if have < size:
        data.extend(bytes(size - have))
        _fill(sock, memoryview(data)[have:], deadline)
    return number, data


def _limit(sock: Line, timeout: float | None) -> None:
    """Set a socket's time limit; to set the one that it has would ask the kernel for nothing."""
    if sock.gettimeout() != timeout:
        sock.settimeout(timeout)


def _fill(sock: Line, view: memoryview, deadline: float | None) -> None:
    while len(view):
        if deadline is None:
            sock.settimeout(None)
        else:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("no complete frame came in time")
            sock.settimeout(left)
        count = sock.recv_into(view)
        if count == 0:
            raise EOFError("the connection was closed")
        view = view[count:]
