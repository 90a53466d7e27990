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
# # BERT: pre-training
#
# At the end of this unit BERT takes a step of pre-training, on masked tokens and on pairs of
# sentences, and scores a sentence.

# %%
"""Masking, pairs of sentences, the heads, the loss, one step, and the score of a sentence."""

# The options of a cell must stand on one line, however long it gets.
# ruff: noqa: E501

# %%
import itertools
import math
import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from solutions.bert.model import MASK, BertModel, gelu, init_weights

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("bert-pretraining")

# %%
SPECIAL = 5  # ids below it are special
IGNORE = -100  # no target here; PyTorch's losses leave it out


# %% [markdown]
# ## Data for pre-training
#
# ### Exercise 1: Masked tokens
#
# Masked language modelling (MLM) masks some tokens and predicts them. Write
# `mask_tokens(ids, vocab_size, mask_prob=0.15)`.
#
# * `ids` `(B, T)` `torch.int64`. Each **ordinary** token (id at least `SPECIAL`) is *chosen* with
#   probability `mask_prob`, independently of all others. Special ones never are.
#   <!-- id: independent-choice -->
# * Of a chosen token becomes, by a draw of its own:
#
# | with probability | in its place stands |
# |---|---|
# | 0.8 | `MASK` |
# | 0.1 | an ordinary id, drawn evenly from `SPECIAL` to $V - 1$ (it may be the same one) |
# | 0.1 | the token itself |
#
# <!-- id: three-outcomes -->
#
# * Returns `(corrupted, labels)`, both `(B, T)` `torch.int64`: the input with the chosen tokens
#   corrupted, and the **original** id where a token was chosen, `IGNORE` everywhere else.
#   <!-- id: labels -->
# * `ValueError` if `mask_prob` is not between 0 and 1 (both allowed), or if `vocab_size` is not
#   larger than `SPECIAL`. <!-- id: bad-input -->
#
# *Example.* The row `[2, 17, 8, 30, 3]` with the 17 chosen may become `[2, 4, 8, 30, 3]`,
# `[2, 25, 8, 30, 3]` or `[2, 17, 8, 30, 3]`; its labels are `[-100, 17, -100, -100, -100]` in all
# three cases.
#
# Book: `brt-masking`.
#
# <details><summary>Hint 1</summary>
#
# `torch.rand(ids.shape) < mask_prob` is `True` with probability `mask_prob`, at each position for
# itself.
#
# </details>
# <details><summary>Hint 2</summary>
#
# One more uniform number for each position decides its fate: below 0.8, below 0.9, or not. Two
# separate draws, one against 0.8 and one against 0.1, would need a second look at the
# probabilities.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `torch.where(condition, a, b)` and `masked_fill` make new tensors. Draw random ids for all positions
# with `torch.randint`, and use those you need.
#
# </details>


# %% exercise="mask_tokens" points=4 section="brt-masking"
def mask_tokens(ids: Tensor, vocab_size: int, mask_prob: float = 0.15) -> tuple[Tensor, Tensor]:
    """Choose tokens to predict and corrupt them (Devlin et al. 2019, section 3.1 and A.1).

    Args:
        ids: (B, T) int64; ids below SPECIAL are special and never chosen.
        vocab_size: V.
        mask_prob: the probability with which each ordinary token is chosen.

    Returns:
        corrupted (B, T): a chosen token is MASK with probability 0.8, a random ordinary id with
        0.1, itself with 0.1; labels (B, T): the original id where chosen, IGNORE elsewhere.

    Raises:
        ValueError: if not 0 <= mask_prob <= 1, or vocab_size <= SPECIAL.
    """
    ### BEGIN SOLUTION
    if not 0 <= mask_prob <= 1:
        raise ValueError(f"mask_prob must lie between 0 and 1, but is {mask_prob}")
    if vocab_size <= SPECIAL:
        raise ValueError(f"vocab_size must be larger than {SPECIAL}, but is {vocab_size}")
    chosen = (ids >= SPECIAL) & (torch.rand(ids.shape, device=ids.device) < mask_prob)  # (B, T)
    labels = ids.masked_fill(~chosen, IGNORE)  # (B, T)
    fate = torch.rand(ids.shape, device=ids.device)  # (B, T)
    others = torch.randint_like(ids, SPECIAL, vocab_size)  # (B, T)
    corrupted = ids.masked_fill(chosen & (fate < 0.8), MASK)  # (B, T)
    corrupted = torch.where(chosen & (fate >= 0.9), others, corrupted)  # (B, T)
    return corrupted, labels
    ### END SOLUTION


# %% check="mask_tokens" tags=["active-ipynb"]
# check("mask_tokens")

# %% [markdown]
# ### Exercise 2: Whole words
#
# A word of several pieces is easy to predict from the pieces that are left. Later models of the BERT
# family mask whole words. Write `mask_whole_words(ids, starts, vocab_size, mask_prob=0.15)`.
#
# * `ids` `(B, T)` `torch.int64`; `starts` `(B, T)` bool is `True` at the first piece of each word,
#   and `False` at its later pieces and at special tokens.
# * A word is a first piece and the later pieces that follow it directly. It ends where the next
#   word begins, at a special token, and at the end of the row. (An ordinary piece that stands first
#   in its row, or directly after a special token, begins a word in any case.)
#   <!-- id: word-boundaries -->
# * Each **word** is chosen with probability `mask_prob`, independently of all others, with all its
#   pieces. <!-- id: whole-words -->
# * Each **piece** of a chosen word then has its own draw of 0.8, 0.1, 0.1, as in exercise
#   1. <!-- id: own-outcomes -->
# * Returns `(corrupted, labels)` and refuses as exercise 1 does: a `ValueError` if
#   `mask_prob` is not between 0 and 1, or if `vocab_size` is not larger than `SPECIAL`.
#   <!-- id: bad-input -->
#
# *Example.* In `[2, 9, 12, 8, 3]` with starts at positions 1 and 3 there are two words, `9 12` and
# `8`. The labels at positions 1 and 2 are either both `IGNORE` or 9 and 12.
#
# Book: `brt-whole-words`.
#
# <details><summary>Hint 1</summary>
#
# `cumsum` of the starts numbers the words of a row: all pieces of a word have the same number.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Draw one uniform number for each word and look it up at each piece: `draws[number]`. Two rows must
# not share a draw: number the words through the whole batch, or draw a row of numbers for each.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Special tokens between two words have the number of the word before them. Take them out of what is
# chosen at the end. And a piece that follows a special token must not get the number of the word
# before it.
#
# </details>


# %% exercise="mask_whole_words" points=3 section="brt-whole-words"
def mask_whole_words(
    ids: Tensor, starts: Tensor, vocab_size: int, mask_prob: float = 0.15
) -> tuple[Tensor, Tensor]:
    """Choose whole words to predict and corrupt them (released code of Devlin et al., May 2019).

    Args:
        ids: (B, T) int64; ids below SPECIAL are special, never chosen, and end a word.
        starts: (B, T) bool, True at the first piece of each word.
        vocab_size: V.
        mask_prob: the probability with which each word is chosen, with all its pieces.

    Returns:
        corrupted and labels, both (B, T), as ``mask_tokens`` returns them; each piece of a chosen
        word becomes MASK, a random ordinary id or itself by a draw of its own.

    Raises:
        ValueError: if not 0 <= mask_prob <= 1, or vocab_size <= SPECIAL.
    """
    ### BEGIN SOLUTION
    if not 0 <= mask_prob <= 1:
        raise ValueError(f"mask_prob must lie between 0 and 1, but is {mask_prob}")
    if vocab_size <= SPECIAL:
        raise ValueError(f"vocab_size must be larger than {SPECIAL}, but is {vocab_size}")
    ordinary = ids >= SPECIAL  # (B, T)
    # A piece that stands first in its row, or after a special token, continues no word.
    alone = ordinary.clone()  # (B, T)
    alone[:, 1:] &= ~ordinary[:, :-1]
    begins = ordinary & (starts | alone)  # (B, T)
    # Words are numbered through the whole batch, so that each has one draw.
    word = begins.flatten().cumsum(0).reshape(ids.shape)  # (B, T)
    words = int(begins.sum())
    # (words + 1,), number 0 is no word
    drawn = torch.rand(words + 1, device=ids.device) < mask_prob
    chosen = drawn[word] & ordinary  # (B, T)
    labels = ids.masked_fill(~chosen, IGNORE)  # (B, T)
    fate = torch.rand(ids.shape, device=ids.device)  # (B, T)
    others = torch.randint_like(ids, SPECIAL, vocab_size)  # (B, T)
    corrupted = ids.masked_fill(chosen & (fate < 0.8), MASK)  # (B, T)
    corrupted = torch.where(chosen & (fate >= 0.9), others, corrupted)  # (B, T)
    return corrupted, labels
    ### END SOLUTION


# %% check="mask_whole_words" tags=["active-ipynb"]
# check("mask_whole_words")

# %% [markdown]
# ### Exercise 3: Static and dynamic masks
#
# The original BERT masked its data ten times beforehand and used the ten versions in turn; RoBERTa
# (Liu et al., 2019) masks anew each time. Write
# `masking_epochs(ids, vocab_size, epochs, duplicates=None, mask_prob=0.15)`.
#
# * The result is a list of `epochs` pairs `(corrupted, labels)`, as from `mask_tokens`.
#   <!-- id: pairs -->
# * `duplicates=None`: each epoch draws a masking of its own. <!-- id: dynamic -->
# * `duplicates=k`: only $k$ maskings are drawn, and epoch $e$ (from 0) uses number $e \bmod k$.
#   <!-- id: static -->
# * `ValueError` if `epochs` or `duplicates` is smaller than 1. <!-- id: bad-numbers -->
#
# *Example.* With `epochs=5, duplicates=2` epochs 0, 2 and 4 are equal, and so are 1 and 3. In the
# original BERT, 40 epochs with 10 duplicates, each masking was seen four times.
#
# Book: `brt-roberta`.
#
# <details><summary>Hint 1</summary>
#
# Both cases are lists made by `mask_tokens`; they differ in how many there are.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `not duplicates` is also true for 0, which must be refused.
#
# </details>


# %% exercise="masking_epochs" points=2 section="brt-roberta"
def masking_epochs(
    ids: Tensor,
    vocab_size: int,
    epochs: int,
    duplicates: int | None = None,
    mask_prob: float = 0.15,
) -> list[tuple[Tensor, Tensor]]:
    """The masking of every epoch, drawn anew or from a store (Liu et al. 2019, section 4.1).

    Args:
        ids: (B, T) int64.
        vocab_size: V.
        epochs: how many, at least 1.
        duplicates: how many maskings are drawn beforehand and used in turn, at least 1; None: each
            epoch draws its own.
        mask_prob: as for ``mask_tokens``.

    Returns:
        (corrupted, labels) of each epoch, as ``mask_tokens`` returns them.

    Raises:
        ValueError: if epochs < 1 or duplicates < 1.
    """
    ### BEGIN SOLUTION
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, but is {epochs}")
    if duplicates is None:
        return [mask_tokens(ids, vocab_size, mask_prob) for _ in range(epochs)]
    if duplicates < 1:
        raise ValueError(f"duplicates must be at least 1, but is {duplicates}")
    store = [mask_tokens(ids, vocab_size, mask_prob) for _ in range(duplicates)]
    return [store[epoch % duplicates] for epoch in range(epochs)]
    ### END SOLUTION


# %% check="masking_epochs" tags=["active-ipynb"]
# check("masking_epochs")

# %% [markdown]
# ### Exercise 4: Pairs of sentences
#
# The second task of BERT's pre-training: does the second sentence follow the first? Write
# `next_sentence_pairs(documents)`.
#
# * `documents` is a list of documents, each a list of sentences, each a list of ids.
# * For every sentence that has a next one **in its document**, in order, the result has one triple
#   `(first, second, label)`: <!-- id: triples -->
#
# | with probability | second | label |
# |---|---|---|
# | 1/2 | the true next sentence | 0, *is next* |
# | 1/2 | a sentence drawn evenly from all sentences of all **other** documents | 1, *is random* |
#
# <!-- id: half-random -->
#
# * Every pair has its own draw. <!-- id: own-draw --> The lists that come in stay as they are.
# * `ValueError` if fewer than two documents have a sentence: then there may be no other one to draw
#   from. <!-- id: one-document -->
#
# *Example.* Two documents, one with the sentences $a, b, c$, the other with $d$ alone, give two
# triples. The first is $(a, b, 0)$ or $(a, d, 1)$, the second $(b, c, 0)$ or $(b, d, 1)$.
#
# Book: `brt-pairs`.
#
# <details><summary>Hint 1</summary>
#
# `itertools.pairwise(document)` yields each sentence with the next.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Drawing a document first and then a sentence in it would prefer the sentences of short documents.
# Put all sentences of the other documents into one list.
#
# </details>
# <details><summary>Hint 3</summary>
#
# *Other* means another position in the list: two documents may have the same content. Compare their
# numbers.
#
# </details>


# %% exercise="next_sentence_pairs" points=3 section="brt-pairs"
def next_sentence_pairs(
    documents: list[list[list[int]]],
) -> list[tuple[list[int], list[int], int]]:
    """Pairs of sentences, half of them true neighbours (Devlin et al. 2019, section 3.1).

    Args:
        documents: a list of documents, each a list of sentences, each a list of ids.

    Returns:
        (first, second, label) for every sentence that has a next one in its document, in order:
        with probability 1/2 the next one and label 0, else a sentence drawn evenly from all
        sentences of the other documents and label 1.

    Raises:
        ValueError: if fewer than two documents have a sentence.
    """
    ### BEGIN SOLUTION
    if sum(bool(document) for document in documents) < 2:
        raise ValueError("a random sentence must come from another document; give two or more")
    pairs = []
    for number, document in enumerate(documents):
        others = [s for n, other in enumerate(documents) if n != number for s in other]
        for first, second in itertools.pairwise(document):
            if random.random() < 0.5:
                pairs.append((first, second, 0))
            else:
                pairs.append((first, random.choice(others), 1))
    return pairs
    ### END SOLUTION


# %% check="next_sentence_pairs" tags=["active-ipynb"]
# check("next_sentence_pairs")


# %% tags=["instructor"]
def sentence_order_pairs(
    documents: list[list[list[int]]],
) -> list[tuple[list[int], list[int], int]]:
    """Neighbours in their order or exchanged, half each (ALBERT: Lan et al. 2020, section 3.1).

    Args:
        documents: a list of documents, each a list of sentences, each a list of ids.

    Returns:
        (first, second, label) for every sentence that has a next one in its document, in order:
        label 0 for the right order, 1 for the exchanged one.
    """
    pairs = []
    for document in documents:
        for first, second in itertools.pairwise(document):
            if random.random() < 0.5:
                pairs.append((first, second, 0))
            else:
                pairs.append((second, first, 1))
    return pairs


# %% [markdown]
# ## Pre-training
#
# ### Exercise 5: The head of the masked language model
#
# Write `MaskedLanguageHead(token)`: from a vector of the encoder to a logit for each token of the
# vocabulary.
#
# $$\text{logits} = E\,\operatorname{norm}\bigl(\operatorname{gelu}(W h + b)\bigr) + c$$
#
# <!-- id: formula -->
#
# * `token` is the `nn.Embedding` of the model, with its embedding matrix $E$
#   `(V, D)`. The head uses **the same object**: there is one matrix, and both of its uses add to its
#   gradient. <!-- id: tied -->
# * Submodules: `dense = nn.Linear(D, D)`, `norm = nn.LayerNorm(D, eps=1e-12)`, and `token`, the one
#   that is given. Parameter: `bias` ($c$) `(V,)`, zeros at first. <!-- id: submodules -->
# * `forward(hidden)`: `(..., D)`; the result is `(..., V)`, logits, before any softmax.
#   <!-- id: any-axes --> There is
#   one distribution for every position, not one for the whole input.
#
# *Example.* If all parameters of `dense` are 0, the logits are `bias` at every position.
#
# Book: `brt-heads`.
#
# <details><summary>Hint 1</summary>
#
# The embedding matrix has the sizes: `token.weight.shape` is `(V, D)`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Don't copy the matrix and don't make a linear layer of it: multiply by `self.token.weight.T`.
# Assigning the embedding to `self.token` is all the tying there is.
#
# </details>


# %% exercise="MaskedLanguageHead" points=3 section="brt-heads"
class MaskedLanguageHead(nn.Module):
    """From BERT's vectors to the logits of all tokens (Devlin et al. 2019, A.1 and released code).

    Parameters: ``bias`` (V,), zeros at first. Submodules: ``dense`` = nn.Linear(D, D), ``norm`` =
    nn.LayerNorm(D, eps=1e-12), ``token`` = the embedding that is given, the very same object.
    """

    def __init__(self, token: nn.Embedding) -> None:
        """Create ``dense``, ``norm`` and ``bias``, and share ``token``.

        Args:
            token: the model's embedding of tokens (V, D).
        """
        super().__init__()
        ### BEGIN SOLUTION
        vocab_size, hidden = token.weight.shape
        self.dense = nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.token = token
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        ### END SOLUTION

    def forward(self, hidden: Tensor) -> Tensor:
        """The logits of every token of the vocabulary.

        Args:
            hidden: (..., D).

        Returns:
            (..., V), norm(gelu(dense(hidden))) times the transposed embedding matrix, plus bias.
        """
        ### BEGIN SOLUTION
        transformed = self.norm(gelu(self.dense(hidden)))  # (..., D)
        return transformed @ self.token.weight.T + self.bias  # (..., V)
        ### END SOLUTION


# %% check="MaskedLanguageHead" tags=["active-ipynb"]
# check("MaskedLanguageHead")

# %% [markdown]
# ### Exercise 6: BERT with both heads
#
# Write `BertForPreTraining(vocab_size, d_model=768, num_layers=12, num_heads=12, d_ff=3072,
# max_length=512, type_vocab_size=2, dropout=0.1)`.
#
# * Submodules: `bert`, your `BertModel`; `mlm`, your `MaskedLanguageHead` on
#   `bert.embeddings.token`; `nsp = nn.Linear(d_model, 2)`. <!-- id: submodules -->
# * `forward(input_ids, token_type_ids=None, mask=None)`: each `(B, T)`. Returns `(mlm_logits,
#   nsp_logits)`: `(B, T, V)`, for every position, and `(B, 2)`, from the pooled vector.
#   <!-- id: two-logits --> Column 0 of
#   the second is for *is next*, column 1 for *is random*.
# * `ValueError`s of the parts may come through as they are.
#
# *Example.* `BertForPreTraining(30522)` has 110,106,428 parameters, 624,188 more than the encoder
# alone: the embedding matrix of the tokens counts once.
#
# Book: `brt-loss`.
#
# <details><summary>Hint 1</summary>
#
# The model returns two things. Which of them has a vector for every position, and which has one for
# the whole input?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Make the head after the model: it needs the model's embedding.
#
# </details>


# %% exercise="BertForPreTraining" points=3 section="brt-loss"
class BertForPreTraining(nn.Module):
    """BERT with its two pre-training heads (Devlin et al. 2019, section 3.1).

    Submodules: ``bert`` = BertModel, ``mlm`` = MaskedLanguageHead on the model's token embedding,
    ``nsp`` = nn.Linear(d_model, 2).
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int = 768,
        num_layers: int = 12,
        num_heads: int = 12,
        d_ff: int = 3072,
        max_length: int = 512,
        type_vocab_size: int = 2,
        dropout: float = 0.1,
    ) -> None:
        """Create the submodules; all arguments are BertModel's.

        Args:
            vocab_size: V.
            d_model: D.
            num_layers: N.
            num_heads: H, a divisor of d_model.
            d_ff: F.
            max_length: how many positions have an embedding.
            type_vocab_size: how many segments have an embedding.
            dropout: of the embeddings and of all layers.

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.bert = BertModel(
            vocab_size, d_model, num_layers, num_heads, d_ff, max_length, type_vocab_size, dropout
        )
        self.mlm = MaskedLanguageHead(self.bert.embeddings.token)
        self.nsp = nn.Linear(d_model, 2)
        init_weights(self.mlm.dense)
        init_weights(self.nsp)
        ### END SOLUTION

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The logits of the tokens at every position, and of whether the second text follows.

        Args:
            input_ids: (B, T) int64.
            token_type_ids: (B, T) int64; None: segment 0 everywhere.
            mask: (B, T) bool, True where a real token stands. None: everywhere.

        Returns:
            The logits of the tokens (B, T, V), from ``hidden``, and of the two answers (B, 2), from
            ``pooled``.

        Raises:
            ValueError: if T is larger than max_length.
        """
        ### BEGIN SOLUTION
        hidden, pooled = self.bert(input_ids, token_type_ids, mask)  # (B, T, D), (B, D)
        return self.mlm(hidden), self.nsp(pooled)  # (B, T, V), (B, 2)
        ### END SOLUTION


# %% check="BertForPreTraining" tags=["active-ipynb"]
# check("BertForPreTraining")

# %% [markdown]
# ### Exercise 7: The loss
#
# Write `pretraining_loss(mlm_logits, nsp_logits, labels, is_random)`: the sum of two means.
#
# $$\text{loss} = \frac1{|C|}\sum_{(b,t)\,\in\,C} -\log p(\text{labels}_{b,t})
# \;+\; \frac1B\sum_{b} -\log p(\text{is\_random}_b)$$
#
# <!-- id: two-means -->
#
# * `mlm_logits` `(B, T, V)`, `nsp_logits` `(B, 2)`; `labels` `(B, T)` and `is_random` `(B,)`
#   `torch.int64`. $C$ are the positions whose label is not `IGNORE`; the probabilities come from a
#   softmax of the logits.
# * The first mean is over all chosen positions **of the batch**, not over sequences.
#   <!-- id: mean-over-positions --> If nothing was
#   chosen it is 0, and all gradients stay finite. <!-- id: nothing-chosen -->
# * In the second, class 0 counts like class 1. <!-- id: both-classes -->
# * The result is a scalar.
#
# *Example.* $V = 4$ and all logits are 0: the loss is $\log 4 + \log 2 \approx 2.079$, and
# $\log 2 \approx 0.693$ if no position was chosen.
#
# Book: `brt-loss`.
#
# <details><summary>Hint 1</summary>
#
# `F.cross_entropy` wants `(n, V)` and `(n,)`: flatten batch and positions together. It leaves out
# targets of −100.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Without any target its mean is $0/0$. With `reduction="sum"` it gives 0, and you can divide by the
# number of targets, or by 1 if there is none.
#
# </details>


# %% exercise="pretraining_loss" points=2 section="brt-loss"
def pretraining_loss(
    mlm_logits: Tensor, nsp_logits: Tensor, labels: Tensor, is_random: Tensor
) -> Tensor:
    """The sum of both pre-training losses (Devlin et al. 2019, A.2).

    Args:
        mlm_logits: (B, T, V).
        nsp_logits: (B, 2).
        labels: (B, T) int64, the token to predict, or IGNORE.
        is_random: (B,) int64, 0: the second text is the next one, 1: it is a random one.

    Returns:
        A scalar: the mean cross-entropy over the positions with a label (0 if there is none), plus
        the mean cross-entropy over the batch of the two answers.
    """
    ### BEGIN SOLUTION
    total = F.cross_entropy(
        mlm_logits.flatten(0, 1),  # (B T, V)
        labels.flatten(),  # (B T,)
        ignore_index=IGNORE,
        reduction="sum",
    )  # scalar
    # Not the mean of PyTorch: without any label it would be 0 / 0.
    mlm = total / (labels != IGNORE).sum().clamp(min=1)  # scalar
    return mlm + F.cross_entropy(nsp_logits, is_random)  # scalar
    ### END SOLUTION


# %% check="pretraining_loss" tags=["active-ipynb"]
# check("pretraining_loss")

# %% [markdown]
# ### Exercise 8: A step of pre-training
#
# Put it together. Write
# `pretraining_step(model, input_ids, token_type_ids, mask, labels, is_random, lr, clip=1.0)`: one
# step of plain gradient descent on one batch.
#
# 1. Apply `model` to `input_ids`, `token_type_ids` and `mask`, and compute the loss of
#    exercise 7.
# 2. Compute the gradients of **this** loss. Gradients that the parameters carry from elsewhere (in
#    `.grad`) must not matter. <!-- id: own-gradients -->
# 3. The norm is that of all gradients together, $\sqrt{\sum_i g_i^2}$ over all numbers of all
#    parameters; a parameter that is used several times counts once, with the sum of its
#    gradients. If the norm is larger than `clip`, all gradients are multiplied by
#    $\text{clip}/\text{norm}$. <!-- id: clip -->
# 4. Every parameter that has a gradient changes in place: minus `lr` times its gradient.
#    <!-- id: step --> One
#    without (frozen, or without influence on the loss) stays as it is.
#    <!-- id: without-gradient -->
#
# * `model` is any module that maps these three to the two logits. Leave its mode (training or
#   evaluation) as it is. <!-- id: mode-kept -->
# * Returns a `dict` of four `float`s, as they were before the step: `"loss"`, its two parts `"mlm"`
#   and `"nsp"`, and `"norm"`, before it was cut. <!-- id: numbers -->
# * Not to be called: `clip_grad_norm_`. <!-- id: not-called -->
#
# *Example.* With `lr=0.1`, `clip=1` and a norm of 4 every number moves by 0.1 times a quarter of
# its gradient, and all together by 0.1. With a norm of 0.5 every number moves by 0.1 times its
# gradient.
#
# Book: `brt-loss`.
#
# <details><summary>Hint 1</summary>
#
# `model.parameters()` yields a shared parameter once. `loss.backward()` **adds** to what stands in
# `.grad`; `torch.autograd.grad(loss, parameters, allow_unused=True)` returns fresh gradients,
# `None` where there is none.
#
# </details>
# <details><summary>Hint 2</summary>
#
# There is one norm for the whole model, not one for each tensor: add up the squares of all first.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A parameter can only be changed in place where nothing is recorded: `with torch.no_grad():`.
# `item()` makes a `float` of a scalar.
#
# </details>


# %% exercise="pretraining_step" points=3 section="brt-loss" forbids="clip_grad_norm_" judged_on="BertForPreTraining"
def pretraining_step(
    model: nn.Module,
    input_ids: Tensor,
    token_type_ids: Tensor,
    mask: Tensor,
    labels: Tensor,
    is_random: Tensor,
    lr: float,
    clip: float = 1.0,
) -> dict[str, float]:
    """Improve the model on one batch, in place, with clipped gradients (Pascanu et al. 2013).

    Args:
        model: (input_ids, token_type_ids, mask) -> (mlm_logits (B, T, V), nsp_logits (B, 2)); left
            in its mode.
        input_ids: (B, T) int64, corrupted.
        token_type_ids: (B, T) int64.
        mask: (B, T) bool, True where a real token stands.
        labels: (B, T) int64, the token to predict, or IGNORE.
        is_random: (B,) int64.
        lr: the learning rate.
        clip: the largest norm that all gradients together may have.

    Returns:
        "loss", its parts "mlm" and "nsp", and "norm", the norm of all gradients together before
        clipping; all as they were before the step.
    """
    ### BEGIN SOLUTION
    mlm_logits, nsp_logits = model(input_ids, token_type_ids, mask)  # (B, T, V), (B, 2)
    loss = pretraining_loss(mlm_logits, nsp_logits, labels, is_random)  # scalar
    nsp = F.cross_entropy(nsp_logits.detach(), is_random)  # scalar
    # parameters() yields a shared one once, and its gradient is the sum over its uses.
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    pairs = [(p, g) for p, g in zip(parameters, gradients, strict=True) if g is not None]
    norm = math.sqrt(sum(g.double().square().sum().item() for _, g in pairs))
    scale = clip / norm if norm > clip else 1.0
    with torch.no_grad():
        for parameter, gradient in pairs:
            parameter -= lr * scale * gradient
    both, second = loss.item(), nsp.item()
    return {"loss": both, "mlm": both - second, "nsp": second, "norm": norm}
    ### END SOLUTION


# %% check="pretraining_step" tags=["active-ipynb"]
# check("pretraining_step")

# %% [markdown]
# ### Exercise 9: Pseudo-log-likelihood
#
# A masked language model has no probability for a sentence, but one for each token given all
# others. Their sum is a score of the sentence (Salazar et al., 2020). Write
# `pseudo_log_likelihood(model, ids)`:
#
# $$\text{score} = \sum_{t\,:\,i_t \text{ ordinary}} \log p\bigl(i_t \mid
# \text{the input with MASK at position } t\bigr)$$
#
# <!-- id: sum -->
#
# * `ids` `(T,)` `torch.int64`: one input with its special tokens. Only one position at a time is
#   masked; the model sees all others. <!-- id: one-at-a-time -->
# * `model` maps ids `(B, T)` to a tuple whose first entry are the logits `(B, T, V)`, as
#   `BertForPreTraining` does; it is in evaluation mode.
# * The result is a `float`, at most 0. <!-- id: a-float -->
#   It is **not** the logarithm of a probability of the
#   sentence: over all sentences these products don't add up to 1.
# * `ValueError` if there is no ordinary token. <!-- id: no-ordinary-token -->
#
# *Example.* If the model gives all of 50 tokens equal logits, an input with three ordinary tokens has
# $-3 \log 50 \approx -11.74$.
#
# Book: `brt-scores`.
#
# <details><summary>Hint 1</summary>
#
# Make a batch with one sequence for each ordinary position: the same ids, and `MASK` at another
# position in each. Then one call of the model is enough.
#
# </details>
# <details><summary>Hint 2</summary>
#
# With `rows = torch.arange(n)` and the positions `(n,)`, an assignment to `copies[rows, positions]`
# writes one entry in each row, and `logits[rows, positions]` picks `(n, V)`. Write into a copy, not
# into `ids`.
#
# </details>


# %% exercise="pseudo_log_likelihood" points=2 section="brt-scores" judged_on="BertForPreTraining"
def pseudo_log_likelihood(model: nn.Module, ids: Tensor) -> float:
    """How well each token fits all the others (Salazar et al. 2020, section 2).

    Args:
        model: ids (B, T) -> (mlm_logits (B, T, V), ...), in evaluation mode.
        ids: (T,) int64, one input with its special tokens.

    Returns:
        The sum over the ordinary tokens of the log-probability of the token, given the input with
        MASK in its place and all others as they are.

    Raises:
        ValueError: if there is no ordinary token.
    """
    ### BEGIN SOLUTION
    positions = (ids >= SPECIAL).nonzero().squeeze(1)  # (n,)
    if len(positions) == 0:
        raise ValueError("the input holds special tokens only; there is nothing to score")
    rows = torch.arange(len(positions), device=ids.device)  # (n,)
    masked = ids.repeat(len(positions), 1)  # (n, T), a copy for each position
    masked[rows, positions] = MASK
    with torch.no_grad():
        logits = model(masked)[0][rows, positions]  # (n, V)
    log_probs = torch.log_softmax(logits, dim=-1)  # (n, V)
    return log_probs[rows, ids[positions]].sum().item()
    ### END SOLUTION


# %% check="pseudo_log_likelihood" tags=["active-ipynb"]
# check("pseudo_log_likelihood")

# %% [markdown]
# ### Question: Why not always [MASK]?
#
# It is tempting to explain the 80/10/10 of masking like this: a word that occurs only once in the
# data and is masked there could be predicted only through [MASK]; so a sentence is read $N$ times,
# in 80 percent of them with [MASK]. Neither is right. What would be wrong with a [MASK] at every
# chosen position? What does each of the three parts do, and why does a random token in 10
# percent of the cases not spoil the language that the model learns? When are the 80, 10 and 10
# percent decided? And does masking anew in every epoch, as RoBERTa does, remove the problem?
#
# Book: `brt-mismatch`. 3 points, marked by a person.

# %% [markdown] question="why_not_always_mask" points=3 section="brt-mismatch" title="Why not always [MASK]?"
# **Your answer:**
#
# ### BEGIN SOLUTION
# *The problem.* [MASK] occurs in pre-training and never afterwards: inputs of fine-tuning have
# none. If every chosen position held [MASK], a good prediction would be needed only where [MASK]
# stands. The loss would say nothing about the vectors of ordinary tokens themselves (they would be
# trained only as context for others), and the positions that are read in fine-tuning hold ordinary
# tokens. That is the mismatch between the two stages; how often a word occurs has nothing to do
# with it.
#
# *The three parts.* The 80 percent with [MASK] are the task itself: a prediction from the context
# alone. In the 10 percent that keep their token the target stands in the input, so the vector of an
# ordinary token is trained to hold its own token. If that were all besides [MASK], copying every
# token that is not [MASK] would be perfect. In the 10 percent with a random token copying is wrong.
# The model can't see from a token whether it is real, kept or replaced, so it has to compare
# **every** token with its context and keep a contextual vector at every position.
#
# *Why random tokens do little harm.* They are 10 percent of 15 percent, 1.5 percent of all tokens:
# the context of a prediction is almost everywhere the true one, and the target is always the
# original token, never the random one. The model learns to notice and repair an error, not to
# produce it.
#
# *When.* For each chosen token on its own, by a random draw. The same sentence has positions of all
# three kinds. The released code makes ten copies of the data with new draws; it does not feed a
# sentence in fixed shares.
#
# *Dynamic masking* only changes which positions are chosen in which epoch. [MASK] is still in the
# input of pre-training and still not in that of fine-tuning. So it gives more variety and leaves
# the mismatch as it was; ELECTRA, whose discriminator never sees [MASK], removes it.
#
# *Points by part, and what commonly goes wrong:* `solutions/marking_guides.md`.
# ### END SOLUTION

# %% [markdown]
# ### Question: What does next-sentence prediction learn?
#
# Next-sentence prediction reaches an accuracy of 97 to 98 percent, and soon. What may a model look
# at to solve it, given how the negative pairs are made? Is that what the task was meant to teach?
# The paper on BERT finds that its results get worse without it, the one on RoBERTa that they don't:
# how can both be? And how does sentence-order prediction, ALBERT's task, differ?
#
# Book: `brt-nsp`. 3 points, marked by a person.

# %% [markdown] question="what_nsp_learns" points=3 section="brt-nsp" title="What does next-sentence prediction learn?"
# **Your answer:**
#
# ### BEGIN SOLUTION
# *What suffices.* A negative second sentence comes from **another document**, and so usually from
# another topic, with other names, words and style. Whether the two sentences share their topic is
# enough to answer nearly always, and topic shows in single words: a comparison of two bags of words
# does well. The masked language model needs such information anyway. That is why the accuracy is
# high early, and a high accuracy of this classifier is no evidence that relations between sentences
# were learned.
#
# *What was meant.* The task should teach coherence: does the second sentence follow from the first,
# as in inference or question answering? That would take negatives of the same topic, where only
# order or logic decides. So the task mixes two questions, topic and coherence, and the easy one
# answers it.
#
# *The two findings.* In the paper on BERT (section 5.1) a model without the task is worse, by 3.5
# points on QNLI and by about half a point on MNLI and SQuAD. In the paper on RoBERTa (section 4.2)
# dropping the task changes little or helps. But they don't compare the same: the RoBERTa paper
# takes away the loss **and** changes the input, from pairs of segments to long runs of full
# sentences. Long context helps, and pairs of single sentences hurt. It suspects that BERT's
# ablation kept the input in pairs, negative pairs included, and took away only the loss. So both
# can be right: what the input looks like matters as much as the loss.
#
# *Sentence order.* ALBERT takes two neighbours from the same document for both classes, in their
# order or exchanged. The topic is the same in both, so it can't decide, and the order must. Trained
# on next-sentence prediction, a model is near chance on sentence order (52 percent); trained on
# order, it solves most of the other (79 percent). (Lan et al., 2020, section 4.6.)
#
# *Points by part, and what commonly goes wrong:* `solutions/marking_guides.md`.
# ### END SOLUTION
