"""Known mistakes of `positional_encoding-sinusoidal`: codes of positions.

i where 2i belongs, p/100 where p belongs, a table indexed by the row of the batch.
"""

from __future__ import annotations

from autograder.units.variants import Misconception, Swap, mistakes_in

MISCONCEPTIONS: list[Misconception] = []

add = mistakes_in(MISCONCEPTIONS, "binary_code", "pos-binary")
DIGITS = "torch.arange(bits, device=positions.device)"
BITS = "(positions.long()[:, None] >> digits & 1).float()"
add(
    "binary_most_significant_first",
    "Your columns are in the order in which numbers are written; column 0 is the least significant "
    "bit, which alternates fastest.",
    (DIGITS, "torch.arange(bits - 1, -1, -1)"),
)
add(
    "binary_integers",
    "Your code is made of integers; the result is float32.",
    (BITS, "positions.long()[:, None] >> digits & 1"),
)
add(
    "binary_bools",
    "Your code is made of True and False; the result is float32, 0 and 1.",
    (BITS, "(positions.long()[:, None] >> digits & 1).bool()"),
)
add(
    "binary_signs",
    "Your code is made of -1 and 1; this exercise asks for 0 and 1.",
    (BITS, "(positions.long()[:, None] >> digits & 1).float() * 2 - 1"),
)
add(
    "binary_gray",
    "Your code is a Gray code, in which neighbours differ in one bit; the exercise asks for the "
    "ordinary binary digits.",
    (BITS, "((positions.long() ^ (positions.long() >> 1))[:, None] >> digits & 1).float()"),
)
add(
    "binary_first_bit_lost",
    "Your column 0 has the period 4; the lowest bit, of period 2, is missing: count columns from "
    "0.",
    (DIGITS, "torch.arange(1, bits + 1)"),
)
add(
    "binary_not_reduced",
    "Your columns hold p // 2^k; take this modulo 2 to get the digit.",
    (BITS, "(positions.long()[:, None] >> digits).float()"),
)
add(
    "binary_transposed",
    "Your result has a row for each bit; positions belong in rows: (T, bits).",
    (BITS, "(positions.long()[:, None] >> digits & 1).float().T"),
)
add(
    "binary_too_large_accepted",
    "Positions of 2^bits and more are accepted, and collide with smaller ones; raise a ValueError.",
    ("if not 0 <= position < 2**bits:", "if not 0 <= position:"),
)
add(
    "binary_negative_accepted",
    "Negative positions are accepted; raise a ValueError.",
    ("if not 0 <= position < 2**bits:", "if not position < 2**bits:"),
)
add(
    "binary_floats_accepted",
    "Positions that are no integers are accepted; raise a ValueError.",
    (
        "if positions.is_floating_point() or positions.is_complex() or "
        "positions.dtype == torch.bool:",
        "if False:",
    ),
)
add(
    "binary_bits_unchecked",
    "A number of bits below 1 is not refused with a ValueError.",
    ("if bits < 1:", "if False:"),
)
add(
    "binary_bools_accepted",
    "Positions of type bool are accepted; a mask is no list of positions: refuse it with a "
    "ValueError.",
    (" or positions.dtype == torch.bool", ""),
)
add(
    "binary_other_integers_refused",
    "Positions of int32 and int16 are refused; they are integers, too: refuse only floating point "
    "and bool.",
    (
        "positions.is_floating_point() or positions.is_complex() or positions.dtype == torch.bool",
        "positions.dtype != torch.int64",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "angular_frequencies", "pos-frequencies")
EXPONENTS = "torch.arange(0, d_model, 2, dtype=torch.float64) / d_model"
POWER = "(base**-exponents).float()"
COUNT = "(d_model + 1) // 2"
add(
    "frequencies_i_not_2i",
    "Your frequencies are base^(-k/d_model); the exponent is -2k/d_model, or the last wavelength "
    "is only √base and not base.",
    (EXPONENTS, f"torch.arange({COUNT}, dtype=torch.float64) / d_model"),
)
add(
    "frequencies_half_width",
    "Your frequencies are base^(-2k/(d_model/2)); with 2k in the exponent divide by d_model, or "
    "use k/(d_model/2).",
    (EXPONENTS, "torch.arange(0, d_model, 2, dtype=torch.float64) / (d_model / 2)"),
)
add(
    "frequencies_from_one_to_d",
    "Your frequencies are base^(-i/d_model) for i = 1 to d_model; there is one for each pair, "
    "base^(-2k/d_model), and the first, k = 0, is exactly 1.",
    (EXPONENTS, "torch.arange(1, d_model + 1, dtype=torch.float64) / d_model"),
)
add(
    "frequencies_first_missing",
    "Your first frequency is base^(-2/d_model); k starts at 0, so the first is 1.",
    (EXPONENTS, f"(2 * torch.arange({COUNT}, dtype=torch.float64) + 2) / d_model"),
)
add(
    "frequencies_inverse",
    "You return base^(+2k/d_model), by which positions are divided; the frequency is its inverse, "
    "with a minus in the exponent.",
    (POWER, "(base**exponents).float()"),
)
add(
    "frequencies_wavelengths",
    "You return the wavelengths 2π/ω; the frequencies ω are asked for.",
    (POWER, "(2 * math.pi * base**exponents).float()"),
)
add(
    "frequencies_per_turn",
    "Your frequencies are divided by 2π, turns per position; ω is an angle per position, 2π/T.",
    (POWER, "(base**-exponents / (2 * math.pi)).float()"),
)
add(
    "frequencies_up_to_base",
    "Your frequencies end at 1/base exactly, dividing by their number minus 1 as tensor2tensor "
    "does; this exercise asks for base^(-2k/d_model).",
    (EXPONENTS, f"torch.arange({COUNT}, dtype=torch.float64) / max({COUNT} - 1, 1)"),
)
add(
    "frequencies_one_too_many",
    "You count k up to d_model/2; the last is d_model/2 - 1, since columns end at d_model - 1.",
    (EXPONENTS, "torch.arange(0, d_model + 1, 2, dtype=torch.float64) / d_model"),
)
add(
    "frequencies_linear",
    "Your frequencies fall by equal steps; they fall by equal factors, a geometric sequence.",
    (POWER, f"torch.linspace(1.0, 1.0 / base, {COUNT})"),
)
add(
    "frequencies_twice",
    "You return each frequency twice, one for each dimension; return one for each pair.",
    (POWER, "(base**-exponents).float().repeat_interleave(2)[:d_model]"),
)
add(
    "frequencies_base_ignored",
    "The base is always 10000; use the argument `base`.",
    (POWER, "(10000.0**-exponents).float()"),
)
add(
    "frequencies_odd_short",
    "With an odd width the last frequency is missing; there are ceil(d_model / 2).",
    (POWER, "(base**-exponents).float()[: max(d_model // 2, 1)]"),
)
add(
    "frequencies_odd_rounded",
    "With an odd width you divide by d_model + 1; the exponent is -2k/d_model for every width.",
    (EXPONENTS, "torch.arange(0, d_model, 2, dtype=torch.float64) / (d_model + d_model % 2)"),
)
add(
    "frequencies_double",
    "Your frequencies are float64; the result is float32.",
    (POWER, "base**-exponents"),
)
add(
    "frequencies_width_unchecked",
    "A width below 1 is not refused with a ValueError.",
    ("if not isinstance(d_model, int) or d_model < 1:", "if False:"),
)
add(
    "frequencies_floats_accepted",
    "A width such as 4.0 is accepted; raise a ValueError unless it is an int.",
    ("if not isinstance(d_model, int) or d_model < 1:", "if d_model < 1:"),
)
add(
    "frequencies_base_unchecked",
    "A base of 1 or less is not refused; it would give equal or growing frequencies.",
    ("if base <= 1:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "position_vector", "pos-sinusoid")
ANGLE = "position * base ** (-2 * pair / d_model)"
ENTRY = "math.sin(angle) if dimension % 2 == 0 else math.cos(angle)"
add(
    "vector_i_not_2i",
    "Your angles are p · base^(-i/d_model) for pair i; the exponent is -2i/d_model.",
    (ANGLE, "position * base ** (-pair / d_model)"),
    read="pos-frequencies",
)
add(
    "vector_own_frequency",
    "Your cosines have a frequency of their own, base^(-(2i+1)/d_model); sine and cosine of a pair "
    "share the angle p · base^(-2i/d_model).",
    (ANGLE, "position * base ** (-dimension / d_model)"),
)
add(
    "vector_dimension_doubled",
    "Your exponent is -2j/d_model with j the dimension; in the formula i counts pairs, so use "
    "i = j // 2.",
    (ANGLE, "position * base ** (-2 * dimension / d_model)"),
)
add(
    "vector_half_width",
    "Your exponent is divided by d_model/2 although it already holds 2i; it is -2i/d_model.",
    (ANGLE, "position * base ** (-4 * pair / d_model)"),
    read="pos-frequencies",
)
add(
    "vector_first_pair_slow",
    "For d_model = 4 your first angle is p/100 instead of p; pairs are counted from i = 0, so the "
    "first denominator is 10000^0 = 1.",
    (ANGLE, "position * base ** (-2 * (pair + 1) / d_model)"),
)
add(
    "vector_angle_to_the_power",
    "Your angle is (p / base^(1/d_model))^2i, so the position is raised to a power too; only the "
    "base has the exponent: p · base^(-2i/d_model).",
    (ANGLE, "(position / base ** (1 / d_model)) ** (2 * pair)"),
)
add(
    "vector_wavelengths",
    "Your angles grow with the dimension: the position is multiplied by base^(2i/d_model), and "
    "should be divided by it.",
    (ANGLE, "position * base ** (2 * pair / d_model)"),
)
add(
    "vector_swapped",
    "Sine and cosine have changed places; even dimensions are sines.",
    (ENTRY, "math.cos(angle) if dimension % 2 == 0 else math.sin(angle)"),
)
add(
    "vector_sines_only",
    "All your dimensions are sines; the odd ones are cosines of the same angle.",
    (ENTRY, "math.sin(angle)"),
    read="pos-rotation",
)
add(
    "vector_half_and_half",
    "Your sines stand in the first half and your cosines in the second; here they alternate.",
    (
        "return vector",
        "return vector[0::2] + vector[1::2]",
    ),
    read="pos-layouts",
)
add(
    "vector_from_one",
    "Your positions start at 1: position p gets the vector of p + 1. Position 0 is (0, 1, 0, 1, "
    "...).",
    (ANGLE, "(position + 1) * base ** (-2 * pair / d_model)"),
)
add(
    "vector_degrees",
    "Your angles are taken for degrees; math.sin expects radians, so leave them as they are.",
    (ENTRY, ENTRY.replace("(angle)", "(math.radians(angle))")),
)
add(
    "vector_base_ignored",
    "The base is always 10000; use the argument `base`.",
    (ANGLE, "position * 10000.0 ** (-2 * pair / d_model)"),
)
add(
    "vector_odd_longer",
    "With an odd width your vector is one too long; it ends with a sine.",
    ("for dimension in range(d_model):", "for dimension in range(d_model + d_model % 2):"),
)
add(
    "vector_odd_shorter",
    "With an odd width your vector is one too short; it ends with a sine of its own.",
    ("for dimension in range(d_model):", "for dimension in range(d_model - d_model % 2):"),
)
add(
    "vector_tensor",
    "Your result is a tensor; a list of Python floats is asked for.",
    ("return vector", "return torch.tensor(vector)"),
)
add(
    "vector_position_unchecked",
    "A negative position is not refused; raise a ValueError.",
    ("if not isinstance(position, int) or position < 0:", "if False:"),
)
add(
    "vector_floats_accepted",
    "A position such as 1.5 is accepted; raise a ValueError unless it is an int.",
    ("if not isinstance(position, int) or position < 0:", "if position < 0:"),
)
add(
    "vector_width_unchecked",
    "A width below 1 is not refused; raise a ValueError.",
    ("if not isinstance(d_model, int) or d_model < 1:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "sinusoidal_table", "pos-sinusoid")
POSITIONS = "torch.arange(length, dtype=torch.float64)"
ANGLES = "positions[:, None] * base**-exponents"
SINES = "table[:, 0::2] = torch.sin(angles)"
COSINES = "table[:, 1::2] = torch.cos(angles[:, : d_model // 2])"
add(
    "table_i_not_2i",
    "Your angles are p · base^(-i/d_model) for pair i; the exponent is -2i/d_model.",
    (EXPONENTS, f"torch.arange({COUNT}, dtype=torch.float64) / d_model"),
    read="pos-frequencies",
)
add(
    "table_half_width",
    "Your exponent is divided by d_model/2 although it already holds 2i; it is -2i/d_model.",
    (EXPONENTS, "torch.arange(0, d_model, 2, dtype=torch.float64) / (d_model / 2)"),
    read="pos-frequencies",
)
add(
    "table_first_pair_slow",
    "For d_model = 4 your first column is sin(p/100) instead of sin(p); pairs are counted from "
    "i = 0, so the first denominator is 10000^0 = 1.",
    (EXPONENTS, f"(2 * torch.arange({COUNT}, dtype=torch.float64) + 2) / d_model"),
)
add(
    "table_up_to_base",
    "Your last frequency is 1/base, dividing by the number of pairs minus 1 as tensor2tensor does; "
    "this exercise asks for base^(-2i/d_model).",
    (EXPONENTS, f"torch.arange({COUNT}, dtype=torch.float64) / max({COUNT} - 1, 1)"),
    read="pos-frequencies",
)
add(
    "table_own_frequency",
    "Your cosines have a frequency of their own, base^(-(2i+1)/d_model); sine and cosine of a pair "
    "share one angle.",
    (
        COSINES,
        "odd = torch.arange(1, d_model, 2, dtype=torch.float64) / d_model\n"
        "    table[:, 1::2] = torch.cos(positions[:, None] * base**-odd)",
    ),
)
add(
    "table_angle_to_the_power",
    "Your angle is (p / base^(1/d_model))^2i, so the position is raised to a power too; only the "
    "base has the exponent: p · base^(-2i/d_model).",
    (ANGLES, "(positions[:, None] / base ** (1 / d_model)) ** (exponents * d_model)"),
)
add(
    "table_wavelengths",
    "Your angles grow with the dimension: the position is multiplied by base^(2i/d_model), and "
    "should be divided by it.",
    (ANGLES, "positions[:, None] * base**exponents"),
)
add(
    "table_swapped",
    "Sine and cosine have changed places; even columns are sines.",
    (SINES, "table[:, 0::2] = torch.cos(angles)"),
    (COSINES, "table[:, 1::2] = torch.sin(angles[:, : d_model // 2])"),
)
add(
    "table_sines_only",
    "All your columns are sines; the odd ones are cosines of the same angle.",
    (COSINES, "table[:, 1::2] = torch.sin(angles[:, : d_model // 2])"),
    read="pos-rotation",
)
add(
    "table_half_and_half",
    "Your sines stand in the first half and your cosines in the second; here they alternate.",
    ("return table", "return torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)"),
    read="pos-layouts",
)
add(
    "table_from_one",
    "Your positions start at 1; row 0 is position 0, (0, 1, 0, 1, ...).",
    (POSITIONS, "torch.arange(1, length + 1, dtype=torch.float64)"),
)
add(
    "table_relative_positions",
    "Your positions are divided by the length; the table of a longer sequence must begin with the "
    "same rows, so use p itself.",
    (POSITIONS, f"{POSITIONS} / length"),
    read="pos-requirements",
)
add(
    "table_transposed",
    "Your table has a row for each dimension; positions belong in rows: (length, d_model).",
    ("return table", "return table.T"),
)
add(
    "table_base_ignored",
    "The base is always 10000; use the argument `base`.",
    (ANGLES, "positions[:, None] * 10000.0**-exponents"),
)
add(
    "table_odd_fails",
    "An odd width fails: there is one sine more than there are cosines, so cut the angles to "
    "d_model // 2 columns for the cosines.",
    (COSINES, "table[:, 1::2] = torch.cos(angles)"),
)
add(
    "table_odd_rounded",
    "With an odd width you take the frequencies of d_model + 1; the exponent is -2i/d_model for "
    "every width.",
    (EXPONENTS, "torch.arange(0, d_model, 2, dtype=torch.float64) / (d_model + d_model % 2)"),
)
add(
    "table_odd_refused",
    "An odd width is refused; it works, and the last column is a sine.",
    ("if length < 1 or d_model < 1:", "if length < 1 or d_model < 1 or d_model % 2:"),
)
add(
    "table_double",
    "Your table is float64; the result is float32.",
    ("torch.empty(length, d_model)", "torch.empty(length, d_model, dtype=torch.float64)"),
)
add(
    "table_half_precision",
    "Far positions are wrong: your angles are rounded too coarsely. Multiply position and "
    "frequency in float32 at least.",
    (ANGLES, "(positions.bfloat16()[:, None] * base ** -exponents.bfloat16()).double()"),
)
add(
    "table_length_unchecked",
    "A length below 1 is not refused with a ValueError.",
    ("if length < 1 or d_model < 1:", "if d_model < 1:"),
)
add(
    "table_width_unchecked",
    "A width below 1 is not refused with a ValueError.",
    ("if length < 1 or d_model < 1:", "if length < 1:"),
)
add(
    "table_base_unchecked",
    "A base of 1 or less is not refused with a ValueError.",
    ("if base <= 1:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "PositionalEncoding", "pos-module")
BUFFER = 'self.register_buffer("table", sinusoidal_table(max_length, d_model), persistent=False)'
CODES = "self.table[: x.shape[1]].to(x.dtype)"
SUM = "self.dropout(x + codes)"
TOO_FAR = "if x.shape[1] > max_length:"
add(
    "encoding_batch_row",
    "The table is indexed by the row of the batch: all tokens of example b get the code of "
    "position b. The batch comes first, so cut the table to x.shape[1].",
    (CODES, "self.table[: x.shape[0]].unsqueeze(1).to(x.dtype)"),
    (TOO_FAR, "if False:"),
)
add(
    "encoding_batch_size",
    "The table is cut to the size of the batch, x.size(0); the positions are dimension 1.",
    (CODES, "self.table[: x.shape[0]].to(x.dtype)"),
    (TOO_FAR, "if False:"),
)
add(
    "encoding_parameter",
    "Your table is a parameter, which an optimiser is given and which is saved; it is fixed, so "
    "register it as a buffer.",
    (BUFFER, "self.table = nn.Parameter(sinusoidal_table(max_length, d_model))"),
)
add(
    "encoding_plain_attribute",
    "Your table is a plain attribute, so it doesn't follow the module to another dtype or device; "
    "use register_buffer.",
    (BUFFER, "self.table = sinusoidal_table(max_length, d_model)"),
    (CODES, "self.table[: x.shape[1]]"),
)
add(
    "encoding_saved",
    "Your table is saved in the state dict, so a module with another max_length could not load it; "
    "register the buffer with persistent=False.",
    (", persistent=False", ""),
)
add(
    "encoding_extra_dimension",
    "Your buffer has a dimension of size 1 too many; its shape is (max_length, d_model).",
    (
        BUFFER,
        'self.register_buffer("table", sinusoidal_table(max_length, d_model)[None], '
        "persistent=False)",
    ),
    ("max_length, d_model = self.table.shape", "_, max_length, d_model = self.table.shape"),
    (CODES, "self.table[:, : x.shape[1]].to(x.dtype)"),
)
add(
    "encoding_without_dropout",
    "There is no dropout in train mode; apply it to the sum of embeddings and codes.",
    (SUM, "x + codes"),
)
add(
    "encoding_dropout_before_sum",
    "Dropout acts on the embeddings before the codes are added; it acts on the sum.",
    (SUM, "self.dropout(x) + codes"),
)
add(
    "encoding_dropout_on_codes",
    "Dropout acts on the codes only; it acts on the sum of embeddings and codes.",
    (SUM, "x + self.dropout(codes)"),
)
add(
    "encoding_dropout_in_eval",
    "Dropout acts in eval mode too; tell it whether the module is training, as nn.Dropout does.",
    (SUM, "nn.functional.dropout(x + codes, self.dropout.p, True)"),
)
add(
    "encoding_dropout_by_default",
    "Your module drops a tenth by default; the default is dropout=0.0.",
    ("dropout: float = 0.0", "dropout: float = 0.1"),
)
add(
    "encoding_dropout_fixed",
    "Your module always drops a tenth; use the argument `dropout`, also where it is 0.",
    ("nn.Dropout(dropout)", "nn.Dropout(0.1)"),
)
add(
    "encoding_padding_left_out",
    "Vectors of zeros get no code; every vector gets the code of its position. Attention's mask "
    "says what is padding.",
    (SUM, "self.dropout(x + codes * (x != 0).any(-1, keepdim=True))"),
)
add(
    "encoding_max_length_ignored",
    "Your table has 5000 rows, whatever max_length is; use the argument.",
    ("sinusoidal_table(max_length, d_model)", "sinusoidal_table(5000, d_model)"),
)
add(
    "encoding_table_shared",
    "Your modules share one table, made by the first of them; make a table for each module, of its "
    "own max_length.",
    (
        "sinusoidal_table(max_length, d_model)",
        "TABLES.setdefault(d_model, sinusoidal_table(max_length, d_model))",
    ),
    ("class PositionalEncoding(", "TABLES = {}\n\n\nclass PositionalEncoding("),
)
add(
    "encoding_row_too_many",
    "Your table has one row too many; the positions are 0 to max_length - 1.",
    ("sinusoidal_table(max_length, d_model)", "sinusoidal_table(max_length + 1, d_model)"),
)
add(
    "encoding_keep_probability",
    "Your argument `dropout` is the share that is kept; it is the share that is dropped.",
    ("nn.Dropout(dropout)", "nn.Dropout(1.0 - dropout if dropout else 0.0)"),
)
add(
    "encoding_token_dropout",
    "Dropout takes all features of a token at once; every entry is dropped on its own.",
    (SUM, "nn.functional.dropout1d(x + codes, self.dropout.p, self.training)"),
)
add(
    "encoding_scaled",
    "Your embeddings are multiplied by √d_model here; TokenEmbedding has done that already.",
    (SUM, "self.dropout(x * math.sqrt(d_model) + codes)"),
    read="pos-embedding",
)
add(
    "encoding_codes_only",
    "You return the codes without the embeddings; add them to x.",
    (SUM, "self.dropout(codes.expand(x.shape))"),
)
add(
    "encoding_concatenated",
    "You put the codes beside the embeddings; they are added, and the width stays the same.",
    (SUM, "self.dropout(torch.cat([x, codes.expand(x.shape)], dim=-1))"),
)
add(
    "encoding_multiplied",
    "You multiply embeddings and codes; they are added.",
    (SUM, "self.dropout(x * codes)"),
)
add(
    "encoding_from_one",
    "Your first token gets the code of position 1; positions start at 0.",
    (
        CODES,
        "sinusoidal_table(x.shape[1] + 1, d_model)[1:].to(x.dtype)",
    ),
)
add(
    "encoding_from_the_end",
    "You use the last rows of the table; use the first ones.",
    (CODES, "self.table[max_length - x.shape[1] :].to(x.dtype)"),
)
add(
    "encoding_in_place",
    "You add to x in place, which changes the caller's tensor; x + ... makes a new one.",
    (SUM, "self.dropout(x.add_(codes))"),
)
add(
    "encoding_detached",
    "No gradient passes to the embeddings; don't detach x and don't compute under no_grad.",
    (SUM, "self.dropout(x.detach() + codes)"),
)
add(
    "encoding_length_unchecked",
    "A sequence longer than the table ends in another error or none; raise a ValueError.",
    (TOO_FAR, "if False:"),
)
add(
    "encoding_full_length_refused",
    "A sequence of exactly max_length is refused; the table has a row for each of its tokens.",
    (TOO_FAR, "if x.shape[1] >= max_length:"),
)
add(
    "encoding_longer_accepted",
    "A sequence longer than the table is accepted; don't cut it, count from 0 again or make more "
    "codes, but raise a ValueError.",
    (TOO_FAR, "x = x[:, :max_length]\n        if False:"),
)
add(
    "encoding_width_unchecked",
    "An x of another width is not refused with a ValueError; width 1 would even be broadcast.",
    ("if x.shape[-1] != d_model:", "if False:"),
)
add(
    "encoding_type_of_table",
    "The sum takes the type of the table; it should keep that of x: convert the rows with "
    ".to(x.dtype) before you add them.",
    (".to(x.dtype)", ""),
)
add(
    "encoding_in_float32",
    "You add in float32, so that an x of float64 loses digits; convert the rows of the table to "
    "x.dtype, and leave x as it is.",
    ("self.dropout(x + codes)", "self.dropout((x.float() + codes.float()).to(x.dtype))"),
)
add(
    "encoding_table_converted",
    "You convert the table itself to the type of x, so that it has lost digits by the next call; "
    "convert the rows that you add.",
    (
        "codes = self.table[: x.shape[1]].to(x.dtype)",
        "self.table = self.table.to(x.dtype)\n        codes = self.table[: x.shape[1]]",
    ),
)
add(
    "encoding_sizes_unchecked",
    "A table without rows or columns is accepted; refuse a d_model or max_length below 1 with a "
    "ValueError when the module is made.",
    (
        "sinusoidal_table(max_length, d_model)",
        "sinusoidal_table(max(1, max_length), max(1, d_model))",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "half_and_half_table", "pos-layouts")
HALVES = "torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)"
RATES = "torch.arange(d_model // 2, dtype=torch.float64)"


def _halves(exponents: str, cosines: str = "") -> Swap:
    """The two halves with exponents of their own."""
    angles = "torch.arange(length, dtype=torch.float64)[:, None] * base**-({})"
    return (
        HALVES,
        f"torch.cat([torch.sin({angles.format(exponents)}), "
        f"torch.cos({angles.format(cosines or exponents)})], dim=1).float()",
    )


add(
    "half_interleaved",
    "Your columns alternate; here all sines come first, then all cosines.",
    (HALVES, "table"),
)
add(
    "half_cosines_first",
    "Your cosines come first; the sines do.",
    (HALVES, "torch.cat([table[:, 1::2], table[:, 0::2]], dim=1)"),
)
add(
    "half_i_not_2i",
    "Your exponents are -k/d_model; the frequencies are those of the interleaved table, "
    "base^(-2k/d_model), k = 0 to d_model/2 - 1.",
    _halves(f"{RATES} / d_model"),
    read="pos-frequencies",
)
add(
    "half_up_to_base",
    "Your last frequency is 1/base, dividing by d_model/2 - 1 as tensor2tensor does; use the "
    "frequencies of the interleaved table.",
    _halves(f"{RATES} / max(d_model // 2 - 1, 1)"),
    read="pos-frequencies",
)
add(
    "half_own_frequencies",
    "Your cosines go on with the frequencies where the sines end; both halves have the same.",
    _halves(f"{RATES} / d_model", f"({RATES} + d_model // 2) / d_model"),
)
add(
    "half_odd_exponents",
    "Your cosines have the exponents (2k+1)/d_model; both halves have 2k/d_model.",
    _halves(f"2 * {RATES} / d_model", f"(2 * {RATES} + 1) / d_model"),
)
add(
    "half_of_the_interleaved",
    "You cut the interleaved table in the middle; sines are the even columns, cosines the odd.",
    (
        HALVES,
        "torch.cat([table[:, d_model // 2 :], table[:, : d_model // 2]], dim=1)",
    ),
)
add(
    "half_base_ignored",
    "The base is always 10000; hand the argument `base` on.",
    ("sinusoidal_table(length, d_model, base)", "sinusoidal_table(length, d_model)"),
)
add(
    "half_odd_accepted",
    "An odd width is not refused; it has no halves, so raise a ValueError.",
    ("if d_model < 2 or d_model % 2 != 0:", "if d_model < 2:"),
)
add(
    "half_transposed",
    "Your halves are stacked as rows; put them side by side: torch.cat(..., dim=1).",
    (HALVES, "torch.cat([table[:, 0::2], table[:, 1::2]], dim=0)"),
)

add = mistakes_in(MISCONCEPTIONS, "interleaved_to_half", "pos-layouts")
COLUMNS = "torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])"
EVEN_WIDTH = "if d_model < 2 or d_model % 2 != 0:"
add(
    "columns_inverse",
    "Your columns lead the other way, from half and half to interleaved; entry c says which "
    "interleaved column becomes column c.",
    (COLUMNS, f"{COLUMNS}.argsort()"),
)
add(
    "columns_odd_first",
    "Your odd columns come first; the sines, in the even ones, do.",
    (COLUMNS, "torch.cat([torch.arange(1, d_model, 2), torch.arange(0, d_model, 2)])"),
)
add(
    "columns_unchanged",
    "Your columns are 0, 1, 2, ... and reorder nothing.",
    (COLUMNS, "torch.arange(d_model)"),
)
add(
    "columns_as_floats",
    "Your columns are floats and can't be an index; make them int64.",
    (COLUMNS, f"{COLUMNS}.float()"),
)
add(
    "columns_int32",
    "Your columns are int32; int64 is asked for.",
    (COLUMNS, f"{COLUMNS}.int()"),
)
add(
    "columns_matrix",
    "You return a permutation matrix; return the d_model column numbers.",
    (COLUMNS, f"torch.eye(d_model)[{COLUMNS}]"),
)
add(
    "columns_list",
    "You return a list; return an int64 tensor.",
    (COLUMNS, f"{COLUMNS}.tolist()"),
)
add(
    "columns_swapped_pairs",
    "You swap the columns of each pair; the even columns belong in the first half.",
    (COLUMNS, "torch.arange(d_model).view(-1, 2).flip(1).flatten()"),
)
add(
    "columns_odd_accepted",
    "An odd width is not refused; raise a ValueError.",
    (EVEN_WIDTH, "if d_model < 2:"),
)
add(
    "columns_too_small_accepted",
    "A width below 2 is not refused; raise a ValueError.",
    (EVEN_WIDTH, "if d_model % 2 != 0:"),
)

add = mistakes_in(MISCONCEPTIONS, "offset_rotation", "pos-rotation")
TURN = "offset * base ** (-even.double() / d_model)"
UPPER = "matrix[even, even + 1] = torch.sin(angles).float()"
LOWER = "matrix[even + 1, even] = -torch.sin(angles).float()"
DIAGONAL = "matrix[even, even] = matrix[even + 1, even + 1] = torch.cos(angles).float()"
add(
    "rotation_transposed",
    "Your matrix moves positions back by the offset: it is the transpose. sin(a + b) = sin a cos b "
    "+ cos a sin b puts +sin into the first row of a block.",
    (UPPER, UPPER.replace("= torch", "= -torch")),
    (LOWER, LOWER.replace("= -torch", "= torch")),
)
add(
    "rotation_without_minus",
    "Your blocks have the rows cos, sin and sin, cos; cos(a + b) = cos a cos b - sin a sin b, so "
    "the lower left entry is -sin.",
    (LOWER, LOWER.replace("= -torch", "= torch")),
)
add(
    "rotation_swapped",
    "Sine and cosine have changed places in your blocks; an offset of 0 must give the identity.",
    (DIAGONAL, DIAGONAL.replace("cos(", "sin(")),
    (UPPER, UPPER.replace("sin(", "cos(")),
    (LOWER, LOWER.replace("sin(", "cos(")),
)
add(
    "rotation_diagonal_only",
    "Your matrix multiplies each dimension by one number; no dimension is a multiple of itself "
    "further on. Only sine and cosine together are, by a 2 x 2 block.",
    (UPPER, "pass"),
    (LOWER, "pass"),
)
add(
    "rotation_half_layout",
    "Your blocks fit the table with all sines first; here sine and cosine of a pair are "
    "neighbours.",
    (
        "return matrix",
        "order = torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])\n"
        "    return matrix[order][:, order]",
    ),
    read="pos-layouts",
)
add(
    "rotation_one_angle",
    "All your blocks turn by the same angle; block k turns by offset · ω_k.",
    (TURN, "offset * base ** (-0.0 * even.double())"),
)
add(
    "rotation_i_not_2i",
    "Your angles are offset · base^(-k/d_model); the frequencies are base^(-2k/d_model), as in the "
    "table.",
    (TURN, "offset * base ** (-even.double() / 2 / d_model)"),
    read="pos-frequencies",
)
add(
    "rotation_half_width",
    "Your exponents are divided by d_model/2; they are -2k/d_model, as in the table.",
    (TURN, "offset * base ** (-2 * even.double() / d_model)"),
    read="pos-frequencies",
)
add(
    "rotation_offset_ignored",
    "Your angles are those of an offset of 1, whatever the offset is; multiply the frequencies by "
    "it.",
    (TURN, "base ** (-even.double() / d_model)"),
)
add(
    "rotation_absolute",
    "A negative offset moves forward as a positive one does; keep its sign.",
    (TURN, f"abs({TURN})"),
)
add(
    "rotation_base_ignored",
    "The base is always 10000; use the argument `base`.",
    (TURN, "offset * 10000.0 ** (-even.double() / d_model)"),
)
add(
    "rotation_odd_accepted",
    "An odd width is not refused with a ValueError; its last sine has no cosine to turn with.",
    ("if d_model < 2 or d_model % 2 != 0:", "if d_model < 2:"),
)
add(
    "rotation_floats_accepted",
    "An offset such as 1.5 is accepted; raise a ValueError unless it is an int.",
    ("if not isinstance(offset, int):", "if False:"),
)
add(
    "rotation_base_unchecked",
    "A base of 1 or less is not refused; raise a ValueError.",
    ("if base <= 1:", "if False:"),
)
