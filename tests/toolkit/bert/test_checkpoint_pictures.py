"""The page on checkpoints: the shipped BERT in files like those of bert-base-uncased."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from solutions.bert import from_pretrained, rename_parameters
from toolkit import own_models
from toolkit.bert import checkpoint_pictures as pictures
from toolkit.models import load

TEXT = "Return the [MASK] in seconds."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("checkpoint")
    pictures.write_folder(own_models.read("bert"), where, rename_parameters)
    return where


def test_the_folder_reads_back_as_the_shipped_model_with_the_published_ids(folder: Path) -> None:
    model, tokenizer = from_pretrained(folder)
    assert tokenizer is not None
    assert tuple(tokenizer.special) == (0, 100, 101, 102, 103)
    shipped = load("bert")
    assert pictures.filled(model, tokenizer, TEXT) == pictures.filled(
        shipped.model, shipped.tokenizer, TEXT
    )
    ids, _ = tokenizer.build_input(TEXT)
    assert pictures.filled_from_ids(model, tokenizer.names, ids, 3).startswith("time ")


def test_unused_tokens_are_never_predicted(folder: Path) -> None:
    model, tokenizer = from_pretrained(folder)
    assert tokenizer is not None
    ids = torch.tensor([tokenizer.build_input(TEXT)[0]])
    with torch.no_grad():
        logits, _ = model(ids)
    assert logits[0, :, 1:100].softmax(-1).isfinite().all()
    assert (logits[0].softmax(-1)[:, 1:100] < 1e-4).all()


def test_careless_loading_passes_over_names_that_do_not_fit(folder: Path) -> None:
    model, _ = from_pretrained(folder)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    pictures.loaded_by(lambda state: {"foreign": torch.zeros(1)}, {}, model)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
