"""Pictures of the page on sampling."""

from __future__ import annotations

import torch

import solutions.gpt as parts
from toolkit.gpt import sampling_pictures as pictures


def test_cuts_are_applied_in_the_order_of_sample_token() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    both = pictures.cut(logits, parts, 1.0, 2, 0.5)
    assert both.tolist() == [1, 0, 0, 0]
    assert (pictures.cut(logits, parts, 1.0, None, 0.5) > 0).sum() == 2


def test_the_page_of_a_distribution_names_tokens_and_what_is_left() -> None:
    names = lambda ids: [f"token{i}" for i in ids]  # noqa: E731
    logits = {"here": torch.tensor([0.5, 0.25, 0.125, 0.125]).log()}
    page = pictures.reshaped(
        logits, names, parts, temperatures=(0.5, 1.0), ks=(2,), ps=(0.9,), shown=3
    )
    said = []

    def look(box) -> None:
        said.append(str(getattr(box, "value", "")))
        for child in getattr(box, "children", ()):
            look(child)

    look(page)
    frames = [text for text in said if "can be drawn" in text]
    assert len(frames) == 2 * 2 * 2
    assert any("2 of 4 tokens" in text and "0.667" in text for text in frames)
    assert all("token0" in text and "1 others" in text for text in frames)


def test_outcomes_show_every_seed_of_both_models() -> None:
    found = {"a": torch.tensor([0.5, 0.7]), "b": torch.tensor([0.9])}
    figure = pictures.outcomes(["a", "b"], {"large": found, "small": found}, found, 8.0)
    left, right = figure.axes
    dots = [line.get_xdata() for line in left.lines if line.get_marker() == "o"]
    assert sum(len(xs) for xs in dots) == 6
    assert [label.get_text() for label in left.get_yticklabels()] == ["a", "b"]
    assert sum(len(line.get_xdata()) for line in right.lines if line.get_marker() == "o") == 3
