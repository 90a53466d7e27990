"""Samples of a GPT and whether they compile, baselines of its tasks, its attention weights."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from solutions import gpt as parts
from solutions import positional_encoding as bpe
from toolkit import device
from toolkit.corpora import code_corpus as c
from toolkit.gpt import measures

CPU = device.preset("cpu")
MODULES = (
    "calendar", "collections", "contextlib", "datetime", "enum", "logging", "queue",
    "socketserver", "threading", "typing",
)  # fmt: skip
TINY = {"max_length": 96, "d_model": 16, "num_layers": 1, "num_heads": 2, "dropout": 0.0}


@pytest.fixture(scope="module")
def corpus() -> c.Corpus:
    return c.Corpus.make(bpe, MODULES, merges=100)


@pytest.fixture(scope="module")
def tasks(corpus: c.Corpus) -> dict[str, c.Task]:
    return c.make_tasks(corpus)


def tiny(corpus: c.Corpus, seed: int = 0) -> nn.Module:
    model = parts.fused(parts.GPT(len(corpus.tokens), **TINY))
    return measures.start(model, parts, seed).eval()


@pytest.fixture(scope="module")
def model(corpus: c.Corpus) -> nn.Module:
    return tiny(corpus)


class Text(nn.Module):
    """Writes one text, whatever it is asked."""

    def __init__(self, ids: list[int], words: int) -> None:
        super().__init__()
        self.register_buffer("ids", torch.tensor(ids))
        self.words, self.max_length = words, 96

    def forward(self, ids: Tensor) -> Tensor:
        logits = torch.full((*ids.shape, self.words), -50.0)
        places = self.ids[: ids.shape[1]].expand(len(ids), -1)
        return logits.scatter(2, places[..., None], 50.0)


# --------------------------------------------------------------------------- pre-training


def test_new_weights_are_as_wide_as_the_model_needs(corpus: c.Corpus) -> None:
    first, again, other = (tiny(corpus, seed) for seed in (0, 0, 1))
    weights = first.token.weight
    assert weights.std().item() == pytest.approx(0.02 * math.sqrt(768 / 16), rel=0.05)
    assert torch.equal(weights, again.token.weight)
    assert not torch.equal(weights, other.token.weight)
    assert first.final_norm.weight.eq(1).all()
    state = torch.get_rng_state()
    measures.start(first, parts, 3)
    assert torch.equal(state, torch.get_rng_state())


# --------------------------------------------------------------------------- samples


def test_samples_end_where_they_say(model: nn.Module, corpus: c.Corpus) -> None:
    samples = measures.sample(model, corpus, parts, 20, length=12, seed=1)
    assert len(samples) == 20
    again = measures.sample(model, corpus, parts, 20, length=12, seed=1)
    assert [s.text for s in samples] == [s.text for s in again]
    assert samples != measures.sample(model, corpus, parts, 20, length=12, seed=2)
    for one in samples:
        assert one.prompt == ""
        assert len(one.ids) == one.tokens
        assert one.tokens == 11 or one.finished
        assert c.END not in one.ids


def test_a_known_text_is_written(corpus: c.Corpus) -> None:
    text = "def close(self):\n    return None"
    ids = corpus.tokens.encode(text)
    (one,) = measures.sample(Text([*ids, c.END], len(corpus.tokens)), corpus, parts, 1)
    assert (one.text, one.finished, one.tokens, one.ids) == (text, True, len(ids), ids)
    broken = [*ids[:2], c.START, *ids[2:], c.END]
    (one,) = measures.sample(Text(broken, len(corpus.tokens)), corpus, parts, 1)
    assert "[START]" in one.text
    assert not measures.compiles(one.text)


def test_prompts_are_gone_on_from(model: nn.Module, corpus: c.Corpus) -> None:
    prompts = ["def f(self):", "def f(self, other, more=None):", "def g(x):"]
    samples = measures.sample(model, corpus, parts, prompts=prompts, length=40)
    for prompt, one in zip(prompts, samples, strict=True):
        assert one.prompt == prompt
        assert one.text.startswith(prompt)
        assert one.tokens <= 39 - len(corpus.tokens.encode(prompt))
    with pytest.raises(ValueError, match="at most 4 may be written"):
        measures.sample(model, corpus, parts, prompts=prompts, length=4)
    with pytest.raises(ValueError, match="nothing to write"):
        measures.sample(model, corpus, parts, prompts=[])


@pytest.mark.parametrize(
    ("text", "good"),
    [("def f(x):\n    return x", True), ("def f(x):", False), ("def f(x):\n  return (x", False),
     ("", False), ("  ", False), ("x = '\\d' is 3", True), ("a\0b", False), ("return 1", False),
     ("raise SystemExit", True), ("(" * 300 + ")" * 300, False),
     ("def f():\n\treturn\n    x", False)],
)  # fmt: skip
def test_what_compiles(text: str, good: bool, recwarn: pytest.WarningsRecorder) -> None:
    assert measures.compiles(text) is good
    assert not recwarn.list


# --------------------------------------------------------------------------- the next token


# --------------------------------------------------------------------------- fine-tuning


def test_labelled_examples_are_drawn_by_seed(tasks: dict[str, c.Task]) -> None:
    task = tasks["name"]
    assert measures._few(task, 30, 2)[:10] == measures._few(task, 10, 2)
    assert measures._few(task, 10, 1) != measures._few(task, 10, 2)
    for number in (0, 10**6):
        with pytest.raises(ValueError, match="training examples"):
            measures._few(task, number, 0)


def test_bags_of_tokens_learn_names(tasks: dict[str, c.Task]) -> None:
    task = tasks["name"]
    same = SimpleNamespace(**{**vars(task), "test": measures._few(task, 40, 0)})
    assert measures.bag_of_tokens(same, labelled=40) > 0.9
    assert measures.bag_of_tokens(task, labelled=100) > 1.2 * measures.majority(task)
    pair = tasks["body"]
    assert 0.3 < measures.bag_of_tokens(pair, labelled=100) < 0.8
    counts = pair.counts("test").values()
    assert measures.majority(pair) == max(counts) / sum(counts)


def test_attention_weights_are_those_that_the_model_uses() -> None:
    torch.manual_seed(0)
    model = parts.GPT(40, 18, 16, 2, 2, dropout=0.0)
    ids = torch.randint(5, 40, (3, 7))
    weights = measures.attention_weights(model, ids)
    assert weights.shape == (2, 3, 2, 7, 7)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 2, 7))
    assert not weights.triu(1).any()
    block = model.blocks[0]
    with torch.no_grad():
        x = block.norm_1(model.token(ids) + model.position(torch.arange(7)))
        values = block.attention.qkv(x).chunk(3, -1)[2].unflatten(-1, (2, -1)).transpose(1, 2)
        mixed = (weights[0] @ values).transpose(1, 2).flatten(2)
        torch.testing.assert_close(block.attention.out_proj(mixed), block.attention(x))
