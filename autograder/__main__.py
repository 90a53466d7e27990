"""The command line: `python -m autograder COMMAND`."""

from __future__ import annotations

import importlib
import io
import keyword
import os
import sys

import typer
from rich.console import Console
from rich.text import Text

TRACEBACK = "AUTOGRADER_TRACEBACK"
COMMANDS = {
    "build": "Make the students' notebooks from the reference modules.",
    "check": "Check a notebook as its student would.",
    "progress": "Say how far a student is, in all units at once.",
    "bundle": "Make the zip that students receive.",
    "grade": "Grade a class.",
    "report": "Show a class report again.",
    "import": "Take submissions over from another tool.",
    "export": "Write marks for another tool.",
    "package": "Make what another tool runs: a Gradescope autograder, a GitHub template.",
    "verify": "Judge the graders themselves.",
    "doctor": "Say what this machine lacks, and what to type.",
}


def _app(names: list[str]) -> typer.Typer:
    """The application with the named commands. Only these are imported: some need PyTorch."""
    app = typer.Typer(
        name="autograder",
        help="Exercises that name the mistake: build, check, grade, report and verify them.",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    app.callback()(_callback)
    for name in names:
        file = f"{name}_" if keyword.iskeyword(name) else name
        module = importlib.import_module(f"autograder.commands.{file}")
        app.command(name)(module.run)
    return app


def _callback() -> None:
    """Exercises that name the mistake: build, check, grade, report and verify them."""


def main(arguments: list[str] | None = None) -> None:
    """Run one command. What goes wrong in a foreseen way is said in one sentence."""
    arguments = sys.argv[1:] if arguments is None else arguments
    chosen = [name for name in COMMANDS if arguments[:1] == [name]]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # Of signs that a terminal does not have.
    from autograder.common.errors import AssignmentError
    from autograder.common.escaping import one_line
    from autograder.common.files import disk_error

    try:
        _app(chosen or list(COMMANDS))(arguments, prog_name="python -m autograder")
    except Exception as error:
        told = disk_error(error) or error
        if not isinstance(told, AssignmentError | OSError):
            if os.environ.get(TRACEBACK):
                raise
            told = RuntimeError(
                f"an error of the program itself ({type(told).__name__}: {told}); what was "
                f"finished is kept. Set {TRACEBACK}=1 to see where it happened, and report it."
            )
        # Names of files and students are text, not the terminal's or Rich's own language.
        said = Text(f"autograder: {one_line(told, 2000)}", style="bold")
        Console(stderr=True).print(said, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        Console(stderr=True).print("autograder: stopped; what was finished is kept.")
        sys.exit(130)


if __name__ == "__main__":
    main()
