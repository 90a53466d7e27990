"""The stored experiment on prompts: its language, its models, its file."""

import pytest
import torch

from toolkit.gpt import prompting_experiments as prompting


def test_mappings_of_the_training_and_new_ones_have_none_in_common() -> None:
    language, draw = prompting.Language(), torch.Generator().manual_seed(0)
    places = prompting.DIGITS ** torch.arange(prompting.LETTERS)
    known, new = ((language.mappings(3000, count, draw) * places).sum(-1) for count in (2048, None))
    for seed in range(prompting.SEEDS):
        assert not set(known[seed].tolist()) & set(new[seed].tolist())
    assert len(set(language.mappings(100, 1, draw)[0].flatten().tolist())) <= prompting.LETTERS


def test_a_reader_who_knows_the_rule_is_right_as_often_as_the_ideal_one() -> None:
    shown = prompting.letters(4000, torch.Generator().manual_seed(0))
    for n in (1, 4):
        hidden = (shown[..., :n] != shown[..., n : n + 1]).all(-1).float().mean().item()
        guessed = 1 - hidden * (1 - 1 / prompting.DIGITS)
        assert guessed == pytest.approx(prompting.ideal(n), abs=0.01)


def test_a_position_sees_nothing_after_it_and_no_other_model() -> None:
    torch.manual_seed(0)
    at = prompting.fresh(5)
    ids = torch.randint(prompting.WORDS, (5, 3, prompting.LENGTH))
    before, other = prompting.logits(at, ids), ids.clone()
    other[2, :, 10] = (ids[2, :, 10] + 1) % prompting.WORDS
    moved = (before != prompting.logits(at, other)).any(-1).any(1)  # (M, T)
    assert moved[2].tolist() == [False] * 10 + [True] * (prompting.LENGTH - 10)
    assert not moved[[0, 1, 3, 4]].any()


def test_the_file_has_all_conditions_and_no_best_learning_rate_at_an_end() -> None:
    found = prompting.read()
    for count in prompting.COUNTS:
        for name in prompting.CONDITIONS:
            for n in prompting.EXAMPLES:
                assert found[count, name, n].shape == (prompting.SEEDS,)
    for losses in prompting.read_training().values():
        best = min(losses, key=lambda lr: losses[lr])
        assert min(losses) < best < max(losses)
    maps = prompting.read_maps()
    torch.testing.assert_close(maps.sum(-1), torch.ones(maps.shape[:-1]), atol=1e-3, rtol=0)
    assert len(prompting.names()) == maps.shape[-1]
