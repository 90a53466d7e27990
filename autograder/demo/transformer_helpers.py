"""Right answers to `transformer` by someone who writes helpers first and reuses them.

Read as text, cell by cell, by `make_class`: `exercise` cells replace the stubs, `own`
cells are cells that the student added before the next exercise.
"""

import copy
import math

import torch
from torch import Tensor, nn

from solutions.transformer import PositionalEncoding
from toolkit.kv_cache import DecoderCache, KVCache, LayerCache

PAD, BOS, EOS, UNK = 0, 1, 2, 3


# %% own="what is used again and again"
def at_least_one(**sizes):
    """Refuse sizes below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}={size}")


def draw_normal(weight, width):
    """Fill with N(0, 1 / width)."""
    nn.init.normal_(weight, mean=0.0, std=width**-0.5)


# %% exercise="Embeddings"
class Embeddings(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        at_least_one(vocab_size=vocab_size, d_model=d_model)
        self.lut = nn.Embedding(vocab_size, d_model)
        draw_normal(self.lut.weight, d_model)
        self.factor = torch.sqrt(torch.tensor(float(d_model)))

    def forward(self, ids):
        return self.lut(ids) * self.factor


# %% own="the core of attention"
def softly(scores, allowed=None):
    """Softmax over the last axis, of what is allowed."""
    if allowed is not None:
        scores = scores + torch.where(allowed, 0.0, -1e9).to(scores.dtype)
    shifted = scores - scores.amax(dim=-1, keepdim=True)
    weights = shifted.exp()
    return weights / weights.sum(dim=-1, keepdim=True)


# %% exercise="MultiHeadAttention"
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        if num_heads <= 0 or d_model % num_heads:
            raise ValueError("heads")
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            self.add_module(name, nn.Linear(d_model, d_model))
        self.h, self.d_k = num_heads, d_model // num_heads
        self.dropout = nn.Dropout(p=dropout)
        self.last_weights = None

    def project(self, key, value):
        key, value = self.k_proj(key), self.v_proj(value)
        shape = (key.size(0), -1, self.h, self.d_k)
        return key.view(shape).permute(0, 2, 1, 3), value.view(shape).permute(0, 2, 1, 3)

    def attend(self, query, keys, values, mask=None):
        b, t, d = query.size()
        q = self.q_proj(query).view(b, t, self.h, self.d_k)
        scores = torch.einsum("bqhd,bhkd->bhqk", q / self.d_k**0.5, keys)
        if mask is not None:
            mask = mask if mask.dim() == 2 else mask.unsqueeze(1)
        self.last_weights = softly(scores, mask)
        out = torch.einsum("bhqk,bhkd->bqhd", self.dropout(self.last_weights), values)
        return self.out_proj(out.reshape(b, t, d))

    def forward(self, query, key, value, mask=None):
        return self.attend(query, *self.project(key, value), mask=mask)


# %% exercise="pad_mask"
def pad_mask(ids, pad=PAD):
    return torch.ne(ids, pad).unsqueeze(-2)


# %% exercise="subsequent_mask"
def subsequent_mask(size):
    at_least_one(size=size)
    later = torch.triu(torch.ones((1, size, size)), diagonal=1)
    return later == 0


# %% exercise="make_std_mask"
def make_std_mask(target, pad=PAD):
    return torch.logical_and(pad_mask(target, pad), subsequent_mask(target.size(-1)))


# %% exercise="LayerNorm"
class LayerNorm(nn.Module):
    def __init__(self, d_model, eps=1e-5):
        super().__init__()
        at_least_one(d_model=d_model)
        self.register_parameter("gamma", nn.Parameter(torch.full((d_model,), 1.0)))
        self.register_parameter("beta", nn.Parameter(torch.full((d_model,), 0.0)))
        self.features, self.eps = (d_model,), eps

    def forward(self, x):
        if tuple(x.shape[-1:]) != self.features:
            raise ValueError("width")
        mu = x.sum(-1, keepdim=True) / x.size(-1)
        sigma = ((x - mu).pow(2).mean(-1, keepdim=True) + self.eps).sqrt()
        return (x - mu) / sigma * self.gamma + self.beta


# %% exercise="PositionwiseFeedForward"
class PositionwiseFeedForward(nn.Module):
    def __init__(self, d_model, d_ff, dropout=0.0):
        super().__init__()
        self.w_1 = nn.Linear(d_model, d_ff)
        self.w_2 = nn.Linear(d_ff, d_model)
        self.steps = [self.w_1, nn.ReLU(), nn.Dropout(dropout), self.w_2]
        self.dropout = self.steps[2]

    def forward(self, x):
        for step in self.steps:
            x = step(x)
        return x


# %% exercise="ResidualBlock"
class ResidualBlock(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.w_1 = nn.Linear(d_model, d_model, bias=False)
        self.w_2 = nn.Linear(d_model, d_model, bias=False)
        self.relu = nn.ReLU()

    def residual(self, x):
        return self.w_2(self.relu(self.w_1(x)))

    def forward(self, x):
        return self.relu(self.residual(x) + x)


# %% exercise="SublayerConnection"
class SublayerConnection(nn.Module):
    def __init__(self, d_model, dropout=0.0, norm_first=False):
        super().__init__()
        self.norm = LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)
        self.forward = self.pre if norm_first else self.post

    def pre(self, x, sublayer):
        return x + self.dropout(sublayer(self.norm(x)))

    def post(self, x, sublayer):
        return self.norm(x + self.dropout(sublayer(x)))


# %% exercise="clones"
def clones(module, n):
    at_least_one(n=n)
    return nn.ModuleList([copy.deepcopy(module) for _ in range(n)])


# %% own="layers and stacks of both kinds"
class Layer(nn.Module):
    """What encoder and decoder layers have in common."""

    def __init__(self, connections, d_model, num_heads, d_ff, dropout, norm_first):
        super().__init__()
        self.self_attn = MultiHeadAttention(d_model, num_heads, dropout=dropout)
        self.feed_forward = PositionwiseFeedForward(d_model, d_ff, dropout=dropout)
        self.sublayer = nn.ModuleList(
            [SublayerConnection(d_model, dropout, norm_first) for _ in range(connections)]
        )


class Stack(nn.Module):
    """Layers of one kind, and a norm at the end if they are pre-norm."""

    def __init__(self, kind, num_layers, d_model, num_heads, d_ff, dropout, norm_first):
        super().__init__()
        at_least_one(num_layers=num_layers)
        self.layers = nn.ModuleList(
            [kind(d_model, num_heads, d_ff, dropout, norm_first) for _ in range(num_layers)]
        )
        self.last = lambda x: x
        if norm_first:
            self.norm = LayerNorm(d_model)
            self.last = self.norm.forward

    def forward(self, x, *given):
        for layer in self.layers:
            x = layer(x, *given)
        return self.last(x)


# %% exercise="EncoderLayer"
class EncoderLayer(Layer):
    def __init__(self, d_model, num_heads, d_ff, dropout=0.0, norm_first=False):
        super().__init__(2, d_model, num_heads, d_ff, dropout, norm_first)

    def forward(self, x, mask=None):
        x = self.sublayer[0](x, lambda z: self.self_attn(z, z, z, mask))
        return self.sublayer[1](x, self.feed_forward)


# %% exercise="Encoder"
class Encoder(Stack):
    def __init__(self, num_layers, d_model, num_heads, d_ff, dropout=0.0, norm_first=False):
        super().__init__(EncoderLayer, num_layers, d_model, num_heads, d_ff, dropout, norm_first)

    def forward(self, x, mask=None):
        return super().forward(x, mask)


# %% exercise="DecoderLayer"
class DecoderLayer(Layer):
    def __init__(self, d_model, num_heads, d_ff, dropout=0.0, norm_first=False):
        super().__init__(3, d_model, num_heads, d_ff, dropout, norm_first)
        self.src_attn = MultiHeadAttention(d_model, num_heads, dropout)

    def forward(self, x, memory, src_mask=None, tgt_mask=None):
        x = self.sublayer[0](x, lambda z: self.self_attn(z, z, z, tgt_mask))
        x = self.sublayer[1](x, lambda z: self.src_attn(z, memory, memory, src_mask))
        return self.sublayer[2](x, lambda z: self.feed_forward(z))


# %% exercise="Decoder"
class Decoder(Stack):
    def __init__(self, num_layers, d_model, num_heads, d_ff, dropout=0.0, norm_first=False):
        super().__init__(DecoderLayer, num_layers, d_model, num_heads, d_ff, dropout, norm_first)

    def forward(self, x, memory, src_mask=None, tgt_mask=None):
        return super().forward(x, memory, src_mask, tgt_mask)


# %% exercise="Generator"
class Generator(nn.Module):
    def __init__(self, d_model, vocab_size):
        super().__init__()
        self.proj = nn.Linear(d_model, vocab_size)
        self.normalise = nn.LogSoftmax(dim=-1)

    def forward(self, hidden):
        return self.normalise(self.proj(hidden))


# %% exercise="EncoderDecoder"
class EncoderDecoder(nn.Module):
    def __init__(
        self,
        src_vocab_size,
        tgt_vocab_size,
        num_layers=6,
        d_model=512,
        d_ff=2048,
        num_heads=8,
        dropout=0.1,
        norm_first=False,
        max_length=5000,
    ):
        super().__init__()
        sizes = (num_layers, d_model, num_heads, d_ff)
        self.src_embed = Embeddings(src_vocab_size, d_model)
        self.tgt_embed = Embeddings(tgt_vocab_size, d_model)
        self.position = PositionalEncoding(d_model, max_length, dropout)
        self.encoder = Encoder(*sizes, dropout=dropout, norm_first=norm_first)
        self.decoder = Decoder(*sizes, dropout=dropout, norm_first=norm_first)
        self.generator = Generator(d_model, tgt_vocab_size)

    def vectors(self, embed: Embeddings, ids: Tensor) -> Tensor:
        return self.position(embed(ids))

    def encode(self, src, src_mask=None):
        return self.encoder(self.vectors(self.src_embed, src), src_mask)

    def decode(self, memory, src_mask, tgt, tgt_mask):
        return self.decoder(self.vectors(self.tgt_embed, tgt), memory, src_mask, tgt_mask)

    def forward(self, src, tgt):
        src_mask, tgt_mask = pad_mask(src), make_std_mask(tgt)
        return self.generator(self.decode(self.encode(src, src_mask), src_mask, tgt, tgt_mask))


# %% own="begin with these values"
def begin(module):
    """Xavier for a linear layer."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.constant_(module.bias, 0.0)


# %% exercise="make_model"
def make_model(
    src_vocab_size,
    tgt_vocab_size,
    num_layers=6,
    d_model=512,
    d_ff=2048,
    num_heads=8,
    dropout=0.1,
    norm_first=False,
    tie_embeddings=False,
):
    if tie_embeddings and src_vocab_size != tgt_vocab_size:
        raise ValueError("two vocabularies")
    model = EncoderDecoder(
        src_vocab_size,
        tgt_vocab_size,
        num_layers=num_layers,
        d_model=d_model,
        d_ff=d_ff,
        num_heads=num_heads,
        dropout=dropout,
        norm_first=norm_first,
    )
    model.apply(begin)
    if tie_embeddings:
        model.tgt_embed.lut = model.src_embed.lut
        draw_normal(model.src_embed.lut.weight, d_model)
        model.generator.proj.weight = model.src_embed.lut.weight
    return model


# %% own="refusals of training and decoding"
def demand(condition, words):
    """Refuse bad input in words."""
    if not condition:
        raise ValueError(words)


# %% exercise="shift_targets"
def shift_targets(target, pad=PAD):
    demand(target.shape[-1] > 1, "a target has at least two ids")
    tgt_in, tgt_out = (target[:, part].clone() for part in (slice(None, -1), slice(1, None)))
    return [tgt_in, tgt_out, torch.count_nonzero(tgt_out - pad).item()]


# %% own="a batch that grows"
class Batch:
    """Indices of sentences, with the longest source and the longest target."""

    def __init__(self):
        self.indices, self.longest = [], (0, 0)

    def with_one_more(self, index, lengths):
        """The batch that this one would become."""
        other = Batch()
        other.indices = [*self.indices, index]
        other.longest = tuple(map(max, self.longest, lengths))
        return other

    def places(self):
        """How many places it has, on the side that has more of them."""
        return len(self.indices) * max(self.longest)


# %% exercise="token_batches"
def token_batches(lengths, max_tokens):
    demand(max_tokens >= 1, "max_tokens must be at least 1")
    batches = []
    for index, pair in sorted(enumerate(lengths), key=lambda one: (tuple(one[1]), one[0])):
        demand(max(pair) <= max_tokens, f"sentence number {index} is too long: {pair}")
        grown = batches[-1].with_one_more(index, pair) if batches else None
        if grown is not None and grown.places() <= max_tokens:
            batches[-1] = grown
        else:
            batches.append(Batch().with_one_more(index, pair))
    return [batch.indices for batch in batches]


# %% own="smoothed targets"
def smoothed_targets(target, like, smoothing):
    """The distribution that each place is compared with: like's shape (B, U, V)."""
    vocabulary = like.shape[-1]
    inside = target.clamp(0, vocabulary - 1)
    one_hot = nn.functional.one_hot(inside, vocabulary).to(like.dtype)
    return (1 - smoothing) * one_hot + smoothing / vocabulary


# %% exercise="label_smoothing_loss"
def label_smoothing_loss(log_probs, target, smoothing=0.1, pad=PAD):
    demand(0 <= smoothing < 1, "smoothing must lie in [0, 1)")
    weight = (target != pad).to(log_probs.dtype)
    demand(bool(weight.any()), "nothing but padding")
    crossed = torch.einsum(
        "buv,buv,bu->", smoothed_targets(target, log_probs, smoothing), log_probs, weight
    )
    return -crossed / weight.sum()


# %% exercise="learning_rate"
def learning_rate(step, d_model=512, warmup_steps=4000, factor=1.0):
    demand(step > 0 and warmup_steps > 0, "step and warmup_steps count from 1")
    # Both branches meet at the peak, d_model ** -0.5 * warmup_steps ** -0.5.
    peak = factor / math.sqrt(d_model * warmup_steps)
    return peak * min(step / warmup_steps, math.sqrt(warmup_steps / step))


# %% own="a running mean"
class RunningMean:
    """One of Adam's two means: what is kept, and what it says once the bias is taken out."""

    def __init__(self, value, beta):
        self.value, self.beta = value, beta

    def after(self, new):
        """The mean with one more number in it."""
        return RunningMean(self.value + (1 - self.beta) * (new - self.value), self.beta)

    def unbiased(self, step):
        """What it would be, had it not begun at 0."""
        return self.value / (1 - self.beta**step)


# %% exercise="adam_step"
def adam_step(parameter, gradient, exp_avg, exp_avg_sq, step, lr, betas=(0.9, 0.98), eps=1e-9):
    demand(step >= 1, "steps count from 1")
    mean = RunningMean(exp_avg, betas[0]).after(gradient)
    square = RunningMean(exp_avg_sq, betas[1]).after(gradient * gradient)
    change = mean.unbiased(step) / (square.unbiased(step).sqrt() + eps)
    return [parameter - lr * change, mean.value, square.value]


# %% own="gradients"
def gradients_of(loss, model):
    """The gradient of each parameter that has one, by name."""
    model.zero_grad(set_to_none=True)
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


# %% exercise="train_step"
def train_step(model, source, target, moments, step, lr, smoothing=0.1):
    tgt_in, tgt_out, _ = shift_targets(target)
    loss = label_smoothing_loss(model(source, tgt_in), tgt_out, smoothing)
    parameters, after = dict(model.named_parameters()), {}
    with torch.no_grad():
        zeros = {name: torch.zeros_like(p) for name, p in parameters.items()}
    with torch.enable_grad():
        gradients = gradients_of(loss, model)
    with torch.no_grad():
        for name, gradient in gradients.items():
            means = moments.get(name, (zeros[name], zeros[name]))
            new, *after[name] = adam_step(parameters[name], gradient, *means, step, lr)
            parameters[name] += new - parameters[name]
    return loss.item(), {name: tuple(means) for name, means in after.items()}


# %% own="what the model says next"
class Reader:
    """A model that has read a source."""

    def __init__(self, model, source):
        self.model, self.mask = model, pad_mask(source)
        self.memory = model.encode(source, self.mask)

    def next(self, rows):
        """Log-probabilities (B, V) of what follows rows (B, t), BOS included."""
        memory, mask = self.memory, self.mask
        if len(rows) != len(memory):
            memory = memory.repeat_interleave(len(rows), 0)
            mask = mask.repeat_interleave(len(rows), 0)
        causal = subsequent_mask(rows.shape[1])
        return self.model.generator(self.model.decode(memory, mask, rows, causal))[:, -1]


# %% exercise="greedy_decode"
def greedy_decode(model, source, max_length):
    demand(max_length >= 1, "max_length must be at least 1")
    reader = Reader(model, source)
    rows = torch.full((len(source), 1), BOS)
    while True:
        ended = (rows == EOS).any(1)
        if ended.all() or rows.shape[1] > max_length:
            return rows[:, 1:]
        best = reader.next(rows).argmax(-1)
        rows = torch.hstack([rows, (best * ~ended)[:, None]])  # PAD is 0


# %% exercise="beam_search"
def beam_search(model, source, beam_size, max_length, alpha=0.6):
    demand(len(source) == 1, "one source at a time")
    demand(beam_size >= 1 and max_length >= 1 and alpha >= 0, "settings")
    reader = Reader(model, source)
    live, done = [(0.0, [BOS])], []
    for _ in range(max_length):
        if not live:
            break
        said = reader.next(torch.tensor([ids for _, ids in live])).tolist()
        grown = [
            (total + log_prob, [*ids, token])
            for (total, ids), row in zip(live, said, strict=True)
            for token, log_prob in enumerate(row)
            if log_prob != -math.inf
        ]
        grown = sorted(grown, key=lambda one: one[0], reverse=True)[: beam_size - len(done)]
        done += [one for one in grown if one[1][-1] == EOS]
        live = [one for one in grown if one[1][-1] != EOS]
    pairs = [[ids[1:], total / math.pow((4 + len(ids)) / 6, alpha)] for total, ids in done + live]
    return sorted(pairs, key=lambda pair: -pair[1])


# %% own="a cache without positions"
def nothing_like(layer):
    """An empty cache with the heads of another one."""
    size = (*layer.keys.shape[:2], 0, layer.keys.shape[3])
    return LayerCache(layer.keys.new_empty(size), layer.values.new_empty(size))


# %% exercise="start_cache"
def start_cache(model, source):
    reader = Reader(model, source)
    both = reader.memory, reader.memory
    made = [LayerCache(*layer.src_attn.project(*both)) for layer in model.decoder.layers]
    return DecoderCache(reader.mask, KVCache(made), KVCache([nothing_like(one) for one in made]))


# %% own="a layer with a cache"
class CachedLayer:
    """A decoder layer, and the part of the cache that belongs to it."""

    def __init__(self, layer, cache, number):
        self.layer, self.mask = layer, cache.src_mask
        self.own, self.memory = cache.target.layers[number], cache.memory.layers[number]

    def target(self, x):
        """Append the new token, then attend to all."""
        keys, values = self.layer.self_attn.project(x, x)
        keys = torch.cat([self.own.keys, keys], dim=2)
        values = torch.cat([self.own.values, values], dim=2)
        self.own = LayerCache(keys, values)
        return self.layer.self_attn.attend(x, keys, values)

    def source(self, x):
        """Attend to the memory."""
        return self.layer.src_attn.attend(x, self.memory.keys, self.memory.values, self.mask)

    def __call__(self, x):
        for connection, part in zip(
            self.layer.sublayer, (self.target, self.source, self.layer.feed_forward), strict=True
        ):
            x = connection(x, part)
        return x


# %% exercise="decode_step"
def decode_step(model, token, cache):
    x = model.position(model.tgt_embed(token.view(-1, 1)), cache.past)
    layers = [CachedLayer(layer, cache, n) for n, layer in enumerate(model.decoder.layers)]
    for layer in layers:
        x = layer(x)
    if getattr(model.decoder, "norm", None) is not None:
        x = model.decoder.norm(x)
    after = DecoderCache(cache.src_mask, cache.memory, KVCache([one.own for one in layers]))
    return [model.generator(x)[:, -1], after]
