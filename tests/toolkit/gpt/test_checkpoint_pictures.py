"""The page on GPT-2's checkpoints: the shipped GPT in files like those of gpt2."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from solutions.gpt import from_pretrained, rename_parameters
from toolkit import own_models
from toolkit.gpt import checkpoint_pictures as pictures
from toolkit.models import load


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("checkpoint")
    pictures.write_folder(own_models.read("gpt"), where, rename_parameters)
    return where


def test_the_folder_has_gpt2s_order_of_ids(folder: Path) -> None:
    _, tokenizer = from_pretrained(folder)
    assert tokenizer is not None
    assert tokenizer.encode('!"#$%A\n ') == [0, 1, 2, 3, 4, 32, 198, 220]
    assert tokenizer.end == len(tokenizer) - 1
    assert tokenizer.decode(tokenizer.encode("é日")) == "é日"


def test_ordinary_tokens_keep_their_logits(folder: Path) -> None:
    model, tokenizer = from_pretrained(folder)
    assert tokenizer is not None
    shipped = load("gpt")
    text = "def read(self):\n    return"
    ours, theirs = tokenizer.encode(text), shipped.tokenizer.encode(text)
    with torch.no_grad():
        found = model(torch.tensor([ours]))[..., :-1]
        wanted = shipped.model(torch.tensor([theirs]))[..., 5:]
    torch.testing.assert_close(found, wanted)


def test_matrices_of_linear_layers_are_stored_as_inputs_by_outputs(folder: Path) -> None:
    from safetensors.torch import load_file

    state = load_file(folder / "model.safetensors")
    assert state["h.0.attn.c_attn.weight"].shape == (128, 384)
    assert state["h.3.mlp.c_proj.weight"].shape == (512, 128)
    assert torch.equal(state["h.0.attn.bias"][0, 0], torch.ones(128, 128).tril())


def test_greedy_text_ends_before_the_end_of_the_text(folder: Path) -> None:
    model, tokenizer = from_pretrained(folder)
    prompt = "def read(self, size=-1):\n    return"
    whole = pictures.greedy(model, tokenizer, prompt, most=30)
    assert whole == " self.reader.read(size)"
    assert whole.startswith(pictures.greedy(model, tokenizer, prompt, most=2))
