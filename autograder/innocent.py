"""Code that cannot call a forbidden function, whatever it does, need not be watched while it runs.

Watching every call of PyTorch doubles the time of code that works number by number. A notebook is
innocent if each name in it is one of a list of harmless ones, or its own: then there is no way from
it to a function that an exercise forbids. Anything that is not known to be harmless makes it
suspect, which costs nobody a point: its code is watched, as all code would be without this file.

All of it rests on one thing: no module is ever a value. A module is only named at the left of a
dot, on the way to something harmless; it is not bound to a name, passed, returned, kept in a
container or a class, or found in an exception. So the attributes of all other things are those of
PyTorch's classes, of Python's own values, or the notebook's own: a module of a network may have an
attribute `dropout` although `torch.dropout` is forbidden.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType

import torch

from autograder.executor import MODULE_FUNCTIONS, canonical, watched_functions
from autograder.forbidden import PRYING
from autograder.kept_texts import kept_for
from autograder.syntax import parsed
from autograder.worker import PROMPT


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Modules that lead nowhere but to what `HARMLESS` lists.
MODULES = _words(
    """
    autograder collections collections.abc copy functools heapq itertools math random re torch
    torch.nn torch.nn.functional torch.nn.init torch.nn.utils.rnn torch.optim typing
    """
)
# Attributes of those modules, of tensors, of modules of a network and of Python's own values, and
# names that are imported. None of them calls another function of PyTorch that an exercise forbids,
# or finds anything by a name that is put together at run time.
HARMLESS = _words(
    """
    __getitem__ __init__ abs accumulate acos Adam AdamW add add_ add_module addcdiv addcdiv_
    addcmul addcmul_ addmm all allclose amax amin aminmax Any any append apply arange arccos
    argmax argmin argsort array as_tensor asin atan atleast_1d attention autograd backward
    baddbmm BCEWithLogitsLoss bernoulli bfloat16 bias binary_cross_entropy_with_logits
    bitwise_and block_diag bmm bool BoolTensor broadcast_shapes broadcast_tensors broadcast_to
    buffers byte cache Callable cartesian_prod cat ceil chain checks_for children choice choices
    chunk clamp clamp_min clip_grad_norm_ clone combinations concat constant_ contiguous copy
    copy_ cos count count_nonzero Counter cpu cross_entropy cummax cumprod cumsum cycle data
    deepcopy defaultdict deque detach device diag diag_embed diagonal dim div dot double Dropout
    dropout dtype e einsum element_size Embedding embedding embedding_dim empty empty_like
    enable_grad endswith enumerate eq equal erf erfc eval exp exp2 expand expand_as expm1
    exponential_ extend eye fill_ fill_diagonal_ findall finfo flatten flip float float16
    float32 float64 FloatTensor floor forward from_iterable fsum full full_like functional
    gather ge gelu Generator get get_default_dtype grad GRUCell gt half heappop heappush hstack
    hypot Identity iinfo imag in_features index index_add index_add_ index_put index_put_
    index_select indices inf init insert int int16 int32 int64 int8 integers is_complex
    is_contiguous is_floating_point isclose isdisjoint isfinite isinf islice isnan isneginf item
    items Iterable Iterator join kaiming_normal_ kaiming_uniform_ keys kron kthvalue layer_norm
    LayerNorm le lerp lerp_ Linear linear linspace load_state_dict log log10 log1p log2
    log_softmax logaddexp logical_and logical_not logical_or logical_xor logsigmoid LogSoftmax
    logsumexp long LongTensor lower lru_cache LSTM lstm lt manual_seed Mapping masked_fill
    masked_fill_ masked_scatter masked_select matmul matrix max maximum mean min minimum mm
    Module ModuleDict ModuleList modules moveaxis movedim mT mul mul_ multinomial mv
    named_modules named_parameters nan nan_to_num narrow ndim ndtr ne neg neg_ new_empty
    new_full new_ones new_tensor new_zeros nlargest nll_loss nn no_grad nonzero NoReturn norm
    normal_ nsmallest num_embeddings numel one_hot ones ones_ ones_like optim OrderedDict
    orthogonal_ out_features outer pack_padded_sequence pad pad_packed_sequence pad_sequence
    pairwise Parameter ParameterList parameters parameters_to_vector partial permutations
    permute pi polar pop pow prod product rand rand_like randint randint_like randn randn_like
    random randperm randrange real reciprocal reduce register_buffer register_parameter ReLU
    relu remainder remove repeat repeat_interleave replace requires_grad requires_grad_ reshape
    reverse rnn roll rot90 round rsqrt sample scaled_dot_product_attention scatter scatter_
    scatter_add scatter_add_ searchsorted select Sequence Sequential SGD shape shuffle sigmoid
    sign sin Size size softmax softplus sort special split splitlines sqrt square squeeze stack
    starmap startswith state_dict step stride strip sub sub_ sum swapaxes T t take
    take_along_dim tan tanh Tensor tensor tensor_split tensordot tile to tolist topk trace train
    training transpose tril tril_indices triu triu_indices trunc type_as uint8 unbind unflatten
    unfold uniform_ unique unsqueeze update upper utils values vander var vector_to_parameters
    view view_as vstack weight where wraps xavier_normal_ xavier_uniform_ zero_ zero_grad zeros
    zeros_ zeros_like zip zip_longest
    """
)
BUILTINS = _words(
    """
    abs all any ArithmeticError AssertionError BaseException bool bytearray bytes callable chr
    classmethod complex dict divmod enumerate Exception False filter float frozenset hasattr hash id
    IndexError int isinstance issubclass iter KeyError len list LookupError map max min next
    None NotImplemented NotImplementedError object ord OverflowError pow print property
    range repr reversed round RuntimeError set setattr slice sorted staticmethod
    StopIteration str sum super True tuple type TypeError ValueError ZeroDivisionError zip
    """
)
DUNDERS = frozenset(
    ["__init__", "__call__", "__len__", "__iter__", "__getitem__", "__contains__", "__repr__"]
)
# How the attributes of frames, code and other inner parts of Python begin.
INNER = ("__", "f_", "gi_", "cr_", "ag_", "co_", "tb_", "func_")
# In which an exception keeps the very thing, be it a module, whose attribute was not there.
KEPT = frozenset(["obj"])
# What the worker adds to Python's own names, and what Python adds for people at a prompt.
GIVEN = _words("copyright credits display exit get_ipython help license quit")
REFUSED = (ast.Match, ast.Await, ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith)


@functools.cache
def _places() -> tuple[object, ...]:
    """Where PyTorch has its names."""
    return (
        torch, torch.Tensor, torch.nn, torch.nn.functional, torch.nn.Module, torch.nn.init,
        torch.nn.utils, torch.nn.utils.rnn, torch.nn.attention, torch.autograd, torch.random,
        torch.special, torch.optim, torch.optim.Optimizer,
    )  # fmt: skip


@functools.cache
def _of_torch() -> frozenset[str]:
    """The names of PyTorch: an attribute called so may be PyTorch's, whoever else has one."""
    return frozenset(name for place in _places() for name in dir(place))


@functools.cache
def _only_in_modules() -> frozenset[str]:
    """The names of functions and classes that in PyTorch nothing but modules has, as `dropout`."""
    modules = [place for place in _places() if isinstance(place, ModuleType)]
    elsewhere = {
        name for one in modules for name, it in vars(one).items() if isinstance(it, ModuleType)
    }
    for module in modules:  # and the modules that harmless names lead to
        found = [vars(module).get(name) for name in HARMLESS]
        modules += [one for one in found if isinstance(one, ModuleType) and one not in modules]
    values = [vars(module)[name] for module in modules for name in HARMLESS & vars(module).keys()]
    kinds = {value for value in values if isinstance(value, type)} | {*map(type, values)}
    kinds |= {place for place in _places() if isinstance(place, type)} | {torch.nn.Parameter}
    elsewhere.update(name for kind in kinds for name in dir(kind))
    return frozenset(name for name in _of_torch() - elsewhere if not name.startswith("_"))


def innocent(sources: Iterable[str], forbids: Iterable[str]) -> bool:
    """Whether no code in a notebook can reach a function that its assignment forbids.

    Args:
        sources: the notebook's code cells.
        forbids: what all exercises of the assignment forbid, such as "softmax" or "nn.GRUCell".
    """
    return _innocent(tuple(sources), frozenset(forbids))


@dataclass(frozen=True)
class _Cell:
    """What one cell says that decides whether a notebook is innocent."""

    modules: frozenset[tuple[str, str]]  # names that it imports a module by, and which
    bound: frozenset[str]  # names that it binds to anything else
    risky: frozenset[str]  # names in it that must be those of modules, if they are anything
    alone: frozenset[str]  # those that stand for more than the left end of a.b, or are bound
    roots: frozenset[str]  # the left ends of attributes that are not known to be harmless
    chains: dict[str, frozenset[tuple[str, ...]]]  # each whole a.b.c, as (b, c), by its left end


@kept_for(characters=200_000)
def _innocent(sources: tuple[str, ...], forbids: frozenset[str]) -> bool:
    cells = []
    for source in sources:
        cell = _read(source, forbids)
        if cell is None:
            return False
        cells.append(cell)
    meanings: dict[str, set[str]] = {}
    for cell in cells:
        for name, module in cell.modules:
            meanings.setdefault(name, set()).add(module)
    modules = meanings.keys()
    if any(modules & cell.bound for cell in cells):
        return False  # a name for a module, and for something else
    for cell in cells:
        if modules & (cell.alone | cell.roots):
            return False  # a module that goes by another name from here on, or more than harmless
        for first, found in meanings.items():
            for rest in cell.chains.get(first, ()):
                if any(_leaves_a_module(module, *rest) for module in found):
                    return False
        if cell.risky - modules:
            return False
    return True


def _is_risky(name: str) -> bool:
    # A name that nothing binds only raises NameError.
    if name.startswith("__") or name in GIVEN:
        return True
    return hasattr(builtins, name) and name not in BUILTINS  # It may be `eval` in another place.


@functools.lru_cache(maxsize=1024)
def _leaves_a_module(module: str, *path: str) -> bool:
    """Whether what `path` leads to is a module, or not there, so that an exception would hold one.

    Only harmless names are looked up here, in modules that are harmless themselves.
    """
    value: object = importlib.import_module(module)
    for name in path:
        if not isinstance(value, ModuleType):
            return False
        value = getattr(value, name, value)  # still a module if there is no such name
    return isinstance(value, ModuleType)


@functools.cache
def _harmless(forbids: frozenset[str]) -> frozenset[str]:
    """Those of `HARMLESS` that are not forbidden, nor bring along what is."""
    watched = watched_functions(tuple(forbids))
    return frozenset(
        name
        for name in HARMLESS
        if not watched & {canonical(each) for each in (name, *MODULE_FUNCTIONS.get(name, ()))}
    )


# Most cells of a class are as they were handed out, or as a classmate wrote them.
@kept_for(characters=1_000_000)
def _read(source: str, forbids: frozenset[str]) -> _Cell | None:
    """One cell's part, whatever the others say; None if it cannot be harmless."""
    if any(line.lstrip().startswith(("%", "!", "?")) for line in source.splitlines()):
        return None  # a magic may run its line
    if source.lstrip("\n")[:1].isspace() or PROMPT.search(source):
        return None  # IPython may run something else than what stands there
    tree = parsed(source)
    if tree is None:
        return None  # It may run all the same, once IPython has mended it.
    nodes = list(ast.walk(tree))
    harmless = _harmless(forbids)
    modules: set[tuple[str, str]] = set()
    bound: set[str] = set()
    used: set[str] = set()
    alone: set[str] = set()
    roots: set[str] = set()
    chains: dict[str, set[tuple[str, ...]]] = {}
    bases = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    lookups = {id(node.func) for node in nodes if _looked_up(node)}
    for node in nodes:
        if isinstance(node, (*REFUSED, ast.Delete)):
            return None
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            if not _imports(node, harmless, modules, bound):
                return None
        elif isinstance(node, ast.FunctionDef):
            if node.name.startswith("__") and node.name not in DUNDERS:
                return None
            bound.add(node.name)
        elif isinstance(node, ast.ClassDef):
            if _has_modules(node):
                return None
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
        elif isinstance(node, ast.Name) and id(node) not in lookups:
            used.add(node.id)
            if isinstance(node.ctx, ast.Store):
                bound.add(node.id)
            if id(node) not in bases or not isinstance(node.ctx, ast.Load):
                alone.add(node.id)
        elif isinstance(node, ast.Attribute):
            path = _path(node)
            if id(node) not in bases and path:
                chains.setdefault(path[0], set()).add(path[1:])
            if node.attr not in harmless:
                if not _may_be_its_own(node.attr, path):
                    return None
                roots.update(path[:1])
        elif isinstance(node, ast.Call) and (name := _looked_up(node)) and name not in harmless:
            path = _path(node.args[0])
            if not _may_be_its_own(name, path):
                return None
            roots.update(path[:1])
    return _Cell(
        modules=frozenset(modules),
        bound=frozenset(bound),
        risky=frozenset(filter(_is_risky, used)),
        alone=frozenset(alone),
        roots=frozenset(roots),
        chains={first: frozenset(rests) for first, rests in chains.items()},
    )


def _may_be_its_own(name: str, path: tuple[str, ...]) -> bool:
    """Whether an attribute at the end of `path` may be the notebook's own, of text or of a list.

    What is PyTorch's may be so only where no expression could have smuggled in a module.
    """
    if name in PRYING or name in KEPT or name.startswith(INNER):
        return False
    return name not in _of_torch() or (bool(path) and name in _only_in_modules())


def _looked_up(node: ast.AST) -> str:
    """The attribute that `getattr(x, "name")` asks for; empty if this is no such call."""
    if not isinstance(node, ast.Call) or node.keywords or len(node.args) not in (2, 3):
        return ""
    name = node.args[1]
    named = isinstance(node.func, ast.Name) and node.func.id == "getattr"
    text = named and isinstance(name, ast.Constant) and isinstance(name.value, str)
    return name.value if text else ""


def _has_modules(node: ast.AST) -> bool:
    """Whether a class imports in its body, so that a module is an attribute of it."""
    return any(
        isinstance(child, (ast.Import, ast.ImportFrom))
        or (not isinstance(child, (ast.FunctionDef, ast.ClassDef)) and _has_modules(child))
        for child in ast.iter_child_nodes(node)
    )


def _imports(
    node: ast.Import | ast.ImportFrom,
    harmless: frozenset[str],
    modules: set[tuple[str, str]],
    bound: set[str],
) -> bool:
    """Note what an import binds; False if it is not a harmless one."""
    for item in node.names:
        if isinstance(node, ast.Import):
            if item.name not in MODULES:
                return False
            first = item.name.split(".")[0]
            modules.add((item.asname, item.name) if item.asname else (first, first))
        else:
            if node.level or node.module not in MODULES:
                return False
            if f"{node.module}.{item.name}" in MODULES:
                modules.add((item.asname or item.name, f"{node.module}.{item.name}"))
            elif item.name in harmless and not _leaves_a_module(node.module, item.name):
                bound.add(item.asname or item.name)
            else:
                return False
    return True


def _path(node: ast.AST) -> tuple[str, ...]:
    """The parts of a.b.c; empty if its left end is no name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return (node.id, *reversed(parts)) if isinstance(node, ast.Name) else ()
