"""Right answers to `transformer` by someone who writes everything as a loop.

Read as text, cell by cell, by `make_class`: `exercise` cells replace the stubs, `own`
cells are cells that the student added before the next exercise.
"""

import copy
import math

import torch
from torch import nn

from solutions.transformer import PositionalEncoding
from toolkit.kv_cache import DecoderCache, KVCache, LayerCache

PAD, BOS, EOS, UNK = 0, 1, 2, 3


# %% exercise="Embeddings"
class Embeddings(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        if vocab_size < 1:
            raise ValueError("no words")
        if d_model < 1:
            raise ValueError("no width")
        self.lut = nn.Embedding(vocab_size, d_model)
        with torch.no_grad():
            for row in self.lut.weight:
                row.copy_(torch.randn(d_model) / math.sqrt(d_model))

    def forward(self, ids):
        factor = math.sqrt(self.lut.weight.shape[1])
        sentences = []
        for sentence in ids.tolist():
            vectors = []
            for i in sentence:
                vectors.append(factor * self.lut.weight[i])
            sentences.append(torch.stack(vectors))
        return torch.stack(sentences)


# %% exercise="MultiHeadAttention"
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        if d_model % num_heads:
            raise ValueError("heads of different widths")
        self.heads = num_heads
        self.width = d_model // num_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.drop = nn.Dropout(dropout)

    def project(self, key, value):
        keys, values = [], []
        k, v = self.k_proj(key), self.v_proj(value)
        for h in range(self.heads):
            columns = slice(h * self.width, (h + 1) * self.width)
            keys.append(k[:, :, columns])
            values.append(v[:, :, columns])
        return torch.stack(keys, dim=1), torch.stack(values, dim=1)

    def attend(self, query, keys, values, mask=None):
        q = self.q_proj(query)
        examples = []
        for b in range(len(query)):
            if mask is None:
                allowed = torch.ones(query.shape[1], keys.shape[2], dtype=torch.bool)
            elif mask.dim() == 2:
                allowed = mask
            else:
                allowed = mask[b % len(mask)].expand(query.shape[1], -1)
            heads = []
            for h in range(self.heads):
                rows = []
                for t in range(query.shape[1]):
                    own = q[b, t, h * self.width : (h + 1) * self.width]
                    scores = (keys[b, h] * own).sum(dim=-1) / math.sqrt(self.width)
                    scores = scores.masked_fill(~allowed[t], float("-inf"))
                    attn_weights = self.drop(scores.softmax(dim=0))
                    rows.append((attn_weights.unsqueeze(1) * values[b, h]).sum(dim=0))
                heads.append(torch.stack(rows))
            examples.append(torch.cat(heads, dim=-1))
        return self.out_proj(torch.stack(examples))

    def forward(self, query, key, value, mask=None):
        keys, values = self.project(key, value)
        return self.attend(query, keys, values, mask)


# %% exercise="pad_mask"
def pad_mask(ids, pad=PAD):
    rows = []
    for row in ids.tolist():
        rows.append([[i != pad for i in row]])
    return torch.tensor(rows)


# %% exercise="subsequent_mask"
def subsequent_mask(size):
    if size < 1:
        raise ValueError("no positions")
    mask = torch.zeros(1, size, size, dtype=torch.bool)
    for i in range(size):
        for j in range(i + 1):
            mask[0, i, j] = True
    return mask


# %% exercise="make_std_mask"
def make_std_mask(target, pad=PAD):
    B, U = target.shape
    mask = torch.zeros(B, U, U, dtype=torch.bool)
    for b in range(B):
        for i in range(U):
            for j in range(i + 1):
                mask[b, i, j] = bool(target[b, j] != pad)
    return mask


# %% exercise="LayerNorm"
class LayerNorm(nn.Module):
    def __init__(self, d_model, eps=1e-5):
        super().__init__()
        if d_model < 1:
            raise ValueError("no features")
        self.features = d_model
        self.eps = eps
        self.gamma = nn.Parameter(torch.ones(d_model))
        self.beta = nn.Parameter(torch.zeros(d_model))

    def forward(self, x):
        if x.shape[-1] != self.features:
            raise ValueError("another width")
        rows = []
        for row in x.reshape(-1, self.features):
            mean = sum(row) / self.features
            variance = sum((entry - mean) ** 2 for entry in row) / self.features
            rows.append(self.gamma * (row - mean) / (variance + self.eps) ** 0.5 + self.beta)
        return torch.stack(rows).reshape(x.shape)


# %% exercise="PositionwiseFeedForward"
class PositionwiseFeedForward(nn.Module):
    def __init__(self, d_model, d_ff, dropout=0.0):
        super().__init__()
        self.w_1 = nn.Linear(d_model, d_ff)
        self.w_2 = nn.Linear(d_ff, d_model)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        positions = []
        for vector in x.reshape(-1, x.shape[-1]):
            inner = self.w_1(vector).clamp(min=0)
            positions.append(self.w_2(self.drop(inner)))
        return torch.stack(positions).reshape(x.shape)


# %% exercise="ResidualBlock"
class ResidualBlock(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.w_1 = nn.Linear(d_model, d_model, bias=False)
        self.w_2 = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        y = x
        for layer in (self.w_1, self.w_2):
            y = layer(y)
            if layer is self.w_2:
                y = y + x
            y = torch.where(y > 0, y, torch.zeros_like(y))
        return y


# %% exercise="SublayerConnection"
class SublayerConnection(nn.Module):
    def __init__(self, d_model, dropout=0.0, norm_first=False):
        super().__init__()
        self.norm = LayerNorm(d_model)
        self.drop = nn.Dropout(dropout)
        self.norm_first = norm_first

    def forward(self, x, sublayer):
        y = x
        if self.norm_first:
            y = self.norm(y)
        y = x + self.drop(sublayer(y))
        if not self.norm_first:
            y = self.norm(y)
        return y


# %% exercise="clones"
def clones(module, n):
    if n < 1:
        raise ValueError("no copies")
    modules = nn.ModuleList()
    for _ in range(n):
        modules.append(copy.deepcopy(module))
    return modules


# %% exercise="EncoderLayer"
class EncoderLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout=0.0, norm_first=False):
        super().__init__()
        self.self_attn = MultiHeadAttention(d_model, num_heads, dropout)
        self.feed_forward = PositionwiseFeedForward(d_model, d_ff, dropout)
        self.sublayer = nn.ModuleList()
        for _ in range(2):
            self.sublayer.append(SublayerConnection(d_model, dropout, norm_first))

    def forward(self, x, mask=None):
        def attend(y):
            return self.self_attn(y, y, y, mask)

        for connection, sublayer in zip(self.sublayer, [attend, self.feed_forward], strict=True):
            x = connection(x, sublayer)
        return x


# %% exercise="Encoder"
class Encoder(nn.Module):
    def __init__(self, num_layers, d_model, num_heads, d_ff, dropout=0.0, norm_first=False):
        super().__init__()
        if num_layers < 1:
            raise ValueError("no layers")
        self.layers = nn.ModuleList()
        for _ in range(num_layers):
            self.layers.append(EncoderLayer(d_model, num_heads, d_ff, dropout, norm_first))
        self.norm_first = norm_first
        if norm_first:
            self.norm = LayerNorm(d_model)

    def forward(self, x, mask=None):
        for layer in self.layers:
            x = layer(x, mask)
        if self.norm_first:
            x = self.norm(x)
        return x


# %% exercise="DecoderLayer"
class DecoderLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout=0.0, norm_first=False):
        super().__init__()
        self.self_attn = MultiHeadAttention(d_model, num_heads, dropout)
        self.src_attn = MultiHeadAttention(d_model, num_heads, dropout)
        self.feed_forward = PositionwiseFeedForward(d_model, d_ff, dropout)
        self.sublayer = nn.ModuleList()
        for _ in range(3):
            self.sublayer.append(SublayerConnection(d_model, dropout, norm_first))

    def forward(self, x, memory, src_mask=None, tgt_mask=None):
        def attend(y):
            return self.self_attn(y, y, y, tgt_mask)

        def look(y):
            return self.src_attn(y, memory, memory, src_mask)

        for connection, sublayer in zip(
            self.sublayer, [attend, look, self.feed_forward], strict=True
        ):
            x = connection(x, sublayer)
        return x


# %% exercise="Decoder"
class Decoder(nn.Module):
    def __init__(self, num_layers, d_model, num_heads, d_ff, dropout=0.0, norm_first=False):
        super().__init__()
        if num_layers < 1:
            raise ValueError("no layers")
        self.layers = nn.ModuleList()
        for _ in range(num_layers):
            self.layers.append(DecoderLayer(d_model, num_heads, d_ff, dropout, norm_first))
        self.norm_first = norm_first
        if norm_first:
            self.norm = LayerNorm(d_model)

    def forward(self, x, memory, src_mask=None, tgt_mask=None):
        for layer in self.layers:
            x = layer(x, memory, src_mask, tgt_mask)
        if self.norm_first:
            x = self.norm(x)
        return x


# %% exercise="Generator"
class Generator(nn.Module):
    def __init__(self, d_model, vocab_size):
        super().__init__()
        self.proj = nn.Linear(d_model, vocab_size)

    def forward(self, hidden):
        rows = []
        for vector in hidden.reshape(-1, hidden.shape[-1]):
            logits = self.proj(vector)
            logits = logits - logits.max()
            rows.append(logits - logits.exp().sum().log())
        return torch.stack(rows).reshape(*hidden.shape[:-1], -1)


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
        self.src_embed = Embeddings(src_vocab_size, d_model)
        self.tgt_embed = Embeddings(tgt_vocab_size, d_model)
        self.position = PositionalEncoding(d_model, max_length, dropout)
        self.encoder = Encoder(num_layers, d_model, num_heads, d_ff, dropout, norm_first)
        self.decoder = Decoder(num_layers, d_model, num_heads, d_ff, dropout, norm_first)
        self.generator = Generator(d_model, tgt_vocab_size)

    def encode(self, src, src_mask=None):
        x = self.src_embed(src)
        x = self.position(x)
        return self.encoder(x, src_mask)

    def decode(self, memory, src_mask, tgt, tgt_mask):
        x = self.tgt_embed(tgt)
        x = self.position(x)
        return self.decoder(x, memory, src_mask, tgt_mask)

    def forward(self, src, tgt):
        src_mask = pad_mask(src)
        memory = self.encode(src, src_mask)
        x = self.decode(memory, src_mask, tgt, make_std_mask(tgt))
        return self.generator(x)


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
        raise ValueError("two vocabularies can't share a table")
    model = EncoderDecoder(
        src_vocab_size, tgt_vocab_size, num_layers, d_model, d_ff, num_heads, dropout, norm_first
    )
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif "embed" not in name and parameter.dim() == 2:
            nn.init.xavier_uniform_(parameter)
    if tie_embeddings:
        for module in (model.tgt_embed.lut, model.generator.proj):
            module.weight = model.src_embed.lut.weight
    return model


# %% exercise="shift_targets"
def shift_targets(target, pad=PAD):
    rows = target.tolist()
    if len(rows[0]) < 2:
        raise ValueError("at least two ids")
    count = 0
    for row in rows:
        for token in row[1:]:
            if token != pad:
                count += 1
    tgt_in = torch.tensor([row[: len(row) - 1] for row in rows])
    tgt_out = torch.tensor([row[1:] for row in rows])
    return tgt_in, tgt_out, count


# %% exercise="token_batches"
def token_batches(lengths, max_tokens):
    if max_tokens < 1:
        raise ValueError("max_tokens must be at least 1")
    waiting = []
    for index, (source, target) in enumerate(lengths):
        if source > max_tokens or target > max_tokens:
            raise ValueError(f"sentence {index} does not fit")
        waiting.append((source, target, index))
    waiting.sort()
    batches, batch, longest_source, longest_target = [], [], 0, 0
    for source, target, index in waiting:
        count = len(batch) + 1
        new_source = source if source > longest_source else longest_source
        new_target = target if target > longest_target else longest_target
        if count * new_source > max_tokens or count * new_target > max_tokens:
            batches.append(batch)
            batch, new_source, new_target = [], source, target
        batch.append(index)
        longest_source, longest_target = new_source, new_target
    if batch:
        batches.append(batch)
    return batches


# %% exercise="label_smoothing_loss"
def label_smoothing_loss(log_probs, target, smoothing=0.1, pad=PAD):
    if smoothing < 0 or smoothing >= 1:
        raise ValueError(smoothing)
    batch, steps, vocabulary = log_probs.shape
    total, count = 0, 0
    for b in range(batch):
        for t in range(steps):
            token = target[b, t].item()
            if token == pad:
                continue
            count += 1
            for v in range(vocabulary):
                share = smoothing / vocabulary
                if v == token:
                    share += 1 - smoothing
                total = total - share * log_probs[b, t, v]
    if count == 0:
        raise ValueError("nothing but padding")
    return total / count


# %% exercise="learning_rate"
def learning_rate(step, d_model=512, warmup_steps=4000, factor=1.0):
    if step < 1:
        raise ValueError("step")
    if warmup_steps < 1:
        raise ValueError("warmup_steps")
    rate = 1 / math.sqrt(step)
    if step < warmup_steps:
        rate = step / (warmup_steps * math.sqrt(warmup_steps))
    return factor * rate / math.sqrt(d_model)


# %% exercise="adam_step"
def adam_step(parameter, gradient, exp_avg, exp_avg_sq, step, lr, betas=(0.9, 0.98), eps=1e-9):
    if step < 1:
        raise ValueError("step")
    new, means, squares = [], [], []
    for p, g, m, v in zip(
        parameter.flatten().tolist(),
        gradient.flatten().tolist(),
        exp_avg.flatten().tolist(),
        exp_avg_sq.flatten().tolist(),
        strict=True,
    ):
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        right_m = m / (1 - betas[0] ** step)
        right_v = v / (1 - betas[1] ** step)
        new.append(p - lr * right_m / (math.sqrt(right_v) + eps))
        means.append(m)
        squares.append(v)
    shape, dtype = parameter.shape, parameter.dtype
    new, means, squares = (
        torch.tensor(numbers, dtype=dtype).reshape(shape) for numbers in (new, means, squares)
    )
    return new, means, squares


# %% exercise="train_step"
def train_step(model, source, target, moments, step, lr, smoothing=0.1):
    for parameter in model.parameters():
        parameter.grad = None
    tgt_in, tgt_out, _ = shift_targets(target)
    loss = label_smoothing_loss(model(source, tgt_in), tgt_out, smoothing)
    loss.backward()
    result = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        if name in moments:
            first, second = moments[name]
        else:
            first, second = torch.zeros_like(parameter), torch.zeros_like(parameter)
        with torch.no_grad():
            new, first, second = adam_step(parameter, parameter.grad, first, second, step, lr)
            for index in range(len(parameter)):
                parameter[index] = new[index]
        result[name] = (first, second)
    return float(loss), result


# %% exercise="greedy_decode"
def greedy_decode(model, source, max_length):
    if max_length < 1:
        raise ValueError(max_length)
    rows = []
    for b in range(len(source)):
        one = source[b : b + 1]
        mask = pad_mask(one)
        memory = model.encode(one, mask)
        ids = []
        while len(ids) < max_length and (not ids or ids[-1] != EOS):
            target = torch.tensor([[BOS, *ids]])
            hidden = model.decode(memory, mask, target, subsequent_mask(len(ids) + 1))
            numbers = model.generator(hidden)[0, -1].tolist()
            best = 0
            for token in range(len(numbers)):
                if numbers[token] > numbers[best]:
                    best = token
            ids.append(best)
        rows.append(ids)
    longest = max(len(ids) for ids in rows)
    return torch.tensor([ids + [PAD] * (longest - len(ids)) for ids in rows])


# %% exercise="beam_search"
def beam_search(model, source, beam_size, max_length, alpha=0.6):
    if len(source) != 1 or beam_size < 1 or max_length < 1 or alpha < 0:
        raise ValueError("one source, a beam, a length, and no negative alpha")
    mask = pad_mask(source)
    memory = model.encode(source, mask)
    live, finished = [([], 0.0)], []
    for _ in range(max_length):
        extensions = []
        for ids, total in live:
            target = torch.tensor([[BOS, *ids]])
            hidden = model.decode(memory, mask, target, subsequent_mask(len(ids) + 1))
            for token, log_prob in enumerate(model.generator(hidden)[0, -1].tolist()):
                if log_prob > -math.inf:
                    extensions.append(([*ids, token], total + log_prob))
        extensions.sort(key=lambda one: -one[1])
        best = extensions[: beam_size - len(finished)]
        live = [one for one in best if one[0][-1] != EOS]
        finished += [one for one in best if one[0][-1] == EOS]
    pairs = []
    for ids, total in finished + live:
        penalty = ((5 + len(ids)) / 6) ** alpha
        pairs.append((ids, total / penalty))
    pairs.sort(key=lambda one: -one[1])
    return pairs


# %% exercise="start_cache"
def start_cache(model, source):
    mask = pad_mask(source)
    memory = model.encode(source, mask)
    kept, empty = [], []
    for layer in model.decoder.layers:
        keys, values = layer.src_attn.project(memory, memory)
        kept.append(LayerCache(keys, values))
        batch, heads, _, width = keys.shape
        nothing = torch.zeros(batch, heads, 0, width, dtype=keys.dtype)
        empty.append(LayerCache(nothing, nothing))
    return DecoderCache(mask, KVCache(kept), KVCache(empty))


# %% exercise="decode_step"
def decode_step(model, token, cache):
    rows, all_keys, all_values = [], [], []
    for b in range(len(token)):
        start = cache.past
        x = model.position(model.tgt_embed(token[b : b + 1, None]), start)
        row_keys, row_values = [], []
        for number in range(len(model.decoder.layers)):
            layer = model.decoder.layers[number]

            def look_back(y, number=number, layer=layer, b=b, keys=row_keys, values=row_values):
                new_key, new_value = layer.self_attn.project(y, y)
                old = cache.target.layers[number]
                keys.append(torch.cat([old.keys[b : b + 1], new_key], 2))
                values.append(torch.cat([old.values[b : b + 1], new_value], 2))
                return layer.self_attn.attend(y, keys[-1], values[-1], None)

            def look_over(y, number=number, layer=layer, b=b):
                keys = cache.memory.layers[number].keys[b : b + 1]
                values = cache.memory.layers[number].values[b : b + 1]
                mask = cache.src_mask[b : b + 1]
                return layer.src_attn.attend(y, keys, values, mask)

            x = layer.sublayer[0](x, look_back)
            x = layer.sublayer[1](x, look_over)
            x = layer.sublayer[2](x, layer.feed_forward)
        if getattr(model.decoder, "norm", None) is not None:
            x = model.decoder.norm(x)
        rows.append(model.generator(x)[0, 0])
        all_keys.append(row_keys)
        all_values.append(row_values)
    layers = []
    for n in range(len(model.decoder.layers)):
        keys = torch.cat([row[n] for row in all_keys])
        values = torch.cat([row[n] for row in all_values])
        layers.append(LayerCache(keys, values))
    return torch.stack(rows), DecoderCache(cache.src_mask, cache.memory, KVCache(layers))
