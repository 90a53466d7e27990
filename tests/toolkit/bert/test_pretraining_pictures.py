"""The batch of the page on pre-training: its tensors say what its picture says."""

import math

import torch

from toolkit.bert import pretraining_pictures as pictures


def test_the_batch_has_the_probabilities_of_its_picture() -> None:
    of_words, of_pairs, labels, is_random = pictures.batch()
    asked = labels != -100
    shares = of_words.softmax(-1)[asked].gather(-1, labels[asked][:, None])[:, 0]
    assert torch.allclose(shares, torch.tensor([1 / 2, 1 / 4, 1 / 8]))
    right = of_pairs.softmax(-1)[torch.arange(2), is_random]
    assert torch.allclose(right, torch.tensor([share for _, share in pictures.PAIRS]))
    loss = -shares.log().mean() - right.log().mean()
    assert math.isclose(loss.item(), 1.844, abs_tol=1e-3)
    texts = [text.get_text() for ax in pictures.batch_picture().axes for text in ax.texts]
    assert "file: 0.5\nloss 0.693" in texts
