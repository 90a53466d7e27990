"""What the pictures of causal attention show."""

from __future__ import annotations

import pytest
import torch

from solutions.gpt import GPT, CausalSelfAttention, causal_mask, window_mask
from toolkit.corpora.code_corpus import START
from toolkit.gpt import causal_attention_pictures as pictures
from toolkit.gpt.measures import attention_weights
from toolkit.models import Shipped, load
from toolkit.plots import array


@pytest.fixture(scope="module")
def shipped() -> Shipped:
    return load("gpt")


@pytest.fixture(scope="module")
def ids(shipped: Shipped) -> torch.Tensor:
    return torch.tensor([[START, *shipped.tokenizer.encode("def __len__(self):\n    return")]])


def test_the_example_by_hand_is_what_the_module_computes() -> None:
    for masked in (True, False):
        _, weights, output = pictures.by_hand(masked)
        torch.testing.assert_close(weights.sum(-1), torch.ones(3))
        torch.testing.assert_close(output, weights @ pictures.VALUES)
    attention = pictures.set_example(CausalSelfAttention(4, 1))
    expected = pictures.by_hand(True)
    torch.testing.assert_close(attention(torch.eye(4)[None, :3])[0, :, :2], expected[2])
    torch.testing.assert_close(pictures.weights_of(CausalSelfAttention), expected[1])
    assert pictures.hand_page(True).count("−∞") == 3
    assert "−∞" not in pictures.hand_page(False)


def test_no_gradient_reaches_a_later_token(shipped: Shipped, ids: torch.Tensor) -> None:
    gradients = pictures.token_gradients(shipped.model, ids)
    assert torch.equal(gradients > 0, causal_mask(ids.shape[1]))
    assert "return" in pictures.gradient_page(gradients, shipped.tokenizer.names(ids[0].tolist()))


def test_scores_of_a_head_are_those_behind_its_weights(shipped: Shipped, ids: torch.Tensor) -> None:
    scores = pictures.scores_of(shipped.model, ids, 3, 3)
    weights = scores.masked_fill(~causal_mask(ids.shape[1]), -torch.inf).softmax(-1)
    torch.testing.assert_close(weights, attention_weights(shipped.model, ids)[3, 0, 3])


def test_layers_of_windows_reach_as_far_as_the_page_says() -> None:
    for layers in (1, 3):
        furthest = int(window_mask(9, 2 * layers + 1)[-1].nonzero()[0])
        assert f"reaches back to {furthest}<" in pictures.reach_page(9, 3, layers)


def test_chunks_start_again_and_windows_do_not() -> None:
    figure = pictures.chunks_and_window(3, 2)
    counts = {str(t.get_gid()): t.get_text() for ax in figure.axes for t in ax.texts}
    assert [counts[f"f:{i}"] for i in range(6)] == ["0", "1", "2", "0", "1", "2"]
    assert [counts[f"s:{i}"] for i in range(6)] == ["0", "1", "2", "2", "2", "2"]


def test_short_trainings_and_losses_run_and_are_drawn(shipped: Shipped) -> None:
    stream = torch.randint(5, 40, (200,), generator=torch.Generator().manual_seed(0))
    model, losses = pictures.train_briefly(GPT, stream, 20, batch=2, length=8, d_model=8)
    again = pictures.train_briefly(GPT, stream, 20, batch=2, length=8, d_model=8)[1]
    assert losses == again
    assert not model.training
    assert pictures.loss_when_writing(model, stream, 8, 10) > 0
    (line,) = pictures.losses({"right": losses}).axes[0].lines
    assert array(line.get_ydata()).shape == (2,)
    same = pictures.with_classes(shipped, GPT)
    assert pictures.loss(shipped, same, 2) == pytest.approx(
        pictures.loss(shipped, shipped.model, 2)
    )
    pictures.maps({"right": pictures.by_hand(True)[1]})
    pictures.masks(causal_mask(4), causal_mask(2, past=2))
