"""The process inside the sandbox that has imported PyTorch and forks a child per submission.

Run as a script by `launcher.py`; nothing of a student's ever runs in this process. For each
request on the control socket it forks a *keeper*, which makes fresh namespaces and an empty
memory file system and forks the *worker* as process 1 of the new process namespace. The worker
gives up every privilege and runs student code; the keeper watches the memory and the number of
its processes, and when the trusted process asks for it, or disappears, ends them all.

    trusted process ── control ──▶ fork server
          │  ├──────── status ───▶ keeper (outside the worker's namespaces)
          └──────────── frames ──▶ worker (student code)

This file is copied into the sandbox: it imports PyTorch and the standard library only.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import gc
import importlib
import json
import os
import platform
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

LIBC = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CLONE_NEWCGROUP = 0x02000000
EVERY_NAMESPACE = (
    CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET
)
MS_NOSUID, MS_NODEV, MS_RDONLY = 2, 4, 1
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP = 1, 4, 24
MADV_COLLAPSE = 25  # since Linux 6.1
HUGE_PAGE = 2 << 20
PR_SET_NO_NEW_PRIVS, PR_SET_CHILD_SUBREAPER, PR_SET_SECCOMP = 38, 36, 22

WATCH_SECONDS = 0.05
MEMORY_SLACK = 256 << 20  # the limit of one process speaks first, and in better words
SMALL_FILES = 4096  # files a submission may keep in its memory file system
# What the trusted process asks the keeper with, and what it is told: see `CoreWaits`.
SINCE = struct.Struct("<d")
WAITED = struct.Struct("<cddd")
WAITED_MARK = b"W"  # a report begins with a brace


class SetupError(Exception):
    """The isolation of a child could not be set up; says what failed."""


def call(name: str, *arguments: Any) -> int:
    """A function of libc that reports failure through errno."""
    result = getattr(LIBC, name)(*arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise SetupError(f"{name} failed: {os.strerror(code)}")
    return result


def prctl(option: int, value: int = 0) -> None:
    call("prctl", option, ctypes.c_ulong(value), 0, 0, 0)


def mount_tmpfs(path: str, options: str, flags: int = 0) -> None:
    """An empty memory file system at `path`."""
    call(
        "mount",
        b"tmpfs",
        path.encode(),
        b"tmpfs",
        ctypes.c_ulong(MS_NOSUID | MS_NODEV | flags),
        options.encode(),
    )


# ------------------------------------------------------------------------------- seccomp

# System calls that no exercise needs and that reach beyond what the other limits bound: other
# processes' memory, mounts and namespaces, memory that no process owns, large kernel interfaces.
REFUSED_SYSTEM_CALLS = {
    "x86_64": (
        101, 103, 134, 135, 153, 154, 155, 159, 161, 163, 164, 165, 166, 167, 168, 169, 170, 171,
        172, 173, 175, 176, 179, 29, 64, 68, 212, 216, 227, 240, 246, 248, 249, 250, 272, 278, 298,
        300, 303, 304, 305, 308, 310, 311, 312, 313, 319, 320, 321, 323, 424, 425, 426, 427, 428,
        429, 430, 431, 432, 433, 438, 440, 442, 443, 447,
    ),
    "aarch64": (
        39, 40, 41, 51, 60, 75, 89, 92, 97, 104, 105, 106, 112, 116, 117, 142, 161, 162, 170, 171,
        180, 186, 190, 194, 217, 218, 219, 224, 225, 241, 262, 264, 265, 266, 268, 270, 271, 272,
        273, 279, 280, 282, 294, 424, 425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 440, 442,
        443, 447,
    ),
}  # fmt: skip
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CLONE_CALL = {"x86_64": 56, "aarch64": 220}
SOCKET_CALL = {"x86_64": 41, "aarch64": 198}
MMAP_CALL = {"x86_64": 9, "aarch64": 222}
MAP_SHARED, MAP_ANONYMOUS = 0x01, 0x20
FCNTL_CALL = {"x86_64": 72, "aarch64": 25}
# F_SETLEASE, F_NOTIFY and F_SETDELEG: whoever opens the file next would have to wait for us.
FILE_LEASES = (1024, 1026, 1040)
CLONE3_CALL = 435
SOCKET_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97
LOAD, JUMP_EQUAL, JUMP_SET, JUMP_AT_LEAST, RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
OFFSET_NUMBER, OFFSET_ARCH = 0, 4
OFFSET_FIRST_ARGUMENT, OFFSET_SECOND_ARGUMENT, OFFSET_FOURTH_ARGUMENT = 16, 24, 40


def seccomp_program(machine: str) -> bytes | None:
    """The filter as classic BPF, or None for a machine whose call numbers are not known."""
    if machine not in REFUSED_SYSTEM_CALLS:
        return None
    # (code, value, where to go if true, if false); places are labels until all is laid out.
    code: list[tuple[int, int, str, str]] = [
        (LOAD, OFFSET_ARCH, "", ""),
        (JUMP_EQUAL, AUDIT_ARCH[machine], "", "kill"),
        (LOAD, OFFSET_NUMBER, "", ""),
    ]
    if machine == "x86_64":  # the x32 numbers of the same calls
        code.append((JUMP_AT_LEAST, 0x40000000, "kill", ""))
    code.append((JUMP_EQUAL, CLONE3_CALL, "enosys", ""))
    code.append((JUMP_EQUAL, CLONE_CALL[machine], "clone", ""))
    code.append((JUMP_EQUAL, SOCKET_CALL[machine], "socket", ""))
    code.append((JUMP_EQUAL, MMAP_CALL[machine], "mmap", ""))
    code.append((JUMP_EQUAL, FCNTL_CALL[machine], "fcntl", ""))
    code.extend((JUMP_EQUAL, number, "eperm", "") for number in REFUSED_SYSTEM_CALLS[machine])
    code.append((RETURN, ALLOW, "", ""))
    labels = {"clone": len(code)}
    code.append((LOAD, OFFSET_FIRST_ARGUMENT, "", ""))
    code.append((JUMP_SET, EVERY_NAMESPACE | CLONE_NEWCGROUP, "eperm", "allow"))
    labels["socket"] = len(code)
    code.append((LOAD, OFFSET_FIRST_ARGUMENT, "", ""))
    code.extend((JUMP_EQUAL, int(family), "allow", "") for family in SOCKET_FAMILIES)
    code.append((RETURN, ERRNO | EAFNOSUPPORT, "", ""))
    # Shared memory without a file stays when all but a page of it is unmapped: nobody's, uncounted.
    labels["mmap"] = len(code)
    code.append((LOAD, OFFSET_FOURTH_ARGUMENT, "", ""))
    code.append((JUMP_SET, MAP_ANONYMOUS, "", "allow"))
    code.append((JUMP_SET, MAP_SHARED, "eperm", "allow"))
    labels["fcntl"] = len(code)
    code.append((LOAD, OFFSET_SECOND_ARGUMENT, "", ""))
    code.extend((JUMP_EQUAL, command, "eperm", "") for command in FILE_LEASES)
    code.append((RETURN, ALLOW, "", ""))
    for label, action in {
        "allow": ALLOW,
        "eperm": ERRNO | EPERM,
        "enosys": ERRNO | ENOSYS,
        "kill": KILL,
    }.items():
        labels[label] = len(code)
        code.append((RETURN, action, "", ""))
    packed = []
    for place, (operation, value, yes, no) in enumerate(code):
        hop = [labels[label] - place - 1 if label else 0 for label in (yes, no)]
        packed.append(struct.pack("=HBBI", operation, hop[0], hop[1], value))
    return b"".join(packed)


def install_seccomp() -> bool:
    """Filter this process's system calls for good; False where no filter is known."""
    program = seccomp_program(platform.machine())
    if program is None:
        return False
    body = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HxxxxxxP", len(program) // 8, ctypes.addressof(body))
    holder = ctypes.create_string_buffer(header, len(header))
    call("prctl", PR_SET_SECCOMP, ctypes.c_ulong(2), holder, 0, 0)
    return True


# ------------------------------------------------------------------------------- confinement


def new_namespaces() -> None:
    """User, process, mount, IPC, host name and network namespaces of one's own."""
    uid, gid = os.getuid(), os.getgid()
    call("unshare", EVERY_NAMESPACE)
    # The kernel lets a process write its own maps only while it may be traced, which the
    # change of user namespace has just revoked.
    prctl(PR_SET_DUMPABLE, 1)
    for name, text in (
        ("uid_map", f"{uid} {uid} 1"),
        ("setgroups", "deny"),
        ("gid_map", f"{gid} {gid} 1"),
        ("oom_score_adj", "1000"),
    ):
        try:
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        except OSError as error:
            if name != "oom_score_adj":
                raise SetupError(f"writing {name} failed: {error.strerror}") from None
    prctl(PR_SET_DUMPABLE, 0)


def private_files(file_bytes: int) -> None:
    """Fresh memory file systems wherever a submission can write, and no /proc."""
    # What is in a memory file system counts for nobody's memory limit, so it is small.
    size = max(4 * file_bytes, 1 << 20)
    mount_tmpfs("/tmp", f"size={size},nr_inodes={SMALL_FILES},mode=700")
    mount_tmpfs("/dev/shm", f"size={size},nr_inodes={SMALL_FILES},mode=700")
    mount_tmpfs("/proc", "size=4k,nr_inodes=2,mode=555", MS_RDONLY)


def drop_privileges() -> None:
    """No capabilities in any set, and none to be gained by any exec."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except SetupError:  # beyond the last one, or not permitted, as without namespaces
            break
    header = struct.pack("=Ii", 0x20080522, 0)
    call("capset", header, bytes(24))


def set_limits(limits: dict[str, Any], mapped: int, data: int, sandboxed: bool) -> None:
    """Resource limits; memory counts on top of the bytes that the fork server has mapped itself."""
    memory = int(limits["memory_bytes"])
    bounds = {
        resource.RLIMIT_AS: mapped + memory,
        resource.RLIMIT_DATA: data + memory,
        resource.RLIMIT_CPU: int(limits["seconds_total"]) + 5,
        resource.RLIMIT_FSIZE: int(limits["file_bytes"]),
        resource.RLIMIT_NOFILE: 128,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 1 << 20,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 256,
    }
    if sandboxed:
        # Elsewhere the limit would count every process that the instructor has running.
        bounds[resource.RLIMIT_NPROC] = int(limits["processes"])
    for which, value in bounds.items():
        hard = resource.getrlimit(which)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(which, (value, value))


def _read(path: str, directory: int | None) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        return os.read(descriptor, 1 << 16)
    finally:
        os.close(descriptor)


# ------------------------------------------------------------------------------- waiting


class _Sample(NamedTuple):
    """What was known of a submission's threads at one moment; all in seconds."""

    time: float
    threads: dict[str, tuple[float, float]]  # of those alive: time on a core, time in the queue
    gone: float  # time that threads which have ended had been on a core
    met: int  # threads ever seen
    started: int  # the last process number that was given to anybody


class CoreWaits:
    """How long a submission has waited for a core that others were using.

    A time limit is on the clock of the wall. On a busy machine a process may be ready to run for
    a long time before it does, and that is not the student's doing. What a submission's own
    threads keep from each other does not count: from the longest wait is taken off what all the
    others have run. Those that lived too shortly to be seen are charged as much as they may have.
    """

    def __init__(self, proc: int, seconds: float, alone: bool) -> None:
        """Looks through `proc`, remembers `seconds`; `alone` if nobody else starts processes."""
        self.proc = proc
        self.alone = alone
        self.first = _Sample(time.monotonic(), {}, 0.0, 0, self._started())
        self.samples: collections.deque[_Sample] = collections.deque(
            [self.first], maxlen=int(seconds / WATCH_SECONDS) + 16
        )
        self.pinned: tuple[float, _Sample] | None = None

    def look(self, pids: Iterable[str]) -> None:
        """Take down how things stand with these processes."""
        last, now = self.samples[-1], time.monotonic()
        threads: dict[str, tuple[float, float]] = {}
        for pid in pids:
            # A process may end while it is looked at; so may its threads.
            with contextlib.suppress(OSError, ValueError, IndexError):
                tasks = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.proc)
                try:
                    for task in os.listdir(tasks):
                        threads[task] = self._thread(tasks, task, last, now)
                finally:
                    os.close(tasks)
        gone = last.gone + sum(
            ran for name, (ran, _) in last.threads.items() if name not in threads
        )
        met = last.met + sum(name not in last.threads for name in threads)
        self.samples.append(_Sample(now, threads, gone, met, self._started()))

    def _thread(self, tasks: int, task: str, last: _Sample, now: float) -> tuple[float, float]:
        try:
            counted = _read(f"{task}/schedstat", tasks).split()
            return int(counted[0]) / 1e9, int(counted[1]) / 1e9
        except FileNotFoundError:
            # A kernel that does not count: a thread that is ready to run and does not, waits.
            fields = _read(f"{task}/stat", tasks).rpartition(b")")[2].split()
            ran = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            before, waited = last.threads.get(task, (0.0, 0.0))
            if fields[0] == b"R":
                waited += max(0.0, now - last.time - (ran - before))
            return ran, waited

    def _started(self) -> int:
        if self.alone:
            with contextlib.suppress(OSError):
                return int(_read("loadavg", self.proc).split()[-1])
        return 0

    def since(self, moment: float) -> float:
        """The seconds waited since a moment of the monotonic clock."""
        if self.pinned is None or self.pinned[0] != moment:
            before = [sample for sample in self.samples if sample.time <= moment]
            self.pinned = moment, before[-1] if before else self.samples[0]
        return max(0.0, self._between(self.pinned[1], self.samples[-1]))

    def ever(self) -> float:
        """The seconds waited since the beginning; negative where it kept others waiting."""
        return self._between(self.first, self.samples[-1])

    def ran(self) -> float:
        """The seconds of processor that all threads together have used."""
        last = self.samples[-1]
        return last.gone + sum(ran for ran, _ in last.threads.values())

    def _between(self, first: _Sample, last: _Sample) -> float:
        def change(name: str, which: int) -> float:
            return last.threads[name][which] - first.threads.get(name, (0.0, 0.0))[which]

        total = last.gone + sum(ran for ran, _ in last.threads.values())
        total -= first.gone + sum(ran for ran, _ in first.threads.values())
        unseen = max(0, last.started - first.started - (last.met - first.met))
        longest = max(
            (change(name, 1) - (total - change(name, 0)) for name in last.threads), default=0.0
        )
        return longest - WATCH_SECONDS * unseen


# ------------------------------------------------------------------------------- keeper


class Keeper:
    """Forks the worker of one submission, watches its processes and ends them."""

    def __init__(
        self,
        worker: socket.socket,
        status: socket.socket,
        limits: dict[str, Any],
        plan: dict[str, Any],
    ) -> None:
        self.worker = worker
        self.status = status
        self.limits = limits
        self.plan = plan
        self.nested = bool(plan["nested"])
        self.pid = 0
        self.reason = ""
        self.folder = ""

    def run(self) -> None:
        """Never returns before every process of the submission is gone."""
        report: dict[str, Any] = {}
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            prctl(PR_SET_CHILD_SUBREAPER, 1)
            # Kept open, because the worker's /proc, which is also ours, is about to be empty.
            self.proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if self.nested:
                new_namespaces()
                private_files(int(self.limits["file_bytes"]))
                self.folder = "/tmp"
            else:
                self.folder = tempfile.mkdtemp(prefix="submission-")
            for name in ("work", "home"):
                os.mkdir(os.path.join(self.folder, name), 0o700)
            self.output = self._output_file()
            own = os.readlink("self", dir_fd=self.proc)
            self.baseline = self._memory(own)
            fields = [int(field) for field in _read(f"{own}/statm", self.proc).split()]
            page = resource.getpagesize()
            self.mapped, self.data = fields[0] * page, fields[5] * page
            self.pid = os.fork()
            if self.pid == 0:
                self._become_worker()
            self.worker.close()
            report = self._watch()
        except (SetupError, OSError) as error:
            report = {"setup": str(error)}
            self._end()
        try:
            report["printed"] = self._printed()
            if self.folder and not self.nested:
                shutil.rmtree(self.folder, ignore_errors=True)
            self.status.settimeout(5)
            self.status.sendall(json.dumps(report).encode())
        except OSError:
            pass  # nobody is left to tell

    def _output_file(self) -> int:
        """A nameless file for what the worker prints, so that its text outlives it."""
        path = os.path.join(self.folder, ".printed")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        os.unlink(path)
        return descriptor

    def _printed(self) -> str:
        try:
            data = os.pread(self.output, int(self.limits["output_bytes"]), 0)
        except (OSError, AttributeError):
            return ""
        return data.decode("utf-8", "replace")

    def _become_worker(self) -> None:
        """The child's side of the fork: confine, then serve, then leave without cleaning up."""
        code = 70
        try:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            os.setsid()
            null = os.open("/dev/null", os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(self.output, 1)
            os.dup2(self.output, 2)
            os.dup2(self.status.fileno(), 250)
            os.dup2(self.worker.fileno(), 251)
            os.dup2(251, 3)
            os.dup2(250, 4)
            os.closerange(5, 1 << 20)
            # The objects must not close, one day, numbers that by then are somebody else's.
            self.worker.detach()
            self.status.detach()
            os.set_inheritable(3, False)
            os.set_inheritable(4, False)
            os.chdir(os.path.join(self.folder, "work"))
            home = os.path.join(self.folder, "home")
            os.environ.update({"HOME": home, "TMPDIR": self.folder, "MPLCONFIGDIR": home})
            tempfile.tempdir = None
            set_limits(self.limits, self.mapped, self.data, self.plan["sandboxed"])
            if self.plan["sandboxed"]:
                drop_privileges()
                install_seccomp()
                # The keeper may look at the worker's memory map only while it may be traced; the
                # worker's own children, which are all that could, are refused by the filter.
                prctl(PR_SET_DUMPABLE, 1)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.write(4, json.dumps({"setup": f"{error}"}).encode())
            os._exit(code)
        try:
            os.close(4)
            from autograder.sandbox import worker

            sock = socket.socket(fileno=3)
            worker.serve(sock, int(self.limits["output_bytes"]), int(self.limits["answer_bytes"]))
            code = 0
        except MemoryError:
            code = 71
        except BaseException:
            code = 70
        finally:
            os._exit(code)

    def _watch(self) -> dict[str, Any]:
        """Wait for the worker's end, the trusted process's word, or a limit."""
        waiter = select.poll()
        waiter.register(self.status, select.POLLIN)
        with contextlib.suppress(OSError):
            waiter.register(os.pidfd_open(self.pid), select.POLLIN)
        limit = int(self.limits["memory_bytes"]) + MEMORY_SLACK
        longest = max(self.limits["seconds_per_call"], self.limits["seconds_per_cell"])
        waits = CoreWaits(self.proc, longest, bool(self.plan["sandboxed"]))
        while True:
            events = waiter.poll(WATCH_SECONDS * 1000)
            done, code, usage = os.wait4(self.pid, os.WNOHANG)
            if done:
                break
            pids = self._descendants()
            waits.look(pids)
            if any(descriptor == self.status.fileno() for descriptor, _ in events):
                question = self.status.recv(SINCE.size)
                if len(question) == SINCE.size:
                    told = waits.since(*SINCE.unpack(question)), waits.ever(), waits.ran()
                    self.status.sendall(WAITED.pack(WAITED_MARK, *told))
                else:
                    self.reason = "closed"
            elif waits.ran() > self.limits["seconds_total"]:
                self.reason = "cpu"
            elif not events:
                self.reason = self._excess(limit, pids)
            if self.reason:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
                _, code, usage = os.wait4(self.pid, 0)
                break
        self._end()
        ran = max(waits.ran(), usage.ru_utime + usage.ru_stime)
        report: dict[str, Any] = {"reason": self.reason, "waited": waits.ever(), "ran": ran}
        ended = os.waitstatus_to_exitcode(code)
        if ended > 128:  # It says of what its fork has died: see `Worker.refuse`.
            ended = 128 - ended
        if ended < 0:
            report["signal"] = -ended
            cpu = usage.ru_utime + usage.ru_stime
            if not self.reason and report["signal"] in (signal.SIGKILL, signal.SIGXCPU):
                # Nobody inside can send this to process 1; it was the kernel.
                late = cpu > int(self.limits["seconds_total"])
                report["reason"] = "cpu" if late else "memory" if self.nested else ""
        else:
            report["exit"] = ended
        return report

    def _end(self) -> None:
        """Kill and reap whatever of the submission is left; with namespaces nothing is."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            for pid in self._descendants():
                with contextlib.suppress(OSError):
                    os.kill(int(pid), signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            time.sleep(0.002)

    def _descendants(self) -> list[str]:
        """All processes below this one. Orphans are handed to this process, so none escapes."""
        found: list[str] = []
        queue = [os.readlink("self", dir_fd=self.proc)]
        while queue and len(found) < 4096:
            below = self._children(queue.pop())
            found.extend(below)
            queue.extend(below)
        return found

    def _children(self, pid: str) -> list[str]:
        below: list[str] = []
        # A process may end while it is looked at; so may its threads.
        with contextlib.suppress(OSError):
            tasks = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.proc)
            try:
                for task in os.listdir(tasks):
                    with contextlib.suppress(OSError):
                        below.extend(_read(f"{task}/children", tasks).decode().split())
            finally:
                os.close(tasks)
        return below

    def _memory(self, pid: str) -> int:
        """Bytes of memory that belong to this process rather than to files."""
        total = 0
        for line in _read(f"{pid}/status", self.proc).splitlines():
            if line.startswith((b"RssAnon:", b"RssShmem:")):
                total += int(line.split()[1]) << 10
        return total

    def _proportional(self, pid: str) -> int:
        """The same with shared pages divided among those who share them."""
        total = 0
        for line in _read(f"{pid}/smaps_rollup", self.proc).splitlines():
            if line.startswith((b"Pss_Anon:", b"Pss_Shmem:")):
                total += int(line.split()[1]) << 10
        return total

    def _excess(self, limit: int, pids: list[str]) -> str:
        """Why the submission must end now, or nothing."""
        if len(pids) > 2 * int(self.limits["processes"]):
            return "processes"
        total = 0
        for pid in pids:
            with contextlib.suppress(OSError, ValueError):
                total += max(0, self._memory(pid) - self.baseline)
        if total <= limit:
            return ""
        if len(pids) > 1:
            # The cheap sum counts what forked processes share once for each of them.
            try:
                total = sum(self._proportional(pid) for pid in pids)
            except OSError:
                return "memory"
        return "memory" if total > limit else ""


# ------------------------------------------------------------------------------- fork server


def try_namespaces() -> str:
    """Make a child's namespaces once; empty if that works, what failed if not."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            new_namespaces()
            private_files(1 << 20)
            inner = os.fork()
            if inner == 0:
                os._exit(0)
            if os.waitpid(inner, 0)[1] != 0:
                raise SetupError("the first process of a new namespace died")
        except (SetupError, OSError) as error:
            os.write(writer, str(error).encode()[:500])
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        words = pipe.read().decode("utf-8", "replace")
    os.waitpid(pid, 0)
    return words


def become_nobody(uid: int) -> None:
    """Leave root for good, for a user that owns nothing."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def warm_up(word: str) -> None:
    """Do once what would otherwise be done by every notebook that has `word` in it.

    All of it imports hundreds of modules when it is first used, 0.3 s to 1 s at a time.
    """
    import torch

    if word == "matplotlib":
        importlib.import_module("matplotlib").use("Agg")
        importlib.import_module("matplotlib.pyplot")
    elif word == "broadcast_shapes":
        torch.broadcast_shapes((1,), (2,))
    elif word == "assert_close":
        torch.testing.assert_close(torch.ones(1), torch.ones(1))
    elif word == "optim.":
        torch.optim.AdamW([torch.ones(1, requires_grad=True)])


def use_huge_pages() -> None:
    """Move this process's own memory into pages of 2 MB, where the kernel does so.

    A fork copies the table of all pages, and the end of a process takes it down. PyTorch has 40,000
    small ones, and each submission forks some ten times: without this it takes half as long again.
    """
    with open("/proc/self/maps") as maps:
        for line in maps:
            place, rights, _, _, _, *file = line.split(maxsplit=5)
            if rights == "rw-p" and (not file or file[0].strip() == "[heap]"):
                start, end = (int(number, 16) for number in place.split("-"))
                start += -start % HUGE_PAGE
                length = end - end % HUGE_PAGE - start
                if length > 0:
                    LIBC.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), MADV_COLLAPSE)


def main() -> None:
    """Prepare once, then fork a keeper for every request until the control socket closes."""
    plan = json.loads(sys.argv[1])
    control = socket.socket(fileno=plan["control"])
    control.set_inheritable(False)
    if plan["uid"] is not None:
        become_nobody(plan["uid"])
    os.umask(0o077)
    if plan["sandboxed"]:
        prctl(PR_SET_NO_NEW_PRIVS, 1)
    else:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    prctl(PR_SET_DUMPABLE, 0)
    sys.path[:0] = [plan["view"]]
    sys.path.extend(plan["packages"])
    sys.dont_write_bytecode = True
    # What is imported stays: to look through it for garbage, again and again, finds little.
    gc.disable()

    import torch

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    # Everything that most notebooks would otherwise import for themselves.
    for name in (
        "IPython.core.inputtransformer2",
        "IPython.display",
        "numpy",
        "autograder.sandbox.worker",
    ):
        importlib.import_module(name)
    if os.path.exists(f"{plan['view']}/given.py"):
        importlib.import_module("given")
    from autograder.sandbox import forbidden_calls

    forbidden_calls.guard_everything()
    refused = try_namespaces() if plan["nested"] else "not asked for"
    plan["nested"] = not refused
    hello = {
        "ready": True,
        "nested": plan["nested"],
        "refused": refused,
        "uid": os.getuid(),
        "seccomp": plan["sandboxed"] and seccomp_program(platform.machine()) is not None,
    }
    control.send(json.dumps(hello).encode())
    # A fork server that serves only one notebook leaves it to that one to import what it needs.
    serves_many = plan["nested"] or not plan["sandboxed"]
    warm: set[str] = set()
    gc.freeze()
    gc.enable()
    use_huge_pages()
    # Keepers are nobody's to wait for: what is to be known they tell the trusted process.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 2)
        if not message:
            return
        worker, status = (socket.socket(fileno=number) for number in descriptors)
        request = json.loads(message)
        new = set(request["words"]) - warm if serves_many else ()
        if new:
            gc.disable()
            for word in new:
                with contextlib.suppress(Exception):
                    warm_up(word)
            warm.update(new)
            gc.freeze()
            gc.enable()
        try:
            pid = os.fork()
        except OSError as error:
            status.sendall(json.dumps({"setup": f"fork failed: {error.strerror}"}).encode())
            pid = -1
        if pid == 0:
            try:
                control.close()
                Keeper(worker, status, request["limits"], plan).run()
            finally:
                os._exit(0)
        worker.close()
        status.close()


if __name__ == "__main__":
    main()
