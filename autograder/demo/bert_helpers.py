"""Right answers to `bert` by someone who writes helpers first and reuses them.

Read as text, cell by cell, by `make_class`: `exercise` cells replace the stubs, `own`
cells are cells that the student added before the next exercise.
"""

import itertools
import math
import random

import torch
import torch.nn.functional as F
from torch import nn

from solutions.bert import CRF, init_weights, relative_code

PAD, UNK, CLS, SEP, MASK = 0, 1, 2, 3, 4
SPECIAL = 5
IGNORE = -100


# %% own="what is refused"
def refuse(wrong, what):
    """Raise a ValueError if something is wrong."""
    if wrong:
        raise ValueError(what)


def shortened(first, second, room):
    """How many tokens of both pieces fit into the room, taken from the longer one in turn."""
    if len(first) + len(second) <= room:
        return first, second
    if len(first) > len(second):
        return shortened(first[:-1], second, room)
    return shortened(first, second[:-1], room)


# %% exercise="build_input"
def build_input(first, second=None, max_length=512):
    refuse(not first, "first is empty")
    refuse(second is not None and not second, "second is empty")
    refuse(max_length < (5 if second else 3), "max_length is too small")
    if not second:
        input_ids = [CLS, *first[: max_length - 2], SEP]
        return input_ids, [0] * len(input_ids)
    # Far too long pieces are cut first, or the recursion would be as deep as they are long.
    first, second = shortened(first[:max_length], second[:max_length], max_length - 3)
    first, second = [CLS, *first, SEP], [*second, SEP]
    return first + second, [0] * len(first) + [1] * len(second)


# %% exercise="gelu"
def gelu(x):
    return 0.5 * x * torch.erfc(-x * math.sqrt(0.5))


# %% own="sums, norms and dropout"
def bert_norm(width):
    """The norm as BERT has it."""
    return nn.LayerNorm(width, eps=1e-12)


class Residual(nn.Module):
    """norm(x + dropout(y)), with a norm that belongs to somebody else."""

    def __init__(self, p):
        super().__init__()
        self.drop = nn.Dropout(p)

    def forward(self, norm, x, y):
        return norm(x + self.drop(y))


# %% exercise="BertEmbeddings"
class BertEmbeddings(nn.Module):
    def __init__(self, vocab_size, d_model, max_length=512, type_vocab_size=2, dropout=0.0):
        super().__init__()
        self.max_length = max_length
        for name, rows in (
            ("token", vocab_size),
            ("position", max_length),
            ("segment", type_vocab_size),
        ):
            setattr(self, name, nn.Embedding(rows, d_model))
        self.norm = bert_norm(d_model)
        self.drop = nn.Dropout(dropout)

    def forward(self, input_ids, token_type_ids=None):
        length = input_ids.shape[-1]
        refuse(length > self.max_length, f"{length} is more than max_length={self.max_length}")
        if token_type_ids is None:
            token_type_ids = input_ids * 0
        places = torch.arange(length).repeat(len(input_ids), 1)
        vectors = (self.token(input_ids), self.position(places), self.segment(token_type_ids))
        return self.drop(self.norm(sum(vectors)))


# %% own="attention to what is allowed"
def head_width(hidden, num_heads):
    """The width of a head."""
    refuse(num_heads <= 0 or hidden % max(num_heads, 1), f"{hidden} is not {num_heads} heads")
    return hidden // num_heads


def split_heads(x, num_heads):
    """(B, T, D) -> (B, H, T, D/H)."""
    return x.view(x.shape[0], x.shape[1], num_heads, -1).permute(0, 2, 1, 3)


def join_heads(x):
    """(B, H, T, D/H) -> (B, T, D)."""
    return x.permute(0, 2, 1, 3).flatten(2)


def softly(scores, allowed=None):
    """Softmax over the last axis, of what is allowed."""
    if allowed is not None:
        scores = scores + torch.where(allowed, 0.0, -1e30).to(scores.dtype)
    weights = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return weights / weights.sum(dim=-1, keepdim=True)


# %% exercise="SelfAttention"
class SelfAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        self.root = math.sqrt(head_width(d_model, num_heads))
        self.num_heads = num_heads
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            self.add_module(name, nn.Linear(d_model, d_model))
        self.drop = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        q, k, v = (
            split_heads(project(x), self.num_heads)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        allowed = None if mask is None else mask[:, None, None, :]
        weights = softly(q @ k.transpose(2, 3) / self.root, allowed)
        return self.out_proj(join_heads(self.drop(weights) @ v))


# %% exercise="BertLayer"
class BertLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout=0.0):
        super().__init__()
        self.attention = SelfAttention(d_model, num_heads, dropout)
        self.attention_norm, self.output_norm = bert_norm(d_model), bert_norm(d_model)
        self.w_1 = nn.Linear(d_model, d_ff)
        self.w_2 = nn.Linear(d_ff, d_model)
        self.add = Residual(dropout)

    def think(self, x):
        """The feed-forward network."""
        return self.w_2(gelu(self.w_1(x)))

    def forward(self, x, mask=None):
        x = self.add(self.attention_norm, x, self.attention(x, mask))
        return self.add(self.output_norm, x, self.think(x))


# %% exercise="BertModel"
class BertModel(nn.Module):
    def __init__(
        self,
        vocab_size,
        d_model=768,
        num_layers=12,
        num_heads=12,
        d_ff=3072,
        max_length=512,
        type_vocab_size=2,
        dropout=0.1,
    ):
        super().__init__()
        self.embeddings = BertEmbeddings(
            vocab_size,
            d_model,
            max_length=max_length,
            type_vocab_size=type_vocab_size,
            dropout=dropout,
        )
        layer = (d_model, num_heads, d_ff, dropout)
        self.layers = nn.ModuleList(itertools.starmap(BertLayer, [layer] * num_layers))
        self.pooler = nn.Linear(d_model, d_model)
        init_weights(self)

    def pool(self, hidden):
        """The vector of the first token, through the pooler."""
        return torch.tanh(self.pooler(hidden[:, 0, :]))

    def forward(self, input_ids, token_type_ids=None, mask=None):
        hidden = self.embeddings(input_ids, token_type_ids)
        for layer in self.layers:
            hidden = layer(hidden, mask=mask)
        return hidden, self.pool(hidden)


# %% own="how many numbers"
def numbers(module):
    """How many parameters a module has; on the device meta it has no values."""
    return sum(parameter.numel() for parameter in module.parameters())


# %% exercise="count_parameters"
def count_parameters(
    vocab_size=30522,
    d_model=768,
    num_layers=12,
    d_ff=3072,
    max_length=512,
    type_vocab_size=2,
    heads=False,
):
    with torch.device("meta"):
        square, norm = numbers(nn.Linear(d_model, d_model)), numbers(nn.LayerNorm(d_model))
        inner = numbers(nn.Linear(d_model, d_ff)) + numbers(nn.Linear(d_ff, d_model))
        pair = numbers(nn.Linear(d_model, 2))
    total = (vocab_size + max_length + type_vocab_size) * d_model
    total += norm + num_layers * (4 * square + inner + 2 * norm) + square
    return total + (square + norm + vocab_size + pair if heads else 0)


# %% own="one rule after the other"
RULES = (
    ("LayerNorm.gamma", "LayerNorm.weight"),
    ("LayerNorm.beta", "LayerNorm.bias"),
    ("embeddings.word_embeddings.", "embeddings.token."),
    ("embeddings.position_embeddings.", "embeddings.position."),
    ("embeddings.token_type_embeddings.", "embeddings.segment."),
    ("embeddings.LayerNorm.", "embeddings.norm."),
    ("encoder.layer.", "layers."),
    ("attention.self.query.", "attention.q_proj."),
    ("attention.self.key.", "attention.k_proj."),
    ("attention.self.value.", "attention.v_proj."),
    ("attention.output.dense.", "attention.out_proj."),
    ("attention.output.LayerNorm.", "attention_norm."),
    ("intermediate.dense.", "w_1."),
    ("output.dense.", "w_2."),
    ("output.LayerNorm.", "output_norm."),
    ("pooler.dense.", "pooler."),
    ("cls.predictions.transform.dense.", "mlm.dense."),
    ("cls.predictions.transform.LayerNorm.", "mlm.norm."),
    ("cls.predictions.", "mlm."),
    ("cls.seq_relationship.", "nsp."),
    ("qa_outputs.", "classifier."),
)
PARTS = {
    "": "embeddings.token embeddings.position embeddings.segment embeddings.norm pooler",
    "layer": "attention.q_proj attention.k_proj attention.v_proj attention.out_proj "
    "attention_norm w_1 w_2 output_norm",
    "head": "mlm.dense mlm.norm mlm nsp classifier",
}


def by_rules(name):
    """The name after all rules."""
    for old, new in RULES:
        name = name.replace(old, new)
    return name


def is_ours(name):
    """Whether it is one of our names."""
    part, _, kind = name.rpartition(".")
    if kind not in ("weight", "bias"):
        return False
    if part in PARTS["head"].split():
        return True
    part = part.removeprefix("bert.")
    if part in PARTS[""].split():
        return True
    stack, _, rest = part.partition(".")
    number, _, inside = rest.partition(".")
    return stack == "layers" and number.isdigit() and inside in PARTS["layer"].split()


# %% exercise="rename_parameters"
def rename_parameters(state):
    renamed = {}
    for name, tensor in state.items():
        if "cls.predictions.decoder." in name or name.endswith("position_ids"):
            continue
        new = by_rules(name)
        # What no rule has changed is foreign, unless it is the classifier.
        same = new == name and not name.startswith("classifier.")
        refuse(same or not is_ours(new), f"{name} is not a name of BERT's")
        renamed[new] = tensor
    return renamed


# %% own="80, 10, 10"
def check_masking(vocab_size, rate):
    """Refuse impossible settings."""
    refuse(rate < 0 or rate > 1, f"rate={rate}")
    refuse(vocab_size <= SPECIAL, f"vocab_size={vocab_size}")


def corrupt(ids, chosen, vocab_size):
    """Corrupted ids and labels, for the chosen places."""
    order = torch.rand(ids.shape)
    corrupted = ids.clone()
    random_ones = chosen & (order > 0.9)
    corrupted[chosen & (order < 0.8)] = MASK
    corrupted[random_ones] = torch.randint(SPECIAL, vocab_size, (int(random_ones.sum()),))
    return corrupted, ids.where(chosen, torch.tensor(IGNORE))


# %% exercise="mask_tokens"
def mask_tokens(ids, vocab_size, mask_prob=0.15):
    check_masking(vocab_size, mask_prob)
    chosen = (torch.rand(ids.shape) < mask_prob) & (ids >= SPECIAL)
    return corrupt(ids, chosen, vocab_size)


# %% own="words"
def words_of(ids, starts):
    """The words of one row, each a list of places."""
    words = []
    for place, (token, start) in enumerate(zip(ids.tolist(), starts.tolist(), strict=True)):
        if token < SPECIAL:
            words.append([])  # nothing can be added to the word before
        elif start or not words or not words[-1]:
            words.append([place])
        else:
            words[-1].append(place)
    return [word for word in words if word]


# %% exercise="mask_whole_words"
def mask_whole_words(ids, starts, vocab_size, mask_prob=0.15):
    check_masking(vocab_size, mask_prob)
    chosen = torch.zeros_like(ids, dtype=torch.bool)
    for row in range(len(ids)):
        words = words_of(ids[row], starts[row])
        for word, draw in zip(words, torch.rand(len(words)).tolist(), strict=True):
            chosen[row, word] = draw < mask_prob
    return corrupt(ids, chosen, vocab_size)


# %% exercise="masking_epochs"
def masking_epochs(ids, vocab_size, epochs, duplicates=None, mask_prob=0.15):
    refuse(epochs < 1, "no epochs")
    refuse(duplicates is not None and duplicates < 1, "no duplicates")

    def drawn():
        while True:
            yield mask_tokens(ids, vocab_size, mask_prob)

    if duplicates is None:
        source = drawn()
    else:
        source = itertools.cycle(list(itertools.islice(drawn(), duplicates)))
    return [next(source) for _ in range(epochs)]


# %% own="sentences of others"
def elsewhere(documents, own):
    """All sentences but those of one document."""
    rest = documents[:own] + documents[own + 1 :]
    return [sentence for document in rest for sentence in document]


# %% exercise="next_sentence_pairs"
def next_sentence_pairs(documents):
    refuse(len([1 for document in documents if document]) < 2, "too few documents")
    pairs = []
    for number, document in enumerate(documents):
        strangers = elsewhere(documents, number)
        for first, second in itertools.pairwise(document):
            label = random.choice((0, 1))
            pairs.append((first, random.choice(strangers) if label else second, label))
    return pairs


# %% exercise="MaskedLanguageHead"
class MaskedLanguageHead(nn.Module):
    def __init__(self, token):
        super().__init__()
        vocab_size, hidden = token.weight.shape
        self.dense, self.norm = nn.Linear(hidden, hidden), bert_norm(hidden)
        self.token = token
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def transform(self, hidden):
        """What comes before the table."""
        return self.norm(gelu(self.dense(hidden)))

    def forward(self, hidden):
        return torch.matmul(self.transform(hidden), self.token.weight.t()).add(self.bias)


# %% exercise="BertForPreTraining"
class BertForPreTraining(nn.Module):
    def __init__(
        self,
        vocab_size,
        d_model=768,
        num_layers=12,
        num_heads=12,
        d_ff=3072,
        max_length=512,
        type_vocab_size=2,
        dropout=0.1,
    ):
        super().__init__()
        self.bert = BertModel(
            vocab_size,
            d_model=d_model,
            num_layers=num_layers,
            num_heads=num_heads,
            d_ff=d_ff,
            max_length=max_length,
            type_vocab_size=type_vocab_size,
            dropout=dropout,
        )
        self.mlm = MaskedLanguageHead(self.bert.embeddings.token)
        self.nsp = init_weights(nn.Linear(d_model, 2))

    def forward(self, input_ids, token_type_ids=None, mask=None):
        hidden, pooled = self.bert(input_ids, token_type_ids, mask)
        return self.mlm(hidden), self.nsp(pooled)


# %% own="means that may be over nothing"
def mean_entropy(scores, targets):
    """The mean cross-entropy over the last axis where there is a target, or 0."""
    scores, targets = scores.reshape(-1, scores.shape[-1]), targets.reshape(-1)
    real = targets != IGNORE
    if not real.any():
        return scores.sum() * 0.0
    return F.cross_entropy(scores[real], targets[real])


# %% exercise="pretraining_loss"
def pretraining_loss(mlm_logits, nsp_logits, labels, is_random):
    return mean_entropy(mlm_logits, labels) + mean_entropy(nsp_logits, is_random)


# %% own="a step downhill"
def gradient_norm(gradients):
    """The norm of all gradients together."""
    return math.sqrt(sum(float(gradient.pow(2).sum()) for gradient in gradients))


# %% exercise="pretraining_step"
def pretraining_step(model, input_ids, token_type_ids, mask, labels, is_random, lr, clip=1.0):
    mlm_logits, nsp_logits = model(input_ids, token_type_ids, mask)
    loss = pretraining_loss(mlm_logits, nsp_logits, labels, is_random)
    mlm, nsp = mean_entropy(mlm_logits, labels), mean_entropy(nsp_logits, is_random)
    parameters = [one for one in model.parameters() if one.requires_grad]
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    norm = gradient_norm(gradient for gradient in gradients if gradient is not None)
    shrink = clip / norm if norm > clip else 1
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            parameter.data -= lr * shrink * gradient
    return {"loss": loss.item(), "mlm": mlm.item(), "nsp": nsp.item(), "norm": norm}


# %% own="one mask"
def with_mask(ids, place):
    """A copy with MASK at one place."""
    return torch.cat([ids[:place], torch.tensor([MASK]), ids[place + 1 :]])


# %% exercise="pseudo_log_likelihood"
def pseudo_log_likelihood(model, ids):
    places = [place for place, token in enumerate(ids.tolist()) if token >= SPECIAL]
    refuse(not places, "nothing but special tokens")
    with torch.no_grad():
        scores = model(torch.stack([with_mask(ids, place) for place in places]))[0]
    said = [
        scores[row, place].log_softmax(-1)[ids[place]].item() for row, place in enumerate(places)
    ]
    return math.fsum(said)


# %% own="what all tasks share"
class OnBert(nn.Module):
    """An encoder with a linear layer on it."""

    def __init__(self, bert, outputs, dropout=0.0):
        super().__init__()
        self.bert = bert
        self.classifier = init_weights(nn.Linear(bert.pooler.in_features, outputs))
        self.drop = nn.Dropout(dropout)

    def scored(self, number, *given):
        """Scores from one of the encoder's two results."""
        return self.classifier(self.drop(self.bert(*given)[number]))


# %% exercise="SequenceClassifier"
class SequenceClassifier(OnBert):
    def __init__(self, bert, num_labels, dropout=0.1):
        super().__init__(bert, num_labels, dropout)

    def forward(self, input_ids, token_type_ids=None, mask=None):
        return self.scored(1, input_ids, token_type_ids, mask)

    def loss(self, scores, labels):
        return mean_entropy(scores, labels)


# %% exercise="SpanFinder"
class SpanFinder(OnBert):
    def __init__(self, bert):
        super().__init__(bert, 2)

    def forward(self, input_ids, token_type_ids=None, mask=None):
        scores = self.scored(0, input_ids, token_type_ids, mask)
        if mask is not None:
            scores = scores.masked_fill(
                mask.logical_not()[..., None], torch.finfo(scores.dtype).min
            )
        return scores[..., 0], scores[..., 1]

    def loss(self, start, end, starts, ends):
        length = start.shape[1]

        def half(scores, places):
            cut_off = (places < 0) | (places >= length)
            return mean_entropy(scores, places.masked_fill(cut_off, IGNORE)) / 2

        return half(start, starts) + half(end, ends)


# %% own="candidates"
def candidates(passage, max_answer):
    """All spans that may be an answer, in order."""
    places = [place for place, inside in enumerate(passage.tolist()) if inside]
    return [(i, j) for i in places for j in places if i <= j < i + max_answer]


# %% exercise="best_span"
def best_span(start, end, passage, max_answer=30, null_threshold=None):
    refuse(max_answer < 1, "answers of no tokens")
    spans = candidates(passage, max_answer)
    refuse(not spans, "no passage")

    def score(span):
        return float(start[span[0]] + end[span[1]])

    best = max(spans, key=score)  # the first of equal ones
    nothing = (0, 0)
    if null_threshold is not None and score(nothing) - score(best) > null_threshold:
        return nothing
    return best


# %% own="the first token of each word"
def first_places(word_ids):
    """word -> the place of its first token, in their order."""
    places = {}
    for place, word in enumerate(word_ids):
        if word is not None and word not in places:
            places[word] = place
    return places


# %% exercise="align_labels"
def align_labels(word_labels, word_ids):
    labels = [IGNORE] * len(word_ids)
    for word, place in first_places(word_ids).items():
        refuse(not 0 <= word < len(word_labels), f"word {word} has no label")
        labels[place] = word_labels[word]
    return labels


# %% exercise="Tagger"
class Tagger(OnBert):
    def __init__(self, bert, num_labels, dropout=0.1):
        super().__init__(bert, num_labels, dropout)

    def forward(self, input_ids, token_type_ids=None, mask=None):
        return self.scored(0, input_ids, token_type_ids, mask)

    def loss(self, scores, labels):
        return mean_entropy(scores, labels)


# %% exercise="word_tags"
def word_tags(scores, word_ids):
    return [int(scores[place].argmax()) for place in first_places(word_ids).values()]


# %% own="a chain, from its end to its beginning"
def pairs_of(values):
    """Neighbours along the second axis."""
    return values[:, :-1], values[:, 1:]


# %% exercise="crf_score"
def crf_score(emissions, tags, mask, transitions, start, end):
    tags = torch.where(mask, tags, torch.zeros_like(tags))
    rows = torch.arange(len(tags))
    score = start[tags[:, 0]] + end[tags[rows, mask.sum(1) - 1]]
    emitted = torch.gather(emissions, -1, tags[..., None])[..., 0]
    before, after = pairs_of(tags)
    score = score + torch.where(mask, emitted, torch.zeros_like(emitted)).sum(1)
    return score + (transitions[before, after] * mask[:, 1:]).sum(1)


# %% exercise="crf_partition"
def crf_partition(emissions, mask, transitions, start, end):
    # Backwards: what may follow each tag.
    rest = end.expand(len(emissions), -1)
    for place in range(emissions.shape[1] - 1, 0, -1):
        ahead = torch.logsumexp(transitions + (emissions[:, place] + rest)[:, None, :], dim=2)
        rest = torch.where(mask[:, place].unsqueeze(1), ahead, rest)
    return torch.logsumexp(start + emissions[:, 0] + rest, dim=1)


# %% exercise="viterbi"
def viterbi(emissions, mask, transitions, start, end):
    # Backwards as well, so that the path is read off from the beginning.
    rest, following = end.expand(len(emissions), -1), []
    for place in range(emissions.shape[1] - 1, 0, -1):
        ahead, tag = (transitions + (emissions[:, place] + rest)[:, None, :]).max(dim=2)
        rest = torch.where(mask[:, place].unsqueeze(1), ahead, rest)
        following.insert(0, tag)
    scores, first = (start + emissions[:, 0] + rest).max(dim=1)
    paths = []
    for row, length in enumerate(mask.sum(1).tolist()):
        path = [first[row].item()]
        for tag in following[: length - 1]:
            path.append(tag[row, path[-1]].item())
        paths.append(path)
    return paths, scores


# %% own="rows turned round"
def turned_round(x, mask):
    """Each row's real places in reverse, padding behind them; twice is as before."""
    lengths = mask.long().sum(1)
    rows = [
        torch.cat([row[:length].flip(0), row[length:]])
        for row, length in zip(x, lengths.tolist(), strict=True)
    ]
    return torch.stack(rows)


def one_way(lstm, x, names):
    """What one direction of an LSTM says, from PyTorch's own parameters."""
    weights = [getattr(lstm, name) for name in names]
    state = x.new_zeros(1, len(x), lstm.hidden_size)
    out, *_ = torch.lstm(x, (state, state), weights, True, 1, 0.0, False, False, True)
    return out


# %% exercise="BiLSTMCRF"
class BiLSTMCRF(nn.Module):
    def __init__(self, vocab_size, embed_dim, hidden_size, num_tags):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.lstm = nn.LSTM(embed_dim, hidden_size, batch_first=True, bidirectional=True)
        self.emission = nn.Linear(2 * hidden_size, num_tags)
        self.crf = CRF(num_tags)

    def forward(self, ids, mask):
        x = self.embedding(ids)
        names = [f"{kind}_{end}_l0" for kind in ("weight", "bias") for end in ("ih", "hh")]
        ahead = one_way(self.lstm, x, names)
        back = one_way(self.lstm, turned_round(x, mask), [f"{name}_reverse" for name in names])
        return self.emission(torch.cat([ahead, turned_round(back, mask)], dim=-1))

    def loss(self, ids, tags, mask):
        return self.crf.loss(self(ids, mask), tags, mask)

    def decode(self, ids, mask):
        return self.crf.decode(self(ids, mask), mask)


# %% exercise="SharedEncoder"
class SharedEncoder(nn.Module):
    def __init__(self, num_layers, d_model, num_heads, d_ff, dropout=0.0):
        super().__init__()
        self.rounds = range(num_layers)
        self.layer = BertLayer(d_model, num_heads, d_ff, dropout)

    def forward(self, x, mask=None):
        for _ in self.rounds:
            x = self.layer(x, mask)
        return x


# %% exercise="permutation_masks"
def permutation_masks(order):
    refuse(set(order.tolist()) != set(range(len(order))), "not a permutation")
    when = {place: number for number, place in enumerate(order.tolist())}
    places = range(len(order))
    query = torch.tensor([[when[j] < when[i] for j in places] for i in places])
    return query | torch.eye(len(order), dtype=torch.bool), query


# %% own="the shift of Transformer-XL"
def shifted(scores):
    """(B, H, T, S), the last distance first -> column j of row t is for the place j."""
    padded = F.pad(scores, (1, 0))
    B, H, T, S = padded.shape
    return padded.view(B, H, S, T)[:, :, 1:].reshape(B, H, T, S - 1)


# %% exercise="RelativeAttention"
class RelativeAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        width = head_width(d_model, num_heads)
        self.num_heads, self.root = num_heads, math.sqrt(width)
        for name in ("q_proj", "k_proj", "v_proj", "r_proj", "out_proj"):
            self.add_module(name, nn.Linear(d_model, d_model, bias=False))
        self.content_bias = nn.Parameter(torch.zeros(num_heads, width))
        self.position_bias = nn.Parameter(torch.zeros(num_heads, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, x, memory=None):
        joined = x if memory is None else torch.cat([memory.detach(), x], dim=1)
        T, S = x.shape[1], joined.shape[1]
        q = split_heads(self.q_proj(x), self.num_heads)
        k = split_heads(self.k_proj(joined), self.num_heads)
        v = split_heads(self.v_proj(joined), self.num_heads)
        codes = relative_code(torch.arange(S - 1, -1, -1), x.shape[2]).to(x.dtype)
        r = split_heads(self.r_proj(codes)[None], self.num_heads)
        content = (q + self.content_bias[:, None]) @ k.mT
        place = shifted((q + self.position_bias[:, None]) @ r.mT)
        past = torch.ones(T, S, dtype=torch.bool).tril(S - T)
        place = torch.where(past, place, torch.zeros_like(place))
        attn_weights = self.drop(softly((content + place) / self.root, past))
        return self.out_proj(join_heads(attn_weights @ v))


# %% exercise="update_memory"
def update_memory(memory, hidden, length):
    refuse(length < 0, "a negative length")
    parts = [part.detach() for part in (memory, hidden) if part is not None]
    joined = torch.cat(parts, dim=1)
    return joined.narrow(1, max(joined.shape[1] - length, 0), min(length, joined.shape[1]))


# %% exercise="replace_tokens"
def replace_tokens(ids, labels, logits):
    weights = softly(logits.detach()).flatten(0, 1)
    drawn = torch.multinomial(weights, 1).reshape(ids.shape)
    replaced = ids.where(labels == IGNORE, drawn)
    return replaced, ids != replaced


# %% exercise="replaced_token_loss"
def replaced_token_loss(scores, is_replaced, mask):
    return nn.BCEWithLogitsLoss(weight=mask.to(scores), reduction="sum")(
        scores, is_replaced.to(scores)
    ) / int(mask.sum())


# %% exercise="TwoDirections"
class TwoDirections(nn.Module):
    def __init__(self, vocab_size, embed_dim, hidden_size):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.forward_lstm = nn.LSTM(embed_dim, hidden_size, batch_first=True)
        self.backward_lstm = nn.LSTM(embed_dim, hidden_size, batch_first=True)
        self.output = nn.Linear(hidden_size, vocab_size)

    def states(self, ids, mask):
        """The states of both directions, apart."""
        x = self.embedding(ids)
        back = self.backward_lstm(turned_round(x, mask))[0]
        return self.forward_lstm(x)[0], turned_round(back, mask)

    def forward(self, ids, mask=None):
        mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
        return torch.cat(self.states(ids, mask), dim=-1)

    def loss(self, ids, mask=None):
        mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
        ahead, back = self.states(ids, mask)
        targets = ids.masked_fill(~mask, IGNORE)
        following = mean_entropy(self.output(ahead[:, :-1]), targets[:, 1:])
        left = targets[:, :-1].masked_fill(~mask[:, 1:], IGNORE)
        return following + mean_entropy(self.output(back[:, 1:]), left)
