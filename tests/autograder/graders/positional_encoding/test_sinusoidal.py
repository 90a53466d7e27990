"""The graders of `positional_encoding-sinusoidal`: right answers in any style earn full marks."""

from __future__ import annotations

import pytest

from autograder.sandbox.executor import Executor
from autograder.units.variants import (
    reference_namespace,
    wrong_namespace,
)
from tests.autograder.graders.positional_encoding.common import PositionalGraders
from tests.autograder.unit_graders import Styles

UNIT = "positional_encoding-sinusoidal"

# Right answers that look unlike the reference and unlike those in autograder/demo.
STYLES = Styles()
style = STYLES.add

style(
    "binary_code",
    "texts of binary digits",
    """
def binary_code(positions, bits):
    if bits < 1 or positions.is_floating_point() or positions.dtype == torch.bool:
        raise ValueError("bits or positions")
    if positions.min() < 0 or positions.max() > 2**bits - 1:
        raise ValueError("range")
    rows = [[float(c) for c in reversed(format(p, f"0{bits}b"))] for p in positions.tolist()]
    return torch.tensor(rows, dtype=torch.float32)
""",
)
style(
    "angular_frequencies",
    "a product that goes on",
    """
def angular_frequencies(d_model, base=10000.0):
    if not isinstance(d_model, int) or d_model < 1 or base <= 1:
        raise ValueError("d_model or base")
    ratio, omega, found = base ** (-2 / d_model), 1.0, []
    while len(found) < (d_model + 1) // 2:
        found.append(omega)
        omega *= ratio
    return torch.tensor(found)
""",
)
style(
    "position_vector",
    "complex numbers",
    """
def position_vector(position, d_model, base=10000.0):
    import cmath

    if not isinstance(position, int) or position < 0:
        raise ValueError("position")
    if not isinstance(d_model, int) or d_model < 1:
        raise ValueError("d_model")
    vector = []
    for i in range(math.ceil(d_model / 2)):
        turn = cmath.exp(1j * position / base ** (2 * i / d_model))
        vector += [turn.imag, turn.real]
    return vector[:d_model]
""",
)
style(
    "position_vector",
    "through float32 frequencies",
    """
def position_vector(position, d_model, base=10000.0):
    if not isinstance(position, int) or position < 0:
        raise ValueError("position")
    omega = angular_frequencies(d_model, base).tolist()
    functions = (math.sin, math.cos)
    return [functions[j % 2](position * omega[j // 2]) for j in range(d_model)]
""",
)
style(
    "sinusoidal_table",
    "as most programs have it: exp and log in float32",
    """
def sinusoidal_table(length, d_model, base=10000.0):
    if min(length, d_model) < 1 or base <= 1:
        raise ValueError("size")
    pe = torch.zeros(length, d_model)
    position = torch.arange(0, length, dtype=torch.float).unsqueeze(1)
    div_term = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(base) / d_model))
    pe[:, 0::2] = torch.sin(position * div_term)
    pe[:, 1::2] = torch.cos(position * div_term[: d_model // 2])
    return pe
""",
)
style(
    "sinusoidal_table",
    "a cosine is a shifted sine, column by column",
    """
def sinusoidal_table(length, d_model, base=10000.0):
    if length < 1 or d_model < 1 or base <= 1:
        raise ValueError("size")
    p = torch.arange(length, dtype=torch.float64)
    columns = [
        torch.sin(p / base ** ((j - j % 2) / d_model) + (j % 2) * math.pi / 2)
        for j in range(d_model)
    ]
    return torch.stack(columns, 1).float()
""",
)
style(
    "PositionalEncoding",
    "an embedding look-up, dropout by hand",
    """
class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_length=5000, dropout=0.0):
        super().__init__()
        if d_model < 1 or max_length < 1:
            raise ValueError("sizes")
        self.p = dropout
        self.register_buffer("table", torch.empty(max_length, d_model), persistent=False)
        self.table.copy_(sinusoidal_table(max_length, d_model))

    def forward(self, x):
        B, T, D = x.shape
        if D != self.table.shape[1] or T > self.table.shape[0]:
            raise ValueError("shape")
        total = x + nn.functional.embedding(torch.arange(T), self.table.to(x.dtype))
        if self.training and self.p > 0:
            total = total * torch.bernoulli(torch.full_like(total, 1 - self.p)) / (1 - self.p)
        return total
""",
)
style(
    "half_and_half_table",
    "the interleaved table, reshaped",
    """
def half_and_half_table(length, d_model, base=10000.0):
    if d_model % 2 or d_model < 2:
        raise ValueError("even")
    table = sinusoidal_table(length, d_model, base).view(length, -1, 2)
    return table.transpose(1, 2).reshape(length, d_model)
""",
)
style(
    "interleaved_to_half",
    "a formula for each place",
    """
def interleaved_to_half(d_model):
    if d_model < 2 or d_model % 2:
        raise ValueError("even")
    place = torch.arange(d_model)
    return 2 * (place % (d_model // 2)) + place // (d_model // 2)
""",
)
style(
    "offset_rotation",
    "the exponential of a generator",
    """
def offset_rotation(offset, d_model, base=10000.0):
    if not isinstance(offset, int) or d_model < 2 or d_model % 2 or base <= 1:
        raise ValueError("offset, d_model or base")
    generator = torch.zeros(d_model, d_model, dtype=torch.float64)
    for i in range(0, d_model, 2):
        omega = base ** (-i / d_model)
        generator[i, i + 1], generator[i + 1, i] = omega, -omega
    return torch.matrix_exp(offset * generator).float()
""",
)
style(
    "binary_code",
    "a remainder column by column",
    """
def binary_code(positions, bits):
    if bits <= 0 or positions.dtype == torch.bool or positions.is_floating_point():
        raise ValueError
    rest, columns = positions.clone(), []
    for _ in range(bits):
        columns.append(rest.remainder(2))
        rest = torch.div(rest, 2, rounding_mode="floor")
    if rest.ne(0).any():
        raise ValueError
    return torch.stack(columns, -1).to(torch.float32)
""",
)
style(
    "offset_rotation",
    "a matrix exponential",
    """
def offset_rotation(offset, d_model, base=10000.0):
    if not isinstance(offset, int) or d_model <= 0 or d_model % 2 != 0 or not base > 1:
        raise ValueError
    g = torch.zeros(d_model, d_model, dtype=torch.float64)
    for k in range(d_model // 2):
        w = base ** (-2 * k / d_model)
        g[2 * k, 2 * k + 1] = w
        g[2 * k + 1, 2 * k] = -w
    return (
        torch.matrix_exp(g * offset).float()
        if abs(offset) < 50
        else torch.linalg.matrix_power(torch.matrix_exp(g), offset).float()
    )
""",
)
style(
    "interleaved_to_half",
    "a stable argsort",
    """
def interleaved_to_half(d_model):
    if d_model < 1 or d_model % 2 == 1:
        raise ValueError
    return torch.argsort(torch.arange(d_model) % 2, stable=True)
""",
)


def test_a_mistake_is_traced_to_the_exercise_where_it_was_made(graders):
    namespace = wrong_namespace(UNIT, "table_swapped")
    results = graders.run(
        Executor(namespace).execute, exercises=["sinusoidal_table", "PositionalEncoding"]
    )
    for result in results.values():
        assert result.misconception == "table_swapped"
    assert "follows from your sinusoidal_table" in results["PositionalEncoding"].message


@pytest.mark.parametrize(
    ("exercise", "source", "name"),
    [
        (
            "sinusoidal_table",
            """
def sinusoidal_table(length, d_model, base=10000.0):
    if length < 1 or d_model < 1 or base <= 1:
        raise ValueError
    pe = torch.zeros(length, d_model)
    for p in range(length):
        for j in range(d_model):
            angle = p / base ** (j / d_model)
            pe[p, j] = math.cos(angle) if j % 2 else math.sin(angle)
    return pe
""",
            "table_own_frequency",
        ),
        (
            "sinusoidal_table",
            """
def sinusoidal_table(length, d_model, base=10000.0):
    if length < 1 or d_model < 1 or base <= 1:
        raise ValueError
    pe = torch.zeros(length, d_model)
    position = torch.arange(length).float().unsqueeze(1)
    div_term = torch.exp(torch.arange(0, d_model, 2).float() * -(math.log(base) / d_model))
    pe[:, 0::2] = torch.sin(position * div_term)
    pe[:, 1::2] = torch.cos(position * div_term)
    return pe
""",
            "table_odd_fails",
        ),
        (
            "PositionalEncoding",
            """
class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_length=5000, dropout=0.0):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        self.register_buffer("table", sinusoidal_table(max_length, d_model), persistent=False)

    def forward(self, x):
        if x.shape[2] != self.table.shape[1]:
            raise ValueError
        return self.dropout(x + self.table[: x.size(0), None])
""",
            "encoding_batch_row",
        ),
        (
            "PositionalEncoding",
            """
class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_length=5000, dropout=0.0):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        self.table = nn.Parameter(sinusoidal_table(max_length, d_model), False)

    def forward(self, x):
        if x.shape[1] > len(self.table) or x.shape[2] != self.table.shape[1]:
            raise ValueError
        return self.dropout(x + self.table[: x.size(1)])
""",
            "encoding_parameter",
        ),
    ],
)
def test_a_mistake_in_code_of_its_own_is_named(graders, exercise, source, name):
    namespace = dict(reference_namespace(UNIT))
    exec(source, namespace)
    result = graders.run(Executor(namespace).execute, exercises=[exercise])[exercise]
    assert result.points < result.max_points
    assert result.misconception == name


class TestGraders(PositionalGraders):
    unit = UNIT
    styles = STYLES
