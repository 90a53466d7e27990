"""One sentence in the shipped Transformer: its numbers, and that its pictures can be drawn."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.figure import Figure

from solutions.transformer import label_smoothing_loss, make_model
from tests.toolkit.drawings import Drawings, words
from toolkit import own_models, plots
from toolkit.transformer import index_pictures as pictures
from toolkit.transformer import zoom_pictures as zoom

mpl.use("Agg")


@functools.lru_cache(maxsize=1)
def translator() -> tuple[Any, own_models.ShippedWeights]:
    shipped = own_models.read("transformer-en-de")
    model = make_model(**shipped.sizes, tie_embeddings=True).eval()
    model.load_state_dict(shipped.tensors())
    return model, shipped


@functools.lru_cache(maxsize=1)
def followed() -> pictures.Followed:
    return pictures.follow(*translator())


def test_the_parts_add_up_to_what_the_norm_makes_the_memory_of() -> None:
    found, (model, shipped) = followed(), translator()
    torch.testing.assert_close(sum(found.parts.values()), found.total)
    memory = model.encode(shipped.source(pictures.SENTENCE), None)[0]
    torch.testing.assert_close(found.memory, memory)
    mean, deviation = pictures.centre(found, 1)
    again = (found.total[1] - mean) / deviation * found.gamma + found.beta
    torch.testing.assert_close(again, memory[1])


def test_scores_give_the_weights_and_logits_the_translation() -> None:
    found = followed()
    torch.testing.assert_close(found.scores.softmax(-1), found.weights.encoder)
    assert found.said == ("vor", "2", "Tagen", "<eos>")
    assert found.logits.argmax(-1).tolist() == list(found.said_ids)


@torch.no_grad()
def test_the_states_of_the_decoder_begin_at_its_input_and_end_at_the_logits() -> None:
    found, (model, _) = followed(), translator()
    read = torch.tensor([found.read_ids])
    torch.testing.assert_close(found.states[0], model.position(model.tgt_embed(read))[0])
    logits = model.generator.proj(model.decoder.norm(found.states[-1]))
    torch.testing.assert_close(logits, found.logits)


@pytest.mark.parametrize("token", range(3))
def test_shown_features_add_up_as_they_are_printed(token: int) -> None:
    found, chosen = followed(), list(pictures.FEATURES)
    rounded = [torch.round(part[token, chosen], decimals=2) for part in found.parts.values()]
    if token == 1:  # the account is shown for this one
        assert torch.allclose(torch.stack(rounded).sum(0), found.total[token, chosen], atol=0.00501)
    both = (found.parts["embedding"] + found.parts["position"])[token, chosen]
    assert torch.allclose(rounded[0] + rounded[1], both, atol=0.00501)


def test_a_post_norm_model_is_refused() -> None:
    _, shipped = translator()
    sizes = shipped.sizes | {"norm_first": False}
    with pytest.raises(ValueError, match="post-norm"):
        pictures.follow(make_model(**sizes), shipped)


def test_the_next_token_depends_on_what_is_written() -> None:
    model, shipped = translator()
    after = pictures.next_token(model, shipped, "2 days", "vor 2")
    assert max(after, key=after.__getitem__) == "Tagen"
    assert sum(after.values()) == pytest.approx(1, abs=1e-4)


def test_pages_print_their_numbers() -> None:
    found = followed()
    assert "0.091" in pictures.input_page(found)
    assert "score 8.89" in pictures.looks_page(found, 1, 1, 2)
    assert "(sum − 0.48) / 3.47" in pictures.ledger_page(found, 1)
    assert "logit 9.05" in pictures.writing_page(found, 3)
    page = pictures.learner_page(
        "at first", [("a", "", False)], torch.eye(2), ["x", "y"], ["a", "b"]
    )
    assert "(nothing)" in page
    assert "✓" not in page


def test_the_least_loss_is_that_of_the_smoothed_target() -> None:
    chances = torch.full((1, 1, 12), 0.1 / 12)
    chances[0, 0, 5] += 0.9
    loss = label_smoothing_loss(chances.log(), torch.tensor([[5]]))
    assert pictures.least_loss(12) == pytest.approx(loss.item(), abs=1e-6)
    assert math.isclose(pictures.least_loss(959), 1.0106, abs_tol=1e-4)


def curves() -> Figure:
    shipped = pictures.shipped_losses("transformer-en-de")
    return pictures.losses_and_floors(
        {"one": ({"a": ([1, 2], [3.0, 2.0])}, 0.8), "two": (shipped, 1)}
    )


DRAWINGS: dict[str, Callable[[], Figure]] = {
    "journey": lambda: pictures.journey(followed()), "curves": curves,
    "box": lambda: zoom.box(followed()), "halves": lambda: zoom.halves(followed()),
    "layers": lambda: zoom.layers(followed()),
    "encoder layer": lambda: zoom.encoder_layer(followed(), 1),
    "decoder layer": lambda: zoom.decoder_layer(followed(), 2),
}  # fmt: skip


class TestDrawings(Drawings):
    drawings = DRAWINGS

    @pytest.fixture(autouse=True)
    def look(self) -> None:
        plots.use_style()

    @pytest.fixture(autouse=True)
    def closed(self) -> None:
        plt.close("all")


def test_the_journey_has_a_shape_at_every_arrow() -> None:
    shown = words(pictures.journey(followed()))
    for shape in ("(1, 3)", "(1, 3, 96)", "(1, 4)", "(1, 4, 96)", "(1, 4, 959)"):
        assert shape in shown
    assert shown.count("K") == shown.count("V") == 2


def gids(figure: Figure, kind: str) -> list[str]:
    return [p.get_gid() or "" for ax in figure.axes for p in getattr(ax, kind)]


def test_the_zoom_keeps_its_frame() -> None:
    steps = [zoom.box(followed()), zoom.halves(followed()), zoom.layers(followed())]
    assert len({tuple(figure.get_size_inches()) for figure in steps}) == 1
    assert set(words(steps[0])) == {"2 days ago", "translator", "vor 2 Tagen"}
    for figure in steps[1:]:
        assert {"2 days ago", "<bos> vor 2 Tagen", "vor 2 Tagen <eos>"} <= set(words(figure))
        assert "said>read:again" in gids(figure, "patches")


def test_the_last_encoder_layer_feeds_every_decoder_layer() -> None:
    arrows = [name for name in gids(zoom.layers(followed()), "patches") if ">" in name]
    assert "encoder 1>memory:" in arrows
    assert [a for a in arrows if a.startswith("memory")] == [
        "memory>decoder 0:KV", "memory>decoder 1:KV",
    ]  # fmt: skip


def test_lines_lead_from_every_token_in_the_encoder_and_from_earlier_ones_in_the_decoder() -> None:
    encoder = gids(zoom.encoder_layer(followed(), 1), "lines")
    assert sorted(encoder) == [f"{key}>{query}" for key in range(3) for query in range(3)]
    decoder = gids(zoom.decoder_layer(followed(), 2), "lines")
    assert sorted(decoder) == [f"{key}>{query}" for key in range(4) for query in range(key, 4)]


@pytest.mark.parametrize("layer", range(2))
def test_a_token_enters_and_leaves_an_encoder_layer_with_the_sums_of_its_account(
    layer: int,
) -> None:
    found, chosen = followed(), list(pictures.FEATURES)
    account = torch.stack(list(found.parts.values()))[:, 1, chosen].cumsum(0)
    numbers = [w for w in words(zoom.encoder_layer(found, 1, layer)) if "." in w]
    expected = torch.cat([account[1 + 2 * layer], account[3 + 2 * layer]])
    assert numbers == [f"{x:.2f}".replace("-", "−") for x in expected.tolist()]


def test_a_vector_is_drawn_as_a_cell_for_each_feature() -> None:
    found = followed()
    count = len(pictures.FEATURES)
    assert gids(zoom.encoder_layer(found, 0), "patches").count("cell") == 2 * 3 * count
    assert gids(zoom.decoder_layer(found, 0), "patches").count("cell") == (2 * 4 + 3) * count
