"""What the book tells a screen reader beyond what Sphinx writes.

A table whose first head cell is empty names its rows in the first column: that column becomes
head cells of their rows. An empty head cell names nothing, so it becomes an ordinary one. Entries
of the bibliography are items of a list; the role that docutils gives them is deprecated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from course import about
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

EMPTY = (nodes.paragraph, nodes.Text, nodes.comment)  # what may be in an empty cell
ROW_NAME = "course-row-name"  # looks like any other cell


def is_empty(cell: nodes.entry) -> bool:
    """Whether a cell holds nothing, not even what is filled in later."""
    inside = (node for node in cell.findall() if node is not cell)
    return not cell.astext().strip() and all(isinstance(n, EMPTY) for n in inside)


def name_rows(app: Sphinx, doctree: nodes.document) -> None:
    """Let the first column of tables with an empty first head cell name the rows."""
    for group in doctree.findall(nodes.tgroup):
        head = next(group.findall(nodes.thead), None)
        if head is None or not is_empty(next(head.findall(nodes.entry))):
            continue
        for row in next(group.findall(nodes.tbody)).findall(nodes.row):
            first = row[0]
            if not is_empty(first):
                first["classes"].append(ROW_NAME)


def visit_entry(translator: HTML5Translator, node: nodes.entry) -> None:
    """Open a cell as Sphinx does; of a head cell say what it names, if it names anything."""
    row = node.parent
    is_head = isinstance(row.parent, nodes.thead)
    if is_head and is_empty(node):
        tag, scope = "td", {}
    elif is_head:
        tag, scope = "th", {"scope": "col"}
    elif ROW_NAME in node["classes"]:
        tag, scope = "th", {"scope": "row"}
    else:
        type(translator).visit_entry(translator, node)
        return
    spans = {"rowspan": "morerows", "colspan": "morecols"}
    more = {name: node[key] + 1 for name, key in spans.items() if key in node}
    row.column += 1 + node.get("morecols", 0)
    classes = ["head"] if is_head else []
    translator.body.append(translator.starttag(node, tag, "", classes=classes, **scope, **more))
    translator.context.append(f"</{tag}>\n")


def depart_entry(translator: HTML5Translator, node: nodes.entry) -> None:
    """Close a cell."""
    type(translator).depart_entry(translator, node)


def list_citations(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Let the entries of a bibliography be items of the list that docutils puts around them."""
    if "body" in context:
        context["body"] = context["body"].replace('role="doc-biblioentry"', 'role="listitem"')


def setup(app: Sphinx) -> dict[str, Any]:
    """Register what happens to tables and to the bibliography."""
    # `add_node` would take `entry` from docutils when the build is over.
    app.registry.add_translation_handlers(nodes.entry, html=(visit_entry, depart_entry))
    app.connect("doctree-read", name_rows)
    app.connect("html-page-context", list_citations)
    return about(Path(__file__))
