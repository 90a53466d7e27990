"""The GPT that is shipped, and two smaller ones: functions of the whole standard library.

The chapter's corpus has the short functions of some hundred modules; this one has those of all.
Half of the blocks of training begin where a short function begins, as the texts do that the model
will write; the others come from the inside of longer functions, which teach it the language and the
names without teaching it to begin what its context can't hold.
"""

from __future__ import annotations

import bz2
import functools
import lzma
import math
import random
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit import translate
from toolkit.corpora import code_corpus, library_prose
from toolkit.corpora.code_corpus import END, NAMES, PAD, SPECIAL, START, Corpus, Function
from toolkit.gpt import measures
from toolkit.pretrain import common
from toolkit.pretrain.common import Job

MODEL = "solutions.gpt"
NEEDED = ("GPT", "init_weights", "decay_groups", "cosine_lr", "generate")
HELD_OUT = "held_out.txt"
HELD_OUT_SIZE = 90_000  # bytes of the file
BREAK = "\n\f\n"  # stands between two functions of the file
LONGEST = 4000  # characters of a longer function
LENGTH = 128  # tokens of a document at most, its two signs counted
VOCABULARY = 1024
_SHAPE = {"max_length": LENGTH, "dropout": 0.0}
SIZES = {
    "cpu": {
        "gpt-small": {"d_model": 32, "num_layers": 2, "num_heads": 2},
        "gpt-medium": {"d_model": 64, "num_layers": 3, "num_heads": 4},
        "gpt": {"d_model": 128, "num_layers": 4, "num_heads": 4},
    },
    "gpu": {
        "gpt-small": {"d_model": 64, "num_layers": 3, "num_heads": 4},
        "gpt-medium": {"d_model": 128, "num_layers": 4, "num_heads": 4},
        "gpt": {"d_model": 256, "num_layers": 4, "num_heads": 8, "dropout": 0.1},
    },
}
PLAN = {
    "cpu": {"steps": 5000, "batch": 12, "lr": 4e-3, "warmup_steps": 200, "weight_decay": 0.1},
    "gpu": {"steps": 6000, "batch": 48, "lr": 3e-3, "warmup_steps": 300, "weight_decay": 0.1},
}
# What the model goes on from, at temperature 0, after 1, 10 and 100 percent of its training.
PROMPTS = (
    "def close(self):",
    "def __repr__(self):",
    "def __init__(self, name, value=None):",
    "def __len__(self):",
    "def get(self, key, default=None):",
    "def is_empty(self):",
    "def __exit__(self, *args):",
    "def read(self, size=-1):",
    "def __eq__(self, other):",
    "def add(self, item):",
)
ANSWER = 60  # tokens of an answer at most

# --------------------------------------------------------------------------- tokens and text


class Tokens:
    """Byte-pair encoding in a file `tokenizer.json`, with the interface of `code_corpus.Tokens`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        # A text may say «[END]»; only a document's own signs are special.
        tokenizer.encode_special_tokens = True

    @classmethod
    def learn(cls, texts: Iterable[str], size: int = VOCABULARY) -> Tokens:
        """Learn the merges from texts; words are cut as in GPT-2, the bytes are the alphabet."""
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size, special_tokens=list(NAMES), show_progress=False,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        )  # fmt: skip
        tokenizer.train_from_iterator(texts, trainer)
        return cls(tokenizer)

    @classmethod
    def load(cls, path: Path) -> Tokens:
        """Read a `tokenizer.json`."""
        return cls(Tokenizer.from_file(str(path)))

    def save(self, path: Path) -> None:
        """Write it so that the library `tokenizers` reads it."""
        common.write_text(path, self.tokenizer.to_str(pretty=False))

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """The ids of a text, none of them special."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, special ones left out; bytes that are no text become "�"."""
        return self.tokenizer.decode([int(i) for i in ids if i >= SPECIAL])

    def names(self, ids: Iterable[int]) -> list[str]:
        """Each id so that it can be read: special ones by name, white space as signs."""
        return [
            NAMES[i] if i < SPECIAL else self.decode([i]).replace("\n", "⏎").replace(" ", "·")
            for i in map(int, ids)
        ]


@functools.cache
def functions() -> tuple[Function, ...]:
    """The short functions of all modules of the library, in an order drawn once."""
    found = list(code_corpus.read(library_prose.modules()))
    random.Random(0).shuffle(found)
    return tuple(found)


@functools.cache
def long_functions() -> tuple[Function, ...]:
    """The functions to train on that are longer than those of `functions`, their modules' order."""
    found = code_corpus.read(library_prose.modules(), LONGEST)
    return tuple(f for f in found if f.split == "train" and len(f.text) > code_corpus.LONGEST)


def corpus(tokens: Tokens, length: int = LENGTH) -> Corpus:
    """The functions that a context of `length` tokens holds, for the tools of `measures`."""
    kept = tuple(f for f in functions() if len(tokens.encode(f.text)) + 2 <= length)
    return Corpus(kept, tokens, length)


def held_out_text(made: Corpus, size: int = HELD_OUT_SIZE) -> str:
    """Functions of the modules held out, with `BREAK` between two."""
    texts, total = [], 0
    for function in made.of("test"):
        total += len(function.text) + len(BREAK)
        if total > size:
            break
        texts.append(function.text)
    return BREAK.join(texts)


def read_held_out(path: Path) -> list[str]:
    """The functions of a file that `held_out_text` made."""
    return path.read_text(encoding="utf-8").split(BREAK)


# --------------------------------------------------------------------------- training


def make(module: Any, config: dict[str, Any]) -> nn.Module:
    """A model of the given sizes."""
    model = module.GPT(**config)
    return translate.on_fast_path(module, model)


def train(job: Job) -> None:
    """Train all three sizes, and write everything but the card."""
    kind = "gpu" if job.large else "cpu"
    plan = PLAN[kind] | ({"steps": job.steps} if job.steps else {})
    path = job.out / common.TOKENIZER
    if not path.exists():
        learned = Tokens.learn(f.text for f in functions() if f.split == "train")
        learned.save(path)
        common.write_text(job.out / HELD_OUT, held_out_text(corpus(learned)))
    made = corpus(Tokens.load(path))
    documents = made.documents("train")
    job.say(f"gpt: {sum(map(len, documents)):,} tokens in {len(documents):,} functions")
    curves = common.Curves(job.out / "training" / "curves.jsonl")
    for name, sizes in reversed(SIZES[kind].items()):  # the one that is shipped first
        config = {"vocab_size": len(made.tokens)} | _SHAPE | sizes
        model = measures.start(make(job.module, config), job.module)
        watch = common.Watch(job, name, plan["steps"], model, curves)
        _fit(watch, documents, made, plan)
        if name == "gpt":
            common.write_json(job.out / common.CONFIG, config)
            common.finish(
                watch,
                "prompts",
                PROMPTS,
                functools.partial(answers, model, made.tokens, job.module),
            )
    curves.write(job.out / common.CURVES)


def _fit(
    watch: common.Watch, documents: Sequence[list[int]], made: Corpus, plan: dict[str, Any]
) -> None:
    job, parts, model = watch.job, watch.job.module, watch.model
    length, where = model.max_length, job.preset.device
    stream = torch.tensor([i for d in documents for i in d]).to(where)  # (M,)
    lengths = torch.tensor([len(d) for d in documents])
    starts = (lengths.cumsum(0) - lengths).to(where)  # (documents,), where each begins
    starts = starts[starts < len(stream) - length]
    inside = [i for f in long_functions() for i in (*made.tokens.encode(f.text), END)]
    inside = torch.tensor(inside, dtype=torch.int64).to(where)  # (L,), without any START
    offsets = torch.arange(length + 1, device=where)
    validation = [f.text for f in made.of("validation")]

    def loss(step: int) -> tuple[Tensor, int]:
        half = plan["batch"] // 2
        chosen = torch.randint(len(starts), (plan["batch"] - half,)).to(where)
        places = torch.randint(len(inside) - length, (half, 1)).to(where)
        block = torch.cat(
            [stream[starts[chosen].unsqueeze(1) + offsets], inside[places + offsets]]
        )  # (B, T + 1)
        logits = model(block[:, :-1])  # (B, T, V)
        value = F.cross_entropy(logits.flatten(0, 1).float(), block[:, 1:].flatten())
        watch.losses(loss=value)
        return value, block[:, 1:].numel()

    def check() -> dict[str, float]:
        return {"held_out_bits_per_byte": bits_per_byte(model, validation, made.tokens)}

    def optimiser(_: Any, lr: float) -> torch.optim.Optimizer:
        groups = parts.decay_groups(model, plan["weight_decay"])
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8, fused=True)

    warmup = min(plan["warmup_steps"], max(1, watch.steps // 10))
    common.fit(
        watch, loss, check, lr=plan["lr"], optimiser=optimiser, seed=0,
        schedule=lambda step: parts.cosine_lr(step + 1, 1.0, warmup, watch.steps),
    )  # fmt: skip


# --------------------------------------------------------------------------- metrics


@torch.no_grad()
def bits_per_byte(model: nn.Module, texts: Sequence[str], tokens: Tokens) -> float:
    """Bits that a text costs, from START to END, for each of its bytes and one for its end.

    Args:
        model: ids (B, T) -> logits (B, T, V).
    """
    where = next(model.parameters()).device
    rows = sorted(([START, *tokens.encode(text), END] for text in texts), key=len)
    mode = model.training
    model.eval()
    total = 0.0
    for begin in range(0, len(rows), 32):
        part = rows[begin : begin + 32]
        longest = max(map(len, part))
        ids = torch.tensor([row + [PAD] * (longest - len(row)) for row in part], device=where)
        logits = model(ids[:, :-1]).float()  # (B, T, V)
        total += float(
            F.cross_entropy(
                logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD, reduction="sum"
            )
        )
    model.train(mode)
    return total / math.log(2) / sum(len(text.encode()) + 1 for text in texts)


def counted(train: Sequence[str], texts: Sequence[str], tokens: Tokens) -> float:
    """`bits_per_byte` of counting pairs of tokens in the training part (Witten and Bell)."""
    words = len(tokens)
    stream = torch.tensor([i for t in train for i in (START, *tokens.encode(t), END)])
    single = (torch.bincount(stream, minlength=words) + 1).double()
    single = single / single.sum()  # (V,)
    pairs = torch.bincount(stream[:-1] * words + stream[1:], minlength=words * words)
    pairs = pairs.view(words, words).double()  # (V, V)
    kinds = (pairs > 0).sum(1, keepdim=True).clamp(min=1)  # (V, 1)
    table = ((pairs + kinds * single) / (pairs.sum(1, keepdim=True) + kinds)).log2()
    bits = 0.0
    for text in texts:
        row = torch.tensor([START, *tokens.encode(text), END])
        bits -= float(table[row[:-1], row[1:]].sum())
    return bits / sum(len(text.encode()) + 1 for text in texts)


def compressed(train: Sequence[str], texts: Sequence[str], alone: int = 100) -> dict[str, float]:
    """Bits for each byte of texts by bzip2 and xz, with the training text in front of them.

    bzip2 looks back 900,000 bytes at most, so it gets as much of the end of the training text as
    fits into one block with the texts; what it makes of the whole is never better. Both also learn
    from the texts as they go, which a model with fixed weights does not.

    Args:
        alone: so many of the texts are also compressed one by one, each right after the training
            text, as a model reads them.

    Returns:
        "bzip2", "xz", and "xz_alone". (bzip2 has no such number: a little more text changes how it
        sorts and codes the whole, by more than a function is long.)
    """
    front, text = ("\n".join(part).encode() + b"\n" for part in (train, texts))
    near = front[-max(1, 880_000 - len(text)) :]

    def bzip2(data: bytes) -> int:
        return len(bz2.compress(data, 9))

    def xz(data: bytes) -> int:
        return len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))

    found = {
        name: 8 * (size(before + text) - size(before)) / len(text)
        for name, size, before in (("bzip2", bzip2, near), ("xz", xz, front))
    }
    few = [text.encode() + b"\n" for text in texts[:alone]]

    def stream(data: bytes) -> int:  # the same method without padding to words of four bytes
        return len(lzma.compress(data, lzma.FORMAT_ALONE, preset=9 | lzma.PRESET_EXTREME))

    more = sum(stream(near + one) for one in few) - len(few) * stream(near)
    return found | {"xz_alone": 8 * more / sum(map(len, few))}


def judge_samples(
    model: nn.Module, made: Corpus, parts: Any, count: int = 200, temperature: float = 0.7,
    seed: int = 0,
) -> dict[str, float]:  # fmt: skip
    """What the model writes after START.

    Returns:
        finished: share that reaches END within the context; compiles: share of these that Python
        would compile; novel: share of all that is no function of the training part; copied:
        tokens of the longest run of all samples that stands in a training function, short or long.
    """
    samples = measures.sample(model, made, parts, count, temperature=temperature, seed=seed)
    ended = [s for s in samples if s.finished]
    known = {f.text for f in made.of("train")}
    rows = [made.tokens.encode(f.text) for f in (*made.of("train"), *long_functions())]
    good = [measures.compiles(s.text) for s in ended]
    return {
        "finished": len(ended) / len(samples),
        "compiles": statistics.fmean(good) if good else 0.0,
        "novel": statistics.fmean(s.text not in known for s in samples),
        "copied": longest_copy([s.ids for s in samples], rows),
    }


def longest_copy(texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]]) -> int:
    """Tokens of the longest run of any text that stands in a source."""

    def occurs(length: int) -> bool:
        # A token as a character: runs are strings, which are cut and hashed fast.
        looked = {row[i : i + length] for row in ours for i in range(len(row) - length + 1)}
        return any(
            row[i : i + length] in looked for row in theirs for i in range(len(row) - length + 1)
        )

    ours, theirs = ["".join(map(chr, t)) for t in texts], ["".join(map(chr, t)) for t in sources]
    low, high = 0, max(map(len, ours), default=0)  # a run of `low` occurs, none beyond `high`
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if occurs(middle) else (low, middle - 1)
    return low


# --------------------------------------------------------------------------- answers


@torch.no_grad()
def answers(model: nn.Module, tokens: Tokens, parts: Any) -> list[str]:
    """What the model goes on with after each of `PROMPTS`, the most probable token each time."""
    write = getattr(parts, "fast_generate", None) or parts.generate
    found = []
    for prompt in PROMPTS:
        ids = torch.tensor([[START, *tokens.encode(prompt)]])  # (1, T)
        row = write(model, ids, ANSWER, temperature=0, stop=END)[0, ids.shape[1] :].tolist()
        row = row[: row.index(END)] if END in row else row
        found.append(tokens.decode(row).replace("�", "?"))
    return found
