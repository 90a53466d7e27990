"""Documents, pieces and tasks made of the library's docstrings."""

from __future__ import annotations

import random
import subprocess
import sys
import zlib

import pytest

from toolkit.corpora import docstrings as d

MODULES = (
    "_pydecimal", "argparse", "difflib", "email.message", "inspect", "ipaddress", "logging",
    "statistics", "threading", "turtle", "typing",
)  # fmt: skip


@pytest.fixture(scope="module")
def corpus() -> d.Corpus:
    return d.Corpus.make(MODULES, vocabulary=1500)


@pytest.fixture(scope="module")
def tasks(corpus: d.Corpus) -> dict[str, d.Task]:
    return d.make_tasks(corpus)


# --------------------------------------------------------------------------- documents


def test_paragraphs_become_sentences_without_examples() -> None:
    text = """Return a thing.  It is new.

    >>> thing()
    3

    Things, e.g. this one, are
    small (see PEP 8). Others are not.

    - the first item
    - the second item

    ==== ====
    """
    assert d.paragraphs(text) == (
        ("Return a thing.", "It is new."),
        ("Things, for example this one, are small (see PEP 8).", "Others are not."),
        ("the first item",),
        ("the second item",),
    )
    assert d.paragraphs("") == d.paragraphs("1 + 1 = 2") == ()


def test_signatures_are_those_that_the_function_has(corpus: d.Corpus) -> None:
    found = {x.name: x for x in corpus.docstrings if x.module == "difflib"}
    close = found["get_close_matches"]
    assert close.signature == "get_close_matches(word, possibilities, n=3, cutoff=0.6)"
    assert close.parameters == (
        d.Parameter("word"), d.Parameter("possibilities"), d.Parameter("n", "3"),
        d.Parameter("cutoff", "0.6"),
    )  # fmt: skip
    assert found["SequenceMatcher"].kind == "class"
    assert found["SequenceMatcher"].signature is None
    assert found[""].kind == "module"
    # self is left out, and what is not a parameter by position comes after a star
    method = next(x for x in corpus.docstrings if x.name == "Thread.join")
    assert method.signature == "join(timeout=None)"
    assert any(", *, " in (x.signature or "") for x in corpus.docstrings)


def test_each_docstring_is_in_one_split_with_those_that_begin_alike(corpus: d.Corpus) -> None:
    by_first: dict[str, set[str]] = {}
    for x in corpus.docstrings:
        by_first.setdefault(x.sentences[0].lower(), set()).add(x.split)
    assert all(len(splits) == 1 for splits in by_first.values())
    shares = [sum(x.split == s for x in corpus.docstrings) / len(corpus.docstrings)
              for s in d.SPLITS]  # fmt: skip
    assert shares == pytest.approx([0.7, 0.1, 0.2], abs=0.06)


def test_an_unknown_module_is_refused() -> None:
    with pytest.raises(ValueError, match="no Python source"):
        d.read(("no_such_module",))


# --------------------------------------------------------------------------- pieces


def test_pieces_of_words(corpus: d.Corpus) -> None:
    pieces = corpus.pieces
    assert pieces.names[: d.SPECIAL] == list(d.NAMES)
    assert 1400 <= len(pieces) <= 1500
    text = "Return the ValueErrors of max_workers."
    ids = pieces.encode(text)
    assert pieces.decode(ids) == "return the valueerrors of max _ workers ."
    starts = pieces.starts([d.CLS, *ids, d.SEP])
    assert not starts[0]
    assert not starts[-1]
    assert starts[1:-1] == [not n.startswith("##") for n in pieces.tokens(ids)]
    for i, (begin, end) in zip(ids, pieces.spans(text), strict=True):
        assert pieces.names[i].removeprefix("##") == text[begin:end].lower()
    assert pieces.encode_all([text, ""]) == [ids, []]
    assert pieces.encode("中") == [d.UNK]
    assert pieces.encode("É") == pieces.encode("e")


def test_words_and_their_pieces(corpus: d.Corpus) -> None:
    words = ["max_workers", "is", "unhashableness"]
    ids, numbers = corpus.pieces.encode_words(words)
    assert ids == [i for word in words for i in corpus.pieces.encode(word)]
    assert len(ids) == len(numbers) > 5
    assert sorted(set(numbers)) == [0, 1, 2]
    assert numbers == sorted(numbers)


def test_hardly_a_piece_of_text_is_unknown(corpus: d.Corpus) -> None:
    for split in d.SPLITS:
        ids = [i for document in corpus.documents(split) for s in document for i in s]
        assert ids.count(d.UNK) / len(ids) < 0.002
        assert min(ids) >= d.UNK
        assert max(ids) < len(corpus.pieces)


def test_pieces_are_the_same_in_every_process(corpus: d.Corpus) -> None:
    # The library's hash tables differ from process to process.
    code = (
        "from toolkit.corpora import docstrings as d; import zlib\n"
        f"c = d.Corpus.make({MODULES!r}, vocabulary=1500)\n"
        "print(zlib.crc32(' '.join(c.pieces.names).encode()))"
    )
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said == f"{zlib.crc32(' '.join(corpus.pieces.names).encode())}\n"


def test_vocabularies_that_cannot_be_are_refused(corpus: d.Corpus) -> None:
    with pytest.raises(ValueError, match="larger than"):
        d.Pieces.train(["some words here"] * 20, 10)
    with pytest.raises(ValueError, match="begins with"):
        d.Pieces(["a", *d.NAMES])
    with pytest.raises(ValueError, match="split must be"):
        corpus.documents("all")


def test_documents_have_the_sentences_of_their_split(corpus: d.Corpus) -> None:
    sizes = {}
    for split in d.SPLITS:
        texts = [s for document in corpus.texts(split) for s in document]
        expected = [
            s for x in corpus.docstrings if x.split == split
            for s in ([x.signature] if x.signature else []) + x.sentences
        ]  # fmt: skip
        assert sorted(texts) == sorted(expected)
        sizes[split] = len(texts)
        ids = corpus.documents(split)
        assert [len(x) for x in ids] == [len(x) for x in corpus.texts(split)]
    assert sizes["train"] > 3 * sizes["test"] > 3 * sizes["validation"]


# --------------------------------------------------------------------------- tasks


def test_no_example_of_one_split_is_in_another(tasks: dict[str, d.Task]) -> None:
    for task in tasks.values():
        keys = [{(e.text.lower(), (e.second_text or "").lower()) for e in getattr(task, s)}
                for s in d.SPLITS]  # fmt: skip
        assert not keys[0] & keys[1]
        assert not keys[0] & keys[2]
        assert not keys[1] & keys[2]
        assert len(keys[0]) == len(task.train) > len(task.test) > 0


def test_examples_are_from_docstrings_of_their_split(
    corpus: d.Corpus, tasks: dict[str, d.Task]
) -> None:
    split = {}
    for x in corpus.docstrings:  # an overloaded name has several
        split.setdefault(f"{x.module}:{x.name}", set()).add(x.split)
    for task in tasks.values():
        for name in d.SPLITS:
            assert all(name in split[e.source] for e in getattr(task, name))


def test_the_same_corpus_gives_the_same_tasks(corpus: d.Corpus, tasks: dict[str, d.Task]) -> None:
    random.seed(5)
    again = d.make_tasks(corpus)
    assert again == tasks
    assert random.random() == random.Random(5).random()  # nothing global was drawn


def test_modules_are_balanced(tasks: dict[str, d.Task]) -> None:
    task = tasks["module"]
    counts = task.counts("train")
    assert tuple(counts) == d.TOPICS
    assert sum(counts.values()) == len(task.train)
    assert max(counts.values()) < 0.2 * len(task.train)
    assert min(task.counts("test").values()) > 0
    for e in task.test:
        assert e.source.split(":")[0] == task.labels[e.label]


def test_pairs_are_of_one_module_and_half_follow(
    corpus: d.Corpus, tasks: dict[str, d.Task]
) -> None:
    where: dict[str, set[str]] = {}
    after = set()
    for x in corpus.docstrings:
        for s in x.sentences:
            where.setdefault(s, set()).add(x.module)
        after |= set(zip(x.sentences, x.sentences[1:], strict=False))
    task = tasks["pair"]
    assert task.counts("train")["follows"] == pytest.approx(len(task.train) / 2, rel=0.1)
    for e in task.train + task.test:
        assert e.source.split(":")[0] in where[e.text] & where[e.second_text]
        assert ((e.text, e.second_text) in after) == (e.label == 0)


def test_answers_are_the_defaults(corpus: d.Corpus, tasks: dict[str, d.Task]) -> None:
    task = tasks["span"]
    counts = task.counts("test")
    assert counts["answer"] > counts["no answer"] > 0.2 * len(task.test)
    for e in task.train + task.test:
        name = e.text.removeprefix("What is the default of ").removesuffix("?")
        inside = e.second_text[: e.second_text.index("):")]
        if e.span is None:
            assert f"{name}=" not in inside.replace("(", " ").split(", ")
            assert e.answer == ""
        else:
            begin, end = e.span
            places = corpus.pieces.spans(e.second_text)
            low, high = places[begin][0], places[end][1]
            assert e.second_text[low:high] == e.answer
            assert e.second_text[:low].endswith(f"{name}=")


def test_tags_are_the_parameters(corpus: d.Corpus, tasks: dict[str, d.Task]) -> None:
    names: dict[str, set[str]] = {}
    for x in corpus.docstrings:
        names.setdefault(f"{x.module}:{x.name}", set()).update(p.name for p in x.parameters)
    task = tasks["tagging"]
    for e in task.train + task.test:
        assert any(e.word_labels)
        assert len(e.words) == len(e.word_labels)
        assert {w for w, t in zip(e.words, e.word_labels, strict=True) if t} <= names[e.source]
        assert corpus.pieces.encode_words(e.words) == (e.first, e.word_ids)
        assert not set("`'\"*") & set(e.text)  # markup would give the answer away
    # Context is needed: many names are also words of prose in other sentences.
    tagged = {w for e in task.train for w, t in zip(e.words, e.word_labels, strict=True) if t}
    plain = {w for e in task.train for w, t in zip(e.words, e.word_labels, strict=True) if not t}
    assert len(tagged & plain) > 0.2 * len(tagged)


def test_words_lose_their_markup() -> None:
    assert d.split_words("If `max_workers` isn't *None*, 3 are") == [
        "If", "max_workers", "isn", "None", ",", "3", "are",
    ]  # fmt: skip


def test_modules_without_examples_are_refused() -> None:
    few = d.Corpus.make(("bisect", "heapq", "copy"), vocabulary=400)
    with pytest.raises(ValueError, match="no examples of 'module'"):
        d.make_tasks(few)
