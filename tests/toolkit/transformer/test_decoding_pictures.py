"""The search tree, the cache step by step, and what is counted while a Transformer writes."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import pytest
import torch

from solutions.transformer import (
    PAD,
    TableModel,
    beam_search,
    cached_greedy_decode,
    greedy_decode,
    make_model,
)
from tests.toolkit.drawings import words
from toolkit.corpora.translation import EOS
from toolkit.transformer import decoding_pictures as pictures


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_the_tree_is_searched_as_by_the_reference(size: int, alpha: float) -> None:
    model = TableModel(pictures.tree_table())
    found = beam_search(model, torch.tensor([[0]]), size, 5, alpha)
    ranked = pictures.search_tree(size).ranked(alpha)
    assert [" ".join(pictures.WORDS[i] for i in ids) for ids, _ in found] == [s for s, _ in ranked]
    assert [score for _, score in found] == pytest.approx([score for _, score in ranked], abs=1e-5)


def test_all_sentences_of_the_tree_together_are_certain() -> None:
    ended = pictures.search_tree(100).ended
    assert len(ended) == 8
    assert sum(ended.values()) == pytest.approx(1)


def test_the_page_of_the_tree_marks_what_was_kept_and_ranks_it() -> None:
    page = pictures.tree_page(3, 0.6)
    assert "<span class='kept best'>heavily <small>0.9 → 0.216</small>" in page
    assert "<span class='lost'>pours" in page
    assert page.index("it is raining heavily") < page.index("heavy rain")
    assert "<table" not in pictures.tree_page(0, 0.6)


def test_a_cached_step_makes_one_key_and_keeps_the_others() -> None:
    own, cross = torch.eye(3), torch.full((3, 2), 0.5)
    target, source = ["<bos>", "a", "b"], ["x", "y"]
    pages = {
        cached: pictures.cache_page(own, cross, target, source, 3, cached)
        for cached in (False, True)
    }
    assert (
        "queries: <b>3</b>; keys and values of the target: <b>3</b>, of the source: <b>2</b>"
        in (pages[False])
    )
    assert (
        "queries: <b>1</b>; keys and values of the target: <b>1</b>, of the source: <b>0</b>"
        in (pages[True])
    )
    assert [page.count("0.50") for page in pages.values()] == [6, 2]
    first = pictures.cache_page(own, cross, target, source, 1, True)
    assert "of the source: <b>2</b>" in first
    assert pictures.KEPT not in first


def test_calls_and_positions_are_counted() -> None:
    torch.manual_seed(0)
    model = make_model(9, 9, num_layers=2, d_model=8, d_ff=8, num_heads=2).eval()
    with torch.no_grad():
        model.generator.proj.bias[[PAD, EOS]] = -1e4  # it writes up to its limit
    source, counted = torch.tensor([[4, 5]]), pictures.Counted(model)
    greedy_decode(counted, source, 5)
    assert counted.calls == {"encode": 1, "decode": 5, "generator": 5}
    assert counted.positions == 15
    for search, positions in ((greedy_decode, 2 * 15), (cached_greedy_decode, 2 * 5)):
        with pictures.layer_work(model.decoder.layers) as work:
            search(model, source, 5)
        assert (work.calls, work.positions) == (10, positions)
    greedy_decode(model, source, 5)
    assert work.calls == 10


def test_the_figures_say_what_they_are_given() -> None:
    assert words(pictures.loop(["x"], ["a", "<eos>"])).count("decoder") == 2
    assert words(pictures.penalties((0.0, 0.6))) == ["α = 0", "α = 0.6"]
    assert words(pictures.savings([8, 16], [1.0, 2.0], [4.5, 8.5])) == ["seconds", "positions"]
    plt.close("all")


def test_the_penalty_of_one_token_is_one_and_time_is_no_less_than_none() -> None:
    assert pictures.length_penalty(1, 0.6) == 1
    assert pictures.length_penalty(7, 1.0) == pytest.approx(2)
    assert 0 <= pictures.seconds(lambda: math.sqrt(2)) < 1
