"""Grading on a Dask cluster: a real scheduler, and worker processes that come and are killed."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest

from autograder.common import paths
from autograder.common.errors import ClassroomError
from autograder.gradebook import classroom
from autograder.grading import cluster, repair
from autograder.grading.collect import Submission, collect
from autograder.grading.marker import UNJUDGED, Graded
from autograder.grading.worker_pool import grade_all as grade_here
from autograder.sandbox.limits import Limits
from tests.autograder import helpers

UNIT = "attention-self_attention"  # which has a given.py
OPTIONS = {"unit": UNIT, "seed": 5, "limits": Limits(seconds_per_cell=30), "hide": ()}
PATIENCE = 90.0  # a busy machine; nothing waits that long when all goes well


until = functools.partial(helpers.until, seconds=PATIENCE)


on_a_cluster = [pytest.mark.slow, pytest.mark.sandbox]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Cluster:
    """A scheduler and workers on this machine, each started as a person would."""

    def __init__(self, folder: Path, protocol: str = "tcp") -> None:
        from distributed import Client

        self.folder = folder
        port = free_port()
        self.address = f"{protocol}://127.0.0.1:{port}"
        self.processes: list[subprocess.Popen] = []
        place = ("--host", "127.0.0.1", "--port", str(port), "--protocol", protocol)
        # The scheduler needs nothing of ours: it starts where there is no course.
        self.scheduler = self.start("scheduler", *place, "--no-dashboard", root=folder)
        self.client = Client(self.address, timeout=PATIENCE, set_as_default=False)

    def start(self, command: str, *arguments: str, root: Path = paths.ROOT) -> subprocess.Popen:
        environment = {**os.environ, "PYTHONPATH": str(root), "DASK_CONFIG": str(self.folder)}
        environment.pop("OMP_NUM_THREADS", None)
        log = (self.folder / f"{command}-{len(self.processes)}.log").open("wb")
        module = f"distributed.cli.dask_{command}"
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=self.folder,
        )
        self.processes.append(process)
        return process

    def workers(self) -> set[str]:
        return set(self.client.nthreads())

    def add_worker(self, *arguments: str, root: Path = paths.ROOT) -> str:
        """Start one more worker process and return its address."""
        before = self.workers()
        local = str(self.folder / "scratch")
        given = ("--nworkers", "1", "--no-dashboard", "--local-directory", local, *arguments)
        self.start("worker", self.address, *given, root=root)
        return until(lambda: self.workers() - before).pop()

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.client.close(timeout=5)
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def pid_at(address: str) -> int | None:
    """The process that listens at an address."""
    port = int(address.rpartition(":")[2])
    for connection in psutil.net_connections("tcp4"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
            return connection.pid
    return None


def sandboxes(address: str) -> list[psutil.Process]:
    """Those that a worker has started."""
    below = psutil.Process(pid_at(address)).children(recursive=True)
    return [one for one in below if one.name() == "bwrap"]


FIRST = "scaled_dot_product_attention"
# A student's own, slow cell: long enough that its process can be found while it runs.
SLOW = "import time\ntime.sleep(1.5)\n"


@pytest.fixture(scope="module")
def submitted(tmp_path_factory, solved) -> Path:
    """Eight submissions: right, wrong, empty, damaged, and some that take a while."""
    folder = tmp_path_factory.mktemp("submitted")
    right, slow, twice = solved(), solved(), solved()
    slow.cells.append(nbformat.v4.new_code_cell(SLOW))
    wrong = solved(**{FIRST: f"def {FIRST}(q, k, v, mask=None):\n    return v, q @ k.mT"})
    twice.cells.insert(3, twice.cells[3])
    for name, nb in (
        *(("s1", right), ("s2", wrong), ("s3", slow), ("s4", slow), ("s5", slow)),
        *(("s6", repair.blank(repair.released(UNIT))), ("s7", twice)),
    ):
        nbformat.write(nb, folder / f"{name}.ipynb")
    (folder / "s8.ipynb").write_bytes(b'{"cells": [\xff\xfe \x00')
    return folder


@pytest.fixture(scope="module")
def submissions(submitted) -> list[Submission]:
    return collect(submitted, UNIT)


@pytest.fixture(scope="module")
def here(submissions) -> dict[str, dict[str, Any]]:
    """What grading on this machine alone says."""
    release = repair.released(UNIT)
    return as_data(grade_here(submissions, OPTIONS, release, 1))


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def plain(running) -> str:
    """The address of a worker without a nanny and with several threads: gone when it is killed."""
    return running.add_worker("--no-nanny", "--nthreads", "4")


@pytest.fixture(scope="module")
def nursed(running) -> str:
    """The first address of a worker that its nanny starts again."""
    return running.add_worker("--nthreads", "1")


def as_data(pairs: Iterable[tuple[Submission, Graded]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for submission, graded in pairs:
        assert submission.student not in found, "graded twice"
        data = graded.result.to_dict()
        assert data.pop("seconds") >= 0
        found[submission.student] = {**data, "nb": json.loads(graded.notebook)["cells"]}
    return found


def there(running: Cluster, submissions: list[Submission], said: list[str] | None = None):
    heard = [] if said is None else said
    release = repair.released(UNIT)
    return cluster.grade_all(submissions, OPTIONS, release, running.address, heard.append)


@pytest.fixture
def group(monkeypatch) -> list[Any]:
    """Who holds what: the client's own record, to be read while it grades."""
    made: list[Any] = []

    class Watched(cluster._WorkerGroup):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(cluster, "_WorkerGroup", Watched)
    return made


def held(group: list[Any]) -> dict[str, list[str]]:
    """Per worker whose submissions it holds, the one that it grades first."""
    workers = list(group[-1].workers.values()) if group else []
    return {
        worker.address: [job.submission.student for job in list(worker.held.values())]
        for worker in workers
    }


class TestOnACluster:
    pytestmark = on_a_cluster

    @pytest.fixture(autouse=True)
    def patient(self, monkeypatch):
        """A busy machine may take long to start a worker again."""
        monkeypatch.setattr(cluster, "JOIN_SECONDS", PATIENCE)

    def test_nothing_stays_behind_when_it_is_stopped(self, running, plain, submissions):
        pairs = there(running, submissions)
        next(pairs)
        assert sandboxes(plain)
        pairs.close()
        until(lambda: not any(running.client.processing().values()))
        until(lambda: not sandboxes(plain))

    def test_a_class_gets_the_marks_it_gets_here(
        self, running, plain, nursed, submitted, here, tmp_path
    ):
        options = {"seed": OPTIONS["seed"], "limits": OPTIONS["limits"]}
        course = tmp_path / "course"
        graded = classroom.grade(UNIT, submitted, course, scheduler=running.address, **options)
        assert graded.complete
        assert (course / "gradebook.db").is_file()
        assert len(graded.results) == len(here) == 8
        for result in graded.results:
            mine = {key: value for key, value in here[result.student].items() if key != "nb"}
            # What a result was made with is the class's to say.
            made = {"seconds": 0, "seed": result.seed, "grader": result.grader}
            made["submission"] = result.submission
            assert result.to_dict() | made == mine | made
            assert all(made[key] for key in ("seed", "grader", "submission"))
        scores = {result.student: result.score for result in graded.results}
        assert scores["s1"] == graded.assignment.points > scores["s2"] > scores["s6"]
        statuses = {result.student: result.status for result in graded.results}
        assert (statuses["s7"], statuses["s8"]) == ("repaired", "unreadable")

    def test_what_a_killed_worker_held_is_graded_elsewhere(
        self, running, plain, nursed, submissions, here, group
    ):
        killed: list[str] = []

        def kill() -> None:
            until(lambda: held(group).get(plain))
            killed.extend(held(group)[plain])
            os.kill(pid_at(plain), signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        slow_first = sorted(submissions, key=lambda one: one.student not in ("s3", "s4", "s5"))
        found = as_data(there(running, slow_first))
        killer.join()
        assert killed
        assert plain not in running.workers()
        assert found == here

    def test_whoever_ends_its_worker_is_the_only_one_to_lose(
        self, running, nursed, submissions, here, group
    ):
        killed: list[int] = []

        def kill() -> None:
            while len(killed) < cluster.ALLOWED_FAILURES:
                running_it = [at for at, names in held(group).items() if names[:1] == ["s3"]]
                pid = pid_at(running_it[0]) if running_it else None
                if pid is not None and pid not in killed:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
                time.sleep(0.05)

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        found = as_data(there(running, submissions))
        killer.join(5)
        assert len(killed) == 2
        lost = found.pop("s3")
        assert (lost["status"], lost["score"]) == ("crashed", 0)
        assert lost["notes"] == [
            f"{UNJUDGED} the submission (the grading process ended repeatedly)"
        ]
        assert found == {name: data for name, data in here.items() if name != "s3"}

    def test_a_worker_with_other_graders_is_left_out(
        self, running, nursed, submissions, here, tmp_path
    ):
        until(running.workers)  # Its nanny may still be starting one again.
        for name in ("autograder", "solutions", "toolkit", "exercises"):
            shutil.copytree(
                paths.ROOT / name,
                tmp_path / name,
                ignore=shutil.ignore_patterns("__pycache__", "build"),
            )
        changed = paths.graders(UNIT, tmp_path)
        changed.write_text(changed.read_text() + "\n# somewhat newer\n")
        other = running.add_worker("--no-nanny", root=tmp_path)
        said: list[str] = []
        few = submissions[:2]
        found = as_data(there(running, few, said))
        assert found == {name: here[name] for name in ("s1", "s2")}
        assert len(said) == 1
        assert said[0].startswith(f"The worker {other} is left out: it has other graders")
        os.kill(pid_at(other), signal.SIGTERM)
        until(lambda: other not in running.workers())

    def test_without_any_worker_that_grades_alike_nothing_is_graded(
        self, running, nursed, submissions, monkeypatch
    ):
        until(running.workers)
        monkeypatch.setattr(cluster, "grader_hash", lambda unit: "another")
        said: list[str] = []
        away = [one for one in submissions if one.path is not None]
        with pytest.raises(ClassroomError, match=r"nothing was graded.*other graders") as refused:
            list(there(running, away, said))
        assert str(refused.value).count("\n") == 0
        assert len(said) == len(running.workers())

    def test_a_lost_scheduler_is_told_and_what_was_graded_is_kept(
        self, running, nursed, submissions, here, capfd
    ):
        until(running.workers)
        away = [one for one in submissions if one.student in ("s1", "s2", "s3", "s4")]
        pairs = there(running, away)
        first = as_data([next(pairs)])
        os.kill(running.scheduler.pid, signal.SIGKILL)
        more: list[tuple[Submission, Graded]] = []
        with pytest.raises(ClassroomError, match=re.escape(running.address)) as lost:
            more.extend(pairs)
        kept = first | as_data(more)
        assert f"{len(kept)} of 4 submissions were graded and are kept" in str(lost.value)
        assert kept == {name: here[name] for name in kept}
        assert capfd.readouterr().err == ""


TLS = """
distributed:
  comm:
    require-encryption: true
    tls:
      ca-file: {0}/ca.pem
      scheduler: {{cert: {0}/node.pem, key: {0}/node.key}}
      worker: {{cert: {0}/node.pem, key: {0}/node.key}}
      client: {{cert: {0}/node.pem, key: {0}/node.key}}
"""
CERTIFICATES = (
    "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=ours -keyout ca.key -out ca.pem",
    "req -newkey rsa:2048 -nodes -subj /CN=grading -keyout node.key -out node.csr",
    "x509 -req -in node.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -out node.pem",
)


class TestWithTLS:
    pytestmark = on_a_cluster

    @pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
    def test_only_with_the_certificate_there_are_marks(self, tmp_path, submissions, here, capfd):
        import dask
        import dask.distributed  # brings its settings, to which those of TLS are added
        import yaml

        for command in CERTIFICATES:
            words = ["openssl", *command.split()]
            subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=60)
        text = TLS.format(tmp_path)
        (tmp_path / "tls.yaml").write_text(text)
        few = submissions[:2]
        settings = dask.config.merge(dask.config.config, yaml.safe_load(text))
        with dask.config.set(settings):
            safe = Cluster(tmp_path, "tls")
        try:
            with pytest.raises(ClassroomError, match=r"distributed\.comm\.tls"):
                list(there(safe, few))
            assert capfd.readouterr().err == ""
            with dask.config.set(settings):
                assert safe.add_worker("--no-nanny").startswith("tls://")
                found = as_data(there(safe, few))
            assert found == {name: here[name] for name in ("s1", "s2")}
        finally:
            safe.close()


class TestWhatIsRefused:
    def test_nobody_answers(self, submissions, monkeypatch, capfd):
        monkeypatch.setattr(cluster, "CONNECT_SECONDS", 1.0)
        address = f"tcp://127.0.0.1:{free_port()}"
        with pytest.raises(ClassroomError, match=f"No Dask scheduler answers at {address}"):
            list(cluster.grade_all(submissions, OPTIONS, repair.released(UNIT), address))
        assert capfd.readouterr().err == ""

    def test_a_scheduler_without_workers(self, submissions, monkeypatch, tmp_path):
        monkeypatch.setattr(cluster, "JOIN_SECONDS", 0.5)
        empty = Cluster(tmp_path)
        try:
            with pytest.raises(ClassroomError, match=r"no workers.*dask worker tcp://"):
                list(there(empty, submissions))
        finally:
            empty.close()

    @pytest.mark.parametrize("address", ["localhost", "http://host:80", "tcp://host", "tcp://:1"])
    def test_what_is_no_address(self, submissions, address):
        with pytest.raises(ClassroomError, match="tcp://HOST:8786"):
            list(cluster.grade_all(submissions, OPTIONS, repair.released(UNIT), address))

    def test_grading_without_a_sandbox(self, submissions):
        options = {**OPTIONS, "unsafe": True}
        with pytest.raises(ClassroomError, match="--unsafe-no-sandbox"):
            list(cluster.grade_all(submissions, options, repair.released(UNIT), "tcp://h:1"))

    def test_those_without_a_notebook_need_no_cluster(self):
        people = [Submission("a"), Submission("b", reason="the folder is a link")]
        pairs = cluster.grade_all(people, OPTIONS, repair.released(UNIT), "tcp://h:1")
        assert [graded.result.status for _, graded in pairs] == ["missing", "unreadable"]


@pytest.mark.slow
@pytest.mark.sandbox
def test_a_class_that_ends_while_a_worker_prepares_leaves_nothing_there(monkeypatch, tmp_path):
    worker = types.SimpleNamespace(local_directory=str(tmp_path))
    monkeypatch.setattr("distributed.get_worker", lambda: worker)
    order = {
        "unit": UNIT, "seed": 1, "limits": None, "grader": cluster.grader_hash(UNIT),
        "release": nbformat.writes(repair.released(UNIT)), "versions": {},
    }  # fmt: skip
    told: list[dict[str, str]] = []
    before = set(psutil.Process().children(recursive=True))
    preparing = threading.Thread(
        target=lambda: told.append(json.loads(cluster.prepare("t", json.dumps(order).encode())))
    )
    preparing.start()
    until(lambda: set(psutil.Process().children(recursive=True)) - before)
    cluster.forget("t")
    preparing.join(60)
    assert told[0]["problem"]
    until(lambda: not set(psutil.Process().children(recursive=True)) - before)
    assert json.loads(cluster.prepare("t", json.dumps(order).encode()))["problem"]
    until(lambda: not set(psutil.Process().children(recursive=True)) - before)


class TestWhatTravels:
    def test_a_workers_answer_is_never_pickled(self):
        from distributed.protocol import serialize

        header, frames = serialize(json.dumps({"result": {}}).encode())
        assert header["serializer"] == "dask"
        assert bytes(frames[0]) == b'{"result": {}}'

    def test_a_task_needs_nothing_of_ours_to_be_read(self):
        from distributed.protocol.pickle import dumps

        frames: list[Any] = []
        pickled = dumps(cluster._caller(), buffer_callback=frames.append)
        code = f"import pickle; print(pickle.loads({pickled!r})('prepare', 't', b''))"
        said = subprocess.run(
            [sys.executable, "-I", "-S", "-c", f"import sys; sys.path = {pathless()!r}; {code}"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        assert "the repository cannot be imported there" in said

    def test_a_process_older_than_its_files_proves_nothing(self, monkeypatch):
        monkeypatch.setattr(cluster, "_begun_with", "")
        assert cluster._changed_on_disk() == "" == cluster._changed_on_disk()
        monkeypatch.setattr(cluster, "_begun_with", "what it was")
        assert "restart the worker" in json.loads(cluster.prepare("t", b"{}"))["problem"]

    def test_a_given_part_that_changed_on_disk_is_noticed(self, monkeypatch, tmp_path):
        exercises = Path(shutil.copytree(paths.EXERCISES, tmp_path / "exercises"))
        monkeypatch.setattr(paths, "EXERCISES", exercises)
        monkeypatch.setattr(cluster, "_begun_with", "")
        assert cluster._changed_on_disk() == ""
        (exercises / UNIT / paths.GIVEN).write_text("def masked_softmax(): pass\n")
        assert "restart the worker" in cluster._changed_on_disk()

    @pytest.mark.parametrize(
        "change",
        [
            {"student": "another"},
            {"score": -1.0},
            {"score": 99.0},
            {"score": float("nan")},
            {"score": "9"},
            {"exercises": []},
            {"surplus": 1},
            {"notes": None},
        ],
    )
    def test_what_is_no_result_is_not_taken_for_one(self, change):
        from autograder.grading.marker import empty_result
        from autograder.units.assignment import load

        right = empty_result(load(UNIT), "s1", "graded", "").to_dict()
        assert cluster._read({"result": right, "notebook": "{}"}, Submission("s1")) is not None
        wrong = {"result": {**right, **change}, "notebook": "{}"}
        assert cluster._read(wrong, Submission("s1")) is None
        assert cluster._read({"result": right}, Submission("s1")) is None


def pathless() -> list[str]:
    """Where Python finds packages, but not this course."""
    return [entry for entry in sys.path if entry and Path(entry).resolve() != paths.ROOT]
