"""The graders of `gpt-generation`: right answers in any style earn full marks."""

from __future__ import annotations

from tests.autograder.unit_graders import EarlierParts, Styles, UnitGraders

UNIT = "gpt-generation"

# Right answers that look unlike the reference and unlike those in autograder/demo.
STYLES = Styles()
style = STYLES.add


# Sampling -----------------------------------------------------------------------------------------

style(
    "scale_temperature",
    "a product with the reciprocal",
    """
    def scale_temperature(logits, temperature):
        if temperature <= 0:
            raise ValueError("cold")
        return logits * (1 / temperature)
    """,
)
style(
    "scale_temperature",
    "a tensor as the divisor",
    """
    def scale_temperature(logits, temperature):
        if not temperature > 0.0:
            raise ValueError(f"{temperature}")
        return torch.div(logits, torch.tensor(temperature, dtype=logits.dtype))
    """,
)
style(
    "keep_top_k",
    "sorted, then compared with the k-th",
    """
    def keep_top_k(logits, k):
        if k <= 0:
            raise ValueError("k")
        size = logits.size(-1)
        if k >= size:
            return logits
        least = logits.sort(dim=-1).values[..., size - k].unsqueeze(-1)
        return torch.where(logits >= least, logits, float("-inf"))
    """,
)
style(
    "keep_top_k",
    "how many are larger, counted by pairs",
    """
    def keep_top_k(logits, k):
        if k < 1:
            raise ValueError("k must be positive")
        larger = (logits.unsqueeze(-2) > logits.unsqueeze(-1)).sum(-1)
        out = logits.clone()
        out[larger >= k] = -torch.inf
        return out
    """,
)
style(
    "keep_top_p",
    "from the least probable on, as in the transformers library",
    """
    def keep_top_p(logits, p):
        if p <= 0 or p > 1:
            raise ValueError("p")
        values, order = torch.sort(logits, descending=False)
        sums = values.softmax(dim=-1).cumsum(dim=-1)
        remove = sums <= 1 - p
        remove[..., -1] = False
        return logits.masked_fill(remove.scatter(-1, order, remove), float("-inf"))
    """,
)
style(
    "keep_top_p",
    "row by row, token by token",
    """
    def keep_top_p(logits, p):
        if not (p > 0 and p <= 1):
            raise ValueError("p")
        out = torch.full_like(logits, -math.inf)
        flat, rows = out.reshape(-1, logits.shape[-1]), logits.reshape(-1, logits.shape[-1])
        for row, new in zip(rows, flat):
            shares, total = row.softmax(-1).tolist(), 0.0
            for token in sorted(range(len(shares)), key=lambda t: -shares[t]):
                if total >= p and p < 1:
                    break
                new[token] = row[token]
                total += shares[token]
        return flat.reshape(logits.shape)
    """,
)
style(
    "keep_top_p",
    "pairs compared, the order found by argsort of argsort",
    """
    def keep_top_p(logits, p):
        if p > 1 or p <= 0:
            raise ValueError(p)
        shares = torch.softmax(logits.double(), -1)
        order = shares.argsort(-1, descending=True)
        rank = order.argsort(-1)
        sums = shares.gather(-1, order).cumsum(-1)
        needed = (sums < p - 1e-9).sum(-1, keepdim=True) + 1
        return logits.where((rank < needed) | (p == 1), torch.tensor(-math.inf, dtype=logits.dtype))
    """,
)
style(
    "sample_token",
    "the inverse of the distribution function",
    """
    def sample_token(logits, temperature=1.0, top_k=None, top_p=None, generator=None):
        if temperature < 0:
            raise ValueError("temperature")
        if not temperature:
            return logits.max(dim=-1).indices
        x = scale_temperature(logits, temperature)
        x = x if top_k is None else keep_top_k(x, top_k)
        x = x if top_p is None else keep_top_p(x, top_p)
        sums = x.double().softmax(-1).cumsum(-1)
        sums = sums / sums[:, -1:]
        r = torch.rand(len(x), 1, generator=generator, dtype=torch.float64)
        return torch.searchsorted(sums, r, right=True).squeeze(1).clamp(max=x.shape[1] - 1)
    """,
)
style(
    "sample_token",
    "the Gumbel trick",
    """
    def sample_token(logits, temperature=1.0, top_k=None, top_p=None, generator=None):
        if temperature == 0:
            return torch.argmax(logits, -1)
        if temperature < 0:
            raise ValueError("temperature")
        logits = logits / temperature
        if top_k is not None:
            logits = keep_top_k(logits, top_k)
        if top_p is not None:
            logits = keep_top_p(logits, top_p)
        noise = torch.empty(logits.shape, dtype=torch.float64).exponential_(generator=generator)
        return (logits.double() - noise.log()).argmax(1)
    """,
)
style(
    "generate",
    "columns in a list, a loop that counts the rows at work",
    """
    @torch.no_grad()
    def generate(model, ids, max_new_tokens, temperature=1.0, top_k=None, top_p=None, stop=None,
                 seed=None):
        if max_new_tokens < 0:
            raise ValueError("fewer than none")
        if ids.numel() == 0 or ids.size(1) == 0:
            raise ValueError("nothing to go on from")
        g = None if seed is None else torch.Generator()
        if g is not None:
            g.manual_seed(seed)
        columns = list(ids.unbind(1))
        working = torch.ones(ids.size(0), dtype=torch.bool)
        while len(columns) < ids.size(1) + max_new_tokens and working.any():
            seen = torch.stack(columns[-model.max_length :], dim=1)
            new = sample_token(model(seen)[:, -1, :], temperature, top_k, top_p, generator=g)
            if stop is not None:
                new = torch.where(working, new, torch.full_like(new, stop))
                working = working & new.ne(stop)
            columns.append(new)
        return torch.stack(columns, dim=1)
    """,
)
style(
    "generate",
    "a tensor made at once, the global generator put back afterwards",
    """
    def generate(model, ids, max_new_tokens, temperature=1.0, top_k=None, top_p=None, stop=None,
                 seed=None):
        if max_new_tokens < 0 or ids.shape[1] == 0:
            raise ValueError("input")
        B, T = ids.shape
        if seed is not None:
            state = torch.get_rng_state()
            torch.manual_seed(seed)
        text = torch.zeros(B, T + max_new_tokens, dtype=torch.int64)
        text[:, :T] = ids
        over, end = [False] * B, T
        with torch.inference_mode():
            for t in range(T, T + max_new_tokens):
                logits = model(text[:, max(0, t - model.max_length) : t])
                new = sample_token(logits[:, -1], temperature, top_k, top_p)
                for b in range(B):
                    text[b, t] = stop if over[b] else new[b]
                    over[b] = stop is not None and int(text[b, t]) == stop
                end = t + 1
                if all(over):
                    break
        if seed is not None:
            torch.set_rng_state(state)
        return text[:, :end]
    """,
)

# The cache ----------------------------------------------------------------------------------------

style(
    "attend_cached",
    "scaled_dot_product_attention with a mask of numbers",
    """
    import torch.nn.functional as F

    def attend_cached(attention, x, cache=None):
        B, T, D = x.shape
        H = attention.num_heads
        qkv = attention.qkv(x).view(B, T, 3, H, D // H).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        if cache is not None:
            k, v = (torch.cat(pair, dim=-2) for pair in ((cache.keys, k), (cache.values, v)))
        P = k.shape[-2] - T
        hidden = torch.full((T, P + T), -math.inf, dtype=x.dtype).triu(P + 1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=hidden)
        return attention.out_proj(y.transpose(1, 2).reshape(B, T, D)), LayerCache(k, v)
    """,
)
style(
    "attend_cached",
    "place by place, head by head",
    """
    import torch.nn.functional as F

    def attend_cached(attention, x, cache=None):
        B, T, D = x.shape
        H, W = attention.num_heads, attention.qkv.weight
        d = D // H
        q = F.linear(x, W[:D], attention.qkv.bias[:D])
        k = F.linear(x, W[D : 2 * D], attention.qkv.bias[D : 2 * D])
        v = F.linear(x, W[2 * D :], attention.qkv.bias[2 * D :])
        split = lambda y: torch.stack(y.split(d, dim=-1), dim=1)
        q, k, v = split(q), split(k), split(v)
        P = 0
        if cache is not None:
            P = cache.past
            k, v = torch.cat((cache.keys, k), 2), torch.cat((cache.values, v), 2)
        rows = []
        for t in range(T):
            scores = (q[:, :, t : t + 1] * k[:, :, : P + t + 1]).sum(-1) * d**-0.5
            rows.append((scores.softmax(-1).unsqueeze(-1) * v[:, :, : P + t + 1]).sum(2))
        y = torch.stack(rows, dim=1).reshape(B, T, D)
        return [attention.out_proj(y), LayerCache(values=v, keys=k)]
    """,
)
style(
    "cached_forward",
    "dropout switched off for a while, the norms told from final_norm",
    """
    import torch.nn.functional as F

    def cached_forward(model, ids, cache=None):
        P = cache.layers[-1].values.size(-2) if cache else 0
        T = ids.size(1)
        if P + T > model.max_length:
            raise ValueError(f"{P} + {T} > {model.max_length}")
        was = model.training
        model.eval()
        x = model.token(ids) + model.position.weight[P : P + T]
        new = []
        for i, b in enumerate(model.blocks):
            old = cache.layers[i] if cache else None
            if isinstance(model.final_norm, nn.Identity):
                y, c = attend_cached(b.attention, x, old)
                x = b.norm_1(x + y)
                x = b.norm_2(x + b.feed_forward(x))
            else:
                y, c = attend_cached(b.attention, b.norm_1(x), old)
                x = x + y
                x = x + b.feed_forward(b.norm_2(x))
            new.append(c)
        logits = F.linear(model.final_norm(x), model.token.weight)
        model.train(was)
        return logits, KVCache(tuple(new))
    """,
)
style(
    "cached_forward",
    "a helper for a block, the result as a list",
    """
    import torch.nn.functional as F

    def through(block, x, old):
        def mlp(y):
            return block.feed_forward.w_2(F.gelu(block.feed_forward.w_1(y), approximate="tanh"))
        if type(block).__name__ == "PostNormBlock":
            y, pair = attend_cached(block.attention, x, old)
            x = block.norm_1(y + x)
            return block.norm_2(mlp(x) + x), pair
        y, pair = attend_cached(block.attention, block.norm_1(x), old)
        x = y + x
        return mlp(block.norm_2(x)) + x, pair

    def cached_forward(model, ids, cache=None):
        first = 0 if cache is None else cache.past
        before = [None] * len(model.blocks) if cache is None else cache.layers
        if first + ids.shape[1] > model.position.num_embeddings:
            raise ValueError("too long")
        places = torch.arange(ids.shape[1]).expand_as(ids) + first
        x = model.token(ids) + model.position(places)
        caches = []
        for block, old in zip(model.blocks, before):
            x, pair = through(block, x, old)
            caches.append(pair)
        logits = torch.einsum("btd,vd->btv", model.final_norm(x), model.token.weight)
        return [logits, KVCache(caches)]
    """,
)


class TestGraders(UnitGraders):
    unit = UNIT
    styles = STYLES


# What becomes of an early mistake in the exercises that use it: those that must still pass.
KEPT = {
    "mask_upper": ["generate"],
    "mask_one_ahead": ["generate"],
    "attention_unscaled": ["generate"],
    "attention_not_masked": ["cached_forward", "generate"],
    "attention_parts_within_heads": ["generate"],
    "attention_without_output": ["generate"],
    "attention_result_not_dropped": ["generate"],
    "gelu_exact": ["generate"],
    "gelu_relu": ["generate"],
    "gelu_mirrored": ["generate"],
    "ffn_residual_inside": ["generate"],
    "ffn_not_dropped": ["generate"],
    "pre_post_norm": ["generate"],
    "pre_without_shortcuts": ["generate"],
    "temperature_multiplied": ["sample_token", "generate"],
    "top_k_ties_cut": ["sample_token", "generate"],
    "top_p_crossing_dropped": ["sample_token", "generate"],
    "sample_top_p_first": ["generate"],
    "cache_mask_strict": ["cached_forward"],
}


class TestEarlierParts(EarlierParts):
    unit = UNIT
    kept = KEPT
