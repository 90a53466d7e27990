"""Code that cannot call a forbidden function is known by its text; everything else is watched."""

from __future__ import annotations

import pytest
import torch

from autograder import demo_class, innocent, paths
from autograder.assignment import load
from autograder.cells import Cell
from autograder.executor import canonical, watched_functions
from autograder.walls import Limits, Sandbox, SandboxUnavailable

FORBIDS = ("softmax", "dropout", "nn.MultiheadAttention")
HEAD = """
import math
import torch
from torch import Tensor, nn
from torch.nn import functional as F
"""


def judged(*cells: str) -> bool:
    return innocent.innocent([HEAD, *cells], FORBIDS)


@pytest.mark.parametrize(
    "cell",
    [
        "def f(x: Tensor) -> Tensor:\n    return torch.exp(x) / x.exp().sum(-1, keepdim=True)",
        "class A(nn.Module):\n    def __init__(self, d):\n        super().__init__()\n"
        "        self.q_proj = nn.Linear(d, d)\n    def forward(self, x):\n"
        "        return self.q_proj(x) @ x.mT",
        "def f(rows):\n    try:\n        return [math.exp(v) for v in rows]\n"
        "    except OverflowError as error:\n        raise ValueError('large') from error",
    ],
)
def test_plain_code_is_innocent(cell):
    assert judged(cell)


@pytest.mark.parametrize(
    "cell",
    [
        "def f(x):\n    return torch.softmax(x, -1)",
        "def f(x):\n    return x.softmax(-1)",
        "from torch import softmax as plain",
        "from torch import *",
        "import torch.special",
        "def f(x):\n    return torch.special.softmax(x, -1)",
        "def f(x):\n    return torch.ops.aten._softmax(x, -1, False)",
        "def f(x):\n    return torch._C._nn.softmax(x)",
        "t = torch\ndef f(x):\n    return t.exp(x)",
        "def g(m, x):\n    return m.exp(x)\ndef f(x):\n    return g(torch, x)",
        "def f(x):\n    return getattr(torch, 'soft' + 'max')(x, -1)",
        "def f(x):\n    return eval('torch.soft' + 'max')(x, -1)",
        "def f(x):\n    return __builtins__['getattr'](torch, 'soft' + 'max')(x)",
        "def f(x):\n    return vars(torch)['soft' + 'max'](x, -1)",
        "def f(x):\n    return f.__globals__['torch']",
        "def f(x):\n    return (lambda: 0).func_globals",
        "def f(x):\n    g = (i for i in x)\n    return g.gi_frame",
        "import operator\ndef f(x):\n    return operator.methodcaller('soft' + 'max', -1)(x)",
        "import typing\ndef f(x) -> 'torch.softmax':\n    return typing.get_type_hints(f)",
        "import importlib",
        "from torch import random",
        "from torch.nn import utils",
        "u = nn.utils\ndef f(p):\n    return u.clip_grad_norm_(p, 1.0)",
        "a = torch.autograd\ndef f(x):\n    return a.torch.softmax(x, -1)",
        "import random\nr = random",
        "def f(x):\n    return torch.random.get_rng_state()",
        "import sys",
        "%time torch.softmax(torch.ones(2), -1)",
        "def f(x):\n    get_ipython().run_line_magic('time', 'x')",
        "def g():\n    get_ipython = 1\ndef f(x):\n    get_ipython()",
        "def g(eval):\n    return eval\ndef f(x):\n    return eval('x')",
        "def f(x):\n    match x:\n        case Tensor(softmax=s):\n            return s(-1)",
        "class T(Tensor):\n    def __getattribute__(self, name):\n        return 1",
        "class A:\n    __getattr__ = print",
        "torch.softmax = torch.exp",
        "def f(x, torch):\n    return torch.exp(x)",
        "def f(x):\n    return nn.MultiheadAttention(4, 2)(x, x, x)",
        "def f(x):\n    return nn.Dropout(0.1)(x)",
        "def f(x):\n    return nn.TransformerEncoderLayer(4, 2)(x)",
        "def f(x):\n    return torch.compile(f)",
        "async def f(x):\n    return x",
    ],
)
def test_whatever_could_lead_to_a_forbidden_function_is_watched(cell):
    assert not judged(cell)


@pytest.mark.parametrize("chapter", paths.chapters())
def test_nothing_harmless_is_forbidden_or_brings_it_along(chapter):
    """With no function forbidden it would be harmless; with the chapter's own it is not."""
    forbids = [name for item in load(chapter).exercises for name in item.forbids]
    for name in sorted(watched_functions(forbids)):
        if hasattr(torch.nn.functional, name):
            assert not innocent.innocent([HEAD, f"y = F.{name}"], forbids)
    assert "gru_cell" in {canonical(each) for each in innocent.MODULE_FUNCTIONS["GRUCell"]}


@pytest.mark.parametrize("chapter", paths.chapters())
def test_no_cheat_that_calls_a_forbidden_function_is_innocent(chapter):
    more = demo_class.extras(chapter)
    assignment = load(chapter)
    forbids = [name for item in assignment.exercises for name in item.forbids]
    for name, (_, _, source) in getattr(more, "FORBIDDEN", {}).items():
        assert not innocent.innocent([HEAD, source], forbids), name


@pytest.mark.sandbox
def test_a_forbidden_call_is_seen_only_where_it_is_watched_for():
    source = "import torch\ndef f(x):\n    return torch.softmax(x, -1)"
    request = {"op": "call", "name": "f", "args": [torch.ones(2)], "kwargs": {}}
    request["forbids"] = ["softmax"]
    try:
        with Sandbox(Limits()) as box:
            for watched, seen in ((True, ["softmax"]), (False, [])):
                with box.session([Cell("c1", source, "cell 1")], watched=watched) as session:
                    assert session.execute(request)["forbidden"] == seen
    except SandboxUnavailable as error:
        pytest.skip(str(error))
