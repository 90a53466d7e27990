"""The test that every exercise has: asked again, it answers the same and leaves no trace.

It repeats one or two of the calls that the exercise's visible tests make (`sandbox.side_effects`),
and asks the same of the reference: what is noticed there too is as it should be, such as chance
where something is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from autograder.judging.expectations import changed_in_place
from autograder.judging.grader_marks import Mistake
from autograder.judging.proxy import Exchange, Proxy
from autograder.sandbox import side_effects
from autograder.sandbox.executor import Executor, Request, walk

PURPOSE = "Asked again, it answers the same, and it leaves what it is given as it was."
CALLS = 2  # that are repeated
FEW = 6  # numbers; with fewer, much is the same by accident

SAYS = {
    side_effects.UNSEEDED: (
        "After the same `torch.manual_seed` your {name} gives another answer each time. Draw "
        "random numbers from PyTorch's own generator, not from Python's, NumPy's or a new one."
    ),
    side_effects.CHANCE: (
        "Your {name} answers the same question differently when `torch.manual_seed` had another "
        "seed, and nothing in it is random. Is something dropped, or drawn anew in each call?"
    ),
    side_effects.FIXED: (
        "Your {name} draws the same random numbers whatever seed `torch.manual_seed` was given: "
        "don't set a seed inside, and make no generator with a fixed one."
    ),
    side_effects.MODE: (
        "In train mode your {name} gives another answer than in eval mode, and nothing in its "
        "formula depends on the mode."
    ),
    side_effects.GRADIENT: (
        "Your {name} gives another answer when gradients are recorded than under `torch.no_grad()`."
    ),
    side_effects.MEMORY: (
        "The answer of your {name} depends on what it was asked before. Something is kept from an "
        "earlier call, such as a mask, a table or a state: make it anew in each call."
    ),
    side_effects.SHARED: (
        "After the caller has written over an answer of your {name}, the next answer is wrong: "
        "you return something that your code still uses. Return a copy."
    ),
    side_effects.PARAMETERS: "A call of your {name} changes parameters, which only training may.",
    side_effects.TRAINING: (
        "Your {name} leaves the model in another mode (train or eval) than it found it in."
    ),
    side_effects.REQUIRES_GRAD: (
        "Your {name} leaves `requires_grad` of the model's parameters otherwise than it found it."
    ),
    side_effects.GRAD: "Your {name} leaves gradients in the parameters (`.grad`), which add up.",
}


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
        for fact in student.repeat(exercise, request):
            if fact not in expected:
                raise Mistake(sentence(exercise, fact))


def sentence(exercise: str, fact: str) -> str:
    """What to say to a student about something that was noticed."""
    if fact.startswith(side_effects.CHANGES):
        return changed_in_place([fact.removeprefix(side_effects.CHANGES)])
    return SAYS.get(fact, "Your {name} does not answer the same when it is asked again.").format(
        name=exercise
    )


def requests_of(
    exercise: str, talks: Sequence[Sequence[Exchange]], namespace: dict[str, Any]
) -> list[Request]:
    """The requests of the test, chosen among those that other tests make.

    Args:
        exercise: whose.
        talks: of each visible test what was asked of the reference and answered.
        namespace: the reference's names.
    """
    found: dict[Any, tuple[tuple[bool, int], Request]] = {}
    for talk in talks:
        made: dict[int, Request] = {}
        for exchange in talk:
            request = exchange.request
            if exchange.outcome["kind"] != "value" or request["op"] == "step":
                continue
            if request["op"] == "create":
                made[request["handle"]] = request
            if request["op"] not in ("call", "invoke"):
                continue
            owner = request if request["op"] == "call" else made.get(request["handle"], {})
            needed = _needed(request, made)
            if owner.get("name") != exercise or needed is None:
                continue
            repeated: Request = {"made": needed, "asked": request, "expected": []}
            numbers = sum(tensor.numel() for _, tensor in walk(request))
            rank = numbers < FEW, numbers
            kind = _kind(request)
            if kind not in found or rank < found[kind][0]:
                found[kind] = rank, repeated
    # The calls with most arguments say most: those with a mask, say.
    chosen = sorted(found, key=lambda kind: -len(kind))[:CALLS]
    requests = []
    for kind in chosen:
        request = found[kind][1]
        outcome = Executor(namespace).execute({"op": "repeat", **request})
        if outcome["kind"] == "value":  # else it needs what other calls of its test have done
            requests.append({**request, "expected": outcome["value"]})
    return requests


def _kind(request: Request) -> tuple[str, ...]:
    """Calls of one kind give the same arguments to the same method."""
    given = enumerate(request.get("args", ()))
    places = [str(place) for place, value in given if value is not None]
    names = [name for name, value in request.get("kwargs", {}).items() if value is not None]
    return (request.get("method", ""), *places, *names)


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
