"""The pictures of the page on GPT's loss draw the numbers of its example and of the texts given."""

import torch
from torch import nn

from toolkit.gpt import loss_pictures as pictures


def test_the_picture_of_the_shift_has_the_losses_of_the_batch() -> None:
    logits, ids, mask = pictures.batch()
    log_probs = logits[:, :-1].log_softmax(-1)
    losses = -log_probs.gather(-1, ids[:, 1:, None])[..., 0]
    assert mask[:, 1:].sum() == 3
    texts = {text.get_text() for ax in pictures.shifted().axes for text in ax.texts}
    assert {f"loss {loss:.4f}" for loss in losses[0].tolist()} <= texts
    assert {"target: cat", "target: sat", "no target"} <= texts


def test_a_text_shows_every_token_with_its_loss() -> None:
    shown = pictures.surprise(["[START]", "a<b", "⏎···", "c"], [1.0, 0.25, 9.0])
    assert shown.count("class=nats") == 4
    assert "a&lt;b" in shown
    assert shown.count("</div><div>") == 1
    assert all(f">{loss}<" in shown for loss in ("–", "1.00", "0.25", "9.00"))


def test_losses_of_tokens_are_those_of_the_shifted_logits() -> None:
    torch.manual_seed(0)
    model, ids = nn.Embedding(7, 7), torch.tensor([[1, 4, 2, 6]])
    losses = pictures.token_losses(model, ids)
    wanted = nn.functional.cross_entropy(model(ids)[0, :-1], ids[0, 1:], reduction="none")
    torch.testing.assert_close(losses, wanted)


def test_chunks_hold_the_parts_of_documents_between_their_ends() -> None:
    figure = pictures.rows_or_chunks([6, 10], [2], 12)
    widths = [patch.get_width() for patch in figure.axes[1].patches]
    assert widths == [4, 8]
    assert round(pictures.padding_share([6, 10]), 6) == 0.2


def test_a_short_training_learns_and_is_drawn() -> None:
    def loss(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())

    def blocks(stream: torch.Tensor, length: int, size: int) -> tuple[torch.Tensor, None]:
        return stream[: length * size].view(size, length), None

    found, model = pictures.learn(lambda: nn.Embedding(5, 5), loss, blocks, torch.ones(256).long())
    assert found[-1] < found[0]
    assert not model.training
    assert pictures.losses({"one": found}).axes[0].texts[0].get_text() == "one"
