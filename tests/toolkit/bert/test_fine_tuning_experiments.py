"""The stored experiment on fine-tuning: its rules are kept, and it goes on where it stopped."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import solutions.bert
from toolkit import training
from toolkit.bert import fine_tuning
from toolkit.bert import fine_tuning_experiments as experiments
from toolkit.corpora.docstrings import CLS, SEP, Example, Task


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def small() -> Any:
    """A tiny encoder, and a task that its first token decides."""
    with training.seeded(0):
        bert = solutions.bert.BertModel(20, 8, 1, 2, 16, max_length=16, dropout=0.0)
    examples = [Example("", [10 + n % 2, 12, 13 + n % 3], label=n % 2) for n in range(12)]
    task = Task("module", "single", "Which?", ("a", "b"), examples, examples, examples)
    shipped = SimpleNamespace(module=solutions.bert, model=SimpleNamespace(bert=bert))
    return SimpleNamespace(tasks={"module": task}, shipped=shipped, corpus=None)


def test_a_run_keeps_the_weights_of_its_best_validation() -> None:
    setting = small()
    task = setting.tasks["module"]
    head, row = experiments.tuned(setting, task, "pre-trained", 8, 1e-2, 0, 50)
    curve = [int(v) for v in str(row["curve"]).split()]
    assert row["best_step"] == experiments.EVERY * (1 + curve.index(max(curve)))
    kept = fine_tuning.score(head, task, setting.shipped.module, split="validation")["accuracy"]
    assert kept == pytest.approx(row["validation"], abs=1e-4)


def test_only_what_is_missing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def row(way: str, labelled: int, lr: float, seed: int) -> dict[str, object]:
        measured.append((way, labelled, lr, seed))
        return {
            "task": "module", "way": way, "labelled": labelled, "lr": lr, "seed": seed,
            "best_step": 0, "validation": float(lr == 1e-3), "test": 0.5, "curve": "",
        }  # fmt: skip

    monkeypatch.setattr(experiments.Setting, "load", small)
    monkeypatch.setattr(
        experiments, "tuned", lambda s, t, way, n, lr, seed, steps: (None, row(way, n, lr, seed))
    )
    monkeypatch.setattr(
        experiments, "without_network", lambda s, t, way, n, seed: row(way, n, 0.0, seed)
    )
    file = tmp_path / "rows.csv"
    experiments.pretraining_worth("module", file)
    networks = [m for m in measured if m[0] == "random"]
    searched = len(experiments.LRS) * experiments.SEARCH_SEEDS
    assert len(networks) == searched + 3 + 5 * len(experiments.SIZES["module"])
    assert {lr for _, n, lr, _ in networks if n != experiments.MAIN["module"]} == {1e-3}
    before = file.read_bytes()
    measured.clear()
    experiments.pretraining_worth("module", file)
    assert not measured
    assert file.read_bytes() == before


def test_spans_are_decoded_in_three_ways() -> None:
    # Question of one token, passage of three; the best start lies behind the best end
    example = Example("", [10], second=[11, 12, 13], span=(0, 1))
    task = Task("span", "span", "Where?", (), [example], [example], [example])
    ids, _ = solutions.bert.build_input(example.first, example.second)
    assert ids[0] == CLS
    assert ids[2] == SEP
    start, end = (torch.tensor([[0.0, 9, 0, *row, 0]]) for row in ((2.0, 0, 3), (0.0, 4, 0)))

    class Head(torch.nn.Module):
        def forward(self, *rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return start, end

    found = experiments.decodings(Head(), task, SimpleNamespace(module=solutions.bert))
    assert found["exact"] == {"anywhere": 0, "apart": 0, "jointly": 1}
    assert found["backwards"] == found["questions"] == 1


def test_the_stored_learning_rates_are_not_at_an_end() -> None:
    found = experiments.read()
    for (task, way, labelled), one in found.items():
        if way in experiments.NETWORKS:
            lrs = sorted(experiments.search(task, way))
            assert len(lrs) == 5
            assert len(one.scores) == 5, (task, way, labelled)
            # At chance with every learning rate: there none is better
            if (task, way) != ("pair", "random"):
                assert lrs[0] < one.lr < lrs[-1], (task, way)
    assert {task for task, _, _ in found} == set(experiments.MAIN)
