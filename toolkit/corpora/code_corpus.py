"""Functions of Python's own library: a small world of code for GPT to learn to write.

    corpus = Corpus.make(positional_encoding)      # the module with train_bpe, bpe_encode, ...
    corpus.stream("train")                         # all documents in one row, to pre-train on
    corpus.tokens.encode("def close(self):")
    tasks = make_tasks(corpus)                     # "name", "order", "body"

Every reader has the library of the Python that runs the course; another version of Python has
slightly different functions, so numbers differ a little.

* The documents: short functions and methods, each with a sign before it and one after it, without
  docstring, comments and decorators, and in one way of writing, that of `ast.unparse`.
* The tokens: byte-pair encoding as the reader wrote it, learned from the training part.
* The tasks: questions about functions whose answers are made, not judged.

Nothing leaks: a module is in one of three splits with all its functions, and a text that training
has is left out of the others. Tokens and pre-training see "train" alone.
"""

from __future__ import annotations

import ast
import copy
import functools
import math
import random
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from toolkit.corpora import text as library

PAD, START, DELIMITER, EXTRACT, END = 0, 1, 2, 3, 4
SPECIAL = 5  # ids below it are special; the byte-pair id b is id b + SPECIAL
NAMES = ("[PAD]", "[START]", "[DELIMITER]", "[EXTRACT]", "[END]")
SPLITS = ("train", "validation", "test")
LONGEST = 280  # characters of a function
MERGES = 600
SAMPLE = 120_000  # characters of the training part from which the merges are learned
# Modules held out with all their functions; all others are to train on.
HELD_OUT = {
    "validation": (
        "bdb", "configparser", "http.cookies", "socketserver", "tarfile", "tempfile", "weakref",
    ),
    "test": (
        "argparse", "asyncio.locks", "calendar", "datetime", "fractions", "gzip", "imaplib",
        "logging.handlers", "mailbox", "pathlib", "plistlib", "profile", "queue", "shelve",
        "smtplib", "statistics", "tracemalloc", "unittest.case", "urllib.request", "wave",
        "zipfile",
    ),
}  # fmt: skip

# More modules that are mostly short functions, besides those of `text.MODULES`, all to
# train on.
MORE = (
    "_collections_abc", "_weakrefset", "asyncio.base_subprocess", "asyncio.events",
    "asyncio.futures", "asyncio.sslproto", "asyncio.subprocess", "asyncio.transports",
    "asyncio.unix_events", "bz2", "dbm.dumb", "email._policybase", "email.headerregistry",
    "filecmp", "importlib.metadata", "importlib.resources._adapters",
    "importlib.resources.readers", "multiprocessing.connection", "multiprocessing.context",
    "multiprocessing.process", "multiprocessing.queues", "multiprocessing.reduction",
    "multiprocessing.sharedctypes", "multiprocessing.synchronize", "multiprocessing.util",
    "optparse", "symtable", "unittest.async_case", "unittest.result", "unittest.runner",
    "unittest.suite", "wsgiref.headers", "wsgiref.validate", "xml.dom.expatbuilder",
    "xml.dom.pulldom", "xml.dom.xmlbuilder", "xml.sax.expatreader", "xml.sax.saxutils",
    "xml.sax.xmlreader",
)  # fmt: skip
# What the label of the task "name" says, and the beginnings of the names that have it.
NAMED = {
    "__init__": ("__init__",),
    "text": ("__repr__", "__str__", "format"),
    "comparison": ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "is"),
    "get": ("get", "__getitem__", "__getattr__"),
    "set": ("set", "add", "__setitem__", "__setattr__", "append"),
    "end": ("close", "__exit__", "__del__", "stop", "shutdown", "flush", "end"),
}

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

# --------------------------------------------------------------------------- functions


@dataclass(frozen=True)
class Function:
    """A function or a method.

    module: such as "json.decoder". name: such as "decode". text: as `ast.unparse` writes it.
    """

    module: str
    name: str
    text: str

    @property
    def split(self) -> str:
        """ "train", "validation" or "test", by the module."""
        return next((s for s, names in HELD_OUT.items() if self.module in names), "train")

    @property
    def header(self) -> str:
        """The first line: "def decode(self, s):"."""
        return self.text.partition("\n")[0]

    @property
    def body(self) -> str:
        """What follows the first line, from the end of that line on."""
        return self.text[len(self.header) :]


@functools.cache
def read(modules: tuple[str, ...] | None = None, longest: int = LONGEST) -> tuple[Function, ...]:
    """The short functions of modules of the standard library, each text once, in their order.

    A text that occurs in several modules stays in training if it is there at all, so that no other
    split has it. Functions within functions are part of these, no documents of their own.

    Args:
        modules: such as ("json.decoder",); None for `toolkit.corpora.text.MODULES` and `MORE`.
        longest: characters of a function at most.

    Raises:
        ValueError: a module that the library does not have as Python source.
    """
    found: dict[str, Function] = {}
    documents = library.library_documents(modules)
    if modules is None:
        documents += library.library_documents(MORE)
    for module, source in documents:
        for node in _outermost(ast.parse(source)):
            text = _plain(node, longest)
            if not text or len(text) > longest or not text.isascii():
                continue
            new = Function(module, node.name, text)
            if text not in found or (found[text].split != "train" and new.split == "train"):
                found[text] = new
    return tuple(found.values())


def _outermost(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions of a module and methods of its classes."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _FUNCTIONS):
            yield child
        elif isinstance(child, (ast.ClassDef, ast.If, ast.Try)):
            yield from _outermost(child)


def _plain(node: ast.FunctionDef | ast.AsyncFunctionDef, longest: int = LONGEST) -> str:
    """A function without docstring and decorators; "" if nothing is left or it is long."""
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    if not body or body[-1].end_lineno - body[0].lineno > longest // 12:
        return ""  # far too long: not worth writing down
    bare = copy.copy(node)  # the tree itself stays as it is
    bare.body, bare.decorator_list = body, []
    return ast.unparse(bare)


# --------------------------------------------------------------------------- tokens


class Tokens:
    """Byte-pair encoding with five special ids before it.

    Each different chunk of text is encoded once and remembered.

    Attributes:
        merges: the pairs learned, in their order.
    """

    def __init__(self, bpe: Any, merges: Sequence[tuple[int, int]]) -> None:
        """bpe: holds `chunks` and `bpe_encode`. merges: of `train_bpe`."""
        self._bpe = bpe
        self.merges = list(merges)
        self._known: dict[str, list[int]] = {}
        self._bytes = [bytes([i]) for i in range(256)]
        for first, second in self.merges:
            self._bytes.append(self._bytes[first] + self._bytes[second])

    @classmethod
    def learn(cls, bpe: Any, text: str, merges: int = MERGES) -> Tokens:
        """Learn the merges from a text, by `bpe.fast_train_bpe` if it is there."""
        learn: Callable = getattr(bpe, "fast_train_bpe", bpe.train_bpe)
        return cls(bpe, learn(text, merges))

    def __len__(self) -> int:
        return SPECIAL + 256 + len(self.merges)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, none of them special."""
        ids: list[int] = []
        for chunk in self._bpe.chunks(text):
            if chunk not in self._known:
                made = self._bpe.bpe_encode(chunk, self.merges)
                self._known[chunk] = [i + SPECIAL for i in made]
            ids += self._known[chunk]
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, special ones left out; bytes that are no text become "�".

        What `bpe_decode` does, with the bytes of all ids made once.
        """
        found = b"".join(self._bytes[int(i) - SPECIAL] for i in ids if i >= SPECIAL)
        return found.decode(errors="replace")

    def names(self, ids: Iterable[int]) -> list[str]:
        """Each id so that it can be read: special ones by name, white space as signs."""
        return [
            NAMES[i] if i < SPECIAL else self.decode([i]).replace("\n", "⏎").replace(" ", "·")
            for i in map(int, ids)
        ]


# --------------------------------------------------------------------------- corpus


@dataclass(frozen=True)
class Corpus:
    """Functions, and the tokens learned from those for training."""

    functions: tuple[Function, ...] = field(repr=False)
    tokens: Tokens = field(repr=False)
    longest: int = 96

    @classmethod
    def make(
        cls, bpe: Any, modules: Sequence[str] | None = None, *, merges: int = MERGES,
        longest: int = 96, seed: int = 0,
    ) -> Corpus:  # fmt: skip
        """Read the library and learn the tokens.

        Args:
            bpe: holds `train_bpe` (or `fast_train_bpe`), `bpe_encode` and `chunks`.
            modules: names of modules, None for `toolkit.corpora.text.MODULES` and `MORE`.
            merges: how many to learn at most.
            longest: tokens of a document at most, its two signs counted; longer ones are left out.
            seed: draws the order of the documents.

        Raises:
            ValueError: an unknown module, or none of the modules is for training.
        """
        functions = list(read(None if modules is None else tuple(modules)))
        random.Random(seed).shuffle(functions)
        training = [f.text for f in functions if f.split == "train"]
        if not training:
            raise ValueError("none of these modules is in the training part; name more")
        text = "\n".join(training)[:SAMPLE]
        tokens = Tokens.learn(bpe, text, merges)
        kept = tuple(f for f in functions if len(tokens.encode(f.text)) + 2 <= longest)
        return cls(kept, tokens, longest)

    def of(self, split: str = "train") -> list[Function]:
        """The functions of a split.

        Raises:
            ValueError: a split other than "train", "validation" and "test".
        """
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
        return [f for f in self.functions if f.split == split]

    def documents(self, split: str = "train") -> list[list[int]]:
        """The functions of a split as ids, each from START to END."""
        return [[START, *self.tokens.encode(f.text), END] for f in self.of(split)]

    def stream(self, split: str = "train") -> Tensor:
        """All documents of a split in one row: (M,) int64."""
        return torch.tensor([i for document in self.documents(split) for i in document])  # (M,)

    def bytes(self, split: str = "train") -> int:
        """Bytes of the functions of a split."""
        return sum(len(f.text) for f in self.of(split))  # a character is a byte: all is ASCII

    def bits_per_byte(self, loss: float, split: str = "validation") -> float:
        """From nats per token of a split's stream to bits per byte of its text.

        The signs cost bits and hold no text, so that saying where a function ends is not free. The
        measure does not depend on how the text is cut into tokens.
        """
        return loss * self._per_byte(split) / math.log(2)

    def _per_byte(self, split: str) -> float:
        """Tokens per byte."""
        return sum(map(len, self.documents(split))) / self.bytes(split)


# --------------------------------------------------------------------------- tasks


@dataclass(frozen=True)
class Example:
    """One example of a task.

    text: the (first) text. second_text: that of a pair, else None. first, second: their ids,
    without special ones. label: number of the right label. source: module and function.
    """

    text: str
    first: list[int] = field(repr=False)
    second_text: str | None = None
    second: list[int] | None = field(default=None, repr=False)
    label: int = 0
    source: str = ""


@dataclass(frozen=True)
class Task:
    """Examples of one task in three splits, each in an order drawn once.

    kind: "single" or "pair". question: what is asked, in one line. labels: their names.
    """

    name: str
    kind: str
    question: str
    labels: tuple[str, ...]
    train: list[Example] = field(repr=False)
    validation: list[Example] = field(repr=False)
    test: list[Example] = field(repr=False)

    def counts(self, split: str = "test") -> dict[str, int]:
        """How often each label occurs in a split."""
        found = Counter(e.label for e in getattr(self, split))
        return {name: found[number] for number, name in enumerate(self.labels)}


def make_tasks(corpus: Corpus, *, longest: int = 50) -> dict[str, Task]:
    """The three tasks, by name. But for "name", half of the examples have label 1.

    * "name": a function whose name was replaced by f; which of the kinds in `NAMED` was it.
    * "order": a function; are two neighbouring statements of its body exchanged. The tokens are
      the same either way.
    * "body": a `def` line with a parameter besides self and a body; do they belong together. Where
      they do not, the body is that of another such function of the same module.

    Args:
        longest: tokens of an example at most, special ones not counted.

    Raises:
        ValueError: modules that make a task without examples in some split.
    """
    makers = {
        "name": ("single", "What was its name?", tuple(NAMED), _named),
        "order": ("single", "Are two statements exchanged?", ("no", "exchanged"), _exchanged),
        "body": ("pair", "Does it belong to the def line?", ("belongs", "does not"), _bodies),
    }
    tasks = {}
    for name, (kind, question, labels, make) in makers.items():
        made = {}
        for split in SPLITS:
            draw = random.Random(zlib.crc32(f"{name} {split}".encode()))
            examples = []
            for function, choices in make(corpus.of(split), draw):
                # One of the choices, so that every second example has the other label.
                label = min(choices) if len(choices) == 1 else len(examples) % 2
                first, second = choices[label]
                ids = corpus.tokens.encode(first)
                more = None if second is None else corpus.tokens.encode(second)
                if len(ids) + len(more or ()) <= longest:
                    source = f"{function.module}:{function.name}"
                    examples.append(Example(first, ids, second, more, label, source))
            draw.shuffle(examples)
            made[split] = examples
        tasks[name] = Task(name, kind, question, labels, **made)
    for task in tasks.values():
        for split in SPLITS:
            if not getattr(task, split):
                raise ValueError(f"these modules give no examples of {task.name!r} in {split}")
    return tasks


# Makers of a task: functions of a split to (function, label to first and second text).
_Made = Iterator[tuple[Function, dict[int, tuple[str, str | None]]]]


def _named(functions: Sequence[Function], draw: random.Random) -> _Made:
    """Each function of one of the kinds, without its name."""
    for function in functions:
        name = function.name if function.name.startswith("__") else function.name.strip("_")
        for label, beginnings in enumerate(NAMED.values()):
            if any(_begins(name, word) for word in beginnings):
                head, _, rest = function.text.partition(f" {function.name}(")
                yield function, {label: (f"{head} f({rest}", None)}


def _begins(name: str, word: str) -> bool:
    """Whether a name is a word or begins with it: "get_text" and "getText" with "get"."""
    rest = name[len(word) :]
    return name.startswith(word) and (not rest or not rest[0].islower())


def _exchanged(functions: Sequence[Function], draw: random.Random) -> _Made:
    """Each function with two statements or more; two neighbouring ones of them exchanged."""
    for function in functions:
        tree = ast.parse(function.text)
        body = tree.body[0].body
        if len(body) < 2:
            continue
        place = draw.randrange(len(body) - 1)
        body[place : place + 2] = reversed(body[place : place + 2])
        changed = ast.unparse(tree)
        if changed != function.text:
            yield function, {0: (function.text, None), 1: (changed, None)}


def _bodies(functions: Sequence[Function], draw: random.Random) -> _Made:
    """Each `def` line with a parameter besides self; its own body, and another."""
    by_module: dict[str, list[Function]] = defaultdict(list)
    for function in functions:
        if _has_parameter(function):
            by_module[function.module].append(function)
    for same in by_module.values():
        for function in same:
            others = [
                f.body for f in same if f.header != function.header and f.body != function.body
            ]
            if others:
                head = function.header
                yield function, {0: (head, function.body), 1: (head, draw.choice(others))}


def _has_parameter(function: Function) -> bool:
    """Whether there is a parameter besides self: something that a body could be known by."""
    node = ast.parse(function.text).body[0]
    names = [a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)]
    return any(name not in ("self", "cls") for name in names)
