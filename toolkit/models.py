"""The trained models that come with the book: load one, and use it.

    bert = load("bert")
    bert.model, bert.tokenizer, bert.config
    fine_tuning.fill_mask(bert.model, bert.tokenizer, "Return the [MASK] of items.")

    translator = load("transformer-en-zh")
    translator.translate(["March 5, 2021 and 13 days"])

A folder of `models/` holds weights (float16, cast to float32 here), sizes, the tokenizer, the
curves of the training, what the model answered on the way, held-out text and a card. The classes
come from the reference, or from a module or file of one's own with the same names.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from toolkit import translate
from toolkit.pretrain import bert, common, gpt, translator

FOLDER = Path(__file__).resolve().parents[1] / "models"
METRICS = "metrics.json"
# name: (module of `toolkit.pretrain`, kind of translator, language it translates into)
KINDS: dict[str, tuple[ModuleType, str | None, str | None]] = {
    "bert": (bert, None, None),
    "gpt": (gpt, None, None),
    "recurrent-en-zh": (translator, "recurrent", "zh"),
    "transformer-en-de": (translator, "transformer", "de"),
    "transformer-en-zh": (translator, "transformer", "zh"),
}


@dataclass(frozen=True)
class Shipped:
    """A trained model and what belongs to it.

    name: one of `KINDS`. folder: where its files lie. config: its sizes.
    tokenizer: of its text: `docstrings.Pieces`, `pretrain.gpt.Tokens` or
    `pretrain.translator.Words`. model: in eval mode. module: where its classes come from.
    """

    name: str
    folder: Path
    config: dict[str, Any]
    tokenizer: Any = field(repr=False)
    model: nn.Module = field(repr=False)
    module: Any = field(repr=False)

    @property
    def metrics(self) -> dict[str, float]:
        """What the card says of it."""
        return json.loads((self.folder / METRICS).read_text(encoding="utf-8"))

    @property
    def curves(self) -> list[dict[str, str]]:
        """The rows of `training.csv`: model, step, and numbers, "" where there is none."""
        with (self.folder / common.CURVES).open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    @property
    def answers(self) -> dict[str, Any]:
        """What BERT and GPT answered to ten fixed inputs after 1, 10 and 100 % of the steps."""
        return json.loads((self.folder / common.ANSWERS).read_text(encoding="utf-8"))

    def held_out(self) -> list[Any]:
        """Text it was not trained on: documents (BERT), functions (GPT) or pairs."""
        part, _, _ = KINDS[self.name]
        return part.read_held_out(self.folder / part.HELD_OUT)

    def translate(self, texts: Sequence[str]) -> list[str]:
        """Translations of texts, by greedy search.

        Raises:
            ValueError: it is no translator, or a text has words that it does not know.
        """
        part, kind, _ = KINDS[self.name]
        if part is not translator:
            raise ValueError(f"{self.name} is no translator; {', '.join(_translators())} are")
        return translator.translate(kind, self.model, self.module, self.tokenizer, texts)


def _translators() -> list[str]:
    return [name for name, (part, _, _) in KINDS.items() if part is translator]


def default_module(name: str) -> str:
    """The reference module that has a model's classes."""
    part, kind, _ = KINDS[name]
    return part.MODEL if kind is None else translator.MODEL[kind]


def needed(name: str) -> tuple[str, ...]:
    """What a module must have to train a model."""
    part, kind, _ = KINDS[name]
    return part.NEEDED if kind is None else translator.NEEDED[kind]


def load(name: str, module: str | None = None, folder: str | Path | None = None) -> Shipped:
    """Load a trained model.

    Args:
        name: one of `KINDS`.
        module: a module such as solutions.bert, or a .py file, that has the classes; None for the
            reference.
        folder: where the model lies; None for the one that comes with the book.

    Raises:
        ValueError: an unknown name, a module without the classes, or weights that don't fit them.
        FileNotFoundError: the folder does not hold such a model.
    """
    if name not in KINDS:
        raise ValueError(f"there is no model {name!r}; there are {', '.join(KINDS)}")
    where = FOLDER / name if folder is None else Path(folder)
    if not (where / common.WEIGHTS).is_file():
        raise FileNotFoundError(
            f"there is no model in {where}; train one with: python -m toolkit.pretrain {name}"
        )
    part, kind, _ = KINDS[name]
    classes = translate.load_module(module or default_module(name), needed(name)[:1])
    config = json.loads((where / common.CONFIG).read_text(encoding="utf-8"))
    tokens = where / common.TOKENIZER
    with torch.random.fork_rng([]):  # the first weights are drawn and then replaced
        if part is translator:
            tokenizer = translator.Words.load(tokens, (config["source"], config["target"]))
            model = translator.make(kind, classes, config)
        elif part is gpt:
            tokenizer, model = gpt.Tokens.load(tokens), gpt.make(classes, config)
        else:
            tokenizer, model = bert.pieces(tokens), bert.make(classes, config)
    common.load_weights(where / common.WEIGHTS, model)
    return Shipped(name, where, config, tokenizer, model.eval(), classes)


# --------------------------------------------------------------------------- metrics


def measure(shipped: Shipped, most: int | None = None) -> dict[str, float]:
    """The metrics that are measured on the held-out text alone, the same each time.

    Args:
        most: pairs of sentences, functions or sentences to translate at most.

    Returns:
        BERT: losses in nats and accuracies of masked pieces and of next sentences, of runs of
        sentences and ("single_…") of single ones. GPT: bits_per_byte. Translators: exact, the
        share of sentences that are right in every character.
    """
    part, kind, _ = KINDS[shipped.name]
    held = shipped.held_out()
    if part is translator:
        pairs = held[:most]
        return {"exact": translator.exact(
            kind, shipped.model, shipped.module, shipped.tokenizer, pairs
        )}  # fmt: skip
    if part is gpt:
        return {"bits_per_byte": gpt.bits_per_byte(shipped.model, held[:most], shipped.tokenizer)}
    documents = bert.encode(held, shipped.tokenizer)
    found = {}
    for prefix, single in (("", False), ("single_", True)):
        made = bert.evaluate(
            shipped.model, documents, shipped.module, len(shipped.tokenizer), most=most,
            single=single,
        )  # fmt: skip
        found |= {prefix + name: value for name, value in made.items()}
    return found
