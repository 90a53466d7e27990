"""Student code in a sandbox, seen from the trusted process: requests go in, outcomes come out.

A `Sandbox` owns one bubblewrap process, the *zygote*, which has imported PyTorch and sees the
Python installation, its packages, `toolkit` and the few files that carry out requests: no
solutions, graders, misconceptions, submissions or home folders, and no network. A `Session` is
one submission: a child forked from the zygote in namespaces of its own, with limits on time,
memory, processes, files and output (see `zygote.py`).

Whatever student code does, a session answers with an outcome: a loop without end is a "timeout",
a dead process a "crash", too much memory "memory", and rubbish on the wire "protocol".
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib.util
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from autograder import wire, zygote
from autograder.cells import Cell
from autograder.paths import PACKAGE, ROOT

Outcome = dict[str, Any]
Request = dict[str, Any]

COPIED = ("executor.py", "wire.py", "worker.py", "zygote.py")
OURS = ("autograder", "solutions", "toolkit", "exercises", "book", "tests")
START_SECONDS = 120.0  # a cold disk and a busy machine
END_SECONDS = 30.0
MESSAGE_CHARACTERS = 2000
FIRST_UID, UIDS = 61200, 4000  # above people's and below `nobody`
# Words for which the zygote knows what to import; see `zygote.warm_up`.
WARM_WORDS = ("matplotlib", "broadcast_shapes", "assert_close", "optim.")
SHORTEST_CALL = 2.0  # what is left of a call's limit after its function has hung repeatedly
# A busy machine stretches time limits by what a submission waited for a core, up to this factor.
MOST_STRETCH = 10.0
RESTART_SECONDS = 0.05  # what a new worker costs the notebook that has ended the one before it
WORTH_WAITING = 0.02  # the part of a limit below which a remainder is not waited for

MISSING = (
    "bubblewrap is missing: install it with `sudo apt-get install bubblewrap`, "
    "or grade with --unsafe-no-sandbox if you trust every submission"
)

STUB = '''"""What a graded notebook sees of the autograder: nothing that could grade."""


def checks_for(*_, **__):
    """A `check` that does nothing; the real one works in the student's own notebook."""
    return _check


def _check(*_, **__):
    return None
'''


class SandboxUnavailable(Exception):
    """Student code cannot be isolated on this machine; says why and what to do."""


@dataclass(frozen=True)
class Limits:
    """What one submission may use. `processes` counts threads too; sizes are in bytes."""

    seconds_per_call: float = 10.0
    seconds_per_cell: float = 10.0
    seconds_total: float = 120.0
    memory_bytes: int = 2 << 30
    processes: int = 32
    file_bytes: int = 16 << 20
    output_bytes: int = 1 << 20
    answer_bytes: int = 64 << 20


@dataclass
class CellReport:
    """What became of one cell: "ok", "error", "timeout", "crash", "memory" or "protocol"."""

    cell: Cell
    status: str
    printed: str = ""
    error: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.status == "ok"


# ---------------------------------------------------------------------------------- launching

_launchers: dict[int, concurrent.futures.ThreadPoolExecutor] = {}
_launchers_lock = threading.Lock()


def _launch(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Start a process from a thread that lives as long as this process does.

    bubblewrap's `--die-with-parent` is about the thread that started it: begun in a thread of a
    pool, the sandbox would end with that thread.
    """
    with _launchers_lock:
        if os.getpid() not in _launchers:
            _launchers.clear()
            _launchers[os.getpid()] = concurrent.futures.ThreadPoolExecutor(
                1, thread_name_prefix="sandbox-launcher"
            )
        launcher = _launchers[os.getpid()]
    return launcher.submit(start).result()


def _package_folders() -> list[Path]:
    """The folders from which this Python imports installed packages, PyTorch's among them."""
    found = [Path(entry) for entry in sys.path if Path(entry).name.endswith("-packages")]
    for name in ("torch", "IPython"):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise SandboxUnavailable(
                f"{name} is not installed: run `pip install -r requirements.txt`"
            )
        found.append(Path(spec.origin).parent.parent)
    folders: list[Path] = []
    for path in found:
        if path.is_dir() and path.resolve() not in folders:
            folders.append(path.resolve())
    return folders


def _unused_uid() -> int:
    """A user id that belongs to nobody on this machine, other for each process of ours."""
    for step in range(UIDS):
        uid = FIRST_UID + (os.getpid() + step) % UIDS
        try:
            pwd.getpwuid(uid)
        except KeyError:
            return uid
    return 65534


class _Walls:
    """The command line of bubblewrap: what the sandbox sees, and from where it comes."""

    def __init__(self, view: Path, hide: Iterable[Path]) -> None:
        self.view = view
        self.hide = [Path(path).resolve() for path in hide]
        self.options: list[str] = []
        self.folders = {"/"}
        self.bound: list[tuple[Path, str]] = []

    def folder(self, path: str) -> None:
        """Make `path` and its parents, open to every user: bubblewrap's own are not."""
        parent = os.path.dirname(path)
        if path in self.folders:
            return
        self.folder(parent)
        self.folders.add(path)
        if not any(Path(path).is_relative_to(target) for _, target in self.bound):
            self.options += ["--perms", "0755", "--dir", path]

    def show(self, source: Path, target: str) -> None:
        """Let the sandbox read `source` at `target`."""
        if any(
            source.is_relative_to(shown) and target == str(Path(place) / source.relative_to(shown))
            for shown, place in self.bound
        ):
            return
        self.folder(os.path.dirname(target))
        self.options += ["--ro-bind", str(source), target]
        self.bound.append((source.resolve(), target))

    def cover(self) -> None:
        """Lay empty folders over what must not be seen although it lies in what is shown."""
        secrets = list(self.hide)
        for source, _ in self.bound:
            for site in {source, *source.glob("lib*/python3*/*-packages")}:
                if site.name.endswith("-packages"):
                    secrets += [site / name for name in OURS if (site / name).is_dir()]
        for secret in dict.fromkeys(secrets):
            for source, target in self.bound:
                if secret.is_relative_to(source):
                    place = str(Path(target) / secret.relative_to(source))
                    self.options += ["--perms", "0555", "--tmpfs", place, "--remount-ro", place]

    def command(self, bwrap: str, root: bool, packages: list[Path]) -> tuple[list[str], list[str]]:
        """The command up to the program to run, and where the packages are inside."""
        start = [bwrap, "--die-with-parent", "--new-session", "--unshare-ipc", "--unshare-pid"]
        start += ["--unshare-net", "--unshare-uts", "--unshare-cgroup-try", "--clearenv"]
        start += ["--hostname", "sandbox"]
        if root:
            # Without a user namespace, because in one root would stay root outside; the zygote
            # leaves for an unused user id before it does anything else.
            start += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        else:
            start += ["--unshare-user", "--uid", str(FIRST_UID), "--gid", str(FIRST_UID)]
            start = [item for item in start if item != "--hostname"]
            start.remove("sandbox")
        self.show(Path("/usr"), "/usr")
        for name in ("bin", "lib", "lib32", "lib64", "libx32", "sbin"):
            path = Path("/", name)
            if path.is_symlink():
                self.options += ["--symlink", os.readlink(path), str(path)]
            elif path.is_dir():
                self.show(path, str(path))
        for name in ("ld.so.cache", "alternatives"):
            if Path("/etc", name).exists():
                self.show(Path("/etc", name), f"/etc/{name}")
        if Path("/nix/store").is_dir():
            self.show(Path("/nix/store"), "/nix/store")
        for name in ("passwd", "group"):
            self.show(self.view / "etc" / name, f"/etc/{name}")
        for prefix in {sys.base_prefix, sys.base_exec_prefix}:
            # Both the path that was asked for and the one that it leads to.
            for path in dict.fromkeys([prefix, os.path.realpath(prefix)]):
                self.show(Path(path).resolve(), path)
        inside = []
        for number, path in enumerate(packages):
            inside.append(f"/packages/{number}")
            self.show(path, inside[-1])
        self.show(self.view / "grader", "/grader")
        self.cover()
        size = _sized(bwrap)
        ends = ["--proc", "/proc", "--dev", "/dev"]
        ends += ["--dev-bind", "/dev/null", "/dev/zero"]  # mapped, it is memory that nobody counts
        ends += [*size, "--perms", "1777", "--tmpfs", "/tmp"]
        ends += [*size, "--perms", "1777", "--tmpfs", "/dev/shm"]
        ends += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]
        return [*start, *self.options, *ends], inside


def _sized(bwrap: str) -> list[str]:
    """The option that bounds a memory file system, where this bubblewrap has it."""
    shown = subprocess.run([bwrap, "--help"], capture_output=True, text=True, check=False)
    return ["--size", str(256 << 20)] if "--size" in shown.stdout + shown.stderr else []


def _python() -> str:
    """The interpreter itself rather than a link to it in a virtual environment."""
    return os.path.realpath(sys.executable)


ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",
    "USER": "student",
    "LOGNAME": "student",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "MPLBACKEND": "Agg",
    "MPLCONFIGDIR": "/tmp",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "MALLOC_ARENA_MAX": "2",
}


class Sandbox:
    """One zygote, from which submissions are forked. Use it as a context manager.

    Args:
        limits: what each submission may use unless its session says otherwise.
        unsafe: run without bubblewrap: time and memory limits hold, secrets do not.
        hide: folders that stay invisible even where they lie below something visible.
        nested: False starts a sandbox of its own for every worker, as is done by itself where
            the machine refuses namespaces within the sandbox; slower by the import of PyTorch.
        apart: for a container that refuses bubblewrap and holds secrets only root may read: run as
            a user who owns nothing, with limits and filter, and no walls; needs root.

    Raises:
        SandboxUnavailable: on entering, when bubblewrap is missing or refused.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        unsafe: bool = False,
        hide: Iterable[Path | str] = (),
        nested: bool = True,
        apart: bool = False,
    ) -> None:
        self.limits = limits or Limits()
        self.unsafe = unsafe
        self.hide = [ROOT, *(Path(path) for path in hide)]
        self.wanted_nested = nested
        self.apart = apart
        self.hello: dict[str, Any] = {}
        self.start_seconds = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._folder: Path | None = None
        self._used = False
        self._owner = os.getpid()
        self._lock = threading.RLock()

    def __enter__(self) -> Sandbox:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def nested(self) -> bool:
        """Whether every submission has namespaces of its own within one sandbox."""
        return bool(self.hello.get("nested"))

    def start(self) -> None:
        """Start the zygote and wait until it is ready. Does nothing when it runs.

        A process that was forked since shares the zygote of the one it comes from.
        """
        with self._lock:
            if self._owner != os.getpid() and self._control is not None:
                return
            if self._process is not None and self._process.poll() is None:
                return
            self._stop()
            if not self.unsafe and not sys.platform.startswith("linux"):
                raise SandboxUnavailable(
                    "the sandbox needs Linux; grade with --unsafe-no-sandbox if you trust "
                    "every submission"
                )
            began = time.monotonic()
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="autograder-view-"))
                _build_view(self._folder)
            if self.apart:
                self._folder.chmod(0o755)
                self._start("apart")
            elif self.unsafe:
                self._start("unsafe")
            else:
                bwrap = shutil.which("bwrap")
                if bwrap is None:
                    raise SandboxUnavailable(MISSING)
                refusals = []
                for way in ("root", "user") if os.geteuid() == 0 else ("user",):
                    try:
                        self._start(way, bwrap)
                        break
                    except SandboxUnavailable as refusal:
                        refusals.append(str(refusal))
                else:
                    raise SandboxUnavailable(
                        f"bubblewrap cannot isolate student code here ({'; '.join(refusals)}): "
                        "allow unprivileged user namespaces, or grade with --unsafe-no-sandbox if "
                        "you trust every submission"
                    )
            self._used = False
            self.start_seconds = time.monotonic() - began

    def _start(self, way: str, bwrap: str = "") -> None:
        assert self._folder is not None
        packages = _package_folders()
        view, inside = str(self._folder / "grader"), [str(path) for path in packages]
        command: list[str] = []
        environment = dict(ENVIRONMENT)
        if way not in ("unsafe", "apart"):
            walls = _Walls(self._folder, self.hide)
            command, inside = walls.command(bwrap, way == "root", packages)
            view = "/grader"
            for name, value in environment.items():
                command += ["--setenv", name, value]
        # PYTHONHASHSEED is heard, which -I would not allow; everything else of -I holds.
        command += [_python(), "-P", "-s", "-S", "-B", f"{view}/autograder/zygote.py"]
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        plan = {
            "control": theirs.fileno(),
            "uid": _unused_uid() if way in ("root", "apart") else None,
            "view": view,
            "packages": inside,
            "sandboxed": way != "unsafe",
            "nested": way not in ("unsafe", "apart") and self.wanted_nested,
        }
        with tempfile.TemporaryFile() as said:
            try:
                with theirs:
                    self._process = _launch(
                        lambda: subprocess.Popen(
                            [*command, json.dumps(plan)],
                            stdin=subprocess.DEVNULL,
                            stdout=said,
                            stderr=said,
                            env=environment,
                            cwd="/",
                            pass_fds=[theirs.fileno()],
                        )
                    )
                self._control = ours
                ours.settimeout(START_SECONDS)
                try:
                    hello = ours.recv(1 << 16)
                except TimeoutError:
                    hello = b""
                if not hello:
                    self._stop()
                    said.seek(0)
                    lines = said.read(1 << 16).decode("utf-8", "replace").strip().splitlines()
                    raise SandboxUnavailable(
                        lines[-1].strip() if lines else "the sandboxed Python did not start"
                    )
            except OSError as error:
                self._stop()
                raise SandboxUnavailable(f"the sandbox did not start: {error}") from None
        self.hello = {**json.loads(hello), "way": way}

    def session(
        self, cells: Sequence[Cell], limits: Limits | None = None, *, watched: bool = True
    ) -> Session:
        """A submission whose definitions are those of `cells`. Nothing runs before `load`.

        Only code of which it is known that it calls no forbidden function need not be watched.
        """
        return Session(self, cells, limits or self.limits, watched)

    def fork(
        self, limits: Limits, words: Iterable[str] = ()
    ) -> tuple[socket.socket, socket.socket]:
        """A new worker: the socket that leads to it and the one that leads to its keeper.

        Args:
            limits: what the worker may use.
            words: those of `WARM_WORDS` in its notebook. They decide what is imported beforehand,
                for this worker and all later ones, and nothing else.

        Raises:
            SandboxUnavailable: the zygote is gone and cannot be started again.
        """
        with self._lock:
            if self._used and not self.unsafe and not self.nested:
                self._stop()  # without inner namespaces a sandbox serves only one worker
            message = json.dumps({"limits": asdict(limits), "words": list(words)}).encode()
            for attempt in (1, 2):
                self.start()
                assert self._control is not None
                worker, worker_end = socket.socketpair()
                status, status_end = socket.socketpair()
                with worker_end, status_end:
                    try:
                        self._control.settimeout(START_SECONDS)
                        socket.send_fds(
                            self._control,
                            [message],
                            [worker_end.fileno(), status_end.fileno()],
                        )
                        self._used = True
                        return worker, status
                    except OSError as error:
                        worker.close()
                        status.close()
                        self._stop()
                        if attempt == 2:
                            raise SandboxUnavailable(f"the sandbox ended: {error}") from None
            raise AssertionError("not reached")

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._owner != os.getpid():
            # From here on this process has a zygote and a folder of its own.
            self._owner, self._process, self._folder = os.getpid(), None, None
        if self._process is not None:
            # bubblewrap takes everything inside with it; keepers outside of one end by themselves.
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End the zygote and with it every submission."""
        with self._lock:
            self._stop()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None


def _build_view(folder: Path) -> None:
    """The files that the sandbox sees instead of the repository."""
    package = folder / "grader" / "autograder"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(STUB)
    for name in COPIED:
        shutil.copyfile(PACKAGE / name, package / name)
    toolkit = ROOT / "toolkit"
    if toolkit.is_dir():
        shutil.copytree(
            toolkit, folder / "grader" / "toolkit", ignore=shutil.ignore_patterns("__pycache__")
        )
    etc = folder / "etc"
    etc.mkdir()
    (etc / "passwd").write_text("student:x:61200:61200:student:/tmp/home:/usr/sbin/nologin\n")
    (etc / "group").write_text("student:x:61200:\n")
    # Read by another user than the one who wrote it, whatever the umask says.
    for path in [folder / "grader", etc, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


# ---------------------------------------------------------------------------------- sessions


@dataclass(frozen=True)
class _End:
    """How a worker ended: the kind of outcome, in words, and what it had printed."""

    kind: str
    message: str
    printed: str = ""


class Answer:
    """What came back for one request.

    `frame` holds the worker's own bytes, and is None where the worker gave no valid answer. They
    are read when the outcome is asked for: whoever knows the bytes already need not.
    """

    def __init__(self, kind: str, frame: bytearray | None, outcome: Outcome | None = None) -> None:
        self.kind = kind
        self.frame = frame
        self._outcome = outcome

    @property
    def outcome(self) -> Outcome:
        if self._outcome is None:
            assert self.frame is not None
            self._outcome = _read_outcome(self.frame)
        return self._outcome


def _read_outcome(frame: bytearray) -> Outcome:
    return clean_outcome(wire.decode(frame, bounds=wire.ANSWER))


def request_frame(request: Request) -> bytes:
    """The message that carries a request to any worker.

    Raises:
        ValueError: the request cannot be sent, which is the caller's mistake.
    """
    try:
        return wire.encode({"do": "execute", "request": request}, strides=True)
    except wire.WireError as error:
        raise ValueError(f"the request cannot be sent: {error}") from None


class _Line:
    """The socket to a worker, for whom time stands still while others have its core.

    It is used in place of the socket by `wire`, which is told of no time limit.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.deadline = 0.0
        self.more: Callable[[], float] = lambda: 0.0

    def allow(self, seconds: float, more: Callable[[], float]) -> None:
        """End in `seconds`; then, as long as `more` says so, that many seconds later."""
        self.deadline = time.monotonic() + seconds
        self.more = more

    def settimeout(self, seconds: float | None) -> None:
        """The time limit is that of `allow`."""

    def recv(self, count: int) -> bytes:
        return self._patiently(self.sock.recv, count)

    def recv_into(self, view: memoryview) -> int:
        return self._patiently(self.sock.recv_into, view)

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._patiently(self.sock.send, view) :]

    def _patiently(self, action: Callable[[Any], Any], argument: Any) -> Any:
        left = self.deadline - time.monotonic()
        while left > 0:
            self.sock.settimeout(left)
            try:
                return action(argument)
            except TimeoutError:
                left = self.more()
                self.deadline = time.monotonic() + left
        # It may be this process that had to wait: what has come has come in time.
        self.sock.settimeout(0)
        try:
            return action(argument)
        except BlockingIOError:
            raise TimeoutError from None

    def close(self) -> None:
        self.sock.close()


def _in_queue() -> float:
    """Seconds for which this thread has waited for a core; 0 where the kernel does not say."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_bytes().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


class _Ended(Exception):
    def __init__(self, end: _End) -> None:
        super().__init__(end.message)
        self.end = end


class Session:
    """One submission's code, running. For one thread at a time."""

    def __init__(
        self, sandbox: Sandbox, cells: Sequence[Cell], limits: Limits, watched: bool = True
    ) -> None:
        self.sandbox = sandbox
        self.cells = list(cells)
        self.words = [word for word in WARM_WORDS if any(word in cell.source for cell in cells)]
        self.watched = watched
        self.limits = limits
        self.reports: list[CellReport] = []
        self.restarts = 0
        self._elapsed = 0.0  # seconds in which this session's workers were waited for
        self._waited = 0.0  # seconds in which the present worker had no core, as far as is known
        self._waited_before = 0.0  # the same of the workers before it
        self._queued = 0.0  # how long we ourselves had waited for a core when the worker began
        self._charged = 0.0  # seconds for what its conduct costs outside of its workers
        self._used_up = False  # whether the time for all of it is over
        self._loaded = False
        self._skip: set[int] = set()
        self._worker: _Line | None = None
        self._status: socket.socket | None = None
        self._number = 0
        self._created: dict[int, tuple[Request, bytes]] = {}
        self._live: set[int] = set()
        self._changed: set[int] = set()
        self._hung: dict[str, int] = {}

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What callers use.

    @property
    def spent(self) -> float:
        """Seconds of its time that this submission has used; waiting for a core is not its own."""
        return (
            max(self._elapsed - self._waited_before - self._waited, self._elapsed / MOST_STRETCH)
            + self._charged
        )

    def load(self) -> list[CellReport]:
        """Run the cells, one after the other in one namespace, and report on each.

        A cell that fails or hangs does not keep the others from running. What a hanging or
        killed cell had defined before is not kept.
        """
        if not self._loaded:
            self._loaded = True
            self._replay(reporting=True)
        return self.reports

    def execute(self, request: Request) -> Outcome:
        """The outcome of one request; loads the cells first if that has not been done.

        Raises:
            ValueError: the request itself cannot be sent, which is the caller's mistake.
        """
        return self.ask(request, request_frame(request)).outcome

    def ask(
        self,
        request: Request,
        frame: bytes,
        kind_of: Callable[[bytearray], str | None] = lambda frame: None,
    ) -> Answer:
        """Like `execute`, with the message to send, made beforehand by `request_frame`.

        Args:
            kind_of: says of an answer's bytes of which kind the outcome is, where they were read
                before; they are not read again then.
        """
        if not self._loaded:
            self.load()
        try:
            return self._execute(request, frame, kind_of)
        except _Ended as ended:
            outcome = {"kind": ended.end.kind, "message": ended.end.message}
            return Answer(ended.end.kind, None, outcome)

    def close(self) -> None:
        """End every process of the submission."""
        if self._worker is not None:
            self._stop()

    # How it is done.

    def _execute(
        self, request: Request, frame: bytes, kind_of: Callable[[bytearray], str | None]
    ) -> Answer:
        if self._worker is None:
            self._replay(reporting=False)
        operation, handle = request["op"], request.get("handle")
        used = [int(name) for name in request.get("modules", ())]
        if operation != "create":
            used.append(handle)
        for needed in self._with_parts(used):
            if needed not in self._created or needed in self._live:
                continue
            name = self._created[needed][0]["name"]
            if needed in self._changed:
                message = f"the trained {name} was lost when its process had to be ended"
                return Answer("crash", None, {"kind": "crash", "message": message})
            again = self._ask(*self._created[needed], kind_of=lambda frame: None)
            if again.kind != "value":
                # Not an answer to this request, and so nothing to be remembered as one.
                return Answer(again.kind, None, again.outcome)
            self._live.add(needed)
        answer = self._ask(request, frame, kind_of)
        if answer.kind == "value" and operation == "create":
            self._created[handle] = request, frame
            self._live.add(handle)
            self._changed.discard(handle)
        if operation == "step":
            self._changed.add(handle)
        if request.get("autograd"):
            self._changed.update(used)
        return answer

    def _with_parts(self, handles: list[int | None]) -> Iterator[int | None]:
        """The handles, each after those that it was made from."""
        for handle in handles:
            if handle in self._created:
                parts = self._created[handle][0].get("modules", ())
                yield from self._with_parts([int(part) for part in parts])
            yield handle

    def _ask(
        self, request: Request, frame: bytes, kind_of: Callable[[bytearray], str | None]
    ) -> Answer:
        """One request to the worker there is; it is gone afterwards if it did not behave."""
        if self._worker is None:
            self._replay(reporting=False)
        name = str(request.get("name") or request.get("method") or request["op"])
        if request["op"] not in ("call", "create") and request.get("handle") in self._created:
            name = f"{self._created[request['handle']][0]['name']}.{name}"
        seconds = self.limits.seconds_per_call
        if name in self._hung:
            seconds = max(seconds / 2 ** self._hung[name], min(seconds, SHORTEST_CALL))
        try:
            reply = self._exchange(frame, seconds)
            kind = kind_of(reply)
            outcome = self._read(reply) if kind is None else None
        except _Ended as ended:
            if ended.end.kind == "timeout":
                self._hung[name] = self._hung.get(name, 0) + 1
            raise
        except wire.WireError as error:
            raise _Ended(self._finish("protocol", f"the answer is not valid: {error}")) from None
        answer = Answer(outcome["kind"] if outcome else str(kind), reply, outcome)
        if answer.kind == "memory":
            # Whatever filled the memory may still hold it.
            self._stop()
        return answer

    def _read(self, reply: bytearray) -> Outcome:
        """The outcome in an answer. To read a large one takes time, which is the notebook's."""
        if len(reply) <= wire.AT_ONCE:
            return _read_outcome(reply)
        began = time.thread_time()
        try:
            return _read_outcome(reply)
        finally:
            self._charged += time.thread_time() - began

    def _replay(self, reporting: bool) -> None:
        """Run the cells in a new worker, again from the start whenever one kills it."""
        reports: dict[int, CellReport] = {}
        while True:
            self._begin()
            for index, cell in enumerate(self.cells):
                if index in self._skip:
                    continue
                report = self._run_cell(cell)
                # The first report on a cell stands: later runs are only to get its names back.
                reports.setdefault(index, report)
                if self._worker is None:
                    self._skip.add(index)
                    if not reporting:
                        self.reports[index] = report
                    break
            else:
                break
            if self._exhausted():
                for index, cell in enumerate(self.cells):
                    words = "there was no time left for this cell"
                    reports.setdefault(index, CellReport(cell, "timeout", error=words))
                break
        if reporting:
            self.reports = [reports[index] for index in range(len(self.cells))]

    def _run_cell(self, cell: Cell) -> CellReport:
        began = self.spent
        try:
            message = {"do": "cell", "name": cell.name, "source": cell.source}
            message["watched"] = self.watched
            frame = self._exchange(wire.encode(message), self.limits.seconds_per_cell)
            reply = wire.decode(frame, bounds=wire.ANSWER)
            if type(reply) is not dict:
                raise wire.WireError("a cell's report has another form")
            status, error, printed = (reply.get(key) for key in ("status", "error", "printed"))
            if status not in ("ok", "error", "memory") or type(error) is not str:
                raise wire.WireError("a cell's report has another form")
            if type(printed) is not str:
                raise wire.WireError("what a cell printed is not text")
            if status == "memory":
                self._stop()
        except _Ended as ended:
            status, error, printed = ended.end.kind, ended.end.message, ended.end.printed
        except wire.WireError as fault:
            end = self._finish("protocol", f"the report is not valid: {fault}")
            status, error, printed = end.kind, end.message, end.printed
        return CellReport(
            cell=cell,
            status=status,
            printed=printed[: self.limits.output_bytes],
            error=error[:MESSAGE_CHARACTERS],
            seconds=self.spent - began,
        )

    def _exhausted(self) -> bool:
        if not self._used_up and self.spent >= self.limits.seconds_total:
            self._ask_waited(time.monotonic())
            self._used_up = self.spent >= self.limits.seconds_total
        return self._used_up

    def _ask_waited(self, since: float) -> float:
        """How long the worker has waited for a core since a moment, as its keeper knows it."""
        if self._status is None:
            return 0.0
        try:
            self._status.settimeout(END_SECONDS)
            self._status.sendall(zygote.SINCE.pack(since))
            size = zygote.WAITED.size
            if self._status.recv(1, socket.MSG_PEEK) != zygote.WAITED_MARK:
                return 0.0  # the worker has ended, and this is the report
            answer = self._status.recv(size, socket.MSG_WAITALL)
            _, waited, ever = zygote.WAITED.unpack(answer)
        except (OSError, zygote.struct.error):
            return 0.0
        self._waited = self._both_waited(ever)
        return waited

    def _both_waited(self, worker: float) -> float:
        """What a worker has waited, and we meanwhile, who are on the same busy machine."""
        return max(0.0, worker + max(0.0, _in_queue() - self._queued))

    def _begin(self) -> None:
        if self._exhausted():
            return
        if self._worker is not None:
            self._stop()
        self._number = 0
        self._live.clear()
        if self.restarts:
            self._charged += RESTART_SECONDS
        self.restarts += 1
        for attempt in (1, 2):
            self._queued = _in_queue()
            worker, self._status = self.sandbox.fork(self.limits, self.words)
            self._worker = _Line(worker)
            try:
                if wire.recv(worker, 1 << 10, START_SECONDS) == {"n": 0}:
                    return
                raise EOFError
            except (EOFError, OSError, wire.WireError):
                # A zygote that has just died is replaced by the next fork.
                self._finish("crash", "")
                if attempt == 2:
                    raise SandboxUnavailable("the sandbox's Python ends at once") from None

    def _exchange(self, frame: bytes, seconds: float) -> bytearray:
        """Send one message and wait for the frame that answers it.

        Raises:
            _Ended: there is no answer; the worker and all its processes are gone.
        """
        if self._exhausted():
            if self._worker is not None:
                self._stop()
            total = self.limits.seconds_total
            raise _Ended(_End("timeout", f"the notebook used up its {total:g} seconds before this"))
        assert self._worker is not None
        self._number += 1
        began = time.monotonic()
        spent = self._elapsed

        def more() -> float:
            """What is left of the limits once the time without a core is taken off."""
            waited = self._ask_waited(began)
            passed = time.monotonic() - began
            self._elapsed = spent + passed
            own = max(passed - waited, passed / MOST_STRETCH)
            total = self.limits.seconds_total - self.spent
            left = min(seconds - own, total)
            if left > WORTH_WAITING * seconds:
                return left
            self._used_up = total <= WORTH_WAITING * seconds
            return 0.0

        self._worker.allow(min(seconds, self.limits.seconds_total - self.spent), more)
        try:
            wire.send_numbered(self._worker, self._number, frame)
            number, reply = wire.recv_numbered(
                self._worker, self.limits.answer_bytes, bounds=wire.ANSWER
            )
            if number != self._number:
                raise wire.WireError("it answers another question")
            return reply
        except TimeoutError:
            raise _Ended(
                self._finish("timeout", f"it was still running after {seconds:g} seconds")
            ) from None
        except (EOFError, OSError):
            raise _Ended(self._finish("crash", "the Python process ended")) from None
        except wire.WireError as error:
            raise _Ended(self._finish("protocol", f"the answer is not valid: {error}")) from None
        finally:
            self._elapsed = spent + time.monotonic() - began

    def _finish(self, kind: str, message: str) -> _End:
        """End the worker, and say how it ended in the words of its keeper where it knows more."""
        report = self._stop(dead=kind == "crash")
        printed = report.get("printed", "")
        reason = report.get("reason", "")
        if "setup" in report:
            raise SandboxUnavailable(
                f"a submission could not be isolated ({report['setup']}); `python -m autograder "
                "doctor` says what this machine allows"
            )
        if kind == "crash":
            if reason == "memory":
                kind = "memory"
                message = "the code used more memory than it may have"
            elif reason == "processes":
                message = "the code started more processes than it may have"
            elif reason == "cpu":
                kind, message = "timeout", "the code used up its processor time"
            elif report.get("exit") == 71:
                kind, message = "memory", "the code asked for more memory than it may have"
            elif "signal" in report:
                with contextlib.suppress(ValueError):
                    name = signal.Signals(report["signal"]).name
                    message = f"the Python process was ended by the signal {name}"
            elif "exit" in report:
                message = f"the code ended the Python process with exit status {report['exit']}"
        return _End(kind, message, printed)

    def _stop(self, dead: bool = False) -> dict[str, Any]:
        """End every process of the worker and return the keeper's report (empty if none came)."""
        worker, status = self._worker, self._status
        self._worker = self._status = None
        self._live.clear()
        if worker is None or status is None:
            return {}
        report = b""
        with status:
            worker.close()
            try:
                if not dead:
                    status.shutdown(socket.SHUT_WR)
                deadline = time.monotonic() + END_SECONDS
                while time.monotonic() < deadline and len(report) < 1 << 24:
                    status.settimeout(max(0.001, deadline - time.monotonic()))
                    part = status.recv(1 << 20)
                    if not part:
                        break
                    report += part
            except OSError:
                pass
        while report.startswith(zygote.WAITED_MARK):  # an answer that nobody waited for any more
            report = report[zygote.WAITED.size :]
        try:
            parsed = json.loads(report) if report else {}
        except ValueError:
            parsed = {}
        parsed = parsed if isinstance(parsed, dict) else {}
        if "waited" in parsed:
            self._waited = self._both_waited(parsed["waited"])
        self._waited_before += self._waited
        self._waited = 0.0
        return parsed


# ---------------------------------------------------------------------------------- outcomes

_TEXTS = {
    "error": ("type", "message", "where"),
    "missing": ("message",),
    "todo": ("message",),
    "memory": ("message",),
    "protocol": ("message",),
}


def clean_outcome(raw: Any) -> Outcome:
    """The outcome that a worker sent, with exactly the keys of its kind and of the right types.

    Raises:
        wire.WireError: it has another form.
    """
    if type(raw) is not dict or type(raw.get("kind")) is not str:
        raise wire.WireError("an outcome has no kind")
    kind = raw["kind"]
    if kind == "value":
        mutated, grads, forbidden = (
            raw.get("mutated", []),
            raw.get("grads", {}),
            raw.get("forbidden", []),
        )
        for texts in (mutated, forbidden):
            if type(texts) is not list or any(type(text) is not str for text in texts):
                raise wire.WireError("the names in an outcome are not a list of texts")
        if type(grads) is not dict or not all(
            grad is None or isinstance(grad, torch.Tensor) for grad in grads.values()
        ):
            raise wire.WireError("the gradients in an outcome are not tensors")
        return {
            "kind": "value",
            "value": raw.get("value"),
            "mutated": mutated,
            "grads": grads,
            "forbidden": forbidden,
        }
    if kind not in _TEXTS:
        raise wire.WireError("an outcome is of no known kind")
    outcome: Outcome = {"kind": kind}
    for key in _TEXTS[kind]:
        text = raw.get(key, "")
        if type(text) is not str:
            raise wire.WireError("a message in an outcome is not text")
        outcome[key] = text[:MESSAGE_CHARACTERS]
    if kind == "error":
        types = raw.get("types", [])
        if type(types) is not list or any(type(name) is not str for name in types):
            raise wire.WireError("the types of an error are not a list of texts")
        outcome["types"] = types[:64]
    return outcome


# ---------------------------------------------------------------------------------- doctor


def probe() -> list[str]:
    """What of the sandbox works on this machine, one sentence each.

    Raises:
        SandboxUnavailable: none of it does; says why and what to do.
    """
    with Sandbox() as sandbox, sandbox.session([Cell("probe", "answer = 42", "probe")]) as session:
        hello = sandbox.hello
        version = subprocess.run(["bwrap", "--version"], capture_output=True, text=True).stdout
        if hello["way"] == "root":
            user = f"student code runs as the unused user id {hello['uid']}"
        else:
            user = "student code runs under your own user id, in a user namespace without rights"
        if hello["nested"]:
            inner = "every submission gets namespaces of its own, forked from one Python"
        else:
            inner = (
                "namespaces within the sandbox are refused, so that every submission starts a "
                f"Python of its own: slower ({hello['refused']})"
            )
        began = time.monotonic()
        reports = session.load()
        seconds = time.monotonic() - began
        if not all(report.ok for report in reports):
            raise SandboxUnavailable(f"a first cell did not run: {reports[0].error}")
        return [
            f"{version.strip() or 'bubblewrap'} works: no network, no files but Python's own",
            user,
            inner,
            "dangerous system calls are filtered"
            if hello["seccomp"]
            else "system calls are not filtered: the processor is neither x86-64 nor aarch64",
            f"the sandbox starts in {sandbox.start_seconds:.1f} s, a submission in {seconds:.2f} s",
        ]
