"""The two editions of the book, and what joins its pages to the exercises.

The reader's edition shows whole classes. The course edition (`course_edition` in the
configuration, set by `python -m toolkit.book --edition course`) shows of each graded exercise what
a student starts from, and leaves out the cells that give an exercise away, tagged `gives-` and its
name.

Directives: `{reference} attention-multi_head MultiHeadAttention` shows a definition of a unit's
reference module; what stands in it explains the way to those who have yet to write it, and only
the course edition shows it. With `:brief:` docstrings are cut to their first line. `{your-turn}`
lists the exercises whose sections stand on the page, and those that are named after it.
"""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path
from typing import Any, ClassVar

from course import about, write_sign
from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from autograder.common import paths
from autograder.common.definitions import DEFINITIONS, first_line
from autograder.units.assignment import Assignment, Exercise, load
from autograder.units.variants import cell_spans, source_of

MARKERS = ("### BEGIN SOLUTION", "### END SOLUTION")
GIVES = "tag_gives-"  # what MyST-NB makes of the tag, as a class of the cell's container


def definition(source: str, name: str) -> str:
    """The text of `name`, such as `GPT` or `GPT.forward`, in Python source; empty if not there."""
    body, found = ast.parse(source).body, None
    for part in name.split("."):
        found = next((x for x in body if isinstance(x, DEFINITIONS) and x.name == part), None)
        if found is None:
            return ""
        body = found.body
    assert found is not None
    lines = source.splitlines()[first_line(found) - 1 : found.end_lineno]
    return textwrap.dedent("\n".join(x for x in lines if x.strip() not in MARKERS))


def brief(code: str) -> str:
    """The code with each docstring cut to its first line."""
    lines = code.splitlines()
    found = [
        node.body[0]
        for node in ast.walk(ast.parse(code))
        if isinstance(node, DEFINITIONS) and ast.get_docstring(node) is not None
    ]
    for text in sorted(found, key=lambda node: node.lineno, reverse=True):
        assert text.end_lineno is not None
        if text.end_lineno > text.lineno:
            first = lines[text.lineno - 1].rstrip()
            lines[text.lineno - 1 : text.end_lineno] = [f'{first}"""']
    return "\n".join(lines)


def without_raise(stub: str) -> str:
    """A stub without the lines that raise; what is missing is said beside it."""
    return re.sub(r"\n *raise NotImplementedError\(.*\)", "", stub)


def asked_in(unit: str, name: str) -> Exercise | None:
    """The exercise in whose answer `name` is defined; None if nobody is asked for it."""
    source = source_of(unit)
    outer = name.partition(".")[0]
    for exercise, (start, end) in cell_spans(source).items():
        if definition(source[start:end], outer):
            return load(unit).exercise(exercise)
    return None


class Exercises(SphinxDirective):
    """What the directives below share: MyST text as nodes, and links to units."""

    has_content = True

    def parsed(self, lines: list[str]) -> list[nodes.Node]:
        """MyST blocks as nodes."""
        holder = nodes.container()
        self.state.nested_parse(StringList(lines, "exercises"), self.content_offset, holder)
        return list(holder.children)

    def unit_link(self, unit: str) -> str:
        """MyST text that names a unit and leads to the table of all."""
        self.env.note_dependency(str(paths.EXERCISES / unit / "assignment.json"))
        return f"[`{unit}`](unit-{unit})"


class Reference(Exercises):
    """A definition of a reference module, or, in the course edition, what a student is given."""

    required_arguments = 2
    option_spec: ClassVar = {"lines-from": directives.positive_int, "brief": directives.flag}

    def run(self) -> list[nodes.Node]:
        unit, name = self.arguments
        if unit not in paths.units():
            raise self.error(f"there is no unit {unit}")
        self.env.note_dependency(str(paths.solution(unit)))
        exercise = asked_in(unit, name) if self.config.course_edition else None
        code = definition(exercise.stub if exercise else source_of(unit), name)
        if not code and not exercise:
            raise self.error(f"{paths.solution(unit).name} defines no {name}")
        if "brief" in self.options:
            code = brief(code)
        first = self.options.get("lines-from", 1) - 1
        text = without_raise(code) if exercise else "\n".join(code.splitlines()[first:])
        shown = [nodes.literal_block(text, text, language="python")] if text else []
        if not exercise:
            return shown
        if not self.content:
            raise self.error(f"say how one goes about {exercise.name}")
        number = load(unit).names.index(exercise.name) + 1
        title = f"You write this: {self.unit_link(unit)}, exercise {number}"
        return [*shown, *self.parsed([f"::::{{admonition}} {title}", ":class: tip course-part", "",
                                      *self.content, "::::"])]  # fmt: skip


class YourTurn(Exercises):
    """The exercises of a page: those whose section stands on it, and those that are named."""

    optional_arguments = 20

    def run(self) -> list[nodes.Node]:
        chapter = self.env.docname.partition("/")[0]
        lines, also = [], set(self.arguments)
        for unit in paths.units():
            if paths.chapter_of(unit) != chapter:
                continue
            link, assignment = self.unit_link(unit), load(unit)
            asked = [
                f"{number} `{exercise.name}` ({points(exercise.points)}, "
                f"{exercise.minutes} minutes)"
                for number, exercise in enumerate(assignment.exercises, start=1)
                if exercise.name in also or self.is_here(assignment, exercise.section)
            ]
            also -= set(assignment.names)
            words = [
                f"in words, `{question.name}` ({points(question.points)})"
                for question in assignment.questions
                if self.is_here(assignment, question.section)
            ]
            if asked or words:
                items = [f"- {item}" for item in (*asked, *words)]
                lines += [f"**In the notebook** {link}:", "", *items, ""]
        if also:
            raise self.error(f"no unit of {chapter} asks for {', '.join(sorted(also))}")
        return self.parsed([*lines, *self.content])

    def is_here(self, assignment: Assignment, section: str) -> bool:
        return assignment.page(section) == self.env.docname


def points(number: float) -> str:
    """`1 point`, `2.5 points`."""
    return f"{number:g} point{'' if number == 1 else 's'}"


def hide_given_away(app: Sphinx, doctree: nodes.document) -> None:
    """In the course edition, put a line in place of code that gives an exercise away."""
    if not app.config.course_edition:
        return
    for cell in list(doctree.findall(nodes.container)):
        name = next((x.removeprefix(GIVES) for x in cell["classes"] if x.startswith(GIVES)), None)
        if name is None:
            continue
        for code in [child for child in cell.children if "cell_input" in child["classes"]]:
            line = nodes.paragraph("", "", nodes.Text("The code of this cell is yours to write: "),
                                   nodes.literal("", name), nodes.Text(". It prints:"))  # fmt: skip
            cell.replace(code, nodes.container("", line, classes=["course-yours"]))


def leave_out(app: Sphinx, env: Any, node: Any, content: nodes.Node) -> nodes.Node | None:
    """In the course edition, let what leads to pages that it leaves out be plain text.

    A link that leads nowhere is found in the reader's edition, which has all pages.
    """
    return content if app.config.course_edition else None


def write_left_out(app: Sphinx, exception: Exception | None) -> None:
    """At addresses of pages that the course edition leaves out, say so: feedback leads there."""
    if exception or app.builder.format != "html" or not app.config.course_edition:
        return
    for page in Path(app.srcdir).rglob("*.md"):
        name = page.relative_to(app.srcdir).with_suffix("").as_posix()
        if name in app.env.found_docs or name.startswith("_"):
            continue
        index = app.builder.get_relative_uri(name, "index")
        said = f'<p>This page is not in the course edition yet. <a href="{index}">The book</a></p>'
        write_sign(app, name, "Not in this edition", said)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives and the editions."""
    app.setup_extension("course")
    app.add_directive("reference", Reference)
    app.add_directive("your-turn", YourTurn)
    app.connect("doctree-read", hide_given_away)
    app.connect("missing-reference", leave_out)
    app.connect("build-finished", write_left_out)
    return about(Path(__file__))
