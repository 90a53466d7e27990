"""Right answers to `gpt` by someone who avoids loops and leaves work to PyTorch's kernels.

Read as text, cell by cell, by `make_class`: `exercise` cells replace the stubs, `own`
cells are cells that the student added before the next exercise.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from toolkit.kv_cache import KVCache, LayerCache

PAD, START, DELIMITER, EXTRACT, END = 0, 1, 2, 3, 4
SPECIAL = 5


# %% exercise="causal_mask"
def causal_mask(length: int, past: int = 0) -> Tensor:
    if length < 1:
        raise ValueError(f"length={length}")
    if past < 0:
        raise ValueError(f"past={past}")
    return torch.ones(length, past + length, dtype=torch.bool).tril(past)


# %% exercise="window_mask"
def window_mask(length: int, window: int) -> Tensor:
    if min(length, window) < 1:
        raise ValueError(f"length={length}, window={window}")
    ones = torch.ones(length, length, dtype=torch.bool)
    return ones.tril().triu(1 - window)


# %% exercise="CausalSelfAttention"
class CausalSelfAttention(nn.Module):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if d_model % num_heads:
            raise ValueError(f"{d_model} is no multiple of {num_heads}")
        self.num_heads, self.p = num_heads, dropout
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        split = self.qkv(x).view(B, T, 3, self.num_heads, -1)  # (B, T, 3, H, D/H)
        q, k, v = split.permute(2, 0, 3, 1, 4)  # (B, H, T, D/H) each
        p = self.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        result = self.out_proj(mixed.transpose(1, 2).reshape(B, T, D))
        return F.dropout(result, self.p, self.training)


# %% exercise="gelu"
def gelu(x: Tensor) -> Tensor:
    # (1 + tanh(z)) / 2 is the sigmoid of 2 z.
    return x * torch.sigmoid(math.sqrt(8 / math.pi) * x * (1 + 0.044715 * x.square()))


# %% exercise="FeedForward"
class FeedForward(nn.Module):
    def __init__(self, d_model: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.w_1, self.w_2 = nn.Linear(d_model, 4 * d_model), nn.Linear(4 * d_model, d_model)
        self.p = dropout

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.w_2(gelu(self.w_1(x))), self.p, self.training)


# %% exercise="PostNormBlock"
class PostNormBlock(nn.Module):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = CausalSelfAttention(d_model, num_heads, dropout)
        self.norm_1, self.norm_2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model, dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm_1(self.attention(x) + x)
        return self.norm_2(self.feed_forward(x) + x)


# %% exercise="PreNormBlock"
class PreNormBlock(nn.Module):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = CausalSelfAttention(d_model, num_heads, dropout)
        self.norm_1, self.norm_2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model, dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention(self.norm_1(x)) + x
        return self.feed_forward(self.norm_2(x)) + x


# %% exercise="GPT"
class GPT(nn.Module):
    def __init__(
        self,
        vocab_size: int,
        max_length: int,
        d_model: int,
        num_layers: int,
        num_heads: int,
        dropout: float = 0.1,
        norm_first: bool = True,
    ) -> None:
        super().__init__()
        kind = PreNormBlock if norm_first else PostNormBlock
        self.token = nn.Embedding(vocab_size, d_model)
        self.position = nn.Embedding(max_length, d_model)
        self.blocks = nn.ModuleList([kind(d_model, num_heads, dropout) for _ in range(num_layers)])
        self.final_norm = nn.LayerNorm(d_model) if norm_first else nn.Identity()
        self.max_length, self.p = max_length, dropout

    def features(self, ids: Tensor) -> Tensor:
        T = ids.shape[1]
        if self.max_length < T:
            raise ValueError(f"T={T} is larger than max_length={self.max_length}")
        x = self.token(ids) + self.position.weight[:T]
        x = F.dropout(x, self.p, self.training)
        for block in self.blocks:
            x = block(x)
        return self.final_norm(x)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.einsum("btd,vd->btv", self.features(ids), self.token.weight)


# %% exercise="init_weights"
@torch.no_grad()
def init_weights(model: GPT) -> GPT:
    branches = 1
    if not isinstance(model.final_norm, nn.Identity):
        branches = 2 * len(model.blocks)
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.copy_(0.02 * torch.randn_like(module.weight))
        if isinstance(module, nn.LayerNorm):
            module.weight.copy_(torch.ones_like(module.weight))
        if isinstance(module, (nn.Linear, nn.LayerNorm)):
            module.bias.copy_(torch.zeros_like(module.bias))
    for block in model.blocks:
        block.attention.out_proj.weight.mul_(branches**-0.5)
        block.feed_forward.w_2.weight.mul_(branches**-0.5)
    return model


# %% exercise="count_parameters"
def count_parameters(
    vocab_size: int, max_length: int, d_model: int, num_layers: int, norm_first: bool = True
) -> int:
    D = d_model
    return (vocab_size + max_length + 2 * bool(norm_first)) * D + num_layers * (12 * D * D + 13 * D)


# %% exercise="rename_parameters"
def rename_parameters(state: dict[str, Tensor]) -> dict[str, Tensor]:
    new = {}
    words = {
        "attn.c_attn": "attention.qkv",
        "attn.c_proj": "attention.out_proj",
        "mlp.c_fc": "feed_forward.w_1",
        "mlp.c_proj": "feed_forward.w_2",
        "ln_1": "norm_1",
        "ln_2": "norm_2",
    }
    alone = {
        "wte": "token",
        "tokens_embed": "token",
        "wpe": "position",
        "positions_embed": "position",
        "ln_f": "final_norm",
    }
    for old, tensor in state.items():
        name = old.replace("transformer.", "", 1) if old.startswith("transformer.") else old
        parts = name.split(".")
        end = parts[-1]
        if name in ("lm_head.weight", "position_ids"):
            continue
        in_block = parts[0] == "h" and len(parts) > 3 and parts[1].isdigit()
        if in_block and ".".join(parts[2:]) in ("attn.bias", "attn.masked_bias"):
            continue
        if in_block and ".".join(parts[2:-1]) in words and end in ("weight", "bias"):
            middle = words[".".join(parts[2:-1])]
            if len(parts) == 5 and end == "weight":
                tensor = tensor.transpose(0, 1).contiguous()
            new[f"blocks.{parts[1]}.{middle}.{end}"] = tensor
        elif len(parts) == 2 and parts[0] in alone and end in ("weight", "bias"):
            if end == "bias" and parts[0] != "ln_f":
                raise ValueError(f"{old} is unknown")
            new[f"{alone[parts[0]]}.{end}"] = tensor
        else:
            raise ValueError(f"{old} is unknown")
    return new


# %% exercise="log_likelihood"
def log_likelihood(logits: Tensor, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    if ids.shape[1] < 2:
        raise ValueError("a row needs two tokens")
    losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    if mask is None:
        return -losses.sum(1)
    return -torch.where(mask[:, 1:], losses, torch.zeros_like(losses)).sum(1)


# %% exercise="language_model_loss"
def language_model_loss(logits: Tensor, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    if ids.shape[1] < 2:
        raise ValueError("a row needs two tokens")
    targets = ids[:, 1:].reshape(-1)
    if mask is not None:
        targets = targets.masked_fill(~mask[:, 1:].reshape(-1), -100)
    total = F.cross_entropy(
        logits[:, :-1].flatten(0, 1), targets, ignore_index=-100, reduction="sum"
    )
    return total / (targets != -100).sum().clamp(min=1)


# %% exercise="sample_blocks"
def sample_blocks(stream: Tensor, length: int, batch_size: int) -> tuple[Tensor, Tensor]:
    if length < 1 or batch_size < 1 or len(stream) < length + 1:
        raise ValueError("there is no such batch")
    starts = torch.randint(len(stream) - length, (batch_size,))
    blocks = stream.unfold(0, length + 1, 1)[starts]  # (B, T + 1)
    return blocks[:, :-1].contiguous(), blocks[:, 1:].contiguous()


# %% exercise="decay_groups"
def decay_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    if weight_decay < 0:
        raise ValueError(f"weight_decay={weight_decay}")
    named = {True: [], False: []}
    for parameter in model.parameters():
        if parameter.requires_grad:
            named[parameter.ndim >= 2].append(parameter)
    pairs = ((named[True], weight_decay), (named[False], 0.0))
    return [{"params": found, "weight_decay": decay} for found, decay in pairs]


# %% exercise="adamw_step"
def adamw_step(
    parameter: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.1,
) -> tuple[Tensor, Tensor, Tensor]:
    if step < 1:
        raise ValueError(f"step={step}")
    exp_avg = torch.lerp(exp_avg, gradient, 1 - betas[0])
    exp_avg_sq = torch.lerp(exp_avg_sq, gradient.square(), 1 - betas[1])
    size = lr * math.sqrt(1 - betas[1] ** step) / (1 - betas[0] ** step)
    # Numerator and denominator of Adam's step, both times the root of 1 - beta_2 ** step.
    root = exp_avg_sq.sqrt() + eps * math.sqrt(1 - betas[1] ** step)
    shrunk = parameter * (1 - lr * weight_decay)
    return torch.addcdiv(shrunk, exp_avg, root, value=-size), exp_avg, exp_avg_sq


# %% exercise="cosine_lr"
def cosine_lr(
    step: int, max_lr: float, warmup_steps: int, total_steps: int, min_lr: float = 0.0
) -> float:
    if step < 1 or not 0 <= warmup_steps < total_steps:
        raise ValueError(f"step={step}, warmup_steps={warmup_steps}, total_steps={total_steps}")
    if step <= warmup_steps:
        return max_lr * (step / warmup_steps)
    done = min((step - warmup_steps) / (total_steps - warmup_steps), 1.0)
    return min_lr + (max_lr - min_lr) * math.cos(math.pi / 2 * done) ** 2


# %% exercise="train"
def train(
    model: nn.Module,
    stream: Tensor,
    total_steps: int,
    length: int,
    batch_size: int,
    max_lr: float,
    warmup_steps: int,
    weight_decay: float = 0.1,
    clip: float = 1.0,
) -> list[float]:
    model.train()
    groups = decay_groups(model, weight_decay)
    optimiser = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(1, total_steps + 1):
        for group in optimiser.param_groups:
            group["lr"] = cosine_lr(step, max_lr, warmup_steps, total_steps)
        inputs, targets = sample_blocks(stream, length, batch_size)
        loss = F.cross_entropy(model(inputs).transpose(1, 2), targets)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimiser.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


# %% exercise="scale_temperature"
def scale_temperature(logits: Tensor, temperature: float) -> Tensor:
    if not temperature > 0:
        raise ValueError(f"temperature={temperature}")
    return logits.div(temperature)


# %% exercise="keep_top_k"
def keep_top_k(logits: Tensor, k: int) -> Tensor:
    if k < 1:
        raise ValueError(f"k={k}")
    V = logits.shape[-1]
    least = logits.kthvalue(max(V - k, 0) + 1, dim=-1, keepdim=True).values
    return logits.masked_fill(logits < least, -torch.inf)


# %% exercise="keep_top_p"
def keep_top_p(logits: Tensor, p: float) -> Tensor:
    if not 0 < p <= 1:
        raise ValueError(f"p={p}")
    shares, order = logits.softmax(-1).sort(dim=-1, descending=True)
    dropped = F.pad(shares.cumsum(-1)[..., :-1], (1, 0)) >= (p if p < 1 else math.inf)
    return logits.masked_fill(torch.zeros_like(dropped).scatter(-1, order, dropped), -torch.inf)


# %% exercise="sample_token"
def sample_token(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    if temperature < 0:
        raise ValueError(f"temperature={temperature}")
    if temperature == 0:
        return logits.argmax(-1)
    logits = scale_temperature(logits, temperature)
    logits = logits if top_k is None else keep_top_k(logits, top_k)
    logits = logits if top_p is None else keep_top_p(logits, top_p)
    # A race of exponential clocks: the one with the highest rate is the likeliest to be first.
    clocks = torch.empty_like(logits, dtype=torch.float64).exponential_(generator=generator)
    return (logits.softmax(-1) / clocks).argmax(-1)


# %% exercise="generate"
@torch.no_grad()
def generate(
    model: nn.Module,
    ids: Tensor,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: int | None = None,
    seed: int | None = None,
) -> Tensor:
    if max_new_tokens < 0 or ids.shape[1] < 1:
        raise ValueError("nothing to write, or nothing to go on from")
    generator = None if seed is None else torch.Generator(ids.device).manual_seed(seed)
    start = ids.shape[1]
    for _ in range(max_new_tokens):
        logits = model(ids[:, -model.max_length :])[:, -1]
        token = sample_token(logits, temperature, top_k, top_p, generator)
        if stop is None:
            ids = torch.cat([ids, token[:, None]], dim=1)
            continue
        over = (ids[:, start:] == stop).any(dim=1)
        ids = torch.cat([ids, torch.where(over, stop, token)[:, None]], dim=1)
        if (ids[:, start:] == stop).any(dim=1).all():
            break
    return ids


# %% exercise="attend_cached"
def attend_cached(
    attention: CausalSelfAttention, x: Tensor, cache: LayerCache | None = None
) -> tuple[Tensor, LayerCache]:
    B, T, D = x.shape
    split = attention.qkv(x).view(B, T, 3, attention.num_heads, -1)
    q, k, v = split.permute(2, 0, 3, 1, 4)
    if cache is not None:
        k, v = torch.cat([cache.keys, k], dim=2), torch.cat([cache.values, v], dim=2)
    mask = torch.ones(T, k.shape[2], dtype=torch.bool).tril(k.shape[2] - T)
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return attention.out_proj(mixed.transpose(1, 2).reshape(B, T, D)), LayerCache(keys=k, values=v)


# %% exercise="cached_forward"
def cached_forward(model: GPT, ids: Tensor, cache: KVCache | None = None) -> tuple[Tensor, KVCache]:
    P = 0 if cache is None else cache.past
    T = ids.shape[1]
    if model.max_length < P + T:
        raise ValueError(f"P + T = {P + T} is larger than max_length={model.max_length}")
    x = model.token(ids) + model.position.weight[P : P + T]
    caches = []
    before = [None] * len(model.blocks) if cache is None else cache.layers
    for block, old in zip(model.blocks, before, strict=True):
        first, second = block.feed_forward.w_1, block.feed_forward.w_2
        if isinstance(model.final_norm, nn.Identity):
            mixed, new_cache = attend_cached(block.attention, x, old)
            x = block.norm_1(x + mixed)
            x = block.norm_2(x + second(gelu(first(x))))
        else:
            mixed, new_cache = attend_cached(block.attention, block.norm_1(x), old)
            x = x + mixed
            x = x + second(gelu(first(block.norm_2(x))))
        caches.append(new_cache)
    return model.final_norm(x) @ model.token.weight.mT, KVCache(layers=caches)


# %% exercise="prompt_and_response"
def prompt_and_response(prompt: list[int], response: list[int]) -> tuple[list[int], list[bool]]:
    if not prompt or not response:
        raise ValueError("prompt or response is empty")
    ids = [START, *prompt, DELIMITER, *response, END]
    return ids, [place > len(prompt) + 1 for place in range(len(ids))]


# %% exercise="entailment_input"
def entailment_input(premise: list[int], hypothesis: list[int]) -> list[int]:
    if not (premise and hypothesis):
        raise ValueError("premise or hypothesis is empty")
    return [START, *premise, DELIMITER, *hypothesis, EXTRACT]


# %% exercise="similarity_inputs"
def similarity_inputs(first: list[int], second: list[int]) -> list[list[int]]:
    pair = (first, second)
    return [entailment_input(*pair), entailment_input(*pair[::-1])]


# %% exercise="choice_inputs"
def choice_inputs(context: list[int], answers: list[list[int]]) -> list[list[int]]:
    if not context or not answers or not all(answers):
        raise ValueError("context, answers or an answer is empty")
    start = [START, *context, DELIMITER]
    return [[*start, *answer, EXTRACT] for answer in answers]


# %% exercise="GPTClassifier"
class GPTClassifier(nn.Module):
    def __init__(self, gpt: GPT, num_labels: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.gpt, self.p = gpt, dropout
        self.classifier = nn.Linear(gpt.position.embedding_dim, num_labels)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        marks = ids == EXTRACT
        if not bool((marks.sum(1) == 1).all()):
            raise ValueError("each row needs exactly one EXTRACT")
        hidden = self.gpt.features(ids)
        read = torch.einsum("bt,btd->bd", marks.to(hidden.dtype), hidden)
        scores = self.classifier(F.dropout(read, self.p, self.training))
        return scores, hidden @ self.gpt.token.weight.mT


# %% exercise="joint_loss"
def joint_loss(
    scores: Tensor, labels: Tensor, logits: Tensor, ids: Tensor, weight: float = 0.5
) -> tuple[Tensor, Tensor, Tensor]:
    if weight < 0:
        raise ValueError(f"weight={weight}")
    task = -scores.log_softmax(-1).gather(1, labels.unsqueeze(1)).mean()
    text = language_model_loss(logits, ids, ids != PAD)
    return torch.add(task, text, alpha=weight), task, text


# %% exercise="build_prompt"
def build_prompt(task: str, examples: list[tuple[str, str]], query: str, arrow: str = " =>") -> str:
    lines = [f"{x}{arrow} {y}" for x, y in examples]
    return "\n".join([task] * bool(task) + lines + [query + arrow])


# %% exercise="answer_scores"
@torch.no_grad()
def answer_scores(
    model: nn.Module, prompt: list[int], answers: list[list[int]], per_token: bool = True
) -> Tensor:
    if not prompt or not answers or not all(answers):
        raise ValueError("prompt, answers or an answer is empty")
    lengths = torch.tensor([len(answer) for answer in answers])
    T = len(prompt) + int(lengths.max())
    if model.max_length < T:
        raise ValueError(f"{T} tokens for a context of {model.max_length}")
    rows = [torch.tensor(prompt + answer) for answer in answers]
    ids = torch.stack([F.pad(row, (0, T - len(row)), value=PAD) for row in rows])
    places = torch.arange(T)
    mask = (places >= len(prompt)) & (places < len(prompt) + lengths[:, None])
    sums = log_likelihood(model(ids), ids, mask)
    return sums / lengths if per_token else sums
