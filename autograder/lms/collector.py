"""nbgrader's own reader of file names (`nbgrader zip_collect`), for the tools that use names.

Its FileNameCollectorPlugin tells who handed in what from the name of a file. The rest of
`zip_collect` is not used: its extractor unpacks whatever a zip holds, without bounds, leaves out
silently what it takes for dangerous, and opens archives inside archives; and the application ends
for the whole class when one student handed in the same notebook twice.
"""

from __future__ import annotations

import logging

from nbgrader.plugins.zipcollect import FileNameCollectorPlugin

MAX_NAME = 1000


class Collector(FileNameCollectorPlugin):
    """Names of files, whatever their ending; what does not match is None."""

    def __init__(self, named_regexp: str) -> None:
        super().__init__(named_regexp=named_regexp)
        self.log = logging.getLogger("autograder.lms")
        self.log.addHandler(logging.NullHandler())
        self.log.propagate = False
        self.log.setLevel(logging.CRITICAL)  # a name that says nothing is told in our own words

    def collect(self, submitted_file: str) -> dict[str, str] | None:
        """The named groups; None where the name says nothing."""
        if len(submitted_file) > MAX_NAME:
            return None
        found: dict[str, str] | None = self._match(submitted_file)
        return found
