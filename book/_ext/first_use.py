"""What a page's words and formulas lead to: the glossary and the notation, at their first use.

On each page of a chapter the first mention of a glossary term in running text, and the first inline
formula that holds a symbol of the notation page, become links that carry the definition. A page
that explains a term itself has no link: the section that its entry names stands there (or on the
first page of the chapter), or a heading or bold print holds it. Headings, code, captions, tables,
links and emphasised words stay as they are.

The search finds each term, under all its names, in the section that explains it.

All this is done while pages are written, from `glossary.csv` and `notation.csv`. Directive:
`{symbols} size`, the rows of one kind of `notation.csv`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course import CourseDirective, read_rows
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.config import Config

QUIET = (
    nodes.title, nodes.literal, nodes.FixedTextElement, nodes.math, nodes.math_block, nodes.raw,
    nodes.caption, nodes.table, nodes.figure, nodes.emphasis, nodes.rubric, nodes.comment,
)  # fmt: skip
SIGNS = {r"\alpha": "α", r"\odot": "⊙", r"\Pi": "Π"}
# `d_\text{model}` counts as `d_model`; what else is text in a formula holds no symbols.
NAMED = re.compile(r"_\{?\\text\{(\w+)\}\}?")
WORDS = re.compile(r"\\(?:text|texttt|operatorname|mathrm)\{[^{}]*\}")
NUMBERS = re.compile(r"\\R\^\{([^{}]*)\}")
SHAPE = re.compile(r"(\(.*\)|[^=]*\\times[^=]*)")
CAPITAL = re.compile(r"[A-PR-Z]")  # Q is always the queries
ATOM = re.compile(r"(\\[A-Za-z]+|[A-Za-z])((?:[_^](?:\{[^{}]*\}|\\[A-Za-z]+|\w))*)")


@dataclass(frozen=True)
class Term:
    """An entry of the glossary."""

    name: str
    names: tuple[str, ...]  # all, with synonyms
    linked: tuple[str, ...]  # those that have no plain meaning
    section: str
    meaning: str

    @property
    def anchor(self) -> str:
        """The id of its row on the glossary page."""
        return "term-" + nodes.make_id(self.name)


@dataclass(frozen=True)
class Symbol:
    """A row of the notation page."""

    spelled: tuple[str, ...]  # as `atoms` gives them
    chapters: tuple[str, ...]  # where it has this meaning; none: everywhere
    meaning: str

    @property
    def anchor(self) -> str:
        """The id of its row on the notation page."""
        return symbol_anchor(self.spelled, self.chapters)

    def definition(self, here: set[str]) -> str:
        """What the tooltip of a formula with these symbols says."""
        signs = ", ".join(sign for sign in self.spelled if sign in here)
        for command, sign in SIGNS.items():
            signs = signs.replace(command, sign)
        return f"{signs}: {self.meaning.rstrip('.')}"


def symbol_anchor(spelled: Sequence[str], chapters: Sequence[str]) -> str:
    """An id for a row of `notation.csv`, which keeps capitals apart from small letters.

    A meaning that one chapter has by itself is told by the chapter.
    """
    words = [spelled[0], *(chapters if len(chapters) == 1 else ())]
    return "-".join(("symbol", *(re.sub(r"\W|_", "-", word).strip("-") for word in words)))


def without_formulas(text: str) -> str:
    """The sentences of a text that hold no formula but single letters, without markup."""
    text = re.sub(r"\$([a-z])\$", r"\1", text)
    sentences = [x for x in re.split(r"(?<=\.) ", text) if "$" not in x]
    return re.sub(r"[*`]", "", " ".join(sentences))


def terms(folder: Path) -> list[Term]:
    """The entries of the glossary."""
    found = []
    for row in read_rows(folder, "glossary.csv"):
        also = tuple(filter(None, row["also"].split("; ")))
        names = (row["term"], *also)
        linked = also if row["linked"] == "no" else names
        found.append(Term(row["term"], names, linked, row["section"],
                          without_formulas(row["meaning"])))  # fmt: skip
    return found


def symbols(folder: Path) -> list[Symbol]:
    """The rows of the notation page that formulas can lead to."""
    return [
        Symbol(tuple(row["spelled"].split()), tuple(row["chapters"].split()),
               without_formulas(row["meaning"]))
        for row in read_rows(folder, "notation.csv") if row["spelled"]
    ]  # fmt: skip


def pattern(names: Iterable[str]) -> re.Pattern[str]:
    """Finds the names as whole words, longest first; small letters match capitals, not vice versa.

    A hyphen or space of a name may be either or, for a hyphen, missing; one plural is known.
    """
    found = []
    for name in sorted(names, key=len, reverse=True):
        word = re.escape(name).replace(r"\-", r"[-\s]?").replace(r"\ ", r"[-\s]")
        word = f"{word[:-1]}(?:y|ies)" if name.endswith("y") else f"{word.removesuffix('s')}s?"
        found.append(word if name != name.lower() else f"(?i:{word})")
    return re.compile(rf"(?<![\w-])(?:{'|'.join(found)})(?![\w-])")


def key(text: str) -> str:
    """What a name and its spellings on a page have in common."""
    plain = re.sub(r"[-\s]", "", text).lower()
    return re.sub(r"ies$", "y", plain).removesuffix("s")


def used(tex: str) -> set[str]:
    """The symbols of a formula, `d_model` for `d_\\text{model}`.

    A capital by itself means many things. It is taken for the name of a size where it is the whole
    formula, stands in a shape, or is given a number.
    """
    tex = WORDS.sub(" ", NAMED.sub(r"_{\1}", tex))
    shape = NUMBERS.search(tex) or SHAPE.fullmatch(tex)
    sizes = shape[1] if shape else tex.partition("=")[0].strip()
    found = {atom for atom in atoms(NUMBERS.sub(" ", tex)) if not CAPITAL.fullmatch(atom)}
    return found | (atoms(sizes) if shape or CAPITAL.fullmatch(sizes) else set())


def atoms(tex: str) -> set[str]:
    """Letters and commands with their subscripts, `W` also with the superscript of a projection."""
    found = set()
    for base, scripts in ATOM.findall(tex):
        below = re.search(r"_(\{[^{}]*\}|\\[A-Za-z]+|\w)", scripts)
        raised = re.search(r"\^\{?([QKVO])\b", scripts) if base == "W" else None
        name = base + (f"_{below[1].strip('{}')}" if below else "")
        found.add(name + (f"^{raised[1]}" if raised else ""))
    return found


def is_quiet(node: nodes.Node) -> bool:
    """Whether text in this node is no running text."""
    return isinstance(node, QUIET) or (
        isinstance(node, nodes.container) and "cell" in node["classes"]
    )


def join_lines(doctree: nodes.document) -> None:
    """Make one text of the lines of a paragraph, so that what they break in two is found."""
    for holder in doctree.findall(nodes.TextElement):
        joined: list[nodes.Node] = []
        for child in holder.children:
            if joined and isinstance(child, nodes.Text) and isinstance(joined[-1], nodes.Text):
                joined[-1] = nodes.Text(joined[-1] + child)
            else:
                joined.append(child)
        if len(joined) < len(holder.children):
            holder[:] = joined


def above(node: nodes.Node) -> Iterator[nodes.Node]:
    """The nodes that hold a node, from the inside."""
    while node.parent is not None:
        node = node.parent
        yield node


class FirstUse:
    """Makes the links of one page."""

    def __init__(self, app: Sphinx, doctree: nodes.document, page: str) -> None:
        self.app, self.doctree, self.page = app, doctree, page
        self.chapter = page.rpartition("/")[0]
        self.labels = app.env.get_domain("std").anonlabels  # type: ignore[attr-defined]

    def is_explained(self, term: Term) -> bool:
        """Whether the section that explains the term stands here, or where the chapter begins."""
        where = self.labels.get(term.section, ("", ""))[0]
        return where in (self.page, f"{self.chapter}/index")

    def link(self, target: str, definition: str, *content: nodes.Node) -> nodes.reference:
        """A link that shows a definition."""
        page, _, anchor = target.partition("#")
        uri = f"{self.app.builder.get_relative_uri(self.page, page)}#{anchor}"
        return nodes.reference("", "", *content, internal=True, refuri=uri, reftitle=definition,
                               classes=["course-term"])  # fmt: skip

    def link_terms(self, glossary: list[Term]) -> None:
        """Link the first mention of each term that the page doesn't explain."""
        by_key = {key(name): term for term in glossary for name in term.linked}
        names = pattern(name for term in glossary for name in term.linked)
        done = {term for term in glossary if self.is_explained(term)}
        running = []
        for text in list(self.doctree.findall(nodes.Text)):
            holders = list(above(text))
            if any(isinstance(node, (nodes.strong, nodes.title)) for node in holders):
                done |= {by_key[key(found)] for found in names.findall(text.astext())}
            elif not any(is_quiet(node) for node in holders):
                running.append((text, any(isinstance(node, nodes.reference) for node in holders)))
        for text, is_link in running:
            plain, pieces, end = text.astext(), [], 0
            for match in names.finditer(plain):
                term = by_key[key(match[0])]
                if term in done:
                    continue
                done.add(term)
                if not is_link:
                    pieces += [nodes.Text(plain[end : match.start()]),
                               self.link(f"glossary#{term.anchor}", term.meaning,
                                         nodes.Text(match[0]))]  # fmt: skip
                    end = match.end()
            if pieces:
                text.parent.replace(text, [*pieces, nodes.Text(plain[end:])])

    def link_symbols(self, notation: list[Symbol]) -> None:
        """Link the first inline formula that holds a symbol, in running text."""
        waiting = [x for x in notation if not x.chapters or self.chapter in x.chapters]
        for formula in list(self.doctree.findall(nodes.math)):
            if any(is_quiet(node) or isinstance(node, nodes.reference) for node in above(formula)):
                continue
            here = used(formula.astext())
            found = [symbol for symbol in waiting if here & set(symbol.spelled)]
            if found:
                waiting = [symbol for symbol in waiting if symbol not in found]
                definition = "; ".join(symbol.definition(here) for symbol in found)
                link = self.link(f"notation#{found[0].anchor}", definition, formula.deepcopy())
                link["classes"].append("course-symbol")
                formula.replace_self(link)

    def section_id(self, label: str) -> str:
        """The id under which the search knows a section's title: "" for the page's own."""
        for section in self.doctree.findall(nodes.section):
            if label in section["ids"]:
                return "" if section.parent is self.doctree else str(section["ids"][0])
        return label

    def index_terms(self, glossary: list[Term]) -> None:
        """Let the search find the terms that the page explains, with and without hyphens."""
        entries = []
        for term in glossary:
            page, anchor = self.labels.get(term.section, ("", ""))[:2]
            if page == self.page:
                anchor = self.section_id(anchor)
                names = {name.replace("-", by) for name in term.names for by in ("-", " ", "")}
                entries += [("single", name, anchor, "main", None) for name in sorted(names)]
        if entries:
            self.doctree.append(addnodes.index(entries=entries))


def link_first_uses(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Link what a page mentions, and tell the search what it explains."""
    source = Path(app.srcdir)
    if app.builder.format != "html" or not (source / "glossary.csv").exists():
        return
    glossary, first_use = terms(source), FirstUse(app, doctree, page)
    first_use.index_terms(glossary)
    if first_use.chapter:
        join_lines(doctree)
        first_use.link_terms(glossary)
        first_use.link_symbols(symbols(source))


def name_sections(app: Sphinx, config: Config) -> None:
    """Let a hit of the search say its section, by `search.js`."""
    config.html_search_scorer = str(Path(__file__).with_name("search.js"))


class Symbols(CourseDirective):
    """The rows of one kind of `notation.csv`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        rows = [row for row in self.rows("notation.csv") if row["kind"] == self.arguments[0]]
        with_code = any(row["code"] for row in rows)
        body = []
        for row in rows:
            spelled, chapters = row["spelled"].split(), row["chapters"].split()
            ids = [symbol_anchor(spelled, chapters)] if spelled else []
            cells = [[nodes.inline("", "", *self.inline(row["symbol"]), ids=ids)],
                     self.inline(row["code"]), self.inline(row["meaning"])]  # fmt: skip
            body.append(cells if with_code else [cells[0], cells[2]])
        head = ["Symbol", "In code", "Meaning"] if with_code else ["Symbol", "Meaning"]
        return self.table(head, body, "course-symbols")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive and the links."""
    app.setup_extension("course")
    app.add_directive("symbols", Symbols)
    app.connect("config-inited", name_sections)
    app.connect("doctree-resolved", link_first_uses)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
