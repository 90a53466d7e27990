"""The graders of `seq2seq-decoding`: right answers in any style earn full marks."""

from __future__ import annotations

import pytest

from autograder.units.variants import (
    Misconception,
    changed_source,
    misconception,
)
from tests.autograder.unit_graders import Styles, UnitGraders, failures, graders_of, with_own

UNIT = "seq2seq-decoding"

# Right answers that look unlike the reference and unlike those in autograder/demo.
STYLES = Styles()
style = STYLES.add

style(
    "sequence_log_prob",
    "one-hot targets",
    """
    def sequence_log_prob(logits, targets, mask=None):
        if logits.dim() != 3 or targets.shape != logits.shape[:2]:
            raise ValueError("targets")
        if targets.dtype != torch.int64:
            raise ValueError("dtype")
        if mask is None:
            mask = torch.ones_like(targets, dtype=torch.bool)
        if mask.shape != targets.shape or mask.dtype != torch.bool:
            raise ValueError("mask")
        real = targets[mask]
        if ((real < 0) | (real >= logits.shape[2])).any():
            raise ValueError("vocabulary")
        safe = torch.where(mask, targets, 0)
        chosen = nn.functional.one_hot(safe, logits.shape[2]).bool() & mask[..., None]
        log_probs = nn.functional.log_softmax(logits, dim=2)
        return log_probs.where(chosen, torch.zeros_like(log_probs)).sum(dim=(1, 2))
    """,
)
style(
    "sequence_loss",
    "the mean over what is real, by rows",
    """
    def sequence_loss(logits, targets, pad=PAD):
        mask = torch.logical_not(targets == pad)
        count = int(mask.sum())
        if count == 0:
            raise ValueError("nothing real")
        rows = sequence_log_prob(logits, targets, mask)
        return sum(-row / count for row in rows)
    """,
)
style(
    "greedy_decode",
    "every column kept, cut afterwards",
    """
    def greedy_decode(model, source, source_mask=None, max_length=20):
        if max_length < 1:
            raise ValueError("max_length")
        with torch.no_grad():
            state = model.start(source, source_mask)
            word = torch.full((len(source),), BOS)
            columns = []
            for _ in range(max_length):
                logits, state = model.step(word, state)
                word = torch.max(logits, dim=-1)[1]
                columns.append(word)
        ids = torch.stack(columns, dim=1)
        ended = (ids == EOS).long().cumsum(dim=1) - (ids == EOS).long() > 0
        ids[ended] = PAD
        lengths = (~ended).sum(dim=1)
        return ids[:, : int(lengths.max())].contiguous()
    """,
)
style(
    "exhaustive_search",
    "itertools.product, every sequence scored from the start",
    """
    import itertools

    def exhaustive_search(model, source, max_length, source_mask=None):
        if len(source) != 1 or max_length < 1:
            raise ValueError("input")
        first = model.start(source, source_mask)
        vocabulary = model.step(torch.tensor([BOS]), first)[0].shape[1]
        others = [i for i in range(vocabulary) if i != EOS]
        best, best_ids = -math.inf, None
        for length in range(max_length):
            for body in itertools.product(others, repeat=length):
                state, total, previous = first, 0.0, BOS
                for token in (*body, EOS):
                    logits, state = model.step(torch.tensor([previous]), state)
                    total += float(logits.log_softmax(-1)[0, token])
                    if total == -math.inf:
                        break
                    previous = token
                if total > best:
                    best, best_ids = total, (*body, EOS)
        if best_ids is None:
            raise ValueError("no end")
        return [list(best_ids), best]
    """,
)
style(
    "beam_search",
    "the best of each hypothesis merged, states in a list",
    """
    def beam_search(model, source, beam_size, max_length, source_mask=None, alpha=0.0):
        if beam_size < 1 or max_length < 1 or alpha < 0 or source.size(0) != 1:
            raise ValueError("input")
        beam, done = [(0.0, [], model.start(source, source_mask))], []
        while beam and len(beam[0][1]) < max_length:
            found = []
            for total, ids, state in beam:
                previous = torch.tensor([ids[-1]]) if ids else torch.tensor([BOS])
                logits, after = model.step(previous, state)
                top = torch.log_softmax(logits[0], 0).topk(min(beam_size, logits.shape[1]))
                for value, token in zip(top.values, top.indices):
                    if torch.isfinite(value):
                        found.append((total + value.item(), [*ids, token.item()], after))
            found = sorted(found, key=lambda one: one[0], reverse=True)
            found = found[: beam_size - len(done)]
            done.extend(one for one in found if one[1][-1] == EOS)
            beam = [one for one in found if one[1][-1] != EOS]
        result = [(ids, total / len(ids) ** alpha) for total, ids, _ in done + beam]
        result.sort(key=lambda pair: pair[1], reverse=True)
        return result
    """,
)
style(
    "sequence_log_prob",
    "torch.distributions",
    """
    def sequence_log_prob(logits, targets, mask=None):
        if logits.ndim != 3 or targets.shape != logits.shape[:2] or targets.dtype != torch.int64:
            raise ValueError
        real = torch.ones(targets.shape).bool() if mask is None else mask
        if real.dtype != torch.bool or real.shape != targets.shape:
            raise ValueError
        if (((targets < 0) | (targets >= logits.shape[-1])) & real).any():
            raise ValueError
        said = torch.distributions.Categorical(logits=logits, validate_args=False)
        return torch.where(real, said.log_prob(torch.where(real, targets, 0)), 0.0).sum(1)
    """,
)
style(
    "exhaustive_search",
    "the most probable beginning first, from a heap; a float of NumPy",
    """
    import heapq
    import numpy as np

    @torch.inference_mode()
    def exhaustive_search(model, source, max_length, source_mask=None):
        if source.shape[0] != 1 or max_length < 1:
            raise ValueError
        heap, number = [(0.0, 0, [], model.start(source, source_mask))], 0
        while heap:
            cost, _, ids, state = heapq.heappop(heap)
            if ids and ids[-1] == EOS:
                return ids, np.float64(-cost)
            if len(ids) < max_length:
                logits, new = model.step(torch.tensor([ids[-1] if ids else BOS]), state)
                for token, p in enumerate(logits[0].double().log_softmax(0).numpy()):
                    if np.isfinite(p):
                        number += 1
                        heapq.heappush(heap, (cost - float(p), number, [*ids, token], new))
        raise ValueError
    """,
)
style(
    "beam_search",
    "every hypothesis read again from the start, floats of NumPy, pairs as lists",
    """
    import numpy as np

    def beam_search(model, source, beam_size, max_length, source_mask=None, alpha=0.0):
        if min(beam_size, max_length) < 1 or alpha < 0 or len(source) != 1:
            raise ValueError

        @torch.no_grad()
        def after(ids):
            state = model.start(source, source_mask)
            for token in (BOS, *ids):
                logits, state = model.step(torch.tensor([token]), state)
            return logits[0].double().log_softmax(-1).numpy()

        live, done = [((), np.float64(0))], []
        for _ in range(max_length):
            found = [((*ids, v), s + p) for ids, s in live for v, p in enumerate(after(ids))]
            found = [one for one in found if one[1] > -np.inf]
            found = sorted(found, key=lambda one: -one[1])[: beam_size - len(done)]
            done += [one for one in found if one[0][-1] == EOS]
            live = [one for one in found if one[0][-1] != EOS]
        pairs = [[list(ids), s / np.power(len(ids), alpha)] for ids, s in done + live]
        return sorted(pairs, key=lambda pair: -pair[1])
    """,
)


RECURRENT = "seq2seq-recurrent"
BROKEN = {
    "missing": "    def __init__(self, *args):\n        raise NotImplementedError\n",
    "failing": "    def __init__(self, *args):\n        raise RuntimeError\n",
    "without parameters": "    def forward(self, *args):\n        return None\n",
}


@pytest.mark.parametrize("name", [*BROKEN, "gru_z_swapped", "encoder_mask_ignored"])
def test_a_search_does_not_answer_for_the_encoder(graders, name):
    if name in BROKEN:
        code = "class Encoder(nn.Module):\n" + BROKEN[name]
        mistake = Misconception(name, "Encoder", "", "", code=code)
    else:
        mistake = misconception(RECURRENT, name)
    namespace = with_own(UNIT, changed_source(RECURRENT, mistake))
    assert failures(graders_of(RECURRENT), namespace, [mistake.exercise]) != []
    assert failures(graders, namespace, ["greedy_decode", "exhaustive_search", "beam_search"]) == []


class TestGraders(UnitGraders):
    unit = UNIT
    styles = STYLES
