"""Graders of `positional_encoding-sinusoidal`: codes of positions.

Sines of large angles are compared with a tolerance that grows with the position, since an angle
held in float32 is right to one part in ten million and not better.
"""

from __future__ import annotations

import torch

from autograder.graders.common import pair, same_gradients, sizes
from autograder.judging import expectations
from autograder.judging.grader_marks import exercise, hidden, promises


def near(actual, expected, largest=0, what="the table", case=""):
    """Like `expectations.close` for sines and cosines of the positions up to `largest`.

    An angle computed in float32 is off by up to 2e-7 of itself, and so is its sine.
    """
    expectations.shape(actual, expected.shape, what=what, case=case)
    if actual.dtype == expected.dtype and actual.is_floating_point():
        gap = (actual.double() - expected.double()).abs()
        if bool((gap <= 2e-5 + 2e-7 * largest).all()):
            return
    expectations.close(actual, expected, what=what, case=case)


# --------------------------------------------------------------------------------------------
# binary_code
# --------------------------------------------------------------------------------------------


@promises("digits", "float32")
@exercise("binary_code")
def test_binary_code_values(student, reference):
    """Column k is the bit of value 2^k: column 0 alternates fastest."""
    for positions, bits in [
        ([5], 3),
        ([1, 6], 3),
        ([0, 1], 1),
        ([*range(8)], 3),
        ([5, 0, 12, 9], 4),
    ]:
        positions = torch.tensor(positions)
        expectations.close(
            student.binary_code(positions, bits),
            reference.binary_code(positions, bits),
            what="the code",
            case=f"positions={positions.tolist()}, bits={bits}",
        )


@exercise("binary_code")
def test_binary_code_periods(student):
    """Column k repeats after 2^(k+1) positions and not before, and no two codes are equal."""
    bits = 4
    positions = torch.arange(2**bits)
    seen = student.observe("binary_code", positions, bits, grad=False)
    code = seen.value
    expectations.shape(code, (2**bits, bits), what="the code")
    for k in range(bits):
        column, period = code[:, k], 2 ** (k + 1)
        expectations.true(
            bool((column[: period // 2] == 0).all() and (column[period // 2 : period] == 1).all()),
            f"Column {k} should be 0 for {period // 2} positions and then 1 for as many.",
        )
        expectations.true(
            bool((column[period:] == column[:-period]).all()),
            f"Column {k} should repeat after {period} positions.",
        )
    expectations.true(
        len(set(map(tuple, code.tolist()))) == 2**bits, "Two positions have one code."
    )
    expectations.unchanged(seen)


@promises("bad-input")
@exercise("binary_code")
def test_binary_code_refuses(student):
    """Positions that are negative, too large or no integers, and bits < 1, raise a ValueError."""
    for positions, bits in [
        (torch.tensor([1, 8]), 3),
        (torch.tensor([0, -1]), 3),
        (torch.tensor([2, 0, 1, 9]), 3),
        (torch.tensor([3, 2, 1, -1]), 3),
        (torch.tensor([2, 9, 1]), 3),
        (torch.tensor([1.0, 2.0]), 3),
        (torch.tensor([1.0, 2.0], dtype=torch.float64), 3),
        (torch.tensor([True, False]), 3),
        (torch.tensor([0]), 0),
        (torch.tensor([0]), -2),
    ]:
        expectations.raises(
            "ValueError",
            lambda positions=positions, bits=bits: student.binary_code(positions, bits),
            what=f"positions={positions.tolist()} with {bits} bits",
        )


@hidden
@exercise("binary_code")
def test_binary_code_large(student, reference, draw):
    """Large positions, in any order and of any integer type, are written exactly."""
    for bits in (10, 20, 30, 40):
        positions = draw.integers(0, 2**bits, 9)
        positions[3], positions[4] = 2**bits - 1, 0
        expectations.close(
            student.binary_code(positions, bits),
            reference.binary_code(positions, bits),
            what="the code",
            case=f"random positions below 2^{bits}",
        )
    for dtype in (torch.int32, torch.int16):
        positions = draw.integers(0, 2**9, 5).to(dtype)
        expectations.close(
            student.binary_code(positions, 9),
            reference.binary_code(positions, 9),
            what="the code",
            case=f"positions of {dtype}, bits=9",
        )


# --------------------------------------------------------------------------------------------
# angular_frequencies, position_vector, sinusoidal_table
# --------------------------------------------------------------------------------------------


@promises("formula")
@exercise("angular_frequencies")
def test_frequencies_values(student, reference):
    """Frequency k is 10000^(-2k/d_model), the first of them 1."""
    for d_model in (6, 2, 4, 8, 32):
        expectations.close(
            student.angular_frequencies(d_model),
            reference.angular_frequencies(d_model),
            what="the frequencies",
            case=f"d_model={d_model}",
        )


@promises("length")
@exercise("angular_frequencies")
def test_frequencies_base(student, reference):
    """Another base gives other frequencies, for an odd width as well: there are ceil(d/2)."""
    for d_model, base in [
        (8, 100.0),
        (6, 2.0),
        (7, 10000.0),
        (1, 10000.0),
        (5, 1e6),
        (3, 10.0),
        (4, 100),
        (6, 1.001),
    ]:
        expectations.close(
            student.angular_frequencies(d_model, base),
            reference.angular_frequencies(d_model, base),
            what="the frequencies",
            case=f"d_model={d_model}, base={base}",
        )


@promises("bad-input")
@exercise("angular_frequencies")
def test_frequencies_refuse(student):
    """A width below 1 or of no integer type, and a base of 1 or less, raise a ValueError."""
    for d_model, base in [
        (0, 10000.0),
        (-4, 10000.0),
        (4.0, 10000.0),
        (4, 1.0),
        (4, 0.5),
        (4, -10.0),
    ]:
        expectations.raises(
            "ValueError",
            lambda d_model=d_model, base=base: student.angular_frequencies(d_model, base),
            what=f"d_model={d_model}, base={base}",
        )


@hidden
@exercise("angular_frequencies")
def test_frequencies_ratio(student):
    """The frequencies form a geometric sequence that starts at 1, however wide the vector."""
    for d_model in (64, 511, 1024):
        frequencies = student.angular_frequencies(d_model)
        case = f"d_model={d_model}"
        expectations.shape(frequencies, ((d_model + 1) // 2,), what="the frequencies", case=case)
        expectations.true(
            frequencies.dtype == torch.float32,
            f"the frequencies should be float32, but are {frequencies.dtype}.",
        )
        values = frequencies.double()
        expectations.true(
            abs(float(values[0]) - 1) < 1e-6, f"The first frequency should be 1 for {case}."
        )
        ratio = 10000 ** (-2 / d_model)
        steps = values[1:] / values[:-1]
        expectations.true(
            bool(((steps - ratio).abs() < 1e-5).all()),
            f"Each frequency should be {ratio:.5f} times the one before it for {case}.",
        )
        last = 10000 ** (-2 * (len(values) - 1) / d_model)
        expectations.true(
            abs(float(values[-1]) / last - 1) < 1e-4,
            f"The last frequency should be {last:.3e} for {case}.",
        )


def same_vector(actual, expected, position, case):
    """A list of Python floats, as exact as float32 frequencies allow."""
    expectations.true(
        isinstance(actual, list),
        f"the vector should be a list of floats, but the result is a "
        f"{expectations.type_name(actual)}.",
    )
    odd = [value for value in actual if not isinstance(value, float)]
    expectations.true(
        not odd,
        f"the vector should hold Python floats, but one entry is a "
        f"{expectations.type_name((odd or [0])[0])}{' for ' + case if case else ''}.",
    )
    near(
        torch.tensor(actual, dtype=torch.float64),
        torch.tensor(expected, dtype=torch.float64),
        position,
        what="the vector",
        case=case,
    )


@promises("formula")
@exercise("position_vector")
def test_vector_values(student, reference):
    """Dimension 2i holds the sine, dimension 2i + 1 the cosine of one and the same angle."""
    for position, d_model in [(3, 4), (1, 2), (2, 6), (0, 4), (7, 8)]:
        same_vector(
            student.position_vector(position, d_model),
            reference.position_vector(position, d_model),
            position,
            case=f"position={position}, d_model={d_model}",
        )


@promises("odd-width")
@exercise("position_vector")
def test_vector_odd_width_and_base(student, reference):
    """An odd width ends with a sine; another base changes every frequency but the first."""
    for position, d_model, base in [
        (2, 5, 10000.0),
        (3, 1, 10000.0),
        (5, 6, 100.0),
        (4, 7, 50.0),
        (4, 6, 10),
    ]:
        same_vector(
            student.position_vector(position, d_model, base),
            reference.position_vector(position, d_model, base),
            position,
            case=f"position={position}, d_model={d_model}, base={base}",
        )


@promises("bad-input")
@exercise("position_vector")
def test_vector_refuses(student):
    """A position or width that is too small or no integer raises a ValueError."""
    for position, d_model in [(-1, 4), (1.5, 4), (2.0, 4), (1, 0), (1, -2), (1, 4.0)]:
        expectations.raises(
            "ValueError",
            lambda position=position, d_model=d_model: student.position_vector(position, d_model),
            what=f"position={position}, d_model={d_model}",
        )


@hidden
@exercise("position_vector")
def test_vector_far_away(student, reference, draw):
    """Positions in the hundreds and thousands, and wide vectors, are right too."""
    for position, d_model in [(draw.choice(range(20, 90)), 16), (611, 33), (4321, 64), (12345, 8)]:
        same_vector(
            student.position_vector(position, d_model),
            reference.position_vector(position, d_model),
            position,
            case=f"position={position}, d_model={d_model}",
        )


@promises("interleaved")
@exercise("sinusoidal_table")
def test_table_values(student, reference):
    """Row p is the vector of position p: sines in the even columns, cosines in the odd ones."""
    for length, d_model in [(3, 4), (1, 2), (5, 6), (12, 8)]:
        near(
            student.sinusoidal_table(length, d_model),
            reference.sinusoidal_table(length, d_model),
            length,
            case=sizes(length=length, d_model=d_model),
        )


@promises("odd-width")
@exercise("sinusoidal_table")
def test_table_odd_width(student, reference):
    """With an odd width the last column is a sine, of a frequency of its own."""
    for length, d_model in [(3, 3), (4, 7), (3, 1)]:
        near(
            student.sinusoidal_table(length, d_model),
            reference.sinusoidal_table(length, d_model),
            length,
            case=sizes(length=length, d_model=d_model),
        )


@exercise("sinusoidal_table")
def test_table_base(student, reference):
    """The base sets the range of the frequencies."""
    for length, d_model, base in [
        (4, 6, 100.0),
        (6, 4, 10.0),
        (3, 5, 1e6),
        (5, 6, 1.001),
        (3, 4, 100),
    ]:
        near(
            student.sinusoidal_table(length, d_model, base),
            reference.sinusoidal_table(length, d_model, base),
            length,
            case=sizes(length=length, d_model=d_model, base=base),
        )


@promises("bad-input")
@exercise("sinusoidal_table")
def test_table_refuses(student):
    """A length or a width below 1, and a base of 1 or less, raise a ValueError."""
    for length, d_model, base in [
        (0, 4, 10000.0),
        (-3, 4, 10000.0),
        (3, 0, 10000.0),
        (3, -2, 10000.0),
        (3, 4, 1.0),
        (3, 4, 0.5),
        (3, 4, 0.0),
        (3, 4, -2.0),
    ]:
        expectations.raises(
            "ValueError",
            lambda length=length, d_model=d_model, base=base: student.sinusoidal_table(
                length, d_model, base
            ),
            what=f"length={length}, d_model={d_model}, base={base}",
        )


@hidden
@promises("exact-far-out")
@exercise("sinusoidal_table")
def test_table_long(student, reference):
    """Position 5000 is right to a thousandth, and the first row is (0, 1, 0, 1, ...)."""
    for length, d_model in [(40, 33), (5001, 16)]:
        near(
            student.sinusoidal_table(length, d_model),
            reference.sinusoidal_table(length, d_model),
            length,
            case=sizes(length=length, d_model=d_model),
        )
    first = student.sinusoidal_table(2, 512)[0]
    expectations.close(
        first, torch.tensor([0.0, 1.0] * 256), what="the first row", case="d_model=512"
    )


@hidden
@exercise("sinusoidal_table")
def test_table_products(student):
    """Sine and cosine of a pair belong to one angle, and products depend on distances alone."""
    table = student.sinusoidal_table(20, 10)
    expectations.shape(table, (20, 10), what="the table")
    squares = table[:, 0::2] ** 2 + table[:, 1::2] ** 2
    expectations.close(squares, torch.ones(20, 5), what="sin² + cos² of each pair")
    products = table @ table.t()
    for distance in (1, 3, 7):
        seen = products.diagonal(distance)
        expectations.true(
            bool(((seen - seen[0]).abs() < 1e-4).all()),
            f"The product of two rows should depend on their distance only, not as at {distance}.",
        )


# --------------------------------------------------------------------------------------------
# PositionalEncoding
# --------------------------------------------------------------------------------------------


@promises("sum", "second-dimension")
@exercise("PositionalEncoding")
def test_encoding_values(student, reference, draw):
    """Row t of the table is added to token t of every example, whatever the batch size."""
    for batch, length, d_model in [(2, 4, 6), (1, 3, 4), (1, 1, 2), (3, 3, 5), (5, 2, 4)]:
        mine, theirs = pair(student, reference, "PositionalEncoding", d_model=d_model, max_length=8)
        x = draw.normal(batch, length, d_model)
        seen = mine.observe(x, grad=False)
        case = sizes(B=batch, T=length, D=d_model)
        near(seen.value, theirs(x), 8, what="the sum", case=case)
        expectations.unchanged(seen)
    x = x * torch.tensor([[1.0], [0.0]])
    near(mine(x), theirs(x), 8, what="the sum", case=f"{case}, the last token all zeros")


@promises("buffer")
@exercise("PositionalEncoding")
def test_encoding_buffer(student):
    """The table is a buffer that is not saved: no parameters, and an empty state dict."""
    mine = student.module("PositionalEncoding", d_model=4, max_length=9)
    parameters, buffers, state = mine.parameters(), mine.buffers(), mine.state()
    expectations.true(
        not parameters, f"There should be no parameters; yours: {', '.join(sorted(parameters))}."
    )
    expectations.true(
        "table" in buffers,
        "There is no buffer called table; register it with self.register_buffer.",
    )
    expectations.true(
        tuple(buffers["table"]) == (9, 4),
        f"The buffer table has the shape {tuple(buffers['table'])}; it should be (9, 4), "
        "which is (max_length, d_model).",
    )
    rows = student.module("PositionalEncoding", d_model=2).buffers().get("table", [0])[0]
    expectations.true(rows == 5000, f"By default the table should have 5000 rows, but has {rows}.")
    expectations.true(
        not state,
        f"The state dict should be empty, but holds {', '.join(sorted(state))}; "
        "register the buffer with persistent=False.",
    )


@promises("dropout")
@exercise("PositionalEncoding")
def test_encoding_dropout(student, reference, draw):
    """In train mode, dropout acts on the sum of embedding and position; in eval mode not at all."""
    p = 0.3
    mine, theirs = pair(
        student, reference, "PositionalEncoding", d_model=10, max_length=25, dropout=p
    )
    x = draw.normal(4, 24, 10)
    full = theirs(x)
    output = mine.train()(x)
    expectations.shape(output, full.shape, what="the sum")
    dropped = output == 0
    expectations.rate(
        int(dropped.sum()),
        dropped.numel(),
        p,
        what=f"the share of entries of the sum that are 0 at dropout={p}",
        false_alarm=2e-10,
    )
    near(
        torch.where(dropped, 0.0, output),
        torch.where(dropped, 0.0, full / (1 - p)),
        25,
        what="what is kept of the sum",
        case=f"dropout={p}",
    )
    # The pairs below are disjoint.
    for what, left, right in [
        ("neighbouring features", dropped[..., 0::2], dropped[..., 1::2]),
        ("neighbouring tokens", dropped[:, 0::2], dropped[:, 1::2]),
        ("two examples", dropped[0::2], dropped[1::2]),
    ]:
        expectations.independent(
            left,
            right,
            p,
            what=f"how often the decisions for {what} agree at dropout={p}",
            false_alarm=2e-10,
        )
    near(mine.eval()(x), full, 25, what="the sum", case=f"dropout={p} in eval mode")


@promises("bad-input")
@exercise("PositionalEncoding")
def test_encoding_refuses(student, draw):
    """A longer sequence, another width, and a table without rows or columns raise a ValueError."""
    for d_model, most in [(0, 3), (4, 0), (-2, 3), (4, -1)]:
        expectations.raises(
            "ValueError",
            lambda d_model=d_model, most=most: student.module(
                "PositionalEncoding", d_model=d_model, max_length=most
            ),
            what=f"d_model={d_model}, max_length={most}",
        )
    mine = student.module("PositionalEncoding", d_model=4, max_length=3)
    for shape in [(2, 4, 4), (1, 9, 4), (2, 3, 5), (2, 3, 1), (1, 2, 2)]:
        expectations.raises(
            "ValueError",
            lambda shape=shape: mine(draw.normal(*shape)),
            what=f"x of shape {shape} with d_model=4, max_length=3",
        )


@hidden
@exercise("PositionalEncoding")
def test_encoding_full_length(student, reference, draw):
    """A sequence of exactly max_length works, with a batch larger than that and an odd width."""
    mine, theirs = pair(student, reference, "PositionalEncoding", d_model=7, max_length=4)
    x = draw.normal(6, 4, 7)
    near(mine(x), theirs(x), 4, what="the sum", case="B=6, T=max_length=4, D=7")
    x = draw.normal(1, 3, 7).expand(2, 3, 7)
    near(mine(x), theirs(x), 4, what="the sum", case="an expanded input")
    mine, theirs = pair(student, reference, "PositionalEncoding", d_model=2)
    x = draw.normal(1, 70, 2)
    near(mine(x), theirs(x), 70, what="the sum", case="T=70 and the default max_length")
    mine, theirs = pair(student, reference, "PositionalEncoding", d_model=1, max_length=5100)
    x = draw.normal(1, 5100, 1)
    near(mine(x), theirs(x), 5100, what="the sum", case="T=max_length=5100")
    mine = student.module("PositionalEncoding", d_model=2, max_length=3, dropout=0.0)
    x = draw.normal(2, 3, 2)
    near(mine.train()(x), mine.eval()(x), 3, what="the sum", case="dropout=0 in train mode")


@hidden
@promises("dtype-of-x", "dtype-kept")
@exercise("PositionalEncoding")
def test_encoding_dtype(student, reference, draw):
    """The sum has the type of x, whatever the table's, and the default is no dropout."""
    for dtype in (torch.float64, torch.bfloat16):
        mine, theirs = pair(
            student, reference, "PositionalEncoding", dtype=dtype, d_model=4, max_length=6
        )
        x = draw.normal(2, 5, 4).to(dtype)
        got, want = mine.train()(x), theirs(x)
        expectations.true(
            isinstance(got, torch.Tensor) and got.dtype == dtype,
            f"After .to({dtype}) the sum should have this dtype; does the table follow the module?",
        )
        if dtype == torch.float64:
            near(got, want, 6, what="the sum", case="float64")
        else:
            expectations.close(got, want, what="the sum", case="bfloat16")
    for dtype, other in [(torch.float64, torch.float32), (torch.float32, torch.bfloat16)]:
        mine, theirs = pair(
            student, reference, "PositionalEncoding", dtype=dtype, d_model=4, max_length=6
        )
        for given in (dtype, other, dtype):
            x = draw.normal(2, 5, 4).to(given)
            got, want = mine(x), theirs(x)
            expectations.true(
                isinstance(got, torch.Tensor) and got.dtype == given,
                f"For an x of {given} the sum should have this dtype, also after .to({dtype}).",
            )
            if given == dtype:
                case = f"an x of {given}, before and after one of {other}"
                near(got, want, 6, what="the sum", case=case)
    mine, theirs = pair(student, reference, "PositionalEncoding", d_model=4, max_length=6)
    x = 2.0**20 * draw.normal(2, 5, 4).double()
    got = expectations.tensor(mine(x), what="the sum")
    expectations.shape(got, x.shape, what="the sum")
    expectations.true(
        bool((got - theirs(x)).abs().max() < 1e-4),
        "An x of float64 and of the order of a million loses digits; add in the type of x.",
        misconception="encoding_in_float32",
    )


@hidden
@exercise("PositionalEncoding")
def test_encoding_gradients(student, reference, draw):
    """The gradient passes to x unchanged; x itself is left as it was."""
    mine, theirs = pair(student, reference, "PositionalEncoding", d_model=4, max_length=6)
    x = draw.normal(2, 3, 4)
    seen, wanted = mine.observe(x), theirs.observe(x)
    near(seen.value, wanted.value, 6, what="the sum", case="B=2, T=3, D=4")
    same_gradients(seen, wanted, {"0": "x"})
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# half_and_half_table and interleaved_to_half
# --------------------------------------------------------------------------------------------


@promises("sines-first")
@exercise("half_and_half_table")
def test_half_table_values(student, reference):
    """All sines stand in the first half, all cosines in the second, in the same order."""
    for length, d_model in [(3, 6), (2, 2), (4, 4), (10, 8)]:
        near(
            student.half_and_half_table(length, d_model),
            reference.half_and_half_table(length, d_model),
            length,
            case=sizes(length=length, d_model=d_model),
        )


@promises("frequencies")
@exercise("half_and_half_table")
def test_half_table_base(student, reference):
    """The base sets the range of the frequencies here too."""
    for length, d_model, base in [(4, 6, 100.0), (3, 4, 1e6), (3, 6, 1.001), (3, 4, 100)]:
        near(
            student.half_and_half_table(length, d_model, base),
            reference.half_and_half_table(length, d_model, base),
            length,
            case=sizes(length=length, d_model=d_model, base=base),
        )


@promises("bad-input")
@exercise("half_and_half_table")
def test_half_table_refuses(student):
    """A width that is odd or below 2, no rows, and a base of 1 or less raise a ValueError."""
    for length, d_model, base in [
        (3, 5, 10000.0),
        (3, 1, 10000.0),
        (0, 4, 10000.0),
        (-1, 4, 10000.0),
        (3, 0, 10000.0),
        (3, -2, 10000.0),
        (3, 4, 1.0),
        (3, 4, 0.5),
    ]:
        expectations.raises(
            "ValueError",
            lambda length=length, d_model=d_model, base=base: student.half_and_half_table(
                length, d_model, base
            ),
            what=f"length={length}, d_model={d_model}, base={base}",
        )


@hidden
@exercise("half_and_half_table")
def test_half_table_long(student, reference):
    """Longer and wider tables agree with the interleaved one, column by column."""
    for length, d_model in [(60, 24), (2000, 10)]:
        table = student.half_and_half_table(length, d_model)
        expectations.shape(table, (length, d_model), what="the table")
        whole = reference.sinusoidal_table(length, d_model)
        half = d_model // 2
        case = sizes(length=length, d_model=d_model)
        near(table[:, :half], whole[:, 0::2], length, what="the first half", case=case)
        near(table[:, half:], whole[:, 1::2], length, what="the second half", case=case)


@promises("order-of-columns")
@exercise("interleaved_to_half")
def test_columns_values(student, reference):
    """The even columns come first, then the odd ones."""
    for d_model in (6, 2, 4, 8):
        expectations.close(
            student.interleaved_to_half(d_model),
            reference.interleaved_to_half(d_model),
            what="the columns",
            case=f"d_model={d_model}",
        )


@exercise("interleaved_to_half")
def test_columns_reorder_the_table(student, reference):
    """sinusoidal_table(n, d)[:, columns] is half_and_half_table(n, d)."""
    for d_model in (8, 12):
        columns = student.interleaved_to_half(d_model)
        expectations.shape(columns, (d_model,), what="the columns")
        expectations.true(
            columns.dtype == torch.int64 and sorted(columns.tolist()) == list(range(d_model)),
            "The columns should be the int64 numbers 0 to d_model - 1, each once.",
        )
        expectations.close(
            reference.sinusoidal_table(6, d_model)[:, columns],
            reference.half_and_half_table(6, d_model),
            what="the reordered table",
            case=f"d_model={d_model}",
        )


@promises("odd-width")
@exercise("interleaved_to_half")
def test_columns_refuse(student):
    """A width that is odd or below 2 raises a ValueError."""
    for d_model in (5, 1, 0, -2, -3):
        expectations.raises(
            "ValueError",
            lambda d_model=d_model: student.interleaved_to_half(d_model),
            what=f"d_model={d_model}",
        )


@hidden
@exercise("interleaved_to_half")
def test_columns_wide(student, reference, draw):
    """Wide vectors are reordered in the same way."""
    for d_model in (10, 2 * draw.choice(range(7, 40)), 512):
        expectations.close(
            student.interleaved_to_half(d_model),
            reference.interleaved_to_half(d_model),
            what="the columns",
            case=f"d_model={d_model}",
        )


# --------------------------------------------------------------------------------------------
# offset_rotation
# --------------------------------------------------------------------------------------------


@promises("blocks")
@exercise("offset_rotation")
def test_rotation_values(student, reference):
    """Each pair has a block [[cos, sin], [-sin, cos]] of its own angle; all else is 0."""
    for offset, d_model in [(1, 4), (2, 2), (0, 4), (3, 6)]:
        near(
            student.offset_rotation(offset, d_model),
            reference.offset_rotation(offset, d_model),
            offset,
            what="the matrix",
            case=sizes(offset=offset, d_model=d_model),
        )


@promises("column-on-the-right")
@exercise("offset_rotation")
def test_rotation_moves_every_position(student, reference):
    """One matrix takes the vector of every position p to that of p + offset."""
    for offset, d_model in [(2, 4), (5, 8)]:
        matrix = student.offset_rotation(offset, d_model)
        expectations.shape(matrix, (d_model, d_model), what="the matrix")
        table = reference.sinusoidal_table(12, d_model)
        near(
            table[:-offset] @ matrix.t(),
            table[offset:],
            12,
            what="the moved rows",
            case=sizes(offset=offset, d_model=d_model),
        )


@promises("any-offset")
@exercise("offset_rotation")
def test_rotation_negative_and_base(student, reference):
    """A negative offset leads back, and another base gives other angles."""
    for offset, d_model, base in [
        (-1, 4, 10000.0),
        (-6, 6, 10000.0),
        (2, 6, 100.0),
        (-3, 4, 1.001),
        (2, 4, 10),
    ]:
        near(
            student.offset_rotation(offset, d_model, base),
            reference.offset_rotation(offset, d_model, base),
            abs(offset),
            what="the matrix",
            case=sizes(offset=offset, d_model=d_model, base=base),
        )


@promises("bad-input")
@exercise("offset_rotation")
def test_rotation_refuses(student):
    """A width that is odd or below 2, an offset that is no integer, a base of 1: ValueError."""
    for offset, d_model, base in [
        (1, 3, 10000.0),
        (0, 1, 10000.0),
        (1.5, 4, 10000.0),
        (2.0, 4, 10000.0),
        (1, 0, 10000.0),
        (1, -2, 10000.0),
        (1, 4, 1.0),
        (1, 4, 0.5),
    ]:
        expectations.raises(
            "ValueError",
            lambda offset=offset, d_model=d_model, base=base: student.offset_rotation(
                offset, d_model, base
            ),
            what=f"offset={offset}, d_model={d_model}, base={base}",
        )


@hidden
@exercise("offset_rotation")
def test_rotation_composes(student, reference, draw):
    """Two offsets one after the other are their sum, there and back is nothing at all."""
    d_model, (there, more) = 8, draw.integers(1, 12, 2).tolist()
    one = student.offset_rotation(there, d_model)
    two = student.offset_rotation(more, d_model)
    back = student.offset_rotation(-there, d_model)
    for matrix in (one, two, back):
        expectations.shape(matrix, (d_model, d_model), what="the matrix")
    near(
        one,
        reference.offset_rotation(there, d_model),
        12,
        what="the matrix",
        case=f"offset={there}",
    )
    near(
        one @ two,
        reference.offset_rotation(there + more, d_model),
        24,
        what="the product of two matrices",
        case=f"offsets {there} and {more}",
    )
    near(back @ one, torch.eye(d_model), 12, what="there and back", case=f"offset={there}")


@hidden
@exercise("offset_rotation")
def test_rotation_far(student, reference, draw):
    """Large offsets and wide vectors work."""
    for offset, d_model in [(draw.choice(range(100, 999)), 32), (-2500, 12)]:
        near(
            student.offset_rotation(offset, d_model),
            reference.offset_rotation(offset, d_model),
            abs(offset),
            what="the matrix",
            case=sizes(offset=offset, d_model=d_model),
        )
