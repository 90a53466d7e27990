"""The graders of `gpt`: every legitimate style earns full marks, known mistakes do not."""

from __future__ import annotations

import functools

import pytest

from autograder.units.variants import misconceptions, wrong_namespace
from tests.autograder.chapter_graders import ChapterGraders, Styles, cell_with, changed, failures

CHAPTER = "gpt"

# Right answers that look unlike the reference and unlike those in autograder/demo.
STYLES = Styles()
style = STYLES.add

# Masks and model --------------------------------------------------------------------------------

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
    class CausalSelfAttention(nn.Module):
        def __init__(self, width, num_heads, dropout=0.0):
            super().__init__()
            if width % num_heads:
                raise ValueError("heads")
            self.qkv, self.out_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
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
        def __init__(self, width, num_heads, dropout=0.0):
            super().__init__()
            if num_heads <= 0 or width % num_heads != 0:
                raise ValueError(f"{width} by {num_heads}")
            self.num_heads = num_heads
            self.out_proj = nn.Linear(width, width)
            self.qkv = nn.Linear(width, width * 3)
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
        def __init__(self, width, num_heads, dropout=0.0):
            super().__init__()
            if width // num_heads * num_heads != width:
                raise ValueError("heads")
            self.num_heads, self.rate = num_heads, dropout
            self.qkv = nn.Linear(width, 3 * width)
            self.out_proj = nn.Linear(width, width)

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
            weights = self.drop(e / e.sum(-1, keepdim=True))
            y = torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)
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
    class FeedForward(nn.Module):
        def __init__(self, width, dropout=0.0):
            super().__init__()
            self.w_1, self.w_2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
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
        def __init__(self, width, dropout=0.0):
            super().__init__()
            self.w_2 = nn.Linear(width * 4, width)
            self.w_1 = nn.Linear(width, width * 4)
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
        def __init__(self, width, num_heads, dropout=0.0):
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.feed_forward = FeedForward(width, dropout=dropout)
            self.attention = CausalSelfAttention(width, num_heads, dropout=dropout)

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
        def __init__(self, width, num_heads, dropout=0.0):
            super().__init__()
            self.attention = CausalSelfAttention(width, num_heads, dropout)
            self.feed_forward = FeedForward(width, dropout)
            for name in ("norm_1", "norm_2"):
                self.add_module(name, nn.LayerNorm(width, eps=1e-5))

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
    class PreNormBlock(nn.Module):
        def __init__(self, width, num_heads, dropout=0.0):
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attention = CausalSelfAttention(width, num_heads, dropout)
            self.feed_forward = FeedForward(width, dropout)

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
    class GPT(nn.Module):
        def __init__(self, vocab_size, context, width, num_layers, num_heads, dropout=0.1,
                     pre_norm=True):
            super().__init__()
            self.context, self.p, self.pre_norm = context, dropout, pre_norm
            self.token = nn.Embedding(vocab_size, width)
            self.position = nn.Embedding(context, width)
            kind = [PostNormBlock, PreNormBlock][pre_norm]
            self.blocks = nn.ModuleList()
            for _ in range(num_layers):
                self.blocks.append(kind(width, num_heads, dropout))
            if pre_norm:
                self.final_norm = nn.LayerNorm(width)
            else:
                self.final_norm = nn.Identity()

        def features(self, ids):
            T = ids.size(-1)
            if T > self.context:
                raise ValueError(f"{T} > {self.context}")
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
    class GPT(nn.Module):
        def __init__(self, vocab_size, context, width, num_layers, num_heads, dropout=0.1,
                     pre_norm=True):
            super().__init__()
            self.token = nn.Embedding(vocab_size, width)
            self.position = nn.Embedding(context, width)
            make = lambda: (PreNormBlock if pre_norm else PostNormBlock)(width, num_heads, dropout)
            self.blocks = nn.ModuleList([make() for _ in range(num_layers)])
            self.final_norm = nn.LayerNorm(width) if pre_norm else nn.Identity()
            self.drop = nn.Dropout(dropout)
            self.register_buffer("places", torch.arange(context).unsqueeze(0), persistent=False)
            init_weights(self)

        @property
        def context(self):
            return self.position.num_embeddings

        def features(self, ids):
            B, T = ids.shape
            if self.context < T:
                raise ValueError("too long")
            hot = F.one_hot(ids, self.token.num_embeddings).to(self.token.weight)
            x = self.drop(hot @ self.token.weight + self.position(self.places[:, :T].expand(B, T)))
            return nn.Sequential(*self.blocks, self.final_norm)(x)

        def forward(self, ids):
            return torch.einsum("btd,vd->btv", self.features(ids), self.token.weight)
    """,
)
style(
    "init_weights",
    "by name, in place on the data",
    """
    def init_weights(model):
        scaled = isinstance(model.final_norm, nn.LayerNorm)
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.data.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
                continue
            std = 0.02
            if scaled and name.endswith(("out_proj.weight", "w_2.weight")):
                std /= (2 * len(model.blocks)) ** 0.5
            parameter.data.normal_(mean=0.0, std=std)
        return model
    """,
)
style(
    "init_weights",
    "apply, then the last layers of branches multiplied, all under no_grad",
    """
    def init_weights(model):
        def fresh(module):
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif hasattr(module, "weight"):
                module.weight.copy_(0.02 * torch.randn(module.weight.shape))
                if getattr(module, "bias", None) is not None:
                    module.bias.zero_()

        with torch.no_grad():
            model.apply(fresh)
            if type(model.final_norm) is not nn.Identity:
                for block in model.blocks:
                    for layer in (block.attention.out_proj, block.feed_forward.w_2):
                        layer.weight.mul_(1 / math.sqrt(2 * len(model.blocks)))
        return model
    """,
)
style(
    "init_weights",
    "new parameters",
    """
    def init_weights(model):
        N = len(list(model.blocks))
        small = 0.02 if isinstance(model.final_norm, nn.Identity) else 0.02 * (2 * N) ** -0.5
        for path, module in list(model.named_modules()):
            if isinstance(module, (nn.Linear, nn.Embedding)):
                std = small if path.split(".")[-1] in ("out_proj", "w_2") else 0.02
                module.weight = nn.Parameter(torch.normal(0.0, std, tuple(module.weight.shape)))
                if isinstance(module, nn.Linear):
                    module.bias = nn.Parameter(torch.zeros(module.out_features))
            elif isinstance(module, nn.LayerNorm):
                module.weight = nn.Parameter(torch.ones(module.normalized_shape))
                module.bias = nn.Parameter(torch.zeros(module.normalized_shape))
        return model
    """,
)
style(
    "count_parameters",
    "a polynomial",
    """
    def count_parameters(vocab_size, context, width, num_layers, pre_norm=True):
        D = width
        total = D * (vocab_size + context + num_layers * (12 * D + 13))
        return total + 2 * D * int(pre_norm)
    """,
)
style(
    "count_parameters",
    "a model that takes no memory",
    """
    def count_parameters(vocab_size, context, width, num_layers, pre_norm=True):
        with torch.device("meta"):
            block = PreNormBlock(width, 1)
        count = sum(p.numel() for p in block.parameters()) * num_layers
        count += (vocab_size + context) * width
        return count + (2 * width if pre_norm else 0)
    """,
)
style(
    "count_parameters",
    "shapes in a list",
    """
    def count_parameters(vocab_size, context, width, num_layers, pre_norm=True):
        D = width
        shapes = [(D, 3 * D), (3 * D,), (D, D), (D,), (D, 4 * D), (4 * D,), (4 * D, D), (D,)]
        shapes = (shapes + 4 * [(D,)]) * num_layers + [(vocab_size, D), (context, D)]
        if pre_norm:
            shapes += [(D,), (D,)]
        return sum(map(math.prod, shapes))
    """,
)
style(
    "rename_parameters",
    "regular expressions",
    """
    import re

    def rename_parameters(state):
        rules = [
            (r"(?:wte|tokens_embed)\\.weight", "token.weight"),
            (r"(?:wpe|positions_embed)\\.weight", "position.weight"),
            (r"h\\.(\\d+)\\.attn\\.c_attn\\.(weight|bias)", r"blocks.\\1.attention.qkv.\\2"),
            (r"h\\.(\\d+)\\.attn\\.c_proj\\.(weight|bias)", r"blocks.\\1.attention.out_proj.\\2"),
            (r"h\\.(\\d+)\\.mlp\\.c_fc\\.(weight|bias)", r"blocks.\\1.feed_forward.w_1.\\2"),
            (r"h\\.(\\d+)\\.mlp\\.c_proj\\.(weight|bias)", r"blocks.\\1.feed_forward.w_2.\\2"),
            (r"h\\.(\\d+)\\.ln_([12])\\.(weight|bias)", r"blocks.\\1.norm_\\2.\\3"),
            (r"ln_f\\.(weight|bias)", r"final_norm.\\1"),
            (r"lm_head\\.weight|position_ids|h\\.\\d+\\.attn\\.(?:masked_)?bias", ""),
        ]
        result = {}
        for name, tensor in state.items():
            short = re.sub(r"^transformer\\.", "", name)
            for pattern, new in rules:
                if re.fullmatch(pattern, short):
                    ours = re.sub(pattern, new, short)
                    break
            else:
                raise ValueError(name)
            if ours:
                turned = re.search(r"\\.c_\\w+\\.weight", short)
                result[ours] = tensor.t().contiguous() if turned else tensor
        return result
    """,
)
style(
    "rename_parameters",
    "replacements, a view as the transpose, names checked at the end",
    """
    def rename_parameters(state):
        known = {"token.weight", "position.weight", "final_norm.weight", "final_norm.bias"}
        parts = ("attention.qkv", "attention.out_proj", "feed_forward.w_1", "feed_forward.w_2",
                 "norm_1", "norm_2")
        result = {}
        for old, tensor in state.items():
            name = old[len("transformer."):] if old.startswith("transformer.") else old
            if name in ("lm_head.weight", "position_ids"):
                continue
            if name.startswith("h.") and name.endswith((".attn.bias", ".attn.masked_bias")):
                continue
            conv = ".c_" in name and name.endswith(".weight")
            for a, b in (
                ("tokens_embed", "token"), ("positions_embed", "position"), ("wte", "token"),
                ("wpe", "position"), ("ln_f", "final_norm"), ("attn.c_attn", parts[0]),
                ("attn.c_proj", parts[1]), ("mlp.c_fc", parts[2]), ("mlp.c_proj", parts[3]),
                ("ln_", "norm_"),
            ):
                name = name.replace(a, b)
            if name.startswith("h."):
                name = "blocks." + name[2:]
                number, rest = name[7:].split(".", 1)
                good = number.isdigit() and rest.rsplit(".", 1)[0] in parts
                if not (good and rest.rsplit(".", 1)[1] in ("weight", "bias")):
                    raise ValueError(f"what is {old}?")
            elif name not in known:
                raise ValueError(f"what is {old}?")
            result[name] = torch.transpose(tensor, 0, 1) if conv else tensor.clone()
        return result
    """,
)
style(
    "log_likelihood",
    "cross-entropy",
    """
    def log_likelihood(logits, ids, mask=None):
        B, T = ids.shape
        if T < 2:
            raise ValueError("nothing to predict")
        terms = F.cross_entropy(
            logits[:, :-1].reshape(B * (T - 1), -1), ids[:, 1:].reshape(-1), reduction="none"
        ).view(B, T - 1)
        weights = torch.ones_like(terms) if mask is None else mask[:, 1:].to(terms.dtype)
        return -(terms * weights).sum(-1)
    """,
)
style(
    "log_likelihood",
    "loops over rows and places",
    """
    def log_likelihood(logits, ids, mask=None):
        if ids.size(1) <= 1:
            raise ValueError("T")
        totals = []
        for b in range(len(ids)):
            total = logits.new_zeros(())
            for t in range(1, ids.size(1)):
                if mask is None or bool(mask[b, t]):
                    row = logits[b, t - 1]
                    total = total + row[ids[b, t]] - torch.logsumexp(row, 0)
            totals.append(total)
        return torch.stack(totals)
    """,
)
style(
    "log_likelihood",
    "one-hot targets, IGNORE where none counts",
    """
    def log_likelihood(logits, ids, mask=None):
        if logits.shape[1] < 2:
            raise ValueError("T")
        targets = ids.clone()
        targets[:, 0] = -100
        if mask is not None:
            targets[~mask] = -100
        log_probs = logits.log_softmax(-1).transpose(1, 2)[:, :, :-1]
        terms = F.nll_loss(log_probs, targets[:, 1:], ignore_index=-100, reduction="none")
        return terms.sum(dim=1).neg()
    """,
)
style(
    "language_model_loss",
    "one cross-entropy, zero where nothing counts",
    """
    def language_model_loss(logits, ids, mask=None):
        if ids.shape[1] < 2:
            raise ValueError("T")
        targets = ids[:, 1:]
        if mask is not None:
            if not mask[:, 1:].any():
                return 0.0 * logits.sum()
            targets = torch.where(mask[:, 1:], targets, -100)
        return F.cross_entropy(logits[:, :-1].transpose(1, 2), targets)
    """,
)
style(
    "language_model_loss",
    "chosen terms and their mean",
    """
    def language_model_loss(logits, ids, mask=None):
        if ids.shape[1] < 2:
            raise ValueError("T")
        log_probs = F.log_softmax(logits[:, :-1], dim=-1)
        picked = torch.take_along_dim(log_probs, ids[:, 1:, None], dim=-1)[..., 0]
        if mask is not None:
            picked = picked[mask[:, 1:]]
        if picked.numel() == 0:
            return logits.new_zeros(())
        return -picked.mean()
    """,
)
style(
    "language_model_loss",
    "a weighted mean of log_likelihood",
    """
    def language_model_loss(logits, ids, mask=None):
        keep = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
        n = int(keep[:, 1:].sum())
        return -log_likelihood(logits, ids, mask=keep).sum() / (n if n else 1)
    """,
)

# Training ---------------------------------------------------------------------------------------

style(
    "sample_blocks",
    "windows by unfold, one index for each row",
    """
    def sample_blocks(stream, length, batch_size):
        if length < 1 or batch_size < 1 or stream.numel() <= length:
            raise ValueError("no block")
        windows = stream.unfold(0, length + 1, 1)
        chosen = windows[torch.randint(0, windows.size(0), (batch_size,))]
        return chosen[:, :-1], chosen[:, 1:]
    """,
)
style(
    "sample_blocks",
    "slices in a loop, starts by torch.rand, a list as the result",
    """
    def sample_blocks(stream, length, batch_size):
        if min(length, batch_size) < 1:
            raise ValueError("sizes")
        places = len(stream) - length
        if places < 1:
            raise ValueError("short")
        starts = (torch.rand(batch_size, dtype=torch.float64) * places).long().tolist()
        rows = [stream[s : s + length + 1] for s in starts]
        return [torch.stack([r[:length] for r in rows]), torch.stack([r[1:] for r in rows])]
    """,
)
style(
    "sample_blocks",
    "starts by multinomial",
    """
    def sample_blocks(stream, length, batch_size):
        if length < 1 or batch_size < 1:
            raise ValueError("sizes")
        if stream.shape[0] - length <= 0:
            raise ValueError("short")
        even = torch.ones(stream.shape[0] - length)
        starts = torch.multinomial(even, batch_size, replacement=True)
        index = starts[:, None] + torch.arange(length + 1)[None]
        both = torch.take(stream, index)
        return both.narrow(1, 0, length), both.narrow(1, 1, length)
    """,
)
style(
    "decay_groups",
    "a loop, groups as a tuple of tuples",
    """
    def decay_groups(model, weight_decay):
        if weight_decay < 0:
            raise ValueError("negative")
        many, few = [], []
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            (few if parameter.ndim <= 1 else many).append(parameter)
        first = dict(params=tuple(many), weight_decay=weight_decay)
        return (first, dict(params=tuple(few), weight_decay=0))
    """,
)
style(
    "decay_groups",
    "generators and filters",
    """
    def decay_groups(model, weight_decay):
        if not weight_decay >= 0:
            raise ValueError("negative")
        return [
            {
                "params": (p for p in model.parameters() if p.requires_grad and p.dim() > 1),
                "weight_decay": weight_decay,
            },
            {
                "params": filter(lambda p: p.requires_grad and p.dim() < 2, model.parameters()),
                "weight_decay": 0.0,
            },
        ]
    """,
)
style(
    "adamw_step",
    "in place on copies",
    """
    def adamw_step(parameter, gradient, first, second, step, rate, betas=(0.9, 0.95), eps=1e-8,
                   weight_decay=0.1):
        if step <= 0:
            raise ValueError("steps count from 1")
        p, m, v = parameter.clone(), first.clone(), second.clone()
        p.mul_(1 - rate * weight_decay)
        m.lerp_(gradient, 1 - betas[0])
        v.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
        size = rate / (1 - betas[0] ** step)
        root = v.sqrt() / math.sqrt(1 - betas[1] ** step)
        p.addcdiv_(m, root.add_(eps), value=-size)
        return [p, m, v]
    """,
)
style(
    "adamw_step",
    "the change first, decay as part of it",
    """
    def adamw_step(parameter, gradient, first, second, step, rate, betas=(0.9, 0.95), eps=1e-8,
                   weight_decay=0.1):
        if step < 1:
            raise ValueError(step)
        (a, b), g = betas, gradient
        first = first + (1 - a) * (g - first)
        second = second + (1 - b) * (g * g - second)
        change = (first / (1 - a**step)) / (torch.sqrt(second / (1 - b**step)) + eps)
        return parameter - rate * (change + weight_decay * parameter), first, second
    """,
)
style(
    "cosine_rate",
    "cut off fractions",
    """
    def cosine_rate(step, peak, warmup, total, floor=0.0):
        if step < 1 or warmup < 0 or warmup >= total:
            raise ValueError("no such step")
        if step < warmup:
            return step / warmup * peak
        f = min(1.0, (step - warmup) / (total - warmup))
        share = 0.5 + 0.5 * math.cos(f * math.pi)
        return share * peak + (1 - share) * floor
    """,
)
style(
    "cosine_rate",
    "half-angle form",
    """
    def cosine_rate(step, peak, warmup, total, floor=0.0):
        if step < 1:
            raise ValueError("steps count from 1")
        if warmup not in range(total):
            raise ValueError("warmup")
        if warmup and step <= warmup:
            return float(peak * (step / warmup))
        left = max(total - step, 0) / (total - warmup)
        return float(floor + (peak - floor) * math.sin(math.pi / 2 * left) ** 2)
    """,
)
style(
    "train",
    "adamw_step by hand, gradients by autograd.grad, clipped by hand",
    """
    def train(model, stream, steps, length, batch_size, peak, warmup, weight_decay=0.1, clip=1.0):
        model.train()
        groups = decay_groups(model, weight_decay)
        decay = [(p, g["weight_decay"]) for g in groups for p in g["params"]]
        means = [(torch.zeros_like(p), torch.zeros_like(p)) for p, _ in decay]
        losses = []
        for step in range(1, steps + 1):
            x, y = sample_blocks(stream, length, batch_size)
            loss = -model(x).log_softmax(-1).gather(-1, y.unsqueeze(-1)).mean()
            grads = torch.autograd.grad(loss, [p for p, _ in decay], allow_unused=True)
            grads = [torch.zeros_like(p) if g is None else g for g, (p, _) in zip(grads, decay)]
            norm = sum(g.pow(2).sum() for g in grads).sqrt().item()
            if norm > clip:
                grads = [g * (clip / norm) for g in grads]
            rate = cosine_rate(step, peak, warmup, steps)
            for i, ((p, d), g) in enumerate(zip(decay, grads)):
                new, *means[i] = adamw_step(p.detach(), g, *means[i], step, rate, weight_decay=d)
                with torch.no_grad():
                    p.copy_(new)
            losses.append(float(loss))
        return losses
    """,
)
style(
    "train",
    "a scheduler of PyTorch, the loss of the chapter, gradients cleared at the end",
    """
    def train(model, stream, steps, length, batch_size, peak, warmup, weight_decay=0.1, clip=1.0):
        model.train(True)
        opt = torch.optim.AdamW(
            decay_groups(model, weight_decay), lr=1.0, betas=(0.9, 0.95), eps=1e-8, foreach=True
        )
        opt.zero_grad(set_to_none=False)
        rates = torch.optim.lr_scheduler.LambdaLR(
            opt, lambda n: cosine_rate(n + 1, peak, warmup, steps)
        )
        losses = torch.zeros(steps, dtype=torch.float64)
        for n in range(steps):
            x, y = sample_blocks(stream, length, batch_size)
            whole = torch.cat([x[:, :1], y], dim=1)
            logits = model(x)
            logits = torch.cat([logits, logits[:, -1:]], dim=1)
            loss = language_model_loss(logits, whole)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(list(model.parameters()), max_norm=clip)
            opt.step()
            rates.step()
            opt.zero_grad()
            losses[n] = loss.detach()
        return losses.tolist()
    """,
)

# Sampling ---------------------------------------------------------------------------------------

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
                if total >= p:
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
        return logits.where(rank < needed, torch.tensor(-math.inf, dtype=logits.dtype))
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
        if top_k:
            logits = keep_top_k(logits, top_k)
        if top_p:
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
            seen = torch.stack(columns[-model.context :], dim=1)
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
                logits = model(text[:, max(0, t - model.context) : t])
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

# The cache --------------------------------------------------------------------------------------

style(
    "attend_cached",
    "scaled_dot_product_attention with a mask of numbers",
    """
    def attend_cached(attention, x, past=None):
        B, T, D = x.shape
        H = attention.num_heads
        qkv = attention.qkv(x).view(B, T, 3, H, D // H).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        if past is not None:
            k, v = (torch.cat(pair, dim=-2) for pair in zip(past, (k, v)))
        P = k.shape[-2] - T
        hidden = torch.full((T, P + T), -math.inf, dtype=x.dtype).triu(P + 1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=hidden)
        return attention.out_proj(y.transpose(1, 2).reshape(B, T, D)), (k, v)
    """,
)
style(
    "attend_cached",
    "place by place, head by head",
    """
    def attend_cached(attention, x, past=None):
        B, T, D = x.shape
        H, W = attention.num_heads, attention.qkv.weight
        d = D // H
        q = F.linear(x, W[:D], attention.qkv.bias[:D])
        k = F.linear(x, W[D : 2 * D], attention.qkv.bias[D : 2 * D])
        v = F.linear(x, W[2 * D :], attention.qkv.bias[2 * D :])
        split = lambda y: torch.stack(y.split(d, dim=-1), dim=1)
        q, k, v = split(q), split(k), split(v)
        P = 0
        if past is not None:
            P = past[0].size(2)
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        rows = []
        for t in range(T):
            scores = (q[:, :, t : t + 1] * k[:, :, : P + t + 1]).sum(-1) * d**-0.5
            rows.append((scores.softmax(-1).unsqueeze(-1) * v[:, :, : P + t + 1]).sum(2))
        y = torch.stack(rows, dim=1).reshape(B, T, D)
        return [attention.out_proj(y), [k, v]]
    """,
)
style(
    "cached_forward",
    "dropout switched off for a while, the norms told from final_norm",
    """
    def cached_forward(model, ids, past=None):
        P = past[0][0].size(-2) if past else 0
        T = ids.size(1)
        if P + T > model.context:
            raise ValueError(f"{P} + {T} > {model.context}")
        was = model.training
        model.eval()
        x = model.token(ids) + model.position.weight[P : P + T]
        new = []
        for i, b in enumerate(model.blocks):
            old = past[i] if past else None
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
        return logits, new
    """,
)
style(
    "cached_forward",
    "a helper for a block, results as lists",
    """
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

    def cached_forward(model, ids, past=None):
        past = [None] * len(model.blocks) if past is None else past
        first = 0 if past[0] is None else past[0][0].shape[2]
        if first + ids.shape[1] > model.position.num_embeddings:
            raise ValueError("too long")
        places = torch.arange(ids.shape[1]).expand_as(ids) + first
        x = model.token(ids) + model.position(places)
        caches = []
        for block, old in zip(model.blocks, past):
            x, pair = through(block, x, old)
            caches.append(list(pair))
        return [torch.einsum("btd,vd->btv", model.final_norm(x), model.token.weight), caches]
    """,
)

# Fine-tuning and prompting -----------------------------------------------------------------------

style(
    "prompt_and_response",
    "the mask by places, joined lists",
    """
    def prompt_and_response(prompt, response):
        if len(prompt) == 0 or len(response) == 0:
            raise ValueError("nothing to learn from")
        ids = [START] + prompt + [DELIMITER] + response + [END]
        return ids, [place > len(prompt) + 1 for place in range(len(ids))]
    """,
)
style(
    "prompt_and_response",
    "token by token, a list as the result",
    """
    def prompt_and_response(prompt, response):
        for part in (prompt, response):
            if not part:
                raise ValueError("empty")
        pairs = [(START, False)]
        pairs.extend((token, False) for token in prompt)
        pairs.append((DELIMITER, False))
        pairs.extend((token, True) for token in response)
        pairs.append((END, True))
        ids, mask = zip(*pairs)
        return [list(ids), list(mask)]
    """,
)
style(
    "prompt_and_response",
    "behind the DELIMITER, found by search in a tensor",
    """
    def prompt_and_response(prompt, response):
        if min(len(prompt), len(response)) < 1:
            raise ValueError("too short")
        ids = torch.tensor([START, *prompt, DELIMITER, *response, END])
        behind = (ids == DELIMITER).long().cumsum(0).bool() & (ids != DELIMITER)
        return ids.tolist(), behind.tolist()
    """,
)
style(
    "entailment_input",
    "joined lists",
    """
    def entailment_input(premise, hypothesis):
        if len(premise) < 1 or len(hypothesis) < 1:
            raise ValueError("an empty text")
        return [START] + list(premise) + [DELIMITER] + list(hypothesis) + [EXTRACT]
    """,
)
style(
    "entailment_input",
    "a copy that grows",
    """
    def entailment_input(premise, hypothesis):
        row = [START]
        for text, mark in ((premise, DELIMITER), (hypothesis, EXTRACT)):
            if not text:
                raise ValueError("an empty text")
            row.extend(text)
            row.append(mark)
        return row
    """,
)
style(
    "similarity_inputs",
    "without the earlier exercise, refused by itself",
    """
    def similarity_inputs(first, second):
        if not (first and second):
            raise ValueError("an empty text")
        rows = []
        for a, b in ((first, second), (second, first)):
            rows.append([START] + a + [DELIMITER] + b + [EXTRACT])
        return rows
    """,
)
style(
    "similarity_inputs",
    "a tuple of two inputs",
    """
    def similarity_inputs(first, second):
        return entailment_input(first, second), entailment_input(second, first)
    """,
)
style(
    "choice_inputs",
    "without the earlier exercise, a common beginning",
    """
    def choice_inputs(context, answers):
        if not context or not answers or any(len(answer) == 0 for answer in answers):
            raise ValueError("something is empty")
        beginning = [START] + list(context) + [DELIMITER]
        return [beginning + list(answer) + [EXTRACT] for answer in answers]
    """,
)
style(
    "choice_inputs",
    "mapped, and looked at afterwards",
    """
    def choice_inputs(context, answers):
        inputs = list(map(lambda answer: entailment_input(context, answer), answers))
        if inputs:
            return inputs
        raise ValueError("no answers")
    """,
)
style(
    "GPTClassifier",
    "the place by argmax, gathered; F.dropout",
    """
    class GPTClassifier(nn.Module):
        def __init__(self, gpt, num_labels, dropout=0.1):
            super().__init__()
            self.gpt = gpt
            self.p = dropout
            self.classifier = nn.Linear(gpt.token.weight.shape[1], num_labels)

        def forward(self, ids):
            here = (ids == EXTRACT).long()
            counts = here.sum(-1)
            if counts.min() < 1 or counts.max() > 1:
                raise ValueError("one EXTRACT per row, please")
            x = self.gpt.features(ids)
            index = here.argmax(-1)[:, None, None].expand(-1, 1, x.shape[-1])
            read = F.dropout(x.gather(1, index)[:, 0], self.p, self.training)
            return self.classifier(read), F.linear(x, self.gpt.token.weight)
    """,
)
style(
    "GPTClassifier",
    "a sum weighted by one-hot places, dropout over all places before it",
    """
    class GPTClassifier(nn.Module):
        def __init__(self, gpt, num_labels, dropout=0.1):
            super().__init__()
            self.gpt, self.drop = gpt, nn.Dropout(dropout)
            self.classifier = nn.Linear(gpt.position.embedding_dim, num_labels)

        def forward(self, ids):
            for row in ids.tolist():
                if row.count(EXTRACT) != 1:
                    raise ValueError(f"{row.count(EXTRACT)} EXTRACT in {row}")
            x = self.gpt.features(ids)
            weights = (ids == EXTRACT).to(x.dtype)
            scores = self.classifier(torch.einsum("bt,btd->bd", weights, self.drop(x)))
            return scores, torch.einsum("btd,vd->btv", x, self.gpt.token.weight)
    """,
)
style(
    "GPTClassifier",
    "every place classified, one of them kept; rows one by one",
    """
    class GPTClassifier(nn.Module):
        def __init__(self, gpt, num_labels, dropout=0.1):
            super().__init__()
            self.gpt = gpt
            self.head = nn.Dropout(p=dropout)
            self.classifier = nn.Linear(gpt.token.embedding_dim, num_labels)

        def forward(self, ids):
            if not torch.equal((ids == EXTRACT).sum(1), torch.ones(len(ids), dtype=torch.long)):
                raise ValueError("exactly one EXTRACT")
            x = self.gpt.features(ids)
            every = self.classifier(self.head(x))
            scores = [row[ids[i].tolist().index(EXTRACT)] for i, row in enumerate(every)]
            return [torch.stack(scores), torch.matmul(x, self.gpt.token.weight.t())]
    """,
)
style(
    "joint_loss",
    "PyTorch's ignore_index",
    """
    def joint_loss(scores, labels, logits, ids, weight=0.5):
        if weight < 0:
            raise ValueError("negative weight")
        l2 = F.cross_entropy(scores, labels)
        l1 = F.cross_entropy(
            logits[:, :-1].reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1), ignore_index=PAD
        )
        return l2 + weight * l1, l2, l1
    """,
)
style(
    "joint_loss",
    "by log_likelihood; the parts are detached, since L3 is what trains",
    """
    def joint_loss(scores, labels, logits, ids, weight=0.5):
        if not weight >= 0:
            raise ValueError("negative weight")
        real = ids.ne(PAD)
        l1 = -log_likelihood(logits, ids, real).sum() / real[:, 1:].sum()
        l2 = -scores.log_softmax(1)[torch.arange(len(labels)), labels].mean()
        return torch.add(l2, l1, alpha=weight), l2.detach(), l1.detach()
    """,
)
style(
    "joint_loss",
    "row by row, place by place",
    """
    def joint_loss(scores, labels, logits, ids, weight=0.5):
        if weight < 0.0:
            raise ValueError("weight")
        terms = []
        for row, tokens in zip(logits, ids.tolist()):
            for t in range(1, len(tokens)):
                if tokens[t] != PAD:
                    terms.append(torch.logsumexp(row[t - 1], 0) - row[t - 1, tokens[t]])
        text = torch.stack(terms).mean()
        task = torch.stack(
            [torch.logsumexp(row, 0) - row[label] for row, label in zip(scores, labels)]
        ).mean()
        return [task + text * weight, task, text]
    """,
)
style(
    "build_prompt",
    "text that grows, line by line",
    """
    def build_prompt(task, examples, query, arrow=" =>"):
        text = ""
        if task != "":
            text += task + "\\n"
        for example in examples:
            text += example[0] + arrow + " " + example[1] + "\\n"
        return text + query + arrow
    """,
)
style(
    "build_prompt",
    "everything is filtered and joined",
    """
    def build_prompt(task, examples, query, arrow=" =>"):
        def line(*parts):
            return " ".join(parts)

        shots = (line(x + arrow, y) for (x, y) in examples)
        return "\\n".join(filter(None, (task, *shots, line(query + arrow))))
    """,
)
style(
    "answer_scores",
    "one answer at a time, the last token not shown to the model",
    """
    @torch.no_grad()
    def answer_scores(model, prompt, answers, per_token=True):
        if len(prompt) == 0 or len(answers) == 0:
            raise ValueError("nothing")
        for answer in answers:
            if not answer or len(prompt) + len(answer) > model.context:
                raise ValueError("empty or too long")
        found = []
        for answer in answers:
            ids = torch.tensor(prompt + answer[:-1]).unsqueeze(0)
            log_probs = model(ids)[0].log_softmax(-1)
            terms = [log_probs[len(prompt) - 1 + i, token] for i, token in enumerate(answer)]
            total = torch.stack(terms).sum()
            found.append(total / len(answer) if per_token else total)
        return torch.stack(found)
    """,
)
style(
    "answer_scores",
    "by cross-entropy with ignored targets, padded by the answer's last token",
    """
    def answer_scores(model, prompt, answers, per_token=True):
        if not prompt or not answers or min(map(len, answers)) == 0:
            raise ValueError("empty")
        most = max(map(len, answers))
        if len(prompt) + most > model.context:
            raise ValueError("too long")
        rows = [[*prompt, *answer, *answer[-1:] * (most - len(answer))] for answer in answers]
        first = [-100] * (len(prompt) - 1)
        goals = [first + answer + [-100] * (most - len(answer)) for answer in answers]
        with torch.inference_mode():
            logits = model(torch.tensor(rows))[:, :-1]
            each = -F.cross_entropy(logits.mT, torch.tensor(goals), reduction="none").sum(1)
        each = each.clone()
        return each / torch.tensor([len(answer) for answer in answers]) if per_token else each
    """,
)
style(
    "answer_scores",
    "detached at the end, token after token",
    """
    def answer_scores(model, prompt, answers, per_token=True):
        if [] in (prompt, answers) or [] in answers:
            raise ValueError("empty")
        if max(len(prompt) + len(answer) for answer in answers) > model.context:
            raise ValueError("too long")
        scores = []
        for answer in answers:
            text, terms = list(prompt), []
            for token in answer:
                logits = model(torch.tensor([text]))[0, -1].detach()
                terms.append(logits[token] - logits.logsumexp(0))
                text.append(token)
            scores.append(sum(terms) / (len(terms) if per_token else 1))
        return torch.stack(scores)
    """,
)

# Known mistakes ---------------------------------------------------------------------------------

# Of the circulating notes and of public code; `verify` tries all there are.
NOTABLE = (
    "mask_one_ahead",
    "mask_past_ignored",
    "window_one_too_wide",
    "window_of_blocks",
    "attention_unscaled",
    "attention_scaled_by_width",
    "attention_mask_transposed",
    "attention_mask_after_softmax",
    "attention_softmax_over_queries",
    "attention_parts_within_heads",
    "attention_heads_without_transpose",
    "attention_merged_without_transpose",
    "attention_result_not_dropped",
    "gelu_exact",
    "ffn_not_dropped",
    "post_pre_norm",
    "pre_shortcut_from_norm",
    "pre_without_second_norm",
    "gpt_head_untied",
    "gpt_head_tied_once",
    "gpt_final_norm_missing",
    "gpt_final_norm_always",
    "gpt_positions_from_1",
    "gpt_embeddings_scaled",
    "gpt_blocks_without_dropout",
    "init_residual_by_root_of_n",
    "init_only_attention_scaled",
    "init_post_norm_scaled",
    "init_variance",
    "init_norms_zero",
    "count_head_twice",
    "count_without_final_norm",
    "rename_not_transposed",
    "rename_square_not_transposed",
    "rename_masks_kept",
    "rename_unknown_dropped",
    "likelihood_without_shift",
    "likelihood_mask_by_inputs",
    "lm_loss_mean_of_means",
    "lm_loss_divided_by_all",
    "lm_loss_nan_without_targets",
    "blocks_last_start_left_out",
    "blocks_targets_are_inputs",
    "groups_by_name_bias",
    "adamw_decay_in_gradient",
    "adamw_eps_inside_root",
    "train_gradients_accumulate",
    "train_shifted_twice",
    "top_k_ties_cut",
    "top_p_crossing_dropped",
    "top_p_not_sorted_back",
    "sample_top_p_first",
    "generate_not_cropped",
    "generate_stop_goes_on",
    "cache_mask_without_past",
    "cached_positions_restart",
    "response_mask_on_prompt",
    "response_mask_shifted",
    "entailment_without_extract",
    "similarity_one_order",
    "classifier_reads_last_column",
    "classifier_two_passes",
    "joint_convex",
    "joint_padding_counted",
    "prompt_trailing_space",
    "answers_without_shift",
    "answers_prompt_counted",
    "answers_sum_for_mean",
)


class TestGraders(ChapterGraders):
    chapter = CHAPTER
    styles = STYLES
    notable = NOTABLE


# A module answers for itself, and not for its parts ---------------------------------------------


cell = functools.partial(cell_with, CHAPTER)  # by the name of a mistake


BLOCKS = ["PostNormBlock", "PreNormBlock"]
USERS = ["generate", "GPTClassifier", "answer_scores"]  # of the whole model

# What becomes of an early mistake in the exercises that use it: the tests that must still pass.
KEPT = {
    "mask_upper": ["CausalSelfAttention", *BLOCKS, "GPT", *USERS],
    "mask_one_ahead": ["CausalSelfAttention", *BLOCKS, "GPT", *USERS],
    "mask_without_itself": ["CausalSelfAttention"],
    "attention_unscaled": [*BLOCKS, "GPT", *USERS],
    "attention_not_masked": [*BLOCKS, "GPT", "cached_forward", *USERS],
    "attention_parts_within_heads": [*BLOCKS, "GPT", *USERS],
    "attention_without_output": [*BLOCKS, "GPT", *USERS],
    "attention_result_not_dropped": [*BLOCKS, "GPT", *USERS],
    "attention_dropout_in_eval": [*BLOCKS, "GPT"],
    "gelu_exact": ["FeedForward", *BLOCKS, "GPT", *USERS],
    "gelu_relu": ["FeedForward", *BLOCKS, "GPT", *USERS],
    "gelu_mirrored": ["FeedForward", *BLOCKS, "GPT", *USERS],
    "ffn_residual_inside": [*BLOCKS, "GPT", *USERS],
    "ffn_not_dropped": [*BLOCKS, "GPT", *USERS],
    "ffn_dropout_in_eval": [*BLOCKS, "GPT"],
    "ffn_not_wider": ["GPTClassifier", "answer_scores"],
    "post_pre_norm": ["GPT"],
    "pre_post_norm": ["GPT", *USERS],
    "pre_one_norm": ["GPT"],
    "pre_without_shortcuts": ["GPT", *USERS],
    "gpt_head_untied": ["GPTClassifier", "answer_scores"],
    "gpt_block_missing": ["init_weights"],
    "gpt_final_norm_always": ["init_weights"],
    "gpt_final_norm_missing": ["GPTClassifier", "answer_scores"],
    "gpt_blocks_backwards": ["GPTClassifier", "init_weights"],
    "groups_matrices_only": ["train"],
    "temperature_multiplied": ["sample_token", "generate"],
    "top_k_ties_cut": ["sample_token", "generate"],
    "top_p_crossing_dropped": ["sample_token", "generate"],
    "sample_top_p_first": ["generate"],
    "cache_mask_strict": ["cached_forward"],
    "likelihood_without_shift": ["language_model_loss", "joint_loss", "answer_scores"],
    "likelihood_mask_ignored": ["language_model_loss", "joint_loss", "answer_scores"],
    "likelihood_overflows": ["language_model_loss", "joint_loss", "answer_scores"],
    "likelihood_without_gradient": ["language_model_loss"],
    "likelihood_length_unchecked": ["language_model_loss"],
    "lm_loss_summed": ["joint_loss"],
    "lm_loss_number": ["joint_loss"],
    "lm_loss_without_gradient": ["joint_loss"],
    "entailment_without_start": ["similarity_inputs", "choice_inputs"],
    "entailment_empty_accepted": ["similarity_inputs", "choice_inputs"],
}


@pytest.mark.parametrize("name", KEPT)
def test_an_early_mistake_costs_later_exercises_nothing(graders, name):
    namespace = wrong_namespace(CHAPTER, name)  # all of it uses the wrong answer
    early = next(item.exercise for item in misconceptions(CHAPTER) if item.name == name)
    assert failures(graders, namespace, [early]) != []
    assert failures(graders, namespace, KEPT[name]) == []


@pytest.mark.parametrize(
    ("early", "late"),
    [
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
        ("gpt_block_missing", "init_residual_not_scaled"),
        ("gpt_final_norm_always", "init_variance"),
        ("likelihood_without_shift", "lm_loss_divided_by_rows"),
        ("likelihood_mask_ignored", "lm_loss_nan_without_targets"),
        ("likelihood_negative", "lm_loss_mean_of_means"),
        ("attention_unscaled", "classifier_reads_last_column"),
        ("attention_not_masked", "classifier_reads_first"),
        ("gpt_head_untied", "classifier_without_dropout"),
        ("gpt_blocks_backwards", "classifier_reads_mean"),
        ("likelihood_without_shift", "joint_weight_on_task"),
        ("likelihood_mask_ignored", "joint_convex"),
        ("lm_loss_summed", "joint_task_summed"),
        ("likelihood_without_shift", "answers_sum_for_mean"),
        ("likelihood_mask_ignored", "answers_negative"),
        ("entailment_without_start", "similarity_same_order"),
        ("entailment_empty_accepted", "choice_no_answers_accepted"),
        ("entailment_end_for_extract", "choice_answer_first"),
    ],
)
def test_an_early_mistake_excuses_no_later_one(graders, early, late):
    exercise = next(item.exercise for item in misconceptions(CHAPTER) if item.name == late)
    namespace = changed(CHAPTER, cell(early) + "\n\n" + cell(late))
    assert failures(graders, namespace, [exercise]) != []
