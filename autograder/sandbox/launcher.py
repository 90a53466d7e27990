"""Starts the sandbox: one bubblewrap process, the *fork server*, which imports PyTorch and forks.

The fork server sees the Python installation, its packages, `toolkit` and the few files that carry
out requests: no solutions, graders, misconceptions, submissions or home folders, and no network.
This module imports no PyTorch, so that the fork server can import its own while this process does.
"""

from __future__ import annotations

import concurrent.futures
import importlib.util
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autograder.common.paths import PACKAGE, ROOT
from autograder.sandbox.limits import Limits, SandboxUnavailable

COPIED = (
    *("batch.py", "executor.py", "forbidden_calls.py"),
    *("fork_server.py", "nesting.py", "side_effects.py", "wire.py", "worker.py"),
)
OURS = ("autograder", "solutions", "toolkit", "exercises", "book", "tests")
START_SECONDS = 120.0  # a cold disk and a busy machine
FIRST_UID, UIDS = 61200, 4000  # above people's and below `nobody`

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
            for place in dict.fromkeys([prefix, os.path.realpath(prefix)]):
                self.show(Path(place).resolve(), place)
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
        return [*_namespaces(bwrap, root), *self.options, *ends], inside


def _namespaces(bwrap: str, root: bool) -> list[str]:
    """The beginning of bubblewrap's command line: what is the sandbox's own, and what it may do."""
    start = [bwrap, "--die-with-parent", "--new-session", "--unshare-ipc", "--unshare-pid"]
    start += ["--unshare-net", "--unshare-uts", "--unshare-cgroup-try", "--clearenv"]
    if root:
        # Without a user namespace, because in one root would stay root outside; the fork server
        # leaves for an unused user id before it does anything else.
        start += ["--hostname", "sandbox", "--cap-drop", "ALL"]
        return [*start, "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    return [*start, "--unshare-user", "--uid", str(FIRST_UID), "--gid", str(FIRST_UID)]


def _ways() -> tuple[str, ...]:
    """How bubblewrap can be started by this user, the better way first."""
    return ("root", "user") if os.geteuid() == 0 else ("user",)


def _refused(refusals: Sequence[str]) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"bubblewrap cannot isolate student code here ({'; '.join(refusals)}): "
        "allow unprivileged user namespaces, or grade with --unsafe-no-sandbox if "
        "you trust every submission"
    )


def _installed() -> str:
    """The path of bubblewrap.

    Raises:
        SandboxUnavailable: this is not Linux, or it is not installed.
    """
    if not sys.platform.startswith("linux"):
        raise SandboxUnavailable(
            "the sandbox needs Linux; grade with --unsafe-no-sandbox if you trust every submission"
        )
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxUnavailable(MISSING)
    return bwrap


def require_sandbox() -> None:
    """Try in some milliseconds whether student code can be isolated on this machine.

    Raises:
        SandboxUnavailable: bubblewrap is missing or refused.
    """
    bwrap = _installed()
    refusals = []
    for way in _ways():
        command = [*_namespaces(bwrap, way == "root"), "--ro-bind", "/", "/"]
        command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", bwrap, "--version"]
        try:
            tried = subprocess.run(
                command, capture_output=True, timeout=START_SECONDS, check=False, text=True
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            refusals.append(str(error))
            continue
        if tried.returncode == 0:
            return
        lines = tried.stderr.strip().splitlines()
        refusals.append(lines[-1].strip() if lines else "the sandbox did not start")
    raise _refused(refusals)


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
    """One fork server, from which submissions are forked. Use it as a context manager.

    Args:
        limits: what each submission may use unless its session says otherwise.
        unsafe: run without bubblewrap: time and memory limits hold, secrets do not.
        hide: folders that stay invisible even where they lie below something visible.
        given: a module of the course's own that notebooks may import as `given`.
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
        given: Path | None = None,
        nested: bool = True,
        apart: bool = False,
    ) -> None:
        self.limits = limits or Limits()
        self.unsafe = unsafe
        self.hide = [ROOT, *(Path(path) for path in hide)]
        self.given = given
        self.wanted_nested = nested
        self.apart = apart
        self.hello: dict[str, Any] = {}
        self.start_seconds = 0.0
        self.launched = threading.Event()  # its Python has been started, or cannot be
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
        """Start the fork server and wait until it is ready. Does nothing when it runs.

        A process that was forked since shares the fork server of the one it comes from.
        """
        try:
            self._begin()
        finally:
            self.launched.set()

    def _begin(self) -> None:
        with self._lock:
            if self._owner != os.getpid() and self._control is not None:
                return
            if self._process is not None and self._process.poll() is None:
                return
            self._stop()
            bwrap = "" if self.unsafe or self.apart else _installed()
            began = time.monotonic()
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="autograder-view-"))
                _build_view(self._folder, self.given)
            if self.apart:
                self._folder.chmod(0o755)
                self._start("apart")
            elif self.unsafe:
                self._start("unsafe")
            else:
                refusals = []
                for way in _ways():
                    try:
                        self._start(way, bwrap)
                        break
                    except SandboxUnavailable as refusal:
                        refusals.append(str(refusal))
                else:
                    raise _refused(refusals)
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
        command += [_python(), "-P", "-s", "-S", "-B", f"{view}/autograder/sandbox/fork_server.py"]
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
                self.launched.set()
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

    def fork(
        self, limits: Limits, words: Iterable[str] = ()
    ) -> tuple[socket.socket, socket.socket]:
        """A new worker: the socket that leads to it and the one that leads to its keeper.

        Args:
            limits: what the worker may use.
            words: those of `WARM_WORDS` in its notebook. They decide what is imported beforehand,
                for this worker and all later ones, and nothing else.

        Raises:
            SandboxUnavailable: the fork server is gone and cannot be started again.
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
            # From here on this process has a fork server and a folder of its own.
            self._owner, self._process, self._folder = os.getpid(), None, None
        if self._process is not None:
            # bubblewrap takes everything inside with it; keepers outside of one end by themselves.
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End the fork server and with it every submission."""
        with self._lock:
            self._stop()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None


def _build_view(folder: Path, given: Path | None) -> None:
    """The files that the sandbox sees instead of the repository."""
    package = folder / "grader" / "autograder"
    inside = package / "sandbox"
    inside.mkdir(parents=True)
    (package / "__init__.py").write_text(STUB)
    (inside / "__init__.py").touch()
    for name in COPIED:
        shutil.copyfile(PACKAGE / "sandbox" / name, inside / name)
    toolkit = ROOT / "toolkit"
    if toolkit.is_dir():
        shutil.copytree(
            toolkit, folder / "grader" / "toolkit", ignore=shutil.ignore_patterns("__pycache__")
        )
    if given is not None and given.is_file():
        shutil.copyfile(given, folder / "grader" / "given.py")
    etc = folder / "etc"
    etc.mkdir()
    (etc / "passwd").write_text("student:x:61200:61200:student:/tmp/home:/usr/sbin/nologin\n")
    (etc / "group").write_text("student:x:61200:\n")
    # Read by another user than the one who wrote it, whatever the umask says.
    for path in [folder / "grader", etc, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
