"""The library's text is there, in order; pieces are what they say."""

from __future__ import annotations

import json.decoder
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from toolkit.corpora import text as tx

# --------------------------------------------------------------------------- the text


def test_sources_are_the_files_themselves() -> None:
    [(name, source)] = tx.library_documents(["json.decoder"])
    assert name == "json.decoder"
    assert source == Path(json.decoder.__file__).read_text(encoding="utf-8")


def test_modules_come_in_the_order_asked_for() -> None:
    names = ["textwrap", "abc", "json"]
    assert [name for name, _ in tx.library_documents(names)] == names


def test_there_is_enough_to_train_on() -> None:
    assert sum(len(source) for _, source in tx.library_documents()) > 3_000_000


def test_the_text_is_the_same_in_another_process_and_no_module_is_imported_for_it() -> None:
    program = (
        "import sys; from toolkit.corpora.text import library_documents;"
        "print(ascii(library_documents(['turtle', 'xmlrpc.client', 'wave'])));"
        "print({'turtle', 'xmlrpc.client', 'wave'} & set(sys.modules))"
    )
    printed = subprocess.check_output([sys.executable, "-c", program], text=True).splitlines()
    here = tx.library_documents(["turtle", "xmlrpc.client", "wave"])
    assert printed == [ascii(here), "set()"]


@pytest.mark.parametrize("name", ["nothing_such", "../etc/passwd", "", "json.nothing", "sys"])
def test_a_module_without_source_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=r"no Python source of .*json\.decoder"):
        tx.library_documents(["json", name])


def test_no_module_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="module"):
        tx.library_documents([])


# --------------------------------------------------------------------------- pieces


@pytest.mark.parametrize(
    ("size", "length", "batch"), [(2, 1, 1), (21, 5, 2), (23, 5, 2), (4, 9, 3)]
)
def test_in_order_every_token_is_a_target_once(size: int, length: int, batch: int) -> None:
    seen: list[int] = []
    for inputs, targets in tx.in_order(torch.arange(size), length, batch):
        assert torch.equal(targets, inputs + 1)
        assert inputs.shape[0] <= batch
        assert inputs.shape[1] <= length
        seen += targets.flatten().tolist()
    assert seen == list(range(1, size))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tx.in_order(torch.arange(1), 1, 1), "two or more"),
        (lambda: tx.in_order(torch.arange(9).view(3, 3), 2, 1), "one row"),
        (lambda: tx.in_order(torch.arange(5), 0, 1), "length"),
        (lambda: tx.in_order(torch.arange(5), 1, 0), "batch_size"),
    ],
)
def test_pieces_that_cannot_be_are_refused_at_once(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
