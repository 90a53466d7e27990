"""Learning from a prompt: what the prompts hold, and that the measures mean what they say."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from solutions.gpt import GPT, answer_scores, build_prompt, make_model
from toolkit import prompt_lab as lab


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Models this small gain nothing from a second thread, which would mostly wait."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


TASK = lab.MappingTask()


class Reader(nn.Module):
    """Answers as the prompt says: the label after the same input, and else always label 0."""

    def __init__(self, *sizes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.ones(1))

    def forward(self, ids: Tensor) -> Tensor:
        logits = torch.zeros(*ids.shape, TASK.vocab_size)
        logits[..., lab.SPECIAL + TASK.inputs] = 1.0
        for place in range(ids.shape[1]):
            for earlier in range(0, place - 1, 2):
                same = ids[:, earlier] == ids[:, place]
                row = F.one_hot(ids[:, earlier + 1], TASK.vocab_size).float() * (2 + earlier)
                logits[:, place] = torch.where(same[:, None], row, logits[:, place])
        return logits * self.number


@pytest.fixture(scope="module")
def read() -> lab.FewShot:
    """A perfect reader, asked without having been trained to any effect."""
    return lab.few_shot(Reader, seeds=(0, 1), steps=1, tests=400)


# --------------------------------------------------------------------------- a made language


def test_mappings_of_training_and_test_are_all_and_share_none() -> None:
    known, others = TASK.mappings
    every = torch.cat([known, others])
    assert len(every) == len(every.unique(dim=0)) == 8**4
    assert len(known) == len(others)
    assert (int(every.min()), int(every.max())) == (0, 7)
    assert not torch.equal(known, lab.MappingTask(seed=1).mappings[0])


def test_a_row_shows_one_mapping() -> None:
    rows = TASK.batch(50, torch.Generator().manual_seed(0))
    assert rows.shape == (50, TASK.max_length)
    known = {tuple(mapping) for mapping in TASK.mappings[0].tolist()}
    for row in rows.tolist():
        shown = {}
        for given, label in zip(row[::2], row[1::2], strict=True):
            assert shown.setdefault(given, label) == label
        assert all(lab.SPECIAL <= given < lab.SPECIAL + 4 for given in shown)
        if len(shown) == 4:
            labels = tuple(shown[lab.SPECIAL + k] - lab.SPECIAL - 4 for k in range(4))
            assert labels in known


@pytest.mark.parametrize("examples", [0, 1, 4])
def test_a_prompt_ends_with_the_query_and_hides_the_answer(examples: int) -> None:
    chosen = TASK.mappings[1][:300]
    ids, answers, shown = TASK.prompts(chosen, examples, torch.Generator().manual_seed(1))
    assert ids.shape == (300, 2 * examples + 1)
    query = ids[:, -1] - lab.SPECIAL
    assert torch.equal(answers, chosen.gather(1, query[:, None])[:, 0])
    again = torch.tensor([int(row[-1]) in row[:-1:2].tolist() for row in ids])
    assert torch.equal(shown, again)
    assert shown.double().mean().item() == pytest.approx(1 - 0.75**examples, abs=0.1)


def test_a_prompt_is_written_as_lines() -> None:
    ids = torch.tensor([5, 9, 8, 16, 6])
    assert TASK.text(ids) == "a => 0\nd => 7\nb =>"
    assert TASK.names(ids) == ["a =>", "0", "d =>", "7", "b =>"]


def test_a_perfect_reader_is_as_right_as_the_ideal(read: lab.FewShot) -> None:
    for n in read.shots:
        for condition in ("seen", "new", "renamed"):
            assert read.mean(condition, n) == pytest.approx(read.ideal[n], abs=0.05)
        assert read.when_shown[n] is None or min(read.when_shown[n]) == 1
        low, high = read.spread("new", n)
        assert low <= read.mean("new", n) <= high
    assert read.when_shown[0] is None
    assert read.ideal[0] == read.chance == 1 / 8
    assert read.ideal[8] == pytest.approx(1 - 0.75**8 * 7 / 8)
    # what the mapping said before is right only where a guess happens to hit
    assert read.mean("as before", 8) < 0.05
    assert sum(read.when_hidden[1]) / 2 == pytest.approx(1 / 8, abs=0.05)


def test_the_table_and_the_figure_show_what_was_measured(read: lab.FewShot) -> None:
    lines = read.table().splitlines()
    assert len(lines) == 7
    assert f"{100 * read.mean('new', 4):.0f} (" in lines[2]
    axes = read.figure().axes[0]
    new = next(line for line in axes.lines if line.get_label() == "mappings never seen")
    assert list(new.get_ydata()) == [100 * read.mean("new", n) for n in read.shots]
    assert axes.get_xlabel()
    assert axes.get_ylabel()
    assert read.example(2).count("\n") == 3


def test_a_gpt_learns_to_copy_from_the_prompt() -> None:
    task = lab.MappingTask(inputs=3, labels=8, pairs=4)
    found = lab.few_shot(make_model, shots=(0, 1, 2), seeds=(0,), steps=150, tests=300, task=task)
    assert found.mean("new", 0) < 0.25 < 0.3 < found.mean("new", 1) < found.mean("new", 2)
    assert found.mean("new", 2) == pytest.approx(found.ideal[2], abs=0.15)
    assert found.when_shown[1][0] > 0.9
    assert found.losses[0][-1] < found.losses[0][0] - 0.3
    assert found.seconds > 0
    looks = lab.attention_to_answer(found, examples=2, tests=50)
    assert len(looks.answer) == len(found.models[0].blocks)
    assert looks.maps.shape[-1] == len(looks.text) == 5
    assert len(looks.table().splitlines()) == 7
    assert looks.figure().axes
    layer, head, share = looks.strongest("answer")
    assert share == max(max(row) for row in looks.answer) == looks.answer[layer][head]


def test_bad_numbers_of_examples_are_refused() -> None:
    with pytest.raises(ValueError, match="from 0 to 8"):
        lab.few_shot(Reader, shots=(0, 9))
    with pytest.raises(ValueError, match="needs a seed"):
        lab.few_shot(Reader, seeds=())


def test_a_model_that_changes_while_it_is_asked_is_found_out() -> None:
    class Learner(Reader):
        def forward(self, ids: Tensor) -> Tensor:
            if not self.training:
                self.number.data += 1
            return super().forward(ids)

    with pytest.raises(RuntimeError, match="changed"):
        lab.few_shot(Learner, seeds=(0,), steps=1, tests=5)


# --------------------------------------------------------------------------- where it looks


def test_attention_weights_are_those_that_the_model_uses() -> None:
    torch.manual_seed(0)
    model = GPT(TASK.vocab_size, 18, 16, 2, 2, dropout=0.0)
    ids = torch.randint(5, TASK.vocab_size, (3, 7))
    weights = lab.attention_weights(model, ids)
    assert weights.shape == (2, 3, 2, 7, 7)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 2, 7))
    assert not weights.triu(1).any()
    block = model.blocks[0]
    with torch.no_grad():
        x = block.norm_1(model.token(ids) + model.position(torch.arange(7)))
        values = block.attention.qkv(x).chunk(3, -1)[2].unflatten(-1, (2, -1)).transpose(1, 2)
        mixed = (weights[0] @ values).transpose(1, 2).flatten(2)
        torch.testing.assert_close(block.attention.out_proj(mixed), block.attention(x))


def test_even_attention_gives_the_even_shares() -> None:
    torch.manual_seed(0)
    model = GPT(TASK.vocab_size, 18, 16, 1, 2, dropout=0.0)
    nn.init.zeros_(model.blocks[0].attention.qkv.weight)
    nn.init.zeros_(model.blocks[0].attention.qkv.bias)
    result = lab.FewShot(TASK, (4,), models=[model])
    looks = lab.attention_to_answer(result, examples=4)
    for kind in ("answer", "input", "pair"):
        shares = getattr(looks, kind)
        assert shares[0] == pytest.approx([looks.even[kind]] * 2, rel=1e-4)
    assert looks.even["answer"] == looks.even["input"]
    assert looks.even["labels"] == pytest.approx(looks.even["answer"] * 9 / 4)


# --------------------------------------------------------------------------- a model of something


class Repeats(nn.Module):
    """Thinks a token the likelier the more often it stood in the row already."""

    max_length = 200

    def forward(self, ids: Tensor) -> Tensor:
        return F.one_hot(ids, 128).float().cumsum(1)


def encode(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def test_losses_are_minus_the_scores_of_the_right_answer() -> None:
    pairs = [("a", "x"), ("b", "x"), ("c", "x")]
    found = lab.shots_of(
        Repeats(), encode, build_prompt, answer_scores, {"x": pairs}, shots=(0, 2), draws=5
    )
    assert [len(found.loss["x"][n]) for n in (0, 2)] == [5, 5]
    query = next(q for q, _ in pairs)
    alone = answer_scores(Repeats(), encode(build_prompt("", [], query)), [encode(" x")])
    assert found.loss["x"][0][0] == pytest.approx(-alone.item(), abs=1e-4)
    # the answers are all the same, so that exchanging them changes nothing
    assert found.control == found.loss
    assert found.mean("x", 2) < found.mean("x", 0)
    gain, error = found.gain("x", 2)
    assert gain == pytest.approx(found.mean("x", 0) - found.mean("x", 2))
    assert error < 1e-3
    assert found.gain("x", 2, control=True)[0] == 0
    assert len(found.table().splitlines()) == 3
    assert found.figure().axes[0].get_ylabel()


def test_the_control_shows_wrong_answers() -> None:
    pairs = [(word, word.upper()) for word in ("ab", "cd", "ef", "gh")]
    prompts = []

    def keep(task: str, examples: list, query: str) -> str:
        prompts.append((examples, query))
        return build_prompt(task, examples, query)

    found = lab.shots_of(
        Repeats(), encode, keep, answer_scores, {"upper": pairs}, shots=(0, 1, 3), draws=4
    )
    assert len(prompts) == 4 * 3 * 2
    for right, wrong in zip(prompts[::2], prompts[1::2], strict=True):
        assert right[1] == wrong[1]
        assert [x for x, _ in right[0]] == [x for x, _ in wrong[0]]
        assert all(y == x.upper() for x, y in right[0])
        assert all(y not in (x.upper(), wrong[1].upper()) for x, y in wrong[0])
        assert right[1] not in [x for x, _ in right[0]]
    assert found.loss["upper"][0] == found.control["upper"][0]


def test_prompts_that_do_not_fit_are_counted() -> None:
    small = Repeats()
    small.max_length = 12
    pairs = [(letter, letter) for letter in "abcd"]
    found = lab.shots_of(
        small, encode, build_prompt, answer_scores, {"same": pairs}, shots=(0, 2), draws=3
    )
    assert found.left_out == 6
    assert found.loss["same"][2] == []
    assert math.isnan(found.mean("same", 2))
    with pytest.raises(ValueError, match="3 are needed"):
        lab.shots_of(small, encode, build_prompt, answer_scores, {"few": pairs[:2]}, shots=(0,))


def test_the_ready_patterns_have_pairs_enough_and_all_different() -> None:
    for pairs in lab.CODE_PATTERNS.values():
        assert len({x for x, _ in pairs}) == len({y for _, y in pairs}) == len(pairs) >= 9
