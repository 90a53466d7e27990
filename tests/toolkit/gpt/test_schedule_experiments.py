"""The stored experiment on the schedule: its text, its schedules, its file."""

import math

import torch

import solutions.gpt as parts
from toolkit.gpt import schedule_experiments as experiments
from toolkit.gpt.measures import stream_loss


def test_no_function_is_in_two_splits() -> None:
    streams, letters = experiments.characters()
    texts = {name: "".join(letters[i] for i in stream.tolist()) for name, stream in streams.items()}
    assert all(text.startswith(("def ", "async def ")) for text in texts.values())
    assert texts["test"][:400] not in texts["train"]
    assert len(texts["train"]) > 6 * len(texts["test"])


def test_schedules_differ_in_their_beginning_and_their_end() -> None:
    ends = {
        name: [round(lr(step, 10, 100, parts.cosine_lr), 3) for step in (1, 10, 55, 100)]
        for name, lr in experiments.SCHEDULES.items()
    }
    assert ends["constant"] == [1, 1, 1, 1]
    assert ends["warm-up only"] == [0.1, 1, 1, 1]
    assert ends["cosine only"] == [1, 0.976, 0.422, 0]
    assert ends["warm-up and cosine"] == [0.1, 1, 0.5, 0]


def test_a_few_steps_lower_the_loss() -> None:
    streams, letters = experiments.characters()
    model = experiments.trained(
        parts, streams["train"], len(letters), "warm-up and cosine", 3e-2, seed=0, steps=20
    )
    loss = stream_loss(model, streams["validation"], experiments.LENGTH)
    assert loss < math.log(len(letters)) - 0.5


def test_no_stored_learning_rate_was_best_at_an_end() -> None:
    found = experiments.read()
    assert list(found) == list(experiments.SCHEDULES)
    for one in found.values():
        assert list(one.validation) == list(experiments.LRS)
        assert experiments.LRS[0] < one.lr < experiments.LRS[-1]
        assert one.test.shape == (experiments.SEEDS,)
        assert bool(torch.isfinite(one.test).all())
