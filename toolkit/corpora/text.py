"""Text to train language models on, without a download: Python's own library.

    [(name, source)] = library_documents(["json.decoder"])
    inputs, targets = next(in_order(ids, 128, 32))

Every reader has the standard library of the Python that runs the course. The text is the same every
time with the same Python; another version of Python has a slightly different library.
"""

from __future__ import annotations

import functools
import sysconfig
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

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


# --------------------------------------------------------------------------- the text


def library_documents(modules: Sequence[str] | None = None) -> list[tuple[str, str]]:
    """Names and sources of modules of the standard library.

    Args:
        modules: such as "json.decoder", in the order wanted; None for `MODULES`, leaving out those
            that this Python does not have.

    Raises:
        ValueError: a module that the library does not have as Python source.
    """
    sources = []
    for name in MODULES if modules is None else modules:
        path = _source(name)
        if path is not None:
            sources.append((name, _read(path)))
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
def _read(path: Path) -> str:
    with tokenize.open(path) as file:  # in the encoding that the file declares
        return file.read()


# --------------------------------------------------------------------------- pieces


def in_order(ids: Tensor, length: int, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The whole text once, in pieces that follow each other: for measuring a loss.

    Args:
        ids: (N,) int64, the whole text.
        length: tokens of a piece, T.

    Yields:
        inputs (B, T) and targets (B, T) int64: the target at each place is the token after the
        input at that place, and each token but the first is a target exactly once. The last batch
        may have fewer rows, and the tokens of an incomplete last piece come alone.

    Raises:
        ValueError: ids that are not one row of two or more; length or batch_size below 1.
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
