"""What earlier units of this chapter have built, as far as transformer-decoding needs it.

From solutions/transformer/parts.py and solutions/transformer/model.py. Nothing in this file is yours to write.
"""

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


PAD, BOS, EOS, UNK = 0, 1, 2, 3


class PositionalEncoding(nn.Module):
    """Add sinusoidal positional encodings, then apply dropout (Vaswani et al. 2017, 3.5, 5.4)."""

    def __init__(self, d_model: int, max_length: int = 5000, dropout: float = 0.0) -> None:
        """Compute the encodings of positions 0 .. max_length - 1, in float64 and rounded once."""
        super().__init__()
        wavelengths = 10000.0 ** (torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
        angles = torch.outer(torch.arange(max_length, dtype=torch.float64), 1.0 / wavelengths)
        pairs = torch.stack((angles.sin(), angles.cos()), dim=2)  # (max_length, ceil(D/2), 2)
        table = pairs.flatten(1)[:, :d_model].to(torch.get_default_dtype())  # (max_length, D)
        self.register_buffer("table", table, persistent=False)
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, x: Tensor, past: int = 0) -> Tensor:
        """x (B, T, D), whose first vector is at position ``past`` -> (B, T, D)."""
        end = past + x.shape[1]
        if end > len(self.table):
            raise ValueError(
                f"position {end - 1} has no code; the last one is {len(self.table) - 1}"
            )
        return self.dropout(x + self.table[past:end])  # (B, T, D)


class Embeddings(nn.Module):
    """Token embeddings times sqrt(d_model) (Vaswani et al. 2017, section 3.4).

    Submodule: ``lut`` = nn.Embedding(vocab_size, d_model), the embedding matrix.
    """

    def __init__(self, vocab_size: int, d_model: int) -> None:
        """Create ``lut`` and initialise its weight (V, D) from N(0, 1/D).

        Args:
            vocab_size: V, at least 1.
            d_model: D, at least 1.

        Raises:
            ValueError: if vocab_size < 1 or d_model < 1.
        """
        super().__init__()
        for name, value in (("vocab_size", vocab_size), ("d_model", d_model)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, but is {value}")
        self.d_model = d_model
        self.lut = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.lut.weight, std=1.0 / math.sqrt(d_model))

    def forward(self, ids: Tensor) -> Tensor:
        """Look up the embedding of every id and scale it.

        Args:
            ids: (B, T) int64.

        Returns:
            (B, T, D), the embedding of each id times sqrt(D).
        """
        return self.lut(ids) * math.sqrt(self.d_model)  # (B, T, D)


class MultiHeadAttention(nn.Module):
    """Multi-head attention in two stages (Vaswani et al. 2017, section 3.2.2).

    Submodules: ``q_proj``, ``k_proj``, ``v_proj``, ``out_proj``, each
    nn.Linear(d_model, d_model) with bias.
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        """Create the four projections.

        Args:
            d_model: D, the width of inputs and outputs.
            num_heads: H, a divisor of d_model.
            dropout: the probability of dropping an attention weight in training mode.

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        if num_heads < 1 or d_model % num_heads != 0:
            raise ValueError(f"d_model={d_model} can't be split into {num_heads} equal heads")
        self.num_heads = num_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def project(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the keys and values of all heads.

        Args:
            key: (B, Tk, D).
            value: (B, Tk, D).

        Returns:
            The keys k_proj(key) and the values v_proj(value), both split into heads,
            (B, H, Tk, D/H).
        """
        batch, length, width = key.shape
        heads = (batch, length, self.num_heads, width // self.num_heads)
        keys = self.k_proj(key).reshape(heads).transpose(1, 2)  # (B, H, Tk, D/H)
        values = self.v_proj(value).reshape(heads).transpose(1, 2)  # (B, H, Tk, D/H)
        return keys, values

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Let every query attend to keys and values that are already projected.

        Args:
            query: (B, Tq, D), not projected yet.
            keys: (B, H, Tk, D/H), from ``project``.
            values: (B, H, Tk, D/H), from ``project``.
            mask: bool (Tq, Tk), (1, Tq, Tk), (B, Tq, Tk) or (B, 1, Tk), True = may attend; the
                same for all heads. Every query may attend to at least one key. None: to all keys.

        Returns:
            (B, Tq, D).
        """
        batch, length, width = query.shape
        heads = (batch, length, self.num_heads, width // self.num_heads)
        queries = self.q_proj(query).reshape(heads).transpose(1, 2)  # (B, H, Tq, D/H)
        scores = queries @ keys.transpose(-2, -1) / math.sqrt(queries.shape[-1])  # (B, H, Tq, Tk)
        if mask is not None:
            if mask.dim() == 3:
                mask = mask.unsqueeze(1)  # (B, 1, Tq, Tk) or (B, 1, 1, Tk)
            # Not -inf: a query that may attend to nothing would become NaN and spread.
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        attn_weights = self.dropout(torch.softmax(scores, dim=-1))  # (B, H, Tq, Tk)
        if mask is not None:
            attn_weights = attn_weights.masked_fill(~mask, 0.0)  # such a query gets no weights
        merged = (attn_weights @ values).transpose(1, 2).reshape(batch, length, width)  # (B, Tq, D)
        return self.out_proj(merged)  # (B, Tq, D)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Project keys and values, and attend.

        Args:
            query: (B, Tq, D).
            key: (B, Tk, D).
            value: (B, Tk, D).
            mask: as for ``attend``.

        Returns:
            (B, Tq, D).
        """
        keys, values = self.project(key, value)  # (B, H, Tk, D/H) each
        return self.attend(query, keys, values, mask)  # (B, Tq, D)


def pad_mask(ids: Tensor, pad: int = PAD) -> Tensor:
    """Which tokens may be attended to: the real ones.

    Args:
        ids: (B, T) int64.
        pad: the id that marks padding.

    Returns:
        (B, 1, T) bool, True at real tokens; the same for every query.
    """
    return (ids != pad).unsqueeze(1)  # (B, 1, T)


def subsequent_mask(size: int) -> Tensor:
    """The causal mask: each position may attend to itself and to earlier ones.

    Args:
        size: the number of positions, at least 1.

    Returns:
        (1, size, size) bool; entry [0, i, j] is True if j <= i.

    Raises:
        ValueError: if size < 1.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, but is {size}")
    return torch.ones(1, size, size, dtype=torch.bool).tril()  # (1, size, size)


def make_std_mask(target: Tensor, pad: int = PAD) -> Tensor:
    """The mask of a target: each position may attend to real tokens, but not to later ones.

    Args:
        target: (B, U) int64.
        pad: the id that marks padding.

    Returns:
        (B, U, U) bool; entry [b, i, j] is True if j <= i and target[b, j] is a real token.
    """
    earlier = subsequent_mask(target.shape[1]).to(target.device)  # (1, U, U)
    return pad_mask(target, pad) & earlier  # (B, U, U)


class LayerNorm(nn.Module):
    """Layer normalisation over the last axis (Ba et al. 2016, section 3.1).

    Parameters: ``gamma`` (d_model,), initially ones; ``beta`` (d_model,), initially zeros.
    """

    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        """Create ``gamma`` and ``beta``.

        Args:
            d_model: D, the size of the last axis, at least 1.
            eps: added to the variance, inside the root.

        Raises:
            ValueError: if d_model < 1.
        """
        super().__init__()
        if d_model < 1:
            raise ValueError(f"d_model must be at least 1, but is {d_model}")
        self.eps = eps
        self.gamma = nn.Parameter(torch.ones(d_model))
        self.beta = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise every vector to mean 0 and variance 1, then scale and shift.

        Args:
            x: (..., D).

        Returns:
            (..., D), gamma (x - mean) / sqrt(variance + eps) + beta, with mean and biased variance
            over the last axis.

        Raises:
            ValueError: if the last axis of x is not ``d_model`` long.
        """
        if x.shape[-1] != len(self.gamma):
            raise ValueError(f"x must be {len(self.gamma)} wide, but is {x.shape[-1]} wide")
        mean = x.mean(dim=-1, keepdim=True)  # (..., 1)
        variance = x.var(dim=-1, unbiased=False, keepdim=True)  # (..., 1)
        normalised = (x - mean) / torch.sqrt(variance + self.eps)  # (..., D)
        return self.gamma * normalised + self.beta  # (..., D)


class PositionwiseFeedForward(nn.Module):
    """The same two-layer network at every position (Vaswani et al. 2017, section 3.3).

    Submodules: ``w_1`` = nn.Linear(d_model, d_ff); ``w_2`` = nn.Linear(d_ff, d_model).
    """

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.0) -> None:
        """Create ``w_1`` and ``w_2``.

        Args:
            d_model: D.
            d_ff: F, the width of the inner layer.
            dropout: acts on the inner layer, after the ReLU, in training mode.
        """
        super().__init__()
        self.w_1 = nn.Linear(d_model, d_ff)
        self.w_2 = nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Transform every position by itself.

        Args:
            x: (..., D).

        Returns:
            (..., D), w_2(dropout(relu(w_1(x)))).
        """
        inner = torch.relu(self.w_1(x))  # (..., F)
        return self.w_2(self.dropout(inner))  # (..., D)


class SublayerConnection(nn.Module):
    """A residual connection and a norm around a sub-layer (Vaswani et al. 2017; Xiong et al. 2020).

    Submodule: ``norm`` = your LayerNorm(d_model).
    """

    def __init__(self, d_model: int, dropout: float = 0.0, norm_first: bool = False) -> None:
        """Create ``norm``.

        Args:
            d_model: D.
            dropout: acts on the sub-layer's output, in training mode.
            norm_first: False: norm after the sum (post-norm); True: before the sub-layer
                (pre-norm).
        """
        super().__init__()
        self.norm = LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)
        self.norm_first = norm_first

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply the sub-layer, the residual connection and the norm, in the chosen order.

        Args:
            x: (B, T, D).
            sublayer: any function or module from (B, T, D) to (B, T, D); called once.

        Returns:
            (B, T, D): norm(x + dropout(sublayer(x))), or with norm_first
            x + dropout(sublayer(norm(x))).
        """
        if self.norm_first:
            return x + self.dropout(sublayer(self.norm(x)))  # (B, T, D)
        return self.norm(x + self.dropout(sublayer(x)))  # (B, T, D)


def clones(module: nn.Module, n: int) -> nn.ModuleList:
    """Make n independent copies of a module.

    Args:
        module: the module to copy; it is not part of the result.
        n: how many copies, at least 1.

    Returns:
        A list of n modules with equal values that share no parameter with each other or with the
        original.

    Raises:
        ValueError: if n < 1.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, but is {n}")
    return nn.ModuleList(copy.deepcopy(module) for _ in range(n))


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward network, each in its connection (Vaswani et al. 2017, 3.1).

    Submodules: ``self_attn`` = MultiHeadAttention, ``feed_forward`` = PositionwiseFeedForward,
    ``sublayer`` = nn.ModuleList of two SublayerConnections, in the order of use.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout: float = 0.0,
        norm_first: bool = False,
    ) -> None:
        """Create the submodules.

        Args:
            d_model: D.
            num_heads: H, a divisor of D, of each attention.
            d_ff: F.
            dropout: of attention weights, feed-forward network and connections.
            norm_first: the order of the norms, as for SublayerConnection.

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        self.self_attn = MultiHeadAttention(d_model, num_heads, dropout)
        self.feed_forward = PositionwiseFeedForward(d_model, d_ff, dropout)
        self.sublayer = clones(SublayerConnection(d_model, dropout, norm_first), 2)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Let every position attend to all others, then transform each by itself.

        Args:
            x: (B, S, D).
            mask: as for MultiHeadAttention, usually (B, 1, S).

        Returns:
            (B, S, D).
        """
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))  # (B, S, D)
        return self.sublayer[1](x, self.feed_forward)  # (B, S, D)


class Encoder(nn.Module):
    """A stack of encoder layers (Vaswani et al. 2017, section 3.1).

    Submodules: ``layers`` = nn.ModuleList of num_layers EncoderLayers; only with norm_first also
    ``norm`` = LayerNorm(d_model), which acts on the output of the last layer.
    """

    def __init__(
        self,
        num_layers: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout: float = 0.0,
        norm_first: bool = False,
    ) -> None:
        """Create the layers, and with norm_first the final norm.

        Args:
            num_layers: N, at least 1.
            d_model: D.
            num_heads: H, a divisor of D, of each attention.
            d_ff: F.
            dropout: of attention weights, feed-forward network and connections.
            norm_first: the order of the norms in the layers, as for SublayerConnection.

        Raises:
            ValueError: if num_layers < 1 or num_heads does not divide d_model.
        """
        super().__init__()
        layer = EncoderLayer(d_model, num_heads, d_ff, dropout, norm_first)
        self.layers = clones(layer, num_layers)
        # Post-norm layers end with a norm already.
        self.norm = LayerNorm(d_model) if norm_first else None

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pass x through all layers.

        Args:
            x: (B, S, D).
            mask: the same for every layer, as for EncoderLayer.

        Returns:
            (B, S, D), the memory.
        """
        for layer in self.layers:
            x = layer(x, mask)  # (B, S, D)
        return x if self.norm is None else self.norm(x)  # (B, S, D)


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention, feed-forward network (Vaswani et al. 2017, 3.1).

    Submodules: ``self_attn`` and ``src_attn`` = MultiHeadAttention, ``feed_forward`` =
    PositionwiseFeedForward, ``sublayer`` = nn.ModuleList of three SublayerConnections, in the order
    of use.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout: float = 0.0,
        norm_first: bool = False,
    ) -> None:
        """Create the submodules.

        Args:
            d_model: D.
            num_heads: H, a divisor of D, of each attention.
            d_ff: F.
            dropout: of attention weights, feed-forward network and connections.
            norm_first: the order of the norms, as for SublayerConnection.

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        self.self_attn = MultiHeadAttention(d_model, num_heads, dropout)
        self.src_attn = MultiHeadAttention(d_model, num_heads, dropout)
        self.feed_forward = PositionwiseFeedForward(d_model, d_ff, dropout)
        self.sublayer = clones(SublayerConnection(d_model, dropout, norm_first), 3)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
    ) -> Tensor:
        """Attend to the target so far, attend to the source, transform every position.

        Args:
            x: (B, U, D).
            memory: (B, S, D), the encoder's output; used as it is, without a norm.
            src_mask: which source positions may be attended to, usually (B, 1, S).
            tgt_mask: which target positions may be attended to, usually (B, U, U).

        Returns:
            (B, U, D).
        """
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, tgt_mask))  # (B, U, D)
        x = self.sublayer[1](x, lambda x: self.src_attn(x, memory, memory, src_mask))  # (B, U, D)
        return self.sublayer[2](x, self.feed_forward)  # (B, U, D)


class Decoder(nn.Module):
    """A stack of decoder layers that all read the same memory (Vaswani et al. 2017, section 3.1).

    Submodules: ``layers`` = nn.ModuleList of num_layers DecoderLayers; only with norm_first also
    ``norm`` = LayerNorm(d_model), which acts on the output of the last layer.
    """

    def __init__(
        self,
        num_layers: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout: float = 0.0,
        norm_first: bool = False,
    ) -> None:
        """Create the layers, and with norm_first the final norm.

        Args:
            num_layers: N, at least 1.
            d_model: D.
            num_heads: H, a divisor of D, of each attention.
            d_ff: F.
            dropout: of attention weights, feed-forward network and connections.
            norm_first: the order of the norms in the layers, as for SublayerConnection.

        Raises:
            ValueError: if num_layers < 1 or num_heads does not divide d_model.
        """
        super().__init__()
        layer = DecoderLayer(d_model, num_heads, d_ff, dropout, norm_first)
        self.layers = clones(layer, num_layers)
        # Post-norm layers end with a norm already.
        self.norm = LayerNorm(d_model) if norm_first else None

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
    ) -> Tensor:
        """Pass x through all layers; each of them reads the whole memory.

        Args:
            x: (B, U, D).
            memory: (B, S, D).
            src_mask: the same for every layer, as for DecoderLayer.
            tgt_mask: the same for every layer, as for DecoderLayer.

        Returns:
            (B, U, D).
        """
        for layer in self.layers:
            x = layer(x, memory, src_mask, tgt_mask)  # (B, U, D)
        return x if self.norm is None else self.norm(x)  # (B, U, D)


class Generator(nn.Module):
    """From the decoder's vectors to log-probabilities of tokens (Vaswani et al. 2017, 3.4).

    Submodule: ``proj`` = nn.Linear(d_model, vocab_size).
    """

    def __init__(self, d_model: int, vocab_size: int) -> None:
        """Create ``proj``."""
        super().__init__()
        self.proj = nn.Linear(d_model, vocab_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute the log-probability of every token of the vocabulary.

        Args:
            hidden: (..., D).

        Returns:
            (..., V), the logarithm of the probability of each token.
        """
        return torch.log_softmax(self.proj(hidden), dim=-1)  # (..., V)


class EncoderDecoder(nn.Module):
    """The whole Transformer (Vaswani et al. 2017, section 3).

    Submodules: ``src_embed`` and ``tgt_embed`` = Embeddings; ``position`` = PositionalEncoding, the
    same for both sides; ``encoder`` = Encoder; ``decoder`` = Decoder; ``generator`` = Generator.
    """

    def __init__(
        self,
        src_vocab_size: int,
        tgt_vocab_size: int,
        num_layers: int = 6,
        d_model: int = 512,
        d_ff: int = 2048,
        num_heads: int = 8,
        dropout: float = 0.1,
        norm_first: bool = False,
        max_length: int = 5000,
    ) -> None:
        """Create the submodules.

        Args:
            src_vocab_size: size of the source vocabulary.
            tgt_vocab_size: size of the target vocabulary.
            num_layers: N, of each stack.
            d_model: D.
            d_ff: F.
            num_heads: H.
            dropout: of ``position`` and of both stacks.
            norm_first: the order of the norms, as for SublayerConnection.
            max_length: the number of positions that have an encoding.

        Raises:
            ValueError: if a part can't be created with these sizes.
        """
        super().__init__()
        self.src_embed = Embeddings(src_vocab_size, d_model)
        self.tgt_embed = Embeddings(tgt_vocab_size, d_model)
        self.position = PositionalEncoding(d_model, max_length, dropout)
        self.encoder = Encoder(num_layers, d_model, num_heads, d_ff, dropout, norm_first)
        self.decoder = Decoder(num_layers, d_model, num_heads, d_ff, dropout, norm_first)
        self.generator = Generator(d_model, tgt_vocab_size)

    def encode(self, src: Tensor, src_mask: Tensor | None = None) -> Tensor:
        """Encode the source.

        Args:
            src: (B, S) int64.
            src_mask: as for Encoder.

        Returns:
            The memory (B, S, D).
        """
        return self.encoder(self.position(self.src_embed(src)), src_mask)  # (B, S, D)

    def decode(
        self, memory: Tensor, src_mask: Tensor | None, tgt: Tensor, tgt_mask: Tensor | None
    ) -> Tensor:
        """Decode the target so far, reading the memory.

        Args:
            memory: (B, S, D).
            src_mask: as for Decoder.
            tgt: (B, U) int64.
            tgt_mask: as for Decoder.

        Returns:
            (B, U, D), the input of the generator.
        """
        x = self.position(self.tgt_embed(tgt))  # (B, U, D)
        return self.decoder(x, memory, src_mask, tgt_mask)  # (B, U, D)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """The log-probabilities of the next token after every token of the target.

        Args:
            src: (B, S) int64, padded with PAD.
            tgt: (B, U) int64, begins with BOS, padded with PAD.

        Returns:
            (B, U, V); those at position t depend on tgt[:, : t + 1] only.
        """
        src_mask = pad_mask(src)  # (B, 1, S)
        memory = self.encode(src, src_mask)  # (B, S, D)
        hidden = self.decode(memory, src_mask, tgt, make_std_mask(tgt))  # (B, U, D)
        return self.generator(hidden)  # (B, U, V)
