"""Pictures of the pages on fine-tuning GPT draw what they are given."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
import torch

from solutions.gpt import GPT, language_model_loss
from solutions.gpt.transfer import GPTClassifier
from toolkit.diagrams import texts_outside
from toolkit.gpt import auxiliary_experiments as experiments
from toolkit.gpt import fine_tuning_pictures as pictures
from toolkit.gpt.auxiliary_experiments import Found


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def _found(*test: float) -> Found:
    return Found(1e-3, list(test), [2.0] * len(test), [[1.0, 0.5]] * len(test))


@pytest.fixture
def results():
    ways = [*experiments.NETWORKS, experiments.BAG]
    made = {("name", way, size): _found(0.5, 0.6) for way in ways for size in (50, 200)}
    made["name", experiments.way_of(0.5), 200] = _found(0.6, 0.6)
    return made | {("name", experiments.CONSTANT, 0): _found(0.2)}


def test_input_formats_have_an_extract_for_each_row():
    figure = pictures.input_formats()
    texts = [t.get_text() for t in figure.axes[0].texts]
    assert texts.count("E") == texts.count("S") == 7
    assert texts.count("D") == 6
    assert not texts_outside(figure)


def test_two_heads_show_the_sizes_of_the_model():
    with torch.device("meta"):
        model = GPTClassifier(GPT(100, 20, 16, 3, 2, norm_first=False), 5)
    figure = pictures.two_heads(model)
    texts = " ".join(t.get_text() for t in figure.axes[0].texts)
    for text in ("100 × 16", "20 × 16", "3 ×", "2 heads of 8", "16 → 5", "16 → 64 → 16"):
        assert text in texts
    assert not texts_outside(figure)


def test_gradients_at_logits_follow_the_mask_and_those_at_embeddings_do_not():
    torch.manual_seed(0)
    model = GPT(20, 8, 16, 2, 2)
    ids, mask = [1, 9, 2, 8, 4], [False, False, False, True, True]
    found = pictures.response_gradients(model, ids, mask, language_model_loss)
    assert (found["logits"] > 0).tolist() == [False, False, True, True, False]
    assert (found["embedding"] > 0).tolist() == [True, True, True, True, False]
    torch.testing.assert_close(found["loss"], found["terms"][2:].mean())
    assert all(p.grad is None for p in model.parameters())
    figure = pictures.gradients(list("abcde"), found, [*mask[1:], False])
    assert len(figure.axes) == 2


def test_paired_gains_are_taken_seed_by_seed(results):
    torch.testing.assert_close(
        pictures.paired(results, "name", 0.5, 200), torch.tensor([10.0, 0.0])
    )


def test_figures_of_the_experiment_show_every_size(results):
    for figure in (
        pictures.gains(results, ["name"], [50, 200]),
        pictures.by_labels(results, "name", [50, 200]),
        pictures.language_kept(results, "name", [50, 200], 2.1),
    ):
        labels = [t.get_text() for t in figure.axes[0].get_xticklabels()]
        assert len(labels) == 2
        assert "200" in labels[1]


def test_table_5_adds_up_to_the_averages_of_the_paper():
    for column, printed in ((1, 74.7), (2, 75.0), (3, 59.9)):
        mean = sum(row[column] for row in pictures.TABLE_5.values()) / 8
        assert mean == pytest.approx(printed, abs=0.051)
    assert pictures.table_5().axes
