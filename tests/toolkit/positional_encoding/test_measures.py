"""What the chapter on positions is given: measures of codes, a small encoder."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from toolkit.positional_encoding import measures as lab


def sinusoid(length: int, width: int) -> torch.Tensor:
    angles = torch.arange(length).double()[:, None] * 10000 ** (
        -torch.arange(0, width, 2).double() / width
    )
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


@pytest.fixture
def rows() -> torch.Tensor:
    return torch.randn(57, 6, generator=torch.Generator().manual_seed(0))


# --------------------------------------------------------------------------- distances


@pytest.mark.parametrize("block", [1, 7, 57, 1000])
def test_the_closest_rows_are_those_that_looking_at_every_pair_finds(
    rows: torch.Tensor, block: int
) -> None:
    pairs = {
        (i, j): (rows[i].double() - rows[j].double()).norm().item()
        for i in range(57)
        for j in range(i + 1, 57)
    }
    found = lab.closest_rows(rows, block)
    assert (found.first, found.second) == min(pairs, key=pairs.get)
    assert found.distance == pytest.approx(min(pairs.values()), rel=1e-12)


def test_equal_rows_have_distance_zero_and_a_row_is_not_compared_with_itself() -> None:
    table = torch.eye(4)
    assert lab.closest_rows(table).distance == pytest.approx(math.sqrt(2))
    assert lab.closest_rows(torch.cat([table, table[2:3]])) == lab.Closest(0.0, 2, 4)


def test_one_row_has_no_distance() -> None:
    with pytest.raises(ValueError, match="two rows"):
        lab.closest_rows(torch.zeros(1, 3))


# --------------------------------------------------------------------------- linear fits


def test_a_linear_relation_leaves_nothing_and_noise_leaves_itself(rows: torch.Tensor) -> None:
    draw = torch.Generator().manual_seed(1)
    matrix = torch.randn(6, 3, generator=draw)
    assert lab.fit_residual(rows, rows @ matrix) < 1e-6
    noise = torch.randn(4000, 1, generator=draw)
    unrelated = torch.randn(4000, 2, generator=draw)
    assert lab.fit_residual(unrelated, noise) == pytest.approx(1.0, abs=0.05)


def test_the_residual_does_not_include_a_constant() -> None:
    assert lab.fit_residual(torch.tensor([[1.0], [-1.0]]), torch.ones(2, 1)) == pytest.approx(1.0)


def test_moving_columns_are_those_that_change_by_more_than_the_threshold() -> None:
    table = torch.tensor([[0.0, 0.0, 5.0], [0.5, 2.0, 5.0], [0.9, -1.0, 5.0]])
    assert lab.moving_columns(table) == 1
    assert lab.moving_columns(table, 0.8) == 2


def test_a_slow_wave_tells_the_place_and_fast_ones_do_not() -> None:
    assert lab.place_readout(sinusoid(2000, 64)) > 0.99
    fast = torch.stack([torch.arange(2000.0).sin(), torch.arange(2000.0).cos()], 1)
    assert abs(lab.place_readout(fast)) < 0.05


# --------------------------------------------------------------------------- requirements


CODES = {
    "number": torch.arange(200.0)[:, None],
    "saturating": torch.tanh(torch.arange(200.0)[:, None] / 10),
    "one-hot": torch.eye(200),
    "random": torch.randn(200, 64, generator=torch.Generator().manual_seed(2)),
    "sinusoid": sinusoid(200, 64),
}
LACKING = {
    "number": {"bounded", "token"},
    "saturating": {"unique", "neighbours", "equal gaps"},
    "one-hot": {"distance"},
    "random": {"equal gaps", "distance"},
    "sinusoid": set(),
}


@pytest.mark.parametrize("name", CODES)
def test_a_code_lacks_what_it_is_known_to_lack(name: str) -> None:
    holds = lab.report(CODES[name]).holds()
    lacking = {requirement for requirement, met in holds.items() if not met}
    assert LACKING[name] <= lacking
    if name in ("number", "one-hot", "sinusoid"):
        assert lacking == LACKING[name]


def test_sines_without_cosines_do_not_move_linearly() -> None:
    report = lab.report(sinusoid(200, 64)[:, 0::2])
    assert report.offset > 0.1
    assert lab.report(sinusoid(200, 64)).offset < 1e-6


def test_a_table_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="gap"):
        lab.report(torch.eye(10), gap=5)


# --------------------------------------------------------------------------- encoder and task


class Marks(nn.Module):
    """Adds a different vector to each position."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("table", sinusoid(50, width).float(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table[: x.shape[1]]


def test_the_encoder_is_blind_to_order_until_it_is_told() -> None:
    torch.manual_seed(0)
    tokens, order = torch.randint(9, (2, 7)), torch.tensor([6, 0, 5, 1, 4, 2, 3])
    for positions, blind in ((None, True), (Marks(16), False)):
        model = lab.Encoder(9, 5, 16, positions).eval()
        with torch.no_grad():
            moved, still = model(tokens[:, order]), model(tokens)[:, order]
        assert moved.shape == (2, 7, 5)
        assert torch.allclose(moved, still, atol=1e-5) == blind


def test_the_encoder_takes_an_attention_that_returns_weights_too() -> None:
    class Pair(lab.Attention):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
            return super().forward(x), None

    outputs = []
    for make in (lambda: lab.Attention(16, 4), lambda: Pair(16, 4)):
        torch.manual_seed(0)
        outputs.append(lab.Encoder(9, 5, 16, attention=make)(torch.arange(6)[None]))
    assert torch.equal(*outputs)


def test_accuracy_is_counted_per_position_and_only_where_asked() -> None:
    class Echo(nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return nn.functional.one_hot(tokens, 5).float()

    tokens = torch.tensor([[0, 1, 2], [3, 4, 0]])
    targets = torch.tensor([[-1, 1, 0], [-1, 4, 0]])
    shares = lab.right_by_position(Echo(), tokens, targets)
    assert shares[0].isnan()
    assert shares[1:].tolist() == [1.0, 0.5]
