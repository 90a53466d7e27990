"""Runs a unit's graders on an implementation: pytest's own machinery, collected once.

Graders are plain pytest files. `Graders` collects one through pytest's API and runs its items
again for each implementation, so that judging a class does not pay for collection each time.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import random
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _pytest.config import _prepareconfig
from _pytest.main import Session
from _pytest.runner import runtestprotocol

from autograder.common.paths import graders
from autograder.judging import asked_again, diagnosis, foresight, scoring
from autograder.judging.diagnosis import Candidate, Evidence
from autograder.judging.foresight import Execute, Messages, Script, constant_part, scripts_of
from autograder.judging.grader_marks import Mistake
from autograder.judging.known_answers import Ask, Departed, Inconstant, Known, Step, snapshot
from autograder.judging.memory import Conversation, Memory, Remember, Replays, unwarned
from autograder.judging.proxy import Exchange, Proxy, StudentError, Todo
from autograder.judging.recording import Recording
from autograder.judging.results import ExerciseResult, TestResult
from autograder.sandbox.executor import Executor, Request
from autograder.units.assignment import Assignment, Exercise, given_names, load

# After this many calls without an end the rest of an exercise's tests is not waited for.
TIMEOUTS_PER_EXERCISE = 2


# Has an implementation refused the functions that are named; yields those that it undid.
Refusing = Callable[[Sequence[str]], AbstractContextManager[list[str]]]


@contextlib.contextmanager
def _refusing_nothing(names: Sequence[str]) -> Iterator[list[str]]:
    """For implementations of our own, of which it is known what they call."""
    yield []


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What student code prints while it is judged is not shown: it would be printed many times."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


class Draw:
    """Random inputs for one test, the same bits on every platform for the same seed and test."""

    def __init__(self, seed: int, test: str) -> None:
        self.generator = np.random.default_rng([seed, zlib.crc32(test.encode())])

    def normal(
        self,
        *shape: int,
        dtype: torch.dtype = torch.float32,
        scale: float = 1.0,
        grad: bool = False,
    ) -> torch.Tensor:
        """Independent normal values of standard deviation `scale`."""
        values = torch.from_numpy(np.asarray(self.generator.standard_normal(shape) * scale))
        return values.to(dtype).requires_grad_(grad)

    def uniform(
        self, *shape: int, low: float = 0.0, high: float = 1.0, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """Independent values, uniform in [low, high)."""
        return torch.from_numpy(np.asarray(self.generator.uniform(low, high, shape))).to(dtype)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Independent int64 values in [low, high)."""
        return torch.from_numpy(np.asarray(self.generator.integers(low, high, shape)))

    def mask(self, *shape: int, keep: float = 0.7, no_empty_rows: bool = True) -> torch.Tensor:
        """A random boolean mask, True = may attend; by default each row keeps at least one.

        Rows longer than one entry also lose at least one, so that the mask always matters.
        """
        mask = self.generator.random(shape) < keep
        if no_empty_rows and shape and shape[-1] > 1:
            rows = mask.reshape(-1, shape[-1])
            for row in rows:
                on, off = self.generator.choice(shape[-1], size=2, replace=False)
                if not row.any():
                    row[on] = True
                if row.all():
                    row[off if not row[on] else on] = False
            mask = rows.reshape(shape)
        elif no_empty_rows:
            mask = np.ones(shape, dtype=bool)
        return torch.from_numpy(mask)

    def choice(self, options: Sequence[Any]) -> Any:
        """One of the options."""
        return options[int(self.generator.integers(len(options)))]

    def permutation(self, count: int) -> torch.Tensor:
        """A random order of 0..count-1."""
        return torch.from_numpy(self.generator.permutation(count))


@dataclass
class _Item:
    """A collected test and its marks; or, without an `item` of pytest's, `asked_again`."""

    item: pytest.Item | None
    name: str
    purpose: str
    exercise: str
    weight: float
    hidden: bool
    aspect: bool
    promises: tuple[str, ...]
    function: Callable[..., None]
    plain: dict[str, Any] | None  # arguments of a test that needs none of pytest's own machinery


GIVEN = ("student", "reference", "draw", "requests")
UNUSUAL = ("skip", "skipif", "xfail", "usefixtures", "filterwarnings")


def _plain_arguments(item: pytest.Item) -> dict[str, Any] | None:
    """The arguments of a test function that takes our fixtures and parameters and no more.

    It can be called without pytest's setup and teardown, which take longer than most tests. None
    for all others.
    """
    if type(item) is not pytest.Function or item.cls is not None:
        return None
    if any(mark.name in UNUSUAL for mark in item.iter_markers()):
        return None
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    if set(item.fixturenames) - set(GIVEN) - set(parameters) - {"request"}:
        return None
    names = item._fixtureinfo.argnames
    if "request" in names or set(parameters) - set(names):
        return None
    return {name: parameters.get(name) for name in names}


class _Current:
    """What the running test is given."""

    def __init__(self) -> None:
        self.student: Proxy | None = None
        self.reference: Proxy | None = None
        self.draw: Draw | None = None
        self.requests: list[Request] = []  # those of `asked_again`


def _plugin(current: _Current) -> Any:
    class Plugin:
        def __init__(self) -> None:
            self.error: BaseException | None = None
            self.collect_errors: list[str] = []

        @pytest.fixture
        def student(self) -> Proxy | None:
            return current.student

        @pytest.fixture
        def reference(self) -> Proxy | None:
            return current.reference

        @pytest.fixture
        def draw(self) -> Draw | None:
            return current.draw

        def pytest_collectreport(self, report: pytest.CollectReport) -> None:
            if report.failed:
                self.collect_errors.append(str(report.longrepr))

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_makereport(
            self, item: pytest.Item, call: pytest.CallInfo[None]
        ) -> pytest.TestReport:
            if call.excinfo is not None and self.error is None:
                self.error = call.excinfo.value
            # In place of pytest's own report, which parses the whole file of graders to show a
            # traceback that nobody reads: a failure would take a hundred times as long as a pass.
            assert call.when != "collect"
            return pytest.TestReport(
                item.nodeid,
                item.location,
                {},
                "passed" if call.excinfo is None else "failed",
                None,
                call.when,
                duration=call.duration,
            )

    return Plugin()


class Graders:
    """The graders of one unit, ready to judge any number of implementations.

    Args:
        unit: the unit's name.
        hidden: whether hidden tests are run too.
        path: the pytest file, if not the unit's own.
        assignment: its metadata, if not the unit's own.

    Raises:
        ValueError: the graders cannot be collected, or name an exercise that does not exist.
    """

    def __init__(
        self,
        unit: str,
        *,
        hidden: bool = True,
        path: Path | None = None,
        assignment: Assignment | None = None,
    ) -> None:
        self.unit = unit
        self.assignment = assignment or load(unit)
        self._current = _Current()
        self._plugin = _plugin(self._current)
        self.items = [
            item for item in self._collect(path or graders(unit)) if hidden or not item.hidden
        ]
        known = {exercise.name for exercise in self.assignment.exercises}
        unknown = {item.exercise for item in self.items} - known
        if unknown:
            raise ValueError(f"graders of {unit} name unknown exercises: {sorted(unknown)}")
        judged = dict.fromkeys(item.exercise for item in self.items)
        self.items += map(_asked_again, judged)
        self.running = ""  # the test that is asking
        self._repeated: dict[tuple[int, str], list[Request]] = {}
        self._memo: dict[tuple[int, str], Conversation] = {}
        self._known = Known()
        self._scripts: dict[tuple[int, str], list[Script]] = {}
        self._replayed = Memory()

    def _collect(self, path: Path) -> list[_Item]:
        arguments = [
            str(path),
            "--disable-plugin-autoload",
            *("-p", "no:cacheprovider", "-p", "no:terminal", "-p", "no:logging"),
            *("-p", "no:faulthandler", "-p", "no:junitxml", "-p", "no:doctest"),
            *("-p", "no:unraisableexception", "-p", "no:threadexception", "-p", "no:warnings"),
            *("-c", os.devnull, "--rootdir", str(path.parent), "--confcutdir", str(path.parent)),
            *("--import-mode", "importlib", "-o", "addopts=", "--capture", "no"),
        ]
        # A grader's bytecode is never written: the package's folder may not be writable.
        # What the caller's shell asks of pytest is not meant for graders.
        with pytest.MonkeyPatch.context() as shell:
            shell.delenv("PYTEST_ADDOPTS", raising=False)
            config = _prepareconfig(arguments, [self._plugin])
        config.addinivalue_line("markers", "exercise(name, weight): the exercise judged")
        config.addinivalue_line("markers", "hidden: absent from the student's bundle")
        config.addinivalue_line("markers", "aspect: an answer without work may pass it")
        config.addinivalue_line("markers", "promises(ids): what it keeps of the text's promises")
        config._do_configure()
        session = Session.from_config(config)
        config.hook.pytest_sessionstart(session=session)
        config.hook.pytest_collection(session=session)
        if self._plugin.collect_errors:
            raise ValueError(
                f"the graders in {path.name} cannot be collected: {self._plugin.collect_errors[0]}"
            )
        found = []
        for item in session.items:
            mark = item.get_closest_marker("exercise")
            if mark is None:
                raise ValueError(f"grader {item.name} names no exercise; add @exercise(...)")
            function: Callable[..., None] = item.obj  # type: ignore[attr-defined]
            docstring = (function.__doc__ or item.name).strip()
            weight = mark.args[1] if len(mark.args) > 1 else mark.kwargs.get("weight", 1.0)
            found.append(
                _Item(
                    item=item,
                    name=item.name,
                    purpose=docstring.splitlines()[0],
                    exercise=mark.args[0],
                    weight=float(weight),
                    hidden=item.get_closest_marker("hidden") is not None,
                    aspect=item.get_closest_marker("aspect") is not None,
                    promises=tuple(p for mark in item.iter_markers("promises") for p in mark.args),
                    function=function,
                    plain=_plain_arguments(item),
                )
            )
        return found

    def run(
        self,
        execute: Execute,
        *,
        ask: Ask | None = None,
        ahead: foresight.Ask | None = None,
        seed: int = 0,
        exercises: Sequence[str] | None = None,
        recording: Recording | None = None,
        diagnose: bool = True,
        stop_at_failure: bool = False,
        again: bool = True,
        refusing: Refusing = _refusing_nothing,
        tell: Callable[[ExerciseResult], None] = lambda result: None,
    ) -> dict[str, ExerciseResult]:
        """Judge one implementation.

        Args:
            execute: carries a request to the implementation.
            ask: does so too, as `sandbox.Session.ask`; what is known of other implementations
                with the same answers is then not worked out again.
            ahead: with `ask`, carries several requests at once, as `sandbox.Session.ahead`.
            seed: of the inputs; the same seed gives every submission the same inputs.
            exercises: only these, in the assignment's order.
            recording: recorded answers of the reference and the misconceptions, where neither
                is at hand (in a student's notebook). Otherwise both are asked live.
            diagnose: look for the misconception behind a failure.
            stop_at_failure: skip an exercise's other tests once one failed (for mutants).
            again: run `asked_again` too; see also `passes_again`.
            refusing: has the implementation refused what an exercise forbids, while it is asked.
            tell: told of every exercise what is certain, before the next step is taken: its points
                before its mistake is looked for, then all of its result.

        Returns:
            For each exercise its points, tests and diagnosis.
        """
        results: dict[str, ExerciseResult] = {}
        found: dict[str, str] = {}
        for exercise in self.assignment.exercises:
            if exercises is not None and exercise.name not in exercises:
                continue
            items = [item for item in self.items if item.exercise == exercise.name]
            if not again:
                items = [item for item in items if item.item]
            aspects = {item.name for item in items if item.aspect}
            tests: list[TestResult] = []
            evidence: list[Evidence] = []
            called: list[str] = []  # of what is forbidden
            counts = True  # what says nothing of values
            explains = functools.cache(  # asked once, when all evidence is there, or never
                functools.partial(self._explained, exercise.name, evidence, seed, recording)
            )
            messages = Messages(ahead, self._scripts_of(exercise, seed)) if ahead else None
            with refusing(exercise.forbids) as undone:
                for number, item in enumerate(items):
                    if item.item is None:
                        counts = scoring.right_somewhere(tests, evidence, aspects) or (
                            any(test.outcome == "passed" for test in tests) and explains()
                        )
                        if not counts:
                            tests.append(_result(item, *scoring.not_yet(exercise.name, tests)))
                            continue
                    if sum(seen.timed_out for seen in evidence) >= TIMEOUTS_PER_EXERCISE:
                        message = f"Your {exercise.name} did not finish in time on earlier tests."
                        tests.append(_result(item, "failed", message))
                        continue
                    if ask is None:
                        test, seen = self._judge(item, execute, seed, recording)
                    else:
                        test, seen = self._converse(item, execute, ask, messages, number, seed)
                    tests.append(test)
                    called += seen.forbidden
                    if item.item is not None:  # else it says itself what is wrong
                        evidence.append(seen)
                    if stop_at_failure and test.outcome != "passed":
                        break
            scoring.tell_once(exercise.name, tests)
            earned = counts and (
                stop_at_failure  # no points are asked for
                or scoring.answers_right(tests, evidence)
                or (not scoring.only_one_number(evidence) and explains())
            )
            if not earned:
                scoring.put_off(tests, scoring.not_yet(exercise.name, tests)[1])
            result = scoring.score(exercise.name, exercise.points, exercise.section, tests)
            explained: Collection[str] = ()
            if diagnose and any(item.failed for item in evidence):
                if not exercise.forbids:
                    tell(result)
                with _chance_put_back():
                    explained = self._diagnose(
                        result, evidence, exercise.needs, found, seed, recording
                    )
            scoring.note_followers(exercise.name, tests, explained)
            if called:
                used = list(dict.fromkeys(called))
                scoring.withdraw(result, used, exercise.needs, given_names(self.unit))
            elif undone and result.points:
                scoring.withdraw_undone(result, undone)
            results[exercise.name] = result
            tell(result)
        return results

    def passes_again(self, execute: Execute, exercise: str, seed: int = 0) -> bool:
        """Whether an implementation passes `asked_again`, if its values are right or not."""
        items = [item for item in self.items if item.exercise == exercise and item.item is None]
        tests = [self._judge(item, execute, seed, None)[0] for item in items]
        return all(test.outcome == "passed" for test in tests)

    def _converse(
        self,
        item: _Item,
        execute: Execute,
        ask: Ask,
        messages: Messages | None,
        number: int,
        seed: int,
    ) -> tuple[TestResult, Evidence]:
        """Judge by what is known of the same answers, and run the test only for new ones."""
        if messages is not None and (foretold := messages.of(number)).replies:
            ahead = list(zip(foretold.script.steps, foretold.replies, strict=False))
            try:
                return self._talk(item, ask, seed, ahead, foretold.passed_over)
            except (Departed, Inconstant):
                messages.disturb(number)
        try:
            return self._talk(item, ask, seed)
        except Inconstant:
            # A test that is no function of its answers is run as it stands.
            return self._judge(item, execute, seed, None)

    def _talk(
        self,
        item: _Item,
        ask: Ask,
        seed: int,
        ahead: Sequence[tuple[Step, bytearray]] = (),
        closed: bool = False,
    ) -> tuple[TestResult, Evidence]:
        talk = self._known.talk(seed, item.name, ask, ahead, closed)
        if talk.verdict is not None:
            return talk.verdict
        test, seen = self._judge(item, talk.execute, seed, None)
        if talk.departed:  # The test may have caught what was raised.
            raise Departed
        return test, talk.conclude(test, seen)

    def foresee(self, seed: int) -> None:
        """Work out now what else the first submission would have to wait for."""
        for exercise in self.assignment.exercises:
            self._scripts_of(exercise, seed)

    def _scripts_of(self, exercise: Exercise, seed: int) -> list[Script]:
        """The scripts of an exercise's tests; see `foresight.py`."""
        scripts = self._scripts.get((seed, exercise.name))
        if scripts is not None:
            return scripts
        items = [item for item in self.items if item.exercise == exercise.name]
        parts = []
        for item in items:
            judge = functools.partial(self._judge, item, seed=seed, recording=None)
            with _chance_put_back():
                parts.append(constant_part(judge, self._executor().execute))
        names = [item.name for item in items]
        scripts = scripts_of(names, parts, functools.partial(self._known.steps, seed))
        self._scripts[seed, exercise.name] = scripts
        return scripts

    def _judge(
        self,
        item: _Item,
        execute: Execute,
        seed: int,
        recording: Recording | None,
    ) -> tuple[TestResult, Evidence]:
        rng = zlib.crc32(f"{seed}:{item.name}".encode())
        requests: list[Request] = []
        if item.item is None:
            if recording is None:
                requests = self.requests_again(item.exercise, seed)
            else:
                requests = recording.requests(item.name)
        self.running = item.name
        current = self._current
        current.requests = requests
        current.draw = Draw(seed, item.name)
        current.student = student = Proxy(execute, rng=rng)
        if recording is not None:
            current.reference = Proxy(recording.reference(item.name), rng=rng)
        else:
            memo = self._memo.setdefault((seed, item.name), [])
            live = Remember(self._executor().execute, memo, snapshot)
            current.reference = Proxy(live, rng=rng)
        random_state = torch.get_rng_state()
        error = self._call(item)
        torch.set_rng_state(random_state)
        if student.fault is not None and not isinstance(student.fault, ValueError):
            raise student.fault
        transcript = student.transcript
        seen = Evidence(
            item.name,
            failed=error is not None and not isinstance(error, Todo),
            hint=getattr(error, "misconception", None),
            answered=any(
                exchange.outcome["kind"] == "value" and exchange.request["op"] in ("call", "invoke")
                for exchange in transcript
            ),
            forbidden=tuple(
                name for exchange in transcript for name in exchange.outcome.get("forbidden", ())
            ),
            timed_out=isinstance(error, StudentError) and error.kind == "timeout",
            recall=lambda: transcript,
        )
        if error is None:
            return _result(item, "passed"), seen
        if isinstance(error, Todo):
            return _result(item, "todo", str(error)), seen
        if isinstance(error, (AssertionError, StudentError)):
            return _result(item, "failed", str(error), _kind(error)), seen
        if not _fault_is_students(error, transcript):
            raise error
        message = f"The answer has an unexpected form ({type(error).__name__}: {error})."
        return _result(item, "failed", message), seen

    def requests_again(self, exercise: str, seed: int) -> list[Request]:
        """What `asked_again` asks: of the calls that the exercise's visible tests make."""
        if (seed, exercise) not in self._repeated:
            own = (one for one in self.items if one.exercise == exercise and one.item)
            namespace = self._executor().namespace
            with _chance_put_back():
                talks: list[list[asked_again.Asked]] = []
                for one in own:
                    if not one.hidden:
                        talks.append([])
                        execute = asked_again.noting(Executor(namespace).execute, talks[-1])
                        self._judge(one, execute, seed, None)
                found = asked_again.requests_of(self.unit, exercise, talks, namespace)
            self._repeated[seed, exercise] = found
        return self._repeated[seed, exercise]

    def _call(self, item: _Item) -> BaseException | None:
        """Run one test; returns what it raised."""
        with unwarned():
            if item.plain is None:
                assert item.item is not None
                self._plugin.error = None
                runtestprotocol(item.item, log=False, nextitem=None)
                error, self._plugin.error = self._plugin.error, None
                return error
            given = {name: getattr(self._current, name) for name in item.plain if name in GIVEN}
            given |= {name: value for name, value in item.plain.items() if name not in GIVEN}
            try:
                item.function(**given)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                return error
        return None

    def _diagnose(
        self,
        result: ExerciseResult,
        evidence: list[Evidence],
        needs: tuple[str, ...],
        found: dict[str, str],
        seed: int,
        recording: Recording | None,
    ) -> Collection[str]:
        """Name the mistake, or the earlier exercise's mistake that this one inherits.

        Returns:
            The names of the tests that fail for the mistake which is named.
        """
        if recording is not None:
            inherited: list[str] = []
            says = recording.says
        else:
            from autograder.units.variants import misconceptions

            inherited = [found[name] for name in needs if name in found]
            says = {item.name: (item.says, item.section) for item in misconceptions(self.unit)}
        replay = self._replays(seed, recording)
        reference = replay("")
        named = self._mistakes(result.name, recording)
        own = [Candidate(name, replay(name)) for name in named]
        result.misconception, first = diagnosis.diagnose(evidence, reference, own)
        if result.misconception in says:
            fits = diagnosis.fitting(evidence, reference, own, result.misconception)
            result.misconception = fits.names[0]
            found[result.name] = result.misconception
            sentences = list(dict.fromkeys(says[name][0] for name in fits.names))
            sentence = sentences[0] if len(sentences) == 1 else f"Either: {' Or: '.join(sentences)}"
            result.section = says[result.misconception][1]
            # A mistake that leaves the first failure unexplained is not the whole story.
            result.message = sentence if first else f"{result.message} Besides: {sentence}"
            return fits.tests
        others = [Candidate(name, replay(name)) for name in inherited]
        upstream, _ = diagnosis.diagnose(evidence, reference, others)
        if upstream in says:
            result.misconception = upstream
            source = next(name for name, mistake in found.items() if mistake == upstream)
            found[result.name] = upstream
            result.message = f"This follows from your {source}: {says[upstream][0]}"
            result.section = says[upstream][1]
            return diagnosis.fitting(evidence, reference, others, upstream).tests
        if result.misconception is None and all(
            item.hint == "forbidden" for item in evidence if item.failed
        ):
            result.misconception = "forbidden"
        return ()

    def _mistakes(self, exercise: str, recording: Recording | None) -> list[str]:
        """The names of the known mistakes in an exercise."""
        if recording is not None:
            return recording.candidates(exercise)
        from autograder.units.variants import misconceptions

        return [item.name for item in misconceptions(self.unit) if item.exercise == exercise]

    def _replays(self, seed: int, recording: Recording | None) -> Callable[[str], diagnosis.Replay]:
        """What gives the answers of a known mistake, and under "" those of the reference."""
        if recording is not None:
            return recording.replay
        return Replays(self.unit, seed, self._replayed).of

    def _explained(
        self, exercise: str, evidence: list[Evidence], seed: int, recording: Recording | None
    ) -> bool:
        """Whether one known mistake, here or in what this uses, answers as this code did."""
        used = [exercise]
        for earlier in reversed(self.assignment.exercises):
            if any(earlier.name in self.assignment.exercise(name).needs for name in used):
                used.append(earlier.name)
        with _chance_put_back():
            replay = self._replays(seed, recording)
            names = [name for one in used for name in self._mistakes(one, recording)]
            candidates = (Candidate(name, replay(name)) for name in names)
            return diagnosis.explained(evidence, replay(""), candidates)

    def transcripts(
        self, namespace: dict[str, Any], seed: int, exercise: str | None = None
    ) -> Iterator[tuple[_Item, list[Exchange], list[Exchange]]]:
        """For each test what it asked of `namespace` as the student, and of the reference.

        Args:
            namespace: the names that an implementation defines.
            seed: of the inputs.
            exercise: only the tests of this one.

        Raises:
            ValueError: `namespace` fails one of the tests.
        """
        for item in self.items:
            if exercise not in (None, item.exercise):
                continue
            execute = Executor(namespace).execute
            test, seen = self._judge(item, execute, seed, None)
            if test.outcome != "passed":
                raise ValueError(f"the reference fails {item.name}: {test.message}")
            assert self._current.reference is not None
            yield item, seen.transcript, self._current.reference.transcript

    def _executor(self) -> Executor:
        from autograder.units.variants import reference_namespace

        return Executor(reference_namespace(self.unit))


@contextlib.contextmanager
def _chance_put_back() -> Iterator[None]:
    """Random numbers drawn meanwhile are not missed afterwards."""
    states = random.getstate(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        torch.set_rng_state(states[1])


def _asked_again(exercise: str) -> _Item:
    """The test that every exercise has besides its graders."""
    return _Item(
        item=None,
        name=asked_again.test_name(exercise),
        purpose=asked_again.PURPOSE,
        exercise=exercise,
        weight=1.0,
        hidden=False,
        aspect=True,
        promises=asked_again.PROMISES,
        function=functools.partial(asked_again.ask, exercise),
        plain=dict.fromkeys(("student", "reference", "requests")),
    )


def _result(item: _Item, outcome: str, message: str = "", kind: str = "") -> TestResult:
    return TestResult(item.name, item.purpose, item.hidden, item.weight, outcome, message, kind)


def _kind(error: BaseException) -> str:
    """How a failure shows; see `TestResult`."""
    if isinstance(error, StudentError):
        return "parameters" if "StateMismatch" in error.types else "error"
    return error.kind if isinstance(error, Mistake) else ""


def _fault_is_students(error: BaseException, transcript: list[Exchange]) -> bool:
    """A grader that stumbles over an answer of unexpected form judges the answer, not itself."""
    return isinstance(error, Exception) and bool(transcript)
