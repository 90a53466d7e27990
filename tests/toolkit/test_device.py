"""Which device and which sizes a chapter gets."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from toolkit import device


def test_the_device_is_usable() -> None:
    x = torch.ones(3, device=device.device())
    assert float((x * 2).sum()) == 6.0


def test_the_default_preset_fits_the_device() -> None:
    assert device.preset().device.type == device.device().type
    assert device.preset() == device.preset(device.preset().name)


def test_the_cpu_preset_computes_in_full_precision() -> None:
    preset = device.preset("cpu")
    with preset.autocast():
        product = torch.randn(4, 4) @ torch.randn(4, 4)
    assert product.dtype == torch.float32
    assert product.device.type == "cpu"


def test_mixed_precision_applies_inside_the_context_only() -> None:
    preset = dataclasses.replace(device.preset("cpu"), amp_dtype=torch.bfloat16)
    a = torch.randn(4, 4)
    with preset.autocast():
        assert (a @ a).dtype == torch.bfloat16
    assert (a @ a).dtype == torch.float32


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_the_gpu_preset_without_a_gpu_says_what_to_do() -> None:
    with pytest.raises(ValueError, match='preset\\("cpu"\\)'):
        device.preset("gpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_the_gpu_preset_is_larger_in_everything() -> None:
    small, large = device.preset("cpu"), device.preset("gpu")
    assert large.d_model > small.d_model
    assert large.batch_size > small.batch_size
    assert large.lengths[-1] > small.lengths[-1]
    assert torch.zeros(1, device=large.device).is_cuda


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(ValueError, match="tpu"):
        device.preset("tpu")


def test_a_preset_cannot_be_changed_by_a_chapter() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        device.preset("cpu").d_model = 1  # type: ignore[misc]


def test_the_description_names_torch_and_python() -> None:
    line = device.describe()
    assert f"torch {torch.__version__}" in line
    assert "Python 3." in line
    assert "\n" not in line
