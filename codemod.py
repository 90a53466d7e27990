"""Apply the table of names, `names.csv`: `python codemod.py [--left] [CHAPTER ...]`.

It knows the layout with a file a chapter (`solutions/bert.py`) and the one with a file a unit
(`solutions/bert/model.py`), and may be run again on a tree of which a part has changed.

Kinds of rows in the table:

* `word`, `exercise`: the name is nothing else anywhere: every occurrence as a word is replaced.
* `argument`: in the classes and functions of `where`, the name is replaced in code, in code within
  texts, before a colon in `Args:`, and as a keyword wherever one of them is called. `Class.method`
  limits it to a method.
* `local`: the same without keywords.
* `attribute`: after a dot.
* `key`: a string that is the name and nothing else; `where` names functions or constants.
* `keep`: a text in which nothing is replaced.
* `text`: a text that is replaced by another, after everything else; `where` may be a file pattern.

`--left` prints where a name of the table is left in plain words of its own scope.
"""

from __future__ import annotations

import argparse
import ast
import csv
import fnmatch
import io
import re
import subprocess
import sys
import textwrap
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent
CHAPTERS = ("seq2seq", "attention", "positional_encoding", "transformer", "bert", "gpt")
# What belongs to a chapter, by room; {c} is the chapter.
ROOMS = {
    "solutions": ("solutions/{c}.py", "solutions/{c}/*.py"),
    "conventions": ("solutions/{c}/*.md",),
    "graders": ("autograder/graders/test_{c}.py", "autograder/graders/{c}/*.py"),
    "misconceptions": ("autograder/misconceptions/{c}.py", "autograder/misconceptions/{c}/*.py"),
    "equivalents": ("autograder/equivalents/{c}.toml", "autograder/equivalents/{c}/*.toml"),
    "demo": ("autograder/demo/{c}.py", "autograder/demo/{c}_*.py", "autograder/demo/{c}/*.py"),
    "book": ("book/{c}.md", "book/{c}/*.md"),
    "tests": ("tests/solutions/test_{c}.py", "tests/solutions/{c}/*.py"),
    "style_tests": (
        "tests/autograder/graders/test_{c}.py",
        "tests/autograder/graders/{c}/*.py",
    ),
}
# What chapters share, by the rules of the chapter `toolkit`.
SHARED = (
    "toolkit/*.py",
    "tests/toolkit/*.py",
    "tests/solutions/test_every_chapter.py",
    "autograder/benchmarks/gpt.py",
    "book/*.md",
    "book/*/*.md",
)
FORMATTED = (
    "solutions",
    "autograder/graders",
    "autograder/misconceptions",
    "autograder/demo",
    "tests",
    "toolkit",
)
# Helper functions in misconceptions and what their code strings belong to.
HELPERS: dict[tuple[str, str], str] = {
    ("attention", "_averaged"): "MultiHeadAttention",
    ("attention", "_attention_mistakes"): "SelfAttention",
    ("gpt", "of_both_blocks"): "PostNormBlock PreNormBlock",
}


@dataclass(frozen=True)
class Rule:
    chapter: str
    old: str
    new: str
    kind: str
    where: tuple[str, ...]

    def fits(self, scope: frozenset[str]) -> bool:
        """Whether the rule holds in a scope; in a whole cell that of a method holds too."""
        if self.where == ("*",):
            return True
        if any(name in scope for name in self.where):
            return True
        if "cell" not in scope:
            return False
        return any(
            name.split(".")[0] in scope and ("." not in name or "called" in scope)
            for name in self.where
        )

    def calls(self, names: Iterable[str]) -> bool:
        """Whether it is an argument of one of these functions or classes."""
        return any(where.removesuffix(".__init__") in names for where in self.where)


def read_table(path: Path) -> list[Rule]:
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Rule(row["chapter"], row["old"], row["new"], row["kind"], tuple(row["where"].split()))
            for row in csv.DictReader(file)
        ]


@dataclass
class Edits:
    """Replacements in one text, by offset."""

    text: str
    made: dict[tuple[int, int], str] = field(default_factory=dict)

    def put(self, start: int, end: int, new: str) -> None:
        self.made.setdefault((start, end), new)

    def result(self) -> str:
        parts, last = [], 0
        for (start, end), new in sorted(self.made.items()):
            if start < last:
                continue
            parts += [self.text[last:start], new]
            last = end
        return "".join([*parts, self.text[last:]])


class Left:
    """Where a name stands in plain words."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, path: str, number: int, what: str, line: str) -> None:
        self.lines.append(f"{path}:{number}: {what}: {line.strip()[:150]}")


NONE: frozenset[str] = frozenset()
SPAN = re.compile(r"``[^`]+``|`[^`]+`|[\w.]*\w\([^()`]*(?:\([^()`]*\)[^()`]*)*\)|\$[^$`]+\$", re.S)


class Names:
    """The rules of one chapter, applied to texts of all sorts."""

    def __init__(self, rules: list[Rule], left: Left) -> None:
        self.words = [rule for rule in rules if rule.kind in ("word", "exercise")]
        self.scoped = [rule for rule in rules if rule.kind in ("argument", "local")]
        self.arguments = [rule for rule in rules if rule.kind == "argument"]
        self.attributes = [rule for rule in rules if rule.kind == "attribute"]
        self.keys = [rule for rule in rules if rule.kind == "key"]
        self.keep = [rule for rule in rules if rule.kind == "keep"]
        self.texts = [rule for rule in rules if rule.kind == "text"]
        self.left = left
        self.path = ""
        self.names = sorted({rule.old for rule in self.scoped + self.attributes}, key=len)

    # ---- in a piece of code without a tree ----------------------------------------------------

    def name(self, old: str, scope: frozenset[str]) -> str | None:
        for rule in self.scoped:
            if rule.old == old and rule.fits(scope):
                return rule.new
        return None

    def attribute(self, old: str, scope: frozenset[str]) -> str | None:
        for rule in self.attributes:
            if rule.old == old and rule.fits(scope):
                return rule.new
        return None

    def code(self, text: str, scope: frozenset[str]) -> str:
        """Code that need not be complete: by word, told apart by the dot before it."""
        kept = [
            match.span()
            for rule in self.keep
            if rule.fits(scope)
            for match in re.finditer(re.escape(rule.old), text)
        ]
        calls = {}
        for match in re.finditer(r"\b(\w+)=(?!=)", text):
            callee = _caller(text, match.start())
            if callee:
                calls[match.start()] = callee

        if re.search(r"\w\(", text):
            scope = scope | {"called"}

        def swap(match: re.Match[str]) -> str:
            word, at = match[0], match.start()
            if any(start <= at < end for start, end in kept):
                return word
            before = text[at - 1] if at else ""
            if before == "-" and at > 1 and text[at - 2].isalnum():  # an anchor, not a difference
                return word
            if before == "." and text[max(at - 3, 0) : at] != "...":
                called = text[match.end() : match.end() + 1] == "("
                return word if called else self.attribute(word, scope) or word
            if at in calls and not calls[at].startswith("__"):
                callee = calls[at]
                for rule in self.arguments:
                    if rule.old == word and rule.calls([callee]):
                        return rule.new
                if callee[:1].isupper() or callee in FOREIGN:
                    return word
            return self.name(word, scope) or word

        return re.sub(r"[A-Za-z_]\w*", swap, text)

    def prose(self, text: str, scope: frozenset[str], line: int = 0) -> str:
        """Words for people: only what stands as code in them, or before a colon in `Args:`."""
        parts, last = [], 0
        for match in SPAN.finditer(text):
            parts.append(self._plain(text[last : match.start()], scope, line, text, last))
            piece = match[0]
            piece = self._math(piece, scope) if piece[0] == "$" else self.code(piece, scope)
            parts.append(piece)
            last = match.end()
        parts.append(self._plain(text[last:], scope, line, text, last))
        return "".join(parts)

    def _math(self, text: str, scope: frozenset[str]) -> str:
        def swap(match: re.Match[str]) -> str:
            new = self.name(match[1], scope)
            return "\\text{" + new.replace("_", r"\_") + "}" if new else match[0]

        return re.sub(r"\\text\{(\w+)\}", swap, text)

    def _plain(
        self, text: str, scope: frozenset[str], line: int, whole: str = "", offset: int = 0
    ) -> str:
        text = self._all(
            text,
            scope,
            (
                r"(?m)^(?P<before>\s*)(?P<name>{})(?=:\s)",
                r"(?<![\w.])(?P<name>{})(?==(?:[\w\"'{{(-]|\Z))",
                r"(?<![\w.])(?P<name>{})(?= (?:==|>=?|<=?) )",
            ),
        )
        found = self._mapping(scope)
        text = re.sub(
            r"(?<![\w.])[A-Za-z]\w*_\w+", lambda match: found.get(match[0], match[0]), text
        )
        for name in found:
            for match in re.finditer(rf"(?<![\w.]){name}(?!\w)", text):
                number = line + whole.count("\n", 0, offset) + text.count("\n", 0, match.start())
                near = text[max(match.start() - 60, 0) : match.end() + 50].replace("\n", " ")
                self.left.note(self.path, number, name, near)
        return text

    def _mapping(self, scope: frozenset[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for rule in self.scoped:
            if rule.fits(scope):
                found.setdefault(rule.old, rule.new)
        return found

    def _all(self, text: str, scope: frozenset[str], patterns: Iterable[str]) -> str:
        """All names of a scope at once, so that none is renamed twice."""
        found = self._mapping(scope)
        if not found:
            return text
        either = "|".join(sorted(map(re.escape, found), key=len, reverse=True))
        for pattern in patterns:
            text = re.sub(
                pattern.replace("{}", either).replace("{{", "{"),
                lambda match: match.groupdict().get("before", "") + found[match["name"]],
                text,
            )
        return text

    def word(self, text: str) -> str:
        for rule in self.words:
            text = re.sub(rf"(?<!\w){re.escape(rule.old)}(?!\w)", rule.new, text)
        return text

    def literal(self, text: str) -> str:
        for rule in self.texts:
            if rule.where == ("*",) or any(fnmatch.fnmatch(self.path, w) for w in rule.where):
                text = text.replace(rule.old, rule.new)
        return text

    # ---- Python --------------------------------------------------------------------------------

    def python(self, text: str, how: str, cells: frozenset[str] = NONE, line: int = 0) -> str:
        """A Python text; `how`: whose functions they are, `own`, `grader`, `mistake` or `book`."""
        try:
            tree = ast.parse(text)
        except SyntaxError as error:
            self.left.note(self.path, line + (error.lineno or 0), "no Python", str(error))
            return text
        offsets = [0]
        for each in text.splitlines(keepends=True):
            offsets.append(offsets[-1] + len(each))
        lines = text.splitlines(keepends=True)

        def at(row: int, column: int, in_bytes: bool = False) -> int:
            if in_bytes:
                column = len(lines[row - 1].encode()[:column].decode())
            return offsets[row - 1] + column

        keywords = self._keywords(tree, at)
        code_scope, text_scope = self._scopes(tree, text, how, cells)
        strings = self._string_kinds(tree, at, how)
        keys = self._key_places(tree, at)
        edits = Edits(text)
        previous, seen = None, set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            start, end = at(*token.start), at(*token.end)
            row = token.start[0]
            if token.type == tokenize.NAME:
                new = self._token(token.string, start, previous, row, keywords, code_scope)
                method = (
                    previous is not None and previous.string == "." and text[end : end + 1] == "("
                )
                if new and not method:
                    edits.put(start, end, new)
            elif token.type == tokenize.STRING:
                if start in keys:
                    body = token.string[1:-1]
                    new = token.string[0] + (self._key(body, text_scope[row]) or body)
                    new += token.string[-1]
                else:
                    new = self._string(
                        token.string, start, row, strings, code_scope, text_scope, how, line
                    )
                if new != token.string:
                    edits.put(start, end, new)
            elif token.type == tokenize.COMMENT:
                if text[offsets[row - 1] : start].strip():
                    new = self._comment(token.string, text_scope[row], line + row)
                    if new != token.string:
                        edits.put(start, end, new)
                elif row not in seen:  # a block of comments, up to an empty one
                    last = row
                    while (
                        lines[last - 1].strip() not in ("#", "#!")
                        and last < len(lines)
                        and re.match(r"\s*#", lines[last])
                        and text_scope[last + 1] == text_scope[row]
                    ):
                        last += 1
                    seen.update(range(row, last + 1))
                    end = offsets[last]
                    new = self._comment(text[start:end], text_scope[row], line + row)
                    if new != text[start:end]:
                        edits.put(start, end, new)
            if token.type not in (tokenize.NL, tokenize.COMMENT):
                previous = token
        return edits.result()

    def _token(self, word, start, previous, row, keywords, code_scope) -> str | None:
        if previous is not None and previous.string == ".":
            return self.attribute(word, code_scope[row])
        if start in keywords:
            callees = keywords[start]
            if callees == {"*inside"}:
                return self.name(word, code_scope[row])
            for rule in self.arguments:
                if rule.old == word and rule.calls(callees):
                    return rule.new
            if callees & {"dict"}:
                return self._key(word, code_scope[row] | {"key"})
            if word in self.names and not callees & FOREIGN:
                self.left.note(self.path, row, f"{word}= of {sorted(callees)}", "")
            return None
        return self.name(word, code_scope[row])

    def _key(self, word: str, scope: frozenset[str]) -> str | None:
        for rule in self.keys:  # the first that fits; the table has the special ones first
            if rule.old == word and (rule.where == ("*",) or rule.fits(scope)):
                return rule.new
        return None

    @staticmethod
    def _keywords(tree: ast.AST, at) -> dict[int, set[str]]:
        """Offset of each keyword in a call -> the names that may be what is called."""
        found: dict[int, set[str]] = {}
        for owner in ast.walk(tree):
            if isinstance(owner, ast.ClassDef):
                bases = {_last(base) for base in owner.bases}
                for call in ast.walk(owner):
                    if isinstance(call, ast.Call) and _last(call.func) == "__init__":
                        for keyword in call.keywords:
                            if keyword.arg:
                                found[at(keyword.lineno, keyword.col_offset, True)] = bases
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call):
                continue
            names = {_last(call.func)}
            if isinstance(call.func, ast.Attribute) and _last(call.func.value) in LIBRARIES:
                names = {"F"}
            for given in call.args[:4]:
                if isinstance(given, ast.Constant) and isinstance(given.value, str):
                    names.add(given.value)
                elif isinstance(given, (ast.Name, ast.Attribute)):
                    names.add(_last(given))
            for keyword in call.keywords:
                if keyword.arg:
                    place = at(keyword.lineno, keyword.col_offset, True)
                    found.setdefault(place, set()).update(names)
        return found

    def _scopes(self, tree: ast.Module, text: str, how: str, cells: frozenset[str]):
        """For each line the scope of its code and that of its texts."""
        count = text.count("\n") + 3
        code = [cells] * count
        texts = [cells] * count
        mistake: frozenset[str] = NONE
        for node in tree.body:
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            rows = range(first, (node.end_lineno or first) + 1)
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                own = frozenset({node.name})
                asked = own
                for call in ast.walk(node):  # @exercise("X"), style("X"), student.module("X")
                    if isinstance(call, ast.Constant) and isinstance(call.value, str):
                        if call.value.isidentifier():
                            asked |= {call.value}
                    elif isinstance(call, ast.Attribute):
                        asked |= {call.attr}
                if how in ("grader", "mistake"):
                    helper = HELPERS.get((self.chapter, node.name), "")
                    asked = asked | frozenset(helper.split()) | {"cell"}
                for row in rows:
                    code[row] = code[row] | own
                    texts[row] = texts[row] | (own if how in ("own", "book") else asked)
                if isinstance(node, ast.ClassDef):
                    for method in node.body:
                        if isinstance(method, ast.FunctionDef):
                            full = f"{node.name}.{method.name}"
                            for row in range(method.lineno, (method.end_lineno or 0) + 1):
                                code[row] = code[row] | {full}
                                texts[row] = texts[row] | {full}
                    # What is said of the class as a whole is said of its constructor.
                    head = node.body[0]
                    if isinstance(head, ast.Expr):
                        for row in range(head.lineno, (head.end_lineno or 0) + 1):
                            texts[row] = texts[row] | {"cell"}
            else:
                made = _mistakes_in(node)
                if made:
                    mistake = frozenset({made, "cell"})
                names = frozenset(
                    each.id
                    for target in getattr(node, "targets", [])
                    for each in ast.walk(target)
                    if isinstance(each, ast.Name)
                )
                asked = frozenset(
                    given.value
                    for call in ast.walk(node)
                    if isinstance(call, ast.Call)
                    for given in call.args[:1]
                    if isinstance(given, ast.Constant)
                    and isinstance(given.value, str)
                    and given.value.isidentifier()
                )
                for row in rows:
                    texts[row] = texts[row] | mistake | names
                    code[row] = code[row] | names
                    if how == "grader":
                        texts[row] = texts[row] | asked | {"cell"}
        if how == "own":
            self._cells(text, texts)
        return code, texts

    @staticmethod
    def _key_places(tree: ast.AST, at) -> set[int]:
        """Offsets of strings that are keys of a dict or names of an attribute."""
        found: list[ast.AST | None] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Dict):
                found += node.keys
            elif isinstance(node, ast.Subscript):
                found.append(node.slice)
            elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
                found.append(node.left)
            elif isinstance(node, ast.Call) and _last(node.func) in KEYED:
                found += node.args[:2]
        return {
            at(node.lineno, node.col_offset, True)
            for node in found
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.isidentifier()
        }

    @staticmethod
    def _cells(text: str, texts: list[frozenset[str]]) -> None:
        """Text cells of an exercise, in a percent script: those with its heading."""
        marks = [
            (number, line)
            for number, line in enumerate(text.splitlines(), 1)
            if line.startswith("# %%")
        ]
        pending: list[int] = []
        if not marks:
            return
        ends = [*(number for number, _ in marks[1:]), text.count("\n") + 2]
        for (number, line), after in zip(marks, ends, strict=True):
            rows = list(range(number, after))
            if "[markdown]" in line:
                body = "\n".join(text.splitlines()[number - 1 : after - 1])
                pending = rows if re.search(r"^# #+ Exercise", body, re.M) else []
                continue
            option = re.search(r'exercise="(\w+)"', line)
            if option:
                for row in pending:
                    texts[row] = texts[row] | {option[1], "cell"}
                for row in rows:
                    texts[row] = texts[row] | {option[1]}
            pending = []

    def _string_kinds(self, tree: ast.AST, at, how: str) -> dict[int, str]:
        """Offset of a string -> what it is: prose, docstring, or code of a swap."""
        kinds: dict[int, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)) and node.body:
                head = node.body[0]
                if isinstance(head, ast.Expr) and isinstance(head.value, ast.Constant):
                    kinds[at(head.lineno, head.col_offset, True)] = "docstring"
        if how == "mistake":
            for call in ast.walk(tree):
                if isinstance(call, ast.Call) and _last(call.func) == "add":
                    for said in call.args[:2]:
                        for each in ast.walk(said):
                            if isinstance(each, ast.Constant):
                                first, last = (
                                    at(each.lineno, each.col_offset, True),
                                    at(each.end_lineno, each.end_col_offset, True),
                                )
                                kinds[first] = "prose"
                                kinds.setdefault(-first - 1, str(last))
        return kinds

    def _string(self, string, start, row, kinds, code_scope, text_scope, how, line) -> str:
        kind = kinds.get(start)
        if kind is None and how == "mistake":
            inside = any(
                key < 0 and -key - 1 <= start < int(end) for key, end in kinds.items() if key < 0
            )
            kind = "prose" if inside else "code"
        match = re.match(r"(?s)([A-Za-z]*)(\"\"\"|'''|\"|')(.*)\2\Z", string)
        prefix, quote, body = match[1], match[2], match[3]
        if how != "mistake" and re.fullmatch(r"\w+", body):
            new = self.name(body, code_scope[row]) if how == "own" else None
            return prefix + quote + (new or body) + quote
        scope = text_scope[row]
        if kind == "code" or (how == "mistake" and kind != "prose" and kind != "docstring"):
            more = frozenset(re.findall(r"(?:def|class) (\w+)", body))
            body = self.code(body, scope | more | {"cell"})
        elif len(quote) == 3 and kind is None and re.search(r"(?m)^\s*(def|class) ", body):
            body = self._nested(body, scope, line + row)
        elif "f" in prefix.lower() and kind is None:
            parts = re.split(r"(\{[^{}]*\})", body)
            body = "".join(
                self.code(part, code_scope[row])
                if part[:1] == "{"
                else self._message(part, scope, line + row)
                for part in parts
            )
        elif kind is None:
            body = self._message(body, scope, line + row)
        else:
            body = self.prose(body, scope, line + row)
        return prefix + quote + body + quote

    def _message(self, text: str, scope: frozenset[str], line: int) -> str:
        text = self._all(text, scope, (r"(?<![\w.])(?P<name>{})(?= must )",))
        return self.prose(text, scope, line)

    def _nested(self, body: str, scope: frozenset[str], line: int) -> str:
        """Python in a string, indented as a whole."""
        try:
            ast.parse(textwrap.dedent(body))
        except SyntaxError:  # a template
            more = frozenset(re.findall(r"(?:def|class) (\w+)", body))
            return self.code(body, scope | more | {"cell"})
        filled = [each for each in body.split("\n") if each.strip()]
        indent = min(len(each) - len(each.lstrip()) for each in filled)
        flat = "\n".join(each[indent:] if each.strip() else each for each in body.split("\n"))
        changed = self.python(flat, "own", line=line)
        if max(map(len, changed.split("\n"))) + indent > WIDTH:
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "ruff",
                    "format",
                    "-q",
                    f"--line-length={WIDTH - indent}",
                    "-",
                ],
                input=changed,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            head = re.match(r"\s*\n", changed)[0] if changed.startswith("\n") else ""
            tail = changed[len(changed.rstrip("\n ")) :]
            return (
                "\n".join(
                    " " * indent + each if each.strip() else each
                    for each in (head + done.strip("\n")).split("\n")
                )
                + tail
            )
        return "\n".join(
            " " * indent + each if each.strip() else old
            for each, old in zip(changed.split("\n"), body.split("\n"), strict=True)
        )

    def _comment(self, text: str, scope: frozenset[str], line: int) -> str:
        shapes = (r"(?<=[ (])(?P<name>{})(?=[,)] ?)(?=[^()]*\))",)  # (B, T, hidden)
        text = self._all(text, scope, shapes)
        return self.prose(text, scope, line)

    # ---- files ---------------------------------------------------------------------------------

    def file(self, room: str, path: Path) -> bool:
        self.path = str(path.relative_to(ROOT))
        old = path.read_text(encoding="utf-8")
        new = self.word(old)
        if room in ("solutions", "demo"):
            new = self.python(new, "own")
        elif room in ("graders", "tests", "style_tests"):
            new = self.python(new, "grader")
        elif room == "misconceptions":
            new = self.python(new, "mistake")
        elif room == "conventions":
            new = self.prose(new, NONE)
        elif room == "equivalents":
            new = self.toml(new)
        elif room == "book":
            new = self.markdown(new)
        new = self.literal(new)
        if room != "book":
            new = narrow(new, old)
        if new != old:
            path.write_text(new, encoding="utf-8")
            BEFORE[path] = old
        return new != old

    chapter = ""

    def toml(self, text: str) -> str:
        scope, lines = NONE, []
        for line in text.split("\n"):
            match = re.match(r"mutant = (['\"]{1,3})(\w+): (.*)", line)
            if match:
                scope = frozenset({match[2], "cell"})
                line = line[: match.start(3)] + self.code(match[3], scope)
            elif line.startswith("reason"):
                line = self.prose(line, scope)
            lines.append(line)
        return "\n".join(lines)

    def markdown(self, text: str) -> str:
        parts = re.split(r"(?ms)^(```\{code-cell\}[^\n]*\n.*?^```\n)", text)
        done, number = [], 1
        for part in parts:
            if part.startswith("```{code-cell}"):
                head, body = part.split("\n", 1)
                options, code = "", body[: -len("```\n")]
                while re.match(r":\w", code) or code.startswith("---"):
                    if code.startswith("---"):
                        end = code.index("---\n", 3) + 4
                    else:
                        end = code.index("\n") + 1
                    options, code = options + code[:end], code[end:]
                done.append(f"{head}\n{options}{self.python(code, 'book', line=number)}```\n")
            else:
                done.append(part)
            number += part.count("\n")
        return "".join(done)


KEYED = frozenset({"get", "pop", "attribute", "method", "getattr", "setattr", "hasattr"})
LIBRARIES = frozenset({"F", "functional", "torch", "nn", "np", "plt"})
FOREIGN = frozenset({"print", "glue", "F", "sum", "figure", "subplots", "softmax"})


WIDTH = 100
BEFORE: dict[Path, str] = {}  # what changed, as it was


def narrow(text: str, before: str) -> str:
    """Comments, docstrings and messages within 100 columns again: what is too much moves down."""
    known, lines, done = set(before.split("\n")), text.split("\n"), []
    total, inside = len(lines), _docstring_lines(text)
    while lines:
        number = total - len(lines) + 1
        line = lines.pop(0)
        if len(line) <= WIDTH or line in known:
            done.append(line)
            continue
        comment = re.match(r"(\s*# ?)((?:[*-]|\d+\.)\s+)?\s*", line)
        words = re.match(r"(\s*)()(?:\w+: )?(?=[^\s\"'#])", line)
        trailing = re.match(r"(\s*)([^\s#\"'].*?)  (# .*)$", line)
        if trailing and number not in inside and trailing[2].count('"') % 2 == 0:
            short = re.sub(r"(?<=,) (?=[^()]*\))", "", trailing[3])
            if len(f"{trailing[1]}{trailing[2]}  {short}") <= WIDTH:
                done.append(f"{trailing[1]}{trailing[2]}  {short}")
            else:
                done += [trailing[1] + trailing[3], trailing[1] + trailing[2]]
            continue
        said = re.match(r"(\s+)(f?)\"(.*)\"(,?)$", line)
        if said and "{" not in said[3] and not said[3].startswith('""'):
            cut = line.rfind(" ", 0, WIDTH - 1) + 1
            follows = re.match(r'(\s+)(f?)"(.*)"(,?)$', lines[0])
            done.append(line[:cut] + '"')
            if follows and not said[4] and follows[1] == said[1] and not follows[2]:
                rest = line[cut:-1]
                lines[0] = f'{said[1]}"{rest}{follows[3]}"{follows[4]}'
            else:
                lines.insert(0, f'{said[1]}{said[2]}"{line[cut:]}')
                total += 1
                inside = {n + 1 if n > number else n for n in inside}
            continue
        if comment and "|" not in line[: len(comment[1]) + 1] and "# %%" not in line:
            indent = comment[1] + " " * len(comment[2] or "")
            inner = re.match(r"\s*#( +)", line)
            if not comment[2] and inner and len(inner[1]) > 1:
                indent = comment[0]
            heads = ("* ", "- ", "#", "|", "$$", "<", "```")
        elif words and number in inside:
            entry = re.match(r"(\s+)\w+: ", line)
            indent, heads = words[1] + ("    " if entry else ""), ("Args:", "Returns:", "Raises:")
        else:
            done.append(line)
            continue
        cut = line.rfind(" ", len(indent), WIDTH + 1)
        if cut <= len(indent):
            done.append(line)
            continue
        rest = line[cut + 1 :]
        done.append(line[:cut])
        following = lines[0] if lines else ""
        body = following[len(indent) :]
        joins = (
            following.startswith(indent)
            and body.strip()
            and not body.startswith((" ", *heads))
            and not re.match(r"\w+: |\d+\. |\"\"\"", body)
        )
        if joins:
            lines[0] = f"{indent}{rest} {body}"
        else:
            lines.insert(0, indent + rest)
            total += 1
            inside = {n + 1 if n > number else n for n in inside}
            inside |= {number + 1} if number in inside else set()
    return "\n".join(done)


def _docstring_lines(text: str) -> set[int]:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return set()
    rows: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)) and node.body:
            head = node.body[0]
            if isinstance(head, ast.Expr) and isinstance(head.value, ast.Constant):
                rows.update(range(head.lineno, (head.end_lineno or 0) + 1))
    return rows


def _last(node: ast.AST) -> str:
    while isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _caller(text: str, place: int) -> str:
    """The name before the innermost parenthesis that is open at a place."""
    depth = 0
    for at in range(place - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(text[at], 0)
        if depth < 0:
            owner, name = re.search(r"(?:(\w+)\.)?(\w*)\Z", text[:at]).groups()
            return "F" if owner in LIBRARIES else name
    return ""


def _mistakes_in(node: ast.AST) -> str:
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and _last(call.func) == "mistakes_in":
            return call.args[1].value
    return ""


def files_of(chapter: str) -> Iterator[tuple[str, Path]]:
    for room, patterns in ROOMS.items():
        found = {path for pattern in patterns for path in ROOT.glob(pattern.format(c=chapter))}
        yield from ((room, path) for path in sorted(found))


def still_old(rules: list[Rule], chapter: str) -> list[Rule]:
    """Rules whose new name is another rule's old one are left out where they have been applied."""
    chained = {
        (rule.old, where)
        for rule in rules
        for where in rule.where
        if any(rule.old == other.new and where in other.where for other in rules)
    } | {
        (rule.old, where)
        for rule in rules
        for where in rule.where
        if any(rule.new == other.old and where in other.where for other in rules)
    }
    signatures: dict[str, set[str]] = {}
    for room, path in files_of(chapter):
        if room == "solutions":
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                    signatures[node.name] = {
                        each.arg for each in ast.walk(node) if isinstance(each, ast.arg)
                    }
    done = {
        where
        for rule in rules
        for where in rule.where
        if rule.kind == "argument"
        and (rule.old, where) in chained
        and rule.old not in signatures.get(where, set())
    }
    return [
        rule
        if not done & set(rule.where)
        else Rule(
            rule.chapter,
            rule.old,
            rule.new,
            rule.kind,
            tuple(w for w in rule.where if w not in done or (rule.old, w) not in chained),
        )
        for rule in rules
    ]


def shared(path: Path, table: list[Rule], left: Left) -> bool:
    """What several chapters share, by the toolkit's rules and those of the chapters it imports."""
    name = str(path.relative_to(ROOT))
    old = path.read_text(encoding="utf-8")
    own = path.stem if path.parent.name == "book" else path.parent.name
    imported = set(re.findall(r"solutions(?:\.| import )(\w+)", old)) - {own}
    kinds = ["argument", "word", "exercise"]
    if not name.startswith("autograder/"):  # the benchmark's own sizes keep their names
        kinds.append("attribute")
    rules = [
        rule
        for rule in table
        if rule.chapter == "toolkit" or (rule.chapter in imported and rule.kind in kinds)
    ]
    names = Names([rule for rule in (here(rule, name) for rule in rules) if rule], left)
    return names.file("book" if path.suffix == ".md" else "demo", path)


def here(rule: Rule, path: str) -> Rule | None:
    """A rule without the file patterns in its `where`; None if none of them fits the path."""
    files = [where for where in rule.where if "/" in where]
    if not files or rule.kind == "text":
        return rule
    if not any(fnmatch.fnmatch(path, each) for each in files):
        return None
    rest = tuple(where for where in rule.where if "/" not in where)
    return Rule(rule.chapter, rule.old, rule.new, rule.kind, rest or ("*",))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chapters", nargs="*", default=CHAPTERS)
    parser.add_argument("--left", action="store_true", help="print what is left in plain words")
    options = parser.parse_args()
    table, left = read_table(ROOT / "names.csv"), Left()
    for chapter in options.chapters:
        rules = still_old([r for r in table if r.chapter in (chapter, "all")], chapter)
        changed = []
        for room, path in files_of(chapter):
            name = str(path.relative_to(ROOT))
            names = Names([rule for rule in (here(rule, name) for rule in rules) if rule], left)
            names.chapter = chapter
            if names.file(room, path):
                changed.append(path)
        print(f"{chapter}: {len(changed)} files changed")
    for path in sorted({path for pattern in SHARED for path in ROOT.glob(pattern)}):
        if shared(path, table, left):
            print("shared:", path.relative_to(ROOT))
    if options.left:
        print("\n".join(left.lines))
    ruff = [sys.executable, "-m", "ruff"]
    for _ in range(2):  # what it breaks at commas can leave a string that is still too long
        subprocess.run([*ruff, "format", "-q", *FORMATTED], cwd=ROOT, check=False)
        for path, old in BEFORE.items():
            if path.suffix == ".py":
                text = path.read_text(encoding="utf-8")
                path.write_text(narrow(text, old), encoding="utf-8")


if __name__ == "__main__":
    main()
