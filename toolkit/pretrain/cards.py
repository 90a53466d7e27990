"""The cards of the shipped models, written from what was measured."""

from __future__ import annotations

import platform
from typing import Any

import torch

from toolkit.bert import fine_tuning
from toolkit.pretrain import bert, gpt, translator

_PYTHON = (
    "Text and code of the standard library of Python {version}, under the "
    "[PSF License](https://docs.python.org/3/license.html)"
)
_CLDR = (
    "made by Babel from the Unicode CLDR, under the "
    "[Unicode License v3](https://www.unicode.org/license.txt)"
)
_NAMES = {
    "counting_share": "masked tokens, by the most frequent token",
    "mlm_accuracy": "masked tokens predicted correctly",
    "mlm_loss": "loss of masked tokens, nats",
    "nsp_accuracy": "next sentence predicted correctly",
    "nsp_loss": "loss of the next sentence, nats",
    "single_mlm_accuracy": "pairs of single sentences: masked tokens predicted correctly",
    "single_mlm_loss": "pairs of single sentences: loss of masked tokens, nats",
    "single_nsp_accuracy": "pairs of single sentences: next sentence predicted correctly",
    "single_nsp_loss": "pairs of single sentences: loss of the next sentence, nats",
    "bits_per_byte": "bits per byte",
    "counting_bits": "the same by counting pairs of tokens",
    "bzip2_bits": "by bzip2 with the training text in front",
    "xz_bits": "by xz with the training text in front",
    "xz_alone_bits": "by xz, each function by itself after the training text",
    "samples_finished": "samples at temperature 0.7 that reach END",
    "samples_compiles": "of these, compiled by Python",
    "samples_novel": "samples that are no function of the training part",
    "samples_copied": "longest run copied from training, tokens",
    "exact": "sentences right in every character",
    "aligned_share": "target tokens whose largest weight lies on their source token",
}


def card(shipped: Any) -> str:
    """The card of a model: data, training, metrics, limits, in Markdown."""
    name, kind = shipped.name, shipped.name.split("-")[0]
    if kind in ("bert", "gpt"):
        plan = {"bert": bert.PLAN, "gpt": gpt.PLAN}[kind]["cpu"]
    else:
        plan = translator.PLAN[kind]["cpu"]
    size = sum(p.numel() for p in {id(p): p for p in shipped.model.parameters()}.values())
    sizes = ", ".join(f"{k} {v}" for k, v in shipped.config.items() if k not in ("kind",))
    body = {"bert": _bert, "gpt": _gpt, "transformer": _transformer, "recurrent": _recurrent}
    data, about, limits = body[kind](shipped)
    minutes = shipped.metrics.get("training_minutes")
    together = {1: "", 2: ", both models of the run", 3: ", the three models of the run"}
    run = together[len({row.get("model") for row in shipped.curves})]
    time = f" It takes about {minutes:.0f} minutes of one core{run}." if minutes else ""
    numbers = "\n".join(_rows(shipped.metrics))
    steps = ", ".join(f"{k.replace('_', ' ')} {v:,}" for k, v in plan.items())
    return f"""# {name}

{about}

| | |
|---|---|
| parameters | {size:,} |
| sizes | {sizes} |
| files | `model.safetensors` (float16, cast to float32 when loaded), `config.json`, \
`tokenizer.json` (read by the library `tokenizers`), `training.csv`, `{_held(kind)}`\
{", `answers.json`" if kind in ("bert", "gpt") else ""}, `metrics.json` |

Load it with `toolkit.models.load("{name}")`.

## Data

{data}

## Training

```
python -m toolkit.pretrain {name} --full
```

On a CPU: {steps}.{time} Trained with torch {torch.__version__.split("+")[0]} and Python \
{platform.python_version()}. The curves are in `training.csv`.

## Metrics

On the held-out text `{_held(kind)}`, unless the row says otherwise. A new training is to come \
within 0.03 of the shares, 0.05 of the bits and 0.15 of the losses.

| metric | value |
|---|---|
{numbers}
{_extra(shipped, kind)}
## Limits

{limits}
"""


def _held(kind: str) -> str:
    return translator.HELD_OUT if kind in ("transformer", "recurrent") else bert.HELD_OUT


def _rows(metrics: dict[str, float]) -> list[str]:
    shown = [f"| {_NAMES[k]} | {_number(k, v)} |" for k, v in metrics.items() if k in _NAMES]
    for task in ("module", "pair", "span", "tagging"):
        key = f"task_{task}_"
        if key + "tuned" in metrics:
            tuned, random, bag = (metrics[key + way] for way in ("tuned", "random", "bag"))
            spread = metrics[key + "tuned_spread"]
            shown.append(
                f"| fine-tuned on «{task}», {fine_tuning.LABELLED[task]} examples, "
                f"{fine_tuning.TUNE_STEPS[task]} steps (mean of 3 seeds); the same from random "
                f"weights; bag of words | "
                f"{tuned:.1%} ± {spread:.1%}; {random:.1%}; {bag:.1%} |"
            )
    for key, value in metrics.items():
        if key.startswith("head_"):
            what = key.removeprefix("head_").replace("_", " ")
            shown.append(f"| largest mean weight of a head on: {what} | {value:.2f} |")
    return shown


def _number(name: str, value: float) -> str:
    if name.endswith(("accuracy", "share", "exact", "finished", "compiles", "novel")):
        return f"{value:.1%}"
    return f"{value:.0f}" if name.endswith("copied") else f"{value:.3f}"


def _extra(shipped: Any, kind: str) -> str:
    """Other models of the same training, from the curves."""
    if kind == "recurrent":
        return _by_length(shipped)
    column, what = {
        "gpt": ("held_out_bits_per_byte", "bits per byte of the validation modules"),
        "transformer": ("averaged_exact", "exact sentences, after averaging"),
    }.get(kind, ("", ""))
    last = {row["model"]: row[column] for row in shipped.curves if column and row.get(column)}
    if len(last) < 2:
        return ""
    lines = "\n".join(f"| {name} | {float(value):.3f} |" for name, value in last.items())
    return f"\nThe models of the same run, at its end:\n\n| model | {what} |\n|---|---|\n{lines}\n"


def _by_length(shipped: Any) -> str:
    """What both recurrent models reach, by the length of the source."""
    keys = ["averaged_exact", *(f"exact_{length}" for length in translator.LENGTHS)]
    keys += ["bleu", *(f"bleu_{length}" for length in translator.LENGTHS)]
    lines = [
        f"| {row['model']} | {int(float(row['parameters'])):,} | "
        + " | ".join(f"{float(row[k]):{'.1f' if 'bleu' in k else '.1%'}}" for k in keys)
        + " |"
        for row in shipped.curves
        if row["bleu"]
    ]
    rates, tried = translator.LR_SEARCH["recurrent"], []
    for row in translator.LR_SEARCH.values():
        tried.append(", ".join(f"{loss:.3f}" for loss in row.values()))
    heads = [f"{what}, {part}" for what in ("exact", "BLEU") for part in ("all", "short", "middle",
             "long")]  # fmt: skip
    return "\n".join(
        (
            "",
            "Both models of this training at its end; short, middle and long are thirds of the "
            "held-out sentences by the length of the source:",
            "",
            f"| model | parameters | {' | '.join(heads)} |",
            "|---" * (2 + len(heads)) + "|",
            *lines,
            "",
            "Their learning rates, "
            + ", ".join(f"{lr:g}" for lr in rates)
            + ", were compared after 800 steps by the loss of 100 sentences that are neither in "
            f"training nor in the held-out file: {tried[0]} for the shipped model, {tried[1]} with "
            "a fixed context. The shipped model keeps 0.004, at which it had more of the 100 exact "
            "than at 0.008.",
            "",
        )
    )


def _bert(shipped: Any) -> tuple[str, str, str]:
    data = (
        _PYTHON.format(version=platform.python_version()) + ": docstrings with signatures, comments"
        " and the topics of `help`, of all modules (`toolkit.corpora.library_prose`). "
        "Docstrings that the chapter's tasks hold out are held out here; a sentence that is held "
        "out is nowhere in training. Sentences are joined to runs, as in the paper."
    )
    about = (
        "The BERT of the book (`solutions.bert.BertForPreTraining`), pre-trained on masked tokens "
        "and next sentences. `answers.json` holds what it answered to "
        "ten fixed inputs after 1, 10 and 100 % of its training."
    )
    limits = (
        "It knows the English of Python's documentation, in lower case, and little else. What it "
        "says of a function is not knowledge of what the function does. 128 positions."
    )
    return data, about, limits


def _gpt(shipped: Any) -> tuple[str, str, str]:
    data = (
        _PYTHON.format(version=platform.python_version()) + ": functions and methods of at most 280"
        " characters of all modules, and the inside of longer ones, without docstrings, comments "
        "and decorators, as `ast.unparse` writes them. Modules are held out whole "
        "(`toolkit.corpora.code_corpus.HELD_OUT`)."
    )
    about = (
        "The GPT of the book (`solutions.gpt.GPT`), which writes short Python functions. "
        "`answers.json` holds how it went on from ten fixed beginnings after 1, 10 and 100 % of "
        "its training; two smaller sizes were trained in the same run, their curves are in "
        "`training.csv`."
    )
    limits = (
        "What it writes looks like the standard library and compiles most of the time; it was "
        "never run, and does not do what its name says. Functions longer than 128 tokens are "
        "unknown to it. What it writes may be copied from the library, see the longest run above."
    )
    return data, about, limits


def _pairs(shipped: Any) -> str:
    return (
        f"{translator.PAIRS:,} pairs of sentences of one to three items (dates, times, quantities, "
        f"prices, percentages, countries, languages), {_CLDR}. No sentence of the held-out file is "
        "in training."
    )


def _transformer(shipped: Any) -> tuple[str, str, str]:
    about = (
        f"The Transformer of the book (`solutions.transformer.make_model`), translating English to "
        f"{_language(shipped)} by the recipe of Vaswani et al. (2017): one matrix for both "
        "embeddings and the output, warm-up and inverse square root, label smoothing 0.1, the "
        "average of the last five weights. Unlike there, gradients are clipped to norm 1. "
    )
    if shipped.config["norm_first"]:
        about += (
            "It is the pre-norm one of two: with post-norm, as in the paper, fewer than 99 percent "
            "of the held-out sentences were exact. That choice was made on the sentences of the "
            "table below, which flatters its figure."
        )
    else:
        about += "Post-norm, as in the paper; the same with pre-norm was trained beside it."
    return _pairs(shipped), about, _LIMITS


def _recurrent(shipped: Any) -> tuple[str, str, str]:
    about = (
        f"A recurrent translator from English to {_language(shipped)} with the attention of "
        "Bahdanau et al. (2015), `solutions.attention.AttentionDecoderStep` between a "
        "bidirectional GRU and the output. With one fixed context in its place (Cho et al. 2014) "
        "about as large a model is trained beside it; its weights are not kept."
    )
    return _pairs(shipped), about, _LIMITS


def _language(shipped: Any) -> str:
    return {"zh": "Chinese", "de": "German"}[shipped.config["target"]]


_LIMITS = (
    "It translates these items and nothing else, and refuses words that no training sentence had."
)
