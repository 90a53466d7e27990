"""Reference modules of the course, one per chapter.

Each module is a Jupytext percent script: importable as it stands, and at the same time the
instructor's notebook from which the student's notebook in ``exercises/`` is generated.
"""
