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
# # GPT: training
#
# At the end of this unit GPT trains: with its initialisation, its loss, its optimiser and its
# schedule.

# %%
"""Initialisation, likelihood, loss, batches, AdamW, the schedule, training."""

# The options of a cell must stand on one line, however long it gets.
# ruff: noqa: E501

# %%
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from solutions.gpt.model import GPT

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("gpt-training")

# %% [markdown]
# ### Exercise 1: Initialisation
#
# Write `init_weights(model)`: draw all parameters of a `GPT` anew, in place, and return the model.
# <!-- id: in-place -->
#
# | parameters | initialised with |
# |---|---|
# | weights of linear layers, both embeddings | $\mathcal N(0,\; 0.02^2)$ |
# | with pre-norm: `out_proj.weight` and `w_2.weight` | $\mathcal N\bigl(0,\; 0.02^2/(2N)\bigr)$ |
# | biases of linear layers and norms | 0 |
# | weights of norms | 1 |
#
# <!-- id: distributions -->
#
# * $N$ is the number of blocks. The second row is GPT-2's: with pre-norm $2N$ branches are added
#   up, and each begins smaller by $\sqrt{2N}$, so that the sum doesn't grow with the depth.
#   <!-- id: residual-scaling --> With
#   post-norm (GPT-1) these weights belong to the first row. <!-- id: post-norm -->
# * Whether the model is pre-norm shows in `final_norm`: it is an `nn.LayerNorm` then, and an
#   `nn.Identity` otherwise.
#
# *Example.* With 8 blocks, `out_proj.weight` has a deviation of $0.02 / \sqrt{16} = 0.005$ with
# pre-norm, and 0.02 with post-norm.
#
# Book: `gpt-init`.
#
# <details><summary>Hint 1</summary>
#
# `model.modules()` yields every module inside; `isinstance` tells linear layers, embeddings and
# norms apart. `nn.init.normal_(tensor, std=...)` draws into a parameter.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `std` is the deviation, the root of the variance in the table.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Draw everything with 0.02 first; then go through the blocks once more, if the model is pre-norm,
# and draw the two special weights again.
#
# </details>


# %% exercise="init_weights" points=3 section="gpt-init"
def init_weights(model: GPT) -> GPT:
    """Draw all weights anew, in place (Radford et al. 2018, section 4.1; 2019, section 2.3).

    Args:
        model: a GPT of N blocks.

    Returns:
        The same model. Weights of linear layers and embeddings come from N(0, 0.02^2); with a
        final norm (GPT-2) ``out_proj.weight`` and ``w_2.weight`` from N(0, 0.02^2 / (2 N)). Biases
        are 0; norms begin with weight 1 and bias 0.
    """
    ### BEGIN SOLUTION
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
        if isinstance(module, (nn.Linear, nn.LayerNorm)):
            nn.init.zeros_(module.bias)
    if isinstance(model.final_norm, nn.LayerNorm):
        # 2 N branches add to the sum; so scaled, it stays as large as one of them would be.
        small = 0.02 / math.sqrt(2 * len(model.blocks))
        for block in model.blocks:
            nn.init.normal_(block.attention.out_proj.weight, std=small)
            nn.init.normal_(block.feed_forward.w_2.weight, std=small)
    return model
    ### END SOLUTION


# %% check="init_weights" tags=["active-ipynb"]
# check("init_weights")


# %% tags=["instructor"]
def make_model(
    vocab_size: int,
    max_length: int,
    d_model: int,
    num_layers: int,
    num_heads: int,
    dropout: float = 0.1,
    norm_first: bool = True,
) -> GPT:
    """Make a GPT and draw its parameters by ``init_weights``.

    Args:
        vocab_size: V.
        max_length: C, the longest input.
        d_model: D.
        num_layers: N.
        num_heads: H, a divisor of d_model.
        dropout: of the embeddings and of all blocks.
        norm_first: pre-norm (GPT-2) or post-norm (GPT-1).

    Returns:
        The model, in training mode.

    Raises:
        ValueError: if num_heads does not divide d_model.
    """
    return init_weights(
        GPT(vocab_size, max_length, d_model, num_layers, num_heads, dropout, norm_first)
    )


# %% [markdown]
# ### Exercise 2: How large is it?
#
# Write `count_parameters(vocab_size, max_length, d_model, num_layers, norm_first=True)`: how many
# numbers a `GPT` of this size learns.
#
# * The result is an `int`. <!-- id: an-int -->
# * The token embedding counts once, though it is used twice. <!-- id: tied-once -->
#   A linear layer has a bias; a norm has
#   two vectors. <!-- id: biases-and-norms --> With `norm_first` there is a final norm.
#   <!-- id: final-norm -->
# * The number of heads makes no difference, and there is no parameter for it.
#
# *Example.* `count_parameters(10, 6, 4, 1)` is 316: 64 in the embeddings, 244 in the block, 8 in the
# final norm. Without pre-norm it is 308. GPT-1, `(40478, 512, 768, 12, False)`, has 116,534,784.
#
# Book: `gpt-parameters`.
#
# <details><summary>Hint 1</summary>
#
# Write down the shape of every parameter of `CausalSelfAttention` to `GPT` (unit `model`). A linear
# layer from $D$ to $F$ has $DF + F$ numbers.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A block has four linear layers, which together have $12 D^2$ weights, and two norms. Don't forget
# the four biases.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Or let PyTorch count: inside `with torch.device("meta"):` a model is made without any memory for
# its numbers, and `numel()` of its parameters still works.
#
# </details>


# %% exercise="count_parameters" points=2 section="gpt-parameters"
def count_parameters(
    vocab_size: int, max_length: int, d_model: int, num_layers: int, norm_first: bool = True
) -> int:
    """How many numbers a GPT learns; the number of heads doesn't matter.

    Args:
        vocab_size: V.
        max_length: C.
        d_model: D.
        num_layers: N.
        norm_first: whether there is a final norm.

    Returns:
        The number of parameters; the token embedding, the output matrix too, counts once.
    """
    ### BEGIN SOLUTION
    norm = 2 * d_model  # weight and bias
    attention = (d_model + 1) * 3 * d_model + (d_model + 1) * d_model  # qkv, out_proj
    feed_forward = (d_model + 1) * 4 * d_model + (4 * d_model + 1) * d_model  # w_1, w_2
    block = attention + feed_forward + 2 * norm
    embeddings = (vocab_size + max_length) * d_model
    return embeddings + num_layers * block + (norm if norm_first else 0)
    ### END SOLUTION


# %% check="count_parameters" tags=["active-ipynb"]
# check("count_parameters")

# %% [markdown]
# ## The objective
#
# ### Exercise 3: The likelihood of a text
#
# GPT is trained to make texts likely. Write `log_likelihood(logits, ids, mask=None)`: for each row
#
# $$L_1 = \sum_{\substack{t = 1 \dots T-1\\ \text{mask}_t}}
# \log P(u_t \mid u_0, \dots, u_{t-1}),\qquad
# P(\,\cdot \mid u_0, \dots, u_{t-1}) = \operatorname{softmax}(\text{logits}_{t-1})$$
#
# * `logits` `(B, T, V)` are what the model says after each token; `ids` `(B, T)` are the tokens.
#   **The token at $t$ is predicted by the logits at $t - 1$.** <!-- id: shift -->
#    The first token is never a
#   target, and the logits at the last position are not used. <!-- id: first-and-last -->
# * `mask` `(B, T)` bool belongs to the targets: the term of the token at $t$ counts if it is `True`
#   there. `None`: all count. <!-- id: mask-of-targets -->
# * The result is `(B,)`, a sum for each row, never positive. <!-- id: sum-of-a-row -->
# * `ValueError` if $T$ is smaller than 2. <!-- id: too-short -->
#
# *Example.* $V = 4$, $T = 3$ and all logits are 0: $2 \log \tfrac14 \approx -2.773$. With a mask
# that is `True` at the last token only it is $\log \tfrac14 \approx -1.386$.
#
# Book: `gpt-loss`.
#
# <details><summary>Hint 1</summary>
#
# `logits[:, :-1]` and `ids[:, 1:]` belong together: both have $T - 1$ positions.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.log_softmax` over the last axis, then `gather` along it: the index must have as many axes
# as the table, so the targets need one more, of length 1.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The mask has $T$ columns, of which the first is never asked. A term that doesn't count is replaced
# by 0.
#
# </details>


# %% exercise="log_likelihood" points=2 section="gpt-loss"
def log_likelihood(logits: Tensor, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """The log-probability of each row, token after token (Radford et al. 2018, equation 1).

    Args:
        logits: (B, T, V); those at position t are for the token at t + 1.
        ids: (B, T) int64.
        mask: (B, T) bool, True at the targets that count; None: all count. The first token is
            never a target.

    Returns:
        (B,): the sum over t = 1 .. T - 1 with mask of log P(ids[:, t] | the tokens before it).

    Raises:
        ValueError: if T < 2.
    """
    ### BEGIN SOLUTION
    if ids.shape[1] < 2:
        raise ValueError("a row of fewer than two tokens has no target")
    targets = ids[:, 1:].unsqueeze(2)  # (B, T - 1, 1)
    log_probs = torch.log_softmax(logits[:, :-1], dim=2)  # (B, T - 1, V)
    terms = log_probs.gather(2, targets).squeeze(2)  # (B, T - 1)
    if mask is not None:
        terms = terms.masked_fill(~mask[:, 1:], 0.0)  # (B, T - 1)
    return terms.sum(dim=1)  # (B,)
    ### END SOLUTION


# %% check="log_likelihood" tags=["active-ipynb"]
# check("log_likelihood")

# %% [markdown]
# ### Exercise 4: The loss
#
# Write `language_model_loss(logits, ids, mask=None)`, what training minimises:
#
# $$\text{loss} = -\frac{1}{n} \sum_{b} \sum_{t\,:\,\text{mask}_{b,t}}
# \log P(u_{b,t} \mid u_{b,0}, \dots, u_{b,t-1})$$
#
# * The arguments are those of exercise 3. $n$ is the number of terms that count, in
#   the whole batch: the mean is over **targets**, not over rows. <!-- id: mean-over-targets -->
# * The result is a scalar. If no target counts it is 0, and its gradient is finite.
#   <!-- id: no-target -->
# * $e^{\text{loss}}$ is the *perplexity*: a model that chooses evenly among $m$ tokens has $m$.
# * `ValueError` if $T$ is smaller than 2. <!-- id: too-short -->
#
# *Example.* $V = 4$ and all logits are 0: the loss is $\log 4 \approx 1.386$, whatever $T$ and the
# mask are, and the perplexity is 4.
#
# Book: `gpt-loss`.
#
# <details><summary>Hint 1</summary>
#
# The sum is the one you have: add the rows up.
#
# </details>
# <details><summary>Hint 2</summary>
#
# How many targets are there? Without a mask $B\,(T - 1)$; with one, count `True`s, but not in the
# first column. `clamp(min=1)` keeps a division from being $0/0$.
#
# </details>


# %% exercise="language_model_loss" points=2 section="gpt-loss"
def language_model_loss(logits: Tensor, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """The mean of -log P of the targets that count, over the whole batch.

    Args:
        logits: (B, T, V); those at position t are for the token at t + 1.
        ids: (B, T) int64.
        mask: (B, T) bool, True at the targets that count; None: all count.

    Returns:
        A scalar; 0 if no target counts.

    Raises:
        ValueError: if T < 2.
    """
    ### BEGIN SOLUTION
    total = log_likelihood(logits, ids, mask).sum()  # scalar
    count = ids[:, 1:].numel() if mask is None else mask[:, 1:].sum().clamp(min=1)
    return -total / count  # scalar
    ### END SOLUTION


# %% check="language_model_loss" tags=["active-ipynb"]
# check("language_model_loss")

# %% [markdown]
# ### Question: Why does one causal pass train all positions?
#
# A batch of one block with $T$ tokens gives $T - 1$ predictions, and all of them come from a single
# pass. Why is every one of them an honest prediction, made from its own past only? What would have
# to be computed instead, and how often, if there were no mask? What exactly would break if the
# targets were not shifted by one position, with the mask as it is? And a masked language model such as
# BERT gets far fewer predictions from the same pass: why?
#
# Book: `gpt-loss`. 3 points, marked by a person.
#

# %% [markdown] question="why_train_all_places" points=3 section="gpt-loss" title="Why does one causal pass train all positions?"
# **Your answer:**
#
# ### BEGIN SOLUTION
# *Why all are honest.* The mask lets position $i$ attend to the positions $j \le i$ only. Norms, the
# feed-forward network and the output matrix work on each position by itself, so attention is the only
# way by which tokens meet. By induction over the blocks, the vector at position $i$ is a function of
# the tokens $0 \dots i$ in every block, and so are its logits. They are the same numbers that a
# pass over the beginning $u_0 \dots u_i$ alone would give. So one pass over $T$ tokens holds the
# passes over all its beginnings, and the loss adds up $T - 1$ predictions, none of which has seen
# its target. The chain rule makes their product the probability of the whole block.
#
# *Without the mask* every position would see the whole block, its own target included. To predict each
# token from its past alone, one would have to run the model on each beginning by itself: $T - 1$
# passes in place of one, for the same number of predictions. (And keys and values of earlier positions
# would change with each new token, so a cache would be impossible too.)
#
# *Without the shift.* Position $i$ sees itself: the mask has $j \le i$, not $j < i$. If its target
# were the token at $i$, the answer would stand in the input. The loss falls towards 0 by copying
# (with a tied output matrix the model hardly has to learn anything for it), and no prediction is
# learned: in generation the model repeats its last token. A smaller mask, $j < i$, in place of the
# shift doesn't help: the first position would see nothing, and through the residual connection the
# token at $i$ would still reach its own logits.
#
# *Compared with BERT.* A masked language model sees both sides. A token that is to be predicted
# must therefore be hidden in the input, and hidden tokens are missing as context for all others; so
# only about 15 percent are hidden, and only these are predicted. The causal model hides the target
# by order, not by removing it: every token is context for those behind it and target of the one
# before it at the same time.
#
# *Points by part, and what commonly goes wrong:* `solutions/marking_guides.md`.
# ### END SOLUTION

# %% [markdown]
# ## Training
#
# ### Exercise 5: Fixed-length chunks of a token stream
#
# The training text is one long stream of tokens. Write `sample_blocks(stream, length, batch_size)`,
# which cuts a batch out of it.
#
# * `stream` `(M,)` `torch.int64`. Returns `(inputs, targets)`, both `(B, T)`, with $T$ = `length`
#   and $B$ = `batch_size`. <!-- id: inputs-and-targets -->
# * Each row of `inputs` is a **contiguous** chunk (a block) of the stream, and the row of `targets` is the
#   same block one token further. <!-- id: contiguous --> So the shift happens here.
# * The start of each row is drawn evenly from **all** positions at which a block and its last target
#   fit, independently of the other rows, from PyTorch's global generator. <!-- id: all-starts -->
# * `ValueError` if `length` or `batch_size` is smaller than 1, or if $M$ is smaller than
#   `length + 1`. <!-- id: bad-sizes -->
#
# *Example.* In the stream $10, 11, 12, 13$ there are two blocks of length 2: $10, 11$ with the
# targets $11, 12$, and $11, 12$ with the targets $12, 13$.
#
# Book: `gpt-batches`.
#
# <details><summary>Hint 1</summary>
#
# The last block begins at $M - T - 1$, so there are $M - T$ starts.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.randint(n, shape)` draws from 0 to $n - 1$; the upper end is not included.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A column of starts plus a row of steps is a matrix of positions, and a tensor can be asked for all of
# them at once.
#
# </details>


# %% exercise="sample_blocks" points=2 section="gpt-batches"
def sample_blocks(stream: Tensor, length: int, batch_size: int) -> tuple[Tensor, Tensor]:
    """Contiguous blocks of a long text, from anywhere in it (Radford et al. 2018, section 4.1).

    Args:
        stream: (M,) int64, the whole text.
        length: T, at least 1.
        batch_size: B, at least 1.

    Returns:
        inputs and targets, both (B, T) int64: each row begins at a position drawn evenly from all
        M - T, and its targets are the same block one token further.

    Raises:
        ValueError: if length or batch_size is smaller than 1, or M < T + 1.
    """
    ### BEGIN SOLUTION
    for name, value in (("length", length), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, but is {value}")
    if len(stream) < length + 1:
        raise ValueError(f"a block of {length} and its last target need more than {len(stream)}")
    starts = torch.randint(len(stream) - length, (batch_size, 1), device=stream.device)  # (B, 1)
    positions = starts + torch.arange(length, device=stream.device)  # (B, T)
    return stream[positions], stream[positions + 1]  # (B, T) each
    ### END SOLUTION


# %% check="sample_blocks" tags=["active-ipynb"]
# check("sample_blocks")

# %% [markdown]
# ### Exercise 6: What decays
#
# Weight decay pulls parameters towards 0. GPT applies it to matrices and embeddings, but not to biases
# and norms. Write `decay_groups(model, weight_decay)`, which sorts the parameters of a module into
# two groups, as PyTorch's optimisers take them:
#
# ```
# [{"params": [...], "weight_decay": weight_decay},
#  {"params": [...], "weight_decay": 0.0}]
# ```
#
# * The first group has the parameters with two or more axes, the second all others, both in the
#   order of `model.parameters()`. <!-- id: by-axes -->
# * A parameter that is used several times stands in the list once. <!-- id: once -->
#   One that doesn't require a
#   gradient (it is frozen) stands in neither. <!-- id: frozen -->
# * `ValueError` if `weight_decay` is negative. <!-- id: negative-decay -->
#
# *Example.* Of an `nn.Linear(3, 2)` the weight is in the first group and the bias in the second.
#
# Book: `gpt-optimiser`.
#
# <details><summary>Hint 1</summary>
#
# `dim()` is the number of axes of a tensor. The names of the parameters don't matter.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `model.parameters()` yields a shared parameter once already, and `requires_grad` tells which are
# trained.
#
# </details>


# %% exercise="decay_groups" points=2 section="gpt-optimiser"
def decay_groups(
    model: nn.Module, weight_decay: float
) -> list[dict[str, list[nn.Parameter] | float]]:
    """Which parameters shrink (Radford et al. 2018, section 4.1: all non bias or gain weights).

    Args:
        model: any module.
        weight_decay: of the first group, at least 0.

    Returns:
        Two groups as PyTorch's optimisers take them, {"params": ..., "weight_decay": ...}: the
        parameters with two or more axes with weight_decay, all others with 0; each parameter that
        requires a gradient once, in the order of model.parameters().

    Raises:
        ValueError: if weight_decay < 0.
    """
    ### BEGIN SOLUTION
    if weight_decay < 0:
        raise ValueError(f"weight_decay must be at least 0, but is {weight_decay}")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    ### END SOLUTION


# %% check="decay_groups" tags=["active-ipynb"]
# check("decay_groups")

# %% [markdown]
# ### Exercise 7: A step of AdamW
#
# In Adam, a decay that is added to the gradient is divided by $\sqrt{\hat v}$ like all the rest, so
# that parameters with large gradients hardly decay. AdamW (Loshchilov and Hutter, 2019) takes it
# out. Write `adamw_step(parameter, gradient, exp_avg, exp_avg_sq, step, lr, betas=(0.9, 0.95),
# eps=1e-8, weight_decay=0.1)`:
#
# $$\begin{aligned}
# m' &= \beta_1 m + (1 - \beta_1)\, g & v' &= \beta_2 v + (1 - \beta_2)\, g^2\\
# \hat m &= \frac{m'}{1 - \beta_1^{t}} & \hat v &= \frac{v'}{1 - \beta_2^{t}}\\
# \theta' &= (1 - \text{lr} \cdot \lambda)\,\theta
# - \text{lr}\,\frac{\hat m}{\sqrt{\hat v} + \epsilon}
# \end{aligned}$$
#
# <!-- id: formula -->
#
# * `parameter` ($\theta$), `gradient` ($g$), `exp_avg` ($m$) and `exp_avg_sq` ($v$) have one and
#   the same shape; `step` is $t$, from 1; `weight_decay` is $\lambda$. Before the first step both
#   moments are 0.
# * The decay acts on the **old** parameter. It does not enter the two moments.
#   <!-- id: decoupled-decay -->
# * Returns `(parameter, exp_avg, exp_avg_sq)`, the new ones: the moments as they are **before** the
#   bias correction by $1 - \beta^t$. <!-- id: uncorrected-moments --> The inputs stay as they are.
# * `ValueError` if `step` is smaller than 1. <!-- id: steps-from-1 -->
#
# *Example.* $\theta = 1$, $g = 0.5$, both moments 0, $t = 1$, learning rate $0.1$: the decay takes
# $0.01$ away and the step of Adam $0.1$, so the new parameter is $0.89$. The moments are $0.05$ and
# $0.0125$.
#
# Book: `gpt-optimiser`.
#
# <details><summary>Hint 1</summary>
#
# Begin with your step of Adam from the chapter on the Transformer. One factor is new.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Methods that end in `_`, and `+=`, change a tensor in place. Here that would change the caller's.
#
# </details>


# %% exercise="adamw_step" points=3 section="gpt-optimiser"
def adamw_step(
    parameter: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.1,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of Adam with decoupled decay (Loshchilov and Hutter 2019, algorithm 2).

    Args:
        parameter: any shape.
        gradient: the same shape, as all tensors here.
        exp_avg: the running mean of gradients before this step, 0 before the first.
        exp_avg_sq: the running mean of squared gradients before this step, 0 before the first.
        step: number of this step, from 1.
        lr: the learning rate.
        betas: how much of each running mean is kept.
        eps: added to the root of the second moment, outside the root.
        weight_decay: the old parameter shrinks by lr * weight_decay of itself.

    Returns:
        The new parameter, the new first and the new second moment; the means without bias correction,
        as the next step needs them.

    Raises:
        ValueError: if step < 1.
    """
    ### BEGIN SOLUTION
    if step < 1:
        raise ValueError(f"step must be at least 1, but is {step}")
    beta_1, beta_2 = betas
    exp_avg = beta_1 * exp_avg + (1 - beta_1) * gradient
    exp_avg_sq = beta_2 * exp_avg_sq + (1 - beta_2) * gradient**2
    # Both means began at 0 and are too small by these factors.
    first_corrected = exp_avg / (1 - beta_1**step)
    second_corrected = exp_avg_sq / (1 - beta_2**step)
    # The decay is no part of the gradient: the running means know nothing of it.
    shrunk = (1 - lr * weight_decay) * parameter
    return shrunk - lr * first_corrected / (second_corrected.sqrt() + eps), exp_avg, exp_avg_sq
    ### END SOLUTION


# %% check="adamw_step" tags=["active-ipynb"]
# check("adamw_step")

# %% [markdown]
# ### Exercise 8: The learning rate
#
# Write `cosine_lr(step, max_lr, warmup_steps, total_steps, min_lr=0.0)`: linear warm-up, then cosine decay.
#
# $$\text{lr}(s) = \begin{cases}
# \text{max\_lr} \cdot s/\text{warmup\_steps} & s \le \text{warmup\_steps}\\
# \text{min\_lr} + (\text{max\_lr} - \text{min\_lr})\,\tfrac12\Bigl(1 + \cos\Bigl(\pi\,
# \dfrac{s - \text{warmup\_steps}}{\text{total\_steps} - \text{warmup\_steps}}\Bigr)\Bigr)
# & \text{warmup\_steps} < s < \text{total\_steps}\\
# \text{min\_lr} & s \ge \text{total\_steps}
# \end{cases}$$
#
# <!-- id: three-pieces -->
#
# * `step` ($s$) counts from 1. `warmup_steps` may be 0: then the learning rate begins near its peak
#   and only falls. <!-- id: no-warm-up -->
# * The result is a Python `float`. <!-- id: a-float -->
# * `ValueError` if `step` is smaller than 1, or if `warmup_steps` is negative or not smaller than
#   `total_steps`. <!-- id: bad-steps -->
#
# *Example.* With `max_lr=1.0, warmup_steps=10, total_steps=110`, step 5 has 0.5, step 10 has 1,
# step 60 has 0.5, and from step 110 on the learning rate is 0.
#
# Book: `gpt-schedule`.
#
# <details><summary>Hint 1</summary>
#
# Three cases, three returns. The fraction in the cosine goes from 0 at the peak to 1 at the end.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `math.cos` takes radians: half a turn is `math.pi`. After `total_steps` a cosine would rise again.
#
# </details>


# %% exercise="cosine_lr" points=2 section="gpt-schedule"
def cosine_lr(
    step: int, max_lr: float, warmup_steps: int, total_steps: int, min_lr: float = 0.0
) -> float:
    """The learning rate of a step: linear warm-up, cosine decay (Radford et al. 2018, 4.1).

    Args:
        step: number of the step, from 1.
        max_lr: the learning rate at step ``warmup_steps``.
        warmup_steps: in how many steps the rate rises, from 0 to total_steps - 1.
        total_steps: the step from which on the rate is ``min_lr``.
        min_lr: the learning rate at the end.

    Returns:
        max_lr step / warmup_steps up to ``warmup_steps``, then min_lr + (max_lr - min_lr) (1 +
        cos(pi f)) / 2 with the fraction f = (step - warmup_steps) / (total_steps - warmup_steps),
        and min_lr from ``total_steps`` on.

    Raises:
        ValueError: if step < 1 or not 0 <= warmup_steps < total_steps.
    """
    ### BEGIN SOLUTION
    if step < 1:
        raise ValueError(f"step must be at least 1, but is {step}")
    if not 0 <= warmup_steps < total_steps:
        raise ValueError(
            f"warmup_steps must be at least 0 and less than {total_steps}, but is {warmup_steps}"
        )
    if step <= warmup_steps:
        return max_lr * step / warmup_steps
    if step >= total_steps:
        return min_lr
    fraction = (step - warmup_steps) / (total_steps - warmup_steps)
    return min_lr + (max_lr - min_lr) * (1 + math.cos(math.pi * fraction)) / 2
    ### END SOLUTION


# %% check="cosine_lr" tags=["active-ipynb"]
# check("cosine_lr")

# %% [markdown]
# ### Exercise 9: Training
#
# Put it together. Write `train(model, stream, total_steps, length, batch_size, max_lr,
# warmup_steps, weight_decay=0.1, clip=1.0)`. First the model is put into training mode;
# <!-- id: training-mode --> then each
# of `total_steps` steps
#
# 1. takes a batch from `sample_blocks` and applies `model` to its inputs;
#    <!-- id: a-batch-a-step -->
# 2. computes the mean cross-entropy of logits and targets, over all positions (`sample_blocks` has
#    shifted them already); <!-- id: no-second-shift -->
# 3. computes the gradients of **this** loss alone, and clips them to a total norm of at most
#    `clip`; <!-- id: clip -->
# 4. updates the parameters by AdamW with `betas=(0.9, 0.95)`, `eps=1e-8` and the decay of
#    `decay_groups`, at the learning rate that `cosine_lr` gives this step, with the same
#    `total_steps`. <!-- id: adamw-at-its-rate -->
#
# * `model` is any module that maps ids `(B, T)` to logits `(B, T, V)`. It is changed in place.
# * Returns a list of `total_steps` `float`s: the loss of each step, **before** its update.
#   <!-- id: losses -->
# * A parameter that doesn't require a gradient stays as it is. <!-- id: frozen -->
# * `torch.optim.AdamW` and `nn.utils.clip_grad_norm_` may be used. The optimiser is made once: its
#   moments belong to the whole training. <!-- id: one-optimiser -->
#
# *Example.* A `GPT(12, 8, 16, 1, 2, dropout=0.0)` on a stream that repeats five tokens again and
# again: in 80 steps of 8 blocks of length 8, with `max_lr=0.02` and `warmup_steps=8`, the loss
# falls from $\log 12 \approx 2.48$ to under 0.1.
#
# Book: `gpt-training`.
#
# <details><summary>Hint 1</summary>
#
# PyTorch's optimisers keep a list `param_groups`, and each of its groups has an entry `"lr"`, which
# may be changed before a step.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `backward()` **adds** to what stands in `.grad`. Empty it in every step, before or after.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `F.cross_entropy` wants `(n, V)` and `(n,)`: flatten batch and positions together. `loss.item()` makes
# a `float`; a list of tensors would keep every step's graph alive.
#
# </details>


# %% exercise="train" points=5 section="gpt-training"
def train(
    model: nn.Module,
    stream: Tensor,
    total_steps: int,
    length: int,
    batch_size: int,
    max_lr: float,
    warmup_steps: int,
    weight_decay: float = 0.1,
    clip: float = 1.0,
) -> list[float]:
    """Train a language model on a long text, in place (Radford et al. 2018, section 4.1).

    The numbers of AdamW and the norm to which gradients are cut are GPT-3's (Brown et al. 2020,
    appendix B).

    Args:
        model: ids (B, T) -> logits (B, T, V); put into training mode.
        stream: (M,) int64, the text.
        total_steps: how many.
        length: T, of a block.
        batch_size: B, blocks in a step.
        max_lr: the highest learning rate.
        warmup_steps: in how many steps the rate rises, fewer than ``total_steps``.
        weight_decay: of the parameters with two or more axes.
        clip: the largest norm of all gradients together.

    Returns:
        The loss of each step, before its update.
    """
    ### BEGIN SOLUTION
    model.train()
    groups = decay_groups(model, weight_decay)
    optimiser = torch.optim.AdamW(groups, lr=max_lr, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(1, total_steps + 1):
        for group in optimiser.param_groups:
            group["lr"] = cosine_lr(step, max_lr, warmup_steps, total_steps)
        inputs, targets = sample_blocks(stream, length, batch_size)  # (B, T) each
        logits = model(inputs)  # (B, T, V)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())  # scalar
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimiser.step()
        losses.append(loss.item())
    return losses
    ### END SOLUTION


# %% check="train" tags=["active-ipynb"]
# check("train")
