"""The library's text is there, in order; ids lose nothing; pieces are what they say."""

from __future__ import annotations

import json.decoder
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit import text as tx

# --------------------------------------------------------------------------- the text


def test_docstrings_are_those_of_the_running_python() -> None:
    text = tx.library_text(["json.decoder", "textwrap"])
    assert text.index("Simple JSON <https://json.org> decoder") > text.index("JSON")
    assert "document" in json.decoder.JSONDecoder.decode.__doc__
    assert "Return the Python representation of ``s``" in text
    assert "Dedent" in text or "Remove any common leading whitespace" in text
    assert "def " not in tx.library_text(["textwrap"])
    assert "\n\n\n\n" not in text


def test_sources_are_the_files_themselves() -> None:
    [(name, source)] = tx.library_documents(["json.decoder"], part="sources")
    assert name == "json.decoder"
    assert source == Path(json.decoder.__file__).read_text(encoding="utf-8")


def test_docstrings_come_in_the_order_of_the_file() -> None:
    [(_, text)] = tx.library_documents(["textwrap"])
    assert text.index("Object for wrapping") < text.index("Split the text to wrap")
    assert text.index("Split the text to wrap") < text.index("Wrap a single paragraph")


def test_modules_come_in_the_order_asked_for() -> None:
    names = ["textwrap", "abc", "json"]
    assert [name for name, _ in tx.library_documents(names)] == names
    parts = [text for _, text in tx.library_documents(names)]
    assert tx.library_text(names) == "\n".join(parts)


def test_there_is_enough_to_train_on_and_a_limit_takes_the_beginning() -> None:
    beginning = tx.library_text(limit=150_000)
    assert len(beginning) == 150_000
    assert tx.library_text(limit=100_000) == beginning[:100_000]
    assert len(tx.library_text(part="sources", limit=3_000_000)) == 3_000_000


def test_the_text_is_the_same_in_another_process_and_no_module_is_imported_for_it() -> None:
    program = (
        "import sys; from toolkit.text import library_text;"
        "print(ascii(library_text(limit=50_000)));"
        "library_text(['turtle', 'xmlrpc.client', 'wave']);"
        "print({'turtle', 'xmlrpc.client', 'wave'} & set(sys.modules))"
    )
    printed = subprocess.check_output([sys.executable, "-c", program], text=True).splitlines()
    assert printed == [ascii(tx.library_text(limit=50_000)), "set()"]


@pytest.mark.parametrize("name", ["nothing_such", "../etc/passwd", "", "json.nothing", "sys"])
def test_a_module_without_source_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=r"no Python source of .*json\.decoder"):
        tx.library_text(["json", name])


def test_requests_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="limit"):
        tx.library_text(limit=0)
    with pytest.raises(ValueError, match="part"):
        tx.library_text(part="comments")
    with pytest.raises(ValueError, match="module"):
        tx.library_text([])


# --------------------------------------------------------------------------- splits


def test_splits_put_together_are_the_text() -> None:
    text = tx.library_text(limit=100_000)
    parts = tx.splits(text)
    assert parts.train + parts.validation + parts.test == text
    assert len(parts.train) == pytest.approx(90_000, abs=300)
    assert len(parts.validation) == pytest.approx(5_000, abs=300)
    assert parts.train.endswith("\n")
    assert parts.validation.endswith("\n")


@given(
    st.text(st.sampled_from("ab\n"), min_size=1, max_size=60),
    st.sampled_from([(0.9, 0.05, 0.05), (1.0, 0.0, 0.0), (0.0, 0.0, 1.0), (0.3, 0.3, 0.4)]),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_short_texts_are_split_without_loss(text: str, shares: tuple) -> None:
    parts = tx.splits(text, shares)
    assert parts.train + parts.validation + parts.test == text


def test_a_text_without_lines_is_split_all_the_same() -> None:
    parts = tx.splits("x" * 1000)
    assert (len(parts.train), len(parts.validation), len(parts.test)) == (900, 50, 50)


def test_bad_splits_are_refused() -> None:
    with pytest.raises(ValueError, match="shares"):
        tx.splits("abc", (0.5, 0.6, -0.1))
    with pytest.raises(ValueError, match="no text"):
        tx.splits("")


# --------------------------------------------------------------------------- ids


@given(st.text(min_size=1, max_size=50))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_characters_lose_nothing(text: str) -> None:
    vocabulary = tx.Characters.of(text)
    ids = vocabulary.encode(text)
    assert ids.dtype == torch.int64
    assert ids.shape == (len(text),)
    assert vocabulary.decode(ids) == text


def test_the_vocabulary_is_in_the_order_of_code_points() -> None:
    vocabulary = tx.Characters.of("hello, world")
    assert vocabulary.symbols == sorted(set("hello, world"))
    assert len(vocabulary) == 9
    assert (
        vocabulary.encode("heXllo", skip_unknown=True).tolist()
        == vocabulary.encode("hello").tolist()
    )


def test_what_is_not_in_a_vocabulary_is_named() -> None:
    vocabulary = tx.Characters.of("abc")
    with pytest.raises(ValueError, match="'x' is not in this vocabulary"):
        vocabulary.encode("axb")
    for wrong in (3, -1):
        with pytest.raises(ValueError, match="outside"):
            vocabulary.decode([wrong])
    with pytest.raises(ValueError, match="single characters"):
        tx.Characters(["ab"])
    with pytest.raises(ValueError, match="single characters"):
        tx.Characters("")


# --------------------------------------------------------------------------- pieces


def test_blocks_are_pieces_of_the_text_and_what_follows() -> None:
    ids = torch.arange(100)
    stream = tx.blocks(ids, 7, 5, torch.Generator().manual_seed(0))
    starts = set()
    for _ in range(200):
        inputs, targets = next(stream)
        assert inputs.shape == targets.shape == (5, 7)
        assert torch.equal(targets, inputs + 1)
        assert torch.equal(inputs - inputs[:, :1], torch.arange(7).expand(5, -1))
        starts |= set(inputs[:, 0].tolist())
    assert starts == set(range(93))  # every place, and none beyond the end


def test_the_generator_decides_the_blocks() -> None:
    def first(seed: int) -> torch.Tensor:
        return next(tx.blocks(torch.arange(50), 5, 4, torch.Generator().manual_seed(seed)))[0]

    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1), first(2))


def test_the_shortest_text_has_one_block() -> None:
    stream = tx.blocks(torch.arange(4), 3, 2, torch.Generator())
    inputs, targets = next(stream)
    assert inputs.tolist() == [[0, 1, 2]] * 2
    assert targets.tolist() == [[1, 2, 3]] * 2


@pytest.mark.parametrize(
    ("size", "length", "batch"), [(2, 1, 1), (21, 5, 2), (23, 5, 2), (4, 9, 3)]
)
def test_in_order_every_token_is_a_target_once(size: int, length: int, batch: int) -> None:
    seen: list[int] = []
    for inputs, targets in tx.in_order(torch.arange(size), length, batch):
        assert torch.equal(targets, inputs + 1)
        assert inputs.shape[0] <= batch
        assert inputs.shape[1] <= length
        seen += targets.flatten().tolist()
    assert seen == list(range(1, size))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g: tx.blocks(torch.arange(3), 3, 1, g), "too short"),
        (lambda g: tx.blocks(torch.zeros(9), 3, 1, g), "integers"),
        (lambda g: tx.blocks(torch.arange(9).view(3, 3), 2, 1, g), "one row"),
        (lambda g: tx.blocks(torch.arange(9), 0, 1, g), "length"),
        (lambda g: tx.blocks(torch.arange(9), 1, 0, g), "batch_size"),
        (lambda g: tx.in_order(torch.arange(1), 1, 1), "two or more"),
        (lambda g: tx.in_order(torch.arange(5), 0, 1), "length"),
    ],
)
def test_pieces_that_cannot_be_are_refused_at_once(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(torch.Generator())
