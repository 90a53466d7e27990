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
# # BERT: fine-tuning
#
# At the end of this unit BERT classifies texts, finds answers in them and tags their words, with
# a conditional random field too.

# %%
"""Heads for fine-tuning: classes, spans, tags, and a conditional random field."""

# The options of a cell must stand on one line, however long it gets.

# %%
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from solutions.bert.model import BertModel, init_weights
from solutions.bert.pretraining import IGNORE

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("bert-fine_tuning")

# %% [markdown]
# ## Fine-tuning
#
# ### Exercise 1: A label for an input
#
# Write `SequenceClassifier(bert, num_labels, dropout=0.1)`: the head for a single sentence (is this
# review good?) and, with the segments set, for a pair (does the first entail the second?).
#
# $$\text{scores} = W\,\operatorname{dropout}(\text{pooled}) + b$$
#
# <!-- id: scores -->
#
# * Submodules: `bert`, the `BertModel` that is given (the very same, so that fine-tuning trains it
#   too); <!-- id: the-very-bert -->
#   `classifier`, an `nn.Linear` from $D$ to `num_labels`, with bias. <!-- id: classifier -->
# * `forward(input_ids, token_type_ids=None, mask=None)`: each `(B, T)`; the result is `(B, L)`,
#   scores before any softmax.
# * `loss(scores, labels)`: `(B, L)` and `(B,)` `torch.int64`; the mean cross-entropy, a scalar.
#   <!-- id: loss -->
#
# *Example.* For a batch of 2 and 3 labels the scores are `(2, 3)`. If they are all 0, the loss is
# $\log 3 \approx 1.099$.
#
# Book: `brt-single`.
#
# <details><summary>Hint 1</summary>
#
# $D$ can be read off the model's parameters, for example `bert.pooler.in_features`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The model returns `(hidden, pooled)`. This head needs the second, which has one vector for the
# whole input.
#
# </details>


# %% exercise="SequenceClassifier" points=2 section="brt-single"
class SequenceClassifier(nn.Module):
    """One label for a whole input, a sentence or a pair (Devlin et al. 2019, section 4.1).

    Submodules: ``bert`` = the encoder that is given, ``classifier`` = nn.Linear(D, num_labels).
    """

    def __init__(self, bert: BertModel, num_labels: int, dropout: float = 0.1) -> None:
        """Keep the encoder and create ``classifier``.

        Args:
            bert: a BertModel.
            num_labels: L.
            dropout: acts on the pooled vector, in training mode.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.bert = bert
        self.classifier = init_weights(nn.Linear(bert.pooler.in_features, num_labels))
        self.dropout = nn.Dropout(dropout)
        ### END SOLUTION

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Score the labels.

        Args:
            input_ids: (B, T) int64.
            token_type_ids: (B, T) int64; None: segment 0 everywhere.
            mask: (B, T) bool, True where a real token stands. None: everywhere.

        Returns:
            (B, L), classifier(dropout(pooled)).
        """
        ### BEGIN SOLUTION
        _, pooled = self.bert(input_ids, token_type_ids, mask)  # (B, D)
        return self.classifier(self.dropout(pooled))  # (B, L)
        ### END SOLUTION

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy.

        Args:
            scores: (B, L), from ``forward``.
            labels: (B,) int64.

        Returns:
            A scalar.
        """
        ### BEGIN SOLUTION
        return F.cross_entropy(scores, labels)  # scalar
        ### END SOLUTION


# %% check="SequenceClassifier" tags=["active-ipynb"]
# check("SequenceClassifier")


# %% tags=["instructor"]
class MultipleChoice(nn.Module):
    """One score for each of several inputs, the answers to one question (Devlin et al. 2019, 4.4).

    Submodules: ``bert`` = the encoder that is given, ``classifier`` = nn.Linear(D, 1).
    """

    def __init__(self, bert: BertModel, dropout: float = 0.1) -> None:
        """Keep the encoder and create ``classifier``."""
        super().__init__()
        self.bert = bert
        self.classifier = init_weights(nn.Linear(bert.pooler.in_features, 1))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """input_ids, token_type_ids, mask (B, C, T), a row for each choice -> scores (B, C)."""
        batch, choices, _ = input_ids.shape
        token_type_ids = None if token_type_ids is None else token_type_ids.flatten(0, 1)  # (B C,T)
        mask = None if mask is None else mask.flatten(0, 1)  # (B C, T)
        _, pooled = self.bert(input_ids.flatten(0, 1), token_type_ids, mask)  # (B C, D)
        return self.classifier(self.dropout(pooled)).reshape(batch, choices)  # (B, C)

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy of scores (B, C) over the choices; labels (B,) int64."""
        return F.cross_entropy(scores, labels)  # scalar


# %% [markdown]
# ### Exercise 2: Where is the answer?
#
# The input is a question and a passage, and the answer stands in the passage, word for word. Write
# `SpanFinder(bert)`: every position gets a score as the start of the answer and one as its end.
#
# * Submodules: `bert`, the model that is given; <!-- id: the-very-bert -->
#   `classifier`, an `nn.Linear` from $D$ to 2, with
#   bias, on `hidden`. Its first output is for the start, the second for the end.
#   <!-- id: start-and-end -->
# * `forward(input_ids, token_type_ids=None, mask=None)`: returns `(start, end)`, each `(B, T)`.
#   Where a mask is given and `False`, both are the smallest finite number of their type,
#   `torch.finfo(dtype).min`. <!-- id: padding -->
# * `loss(start, end, starts, ends)`: `starts` and `ends` `(B,)` `torch.int64` are the right
#   positions. Each half is a mean cross-entropy over the **positions**: the softmax runs along $T$.
#   The result is half the sum of the two. <!-- id: loss -->
# * A right position outside $0 \dots T - 1$ (the answer was cut off, or there is none) is left out
#   of its mean. A mean over nothing is 0. <!-- id: cut-off -->
#
# *Example.* $T = 4$ and all scores 0. With `starts = [1]`, `ends = [2]` the loss is
# $\log 4 \approx 1.386$; with `ends = [7]` it is half of that, $0.693$.
#
# Book: `brt-span`.
#
# <details><summary>Hint 1</summary>
#
# The classifier makes `(B, T, 2)`. `unbind(dim=-1)` takes the last axis apart.
#
# </details>
# <details><summary>Hint 2</summary>
#
# For `F.cross_entropy` the positions are the classes: the scores `(B, T)` have $T$ of them.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Put `IGNORE` in place of targets outside, negative ones too, and divide the sum by the number of
# those inside, or by 1.
#
# </details>


# %% exercise="SpanFinder" points=3 section="brt-span"
class SpanFinder(nn.Module):
    """Where an answer begins and ends in the input (Devlin et al. 2019, section 4.2).

    Submodules: ``bert`` = the encoder that is given, ``classifier`` = nn.Linear(D, 2), whose first
    output is for the start, the second for the end.
    """

    def __init__(self, bert: BertModel) -> None:
        """Keep the encoder and create ``classifier``.

        Args:
            bert: a BertModel.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.bert = bert
        self.classifier = init_weights(nn.Linear(bert.pooler.in_features, 2))
        ### END SOLUTION

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The logits of every position as start and as end.

        Args:
            input_ids: (B, T) int64.
            token_type_ids: (B, T) int64; None: segment 0 everywhere.
            mask: (B, T) bool, True where a real token stands. None: everywhere.

        Returns:
            start (B, T) and end (B, T); at padding both are the smallest finite number of their
            type.
        """
        ### BEGIN SOLUTION
        hidden, _ = self.bert(input_ids, token_type_ids, mask)  # (B, T, D)
        scores = self.classifier(hidden)  # (B, T, 2)
        if mask is not None:
            scores = scores.masked_fill(~mask.unsqueeze(-1), torch.finfo(scores.dtype).min)
        start, end = scores.unbind(dim=-1)  # (B, T) each
        return start, end
        ### END SOLUTION

    def loss(self, start: Tensor, end: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
        """The mean of both cross-entropies over the positions.

        Args:
            start: (B, T), from ``forward``.
            end: (B, T), from ``forward``.
            starts: (B,) int64, the right position; one outside 0 .. T - 1 is left out.
            ends: (B,) int64, likewise.

        Returns:
            A scalar: half the sum of the two means; a mean over nothing is 0.
        """
        ### BEGIN SOLUTION
        halves = []
        for scores, positions in ((start, starts), (end, ends)):
            inside = (positions >= 0) & (positions < scores.shape[1])  # (B,)
            targets = positions.masked_fill(~inside, IGNORE)  # (B,)
            total = F.cross_entropy(scores, targets, ignore_index=IGNORE, reduction="sum")
            halves.append(0.5 * total / inside.sum().clamp(min=1))
        return halves[0] + halves[1]  # scalar
        ### END SOLUTION


# %% check="SpanFinder" tags=["active-ipynb"]
# check("SpanFinder")

# %% [markdown]
# ### Exercise 3: The best span
#
# Taking the best start and the best end separately may give an end before its start. Write
# `best_span(start, end, passage, max_answer=30, null_threshold=None)`, which finds the best answer
# that is one:
#
# $$(\hat\imath, \hat\jmath) = \operatorname*{arg\,max}_{i \,\le\, j \,<\, i + \text{max\_answer}}
# \bigl(\text{start}_i + \text{end}_j\bigr)$$
#
# <!-- id: best-pair -->
#
# * `start`, `end` `(T,)`: the scores of one input. `passage` `(T,)` bool: `True` where an answer
#   may begin and end; $i$ and $j$ must both be such positions. <!-- id: in-the-passage -->
# * Returns `(i, j)`, two `int`s. Of equally good ones it is that with the smallest $i$, then the
#   smallest $j$. <!-- id: ties -->
# * With `null_threshold`, a number $\tau$, there may be no answer. Its score is that of `CLS`,
#   $\text{start}_0 + \text{end}_0$, and it wins if it exceeds the best answer's by **more than**
#   $\tau$. Then the result is `(0, 0)`. With `None` there always is an answer.
#   <!-- id: no-answer -->
# * `ValueError` if `passage` holds no `True`, or if `max_answer` is smaller than 1.
#   <!-- id: bad-input -->
#
# *Example.* `start = [0, 1, 3]`, `end = [0, 3, 2]`, all positions allowed. Separately the best
# start is 2 and the best end 1; the best span is `(2, 2)` with 5. With `max_answer=30` and a
# `passage` that allows only positions 0 and 1 it is `(1, 1)` with 4.
#
# Book: `brt-span`.
#
# <details><summary>Hint 1</summary>
#
# Two loops are fine: for every $i$, all $j$ from $i$ to $i + \text{max\_answer} - 1$ that exist.
# Keep the best so far.
#
# </details>
# <details><summary>Hint 2</summary>
#
# To keep the first of equal ones, replace the best only by something strictly better.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Without loops: `start.unsqueeze(1) + end` is a matrix `(T, T)` of all sums. Mark the allowed
# entries in a bool matrix of the same shape, and take the best among these.
#
# </details>


# %% exercise="best_span" points=4 section="brt-span"
def best_span(
    start: Tensor,
    end: Tensor,
    passage: Tensor,
    max_answer: int = 30,
    null_threshold: float | None = None,
) -> tuple[int, int]:
    """The best answer that is one (Devlin et al. 2019, sections 4.2 and 4.3).

    Args:
        start: (T,), the scores of the positions as start.
        end: (T,), the scores of the positions as end.
        passage: (T,) bool, True where an answer may begin and end.
        max_answer: the most tokens of an answer, at least 1.
        null_threshold: by how much "no answer", start[0] + end[0], must be better than the best
            answer to win; None: there always is an answer.

    Returns:
        (i, j) with the largest start[i] + end[j] among i <= j < i + max_answer, both in the
        passage; of equal ones that with the smallest i, then the smallest j. Or (0, 0): no answer.

    Raises:
        ValueError: if passage holds no True, or max_answer < 1.
    """
    ### BEGIN SOLUTION
    if max_answer < 1:
        raise ValueError(f"max_answer must be at least 1, but is {max_answer}")
    if not passage.any():
        raise ValueError("the passage is empty; there is no position for an answer")
    positions = torch.arange(len(start), device=start.device)  # (T,)
    length = positions - positions.unsqueeze(1) + 1  # (T, T), from row to column
    allowed = passage.unsqueeze(1) & passage & (length >= 1) & (length <= max_answer)  # (T, T)
    i, j = allowed.nonzero(as_tuple=True)  # in the order of i, then j
    totals = start[i] + end[j]
    best = int(totals.argmax())  # the first of equal ones
    if null_threshold is not None and start[0] + end[0] - totals[best] > null_threshold:
        return 0, 0
    return int(i[best]), int(j[best])
    ### END SOLUTION


# %% check="best_span" tags=["active-ipynb"]
# check("best_span")

# %% [markdown]
# ### Exercise 4: Labels for pieces
#
# Tagging gives every **word** a label, but the model reads pieces of words. Only the first piece of
# each word carries the label. Write `align_labels(word_labels, word_ids)`.
#
# * `word_labels`: list of the words' labels. `word_ids`: for each token the number of its word,
#   from 0, or `None` for a special token.
# * The result is a list as long as `word_ids`: the word's label at its first token, `IGNORE` at its
#   later ones and at special tokens. <!-- id: first-piece -->
# * `ValueError` if a word has no label: if its number is negative, or not smaller than the number
#   of labels. <!-- id: no-label -->
#
# *Example.* `align_labels([1, 0], [None, 0, 0, 1, None])` is `[-100, 1, -100, 0, -100]`.
#
# Book: `brt-tagging`.
#
# <details><summary>Hint 1</summary>
#
# A token is its word's first if the word has not occurred before it.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Word 0 is a word: ask for `word is None`, not for `not word`. And a list takes negative indices
# without complaint.
#
# </details>


# %% exercise="align_labels" points=2 section="brt-tagging"
def align_labels(word_labels: list[int], word_ids: list[int | None]) -> list[int]:
    """From a label for each word to one for each token (Devlin et al. 2019, section 5.3).

    Args:
        word_labels: the label of each word.
        word_ids: for each token the number of its word, from 0, or None for a special token.

    Returns:
        For each token the label of its word if it is the word's first token, else IGNORE.

    Raises:
        ValueError: if a word has no label.
    """
    ### BEGIN SOLUTION
    labels, seen = [], set()
    for word in word_ids:
        if word is not None and not 0 <= word < len(word_labels):
            raise ValueError(f"word {word} has no label; there are {len(word_labels)}")
        labels.append(IGNORE if word is None or word in seen else word_labels[word])
        seen.add(word)
    return labels
    ### END SOLUTION


# %% check="align_labels" tags=["active-ipynb"]
# check("align_labels")

# %% [markdown]
# ### Exercise 5: A label for every token
#
# Write `Tagger(bert, num_labels, dropout=0.1)`.
#
# * Submodules: `bert`, the model that is given; <!-- id: the-very-bert -->
#   `classifier`, an `nn.Linear` from $D$ to
#   `num_labels`, with bias, on dropout of `hidden`. <!-- id: classifier -->
# * `forward(input_ids, token_type_ids=None, mask=None)`: each `(B, T)`; the result is `(B, T, L)`.
#   <!-- id: scores -->
# * `loss(scores, labels)`: `(B, T, L)` and `(B, T)` `torch.int64`; the mean cross-entropy over the
#   positions of the batch whose label is not `IGNORE`. The softmax runs over the labels. If there
#   is no such position the loss is 0. <!-- id: loss -->
#
# *Example.* All scores 0, three labels, and labels `[[-100, 2, -100, 0, -100]]`: the loss is
# $\log 3 \approx 1.099$, whatever the number of positions left out.
#
# Book: `brt-tagging`.
#
# <details><summary>Hint 1</summary>
#
# It is the masked language model's loss with labels for tokens: flatten batch and positions
# together.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A batch may hold no label at all (after cutting). Then a mean would be $0/0$.
#
# </details>


# %% exercise="Tagger" points=2 section="brt-tagging"
class Tagger(nn.Module):
    """A label for every token (Devlin et al. 2019, section 5.3).

    Submodules: ``bert`` = the encoder that is given, ``classifier`` = nn.Linear(D, num_labels).
    """

    def __init__(self, bert: BertModel, num_labels: int, dropout: float = 0.1) -> None:
        """Keep the encoder and create ``classifier``.

        Args:
            bert: a BertModel.
            num_labels: L.
            dropout: acts on the hidden vectors, in training mode.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.bert = bert
        self.classifier = init_weights(nn.Linear(bert.pooler.in_features, num_labels))
        self.dropout = nn.Dropout(dropout)
        ### END SOLUTION

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Score the labels of every token.

        Args:
            input_ids: (B, T) int64.
            token_type_ids: (B, T) int64; None: segment 0 everywhere.
            mask: (B, T) bool, True where a real token stands. None: everywhere.

        Returns:
            (B, T, L), classifier(dropout(hidden)).
        """
        ### BEGIN SOLUTION
        hidden, _ = self.bert(input_ids, token_type_ids, mask)  # (B, T, D)
        return self.classifier(self.dropout(hidden))  # (B, T, L)
        ### END SOLUTION

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy over the tokens that have a label.

        Args:
            scores: (B, T, L), from ``forward``.
            labels: (B, T) int64, or IGNORE.

        Returns:
            A scalar; 0 if no token has a label.
        """
        ### BEGIN SOLUTION
        total = F.cross_entropy(
            scores.flatten(0, 1),  # (B T, L)
            labels.flatten(),  # (B T,)
            ignore_index=IGNORE,
            reduction="sum",
        )  # scalar
        return total / (labels != IGNORE).sum().clamp(min=1)  # scalar
        ### END SOLUTION


# %% check="Tagger" tags=["active-ipynb"]
# check("Tagger")

# %% [markdown]
# ### Exercise 6: Labels for words
#
# The way back: write `word_tags(scores, word_ids)`.
#
# * `scores` `(T, L)`, of one input; `word_ids` as in exercise 4, one for each token.
# * The result is a list with one label for each word, in the order in which the words occur: the
#   one with the largest score **at its first token**. <!-- id: first-token -->
#
# *Example.* If the best labels of four tokens are 2, 1, 0 and 1, and `word_ids` is
# `[None, 0, 0, 1]`, the result is `[1, 1]`.
#
# Book: `brt-tagging`.
#
# <details><summary>Hint 1</summary>
#
# `scores.argmax(dim=-1).tolist()` is the best label of each token.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `dict.setdefault(word, label)` keeps what was there first, and a `dict` keeps the order.
#
# </details>


# %% exercise="word_tags" points=1 section="brt-tagging"
def word_tags(scores: Tensor, word_ids: list[int | None]) -> list[int]:
    """From scores for every token to one label for each word (Devlin et al. 2019, section 5.3).

    Args:
        scores: (T, L), of one input.
        word_ids: for each token the number of its word, or None for a special token.

    Returns:
        The label with the largest score at the first token of each word, in the order of the words.
    """
    ### BEGIN SOLUTION
    best = scores.argmax(dim=-1).tolist()  # T labels
    tags = {}
    for word, label in zip(word_ids, best, strict=True):
        if word is not None:
            tags.setdefault(word, label)  # what the first token says stays
    return list(tags.values())
    ### END SOLUTION


# %% check="word_tags" tags=["active-ipynb"]
# check("word_tags")

# %% [markdown]
# ## A conditional random field
#
# A tagger decides at every token for itself, so nothing keeps it from tags that can't follow each
# other. A *conditional random field* (CRF) scores the whole sequence of tags $y$ at once. It gets
# *emissions* $e$, a score of each tag at each token, and learns *transitions* $A$, a score of each
# pair of neighbours, and scores of the first and of the last tag:
#
# $$s(y) = \text{start}_{y_1} + \sum_{t=1}^{n} e_{t, y_t} + \sum_{t=2}^{n} A_{y_{t-1},\, y_t}
# + \text{end}_{y_n},\qquad p(y) = \frac{e^{s(y)}}{\sum_{y'} e^{s(y')}}$$
#
# The next three exercises compute $s(y)$, the logarithm of the denominator, and the best $y$.
#
# ### Exercise 7: The score of a sequence
#
# Write `crf_score(emissions, tags, mask, transitions, start, end)`: $s(y)$ for each row.
#
# * `emissions` `(B, T, L)`; `tags` `(B, T)` `torch.int64`; `mask` `(B, T)` bool, padding on the
#   right and at least one real token in each row. $n$ is the row's number of real tokens.
#   <!-- id: real-tokens -->
# * `transitions` `(L, L)`: the row is the tag before, the column the tag after.
#   <!-- id: row-to-column --> `start`, `end`
#   `(L,)`.
# * The result is `(B,)`. Emissions and tags at padding must not matter; the tags there may be
#   anything, also `IGNORE`. <!-- id: padding -->
#
# *Example.* Two tokens and two tags with emissions $\begin{pmatrix}1&0\\0&2\end{pmatrix}$,
# transitions $\begin{pmatrix}0.5&-1\\0&1\end{pmatrix}$, `start` and `end` 0. The tags $0, 1$ have
# $1 + 2 - 1 = 2$, and the tags $1, 1$ have $0 + 2 + 1 = 3$.
#
# Book: `brt-crf`.
#
# <details><summary>Hint 1</summary>
#
# Put a harmless tag, such as 0, at padding first: −100 can't be looked up.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `transitions[tags[:, :-1], tags[:, 1:]]` is `(B, T - 1)`: all neighbours at once. A pair counts if
# its **right** token is real.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The last real token of a row stands at `mask.sum(dim=1) - 1`, not at the end of the row.
#
# </details>


# %% exercise="crf_score" points=2 section="brt-crf"
def crf_score(
    emissions: Tensor, tags: Tensor, mask: Tensor, transitions: Tensor, start: Tensor, end: Tensor
) -> Tensor:
    """The score of a sequence of tags (Lample et al. 2016, section 2.2).

    Args:
        emissions: (B, T, L).
        tags: (B, T) int64; at padding they may be anything.
        mask: (B, T) bool, True where a real token stands; each row has one, and padding only after
            its last one.
        transitions: (L, L), from the tag of the row to that of the column.
        start: (L,), of the first tag.
        end: (L,), of the last tag.

    Returns:
        (B,): start, emissions and transitions of the real tokens, and end, all added up.
    """
    ### BEGIN SOLUTION
    tags = tags.masked_fill(~mask, 0)  # (B, T), so that padding can be looked up too
    emitted = emissions.gather(2, tags.unsqueeze(2)).squeeze(2)  # (B, T)
    moved = transitions[tags[:, :-1], tags[:, 1:]]  # (B, T - 1)
    last = tags.gather(1, mask.sum(dim=1, keepdim=True) - 1).squeeze(1)  # (B,)
    inside = emitted.masked_fill(~mask, 0.0).sum(dim=1)  # (B,)
    between = moved.masked_fill(~mask[:, 1:], 0.0).sum(dim=1)  # (B,)
    return start[tags[:, 0]] + inside + between + end[last]  # (B,)
    ### END SOLUTION


# %% check="crf_score" tags=["active-ipynb"]
# check("crf_score")

# %% [markdown]
# ### Exercise 8: The sum over all sequences
#
# Write `crf_partition(emissions, mask, transitions, start, end)`:
#
# $$\log Z = \log \sum_{y} e^{s(y)}$$
#
# There are $L^n$ sequences, but the sum can be taken token by token (the *forward algorithm*). Let
# $a_t(y)$ be the logarithm of the sum over all beginnings of length $t$ that end with the tag $y$:
#
# $$a_1(y) = \text{start}_y + e_{1,y},\qquad
# a_t(y) = e_{t,y} + \log \sum_{y'} e^{a_{t-1}(y') + A_{y',y}},\qquad
# \log Z = \log \sum_y e^{a_n(y) + \text{end}_y}$$
#
# <!-- id: log-sum -->
#
# * The arguments are those of exercise 7. The result is `(B,)`.
# * It is exact for scores of $\pm 1000$ too: nothing may overflow. <!-- id: stable -->
# * It is differentiable. <!-- id: gradients -->
#   (The gradient with respect to the emissions is the probability of each tag
#   at each token.)
# * Padding must not matter. <!-- id: padding -->
#
# *Example.* In the example of exercise 7 the four sequences have the scores 1.5, 2, 0 and
# 3, so $\log Z = \log(e^{1.5} + e^2 + e^0 + e^3) \approx 3.495$.
#
# Book: `brt-crf`.
#
# <details><summary>Hint 1</summary>
#
# `a.unsqueeze(2) + transitions` is `(B, L, L)`: the axis in the middle is the tag before, and it is
# the one over which is summed.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.logsumexp(x, dim)` takes the largest entry out before it computes any power.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A row that has ended keeps its $a$: `torch.where(mask[:, t:t+1], new, old)`.
#
# </details>


# %% exercise="crf_partition" points=3 section="brt-crf"
def crf_partition(
    emissions: Tensor, mask: Tensor, transitions: Tensor, start: Tensor, end: Tensor
) -> Tensor:
    """The log of the sum over all sequences of tags (forward algorithm; Lafferty et al. 2001).

    Args:
        emissions: (B, T, L).
        mask: (B, T) bool, as for ``crf_score``.
        transitions: (L, L), from row to column.
        start: (L,).
        end: (L,).

    Returns:
        (B,): log of the sum of exp(score) over all L^(length of the row) sequences.
    """
    ### BEGIN SOLUTION
    # sums[b, y]: log of the sum over all beginnings that end with the tag y.
    sums = start + emissions[:, 0]  # (B, L)
    for t in range(1, emissions.shape[1]):
        ways = sums.unsqueeze(2) + transitions  # (B, L before, L now)
        longer = torch.logsumexp(ways, dim=1) + emissions[:, t]  # (B, L)
        sums = torch.where(mask[:, t : t + 1], longer, sums)  # (B, L), as it is at padding
    return torch.logsumexp(sums + end, dim=1)  # (B,)
    ### END SOLUTION


# %% check="crf_partition" tags=["active-ipynb"]
# check("crf_partition")

# %% [markdown]
# ### Exercise 9: The best sequence
#
# Write `viterbi(emissions, mask, transitions, start, end)`: the sequence with the largest score. It
# is the forward algorithm with a maximum in place of the sum, and a note at each token from where
# the maximum came.
#
# * The arguments are those of exercise 7.
# * Returns `(paths, scores)`: `paths` is a list of `B` lists of `int`, each with the tags of the
#   row's real tokens and no more; <!-- id: paths -->
#   `scores` `(B,)` are the scores of these sequences. <!-- id: scores --> Of equally
#   good sequences any will do. <!-- id: ties -->
#
# *Example.* In the example of exercise 7 the best sequence is $1, 1$ with 3, although the
# best tag of the first token, seen alone, is 0.
#
# Book: `brt-viterbi`.
#
# <details><summary>Hint 1</summary>
#
# `x.max(dim=1)` returns the largest values and their indices: the score, and the tag before.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Go back from the best last tag. Each step looks up, in the note for its token, the tag before; at
# the end the list is the wrong way round.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Rows of different length: the running scores of a row stay as they are after its end, and its way
# back begins at its own last token.
#
# </details>


# %% exercise="viterbi" points=3 section="brt-viterbi"
def viterbi(
    emissions: Tensor, mask: Tensor, transitions: Tensor, start: Tensor, end: Tensor
) -> tuple[list[list[int]], Tensor]:
    """The sequences of tags with the largest score (Viterbi 1967; Lample et al. 2016, 2.2).

    Args:
        emissions: (B, T, L).
        mask: (B, T) bool, as for ``crf_score``.
        transitions: (L, L), from row to column.
        start: (L,).
        end: (L,).

    Returns:
        For each row the best tags of its real tokens, and the scores (B,) of these sequences. Of
        equally good ones any.
    """
    ### BEGIN SOLUTION
    best = start + emissions[:, 0]  # (B, L), of all beginnings that end with each tag
    before = []  # for each position t > 0: (B, L), the tag at t - 1 of the best beginning
    for t in range(1, emissions.shape[1]):
        ways = best.unsqueeze(2) + transitions  # (B, L before, L now)
        longer, tag = ways.max(dim=1)  # (B, L), (B, L)
        best = torch.where(mask[:, t : t + 1], longer + emissions[:, t], best)  # (B, L)
        before.append(tag)
    scores, last = (best + end).max(dim=1)  # (B,), (B,)
    paths = []
    for row, length in enumerate(mask.sum(dim=1).tolist()):
        path = [int(last[row])]
        for tag in reversed(before[: length - 1]):
            path.append(int(tag[row, path[-1]]))
        paths.append(path[::-1])
    return paths, scores
    ### END SOLUTION


# %% check="viterbi" tags=["active-ipynb"]
# check("viterbi")

# %% [markdown]
# The next cell hands you `CRF(num_tags)`, which keeps `transitions`, `start` and `end` as
# parameters and calls your functions. It works on emissions of any origin:
# `loss(emissions, tags, mask)` is the mean of $-\log p(y) = \log Z - s(y)$ over the batch, and
# `decode(emissions, mask)` gives the best tags.


# %% tags=["given"]
class CRF(nn.Module):
    """A conditional random field on emissions of any origin (Lample et al. 2016, section 2.2).

    Parameters: ``transitions`` (L, L), from row to column; ``start`` (L,); ``end`` (L,).
    """

    def __init__(self, num_tags: int) -> None:
        """Draw all parameters from N(0, 0.1^2)."""
        super().__init__()
        self.transitions = nn.Parameter(0.1 * torch.randn(num_tags, num_tags))
        self.start = nn.Parameter(0.1 * torch.randn(num_tags))
        self.end = nn.Parameter(0.1 * torch.randn(num_tags))

    def loss(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """The mean of -log p(tags) over the batch: (B, T, L), (B, T), (B, T) -> scalar."""
        scores = (self.transitions, self.start, self.end)
        total = crf_partition(emissions, mask, *scores)  # (B,)
        return (total - crf_score(emissions, tags, mask, *scores)).mean()  # scalar

    def decode(self, emissions: Tensor, mask: Tensor) -> list[list[int]]:
        """The best tags of every row's real tokens: (B, T, L), (B, T) -> B lists."""
        return viterbi(emissions, mask, self.transitions, self.start, self.end)[0]


# %% [markdown]
# ### Exercise 10: A tagger without BERT
#
# Before BERT, the best taggers were LSTMs in both directions with a CRF on top. Write
# `BiLSTMCRF(vocab_size, embed_dim, hidden_size, num_tags)`.
#
# * Submodules: `embedding = nn.Embedding(vocab_size, embed_dim)`;
#   `lstm = nn.LSTM(embed_dim, hidden_size, batch_first=True, bidirectional=True)`;
#   `emission = nn.Linear(2 * hidden_size, num_tags)`; `crf = CRF(num_tags)`, which is given.
#   <!-- id: submodules -->
# * `forward(ids, mask)`: both `(B, T)`; the emissions `(B, T, L)`. <!-- id: emissions -->
#   At real positions padding must
#   make **no difference**: the backward direction starts at the last real token.
#   <!-- id: padding --> What stands at
#   padding is of no importance.
# * `loss(ids, tags, mask)`: the CRF's loss, a scalar. <!-- id: loss -->
#   `decode(ids, mask)`: its best tags, a list of
#   lists. <!-- id: decode -->
#
# *Example.* Append columns of padding to a batch: loss and tags stay the same.
#
# Book: `brt-viterbi`.
#
# <details><summary>Hint 1</summary>
#
# An LSTM that reads a padded row backwards begins with the padding, and its state at the last real
# token already comes from it. Masking the result afterwards is too late.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `nn.utils.rnn.pack_padded_sequence` tells the LSTM how long each row is (on the CPU; with
# `enforce_sorted=False` in any order), and `pad_packed_sequence` makes a tensor of the result;
# `total_length` keeps it as long as the input.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A loop over rows, each cut to its length, is slow but right.
#
# </details>


# %% exercise="BiLSTMCRF" points=3 section="brt-viterbi"
class BiLSTMCRF(nn.Module):
    """Tags from an LSTM in both directions and a CRF (Huang et al. 2015; Lample et al. 2016, 2).

    Submodules: ``embedding`` = nn.Embedding(vocab_size, embed_dim), ``lstm`` = nn.LSTM(embed_dim,
    hidden_size, batch_first=True, bidirectional=True), ``emission`` = nn.Linear(2 hidden_size,
    num_tags), ``crf`` = CRF(num_tags).
    """

    def __init__(self, vocab_size: int, embed_dim: int, hidden_size: int, num_tags: int) -> None:
        """Create the submodules.

        Args:
            vocab_size: V.
            embed_dim: E, the width of an embedding.
            hidden_size: the width of the state of each direction.
            num_tags: L.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.lstm = nn.LSTM(embed_dim, hidden_size, batch_first=True, bidirectional=True)
        self.emission = nn.Linear(2 * hidden_size, num_tags)
        self.crf = CRF(num_tags)
        ### END SOLUTION

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The emissions of every tag at every token.

        Args:
            ids: (B, T) int64.
            mask: (B, T) bool, True where a real token stands.

        Returns:
            (B, T, L). At real positions padding has no influence: the backward direction begins at
            the last real token. What stands at padding is of no importance.
        """
        ### BEGIN SOLUTION
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(ids),  # (B, T, E)
            mask.sum(dim=1).cpu(),
            batch_first=True,
            enforce_sorted=False,
        )
        states, _ = nn.utils.rnn.pad_packed_sequence(
            self.lstm(packed)[0], batch_first=True, total_length=ids.shape[1]
        )  # (B, T, 2 hidden_size)
        return self.emission(states)  # (B, T, L)
        ### END SOLUTION

    def loss(self, ids: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """The loss of the CRF.

        Args:
            ids: (B, T) int64.
            tags: (B, T) int64.
            mask: (B, T) bool.

        Returns:
            A scalar.
        """
        ### BEGIN SOLUTION
        return self.crf.loss(self(ids, mask), tags, mask)  # scalar
        ### END SOLUTION

    def decode(self, ids: Tensor, mask: Tensor) -> list[list[int]]:
        """The best tags.

        Args:
            ids: (B, T) int64.
            mask: (B, T) bool.

        Returns:
            For each row the tags of its real tokens.
        """
        ### BEGIN SOLUTION
        return self.crf.decode(self(ids, mask), mask)
        ### END SOLUTION


# %% check="BiLSTMCRF" tags=["active-ipynb"]
# check("BiLSTMCRF")


# %% tags=["instructor"]
class BertCRF(nn.Module):
    """BERT with a CRF on the emissions of the tokens that have a tag.

    Submodules: ``tagger`` = Tagger(bert, num_tags), ``crf`` = CRF(num_tags). Special tokens and
    later pieces of words have no tag: the CRF runs over the others as if they stood side by side.
    """

    def __init__(self, bert: BertModel, num_tags: int, dropout: float = 0.1) -> None:
        """Create ``tagger`` on the encoder that is given, and ``crf``."""
        super().__init__()
        self.tagger = Tagger(bert, num_tags, dropout)
        self.crf = CRF(num_tags)

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """The emissions (B, T, L) of every tag at every token."""
        return self.tagger(input_ids, token_type_ids, mask)  # (B, T, L)

    def loss(self, emissions: Tensor, labels: Tensor) -> Tensor:
        """The loss of the CRF: emissions (B, T, L), labels (B, T) with IGNORE -> scalar."""
        order, mask = self._together(labels != IGNORE)  # (B, T), (B, T)
        emissions = emissions.gather(1, order.unsqueeze(2).expand_as(emissions))  # (B, T, L)
        return self.crf.loss(emissions, labels.gather(1, order), mask)  # scalar

    def decode(self, emissions: Tensor, tagged: Tensor) -> list[list[int]]:
        """The best tags of the positions where tagged (B, T) bool is True, for each row a list."""
        order, mask = self._together(tagged)  # (B, T), (B, T)
        emissions = emissions.gather(1, order.unsqueeze(2).expand_as(emissions))  # (B, T, L)
        return self.crf.decode(emissions, mask)

    @staticmethod
    def _together(tagged: Tensor) -> tuple[Tensor, Tensor]:
        """The positions (B, T) with the tagged ones first, in their order, and which they are."""
        order = torch.argsort((~tagged).long(), dim=1, stable=True)  # (B, T)
        return order, tagged.gather(1, order)
