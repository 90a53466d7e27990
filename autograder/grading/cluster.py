"""Marks a class on a Dask cluster: any number of machines behind one scheduler.

The client, which runs `grade`, hands every worker process one submission after the other and takes
back plain data; gradebook and feedback are written by the client alone. How scheduler and workers
were started is none of this module's business; `book/howto-cluster.md` shows some ways.

- **What travels.** To a worker: the released notebook, seed and limits once, then the bytes of each
  notebook; back from it: bytes that hold JSON, which `SubmissionResult.from_dict` reads. Dask
  pickles the call of a function and its arguments, which are texts and bytes made here; of what a
  student handed in, or of what a student's code returned, nothing is ever unpickled.
- **Who may grade.** A worker process that has proved that graders, reference and versions are the
  client's and that it can run a notebook in its sandbox. Any other is left out with a sentence.
- **What is lost.** When a worker process ends, what it held is graded elsewhere, alone from then
  on; a submission that was held twice by a process that ended, the second time alone, is "crashed".

A worker process grades one submission at a time, however many threads it has; a second one waits
there, so that no worker is idle while the client writes.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib.util
import json
import logging
import queue
import re
import secrets
import threading
import time
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from nbformat import NotebookNode

from autograder.common import paths
from autograder.common.errors import ClassroomError
from autograder.grading.collect import MAX_FILE_BYTES, Submission
from autograder.grading.marker import (
    UNJUDGED,
    Graded,
    Marker,
    Task,
    grade_one,
    grader_hash,
    ungraded,
    versions,
)
from autograder.grading.worker_pool import WorkerPool
from autograder.judging.results import SubmissionResult

if TYPE_CHECKING:
    from distributed import Client, Future

CONNECT_SECONDS = 15.0
JOIN_SECONDS = 60.0  # for a first worker, and for another one when all are gone
PROVE_SECONDS = 300.0  # PyTorch from a cold disk that many machines read
ANSWER_SECONDS = 60.0
LOOK_SECONDS = 0.5
CLOSE_SECONDS = 5.0
HELD = 2  # submissions at a worker: one is graded, one waits
ALLOWED_FAILURES = 2
KEPT = 3  # classes that a worker process is ready to grade
ADDRESS = re.compile(r"(tcp|tls)://(\[[0-9A-Fa-f:.]+\]|[^\s/:@]+):[0-9]{1,5}/?")
NOISY = ("distributed", "dask", "tornado", "asyncio")

# ---------------------------------------------------------------------------------- the worker's
# These three are called by name, and all that they take and give is text and bytes.


@dataclass
class _Class:
    """What a worker process needs to grade one class."""

    pool: WorkerPool
    release: NotebookNode


_classes: OrderedDict[str, _Class] = OrderedDict()
_forgotten: deque[str] = deque(maxlen=1000)  # classes that have ended, maybe while it prepares
_one_at_a_time = threading.Lock()  # a pool is made for one thread
_registry = threading.Lock()  # for the classes, forgotten or not; held for moments only
_begun_with = ""


def prepare(token: str, order: bytes) -> bytes:
    """Make this process ready for a class and prove it; the answer says what is amiss, if so."""
    with _one_at_a_time:
        try:
            wanted = json.loads(order)
            problem = _changed_on_disk() or _differences(wanted) or _begin(token, wanted)
        except Exception as error:
            remedy = "run `python -m autograder doctor` on that machine"
            problem = f"it could not begin ({_short(error)}); {remedy}"
        return json.dumps({"problem": problem}).encode()


def mark(token: str, order: bytes, data: bytes) -> bytes:
    """The result of one submission and its notebook; "unready" if this process is a new one."""
    from autograder.sandbox.limits import SandboxUnavailable

    with _one_at_a_time:
        with _registry:
            ready = _classes.get(token)
            if ready is not None:
                _classes.move_to_end(token)  # The one unused for longest makes room for another.
        if ready is None:
            return json.dumps({"unready": True}).encode()
        try:
            task = Task(Submission(**json.loads(order)), data=data)
            ((_, graded),) = ready.pool.mark([task], ready.release)
            answer = {"result": graded.result.to_dict(), "notebook": graded.notebook}
            return json.dumps(answer).encode()
        except SandboxUnavailable as error:
            return json.dumps({"problem": _no_sandbox(error)}).encode()
        except Exception:
            return b"{}"  # as if the process had ended: it is tried once more, alone


def forget(token: str) -> None:
    """End the processes of a class at once, also if they are still getting ready."""
    with _registry:
        _forgotten.append(token)
        ready = _classes.pop(token, None)
    if ready is not None:
        ready.pool.close()


def _begin(token: str, wanted: dict[str, Any]) -> str:
    """Start graders and sandbox and grade the empty notebook; what failed, or nothing."""
    from distributed import get_worker

    from autograder.sandbox.limits import Limits, SandboxUnavailable

    while len(_classes) >= KEPT:
        forget(next(iter(_classes)))
    options = {
        "unit": wanted["unit"],
        "seed": wanted["seed"],
        "limits": Limits(**wanted["limits"]) if wanted["limits"] else None,
        "hide": (Path(get_worker().local_directory),),
    }
    release = nbformat.reads(wanted["release"], as_version=4)
    ready = _Class(WorkerPool(options, 1), release)
    with _registry:
        ended = token in _forgotten
        if not ended:
            _classes[token] = ready
    problem = "the class has ended"
    try:
        if not ended:
            problem = _proved(ready.pool, wanted["release"].encode(), release)
    except SandboxUnavailable as error:
        problem = _no_sandbox(error)
    finally:
        if problem:
            forget(token)
            ready.pool.close()
    return problem


def _proved(pool: WorkerPool, data: bytes, release: NotebookNode) -> str:
    """Grade the empty notebook; what is amiss, or nothing."""
    ((_, empty),) = pool.mark([Task(Submission("nobody"), data=data)], release)
    amiss = [note for note in empty.result.notes if note.startswith(UNJUDGED)]
    if amiss or empty.result.status in ("crashed", "unreadable"):
        reason = amiss[0] if amiss else f"it is {empty.result.status}"
        return (
            f"it cannot grade the empty notebook ({reason}); "
            "run `python -m autograder doctor` on that machine"
        )
    return ""


@atexit.register
def _close_all() -> None:
    """With the worker process end its sandboxes."""
    for ready in _classes.values():
        ready.pool.close()


def _no_sandbox(error: Exception) -> str:
    words = re.sub(r"[,;] (or )?grade with --unsafe-no-sandbox.*", "", str(error))
    return f"it has no working sandbox: {words}"


def _differences(wanted: dict[str, Any]) -> str:
    """Why this process would grade otherwise than the client would."""
    if grader_hash(wanted["unit"]) == wanted["grader"]:
        return ""
    remedy = "bring the repository and its packages there to the same state and restart the worker"
    other = [
        f"{name} {mine} instead of {wanted['versions'].get(name)}"
        for name, mine in versions().items()
        if mine != wanted["versions"].get(name)
    ]
    return f"it has {', '.join(other) or 'other graders or another reference'}; {remedy}"


def _changed_on_disk() -> str:
    """Files that changed after this process had read them would prove nothing about it."""
    global _begun_with
    digest = hashlib.sha256()
    for folder in (paths.PACKAGE, paths.SOLUTIONS, paths.ROOT / "toolkit", paths.EXERCISES):
        for file in sorted(folder.rglob("*.py")):
            digest.update(file.read_bytes())
    _begun_with = _begun_with or digest.hexdigest()
    if _begun_with == digest.hexdigest():
        return ""
    return "the repository there changed while the worker was running; restart the worker"


# ---------------------------------------------------------------------------------- the client's


def _caller() -> Callable[..., Any]:
    """What is sent as the function of every task.

    Dask pickles a function that stands in no module by value, so that a worker without the
    repository can say so, and a scheduler needs none.
    """

    def autograder(name: str, *arguments: Any) -> Any:
        import importlib
        import json

        try:
            cluster = importlib.import_module("autograder.grading.cluster")
        except Exception as error:
            words = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            problem = (
                f"the repository cannot be imported there ({words}); start the worker in the "
                "repository's folder with its .venv/bin/python"
            )
            return json.dumps({"problem": problem}).encode()
        return getattr(cluster, name)(*arguments)

    return autograder


def _say(sentence: str) -> None:
    from rich.console import Console
    from rich.text import Text

    from autograder.common.escaping import one_line

    Console(stderr=True).print(Text(one_line(sentence, 2000)), soft_wrap=True)


def grade_all(
    submissions: Sequence[Submission],
    options: dict[str, Any],
    release: NotebookNode,
    address: str,
    say: Callable[[str], None] = _say,
) -> Iterator[tuple[Submission, Graded]]:
    """Each submission with its result, as they are finished on the cluster at `address`.

    Args:
        submissions: what to grade; a file is read when its turn comes.
        options: of `Marker`; folders of this machine in it mean nothing to a worker.
        release: the released notebook.
        address: the scheduler's, tcp://HOST:PORT, or tls://HOST:PORT with Dask's own settings.
        say: told, in a sentence, of every worker that is left out.

    Raises:
        ClassroomError: there is no such scheduler, it has no worker that may grade, or it is lost;
            what was yielded before remains valid.
    """
    if not ADDRESS.fullmatch(address):
        raise ClassroomError(
            f"{address!r} is no address of a Dask scheduler; write it as tcp://HOST:8786."
        )
    if options.get("unsafe"):
        raise ClassroomError(
            "Without a sandbox student code could command the whole cluster; leave out "
            "--unsafe-no-sandbox or --scheduler."
        )
    if importlib.util.find_spec("distributed") is None:
        raise ClassroomError(
            "--scheduler needs Dask: type `python -m pip install -r requirements.txt`."
        )
    address = address.rstrip("/")
    away = [one for one in submissions if one.runnable]
    here = [one for one in submissions if not one.runnable]
    with Marker(options["unit"], seed=options.get("seed", 0)) as marker:
        if away:
            with _quiet(), _connected(address) as client:
                group = _WorkerGroup(client, address, away, options, release, say)
                try:
                    for submission, graded in group.run():
                        if graded is None:
                            # It cannot be read, or is too large: that is all its result says.
                            graded = grade_one(marker, Task(submission), release)
                        yield submission, graded
                finally:
                    group.close()
        for submission in here:
            yield submission, grade_one(marker, Task(submission), release)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Dask writes logs and warnings for those who run the cluster; here one sentence is said."""
    import distributed  # noqa: F401  # which sets the levels of its loggers

    for name in logging.root.manager.loggerDict:
        if name.split(".")[0] in NOISY:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # its threads may outlast this
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"(distributed|dask)(\..*)?")
        yield


@contextlib.contextmanager
def _connected(address: str) -> Iterator[Client]:
    from distributed import Client

    try:
        client = Client(
            address, timeout=CONNECT_SECONDS, set_as_default=False, direct_to_workers=False
        )
    except Exception as error:  # whatever answers there, or does not
        if address.startswith("tls:") and isinstance(error, (TypeError, ValueError)):
            remedy = "set distributed.comm.tls in Dask's configuration, as howto-cluster shows"
        else:
            remedy = "start one with `dask scheduler`, or leave out --scheduler to grade here"
        raise ClassroomError(
            f"No Dask scheduler answers at {address} ({_short(error)}); {remedy}."
        ) from None
    try:
        yield client
    finally:
        with contextlib.suppress(Exception):
            client.close(timeout=CLOSE_SECONDS)


def _short(error: BaseException) -> str:
    """One line of what an error says."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".")[:200]


@dataclass
class _Job:
    """One submission on its way."""

    submission: Submission
    data: bytes | None = None  # read when it is sent for the first time, until it is graded
    losses: int = 0


@dataclass
class _Worker:
    """One worker process: it is "proving", then "ready", or it is "out" for good."""

    address: str
    state: str = "proving"
    since: float = field(default_factory=time.monotonic)
    proof: Future[Any] | None = None
    held: dict[Future[Any], _Job] = field(default_factory=dict)


class _WorkerGroup:
    """The workers of a cluster while they grade a class. For one thread."""

    def __init__(
        self,
        client: Client,
        address: str,
        submissions: Sequence[Submission],
        options: dict[str, Any],
        release: NotebookNode,
        say: Callable[[str], None],
    ) -> None:
        self.client = client
        self.address = address
        self.unit = options["unit"]
        self.release = release
        self.say = say
        self.token = secrets.token_hex(8)
        limits = options.get("limits")
        self.order = json.dumps(
            {
                "unit": self.unit,
                "seed": options.get("seed", 0),
                "limits": asdict(limits) if limits is not None else None,
                "release": nbformat.writes(release),
                "grader": grader_hash(self.unit),
                "versions": versions(),
            }
        ).encode()
        self.caller = _caller()
        self.left = len(submissions)
        self.total = len(submissions)
        self.fresh = iter(submissions)
        self.suspects: deque[_Job] = deque()  # held by a process that ended
        self.workers: dict[str, _Worker] = {}
        self.refused: dict[str, str] = {}
        self.finished: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
        self.tasks = 0
        self.looked = 0.0
        self.deserted = time.monotonic()
        self.began = False  # Some worker has been found able to grade.

    def run(self) -> Iterator[tuple[Submission, Graded | None]]:
        """Grade everybody; None instead of a result where the file cannot be read here."""
        while self.left:
            if time.monotonic() - self.looked >= LOOK_SECONDS:
                yield from self._settled(self._look())
                self.looked = time.monotonic()
            yield from self._settled(self._hand_out())
            try:
                future = self.finished.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                continue
            yield from self._settled(self._take(future))

    def close(self) -> None:
        """Let the workers have done with this class; called however it ended."""
        with contextlib.suppress(Exception):
            if self.client.status == "running":
                for worker in self.workers.values():
                    for future in filter(None, (*worker.held, worker.proof)):
                        future.release()  # which cancels it
                if self.workers:
                    telling = threading.Thread(target=self._tell_to_forget, daemon=True)
                    telling.start()
                    telling.join(CLOSE_SECONDS)  # A worker that hangs keeps nobody waiting.

    def _tell_to_forget(self) -> None:
        """Tell every worker, also those that still prepare, that the class has ended."""
        order = (self.caller, "forget", self.token)
        with contextlib.suppress(Exception):  # The client may be closed before all have answered.
            self.client.run(*order, workers=[*self.workers], on_error="ignore")

    def _settled(
        self, found: Iterator[tuple[Submission, Graded | None]]
    ) -> Iterator[tuple[Submission, Graded | None]]:
        for pair in found:
            self.left -= 1
            yield pair

    # Workers come and go.

    def _look(self) -> Iterator[tuple[Submission, Graded | None]]:
        """See which workers there are now."""
        try:
            if self.client.status != "running" or self.client.scheduler is None:
                raise OSError
            present = self.client.sync(
                self.client.scheduler.ncores, callback_timeout=ANSWER_SECONDS
            )
        except (OSError, TimeoutError, ValueError, RuntimeError):
            raise self._scheduler_lost() from None
        for address in [address for address in self.workers if address not in present]:
            yield from self._lost(self.workers.pop(address))
        for address in present:
            if address not in self.workers:
                self.refused.pop(address, None)
                self.workers[address] = _Worker(address)
                self._ask_for_proof(self.workers[address])
        self._lose_patience()

    def _ask_for_proof(self, worker: _Worker) -> None:
        worker.state, worker.since = "proving", time.monotonic()
        worker.proof = self._submit(worker, "prepare", self.order)

    def _lose_patience(self) -> None:
        now = time.monotonic()
        for worker in self.workers.values():
            if worker.state == "proving" and now - worker.since > PROVE_SECONDS:
                self._leave_out(
                    worker,
                    f"it did not prove within {PROVE_SECONDS:.0f} seconds that it can grade; "
                    "see that it is not busy with other work",
                )
        states = {worker.state for worker in self.workers.values()}
        patience = PROVE_SECONDS if "proving" in states else JOIN_SECONDS
        if "ready" in states:
            self.deserted = now
        elif (states == {"out"} and not self.began) or now - self.deserted > patience:
            graded = self.total - self.left
            if graded:
                raise ClassroomError(
                    f"The Dask scheduler at {self.address} has no worker left that can grade; "
                    f"{graded} of {self.total} submissions were graded and are kept. Start workers "
                    "and give the same command again."
                )
            if self.refused:
                raise ClassroomError(
                    f"No worker at {self.address} can grade, and nothing was graded: "
                    + "; ".join(f"{name}: {why}" for name, why in self.refused.items())
                    + "."
                )
            raise ClassroomError(
                f"The Dask scheduler at {self.address} has no workers, and nothing was graded; "
                f"start some with `dask worker {self.address}`."
            )

    def _leave_out(self, worker: _Worker, why: str) -> None:
        """Give a worker nothing more; what it held goes to the others."""
        worker.state = "out"
        worker.proof = None
        self.refused[worker.address] = why
        self.suspects.extend(worker.held.values())
        worker.held.clear()
        self.say(f"The worker {worker.address} is left out: {why}.")

    def _lost(self, worker: _Worker) -> Iterator[tuple[Submission, Graded | None]]:
        """A worker process is gone: what it held is graded elsewhere, or has done it twice."""
        # Whichever was graded is tried last: the others should not suffer from it again.
        for future, job in reversed(worker.held.items()):
            future.release()
            yield from self._failed(job)
        worker.held.clear()

    def _failed(self, job: _Job) -> Iterator[tuple[Submission, Graded | None]]:
        job.losses += 1
        if job.losses < ALLOWED_FAILURES:
            self.suspects.append(job)
        else:
            reason = "the grading process ended repeatedly"
            yield job.submission, ungraded(Task(job.submission), self.unit, self.release, reason)

    def _scheduler_lost(self) -> ClassroomError:
        graded = self.total - self.left
        return ClassroomError(
            f"The Dask scheduler at {self.address} is gone; {graded} of {self.total} submissions "
            "were graded and are kept. Start it again and give the same command."
        )

    # Submissions go and results come.

    def _submit(self, worker: _Worker, name: str, *arguments: bytes) -> Future[Any]:
        """Have one worker, and no other, call one of the functions above."""
        self.tasks += 1
        try:
            future = self.client.submit(
                self.caller,
                *(name, self.token, *arguments),
                key=f"{name}-{self.token}-{self.tasks}",
                workers=[worker.address],
                allow_other_workers=False,
                pure=False,
            )
            future.add_done_callback(self.finished.put)
        except Exception as error:
            if self.client.status == "running":
                raise ClassroomError(f"Dask takes no work: {_short(error)}.") from None
            raise self._scheduler_lost() from None
        return future

    def _hand_out(self) -> Iterator[tuple[Submission, Graded | None]]:
        """Give every ready worker what it may hold."""
        for count in range(HELD):
            for worker in list(self.workers.values()):
                if worker.state != "ready" or len(worker.held) != count:
                    continue
                if any(job.losses for job in worker.held.values()):
                    continue  # Alone, so that it is known who ended the process.
                job = yield from self._following()
                if job is None and not worker.held and self.suspects:
                    job = self.suspects.popleft()
                if job is not None:
                    fields = {**vars(job.submission), "path": None}
                    future = self._submit(
                        worker, "mark", json.dumps(fields).encode(), job.data or b""
                    )
                    worker.held[future] = job

    def _following(self) -> Generator[tuple[Submission, Graded | None], None, _Job | None]:
        """The next submission that was never sent, if there is one, with what it holds."""
        for submission in self.fresh:
            assert submission.path is not None
            try:
                if submission.path.stat().st_size <= MAX_FILE_BYTES:
                    return _Job(submission, submission.path.read_bytes())
            except OSError:
                pass
            yield submission, None
        return None

    def _take(self, future: Future[Any]) -> Iterator[tuple[Submission, Graded | None]]:
        """What a task has come to."""
        worker = next(
            (
                worker
                for worker in self.workers.values()
                if future is worker.proof or future in worker.held
            ),
            None,
        )
        if worker is None:
            return  # Of a worker that is gone or left out.
        answer = self._answer(future)
        if future is worker.proof:
            worker.proof = None
            if not isinstance(answer, dict) or answer.get("problem") != "":
                self._leave_out(worker, str((answer or {}).get("problem", "it gave no answer")))
            else:
                worker.state, self.began = "ready", True
            return
        job = worker.held.pop(future)
        if "problem" in answer:
            self.suspects.append(job)
            self._leave_out(worker, str(answer["problem"]))
        elif "unready" in answer:
            # Another process came to the worker's address before that was noticed.
            worker.held = {future: job, **worker.held}
            yield from self._lost(worker)
            self._ask_for_proof(worker)
        else:
            graded = _read(answer, job.submission)
            if graded is None:
                yield from self._failed(job)
            else:
                yield job.submission, graded

    def _answer(self, future: Future[Any]) -> dict[str, Any]:
        """The JSON that a task gave back; nothing where it failed."""
        if future.status in ("cancelled", "lost") and self.client.status != "running":
            raise self._scheduler_lost()
        try:
            answer = json.loads(future.result(timeout=ANSWER_SECONDS))
        except Exception:  # whatever happened to the worker, or the way to it
            if self.client.status != "running":
                raise self._scheduler_lost() from None
            return {}
        finally:
            future.release()
        return answer if isinstance(answer, dict) else {}


def _read(answer: dict[str, Any], submission: Submission) -> Graded | None:
    """A worker's answer, if it is the result of this submission and nothing else."""
    try:
        result = SubmissionResult.from_dict(answer["result"])
        if result.to_dict() != answer["result"] or result.student != submission.student:
            return None
        if not 0 <= result.score <= result.max_score or not isinstance(answer["notebook"], str):
            return None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return Graded(result, answer["notebook"])
