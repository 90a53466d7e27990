"""The forbidden function is found by reading, and only where the exercise can reach it."""

from __future__ import annotations

import pytest

from autograder.forbidden import evasions, forbidden_calls

FORBIDS = ["softmax", "nn.MultiheadAttention"]


@pytest.mark.parametrize(
    "cells",
    [
        ["import torch\ndef f(x):\n    return torch.softmax(x, -1)"],
        ["import torch.nn.functional as F\ndef f(x):\n    return F.softmax(x, -1)"],
        ["from torch.nn.functional import softmax as s\ndef f(x):\n    return s(x)"],
        ["def f(x):\n    return x.softmax(-1)"],
        ["def g(x):\n    return x.softmax(-1)", "def f(x):\n    return g(x)"],
        ["def f(x):\n    from torch import softmax\n    return softmax(x)"],
        ["import torch\ng = torch.softmax\ndef f(x):\n    return g(x, -1)"],
        ["import torch\ndef f(x):\n    return getattr(torch, 'softmax')(x, -1)"],
        ["from torch import nn\nclass f(nn.Module):\n    a = nn.MultiheadAttention(2, 1)"],
        ["%matplotlib inline\nimport torch\ndef f(x):\n    return torch.softmax(x, -1)"],
    ],
)
def test_a_forbidden_function_is_found(cells):
    assert forbidden_calls(cells, "f", FORBIDS)


@pytest.mark.parametrize(
    "cells",
    [
        ["import torch\ndef f(x):\n    return torch.exp(x)", "print(torch.softmax(x, -1))"],
        ["def softmax(x):\n    return x\ndef f(x):\n    return softmax(x)"],
        ["import torch\ndef g(x):\n    return torch.softmax(x, -1)\ndef f(x):\n    return x"],
        ["def f(x):\n    '''Not torch.softmax.'''\n    return x"],
        [
            "class f:\n    def forward(self, x):\n        return self.softmax(x)\n"
            "    def softmax(self, x):\n        return x.exp()"
        ],
        [
            "from torch import softmax",
            "def softmax(x):\n    return x\ndef f(x):\n    return softmax(x)",
        ],
        ["def f(:", "def f(x):\n    return x"],
    ],
)
def test_what_is_allowed_is_not_accused(cells):
    assert forbidden_calls(cells, "f", FORBIDS) == []


@pytest.mark.parametrize(
    "call",
    [
        'getattr(torch, "soft" + "max")(x)',
        'vars(torch)["soft" + "max"](x)',
        'exec("y = torch.soft" + "max(x)")',
        "ThreadPoolExecutor(1).submit(run, x).result()",
        "torch._C.DisableTorchFunction()",
        "sys._getframe().f_back",
    ],
)
def test_means_to_call_unseen_are_named(call):
    source = f"""
import sys, torch
from concurrent.futures import ThreadPoolExecutor

def f(x):
    return {call}
"""
    assert evasions([source], "f")
    assert not evasions([source], "g")


def test_tampering_when_a_cell_is_run_counts_for_every_exercise():
    cell = "import sys\nfor module in sys.modules.values():\n    module.x = None\n"
    assert evasions([cell, "def f(x):\n    return x"], "f") == ["sys.modules"]


@pytest.mark.parametrize(
    "source",
    [
        "import sys\nCOLAB = 'google.colab' in sys.modules\nprint(sys.version)",
        "import gc\ngc.collect()",
        "import threading\nthreading.Timer(1, print)",
        "from autograder import checks_for\ncheck = checks_for('attention')",
        "from autograder.stock import points",
        "def f(x):\n    return getattr(x, 'shape')",
        "class f:\n    def g(self, n):\n        return getattr(self, n + '_proj')",
        "model.eval()\nimport re\nre.compile('a')\ntorch.compile(f)",
    ],
)
def test_ordinary_cells_use_no_such_means(source):
    assert not evasions([source, "def f(x):\n    return x * 2"], "f")


def test_an_exercise_that_forbids_something_answers_for_itself():
    cells = ["def f(x):\n    return g(x)", "def g(x):\n    return getattr(x, 'a' + 'b')"]
    assert evasions(cells, "f")
    assert not evasions(cells, "f", judged_apart=["f", "g"])
