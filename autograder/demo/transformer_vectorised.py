"""Right answers to `transformer` by someone who avoids loops and leaves work to PyTorch's kernels.

Read as text, cell by cell, by `make_class`: `exercise` cells replace the stubs, `own`
cells are cells that the student added before the next exercise.
"""

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from solutions.transformer import PositionalEncoding
from toolkit.kv_cache import DecoderCache, KVCache, LayerCache

PAD, BOS, EOS, UNK = 0, 1, 2, 3


# %% exercise="Embeddings"
class Embeddings(nn.Module):
    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        if min(vocab_size, d_model) < 1:
            raise ValueError("vocab_size and d_model must be positive")
        self.lut = nn.Embedding(vocab_size, d_model)
        self.lut.weight.data.mul_(d_model**-0.5)
        self.scale = d_model**0.5

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.lut.weight * self.scale)


# %% exercise="MultiHeadAttention"
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if d_model % num_heads:
            raise ValueError("num_heads must divide d_model")
        self.num_heads, self.p = num_heads, dropout
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(d_model, d_model) for _ in range(4)
        )

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (B, H, T, D/H)

    def project(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return self.split(self.k_proj(key)), self.split(self.v_proj(value))

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        if mask is not None and mask.ndim == 3:
            mask = mask[:, None]
        heads = F.scaled_dot_product_attention(
            self.split(self.q_proj(query)),
            keys,
            values,
            attn_mask=mask,
            dropout_p=self.p if self.training else 0.0,
        )
        return self.out_proj(heads.transpose(1, 2).flatten(2))

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        return self.attend(query, *self.project(key, value), mask)


# %% exercise="pad_mask"
def pad_mask(ids: Tensor, pad: int = PAD) -> Tensor:
    return ids[:, None] != pad


# %% exercise="subsequent_mask"
def subsequent_mask(size: int) -> Tensor:
    if size < 1:
        raise ValueError("size")
    place = torch.arange(size)
    return (place[:, None] >= place)[None]


# %% exercise="make_std_mask"
def make_std_mask(target: Tensor, pad: int = PAD) -> Tensor:
    length = target.shape[1]
    return ((target != pad)[:, None].expand(-1, length, -1)).tril()


# %% exercise="LayerNorm"
class LayerNorm(nn.Module):
    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        super().__init__()
        if d_model < 1:
            raise ValueError("d_model")
        self.gamma = nn.Parameter(torch.ones(d_model))
        self.beta = nn.Parameter(torch.zeros(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1:] != self.gamma.shape:
            raise ValueError("width")
        centred = x - x.mean(-1, True)
        power = torch.einsum("...d,...d->...", centred, centred) / x.shape[-1]
        return torch.addcmul(self.beta, self.gamma, centred * (power + self.eps).rsqrt()[..., None])


# %% exercise="PositionwiseFeedForward"
class PositionwiseFeedForward(nn.Module):
    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.w_1, self.w_2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.p = dropout

    def forward(self, x: Tensor) -> Tensor:
        inner = F.linear(x, self.w_1.weight, self.w_1.bias)
        return self.w_2(F.dropout(inner, self.p, self.training).relu())


# %% exercise="ResidualBlock"
class ResidualBlock(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.w_1, self.w_2 = (nn.Linear(d_model, d_model, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return (x + (x @ self.w_1.weight.T).relu() @ self.w_2.weight.T).relu()


# %% exercise="SublayerConnection"
class SublayerConnection(nn.Module):
    def __init__(self, d_model: int, dropout: float = 0.0, norm_first: bool = False) -> None:
        super().__init__()
        self.norm = LayerNorm(d_model)
        self.p, self.norm_first = dropout, norm_first

    def forward(self, x: Tensor, sublayer) -> Tensor:
        before, after = (
            (self.norm, nn.Identity()) if self.norm_first else (nn.Identity(), self.norm)
        )
        return after(F.dropout(sublayer(before(x)), self.p, self.training) + x)


# %% exercise="clones"
def clones(module: nn.Module, n: int) -> nn.ModuleList:
    if n < 1:
        raise ValueError("n")
    return nn.ModuleList(map(copy.deepcopy, [module] * n))


# %% exercise="EncoderLayer"
class EncoderLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout=0.0, norm_first=False) -> None:
        super().__init__()
        self.self_attn = MultiHeadAttention(d_model, num_heads, dropout)
        self.feed_forward = PositionwiseFeedForward(d_model, d_ff, dropout)
        self.sublayer = clones(SublayerConnection(d_model, dropout, norm_first), 2)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        first, second = self.sublayer
        return second(first(x, lambda y: self.self_attn(y, y, y, mask)), self.feed_forward)


# %% exercise="Encoder"
class Encoder(nn.Module):
    def __init__(self, num_layers, d_model, num_heads, d_ff, dropout=0.0, norm_first=False) -> None:
        super().__init__()
        layer = EncoderLayer(d_model, num_heads, d_ff, dropout, norm_first)
        self.layers = clones(layer, num_layers)
        self.norm = LayerNorm(d_model) if norm_first else nn.Identity()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


# %% exercise="DecoderLayer"
class DecoderLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout=0.0, norm_first=False) -> None:
        super().__init__()
        self.self_attn = MultiHeadAttention(d_model, num_heads, dropout)
        self.src_attn = MultiHeadAttention(d_model, num_heads, dropout)
        self.feed_forward = PositionwiseFeedForward(d_model, d_ff, dropout)
        self.sublayer = clones(SublayerConnection(d_model, dropout, norm_first), 3)

    def forward(self, x, memory, src_mask=None, tgt_mask=None) -> Tensor:
        one, two, three = self.sublayer
        x = one(x, lambda y: self.self_attn(y, y, y, mask=tgt_mask))
        keys, values = self.src_attn.project(memory, memory)
        x = two(x, lambda y: self.src_attn.attend(y, keys, values, src_mask))
        return three(x, self.feed_forward)


# %% exercise="Decoder"
class Decoder(nn.Module):
    def __init__(self, num_layers, d_model, num_heads, d_ff, dropout=0.0, norm_first=False) -> None:
        super().__init__()
        layer = DecoderLayer(d_model, num_heads, d_ff, dropout, norm_first)
        self.layers = clones(layer, num_layers)
        self.norm = LayerNorm(d_model) if norm_first else nn.Identity()

    def forward(self, x, memory, src_mask=None, tgt_mask=None) -> Tensor:
        for layer in self.layers:
            x = layer(x, memory, src_mask=src_mask, tgt_mask=tgt_mask)
        return self.norm(x)


# %% exercise="Generator"
class Generator(nn.Module):
    def __init__(self, d_model: int, vocab_size: int) -> None:
        super().__init__()
        self.proj = nn.Linear(d_model, vocab_size)

    def forward(self, hidden: Tensor) -> Tensor:
        logits = torch.einsum("...d,vd->...v", hidden, self.proj.weight) + self.proj.bias
        return logits - logits.logsumexp(-1, keepdim=True)


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
    ) -> None:
        super().__init__()
        sizes = (num_layers, d_model, num_heads, d_ff, dropout, norm_first)
        self.encoder, self.decoder = Encoder(*sizes), Decoder(*sizes)
        self.src_embed = Embeddings(src_vocab_size, d_model)
        self.tgt_embed = Embeddings(tgt_vocab_size, d_model)
        self.position = PositionalEncoding(d_model, max_length=max_length, dropout=dropout)
        self.generator = Generator(d_model, tgt_vocab_size)

    def encode(self, src: Tensor, src_mask: Tensor | None = None) -> Tensor:
        return self.encoder(self.position(self.src_embed(src)), src_mask)

    def decode(self, memory, src_mask, tgt, tgt_mask) -> Tensor:
        return self.decoder(self.position(self.tgt_embed(tgt)), memory, src_mask, tgt_mask)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        real = pad_mask(src)
        return self.generator(self.decode(self.encode(src, real), real, tgt, make_std_mask(tgt)))


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
) -> EncoderDecoder:
    if tie_embeddings and src_vocab_size != tgt_vocab_size:
        raise ValueError("vocabularies")
    sizes = (num_layers, d_model, d_ff, num_heads, dropout, norm_first)
    model = EncoderDecoder(src_vocab_size, tgt_vocab_size, *sizes)
    with torch.no_grad():
        for layer in (m for m in model.modules() if isinstance(m, nn.Linear)):
            layer.weight.uniform_(-1, 1).mul_(math.sqrt(6 / sum(layer.weight.shape)))
            layer.bias.zero_()
    if tie_embeddings:
        table = nn.Parameter(torch.randn(tgt_vocab_size, d_model) / math.sqrt(d_model))
        model.src_embed.lut.weight = model.tgt_embed.lut.weight = table
        model.generator.proj.weight = table
    return model


# %% exercise="shift_targets"
def shift_targets(target, pad=PAD):
    length = target.size(1) - 1
    if length < 1:
        raise ValueError("rows of fewer than two ids")
    said = target.narrow(1, 1, length)
    return target.narrow(1, 0, length), said, said.ne(pad).sum().item()


# %% exercise="token_batches"
def token_batches(lengths, max_tokens):
    if max_tokens < 1:
        raise ValueError("max_tokens")
    if not lengths:
        return []
    sizes = torch.tensor(lengths)  # (n, 2)
    long = (sizes > max_tokens).any(1).nonzero()
    if len(long):
        raise ValueError(f"sentence {long[0].item()} is too long")
    number = torch.arange(len(sizes))
    order = number[sizes[:, 1].argsort(stable=True)]
    order = order[sizes[order, 0].argsort(stable=True)]
    batches = []
    while len(order):
        # Places of the batch that ends with each of the sentences that are left, on each side.
        count = torch.arange(1, len(order) + 1)[:, None]
        places = count * sizes[order].cummax(0).values
        fits = (places <= max_tokens).all(1).int().cumprod(0).sum()
        batches.append(order[:fits].tolist())
        order = order[fits:]
    return batches


# %% exercise="label_smoothing_loss"
def label_smoothing_loss(log_probs, target, smoothing=0.1, pad=PAD):
    if not 0 <= smoothing < 1:
        raise ValueError(smoothing)
    real = target.ne(pad)
    if not real.any():
        raise ValueError("nothing but padding")
    kept, said = log_probs[real], target[real]  # (n, V), (n,)
    wanted = torch.full_like(kept, smoothing / kept.shape[-1])
    wanted[torch.arange(len(said)), said] += 1 - smoothing
    return -(wanted * kept).sum(-1).mean()


# %% exercise="learning_rate"
def learning_rate(step, d_model=512, warmup_steps=4000, factor=1.0):
    if min(step, warmup_steps) < 1:
        raise ValueError("step and warmup_steps count from 1")
    both = torch.tensor([step**-0.5, step * warmup_steps**-1.5], dtype=torch.float64)
    return (factor * both.min() / d_model**0.5).item()


# %% exercise="adam_step"
def adam_step(parameter, gradient, exp_avg, exp_avg_sq, step, lr, betas=(0.9, 0.98), eps=1e-9):
    if step < 1:
        raise ValueError(step)
    exp_avg = torch.lerp(gradient, exp_avg, betas[0])
    exp_avg_sq = torch.lerp(gradient.square(), exp_avg_sq, betas[1])
    unbias = torch.tensor([1.0 / (1.0 - beta**step) for beta in betas], dtype=torch.float64)
    root = (exp_avg_sq * unbias[1].to(exp_avg_sq.dtype)).sqrt() + eps
    return (
        torch.addcdiv(parameter, exp_avg, root, value=-lr * unbias[0].item()),
        exp_avg,
        exp_avg_sq,
    )


# %% exercise="train_step"
def train_step(model, source, target, moments, step, lr, smoothing=0.1):
    tgt_in, tgt_out, _ = shift_targets(target)
    loss = label_smoothing_loss(model(source, tgt_in), tgt_out, smoothing)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    found = {
        name: gradient
        for name, gradient in zip(trained, gradients, strict=True)
        if gradient is not None
    }
    nothing = {name: (torch.zeros_like(g), torch.zeros_like(g)) for name, g in found.items()}
    steps = {
        name: adam_step(trained[name].detach(), g, *{**nothing, **moments}[name], step, lr)
        for name, g in found.items()
    }
    for name, (new, _, _) in steps.items():
        trained[name].data.copy_(new)
    return loss.item(), {name: (first, second) for name, (_, first, second) in steps.items()}


# %% exercise="greedy_decode"
def greedy_decode(model, source, max_length):
    if max_length < 1:
        raise ValueError(max_length)
    mask = pad_mask(source)
    memory = model.encode(source, mask)
    read = source.new_full((len(source), max_length + 1), PAD)
    read[:, 0] = BOS
    over = torch.zeros(len(source), dtype=torch.bool)
    for t in range(1, max_length + 1):
        hidden = model.decode(memory, mask, read[:, :t], subsequent_mask(t))
        best = model.generator(hidden)[:, -1].topk(1).indices[:, 0]
        read[:, t] = torch.where(over, PAD, best)
        over |= best == EOS
        if over.all():
            return read[:, 1 : t + 1]
    return read[:, 1:]


# %% exercise="beam_search"
def beam_search(model, source, beam_size, max_length, alpha=0.6):
    if len(source) != 1 or beam_size < 1 or max_length < 1 or alpha < 0:
        raise ValueError("one source, a beam, a length, and no negative alpha")
    mask = pad_mask(source)
    memory = model.encode(source, mask)
    live = torch.full((1, 1), BOS)  # (K, t)
    totals = torch.zeros(1)  # (K,)
    found = []
    while len(live) and live.shape[1] <= max_length:
        many = len(live)
        hidden = model.decode(
            memory.repeat(many, 1, 1), mask.repeat(many, 1, 1), live, subsequent_mask(live.shape[1])
        )
        log_probs = model.generator(hidden[:, -1])  # (K, V)
        grown = (totals.to(log_probs.dtype)[:, None] + log_probs).flatten()
        best, places = grown.sort(descending=True)
        room = beam_size - len(found)
        best, places = best[:room], places[:room]
        places, best = places[best > -math.inf], best[best > -math.inf]
        row, token = places // log_probs.shape[1], places % log_probs.shape[1]
        live, totals = torch.cat([live[row], token[:, None]], dim=1), best
        ends = token == EOS
        found += list(zip(live[ends, 1:].tolist(), totals[ends].tolist(), strict=True))
        live, totals = live[~ends], totals[~ends]
    found += list(zip(live[:, 1:].tolist(), totals.tolist(), strict=True))
    scored = [(ids, total * (6 / (5 + len(ids))) ** alpha) for ids, total in found]
    return sorted(scored, key=lambda one: one[1])[::-1]


# %% exercise="start_cache"
def start_cache(model, source):
    mask = pad_mask(source)
    memory = model.encode(source, mask)
    attentions = [layer.src_attn for layer in model.decoder.layers]
    pairs = [a.project(memory, memory) for a in attentions]
    return DecoderCache(
        src_mask=mask,
        memory=KVCache(tuple(LayerCache(*pair) for pair in pairs)),
        target=KVCache(tuple(LayerCache(*(x.narrow(2, 0, 0) for x in pair)) for pair in pairs)),
    )


# %% exercise="decode_step"
def decode_step(model, token, cache):
    own = list(cache.target.layers)
    x = model.position(model.tgt_embed(token[:, None]), past=own[0].keys.size(2))
    for n, (layer, memory) in enumerate(
        zip(model.decoder.layers, cache.memory.layers, strict=True)
    ):

        def to_target(y, n=n, attention=layer.self_attn):
            k, v = attention.project(y, y)
            k, v = torch.cat((own[n].keys, k), 2), torch.cat((own[n].values, v), 2)
            own[n] = LayerCache(k, v)
            every = torch.ones(1, 1, k.size(2), dtype=torch.bool)
            return attention.attend(y, k, v, every)

        def to_source(y, attention=layer.src_attn, memory=memory):
            return attention.attend(y, memory.keys, memory.values, mask=cache.src_mask)

        for connection, function in zip(
            layer.sublayer, (to_target, to_source, layer.feed_forward), strict=True
        ):
            x = connection(x, function)
    norm = getattr(model.decoder, "norm", None)
    x = x if norm is None else norm(x)
    return model.generator(x).squeeze(1), DecoderCache(cache.src_mask, cache.memory, KVCache(own))
