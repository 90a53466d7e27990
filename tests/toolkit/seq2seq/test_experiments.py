"""The stored experiments: their models compute what PyTorch's do, their files say what they say."""

from __future__ import annotations

import torch
from torch import nn

from toolkit.seq2seq import experiments as experiments


def test_every_cell_computes_what_pytorch_s_layer_computes() -> None:
    torch.manual_seed(0)
    x = torch.randn(experiments.MODELS, 2, 5, 3)
    for kind in experiments.CELLS:
        at = experiments._cell(kind, "cell", 3, 4)
        layer = getattr(nn, kind)(3, 4, batch_first=True)
        with torch.no_grad():
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                own = at[f"cell.{name}"][7]
                getattr(layer, f"{name}_l0").copy_(own.T if "weight" in name else own[0])
        zeros = torch.zeros(experiments.MODELS, 2, 4)
        states, _ = experiments._run(
            kind, at, "cell", x, (zeros, zeros)[: 2 if kind == "LSTM" else 1]
        )
        torch.testing.assert_close(torch.stack(states, 2)[7], layer(x[7])[0].detach())


def test_an_open_gate_is_the_second_block_of_rows() -> None:
    torch.manual_seed(0)
    plain = experiments._cell("GRU", "cell", 3, 4)["cell.bias_ih"]
    torch.manual_seed(0)
    opened = experiments._cell("GRU", "cell", 3, 4, keep=2.0)["cell.bias_ih"]
    wanted = torch.tensor([0.0] * 4 + [2] * 4 + [0] * 4)
    torch.testing.assert_close((opened - plain)[0, 0], wanted)


def test_each_model_learns_at_its_own_rate() -> None:
    at = {"w": torch.zeros(experiments.MODELS, 1)}
    for _ in experiments._train(at, lambda at, step: at["w"][:, 0], 1):
        pass
    moved = (-at["w"].detach()[:, 0]).reshape(len(experiments.LRS), -1)
    torch.testing.assert_close(
        moved / moved[0, 0], (torch.tensor(experiments.LRS) / 1e-3)[:, None].expand_as(moved)
    )


def test_a_file_is_read_at_the_rate_that_validation_chooses(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(experiments, "FOLDER", tmp_path)
    rows = [
        {"model": "m", "at": 2, "steps": steps, "lr": lr, "seed": seed,
         "validation": validation if steps == 20 else 0.0, "test": seed / 10}
        for steps in (10, 20)
        for lr, validation in zip(experiments.LRS, (0.2, 0.3, 0.9, 0.3, 0.2), strict=True)
        for seed in range(5)
    ]  # fmt: skip
    experiments.write("memory", rows)
    found = experiments.read("memory")["m"]
    assert found[2, 20][0] == found[2, 10][0] == 0.2
    assert found[2, 20][2] == 6e-3


def test_each_experiment_is_stored_with_all_its_models() -> None:
    models = {
        "memory": experiments.REMEMBER, "bottleneck": experiments.CARRY,
        "forcing": experiments.FORCED,
    }  # fmt: skip
    assert set(models) == set(experiments.RUNS)
    for name, expected in models.items():
        assert list(experiments.read(name)) == list(expected)


def test_forced_steps_read_the_right_digit_and_free_ones_their_own() -> None:
    torch.manual_seed(0)
    at = experiments._translator(4, False)
    ids = torch.randint(10, (experiments.MODELS, 3, 5))
    logits, _ = experiments._written(at, ids, 4, torch.ones_like(ids, dtype=torch.bool))
    states, code = experiments._encode(at, ids, 4)
    start = torch.full_like(ids[:, :, :1], experiments.DIGITS)
    seen, _ = experiments._decode(at, torch.cat([start, ids[:, :, :-1]], 2), code, code)
    torch.testing.assert_close(logits, experiments._score(at, states, code, seen))
    free, digits = experiments._written(at, ids, 4)
    torch.testing.assert_close(free.argmax(-1), digits)
    some = torch.zeros_like(ids, dtype=torch.bool)
    torch.testing.assert_close(experiments._written(at, ids, 4, some)[0], free)
    some[:, :, 0] = True
    mixed, _ = experiments._written(at, ids, 4, some)
    torch.testing.assert_close(mixed[:, :, 1], logits[:, :, 1])
    assert not torch.allclose(mixed[:, :, 1], free[:, :, 1])


def test_an_experiment_runs_and_says_what_was_right() -> None:
    torch.set_num_threads(1)
    rows = experiments.bottleneck((1,), batch=2)
    count = len(experiments.CARRY) * len(experiments.LENGTHS) * experiments.MODELS
    assert len(rows) == count
    assert all(0 <= row["test"] <= 1 for row in rows)
