"""Models, data and measurements of the sequence-to-sequence chapter."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from toolkit import device, translation
from toolkit import seq2seq_lab as lab

A, B, C, D = range(4, 8)


class Table(nn.Module):
    """Next-token probabilities by step and previous token: a translator without a network."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = table  # (steps, V, V)

    def start(self, source: Tensor, mask: Tensor | None) -> tuple[Tensor]:
        return (torch.zeros(len(source), dtype=torch.int64),)

    def step(self, previous: Tensor, state: tuple[Tensor]) -> tuple[Tensor, tuple[Tensor]]:
        (t,) = state
        return self.table[t, previous].log(), (t + 1,)


@pytest.fixture
def crossing() -> Table:
    """The greedy path has 0.6 * 0.5, the best one 0.4 * 0.95."""
    table = torch.full((3, 8, 8), 0.125)
    table[0, 1] = table[1, A] = table[1, B] = 0.0
    table[0, 1, [A, B]] = torch.tensor([0.6, 0.4])
    table[1, A, [C, D]] = torch.tensor([0.5, 0.5])
    table[1, B, [C, D]] = torch.tensor([0.05, 0.95])
    table[2] = 0.0
    table[2, :, 2] = 1.0
    return Table(table)


@pytest.fixture(scope="module")
def corpus() -> lab.Corpus:
    return lab.Corpus.make("en", "zh", ["date", "percent"], 3, train=300, test=40)


# --------------------------------------------------------------------------- memory


@pytest.mark.parametrize("kind", lab.KINDS)
def test_the_answer_depends_on_every_token(kind: str) -> None:
    torch.manual_seed(0)
    model = lab.Recall(kind, 5, 8)
    tokens = torch.randint(5, (2, 6))
    logits = model(tokens)
    assert logits.shape == (2, 5)
    for place in range(6):
        other = tokens.clone()
        other[:, place] = (other[:, place] + 1) % 5
        assert not torch.equal(model(other), logits)


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_keep_opens_the_gate_that_keeps(kind: str) -> None:
    """With a very large bias the first input is what the last state is made of."""
    closed, opened = (lab.gradient_by_distance(kind, 20, keep=keep) for keep in (0.0, 6.0))
    assert closed[0] == opened[0] == 1.0
    assert closed[-1] < 1e-2
    assert opened[-1] > 0.5


def test_a_gradient_comes_back_from_every_distance() -> None:
    sizes = lab.gradient_by_distance("RNN", 12)
    assert sizes.shape == (12,)
    assert (sizes > 0).all()
    assert sizes[-1] < sizes[0]


def test_a_short_delay_is_learned() -> None:
    small = replace(device.preset("cpu"), steps=200, d_model=48)
    assert lab.recall_rate("GRU", 2, symbols=4, preset=small) > 0.9


def test_what_cannot_be_remembered_is_guessed() -> None:
    brief = replace(device.preset("cpu"), steps=4)
    assert lab.recall_rate("RNN", 8, symbols=4, preset=brief) < 0.5


def test_a_plain_rnn_has_no_gate_to_open() -> None:
    with pytest.raises(ValueError, match="no gate"):
        lab.Recall("RNN", 4, 8, keep=1.0)
    with pytest.raises(ValueError, match="one of RNN, GRU, LSTM"):
        lab.Recall("MLP", 4, 8)


# --------------------------------------------------------------------------- corpora


def test_no_test_sentence_was_seen_in_training(corpus: lab.Corpus) -> None:
    seen = {pair.source for pairs in corpus.train.values() for pair in pairs}
    assert corpus.test
    assert not seen & {pair.source for pair in corpus.test}


def test_a_training_batch_has_one_number_of_items_and_all_numbers_take_turns(
    corpus: lab.Corpus,
) -> None:
    lengths = [batch.source_mask.sum(1).float().mean().item()
               for batch in itertools.islice(corpus.stream(32, 0), 6)]  # fmt: skip
    assert lengths[0] < lengths[1] < lengths[2]
    assert lengths[3] < lengths[4] < lengths[5]


def test_the_same_seed_gives_the_same_batches(corpus: lab.Corpus) -> None:
    first, same, other = (next(corpus.stream(16, seed)).source for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_groups_hold_the_lengths_they_say_and_every_pair_once(corpus: lab.Corpus) -> None:
    groups = corpus.by_length([1, 8, 16, 50])
    for (low, high), pairs in groups.items():
        assert all(low <= len(pair.source_tokens) <= high for pair in pairs)
    assert sum(map(len, groups.values())) == len(corpus.test)
    assert list(groups) == [(1, 7), (8, 15), (16, 49)]


def test_the_references_themselves_are_perfect(corpus: lab.Corpus) -> None:
    pairs = corpus.test[:30]
    batch = corpus.batch(pairs)
    texts = corpus.texts(batch.target_out)
    assert texts == [pair.target for pair in pairs]
    assert lab.exact_rate(texts, pairs) == 1.0
    assert lab.bleu(texts, pairs) > 99.9
    assert lab.token_rate(batch.target_out, batch.target_out) == 1.0


def test_a_wrong_text_costs_one_sentence_and_some_bleu(corpus: lab.Corpus) -> None:
    pairs = corpus.test[-20:]
    texts = [pair.target for pair in pairs]
    texts[0] = texts[0][:-1]
    assert lab.exact_rate(texts, pairs) == 0.95
    assert 90 < lab.bleu(texts, pairs) < 99.99


def test_bleu_of_a_language_with_spaces_counts_words() -> None:
    pairs = translation.make_pairs(20, "en", "de", kinds=["date"], length=2)
    assert lab.bleu([p.target for p in pairs], pairs) > 99.9
    assert lab.bleu([p.target.replace(" ", "") for p in pairs], pairs) < 50


def test_token_rate_counts_real_places_only() -> None:
    target = torch.tensor([[4, 5, 2, 0], [6, 2, 0, 0]])
    assert lab.token_rate(torch.tensor([[4, 5, 2], [7, 2, 0]]), target) == pytest.approx(4 / 5)
    assert lab.token_rate(torch.tensor([[4], [6]]), target) == pytest.approx(2 / 5)


def test_the_alignment_rate_counts_aligned_tokens_only(corpus: lab.Corpus) -> None:
    pairs = [p for p in corpus.test if p.kind == "date"][:10]
    width = max(len(p.source_tokens) for p in pairs)
    longest = max(len(p.target_tokens) for p in pairs) + 1
    perfect = torch.zeros(len(pairs), longest, width)
    for row, pair in enumerate(pairs):
        for i, j in enumerate(pair.alignment):
            perfect[row, i, j] = 1.0  # -1 marks the last column: such rows don't count
    assert lab.alignment_rate(perfect, pairs) == 1.0
    assert lab.alignment_rate(perfect.roll(1, dims=-1), pairs) == 0.0
    found, missed = lab.alignment_counts(perfect, pairs)
    assert sum(found.values()) == sum(j >= 0 for pair in pairs for j in pair.alignment)
    assert not missed


def test_tokens_can_be_left_out_of_the_rate(corpus: lab.Corpus) -> None:
    pairs = [p for p in corpus.test if p.kind == "date"][:10]
    nowhere = torch.zeros(len(pairs), 20, 20)
    nowhere[..., -1] = 1.0
    nowhere[0, 0] = 0.0
    nowhere[0, 0, pairs[0].alignment[0]] = 1.0  # the first digit of the first year, and no other
    digit = pairs[0].target_tokens[0]
    found, missed = lab.alignment_counts(nowhere, pairs)
    assert found == {digit: 1}
    others = set(missed) - {digit}
    assert lab.alignment_rate(nowhere, pairs, others) == 1 / (1 + missed[digit])


def test_pairs_without_alignment_are_refused() -> None:
    pairs = translation.make_pairs(2, "en", "de", kinds=["date"])
    with pytest.raises(ValueError, match="with_alignment"):
        lab.alignment_rate(torch.ones(2, 5, 5), pairs)


# --------------------------------------------------------------------------- search


def test_a_beam_of_one_is_greedy_and_of_two_finds_the_best(crossing: Table) -> None:
    source = torch.tensor([[4]])
    _, ids, chance = lab.trace_beam(crossing, source, 1, 3)
    assert ids[0] == A
    assert chance == pytest.approx(0.30)
    _, ids, chance = lab.trace_beam(crossing, source, 2, 3)
    assert ids == (B, D, 2)
    assert chance == pytest.approx(0.38)


@pytest.mark.parametrize("beam_size", [1, 2, 3, 30])
def test_a_trace_looks_at_the_extensions_of_what_it_kept(crossing: Table, beam_size: int) -> None:
    steps, best, _ = lab.trace_beam(crossing, torch.tensor([[4]]), beam_size, 3)
    alive = {()}
    for step in steps:
        assert {prefix[:-1] for prefix in step.looked_at} == alive
        assert len(step.kept) <= beam_size
        dropped = [p for name, p in step.looked_at.items() if name not in step.kept]
        assert all(step.looked_at[name] >= max(dropped, default=0) for name in step.kept)
        alive = {prefix for prefix in step.kept if prefix[-1] != 2}
    assert best in {prefix for step in steps for prefix in step.kept}


def test_a_wide_beam_sees_everything() -> None:
    torch.manual_seed(0)
    model = Table(torch.softmax(torch.randn(3, 5, 5), -1))
    _, ids, chance = lab.trace_beam(model, torch.tensor([[4]]), 1000, 3)

    def joint(tokens: tuple[int, ...]) -> float:
        before = (1, *tokens)
        return math.prod(float(model.table[t, before[t], token]) for t, token in enumerate(tokens))

    others = ((*start, 2) for n in range(3) for start in itertools.product([0, 1, 3, 4], repeat=n))
    unfinished = itertools.product([0, 1, 3, 4], repeat=3)
    assert chance == pytest.approx(max(map(joint, itertools.chain(others, unfinished))), rel=1e-4)
    assert joint(ids) == pytest.approx(chance, rel=1e-4)


def test_the_page_of_a_search_says_what_was_kept_and_escapes_words(crossing: Table) -> None:
    words = ["<pad>", "<bos>", "<eos>", "<unk>", "A", "B", "C", "D"]
    page = lab.search_page(*[(t := lab.trace_beam(crossing, torch.tensor([[4]]), 2, 3))[0], words],
                           *t[1:])  # fmt: skip
    assert page.count("<table") == 3
    assert "step 1, kept: A; B" in page
    assert "Result: <b>B D</b>, probability 0.380" in page
    assert "&lt;bos&gt;" in page
    assert "<bos>" not in page
