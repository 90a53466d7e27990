"""The configuration and the weights of a checkpoint's folder, read strictly.

    config = read_config(folder, ("bert",))
    state = read_weights(folder)
    width = positive(config, "hidden_size", default=768)

What is damaged, of another kind or said twice is a ValueError of one sentence that names it: a
checkpoint that is half understood gives a model that runs and is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

State = dict[str, Tensor]


def read_config(folder: str | Path, model_types: Collection[str]) -> dict[str, Any]:
    """The settings in config.json of a folder that holds model.safetensors, too.

    Args:
        folder: of the checkpoint.
        model_types: what `model_type` may be.

    Raises:
        ValueError: if one of the two files is missing, config.json is damaged, or the checkpoint is
            of another type.
    """
    folder = Path(folder)
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise ValueError(f"the checkpoint's folder must hold {name}, but it doesn't")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError("config.json is no JSON, or it is cut off") from error
    if not isinstance(config, dict):
        raise ValueError("config.json must hold a table of settings, but doesn't")
    kind = config.get("model_type")
    if kind not in model_types:
        wanted = " or ".join(map(repr, model_types))
        raise ValueError(f"model_type must be {wanted}, but the checkpoint has {kind!r}")
    return config


def only(config: Mapping[str, Any], key: str, *allowed: Any) -> None:
    """Refuse a setting that our model doesn't have; one that is absent or null passes.

    Raises:
        ValueError: if the setting is none of those allowed.
    """
    value = config.get(key)
    if value is not None and value not in allowed:
        raise ValueError(f"{key} must be {allowed[0]!r}, but the checkpoint has {value!r}")


def positive(config: Mapping[str, Any], *names: str, default: int) -> int:
    """A setting that counts something, by the first of its names that is there.

    Raises:
        ValueError: if it is no whole number above 0.
    """
    for name in names:
        value = config.get(name)
        if value is not None:
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a whole number above 0, but is {value!r}")
            return value
    return default


def probability(config: Mapping[str, Any], *names: str, default: float) -> float:
    """The dropout rate of a model that has a single one.

    Raises:
        ValueError: if one of these settings is no probability, or two of them differ.
    """
    found = {name: config[name] for name in names if config.get(name) is not None}
    for name, value in found.items():
        if type(value) not in (int, float) or not 0 <= value <= 1:
            raise ValueError(f"{name} must lie between 0 and 1, but is {value!r}")
    if len(set(found.values())) > 1:
        said = ", ".join(f"{name} {value}" for name, value in found.items())
        raise ValueError(f"our model has one rate of dropout; give it, as there are {said}")
    return float(next(iter(found.values()), default))


def read_weights(folder: str | Path) -> State:
    """The tensors of model.safetensors, by their names in the file.

    Raises:
        ValueError: if the file is damaged.
    """
    # Needed here only: the rest of the course works without the library.
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(Path(folder) / "model.safetensors")
    except SafetensorError as error:
        raise ValueError("model.safetensors is damaged, or no file of this kind") from error


def renamed(stored: State, rename: Callable[[State], State]) -> State:
    """The tensors by our names.

    Args:
        stored: as from `read_weights`.
        rename: gives tensors our names, and leaves out what is no parameter.

    Raises:
        ValueError: if two names of the file mean the same parameter, the numbers are not all of one
            floating type, or `rename` refuses a name.
    """
    found: State = {}
    origin: dict[str, str] = {}
    for old, tensor in stored.items():
        for new, value in rename({old: tensor}).items():
            if new in found:
                raise ValueError(f"{origin[new]} and {old} are the same parameter, {new}")
            found[new], origin[new] = value, old
    kinds = {tensor.dtype for tensor in found.values()}
    floating = all(kind.is_floating_point and kind.itemsize > 1 for kind in kinds)
    if len(kinds) > 1 or not floating:
        said = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        raise ValueError(f"the weights must be of one floating type, but are of {said}")
    return found


def fit(found: State, wanted: Mapping[str, Tensor]) -> None:
    """Refuse tensors that the model doesn't have, or has in another shape.

    Raises:
        ValueError: if there is one.
    """
    for name, tensor in found.items():
        if name not in wanted:
            raise ValueError(f"the model has no {name}, but the checkpoint does")
        if tensor.shape != wanted[name].shape:
            raise ValueError(
                f"{name} must have the shape {tuple(wanted[name].shape)}, "
                f"but the checkpoint has {tuple(tensor.shape)}"
            )


def same(stored: State, name: str, ours: Tensor, our_name: str) -> None:
    """Refuse an output matrix, or its bias, that is not the one with which our model has it tied.

    Args:
        stored: as from `read_weights`.
        name: of what must equal `ours` if it is stored at all.
        ours: what our model uses in its place.
        our_name: of it.

    Raises:
        ValueError: if it is another one.
    """
    found = stored.get(name)
    if found is not None and not torch.equal(found, ours):
        raise ValueError(f"{name} must be the same as {our_name}, but the checkpoint differs")


def agree(config: Mapping[str, Any], key: str, number: int | None, name: str) -> None:
    """Refuse a configuration that gives a special token another id than the vocabulary.

    Args:
        config: as from `read_config`.
        key: of the id, such as "pad_token_id"; one that is absent or null passes.
        number: of the token in the vocabulary; None: it has none, and all pass.
        name: of the token.

    Raises:
        ValueError: if the two differ.
    """
    said = config.get(key)
    if said is not None and number is not None and said != number:
        raise ValueError(
            f"{key} is {said!r} in config.json, but {name} is {number} in the vocabulary"
        )


def room(vocab_size: int, tokens: int) -> None:
    """Refuse a vocabulary that does not go with the embedding matrix.

    Args:
        vocab_size: rows of the matrix. Some checkpoints round it up, so that it divides well.
        tokens: in the vocabulary.

    Raises:
        ValueError: if tokens have no row, or 128 rows or more have no token.
    """
    if not 0 <= vocab_size - tokens < 128:
        raise ValueError(f"the vocabulary has {tokens} tokens, but vocab_size is {vocab_size}")
