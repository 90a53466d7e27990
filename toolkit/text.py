"""Text to train language models on, without a download: Python's own library.

    text = library_text(limit=1_000_000)
    parts = splits(text)
    characters = Characters.of(parts.train)
    train = blocks(characters.encode(parts.train), 128, 32, torch.Generator().manual_seed(0))
    inputs, targets = next(train)

Every reader has the standard library of the Python that runs the course. The text is the same every
time with the same Python; another version of Python has a slightly different library.
"""

from __future__ import annotations

import ast
import functools
import sysconfig
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

# Modules with much prose in every supported version of Python, in the order of their names.
MODULES = (
    "_pydecimal", "_pyio", "abc", "argparse", "ast", "asyncio.base_events", "asyncio.locks",
    "asyncio.queues", "asyncio.streams", "asyncio.tasks", "base64", "bdb", "bisect", "calendar",
    "cmd", "codecs", "collections", "concurrent.futures._base", "concurrent.futures.process",
    "configparser", "contextlib", "copy", "csv", "dataclasses", "datetime", "difflib", "dis",
    "doctest", "email.header", "email.message", "enum", "fileinput", "fractions", "ftplib",
    "functools", "getopt", "getpass", "gettext", "glob", "gzip", "hashlib", "heapq", "hmac",
    "html.parser", "http.client", "http.cookies", "http.server", "imaplib", "importlib.abc",
    "inspect", "io", "ipaddress", "json", "json.decoder", "json.encoder", "keyword", "linecache",
    "locale", "logging", "logging.config", "logging.handlers", "lzma", "mailbox", "mimetypes",
    "multiprocessing.managers", "multiprocessing.pool", "numbers", "opcode", "operator", "os",
    "pathlib", "pdb", "pickle", "pickletools", "pkgutil", "platform", "plistlib", "poplib",
    "posixpath", "pprint", "profile", "pstats", "pydoc", "queue", "quopri", "random", "reprlib",
    "sched", "secrets", "selectors", "shelve", "shlex", "shutil", "signal", "smtplib", "socket",
    "socketserver", "ssl", "stat", "statistics", "string", "stringprep", "struct", "subprocess",
    "sysconfig", "tarfile", "tempfile", "textwrap", "threading", "timeit", "token", "tokenize",
    "trace", "traceback", "tracemalloc", "turtle", "types", "typing", "unittest.case",
    "unittest.mock", "urllib.parse", "urllib.request", "urllib.robotparser", "uuid", "warnings",
    "wave", "weakref", "webbrowser", "wsgiref.handlers", "xml.dom.minidom", "xml.etree.ElementTree",
    "xmlrpc.client", "zipapp", "zipfile",
)  # fmt: skip


@dataclass(frozen=True)
class Splits:
    """Three texts which, put together in this order, are the whole."""

    train: str
    validation: str
    test: str


# --------------------------------------------------------------------------- the text


def library_documents(
    modules: Sequence[str] | None = None, *, part: str = "docstrings"
) -> list[tuple[str, str]]:
    """Names and texts of modules of the standard library.

    Args:
        modules: such as "json.decoder", in the order wanted; None for `MODULES`, leaving out those
            that this Python does not have.
        part: "docstrings" for what is written for people, "sources" for the whole files.

    Raises:
        ValueError: a module that the library does not have as Python source, or another part.
    """
    return [(name, _read(path, part)) for name, path in _sources(modules, part)]


def library_text(
    modules: Sequence[str] | None = None, *, limit: int | None = None, part: str = "docstrings"
) -> str:
    """Text of the standard library: English prose with code in it.

    Args:
        modules, part: as `library_documents`.
        limit: how many characters at most, from the beginning.

    Returns:
        The texts of the modules in their order, an empty line between two.

    Raises:
        ValueError: as `library_documents`, or a limit below 1.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be 1 or more, not {limit}")
    texts: list[str] = []
    for _, path in _sources(modules, part):
        text = _read(path, part)
        if text:
            texts.append(text)
        if limit is not None and sum(map(len, texts)) >= limit:
            break  # the rest need not be read
    return "\n".join(texts)[:limit]


def _sources(modules: Sequence[str] | None, part: str) -> list[tuple[str, Path]]:
    """The files of the modules."""
    if part not in ("docstrings", "sources"):
        raise ValueError(f'part must be "docstrings" or "sources", not {part!r}')
    sources = []
    for name in MODULES if modules is None else modules:
        path = _source(name)
        if path is not None:
            sources.append((name, path))
        elif modules is not None:
            raise ValueError(
                f"the standard library has no Python source of {name!r} here; give names such as "
                "'json.decoder', or None for the default list"
            )
    if not sources:
        raise ValueError("no source of the standard library is installed here, or no module named")
    return sources


def _source(name: str) -> Path | None:
    if not all(part.isidentifier() for part in name.split(".")):
        return None
    base = Path(sysconfig.get_path("stdlib")).joinpath(*name.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


@functools.cache
def _read(path: Path, part: str) -> str:
    with tokenize.open(path) as file:  # in the encoding that the file declares
        source = file.read()
    if part == "sources":
        return source
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        (getattr(node, "lineno", 0), ast.get_docstring(node))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, kinds)
    ]
    found.sort(key=lambda item: item[0])  # in the order of the file
    return "".join(f"{text.strip()}\n\n" for _, text in found if text and text.strip())


def splits(text: str, shares: tuple[float, float, float] = (0.9, 0.05, 0.05)) -> Splits:
    """The text in three pieces, cut at the ends of lines where possible.

    Raises:
        ValueError: shares that are not three numbers from 0 on with the sum 1, or no text.
    """
    if len(shares) != 3 or min(shares) < 0 or abs(sum(shares) - 1) > 1e-9:
        raise ValueError(f"shares must be three numbers from 0 on with the sum 1, not {shares}")
    if not text:
        raise ValueError("there is no text to split")

    def cut(share: float) -> int:
        place = round(len(text) * share)
        end = text.find("\n", place)
        return place if end < 0 or end - place > 200 or place == 0 else end + 1

    first = cut(shares[0])
    second = max(first, cut(shares[0] + shares[1]))
    return Splits(text[:first], text[first:second], text[second:])


# --------------------------------------------------------------------------- ids


class Characters:
    """A vocabulary of characters.

    Attributes:
        symbols: id to character, in the order of code points.
    """

    def __init__(self, symbols: Iterable[str]) -> None:
        """Raises ValueError if there are none, or one is not a single character."""
        self.symbols = sorted(set(symbols))
        if not self.symbols or any(len(symbol) != 1 for symbol in self.symbols):
            raise ValueError("a vocabulary of characters needs single characters")
        self._ids = {symbol: i for i, symbol in enumerate(self.symbols)}

    @classmethod
    def of(cls, text: str) -> Characters:
        """The characters of a text."""
        return cls(text)

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, text: str, *, skip_unknown: bool = False) -> Tensor:
        """The ids of a text (T,) int64.

        Args:
            skip_unknown: leave out characters that are not in the vocabulary.

        Raises:
            ValueError: a character that is not in the vocabulary.
        """
        if not skip_unknown:
            unknown = set(text) - self._ids.keys()
            if unknown:
                raise ValueError(
                    f"{min(unknown)!r} is not in this vocabulary of {len(self)} characters; encode "
                    "with skip_unknown=True to leave it out"
                )
        ids = [self._ids[letter] for letter in text if letter in self._ids]
        return torch.tensor(ids, dtype=torch.int64)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, a list or a tensor (T,). ValueError for an id outside."""
        numbers = [int(i) for i in ids]
        for i in numbers:
            if not 0 <= i < len(self.symbols):
                raise ValueError(f"id {i} is outside the vocabulary of {len(self)} characters")
        return "".join(self.symbols[i] for i in numbers)


def blocks(
    ids: Tensor, length: int, batch_size: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Pieces of a text at random places, without end.

    Args:
        ids: (N,) int64, the whole text.
        length: tokens of a piece, T.
        generator: draws the places.

    Yields:
        inputs (B, T) and targets (B, T) int64 on the device of `ids`; the target at each place is
        the token after the input at that place.

    Raises:
        ValueError: ids that are not one row of integers; length or batch_size below 1; or a text
            that is not longer than `length`.
    """
    if ids.dim() != 1 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(f"ids must be one row of integers, not {ids.dtype} {tuple(ids.shape)}")
    if length < 1 or batch_size < 1:
        raise ValueError(f"length and batch_size must be 1 or more, not {length} and {batch_size}")
    if len(ids) <= length:
        raise ValueError(f"a text of {len(ids)} ids is too short for pieces of {length} and a next")

    def pieces() -> Iterator[tuple[Tensor, Tensor]]:
        offsets = torch.arange(length + 1)
        while True:
            starts = torch.randint(len(ids) - length, (batch_size, 1), generator=generator)
            places = (starts + offsets).to(ids.device)  # (B, T + 1)
            piece = ids[places]  # (B, T + 1)
            yield piece[:, :-1], piece[:, 1:]

    return pieces()


def in_order(ids: Tensor, length: int, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The whole text once, in pieces that follow each other: for measuring a loss.

    Yields:
        inputs and targets as `blocks`, each token but the first being a target exactly once; the
        last batch may have fewer rows, and the tokens of an incomplete last piece come alone.

    Raises:
        ValueError: as `blocks`, if there are not two ids.
    """
    if ids.dim() != 1 or len(ids) < 2:
        raise ValueError(f"ids must be one row of two or more, not {tuple(ids.shape)}")
    if length < 1 or batch_size < 1:
        raise ValueError(f"length and batch_size must be 1 or more, not {length} and {batch_size}")

    def pieces() -> Iterator[tuple[Tensor, Tensor]]:
        whole = (len(ids) - 1) // length
        inputs = ids[: whole * length].view(whole, length)  # (pieces, T)
        targets = ids[1 : whole * length + 1].view(whole, length)  # (pieces, T)
        for begin in range(0, whole, batch_size):
            yield inputs[begin : begin + batch_size], targets[begin : begin + batch_size]
        if whole * length < len(ids) - 1:
            yield ids[None, whole * length : -1], ids[None, whole * length + 1 :]

    return pieces()
