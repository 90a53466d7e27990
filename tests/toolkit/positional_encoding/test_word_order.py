"""Sentences that differ in order only, the answers that they ask for, and what a model learns."""

from __future__ import annotations

import itertools

import matplotlib.pyplot as plt
import pytest
import torch
from torch import nn

from solutions.positional_encoding import LearnedPositions, TokenEmbedding
from toolkit.positional_encoding import word_order

TASK = word_order.WhoBitWhom()


def encoder(positions: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    words = len(TASK.words)
    tokens = TokenEmbedding(words, 16)
    nn.init.normal_(tokens.table.weight, std=0.25)  # variance 1 after the scaling
    return nn.Sequential(tokens, positions, block, nn.Linear(16, words))


def test_the_answer_is_the_noun_asked_for_and_no_pair_is_one_held_out() -> None:
    draw, held, lengths = (
        torch.Generator().manual_seed(0),
        set(map(frozenset, word_order.HELD_OUT)),
        set(),
    )
    for _ in range(30):
        ids, answers = TASK.batch(8, draw)
        lengths.add(ids.shape[1])
        for row, answer in zip(ids, answers, strict=True):
            words = TASK.text(row).split()
            first, second = (word for word in words if word in word_order.NOUNS)
            assert TASK.words[answer] == (first if words[-1] == "who" else second)
            assert frozenset((first, second)) not in held
            after = {after for word, after in itertools.pairwise(words) if word == "the"}
            assert after == {first, second}
    assert lengths == {6, 7, 8, 9}


def test_new_sentences_stand_beside_those_with_exchanged_nouns() -> None:
    ids, answers = TASK.new_sentences(20, others=2, seed=1)
    assert ids.shape == (40, 8)
    held = set(map(frozenset, word_order.HELD_OUT))
    for one, two, right, other in zip(ids[:20], ids[20:], answers[:20], answers[20:], strict=True):
        nouns = [w for w in TASK.text(one).split() if w in word_order.NOUNS]
        assert frozenset(nouns) in held
        assert {TASK.words[right], TASK.words[other]} == set(nouns)
        assert TASK.text(two).split() == [
            {nouns[0]: nouns[1], nouns[1]: nouns[0]}.get(w, w) for w in TASK.text(one).split()
        ]


def test_texts_become_ids_and_back() -> None:
    text = "the dog bit the man who"
    assert TASK.text(TASK.sentence(text)[0]) == text
    with pytest.raises(ValueError, match="'tiger'"):
        TASK.sentence("the tiger")


def test_only_a_model_with_positions_learns_the_order() -> None:
    watch = ["the dog bit the man who", "the man bit the dog who"]
    without = word_order.learn(encoder(nn.Identity()), TASK, 30, lr=1e-2, watch=watch)
    learned = word_order.learn(
        encoder(LearnedPositions(9, 16)), TASK, 120, lr=1e-2, watch=watch, every=40
    )
    assert learned.steps == [0, 40, 80, 120]
    assert learned.accuracy[-1] > 0.8
    assert max(without.accuracy) < 0.51
    for said in without.answers:
        torch.testing.assert_close(said[0], said[1])
    assert len(without.losses) == 30


def test_curves_are_drawn_for_each_name() -> None:
    run = word_order.Learned([0, 10], [0.1, 0.5], [], [1.0] * 20)
    figure = word_order.learning_curves({"one": [run, run], "two": [run]})
    assert [t.get_text() for t in figure.axes[1].get_legend().get_texts()] == ["one", "two"]
    plt.close(figure)
    with pytest.raises(ValueError, match="at least one"):
        word_order.learning_curves({"one": []})
