"""The graders of `bert-fine_tuning`: right answers in any style earn full marks."""

from __future__ import annotations

from tests.autograder.unit_graders import EarlierParts, Styles, UnitGraders

UNIT = "bert-fine_tuning"

# Right answers that look unlike the reference and unlike those in autograder/demo.
STYLES = Styles()
style = STYLES.add


# Fine-tuning --------------------------------------------------------------------------------------

style(
    "SequenceClassifier",
    "log-probabilities picked by hand",
    """
    class SequenceClassifier(nn.Module):
        def __init__(self, bert, num_labels, dropout=0.1):
            super().__init__()
            self.bert, self.p = bert, dropout
            self.classifier = nn.Linear(bert.embeddings.token.embedding_dim, num_labels)

        def forward(self, input_ids, token_type_ids=None, mask=None):
            pooled = self.bert(input_ids, token_type_ids=token_type_ids, mask=mask)[1]
            return self.classifier(F.dropout(pooled, self.p, self.training))

        def loss(self, scores, labels):
            picked = scores.gather(1, labels[:, None])[:, 0]
            return (scores.logsumexp(1) - picked).mean()
    """,
)
style(
    "SequenceClassifier",
    "nn.CrossEntropyLoss, sizes by keyword",
    """
    class SequenceClassifier(nn.Module):
        def __init__(self, bert, num_labels, dropout=0.1):
            super().__init__()
            self.bert = bert
            self.dropout = nn.Dropout(dropout)
            self.classifier = nn.Linear(bert.pooler.out_features, num_labels)
            self.criterion = nn.CrossEntropyLoss()

        def forward(self, input_ids, token_type_ids=None, mask=None):
            _, cls = self.bert(input_ids, token_type_ids, mask)
            return F.linear(self.dropout(cls), self.classifier.weight, self.classifier.bias)

        def loss(self, scores, labels):
            return self.criterion(scores, labels)
    """,
)
style(
    "SpanFinder",
    "torch.where, targets picked row by row",
    """
    class SpanFinder(nn.Module):
        def __init__(self, bert):
            super().__init__()
            self.bert = bert
            self.classifier = nn.Linear(bert.pooler.in_features, 2)

        def forward(self, input_ids, token_type_ids=None, mask=None):
            x = self.classifier(self.bert(input_ids, token_type_ids, mask)[0])
            start, end = x[..., 0], x[..., 1]
            if mask is None:
                return start, end
            least = torch.tensor(torch.finfo(x.dtype).min, dtype=x.dtype)
            return torch.where(mask, start, least), torch.where(mask, end, least)

        def loss(self, start, end, starts, ends):
            total = 0.0 * (start[0, 0] + end[0, 0])
            for scores, targets in ((start, starts), (end, ends)):
                rows = [b for b, t in enumerate(targets.tolist()) if 0 <= t < scores.shape[1]]
                if rows:
                    each = [-scores[b].log_softmax(0)[targets[b]] for b in rows]
                    total = total + 0.5 * sum(each) / len(rows)
            return total
    """,
)
style(
    "SpanFinder",
    "both ends as one batch of targets, nan set to 0",
    """
    class SpanFinder(nn.Module):
        def __init__(self, bert):
            super().__init__()
            self.classifier = nn.Linear(bert.pooler.in_features, 2)
            self.bert = bert

        def forward(self, input_ids, token_type_ids=None, mask=None):
            hidden = self.bert(input_ids, token_type_ids, mask)[0]
            scores = self.classifier(hidden).transpose(1, 2)
            if mask is not None:
                hide = torch.logical_not(mask)[:, None].expand_as(scores)
                scores = scores.masked_fill(hide, torch.finfo(scores.dtype).min)
            return tuple(scores.unbind(1))

        def loss(self, start, end, starts, ends):
            T = start.shape[1]
            parts = []
            for scores, targets in zip((start, end), (starts, ends)):
                keep = (targets > -1) & (targets < T)
                if keep.any():
                    parts.append(F.cross_entropy(scores[keep], targets[keep]))
                else:
                    parts.append(scores.new_zeros(()) * scores.sum())
            return torch.stack(parts).mean()
    """,
)
style(
    "best_span",
    "two loops",
    """
    import math

    def best_span(start, end, passage, max_answer=30, null_threshold=None):
        if max_answer < 1 or not bool(passage.any()):
            raise ValueError("no answer possible")
        start, end, inside = start.tolist(), end.tolist(), passage.tolist()
        best, found = -math.inf, None
        for i in range(len(start)):
            if not inside[i]:
                continue
            for j in range(i, min(i + max_answer, len(end))):
                if inside[j] and (found is None or start[i] + end[j] > best):
                    best, found = start[i] + end[j], (i, j)
        if null_threshold is not None and start[0] + end[0] - best > null_threshold:
            return (0, 0)
        return found
    """,
)
style(
    "best_span",
    "a band of the table of sums",
    """
    def best_span(start, end, passage, max_answer=30, null_threshold=None):
        if int(max_answer) <= 0:
            raise ValueError("max_answer")
        if passage.sum() == 0:
            raise ValueError("passage")
        T = len(start)
        table = start[:, None] + end[None, :]
        band = torch.ones(T, T).triu().tril(max_answer - 1) > 0
        table = table.masked_fill(~(band & passage[:, None] & passage[None, :]), -float("inf"))
        best = table.max()
        i, j = (table == best).nonzero()[0].tolist()
        if null_threshold is not None:
            if (start[0] + end[0]).item() - best.item() > null_threshold:
                i = j = 0
        return i, j
    """,
)
style(
    "align_labels",
    "compared with the word before",
    """
    def align_labels(word_labels, word_ids):
        result, before = [], None
        for word in word_ids:
            if word is None or word == before:
                result.append(IGNORE)
            elif 0 <= word < len(word_labels):
                result.append(word_labels[word])
            else:
                raise ValueError(word)
            before = word
        return result
    """,
)
style(
    "align_labels",
    "the first place of each word",
    """
    def align_labels(word_labels, word_ids):
        words = set(word_ids) - {None}
        if not words <= set(range(len(word_labels))):
            raise ValueError("a word without a label")
        result = [IGNORE] * len(word_ids)
        for word in words:
            result[word_ids.index(word)] = word_labels[word]
        return result
    """,
)
style(
    "Tagger",
    "only tokens with a label",
    """
    class Tagger(nn.Module):
        def __init__(self, bert, num_labels, dropout=0.1):
            super().__init__()
            self.bert, self.p = bert, dropout
            self.classifier = nn.Linear(bert.pooler.in_features, num_labels)

        def forward(self, input_ids, token_type_ids=None, mask=None):
            hidden = self.bert(input_ids, token_type_ids, mask)[0]
            return self.classifier(F.dropout(hidden, self.p, self.training))

        def loss(self, scores, labels):
            keep = labels != IGNORE
            if not keep.any():
                return (scores * 0).sum()
            return F.cross_entropy(scores[keep], labels[keep])
    """,
)
style(
    "Tagger",
    "nan of nothing set to 0, classes in the second axis",
    """
    class Tagger(nn.Module):
        def __init__(self, bert, num_labels, dropout=0.1):
            super().__init__()
            self.bert = bert
            self.drop = nn.Dropout(dropout)
            self.classifier = nn.Linear(bert.pooler.in_features, num_labels)

        def forward(self, input_ids, token_type_ids=None, mask=None):
            hidden, _ = self.bert(input_ids, token_type_ids=token_type_ids, mask=mask)
            return self.classifier(self.drop(hidden))

        def loss(self, scores, labels):
            each = F.cross_entropy(scores.transpose(1, 2), labels, reduction="none")
            return each.sum() / max(int((labels != IGNORE).sum()), 1)
    """,
)
style(
    "word_tags",
    "the first place of each word",
    """
    def word_tags(scores, word_ids):
        firsts = [t for t, w in enumerate(word_ids) if w is not None and w not in word_ids[:t]]
        return [int(scores[t].argmax()) for t in firsts]
    """,
)
style(
    "word_tags",
    "compared with the word before",
    """
    def word_tags(scores, word_ids):
        tags, before = [], None
        for row, word in zip(scores.tolist(), word_ids):
            if word is not None and word != before:
                tags.append(row.index(max(row)))
            before = word
        return tags
    """,
)

# Tags in sequence: the CRF ------------------------------------------------------------------------

style(
    "crf_score",
    "row by row, tag by tag",
    """
    def crf_score(emissions, tags, mask, transitions, start, end):
        scores = []
        for row in range(emissions.shape[0]):
            path = tags[row][mask[row]].tolist()
            score = start[path[0]] + end[path[-1]]
            for place, tag in enumerate(path):
                score = score + emissions[row, place, tag]
                if place:
                    score = score + transitions[path[place - 1], tag]
            scores.append(score)
        return torch.stack(scores)
    """,
)
style(
    "crf_score",
    "one-hot tags, products with the mask",
    """
    def crf_score(emissions, tags, mask, transitions, start, end):
        L, real = len(start), mask.to(emissions.dtype)
        hot = F.one_hot(tags.where(mask, torch.zeros_like(tags)), L) * real[..., None]
        last = real - F.pad(real, (0, 1))[:, 1:]
        score = torch.einsum("btl,btl->b", emissions, hot)
        score += torch.einsum("bti,ij,btj->b", hot[:, :-1], transitions, hot[:, 1:])
        return score + hot[:, 0] @ start + torch.einsum("bt,btl,l->b", last, hot, end)
    """,
)
style(
    "crf_partition",
    "the recursion from the end, row by row",
    """
    def crf_partition(emissions, mask, transitions, start, end):
        results = []
        for row, length in zip(emissions, mask.sum(1).tolist()):
            beta = end
            for t in range(length - 1, 0, -1):
                beta = (transitions + (row[t] + beta)[None, :]).logsumexp(1)
            results.append(torch.logsumexp(start + row[0] + beta, 0))
        return torch.stack(results)
    """,
)
style(
    "crf_partition",
    "matrices of log-scores multiplied in pairs, the largest taken out by hand",
    """
    def crf_partition(emissions, mask, transitions, start, end):
        def product(a, b):
            terms = a[:, :, :, None] + b[:, None, :, :]
            top = terms.detach().amax(2, keepdim=True).clamp_min(-1e30)
            return (terms - top).exp().sum(2).log() + top.squeeze(2)

        B, T, L = emissions.shape
        steps = transitions[None, None] + emissions[:, 1:, None, :]
        same = torch.full((L, L), -1e30, dtype=emissions.dtype).fill_diagonal_(0.0)
        steps = torch.where(mask[:, 1:, None, None], steps, same)
        total = (start + emissions[:, 0])[:, None, :]
        for t in range(T - 1):
            total = product(total, steps[:, t])
        return torch.logsumexp(total[:, 0] + end, -1)
    """,
)
style(
    "viterbi",
    "all paths tried",
    """
    import itertools

    def viterbi(emissions, mask, transitions, start, end):
        paths, scores = [], []
        for row, length in zip(emissions, mask.sum(1).tolist()):
            if length * len(start) > 20:  # too many of them: the best way to each tag
                ways = [([y], start[y] + row[0, y]) for y in range(len(start))]
                for t in range(1, length):
                    ways = [
                        max(
                            (([*p, y], s + transitions[p[-1], y] + row[t, y]) for p, s in ways),
                            key=lambda way: way[1],
                        )
                        for y in range(len(start))
                    ]
                path, score = max(ways, key=lambda way: way[1] + end[way[0][-1]])
                paths.append(path)
                scores.append(score + end[path[-1]])
                continue
            best = None
            for path in itertools.product(range(len(start)), repeat=length):
                score = start[path[0]] + end[path[-1]] + row[range(length), path].sum()
                score = score + transitions[path[:-1], path[1:]].sum()
                if best is None or score >= best[1]:
                    best = list(path), score
            paths.append(best[0])
            scores.append(best[1])
        return paths, torch.stack(scores)
    """,
)
style(
    "viterbi",
    "pointers to themselves at padding, the last of equal ones",
    """
    def viterbi(emissions, mask, transitions, start, end):
        B, T, L = emissions.shape
        score = emissions[:, 0] + start
        back = torch.arange(L).repeat(B, T, 1)
        for t in range(1, T):
            terms = (score[:, :, None] + transitions).flip(1)
            value, where = terms.max(1)
            real = mask[:, t].unsqueeze(1)
            back[:, t] = torch.where(real, L - 1 - where, back[:, t])
            score = torch.where(real, value + emissions[:, t], score)
        total, tag = (score + end).max(-1)
        tags = [tag]
        for t in range(T - 1, 0, -1):
            tag = back[:, t].gather(1, tag[:, None])[:, 0]
            tags.insert(0, tag)
        rows = torch.stack(tags, 1)
        return [rows[b, : int(mask[b].sum())].tolist() for b in range(B)], total
    """,
)
style(
    "BiLSTMCRF",
    "rows run one by one",
    """
    class BiLSTMCRF(nn.Module):
        def __init__(self, vocab_size, embed_dim, hidden_size, num_tags):
            super().__init__()
            self.crf = CRF(num_tags)
            self.embedding = nn.Embedding(vocab_size, embed_dim)
            self.lstm = nn.LSTM(embed_dim, hidden_size, bidirectional=True, batch_first=True)
            self.emission = nn.Linear(hidden_size * 2, num_tags)

        def forward(self, ids, mask):
            rows = []
            for row, real in zip(ids, mask):
                states, _ = self.lstm(self.embedding(row[real]).unsqueeze(0))
                rows.append(F.pad(self.emission(states[0]), (0, 0, 0, len(row) - len(states[0]))))
            return torch.stack(rows)

        def loss(self, ids, tags, mask):
            return self.crf.loss(self.forward(ids, mask), tags, mask)

        def decode(self, ids, mask):
            with torch.no_grad():
                return self.crf.decode(self.forward(ids, mask), mask)
    """,
)
style(
    "BiLSTMCRF",
    "packed and sorted by hand, the CRF written out",
    """
    class BiLSTMCRF(nn.Module):
        def __init__(self, vocab_size, embed_dim, hidden_size, num_tags):
            super().__init__()
            self.embedding = nn.Embedding(vocab_size, embed_dim)
            self.lstm = nn.LSTM(embed_dim, hidden_size, 1, batch_first=True, bidirectional=True)
            self.drop = nn.Dropout(0.0)
            self.emission = nn.Linear(2 * hidden_size, num_tags)
            self.crf = CRF(num_tags)

        def forward(self, ids, mask):
            lengths, order = mask.sum(dim=1).sort(descending=True)
            x = self.drop(self.embedding(ids[order]))
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths.tolist(), batch_first=True)
            out, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
            out = out[order.argsort()]
            rest = out.new_zeros(len(ids), ids.size(1) - out.size(1), out.size(2))
            out = torch.cat([out, rest], 1)
            return self.emission(out) * mask[..., None]

        def tables(self):
            return self.crf.transitions, self.crf.start, self.crf.end

        def loss(self, ids, tags, mask):
            emissions = self(ids, mask)
            score = crf_score(emissions, tags.clamp(min=0), mask, *self.tables())
            return (crf_partition(emissions, mask, *self.tables()) - score).sum() / len(ids)

        def decode(self, ids, mask):
            paths, _ = viterbi(self(ids, mask), mask, *self.tables())
            return paths
    """,
)


class TestGraders(UnitGraders):
    unit = UNIT
    styles = STYLES


TASKS = ["SequenceClassifier", "SpanFinder", "Tagger"]
# What becomes of an early mistake in the exercises that use it: those that must still pass.
KEPT = {
    "gelu_by_tanh": TASKS,
    "embeddings_scaled": TASKS,
    "embeddings_dropout_before_norm": TASKS,
    "attention_unscaled": TASKS,
    "attention_scaled_by_width": TASKS,
    "layer_pre_norm": TASKS,
    "layer_relu": TASKS,
    "model_pooler_without_tanh": TASKS,
    "model_layers_backwards": TASKS,
    "align_last_piece": ["Tagger", "word_tags"],
    "crf_score_without_start": ["crf_partition", "viterbi", "BiLSTMCRF"],
    "crf_partition_without_end": ["crf_score", "viterbi", "BiLSTMCRF"],
    "viterbi_greedy": ["BiLSTMCRF"],
}


class TestEarlierParts(EarlierParts):
    unit = UNIT
    kept = KEPT
    unexcused = (
        ("model_pooler_without_tanh", "classifier_reads_hidden_cls"),
        ("model_layers_backwards", "span_mask_not_passed"),
        ("model_layers_backwards", "tagger_reads_pooled"),
        ("viterbi_greedy", "bilstm_decodes_padding"),
        ("crf_score_without_start", "bilstm_loss_summed"),
    )
