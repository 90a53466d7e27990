"""The command line trains and translates, alone and in several processes, and goes on after a kill.

The files are CLDR pairs written down in the forms in which WMT14 comes; the sizes are tiny.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from toolkit import translate
from toolkit.corpora import public_data
from toolkit.corpora.translation import BOS, EOS, PAD, SPECIALS, make_pairs
from toolkit.translate import Pieces, Problem, Settings, load, main, train

ROOT = Path(__file__).parents[2]
TINY = replace(
    translate.PRESETS["wmt14-base"], num_layers=1, d_model=16, d_ff=32, num_heads=2, vocab_size=300,
    batch_tokens=400, warmup_steps=10, steps=12, save_every=4, average=2, dropout=0.0, beam=2,
)  # fmt: skip
OPTIONS = [
    "--preset", "wmt14-base", "--num-layers", "1", "--d-model", "16", "--d-ff", "32",
    "--num-heads", "2", "--vocab-size", "300", "--dropout", "0", "--batch-tokens", "400",
    "--warmup-steps", "10", "--steps", "12",
    "--save-every", "4", "--average", "2", "--beam", "2",
]  # fmt: skip

# A module of one's own, in the place of solutions.transformer: it writes down the gradient of the
# first step and the weights that each process ends with, and is killed once, in the process that
# the environment names.
SPY = """
import atexit, os, signal
from pathlib import Path

from safetensors.torch import save_file
from solutions import transformer
from solutions.transformer import *

RANK = os.environ.get("RANK", "")
HERE = os.environ["SPY"]
made = []


def note(what, tensors):
    save_file({n: t.detach().clone() for n, t in tensors if t is not None}, f"{HERE}/{what}{RANK}")


def make_model(*sizes, **more):
    made.append(transformer.make_model(*sizes, **more))
    if RANK:
        atexit.register(lambda: note("weights", made[-1].named_parameters()))
    return made[-1]


def learning_rate(step, *more):
    if step == 2:
        note("gradient", ((n, p.grad) for n, p in made[-1].named_parameters()))
    once = Path(HERE, "killed")
    if step == 8 and os.environ.get("KILL") == RANK and not once.exists():
        once.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return transformer.learning_rate(step, *more)
"""


def write_lines(folder: Path) -> None:
    for number, (split, count) in enumerate((("train", 300), ("validation", 30), ("test", 30))):
        with open(folder / f"{split}.jsonl", "w", encoding="utf-8") as file:
            for pair in make_pairs(count, "en", "de", length=(1, 2), seed=number):
                texts = {"translation": {"en": pair.source, "de": pair.target}}
                file.write(json.dumps(texts, ensure_ascii=False) + "\n")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """WMT14 files of 300, 30 and 30 pairs."""
    folder = tmp_path_factory.mktemp("wmt14")
    write_lines(folder)
    return folder


@pytest.fixture(scope="module")
def one(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A translator trained in this process, with the gradient of its first step."""
    out = tmp_path_factory.mktemp("one")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPY", str(out))
        train(TINY, out, data=files, model=spy_in(out), say=lambda line: None)
    return out


def spy_in(folder: Path) -> str:
    """The spy as a file."""
    module = folder / "spy_model.py"
    module.write_text(SPY, encoding="utf-8")
    return str(module)


def launch(out: Path, files: Path, spy: Path, **environment: str) -> subprocess.CompletedProcess:
    """Train in two processes, as a reader would with torchrun."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "-m", "toolkit.translate", "train", *OPTIONS,
        "--out", str(out), "--data", str(files), "--model", spy_in(spy),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "SPY": str(spy), **environment}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )


@pytest.fixture(scope="module")
def two(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same translator trained in two processes; what each ended with is in its folder spy."""
    out = tmp_path_factory.mktemp("two")
    spy = tmp_path_factory.mktemp("spy")
    done = launch(out, files, spy)
    assert done.returncode == 0, done.stderr
    assert "2 processes on cpu" in done.stderr
    assert done.stderr.count("12 steps in") == 1  # one process speaks for both
    spy.rename(out / "spy")
    return out


def weights(path: Path) -> dict[str, Tensor]:
    return load_file(path / translate.WEIGHTS if path.is_dir() else path)


def same(first: dict[str, Tensor], second: dict[str, Tensor], tolerance: float) -> bool:
    """Whether all weights agree.

    Those of k_proj.bias are left out where rounding differs: the softmax does not depend on them,
    their gradient is nothing but rounding, and Adam makes steps of full size out of it.
    """
    names = [n for n in first if tolerance == 0 or not n.endswith("k_proj.bias")]
    assert list(first) == list(second)
    return all(torch.allclose(first[n], second[n], rtol=0, atol=tolerance) for n in names)


# --------------------------------------------------------------------------- processes


def test_both_processes_end_with_the_same_weights(two: Path) -> None:
    first, second = (load_file(two / "spy" / f"weights{rank}") for rank in (0, 1))
    assert same(first, second, 0)
    last = load_file(two / "step-0000012.safetensors")
    assert same({n: first[n] for n in last}, last, 0)


def test_two_processes_have_the_gradient_of_one(one: Path, two: Path) -> None:
    """Adam would forgive a gradient that is twice as large; clipping would not."""
    alone = load_file(one / "gradient")
    for rank in (0, 1):
        together = load_file(two / "spy" / f"gradient{rank}")
        assert list(together) == list(alone)
        for name, value in alone.items():
            torch.testing.assert_close(together[name], value, rtol=1e-4, atol=1e-6)
    assert max(float(value.abs().max()) for value in alone.values()) > 1e-2


def test_two_processes_train_as_one_does(one: Path, two: Path) -> None:
    assert same(weights(one), weights(two), 1e-5)
    texts = ["March 5, 2021", "Peru or Chad", "17 hours"]
    assert load(one).translate(texts, max_length=8) == load(two).translate(texts, max_length=8)


def test_a_killed_training_goes_on_and_ends_as_if_nothing_had_been(
    files: Path, two: Path, tmp_path: Path
) -> None:
    spy, out = tmp_path / "spy", tmp_path / "out"
    spy.mkdir()
    assert launch(out, files, spy, KILL="1").returncode != 0
    assert (out / "resume.pt").exists()
    assert not (out / translate.WEIGHTS).exists()
    done = launch(out, files, spy, KILL="1")  # once is enough for the spy
    assert done.returncode == 0, done.stderr
    # The step of the last save is told of again, those before it are not done again.
    assert [done.stderr.count(f"step {step} of 12") for step in (1, 4, 8, 12)] == [0, 0, 1, 1]
    assert same(weights(out), weights(two), 0)


def test_parts_of_a_share_add_up(files: Path, one: Path, tmp_path: Path) -> None:
    train(TINY, tmp_path, data=files, accumulate=3, say=lambda line: None)
    assert same(weights(tmp_path), weights(one), 1e-5)


def test_more_parts_than_sentences(files: Path, tmp_path: Path) -> None:
    few = replace(TINY, batch_tokens=120, longest=60, steps=4, average=1)
    train(few, tmp_path / "whole", data=files, say=lambda line: None)
    train(few, tmp_path / "cut", data=files, accumulate=7, say=lambda line: None)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"), 1e-5)


class PowerCut(Exception):
    pass


@pytest.mark.parametrize("cut", [2, 4, 11])
def test_dropout_is_the_same_after_an_interruption(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    from solutions import transformer

    dropping = replace(TINY, dropout=0.3)

    def failing(step: int, *more: float) -> float:
        if step == cut + 1:
            raise PowerCut
        return 1e-3

    def run(out: Path) -> dict[str, Tensor]:
        train(dropping, out, data=files, say=lambda line: None)
        return weights(out)

    monkeypatch.setattr(transformer, "learning_rate", lambda step, *more: 1e-3)
    expected = run(tmp_path / "whole")
    other = tmp_path / "other"
    train(replace(dropping, seed=1), other, data=files, say=lambda line: None)
    assert not same(weights(other), expected, 1e-5)
    monkeypatch.setattr(transformer, "learning_rate", failing)
    with pytest.raises(PowerCut):
        run(tmp_path / "cut")
    assert (tmp_path / "cut/resume.pt").exists() == (cut >= 4)
    monkeypatch.setattr(transformer, "learning_rate", lambda step, *more: 1e-3)
    assert same(run(tmp_path / "cut"), expected, 0)


def test_every_step_and_part_drops_something_else(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from solutions import transformer

    seeds = []
    loss = transformer.label_smoothing_loss

    def spied(log_probs: Tensor, *more: object) -> Tensor:
        if log_probs.requires_grad:
            seeds.append(torch.initial_seed())
        return loss(log_probs, *more)

    monkeypatch.setattr(transformer, "label_smoothing_loss", spied)
    few = replace(TINY, dropout=0.3, steps=3)
    train(few, tmp_path, data=files, accumulate=2, say=lambda line: None)
    assert len(seeds) == len(set(seeds)) == 6


# --------------------------------------------------------------------------- what a step is


def test_a_step_has_the_gradient_of_the_mean_over_all_tokens(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shares with different numbers of tokens: the mean of their means would be another number."""
    from solutions import transformer

    settings = replace(TINY, steps=1, warmup_steps=1, average=1, save_every=1)
    seen = []

    def sums(log_probs: Tensor, target: Tensor, smoothing: float) -> Tensor:
        real = target != PAD
        seen.append(int(real.sum()))
        nll = -log_probs.gather(-1, target[..., None])[..., 0]
        return nll[real].mean()

    losses = []
    fit = translate.training.fit

    def spied(model, loss, steps, **more):
        losses.extend(loss(call)[0].item() for call in range(more["accumulate"]))
        return fit(model, loss, steps, **more)

    monkeypatch.setattr(transformer, "label_smoothing_loss", sums)
    monkeypatch.setattr(translate.training, "fit", spied)
    totals = {}
    for parts in (1, 4):
        losses.clear()
        seen.clear()
        train(settings, tmp_path / str(parts), data=files, accumulate=parts, say=lambda line: None)
        assert len(losses) == parts
        totals[parts] = sum(losses)
        assert parts == 1 or len(set(seen[:parts])) > 1
    assert totals[4] == pytest.approx(totals[1], rel=1e-5)


def test_batches_hold_every_pair_once_in_each_pass_in_a_new_order() -> None:
    corpus = translate.Rows(None, [([4] * (1 + n % 5), [4] * (1 + n % 7)) for n in range(50)])

    def fours(lengths: list[tuple[int, int]], most: int) -> list[list[int]]:
        assert lengths[8] == (4, 3)  # EOS is counted
        return [list(range(begin, min(begin + 4, 50))) for begin in range(0, 50, 4)]

    batches = translate._Batches(corpus, fours, 100, seed=0)
    passes = [[batches.of(step) for step in range(13 * k, 13 * k + 13)] for k in range(3)]
    for rows in passes:
        assert sorted(row for batch in rows for row in batch) == list(range(50))
    assert passes[0] != passes[1] != passes[2]
    again = translate._Batches(corpus, fours, 100, seed=0)
    assert again.of(17) == passes[1][4]  # no need to have seen the steps before
    assert translate._Batches(corpus, fours, 100, seed=1).of(0) != passes[0][0]


# --------------------------------------------------------------------------- averaging


def test_the_translator_is_the_mean_of_the_last_saves(one: Path) -> None:
    saves = sorted(one.glob("step-*.safetensors"))
    assert [path.name for path in saves] == ["step-0000008.safetensors", "step-0000012.safetensors"]
    first, second = map(weights, saves)
    mean = {name: (first[name].double() + second[name].double()) / 2 for name in first}
    for name, value in weights(one).items():
        torch.testing.assert_close(value.double(), mean[name], rtol=0, atol=1e-7)
    assert not same(first, second, 1e-6)


def test_the_beginning_is_no_part_of_the_average(files: Path, tmp_path: Path) -> None:
    train(replace(TINY, average=9), tmp_path, data=files, say=lambda line: None)
    saves = sorted(path.name for path in tmp_path.glob("step-*"))
    assert saves == [f"step-00000{step:02d}.safetensors" for step in (4, 8, 12)]


def test_an_average_keeps_the_type_and_rounds_once(tmp_path: Path) -> None:
    paths = []
    for number, value in enumerate((1.0, 1.0, 1.0 + 2**-7)):
        paths.append(tmp_path / f"{number}.safetensors")
        save_file({"w": torch.tensor([value, 3.0], dtype=torch.bfloat16)}, paths[-1])
    mean = translate.average(paths)["w"]
    assert mean.dtype == torch.bfloat16
    expected = torch.tensor([(3 + 2**-7) / 3, 3.0]).to(torch.bfloat16)
    assert torch.equal(mean, expected)


# --------------------------------------------------------------------------- text and ids


@pytest.fixture(scope="module")
def pieces() -> Pieces:
    texts = [p.source for p in make_pairs(200, "en", "de")]
    return Pieces.learn(texts + [p.target for p in make_pairs(200, "en", "de")], 320)


@pytest.mark.parametrize(
    "text", ["5. März 2021!", "naïve 東京 €", "a <pad> and a <eos>", "tabs\tand  spaces"]
)
def test_pieces_write_every_text(pieces: Pieces, text: str) -> None:
    ids = pieces.encode(text)
    assert min(ids) >= len(SPECIALS)
    assert pieces.decode([*ids, EOS, 17, 18]) == " ".join(text.split())
    assert Pieces.of(json.loads(json.dumps(pieces.state()))).encode(text) == ids
    assert pieces.encode_all([text, "x"])[0] == ids


def test_pieces_learn_what_is_frequent(pieces: Pieces) -> None:
    assert pieces.src_vocab_size == 320
    assert pieces.tokenizer.token_to_id("<pad>") == PAD
    assert pieces.tokenizer.token_to_id("<bos>") == BOS
    assert len(pieces.encode("2021 kilometers")) < len("2021 kilometers")


def test_a_vocabulary_without_room_for_all_bytes_is_refused() -> None:
    with pytest.raises(Problem, match="--vocab-size must be 260 or more"):
        Pieces.learn(["a"], 100)


# --------------------------------------------------------------------------- prepared data


def test_shards_hold_the_pairs_in_order(files: Path, tmp_path: Path) -> None:
    settings = replace(TINY, longest=40)
    translate.prepare(settings, files, tmp_path / "data", lambda line: None, shard=64)
    meta = json.loads((tmp_path / "data/meta.json").read_text(encoding="utf-8"))
    codec = Pieces.of(meta["codec"])
    shards = translate.Shards(tmp_path / "data", "train", codec)
    pairs = list(public_data.wmt14("train", folder=files))
    ids = [(codec.encode(p.source), codec.encode(p.target)) for p in pairs]
    kept = [(s, t) for s, t in ids if len(s) <= 40 and len(t) < 40]
    assert 0 < len(kept) < len(pairs)
    assert [shards.row(i) for i in range(len(shards.lengths))] == kept
    assert shards.lengths == [(len(s), len(t) + 1) for s, t in kept]
    assert len(shards.tokens) == -(-len(kept) // 64)
    assert all(isinstance(part, np.memmap) for part in shards.tokens)
    assert meta["counts"]["train"] == {"kept": len(kept), "left_out": len(pairs) - len(kept)}


def test_prepared_data_are_used_again_and_other_settings_refused(
    files: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    translate.prepare(TINY, files, folder, lambda line: None)
    before = (folder / "meta.json").stat().st_mtime_ns
    translate.prepare(TINY, files, folder, lambda line: None)
    assert (folder / "meta.json").stat().st_mtime_ns == before
    larger = replace(TINY, vocab_size=310)
    with pytest.raises(Problem, match=r"prepared for another vocab_size; delete"):
        translate.prepare(larger, files, folder, lambda line: None)
    translate.prepare(larger, files, folder, lambda line: None, fresh=True)
    assert json.loads((folder / "meta.json").read_text(encoding="utf-8"))["of"]["vocab_size"] == 310


@pytest.mark.parametrize("meta", [None, "{half"])
def test_a_half_prepared_folder_is_made_anew(files: Path, tmp_path: Path, meta: str | None) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train-0007.tokens.npy").write_bytes(b"half")
    if meta is not None:
        (folder / "meta.json").write_text(meta, encoding="utf-8")
    translate.prepare(TINY, files, folder, lambda line: None)
    assert not (folder / "train-0007.tokens.npy").exists()


def test_without_validation_files_one_can_train(files: Path, tmp_path: Path) -> None:
    alone = tmp_path / "files"
    alone.mkdir()
    (alone / "train.jsonl").write_bytes((files / "train.jsonl").read_bytes())
    outcome = train(
        replace(TINY, steps=2), tmp_path / "out", data=alone, say=lambda line: None
    )  # fmt: skip
    assert outcome.steps == 2


# --------------------------------------------------------------------------- the command line


def run(*arguments: object) -> int:
    """The exit status of a command."""
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_a_translator_of_the_cldr_is_trained_used_and_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "en-de"
    arguments = (
        "--preset cldr-en-de --pairs 600 --most-items 1 --steps 6 --num-layers 1 --d-model 16"
    )
    assert run("train", *arguments.split(), "--d-ff", 32, "--num-heads", 2, "--out", out) == 0
    assert "6 steps in" in capsys.readouterr().err
    assert run("translate", out, "3 days", "Peru", "--max-length", 5) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    monkeypatch.setattr(sys, "stdin", Lines("3 days\n\nPeru\n"))
    assert run("translate", out / translate.WEIGHTS, "--max-length", 5) == 0
    lines = capsys.readouterr().out.split("\n")
    assert len(lines) == 4
    assert lines[1] == ""
    assert run("evaluate", out, "--limit", 30) == 0
    table = capsys.readouterr().out
    assert "BLEU" in table
    assert "all" in table
    assert "tokens" in table


class Lines:
    """What is piped in."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines(keepends=True)

    def __iter__(self):
        return iter(self.lines)

    def isatty(self) -> bool:
        return False


def test_a_trained_wmt14_translator_is_judged_on_its_test_set(
    one: Path, files: Path, capsys: pytest.CaptureFixture
) -> None:
    assert run("evaluate", one, "--data", files, "--limit", 4, "--beam", 1) == 0
    assert " 4 " in capsys.readouterr().out
    assert run("translate", one, "anything at all, even 東京", "--max-length", 4) == 0
    assert capsys.readouterr().out.count("\n") == 1


def test_a_beam_is_cached_unless_somebody_has_written_their_own(
    one: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from solutions import transformer

    translator, called = load(one, translate.MODEL), []
    for name in ("beam_search", "cached_beam_search"):
        search = getattr(transformer, name)

        def counted(*args: object, name: str = name, search: Callable = search) -> object:
            called.append(name)
            return search(*args)

        counted.__module__ = search.__module__
        monkeypatch.setattr(transformer, name, counted)
    texts = ["anything at all", "even this"]
    at_once = translator.translate(texts, beam=2, max_length=4)
    assert called == ["cached_beam_search"]
    monkeypatch.setattr(transformer.beam_search, "__module__", "mine")
    assert translator.translate(texts, beam=2, max_length=4) == at_once
    assert called[1:] == ["beam_search", "beam_search"]


def test_a_finished_training_is_not_repeated(
    files: Path, one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from solutions import transformer

    def never(*_: object) -> Tensor:
        raise AssertionError("it trains again")

    before = weights(one)
    monkeypatch.setattr(transformer, "label_smoothing_loss", never)
    out = tmp_path / "copy"
    shutil.copytree(one, out)
    settings = json.loads((out / "settings.json").read_text(encoding="utf-8"))
    settings["model"] = translate.MODEL
    (out / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    translate.train(replace(TINY, beam=3), out, data=files, say=lambda line: None)
    assert same(weights(out), before, 0)


def test_fresh_begins_again(files: Path, tmp_path: Path) -> None:
    quiet = {"data": files, "say": lambda line: None}
    train(replace(TINY, steps=4), tmp_path, **quiet)
    first = weights(tmp_path)
    train(replace(TINY, steps=4, seed=1), tmp_path, fresh=True, **quiet)
    assert not same(weights(tmp_path), first, 1e-3)


def test_the_paper_is_what_the_preset_says() -> None:
    paper = translate.PRESETS["wmt14-base"]
    assert paper.sizes == {
        "num_layers": 6, "d_model": 512, "d_ff": 2048, "num_heads": 8, "dropout": 0.1,
        "norm_first": False, "tie_embeddings": True,
    }  # fmt: skip
    assert (paper.vocab_size, paper.batch_tokens, paper.warmup_steps) == (37_000, 25_000, 4000)
    assert (paper.smoothing, paper.average, paper.beam, paper.alpha) == (0.1, 5, 4, 0.6)
    assert (paper.steps, paper.schedule, paper.lr) == (100_000, "inverse-sqrt", 1.0)
    adam = translate.translation_task.adam([torch.nn.Parameter(torch.zeros(1))], 1.0)
    assert adam.defaults["betas"] == (0.9, 0.98)
    assert adam.defaults["eps"] == 1e-9


# --------------------------------------------------------------------------- what goes wrong


def damaged(tmp_path: Path) -> Path:
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(b"12345678nonsense")
    return path


def foreign(tmp_path: Path) -> Path:
    path = tmp_path / "foreign.safetensors"
    save_file({"w": torch.zeros(2)}, path)
    return path


def broken(tmp_path: Path) -> Path:
    path = tmp_path / "broken.py"
    path.write_text("import nothing_of_this_name", encoding="utf-8")
    return path


def half_done(tmp_path: Path) -> Path:
    path = tmp_path / "half_done.py"
    path.write_text(
        textwrap.dedent("""
            from solutions.transformer import *
            def make_model(*sizes, **more):
                raise NotImplementedError("exercise 17")
        """),
        encoding="utf-8",
    )
    return path


CLDR = ("train", "--pairs", 50, "--steps", 2, "--most-items", 1)
BAD: list[tuple[Callable[[Path], list[object]], str]] = [
    (lambda t: ["train", "--preset", "wmt", "--out", t / "o"], "no preset 'wmt'.*wmt14-base"),
    (lambda t: ["translate", t / "none", "x"], "no translator in .*none; train one with"),
    (lambda t: ["translate", damaged(t), "x"], "damaged.safetensors is damaged"),
    (lambda t: ["translate", foreign(t), "x"], "foreign.safetensors is no translator"),
    (lambda t: [*CLDR, "--out", t / "o", "--model", "no.such"], "module no.such cannot be loaded"),
    (lambda t: [*CLDR, "--out", t / "o", "--model", broken(t)], "nothing_of_this_name"),
    (lambda t: [*CLDR, "--out", t / "o", "--model", "json"], "json has no make_model and no"),
    (lambda t: [*CLDR, "--out", t / "o", "--model", half_done(t)], "not done yet: exercise 17"),
    (lambda t: [*CLDR, "--out", t / "o", "--num-heads", 7], "7 equal heads"),
    (lambda t: [*CLDR, "--out", t / "o", "--steps", 0], "--steps must be 1 or more, not 0"),
    (lambda t: [*CLDR, "--out", t / "o", "--batch-tokens", 3], "--batch-tokens 3 is too small"),
    (lambda t: [*CLDR, "--out", t / "o", "--target", "xx"], "unknown locale 'xx'"),
    (lambda t: [*CLDR, "--out", t / "o", "--prepare-only"], "needs no preparation"),
    (lambda t: [*CLDR, "--out", foreign(t) / "o"], "cannot be written"),
    (
        lambda t: ["train", "--preset", "wmt14-base", "--out", t / "o", "--data", t / "nowhere"],
        "no file or folder .*nowhere",
    ),
    (
        lambda t: ["train", "--preset", "wmt14-base", "--out", t / "o", "--longest", 99999],
        "does not fit into --batch-tokens",
    ),
]


@pytest.mark.parametrize(("command", "message"), BAD, ids=[message for _, message in BAD])
def test_what_goes_wrong_is_said_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture, command: Callable, message: str
) -> None:
    assert run(*command(tmp_path)) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    lines = [line for line in said.splitlines() if line.startswith("translate: ")]
    assert len(lines) == 1
    assert re.search(message, lines[0])


def test_another_training_in_the_folder_is_refused(
    files: Path, one: Path, capsys: pytest.CaptureFixture
) -> None:
    arguments = ["train", *OPTIONS, "--data", files, "--out", one, "--steps", 13]
    assert run(*arguments) == 2
    said = capsys.readouterr().err
    assert "steps 12 instead of 13" in said
    assert "spy_model.py instead of solutions.transformer" in said


def test_words_that_were_never_seen_are_named(tmp_path: Path) -> None:
    small = Settings(
        num_layers=1, d_model=8, d_ff=8, num_heads=1, steps=1, pairs=60, most_items=1,
    )  # fmt: skip
    train(small, tmp_path, say=lambda line: None)
    translator = load(tmp_path)
    with pytest.raises(Problem, match="no training sentence has «Xanadu»"):
        translator.translate(["Xanadu"])
    assert translator.translate(["", "   "]) == ["", ""]


def test_weights_of_another_model_are_refused(one: Path, tmp_path: Path) -> None:
    path = tmp_path / "wider.py"
    path.write_text(
        textwrap.dedent("""
            from solutions import transformer
            from solutions.transformer import *
            def make_model(*sizes, **more):
                return transformer.make_model(*sizes, **{**more, "d_model": 32})
        """),
        encoding="utf-8",
    )
    with pytest.raises(Problem, match=r"do not fit the model that .*wider\.py makes.*--model"):
        load(one, str(path))
