"""The task of the attention chapter follows its rules; a reader of it learns, and is measured."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from solutions.attention import MultiHeadAttention
from solutions.bert import BertModel
from toolkit.attention import heads


def test_the_same_seed_gives_the_same_sentences() -> None:
    draw = lambda seed: heads.Referents().sample(8, torch.Generator().manual_seed(seed)).tokens  # noqa: E731
    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


def test_the_clue_decides_the_referent() -> None:
    task = heads.Referents()
    batch = task.sample(300, torch.Generator().manual_seed(3))
    assert batch.tokens.shape == (300, 15)
    rows = torch.arange(300)
    word = lambda where, row: task.words[batch.tokens[row, where[row]]]  # noqa: E731
    for row in rows.tolist():
        assert word(batch.it, row) == "it"
        tired = word(batch.clue, row) in task.tired
        assert tired or word(batch.clue, row) in task.wide
        assert word(batch.referent, row) in (task.animals if tired else task.places)
        assert word(batch.other, row) in (task.places if tired else task.animals)


def test_neither_order_nor_position_gives_the_referent_away() -> None:
    batch = heads.Referents().sample(1000, torch.Generator().manual_seed(4))
    first = (batch.referent < batch.other).float().mean()
    assert 0.4 < first < 0.6
    for where in (batch.it, batch.referent, batch.other):
        assert len(set(where.tolist())) > 2


def test_a_written_sentence_gets_its_ids_back() -> None:
    task = heads.Referents()
    ids = task.sentence("the dog did not cross the river")
    assert [task.words[i] for i in ids[0]] == ["the", "dog", "did", "not", "cross", "the", "river"]
    with pytest.raises(KeyError):
        task.sentence("the unicorn")


class SmallBert(nn.Module):
    """One layer of BERT with a masked-language head, as `loss_without_heads` expects it."""

    def __init__(self) -> None:
        super().__init__()
        self.bert = BertModel(vocab_size=11, d_model=8, num_layers=1, num_heads=2, d_ff=16)
        self.mlm = nn.Linear(8, 11)


def masked_batch() -> heads.Masked:
    ids = torch.randint(5, 11, (3, 6), generator=torch.Generator().manual_seed(0))
    targets = torch.full_like(ids, -100)
    targets[:, 2] = ids[:, 2]
    return heads.Masked(ids, torch.ones_like(ids, dtype=torch.bool), targets)


def test_removing_a_head_that_adds_nothing_changes_no_loss() -> None:
    torch.manual_seed(0)
    model = SmallBert().eval()
    with torch.no_grad():
        model.bert.layers[0].attention.out_proj.weight[:, :4] = 0  # head 0's features
    growth = heads.loss_without_heads(model, [masked_batch(), masked_batch()])
    assert growth.shape == (2, 1, 2)
    assert growth[:, 0, 0].abs().max() < 1e-6
    assert growth[:, 0, 1].abs().max() > 1e-6
    assert torch.equal(growth[0], growth[1])


def test_mean_weight_on_a_neighbour_is_the_mean_of_a_diagonal() -> None:
    weights = torch.tensor([[0.1, 0.9, 0], [0.2, 0.2, 0.6], [0.3, 0.4, 0.3]])
    assert heads.look_at(weights, 1) == pytest.approx(0.75)
    assert heads.look_at(weights, -1) == pytest.approx(0.3)


def test_held_out_sentences_are_in_no_batch() -> None:
    task = heads.Referents()
    known = task.sample(40, torch.Generator().manual_seed(3))
    again = heads.held_out(task, 40, [known], seed=3)  # the same draw, without what is known
    seen = {tuple(row) for row in known.tokens.tolist()}
    assert len(again.it) == 40
    assert not seen & {tuple(row) for row in again.tokens.tolist()}


def test_a_reader_learns_referents_and_shows_where_it_looks() -> None:
    task = heads.Referents()
    torch.manual_seed(0)
    reader = heads.Reader(task, MultiHeadAttention)
    sentence = "the animal did not cross the street because it was too tired"
    watched = heads.learn_referents(reader, task, 80, watch=[sentence], every=40)
    assert watched.steps == [0, 40, 80]
    assert watched.looks.shape == (3, 1, 2, 2, 12)
    torch.testing.assert_close(watched.looks.sum(-1), torch.ones(3, 1, 2, 2))
    assert watched.accuracy[-1] > 0.8 > 0.3 > watched.accuracy[0]


def test_a_causal_reader_does_not_look_ahead() -> None:
    task = heads.Referents()
    reader = heads.Reader(task, MultiHeadAttention, causal=True)
    sentences = task.sample(4, torch.Generator().manual_seed(0))
    assert reader(sentences.tokens)[1].triu(1).abs().max() == 0
    assert heads.looks_at(reader, sentences)["clue"].max() == 0
