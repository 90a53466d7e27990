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
# # Tokens, embeddings and positions by hand
#
# In this notebook you carry a text to the door of a Transformer: bytes become tokens (byte-pair
# encoding and WordPiece), tokens become vectors (scaled embeddings), and the vectors are told where
# they stand (binary code, sinusoids in two layouts, learned positions, relative positions). There
# are 17 exercises to code and two questions to answer in words.
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
# | `B`, `T` | batch size, length of a sequence |
# | `D` | width of the model, `d_model` |
# | `H`, `Dh` | number of heads, width of one head, $D/H$ |
# | $p$, $k$ | a position, counted from 0; the number of a frequency, counted from 0 |
# | $\omega_k$ | the $k$-th angular frequency |
#
# * Batch first: ids are `(B, T)`, vectors `(B, T, D)`. Ids and positions are integers
#   (`torch.int64`).
# * **Tables** are `float32`; **modules** keep the floating-point type of their input (`float32` in,
#   `float32` out; the same for `float64` once the module is converted with `.to(torch.float64)`).
# * A **mask** is a `torch.bool` tensor; `True` means *may attend*.
# * **Bad input is refused with a `ValueError`** whose message says what is wrong in one sentence.
#   Each exercise lists what it refuses. PyTorch and Python often raise something else
#   (`IndexError`, `RuntimeError`, `TypeError`) or nothing at all, so check before you compute.
# * No function changes its inputs in place, and modules are differentiable.
# * Modules are `nn.Module`s and have exactly the named parameters, no others, because the checks
#   load weights into them by name. How you initialise them is up to you.

# %%
"""Tokens, embeddings and positions: BPE, WordPiece, sinusoids, learned and relative positions."""

# The options of a cell must stand on one line, however long it gets.
# ruff: noqa: E501

# %%
import itertools
import math
import re
from collections import Counter

import torch
from torch import Tensor, nn

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("positional_encoding")

# %% [markdown]
# ## Tokens: from text to numbers
#
# A model reads numbers. The simplest way to make numbers of text is to take its bytes in UTF-8: 256
# different ids are enough for every language, but sequences get long. *Byte-pair encoding* (BPE)
# shortens them: it starts from bytes and gives a new id to pairs that often stand side by side.
#
# This function is given. It cuts a text into chunks before anything is merged; a word keeps the one
# space before it. Nothing is lost: joined together, the chunks are the text again.


# %%
def chunks(text: str) -> list[str]:
    """Cut text into words, each with the space before it, and runs of other white space.

    Joined together again, the chunks are the text.
    """
    return re.findall(r" ?[^\s]+|\s+", text)


# %% [markdown]
# ### Exercise 1: Merge a pair
#
# Write `merge_pair(ids, pair, new_id)`, the one step of which BPE is made: wherever the two ids of
# `pair` stand side by side, in this order, they are replaced by `new_id`.
#
# * `ids` is a `list` of `int`s of any length, `pair` a `tuple` of two ids, `new_id` an `int`; the
#   result is a new `list`, and `ids` stays as it is.
# * Replacement runs from left to right, and occurrences don't overlap: an id that was used for one
#   replacement is not there for the next.
#
# *Example.* `merge_pair([97, 97, 97], (97, 97), 256)` is `[256, 97]`: the middle 97 belongs to the
# first pair.
#
# Book: section *tokens* (`pos-tokens`).
#
# <details><summary>Hint 1</summary>
#
# A `for` loop over the positions can't jump over the second half of a pair. A `while` loop with a
# position of your own can.
#
# </details>
# <details><summary>Hint 2</summary>
#
# At each position there are two cases: the pair begins here (append `new_id`, go on by 2), or it
# doesn't (append the id itself, go on by 1). The last id has no neighbour; mind the end.
#
# </details>


# %% exercise="merge_pair" points=1 section="pos-tokens"
def merge_pair(ids: list[int], pair: tuple[int, int], new_id: int) -> list[int]:
    """Replace each occurrence of two neighbouring ids by one id (Sennrich et al. 2016, 3.2).

    Args:
        ids: any length; left unchanged.
        pair: the two ids to replace.
        new_id: what stands in their place.

    Returns:
        A new list. Occurrences are replaced from left to right and don't overlap.
    """
    ### BEGIN SOLUTION
    merged = []
    position = 0
    while position < len(ids):
        if tuple(ids[position : position + 2]) == pair:
            merged.append(new_id)
            position += 2
        else:
            merged.append(ids[position])
            position += 1
    return merged
    ### END SOLUTION


# %% check="merge_pair" tags=["active-ipynb"]
# check("merge_pair")

# %% [markdown]
# ### Exercise 2: Learn the merges
#
# Write `train_bpe(text, num_merges)`, which learns from a text what to merge (Sennrich et al.,
# 2016; on bytes as in GPT-2).
#
# 1. Cut the text by `chunks(text)`, and make a list of ids of each chunk: its bytes in UTF-8, 0 to
#    255. **No merge crosses the border of a chunk.**
# 2. Count for every pair of neighbouring ids at how many places it stands, over all chunks; a chunk
#    counts as often as it occurs in the text. Overlapping places all count: in `[97, 97, 97]` the
#    pair `(97, 97)` stands at two.
# 3. The most frequent pair is the next merge. **On a tie the smaller pair wins**, compared as
#    tuples: `(32, 97)` before `(97, 32)`.
# 4. Merge number $m$ (counted from 0) makes the id $256 + m$. Replace it in all chunks and go on at
#    step 2, until there are `num_merges` merges or no pair is left.
#
# * The result is the `list` of merged pairs, `tuple`s of two `int`s, in the order in which they
#   were learned. It is shorter than `num_merges` if no pair is left; an empty text gives `[]`.
# * `ValueError` if `num_merges` is negative; 0 gives `[]`.
#
# *Example.* `train_bpe("low low lower", 3)` is `[(108, 111), (256, 119), (32, 257)]`: *l o*, then
# *lo w*, then *space low*. In the first step *l o* and *o w* stand at three places each, and
# $(108, 111) < (111, 119)$.
#
# Book: section *byte-pair encoding* (`pos-bpe`).
#
# <details><summary>Hint 1</summary>
#
# `list("é".encode("utf-8"))` is `[195, 169]`: a list of bytes is a list of ids.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `collections.Counter` counts anything hashable, chunks as well as pairs; `itertools.pairwise(ids)`
# gives the neighbours. Keep each different chunk once, with its number of occurrences.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Most frequent and, among those, smallest: `min` with a `key` that is the tuple of the *negative*
# count and the pair. Tuples are compared from left to right.
#
# </details>


# %% exercise="train_bpe" points=4 section="pos-bpe"
def train_bpe(text: str, num_merges: int) -> list[tuple[int, int]]:
    """Learn the merges of byte-pair encoding (Sennrich et al. 2016, 3.2; bytes: GPT-2, 2.2).

    Args:
        text: what to learn from; cut by chunks(text), and no merge crosses a chunk.
        num_merges: how many merges to learn at most.

    Returns:
        The merged pairs in the order in which they were learned; pair number m makes the id
        256 + m. Each is the most frequent one at its step, the smaller tuple on a tie; fewer than
        num_merges if no pair is left.

    Raises:
        ValueError: if num_merges is negative.
    """
    ### BEGIN SOLUTION
    if num_merges < 0:
        raise ValueError(f"num_merges must be at least 0, but is {num_merges}")
    # A chunk that occurs a thousand times is merged once and counted a thousand times.
    words = [(list(chunk.encode("utf-8")), n) for chunk, n in Counter(chunks(text)).items()]
    merges = []
    for new_id in range(256, 256 + num_merges):
        counts = Counter()
        for ids, n in words:
            for pair in itertools.pairwise(ids):
                counts[pair] += n
        if not counts:
            break
        best, _ = min(counts.items(), key=lambda item: (-item[1], item[0]))
        merges.append(best)
        words = [(merge_pair(ids, best, new_id), n) for ids, n in words]
    return merges
    ### END SOLUTION


# %% check="train_bpe" tags=["active-ipynb"]
# check("train_bpe")


# %% tags=["instructor"]
def fast_train_bpe(text: str, num_merges: int) -> list[tuple[int, int]]:
    """The result of ``train_bpe(text, num_merges)``, counting again only what a merge changed.

    Args:
        text: as for train_bpe.
        num_merges: as for train_bpe.

    Returns:
        The same merges.

    Raises:
        ValueError: if num_merges is negative.
    """
    if num_merges < 0:
        raise ValueError(f"num_merges must be at least 0, but is {num_merges}")
    occurrences = Counter(chunks(text))
    words = [list(chunk.encode("utf-8")) for chunk in occurrences]
    weights = list(occurrences.values())
    counts: Counter[tuple[int, int]] = Counter()
    where: dict[tuple[int, int], set[int]] = {}  # The words in which a pair stands.

    def count(word: int, sign: int) -> None:
        """Add the pairs of a word to the counts, or take them away."""
        for pair in itertools.pairwise(words[word]):
            counts[pair] += sign * weights[word]
            if sign > 0:
                where.setdefault(pair, set()).add(word)
            elif counts[pair] == 0:
                del counts[pair]

    for word in range(len(words)):
        count(word, 1)
    merges = []
    for new_id in range(256, 256 + num_merges):
        if not counts:
            break
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        merges.append(best)
        for word in where.pop(best):  # Perhaps a word that has lost the pair: counted in vain.
            count(word, -1)
            words[word] = merge_pair(words[word], best, new_id)
            count(word, 1)
    return merges


# %% [markdown]
# ### Exercise 3: Encode
#
# Write `bpe_encode(text, merges)`: the ids of a text, by merges learned earlier, perhaps on another
# text. For every chunk of `chunks(text)`: start from its bytes, and while the chunk holds a pair
# that is in `merges`, take **the one learned earliest** and replace all its occurrences, left to
# right.
#
# * `merges` is the result of `train_bpe`; pair number $m$ makes the id $256 + m$.
# * The result is one flat `list` of `int`s: the ids of all chunks, one chunk after the other. An
#   empty text gives `[]`.
#
# The order matters: longest piece first, or the pair that stands first, gives other ids than the
# model was trained on.
#
# *Example.* With the merges of exercise 2's example, `bpe_encode("slow low", merges)` is
# `[115, 257, 258]`: *s*, *low*, *space low*.
#
# Book: section *byte-pair encoding* (`pos-bpe`).
#
# <details><summary>Hint 1</summary>
#
# Make a `dict` from pair to number first; the number is its rank, and the new id is 256 more.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Among the neighbours of the chunk, find the pair with the smallest rank; a pair that isn't in the
# `dict` counts as infinitely late. If even the earliest isn't in the `dict`, this chunk is done.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `merge_pair` does the replacement. After it, look at all pairs again: new ones have come into
# being.
#
# </details>


# %% exercise="bpe_encode" points=3 section="pos-bpe"
def bpe_encode(text: str, merges: list[tuple[int, int]]) -> list[int]:
    """Turn text into ids by the learned merges, in the order in which they were learned.

    Args:
        text: any Unicode text; cut by chunks(text), and no merge crosses a chunk.
        merges: the result of train_bpe; pair number m makes the id 256 + m.

    Returns:
        The ids of all chunks, one after the other, each in 0 .. 255 + len(merges).
    """
    ### BEGIN SOLUTION
    rank = {pair: number for number, pair in enumerate(merges)}
    encoded = []
    for chunk in chunks(text):
        ids = list(chunk.encode("utf-8"))
        while len(ids) > 1:
            earliest = min(itertools.pairwise(ids), key=lambda pair: rank.get(pair, math.inf))
            if earliest not in rank:
                break
            ids = merge_pair(ids, earliest, 256 + rank[earliest])
        encoded += ids
    return encoded
    ### END SOLUTION


# %% check="bpe_encode" tags=["active-ipynb"]
# check("bpe_encode")

# %% [markdown]
# ### Exercise 4: Decode
#
# Write `bpe_decode(ids, merges)`, the way back. Every id stands for a string of bytes: 0 to 255 for
# the one byte, $256 + m$ for the bytes of the two ids of merge $m$, one after the other. Join the
# bytes of all ids, **then** read them as UTF-8, with `errors="replace"`.
#
# * The result is a `str`. `bpe_decode(bpe_encode(text, merges), merges) == text` for every text,
#   emoji and unknown scripts included: bytes leave nothing out. (A lone surrogate, half of a UTF-16
#   pair, is not text; Python already refuses to encode it.)
# * Ids that don't form valid UTF-8, as a model may produce, give the replacement character `�`
#   where the text is damaged, no error.
# * `ValueError` if an id is negative or larger than `255 + len(merges)`. (Python would count
#   negative ones from the end of a list.)
#
# *Example.* `bpe_decode([195, 169], [])` is `"é"`, and `bpe_decode([195], [])` is `"�"`. With the
# merges of exercise 2's example, `bpe_decode([258, 101], merges)` is `" lowe"`.
#
# Book: section *byte-pair encoding* (`pos-bpe`).
#
# <details><summary>Hint 1</summary>
#
# Build a list with the bytes of each id. A merge only refers to ids that came before it, so one
# pass over `merges` is enough.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `bytes([195])` is one byte, `+` joins two, `b"".join(...)` joins many. Decode once, at the very
# end: the two bytes of é may belong to two ids.
#
# </details>


# %% exercise="bpe_decode" points=2 section="pos-bpe"
def bpe_decode(ids: list[int], merges: list[tuple[int, int]]) -> str:
    """Turn ids back into text; undoes bpe_encode for any Unicode text.

    Args:
        ids: each in 0 .. 255 + len(merges).
        merges: those that made the ids.

    Returns:
        The bytes of all ids joined, then read as UTF-8; bytes that are no UTF-8 become U+FFFD.

    Raises:
        ValueError: if an id is negative or larger than 255 + len(merges).
    """
    ### BEGIN SOLUTION
    pieces = [bytes([value]) for value in range(256)]
    for left, right in merges:
        pieces.append(pieces[left] + pieces[right])
    for number in ids:
        if not 0 <= number < len(pieces):
            raise ValueError(f"id {number} is outside 0..{len(pieces) - 1}")
    # Joined before decoding: a character's bytes may be spread over several ids.
    return b"".join(pieces[number] for number in ids).decode("utf-8", errors="replace")
    ### END SOLUTION


# %% check="bpe_decode" tags=["active-ipynb"]
# check("bpe_decode")

# %% [markdown]
# ### Exercise 5: WordPiece
#
# BERT cuts words differently: its vocabulary is a list of pieces, and a word is cut **greedily, the
# longest match first**. Pieces that continue a word carry a mark, `##`. Write
# `wordpiece_encode(word, vocabulary, unknown="[UNK]", prefix="##", max_chars=100)`.
#
# * Take the longest piece of the vocabulary that the word begins with; then the longest one, now
#   with `prefix` before it, that the rest begins with; and so on to the end of the word.
# * There is no going back: if some rest begins with no piece, the **whole word** is `[unknown]`,
#   one token, even if its beginning was found or another cut would have worked.
# * A word longer than `max_chars` characters is `[unknown]` without being tried.
# * The result is a `list` of `str`, the pieces as they stand in the vocabulary, with their prefix.
# * `ValueError` if `word` is empty.
#
# *Example.* With the vocabulary `["un", "una", "##aff", "##able", "##ffable"]` the word *unaffable*
# is `["una", "##ffable"]`. Without *una* in it, it is `["un", "##aff", "##able"]`; with *una* but
# without *##ffable* it is `["[UNK]"]`.
#
# Book: section *WordPiece* (`pos-wordpiece`).
#
# <details><summary>Hint 1</summary>
#
# Keep a start. Try the ends from the end of the word down to just behind the start; the first piece
# that is known is the longest.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The prefix is part of what you look up, for every piece that doesn't start at 0.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `for ... else` in Python: the `else` belongs to the loop and runs when no `break` ended it.
# Looking up in a `set` is faster than in a `list`.
#
# </details>


# %% exercise="wordpiece_encode" points=3 section="pos-wordpiece"
def wordpiece_encode(
    word: str,
    vocabulary: list[str],
    unknown: str = "[UNK]",
    prefix: str = "##",
    max_chars: int = 100,
) -> list[str]:
    """Cut a word greedily into the longest pieces of a vocabulary (BERT, Devlin et al. 2019).

    Args:
        word: one word, at least one character.
        vocabulary: the pieces; those that continue a word begin with prefix.
        unknown: what stands for a word that can't be cut.
        prefix: put before every piece but the first.
        max_chars: a longer word is unknown without being tried.

    Returns:
        The pieces, or [unknown] if some rest of the word begins with no piece or the word is
        longer than max_chars characters.

    Raises:
        ValueError: if word is empty.
    """
    ### BEGIN SOLUTION
    if not word:
        raise ValueError("word is empty; give at least one character")
    if len(word) > max_chars:
        return [unknown]
    known = set(vocabulary)
    pieces = []
    start = 0
    while start < len(word):
        lead = prefix if start > 0 else ""
        for end in range(len(word), start, -1):
            if lead + word[start:end] in known:
                break
        else:
            return [unknown]
        pieces.append(lead + word[start:end])
        start = end
    return pieces
    ### END SOLUTION


# %% check="wordpiece_encode" tags=["active-ipynb"]
# check("wordpiece_encode")

# %% [markdown]
# ## Embeddings: from numbers to vectors
#
# ### Exercise 6: Scaled token embedding
#
# Write `TokenEmbedding(vocab_size, d_model)`: a learned table with one row per token, whose rows
# are multiplied by $\sqrt{d_{\text{model}}}$ (Vaswani et al., 2017, section 3.4):
#
# $$x_{bt} = \sqrt{D}\; E_{\text{ids}_{bt}}$$
#
# * Layer: `table = nn.Embedding(vocab_size, d_model)`. Nothing else.
# * `forward(ids)`: `ids` `(B, T)` integers; the result is `(B, T, D)`.
# * `ValueError` if `vocab_size` or `d_model` is smaller than 1, when the module is made.
# * `ValueError` if `ids` is not of an integer type (floating point and bool are refused), if it is
#   empty ($B = 0$ or $T = 0$), or if an id is negative or at least `vocab_size`.
#
# *Example.* With $D = 4$ and the row $(0.5, 0, -1, 2)$ for id 7, `ids` $= [[7]]$ gives
# $(1, 0, -2, 4)$.
#
# Book: section *embeddings* (`pos-embedding`).
#
# <details><summary>Hint 1</summary>
#
# `self.table(ids)` looks all ids up at once. What is left is one factor, and the checks before it.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Integer types are those that are neither `is_floating_point()`, nor `is_complex()`, nor
# `torch.bool`. The largest and the smallest id tell whether all lie in the vocabulary; an empty
# tensor has neither, so ask for `ids.numel()` before.
#
# </details>


# %% exercise="TokenEmbedding" points=2 section="pos-embedding"
class TokenEmbedding(nn.Module):
    """Token embedding scaled by sqrt(d_model) (Vaswani et al. 2017, section 3.4).

    Layer: ``table`` = nn.Embedding(vocab_size, d_model).
    """

    def __init__(self, vocab_size: int, d_model: int) -> None:
        """Create ``table``.

        Raises:
            ValueError: if vocab_size or d_model is smaller than 1.
        """
        super().__init__()
        ### BEGIN SOLUTION
        if vocab_size < 1 or d_model < 1:
            raise ValueError(f"a table of {vocab_size} tokens and width {d_model} holds nothing")
        self.table = nn.Embedding(vocab_size, d_model)
        ### END SOLUTION

    def forward(self, ids: Tensor) -> Tensor:
        """Look up every id and scale.

        Args:
            ids: (B, T) integers in 0 .. vocab_size - 1.

        Returns:
            (B, T, D).

        Raises:
            ValueError: if ids is not of an integer type, is empty (B = 0 or T = 0), or holds an id
                outside the vocabulary.
        """
        ### BEGIN SOLUTION
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise ValueError(f"ids must be integers, but are {ids.dtype}")
        if ids.numel() == 0:
            raise ValueError(f"ids {tuple(ids.shape)} holds no token; give at least one")
        size, width = self.table.weight.shape
        lowest, highest = int(ids.min()), int(ids.max())
        if lowest < 0 or highest >= size:
            wrong = lowest if lowest < 0 else highest
            raise ValueError(f"id {wrong} is outside the vocabulary, 0..{size - 1}")
        return self.table(ids.long()) * math.sqrt(width)  # (B, T, D)
        ### END SOLUTION


# %% check="TokenEmbedding" tags=["active-ipynb"]
# check("TokenEmbedding")

# %% [markdown]
# ## Positions: a code for where
#
# ### Exercise 7: Binary code
#
# The oldest way to write a position as a row of bounded numbers is the binary number. Write
# `binary_code(positions, bits)`, the least significant digit first:
#
# $$\text{code}_{p,k} = \left\lfloor \frac{p}{2^k} \right\rfloor \bmod 2,\qquad k = 0, \dots,
# \text{bits} - 1$$
#
# Column 0 changes with every position (period 2), column $k$ has the period $2^{k+1}$: every column
# is a wave, and no two of them have the same length.
#
# * `positions` `(T,)` integers, in any order; the result is `float32` `(T, bits)` of 0 and 1.
# * `ValueError` if `bits` is smaller than 1, if `positions` is not of an integer type (floating
#   point and bool are refused), or if a position is negative or at least $2^{\text{bits}}$.
#
# *Example.* `binary_code(torch.tensor([1, 6]), 3)` is
# $\begin{pmatrix}1&0&0\\0&1&1\end{pmatrix}$: $6 = 0\cdot1 + 1\cdot2 + 1\cdot4$.
#
# Book: section *the binary code* (`pos-binary`).
#
# <details><summary>Hint 1</summary>
#
# `p >> k` drops the last $k$ digits of $p$, and `& 1` keeps the last one that is left.
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
# ### Exercise 8: Frequencies
#
# The sinusoidal code replaces digits by smooth waves. Write `angular_frequencies(d_model,
# base=10000.0)`:
#
# $$\omega_k = \text{base}^{-2k/d_{\text{model}}},\qquad k = 0, 1, \dots,
# \left\lceil \tfrac{d_{\text{model}}}{2} \right\rceil - 1$$
#
# It is a geometric sequence that begins with exactly 1; a wave has the length (in positions)
# $2\pi/\omega_k$. One frequency serves two columns, a sine and a cosine, so there are half as many
# as columns; an odd width has one more for its last column. $k$ counts *pairs*: with $2k = d$ there
# would be a pair too many.
#
# * `d_model` is the full width, not the number of pairs. The result is `float32` `(ceil(d_model /
#   2),)`.
# * `ValueError` if `d_model` is not an `int` or is smaller than 1, or if `base` is not larger than
#   1.
#
# *Example.* `angular_frequencies(4)` is $(1, 0.01)$, and `angular_frequencies(5)` is
# $(1, 0.02512, 0.000631)$.
#
# Book: section *frequencies* (`pos-frequencies`).
#
# <details><summary>Hint 1</summary>
#
# `torch.arange(0, d_model, 2)` is the sequence of the $2k$, for even and odd widths.
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
    """The frequencies omega_k = base**(-2k / d_model) (Vaswani et al. 2017, section 3.5).

    Args:
        d_model: width of the position vectors, at least 1.
        base: larger than 1; the wavelengths 2 pi / omega_k stay below 2 pi base.

    Returns:
        float32 (ceil(d_model / 2),), for k = 0, 1, ...; the first is 1.

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
# ### Exercise 9: One position, number by number
#
# Write `position_vector(position, d_model, base=10000.0)`: the sinusoidal code of one position
# (Vaswani et al., 2017, section 3.5), by a loop over the dimensions and Python's `math`. Even
# dimensions are sines, odd ones cosines, and the two of a pair share their frequency:
#
# $$\text{PE}_{p,\,2i} = \sin(p\,\omega_i),\qquad \text{PE}_{p,\,2i+1} = \cos(p\,\omega_i),\qquad
# \omega_i = \text{base}^{-2i/d_{\text{model}}}$$
#
# * The result is a `list` of `d_model` Python `float`s. An odd width ends with a sine.
# * `ValueError` if `position` is not an `int` or is negative, or if `d_model` is not an `int` or is
#   smaller than 1.
#
# *Example.* `position_vector(1, 4)` is $(\sin 1, \cos 1, \sin 0.01, \cos 0.01) \approx
# (0.8415, 0.5403, 0.0100, 1.0000)$. Position 0 is $(0, 1, 0, 1)$.
#
# Book: section *the sinusoidal code* (`pos-sinusoid`).
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
# ### Exercise 10: All positions at once
#
# Write `sinusoidal_table(length, d_model, base=10000.0)`: row $p$ is the code of position $p$, for
# $p = 0, \dots, \text{length} - 1$, without a loop over the positions. The **interleaved** layout
# of exercise 9: sines in the even columns, cosines in the odd ones.
#
# * The result is `float32` `(length, d_model)`. It must agree with exercise 9 up to $10^{-3}$ at
#   position 5000; angles computed in `float64` are right to seven digits there, `float32` suffices.
# * An odd width ends with a sine column; it has one cosine less than sines.
# * `ValueError` if `length` or `d_model` is smaller than 1, or if `base` is not larger than 1.
#
# *Example.* `sinusoidal_table(2, 3)` is
# $\begin{pmatrix}0&1&0\\0.8415&0.5403&0.0022\end{pmatrix}$, with $\omega_1 = 10000^{-2/3} \approx
# 0.00215$.
#
# Book: section *the sinusoidal code* (`pos-sinusoid`).
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
    # In float64: at position 5000 a frequency rounded to float32 is off by up to 3e-4.
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
# $\tanh(p/100)$, or by a periodic one, such as $\sin(\omega p)$. Explain in a few sentences why
# each of the two fails in long sequences, and how a code of many frequencies avoids both faults
# (the binary code may help you to say it). What does the cosine beside every sine add?
#
# Book: section *candidates* (`pos-candidates`). 3 points, marked by a person.

# %% [markdown] question="why_many_frequencies" points=3 section="pos-candidates" title="Why many frequencies?"
# **Your answer:**
#
# ### BEGIN SOLUTION
# *Bounded and rising:* the differences between neighbours add up to no more than the range of the
# function, so over a long sequence they must shrink towards 0. For $\tanh(p/100)$ they become
# smaller than the spacing of `float32`, and then different positions have the same number. Stretching
# the function over the sequence's length doesn't help: then the same gap is coded differently in
# sequences of different length.
#
# *One periodic function:* it repeats. $\sin(\omega p)$ returns after $2\pi/\omega$ positions,
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
# the same for all positions. With the sine alone $\sin(\omega(p + k))$ is not a linear function of
# $\sin(\omega p)$.
#
# *Marking:* 1 point for the fault of each of the two single functions together (shrinking
# differences; repetition against resolution), 1 for fast and slow frequencies working together, 1
# for the cosine.
# ### END SOLUTION

# %% [markdown]
# ### Exercise 11: The module
#
# Write `PositionalEncoding(d_model, max_length=5000, dropout=0.0)`: it adds to every vector the
# code of its position, then applies dropout (Vaswani et al., 2017, sections 3.5 and 5.4).
#
# $$y_{bt} = \operatorname{dropout}\bigl(x_{bt} + \text{PE}_t\bigr)$$
#
# * The table of exercise 10 (base 10000) is the buffer `table` `(max_length, d_model)`, registered
#   with `persistent=False`: it is no parameter, takes no gradient, moves with the module
#   (`module.to(...)`), and is not saved, so `state_dict()` is empty. There are no parameters.
# * `forward(x)`: `x` `(B, T, D)`; the result has the same shape and type as `x`, whatever the type
#   of the table. Position $t$ is the **second** dimension: every example of the batch gets the same
#   codes.
# * Dropout with probability `dropout` acts on the sum, in train mode only.
# * `ValueError` if `d_model` or `max_length` is smaller than 1 (when the module is created), if `x`
#   is not `d_model` wide, or if $T$ is larger than `max_length`. (Without a check some wrong shapes
#   are broadcast in silence.)
#
# *Example.* For `x` of zeros `(2, 3, 4)` the result in eval mode is, for both examples, the first
# three rows of `sinusoidal_table(5000, 4)`.
#
# Book: section *the module* (`pos-module`).
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
# ### Exercise 12: Half and half
#
# Some programs, the first Transformer's among them, order the columns differently: first all sines,
# then all cosines. Write `half_and_half_table(length, d_model, base=10000.0)`:
#
# $$\text{column } k = \sin(p\,\omega_k),\qquad \text{column } \tfrac{d}{2} + k = \cos(p\,\omega_k),
# \qquad k = 0, \dots, \tfrac{d}{2} - 1$$
#
# * The frequencies are those of exercise 8: $\omega_k = \text{base}^{-2k/d}$.
# * The result is `float32` `(length, d_model)`.
# * `ValueError` if `d_model` is odd or smaller than 2, if `length` is smaller than 1, or if `base`
#   is not larger than 1.
#
# *Example.* `half_and_half_table(2, 4)` is
# $\begin{pmatrix}0&0&1&1\\0.8415&0.0100&0.5403&1.0000\end{pmatrix}$ (the last entry is
# $\cos 0.01 = 0.99995$).
#
# Book: section *two layouts* (`pos-layouts`).
#
# <details><summary>Hint 1</summary>
#
# You have all the columns already: `table[:, 0::2]` are the sines of the interleaved table.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.cat([...], dim=1)` puts tables side by side. Refuse odd widths first; the rest is refused
# by exercise 10.
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
        float32 (length, d_model); column k is sin(p omega_k), column d_model/2 + k is
        cos(p omega_k), with the frequencies of sinusoidal_table.

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
# ### Exercise 13: From one layout to the other
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
# * `ValueError` if `d_model` is odd or smaller than 2.
#
# *Example.* `interleaved_to_half(6)` is $(0, 2, 4, 1, 3, 5)$.
#
# Book: section *two layouts* (`pos-layouts`).
#
# <details><summary>Hint 1</summary>
#
# `t[:, columns]` has in its column `j` the column `columns[j]` of `t`. So ask, for every place of
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
# ### Exercise 14: Moving is rotating
#
# One matrix moves **every** position by the same offset. Write `offset_rotation(offset, d_model,
# base=10000.0)`: the matrix $M$ with
#
# $$\text{PE}_{p + \text{offset}} = M\,\text{PE}_p \qquad\text{for every } p$$
#
# in the interleaved layout. By the angle-addition identities, $\sin(a + b) = \sin a\cos b + \cos
# a\sin b$ and $\cos(a + b) = \cos a\cos b - \sin a\sin b$, every pair (sine, cosine) is turned by
# its own angle $\text{offset}\cdot\omega_k$, so $M$ has these blocks along its diagonal and 0
# elsewhere:
#
# $$\begin{pmatrix}\cos(\text{offset}\,\omega_k) & \sin(\text{offset}\,\omega_k)\\
# -\sin(\text{offset}\,\omega_k) & \cos(\text{offset}\,\omega_k)\end{pmatrix}$$
#
# * The result is `float32` `(d_model, d_model)`; the code is a column on its right, `M @ table[p]`.
# * `offset` may be negative (backwards) or 0 (the identity).
# * `ValueError` if `offset` is not an `int`, if `d_model` is odd or smaller than 2, or if `base` is
#   not larger than 1.
#
# *Example.* `offset_rotation(1, 2)` is
# $\begin{pmatrix}0.5403&0.8415\\-0.8415&0.5403\end{pmatrix}$; times the code $(0, 1)$ of position 0
# it is $(0.8415, 0.5403) = (\sin 1, \cos 1)$.
#
# Book: section *moving is rotating* (`pos-rotation`).
#
# <details><summary>Hint 1</summary>
#
# Frequency $k$ owns the rows and columns $2k$ and $2k + 1$. Start from a matrix of zeros.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A loop over $k$ that fills four entries is fine. Without a loop: with `even = [0, 2, 4, ...]`,
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
        float32 (d_model, d_model) M with table[p + offset] = M @ table[p] for every position p.

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

# %% [markdown]
# ### Exercise 15: Learned positions
#
# BERT and GPT don't compute the code of a position, they learn it: one row of a table per position,
# added to the embedding. Write `LearnedPositions(max_length, d_model)`:
#
# $$y_{bt} = x_{bt} + P_t$$
#
# * Layer: `table = nn.Embedding(max_length, d_model)`. Nothing else, no dropout.
# * `forward(x)`: `x` `(B, T, D)`; the result has the same shape. Position $t$ is the **second**
#   dimension.
# * `ValueError` if `x` is not `d_model` wide, or if $T$ is larger than `max_length`: behind the
#   table there is nothing to add.
#
# *Example.* With the table $\begin{pmatrix}1&2\\3&4\end{pmatrix}$ the sequence $(10, 10), (10, 10)$
# becomes $(11, 12), (13, 14)$, in every example of a batch.
#
# Book: section *learned positions* (`pos-learned`).
#
# <details><summary>Hint 1</summary>
#
# The rows of the table are `self.table.weight`; you need the first $T$.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A sequence of length 1 would be broadcast in silence against more rows, so take exactly as many
# rows as `x` has positions. Both sizes can be read from `self.table`.
#
# </details>


# %% exercise="LearnedPositions" points=2 section="pos-learned"
class LearnedPositions(nn.Module):
    """Add a learned vector per position (Gehring et al. 2017, section 3.1; BERT and GPT).

    Layer: ``table`` = nn.Embedding(max_length, d_model).
    """

    def __init__(self, max_length: int, d_model: int) -> None:
        """Create ``table``."""
        super().__init__()
        ### BEGIN SOLUTION
        self.table = nn.Embedding(max_length, d_model)
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """Add row t of the table to every x[:, t].

        Args:
            x: (B, T, D).

        Returns:
            (B, T, D).

        Raises:
            ValueError: if x is longer than the table, or of another width.
        """
        ### BEGIN SOLUTION
        max_length, d_model = self.table.weight.shape
        if x.shape[-1] != d_model:
            raise ValueError(f"x is {x.shape[-1]} wide, but the position table is {d_model} wide")
        if x.shape[1] > max_length:
            raise ValueError(f"x has {x.shape[1]} positions, but the table ends after {max_length}")
        return x + self.table.weight[: x.shape[1]]  # (B, T, D)
        ### END SOLUTION


# %% check="LearnedPositions" tags=["active-ipynb"]
# check("LearnedPositions")

# %% [markdown]
# ### Question: Does it extrapolate?
#
# A model was trained on sequences of up to 20 tokens and is used on sequences of 40. What happens
# to positions 20 to 39 with a table of learned positions, with the sinusoidal code, and with
# relative positions that are clipped at a maximal distance? Distinguish between *a position has a
# code* and *the model works there*, say what the paper claims for sinusoids, and how you would test
# it.
#
# Book: section *beyond the training length* (`pos-extrapolation`). 3 points, marked by a person.

# %% [markdown] question="does_it_extrapolate" points=3 section="pos-extrapolation" title="Does it extrapolate?"
# **Your answer:**
#
# ### BEGIN SOLUTION
# *Learned positions:* a table of 20 rows has no code for position 20, and the model can't be run. A
# longer table has rows for it, but no training example ever reached them: they still hold their
# random initial values.
#
# *Sinusoids:* the code of every position can be computed, so the model *runs*. But its projections
# were fitted to the codes of positions 0 to 19 only. The slow waves then take values that never
# occurred in training, and nothing forces the learned layers to treat them sensibly. That moving by
# an offset is one rotation makes it *possible* to learn an attention by distance that works
# everywhere; it doesn't make training find it. The paper says no more than that sinusoids *may*
# allow longer sequences. In an experiment with a small encoder that names the token three places
# back, the accuracy falls from 100 percent inside the training length to little more than chance
# behind it, for sinusoids just as for learned positions.
#
# *Clipped relative positions:* the vectors belong to distances, and all distances up to the clip
# occur in training at many positions; greater ones share one vector. So the pair *three places
# back* looks the same at position 35 as at 10, and such a task carries over. It is no guarantee:
# the softmax runs over more keys than ever in training, and beyond the clip distances can't be told
# apart.
#
# *Test:* train on short lengths, evaluate on longer ones from the same source, position by position
# rather than by an average that hides the break, against chance and against the training range.
#
# *Marking:* 1 point for learned positions (no row, or an untrained one), 1 for sinusoids (code
# exists, performance not assured, "may"), 1 for relative positions with their limit and a sound
# test.
# ### END SOLUTION

# %% [markdown]
# ## Relative positions
#
# ### Exercise 16: Which pair has which distance?
#
# Shaw et al. (2018) let attention know how far apart two tokens are, instead of where each of them
# stands. Each distance from $-k$ to $k$ has a learned vector; greater distances share the
# outermost. Write `relative_indices(length, max_distance)`, which says for every pair which vector
# is meant:
#
# $$\text{index}_{ij} = \operatorname{clip}(j - i,\, -k,\, k) + k,\qquad k = \text{max\_distance}$$
#
# * Row $i$ belongs to the query, column $j$ to the key: a key to the *left* of its query has an
#   index below $k$, the query itself has exactly $k$.
# * The result is `int64` `(T, T)` with entries in $0, \dots, 2k$; $k = 0$ gives zeros only.
# * `ValueError` if `length` is smaller than 1, or if `max_distance` is negative.
#
# *Example.* `relative_indices(4, 2)` is
# $\begin{pmatrix}2&3&4&4\\1&2&3&4\\0&1&2&3\\0&0&1&2\end{pmatrix}$.
#
# Book: section *relative positions* (`pos-relative`).
#
# <details><summary>Hint 1</summary>
#
# All differences at once: positions as a row minus positions as a column.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `.clamp(low, high)` clips a tensor. Clip first, then move by $k$.
#
# </details>


# %% exercise="relative_indices" points=2 section="pos-relative"
def relative_indices(length: int, max_distance: int) -> Tensor:
    """Which offset vector belongs to each pair of positions (Shaw et al. 2018, section 3.2).

    Args:
        length: number of positions T, at least 1.
        max_distance: k, at least 0; pairs further apart count as k apart.

    Returns:
        int64 (T, T); entry [i, j] is clip(j - i, -k, k) + k, in 0 .. 2k.

    Raises:
        ValueError: if length is smaller than 1, or max_distance is negative.
    """
    ### BEGIN SOLUTION
    if length < 1:
        raise ValueError(f"length must be at least 1, but is {length}")
    if max_distance < 0:
        raise ValueError(f"max_distance must be at least 0, but is {max_distance}")
    positions = torch.arange(length)  # (T,)
    offsets = positions[None, :] - positions[:, None]  # (T, T), j - i
    return offsets.clamp(-max_distance, max_distance) + max_distance  # (T, T)
    ### END SOLUTION


# %% check="relative_indices" tags=["active-ipynb"]
# check("relative_indices")

# %% [markdown]
# ### Exercise 17: Self-attention with relative positions
#
# Write `RelativeSelfAttention(d_model, num_heads, max_distance)`: multi-head self-attention in
# which every pair of positions adds the vector of its distance to the key, and another one to the
# value (Shaw et al., 2018, section 3.1). With $a_{ij}$ = row `relative_indices(T, max_distance)[i,
# j]` of a table, for every head:
#
# $$e_{ij} = \frac{q_i \cdot (k_j + a^K_{ij})}{\sqrt{D_h}},\qquad
# w_{ij} = \operatorname{softmax}_j(e_{ij}),\qquad
# z_i = \sum_j w_{ij}\,(v_j + a^V_{ij})$$
#
# * Layers, with bias: `q_proj`, `k_proj`, `v_proj`, `out_proj`, each `nn.Linear(d_model, d_model)`.
#   Head $h$ has the features $h D_h$ to $(h + 1) D_h - 1$ of each projection; the heads' results
#   are joined in the same order and go through `out_proj`.
# * Parameters: `key_offsets` ($a^K$) and `value_offsets` ($a^V$), each `(2 * max_distance + 1,
#   d_model // num_heads)`, shared by all heads.
# * `forward(x, mask=None)`: `x` `(B, T, D)`; `mask` bool, broadcastable to `(B, T, T)`, `True` =
#   may attend, the same for all heads.
# * Returns `(output, weights)`: `(B, T, D)` and `(B, H, T, T)`. Weights are exactly 0 where the
#   mask is `False`. A fully masked row has weights 0, its output is the bias of `out_proj`, and its
#   gradients are finite.
# * `ValueError` if `num_heads` doesn't divide `d_model` (when the module is created), if `x` is not
#   `d_model` wide, or if the mask is not bool or not broadcastable to `(B, T, T)`.
#
# *Example.* One head of width 1, $T = 3$, `max_distance` 2, all queries 1, all keys 0, and $a^K =
# (0, \ln 2, 0, 0, 0)$: the key just before its query counts double, wherever it stands. The weights
# are $\begin{pmatrix}1/3&1/3&1/3\\1/2&1/4&1/4\\1/4&1/2&1/4\end{pmatrix}$. With both tables 0 it is
# ordinary multi-head self-attention.
#
# Book: section *relative positions* (`pos-relative`).
#
# <details><summary>Hint 1</summary>
#
# `self.key_offsets[index]` with an index `(T, T)` is `(T, T, Dh)`: the vector of every pair.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Split both sums: $q_i\cdot k_j + q_i\cdot a^K_{ij}$ is a matrix product and
# `torch.einsum("bhid,ijd->bhij", ...)`; the values go the same way with another `einsum`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A softmax over nothing but $-\infty$ is NaN, and so may be its gradient, even where you overwrite
# the value. Fill with the smallest finite number instead, `torch.finfo(scores.dtype).min`, and set
# what is masked to 0 *after* the softmax. Give the mask its head axis: `(B, 1, T, T)`.
#
# </details>


# %% exercise="RelativeSelfAttention" points=5 section="pos-relative"
class RelativeSelfAttention(nn.Module):
    """Multi-head self-attention with relative positions (Shaw et al. 2018, section 3.1).

    Layers, all with bias: ``q_proj``, ``k_proj``, ``v_proj``, ``out_proj``, each d_model ->
    d_model. Parameters shared by the heads: ``key_offsets`` and ``value_offsets``, each
    (2 max_distance + 1, d_model / num_heads).
    """

    def __init__(self, d_model: int, num_heads: int, max_distance: int) -> None:
        """Create the four projections and the two tables of offset vectors.

        Args:
            d_model: width of inputs and outputs.
            num_heads: H, a divisor of d_model.
            max_distance: k, at least 0; pairs further apart count as k apart.

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        ### BEGIN SOLUTION
        if d_model % num_heads != 0:
            raise ValueError(f"d_model={d_model} can't be split into {num_heads} equal heads")
        head_dim = d_model // num_heads
        self.num_heads = num_heads
        self.max_distance = max_distance
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        distances = 2 * max_distance + 1
        self.key_offsets = nn.Parameter(torch.randn(distances, head_dim) / math.sqrt(head_dim))
        self.value_offsets = nn.Parameter(torch.randn(distances, head_dim) / math.sqrt(head_dim))
        ### END SOLUTION

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Let every token attend to every token, aware of how far apart they are.

        Args:
            x: (B, T, D).
            mask: bool, broadcastable to (B, T, T), True = may attend; the same for all heads.

        Returns:
            The output (B, T, D) and the weights (B, H, T, T). A fully masked row has weights 0,
            and its output is the bias of out_proj.

        Raises:
            ValueError: if x is not d_model wide, or the mask is not bool or not broadcastable to
                (B, T, T).
        """
        ### BEGIN SOLUTION
        batch, length, width = x.shape
        if width != self.q_proj.in_features:
            raise ValueError(f"x is {width} wide, but d_model is {self.q_proj.in_features}")
        heads = (batch, length, self.num_heads, -1)
        q = self.q_proj(x).view(heads).transpose(1, 2)  # (B, H, T, Dh)
        k = self.k_proj(x).view(heads).transpose(1, 2)  # (B, H, T, Dh)
        v = self.v_proj(x).view(heads).transpose(1, 2)  # (B, H, T, Dh)
        index = relative_indices(length, self.max_distance).to(x.device)  # (T, T)
        key_offsets = self.key_offsets[index]  # (T, T, Dh)
        value_offsets = self.value_offsets[index]  # (T, T, Dh)

        scores = q @ k.transpose(-2, -1)  # (B, H, T, T)
        scores = scores + torch.einsum("bhid,ijd->bhij", q, key_offsets)  # (B, H, T, T)
        scores = scores / math.sqrt(q.shape[-1])
        if mask is None:
            weights = torch.softmax(scores, dim=-1)  # (B, H, T, T)
        else:
            if mask.dtype != torch.bool:
                raise ValueError(f"mask must be torch.bool, but is {mask.dtype}")
            try:
                hidden = ~mask.broadcast_to(batch, length, length).unsqueeze(1)  # (B, 1, T, T)
            except RuntimeError:
                raise ValueError(
                    f"mask {tuple(mask.shape)} can't be broadcast to {(batch, length, length)}"
                ) from None
            # Not -inf, which would make a fully masked row NaN in value and gradient.
            scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
            weights = torch.softmax(scores, dim=-1).masked_fill(hidden, 0.0)  # (B, H, T, T)

        z = weights @ v  # (B, H, T, Dh)
        z = z + torch.einsum("bhij,ijd->bhid", weights, value_offsets)  # (B, H, T, Dh)
        z = z.transpose(1, 2).reshape(batch, length, width)  # (B, T, D)
        return self.out_proj(z), weights
        ### END SOLUTION


# %% check="RelativeSelfAttention" tags=["active-ipynb"]
# check("RelativeSelfAttention")


# %% tags=["instructor"]
def fast_relative_self_attention(
    module: RelativeSelfAttention, x: Tensor, mask: Tensor | None = None
) -> Tensor:
    """The output of ``module(x, mask)`` without a vector for every pair of positions.

    A query meets only 2k + 1 different offset vectors, so it is multiplied with each of them once,
    and the products are handed out to the pairs. The values go the other way: weights are added up
    per distance before they meet the vectors. (T, T, Dh) shrinks to (B, H, T, 2k + 1).

    Args:
        module: the layers to use.
        x: (B, T, D).
        mask: as for RelativeSelfAttention.

    Returns:
        (B, T, D), the same as the first result of the module.
    """
    batch, length, width = x.shape
    heads = (batch, length, module.num_heads, -1)
    q = module.q_proj(x).view(heads).transpose(1, 2)  # (B, H, T, Dh)
    k = module.k_proj(x).view(heads).transpose(1, 2)  # (B, H, T, Dh)
    v = module.v_proj(x).view(heads).transpose(1, 2)  # (B, H, T, Dh)
    index = relative_indices(length, module.max_distance).to(x.device)  # (T, T)
    index = index.expand(batch, module.num_heads, length, length)  # (B, H, T, T)

    by_distance = q @ module.key_offsets.T  # (B, H, T, 2k+1)
    scores = q @ k.transpose(-2, -1) + by_distance.gather(-1, index)  # (B, H, T, T)
    scores = scores / math.sqrt(q.shape[-1])
    if mask is not None:
        hidden = ~mask.broadcast_to(batch, length, length).unsqueeze(1)  # (B, 1, T, T)
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, dim=-1)  # (B, H, T, T)
    if mask is not None:
        weights = weights.masked_fill(hidden, 0.0)

    per_distance = torch.zeros_like(by_distance).scatter_add(-1, index, weights)  # (B,H,T,2k+1)
    z = weights @ v + per_distance @ module.value_offsets  # (B, H, T, Dh)
    return module.out_proj(z.transpose(1, 2).reshape(batch, length, width))  # (B, T, D)
