"""Right answers to `gpt` by someone who writes helpers first and reuses them.

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


# %% own="what is refused"
def refuse(wrong, what):
    """Raise a ValueError if something is wrong."""
    if wrong:
        raise ValueError(what)


def distances(length, past=0):
    """How far each column lies behind each row; (T, P + T)."""
    rows, columns = torch.arange(past, past + length), torch.arange(past + length)
    return rows[:, None] - columns[None, :]


# %% exercise="causal_mask"
def causal_mask(length, past=0):
    refuse(length < 1, "there must be a place")
    refuse(past < 0, "past must not be negative")
    return distances(length, past) >= 0


# %% exercise="window_mask"
def window_mask(length, window):
    refuse(length < 1 or window < 1, "length and window must be at least 1")
    back = distances(length)
    return causal_mask(length) & back.lt(window)


# %% own="attention in its parts"
def queries_keys_values(attention, x):
    """The three parts, split into heads; (B, H, T, D/H) each."""
    every = attention.qkv(x)
    heads = torch.stack(every.split(every.shape[-1] // 3, dim=-1))
    heads = heads.reshape(*heads.shape[:3], attention.num_heads, -1)
    return heads.movedim(3, 2).unbind(0)


def weights_of(queries, keys):
    """The weights with which the last places look at all; (B, H, T, P + T)."""
    scores = torch.einsum("bhid,bhjd->bhij", queries, keys) * queries.shape[-1] ** -0.5
    length, whole = scores.shape[-2:]
    hidden = ~causal_mask(length, whole - length)
    return F.softmax(scores.masked_fill(hidden, -1e30), dim=-1)


def joined(heads):
    """(B, H, T, D/H) -> (B, T, D)."""
    return heads.permute(0, 2, 1, 3).flatten(-2)


# %% exercise="CausalSelfAttention"
class CausalSelfAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        refuse(num_heads < 1 or d_model % max(num_heads, 1), f"{d_model} is not {num_heads} heads")
        self.num_heads = num_heads
        for name, size in (("qkv", 3 * d_model), ("out_proj", d_model)):
            self.add_module(name, nn.Linear(d_model, size))
        self.drop_weights, self.drop_result = nn.Dropout(dropout), nn.Dropout(dropout)

    def forward(self, x):
        q, k, v = queries_keys_values(self, x)
        mixed = self.drop_weights(weights_of(q, k)) @ v
        return self.drop_result(self.out_proj(joined(mixed)))


# %% exercise="gelu"
def gelu(x):
    z = math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3))
    return 0.5 * (x + x * z.tanh())


# %% exercise="FeedForward"
class FeedForward(nn.Module):
    def __init__(self, d_model, dropout=0.0):
        super().__init__()
        self.w_1 = nn.Linear(d_model, 4 * d_model)
        self.w_2 = nn.Linear(4 * d_model, d_model)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        return self.drop(self.w_2(gelu(self.w_1(x))))


# %% own="what both kinds of block have"
class Block(nn.Module):
    """Two parts, each with a norm; where the norms stand is the kind's affair."""

    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        self.attention = CausalSelfAttention(d_model, num_heads, dropout)
        self.norm_1 = nn.LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model, dropout)
        self.norm_2 = nn.LayerNorm(d_model)

    def forward(self, x):
        x = self.around(self.attention, self.norm_1, x)
        return self.around(self.feed_forward, self.norm_2, x)


# %% exercise="PostNormBlock"
class PostNormBlock(Block):
    def around(self, part, norm, x):
        return norm(x + part(x))


# %% exercise="PreNormBlock"
class PreNormBlock(Block):
    def around(self, part, norm, x):
        return x + part(norm(x))


# %% own="the two ends of the model"
def embedded(model, ids, past=0):
    """Tokens and positions, from place `past` on."""
    end = past + ids.shape[1]
    refuse(
        end > model.max_length, f"{end} places are more than the {model.max_length} of the context"
    )
    return model.token(ids) + model.position(torch.arange(past, end))


def head(model, x):
    """The logits of features."""
    return x @ model.token.weight.t()


# %% exercise="GPT"
class GPT(nn.Module):
    def __init__(
        self, vocab_size, max_length, d_model, num_layers, num_heads, dropout=0.1, norm_first=True
    ):
        super().__init__()
        kind = PreNormBlock if norm_first else PostNormBlock
        self.max_length = max_length
        self.token, self.position = (
            nn.Embedding(vocab_size, d_model),
            nn.Embedding(max_length, d_model),
        )
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(kind(d_model, num_heads, dropout) for _ in range(num_layers))
        self.final_norm = nn.LayerNorm(d_model) if norm_first else nn.Identity()

    def features(self, ids):
        x = self.drop(embedded(self, ids))
        for block in self.blocks:
            x = block(x)
        return self.final_norm(x)

    def forward(self, ids):
        return head(self, self.features(ids))


# %% exercise="init_weights"
def init_weights(model):
    small = 1.0
    if isinstance(model.final_norm, nn.LayerNorm):
        small = math.sqrt(1 / (2 * len(model.blocks)))
    for name, module in model.named_modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.constant_(module.weight, 1.0)
            nn.init.constant_(module.bias, 0.0)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
        elif isinstance(module, nn.Linear):
            last = name.endswith(("out_proj", "w_2"))
            nn.init.normal_(module.weight, mean=0.0, std=0.02 * small if last else 0.02)
            nn.init.constant_(module.bias, 0.0)
    return model


# %% own="sizes of layers"
def linear_size(inputs, outputs):
    """Weights and biases of a linear layer."""
    return inputs * outputs + outputs


# %% exercise="count_parameters"
def count_parameters(vocab_size, max_length, d_model, num_layers, norm_first=True):
    norm = 2 * d_model
    attention = linear_size(d_model, 3 * d_model) + linear_size(d_model, d_model)
    feed_forward = linear_size(d_model, 4 * d_model) + linear_size(4 * d_model, d_model)
    blocks = num_layers * (attention + norm + feed_forward + norm)
    return (vocab_size + max_length) * d_model + blocks + norm * int(norm_first)


# %% exercise="rename_parameters"
def rename_parameters(state):
    table = {
        "wte.weight": "token.weight",
        "tokens_embed.weight": "token.weight",
        "wpe.weight": "position.weight",
        "positions_embed.weight": "position.weight",
        "lm_head.weight": None,
        "position_ids": None,
    }
    parts = {
        "attn.c_attn": "attention.qkv",
        "attn.c_proj": "attention.out_proj",
        "mlp.c_fc": "feed_forward.w_1",
        "mlp.c_proj": "feed_forward.w_2",
        "ln_1": "norm_1",
        "ln_2": "norm_2",
    }
    turned = set()
    for end in ("weight", "bias"):
        table[f"ln_f.{end}"] = f"final_norm.{end}"
        for old, new in parts.items():
            table[f"h.N.{old}.{end}"] = f"blocks.N.{new}.{end}"
            if "c_" in old and end == "weight":
                turned.add(f"h.N.{old}.{end}")
    for mask in ("bias", "masked_bias"):
        table[f"h.N.attn.{mask}"] = None
    found = {}
    for name, tensor in state.items():
        words, number = name.split("."), ""
        if words[0] == "transformer":
            words.pop(0)
        if words[0] == "h" and words[1].isdigit():
            number, words[1] = words[1], "N"
        plain = ".".join(words)
        refuse(plain not in table, f"{name} is unknown")
        if table[plain] is not None:
            new = table[plain].replace("N", number)
            found[new] = tensor.t().contiguous() if plain in turned else tensor
    return found


# %% own="log-probabilities of the next tokens"
def next_log_probs(logits, ids):
    """log P of each token but the first; (B, T - 1)."""
    refuse(ids.shape[1] < 2, "two tokens are the least")
    said = logits[:, :-1] - logits[:, :-1].logsumexp(-1, keepdim=True)
    return torch.take_along_dim(said, ids[:, 1:, None], dim=-1)[..., 0]


def counted(ids, mask):
    """Which targets count, as a mask; (B, T - 1)."""
    return (torch.ones_like(ids, dtype=torch.bool) if mask is None else mask)[:, 1:]


# %% exercise="log_likelihood"
def log_likelihood(logits, ids, mask=None):
    said = next_log_probs(logits, ids)
    return said.where(counted(ids, mask), torch.zeros_like(said)).sum(-1)


# %% exercise="language_model_loss"
def language_model_loss(logits, ids, mask=None):
    count = int(counted(ids, mask).sum())
    return log_likelihood(logits, ids, mask).sum().neg() / max(1, count)


# %% exercise="sample_blocks"
def sample_blocks(stream, length, batch_size):
    refuse(length < 1 or batch_size < 1, "length and batch_size must be at least 1")
    starts = stream.shape[0] - length
    refuse(starts < 1, "the stream holds no block")
    chosen = torch.randint(0, starts, (batch_size, 1))
    both = stream[chosen + torch.arange(length + 1)]
    return both[:, :length], both[:, 1:]


# %% exercise="decay_groups"
def decay_groups(model, weight_decay):
    refuse(weight_decay < 0, "weight_decay must not be negative")

    def group(wanted, decay):
        found = [p for p in model.parameters() if p.requires_grad and (p.dim() > 1) == wanted]
        return {"params": found, "weight_decay": decay}

    return [group(True, weight_decay), group(False, 0.0)]


# %% own="running means"
def running(mean, value, beta):
    """The mean with a new value in it."""
    return mean + (1 - beta) * (value - mean)


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
    refuse(step < 1, "steps count from 1")
    exp_avg, exp_avg_sq = (
        running(exp_avg, gradient, betas[0]),
        running(exp_avg_sq, gradient**2, betas[1]),
    )
    up, down = (
        mean / (1 - beta**step) for mean, beta in zip((exp_avg, exp_avg_sq), betas, strict=True)
    )
    change = up / (down.sqrt() + eps) + weight_decay * parameter
    return parameter - lr * change, exp_avg, exp_avg_sq


# %% exercise="cosine_lr"
def cosine_lr(step, max_lr, warmup_steps, total_steps, min_lr=0.0):
    refuse(step < 1, "steps count from 1")
    refuse(not 0 <= warmup_steps < total_steps, "the warm-up must end before the end")
    if step > warmup_steps:
        done = min(1, (step - warmup_steps) / (total_steps - warmup_steps))
        share = (1 + math.cos(math.pi * done)) / 2
        return share * max_lr + (1 - share) * min_lr
    return max_lr * step / warmup_steps


# %% own="clipping"
def shortened(gradients, longest):
    """The gradients, all scaled alike if they are longer than that together."""
    norm = math.sqrt(sum(float(one.square().sum()) for one in gradients))
    return [one * (longest / norm) for one in gradients] if norm > longest else gradients


class Moments:
    """Adam's means of one parameter."""

    def __init__(self, parameter, decay):
        self.target, self.decay = parameter, decay
        self.first = self.second = torch.zeros_like(parameter)

    def update(self, gradient, step, rate):
        """Take a step."""
        now = self.target.detach()
        new, self.first, self.second = adamw_step(
            now, gradient, self.first, self.second, step, rate, weight_decay=self.decay
        )
        self.target.data.copy_(new)


# %% exercise="train"
def train(
    model, stream, total_steps, length, batch_size, max_lr, warmup_steps, weight_decay=0.1, clip=1.0
):
    model.train()
    moments = [
        Moments(parameter, group["weight_decay"])
        for group in decay_groups(model, weight_decay)
        for parameter in group["params"]
    ]
    losses = []
    for step in range(1, total_steps + 1):
        inputs, targets = sample_blocks(stream, length, batch_size)
        loss = F.nll_loss(F.log_softmax(model(inputs), -1).flatten(0, 1), targets.flatten())
        model.zero_grad()
        loss.backward()
        gradients = [
            torch.zeros_like(one.target) if one.target.grad is None else one.target.grad
            for one in moments
        ]
        lr = cosine_lr(step, max_lr, warmup_steps, total_steps)
        for one, gradient in zip(moments, shortened(gradients, clip), strict=True):
            one.update(gradient, step, lr)
        losses.append(float(loss))
    return losses


# %% exercise="scale_temperature"
def scale_temperature(logits, temperature):
    refuse(not temperature > 0, "the temperature must be above 0")
    return logits * temperature**-1


# %% own="tokens that stay"
def only(logits, kept):
    """The logits of what is kept, -inf elsewhere."""
    return torch.where(kept, logits, torch.full_like(logits, -math.inf))


def ranks(logits):
    """How many tokens stand before each one, from the most probable on."""
    return logits.argsort(dim=-1, descending=True).argsort(dim=-1)


# %% exercise="keep_top_k"
def keep_top_k(logits, k):
    refuse(k < 1, "k must be at least 1")
    last = torch.sort(logits, dim=-1, descending=True).values
    last = last[..., min(k, logits.shape[-1]) - 1 : min(k, logits.shape[-1])]
    return only(logits, logits >= last)


# %% exercise="keep_top_p"
def keep_top_p(logits, p):
    refuse(not 0 < p <= 1, "p must be above 0 and at most 1")
    shares = F.softmax(logits, dim=-1)
    in_order = shares.sort(dim=-1, descending=True).values
    before = in_order.cumsum(-1) - in_order
    return only(logits, (before.gather(-1, ranks(shares)) < p) | (p == 1))


# %% exercise="sample_token"
def sample_token(logits, temperature=1.0, top_k=None, top_p=None, generator=None):
    refuse(temperature < 0, "the temperature must not be negative")
    if temperature == 0:
        return logits.argmax(dim=-1)
    for keep, amount in (
        (scale_temperature, temperature),
        (keep_top_k, top_k),
        (keep_top_p, top_p),
    ):
        if amount is not None:
            logits = keep(logits, amount)
    return F.softmax(logits, dim=-1).multinomial(1, generator=generator)[:, 0]


# %% own="one more token"
class Writer:
    """Goes on with a text, token by token."""

    def __init__(self, model, stop, generator, settings):
        self.model, self.stop = model, stop
        self.generator, self.settings = generator, settings

    def token(self, ids):
        """The next token of each row."""
        logits = self.model(ids[:, -self.model.max_length :])
        return sample_token(logits[:, -1], *self.settings, self.generator)

    def write(self, ids, count):
        """At most so many tokens more."""
        over = torch.zeros(len(ids), dtype=torch.bool)
        while count > 0 and not bool(over.all()):
            token = self.token(ids)
            if self.stop is not None:
                token = torch.where(over, torch.full_like(token, self.stop), token)
                over = over | token.eq(self.stop)
            ids = torch.hstack([ids, token[:, None]])
            count -= 1
        return ids


# %% exercise="generate"
def generate(
    model, ids, max_new_tokens, temperature=1.0, top_k=None, top_p=None, stop=None, seed=None
):
    refuse(max_new_tokens < 0, "max_new_tokens must not be negative")
    refuse(ids.shape[1] == 0, "ids must hold a token")
    generator = None
    if seed is not None:
        generator = torch.Generator(device=ids.device)
        generator.manual_seed(seed)
    with torch.no_grad():
        writer = Writer(model, stop, generator, (temperature, top_k, top_p))
        return writer.write(ids, max_new_tokens)


# %% exercise="attend_cached"
def attend_cached(attention, x, cache=None):
    q, *new = queries_keys_values(attention, x)
    if cache is not None:
        old = cache.keys, cache.values
        new = [torch.cat(pair, dim=2) for pair in zip(old, new, strict=True)]
    keys, values = new
    return attention.out_proj(joined(weights_of(q, keys) @ values)), LayerCache(keys, values)


# %% own="a block with other functions in place of its parts"
def through(block, x, attention, feed_forward):
    for part, norm in ((attention, block.norm_1), (feed_forward, block.norm_2)):
        x = x + part(norm(x)) if isinstance(block, PreNormBlock) else norm(x + part(x))
    return x


def quiet(feed_forward):
    """The network without dropout."""
    return lambda x: feed_forward.w_2(gelu(feed_forward.w_1(x)))


# %% exercise="cached_forward"
def cached_forward(model, ids, cache=None):
    x = embedded(model, ids, 0 if cache is None else cache.past)
    caches = []

    def attend(number):
        def part(x):
            old = None if cache is None else cache.layers[number]
            value, new_cache = attend_cached(model.blocks[number].attention, x, old)
            caches.append(new_cache)
            return value

        return part

    for number, block in enumerate(model.blocks):
        x = through(block, x, attend(number), quiet(block.feed_forward))
    return head(model, model.final_norm(x)), KVCache(caches)


# %% own="rows with separators"
def row_of(first, middle, second, last):
    """START, a text, a separator, a text, and what closes the row."""
    refuse(len(first) == 0 or len(second) == 0, "a text is empty")
    return [START, *first, middle, *second, last]


# %% exercise="prompt_and_response"
def prompt_and_response(prompt, response):
    ids = row_of(prompt, DELIMITER, response, END)
    silent = 2 + len(prompt)
    return ids, [False] * silent + [True] * (len(ids) - silent)


# %% exercise="entailment_input"
def entailment_input(premise, hypothesis):
    return row_of(premise, DELIMITER, hypothesis, EXTRACT)


# %% exercise="similarity_inputs"
def similarity_inputs(first, second):
    both = [first, second]
    return [row_of(both[i], DELIMITER, both[1 - i], EXTRACT) for i in range(2)]


# %% exercise="choice_inputs"
def choice_inputs(context, answers):
    refuse(not answers, "there are no answers")
    return [row_of(context, DELIMITER, answer, EXTRACT) for answer in answers]


# %% exercise="GPTClassifier"
class GPTClassifier(nn.Module):
    def __init__(self, gpt, num_labels, dropout=0.1):
        super().__init__()
        self.gpt = gpt
        self.classifier = nn.Linear(gpt.token.embedding_dim, num_labels)
        self.drop = nn.Dropout(dropout)

    def forward(self, ids):
        found = ids.eq(EXTRACT)
        refuse(bool(found.sum(1).ne(1).any()), "each row has one EXTRACT")
        hidden = self.gpt.features(ids)
        places = found.long().argmax(1)
        read = hidden[torch.arange(len(ids)), places]
        return self.classifier(self.drop(read)), head(self.gpt, hidden)


# %% exercise="joint_loss"
def joint_loss(scores, labels, logits, ids, weight=0.5):
    refuse(weight < 0, "weight must not be negative")
    parts = (F.cross_entropy(scores, labels), language_model_loss(logits, ids, ids != PAD))
    return (parts[0] + weight * parts[1], *parts)


# %% exercise="build_prompt"
def build_prompt(task, examples, query, arrow=" =>"):
    def line(question, *answer):
        return question + " ".join([arrow, *answer])

    lines = [line(*example) for example in examples] + [line(query)]
    return "\n".join(([task] if task else []) + lines)


# %% exercise="answer_scores"
def answer_scores(model, prompt, answers, per_token=True):
    refuse(not prompt, "the prompt is empty")
    refuse(not answers or not all(answers), "there must be answers, and none may be empty")
    longest = max(map(len, answers))
    refuse(len(prompt) + longest > model.max_length, "the context is too short")

    def score(answer):
        ids = torch.tensor([[*prompt, *answer]])
        said = next_log_probs(model(ids), ids)[0, len(prompt) - 1 :]
        return said.mean() if per_token else said.sum()

    with torch.no_grad():
        return torch.stack([score(answer) for answer in answers])
