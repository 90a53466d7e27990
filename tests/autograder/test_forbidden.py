"""The forbidden function is found by reading, and only where the exercise can reach it."""

from __future__ import annotations

import pytest

from autograder.forbidden import forbidden_calls

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
