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
# # The Transformer: decoding
#
# At the end of this unit the model translates: by greedy decoding, by beam search, and with a KV
# cache that saves it from computing keys and values again.
#
# One of the code cells below gives you `TableModel(table)`, a *model* that reads its logits from a
# table instead of computing them with a network, so that you can try `greedy_decode` and
# `beam_search` on examples that you can check by hand. For these two exercises a model is any
# module with these methods:
#
# ```python
# encode(source, src_mask) -> memory                   # (B, S) ids -> (B, S, D)
# decode(memory, src_mask, tgt, tgt_mask) -> hidden    # (B, U) ids -> (B, U, ...)
# generator(hidden) -> log_probs                       # (..., V), for the token after each
# ```

# %%
"""Three ways to decode: greedily, by beam search, with a cache."""

# The options of a cell must stand on one line, however long it gets; and the functions in the loop
# of `decode_step` are called before its variables change.
# ruff: noqa: E501, B023

# %%
import math

import torch
from torch import Tensor, nn

from solutions.transformer.model import EncoderDecoder
from solutions.transformer.parts import BOS, EOS, PAD, pad_mask, subsequent_mask
from toolkit.kv_cache import DecoderCache, KVCache, LayerCache

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("transformer-decoding")


# %%
class TableModel(nn.Module):
    """A model without a network: it reads the logits of the next token from a table.

    They depend on the first source token s, on the position t in the target (from 0) and on the
    token at that position: ``table[s, t, previous]``. Later positions use the table's last one.
    """

    def __init__(self, table: Tensor) -> None:
        """Keep ``table`` (S, L, V, V): source token, position, previous token, next token."""
        super().__init__()
        self.register_buffer("table", table)

    def encode(self, source: Tensor, src_mask: Tensor | None = None) -> Tensor:
        """The memory (B, S, 1) of source (B, S): its ids as numbers."""
        return source.unsqueeze(-1).to(self.table.dtype)  # (B, S, 1)

    def decode(
        self, memory: Tensor, src_mask: Tensor | None, tgt: Tensor, tgt_mask: Tensor | None
    ) -> Tensor:
        """The logits (B, U, V) after every token of tgt (B, U)."""
        for name, given in (("memory", memory), ("src_mask", src_mask)):
            if given is not None and len(given) != len(tgt):
                raise ValueError(f"{name} should have {len(tgt)} rows, as tgt, not {len(given)}")
        s = memory[:, :1, 0].long()  # (B, 1)
        t = torch.arange(tgt.shape[1], device=tgt.device)  # (U,)
        return self.table[s, t.clamp(max=self.table.shape[1] - 1), tgt]  # (B, U, V)

    def generator(self, hidden: Tensor) -> Tensor:
        """Logits (..., V) -> log-probabilities (..., V)."""
        return torch.log_softmax(hidden, dim=-1)  # (..., V)


# %% [markdown]
# ## Decoding
#
# ### Exercise 1: Greedy decoding
#
# At inference there is no target to read. Write `greedy_decode(model, source, max_length)`: at each
# step it appends the most probable next token to each row of the decoder's input, for a whole
# batch.
#
# * `model` is any module with `encode`, `decode` and `generator` (see the top of the notebook);
#   assume nothing else about it.
# * `source` `(B, S)` `torch.int64`, padded with `PAD`. It is encoded **once**,
#   <!-- id: encoded-once --> and its mask is
#   `pad_mask(source)`, for the encoder and for the decoder. <!-- id: source-mask -->
# * The decoder's input is `BOS`, followed by all tokens that the row has produced so far, with
#   `subsequent_mask` of that length. <!-- id: all-tokens-so-far -->
#   (Without padding, `make_std_mask` is the same.)
# * A row that has produced `EOS` is finished; it gets `PAD` from then on. `EOS` itself is part of
#   the result, `BOS` isn't. <!-- id: finished-rows -->
# * Decoding stops when **every** row is finished, as soon as the last `EOS` is produced (it need not
#   be fed to the model), or after `max_length` tokens. A row without `EOS` by then stays as it is.
#   <!-- id: when-to-stop -->
# * The result is `(B, n)` `torch.int64`; `n` is the length of the longest row, so the last column
#   is never padding alone. <!-- id: length -->
# * `ValueError` if `max_length` is smaller than 1. <!-- id: bad-length -->
#
# Decoding needs neither gradients nor dropout. The given decorator `@torch.no_grad()` keeps PyTorch
# from recording for gradients; calling `model.eval()` is up to the caller.
#
# *Example.* If the first row becomes `7, EOS` and the second `5, 6, 8, EOS`, the result is
# $\begin{pmatrix}7&2&0&0\\5&6&8&2\end{pmatrix}$.
#
# Book: `trf-greedy`.
#
# <details><summary>Hint 1</summary>
#
# Keep the decoder's input as one tensor `(B, t)` that begins with a column of `BOS` and grows by a
# column in each step; the result is all of it but the first column.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Only the last position of `decode`'s result predicts the next token: `hidden[:, -1]`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Keep a bool tensor `finished` `(B,)`. All rows go through the model at every step, the finished
# ones too; write `PAD` where a row was finished **before** this step, and only then update
# `finished`.
#
# </details>


# %% exercise="greedy_decode" points=4 section="trf-greedy"
@torch.no_grad()
def greedy_decode(model: nn.Module, source: Tensor, max_length: int) -> Tensor:
    """Generate the most probable token at each step, for every source.

    No gradient is recorded.

    Args:
        model: anything with ``encode``, ``decode`` and ``generator``.
        source: (B, S) int64, padded with PAD.
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
    src_mask = pad_mask(source)  # (B, 1, S)
    memory = model.encode(source, src_mask)  # (B, S, D)
    target = torch.full_like(source[:, :1], BOS)  # (B, 1)
    finished = torch.zeros_like(source[:, 0], dtype=torch.bool)  # (B,)
    while target.shape[1] <= max_length and not finished.all():
        tgt_mask = subsequent_mask(target.shape[1]).to(target.device)  # (1, t, t)
        hidden = model.decode(memory, src_mask, target, tgt_mask)  # (B, t, D)
        log_probs = model.generator(hidden[:, -1])  # (B, V)
        token = log_probs.argmax(dim=-1).masked_fill(finished, PAD)  # (B,)
        target = torch.cat([target, token.unsqueeze(1)], dim=1)  # (B, t + 1)
        finished = finished | (token == EOS)  # (B,)
    return target[:, 1:]  # (B, n)
    ### END SOLUTION


# %% check="greedy_decode" tags=["active-ipynb"]
# check("greedy_decode")

# %% [markdown]
# ### Exercise 2: Beam search
#
# Write `beam_search(model, source, beam_size, max_length, alpha=0.6)`, as in the chapter on
# sequence-to-sequence models, but for models with `encode`, `decode` and `generator`, and with the
# length penalty of Wu et al. (2016), as in the paper.
#
# 1. At first one hypothesis is *live*, the empty one; its log-probability is 0, and the decoder's
#    input is `BOS`.
# 2. In each step every live hypothesis is extended by every token of the vocabulary, and the
#    log-probability of the extension is that of the hypothesis plus that of the token.
#    <!-- id: extensions -->
# 3. Of **all** extensions together, the $k$ with the largest log-probability survive. Extensions of
#    probability 0 never do. <!-- id: k-best-of-all -->
# 4. Survivors that end with `EOS` are *finished*: they are put aside, and the beam shrinks by as
#    many. So $k$ is `beam_size` minus the number of finished hypotheses.
#    <!-- id: finished-leave -->
# 5. The search ends when nothing is live, or after `max_length` tokens. Hypotheses that are still
#    live then join the finished ones as they are, without `EOS`. <!-- id: live-join -->
#
# The length penalty applies only to the **final scores**, by which the result is sorted:
#
# $$\text{score}(y) = \frac{\log P(y \mid x)}{\bigl((5 + |y|)/6\bigr)^{\alpha}},\qquad
# |y| = \text{number of ids, EOS counted}$$
#
# <!-- id: length-penalty -->
#
# * `model` as in exercise 1; `source` `(1, S)`, one sentence, encoded once.
#   <!-- id: encoded-once -->
# * Masks as in exercise 1. `decode` gets a memory and a source mask with as many rows as `tgt` has. <!-- id: masks -->
# * Returns a list of at most `beam_size` pairs `(ids, score)`, best score first: `ids` a `list` of
#   `int` without `BOS`, `score` a `float`. Equal scores may come in any order. <!-- id: pairs -->
# * `ValueError` if `beam_size` or `max_length` is smaller than 1, if `alpha` is negative, or if the
#   batch is not 1. <!-- id: bad-input -->
#
# *Example.* Tokens 4 and 5 begin a target with probability 0.6 and 0.4. After 4 comes `EOS` with
# 0.5, or 6 or 7 with 0.25 each; after 5 comes `EOS` with 0.95 or 6 with 0.05. For `max_length=2`
# and `alpha=0`, `beam_size=1` gives `[([4, 2], -1.204)]`, the greedy path, and `beam_size=2` gives
# `[([5, 2], -0.968), ([4, 2], -1.204)]`. With `alpha=0.6` both scores are divided by
# $(7/6)^{0.6} \approx 1.097$.
#
# Book: `trf-beam`.
#
# <details><summary>Hint 1</summary>
#
# Let the live hypotheses be the rows of one batch `(K, t)`. Add their log-probabilities as a column
# to the generator's `(K, V)`, and you have all extensions in one tensor.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `flatten().topk(k)` finds the best of all. For an index of the flat tensor, `divmod(index, V)`
# gives row and token. `topk` raises an error if `k` is larger than the tensor.
#
# </details>
# <details><summary>Hint 3</summary>
#
# All hypotheses read the same source: `expand` repeats the one row of memory and mask without
# copying it. There is no state to reorder, because `decode` reads the whole target every time.
#
# </details>
# <details><summary>Hint 4</summary>
#
# To test your function: with `beam_size=1` it returns the same ids as `greedy_decode`. With a beam
# so wide that nothing is ever dropped and `alpha=0`, the first result that ends with `EOS` is the
# most probable of all sequences that end within `max_length` tokens.
#
# </details>


# %% exercise="beam_search" points=5 section="trf-beam"
@torch.no_grad()
def beam_search(
    model: nn.Module, source: Tensor, beam_size: int, max_length: int, alpha: float = 0.6
) -> list[tuple[list[int], float]]:
    """Beam search: keep the beam_size best hypotheses (length penalty: Wu et al. 2016, eq. 14).

    No gradient is recorded.

    Args:
        model: anything with ``encode``, ``decode`` and ``generator``; probabilities may be 0.
        source: (1, S) int64.
        beam_size: how many hypotheses are kept, finished ones included; at least 1.
        max_length: the most tokens of a hypothesis, EOS included; at least 1.
        alpha: the strength of the length penalty; at least 0.

    Returns:
        At most beam_size pairs (ids, score), best score first, with score = log-probability /
        ((5 + len(ids)) / 6) ** alpha. The ids of a finished hypothesis include EOS; hypotheses that
        are still live after max_length tokens are returned as they are.

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
    src_mask = pad_mask(source)  # (1, 1, S)
    memory = model.encode(source, src_mask)  # (1, S, D)
    # The K live hypotheses are the rows of one batch; all of them read the same source.
    live: list[tuple[list[int], float]] = [([], 0.0)]
    finished: list[tuple[list[int], float]] = []
    while live and len(live[0][0]) < max_length:
        target = source.new_tensor([[BOS, *ids] for ids, _ in live])  # (K, t)
        tgt_mask = subsequent_mask(target.shape[1]).to(target.device)  # (1, t, t)
        hidden = model.decode(
            memory.expand(len(live), -1, -1),  # (K, S, D)
            src_mask.expand(len(live), -1, -1),  # (K, 1, S)
            target,
            tgt_mask,
        )  # (K, t, D)
        log_probs = model.generator(hidden[:, -1])  # (K, V)
        so_far = log_probs.new_tensor([total for _, total in live])  # (K,)
        totals = so_far.unsqueeze(1) + log_probs  # (K, V)
        width = min(beam_size - len(finished), totals.numel())
        best, places = totals.flatten().topk(width)
        extended = []
        for total, place in zip(best.tolist(), places.tolist(), strict=True):
            if total == -math.inf:
                continue
            row, token = divmod(place, totals.shape[1])
            hypothesis = ([*live[row][0], token], total)
            (finished if token == EOS else extended).append(hypothesis)
        live = extended
    scored = [(ids, total / ((5 + len(ids)) / 6) ** alpha) for ids, total in finished + live]
    return sorted(scored, key=lambda pair: pair[1], reverse=True)
    ### END SOLUTION


# %% check="beam_search" tags=["active-ipynb"]
# check("beam_search")

# %% [markdown]
# ### Exercise 3: The KV cache before the first step
#
# `greedy_decode` computes everything anew at each step, although the outputs at earlier positions
# never change: the causal mask hides later tokens from them. So keys and values can be cached, in
# three types that are given:
#
# | type | attributes |
# |---|---|
# | `LayerCache(keys, values)` | keys and values of one attention, `(B, H, P, D/H)` each |
# | `KVCache(layers)` | a list with one `LayerCache` for each layer of the decoder, in their order |
# | `DecoderCache(src_mask, memory, target)` | the source's mask; two `KVCache`s, one of the memory, one of the target so far |
#
# Each also has an attribute `past`, the number of cached positions (in a `DecoderCache`: of the
# target). None of them can be changed; a step creates a new one.
#
# Write `start_cache(model, source)`, which computes the cache before the first token.
#
# * `model` is an `EncoderDecoder` with `N` layers (in the decoder); `source` `(B, S)`
#   `torch.int64`, padded with `PAD`.
# * The result is a `DecoderCache`:
#     * `src_mask` is `pad_mask(source)`, `(B, 1, S)`; <!-- id: source-mask -->
#     * `memory` holds the keys and values of each layer's `src_attn`, `(B, H, S, D/H)`;
#       <!-- id: memory -->
#     * `target` holds those of each layer's `self_attn`, which are still empty:
#       `(B, H, 0, D/H)`. <!-- id: empty-target -->
# * The source is encoded once, with its mask, and each layer projects the memory once, by
#   `src_attn.project`.
# * No gradients are asked for, neither here nor in exercise 4: a cache is for inference.
#
# *Example.* For $N = 2$, $H = 2$, $D = 8$ and a source of 3 rows and 5 columns, keys and values of
# both layers are `(3, 2, 5, 4)` in `memory`, and `(3, 2, 0, 4)` in `target`.
#
# Book: `trf-cache`.
#
# <details><summary>Hint 1</summary>
#
# The layers are `model.decoder.layers`; each has its own projections.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A tensor may have an axis of length 0. A slice `[:, :, :0]` has one, and it keeps dtype and
# device.
#
# </details>


# %% exercise="start_cache" points=2 section="trf-cache"
def start_cache(model: EncoderDecoder, source: Tensor) -> DecoderCache:
    """Encode the source, and project the memory once for every layer of the decoder.

    Args:
        model: an EncoderDecoder with N layers.
        source: (B, S) int64, padded with PAD.

    Returns:
        A cache with the mask (B, 1, S) of the source; ``memory``, for each layer the keys and
        values (B, H, S, D/H) of the memory, projected by its ``src_attn``; and ``target``, for each
        layer empty keys and values (B, H, 0, D/H).
    """
    ### BEGIN SOLUTION
    src_mask = pad_mask(source)  # (B, 1, S)
    memory = model.encode(source, src_mask)  # (B, S, D)
    pairs = [layer.src_attn.project(memory, memory) for layer in model.decoder.layers]
    kept = [LayerCache(keys, values) for keys, values in pairs]  # N x 2 x (B, H, S, D/H)
    empty = [LayerCache(keys[:, :, :0], values[:, :, :0]) for keys, values in pairs]
    return DecoderCache(src_mask, KVCache(kept), KVCache(empty))
    ### END SOLUTION


# %% check="start_cache" tags=["active-ipynb"]
# check("start_cache")

# %% [markdown]
# ### Exercise 4: A decoding step with a cache
#
# Write `decode_step(model, token, cache)`: feed one more token, and compute only its position in
# each layer. The rest of the target is in the cache.
#
# * `model` is an `EncoderDecoder`, post-norm or pre-norm, in evaluation mode; `token` `(B,)`
#   `torch.int64` is the next token of each row, `BOS` at first; `cache` comes from `start_cache` or
#   from the step before.
# * The token's position is the number of tokens fed before, `cache.past`. <!-- id: position -->
# * In each layer, the self-attention's keys and values of the new token are appended to those in
#   the cache, and the new token attends to all of them, itself included. Cross-attention uses the
#   cached keys and values of the memory, with the source's mask. <!-- id: attends-to-all -->
# * Returns `(log_probs, cache)`: `(B, V)` for the token after this one, and a **new**
#   `DecoderCache`, in whose `target` keys and values are one position longer. The given cache is
#   not changed, neither its lists nor its tensors: one may continue from it twice.
#   <!-- id: new-cache -->
# * The log-probabilities equal those at the last position of the uncached model, `decode` with
#   `subsequent_mask` and then the generator, up to rounding. <!-- id: equals-uncached -->
#
# *Example.* Feed `1`, then `5`, then `6`: the three log-probabilities are those at the three
# positions of `model(source, torch.tensor([[1, 5, 6]]))`.
#
# Book: `trf-cache`.
#
# <details><summary>Hint 1</summary>
#
# `model.position(x, past=...)` adds the encodings of later positions. Insert an axis of length 1,
# so that the token's embedding is `(B, 1, D)`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A connection takes any function of one argument. So pass functions of your own to each layer's
# connections: one that projects its argument, appends keys and values and attends, one that attends
# to the cached memory, and the feed-forward network. Then norm and residual connection are in the
# right order, in pre-norm and in post-norm.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `torch.cat([old, new], dim=...)` creates a new tensor; concatenate along the axis of positions.
# The new token may attend to all positions so far, so self-attention needs no mask.
#
# </details>
# <details><summary>Hint 4</summary>
#
# A pre-norm decoder has a final norm, which a loop over the layers doesn't call.
#
# </details>


# %% exercise="decode_step" points=4 section="trf-cache"
def decode_step(
    model: EncoderDecoder, token: Tensor, cache: DecoderCache
) -> tuple[Tensor, DecoderCache]:
    """Feed one more token, and compute only its position in each layer.

    Args:
        model: an EncoderDecoder with N layers, in evaluation mode.
        token: (B,) int64, the token at the next position; BOS at first.
        cache: from start_cache or from the step before; not changed.

    Returns:
        The log-probabilities (B, V) of the token after it, equal to those at the last position of
        the uncached model, and the new cache, whose ``target`` is one position longer.
    """
    ### BEGIN SOLUTION
    x = model.position(model.tgt_embed(token.unsqueeze(1)), past=cache.past)  # (B, 1, D)
    kept: list[LayerCache] = []
    for n, layer in enumerate(model.decoder.layers):

        def attend_to_target(x: Tensor) -> Tensor:
            new_keys, new_values = layer.self_attn.project(x, x)  # (B, H, 1, D/H) each
            old = cache.target.layers[n]
            keys = torch.cat([old.keys, new_keys], dim=2)  # (B, H, t, D/H)
            values = torch.cat([old.values, new_values], dim=2)  # (B, H, t, D/H)
            kept.append(LayerCache(keys, values))
            return layer.self_attn.attend(x, keys, values)  # (B, 1, D)

        def attend_to_source(x: Tensor) -> Tensor:
            memory = cache.memory.layers[n]
            return layer.src_attn.attend(x, memory.keys, memory.values, cache.src_mask)  # (B, 1, D)

        x = layer.sublayer[0](x, attend_to_target)  # (B, 1, D)
        x = layer.sublayer[1](x, attend_to_source)  # (B, 1, D)
        x = layer.sublayer[2](x, layer.feed_forward)  # (B, 1, D)
    if model.decoder.norm is not None:
        x = model.decoder.norm(x)  # (B, 1, D)
    grown = DecoderCache(cache.src_mask, cache.memory, KVCache(kept))
    return model.generator(x[:, 0]), grown  # (B, V)
    ### END SOLUTION


# %% check="decode_step" tags=["active-ipynb"]
# check("decode_step")


# %% tags=["instructor"]
@torch.no_grad()
def cached_greedy_decode(model: EncoderDecoder, source: Tensor, max_length: int) -> Tensor:
    """The result of ``greedy_decode(model, source, max_length)`` by start_cache and decode_step.

    No gradient is recorded.

    Args:
        model: an EncoderDecoder.
        source: (B, S) int64.
        max_length: as for greedy_decode.

    Returns:
        (B, n) int64, the same ids.

    Raises:
        ValueError: if max_length < 1.
    """
    if max_length < 1:
        raise ValueError(f"max_length must be at least 1, but is {max_length}")
    cache = start_cache(model, source)
    token = torch.full_like(source[:, 0], BOS)  # (B,)
    finished = torch.zeros_like(token, dtype=torch.bool)  # (B,)
    tokens: list[Tensor] = []
    while len(tokens) < max_length and not finished.all():
        log_probs, cache = decode_step(model, token, cache)  # (B, V)
        token = log_probs.argmax(dim=-1).masked_fill(finished, PAD)  # (B,)
        tokens.append(token)
        finished = finished | (token == EOS)  # (B,)
    return torch.stack(tokens, dim=1)  # (B, n)


@torch.no_grad()
def cached_beam_search(
    model: EncoderDecoder, source: Tensor, beam_size: int, max_length: int, alpha: float = 0.6
) -> list[list[tuple[list[int], float]]]:
    """``beam_search`` for every row of source at once, by start_cache and decode_step.

    No gradient is recorded.

    Args:
        model: an EncoderDecoder.
        source: (B, S) int64, padded with PAD.
        beam_size: as for beam_search, of each row.
        max_length: as for beam_search.
        alpha: as for beam_search.

    Returns:
        For each row what beam_search returns for it.

    Raises:
        ValueError: if beam_size < 1, max_length < 1 or alpha < 0.
    """
    for name, value, least in (
        ("beam_size", beam_size, 1),
        ("max_length", max_length, 1),
        ("alpha", alpha, 0),
    ):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, but is {value}")
    batch = len(source)
    cache = start_cache(model, source)
    token = torch.full_like(source[:, 0], BOS)  # (R,), R live hypotheses of all sources
    # Whose hypothesis a row is, and which of its own; its ids, and its log-probability.
    owners, slots = list(range(batch)), [0] * batch
    live: list[tuple[list[int], float]] = [([], 0.0)] * batch
    finished: list[list[tuple[list[int], float]]] = [[] for _ in range(batch)]
    for _ in range(max_length):
        log_probs, cache = decode_step(model, token, cache)  # (R, V)
        size = log_probs.shape[1]  # V
        so_far = log_probs.new_tensor([total for _, total in live])  # (R,)
        # All extensions of a source in one row, beside places for those that it no longer has.
        totals = log_probs.new_full((batch, beam_size, size), -math.inf)  # (B, K, V)
        totals[owners, slots] = so_far.unsqueeze(1) + log_probs
        best, places = totals.flatten(1).topk(beam_size)  # (B, K) each
        row_of = {pair: row for row, pair in enumerate(zip(owners, slots, strict=True))}
        rows, tokens, extended, new_owners, new_slots = [], [], [], [], []
        for owner, survivors in enumerate(zip(best.tolist(), places.tolist(), strict=True)):
            used, left = 0, beam_size - len(finished[owner])
            for total, place in list(zip(*survivors, strict=True))[:left]:
                if total == -math.inf:
                    break
                slot, chosen = divmod(place, size)
                row = row_of[owner, slot]
                hypothesis = ([*live[row][0], chosen], total)
                if chosen == EOS:
                    finished[owner].append(hypothesis)
                    continue
                rows.append(row)
                tokens.append(chosen)
                extended.append(hypothesis)
                new_owners.append(owner)
                new_slots.append(used)
                used += 1
        live = extended
        if not live:
            owners = []
            break
        token = source.new_tensor(tokens)  # (R,)
        order = source.new_tensor(rows)  # (R,)
        if new_owners == owners:  # the memory of each row is that of its source, as before
            cache = DecoderCache(cache.src_mask, cache.memory, cache.target.select(order))
        else:
            cache = cache.select(order)
        owners, slots = new_owners, new_slots
    for owner, hypothesis in zip(owners, live, strict=True):
        finished[owner].append(hypothesis)
    return [
        sorted(
            ((ids, total / ((5 + len(ids)) / 6) ** alpha) for ids, total in found),
            key=lambda pair: pair[1],
            reverse=True,
        )
        for found in finished
    ]
