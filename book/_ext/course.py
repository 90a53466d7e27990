"""Tables that the book draws from its own data files at build time.

`coverage.csv` says where each topic is treated, `topics.csv` and `chapters.csv` what the topics
and chapters are, `errata.csv` what the source documents got wrong, `glossary.csv` the terms. A
later chapter adds rows to `coverage.csv` and appears in every table; no page has to be edited.
`moved.csv` lists addresses that pages once had, which lead to where the pages are now.

What the units hold is read from `exercises/`, where it is generated. `paths.csv` says which units
a course takes in which week; what that comes to is added up here.

Directives: `{chapters}`, `{chapter-map}`, `{units}`, `{workload}`, `{weeks} 14` (one path),
`{last-cells}`, `{errata} 001` (one document), `{coverage} attention` (one chapter),
`{errata-counts}`, `{coverage-counts}`, `{terms}`.
"""

from __future__ import annotations

import csv
import json
import zlib
from collections import Counter
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from autograder.assignments.last_cells import what_they_do
from autograder.common import paths
from autograder.units.assignment import load
from autograder.units.sections import title_of
from autograder.units.workload import Week, given_of, weeks, workloads
from toolkit.book import contents

logger = logging.getLogger(__name__)
KINDS = ("concept", "formula", "code", "claim", "system", "figure", "erratum")


def read_rows(folder: Path, name: str) -> list[dict[str, str]]:
    """The rows of a data file of the book, as dictionaries."""
    with (folder / name).open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


class place(nodes.General, nodes.Inline, nodes.Element):
    """Stands for a link to an anchor until all pages are read and the section's title is known."""


class CourseDirective(SphinxDirective):
    """What the directives below share: data files, inline MyST text and tables."""

    has_content = False

    def rows(self, name: str) -> list[dict[str, str]]:
        """The rows of `book/<name>`; the page is read again when the file changes."""
        self.env.note_dependency(str(Path(self.env.srcdir) / name))
        return read_rows(Path(self.env.srcdir), name)

    def inline(self, text: str) -> list[nodes.Node]:
        """MyST inline text (code, emphasis, formulas) as nodes."""
        holder = nodes.paragraph()
        self.state.nested_parse(StringList([text], "data"), self.content_offset, holder)
        first = holder.children[0] if holder.children else nodes.paragraph()
        return list(first.children)

    def coverage(self) -> dict[str, dict[str, str]]:
        """Coverage rows by topic id."""
        return {row["id"]: row for row in self.rows("coverage.csv") if row["anchor"]}

    def links(self, ids: Iterable[str]) -> list[nodes.Node]:
        """Links to where the topics are treated, or a word when none is there yet."""
        coverage, found, seen = self.coverage(), [], set()
        for topic in ids:
            row = coverage.get(topic)
            if row and (target := (page_of(row), row["anchor"])) not in seen:
                seen.add(target)
                if found:
                    found.append(nodes.Text(", "))
                found.append(place("", page=target[0], anchor=target[1]))
        if not found:
            return [nodes.inline("", "later chapter", classes=["course-later"])]
        return found

    def table(
        self, head: list[str], body: list[list[list[nodes.Node]]], css: str
    ) -> list[nodes.Node]:
        """A table whose cells carry their column's title, so that a phone can stack them."""
        table = nodes.table("", classes=["course-table", css])
        group = nodes.tgroup("", cols=len(head))
        table += group
        for _ in head:
            group += nodes.colspec("", colwidth=1)
        header = nodes.thead()
        header += row_of([[nodes.Text(title)] for title in head])
        group += header
        lines = nodes.tbody()
        for cells in body:
            lines += row_of(cells)
        group += lines
        return [table]


def page_of(row: dict[str, str]) -> str:
    """The document name of a coverage row's page (`attention/index`, extension or not)."""
    return row["page"].removesuffix(".html").removesuffix(".md")


def row_of(cells: list[list[nodes.Node]]) -> nodes.row:
    """One table row, a paragraph a cell."""
    row = nodes.row()
    for content in cells:
        entry = nodes.entry()
        paragraph = nodes.paragraph()
        paragraph += content
        entry += paragraph
        row += entry
    return row


class Chapters(CourseDirective):
    """The chapters of the course: a link where there is one, a name where there is none yet."""

    def run(self) -> list[nodes.Node]:
        body = []
        for row in self.rows("chapters.csv"):
            page = paths.first_page(row["name"])
            if page in self.env.found_docs:
                title: list[nodes.Node] = [place("", page=page, anchor="", text=row["title"])]
                state = nodes.inline("", "")
            else:
                title = [nodes.Text(row["title"])]
                later = "not in this edition" if paths.pages(row["name"]) else "to come"
                state = nodes.inline("", later, classes=["course-later"])
            body.append([title, self.inline(row["builds"]), [state]])
        return self.table(["Chapter", "What you build", ""], body, "course-chapters")


class ChapterMap(CourseDirective):
    """A map of the chapters, links to all but the one whose page this is, which is marked."""

    def run(self) -> list[nodes.Node]:
        here, stations = self.env.docname, []
        for number, row in enumerate(self.rows("chapters.csv"), start=1):
            page, name = paths.first_page(row["name"]), f"{number}. {escape(row['title'])}"
            if page == here:
                name = f'<span aria-current="page">{name} <small>you are here</small></span>'
            elif page in self.env.found_docs:
                target = escape(self.env.app.builder.get_relative_uri(here, page))
                name = f'<a href="{target}">{name}</a>'
            else:
                name = f"<span>{name}</span>"
            stations.append(f"<li>{name}</li>")
        whole = f'<nav class="course-map" aria-label="Chapters"><ol>{"".join(stations)}</ol></nav>'
        return [nodes.raw("", whole, format="html")]


class Units(CourseDirective):
    """The units of the course: what each asks for, and whose answers its given parts hold."""

    def run(self) -> list[nodes.Node]:
        body = []
        for unit in paths.units():
            self.env.note_dependency(str(paths.EXERCISES / unit / "assignment.json"))
            chapter, assignment = paths.chapter_of(unit), load(unit)
            holds = [f"`{before.removeprefix(chapter + '-')}`" for before in given_of(unit)]
            numbers = [
                str(len(assignment.exercises)),
                str(len(assignment.questions) or "–"),
                f"{assignment.points + assignment.written_points:g}",
                str(assignment.minutes),
            ]
            body.append([[place("", page=paths.first_page(chapter), anchor="", text=unit)],
                         *([nodes.Text(number)] for number in numbers),
                         self.inline(", ".join(holds) or "–")])  # fmt: skip
        head = ["Unit", "Exercises", "In words", "Points", "Minutes", "Holds answers of"]
        return self.table(head, body, "course-units")


def hours(minutes: int) -> str:
    """Minutes as one plans them: `1.8 h`."""
    return f"{minutes / 60:.1f} h"


def linked(page: str) -> nodes.Node:
    """A link to a page of the book, by its title."""
    source = (paths.BOOK / f"{page}.md").read_text(encoding="utf-8")
    return place("", page=page, anchor="", text=title_of(source))


class Workloads(CourseDirective):
    """The units of the course with the pages to read first, and the hours that these take."""

    def run(self) -> list[nodes.Node]:
        body = []
        for one in workloads(contents()).values():
            pages: list[nodes.Node] = []
            for page in one.pages:
                self.env.note_dependency(str(paths.BOOK / f"{page}.md"))
                pages += [nodes.Text(", ")] if pages else []
                pages.append(linked(page))
            body.append([[nodes.literal("", one.unit)], pages, [nodes.Text(hours(one.reading))]])
        return self.table(["Unit", "Read first", "Reading"], body, "course-workload")


class Weeks(CourseDirective):
    """The weeks of one path through the course, from `paths.csv`, and their sums."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        body, plan = [], weeks(self.rows("paths.csv"), self.arguments[0], contents())
        for week in plan:
            taken: list[list[nodes.Node]] = [[nodes.literal("", unit)] for unit in week.units]
            if not week.units:
                taken = [[linked(page)] for page in week.pages]
            taken += [self.inline(week.remark)] if week.remark else []
            what = [node for n, part in enumerate(taken)
                    for node in ([nodes.Text(", ")] if n else []) + part]  # fmt: skip
            body.append([[nodes.Text(week.number)], what, *self.sums([week])])
        body.append([[nodes.Text("all")], [nodes.Text(f"{sum(len(w.units) for w in plan)} units")],
                     *self.sums(plan)])  # fmt: skip
        head = ["Week", "Units", "Reading", "Exercises", "Together", "Points"]
        return self.table(head, body, "course-weeks")

    def sums(self, plan: list[Week]) -> list[list[nodes.Node]]:
        """Hours of reading, of exercises and of both, and points."""
        reading, writing = sum(w.reading for w in plan), sum(w.writing for w in plan)
        points = sum(week.points for week in plan)
        numbers = [hours(reading), hours(writing) if writing else "–", hours(reading + writing)]
        return [[nodes.Text(number)] for number in (*numbers, f"{points:g}" if points else "–")]


class LastCells(CourseDirective):
    """What each unit's last, ungraded cells do; with `chapters`, each chapter's own notebook."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        whole = self.arguments == ["chapters"]
        body = []
        for name in [f"{c}-mine" for c in paths.CHAPTERS] if whole else paths.units():
            script = paths.ungraded(name)
            self.env.note_dependency(str(script))
            # Pages lead here: `[the unit](unit-attention-scores)`
            unit = nodes.literal("", name, ids=[f"unit-{name}"], names=[f"unit-{name}"])
            self.state.document.note_explicit_target(unit)
            body.append([[unit], self.inline(what_they_do(script))])
        head = ["Notebook" if whole else "Unit", "What it does" if whole else "Its last cells"]
        return self.table(head, body, "course-last-cells")


class Errata(CourseDirective):
    """The errata of one source document."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        body = []
        for row in self.rows("errata.csv"):
            if row["document"] != self.arguments[0]:
                continue
            grade = nodes.inline(
                "", row["grade"], classes=["course-grade", f"grade-{row['grade']}"]
            )
            entry = [nodes.inline("", row["id"], ids=[row["id"].lower()]), nodes.Text(" "), grade]
            body.append([entry, self.inline(row["says"]), self.inline(row["correct"]),
                         self.links(row["row"].split())])  # fmt: skip
        head = ["Entry", "The document says", "Correct is", "Treated in"]
        return self.table(head, body, "course-errata")


class ErrataCounts(CourseDirective):
    """How many errata there are, by document and grade, and how many are treated so far."""

    def run(self) -> list[nodes.Node]:
        rows, coverage = self.rows("errata.csv"), self.coverage()
        body = []
        for document in [*sorted({row["document"] for row in rows}), "all"]:
            mine = [row for row in rows if document in ("all", row["document"])]
            grades = Counter(row["grade"] for row in mine)
            closed = sum(any(topic in coverage for topic in row["row"].split()) for row in mine)
            numbers = [grades["A"], grades["B"], grades["C"], len(mine), closed]
            body.append([[nodes.Text(text)] for text in [document, *map(str, numbers)]])
        head = ["Document", "A", "B", "C", "together", "treated so far"]
        return self.table(head, body, "course-counts")


class Terms(CourseDirective):
    """The glossary, in alphabetical order; a term leads to the section that explains it."""

    def run(self) -> list[nodes.Node]:
        body = []
        for row in sorted(self.rows("glossary.csv"), key=lambda row: row["term"].lower()):
            name = "term-" + nodes.make_id(row["term"])
            linked = f"[{row['term']}](#{row['section']})" if row["section"] else row["term"]
            also = f" Also: {row['also'].replace(';', ',')}." if row["also"] else ""
            body.append([[nodes.inline("", "", *self.inline(linked), ids=[name])],
                         [nodes.Text(row["chinese"])],
                         self.inline(row["meaning"] + also)])  # fmt: skip
        return self.table(["Term", "In the documents", "Meaning"], body, "course-terms")


class Coverage(CourseDirective):
    """The topics of one chapter and where each is treated."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        body = []
        for row in self.rows("topics.csv"):
            if row["chapter"] == self.arguments[0]:
                body.append([[nodes.inline("", row["id"], ids=[row["id"].lower()])],
                             [nodes.Text(row["kind"])], [nodes.Text(row["topic"])],
                             self.links([row["id"]])])  # fmt: skip
        return self.table(["Id", "Kind", "Topic", "Treated in"], body, "course-coverage")


class CoverageCounts(CourseDirective):
    """How many topics of each kind a chapter has, and how many are treated so far."""

    def run(self) -> list[nodes.Node]:
        topics, coverage, body = self.rows("topics.csv"), self.coverage(), []
        for name, title in [*((r["name"], r["title"]) for r in self.rows("chapters.csv")),
                            ("all", "All")]:  # fmt: skip
            mine = [row for row in topics if name in ("all", row["chapter"])]
            kinds = Counter(row["kind"] for row in mine)
            done = sum(row["id"] in coverage for row in mine)
            numbers = [*(kinds[kind] for kind in KINDS), len(mine), done]
            body.append([[nodes.Text(text)] for text in [title, *map(str, numbers)]])
        head = ["Chapter", *KINDS, "together", "treated so far"]
        return self.table(head, body, "course-counts")


def resolve_places(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Turn each `place` into a link that reads as the section it leads to."""
    labels = app.env.get_domain("std").labels  # type: ignore[attr-defined]
    for node in list(doctree.findall(place)):
        page, anchor = node["page"], node["anchor"]
        text = node.get("text") or labels.get(anchor, ("", "", ""))[2] or anchor
        if page not in app.env.found_docs:
            node.replace_self(nodes.inline("", "later chapter", classes=["course-later"]))
            continue
        uri = app.builder.get_relative_uri(docname, page) + (f"#{anchor}" if anchor else "")
        link = nodes.reference("", text, internal=True, refuri=uri)
        node.replace_self(link)


SIGN = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
{body}
</html>
"""
MOVED = """<link rel="canonical" href="{new}">
<script>
  const pages = {pages};  // of sections that stand on other pages
  location.replace((pages[location.hash.slice(1)] || "{new}") + location.hash);
</script>
<noscript><meta http-equiv="refresh" content="0; url={new}"></noscript>
<p>This page has moved to <a href="{new}">{new}</a>.</p>"""


def write_sign(app: Sphinx, name: str, title: str, body: str) -> None:
    """At an address without a page of the book, write one that says where to go."""
    target = Path(app.outdir) / f"{name}.html"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(SIGN.format(title=title, body=body), encoding="utf-8")


def write_moved(app: Sphinx, exception: Exception | None) -> None:
    """At each address that a page once had, write a page that leads to where it is now.

    The `#anchor` is kept. Where its section stands on another page of the chapter, it leads there.
    """
    source = Path(app.srcdir)
    if exception or app.builder.format != "html" or not (source / "moved.csv").exists():
        return
    labels = app.env.get_domain("std").anonlabels  # type: ignore[attr-defined]
    for row in read_rows(source, "moved.csv"):
        old, new = row["old"], row["new"]
        if new not in app.env.found_docs and app.config.course_edition:
            continue
        if new not in app.env.found_docs:
            logger.warning("moved.csv: %s leads to %s, which is not there", old, new)
            continue
        chapter = new.rpartition("/")[0] + "/"
        pages = {
            anchor: app.builder.get_relative_uri(old, page)
            for page, anchor in sorted(labels.values())
            if page != new and page.startswith(chapter)
        }
        target = app.builder.get_relative_uri(old, new)
        body = MOVED.format(new=escape(target), pages=json.dumps(pages))
        write_sign(app, old, "This page has moved", body)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.add_config_value("course_edition", False, "env", bool)
    app.add_node(place)
    app.add_directive("chapters", Chapters)
    app.add_directive("chapter-map", ChapterMap)
    app.add_directive("units", Units)
    app.add_directive("workload", Workloads)
    app.add_directive("weeks", Weeks)
    app.add_directive("last-cells", LastCells)
    app.add_directive("errata", Errata)
    app.add_directive("errata-counts", ErrataCounts)
    app.add_directive("terms", Terms)
    app.add_directive("coverage", Coverage)
    app.add_directive("coverage-counts", CoverageCounts)
    app.connect("doctree-resolved", resolve_places)
    app.connect("build-finished", write_moved)
    return about(Path(__file__))


def about(file: Path) -> dict[str, Any]:
    """What Sphinx wants to know of an extension; pages are read anew when its file has changed."""
    safe = {"parallel_read_safe": True, "parallel_write_safe": True}
    return {"version": "1", "env_version": zlib.crc32(file.read_bytes()), **safe}
