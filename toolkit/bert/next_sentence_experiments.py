"""The stored experiment of the page on next-sentence prediction, and how to repeat it.

    python -m toolkit.bert.next_sentence_experiments nsp

It asks the shipped BERT, without any training, about pairs of held-out sentences. For each true
pair it makes four kinds of wrong ones, and asks a control that knows only which words two sentences
share the same. It takes about four minutes of one core and writes `toolkit/measured/bert_nsp.csv`,
which `read` reads. Like the model's corpus it needs the library of Python 3.11.
"""

from __future__ import annotations

import argparse
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit import models
from toolkit.bert import fine_tuning
from toolkit.corpora import library_prose
from toolkit.corpora.docstrings import SPECIAL
from toolkit.many_models import FOLDER, read_rows, write_rows
from toolkit.pretrain import bert

NSP = FOLDER / "bert_nsp.csv"
KINDS = ("another module", "same module", "same document", "swapped")
FORMS = ("sentences", "runs")
JUDGES = ("BERT", "shared words")
DRAWS = 3  # wrong seconds of each kind for a true pair
DECAYS = (0.0, 1e-6, 1e-5, 3e-5, 1e-4, 1e-3)  # of the control, chosen on validation pairs
TRAIN_PAIRS, VALIDATION_PAIRS = 15_000, 5_000
RESAMPLES = 2000
LONGEST = 2 * bert.LONG[1] + 3
SIGNATURE = re.compile(r"^\w+\(.*\)$")

Ids = list[int]
Pair = tuple[Ids, Ids]


# --------------------------------------------------------------------------- questions


@dataclass(frozen=True)
class Text:
    """A document as ids, the module it is from, and which of its sentences are signatures."""

    module: str
    parts: list[Ids]
    signatures: list[bool] = field(default_factory=list)


@dataclass(frozen=True)
class Question:
    """A true pair, and wrong ones with the same first (exchanged, if swapped).

    prose: neither of the two is the signature of a function.
    """

    module: str
    true: Pair
    wrong: Mapping[str, list[Pair]]
    prose: bool


def questions(texts: Sequence[Text], draws: int = DRAWS, seed: int = 0) -> list[Question]:
    """Every true pair of which all kinds of wrong ones can be made.

    That is so in a document of four parts or more whose module has another document.
    """
    draw = random.Random(seed)
    of_module: dict[str, list[Ids]] = defaultdict(list)
    elsewhere: list[tuple[str, Ids]] = []
    owner: list[int] = []
    for number, text in enumerate(texts):
        of_module[text.module] += text.parts
        elsewhere += [(text.module, part) for part in text.parts]
        owner += [number] * len(text.parts)
    found = []
    for number, text in enumerate(texts):
        near = [p for n, (m, p) in enumerate(elsewhere) if m == text.module and owner[n] != number]
        if len(text.parts) < 4 or not near:
            continue
        far = [p for m, p in elsewhere if m != text.module]
        for at in range(len(text.parts) - 1):
            first, second = text.parts[at], text.parts[at + 1]
            own = [p for n, p in enumerate(text.parts) if abs(n - at) > 1 and p != second]
            choices = {
                kind: [p for p in pool if p != second]
                for kind, pool in zip(KINDS, (far, near, own), strict=False)
            }
            if first == second or not all(choices.values()):
                continue
            wrong = {
                kind: [(first, draw.choice(pool)) for _ in range(draws)]
                for kind, pool in choices.items()
            }
            wrong["swapped"] = [(second, first)]
            signature = text.signatures and any(text.signatures[at : at + 2])
            found.append(Question(text.module, (first, second), wrong, not signature))
    return found


def texts_of(
    documents: Sequence[library_prose.Document], pieces: bert.docstrings.Pieces, split: str,
    form: str,
) -> list[Text]:  # fmt: skip
    """The documents of a split, in single sentences or in the runs that BERT was trained on."""
    found = []
    for document in documents:
        if document.split != split:
            continue
        sentences = [s for s in document.sentences if pieces.encode(s)]
        parts = bert.encode([sentences], pieces)[0]
        signatures = [bool(SIGNATURE.match(s)) for s in sentences]
        if form == "runs":
            parts, signatures = bert.runs([parts], random.Random(len(found)))[0], []
        if parts:
            found.append(
                Text(document.source, [part[: bert.LONG[1]] for part in parts], signatures)
            )
    return found


def usual_pairs(texts: Sequence[Text], count: int, seed: int = 0) -> list[tuple[Pair, int]]:
    """Pairs as BERT is trained on: label 0, the next one, or 1, one of another document."""
    draw = random.Random(seed)
    places = [(n, at) for n, text in enumerate(texts) for at in range(len(text.parts) - 1)]
    parts = [(n, part) for n, text in enumerate(texts) for part in text.parts]
    found = []
    for _ in range(count):
        number, at = draw.choice(places)
        first, label = texts[number].parts[at], draw.randrange(2)
        other, second = draw.choice(parts)
        while other == number:
            other, second = draw.choice(parts)
        found.append(((first, second if label else texts[number].parts[at + 1]), label))
    return found


# --------------------------------------------------------------------------- judges


@torch.no_grad()
def bert_logits(shipped: models.Shipped, pairs: Sequence[Pair], batch: int = 64) -> Tensor:
    """How much larger the logit of «is next» is than the other: (N,)."""
    rows = fine_tuning.Rows.of([shipped.module.build_input(a, b, LONGEST) for a, b in pairs])
    found = torch.empty(len(pairs))
    for order in rows.mask.sum(1).argsort().split(batch):
        part = rows.take(order, torch.device("cpu"))
        width = int(part.mask.sum(1).max())
        inputs = part.ids[:, :width], part.token_type_ids[:, :width], part.mask[:, :width]
        logits = shipped.model.nsp(shipped.model.bert(*inputs)[1])  # (B, 2)
        found[order] = logits[:, 0] - logits[:, 1]
    return found


class SharedWords(nn.Module):
    """Logistic regression on which pieces two sentences share, whichever of them is first.

    Features: one for each piece that both have; cosine of the bags weighted by inverse document
    frequency, share of the pieces in both, their number, and the two lengths as sum and difference.
    """

    def __init__(self, vocab_size: int, idf: Tensor) -> None:
        super().__init__()
        self.idf = idf  # (V,)
        self.shared = nn.EmbeddingBag(vocab_size, 1, mode="sum")
        self.overlap = nn.Linear(5, 1)
        nn.init.zeros_(self.shared.weight)
        nn.init.zeros_(self.overlap.weight)
        nn.init.zeros_(self.overlap.bias)
        self.mean, self.deviation = torch.zeros(5), torch.ones(5)

    def features(self, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor, Tensor]:
        """Shared pieces of all pairs (K,), where each pair's begin (N,), the numbers (N, 5)."""
        shared: Ids = []
        begins, numbers, weight = [], [], self.idf.tolist()
        for pair in pairs:
            a, b = (Counter(i for i in part if i >= SPECIAL) for part in pair)
            both = sorted(a.keys() & b.keys())
            sizes = [math.sqrt(sum((n * weight[i]) ** 2 for i, n in bag.items())) for bag in (a, b)]
            dot = sum(a[i] * b[i] * weight[i] ** 2 for i in both)
            lengths = [math.log(1 + len(part)) for part in pair]
            numbers.append([
                dot / (math.prod(sizes) or 1.0), len(both) / max(1, len(a.keys() | b.keys())),
                math.log(1 + len(both)), sum(lengths), abs(lengths[0] - lengths[1]),
            ])  # fmt: skip
            begins.append(len(shared))
            shared += both
        whole = torch.tensor(shared, dtype=torch.int64)
        return whole, torch.tensor(begins), torch.tensor(numbers)

    def forward(self, features: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """The logit of «is next» (N,)."""
        shared, begins, numbers = features
        overlap = self.overlap((numbers - self.mean) / self.deviation)  # (N, 1)
        return (self.shared(shared, begins) + overlap).squeeze(1)

    def fit(
        self,
        features: tuple[Tensor, Tensor, Tensor],
        labels: Tensor,
        decay: float,
        steps: int = 200,
    ) -> SharedWords:
        """Train on all pairs at each step; label 0 is «is next»."""
        self.mean, self.deviation = features[2].mean(0), features[2].std(0) + 1e-6
        optimiser = torch.optim.Adam(self.parameters(), lr=0.05)
        for _ in range(steps):
            loss = F.binary_cross_entropy_with_logits(self(features), 1.0 - labels)
            loss = loss + decay * self.shared.weight.square().sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return self


def fitted_control(
    vocab_size: int, train: Sequence[Text], validation: Sequence[Text]
) -> tuple[SharedWords, list[tuple[float, float]]]:
    """The control with the decay that is best on validation pairs, and (decay, accuracy) of all."""
    counts = torch.zeros(vocab_size)
    for text in train:
        for part in text.parts:
            counts[list(set(part))] += 1
    idf = (sum(len(text.parts) for text in train) / (1 + counts)).log()
    sets = usual_pairs(train, TRAIN_PAIRS), usual_pairs(validation, VALIDATION_PAIRS, seed=1)
    labels = [torch.tensor([float(label) for _, label in part]) for part in sets]
    blank = SharedWords(vocab_size, idf)
    features = [blank.features([pair for pair, _ in part]) for part in sets]
    made, tried = {}, []
    for decay in DECAYS:
        one = SharedWords(vocab_size, idf).fit(features[0], labels[0], decay)
        with torch.no_grad():
            right = ((one(features[1]) > 0) == (labels[1] == 0)).double().mean().item()
        made[decay] = one
        tried.append((decay, right))
    best = max(tried, key=lambda pair: pair[1])[0]
    return made[best], tried


# --------------------------------------------------------------------------- measuring


def interval(values: Tensor, groups: Sequence[str], seed: int = 0) -> tuple[float, float, float]:
    """The mean of values (N,), and its 95 % interval when whole groups are drawn again."""
    numbers = {name: n for n, name in enumerate(dict.fromkeys(groups))}
    index = torch.tensor([numbers[name] for name in groups])
    sums = torch.zeros(len(numbers), dtype=torch.float64).index_add_(0, index, values.double())
    counts = torch.bincount(index, minlength=len(numbers)).double()
    drawn = torch.randint(
        len(numbers), (RESAMPLES, len(numbers)), generator=torch.Generator().manual_seed(seed)
    )
    means = (sums[drawn].sum(1) / counts[drawn].sum(1)).sort().values  # (RESAMPLES,)
    low, high = means[round(0.025 * RESAMPLES)], means[round(0.975 * RESAMPLES) - 1]
    return float(sums.sum() / counts.sum()), float(low), float(high)


def judged(asked: Sequence[Question], logits: Mapping[str, Tensor]) -> Iterator[dict[str, object]]:
    """A row for each kind of wrong second.

    Args:
        logits: of the true pairs (N,), by the name "true", and of each kind (N, draws).

    Yields:
        accuracy: right answers, true and wrong pairs counting alike; accepted, rejected: the shares
        of true and of wrong pairs that are judged right; preferred: how often the true pair has the
        higher logit of the two, equal ones counting one half. Each with its interval.
    """
    groups = [question.module for question in asked]
    true = logits["true"][:, None]  # (N, 1)
    accepted = (true > 0).double().squeeze(1)
    for kind in KINDS:
        wrong = logits[kind]  # (N, draws)
        rejected = (wrong <= 0).double().mean(1)
        preferred = ((true > wrong).double() + 0.5 * (true == wrong).double()).mean(1)
        row: dict[str, object] = {
            "kind": kind, "pairs": len(asked), "modules": len(set(groups)),
        }  # fmt: skip
        for name, values in (
            ("accuracy", (accepted + rejected) / 2), ("accepted", accepted),
            ("rejected", rejected), ("preferred", preferred),
        ):  # fmt: skip
            mean, low, high = interval(values, groups)
            row |= {name: round(mean, 4), f"{name}_low": round(low, 4)}
            row[f"{name}_high"] = round(high, 4)
        yield row


def nsp(forms: Sequence[str] = FORMS) -> list[dict[str, object]]:
    """Both judges on all kinds of pairs; for sentences also without the signatures."""
    shipped = models.load("bert")
    documents = library_prose.read()
    rows: list[dict[str, object]] = []
    for form in forms:
        train, validation, test = (
            texts_of(documents, shipped.tokenizer, split, form)
            for split in ("train", "validation", "test")
        )
        control, tried = fitted_control(len(shipped.tokenizer), train, validation)
        print(form, "control:", *[f"{decay:g}: {right:.3f}" for decay, right in tried])
        asked = questions(test)
        for judge in JUDGES:
            logits = {}
            for kind in ("true", *KINDS):
                pairs = [
                    pair for q in asked for pair in ([q.true] if kind == "true" else q.wrong[kind])
                ]
                if judge == "BERT":
                    found = bert_logits(shipped, pairs)
                else:
                    with torch.no_grad():
                        found = control(control.features(pairs))
                logits[kind] = found if kind == "true" else found.unflatten(0, (len(asked), -1))
            prose = torch.tensor([q.prose for q in asked])
            for subset in ("all", "prose") if form == "sentences" else ("all",):
                keep = prose if subset == "prose" else torch.ones_like(prose)
                few = [q for q, kept in zip(asked, keep.tolist(), strict=True) if kept]
                for row in judged(few, {kind: values[keep] for kind, values in logits.items()}):
                    rows.append({"form": form, "subset": subset, "judge": judge} | row)
                    print(*rows[-1].values())
        write_rows(NSP, rows)
    return rows


def read() -> list[dict[str, str]]:
    """The stored rows."""
    return read_rows(NSP)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", choices=["nsp"])
    parser.parse_args(arguments)
    torch.set_num_threads(1)
    nsp()


if __name__ == "__main__":
    main()
