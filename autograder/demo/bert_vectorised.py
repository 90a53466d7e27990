"""Right answers to `bert` by someone who avoids loops and leaves work to PyTorch's kernels.

Read as text, cell by cell, by `make_class`: `exercise` cells replace the stubs, `own`
cells are cells that the student added before the next exercise.
"""

import itertools
import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from solutions.bert import CRF, init_weights, relative_code

PAD, UNK, CLS, SEP, MASK = 0, 1, 2, 3, 4
SPECIAL = 5
IGNORE = -100


# %% exercise="build_input"
def build_input(
    first: list[int], second: list[int] | None = None, max_length: int = 512
) -> tuple[list[int], list[int]]:
    if not first or second == []:
        raise ValueError("a piece is empty")
    if max_length < (3 if second is None else 5):
        raise ValueError(f"max_length={max_length} leaves no room")
    if second is None:
        input_ids = [CLS, *first[: max_length - 2], SEP]
        return input_ids, [0] * len(input_ids)
    room = max_length - 3
    # The longer one gives way down to the length of the other, then both in turn.
    n, m = len(first), len(second)
    if n + m > room:
        shorter = min(n, m, room // 2)
        if n == m or min(n, m) > room // 2:
            n, m = room - room // 2, room // 2
        elif n < m:
            n, m = shorter, room - shorter
        else:
            n, m = room - shorter, shorter
    input_ids = [CLS, *first[:n], SEP, *second[:m], SEP]
    return input_ids, [0] * (n + 2) + [1] * (m + 1)


# %% exercise="gelu"
def gelu(x: Tensor) -> Tensor:
    return x * torch.special.ndtr(x)


# %% exercise="BertEmbeddings"
class BertEmbeddings(nn.Module):
    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        max_length: int = 512,
        type_vocab_size: int = 2,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.token, self.position, self.segment = (
            nn.Embedding(rows, d_model) for rows in (vocab_size, max_length, type_vocab_size)
        )
        self.norm = nn.LayerNorm(d_model, eps=1e-12)
        self.p = dropout

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        if input_ids.size(1) > self.position.num_embeddings:
            raise ValueError(
                f"{input_ids.size(1)} tokens on {self.position.num_embeddings} positions"
            )
        segment = self.segment.weight[0] if token_type_ids is None else self.segment(token_type_ids)
        position = self.position(torch.arange(input_ids.size(1)))
        return F.dropout(
            self.norm(self.token(input_ids) + position + segment), self.p, self.training
        )


# %% exercise="SelfAttention"
class SelfAttention(nn.Module):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if num_heads < 1 or d_model % num_heads:
            raise ValueError("num_heads must divide d_model")
        self.num_heads, self.p = num_heads, dropout
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(d_model, d_model) for _ in range(4)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        projections = (self.q_proj, self.k_proj, self.v_proj)
        weight = torch.cat([one.weight for one in projections])
        bias = torch.cat([one.bias for one in projections])
        # (3, B, H, T, D/H)
        joint = F.linear(x, weight, bias).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = joint.permute(2, 0, 3, 1, 4)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
        if mask is not None:
            scores = torch.where(mask[:, None, None], scores, torch.finfo(scores.dtype).min)
        weights = F.dropout(scores.softmax(-1), self.p, self.training)
        return self.out_proj(torch.einsum("bhqk,bhkd->bqhd", weights, v).flatten(2))


# %% exercise="BertLayer"
class BertLayer(nn.Module):
    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = SelfAttention(d_model, num_heads, dropout)
        self.w_1, self.w_2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.attention_norm, self.output_norm = (nn.LayerNorm(d_model, 1e-12) for _ in range(2))
        self.p = dropout

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y = F.dropout(self.attention(x, mask), self.p, self.training)
        x = self.attention_norm(x + y)
        y = F.dropout(self.w_2(gelu(self.w_1(x))), self.p, self.training)
        return self.output_norm(x + y)


# %% exercise="BertModel"
class BertModel(nn.Module):
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
        super().__init__()
        self.embeddings = BertEmbeddings(vocab_size, d_model, max_length, type_vocab_size, dropout)
        self.layers = nn.ModuleList(
            [BertLayer(d_model, num_heads, d_ff, dropout) for _ in range(num_layers)]
        )
        self.pooler = nn.Linear(d_model, d_model)
        self.apply(init_weights)

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        hidden = self.embeddings(input_ids, token_type_ids)
        for layer in self.layers:
            hidden = layer(hidden, mask)
        return hidden, self.pooler(hidden.select(1, 0)).tanh()


# %% exercise="count_parameters"
def count_parameters(
    vocab_size: int = 30522,
    d_model: int = 768,
    num_layers: int = 12,
    d_ff: int = 3072,
    max_length: int = 512,
    type_vocab_size: int = 2,
    heads: bool = False,
) -> int:
    d, f = d_model, d_ff
    encoder = (vocab_size + max_length + type_vocab_size + 2) * d
    encoder += num_layers * (4 * d * d + 2 * d * f + 9 * d + f)
    encoder += d * d + d
    return encoder + heads * (d * d + 3 * d + vocab_size + 2 * d + 2)


# %% own="names of a checkpoint, with # for the number of a layer"
LAYER = {
    "attention.self.query": "attention.q_proj",
    "attention.self.key": "attention.k_proj",
    "attention.self.value": "attention.v_proj",
    "attention.output.dense": "attention.out_proj",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "w_1",
    "output.dense": "w_2",
    "output.LayerNorm": "output_norm",
}
ENCODER = {
    "embeddings.word_embeddings": "embeddings.token",
    "embeddings.position_embeddings": "embeddings.position",
    "embeddings.token_type_embeddings": "embeddings.segment",
    "embeddings.LayerNorm": "embeddings.norm",
    "pooler.dense": "pooler",
} | {f"encoder.layer.#.{old}": f"layers.#.{new}" for old, new in LAYER.items()}
NAMES = (
    ENCODER
    | {f"bert.{old}": f"bert.{new}" for old, new in ENCODER.items()}
    | {
        "cls.predictions.transform.dense": "mlm.dense",
        "cls.predictions.transform.LayerNorm": "mlm.norm",
        "cls.predictions": "mlm",
        "cls.seq_relationship": "nsp",
        "classifier": "classifier",
        "qa_outputs": "classifier",
    }
)


# %% exercise="rename_parameters"
def rename_parameters(state: dict[str, Tensor]) -> dict[str, Tensor]:
    def renamed(name: str) -> str:
        *words, kind = name.split(".")
        if words[-1:] == ["LayerNorm"]:
            kind = {"gamma": "weight", "beta": "bias"}.get(kind, kind)
        number = next((word for word in words if word.isdigit()), "")
        pattern = ".".join("#" if word.isdigit() else word for word in words)
        if pattern not in NAMES or kind not in ("weight", "bias"):
            raise ValueError(f"{name} is unknown")
        return NAMES[pattern].replace("#", number) + "." + kind

    return {
        renamed(name): tensor
        for name, tensor in state.items()
        if not name.startswith("cls.predictions.decoder.") and not name.endswith("position_ids")
    }


# %% exercise="mask_tokens"
def mask_tokens(ids: Tensor, vocab_size: int, mask_prob: float = 0.15) -> tuple[Tensor, Tensor]:
    if not 0 <= mask_prob <= 1 or vocab_size <= SPECIAL:
        raise ValueError("a mask_prob from 0 to 1 and ordinary ids, please")
    chosen = torch.bernoulli(torch.full(ids.shape, float(mask_prob))).bool() & (ids >= SPECIAL)
    # 0 .. 7: MASK, 8: random, 9: as it was.
    fate = torch.randint(10, ids.shape)
    new = torch.where(fate < 8, MASK, torch.randint(SPECIAL, vocab_size, ids.shape))
    corrupted = torch.where(chosen & (fate < 9), new, ids)
    return corrupted, torch.where(chosen, ids, IGNORE)


# %% exercise="mask_whole_words"
def mask_whole_words(
    ids: Tensor, starts: Tensor, vocab_size: int, mask_prob: float = 0.15
) -> tuple[Tensor, Tensor]:
    if not 0 <= mask_prob <= 1 or vocab_size <= SPECIAL:
        raise ValueError("a mask_prob from 0 to 1 and ordinary ids, please")
    ordinary = ids >= SPECIAL
    behind = F.pad(~ordinary, (1, 0), value=True)[:, :-1]  # nothing to continue
    begins = starts | behind | ~ordinary
    # Where the word of each piece begins: the last beginning so far.
    place = torch.arange(ids.shape[1]).expand_as(ids)
    origin = torch.where(begins, place, 0).cummax(1).values
    chosen = torch.rand(ids.shape).gather(1, origin).lt(mask_prob) & ordinary
    fate = torch.rand(ids.shape)
    fresh = torch.randint(SPECIAL, vocab_size, ids.shape)
    new = torch.where(fate < 0.8, MASK, torch.where(fate < 0.9, fresh, ids))
    return torch.where(chosen, new, ids), torch.where(chosen, ids, IGNORE)


# %% exercise="masking_epochs"
def masking_epochs(
    ids: Tensor,
    vocab_size: int,
    epochs: int,
    duplicates: int | None = None,
    mask_prob: float = 0.15,
) -> list[tuple[Tensor, Tensor]]:
    if epochs < 1 or (duplicates is not None and duplicates < 1):
        raise ValueError("epochs and duplicates count from 1")
    number = duplicates or epochs
    # One call for all of them: the copies stand below each other.
    corrupted, labels = mask_tokens(ids.repeat(number, 1), vocab_size, mask_prob)
    store = list(zip(corrupted.chunk(number), labels.chunk(number), strict=True))
    return (store * -(-epochs // number))[:epochs]


# %% exercise="next_sentence_pairs"
def next_sentence_pairs(
    documents: list[list[list[int]]],
) -> list[tuple[list[int], list[int], int]]:
    if sum(map(bool, documents)) < 2:
        raise ValueError("two documents with sentences, please")
    flat = list(itertools.chain.from_iterable(documents))
    ends = list(itertools.accumulate(map(len, documents)))

    def foreign(number: int) -> list[int]:
        """A sentence of another document: the own one is skipped in the numbering."""
        begin, end = ends[number] - len(documents[number]), ends[number]
        drawn = random.randrange(len(flat) - (end - begin))
        return flat[drawn if drawn < begin else drawn + end - begin]

    def one(number: int, first: list[int], second: list[int]) -> tuple[list[int], list[int], int]:
        return (first, second, 0) if random.random() < 0.5 else (first, foreign(number), 1)

    return [
        one(number, *both)
        for number, document in enumerate(documents)
        for both in itertools.pairwise(document)
    ]


# %% exercise="MaskedLanguageHead"
class MaskedLanguageHead(nn.Module):
    def __init__(self, token: nn.Embedding) -> None:
        super().__init__()
        self.token = token
        self.dense = nn.Linear(token.embedding_dim, token.embedding_dim)
        self.norm = nn.LayerNorm(token.embedding_dim, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(token.num_embeddings))

    def forward(self, hidden: Tensor) -> Tensor:
        return F.linear(self.norm(gelu(self.dense(hidden))), self.token.weight, self.bias)


# %% exercise="BertForPreTraining"
class BertForPreTraining(nn.Module):
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
        super().__init__()
        sizes = (d_model, num_layers, num_heads, d_ff, max_length, type_vocab_size)
        self.bert = BertModel(vocab_size, *sizes, dropout=dropout)
        self.mlm = MaskedLanguageHead(token=self.bert.embeddings.token)
        self.nsp = nn.Linear(d_model, 2)

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        both = zip((self.mlm, self.nsp), self.bert(input_ids, token_type_ids, mask), strict=True)
        return tuple(head(vectors) for head, vectors in both)


# %% exercise="pretraining_loss"
def pretraining_loss(
    mlm_logits: Tensor, nsp_logits: Tensor, labels: Tensor, is_random: Tensor
) -> Tensor:
    each = F.cross_entropy(mlm_logits.transpose(1, 2), labels, reduction="none")  # 0 at IGNORE
    mlm = each.sum() / max(int(labels.ne(IGNORE).sum()), 1)
    return mlm + F.cross_entropy(nsp_logits, is_random)


# %% exercise="pretraining_step"
def pretraining_step(
    model: nn.Module,
    input_ids: Tensor,
    token_type_ids: Tensor,
    mask: Tensor,
    labels: Tensor,
    is_random: Tensor,
    lr: float,
    clip: float = 1.0,
) -> dict[str, float]:
    model.zero_grad()
    scores, answers = model(input_ids, token_type_ids, mask)
    loss = pretraining_loss(scores, answers, labels, is_random)
    loss.backward()
    parameters = [one for one in model.parameters() if one.grad is not None]
    with torch.no_grad():
        # All parameters and all gradients, each as one long vector.
        values = nn.utils.parameters_to_vector(parameters)
        gradient = torch.cat([one.grad.flatten() for one in parameters])
        norm = gradient.norm()
        values -= lr * (clip / norm).clamp(max=1.0) * gradient
        nn.utils.vector_to_parameters(values, parameters)
        nsp = F.cross_entropy(answers, is_random)
    names = ("loss", "mlm", "nsp", "norm")
    return dict(zip(names, torch.stack([loss, loss - nsp, nsp, norm]).tolist(), strict=True))


# %% exercise="pseudo_log_likelihood"
@torch.no_grad()
def pseudo_log_likelihood(model: nn.Module, ids: Tensor) -> float:
    ordinary = ids >= SPECIAL
    if not ordinary.any():
        raise ValueError("special tokens only")
    masked = torch.where(torch.eye(len(ids), dtype=torch.bool), MASK, ids)[ordinary]
    scores, *_ = model(masked)
    places = ordinary.nonzero()  # (n, 1)
    said = scores.log_softmax(-1).take_along_dim(places[:, :, None], 1).squeeze(1)
    return said.gather(1, ids[ordinary].unsqueeze(1)).sum().item()


# %% exercise="SequenceClassifier"
class SequenceClassifier(nn.Module):
    def __init__(self, bert: BertModel, num_labels: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.bert = bert
        self.classifier = nn.Linear(bert.pooler.weight.shape[0], num_labels)
        self.p = dropout

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        pooled = self.bert(input_ids, token_type_ids=token_type_ids, mask=mask)[1]
        return self.classifier(F.dropout(pooled, self.p, self.training))

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        return -scores.log_softmax(1).gather(1, labels.unsqueeze(1)).mean()


# %% exercise="SpanFinder"
class SpanFinder(nn.Module):
    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        self.bert = bert
        self.classifier = nn.Linear(bert.pooler.weight.shape[0], 2)

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        scores = self.classifier(self.bert(input_ids, token_type_ids, mask)[0]).movedim(-1, 0)
        if mask is not None:
            scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)
        return tuple(scores)

    def loss(self, start: Tensor, end: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
        scores, places = torch.stack([start, end]), torch.stack([starts, ends])  # (2, B, T), (2, B)
        inside = (places >= 0) & (places < start.shape[1])
        picked = scores.log_softmax(-1).gather(2, (places * inside).unsqueeze(2)).squeeze(2)
        means = torch.where(inside, -picked, 0).sum(1) / inside.sum(1).clamp(min=1)
        return means.mean()


# %% exercise="best_span"
def best_span(
    start: Tensor,
    end: Tensor,
    passage: Tensor,
    max_answer: int = 30,
    null_threshold: float | None = None,
) -> tuple[int, int]:
    if max_answer < 1 or not bool(passage.any()):
        raise ValueError("no place for an answer")
    sums = start[:, None] + end[None, :]
    band = torch.ones_like(sums, dtype=torch.bool).triu().tril(max_answer - 1)
    sums = sums.masked_fill(~(band & passage[:, None] & passage[None, :]), -torch.inf)
    best, place = sums.flatten().max(), int(sums.flatten().argmax())
    if null_threshold is not None and bool(start[0] + end[0] - best > null_threshold):
        return (0, 0)
    return divmod(place, len(start))


# %% exercise="align_labels"
def align_labels(word_labels: list[int], word_ids: list[int | None]) -> list[int]:
    if any(word is not None and word not in range(len(word_labels)) for word in word_ids):
        raise ValueError("a word without a label")
    first = {word: place for place, word in reversed(list(enumerate(word_ids)))}
    return [
        word_labels[word] if word is not None and first[word] == place else IGNORE
        for place, word in enumerate(word_ids)
    ]


# %% exercise="Tagger"
class Tagger(nn.Module):
    def __init__(self, bert: BertModel, num_labels: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.bert = bert
        self.classifier = nn.Linear(bert.pooler.weight.shape[0], num_labels)
        self.p = dropout

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        hidden, _ = self.bert(input_ids, token_type_ids, mask)
        return self.classifier(F.dropout(hidden, self.p, self.training))

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        each = F.cross_entropy(scores.mT, labels, ignore_index=IGNORE, reduction="none")
        return each.sum() / labels.ne(IGNORE).sum().clamp(min=1)


# %% exercise="word_tags"
def word_tags(scores: Tensor, word_ids: list[int | None]) -> list[int]:
    first = {}
    for place, word in enumerate(word_ids):
        first.setdefault(word, place)
    first.pop(None, None)
    return scores[list(first.values())].argmax(-1).tolist()


# %% exercise="crf_score"
def crf_score(
    emissions: Tensor, tags: Tensor, mask: Tensor, transitions: Tensor, start: Tensor, end: Tensor
) -> Tensor:
    tags = tags.where(mask, 0)
    hot = F.one_hot(tags, emissions.shape[2]).to(emissions.dtype) * mask.unsqueeze(2)
    last = F.one_hot(mask.sum(1) - 1, tags.shape[1]).to(emissions.dtype)  # (B, T)
    return (
        (hot * emissions).sum((1, 2))
        + torch.einsum("bti,btj,ij->b", hot[:, :-1], hot[:, 1:], transitions)
        + hot[:, 0] @ start
        + torch.einsum("bt,btl,l->b", last, hot, end)
    )


# %% exercise="crf_partition"
def crf_partition(
    emissions: Tensor, mask: Tensor, transitions: Tensor, start: Tensor, end: Tensor
) -> Tensor:
    L = emissions.shape[2]
    # A step is a matrix (L, L) of logs; padding is a step that changes nothing.
    steps = transitions + emissions[:, 1:, None, :]  # (B, T - 1, L, L)
    nothing = torch.full((L, L), -1e30, dtype=emissions.dtype).fill_diagonal_(0.0)
    steps = torch.where(mask[:, 1:, None, None], steps, nothing)
    sums = start + emissions[:, 0]
    for step in steps.unbind(1):
        sums = (sums.unsqueeze(2) + step).logsumexp(1)
    return (sums + end).logsumexp(1)


# %% exercise="viterbi"
def viterbi(
    emissions: Tensor, mask: Tensor, transitions: Tensor, start: Tensor, end: Tensor
) -> tuple[list[list[int]], Tensor]:
    _, T, L = emissions.shape
    best = start + emissions[:, 0]
    back = []
    for t in range(1, T):
        ways, tag = (best.unsqueeze(2) + transitions).max(1)
        real = mask[:, t, None]
        best = torch.where(real, ways + emissions[:, t], best)
        back.append(torch.where(real, tag, torch.arange(L)))  # padding: stay
    scores, last = (best + end).max(1)
    tags = [last]
    for tag in reversed(back):
        tags.append(tag.gather(1, tags[-1].unsqueeze(1)).squeeze(1))
    paths = torch.stack(tags[::-1], dim=1)
    return [path[real].tolist() for path, real in zip(paths, mask, strict=True)], scores


# %% exercise="BiLSTMCRF"
class BiLSTMCRF(nn.Module):
    def __init__(self, vocab_size: int, embed_dim: int, hidden_size: int, num_tags: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.lstm = nn.LSTM(embed_dim, hidden_size, batch_first=True, bidirectional=True)
        self.emission = nn.Linear(2 * hidden_size, num_tags)
        self.crf = CRF(num_tags)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        lengths, order = mask.sum(1).sort(descending=True)
        packed = nn.utils.rnn.pack_padded_sequence(self.embedding(ids[order]), lengths, True)
        states, _ = nn.utils.rnn.pad_packed_sequence(
            self.lstm(packed)[0], batch_first=True, total_length=ids.shape[1]
        )
        return self.emission(states[order.argsort()])

    def loss(self, ids: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        return self.crf.loss(self(ids, mask), tags, mask)

    def decode(self, ids: Tensor, mask: Tensor) -> list[list[int]]:
        return self.crf.decode(self(ids, mask), mask)


# %% exercise="SharedEncoder"
class SharedEncoder(nn.Module):
    def __init__(
        self,
        num_layers: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_layers = num_layers
        self.layer = BertLayer(d_model, num_heads, d_ff, dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for layer in itertools.repeat(self.layer, self.num_layers):
            x = layer(x, mask)
        return x


# %% exercise="permutation_masks"
def permutation_masks(order: Tensor) -> tuple[Tensor, Tensor]:
    if not torch.equal(order.sort()[0], torch.arange(order.numel())):
        raise ValueError("not a permutation")
    lower = torch.ones(len(order), len(order)).tril() > 0
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
    content = lower[rank][:, rank]
    return content, content & ~torch.eye(len(order), dtype=torch.bool)


# %% exercise="RelativeAttention"
class RelativeAttention(nn.Module):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if num_heads < 1 or d_model % num_heads:
            raise ValueError("num_heads must divide d_model")
        self.num_heads, self.p = num_heads, dropout
        self.q_proj, self.k_proj, self.v_proj, self.r_proj, self.out_proj = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(5)
        )
        self.content_bias = nn.Parameter(torch.zeros(num_heads, d_model // num_heads))
        self.position_bias = nn.Parameter(torch.zeros(num_heads, d_model // num_heads))

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        _, T, D = x.shape
        joined = x if memory is None else torch.cat((memory.detach(), x), 1)
        S = joined.shape[1]
        split = (self.num_heads, -1)
        q = self.q_proj(x).unflatten(-1, split)
        k, v = (p(joined).unflatten(-1, split) for p in (self.k_proj, self.v_proj))
        i, j = torch.arange(S - T, S)[:, None], torch.arange(S)
        # One code for each pair of places; nothing is shifted.
        r = self.r_proj(relative_code(i - j, D).to(x.dtype)).unflatten(-1, split)
        scores = torch.einsum("bthd,bshd->bhts", q + self.content_bias, k)
        scores = scores + torch.einsum("bthd,tshd->bhts", q + self.position_bias, r)
        scores = (scores / (D // self.num_heads) ** 0.5).masked_fill(j > i, -torch.inf)
        attn_weights = F.dropout(scores.softmax(-1), self.p, self.training)
        return self.out_proj(torch.einsum("bhts,bshd->bthd", attn_weights, v).flatten(2))


# %% exercise="update_memory"
def update_memory(memory: Tensor | None, hidden: Tensor, length: int) -> Tensor:
    if length < 0:
        raise ValueError("length must not be negative")
    joined = torch.cat([hidden[:, :0] if memory is None else memory, hidden], dim=1).detach()
    return joined.flip(1)[:, :length].flip(1)


# %% exercise="replace_tokens"
def replace_tokens(ids: Tensor, labels: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        # Gumbel's trick: the largest of log-probability plus noise is a draw.
        noise = torch.empty(logits.shape, dtype=torch.float64).exponential_().log()
        drawn = (logits.double() - noise).argmax(-1)
    replaced = torch.where(labels == IGNORE, ids, drawn)
    return replaced, replaced.ne(ids)


# %% exercise="replaced_token_loss"
def replaced_token_loss(scores: Tensor, is_replaced: Tensor, mask: Tensor) -> Tensor:
    each = F.softplus(torch.where(is_replaced, -scores, scores))
    return (each * mask).sum() / mask.sum()


# %% exercise="TwoDirections"
class TwoDirections(nn.Module):
    def __init__(self, vocab_size: int, embed_dim: int, hidden_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.forward_lstm, self.backward_lstm = (
            nn.LSTM(embed_dim, hidden_size, batch_first=True) for _ in range(2)
        )
        self.output = nn.Linear(hidden_size, vocab_size)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.embedding(ids)
        shift = 0 if mask is None else (~mask).sum(1, keepdim=True)
        # Turned round, padding stands in front; rolled by its length, it stands behind again.
        place = (ids.shape[1] - 1 - torch.arange(ids.shape[1]) - shift) % ids.shape[1]
        place = place.expand_as(ids).unsqueeze(2)
        back, _ = self.backward_lstm(x.take_along_dim(place, 1))
        return torch.cat([self.forward_lstm(x)[0], back.take_along_dim(place, 1)], -1)

    def loss(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        ahead, back = self(ids, mask).tensor_split(2, dim=-1)
        mask = torch.ones_like(ids) > 0 if mask is None else mask
        both = mask[:, 1:] & mask[:, :-1]
        said = self.output(torch.stack([ahead[:, :-1], back[:, 1:]]))  # (2, B, T - 1, V)
        target = torch.stack([ids[:, 1:], ids[:, :-1]]).where(both, IGNORE)
        each = F.cross_entropy(said.movedim(-1, 1), target, reduction="none")
        return each.sum() / both.sum()
