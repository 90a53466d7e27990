"""Experiments about training objectives: what they count, and that they measure what they say."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from solutions.bert import (
    BertForPreTraining,
    NezhaAttention,
    build_input,
    mask_tokens,
)
from solutions.bert import pseudo_log_likelihood as chapters_score
from toolkit import objectives_lab as lab

V = 17  # five special tokens and the twelve symbols of cycle_rows


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Models this small gain nothing from a second thread, which would mostly wait."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make(seed: int = 0, **more: object) -> nn.Module:
    torch.manual_seed(seed)
    sizes = {
        "d_model": 16, "num_layers": 2, "num_heads": 2, "d_ff": 32, "max_length": 40,
        "dropout": 0.0, **more,
    }  # fmt: skip
    return lab.rescale(BertForPreTraining(V, **sizes), 3.0).eval()


@pytest.fixture(scope="module")
def rows() -> Tensor:
    return lab.cycle_rows(300, 14)


@pytest.fixture(scope="module")
def documents() -> list[list[list[int]]]:
    draw = torch.Generator().manual_seed(0)
    return [
        torch.randint(5 + 3 * (n % 4), 8 + 3 * (n % 4), (12, 6), generator=draw).tolist()
        for n in range(8)
    ]


# --------------------------------------------------------------------------- rows


def test_pieces_hold_every_token_but_what_is_left_over() -> None:
    documents = [[[5, 6, 7], [8, 9]], [[10], [11, 12, 13]], [[14]]]
    made = lab.pieces(documents, 4)
    assert made.tolist() == [
        [lab.CLS, 5, 6, lab.SEP], [lab.CLS, 7, 8, lab.SEP],
        [lab.CLS, 10, 11, lab.SEP], [lab.CLS, 12, 13, lab.SEP],
    ]  # fmt: skip
    assert lab.pieces(documents, 4, end=False).tolist() == [[2, 5, 6, 7], [2, 10, 11, 12]]
    with pytest.raises(ValueError, match="no room"):
        lab.pieces(documents, 2)
    with pytest.raises(ValueError, match="no document"):
        lab.pieces(documents, 30)


def test_split_shares_the_rows() -> None:
    numbers = torch.arange(20)[:, None]
    train, test = lab.split(numbers, 5, seed=1)
    assert len(test) == 5
    assert sorted(torch.cat([train, test])[:, 0].tolist()) == list(range(20))
    with pytest.raises(ValueError, match="held_out"):
        lab.split(numbers, 20)


def test_examples_become_padded_rows() -> None:
    examples = [SimpleNamespace(first=[5, 6, 7, 8], label="b"), SimpleNamespace(first=[9], label=0)]
    ids, labels = lab.labelled(examples, ["a", "b"], 5)
    assert ids.tolist() == [[2, 5, 6, 7, 3], [2, 9, 3, 0, 0]]
    assert labels.tolist() == [1, 0]
    assert len(lab.labelled(examples, ["a", "b"], 5, most=1)[0]) == 1


def test_docstrings_of_modules_become_rows() -> None:
    class Pieces:
        def encode_all(self, texts: list[str]) -> list[list[int]]:
            return [[5 + len(word) for word in text.split()] for text in texts]

    docstring = lambda module, split, *sentences: SimpleNamespace(  # noqa: E731
        module=module, split=split, sentences=sentences
    )
    corpus = SimpleNamespace(
        pieces=Pieces(),
        docstrings=[
            docstring("a", "train", "x yy", "zzz"), docstring("b", "train", "x"),
            docstring("b", "test", "x"), docstring("c", "train", "x"), docstring("a", "train"),
        ],
    )  # fmt: skip
    ids, labels = lab.module_rows(corpus, ("a", "b"), ("train",), 6)
    assert ids.tolist() == [[2, 6, 7, 8, 3, 0], [2, 6, 3, 0, 0, 0]]
    assert labels.tolist() == [0, 1]


# --------------------------------------------------------------------------- objectives


@pytest.mark.parametrize("padded", [False, True])
def test_a_left_to_right_copy_sees_nothing_later(padded: bool) -> None:
    model = make()
    causal = lab.left_to_right(model)
    ids = torch.tensor([2, 6, 7, 8, 9, 3])
    mask = torch.ones(1, 6, dtype=torch.bool) if padded else None
    see = lambda m: lab.dependence(  # noqa: E731
        lambda x: m.bert(x, None, None if mask is None else mask.expand(len(x), -1))[0], ids, 15
    )
    everything = torch.ones(6, 6, dtype=torch.bool)
    assert torch.equal(see(model), everything)
    assert torch.equal(see(causal), everything.tril())
    # nothing but the mask is different: at the last place the first layer sees everything
    assert causal.state_dict().keys() == model.state_dict().keys()
    one, same = make(num_layers=1), None
    same = lab.left_to_right(one)
    last = torch.tensor([[2, 6, 7, 8]])
    torch.testing.assert_close(same.bert(last)[0][:, -1], one.bert(last)[0][:, -1])


def test_padding_does_not_reach_a_left_to_right_model() -> None:
    causal = lab.left_to_right(make())
    ids = torch.tensor([[2, 6, 7, 8, 3]])
    longer = F.pad(ids, (2, 0))  # on the left, where causality does not hide it
    mask = longer != lab.PAD
    moved = causal.bert(longer, None, mask)[0]
    swapped = longer.clone()
    swapped[:, :2] = 9
    torch.testing.assert_close(causal.bert(swapped, None, mask)[0][:, 2:], moved[:, 2:])


def test_a_copy_leaves_the_model_alone() -> None:
    model = make()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    nn.init.zeros_(lab.left_to_right(model).bert.layers[0].attention.q_proj.weight)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    with pytest.raises(ValueError, match="no plain attention"):
        lab.left_to_right(nn.Linear(2, 2))
    distances = lab.with_attention(model, lambda: NezhaAttention(16, 2))
    with pytest.raises(ValueError, match="no plain attention"):
        lab.left_to_right(distances)


def test_the_causal_objective_predicts_the_next_token_and_no_end() -> None:
    row = torch.tensor([[2, 6, 1, 8, 3, 0]])
    given, labels = lab.Causal().batch(row)
    assert torch.equal(given, row)
    assert labels.tolist() == [[6, 1, 8, -100, -100, -100]]
    torch.manual_seed(0)
    many = torch.full((200, 50), 7)
    kept = (lab.Causal(0.15).batch(many)[1] != lab.IGNORE).double().mean()
    assert abs(kept - 0.15 * 49 / 50) < 0.02  # five deviations are 0.018


def test_the_loss_is_the_mean_over_the_targets(rows: Tensor) -> None:
    model = make()
    torch.manual_seed(1)
    ids, labels = mask_tokens(rows[:20], V)
    scores = model(ids)[0]
    expected = F.cross_entropy(scores.flatten(0, 1), labels.flatten())
    torch.manual_seed(1)
    loss, count = lab.objective_loss(model, lab.Masked(mask_tokens, V), rows[:20])
    torch.testing.assert_close(loss, expected)
    assert count == (labels != lab.IGNORE).sum()
    nothing = lab.Masked(lambda ids, size: mask_tokens(ids, size, 0.0), V)
    loss, count = lab.objective_loss(model, nothing, rows[:2])
    loss.backward()
    assert (loss.item(), count) == (0.0, 0)


def test_the_held_out_loss_does_not_depend_on_the_size_of_batches(rows: Tensor) -> None:
    model = make()
    assert lab.held_out_loss(model, lab.Causal(), rows, batch=7) == pytest.approx(
        lab.held_out_loss(model, lab.Causal(), rows), abs=1e-5
    )
    state = torch.get_rng_state()
    lab.held_out_loss(model, lab.Masked(mask_tokens, V), rows)
    assert torch.equal(torch.get_rng_state(), state)


def test_training_learns_and_counts(rows: Tensor) -> None:
    masked, causal, few = make(), lab.left_to_right(make()), lab.left_to_right(make())
    how = {"test": rows[:50], "looks": 4, "batch": 16, "lr": 5e-3}
    one = lab.train(masked, lab.Masked(mask_tokens, V), rows[50:], 40, **how)
    two = lab.train(causal, lab.Causal(), rows[50:], 40, **how)
    three = lab.train(few, lab.Causal(0.15), rows[50:], 40, **how)
    assert two.targets == [16 * 12] * 40
    assert 0.1 < one.targets_per_step / two.targets_per_step < 0.2
    assert two.steps == [0, 10, 20, 30, 40]
    assert two.targets_at == [16 * 12 * step for step in two.steps]
    assert two.held_out[-1] < three.held_out[-1] < three.held_out[0]
    assert one.held_out[-1] < one.held_out[0] - 0.2
    assert not masked.training
    again = lab.train(lab.left_to_right(make()), lab.Causal(), rows[50:], 40, **how)
    assert again.loss == two.loss


def test_padding_changes_no_loss(rows: Tensor) -> None:
    goal = lab.Masked(mask_tokens, V)
    plain, longer = (
        lab.train(make(), objective, rows, 5, batch=8) for objective in (goal, lab.Padded(goal, 20))
    )
    assert longer.loss == pytest.approx(plain.loss, abs=1e-3)
    assert plain.targets == longer.targets


def test_dependence_needs_a_token_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="one of the ids"):
        lab.dependence(lambda x: x[..., None].float(), torch.tensor([5, 6]), 6)


# --------------------------------------------------------------------------- yardsticks


def test_a_probe_finds_what_is_linear_and_nothing_else() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(600, 8, generator=draw)
    y = (x[:, :3]).argmax(-1)
    noise = torch.randint(3, (600,), generator=draw)
    assert lab.ridge_accuracy(x[:400], y[:400], x[400:], y[400:]) > 0.8
    assert lab.ridge_accuracy(x[:400], noise[:400], x[400:], noise[400:]) < 0.5


def test_features_are_read_at_real_places() -> None:
    bert = make().bert
    ids = torch.tensor([[2, 6, 7, 3, 0, 0], [2, 8, 9, 10, 11, 3]])
    short = bert(ids[:1, :4])[0]
    for read, expected in (
        ("first", short[:, 0]), ("last", short[:, -1]), ("mean", short.mean(1)),
    ):  # fmt: skip
        found = lab.features(bert, ids, read)
        torch.testing.assert_close(found[:1], expected, atol=1e-5, rtol=1e-4)
    with pytest.raises(ValueError, match="read must be"):
        lab.features(bert, ids, "middle")


def test_fine_tuning_learns_a_task() -> None:
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(5, V, (300, 6), generator=draw)
    labels = torch.arange(300) % 2
    ids[:, 3] = 6 + 2 * labels
    task = (ids[:200], labels[:200]), (ids[200:], labels[200:])
    score = lab.fine_tune(lab.Reader(make().bert, 2), *task, steps=60, batch=16, lr=1e-2)
    assert score > 0.9
    assert lab.probe(make().bert, *task) > 0.6


# --------------------------------------------------------------------------- probabilities


def test_log_likelihood_is_the_chain_rule() -> None:
    model = lab.left_to_right(make())
    row = torch.tensor([2, 6, 7, 8, 3])
    expected = [F.log_softmax(model(row[None, :t])[0][0, -1], -1)[row[t]].item() for t in (1, 2, 3)]
    assert lab.log_likelihood(model, row).tolist() == pytest.approx(expected, abs=1e-4)
    value = lab.perplexity(lab.log_likelihood, model, [row, row])
    assert value == pytest.approx(math.exp(-sum(expected) / 3), rel=1e-4)


def test_pseudo_log_likelihood_is_the_chapters() -> None:
    model, row = make(), torch.tensor([2, 6, 7, 8, 3])
    ours = lab.pseudo_log_likelihood(model, row).sum().item()
    assert ours == pytest.approx(chapters_score(model, row), abs=1e-4)


def test_the_uncertainty_of_a_known_language_is_that_of_its_samples() -> None:
    source = lab.MarkovSource.make(4, seed=1)
    assert float(source.transition.sum()) == pytest.approx(4)
    torch.testing.assert_close(source.stationary @ source.transition, source.stationary)
    known = source.uncertainty()
    assert known["nothing"] > known["all before"] > known["all others"] > 0
    # by enumeration of three neighbours
    total = 0.0
    for a, b, c in itertools.product(range(4), repeat=3):
        p = source.stationary[a] * source.transition[a, b] * source.transition[b, c]
        ways = source.transition[a] * source.transition[:, c]
        total -= float(p * torch.log(ways[b] / ways.sum()))
    assert known["all others"] == pytest.approx(total)


# --------------------------------------------------------------------------- generation


@pytest.mark.parametrize(
    "sample", [lab.sample_left_to_right, lab.sample_appending, lab.sample_filling]
)
def test_samples_are_ordinary_tokens_and_keep_the_prefix(sample: Callable[..., Tensor]) -> None:
    model = make()
    model = lab.left_to_right(model) if sample is lab.sample_left_to_right else model
    found = sample(model, 3, 7, prefix=[6, 7], seed=1)
    assert found.shape == (3, 7)
    assert (found >= lab.SPECIAL).all()
    assert (found[:, :2] == torch.tensor([6, 7])).all()
    assert torch.equal(found, sample(model, 3, 7, prefix=[6, 7], seed=1))
    assert not torch.equal(found, sample(model, 3, 7, prefix=[6, 7], seed=2))


def test_samples_follow_what_the_model_says() -> None:
    class Fixed(nn.Module):
        """Says that the next token, or the hidden one, is one more than the last or left one."""

        def __init__(self) -> None:
            super().__init__()
            self.mlm = nn.Identity()

        def bert(self, ids: Tensor, segments: None, mask: None) -> tuple[Tensor, None]:
            left = ids.roll(1, 1) if (ids == lab.MASK).any() else ids
            return 50.0 * F.one_hot((left + 1).clamp(5, 16), V).float(), None

    assert lab.sample_left_to_right(Fixed(), 1, 4).tolist() == [[5, 6, 7, 8]]
    assert lab.sample_appending(Fixed(), 1, 4).tolist() == [[5, 6, 7, 8]]


def test_filling_in_draws_each_place_once_a_sweep() -> None:
    history: list[Tensor] = []
    found = lab.sample_filling(make(), 2, 5, sweeps=2, history=history)
    assert len(history) == 10
    assert torch.equal(history[-1], found)
    for step, ids in enumerate(history[:5], 1):
        assert ((ids != lab.MASK).sum(1) == step).all()


def test_the_judge_is_a_distribution_and_likes_what_it_has_read() -> None:
    rows = [[2, 5, 6, 7, 8, 3], [2, 5, 6, 9, 3]]
    judge = lab.NgramJudge(rows, 12)
    for before in ([], [5], [5, 6], [11], [11, 6]):
        total = sum(judge.probability(token, before) for token in [1, *range(5, 12)])
        assert total == pytest.approx(1)
    # by hand: after «5 6» came 7 and 9; «6» alone was seen in the same two places
    base = 1 / 8
    one = (1 + 5 * base) / (7 + 5)
    two = (1 + 2 * one) / (2 + 2)
    assert judge.probability(7, [5, 6]) == pytest.approx((1 + 2 * two) / (2 + 2))
    assert judge.perplexity(rows) < judge.perplexity([[8, 5, 7, 6]])


def test_repetition_looks_back_a_few_places() -> None:
    assert lab.repetition(torch.tensor([[5, 5, 5, 5]])) == 1.0
    assert lab.repetition(torch.tensor([[5, 6, 7, 8, 9, 5]])) == 0.0
    assert lab.repetition(torch.tensor([[5, 6, 5, 7]])) == pytest.approx(1 / 3)
    drawn = lab.shuffled(torch.tensor([[2, 5, 6, 3, 0]]), 3, 4)
    assert drawn.shape == (3, 4)
    assert set(drawn.flatten().tolist()) <= {5, 6}


# --------------------------------------------------------------------------- mismatch


@pytest.mark.parametrize("shares", list(lab.MASKINGS.values()))
def test_corruption_has_the_shares_that_were_asked_for(shares: tuple) -> None:
    torch.manual_seed(0)
    ids = torch.full((400, 100), 7)
    ids[:, 0] = lab.CLS
    corrupted, labels = lab.corrupt(ids, 1000, 0.15, shares)
    chosen = labels != lab.IGNORE
    assert not chosen[:, 0].any()
    assert abs(chosen[:, 1:].double().mean() - 0.15) < 0.01
    assert (labels[chosen] == 7).all()
    assert torch.equal(corrupted[~chosen], ids[~chosen])
    picked = corrupted[chosen]
    masked, kept = (picked == lab.MASK).double().mean(), (picked == 7).double().mean()
    assert (abs(masked - shares[0]), abs(kept - shares[2])) < (0.03, 0.03)
    with pytest.raises(ValueError, match="shares"):
        lab.corrupt(ids, 1000, shares=(0.5, 0.1, 0.1))


def test_only_kept_tokens_teach_the_head_to_say_what_stands_there(rows: Tensor) -> None:
    labels = torch.arange(40) % 2  # (40,), any two classes
    task = ((rows[:40], labels), (rows[150:190], labels))
    found = lab.compare_maskings(
        make, rows[60:], rows[:60], V, steps=40, lr=1e-2, batch=16, task=task,
        fine_tune_seeds=(0,), fine_tune_steps=5,
    )  # fmt: skip
    results = {result.name: result for result in found}
    assert list(results) == list(lab.MASKINGS)
    kept = results["80/10/10"]
    for name in ("100/0/0", "80/20/0"):
        assert results[name].unmasked_loss > kept.unmasked_loss
    assert results["100/0/0"].loss == results["100/0/0"].mask_loss
    assert all(len(r.downstream) == 1 and 0 <= r.downstream[0] <= 1 for r in found)
    assert all(r.identity > 0.5 for r in found)


# --------------------------------------------------------------------------- next sentences


@pytest.mark.parametrize("negatives", ["other", "same"])
def test_pairs_are_balanced_and_labelled_right(negatives: str) -> None:
    documents = [[[10 * d + s] for s in range(5)] for d in range(1, 5)]
    pairs = lab.sentence_pairs(documents, 60, negatives=negatives, seed=3)
    assert sum(label for *_, label in pairs) == 30
    for (first,), (second,), label in pairs:
        if label == 0:
            assert second == first + 1
        elif negatives == "other":
            assert first // 10 != second // 10
        else:
            assert first // 10 == second // 10
            assert abs(second - first) > 1
    assert pairs == lab.sentence_pairs(documents, 60, negatives=negatives, seed=3)
    with pytest.raises(ValueError, match="too few documents"):
        lab.sentence_pairs(documents[:1], 5)
    with pytest.raises(ValueError, match="negatives"):
        lab.sentence_pairs(documents, 5, negatives="none")


def test_pairs_are_packed_as_the_chapter_builds_inputs() -> None:
    packed = lab.pack_pairs([([5, 6], [7], 0), ([8], [9], 1)], build_input, 20)
    assert packed.ids.tolist() == [[2, 5, 6, 3, 7, 3], [2, 8, 3, 9, 3, 0]]
    assert packed.token_type_ids.tolist() == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 0]]
    assert torch.equal(packed.mask, packed.ids != 0)
    assert packed[1:].ids.shape == (1, 5)


def test_topic_is_a_matter_of_words(documents: list) -> None:
    train, test = (lab.sentence_pairs(documents, 200, seed=s) for s in (0, 1))
    easy, cosines = lab.topic_cosine(train, test)
    hard, _ = lab.topic_cosine(
        *(lab.sentence_pairs(documents, 200, negatives="same", seed=s) for s in (0, 1))
    )
    assert easy > 0.8 > 0.65 > hard
    assert len(cosines) == 200


def test_training_on_pairs_uses_the_losses_that_were_asked_for(documents: list) -> None:
    pairs = lab.sentence_pairs(documents, 60, seed=0)
    packed = lab.pack_pairs(pairs, build_input, 16)
    both = lab.train_pairs(
        make(), packed, packed, 6, mask_tokens=mask_tokens, vocab_size=V, looks=2, batch=8,
        further={"again": packed},
    )  # fmt: skip
    assert (len(both.mlm_loss), len(both.nsp_loss)) == (6, 6)
    assert both.steps == [0, 3, 6]
    assert both.further["again"] == both.accuracy[-1]
    model = make()
    before = model.nsp.weight.clone()
    alone = lab.train_pairs(
        model, packed, packed, 3, mask_tokens=mask_tokens, vocab_size=V, nsp=False
    )
    assert (len(alone.mlm_loss), alone.nsp_loss) == (3, [])
    torch.testing.assert_close(model.nsp.weight, before, atol=1e-3, rtol=0)
    with pytest.raises(ValueError, match="nothing to learn"):
        lab.train_pairs(make(), packed, packed, 3, nsp=False)


# --------------------------------------------------------------------------- relatives


def test_relative_positions_read_rows_longer_than_the_table() -> None:
    model = make(max_length=20)
    relative = lab.with_attention(model, lambda: NezhaAttention(16, 2), limit=60)
    make_rows = lambda length: lab.cycle_rows(10, length)  # noqa: E731
    assert lab.accuracy_by_length(model, make_rows, (14, 30))[30] is None
    assert lab.accuracy_by_length(relative, make_rows, (14, 30))[30] is not None
    assert not relative.bert.embeddings.position.weight.requires_grad
    # without positions, a row that is moved along gives the same states
    ids = torch.tensor([[6, 7, 8, 9]])
    moved = torch.cat([torch.zeros(1, 3, dtype=torch.int64), ids], 1)
    torch.testing.assert_close(
        relative.bert(moved, None, moved != 0)[0][:, 3:], relative.bert(ids)[0],
        atol=1e-4, rtol=1e-3,
    )  # fmt: skip


def test_cycles_are_known_from_neighbours() -> None:
    rows = lab.cycle_rows(200, 20, noise=0.1)
    assert rows[:, 0].eq(lab.CLS).all()
    assert rows[:, -1].eq(lab.SEP).all()
    symbols = rows[:, 1:-1] - lab.SPECIAL
    follows = ((symbols[:, :-1] + 1) % 12 == symbols[:, 1:]).double().mean()
    assert 0.88 < follows < 0.95
