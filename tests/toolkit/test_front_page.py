"""The first page's panels: what models make of texts, and that it is shown as text."""

from __future__ import annotations

import pytest
import torch

from solutions.gpt import END, START, generate
from toolkit import front_page
from toolkit.models import load


def test_each_text_stands_with_its_translations_in_order() -> None:
    found = front_page.translations(
        [load("transformer-en-zh"), load("transformer-en-de")], ["March 5, 2021", "12.5%"]
    )
    assert found["March 5, 2021"] == ["2021年3月5日", "5. März 2021"]
    assert list(found) == ["March 5, 2021", "12.5%"]
    assert all(len(texts) == 2 for texts in found.values())


def test_a_completion_is_what_follows_the_prompt_each_time_the_same() -> None:
    gpt, prompt = load("gpt"), "def __getitem__(self, key):"
    first, second = (
        front_page.completions(gpt, generate, [prompt], start=START, end=END) for _ in range(2)
    )
    assert first == second == {prompt: "\n    return self.data[key]"}
    short = front_page.completions(gpt, generate, [prompt], start=START, end=END, most=2)
    assert first[prompt].startswith(short[prompt])
    assert len(gpt.tokenizer.encode(short[prompt])) <= 2


def test_a_models_size_counts_each_parameter_once() -> None:
    gpt = load("gpt")
    assert front_page.size(gpt) == sum(p.numel() for p in gpt.model.parameters()) > 900_000
    assert all(p.dtype == torch.float32 for p in gpt.model.parameters())


@pytest.mark.parametrize("text", ["a < b & c", "<script>"])
def test_what_models_write_is_shown_as_text(text: str) -> None:
    page = front_page.at_work({text: [text, text]}, {text: text}, [text, text])
    assert "<script>" not in page
    assert "a < b" not in page
    assert page.count("<dd>") == 2
    assert page.count("<b>") == page.count("<samp>") == 1
