"""The course's own parts, for what you have not written before bert-relatives.

From solutions/bert/model.py and solutions/bert/pretraining.py and solutions/bert/fine_tuning.py.
bert-mine.ipynb takes them, and yours wherever there is one.
"""

# What each unit asks for.
EXERCISES = {
    "bert-model": [
        "build_input",
        "gelu",
        "BertEmbeddings",
        "SelfAttention",
        "BertLayer",
        "BertModel",
        "count_parameters",
        "rename_parameters",
    ],
    "bert-pretraining": [
        "mask_tokens",
        "mask_whole_words",
        "masking_epochs",
        "next_sentence_pairs",
        "MaskedLanguageHead",
        "BertForPreTraining",
        "pretraining_loss",
        "pretraining_step",
        "pseudo_log_likelihood",
    ],
    "bert-fine_tuning": [
        "SequenceClassifier",
        "SpanFinder",
        "best_span",
        "align_labels",
        "Tagger",
        "word_tags",
        "crf_score",
        "crf_partition",
        "viterbi",
        "BiLSTMCRF",
    ],
    "bert-relatives": [
        "SharedEncoder",
        "permutation_masks",
        "RelativeAttention",
        "update_memory",
        "replace_tokens",
        "replaced_token_loss",
        "TwoDirections",
    ],
}

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


PAD, UNK, CLS, SEP, MASK = 0, 1, 2, 3, 4


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


SPECIAL = 5  # ids below it are special
IGNORE = -100  # no target here; PyTorch's losses leave it out


class MaskedLanguageHead(nn.Module):
    """From BERT's vectors to the logits of all tokens (Devlin et al. 2019, A.1 and released code).

    Parameters: ``bias`` (V,), zeros at first. Submodules: ``dense`` = nn.Linear(D, D), ``norm`` =
    nn.LayerNorm(D, eps=1e-12), ``token`` = the embedding that is given, the very same object.
    """

    def __init__(self, token: nn.Embedding) -> None:
        """Create ``dense``, ``norm`` and ``bias``, and share ``token``.

        Args:
            token: the model's embedding of tokens (V, D).
        """
        super().__init__()
        vocab_size, hidden = token.weight.shape
        self.dense = nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.token = token
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, hidden: Tensor) -> Tensor:
        """The logits of every token of the vocabulary.

        Args:
            hidden: (..., D).

        Returns:
            (..., V), norm(gelu(dense(hidden))) times the transposed embedding matrix, plus bias.
        """
        transformed = self.norm(gelu(self.dense(hidden)))  # (..., D)
        return transformed @ self.token.weight.T + self.bias  # (..., V)


class BertForPreTraining(nn.Module):
    """BERT with its two pre-training heads (Devlin et al. 2019, section 3.1).

    Submodules: ``bert`` = BertModel, ``mlm`` = MaskedLanguageHead on the model's token embedding,
    ``nsp`` = nn.Linear(d_model, 2).
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
        """Create the submodules; all arguments are BertModel's.

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
        self.bert = BertModel(
            vocab_size, d_model, num_layers, num_heads, d_ff, max_length, type_vocab_size, dropout
        )
        self.mlm = MaskedLanguageHead(self.bert.embeddings.token)
        self.nsp = nn.Linear(d_model, 2)
        init_weights(self.mlm.dense)
        init_weights(self.nsp)

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The logits of the tokens at every position, and of whether the second text follows.

        Args:
            input_ids: (B, T) int64.
            token_type_ids: (B, T) int64; None: segment 0 everywhere.
            mask: (B, T) bool, True where a real token stands. None: everywhere.

        Returns:
            The logits of the tokens (B, T, V), from ``hidden``, and of the two answers (B, 2), from
            ``pooled``.

        Raises:
            ValueError: if T is larger than max_length.
        """
        hidden, pooled = self.bert(input_ids, token_type_ids, mask)  # (B, T, D), (B, D)
        return self.mlm(hidden), self.nsp(pooled)  # (B, T, V), (B, 2)


def pseudo_log_likelihood(model: nn.Module, ids: Tensor) -> float:
    """How well each token fits all the others (Salazar et al. 2020, section 2).

    Args:
        model: ids (B, T) -> (mlm_logits (B, T, V), ...), in evaluation mode.
        ids: (T,) int64, one input with its special tokens.

    Returns:
        The sum over the ordinary tokens of the log-probability of the token, given the input with
        MASK in its place and all others as they are.

    Raises:
        ValueError: if there is no ordinary token.
    """
    positions = (ids >= SPECIAL).nonzero().squeeze(1)  # (n,)
    if len(positions) == 0:
        raise ValueError("the input holds special tokens only; there is nothing to score")
    rows = torch.arange(len(positions), device=ids.device)  # (n,)
    masked = ids.repeat(len(positions), 1)  # (n, T), a copy for each position
    masked[rows, positions] = MASK
    with torch.no_grad():
        logits = model(masked)[0][rows, positions]  # (n, V)
    log_probs = torch.log_softmax(logits, dim=-1)  # (n, V)
    return log_probs[rows, ids[positions]].sum().item()


def align_labels(word_labels: list[int], word_ids: list[int | None]) -> list[int]:
    """From a label for each word to one for each token (Devlin et al. 2019, section 5.3).

    Args:
        word_labels: the label of each word.
        word_ids: for each token the number of its word, from 0, or None for a special token.

    Returns:
        For each token the label of its word if it is the word's first token, else IGNORE.

    Raises:
        ValueError: if a word has no label.
    """
    labels, seen = [], set()
    for word in word_ids:
        if word is not None and not 0 <= word < len(word_labels):
            raise ValueError(f"word {word} has no label; there are {len(word_labels)}")
        labels.append(IGNORE if word is None or word in seen else word_labels[word])
        seen.add(word)
    return labels


class Tagger(nn.Module):
    """A label for every token (Devlin et al. 2019, section 5.3).

    Submodules: ``bert`` = the encoder that is given, ``classifier`` = nn.Linear(D, num_labels).
    """

    def __init__(self, bert: BertModel, num_labels: int, dropout: float = 0.1) -> None:
        """Keep the encoder and create ``classifier``.

        Args:
            bert: a BertModel.
            num_labels: L.
            dropout: acts on the hidden vectors, in training mode.
        """
        super().__init__()
        self.bert = bert
        self.classifier = init_weights(nn.Linear(bert.pooler.in_features, num_labels))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Score the labels of every token.

        Args:
            input_ids: (B, T) int64.
            token_type_ids: (B, T) int64; None: segment 0 everywhere.
            mask: (B, T) bool, True where a real token stands. None: everywhere.

        Returns:
            (B, T, L), classifier(dropout(hidden)).
        """
        hidden, _ = self.bert(input_ids, token_type_ids, mask)  # (B, T, D)
        return self.classifier(self.dropout(hidden))  # (B, T, L)

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy over the tokens that have a label.

        Args:
            scores: (B, T, L), from ``forward``.
            labels: (B, T) int64, or IGNORE.

        Returns:
            A scalar; 0 if no token has a label.
        """
        total = F.cross_entropy(
            scores.flatten(0, 1),  # (B T, L)
            labels.flatten(),  # (B T,)
            ignore_index=IGNORE,
            reduction="sum",
        )  # scalar
        return total / (labels != IGNORE).sum().clamp(min=1)  # scalar


def word_tags(scores: Tensor, word_ids: list[int | None]) -> list[int]:
    """From scores for every token to one label for each word (Devlin et al. 2019, section 5.3).

    Args:
        scores: (T, L), of one input.
        word_ids: for each token the number of its word, or None for a special token.

    Returns:
        The label with the largest score at the first token of each word, in the order of the words.
    """
    best = scores.argmax(dim=-1).tolist()  # T labels
    tags = {}
    for word, label in zip(word_ids, best, strict=True):
        if word is not None:
            tags.setdefault(word, label)  # what the first token says stays
    return list(tags.values())
