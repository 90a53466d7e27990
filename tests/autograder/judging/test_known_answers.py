"""What is known of equal answers is not worked out again, and nothing else is taken for known."""

from __future__ import annotations

import pytest
import torch

from autograder.judging import known_answers
from autograder.judging.known_answers import Inconstant, Known, same_request
from autograder.judging.runner import Graders
from autograder.sandbox import wire
from autograder.sandbox.executor import Executor
from autograder.sandbox.session import Answer, request_frame
from autograder.units import variants


class Worker:
    """A worker without a sandbox: frames go in and come out."""

    def __init__(self, source: str) -> None:
        self.executor = Executor(variants.load_variant(source, "student"))
        self.asked: list[str] = []
        self.read = 0

    def execute(self, request):
        return self.ask(request, request_frame(request)).outcome

    def ask(self, request, frame, kind_of=lambda frame: None, reply=None):
        carried = wire.decode(frame, strides=True)["request"]
        self.asked.append(str(carried.get("name") or carried["op"]))
        outcome = self.executor.execute(carried)
        if outcome["kind"] == "memory":
            return Answer("memory", None, outcome)
        answer = bytearray(wire.encode(outcome, bounds=wire.ANSWER))
        kind = kind_of(answer)
        self.read += kind is None
        return Answer(kind or outcome["kind"], answer)


def grade(toy, source, **options):
    worker = Worker(source)
    options.setdefault("refusing", worker.executor.refusing)
    return toy.graders.run(worker.execute, ask=worker.ask, **options), worker


def count_calls(toy, monkeypatch) -> list[str]:
    """The names of the tests that are run from here on."""
    ran: list[str] = []
    plain = Graders._call

    def call(self, item):
        ran.append(item.name)
        return plain(self, item)

    monkeypatch.setattr(Graders, "_call", call)
    return ran


WRONG = {
    "right": lambda text: text,
    "sum": lambda text: text.replace(" / x.shape[dim]", ""),
    "rows": lambda text: text.replace("x.shape[dim]", "x.shape[0]"),
    "renamed": lambda text: text.replace("self.weight", "self.scale"),
    "todo": lambda text: text.replace("raise ValueError", "raise NotImplementedError"),
    "refuses": lambda text: "def mean(x, dim=-1):\n    raise ValueError('no')\n",
    "nothing": lambda text: "import torch\n",
    "forbidden": lambda text: text.replace("x.sum(dim) / x.shape[dim]", "x.mean(dim)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_known_answer_gets_the_same_verdict(toy, name):
    source = WRONG[name](toy.source)
    expected = toy.run(source)
    for _ in range(2):
        assert grade(toy, source)[0] == expected


def test_the_order_in_which_students_come_does_not_matter(toy, monkeypatch):
    expected = {name: toy.run(change(toy.source)) for name, change in WRONG.items()}
    for name in [*WRONG, *reversed(WRONG)]:
        assert grade(toy, WRONG[name](toy.source))[0] == expected[name], name


def test_equal_answers_are_neither_read_nor_judged_again(toy, monkeypatch):
    first, worker = grade(toy, toy.source)
    assert worker.read == len(worker.asked)
    ran = count_calls(toy, monkeypatch)
    second, again = grade(toy, toy.source)
    assert second == first
    assert again.asked == worker.asked
    assert again.read == 0
    assert ran == []


def test_a_new_answer_is_judged_and_asked_no_more_than_it_takes(toy, monkeypatch):
    grade(toy, toy.source)
    ran = count_calls(toy, monkeypatch)
    results, worker = grade(toy, toy.source.replace("x - mean(x)", "x + mean(x)"))
    assert ran == ["test_centre"]
    assert results["centre"].misconception == "adds"
    _, plain = grade(Fresh(toy), toy.source.replace("x - mean(x)", "x + mean(x)"))
    assert worker.asked == plain.asked


class Fresh:
    """The same graders, knowing nothing."""

    def __init__(self, toy) -> None:
        self.graders = Graders("toy", path=toy.path, assignment=toy.assignment)


def test_another_seed_is_another_conversation(toy, monkeypatch):
    grade(toy, toy.source, seed=1)
    ran = count_calls(toy, monkeypatch)
    grade(toy, toy.source, seed=2)
    assert set(ran) == {item.name for item in toy.graders.items}


def test_a_result_can_be_changed_without_changing_what_is_known(toy):
    first, _ = grade(toy, toy.source)
    expected = first["mean"].tests[0].outcome
    first["mean"].tests[0].outcome = "spoilt"
    second, _ = grade(toy, toy.source)
    assert second["mean"].tests[0].outcome == expected


def test_what_a_limit_made_of_a_request_is_not_kept(toy, monkeypatch):
    source = toy.source.replace(
        "return x.sum(dim) / x.shape[dim]", "raise MemoryError if x.shape[0] == 2 else KeyError"
    )
    first, _ = grade(toy, source)
    ran = count_calls(toy, monkeypatch)
    second, _ = grade(toy, source)
    assert second == first
    assert "test_small" in ran
    assert "test_other_axis" not in ran


def test_what_is_kept_has_an_end(toy, monkeypatch):
    monkeypatch.setattr(known_answers, "MAX_NODES", 3)
    expected = toy.run(toy.source)
    for _ in range(2):
        assert grade(toy, toy.source)[0] == expected
    assert len(toy.graders._known._nodes) <= 3


def test_a_test_that_asks_at_random_is_judged_all_the_same(toy):
    path = toy.path.with_name("test_random.py")
    path.write_text(
        "import torch\n"
        "from autograder.judging import expectations\n"
        "from autograder.judging.grader_marks import exercise\n"
        "asked = []\n"
        "@exercise('mean')\n"
        "def test_random(student, reference, draw):\n"
        "    '''Asks something else each time.'''\n"
        "    asked.append(1)\n"
        "    x = torch.ones(2, 2) * len(asked)\n"
        "    expectations.close(student.mean(x), reference.mean(x), 'the mean')\n"
    )
    graders = Graders("toy", path=path, assignment=toy.assignment)
    for source, points in ((toy.source, 4), ("def mean(x):\n    return x\n", 0), (toy.source, 4)):
        worker = Worker(source)
        assert graders.run(worker.execute, ask=worker.ask)["mean"].points == points


def test_a_conversation_that_goes_another_way_is_noticed():
    book = Known()
    worker = Worker("def f(x):\n    return 1\n")
    request = {"op": "call", "name": "f", "args": [1], "kwargs": {}}
    book.talk(0, "test", worker.ask).execute(request)
    talk = book.talk(0, "test", worker.ask)
    with pytest.raises(Inconstant):
        talk.execute({**request, "args": [2]})


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ([1], (1,)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (torch.zeros(2), -torch.zeros(2)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2, 3), torch.zeros(3, 2).T),
        (torch.zeros(1), torch.zeros(2)),
        (torch.zeros(1), 0.0),
        (float("nan"), 1.0),
    ],
)
def test_requests_that_differ_in_anything_are_not_the_same(left, right):
    assert not same_request({"args": [left]}, {"args": [right]})
    assert not same_request({"args": [right]}, {"args": [left]})


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        torch.tensor([float("nan"), 1.0]),
        torch.ones(3, dtype=torch.bool),
        torch.ones(2, dtype=torch.complex64),
        torch.randn(4, 3).T,
        torch.ones(1).expand(5),
        {"a": [1, (2.5, None)], "b": "text"},
    ],
)
def test_equal_requests_are_the_same(value):
    assert same_request({"args": [value]}, known_answers.snapshot({"args": [value]}))
