"""What the commands of the toolkit share: how they speak, and how they end."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer
from rich.console import Console
from rich.text import Text


def say(line: str) -> None:
    """Print a line on standard error, as it is and without breaks."""
    Console(stderr=True).print(Text(line), soft_wrap=True)


def fail(text: str, status: int = 2) -> None:
    """End with a sentence on standard error."""
    Console(stderr=True).print(Text(text, style="bold"), soft_wrap=True)
    sys.exit(status)


def run(
    app: typer.Typer,
    name: str,
    arguments: list[str] | None,
    fail: Callable[[str, int], None],
) -> None:
    """Run a command. What goes wrong in a foreseen way is said in one sentence.

    Args:
        app: the command.
        name: as a person types it.
        arguments: those of the process if None.
        fail: called with the sentence and the exit status: 2, or 130 after Ctrl-C.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        app(arguments, prog_name=name)
    except NotImplementedError as error:
        fail(f"an exercise that this needs is not done yet: {error}", 2)
    except (ValueError, OSError, FloatingPointError) as error:
        fail(str(error), 2)
    except KeyboardInterrupt:
        fail("stopped; the same command goes on from the last saved state", 130)
