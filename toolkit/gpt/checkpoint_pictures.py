"""The page on GPT-2's checkpoints: the shipped GPT as files like those of gpt2."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from toolkit.corpora.code_corpus import END, SPECIAL
from toolkit.own_models import ShippedWeights

END_OF_TEXT = "<|endoftext|>"
Rename = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def their_names(num_layers: int) -> list[str]:
    """The names of the parameters in model.safetensors of gpt2, in their order in the model."""
    names = ["wte.weight", "wpe.weight"]
    for number in range(num_layers):
        for part in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"):
            names += [f"h.{number}.{part}.weight", f"h.{number}.{part}.bias"]
    return [*names, "ln_f.weight", "ln_f.bias"]


def write_folder(shipped: ShippedWeights, folder: Path, rename: Rename) -> None:
    """Write the shipped GPT with the names, shapes, files and order of ids of gpt2.

    Of its 1,024 tokens the five special ones go. The others move to the ids from 0 on, 256 bytes
    first, and <|endoftext|> comes last; it has the embedding of END.

    Args:
        rename: their names to ours, `rename_parameters` of the chapter.
    """
    from safetensors.torch import save_file

    sizes, length = shipped.sizes, shipped.sizes["max_length"]
    state: dict[str, Tensor] = {}
    for theirs in their_names(sizes["num_layers"]):
        (ours,) = rename({theirs: torch.empty(0, 0)})
        tensor = shipped.state[ours]
        if ours == "token.weight":
            tensor = torch.cat([tensor[SPECIAL:], tensor[END : END + 1]])
        if ".c_" in theirs and theirs.endswith("weight"):
            tensor = tensor.T  # (out, in) -> (in, out)
        state[theirs] = tensor.contiguous().clone()
    for number in range(sizes["num_layers"]):  # the published file holds the masks, too
        state[f"h.{number}.attn.bias"] = torch.ones(1, 1, length, length).tril()

    whole = json.loads(shipped.tokenizer.tokenizer.to_str())["model"]
    names = [*sorted(whole["vocab"], key=whole["vocab"].get)[SPECIAL:], END_OF_TEXT]
    merges = [" ".join(m) if isinstance(m, list) else m for m in whole["merges"]]
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": len(names),
        "n_positions": length,
        "n_embd": sizes["d_model"],
        "n_layer": sizes["num_layers"],
        "n_head": sizes["num_heads"],
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "resid_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "bos_token_id": len(names) - 1,
        "eos_token_id": len(names) - 1,
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    for name, content in (("config", config), ("vocab", {n: i for i, n in enumerate(names)})):
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    lines = ["#version: 0.2", *merges]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


@torch.no_grad()
def greedy(model: nn.Module, tokenizer: Any, prompt: str, most: int = 16) -> str:
    """What a model goes on with after <|endoftext|> and a prompt, up to the next one, on a line.

    Args:
        model: ids (1, T) -> logits (1, T, V), in evaluation mode.
        tokenizer: with encode, decode and `end`.
        most: tokens to write at most.
    """
    ids = torch.tensor([[tokenizer.end, *tokenizer.encode(prompt)]])  # (1, T)
    begin = ids.shape[1]
    for _ in range(most):
        following = model(ids)[:, -1].argmax(-1, keepdim=True)  # (1, 1)
        if following.item() == tokenizer.end:
            break
        ids = torch.cat([ids, following], 1)  # (1, T + 1)
    text = tokenizer.decode(ids[0, begin:].tolist()).replace("\n", "⏎")
    return "".join(c if c.isprintable() else "?" for c in text)
