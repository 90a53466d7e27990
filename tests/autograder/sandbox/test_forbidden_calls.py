"""What an exercise forbids is refused however it is called, noted, and there again afterwards."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autograder.common import paths
from autograder.common.cells import Cell
from autograder.judging.runner import Graders
from autograder.sandbox import forbidden_calls
from autograder.sandbox.executor import Executor
from autograder.sandbox.forbidden_calls import ForbiddenCall, Refusal
from autograder.sandbox.launcher import Sandbox
from autograder.sandbox.session import Session
from autograder.units.assignment import load
from autograder.units.variants import reference_namespace

X = torch.linspace(-1, 1, 12, dtype=torch.float32).reshape(3, 4)  # (B, D)
SEQUENCE = X.reshape(1, 3, 4)  # (B, T, D)
IMAGE = X.reshape(1, 1, 3, 4)
TARGET = torch.tensor([0, 1, 2])


def clipped(x: Tensor) -> Tensor:
    parameter = nn.Parameter(x.clone())
    parameter.grad = x.clone()
    return nn.utils.clip_grad_norm_([parameter], 0.1)


def filled(module: nn.Module) -> Any:
    for parameter in module.parameters():
        nn.init.constant_(parameter, 0.1)
    return module.eval().requires_grad_(False)


def mean_and_variance(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])


ATTENTION = filled(nn.MultiheadAttention(4, 2, batch_first=True))
ENCODER_LAYER = filled(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True))
ENCODER = nn.TransformerEncoder(ENCODER_LAYER, 1, enable_nested_tensor=False).eval()
DECODER_LAYER = filled(nn.TransformerDecoderLayer(4, 2, 8, batch_first=True))
RECURRENT = {name: filled(getattr(nn, name)(4, 4)) for name in ("RNN", "GRU", "LSTM")}
CELLS = {name: filled(getattr(nn, name)(4, 4)) for name in ("RNNCell", "GRUCell", "LSTMCell")}


def attention_forward(x: Tensor) -> Tensor:
    weights = ATTENTION.in_proj_weight, ATTENTION.in_proj_bias, None, None, False, 0.0
    out = ATTENTION.out_proj.weight, ATTENTION.out_proj.bias
    return F.multi_head_attention_forward(x, x, x, 4, 2, *weights, *out)[0]


# Each forbidden name, called as somebody would. "Refused by" is its entry in `REFUSED`.
CALLS: dict[str, Callable[[], Any]] = {
    "softmax": lambda: X.softmax(-1),
    "special_softmax": lambda: torch.special.softmax(X, -1),
    "log_softmax": lambda: F.log_softmax(X, -1),
    "softmin": lambda: F.softmin(X, -1),
    "dropout": lambda: F.dropout(X, 0.0),
    "dropout_": lambda: torch.dropout_(X.clone(), 0.0, True),
    "dropout1d": lambda: F.dropout1d(SEQUENCE, 0.0),
    "dropout2d": lambda: F.dropout2d(IMAGE, 0.0),
    "dropout3d": lambda: F.dropout3d(IMAGE[None], 0.0),
    "alpha_dropout": lambda: F.alpha_dropout(X, 0.0),
    "feature_dropout": lambda: torch.feature_dropout(X, 0.0, True),
    "feature_alpha_dropout": lambda: F.feature_alpha_dropout(X, 0.0),
    "native_dropout": lambda: torch.native_dropout(X, 0.0, True),
    "Dropout": lambda: nn.Dropout(0.0)(X),
    "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(IMAGE, IMAGE, IMAGE),
    "multi_head_attention_forward": lambda: attention_forward(SEQUENCE),
    "MultiheadAttention": lambda: ATTENTION(SEQUENCE, SEQUENCE, SEQUENCE)[0],
    "TransformerEncoder": lambda: ENCODER(SEQUENCE),
    "TransformerEncoderLayer": lambda: ENCODER_LAYER(SEQUENCE),
    "TransformerDecoderLayer": lambda: DECODER_LAYER(SEQUENCE, SEQUENCE),
    "layer_norm": lambda: F.layer_norm(X, (4,)),
    "native_layer_norm": lambda: torch.native_layer_norm(X, (4,), None, None, 1e-5),
    "LayerNorm": lambda: nn.LayerNorm(4)(X),
    "group_norm": lambda: F.group_norm(IMAGE, 1),
    "native_group_norm": lambda: torch.native_group_norm(IMAGE, None, None, 1, 1, 12, 1, 1e-5),
    "GroupNorm": lambda: nn.GroupNorm(1, 1)(IMAGE),
    "batch_norm": lambda: F.batch_norm(X, *mean_and_variance(X)),
    "native_batch_norm": lambda: torch.native_batch_norm(
        X, None, None, *mean_and_variance(X), False, 0.1, 1e-5
    ),
    "instance_norm": lambda: F.instance_norm(SEQUENCE),
    "rms_norm": lambda: F.rms_norm(X, (4,)),
    "RMSNorm": lambda: nn.RMSNorm(4)(X),
    "cross_entropy": lambda: F.cross_entropy(X, TARGET),
    "cross_entropy_loss": lambda: torch._C._nn.cross_entropy_loss(X, TARGET),
    "CrossEntropyLoss": lambda: nn.CrossEntropyLoss()(X, TARGET),
    "nll_loss": lambda: F.nll_loss(X, TARGET),
    "nll_loss_nd": lambda: torch._C._nn.nll_loss_nd(X, TARGET),
    "nll_loss2d": lambda: F.nll_loss(IMAGE.transpose(1, 3), torch.zeros(1, 3, 1).long()),
    "NLLLoss": lambda: nn.NLLLoss()(X, TARGET),
    "gelu": lambda: F.gelu(X),
    "GELU": lambda: nn.GELU()(X),
    "clip_grad_norm_": lambda: clipped(X),
    **{name: lambda module=module: module(X) for name, module in RECURRENT.items()},
    **{name: lambda module=module: module(X) for name, module in CELLS.items()},
}


class Other(Tensor):
    """A subclass of tensors, as a student may hand one over."""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as started:
        yield started


def values(found: Any) -> list[Tensor]:
    parts = found if isinstance(found, (tuple, list)) else [found]
    return [one for part in parts for one in (values(part) if part is not found else [part])]


def refused(name: str, attempt: Callable[[], Any]) -> None:
    """`attempt` answers nothing while `name` is refused, and it is noted what it called."""
    with Refusal([name]) as refusal:
        with pytest.raises(Exception, match="is what this exercise asks you to write"):
            attempt()
        assert refusal.take() == [forbidden_calls.entry(name)]


def test_the_table_has_every_name_that_an_exercise_forbids():
    units = map(load, paths.units())
    forbidden = {name for each in units for one in each.exercises for name in one.forbids}
    assert forbidden == set(CALLS)
    assert len(forbidden) == 47


@pytest.mark.parametrize("name", CALLS)
def test_a_forbidden_call_is_refused_and_works_again_afterwards(name):
    before = values(CALLS[name]())
    refused(name, CALLS[name])
    after = values(CALLS[name]())
    assert len(before) == len(after)
    for left, right in zip(before, after, strict=True):
        assert left is right or torch.equal(left, right)


@pytest.mark.parametrize("name", CALLS)
def test_it_is_refused_in_another_thread(name):
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(CALLS[name]())
        except ForbiddenCall as error:
            found.append(error)

    with Refusal([name]) as refusal:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert refusal.take() == [forbidden_calls.entry(name)]
    assert isinstance(found[0], ForbiddenCall)


@pytest.mark.parametrize("name", CALLS)
def test_it_is_refused_to_subclasses_of_tensors(name, monkeypatch):
    for each in ("X", "SEQUENCE", "IMAGE"):
        monkeypatch.setitem(globals(), each, globals()[each].as_subclass(Other))
    refused(name, CALLS[name])


@pytest.mark.parametrize("module", [ATTENTION, ENCODER_LAYER, DECODER_LAYER, ENCODER])
def test_it_is_refused_to_subclasses_of_modules(module):
    kind = type(module)
    own = type("Own", (kind,), {"forward": lambda self, *given: kind.forward(self, *given)})
    copy = own.__new__(own)
    vars(copy).update(vars(module))
    given = [SEQUENCE] * {ATTENTION: 3, DECODER_LAYER: 2}.get(module, 1)
    refused(kind.__name__, lambda: copy(*given))


@pytest.mark.parametrize("name", CALLS)
def test_every_operator_is_refused_through_torch_ops_and_every_function_where_it_stands(name):
    entry = forbidden_calls.entry(name)
    assert forbidden_calls.overloads(entry) or forbidden_calls.functions(entry)
    with Refusal([name]) as refusal:
        assert refusal.unrefused() == []
        for qualified in forbidden_calls.overloads(entry):
            with pytest.raises(ForbiddenCall):
                forbidden_calls.call_anyhow(qualified)
        for function in forbidden_calls.functions(entry).values():
            with pytest.raises(ForbiddenCall):
                function()
    assert Refusal([name]).unrefused() == [entry]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_it_is_refused_to_torchscript(name):
    with Refusal([name]) as refusal:
        with pytest.raises(Exception, match=r".") as caught:
            torch.jit.trace(lambda x: CALLS[name](), X, check_trace=False)
        assert refusal.take(), caught.value


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in CALLS if name[0].islower()])
def test_a_script_that_was_made_before_holds_no_operator_of_its_own(name):
    entry = forbidden_calls.entry(name)
    if not forbidden_calls.overloads(entry) or name == "multi_head_attention_forward":
        pytest.skip("a function of Python alone: see the guards")
    traced = torch.jit.trace(lambda x: CALLS[name](), X, check_trace=False)
    refused(name, lambda: traced(X))


def compiled_unrefused() -> list[str]:
    """Those of CALLS that a compiled function could call."""
    unrefused = []
    for name, call in CALLS.items():
        torch._dynamo.reset()
        compiled = torch.compile(lambda call=call: call(), backend="eager")
        answered = False
        with Refusal([name]) as refusal:
            with suppress(Exception):
                compiled()
                answered = True
            if answered or not refusal.take():
                unrefused.append(name)
    return unrefused


def test_they_are_refused_to_what_is_compiled():
    """In a process of its own: what is broken off leaves PyTorch's compiler in disorder."""
    program = f"from {__name__} import compiled_unrefused; print(compiled_unrefused())"
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_in_the_sandbox_no_script_is_made_of_what_is_python_alone(sandbox):
    cell = (
        "import torch\nfrom torch import nn\nmodule = nn.MultiheadAttention(4, 2)\n"
        "plain = module(torch.ones(1, 4), torch.ones(1, 4), torch.ones(1, 4))[0].shape\n"
        "for make in (torch.jit.script, lambda m: torch.jit.trace(m, (torch.ones(1, 4),) * 3)):\n"
        "    try:\n        make(module)\n    except Exception:\n        continue\n"
        "    raise AssertionError('it was made')\n"
    )
    with Session(sandbox, [Cell("a", cell, "a")]) as session:
        assert [report.error for report in session.load()] == [""]


@pytest.mark.parametrize("unit", paths.units())
def test_the_reference_does_without_what_it_forbids(unit):
    executor = Executor(reference_namespace(unit))
    graders = Graders(unit)
    forbidding = [one.name for one in graders.assignment.exercises if one.forbids]
    results = graders.run(
        executor.execute, refusing=executor.refusing, exercises=forbidding, diagnose=False
    )
    assert [name for name, result in results.items() if not result.passed] == []


@pytest.mark.parametrize(
    ("names", "allowed"),
    [
        (["softmax", "log_softmax", "softmin"], lambda x: x.logsumexp(-1) + x.exp().sum(-1)),
        (["softmax"], lambda x: x.log_softmax(-1)),
        (["dropout", "alpha_dropout"], lambda x: torch.bernoulli(x.sigmoid())),
        (["layer_norm", "batch_norm", "rms_norm"], lambda x: F.normalize(x) + torch.var_mean(x)[0]),
        (["gelu"], lambda x: F.silu(x) + torch.erf(x)),
        (["cross_entropy", "nll_loss"], lambda x: x.log_softmax(-1).gather(-1, x.argmax(-1, True))),
        (["MultiheadAttention"], lambda x: F.scaled_dot_product_attention(x, x, x)),
        (["clip_grad_norm_"], lambda x: x.norm() + nn.utils.parameters_to_vector([x]).norm()),
        (["GRU", "GRUCell"], lambda x: nn.Linear(4, 4)(x).tanh()),
    ],
)
def test_what_stands_beside_a_forbidden_function_may_be_called(names, allowed):
    with Refusal(names) as refusal:
        allowed(X.clone().requires_grad_()).sum().backward()
        assert refusal.take() == []


def test_nothing_in_a_sealed_process_brings_a_function_back():
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with Refusal(["softmax", "MultiheadAttention"]) as refusal:
            refusal.seal()
        told = [refusal.unrefused()]
        forbidden_calls._refusal = None
        forbidden_calls.unguard("MultiheadAttention")
        del refusal
        gc.collect()
        for name in ("softmax", "MultiheadAttention"):
            try:
                told.append(str(CALLS[name]()))
            except Exception:
                told.append([])
        os.write(writer, repr(told).encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        assert pipe.read() == "[[], [], []]"
    os.waitpid(pid, 0)


def test_who_puts_a_kernel_back_is_found_out():
    kernel = torch.library.get_kernel("aten::_softmax", "CPU")
    with Refusal(["softmax"]) as refusal:
        assert refusal.unrefused() == []
        library = torch.library.Library("aten", "IMPL")
        library.impl(
            "softmax.int",
            lambda x, dim, dtype=None: kernel.call_boxed(None, x, dim, False),
            "AutogradCPU",
        )
        assert refusal.unrefused() == ["softmax"]
        library._destroy()
    assert torch.allclose(X.softmax(-1).sum(-1), torch.ones(3))


WAYS = {
    "thread": """
        from concurrent.futures import ThreadPoolExecutor
        def f(x):
            return ThreadPoolExecutor(1).submit(torch.softmax, x, -1).result()
    """,
    "attrgetter": """
        import operator
        def f(x):
            return operator.attrgetter("nn.functional.soft" + "max")(torch)(x, -1)
    """,
    "pickle": """
        import pickle
        kept = pickle.dumps(torch.nn.Softmax(-1))
        def f(x):
            return pickle.loads(kept)(x)
    """,
    "subclass": """
        class Own(torch.Tensor):
            @classmethod
            def __torch_function__(cls, function, types, args=(), kwargs=None):
                with torch._C.DisableTorchFunctionSubclass():
                    return function(*args, **(kwargs or {}))
        def f(x):
            return torch.softmax(x.as_subclass(Own), -1)
    """,
    "script": """
        made = torch.jit.trace(lambda x: torch.softmax(x, -1), torch.ones(3))
        def f(x):
            return made(x)
    """,
    "safe": "def f(x):\n    return torch._safe_softmax(x, -1)",
    "trace of a cell": """
        made = [torch.ones(3)]
        try:
            cell = torch.nn.GRUCell(3, 3)
            made = torch.jit.trace(cell, (torch.ones(1, 3), torch.ones(1, 3)))
        except RuntimeError as error:
            assert "can't be traced" in str(error)
        else:
            raise AssertionError("it was traced")
        def f(x):
            return x.softmax(-1)
    """,
    "a thread of a cell": """
        import os, threading
        (asks, ask), (answers, answer) = os.pipe(), os.pipe()
        def serve():
            while True:
                os.read(asks, 1)
                try:
                    torch.softmax(torch.ones(3), -1)
                    os.write(answer, b"1")
                except RuntimeError:
                    os.write(answer, b"0")
        threading.Thread(target=serve, daemon=True).start()
        def f(x):
            os.write(ask, b"1")
            if os.read(answers, 1) == b"1":
                return x  # It was computed, and nobody has noted it.
            return x.softmax(-1)
    """,
    "vmap": "def f(x):\n    return torch.func.vmap(lambda row: row.softmax(-1))(x[None])",
    "caught": """
        def f(x):
            try:
                return x.softmax(-1)
            except RuntimeError:
                return x.exp() / x.exp().sum()
    """,
}


def asked(session: Any, name: str = "f") -> dict[str, Any]:
    return session.execute({"op": "call", "name": name, "args": [torch.ones(3)], "kwargs": {}})


@pytest.mark.parametrize("way", WAYS)
def test_in_the_sandbox_no_way_leads_to_a_forbidden_function(sandbox, way):
    cells = ["import torch\ntried = torch.softmax(torch.ones(3), 0)", "def broken(:"]
    cells += [textwrap.dedent(WAYS[way]), "def other(x):\n    return torch.softmax(x, -1)"]
    with Session(sandbox, [Cell(str(n), text, str(n)) for n, text in enumerate(cells)]) as session:
        assert [report.status for report in session.load()] == ["ok", "error", "ok", "ok"]
        for _ in range(2):
            with session.refusing(["softmax"]) as undone:
                assert asked(session)["forbidden"] == ["softmax"]
            assert undone == []
            assert torch.equal(asked(session, "other")["value"], torch.full((3,), 1 / 3))


def test_how_a_process_ends_is_told_as_before_while_something_is_refused(sandbox):
    cell = (
        "import ctypes, os\ndef leave(x):\n    os._exit(3)\n"
        "def fall(x):\n    ctypes.string_at(0)\ndef f(x):\n    return x\n"
    )
    with Session(sandbox, [Cell("a", cell, "a")]) as session:
        for name in ("leave", "fall"):
            plain = asked(session, name)
            with session.refusing(["softmax"]) as undone:
                assert asked(session, name) == plain
                assert torch.equal(asked(session)["value"], torch.ones(3))
            assert undone == []
