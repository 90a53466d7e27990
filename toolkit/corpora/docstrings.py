"""Docstrings of Python's own library: a small world of text for BERT, with four real tasks.

    corpus = Corpus.make()
    corpus.documents("train")            # sentences as ids, to pre-train on
    corpus.pieces.encode("Return the number of items.")
    tasks = make_tasks(corpus)           # "module", "pair", "span", "tagging"

Every reader has the library of the Python that runs the course; another version of Python has
slightly different docstrings, so numbers of documents and examples differ a little.

* The corpus: what modules, classes and functions say of themselves, in sentences, and the
  signatures of the functions.
* The pieces: a WordPiece vocabulary learned from the training documents, lower case.
* The tasks, one for each kind of head: which module a sentence is from; whether one sentence
  follows another; where in a signature a default value stands; which words are parameters.

Nothing leaks: each docstring is in one of three splits, by its first sentence, so that docstrings
that begin alike are in the same. Pieces, pre-training and the training of the tasks see "train".
"""

from __future__ import annotations

import ast
import functools
import itertools
import random
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tokenizers import Tokenizer, models, trainers

from toolkit.corpora import text as library
from toolkit.tokenizer import NAMES, SpecialIds, WordPieceTokenizer, cut_words

PAD, UNK, CLS, SEP, MASK = SpecialIds()
SPECIAL = 5  # ids below it are special
IGNORE = -100  # a label where nothing is asked; left out by losses of PyTorch
SPLITS = ("train", "validation", "test")
VOCABULARY = 2500
TOPICS = (
    "_pydecimal", "difflib", "email.message", "inspect", "ipaddress", "logging", "statistics",
    "threading", "turtle", "typing",
)  # fmt: skip
TAGS = ("prose", "parameter")

# --------------------------------------------------------------------------- documents


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function: its name, and its default as Python writes it, None without."""

    name: str
    default: str | None = None


@dataclass(frozen=True)
class Docstring:
    """What a module, a class or a function says of itself.

    module: such as "json.decoder". name: such as "JSONDecoder.decode", "" for the module itself.
    kind: "module", "class" or "function".
    paragraphs: the sentences of each paragraph of prose; examples and tables are left out.
    signature: such as "decode(s, _w=match)", without self; None unless a function.
    parameters: of a function, without self.
    """

    module: str
    name: str
    kind: str
    paragraphs: tuple[tuple[str, ...], ...]
    signature: str | None = None
    parameters: tuple[Parameter, ...] = ()

    @property
    def sentences(self) -> list[str]:
        """All sentences in their order."""
        return [sentence for paragraph in self.paragraphs for sentence in paragraph]

    @property
    def split(self) -> str:
        """ "train" (70 percent), "validation" (10) or "test" (20), by the first sentence."""
        number = zlib.crc32(_plain(self.paragraphs[0][0]).encode()) % 100
        return "train" if number < 70 else "validation" if number < 80 else "test"


@functools.cache
def read(modules: tuple[str, ...] | None = None) -> tuple[Docstring, ...]:
    """The docstrings of modules of the standard library, in the order of the files.

    Args:
        modules: such as ("json.decoder",); None for `toolkit.corpora.text.MODULES`.

    Raises:
        ValueError: a module that the library does not have as Python source.
    """
    found: list[Docstring] = []
    for module, source in library.library_documents(modules):
        _collect(ast.parse(source), module, "", found)
    return tuple(found)


def _collect(node: ast.AST, module: str, name: str, found: list[Docstring]) -> None:
    """Append the docstring of a node and of what is defined in it."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    if isinstance(node, (ast.Module, ast.ClassDef, *functions)):
        prose = paragraphs(ast.get_docstring(node) or "")
        if prose and isinstance(node, functions):
            signature, parameters = _signature(node)
            found.append(Docstring(module, name, "function", prose, signature, parameters))
        elif prose:
            kind = "class" if isinstance(node, ast.ClassDef) else "module"
            found.append(Docstring(module, name, kind, prose))
    for child in ast.iter_child_nodes(node):
        inner = name
        if isinstance(child, (ast.ClassDef, *functions)):
            inner = f"{name}.{child.name}" if name else child.name
        if isinstance(child, ast.stmt):
            _collect(child, module, inner, found)


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, tuple[Parameter, ...]]:
    """How a function is called, and its parameters: without self, annotations left out."""
    a = node.args
    places = [*a.posonlyargs, *a.args]
    defaults = [None] * (len(places) - len(a.defaults)) + list(a.defaults)
    shown, parameters = [], []

    def add(argument: ast.arg, default: ast.expr | None) -> None:
        value = None if default is None else ast.unparse(default)
        parameters.append(Parameter(argument.arg, value))
        shown.append(argument.arg if value is None else f"{argument.arg}={value}")

    for number, (argument, default) in enumerate(zip(places, defaults, strict=True)):
        if number or argument.arg not in ("self", "cls"):
            add(argument, default)
    if a.vararg or a.kwonlyargs:
        shown.append(f"*{a.vararg.arg}" if a.vararg else "*")
    for argument, default in zip(a.kwonlyargs, a.kw_defaults, strict=True):
        add(argument, default)
    if a.kwarg:
        shown.append(f"**{a.kwarg.arg}")
    return f"{node.name}({', '.join(shown)})", tuple(parameters)


_ITEM = re.compile(r"\n\s*(?:[-*+]|\d+[.)])\s+")
_END = re.compile(r"(?<=[a-z0-9)\]'\"`][.!?])[\"')\]]*\s+(?=[\"'`(*]*[A-Z])")
_WORD = re.compile(r"[A-Za-z]{2,}")


def paragraphs(docstring: str) -> tuple[tuple[str, ...], ...]:
    """The prose of a docstring: for each paragraph its sentences, spaces evened out.

    Left out are interactive examples, tables and what has fewer than two words. Items of a list
    are paragraphs of their own.
    """
    result = []
    for block in re.split(r"\n\s*\n", docstring.expandtabs()):
        for item in _ITEM.split("\n" + block):
            if ">>>" in item:
                continue
            whole = " ".join(item.split()).replace("e.g. ", "for example ").replace("i.e. ", "")
            kept = tuple(s for s in _END.split(whole) if _is_prose(s))
            if kept:
                result.append(kept)
    return tuple(result)


def _is_prose(sentence: str) -> bool:
    letters = sum(c.isalpha() or c == " " for c in sentence)
    return len(_WORD.findall(sentence)) >= 2 and letters >= 0.7 * len(sentence)


@functools.cache
def _plain(sentence: str) -> str:
    """A sentence reduced to its lower-case letters and digits, to find equal ones."""
    return " ".join(re.findall(r"[a-z0-9]+", sentence.lower()))


# --------------------------------------------------------------------------- pieces


class Pieces(WordPieceTokenizer):
    """A WordPiece vocabulary that begins with the special tokens of the course: ids 0 to 4."""

    def __init__(self, names: Sequence[str]) -> None:
        """names: id to piece. ValueError unless they begin with the special tokens, each once."""
        if tuple(names[:SPECIAL]) != NAMES or len(set(names)) != len(names):
            raise ValueError(f"a vocabulary begins with {', '.join(NAMES)} and repeats no piece")
        # In a docstring "[MASK]" is text like any other.
        super().__init__(names, strip_accents=True, special_in_text=False)

    @classmethod
    def train(cls, texts: Iterable[str], size: int = VOCABULARY) -> Pieces:
        """Learn the pieces with the library `tokenizers`; the same texts give the same pieces.

        The library numbers the single characters that continue a word in an order that changes
        from run to run, and breaks ties by these numbers. They are handed in as if they were
        special tokens, in the order of their codes, which settles both.

        Raises:
            ValueError: a size that leaves no room for the characters.
        """
        texts = list(texts)
        rules = Tokenizer(models.WordPiece(unk_token=NAMES[UNK]))
        cut_words(rules, lowercase=True, strip_accents=True, chinese=True)
        characters: Counter[str] = Counter()
        for words in texts:
            characters.update(rules.normalizer.normalize_str(words))
        alphabet = sorted(c for c, n in characters.items() if n >= 10 and not c.isspace())
        letters = [c for c in alphabet if c.isalnum()]  # punctuation is a word of its own
        first = [*NAMES, *alphabet, *(f"##{c}" for c in letters)]
        if size <= len(first):
            raise ValueError(f"size must be larger than the {len(first)} characters, not {size}")
        trainer = trainers.WordPieceTrainer(
            vocab_size=size, special_tokens=first, show_progress=False, min_frequency=2,
            limit_alphabet=0, continuing_subword_prefix="##",
        )  # fmt: skip
        known = set(alphabet)
        clean = ("".join(c for c in t if c in known or c.isspace()) for t in
                 map(rules.normalizer.normalize_str, texts))  # fmt: skip
        rules.train_from_iterator(clean, trainer)
        vocabulary = rules.get_vocab()
        return cls(sorted(vocabulary, key=vocabulary.__getitem__))


# --------------------------------------------------------------------------- corpus


@dataclass(frozen=True)
class Corpus:
    """Docstrings and the pieces learned from those for training.

    docstrings: all, in the order of the files.
    pieces: the vocabulary.
    """

    docstrings: tuple[Docstring, ...] = field(repr=False)
    pieces: Pieces = field(repr=False)

    @classmethod
    def make(cls, modules: Sequence[str] | None = None, vocabulary: int = VOCABULARY) -> Corpus:
        """Read the library and learn the pieces.

        Args:
            modules: names of modules, None for `toolkit.corpora.text.MODULES`.
            vocabulary: how many pieces at most.

        Raises:
            ValueError: an unknown module, or a vocabulary too small for the characters.
        """
        docstrings = read(None if modules is None else tuple(modules))
        texts = [s for d in docstrings if d.split == "train" for s in _lines(d)]
        return cls(docstrings, Pieces.train(texts, vocabulary))

    def texts(self, split: str = "train") -> list[list[str]]:
        """Documents of a split, each a list of sentences.

        A document is a class with its methods, or a module with its functions: their docstrings in
        the order of the file, a function's after its signature, which counts as a sentence.

        Raises:
            ValueError: a split other than "train", "validation" and "test".
        """
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
        groups: dict[tuple[str, str], list[str]] = defaultdict(list)
        for docstring in self.docstrings:
            if docstring.split == split:
                top = docstring.name.split(".")[0] if "." in docstring.name else ""
                top = docstring.name if docstring.kind == "class" and not top else top
                groups[docstring.module, top] += _lines(docstring)
        return list(groups.values())

    def documents(self, split: str = "train") -> list[list[list[int]]]:
        """`texts` as ids: documents, each a list of sentences, each a list of ids."""
        return [self.pieces.encode_all(document) for document in self.texts(split)]


def _lines(docstring: Docstring) -> list[str]:
    first = [docstring.signature] if docstring.signature else []
    return first + docstring.sentences


# --------------------------------------------------------------------------- tasks


@dataclass(frozen=True)
class Example:
    """One example of a task. What does not belong to its task is None.

    text: the (first) sentence, the question of "span", the words of "tagging" in a row.
    second_text: the second sentence of "pair", the passage of "span".
    first, second: their ids, without special tokens.
    label: number of the right label ("single" and "pair").
    span: first and last piece of the answer, counted in `second` ("span"); None: no answer.
    answer: the text of the answer, "" without one ("span").
    words, word_labels: the words and the number of each one's label ("tagging").
    word_ids: for each of `first` the number of its word ("tagging").
    source: module and name of the docstring.
    """

    text: str
    first: list[int] = field(repr=False)
    second_text: str | None = None
    second: list[int] | None = field(default=None, repr=False)
    label: int | None = None
    span: tuple[int, int] | None = None
    answer: str | None = None
    words: list[str] | None = field(default=None, repr=False)
    word_ids: list[int] | None = field(default=None, repr=False)
    word_labels: list[int] | None = field(default=None, repr=False)
    source: str = ""


@dataclass(frozen=True)
class Task:
    """Examples of one task in three splits, each in an order drawn once.

    name: "module", "pair", "span" or "tagging". kind: "single", "pair", "span" or "tagging".
    question: what is asked, in one line. labels: names of the labels, () for "span".
    """

    name: str
    kind: str
    question: str
    labels: tuple[str, ...]
    train: list[Example] = field(repr=False)
    validation: list[Example] = field(repr=False)
    test: list[Example] = field(repr=False)

    def counts(self, split: str = "test") -> dict[str, int]:
        """How often each label occurs in a split: examples, of "tagging" words, of "span" whether
        there is an answer."""
        examples: list[Example] = getattr(self, split)
        if self.kind == "span":
            found = sum(e.span is not None for e in examples)
            return {"answer": found, "no answer": len(examples) - found}
        if self.kind == "tagging":
            labels = [n for e in examples for n in e.word_labels]
        else:
            labels = [e.label for e in examples]
        return {name: labels.count(number) for number, name in enumerate(self.labels)}


def make_tasks(corpus: Corpus, *, most: int = 400, longest: int = 60) -> dict[str, Task]:
    """The four tasks, by name.

    * "module": a sentence of a docstring; from which of `TOPICS`. At most `most` of a module in
      training, fewer elsewhere, so that no module is most of the examples.
    * "pair": two sentences; does the second follow the first in the same docstring. Where it does
      not, it is from another docstring of the same module, so that the topic alone says nothing;
      half of the pairs follow.
    * "span": the question names a parameter, the passage is a signature with the first sentence
      of the docstring; where is the parameter's default. A third of the parameters has none.
    * "tagging": the words of a paragraph without markup; which name a parameter of the function.

    Args:
        longest: pieces of an input at most, special tokens not counted; longer examples are left
            out, so that no answer is cut off.

    Raises:
        ValueError: modules that make a task without examples in some split.
    """
    tasks = {
        "module": Task(
            "module", "single", "Which module is the sentence from?", TOPICS,
            **_split(corpus, lambda ds, d: _topics(corpus, ds, d, most), longest),
        ),
        "pair": Task(
            "pair", "pair", "Does the second sentence follow the first?",
            ("follows", "does not follow"), **_split(corpus, lambda ds, d: _pairs(corpus, ds, d),
            longest),
        ),
        "span": Task(
            "span", "span", "Where in the passage is the default of the parameter?", (),
            **_split(corpus, lambda ds, d: _questions(corpus, ds, d), longest),
        ),
        "tagging": Task(
            "tagging", "tagging", "Which words name a parameter?", TAGS,
            **_split(corpus, lambda ds, d: _tagged(corpus, ds, d), longest),
        ),
    }  # fmt: skip
    for task in tasks.values():
        for split in SPLITS:
            if len(getattr(task, split)) == 0:
                raise ValueError(f"these modules give no examples of {task.name!r} in {split}")
    return tasks


def _split(corpus, make, longest: int) -> dict[str, list[Example]]:
    """Examples of each split; what another split has, too, is left out of the later one."""
    seen: set[str] = set()
    result = {}
    for split in SPLITS:
        chosen = [d for d in corpus.docstrings if d.split == split]
        draw = random.Random(zlib.crc32(split.encode()))
        examples = []
        mine = set()
        for example in make(chosen, draw):
            key = _plain(f"{example.text} {example.second_text or ''}")
            size = len(example.first) + len(example.second or ())
            if key not in seen and key not in mine and 0 < size <= longest:
                mine.add(key)
                examples.append(example)
        seen |= mine
        draw.shuffle(examples)
        result[split] = examples
    return result


def _topics(corpus: Corpus, docstrings: Sequence[Docstring], draw: random.Random, most: int):
    by_topic: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for docstring in docstrings:
        if docstring.module in TOPICS:
            by_topic[docstring.module] += [
                (s, f"{docstring.module}:{docstring.name}")
                for s in docstring.sentences if len(s.split()) >= 5
            ]  # fmt: skip
    # The median module sets the size of the largest: nothing is won by naming one of them always.
    sizes = sorted(map(len, by_topic.values()))
    limit = min(most, sizes[len(sizes) // 2]) if sizes else 0
    for label, topic in enumerate(TOPICS):
        sentences = by_topic[topic]
        draw.shuffle(sentences)
        for sentence, source in sentences[:limit]:
            yield Example(sentence, corpus.pieces.encode(sentence), label=label, source=source)


def _pairs(corpus: Corpus, docstrings: Sequence[Docstring], draw: random.Random):
    later: dict[str, list[tuple[str, Docstring]]] = defaultdict(list)
    true: dict[str, set[str]] = defaultdict(set)  # what follows a sentence in any docstring
    for docstring in docstrings:
        later[docstring.module] += [(s, docstring) for s in docstring.sentences[1:]]
        for first, follows in itertools.pairwise(docstring.sentences):
            true[_plain(first)].add(_plain(follows))
    for docstring in docstrings:
        others = [s for s, d in later[docstring.module] if d is not docstring]
        for first, follows in itertools.pairwise(docstring.sentences):
            wrong = [s for s in others if _plain(s) not in true[_plain(first)]]
            if not wrong:
                continue
            label = int(draw.random() < 0.5)
            second = draw.choice(wrong) if label else follows
            if min(len(first.split()), len(second.split())) >= 4:
                yield Example(
                    first, corpus.pieces.encode(first), second, corpus.pieces.encode(second),
                    label=label, source=f"{docstring.module}:{docstring.name}",
                )  # fmt: skip


def _questions(corpus: Corpus, docstrings: Sequence[Docstring], draw: random.Random):
    for docstring in docstrings:
        if len(docstring.parameters) < 2 or all(p.default is None for p in docstring.parameters):
            continue  # the first "=" would be the answer, or there would be none
        passage = f"{docstring.signature}: {docstring.sentences[0]}"
        second = corpus.pieces.encode(passage)
        places = corpus.pieces.spans(passage)
        known = [p for p in docstring.parameters if p.default is not None]
        unknown = [p for p in docstring.parameters if p.default is None]
        draw.shuffle(known)
        draw.shuffle(unknown)
        asked = known[:2] + unknown[:1]
        for parameter in asked:
            question = f"What is the default of {parameter.name}?"
            span = None
            if parameter.default is not None:
                text = f"{parameter.name}={parameter.default}"
                begin = re.search(rf"(?<=[(, ]){re.escape(text)}(?=[,)])", passage)
                if begin is None:
                    continue
                low, high = begin.end() - len(parameter.default), begin.end()
                inside = [n for n, (b, e) in enumerate(places) if b < high and e > low]
                if not inside:
                    continue
                span = inside[0], inside[-1]
            yield Example(
                question, corpus.pieces.encode(question), passage, second, span=span,
                answer=parameter.default or "", source=f"{docstring.module}:{docstring.name}",
            )  # fmt: skip


_TOKEN = re.compile(r"[A-Za-z_]\w*|\d+|[^\w\s]")
_MARKUP = frozenset("'\"`*|")


def split_words(text: str) -> list[str]:
    """Words and punctuation of a text without markup: names stay whole, quotes and stars go.

    An apostrophe within a word goes with what follows it: "doesn't" is "doesn".
    """
    plain = re.sub(r"(?<=\w)'(?:s|t|re|ll|ve|d|m)\b", "", text)
    return [word for word in _TOKEN.findall(plain) if word not in _MARKUP]


def _tagged(corpus: Corpus, docstrings: Sequence[Docstring], draw: random.Random):
    for docstring in docstrings:
        names = {p.name for p in docstring.parameters}
        for paragraph in docstring.paragraphs if names else ():
            for sentence in paragraph:
                words = split_words(sentence)
                labels = [int(word in names) for word in words]
                if not any(labels) or len(words) < 4:
                    continue  # half of the words are prose anyway
                ids, numbers = corpus.pieces.encode_words(words)
                if len(set(numbers)) == len(words):
                    yield Example(
                        " ".join(words), ids, words=words, word_ids=numbers, word_labels=labels,
                        source=f"{docstring.module}:{docstring.name}",
                    )  # fmt: skip
