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
# # Sequence to sequence: likelihood and decoding
#
# At the end of this unit the model is trained by its likelihood and answers in three ways:
# greedily, by trying everything, and by beam search.
#
# One of the code cells below hands you `NextTokenTable`. That is a *translator* whose probabilities
# stand in a table instead of coming from a network, so that you can try the three ways to decode on
# examples that fit on a slip of paper. A translator is any module with these two methods:
#
# ```python
# start(source, source_mask) -> state     # (B, T) ids, (B, T) mask or None
# step(previous, state) -> logits, state  # (B,) ids -> (B, V) logits of the next token
# ```
#
# A `state` is a tuple of tensors whose first dimension is the batch; nothing else about it is
# fixed.

# %%
"""The likelihood of a sequence, the loss, and three ways to decode."""

# The options of a cell must stand on one line, however long it gets.
# ruff: noqa: E501

# %%
import math

import torch
from torch import Tensor, nn

from solutions.seq2seq.recurrent import Seq2Seq  # noqa: F401 - the translator to decode with
from solutions.seq2seq.text import BOS, EOS, PAD

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("seq2seq-decoding")


# %%
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

    def start(self, source: Tensor, source_mask: Tensor | None = None) -> tuple[Tensor]:
        """The state before step 0: source (B, T) -> one tensor (B, 2) int64, with s and t."""
        s = source[:, 0]  # (B,)
        return (torch.stack([s, torch.zeros_like(s)], dim=1),)

    def step(self, previous: Tensor, state: tuple[Tensor]) -> tuple[Tensor, tuple[Tensor]]:
        """One step: previous (B,) int64 and the state -> logits (B, V) and the next state."""
        s, t = state[0].unbind(dim=1)
        row = t.clamp(max=self.table.shape[1] - 1)  # (B,)
        return self.table[s, row, previous], (torch.stack([s, t + 1], dim=1),)  # (B, V)


# %% [markdown]
# ## Likelihood and loss
#
# ### Exercise 1: Log-likelihood of a sequence
#
# A model gives each step a distribution over the next token. By the chain rule, the probability of
# a whole target is their product, and its logarithm a sum:
#
# $$\log P(y \mid x) = \sum_{t=1}^{U} \log P(y_t \mid y_{<t}, x),\qquad
# P(y_t = v \mid \dots) = \operatorname{softmax}(\text{logits}_t)_v$$
#
# <!-- id: formula -->
#
# The sum is computed from logarithms all the way: a product of a few hundred probabilities is
# exactly 0 in floating point, and the logarithm of that is $-\infty$. Write
# `sequence_log_prob(logits, targets, mask=None)`.
#
# * `logits` `(B, U, V)`, `targets` `(B, U)` `torch.int64`; `mask` `(B, U)` bool, `True` = real
#   step, or `None`, when all are real.
# * The result is `(B,)`: for each row the sum over its real steps. <!-- id: sum-of-a-row -->
# * Where the mask is `False`, the target may be **any** number, even one outside the vocabulary
#   such as −100; it must neither matter nor fail. <!-- id: masked-targets -->
# * Logits may be $-\infty$, where the mask is `False` too; such a token has probability 0.
#   <!-- id: impossible-tokens -->
# * `ValueError` if the shapes don't fit, if `targets` are not `torch.int64`, if `mask` is not bool,
#   or if a real target lies outside the vocabulary (negative ones too). <!-- id: bad-input -->
# * Not to be called: `cross_entropy`, `nll_loss` and their modules. <!-- id: not-called -->
#   `log_softmax` is fine.
#
# *Example.* If all logits are 0 and $V = 4$, each token has probability $\tfrac14$. Two steps give
# $2 \log\tfrac14 \approx -2.773$; with the mask `[True, False]` it is $-1.386$.
#
# Book: `seq-likelihood`.
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
# `gather` needs valid indices everywhere. Put a harmless id at the padded positions first
# (`masked_fill`), and set their terms to 0 before you sum.
#
# </details>


# %% exercise="sequence_log_prob" points=2 section="seq-likelihood" forbids="cross_entropy nll_loss CrossEntropyLoss NLLLoss cross_entropy_loss nll_loss_nd nll_loss2d"
def sequence_log_prob(logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    """Log-probability of each target sequence, by the chain rule (Sutskever et al. 2014, eq. 1).

    Args:
        logits: (B, U, V); those of step t are about targets[:, t]; they may hold -inf.
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
# ### Exercise 2: The loss of a batch
#
# Write `sequence_loss(logits, targets, pad=PAD)`: what training minimises, the negative
# log-likelihood **per real token**.
#
# $$L = -\frac{1}{N} \sum_{b=1}^{B} \log P\bigl(y^{(b)} \mid x^{(b)}\bigr),\qquad
# N = \text{number of real targets in the batch}$$
#
# * `logits` `(B, U, V)`, `targets` `(B, U)` `torch.int64`. A target equal to `pad` is not real:
#   it is left out of the sum and of $N$. <!-- id: padding -->
# * Every real token weighs the same, in a long sentence as in a short one. So it is one sum divided
#   by one number, **not** the mean of the rows' means, and not divided by `B` or by `B * U`.
#   <!-- id: mean-over-tokens -->
# * The result is a scalar (a tensor of shape `()`). <!-- id: a-scalar -->
# * `ValueError` if there is no real target at all, and in the cases of exercise 1.
#   <!-- id: bad-input -->
# * Not to be called: `cross_entropy`, `nll_loss` and their modules. <!-- id: not-called -->
#
# *Example.* Two rows have one and three real tokens and the log-likelihoods $-1$ and $-6$. The loss
# is $7 / 4 = 1.75$. (The mean of the means would be $(1 + 2) / 2 = 1.5$.)
#
# Book: `seq-likelihood`.
#
# <details><summary>Hint 1</summary>
#
# The mask of exercise 1 is a comparison of `targets` with `pad`.
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
# Book: `seq-objective`. 3 points, marked by a person.

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
# *Points by part, and what commonly goes wrong:* `solutions/marking_guides.md`.
# ### END SOLUTION

# %% [markdown]
# ## Decoding
#
# ### Exercise 3: Greedy decoding
#
# From here on there is no reference target: a trained model writes on its own. Write
# `greedy_decode(model, source, source_mask=None, max_length=20)`: for a whole batch, at each step
# the token with the largest logit, which is then fed back.
#
# * `model` is **any** translator (see the top of the notebook): call only `start` and `step`, and
#   assume nothing about its state. <!-- id: any-translator -->
# * The first input of every row is `BOS`. After that each row reads its own last token.
#   <!-- id: own-last-token -->
# * A row that has produced `EOS` is finished; it gets `PAD` from then on. `EOS` itself belongs to
#   the result, `BOS` doesn't. <!-- id: finished-rows -->
# * Decoding stops when **every** row has finished, or after `max_length` tokens. A row without
#   `EOS` by then stays as it is. <!-- id: when-to-stop -->
# * The result is `(B, n)` `torch.int64`; `n` is the length of the longest row, so the last column
#   is never padding alone. <!-- id: length -->
# * `ValueError` if `max_length` is smaller than 1. <!-- id: bad-length -->
#
# (Decoding needs no gradients. Where you use it for real, wrap the call in `torch.no_grad()`.)
#
# *Example.* If the first row becomes `7, EOS` and the second `5, 6, 8, EOS`, the result is
# $\begin{pmatrix}7&2&0&0\\5&6&8&2\end{pmatrix}$.
#
# Book: `seq-greedy`.
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
# ### Exercise 4: Exhaustive search
#
# Greedy decoding need not find the most probable sequence. For a tiny vocabulary one can look at
# **all** sequences, which gives the truth that other searches are measured by. Write
# `exhaustive_search(model, source, max_length, source_mask=None)`.
#
# * `model` is any translator; `source` is `(1, T)`, one sentence.
# * Candidates are all sequences that end with `EOS` and have at most `max_length` tokens, `EOS`
#   counted. Before the `EOS` every other id of the vocabulary may occur, `PAD`, `BOS` and `UNK`
#   included. <!-- id: all-candidates -->
# * Logits may be $-\infty$; such a token has probability 0. <!-- id: impossible-tokens -->
# * Returns `(ids, log_prob)`: the ids of the most probable candidate as a `list` of `int`, `EOS`
#   included, and the logarithm of its probability as a `float`. If several are equally probable,
#   any of them. <!-- id: best-candidate -->
# * `ValueError` if the batch is not 1, if `max_length` is smaller than 1, or if every candidate has
#   probability 0. <!-- id: bad-input -->
#
# *Example.* Tokens 4 and 5 begin a sequence with probability 0.6 and 0.4. After 4 comes `EOS` with
# 0.5, or 6 or 7 with 0.25 each; after 5 comes `EOS` with 0.95 or 6 with 0.05. With `max_length=2`
# the result is `([5, 2], -0.968)`, since $0.4 \cdot 0.95 = 0.38$ is more than
# $0.6 \cdot 0.5 = 0.30$. Greedy decoding finds the latter.
#
# Book: `seq-beam`.
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
# ### Exercise 5: Beam search
#
# Beam search keeps, at each step, only the best few beginnings. Write
# `beam_search(model, source, beam_size, max_length, source_mask=None, alpha=0.0)`.
#
# 1. One hypothesis is *live* at first, the empty one; its log-probability is 0, its next input
#    `BOS`.
# 2. In each step every live hypothesis is extended by every token of the vocabulary, and the
#    log-probability of the extension is that of the hypothesis plus that of the token.
#    <!-- id: extensions -->
# 3. Of **all** extensions together, the $k$ with the largest log-probability survive. Those of
#    probability 0 never do. <!-- id: k-best-of-all -->
# 4. Survivors that end with `EOS` are *finished*: they are put aside, and the beam becomes narrower
#    by as many. So $k$ is `beam_size` at first, and `beam_size` minus the number of finished
#    hypotheses later. <!-- id: finished-leave -->
# 5. It ends when nothing is live, or after `max_length` tokens. What is live then joins the
#    finished ones as it is, without `EOS`. <!-- id: live-join -->
#
# Every further token makes a log-probability smaller, so the sum favours short outputs. The **final
# order** can correct for that, and only the final order:
#
# $$\text{score}(y) = \frac{\log P(y \mid x)}{|y|^{\alpha}},\qquad
# |y| = \text{number of ids, EOS counted}$$
#
# <!-- id: length-normalised -->
#
# * `model` is any translator; `source` is `(1, T)`, one sentence.
# * Returns a list of at most `beam_size` pairs `(ids, score)`, best score first: `ids` a `list` of
#   `int` without `BOS`, `score` a `float`. Equal scores may come in any order. <!-- id: pairs -->
# * `ValueError` if `beam_size` or `max_length` is smaller than 1, if `alpha` is negative, or if the
#   batch is not 1. <!-- id: bad-input -->
#
# *Example.* In the example of exercise 4, `beam_size=1` gives `[([4, 2], -1.204)]`, the greedy
# path. With `beam_size=2` both 4 and 5 survive the first step, and the result is
# `[([5, 2], -0.968), ([4, 2], -1.204)]`. As for `alpha`: of two hypotheses with 2 tokens and $-2$,
# and with 5 tokens and $-2.5$, the first is better for $\alpha = 0$; for $\alpha = 1$ the second,
# $-0.5$ against $-1$.
#
# Book: `seq-beam`.
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
# 4.
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
# The decoder of `Seq2Seq` (unit `recurrent`) learns about the source only through $C$, a vector of `hidden_size`
# numbers, however long the source is. Explain in a few sentences why such a model gets worse with
# the length of the source, why a larger `hidden_size` moves the problem but doesn't remove it, and
# what has to be handed to the decoder instead so that the limit disappears. Give the shapes.
#
# Book: `seq-bottleneck`. 3 points, marked by a person.

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
# *Points by part, and what commonly goes wrong:* `solutions/marking_guides.md`.
# ### END SOLUTION
