"""Contestants take turns, and are refused if they do not say the same."""

from __future__ import annotations

import itertools

import pytest
import torch

from autograder.benchmarks import timing


def test_contestants_take_turns_after_a_round_that_does_not_count() -> None:
    called: list[str] = []
    ticks = itertools.count()
    contestants = {name: lambda name=name: called.append(name) for name in "abc"}
    seconds = timing.taking_turns(contestants, 4, clock=lambda: float(next(ticks)))
    assert called == list("abc" + "abc" + "bca" + "cab" + "abc")
    assert seconds == {name: [1.0] * 4 for name in "abc"}


def test_a_ratio_is_the_median_of_the_ratios_of_a_round() -> None:
    seconds = {"one": [1.0, 2.0, 4.0], "two": [3.0, 2.0, 20.0]}
    one, two, ratio = timing.compared("walk", seconds, [("one", "two")], "here")
    assert (one.name, one.value, one.unit, one.detail) == ("walk, one", 2000.0, "ms", "here")
    assert (two.name, two.value) == ("walk, two", 3000.0)
    assert (ratio.name, ratio.value) == ("walk, one against two", 3.0)  # 3, 1 and 5
    assert ratio.detail == "median of 3 rounds"


def test_other_values_and_other_ids_are_refused() -> None:
    one = torch.arange(20.0).view(10, 2)
    timing.refuse_other_values({"a": one, "b": one + 1e-6})
    with pytest.raises(RuntimeError, match="b and a differ by 1"):
        timing.refuse_other_values({"a": one, "b": one + 1})
    with pytest.raises(RuntimeError, match="b and a differ by nan"):
        timing.refuse_other_values({"a": one, "b": one * float("nan")})
    almost = one.clone()
    almost[3] += 1  # one row of ten may fall the other way
    timing.refuse_other_ids({"a": one, "b": almost})
    almost[4] += 1
    with pytest.raises(RuntimeError, match="b and a agree on 80%"):
        timing.refuse_other_ids({"a": one, "b": almost})
    with pytest.raises(RuntimeError, match="wrote"):
        timing.refuse_other_ids({"a": one, "b": one[:, 1:]})


def test_one_thread_is_given_back() -> None:
    before = torch.get_num_threads()
    with timing.one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
