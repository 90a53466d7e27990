"""Pre-training, samples and their judge, the page and fine-tuning of the GPT chapter."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace

import ipywidgets
import pytest
import torch
from torch import Tensor, nn

from solutions import gpt as parts
from solutions import positional_encoding as bpe
from toolkit import code_corpus as c
from toolkit import device
from toolkit import gpt_lab as lab

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
    return lab.start(model, parts, seed).eval()


@pytest.fixture(scope="module")
def model(corpus: c.Corpus) -> nn.Module:
    return tiny(corpus)


@pytest.fixture(scope="module")
def trained(corpus: c.Corpus) -> tuple[nn.Module, lab.Pretraining]:
    model = tiny(corpus)
    run = lab.pretrain(model, corpus, parts, 40, batch=8, lr=1e-2, warmup_steps=4, preset=CPU)
    return model, run


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
    lab.start(first, parts, 3)
    assert torch.equal(state, torch.get_rng_state())


def test_pretraining_learns_and_counts(
    corpus: c.Corpus, trained: tuple[nn.Module, lab.Pretraining]
) -> None:
    model, run = trained
    assert not model.training
    assert run.steps == 40
    assert run.tokens == 40 * 8 * 96
    before = lab.evaluate(tiny(corpus), corpus)
    after = lab.evaluate(model, corpus)
    assert after.loss < before.loss - 1
    assert run.losses[0] == pytest.approx(before.loss, abs=0.3)
    assert after.bits_per_byte == pytest.approx(corpus.bits_per_byte(after.loss))


def test_it_trains_as_the_chapter_does(corpus: c.Corpus) -> None:
    made, other = tiny(corpus), tiny(corpus)
    run = lab.pretrain(made, corpus, parts, 3, batch=2, lr=1e-2, warmup_steps=1, seed=5, preset=CPU)
    torch.manual_seed(5)
    losses = parts.train(other, corpus.stream("train"), 3, 96, 2, 1e-2, 1)
    assert run.losses == pytest.approx(losses, abs=1e-4)
    assert torch.allclose(made.token.weight, other.token.weight, atol=1e-4)


def test_counting_is_right(corpus: c.Corpus) -> None:
    stream = corpus.stream("train")
    for order in (1, 2):
        table = lab.ngram(corpus, order)
        assert torch.allclose(table.exp().sum(1), torch.ones(len(table)), atol=1e-4)
    seen = table[c.END, c.START]
    assert seen > -0.01  # after the end of one comes the beginning of the next
    rare = (torch.bincount(stream, minlength=len(table)) == 0).nonzero()[0, 0]
    assert torch.allclose(table[rare], lab.ngram(corpus, 1)[rare], atol=1e-5)
    losses = lab.baselines(corpus)
    assert losses["uniform"] == pytest.approx(math.log(len(corpus.tokens)))
    assert losses["uniform"] > losses["unigram"] + 0.5 > losses["bigram"] + 1
    asked = parts.TableModel(table, 96)
    assert lab.evaluate(asked, corpus).loss == pytest.approx(losses["bigram"], abs=1e-4)
    with pytest.raises(ValueError, match="1 or 2"):
        lab.ngram(corpus, 3)


# --------------------------------------------------------------------------- samples


def test_samples_end_where_they_say(model: nn.Module, corpus: c.Corpus) -> None:
    samples = lab.sample(model, corpus, parts, 20, length=12, seed=1)
    assert len(samples) == 20
    again = lab.sample(model, corpus, parts, 20, length=12, seed=1)
    assert [s.text for s in samples] == [s.text for s in again]
    assert samples != lab.sample(model, corpus, parts, 20, length=12, seed=2)
    for one in samples:
        assert one.prompt == ""
        assert len(one.ids) == one.tokens
        assert one.tokens == 11 or one.finished
        assert c.END not in one.ids


def test_a_known_text_is_written(corpus: c.Corpus) -> None:
    text = "def close(self):\n    return None"
    ids = corpus.tokens.encode(text)
    (one,) = lab.sample(Text([*ids, c.END], len(corpus.tokens)), corpus, parts, 1)
    assert (one.text, one.finished, one.tokens, one.ids) == (text, True, len(ids), ids)
    broken = [*ids[:2], c.START, *ids[2:], c.END]
    (one,) = lab.sample(Text(broken, len(corpus.tokens)), corpus, parts, 1)
    assert "[START]" in one.text
    assert not lab.compiles(one.text)


def test_prompts_are_gone_on_from(model: nn.Module, corpus: c.Corpus) -> None:
    prompts = ["def f(self):", "def f(self, other, more=None):", "def g(x):"]
    samples = lab.sample(model, corpus, parts, prompts=prompts, length=40)
    for prompt, one in zip(prompts, samples, strict=True):
        assert one.prompt == prompt
        assert one.text.startswith(prompt)
        assert one.tokens <= 39 - len(corpus.tokens.encode(prompt))
    with pytest.raises(ValueError, match="at most 4 may be written"):
        lab.sample(model, corpus, parts, prompts=prompts, length=4)
    with pytest.raises(ValueError, match="nothing to write"):
        lab.sample(model, corpus, parts, prompts=[])


def test_def_lines_are_of_one_length(corpus: c.Corpus) -> None:
    lines = lab.headers(corpus, 50)
    assert len({len(corpus.tokens.encode(line)) for line in lines}) == 1
    assert len(set(lines)) == len(lines) > 3
    assert set(lines) <= {f.header for f in corpus.of("test")}
    assert lab.headers(corpus, 2) == lines[:2]


def test_counting_writes_texts_of_the_same_lengths(model: nn.Module, corpus: c.Corpus) -> None:
    like = lab.sample(model, corpus, parts, 8, length=30)
    made = lab.sample_like(lab.ngram(corpus, 2), corpus, parts, like)
    assert [s.tokens for s in made] == [len(s.ids) for s in made] == [s.tokens for s in like]
    assert all(i >= c.SPECIAL for s in made for i in s.ids)


def test_real_functions_compile_and_are_cut(corpus: c.Corpus) -> None:
    whole = lab.judge(lab.real(corpus, 40), corpus)
    assert (whole.compiles, whole.finished, whole.novel, whole.count) == (1, 1, 1, 40)
    cut = lab.judge(lab.real(corpus, 40, length=12), corpus)
    assert cut.compiles < 0.6
    assert cut.finished < 0.6
    assert cut.length <= 11


@pytest.mark.parametrize(
    ("text", "good"),
    [("def f(x):\n    return x", True), ("def f(x):", False), ("def f(x):\n  return (x", False),
     ("", False), ("  ", False), ("x = '\\d' is 3", True), ("a\0b", False), ("return 1", False),
     ("raise SystemExit", True), ("(" * 300 + ")" * 300, False),
     ("def f():\n\treturn\n    x", False)],
)  # fmt: skip
def test_what_compiles(text: str, good: bool, recwarn: pytest.WarningsRecorder) -> None:
    assert lab.compiles(text) is good
    assert not recwarn.list


def test_copies_are_found(corpus: c.Corpus) -> None:
    copies = lab.Copies(corpus)
    functions = corpus.of("train")
    for function in functions[:20]:
        assert copies.is_whole(function.text)
        ids = corpus.tokens.encode(function.text)
        assert copies.longest(ids) == len(ids)
    ids = corpus.tokens.encode(max((f.text for f in functions), key=len))
    never = [c.SPECIAL + i for i in (254, 255, 253)]  # bytes that no text has
    assert copies.longest([*never, *ids[3:20], *never]) == 17
    assert copies.longest(never) == 0
    assert not copies.is_whole(functions[0].text + "\n    pass")


def test_the_judge_counts(corpus: c.Corpus) -> None:
    known = corpus.of("train")[0].text
    texts = [known, "def f(zz):\n    return zz", "def f(:", known]
    samples = [
        lab.Sample(t, "", corpus.tokens.encode(t), t != "def f(:", 4 * n)
        for n, t in enumerate(texts)
    ]
    verdict = lab.judge(samples, corpus)
    assert (verdict.count, verdict.compiles, verdict.finished) == (4, 0.75, 0.75)
    assert (verdict.novel, verdict.novel_compiles, verdict.length) == (0.5, 0.25, 6)
    assert 0.5 < verdict.copied < 1
    with pytest.raises(ValueError, match="no sample"):
        lab.judge([], corpus)


def test_a_study_has_every_row(
    corpus: c.Corpus, trained: tuple[nn.Module, lab.Pretraining]
) -> None:
    model, _ = trained
    settings = {"temperature 1": {}, "top-k 2": {"top_k": 2}}
    study = lab.compile_study(
        model, tiny(corpus), corpus, parts, count=6, seeds=(0, 1), settings=settings
    )
    assert list(study.rows) == [name for group in study.groups.values() for name in group]
    assert len(study.rows) == 2 + 3 + 1 + 1
    assert {"untrained", "top-k 2", "after a def line", "functions held out"} <= set(study.rows)
    assert all(len(verdicts) == 2 for verdicts in study.rows.values())
    assert study.mean("functions held out") == 1
    assert study.spread("functions held out") == 0
    lengths = {name: verdicts[0].length for name, verdicts in study.rows.items()}
    assert lengths["tokens by frequency"] == lengths["temperature 1"] >= lengths["untrained"]
    assert study.mean("tokens by frequency", "finished") == 0
    pair = [v.length for v in study.rows["top-k 2"]]
    assert study.mean("top-k 2", "length") == pytest.approx(sum(pair) / 2)
    assert study.spread("top-k 2", "length") == pytest.approx(abs(pair[0] - pair[1]) / 2**0.5)
    assert study.table().count("<tr>") == 1 + len(study.groups) + len(study.rows)
    labels = [t.get_text() for t in study.figure().axes[0].get_yticklabels()]
    assert labels == list(study.rows)
    with pytest.raises(ValueError, match="at least one seed"):
        lab.compile_study(model, model, corpus, parts, seeds=())


# --------------------------------------------------------------------------- the next token


def _frames(widget: ipywidgets.Widget) -> list[str]:
    if isinstance(widget, ipywidgets.HTML):
        return [widget.value]
    return [frame for child in getattr(widget, "children", ()) for frame in _frames(child)]


def test_the_page_shows_what_is_drawn(model: nn.Module, corpus: c.Corpus) -> None:
    prompt = "def f(self"
    ids = [c.START, *corpus.tokens.encode(prompt)]
    logits = model(torch.tensor([ids]))[0, -1]
    for temperature, k in ((1.0, None), (0.5, 3)):
        expected = (logits / temperature).softmax(-1)
        if k:
            expected = torch.where(expected >= expected.topk(k).values[-1], expected, 0.0)
            expected = expected / expected.sum()
        page = lab.distribution_page(
            model, corpus, parts, [prompt], temperatures=(temperature,), ks=(k,), ps=(None,),
            shown=3,
        )  # fmt: skip
        (frame,) = _frames(page)
        shown = [float(x) for x in re.findall(r"</span> ([\d.]+)</td>", frame)]
        assert shown == pytest.approx(expected.topk(3).values.tolist(), abs=6e-4)
    with pytest.raises(ValueError, match="max_length of 96"):
        lab.distribution_page(model, corpus, parts, ["x = 1\n" * 60])


def test_the_page_has_a_frame_for_each_setting(model: nn.Module, corpus: c.Corpus) -> None:
    page = lab.distribution_page(
        model, corpus, parts, ["def", "def f(<"], temperatures=(0.5, 1.0), ks=(None, 3),
        ps=(None, 0.05), shown=5,
    )  # fmt: skip
    frames = _frames(page)
    assert len(frames) == 2 * 2 * 2 * 2
    words = len(corpus.tokens)
    assert sum(f"{words} of {words} tokens" in frame for frame in frames) == 4
    assert sum(f"3 of {words} tokens" in frame for frame in frames) >= 4
    three = next(frame for frame in frames if f"3 of {words} tokens" in frame)
    assert three.count("#cfd2d8") == 2  # two cut tokens in grey
    assert all("<script" not in frame for frame in frames)
    assert sum(map(len, frames)) < 60_000


# --------------------------------------------------------------------------- fine-tuning


@pytest.mark.parametrize("name", ["name", "order", "body"])
def test_few_examples_are_learned_by_heart(
    name: str, model: nn.Module, tasks: dict[str, c.Task]
) -> None:
    task = tasks[name]
    before = model.token.weight.clone()
    made = lab.fine_tune(
        model, task, parts, labelled=6, steps=60, lr=1e-2, batch=6, weight=0.0, most_test=20,
        preset=CPU,
    )  # fmt: skip
    assert torch.equal(before, model.token.weight)
    assert (made.labelled, made.weight, len(made.l2), len(made.l1)) == (6, 0.0, 60, 60)
    assert made.l2[-1] < 0.3 * made.l2[0]
    same = SimpleNamespace(**{**vars(task), "test": lab._few(task, 6, 0)})
    assert lab.score(made.model, same, parts) > 0.8
    assert made.accuracy == lab.score(made.model, task, parts, most=20)


def test_the_language_models_loss_counts(model: nn.Module, tasks: dict[str, c.Task]) -> None:
    shared = {"labelled": 6, "steps": 30, "lr": 1e-2, "batch": 6, "preset": CPU, "most_test": 5}
    without, with_it = (
        lab.fine_tune(model, tasks["order"], parts, weight=w, **shared) for w in (0.0, 0.5)
    )
    assert without.l1[0] == pytest.approx(with_it.l1[0])
    assert with_it.l1[-1] < without.l1[-1] - 0.5
    again = lab.fine_tune(model, tasks["order"], parts, weight=0.5, **shared)
    assert again.l2 == with_it.l2
    other = lab.fine_tune(model, tasks["order"], parts, weight=0.5, seed=1, **shared)
    assert other.l2 != with_it.l2


def test_inputs_are_those_of_gpt(tasks: dict[str, c.Task]) -> None:
    single, pair = tasks["order"].test[0], tasks["body"].test[0]
    rows = lab._rows([single, pair], parts)
    assert rows[0] == [c.START, *single.first, c.EXTRACT]
    assert rows[1] == [c.START, *pair.first, c.DELIMITER, *pair.second, c.EXTRACT]
    padded = lab._batch(rows, torch.device("cpu"))
    assert padded.shape == (2, max(map(len, rows)))
    assert (padded == c.PAD).sum() == abs(len(rows[0]) - len(rows[1]))


def test_labelled_examples_are_drawn_by_seed(tasks: dict[str, c.Task]) -> None:
    task = tasks["name"]
    assert lab._few(task, 30, 2)[:10] == lab._few(task, 10, 2)
    assert lab._few(task, 10, 1) != lab._few(task, 10, 2)
    assert len(lab._few(task, "small", 0)) == lab.LABELLED["small"]
    for number in (0, 10**6, "huge"):
        with pytest.raises(ValueError, match="training examples"):
            lab._few(task, number, 0)


def test_bags_of_tokens_learn_names(tasks: dict[str, c.Task]) -> None:
    task = tasks["name"]
    same = SimpleNamespace(**{**vars(task), "test": lab._few(task, 40, 0)})
    assert lab.bag_of_tokens(same, labelled=40).accuracy > 0.9
    assert lab.bag_of_tokens(task, labelled=100).accuracy > 1.2 * lab.majority(task)
    pair = tasks["body"]
    assert 0.3 < lab.bag_of_tokens(pair, labelled=100).accuracy < 0.8
    counts = pair.counts("test").values()
    assert lab.majority(pair) == max(counts) / sum(counts)


def test_a_comparison_has_every_way(
    model: nn.Module, corpus: c.Corpus, tasks: dict[str, c.Task]
) -> None:
    two = {name: tasks[name] for name in ("name", "order")}
    made = lab.compare(
        model, corpus, two, parts, seeds=(0, 1), labelled={"small": 8, "large": 12}, steps=3,
        most_test=10, preset=CPU,
    )  # fmt: skip
    assert made.tasks == ["name", "order"]
    assert made.sizes == ["small", "large"]
    assert made.ways == [
        "pre-trained, λ = 0", "pre-trained, λ = 0.5", "random, λ = 0", "bag of tokens"
    ]  # fmt: skip
    first, second = made.scores("order", "large", "pre-trained, λ = 0.5")
    assert made.mean("order", "large", "pre-trained, λ = 0.5") == (first + second) / 2
    assert made.spread("order", "large", "pre-trained, λ = 0.5") == pytest.approx(
        abs(first - second) / math.sqrt(2)
    )
    other = made.scores("order", "large", "pre-trained, λ = 0")
    gain, spread = made.gain("order", "large", "pre-trained, λ = 0.5", "pre-trained, λ = 0")
    assert gain == pytest.approx((first + second - sum(other)) / 2)
    assert spread == pytest.approx(abs(first - other[0] - second + other[1]) / math.sqrt(2))
    assert all(r.model is None for results in made.results.values() for r in results)
    assert made.table().count("<tr>") == 1 + 4
    assert [ax.get_title(loc="left") for ax in made.figure().axes] == ["name", "order"]
    curves = made.convergence().axes
    assert [len(ax.lines) for ax in curves] == [3, 3, 3, 3]
    with pytest.raises(ValueError, match="at least one seed"):
        lab.compare(model, corpus, two, parts, seeds=())
    other = parts.GPT(7, **TINY)
    with pytest.raises(ValueError, match="the network has 7 tokens"):
        lab.compare(other, corpus, two, parts)
