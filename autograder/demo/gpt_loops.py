"""Right answers to `gpt` by someone who writes everything as a loop.

Read as text, cell by cell, by `make_class`: `exercise` cells replace the stubs, `own`
cells are cells that the student added before the next exercise.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from toolkit.kv_cache import KVCache, LayerCache

PAD, START, DELIMITER, EXTRACT, END = 0, 1, 2, 3, 4
SPECIAL = 5


# %% exercise="causal_mask"
def causal_mask(length, past=0):
    if length < 1 or past < 0:
        raise ValueError("length must be positive, past must not be negative")
    mask = torch.zeros(length, past + length, dtype=torch.bool)
    for row in range(length):
        for column in range(past + row + 1):
            mask[row, column] = True
    return mask


# %% exercise="window_mask"
def window_mask(length, window):
    if length < 1:
        raise ValueError("length must be positive")
    if window < 1:
        raise ValueError("window must be positive")
    rows = []
    for i in range(length):
        rows.append([i - window < j <= i for j in range(length)])
    return torch.tensor(rows)


# %% exercise="CausalSelfAttention"
class CausalSelfAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        if num_heads < 1 or d_model % num_heads > 0:
            raise ValueError(f"{num_heads} heads don't fit into {d_model}")
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        _B, T, D = x.shape
        size = D // self.num_heads
        every = self.qkv(x)
        heads = []
        for h in range(self.num_heads):
            q = every[:, :, h * size : (h + 1) * size]
            k = every[:, :, D + h * size : D + (h + 1) * size]
            v = every[:, :, 2 * D + h * size : 2 * D + (h + 1) * size]
            places = []
            for t in range(T):
                scores = (k[:, : t + 1] * q[:, t : t + 1]).sum(2) / math.sqrt(size)
                attn_weights = self.drop(torch.softmax(scores, 1))
                places.append((attn_weights.unsqueeze(2) * v[:, : t + 1]).sum(1))
            heads.append(torch.stack(places, 1))
        return self.drop(self.out_proj(torch.cat(heads, 2)))


# %% exercise="gelu"
def gelu(x):
    cube = x * x * x
    inside = (x + 0.044715 * cube) * (2 / math.pi) ** 0.5
    return x * (torch.tanh(inside) + 1) / 2


# %% exercise="FeedForward"
class FeedForward(nn.Module):
    def __init__(self, d_model, dropout=0.0):
        super().__init__()
        self.w_1 = nn.Linear(d_model, d_model * 4)
        self.w_2 = nn.Linear(d_model * 4, d_model)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        for step in (self.w_1, gelu, self.w_2, self.drop):
            x = step(x)
        return x


# %% exercise="PostNormBlock"
class PostNormBlock(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        self.attention = CausalSelfAttention(d_model, num_heads, dropout)
        self.feed_forward = FeedForward(d_model, dropout)
        self.norm_1 = nn.LayerNorm(d_model)
        self.norm_2 = nn.LayerNorm(d_model)

    def forward(self, x):
        for part, norm in ((self.attention, self.norm_1), (self.feed_forward, self.norm_2)):
            x = norm(x + part(x))
        return x


# %% exercise="PreNormBlock"
class PreNormBlock(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        self.attention = CausalSelfAttention(d_model, num_heads, dropout)
        self.feed_forward = FeedForward(d_model, dropout)
        self.norm_1 = nn.LayerNorm(d_model)
        self.norm_2 = nn.LayerNorm(d_model)

    def forward(self, x):
        for part, norm in ((self.attention, self.norm_1), (self.feed_forward, self.norm_2)):
            x = x + part(norm(x))
        return x


# %% exercise="GPT"
class GPT(nn.Module):
    def __init__(
        self, vocab_size, max_length, d_model, num_layers, num_heads, dropout=0.1, norm_first=True
    ):
        super().__init__()
        self.max_length = max_length
        self.token = nn.Embedding(vocab_size, d_model)
        self.position = nn.Embedding(max_length, d_model)
        self.blocks = nn.ModuleList()
        for _ in range(num_layers):
            if norm_first:
                self.blocks.append(PreNormBlock(d_model, num_heads, dropout))
            else:
                self.blocks.append(PostNormBlock(d_model, num_heads, dropout))
        self.final_norm = nn.LayerNorm(d_model) if norm_first else nn.Identity()
        self.drop = nn.Dropout(dropout)

    def features(self, ids):
        T = ids.shape[1]
        if self.max_length < T:
            raise ValueError(f"{T} tokens, but a max_length of {self.max_length}")
        columns = []
        for t in range(T):
            columns.append(self.token(ids[:, t]) + self.position.weight[t])
        x = self.drop(torch.stack(columns, 1))
        for block in self.blocks:
            x = block(x)
        return self.final_norm(x)

    def forward(self, ids):
        return F.linear(self.features(ids), self.token.weight)


# %% exercise="init_weights"
def init_weights(model):
    norm_first = isinstance(model.final_norm, nn.LayerNorm)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                deviation = 0.02
                if norm_first and (name.endswith(("out_proj.weight", "w_2.weight"))):
                    deviation = 0.02 / (2 * len(model.blocks)) ** 0.5
                parameter.normal_(0.0, deviation)
            elif name.endswith("bias"):
                parameter.zero_()
            else:
                parameter.fill_(1.0)
    return model


# %% exercise="count_parameters"
def count_parameters(vocab_size, max_length, d_model, num_layers, norm_first=True):
    total = vocab_size * d_model + max_length * d_model
    for _ in range(num_layers):
        for rows, columns in [(3, 1), (1, 1), (4, 1), (1, 4)]:
            total += rows * d_model * columns * d_model + rows * d_model
        for _ in ("norm_1", "norm_2"):
            total += d_model + d_model
    if norm_first:
        total += d_model + d_model
    return total


# %% exercise="rename_parameters"
def rename_parameters(state):
    found = {}
    for old in state:
        words = old.split(".")
        if words[0] == "transformer":
            words = words[1:]
        tensor = state[old]
        if words == ["lm_head", "weight"] or words == ["position_ids"]:
            continue
        if len(words) == 2 and words[1] == "weight" and words[0] in ("wte", "tokens_embed"):
            found["token.weight"] = tensor
        elif len(words) == 2 and words[1] == "weight" and words[0] in ("wpe", "positions_embed"):
            found["position.weight"] = tensor
        elif len(words) == 2 and words[0] == "ln_f" and words[1] in ("weight", "bias"):
            found["final_norm." + words[1]] = tensor
        elif (
            len(words) == 4
            and words[0] == "h"
            and words[2] == "attn"
            and words[3]
            in (
                "bias",
                "masked_bias",
            )
        ):
            continue
        elif len(words) == 4 and words[0] == "h" and words[2] in ("ln_1", "ln_2"):
            found[f"blocks.{words[1]}.norm_{words[2][3]}.{words[3]}"] = tensor
        elif len(words) == 5 and words[0] == "h":
            new = None
            for part, layer, name in (
                ("attn", "c_attn", "attention.qkv"),
                ("attn", "c_proj", "attention.out_proj"),
                ("mlp", "c_fc", "feed_forward.w_1"),
                ("mlp", "c_proj", "feed_forward.w_2"),
            ):
                if words[2] == part and words[3] == layer and words[4] in ("weight", "bias"):
                    new = name
            if new is None:
                raise ValueError(f"what is {old}?")
            if words[4] == "weight":
                tensor = tensor.t().contiguous()
            found[f"blocks.{words[1]}.{new}.{words[4]}"] = tensor
        else:
            raise ValueError(f"what is {old}?")
    return found


# %% exercise="log_likelihood"
def log_likelihood(logits, ids, mask=None):
    B, T = ids.shape
    if T < 2:
        raise ValueError("nothing to predict")
    sums = []
    for b in range(B):
        total = logits[b, 0, 0] * 0
        for t in range(1, T):
            if mask is None or mask[b, t]:
                row = logits[b, t - 1]
                total = total + row[ids[b, t]] - torch.logsumexp(row, 0)
        sums.append(total)
    return torch.stack(sums)


# %% exercise="language_model_loss"
def language_model_loss(logits, ids, mask=None):
    total, count = 0.0, 0
    for row, one in enumerate(log_likelihood(logits, ids, mask)):
        total = total - one
        for t in range(1, ids.shape[1]):
            if mask is None or mask[row, t]:
                count += 1
    return total / max(count, 1)


# %% exercise="sample_blocks"
def sample_blocks(stream, length, batch_size):
    if length < 1 or batch_size < 1:
        raise ValueError("sizes must be positive")
    if len(stream) <= length:
        raise ValueError("the stream is too short")
    inputs, targets = [], []
    for _ in range(batch_size):
        start = int(torch.randint(len(stream) - length, ()))
        inputs.append(stream[start : start + length])
        targets.append(stream[start + 1 : start + 1 + length])
    return torch.stack(inputs), torch.stack(targets)


# %% exercise="decay_groups"
def decay_groups(model, weight_decay):
    if weight_decay < 0:
        raise ValueError("weight_decay must not be negative")
    first, second = [], []
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if len(parameter.shape) > 1:
            first.append(parameter)
        else:
            second.append(parameter)
    return [
        {"params": first, "weight_decay": weight_decay},
        {"params": second, "weight_decay": 0.0},
    ]


# %% exercise="adamw_step"
def adamw_step(
    parameter,
    gradient,
    exp_avg,
    exp_avg_sq,
    step,
    lr,
    betas=(0.9, 0.95),
    eps=1e-8,
    weight_decay=0.1,
):
    if step < 1:
        raise ValueError("the first step is 1")
    means, corrected = [], []
    for old, new, beta in (
        (exp_avg, gradient, betas[0]),
        (exp_avg_sq, gradient * gradient, betas[1]),
    ):
        mean = old * beta + new * (1 - beta)
        means.append(mean)
        corrected.append(mean / (1 - beta**step))
    change = corrected[0] / (corrected[1] ** 0.5 + eps)
    new = parameter - lr * weight_decay * parameter - lr * change
    return new, means[0], means[1]


# %% exercise="cosine_lr"
def cosine_lr(step, max_lr, warmup_steps, total_steps, min_lr=0.0):
    if step < 1:
        raise ValueError("the first step is 1")
    if warmup_steps < 0 or warmup_steps >= total_steps:
        raise ValueError("the warm-up must be shorter than the whole")
    if step <= warmup_steps:
        return max_lr / warmup_steps * step
    angle = (
        math.pi
        * min(step - warmup_steps, total_steps - warmup_steps)
        / (total_steps - warmup_steps)
    )
    return min_lr + 0.5 * (max_lr - min_lr) * (1 + math.cos(angle))


# %% exercise="train"
def train(
    model, stream, total_steps, length, batch_size, max_lr, warmup_steps, weight_decay=0.1, clip=1.0
):
    model.train()
    slots = []
    for group in decay_groups(model, weight_decay):
        for parameter in group["params"]:
            zeros = torch.zeros_like(parameter)
            slots.append([parameter, zeros, zeros, group["weight_decay"]])
    losses = []
    for step in range(1, total_steps + 1):
        inputs, targets = sample_blocks(stream, length, batch_size)
        logits = model(inputs)
        loss = 0.0
        for b in range(batch_size):
            loss = loss + F.cross_entropy(logits[b], targets[b]) / batch_size
        for slot in slots:
            slot[0].grad = None
        loss.backward()
        total = 0.0
        for slot in slots:
            if slot[0].grad is not None:
                total += float((slot[0].grad ** 2).sum())
        scale = 1.0
        if total**0.5 > clip:
            scale = clip / total**0.5
        lr = cosine_lr(step, max_lr, warmup_steps, total_steps)
        with torch.no_grad():
            for slot in slots:
                parameter, first, second, decay = slot
                if parameter.grad is None:
                    continue
                gradient = parameter.grad * scale
                new, slot[1], slot[2] = adamw_step(
                    parameter, gradient, first, second, step, lr, weight_decay=decay
                )
                parameter.copy_(new)
        losses.append(loss.item())
    return losses


# %% exercise="scale_temperature"
def scale_temperature(logits, temperature):
    if temperature <= 0:
        raise ValueError("the temperature must be positive")
    rows = []
    for row in logits.reshape(-1, logits.shape[-1]):
        rows.append(row / temperature)
    return torch.stack(rows).reshape(logits.shape)


# %% exercise="keep_top_k"
def keep_top_k(logits, k):
    if k < 1:
        raise ValueError("k must be positive")
    rows = []
    for row in logits.reshape(-1, logits.shape[-1]):
        numbers = sorted(row.tolist(), reverse=True)
        least = numbers[min(k, len(numbers)) - 1]
        new = row.clone()
        for token, number in enumerate(row.tolist()):
            if number < least:
                new[token] = -math.inf
        rows.append(new)
    return torch.stack(rows).reshape(logits.shape)


# %% exercise="keep_top_p"
def keep_top_p(logits, p):
    if p <= 0 or p > 1:
        raise ValueError("p must be a share")
    rows = []
    for row in logits.reshape(-1, logits.shape[-1]):
        shares = torch.softmax(row, 0).tolist()
        order = sorted(range(len(shares)), key=lambda token: shares[token], reverse=True)
        new = torch.full_like(row, -math.inf)
        total = 0.0
        for token in order:
            if total < p or p == 1:
                new[token] = row[token]
                total += shares[token]
        rows.append(new)
    return torch.stack(rows).reshape(logits.shape)


# %% exercise="sample_token"
def sample_token(logits, temperature=1.0, top_k=None, top_p=None, generator=None):
    if temperature < 0:
        raise ValueError("the temperature must not be negative")
    tokens = []
    for row in logits:
        if temperature == 0:
            best = 0
            for token in range(1, len(row)):
                if row[token] > row[best]:
                    best = token
            tokens.append(best)
            continue
        row = scale_temperature(row, temperature)
        if top_k is not None:
            row = keep_top_k(row, top_k)
        if top_p is not None:
            row = keep_top_p(row, top_p)
        shares = torch.softmax(row, 0)
        tokens.append(int(torch.multinomial(shares, 1, generator=generator)))
    return torch.tensor(tokens)


# %% exercise="generate"
def generate(
    model, ids, max_new_tokens, temperature=1.0, top_k=None, top_p=None, stop=None, seed=None
):
    if max_new_tokens < 0:
        raise ValueError("max_new_tokens must not be negative")
    if ids.shape[1] == 0:
        raise ValueError("there is nothing to go on from")
    generator = None
    if seed is not None:
        generator = torch.Generator()
        generator.manual_seed(seed)
    over = [False for _ in ids]
    for _ in range(max_new_tokens):
        if stop is not None and all(over):
            break
        seen = ids
        if seen.shape[1] > model.max_length:
            seen = seen[:, seen.shape[1] - model.max_length :]
        with torch.no_grad():
            logits = model(seen)
        new = sample_token(logits[:, -1], temperature, top_k, top_p, generator)
        for row in range(len(ids)):
            if over[row]:
                new[row] = stop
            if stop is not None and int(new[row]) == stop:
                over[row] = True
        ids = torch.cat((ids, new.reshape(-1, 1)), 1)
    return ids


# %% exercise="attend_cached"
def attend_cached(attention, x, cache=None):
    _B, T, D = x.shape
    H = attention.num_heads
    size = D // H
    every = attention.qkv(x)
    keys, values, heads = [], [], []
    for h in range(H):
        q = every[:, :, h * size : (h + 1) * size]
        k = every[:, :, D + h * size : D + (h + 1) * size]
        v = every[:, :, 2 * D + h * size : 2 * D + (h + 1) * size]
        if cache is not None:
            k = torch.cat((cache.keys[:, h], k), 1)
            v = torch.cat((cache.values[:, h], v), 1)
        before = k.shape[1] - T
        places = []
        for t in range(T):
            seen = before + t + 1
            scores = (k[:, :seen] * q[:, t : t + 1]).sum(2) / math.sqrt(size)
            attn_weights = torch.softmax(scores, 1)
            places.append((attn_weights.unsqueeze(2) * v[:, :seen]).sum(1))
        heads.append(torch.stack(places, 1))
        keys.append(k)
        values.append(v)
    result = attention.out_proj(torch.cat(heads, 2))
    return result, LayerCache(torch.stack(keys, 1), torch.stack(values, 1))


# %% exercise="cached_forward"
def cached_forward(model, ids, cache=None):
    before = 0
    if cache is not None:
        before = cache.past
    T = ids.shape[1]
    if before + T > model.max_length:
        raise ValueError(f"{before + T} places, but a context of {model.max_length}")
    columns = []
    for t in range(T):
        columns.append(model.token(ids[:, t]) + model.position.weight[before + t])
    x = torch.stack(columns, 1)
    new = []
    for i in range(len(model.blocks)):
        block = model.blocks[i]
        old = None
        if cache is not None:
            old = cache.layers[i]
        network = block.feed_forward
        if isinstance(block, PostNormBlock):
            mixed, pair = attend_cached(block.attention, x, old)
            x = block.norm_1(x + mixed)
            x = block.norm_2(x + network.w_2(gelu(network.w_1(x))))
        else:
            mixed, pair = attend_cached(block.attention, block.norm_1(x), old)
            x = x + mixed
            x = x + network.w_2(gelu(network.w_1(block.norm_2(x))))
        new.append(pair)
    return F.linear(model.final_norm(x), model.token.weight), KVCache(new)


# %% exercise="prompt_and_response"
def prompt_and_response(prompt, response):
    if len(prompt) == 0 or len(response) == 0:
        raise ValueError("both must hold something")
    ids, mask = [START], [False]
    for token in prompt:
        ids.append(token)
        mask.append(False)
    ids.append(DELIMITER)
    mask.append(False)
    for token in response:
        ids.append(token)
        mask.append(True)
    ids.append(END)
    mask.append(True)
    return ids, mask


# %% exercise="entailment_input"
def entailment_input(premise, hypothesis):
    ids = [START]
    for text, closing in ((premise, DELIMITER), (hypothesis, EXTRACT)):
        if len(text) == 0:
            raise ValueError("both must hold something")
        for token in text:
            ids.append(token)
        ids.append(closing)
    return ids


# %% exercise="similarity_inputs"
def similarity_inputs(first, second):
    rows = []
    for one, other in ((first, second), (second, first)):
        rows.append(entailment_input(one, other))
    return rows


# %% exercise="choice_inputs"
def choice_inputs(context, answers):
    if len(answers) == 0:
        raise ValueError("there is no answer")
    rows = []
    for answer in answers:
        rows.append(entailment_input(context, answer))
    return rows


# %% exercise="GPTClassifier"
class GPTClassifier(nn.Module):
    def __init__(self, gpt, num_labels, dropout=0.1):
        super().__init__()
        self.gpt = gpt
        self.classifier = nn.Linear(gpt.token.weight.shape[1], num_labels)
        self.drop = nn.Dropout(dropout)

    def forward(self, ids):
        places = []
        for row in ids.tolist():
            if row.count(EXTRACT) != 1:
                raise ValueError("a row needs one EXTRACT")
            places.append(row.index(EXTRACT))
        hidden = self.gpt.features(ids)
        read = []
        for row, place in enumerate(places):
            read.append(hidden[row, place])
        scores = self.classifier(self.drop(torch.stack(read)))
        return scores, F.linear(hidden, self.gpt.token.weight)


# %% exercise="joint_loss"
def joint_loss(scores, labels, logits, ids, weight=0.5):
    if weight < 0:
        raise ValueError("weight must not be negative")
    task = 0.0
    for row in range(len(labels)):
        task = task + F.cross_entropy(scores[row], labels[row]) / len(labels)
    text = language_model_loss(logits, ids, ids.ne(PAD))
    return task + weight * text, task, text


# %% exercise="build_prompt"
def build_prompt(task, examples, query, arrow=" =>"):
    text = ""
    if task:
        text += task + "\n"
    for question, answer in examples:
        text += question + arrow + " " + answer + "\n"
    return text + query + arrow


# %% exercise="answer_scores"
def answer_scores(model, prompt, answers, per_token=True):
    if len(prompt) == 0 or len(answers) == 0:
        raise ValueError("something is empty")
    scores = []
    for answer in answers:
        if len(answer) == 0:
            raise ValueError("an answer is empty")
        if len(prompt) + len(answer) > model.max_length:
            raise ValueError("too long")
    for answer in answers:
        with torch.no_grad():
            logits = model(torch.tensor([list(prompt) + list(answer)]))[0]
        total = 0.0
        for place, token in enumerate(answer):
            total = total + torch.log_softmax(logits[len(prompt) + place - 1], 0)[token]
        scores.append(total / len(answer) if per_token else total)
    return torch.stack(scores)
