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
# # Positions: from text to vectors
#
# At the end of this unit a text is cut into tokens by byte pairs and by WordPiece, and each token
# is a scaled vector.

# %%
"""Byte-pair encoding, WordPiece, scaled embeddings."""

# The options of a cell must stand on one line, however long it gets.

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
# check = checks_for("positional_encoding-tokens")


# %%
def chunks(text: str) -> list[str]:
    """Cut text into words, each with the space before it, and runs of other white space.

    Joined together again, the chunks are the text.
    """
    return re.findall(r" ?[^\s]+|\s+", text)


# %% [markdown]
# ## Tokens: from text to numbers
#
# A model reads numbers. The simplest way to make numbers of text is to take its bytes in UTF-8: 256
# different ids are enough for every language, but sequences get long. *Byte-pair encoding* (BPE)
# shortens them: it starts from bytes and gives a new id to pairs of ids that are often adjacent.
#
# This function is given. It cuts a text into chunks before anything is merged; a word keeps the one
# space before it. Nothing is lost: joined together, the chunks are the text again.


# %% [markdown]
# ### Exercise 1: Merge a pair
#
# Write `merge_pair(ids, pair, new_id)`, the one operation of BPE: wherever the two ids of `pair`
# are adjacent, in this order, they are replaced by `new_id`.
#
# * `ids` is a `list` of `int`s of any length, `pair` a `tuple` of two ids, `new_id` an `int`; the
#   result is a new `list`, and `ids` stays as it is. <!-- id: new-list -->
# * Replacement runs from left to right, and occurrences don't overlap: an id that was used for one
#   replacement is not there for the next. <!-- id: left-to-right -->
#
# *Example.* `merge_pair([97, 97, 97], (97, 97), 256)` is `[256, 97]`: the middle 97 belongs to the
# first pair.
#
# Book: `pos-tokens`.
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
#    255. **No merge crosses the border of a chunk.** <!-- id: within-chunks -->
# 2. Count for every pair of neighbouring ids how often it occurs, over all chunks; a chunk
#    counts as often as it occurs in the text. Overlapping occurrences all count: in
#    `[97, 97, 97]` the pair `(97, 97)` occurs twice. <!-- id: counts -->
# 3. The most frequent pair is the next merge. **On a tie the smaller pair wins**, compared as
#    tuples: <!-- id: ties --> `(32, 97)` before `(97, 32)`.
# 4. Merge number $m$ (counted from 0) makes the id $256 + m$. Replace it in all chunks and go on at
#    step 2, until there are `num_merges` merges or no pair is left. <!-- id: until-none-is-left -->
#
# * The result is the `list` of merged pairs, `tuple`s of two `int`s, in the order in which they
#   were learned. <!-- id: merges-in-order -->
#   It is shorter than `num_merges` if no pair is left; an empty text gives `[]`.
# * `ValueError` if `num_merges` is negative; 0 gives `[]`. <!-- id: negative-number -->
#
# *Example.* `train_bpe("low low lower", 3)` is `[(108, 111), (256, 119), (32, 257)]`: *l o*, then
# *lo w*, then *space low*. In the first step *l o* and *o w* occur three times each, and
# $(108, 111) < (111, 119)$.
#
# Book: `pos-bpe`.
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
# right. <!-- id: earliest-first -->
#
# * `merges` is the result of `train_bpe`; pair number $m$ makes the id $256 + m$.
#   <!-- id: new-ids -->
# * The result is one flat `list` of `int`s: the ids of all chunks, one chunk after the other. An
#   empty text gives `[]`. <!-- id: one-flat-list -->
#
# The order matters: longest piece first, or the pair that stands first, gives other ids than the
# model was trained on.
#
# *Example.* With the merges of exercise 2's example, `bpe_encode("slow low", merges)` is
# `[115, 257, 258]`: *s*, *low*, *space low*.
#
# Book: `pos-bpe`.
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
# bytes of all ids, **then** read them as UTF-8, with `errors="replace"`. <!-- id: bytes-first -->
#
# * The result is a `str`. `bpe_decode(bpe_encode(text, merges), merges) == text` for every text,
#   emoji and unknown scripts included: bytes leave nothing out. <!-- id: round-trip -->
#   (A lone surrogate, half of a UTF-16
#   pair, is not text; Python already refuses to encode it.)
# * Ids that don't form valid UTF-8, as a model may produce, give the replacement character `�`
#   where the text is damaged, no error. <!-- id: damaged-text -->
# * `ValueError` if an id is negative or larger than `255 + len(merges)`. <!-- id: unknown-id -->
#   (Python would count
#   negative ones from the end of a list.)
#
# *Example.* `bpe_decode([195, 169], [])` is `"é"`, and `bpe_decode([195], [])` is `"�"`. With the
# merges of exercise 2's example, `bpe_decode([258, 101], merges)` is `" lowe"`.
#
# Book: `pos-bpe`.
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
        The bytes of all ids joined, then read as UTF-8; bytes that are not UTF-8 become U+FFFD.

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
#   <!-- id: longest-first -->
# * There is no going back: if some rest begins with no piece, the **whole word** is `[unknown]`,
#   one token, even if its beginning was found or another cut would have worked.
#   <!-- id: whole-word-unknown -->
# * A word longer than `max_chars` characters is `[unknown]` without being tried.
#   <!-- id: too-long -->
# * The result is a `list` of `str`, the pieces as they stand in the vocabulary, with their prefix.
#   <!-- id: pieces -->
# * `ValueError` if `word` is empty. <!-- id: empty-word -->
#
# *Example.* With the vocabulary `["un", "una", "##aff", "##able", "##ffable"]` the word *unaffable*
# is `["una", "##ffable"]`. Without *una* in it, it is `["un", "##aff", "##able"]`; with *una* but
# without *##ffable* it is `["[UNK]"]`.
#
# Book: `pos-wordpiece`.
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
# Write `TokenEmbedding(vocab_size, d_model)`: a learned embedding matrix with one row per
# token, whose rows are multiplied by $\sqrt{d_{\text{model}}}$ (Vaswani et al., 2017, section 3.4):
#
# $$x_{bt} = \sqrt{D}\; E_{\text{ids}_{bt}}$$
#
# <!-- id: scaled-rows -->
#
# * Layer: `table = nn.Embedding(vocab_size, d_model)`. Nothing else. <!-- id: layer -->
# * `forward(ids)`: `ids` `(B, T)` integers; the result is `(B, T, D)`.
# * `ValueError` if `vocab_size` or `d_model` is smaller than 1, when the module is made.
#   <!-- id: bad-sizes -->
# * `ValueError` if `ids` is not of an integer type (floating point and bool are refused), if it is
#   empty ($B = 0$ or $T = 0$), or if an id is negative or at least `vocab_size`.
#   <!-- id: bad-ids -->
#
# *Example.* With $D = 4$ and the row $(0.5, 0, -1, 2)$ for id 7, `ids` $= [[7]]$ gives
# $(1, 0, -2, 4)$.
#
# Book: `pos-embedding`.
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
