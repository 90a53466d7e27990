"""All prose of Python's own library: more text for BERT than the docstrings of a few modules.

    documents = read()                    # docstrings, comments and the help's topics
    texts = split(documents, "train")     # each document a list of sentences

Where `docstrings` reads some hundred modules and only their docstrings, this reads every
module, the comments between the lines of code, and `pydoc_data.topics`, the chapters that Python's
`help` prints: about four times as much.

Nothing leaks: a docstring that `docstrings` holds out, for its tasks too, is held out here,
and a sentence that is held out anywhere is left out of training everywhere.
"""

from __future__ import annotations

import functools
import importlib
import io
import re
import sysconfig
import tokenize
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.corpora import docstrings
from toolkit.corpora import text as library

SPLITS = docstrings.SPLITS
KINDS = ("docstrings", "comments", "topics")
# Folders that are no library: other people's packages, tests, and tables of characters.
_LEFT_OUT = {"site-packages", "test", "tests", "idle_test", "encodings", "pydoc_data", "__phello__"}
_HELD_OUT = 8  # percent of the documents that no task needs, half of it for each split
_SHORT = 4  # a sentence of so few words may stand in several splits: "Return self."


@dataclass(frozen=True)
class Document:
    """Sentences that belong together, in their order.

    kind: one of `KINDS`. source: a module such as "json.decoder", or a topic. split: one of
    `SPLITS`.
    """

    kind: str
    source: str
    split: str
    sentences: tuple[str, ...]


@functools.cache
def modules() -> tuple[str, ...]:
    """The names of all modules of the standard library with Python source, in their order.

    Tests, tables of characters and packages of others are left out.
    """
    base = Path(sysconfig.get_path("stdlib"))
    names = set()
    for path in base.rglob("*.py"):
        parts = path.relative_to(base).with_suffix("").parts
        if _LEFT_OUT.intersection(parts) or not all(part.isidentifier() for part in parts):
            continue
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if parts:
            names.add(".".join(parts))
    return tuple(sorted(names))


@functools.cache
def read(names: tuple[str, ...] | None = None) -> tuple[Document, ...]:
    """The documents of modules, and with them the topics of `help`.

    Args:
        names: such as ("json.decoder",), then without topics; None for all modules.

    Raises:
        ValueError: a module that the library does not have as Python source.
    """
    wanted = modules() if names is None else names
    found = _docstrings(wanted)
    for module, source in library.library_documents(wanted):
        sentences = comments(source)
        if sentences:
            found.append(Document("comments", module, _drawn(f"# {module}"), sentences))
    if names is None:
        found += _topics()
    return tuple(_apart(found))


def split(documents: Sequence[Document], name: str = "train") -> list[list[str]]:
    """The documents of a split, each a list of sentences.

    Raises:
        ValueError: a split other than "train", "validation" and "test".
    """
    if name not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {name!r}")
    return [list(document.sentences) for document in documents if document.split == name]


def comments(source: str) -> tuple[str, ...]:
    """The sentences of the comments that stand on lines of their own.

    Lines that follow each other are one comment; code that was commented out is left out.
    """
    blocks: list[list[str]] = []
    last = -1
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type != tokenize.COMMENT or token.line[: token.start[1]].strip():
                continue
            if token.start[0] != last + 1:
                blocks.append([])
            blocks[-1].append(token.string.lstrip("#!: ").rstrip("# "))
            last = token.start[0]
    except (tokenize.TokenError, IndentationError):  # what was read so far is worth having
        pass
    found = docstrings.paragraphs("\n\n".join("\n".join(block) for block in blocks))
    return tuple(s for paragraph in found for s in paragraph if not _CODE.search(s))


_CODE = re.compile(r"[\w)\]] ?= ?[\w(\[]|\w\(\w*\)$|[{}]|[-=*~#]{4}|->")
_MARKUP = re.compile(r'^[.]{2} .*$|^\s*[-=*~^"#]{3,}\s*$|[*]{2}|[`]+', re.MULTILINE)


def _docstrings(names: Sequence[str]) -> list[Document]:
    """A class with its methods, or a module with its functions, is a document in each split."""
    groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    tasks = set(library.MODULES)
    for one in docstrings.read(tuple(names)):
        plain = docstrings._plain(one.paragraphs[0][0])
        part = one.split if one.module in tasks else _drawn(plain)
        top = one.name.split(".")[0] if "." in one.name or one.kind == "class" else ""
        first = [one.signature] if one.signature else []
        groups[one.module, top, part] += first + one.sentences
    return [
        Document("docstrings", module, part, tuple(sentences))
        for (module, _, part), sentences in groups.items()
    ]


def _topics() -> list[Document]:
    """The chapters of `help`, such as "for" and "OPERATORS"."""
    try:
        topics = importlib.import_module("pydoc_data.topics").topics
    except (ImportError, AttributeError):
        return []
    found = []
    for name, text in topics.items():
        plain = _MARKUP.sub("", text)
        sentences = tuple(s for part in docstrings.paragraphs(plain) for s in part)
        if sentences:
            found.append(Document("topics", name, _drawn(f"help({name})"), sentences))
    return found


def _drawn(key: str) -> str:
    number = zlib.crc32(key.encode()) % 200
    return "test" if number < _HELD_OUT else "validation" if number < 2 * _HELD_OUT else "train"


def _apart(documents: Sequence[Document]) -> list[Document]:
    """Each document without the sentences that an earlier split in test, validation, train has."""
    seen: dict[str, str] = {}
    kept: dict[int, Document] = {}
    for name in reversed(SPLITS):
        for number, document in enumerate(documents):
            if document.split != name:
                continue
            sentences = []
            for sentence in document.sentences:
                plain = docstrings._plain(sentence)
                if plain.count(" ") < _SHORT - 1 or seen.setdefault(plain, name) == name:
                    sentences.append(sentence)
            if sentences:
                kept[number] = Document(document.kind, document.source, name, tuple(sentences))
    # Copies of whole documents, as in modules that exist twice, are of no use.
    return list({d.sentences: d for _, d in sorted(kept.items())}.values())
