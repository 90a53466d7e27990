"""The Transformer chapter's stored experiments: models compute what they say, files are whole."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from solutions.transformer import Encoder as ReferenceEncoder
from solutions.transformer import ResidualBlock
from toolkit import many_models
from toolkit.many_models import model_rows
from toolkit.transformer import experiments as experiments
from toolkit.transformer import norm_order_pictures, residual_pictures
from toolkit.transformer.experiments import MODELS, Encoder, Stack


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def points(count: int = 6) -> Tensor:
    return experiments.spirals(count, torch.Generator().manual_seed(1))[0]


def test_blocks_are_the_chapter_s() -> None:
    torch.manual_seed(0)
    model = Stack("residual", 2)
    at = model.parameters()
    states = model.states(at, points())
    for n in range(2):
        block = ResidualBlock(experiments.WIDTH)
        with torch.no_grad():
            block.w_1.weight.copy_(at["blocks"][3, n, 0].T)
            block.w_2.weight.copy_(at["blocks"][3, n, 1].T)
        torch.testing.assert_close(block(states[n][3]), states[n + 1][3])


def test_the_control_adds_the_same_and_lets_no_gradient_through() -> None:
    found = []
    for way in ("residual", "sum only"):
        torch.manual_seed(0)
        model = Stack(way, 1)
        at = model.parameters()
        at["blocks"][:, :, 1] = 0  # F is 0: only the residual connection is left
        at["first"].requires_grad_()
        last = model.states(at, points())[-1]
        (gradient,) = torch.autograd.grad(last.sum(), at["first"])
        found.append((last.detach(), gradient))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1].abs().sum() > 0
    assert found[1][1].abs().sum() == 0


def test_he_s_initialisation_keeps_the_size_on_average() -> None:
    torch.manual_seed(0)
    weights = Stack("plain, He", 24).parameters()["blocks"]
    assert weights.var().item() == pytest.approx(2 / experiments.WIDTH, rel=0.02)


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_encoder_is_the_chapter_s(norm_first: bool) -> None:
    torch.manual_seed(0)
    model = Encoder(norm_first, 2, 0)
    at = model.parameters()
    for name in ("gain", "shift"):
        at[name] = torch.randn_like(at[name])
    ids, _ = experiments.to_sort(3, torch.Generator().manual_seed(1))
    stream = model.stream(at, ids)
    d_model = experiments.D_MODEL
    other = ReferenceEncoder(
        2, d_model, experiments.NUM_HEADS, experiments.D_FF, norm_first=norm_first
    ).eval()
    norms = [c.norm for layer in other.layers for c in layer.sublayer]
    with torch.no_grad():
        for number, norm in enumerate([*norms, other.norm] if norm_first else norms):
            norm.gamma.copy_(at["gain"][4, number, 0, 0])
            norm.beta.copy_(at["shift"][4, number, 0, 0])
        for number, layer in enumerate(other.layers):
            attention, network = layer.self_attn, layer.feed_forward
            for part in attention.parameters():
                part.zero_()
            q, k, v = at[f"{number}.qkv"][4].split(d_model, 1)
            attention.q_proj.weight.copy_(q.T)
            attention.k_proj.weight.copy_(k.T)
            attention.v_proj.weight.copy_(v.T)
            attention.out_proj.weight.copy_(at[f"{number}.out"][4].T)
            network.w_1.weight.copy_(at[f"{number}.up"][4].T)
            network.w_1.bias.copy_(at[f"{number}.up_bias"][4, 0])
            network.w_2.weight.copy_(at[f"{number}.down"][4].T)
            network.w_2.bias.zero_()
        torch.testing.assert_close(other(stream[0][4]), stream[-1][4], atol=1e-4, rtol=1e-4)


def test_the_tasks_ask_what_they_say() -> None:
    draw = torch.Generator().manual_seed(3)
    ids, wanted = experiments.to_sort(4, draw)
    assert wanted[2, 1].tolist() == sorted(ids[2, 1].tolist())
    where, arm = experiments.spirals(1000, draw)
    assert where.abs().max() <= 2
    assert set(arm.unique().tolist()) == {0, 1}
    assert 0.45 < arm.mean() < 0.55


def test_warm_up_and_clipping_change_the_first_steps() -> None:
    def first_step(**how: object) -> float:
        at = {"w": torch.ones(many_models.SEEDS, 1)}
        for _ in many_models.train(at, lambda at, step: 7 * at["w"].sum(1), 1, (0.1,), **how):
            pass
        return 1 - at["w"][0, 0].item()

    assert first_step() == pytest.approx(0.1 * 0.02, rel=1e-3)  # the last step is a small one
    assert first_step(warmup=100) == pytest.approx(0.1 * 0.01, rel=1e-3)

    seen: list[Tensor] = []

    def losses(at: dict[str, Tensor], step: int) -> Tensor:
        seen.append(at["w"].detach().clone())
        return (100 if step == 1 else 1) * at["w"].sum(1)

    moved = []
    for norm in (1.0, None):
        seen.clear()
        at = {"w": torch.ones(many_models.SEEDS, 1)}
        for _ in many_models.train(at, losses, 3, (0.1,), max_norm=norm):
            pass
        moved.append((seen[1] - seen[2])[0, 0].item())
    # Clipped, both gradients are 1; otherwise the second is small beside the root mean square
    assert moved[0] > moved[1]


def test_experiments_run_one_variant_alone() -> None:
    rows = experiments.residual("sum only, 4 blocks", checkpoints=(1, 2), batch=2)
    assert len(rows) == 2 * MODELS
    assert {row["variant"] for row in rows} == {"sum only, 4 blocks"}
    rows = experiments.norm_order("pre-norm, 2 layers, warm-up", steps=4, batch=2, every=2)
    assert len(rows) == MODELS + 5
    assert [row["lr"] for row in rows[-5:]] == [0.1] * 5
    assert list(rows[0])[-3:] == ["loss", "2", "4"]


def test_a_part_replaces_its_own_rows(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(experiments, "FOLDER", tmp_path)
    good = torch.tensor([0.2, 0.3, 0.9, 0.3, 0.2]).repeat_interleave(5)
    loss = torch.arange(5).repeat(5) / 10
    for name, shift in (("residual, 4 blocks", 0.0), ("plain, 4 blocks", 0.5)):
        first = {"variant": name, "steps": 10}
        rows = model_rows(first, experiments.LRS, {"validation": good, "loss": loss + shift})
        rows += model_rows(
            first | {"steps": 20},
            experiments.LRS,
            {"validation": good, "loss": loss + 2 * shift},
        )
        experiments.write("residual", rows)
    experiments.write("residual", rows)
    found = experiments.read("residual")
    assert list(found) == ["plain, 4 blocks", "residual, 4 blocks"]
    one = found["plain, 4 blocks"]
    assert (one.lr, one.steps) == (experiments.LRS[2], (10, 20))
    assert one.result[0] == pytest.approx(1.2)
    torch.testing.assert_close(one.curve, torch.arange(5)[:, None] / 10 + torch.tensor([0.5, 1.0]))


def test_every_variant_is_stored_with_five_seeds() -> None:
    for name, variants in experiments.VARIANTS.items():
        found = experiments.read(name)
        assert tuple(found) == variants
        for one in found.values():
            assert one.curve.shape == (5, len(one.steps))
            assert all(len(seeds) == 5 for seeds in one.by_lr.values())


def test_signals_before_training() -> None:
    rms, back = experiments.signals("residual", 4, points=4)
    assert rms.shape == back.shape == (MODELS, 5)
    cut, _ = experiments.signals("sum only", 4, points=4)
    assert torch.equal(rms, cut)
    gradients, sizes = experiments.first_gradients("post-norm", 3, batch=2)
    assert gradients.shape == (MODELS, 3)
    assert sizes.shape == (MODELS, 4)
    torch.testing.assert_close(sizes[:, 1:], torch.ones(MODELS, 3), atol=1e-3, rtol=0)


def test_pictures_hold_the_pages_numbers() -> None:
    x, first = residual_pictures.X, residual_pictures.X @ residual_pictures.W_1
    assert (F.relu(F.relu(first) @ residual_pictures.W_2 + x)).tolist() == [1.5, 2]
    assert norm_order_pictures.exchange(norm_order_pictures.X).tolist() == [1, 5, 1, 5]
    for draw in (residual_pictures.block, norm_order_pictures.one_token):
        written = " ".join(text.get_text() for text in draw().axes[0].texts)
        assert "−1" in written
        assert "(1" in written
    page = residual_pictures.paths(3, 0.5)
    assert "3 × 0.25" in page
    assert "<b>3.38</b>" in page  # 1.5 cubed
    assert "through more" in residual_pictures.paths(24, 0.1)
    gradients = {order: torch.rand(5, 4) for order in experiments.ORDERS}
    sizes = {order: torch.rand(5, 5) for order in experiments.ORDERS}
    figure = norm_order_pictures.by_layer(gradients, sizes)
    assert len(figure.axes[0].lines) == len(figure.axes[1].lines) == 2
    figure = residual_pictures.losses(experiments.read("residual"))
    assert len(figure.legends[0].get_texts()) == len(experiments.WAYS)
    found = experiments.read("norm_order")
    assert len(norm_order_pictures.by_learning_rate(found, 2.0).axes) == len(experiments.LAYERS)
    assert len(norm_order_pictures.curves(found, 12, 2.0).axes[0].lines) == 5
    plt.close("all")


def test_a_decoder_s_stream_ends_in_its_predictions() -> None:
    from toolkit import models

    shipped = models.load("transformer-en-de")
    run = residual_pictures.decoder_stream(shipped, "January 30, 2015")
    assert run.tokens == ("(start)", "3", "0", ".", "Januar", "2", "0", "1", "5")
    assert run.vectors.shape[:2] == (7, 9)
    with torch.no_grad():
        logits = shipped.model.generator(shipped.model.decoder.norm(run.vectors[-1]))
    assert torch.equal(logits.argmax(-1), run.next_ids)
    page = residual_pictures.predictions(shipped, run, 3)
    assert page.count("<tr>") == 7
    assert "Januar" in page
