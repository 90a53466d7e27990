"""Diagrams of the chapter on BERT say what models, masks and scores say."""

from __future__ import annotations

import functools
import itertools
import re

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from solutions import bert
from tests.toolkit.drawings import Drawings, words
from toolkit import bert_diagrams as drawn

SIZES = {"d_model": 16, "num_layers": 3, "num_heads": 2, "d_ff": 24, "max_length": 20}
TOKENS = ["[CLS]", "the", "sum", "[SEP]", "of", "num", "##bers", "[SEP]"]
SEGMENTS = [0, 0, 0, 0, 1, 1, 1, 1]
SCORES = np.array([[0.9, -0.2, 0.7], [-0.4, 0.5, 2.2], [1.2, 0.8, -1.4]])


def draw(name: str) -> Figure:
    if name.startswith("encoder"):
        model = bert.BertForPreTraining(30, **SIZES)
        return drawn.encoder(model if name == "encoder" else model.bert)
    if name == "input":
        return drawn.input_sum(TOKENS, SEGMENTS)
    if name == "permutation":
        return drawn.permutation([2, 0, 3, 1])
    if name == "lattice":
        return drawn.lattice(SCORES, "OBI", ["a", "long", "path"], [0, 2, 1], SCORES)
    return getattr(drawn, name)()


DRAWINGS = {
    name: functools.partial(draw, name)
    for name in (
        "encoder", "encoder alone", "input", "permutation", "lattice", "masking_outcomes",
        "connectivity", "four_tasks", "segments_with_memory", "electra",
    )
}  # fmt: skip


class TestDrawings(Drawings):
    drawings = DRAWINGS


def names(figure: Figure) -> list[str]:
    return [p.get_gid() for ax in figure.axes for p in ax.patches if p.get_gid()]


def test_every_place_has_its_token_its_segment_and_its_position() -> None:
    texts = words(draw("input"))
    assert [t.split("\n")[1] for t in texts if "{tok}" in t] == TOKENS
    assert [re.search(r"[AB]", t)[0] for t in texts if re.fullmatch(r"\$E_\{[AB]\}\$", t)] == [
        "AB"[segment] for segment in SEGMENTS
    ]
    assert [int(t[4:-2]) for t in texts if re.fullmatch(r"\$E_\{\d+\}\$", t)] == list(range(8))


def test_a_dollar_in_a_token_is_a_dollar() -> None:
    drawn.input_sum(["[CLS]", "$x_", "[SEP]"], [0, 0, 0]).canvas.draw()


@pytest.mark.parametrize(("tokens", "segments"), [([], []), (["a"], [0, 1]), (["a"], [2])])
def test_inputs_that_do_not_fit_are_refused(tokens: list[str], segments: list[int]) -> None:
    with pytest.raises(ValueError, match="segments"):
        drawn.input_sum(tokens, segments)


def test_of_a_hundred_tokens_as_many_are_coloured_as_are_chosen() -> None:
    figure = drawn.masking_outcomes(20, 2, 4)
    assert sum(name.startswith("chosen") for name in names(figure)) == 20
    assert sum(name.startswith("left") for name in names(figure)) == 80
    assert "fate:14" in names(figure)
    with pytest.raises(ValueError, match="part"):
        drawn.masking_outcomes(15, 10, 6)


def test_the_graphs_show_who_reads_whom() -> None:
    edges = {
        tuple(map(int, re.findall(r"\d+", name)))
        for name in names(drawn.connectivity(4))
        if name.startswith("GPT")
    }
    assert edges == {
        (level, s, level + 1, t) for level in (0, 1) for t in range(4) for s in range(t + 1)
    }
    said = [t for t in words(drawn.connectivity(4)) if "marked" in t]
    assert [int(re.search(r"sees (\d)", t)[1]) for t in said] == [4, 3, 4]
    with pytest.raises(ValueError, match="at least 2"):
        drawn.connectivity(1)


def test_elmo_never_mixes_its_directions_below_the_top() -> None:
    for s, t in drawn._two_chains(5):
        assert {s[0], t[0]} != {1, 2}


def test_masks_are_those_of_the_graphs() -> None:
    shown = [np.asarray(ax.images[0].get_array()) > 0.5 for ax in drawn.connectivity_masks(4).axes]
    full = np.ones((4, 4), bool)
    for mask, expected in zip(
        shown, (full, np.tril(full), np.tril(full), np.triu(full)), strict=True
    ):
        np.testing.assert_array_equal(mask, expected)


def test_the_model_is_read_from_the_model() -> None:
    torch.manual_seed(0)
    model = bert.BertForPreTraining(30, **SIZES)
    texts = " ".join(words(drawn.encoder(model)))
    for said in (
        "token\n30 × 16",
        "position\n20 × 16",
        "3 ×",
        "2 heads of 8",
        "16 → 24 → 16",
        "tied",
    ):
        assert said in texts
    count = sum(p.numel() for p in model.parameters())
    assert f"{count / 1000:.3g} k parameters" in texts
    alone = " ".join(words(drawn.encoder(model.bert)))
    assert "next sentence" in texts
    assert "next sentence" not in alone


def test_the_permutation_shows_the_masks_of_the_exercise() -> None:
    order = [2, 0, 3, 1]
    content, query = bert.permutation_masks(torch.tensor(order))
    axes = drawn.permutation(order).axes
    for ax, mask in ((axes[1], content), (axes[2], query)):
        np.testing.assert_array_equal(np.asarray(ax.images[0].get_array()) > 0.5, mask.numpy())
    arrows = [name for name in names(draw("permutation")) if name.endswith(":next")]
    assert arrows == ["2>0:next", "0>3:next", "3>1:next"]
    with pytest.raises(ValueError, match="permutation"):
        drawn.permutation([0, 0])


def test_with_memory_the_last_place_reaches_further_back() -> None:
    def inputs(memory: int, layers: int) -> int:
        figure = drawn.segments_with_memory(4, memory, layers)
        return sum(name.startswith("seen:0:") for name in names(figure))

    assert inputs(4, 2) == 8
    # One layer with a memory of two: its own segment of four and the two before it.
    assert inputs(2, 1) == 6
    with pytest.raises(ValueError, match="no longer"):
        drawn.segments_with_memory(3, 4)


def test_the_lattice_has_every_edge_and_marks_the_path() -> None:
    found = names(draw("lattice"))
    edges = [name for name in found if ">" in name]
    assert len(edges) == 2 * 9
    assert [name for name in edges if name.endswith(":path")] == ["0:0>2:path", "1:2>1:path"]
    texts = words(draw("lattice"))
    assert {f"{v:.1f}".replace("-", "−") for v in SCORES.flat} <= set(texts)
    assert {
        f"{SCORES[a, b]:+.1f}".replace("-", "−") for a, b in itertools.pairwise([0, 2, 1])
    } <= set(texts)
    with pytest.raises(ValueError, match="fit"):
        drawn.lattice(SCORES, "OB", ["a", "long", "path"], [0, 1, 1])


def test_a_right_guess_of_the_generator_counts_as_original() -> None:
    figure = drawn.electra(["a", "b", "c"], [0, 2], ["a", "x"])
    answers = [name.split(":")[2] for name in names(figure) if name.startswith("answer")]
    assert answers == ["original", "original", "replaced"]
    with pytest.raises(ValueError, match="places"):
        drawn.electra(["a"], [0], [])


def test_each_task_reads_where_its_answer_stands() -> None:
    read: dict[str, list[int]] = {}
    for name in names(draw("four_tasks")):
        task, place, what = name.split(":")
        if what == "read":
            read.setdefault(task, []).append(int(place))
    assert read == {
        "sentence pair": [0], "single sentence": [0], "span in a passage": [4, 5],
        "tagging": [1, 2, 3, 4, 5],
    }  # fmt: skip
