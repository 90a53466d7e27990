"""How a check looks: HTML for notebooks, plain text for logs, rich text for terminals.

One `Card` is one answer. All words reach the page escaped; every state has a symbol and a word,
so that nothing is said by colour alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

SYMBOLS = {"passed": "✓", "failed": "✗", "todo": "○", "problem": "!"}
WORDS = {"passed": "passed", "failed": "failed", "todo": "open", "problem": "problem"}
RICH = {"passed": "green", "failed": "red", "todo": "yellow", "problem": "yellow"}


@dataclass(frozen=True)
class Line:
    """One test: how it ended, what it is for, and what it saw.

    With `apart` the headline of a card does not explain it, even if it is of a known mistake.
    """

    outcome: str
    purpose: str
    message: str = ""
    apart: bool = False


@dataclass(frozen=True)
class Card:
    """What is said about one exercise. `headline` is the sentence to read first.

    `case` is the smallest failing call and `seen` what it gave; with `known`, the headline explains
    the failures, and what each test saw is there to be opened rather than to be read.
    """

    status: str
    headline: str
    name: str = ""
    points: float | None = None
    max_points: float = 0.0
    reread: str = ""
    link: str = ""
    case: str = ""
    seen: str = ""
    notes: Sequence[str] = ()
    known: bool = False
    tests: Sequence[Line] = field(default_factory=tuple)


# A message may quote what a student's code raised. MathJax would make links and styles of it.
NO_MATHS = "tex2jax_ignore mathjax_ignore"
# JupyterLab gives its theme as --jp-* variables; elsewhere the text's own colour is the guide.
STYLE = """<style>
.tbh-card.tbh-card{--tbh-ok:var(--jp-success-color1,#2e7d32);--tbh-no:var(--jp-error-color1,#c62828);
--tbh-todo:var(--jp-warn-color1,#b26a00);color:var(--jp-content-font-color1,inherit);
font-family:var(--jp-content-font-family,system-ui,sans-serif);
font-size:var(--jp-content-font-size1,14px);line-height:1.5;max-width:62em;margin:4px 0 8px;
padding:8px 14px 10px;border:1px solid var(--jp-border-color2,rgba(128,128,128,.4));
border-left:5px solid var(--tbh-tone);border-radius:4px;
background:var(--jp-layout-color1,transparent)}
.tbh-passed{--tbh-tone:var(--tbh-ok)}.tbh-failed{--tbh-tone:var(--tbh-no)}
.tbh-todo,.tbh-problem{--tbh-tone:var(--tbh-todo)}
.tbh-card.tbh-card p{margin:0 0 4px}
.tbh-card.tbh-card .tbh-head{font-size:1.1em;font-weight:600}
.tbh-card.tbh-card .tbh-sign{color:var(--tbh-tone);font-weight:700;margin-right:.45em}
.tbh-card.tbh-card .tbh-meta{color:var(--jp-content-font-color2,inherit)}
.tbh-card.tbh-card code{font-family:var(--jp-code-font-family,monospace);font-size:.93em;
background:var(--jp-layout-color2,rgba(128,128,128,.15));color:inherit;padding:0 .25em;
border-radius:3px;overflow-wrap:anywhere}
.tbh-card.tbh-card ul{list-style:none;margin:6px 0 0;padding:0}
.tbh-card.tbh-card li{margin:2px 0;padding-left:1.5em;text-indent:-1.5em}
.tbh-card.tbh-card .tbh-sign{display:inline-block;width:1.05em;text-indent:0}
.tbh-card.tbh-card .tbh-head .tbh-sign{width:auto}
.tbh-card.tbh-card .tbh-why{display:block;text-indent:0;
border-left:2px solid var(--tbh-tone);padding-left:.7em;margin:1px 0 4px}
.tbh-card.tbh-card .tbh-case{margin:6px 0}
.tbh-card.tbh-card details{margin:6px 0 0}
.tbh-card.tbh-card li details{margin:0}
.tbh-card.tbh-card summary{cursor:pointer}
.tbh-card.tbh-card li summary{list-style:none}
.tbh-card.tbh-card li summary::after{content:" …";color:var(--jp-content-font-color2,inherit)}
.tbh-card.tbh-card summary:focus-visible{outline:2px solid currentColor;outline-offset:1px}
.tbh-card.tbh-card a{color:var(--jp-content-link-color,#1565c0);text-decoration:underline}
.tbh-card.tbh-card table{border-collapse:collapse;margin:6px 0 0;font-size:inherit;color:inherit;
table-layout:auto}
.tbh-card.tbh-card th,.tbh-card.tbh-card td{text-align:left;padding:2px 14px 2px 0;
vertical-align:top;border:0;max-width:none;white-space:normal}
.tbh-card.tbh-card tr{background:transparent}
.tbh-card.tbh-card td code{white-space:nowrap}
.tbh-card.tbh-card td.tbh-number{text-align:right;white-space:nowrap}
</style>"""


def number(value: float) -> str:
    """2.0 as 2, 2.5 as 2.5."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def span(seconds: float) -> str:
    """A length of time in words: "2 days 3 hours", "5 minutes"."""
    minutes = max(1, round(seconds / 60))
    days, minutes = divmod(minutes, 1440)
    hours, minutes = divmod(minutes, 60)
    parts: list[str] = []
    for count, noun in ((days, "day"), (hours, "hour"), (minutes, "minute")):
        if count and len(parts) < 2:
            parts.append(f"{count} {noun}" + ("" if count == 1 else "s"))
    return " ".join(parts)


def points(card: Card) -> str:
    """How many points, in words; empty where none are at stake."""
    if card.points is None:
        return ""
    return f"{number(card.points)} of {number(card.max_points)} points on the visible tests"


def _html(text: str) -> str:
    """Escaped, with `code` between backticks."""
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", escape(text))


def _sign(outcome: str, *, spoken: bool = True) -> str:
    word = f' role="img" aria-label="{WORDS[outcome]}"' if spoken else ""
    return f'<span class="tbh-sign tbh-{outcome}"{word}>{SYMBOLS[outcome]}</span>'


def card_html(card: Card) -> str:
    """The card as HTML that follows JupyterLab's theme."""
    parts = [
        STYLE,
        f'<div class="tbh-card tbh-{card.status} {NO_MATHS}" role="region" '
        f'aria-label="Check{": " + escape(card.name) if card.name else ""}">',
        f'<p class="tbh-head">{_sign(card.status)}{_html(card.headline)}</p>',
    ]
    meta = []
    if card.name:
        meta.append(f"<code>{escape(card.name)}</code>")
    if points(card):
        meta.append(points(card))
    if card.reread:
        words = escape(card.reread)
        if card.link:
            words = f'<a href="{escape(card.link)}" target="_blank" rel="noopener">{words}</a>'
        meta.append(f"reread {words}")
    if meta:
        parts.append(f'<p class="tbh-meta">{" · ".join(meta)}</p>')
    parts.extend(f"<p>{_html(note)}</p>" for note in card.notes)
    if card.case:
        seen = f'<span class="tbh-why">{_html(card.seen)}</span>' if card.seen else ""
        parts.append(
            f'<p class="tbh-case">Smallest failing case: <code>{escape(card.case)}</code>{seen}</p>'
        )
    if card.tests:
        rows = "".join(_test_html(test, fold=card.known and not test.apart) for test in card.tests)
        if card.status == "passed":
            count = len(card.tests)
            rows = (
                f"<details><summary>What was checked ({count})</summary><ul>{rows}</ul></details>"
            )
            parts.append(rows)
        else:
            parts.append(f"<ul>{rows}</ul>")
    parts.append("</div>")
    return "".join(parts)


def _test_html(test: Line, *, fold: bool = False) -> str:
    words = f"{_sign(test.outcome)}{_html(test.purpose)}"
    if test.message:
        why = f'<span class="tbh-why">{_html(test.message)}</span>'
        words = f"<details><summary>{words}</summary>{why}</details>" if fold else words + why
    return f'<li class="tbh-{test.outcome}">{words}</li>'


def card_text(card: Card) -> str:
    """The card as plain text: what a terminal, a log or a screen reader is given."""
    lines = [f"{SYMBOLS[card.status]} {card.headline}"]
    meta = [part for part in (card.name, points(card)) if part]
    if meta:
        lines.append("  " + ": ".join(meta))
    if card.reread:
        lines.append(f"  Reread {card.reread}")
    lines.extend(f"  {note}" for note in card.notes)
    if card.case:
        lines.append(f"  Smallest failing case: {card.case}")
        if card.seen:
            lines.append(f"      {card.seen}")
    for test in card.tests:
        lines.append(f"  {SYMBOLS[test.outcome]} {test.purpose}")
        if test.message and (test.apart or not card.known):
            lines.append(f"      {test.message}")
    return "\n".join(lines)


def overview_html(cards: Sequence[Card], title: str) -> str:
    """All exercises as a table: one line each."""
    status, headline = _summary(cards, title)
    rows = "".join(
        f"<tr><td>{_sign(card.status)}</td><td><code>{escape(card.name)}</code></td>"
        f'<td class="tbh-number">{number(card.points or 0)} / {number(card.max_points)}</td>'
        f"<td>{_html(_brief(card))}</td></tr>"
        for card in cards
    )
    head = (
        '<tr><th scope="col">State</th><th scope="col">Exercise</th>'
        '<th scope="col">Points</th><th scope="col">What to do</th></tr>'
    )
    return (
        f'{STYLE}<div class="tbh-card tbh-{status} {NO_MATHS}" role="region" aria-label="Overview">'
        f'<p class="tbh-head">{_sign(status)}{_html(headline)}</p>'
        f"<table><thead>{head}</thead><tbody>{rows}</tbody></table></div>"
    )


def overview_text(cards: Sequence[Card], title: str) -> str:
    """All exercises as plain text: one line each."""
    status, headline = _summary(cards, title)
    width = max((len(card.name) for card in cards), default=0)
    lines = [f"{SYMBOLS[status]} {headline}"]
    for card in cards:
        mark = f"{number(card.points or 0)}/{number(card.max_points)}"
        line = f"  {SYMBOLS[card.status]} {card.name:<{width}}  {mark:>7}  {_brief(card)}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def _brief(card: Card) -> str:
    return "" if card.status == "passed" else card.headline


def _summary(cards: Sequence[Card], title: str) -> tuple[str, str]:
    done = sum(card.status == "passed" for card in cards)
    got = sum(card.points or 0 for card in cards)
    most = sum(card.max_points for card in cards)
    status = "passed" if done == len(cards) else "todo"
    return status, (
        f"{title}: {done} of {len(cards)} exercises pass, "
        f"{number(got)} of {number(most)} points on the visible tests"
    )


def card_rich(card: Card) -> RenderableType:
    """The card for a terminal."""
    from rich.panel import Panel
    from rich.text import Text

    tone = RICH[card.status]
    body = Text()
    meta = [part for part in (points(card), f"reread {card.reread}" if card.reread else "") if part]
    if meta:
        body.append(" · ".join(meta) + "\n", style="dim")
    for note in card.notes:
        body.append(note + "\n")
    if card.case:
        body.append("Smallest failing case: ").append(card.case + "\n", style="bold")
        if card.seen:
            body.append(f"    {card.seen}\n")
    for test in card.tests:
        body.append(f"{SYMBOLS[test.outcome]} ", style=RICH[test.outcome])
        body.append(test.purpose + "\n")
        if test.message and (test.apart or not card.known):
            body.append(f"    {test.message}\n", style=RICH[test.outcome])
    headline = Text(f"{SYMBOLS[card.status]} {card.headline}\n", style=f"bold {tone}")
    body.rstrip()
    return Panel(
        Text.assemble(headline, body),
        title=Text(card.name) if card.name else None,
        title_align="left",
        border_style=tone,
    )


def overview_rich(cards: Sequence[Card], title: str) -> RenderableType:
    """The overview for a terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(_summary(cards, title)[1]), title_justify="left", box=None)
    table.add_column("")
    table.add_column("Exercise", no_wrap=True)
    table.add_column("Points", justify="right", no_wrap=True)
    table.add_column("What to do")
    for card in cards:
        table.add_row(
            Text(SYMBOLS[card.status], style=RICH[card.status]),
            Text(card.name),
            f"{number(card.points or 0)} / {number(card.max_points)}",
            Text(_brief(card)),
        )
    return table
