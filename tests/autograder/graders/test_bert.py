"""The graders of `bert`: every legitimate style earns full marks, known mistakes do not."""

from __future__ import annotations

import functools

import pytest

from autograder.units.variants import misconceptions, wrong_namespace
from tests.autograder.chapter_graders import ChapterGraders, Styles, cell_with, changed, failures

CHAPTER = "bert"

# Right answers that look unlike the reference and unlike those in autograder/demo.
STYLES = Styles()
style = STYLES.add


# Input and encoder ------------------------------------------------------------------------------

style(
    "build_input",
    "lengths first, then slices",
    """
    def build_input(first, second=None, max_length=512):
        if len(first) == 0 or (second is not None and len(second) == 0):
            raise ValueError("nothing")
        a, b = len(first), 0 if second is None else len(second)
        room = max_length - (2 if second is None else 3)
        if room < (1 if second is None else 2):
            raise ValueError("no room")
        while a + b > room:
            if a > b:
                a -= 1
            else:
                b -= 1
            if second is None:
                a, b = room, 0
        ids = [CLS] + list(first[:a]) + [SEP]
        segments = [0 for _ in ids]
        if second is not None:
            ids += list(second[:b]) + [SEP]
            segments += [1] * (b + 1)
        return ids, segments
    """,
)
style(
    "build_input",
    "a formula for the lengths, a list as the result",
    """
    def build_input(first, second=None, max_length=512):
        if not len(first) or (second is not None and not len(second)):
            raise ValueError("empty")
        if max_length < (5 if second is not None else 3):
            raise ValueError("short")
        if second is None:
            ids = [CLS, *first[: max_length - 2], SEP]
            return [ids, [0] * len(ids)]
        room = max_length - 3
        over = max(len(first) + len(second) - room, 0)
        if over:
            low = min(len(first), len(second))
            if 2 * low <= room:
                a, b = min(len(first), room - low), min(len(second), room - low)
                if len(first) <= len(second):
                    a, b = len(first), room - len(first)
                else:
                    a, b = room - len(second), len(second)
            else:
                a, b = (room + 1) // 2, room // 2
        else:
            a, b = len(first), len(second)
        ids = [CLS, *first[:a], SEP, *second[:b], SEP]
        return [ids, [int(place > a + 1) for place in range(len(ids))]]
    """,
)
style(
    "gelu",
    "the complementary error function",
    """
    def gelu(x):
        return x * torch.erfc(-x * 0.7071067811865476) / 2
    """,
)
style(
    "gelu",
    "the distribution function of torch.special",
    """
    def gelu(x):
        return torch.special.ndtr(x) * x
    """,
)
style(
    "BertEmbeddings",
    "positions as ids, a norm by hand",
    """
    class Norm(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))
            self.bias = nn.Parameter(torch.zeros(width))

        def forward(self, x):
            x = x - x.mean(-1, keepdim=True)
            return self.weight * x / (x.pow(2).mean(-1, keepdim=True) + 1e-12).sqrt() + self.bias

    class BertEmbeddings(nn.Module):
        def __init__(self, vocab_size, hidden, max_length=512, segments=2, dropout=0.0):
            super().__init__()
            self.token = nn.Embedding(vocab_size, hidden)
            self.position = nn.Embedding(max_length, hidden)
            self.segment = nn.Embedding(segments, hidden)
            self.norm = Norm(hidden)
            self.rate, self.longest = dropout, max_length

        def forward(self, ids, segment_ids=None):
            B, T = ids.shape
            if T > self.longest:
                raise ValueError(f"{T} > {self.longest}")
            places = torch.arange(T).expand(B, T)
            kinds = torch.zeros(B, T, dtype=torch.long) if segment_ids is None else segment_ids
            x = torch.stack([self.token(ids), self.position(places), self.segment(kinds)]).sum(0)
            return F.dropout(self.norm(x), self.rate, self.training)
    """,
)
style(
    "BertEmbeddings",
    "one-hot rows, a buffer of positions, dropout drawn by hand",
    """
    class BertEmbeddings(nn.Module):
        def __init__(self, vocab_size, hidden, max_length=512, segments=2, dropout=0.0):
            super().__init__()
            self.token = nn.Embedding(vocab_size, hidden)
            self.position = nn.Embedding(max_length, hidden)
            self.segment = nn.Embedding(segments, hidden)
            self.norm = nn.LayerNorm(hidden, eps=1e-12)
            self.register_buffer("places", torch.arange(max_length), persistent=False)
            self.p = dropout

        def forward(self, ids, segment_ids=None):
            if ids.size(1) > len(self.places):
                raise ValueError("too long")
            hot = F.one_hot(ids, self.token.num_embeddings).to(self.token.weight.dtype)
            x = hot @ self.token.weight + self.position(self.places[: ids.size(1)])[None]
            if segment_ids is None:
                x = x + self.segment.weight[0]
            else:
                x = x + F.embedding(segment_ids, self.segment.weight)
            x = self.norm(x)
            if self.training and self.p > 0:
                x = x * (torch.rand_like(x) >= self.p) / (1 - self.p)
            return x
    """,
)
style(
    "SelfAttention",
    "einsum, -inf at hidden keys",
    """
    class SelfAttention(nn.Module):
        def __init__(self, hidden, num_heads, dropout=0.0):
            super().__init__()
            if hidden % num_heads:
                raise ValueError("heads")
            self.h = num_heads
            self.q_proj, self.k_proj = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
            self.v_proj, self.out_proj = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
            self.drop = nn.Dropout(dropout)

        def forward(self, x, mask=None):
            split = lambda y: y.unflatten(-1, (self.h, -1))
            q, k, v = split(self.q_proj(x)), split(self.k_proj(x)), split(self.v_proj(x))
            scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
            if mask is not None:
                scores = scores.masked_fill(~mask[:, None, None], float("-inf"))
            weights = self.drop(scores.softmax(-1))
            return self.out_proj(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2))
    """,
)
style(
    "SelfAttention",
    "one fused projection, an additive mask of -10000, a loop over heads",
    """
    class SelfAttention(nn.Module):
        def __init__(self, hidden, num_heads, dropout=0.0):
            super().__init__()
            if hidden % num_heads != 0:
                raise ValueError(f"{hidden} by {num_heads}")
            for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                setattr(self, name, nn.Linear(hidden, hidden))
            self.num_heads, self.dropout = num_heads, nn.Dropout(dropout)

        def forward(self, x, mask=None):
            parts = (self.q_proj, self.k_proj, self.v_proj)
            weight = torch.cat([part.weight for part in parts])
            bias = torch.cat([part.bias for part in parts])
            q, k, v = (x @ weight.T + bias).chunk(3, dim=-1)
            extra = 0 if mask is None else (1 - mask[:, None, :].to(x.dtype)) * -10000.0
            d, heads = x.size(-1) // self.num_heads, []
            for h in range(self.num_heads):
                s = slice(h * d, (h + 1) * d)
                scores = q[..., s] @ k[..., s].transpose(1, 2) / math.sqrt(d) + extra
                e = torch.exp(scores - scores.max(-1, keepdim=True).values)
                heads.append(self.dropout(e / e.sum(-1, keepdim=True)) @ v[..., s])
            return self.out_proj(torch.cat(heads, dim=-1))
    """,
)
style(
    "BertLayer",
    "F.gelu, one dropout for each place",
    """
    class BertLayer(nn.Module):
        def __init__(self, hidden, num_heads, intermediate, dropout=0.0):
            super().__init__()
            self.attention = SelfAttention(hidden, num_heads, dropout=dropout)
            self.attention_norm = nn.LayerNorm(hidden, 1e-12)
            self.w_1, self.w_2 = nn.Linear(hidden, intermediate), nn.Linear(intermediate, hidden)
            self.output_norm = nn.LayerNorm(hidden, 1e-12)
            self.drop_1, self.drop_2 = nn.Dropout(dropout), nn.Dropout(dropout)

        def forward(self, x, mask=None):
            y = self.attention(x, mask=mask)
            y = self.attention_norm(self.drop_1(y) + x)
            z = self.drop_2(self.w_2(F.gelu(self.w_1(y))))
            return self.output_norm(y + z)
    """,
)
style(
    "BertLayer",
    "helpers, norms by their formula",
    """
    def after(norm, x, addition):
        x = x + addition
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        return norm.weight * centred * torch.rsqrt(variance + 1e-12) + norm.bias

    class BertLayer(nn.Module):
        def __init__(self, hidden, num_heads, intermediate, dropout=0.0):
            super().__init__()
            self.p = dropout
            self.attention = SelfAttention(hidden, num_heads, dropout)
            self.w_1, self.w_2 = nn.Linear(hidden, intermediate), nn.Linear(intermediate, hidden)
            self.attention_norm, self.output_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)

        def forward(self, x, mask=None):
            drop = lambda y: F.dropout(y, self.p, training=self.training)
            x = after(self.attention_norm, x, drop(self.attention(x, mask)))
            return after(self.output_norm, x, drop(self.w_2(gelu(self.w_1(x)))))
    """,
)
style(
    "BertModel",
    "layers in a loop, weights drawn by hand",
    """
    class BertModel(nn.Module):
        def __init__(self, vocab_size, hidden=768, num_layers=12, num_heads=12, intermediate=3072,
                     max_length=512, segments=2, dropout=0.1):
            super().__init__()
            self.embeddings = BertEmbeddings(vocab_size, hidden, max_length, segments, dropout)
            self.layers = nn.ModuleList()
            for _ in range(num_layers):
                self.layers.append(BertLayer(hidden, num_heads, intermediate, dropout))
            self.pooler = nn.Linear(hidden, hidden)
            for name, parameter in self.named_parameters():
                if parameter.ndim == 2:
                    nn.init.trunc_normal_(parameter, std=0.02, a=-0.04, b=0.04)
                elif "norm.weight" not in name:
                    nn.init.zeros_(parameter)

        def forward(self, ids, segment_ids=None, mask=None):
            if segment_ids is None:
                segment_ids = torch.zeros_like(ids)
            if mask is None:
                mask = torch.ones_like(ids, dtype=torch.bool)
            hidden = self.embeddings(ids, segment_ids)
            for number in range(len(self.layers)):
                hidden = self.layers[number](hidden, mask)
            pooled = self.pooler(hidden)[:, 0].tanh()
            return hidden, pooled
    """,
)
style(
    "BertModel",
    "all states kept, a helper for the pooler",
    """
    class BertModel(nn.Module):
        def __init__(self, vocab_size, hidden=768, num_layers=12, num_heads=12, intermediate=3072,
                     max_length=512, segments=2, dropout=0.1):
            super().__init__()
            self.pooler = nn.Linear(hidden, hidden)
            self.layers = nn.ModuleList(
                [BertLayer(hidden, num_heads, intermediate, dropout) for _ in range(num_layers)]
            )
            self.embeddings = BertEmbeddings(
                vocab_size, hidden, max_length=max_length, segments=segments, dropout=dropout
            )
            self.apply(init_weights)

        def pool(self, x):
            return torch.tanh(self.pooler(x.select(1, 0)))

        def forward(self, ids, segment_ids=None, mask=None):
            states = [self.embeddings(ids, segment_ids)]
            for layer in self.layers:
                states.append(layer(states[-1], mask=mask))
            return [states[-1], self.pool(states[-1])]
    """,
)
style(
    "count_parameters",
    "shapes in a list",
    """
    def count_parameters(vocab_size=30522, hidden=768, num_layers=12, intermediate=3072,
                         max_length=512, segments=2, heads=False):
        D, F_ = hidden, intermediate
        shapes = [(vocab_size, D), (max_length, D), (segments, D), (D,), (D,)]
        for _ in range(num_layers):
            shapes += 4 * [(D, D), (D,)] + 2 * [(D,), (D,)]
            shapes += [(F_, D), (F_,), (D, F_), (D,)]
        shapes += [(D, D), (D,)]
        if heads:
            shapes += [(D, D), (D,), (D,), (D,), (vocab_size,), (2, D), (2,)]
        return sum(math.prod(shape) for shape in shapes)
    """,
)
style(
    "count_parameters",
    "a model that takes no memory",
    """
    def count_parameters(vocab_size=30522, hidden=768, num_layers=12, intermediate=3072,
                         max_length=512, segments=2, heads=False):
        with torch.device("meta"):
            model = BertModel(vocab_size, hidden, num_layers, 1, intermediate, max_length, segments)
        total = sum(parameter.numel() for parameter in model.parameters())
        if heads:
            total += hidden * (hidden + 1) + 2 * hidden + vocab_size + 2 * hidden + 2
        return total
    """,
)
style(
    "rename_parameters",
    "regular expressions",
    """
    import re

    def rename_parameters(state):
        end = r"\\.(weight|bias|gamma|beta)$"
        rules = [
            (r"^((?:bert\\.)?)embeddings\\.word_embeddings", r"\\1embeddings.token"),
            (r"^((?:bert\\.)?)embeddings\\.position_embeddings", r"\\1embeddings.position"),
            (r"^((?:bert\\.)?)embeddings\\.token_type_embeddings", r"\\1embeddings.segment"),
            (r"^((?:bert\\.)?)embeddings\\.LayerNorm", r"\\1embeddings.norm"),
            (r"^((?:bert\\.)?)pooler\\.dense", r"\\1pooler"),
            (r"^cls\\.predictions\\.transform\\.dense", "mlm.dense"),
            (r"^cls\\.predictions\\.transform\\.LayerNorm", "mlm.norm"),
            (r"^cls\\.predictions(?=\\.bias)", "mlm"),
            (r"^cls\\.seq_relationship", "nsp"),
            (r"^(?:classifier|qa_outputs)", "classifier"),
        ]
        for old, new in [
            ("attention.self.query", "attention.q_proj"),
            ("attention.self.key", "attention.k_proj"),
            ("attention.self.value", "attention.v_proj"),
            ("attention.output.dense", "attention.out_proj"),
            ("attention.output.LayerNorm", "attention_norm"), ("intermediate.dense", "w_1"),
            ("output.dense", "w_2"), ("output.LayerNorm", "output_norm"),
        ]:
            pattern = r"^((?:bert\\.)?)encoder\\.layer\\.(\\d+)\\." + re.escape(old)
            rules.append((pattern, r"\\1layers.\\2." + new))
        result = {}
        for name, tensor in state.items():
            if re.search(r"position_ids$|^cls\\.predictions\\.decoder\\.", name):
                continue
            for pattern, new in rules:
                if re.search(pattern + end, name):
                    name_ = re.sub(pattern, new, name)
                    name_ = re.sub(r"\\.gamma$", ".weight", name_)
                    result[re.sub(r"\\.beta$", ".bias", name_)] = tensor
                    break
            else:
                raise ValueError(f"unknown: {name}")
        return result
    """,
)
style(
    "rename_parameters",
    "replacements in order, checked at the end",
    """
    def rename_parameters(state):
        result = {}
        for old, tensor in state.items():
            name = old
            if "position_ids" in name or "predictions.decoder" in name:
                continue
            for a, b in {
                "gamma": "weight", "beta": "bias", "word_embeddings": "token",
                "position_embeddings": "position", "token_type_embeddings": "segment",
                "embeddings.LayerNorm": "embeddings.norm", "encoder.layer": "layers",
                "self.query": "q_proj", "self.key": "k_proj", "self.value": "v_proj",
                "attention.output.dense": "attention.out_proj",
                "attention.output.LayerNorm": "attention_norm", "intermediate.dense": "w_1",
                "output.dense": "w_2", "output.LayerNorm": "output_norm", "pooler.dense": "pooler",
                "cls.predictions.transform.dense": "mlm.dense",
                "cls.predictions.transform.LayerNorm": "mlm.norm", "cls.predictions": "mlm",
                "cls.seq_relationship": "nsp", "qa_outputs": "classifier",
            }.items():
                name = name.replace(a, b)
            plain = name.removeprefix("bert.").split(".")
            *path, last = plain
            if path[0] == "layers":
                path = path[2:]
            known = ["embeddings.token", "embeddings.position", "embeddings.segment", "pooler"]
            known += ["embeddings.norm", "attention.q_proj", "attention.k_proj", "attention_norm"]
            known += ["attention.v_proj", "attention.out_proj", "w_1", "w_2", "output_norm", "nsp"]
            known += ["mlm", "mlm.dense", "mlm.norm", "classifier"]
            if ".".join(path) not in known or last not in ("weight", "bias"):
                raise ValueError(old)
            result[name] = tensor
        return result
    """,
)

# Masking and pairs ------------------------------------------------------------------------------

style(
    "mask_tokens",
    "one uniform number decides everything",
    """
    def mask_tokens(ids, vocab_size, rate=0.15):
        if rate < 0 or rate > 1 or vocab_size - SPECIAL < 1:
            raise ValueError("nothing to choose from")
        u = torch.rand_like(ids, dtype=torch.float64)
        ordinary = ids.ge(SPECIAL)
        share = u / rate if rate else torch.full_like(u, 2.0)
        chosen = ordinary & (share < 1)
        new = torch.where(share < 0.8, torch.full_like(ids, MASK), ids)
        new = torch.where(
            (share >= 0.8) & (share < 0.9), torch.randint(SPECIAL, vocab_size, ids.shape), new
        )
        return torch.where(chosen, new, ids), torch.where(chosen, ids, torch.tensor(IGNORE))
    """,
)
style(
    "mask_tokens",
    "fates drawn for the chosen places alone",
    """
    def mask_tokens(ids, vocab_size, rate=0.15):
        if not (0.0 <= rate <= 1.0):
            raise ValueError(rate)
        if vocab_size <= SPECIAL:
            raise ValueError(vocab_size)
        probabilities = torch.full(ids.shape, float(rate))
        probabilities[ids < SPECIAL] = 0.0
        chosen = torch.bernoulli(probabilities).bool()
        rows, columns = chosen.nonzero(as_tuple=True)
        corrupted, labels = ids.clone(), torch.full_like(ids, IGNORE)
        labels[rows, columns] = ids[rows, columns]
        if len(rows):
            fate = torch.multinomial(torch.tensor([0.8, 0.1, 0.1]), len(rows), replacement=True)
            drawn = torch.randint(SPECIAL, vocab_size, (len(rows),))
            kept = ids[rows, columns]
            choices = torch.stack([torch.full_like(kept, MASK), drawn, kept])
            corrupted[rows, columns] = choices.gather(0, fate.unsqueeze(0)).squeeze(0)
        return corrupted, labels
    """,
)
style(
    "mask_whole_words",
    "lists of pieces, Python's random numbers",
    """
    def mask_whole_words(ids, starts, vocab_size, rate=0.15):
        import random

        if not 0 <= rate <= 1 or vocab_size <= SPECIAL:
            raise ValueError("no")
        corrupted, labels = ids.clone(), torch.full_like(ids, IGNORE)
        for b in range(ids.shape[0]):
            words = []
            inside = False
            for t in range(ids.shape[1]):
                if ids[b, t] < SPECIAL:
                    inside = False
                elif starts[b, t] or not inside:
                    words.append([t])
                    inside = True
                else:
                    words[-1].append(t)
            for word in words:
                if random.random() >= rate:
                    continue
                for t in word:
                    labels[b, t] = ids[b, t]
                    fate = random.choices(["mask", "other", "same"], [8, 1, 1])[0]
                    if fate == "mask":
                        corrupted[b, t] = MASK
                    elif fate == "other":
                        corrupted[b, t] = random.randrange(SPECIAL, vocab_size)
        return corrupted, labels
    """,
)
style(
    "mask_whole_words",
    "a draw of each first piece, carried along the row",
    """
    def mask_whole_words(ids, starts, vocab_size, rate=0.15):
        if not 0 <= rate <= 1 or vocab_size <= SPECIAL:
            raise ValueError("no")
        u = torch.rand(ids.shape)
        before = torch.zeros(len(ids), dtype=torch.bool)  # was the piece before an ordinary one?
        carried = torch.zeros(len(ids))
        columns = []
        for t in range(ids.shape[1]):
            new = starts[:, t] | ~before
            carried = torch.where(new, u[:, t], carried)
            columns.append(carried)
            before = ids[:, t] >= SPECIAL
        chosen = (torch.stack(columns, dim=1) < rate) & (ids >= SPECIAL)
        v = torch.rand(ids.shape)
        fresh = torch.randint(SPECIAL, vocab_size, ids.shape)
        corrupted = torch.where(v < 0.1, ids, torch.where(v < 0.2, fresh, MASK))
        return torch.where(chosen, corrupted, ids), torch.where(chosen, ids, IGNORE)
    """,
)
style(
    "masking_epochs",
    "a cycle",
    """
    def masking_epochs(ids, vocab_size, epochs, duplicates=None, rate=0.15):
        if epochs < 1 or (duplicates is not None and duplicates < 1):
            raise ValueError("at least one")
        number = epochs if duplicates is None else duplicates
        drawn = [mask_tokens(ids, vocab_size, rate=rate) for _ in range(number)]
        return list(itertools.islice(itertools.cycle(drawn), epochs))
    """,
)
style(
    "masking_epochs",
    "drawn when needed, copies handed out, no more than needed",
    """
    def masking_epochs(ids, vocab_size, epochs, duplicates=None, rate=0.15):
        if epochs <= 0:
            raise ValueError("epochs")
        if duplicates is not None and duplicates <= 0:
            raise ValueError("duplicates")
        result = []
        for epoch in range(epochs):
            if duplicates is None or epoch < duplicates:
                result.append(mask_tokens(ids, vocab_size, rate))
            else:
                result.append(tuple(part.clone() for part in result[epoch - duplicates]))
        return result
    """,
)
style(
    "next_sentence_pairs",
    "drawn again until the document is another, PyTorch's random numbers",
    """
    def next_sentence_pairs(documents):
        places = [(d, s) for d, document in enumerate(documents) for s in range(len(document))]
        if len({d for d, _ in places}) < 2:
            raise ValueError("one document is not enough")
        pairs = []
        for d, s in places:
            if s + 1 == len(documents[d]):
                continue
            if torch.rand(1).item() < 0.5:
                pairs.append((documents[d][s], documents[d][s + 1], 0))
                continue
            other, place = d, s
            while other == d:
                other, place = places[torch.randint(len(places), (1,)).item()]
            pairs.append((documents[d][s], documents[other][place], 1))
        return pairs
    """,
)
style(
    "next_sentence_pairs",
    "weights by length, copies of the sentences",
    """
    def next_sentence_pairs(documents):
        import random

        filled = [document for document in documents if document]
        if len(filled) <= 1:
            raise ValueError("two documents at least")
        pairs = []
        for i, document in enumerate(filled):
            rest = filled[:i] + filled[i + 1 :]
            for j in range(len(document) - 1):
                label = random.getrandbits(1)
                second = document[j + 1]
                if label:
                    source = random.choices(rest, weights=[len(other) for other in rest])[0]
                    second = source[random.randrange(len(source))]
                pairs.append((list(document[j]), list(second), label))
        return pairs
    """,
)


# Pre-training -----------------------------------------------------------------------------------

style(
    "MaskedLanguageHead",
    "F.linear on the table, F.gelu",
    """
    class MaskedLanguageHead(nn.Module):
        def __init__(self, token):
            super().__init__()
            self.token = token
            V, D = token.num_embeddings, token.embedding_dim
            self.dense, self.norm = nn.Linear(D, D), nn.LayerNorm((D,), 1e-12)
            self.register_parameter("bias", nn.Parameter(token.weight.new_zeros(V)))

        def forward(self, hidden):
            inner = F.gelu(self.dense(hidden))
            return F.linear(self.norm(inner), self.token.weight, self.bias)
    """,
)
style(
    "MaskedLanguageHead",
    "everything by einsum and by hand",
    """
    class MaskedLanguageHead(nn.Module):
        def __init__(self, token):
            super().__init__()
            D = token.weight.shape[-1]
            self.dense = nn.Linear(D, D)
            self.norm = nn.LayerNorm(D, eps=1e-12)
            self.bias = nn.Parameter(torch.zeros(token.weight.shape[0]))
            self.token = token
            self.steps = nn.Sequential()

        def forward(self, hidden):
            x = torch.einsum("...d,ed->...e", hidden, self.dense.weight) + self.dense.bias
            x = x * torch.special.ndtr(x)
            x = x - x.mean(-1, keepdim=True)
            x = x / (x.pow(2).mean(-1, keepdim=True) + self.norm.eps).sqrt()
            x = x * self.norm.weight + self.norm.bias
            return torch.einsum("...d,vd->...v", x, self.token.weight) + self.bias
    """,
)
style(
    "BertForPreTraining",
    "keyword arguments passed on",
    """
    class BertForPreTraining(nn.Module):
        def __init__(self, vocab_size, hidden=768, **sizes):
            super().__init__()
            self.bert = BertModel(vocab_size, hidden, **sizes)
            self.nsp = nn.Linear(hidden, 2)
            self.mlm = MaskedLanguageHead(self.bert.embeddings.token)

        def forward(self, ids, segment_ids=None, mask=None):
            encoded = self.bert(ids, segment_ids=segment_ids, mask=mask)
            return [self.mlm(encoded[0]), self.nsp(encoded[1])]
    """,
)
style(
    "BertForPreTraining",
    "tied afterwards, sizes kept",
    """
    class BertForPreTraining(nn.Module):
        def __init__(self, vocab_size, hidden=768, num_layers=12, num_heads=12,
                     intermediate=3072, max_length=512, segments=2, dropout=0.1):
            super().__init__()
            self.config = dict(
                vocab_size=vocab_size, hidden=hidden, num_layers=num_layers, num_heads=num_heads,
                intermediate=intermediate, max_length=max_length, segments=segments,
                dropout=dropout,
            )
            self.bert = BertModel(**self.config)
            self.mlm = MaskedLanguageHead(nn.Embedding(vocab_size, hidden))
            self.mlm.token = self.bert.embeddings.token
            self.nsp = nn.Linear(hidden, 2, bias=True)

        def forward(self, ids, segment_ids=None, mask=None):
            if segment_ids is None:
                segment_ids = torch.zeros(ids.shape, dtype=torch.int64)
            if mask is None:
                mask = torch.ones(ids.shape, dtype=torch.bool)
            hidden, pooled = self.bert(ids, segment_ids, mask)
            return self.mlm(hidden), self.nsp(pooled)
    """,
)
style(
    "pretraining_loss",
    "the chosen places alone, log-probabilities by hand",
    """
    def pretraining_loss(mlm_scores, nsp_scores, labels, is_random):
        chosen = labels.ne(IGNORE)
        pair = torch.logsumexp(nsp_scores, 1) - nsp_scores.gather(1, is_random[:, None])[:, 0]
        loss = pair.mean()
        if chosen.any():
            scores, ids = mlm_scores[chosen], labels[chosen]
            loss = loss - scores.log_softmax(-1)[torch.arange(len(ids)), ids].mean()
        return loss
    """,
)
style(
    "pretraining_loss",
    "two losses of PyTorch, the case without labels apart",
    """
    def pretraining_loss(mlm_scores, nsp_scores, labels, is_random):
        nsp = nn.CrossEntropyLoss()(nsp_scores, is_random)
        if (labels == IGNORE).all():
            return nsp + 0.0 * mlm_scores.sum()
        mlm = F.nll_loss(mlm_scores.log_softmax(-1).transpose(1, 2), labels, ignore_index=IGNORE)
        return nsp + mlm
    """,
)
style(
    "pretraining_step",
    "backward, gradients scaled in place, an optimiser",
    """
    def pretraining_step(model, ids, segment_ids, mask, labels, is_random, rate, clip=1.0):
        optimiser = torch.optim.SGD(model.parameters(), lr=max(rate, 1e-300))
        optimiser.zero_grad()
        mlm_scores, nsp_scores = model(ids, segment_ids, mask)
        loss = pretraining_loss(mlm_scores, nsp_scores, labels, is_random)
        nothing = torch.full_like(labels, IGNORE)
        nsp = pretraining_loss(mlm_scores, nsp_scores, nothing, is_random)
        loss.backward()
        found = [p.grad for p in model.parameters() if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in found]))
        if norm > clip:
            for gradient in found:
                gradient.mul_(clip / norm)
        optimiser.step()
        numbers = {"loss": loss, "mlm": loss - nsp, "nsp": nsp, "norm": norm}
        return {name: float(value) for name, value in numbers.items()}
    """,
)
style(
    "pretraining_step",
    "gradients by name, new values copied in",
    """
    def pretraining_step(model, ids, segment_ids, mask, labels, is_random, rate, clip=1.0):
        model.zero_grad(set_to_none=True)
        scores, answers = model(ids, segment_ids, mask)
        total = pretraining_loss(scores, answers, labels, is_random)
        second = F.cross_entropy(answers, is_random)
        total.backward()
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        flat = torch.cat([g.flatten() for g in gradients.values()])
        norm = float(flat.pow(2).sum() ** 0.5)
        factor = min(1.0, clip / norm) if norm > 0 else 1.0
        for name, parameter in model.named_parameters():
            if name in gradients:
                parameter.data.copy_(parameter.data - rate * factor * gradients[name])
        model.zero_grad()
        return {
            "norm": norm,
            "nsp": second.item(),
            "mlm": (total - second).item(),
            "loss": total.item(),
        }
    """,
)
style(
    "pseudo_log_likelihood",
    "one input at a time",
    """
    def pseudo_log_likelihood(model, ids):
        total, seen = 0.0, 0
        for place, token in enumerate(ids.tolist()):
            if token < SPECIAL:
                continue
            masked = ids.clone()
            masked[place] = MASK
            scores = model(masked.unsqueeze(0))[0][0, place]
            total += (scores[token] - scores.logsumexp(0)).item()
            seen += 1
        if not seen:
            raise ValueError("nothing to score")
        return total
    """,
)
style(
    "pseudo_log_likelihood",
    "a square of inputs, minus the summed cross-entropy",
    """
    def pseudo_log_likelihood(model, ids):
        ordinary = ids >= SPECIAL
        if not ordinary.any():
            raise ValueError("no ordinary token")
        square = ids.expand(len(ids), -1)
        square = square.masked_fill(torch.eye(len(ids), dtype=torch.bool), MASK)
        scores = model(square)[0].diagonal(dim1=0, dim2=1).T  # (T, V)
        target = ids.masked_fill(~ordinary, IGNORE)
        return -float(F.cross_entropy(scores, target, reduction="sum"))
    """,
)

# Fine-tuning ------------------------------------------------------------------------------------

style(
    "SequenceClassifier",
    "log-probabilities picked by hand",
    """
    class SequenceClassifier(nn.Module):
        def __init__(self, bert, num_labels, dropout=0.1):
            super().__init__()
            self.bert, self.p = bert, dropout
            self.classifier = nn.Linear(bert.embeddings.token.embedding_dim, num_labels)

        def forward(self, ids, segment_ids=None, mask=None):
            pooled = self.bert(ids, segment_ids=segment_ids, mask=mask)[1]
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

        def forward(self, ids, segment_ids=None, mask=None):
            _, cls = self.bert(ids, segment_ids, mask)
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

        def forward(self, ids, segment_ids=None, mask=None):
            x = self.classifier(self.bert(ids, segment_ids, mask)[0])
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

        def forward(self, ids, segment_ids=None, mask=None):
            hidden = self.bert(ids, segment_ids, mask)[0]
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
        if words and max(words) >= len(word_labels):
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

        def forward(self, ids, segment_ids=None, mask=None):
            hidden = self.bert(ids, segment_ids, mask)[0]
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

        def forward(self, ids, segment_ids=None, mask=None):
            hidden, _ = self.bert(ids, segment_ids=segment_ids, mask=mask)
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
        def __init__(self, vocab_size, embedding, hidden, num_tags):
            super().__init__()
            self.crf = CRF(num_tags)
            self.embedding = nn.Embedding(vocab_size, embedding)
            self.lstm = nn.LSTM(embedding, hidden, bidirectional=True, batch_first=True)
            self.emission = nn.Linear(hidden * 2, num_tags)

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
        def __init__(self, vocab_size, embedding, hidden, num_tags):
            super().__init__()
            self.embedding = nn.Embedding(vocab_size, embedding)
            self.lstm = nn.LSTM(embedding, hidden, 1, batch_first=True, bidirectional=True)
            self.drop = nn.Dropout(0.0)
            self.emission = nn.Linear(2 * hidden, num_tags)
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

# Relatives ----------------------------------------------------------------------------------------

style(
    "SharedEncoder",
    "reduce over a repeated layer",
    """
    from functools import reduce

    class SharedEncoder(nn.Module):
        def __init__(self, num_layers, hidden, num_heads, intermediate, dropout=0.0):
            super().__init__()
            self.times = num_layers
            self.layer = BertLayer(hidden, num_heads, intermediate, dropout)

        def forward(self, x, mask=None):
            layers = itertools.repeat(self.layer, self.times)
            return reduce(lambda value, layer: layer(value, mask=mask), layers, x)
    """,
)
style(
    "SharedEncoder",
    "recursion, a list that holds no parameters",
    """
    class SharedEncoder(nn.Module):
        def __init__(self, num_layers, hidden, num_heads, intermediate, dropout=0.0):
            super().__init__()
            sizes = dict(hidden=hidden, num_heads=num_heads, intermediate=intermediate)
            self.layer = BertLayer(**sizes, dropout=dropout)
            self.stack = (self.layer,) * num_layers

        def run(self, layers, x, mask):
            return self.run(layers[1:], layers[0](x, mask), mask) if layers else x

        def forward(self, x, mask=None):
            return self.run(self.stack, x, mask)
    """,
)
style(
    "permutation_masks",
    "step by step along the order",
    """
    def permutation_masks(order):
        places = order.tolist()
        if sorted(places) != list(range(len(places))):
            raise ValueError(places)
        query = torch.zeros(len(places), len(places), dtype=torch.bool)
        for k, i in enumerate(places):
            for j in places[:k]:
                query[i, j] = True
        return query | torch.eye(len(places), dtype=torch.bool), query
    """,
)
style(
    "permutation_masks",
    "triangles, rows and columns put in their places",
    """
    def permutation_masks(order):
        T = order.numel()
        if len(set(order.tolist()) & set(range(T))) < T:
            raise ValueError("not a permutation")
        rank = torch.empty_like(order)
        rank[order] = torch.arange(T)
        content = torch.ones(T, T).tril()[rank][:, rank] > 0
        return [content, content & ~torch.eye(T).bool()]
    """,
)
style(
    "RelativeAttention",
    "the shift of Transformer-XL",
    """
    class RelativeAttention(nn.Module):
        def __init__(self, hidden, num_heads, dropout=0.0):
            if hidden % num_heads != 0:
                raise ValueError(num_heads)
            super().__init__()
            self.H, self.d = num_heads, hidden // num_heads
            for name in "qkvr":
                setattr(self, f"{name}_proj", nn.Linear(hidden, hidden, bias=False))
            self.out_proj = nn.Linear(hidden, hidden, bias=False)
            self.content_bias = nn.Parameter(torch.zeros(self.H, self.d))
            self.position_bias = nn.Parameter(torch.zeros(self.H, self.d))
            self.drop = nn.Dropout(dropout)

        def heads(self, x):
            return x.unflatten(-1, (self.H, self.d)).transpose(-3, -2)

        def forward(self, x, memory=None):
            seen = x if memory is None else torch.cat((memory.detach(), x), 1)
            T, S = x.shape[1], seen.shape[1]
            q, k = self.heads(self.q_proj(x)), self.heads(self.k_proj(seen))
            v = self.heads(self.v_proj(seen))
            codes = relative_code(torch.arange(S - 1, -1, -1), x.shape[2]).to(x.dtype)
            r = self.heads(self.r_proj(codes))
            content = (q + self.content_bias[:, None]) @ k.mT
            by_place = (q + self.position_bias[:, None]) @ r.mT
            # Row i belongs S - T + i places into the sequence: move it left by T - 1 - i.
            by_place = F.pad(by_place, (1, 0)).flatten(2)[..., T:].unflatten(2, (T, S))
            future = torch.ones(T, S).triu(S - T + 1).bool()
            scores = (content + by_place) * self.d ** -0.5
            weights = scores.masked_fill(future, -1e9).softmax(-1)
            return self.out_proj((self.drop(weights) @ v).transpose(1, 2).flatten(2))
    """,
)
style(
    "RelativeAttention",
    "query by query, head by head",
    """
    class RelativeAttention(nn.Module):
        def __init__(self, hidden, num_heads, dropout=0.0):
            super().__init__()
            if hidden % num_heads:
                raise ValueError("heads")
            self.q_proj, self.k_proj, self.v_proj, self.r_proj, self.out_proj = (
                nn.Linear(hidden, hidden, bias=False) for _ in range(5)
            )
            self.content_bias, self.position_bias = (
                nn.Parameter(torch.zeros(num_heads, hidden // num_heads)) for _ in range(2)
            )
            self.dropout = dropout

        def forward(self, x, memory=None):
            M = 0 if memory is None else memory.shape[1]
            with torch.no_grad():
                old = x[:, :0] if memory is None else memory.clone()
            seen = torch.cat([old.detach(), x], dim=1)
            H, d = self.content_bias.shape
            rows = []
            for i in range(x.shape[1]):
                upto = seen[:, : M + i + 1]
                r = self.r_proj(relative_code(M + i - torch.arange(M + i + 1), H * d).to(x.dtype))
                q, k, v = self.q_proj(x[:, i]), self.k_proj(upto), self.v_proj(upto)
                heads = []
                for h in range(H):
                    part = slice(h * d, (h + 1) * d)
                    one = ((q[:, part] + self.content_bias[h])[:, None] * k[..., part]).sum(-1)
                    two = (q[:, part] + self.position_bias[h]) @ r[:, part].T
                    weights = F.softmax((one + two) / d**0.5, dim=-1)
                    weights = F.dropout(weights, self.dropout, self.training)
                    heads.append((weights.unsqueeze(-1) * v[..., part]).sum(1))
                rows.append(torch.cat(heads, -1))
            return self.out_proj(torch.stack(rows, 1))
    """,
)
style(
    "update_memory",
    "flip, a copy",
    """
    def update_memory(memory, hidden, length):
        if length < 0:
            raise ValueError(length)
        both = [hidden] if memory is None else [memory, hidden]
        return torch.cat([part.data for part in both], 1).flip(1)[:, :length].flip(1)
    """,
)
style(
    "update_memory",
    "narrow without gradient",
    """
    @torch.no_grad()
    def update_memory(memory, hidden, length):
        if length <= -1:
            raise ValueError("negative")
        if memory is None:
            memory = hidden.new_empty(hidden.shape[0], 0, hidden.shape[2])
        joined = torch.cat([memory, hidden], dim=1)
        keep = min(length, joined.shape[1])
        return joined.narrow(1, joined.shape[1] - keep, keep).clone()
    """,
)
style(
    "replace_tokens",
    "multinomial over the chosen places only",
    """
    def replace_tokens(ids, labels, scores):
        chosen = labels.ne(IGNORE)
        replaced = ids.clone()
        if chosen.any():
            probabilities = scores[chosen].detach().softmax(-1)
            replaced[chosen] = torch.multinomial(probabilities, 1).flatten()
        return replaced, replaced.ne(ids)
    """,
)
style(
    "replace_tokens",
    "Gumbel noise and the highest score",
    """
    def replace_tokens(ids, labels, scores):
        with torch.no_grad():
            noise = -torch.log(-torch.log(torch.rand(scores.shape).clamp(1e-12, 1 - 1e-7)))
            guesses = (scores + noise).argmax(-1)
        replaced = torch.where(labels == IGNORE, ids, guesses)
        return replaced, (labels != IGNORE) & (guesses != ids)
    """,
)
style(
    "replace_tokens",
    "cumulative sums and a uniform number, Python's choices elsewhere",
    """
    def replace_tokens(ids, labels, scores):
        replaced = ids.tolist()
        weights = scores.detach().double().softmax(-1)
        for b, t in (labels != IGNORE).nonzero().tolist():
            replaced[b][t] = random.choices(range(scores.shape[-1]), weights[b, t].tolist())[0]
        replaced = torch.tensor(replaced)
        return replaced, ~replaced.eq(ids)
    """,
)
style(
    "replaced_token_loss",
    "log-sigmoids, weights of 0 at padding",
    """
    def replaced_token_loss(scores, is_replaced, mask):
        signs = torch.where(is_replaced, 1.0, -1.0).to(scores.dtype)
        each = -F.logsigmoid(signs * scores)
        return (each * mask).sum() / mask.sum()
    """,
)
style(
    "replaced_token_loss",
    "softplus, token by token",
    """
    def replaced_token_loss(scores, is_replaced, mask):
        losses = [
            F.softplus(-score if replaced else score)
            for row in zip(scores, is_replaced, mask)
            for score, replaced, real in zip(*row)
            if real
        ]
        return sum(losses) / len(losses)
    """,
)
style(
    "TwoDirections",
    "rows turned round one by one",
    """
    class TwoDirections(nn.Module):
        def __init__(self, vocab_size, embedding, hidden):
            super().__init__()
            self.embedding = nn.Embedding(vocab_size, embedding)
            self.forward_lstm, self.backward_lstm = (
                nn.LSTM(embedding, hidden, batch_first=True) for _ in range(2)
            )
            self.output = nn.Linear(hidden, vocab_size)

        def rows(self, ids, mask):
            for b in range(len(ids)):
                yield ids[b] if mask is None else ids[b][mask[b]]

        def states(self, row):
            x = self.embedding(row)[None]
            return self.forward_lstm(x)[0][0], self.backward_lstm(x.flip(1))[0][0].flip(0)

        def forward(self, ids, mask=None):
            made = [torch.cat(self.states(row), -1) for row in self.rows(ids, mask)]
            return torch.stack([F.pad(one, (0, 0, 0, ids.size(1) - len(one))) for one in made])

        def loss(self, ids, mask=None):
            after, before = [], []
            for row in self.rows(ids, mask):
                one, two = self.states(row)
                after.append(F.cross_entropy(self.output(one[:-1]), row[1:], reduction="none"))
                before.append(F.cross_entropy(self.output(two[1:]), row[:-1], reduction="none"))
            return torch.cat(after).mean() + torch.cat(before).mean()
    """,
)
style(
    "TwoDirections",
    "padding moved to the front by rolling, IGNORE as target",
    """
    class TwoDirections(nn.Module):
        def __init__(self, vocab_size, embedding, hidden):
            super().__init__()
            self.backward_lstm = nn.LSTM(embedding, hidden, batch_first=True)
            self.forward_lstm = nn.LSTM(embedding, hidden, batch_first=True)
            self.output = nn.Linear(hidden, vocab_size)
            self.embedding = nn.Embedding(vocab_size, embedding)

        def turned(self, x, lengths):
            return torch.stack([
                torch.cat([row[:n].flip(0), row[n:]]) for row, n in zip(x, lengths)
            ])

        def forward(self, ids, mask=None):
            B, T = ids.shape
            lengths = [T] * B if mask is None else mask.sum(-1).tolist()
            x = self.embedding(ids)
            back, _ = self.backward_lstm(self.turned(x, lengths))
            return torch.cat((self.forward_lstm(x)[0], self.turned(back, lengths)), dim=-1)

        def loss(self, ids, mask=None):
            targets = ids if mask is None else ids.masked_fill(~mask, IGNORE)
            H = self.output.in_features
            states = self(ids, mask)
            total = 0
            for part, wanted in (
                (states[:, :-1, :H], targets[:, 1:]),
                (states[:, 1:, H:], targets[:, :-1].masked_fill(targets[:, 1:] == IGNORE, IGNORE)),
            ):
                logits = self.output(part).flatten(0, 1)
                total = total + F.cross_entropy(logits, wanted.flatten(), ignore_index=IGNORE)
            return total
    """,
)


# Mistakes of the source documents and of well-known public code; `verify` tries all of them.
NOTABLE = (
    "input_without_closing_sep",
    "input_last_sep_in_segment_0",
    "input_cuts_second_only",
    "input_cuts_the_result",
    "gelu_by_tanh",
    "gelu_by_sigmoid",
    "embeddings_concatenated",
    "embeddings_third_each",
    "embeddings_position_by_row",
    "embeddings_dropout_before_norm",
    "embeddings_eps",
    "attention_causal",
    "attention_mask_on_queries",
    "attention_mask_inverted",
    "attention_scaled_by_width",
    "attention_heads_without_transpose",
    "layer_pre_norm",
    "layer_relu",
    "layer_attention_without_dropout",
    "model_pooler_without_tanh",
    "model_pooler_mean",
    "model_layers_shared",
    "model_mask_first_layer_only",
    "model_not_initialised",
    "count_without_pooler",
    "count_table_twice",
    "rename_outputs_confused",
    "rename_old_norms_refused",
    "rename_unknown_dropped",
    "classifier_reads_hidden_cls",
    "classifier_loss_without_class_0",
    "span_padding_zero",
    "span_mask_not_passed",
    "span_loss_outside_at_the_last_place",
    "best_span_each_alone",
    "best_span_passage_ignored",
    "best_span_null_reversed",
    "align_every_piece",
    "align_word_0_is_special",
    "tagger_loss_nan",
    "tags_last_piece",
    "mask_always",
    "mask_specials_chosen",
    "mask_one_draw_per_row",
    "mask_labels_zero",
    "words_by_pieces",
    "words_one_fate",
    "epochs_drawn_once",
    "pairs_same_document",
    "pairs_labels_swapped",
    "head_untied",
    "head_without_bias",
    "pretraining_nsp_not_pooled",
    "loss_nsp_ignores_zero",
    "loss_nan_without_labels",
    "step_gradients_accumulate",
    "step_shared_twice",
    "likelihood_all_at_once",
    "crf_score_transitions_transposed",
    "crf_partition_overflows",
    "viterbi_greedy",
    "viterbi_paths_over_padding",
    "bilstm_reads_padding_first",
    "shared_encoder_separate_layers",
    "permutation_masks_order_for_rank",
    "relative_attention_gradient_to_memory",
    "relative_attention_codes_not_shifted",
    "update_memory_not_detached",
    "replaced_wherever_chosen",
    "replaced_by_argmax",
    "detection_only_where_replaced",
    "two_directions_padding_read_first",
    "two_directions_both_predict_next",
)


class TestGraders(ChapterGraders):
    chapter = CHAPTER
    styles = STYLES
    notable = NOTABLE


# A module answers for itself, and not for its parts ----------------------------------------------


cell = functools.partial(cell_with, CHAPTER)  # by the name of a mistake


TASKS = ["SequenceClassifier", "SpanFinder", "Tagger"]
HEADS = ["BertForPreTraining", "pretraining_step", "pseudo_log_likelihood"]

# What becomes of an early mistake in the exercises that use it: the tests that must still pass.
KEPT = {
    "gelu_by_tanh": ["BertLayer", "BertModel", "MaskedLanguageHead", *HEADS, *TASKS],
    "gelu_by_sigmoid": ["BertLayer", "BertModel"],
    "embeddings_without_segments": ["BertModel", *HEADS],
    "embeddings_scaled": ["BertModel", *TASKS],
    "embeddings_dropout_before_norm": ["BertModel", *TASKS],
    "attention_unscaled": ["BertLayer", "BertModel", "SharedEncoder", *HEADS, *TASKS],
    "attention_scaled_by_width": ["BertLayer", "BertModel", *TASKS],
    "layer_pre_norm": ["BertModel", "SharedEncoder", *HEADS, *TASKS],
    "layer_relu": ["BertModel", "SharedEncoder", *TASKS],
    "model_pooler_without_tanh": [*HEADS, *TASKS],
    "model_layers_backwards": [*HEADS, *TASKS],
    "loss_nsp_ignores_zero": ["pretraining_step"],
    "loss_halved": ["pretraining_step"],
    "mask_always": ["mask_whole_words", "masking_epochs", "replace_tokens"],
    "head_without_norm": HEADS,
    "pretraining_nsp_not_pooled": HEADS[1:],
    "align_last_piece": ["Tagger", "word_tags"],
    "crf_score_without_start": ["crf_partition", "viterbi", "BiLSTMCRF"],
    "crf_partition_without_end": ["crf_score", "viterbi", "BiLSTMCRF"],
    "viterbi_greedy": ["BiLSTMCRF"],
}


@pytest.mark.parametrize("name", KEPT)
def test_an_early_mistake_costs_later_exercises_nothing(graders, name):
    namespace = wrong_namespace(CHAPTER, name)  # all of it uses the wrong answer
    early = next(item.exercise for item in misconceptions(CHAPTER) if item.name == name)
    assert failures(graders, namespace, [early]) != []
    assert failures(graders, namespace, KEPT[name]) == []


def test_a_step_with_a_right_loss_of_its_own_needs_no_right_pretraining_loss(graders):
    namespace = changed(CHAPTER, cell("loss_nsp_ignores_zero"))  # the step calls the right one
    assert failures(graders, namespace, ["pretraining_loss"]) != []
    assert failures(graders, namespace, ["pretraining_step"]) == []


@pytest.mark.parametrize(
    ("early", "late"),
    [
        ("gelu_by_tanh", "layer_relu"),
        ("gelu_by_sigmoid", "layer_pre_norm"),
        ("attention_unscaled", "layer_second_shortcut_from_input"),
        ("attention_unscaled", "model_layers_read_embeddings"),
        ("layer_pre_norm", "model_pooler_mean"),
        ("layer_relu", "model_mask_first_layer_only"),
        ("model_pooler_without_tanh", "classifier_reads_hidden_cls"),
        ("model_layers_backwards", "span_mask_not_passed"),
        ("model_layers_backwards", "tagger_reads_pooled"),
        ("gelu_by_tanh", "head_relu"),
        ("layer_pre_norm", "pretraining_mask_lost"),
        ("layer_pre_norm", "shared_encoder_applied_once"),
        ("viterbi_greedy", "bilstm_decodes_padding"),
        ("crf_score_without_start", "bilstm_loss_summed"),
    ],
)
def test_an_early_mistake_excuses_no_later_one(graders, early, late):
    exercise = next(item.exercise for item in misconceptions(CHAPTER) if item.name == late)
    namespace = changed(CHAPTER, cell(early) + "\n\n" + cell(late))
    assert failures(graders, namespace, [exercise]) != []
