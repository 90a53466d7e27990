"""Pictures of fine-tuning: they show what they are given, and text is escaped."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import pytest

from toolkit.bert import fine_tuning_pictures as pictures


@pytest.fixture(autouse=True)
def close() -> Iterator[None]:
    yield
    plt.close("all")


def test_impossible_pairs_have_no_sum_but_the_one_in_question() -> None:
    ax = pictures.span_sums(pictures.PASSAGE, pictures.START, pictures.END, (3, 1), (0, 1)).axes[0]
    shown = {text.get_position(): text.get_text() for text in ax.texts}
    assert shown[1, 0] == "6"
    assert shown[1, 3] == "7"
    assert [shown[j, i] for i in range(5) for j in range(i) if (j, i) != (1, 3)] == ["−∞"] * 9


def test_each_head_reads_the_states_that_its_task_needs() -> None:
    ax = pictures.four_heads().axes[0]
    read = {p.get_gid() for p in ax.patches if p.get_gid() and p.get_gid().endswith(".h0")}
    assert len(read) == len(pictures.PANELS)
    assert [panel[3] for panel in pictures.PANELS] == [(0,), (0,), (4, 5, 6, 7), (1, 2, 3, 4)]


def test_the_logits_of_a_span_are_shown_with_their_sums() -> None:
    one = {
        "question": "What is <b>?", "tokens": ["f", "=", "none"], "start": [-1.0, 0, 2.5],
        "end": [0.25, 0, 1.5], "null": -8.0, "right": [2, 2],
    }  # fmt: skip
    waiting, page = [pictures.span_page({"b": one})], ""
    while waiting:
        widget = waiting.pop()
        waiting += getattr(widget, "children", ())
        page += str(getattr(widget, "value", ""))
    assert "sum 4.00" in page
    assert "no answer: −8.00" in page
    assert "<span>−1.00</span>" in page
    assert "What is &lt;b&gt;?" in page


def test_words_are_escaped() -> None:
    text = pictures.chips({"words": ["<b>", "x"], "shares": [0.2, 0.9], "right": [0, 1]})
    assert "&lt;b&gt;" in text
    assert "<b>" not in text
    assert text.count("class=y") == 1
