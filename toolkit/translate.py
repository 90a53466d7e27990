"""Training a translator, and translating, from a terminal.

    python -m toolkit.translate train --preset cldr-en-zh --out build/en-zh
    python -m toolkit.translate translate build/en-zh "March 5, 2021 and 13 days"
    python -m toolkit.translate evaluate build/en-zh

    torchrun --nproc-per-node 8 -m toolkit.translate train --preset wmt14-base --out runs/base

The model, its loss and its searches come from a module, `solutions.transformer` or one of your own
(`--model`). A CLDR preset trains in minutes on a CPU. `wmt14-base` is the configuration of Vaswani
et al. (2017), for machines with the data and GPUs.

The same training runs in one process or in several. A step takes a *global batch*, which depends on
the settings alone; every process takes its share of the sentences, and gradients are averaged over
all tokens of the global batch. Random numbers are a function of seed, step and process. So a
training that was interrupted goes on as if it had not been.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import numpy as np
import torch
import torch.distributed as dist
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from toolkit import command_line, device, training
from toolkit.corpora import public_data
from toolkit.corpora.translation import (
    EOS,
    PAD,
    SPECIALS,
    Pair,
    Vocabulary,
    collate,
    detokenize,
    tokenize,
)
from toolkit.files import write_whole
from toolkit.seq2seq.measures import bleu, exact_rate
from toolkit.transformer import translation_task
from toolkit.transformer.translation_task import Search, TranslationTask

MODEL = "solutions.transformer"
WEIGHTS = "model.safetensors"
FORMAT = "transformers-by-hand translator 1"


class Problem(ValueError):
    """Something the person at the terminal can mend; the message says what and how."""


# --------------------------------------------------------------------------- settings


@dataclass(frozen=True)
class Settings:
    """All that a training depends on.

    corpus: "cldr" or "wmt14". source, target: languages.
    num_layers to tie_embeddings: arguments of `make_model`.
    batch_tokens: of a global batch, on either side, padding included.
    schedule: "inverse-sqrt" (the module's `learning_rate`, times `lr`) or "warm-up" (of
        `toolkit.training`, `lr` its peak).
    smoothing, clip, seed, steps: of the training.
    average: how many of the last weights, saved every `save_every` steps, become the translator.
    pairs, most_items: of the CLDR task.
    vocab_size: pieces of the shared vocabulary. longest: tokens of a WMT14 sentence; longer
        ones are left out. limit: WMT14 pairs at most.
    beam, alpha: of the search; a beam of 1 is greedy search.
    """

    corpus: str = "cldr"
    source: str = "en"
    target: str = "zh"
    num_layers: int = 2
    d_model: int = 96
    d_ff: int = 384
    num_heads: int = 4
    dropout: float = 0.0
    norm_first: bool = True
    tie_embeddings: bool = False
    batch_tokens: int = 400
    steps: int = 2700
    schedule: str = "warm-up"
    lr: float = 4e-3
    warmup_steps: int = 4000
    smoothing: float = 0.1
    clip: float | None = 1.0
    seed: int = 0
    average: int = 1
    save_every: int = 500
    pairs: int = 30_000
    most_items: int = 3
    vocab_size: int = 37_000
    longest: int = 256
    limit: int | None = None
    beam: int = 1
    alpha: float = 0.6

    @property
    def sizes(self) -> dict[str, Any]:
        """Keyword arguments of make_model."""
        names = (
            "num_layers", "d_model", "d_ff", "num_heads", "dropout", "norm_first", "tie_embeddings",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}


PRESETS = {
    # Sizes and training chosen for exact matches after so many seconds of one core. Small batches
    # matter most, since they mean many steps: after 60 seconds 84 percent with 2000 tokens a batch,
    # 95 with 1000; after 45 seconds 94 with 400. Width 64, a feed-forward width of 192, 8 heads,
    # post-norm and a learning rate of 2e-3 were 1 to 7 points behind; half as many steps more or
    # fewer move it by a point or two.
    "cldr-en-zh": Settings(),
    "cldr-en-de": Settings(target="de"),
    "wmt14-base": Settings(
        corpus="wmt14", target="de", num_layers=6, d_model=512, d_ff=2048, num_heads=8,
        dropout=0.1, norm_first=False, tie_embeddings=True, batch_tokens=25_000, steps=100_000,
        schedule="inverse-sqrt", lr=1.0, warmup_steps=4000, smoothing=0.1, clip=None, average=5,
        save_every=1500, beam=4,
    ),
}  # fmt: skip
_ABOUT = {
    "cldr-en-zh": "dates, prices, countries … from English to Chinese; minutes on a CPU",
    "cldr-en-de": "the same into German",
    "wmt14-base": "the base model of Vaswani et al. (2017), WMT14 English to German, for GPUs",
}


def _check(settings: Settings) -> None:
    """Refuses settings that no training can have."""
    least = {
        "num_layers": 1, "d_model": 2, "d_ff": 1, "num_heads": 1, "batch_tokens": 1, "steps": 1,
        "warmup_steps": 1, "average": 1, "save_every": 1, "pairs": 1, "most_items": 1, "longest": 2,
        "beam": 1,
    }  # fmt: skip
    for name, value in least.items():
        if getattr(settings, name) < value:
            raise Problem(
                f"--{name.replace('_', '-')} must be {value} or more, not {getattr(settings, name)}"
            )
    if settings.corpus == "wmt14" and settings.longest > settings.batch_tokens:
        raise Problem(
            f"a sentence of --longest {settings.longest} tokens does not fit into --batch-tokens "
            f"{settings.batch_tokens}; make the first smaller or the second larger"
        )


# --------------------------------------------------------------------------- the model's module


def load_module(name: str, needed: Iterable[str]) -> ModuleType:
    """The module that has the model: a name such as solutions.transformer, or a Python file.

    Raises:
        Problem: it cannot be imported, or lacks a needed name.
    """
    try:
        if name.endswith(".py"):
            # Under a name of its own: a file json.py must not take the place of json.
            spec = importlib.util.spec_from_file_location(f"_model_{Path(name).stem}", name)
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(name)
    except Exception as error:  # whatever stands in a module of somebody's own
        raise Problem(
            f"the module {name} cannot be loaded ({type(error).__name__}: {error}); --model names "
            "a module that Python finds from here, or a .py file, with make_model and its searches"
        ) from None
    missing = [wanted for wanted in needed if not hasattr(module, wanted)]
    if missing:
        raise Problem(
            f"the module {name} has no {' and no '.join(missing)}; write it, or name another "
            "module with --model"
        )
    return module


def _make_model(module: ModuleType, codec: Words | Pieces, settings: Settings) -> nn.Module:
    sizes = settings.sizes
    try:
        model = module.make_model(codec.src_vocab_size, codec.tgt_vocab_size, **sizes)
    except NotImplementedError as error:
        raise Problem(
            f"make_model of {module.__name__} needs an exercise that is not done yet: {error}"
        ) from None
    return on_fast_path(module, model)


def on_fast_path(module: ModuleType, model: nn.Module) -> nn.Module:
    """The model by fused kernels, if its module has such; the parameters stay the same."""
    fused = getattr(module, "fused", None)
    return fused(model) if fused is not None else model


# --------------------------------------------------------------------------- text and ids


class Words:
    """Words and digits of one language, words or characters of the other: the CLDR task."""

    def __init__(self, locales: Sequence[str], source: Vocabulary, target: Vocabulary) -> None:
        self.locales, self.source, self.target = tuple(locales), source, target
        self.src_vocab_size, self.tgt_vocab_size = len(source), len(target)

    def encode(self, text: str, strict: bool = True) -> list[int]:
        """The ids of a source sentence; Problem if no training sentence had its words.

        Not strict, such words are `UNK`.
        """
        tokens = tokenize(" ".join(text.split()), self.locales[0])
        unknown = [token for token in dict.fromkeys(tokens) if token not in self.source]
        if unknown and strict:
            raise Problem(
                f"no training sentence has {', '.join(f'«{t}»' for t in unknown[:5])}: this "
                "translator knows dates, times, quantities, prices, countries and languages"
            )
        return self.source.encode(tokens)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of target ids, up to the end."""
        return detokenize(self.target.decode(ids), self.locales[1])

    def state(self) -> dict[str, Any]:
        """All of it, as JSON can hold it."""
        words = {"source": self.source.words, "target": self.target.words}
        return {"kind": "words", "locales": list(self.locales), **words}

    @classmethod
    def of(cls, state: dict[str, Any]) -> Words:
        """The inverse of `state`."""
        both = (Vocabulary(state[side]) for side in ("source", "target"))
        return cls(state["locales"], *both)


class Pieces:
    """One vocabulary of byte pairs for both languages; it can write every text."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.src_vocab_size = self.tgt_vocab_size = tokenizer.get_vocab_size()

    @classmethod
    def learn(cls, texts: Iterable[str], size: int) -> Pieces:
        """Byte-pair encoding (Sennrich et al. 2016) from the bytes up, with at most `size` pieces.

        Raises:
            Problem: a size that has no room for all bytes.
        """
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        letters = pre_tokenizers.ByteLevel.alphabet()
        if size < len(SPECIALS) + len(letters):
            least = len(SPECIALS) + len(letters)
            raise Problem(
                f"--vocab-size must be {least} or more, one piece for each byte, not {size}"
            )
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size, special_tokens=SPECIALS, initial_alphabet=sorted(letters),
            show_progress=False,
        )  # fmt: skip
        tokenizer.train_from_iterator(texts, trainer)
        # A text may say «<pad>»; only the ids above the specials are pieces of text.
        tokenizer.encode_special_tokens = True
        return cls(tokenizer)

    def encode(self, text: str, strict: bool = True) -> list[int]:
        """The ids of a text; there are no unknown words."""
        return self.tokenizer.encode(" ".join(text.split())).ids

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts, on all cores."""
        return [e.ids for e in self.tokenizer.encode_batch([" ".join(t.split()) for t in texts])]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, up to the end."""
        kept: list[int] = []
        for i in map(int, ids):
            if i == EOS:
                break
            if i >= len(SPECIALS):
                kept.append(i)
        return self.tokenizer.decode(kept)

    def state(self) -> dict[str, Any]:
        """All of it, as JSON can hold it."""
        return {"kind": "pieces", "tokenizer": self.tokenizer.to_str()}

    @classmethod
    def of(cls, state: dict[str, Any]) -> Pieces:
        """The inverse of `state`."""
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(state["tokenizer"])
        tokenizer.encode_special_tokens = True
        return cls(tokenizer)


def _codec(state: dict[str, Any]) -> Words | Pieces:
    return {"words": Words, "pieces": Pieces}[state["kind"]].of(state)


# --------------------------------------------------------------------------- corpora


class Rows:
    """Training pairs in memory, as ids.

    codec: text and ids. lengths: (source, target with `EOS`) of each pair.
    """

    def __init__(
        self, codec: Words | Pieces, encoded: Sequence[tuple[Sequence[int], Sequence[int]]]
    ) -> None:
        self.codec, self.encoded = codec, encoded
        self.lengths = [(len(s), len(t) + 1) for s, t in encoded]

    def row(self, index: int) -> tuple[Sequence[int], Sequence[int]]:
        """Source and target of a pair, without start and end."""
        return self.encoded[index]


class Shards:
    """Pairs as ids in files that are mapped into memory, not read into it.

    For each shard two arrays of NumPy: `<split>-0000.tokens.npy` with source and target of all
    pairs one behind the other, `<split>-0000.lengths.npy` (n, 2) with their lengths.

    codec: text and ids. lengths: (source, target with `EOS`) of each pair.
    """

    def __init__(self, folder: Path, split: str, codec: Pieces) -> None:
        self.codec = codec
        self.tokens, self.places, self.starts = [], [], [0]
        self.lengths: list[tuple[int, int]] = []
        for path in sorted(folder.glob(f"{split}-*.tokens.npy")):
            self.tokens.append(np.load(path, mmap_mode="r", allow_pickle=False))
            sizes = np.load(str(path).replace(".tokens.", ".lengths."), allow_pickle=False)  # (n,2)
            ends = np.cumsum(sizes.ravel())  # (2 n,)
            self.places.append(np.concatenate([[0], ends]))
            self.starts.append(self.starts[-1] + len(sizes))
            self.lengths += zip(sizes[:, 0].tolist(), (sizes[:, 1] + 1).tolist(), strict=True)

    def row(self, index: int) -> tuple[Sequence[int], Sequence[int]]:
        """Source and target of a pair, without start and end."""
        shard = bisect.bisect_right(self.starts, index) - 1
        inside = 2 * (index - self.starts[shard])
        first, middle, last = self.places[shard][inside : inside + 3]
        both = self.tokens[shard][first:last].tolist()
        return both[: middle - first], both[middle - first :]


def _fingerprint(settings: Settings, data: Path | None) -> dict[str, Any]:
    names = ("corpus", "source", "target", "vocab_size", "longest", "limit")
    return {name: getattr(settings, name) for name in names} | {
        "data": None if data is None else str(data.resolve())
    }


def prepare(
    settings: Settings, data: Path | None, folder: Path, say: Callable[[str], None],
    shard: int = 250_000, fresh: bool = False,
) -> None:  # fmt: skip
    """Learn the pieces of WMT14 and write its training and validation pairs as shards.

    Nothing is done if `folder` holds them already. `meta.json` is written last.

    Args:
        say: called with lines for the person who waits.
        shard: pairs in a file.
        fresh: whether other data in `folder` may be replaced.

    Raises:
        Problem: `folder` holds other data; nothing to train on.
        ValueError: as `toolkit.corpora.public_data.wmt14`.
    """
    wanted = _fingerprint(settings, data)
    meta = folder / "meta.json"
    found = _prepared(folder)
    if found is not None:
        other = [name for name in wanted if found.get(name) != wanted[name]]
        if not other:
            return
        if not fresh:
            raise Problem(
                f"{folder} was prepared for another {', '.join(other)}; delete this folder, or "
                "name another --out"
            )
    if folder.exists():  # an earlier attempt did not come to its end
        shutil.rmtree(folder)
    folder.mkdir(parents=True)

    def pairs(split: str, limit: int | None) -> Iterator[Pair]:
        return public_data.wmt14(split, settings.source, settings.target, folder=data, limit=limit)

    say(f"learning up to {settings.vocab_size:,} pieces …")
    sides = (text for pair in pairs("train", settings.limit) for text in (pair.source, pair.target))
    codec = Pieces.learn((" ".join(text.split()) for text in sides), settings.vocab_size)
    counts = {}
    for split, limit in (("train", settings.limit), ("validation", 3000)):
        say(f"writing the {split} pairs as ids …")
        try:
            found = pairs(split, limit)
            counts[split] = _write_shards(found, codec, folder, split, settings.longest, shard)
        except ValueError:
            if split == "train":
                raise
            counts[split] = {"kept": 0, "left_out": 0}  # one can train without it
    if not counts["train"]["kept"]:
        raise Problem(
            f"no pair of {settings.source} and {settings.target} with 1 to {settings.longest} "
            "tokens on both sides; look at the files in --data, or make --longest larger"
        )
    content = {"of": wanted, "counts": counts, "codec": codec.state()}
    write_whole(meta, lambda path: path.write_text(json.dumps(content), encoding="utf-8"))
    kept, left_out = counts["train"]["kept"], counts["train"]["left_out"]
    say(f"{kept:,} pairs to train on, {left_out:,} left out as empty or too long")


def _write_shards(
    pairs: Iterator[Pair], codec: Pieces, folder: Path, split: str, longest: int, shard: int
) -> dict[str, int]:
    kept = left_out = 0
    for number in range(1_000_000):
        lengths: list[tuple[int, int]] = []
        tokens: list[np.ndarray] = []
        ended = False
        while len(lengths) < shard and not ended:
            part = list(islice(pairs, min(10_000, shard - len(lengths))))
            ended = not part
            sources = codec.encode_all([pair.source for pair in part])
            targets = codec.encode_all([pair.target for pair in part])
            for source, target in zip(sources, targets, strict=True):
                if source and target and len(source) <= longest and len(target) < longest:
                    lengths.append((len(source), len(target)))
                    tokens.append(np.array([*source, *target], dtype=np.uint32))
                else:
                    left_out += 1
        if lengths:
            kind = np.uint16 if codec.src_vocab_size <= 2**16 else np.uint32
            name = f"{split}-{number:04d}"
            np.save(folder / f"{name}.lengths.npy", np.array(lengths, dtype=np.int32))
            np.save(folder / f"{name}.tokens.npy", np.concatenate(tokens).astype(kind))
            kept += len(lengths)
        if ended:
            break
    return {"kept": kept, "left_out": left_out}


def _corpus(settings: Settings, folder: Path) -> tuple[Rows | Shards, Shards | None]:
    """What to train on, and what to validate on."""
    if settings.corpus == "cldr":
        task = _task(settings)
        codec = Words(task.locales, task.source, task.target)
        return Rows(codec, task.encoded), None
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    codec = Pieces.of(meta["codec"])
    validation = Shards(folder, "validation", codec)
    return Shards(folder, "train", codec), validation if validation.lengths else None


@functools.lru_cache(maxsize=1)
def _cldr_task(source: str, target: str, pairs: int, most_items: int, seed: int) -> TranslationTask:
    return TranslationTask.make(source, target, pairs=pairs, most_items=most_items, seed=seed)


def _task(settings: Settings) -> TranslationTask:
    return _cldr_task(
        settings.source, settings.target, settings.pairs, settings.most_items, settings.seed
    )


# --------------------------------------------------------------------------- files


def _numbers(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name; what has two names comes once."""
    once = {name for name, _ in model.named_parameters()} | {n for n, _ in model.named_buffers()}
    state = model.state_dict()
    return {name: state[name].detach().cpu().contiguous() for name in sorted(once) if name in state}


def _save(
    path: Path, numbers: dict[str, Tensor], settings: Settings, codec: Words | Pieces,
    model: str, steps: int,
) -> None:  # fmt: skip
    """One file with weights, settings and vocabularies."""
    from safetensors.torch import save

    about = {"settings": asdict(settings), "codec": codec.state(), "model": model, "steps": steps}
    metadata = {"format": FORMAT, "about": json.dumps(about)}
    write_whole(path, lambda half: half.write_bytes(save(numbers, metadata)))


def average(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights in several files (Vaswani et al. 2017, section 6.1).

    Computed in float64, returned in the type of the first file.
    """
    from safetensors.torch import load_file

    total: dict[str, Tensor] = {}
    kinds: dict[str, torch.dtype] = {}
    for path in paths:
        for name, value in load_file(path).items():
            kinds.setdefault(name, value.dtype)
            total[name] = total.get(name, 0) + value.double()
    return {
        name: (value / len(paths)).to(kinds[name]).contiguous() for name, value in total.items()
    }


@dataclass(frozen=True)
class Translator:
    """A trained translator.

    model: in eval mode. codec: text and ids. settings: of its training. steps: how many it had.
    module: where the model and the searches come from.
    """

    model: nn.Module
    codec: Words | Pieces
    settings: Settings
    steps: int
    module: ModuleType

    @torch.no_grad()
    def translate(
        self, texts: Sequence[str], beam: int | None = None, alpha: float | None = None,
        max_length: int | None = None, batch: int = 64, strict: bool = True,
    ) -> list[str]:  # fmt: skip
        """Translations of texts, in their order; an empty text stays empty.

        Args:
            beam, alpha: of the search, those of the settings if not given; beam 1 is greedy.
            max_length: the most tokens of a translation; the source's and 50 if not given.
            batch: sentences that are translated at a time.
            strict: refuse words that the translator does not know.

        Raises:
            ValueError: such words, or a text that is too long for the model.
        """
        search = self._search(
            self.settings.beam if beam is None else beam,
            self.settings.alpha if alpha is None else alpha,
        )
        where = next(self.model.parameters()).device
        rows = [self.codec.encode(text, strict) for text in texts]
        order = sorted((i for i, row in enumerate(rows) if row), key=lambda i: len(rows[i]))
        result = [""] * len(rows)
        for begin in range(0, len(order), batch):
            chosen = order[begin : begin + batch]
            source = collate([rows[i] for i in chosen], [[] for _ in chosen]).source  # (B, S)
            most = max_length or source.shape[1] + 50
            for i, ids in zip(chosen, search(self.model, source.to(where), most), strict=True):
                result[i] = self.codec.decode(i for i in ids.tolist() if i != PAD)
        return result

    def _search(self, beam: int, alpha: float) -> Search:
        if beam > 1:
            plain = self.module.beam_search
            cached = getattr(self.module, "cached_beam_search", None)
            # Who has written a search of their own, beside an imported one, wants theirs.
            if cached is not None and cached.__module__ == plain.__module__:
                return translation_task.by_cached_beam(cached, beam, alpha)
            return translation_task.by_beam(plain, beam, alpha)
        return getattr(self.module, "cached_greedy_decode", self.module.greedy_decode)


def load(path: str | os.PathLike[str], model: str = MODEL) -> Translator:
    """A translator that `train` has written.

    Args:
        path: its file, or the folder in which it is.
        model: the module with make_model, greedy_decode and beam_search.

    Raises:
        Problem: there is none, it is damaged, or the module makes other weights.
    """
    from safetensors import safe_open

    path = Path(path)
    file = path / WEIGHTS if path.is_dir() else path
    if not file.is_file():
        raise Problem(
            f"there is no translator in {path}; train one with: python -m toolkit.translate train "
            f"--out {path}"
        )
    try:
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise Problem(f"{file} is no translator that `train` has written")
            about = json.loads(metadata["about"])
            numbers = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        known = {f.name for f in dataclasses.fields(Settings)}
        settings = Settings(**{k: v for k, v in about["settings"].items() if k in known})
        codec = _codec(about["codec"])
    except Problem:
        raise
    except Exception as error:  # SafetensorError, or whatever its metadata lead to
        raise Problem(
            f"{file} is damaged ({type(error).__name__}); copy it again or train again"
        ) from None
    module = load_module(model, ("make_model", "greedy_decode", "beam_search"))
    made = _make_model(module, codec, settings)
    mine = _numbers(made)
    if {n: tuple(t.shape) for n, t in mine.items()} != {
        n: tuple(t.shape) for n, t in numbers.items()
    }:
        raise Problem(
            f"the weights in {file} do not fit the model that {model} makes; they were trained "
            f"with --model {about['model']}"
        )
    made.load_state_dict(numbers, strict=False)  # a shared weight has its other names already
    made.to(device.device()).eval()
    return Translator(made, codec, settings, about["steps"], module)


# --------------------------------------------------------------------------- training


@dataclass(frozen=True)
class _World:
    """The processes that train together: which this one is, how many there are, their device."""

    rank: int
    size: int
    where: torch.device

    @property
    def first(self) -> bool:
        return self.rank == 0


@contextlib.contextmanager
def _world() -> Iterator[_World]:
    """The process group that `torchrun` asks for, or this process alone."""
    alone = "RANK" not in os.environ
    gpu = torch.cuda.is_available()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if gpu:
        if local >= torch.cuda.device_count():
            raise Problem(
                f"there are {torch.cuda.device_count()} GPUs and more processes; give torchrun a "
                "--nproc-per-node that is not larger"
            )
        torch.cuda.set_device(local)
    where = torch.device("cuda", local) if gpu else torch.device("cpu")
    if alone:
        yield _World(0, 1, where)
        return
    dist.init_process_group("nccl" if gpu else "gloo")
    try:
        yield _World(dist.get_rank(), dist.get_world_size(), where)
    finally:
        dist.destroy_process_group()


class _Batches:
    """The global batches of a training, and the share of a process in each.

    The same for any number of processes: sentences are put together by the module's
    `token_batches`, and every pass takes the batches in an order that seed and pass decide.
    """

    def __init__(
        self, corpus: Rows | Shards, make: Callable[..., list[list[int]]], most: int, seed: int
    ) -> None:
        self.corpus, self.seed = corpus, seed
        try:
            self.rows = make(corpus.lengths, most)
        except ValueError as error:
            raise Problem(f"--batch-tokens {most} is too small: {error}") from None
        self.order: tuple[int, list[int]] = (-1, [])

    def of(self, step: int) -> list[int]:
        """The pairs of the global batch of a step."""
        passes, place = divmod(step, len(self.rows))
        if self.order[0] != passes:
            draw = torch.Generator().manual_seed(_seed(self.seed, passes))
            self.order = passes, torch.randperm(len(self.rows), generator=draw).tolist()
        return self.rows[self.order[1][place]]

    def tokens(self, rows: Iterable[int]) -> int:
        """Target tokens of these pairs, `EOS` included."""
        return sum(self.corpus.lengths[row][1] for row in rows)

    def collate(self, rows: Sequence[int], where: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """source (B, S), target_in (B, U) and target_out (B, U) of these pairs."""
        sources, targets = zip(*(self.corpus.row(row) for row in rows), strict=True)
        batch = collate(sources, targets).to(where)
        return batch.source, batch.target_in, batch.target_out


def _seed(*numbers: int) -> int:
    """One seed made of several numbers, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=7).digest(), "big")


@dataclass(frozen=True)
class Outcome:
    """What `train` did: the translator's file, the steps, the seconds, the speed."""

    path: Path
    steps: int
    seconds: float
    tokens_per_second: float | None


def train(
    settings: Settings, out: Path, *, data: Path | None = None, model: str = MODEL,
    accumulate: int = 1, mixed: bool | None = None, compiled: bool | None = None,
    fresh: bool = False, say: Callable[[str], None] = print,
) -> Outcome:  # fmt: skip
    """Train a translator and write it to `out`; in every process of torchrun, or in one.

    Args:
        out: a folder; a training that was interrupted goes on from what it holds.
        data: a folder with WMT14 files, None for the Hugging Face Hub.
        accumulate: into how many parts each process cuts its share of a batch, for less memory.
        mixed: compute in bfloat16; None for yes on a GPU.
        compiled: with torch.compile; None for yes on a GPU.
        fresh: begin again, whatever `out` holds.
        say: called with lines for the person who waits.

    Raises:
        ValueError: settings, files or a module that make no sense.
    """
    _check(settings)
    if accumulate < 1:
        raise Problem(f"--accumulate must be 1 or more, not {accumulate}")
    first = int(os.environ.get("RANK", "0")) == 0
    needed = ["make_model", "token_batches", "label_smoothing_loss"]
    needed += ["learning_rate"] if settings.schedule == "inverse-sqrt" else []
    module = load_module(model, needed)
    prepared = out / "data"
    if first:
        _begin(out, settings, model, fresh)
        if settings.corpus == "wmt14":
            prepare(settings, data, prepared, say, fresh=fresh)
    elif settings.corpus == "wmt14":
        # No collective: pieces may take an hour. If the first process fails, torchrun ends us.
        wanted = _fingerprint(settings, data)
        while _prepared(prepared) != wanted:
            time.sleep(0.2)
    with _world() as world:
        return _train(
            settings, out, prepared, module, model, accumulate, mixed, compiled, world, say
        )


def _prepared(folder: Path) -> dict[str, Any] | None:
    """What the data in a folder were prepared for, None if they are not complete."""
    try:
        return json.loads((folder / "meta.json").read_text(encoding="utf-8"))["of"]
    except (OSError, ValueError, KeyError):
        return None


def _begin(out: Path, settings: Settings, model: str, fresh: bool) -> None:
    """Makes the folder, or refuses one of another training."""
    path = out / "settings.json"
    mine = {"model": model, **asdict(settings)}
    if path.exists() and not fresh:
        try:
            theirs = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError:
            theirs = {}
        other = [
            f"{name} {theirs.get(name)} instead of {value}"
            for name, value in mine.items()
            if theirs.get(name) != value and name not in ("beam", "alpha")
        ]
        if other:
            raise Problem(
                f"{out} holds a training with other settings ({', '.join(other[:3])}); give the "
                "same settings, another --out, or --fresh to begin again"
            )
    if fresh:
        for old in [out / "resume.pt", out / WEIGHTS, *out.glob("step-*.safetensors")]:
            old.unlink(missing_ok=True)
    try:
        write_whole(
            path, lambda half: half.write_text(json.dumps(mine, indent=1), encoding="utf-8")
        )
    except OSError as error:
        raise Problem(
            f"{out} cannot be written to ({error.strerror}); name another --out"
        ) from None


def _train(
    settings: Settings, out: Path, prepared: Path, module: ModuleType, name: str,
    accumulate: int, mixed: bool | None, compiled: bool | None, world: _World,
    say: Callable[[str], None],
) -> Outcome:  # fmt: skip
    corpus, validation = _corpus(settings, prepared)
    batches = _Batches(corpus, module.token_batches, settings.batch_tokens, settings.seed)
    gpu = world.where.type == "cuda"
    torch.manual_seed(settings.seed)
    model = _make_model(module, corpus.codec, settings).to(world.where)
    running: nn.Module = model
    if world.size > 1:
        ids = [world.where.index] if gpu else None
        running = nn.parallel.DistributedDataParallel(
            model, device_ids=ids, forward_sync_buffers=False
        )
    call = running
    if gpu if compiled is None else compiled:
        call = torch.compile(running, dynamic=True)
    preset = replace(
        device.preset("gpu" if gpu else "cpu"), device=world.where,
        amp_dtype=torch.bfloat16 if (gpu if mixed is None else mixed) else None,
    )  # fmt: skip
    if world.first:
        count = sum(p.numel() for p in model.parameters())
        say(
            f"{count:,} parameters, {len(corpus.lengths):,} pairs in {len(batches.rows):,} "
            f"batches, {world.size} process{'es' if world.size > 1 else ''} on {world.where.type}"
        )
    recent: list[Tensor] = []  # losses per token of this process since the last line
    lines: dict[str, float] = {}
    began = time.perf_counter()

    def share(rows: Sequence[int], part: int) -> tuple[Sequence[int], int]:
        """This process's rows of a global batch, and how many tokens they have."""
        mine = rows[world.rank + world.size * part :: world.size * accumulate]
        # With fewer sentences than shares somebody reads along without a voice: all processes
        # have to take part in every exchange of gradients.
        return (mine, batches.tokens(mine)) if mine else (rows[:1], 0)

    def loss(number: int) -> tuple[Tensor, int]:
        step, part = divmod(number, accumulate)
        if part == 0 and step and step % settings.save_every == 0:
            keep(step)
        rows = batches.of(step)
        mine, count = share(rows, part)
        source, target_in, target_out = batches.collate(mine, world.where)
        if settings.dropout:
            torch.manual_seed(_seed(settings.seed, number, world.rank))
        together = contextlib.nullcontext()
        if world.size > 1 and part < accumulate - 1:
            together = running.no_sync()  # the last part brings the sum of all
        with together:
            log_probs = call(source, target_in)  # (B, U, V)
        mean = module.label_smoothing_loss(log_probs.float(), target_out, settings.smoothing)
        # DistributedDataParallel takes the mean over the processes; a token has the same weight
        # wherever it was.
        value = mean * (world.size * count / batches.tokens(rows))
        if world.first and count:
            recent.append(mean.detach())
        return value, count

    def keep(step: int) -> None:
        """The weights after `step` steps, for the average; and a line about them."""
        if not world.first:
            return
        _save(out / f"step-{step:07d}.safetensors", _numbers(model), settings, corpus.codec, name,
              step)  # fmt: skip
        for old in sorted(out.glob("step-*.safetensors"))[: -settings.average]:
            old.unlink()
        if recent:
            lines["loss"] = float(torch.stack(recent).mean())
            recent.clear()
            told = "".join(f", {name} {value:.3f}" for name, value in lines.items())
            say(f"step {step:,} of {settings.steps:,}{told}, {time.perf_counter() - began:,.0f} s")

    def validate() -> float:
        """Mean loss per token of all validation pairs, the same in every process."""
        total = torch.zeros(2, dtype=torch.float64, device=world.where)
        ordered = sorted(range(len(validation.lengths)), key=lambda i: validation.lengths[i])
        mine = ordered[world.rank :: world.size]
        for begin in range(0, len(mine), 64):
            rows = [validation.row(i) for i in mine[begin : begin + 64]]
            batch = collate(*zip(*rows, strict=True)).to(world.where)
            mean = module.label_smoothing_loss(
                model(batch.source, batch.target_in).float(), batch.target_out, 0.0
            )
            total += torch.tensor([float(mean) * batch.tokens, batch.tokens], device=world.where)
        if world.size > 1:
            dist.all_reduce(total)
        lines["loss on unseen pairs"] = float(total[0] / total[1])
        return lines["loss on unseen pairs"]

    noam = settings.schedule == "inverse-sqrt"

    def factor(step: int) -> float:
        return module.learning_rate(step + 1, settings.d_model, settings.warmup_steps)

    history = training.fit(
        model, loss, settings.steps, lr=settings.lr, clip=settings.clip,
        schedule=factor if noam else settings.schedule, optimiser=translation_task.adam,
        accumulate=accumulate, seed=settings.seed, preset=preset,
        validate=None if validation is None else validate, validate_every=settings.save_every,
        checkpoint=out / "resume.pt", checkpoint_every=settings.save_every, progress=world.first,
    )  # fmt: skip
    keep(settings.steps)
    if world.first:
        kept = sorted(out.glob("step-*.safetensors"))[-settings.average :]
        _save(out / WEIGHTS, average(kept), settings, corpus.codec, name, settings.steps)
        for path in kept:
            if settings.average == 1:
                path.unlink()
    if world.size > 1:
        dist.barrier()  # the file is there before anybody leaves
    return Outcome(out / WEIGHTS, len(history.loss), history.seconds, history.tokens_per_second)


# --------------------------------------------------------------------------- command line

app = typer.Typer(
    name="translate",
    help="Train a translator, and translate.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _about_presets() -> str:
    return "; ".join(f"[bold]{name}[/bold]: {text}" for name, text in _ABOUT.items())


_SIZES, _TRAINING, _CORPUS, _MACHINE = "Size", "Training", "Data", "Machine"


def _option(text: str, panel: str | None = None, *names: str, least: float | None = None) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, min=least)


_Model = Annotated[str, _option("The module with make_model and its searches, or a .py file.")]
_Beam = Annotated[int | None, _option("Hypotheses that the search keeps; 1: greedy.", least=1)]
_Alpha = Annotated[float | None, _option("Length penalty of the beam.", least=0)]
_FILES = "Folder with WMT14 files (Parquet, JSON, CSV, train.en and train.de …); else the Hub."
_Data = Annotated[Path | None, _option(_FILES, _CORPUS)]
_Folder = Annotated[Path, _option("Folder for the translator and all it takes to go on later.")]
_Preset = Annotated[str, _option(_about_presets())]


@app.callback()
def _callback() -> None:
    """Train a translator, and translate."""


@app.command("train")
def _train_command(
    out: _Folder,
    preset: _Preset = "cldr-en-zh",
    model: _Model = MODEL,
    fresh: Annotated[bool, _option("Begin again, whatever --out holds.", None, "--fresh")] = False,
    source: Annotated[str | None, _option("Language to translate from.", _CORPUS)] = None,
    target: Annotated[str | None, _option("Language to translate into.", _CORPUS)] = None,
    data: _Data = None,
    pairs: Annotated[int | None, _option("CLDR sentences to learn from.", _CORPUS)] = None,
    most_items: Annotated[int | None, _option("Items of a CLDR sentence.", _CORPUS)] = None,
    vocab_size: Annotated[int | None, _option("Byte pairs of the vocabulary.", _CORPUS)] = None,
    longest: Annotated[int | None, _option("Leave longer WMT14 sentences out.", _CORPUS)] = None,
    limit: Annotated[int | None, _option("Read so many WMT14 pairs at most.", _CORPUS)] = None,
    prepare_only: Annotated[
        bool, _option("Write the WMT14 pairs as ids, and stop.", _CORPUS, "--prepare-only")
    ] = False,
    num_layers: Annotated[int | None, _option("Layers of each stack.", _SIZES)] = None,
    d_model: Annotated[int | None, _option("Width.", _SIZES)] = None,
    d_ff: Annotated[int | None, _option("Width of the feed-forward networks.", _SIZES)] = None,
    num_heads: Annotated[int | None, _option("Heads of each attention.", _SIZES)] = None,
    norm_first: Annotated[
        bool | None,
        _option("Normalise before or after a sub-layer.", _SIZES, "--norm-first/--norm-last"),
    ] = None,
    dropout: Annotated[float | None, _option("Share that is dropped.", _TRAINING)] = None,
    steps: Annotated[int | None, _option("Steps of the training.", _TRAINING)] = None,
    batch_tokens: Annotated[
        int | None, _option("Tokens of a batch on either side, all processes.", _TRAINING)
    ] = None,
    lr: Annotated[
        float | None, _option("Learning rate: its factor (wmt14) or its peak (cldr).", _TRAINING)
    ] = None,
    warmup_steps: Annotated[
        int | None, _option("Steps of linear warm-up (wmt14).", _TRAINING)
    ] = None,
    smoothing: Annotated[float | None, _option("Label smoothing.", _TRAINING)] = None,
    save_every: Annotated[int | None, _option("Steps from save to save.", _TRAINING)] = None,
    average_of: Annotated[
        int | None, _option("Average so many of the last saves.", _TRAINING, "--average")
    ] = None,
    seed: Annotated[int | None, _option("For all that is drawn at random.", _TRAINING)] = None,
    beam: Annotated[int | None, _option("Beam of the translator.", _TRAINING)] = None,
    alpha: Annotated[float | None, _option("Its length penalty.", _TRAINING)] = None,
    accumulate: Annotated[
        int, _option("Cut each share of a batch into so many parts: less memory.", _MACHINE)
    ] = 1,
    mixed: Annotated[
        bool | None, _option("Precision; bf16 on a GPU.", _MACHINE, "--bf16/--float32")
    ] = None,
    compiled: Annotated[
        bool | None, _option("torch.compile; on a GPU.", _MACHINE, "--compile/--no-compile")
    ] = None,
    threads: Annotated[int | None, _option("Threads; 1 for CLDR.", _MACHINE, least=1)] = None,
) -> None:
    """Train a translator. The same command again goes on after an interruption.

    For several GPUs, or several processes on a CPU, put
    [bold]torchrun --nproc-per-node N -m toolkit.translate[/bold] in place of
    [bold]python -m toolkit.translate[/bold]; the batches stay the same.
    """
    if preset not in PRESETS:
        raise Problem(f"there is no preset {preset!r}; --preset is one of {', '.join(PRESETS)}")
    given = {
        "source": source, "target": target, "pairs": pairs, "most_items": most_items,
        "vocab_size": vocab_size, "longest": longest, "limit": limit, "num_layers": num_layers,
        "d_model": d_model, "d_ff": d_ff, "num_heads": num_heads, "norm_first": norm_first,
        "dropout": dropout, "steps": steps, "batch_tokens": batch_tokens, "lr": lr,
        "warmup_steps": warmup_steps, "smoothing": smoothing, "save_every": save_every,
        "average": average_of, "seed": seed, "beam": beam, "alpha": alpha,
    }  # fmt: skip
    settings = replace(
        PRESETS[preset], **{name: value for name, value in given.items() if value is not None}
    )
    if threads is None and settings.corpus == "cldr" and not torch.cuda.is_available():
        threads = 1  # the matrices are so small that a second one waits more than it works
    if threads is not None:
        torch.set_num_threads(threads)
    say = command_line.say if int(os.environ.get("RANK", "0")) == 0 else _nothing
    if prepare_only:
        if settings.corpus != "wmt14":
            raise Problem(f"the preset {preset} needs no preparation; leave --prepare-only out")
        _check(settings)
        prepare(settings, data, out / "data", say, fresh=fresh)
        return
    outcome = train(
        settings, out, data=data, model=model, accumulate=accumulate, mixed=mixed,
        compiled=compiled, fresh=fresh, say=say,
    )  # fmt: skip
    speed = outcome.tokens_per_second
    say(
        f"{outcome.steps:,} steps in {outcome.seconds:,.0f} seconds"
        + (f", {speed:,.0f} tokens a second in this process" if speed else "")
        + f". Translate with: python -m toolkit.translate translate {out}"
    )


@app.command("translate")
def _translate_command(
    translator: Annotated[Path, typer.Argument(help="What `train` has written: folder or file.")],
    texts: Annotated[
        list[str] | None, typer.Argument(help="Sentences; without any, lines are read from stdin.")
    ] = None,
    model: _Model = MODEL,
    beam: _Beam = None,
    alpha: _Alpha = None,
    max_length: Annotated[
        int | None, typer.Option(help="Most tokens of a translation.", min=1)
    ] = None,
) -> None:
    """Translate sentences, one line of output for each."""
    loaded = load(translator, model)
    if texts:
        for line in loaded.translate(texts, beam, alpha, max_length):
            print(line)
        return
    if sys.stdin.isatty():
        command_line.say("one sentence a line; Ctrl-D ends")
    for line in sys.stdin:
        try:
            print(loaded.translate([line], beam, alpha, max_length)[0], flush=True)
        except ValueError as error:
            if not sys.stdin.isatty():
                raise
            command_line.say(str(error))


@app.command("evaluate")
def _evaluate_command(
    translator: Annotated[Path, typer.Argument(help="What `train` has written: folder or file.")],
    model: _Model = MODEL,
    data: _Data = None,
    split: Annotated[str, typer.Option(help="Part of WMT14: test or validation.")] = "test",
    limit: Annotated[int | None, typer.Option(help="So many sentences at most.", min=1)] = None,
    beam: _Beam = None,
    alpha: _Alpha = None,
) -> None:
    """BLEU (sacreBLEU, 0 to 100) and exact matches on sentences that were not trained on."""
    loaded = load(translator, model)
    settings = loaded.settings
    console = Console()
    with console.status("Translating …"):
        if settings.corpus == "cldr":
            task = _task(settings)
            task = replace(task, test=task.test[:limit])
            sources = [pair.source for pair in task.test]
            texts = loaded.translate(sources, beam, alpha, strict=False)
            found = translation_task.scores(task.test, texts)
        else:
            pairs = list(
                public_data.wmt14(split, settings.source, settings.target, folder=data, limit=limit)
            )
            texts = loaded.translate([pair.source for pair in pairs], beam, alpha)
            found = {
                "all": translation_task.Score(
                    exact_rate(texts, pairs), bleu(texts, pairs), len(pairs)
                )
            }
    table = Table(box=None, title=f"{settings.source} to {settings.target}", title_justify="left")
    for name in ("sentences", "number", "exact", "BLEU"):
        table.add_column(name, justify="left" if name == "sentences" else "right")
    for name, score in found.items():
        table.add_row(name, str(score.sentences), f"{score.exact:.1%}", f"{score.bleu:.1f}")
    console.print(table)


def _nothing(line: str) -> None:
    """What the processes behind the first say."""


def main(arguments: list[str] | None = None) -> None:
    """Run a command. What goes wrong in a foreseen way is said in one sentence, exit status 2."""
    command_line.run(app, "python -m toolkit.translate", arguments, _fail)


def _fail(text: str, status: int) -> None:
    rank = int(os.environ.get("RANK", "0"))
    if rank == 0 or (dist.is_available() and dist.is_initialized()):
        where = f" (process {rank})" if rank else ""
        command_line.fail(f"translate{where}: {text}", status)
    sys.exit(status)


if __name__ == "__main__":
    main()
