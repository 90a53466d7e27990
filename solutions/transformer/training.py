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
# # The Transformer: its training
#
# At the end of this unit you can train the model by the paper's recipe: batches by tokens, label
# smoothing, Adam with warm-up.

# %%
"""Training by the recipe: shifted targets, batches by tokens, label smoothing, warm-up, Adam."""

# The options of a cell must stand on one line, however long it gets.
# ruff: noqa: E501

# %%
import torch
from torch import Tensor, nn

from solutions.transformer.model import EncoderDecoder, Generator, make_model  # noqa: F401 - the model to train
from solutions.transformer.parts import PAD

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("transformer-training")

# %% [markdown]
# ## Training
#
# ### Exercise 1: Input and output of the decoder
#
# In training, the decoder's input is the target shifted by one position: at each position it sees
# the tokens so far and predicts the next. Write `shift_targets(target, pad=PAD)`.
#
# * `target` `(B, U + 1)` `torch.int64`: each row goes from `BOS` to `EOS` and is then padded with
#   `pad`.
# * Returns `(tgt_in, tgt_out, count)`: `(B, U)`, all but the last column; `(B, U)`, all but the
#   first; <!-- id: shifted --> and how many ids of `tgt_out` are not `pad`, a Python `int`.
#   <!-- id: count -->
# * A short row's `EOS` stays in `tgt_in`. The label at its position is padding, which the loss
#   ignores.
# * `ValueError` if the rows have fewer than 2 ids. <!-- id: too-short -->
#
# *Example.* $\begin{pmatrix}1&5&6&2\\1&7&2&0\end{pmatrix}$ gives
# $\begin{pmatrix}1&5&6\\1&7&2\end{pmatrix}$, $\begin{pmatrix}5&6&2\\7&2&0\end{pmatrix}$ and 5.
#
# Book: `trf-shift`.
#
# <details><summary>Hint 1</summary>
#
# Slices along the second axis: `[:, a:b]`; a negative index counts from the end.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The sum of a bool tensor is the number of `True`s, as a tensor of one entry. `int(...)` or
# `.item()` turns it into a Python number.
#
# </details>


# %% exercise="shift_targets" points=1 section="trf-shift"
def shift_targets(target: Tensor, pad: int = PAD) -> tuple[Tensor, Tensor, int]:
    """Split targets into the decoder's input and what it should predict.

    Args:
        target: (B, U + 1) int64, from BOS to EOS, padded with pad.
        pad: the id that marks padding.

    Returns:
        tgt_in (B, U), all but the last id of each row; tgt_out (B, U), all but the first; and the
        number of ids of tgt_out that are not pad.

    Raises:
        ValueError: if the rows have fewer than 2 ids.
    """
    ### BEGIN SOLUTION
    if target.shape[1] < 2:
        raise ValueError(f"a target needs at least 2 ids, but the rows have {target.shape[1]}")
    tgt_in, tgt_out = target[:, :-1], target[:, 1:]  # (B, U) each
    return tgt_in, tgt_out, int((tgt_out != pad).sum())
    ### END SOLUTION


# %% check="shift_targets" tags=["active-ipynb"]
# check("shift_targets")

# %% [markdown]
# ### Exercise 2: Batches by tokens
#
# A batch of 64 sentences may hold 300 words or 3000. The Transformer's batches are measured in
# tokens instead, and sentences of similar length go together, so that there is little padding.
# Write `token_batches(lengths, max_tokens)`.
#
# * `lengths`: a list of `(source length, target length)`, one for each sentence pair. The result is
#   a list of batches, each a list of indices into `lengths`.
# * Take the sentences in the order of source length, then target length, then index.
#   <!-- id: order -->
# * The next sentence joins the current batch if **both** sides still fit, padding included:
#
# $$\text{number of sentences} \cdot \text{longest source} \le \text{max\_tokens}
# \quad\text{and}\quad
# \text{number of sentences} \cdot \text{longest target} \le \text{max\_tokens}$$
#
# <!-- id: both-sides -->
#
# * Otherwise the current batch is complete, and the sentence begins the next. So each index occurs
#   exactly once, and no batch is empty. Without sentences the result is `[]`.
#   <!-- id: each-once -->
# * `ValueError` if `max_tokens` is smaller than 1, or if a single sentence is too long; then the
#   message gives its index. <!-- id: too-long -->
#
# *Example.* `token_batches([(3, 4), (1, 1), (9, 2), (3, 3)], 9)` is `[[1, 3], [0], [2]]`: sentence
# 0 would make three rows of four target positions, 12 in all.
#
# Book: `trf-batches`.
#
# <details><summary>Hint 1</summary>
#
# `sorted(range(n), key=...)` sorts indices; the key is a tuple of three numbers.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The sources are sorted, so the newest is the longest. The targets aren't: keep the longest length
# in the current batch, and reset it when you start a new batch.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Check whether the batch fits **with the new sentence in it**: the number of sentences is one more
# than now, and the longest length includes the new one's.
#
# </details>


# %% exercise="token_batches" points=3 section="trf-batches"
def token_batches(lengths: list[tuple[int, int]], max_tokens: int) -> list[list[int]]:
    """Batch sentences of similar length, as many as fit (Vaswani et al. 2017, 5.1).

    Args:
        lengths: (source length, target length) of each sentence.
        max_tokens: the most tokens, padding included, that a batch may have on either side; at
            least 1.

    Returns:
        The indices of each batch. Sentences are taken in the order of (source length, target
        length, index), and a batch ends where the next sentence would exceed max_tokens.

    Raises:
        ValueError: if max_tokens < 1, or a single sentence is too long.
    """
    ### BEGIN SOLUTION
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, but is {max_tokens}")
    batches: list[list[int]] = []
    longest = 0
    for i in sorted(range(len(lengths)), key=lambda i: (*lengths[i], i)):
        length = max(lengths[i])
        if length > max_tokens:
            raise ValueError(f"sentence {i} has {length} tokens, more than max_tokens={max_tokens}")
        longest = max(longest, length)
        # The longer side decides: it has the larger product.
        if batches and (len(batches[-1]) + 1) * longest <= max_tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
            longest = length
    return batches
    ### END SOLUTION


# %% check="token_batches" tags=["active-ipynb"]
# check("token_batches")

# %% [markdown]
# ### Exercise 3: Label smoothing
#
# A one-hot target demands probability 1, which no softmax reaches; the logits keep growing. Label
# smoothing (Szegedy et al., 2016) spreads a share $\epsilon$ of the target evenly over all tokens.
# Write `label_smoothing_loss(log_probs, target, smoothing=0.1, pad=PAD)`. For
# one real token $y$:
#
# $$\ell = (1 - \epsilon)\,(-\log p_y) + \frac{\epsilon}{V}\sum_{v=1}^{V} (-\log p_v)$$
#
# <!-- id: formula -->
#
# * `log_probs` `(B, U, V)`: logarithms of probabilities, as the generator returns them; `target`
#   `(B, U)` `torch.int64`; `smoothing` is $\epsilon$.
# * The sum runs over **all** $V$ tokens, the right one and `PAD` included, as in PyTorch.
#   <!-- id: all-tokens --> (Some
#   implementations spread $\epsilon$ over $V - 1$ or $V - 2$ tokens.)
# * Targets equal to `pad` are ignored. The result is a scalar: the sum of $\ell$ over the real
#   tokens of the batch, divided by their number. <!-- id: mean-over-tokens -->
#   `pad` may be an id outside the vocabulary, such as
#   −100. <!-- id: pad -->
# * `ValueError` if `smoothing` is negative, or 1 or more, or if all targets are padding.
#   <!-- id: bad-input -->
# * Not to be called: `cross_entropy`, `nll_loss` and their modules. <!-- id: not-called -->
#
# *Example.* $V = 4$, $p = (0.1, 0.7, 0.1, 0.1)$, target 1, $\epsilon = 0.1$:
# $\ell = 0.9 \cdot 0.357 + 0.025 \cdot (0.357 + 3 \cdot 2.303) \approx 0.503$. Without smoothing it
# is $0.357$.
#
# Book: `trf-smoothing`.
#
# <details><summary>Hint 1</summary>
#
# `gather` along the last axis, with an index of shape `(B, U, 1)`, picks $\log p_y$ for each token.
# It needs valid ids at padding, too: put one there first, such as 0.
#
# </details>
# <details><summary>Hint 2</summary>
#
# $\frac1V\sum_v$ is a mean over the last axis.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Set the terms at padding to 0, take the sum, and divide by the number of real tokens, not by
# $B\,U$.
#
# </details>


# %% exercise="label_smoothing_loss" points=4 section="trf-smoothing" forbids="cross_entropy nll_loss CrossEntropyLoss NLLLoss cross_entropy_loss nll_loss_nd nll_loss2d"
def label_smoothing_loss(
    log_probs: Tensor, target: Tensor, smoothing: float = 0.1, pad: int = PAD
) -> Tensor:
    """Cross-entropy against smoothed targets, per real token (Szegedy et al. 2016, section 7).

    Args:
        log_probs: (B, U, V), logarithms of probabilities.
        target: (B, U) int64.
        smoothing: eps, the share of the target that is spread evenly over all V tokens; in [0, 1).
        pad: the id that marks padding; such targets are ignored.

    Returns:
        A scalar: (1 - eps) (-log p[target]) + eps / V sum over v of (-log p[v]), averaged over the
        real tokens of the whole batch.

    Raises:
        ValueError: if not 0 <= smoothing < 1, or all targets are padding.
    """
    ### BEGIN SOLUTION
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing must be at least 0 and below 1, but is {smoothing}")
    real = target != pad  # (B, U)
    if not real.any():
        raise ValueError(f"every target is padding ({pad}); there is nothing to learn from")
    ids = target.masked_fill(~real, 0)  # (B, U), so that pad may lie outside the vocabulary
    correct = -log_probs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)  # (B, U)
    uniform = -log_probs.mean(dim=-1)  # (B, U), the mean over V
    if smoothing == 0:  # a token of probability 0 makes the mean infinite, and 0 times that NaN
        uniform = torch.zeros_like(correct)  # (B, U)
    loss = (1 - smoothing) * correct + smoothing * uniform  # (B, U)
    return loss.masked_fill(~real, 0.0).sum() / real.sum()  # scalar
    ### END SOLUTION


# %% check="label_smoothing_loss" tags=["active-ipynb"]
# check("label_smoothing_loss")

# %% [markdown]
# ### Exercise 4: The learning rate
#
# Write `learning_rate(step, d_model=512, warmup_steps=4000, factor=1.0)`, the schedule of the
# paper: the learning rate rises in proportion to the step, and after `warmup_steps` steps it falls
# with the inverse square **root** of the step.
#
# $$\text{lr} = \text{factor} \cdot D^{-1/2} \cdot
# \min\bigl(\text{step}^{-1/2},\; \text{step} \cdot \text{warmup\_steps}^{-3/2}\bigr)$$
#
# <!-- id: formula -->
#
# * `step` counts from 1. The result is a Python `float`. <!-- id: a-float -->
# * `ValueError` if `step` or `warmup_steps` is smaller than 1. <!-- id: bad-steps -->
#
# *Example.* With the defaults, step 1 has $1.75 \cdot 10^{-7}$, step 4000 has the peak of
# $6.99 \cdot 10^{-4}$, and step 16000 has half of that.
#
# Book: `trf-optimiser`.
#
# <details><summary>Hint 1</summary>
#
# `**` is the power, and it binds tighter than `*`: `step**-0.5` needs no parentheses.
#
# </details>
# <details><summary>Hint 2</summary>
#
# At `step == warmup_steps` both terms are equal; that is where the schedule has its peak.
#
# </details>


# %% exercise="learning_rate" points=1 section="trf-optimiser"
def learning_rate(
    step: int, d_model: int = 512, warmup_steps: int = 4000, factor: float = 1.0
) -> float:
    """Learning rate with linear warm-up, then 1 / sqrt(step) decay (Vaswani et al. 2017, 5.3).

    Args:
        step: number of the step, from 1.
        d_model: D.
        warmup_steps: number of steps in which the learning rate rises; at least 1.
        factor: multiplies the whole.

    Returns:
        factor D^-0.5 min(step^-0.5, step warmup_steps^-1.5).

    Raises:
        ValueError: if step < 1 or warmup_steps < 1.
    """
    ### BEGIN SOLUTION
    for name, value in (("step", step), ("warmup_steps", warmup_steps)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, but is {value}")
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)
    ### END SOLUTION


# %% check="learning_rate" tags=["active-ipynb"]
# check("learning_rate")

# %% [markdown]
# ### Exercise 5: A step of Adam
#
# Adam (Kingma and Ba, 2015) keeps two running means for each parameter: one of the gradient $g$
# (the first moment), one of its square (the second moment). Write
# `adam_step(parameter, gradient, exp_avg, exp_avg_sq, step, lr, betas=(0.9, 0.98), eps=1e-9)`:
#
# $$\begin{aligned}
# m' &= \beta_1 m + (1 - \beta_1)\, g & v' &= \beta_2 v + (1 - \beta_2)\, g^2\\
# \hat m &= \frac{m'}{1 - \beta_1^{t}} & \hat v &= \frac{v'}{1 - \beta_2^{t}}\\
# \theta' &= \theta - \text{lr}\,\frac{\hat m}{\sqrt{\hat v} + \epsilon}
# \end{aligned}$$
#
# <!-- id: formula -->
#
# * `parameter` ($\theta$), `gradient` ($g$), `exp_avg` ($m$) and `exp_avg_sq` ($v$) have the
#   same shape; `step` is $t$, from 1. Before the first step both moments are 0.
# * `eps` is added **outside** the root. <!-- id: eps -->
# * Returns `(parameter, exp_avg, exp_avg_sq)`, the new $\theta'$, $m'$, $v'$: the moments
#   **without** the correction by $1 - \beta^t$, because the next step continues from them.
#    <!-- id: uncorrected-moments --> The
#   inputs are not changed.
# * `ValueError` if `step` is smaller than 1. <!-- id: steps-from-1 -->
#
# *Example.* $\theta = 1$, $g = 0.5$, both moments 0, $t = 1$, learning rate $0.1$: the new
# parameter is $0.9$, the moments are $0.05$ and $0.005$. With $g = 50$ the new parameter would be
# $0.9$ as well: the first step has the length of the learning rate, whatever the size of the
# gradient.
#
# Book: `trf-optimiser`.
#
# <details><summary>Hint 1</summary>
#
# Each formula is one line. Give the corrected moments names of their own, so that you can return
# the uncorrected ones.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Methods that end in `_`, and `+=`, change a tensor in place. Here that would be the caller's
# tensor.
#
# </details>


# %% exercise="adam_step" points=3 section="trf-optimiser"
def adam_step(
    parameter: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-9,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of Adam (Kingma and Ba 2015, algorithm 1; numbers: Vaswani et al. 2017, 5.3).

    Args:
        parameter: any shape.
        gradient: the same shape, as all tensors here.
        exp_avg: the first moment, the running mean of gradients, before this step; 0 at first.
        exp_avg_sq: the second moment, the running mean of squared gradients, likewise.
        step: number of this step, from 1.
        lr: the learning rate.
        betas: the share of each running mean that is kept.
        eps: added to the root of the corrected second moment, outside the root.

    Returns:
        The new parameter, the new first and the new second moment; the moments without bias
        correction, as the next step needs them.

    Raises:
        ValueError: if step < 1.
    """
    ### BEGIN SOLUTION
    if step < 1:
        raise ValueError(f"step must be at least 1, but is {step}")
    beta_1, beta_2 = betas
    exp_avg = beta_1 * exp_avg + (1 - beta_1) * gradient
    exp_avg_sq = beta_2 * exp_avg_sq + (1 - beta_2) * gradient**2
    # Both moments are initialised with 0 and are too small by these factors.
    first_corrected = exp_avg / (1 - beta_1**step)
    second_corrected = exp_avg_sq / (1 - beta_2**step)
    new = parameter - lr * first_corrected / (second_corrected.sqrt() + eps)
    return new, exp_avg, exp_avg_sq
    ### END SOLUTION


# %% check="adam_step" tags=["active-ipynb"]
# check("adam_step")

# %% [markdown]
# ### Exercise 6: A training step
#
# Put the recipe together. Write
# `train_step(model, source, target, moments, step, lr, smoothing=0.1)`: one step on one batch.
#
# 1. Split `target` `(B, U + 1)` with exercise 1, apply `model` to `source` `(B, S)` and the input,
#    and compute the loss of its log-probabilities with exercise 3. <!-- id: loss -->
# 2. Compute the gradients of **this** loss. Gradients from earlier batches, which may still be in
#    `.grad`, must not count. <!-- id: own-gradients -->
# 3. Update every parameter that has a gradient with exercise 5, in place, with the `betas` and
#    `eps` of the paper, its defaults. <!-- id: update -->
#
# * `model` is any module that maps `(B, S)` and `(B, U)` ids to log-probabilities `(B, U, V)`.
#   Leave its mode (training or evaluation) as it is: that is up to the caller.
#   <!-- id: mode-kept -->
# * `moments` is a `dict` from a parameter's name (as in `model.named_parameters()`) to the pair
#   `(first, second)`, and `{}` before the first step. It is left unchanged; the new one is
#   returned. <!-- id: moments -->
# * A parameter without a gradient (one that is frozen, or that the loss doesn't depend on) is not
#   changed and gets no moments. <!-- id: without-gradient -->
# * Returns `(loss, moments)`: the loss **before** the step, a Python `float`, and the new `dict`.
#
# *Example.* After `train_step(model, source, target, {}, 1, 0.01)` no entry of any parameter has
# moved by more than 0.01 (up to rounding), and those with a clear gradient have moved by almost
# exactly that.
#
# Book: `trf-training`.
#
# <details><summary>Hint 1</summary>
#
# `loss.backward()` **adds** to what is in `.grad`. Call `model.zero_grad()` before it.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Parameters are leaves of the graph, which can only be changed in place where nothing is recorded:
# `with torch.no_grad():`. There `parameter.copy_(...)` writes new values into one.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A weight that several modules share appears once in `named_parameters()`, with the sum of its
# gradients. `torch.zeros_like` creates the moments before the first step.
#
# </details>


# %% exercise="train_step" points=4 section="trf-training"
def train_step(
    model: nn.Module,
    source: Tensor,
    target: Tensor,
    moments: dict[str, tuple[Tensor, Tensor]],
    step: int,
    lr: float,
    smoothing: float = 0.1,
) -> tuple[float, dict[str, tuple[Tensor, Tensor]]]:
    """Train the model on one batch, in place (Vaswani et al. 2017, section 5).

    Args:
        model: (B, S) ids and (B, U) ids -> log-probabilities (B, U, V); its mode is not changed.
        source: (B, S) int64.
        target: (B, U + 1) int64, from BOS to EOS.
        moments: Adam's two moments for each parameter's name; {} before the first step. Not
            changed.
        step: number of this step, from 1.
        lr: the learning rate.
        smoothing: as for label_smoothing_loss.

    Returns:
        The loss before the step, and the new moments.
    """
    ### BEGIN SOLUTION
    tgt_in, tgt_out, _ = shift_targets(target)  # (B, U) each
    loss = label_smoothing_loss(model(source, tgt_in), tgt_out, smoothing)  # scalar
    model.zero_grad()
    loss.backward()
    updated = dict(moments)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.grad is None:
                continue
            if name not in moments:
                updated[name] = (torch.zeros_like(parameter), torch.zeros_like(parameter))
            new, *means = adam_step(parameter, parameter.grad, *updated[name], step, lr)
            parameter.copy_(new)
            updated[name] = tuple(means)
    return loss.item(), updated
    ### END SOLUTION


# %% check="train_step" tags=["active-ipynb"]
# check("train_step")


# %% tags=["instructor"]
def average_states(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Checkpoint averaging: the mean of several states of one model (Vaswani et al. 2017, 6.1).

    Args:
        states: at least one result of ``model.state_dict()``, all with the same names and shapes.

    Returns:
        A state to load, in which each tensor is the mean of all.

    Raises:
        ValueError: if there are no states.
    """
    if not states:
        raise ValueError("there are no states to average; give at least one")
    return {name: torch.stack([state[name] for state in states]).mean(dim=0) for name in states[0]}
