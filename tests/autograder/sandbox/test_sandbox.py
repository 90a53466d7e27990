"""Real attacks on the real sandbox: what student code can reach, break, and leave behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from autograder.common.cells import Cell
from autograder.common.paths import ROOT
from autograder.sandbox import fork_server, launcher, wire
from autograder.sandbox.launcher import Sandbox
from autograder.sandbox.limits import Limits, SandboxUnavailable
from autograder.sandbox.session import Session, clean_outcome, probe, request_frame

HANGS = Limits(seconds_per_call=1.5, seconds_per_cell=1.5)


@pytest.fixture(scope="module")
def sandbox():
    """One real sandbox for all the attacks, as it serves a whole class."""
    with Sandbox() as started:
        yield started


@pytest.fixture
def submit(request):
    """`submit(source, ...)` opens a session whose cells are the given sources."""
    sessions = []

    def open_session(*sources: str, limits: Limits | None = None, box: Sandbox | None = None):
        cells = [
            Cell(f"id{number}", textwrap.dedent(source), f"cell{number}")
            for number, source in enumerate(sources, start=1)
        ]
        box = box or request.getfixturevalue("sandbox")
        sessions.append(Session(box, cells, limits))
        return sessions[-1]

    yield open_session
    for session in sessions:
        session.close()


def call(name: str, *args, **options):
    return {"op": "call", "name": name, "args": list(args), "kwargs": {}, "rng": 0, **options}


def value(session, name: str, *args):
    outcome = session.execute(call(name, *args))
    assert outcome["kind"] == "value", outcome
    return outcome["value"]


def below(box: Sandbox) -> list[psutil.Process]:
    """Every process of the sandbox, seen from outside."""
    return psutil.Process(box._process.pid).children(recursive=True)


def settles(count, target: int, seconds: float = 20) -> bool:
    """Whether `count()` comes down to `target`: the kernel reaps in its own time."""
    deadline = time.monotonic() + seconds
    while count() > target:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


pytestmark = pytest.mark.sandbox


# ------------------------------------------------------------------------------- honest work


def test_definitions_of_several_cells_answer_requests(submit):
    session = submit(
        "import torch\ndef double(x):\n    return 2 * x",
        "def both(x):\n    return double(x), {'sum': x.sum(), 'shape': list(x.shape)}",
    )
    assert [report.status for report in session.load()] == ["ok", "ok"]
    x = torch.randn(3, 4).T
    doubled, rest = value(session, "both", x)
    assert torch.equal(doubled, 2 * x)
    assert torch.equal(rest["sum"], x.sum())
    assert rest["shape"] == [4, 3]


def test_inputs_keep_their_layout_and_changes_to_them_are_told(submit):
    session = submit(
        """
        def strides(x, y):
            return list(x.stride()), list(y.stride())
        def spoil(x):
            x.zero_()
            return x
        """
    )
    x = torch.randn(3, 4).T
    assert value(session, "strides", x, torch.ones(1).expand(5)) == ([1, 4], [0])
    before = x.clone()
    assert session.execute(call("spoil", x))["mutated"] == ["0"]
    assert torch.equal(x, before)


def test_what_is_drawn_from_pythons_own_generator_depends_on_the_request_alone(sandbox):
    cells = [
        Cell("a", "import random", "a"),
        Cell("b", "def draw():\n    return random.random()", "b"),
    ]
    with Session(sandbox, cells) as session:
        drawn = [value(session, "draw"), value(session, "draw")]
    assert drawn == [random.Random(0).random()] * 2


def test_errors_and_gaps_are_told_apart(submit):
    session = submit(
        """
        def wrong(x):
            raise ValueError("x is not nice")
        def later(x):
            raise NotImplementedError
        def leave(x):
            raise SystemExit(0)
        def foreign():
            return {1, 2}, object
        """
    )
    outcome = session.execute(call("wrong", 1))
    assert (outcome["kind"], outcome["type"]) == ("error", "ValueError")
    assert outcome["message"] == "x is not nice"
    assert "raise ValueError" in outcome["where"]
    assert session.execute(call("later", 1))["kind"] == "todo"
    assert session.execute(call("nowhere"))["kind"] == "missing"
    assert session.execute(call("leave", 1))["type"] == "SystemExit"
    assert [item.type_name for item in value(session, "foreign")] == ["set", "type"]
    assert session.restarts == 1


def test_cells_are_reported_one_by_one(submit):
    session = submit(
        "print('hello')\ny = 1",
        "y = 2\n1 / 0",
        "def broken(:\n    pass",
        "import sys; print('to stderr', file=sys.stderr); sys.exit(3)",
        "import os; os.write(1, b'raw\\n')",
        "def f():\n    return y",
    )
    reports = session.load()
    assert [report.status for report in reports] == ["ok", "error", "error", "error", "ok", "ok"]
    assert reports[0].printed == "hello\n"
    assert reports[1].error == "ZeroDivisionError: division by zero (line 2: 1 / 0)"
    assert reports[2].error.startswith("SyntaxError: ")
    assert "def broken(:" in reports[2].error
    assert reports[3].error.startswith("SystemExit: 3")
    assert reports[3].printed == "to stderr\n"
    assert reports[4].printed == "raw\n"
    assert value(session, "f") == 2


def test_what_a_notebook_says_to_ipython_and_to_us_is_understood(submit):
    session = submit(
        """
        %matplotlib inline
        !touch /tmp/made-by-a-shell
        files = !ls /
        %pip install something
        """,
        "%%time\ntimed = 1",
        "%%writefile x.py\nthis is not Python",
        "import asyncio\nawait asyncio.sleep(0)\ndisplay({'a': 1})",
        "from autograder import checks_for\ncheck = checks_for('gpt-model')\ncheck('causal_mask')",
        "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()",
        """
        import os
        def seen():
            return timed, files, os.path.exists("/tmp/made-by-a-shell"), os.path.exists("x.py")
        """,
    )
    reports = session.load()
    assert [report.status for report in reports] == ["ok"] * 7, reports
    assert "!touch" in reports[0].printed
    assert "%pip was not run" in reports[0].printed
    assert "%%writefile was not run" in reports[2].printed
    assert reports[3].printed == "{'a': 1}\n"
    assert value(session, "seen") == (1, [], False, False)


def test_what_a_notebook_mentions_is_imported_before_it_and_for_all_later_ones(submit):
    with Sandbox() as box:
        source = (
            "import sys\nthere = 'matplotlib.pyplot' in sys.modules\ndef seen():\n    return there"
        )
        named = source.replace("matplotlib.pyplot", "matplotlib' + '.pyplot")
        hidden = source.replace("matplotlib.pyplot", "matplot' + 'lib.pyplot")
        if not submit(hidden, box=box).load()[0].ok or not box.nested:
            pytest.skip("a sandbox that serves one notebook imports nothing for it")
        assert value(submit(hidden, box=box), "seen") is False
        assert value(submit(named, box=box), "seen") is True
        assert value(submit(hidden, box=box), "seen") is True


def test_modules_are_made_asked_and_trained(submit):
    session = submit(
        "from torch import nn\nclass Scale(nn.Module):\n"
        "    def __init__(self, width):\n        super().__init__()\n"
        "        self.weight = nn.Parameter(torch.ones(width))\n"
        "    def forward(self, x):\n        return x * self.weight\n",
        "import torch",
    )
    state = {"weight": torch.tensor([2.0, 3.0])}
    create = {"op": "create", "handle": 7, "name": "Scale", "kwargs": {"width": 2}, "state": state}
    assert session.execute(create)["kind"] == "value"
    invoke = {"op": "invoke", "handle": 7, "args": [torch.ones(2)], "kwargs": {}, "grad": True}
    outcome = session.execute(invoke)
    assert outcome["value"].tolist() == [2, 3]
    assert set(outcome["grads"]) == {"0", "parameter weight"}
    inspected = session.execute({"op": "inspect", "handle": 7})["value"]
    assert inspected["parameters"] == {"weight": [2]}


# ------------------------------------------------------------------------------- given parts

GIVEN = "SCALE = 2\n\n\ndef part(x):\n    return SCALE * x\n"
# What a notebook does so that its own `part`, which is 7 whatever it is given, is found instead.
OWN = "SCALE = 7\ndef part(x):\n    return 7\ndef surplus():\n    return 7\n"
OWN_WAYS = {
    "a file": "",
    "a file on the path": "sys.path.insert(0, '/tmp/mine')",
    "a file anew": "sys.path.insert(0, '/tmp/mine')\ndel sys.modules['given']",
    "a file anew, imported": "sys.path.insert(0, '.')\ndel sys.modules['given']\nimport given",
    "a module": "sys.modules['given'] = types.ModuleType('given')\n"
    "exec(OWN, vars(sys.modules['given']))",
    "nothing": "sys.modules['given'] = None",
    "names of the module": "import given\nexec(OWN, vars(given))",
    "no names": "import given\nvars(given).clear()",
    "a loader": """
class Mine:
    def find_spec(self, name, path=None, target=None):
        if name == "given":
            return importlib.util.spec_from_file_location(name, "/tmp/mine/given.py")
sys.meta_path.insert(0, Mine())
del sys.modules["given"]
""",
}


@pytest.fixture(scope="module")
def giving(tmp_path_factory) -> Iterator[Sandbox]:
    """A sandbox for a unit that is given something of earlier ones."""
    path = tmp_path_factory.mktemp("exercises") / "given.py"
    path.write_text(GIVEN)
    with Sandbox(given=path) as started:
        yield started


@pytest.mark.parametrize("way", OWN_WAYS)
def test_no_notebook_puts_a_module_of_its_own_in_the_place_of_the_given_parts(submit, giving, way):
    session = submit(
        "import importlib.util, os, sys, types\n"
        f"OWN = {OWN!r}\n"
        "os.makedirs('/tmp/mine')\n"
        "for place in ('.', '/tmp', '/tmp/mine', os.path.expanduser('~')):\n"
        "    with open(f'{place}/given.py', 'w') as file:\n"
        "        file.write(OWN)\n",
        OWN_WAYS[way],
        "from given import part",
        "import given\ndef surplus():\n    return hasattr(given, 'surplus'), given.part(3)\n",
        box=giving,
    )
    assert [report.error for report in session.load()] == [""] * 4
    assert value(session, "part", 3) == 6
    assert value(session, "surplus") == (False, 6)


def test_the_given_parts_are_the_files_and_no_cell_can_write_it(submit, giving):
    session = submit(
        "import given\n"
        "def where():\n    return given.__file__\n"
        "def write():\n    open(given.__file__, 'a').close()\n",
        box=giving,
    )
    assert value(session, "where") == "/grader/given.py"
    outcome = session.execute(call("write"))
    assert outcome["kind"] == "error"
    assert "OSError" in outcome["types"]  # whichever of the walls it meets first


def test_what_one_notebook_does_to_the_given_parts_is_not_there_for_the_next(submit, giving):
    spoils = "import given\ngiven.part = given.SCALE = None\ndel given.SCALE"
    assert submit(spoils, box=giving).load()[0].ok
    assert value(submit("from given import part", box=giving), "part", 3) == 6


def test_without_given_parts_there_is_no_such_module(submit):
    session = submit("import given")
    assert "ModuleNotFoundError" in session.load()[0].error


# ------------------------------------------------------------------------------- secrets


def test_no_file_of_ours_or_of_anybody_is_in_sight(submit, tmp_path):
    (tmp_path / "submission.ipynb").write_text("another student's work")
    session = submit(
        """
        import os
        def exists(paths):
            return [path for path in paths if os.path.exists(path)]
        def look(names):
            found = []
            for place, folders, files in os.walk("/"):
                if place.startswith(("/proc", "/usr/share", "/usr/lib/x86_64-linux-gnu")):
                    folders.clear()
                found += [os.path.join(place, n) for n in folders + files if n in names]
            return found
        def imports(names):
            import importlib
            return [name for name in names if importlib.util.find_spec(name)]
        def top():
            ours = "/grader/autograder"
            return [sorted(os.listdir(p)) for p in ("/grader", ours, f"{ours}/sandbox")]
        """,
        "import importlib.util",
        limits=Limits(seconds_per_call=60),  # to look through all folders of a cold disk
    )
    paths = [ROOT, ROOT / "solutions", ROOT / ".git", tmp_path, Path.home() / ".bashrc"]
    paths += ["/home", "/var", "/etc/shadow", "/etc/hostname", "/sys", "/run", "/boot"]
    paths += [path for path in ("/root/.ssh", "/mnt", "/srv", "/opt") if os.path.exists(path)]
    assert value(session, "exists", [str(path) for path in paths]) == []
    names = ["solutions", "graders", "misconceptions", "gradebook.db", "submission.ipynb"]
    names += ["recorded.bin", "assignment.json", "results.json", "scores.py", "pyproject.toml"]
    names += ["self_attention.py", "test_scores.py", "scores.toml", "attention-scores.ipynb"]
    inside_packages = [
        path
        for path in value(session, "look", names)
        # Packages may have such names of their own; none of them is ours.
        if not path.startswith(("/packages/", "/usr/", sys.base_prefix))
    ]
    assert inside_packages == []
    assert value(session, "imports", ["solutions", "toolkit", "tests"]) == ["toolkit"]
    view, stub, files = value(session, "top")
    assert view == ["autograder", "toolkit"]
    assert stub == ["__init__.py", "sandbox"]
    assert files == ["__init__.py", *sorted(launcher.COPIED)]


def test_an_installed_copy_of_the_course_is_covered(submit, tmp_path, monkeypatch):
    site = tmp_path / "site-packages"
    for name in ("solutions", "autograder", "innocent", "kept/secret"):
        (site / name).mkdir(parents=True)
        (site / name / "attention.py").write_text("answer = 42")
    (site / "editable.pth").write_text(f"{ROOT}\nimport os; os.environ['PTH'] = 'ran'\n")
    monkeypatch.syspath_prepend(str(site))
    with Sandbox(hide=[site / "kept" / "secret"]) as box:
        session = submit(
            """
            import os, sys, glob
            def look():
                found = glob.glob("/packages/*/*/attention.py")
                found += glob.glob("/packages/*/*/*/attention.py")
                return [path.split("/", 3)[3] for path in found]
            def path():
                return list(sys.path), os.environ.get("PTH")
            """,
            box=box,
        )
        assert value(session, "look") == ["innocent/attention.py"]
        places, ran = value(session, "path")
        assert ran is None
        assert str(ROOT) not in places


def test_the_user_and_the_environment_are_nobodys(submit, monkeypatch):
    monkeypatch.setenv("A_TOKEN_OF_THE_INSTRUCTOR", "secret")
    session = submit(
        """
        import os
        def me():
            return os.getuid(), os.geteuid(), os.getgroups(), dict(os.environ), os.getpid()
        def rise():
            try:
                os.setuid(0)
            except OSError:
                return "refused"
        def capable():
            import ctypes
            libc = ctypes.CDLL(None, use_errno=True)
            return [libc.mount(b"x", b"/tmp", b"tmpfs", 0, None), libc.unshare(0x10000000),
                    libc.sethostname(b"x", 1), libc.umount2(b"/proc", 0), libc.chroot(b"/tmp")]
        """
    )
    uid, effective, groups, environment, pid = value(session, "me")
    assert uid == effective != 0
    assert uid != os.getuid()
    assert 0 not in groups
    assert "A_TOKEN_OF_THE_INSTRUCTOR" not in environment
    assert pid == 1
    assert value(session, "rise") == "refused"
    assert value(session, "capable") == [-1] * 5


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_the_kernel_sees_student_code_as_another_user(submit, sandbox):
    session = submit("x = 1")
    session.load()
    owners = {process.uids().real for process in below(sandbox) if process.name() != "bwrap"}
    assert 0 not in owners


def test_there_is_no_network_and_no_socket_of_ours(submit):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        name = f"\0course-{os.getpid()}"
        local.bind(name)
        local.listen()
        session = submit(
            """
            import socket
            def reach(port, name):
                failures = []
                for family, address in (
                    (socket.AF_INET, ("127.0.0.1", port)),
                    (socket.AF_INET, ("192.0.2.1", 80)),
                    (socket.AF_UNIX, name),
                ):
                    with socket.socket(family) as s:
                        s.settimeout(1)
                        try:
                            s.connect(address)
                            failures.append("connected")
                        except OSError as error:
                            failures.append("refused")
                return failures
            def exotic():
                refused = []
                for family in (socket.AF_VSOCK, socket.AF_NETLINK, socket.AF_PACKET, 38):
                    try:
                        socket.socket(family, socket.SOCK_DGRAM)
                    except OSError:
                        refused.append(family)
                return len(refused)
            """
        )
        port = server.getsockname()[1]
        assert value(session, "reach", port, name) == ["refused"] * 3
        assert value(session, "exotic") == 4


def test_nothing_outside_can_be_written_and_nothing_inside_is_kept(submit):
    source = """
        import os
        PLACES = ["/", "/grader", "/grader/autograder", "/usr", "/packages/0", "/dev", "/proc",
                  "/etc", "/tmp", "/dev/shm", os.environ["HOME"], "."]
        def write():
            done = []
            for place in PLACES:
                try:
                    with open(os.path.join(place, "left-behind"), "w") as file:
                        file.write("psst")
                    done.append(place)
                except OSError:
                    pass
            return done
        def read():
            return [place for place in PLACES
                    if os.path.exists(os.path.join(place, "left-behind"))]
        """
    first, second = submit(source), submit(source)
    private = ["/tmp", "/dev/shm", "/tmp/home", "."]
    assert value(first, "write") == private
    assert value(first, "read") == private
    assert value(second, "read") == []
    first.close()
    assert value(submit(source), "read") == []


def test_other_processes_are_neither_seen_nor_touched(submit, sandbox):
    other = submit("secret = 'of the other'")
    other.load()
    outside = [process.pid for process in below(sandbox)]
    session = submit(
        """
        import ctypes, os
        def proc():
            return os.listdir("/proc")
        def harm(pids):
            libc = ctypes.CDLL(None, use_errno=True)
            done = []
            for pid in pids:
                if libc.ptrace(16, pid, None, None) == 0:
                    done.append(("ptrace", pid))
                if libc.process_vm_readv(pid, None, 0, None, 0, 0) == 0:
                    done.append(("read", pid))
                if libc.pidfd_getfd(pid, 3, 0) >= 0:
                    done.append(("getfd", pid))
                try:
                    if pid != 1:
                        os.kill(pid, 9)
                        done.append(("kill", pid))
                except OSError:
                    pass
            return done
        def tree():
            return os.getppid(), os.getpid()
        """
    )
    assert value(session, "proc") == []
    assert value(session, "tree") == (0, 1)
    assert value(session, "harm", [*range(1, 300), *outside]) == []
    assert other.execute(call("secret"))["kind"] == "error"  # a text is not callable, but there
    assert other.restarts == 1
    assert {process.pid for process in below(sandbox)} >= set(outside)


def test_no_descriptor_but_its_own_is_open(submit):
    session = submit(
        """
        import os, stat
        def descriptors():
            found = {}
            for number in range(4096):
                try:
                    found[str(number)] = stat.filemode(os.fstat(number).st_mode)[0]
                except OSError:
                    pass
            return found
        """
    )
    assert value(session, "descriptors") == {"0": "c", "1": "-", "2": "-", "3": "s"}


def test_input_is_empty(submit):
    session = submit("def ask():\n    return input()")
    assert session.execute(call("ask"))["type"] == "EOFError"


def filtered(
    machine: str,
    number: int,
    argument: int = 0,
    arch: int | None = None,
    second: int = 0,
    fourth: int = 0,
) -> int:
    """What the system call filter of `machine` returns: a small interpreter of classic BPF."""
    program = fork_server.seccomp_program(machine)
    code = list(struct.iter_unpack("=HBBI", program))
    arch = fork_server.AUDIT_ARCH[machine] if arch is None else arch
    data = struct.pack("=IIQQQQQ", number, arch, 0, argument, second, 0, fourth)
    place = accumulator = 0
    while True:
        operation, yes, no, constant = code[place]
        place += 1
        if operation == fork_server.RETURN:
            return constant
        if operation == fork_server.LOAD:
            accumulator = struct.unpack_from("=I", data, constant)[0]
            continue
        holds = {
            fork_server.JUMP_EQUAL: accumulator == constant,
            fork_server.JUMP_SET: bool(accumulator & constant),
            fork_server.JUMP_AT_LEAST: accumulator >= constant,
        }[operation]
        place += yes if holds else no


def test_no_memory_is_shared_but_through_files():
    for machine in ("x86_64", "aarch64"):
        flags = {"private": 0x22, "file": 0x01, "shared": 0x21, "validated": 0x23}
        said = {
            name: filtered(machine, fork_server.MMAP_CALL[machine], fourth=value)
            for name, value in flags.items()
        }
        refused = fork_server.ERRNO | fork_server.EPERM
        assert said == {
            "private": fork_server.ALLOW,
            "file": fork_server.ALLOW,
            "shared": refused,
            "validated": refused,
        }


def test_no_file_can_be_leased_so_that_others_wait_for_it():
    for machine in ("x86_64", "aarch64"):
        number, refused = fork_server.FCNTL_CALL[machine], fork_server.ERRNO | fork_server.EPERM
        assert filtered(machine, number, second=fcntl.F_SETLEASE) == refused
        for command in (fcntl.F_SETFD, fcntl.F_GETFL, fcntl.F_SETLK, fcntl.F_DUPFD_CLOEXEC):
            assert filtered(machine, number, second=command) == fork_server.ALLOW


@pytest.mark.parametrize(
    ("machine", "read", "ptrace", "memfd"), [("x86_64", 0, 101, 319), ("aarch64", 63, 117, 279)]
)
def test_the_system_call_filter_says_what_it_should(machine, read, ptrace, memfd):
    refused = fork_server.ERRNO | fork_server.EPERM
    clone, sock = fork_server.CLONE_CALL[machine], fork_server.SOCKET_CALL[machine]
    assert filtered(machine, read) == fork_server.ALLOW
    assert filtered(machine, ptrace) == filtered(machine, memfd) == refused
    assert filtered(machine, clone, 0x11) == fork_server.ALLOW
    assert filtered(machine, clone, 0x11 | fork_server.CLONE_NEWUSER) == refused
    assert filtered(machine, fork_server.CLONE3_CALL) == fork_server.ERRNO | fork_server.ENOSYS
    assert filtered(machine, sock, socket.AF_INET) == fork_server.ALLOW
    assert (
        filtered(machine, sock, 40) == fork_server.ERRNO | fork_server.EAFNOSUPPORT
    )  # to the host
    assert filtered(machine, read, arch=0x40000003) == fork_server.KILL
    for number in fork_server.REFUSED_SYSTEM_CALLS[machine]:
        assert filtered(machine, number) == refused
    assert fork_server.seccomp_program("riscv64") is None


# ------------------------------------------------------------------------------- poison


def test_what_one_submission_poisons_the_next_one_does_not_see(submit):
    poison = submit(
        """
        import torch, json, builtins, sys
        torch.allclose = torch.equal = lambda *a, **k: True
        torch.Tensor.__eq__ = lambda *a: True
        json.dumps = lambda *a, **k: "{}"
        builtins.len = lambda x: 3
        sys.modules["numpy"] = None
        import autograder.sandbox.executor as executor
        executor.Executor.execute = lambda self, request: {"kind": "value", "value": 42}
        """,
        "def f():\n    return torch.allclose(torch.zeros(1), torch.ones(1))",
        limits=Limits(seconds_total=1),
    )
    poison.load()
    poison.execute(call("f"))
    clean = submit(
        "import torch, numpy",
        "def f():\n    return torch.allclose(torch.zeros(1), torch.ones(1)), len('four')",
    )
    assert value(clean, "f") == (False, 4)


def test_a_poisoned_worker_fools_only_itself(submit):
    session = submit(
        """
        import autograder.sandbox.executor as executor, torch
        class Liar:
            def __eq__(self, other): return True
        executor.Executor.execute = lambda self, request: ANSWERS[request["name"]]
        ANSWERS = {
            "own": {"kind": "value", "value": Liar()},
            "kind": {"kind": "passed", "value": 1},
            "timeout": {"kind": "timeout", "message": "x"},
            "text": "a",
            "grads": {"kind": "value", "value": 1, "grads": {"0": "x"}},
            "mutated": {"kind": "value", "value": 1, "mutated": [Liar()]},
            "message": {"kind": "error", "message": torch.ones(1)},
            "extra": {"kind": "value", "value": 1, "points": 100},
        }
        """
    )
    own = session.execute(call("own"))
    assert own["value"] == wire.Foreign("Liar", own["value"].repr)
    for name in ("kind", "timeout", "text", "grads", "mutated", "message"):
        assert session.execute(call(name))["kind"] == "protocol"
    assert "points" not in session.execute(call("extra"))


# ------------------------------------------------------------------------------- endless, dead


def test_a_cell_without_end_does_not_keep_the_others_from_running(submit):
    session = submit(
        "def f():\n    return 1",
        "print('before')\nwhile True:\n    pass",
        "def g():\n    return f() + 1",
        limits=HANGS,
    )
    assert [report.status for report in session.load()] == ["ok", "timeout", "ok"]
    assert session.reports[1].printed == "before\n"
    assert session.reports[1].error == "it was still running after 1.5 seconds"
    assert value(session, "g") == 2


def test_a_call_without_end_is_a_timeout_and_the_next_call_works(submit):
    session = submit(
        "import time\ndef forever():\n    while True:\n        try:\n            time.sleep(9)\n"
        "        except BaseException:\n            pass",
        "def f():\n    return 1",
        limits=HANGS,
    )
    outcome = session.execute(call("forever"))
    assert outcome == {"kind": "timeout", "message": "it was still running after 1.5 seconds"}
    assert value(session, "f") == 1
    assert session.restarts == 2


BUSY = """
    import os, time

    def work():
        # As much of a core as the limit allows within a margin, however long that takes.
        end = time.process_time() + 0.5
        while time.process_time() < end:
            pass
        return 1

    def sleep():
        time.sleep(3600)

    def crowd():
        for _ in range(6):
            if os.fork() == 0:
                while True:
                    pass
        while True:
            pass
    """


@pytest.fixture
def starved(sandbox):
    """A sandbox that shares one core with five processes that never rest."""
    core = min(os.sched_getaffinity(0))
    command = f"import os\nos.sched_setaffinity(0, [{core}])\nprint(flush=True)\nwhile True: pass"
    with Sandbox() as box, contextlib.ExitStack() as stack:
        for process in [psutil.Process(box._process.pid), *below(box)]:
            os.sched_setaffinity(process.pid, [core])
        for _ in range(5):
            hog = stack.enter_context(
                subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE)
            )
            stack.callback(hog.kill)
            hog.stdout.readline()
        yield box


@pytest.mark.slow
def test_a_submission_is_not_timed_out_because_others_have_the_core(submit, starved):
    session = submit(BUSY, limits=Limits(seconds_per_call=1, seconds_total=2), box=starved)
    outcomes = [session.execute(call("work"))["kind"] for _ in range(3)]
    assert outcomes == ["value"] * 3
    assert session.restarts == 1
    # It was starved indeed, and what it waited is known to be nobody's use of time.
    assert session.spent < session._elapsed
    assert session._elapsed > 2


@pytest.mark.slow
def test_who_sleeps_or_loops_ends_at_the_limit_even_where_others_have_the_core(submit, starved):
    for name in ("sleep", "crowd"):
        session = submit(BUSY, limits=Limits(seconds_per_call=0.5), box=starved)
        outcome = session.execute(call(name))
        assert outcome["kind"] == "timeout"
        assert "0.5 seconds" in outcome["message"]
        session.close()


def stat(ran: float, waited: float) -> bytes:
    return f"{int(ran * 1e9)} {int(waited * 1e9)} 1\n".encode()


def a_process(proc: Path, pid: int, ran: float, waited: float, last: int) -> None:
    folder = proc / str(pid) / "task" / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schedstat").write_bytes(stat(ran, waited))
    (proc / "loadavg").write_text(f"0.00 0.01 0.05 1/100 {last}\n")


@pytest.mark.parametrize(
    ("threads", "started", "credit"),
    [
        ({1: (0.1, 0.9)}, 0, 0.9),  # others had the core
        ({1: (1.0, 0.0)}, 0, 0.0),  # it had the core
        ({1: (0.0, 0.0)}, 0, 0.0),  # it slept
        ({1: (0.5, 0.5), 2: (0.5, 0.5)}, 0, 0.0),  # it kept itself waiting
        ({1: (0.2, 0.8), 2: (0.2, 0.8)}, 0, 0.6),  # both at once
        ({1: (0.1, 0.9)}, 10, 0.4),  # ten processes came and went unseen
    ],
)
def test_only_waiting_for_others_counts(tmp_path, threads, started, credit):
    a_process(tmp_path, 1, 5.0, 3.0, 100)
    proc = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        waits = fork_server.CoreWaits(proc, 1.0, alone=True)
        waits.look(["1"])
        moment = time.monotonic()
        for pid, (ran, waited) in threads.items():
            more = (5.0, 3.0) if pid == 1 else (0.0, 0.0)
            a_process(tmp_path, pid, ran + more[0], waited + more[1], 100)
        new = len(threads) - 1
        (tmp_path / "loadavg").write_text(f"0 0 0 1/100 {100 + new + started}\n")
        waits.look([str(pid) for pid in threads])
        assert waits.since(moment) == pytest.approx(credit)
    finally:
        os.close(proc)


def test_where_the_kernel_does_not_count_a_thread_that_does_not_get_to_run_waits(tmp_path):
    folder = tmp_path / "7" / "task" / "7"
    folder.mkdir(parents=True)
    (tmp_path / "loadavg").write_text("0 0 0 1/1 7\n")
    proc = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for state, waiting in (("R", True), ("S", False)):
            (folder / "stat").write_text(f"7 (a ) R) {state} " + "0 " * 40)
            waits = fork_server.CoreWaits(proc, 1.0, alone=True)
            waits.look(["7"])
            moment = time.monotonic()
            time.sleep(0.05)
            waits.look(["7"])
            assert (waits.since(moment) >= 0.05) is waiting
    finally:
        os.close(proc)


def test_what_a_notebook_costs_outside_its_processes_is_its_own_time(submit):
    session = submit("import os\ndef f():\n    os._exit(0)", limits=Limits(seconds_total=0.5))
    kinds = [session.execute(call("f"))["kind"] for _ in range(60)]
    assert kinds[0] == "crash"
    assert kinds[-1] == "timeout"
    assert session.restarts < 60


def test_after_its_total_time_a_submission_is_not_asked_again(submit):
    limits = Limits(seconds_total=1.5)
    session = submit(
        "def forever():\n    while True:\n        pass", "def f():\n    return 1", limits=limits
    )
    assert session.execute(call("forever"))["kind"] == "timeout"
    outcome = session.execute(call("f"))
    assert outcome["kind"] == "timeout"
    assert "used up the 1.35 seconds" in outcome["used_up"]  # A tenth is kept for judging.
    assert session.restarts == 1
    late = submit("while True:\n    pass", "x = 1", limits=Limits(seconds_total=1))
    assert [report.status for report in late.load()] == ["timeout", "timeout"]
    assert late.execute(call("f"))["kind"] == "timeout"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("import os; os._exit(3)", "exit status 3"),
        ("import os; os._exit(0)", "exit status 0"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("import os; os.closerange(0, 4096)", "exit status"),
        ("import os; os.execv('/bin/true', ['true'])", "exit status 0"),
    ],
)
def test_a_dead_process_is_a_crash_and_the_next_call_works(submit, body, words):
    session = submit(f"def die():\n    {body}", "def f():\n    return 1")
    outcome = session.execute(call("die"))
    assert outcome["kind"] == "crash"
    assert words in outcome["message"]
    assert value(session, "f") == 1


def test_a_cell_that_kills_is_reported_and_left_out_afterwards(submit):
    session = submit("a = 1", "import os\nos._exit(0)", "def f():\n    return a")
    assert [report.status for report in session.load()] == ["ok", "crash", "ok"]
    assert value(session, "f") == 1
    assert session.restarts == 2


def test_modules_are_made_again_after_a_crash_unless_they_had_learned(submit):
    session = submit(
        "import os, torch\nfrom torch import nn\n"
        "class Scale(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.weight = nn.Parameter(torch.ones(1))\n"
        "    def forward(self, x):\n        return x * self.weight\n"
        "    def die(self):\n        os._exit(1)\n"
        "def apply(model):\n    return model(torch.ones(1))\n"
    )
    for handle in (1, 2):
        state = {"weight": torch.tensor([float(handle)])}
        request = {"op": "create", "handle": handle, "name": "Scale", "kwargs": {}, "state": state}
        assert session.execute(request)["kind"] == "value"
    ask = {"args": [torch.ones(1)], "kwargs": {}}
    assert session.execute({"op": "step", "handle": 2, "lr": 0.1, **ask})["kind"] == "value"
    die = {"op": "invoke", "handle": 1, "method": "die", "args": [], "kwargs": {}}
    assert session.execute(die)["kind"] == "crash"
    assert session.execute({"op": "invoke", "handle": 1, **ask})["value"].item() == 1
    session.execute(die)
    given = {"args": [{"__module__": 1}], "kwargs": {}, "modules": {"1": False}}
    assert session.execute({"op": "call", "name": "apply", **given})["value"].item() == 1
    lost = session.execute({"op": "invoke", "handle": 2, **ask})
    assert lost["kind"] == "crash"
    assert "trained Scale was lost" in lost["message"]


def test_after_a_crash_a_module_is_made_again_with_the_ones_it_was_made_from(submit):
    session = submit(
        "import os, torch\nfrom torch import nn\n"
        "class Two(nn.Module):\n"
        "    def __init__(self, part):\n        super().__init__()\n        self.part = part\n"
        "    def forward(self, x):\n        return self.part(self.part(x))\n"
        "class Scale(nn.Module):\n    def forward(self, x):\n        return 3 * x\n"
        "def die():\n    os._exit(1)\n"
        "def train(model):\n    pass\n"
    )
    session.execute({"op": "create", "handle": 1, "name": "Scale", "kwargs": {}})
    part = {"kwargs": {"part": {"__module__": 1}}, "modules": {"1": False}}
    assert session.execute({"op": "create", "handle": 2, "name": "Two", **part})["kind"] == "value"
    assert session.execute(call("die"))["kind"] == "crash"
    ask = {"op": "invoke", "handle": 2, "args": [torch.ones(1)], "kwargs": {}}
    assert session.execute(ask)["value"].item() == 9
    given = {"args": [{"__module__": 2}], "kwargs": {}, "modules": {"2": False}}
    trained = {"op": "call", "name": "train", "autograd": True, **given}
    assert session.execute(trained)["kind"] == "value"
    session.execute(call("die"))
    assert "trained Two was lost" in session.execute(ask)["message"]


# ------------------------------------------------------------------------------- too much


SMALL = Limits(memory_bytes=256 << 20, processes=16)


@pytest.mark.parametrize(
    "body",
    [
        "return torch.ones(10**10).sum()",
        "return len(bytearray(1 << 30))",
        "x = []\n    while True:\n        x.append(torch.ones(10**6))",
    ],
)
def test_too_much_memory_is_said_to_be_that(submit, body):
    session = submit(f"import torch\ndef f():\n    {body}", "def g():\n    return 1", limits=SMALL)
    assert session.execute(call("f"))["kind"] == "memory"
    assert value(session, "g") == 1


def test_a_cell_that_fills_the_memory_does_not_stop_the_others(submit):
    session = submit("x = bytearray(1 << 30)", "def g():\n    return 1", limits=SMALL)
    assert [report.status for report in session.load()] == ["memory", "ok"]
    assert value(session, "g") == 1


def test_memory_is_counted_over_all_processes_of_a_submission(submit):
    session = submit(
        """
        import os, time
        def bomb():
            for _ in range(8):
                if os.fork() == 0:
                    filled = bytearray(os.urandom(1 << 20)) * 160
                    time.sleep(60)
                    os._exit(len(filled))
            time.sleep(60)
        """,
        "def g():\n    return 1",
        limits=Limits(memory_bytes=256 << 20, seconds_per_call=30),
    )
    outcome = session.execute(call("bomb"))
    assert outcome["kind"] == "memory", outcome
    assert value(session, "g") == 1


def test_memory_that_no_process_owns_is_not_to_be_had(submit):
    session = submit(
        """
        import ctypes, os
        def hoard():
            libc = ctypes.CDLL(None, use_errno=True)
            refused = [libc.shmget(0, 1 << 30, 0o1600) == -1]
            try:
                os.memfd_create("x")
                refused.append(False)
            except OSError:
                refused.append(True)
            written = 0
            try:
                for number in range(1000):
                    with open(f"/tmp/{number}", "wb") as file:
                        written += file.write(bytes(1 << 20))
            except OSError:
                pass
            try:
                with open("/dev/shm/big", "wb") as file:
                    for _ in range(1000):
                        written += file.write(bytes(1 << 20))
            except OSError:
                pass
            return refused, written >> 20
        """
    )
    refused, mebibytes = value(session, "hoard")
    assert refused == [True, True]
    assert mebibytes <= 160


def test_a_fork_bomb_fizzles(submit, sandbox):
    others = len(below(sandbox))
    session = submit(
        """
        import os, time
        def bomb():
            while True:
                try:
                    os.fork()
                except OSError:
                    time.sleep(0.01)
        """,
        "def g():\n    return 1",
        limits=Limits(processes=16, seconds_per_call=2),
    )
    session.load()
    most = []
    stop = threading.Event()

    def count():
        while not stop.is_set():
            most.append(len(below(sandbox)))
            time.sleep(0.05)

    counter = threading.Thread(target=count)
    counter.start()
    outcome = session.execute(call("bomb"))
    stop.set()
    counter.join()
    assert outcome["kind"] in ("timeout", "crash", "protocol", "memory")
    assert max(most) <= others + 20
    assert value(session, "g") == 1


@pytest.mark.parametrize("how", ["print('x' * 1000)", "os.write(1, b'x' * 1000)"])
def test_output_without_end_is_cut(submit, how):
    session = submit(
        f"import os\nfor _ in range(100_000):\n    try:\n        {how}\n"
        "    except OSError:\n        break",
        "def f():\n    for _ in range(5000):\n        print('y' * 1000)\n    return 1",
        limits=Limits(output_bytes=10_000, seconds_per_cell=60, seconds_per_call=60),
    )
    report = session.load()[0]
    assert report.ok
    assert 9_000 <= len(report.printed) <= 10_000
    assert value(session, "f") == 1


def test_answers_too_large_or_too_deep_are_not_sent(submit):
    session = submit(
        """
        import torch
        def large():
            return torch.zeros(1).expand(10**6, 10**6)
        def deep():
            x = []
            for _ in range(100):
                x = [x]
            return x
        def loop():
            x = {}
            x["x"] = x
            return x
        def g():
            return 1
        """
    )
    assert session.execute(call("large"))["kind"] in ("protocol", "memory")
    assert session.execute(call("deep"))["kind"] == "protocol"
    assert session.execute(call("loop"))["kind"] in ("protocol", "error")
    assert value(session, "g") == 1


# ------------------------------------------------------------------------------- the wire


@pytest.mark.parametrize(
    "forged",
    [
        "b'rubbish' * 100",
        "wire.PREFIX.pack(wire.MAGIC, 2**32 - 1, 0)",
        "wire.PREFIX.pack(wire.MAGIC, 10, 2**63)",
        "wire.encode({'n': 99, 'outcome': {'kind': 'value', 'value': 1}})",
        "wire.encode({'n': True, 'outcome': None})",
        "wire.encode(torch.ones(3))",
        "wire.encode({'n': sys._getframe(5).f_locals.get('message', {}).get('n'), 'outcome': 3})",
    ],
)
def test_forged_frames_are_a_protocol_fault(submit, forged):
    session = submit(
        f"""
        import os, sys, torch
        from autograder.sandbox import fork_server, wire
        def forge():
            os.write(3, {forged})
            while True:
                pass
        """,
        "def g():\n    return 1",
        limits=Limits(seconds_per_call=30),
    )
    assert session.execute(call("forge"))["kind"] == "protocol"
    assert value(session, "g") == 1


def test_an_answer_prepared_in_advance_is_refused(submit):
    session = submit(
        """
        import os
        from autograder.sandbox import fork_server, wire
        def honest():
            frame = {"n": 1, "outcome": {"kind": "value", "value": 42}}
            os.write(3, wire.encode(frame))
            return 1
        def g():
            return 1
        """
    )
    session.execute(call("honest"))
    assert session.execute(call("g")) in (
        {"kind": "value", "value": 1, "mutated": [], "grads": {}, "forbidden": []},
        {"kind": "protocol", "message": "the answer is not valid: it answers another question"},
    )


# ------------------------------------------------------------------------------- several at once


def ahead(session, *names: str) -> list[dict]:
    """The outcomes of what was asked in one message."""
    replies = session.ahead([request_frame(call(name)) for name in names])
    return [wire.decode(reply, bounds=wire.ANSWER) for reply in replies]


COUNTS = """
    import os, signal, time
    calls = []
    def one():
        calls.append(1)
        return 1
    def slow():
        calls.append("slow")
        time.sleep(0.3)
        return 2
    def wrong():
        raise KeyError("no")
    def later():
        raise NotImplementedError
    def loud():
        print("x" * 5000)
    def forever():
        while True:
            pass
    def leave():
        os._exit(3)
    def hungry():
        raise MemoryError
    def done():
        return list(calls)
    """


def test_several_requests_go_out_in_one_message(submit):
    session = submit(COUNTS)
    outcomes = ahead(session, "one", "wrong", "loud", "one", "done")
    assert [outcome["kind"] for outcome in outcomes] == ["value", "error", *["value"] * 3]
    assert outcomes[1] == session.execute(call("wrong"))
    assert outcomes[4]["value"] == [1, 1]
    assert session.restarts == 1


@pytest.mark.parametrize("name", ["later", "nothing_so_called", "hungry"])
def test_what_ends_a_test_ends_a_message(submit, name):
    session = submit(COUNTS)
    outcomes = ahead(session, "one", name, "one")
    assert [outcome["kind"] for outcome in outcomes][:1] == ["value"]
    assert outcomes[1] == {**outcomes[1], "kind": session.execute(call(name))["kind"]}
    assert len(outcomes) == 2
    assert value(session, "done") == ([] if name == "hungry" else [1])


def test_after_some_time_the_rest_of_a_message_is_left_to_be_asked(submit):
    session = submit(COUNTS)
    assert [outcome["value"] for outcome in ahead(session, "one", "slow", "one", "one")] == [1, 2]
    assert value(session, "done") == [1, "slow"]
    assert len(ahead(session, "one", "one")) == 2


@pytest.mark.parametrize("name", ["forever", "leave"])
def test_a_message_that_does_not_come_through_is_the_last(submit, name):
    session = submit(COUNTS, limits=HANGS)
    session.load()
    spent = session.spent
    assert ahead(session, "one", name, "one") == []
    assert session.spent - spent > (HANGS.seconds_per_call / 2 if name == "forever" else 0)
    assert ahead(session, "one") == []
    # Asked one by one it is found who is to blame, and the others are as they were.
    assert value(session, "done") == []
    assert value(session, "one") == 1
    assert session.execute(call(name))["kind"] in ("timeout", "crash")


def test_modules_asked_ahead_are_made_again_after_a_crash(submit):
    session = submit(
        """
        import os
        from torch import nn
        class Module(nn.Linear):
            def die(self):
                os._exit(1)
        """
    )
    state = {"weight": torch.ones(1, 2), "bias": torch.zeros(1)}
    create = {"op": "create", "handle": 1, "name": "Module", "state": state}
    create["kwargs"] = {"in_features": 2, "out_features": 1}
    use = {"op": "invoke", "handle": 1, "args": [torch.ones(2)]}
    requests = [create, use]
    frames = [request_frame(request) for request in requests]
    answers = [
        session.ask(request, frame, reply=reply)
        for request, frame, reply in zip(requests, frames, session.ahead(frames), strict=True)
    ]
    assert answers[1].outcome["value"].tolist() == [2.0]
    assert session.execute({**use, "method": "die", "args": []})["kind"] == "crash"
    assert session.execute(use)["value"].tolist() == [2.0]
    assert session.restarts == 2


@pytest.mark.parametrize(
    "forged",
    [
        "batch.join([wire.encode({'kind': 'value', 'value': 1})] * 9)",
        "batch.join([b'rubbish'])",
        "wire.encode({'kind': 'value', 'value': 1})",
        "wire.PREFIX.pack(wire.MAGIC, 5, 3) + b'S' + bytes(7)",
    ],
)
def test_forged_answers_to_a_message_are_no_better_than_others(submit, forged):
    session = submit(
        f"""
        import os
        from autograder.sandbox import batch, wire
        def forge():
            frame = {forged}
            lengths = wire.PREFIX.unpack(frame[:20])[1:]
            os.write(3, wire.NUMBERED_PREFIX.pack(wire.NUMBERED, 2, *lengths) + frame[20:])
            while True:
                pass
        def g():
            return 1
        """,
        limits=HANGS,
    )
    assert wire.PREFIX.size == 20
    replies = session.ahead([request_frame(call(name)) for name in ("forge", "g")])
    for name, reply in zip(("forge", "g"), replies, strict=False):
        kind = session.ask(call(name), request_frame(call(name)), reply=reply).kind
        assert kind == "protocol", "no more is believed than one by one"
    assert value(session, "g") == 1


def test_scribbling_on_every_descriptor_harms_only_the_scribbler(submit):
    other = submit("def g():\n    return 2")
    other.load()
    session = submit(
        """
        import os
        def scribble():
            for number in range(1024):
                try:
                    os.write(number, b"scribble " * 10)
                except OSError:
                    pass
            return 1
        """,
        "def g():\n    return 1",
    )
    assert session.execute(call("scribble"))["kind"] == "protocol"
    assert value(session, "g") == 1
    assert value(other, "g") == 2


@pytest.mark.parametrize(
    "raw",
    [
        None,
        {},
        {"kind": 1},
        {"kind": "crash"},
        {"kind": "value", "grads": []},
        {"kind": "value", "forbidden": "softmax"},
        {"kind": "error", "types": [1]},
        {"kind": "missing", "message": 3},
    ],
)
def test_outcomes_of_another_form_are_refused(raw):
    with pytest.raises(wire.WireError):
        clean_outcome(raw)


# ------------------------------------------------------------------------------- leftovers


def test_nothing_is_left_of_a_submission(submit, sandbox):
    assert settles(lambda: len(below(sandbox)), 2)
    session = submit(
        """
        import os, signal, time
        def haunt():
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.closerange(0, 256)
                    while True:
                        time.sleep(1)
                os._exit(0)
            os.wait()
            return 1
        """
    )
    assert value(session, "haunt") == 1
    assert len(below(sandbox)) > 4
    session.close()
    assert settles(lambda: len(below(sandbox)), 2)


ORPHANS = """
import os, sys, time
from autograder.common.cells import Cell
from autograder.sandbox.session import Session
from autograder.sandbox.launcher import Sandbox
import psutil
box = Sandbox(unsafe=sys.argv[1] == "unsafe")
box.start()
session = Session(box, [Cell("a", "import os, time\\ndef f():\\n    if os.fork() == 0:\\n"
                            "        os.setsid()\\n        time.sleep(600)\\n    return 1", "a")])
session.execute({"op": "call", "name": "f", "args": [], "kwargs": {}})
mine = psutil.Process()
print(*[process.pid for process in mine.children(recursive=True)], flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("way", ["sandboxed", "unsafe"])
def test_everything_dies_with_the_trusted_process(request, tmp_path, way):
    if way == "sandboxed":
        request.getfixturevalue("sandbox")
    ran = subprocess.run(
        [sys.executable, "-c", ORPHANS, way],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        check=False,
    )
    pids = [int(pid) for pid in ran.stdout.split()]
    assert len(pids) >= 4, ran.stderr

    def alive():
        return sum(
            psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
            for pid in pids
        )

    assert settles(alive, 0)


def test_a_sandbox_may_be_started_in_a_thread_that_ends(submit, sandbox):
    boxes = []
    thread = threading.Thread(target=lambda: boxes.append(Sandbox().__enter__()))
    thread.start()
    thread.join()
    with boxes[0] as box:
        assert value(submit("def f():\n    return 1", box=box), "f") == 1
        os.kill(below(box)[-1].pid, 9)
        assert value(submit("def f():\n    return 2", box=box), "f") == 2


# ------------------------------------------------------------------------------- other ways


def test_without_inner_namespaces_every_submission_gets_its_own_sandbox(submit, sandbox):
    source = """
        import os
        def write():
            open("/tmp/left-behind", "w").close()
            return os.path.exists("/tmp/left-behind")
        def read():
            return os.path.exists("/tmp/left-behind")
        def repo(path):
            return os.path.exists(path)
        """
    with Sandbox(nested=False) as box:
        first = submit(source, box=box)
        assert value(first, "write") is True
        assert value(first, "repo", str(ROOT)) is False
        first.close()
        assert value(submit(source, box=box), "read") is False


@pytest.mark.sandbox(needed=False)
def test_without_bubblewrap_limits_still_hold(submit):
    with Sandbox(unsafe=True) as box:
        session = submit(
            """
            import os, time
            def f(x):
                return x + 1
            def die():
                os._exit(4)
            def forever():
                if os.fork() == 0:
                    os.setsid()
                while True:
                    time.sleep(1)
            def fill():
                return bytearray(1 << 34)
            def here():
                return os.getcwd(), os.environ["HOME"]
            """,
            limits=HANGS,
            box=box,
        )
        x = torch.randn(2, 3)
        assert torch.equal(value(session, "f", x), x + 1)
        folder = Path(value(session, "here")[0])
        assert folder.is_dir()
        assert session.execute(call("die"))["kind"] == "crash"
        assert session.execute(call("forever"))["kind"] == "timeout"
        assert session.execute(call("fill"))["kind"] == "memory"
        assert torch.equal(value(session, "f", x), x + 1)
        session.close()
        assert not folder.exists()
        assert settles(lambda: len(psutil.Process(box._process.pid).children()), 0)


@pytest.mark.sandbox(needed=False)
def test_a_missing_bubblewrap_is_said_with_its_remedy(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailable, match=r"apt-get install bubblewrap.*unsafe-no-sandbox"):
        Sandbox().start()


@pytest.mark.sandbox(needed=False)
def test_a_bubblewrap_that_is_refused_is_said_with_its_words(monkeypatch, tmp_path):
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(SandboxUnavailable, match=r"uid map: Permission denied.*unsafe-no-sandbox"):
        Sandbox().start()


def test_the_doctor_hears_what_works(sandbox):
    sentences = probe()
    assert any("bubblewrap" in sentence for sentence in sentences)
    assert len(sentences) == 5


# ------------------------------------------------------------------ the process that is forked


def test_a_submission_looks_for_garbage_and_not_in_what_was_imported(submit):
    session = submit(
        """
        import gc
        import matplotlib
        def state():
            return [gc.isenabled(), gc.get_freeze_count() > 100_000]
        """
    )
    assert value(session, "state") == [True, True]
