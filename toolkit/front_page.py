"""Trained models at work, as the book's first page shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import torch

from toolkit.models import Shipped
from toolkit.transformer.translation_task import parameters


def translations(translators: Sequence[Shipped], texts: Sequence[str]) -> dict[str, list[str]]:
    """Each text with what the translators make of it, in their order."""
    each = [translator.translate(texts) for translator in translators]
    return {text: list(found) for text, *found in zip(texts, *each, strict=True)}


def completions(
    gpt: Shipped, generate: Callable[..., Any], prompts: Sequence[str], *, start: int, end: int,
    most: int = 40,
) -> dict[str, str]:  # fmt: skip
    """Each prompt with its most probable continuation, token by token.

    Args:
        gpt: the model.
        generate: writes with it; of `solutions.gpt`, or one's own.
        prompts: how the texts begin.
        start, end: the tokens in front of a text and behind it.
        most: how many tokens at most.
    """
    found = {}
    for prompt in prompts:
        ids = torch.tensor([[start, *gpt.tokenizer.encode(prompt)]])
        with torch.no_grad():
            written = generate(gpt.model, ids, most, temperature=0, stop=end)
        found[prompt] = gpt.tokenizer.decode(written[0, ids.shape[1] :].tolist())
    return found


def size(shipped: Shipped) -> int:
    """How many parameters a model has."""
    return parameters(shipped.model)


def at_work(
    translated: Mapping[str, Sequence[str]], completed: Mapping[str, str], captions: Sequence[str]
) -> str:
    """The page's two panels: source and translations; prompts and, set off, what follows."""
    left = "".join(
        f"<dt>{escape(source)}</dt>" + "".join(f"<dd>{escape(text)}</dd>" for text in texts)
        for source, texts in translated.items()
    )
    right = "\n".join(
        f"{escape(prompt)}<b>{escape(text)}</b>" for prompt, text in completed.items()
    )
    heads = [f"<p>{escape(caption)}</p>" for caption in captions]
    return (
        '<div class="course-at-work">'
        f"<section>{heads[0]}<dl>{left}</dl></section>"
        f"<section>{heads[1]}<samp>{right}</samp></section>"
        "</div>"
    )
