"""All prose of the library: what is read, how it is split, and that nothing leaks."""

from __future__ import annotations

import pytest

from toolkit.corpora import docstrings, library_prose
from toolkit.corpora.library_prose import comments, read, split

NAMES = ("json.decoder", "difflib", "queue", "argparse", "shlex", "heapq", "csv", "tempfile")


def test_comments_are_sentences_without_code() -> None:
    source = (
        "# The first line of a comment\n# that goes on here.\nx = 1  # beside code, left out\n"
        "    # y = f(x)\ny = 2\n# A second comment stands here.\n"
    )
    assert comments(source) == (
        "The first line of a comment that goes on here.", "A second comment stands here.",
    )  # fmt: skip


def test_comments_of_a_broken_file_are_those_before_the_break() -> None:
    assert comments("# All is well up to here.\nx = (\n") == ("All is well up to here.",)


def test_modules_are_the_librarys_own() -> None:
    names = library_prose.modules()
    assert {"json.decoder", "json", "argparse"} <= set(names)
    assert not any(name.startswith(("test.", "encodings.", "idlelib.idle_test")) for name in names)


def test_a_document_has_kind_source_and_sentences() -> None:
    documents = read(NAMES)
    assert {d.kind for d in documents} == {"docstrings", "comments"}
    assert {d.source for d in documents} <= set(NAMES)
    assert all(d.sentences for d in documents)


def test_a_held_out_sentence_is_in_no_other_split() -> None:
    seen: dict[str, str] = {}
    for document in read(NAMES):
        for sentence in document.sentences:
            plain = docstrings._plain(sentence)
            if plain.count(" ") >= 3:
                assert seen.setdefault(plain, document.split) == document.split


def test_docstrings_that_tasks_hold_out_are_held_out_here() -> None:
    of_tasks = {
        docstrings._plain(one.sentences[0])
        for one in docstrings.read(NAMES) if one.split != "train"
    }  # fmt: skip
    trained = {docstrings._plain(s) for d in split(read(NAMES), "train") for s in d}
    assert {plain for plain in of_tasks & trained if plain.count(" ") >= 3} == set()


def test_another_split_is_refused() -> None:
    with pytest.raises(ValueError, match="train, validation, test"):
        split(read(NAMES), "exam")
