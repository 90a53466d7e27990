"""The pictures of the page on training a GPT."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
import torch
from torch import nn

from solutions.gpt import train
from toolkit.corpora.code_corpus import END, START
from toolkit.gpt import pretraining_pictures as pictures
from toolkit.models import Shipped, load

TEXT = "def close(self):\n    self.x = 1"


@pytest.fixture(scope="module")
def shipped() -> Shipped:
    return load("gpt")


def test_the_stream_has_every_function_between_its_signs(shipped: Shipped) -> None:
    stream = pictures.held_out_stream(shipped)
    assert stream[0] == START
    assert stream[-1] == END
    tokens, _ = pictures.sizes(shipped)
    assert len(stream) == tokens + len(shipped.held_out())


def test_the_course_draws_one_line_for_each_model(shipped: Shipped) -> None:
    figure = pictures.course(shipped.curves, 6.93, 5.39)
    assert len(figure.axes[1].get_lines()) == 3
    assert figure.axes[0].get_lines()[0].get_ydata()[-1] == pytest.approx(1.66, abs=0.01)
    plt.close(figure)


def test_probabilities_are_of_the_tokens_and_the_end(shipped: Shipped) -> None:
    names, given = pictures.probabilities(shipped, TEXT)
    assert names[-1] == "[END]"
    assert "".join(names[:-1]).replace("⏎", "\n").replace("·", " ") == TEXT
    assert bool((given > 0).all() and (given < 1).all())


def test_a_window_of_one_token_is_a_chunk_of_one(shipped: Shipped) -> None:
    stream = pictures.held_out_stream(shipped)[:2000]
    chunks, windows = pictures.chunks_and_windows(shipped, stream, 1, every=100)
    torch.testing.assert_close(chunks, windows)


def test_bins_hold_the_means_of_their_positions() -> None:
    bins = pictures.bins_of(torch.arange(1.0, 129))
    assert bins["5–8"][1] == 6.5
    assert bins["65–128"][1] == 96.5


def test_sheets_escape_what_was_written(shipped: Shipped) -> None:
    assert "a &lt; b" in pictures.answer_sheet("if", " a < b")
    assert "&lt;" in pictures.surprise_sheet(["<", "⏎"], [1.0, 2.0])
    sheet = pictures.context_sheet(shipped, TEXT, 4, 2)
    assert sheet.count("#cfe0f2") == 2
    assert sheet.count("<li>") == 3


def test_learning_reports_what_the_loop_says_and_what_is_true() -> None:
    def make() -> nn.Module:
        return nn.Embedding(3, 3).double()

    said, true = pictures.learn(
        train, make, torch.tensor([0, 1, 2] * 40), 60, length=6, batch_size=2, max_lr=0.2,
        warmup_steps=2,
    )  # fmt: skip
    assert said == pytest.approx(true, abs=0.05)
    assert true < 0.3
