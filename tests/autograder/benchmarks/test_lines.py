"""What counts as a line of code."""

from __future__ import annotations

from autograder.benchmarks.lines import lines_of_code, machinery


def test_blank_lines_comments_and_docstrings_are_no_code():
    source = '"""Two\n\nlines."""\n\n# a comment\nx = """text\nis code"""  # here\n\n\ndef f():\n'
    assert lines_of_code(source + '    """Nothing."""\n    return (\n        x\n    )\n') == 6


def test_the_machinery_is_neither_content_nor_benchmark():
    names = {file.name for file in machinery()}
    assert {"marker.py", "worker.py", "moodle.py"} <= names
    assert not names & {"test_attention.py", "lines.py", "classes.py", "make_class.py"}
