"""The page on tokens: its example, its pictures, and a box that cuts what a reader types.

The box is HTML with a script of its own and needs neither a kernel nor a network. The script cuts
text exactly as the exercises of `positional_encoding-tokens` do; `tests/toolkit` compares both.
"""

from __future__ import annotations

import html
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from IPython.display import HTML
from matplotlib.figure import Figure

from toolkit import plots
from toolkit.diagrams import Box, Canvas
from toolkit.plots import INK

Pair = tuple[int, int]
Encode = Callable[[str, Sequence[Pair]], Sequence[int]]

SENTENCES = "the dog bit the man the man bit the dog"


# --------------------------------------------------------------------------- pieces


def pieces_of(merges: Sequence[Pair]) -> list[bytes]:
    """From id to bytes: the 256 bytes, then each merge."""
    pieces = [bytes([value]) for value in range(256)]
    for left, right in merges:
        pieces.append(pieces[left] + pieces[right])
    return pieces


def readable(piece: bytes) -> str:
    """A piece as it can be read: a low box for a space, hexadecimal where bytes are no text."""
    try:
        return piece.decode("utf-8").replace(" ", "␣").replace("\n", "⏎")
    except UnicodeDecodeError:
        return " ".join(f"{byte:02x}" for byte in piece)


def words_of(text: str) -> list[str]:
    """Words as BERT cuts plain ASCII text: small letters, each mark of punctuation by itself."""
    small = re.sub("[A-Z]", lambda letter: letter[0].lower(), text)
    return re.findall(r"[^\s!-/:-@\[-`{-~]+|[!-/:-@\[-`{-~]", small)


# --------------------------------------------------------------------------- merges by hand


def merging(text: str, merges: Sequence[Pair], done: int, encode: Encode, most: int = 6) -> str:
    """A frame: the words of a text after some merges, and the most frequent pairs.

    Args:
        text: cut into words, each with the space before it.
        merges: all that are learned from it.
        done: how many of them are applied.
        encode: text and merges to ids, as the exercise `bpe_encode` does.
        most: how many pairs are listed.
    """
    pieces = pieces_of(merges)
    words: dict[tuple[int, ...], int] = {}
    for word, number in Counter(re.findall(r" ?[^\s]+|\s+", text)).items():
        words[tuple(encode(word, merges[:done]))] = number
    counts: Counter[Pair] = Counter()
    for found, number in words.items():
        for pair in itertools.pairwise(found):
            counts[pair] += number
    rows = "".join(
        f"<tr><td>{number} ×</td><td>{chips([readable(pieces[i]) for i in found])}</td></tr>"
        for found, number in words.items()
    )
    ranked = sorted(counts, key=lambda pair: (-counts[pair], pair))
    chosen = merges[done] if done < len(merges) else None
    listed = "".join(
        f"<tr{' class=next' if pair == chosen else ''}>"
        f"<td>{chips([readable(pieces[i]) for i in pair])}</td>"
        f"<td>({pair[0]}, {pair[1]})</td><td>{counts[pair]}</td>"
        f"<td>{f'becomes {256 + done}' if pair == chosen else ''}</td></tr>"
        for pair in ranked[:most]
    )
    left = len(ranked) - most
    rest = f"<p>… and {left} more pairs</p>" if left > 0 else ""
    if not ranked:
        rest = "<p>No pair is left.</p>"
    total = sum(len(found) * number for found, number in words.items())
    said = f"After {done} merges: {total} tokens" if done != 1 else f"After 1 merge: {total} tokens"
    head = "<tr><th>pair</th><th>ids</th><th>count</th><td></td></tr>" if ranked else ""
    return (
        f"{STYLE}<div class=subwords><p><b>{said}</b></p><div class=sides>"
        f"<table>{rows}</table><div><table>{head}{listed}</table>{rest}</div></div></div>"
    )


def chips(pieces: Sequence[str]) -> str:
    """Pieces side by side, each in a frame."""
    return "".join(f"<kbd>{html.escape(piece)}</kbd>" for piece in pieces)


def compared(head: Sequence[str], rows: Sequence[tuple[str, Sequence[Sequence[str]]]]) -> HTML:
    """A table of pieces: a name in front of each line, then pieces in each column.

    Raises:
        ValueError: if a line has another number of columns than the head.
    """
    if any(len(columns) + 1 != len(head) for _, columns in rows):
        raise ValueError(f"each line needs {len(head) - 1} columns of pieces")
    top = "".join(
        f"<th scope=col>{html.escape(name)}</th>" if name else "<td></td>" for name in head
    )
    lines = "".join(
        f"<tr><th scope=row>{html.escape(name)}</th>"
        + "".join(
            f"<td data-column='{html.escape(column)}'>{chips(pieces)}</td>"
            for column, pieces in zip(head[1:], columns, strict=True)
        )
        + "</tr>"
        for name, columns in rows
    )
    return HTML(
        f"{STYLE}<div class=subwords><table class=compared><tr>{top}</tr>{lines}</table></div>"
    )


# --------------------------------------------------------------------------- figures


def merge_tree(word: str, merges: Sequence[tuple[int, int]]) -> Figure:
    """How byte-pair encoding builds the tokens of one word: bytes below, each merge above its pair.

    Args:
        word: encoded as UTF-8; at least one byte.
        merges: in the order in which they were learned.

    Raises:
        ValueError: if the word is empty.
    """
    if not word:
        raise ValueError("the word is empty; give at least one character")
    rank = {tuple(pair): number for number, pair in enumerate(merges)}
    pieces = pieces_of(merges)
    step = 1.75
    leaves = list(word.encode("utf-8"))
    # Each node: id, horizontal place, height, and the box once it is drawn.
    row = [(value, index * step + 1.2, 0) for index, value in enumerate(leaves)]
    planned: list[tuple[int, float, int, tuple[Any, ...]]] = [(*node, ()) for node in row]
    while True:
        pairs = [
            (rank[pair], place)
            for place, pair in enumerate(itertools.pairwise(node[0] for node in row))
            if pair in rank
        ]
        if not pairs:
            break
        number, place = min(pairs)
        left, right = row[place : place + 2]
        node = (256 + number, (left[1] + right[1]) / 2, max(left[2], right[2]) + 1)
        planned.append((*node, (left, right)))
        row[place : place + 2] = [node]
    height = max(node[2] for node in row)
    canvas = Canvas(len(leaves) * step + 0.8, height * 2.0 + 2.6)
    boxes: dict[tuple[int, float, int], Box] = {}
    for value, x, level, children in planned:
        last = (value, x, level) in row
        text = readable(pieces[value])
        width = max(1.4, 0.36 * len(text) + 0.7)
        box = canvas.box(
            x, 1.4 + 2.0 * level, text, "output" if last else "plain", width=width, height=0.95
        )
        boxes[value, x, level] = box
        if children:
            canvas.text(x, 1.4 + 2.0 * level - 0.72, f"merge {value - 256}", 6.5, color="#5b6069")
            for child in children:
                start, end = boxes[child].side("top"), box.side("bottom")
                canvas.ax.plot(
                    [start[0], end[0]], [start[1], end[1] - 0.42], color=INK, linewidth=0.8
                )
    ids = ", ".join(str(node[0]) for node in row)
    canvas.text((len(leaves) * step + 0.8) / 2, 0.35, f"ids {ids}", 8.5)
    return canvas.figure


def shortening(sizes: Sequence[int], series: Mapping[str, Sequence[float]]) -> Figure:
    """Bytes per token against the size of the vocabulary, a line for each text."""
    figure, ax = plt.subplots(figsize=(6.2, 2.6))
    plots.curves(ax, sizes, series, x_label="vocabulary size (log)", y_label="bytes per token",
                 log_x=True)  # fmt: skip
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.minorticks_off()
    ax.set_ylim(bottom=0.9)
    return figure


# --------------------------------------------------------------------------- the box

# The page's own colours; the fallbacks are for a notebook.
STYLE = (
    "<style>.subwords kbd{display:inline-block;font:inherit;font-family:monospace;"
    "font-size:.92em;line-height:1.35;padding:0 .3em;margin:1px 2px 1px 0;border-radius:3px;"
    "border:1px solid var(--pst-color-primary,#1a5f99);box-shadow:none;"
    "background:var(--pst-color-surface,#f5f3ee);color:var(--pst-color-text-base,#22252b)}"
    ".subwords table{width:auto!important;border-collapse:collapse;margin:.2em 0;color:inherit}"
    ".subwords :is(td,th,tr){border:0!important;padding:.12em .6em .12em 0;text-align:left;"
    "font-weight:normal;vertical-align:top;color:inherit;background:none!important}"
    ".subwords th{color:var(--pst-color-text-muted,#5a606b)}"
    ".subwords tr.next td{font-weight:700}"
    # On a phone, a line's columns stand below each other, each with the head's name before it.
    "@media (max-width:720px){.subwords .compared :is(tr,th[scope=row],td){display:block}"
    ".subwords .compared th[scope=col]{display:none}"
    ".subwords .compared td::before{content:attr(data-column);display:inline-block;"
    "min-width:4em;color:var(--pst-color-text-muted,#5a606b)}}"
    ".subwords p{margin:.3em 0}.subwords .sides{display:flex;flex-wrap:wrap;"
    "align-items:flex-start;gap:.3em 2.5em}"
    ".subwords :is(textarea,select){font:inherit;width:100%;max-width:32em;padding:.25em .4em;"
    "box-sizing:border-box;border:1px solid var(--pst-color-text-muted,#5a606b);border-radius:4px;"
    "background:var(--pst-color-surface,#f5f3ee);color:var(--pst-color-text-base,#22252b)}"
    ".subwords label{display:block;font-weight:600}"
    ".subwords input[type=range]{width:100%;max-width:32em;"
    "accent-color:var(--pst-color-primary,#1a5f99)}"
    ".subwords ol{list-style:none;display:flex;flex-wrap:wrap;gap:.25em;padding:0;margin:.4em 0;"
    "max-height:16em;overflow-y:auto}"
    ".subwords li{margin:0;text-align:center;line-height:1.2}"
    ".subwords li small{display:block;font-size:.72em;color:var(--pst-color-text-muted,#5a606b)}"
    "</style>"
)

# Python's white space, which is not JavaScript's: it has \x1c to \x1f and \x85, and not \ufeff.
_SPACE = r"\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"

# Text to [[piece as it can be read, id], ...]
CUT = (
    r"""
const SPACE = "@SPACE@";
const chunks = text => text.match(new RegExp(` ?[^${SPACE}]+|[${SPACE}]+`, "gu")) || [];
const words = text => text.replace(/[A-Z]/g, letter => letter.toLowerCase())
  .match(new RegExp("[^" + SPACE + "!-/:-@\\[-`{-~]+|[!-/:-@\\[-`{-~]", "gu")) || [];
const readable = bytes => {
  try {
    return new TextDecoder("utf-8", {fatal: true, ignoreBOM: true}).decode(Uint8Array.from(bytes))
      .replace(/ /g, "\u2423").replace(/\n/g, "\u23ce");
  } catch (_) {
    return bytes.map(byte => byte.toString(16).padStart(2, "0")).join(" ");
  }
};
function bytePairs(text, merges) {
  const pieces = Array.from({length: 256}, (_, value) => [value]);
  const ranks = new Map();
  merges.forEach(([left, right], number) => {
    pieces.push(pieces[left].concat(pieces[right]));
    ranks.set(left + "," + right, number);
  });
  const found = [];
  for (const chunk of chunks(text)) {
    let ids = Array.from(new TextEncoder().encode(chunk));
    while (ids.length > 1) {
      let best = Infinity;
      for (let i = 0; i + 1 < ids.length; i++) {
        const rank = ranks.get(ids[i] + "," + ids[i + 1]);
        if (rank < best) best = rank;
      }
      if (best === Infinity) break;
      const [left, right] = merges[best], merged = [];
      for (let i = 0; i < ids.length; i++) {
        if (ids[i] === left && ids[i + 1] === right) { merged.push(256 + best); i++; }
        else merged.push(ids[i]);
      }
      ids = merged;
    }
    for (const id of ids) found.push([readable(pieces[id]), id]);
  }
  return found;
}
function wordPieces(text, vocabulary) {
  const ids = new Map(vocabulary.map((piece, id) => [piece, id])), found = [];
  for (const word of words(text)) {
    const letters = Array.from(word);
    let pieces = [], start = 0;
    while (pieces && start < letters.length) {
      let end = letters.length;
      const piece = () => (start > 0 ? "##" : "") + letters.slice(start, end).join("");
      while (end > start && !ids.has(piece())) end--;
      if (end === start) pieces = null;
      else { pieces.push(piece()); start = end; }
    }
    if (!pieces || letters.length > 100) pieces = ["[UNK]"];
    for (const piece of pieces) found.push([piece, ids.get(piece)]);
  }
  return found;
}
const cut = (text, tokenizer, count) => typeof tokenizer[0] === "string"
  ? wordPieces(text, tokenizer) : bytePairs(text, tokenizer.slice(0, count));
"""
).replace("@SPACE@", _SPACE.replace("\\", "\\\\"))

_LISTEN = r"""
const box = document.getElementById("@NAME@");
const [text, choice, range] = ["textarea", "select", "input"].map(tag => box.querySelector(tag));
const slider = box.querySelector(".count"), [status, list] = [".said", "ol"].map(
  part => box.querySelector(part));
const names = Object.keys(tokenizers);
function choose() {
  const tokenizer = tokenizers[names[choice.selectedIndex]];
  slider.hidden = typeof tokenizer[0] === "string";
  range.max = tokenizer.length;  // first, or the value is cut down to the old one
  range.value = tokenizer.length;
  show();
}
function show() {
  const tokenizer = tokenizers[names[choice.selectedIndex]], count = Number(range.value);
  slider.querySelector("output").textContent = count;
  range.setAttribute("aria-valuetext", count + " merges");
  const found = cut(text.value, tokenizer, count);
  const bytes = new TextEncoder().encode(text.value).length;
  const many = (number, one) => number + " " + one + (number === 1 ? "" : "s");
  status.textContent = many(Array.from(text.value).length, "character") + ", " +
    many(bytes, "byte") + ", " + many(found.length, "token") + ". Vocabulary: " +
    (slider.hidden ? tokenizer.length : 256 + count) + " tokens.";
  list.replaceChildren(...found.map(([piece, id]) => {
    const item = document.createElement("li"), [shown, number] = ["kbd", "small"].map(
      tag => document.createElement(tag));
    shown.textContent = piece;
    number.textContent = id;
    item.append(shown, number);
    return item;
  }));
}
text.addEventListener("input", show);
range.addEventListener("input", show);
choice.addEventListener("change", choose);
choose();
"""


def typing_box(
    tokenizers: Mapping[str, Sequence[Any]], text: str, name: str = "subword-box"
) -> HTML:
    """A box in which a reader types text and sees its pieces, on a page without a kernel.

    Args:
        tokenizers: what each is called, and either its merges (pairs of ids, for byte-pair
            encoding) or its vocabulary (strings, for WordPiece, "[UNK]" among them).
        text: what stands in the box at first.
        name: an HTML id, used once on a page.

    Raises:
        ValueError: if there is no tokenizer, or one of them is empty or lacks "[UNK]".
    """
    if not tokenizers or not all(tokenizers.values()):
        raise ValueError("give at least one tokenizer, and none that is empty")
    for called, one in tokenizers.items():
        if isinstance(one[0], str) and "[UNK]" not in one:
            raise ValueError(f"the vocabulary {called!r} lacks [UNK]")
    # "</" would end the script.
    data = json.dumps(tokenizers, separators=(",", ":")).replace("</", "<\\/")
    offers = "".join(f"<option>{html.escape(called)}</option>" for called in tokenizers)
    return HTML(
        f"{STYLE}<div class=subwords id={name}>"
        f"<p><label for={name}-text>Your text</label>"
        f"<textarea id={name}-text rows=2 maxlength=300 spellcheck=false autocomplete=off>"
        f"{html.escape(text)}</textarea></p>"
        f"<p><label for={name}-kind>Tokenizer</label>"
        f"<select id={name}-kind autocomplete=off>{offers}</select></p>"
        f"<p class=count><label for={name}-count>Merges used: <output></output></label>"
        f"<input type=range id={name}-count min=0 autocomplete=off></p>"
        "<p class=said role=status></p>"
        '<ol tabindex=0 aria-label="Pieces and their ids"></ol>'
        "<noscript>This box needs JavaScript.</noscript></div>"
        f"<script>(() => {{const tokenizers = {data};"
        f"{CUT}{_LISTEN.replace('@NAME@', name)}}})();</script>"
    )
