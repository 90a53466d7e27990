"""Makes a grading process begin and end sooner. Import it before what imports nbformat."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# What jsonschema imports in order to judge addresses, times, colours and the like ("format" in a
# schema), of which no notebook has any: nbformat does not ask for it. One of them alone, a grammar
# of internationalised addresses, takes a second, as long as PyTorch. jsonschema does without what
# is not installed.
FORMATS = (
    *("rfc3987", "rfc3987_syntax", "rfc3986_validator", "rfc3339_validator", "uri_template"),
    *("isoduration", "webcolors", "jsonpointer", "fqdn", "idna"),
)


def _import_jsonschema() -> None:
    if "jsonschema" in sys.modules:
        return
    left_out = [name for name in FORMATS if name not in sys.modules]
    sys.modules.update(dict.fromkeys(left_out))  # type: ignore[arg-type]  # importing them fails
    try:
        import jsonschema  # noqa: F401
    finally:
        for name in left_out:
            del sys.modules[name]


_import_jsonschema()

# How many new objects there are before Python looks for unreachable ones; 700 by default.
SELDOM = 50_000


def collect_seldom() -> None:
    """Look for unreachable objects less often, and never among those that exist already.

    The modules of PyTorch and nbgrader are a million objects that live as long as the process, and
    what is remembered of a class grows: looking through all of it time and again finds nothing.
    """
    gc.freeze()
    gc.set_threshold(SELDOM, *gc.get_threshold()[1:])


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """The same for a while."""
    before = gc.get_threshold()
    collect_seldom()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def end_quickly() -> None:
    """Have this process leave its objects to the system when it ends.

    Python looks through all of them for unreachable ones then, twice, which takes as long as the
    report of a class.
    """
    atexit.register(gc.freeze)
