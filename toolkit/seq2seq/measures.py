"""Measurements of translations, and of the search for them.

* Exact matches and BLEU.
* Search: what a beam looks at, step by step, and the same as tables for a page.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from toolkit import widgets
from toolkit.corpora.translation import BOS, EOS, PAD, Pair

# --------------------------------------------------------------------------- translations


def exact_rate(texts: Sequence[str], pairs: Sequence[Pair]) -> float:
    """Share of texts that equal the reference, character for character."""
    right = [text == pair.target for text, pair in zip(texts, pairs, strict=True)]
    return sum(right) / len(right)


def bleu(texts: Sequence[str], pairs: Sequence[Pair]) -> float:
    """Corpus BLEU by sacreBLEU, 0 to 100, with its tokenizer for the language of the pairs."""
    import sacrebleu

    language = pairs[0].locales[1].split("_")[0]
    tokenizer = {"zh": "zh", "ja": "char"}.get(language, "13a")
    references = [[pair.target for pair in pairs]]
    return float(sacrebleu.corpus_bleu(list(texts), references, tokenize=tokenizer).score)


# --------------------------------------------------------------------------- search


@dataclass(frozen=True)
class Step:
    """One step of a beam: every extension that was looked at, and those that were kept.

    looked_at: joint probability by prefix.
    kept: the surviving prefixes, finished ones included, best first.
    """

    looked_at: dict[tuple[int, ...], float] = field(default_factory=dict)
    kept: list[tuple[int, ...]] = field(default_factory=list)


@torch.no_grad()
def trace_beam(
    model: nn.Module, source: Tensor, beam_size: int, max_length: int
) -> tuple[list[Step], tuple[int, ...], float]:
    """Beam search without length correction, telling what it looked at.

    Args:
        model: a translator: `start(source, mask)` and `step(previous, state)`.
        source: (1, T) int64.
        beam_size: hypotheses kept at each step; finished ones count for good.

    Returns:
        The steps, the best hypothesis and its probability.
    """
    live: dict[tuple[int, ...], tuple[float, tuple[Tensor, ...]]] = {
        (): (0.0, model.start(source, None))
    }
    finished: dict[tuple[int, ...], float] = {}
    steps = []
    while live and len(steps) < max_length:
        step = Step()
        states = {}
        for prefix, (score, state) in live.items():
            previous = source.new_tensor([prefix[-1] if prefix else BOS])  # (1,)
            logits, states[prefix] = model.step(previous, state)
            for token, more in enumerate(torch.log_softmax(logits[0], -1).tolist()):
                if more > -math.inf:
                    step.looked_at[(*prefix, token)] = math.exp(score + more)
        ranked = sorted(step.looked_at.items(), key=lambda item: -item[1])
        live = {}
        for prefix, chance in ranked[: beam_size - len(finished)]:
            step.kept.append(prefix)
            if prefix[-1] != EOS:
                live[prefix] = (math.log(chance), states[prefix[:-1]])
        finished.update({p: step.looked_at[p] for p in step.kept if p[-1] == EOS})
        steps.append(step)
    scores = {**finished, **{p: math.exp(score) for p, (score, _) in live.items()}}
    best = max(scores, key=scores.__getitem__)
    return steps, best, scores[best]


def search_page(
    steps: Sequence[Step], words: Sequence[str], best: Sequence[int], chance: float, digits: int = 2
) -> str:
    """The steps of a beam as tables, one a step, and what came out, as HTML.

    Args:
        steps, best, chance: what `trace_beam` returned.
        words: what each id says; ids that no step has looked at get no column.
        digits: decimals of the numbers in the tables.
    """
    used = sorted({prefix[-1] for step in steps for prefix in step.looked_at})

    def say(ids: Sequence[int]) -> str:
        return " ".join(words[i] for i in ids) or words[BOS]

    tables = []
    for number, step in enumerate(steps, 1):
        parents = list(dict.fromkeys(prefix[:-1] for prefix in step.looked_at))
        matrix = [[step.looked_at.get((*parent, token), 0.0) for token in used]
                  for parent in parents]  # fmt: skip
        kept = "; ".join(say(prefix) for prefix in step.kept)
        caption = f"step {number}, kept: {kept}"
        rows, columns = [say(parent) for parent in parents], [words[token] for token in used]
        tables.append(widgets.heat_table(matrix, rows, columns, caption, digits))
    result = html.escape(say([i for i in best if i not in (PAD, EOS)]))
    return (
        f"{widgets.side_by_side(*tables)}<p>Result: <b>{result}</b>, probability {chance:.3f}</p>"
    )
