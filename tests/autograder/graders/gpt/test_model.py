"""The graders of `gpt-model`: right answers in any style earn full marks."""

from __future__ import annotations

from tests.autograder.unit_graders import EarlierParts, Styles, UnitGraders

UNIT = "gpt-model"

# Right answers that look unlike the reference and unlike those in autograder/demo.
STYLES = Styles()
style = STYLES.add


style(
    "causal_mask",
    "a triangle of ones, shifted",
    """
    def causal_mask(length, past=0):
        if length < 1 or past < 0:
            raise ValueError("sizes")
        return torch.tril(torch.ones(length, past + length, dtype=torch.bool), diagonal=past)
    """,
)
style(
    "causal_mask",
    "nested lists",
    """
    def causal_mask(length, past=0):
        if not length > 0:
            raise ValueError(length)
        if not past >= 0:
            raise ValueError(past)
        return torch.tensor(
            [[column <= past + row for column in range(past + length)] for row in range(length)]
        )
    """,
)
style(
    "causal_mask",
    "a block of the past beside a triangle, expanded",
    """
    def causal_mask(length, past=0):
        if min(length - 1, past) < 0:
            raise ValueError("no")
        before = torch.tensor(True).expand(length, past)
        later = torch.full((length, length), 1).triu(1).bool()
        return torch.cat([before, ~later], dim=1)
    """,
)
style(
    "window_mask",
    "a triangle without a smaller one",
    """
    def window_mask(length, window):
        if length < 1 or window < 1:
            raise ValueError("sizes")
        full = torch.ones(length, length).tril()
        return (full - full.tril(-window)).bool()
    """,
)
style(
    "window_mask",
    "row by row",
    """
    def window_mask(length, window):
        if length <= 0:
            raise ValueError(length)
        if window <= 0:
            raise ValueError(window)
        mask = torch.zeros(length, length, dtype=torch.bool)
        for i in range(length):
            mask[i, max(i - window + 1, 0) : i + 1] = True
        return mask
    """,
)
style(
    "window_mask",
    "the causal mask, and a second one",
    """
    def window_mask(length, window):
        if window < 1:
            raise ValueError("window")
        seen = causal_mask(length)
        near = torch.arange(length)[:, None] < torch.arange(length) + window
        return torch.logical_and(seen, near)
    """,
)
style(
    "CausalSelfAttention",
    "F.scaled_dot_product_attention, causal by its own argument",
    """
    import torch.nn.functional as F

    class CausalSelfAttention(nn.Module):
        def __init__(self, d_model, num_heads, dropout=0.0):
            super().__init__()
            if d_model % num_heads:
                raise ValueError("heads")
            self.qkv, self.out_proj = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
            self.num_heads, self.p = num_heads, dropout

        def forward(self, x):
            B, T, D = x.shape
            q, k, v = self.qkv(x).view(B, T, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
            p = self.p if self.training else 0.0
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
            y = self.out_proj(y.transpose(1, 2).reshape(B, T, D))
            return F.dropout(y, self.p, self.training)
    """,
)
style(
    "CausalSelfAttention",
    "a loop over heads, a mask of -1e9 before the scale",
    """
    class CausalSelfAttention(nn.Module):
        def __init__(self, d_model, num_heads, dropout=0.0):
            super().__init__()
            if num_heads <= 0 or d_model % num_heads != 0:
                raise ValueError(f"{d_model} by {num_heads}")
            self.num_heads = num_heads
            self.out_proj = nn.Linear(d_model, d_model)
            self.qkv = nn.Linear(d_model, d_model * 3)
            self.attn_drop, self.resid_drop = nn.Dropout(dropout), nn.Dropout(dropout)

        def forward(self, x):
            T, D = x.shape[-2:]
            d = D // self.num_heads
            q, k, v = torch.split(self.qkv(x), D, dim=-1)
            later = torch.triu(torch.full((T, T), -1e9, dtype=x.dtype), diagonal=1)
            heads = []
            for h in range(self.num_heads):
                part = slice(h * d, (h + 1) * d)
                scores = (torch.bmm(q[..., part], k[..., part].mT) + later) / d**0.5
                heads.append(self.attn_drop(scores.softmax(-1)) @ v[..., part])
            return self.resid_drop(self.out_proj(torch.cat(heads, -1)))
    """,
)
style(
    "CausalSelfAttention",
    "einsum, the scale in the queries, a softmax by hand, a dropout drawn by hand",
    """
    class CausalSelfAttention(nn.Module):
        def __init__(self, d_model, num_heads, dropout=0.0):
            super().__init__()
            if d_model // num_heads * num_heads != d_model:
                raise ValueError("heads")
            self.num_heads, self.rate = num_heads, dropout
            self.qkv = nn.Linear(d_model, 3 * d_model)
            self.out_proj = nn.Linear(d_model, d_model)

        def drop(self, y):
            if not self.training or not self.rate:
                return y
            return y * (torch.rand_like(y) >= self.rate) / (1 - self.rate)

        def forward(self, x):
            W, b = self.qkv.weight.chunk(3), self.qkv.bias.chunk(3)
            split = lambda i: (x @ W[i].T + b[i]).unflatten(2, (self.num_heads, -1))
            q, k, v = split(0), split(1), split(2)
            scores = torch.einsum("bihd,bjhd->bhij", q / q.shape[-1] ** 0.5, k)
            scores.masked_fill_(~causal_mask(x.size(1)), float("-inf"))
            e = (scores - scores.amax(-1, keepdim=True)).exp()
            attn_weights = self.drop(e / e.sum(-1, keepdim=True))
            y = torch.einsum("bhij,bjhd->bihd", attn_weights, v).flatten(2)
            return self.drop(self.out_proj(y))
    """,
)
style(
    "gelu",
    "a sigmoid in place of the tanh",
    """
    def gelu(x):
        inside = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        return x * torch.sigmoid(2 * inside)
    """,
)
style(
    "gelu",
    "factored out, a tensor for the constant",
    """
    def gelu(x):
        c = torch.tensor(2 / math.pi, dtype=x.dtype).sqrt()
        return x / 2 + x / 2 * (c * x * (1 + 0.044715 * x.square())).tanh()
    """,
)
style(
    "FeedForward",
    "PyTorch's own GELU, a dropout by function",
    """
    import torch.nn.functional as F

    class FeedForward(nn.Module):
        def __init__(self, d_model, dropout=0.0):
            super().__init__()
            self.w_1, self.w_2 = nn.Linear(d_model, 4 * d_model), nn.Linear(4 * d_model, d_model)
            self.p = dropout

        def forward(self, x):
            y = self.w_2(F.gelu(self.w_1(x), approximate="tanh"))
            return F.dropout(y, p=self.p, training=self.training)
    """,
)
style(
    "FeedForward",
    "matrices by hand",
    """
    class FeedForward(nn.Module):
        def __init__(self, d_model, dropout=0.0):
            super().__init__()
            self.w_2 = nn.Linear(d_model * 4, d_model)
            self.w_1 = nn.Linear(d_model, d_model * 4)
            self.drop, self.act = nn.Dropout(dropout), nn.GELU("tanh")

        def forward(self, x):
            y = torch.einsum("...d,ed->...e", x, self.w_1.weight) + self.w_1.bias
            return self.drop(torch.addmm(
                self.w_2.bias, self.act(y).flatten(0, -2), self.w_2.weight.T
            ).reshape(x.shape))
    """,
)
style(
    "PostNormBlock",
    "norms by their formula, sums in place",
    """
    def normalise(norm, x):
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        return norm.weight * centred / (variance + norm.eps).sqrt() + norm.bias

    class PostNormBlock(nn.Module):
        def __init__(self, d_model, num_heads, dropout=0.0):
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
            self.feed_forward = FeedForward(d_model, dropout=dropout)
            self.attention = CausalSelfAttention(d_model, num_heads, dropout=dropout)

        def forward(self, x):
            y = self.attention(x)
            y = normalise(self.norm_1, y.add(x))
            return normalise(self.norm_2, self.feed_forward(y) + y)
    """,
)
style(
    "PostNormBlock",
    "a loop over both parts",
    """
    class PostNormBlock(nn.Module):
        def __init__(self, d_model, num_heads, dropout=0.0):
            super().__init__()
            self.attention = CausalSelfAttention(d_model, num_heads, dropout)
            self.feed_forward = FeedForward(d_model, dropout)
            for name in ("norm_1", "norm_2"):
                self.add_module(name, nn.LayerNorm(d_model, eps=1e-5))

        def forward(self, x):
            for part, norm in ((self.attention, self.norm_1), (self.feed_forward, self.norm_2)):
                x = norm(x + part(x))
            return x
    """,
)
style(
    "PreNormBlock",
    "norms by F.layer_norm",
    """
    import torch.nn.functional as F

    class PreNormBlock(nn.Module):
        def __init__(self, d_model, num_heads, dropout=0.0):
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
            self.attention = CausalSelfAttention(d_model, num_heads, dropout)
            self.feed_forward = FeedForward(d_model, dropout)

        def forward(self, x):
            norm = lambda n, y: F.layer_norm(y, y.shape[-1:], n.weight, n.bias)
            y = x + self.attention(norm(self.norm_1, x))
            return y + self.feed_forward(norm(self.norm_2, y))
    """,
)
style(
    "PreNormBlock",
    "the other block inherited",
    """
    class PreNormBlock(PostNormBlock):
        def forward(self, x):
            branch = self.attention(self.norm_1(x))
            branch += x
            return branch + self.feed_forward(self.norm_2(branch))
    """,
)
style(
    "GPT",
    "no buffer, no dropout module, F.linear for the head",
    """
    import torch.nn.functional as F

    class GPT(nn.Module):
        def __init__(self, vocab_size, max_length, d_model, num_layers, num_heads, dropout=0.1,
                     norm_first=True):
            super().__init__()
            self.max_length, self.p, self.norm_first = max_length, dropout, norm_first
            self.token = nn.Embedding(vocab_size, d_model)
            self.position = nn.Embedding(max_length, d_model)
            kind = [PostNormBlock, PreNormBlock][norm_first]
            self.blocks = nn.ModuleList()
            for _ in range(num_layers):
                self.blocks.append(kind(d_model, num_heads, dropout))
            if norm_first:
                self.final_norm = nn.LayerNorm(d_model)
            else:
                self.final_norm = nn.Identity()

        def features(self, ids):
            T = ids.size(-1)
            if T > self.max_length:
                raise ValueError(f"{T} > {self.max_length}")
            x = F.embedding(ids, self.token.weight) + self.position.weight[:T]
            x = F.dropout(x, self.p, self.training)
            for i in range(len(self.blocks)):
                x = self.blocks[i](x)
            return self.final_norm(x)

        def forward(self, ids):
            return F.linear(self.features(ids), self.token.weight)
    """,
)
style(
    "GPT",
    "one-hot rows, a buffer of places, weights drawn at the end",
    """
    import torch.nn.functional as F


    class GPT(nn.Module):
        def __init__(
            self,
            vocab_size,
            max_length,
            d_model,
            num_layers,
            num_heads,
            dropout=0.1,
            norm_first=True,
        ):
            super().__init__()
            self.token = nn.Embedding(vocab_size, d_model)
            self.position = nn.Embedding(max_length, d_model)
            make = lambda: (PreNormBlock if norm_first else PostNormBlock)(
                d_model, num_heads, dropout
            )
            self.blocks = nn.ModuleList([make() for _ in range(num_layers)])
            self.final_norm = nn.LayerNorm(d_model) if norm_first else nn.Identity()
            self.drop = nn.Dropout(dropout)
            self.register_buffer("places", torch.arange(max_length).unsqueeze(0), persistent=False)
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)

        @property
        def max_length(self):
            return self.position.num_embeddings

        def features(self, ids):
            B, T = ids.shape
            if self.max_length < T:
                raise ValueError(f"{T} > {self.max_length}")
            hot = F.one_hot(ids, self.token.num_embeddings).to(self.token.weight)
            x = self.drop(hot @ self.token.weight + self.position(self.places[:, :T].expand(B, T)))
            return nn.Sequential(*self.blocks, self.final_norm)(x)

        def forward(self, ids):
            return torch.einsum("btd,vd->btv", self.features(ids), self.token.weight)
    """,
)


class TestGraders(UnitGraders):
    unit = UNIT
    styles = STYLES


BLOCKS = ["PostNormBlock", "PreNormBlock"]
# What becomes of an early mistake in the exercises that use it: those that must still pass.
KEPT = {
    "mask_upper": ["CausalSelfAttention", *BLOCKS, "GPT"],
    "mask_one_ahead": ["CausalSelfAttention", *BLOCKS, "GPT"],
    "mask_without_itself": ["CausalSelfAttention"],
    "attention_unscaled": [*BLOCKS, "GPT"],
    "attention_not_masked": [*BLOCKS, "GPT"],
    "attention_parts_within_heads": [*BLOCKS, "GPT"],
    "attention_without_output": [*BLOCKS, "GPT"],
    "attention_result_not_dropped": [*BLOCKS, "GPT"],
    "attention_dropout_in_eval": [*BLOCKS, "GPT"],
    "gelu_exact": ["FeedForward", *BLOCKS, "GPT"],
    "gelu_relu": ["FeedForward", *BLOCKS, "GPT"],
    "gelu_mirrored": ["FeedForward", *BLOCKS, "GPT"],
    "ffn_residual_inside": [*BLOCKS, "GPT"],
    "ffn_not_dropped": [*BLOCKS, "GPT"],
    "ffn_dropout_in_eval": [*BLOCKS, "GPT"],
    "post_pre_norm": ["GPT"],
    "pre_post_norm": ["GPT"],
    "pre_one_norm": ["GPT"],
    "pre_without_shortcuts": ["GPT"],
}


class TestEarlierParts(EarlierParts):
    unit = UNIT
    kept = KEPT
    unexcused = (
        ("mask_upper", "attention_unscaled"),
        ("mask_without_itself", "attention_result_not_dropped"),
        ("attention_unscaled", "post_norm_of_part"),
        ("attention_not_masked", "pre_second_shortcut_from_input"),
        ("attention_result_not_dropped", "pre_without_second_norm"),
        ("gelu_exact", "ffn_relu"),
        ("gelu_relu", "ffn_activation_at_the_end"),
        ("ffn_residual_inside", "post_pre_norm"),
        ("pre_post_norm", "gpt_positions_from_1"),
        ("pre_without_shortcuts", "gpt_final_norm_missing"),
        ("post_without_first_norm", "gpt_blocks_exchanged"),
    )
