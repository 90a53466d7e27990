"""The attention chapter's example, its measurements and its pictures."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import pytest
import torch

from solutions.attention import scaled_dot_product_attention
from tests.toolkit.drawings import words
from toolkit.attention import example_pictures as pictures


def test_the_example_is_scaled_dot_product_attention() -> None:
    found = pictures.example()
    output, weights = scaled_dot_product_attention(found.query, found.key, found.value)
    torch.testing.assert_close(found.output, output)
    torch.testing.assert_close(found.weights, weights)


def test_the_example_hides_what_a_mask_hides() -> None:
    mask = torch.ones(3, 3, dtype=torch.bool).tril()
    found = pictures.example(["the", "cat", "it"], mask=mask)
    assert (found.scores == -math.inf).tolist() == (~mask).tolist()
    assert found.weights[0].tolist() == [1, 0, 0]


def test_the_example_refuses_words_without_a_vector() -> None:
    with pytest.raises(ValueError, match="dog"):
        pictures.example(["the", "dog"])


def test_the_softmax_derivative_is_the_norm_of_the_jacobian() -> None:
    scores = torch.tensor([0.3, -1.0, 2.0])
    jacobian = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), scores)
    torch.testing.assert_close(
        pictures.softmax_derivative(scores.softmax(-1)[None])[0], jacobian.norm()
    )
    sure = torch.tensor([[1.0, 0, 0]])
    assert pictures.softmax_derivative(sure).item() == 0


def test_copied_digits_are_those_that_both_sides_have_equally_often() -> None:
    source, written = ["3", "and", "5"], ["5", "3", "3"]
    weights = torch.tensor([[0.0, 0.1, 0.9], [0.9, 0.1, 0.0], [0.1, 0.9, 0.0]])
    assert pictures.copied_digits(written, source, weights) == [(True, 1 / 3)]
    wrong = torch.tensor([[0.9, 0.1, 0.0]])
    assert pictures.copied_digits(["5"], ["3", "5"], wrong[:, :2]) == [(False, 0.5)]


def test_bars_are_as_long_as_their_weights_and_labels_are_text() -> None:
    table = pictures.bars(["<b>", "it"], torch.tensor([0.25, 0.75]), ["score 1", ""])
    assert "width:25.0%" in table
    assert "width:75.0%" in table
    assert "&lt;b&gt;" in table
    assert ">0.75<" in table


def test_a_token_s_view_says_what_is_hidden_and_what_comes_out() -> None:
    mask = torch.ones(3, 3, dtype=torch.bool).tril()
    found = pictures.example(["the", "cat", "it"], mask=mask)
    view = pictures.look_from(found, "cat", pictures.WHO.holds)
    assert view.count("hidden") == 1
    assert f"living <b>{found.output[1, 0]:.2f}</b>" in view


def test_tokens_of_a_translation_get_their_meaning() -> None:
    year = next(token for token, meaning in pictures.MEANINGS.items() if meaning == "year")
    assert pictures.glossed(["5", year]) == ["5", f"{year} year"]
    assert pictures.meanings(["5", year]) == ["5", "year"]


def test_mixing_prints_weights_values_products_and_sums() -> None:
    found = pictures.example(["the", "cat", "it"])
    printed = [text.get_text() for text in pictures.mixing(found, "it", ("a", "b")).axes[0].texts]
    assert {"0.67", "2", "1.33", "1.00"} <= set(printed)
    plt.close("all")


def test_maps_print_every_entry_and_say_where_one_is_not_a_number() -> None:
    figure = pictures.maps({"one": torch.tensor([[0.5, math.nan]])}, ["q"], ["a", "b"])
    assert words(figure) == ["0.50", "NaN"]
    plt.close("all")


def test_both_row_orders_name_every_block_once() -> None:
    shown = words(pictures.row_orders())
    blocks = [text for text in shown if " of head " in text]
    assert sorted(blocks[:6]) == sorted(blocks[6:])
    assert blocks[6:9] == ["q of head 0", "k of head 0", "v of head 0"]
    plt.close("all")
