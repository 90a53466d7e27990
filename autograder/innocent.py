"""Code that cannot call a forbidden function, whatever it does, need not be watched while it runs.

Watching every call of PyTorch doubles the time of code that works number by number. A notebook is
innocent if each name in it is one of a list of harmless ones, or its own: then there is no way from
it to a function that an exercise forbids. Anything that is not known to be harmless makes it
suspect, which costs nobody a point: its code is watched, as all code would be without this file.
"""

from __future__ import annotations

import ast
import builtins
import functools
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from autograder.executor import MODULE_FUNCTIONS, canonical, watched_functions
from autograder.forbidden import PRYING


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Modules that lead nowhere but to what `HARMLESS` lists.
MODULES = _words(
    """
    autograder collections collections.abc copy functools heapq itertools math random re torch
    torch.nn torch.nn.functional torch.nn.utils.rnn typing
    """
)
# Attributes of those modules, of tensors, of modules of a network and of Python's own values, and
# names that are imported. None of them calls another function of PyTorch that an exercise forbids,
# or finds anything by a name that is put together at run time.
HARMLESS = _words(
    """
    __init__ abs acos add add_ add_module addcdiv addcdiv_ addcmul addcmul_ addmm all allclose amax
    amin aminmax Any any append arange arccos argmax argmin argsort array as_tensor asin atan
    atleast_1d attention autograd backward baddbmm bernoulli bfloat16 bias
    binary_cross_entropy_with_logits bitwise_and block_diag bmm bool BoolTensor
    broadcast_shapes broadcast_tensors broadcast_to buffers byte cache Callable cartesian_prod cat
    ceil chain checks_for children choice chunk clamp clamp_min clone combinations concat
    constant_ contiguous copy copy_ cos count count_nonzero Counter cpu cross_entropy cummax
    cumprod cumsum data deepcopy defaultdict deque detach device diag diag_embed diagonal
    dim div dot double Dropout dropout dtype e einsum element_size Embedding embedding
    embedding_dim empty empty_like enable_grad endswith enumerate eq equal erf eval exp exp2
    expand expand_as expm1 exponential_ extend eye fill_ findall finfo flatten flip float float16
    float32 float64 FloatTensor floor forward from_iterable full full_like functional gather ge gelu
    Generator get get_default_dtype grad GRUCell gt half heappop heappush hstack hypot
    Identity iinfo imag in_features index index_add index_add_ index_put index_put_
    index_select indices inf init insert int int16 int32 int64 int8 integers is_complex
    is_contiguous is_floating_point isclose isdisjoint isfinite isinf isnan isneginf item
    items Iterable Iterator join kaiming_normal_ kaiming_uniform_ keys kron kthvalue
    layer_norm LayerNorm le lerp lerp_ Linear linear linspace load_state_dict log log10 log1p log2
    log_softmax logaddexp logical_and logical_not logical_or logical_xor LogSoftmax
    logsumexp long LongTensor lower lru_cache LSTM lstm lt manual_seed Mapping masked_fill
    masked_fill_ masked_scatter masked_select matmul matrix max maximum mean min minimum mm
    Module ModuleDict ModuleList modules moveaxis movedim mT mul mul_ multinomial mv
    named_modules named_parameters nan nan_to_num narrow ndim ne neg neg_ new_empty new_full
    new_ones new_tensor new_zeros nlargest nn no_grad nonzero NoReturn norm normal_
    nsmallest num_embeddings numel one_hot ones ones_ ones_like OrderedDict orthogonal_
    out_features outer pack_padded_sequence pad pad_packed_sequence pairwise Parameter
    ParameterList parameters partial permutations permute pi polar pop pow prod product rand
    rand_like randint randint_like randn randn_like random randperm randrange real
    reciprocal reduce register_buffer register_parameter ReLU relu remainder remove repeat
    repeat_interleave replace requires_grad requires_grad_ reshape reverse rnn rot90 round
    rsqrt sample scaled_dot_product_attention scatter scatter_ scatter_add scatter_add_
    searchsorted select Sequence Sequential shape shuffle sigmoid sign sin Size size softmax
    sort split splitlines sqrt square squeeze stack startswith state_dict stride strip sub
    sub_ sum swapaxes T t take take_along_dim tan tanh Tensor tensor tensor_split tensordot
    tile to tolist topk trace train training transpose tril tril_indices triu triu_indices trunc
    type_as uint8 unbind unflatten unfold uniform_ unique unsqueeze update upper utils
    values vander var view view_as vstack weight where wraps xavier_normal_ xavier_uniform_
    zero_ zero_grad zeros zeros_ zeros_like zip zip_longest
    """
)
# Those of them that are modules inside PyTorch: harmless on the way to something harmless, but no
# name is bound to one.
INSIDE = _words("attention autograd random rnn utils")
BUILTINS = _words(
    """
    abs all any ArithmeticError AssertionError BaseException bool bytearray bytes chr
    classmethod complex dict divmod enumerate Exception False filter float frozenset hash id
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
# What the worker adds to Python's own names.
GIVEN = frozenset(["get_ipython", "display", "exit", "quit"])
REFUSED = (ast.Match, ast.Await, ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith)


@functools.cache
def _of_torch() -> frozenset[str]:
    """The names of PyTorch: an attribute called so may be PyTorch's, whoever else has one."""
    places = (
        torch, torch.Tensor, torch.nn, torch.nn.functional, torch.nn.Module, torch.nn.init,
        torch.nn.utils, torch.nn.utils.rnn, torch.nn.attention, torch.autograd, torch.random,
    )  # fmt: skip
    return frozenset(name for place in places for name in dir(place))


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

    modules: frozenset[str]  # names that it imports a module by
    bound: frozenset[str]  # names that it binds to anything else
    used: frozenset[str]  # all names in it
    alone: frozenset[str]  # those that stand for more than the left end of a.b, or are bound
    roots: frozenset[str]  # the left ends of attributes that are not known to be harmless


_NOTHING = _Cell(*[frozenset()] * 5)


@functools.lru_cache(maxsize=8)
def _innocent(sources: tuple[str, ...], forbids: frozenset[str]) -> bool:
    cells = []
    for source in sources:
        cell = _read(source, forbids)
        if cell is None:
            return False
        cells.append(cell)
    modules = frozenset().union(*(cell.modules for cell in cells))
    bound = frozenset().union(*(cell.bound for cell in cells))
    if modules & bound:
        return False  # a name for a module, and for something else
    known = modules | bound | BUILTINS
    for cell in cells:
        if modules & (cell.alone | cell.roots):
            return False  # a module that goes by another name from here on, or more than harmless
        for name in cell.used - modules:
            if name.startswith("__") or name not in known:
                return False
            if name in GIVEN or (hasattr(builtins, name) and name not in BUILTINS):
                return False  # bound in one place, it may be `eval` in another
    return True


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
@functools.lru_cache(maxsize=1024)
def _read(source: str, forbids: frozenset[str]) -> _Cell | None:
    """One cell's part, whatever the others say; None if it cannot be harmless."""
    if any(line.lstrip().startswith(("%", "!", "?")) for line in source.splitlines()):
        return None  # a magic may run its line
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _NOTHING  # It will not run either.
    harmless = _harmless(forbids)
    modules: set[str] = set()
    bound: set[str] = set()
    used: set[str] = set()
    alone: set[str] = set()
    roots: set[str] = set()
    bases = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
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
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
        elif isinstance(node, ast.Name):
            used.add(node.id)
            if isinstance(node.ctx, ast.Store):
                bound.add(node.id)
            if id(node) not in bases or not isinstance(node.ctx, ast.Load):
                alone.add(node.id)
        elif isinstance(node, ast.Attribute) and node.attr not in harmless:
            # An attribute of the notebook's own, of text or of a list.
            if node.attr in PRYING or node.attr.startswith(INNER) or node.attr in _of_torch():
                return None
            roots.add(_root(node))
    return _Cell(*map(frozenset, (modules, bound, used, alone, roots)))


def _imports(
    node: ast.Import | ast.ImportFrom, harmless: frozenset[str], modules: set[str], bound: set[str]
) -> bool:
    """Note what an import binds; False if it is not a harmless one."""
    for item in node.names:
        if isinstance(node, ast.Import):
            if item.name not in MODULES:
                return False
            modules.add(item.asname or item.name.split(".")[0])
        else:
            if node.level or node.module not in MODULES:
                return False
            if f"{node.module}.{item.name}" in MODULES:
                modules.add(item.asname or item.name)
            elif item.name in harmless and not (node.module[:5] == "torch" and item.name in INSIDE):
                bound.add(item.asname or item.name)
            else:
                return False
    return True


def _root(node: ast.Attribute) -> str:
    """The name at the left end of a.b.c, empty if that is no name."""
    base: ast.AST = node
    while isinstance(base, ast.Attribute):
        base = base.value
    return base.id if isinstance(base, ast.Name) else ""
