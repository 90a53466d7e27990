"""Functions of the library as documents, their tokens, and the tasks made of them."""

from __future__ import annotations

import ast
import math
from types import SimpleNamespace

import pytest
import torch

from solutions import positional_encoding as bpe
from toolkit.corpora import code_corpus as c

MODULES = (
    "calendar", "collections", "contextlib", "enum", "queue", "socketserver", "threading", "typing",
)  # fmt: skip


@pytest.fixture(scope="module")
def corpus() -> c.Corpus:
    return c.Corpus.make(bpe, MODULES, merges=150)


@pytest.fixture(scope="module")
def tasks(corpus: c.Corpus) -> dict[str, c.Task]:
    return c.make_tasks(corpus)


# --------------------------------------------------------------------------- functions


def test_functions_are_short_and_bare() -> None:
    functions = c.read(MODULES)
    assert {f.module for f in functions} == set(MODULES)
    assert len({f.text for f in functions}) == len(functions) > 300
    for function in functions:
        tree = ast.parse(function.text)
        (node,) = tree.body
        assert node.name == function.name
        assert not node.decorator_list
        assert ast.get_docstring(node) is None
        assert len(function.text) <= c.LONGEST
        assert ast.unparse(tree) == function.text
        assert function.header + function.body == function.text
        assert "\n" not in function.header


def test_a_method_is_found_as_it_is_written() -> None:
    (put,) = [f for f in c.read(("queue",)) if f.name == "put_nowait" and "block" in f.text]
    assert put.text == "def put_nowait(self, item):\n    return self.put(item, block=False)"
    assert put.header == "def put_nowait(self, item):"
    assert put.body == "\n    return self.put(item, block=False)"
    assert put.split == "test"


def test_no_text_is_in_two_splits(corpus: c.Corpus) -> None:
    texts = {split: {f.text for f in corpus.of(split)} for split in c.SPLITS}
    assert all(texts.values())
    assert sum(map(len, texts.values())) == len(set().union(*texts.values()))
    modules = {split: {f.module for f in corpus.of(split)} for split in c.SPLITS}
    assert modules["validation"] == {"socketserver"}
    assert modules["test"] == {"calendar", "queue"}
    with pytest.raises(ValueError, match="split must be"):
        corpus.of("all")


def test_a_text_of_two_modules_stays_in_training() -> None:
    alone = {f.text for f in c.read(("zipfile",))}
    for modules in (("zipfile", "_pyio"), ("_pyio", "zipfile")):
        both = c.read(modules)
        shared = alone - {f.text for f in both if f.module == "zipfile"}
        assert shared
        assert shared <= {f.text for f in both if f.module == "_pyio"}


def test_modules_that_leave_no_training_are_refused() -> None:
    with pytest.raises(ValueError, match="training part"):
        c.Corpus.make(bpe, ("queue",), merges=5)
    with pytest.raises(ValueError, match="no Python source"):
        c.Corpus.make(bpe, ("no_such_module",))


# --------------------------------------------------------------------------- tokens


def test_tokens_are_those_of_the_reader(corpus: c.Corpus) -> None:
    tokens = corpus.tokens
    assert len(tokens) == c.SPECIAL + 256 + 150
    text = "".join(f.text for f in corpus.of("test")[:5]) + " né €"
    ids = tokens.encode(text)
    assert ids == [i + c.SPECIAL for i in bpe.bpe_encode(text, tokens.merges)]
    assert tokens.decode(ids) == text
    assert tokens.decode([c.START, *ids, c.END]) == text
    assert tokens.decode([c.SPECIAL + 195]) == bpe.bpe_decode([195], [])
    assert tokens.names([c.START, *tokens.encode("a\n b")]) == ["[START]", "a", "⏎", "·", "b"]


def test_the_slow_way_to_learn_is_taken_where_there_is_no_fast_one() -> None:
    calls = []

    def slow(text: str, merges: int) -> list[tuple[int, int]]:
        calls.append(merges)
        return bpe.train_bpe(text, merges)

    given = SimpleNamespace(train_bpe=slow, bpe_encode=bpe.bpe_encode, chunks=bpe.chunks)
    tokens = c.Tokens.learn(given, "low low lower", 3)
    assert tokens.merges == bpe.train_bpe("low low lower", 3)
    assert calls == [3]


def test_each_chunk_is_encoded_once() -> None:
    seen = []

    def encode(text: str, merges: list) -> list[int]:
        seen.append(text)
        return bpe.bpe_encode(text, merges)

    given = SimpleNamespace(bpe_encode=encode, chunks=bpe.chunks)
    tokens = c.Tokens(given, [])
    assert tokens.encode("to be or not to be") == tokens.encode("to be or not to be")
    assert seen == ["to", " be", " or", " not", " to"]


# --------------------------------------------------------------------------- corpus


def test_documents_stand_in_a_row(corpus: c.Corpus) -> None:
    documents = corpus.documents("train")
    stream = corpus.stream("train")
    assert stream.dtype == torch.int64
    assert stream.tolist() == [i for d in documents for i in d]
    for document, function in zip(documents, corpus.of("train"), strict=True):
        assert (document[0], document[-1]) == (c.START, c.END)
        assert min(document[1:-1]) >= c.SPECIAL
        assert len(document) <= corpus.longest
        assert corpus.tokens.decode(document) == function.text


def test_the_corpus_is_the_same_every_time(corpus: c.Corpus) -> None:
    again = c.Corpus.make(bpe, MODULES, merges=150)
    assert torch.equal(again.stream("train"), corpus.stream("train"))
    other = c.Corpus.make(bpe, MODULES, merges=150, seed=1)
    assert not torch.equal(other.stream("train")[:50], corpus.stream("train")[:50])


def test_bits_per_byte_do_not_depend_on_the_tokens(corpus: c.Corpus) -> None:
    # Guessing the bytes of a text alike costs 8 bits each; what tokens there are changes nothing.
    number = len(corpus.stream("test"))
    nats = corpus.bytes("test") * math.log(256) / number
    assert corpus.bits_per_byte(nats, "test") == pytest.approx(8)
    assert corpus.bytes("test") == sum(len(f.text.encode()) for f in corpus.of("test"))


# --------------------------------------------------------------------------- tasks


def test_tasks_have_examples_of_every_label(tasks: dict[str, c.Task]) -> None:
    assert list(tasks) == ["name", "order", "body"]
    for task in tasks.values():
        for split in ("train", "test"):
            counts = task.counts(split)
            assert list(counts) == list(task.labels)
            assert sum(counts.values()) == len(getattr(task, split))
            if task.name != "name":
                assert 0 <= counts[task.labels[0]] - counts[task.labels[1]] <= 1


def test_names_are_hidden(corpus: c.Corpus, tasks: dict[str, c.Task]) -> None:
    task = tasks["name"]
    assert all(task.counts("train").values())
    for example in task.test:
        node = ast.parse(example.text).body[0]
        assert node.name == "f"
        name = example.source.partition(":")[2]
        kind = task.labels[example.label]
        assert any(name.strip("_").startswith(word.strip("_")) for word in c.NAMED[kind])
        assert corpus.tokens.decode(example.first) == example.text


@pytest.mark.parametrize(
    ("name", "word", "begins"),
    [("get_text", "get", True), ("getText", "get", True), ("get", "get", True),
     ("getter", "get", False), ("__eq__", "__eq__", True), ("isolate", "is", False)],
)  # fmt: skip
def test_a_name_begins_with_a_whole_word(name: str, word: str, begins: bool) -> None:
    assert c._begins(name, word) is begins


def test_two_statements_are_exchanged(corpus: c.Corpus, tasks: dict[str, c.Task]) -> None:
    originals = {f.text for f in corpus.functions}
    for example in tasks["order"].train:
        body = ast.parse(example.text).body[0].body
        again = []
        for place in range(len(body) - 1):
            tree = ast.parse(example.text)
            tree.body[0].body = [
                *body[:place], body[place + 1], body[place], *body[place + 2 :]
            ]  # fmt: skip
            again.append(ast.unparse(tree))
        assert (example.text in originals) == (example.label == 0)
        assert example.label == 0 or any(text in originals for text in again)


def test_bodies_belong_or_not(corpus: c.Corpus, tasks: dict[str, c.Task]) -> None:
    texts: dict[str, set[str]] = {}
    for function in corpus.functions:
        texts.setdefault(function.module, set()).add(function.text)
    for example in tasks["body"].train:
        module = example.source.partition(":")[0]
        assert (example.text + example.second_text in texts[module]) == (example.label == 0)
        assert any(text.endswith(example.second_text) for text in texts[module])
        assert corpus.tokens.decode(example.first + example.second) == (
            example.text + example.second_text
        )


def test_tasks_need_examples_everywhere() -> None:
    few = c.Corpus.make(bpe, ("queue", "contextlib"), merges=5)
    with pytest.raises(ValueError, match="no examples"):
        c.make_tasks(few)
