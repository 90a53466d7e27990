"""The page on BERT's encoder: what its figures and its comparison claim."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
import torch

from solutions.bert import BertModel
from toolkit.bert import encoder_pictures as pictures
from toolkit.bert import objectives
from toolkit.diagrams import texts_outside
from toolkit.models import load


@pytest.fixture
def encoder() -> BertModel:
    torch.manual_seed(1)
    model = BertModel(20, 16, 2, 2, 32, 12).eval()
    with torch.no_grad():
        for parameter in model.layers.parameters():
            parameter.mul_(5)  # larger than at first, as after training
    return model


def test_a_masked_token_moves_every_output_but_behind_a_causal_mask(
    encoder: BertModel,
) -> None:
    ids = torch.tensor([[2, 7, 8, 9, 3]])
    moved = pictures.influence(encoder, ids, 4)
    assert moved.shape == (5, 3)
    assert (moved > 1e-4).all()
    causal = pictures.influence(objectives.left_to_right(encoder), ids, 4)
    reached = torch.ones(5, 5).tril()[:, 1:-1].bool()
    assert (causal[reached] > 1e-4).all()
    assert (causal[~reached] == 0).all()


def test_an_encoder_of_the_same_class_answers_as_the_shipped_model() -> None:
    shipped = load("bert")
    other = pictures.with_encoder(shipped, shipped.module.BertModel)
    ids = torch.tensor([shipped.tokenizer.build_input("Close the file.")[0]])
    with torch.no_grad():
        torch.testing.assert_close(other(ids), shipped.model(ids))
    shares = pictures.accuracies(shipped, {"a": shipped.model, "b": other}, 8)
    assert shares["a"] == shares["b"] > 0


def test_no_text_stands_outside_of_its_drawing() -> None:
    figure = pictures.layers()
    assert texts_outside(figure) == []
    plt.close(figure)
