"""The graders of `transformer`: every legitimate style earns full marks, known mistakes don't."""

from __future__ import annotations

import functools
import textwrap

import pytest

from autograder.judging.runner import Graders
from autograder.sandbox.executor import Executor
from autograder.units.variants import misconceptions, reference_namespace
from tests.autograder.chapter_graders import (
    ChapterGraders,
    Styles,
    cell_with,
    changed,
    failures,
    graders_of,
)

CHAPTER = "transformer"

# Right answers that look unlike the reference and unlike those in autograder/demo.
STYLES = Styles()
style = STYLES.add


# Parts ------------------------------------------------------------------------------------------

style(
    "Embeddings",
    "a module of its own for the table, one-hot rows",
    """
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
            weights = (scores - scores.max(-1, keepdim=True).values).exp()
            weights = weights / weights.sum(-1, keepdim=True)
            if self.training and self.p > 0:
                weights = weights * (torch.rand_like(weights) >= self.p) / (1 - self.p)
            heads = torch.bmm(weights, values.flatten(0, 1)).unflatten(0, (B, self.H))
            return self.out_proj(torch.cat(heads.unbind(1), dim=-1))

        def forward(self, query, key, value, mask=None):
            return self.attend(query, *self.project(key, value), mask)
    """,
)
style(
    "MultiHeadAttention",
    "the kernel in forward, formulas in the stages, extra attributes and a buffer",
    """
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
        def __init__(self, features, eps=1e-5):
            super().__init__()
            if not features > 0:
                raise ValueError("no features")
            self.gamma, self.beta = (nn.Parameter(v * torch.ones(features)) for v in (1.0, 0.0))
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
        def __init__(self, features, eps=1e-5):
            if features < 1:
                raise ValueError
            super().__init__()
            self.D = features
            self.eps = torch.tensor(eps)
            self.gamma = nn.Parameter(torch.empty(features).fill_(1))
            self.beta = nn.Parameter(torch.empty(features).fill_(0))

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
        def __init__(self, width):
            super().__init__()
            self.w_1 = nn.Linear(width, width, bias=False)
            self.w_2 = nn.Linear(width, width, bias=False)
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
style(
    "clones",
    "a list that grows, parameters drawn anew by nobody",
    """
    def clones(module, n):
        if not n >= 1:
            raise ValueError
        made = nn.ModuleList([copy.deepcopy(module)])
        while len(made) < n:
            made.insert(len(made), copy.deepcopy(made[-1]))
        return made
    """,
)

# Stacks -----------------------------------------------------------------------------------------

style(
    "EncoderLayer",
    "connections unrolled by hand",
    """
    class EncoderLayer(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, dropout=0.0, norm_first=False):
            super().__init__()
            self.self_attn = MultiHeadAttention(d_model, num_heads, dropout)
            self.feed_forward = PositionwiseFeedForward(d_model, d_ff, dropout)
            self.sublayer = nn.ModuleList(
                SublayerConnection(d_model, dropout, norm_first) for _ in range(2)
            )
            self.norm_first, self.dropout = norm_first, nn.Dropout(dropout)

        def forward(self, x, mask=None):
            first, second = (connection.norm for connection in self.sublayer)
            if self.norm_first:
                y = first(x)
                x = x + self.dropout(self.self_attn(y, y, y, mask))
                return x + self.dropout(self.feed_forward(second(x)))
            x = first(x + self.dropout(self.self_attn(x, x, x, mask)))
            return second(x + self.dropout(self.feed_forward(x)))
    """,
)
style(
    "Encoder",
    "reduce, a norm that may be the identity",
    """
    from functools import reduce

    class Encoder(nn.Module):
        def __init__(self, num_layers, d_model, num_heads, d_ff, dropout=0.0, norm_first=False):
            super().__init__()
            if num_layers <= 0:
                raise ValueError(num_layers)
            sizes = dict(d_model=d_model, num_heads=num_heads, d_ff=d_ff)
            more = dict(dropout=dropout, norm_first=norm_first)
            self.layers = nn.ModuleList(EncoderLayer(**sizes, **more) for _ in range(num_layers))
            self.norm = (LayerNorm if norm_first else nn.Identity)(d_model)

        def forward(self, x, mask=None):
            return self.norm(reduce(lambda y, layer: layer(y, mask=mask), self.layers, x))
    """,
)
style(
    "DecoderLayer",
    "the stages of source attention apart, named functions",
    """
    class DecoderLayer(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, dropout=0.0, norm_first=False):
            super().__init__()
            self.sublayer = clones(SublayerConnection(d_model, dropout, norm_first=norm_first), 3)
            self.feed_forward = PositionwiseFeedForward(d_model, d_ff, dropout)
            self.src_attn, self.self_attn = (
                MultiHeadAttention(d_model, num_heads, dropout) for _ in range(2)
            )

        def forward(self, x, memory, src_mask=None, tgt_mask=None):
            def itself(y):
                keys, values = self.self_attn.project(y, y)
                return self.self_attn.attend(y, keys, values, tgt_mask)

            def source(y):
                return self.src_attn(query=y, key=memory, value=memory, mask=src_mask)

            steps = itself, source, self.feed_forward.forward
            for connection, step in zip(self.sublayer, steps):
                x = connection(x, step)
            return x
    """,
)
style(
    "Decoder",
    "layers called by recursion",
    """
    class Decoder(nn.Module):
        def __init__(self, num_layers, d_model, num_heads, d_ff, dropout=0.0, norm_first=False):
            super().__init__()
            one = DecoderLayer(d_model, num_heads, d_ff, dropout, norm_first)
            self.layers = clones(one, num_layers)
            self.last = nn.ModuleList()
            if norm_first:
                self.norm = LayerNorm(d_model)

        def run(self, count, x, *given):
            if count == 0:
                return x
            return self.layers[count - 1](self.run(count - 1, x, *given), *given)

        def forward(self, x, memory, src_mask=None, tgt_mask=None):
            x = self.run(len(self.layers), x, memory, src_mask, tgt_mask)
            return self.norm(x) if "norm" in dict(self.named_children()) else x
    """,
)

# The model --------------------------------------------------------------------------------------

style(
    "Generator",
    "log_softmax of a product written out",
    """
    class Generator(nn.Module):
        def __init__(self, d_model, vocab_size):
            super().__init__()
            self.proj = nn.Linear(d_model, vocab_size)
            self.vocab_size = vocab_size

        def forward(self, hidden):
            logits = hidden @ self.proj.weight.mT + self.proj.bias
            return F.log_softmax(logits.double(), -1).to(hidden.dtype)
    """,
)
style(
    "EncoderDecoder",
    "two sides by one method, masks by hand",
    """
    class EncoderDecoder(nn.Module):
        def __init__(self, src_vocab, tgt_vocab, num_layers=6, d_model=512, d_ff=2048, num_heads=8,
                     dropout=0.1, norm_first=False, max_length=5000):
            super().__init__()
            self.generator = Generator(d_model, tgt_vocab)
            for name, kind in (("encoder", Encoder), ("decoder", Decoder)):
                stack = kind(num_layers=num_layers, d_model=d_model, num_heads=num_heads, d_ff=d_ff,
                             dropout=dropout, norm_first=norm_first)
                self.add_module(name, stack)
            self.position = PositionalEncoding(d_model, dropout=dropout, max_length=max_length)
            sizes = src_vocab, tgt_vocab
            self.src_embed, self.tgt_embed = (Embeddings(size, d_model) for size in sizes)

        def side(self, name, ids):
            return self.position(getattr(self, f"{name}_embed")(ids), start=0)

        def encode(self, src, src_mask=None):
            return self.encoder(self.side("src", src), src_mask)

        def decode(self, memory, src_mask, tgt, tgt_mask):
            return self.decoder(self.side("tgt", tgt), memory, src_mask, tgt_mask)

        def forward(self, src, tgt):
            real, length = (src != PAD)[:, None, :], tgt.shape[1]
            past = torch.tril(torch.ones(length, length)).bool() & (tgt != PAD)[:, None, :]
            return self.generator(self.decode(self.encode(src, real), real, tgt, past))
    """,
)
style(
    "make_model",
    "every matrix by Xavier, the tables drawn again, buffers and biases by apply",
    """
    def make_model(src_vocab, tgt_vocab, num_layers=6, d_model=512, d_ff=2048, num_heads=8,
                   dropout=0.1, norm_first=False, shared=False):
        if shared and src_vocab != tgt_vocab:
            raise ValueError(f"{src_vocab} and {tgt_vocab}")
        model = EncoderDecoder(src_vocab, tgt_vocab, num_layers, d_model, d_ff, num_heads, dropout,
                               norm_first=norm_first)
        for p in model.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)
        for module in model.modules():
            if getattr(module, "bias", None) is not None:
                module.bias.data.zero_()
            if isinstance(module, nn.Embedding):
                module.weight.data = torch.randn(module.weight.shape) * d_model ** -0.5
        if shared:
            model.generator.proj.weight = model.tgt_embed.lut.weight
            model.src_embed = model.tgt_embed
        return model
    """,
)
style(
    "make_model",
    "a subclass that draws its own parameters",
    """
    class Drawn(EncoderDecoder):
        @torch.no_grad()
        def draw(self, d_model):
            for name, p in self.named_parameters():
                kind = name.split(".")[-1]
                if kind == "gamma":
                    p.fill_(1)
                elif p.dim() == 1:
                    p.fill_(0)
                elif "lut" in name:
                    p.normal_(0, math.sqrt(1 / d_model))
                else:
                    bound = (6 / (p.size(0) + p.size(1))) ** 0.5
                    p.copy_(2 * bound * torch.rand(p.shape) - bound)
            return self

    def make_model(src_vocab, tgt_vocab, num_layers=6, d_model=512, d_ff=2048, num_heads=8,
                   dropout=0.1, norm_first=False, shared=False):
        if shared is True and src_vocab != tgt_vocab:
            raise ValueError
        sizes = num_layers, d_model, d_ff, num_heads
        model = Drawn(src_vocab, tgt_vocab, *sizes, dropout, norm_first)
        if shared:
            model.src_embed.lut.weight = model.tgt_embed.lut.weight
            model.draw(d_model)
            model.generator.proj.weight = model.src_embed.lut.weight
            return model
        return model.draw(d_model)
    """,
)

# Training and decoding ---------------------------------------------------------------------------

style(
    "shift_targets",
    "unbind and stack, a named tuple",
    """
    from collections import namedtuple

    Shifted = namedtuple("Shifted", "read say count")

    def shift_targets(target, pad=PAD):
        columns = target.unbind(1)
        if len(columns) <= 1:
            raise ValueError
        say = torch.stack(columns[1:], 1)
        count = sum(v != pad for v in say.ravel().tolist())
        return Shifted(torch.stack(columns[:-1], 1), say, count)
    """,
)
style(
    "token_batches",
    "groupby is no help: a generator, tuples",
    """
    class TooLong(ValueError):
        pass

    def token_batches(lengths, max_tokens):
        if not max_tokens > 0:
            raise ValueError("max_tokens")
        for i, (s, t) in enumerate(lengths):
            if not max(s, t) <= max_tokens:
                raise TooLong(f"number {i}: {s} and {t} tokens")

        def batches():
            batch = ()
            for i in sorted(range(len(lengths)), key=lambda i: tuple(lengths[i])):
                grown = (*batch, i)
                sides = [len(grown) * max(lengths[j][k] for j in grown) for k in (0, 1)]
                if max(sides) <= max_tokens:
                    batch = grown
                else:
                    yield batch
                    batch = (i,)
            if batch:
                yield batch

        return tuple(batches())
    """,
)
style(
    "label_smoothing_loss",
    "cross entropy of chosen places, by logsumexp again",
    """
    def label_smoothing_loss(log_probs, target, smoothing=0.1, pad=PAD):
        if smoothing < 0 or smoothing >= 1:
            raise ValueError
        places = (target != pad).nonzero(as_tuple=True)
        if not len(places[0]):
            raise ValueError
        logits = log_probs[places]
        logits = logits - logits.logsumexp(-1, keepdim=True)  # changes nothing
        right = torch.take_along_dim(logits, target[places][:, None], 1)[:, 0]
        V = logits.size(1)
        others = logits.sum(1) - right
        keep = 1 - smoothing + smoothing / V
        return torch.neg(torch.mean(keep * right + smoothing / V * others))
    """,
)
style(
    "label_smoothing_loss",
    "kl_div plus the entropy of the target",
    """
    def label_smoothing_loss(log_probs, target, smoothing=0.1, pad=PAD):
        if not (smoothing >= 0 and smoothing < 1) or bool((target == pad).all()):
            raise ValueError("input")
        real = target != pad
        V = log_probs.shape[-1]
        wanted = torch.full_like(log_probs, smoothing / V).detach()
        wanted.scatter_(2, torch.where(real, target, 0)[..., None], 1 - smoothing + smoothing / V)
        wanted = wanted * real[..., None]
        entropy = -torch.special.xlogy(wanted, wanted).sum()
        apart = F.kl_div(log_probs, wanted, reduction="sum")
        return (apart + entropy) / real.sum()
    """,
)
style(
    "learning_rate",
    "logarithms, a float of NumPy",
    """
    import numpy as np

    def learning_rate(step, d_model=512, warmup=4000, factor=1.0):
        if step <= 0 or warmup <= 0:
            raise ValueError
        falling = -0.5 * np.log(step)
        rising = np.log(step) - 1.5 * np.log(warmup)
        return factor * np.exp(np.minimum(falling, rising) - 0.5 * np.log(d_model))
    """,
)
style(
    "adam_step",
    "clones changed in place, the correction in the rate",
    """
    def adam_step(parameter, gradient, first, second, step, rate, betas=(0.9, 0.98), eps=1e-9):
        if step < 1:
            raise ValueError
        b1, b2 = betas
        first = first.clone().mul_(b1).add_(gradient, alpha=1 - b1)
        second = second.clone().mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
        root = second.sqrt().div_(math.sqrt(1 - b2**step)).add_(eps)
        return parameter.clone().addcdiv_(first, root, value=-rate / (1 - b1**step)), first, second
    """,
)
style(
    "adam_step",
    "torch.optim with a state of its own",
    """
    def adam_step(parameter, gradient, first, second, step, rate, betas=(0.9, 0.98), eps=1e-9):
        if step < 1:
            raise ValueError
        with torch.enable_grad():
            copy_ = nn.Parameter(parameter.detach().clone())
        copy_.grad = gradient.detach().clone()
        adam = torch.optim.Adam([copy_], lr=rate, betas=betas, eps=eps, foreach=False)
        adam.state[copy_] = {
            "step": torch.tensor(float(step - 1)),
            "exp_avg": first.clone(),
            "exp_avg_sq": second.clone(),
        }
        adam.step()
        state = adam.state[copy_]
        return copy_.detach(), state["exp_avg"], state["exp_avg_sq"]
    """,
)
style(
    "train_step",
    "the whole target is read and the last place cut off, functional_call, fused dicts",
    """
    from torch.func import functional_call, grad_and_value

    def train_step(model, source, target, moments, step, rate, smoothing=0.1):
        free = {n: p for n, p in model.named_parameters() if p.requires_grad}
        said = shift_targets(target)[1]

        def loss_of(parameters):
            log_probs = functional_call(model, parameters, (source, target))[:, :-1]
            return label_smoothing_loss(log_probs, said, smoothing)

        with torch.enable_grad():
            leaves = {n: p.detach().clone().requires_grad_() for n, p in free.items()}
            loss = loss_of(leaves)
            gradients = torch.autograd.grad(loss, tuple(leaves.values()), allow_unused=True)
        after = {}
        for (name, parameter), gradient in zip(free.items(), gradients):
            if gradient is None:
                continue
            zero = torch.zeros_like(gradient)
            old = moments[name] if name in moments else (zero, zero.clone())
            new, *means = adam_step(parameter.detach(), gradient, *old, step, rate)
            parameter.data = new
            after[name] = list(means)
        return float(loss), after
    """,
)
style(
    "train_step",
    "gradients cleared at the end as well",
    """
    def train_step(model, source, target, moments, step, rate, smoothing=0.1):
        for p in model.parameters():
            if p.grad is not None:
                p.grad.zero_()
        read, said, _ = shift_targets(target)
        loss = label_smoothing_loss(model(source, read), said, smoothing=smoothing)
        loss.backward()
        moments = {name: tuple(pair) for name, pair in moments.items()}
        for name, p in model.named_parameters():
            if p.grad is None:
                continue
            m, v = moments.get(name) or (p.new_zeros(p.shape), p.new_zeros(p.shape))
            with torch.no_grad():
                new, m, v = adam_step(p.detach(), p.grad, m, v, step=step, rate=rate)
                p[...] = new
            moments[name] = (m, v)
        model.zero_grad()
        return loss.detach().item(), moments
    """,
)
style(
    "greedy_decode",
    "make_std_mask, max_length steps for all, cut afterwards",
    """
    @torch.inference_mode()
    def greedy_decode(model, source, max_length):
        if max_length <= 0:
            raise ValueError
        source_mask = (source != PAD)[:, None, :]
        memory = model.encode(source, source_mask)
        # A PAD that a row writes itself must not be hidden: another id stands for it in the mask.
        written = torch.full((source.shape[0], 1), BOS)
        for _ in range(max_length):
            shown = written.masked_fill(written == PAD, UNK)
            out = model.decode(memory, source_mask, written, make_std_mask(shown))
            scores = model.generator(out).select(1, -1)
            written = torch.cat((written, scores.max(-1, keepdim=True).indices), 1)
        ids = written[:, 1:]
        ended = (ids == EOS).long()
        ids = torch.where(ended.cumsum(1) - ended > 0, PAD, ids)
        lengths = (ended.cumsum(1) - ended == 0).sum(1)
        return ids[:, : lengths.max()].contiguous().clone()
    """,
)
style(
    "greedy_decode",
    "only the rows that still write go through the model",
    """
    def greedy_decode(model, source, max_length):
        if max_length < 1:
            raise ValueError
        with torch.no_grad():
            mask = pad_mask(source)
            memory = model.encode(source, mask)
            texts = [[BOS] for _ in source]
            alive = list(range(len(source)))
            while alive and max(map(len, texts)) <= max_length:
                tgt = torch.tensor([texts[row] for row in alive])
                causal = subsequent_mask(tgt.shape[1])
                hidden = model.decode(memory[alive], mask[alive], tgt, causal)
                best = model.generator(hidden[:, -1:]).argmax(-1)[:, 0]
                for row, token in zip(alive, best.tolist()):
                    texts[row].append(token)
                alive = [row for row in alive if texts[row][-1] != EOS]
            return nn.utils.rnn.pad_sequence(
                [torch.tensor(text[1:]) for text in texts], batch_first=True, padding_value=PAD
            )
    """,
)
style(
    "beam_search",
    "a heap of tuples, floats of NumPy, the memory not repeated",
    """
    import heapq
    import numpy as np

    @torch.no_grad()
    def beam_search(model, source, beam_size, max_length, alpha=0.6):
        if min(beam_size, max_length) < 1 or alpha < 0 or source.shape[0] != 1:
            raise ValueError
        mask = pad_mask(source)
        memory = model.encode(source, mask)

        def after(ids):
            tgt = torch.tensor([[BOS, *ids]])
            hidden = model.decode(memory, mask, tgt, subsequent_mask(len(ids) + 1))
            return model.generator(hidden)[0, -1].double().numpy()

        live, done = [(np.float64(0), ())], []
        for _ in range(max_length):
            grown = [(s + p, (*ids, v)) for s, ids in live for v, p in enumerate(after(ids))]
            grown = [one for one in grown if np.isfinite(one[0])]
            best = heapq.nlargest(beam_size - len(done), grown)
            done += [one for one in best if one[1][-1] == EOS]
            live = [one for one in best if one[1][-1] != EOS]
        scored = [(s / np.power((5 + len(ids)) / 6, alpha), list(ids)) for s, ids in done + live]
        return [(ids, score) for score, ids in sorted(scored, reverse=True)]
    """,
)
style(
    "beam_search",
    "the finished stay in the beam and make no copies of themselves",
    """
    def beam_search(model, source, beam_size, max_length, alpha=0.6):
        for wrong in (len(source) != 1, beam_size < 1, max_length < 1, alpha < 0):
            if wrong:
                raise ValueError("input")
        src = (source != PAD).unsqueeze(-2)
        memory = model.encode(source, src)
        beam = [([], 0.0)]

        def over(ids):
            return bool(ids) and ids[-1] == EOS

        for _ in range(max_length):
            done = [one for one in beam if over(one[0])]
            grown = []
            for ids, total in beam:
                if over(ids):
                    continue
                target = torch.tensor([[BOS] + ids])
                hidden = model.decode(memory, src, target, make_std_mask(target.clamp(min=1)))
                row = model.generator(hidden[0, -1])
                grown += [(ids + [v], total + p) for v, p in enumerate(row.tolist())]
            grown = [one for one in grown if one[1] != float("-inf")]
            grown.sort(key=lambda one: one[1])
            beam = done + grown[::-1][: beam_size - len(done)]
        result = []
        for ids, total in beam:
            result.append((ids, total / math.exp(alpha * math.log((5 + len(ids)) / 6))))
        return sorted(result, key=lambda pair: -pair[1])
    """,
)
style(
    "start_cache",
    "projections by hand, tuples",
    """
    def start_cache(model, source):
        mask = torch.ne(source, PAD)[:, None]
        memory = model.encode(source, mask)
        heads = model.decoder.layers[0].src_attn
        _, H, _, width = heads.project(memory, memory)[0].shape

        def of(name):
            linears = [getattr(layer.src_attn, name) for layer in model.decoder.layers]
            made = [F.linear(memory, one.weight, one.bias) for one in linears]
            return tuple(x.view(*x.shape[:2], H, width).movedim(2, 1).contiguous() for x in made)

        cache = {"values": [], "keys": [], "src_mask": mask}
        cache["memory_values"], cache["memory_keys"] = of("v_proj"), of("k_proj")
        for _ in model.decoder.layers:
            cache["keys"].append(torch.zeros(len(source), H, 0, width).to(memory))
            cache["values"].append(torch.zeros(len(source), H, 0, width).to(memory))
        return cache
    """,
)
style(
    "decode_step",
    "attention by hand, norm order asked of the model",
    """
    @torch.no_grad()
    def decode_step(model, token, cache):
        B, H, past, width = cache["keys"][0].shape
        x = model.tgt_embed(token[:, None])
        # The code of a place: what is added to nothing.
        x = model.position(x, past)
        probe = torch.randn(1, 1, x.shape[-1], dtype=x.dtype)
        connection = model.decoder.layers[0].sublayer[0]
        first = not torch.allclose(connection(probe, torch.zeros_like), connection.norm(probe))
        grown = {"keys": [], "values": []}

        def split(y):
            return y.view(B, 1, H, width).transpose(1, 2)

        def attend(attention, y, keys, values, mask):
            scores = split(attention.q_proj(y)) @ keys.mT / width**0.5
            scores = scores.masked_fill(~mask[:, None], float("-inf"))
            mixed = torch.softmax(scores, -1) @ values
            return attention.out_proj(mixed.transpose(1, 2).reshape(B, 1, H * width))

        for n, layer in enumerate(model.decoder.layers):
            def own(y):
                keys = torch.cat([cache["keys"][n], split(layer.self_attn.k_proj(y))], 2)
                values = torch.cat([cache["values"][n], split(layer.self_attn.v_proj(y))], 2)
                grown["keys"].append(keys)
                grown["values"].append(values)
                every = torch.ones(B, 1, past + 1).bool()
                return attend(layer.self_attn, y, keys, values, every)

            def other(y):
                pair = cache["memory_keys"][n], cache["memory_values"][n]
                return attend(layer.src_attn, y, *pair, cache["src_mask"])

            for connection, part in zip(layer.sublayer, (own, other, layer.feed_forward)):
                if first:
                    x = x + part(connection.norm(x))
                else:
                    x = connection.norm(x + part(x))
        if first:
            x = model.decoder.norm(x)
        return model.generator(x)[:, 0, :], {**cache, **grown}
    """,
)
style(
    "decode_step",
    "tensors of the right length filled in, the whole cache copied",
    """
    import copy as copying

    def decode_step(model, token, cache):
        cache = copying.deepcopy(cache)
        position = cache["values"][-1].size(2)
        x = model.position(model.tgt_embed(token).unsqueeze(1), start=position)
        for n, layer in enumerate(model.decoder.layers):
            def put(name, new):
                old = cache[name][n]
                longer = new.new_empty(*old.shape[:2], position + 1, old.shape[3])
                longer[:, :, :position] = old
                longer[:, :, position:] = new
                cache[name] = [*cache[name][:n], longer, *cache[name][n + 1 :]]
                return longer

            def self_attention(y):
                both = layer.self_attn.project(y, y)
                return layer.self_attn.attend(y, *map(put, ("keys", "values"), both))

            x = layer.sublayer[0](x, self_attention)
            x = layer.sublayer[1](
                x,
                lambda y: layer.src_attn.attend(
                    y, cache["memory_keys"][n], cache["memory_values"][n], mask=cache["src_mask"]
                ),
            )
            x = layer.sublayer[2](x, layer.feed_forward)
        for name, module in model.decoder.named_children():
            if name == "norm":
                x = module(x)
        return model.generator(x.squeeze(1)), cache
    """,
)


# Mistakes of the source documents and of well-known public code; `verify` tries all of them.
NOTABLE = (
    "embeddings_unscaled",
    "embeddings_xavier",
    "attention_scale_d_model",
    "attention_batch_size_under_mask",
    "attention_mask_by_zero",
    "attention_mask_over_heads",
    "attention_heads_without_transpose",
    "subsequent_without_self",
    "std_mask_or",
    "std_mask_padded_queries",
    "norm_sample_deviation_eps_outside",
    "norm_unbiased",
    "norm_eps_subtracted",
    "norm_variance_squared",
    "norm_without_parameters",
    "norm_over_positions",
    "ffn_gelu",
    "block_relu_before_sum",
    "connection_always_pre",
    "connection_norm_of_sublayer",
    "connection_shortcut_normalised",
    "clones_one_module",
    "encoder_layer_attention_without_dropout",
    "encoder_layer_dropout_fixed",
    "encoder_norm_never",
    "encoder_one_layer_again_and_again",
    "decoder_layer_query_and_key_from_memory",
    "decoder_layer_src_mask_ignored",
    "decoder_memory_from_layer_before",
    "generator_softmax",
    "model_forward_without_std_mask",
    "make_model_layers_begin_alike",
    "make_model_xavier_on_embeddings",
    "make_model_shared_by_copying",
    "make_model_shared_by_xavier",
    "shift_none",
    "batches_padding_free",
    "smoothing_over_the_others",
    "smoothing_mean_of_means",
    "smoothing_padding_counted",
    "rate_inverse_square",
    "adam_not_corrected",
    "adam_eps_in_the_root",
    "train_gradients_pile_up",
    "train_reads_the_answer",
    "train_moments_forgotten",
    "greedy_stops_with_the_first",
    "greedy_stops_on_read",
    "greedy_eos_dropped",
    "greedy_source_not_masked",
    "beam_plain_length",
    "beam_length_without_eos",
    "beam_penalty_during_search",
    "beam_finished_dropped",
    "start_projected_by_self_attn",
    "step_position_zero",
    "step_cache_changed",
    "step_norm_first_always",
)


@pytest.fixture(scope="module")
def graders() -> Graders:
    return graders_of(CHAPTER)


class TestGraders(ChapterGraders):
    chapter = CHAPTER
    styles = STYLES
    notable = NOTABLE


# A layer answers for itself, and not for its parts -----------------------------------------------


cell = functools.partial(cell_with, CHAPTER)  # by the name of a mistake


# What becomes of an early mistake in the exercises that use it: the tests that must still pass.
KEPT = {
    "embeddings_unscaled": ["EncoderDecoder", "make_model"],
    "attention_unscaled": ["EncoderLayer", "Encoder", "DecoderLayer", "Decoder", "EncoderDecoder"],
    "std_mask_padding_only": ["make_model"],
    "subsequent_without_batch_axis": ["make_std_mask", "EncoderDecoder", "make_model"],
    "pad_mask_specials_masked": ["make_std_mask"],
    "norm_unbiased": [
        *("SublayerConnection", "EncoderLayer", "Encoder", "DecoderLayer", "Decoder"),
        *("EncoderDecoder", "make_model"),
    ],
    "norm_divided_by_variance": ["SublayerConnection", "EncoderLayer", "DecoderLayer"],
    "ffn_gelu": ["EncoderLayer", "Encoder", "DecoderLayer", "Decoder", "EncoderDecoder"],
    "connection_always_pre": ["EncoderLayer", "Encoder", "DecoderLayer", "Decoder"],
    "connection_norm_of_sublayer": ["EncoderLayer", "Encoder", "DecoderLayer", "Decoder"],
    "encoder_layer_order": ["Encoder", "EncoderDecoder"],
    "decoder_layer_source_first": ["Decoder", "EncoderDecoder"],
    "encoder_one_layer_again_and_again": ["EncoderDecoder", "make_model"],
    "decoder_memory_from_layer_before": ["EncoderDecoder", "make_model"],
    "generator_softmax": ["EncoderDecoder", "make_model"],
    "model_without_positions": ["make_model"],
}


@pytest.mark.parametrize("name", KEPT)
def test_an_early_mistake_costs_later_exercises_nothing(graders, name):
    namespace = changed(CHAPTER, cell(name))
    early = next(item.exercise for item in misconceptions(CHAPTER) if item.name == name)
    assert failures(graders, namespace, [early]) != []
    assert failures(graders, namespace, KEPT[name]) == []


@pytest.mark.parametrize(
    ("early", "late"),
    [
        ("norm_unbiased", "connection_shortcut_normalised"),
        ("norm_unbiased", "encoder_layer_order"),
        ("attention_unscaled", "decoder_layer_memory_normalised"),
        ("connection_always_pre", "encoder_layer_keys_before_norm"),
        ("connection_norm_of_sublayer", "decoder_layer_source_first"),
        ("encoder_layer_order", "encoder_layers_backwards"),
        ("decoder_layer_source_first", "decoder_memory_from_layer_before"),
        ("clones_one_module", "encoder_layer_connections_shared"),
        ("clones_one_module", "encoder_layers_shared"),
        ("std_mask_or", "model_forward_without_std_mask"),
        ("pad_mask_inverted", "model_forward_decodes_without_src_mask"),
        ("embeddings_xavier", "make_model_kaiming"),
    ],
)
def test_an_early_mistake_excuses_no_later_one(graders, early, late):
    exercise = next(item.exercise for item in misconceptions(CHAPTER) if item.name == late)
    namespace = changed(CHAPTER, cell(early) + "\n\n" + cell(late))
    assert failures(graders, namespace, [exercise]) != []


NOTHING = """
    class {name}(nn.Module):
        def __init__(self, *args, **kwargs):
            super().__init__()
            self.inner = [{right}(*args, **kwargs)]
            for name, part in self.inner[0].named_children():
                self.add_module(name, part)
            for name, parameter in self.inner[0].named_parameters(recurse=False):
                self.register_parameter(name, parameter)

        def forward(self, x, *given, **more):
            return {answer}
"""


@pytest.mark.parametrize("answer", ["torch.zeros_like(x)", "x * float('nan')", "None"])
@pytest.mark.parametrize(
    ("part", "whole"),
    [
        ("LayerNorm", "SublayerConnection"),
        ("LayerNorm", "EncoderLayer"),
        ("EncoderLayer", "Encoder"),
        ("DecoderLayer", "Decoder"),
    ],
)
def test_parts_that_answer_nothing_excuse_nothing(graders, part, whole, answer):
    namespace = dict(reference_namespace(CHAPTER))
    for name in (part, whole):
        namespace[f"Right{name}"] = namespace[name]
        source = NOTHING.format(name=name, right=f"Right{name}", answer=answer)
        exec(textwrap.dedent(source), namespace)
    results = graders.run(Executor(namespace).execute, exercises=[whole], diagnose=False)
    passed = [test.name for test in results[whole].tests if test.outcome == "passed"]
    # What is asked of the making of a stack holds whatever it answers.
    assert [name for name in passed if not name.endswith("_refusals")] == []


def test_what_is_asked_aside_is_no_evidence(graders):
    namespace = changed(CHAPTER, cell("norm_unbiased") + "\n\n" + cell("encoder_layer_order"))
    result = graders.run(Executor(namespace).execute, exercises=["EncoderLayer"])["EncoderLayer"]
    assert result.points < result.max_points
    asked = []
    execute = Executor(namespace).execute

    def watch(request):
        asked.append(request)
        return execute(request)

    graders.run(watch, exercises=["EncoderLayer"], diagnose=False)
    right = []
    execute = Executor(reference_namespace(CHAPTER)).execute

    def watch_right(request):
        right.append(request)
        return execute(request)

    graders.run(watch_right, exercises=["EncoderLayer"], diagnose=False)
    assert len(right) < len(asked)
    assert max(request.get("handle", 0) for request in right) < 1 << 20
