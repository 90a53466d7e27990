"""What earlier units of this chapter have built, as far as gpt-transfer needs it.

From solutions/gpt/model.py and solutions/gpt/training.py and solutions/gpt/generation.py. Nothing in this file is yours to write.
"""

import math

import torch
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
