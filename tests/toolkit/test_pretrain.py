"""The command that trains the shipped models: tiny trainings, interrupted ones, own classes."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer
from torch import nn

import solutions.attention
import solutions.bert
import solutions.gpt
import solutions.transformer
from toolkit import device, models
from toolkit.bert.attention_heads import weights
from toolkit.corpora import code_corpus, library_prose
from toolkit.corpora.translation import make_pairs
from toolkit.pretrain import __main__ as command
from toolkit.pretrain import bert, common, gpt, measures, translator
from toolkit.transformer import translation_task

MODULES = ("json.decoder", "shlex", "heapq", "csv", "tempfile", "argparse", "queue", "difflib")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few modules of the library, tiny models."""
    documents = library_prose.read(MODULES)
    functions = code_corpus.read(MODULES)
    longer = tuple(
        f for f in code_corpus.read(MODULES, gpt.LONGEST)
        if f.split == "train" and len(f.text) > code_corpus.LONGEST
    )  # fmt: skip
    task = translation_task.TranslationTask.make("en", "zh", pairs=300, test=120, most_items=1)
    monkeypatch.setattr(library_prose, "read", lambda: documents)
    monkeypatch.setattr(gpt, "functions", lambda: functions)
    monkeypatch.setattr(gpt, "long_functions", lambda: longer)
    monkeypatch.setattr(translator, "task", lambda target: task)
    tiny = {"d_model": 16, "num_layers": 1, "num_heads": 2}
    monkeypatch.setitem(bert.SIZES, "cpu", bert.SIZES["cpu"] | tiny | {"d_ff": 32})
    plan = {"steps": 100, "more_steps": 100, "batch": 2, "more_batch": 2, "vocabulary": 300}
    monkeypatch.setitem(bert.PLAN, "cpu", bert.PLAN["cpu"] | plan)
    monkeypatch.setitem(gpt.SIZES, "cpu", {"gpt-small": tiny, "gpt": tiny})
    monkeypatch.setitem(gpt.PLAN, "cpu", gpt.PLAN["cpu"] | {"steps": 100, "batch": 2})
    sizes = translator.SIZES["transformer"]
    monkeypatch.setitem(sizes, "cpu", sizes["cpu"] | tiny | {"d_ff": 32})
    monkeypatch.setitem(translator.SIZES["recurrent"], "cpu", {"width": 16})


def job(out: Path, module: object, **more: object) -> common.Job:
    said: list[str] = []
    return common.Job(
        out, module, device.preset("cpu"), progress=False, say=said.append, **more
    )  # fmt: skip


TRAIN = {
    "bert": (bert.train, solutions.bert, ()),
    "gpt": (gpt.train, solutions.gpt, ()),
    "recurrent-en-zh": (translator.train, solutions.attention, ("recurrent", "zh")),
    "transformer-en-zh": (translator.train, solutions.transformer, ("transformer", "zh")),
}


@pytest.mark.usefixtures("small")
class TestTraining:
    @pytest.mark.parametrize("name", TRAIN)
    def test_it_writes_all_that_a_model_needs(self, name: str, tmp_path: Path) -> None:
        train, module, more = TRAIN[name]
        steps = 100 if name in ("bert", "gpt") else 8
        train(job(tmp_path, module, steps=steps, checkpoints=True), *more)
        made = models.load(name, folder=tmp_path)
        found = models.measure(made, 10)
        assert found
        assert all(value == value for value in found.values())
        assert made.curves[-1]["step"]
        assert Tokenizer.from_file(str(tmp_path / common.TOKENIZER)).get_vocab_size() > 5
        if name in ("bert", "gpt"):
            assert list(made.answers["answers"]) == ["1%", "10%", "100%"]
            assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
                "1%.safetensors", "10%.safetensors", "100%.safetensors",
            ]  # fmt: skip

    def test_gpt_keeps_the_curves_of_all_sizes(self, tmp_path: Path) -> None:
        gpt.train(job(tmp_path, solutions.gpt, steps=100))
        rows = models.load("gpt", folder=tmp_path).curves
        assert {row["model"] for row in rows} == {"gpt", "gpt-small"}

    def test_both_orders_of_norms_are_trained(self, tmp_path: Path) -> None:
        translator.train(job(tmp_path, solutions.transformer, steps=8), "transformer", "zh")
        made = models.load("transformer-en-zh", folder=tmp_path)
        assert {row["model"] for row in made.curves} == {"post-norm", "pre-norm"}
        assert made.config["norm_first"] is translator.NORMS[translator.CHOSEN["zh"]]

    def test_what_the_model_with_a_fixed_context_reaches_is_kept(self, tmp_path: Path) -> None:
        translator.train(job(tmp_path, solutions.attention, steps=8), "recurrent", "zh")
        made = models.load("recurrent-en-zh", folder=tmp_path)
        assert made.model.core.look is not None
        last = {row["model"]: row for row in made.curves if row["step"] == "8"}
        assert set(last) == {"recurrent", translator.FIXED}
        sizes = [float(row["parameters"]) for row in last.values()]
        assert max(sizes) < 1.15 * min(sizes)
        for row in last.values():
            for length in ("", *(f"_{length}" for length in translator.LENGTHS)):
                assert 0 <= float(row[f"bleu{length}"]) <= 100
                assert 0 <= float(row[f"exact{length}" if length else "averaged_exact"]) <= 1

    def test_an_interrupted_training_ends_as_one_that_was_not(self, tmp_path: Path) -> None:
        class Killed(Exception):
            pass

        calls = {"left": 130}  # in the second cycle, after a state was saved

        def mask(*args):
            calls["left"] -= 1
            if calls["left"] == 0:
                raise Killed
            return solutions.bert.mask_tokens(*args)

        parts = SimpleNamespace(**vars(solutions.bert) | {"mask_tokens": mask})
        whole, cut = tmp_path / "whole", tmp_path / "cut"
        bert.train(job(whole, solutions.bert, steps=100))
        with pytest.raises(Killed):
            bert.train(job(cut, parts, steps=100))
        calls["left"] = -1
        bert.train(job(cut, parts, steps=100))
        for name in (common.WEIGHTS, common.CURVES, common.ANSWERS):
            assert (cut / name).read_bytes() == (whole / name).read_bytes()


class TestCommand:
    def test_a_new_model_that_misses_the_card_is_told(self) -> None:
        assert not command.worse("mlm_accuracy", 0.44, 0.45)
        assert command.worse("mlm_accuracy", 0.40, 0.45)
        assert not command.worse("bits_per_byte", 1.33, 1.30)
        assert command.worse("bits_per_byte", 1.40, 1.30)
        assert not command.worse("mlm_loss", 2.0, 3.0)

    @pytest.mark.usefixtures("small")
    def test_ones_own_file_is_trained(self, tmp_path: Path, capsys) -> None:
        path = tmp_path / "mine.py"
        path.write_text(
            "from solutions.gpt import *\nimport solutions.gpt as theirs\n"
            "class GPT(theirs.GPT):\n    mine = True\n"
        )
        out = tmp_path / "out"
        with contextlib.suppress(SystemExit):  # so short a training may miss the card
            command.main(["gpt", "--model", str(path), "--out", str(out), "--steps", "100"])
        assert "bits_per_byte" in capsys.readouterr().out
        assert models.load("gpt", str(path), out).model.mine

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [(["llama"], "no model 'llama'"), (["gpt", "--model", "json"], "has no GPT")],
    )
    def test_what_is_wrong_is_said(self, arguments: list[str], told: str, capsys) -> None:
        with pytest.raises(SystemExit) as ended:
            command.main(arguments)
        assert ended.value.code == 2
        assert told in " ".join(capsys.readouterr().err.split())


class TestFiles:
    def test_a_tensor_with_two_names_is_stored_once(self, tmp_path: Path) -> None:
        model = solutions.gpt.GPT(20, 8, 16, 1, 2)
        tied = nn.ModuleDict({"a": nn.Linear(3, 3), "b": model})
        tied["c"] = tied["a"]
        path = tmp_path / "w.safetensors"
        common.save_weights(path, tied, half=False)
        again = nn.ModuleDict({"a": nn.Linear(3, 3), "b": solutions.gpt.GPT(20, 8, 16, 1, 2)})
        again["c"] = again["a"]
        common.load_weights(path, again)
        for name, value in tied.state_dict().items():
            assert torch.equal(again.state_dict()[name], value)

    def test_weights_that_are_missing_are_named(self, tmp_path: Path) -> None:
        path = tmp_path / "w.safetensors"
        common.save_weights(path, nn.Linear(3, 3, bias=False))
        with pytest.raises(ValueError, match="bias"):
            common.load_weights(path, nn.Linear(3, 3))

    def test_a_step_that_is_trained_again_replaces_its_row(self, tmp_path: Path) -> None:
        curves = common.Curves(tmp_path / "c.jsonl")
        curves.add("m", 50, loss=2.0)
        curves.add("m", 50, loss=1.0, held_out=3.0)
        again = common.Curves(tmp_path / "c.jsonl")
        again.write(tmp_path / "c.csv")
        assert (tmp_path / "c.csv").read_text() == "model,step,loss,held_out\nm,50,1.0,3.0\n"

    def test_held_out_pairs_come_back(self, tmp_path: Path) -> None:
        pairs = make_pairs(20, "en", "de", seed=1)
        translator.write_held_out(tmp_path / "h.tsv", pairs)
        again = translator.read_held_out(tmp_path / "h.tsv")
        assert [(p.source, p.target, p.locales) for p in again] == [
            (p.source, p.target, p.locales) for p in pairs
        ]


class TestText:
    def test_runs_keep_all_tokens_in_order_and_no_run_is_too_long(self) -> None:
        document = [list(range(10 * i, 10 * i + 7)) for i in range(12)]
        (made,) = bert.runs([document], random.Random(0), 20)
        assert [i for run in made for i in run] == [i for sentence in document for i in sentence]
        assert max(map(len, made)) <= 20
        assert len(made) > 1

    def test_two_short_sentences_stay_two_runs(self) -> None:
        for seed in range(20):
            assert len(bert.runs([[[5, 6], [7, 8]]], random.Random(seed))[0]) == 2

    def test_a_text_comes_back_from_gpts_tokens(self) -> None:
        tokens = gpt.Tokens.learn(["def f(x):\n    return x"] * 3, 300)
        for text in ("def g(y):\n\n    return '[END]' + y", "ä = 1"):
            ids = tokens.encode(text)
            assert min(ids) >= code_corpus.SPECIAL
            assert tokens.decode(ids) == text

    def test_words_know_the_tokens_of_both_languages(self) -> None:
        pairs = make_pairs(200, "en", "de", seed=3)
        words = translator.Words.learn(pairs, ("en", "de"))
        for pair in pairs:
            assert words.decode(words.ids(pair.target_tokens)) == pair.target
            assert words.tokens(words.encode(pair.source)) == pair.source_tokens


class TestMeasures:
    def test_compression_costs_less_with_the_same_text_in_front(self) -> None:
        texts = [f"def f{i}(x):\n    return x + {i * i}" for i in range(300)]
        alone = gpt.compressed([], texts)
        known = gpt.compressed(texts, texts)
        assert set(alone) == {"bzip2", "xz", "xz_alone"}
        assert known["xz"] < 0.3 * alone["xz"]
        assert alone["xz"] < alone["xz_alone"]  # together they learn from each other

    def test_the_longest_copied_run_is_found(self) -> None:
        sources = [[9, 1, 2, 3, 4, 8], [4, 5, 6, 7]]
        assert gpt.longest_copy([[1, 2, 3, 4, 5, 6], [7, 7]], sources) == 4
        assert gpt.longest_copy([[10, 11]], sources) == 0
        assert gpt.longest_copy([[4, 5, 6, 7]], sources) == 4

    def test_counting_knows_a_text_it_has_counted(self) -> None:
        texts = ["abc abc abc"] * 4
        tokens = gpt.Tokens.learn(texts, 262)
        assert gpt.counted(texts * 50, texts, tokens) < gpt.counted(["zz"], texts, tokens)

    def test_weights_of_bert_are_those_of_its_attention(self) -> None:
        torch.manual_seed(0)
        model = solutions.bert.BertForPreTraining(30, 16, 2, 4, 32, 16).eval()
        ids = torch.randint(5, 30, (1, 7))
        inputs = []
        attention = next(
            m for m in model.bert.modules() if isinstance(m, solutions.bert.SelfAttention)
        )
        hook = attention.register_forward_hook(lambda m, i, o: inputs.append((i[0], o)))
        with weights(model) as seen:
            model.bert(ids)
        hook.remove()
        x, out = inputs[0]
        values = attention.v_proj(x).unflatten(-1, (4, -1)).transpose(1, 2)  # (B, H, T, D/H)
        mixed = (seen[0] @ values).transpose(1, 2).flatten(2)  # (B, T, D)
        torch.testing.assert_close(attention.out_proj(mixed), out)

    def test_patterns_name_the_head_that_has_them(self) -> None:
        keys = measures._keys(torch.tensor([2, 7, 8, 7, 3]))
        assert keys["previous"][2].tolist() == [False, True, False, False, False]
        assert keys["same_piece"][1].tolist() == [False, False, False, True, False]
        assert not keys["same_piece"][0].any()
        assert keys["sep"][0].tolist() == [False, False, False, False, True]


def test_the_answers_file_is_json_that_a_person_can_read(tmp_path: Path) -> None:
    common.write_json(tmp_path / "a.json", {"é": [1]})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"é": [1]}
    assert "é" in (tmp_path / "a.json").read_text(encoding="utf-8")
