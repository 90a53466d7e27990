"""The graders of `transformer-parts`: right answers in any style earn full marks."""

from __future__ import annotations

from tests.autograder.unit_graders import EarlierParts, Styles, UnitGraders

UNIT = "transformer-parts"

# Right answers that look unlike the reference and unlike those in autograder/demo.
STYLES = Styles()
style = STYLES.add


style(
    "Embeddings",
    "a module of its own for the table, one-hot rows",
    """
    import torch.nn.functional as F

    class Table(nn.Module):
        def __init__(self, rows, columns):
            super().__init__()
            self.weight = nn.Parameter(torch.normal(0.0, columns ** -0.5, (rows, columns)))

    class Embeddings(nn.Module):
        def __init__(self, vocab_size, d_model):
            super().__init__()
            if vocab_size <= 0 or d_model <= 0:
                raise ValueError
            self.lut = Table(vocab_size, d_model)

        def forward(self, ids):
            V, D = self.lut.weight.shape
            hot = F.one_hot(ids, V).to(self.lut.weight.dtype)
            return D ** 0.5 * (hot @ self.lut.weight)
    """,
)
style(
    "MultiHeadAttention",
    "heads joined to the batch, an additive mask, decisions drawn by hand",
    """
    class MultiHeadAttention(nn.Module):
        def __init__(self, d_model, num_heads, dropout=0.0):
            super().__init__()
            if d_model % num_heads != 0:
                raise ValueError(f"{num_heads} heads")
            self.H, self.p = num_heads, dropout
            layers = nn.ModuleList(nn.Linear(d_model, d_model, bias=True) for _ in range(4))
            self.q_proj, self.k_proj, self.v_proj, self.out_proj = layers

        def project(self, key, value):
            heads = []
            for layer, given in ((self.k_proj, key), (self.v_proj, value)):
                heads.append(torch.stack(layer(given).chunk(self.H, dim=-1), dim=1))
            return tuple(heads)

        def attend(self, query, keys, values, mask=None):
            B, Tq, D = query.shape
            Tk = keys.shape[2]
            q = torch.stack(self.q_proj(query).chunk(self.H, dim=-1), dim=1).flatten(0, 1)
            bias = torch.zeros(B, Tq, Tk, dtype=q.dtype)
            if mask is not None:
                bias.masked_fill_(mask.logical_not(), -1e9)
            bias = bias.repeat_interleave(self.H, dim=0)
            scale = (D // self.H) ** -0.5
            scores = torch.baddbmm(bias, q, keys.flatten(0, 1).mT, alpha=scale)
            attn_weights = (scores - scores.max(-1, keepdim=True).values).exp()
            attn_weights = attn_weights / attn_weights.sum(-1, keepdim=True)
            if self.training and self.p > 0:
                attn_weights = (
                    attn_weights * (torch.rand_like(attn_weights) >= self.p) / (1 - self.p)
                )
            heads = torch.bmm(attn_weights, values.flatten(0, 1)).unflatten(0, (B, self.H))
            return self.out_proj(torch.cat(heads.unbind(1), dim=-1))

        def forward(self, query, key, value, mask=None):
            return self.attend(query, *self.project(key, value), mask)
    """,
)
style(
    "MultiHeadAttention",
    "the kernel in forward, formulas in the stages, extra attributes and a buffer",
    """
    import torch.nn.functional as F

    class MultiHeadAttention(nn.Module):
        def __init__(self, d_model, num_heads, dropout=0.0):
            super().__init__()
            if num_heads < 1 or d_model // num_heads * num_heads != d_model:
                raise ValueError
            self.num_heads, self.d_model, self.d_head = num_heads, d_model, d_model // num_heads
            self.register_buffer("scale", torch.tensor(self.d_head ** -0.5), persistent=False)
            for name in "qkv":
                setattr(self, f"{name}_proj", nn.Linear(d_model, d_model))
            self.out_proj = nn.Linear(d_model, d_model)
            self.drop = nn.Dropout(dropout)
            self.attention_map = None

        def heads(self, x):
            return x.view(*x.shape[:2], self.num_heads, self.d_head).permute(0, 2, 1, 3)

        def project(self, key, value):
            return [self.heads(self.k_proj(key)), self.heads(self.v_proj(value))]

        def attend(self, query, keys, values, mask=None):
            mask = mask if mask is None or mask.dim() == 2 else mask[:, None]
            q = self.heads(self.q_proj(query)) * self.scale.to(query.dtype)
            scores = torch.matmul(q, keys.transpose(2, 3))
            if mask is not None:
                scores = torch.where(mask, scores, torch.tensor(-math.inf, dtype=scores.dtype))
            self.attention_map = F.softmax(scores, dim=3)
            out = torch.matmul(self.drop(self.attention_map), values)
            return self.out_proj(out.permute(0, 2, 1, 3).flatten(2))

        def forward(self, query, key, value, mask=None):
            if self.training and self.drop.p:
                keys, values = self.project(key, value)
                return self.attend(query, keys, values, mask)
            if mask is not None and mask.dim() == 3:
                mask = mask.unsqueeze(1)
            q, (k, v) = self.heads(self.q_proj(query)), self.project(key, value)
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return self.out_proj(out.transpose(1, 2).reshape(len(query), -1, self.d_model))
    """,
)
style(
    "pad_mask",
    "an inverted comparison in three dimensions",
    """
    def pad_mask(ids, pad=PAD):
        B, T = ids.size()
        return ~torch.eq(ids.reshape(B, 1, T), pad)
    """,
)
style(
    "subsequent_mask",
    "a cumulative sum of the identity",
    """
    def subsequent_mask(size):
        if size <= 0:
            raise ValueError(size)
        return torch.eye(size, dtype=torch.int8).cumsum(0).T.flip(0, 1).bool().unsqueeze(0)
    """,
)
style(
    "make_std_mask",
    "from the places of the padding",
    """
    def make_std_mask(target, pad=PAD):
        B, U = target.shape
        mask = torch.ones(U, U, dtype=torch.uint8).tril().bool().repeat(B, 1, 1)
        for b, j in (target == pad).nonzero().tolist():
            mask[b, :, j] = False
        return mask
    """,
)
style(
    "LayerNorm",
    "moments of the squares, in float64",
    """
    class LayerNorm(nn.Module):
        def __init__(self, d_model, eps=1e-5):
            super().__init__()
            if not d_model > 0:
                raise ValueError("no features")
            self.gamma, self.beta = (nn.Parameter(v * torch.ones(d_model)) for v in (1.0, 0.0))
            self.eps = eps

        def forward(self, x):
            if x.size(-1) != self.gamma.numel():
                raise ValueError("another width")
            y = x.double()
            mean, square = y.mean(-1, keepdim=True), y.square().mean(-1, keepdim=True)
            y = (y - mean) * (square - mean.square() + self.eps).pow(-0.5)
            return y.to(x.dtype) * self.gamma + self.beta
    """,
)
style(
    "LayerNorm",
    "var_mean, rows made flat",
    """
    class LayerNorm(nn.Module):
        def __init__(self, d_model, eps=1e-5):
            if d_model < 1:
                raise ValueError
            super().__init__()
            self.D = d_model
            self.eps = torch.tensor(eps)
            self.gamma = nn.Parameter(torch.empty(d_model).fill_(1))
            self.beta = nn.Parameter(torch.empty(d_model).fill_(0))

        def forward(self, x):
            if x.shape[-1] != self.D:
                raise ValueError(x.shape)
            rows = x.reshape(-1, self.D).T
            variance, mean = torch.var_mean(rows, dim=0, correction=0)
            rows = (rows - mean) / (variance + self.eps.to(x.dtype)).sqrt()
            return (rows.T * self.gamma + self.beta).view(x.shape)
    """,
)
style(
    "PositionwiseFeedForward",
    "two convolutions of width one",
    """
    import torch.nn.functional as F

    class PositionwiseFeedForward(nn.Module):
        def __init__(self, d_model, d_ff, dropout=0.0):
            super().__init__()
            self.w_1 = nn.Linear(d_model, d_ff)
            self.w_2 = nn.Linear(d_ff, d_model)
            self.dropout = dropout

        def forward(self, x):
            rows = x.reshape(-1, x.shape[-1], 1)
            inner = F.conv1d(rows, self.w_1.weight[..., None], self.w_1.bias)
            inner = F.dropout(F.relu(inner, inplace=True), self.dropout, self.training)
            outer = F.conv1d(inner, self.w_2.weight[..., None], self.w_2.bias)
            return outer.reshape(x.shape)
    """,
)
style(
    "ResidualBlock",
    "maximum with zero, an inner sequence",
    """
    class ResidualBlock(nn.Module):
        def __init__(self, d_model):
            super().__init__()
            self.w_1 = nn.Linear(d_model, d_model, bias=False)
            self.w_2 = nn.Linear(d_model, d_model, bias=False)
            self.residual = [nn.Sequential(self.w_1, nn.ReLU(), self.w_2)]

        def forward(self, x):
            y = self.residual[0](x)
            y += x
            return torch.maximum(y, torch.zeros(()).to(y.dtype))
    """,
)
style(
    "SublayerConnection",
    "one path for both orders, the sum in place",
    """
    import torch.nn.functional as F

    class SublayerConnection(nn.Module):
        def __init__(self, d_model, dropout=0.0, norm_first=False):
            super().__init__()
            self.norm, self.p = LayerNorm(d_model), dropout
            self.order = (norm_first, not norm_first)

        def maybe(self, now, x):
            return self.norm(x) if self.order[now] else x

        def forward(self, x, sublayer):
            added = F.dropout(sublayer(self.maybe(0, x)), p=self.p, training=self.training)
            total = torch.add(added, x)
            return self.maybe(1, total)
    """,
)


class TestGraders(UnitGraders):
    unit = UNIT
    styles = STYLES


# What becomes of an early mistake in the exercises that use it: those that must still pass.
KEPT = {
    "subsequent_without_batch_axis": ["make_std_mask"],
    "pad_mask_specials_masked": ["make_std_mask"],
    "norm_unbiased": ["SublayerConnection"],
    "norm_divided_by_variance": ["SublayerConnection"],
}


class TestEarlierParts(EarlierParts):
    unit = UNIT
    kept = KEPT
    unexcused = (("norm_unbiased", "connection_shortcut_normalised"),)
