"""What the pictures of BERT's input show."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
import torch

from toolkit.bert import input_pictures as pictures
from toolkit.bert.fine_tuning import masked_input
from toolkit.diagrams import texts_outside
from toolkit.models import load


def test_sums_of_the_example_have_standard_deviations_that_come_out_even() -> None:
    for arguments, deviation in ((("file", 2, 0), 5), (("file", 2, 1), 3), (("it", 7, 1), 3)):
        total = pictures.summed(*arguments)
        assert total.std(unbiased=False) == deviation
        torch.testing.assert_close(pictures.normalised(total) * deviation, total - total.mean())


def test_what_was_removed_is_said() -> None:
    def build(first: list[int], second: list[int], most: int) -> tuple[list[int], list[int]]:
        ids = [2, *first, 3, *second[: most - 7], 3]
        return ids, [0] * (len(first) + 2) + [1] * (len(ids) - len(first) - 2)

    assert "removed: it" in pictures.cut_page(8, build)
    assert "nothing is removed" in pictures.cut_page(9, build)


def test_the_sum_in_the_shipped_model_is_its_input() -> None:
    shipped = load("bert")
    ids, segments = masked_input(shipped.tokenizer, "the file is open", "close it")
    found = pictures.sum_in(shipped, ids, segments, 7)
    with torch.no_grad():
        torch.testing.assert_close(
            found["norm"], shipped.model.bert.embeddings(ids, segments)[0, 7]
        )


def test_each_token_has_a_line_in_the_picture() -> None:
    figure = pictures.input_sum(["[CLS]", "it", "[SEP]"], [0, 0, 1])
    assert not texts_outside(figure)
    assert {"1:it", "2:B = 1"} <= {patch.get_gid() for patch in figure.axes[0].patches}
    with pytest.raises(ValueError, match="2 segments do not fit 1"):
        pictures.input_sum(["it"], [0, 1])
    pictures.one_map_or_three()
    plt.close("all")
