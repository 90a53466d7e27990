"""The graders of `bert-pretraining`: right answers in any style earn full marks."""

from __future__ import annotations

from tests.autograder.unit_graders import (
    EarlierParts,
    Styles,
    UnitGraders,
    cell_with,
    changed,
    failures,
)

UNIT = "bert-pretraining"

# Right answers that look unlike the reference and unlike those in autograder/demo.
STYLES = Styles()
style = STYLES.add


# Masking and pairs --------------------------------------------------------------------------------

style(
    "mask_tokens",
    "one uniform number decides everything",
    """
    def mask_tokens(ids, vocab_size, mask_prob=0.15):
        if mask_prob < 0 or mask_prob > 1 or vocab_size - SPECIAL < 1:
            raise ValueError("nothing to choose from")
        u = torch.rand_like(ids, dtype=torch.float64)
        ordinary = ids.ge(SPECIAL)
        share = u / mask_prob if mask_prob else torch.full_like(u, 2.0)
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
    def mask_tokens(ids, vocab_size, mask_prob=0.15):
        if not (0.0 <= mask_prob <= 1.0):
            raise ValueError(mask_prob)
        if vocab_size <= SPECIAL:
            raise ValueError(vocab_size)
        probabilities = torch.full(ids.shape, float(mask_prob))
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
    def mask_whole_words(ids, starts, vocab_size, mask_prob=0.15):
        import random

        if not 0 <= mask_prob <= 1 or vocab_size <= SPECIAL:
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
                if random.random() >= mask_prob:
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
    def mask_whole_words(ids, starts, vocab_size, mask_prob=0.15):
        if not 0 <= mask_prob <= 1 or vocab_size <= SPECIAL:
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
        chosen = (torch.stack(columns, dim=1) < mask_prob) & (ids >= SPECIAL)
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
    def masking_epochs(ids, vocab_size, epochs, duplicates=None, mask_prob=0.15):
        if epochs < 1 or (duplicates is not None and duplicates < 1):
            raise ValueError("at least one")
        number = epochs if duplicates is None else duplicates
        drawn = [mask_tokens(ids, vocab_size, mask_prob=mask_prob) for _ in range(number)]
        return list(itertools.islice(itertools.cycle(drawn), epochs))
    """,
)
style(
    "masking_epochs",
    "drawn when needed, copies handed out, no more than needed",
    """
    def masking_epochs(ids, vocab_size, epochs, duplicates=None, mask_prob=0.15):
        if epochs <= 0:
            raise ValueError("epochs")
        if duplicates is not None and duplicates <= 0:
            raise ValueError("duplicates")
        result = []
        for epoch in range(epochs):
            if duplicates is None or epoch < duplicates:
                result.append(mask_tokens(ids, vocab_size, mask_prob))
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

# Pre-training -------------------------------------------------------------------------------------

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
        def __init__(self, vocab_size, d_model=768, **sizes):
            super().__init__()
            self.bert = BertModel(vocab_size, d_model, **sizes)
            self.nsp = nn.Linear(d_model, 2)
            self.mlm = MaskedLanguageHead(self.bert.embeddings.token)

        def forward(self, input_ids, token_type_ids=None, mask=None):
            encoded = self.bert(input_ids, token_type_ids=token_type_ids, mask=mask)
            return [self.mlm(encoded[0]), self.nsp(encoded[1])]
    """,
)
style(
    "BertForPreTraining",
    "tied afterwards, sizes kept",
    """
    class BertForPreTraining(nn.Module):
        def __init__(self, vocab_size, d_model=768, num_layers=12, num_heads=12,
                     d_ff=3072, max_length=512, type_vocab_size=2, dropout=0.1):
            super().__init__()
            self.config = dict(
                vocab_size=vocab_size, d_model=d_model, num_layers=num_layers, num_heads=num_heads,
                d_ff=d_ff, max_length=max_length, type_vocab_size=type_vocab_size,
                dropout=dropout,
            )
            self.bert = BertModel(**self.config)
            self.mlm = MaskedLanguageHead(nn.Embedding(vocab_size, d_model))
            self.mlm.token = self.bert.embeddings.token
            self.nsp = nn.Linear(d_model, 2, bias=True)

        def forward(self, input_ids, token_type_ids=None, mask=None):
            if token_type_ids is None:
                token_type_ids = torch.zeros(input_ids.shape, dtype=torch.int64)
            if mask is None:
                mask = torch.ones(input_ids.shape, dtype=torch.bool)
            hidden, pooled = self.bert(input_ids, token_type_ids, mask)
            return self.mlm(hidden), self.nsp(pooled)
    """,
)
style(
    "pretraining_loss",
    "the chosen places alone, log-probabilities by hand",
    """
    def pretraining_loss(mlm_logits, nsp_logits, labels, is_random):
        chosen = labels.ne(IGNORE)
        pair = torch.logsumexp(nsp_logits, 1) - nsp_logits.gather(1, is_random[:, None])[:, 0]
        loss = pair.mean()
        if chosen.any():
            scores, ids = mlm_logits[chosen], labels[chosen]
            loss = loss - scores.log_softmax(-1)[torch.arange(len(ids)), ids].mean()
        return loss
    """,
)
style(
    "pretraining_loss",
    "two losses of PyTorch, the case without labels apart",
    """
    def pretraining_loss(mlm_logits, nsp_logits, labels, is_random):
        nsp = nn.CrossEntropyLoss()(nsp_logits, is_random)
        if (labels == IGNORE).all():
            return nsp + 0.0 * mlm_logits.sum()
        mlm = F.nll_loss(mlm_logits.log_softmax(-1).transpose(1, 2), labels, ignore_index=IGNORE)
        return nsp + mlm
    """,
)
style(
    "pretraining_step",
    "backward, gradients scaled in place, an optimiser",
    """
    def pretraining_step(model, input_ids, token_type_ids, mask, labels, is_random, lr, clip=1.0):
        optimiser = torch.optim.SGD(model.parameters(), lr=max(lr, 1e-300))
        optimiser.zero_grad()
        mlm_logits, nsp_logits = model(input_ids, token_type_ids, mask)
        loss = pretraining_loss(mlm_logits, nsp_logits, labels, is_random)
        nothing = torch.full_like(labels, IGNORE)
        nsp = pretraining_loss(mlm_logits, nsp_logits, nothing, is_random)
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
    def pretraining_step(model, input_ids, token_type_ids, mask, labels, is_random, lr, clip=1.0):
        model.zero_grad(set_to_none=True)
        scores, answers = model(input_ids, token_type_ids, mask)
        total = pretraining_loss(scores, answers, labels, is_random)
        second = F.cross_entropy(answers, is_random)
        total.backward()
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        flat = torch.cat([g.flatten() for g in gradients.values()])
        norm = float(flat.pow(2).sum() ** 0.5)
        factor = min(1.0, clip / norm) if norm > 0 else 1.0
        for name, parameter in model.named_parameters():
            if name in gradients:
                parameter.data.copy_(parameter.data - lr * factor * gradients[name])
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


def test_a_step_with_a_right_loss_of_its_own_needs_no_right_pretraining_loss(graders):
    # The step calls the right one.
    namespace = changed(UNIT, cell_with(UNIT, "loss_nsp_ignores_zero"))
    assert failures(graders, namespace, ["pretraining_loss"]) != []
    assert failures(graders, namespace, ["pretraining_step"]) == []


class TestGraders(UnitGraders):
    unit = UNIT
    styles = STYLES


HEADS = ["BertForPreTraining", "pretraining_step", "pseudo_log_likelihood"]
# What becomes of an early mistake in the exercises that use it: those that must still pass.
KEPT = {
    "gelu_by_tanh": ["MaskedLanguageHead", *HEADS],
    "embeddings_without_segments": HEADS,
    "attention_unscaled": HEADS,
    "layer_pre_norm": HEADS,
    "model_pooler_without_tanh": HEADS,
    "model_layers_backwards": HEADS,
    "loss_nsp_ignores_zero": ["pretraining_step"],
    "loss_halved": ["pretraining_step"],
    "mask_always": ["mask_whole_words", "masking_epochs"],
    "head_without_norm": HEADS,
    "pretraining_nsp_not_pooled": ["pretraining_step", "pseudo_log_likelihood"],
}


class TestEarlierParts(EarlierParts):
    unit = UNIT
    kept = KEPT
    unexcused = (
        ("gelu_by_tanh", "head_relu"),
        ("layer_pre_norm", "pretraining_mask_lost"),
    )
