"""The pages' sources and data: language, wording, and that the data files agree with each other."""

from __future__ import annotations

import ast
import csv
import re
from collections import Counter
from pathlib import Path

import pytest

from autograder.common import paths
from autograder.units.assignment import load
from toolkit.book import ROOT, SOURCE, contents, done

PAGES = [SOURCE / f"{name}.md" for name in contents()]
PATTERNS = ("**/*.md", "*.csv", "*.bib", "*.yml", "_ext/*.py", "_assets/*.*")
PICTURES = (".png", ".jpg", ".ico", ".woff2")
TEXTS = sorted(
    path for pattern in PATTERNS for path in SOURCE.glob(pattern) if path.suffix not in PICTURES
)
# What students read of the exercises: texts, and the sentences that `check` says
CODE = sorted(
    path for folder in ("solutions", "autograder/misconceptions", "autograder/ungraded")
    for path in (ROOT / folder).glob("*/*.py")
)  # fmt: skip
CHINESE = re.compile(r"[\u3000-\u303f\u3400-\u9fff\uff00-\uffef]")
# What a finished book doesn't say: what is unfinished, where it was made, and words that make a
# reader who doesn't see it yet feel small, or that say nothing.
FORBIDDEN = [
    r"\bTODO\b", r"\bFIXME\b", r"\bXXX\b", r"\blorem ipsum\b", r"/work/", r"/tmp/", r"/root/",
    r"\bobviously\b", r"\btrivial(ly)?\b", r"\bit is easy to see\b", r"\bas everyone knows\b",
    r"\bdelve\b", r"\bleverag\w+\b", r"\bgame.chang\w+\b", r"\bcutting.edge\b", r"\bseamless",
]  # fmt: skip

# The course says what the field says, so that a reader can search for it. Wherever the word of
# the left means something else, it is in an idiom of IDIOMS or in a phrase of its own.
PRIVATE = {
    r"\bplaces?\b": "position, token",
    r"\bshortcuts?\b": "residual connection",
    r"\bhid(e|es|den|ing) (a |some |more )?words?\b": "mask",
    r"\bguess(es|ed|ing)? (the |a |hidden |masked )?(words?|tokens?)\b": "predict",
    r"\b(table|row) of (tokens|words|embeddings)\b": "embedding matrix",
    r"\bnobody's target\b": "never a target",
    r"\bwhile writing\b": "during generation",
    r"\b(rows|columns) (are )?look(ed)?\b(?! like)": "queries, keys",
    r"\*\*The (question|idea|formula)\.\*\*": "a heading that says what it is about",
    r"\b(one|another|some) sources? (says?|calls?|draws?|writes?|quotes?)\b": "a misunderstanding",
}
IDIOMS = re.compile(
    r"\bin[- ]place\b|\bin (the|its|their|your|our|each other's) places?\b|\bin place of\b"
    r"|\b(decimal|two|three|four|to|changed?|one|both|take the) places?\b|\btakes? its place\b"
    r"|\b(a person, a|or|and|tells? person from|persons .* and|only) places?\b"
    r"|\bplace in the (book|gradebook)\b|\b(is|be|has) a place\b|\btake a shortcut\b"
    r"|\bcalled skip connection or shortcut\b"
)


def rows(name: str) -> list[dict[str, str]]:
    with (SOURCE / name).open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def prose(page: Path) -> str:
    """A page's text without front matter, code and directive options."""
    text = re.sub(r"\A---\n.*?\n---\n", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"^(`{3,})\{?code-cell.*?^\1[ \t]*$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^(`{3,})\w+\n.*?^\1[ \t]*$", "", text, flags=re.DOTALL | re.MULTILINE)


def shown(path: Path) -> str:
    """A file of the book as one would type it: `attention/index.md`."""
    return path.relative_to(SOURCE).as_posix()


@pytest.mark.parametrize("path", TEXTS, ids=shown)
def test_chinese_is_what_the_translator_writes_but_in_the_glossary(path: Path) -> None:
    if path.name.startswith("glossary."):
        pytest.skip("the glossary gives the Chinese terms")
    written = (ROOT / "models" / "transformer-en-zh" / "tokenizer.json").read_text(encoding="utf-8")
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [
        f"{n}: {line[:80]}" for n, line in enumerate(lines, 1)
        if set(CHINESE.findall(line)) - set(written)
    ]  # fmt: skip
    assert not found


@pytest.mark.parametrize("path", TEXTS, ids=shown)
def test_wording(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [
        f"{number}: {match[0]}"
        for number, line in enumerate(lines, 1)
        for pattern in FORBIDDEN
        if (match := re.search(pattern, line, re.IGNORECASE))
    ]
    assert not found


def sentences(path: Path) -> list[str]:
    """What a reader or student reads of a file: prose; of code, its texts and its sentences."""
    if path.suffix == ".md":
        return re.sub(r"`[^`\n]+`", "", prose(path)).splitlines()
    texts = [
        node.value for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]  # fmt: skip
    texts = [text for text in texts if text.rstrip().endswith(".") and " " in text.strip()]
    return [line for text in texts for line in re.sub(r"`[^`]+`", "", text).splitlines()]


@pytest.mark.parametrize(
    "path",
    [path for path in (*PAGES, *CODE) if path.stem != "errata"],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_things_have_the_names_of_the_field(path: Path) -> None:
    found = [
        f"{match[0]!r} (the field says: {word}): {line.strip()}"
        for line in sentences(path)
        for private, word in PRIVATE.items()
        if (match := re.search(private, IDIOMS.sub("", line), re.IGNORECASE))
    ]
    assert not found


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_a_page_has_one_title_and_no_heading_twice(page: Path) -> None:
    headings = re.findall(r"^(#+) (.+)$", prose(page), re.MULTILINE)
    assert [len(marks) for marks, _ in headings].count(1) == 1
    assert headings[0][0] == "#"
    twice = [title for title, count in Counter(title for _, title in headings).items() if count > 1]
    assert not twice


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_cited_works_are_in_the_bibliography(page: Path) -> None:
    known = set(
        re.findall(r"^@\w+\{([^,]+),", (SOURCE / "references.bib").read_text(), re.MULTILINE)
    )
    cited = {key.strip() for keys in re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", prose(page))
             for key in keys.split(",")}  # fmt: skip
    assert cited <= known


def test_pages_that_are_done_are_in_the_contents_each_once() -> None:
    assert set(done()) <= set(contents())
    assert len(done()) == len(set(done()))


def test_bibliography_entries_are_complete() -> None:
    entries = re.split(
        r"^@", (SOURCE / "references.bib").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    lacking = []
    for entry in entries[1:]:
        kind, key = re.match(r"(\w+)\{([^,]+),", entry).groups()
        place = {"article": "journal", "inproceedings": "booktitle", "techreport": "institution"}
        for name in ("author", "title", "year", place.get(kind, "howpublished")):
            if not re.search(rf"^\s*{name}\s*=\s*\{{.+\}}", entry, re.MULTILINE):
                lacking.append(f"{key}: {name}")
    assert not lacking


def named_exercises(text: str) -> list[tuple[str, int, str]]:
    """What a page says of units' exercises: unit, number, and name where it gives one.

    Either a line `**In the notebook `unit`:** exercises 1 `a`, 2 `b`, and the question `c`.`, or
    `exercise 1 of `unit``, with the name before the number or after the unit.
    """
    found = []
    for unit, said in re.findall(
        r"\*\*In the notebook `([\w-]+)`(?::|,)\*\*(.+?)\n\n", text, re.DOTALL
    ):
        said = re.split(r"\. |, exercises ", said)[0]
        found += [(unit, int(n), name) for n, name in re.findall(r"(\d+),? `(\w+)`", said)]
        found += [(unit, 0, name) for name in re.findall(r"question\s+`(\w+)`", said)]
    for before, numbers, unit, after in re.findall(
        r"(?:`(\w+)[^`\n]*`,?\s+(?:\(|your\s+|of\s+)?)?[Ee]xercises?\s+(\d+(?:\sand\s\d+)?)\s+of\s+"
        r"`([\w-]+)`(?:, `(\w+)`)?", text
    ):  # fmt: skip
        both = numbers.split(" and ")
        name = (before or after) if len(both) == 1 else ""
        found += [(unit, int(number), name) for number in both]
    return found


def listed_on(page: str) -> set[tuple[str, str]]:
    """The units' exercises and questions that `{your-turn}` lists on a page."""
    assignments = map(load, paths.units())
    return {
        (one.unit, part.name)
        for one in assignments
        for part in (*one.exercises, *one.questions)
        if one.page(part.section) == page
    }


def test_pages_name_the_exercises_that_the_units_have() -> None:
    wrong, count, seen = [], 0, set()
    for page in PAGES:
        for unit, number, name in named_exercises(prose(page)):
            count += 1
            seen.add((unit, name))
            if unit not in paths.UNITS:
                wrong.append(f"{shown(page)}: there is no unit {unit}")
                continue
            assignment = load(unit)
            questions = {question.name for question in assignment.questions}
            if number == 0:
                right = name in questions
            else:
                there = assignment.names[number - 1 : number]
                right = there == (name,) or (there and not name)
            if not right:
                wrong.append(f"{shown(page)}: exercise {number} of {unit} is not {name}")
    assert not wrong
    assert count
    for page in PAGES:
        if "```{your-turn}" in page.read_text(encoding="utf-8"):
            seen |= listed_on(page.relative_to(SOURCE).with_suffix("").as_posix())
    everything = {
        (unit, part.name)
        for unit in paths.units()
        for part in (*load(unit).exercises, *load(unit).questions)
    }
    assert everything <= seen  # Each exercise is named where the page explains it.


def test_no_page_counts_exercises_without_a_unit() -> None:
    found = []
    for page in PAGES:
        for match in re.finditer(r"[Ee]xercises? \d+[^.]{0,40}", prose(page)):
            start = prose(page).rfind("\n\n", 0, match.start())
            paragraph = prose(page)[start : match.end() + 60]
            if not re.search(r"`[a-z0-9_]+-[a-z_]+`", paragraph):
                found.append(f"{shown(page)}: {match[0]}")
    assert not found


COMMAND = re.compile(
    r"autograder (?:grade|report|bundle|(?:package|export) \w+)\s+([a-z0-9_-]+)|--assignment (\S+)|"
    r"nbgrader (?:release_assignment|fetch_assignment|submit|collect|\w+_feedback) ([a-z0-9_-]+)"
)


def test_commands_on_pages_name_units() -> None:
    named = []
    for page in (*SOURCE.glob("howto-*.md"), ROOT / "README.md"):
        for names in COMMAND.findall(page.read_text(encoding="utf-8")):
            named += [(page.name, name) for name in names if name]
    assert len(named) > 20
    assert {name for _, name in named} <= set(paths.UNITS), named


def test_every_erratum_belongs_to_a_topic_and_every_erratum_topic_has_one() -> None:
    topics = {row["id"]: row for row in rows("topics.csv")}
    errata = rows("errata.csv")
    assert len({row["id"] for row in errata}) == len(errata)
    named = {topic for row in errata for topic in row["row"].split()}
    assert named <= set(topics)
    assert {row["grade"] for row in errata} == {"A", "B", "C"}
    assert all(row["id"].startswith(f"E{row['document']}-") for row in errata)
    assert all(row["says"].strip() and row["correct"].strip() for row in errata)
    asked = {name for name, row in topics.items() if row["kind"] == "erratum"}
    assert asked <= named


def test_topics_belong_to_the_chapters_of_the_course() -> None:
    topics = rows("topics.csv")
    assert len({row["id"] for row in topics}) == len(topics) == 220
    assert {row["chapter"] for row in topics} == {row["name"] for row in rows("chapters.csv")}
    assert {row["id"] for row in rows("coverage.csv")} <= {row["id"] for row in topics}


def test_coverage_names_each_topic_once() -> None:
    ids = [row["id"] for row in rows("coverage.csv")]
    assert len(ids) == len(set(ids))


def test_the_glossary_gives_sixty_terms_or_more_in_order() -> None:
    terms = rows("glossary.csv")
    names = [row["term"] for row in terms]
    assert len(names) >= 60
    assert names == sorted(set(names), key=str.lower)
    assert sum(bool(CHINESE.search(row["chinese"])) for row in terms) >= 60
    assert all(row["meaning"].endswith(".") for row in terms)


def test_a_name_belongs_to_one_term_of_the_glossary() -> None:
    plain = [
        name
        for row in rows("glossary.csv")
        for name in {
            re.sub(r"[-\s]", "", name.lower()).removesuffix("s")
            for name in (row["term"], *filter(None, row["also"].split("; ")))
        }
    ]
    assert sorted(set(plain)) == sorted(plain)
