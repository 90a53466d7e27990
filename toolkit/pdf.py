"""Print the built book: `python -m toolkit.pdf [--edition course] [--out build/book] [--paper A4]`.

Chromium prints one page of the book after the other, as a reader would from the browser, in the
order of the contents. The parts are put together behind a title page with the contents; what leads
from one page to another leads there in the PDF, too. How a page looks on paper is said in
`book/_assets/custom.css`, under *paper*.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import yaml
from pypdf import PdfReader, PdfWriter
from pypdf.generic import ArrayObject, FloatObject, NameObject, TextStringObject
from tqdm import tqdm

from toolkit.book import OUT, SITES, site_of
from toolkit.browser import chromium, wait_for_formulas, wait_for_widgets

PAPERS = ("A4", "Letter")
NAMES = {"reader": "transformers-by-hand.pdf", "course": "transformers-by-hand-course.pdf"}

# Chromium keeps the position of what a link in the same page leads to, and of nothing else.
# Pictures further down, which are not loaded yet, are asked for.
PREPARE = """async () => {
  const links = document.createElement('div');
  links.style.display = 'none';
  for (const target of document.querySelectorAll('[id]')) {
    if (target.closest('svg, mjx-container, script')) continue;
    const link = document.createElement('a');
    link.href = '#' + encodeURIComponent(target.id);
    links.append(link);
  }
  document.body.append(links);
  for (const image of document.images) image.loading = 'eager';
  await Promise.all([...document.images].map(image => image.decode().catch(() => null)));
  await document.fonts.ready;
}"""
# What stands at the edges of a sheet. The counter of pages goes on where the last part ended.
EDGES = """
html {{ counter-reset: page {before}; }}
@page {{
  font: 8pt system-ui, "Liberation Sans", sans-serif; color: #5a606b;
  @top-left {{ content: {left}; }}
  @top-right {{ content: {right}; }}
  @bottom-center {{ content: counter(page); }}
}}
"""
FRONT = """<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
  @page {{ margin: 25mm 22mm; }}
  body {{ margin: 0; font: 9.5pt/1.35 system-ui, "Liberation Sans", sans-serif; color: #22252b; }}
  h1, h2, .part {{ font-family: Palatino, Georgia, "Liberation Serif", serif; font-weight: 600; }}
  h1 {{ font-size: 34pt; line-height: 1.2; margin: 75mm 0 4mm; }}
  h2 {{ break-before: page; font-size: 20pt; margin: 0 0 6mm; }}
  p {{ margin: 0; color: #5a606b; }}
  ol {{ list-style: none; margin: 0; padding: 0; }}
  ol ol {{ padding-left: 6mm; }}
  .part {{ font-size: 12pt; margin-top: 4mm; break-after: avoid; }}
  a {{ display: flex; gap: 2mm; color: inherit; text-decoration: none; break-inside: avoid; }}
  a::before {{ content: ""; order: 1; flex: 1; margin-bottom: 1mm; border-bottom: 1px dotted; }}
  a > b {{ order: 2; font-weight: normal; font-variant-numeric: tabular-nums; }}
</style>
<h1>{title}</h1><p>{imprint}</p><h2>Contents</h2>{contents}
"""
# What the foot of a page says of copyright and licence
FOOTER = re.compile(r'class="(?:copyright|extra_footer)">(.*?)</(?:p|div)>', re.DOTALL)


class PdfError(Exception):
    """The book could not be printed; the message says what to mend."""


@dataclass(frozen=True)
class Entry:
    """A line of the contents: a page with those below it, or a part of the book without one."""

    title: str
    page: str = ""  # `attention/index`
    below: list[Entry] = field(default_factory=list)

    def pages(self) -> Iterator[Entry]:
        """This entry, if it is a page, and the pages below it, in their order."""
        if self.page:
            yield self
        for entry in self.below:
            yield from entry.pages()


def entries(toc: dict[str, Any], site: Path) -> list[Entry]:
    """The contents of a built book, with the titles that its pages have.

    Args:
        toc: what `_toc.yml` holds.
        site: the folder of the built pages.
    """

    def entry(node: dict[str, Any]) -> Entry:
        below = node.get("sections") or node.get("chapters") or []
        page = node.get("file") or node.get("root") or ""
        title = _title(site / f"{page}.html") if page else node.get("caption", "")
        return Entry(title, page, [entry(one) for one in below])

    parts = toc.get("parts") or []
    loose = [] if parts else toc.get("chapters") or []
    return [entry({"root": toc["root"]}), *map(entry, [*parts, *loose])]


def _title(page: Path) -> str:
    """A page's title, with the number of a chapter and without the name of the book."""
    if not page.is_file():
        raise PdfError(f"The built book has no page {page.stem}; make book builds it.")
    found = re.search(r"<title>(.*?)</title>", page.read_text(encoding="utf-8"), re.DOTALL)
    return html.unescape(found[1]).split(" — ")[0].strip() if found else page.stem


def print_book(out: Path = OUT, *, edition: str = "reader", paper: str = "A4") -> Path:
    """Print a built edition into one file, whose path is returned.

    Args:
        out: where the book was built.
        edition: `reader` or `course`.
        paper: one of `PAPERS`.

    Raises:
        PdfError: there is no built book, or no browser.
    """
    site, toc = site_of(out, edition), out / "_build" / f"toc-{edition}.yml"
    if not (site / "index.html").is_file() or not toc.is_file():
        command = "make book" + ("" if edition == "reader" else f" EDITION={edition}")
        raise PdfError(f"There is no built book in {_relative(out)}; {command} makes it.")
    contents = entries(yaml.safe_load(toc.read_text(encoding="utf-8")), site)
    target = out / NAMES[edition]
    with _browser() as browser:
        print_pages(browser, site, contents, target, paper)
    return target


@contextlib.contextmanager
def _browser() -> Iterator[Any]:
    with contextlib.ExitStack() as stack:
        try:
            browser = stack.enter_context(chromium())
        except RuntimeError as error:
            raise PdfError(
                "Printing needs Chromium, which is not here; type: sudo apt-get install chromium"
            ) from error
        yield browser


def print_pages(
    browser: Any, site: Path, contents: Sequence[Entry], target: Path, paper: str = "A4"
) -> None:
    """Print pages of a site, put them together, and write the file.

    Args:
        browser: a browser of Playwright's.
        site: the folder of the pages.
        contents: what to print, in its order; the first entry's title is that of the whole.
        target: the file to write.
        paper: one of `PAPERS`.
    """
    whole = contents[0].title
    context = browser.new_context(color_scheme="light", viewport={"width": 1000, "height": 900})
    with tempfile.TemporaryDirectory() as folder:
        front = Path(folder, "front.html")

        def front_page(numbers: dict[str, int]) -> bytes:
            front.write_text(_front(whole, contents, numbers, site), encoding="utf-8")
            return _print(context, front, paper)

        parts = {"": front_page({})}
        count, starts = _length(parts[""]), {}
        todo = [(entry, chapter) for chapter, entry in _with_chapters(contents)]
        for entry, chapter in tqdm(todo, desc="printing", unit="page", disable=None):
            starts[entry.page] = count + 1
            edges = (chapter, entry.title if entry.title != chapter else "", count)
            parts[entry.page] = _print(context, site / f"{entry.page}.html", paper, edges)
            count += _length(parts[entry.page])
        parts[""] = front_page(starts)
    context.close()
    writer = merge(parts, contents, site)
    # Written beside it first: a reader may have the old one open.
    beside = target.with_suffix(".part")
    writer.write(beside)
    beside.replace(target)


def _with_chapters(contents: Sequence[Entry]) -> Iterator[tuple[str, Entry]]:
    """Each page with the title of its chapter: the page at the top of the contents or of a part."""
    for top in contents:
        for chapter in [top] if top.page else top.below:
            for entry in chapter.pages():
                yield chapter.title, entry


def _print(
    context: Any, file: Path, paper: str, edges: tuple[str, str, int] | None = None
) -> bytes:
    """A page as PDF. `edges`: what stands at its top, and how many sheets there are before it."""
    page = context.new_page()
    page.goto(file.as_uri(), wait_until="load")
    wait_for_formulas(page)
    wait_for_widgets(page)
    page.evaluate(PREPARE)
    if edges is not None:
        left, right, before = edges
        left, right = (json.dumps(text, ensure_ascii=False) for text in (left, right))
        css = EDGES.format(before=before, left=left, right=right)
        page.add_style_tag(content=css)
    data = page.pdf(format=paper, prefer_css_page_size=True, print_background=True)
    page.close()
    return data


def _front(title: str, contents: Sequence[Entry], numbers: dict[str, int], site: Path) -> str:
    """The title page and the contents, as HTML."""

    def line(entry: Entry) -> str:
        below = f"<ol>{''.join(map(line, entry.below))}</ol>" if entry.below else ""
        name = html.escape(entry.title)
        if not entry.page:
            return f"<li><div class=part>{name}</div>{below}</li>"
        address = (site / f"{entry.page}.html").resolve().as_uri()
        # Until the numbers are known, one that takes as much room
        number = numbers.get(entry.page, 888)
        return f"<li><a href='{address}'>{name}<b>{number}</b></a>{below}</li>"

    lines = "".join(map(line, contents[1:]))
    first = (site / f"{contents[0].page}.html").read_text(encoding="utf-8")
    imprint = " ".join(re.sub(r"<[^>]*>", "", text) for text in FOOTER.findall(first))
    return FRONT.format(title=html.escape(title), imprint=imprint, contents=f"<ol>{lines}</ol>")


def _length(part: bytes) -> int:
    return len(PdfReader(BytesIO(part)).pages)


def merge(parts: dict[str, bytes], contents: Sequence[Entry], site: Path) -> PdfWriter:
    """Put printed pages together, with an outline, and let links lead to where they are now.

    A link to a file of the site that is not printed, or to a section that is not there, leads to
    the page's beginning or is taken out.

    Args:
        parts: the PDF of each page, by its name, in their order.
        contents: what the outline shows.
        site: the folder of the pages, at which their links point.
    """
    writer = PdfWriter()
    tops: dict[str, Any] = {}
    places: dict[tuple[str, str], ArrayObject] = {}
    owners: list[str] = []
    for name, data in parts.items():
        reader, first = PdfReader(BytesIO(data)), len(writer.pages)
        writer.append(reader, import_outline=False)
        tops[name] = writer.pages[first]
        owners += [name] * len(reader.pages)
        for anchor, place in reader.named_destinations.items():
            number = reader.get_destination_page_number(place)
            page = writer.pages[first + (number or 0)]
            places[name, unquote(anchor.removeprefix("/"))] = _place(page, place.top)
    pages = {(site / f"{name}.html").resolve().as_uri(): name for name in parts if name}
    for page, name in zip(writer.pages, owners, strict=True):
        kept = ArrayObject()
        for note in page.get("/Annots", ()):
            if _lead(note.get_object(), name, pages, tops, places):
                kept.append(note)
        page[NameObject("/Annots")] = kept
    _outline(writer, contents, tops)
    writer.add_metadata({"/Title": contents[0].title})
    writer.root_object[NameObject("/Lang")] = TextStringObject("en")
    writer.page_mode = "/UseOutlines"
    writer.compress_identical_objects()
    return writer


def _place(page: Any, top: Any) -> ArrayObject:
    """A destination: this height of a page, in the size that the reader has chosen."""
    height = FloatObject(float(top)) if top is not None else FloatObject(page.mediabox.top)
    kind = NameObject("/XYZ")
    return ArrayObject([page.indirect_reference, kind, FloatObject(0), height, FloatObject(0)])


def _lead(
    link: Any, name: str, pages: dict[str, str], tops: dict[str, Any],
    places: dict[tuple[str, str], ArrayObject],
) -> bool:  # fmt: skip
    """Let a link of page `name` lead to a place in the whole; whether it leads anywhere."""
    if "/Dest" in link:
        target, anchor = name, str(link["/Dest"]).removeprefix("/")
    else:
        address = str(link.get("/A", {}).get("/URI", ""))
        if not address.startswith("file:"):
            return bool(address)
        file, anchor = urldefrag(address)
        if file not in pages:
            return False
        target = pages[file]
    found = places.get((target, unquote(anchor)))
    link.pop("/A", None)
    link[NameObject("/Dest")] = found or _place(tops[target], None)
    return True


def _outline(writer: PdfWriter, contents: Sequence[Entry], tops: dict[str, Any]) -> None:
    """Chapters and their pages, nested; only parts are open at first."""

    def add(entry: Entry, parent: Any = None) -> None:
        first = next(entry.pages(), None)
        if first is None:
            return
        item = writer.add_outline_item(
            entry.title,
            page_number=tops[first.page].page_number,
            parent=parent,
            is_open=not entry.page,
        )
        for one in entry.below:
            add(one, item)

    for entry in contents:
        add(entry)


def _relative(path: Path) -> Path:
    with contextlib.suppress(ValueError):
        return path.resolve().relative_to(Path.cwd())
    return path


def main(arguments: list[str] | None = None) -> int:
    """The command line; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m toolkit.pdf", description="Print the built book into one PDF."
    )
    parser.add_argument("--out", type=Path, default=OUT, help="where it was built (build/book)")
    parser.add_argument("--edition", choices=SITES, default="reader", help="which edition")
    parser.add_argument("--paper", choices=PAPERS, default="A4", help="the size of a sheet")
    options = parser.parse_args(arguments)
    try:
        file = print_book(options.out, edition=options.edition, paper=options.paper)
    except PdfError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped; nothing was written.", file=sys.stderr)
        return 130
    size = file.stat().st_size / 1e6
    print(f"The book is at {_relative(file)}: {_length(file.read_bytes())} pages, {size:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
