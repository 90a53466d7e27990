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
# # Sequence to sequence by hand
#
# In this notebook you build a model that reads one sequence and writes another: from words to ids,
# padding and windows, the three recurrent cells, encoders in one and in both directions, the step
# of a decoder, training with teacher forcing, the likelihood, and three ways to decode: greedy,
# exhaustive and beam search. There are 18 exercises to code and two questions to answer in words.
#
# **How to work.** Write your code in place of the line `raise NotImplementedError(...)`; a class
# has such a line in each method that you write. Then run the cell below it, `check("...")`: it says
# what holds, what does not, and which section of the book to reread. Exercises may use the ones
# before them. You may add cells and helper functions of your own; keep the names, the parameters
# and their order as they are. Every text ends with hints: open them one by one, only as far as you
# need.
#
# **Conventions, the same everywhere**
#
# | sign | meaning |
# |---|---|
# | `B` | batch size; the batch is always the first dimension |
# | `T`, `U` | length of the source, length of the target |
# | `V` | size of the vocabulary |
# | `E` | width of an embedding |
# | `I`, `H`, `C` | width of a cell's input, of a hidden state, of the context |
#
# * **Ids** are the positions of tokens in a vocabulary. In a tensor they are `torch.int64`.
# * Four ids have a meaning of their own, in every vocabulary: `PAD = 0` fills rows up, `BOS = 1`
#   begins a target, `EOS = 2` ends it, `UNK = 3` stands for a word that the vocabulary doesn't
#   hold.
# * A **mask** is a `torch.bool` tensor; `True` means *real token*, `False` means *padding*.
# * **Bad input is refused** with a `ValueError` and one clear sentence, never with another
#   exception and never with a silent result. Each exercise lists what it must refuse.
# * Results keep the floating-point type of the module's parameters (`float32` or `float64`).
# * No function changes its inputs in place, and everything that is a number of the network is
#   differentiable.
# * Modules are `nn.Module`s and have exactly the named parameters and submodules, no others,
#   because the checks load weights into them by name. How you initialise them is up to you.
#
# One of the code cells below hands you the constants, and `NextTokenTable`. That is a *translator*
# whose probabilities stand in a table instead of coming from a network, so that you can try
# exercises 16 to 18 on examples that fit on a slip of paper. A translator is any module with these
# two methods:
#
# ```python
# start(source, source_mask) -> state     # (B, T) ids, (B, T) mask or None
# step(previous, state) -> logits, state  # (B,) ids -> (B, V) logits of the next token
# ```
#
# A `state` is a tuple of tensors whose first dimension is the batch; nothing else about it is
# fixed.

# %%
"""Sequence to sequence: vocabulary, padding, recurrent cells, encoders, decoder, loss, decoding."""

# The options of a cell must stand on one line, however long it gets.
# ruff: noqa: E501

# %%
import math
from collections import Counter

import torch
from torch import Tensor, nn

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("seq2seq")

# %%
PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ["<pad>", "<bos>", "<eos>", "<unk>"]


class NextTokenTable(nn.Module):
    """A translator without a network: the logits of the next token stand in a table.

    Which row of the table is read depends on the first source token s, on the number t of the step
    (from 0) and on the previous token: ``table[s, t, previous]``. Steps beyond the table use its
    last one.
    """

    def __init__(self, table: Tensor) -> None:
        """Keep ``table`` (S, L, V, V): source tokens, steps, previous token, next token."""
        super().__init__()
        self.register_buffer("table", table)

    def start(self, source: Tensor, source_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The state before step 0: source (B, T) -> s (B,) int64 and t (B,) int64."""
        s = source[:, 0]  # (B,)
        return s, torch.zeros_like(s)

    def step(
        self, previous: Tensor, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """One step: previous (B,) int64 and the state -> logits (B, V) and the next state."""
        s, t = state
        row = t.clamp(max=self.table.shape[1] - 1)  # (B,)
        return self.table[s, row, previous], (s, t + 1)  # (B, V)


# %% [markdown]
# ## Words and ids
#
# ### Exercise 1: Vocabulary
#
# Write `build_vocabulary(sentences, min_count=1, max_size=None)`: the list of all tokens that get
# an id. An id is a token's position in this list.
#
# * `sentences`: a list of sentences, each a list of tokens (`str`).
# * The first four entries are `SPECIALS`: `<pad>`, `<bos>`, `<eos>`, `<unk>`. Then come the tokens
#   of the text, the most frequent first; tokens that are equally frequent come in alphabetical
#   order (that of Python's `sorted`, by code point).
# * A token is left out if it occurs fewer than `min_count` times in all sentences together.
# * `max_size` limits the whole list, the specials included; `None` means no limit. The rarest
#   tokens are the ones that drop out.
# * If the string of a special token stands in the text, it is **not** entered a second time.
# * `ValueError` if there are no sentences, if `min_count` is smaller than 1, or if `max_size` is
#   smaller than 4.
#
# *Example.* For `[["to", "be", "or"], ["not", "to", "be"]]` the vocabulary is the four specials and
# then `be`, `to`, `not`, `or`. With `min_count=2` it ends after `to`; with `max_size=5`, after
# `be`.
#
# Book: section *vocabulary* (`seq-vocabulary`).
#
# <details><summary>Hint 1</summary>
#
# `collections.Counter` is imported above. It counts what an iterable yields; a generator expression
# with two `for` runs over all tokens of all sentences.
#
# </details>
# <details><summary>Hint 2</summary>
#
# One `sorted` with one key does both orders: tuples are compared from the left, so the key
# `(-count, token)` puts large counts first and breaks ties by the token.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Remove the specials from the counts before you sort. Cut the list only at the very end; a slice
# `[:None]` is the whole list.
#
# </details>


# %% exercise="build_vocabulary" points=2 section="seq-vocabulary"
def build_vocabulary(
    sentences: list[list[str]], min_count: int = 1, max_size: int | None = None
) -> list[str]:
    """List the tokens of a corpus by frequency, after the four special ones.

    Args:
        sentences: at least one list of tokens.
        min_count: tokens that occur less often are left out; at least 1.
        max_size: the most entries the vocabulary may have, the specials counted; at least 4.

    Returns:
        SPECIALS, then the tokens, most frequent first, ties in alphabetical (code point) order. No
        entry occurs twice, not even a special one that also stands in the text.

    Raises:
        ValueError: if min_count < 1, max_size < 4, or there are no sentences.
    """
    ### BEGIN SOLUTION
    if not sentences:
        raise ValueError("there are no sentences to build a vocabulary from; give at least one")
    if min_count < 1:
        raise ValueError(f"min_count must be at least 1, but is {min_count}")
    if max_size is not None and max_size < len(SPECIALS):
        raise ValueError(f"max_size must leave room for the 4 specials, but is {max_size}")
    counts = Counter(token for sentence in sentences for token in sentence)
    for special in SPECIALS:
        counts.pop(special, None)
    frequent = [token for token, count in counts.items() if count >= min_count]
    frequent.sort(key=lambda token: (-counts[token], token))
    return (SPECIALS + frequent)[:max_size]
    ### END SOLUTION


# %% check="build_vocabulary" tags=["active-ipynb"]
# check("build_vocabulary")

# %% [markdown]
# ### Exercise 2: From tokens to ids
#
# Write `encode(tokens, vocabulary, add_bos=False, add_eos=False)`: a list of tokens becomes a list
# of ids.
#
# * Each token becomes its position in `vocabulary`; a token that the vocabulary doesn't hold
#   becomes `UNK`.
# * `add_bos=True` puts `BOS` in front, `add_eos=True` puts `EOS` at the end. An empty list of
#   tokens is allowed.
# * `ValueError` if the vocabulary does not begin with `SPECIALS`, in their order: the ids 0 to 3
#   would mean something else.
#
# *Example.* With the vocabulary `SPECIALS + ["be", "to"]`, the tokens `["to", "sleep", "be"]` and
# `add_eos=True` give `[5, 3, 4, 2]`.
#
# Book: section *vocabulary* (`seq-vocabulary`).
#
# <details><summary>Hint 1</summary>
#
# `vocabulary.index(token)` searches the whole list for every token. A `dict` from token to
# position, made once, is faster, and its `get` takes a default.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `vocabulary[:4] == SPECIALS` is `False` for a list that is too short as well.
#
# </details>


# %% exercise="encode" points=1 section="seq-vocabulary"
def encode(
    tokens: list[str], vocabulary: list[str], add_bos: bool = False, add_eos: bool = False
) -> list[int]:
    """Replace every token by its position in the vocabulary.

    Args:
        tokens: the tokens of one sentence; may be empty.
        vocabulary: a list that begins with SPECIALS.
        add_bos: whether BOS is put in front.
        add_eos: whether EOS is put at the end.

    Returns:
        The ids; a token that the vocabulary doesn't hold becomes UNK.

    Raises:
        ValueError: if the vocabulary does not begin with SPECIALS.
    """
    ### BEGIN SOLUTION
    if vocabulary[: len(SPECIALS)] != SPECIALS:
        raise ValueError(f"the vocabulary must begin with {SPECIALS}")
    position = {token: i for i, token in enumerate(vocabulary)}
    ids = [position.get(token, UNK) for token in tokens]
    return [BOS] * add_bos + ids + [EOS] * add_eos
    ### END SOLUTION


# %% check="encode" tags=["active-ipynb"]
# check("encode")

# %% [markdown]
# ### Exercise 3: From ids to tokens
#
# Write `decode(ids, vocabulary)`: the way back, from ids to the tokens a person reads.
#
# * Reading stops before the first `EOS`; what follows it is ignored.
# * `PAD` and `BOS` are dropped wherever they stand. `UNK` stays, as `<unk>`.
# * `ValueError` if one of the ids read lies outside the vocabulary, and also if it is negative:
#   Python would silently count from the end.
#
# *Example.* With the vocabulary `SPECIALS + ["be", "to"]`, `[1, 5, 3, 0, 4, 2, 5]` gives
# `["to", "<unk>", "be"]`.
#
# Book: section *vocabulary* (`seq-vocabulary`).
#
# <details><summary>Hint 1</summary>
#
# A plain loop reads best here: refuse, stop, skip or keep.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Valid ids run from 0 to `len(vocabulary) - 1`; `0 <= i < len(vocabulary)` is one comparison in
# Python.
#
# </details>


# %% exercise="decode" points=1 section="seq-vocabulary"
def decode(ids: list[int], vocabulary: list[str]) -> list[str]:
    """Replace ids by tokens, up to the end of the sentence.

    Args:
        ids: positions in the vocabulary.
        vocabulary: a list that begins with SPECIALS.

    Returns:
        The tokens before the first EOS, without PAD and BOS; UNK stays as "<unk>".

    Raises:
        ValueError: if an id before the first EOS is negative or beyond the vocabulary.
    """
    ### BEGIN SOLUTION
    tokens = []
    for i in ids:
        if not 0 <= i < len(vocabulary):
            raise ValueError(f"id {i} is outside the vocabulary of {len(vocabulary)} tokens")
        if i == EOS:
            break
        if i not in (PAD, BOS):
            tokens.append(vocabulary[i])
    return tokens
    ### END SOLUTION


# %% check="decode" tags=["active-ipynb"]
# check("decode")

# %% [markdown]
# ## Sequences of different lengths in one tensor
#
# ### Exercise 4: Padding and cutting to a fixed length
#
# A tensor is a rectangle; sentences are not. Write
# `pad_to_length(sequences, length, keep="start")`: every sequence becomes a row of exactly `length`
# ids.
#
# * `sequences`: a list of lists of `int`. An empty one among them is allowed: a row of padding.
# * A shorter sequence is filled up with `PAD` **on the right**.
# * A longer one is cut: `keep="start"` keeps its first `length` ids, `keep="end"` its last.
# * Returns `(ids, mask)`: `(B, length)` `torch.int64` and `(B, length)` `torch.bool`, `True` = real
#   token. The mask comes from the lengths, not from comparing with `PAD`: a sequence may hold a
#   real 0.
# * `ValueError` if there are no sequences, if `length` is smaller than 1, if `keep` is neither
#   `"start"` nor `"end"`, or if an id is not an `int` (`2.0` is none, and neither is `True`).
#
# *Example.* `pad_to_length([[7, 8, 9], [5]], 2)` gives the ids
# $\begin{pmatrix}7&8\\5&0\end{pmatrix}$ and the mask $\begin{pmatrix}1&1\\1&0\end{pmatrix}$, with 1
# for `True`. With `keep="end"` the first row is $(8, 9)$.
#
# Book: section *padding* (`seq-padding`).
#
# <details><summary>Hint 1</summary>
#
# Begin with a tensor full of `PAD` and a mask full of `False`, and write into the first places of
# each row. (Both are yours, so writing into them is not "changing an input".)
#
# </details>
# <details><summary>Hint 2</summary>
#
# The last `length` elements are `sequence[-length:]`, which is the whole list if it is shorter.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `isinstance(True, int)` is `True` in Python. `type(i) is int` tells them apart.
#
# </details>


# %% exercise="pad_to_length" points=2 section="seq-padding"
def pad_to_length(
    sequences: list[list[int]], length: int, keep: str = "start"
) -> tuple[Tensor, Tensor]:
    """Bring all sequences to one given length: pad on the right, or cut.

    Args:
        sequences: at least one list of ids; a list may be empty.
        length: the length of every row, at least 1.
        keep: which part of a longer sequence stays, "start" or "end".

    Returns:
        ids (B, length) int64, filled up with PAD, and mask (B, length) bool, True = real token.

    Raises:
        ValueError: if there are no sequences, length < 1, keep is neither "start" nor "end", or an
            id is not an int (a bool is not an int here).
    """
    ### BEGIN SOLUTION
    if not sequences:
        raise ValueError("there are no sequences to pad; give at least one")
    if length < 1:
        raise ValueError(f"length must be at least 1, but is {length}")
    if keep not in ("start", "end"):
        raise ValueError(f'keep must be "start" or "end", but is {keep!r}')
    if any(type(i) is not int for sequence in sequences for i in sequence):
        raise ValueError("every id must be an int")
    ids = torch.full((len(sequences), length), PAD)  # (B, length)
    mask = torch.zeros(len(sequences), length, dtype=torch.bool)  # (B, length)
    for row, sequence in enumerate(sequences):
        kept = sequence[:length] if keep == "start" else sequence[-length:]
        ids[row, : len(kept)] = torch.tensor(kept, dtype=torch.int64)
        mask[row, : len(kept)] = True
    return ids, mask
    ### END SOLUTION


# %% check="pad_to_length" tags=["active-ipynb"]
# check("pad_to_length")

# %% [markdown]
# ### Exercise 5: Padding to the longest of a batch
#
# Padding every sentence to one length for the whole corpus wastes work on padding. Write
# `pad_batch(sequences)`: pad only to the longest sequence **of this batch**.
#
# * Returns `(ids, mask)` as exercise 4 does, now `(B, longest)`.
# * An empty sequence beside others is a row of padding.
# * `ValueError` if there are no sequences, if all of them are empty, or if an id is not an `int`.
#
# *Example.* `pad_batch([[7, 8, 9], [5], []])` gives the ids
# $\begin{pmatrix}7&8&9\\5&0&0\\0&0&0\end{pmatrix}$.
#
# Book: section *padding* (`seq-padding`).
#
# <details><summary>Hint 1</summary>
#
# Find the length of the longest sequence; exercise 4 does the rest, most of the refusals included.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `max` of nothing raises an error, unless you give it `default=0`. "No sequences" and "only empty
# sequences" then end in the same case.
#
# </details>


# %% exercise="pad_batch" points=2 section="seq-padding"
def pad_batch(sequences: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Pad the sequences of one batch on the right, to the longest of them.

    Args:
        sequences: lists of ids, at least one of them not empty.

    Returns:
        ids (B, longest) int64, filled up with PAD, and mask (B, longest) bool, True = real token.
        An empty sequence becomes a row of padding.

    Raises:
        ValueError: if there are no sequences, all of them are empty, or an id is not an int (a bool
            is not an int here).
    """
    ### BEGIN SOLUTION
    longest = max((len(sequence) for sequence in sequences), default=0)
    if longest == 0:
        raise ValueError("there is nothing to pad; give at least one sequence that is not empty")
    return pad_to_length(sequences, longest)  # (B, longest), (B, longest)
    ### END SOLUTION


# %% check="pad_batch" tags=["active-ipynb"]
# check("pad_batch")

# %% [markdown]
# ### Exercise 6: Sliding windows
#
# A text that is too long for a model can be cut into windows instead of being cut off. Write
# `sliding_windows(sequence, length, stride)`.
#
# * Windows have the length `length` and start at $0, s, 2s, \dots$ with $s$ = `stride`. Neighbours
#   share `length - stride` ids.
# * The last window is the **first** one whose end reaches the end of the sequence. It is filled up
#   with `PAD` on the right if it reaches beyond. So there are
#   $W = 1 + \lceil \max(0, n - \text{length}) / s \rceil$ windows for $n$ ids, and no id is lost.
# * Returns `(windows, mask)`: `(W, length)` `torch.int64` and `(W, length)` `torch.bool`, `True` =
#   real token.
# * `ValueError` if the sequence is empty, if `length` is smaller than 1, or if `stride` is smaller
#   than 1 or larger than `length` (then ids between the windows would be lost).
#
# *Example.* The ids 4 to 10 with `length=4` and `stride=2` give
# $\begin{pmatrix}4&5&6&7\\6&7&8&9\\8&9&10&0\end{pmatrix}$. With `stride=3` two windows do, and
# nothing is padded.
#
# Book: section *padding* (`seq-padding`).
#
# <details><summary>Hint 1</summary>
#
# First list the starts of the windows, then slice the sequence at each, then pad as in exercise 4.
#
# </details>
# <details><summary>Hint 2</summary>
#
# With a loop: take a window, and stop as soon as `start + length` has reached the length of the
# sequence. A loop over `range(0, len(sequence), stride)` may yield a window too many: one that
# holds nothing new.
#
# </details>


# %% exercise="sliding_windows" points=3 section="seq-padding"
def sliding_windows(sequence: list[int], length: int, stride: int) -> tuple[Tensor, Tensor]:
    """Cut one long sequence into windows of one length that overlap or touch; nothing is lost.

    Args:
        sequence: ids, at least one.
        length: the length of every window, at least 1.
        stride: how far a window starts behind the one before it, from 1 to length.

    Returns:
        windows (W, length) int64 and mask (W, length) bool, True = real token. Windows start at 0,
        stride, 2 * stride, ...; the last is the first whose end reaches the end of the sequence,
        and it is filled up with PAD on the right.

    Raises:
        ValueError: if the sequence is empty, length < 1, stride < 1 or stride > length.
    """
    ### BEGIN SOLUTION
    if not sequence:
        raise ValueError("the sequence is empty; give at least one id")
    if length < 1:
        raise ValueError(f"length must be at least 1, but is {length}")
    if not 1 <= stride <= length:
        raise ValueError(f"stride must be between 1 and length={length}, but is {stride}")
    further = math.ceil(max(0, len(sequence) - length) / stride)  # windows after the first
    starts = [stride * w for w in range(further + 1)]
    return pad_to_length([sequence[s : s + length] for s in starts], length)  # 2 x (W, length)
    ### END SOLUTION


# %% check="sliding_windows" tags=["active-ipynb"]
# check("sliding_windows")

# %% [markdown]
# ## Recurrent cells
#
# ### Exercise 7: The plain recurrent cell
#
# A recurrent cell is one step of a recurrent network: from an input $x$ and the state $h$ it makes
# the new state. The same cell, with the same parameters, serves every step. Write
# `RNNCell(input_size, hidden_size)`:
#
# $$h' = \tanh(W_{ih}\, x + b_{ih} + W_{hh}\, h + b_{hh})$$
#
# * Parameters (`nn.Parameter`, named as in PyTorch): `weight_ih` `(H, I)`, `weight_hh` `(H, H)`,
#   `bias_ih` `(H,)`, `bias_hh` `(H,)`, with `I` = `input_size` and `H` = `hidden_size`. (One bias
#   would do; two make the weights interchangeable with PyTorch's.)
# * `forward(x, h)`: `x` `(B, I)`, `h` `(B, H)`; the result is `(B, H)`.
# * `ValueError` if `x` or `h` has another width, or another batch size than the other. Broadcasting
#   would accept some of these silently.
# * Not to be called: PyTorch's own recurrent modules and cells (`nn.RNN`, `nn.GRU`, `nn.LSTM`,
#   `nn.RNNCell`, `nn.GRUCell`, `nn.LSTMCell`, and the functions behind them). Your class may have
#   the same name as PyTorch's.
#
# *Example.* All widths 1, $W_{ih} = 1$, $W_{hh} = 0.5$, $b_{ih} = 0.5$, $b_{hh} = 0$: for $x = 1$
# and $h = -1$ the new state is $\tanh(1 + 0.5 - 0.5) = \tanh(1) \approx 0.762$.
#
# Book: section *recurrent cell* (`seq-rnn`).
#
# <details><summary>Hint 1</summary>
#
# Rows are examples and the weights are `(out, in)`, so $W x$ for a whole batch is `x @ weight.T`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Start from small random numbers, for example `torch.empty(H, I).uniform_(-a, a)` with
# $a = 1/\sqrt{H}$, as PyTorch does.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `h.shape != (x.shape[0], hidden_size)` compares batch and width at once. The widths themselves
# stand in the shapes of the weights.
#
# </details>


# %% exercise="RNNCell" points=2 section="seq-rnn" forbids="RNN GRU LSTM RNNCell GRUCell LSTMCell"
class RNNCell(nn.Module):
    """Plain recurrent cell, h' = tanh(W_ih x + b_ih + W_hh h + b_hh) (Elman 1990).

    Parameters: ``weight_ih`` (H, I), ``weight_hh`` (H, H), ``bias_ih`` (H,), ``bias_hh`` (H,).
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        """Create the four parameters for inputs of width I and states of width H."""
        super().__init__()
        ### BEGIN SOLUTION
        bound = 1.0 / math.sqrt(hidden_size)
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size).uniform_(-bound, bound))
        self.weight_hh = nn.Parameter(torch.empty(hidden_size, hidden_size).uniform_(-bound, bound))
        self.bias_ih = nn.Parameter(torch.empty(hidden_size).uniform_(-bound, bound))
        self.bias_hh = nn.Parameter(torch.empty(hidden_size).uniform_(-bound, bound))
        ### END SOLUTION

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        """One step.

        Args:
            x: (B, I), the input.
            h: (B, H), the state.

        Returns:
            (B, H), the new state.

        Raises:
            ValueError: if x or h has another width, or their batch sizes differ.
        """
        ### BEGIN SOLUTION
        hidden_size, input_size = self.weight_ih.shape
        if x.shape[-1] != input_size:
            raise ValueError(f"x must be {input_size} wide, but is {x.shape[-1]} wide")
        if h.shape != (x.shape[0], hidden_size):
            raise ValueError(f"h must be {(x.shape[0], hidden_size)}, but is {tuple(h.shape)}")
        from_input = x @ self.weight_ih.T + self.bias_ih  # (B, H)
        from_state = h @ self.weight_hh.T + self.bias_hh  # (B, H)
        return torch.tanh(from_input + from_state)  # (B, H)
        ### END SOLUTION


# %% check="RNNCell" tags=["active-ipynb"]
# check("RNNCell")

# %% [markdown]
# ### Exercise 8: The gated recurrent unit
#
# The plain cell overwrites its whole state at every step. The gated recurrent unit decides, number
# by number, how much to keep. Write `GRUCell(input_size, hidden_size)`:
#
# $$\begin{aligned}
# r &= \sigma(W_{ir} x + b_{ir} + W_{hr} h + b_{hr})\\
# z &= \sigma(W_{iz} x + b_{iz} + W_{hz} h + b_{hz})\\
# n &= \tanh\bigl(W_{in} x + b_{in} + r \odot (W_{hn} h + b_{hn})\bigr)\\
# h' &= (1 - z) \odot n + z \odot h
# \end{aligned}$$
#
# $\sigma$ is the logistic sigmoid and $\odot$ multiplies number by number. Two details differ
# between publications; this is PyTorch's form of both: the reset gate $r$ multiplies
# $W_{hn} h + b_{hn}$ **after** the product with the matrix, bias included (Cho et al., 2014, reset
# $h$ before it), and $z$ is the share of the **old** state.
#
# * Parameters: `weight_ih` `(3H, I)`, `weight_hh` `(3H, H)`, `bias_ih` `(3H,)`, `bias_hh` `(3H,)`.
#   The first `H` rows of each belong to $r$, the next to $z$, the last to $n$.
# * `forward(x, h)`: `x` `(B, I)`, `h` `(B, H)`; the result is `(B, H)`.
# * `ValueError` and what is not to be called: as in exercise 7.
#
# *Example.* If all parameters are 0, then $r = z = \tfrac12$ and $n = 0$, so $h = 4$ becomes $2$.
# If only $b_{hn} = 2$, then $n = \tanh(\tfrac12 \cdot 2) \approx 0.762$ and $h = 4$ becomes
# $\tfrac12 \cdot 0.762 + 2 \approx 2.381$.
#
# Book: section *gated recurrent unit* (`seq-gru`).
#
# <details><summary>Hint 1</summary>
#
# Compute `x @ weight_ih.T + bias_ih` and `h @ weight_hh.T + bias_hh`, both `(B, 3H)`, and cut both
# into three parts with `chunk(3, dim=-1)`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# For $r$ and $z$ you may add the two products first. For $n$ you must not: $r$ acts only on the
# part that comes from the state.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The width `H` is `weight_hh.shape[1]`; the first dimension is three times as large.
#
# </details>


# %% exercise="GRUCell" points=3 section="seq-gru" forbids="RNN GRU LSTM RNNCell GRUCell LSTMCell"
class GRUCell(nn.Module):
    """Gated recurrent unit (Cho et al. 2014, section 2.3), as PyTorch computes it.

    Parameters: ``weight_ih`` (3H, I), ``weight_hh`` (3H, H), ``bias_ih`` (3H,), ``bias_hh`` (3H,);
    in each, the rows of r come first, then those of z, then those of n.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        """Create the four parameters for inputs of width I and states of width H."""
        super().__init__()
        ### BEGIN SOLUTION
        rows, bound = 3 * hidden_size, 1.0 / math.sqrt(hidden_size)
        self.weight_ih = nn.Parameter(torch.empty(rows, input_size).uniform_(-bound, bound))
        self.weight_hh = nn.Parameter(torch.empty(rows, hidden_size).uniform_(-bound, bound))
        self.bias_ih = nn.Parameter(torch.empty(rows).uniform_(-bound, bound))
        self.bias_hh = nn.Parameter(torch.empty(rows).uniform_(-bound, bound))
        ### END SOLUTION

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        """One step.

        Args:
            x: (B, I), the input.
            h: (B, H), the state.

        Returns:
            (B, H), the new state.

        Raises:
            ValueError: if x or h has another width, or their batch sizes differ.
        """
        ### BEGIN SOLUTION
        input_size, hidden_size = self.weight_ih.shape[1], self.weight_hh.shape[1]
        if x.shape[-1] != input_size:
            raise ValueError(f"x must be {input_size} wide, but is {x.shape[-1]} wide")
        if h.shape != (x.shape[0], hidden_size):
            raise ValueError(f"h must be {(x.shape[0], hidden_size)}, but is {tuple(h.shape)}")
        from_input = x @ self.weight_ih.T + self.bias_ih  # (B, 3H)
        from_state = h @ self.weight_hh.T + self.bias_hh  # (B, 3H)
        x_r, x_z, x_n = from_input.chunk(3, dim=-1)  # 3 x (B, H)
        h_r, h_z, h_n = from_state.chunk(3, dim=-1)  # 3 x (B, H)
        r = torch.sigmoid(x_r + h_r)  # (B, H)
        z = torch.sigmoid(x_z + h_z)  # (B, H)
        n = torch.tanh(x_n + r * h_n)  # (B, H)
        return (1 - z) * n + z * h  # (B, H)
        ### END SOLUTION


# %% check="GRUCell" tags=["active-ipynb"]
# check("GRUCell")

# %% [markdown]
# ### Exercise 9: Long short-term memory
#
# The long short-term memory has a second state, the memory $c$, to which a step only adds and from
# which it only fades. Write `LSTMCell(input_size, hidden_size)`:
#
# $$\begin{aligned}
# i &= \sigma(W_{ii} x + b_{ii} + W_{hi} h + b_{hi}) &
# f &= \sigma(W_{if} x + b_{if} + W_{hf} h + b_{hf})\\
# g &= \tanh(W_{ig} x + b_{ig} + W_{hg} h + b_{hg}) &
# o &= \sigma(W_{io} x + b_{io} + W_{ho} h + b_{ho})\\
# c' &= f \odot c + i \odot g & h' &= o \odot \tanh(c')
# \end{aligned}$$
#
# * Parameters: `weight_ih` `(4H, I)`, `weight_hh` `(4H, H)`, `bias_ih` `(4H,)`, `bias_hh` `(4H,)`,
#   the rows in the order $i$, $f$, $g$, $o$.
# * `forward(x, state)`: `x` `(B, I)`, `state` the pair `(h, c)`, both `(B, H)`. Returns the new
#   pair `(h, c)`, in this order.
# * `ValueError` if `x`, `h` or `c` has another width or batch size. What is not to be called: as in
#   exercise 7.
#
# *Example.* If all parameters are 0, then $i = f = o = \tfrac12$ and $g = 0$: $c = 4$ becomes $2$,
# and $h' = \tfrac12 \tanh(2) \approx 0.482$, whatever $h$ was.
#
# Book: section *long short-term memory* (`seq-lstm`).
#
# <details><summary>Hint 1</summary>
#
# Unlike the GRU, all four parts add the products of input and state in the same way: add first,
# then cut into four.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Three of the four are gates (sigmoid); $g$, the third in the order, is a content (tanh).
#
# </details>
# <details><summary>Hint 3</summary>
#
# $h'$ is made from the **new** memory.
#
# </details>


# %% exercise="LSTMCell" points=3 section="seq-lstm" forbids="RNN GRU LSTM RNNCell GRUCell LSTMCell"
class LSTMCell(nn.Module):
    """Long short-term memory (Hochreiter and Schmidhuber 1997; forget gate: Gers et al. 2000).

    Parameters: ``weight_ih`` (4H, I), ``weight_hh`` (4H, H), ``bias_ih`` (4H,), ``bias_hh`` (4H,);
    in each, the rows of i come first, then those of f, of g and of o.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        """Create the four parameters for inputs of width I and states of width H."""
        super().__init__()
        ### BEGIN SOLUTION
        rows, bound = 4 * hidden_size, 1.0 / math.sqrt(hidden_size)
        self.weight_ih = nn.Parameter(torch.empty(rows, input_size).uniform_(-bound, bound))
        self.weight_hh = nn.Parameter(torch.empty(rows, hidden_size).uniform_(-bound, bound))
        self.bias_ih = nn.Parameter(torch.empty(rows).uniform_(-bound, bound))
        self.bias_hh = nn.Parameter(torch.empty(rows).uniform_(-bound, bound))
        ### END SOLUTION

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """One step.

        Args:
            x: (B, I), the input.
            state: h (B, H), the output of the step before, and c (B, H), the memory.

        Returns:
            The new h (B, H) and the new c (B, H).

        Raises:
            ValueError: if x, h or c has another width, or their batch sizes differ.
        """
        ### BEGIN SOLUTION
        h, c = state
        input_size, hidden_size = self.weight_ih.shape[1], self.weight_hh.shape[1]
        if x.shape[-1] != input_size:
            raise ValueError(f"x must be {input_size} wide, but is {x.shape[-1]} wide")
        for name, part in (("h", h), ("c", c)):
            wanted = (x.shape[0], hidden_size)
            if part.shape != wanted:
                raise ValueError(f"{name} must be {wanted}, but is {tuple(part.shape)}")
        from_input = x @ self.weight_ih.T + self.bias_ih  # (B, 4H)
        from_state = h @ self.weight_hh.T + self.bias_hh  # (B, 4H)
        i, f, g, o = (from_input + from_state).chunk(4, dim=-1)  # 4 x (B, H)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)  # (B, H)
        h = torch.sigmoid(o) * torch.tanh(c)  # (B, H)
        return h, c
        ### END SOLUTION


# %% check="LSTMCell" tags=["active-ipynb"]
# check("LSTMCell")

# %% [markdown]
# ## Encoders
#
# ### Exercise 10: Encoder
#
# An encoder reads a whole sequence with one cell. Write
# `Encoder(vocab_size, embed_dim, hidden_size, cell="gru")`:
#
# $$x_t = \operatorname{embedding}(\text{id}_t),\qquad
# h_t = \operatorname{cell}(x_t, h_{t-1}),\qquad h_0 = 0$$
#
# The encoder starts from **zeros**. What it knows at the end is handed to the decoder, not the
# other way round.
#
# * Submodules: `embedding = nn.Embedding(vocab_size, embed_dim)`, and `cell`, your `RNNCell`,
#   `GRUCell` or `LSTMCell` for `"rnn"`, `"gru"` or `"lstm"`. `ValueError` (when the module is
#   created) for any other name.
# * `forward(ids, mask=None)`: `ids` `(B, T)` `torch.int64`; `mask` `(B, T)` bool, `True` = real
#   token, or `None`, when all are real.
# * Where the mask is `False`, the state is carried over unchanged, and the row of `states` is 0. So
#   each sequence is encoded as if it stood alone, whatever its neighbours in the batch are.
# * Returns `(states, final)`: `states` `(B, T, H)` and the state after the **last real token**,
#   `(B, H)`. For the LSTM, `final` is the pair `(h, c)` and `states` hold $h$.
# * `ValueError` if the batch is empty or `T` is 0, if `ids` are not `torch.int64`, if an id lies
#   outside the vocabulary (negative ones too; padded places count), if `mask` is not bool or not
#   `(B, T)`, or if a row has no real token at all.
# * Not to be called: PyTorch's own recurrent modules and cells, as in exercise 7.
#
# *Example.* With the mask `[True, True, False]`, `states[:, 2]` is 0 and `final` equals
# `states[:, 1]`. The token at the third place may be any in the vocabulary: nothing changes.
#
# Book: section *encoder* (`seq-encoder`).
#
# <details><summary>Hint 1</summary>
#
# Embed all ids at once, `(B, T, E)`, then loop over the `T` positions and collect the states in a
# list; `torch.stack(states, dim=1)` makes `(B, T, H)`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.where(mask[:, t, None], new, old)` chooses for each row whether it steps or waits. After
# the loop the state is the final one, for every row.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Make the zeros from the embeddings, `x.new_zeros(B, H)`: then they have the right type and stand
# on the right device.
#
# </details>
# <details><summary>Hint 4</summary>
#
# For the LSTM both $h$ and $c$ wait at padding. If you keep the state as a tuple, of one or of two
# tensors, the loop is the same for all three cells.
#
# </details>


# %% exercise="Encoder" points=4 section="seq-encoder" forbids="RNN GRU LSTM RNNCell GRUCell LSTMCell"
class Encoder(nn.Module):
    """Read a sequence with a recurrent cell from left to right (Sutskever et al. 2014, section 2).

    Submodules: ``embedding`` = nn.Embedding(vocab_size, embed_dim); ``cell`` = your RNNCell,
    GRUCell or LSTMCell with inputs embed_dim and states hidden_size.
    """

    def __init__(
        self, vocab_size: int, embed_dim: int, hidden_size: int, cell: str = "gru"
    ) -> None:
        """Create ``embedding`` and ``cell``.

        Args:
            vocab_size: V, the number of ids.
            embed_dim: E, the width of the embeddings.
            hidden_size: H, the width of the states.
            cell: "rnn", "gru" or "lstm".

        Raises:
            ValueError: if cell is none of the three.
        """
        super().__init__()
        ### BEGIN SOLUTION
        cells = {"rnn": RNNCell, "gru": GRUCell, "lstm": LSTMCell}
        if cell not in cells:
            raise ValueError(f'cell must be "rnn", "gru" or "lstm", but is {cell!r}')
        self.kind = cell
        self.hidden_size = hidden_size
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.cell = cells[cell](embed_dim, hidden_size)
        ### END SOLUTION

    def forward(
        self, ids: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor | tuple[Tensor, Tensor]]:
        """Encode a batch of sequences, each as if it stood alone.

        Args:
            ids: (B, T) int64.
            mask: (B, T) bool, True = real token; None: all are real.

        Returns:
            The states (B, T, H), 0 at padding, and the state after the last real token: (B, H), or
            for the LSTM the pair h (B, H), c (B, H).

        Raises:
            ValueError: if B or T is 0, ids is not int64, an id lies outside the vocabulary, or the
                mask is not bool, not (B, T), or leaves a row without a real token.
        """
        ### BEGIN SOLUTION
        if ids.numel() == 0:
            raise ValueError(f"ids must hold at least one token, but are {tuple(ids.shape)}")
        if ids.dtype != torch.int64:
            raise ValueError(f"ids must be torch.int64, but are {ids.dtype}")
        vocab_size = self.embedding.num_embeddings
        if ids.min() < 0 or ids.max() >= vocab_size:
            raise ValueError(f"ids must lie between 0 and {vocab_size - 1}, but one doesn't")
        if mask is None:
            mask = torch.ones_like(ids, dtype=torch.bool)  # (B, T)
        if mask.dtype != torch.bool or mask.shape != ids.shape:
            raise ValueError(
                f"mask must be torch.bool {tuple(ids.shape)}, "
                f"but is {mask.dtype} {tuple(mask.shape)}"
            )
        if not mask.any(dim=1).all():
            raise ValueError("every row of the mask needs at least one real token")
        x = self.embedding(ids)  # (B, T, E)
        zeros = x.new_zeros(len(ids), self.hidden_size)  # (B, H)
        lstm = self.kind == "lstm"
        state = (zeros, zeros) if lstm else (zeros,)
        states = []
        for t in range(ids.shape[1]):
            new = self.cell(x[:, t], state) if lstm else (self.cell(x[:, t], *state),)
            real = mask[:, t, None]  # (B, 1)
            state = tuple(torch.where(real, a, b) for a, b in zip(new, state, strict=True))
            states.append(torch.where(real, state[0], zeros))  # (B, H)
        final = state if lstm else state[0]
        return torch.stack(states, dim=1), final  # (B, T, H), (B, H)
        ### END SOLUTION


# %% check="Encoder" tags=["active-ipynb"]
# check("Encoder")

# %% [markdown]
# ### Exercise 11: Bidirectional encoder and bridge
#
# When $h_t$ of exercise 10 is made, the words after $t$ have not been read. A second cell reads
# from right to left, and each position gets both views. Each direction reads the **whole**
# sequence. Write `BidirectionalEncoder(vocab_size, embed_dim, hidden_size, decoder_size)`:
#
# $$\overrightarrow{h}_t = \operatorname{GRU}_f(x_t, \overrightarrow{h}_{t-1}),\qquad
# \overleftarrow{h}_t = \operatorname{GRU}_b(x_t, \overleftarrow{h}_{t+1}),\qquad
# h_t = [\overrightarrow{h}_t; \overleftarrow{h}_t]$$
#
# The decoder has one state of its own width. A *bridge* makes it from what both directions know at
# their ends, the last real position and position 0:
#
# $$s_0 = \tanh\bigl(W\,[\overrightarrow{h}_{\text{last}}; \overleftarrow{h}_{0}] + b\bigr)$$
#
# * Submodules: `embedding = nn.Embedding(vocab_size, embed_dim)`; `forward_cell` and
#   `backward_cell`, each your `GRUCell(embed_dim, hidden_size)`;
#   `bridge = nn.Linear(2 * hidden_size, decoder_size)`.
# * `forward(ids, mask=None)` as in exercise 10: where the mask is `False`, wherever that is, both
#   directions carry their states over. The backward direction starts from zeros at each row's
#   **last real token**, not in the padding behind it.
# * Returns `(states, state)`: `states` `(B, T, 2H)`, the forward half first, 0 at padding; `state`
#   `(B, decoder_size)`.
# * `ValueError` and what is not to be called: as in exercise 10.
#
# *Example.* Change the first token of a sentence: the forward half of `states` changes at every
# position, the backward half only at position 0.
#
# Book: section *both directions* (`seq-bidirectional`).
#
# <details><summary>Hint 1</summary>
#
# Run the loop of exercise 10 twice, the second time over `reversed(range(T))`, each with its own
# cell.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The rule "where the mask is `False` the state is carried over" makes the backward direction right
# as well: it carries its zeros through the padding until the last real token.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Put the backward states into the list at their position `t`, not in the order in which they are
# made; otherwise they stand the wrong way round.
#
# </details>
# <details><summary>Hint 4</summary>
#
# The final backward state is the one after the whole backward loop, at position 0. At the last
# position the backward cell has read a single word.
#
# </details>


# %% exercise="BidirectionalEncoder" points=4 section="seq-bidirectional" forbids="RNN GRU LSTM RNNCell GRUCell LSTMCell"
class BidirectionalEncoder(nn.Module):
    """Read a sequence in both directions (Schuster and Paliwal 1997; Bahdanau et al. 2015, 3.2).

    Submodules: ``embedding`` = nn.Embedding(vocab_size, embed_dim); ``forward_cell`` and
    ``backward_cell`` = your GRUCell(embed_dim, hidden_size); ``bridge`` =
    nn.Linear(2 * hidden_size, decoder_size).
    """

    def __init__(
        self, vocab_size: int, embed_dim: int, hidden_size: int, decoder_size: int
    ) -> None:
        """Create ``embedding``, ``forward_cell``, ``backward_cell`` and ``bridge``."""
        super().__init__()
        ### BEGIN SOLUTION
        self.hidden_size = hidden_size
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.forward_cell = GRUCell(embed_dim, hidden_size)
        self.backward_cell = GRUCell(embed_dim, hidden_size)
        self.bridge = nn.Linear(2 * hidden_size, decoder_size)
        ### END SOLUTION

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Encode a batch of sequences, and make the first state of a decoder.

        Args:
            ids: (B, T) int64.
            mask: (B, T) bool, True = real token; None: all are real.

        Returns:
            The states (B, T, 2H), forward part first, 0 at padding; and the decoder's state
            (B, decoder_size), the tanh of the bridge of both final states.

        Raises:
            ValueError: if B or T is 0, ids is not int64, an id lies outside the vocabulary, or the
                mask is not bool, not (B, T), or leaves a row without a real token.
        """
        ### BEGIN SOLUTION
        if ids.numel() == 0:
            raise ValueError(f"ids must hold at least one token, but are {tuple(ids.shape)}")
        if ids.dtype != torch.int64:
            raise ValueError(f"ids must be torch.int64, but are {ids.dtype}")
        vocab_size = self.embedding.num_embeddings
        if ids.min() < 0 or ids.max() >= vocab_size:
            raise ValueError(f"ids must lie between 0 and {vocab_size - 1}, but one doesn't")
        if mask is None:
            mask = torch.ones_like(ids, dtype=torch.bool)  # (B, T)
        if mask.dtype != torch.bool or mask.shape != ids.shape:
            raise ValueError(
                f"mask must be torch.bool {tuple(ids.shape)}, "
                f"but is {mask.dtype} {tuple(mask.shape)}"
            )
        if not mask.any(dim=1).all():
            raise ValueError("every row of the mask needs at least one real token")
        x = self.embedding(ids)  # (B, T, E)
        length = ids.shape[1]
        directions, finals = [], []
        for cell, order in (
            (self.forward_cell, range(length)),
            (self.backward_cell, reversed(range(length))),
        ):
            h = x.new_zeros(len(ids), self.hidden_size)  # (B, H)
            states = [h] * length
            for t in order:
                # Before a row's first real token (seen in this direction) the state stays 0.
                h = torch.where(mask[:, t, None], cell(x[:, t], h), h)  # (B, H)
                states[t] = h
            directions.append(torch.stack(states, dim=1))  # (B, T, H)
            finals.append(h)
        states = torch.cat(directions, dim=-1).masked_fill(~mask[:, :, None], 0.0)  # (B, T, 2H)
        return states, torch.tanh(self.bridge(torch.cat(finals, dim=-1)))  # (B, decoder_size)
        ### END SOLUTION


# %% check="BidirectionalEncoder" tags=["active-ipynb"]
# check("BidirectionalEncoder")

# %% [markdown]
# ## Decoder and training
#
# ### Exercise 12: One step of the decoder
#
# A decoder writes one token per step. It sees the token before, its own state, and the context, the
# encoder's summary of the source. Write
# `DecoderStep(vocab_size, embed_dim, hidden_size, context_size)`:
#
# $$s_t = \operatorname{GRU}\bigl([\operatorname{embedding}(y_{t-1}); C],\; s_{t-1}\bigr),\qquad
# \text{logits}_t = W\,[s_t; C] + b$$
#
# * Submodules: `embedding = nn.Embedding(vocab_size, embed_dim)`; `cell`, your
#   `GRUCell(embed_dim + context_size, hidden_size)`;
#   `output = nn.Linear(hidden_size + context_size, vocab_size)`. The order inside the brackets is
#   as written: the embedding before the context, the state before the context.
# * `forward(previous, state, context)`: `previous` `(B,)` `torch.int64`, `state` `(B, H)`,
#   `context` `(B, C)`.
# * Returns `(logits, state)`: `(B, V)` and the **new** state `(B, H)`. Logits are no probabilities:
#   there is no softmax here.
# * `ValueError` if `previous` is not `torch.int64` or holds an id outside the vocabulary, or if
#   `state` or `context` has another width or batch size.
# * Not to be called: PyTorch's own recurrent modules and cells, as in exercise 7.
#
# *Example.* Take a trained step and change only $y_{t-1}$, only $s_{t-1}$, or only $C$: the logits
# change every time.
#
# Book: section *decoder* (`seq-decoder`).
#
# <details><summary>Hint 1</summary>
#
# `torch.cat([a, b], dim=-1)` joins along the width.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Make the new state first; the output layer reads the new one.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `torch.cat` raises `RuntimeError` when the batch sizes differ. Compare the shapes with
# `(len(previous), width)` before anything else.
#
# </details>


# %% exercise="DecoderStep" points=3 section="seq-decoder" forbids="RNN GRU LSTM RNNCell GRUCell LSTMCell"
class DecoderStep(nn.Module):
    """One step of a decoder that sees the context at every step (Cho et al. 2014, section 2.2).

    Submodules: ``embedding`` = nn.Embedding(vocab_size, embed_dim); ``cell`` = your
    GRUCell(embed_dim + context_size, hidden_size), fed [embedding; context]; ``output`` =
    nn.Linear(hidden_size + context_size, vocab_size), fed [new state; context].
    """

    def __init__(
        self, vocab_size: int, embed_dim: int, hidden_size: int, context_size: int
    ) -> None:
        """Create ``embedding``, ``cell`` and ``output``."""
        super().__init__()
        ### BEGIN SOLUTION
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.cell = GRUCell(embed_dim + context_size, hidden_size)
        self.output = nn.Linear(hidden_size + context_size, vocab_size)
        self.hidden_size, self.context_size = hidden_size, context_size
        ### END SOLUTION

    def forward(self, previous: Tensor, state: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Read one token, update the state, score the next token.

        Args:
            previous: (B,) int64, the previous token.
            state: (B, H).
            context: (B, C).

        Returns:
            The logits (B, V) of the next token and the new state (B, H).

        Raises:
            ValueError: if previous is not int64 or holds an id outside the vocabulary, or state or
                context has another width or batch size.
        """
        ### BEGIN SOLUTION
        if previous.dtype != torch.int64:
            raise ValueError(f"previous must be torch.int64, but is {previous.dtype}")
        vocab_size = self.embedding.num_embeddings
        if ((previous < 0) | (previous >= vocab_size)).any():
            raise ValueError(f"ids must lie between 0 and {vocab_size - 1}, but one doesn't")
        for name, part, width in (
            ("state", state, self.hidden_size),
            ("context", context, self.context_size),
        ):
            if part.shape != (len(previous), width):
                wanted = (len(previous), width)
                raise ValueError(f"{name} must be {wanted}, but is {tuple(part.shape)}")
        cell_input = torch.cat([self.embedding(previous), context], dim=-1)  # (B, E + C)
        state = self.cell(cell_input, state)  # (B, H)
        logits = self.output(torch.cat([state, context], dim=-1))  # (B, V)
        return logits, state
        ### END SOLUTION


# %% check="DecoderStep" tags=["active-ipynb"]
# check("DecoderStep")

# %% [markdown]
# ### Exercise 13: Teacher forcing
#
# `Seq2Seq(source_size, target_size, embed_dim, hidden_size)` joins an `Encoder` (GRU) and a
# `DecoderStep`. The context $C$ is the encoder's final state, and it is also the decoder's first
# state, $s_0 = C$. The class gives you `start` and `step`, the interface of a translator; the
# methods that make the submodules and these two are complete. Write `forward`, the pass for
# training.
#
# The target `y` is fed as `target_in` = `BOS, y_1, y_2, ...`, and the logits of step `t` are about
# the token after it: they are to be compared with `y_1, y_2, ..., EOS`. What does the decoder read
# at step `t`?
#
# $$\text{input}_t = \begin{cases}
# \text{target\_in}_t & \text{if } t = 0, \text{ or with probability } \rho\\
# \arg\max \text{logits}_{t-1} & \text{otherwise}
# \end{cases}$$
#
# $\rho = 1$ is *teacher forcing*: always the reference. $\rho = 0$ is *free running*: always the
# decoder's own choice, as in use.
#
# * `forward(source, target_in, source_mask=None, teacher_forcing_ratio=1.0)`: `source` `(B, T)` and
#   `target_in` `(B, U)`, both `torch.int64`; `source_mask` `(B, T)` bool; `teacher_forcing_ratio`
#   is $\rho$.
# * The choice is made **for every row and every step on its own**, with random numbers from
#   PyTorch's global generator. With $\rho = 1$ and with $\rho = 0$ nothing is left to chance.
# * Returns logits `(B, U, V)`. There are `U` steps, whether or not a row has produced `EOS`.
# * `ValueError` if `teacher_forcing_ratio` lies outside $[0, 1]$, or if `U` is 0. What else is
#   wrong with the input (an id outside the vocabulary, a mask of another shape, another batch size)
#   is refused by the parts that it reaches.
# * Not to be called: PyTorch's own recurrent modules and cells, as in exercise 7.
#
# *Example.* With the vocabulary of exercise 2, the target `to be` is fed as `[1, 5, 4]`, and the
# logits are compared with `[5, 4, 2]`.
#
# Book: section *teacher forcing* (`seq-teacher-forcing`).
#
# <details><summary>Hint 1</summary>
#
# Call `self.start` once, then `self.step` in a loop over `U`; collect the logits and stack them
# along dimension 1.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.rand(B) < ratio` is `True` with probability `ratio`, drawn for each row. `torch.rand`
# yields numbers from 0 up to, but not including, 1, so the ratios 0 and 1 need no case of their
# own.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `torch.where(forced, target_in[:, t], own)` chooses row by row; `own` is the `argmax` of the
# logits of the step before. At step 0 there are none yet.
#
# </details>


# %% exercise="Seq2Seq" points=5 section="seq-teacher-forcing" forbids="RNN GRU LSTM RNNCell GRUCell LSTMCell"
class Seq2Seq(nn.Module):
    """Encoder and decoder with a fixed context, trained by teacher forcing (Bengio et al. 2015).

    Submodules: ``encoder`` = Encoder(source_size, embed_dim, hidden_size, "gru"); ``decoder`` =
    DecoderStep(target_size, embed_dim, hidden_size, hidden_size).
    """

    def __init__(
        self, source_size: int, target_size: int, embed_dim: int, hidden_size: int
    ) -> None:
        """Create ``encoder`` and ``decoder``."""
        super().__init__()
        self.encoder = Encoder(source_size, embed_dim, hidden_size, "gru")
        self.decoder = DecoderStep(target_size, embed_dim, hidden_size, hidden_size)

    def start(self, source: Tensor, source_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Encode source (B, T): the decoder's first state (B, H) and the context (B, H)."""
        _, context = self.encoder(source, source_mask)  # (B, H)
        return context, context

    def step(
        self, previous: Tensor, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Feed previous (B,): the logits (B, V) of the next token and the new state."""
        s, context = state  # (B, H), (B, H)
        logits, s = self.decoder(previous, s, context)  # (B, V), (B, H)
        return logits, (s, context)

    def forward(
        self,
        source: Tensor,
        target_in: Tensor,
        source_mask: Tensor | None = None,
        teacher_forcing_ratio: float = 1.0,
    ) -> Tensor:
        """The logits of every step.

        Args:
            source: (B, T) int64.
            target_in: (B, U) int64, U at least 1; begins with BOS.
            source_mask: (B, T) bool, True = real token.
            teacher_forcing_ratio: probability, in [0, 1], that an input after the first is the
                token of target_in rather than the decoder's own; drawn for each row and step.

        Returns:
            Logits (B, U, V); those of step t are about the token after target_in[:, t].

        Raises:
            ValueError: if teacher_forcing_ratio lies outside [0, 1] or U is 0.
        """
        ### BEGIN SOLUTION
        if not 0.0 <= teacher_forcing_ratio <= 1.0:
            raise ValueError(
                f"teacher_forcing_ratio must be between 0 and 1, but is {teacher_forcing_ratio}"
            )
        if target_in.shape[1] == 0:
            raise ValueError("target_in must hold at least one step, the one that feeds BOS")
        state = self.start(source, source_mask)
        # rand is in [0, 1): a ratio of 1 always forces, a ratio of 0 never.
        forced = torch.rand(target_in.shape, device=source.device) < teacher_forcing_ratio  # (B, U)
        previous = target_in[:, 0]  # (B,)
        steps = []
        for t in range(target_in.shape[1]):
            if t > 0:
                own = steps[-1].argmax(dim=-1)  # (B,)
                previous = torch.where(forced[:, t], target_in[:, t], own)  # (B,)
            logits, state = self.step(previous, state)  # (B, V)
            steps.append(logits)
        return torch.stack(steps, dim=1)  # (B, U, V)
        ### END SOLUTION


# %% check="Seq2Seq" tags=["active-ipynb"]
# check("Seq2Seq")

# %% [markdown]
# ## Likelihood and loss
#
# ### Exercise 14: Log-likelihood of a sequence
#
# A model gives each step a distribution over the next token. By the chain rule, the probability of
# a whole target is their product, and its logarithm a sum:
#
# $$\log P(y \mid x) = \sum_{t=1}^{U} \log P(y_t \mid y_{<t}, x),\qquad
# P(y_t = v \mid \dots) = \operatorname{softmax}(\text{logits}_t)_v$$
#
# The sum is computed from logarithms all the way: a product of a few hundred probabilities is
# exactly 0 in floating point, and the logarithm of that is $-\infty$. Write
# `sequence_log_prob(logits, targets, mask=None)`.
#
# * `logits` `(B, U, V)`, `targets` `(B, U)` `torch.int64`; `mask` `(B, U)` bool, `True` = real
#   step, or `None`, when all are real.
# * The result is `(B,)`: for each row the sum over its real steps.
# * Where the mask is `False`, the target may be **any** number, even one outside the vocabulary
#   such as −100; it must neither matter nor fail.
# * `ValueError` if the shapes don't fit, if `targets` are not `torch.int64`, if `mask` is not bool,
#   or if a real target lies outside the vocabulary (negative ones too).
# * Not to be called: `cross_entropy`, `nll_loss` and their modules. `log_softmax` is fine.
#
# *Example.* If all logits are 0 and $V = 4$, each token has probability $\tfrac14$. Two steps give
# $2 \log\tfrac14 \approx -2.773$; with the mask `[True, False]` it is $-1.386$.
#
# Book: section *likelihood* (`seq-likelihood`).
#
# <details><summary>Hint 1</summary>
#
# `torch.log_softmax(logits, dim=-1)` is the logarithm of all probabilities, computed so that it
# doesn't underflow. `log(softmax(...))` is not the same: it yields $-\infty$ for unlikely tokens.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `gather` along the last dimension, with an index of shape `(B, U, 1)`, picks one entry for each
# step.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `gather` needs valid indices everywhere. Put a harmless id in the padded places first
# (`masked_fill`), and set their terms to 0 before you sum.
#
# </details>


# %% exercise="sequence_log_prob" points=2 section="seq-likelihood" forbids="cross_entropy nll_loss CrossEntropyLoss NLLLoss cross_entropy_loss nll_loss_nd nll_loss2d"
def sequence_log_prob(logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    """Log-probability of each target sequence, by the chain rule (Sutskever et al. 2014, eq. 1).

    Args:
        logits: (B, U, V); those of step t are about targets[:, t].
        targets: (B, U) int64; where the mask is False any number may stand.
        mask: (B, U) bool, True = real step; None: all are real.

    Returns:
        (B,), the sum over the real steps of log softmax(logits)[target].

    Raises:
        ValueError: if the shapes don't fit, targets is not int64, mask is not bool, or a real
            target lies outside the vocabulary.
    """
    ### BEGIN SOLUTION
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"targets must be {tuple(logits.shape[:-1])} as the logits are, "
            f"but are {tuple(targets.shape)}"
        )
    if targets.dtype != torch.int64:
        raise ValueError(f"targets must be torch.int64, but are {targets.dtype}")
    if mask is None:
        mask = torch.ones_like(targets, dtype=torch.bool)  # (B, U)
    if mask.dtype != torch.bool or mask.shape != targets.shape:
        raise ValueError(
            f"mask must be torch.bool {tuple(targets.shape)}, "
            f"but is {mask.dtype} {tuple(mask.shape)}"
        )
    # Padded targets become id 0, so that any number may stand there; their terms are dropped below.
    ids = targets.masked_fill(~mask, 0)  # (B, U)
    vocab_size = logits.shape[-1]
    if ((ids < 0) | (ids >= vocab_size)).any():
        raise ValueError(f"targets must lie between 0 and {vocab_size - 1}, but one doesn't")
    log_probs = torch.log_softmax(logits, dim=-1)  # (B, U, V)
    chosen = log_probs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)  # (B, U)
    return chosen.masked_fill(~mask, 0.0).sum(dim=-1)  # (B,)
    ### END SOLUTION


# %% check="sequence_log_prob" tags=["active-ipynb"]
# check("sequence_log_prob")

# %% [markdown]
# ### Exercise 15: The loss of a batch
#
# Write `sequence_loss(logits, targets, pad=PAD)`: what training minimises, the negative
# log-likelihood **per real token**.
#
# $$L = -\frac{1}{N} \sum_{b=1}^{B} \log P\bigl(y^{(b)} \mid x^{(b)}\bigr),\qquad
# N = \text{number of real targets in the batch}$$
#
# * `logits` `(B, U, V)`, `targets` `(B, U)` `torch.int64`. A target equal to `pad` is no real one:
#   it is left out of the sum and of $N$.
# * Every real token weighs the same, in a long sentence as in a short one. So it is one sum divided
#   by one number, **not** the mean of the rows' means, and not divided by `B` or by `B * U`.
# * The result is a scalar (a tensor of shape `()`).
# * `ValueError` if there is no real target at all, and in the cases of exercise 14.
# * Not to be called: `cross_entropy`, `nll_loss` and their modules.
#
# *Example.* Two rows have one and three real tokens and the log-likelihoods $-1$ and $-6$. The loss
# is $7 / 4 = 1.75$. (The mean of the means would be $(1 + 2) / 2 = 1.5$.)
#
# Book: section *likelihood* (`seq-likelihood`).
#
# <details><summary>Hint 1</summary>
#
# The mask of exercise 14 is a comparison of `targets` with `pad`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `mask.sum()` counts the real targets. Ask first whether there is one: 0 divided by 0 is NaN, not
# an error.
#
# </details>


# %% exercise="sequence_loss" points=2 section="seq-likelihood" forbids="cross_entropy nll_loss CrossEntropyLoss NLLLoss cross_entropy_loss nll_loss_nd nll_loss2d"
def sequence_loss(logits: Tensor, targets: Tensor, pad: int = PAD) -> Tensor:
    """Negative log-likelihood per real token of the batch.

    Args:
        logits: (B, U, V).
        targets: (B, U) int64.
        pad: the id that marks padding; such targets don't count.

    Returns:
        A scalar: minus the log-likelihood of all real targets, divided by how many there are in the
        whole batch.

    Raises:
        ValueError: as sequence_log_prob, or if no target is real.
    """
    ### BEGIN SOLUTION
    real = targets != pad  # (B, U)
    if not real.any():
        raise ValueError(f"every target is padding ({pad}); there is nothing to learn from")
    return -sequence_log_prob(logits, targets, real).sum() / real.sum()  # scalar
    ### END SOLUTION


# %% check="sequence_loss" tags=["active-ipynb"]
# check("sequence_loss")

# %% [markdown]
# ### Question: What is maximised over what?
#
# A note on sequence-to-sequence models says: *"Maximum likelihood estimation looks for the output
# sequence with the largest conditional probability. To find it, one takes the most probable token
# at each step."* Both sentences are wrong. Write down what training maximises, over what and with
# what held fixed, and what decoding maximises, over what and with what held fixed. Then show with a
# small example of your own, with numbers, why the most probable token at each step need not lead to
# the most probable sequence.
#
# Book: section *two maximisations* (`seq-objective`). 3 points, marked by a person.

# %% [markdown] question="search_or_learning" points=3 section="seq-objective" title="What is maximised over what?"
# **Your answer:**
#
# ### BEGIN SOLUTION
# *Training* maximises over the **parameters** $\theta$, with the data fixed:
# $\hat\theta = \arg\max_\theta \sum_{(x, y)} \log P_\theta(y \mid x)$, the sum running over all
# pairs of the corpus. That is maximum likelihood estimation. The target is given, so nothing is
# searched for among sequences; gradient descent on `sequence_loss` follows the slope of this sum in
# $\theta$.
#
# *Decoding* maximises over the **output sequences** $y$, with $\theta$ (and the source $x$) fixed:
# $\hat y = \arg\max_y P_\theta(y \mid x)$. Nothing is estimated. It is a search in a discrete set
# which grows like $V^n$ with the length $n$, so in general it can only be done approximately; beam
# search is such an approximation.
#
# *Why not step by step.* The probability of a sequence is a product,
# $P(y \mid x) = \prod_t P(y_t \mid y_{<t}, x)$, and the choice at step $t$ changes the
# distributions of all later steps. Let the first token be `x` with probability 0.6 or `y` with 0.4.
# After `x` the best continuation has 0.5, after `y` it has 0.95. Greedy decoding takes `x` and
# arrives at $0.6 \cdot 0.5 = 0.30$, but `y` and its continuation have $0.4 \cdot 0.95 = 0.38$. The
# step-wise maximum would be right only if later distributions didn't depend on earlier choices.
#
# *Marking:* 1 point for training (over parameters, data fixed), 1 for decoding (over sequences,
# parameters fixed), 1 for an example whose numbers are right.
# ### END SOLUTION

# %% [markdown]
# ## Decoding
#
# ### Exercise 16: Greedy decoding
#
# From here on there is no reference target: a trained model writes on its own. Write
# `greedy_decode(model, source, source_mask=None, max_length=20)`: for a whole batch, at each step
# the token with the largest logit, which is then fed back.
#
# * `model` is **any** translator (see the top of the notebook): call only `start` and `step`, and
#   assume nothing about its state.
# * The first input of every row is `BOS`. After that each row reads its own last token.
# * A row that has produced `EOS` is finished; it gets `PAD` from then on. `EOS` itself belongs to
#   the result, `BOS` doesn't.
# * Decoding stops when **every** row has finished, or after `max_length` tokens. A row without
#   `EOS` by then stays as it is.
# * The result is `(B, n)` `torch.int64`; `n` is the length of the longest row, so the last column
#   is never padding alone.
# * `ValueError` if `max_length` is smaller than 1.
#
# (Decoding needs no gradients. Where you use it for real, wrap the call in `torch.no_grad()`.)
#
# *Example.* If the first row becomes `7, EOS` and the second `5, 6, 8, EOS`, the result is
# $\begin{pmatrix}7&2&0&0\\5&6&8&2\end{pmatrix}$.
#
# Book: section *greedy decoding* (`seq-greedy`).
#
# <details><summary>Hint 1</summary>
#
# Keep a bool tensor `finished` `(B,)`. All rows go through the model at every step, the finished
# ones too: it is simpler to overwrite what they produce.
#
# </details>
# <details><summary>Hint 2</summary>
#
# In each step: take the `argmax`, write `PAD` where a row was finished **before** this step, keep
# the column, and only then update `finished`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `finished.all()` says when to stop; `torch.stack(columns, dim=1)` puts the result together.
#
# </details>


# %% exercise="greedy_decode" points=4 section="seq-greedy"
def greedy_decode(
    model: nn.Module, source: Tensor, source_mask: Tensor | None = None, max_length: int = 20
) -> Tensor:
    """Produce for every source the token that looks best at each step.

    Args:
        model: a translator, with ``start`` and ``step``.
        source: (B, T) int64.
        source_mask: (B, T) bool, True = real token.
        max_length: the most tokens a row may get, at least 1.

    Returns:
        (B, n) int64 without BOS, with EOS; PAD after a row's EOS; n is the length of the longest
        row.

    Raises:
        ValueError: if max_length < 1.
    """
    ### BEGIN SOLUTION
    if max_length < 1:
        raise ValueError(f"max_length must be at least 1, but is {max_length}")
    state = model.start(source, source_mask)
    previous = torch.full_like(source[:, 0], BOS)  # (B,)
    finished = torch.zeros_like(previous, dtype=torch.bool)  # (B,)
    ids = []
    while len(ids) < max_length and not finished.all():
        logits, state = model.step(previous, state)  # (B, V)
        previous = logits.argmax(dim=-1).masked_fill(finished, PAD)  # (B,)
        ids.append(previous)
        finished = finished | (previous == EOS)  # (B,)
    return torch.stack(ids, dim=1)  # (B, n)
    ### END SOLUTION


# %% check="greedy_decode" tags=["active-ipynb"]
# check("greedy_decode")

# %% [markdown]
# ### Exercise 17: Exhaustive search
#
# Greedy decoding need not find the most probable sequence. For a tiny vocabulary one can look at
# **all** sequences, which gives the truth that other searches are measured by. Write
# `exhaustive_search(model, source, max_length, source_mask=None)`.
#
# * `model` is any translator; `source` is `(1, T)`, one sentence.
# * Candidates are all sequences that end with `EOS` and have at most `max_length` tokens, `EOS`
#   counted. Before the `EOS` every other id of the vocabulary may occur, `PAD`, `BOS` and `UNK`
#   included.
# * Logits may be $-\infty$; such a token has probability 0.
# * Returns `(ids, log_prob)`: the ids of the most probable candidate as a `list` of `int`, `EOS`
#   included, and the logarithm of its probability as a `float`. If several are equally probable,
#   any of them.
# * `ValueError` if the batch is not 1, if `max_length` is smaller than 1, or if every candidate has
#   probability 0.
#
# *Example.* Tokens 4 and 5 begin a sequence with probability 0.6 and 0.4. After 4 comes `EOS` with
# 0.5, or 6 or 7 with 0.25 each; after 5 comes `EOS` with 0.95 or 6 with 0.05. With `max_length=2`
# the result is `([5, 2], -0.968)`, since $0.4 \cdot 0.95 = 0.38$ is more than
# $0.6 \cdot 0.5 = 0.30$. Greedy decoding finds the latter.
#
# Book: section *beam search* (`seq-beam`).
#
# <details><summary>Hint 1</summary>
#
# A recursive function is the shortest way: it gets the tokens so far, their log-probability, the
# last token and the state, takes one step, and calls itself for every token but `EOS`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Sum logarithms, from `torch.log_softmax`. `step` returns a new state and leaves the old one as it
# was, so one state can be extended by every token.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Faster: all unfinished beginnings of one length are rows of one batch. To choose or repeat rows of
# a state, write `tuple(t[rows] for t in state)`.
#
# </details>


# %% exercise="exhaustive_search" points=2 section="seq-beam"
def exhaustive_search(
    model: nn.Module, source: Tensor, max_length: int, source_mask: Tensor | None = None
) -> tuple[list[int], float]:
    """Find the most probable finished sequence by looking at all of them.

    Args:
        model: a translator, with ``start`` and ``step``; its logits may hold -inf.
        source: (1, T) int64.
        max_length: the most tokens of a sequence, EOS counted; at least 1.
        source_mask: (1, T) bool, True = real token.

    Returns:
        The ids, EOS included, and their log-probability.

    Raises:
        ValueError: if the batch is not 1, max_length < 1, or no sequence of positive probability
            ends in EOS within max_length tokens.
    """
    ### BEGIN SOLUTION
    if len(source) != 1:
        raise ValueError(f"search takes one source at a time, but source holds {len(source)}")
    if max_length < 1:
        raise ValueError(f"max_length must be at least 1, but is {max_length}")
    state = model.start(source, source_mask)
    # All P unfinished prefixes of one length are the rows of one batch.
    prefixes: list[list[int]] = [[]]
    log_prob = torch.zeros(1, device=source.device)  # (P,)
    previous = torch.full_like(source[:, 0], BOS)  # (P,)
    best_ids, best = [], -math.inf
    while prefixes and len(prefixes[0]) < max_length:
        logits, state = model.step(previous, state)  # (P, V)
        total = log_prob[:, None] + torch.log_softmax(logits, dim=-1)  # (P, V)
        for prefix, finished in zip(prefixes, total[:, EOS].tolist(), strict=True):
            if finished > best:
                best_ids, best = [*prefix, EOS], finished
        total[:, EOS] = -math.inf  # what has ended is not extended
        rows, previous = (total > -math.inf).nonzero(as_tuple=True)  # both (P',)
        prefixes = [
            [*prefixes[row], token]
            for row, token in zip(rows.tolist(), previous.tolist(), strict=True)
        ]
        log_prob = total[rows, previous]  # (P',)
        state = tuple(part[rows] for part in state)
    if not best_ids:
        raise ValueError(f"no sequence of at most {max_length} tokens ends with EOS")
    return best_ids, best
    ### END SOLUTION


# %% check="exhaustive_search" tags=["active-ipynb"]
# check("exhaustive_search")

# %% [markdown]
# ### Exercise 18: Beam search
#
# Beam search keeps, at each step, only the best few beginnings. Write
# `beam_search(model, source, beam_size, max_length, source_mask=None, alpha=0.0)`.
#
# 1. One hypothesis is *live* at first, the empty one; its log-probability is 0, its next input
#    `BOS`.
# 2. In each step every live hypothesis is extended by every token of the vocabulary, and the
#    log-probability of the extension is that of the hypothesis plus that of the token.
# 3. Of **all** extensions together, the $k$ with the largest log-probability survive. Those of
#    probability 0 never do.
# 4. Survivors that end with `EOS` are *finished*: they are put aside, and the beam becomes narrower
#    by as many. So $k$ is `beam_size` at first, and `beam_size` minus the number of finished
#    hypotheses later.
# 5. It ends when nothing is live, or after `max_length` tokens. What is live then joins the
#    finished ones as it is, without `EOS`.
#
# Every further token makes a log-probability smaller, so the sum favours short outputs. The **final
# order** can correct for that, and only the final order:
#
# $$\text{score}(y) = \frac{\log P(y \mid x)}{|y|^{\alpha}},\qquad
# |y| = \text{number of ids, EOS counted}$$
#
# * `model` is any translator; `source` is `(1, T)`, one sentence.
# * Returns a list of at most `beam_size` pairs `(ids, score)`, best score first: `ids` a `list` of
#   `int` without `BOS`, `score` a `float`. Equal scores may come in any order.
# * `ValueError` if `beam_size` or `max_length` is smaller than 1, if `alpha` is negative, or if the
#   batch is not 1.
#
# *Example.* In the example of exercise 17, `beam_size=1` gives `[([4, 2], -1.204)]`, the greedy
# path. With `beam_size=2` both 4 and 5 survive the first step, and the result is
# `[([5, 2], -0.968), ([4, 2], -1.204)]`. As for `alpha`: of two hypotheses with 2 tokens and $-2$,
# and with 5 tokens and $-2.5$, the first is better for $\alpha = 0$; for $\alpha = 1$ the second,
# $-0.5$ against $-1$.
#
# Book: section *beam search* (`seq-beam`).
#
# <details><summary>Hint 1</summary>
#
# Let the live hypotheses be the rows of one batch: `step` with `previous` `(K,)` gives logits
# `(K, V)`. Add the hypotheses' log-probabilities as a column, and you have all extensions in one
# tensor.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `flatten().topk(k)` finds the best of all. From a place in the flat tensor, `divmod(place, V)`
# gives row and token. `topk` complains if `k` is larger than the tensor.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The state must follow the hypotheses: `tuple(t[rows] for t in state)`, where `rows`
# lists, for each new live hypothesis, the row that it came from. A row may occur twice or not at
# all.
#
# </details>
# <details><summary>Hint 4</summary>
#
# To test yourself: with `beam_size=1` and `alpha=0` you get the greedy path. With a beam so wide
# that nothing is ever dropped, the best hypothesis that ends with `EOS` is the result of exercise
# 17.
#
# </details>


# %% exercise="beam_search" points=5 section="seq-beam"
def beam_search(
    model: nn.Module,
    source: Tensor,
    beam_size: int,
    max_length: int,
    source_mask: Tensor | None = None,
    alpha: float = 0.0,
) -> list[tuple[list[int], float]]:
    """Keep the beam_size best beginnings at each step (Sutskever et al. 2014, section 3.2).

    Args:
        model: a translator, with ``start`` and ``step``; its logits may hold -inf.
        source: (1, T) int64.
        beam_size: how many hypotheses are kept, finished ones counted; at least 1.
        max_length: the most tokens of a hypothesis, EOS counted; at least 1.
        source_mask: (1, T) bool, True = real token.
        alpha: how strongly the scores are corrected for length; at least 0.

    Returns:
        At most beam_size pairs (ids, score), best score first, with score = log-probability /
        len(ids) ** alpha. The ids of a finished hypothesis include EOS; those that were still live
        after max_length tokens join as they are.

    Raises:
        ValueError: if beam_size < 1, max_length < 1, alpha < 0, or the batch is not 1.
    """
    ### BEGIN SOLUTION
    if len(source) != 1:
        raise ValueError(f"search takes one source at a time, but source holds {len(source)}")
    for name, value, least in (
        ("beam_size", beam_size, 1),
        ("max_length", max_length, 1),
        ("alpha", alpha, 0),
    ):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, but is {value}")
    state = model.start(source, source_mask)
    # The K live hypotheses are the rows of one batch.
    live: list[tuple[list[int], float]] = [([], 0.0)]
    finished: list[tuple[list[int], float]] = []
    previous = torch.full_like(source[:, 0], BOS)  # (K,)
    while live and len(live[0][0]) < max_length:
        logits, state = model.step(previous, state)  # (K, V)
        log_prob = logits.new_tensor([total for _, total in live])  # (K,)
        totals = log_prob[:, None] + torch.log_softmax(logits, dim=-1)  # (K, V)
        width = min(beam_size - len(finished), totals.numel())
        best, places = totals.flatten().topk(width)
        rows, extended = [], []
        for total, place in zip(best.tolist(), places.tolist(), strict=True):
            row, token = divmod(place, totals.shape[1])
            hypothesis = ([*live[row][0], token], total)
            if total == -math.inf:
                continue
            if token == EOS:
                finished.append(hypothesis)
            else:
                rows.append(row)
                extended.append(hypothesis)
        live = extended
        previous = source.new_tensor([ids[-1] for ids, _ in live])  # (K,)
        state = tuple(part[rows] for part in state)
    scored = [(ids, total / len(ids) ** alpha) for ids, total in finished + live]
    return sorted(scored, key=lambda pair: pair[1], reverse=True)
    ### END SOLUTION


# %% check="beam_search" tags=["active-ipynb"]
# check("beam_search")

# %% [markdown]
# ## What a fixed context can hold
#
# ### Question: Why is a fixed context a bottleneck?
#
# The decoder of exercise 13 learns about the source only through $C$, a vector of `hidden_size`
# numbers, however long the source is. Explain in a few sentences why such a model gets worse with
# the length of the source, why a larger `hidden_size` moves the problem but doesn't remove it, and
# what has to be handed to the decoder instead so that the limit disappears. Give the shapes.
#
# Book: section *bottleneck* (`seq-bottleneck`). 3 points, marked by a person.

# %% [markdown] question="why_bottleneck" points=3 section="seq-bottleneck" title="Why is a fixed context a bottleneck?"
# **Your answer:**
#
# ### BEGIN SOLUTION
# *Why it gets worse.* The number of different sources of length $T$ grows like $V^T$, so what has
# to be kept about the source grows in proportion to $T$ (about $T \log V$). $C$ has the shape
# `(B, H)` for every $T$: $H$ numbers of finite precision, filled by a cell that updates one state
# again and again. Each new token has to be written into a state that is in use already, so earlier
# ones are blurred or overwritten, and the gradient that could teach the encoder to keep them has to
# come back through all $T$ steps. Beyond some length, several sources that need different
# translations lead to nearly the same $C$, and no decoder, however good, can tell them apart.
#
# *Why a larger $H$ only moves it.* More numbers hold more, so the accuracy falls at a greater
# length. But for every fixed $H$ there is a longer sentence. It has its price too: the cell's
# parameters and work grow like $H^2$, for short sentences as well. Gates (GRU, LSTM) and reading in
# both directions help in the same way: they make better use of the same $H$ numbers.
#
# *What removes it.* Hand over **all** states of the encoder, `states` `(B, T, H)`, one for each
# token, so that the memory grows with the source, and let the decoder form a new context $c_t$
# `(B, H)` at every step, as a weighted sum of these states with weights that depend on its own
# state. That is attention. The decoder looks a detail up when it needs it, along a path whose
# length doesn't depend on $T$; the price is $T$ scores at each step. The Transformer's encoder
# likewise returns one vector for every position.
#
# *Marking:* 1 point for a capacity that is fixed while the content grows, 1 for why the width only
# moves the limit, 1 for all states with the shape `(B, T, H)` and a context for each step.
# ### END SOLUTION
