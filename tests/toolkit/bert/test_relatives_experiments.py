"""The stored experiments about BERT's variants, and the language that they use."""

import pytest
import torch

from toolkit.bert import relatives_experiments as experiments
from toolkit.bert import relatives_pictures as pictures


@pytest.mark.parametrize("name", list(experiments.RUNS))
def test_every_variant_has_five_seeds_and_five_learning_rates_the_best_not_at_an_end(name):
    for variant, found in experiments.read(name).items():
        assert len(found.tried) >= 5, variant
        assert min(found.tried) < found.lr < max(found.tried), variant
        assert all(len(v) == 5 for c, v in found.values.items() if c != "best epoch"), variant


def test_most_symbols_are_followed_by_the_next_of_the_circle():
    rows = experiments.cycle_rows(1, 500, 16, torch.Generator().manual_seed(0))
    follows = (rows[..., 1:] == (rows[..., :-1] + 1) % experiments.SYMBOLS).float().mean()
    assert abs(follows - (0.9 + 0.1 / experiments.SYMBOLS)) < 0.02


def test_relative_positions_give_the_same_wherever_the_two_tokens_stand():
    model = experiments.Encoder(13, 12, 1, models=1)
    codes = experiments.relative_codes(6, model.d_model // model.num_heads)
    assert torch.equal(codes[1, 3], codes[2, 4])
    assert not torch.equal(codes[1, 3], codes[3, 1])


def test_a_shared_layer_has_the_parameters_of_one():
    one, own, shared, _ = experiments.STACKS.values()
    assert shared.size() == one.size() < own.size()


def test_the_page_on_xlnet_names_what_was_predicted_before():
    assert "«file» is predicted at position 1, given: «open» at 3" in pictures.prediction(
        "3 1 0 2", "2"
    )
