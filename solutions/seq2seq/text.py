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
# # Sequence to sequence: from text to batches
#
# At the end of this unit sentences are batches of ids, padded and masked, and a long text is a
# row of windows.
#
# One of the code cells below hands you the ids that have a meaning of their own, and `SPECIALS`, the
# words they stand for.

# %%
"""Text to batches: vocabulary, encoding, padding, windows."""

# The options of a cell must stand on one line, however long it gets.
# ruff: noqa: E501

# %%
import math
from collections import Counter

import torch
from torch import Tensor

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("seq2seq-text")

# %%
PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ["<pad>", "<bos>", "<eos>", "<unk>"]


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
#   order (that of Python's `sorted`, by code point). <!-- id: order -->
# * A token is left out if it occurs fewer than `min_count` times in all sentences together.
#   <!-- id: min-count -->
# * `max_size` limits the whole list, the specials included; `None` means no limit. The rarest
#   tokens are the ones that drop out. <!-- id: max-size -->
# * If the string of a special token stands in the text, it is **not** entered a second time.
#   <!-- id: specials-once -->
# * `ValueError` if there are no sentences, if `min_count` is smaller than 1, or if `max_size` is
#   smaller than 4. <!-- id: bad-input -->
#
# *Example.* For `[["to", "be", "or"], ["not", "to", "be"]]` the vocabulary is the four specials and
# then `be`, `to`, `not`, `or`. With `min_count=2` it ends after `to`; with `max_size=5`, after
# `be`.
#
# Book: `seq-vocabulary`.
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
# * Each token becomes its position in `vocabulary`; a token that is not in the vocabulary
#   becomes `UNK`. <!-- id: ids -->
# * `add_bos=True` puts `BOS` in front, `add_eos=True` puts `EOS` at the end. An empty list of
#   tokens is allowed. <!-- id: bos-and-eos -->
# * `ValueError` if the vocabulary does not begin with `SPECIALS`, in their order: the ids 0 to 3
#   would mean something else. <!-- id: specials-first -->
#
# *Example.* With the vocabulary `SPECIALS + ["be", "to"]`, the tokens `["to", "sleep", "be"]` and
# `add_eos=True` give `[5, 3, 4, 2]`.
#
# Book: `seq-vocabulary`.
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
        The ids; a token that is not in the vocabulary becomes UNK.

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
# * Reading stops before the first `EOS`; what follows it is ignored. <!-- id: until-eos -->
# * `PAD` and `BOS` are dropped wherever they stand. `UNK` stays, as `<unk>`. <!-- id: dropped -->
# * `ValueError` if one of the ids read lies outside the vocabulary, and also if it is negative:
#   Python would silently count from the end. <!-- id: unknown-id -->
#
# *Example.* With the vocabulary `SPECIALS + ["be", "to"]`, `[1, 5, 3, 0, 4, 2, 5]` gives
# `["to", "<unk>", "be"]`.
#
# Book: `seq-vocabulary`.
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
#   <!-- id: empty-row -->
# * A shorter sequence is filled up with `PAD` **on the right**. <!-- id: padded-right -->
# * A longer one is cut: `keep="start"` keeps its first `length` ids, `keep="end"` its last.
#   <!-- id: cut -->
# * Returns `(ids, mask)`: `(B, length)` `torch.int64` and `(B, length)` `torch.bool`, `True` = real
#   token. The mask comes from the lengths, not from comparing with `PAD`: a sequence may hold a
#   real 0. <!-- id: mask-by-length -->
# * `ValueError` if there are no sequences, if `length` is smaller than 1, if `keep` is neither
#   `"start"` nor `"end"`, or if an id is not an `int` (neither `2.0` nor `True` is one).
#   <!-- id: bad-input -->
#
# *Example.* `pad_to_length([[7, 8, 9], [5]], 2)` gives the ids
# $\begin{pmatrix}7&8\\5&0\end{pmatrix}$ and the mask $\begin{pmatrix}1&1\\1&0\end{pmatrix}$, with 1
# for `True`. With `keep="end"` the first row is $(8, 9)$.
#
# Book: `seq-padding`.
#
# <details><summary>Hint 1</summary>
#
# Begin with a tensor full of `PAD` and a mask full of `False`, and write into the first entries of
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
# * Returns `(ids, mask)` as exercise 4 does, now `(B, longest)`. <!-- id: longest -->
# * An empty sequence beside others is a row of padding. <!-- id: empty-row -->
# * `ValueError` if there are no sequences, if all of them are empty, or if an id is not an `int`.
#   <!-- id: bad-input -->
#
# *Example.* `pad_batch([[7, 8, 9], [5], []])` gives the ids
# $\begin{pmatrix}7&8&9\\5&0&0\\0&0&0\end{pmatrix}$.
#
# Book: `seq-padding`.
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
#   share `length - stride` ids. <!-- id: starts -->
# * The last window is the **first** one whose end reaches the end of the sequence. It is filled up
#   with `PAD` on the right if it reaches beyond. So there are
#   $W = 1 + \lceil \max(0, n - \text{length}) / s \rceil$ windows for $n$ ids, and no id is lost.
#   <!-- id: last-window -->
# * Returns `(windows, mask)`: `(W, length)` `torch.int64` and `(W, length)` `torch.bool`, `True` =
#   real token. <!-- id: mask -->
# * `ValueError` if the sequence is empty, if `length` is smaller than 1, or if `stride` is smaller
#   than 1 or larger than `length` (then ids between the windows would be lost).
#   <!-- id: bad-input -->
#
# *Example.* The ids 4 to 10 with `length=4` and `stride=2` give
# $\begin{pmatrix}4&5&6&7\\6&7&8&9\\8&9&10&0\end{pmatrix}$. With `stride=3` two windows do, and
# nothing is padded.
#
# Book: `seq-padding`.
#
# <details><summary>Hint 1</summary>
#
# First list the starts of the windows, then slice the sequence at each, then pad as in exercise 4.
#
# </details>
# <details><summary>Hint 2</summary>
#
# With a loop: take a window, and stop as soon as `start + length` has reached the length of the
# sequence. A loop over `range(0, len(sequence), stride)` may yield one window too many: one that
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
