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
# # GPT: generation
#
# At the end of this unit GPT writes: with temperature, top-k and top-p, and with a cache.
#
# One of the code cells below hands you `TableModel(table, max_length=1024)`: a "model" without a
# network. Its logits after a token are a row of a table, so you know them beforehand. It is called
# like your GPT, and it is good for trying `generate`.

# %%
"""Temperature, top-k, top-p, sampling, and generation with a cache."""

# The options of a cell must stand on one line, however long it gets.
# ruff: noqa: E501

# %%
import math

import torch
from torch import Tensor, nn

from solutions.gpt.model import (
    GPT,
    CausalSelfAttention,
    FeedForward,  # noqa: F401 - a part of each block
    PreNormBlock,
    causal_mask,
    gelu,
)
from toolkit.kv_cache import KVCache, LayerCache

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("gpt-generation")

# %%
PAD, START, DELIMITER, EXTRACT, END = 0, 1, 2, 3, 4
SPECIAL = 5  # ids below it are special


class TableModel(nn.Module):
    """A model without a network: the logits of the next token stand in a table.

    Which row is read depends on the token before, and, if the table has three axes, on the position t
    (from 0) where that token stands: ``table[previous]`` or ``table[t, previous]``. Positions beyond
    the table use its last one. ``max_length`` is the longest input.
    """

    def __init__(self, table: Tensor, max_length: int = 1024) -> None:
        """Keep ``table``: (V, V), previous token and next token; or (L, V, V), position first."""
        super().__init__()
        self.register_buffer("table", table)
        self.max_length = max_length

    def forward(self, ids: Tensor) -> Tensor:
        """ids (B, T) -> the logits (B, T, V) of the token after each of them."""
        size = ids.shape[1]
        if size > self.max_length:
            raise ValueError(
                f"this table reads at most {self.max_length} tokens, and these are {size}"
            )
        if self.table.dim() == 2:
            return self.table[ids]  # (B, T, V)
        rows = torch.arange(size, device=ids.device).clamp(max=len(self.table) - 1)  # (T,)
        return self.table[rows, ids]  # (B, T, V)


# %% [markdown]
# ## Writing
#
# ### Exercise 1: Temperature
#
# A trained model gives a distribution of the next token. Before a token is drawn, the distribution
# is often made sharper or flatter. Write `scale_temperature(logits, temperature)`:
#
# $$P(v) = \operatorname{softmax}(\text{logits} / \tau)_v$$
#
# * `logits` has any shape, and so has the result: the logits divided by `temperature` ($\tau$), not
#   yet the probabilities. <!-- id: divided-logits -->
# * Below 1 the best token gains, above 1 all tokens become more alike.
# * `ValueError` if `temperature` is 0 or less. <!-- id: bad-temperature -->
#
# *Example.* The logits $0$ and $\log 3$ stand for the probabilities $\tfrac14$ and $\tfrac34$. With
# $\tau = \tfrac12$ they become $\tfrac1{10}$ and $\tfrac9{10}$.
#
# Book: `gpt-temperature`.
#
# <details><summary>Hint 1</summary>
#
# One line after the check.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The result is logits again: no softmax is needed, and numbers of any shape can be divided.
#
# </details>


# %% exercise="scale_temperature" points=1 section="gpt-temperature"
def scale_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Make a distribution sharper (below 1) or flatter (above 1).

    Args:
        logits: any shape.
        temperature: larger than 0.

    Returns:
        The same shape, logits / temperature.

    Raises:
        ValueError: if temperature <= 0.
    """
    ### BEGIN SOLUTION
    if temperature <= 0:
        raise ValueError(f"temperature must be larger than 0, but is {temperature}")
    return logits / temperature
    ### END SOLUTION


# %% check="scale_temperature" tags=["active-ipynb"]
# check("scale_temperature")

# %% [markdown]
# ### Exercise 2: The best k
#
# Many unlikely tokens together are likely. Write `keep_top_k(logits, k)`, which cuts them off.
#
# * `logits` `(..., V)`; the result has the same shape. In each row the `k` largest entries stay as
#   they are, and all others become $-\infty$. <!-- id: k-largest -->
# * Entries **equal** to the $k$-th largest stay too, so there may be more than `k`.
#   <!-- id: ties-stay -->
# * If `k` is not smaller than $V$, all stay. <!-- id: large-k -->
# * `ValueError` if `k` is smaller than 1. <!-- id: bad-k -->
#
# *Example.* `[3, 1, 3, 2]` with `k=3` becomes `[3, -inf, 3, 2]`; with `k=1` it becomes
# `[3, -inf, 3, -inf]`, since two are equally large.
#
# Book: `gpt-top-k`.
#
# <details><summary>Hint 1</summary>
#
# What is the smallest number that stays in a row? All that is smaller goes.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.topk` returns the largest values in order, and complains if there are fewer than it is
# asked for. A slice such as `[..., -1:]` keeps the axis, so that the comparison broadcasts.
#
# </details>


# %% exercise="keep_top_k" points=2 section="gpt-top-k"
def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Leave only the best tokens (Fan et al. 2018).

    Args:
        logits: (..., V).
        k: how many stay in each row, at least 1; all if there are no more than k.

    Returns:
        (..., V): the k largest of each row as they are, -inf in place of the others; entries equal
        to the k-th largest stay too.

    Raises:
        ValueError: if k < 1.
    """
    ### BEGIN SOLUTION
    if k < 1:
        raise ValueError(f"k must be at least 1, but is {k}")
    best = logits.topk(min(k, logits.shape[-1]), dim=-1).values  # (..., k)
    return logits.masked_fill(logits < best[..., -1:], -math.inf)  # (..., V)
    ### END SOLUTION


# %% check="keep_top_k" tags=["active-ipynb"]
# check("keep_top_k")

# %% [markdown]
# ### Exercise 3: The nucleus
#
# How many tokens are good differs from position to position. Write `keep_top_p(logits, p)`, which keeps
# as many as it takes to have the probability $p$ (Holtzman et al., 2020).
#
# * `logits` `(..., V)`; the result has the same shape. In each row stays the **smallest** set of
#   most probable tokens whose probabilities, by the softmax of the row, add up to **at least** `p`.
#   All others become $-\infty$. <!-- id: smallest-set -->
#   The most probable token always stays, even if `p` is tiny. <!-- id: one-stays -->
# * With `p=1` all stay, even where a rounded sum is 1 before the last token. <!-- id: all-stay -->
#   An entry that is $-\infty$ already stays so. <!-- id: impossible-stays -->
# * The entries that stay are not changed, and each remains at its position. <!-- id: positions -->
# * `ValueError` if `p` is 0 or less, or larger than 1. <!-- id: bad-p -->
#
# *Example.* The probabilities are $0.15, 0.5, 0.05, 0.3$. With $p = 0.7$ the second and the fourth
# stay, together $0.8$; with $p = 0.4$ only the second.
#
# Book: `gpt-top-p`.
#
# <details><summary>Hint 1</summary>
#
# Sort each row from the best down, and add up the probabilities from there (`cumsum`).
#
# </details>
# <details><summary>Hint 2</summary>
#
# The token with which the sum reaches $p$ belongs to the set. So ask what stands **before** a
# token: it stays if the better ones alone have less than $p$.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `sort` also returns where each entry came from. `scatter` with these indices puts values back to
# their old positions; or sort the indices to find each token's rank.
#
# </details>


# %% exercise="keep_top_p" points=3 section="gpt-top-p"
def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Leave the nucleus: few tokens with most of the probability (Holtzman et al. 2020, 3.1).

    Args:
        logits: (..., V).
        p: the probability that must stay, larger than 0 and at most 1.

    Returns:
        (..., V): of each row the smallest set of most probable tokens whose probabilities add up to
        at least p as they are, -inf in place of the others.

    Raises:
        ValueError: if p <= 0 or p > 1.
    """
    ### BEGIN SOLUTION
    if not 0 < p <= 1:
        raise ValueError(f"p must be larger than 0 and at most 1, but is {p}")
    if p == 1:  # all tokens; a rounded sum might reach 1 before the last ones
        return logits.clone()
    sorted_logits, order = logits.sort(dim=-1, descending=True, stable=True)  # (..., V) each
    probabilities = torch.softmax(sorted_logits, dim=-1)  # (..., V)
    before = probabilities.cumsum(dim=-1) - probabilities  # (..., V), of all better tokens
    kept = sorted_logits.masked_fill(before >= p, -math.inf)  # (..., V)
    return torch.empty_like(logits).scatter(-1, order, kept)  # (..., V), in the old order
    ### END SOLUTION


# %% check="keep_top_p" tags=["active-ipynb"]
# check("keep_top_p")

# %% [markdown]
# ### Exercise 4: One token
#
# Write `sample_token(logits, temperature=1.0, top_k=None, top_p=None, generator=None)`: choose the
# next token of every row.
#
# * `logits` `(B, V)`; the result is `(B,)` `torch.int64`. <!-- id: int64 -->
# * `temperature=0`: the token with the largest logit, the first of equal ones, without chance.
#   <!-- id: greedy -->
# * Otherwise, in this order: the temperature; `top_k`, unless it is `None`; `top_p`, unless it is
#   `None`, of the probabilities **of what is left**; then one draw for each row from the softmax.
#   <!-- id: order-of-filters -->
# * The draw uses `generator`, a `torch.Generator`; `None` means PyTorch's global one.
#   <!-- id: generator -->
# * `ValueError` if `temperature` is negative. <!-- id: bad-temperature -->
#   Those of the parts may come through as they are.
#
# *Example.* The probabilities are $0.4, 0.3, 0.2, 0.1$. With `top_p=0.5` two tokens stay. With
# `top_k=2, top_p=0.5` only the first does: of the two that are left it has $\tfrac47$.
#
# Book: `gpt-sampling`.
#
# <details><summary>Hint 1</summary>
#
# The case of temperature 0 comes first: nothing can be divided by it.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.multinomial` draws from rows of probabilities, has a parameter `generator`, and returns
# `(B, 1)`.
#
# </details>


# %% exercise="sample_token" points=2 section="gpt-sampling"
def sample_token(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Choose the next token of every row.

    Args:
        logits: (B, V).
        temperature: 0: the largest logit, without chance.
        top_k: how many tokens stay; None: all.
        top_p: how much probability stays, of what top_k left; None: all.
        generator: of the random numbers; None: PyTorch's global one.

    Returns:
        (B,) int64: one draw from the softmax of what temperature, top_k and top_p, in this order,
        make of each row; at temperature 0 the first of the largest logits.

    Raises:
        ValueError: if temperature < 0.
    """
    ### BEGIN SOLUTION
    if temperature < 0:
        raise ValueError(f"temperature must be at least 0, but is {temperature}")
    if temperature == 0:
        return logits.argmax(dim=1)  # (B,)
    logits = scale_temperature(logits, temperature)  # (B, V)
    if top_k is not None:
        logits = keep_top_k(logits, top_k)  # (B, V)
    if top_p is not None:
        logits = keep_top_p(logits, top_p)  # (B, V)
    probabilities = torch.softmax(logits, dim=1)  # (B, V)
    return torch.multinomial(probabilities, 1, generator=generator).squeeze(1)  # (B,)
    ### END SOLUTION


# %% check="sample_token" tags=["active-ipynb"]
# check("sample_token")

# %% [markdown]
# ### Exercise 5: A text
#
# Write `generate(model, ids, max_new_tokens, temperature=1.0, top_k=None, top_p=None, stop=None,
# seed=None)`: go on from `ids`, one token after the other.
#
# * `ids` `(B, T)`, all rows equally long. The result is `(B, T + n)`: the old tokens and $n$ new
#   ones, at most `max_new_tokens`. <!-- id: appended -->
#   Each new token is chosen by `sample_token` from the logits at
#   the last position, and is read in the next step. <!-- id: last-position -->
# * `model` maps ids `(B, T)` to logits `(B, T, V)` and has an attribute `max_length`. It reads only the **last**
#   `model.max_length` tokens. <!-- id: last-tokens -->
# * `stop`: a row that has *written* this id is filled with it from then on, and when all rows have
#   written it, generation ends at once. <!-- id: stop -->
#   A `stop` that stands in `ids` from the beginning means
#   nothing. <!-- id: stop-in-the-prompt -->
# * `seed`: all draws come from one `torch.Generator` of their own, made on the device of `ids` and
#   seeded with it. So equal seeds give equal texts, and the global generator is left alone.
#   <!-- id: own-generator --> `None`:
#   the global one.
# * No gradient is recorded. <!-- id: no-gradient --> The model runs in the mode in which it comes, and
#   keeps it. <!-- id: mode-kept -->
# * `ValueError` if `max_new_tokens` is negative, or if `ids` has no column. <!-- id: bad-input -->
#
# *Example.* In a `TableModel` 6 always follows 5, 7 follows 6, and `END` (4) follows 7. From
# `[[5]]`, at temperature 0, with `stop=END` and 9 new tokens at most, comes `[[5, 6, 7, 4]]`.
#
# Book: `gpt-sampling`.
#
# <details><summary>Hint 1</summary>
#
# A slice with a negative start takes the last ones, or all if there are fewer.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Make the generator once, before the loop. Seeded anew in every step, it would draw the same number
# each time.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Keep a bool tensor `(B,)` of the rows that have stopped. Replace their new tokens first, and then
# look which rows have stopped now.
#
# </details>


# %% exercise="generate" points=4 section="gpt-sampling"
def generate(
    model: nn.Module,
    ids: Tensor,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: int | None = None,
    seed: int | None = None,
) -> Tensor:
    """Go on writing, one token after the other.

    Args:
        model: ids (B, T) -> logits (B, T, V), with ``max_length``, the longest input; run in the
            mode in which it comes. It sees the last ``max_length`` tokens.
        ids: (B, T) int64, what is there already, at least one column.
        max_new_tokens: at least 0.
        temperature: as for ``sample_token``.
        top_k: as for ``sample_token``.
        top_p: as for ``sample_token``.
        stop: a row that has written it is filled with it; when all have, the writing ends.
        seed: of a generator of its own for all draws; None: the global generator.

    Returns:
        (B, T + n) int64: ids, and n <= max_new_tokens new columns. No gradient.

    Raises:
        ValueError: if max_new_tokens < 0, or ids has no column.
    """
    ### BEGIN SOLUTION
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens must be at least 0, but is {max_new_tokens}")
    if ids.shape[1] < 1:
        raise ValueError("there must be at least one token to go on from")
    generator = None
    if seed is not None:
        generator = torch.Generator(device=ids.device).manual_seed(seed)
    stopped = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)  # (B,)
    with torch.no_grad():
        for _ in range(max_new_tokens):
            logits = model(ids[:, -model.max_length :])[:, -1]  # (B, V), after the last token
            token = sample_token(logits, temperature, top_k, top_p, generator)  # (B,)
            if stop is not None:
                token = token.masked_fill(stopped, stop)  # (B,)
                stopped = stopped | (token == stop)  # (B,)
            ids = torch.cat([ids, token.unsqueeze(1)], dim=1)  # (B, T + 1)
            if stop is not None and stopped.all():
                break
    return ids
    ### END SOLUTION


# %% check="generate" tags=["active-ipynb"]
# check("generate")

# %% [markdown]
# ## A cache
#
# ### Exercise 6: Attention to what is remembered
#
# With each new token `generate` computes everything anew, though keys and values of the earlier
# positions stay the same: they depend on nothing that stands behind them. They are kept in a
# `LayerCache`, which is given: `LayerCache(keys, values)` has the attributes `keys` and `values`,
# and `past`, the number of positions that they stand for. It can't be changed; a step makes a new one.
#
# Write `attend_cached(attention, x, cache=None)`: the attention of new positions to themselves and to
# earlier ones, whose keys and values are there already.
#
# * `attention` is a `CausalSelfAttention`, whose weights are used; its dropout is left out, in any
#   mode. <!-- id: no-dropout -->
#   `x` `(B, T, D)` are the new positions. `cache` is a `LayerCache` with keys and values
#   `(B, H, P, D/H)`, or `None` if there are none.
# * Returns `(result, new_cache)`: the result `(B, T, D)`, and a `LayerCache` with the keys and
#   values of **all** positions, each `(B, H, P + T, D/H)`. <!-- id: new-cache -->
# * The result equals the last $T$ positions of the attention on all $P + T$ inputs.
#   <!-- id: equals-the-whole --> $T$ may be larger
#   than 1; then the new positions are masked among each other. <!-- id: several-new -->
# * `cache` is left unchanged, its tensors too. <!-- id: cache-unchanged -->
#
# *Example.* One head of width 1, all queries are 0, and values and result pass on unchanged, so that
# each result is the mean of what its position sees. Feed $2, 4$ first: the result is $2, 3$. With
# what that remembers feed $9$: the result is $5$.
#
# Book: `gpt-cache`.
#
# <details><summary>Hint 1</summary>
#
# Only the queries are for the new positions alone. `torch.cat` along the axis of positions makes a new
# tensor of old and new keys, and another of old and new values.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `causal_mask` has a `past` for this: its mask has a row for each query and a column for each key.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `is_causal=True` of `F.scaled_dot_product_attention` counts rows and columns from the same corner,
# which is wrong here as soon as there is a cache. Hand it the mask.
#
# </details>


# %% exercise="attend_cached" points=3 section="gpt-cache"
def attend_cached(
    attention: CausalSelfAttention, x: Tensor, cache: LayerCache | None = None
) -> tuple[Tensor, LayerCache]:
    """Attention of new positions only; keys and values of the earlier ones are remembered.

    Args:
        attention: the module whose weights are used; dropout is left out.
        x: (B, T, D), the new positions.
        cache: keys and values (B, H, P, D/H) each of the P positions before; None: there are none.
            Left unchanged.

    Returns:
        (B, T, D), the last T positions of the attention to all P + T; and a cache with the keys and
        values (B, H, P + T, D/H) of all.
    """
    ### BEGIN SOLUTION
    parts = attention.qkv(x).chunk(3, dim=-1)  # 3 x (B, T, D)
    heads = [part.unflatten(-1, (attention.num_heads, -1)) for part in parts]  # (B, T, H, D/H)
    queries, keys, values = (part.transpose(1, 2) for part in heads)  # (B, H, T, D/H) each
    if cache is not None:
        keys = torch.cat([cache.keys, keys], dim=2)  # (B, H, P + T, D/H)
        values = torch.cat([cache.values, values], dim=2)  # (B, H, P + T, D/H)
    scores = queries @ keys.transpose(2, 3) / math.sqrt(queries.shape[3])  # (B, H, T, P + T)
    visible = causal_mask(x.shape[1], keys.shape[2] - x.shape[1]).to(x.device)  # (T, P + T)
    attn_weights = torch.softmax(scores.masked_fill(~visible, -math.inf), dim=3)  # (B, H, T, P + T)
    mixed = (attn_weights @ values).transpose(1, 2).flatten(2)  # (B, T, D)
    return attention.out_proj(mixed), LayerCache(keys, values)  # (B, T, D)
    ### END SOLUTION


# %% check="attend_cached" tags=["active-ipynb"]
# check("attend_cached")

# %% [markdown]
# ### Exercise 7: The model with a cache
#
# Write `cached_forward(model, ids, cache=None)`: the logits of new tokens, when keys and values of
# the earlier ones are remembered.
#
# * `model` is a `GPT`, pre-norm or post-norm; <!-- id: both-orders -->
#   `ids` `(B, T)` are the new tokens. `cache` is a
#   `KVCache`, or `None`. `KVCache(layers)` is given as well: `layers` is a list with one
#   `LayerCache` for each block, and `past` the number $P$ of positions in them.
# * Returns `(logits, new_cache)`: `(B, T, V)`, and a **new** `KVCache`, whose keys and values are
#   `(B, H, P + T, D/H)`. <!-- id: new-cache -->
#   `cache` is left unchanged: neither its list nor its tensors change. <!-- id: cache-unchanged -->
# * The logits equal the last $T$ positions of `model` on all $P + T$ tokens.
#   <!-- id: equals-the-whole --> Positions go on: the
#   first new token stands at position $P$. <!-- id: positions-go-on -->
# * Dropout is left out, in any mode of the model. <!-- id: no-dropout -->
# * `ValueError` if $P + T$ is larger than the model's `max_length`. <!-- id: too-long -->
#
# *Example.* Feed the first 4 of 10 tokens, and the other 6 with the cache that comes back: the two
# results side by side are `model(ids)`.
#
# Book: `gpt-cache`.
#
# <details><summary>Hint 1</summary>
#
# `cache.past` says how many positions are remembered, and `cache.layers` goes along with
# `model.blocks`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A block can't be called as it is, since its attention is another one now. Write its two halves
# out, for both kinds: `isinstance(block, PreNormBlock)` tells which.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Dropout also hides in the feed-forward network. Its parts `w_1` and `w_2` have none.
#
# </details>


# %% exercise="cached_forward" points=4 section="gpt-cache"
def cached_forward(model: GPT, ids: Tensor, cache: KVCache | None = None) -> tuple[Tensor, KVCache]:
    """The logits of new tokens only; a cache stands for those before.

    Args:
        model: a GPT of either kind; dropout is left out.
        ids: (B, T) int64, the new tokens.
        cache: for each block the keys and values of the P tokens before; None: there are none.
            Left unchanged.

    Returns:
        (B, T, V), the logits of the last T of all P + T tokens; and the new cache.

    Raises:
        ValueError: if P + T is larger than the model's max_length.
    """
    ### BEGIN SOLUTION
    past = 0 if cache is None else cache.past  # P
    end = past + ids.shape[1]  # P + T
    if end > model.max_length:
        raise ValueError(f"{end} tokens are too many for a max_length of {model.max_length}")
    positions = torch.arange(past, end, device=ids.device)  # (T,)
    x = model.token(ids) + model.position(positions)  # (B, T, D)
    layers = []
    for number, block in enumerate(model.blocks):
        before = None if cache is None else cache.layers[number]
        norm_first = isinstance(block, PreNormBlock)
        inner = block.norm_1(x) if norm_first else x  # (B, T, D)
        attended, layer = attend_cached(block.attention, inner, before)  # (B, T, D)
        layers.append(layer)
        x = x + attended if norm_first else block.norm_1(x + attended)  # (B, T, D)
        inner = block.norm_2(x) if norm_first else x  # (B, T, D)
        # Not block.feed_forward(inner), which has dropout.
        added = block.feed_forward.w_2(gelu(block.feed_forward.w_1(inner)))  # (B, T, D)
        x = x + added if norm_first else block.norm_2(x + added)  # (B, T, D)
    return model.final_norm(x) @ model.token.weight.T, KVCache(layers)  # (B, T, V)
    ### END SOLUTION


# %% check="cached_forward" tags=["active-ipynb"]
# check("cached_forward")
