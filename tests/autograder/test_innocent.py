"""Code that cannot call a forbidden function is known by its text; everything else is watched."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.nn import functional as F

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
        "def f(x):\n    return Encoder(x)",  # There is none, so that this only raises.
        "def f(counts):\n    return max(counts, key=counts.__getitem__)",
        "def f(model):\n    return getattr(model.decoder, 'norm', None) or getattr(model, 'own')",
        "def f(model):\n    return getattr(model, 'dropout', 0.1)",
        "def f(model):\n    model.apply(lambda module: None)\n"
        "    torch.optim.AdamW(model.parameters(), lr=0.1).step()",
        "from torch.nn import init\ndef f(w):\n    init.xavier_uniform_(w)",
        "def f(w):\n    nn.init.normal_(w)\n    return torch.special.ndtr(w)",
        "def f(x):\n    import math\n    return math.exp(x)",
        "class A:\n    def f(self, x):\n        import math\n        return math.exp(x)",
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


# What a class's own `dropout` may look like. `torch.dropout` and `F.dropout` are forbidden.
OWN = """
class A(nn.Module):
    def __init__(self, d, dropout):
        super().__init__()
        self.q_proj = nn.Linear(d, d)
        {there}
    def forward(self, x):
        {here}
"""


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ("self.dropout = dropout", "return F.linear(x, self.q_proj.weight) * self.dropout"),
        ("self.dropout = float(dropout)", "return own_dropout(x, self.dropout, self.training)"),
        ("self.dropout = B(dropout)", "return self.dropout(self.q_proj(x))"),
        ("self.layer = B(d)", "return self.layer.dropout"),
        ("self.layer = B(d)", "layer = self.layer\n        return layer.dropout(x)"),
        ("self.dropout: float = dropout", "self.dropout += 0.1"),
        ("self.dropout, self.d = dropout, d", "return own_dropout(x, p=self.dropout)"),
        ("setattr(self, 'dropout', dropout)", "return getattr(self, 'dropout') * x"),
    ],
)
def test_an_attribute_of_its_own_may_be_called_as_a_forbidden_function_is(there, here):
    assert judged(OWN.format(there=there, here=here))
    assert not judged(OWN.format(there=there, here=f"F.dropout(x)\n        {here}"))


USE = "\ndef f(x):\n    return m.dropout(x, 0.5)"


@pytest.mark.parametrize(
    "cell",
    [
        # A module as a value, however it becomes one.
        "m = torch.nn.functional" + USE,
        "m = nn.functional" + USE,
        "m = (torch.nn.functional, 1)[0]" + USE,
        "for m in [nn.functional]:\n    pass" + USE,
        "[m := nn.functional]" + USE,
        "with nn.functional as m:\n    pass" + USE,
        "g = lambda m=nn.functional: m\nm = g()" + USE,
        "def f(x, m=nn.functional):\n    return m.dropout(x)",
        "def f(x, *, m=nn.functional):\n    return m.dropout(x)",
        "def f(x):\n    return [m.dropout(x) for m in [nn.functional]]",
        "def f(x):\n    return (lambda m: m.dropout(x))(nn.functional)",
        "from functools import partial\ndef g(m, x):\n    return m.dropout(x)\n"
        "f = partial(g, torch.nn.functional)",
        "@(lambda c: nn.functional)\ndef m():\n    return 1" + USE,
        "def g():\n    return nn.functional\nm = g()" + USE,
        "def g():\n    global m\n    m = nn.functional\ng()" + USE,
        "def g():\n    yield nn.functional\nm = next(g())" + USE,
        "m = {1: nn.functional}.get(1)" + USE,
        "m = nn.functional if True else None" + USE,
        "m = nn.modules" + USE,
        "m = torch.cpu" + USE,
        "m = getattr(nn.modules, 'dropout')" + USE,
        "m = getattr(nn, 'functional')" + USE,
        "m = getattr(torch, 'nn')" + USE,
        "class A:\n    m = nn.functional\nm = A.m" + USE,
        "class A:\n    m = nn.functional\n    def f(self, x):\n        return self.m.dropout(x)",
        "class A:\n    @property\n    def m(self):\n        return nn.functional\nm = A().m" + USE,
        "class A:\n    def f(self, x):\n        self = torch.nn\n        return self.dropout(x)",
        "class A:\n    pass\nsetattr(A, 'm', nn.functional)\nm = A.m" + USE,
        "A = type('A', (), {'m': nn.functional})\nm = A.m" + USE,
        "torch.pi = nn.functional\nm = torch.pi" + USE,
        # A module that is an attribute because of where it is imported.
        "class A:\n    import torch.nn.functional as own\nm = A.own" + USE,
        "class A:\n    if True:\n        from torch.nn import functional as own\nm = A.own" + USE,
        "class A:\n    class B:\n        import collections as own\nm = A.B.own" + USE,
        # A name that means a module somewhere.
        "import torch.nn.functional as m" + USE,
        "from torch.nn import functional as m" + USE,
        "class A:\n    def g(self):\n        import torch as self\n"
        "    def f(self, x):\n        return self.dropout(x)",
        "from torch.nn import modules as m" + USE,
        "from torch import cpu as m" + USE,
        "from torch import functional as m" + USE,
        "from torch.nn.functional import *" + USE,
        "from torch.nn import init\nm = init.torch" + USE,
        "import torch.nn.init as own\nm = own.torch" + USE,
        # An exception keeps the module that has no such attribute.
        "try:\n    nn.functional.append\nexcept Exception as error:\n    m = error.obj" + USE,
        "try:\n    torch.append\nexcept Exception as error:\n    m = getattr(error, 'obj')" + USE,
        "try:\n    torch.append\nexcept Exception as error:\n    pass",
        "try:\n    print()\nexcept Exception as error:\n    m = error.obj",
        # Attributes that a tensor or a class of PyTorch's has too, and bases that are no names.
        "class T(Tensor):\n    def f(self):\n        return self.softmax(-1)",
        "def f(x):\n    return getattr(x, 'softmax')(-1)",
        "def f(x):\n    return getattr(x, 'soft' + 'max')(-1)",
        "def f(x, *names):\n    return getattr(x, *names)(-1)",
        "g = getattr\ndef f(x):\n    return g(x, 'soft' + 'max')(-1)",
        "def f(x):\n    return [*map(getattr, [x], ['soft' + 'max'])]",
        "def f(x):\n    return getattr(f, '__globals__')",
        "def f(x):\n    return getattr(x, 'linalg')",
        "def f(x):\n    return x.linalg",
        "class A(nn.Module):\n    def f(self, x):\n        return super().dropout(x)",
        "class A(nn.Module):\n    def f(self, x):\n        return type(self).dropout(x)",
        "def f(x):\n    return [nn][0].functional.dropout(x)",
        "def f(x):\n    return (torch.nn if x else 0).functional.dropout(x)",
        "class A(nn.Module):\n    def __getattr__(self, name):\n        return 1",
        "class A:\n    def __init__(self):\n        self.dropout = F.dropout",
        "class A:\n    def __init__(self):\n        self.dropout = nn.Dropout(0.1)",
        "def f(x):\n    return nn.functional.dropout(x)",
        "def f(x):\n    return nn.modules.dropout.Dropout(0.1)(x)",
        # What IPython makes runnable code of.
        "    def f(x):\n        return torch.softmax(x, -1)",
        ">>> def f(x):\n...     return torch.softmax(x, -1)",
        "In [1]: def f(x):\n   ...:     return torch.softmax(x, -1)",
        "x = 1\nprint?\ndef f(x):\n    return torch.softmax(x, -1)",
        "x = %time torch.softmax(torch.ones(2), -1)",
    ],
)
def test_no_way_to_a_module_of_pytorch_is_innocent(cell):
    assert not judged(cell)


def test_a_module_that_another_cell_binds_is_seen():
    use = "def f(m, x):\n    return m.dropout(x, 0.5)"
    assert judged(use)
    assert not judged(use, "x = f(nn.functional, 1)")
    assert not judged(use, "import torch.nn.functional as m")
    assert not judged("x = f(nn.functional, 1)", use)


def test_no_value_that_harmless_names_lead_to_has_a_module():
    """`innocent` rests on it: an attribute of a thing that is no module is none either."""
    pending = [(importlib.import_module(name), name) for name in innocent.MODULES]
    modules: dict[str, ModuleType] = {}
    values: list[tuple[object, str]] = []
    while pending:
        value, name = pending.pop()
        if not isinstance(value, ModuleType):
            values.append((value, name))
        elif value.__name__ not in modules:
            modules[value.__name__] = value
            own = innocent.HARMLESS & vars(value).keys()
            pending += [(vars(value)[one], f"{name}.{one}") for one in own]
    assert {"torch.nn.functional", "torch.nn.modules", "torch.random"} <= set(modules)
    assert len(values) > 300
    values += [(type(value), f"type({name})") for value, name in values]
    for value, name in values:
        for one in dir(value):
            if not one.startswith(innocent.INNER) and one not in innocent.PRYING:
                assert not isinstance(inspect.getattr_static(value, one, None), ModuleType), (
                    name,
                    one,
                )


def test_what_an_attribute_may_be_called_is_no_tensors_nor_any_other_values():
    free = innocent._only_in_modules()
    assert {"dropout", "layer_norm", "lstm", "cross_entropy"} <= free
    small = (nn.Linear(2, 2), nn.LSTM(2, 2), nn.Embedding(2, 2), nn.Identity(), nn.Sequential())
    tensor = torch.ones(2, requires_grad=True)
    optimiser = torch.optim.AdamW([tensor])
    others = (tensor.exp(), tensor, optimiser, torch.Generator(), torch.exp, F.relu)
    for value in (*small, *others):
        for name in free & set(dir(value)):
            assert isinstance(getattr(value, name), (int, float)), (value, name)
    for place in (torch, nn, F, torch.special, nn.init, torch.autograd, nn.utils):
        assert not any(isinstance(getattr(place, name, None), ModuleType) for name in free)


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
