"""Build the book: `python -m toolkit.book [--edition course] [--out build/book] [--clear]`.

This drives the same Sphinx that `jupyter-book build` drives, with the same `_config.yml`, and adds
five things. A page is executed again when a module it imports has changed, which Jupyter Book's
cache does not notice. Pages are executed beside each other, as many as there are cores, by kernels
that begin with PyTorch imported. Every warning fails the build, broken references first of all.
Every row of `coverage.csv` must point at an anchor that exists. And people get a few lines of
progress, or one sentence that says what to mend.

The *course edition* shows of graded exercises what a student starts from, not the answers, and
leaves out pages that are not done. Both editions share what was executed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import html
import io
import json
import logging
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from csv import DictReader
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "book"
OUT = ROOT / "build" / "book"
SITES = {"reader": "html", "course": "course"}  # an edition's folder in OUT/_build
PACKAGES = ("solutions", "toolkit", "autograder")
MOST_PAGES = 4  # executed at a time: each may take up to 4 GB
# What an executed page depends on besides the course's own modules.
LIBRARIES = (
    "torch", "numpy", "matplotlib", "ipywidgets", "myst-nb", "Babel", "sacrebleu", "tokenizers",
    "safetensors", "transformers",
)  # fmt: skip
IMPORT = re.compile(
    rf"^[ \t]*(?:from|import)[ \t]+((?:{'|'.join(PACKAGES)})[\w.]*)"
    r"(?:[ \t]+import[ \t]+(\([^)]*\)|[^\n#]*))?",
    re.MULTILINE,
)
UNIT = re.compile(r'"(\w+)-(\w+)"')
EXECUTED = re.compile(r"\A---\n(?:.*\n)*?\s*text_representation:")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class BookError(Exception):
    """The book could not be built; the message says what to mend."""


def contents(source: Path = SOURCE, edition: str = "reader") -> list[str]:
    """The pages of an edition, `attention/index` for one in a folder, in their order."""
    text = (source / "_toc.yml").read_text(encoding="utf-8")
    pages = re.findall(r"^[ -]*(?:file|root): *(\S+)", text, re.MULTILINE)
    left_out = left_out_of(edition, source)
    return [page for page in pages if page not in left_out]


def left_out_of(edition: str, source: Path = SOURCE) -> set[str]:
    """The pages that an edition leaves out: the course's, those with cells that are not done.

    The front page, which is the first of the contents, is in every edition.
    """
    if edition == "reader":
        return set()
    pages = set(contents(source)[1:]) - set(done(source))
    return {page for page in pages if is_executed(source / f"{page}.md")}


def site_of(out: Path = OUT, edition: str = "reader") -> Path:
    """The folder of a built edition."""
    return out / "_build" / SITES[edition]


def done(source: Path = SOURCE) -> list[str]:
    """The pages that claim to be done, as `done.csv` lists them: a page's budgets hold of them."""
    with (source / "done.csv").open(encoding="utf-8", newline="") as stream:
        return [row["page"] for row in DictReader(stream)]


def page_modules(page: Path, root: Path = ROOT) -> list[Path]:
    """The course's own modules that a page depends on.

    Those it imports, directly or through other modules, and where it names a unit the unit's
    known mistakes, which pages show.

    Args:
        page: a page or module; its text is searched for import statements, never executed.
        root: the folder that holds `solutions`, `toolkit` and `autograder`.
    """
    mistakes = root / "autograder" / "misconceptions"
    units = UNIT.findall(page.read_text(encoding="utf-8"))
    files = (mistakes / chapter / f"{unit}.py" for chapter, unit in units)
    found = {file for file in files if file.is_file()}
    waiting = [page, *found]
    while waiting:
        text = waiting.pop().read_text(encoding="utf-8")
        for module, names in IMPORT.findall(text):
            place = root.joinpath(*module.split("."))
            # `from solutions import attention` names a module, `from solutions.x import f` does not
            plain = [name.split()[0] for name in names.strip("() \t").split(",") if name.split()]
            candidates = [place, *(place / name for name in plain)]
            for candidate in candidates:
                for file in (candidate.with_suffix(".py"), candidate / "__init__.py"):
                    if file.is_file() and file not in found:
                        found.add(file)
                        waiting.append(file)
    return sorted(found)


def code_key(page: Path, root: Path = ROOT) -> str:
    """A hash of everything outside the page that its outputs depend on."""
    digest = hashlib.sha256(f"python {sys.version_info[:2]}".encode())
    for library in LIBRARIES:
        digest.update(f"{library} {version(library)}".encode())
    for module in page_modules(page, root):
        digest.update(str(module.relative_to(root)).encode())
        digest.update(module.read_bytes())
    return digest.hexdigest()


def is_executed(page: Path) -> bool:
    """Whether Jupyter Book executes this page: its front matter makes it a notebook."""
    return EXECUTED.match(page.read_text(encoding="utf-8")) is not None


class _Keys:
    """Knows with which code each page was executed, and forgets outputs that are out of date."""

    def __init__(self, source: Path, work: Path, root: Path, edition: str) -> None:
        self.file, self.times = work / "code.json", work / "seconds.json"
        self.cache = work / ".jupyter_cache"
        self.doctrees = [work / doctrees_of(edition) for edition in SITES]
        pages = {name: source / f"{name}.md" for name in contents(source, edition)}
        self.pages = {
            name: page for name, page in pages.items() if page.is_file() and is_executed(page)
        }
        self.now = {name: code_key(page, root) for name, page in self.pages.items()}

    def stale(self) -> list[str]:
        """Pages whose modules have changed since they were last executed."""
        before = json.loads(self.file.read_text()) if self.file.exists() else {}
        return [name for name, key in self.now.items() if before.get(name) != key]

    def forget(self, names: Iterable[str]) -> None:
        """Drop the outputs of these pages, so that they are executed again.

        Those of a page's cells go whatever its address was: a page may have been moved, and a
        cache copied from another checkout.
        """
        from jupyter_cache import get_cache
        from myst_nb.core.read import myst_nb_reader_plugin

        names = list(names)
        if names and self.cache.exists():
            cache = get_cache(str(self.cache))
            paths = {str(self.pages[name]) for name in names}
            for record in cache.list_cache_records():
                if record.uri in paths:
                    cache.remove_cache(record.pk)
            for name in names:
                with contextlib.suppress(KeyError):
                    notebook = myst_nb_reader_plugin(str(self.pages[name]))
                    cache.remove_cache(cache.match_cache_notebook(notebook).pk)
        for name in names:
            for doctrees in self.doctrees:
                (doctrees / f"{name}.doctree").unlink(missing_ok=True)

    def slowest_first(self, names: Iterable[str]) -> list[str]:
        """The pages, those first that took longest when they were last executed here.

        A page that nobody has executed yet counts as slower the longer it is.
        """
        took = json.loads(self.times.read_text()) if self.times.exists() else {}
        return sorted(
            names, key=lambda name: (-took.get(name, math.inf), -self.pages[name].stat().st_size)
        )

    def executed(self, name: str, seconds: float) -> None:
        """Write down with which code a page was executed, and how long that took."""
        for file, value in ((self.file, self.now[name]), (self.times, seconds)):
            before = json.loads(file.read_text()) if file.exists() else {}
            file.write_text(json.dumps({**before, name: value}, indent=1))

    def remember(self) -> None:
        """Write down the present keys, after a build that went well."""
        before = json.loads(self.file.read_text()) if self.file.exists() else {}
        self.file.write_text(json.dumps({**before, **self.now}, indent=1))


def doctrees_of(edition: str) -> str:
    """The name of the folder with an edition's pages as Sphinx has read them."""
    return ".doctrees" if edition == "reader" else f".doctrees-{edition}"


class _Execution(logging.Handler):
    """Turns MyST-NB's log records into progress lines."""

    def __init__(self, tell: Callable[[str], None], source: Path) -> None:
        super().__init__(logging.INFO)
        self.tell, self.source, self.count, self.seconds = tell, source, 0, 0.0

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        # Another handler may have put the page's path in place of its name, and before the message.
        where = str(getattr(record, "location", "") or "").split(":")[0]
        where = where.removeprefix(f"{self.source}{os.sep}").removesuffix(".md")
        if "Executing notebook using" in message:
            self.began(where)
        elif took := re.search(r"Executed notebook in ([\d.]+) seconds", message):
            self.ended(where, float(took[1]))

    def began(self, page: str) -> None:
        self.tell(f"  executing {page} …")

    def ended(self, page: str, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds
        self.tell(f"  executed {page} in {seconds:.1f} s")


def build_book(
    out: Path = OUT,
    *,
    edition: str = "reader",
    source: Path = SOURCE,
    config: Path = ROOT / "_config.yml",
    root: Path = ROOT,
    clear: bool = False,
    tell: Callable[[str], None] = print,
) -> Path:
    """Execute what is out of date, write the HTML, and return the path of its first page.

    Args:
        out: folder to build into; the site is written to `_build/html` in it, that of the course
            edition to `_build/course`, the execution cache to `_build/.jupyter_cache`.
        edition: `reader` or `course`.
        source: folder with the pages and `_toc.yml`.
        config: Jupyter Book configuration.
        root: folder that holds the modules which pages import.
        clear: forget everything built and executed before.
        tell: takes one line of progress.

    Raises:
        BookError: if a cell fails, a reference is broken, or anything else is not right.
    """
    start = time.perf_counter()
    source, work = source.resolve(), out.resolve() / "_build"
    if not (source / "_toc.yml").exists():
        raise BookError(f"There is no _toc.yml in {source}; give the folder that holds the pages.")
    if clear and work.exists():
        shutil.rmtree(work)
    work.mkdir(parents=True, exist_ok=True)
    keys = _Keys(source, work, root.resolve(), edition)
    stale = keys.stale()
    keys.forget(stale)
    if stale and keys.file.exists():
        tell(f"  code has changed under {', '.join(stale)}")

    with _environment(work, root.resolve()) as cores:
        problems, execution, read, written = _run_sphinx(
            source, config, work, keys, cores, tell, edition
        )
    site = site_of(out.resolve(), edition)
    problems += missing_anchors(source / "coverage.csv", site, left_out_of(edition, source))
    if problems:
        # Warnings come while a page is read; without this the next build would be silent.
        shutil.rmtree(work / doctrees_of(edition), ignore_errors=True)
        shown = "\n".join(f"  {problem}" for problem in problems[:20])
        more = f"\n  … and {len(problems) - 20} more" if len(problems) > 20 else ""
        things = "one problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise BookError(
            f"The book has {things}; mend what is listed and build again:\n{shown}{more}"
        )
    keys.remember()
    ran = f"executed {execution.count} ({execution.seconds:.0f} s), " if execution.count else ""
    tell(f"  read {read} pages, {ran}wrote {written}, in {time.perf_counter() - start:.1f} s")
    return site / "index.html"


def missing_anchors(coverage: Path, site: Path, left_out: Iterable[str] = ()) -> list[str]:
    """Rows of the coverage map that point at nothing, a sentence each; not at pages left out."""
    if not coverage.exists():
        return []
    known: dict[str, set[str] | None] = {}
    found = []
    with coverage.open(encoding="utf-8", newline="") as stream:
        for row in DictReader(stream):
            page = row["page"].removesuffix(".md").removesuffix(".html")
            if page in left_out:
                continue
            if page not in known:
                file = site / f"{page}.html"
                known[page] = anchors(file) if file.exists() else None
            ids = known[page]
            if ids is None:
                found.append(f"coverage.csv: {row['id']} names the page {page}, which is not there")
            elif row["anchor"] not in ids:
                place = f"{page}#{row['anchor']}"
                found.append(f"coverage.csv: {row['id']} points at {place}, which is not there")
    return found


def anchors(page: Path) -> set[str]:
    """All ids in an HTML file."""
    text = page.read_text(encoding="utf-8")
    return {html.unescape(name) for name in re.findall(r"""\sid=["']([^"']+)["']""", text)}


@contextlib.contextmanager
def _environment(work: Path, root: Path) -> Iterator[int]:
    """What the kernels that execute the pages inherit, for as long as the build takes.

    Yields how many cores there are.
    """
    before = dict(os.environ)
    # A profile of our own: the user's start-up files must not change the book, and the kernel's
    # advice about transport encryption is not for people who build a book.
    profile = work / "ipython" / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipython_kernel_config.py").write_text(
        'c = get_config()\nc.IPKernelApp.log_level = "ERROR"\n', encoding="utf-8"
    )
    os.environ["IPYTHONDIR"] = str(profile.parent)
    path = [str(root), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path))
    # The kernel of this environment, whatever else is installed for the user
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        yield cores or 1
    finally:
        os.environ.clear()
        os.environ.update(before)


def _execute_ahead(
    keys: _Keys, settings: dict[str, Any], work: Path, cores: int, execution: _Execution
) -> None:
    """Execute the pages that the cache does not hold, several at a time, and put them into it.

    Sphinx would execute them one after the other while it reads them; it now finds all in the
    cache. On a machine with a GPU the pages run one by one, since each may want all of it.

    Raises:
        ExecutionError: a page has failed; those that are done by then are kept.
    """
    from jupyter_cache import get_cache
    from jupyter_cache.base import CacheBundleIn
    from jupyter_cache.executors.utils import single_nb_execution
    from myst_nb.core.execute.base import ExecutionError
    from myst_nb.core.read import myst_nb_reader_plugin

    from toolkit import kernels

    cache = get_cache(str(keys.cache))
    waiting = {}
    for name, page in keys.pages.items():
        notebook = myst_nb_reader_plugin(str(page))
        try:
            cache.match_cache_notebook(notebook)
        except KeyError:
            waiting[name] = notebook
    jobs = 1 if _has_gpu() else min(cores, len(waiting), MOST_PAGES)
    # Models in the book are small; more than a few threads only get in each other's way.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, min(cores // max(jobs, 1), 8))))
    if jobs < 2:
        return

    def execute(name: str) -> Any:
        execution.began(name)
        return single_nb_execution(
            waiting[name], cwd=str(keys.pages[name].parent), allow_errors=False,
            timeout=settings["nb_execution_timeout"],
        )  # fmt: skip

    failed: tuple[str, Exception] | None = None
    with kernels.forked(), ThreadPoolExecutor(jobs) as pool:
        # Slowest first, so that no core waits long at the end
        running = {pool.submit(execute, name): name for name in keys.slowest_first(waiting)}
        for done in as_completed(running):
            name = running[done]
            try:
                result = done.result()
                if result.err is not None:
                    raise result.err
            except CancelledError:
                continue
            except Exception as error:
                # No page begins any more; what the running ones yield is kept. One by one:
                # `as_completed` never hears of what `shutdown(cancel_futures=True)` has dropped.
                for other in running:
                    other.cancel()
                failed = failed or (name, error)
                continue
            page, took = str(keys.pages[name]), result.time
            bundle = CacheBundleIn(waiting[name], page, data={"execution_seconds": took})
            cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
            keys.executed(name, took)
            execution.ended(name, took)
    if failed is not None:
        raise ExecutionError(str(keys.pages[failed[0]])) from failed[1]


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _run_sphinx(
    source: Path,
    config: Path,
    work: Path,
    keys: _Keys,
    cores: int,
    tell: Callable[[str], None],
    edition: str,
) -> tuple[list[str], _Execution, int, int]:
    """Run Sphinx as Jupyter Book does; warnings, execution log, pages read and pages written."""
    from jupyter_book.config import get_final_config
    from sphinx.application import Sphinx
    from sphinx.util.console import nocolor
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    nocolor()
    settings, _ = get_final_config(
        user_yaml=config,
        cli_config={
            "latex_individualpages": False,
            "external_toc_path": str(_table_of_contents(source, work, edition)),
            "nb_execution_cache_path": str(work / ".jupyter_cache"),
        },
        sourcedir=source,
    )
    if edition == "course":
        settings |= {"course_edition": True, "html_copy_source": False}
        # Links to pages that it leaves out; the reader's edition finds those that lead nowhere.
        settings["suppress_warnings"] = [*settings["suppress_warnings"], "myst.xref_missing"]
    warnings, execution = io.StringIO(), _Execution(tell, source)
    counts = {"read": 0, "written": 0}

    def about_to_read(app: Any, env: Any, names: list[str]) -> None:
        counts["read"] = len(names)
        tell(f"  reading {len(names)} of {len(env.found_docs)} pages")

    def wrote(app: Any, name: str, template: str, *_: Any) -> None:
        counts["written"] += template == "page.html"

    try:
        _execute_ahead(keys, settings, work, cores, execution)
        with patch_docutils(None), docutils_namespace():
            app = Sphinx(
                srcdir=source, confdir=None, outdir=work / SITES[edition],
                doctreedir=work / doctrees_of(edition),
                buildername="html", confoverrides=settings, status=None, warning=warnings,
            )  # fmt: skip
            if settings.get("use_multitoc_numbering"):
                app.setup_extension("sphinx_multitoc_numbering")
            app.connect("env-before-read-docs", about_to_read)
            app.connect("html-page-context", wrote)
            logging.getLogger("sphinx").addHandler(execution)
            # All pages are written: a title or an anchor on one page shows on others.
            app.build(force_all=True)
    except KeyboardInterrupt:
        raise
    except Exception as error:
        (work / "error.txt").write_text(_chain(error), encoding="utf-8")
        raise BookError(_sentence(error, work, source)) from error
    finally:
        logging.getLogger("sphinx").removeHandler(execution)
    return _problems(warnings.getvalue(), source), execution, counts["read"], counts["written"]


def _table_of_contents(source: Path, work: Path, edition: str) -> Path:
    """The `_toc.yml` of an edition, written to `work`; where it has changed, all is read anew."""
    left_out = left_out_of(edition, source)

    def kept(entry: Any) -> Any:
        if isinstance(entry, list):
            return [kept(one) for one in entry if not is_left_out(one)]
        if isinstance(entry, dict):
            return {name: kept(value) for name, value in entry.items()}
        return entry

    def is_left_out(entry: Any) -> bool:
        return isinstance(entry, dict) and entry.get("file") in left_out

    toc = kept(yaml.safe_load((source / "_toc.yml").read_text(encoding="utf-8")))
    text, target = yaml.safe_dump(toc, sort_keys=False), work / f"toc-{edition}.yml"
    if not target.exists() or target.read_text(encoding="utf-8") != text:
        # Sphinx keeps the numbers of sections and does not look for another table of contents.
        shutil.rmtree(work / doctrees_of(edition), ignore_errors=True)
        target.write_text(text, encoding="utf-8")
    return target


def _problems(text: str, source: Path) -> list[str]:
    """Sphinx's warnings, one line each, with paths as a person would type them."""
    text = COLOUR.sub("", text).replace(f"{source}{os.sep}", f"{source.name}/")
    lines = [line for line in text.splitlines() if re.search(r"\b(WARNING|ERROR|CRITICAL): ", line)]
    return list(dict.fromkeys(lines))


def _causes(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or current.__context__
    return chain


def _chain(error: BaseException) -> str:
    import traceback

    return COLOUR.sub("", "".join(traceback.format_exception(error)))


def _sentence(error: BaseException, work: Path, source: Path) -> str:
    """One sentence for people: page, cell and error, and where the rest is."""
    from myst_nb.core.execute.base import ExecutionError
    from nbclient.exceptions import CellControlSignal, CellExecutionError, DeadKernelError

    more = f"the whole trace is in {_relative(work / 'error.txt')}"
    causes = _causes(error)
    page = next((Path(str(e.args[0])) for e in causes if isinstance(e, ExecutionError)), None)
    if page is None:
        return f"Sphinx stopped with {type(error).__name__}: {COLOUR.sub('', str(error))}; {more}."
    name = f"{source.name}/{page.relative_to(source).as_posix()}"
    for cause in causes:
        if isinstance(cause, CellExecutionError):
            line, first = _where(page, str(cause))
            what = COLOUR.sub("", f"{cause.ename}: {cause.evalue}").strip().rstrip(".:")
            return f"{name}, cell at line {line} (`{first}`), failed with {what}; {more}."
        if isinstance(cause, DeadKernelError):
            return f"{name}: the kernel died, most likely for want of memory; {more}."
        if isinstance(cause, (CellControlSignal, TimeoutError)):
            line, first = _where(page, str(cause))
            return f"{name}, cell at line {line} (`{first}`), took longer than allowed; {more}."
    return f"{name} could not be executed ({causes[-1]!r}); {more}."


def _where(page: Path, message: str) -> tuple[int | str, str]:
    """Line number in the page, and first line of code, of the cell that a message quotes."""
    quoted = re.search(r"-{18,}\n(.*?)\n-{18,}", message, re.DOTALL)
    code = quoted[1].strip("\n") if quoted else ""
    first = next((line for line in code.splitlines() if line.strip()), "")
    text = page.read_text(encoding="utf-8")
    at = text.find(code) if code else -1
    return (text.count("\n", 0, at) + 1 if at >= 0 else "?"), first.strip()


def _relative(path: Path) -> Path:
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path


def main(arguments: list[str] | None = None) -> int:
    """The command line; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m toolkit.book", description="Execute and build the book."
    )
    parser.add_argument("--out", type=Path, default=OUT, help="where to build (build/book)")
    parser.add_argument(
        "--edition", choices=SITES, default="reader",
        help="course: without the answers to graded exercises",
    )  # fmt: skip
    parser.add_argument("--clear", action="store_true", help="forget all earlier results first")
    options = parser.parse_args(arguments)
    where = _relative(options.out.resolve())
    print(f"Building the book into {where}", flush=True)
    try:
        index = build_book(
            options.out,
            edition=options.edition,
            clear=options.clear,
            # One write a line: pages tell of themselves from several threads
            tell=lambda line: print(f"{line}\n", end="", flush=True),
        )
    except BookError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped; pages executed so far are kept.", file=sys.stderr)
        return 130
    print(f"The book is at {_relative(index)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
