"""The page on real checkpoints: the shipped BERT as files like those of bert-base-uncased."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from toolkit.bert import fine_tuning
from toolkit.own_models import ShippedWeights
from toolkit.tokenizer import NAMES

UNUSED = 99  # ids between [PAD] and [UNK] in bert-base-uncased
Rename = Callable[[dict[str, Any]], dict[str, Any]]


def their_names(num_layers: int) -> list[str]:
    """The names in model.safetensors of bert-base-uncased, norms as TensorFlow calls them."""
    dense = lambda name: [f"{name}.weight", f"{name}.bias"]  # noqa: E731
    norm = lambda name: [f"{name}.LayerNorm.gamma", f"{name}.LayerNorm.beta"]  # noqa: E731
    names = [
        f"bert.embeddings.{kind}_embeddings.weight" for kind in ("word", "position", "token_type")
    ]
    names += norm("bert.embeddings")
    for number in range(num_layers):
        at = f"bert.encoder.layer.{number}"
        for part in ("query", "key", "value"):
            names += dense(f"{at}.attention.self.{part}")
        names += dense(f"{at}.attention.output.dense") + norm(f"{at}.attention.output")
        names += dense(f"{at}.intermediate.dense")
        names += dense(f"{at}.output.dense") + norm(f"{at}.output")
    names += dense("bert.pooler.dense")
    names += dense("cls.predictions.transform.dense") + norm("cls.predictions.transform")
    return [*names, "cls.predictions.bias", *dense("cls.seq_relationship")]


def write_folder(shipped: ShippedWeights, folder: Path, rename: Rename) -> None:
    """Write the shipped BERT with the names, the files and the special ids of bert-base-uncased.

    Its 3,000 tokens become 3,099: [PAD] is 0, then come 99 tokens that are never used, then [UNK],
    [CLS], [SEP] and [MASK] with the ids 100 to 103, then all others.

    Args:
        rename: their names to ours, `rename_parameters` of the chapter.
    """
    from safetensors.torch import save_file

    sizes, names = shipped.sizes, shipped.tokenizer.names
    state = {}
    for theirs in their_names(sizes["num_layers"]):
        (ours,) = rename({theirs: None})
        tensor = shipped.state[ours]
        if ours in ("bert.embeddings.token.weight", "mlm.bias"):
            unused = tensor.new_zeros(UNUSED, *tensor.shape[1:])
            if ours == "mlm.bias":
                unused -= 20  # never predicted
            tensor = torch.cat([tensor[:1], unused, tensor[1:]])
        state[theirs] = tensor.contiguous().clone()
    assert list(names[:5]) == list(NAMES)
    words = [names[0], *(f"[unused{i}]" for i in range(UNUSED)), *names[1:]]
    config = {
        "architectures": ["BertForMaskedLM"],
        "model_type": "bert",
        "vocab_size": len(words),
        "hidden_size": sizes["d_model"],
        "num_hidden_layers": sizes["num_layers"],
        "num_attention_heads": sizes["num_heads"],
        "intermediate_size": sizes["d_ff"],
        "max_position_embeddings": sizes["max_length"],
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}\n', encoding="utf-8")


def filled(model: nn.Module, tokenizer: Any, text: str, k: int = 3) -> str:
    """The best words for the one [MASK] of a text with their probabilities, on a line."""
    (blank,) = fine_tuning.fill_mask(model, tokenizer, text, k)
    return "  ".join(f"{word} {share:.2f}" for word, share in blank.guesses)


@torch.no_grad()
def filled_from_ids(model: nn.Module, names: Sequence[str], ids: list[int], at: int) -> str:
    """The three best words at a position of an input that is given as ids, on a line."""
    hidden, _ = model.bert(torch.tensor([ids]))  # (1, T, D)
    best = model.mlm(hidden)[0, at].softmax(-1).topk(3)
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return "  ".join(f"{names[i]} {share:.2f}" for i, share in pairs)


def loaded_by(rename: Rename, state: dict[str, Tensor], model: nn.Module) -> nn.Module:
    """The model with the tensors of a file, as far as their new names fit; in evaluation mode.

    A name that is missing keeps what the model had, and a foreign one is passed over: what careless
    loading does.
    """
    model.load_state_dict(rename(state), strict=False)
    return model.eval()
