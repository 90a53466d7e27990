"""`check` ends, whatever the code that it asks does, and leaves nothing running."""

from __future__ import annotations

import gc
import linecache
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from autograder.assignments import recorder
from autograder.checking import notebook as check_notebook
from autograder.checking.check import Judge, checks_for
from autograder.common import paths
from autograder.common.errors import AssignmentError
from autograder.sandbox import limits, timelimit
from autograder.sandbox.timelimit import TimeLimit, TimeUp
from autograder.units import variants
from autograder.units.assignment import load
from tests.autograder.helpers import until

UNIT = "attention-scores"
NAMES = load(UNIT).names
CELLS = variants.reference_answers(UNIT)
SETUP = "import math\nimport time\n\nimport torch\nfrom torch import Tensor, nn\n"
SIGNATURE = "def masked_softmax(scores, mask=None, dim=-1):\n"
LOOP = SIGNATURE + "    while True:\n        pass\n"
# Each never returns, or not for long, and what is shown of it.
ENDLESS = {
    "a loop": (LOOP, "line [23]: (while True:|pass)"),
    "a sleep": (SIGNATURE + "    time.sleep(1000)\n", "line 2: time.sleep"),
    "a loop that catches everything": (
        SIGNATURE + "    while True:\n        try:\n            x = 1\n"
        "        except:\n            pass\n",
        "line [23456]: ",
    ),
    "a sleep that catches everything": (
        SIGNATURE + "    while True:\n        try:\n            time.sleep(30)\n"
        "        except:\n            pass\n",
        "line 4: time.sleep",
    ),
    "native code": (
        SIGNATURE + "    a = torch.ones(512, 512)\n    while True:\n        b = a @ a\n",
        "line [34]: ",
    ),
    "a call that makes something else of being stopped": (
        SIGNATURE + "    try:\n        while True:\n            pass\n"
        "    except BaseException:\n        raise ValueError('stopped')\n",
        "line [34]: ",
    ),
}
# Code that nothing in its own process can stop.
UNSTOPPABLE = (
    "import itertools\n"
    + SIGNATURE
    + "    return sum(itertools.repeat(1))  # all of Python waits\n"
)


def run_cell(namespace: dict[str, Any], source: str, name: str) -> None:
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), namespace)


@pytest.fixture
def notebook() -> dict[str, Any]:
    """The names of a notebook in which everything is right."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    run_cell(namespace, SETUP, "<setup>")
    for name in NAMES:
        run_cell(namespace, CELLS[name], f"<right {name}>")
    namespace["check"] = checks_for(UNIT)
    return namespace


@pytest.fixture(scope="module", autouse=True)
def judge() -> Judge:
    recorder.record(UNIT)
    return Judge(UNIT)


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timelimit, "SECONDS_PER_CALL", 0.5)


# In the notebook.


def test_the_limit_is_the_one_of_grading() -> None:
    assert timelimit.SECONDS_PER_CALL == limits.Limits().seconds_per_call == 10.0


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize("kind", ENDLESS)
def test_a_call_that_does_not_return_is_stopped_and_its_line_is_shown(
    notebook: dict[str, Any], judge: Judge, kind: str
) -> None:
    source, line = ENDLESS[kind]
    before = state()
    run_cell(notebook, source, "<endless>")
    card = judge.card("masked_softmax", notebook)
    assert card.status == "failed"
    said = r"Your masked_softmax did not return within 0\.5 seconds; it was in "
    assert re.match(said + line, card.headline), card.headline
    assert state() == before
    assert judge.card("context_vector", notebook).status == "passed"


def state() -> tuple[object, ...]:
    """What a check must leave as it was."""
    return (
        signal.getsignal(signal.SIGINT),
        sys.gettrace(),
        threading.active_count(),
        torch.is_grad_enabled(),
        torch.get_rng_state().tolist(),
    )


@pytest.mark.usefixtures("_soon")
def test_after_a_call_that_does_not_return_no_other_is_made(
    notebook: dict[str, Any], judge: Judge
) -> None:
    run_cell(
        notebook,
        "calls = []\n" + LOOP.replace("    while", "    calls.append(1)\n    while"),
        "<c>",
    )
    card = judge.card("masked_softmax", notebook)
    assert notebook["calls"] == [1]
    assert [test.outcome for test in card.tests] == ["failed"] + ["todo"] * (len(card.tests) - 1)
    assert len(card.tests) > 2
    assert "Its remaining tests were not run." in card.notes
    assert card.points == 0


@pytest.mark.usefixtures("_soon")
def test_the_function_that_does_not_return_is_named_where_another_calls_it(
    notebook: dict[str, Any], judge: Judge
) -> None:
    run_cell(notebook, LOOP, "<endless>")
    headline = judge.card("AttentionDecoderStep", notebook).headline
    assert headline.startswith("Your AttentionDecoderStep did not return within 0.5 s")
    assert "it was in masked_softmax, line" in headline


@pytest.mark.usefixtures("_soon")
def test_the_other_exercises_are_judged_and_what_hangs_is_asked_once(
    notebook: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run_cell(
        notebook,
        "calls = []\n" + LOOP.replace("    while", "    calls.append(1)\n    while"),
        "<c>",
    )
    exec("check()", notebook)
    text = capsys.readouterr().out
    assert re.search(r"✗ masked_softmax .* did not return within 0\.5 seconds", text)
    assert "✓ context_vector" in text
    assert "`AttentionDecoderStep` was not checked: it uses your `masked_softmax`" in text
    assert text.count("was not checked") < len(NAMES) / 2
    assert notebook["calls"] == [1]


@pytest.mark.usefixtures("_soon")
def test_a_class_that_hangs_when_it_is_made_is_stopped(
    notebook: dict[str, Any], judge: Judge
) -> None:
    run_cell(
        notebook,
        "class DotScore(nn.Module):\n    def __init__(self):\n        while True: pass\n",
        "<class>",
    )
    assert "DotScore did not return" in judge.card("DotScore", notebook).headline


@pytest.mark.usefixtures("_soon")
def test_a_stopped_check_is_not_taken_for_one_that_took_too_long(
    notebook: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timelimit, "SECONDS_PER_CALL", 60.0)
    run_cell(notebook, "import signal\n" + SIGNATURE + "    signal.raise_signal(2)\n", "<stop>")
    exec("check('masked_softmax')", notebook)
    assert capsys.readouterr().out.startswith("! You stopped the check")
    exec("check('context_vector')", notebook)
    assert capsys.readouterr().out.startswith("✓")


def test_a_call_is_interrupted_where_threads_cannot_be_signalled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(signal, "pthread_kill")  # as on Windows
    namespace: dict[str, Any] = {}
    run_cell(namespace, "def loop():\n    while True:\n        pass\n", "<loop>")
    with TimeLimit(namespace, 0.2) as limit, pytest.raises(TimeUp) as late:
        limit.call(namespace["loop"])
    assert late.value.code is namespace["loop"].__code__
    assert late.value.line in (2, 3)


def test_a_call_that_cannot_be_stopped_yet_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timelimit, "GRACE_SECONDS", 0.3)
    told: list[TimeUp] = []
    heard = threading.Event()
    namespace: dict[str, Any] = {"heard": heard}
    source = (
        "import signal\ndef native():\n"
        "    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
        "    heard.wait(60)\n"
        "    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])\n"
    )
    run_cell(namespace, source, "<native>")

    def tell(late: TimeUp) -> None:
        told.append(late)
        heard.set()

    with TimeLimit(namespace, 0.2, tell) as limit, pytest.raises(TimeUp):
        limit.call(namespace["native"])
    assert [late.line for late in told] == [4]


def test_nothing_is_interrupted_in_another_thread(
    notebook: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timelimit, "SECONDS_PER_CALL", 0.01)
    slow = CELLS["context_vector"].replace(":\n", ":\n    time.sleep(0.3)\n", 1)
    assert slow != CELLS["context_vector"]
    run_cell(notebook, slow, "<slow>")
    thread = threading.Thread(target=exec, args=("check('context_vector')", notebook))
    thread.start()
    thread.join()
    assert capsys.readouterr().out.startswith("✓")


def test_an_interrupt_that_comes_too_late_goes_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that last about as long as they may: each returns or is stopped, and no more."""
    monkeypatch.setattr(timelimit, "INTERVAL", 0.0005)
    monkeypatch.setattr(timelimit, "SECONDS_PER_CALL", 0.002)
    switch = sys.getswitchinterval()
    sys.setswitchinterval(0.0001)
    namespace: dict[str, Any] = {}
    source = "def last(t):\n    end = clock() + t\n    while clock() < end: pass\n    return t\n"
    run_cell(namespace, source, "<last>")
    namespace["clock"] = time.monotonic
    ended = {"returned": 0, "stopped": 0}
    # Where an interrupt comes while something is being deleted Python only reports it, to pytest.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    gc.disable()
    try:
        for number in range(600):
            wanted = 0.001 + 0.00001 * (number % 200)
            with TimeLimit(namespace) as limit:
                try:
                    assert limit.call(namespace["last"], wanted) == wanted
                    ended["returned"] += 1
                except TimeUp:
                    ended["stopped"] += 1
    finally:
        gc.enable()
        sys.setswitchinterval(switch)
    assert sum(ended.values()) == 600
    assert all(ended.values())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["a loop", "a sleep that catches everything"])
def test_in_jupyter_a_card_comes_and_the_kernel_goes_on(kind: str) -> None:
    small = "from autograder.sandbox import timelimit\ntimelimit.SECONDS_PER_CALL = 0.5\n"
    cells = [
        SETUP + small + "from autograder import checks_for\ncheck = checks_for('attention-scores')",
        ENDLESS[kind][0],
        "check('masked_softmax')",
        "sum(range(3_000_000))",
        CELLS["context_vector"] + "\ncheck('context_vector')",
    ]
    book = new_notebook(cells=[new_code_cell(cell) for cell in cells])
    where = {"metadata": {"path": paths.ROOT}}
    NotebookClient(book, timeout=120, kernel_name="python3", resources=where).execute()
    shown = [[output["data"]["text/plain"] for output in cell.outputs] for cell in book.cells[2:]]
    assert "✗ Your masked_softmax did not return within 0.5 seconds" in shown[0][0]
    assert shown[1] == ["4499998500000"]
    assert "`context_vector`" in shown[2][0]


# In the terminal.


def write(path: Path, changes: dict[str, str], *further: str) -> Path:
    """A notebook with the reference's cells, some of them changed, and further cells before."""
    cells = [SETUP, *further, *({**CELLS, **changes}[name] for name in NAMES)]
    text = nbformat.writes(new_notebook(cells=[new_code_cell(cell) for cell in cells]))
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def _ended_soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No process of a check is left when a test ends."""
    monkeypatch.setattr(timelimit, "SECONDS_PER_CALL", 1.0)
    started: list[subprocess.Popen[bytes]] = []
    start = check_notebook._start
    monkeypatch.setattr(
        check_notebook, "_start", lambda folder: started.append(start(folder)) or started[-1]
    )
    yield
    assert started
    assert all(process.poll() is not None for process in started)


@pytest.mark.usefixtures("_ended_soon")
def test_in_the_terminal_too_the_line_is_shown_and_the_others_are_judged(tmp_path: Path) -> None:
    told: list[str] = []
    path = write(tmp_path / f"{UNIT}.ipynb", {"masked_softmax": LOOP})
    report = check_notebook.check_notebook(
        path, ["masked_softmax", "AttentionDecoderStep", "context_vector"], progress=told.append
    )
    hung, uses, right = report.cards
    assert re.search(r"did not return within 1 seconds?; it was in line [23]: ", hung.headline)
    assert [test.outcome for test in hung.tests][:2] == ["failed", "todo"]
    assert "not checked: it uses your `masked_softmax`" in uses.headline
    assert right.status == "passed"
    assert told[-1] == "context_vector"
    assert told.count("starting Python") == 1


@pytest.mark.slow
@pytest.mark.usefixtures("_ended_soon")
def test_what_cannot_be_stopped_ends_its_process_and_another_goes_on(tmp_path: Path) -> None:
    path = write(
        tmp_path / f"{UNIT}.ipynb",
        {
            "masked_softmax": UNSTOPPABLE,
            "context_vector": "def context_vector(weights, values):\n"
            "    import os\n    os._exit(0)\n",
            "attention_dropout": "def attention_dropout(weights, p, training):\n"
            "    import os\n    os.abort()\n",
        },
    )
    names = ["masked_softmax", "AttentionDecoderStep", "context_vector", "attention_dropout"]
    report = check_notebook.check_notebook(path, [*names, "DotScore"])
    cards = {card.name: card for card in report.cards}
    assert cards["masked_softmax"].headline == (
        "Your masked_softmax did not return within 1 seconds; it was in line 3: "
        "return sum(itertools.repeat(1))  # all of Python waits"
    )
    assert "not checked" in cards["AttentionDecoderStep"].headline
    assert "context_vector ended Python" in cards["context_vector"].headline
    assert "made Python crash (SIGABRT); it was in line 3" in cards["attention_dropout"].headline
    assert cards["DotScore"].status == "passed"
    assert not report.troubles


@pytest.mark.usefixtures("_ended_soon")
def test_a_cell_that_does_not_end_is_reported_and_keeps_what_it_defined(tmp_path: Path) -> None:
    path = write(
        tmp_path / f"{UNIT}.ipynb",
        {"context_vector": CELLS["context_vector"] + "\nwhile True:\n    time.sleep(60)\n"},
        "import itertools\nlost = sum(itertools.repeat(1))",
    )
    report = check_notebook.check_notebook(path, ["context_vector"])
    assert report.passed
    unstoppable, loop = report.troubles
    assert unstoppable == (
        "Code cell 2 did not finish within 1 seconds; it was in line 2: "
        "lost = sum(itertools.repeat(1))"
    )
    assert re.search(r"Code cell \d+ did not finish .*; it was in line \d+: time.sleep", loop)


def test_a_process_that_says_nothing_is_not_heard_for_ever() -> None:
    code = "import time; print('begun', flush=True); time.sleep(1000)"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert list(check_notebook._lines(process, 3.0)) in ([b"begun\n"], [])
        assert process.poll() is None
    finally:
        check_notebook._end(process)
    assert process.poll() is not None


@pytest.mark.usefixtures("_ended_soon")
def test_a_process_that_holds_the_pipe_is_not_waited_for(tmp_path: Path) -> None:
    cell = "import os\nif os.fork() == 0:\n    time.sleep(1000)\nos._exit(0)"
    report = check_notebook.check_notebook(
        write(tmp_path / f"{UNIT}.ipynb", {}, cell), ["DotScore"]
    )
    assert report.passed
    assert "Code cell 2 ended Python" in report.troubles[0]


FLOODS = {
    "what is no message": "os.write(number, b'{\"card\": 3}\\n')",
    "without end": "[os.write(number, b'{\"doing\": 2}\\n' * 5000) for _ in range(100)]",
}


@pytest.mark.usefixtures("_ended_soon")
@pytest.mark.parametrize("kind", FLOODS)
def test_a_notebook_that_writes_messages_is_one_sentence(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"{UNIT}.ipynb", {}, into_all_files(FLOODS[kind]))
    with pytest.raises(AssignmentError, match="can't be understood") as caught:
        check_notebook.check_notebook(path, ["DotScore"])
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("_ended_soon")
def test_other_text_among_the_answers_does_no_harm(tmp_path: Path) -> None:
    path = write(
        tmp_path / f"{UNIT}.ipynb", {}, into_all_files("os.write(number, b'x' * 1_000_000)")
    )
    report = check_notebook.check_notebook(path, ["DotScore"])
    assert report.passed
    assert not report.troubles


def into_all_files(write: str) -> str:
    """A cell that does `write` to each `number` of a file that may be open."""
    return (
        "import os\nfor number in range(3, 30):\n    try:\n"
        f"        {write}\n    except OSError:\n        pass\n"
    )


# Nothing is left running.


def marked(marker: str) -> list[int]:
    """The processes that were started with `marker` in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if marker.encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL", "SIGHUP", "SIGINT"])
def test_nothing_outlives_the_command_whatever_ends_it(tmp_path: Path, name: str) -> None:
    ready = tmp_path / "ready"
    cell = (
        "import os, pathlib, subprocess, sys\nos.close(0)\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])\n"
        f"pathlib.Path({str(ready)!r}).touch()\nwhile True: pass"
    )
    path = write(tmp_path / f"{UNIT}.ipynb", {}, cell)
    marker = f"{tmp_path.name}-{os.getpid()}"
    command = subprocess.Popen(
        [sys.executable, "-m", "autograder", "check", str(path), "--seconds", "500"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=paths.ROOT,
        env={**os.environ, "CHECK_MARKER": marker},
    )
    try:
        until(ready.exists)
        until(lambda: len(marked(marker)) == 3)  # the last may not have begun yet
        command.send_signal(signal.Signals[name])
        until(lambda: not marked(marker))
        _, error = command.communicate()
        assert error == ("Stopped.\n" if name == "SIGINT" else "")
    finally:
        for process in marked(marker):
            os.kill(process, signal.SIGKILL)
