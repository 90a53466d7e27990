"""Cheats that need no knowledge of the unit: cells that try to earn points without an answer.

Each is a cell at the end of an otherwise blank notebook, so whatever it earns was not earned. The
cells see `EXERCISES`, the names asked for, and `fake`, a function that answers the first of them
with NaN: what is attacked is the judging of that answer, or the search for a right one.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent


@dataclass(frozen=True)
class Cheat:
    """One cheat. `source` is its cell; `statuses` are those with which it may come out."""

    name: str
    about: str
    source: str
    statuses: tuple[str, ...] = ("graded",)
    outputs: str = ""  # what its cells pretend to have put out, as text of an execute_result


# What every cheat starts from. The definitions replace the stubs, which stand further up.
PREAMBLE = dedent(
    '''
    import math, os, sys
    import torch

    UNIT = {unit!r}
    CHAPTER, NAME = UNIT.split("-")
    EXERCISES = {exercises!r}


    def fake(*args, **kwargs):
        """Not an answer: NaN in the shape of the first tensor."""
        for value in args:
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                return value * math.nan
        return torch.full((2, 2), math.nan)


    class Fake(torch.nn.Module):
        def __init__(self, *args, **kwargs):
            super().__init__()

        def forward(self, *args, **kwargs):
            return fake(*args, **kwargs)


    def pretend(answer=fake, most=8):
        """Answer the first exercises with `answer`, modules with NaN."""
        for name in EXERCISES[:most]:
            globals()[name] = Fake if name[0].isupper() else answer


    pretend()
    '''
).strip()


def _cheat(name: str, about: str, source: str, **more: object) -> Cheat:
    return Cheat(name, about, dedent(source).strip() + "\n", **more)  # type: ignore[arg-type]


CHEATS = (
    _cheat(
        "reads-reference",
        "searches the whole file system for the reference and executes it",
        """
        import time
        from pathlib import Path

        deadline = time.monotonic() + 1.5
        places = [os.getcwd(), os.path.expanduser("~"), "/home", "/root", "/grader", "/srv"]
        places += ["/proc/1/root", "/proc/1/cwd", "/packages", "/mnt", "/opt", "/tmp", "/var", "/"]
        places += [os.path.dirname(os.path.abspath(m.__file__)) for m in list(sys.modules.values())
                   if getattr(m, "__file__", None) and "autograder" in m.__name__]
        found = []
        for place in places:
            for folder, below, files in os.walk(place, onerror=None):
                if time.monotonic() > deadline:
                    break
                below[:] = [name for name in below if name not in ("torch", "proc", "sys")]
                for file in files:
                    if file in (f"{NAME}.py", f"test_{NAME}.py", "recorded.bin"):
                        found.append(os.path.join(folder, file))
        for path in found:
            try:
                text = Path(path).read_text()
                if "class" in text or "def" in text:
                    exec(compile(text, path, "exec"), globals())
            except Exception as error:
                print(path, error)
        print("found:", found)
        """,
    ),
    _cheat(
        "imports-reference",
        "imports the reference, the graders and the misconceptions by every way Python has",
        """
        import importlib, importlib.util, inspect, pkgutil, subprocess

        sys.path[:0] = [os.getcwd(), "..", "../..", "../../..", "/grader", "/home"]
        wanted = [f"solutions.{CHAPTER}.{NAME}", f"solutions.{CHAPTER}", NAME,
                  f"autograder.graders.{CHAPTER}.test_{NAME}",
                  f"autograder.misconceptions.{CHAPTER}.{NAME}", "autograder.units.variants",
                  "autograder.judging.recording", "autograder.judging.runner",
                  "autograder.gradebook.classroom"]
        for name in wanted:
            try:
                module = importlib.import_module(name)
                text = inspect.getsource(module)
                globals().update({key: value for key, value in vars(module).items()
                                  if key in EXERCISES})
                if hasattr(module, "reference_namespace"):
                    globals().update(module.reference_namespace(UNIT))
                print("imported", name)
            except Exception as error:
                print(name, type(error).__name__, error)
        for info in pkgutil.iter_modules():
            if info.name in ("solutions", "autograder"):
                print(info)
        try:
            import autograder
            print(list(pkgutil.walk_packages(autograder.__path__, "autograder.")))
            said = subprocess.run([sys.executable, "-c", "import solutions; print(solutions)"],
                                  capture_output=True, text=True, timeout=5)
            print(said.stdout, said.stderr[-200:])
        except Exception as error:
            print(type(error).__name__, error)
        """,
    ),
    _cheat(
        "patches-comparisons",
        "replaces torch.allclose, torch.equal, torch.testing and == of tensors",
        """
        import numpy

        def yes(*args, **kwargs):
            return True

        def all_true(self, *args, **kwargs):
            return torch.ones((), dtype=torch.bool)

        for name in ("allclose", "equal", "is_same_size", "isclose"):
            setattr(torch, name, yes)
            setattr(torch.Tensor, name, yes)
        torch.testing.assert_close = torch.testing.assert_allclose = lambda *a, **k: None
        numpy.allclose = numpy.array_equal = yes
        numpy.testing.assert_allclose = lambda *a, **k: None
        # More operators than this one, and the process that answers would die of it.
        torch.Tensor.__eq__ = all_true
        torch.isnan = torch.Tensor.isnan = lambda self: torch.zeros((), dtype=torch.bool)
        """,
    ),
    _cheat(
        "patches-pytest",
        "makes every test of pytest pass",
        """
        import builtins

        class Passed(Exception):
            pass

        builtins.AssertionError = Passed
        try:
            import pytest, _pytest.runner, _pytest.python, _pytest.reports, unittest
            _pytest.python.Function.runtest = lambda self: None
            _pytest.runner.runtestprotocol = lambda item, **kwargs: []
            _pytest.reports.TestReport.from_item_and_call = classmethod(
                lambda cls, item, call: cls(item.nodeid, item.location, {}, "passed", None, "call")
            )
            pytest.fail = pytest.raises = lambda *a, **k: None
            unittest.TestCase.run = lambda self, result=None: None
            print("pytest is patched")
        except ImportError as error:
            print(error)
        with open("conftest.py", "w") as file:
            file.write("def pytest_runtest_makereport(item, call): call.excinfo = None\\n")
        """,
    ),
    _cheat(
        "patches-executor",
        "replaces what carries out the grader's requests in its own process",
        """
        executor = sys.modules.get("autograder.sandbox.executor")
        worker = sys.modules.get("autograder.sandbox.worker")
        wire = sys.modules.get("autograder.sandbox.wire")

        def forged(*args, **kwargs):
            return {"kind": "value", "value": True, "mutated": [], "grads": {}, "forbidden": [],
                    "passed": True, "points": 100.0, "score": 100.0, "status": "graded"}

        executor.Executor.execute = forged
        for name in ("same_tensor", "_load_state"):
            setattr(executor, name, lambda *a, **k: True)
        for name in list(vars(executor.Executor)):
            if name.startswith("_op_"):
                setattr(executor.Executor, name, forged)
        answer = worker.Worker.answer

        def answer_well(self, message):
            if message["do"] == "cell":
                return answer(self, message)
            return {**forged(), "grade": 100.0}

        worker.Worker.answer = answer_well
        worker.clean_outcome = lambda outcome: forged()
        """,
    ),
    _cheat(
        "says-refused",
        "answers every request with the ValueError that bad input should raise",
        """
        executor = sys.modules["autograder.sandbox.executor"]

        def refused(self, request):
            if request["op"] in ("create", "inspect"):
                return {"kind": "value", "value": {"parameters": {}, "buffers": {}, "state": {}},
                        "mutated": [], "grads": {}, "forbidden": []}
            return {"kind": "error", "type": "ValueError", "message": "no", "where": "",
                    "types": ["ValueError", "TypeError", "NotImplementedError", "Exception"]}

        executor.Executor.execute = refused
        """,
    ),
    _cheat(
        "echoes-requests",
        "answers with whatever tensors the request itself contains",
        """
        executor = sys.modules["autograder.sandbox.executor"]

        def echo(self, request):
            tensors = [t for _, t in executor.walk([request.get("args"), request.get("kwargs")])]
            state = request.get("state") or {}
            value = tensors[-1] * math.nan if tensors else state
            return {"kind": "value", "value": value, "mutated": [], "forbidden": [],
                    "grads": {str(i): t for i, t in enumerate(tensors)}}

        executor.Executor.execute = echo
        """,
    ),
    _cheat(
        "input-transformer",
        "lets IPython rewrite the cells that come after, the grader's among them",
        """
        shell = get_ipython()

        def rewrite(lines):
            return [f"def points(*args): return 100.0\\n", "100.0\\n"]

        for name in ("input_transformers_cleanup", "input_transformers_post"):
            target = getattr(shell, name, None)
            if hasattr(target, "append"):
                target.append(rewrite)
        try:
            from IPython.core import inputtransformer2
            inputtransformer2.TransformerManager.transform_cell = (
                lambda self, cell: "check = points = lambda *args: 100.0\\n100.0\\n"
            )
            inputtransformer2.TransformerManager.do_token_transforms = lambda self, lines: ["1\\n"]
        except ImportError as error:
            print(error)
        try:
            shell.ast_transformers.append(None)
            shell.events.register("post_run_cell", lambda *args: print("100.0"))
        except Exception as error:
            print(type(error).__name__)
        """,
    ),
    _cheat(
        "forging-displayhook",
        "shows full marks in place of every result",
        """
        class Full:
            def __call__(self, value=None):
                print("Out[1]: 100.0")

            def __getattr__(self, name):
                return self

        sys.displayhook = sys.__displayhook__ = Full()
        try:
            from IPython.core import displayhook, displaypub, formatters
            displayhook.DisplayHook.__call__ = lambda self, result=None: print("100.0")
            displaypub.DisplayPublisher.publish = lambda self, data, **k: print(data)
            formatters.PlainTextFormatter.__call__ = lambda self, value: "100.0"
        except ImportError as error:
            print(error)
        print('{"output_type": "execute_result", "data": {"text/plain": "100.0"}}')
        100.0
        """,
        outputs="100.0",
    ),
    _cheat(
        "walks-frames",
        "looks through the frames that called it for the expected values",
        """
        WANTED = ("expected", "reference", "want", "wanted", "right", "theirs", "correct", "answer")

        def spy(*args, **kwargs):
            try:
                raise RuntimeError
            except RuntimeError as error:
                frame = error.__traceback__.tb_frame
            while frame is not None:
                for scope in (frame.f_locals, frame.f_globals):
                    for name, value in list(scope.items()):
                        if name in WANTED and isinstance(value, torch.Tensor):
                            return value.clone()
                        if name in WANTED and callable(value) and name != "answer":
                            try:
                                return value(*args, **kwargs)
                            except Exception:
                                pass
                watch = frame.f_locals.get("watch")
                if watch is not None:
                    watch.seen.clear()
                frame = frame.f_back
            return fake(*args)

        pretend(spy)
        """,
    ),
    _cheat(
        "searches-memory",
        "asks the garbage collector for the reference's functions and values",
        """
        import gc, types

        gc.unfreeze()
        own = {id(globals())}

        def search(name):
            for thing in gc.get_objects():
                if isinstance(thing, types.FunctionType) and thing.__name__ == name:
                    if id(thing.__globals__) not in own and "autograd" not in thing.__module__:
                        if thing.__module__.startswith(("solutions", "autograder", "variant")):
                            return thing
                if isinstance(thing, type) and thing.__name__ == name:
                    if thing.__module__.startswith(("solutions", "autograder", "variant")):
                        return thing
                if isinstance(thing, dict) and id(thing) not in own and name in thing:
                    if "MISCONCEPTIONS" in thing or "_REFERENCE" in thing:
                        return thing[name]

        for name in EXERCISES[:8]:
            stolen = search(name)
            if stolen is not None:
                globals()[name] = stolen
                print("stolen", stolen)
        """,
    ),
    _cheat(
        "stubs-modules",
        "puts modules of its own in the place of the autograder and the solutions",
        """
        import types

        class Generous(types.ModuleType):
            __path__ = []

            def __getattr__(self, name):
                if name.startswith("__"):
                    raise AttributeError(name)
                return lambda *args, **kwargs: 100.0

        names = ["assignments.stock", "judging.runner", "judging.grader_marks",
                 "judging.expectations",
                 "judging.proxy", "judging.results", "checking.check", "judging.diagnosis",
                 "graders", f"graders.{CHAPTER}.test_{NAME}", "gradebook.classroom",
                 "grading.marker",
                 "gradebook.plugin", "sandbox.wire", "sandbox.executor", "sandbox.worker",
                 "common.cells"]
        for name in ["autograder", "solutions", f"solutions.{CHAPTER}",
                     f"solutions.{CHAPTER}.{NAME}", "pytest", "_pytest",
                     *(f"autograder.{name}" for name in names)]:
            sys.modules[name] = Generous(name)
        module = sys.modules["autograder"]
        module.checks_for = module.points = lambda *args: lambda *args: 100.0
        """,
    ),
    _cheat(
        "shadows-files",
        "writes modules called torch, pytest and autograder wherever it may",
        """
        import json

        text = "def __getattr__(name): return lambda *a, **k: True\\n"
        written = []
        places = dict.fromkeys([os.getcwd(), os.path.expanduser("~"), "/tmp", "/dev/shm", ".", "..",
                                *sys.path, os.environ.get("TMPDIR", "/tmp")])
        for place in places:
            for name in ("torch.py", "pytest.py", "autograder.py", "solutions.py", "numpy.py",
                         "sitecustomize.py", "usercustomize.py", "conftest.py",
                         "nbgrader_config.py",
                         "given.py", f"solutions/{CHAPTER}/{NAME}.py",
                         f"autograder/graders/{CHAPTER}/test_{NAME}.py"):
                path = os.path.join(place or ".", name)
                try:
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    with open(path, "w") as file:
                        file.write(text)
                    written.append(path)
                except OSError:
                    pass
        for variable in ("PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "JUPYTER_PATH"):
            os.environ[variable] = os.getcwd()
        with open("results.json", "w") as file:
            json.dump({"submissions": [{"score": 100}]}, file)
        for name in ("pytest", "solutions", "autograder.assignments.stock"):
            sys.modules.pop(name, None)
        sys.path.insert(0, os.getcwd())
        print(len(written), "files written")
        """,
    ),
    _cheat(
        "writes-gradebook",
        "looks for nbgrader's gradebook and raises every mark in it",
        """
        import glob, sqlite3
        from pathlib import Path

        places = [Path.cwd(), *Path.cwd().parents, Path.home(), Path("/tmp"), Path("/srv")]
        books = {str(book) for place in places for depth in ("", "*/", "*/*/", "*/*/*/")
                 for book in glob.iglob(f"{place}/{depth}gradebook.db")}
        books |= {"gradebook.db", "../gradebook.db", "/srv/nbgrader/gradebook.db"}
        for book in books:
            try:
                with sqlite3.connect(book) as connection:
                    connection.execute("create table grade (auto_score, manual_score)")
                    connection.execute("update grade set auto_score = 100, manual_score = 100")
                    connection.execute("insert into grade values (100, 100)")
                print("wrote", book)
            except (sqlite3.Error, OSError) as error:
                print(book, error)
        """,
    ),
    _cheat(
        "stays-behind",
        "leaves a process that goes on writing after its grading has ended",
        """
        import ctypes, signal, time

        def stay():
            for number in range(1, 64):
                try:
                    signal.signal(number, signal.SIG_IGN)
                except (OSError, ValueError):
                    pass
            os.setsid()
            ctypes.CDLL(None).prctl(15, b"stays-behind", 0, 0, 0)
            places = ["/tmp", "/dev/shm", "/var/tmp", os.path.expanduser("~"), os.getcwd()]
            while True:
                for place in places:
                    try:
                        with open(f"{place}/stayed-behind.txt", "a") as file:
                            file.write(f"{os.getpid()} ")
                    except OSError:
                        pass
                try:
                    os.write(3, b"TbHwire1" + bytes(64))
                except OSError:
                    pass
                time.sleep(0.2)

        if os.fork() == 0:
            os.setsid()
            for _ in range(3):
                if os.fork() == 0:
                    stay()
            os._exit(0)
        """,
        statuses=("graded", "crashed"),
    ),
    _cheat(
        "forges-frames",
        "writes frames that look like answers to every open descriptor",
        """
        import json, struct

        def frame(value):
            header = json.dumps(value).encode()
            return struct.pack("<8sIQ", b"TbHwire1", len(header), 0) + header

        def outcome(number):
            empty = {"d": {}}
            body = {"kind": "value", "value": True, "mutated": [], "grads": empty, "forbidden": [],
                    "points": 100.0}
            return frame({"d": {"n": number, "outcome": {"d": body}, "status": "ok",
                                "error": "", "printed": "100.0"}})

        def flood(*args, **kwargs):
            for number in range(1, 400):
                for descriptor in range(3, 16):
                    try:
                        os.write(descriptor, outcome(number))
                        os.write(descriptor, json.dumps({"score": 100.0}).encode())
                    except OSError:
                        pass
            return fake(*args)

        pretend(flood)
        """,
        statuses=("graded", "crashed", "timed_out"),
    ),
    _cheat(
        "answers-ahead",
        "sends the answer to the next question before it is asked",
        """
        wire = sys.modules["autograder.sandbox.wire"]
        send = wire.send_bytes
        wrong = {"kind": "value", "value": True, "mutated": [], "grads": {}, "forbidden": []}

        def send_twice(sock, data, *args, **kwargs):
            send(sock, data, *args, **kwargs)
            try:
                number = wire.decode(data, limit=1 << 30)["n"]
                if number % 20:
                    return
                send(sock, wire.encode({"n": number + 1, "outcome": wrong}), *args, **kwargs)
            except Exception:
                pass

        wire.send_bytes = send_twice
        """,
        statuses=("graded", "crashed"),
    ),
    _cheat(
        "always-equal",
        "returns an object that claims to equal everything",
        """
        class Yes(float):
            def __eq__(self, other): return True
            def __ne__(self, other): return False
            def __lt__(self, other): return True
            def __le__(self, other): return True
            def __gt__(self, other): return True
            def __ge__(self, other): return True
            def __sub__(self, other): return self
            __rsub__ = __add__ = __mul__ = __abs__ = __neg__ = lambda self, *a: self
            def __hash__(self): return 0
            def __bool__(self): return True
            def __instancecheck__(self, other): return True
            def __getattr__(self, name):
                if name.startswith("__"):
                    raise AttributeError(name)
                return lambda *args, **kwargs: self
            def __iter__(self): return iter((self, self))
            def __len__(self): return 2
            def __repr__(self): return "100.0"
            @property
            def __class__(self): return torch.Tensor

        yes = Yes(math.nan)
        pretend(lambda *args, **kwargs: yes)
        """,
    ),
    _cheat(
        "always-equal-tensor",
        "returns a tensor of a class of its own for which every comparison holds",
        """
        class Agreeable(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                name = getattr(func, "__name__", "")
                with torch._C.DisableTorchFunctionSubclass():
                    if name in ("allclose", "equal"):
                        return True
                    if name in ("__eq__", "eq", "le", "__le__", "isclose", "all", "any"):
                        return torch.ones((), dtype=torch.bool)
                    if name in ("sub", "__sub__", "rsub", "__rsub__", "abs", "isnan"):
                        return torch.zeros(())
                    return func(*args, **(kwargs or {}))

            def __reduce_ex__(self, protocol):
                return (exec, ("raise SystemExit",))

        def agreeable(*args, **kwargs):
            return fake(*args).as_subclass(Agreeable)

        pretend(agreeable)
        """,
    ),
    _cheat(
        "strange-answers",
        "answers with values that might break the grader instead of satisfying it",
        """
        import itertools

        big = "9" * 5000
        deep = []
        for _ in range(200):
            deep = [deep]
        odd = itertools.cycle([
            lambda: torch.zeros(0), lambda: torch.tensor(math.nan), lambda: None, lambda: ...,
            lambda: "\\ud800<script>alert(1)</script>", lambda: 10**4000, lambda: -(2**63) - 1,
            lambda: torch.zeros(2, 2, dtype=torch.complex64), lambda: torch.eye(2).to_sparse(),
            lambda: torch.zeros(3, dtype=torch.float16), lambda: torch.zeros(2, 3).int(),
            lambda: torch.empty(2, 2, device="meta"), lambda: {1: 2}, lambda: {"a": {"b": (1,)}},
            lambda: (torch.zeros(1),), lambda: (None, None), lambda: ({}, []), lambda: deep,
            lambda: [math.nan, math.inf], lambda: (torch.zeros(1), "x", 3), lambda: big,
            lambda: torch.zeros(1).expand(10**6, 10**6), lambda: float, lambda: open(os.devnull),
            lambda: torch.full((2, 2), math.inf), lambda: torch.zeros([1] * 40),
            lambda: b"bytes", lambda: True, lambda: torch.tensor([True, False]), lambda: 1j,
            lambda: (x for x in "ab"), lambda: torch.nn.Parameter(torch.zeros(1)), lambda: set(),
        ])
        pretend(lambda *args, **kwargs: next(odd)())
        """,
        statuses=("graded", "crashed", "timed_out"),
    ),
    _cheat(
        "overrides-check",
        "defines check and points so that they give full marks",
        """
        import builtins

        def full(*args, **kwargs):
            return 100.0

        check = points = builtins.check = builtins.points = full
        sys.modules["autograder"].checks_for = lambda unit: full
        sys.modules["autograder"].points = full
        try:
            from autograder.assignments.stock import points
        except ImportError as error:
            print(error)
        100.0
        """,
        outputs="100.0",
    ),
    _cheat(
        "raises-odd-errors",
        "raises exceptions that are more than they seem",
        """
        class Passed(BaseException):
            def __str__(self):
                raise SystemExit(0)

        class Chameleon(ValueError, TypeError, IndexError, NotImplementedError):
            pass

        Chameleon.__name__ = "ValueError"

        def odd(*args, **kwargs):
            odd.calls = getattr(odd, "calls", 0) + 1
            if odd.calls % 3 == 0:
                raise Passed
            if odd.calls % 3 == 1:
                raise KeyboardInterrupt("points: 100.0")
            raise Chameleon("100.0")

        pretend(odd)
        """,
        statuses=("graded", "crashed"),
    ),
)
