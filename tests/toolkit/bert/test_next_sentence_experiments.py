"""The pairs that the experiment on next-sentence prediction asks about, and how it counts."""

from __future__ import annotations

import pytest
import torch

from toolkit.bert import next_sentence_experiments as experiments
from toolkit.bert import next_sentence_pictures as pictures
from toolkit.bert.next_sentence_experiments import KINDS, Question, Text
from toolkit.models import load


def texts() -> list[Text]:
    first = [[10 * n, 10 * n + 1] for n in range(1, 6)]
    return [
        Text("a", first, [True, False, False, False, False]),
        Text("a", [[100], [101]]),
        Text("b", [[200], [201]]),
    ]


def test_wrong_seconds_come_from_where_they_should() -> None:
    found = experiments.questions(texts(), draws=8)
    assert len(found) == 4  # only the first document is long enough
    for at, one in enumerate(found):
        first, second = texts()[0].parts[at : at + 2]
        assert one.true == (first, second)
        assert one.prose == (at > 0)
        assert {b[0] for _, b in one.wrong["another module"]} <= {200, 201}
        assert {b[0] for _, b in one.wrong["same module"]} <= {100, 101}
        for a, b in one.wrong["same document"]:
            assert a == first
            assert b not in (first, second)
            assert b in texts()[0].parts
            assert abs(texts()[0].parts.index(b) - at) > 1
        assert one.wrong["swapped"] == [(second, first)]


def test_usual_pairs_have_their_random_second_from_another_document() -> None:
    owner = {tuple(part): n for n, text in enumerate(texts()) for part in text.parts}
    found = experiments.usual_pairs(texts(), 200)
    assert {label for _, label in found} == {0, 1}
    for (a, b), label in found:
        same = owner[tuple(a)] == owner[tuple(b)]
        assert same == (label == 0)


def test_the_control_cannot_tell_a_pair_from_the_same_two_exchanged() -> None:
    torch.manual_seed(0)
    control = experiments.SharedWords(50, torch.rand(50))
    for parameter in control.parameters():
        torch.nn.init.normal_(parameter)
    pairs = [([5, 6, 7], [6, 9]), ([8, 8], [8, 12, 13])]
    there = control(control.features(pairs))
    back = control(control.features([(b, a) for a, b in pairs]))
    assert torch.allclose(there, back)


def test_the_control_learns_that_true_pairs_share_a_word() -> None:
    pairs = [([5 + n, 20], [5 + n, 30]) for n in range(20)]
    pairs += [([5 + n, 20], [6 + n, 30]) for n in range(20)]
    labels = torch.tensor([0.0] * 20 + [1.0] * 20)
    control = experiments.SharedWords(50, torch.ones(50))
    control.fit(control.features(pairs), labels, decay=1e-3, steps=100)
    assert ((control(control.features(pairs)) > 0) == (labels == 0)).all()


def test_accuracy_counts_true_and_wrong_pairs_alike() -> None:
    asked = [Question("m", ([1], [2]), {}, True), Question("n", ([1], [2]), {}, True)]
    logits = {"true": torch.tensor([2.0, 1.0])}
    logits |= {kind: torch.tensor([[-1.0, 3.0], [-1.0, -1.0]]) for kind in KINDS}
    row = next(iter(experiments.judged(asked, logits)))
    assert (row["accepted"], row["rejected"], row["accuracy"]) == (1.0, 0.75, 0.875)
    assert row["preferred"] == 0.75
    assert row["modules"] == 2


def test_an_interval_draws_whole_groups() -> None:
    values = torch.tensor([0.0] * 50 + [1.0] * 50)
    mean, low, high = experiments.interval(values, ["a"] * 50 + ["b"] * 50)
    assert (mean, low, high) == (0.5, 0.0, 1.0)
    _, low, high = experiments.interval(values, [str(n) for n in range(100)])
    assert 0.35 < low < 0.45
    assert 0.55 < high < 0.65


def test_the_stored_rows_have_both_judges_and_all_kinds() -> None:
    rows = experiments.read()
    for form, subset in (("sentences", "all"), ("sentences", "prose"), ("runs", "all")):
        part = [r for r in rows if (r["form"], r["subset"]) == (form, subset)]
        assert [(r["judge"], r["kind"]) for r in part] == [
            (judge, kind) for judge in experiments.JUDGES for kind in KINDS
        ]
    swapped = [r for r in rows if r["kind"] == "swapped" and r["judge"] == "shared words"]
    assert all(float(r["accuracy"]) == float(r["preferred"]) == 0.5 for r in swapped)


def test_the_figure_shows_the_stored_accuracies() -> None:
    rows = [r for r in experiments.read() if (r["form"], r["subset"]) == ("sentences", "all")]
    shown = [text.get_text() for text in pictures.by_kind(rows).axes[0].texts]
    assert [f"{100 * float(r['accuracy']):.0f}" for r in rows] == shown[: len(rows)]


def test_a_sentence_follows_itself_in_the_shipped_model() -> None:
    shares = pictures.is_next(load("bert"), ["Close the file.", "Return a list of names."])
    assert shares.shape == (2, 2)
    assert shares.diagonal().min() > 0.9
    with pytest.raises(ValueError, match="shorter"):
        pictures.listed(["only one"])
