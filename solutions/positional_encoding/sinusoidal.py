# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Positions: sinusoids
#
# At the end of this unit every position has its code, from binary digits to sinusoids in two
# layouts, and a move by some positions is a rotation.

# %%
"""Codes of positions: binary, sinusoidal in two layouts, and what moving does to them."""

# The options of a cell must stand on one line, however long it gets.
# ruff: noqa: E501

# %%
import math

import torch
from torch import Tensor, nn

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("positional_encoding-sinusoidal")

# %% [markdown]
# ## Positions: a code for where
#
# ### Exercise 1: Binary code
#
# The oldest way to write a position as a row of bounded numbers is the binary number. Write
# `binary_code(positions, bits)`, the least significant digit first:
#
# $$b_{t,k} = \left\lfloor \frac{t}{2^k} \right\rfloor \bmod 2,\qquad k = 0, \dots,
# \text{bits} - 1$$
#
# <!-- id: digits -->
#
# Column 0 changes with every position (period 2), column $k$ has the period $2^{k+1}$: every column
# is a wave, and no two of them have the same length.
#
# * `positions` `(T,)` integers, in any order; the result is `float32` `(T, bits)` of 0 and 1.
#   <!-- id: float32 -->
# * `ValueError` if `bits` is smaller than 1, if `positions` is not of an integer type (floating
#   point and bool are refused), or if a position is negative or at least $2^{\text{bits}}$.
#   <!-- id: bad-input -->
#
# *Example.* `binary_code(torch.tensor([1, 6]), 3)` is
# $\begin{pmatrix}1&0&0\\0&1&1\end{pmatrix}$: $6 = 0\cdot1 + 1\cdot2 + 1\cdot4$.
#
# Book: `pos-binary`.
#
# <details><summary>Hint 1</summary>
#
# `t >> k` drops the last $k$ digits of $t$, and `& 1` keeps the last one that is left.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Both work on tensors and broadcast: a column of positions against a row of digit numbers.
#
# </details>


# %% exercise="binary_code" points=2 section="pos-binary"
def binary_code(positions: Tensor, bits: int) -> Tensor:
    """Write positions as binary numbers, the least significant digit first.

    Args:
        positions: (T,) integers in 0 .. 2**bits - 1.
        bits: number of digits, at least 1.

    Returns:
        float32 (T, bits) of 0 and 1; column k has the period 2**(k + 1).

    Raises:
        ValueError: if bits is smaller than 1, positions is not of an integer type, or a position
            is negative or needs more digits.
    """
    ### BEGIN SOLUTION
    if bits < 1:
        raise ValueError(f"bits must be at least 1, but is {bits}")
    if positions.is_floating_point() or positions.is_complex() or positions.dtype == torch.bool:
        raise ValueError(f"positions must be integers, but are {positions.dtype}")
    for position in positions.tolist():
        if not 0 <= position < 2**bits:
            raise ValueError(f"position {position} can't be written with {bits} binary digits")
    digits = torch.arange(bits, device=positions.device)  # (bits,)
    return (positions.long()[:, None] >> digits & 1).float()  # (T, bits)
    ### END SOLUTION


# %% check="binary_code" tags=["active-ipynb"]
# check("binary_code")

# %% [markdown]
# ### Exercise 2: Frequencies
#
# The sinusoidal code replaces digits by smooth waves. Write `angular_frequencies(d_model,
# base=10000.0)`:
#
# $$\omega_i = \text{base}^{-2i/d_{\text{model}}},\qquad i = 0, 1, \dots,
# \left\lceil \tfrac{d_{\text{model}}}{2} \right\rceil - 1$$
#
# <!-- id: formula -->
#
# It is a geometric sequence that begins with exactly 1; a wave has the length (in positions)
# $2\pi/\omega_i$. One frequency serves two columns, a sine and a cosine, so there are half as many
# as columns; an odd width has one more for its last column. $i$ counts *pairs*: with $2i = d$ there
# would be one pair too many.
#
# * `d_model` is the full width, not the number of pairs. The result is `float32` `(ceil(d_model /
#   2),)`. <!-- id: length -->
# * `ValueError` if `d_model` is not an `int` or is smaller than 1, or if `base` is not larger than
#   1. <!-- id: bad-input -->
#
# *Example.* `angular_frequencies(4)` is $(1, 0.01)$, and `angular_frequencies(5)` is
# $(1, 0.02512, 0.000631)$.
#
# Book: `pos-frequencies`.
#
# <details><summary>Hint 1</summary>
#
# `torch.arange(0, d_model, 2)` is the sequence of the $2i$, for even and odd widths.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A Python number to the power of a tensor is a tensor, so the formula can be written down as it
# stands. The detour through `exp` and `log`, seen in many programs, gives the same.
#
# </details>


# %% exercise="angular_frequencies" points=1 section="pos-frequencies"
def angular_frequencies(d_model: int, base: float = 10000.0) -> Tensor:
    """The frequencies omega_i = base**(-2i / d_model) (Vaswani et al. 2017, section 3.5).

    Args:
        d_model: width of the position vectors, at least 1.
        base: larger than 1; the wavelengths 2 pi / omega_i stay below 2 pi base.

    Returns:
        float32 (ceil(d_model / 2),), for i = 0, 1, ...; the first is 1.

    Raises:
        ValueError: if d_model is not an int or is smaller than 1, or base is not larger than 1.
    """
    ### BEGIN SOLUTION
    if not isinstance(d_model, int) or d_model < 1:
        raise ValueError(f"d_model must be an integer of at least 1, but is {d_model!r}")
    if base <= 1:
        raise ValueError(f"base must be larger than 1, but is {base}")
    exponents = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model  # (ceil(d_model/2),)
    return (base**-exponents).float()  # (ceil(d_model/2),)
    ### END SOLUTION


# %% check="angular_frequencies" tags=["active-ipynb"]
# check("angular_frequencies")

# %% [markdown]
# ### Exercise 3: One position, number by number
#
# Write `position_vector(position, d_model, base=10000.0)`: the sinusoidal code of one position
# (Vaswani et al., 2017, section 3.5), by a loop over the dimensions and Python's `math`. Even
# dimensions are sines, odd ones cosines, and the two of a pair share their frequency:
#
# $$\text{PE}_{t,\,2i} = \sin(t\,\omega_i),\qquad \text{PE}_{t,\,2i+1} = \cos(t\,\omega_i),\qquad
# \omega_i = \text{base}^{-2i/d_{\text{model}}}$$
#
# <!-- id: formula -->
#
# * The result is a `list` of `d_model` Python `float`s. An odd width ends with a sine.
#   <!-- id: odd-width -->
# * `ValueError` if `position` is not an `int` or is negative, or if `d_model` is not an `int` or is
#   smaller than 1. <!-- id: bad-input -->
#
# *Example.* `position_vector(1, 4)` is $(\sin 1, \cos 1, \sin 0.01, \cos 0.01) \approx
# (0.8415, 0.5403, 0.0100, 1.0000)$. Position 0 is $(0, 1, 0, 1)$.
#
# Book: `pos-sinusoid`.
#
# <details><summary>Hint 1</summary>
#
# Dimension `j` belongs to pair `j // 2`; whether it is sine or cosine says `j % 2`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The exponent holds the *even* number $2i$, also in an odd dimension: dimension 3 has $2i = 2$.
#
# </details>


# %% exercise="position_vector" points=2 section="pos-sinusoid"
def position_vector(position: int, d_model: int, base: float = 10000.0) -> list[float]:
    """The sinusoidal code of one position, number by number (Vaswani et al. 2017, section 3.5).

    Args:
        position: 0, 1, 2, ...
        d_model: width, at least 1; an odd one ends with a sine.
        base: of the frequencies omega_i = base**(-2i / d_model).

    Returns:
        d_model Python floats: sin(position omega_i) at index 2i, cos(position omega_i) at 2i + 1.

    Raises:
        ValueError: if position is not an int or is negative, or d_model is not an int or is
            smaller than 1.
    """
    ### BEGIN SOLUTION
    if not isinstance(position, int) or position < 0:
        raise ValueError(f"position must be an integer of at least 0, but is {position!r}")
    if not isinstance(d_model, int) or d_model < 1:
        raise ValueError(f"d_model must be an integer of at least 1, but is {d_model!r}")
    vector = []
    for dimension in range(d_model):
        pair = dimension // 2
        angle = position * base ** (-2 * pair / d_model)
        vector.append(math.sin(angle) if dimension % 2 == 0 else math.cos(angle))
    return vector
    ### END SOLUTION


# %% check="position_vector" tags=["active-ipynb"]
# check("position_vector")

# %% [markdown]
# ### Exercise 4: All positions at once
#
# Write `sinusoidal_table(length, d_model, base=10000.0)`: row $t$ is the code of position $t$, for
# $t = 0, \dots, \text{length} - 1$, without a loop over the positions. The **interleaved** layout
# of exercise 3: sines in the even columns, cosines in the odd ones. <!-- id: interleaved -->
#
# * The result is `float32` `(length, d_model)`. It must agree with exercise 3 up to $10^{-3}$ at
#   position 5000; angles computed in `float64` are right to seven digits there, `float32` suffices.
#   <!-- id: exact-far-out -->
# * An odd width ends with a sine column; it has one cosine less than sines. <!-- id: odd-width -->
# * `ValueError` if `length` or `d_model` is smaller than 1, or if `base` is not larger than 1.
#   <!-- id: bad-input -->
#
# *Example.* `sinusoidal_table(2, 3)` is
# $\begin{pmatrix}0&1&0\\0.8415&0.5403&0.0022\end{pmatrix}$, with $\omega_1 = 10000^{-2/3} \approx
# 0.00215$.
#
# Book: `pos-sinusoid`.
#
# <details><summary>Hint 1</summary>
#
# A column of positions `(length, 1)` times a row of frequencies gives all angles.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Make an empty table and write into every second column: `table[:, 0::2]` begins at 0,
# `table[:, 1::2]` at 1.
#
# </details>
# <details><summary>Hint 3</summary>
#
# With an odd width `table[:, 1::2]` has one column less than there are frequencies: cut the angles
# of the cosines to `d_model // 2`.
#
# </details>


# %% exercise="sinusoidal_table" points=3 section="pos-sinusoid"
def sinusoidal_table(length: int, d_model: int, base: float = 10000.0) -> Tensor:
    """The sinusoidal codes of positions 0 .. length - 1 (Vaswani et al. 2017, section 3.5).

    Args:
        length: number of positions, at least 1.
        d_model: width, at least 1; an odd one ends with a sine.
        base: larger than 1.

    Returns:
        float32 (length, d_model); sines in the even columns, cosines in the odd ones.

    Raises:
        ValueError: if length or d_model is smaller than 1, or base is not larger than 1.
    """
    ### BEGIN SOLUTION
    if length < 1 or d_model < 1:
        raise ValueError(f"length and d_model must be at least 1, but are {length} and {d_model}")
    if base <= 1:
        raise ValueError(f"base must be larger than 1, but is {base}")
    # In float64: with angles in float32, rows up to 5000 are off by up to 4e-4.
    positions = torch.arange(length, dtype=torch.float64)  # (length,)
    exponents = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model  # (ceil(d_model/2),)
    angles = positions[:, None] * base**-exponents  # (length, ceil(d_model/2))
    table = torch.empty(length, d_model)  # (length, d_model)
    table[:, 0::2] = torch.sin(angles)
    table[:, 1::2] = torch.cos(angles[:, : d_model // 2])  # An odd width has one cosine less.
    return table
    ### END SOLUTION


# %% check="sinusoidal_table" tags=["active-ipynb"]
# check("sinusoidal_table")

# %% [markdown]
# ### Question: Why many frequencies?
#
# A position could be written as *one* bounded number: by a function that always rises, such as
# $\tanh(t/100)$, or by a periodic one, such as $\sin(\omega t)$. Explain in a few sentences why
# each of the two fails in long sequences, and how a code of many frequencies avoids both faults
# (the binary code may help you to say it). What does the cosine beside every sine add?
#
# Book: `pos-candidates`. 3 points, marked by a person.

# %% [markdown] question="why_many_frequencies" points=3 section="pos-candidates" title="Why many frequencies?"
# **Your answer:**
#
# ### BEGIN SOLUTION
# *Bounded and rising:* the differences between neighbours add up to no more than the range of the
# function, so over a long sequence they must shrink towards 0. For $\tanh(t/100)$ they become
# smaller than the spacing of `float32`, and then different positions have the same number. Stretching
# the function over the sequence's length doesn't help: then the same gap is coded differently in
# sequences of different length.
#
# *One periodic function:* it repeats. $\sin(\omega t)$ returns after $2\pi/\omega$ positions,
# exactly or nearly so, and within one period it takes every value twice. A fast wave tells
# neighbours apart but not distant positions; a slow one is unambiguous for long, but its neighbours
# differ by $\omega$ at most and become indistinguishable. One frequency can't do both.
#
# *Many frequencies* share the work like the digits of a binary number: the fast ones tell
# neighbours apart, the slow ones say in which stretch of the sequence we are. The vector as a whole
# comes near an earlier one only where all waves do so at once, while every entry stays in $[-1, 1]$
# and the same step in position is coded in the same way everywhere.
#
# *The cosine* makes each wave a point on a circle. This removes the double values within a period,
# gives equal gaps equal distances, and makes moving by an offset a rotation, a linear map that is
# the same for all positions. With the sine alone $\sin(\omega(t + k))$ is not a linear function of
# $\sin(\omega t)$.
#
# *Points by part, and what commonly goes wrong:* `solutions/marking_guides.md`.
# ### END SOLUTION

# %% [markdown]
# ### Exercise 5: The module
#
# Write `PositionalEncoding(d_model, max_length=5000, dropout=0.0)`: it adds to every vector the
# code of its position, then applies dropout (Vaswani et al., 2017, sections 3.5 and 5.4).
#
# $$y_{bt} = \operatorname{dropout}\bigl(x_{bt} + \text{PE}_t\bigr)$$
#
# <!-- id: sum -->
#
# * The table of exercise 4 (base 10000) is the buffer `table` `(max_length, d_model)`, registered
#   with `persistent=False`: it is not a parameter, takes no gradient, moves with the module
#   (`module.to(...)`), and is not saved, so `state_dict()` is empty. There are no parameters.
#   <!-- id: buffer -->
# * `forward(x)`: `x` `(B, T, D)`; the result has the same shape and type as `x`, whatever the type
#   of the table. <!-- id: dtype-of-x -->
#   Position $t$ is the **second** dimension: every example of the batch gets the same
#   codes. <!-- id: second-dimension -->
# * Dropout with probability `dropout` acts on the sum, in train mode only. <!-- id: dropout -->
# * `ValueError` if `d_model` or `max_length` is smaller than 1 (when the module is created), if `x`
#   is not `d_model` wide, or if $T$ is larger than `max_length`. <!-- id: bad-input -->
#   (Without a check some wrong shapes
#   are broadcast in silence.)
#
# *Example.* For `x` of zeros `(2, 3, 4)` the result in eval mode is, for both examples, the first
# three rows of `sinusoidal_table(5000, 4)`.
#
# Book: `pos-module`.
#
# <details><summary>Hint 1</summary>
#
# `self.register_buffer("name", tensor, persistent=False)` makes `self.name`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `self.table[:T]` is `(T, D)`; added to `(B, T, D)` it broadcasts over the batch. Compare the sizes
# before.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `nn.Dropout` knows by itself whether the module is in train mode. A table of another
# floating-point type than `x` would change the type of the sum; `.to(x.dtype)` prevents it.
#
# </details>


# %% exercise="PositionalEncoding" points=4 section="pos-module"
class PositionalEncoding(nn.Module):
    """Add the sinusoidal code to the embeddings, then dropout (Vaswani et al. 2017, 3.5 and 5.4).

    No parameters and an empty state_dict. Buffer, not persistent: ``table`` (max_length, d_model).
    """

    def __init__(self, d_model: int, max_length: int = 5000, dropout: float = 0.0) -> None:
        """Create the buffer ``table`` and the dropout.

        Args:
            d_model: width, at least 1.
            max_length: number of positions in the table, at least 1.
            dropout: probability of dropping an entry of the sum, in train mode only.

        Raises:
            ValueError: if d_model or max_length is smaller than 1.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.register_buffer("table", sinusoidal_table(max_length, d_model), persistent=False)
        self.dropout = nn.Dropout(dropout)
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """Add the code of position t to every x[:, t].

        Args:
            x: (B, T, D).

        Returns:
            (B, T, D), of the dtype of x.

        Raises:
            ValueError: if x is longer than the table, or of another width.
        """
        ### BEGIN SOLUTION
        max_length, d_model = self.table.shape
        if x.shape[-1] != d_model:
            raise ValueError(f"x is {x.shape[-1]} wide, but the position table is {d_model} wide")
        if x.shape[1] > max_length:
            raise ValueError(f"x has {x.shape[1]} positions, but the table ends after {max_length}")
        codes = self.table[: x.shape[1]].to(x.dtype)  # (T, D)
        return self.dropout(x + codes)  # (B, T, D)
        ### END SOLUTION


# %% check="PositionalEncoding" tags=["active-ipynb"]
# check("PositionalEncoding")

# %% [markdown]
# ### Exercise 6: Half and half
#
# Some programs, the first Transformer's among them, order the columns differently: first all sines,
# then all cosines. Write `half_and_half_table(length, d_model, base=10000.0)`:
#
# $$\text{column } i = \sin(t\,\omega_i),\qquad \text{column } \tfrac{d}{2} + i = \cos(t\,\omega_i),
# \qquad i = 0, \dots, \tfrac{d}{2} - 1$$
#
# <!-- id: sines-first -->
#
# * The frequencies are those of exercise 2: $\omega_i = \text{base}^{-2i/d}$.
#   <!-- id: frequencies -->
# * The result is `float32` `(length, d_model)`.
# * `ValueError` if `d_model` is odd or smaller than 2, if `length` is smaller than 1, or if `base`
#   is not larger than 1. <!-- id: bad-input -->
#
# *Example.* `half_and_half_table(2, 4)` is
# $\begin{pmatrix}0&0&1&1\\0.8415&0.0100&0.5403&1.0000\end{pmatrix}$ (the last entry is
# $\cos 0.01 = 0.99995$).
#
# Book: `pos-layouts`.
#
# <details><summary>Hint 1</summary>
#
# You have all the columns already: `table[:, 0::2]` are the sines of the interleaved table.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.cat([...], dim=1)` puts tables side by side. Refuse odd widths first; the rest is refused
# by exercise 4.
#
# </details>


# %% exercise="half_and_half_table" points=2 section="pos-layouts"
def half_and_half_table(length: int, d_model: int, base: float = 10000.0) -> Tensor:
    """The sinusoidal table with all sines first, then all cosines (as in tensor2tensor).

    Args:
        length: number of positions, at least 1.
        d_model: width, even and at least 2.
        base: larger than 1.

    Returns:
        float32 (length, d_model); column i is sin(t omega_i), column d_model/2 + i is
        cos(t omega_i), with the frequencies of sinusoidal_table.

    Raises:
        ValueError: if d_model is odd or smaller than 2, length is smaller than 1, or base is not
            larger than 1.
    """
    ### BEGIN SOLUTION
    if d_model < 2 or d_model % 2 != 0:
        raise ValueError(f"d_model must be even and at least 2, but is {d_model}")
    table = sinusoidal_table(length, d_model, base)  # (length, d_model)
    return torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)  # (length, d_model)
    ### END SOLUTION


# %% check="half_and_half_table" tags=["active-ipynb"]
# check("half_and_half_table")

# %% [markdown]
# ### Exercise 7: From one layout to the other
#
# The two layouts hold the same numbers. Write `interleaved_to_half(d_model)`: the order of columns
# that turns one into the other, so that
#
# ```python
# columns = interleaved_to_half(d_model)
# sinusoidal_table(n, d_model)[:, columns] == half_and_half_table(n, d_model)   # everywhere
# ```
#
# A linear layer behind the table can learn any order of columns, so a model is as good with the one
# layout as with the other; but weights trained with one don't fit the other.
#
# * The result is `int64` `(d_model,)`, each of $0, \dots, d_{\text{model}} - 1$ once.
#   <!-- id: order-of-columns -->
# * `ValueError` if `d_model` is odd or smaller than 2. <!-- id: odd-width -->
#
# *Example.* `interleaved_to_half(6)` is $(0, 2, 4, 1, 3, 5)$.
#
# Book: `pos-layouts`.
#
# <details><summary>Hint 1</summary>
#
# `t[:, columns]` has in its column `j` the column `columns[j]` of `t`. So ask, for every column of
# the *new* table, where its content stood in the old one.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The first half of the new table are the even columns of the old one, the second half its odd ones.
#
# </details>


# %% exercise="interleaved_to_half" points=2 section="pos-layouts"
def interleaved_to_half(d_model: int) -> Tensor:
    """The order of columns that turns the interleaved layout into the half-and-half layout.

    Args:
        d_model: width, even and at least 2.

    Returns:
        int64 (d_model,) columns, with sinusoidal_table(n, d_model)[:, columns] equal to
        half_and_half_table(n, d_model).

    Raises:
        ValueError: if d_model is odd or smaller than 2.
    """
    ### BEGIN SOLUTION
    if d_model < 2 or d_model % 2 != 0:
        raise ValueError(f"d_model must be even and at least 2, but is {d_model}")
    return torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])  # (d_model,)
    ### END SOLUTION


# %% check="interleaved_to_half" tags=["active-ipynb"]
# check("interleaved_to_half")

# %% [markdown]
# ### Exercise 8: Moving is rotating
#
# One matrix moves **every** position by the same offset. Write `offset_rotation(offset, d_model,
# base=10000.0)`: the matrix $M$ with
#
# $$\text{PE}_{t + \text{offset}} = M\,\text{PE}_t \qquad\text{for every } t$$
#
# in the interleaved layout. By the angle-addition identities, $\sin(a + b) = \sin a\cos b + \cos
# a\sin b$ and $\cos(a + b) = \cos a\cos b - \sin a\sin b$, every pair (sine, cosine) is turned by
# its own angle $\text{offset}\cdot\omega_i$, so $M$ has these blocks along its diagonal and 0
# elsewhere:
#
# $$\begin{pmatrix}\cos(\text{offset}\,\omega_i) & \sin(\text{offset}\,\omega_i)\\
# -\sin(\text{offset}\,\omega_i) & \cos(\text{offset}\,\omega_i)\end{pmatrix}$$
#
# <!-- id: blocks -->
#
# * The result is `float32` `(d_model, d_model)`; the code is a column on its right, `M @ table[t]`.
#   <!-- id: column-on-the-right -->
# * `offset` may be negative (backwards) or 0 (the identity). <!-- id: any-offset -->
# * `ValueError` if `offset` is not an `int`, if `d_model` is odd or smaller than 2, or if `base` is
#   not larger than 1. <!-- id: bad-input -->
#
# *Example.* `offset_rotation(1, 2)` is
# $\begin{pmatrix}0.5403&0.8415\\-0.8415&0.5403\end{pmatrix}$; times the code $(0, 1)$ of position 0
# it is $(0.8415, 0.5403) = (\sin 1, \cos 1)$.
#
# Book: `pos-rotation`.
#
# <details><summary>Hint 1</summary>
#
# Frequency $i$ owns the rows and columns $2i$ and $2i + 1$. Start from a matrix of zeros.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A loop over $i$ that fills four entries is fine. Without a loop: with `even = [0, 2, 4, ...]`,
# `matrix[even, even + 1]` are the upper right entries of all blocks at once.
#
# </details>


# %% exercise="offset_rotation" points=3 section="pos-rotation"
def offset_rotation(offset: int, d_model: int, base: float = 10000.0) -> Tensor:
    """The matrix that moves every position's code by one offset (Vaswani et al. 2017, 3.5).

    Args:
        offset: how many positions to move; may be negative.
        d_model: width, even and at least 2; the layout is that of sinusoidal_table.
        base: larger than 1.

    Returns:
        float32 (d_model, d_model) M with table[t + offset] = M @ table[t] for every position t.

    Raises:
        ValueError: if offset is not an int, d_model is odd or smaller than 2, or base is not
            larger than 1.
    """
    ### BEGIN SOLUTION
    if not isinstance(offset, int):
        raise ValueError(f"offset must be an integer, but is {offset!r}")
    if d_model < 2 or d_model % 2 != 0:
        raise ValueError(f"d_model must be even and at least 2, but is {d_model}")
    if base <= 1:
        raise ValueError(f"base must be larger than 1, but is {base}")
    even = torch.arange(0, d_model, 2)  # (d_model/2,)
    angles = offset * base ** (-even.double() / d_model)  # (d_model/2,), float64 as in the table
    matrix = torch.zeros(d_model, d_model)  # (d_model, d_model)
    matrix[even, even] = matrix[even + 1, even + 1] = torch.cos(angles).float()
    matrix[even, even + 1] = torch.sin(angles).float()
    matrix[even + 1, even] = -torch.sin(angles).float()
    return matrix
    ### END SOLUTION


# %% check="offset_rotation" tags=["active-ipynb"]
# check("offset_rotation")
