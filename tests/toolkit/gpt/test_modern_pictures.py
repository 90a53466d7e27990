"""Pictures of the pages on today's models: they show what they are given."""

from __future__ import annotations

import matplotlib
import pytest
import torch

from toolkit.gpt import modern_pictures as pictures
from toolkit.gpt.modern import ModernGPT
from toolkit.gpt.modern_experiments import BASE, Found

matplotlib.use("Agg")


def test_both_norms_agree_where_the_mean_is_zero() -> None:
    x = torch.tensor([5.0, -3, -1, -1])
    torch.testing.assert_close(pictures.layer_norm(x), pictures.rms_norm(x))
    page = pictures.norms_page([9, 1, 3, 3], -4, 2)
    assert "mean of x 0.00, RMS 6.00" in page
    assert page.count("1.67") == 2


def test_a_model_without_mean_is_a_copy_that_differs_only_by_the_mean() -> None:
    torch.manual_seed(0)
    norm = torch.nn.Sequential(torch.nn.LayerNorm(4))
    changed = pictures.without_mean(norm)
    x = torch.tensor([[9.0, 1, 3, 3]])
    torch.testing.assert_close(changed(x), x / 5)
    torch.testing.assert_close(norm(x)[0, 0].item(), 5 / 3, rtol=1e-4, atol=0)
    assert pictures.mean_shares(norm, x).tolist() == pytest.approx([16 / 25])


def test_cache_bytes_of_known_models() -> None:
    assert pictures.cache_bytes(12, 12, 64, 1024) == 36 * 2**20  # GPT-2 small
    assert pictures.cache_bytes(32, 8, 128, 32_768) == 4 * 2**30  # Mistral 7B
    assert "32 times smaller" in pictures.cache_page(8, 32_768, 4096)


def test_a_stack_reaches_a_window_less_one_further_with_each_layer() -> None:
    torch.manual_seed(0)
    for layers in (1, 2):
        model = ModernGPT(30, 16, layers, 2, 1, 24, window=3).eval()
        reached = pictures.reached(model, 9)
        assert torch.equal(reached, pictures.window_reach(9, 3, layers)[-1])


def test_every_mistake_changes_logits_and_is_undone_afterwards() -> None:
    torch.manual_seed(0)
    model = ModernGPT(30, 32, 2, 4, 2, 48).eval()
    ids = torch.randint(30, (2, 12))
    before = model(ids)
    wrong = pictures.with_mistakes(
        model, ids, pictures.BLOCK_MISTAKES | pictures.ATTENTION_MISTAKES
    )
    assert len(wrong) == 6
    assert all(most > 1e-3 for most, _ in wrong.values())
    assert torch.equal(model(ids), before)


def test_figures_draw_what_they_are_given() -> None:
    results = {BASE: Found(10, 0.1, (1.0, 2.0)), "RoPE": Found(10, 0.1, (0.5, 1.7))}
    figure = pictures.compared(results, {"RoPE": "rotary"})
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["rotary"]
    mean, error = pictures.paired(results, "RoPE")
    assert (mean, error) == (pytest.approx(-0.4), pytest.approx(0.1))
    assert len(pictures.sharing().axes) == 3
    assert len(pictures.windows({"a": pictures.window_reach(5, 2, 1)}).axes) == 1
    assert len(pictures.gates().axes) == 2
