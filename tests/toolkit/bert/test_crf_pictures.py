"""The lattices of the pages on CRFs show what the reference computes."""

from __future__ import annotations

import math
import re

import pytest
import torch

from solutions.bert import crf_partition, viterbi
from toolkit.bert.crf_pictures import (
    THREE,
    TWO,
    Example,
    forward_page,
    path_page,
    viterbi_page,
    viterbi_steps,
    viterbi_table,
)


@pytest.mark.parametrize("example", [TWO, THREE], ids=["two tags", "three tags"])
def test_both_recursions_agree_with_a_list_of_all_sequences(example: Example) -> None:
    scores = torch.tensor([example.score(path) for path in example.paths()])
    torch.testing.assert_close(crf_partition(*example.arguments)[0], scores.logsumexp(0))
    best = list(example.paths()[int(scores.argmax())])
    assert viterbi_table(example)[2] == best == viterbi(*example.arguments)[0][0]


def test_a_path_shows_its_score_and_its_probability() -> None:
    page = path_page(TWO, "O", "N", "N")
    assert "<b>6</b>" in page
    assert "<b>0.640</b>" in page


def test_the_last_step_of_the_forward_recursion_shows_log_z() -> None:
    shown = re.search(r"log Z = .*<b>([\d.]+)</b>", forward_page(TWO, 4))
    total = sum(math.exp(TWO.score(path)) for path in TWO.paths())
    assert shown
    assert float(shown[1]) == round(math.log(total), 3)


def test_the_way_back_ends_with_the_best_sequence() -> None:
    pages = [viterbi_page(THREE, step) for step in viterbi_steps(THREE)]
    assert "Tags so far: O O B I" in pages[-1]
    assert "Tags so far: ? ? ? I" in pages[4]
