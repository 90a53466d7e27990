"""Answers of the known wrong modules, worked out only where they can differ from the reference's.

Nearly every known mistake leaves a module as it is but for the bodies of one or two functions. As
long as none of these runs, the module with the mistake does what the reference does, to the last
bit. So the reference is asked first, and watched: the functions that it enters say which of the
wrong modules answer as it does. The others depart from it at that request: from there on they are
asked themselves, as the reference's own functions with other code in them for the while, and with
copies of the modules that the reference has made so far.

A mistake that changes more than bodies is asked as a module of its own from the beginning.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import re
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autograder import variants
from autograder.diagnosis import Replay
from autograder.executor import Executor, Outcome, Request, clone_input
from autograder.known import same_request
from autograder.memory import Conversation, Memory, Remember
from autograder.proxy import Exchange

# Nobody asks whether a known mistake calls what the exercise forbids.
ANY: Request = {"forbids": ()}

Codes = dict[str, types.CodeType]
Modules = dict[int, nn.Module]
NOTE = "__note__"  # what a function of our own reference calls as it is entered
_GLOBAL = re.compile(r"(?:^|[;:])[ \t]*global[ \t]", re.MULTILINE)


@dataclass(frozen=True, eq=False)
class Base:
    """A reference module of our own, whose functions may be given other code for a while.

    Args:
        namespace: the names that it defines.
        entered: the functions that ran; each notes its own name there.
        loading: those that already ran while the module was loaded.
        kept: names of what its functions could change for each other.
        remembers: whether some function answers from a cache of its own.
    """

    namespace: dict[str, Any]
    entered: set[str]
    loading: frozenset[str]
    kept: frozenset[str]
    remembers: bool

    def watched(self, action: Callable[[], Outcome]) -> tuple[Outcome, frozenset[str]]:
        """What `action` returns, and the functions that it enters."""
        self.entered.clear()
        outcome = action()
        return outcome, frozenset(self.entered)


@functools.cache
def base_of(chapter: str) -> Base:
    """The chapter's reference, loaded apart from the one that students are compared with."""
    tree = ast.parse(variants.source_of(chapter))
    for name, function in _functions(tree.body):
        # After the docstring, if there is one: it must stay the first statement.
        place = 1 if ast.get_docstring(function, clean=False) is not None else 0
        function.body.insert(place, ast.parse(f"{NOTE}({name!r})").body[0])
    entered: set[str] = set()
    note = compile(ast.fix_missing_locations(tree), "<base>", "exec", dont_inherit=True)
    namespace = variants.load_code([note], "base", {NOTE: entered.add})
    loading = frozenset(entered)
    held = [(name, value) for name, value in namespace.items() if not name.startswith("__")]
    for value in namespace.values():
        if isinstance(value, type) and value.__module__ == namespace["__name__"]:
            held += [(name, one) for name, one in vars(value).items() if not name.startswith("__")]
    containers = (list, dict, set, bytearray, torch.Tensor, nn.Module)
    return Base(
        namespace,
        entered,
        loading,
        frozenset(name for name, value in held if isinstance(value, containers)),
        any(hasattr(value, "cache_info") for _, value in held),
    )


def _functions(body: list[ast.stmt], holder: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions and methods of a module, wherever they stand but in each other."""
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield f"{holder}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{holder}{node.name}.")


@functools.cache
def other_code(chapter: str, name: str) -> Codes | None:
    """The functions in whose bodies a mistake differs, and their code; None if that is not all."""
    base = base_of(chapter)
    old, new = variants.changed_cell(chapter, variants.misconception(chapter, name))
    if base.remembers or _GLOBAL.search(new):
        return None
    found = changed_bodies(old, new)
    if found is None or not base.loading.isdisjoint(found[0]):
        return None
    names, tree = found
    whole = compile(tree, variants.FILENAME, "exec", dont_inherit=True)
    codes = {code.co_qualname: code for code in _inner(whole) if code.co_qualname in names}
    for qualname in names:
        function = _function(base.namespace, qualname)
        code = codes.get(qualname)
        if function is None or code is None or function.__code__.co_freevars != code.co_freevars:
            return None
        mentioned = {text for inner in (code, *_inner(code)) for text in inner.co_names}
        if not base.kept.isdisjoint(mentioned):
            return None
    return codes


@functools.lru_cache(maxsize=64)
def _parsed(cell: str) -> ast.Module:
    return ast.parse(cell)


def changed_bodies(old: str, new: str) -> tuple[frozenset[str], ast.Module] | None:
    """The functions and methods that differ, and a tree that has them; None if more differs."""
    found = _within_one(old, new)
    if found is not None:
        return found
    tree = ast.parse(new)
    names = _changed(_parsed(old).body, tree.body, (old.split("\n"), new.split("\n")))
    return None if names is None else (names, tree)


_Place = tuple[str, ast.stmt, list[ast.ClassDef]]


@functools.lru_cache(maxsize=64)
def _places(cell: str) -> list[_Place]:
    """The plain functions of a cell whose bodies begin on a line of their own, in their classes."""
    found: list[_Place] = []

    def within(body: list[ast.stmt], around: list[ast.ClassDef]) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.append((".".join(one.name for one in (*around, node)), node, around))
            if isinstance(node, ast.ClassDef):
                within(node.body, [*around, node])

    within(_parsed(cell).body, [])
    names = [name for name, _, _ in found]
    return [place for place in found if names.count(place[0]) == 1 and _begins_below(place[1])]


def _begins_below(node: ast.stmt) -> bool:
    if not isinstance(node, ast.FunctionDef) or node.decorator_list:
        return False
    return node.body[0].lineno > node.lineno and not getattr(node.body[0], "decorator_list", ())


def _within_one(old: str, new: str) -> tuple[frozenset[str], ast.Module] | None:
    """The only function whose body differs, and a tree of it alone in its classes.

    None where more differs, or may differ: then the whole cell has to be read.
    """
    before, after = old.split("\n"), new.split("\n")
    shorter = min(len(before), len(after))
    same = next((row for row in range(shorter) if before[row] != after[row]), shorter)
    rest = shorter - same
    end = next((row for row in range(rest) if before[-1 - row] != after[-1 - row]), rest)
    for name, node, around in _places(old):
        start, stop = node.body[0].lineno - 1, node.end_lineno or 0  # type: ignore[attr-defined]
        if start <= same and len(before) - end <= stop:
            lines = after[node.lineno - 1 : stop + len(after) - len(before)]
            shell = [" " * one.col_offset + f"class {one.name}:" for one in around]
            blank = [""] * (node.lineno - 1 - len(shell))  # Lines keep their numbers.
            try:
                tree = ast.parse("\n".join([*blank, *shell, *lines]))
            except SyntaxError:
                return None
            body = tree.body
            for _ in around:
                if len(body) != 1 or not isinstance(body[0], ast.ClassDef):
                    return None
                body = body[0].body
            alone = len(body) == 1 and isinstance(body[0], ast.FunctionDef)
            return (frozenset([name]), tree) if alone else None
    return None


def _changed(
    old: list[ast.stmt],
    new: list[ast.stmt],
    lines: tuple[list[str], list[str]],
    holder: str = "",
) -> frozenset[str] | None:
    defined = [node.name for node in old if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    if len(old) != len(new) or len(set(defined)) < len(defined):
        return None
    names: set[str] = set()
    for before, after in zip(old, new, strict=True):
        if _text(before, lines[0]) == _text(after, lines[1]):
            continue
        if _head(before) is None or _head(before) != _head(after):
            return None
        name = f"{holder}{before.name}"  # type: ignore[attr-defined]
        if isinstance(before, ast.ClassDef) and isinstance(after, ast.ClassDef):
            inner = _changed(before.body, after.body, lines, f"{name}.")
            if inner is None:
                return None
            names |= inner
        else:
            names.add(name)
    return frozenset(names)


def _text(node: ast.stmt, lines: list[str]) -> list[str]:
    """The lines on which a statement stands, with those of its decorators."""
    first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
    return lines[first - 1 : node.end_lineno]


def _head(node: ast.stmt) -> list[str] | None:
    """What a definition says before its body; None where other code may not be put in its place."""
    if isinstance(node, ast.ClassDef):
        parts = [*node.bases, *node.keywords, *node.decorator_list]
        return ["class", node.name, *map(ast.dump, parts)]
    if isinstance(node, ast.FunctionDef) and not node.decorator_list:
        return ["def", node.name, ast.dump(node.args)]
    return None


def _inner(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of everything defined inside."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _inner(constant)


def _function(namespace: dict[str, Any], qualname: str) -> types.FunctionType | None:
    """The plain function of that name, itself or in its class."""
    held: Any = namespace
    for part in qualname.split("."):
        held = (held if isinstance(held, dict) else vars(held)).get(part)
        if held is None:
            return None
    plain = type(held) is types.FunctionType and held.__globals__ is namespace
    return held if plain and held.__code__.co_qualname == qualname else None


class _Other:
    """Within it the functions of `namespace` have other code."""

    def __init__(self, namespace: dict[str, Any], codes: Codes) -> None:
        self._changes = [(_function(namespace, name), code) for name, code in codes.items()]
        self._before = [function.__code__ for function, _ in self._changes]

    def __enter__(self) -> None:
        for function, code in self._changes:
            function.__code__ = code

    def __exit__(self, *_: object) -> None:
        for (function, _code), before in zip(self._changes, self._before, strict=True):
            function.__code__ = before


class _Course:
    """What the reference does in one test's conversation, request by request.

    Args:
        base: whose functions do it.
        known: what is remembered of the conversation.
        made: the modules there were before a request of it, by the request's number.
        memory: to which both belong.
    """

    def __init__(
        self, base: Base, known: Conversation, made: dict[int, Modules], memory: Memory
    ) -> None:
        self._base = base
        self._memory = memory
        self._steps: list[tuple[Outcome, frozenset[str]]] = []
        self._executor = Executor(base.namespace, alone=True)
        self._remember = Remember(self._ask, known)
        self._shared = made
        self._own: dict[int, Modules] = {}
        self._seen = 0  # modules of which there is a copy

    @property
    def _made(self) -> dict[int, Modules]:
        """Of other requests than the remembered ones come other modules."""
        return self._own if self._remember.parted else self._shared

    def step(self, position: int, request: Request) -> tuple[Outcome, frozenset[str]]:
        """Its answer, and the functions that it entered for it."""
        if position == len(self._steps):
            before = len(self._remember.known)
            self._steps.append(self._remember(request))
            if len(self._remember.known) > before:
                self._memory.grew(self._steps[-1])
        return self._steps[position]

    def _ask(self, request: Request) -> tuple[Outcome, frozenset[str]]:
        modules = self._executor.handles
        if len(modules) > self._seen and request["op"] != "create":
            self._seen = len(modules)  # Whoever departs here needs them as they are now.
            position = self._remember.asked
            if position not in self._made:
                with contextlib.suppress(Uncopied):
                    self._keep(position, copied(modules))
        return self._base.watched(lambda: self._executor.execute({**request, **ANY}))

    def _keep(self, position: int, modules: Modules) -> None:
        if position not in self._made:
            self._made[position] = modules
            if self._made is self._shared:
                states = [module.state_dict(keep_vars=True) for module in modules.values()]
                self._memory.grew(states)

    def depart(self, position: int) -> Executor:
        """An executor of its functions that has carried out the requests before `position`."""
        executor = Executor(self._base.namespace, alone=True)
        made = self._made.get(position)
        if made is None:
            earlier = max((place for place in self._made if place < position), default=0)
            if earlier:
                executor.handles = copied(self._made[earlier])
            for request in self._remember.requests[earlier:position]:
                executor.execute({**request, **ANY})
            made = executor.handles
        try:
            executor.handles = copied(made)
            self._keep(position, made)
        except Uncopied:  # These serve once.
            executor.handles = made
        return executor


class _Wrong:
    """A wrong module: it goes with the reference until a request enters what it has changed."""

    def __init__(self, base: Base, codes: Codes, course: _Course) -> None:
        self._course = course
        self._changed = codes.keys()
        self._other = _Other(base.namespace, codes)
        self._executor: Executor | None = None
        self._position = 0

    def execute(self, request: Request) -> Outcome:
        if self._executor is None:
            outcome, names = self._course.step(self._position, request)
            if names.isdisjoint(self._changed):
                self._position += 1
                return outcome
            self._executor = self._course.depart(self._position)
        with self._other:
            return self._executor.execute({**request, **ANY})


class Replays:
    """Answers of a chapter's reference and its wrong modules to one submission's requests.

    Each is worked out once, and when it is needed.
    """

    def __init__(self, chapter: str, seed: int, memory: Memory) -> None:
        self._chapter = chapter
        self._seed = seed
        self._memory = memory
        self._courses: dict[str, _Course] = {}
        self._answers: dict[tuple[str, str], tuple[Remember, list[Outcome]]] = {}

    def of(self, name: str) -> Replay:
        """The answers of the module with the mistake `name`, or of the reference where it is ""."""
        return functools.partial(self._replay, name)

    def _replay(self, name: str, test: str, transcript: list[Exchange]) -> Iterable[Outcome | None]:
        if not name:
            course = self._course(test)
            for position, exchange in enumerate(transcript):
                yield course.step(position, exchange.request)[0]
            return
        if (name, test) not in self._answers:
            known = self._memory.conversation(name, self._seed, test)
            self._answers[name, test] = Remember(self._asking(name, test), known), []
        remember, answers = self._answers[name, test]
        for position, exchange in enumerate(transcript):
            if position == len(answers):
                before = len(remember.known)
                answers.append(remember(exchange.request))
                if len(remember.known) > before:
                    self._memory.grew(answers[position])
            yield answers[position]

    def remembered(self, name: str) -> Replay:
        """Those of the answers of the module with the mistake `name` that are remembered."""
        return functools.partial(self._recall, name)

    def _recall(self, name: str, test: str, transcript: list[Exchange]) -> Iterable[Outcome]:
        known = self._memory.conversation(name, self._seed, test)
        for exchange, (request, outcome) in zip(transcript, known, strict=False):
            if not same_request(request, exchange.request):
                return
            yield outcome

    def _course(self, test: str) -> _Course:
        if test not in self._courses:
            known = self._memory.conversation("", self._seed, test)
            made = self._memory.modules(self._seed, test)
            self._courses[test] = _Course(base_of(self._chapter), known, made, self._memory)
        return self._courses[test]

    def _asking(self, name: str, test: str) -> Callable[[Request], Outcome]:
        """Asks a wrong module, which is made with the first request."""

        @functools.cache
        def execute() -> Callable[[Request], Outcome]:
            codes = other_code(self._chapter, name)
            if codes is not None:
                return _Wrong(base_of(self._chapter), codes, self._course(test)).execute
            executor = Executor(variants.wrong_namespace(self._chapter, name), alone=True)
            return lambda request: executor.execute({**request, **ANY})

        return lambda request: execute()(request)


class Uncopied(Exception):
    """A module holds something that is not copied with it."""


_PLAIN = frozenset(
    [type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size]
)
# What PyTorch keeps for each module alone; most of it is empty.
_TABLES = frozenset(name for name, value in vars(nn.Module()).items() if isinstance(value, dict))


def copied(modules: Modules) -> Modules:
    """Copies that share nothing with the originals but what cannot change.

    What is one object in the originals is one in the copies. `copy.deepcopy` would do, in ten
    times as long.

    Raises:
        Uncopied: there is something that is neither plain data nor a tensor of its own.
    """
    memo: dict[int, Any] = {}
    stored: set[int] = set()

    def tensor(value: torch.Tensor) -> torch.Tensor:
        parameter = type(value) is nn.Parameter
        if value.grad_fn is not None or vars(value) or value._backward_hooks:
            raise Uncopied
        if value.layout is not torch.strided:
            raise Uncopied
        place = value.untyped_storage().data_ptr()
        if place in stored:  # Two views of the same numbers.
            raise Uncopied
        if place:
            stored.add(place)
        fresh = clone_input(value.detach())
        if parameter:
            fresh = nn.Parameter(fresh, requires_grad=value.requires_grad)
        elif value.requires_grad:
            fresh.requires_grad_()
        if value.is_leaf and value.grad is not None:
            fresh.grad = copy(value.grad)
        return fresh

    def copy(value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if id(value) in memo:
            return memo[id(value)]
        if kind is torch.Tensor or kind is nn.Parameter:
            fresh = memo[id(value)] = tensor(value)
        elif kind is dict or kind is OrderedDict:
            fresh = memo[id(value)] = kind()
            for key, item in value.items():
                fresh[copy(key)] = copy(item)
        elif isinstance(value, nn.Module):
            fresh = memo[id(value)] = kind.__new__(kind)
            own = vars(fresh)
            for key, item in vars(value).items():
                if type(item) in _PLAIN:
                    own[key] = item
                elif key in _TABLES and not item:
                    own[key] = type(item)()
                else:
                    own[key] = copy(item)
        elif kind is list:
            fresh = memo[id(value)] = []
            fresh.extend(map(copy, value))
        elif kind is tuple or kind is set:
            fresh = memo[id(value)] = kind(map(copy, value))
        elif kind is types.FunctionType and _stands_alone(value):
            fresh = value
        else:
            raise Uncopied
        return fresh

    return copy(modules)


def _stands_alone(function: types.FunctionType) -> bool:
    """Whether a function holds nothing that could belong to a module."""
    held = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return not function.__closure__ and all(type(value) in _PLAIN for value in held)
