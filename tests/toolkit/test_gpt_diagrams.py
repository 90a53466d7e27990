"""Diagrams of the chapter on GPT say what models, masks and rows of tokens say."""

from __future__ import annotations

import functools

import pytest
from matplotlib.figure import Figure

from solutions import gpt
from tests.toolkit.drawings import Drawings, words
from toolkit import gpt_diagrams as drawn

PROMPT, RESPONSE = ["add", "two"], ["a", "+", "b"]


def model(*, norm_first: bool) -> gpt.GPT:
    return gpt.GPT(30, 8, 16, num_layers=3, num_heads=2, norm_first=norm_first)


def draw(name: str) -> Figure:
    if name == "classifier":
        return drawn.gpt1(gpt.GPTClassifier(model(norm_first=False), 3))
    if name == "pre-norm":
        return drawn.gpt1(model(norm_first=True))
    if name == "row":
        return drawn.prompt_and_response_row(PROMPT, RESPONSE)
    return getattr(drawn, name)()


DRAWINGS = {
    name: functools.partial(draw, name)
    for name in (
        "classifier", "pre-norm", "row", "three_blocks", "context_of_blocks",
        "task_inputs", "cache_steps",
    )
}  # fmt: skip


class TestDrawings(Drawings):
    drawings = DRAWINGS


def names(figure: Figure) -> list[str]:
    return [p.get_gid() for ax in figure.axes for p in ax.patches if p.get_gid()]


def test_only_the_decoder_reads_a_memory_and_only_the_encoder_sees_what_follows() -> None:
    found = names(draw("three_blocks"))
    assert [name for name in found if name.startswith("memory>")] == ["memory>decoder.sub1:memory"]
    later = {
        name.split(":")[1]: name.split(":")[4]
        for name in found
        if name.startswith("mask:") and name.split(":")[2:4] == ["0", "4"]
    }
    assert later == {"encoder.0": "1", "decoder.0": "0", "decoder.1": "1", "gpt.0": "0"}
    own = {
        n.split(":")[4] for n in found if n.startswith("mask:") and n.split(":")[2:4] == ["2"] * 2
    }
    assert own == {"1"}


def test_the_model_is_drawn_with_its_sizes_and_both_heads() -> None:
    texts = "\n".join(words(draw("classifier")))
    for part in ("30 × 16", "8 × 16", "2 heads of 8", "16 → 64 → 16", "3 ×", "16 → 30", "16 → 3"):
        assert part in texts
    assert "features>task:" in names(draw("classifier"))
    assert "features>task:" not in names(draw("pre-norm"))


def test_the_norm_stands_where_the_model_has_it() -> None:
    post, pre = names(draw("classifier")), names(draw("pre-norm"))
    assert {"attention>add0:", "add0>norm0:", "norm0>add1:skip"} <= set(post)
    assert {"norm0>attention:", "attention>add0:", "add0>add1:skip"} <= set(pre)
    assert "add1>final_norm:" in pre
    assert not any("final_norm" in name for name in post)


def test_a_block_begins_anew_and_a_window_stays_full() -> None:
    figure = drawn.context_of_blocks(4, 2)
    counts = {
        text.get_gid(): int(text.get_text())
        for ax in figure.axes
        for text in ax.texts
        if text.get_gid()
    }
    assert [counts[f"b:{row}"] for row in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert [counts[f"a:{row}"] for row in range(8)] == [0, 1, 2, 3, 3, 3, 3, 3]
    with pytest.raises(ValueError, match="at least 1"):
        drawn.context_of_blocks(0)


def test_what_counts_is_what_the_chapter_counts() -> None:
    _, mask = gpt.prompt_and_response([5] * len(PROMPT), [6] * len(RESPONSE))
    marks = {
        int(text.get_gid().split(":")[1]): text.get_gid().startswith("counts")
        for ax in draw("row").axes
        for text in ax.texts
        if text.get_gid()
    }
    assert [marks[place] for place in range(1, len(mask))] == list(map(bool, mask[1:]))
    with pytest.raises(ValueError, match="at least one token each"):
        drawn.prompt_and_response_row([], ["a"])


def test_tasks_are_rows_as_the_chapter_makes_them() -> None:
    rows: dict[tuple[str, str], list[str]] = {}
    for name in names(draw("task_inputs")):
        task, number, part = name.split(":")
        rows.setdefault((task, number), []).append(part)
    assert rows["entailment", "0"] == ["Start", "Premise", "Delim", "Hypothesis", "Extract"]
    assert len(gpt.entailment_input([5], [6])) == 5
    first, second = (rows["similarity", n] for n in "01")
    assert [first[1], first[3]] == [second[3], second[1]]
    assert sum(task == "multiple choice" for task, _ in rows) == 3


def test_a_cache_computes_each_place_once() -> None:
    found = names(drawn.cache_steps(prompt=4, steps=3))
    new = {kind: sum(n.startswith(kind) and n.endswith("new") for n in found)
           for kind in ("plain", "cached")}  # fmt: skip
    assert new == {"plain": 4 + 5 + 6, "cached": 4 + 1 + 1}
    with pytest.raises(ValueError, match="at least 1"):
        drawn.cache_steps(0)
