"""What earlier units of this chapter have built, as far as bert-fine_tuning needs it.

From solutions/bert/model.py and solutions/bert/pretraining.py. Nothing in this file is yours to write.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def init_weights(model: nn.Module) -> nn.Module:
    """Draw all weights of linear layers and embeddings anew, in place, and return the model.

    Weights come from N(0, 0.02^2), biases are 0, and norms begin with weight 1 and bias 0 (Devlin
    et al. 2019, released code; it also cuts the normal distribution off at two deviations).
    """
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
        if isinstance(module, (nn.Linear, nn.LayerNorm)) and module.bias is not None:
            nn.init.zeros_(module.bias)
    return model


def gelu(x: Tensor) -> Tensor:
    """The Gaussian error linear unit (Hendrycks and Gimpel 2016, section 2).

    Args:
        x: any shape.

    Returns:
        The same shape: x Phi(x), with the distribution function Phi of the standard normal
        distribution, exactly (by erf), not by an approximation with tanh.
    """
    return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))


class BertEmbeddings(nn.Module):
    """The sum of three learned embeddings, normalised (Devlin et al. 2019, section 3, figure 2).

    Submodules: ``token`` = nn.Embedding(vocab_size, d_model), ``position`` =
    nn.Embedding(max_length, d_model), ``segment`` = nn.Embedding(type_vocab_size, d_model),
    ``norm`` = nn.LayerNorm(d_model, eps=1e-12).
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        max_length: int = 512,
        type_vocab_size: int = 2,
        dropout: float = 0.0,
    ) -> None:
        """Create the three embeddings and the norm.

        Args:
            vocab_size: V.
            d_model: D.
            max_length: how many positions have an embedding.
            type_vocab_size: how many segments have an embedding.
            dropout: acts on the result, in training mode.
        """
        super().__init__()
        self.token = nn.Embedding(vocab_size, d_model)
        self.position = nn.Embedding(max_length, d_model)
        self.segment = nn.Embedding(type_vocab_size, d_model)
        self.norm = nn.LayerNorm(d_model, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Look up token, position and segment, add the three, normalise.

        Args:
            input_ids: (B, T) int64.
            token_type_ids: (B, T) int64; None: segment 0 everywhere.

        Returns:
            (B, T, D), dropout(norm(token + position + segment)).

        Raises:
            ValueError: if T is larger than max_length.
        """
        length, positions = input_ids.shape[1], self.position.num_embeddings
        if length > positions:
            raise ValueError(f"the input has {length} tokens, but there are {positions} positions")
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)  # (B, T)
        x = self.token(input_ids) + self.segment(token_type_ids)  # (B, T, D)
        x = x + self.position.weight[:length]  # (B, T, D)
        return self.dropout(self.norm(x))  # (B, T, D)


class SelfAttention(nn.Module):
    """Every token attends to all real ones, left and right (Vaswani et al. 2017, section 3.2.2).

    Submodules: ``q_proj``, ``k_proj``, ``v_proj``, ``out_proj``, each nn.Linear(d_model, d_model)
    with bias.
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        """Create the four projections.

        Args:
            d_model: D.
            num_heads: H, a divisor of d_model.
            dropout: probability with which a weight is dropped in training mode.

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
        self.dropout = dropout

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend to all real tokens.

        Args:
            x: (B, T, D).
            mask: (B, T) bool, True where a real token stands; hides keys, not queries. None: all
                tokens are real.

        Returns:
            (B, T, D).
        """
        batch, length, width = x.shape
        heads = (batch, length, self.num_heads, width // self.num_heads)
        queries = self.q_proj(x).reshape(heads).transpose(1, 2)  # (B, H, T, D/H)
        keys = self.k_proj(x).reshape(heads).transpose(1, 2)  # (B, H, T, D/H)
        values = self.v_proj(x).reshape(heads).transpose(1, 2)  # (B, H, T, D/H)
        joined = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=None if mask is None else mask[:, None, None, :],  # (B, 1, 1, T)
            dropout_p=self.dropout if self.training else 0.0,
        )  # (B, H, T, D/H)
        return self.out_proj(joined.transpose(1, 2).reshape(batch, length, width))  # (B, T, D)


class BertLayer(nn.Module):
    """Self-attention and a feed-forward network, each with a residual connection and post-norm.

    As in Devlin et al. (2019), section 3, and Vaswani et al. (2017), section 3.1, with GELU for
    ReLU. Submodules: ``attention`` = SelfAttention, ``attention_norm`` and ``output_norm`` =
    nn.LayerNorm(d_model, eps=1e-12), ``w_1`` = nn.Linear(d_model, d_ff), ``w_2`` =
    nn.Linear(d_ff, d_model).
    """

    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout: float = 0.0) -> None:
        """Create the submodules.

        Args:
            d_model: D.
            num_heads: H, a divisor of d_model.
            d_ff: F.
            dropout: of the attention weights and of what each of the two parts returns.

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        self.attention = SelfAttention(d_model, num_heads, dropout)
        self.attention_norm = nn.LayerNorm(d_model, eps=1e-12)
        self.w_1 = nn.Linear(d_model, d_ff)
        self.w_2 = nn.Linear(d_ff, d_model)
        self.output_norm = nn.LayerNorm(d_model, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Let every token look at all, then transform each for itself.

        Args:
            x: (B, T, D).
            mask: (B, T) bool, True where a real token stands. None: everywhere.

        Returns:
            (B, T, D).
        """
        x = self.attention_norm(x + self.dropout(self.attention(x, mask)))  # (B, T, D)
        inner = gelu(self.w_1(x))  # (B, T, F)
        return self.output_norm(x + self.dropout(self.w_2(inner)))  # (B, T, D)


class BertModel(nn.Module):
    """Embeddings, layers and pooler (Devlin et al. 2019, section 3; pooler: released code).

    Submodules: ``embeddings`` = BertEmbeddings, ``layers`` = nn.ModuleList of BertLayers,
    ``pooler`` = nn.Linear(d_model, d_model).
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int = 768,
        num_layers: int = 12,
        num_heads: int = 12,
        d_ff: int = 3072,
        max_length: int = 512,
        type_vocab_size: int = 2,
        dropout: float = 0.1,
    ) -> None:
        """Create the submodules; the defaults are those of BERT-base.

        Args:
            vocab_size: V.
            d_model: D.
            num_layers: N.
            num_heads: H, a divisor of d_model.
            d_ff: F.
            max_length: how many positions have an embedding.
            type_vocab_size: how many segments have an embedding.
            dropout: of the embeddings and of all layers.

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        self.embeddings = BertEmbeddings(vocab_size, d_model, max_length, type_vocab_size, dropout)
        self.layers = nn.ModuleList(
            BertLayer(d_model, num_heads, d_ff, dropout) for _ in range(num_layers)
        )
        self.pooler = nn.Linear(d_model, d_model)
        init_weights(self)

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Encode a batch.

        Args:
            input_ids: (B, T) int64.
            token_type_ids: (B, T) int64; None: segment 0 everywhere.
            mask: (B, T) bool, True where a real token stands. None: everywhere.

        Returns:
            hidden (B, T, D), the output of the last layer, and pooled (B, D),
            tanh(pooler(hidden of the first token)).

        Raises:
            ValueError: if T is larger than max_length.
        """
        x = self.embeddings(input_ids, token_type_ids)  # (B, T, D)
        for layer in self.layers:
            x = layer(x, mask)  # (B, T, D)
        return x, torch.tanh(self.pooler(x[:, 0]))  # (B, T, D), (B, D)


IGNORE = -100  # no target here; PyTorch's losses leave it out
