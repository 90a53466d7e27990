"""The test that every exercise has: asked again, it answers the same and leaves no trace.

It repeats one or two of the calls that the exercise's visible tests make (`sandbox.side_effects`),
and asks the same of the reference: what is noticed there too is as it should be, such as chance
where something is drawn.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from autograder.judging.expectations import changed_in_place
from autograder.judging.grader_marks import Mistake
from autograder.judging.memory import unwarned
from autograder.judging.proxy import Proxy
from autograder.sandbox import side_effects
from autograder.sandbox.executor import GLOBAL_GENERATOR, Executor, Outcome, Request
from autograder.sandbox.nesting import walk

PURPOSE = "Called again, in any mode and layout, it answers the same and leaves no trace."
# Of the conventions of all chapters.
PROMISES = (
    "same-result",
    "same-seed",
    "inputs-unchanged",
    "model-left-alone",
    "global-generator",
    "no-seed-set",
    "any-strides",
    "no-padding-idx",
)
CALLS = 2  # that are repeated, or one of each method, besides one that draws
LOOKS = ("__getattribute__",)  # at what a module holds, and computes nothing
# Chapters whose conventions let students draw from Python's `random`, too.
PYTHON_TOO = ("bert",)
FEW = 48  # numbers; with fewer, much is the same by accident

OLD_WEIGHTS = (
    "After its weights have changed, as in training, your {name} still answers as with the old "
    "ones. Compute what depends on a weight anew in each call."
)
# What explains the others comes first.
SAYS = {
    side_effects.SEEDED: (
        "Your {name} sets a seed. Leave that to its caller: with a seed set inside, the same "
        "numbers are drawn every time."
    ),
    side_effects.UNSEEDED: (
        "After the same `torch.manual_seed` your {name} answers the same question differently. "
        "Either it draws random numbers from another generator than PyTorch's own (NumPy's, say, "
        "or a new one), or it keeps something from an earlier call, or it reads memory that "
        "`torch.empty` left unfilled."
    ),
    side_effects.CHANCE: (
        "After another seed your {name} answers the same question differently, but its result "
        "should not be random here. Is there dropout in it, or a layer that is made in each call, "
        "with new weights?"
    ),
    side_effects.FIXED: (
        "Your {name} gives the same whatever seed `torch.manual_seed` was given, where chance is "
        "asked for. Either it draws nothing, or from a generator with a seed of its own, or only "
        "once and not in each call."
    ),
    side_effects.MODE: (
        "In train mode your {name} gives another answer than in eval mode; here they should agree. "
        "Look for `self.training`, and for dropout that nobody asked for."
    ),
    side_effects.GRADIENT: (
        "Under `torch.no_grad()` your {name} gives another answer than without it. Look for code "
        "that asks whether a tensor has `requires_grad`."
    ),
    side_effects.MEMORY: (
        "The answer of your {name} depends on what it was asked before, or on chance that no seed "
        "decides. Make what a call needs, such as a mask or a state, anew in each call, and draw "
        "from no generator with a seed of its own."
    ),
    side_effects.SHARED: (
        "When the caller writes into an answer of your {name}, the next answer changes: you return "
        "a tensor or a list that your code uses again. Return a copy of it, a tensor's `.clone()`."
    ),
    side_effects.KEPT: (
        "Your {name} keeps a tensor or a list that it is given and uses it in the next call as "
        "well. Work with what each call is given."
    ),
    side_effects.STRIDES: (
        "Your {name} fails, or answers differently, where a tensor that it is given is not "
        "contiguous, as after `.transpose`. Where you have `.view`, write `.reshape`."
    ),
    side_effects.SPECIAL_ROW: (
        "An embedding of your {name} has a `padding_idx`, so one of its rows never learns. Leave "
        "it out: what is padding, the mask says."
    ),
    side_effects.PARAMETERS: (
        "A call of your {name} changes the weights of a module, which only training may do. Look "
        "for an operation in place on a weight, such as `*=`."
    ),
    side_effects.TRAINING: (
        "Your {name} leaves the model in another mode (train or eval) than it found it in. Keep "
        "`model.training` before you change it, and go back with `model.train(...)`."
    ),
    side_effects.REQUIRES_GRAD: (
        "Your {name} changes `requires_grad` of weights or tensors that it is given, and leaves it "
        "so. To do without gradients, use `torch.no_grad()`, or `.detach()` and not `.detach_()`."
    ),
    side_effects.GRAD: (
        "Your {name} leaves gradients in the `.grad` of weights or tensors that it is given, to "
        "which the next backward pass adds. Use `torch.autograd.grad`, or set them to None "
        "afterwards."
    ),
    side_effects.STALE: (
        "What stands in the `.grad` of the weights before your {name} is called changes what it "
        "does. Ask for the gradients with `torch.autograd.grad`, or set all of them to None first."
    ),
    side_effects.STALE_FROZEN: (
        "A weight that wants no gradient may still hold an old one in `.grad`. Yours changes what "
        "your {name} does; leave weights without `requires_grad` out."
    ),
    side_effects.UNREAD: OLD_WEIGHTS,
    side_effects.WEIGHTS: OLD_WEIGHTS,
    side_effects.ROWS: (
        "Your {name} answers one example otherwise than several equal ones, but each should be "
        "computed by itself. Look for `squeeze()` without an axis, and for a batch and a length "
        "that are told apart by their sizes, or mixed by a `reshape`."
    ),
    side_effects.PUT_BACK: (
        "Your {name} draws random numbers and then puts the generator back to where it was, so "
        "that the next call draws the same ones. Leave it where it is."
    ),
    side_effects.INSTANCES: (
        "Two instances of your {name} share a parameter, so what trains or loads one changes the "
        "other. Make it anew for each instance."
    ),
}


Asked = tuple[Request, Any, bool]  # a request, its answer, whether something was drawn for it


def noting(execute: Callable[[Request], Outcome], talk: list[Asked]) -> Callable[..., Outcome]:
    """`execute`, which adds to `talk` what it is asked, if there is an answer."""

    def noted(request: Request) -> Outcome:
        outcome = execute({**request, "still": True})
        if outcome["kind"] == "value":
            drew = GLOBAL_GENERATOR in outcome["mutated"]
            talk.append((request, outcome["value"], drew))
            if drew and not request.get("still"):
                outcome["mutated"].remove(GLOBAL_GENERATOR)
        return outcome

    return noted


def test_name(exercise: str) -> str:
    """What the exercise's test is called in results."""
    return f"test_{exercise}_asked_again"


def ask(exercise: str, student: Proxy, reference: Proxy, requests: Iterable[Request]) -> None:
    """The test.

    Raises:
        Mistake: something is noticed that is not noticed about the reference.
    """
    for request in requests:
        expected = reference.repeat(exercise, request)
        facts = {fact for fact in student.repeat(exercise, request) if fact not in expected}
        if side_effects.PARAMETERS in expected:
            facts.discard(side_effects.GRAD)  # who takes a step may leave its gradients
        changed = [fact for fact in facts if fact.startswith(side_effects.CHANGES)]
        said = sorted(changed) + [fact for fact in SAYS if fact in facts]
        if said:
            raise Mistake(sentence(exercise, said[0]))


def sentence(exercise: str, fact: str) -> str:
    """What to say to a student about something that was noticed."""
    if fact.startswith(side_effects.CHANGES):
        return changed_in_place([fact.removeprefix(side_effects.CHANGES)])
    return SAYS[fact].format(name=exercise)


def requests_of(
    unit: str, exercise: str, talks: Iterable[Iterable[Asked]], namespace: dict[str, Any]
) -> list[Request]:
    """The requests of the test, chosen among those that other tests make.

    Args:
        unit: whose exercise.
        exercise: its name.
        talks: of each visible test what was asked of the reference, and answered.
        namespace: the reference's names.
    """
    found: dict[tuple[str, ...], tuple[tuple[bool, bool, int], Request]] = {}
    python_too = unit.startswith(PYTHON_TOO)
    most = 0
    drawing: list[Request] = []
    for talk in talks:
        made: dict[int, Request] = {}
        for request, value, drew in talk:
            if request["op"] == "create":
                # With parameters of its own, which may have other names.
                made[request["handle"]] = {**request, "state": None}
            if request["op"] not in ("call", "invoke") or request.get("method") in LOOKS:
                continue
            owner = request if request["op"] == "call" else made.get(request["handle"], {})
            needed = _needed(request, made)
            if owner.get("name") != exercise or needed is None:
                continue
            cls, method = namespace.get(exercise), request.get("method", "forward")
            if isinstance(cls, type) and not hasattr(cls, method):  # a part, no method
                continue
            values = walk([request, value])
            numbers = sum(tensor.numel() for _, tensor in values)
            rank = _flat(request), *((True, -numbers) if numbers < FEW else (False, numbers))
            one = {"made": needed, "asked": request, "python_too": python_too}
            kind = _kind(request)
            if kind not in found or rank < found[kind][0]:
                found[kind] = rank, one
            if drew and numbers > most:  # chance shows where there is most of it
                most, drawing = numbers, [one]
    # The calls with most arguments say most: those with a mask, say. First one of each method.
    kinds = sorted(found, key=lambda kind: -len(kind))
    methods = [kind[0] for kind in kinds]
    places = {kind: methods[:number].count(kind[0]) for number, kind in enumerate(kinds)}
    requests = [found[kind][1] for kind in sorted(kinds, key=places.__getitem__)]
    plain = (_dropping(one, 0.0, namespace) or one for one in requests)
    drop = (_in_train_mode(_dropping(one, 0.5, namespace) or one) for one in requests)
    steady: list[Request] = []

    def more(one: Request) -> bool:
        return len(steady) < CALLS or _method(one) not in map(_method, steady)

    for one in _known(filter(more, plain), namespace, drawn=False):
        steady.append(one)
    drawn = itertools.islice(_known([*drawing, *drop], namespace, drawn=True), 1)
    return steady + [{**one, "chance_only": bool(steady)} for one in drawn]


def _method(request: Request) -> str | None:
    return request["asked"].get("method")


def _known(
    requests: Iterable[Request], namespace: dict[str, Any], *, drawn: bool
) -> Iterator[Request]:
    """Those whose answer is, or is not, another one with each seed, with the reference's facts."""
    for request in requests:
        if drawn and not _draws(request, namespace):
            continue
        known = _with_facts(request, namespace)
        if known and drawn == (side_effects.EACH_TIME in known["expected"]):
            yield known


def _draws(request: Request, namespace: dict[str, Any]) -> bool:
    """Whether the reference draws anything for an answer; if not, no seed makes it another one."""
    executor = Executor(namespace)
    for one in [*request["made"], request["asked"]]:
        executor.carry_out(one, watched=True)
    return executor.moved


def _with_facts(request: Request, namespace: dict[str, Any]) -> Request | None:
    """The request with what is noticed about the reference; None if it needs what came before."""
    request = {**request, "expected": []}
    with unwarned():
        outcome = Executor(namespace).execute({"op": "repeat", **request})
    return {**request, "expected": outcome["value"]} if outcome["kind"] == "value" else None


def _dropping(request: Request, rate: float, namespace: dict[str, Any]) -> Request | None:
    """The same call of modules that drop at this rate; None if none of them drops anything."""
    takes = [_takes_dropout(one["name"], namespace) for one in request["made"]]
    if not any(takes):
        return None
    made = [
        {**one, "kwargs": {**one.get("kwargs", {}), "dropout": rate}} if drops else one
        for one, drops in zip(request["made"], takes, strict=True)
    ]
    return {**request, "made": made}


def _takes_dropout(name: str, namespace: dict[str, Any]) -> bool:
    made = namespace.get(name)
    return made is not None and "dropout" in inspect.signature(made).parameters


def _in_train_mode(request: Request) -> Request:
    asked = dict(request["asked"])
    if asked["op"] == "invoke":
        asked["training"] = True
    if asked.get("modules"):
        asked["modules"] = dict.fromkeys(asked["modules"], True)
    return {**request, "asked": asked}


def _kind(request: Request) -> tuple[str, ...]:
    """Calls of one kind give the same arguments, and the same switches, to the same method."""
    given = [*enumerate(request.get("args", ())), *request.get("kwargs", {}).items()]
    # A rate of 0 switches something off.
    switches = [f"{name}={bool(value)}" for name, value in given if isinstance(value, (int, float))]
    names = [str(name) for name, value in given if value is not None]
    modes = [f"training={request['training']}"] if "training" in request else []
    return (request.get("method", ""), *names, *switches, *modes)


def _flat(request: Request) -> bool:
    """Whether each tensor is but a row or a column, which lies in memory in one way only."""
    return all(sorted((1, 1, *tensor.shape))[-2] == 1 for _, tensor in walk(request))


def _needed(request: Request, made: dict[int, Request]) -> list[Request] | None:
    """The requests that made the modules of a request, in their order; None if one is unknown."""
    waiting = [int(handle) for handle in request.get("modules", {})]
    waiting += [request["handle"]] if request["op"] == "invoke" else []
    needed: set[int] = set()
    while waiting:
        handle = waiting.pop()
        if handle not in made:
            return None
        if handle not in needed:
            needed.add(handle)
            waiting += map(int, made[handle].get("modules", {}))
    return [made[handle] for handle in sorted(needed)]
