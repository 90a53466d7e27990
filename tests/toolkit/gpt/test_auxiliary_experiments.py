"""The stored experiment on the auxiliary loss has its rows, and its parts do what they say."""

from __future__ import annotations

from types import SimpleNamespace

import torch

import solutions.gpt
import solutions.gpt.transfer
from toolkit import training
from toolkit.corpora.code_corpus import EXTRACT, PAD, START, Example, Task
from toolkit.gpt import auxiliary_experiments as experiments
from toolkit.many_models import SEEDS


def test_every_network_has_the_same_search_and_five_seeds():
    found = experiments.read()
    sizes = {size for name, way, size in found if way == experiments.RANDOM}
    assert experiments.MAIN in sizes
    for way in experiments.NETWORKS:
        assert tuple(experiments.search("name", way)) == experiments.LRS
        for size in sizes:
            assert len(found["name", way, size].scores) in (SEEDS, experiments.MORE_SEEDS)
            assert all(0 < value < 1 for value in found["name", way, size].scores)


def test_batches_hold_each_example_once_an_epoch():
    examples = [Example("", [5] * (1 + n % 7)) for n in range(24)]
    made = list(experiments.batches(examples, 6, seed=0))
    assert [len(batch) for batch in made] == [experiments.BATCH] * 6
    for epoch in (made[:3], made[3:]):
        assert {id(e) for batch in epoch for e in batch} == {id(e) for e in examples}


def test_inputs_are_padded_behind_extract():
    ids = experiments.padded([Example("", [7]), Example("", [7, 8, 9])])
    assert ids.tolist() == [[START, 7, EXTRACT, PAD, PAD], [START, 7, 8, 9, EXTRACT]]


def test_a_run_learns_a_task_that_one_token_decides_and_leaves_the_model_alone():
    torch.set_num_threads(1)
    with training.seeded(0):
        gpt = solutions.gpt.GPT(20, 8, 16, 1, 2)
    before = {name: p.clone() for name, p in gpt.state_dict().items()}
    parts = SimpleNamespace(**(vars(solutions.gpt.transfer) | vars(solutions.gpt)))
    examples = [Example("", [10 + n % 2, 12, 13 + n % 3], label=n % 2) for n in range(16)]
    task = Task("name", "single", "Which?", ("a", "b"), examples, examples, examples)
    setting = experiments.Setting({"name": task}, SimpleNamespace(module=parts, model=gpt))
    _, row = experiments.tuned(setting, task, experiments.way_of(0.5), 16, 1e-2, 0, 60)
    assert row["test"] == 1.0
    assert len(str(row["curve"]).split()) == 3
    assert all(torch.equal(p, before[name]) for name, p in gpt.state_dict().items())


def test_extract_is_one_more_target_of_each_text():
    torch.set_num_threads(1)
    with training.seeded(0):
        gpt = solutions.gpt.GPT(20, 8, 16, 1, 2).eval()
    examples = [Example("", [10, 12, 13]), Example("", [11])]
    plain, full = (experiments.text_loss(gpt, examples, extract) for extract in (False, True))
    last = 0.0
    for e in examples:
        ids = torch.tensor([[START, *e.first]])
        last -= float(gpt(ids).detach()[0, -1].log_softmax(-1)[EXTRACT])
    assert abs(6 * full - (4 * plain + last)) < 1e-3
