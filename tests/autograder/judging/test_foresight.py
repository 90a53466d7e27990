"""What is asked ahead is what would be asked anyway, and gives nothing away."""

from __future__ import annotations

import functools
import textwrap

import pytest
import torch

from autograder.common.cells import Cell
from autograder.common.paths import CHAPTERS, UNITS
from autograder.judging import foresight
from autograder.judging.foresight import Messages, Script, constant_part, revealing, shaken
from autograder.judging.known_answers import Known
from autograder.judging.proxy import Proxy
from autograder.judging.runner import Graders
from autograder.sandbox import wire
from autograder.sandbox.executor import Executor
from autograder.sandbox.launcher import Sandbox
from autograder.sandbox.session import Answer, Session
from autograder.units import variants
from autograder.units.assignment import units_of
from tests.autograder.judging.test_known_answers import WRONG, Worker

# Three tests: what they ask depends on nothing, on values, and on names.
GRADERS = textwrap.dedent(
    '''
    import torch
    from autograder.judging import expectations
    from autograder.judging.grader_marks import exercise

    @exercise("mean")
    def test_plain(student, reference, draw):
        """Two means."""
        for size in (3, 4):
            x = draw.normal(2, size)
            expectations.close(student.mean(x), reference.mean(x), "the mean")

    @exercise("mean")
    def test_again(student, reference, draw):
        """The mean of a mean."""
        x = draw.normal(2, 3)
        first = student.mean(x)
        expectations.close(student.mean(first), reference.mean(reference.mean(x)), "the mean of it")

    @exercise("mean")
    def test_last(student, reference, draw):
        """One more mean."""
        x = draw.normal(5, 3)
        expectations.close(student.mean(x), reference.mean(x), "the mean")

    @exercise("centre")
    def test_longer(student, reference, draw):
        """Asks more of whoever is wrong."""
        x = draw.normal(2, 3)
        again = 0 if abs(float(student.centre(x).sum())) < 1e-3 else 3
        for _ in range(again):
            student.centre(x)
        assert not again, f"asked {again} times more"

    @exercise("centre")
    def test_after(student, reference, draw):
        """The one behind it."""
        x = draw.normal(4, 3)
        expectations.close(student.centre(x), reference.centre(x), "the result")

    @exercise("Scale")
    def test_module(student, reference, draw):
        """A module that is asked twice."""
        state = {"weight": draw.normal(3)}
        own, right = (who.module("Scale", width=3, state=state) for who in (student, reference))
        for _ in range(2):
            x = draw.normal(2, 3)
            expectations.close(own(x), right(x), "the result")

    @exercise("Scale")
    def test_module_longer(student, reference, draw):
        """Asks a narrower module more if it is wrong."""
        own = student.module("Scale", width=2, state={"weight": torch.zeros(2)})
        again = 0 if float(own(torch.ones(2)).sum()) == 0 else 3
        for _ in range(again):
            own(torch.ones(2))
        assert not again, f"asked {again} times more"

    @exercise("Scale")
    def test_module_of_itself(student, reference, draw):
        """What was scaled is scaled again."""
        state = {"weight": draw.normal(3).abs() + 1}
        own, x = student.module("Scale", width=3, state=state), torch.ones(3)
        first = own(x)
        assert own(first).shape == (3,)

    @exercise("Scale")
    def test_module_last(student, reference, draw):
        """Once more, with all its requests known."""
        own = student.module("Scale", width=4, state={"weight": torch.ones(4)})
        assert own(torch.ones(4)).shape == (4,)
    '''
)
WRONG = {**WRONG, "shifts": lambda text: text.replace("x * self.weight", "x + self.weight")}


class Many(Worker):
    """A worker that also takes several requests at once, as far as `most` lets it."""

    def __init__(self, source: str, most: int = 1000) -> None:
        super().__init__(source)
        self.most = most
        self.messages: list[int] = []

    def ahead(self, frames):
        self.messages.append(len(frames))
        replies = []
        for frame in frames[: self.most]:
            answer = super().ask(None, frame)
            replies.append(answer.frame or bytearray(wire.encode(answer.outcome)))
            if answer.kind in ("todo", "missing", "memory"):
                break
        return replies

    def ask(self, request, frame, kind_of=lambda frame: None, reply=None):
        if reply is None:
            return super().ask(request, frame, kind_of)
        return Answer(*self.taken(reply, kind_of))

    def taken(self, reply, kind_of):
        kind = kind_of(reply)
        self.read += kind is None
        return kind or wire.decode(reply, bounds=wire.ANSWER)["kind"], reply


@pytest.fixture
def foreseen(toy):
    """The toy unit with the graders above."""
    path = toy.path.with_name("test_foreseen.py")
    path.write_text(GRADERS)
    toy.graders = Graders("toy", path=path, assignment=toy.assignment)
    return toy


def one_by_one(toy, source):
    """The results where every request waits for the answer to the one before."""
    return toy.graders.run(Executor(variants.load_variant(source, "student")).execute)


def grade(toy, source, most=1000, **options):
    worker = Many(source, most)
    results = toy.graders.run(worker.execute, ask=worker.ask, ahead=worker.ahead, **options)
    return results, worker


def test_what_depends_on_answers_is_not_foreseen(foreseen):
    foreseen.graders.foresee(0)
    scripts = foreseen.graders._scripts
    found = {name: [(len(s.steps), s.whole) for s in each] for (_, name), each in scripts.items()}
    assert found == {
        "mean": [(2, True), (1, False), (1, True), (1, True)],
        "centre": [(1, True), (1, True), (1, True)],
        "Scale": [(3, True), (2, True), (2, False), (2, True), (1, True)],
    }


@pytest.mark.parametrize("most", [1000, 2, 1, 0])
@pytest.mark.parametrize("name", WRONG)
def test_asked_ahead_or_not_the_results_are_the_same(foreseen, name, most):
    source = WRONG[name](foreseen.source)
    expected = one_by_one(foreseen, source)
    for _ in range(2):
        assert grade(foreseen, source, most)[0] == expected


def test_a_right_submission_is_asked_in_few_messages_and_nothing_twice(foreseen):
    _, worker = grade(foreseen, foreseen.source)
    assert worker.messages == [3, 2, 3, 7, 3]
    # What two tests make of an answer is asked by itself.
    assert len(worker.asked) == sum(worker.messages) + 2


def test_a_test_that_asks_something_else_begins_anew(foreseen):
    source = foreseen.source.replace("x - mean(x)", "x + mean(x)")
    results, worker = grade(foreseen, source)
    assert results["centre"].tests[0].message.startswith("asked 3 times more")
    # All three tests in one message; then the first once more from its beginning.
    assert worker.asked.count("centre") == 3 + 4
    assert results["Scale"].passed


def test_modules_of_a_test_that_begins_anew_are_not_taken_for_those_of_another(foreseen):
    results, _ = grade(foreseen, WRONG["shifts"](foreseen.source))
    outcomes = {test.name: test.outcome for test in results["Scale"].tests}
    assert outcomes == {
        "test_module": "failed",
        "test_module_longer": "failed",
        "test_module_of_itself": "passed",
        "test_module_last": "passed",
        "test_Scale_asked_again": "passed",
    }


def test_who_came_before_does_not_change_what_is_asked(foreseen):
    sources = [change(foreseen.source) for change in WRONG.values()]

    def asked(order):
        toy_graders = Graders(
            "toy", path=foreseen.graders.items[0].item.path, assignment=foreseen.assignment
        )
        said = {}
        for source in order:
            worker = Many(source)
            toy_graders.run(worker.execute, ask=worker.ask, ahead=worker.ahead)
            said[source] = worker.asked, worker.messages
        return said

    assert asked(sources) == asked(sources[::-1])


def test_a_script_that_is_not_whole_ends_its_message():
    step = Known().steps(0, "test", [{"op": "call", "name": "f", "args": [1]}])
    sent = []

    def ask(frames):
        sent.append(len(frames))
        return [bytearray(frame) for frame in frames]

    whole, part = Script(step * 2, True), Script(step, False)
    messages = Messages(ask, [whole, part, whole, Script(step * 3, True, frozenset([1]))])
    found = [messages.of(index) for index in range(4)]
    assert sent == [3, 3, 2]
    assert [len(one.replies) for one in found] == [2, 1, 2, 3]
    assert [one.passed_over for one in found] == [True, False, True, False]


def test_messages_do_not_grow_without_end(monkeypatch):
    step = Known().steps(0, "test", [{"op": "call", "name": "f", "args": ["a" * 100]}])
    monkeypatch.setattr(foresight, "MAX_BYTES", 3 * len(step[0].frame))
    sent = []
    messages = Messages(lambda frames: sent.append(len(frames)) or frames, [Script(step * 8, True)])
    assert len(messages.of(0).replies) == 8
    assert sent == [3, 3, 2]


def test_where_an_answer_is_missing_nothing_more_is_asked_ahead():
    step = Known().steps(0, "test", [{"op": "call", "name": "f", "args": [1]}])
    scripts = [Script(step * 2, True, frozenset([1])), Script(step, True), Script(step, True)]
    replies = iter([[b"1"], [b"2"]])
    messages = Messages(lambda frames: next(replies), scripts)
    first = messages.of(0)
    assert (first.replies, first.passed_over) == ([b"1", b"2"], False)
    assert [messages.of(index).replies for index in (1, 2)] == [[], []]


def test_answers_differ_in_the_last_bit_only():
    outcome = {"value": {"a": torch.tensor([1.0, -2.0, 0.0, torch.inf]), "b": torch.tensor([3])}}
    changed = shaken(outcome)["value"]
    assert torch.equal(changed["b"], torch.tensor([3]))
    assert changed["a"].tolist() == [1 + 2**-23, -2 - 2**-22, 0.0, torch.inf]


def test_a_request_that_holds_an_earlier_answer_is_noticed():
    x, y = torch.randn(2, 3), torch.randn(6)
    ids = torch.tensor([5, 1, 7, 2])

    def exchange(given, answer, op="call"):
        return {"op": op, "args": [given]}, {"value": answer, "grads": {}}

    assert revealing([exchange(x, y), exchange(x, y)]) == set()
    assert revealing([exchange(x, y), exchange(y, x)]) == {1}
    assert revealing([exchange(x, y), exchange(x, x), exchange([{"a": y[2:4]}], x)]) == {2}
    assert revealing([exchange(y, y), exchange(y, x)]) == set()  # it had been shown before
    assert revealing([exchange(x, ids), exchange(ids, x)]) == {1}
    assert revealing([exchange(x, ids[:3]), exchange(ids[:3], x)]) == set()
    assert revealing([exchange(x, torch.eye(3)), exchange(torch.eye(3), x)]) == set()
    assert revealing([exchange(x, y, "inspect"), exchange(y, x)]) == set()
    assert revealing([(exchange(x, y)), ({"op": "create", "state": {"w": y}}, {})]) == {1}
    assert revealing([({"op": "call"}, {"grads": {"0": y}}), exchange(y, x)]) == {1}


def test_a_reference_that_fails_a_test_is_foreseen_no_further():
    def judge(execute):
        proxy = Proxy(execute)
        proxy.f(1)
        raise AssertionError

    answer = {"kind": "value", "value": 1, "grads": {}, "mutated": [], "forbidden": []}
    talk, whole = constant_part(judge, lambda request: answer)
    assert [request["name"] for request, _ in talk] == ["f"]
    assert whole


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_most_of_a_chapter_is_foreseen(chapter):
    foreseen = asked = 0
    for unit in units_of([chapter]):
        graders = graders_that_foresee(unit)
        namespace = variants.reference_namespace(unit)
        asked += sum(len(talk) for _, talk, _ in graders.transcripts(namespace, 0))
        scripts = [script for found in graders._scripts.values() for script in found]
        foreseen += sum(len(script.steps) for script in scripts)
    assert foreseen > 0.85 * asked


@functools.cache
def graders_that_foresee(unit):
    graders = Graders(unit)
    graders.foresee(0)
    return graders


@pytest.mark.parametrize("unit", UNITS)
def test_no_message_answers_itself(unit):
    graders = graders_that_foresee(unit)
    namespace = variants.reference_namespace(unit)
    for exercise in graders.assignment.exercises:
        sent = []

        def ask(frames, sent=sent):
            sent.append(len(frames))
            return [bytearray()] * len(frames)

        found = graders._scripts[0, exercise.name]
        messages = Messages(ask, found)
        for index in range(len(found)):
            messages.of(index)
        steps = [step for script in found for step in script.steps]
        assert sum(sent) == len(steps)
        pairs = []
        for script in found:
            live = Executor(namespace).execute
            pairs += [(step.request, live(step.request)) for step in script.steps]
        for count in sent:
            message, pairs = pairs[:count], pairs[count:]
            assert revealing(message) == set(), exercise.name


@pytest.mark.sandbox
def test_in_the_sandbox_the_same_is_earned_either_way(foreseen):
    with Sandbox() as box:
        for name, change in WRONG.items():
            results = []
            for several in (True, False):
                with Session(box, [Cell("id", change(foreseen.source), "cell")]) as session:
                    ahead = session.ahead if several else None
                    results.append(
                        foreseen.graders.run(session.execute, ask=session.ask, ahead=ahead)
                    )
            assert results[0] == results[1], name
