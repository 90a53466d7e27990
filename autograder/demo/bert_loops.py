"""Right answers to `bert` by someone who writes everything as a loop.

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


# %% exercise="build_input"
def build_input(first, second=None, max_length=512):
    if not first:
        raise ValueError("the first piece is empty")
    if second is None:
        if max_length < 3:
            raise ValueError("no room")
        input_ids = [CLS]
        for token in first:
            if len(input_ids) < max_length - 1:
                input_ids.append(token)
        input_ids.append(SEP)
        return input_ids, [0 for _ in input_ids]
    if not second:
        raise ValueError("the second text is empty")
    if max_length < 5:
        raise ValueError("no room")
    n, m = len(first), len(second)
    while n + m + 3 > max_length:
        if n > m:
            n -= 1
        else:
            m -= 1
    input_ids, token_type_ids = [CLS], [0]
    for place in range(n):
        input_ids.append(first[place])
        token_type_ids.append(0)
    input_ids.append(SEP)
    token_type_ids.append(0)
    for place in range(m):
        input_ids.append(second[place])
        token_type_ids.append(1)
    input_ids.append(SEP)
    token_type_ids.append(1)
    return input_ids, token_type_ids


# %% exercise="gelu"
def gelu(x):
    return x * (1 + torch.erf(x * 2**-0.5)) / 2


# %% exercise="BertEmbeddings"
class BertEmbeddings(nn.Module):
    def __init__(self, vocab_size, d_model, max_length=512, type_vocab_size=2, dropout=0.0):
        super().__init__()
        self.token = nn.Embedding(vocab_size, d_model)
        self.position = nn.Embedding(max_length, d_model)
        self.segment = nn.Embedding(type_vocab_size, d_model)
        self.norm = nn.LayerNorm(d_model, eps=1e-12)
        self.drop = nn.Dropout(dropout)

    def forward(self, input_ids, token_type_ids=None):
        B, T = input_ids.shape
        rest = len(self.position.weight) - T
        if rest < 0:
            raise ValueError(f"{T} tokens, {-rest} more than the {T + rest} positions")
        rows = []
        for b in range(B):
            row = []
            for t in range(T):
                s = 0 if token_type_ids is None else int(token_type_ids[b, t])
                vector = self.token.weight[int(input_ids[b, t])]
                vector = vector + self.position.weight[t] + self.segment.weight[s]
                row.append(vector)
            rows.append(torch.stack(row))
        return self.drop(self.norm(torch.stack(rows)))


# %% exercise="SelfAttention"
class SelfAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        if d_model % num_heads:
            raise ValueError("heads of different widths")
        self.heads = num_heads
        self.width = d_model // num_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        heads = []
        for h in range(self.heads):
            part = slice(h * self.width, (h + 1) * self.width)
            scores = q[:, :, part] @ k[:, :, part].mT / math.sqrt(self.width)
            if mask is not None:
                scores = scores.masked_fill(~mask[:, None, :], float("-inf"))
            heads.append(self.drop(torch.softmax(scores, dim=-1)) @ v[:, :, part])
        return self.out_proj(torch.cat(heads, dim=-1))


# %% exercise="BertLayer"
class BertLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout=0.0):
        super().__init__()
        self.attention = SelfAttention(d_model, num_heads, dropout)
        self.attention_norm = nn.LayerNorm(d_model, eps=1e-12)
        self.w_1 = nn.Linear(d_model, d_ff)
        self.w_2 = nn.Linear(d_ff, d_model)
        self.output_norm = nn.LayerNorm(d_model, eps=1e-12)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        attended = self.drop(self.attention(x, mask))
        x = self.attention_norm(x + attended)
        inner = self.w_1(x)
        inner = gelu(inner)
        inner = self.drop(self.w_2(inner))
        return self.output_norm(x + inner)


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
        self.embeddings = BertEmbeddings(vocab_size, d_model, max_length, type_vocab_size, dropout)
        self.layers = nn.ModuleList()
        for _ in range(num_layers):
            self.layers.append(BertLayer(d_model, num_heads, d_ff, dropout))
        self.pooler = nn.Linear(d_model, d_model)
        for part in [self.embeddings, *self.layers, self.pooler]:
            init_weights(part)

    def forward(self, input_ids, token_type_ids=None, mask=None):
        x = self.embeddings(input_ids, token_type_ids)
        for layer in self.layers:
            x = layer(x, mask)
        firsts = []
        for row in x:
            firsts.append(torch.tanh(self.pooler(row[0])))
        return x, torch.stack(firsts)


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
    total = 0
    # three tables, and the norm's two rows
    for rows in (vocab_size, max_length, type_vocab_size, 1, 1):
        total += rows * d_model
    for _ in range(num_layers):
        for _ in "qkvo":
            total += d_model * d_model + d_model
        total += d_model * d_ff + d_ff
        total += d_ff * d_model + d_model
        for _ in range(2):
            total += 2 * d_model
    total += d_model * d_model + d_model
    if heads:
        total += d_model * d_model + d_model + 2 * d_model + vocab_size
        total += 2 * (d_model + 1)
    return total


# %% exercise="rename_parameters"
def rename_parameters(state):
    simple = [
        ("embeddings.word_embeddings.", "embeddings.token."),
        ("embeddings.position_embeddings.", "embeddings.position."),
        ("embeddings.token_type_embeddings.", "embeddings.segment."),
        ("embeddings.LayerNorm.", "embeddings.norm."),
        ("pooler.dense.", "pooler."),
        ("cls.predictions.transform.dense.", "mlm.dense."),
        ("cls.predictions.transform.LayerNorm.", "mlm.norm."),
        ("cls.predictions.", "mlm."),
        ("cls.seq_relationship.", "nsp."),
        ("classifier.", "classifier."),
        ("qa_outputs.", "classifier."),
    ]
    inner = [
        ("attention.self.query.", "attention.q_proj."),
        ("attention.self.key.", "attention.k_proj."),
        ("attention.self.value.", "attention.v_proj."),
        ("attention.output.dense.", "attention.out_proj."),
        ("attention.output.LayerNorm.", "attention_norm."),
        ("intermediate.dense.", "w_1."),
        ("output.dense.", "w_2."),
        ("output.LayerNorm.", "output_norm."),
    ]
    result = {}
    for name in state:
        if "cls.predictions.decoder" in name or name.endswith("position_ids"):
            continue
        rest, prefix = name, ""
        if rest.startswith("bert."):
            rest, prefix = rest[5:], "bert."
        table = simple[:5] if prefix else simple
        if rest.startswith("encoder.layer."):
            number, _, rest = rest[len("encoder.layer.") :].partition(".")
            prefix += f"layers.{number}."
            table = inner
        new = None
        for old, ours in table:
            if rest.startswith(old):
                ending = rest[len(old) :]
                if "LayerNorm" in old:
                    if ending == "gamma":
                        ending = "weight"
                    if ending == "beta":
                        ending = "bias"
                if ending in ("weight", "bias"):
                    new = prefix + ours + ending
                break
        if new is None:
            raise ValueError(f"what is {name}?")
        result[new] = state[name]
    return result


# %% exercise="mask_tokens"
def mask_tokens(ids, vocab_size, mask_prob=0.15):
    if mask_prob < 0 or mask_prob > 1:
        raise ValueError("mask_prob")
    if vocab_size <= SPECIAL:
        raise ValueError("vocab_size")
    corrupted, labels = [], []
    for row in ids.tolist():
        new, right = [], []
        for token in row:
            if token < SPECIAL or random.random() >= mask_prob:
                new.append(token)
                right.append(IGNORE)
                continue
            right.append(token)
            dice = random.randrange(10)
            if dice < 8:
                token = MASK
            elif dice == 8:
                token = random.randint(SPECIAL, vocab_size - 1)
            new.append(token)
        corrupted.append(new)
        labels.append(right)
    return torch.tensor(corrupted), torch.tensor(labels)


# %% exercise="mask_whole_words"
def mask_whole_words(ids, starts, vocab_size, mask_prob=0.15):
    if mask_prob < 0 or mask_prob > 1:
        raise ValueError("mask_prob")
    if vocab_size <= SPECIAL:
        raise ValueError("vocab_size")
    corrupted, labels = ids.tolist(), []
    begins = starts.tolist()
    for b, row in enumerate(ids.tolist()):
        right = []
        previous_special = True
        chosen = False
        for t, token in enumerate(row):
            if token < SPECIAL:
                previous_special = True
                right.append(IGNORE)
                continue
            if begins[b][t] or previous_special:
                chosen = random.random() < mask_prob
            previous_special = False
            if not chosen:
                right.append(IGNORE)
                continue
            right.append(token)
            dice = random.random()
            if dice < 0.8:
                corrupted[b][t] = MASK
            elif dice < 0.9:
                corrupted[b][t] = random.randrange(SPECIAL, vocab_size)
        labels.append(right)
    return torch.tensor(corrupted), torch.tensor(labels)


# %% exercise="masking_epochs"
def masking_epochs(ids, vocab_size, epochs, duplicates=None, mask_prob=0.15):
    if epochs < 1:
        raise ValueError("epochs")
    if duplicates is not None and duplicates < 1:
        raise ValueError("duplicates")
    drawn = []
    result = []
    for epoch in range(epochs):
        if duplicates is None or len(drawn) < duplicates:
            drawn.append(mask_tokens(ids, vocab_size, mask_prob))
        result.append(drawn[epoch % duplicates] if duplicates else drawn[epoch])
    return result


# %% exercise="next_sentence_pairs"
def next_sentence_pairs(documents):
    filled = 0
    for document in documents:
        if document:
            filled += 1
    if filled < 2:
        raise ValueError("nothing to draw from")
    pairs = []
    for d in range(len(documents)):
        others = []
        for o in range(len(documents)):
            if o != d:
                others += documents[o]
        for s in range(len(documents[d]) - 1):
            if random.randint(0, 1) == 0:
                pairs.append((documents[d][s], documents[d][s + 1], 0))
            else:
                pairs.append((documents[d][s], others[random.randrange(len(others))], 1))
    return pairs


# %% exercise="MaskedLanguageHead"
class MaskedLanguageHead(nn.Module):
    def __init__(self, token):
        super().__init__()
        V, D = token.weight.size()
        self.token = token
        self.dense = nn.Linear(D, D)
        self.norm = nn.LayerNorm(D, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(V))

    def forward(self, hidden):
        x = self.dense(hidden)
        x = gelu(x)
        x = self.norm(x)
        logits = []
        for word in range(len(self.bias)):
            logits.append((x * self.token.weight[word]).sum(-1) + self.bias[word])
        return torch.stack(logits, dim=-1)


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
            vocab_size, d_model, num_layers, num_heads, d_ff, max_length, type_vocab_size, dropout
        )
        self.mlm = MaskedLanguageHead(self.bert.embeddings.token)
        self.nsp = nn.Linear(d_model, 2)

    def forward(self, input_ids, token_type_ids=None, mask=None):
        hidden, pooled = self.bert(input_ids, token_type_ids, mask)
        rows = []
        for row in hidden:
            rows.append(self.mlm(row))
        return torch.stack(rows), self.nsp(pooled)


# %% exercise="pretraining_loss"
def pretraining_loss(mlm_logits, nsp_logits, labels, is_random):
    B, T, _ = mlm_logits.shape
    losses = []
    for b in range(B):
        for t in range(T):
            if labels[b, t] != IGNORE:
                losses.append(-mlm_logits[b, t].log_softmax(0)[labels[b, t]])
    pairs = []
    for b in range(B):
        pairs.append(-nsp_logits[b].log_softmax(0)[is_random[b]])
    loss = sum(pairs) / len(pairs)
    if losses:
        loss = loss + sum(losses) / len(losses)
    return loss


# %% exercise="pretraining_step"
def pretraining_step(model, input_ids, token_type_ids, mask, labels, is_random, lr, clip=1.0):
    for parameter in model.parameters():
        parameter.grad = None
    mlm_logits, nsp_logits = model(input_ids, token_type_ids, mask)
    loss = pretraining_loss(mlm_logits, nsp_logits, labels, is_random)
    loss.backward()
    squares = 0.0
    for parameter in model.parameters():
        if parameter.grad is not None:
            squares += (parameter.grad**2).sum().item()
    norm = squares**0.5
    factor = lr
    if norm > clip:
        factor = lr * clip / norm
    with torch.no_grad():
        nsp = F.cross_entropy(nsp_logits, is_random).item()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(factor * parameter.grad)
    return {"loss": loss.item(), "mlm": loss.item() - nsp, "nsp": nsp, "norm": norm}


# %% exercise="pseudo_log_likelihood"
def pseudo_log_likelihood(model, ids):
    total = 0.0
    scored = 0
    for t in range(len(ids)):
        if ids[t] >= SPECIAL:
            masked = ids.clone()
            masked[t] = MASK
            with torch.no_grad():
                scores = model(masked[None])[0]
            total += scores[0, t].log_softmax(0)[ids[t]].item()
            scored += 1
    if scored == 0:
        raise ValueError("special tokens only")
    return total


# %% exercise="SequenceClassifier"
class SequenceClassifier(nn.Module):
    def __init__(self, bert, num_labels, dropout=0.1):
        super().__init__()
        self.bert = bert
        self.classifier = nn.Linear(bert.pooler.out_features, num_labels)
        self.drop = nn.Dropout(dropout)

    def forward(self, input_ids, token_type_ids=None, mask=None):
        pooled = self.bert(input_ids, token_type_ids, mask)[1]
        return self.classifier(self.drop(pooled))

    def loss(self, scores, labels):
        losses = []
        for b in range(len(scores)):
            losses.append(torch.logsumexp(scores[b], 0) - scores[b, labels[b]])
        return sum(losses) / len(losses)


# %% exercise="SpanFinder"
class SpanFinder(nn.Module):
    def __init__(self, bert):
        super().__init__()
        self.bert = bert
        self.classifier = nn.Linear(bert.pooler.out_features, 2)

    def forward(self, input_ids, token_type_ids=None, mask=None):
        hidden, _ = self.bert(input_ids, token_type_ids, mask)
        results = []
        for kind in range(2):
            scores = self.classifier(hidden)[:, :, kind]
            if mask is not None:
                lowest = torch.finfo(scores.dtype).min
                scores = torch.where(mask, scores, torch.full_like(scores, lowest))
            results.append(scores)
        return results[0], results[1]

    def loss(self, start, end, starts, ends):
        total = 0.0 * (start[:, 0].sum() + end[:, 0].sum())
        for scores, places in ((start, starts), (end, ends)):
            losses = []
            for b in range(len(scores)):
                place = int(places[b])
                if 0 <= place < scores.shape[1]:
                    losses.append(-scores[b].log_softmax(0)[place])
            if losses:
                total = total + sum(losses) / len(losses) / 2
        return total


# %% exercise="best_span"
def best_span(start, end, passage, max_answer=30, null_threshold=None):
    if max_answer < 1:
        raise ValueError("max_answer")
    best = None
    for i in range(len(start)):
        for j in range(i, min(i + max_answer, len(start))):
            if passage[i] and passage[j]:
                score = start[i] + end[j]
                if best is None or score > best:
                    best, answer = score, (i, j)
    if best is None:
        raise ValueError("no passage")
    if null_threshold is not None and start[0] + end[0] - best > null_threshold:
        return (0, 0)
    return answer


# %% exercise="align_labels"
def align_labels(word_labels, word_ids):
    labels = []
    for t, word in enumerate(word_ids):
        if word is None:
            labels.append(IGNORE)
        elif word < 0 or word >= len(word_labels):
            raise ValueError(f"no label for word {word}")
        elif word in word_ids[:t]:
            labels.append(IGNORE)
        else:
            labels.append(word_labels[word])
    return labels


# %% exercise="Tagger"
class Tagger(nn.Module):
    def __init__(self, bert, num_labels, dropout=0.1):
        super().__init__()
        self.bert = bert
        self.classifier = nn.Linear(bert.pooler.out_features, num_labels)
        self.drop = nn.Dropout(dropout)

    def forward(self, input_ids, token_type_ids=None, mask=None):
        hidden = self.drop(self.bert(input_ids, token_type_ids, mask)[0])
        columns = []
        for t in range(hidden.shape[1]):
            columns.append(self.classifier(hidden[:, t]))
        return torch.stack(columns, dim=1)

    def loss(self, scores, labels):
        losses = []
        for b in range(labels.shape[0]):
            for t in range(labels.shape[1]):
                if labels[b, t] != IGNORE:
                    losses.append(-scores[b, t].log_softmax(0)[labels[b, t]])
        if not losses:
            return 0.0 * scores.sum()
        return sum(losses) / len(losses)


# %% exercise="word_tags"
def word_tags(scores, word_ids):
    tags, seen = [], []
    for t, word in enumerate(word_ids):
        if word is not None and word not in seen:
            seen.append(word)
            tags.append(int(scores[t].argmax()))
    return tags


# %% exercise="crf_score"
def crf_score(emissions, tags, mask, transitions, start, end):
    scores = []
    for b in range(len(tags)):
        length = int(mask[b].sum())
        y = tags[b, :length].tolist()
        score = start[y[0]] + emissions[b, 0, y[0]]
        for t in range(1, length):
            score = score + transitions[y[t - 1], y[t]] + emissions[b, t, y[t]]
        scores.append(score + end[y[-1]])
    return torch.stack(scores)


# %% exercise="crf_partition"
def crf_partition(emissions, mask, transitions, start, end):
    totals = []
    for b in range(len(emissions)):
        sums = start + emissions[b, 0]
        for t in range(1, int(mask[b].sum())):
            new = []
            for y in range(len(start)):
                new.append(torch.logsumexp(sums + transitions[:, y], 0) + emissions[b, t, y])
            sums = torch.stack(new)
        totals.append(torch.logsumexp(sums + end, 0))
    return torch.stack(totals)


# %% exercise="viterbi"
def viterbi(emissions, mask, transitions, start, end):
    paths, scores = [], []
    for b in range(len(emissions)):
        best = start + emissions[b, 0]
        ways = [[y] for y in range(len(start))]
        for t in range(1, int(mask[b].sum())):
            new, longer = [], []
            for y in range(len(start)):
                score, before = (best + transitions[:, y]).max(0)
                new.append(score + emissions[b, t, y])
                longer.append([*ways[int(before)], y])
            best, ways = torch.stack(new), longer
        score, last = (best + end).max(0)
        paths.append(ways[int(last)])
        scores.append(score)
    return paths, torch.stack(scores)


# %% exercise="BiLSTMCRF"
class BiLSTMCRF(nn.Module):
    def __init__(self, vocab_size, embed_dim, hidden_size, num_tags):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.lstm = nn.LSTM(embed_dim, hidden_size, batch_first=True, bidirectional=True)
        self.emission = nn.Linear(2 * hidden_size, num_tags)
        self.crf = CRF(num_tags)

    def forward(self, ids, mask):
        rows = []
        for b in range(len(ids)):
            length = int(mask[b].sum())
            states, _ = self.lstm(self.embedding(ids[b : b + 1, :length]))
            emissions = self.emission(states[0])
            rows.append(F.pad(emissions, (0, 0, 0, ids.shape[1] - length)))
        return torch.stack(rows)

    def loss(self, ids, tags, mask):
        return self.crf.loss(self.forward(ids, mask), tags, mask)

    def decode(self, ids, mask):
        return self.crf.decode(self.forward(ids, mask), mask)


# %% exercise="SharedEncoder"
class SharedEncoder(nn.Module):
    def __init__(self, num_layers, d_model, num_heads, d_ff, dropout=0.0):
        super().__init__()
        self.times = num_layers
        self.layer = BertLayer(d_model, num_heads, d_ff, dropout)

    def forward(self, x, mask=None):
        count = 0
        while count < self.times:
            x = self.layer(x, mask)
            count += 1
        return x


# %% exercise="permutation_masks"
def permutation_masks(order):
    places = order.tolist()
    T = len(places)
    if sorted(places) != list(range(T)):
        raise ValueError("no permutation")
    query = torch.zeros(T, T, dtype=torch.bool)
    content = torch.zeros(T, T, dtype=torch.bool)
    for k, i in enumerate(places):
        content[i, i] = True
        for j in places[:k]:
            query[i, j] = True
            content[i, j] = True
    return content, query


# %% exercise="RelativeAttention"
class RelativeAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        if d_model % num_heads:
            raise ValueError("heads of different widths")
        self.heads, self.width = num_heads, d_model // num_heads
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, d_model, bias=False)
        self.r_proj = nn.Linear(d_model, d_model, bias=False)
        self.out_proj = nn.Linear(d_model, d_model, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(num_heads, self.width))
        self.position_bias = nn.Parameter(torch.zeros(num_heads, self.width))
        self.drop = nn.Dropout(dropout)

    def forward(self, x, memory=None):
        _, T, D = x.shape
        M = 0 if memory is None else memory.shape[1]
        joined = x if memory is None else torch.cat([memory.detach(), x], dim=1)
        q, k, v = self.q_proj(x), self.k_proj(joined), self.v_proj(joined)
        r = self.r_proj(relative_code(torch.arange(M + T), D).to(x.dtype))
        heads = []
        for h in range(self.heads):
            part = slice(h * self.width, (h + 1) * self.width)
            rows = []
            for t in range(T):
                i = M + t
                # The distances to places 0 .. i are i .. 0.
                by_content = k[:, : i + 1, part] @ (q[:, t, part] + self.content_bias[h])[..., None]
                near = r[: i + 1, part].flip(0)
                by_place = (q[:, t, part] + self.position_bias[h]) @ near.T
                scores = (by_content[..., 0] + by_place) / math.sqrt(self.width)
                attn_weights = self.drop(torch.softmax(scores, dim=-1))
                rows.append((attn_weights[:, None] @ v[:, : i + 1, part])[:, 0])
            heads.append(torch.stack(rows, dim=1))
        return self.out_proj(torch.cat(heads, dim=-1))


# %% exercise="update_memory"
def update_memory(memory, hidden, length):
    if length < 0:
        raise ValueError("length")
    places = []
    if memory is not None:
        for t in range(memory.shape[1]):
            places.append(memory[:, t])
    for t in range(hidden.shape[1]):
        places.append(hidden[:, t])
    while len(places) > length:
        places.pop(0)
    if not places:
        return hidden[:, :0].detach()
    return torch.stack(places, dim=1).detach()


# %% exercise="replace_tokens"
def replace_tokens(ids, labels, logits):
    replaced = ids.clone()
    for b in range(len(ids)):
        for t in range(ids.shape[1]):
            if labels[b, t] != IGNORE:
                weights = logits[b, t].detach().softmax(0).tolist()
                replaced[b, t] = random.choices(range(len(weights)), weights)[0]
    return replaced, replaced != ids


# %% exercise="replaced_token_loss"
def replaced_token_loss(scores, is_replaced, mask):
    losses = []
    for b, t in itertools.product(range(scores.shape[0]), range(scores.shape[1])):
        if mask[b, t]:
            sign = 1.0 if is_replaced[b, t] else -1.0
            losses.append(-F.logsigmoid(sign * scores[b, t]))
    return sum(losses) / len(losses)


# %% exercise="TwoDirections"
class TwoDirections(nn.Module):
    def __init__(self, vocab_size, embed_dim, hidden_size):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.forward_lstm = nn.LSTM(embed_dim, hidden_size, batch_first=True)
        self.backward_lstm = nn.LSTM(embed_dim, hidden_size, batch_first=True)
        self.output = nn.Linear(hidden_size, vocab_size)

    def forward(self, ids, mask=None):
        rows = []
        for b in range(len(ids)):
            length = ids.shape[1] if mask is None else int(mask[b].sum())
            x = self.embedding(ids[b, :length])
            ahead, _ = self.forward_lstm(x[None])
            back, _ = self.backward_lstm(x.flip(0)[None])
            both = torch.cat([ahead[0], back[0].flip(0)], dim=1)
            rows.append(F.pad(both, (0, 0, 0, ids.shape[1] - length)))
        return torch.stack(rows)

    def loss(self, ids, mask=None):
        states = self.forward(ids, mask)
        half = states.shape[2] // 2
        following, preceding = [], []
        for b in range(len(ids)):
            length = ids.shape[1] if mask is None else int(mask[b].sum())
            for t in range(length):
                if t + 1 < length:
                    said = self.output(states[b, t, :half]).log_softmax(0)
                    following.append(-said[ids[b, t + 1]])
                if t > 0:
                    said = self.output(states[b, t, half:]).log_softmax(0)
                    preceding.append(-said[ids[b, t - 1]])
        return sum(following) / len(following) + sum(preceding) / len(preceding)
