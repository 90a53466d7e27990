"""Finding one's way in the book: search, sidebar, map, next page, glossary and notation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from autograder.benchmarks.pages import WINDOW
from autograder.common import paths
from tests.book.test_site import soup
from toolkit.book import SOURCE, build_book, contents
from toolkit.browser import wait_for_formulas

pytestmark = [pytest.mark.book]

CHAPTERS = [paths.first_page(chapter) for chapter in paths.CHAPTERS]
PAGES = [page for page in contents() if "/" in page]

# What people look for, and the section that explains it first
WANTED = {
    "multi-head attention": "attention/several-heads.html#att-heads",
    "masked language model": "bert/masked-language-modelling.html#brt-masking",
    "KV cache": "gpt/kv-cache.html#gpt-cache",
    "learning rate": "transformer/loss-and-schedule.html#trf-optimiser",
    "residual connection": "transformer/residual.html#trf-residual",
    "beam search": "seq2seq/decoding.html#seq-beam-search",
    "teacher forcing": "seq2seq/encoder-decoder.html#seq-teacher-forcing",
    "RoPE": "positional_encoding/rotary-and-alibi.html#pos-rope",
    "padding mask": "attention/masks.html#att-027",
    "perplexity": "gpt/loss-and-data.html#gpt-004",
    # Another name, another hyphen, another spelling
    "skip connection": "transformer/residual.html#trf-residual",
    "next sentence prediction": "bert/next-sentence.html#brt-nsp",
    "layer normalization": "transformer/layer-norm.html#trf-norm",
}

GLOSSARY = """\
term,also,chinese,section,linked,meaning
beam search,,,there,,Search that keeps the best few.
BERT,,,,,An encoder.
key-value cache,KV cache,,,,Kept keys and values.
language model,,,,,A model of text.
masked language model,,,here,,A model of masked text.
memory,encoder output,,,no,What the decoder attends to.
query,,,,,What asks. In a formula $q$ or $Q_i$.
vocabulary,,,,,All *tokens* of `a` model.
"""
NOTATION = r"""kind,symbol,spelled,chapters,code,meaning
size,$D$,D d_model,,`D`,width of the vectors
size,$H$,H,,`H`,number of heads. Then $d_k = D/H$
size,$S$,S,other,`S`,source length
symbol,$\alpha_{ij}$,\alpha_ij,,,attention weight
"""


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Build a small book whose chapter `part` has one page with this text; the page's links."""

    def write(text: str) -> dict[str, tuple[str, str]]:
        root = tmp_path_factory.mktemp("small")
        source = root / "book"
        (source / "part").mkdir(parents=True)
        (root / "_config.yml").write_text(
            "title: A small book\nonly_build_toc_files: true\n"
            "parse: {myst_enable_extensions: [dollarmath]}\n"
            f"sphinx: {{local_extensions: {{first_use: {SOURCE / '_ext'}}}}}\n"
        )
        (source / "glossary.csv").write_text(GLOSSARY)
        (source / "notation.csv").write_text(NOTATION)
        pages = {
            "index": "# Home\n",
            "glossary": "# Glossary\n",
            "notation": "# Notation\n\n```{symbols} size\n```\n",
            "part/other": "(there)=\n# Searching\n",
            "part/page": f"# A page\n\n{text}\n\n(here)=\n## Here\n",
        }
        (source / "part" / "x.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')
        for name, content in pages.items():
            (source / f"{name}.md").write_text(content)
        files = "".join(f"  - file: {name}\n" for name in list(pages)[1:])
        (source / "_toc.yml").write_text(f"format: jb-book\nroot: index\nchapters:\n{files}")
        build_book(
            root / "out", source=source, config=root / "_config.yml", root=root, tell=lambda _: None
        )
        site = root / "out" / "_build" / "html"
        links = soup(site / "part" / "page.html").select("a.course-term")
        return {link.get_text(): (link["href"], link["title"]) for link in links}

    return write


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page in a desktop's window."""
    opened = browser.new_page(viewport=WINDOW)
    yield opened
    opened.close()


@pytest.mark.browser
@pytest.mark.parametrize("query", WANTED)
def test_a_search_finds_the_section_that_explains_it_first_and_says_its_title(
    page: Any, site: Path, query: str
) -> None:
    page.goto((site / "search.html").as_uri() + "?q=" + query.replace(" ", "+"))
    page.wait_for_function(
        "document.querySelector('.search-summary').innerText.includes('finished')"
    )
    first = page.locator("ul.search a").first
    name, label = WANTED[query].split("#")
    found = soup(site / name).find(id=label)
    section = found if found.name == "section" else found.find_parent("section")
    title = section.find(["h1", "h2", "h3"])
    own = "" if title.name == "h1" else f"#{section['id']}"
    assert first.get_attribute("href") == name + own
    heading = title.get_text().removesuffix("#")
    assert first.inner_text().split(" > ")[-1] == heading


@pytest.mark.browser
def test_the_sidebar_shows_the_pages_of_this_chapter_and_unfolds_others_by_keyboard(
    page: Any, site: Path
) -> None:
    page.goto((site / "bert" / "crf.html").as_uri())
    chapters = page.locator(".bd-sidebar-primary details")
    unfolded = chapters.evaluate_all("all => all.map(one => one.open)")
    assert unfolded == [chapter == "bert/index" for chapter in CHAPTERS]
    first = chapters.first
    first.locator("summary").focus()
    page.keyboard.press("Enter")
    assert first.locator("a").first.is_visible()
    page.keyboard.press("Space")
    assert not first.locator("a").first.is_visible()


def test_each_page_leads_to_the_one_before_and_the_one_after(site: Path) -> None:
    order, lost = contents(), []
    for before, after in pairwise(order):
        for name, css, target in ((before, "right-next", after), (after, "left-prev", before)):
            link = soup(site / f"{name}.html").select_one(f".prev-next-area a.{css}")
            if (
                not link
                or (site / name).parent.joinpath(link["href"]).resolve()
                != (site / f"{target}.html").resolve()
            ):
                lost.append(f"{name}: {css} is not {target}")
    assert not lost


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_begins_with_a_map_on_which_it_is_marked(site: Path, chapter: str) -> None:
    here = site / f"{chapter}.html"
    stations = soup(here).select("nav.course-map li")
    marked = [bool(station.select_one("[aria-current=page]")) for station in stations]
    assert marked == [other == chapter for other in CHAPTERS]
    targets = [(here.parent / a["href"]).resolve() for s in stations for a in s.select("a")]
    assert targets == [(site / f"{other}.html").resolve() for other in CHAPTERS if other != chapter]


def test_the_first_mention_of_a_term_leads_to_the_glossary_and_says_its_meaning(
    written: Any,
) -> None:
    links = written(
        "Beam\nsearch with KV caches, vocabularies, queries, BERT's and language models. Then beam "
        "search, a vocabulary and a language-model."
    )
    assert set(links) == {
        "Beam\nsearch", "KV caches", "vocabularies", "queries", "BERT", "language models",
    }  # fmt: skip
    assert links["KV caches"] == ("../glossary.html#term-key-value-cache", "Kept keys and values.")
    # Formulas and markup are left out of what a tooltip says
    assert links["queries"][1] == "What asks."
    assert links["vocabularies"][1] == "All tokens of a model."


def test_what_is_no_running_text_or_another_word_is_not_linked(written: Any) -> None:
    links = written(
        "`query`, *BERT*, subquery, query-free, bert, memory.\n\n"
        "```python\nbeam_search = 'vocabulary'\n```\n\n"
        "| vocabulary |\n|---|\n| vocabulary |\n\n"
        "```{figure} x.svg\n:alt: x\n\nvocabulary\n```\n\n"
        "First [a KV cache](https://example.org), then a KV cache. Encoder output."
    )
    # The other name of a word that is not linked itself
    assert set(links) == {"Encoder output"}


def test_a_term_that_the_page_explains_is_not_linked(written: Any) -> None:
    links = written(
        "Masked language models (their section is here), BERT and the vocabulary, query.\n\n"
        "## The vocabulary\n\n**BERT** is a model."
    )
    assert set(links) == {"query"}


def test_the_first_formula_with_a_symbol_leads_to_the_notation(written: Any) -> None:
    links = written(
        "In $D^2/2$ a capital may mean anything. Of $x\\in\\R^{D\\times S}$, $(D,H)$, $H$ and\n"
        "$D$ with $\\alpha_{ij}=1$ the first with a symbol is linked.\n\n"
        "$$\nd_\\text{model}\n$$\n\n| $\\alpha_{ij}$ |\n|---|\n| $H$ |\n"
    )
    assert links == {
        r"\(x\in\R^{D\times S}\)": (
            "../notation.html#symbol-D", "D: width of the vectors",
        ),
        r"\((D,H)\)": ("../notation.html#symbol-H", "H: number of heads"),
        r"\(\alpha_{ij}=1\)": ("../notation.html#symbol-alpha-ij", "α_ij: attention weight"),
    }  # fmt: skip


def test_a_definition_is_plain_text(site: Path) -> None:
    shown = {
        link["title"] for name in PAGES
        for link in soup(site / f"{name}.html").select("a.course-term")
    }  # fmt: skip
    assert len(shown) > 60
    assert [text for text in shown if not text or re.search(r"[$\\`*{}]", text)] == []


@pytest.fixture
def residual(page: Any, site: Path) -> Any:
    """A page with terms, and one of them."""
    page.goto((site / "transformer" / "residual.html").as_uri())
    return page.locator("a.course-term", has_text="feed-forward network")


@pytest.mark.browser
def test_a_definition_shows_to_the_pointer_and_stays_while_it_is_pointed_at(
    page: Any, residual: Any
) -> None:
    meaning = residual.get_attribute("title")
    tooltip = page.get_by_role("tooltip")
    residual.hover()
    assert tooltip.inner_text() == meaning
    tooltip.hover()
    page.wait_for_timeout(300)
    assert tooltip.is_visible()
    page.mouse.move(5, 5)
    tooltip.wait_for(state="hidden")


@pytest.mark.browser
def test_a_definition_shows_to_the_keyboard_and_escape_puts_it_away(
    page: Any, residual: Any
) -> None:
    meaning = residual.get_attribute("title")
    residual.focus()
    described = residual.get_attribute("aria-describedby")
    assert page.locator(f"#{described}").inner_text() == meaning
    page.keyboard.press("Escape")
    assert not page.get_by_role("tooltip").is_visible()
    assert residual.get_attribute("title") == meaning


@pytest.mark.browser
def test_a_first_tap_shows_a_definition_and_a_second_follows_its_link(
    browser: Any, site: Path
) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844}, has_touch=True)
    page.goto((site / "transformer" / "residual.html").as_uri())
    term = page.locator("a.course-term", has_text="feed-forward network")
    term.tap()
    box = page.get_by_role("tooltip").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    assert page.url.endswith("residual.html")
    term.tap()
    page.wait_for_url("**/glossary.html#term-feed-forward-network")
    page.close()


@pytest.mark.browser
@pytest.mark.parametrize("name", ["transformer/encoder-decoder", "gpt/index"])
@pytest.mark.parametrize("width", [1366, 390])
def test_links_at_first_use_leave_a_page_as_high_as_it_was(
    page: Any, site: Path, name: str, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 768})
    page.goto((site / f"{name}.html").as_uri(), wait_until="load")
    wait_for_formulas(page)
    page.wait_for_load_state("networkidle")
    high = "document.documentElement.scrollHeight"
    linked = page.evaluate(high)
    page.evaluate(
        "document.querySelectorAll('a.course-term').forEach(a => a.replaceWith(...a.childNodes))"
    )
    assert page.evaluate(high) == linked
