"""The course's own parts, for what you have not written before gpt-transfer.

From solutions/gpt/model.py and solutions/gpt/training.py and solutions/gpt/generation.py.
gpt-mine.ipynb takes them, and yours wherever there is one.
"""

# What each unit asks for.
EXERCISES = {
    "gpt-model": [
        "causal_mask",
        "window_mask",
        "CausalSelfAttention",
        "gelu",
        "FeedForward",
        "PostNormBlock",
        "PreNormBlock",
        "GPT",
    ],
    "gpt-training": [
        "init_weights",
        "count_parameters",
        "log_likelihood",
        "language_model_loss",
        "sample_blocks",
        "decay_groups",
        "adamw_step",
        "cosine_lr",
        "train",
    ],
    "gpt-generation": [
        "scale_temperature",
        "keep_top_k",
        "keep_top_p",
        "sample_token",
        "generate",
        "attend_cached",
        "cached_forward",
    ],
    "gpt-transfer": [
        "rename_parameters",
        "prompt_and_response",
        "entailment_input",
        "similarity_inputs",
        "choice_inputs",
        "GPTClassifier",
        "joint_loss",
        "build_prompt",
        "answer_scores",
    ],
}

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def causal_mask(length: int, past: int = 0) -> Tensor:
    """Which positions each query may attend to (Vaswani et al. 2017, section 3.2.3).

    Args:
        length: T, how many queries, at least 1.
        past: P, how many keys stand before the first query, at least 0.

    Returns:
        (T, P + T) bool: row i is the query at P + i; True at the columns 0 .. P + i.

    Raises:
        ValueError: if length < 1 or past < 0.
    """
    if length < 1:
        raise ValueError(f"length must be at least 1, but is {length}")
    if past < 0:
        raise ValueError(f"past must be at least 0, but is {past}")
    rows = torch.arange(past, past + length).unsqueeze(1)  # (T, 1)
    columns = torch.arange(past + length)  # (P + T,)
    return columns <= rows  # (T, P + T)


class CausalSelfAttention(nn.Module):
    """Every token attends to itself and to those before it (Radford et al. 2018, section 3.1).

    Submodules: ``qkv`` = nn.Linear(d_model, 3 d_model), queries, keys and values in this order;
    ``out_proj`` = nn.Linear(d_model, d_model). Attribute: ``num_heads``.
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        """Create both linear layers.

        Args:
            d_model: D.
            num_heads: H, a divisor of d_model.
            dropout: acts on the weights and on the result, in training mode.

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        if num_heads < 1 or d_model % num_heads != 0:
            raise ValueError(f"a width of {d_model} can't be split into {num_heads} equal heads")
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Attend to the positions up to each one's own.

        Args:
            x: (B, T, D).

        Returns:
            (B, T, D).
        """
        parts = self.qkv(x).chunk(3, dim=-1)  # 3 x (B, T, D)
        heads = [part.unflatten(-1, (self.num_heads, -1)) for part in parts]  # 3 x (B, T, H, D/H)
        queries, keys, values = (part.transpose(1, 2) for part in heads)  # (B, H, T, D/H) each
        scores = queries @ keys.transpose(2, 3) / math.sqrt(queries.shape[3])  # (B, H, T, T)
        visible = causal_mask(x.shape[1]).to(x.device)  # (T, T)
        scores = scores.masked_fill(~visible, -math.inf)  # (B, H, T, T)
        attn_weights = self.dropout(torch.softmax(scores, dim=3))  # (B, H, T, T)
        mixed = (attn_weights @ values).transpose(1, 2).flatten(2)  # (B, T, D)
        return self.dropout(self.out_proj(mixed))  # (B, T, D)


def gelu(x: Tensor) -> Tensor:
    """The Gaussian error linear unit, by tanh (Hendrycks and Gimpel 2016, section 2).

    Args:
        x: any shape.

    Returns:
        The same shape: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), as GPT-1 and GPT-2
        have it.
    """
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them, four times as wide inside.

    Submodules: ``w_1`` = nn.Linear(d_model, 4 d_model), ``w_2`` = nn.Linear(4 d_model, d_model)
    (Radford et al. 2018, section 4.1).
    """

    def __init__(self, d_model: int, dropout: float = 0.0) -> None:
        """Create both linear layers.

        Args:
            d_model: D.
            dropout: acts on the result, in training mode.
        """
        super().__init__()
        self.w_1 = nn.Linear(d_model, 4 * d_model)
        self.w_2 = nn.Linear(4 * d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network to every position by itself.

        Args:
            x: (..., D).

        Returns:
            (..., D), dropout(w_2(gelu(w_1(x)))).
        """
        inside = gelu(self.w_1(x))  # (..., 4 D)
        return self.dropout(self.w_2(inside))  # (..., D)


class PostNormBlock(nn.Module):
    """A block of GPT-1: the norm stands after each sum (Radford et al. 2018, section 4.1).

    Submodules: ``attention`` = CausalSelfAttention, ``norm_1`` = nn.LayerNorm(d_model),
    ``feed_forward`` = FeedForward, ``norm_2`` = nn.LayerNorm(d_model); eps is 1e-5.
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        """Create the submodules.

        Args:
            d_model: D.
            num_heads: H, a divisor of d_model.
            dropout: of the attention and of the feed-forward network.

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        self.attention = CausalSelfAttention(d_model, num_heads, dropout)
        self.norm_1 = nn.LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model, dropout)
        self.norm_2 = nn.LayerNorm(d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then the feed-forward network; add and norm after each.

        Args:
            x: (B, T, D).

        Returns:
            (B, T, D).
        """
        x = self.norm_1(x + self.attention(x))  # (B, T, D)
        return self.norm_2(x + self.feed_forward(x))  # (B, T, D)


class PreNormBlock(nn.Module):
    """A block of GPT-2: the norm stands inside each branch (Radford et al. 2019, section 2.3).

    Submodules: ``attention`` = CausalSelfAttention, ``norm_1`` = nn.LayerNorm(d_model),
    ``feed_forward`` = FeedForward, ``norm_2`` = nn.LayerNorm(d_model); eps is 1e-5.
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        """Create the submodules.

        Args:
            d_model: D.
            num_heads: H, a divisor of d_model.
            dropout: of the attention and of the feed-forward network.

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        self.attention = CausalSelfAttention(d_model, num_heads, dropout)
        self.norm_1 = nn.LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model, dropout)
        self.norm_2 = nn.LayerNorm(d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then the feed-forward network, each of what its norm makes of x; add.

        Args:
            x: (B, T, D).

        Returns:
            (B, T, D), the sum, which nothing has normalised.
        """
        x = x + self.attention(self.norm_1(x))  # (B, T, D)
        return x + self.feed_forward(self.norm_2(x))  # (B, T, D)


class GPT(nn.Module):
    """A language model of causal blocks (Radford et al. 2018, 3.1; Radford et al. 2019, 2.3).

    Submodules: ``token`` = nn.Embedding(vocab_size, d_model), also the output matrix; ``position``
        =
    nn.Embedding(max_length, d_model); ``blocks`` = nn.ModuleList of PreNormBlocks or
    PostNormBlocks; ``final_norm`` = nn.LayerNorm(d_model) with pre-norm, else nn.Identity().
    Attribute: ``max_length``.
    """

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
        """Create the submodules.

        Args:
            vocab_size: V.
            max_length: C, the longest input.
            d_model: D.
            num_layers: N.
            num_heads: H, a divisor of d_model.
            dropout: of the embeddings and of all blocks.
            norm_first: PreNormBlocks and a final norm (GPT-2), or PostNormBlocks and none (GPT-1).

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        block = PreNormBlock if norm_first else PostNormBlock
        self.max_length = max_length
        self.token = nn.Embedding(vocab_size, d_model)
        self.position = nn.Embedding(max_length, d_model)
        self.blocks = nn.ModuleList(block(d_model, num_heads, dropout) for _ in range(num_layers))
        self.final_norm = nn.LayerNorm(d_model) if norm_first else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        for embedding in (self.token, self.position):  # so that the tied logits begin near 0
            nn.init.normal_(embedding.weight, std=0.02)

    def features(self, ids: Tensor) -> Tensor:
        """The vectors of which the logits are made.

        Args:
            ids: (B, T) int64.

        Returns:
            (B, T, D): embeddings and positions, through all blocks and the final norm.

        Raises:
            ValueError: if T is larger than max_length; the message names both.
        """
        length = ids.shape[1]
        if length > self.max_length:
            raise ValueError(f"{length} tokens are too many for a max_length of {self.max_length}")
        positions = torch.arange(length, device=ids.device)  # (T,)
        x = self.dropout(self.token(ids) + self.position(positions))  # (B, T, D)
        for block in self.blocks:
            x = block(x)  # (B, T, D)
        return self.final_norm(x)  # (B, T, D)

    def forward(self, ids: Tensor) -> Tensor:
        """Score every token as the next one, after every position.

        Args:
            ids: (B, T) int64.

        Returns:
            (B, T, V), the logits: features times the transposed embedding matrix.

        Raises:
            ValueError: if T is larger than max_length.
        """
        return self.features(ids) @ self.token.weight.T  # (B, T, V)


def init_weights(model: GPT) -> GPT:
    """Draw all weights anew, in place (Radford et al. 2018, section 4.1; 2019, section 2.3).

    Args:
        model: a GPT of N blocks.

    Returns:
        The same model. Weights of linear layers and embeddings come from N(0, 0.02^2); with a
        final norm (GPT-2) ``out_proj.weight`` and ``w_2.weight`` from N(0, 0.02^2 / (2 N)). Biases
        are 0; norms begin with weight 1 and bias 0.
    """
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
        if isinstance(module, (nn.Linear, nn.LayerNorm)):
            nn.init.zeros_(module.bias)
    if isinstance(model.final_norm, nn.LayerNorm):
        # 2 N branches add to the sum; so scaled, it stays as large as one of them would be.
        small = 0.02 / math.sqrt(2 * len(model.blocks))
        for block in model.blocks:
            nn.init.normal_(block.attention.out_proj.weight, std=small)
            nn.init.normal_(block.feed_forward.w_2.weight, std=small)
    return model


def log_likelihood(logits: Tensor, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """The log-probability of each row, token after token (Radford et al. 2018, equation 1).

    Args:
        logits: (B, T, V); those at position t are for the token at t + 1.
        ids: (B, T) int64.
        mask: (B, T) bool, True at the targets that count; None: all count. The first token is
            never a target.

    Returns:
        (B,): the sum over t = 1 .. T - 1 with mask of log P(ids[:, t] | the tokens before it).

    Raises:
        ValueError: if T < 2.
    """
    if ids.shape[1] < 2:
        raise ValueError("a row of fewer than two tokens has no target")
    targets = ids[:, 1:].unsqueeze(2)  # (B, T - 1, 1)
    log_probs = torch.log_softmax(logits[:, :-1], dim=2)  # (B, T - 1, V)
    terms = log_probs.gather(2, targets).squeeze(2)  # (B, T - 1)
    if mask is not None:
        terms = terms.masked_fill(~mask[:, 1:], 0.0)  # (B, T - 1)
    return terms.sum(dim=1)  # (B,)


def language_model_loss(logits: Tensor, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """The mean of -log P of the targets that count, over the whole batch.

    Args:
        logits: (B, T, V); those at position t are for the token at t + 1.
        ids: (B, T) int64.
        mask: (B, T) bool, True at the targets that count; None: all count.

    Returns:
        A scalar; 0 if no target counts.

    Raises:
        ValueError: if T < 2.
    """
    total = log_likelihood(logits, ids, mask).sum()  # scalar
    count = ids[:, 1:].numel() if mask is None else mask[:, 1:].sum().clamp(min=1)
    return -total / count  # scalar


def sample_blocks(stream: Tensor, length: int, batch_size: int) -> tuple[Tensor, Tensor]:
    """Contiguous blocks of a long text, from anywhere in it (Radford et al. 2018, section 4.1).

    Args:
        stream: (M,) int64, the whole text.
        length: T, at least 1.
        batch_size: B, at least 1.

    Returns:
        inputs and targets, both (B, T) int64: each row begins at a position drawn evenly from all
        M - T, and its targets are the same block one token further.

    Raises:
        ValueError: if length or batch_size is smaller than 1, or M < T + 1.
    """
    for name, value in (("length", length), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, but is {value}")
    if len(stream) < length + 1:
        raise ValueError(f"a block of {length} and its last target need more than {len(stream)}")
    starts = torch.randint(len(stream) - length, (batch_size, 1), device=stream.device)  # (B, 1)
    positions = starts + torch.arange(length, device=stream.device)  # (B, T)
    return stream[positions], stream[positions + 1]  # (B, T) each


def decay_groups(
    model: nn.Module, weight_decay: float
) -> list[dict[str, list[nn.Parameter] | float]]:
    """Which parameters shrink (Radford et al. 2018, section 4.1: all non bias or gain weights).

    Args:
        model: any module.
        weight_decay: of the first group, at least 0.

    Returns:
        Two groups as PyTorch's optimisers take them, {"params": ..., "weight_decay": ...}: the
        parameters with two or more axes with weight_decay, all others with 0; each parameter that
        requires a gradient once, in the order of model.parameters().

    Raises:
        ValueError: if weight_decay < 0.
    """
    if weight_decay < 0:
        raise ValueError(f"weight_decay must be at least 0, but is {weight_decay}")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]


def cosine_lr(
    step: int, max_lr: float, warmup_steps: int, total_steps: int, min_lr: float = 0.0
) -> float:
    """The learning rate of a step: linear warm-up, cosine decay (Radford et al. 2018, 4.1).

    Args:
        step: number of the step, from 1.
        max_lr: the learning rate at step ``warmup_steps``.
        warmup_steps: in how many steps the rate rises, from 0 to total_steps - 1.
        total_steps: the step from which on the rate is ``min_lr``.
        min_lr: the learning rate at the end.

    Returns:
        max_lr step / warmup_steps up to ``warmup_steps``, then min_lr + (max_lr - min_lr) (1 +
        cos(pi f)) / 2 with the fraction f = (step - warmup_steps) / (total_steps - warmup_steps),
        and min_lr from ``total_steps`` on.

    Raises:
        ValueError: if step < 1 or not 0 <= warmup_steps < total_steps.
    """
    if step < 1:
        raise ValueError(f"step must be at least 1, but is {step}")
    if not 0 <= warmup_steps < total_steps:
        raise ValueError(
            f"warmup_steps must be at least 0 and less than {total_steps}, but is {warmup_steps}"
        )
    if step <= warmup_steps:
        return max_lr * step / warmup_steps
    if step >= total_steps:
        return min_lr
    fraction = (step - warmup_steps) / (total_steps - warmup_steps)
    return min_lr + (max_lr - min_lr) * (1 + math.cos(math.pi * fraction)) / 2


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
    """Train a language model on a long text, in place (Radford et al. 2018, section 4.1).

    The numbers of AdamW and the norm to which gradients are cut are GPT-3's (Brown et al. 2020,
    appendix B).

    Args:
        model: ids (B, T) -> logits (B, T, V); put into training mode.
        stream: (M,) int64, the text.
        total_steps: how many.
        length: T, of a block.
        batch_size: B, blocks in a step.
        max_lr: the highest learning rate.
        warmup_steps: in how many steps the rate rises, fewer than ``total_steps``.
        weight_decay: of the parameters with two or more axes.
        clip: the largest norm of all gradients together.

    Returns:
        The loss of each step, before its update.
    """
    model.train()
    groups = decay_groups(model, weight_decay)
    optimiser = torch.optim.AdamW(groups, lr=max_lr, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(1, total_steps + 1):
        for group in optimiser.param_groups:
            group["lr"] = cosine_lr(step, max_lr, warmup_steps, total_steps)
        inputs, targets = sample_blocks(stream, length, batch_size)  # (B, T) each
        logits = model(inputs)  # (B, T, V)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())  # scalar
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimiser.step()
        losses.append(loss.item())
    return losses


PAD, START, DELIMITER, EXTRACT, END = 0, 1, 2, 3, 4


class TableModel(nn.Module):
    """A model without a network: the logits of the next token stand in a table.

    Which row is read depends on the token before, and, if the table has three axes, on the position t
    (from 0) where that token stands: ``table[previous]`` or ``table[t, previous]``. Positions beyond
    the table use its last one. ``max_length`` is the longest input.
    """

    def __init__(self, table: Tensor, max_length: int = 1024) -> None:
        """Keep ``table``: (V, V), previous token and next token; or (L, V, V), position first."""
        super().__init__()
        self.register_buffer("table", table)
        self.max_length = max_length

    def forward(self, ids: Tensor) -> Tensor:
        """ids (B, T) -> the logits (B, T, V) of the token after each of them."""
        size = ids.shape[1]
        if size > self.max_length:
            raise ValueError(
                f"this table reads at most {self.max_length} tokens, and these are {size}"
            )
        if self.table.dim() == 2:
            return self.table[ids]  # (B, T, V)
        rows = torch.arange(size, device=ids.device).clamp(max=len(self.table) - 1)  # (T,)
        return self.table[rows, ids]  # (B, T, V)


def scale_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Make a distribution sharper (below 1) or flatter (above 1).

    Args:
        logits: any shape.
        temperature: larger than 0.

    Returns:
        The same shape, logits / temperature.

    Raises:
        ValueError: if temperature <= 0.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be larger than 0, but is {temperature}")
    return logits / temperature


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Leave only the best tokens (Fan et al. 2018).

    Args:
        logits: (..., V).
        k: how many stay in each row, at least 1; all if there are no more than k.

    Returns:
        (..., V): the k largest of each row as they are, -inf in place of the others; entries equal
        to the k-th largest stay too.

    Raises:
        ValueError: if k < 1.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, but is {k}")
    best = logits.topk(min(k, logits.shape[-1]), dim=-1).values  # (..., k)
    return logits.masked_fill(logits < best[..., -1:], -math.inf)  # (..., V)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Leave the nucleus: few tokens with most of the probability (Holtzman et al. 2020, 3.1).

    Args:
        logits: (..., V).
        p: the probability that must stay, larger than 0 and at most 1.

    Returns:
        (..., V): of each row the smallest set of most probable tokens whose probabilities add up to
        at least p as they are, -inf in place of the others.

    Raises:
        ValueError: if p <= 0 or p > 1.
    """
    if not 0 < p <= 1:
        raise ValueError(f"p must be larger than 0 and at most 1, but is {p}")
    if p == 1:  # all tokens; a rounded sum might reach 1 before the last ones
        return logits.clone()
    sorted_logits, order = logits.sort(dim=-1, descending=True, stable=True)  # (..., V) each
    probabilities = torch.softmax(sorted_logits, dim=-1)  # (..., V)
    before = probabilities.cumsum(dim=-1) - probabilities  # (..., V), of all better tokens
    kept = sorted_logits.masked_fill(before >= p, -math.inf)  # (..., V)
    return torch.empty_like(logits).scatter(-1, order, kept)  # (..., V), in the old order


def sample_token(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Choose the next token of every row.

    Args:
        logits: (B, V).
        temperature: 0: the largest logit, without chance.
        top_k: how many tokens stay; None: all.
        top_p: how much probability stays, of what top_k left; None: all.
        generator: of the random numbers; None: PyTorch's global one.

    Returns:
        (B,) int64: one draw from the softmax of what temperature, top_k and top_p, in this order,
        make of each row; at temperature 0 the first of the largest logits.

    Raises:
        ValueError: if temperature < 0.
    """
    if temperature < 0:
        raise ValueError(f"temperature must be at least 0, but is {temperature}")
    if temperature == 0:
        return logits.argmax(dim=1)  # (B,)
    logits = scale_temperature(logits, temperature)  # (B, V)
    if top_k is not None:
        logits = keep_top_k(logits, top_k)  # (B, V)
    if top_p is not None:
        logits = keep_top_p(logits, top_p)  # (B, V)
    probabilities = torch.softmax(logits, dim=1)  # (B, V)
    return torch.multinomial(probabilities, 1, generator=generator).squeeze(1)  # (B,)


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
    """Go on writing, one token after the other.

    Args:
        model: ids (B, T) -> logits (B, T, V), with ``max_length``, the longest input; run in the
            mode in which it comes. It sees the last ``max_length`` tokens.
        ids: (B, T) int64, what is there already, at least one column.
        max_new_tokens: at least 0.
        temperature: as for ``sample_token``.
        top_k: as for ``sample_token``.
        top_p: as for ``sample_token``.
        stop: a row that has written it is filled with it; when all have, the writing ends.
        seed: of a generator of its own for all draws; None: the global generator.

    Returns:
        (B, T + n) int64: ids, and n <= max_new_tokens new columns. No gradient.

    Raises:
        ValueError: if max_new_tokens < 0, or ids has no column.
    """
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens must be at least 0, but is {max_new_tokens}")
    if ids.shape[1] < 1:
        raise ValueError("there must be at least one token to go on from")
    generator = None
    if seed is not None:
        generator = torch.Generator(device=ids.device).manual_seed(seed)
    stopped = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)  # (B,)
    with torch.no_grad():
        for _ in range(max_new_tokens):
            logits = model(ids[:, -model.max_length :])[:, -1]  # (B, V), after the last token
            token = sample_token(logits, temperature, top_k, top_p, generator)  # (B,)
            if stop is not None:
                token = token.masked_fill(stopped, stop)  # (B,)
                stopped = stopped | (token == stop)  # (B,)
            ids = torch.cat([ids, token.unsqueeze(1)], dim=1)  # (B, T + 1)
            if stop is not None and stopped.all():
                break
    return ids
