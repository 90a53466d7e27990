"""How an answer looks: escaped, readable without colour, the diagnosis first."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from bs4 import BeautifulSoup
from rich.console import Console

from autograder.common import cards
from autograder.common.cards import Card, Line

FAILED = Card(
    "failed",
    "Your weights match dividing by `d_k` instead of √d_k.",
    name="scaled_dot_product_attention",
    points=2.5,
    max_points=5.0,
    reread="“Why divide?” in the chapter Attention",
    link="../../book/attention/index.md#att-scaling",
    case="scaled_dot_product_attention([[1, 2]])",
    seen="At [0] expected 1, got 2.",
    notes=("It calls your `masked_softmax`.",),
    tests=(
        Line("failed", "Output is right.", "the output is <b>wrong</b> [bold]here[/bold]"),
        Line("todo", "Refuses bad input."),
        Line("passed", "Keeps its inputs."),
    ),
)
PASSED = Card(
    "passed",
    "`merge_heads` passes all 2 checks.",
    name="merge_heads",
    points=1.0,
    max_points=1.0,
    tests=(Line("passed", "One."), Line("passed", "Two.")),
)


def printed(value: object, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(value)
    return console.file.getvalue()


def test_the_headline_comes_first_in_every_form() -> None:
    soup = BeautifulSoup(cards.card_html(FAILED), "html.parser")
    soup.style.decompose()
    assert soup.get_text().startswith("✗Your weights match dividing by d_k instead of √d_k.")
    assert cards.card_text(FAILED).startswith("✗ Your weights match")
    assert printed(cards.card_rich(FAILED)).splitlines()[1].startswith("│ ✗ Your weights match")


@pytest.mark.parametrize(
    "form",
    [cards.card_html, cards.card_text, lambda card: printed(cards.card_rich(card))],
    ids=["html", "text", "rich"],
)
def test_every_form_says_everything(form) -> None:
    text = BeautifulSoup(form(FAILED), "html.parser").get_text()
    text = re.sub(r"[\s│]+", " ", text).replace("`", "")
    for part in (
        "scaled_dot_product_attention",
        "2.5 of 5 points on the visible tests",
        "“Why divide?” in the chapter Attention",
        "Smallest failing case: scaled_dot_product_attention([[1, 2]])",
        "At [0] expected 1, got 2.",
        "It calls your masked_softmax.",
        "Output is right.",
        "[bold]here[/bold]",
        "Refuses bad input.",
        "Keeps its inputs.",
    ):
        assert part in text, part


def test_a_students_text_cannot_become_markup() -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>`<svg onload=alert(1)>`"
    card = Card(
        "failed",
        evil,
        name='x" onmouseover="alert(1)',
        points=0.0,
        max_points=1.0,
        reread=evil,
        link='javascript"><script>',
        case=evil,
        seen=evil,
        notes=(evil,),
        tests=(Line("failed", evil, evil),),
    )
    for html in (cards.card_html(card), cards.overview_html([card], evil)):
        soup = BeautifulSoup(html, "html.parser")
        assert not soup.find_all(["script", "img", "svg"])
        assert not [tag for tag in soup.find_all(True) for key in tag.attrs if key.startswith("on")]


def test_a_state_is_never_told_by_colour_alone() -> None:
    soup = BeautifulSoup(cards.card_html(FAILED), "html.parser")
    signs = soup.find_all(class_="tbh-sign")
    assert [sign.get_text() for sign in signs] == ["✗", "✗", "○", "✓"]
    assert [sign["aria-label"] for sign in signs] == ["failed", "failed", "open", "passed"]
    assert all(sign["role"] == "img" for sign in signs)


def test_colours_follow_the_theme_and_have_a_fallback() -> None:
    used = re.findall(r"var\((--[\w-]+)(,?)", cards.STYLE)
    for name, comma in used:
        assert name.startswith(("--jp-", "--tbh-"))
        assert comma or name.startswith("--tbh-"), f"{name} has no fallback"
    assert "http" not in cards.STYLE


def test_a_card_that_passes_is_short_and_can_be_opened() -> None:
    soup = BeautifulSoup(cards.card_html(PASSED), "html.parser")
    assert soup.details.summary.get_text() == "What was checked (2)"
    assert "open" not in soup.details.attrs
    assert len(soup.details.find_all("li")) == 2


def test_under_a_known_mistake_each_tests_account_is_folded() -> None:
    card = replace(FAILED, known=True)
    soup = BeautifulSoup(cards.card_html(card), "html.parser")
    (details,) = soup.find_all("details")
    assert details.summary.get_text().endswith("Output is right.")
    assert "here" in details.get_text()
    assert "here" not in cards.card_text(card)
    assert "Output is right." in cards.card_text(card)


def test_the_link_is_there_only_when_the_book_is() -> None:
    soup = BeautifulSoup(cards.card_html(FAILED), "html.parser")
    assert soup.a["href"] == "../../book/attention/index.md#att-scaling"
    without = Card("failed", "x", reread="section att-scaling")
    assert "<a " not in cards.card_html(without)


def test_the_overview_has_a_row_for_each_exercise() -> None:
    both = [FAILED, PASSED]
    soup = BeautifulSoup(cards.overview_html(both, "Attention"), "html.parser")
    rows = soup.tbody.find_all("tr")
    assert [row.find("code").get_text() for row in rows] == [card.name for card in both]
    assert "Attention: 1 of 2 exercises pass, 3.5 of 6 points" in soup.get_text()
    text = cards.overview_text(both, "Attention")
    assert len(text.splitlines()) == 3
    assert "✓ merge_heads" in text
    assert "2.5 / 5" in printed(cards.overview_rich(both, "Attention"))


def test_numbers_have_no_needless_zeros() -> None:
    assert [cards.number(value) for value in (0, 2.0, 2.5, 0.33)] == ["0", "2", "2.5", "0.33"]
