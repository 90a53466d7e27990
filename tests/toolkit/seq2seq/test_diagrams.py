"""Diagrams of the sequence-to-sequence chapter: right labels, nothing overlaps or runs out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from matplotlib.figure import Figure

from tests.toolkit.drawings import Drawings, words
from toolkit.seq2seq import diagrams as diagrams

DRAWINGS: dict[str, Callable[[], Figure]] = {
    "unrolled": lambda: diagrams.unrolled(["March", "5"], ["5", ".", "März"]),
    "lstm": diagrams.lstm_cell,
}


class TestDrawings(Drawings):
    drawings = DRAWINGS


@pytest.mark.parametrize(("source", "target"), [(["a"], ["b"]), (["a", "b", "c"], ["d", "e"])])
def test_the_decoder_is_fed_what_it_has_written(source: list[str], target: list[str]) -> None:
    text = words(diagrams.unrolled(source, target))
    assert all(text.count(word) == 1 for word in source)
    assert all(text.count(word) == 2 for word in target)  # written, then read
    assert text.count("<bos>") == text.count("<eos>") == 1
    assert f"$s_{{{len(target) + 1}}}$" in text  # one step more than words, for the stop token
    assert f"$s_{{{len(target) + 2}}}$" not in text


def test_the_state_is_handed_over_and_the_encoder_starts_from_zeros() -> None:
    text = words(DRAWINGS["unrolled"]())
    assert "$h_0=0$" in text
    assert "$h_{2}=h_T=C$" in text


@pytest.mark.parametrize(("source", "target"), [([], ["a"]), (["a"], [])])
def test_an_empty_side_is_refused(source: list[str], target: list[str]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        diagrams.unrolled(source, target)


def test_the_lstm_has_its_gates() -> None:
    text = " ".join(words(diagrams.lstm_cell()))
    assert text.count("tanh") == 2  # of the candidate, and of the memory that is read
    for gate in ("output", "input", "forget"):
        assert text.count(gate) == 1
