"""The box on the page about tokens cuts text as the exercises do, and the frames say the counts."""

from __future__ import annotations

import functools
import json
import random
import re
import shutil
import subprocess

import matplotlib.pyplot as plt
import pytest

from solutions.positional_encoding import bpe_encode, train_bpe, wordpiece_encode
from tests.toolkit.drawings import Drawings, words
from toolkit.corpora.docstrings import Pieces
from toolkit.positional_encoding import subword_pictures as pictures

NODE = shutil.which("node")
TEXT = pictures.SENTENCES
MERGES = train_bpe(TEXT, 12)
MORE = train_bpe("the then either ␣ café 🐕🐕 \x85\x85 the dog  dogs\n\n other theatre " * 3, 60)
PIECES = ["[UNK]", "the", "dog", "dogma", "man", "bit", "##s", "##matic", "a", "##a", ".", "é"]
ODD = ["", " ", "  ", "\n", "\ufeffthe", "a\ufeff b", "\x1c\x1d\x85 the", "the\u3000dog", "\xa0",
       "e\u0301 é", "\U0001f469\u200d\U0001f680", "\u4f4d\u7f6e", "\x00\x7f\ufffd\U0010ffff", "İI",
       "dog's-dogma_[the]`~", "The DOGS bit.", "a" * 100, "a" * 101, "\u180e the"]  # fmt: skip


def texts(number: int) -> list[str]:
    """The odd ones, then random ones of letters and words that the tokenizers know, and others."""
    draw = random.Random(0)
    parts = [*"abdeghimnotr .,\n\t", "the", " the", "dog", "dogmatic", "either", "é", "ß", "🐕",
             "\x85", "\ufeff", "A", "\u2028"]  # fmt: skip
    made = ["".join(draw.choices(parts, k=draw.randint(1, 30))) for _ in range(number - len(ODD))]
    return ODD + made


def by_python(text: str, tokenizer: list) -> list[list]:
    if isinstance(tokenizer[0], str):
        found = [p for word in pictures.words_of(text) for p in wordpiece_encode(word, tokenizer)]
        return [[piece, tokenizer.index(piece)] for piece in found]
    pieces = pictures.pieces_of(tokenizer)
    return [[pictures.readable(pieces[i]), i] for i in bpe_encode(text, tokenizer)]


@pytest.mark.skipif(NODE is None, reason="runs JavaScript without a browser")
@pytest.mark.parametrize("tokenizer", [MERGES, MORE, PIECES], ids=["few", "more", "pieces"])
def test_the_script_cuts_as_python_does(tokenizer: list) -> None:
    asked = texts(200)
    script = (
        f"{pictures.CUT}console.log(JSON.stringify({json.dumps(asked)}.map("
        f"text => cut(text, {json.dumps(tokenizer)}, {len(tokenizer)}))));"
    )
    ran = subprocess.run([NODE, "-e", script], capture_output=True, text=True, check=True)
    for text, found in zip(asked, json.loads(ran.stdout), strict=True):
        assert found == by_python(text, tokenizer), repr(text)


def test_words_are_those_of_bert_for_plain_text() -> None:
    text = "The dog's (old) un_tidy man, e.g. 2-3 DOGS\tbit!"
    pieces = Pieces.train([text] * 20, size=90)
    mine = [p for word in pictures.words_of(text) for p in wordpiece_encode(word, pieces.names)]
    assert mine == pieces.tokens(pieces.encode(text))


def test_a_frame_counts_pairs_and_says_which_is_merged() -> None:
    first = pictures.merging(TEXT, MERGES, 0, bpe_encode)
    row = re.search(r"<tr class=next>.*?</tr>", first)[0]
    assert "<kbd>h</kbd><kbd>e</kbd>" in row
    assert "(104, 101)</td><td>4<" in row
    assert "After 0 merges: 39 tokens" in first
    assert "… and 6 more pairs" in first
    last = pictures.merging(TEXT, MERGES, 12, bpe_encode)
    assert "10 tokens" in last
    assert "No pair is left." in last
    assert "<kbd>␣dog</kbd>" in last
    for done in range(13):
        total = len(bpe_encode(TEXT, MERGES[:done]))
        assert f": {total} tokens" in pictures.merging(TEXT, MERGES, done, bpe_encode)


def test_the_box_has_labels_and_ends_its_script_once() -> None:
    shown = pictures.typing_box({"a": MERGES, "b": [*PIECES, "</script>"]}, "<&>").data
    names = re.findall(r"<label for=([\w-]+)", shown)
    assert names
    assert all(f"id={name} " in shown or f"id={name}>" in shown for name in names)
    assert shown.count("</script>") == 1
    assert "&lt;&amp;&gt;</textarea>" in shown
    assert "http" not in shown


@pytest.mark.parametrize("wrong", [{}, {"a": []}, {"a": ["the"]}], ids=["none", "empty", "unk"])
def test_a_box_without_a_tokenizer_is_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match=r"tokenizer|UNK"):
        pictures.typing_box(wrong, "the")


def test_a_comparison_needs_all_columns() -> None:
    assert "<kbd>␣a</kbd>" in pictures.compared(["", "x"], [("one", [["␣a"]])]).data
    # On a phone the head is hidden, and each cell says its column.
    assert "<td data-column='&lt;x'>" in pictures.compared(["", "<x"], [("one", [["a"]])]).data
    with pytest.raises(ValueError, match="1 columns"):
        pictures.compared(["", "x"], [("one", [])])


def test_the_curve_names_its_sizes() -> None:
    figure = pictures.shortening([256, 300], {"new": [1, 1.5], "other": [1, 1.2]})
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == ["256", "300"]
    plt.close(figure)


LOW = [(108, 111), (256, 119), (32, 257)]  # lo, low, and low after a space
DRAWINGS = {"merges": functools.partial(pictures.merge_tree, " lowest", LOW)}


class TestDrawings(Drawings):
    drawings = DRAWINGS


def test_the_tree_merges_in_the_order_of_learning() -> None:
    text = words(pictures.merge_tree(" lowest", LOW))
    assert [word for word in text if word.startswith("merge")] == ["merge 0", "merge 1", "merge 2"]
    assert {"lo", "low", "␣low"} <= set(text)
    assert "ids 258, 101, 115, 116" in text


def test_the_tree_shows_bytes_that_are_no_text_as_numbers() -> None:
    text = words(pictures.merge_tree("é", [(195, 169)]))
    assert {"c3", "a9", "é", "ids 256"} <= set(text)
    assert words(pictures.merge_tree("é", []))[-1] == "ids 195, 169"


def test_a_tree_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        pictures.merge_tree("", LOW)
