"""The stored experiments on positions: models compute what they say, files are whole."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from solutions.positional_encoding import RelativeSelfAttention, sinusoidal_table
from toolkit.positional_encoding import experiments as experiments
from toolkit.positional_encoding import extrapolation_pictures
from toolkit.positional_encoding.experiments import CLIP, HEAD_DIM, MODELS, NUM_HEADS, Model


def fresh(model: Model, seed: int = 0) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return model.parameters()


def random_ids(batch: int, length: int) -> Tensor:
    return torch.randint(8, (MODELS, batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("method", experiments.METHODS)
def test_no_token_sees_later_ones(method: str) -> None:
    model = Model(method, 8, 8)
    at, ids = fresh(model), random_ids(2, 12)
    changed = ids.clone()
    changed[:, :, 9:] = (ids[:, :, 9:] + 1) % 8
    before, after = model.hidden(at, ids), model.hidden(at, changed)
    torch.testing.assert_close(before[:, :, :9], after[:, :, :9])
    assert not torch.allclose(before[:, :, 9:], after[:, :, 9:])


def test_attention_is_pytorch_s() -> None:
    model = Model("none", 8, 8)
    at, x = fresh(model), torch.randn(MODELS, 2, 5, experiments.D_MODEL)
    q, k, v = (x[3] @ at["0.qkv"][3]).view(2, 5, 3, NUM_HEADS, HEAD_DIM).permute(2, 0, 3, 1, 4)
    z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    wanted = z.transpose(1, 2).flatten(2) @ at["0.out"][3]
    torch.testing.assert_close(model._attend(at, 0, x)[3], wanted)


def test_relative_attention_is_the_chapter_s() -> None:
    model = Model("relative", 8, 8)
    at, x = fresh(model), torch.randn(MODELS, 2, 15, experiments.D_MODEL)
    module = RelativeSelfAttention(experiments.D_MODEL, NUM_HEADS, max_distance=CLIP)
    with torch.no_grad():
        parts = at["0.qkv"][3].view(experiments.D_MODEL, 3, -1).unbind(1)
        for name, weight in zip(("q_proj", "k_proj", "v_proj"), parts, strict=True):
            getattr(module, name).weight.copy_(weight.T)
        module.out_proj.weight.copy_(at["0.out"][3].T)
        for layer in (module.q_proj, module.k_proj, module.v_proj, module.out_proj):
            if layer.bias is not None:
                layer.bias.zero_()
        # The module's offsets are j - i from -clip to clip, ours distances i - j from 0
        module.key_offsets[: CLIP + 1] = at["0.keys"][3].flip(0)
        module.value_offsets[: CLIP + 1] = at["0.values"][3].flip(0)
        out = module(x[3], torch.ones(15, 15, dtype=torch.bool).tril())
    out = out[0] if isinstance(out, tuple) else out
    torch.testing.assert_close(model._attend(at, 0, x)[3], out)


def test_a_window_hides_what_is_further_back() -> None:
    model = Model("RoPE", 8, 8, num_layers=1, window=4)
    at, ids = fresh(model), random_ids(2, 12)
    changed = ids.clone()
    changed[:, :, 5] = (ids[:, :, 5] + 1) % 8
    differs = (model.hidden(at, ids) - model.hidden(at, changed)).abs().amax((0, 1, 3)) > 1e-4
    assert differs.tolist() == [5 <= t < 9 for t in range(12)]


def test_sinusoids_are_the_chapter_s() -> None:
    torch.testing.assert_close(experiments.sinusoids(60), sinusoidal_table(60, 32))
    torch.testing.assert_close(experiments.sinusoids(9, 10.0, 6), sinusoidal_table(9, 6, 10.0))


def test_rotated_products_know_the_offset_only() -> None:
    q, k = torch.randn(2, 8).unbind()
    products = experiments.rotate(q.expand(30, 8)) @ experiments.rotate(k.expand(30, 8)).T
    torch.testing.assert_close(products[5:, 5:], products[:-5, :-5], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(experiments.rotate(q[None])[0], q)


def test_slopes_are_alibi_s() -> None:
    assert experiments.slopes().tolist() == [2**-2, 2**-4, 2**-6, 2**-8]
    assert experiments.slopes(8).tolist() == [2.0**-h for h in range(1, 9)]


def test_random_starts_are_sinusoids_from_there() -> None:
    model = Model("random start", 8, 8)
    at, ids = fresh(model), random_ids(2, 5)
    starts = torch.full(ids.shape[:2], 7)
    long = torch.cat([torch.zeros(MODELS, 2, 7, dtype=torch.long), ids], 2)
    plain = Model("sinusoidal", 8, 8, num_layers=0)
    moved = Model("random start", 8, 8, num_layers=0).hidden(at, ids, starts)
    torch.testing.assert_close(moved, plain.hidden(at, long)[:, :, 7:])
    assert not torch.allclose(model.hidden(at, ids, starts), model.hidden(at, ids))


def test_the_tasks_ask_what_they_say() -> None:
    draw = torch.Generator().manual_seed(3)
    ids, wanted = experiments.three_back(4, 9, draw)
    assert (wanted[:, :, :3] == -1).all()
    assert (wanted[:, :, 3:] == ids[:, :, :-3]).all()
    ids, wanted = experiments.latest(4, 30, draw)
    for tokens, answers in zip(ids[5].tolist(), wanted[5].tolist(), strict=True):
        digit = -1
        for token, answer in zip(tokens, answers, strict=True):
            digit = token if token < experiments.SYMBOLS else digit
            assert answer == digit
    ids, wanted = experiments.which_first(50, 11, draw)
    assert (wanted[:, :, :-1] == -1).all()
    rows = zip(ids.flatten(0, 1).tolist(), wanted[..., -1].flatten().tolist(), strict=True)
    for tokens, answer in rows:
        assert tokens.count(0) == tokens.count(1) == tokens.count(10) == 1
        assert tokens[-1] == 10
        assert answer == (tokens.index(0) < tokens.index(1))


def test_without_positions_and_mask_the_order_of_others_makes_no_difference() -> None:
    for name in ("bag of words", "no positions, no mask", "causal mask, one layer"):
        model = experiments.ORDER[name]
        at, ids = fresh(model), random_ids(2, 7)
        mixed = torch.cat([ids[:, :, :-1].flip(-1), ids[:, :, -1:]], -1)
        one, other = (experiments._logits(model, at, each)[:, :, -1] for each in (ids, mixed))
        torch.testing.assert_close(one, other)
    model = experiments.ORDER["causal mask, two layers"]
    at = fresh(model)
    one, other = (experiments._logits(model, at, each)[:, :, -1] for each in (ids, mixed))
    assert not torch.allclose(one, other, atol=1e-3)


def test_a_file_is_read_at_the_rate_that_validation_chooses(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(experiments, "FOLDER", tmp_path)
    good = torch.tensor([0.2, 0.3, 0.9, 0.3, 0.2, 0.1, 0]).repeat_interleave(5)
    share = torch.arange(5).repeat(len(experiments.LRS)) / 10
    experiments.write("offset", experiments._rows("m", good, {"3": share, "4": share + 0.2}))
    found = experiments.read("offset")["m"]
    assert (found.lr, found.x) == (experiments.LRS[2], (3, 4))
    assert found.between(3, 5) == pytest.approx((0.3, math.sqrt(0.025)))
    assert found.last == pytest.approx((0.4, math.sqrt(0.025)))
    rows = experiments._rows("m", -good, {"share": share}, steps=10)
    rows += experiments._rows("m", good, {"share": share + 0.1}, steps=20)
    experiments.write("base", rows)
    found = experiments.read("base")["m"]
    assert (found.lr, found.x, found.shares.shape) == (experiments.LRS[2], (10, 20), (5, 2))
    assert found.last[0] == pytest.approx(0.3)


def test_every_experiment_is_stored_with_five_seeds() -> None:
    models = {
        "extrapolation": experiments.METHODS, "offset": experiments.METHODS,
        "window": experiments.WINDOWED,
        "base": map(str, experiments.BASES), "order": experiments.ORDER,
    }  # fmt: skip
    for name, expected in models.items():
        found = experiments.read(name)
        assert list(found) == list(expected)
        assert all(one.shares.shape == (5, len(one.x)) for one in found.values())


def test_experiments_run_and_say_what_was_right(monkeypatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(experiments, "METHODS", ("random start",))
    rows = experiments.offset(1, 2, 20)
    assert len(rows) == MODELS
    assert "2" not in rows[0]
    assert 0 <= rows[0]["59"] <= 1
    monkeypatch.setattr(experiments, "BASES", (10,))
    assert len(experiments.base((1, 2), 1, 20)) == 2 * MODELS


def test_the_pictures_show_every_method_and_every_hand() -> None:
    found = experiments.read("extrapolation")
    figure = extrapolation_pictures.by_method({"latest digit": found})
    assert [ax.get_title(loc="left") or ax.get_title() for ax in figure.axes][:7] == list(found)
    figure = extrapolation_pictures.hands({"in training": (0, 1, 2), "new": (40,)}, (1.0, 0.1))
    for ax, frequency in zip(figure.axes, (1.0, 0.1), strict=True):
        ends = [(line.get_xdata()[1], line.get_ydata()[1]) for line in ax.lines]
        for (right, up), position in zip(ends, (0, 1, 2, 40), strict=True):
            # Position 0 points to the 12, and hands turn clockwise.
            angle = frequency * position
            assert (right, up) == pytest.approx((math.sin(angle), math.cos(angle)))
    plt.close("all")


def test_the_control_measures_the_same_models() -> None:
    whole = experiments.read("extrapolation")
    for name, one in experiments.read("window").items():
        assert one.lr == whole[name].lr
        assert torch.equal(one.shares[:, :20], whole[name].shares[:, :20])  # nothing hidden there
