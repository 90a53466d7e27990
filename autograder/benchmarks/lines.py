"""How many lines of code the machinery of grading has: `python -m autograder.benchmarks.lines`.

Counted is what an instructor's class runs through. Graders, misconceptions and reasons for equal
mutants are content; the demonstration classes and the benchmarks are no part of grading.
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

from autograder.common.paths import PACKAGE

APART = ("graders", "misconceptions", "equivalents", "demo", "benchmarks")
NO_CODE = (
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
)


def machinery(package: Path = PACKAGE) -> list[Path]:
    """The files that are counted, sorted."""
    return sorted(
        file for file in package.rglob("*.py") if file.relative_to(package).parts[0] not in APART
    )


def lines_of_code(source: str) -> int:
    """The lines that hold code: neither blank, nor only a comment, nor of a docstring."""
    documentation: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            documentation.update(range(text.lineno, (text.end_lineno or 0) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - documentation)


def main() -> None:
    """Print the lines of each file, most first, and their sum."""
    counted = {file: lines_of_code(file.read_text(encoding="utf-8")) for file in machinery()}
    for file, lines in sorted(counted.items(), key=lambda item: -item[1]):
        print(f"{lines:6,}  {file.relative_to(PACKAGE)}")
    print(f"{sum(counted.values()):6,}  in {len(counted)} files")


if __name__ == "__main__":
    main()
