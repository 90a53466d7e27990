"""Pictures and counts of the page on a GPT's KV cache."""

from __future__ import annotations

import pytest

from toolkit.gpt import cache_pictures as pictures


@pytest.mark.parametrize(("cached", "made", "kept"), [(False, 4, 0), (True, 1, 3)])
def test_a_step_shows_what_is_made_and_what_is_kept(cached: bool, made: int, kept: int) -> None:
    page = pictures.step_page(["a", "b", "c", "<"], 3, 2, 2, cached, "d")
    assert page.count(">q k v<") == 2 * made
    assert page.count(">k v<") == 2 * kept
    assert page.count(">logits<") == made
    assert "&lt;" in page


def test_the_prompt_is_computed_in_the_first_step() -> None:
    page = pictures.step_page(["a", "b", "c"], 3, 2, 1, True, "d")
    assert page.count(">q k v<") == 6
    assert ">k v<" not in page


def test_bytes_are_two_numbers_for_each_layer_feature_and_position() -> None:
    assert pictures.cache_bytes(96, 12_288, 2048) == 9 * 2**30
    assert pictures.cache_bytes(1, 1, 1, 4) == 8


def test_multiplications_of_one_step_are_the_same_either_way() -> None:
    sizes = {"num_layers": 2, "d_model": 3, "vocab_size": 5}
    one = [pictures.multiplications(4, 1, **sizes, cached=cached) for cached in (False, True)]
    assert one == [4 * (12 * 2 * 9 + 15) + 16 * 12] * 2
    two = pictures.multiplications(4, 2, **sizes, cached=True)
    assert two - one[1] == (12 * 2 * 9 + 15) + 5 * 12


def test_the_figure_of_work_names_both_ways() -> None:
    (ax,) = pictures.work([8, 16], [10, 40], [5, 10]).axes
    assert {text.get_text() for text in ax.texts} == {"40\nwithout", "10\nwith a cache"}
