"""Task, rivals, maps and measurements of the Transformer chapter."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from solutions.attention import AttentionDecoderStep
from solutions.seq2seq import Seq2Seq
from solutions.transformer import (
    beam_search,
    cached_beam_search,
    fused,
    make_model,
)
from toolkit.corpora.translation import BOS, EOS, PAD, UNK
from toolkit.transformer import translation_task
from toolkit.transformer.translation_task import TranslationTask


@pytest.fixture(scope="module")
def task() -> TranslationTask:
    return TranslationTask.make(pairs=400, test=60, seed=1)


def small(task: TranslationTask, **more: object) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"num_layers": 2, "d_model": 16, "d_ff": 24, "num_heads": 4, "dropout": 0.0, **more}
    return make_model(len(task.source), len(task.target), **sizes).eval()


# --------------------------------------------------------------------------- task


def test_no_test_sentence_is_in_the_training(task: TranslationTask) -> None:
    sources = [pair.source for pair in task.test]
    assert len(set(sources)) == len(sources) == 60
    assert not {pair.source for pair in task.train} & set(sources)
    assert len(task.train) == len(task.encoded) == 400


def test_the_vocabularies_have_every_word_of_the_training(
    task: TranslationTask,
) -> None:
    for pair, (source, target) in zip(task.train, task.encoded, strict=True):
        assert UNK not in source + target
        assert task.source.decode(source) == pair.source_tokens
        assert task.target.decode(target) == pair.target_tokens


def test_both_languages_may_share_one_vocabulary(task: TranslationTask) -> None:
    made = TranslationTask.make(pairs=400, test=60, shared=True, seed=1)
    assert made.train == task.train
    assert made.source is made.target
    assert set(made.source.words) == {*task.source.words, *task.target.words}
    pair, (source, target) = made.train[0], made.encoded[0]
    assert [made.source.words[i] for i in source] == pair.source_tokens
    assert [made.source.words[i] for i in target] == pair.target_tokens


def test_sentences_of_several_items_and_of_one_are_drawn_alike(
    task: TranslationTask,
) -> None:
    single = sum(pair.kind != "mixed" for pair in task.train)
    assert 0.25 < single / 400 < 0.55  # a third of one item, some of two or three of one kind


def test_the_same_seed_makes_the_same_task(task: TranslationTask) -> None:
    again = TranslationTask.make(pairs=400, test=60, seed=1)
    assert (again.train, again.test) == (task.train, task.test)
    assert TranslationTask.make(pairs=400, test=60, seed=2).train != task.train


def test_other_languages_and_kinds() -> None:
    german = TranslationTask.make("en", "de", pairs=50, test=5, kinds=["date"], most_items=1)
    assert all(pair.locales == ("en", "de") and pair.kind == "date" for pair in german.train)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pairs": 0}, "pairs and test"),
        ({"test": 0}, "pairs and test"),
        ({"pairs": 3000, "test": 300, "kinds": ["country"], "most_items": 1}, "are left"),
        ({"target": "xx"}, "unknown locale"),
    ],
)
def test_a_task_that_cannot_be_made_is_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TranslationTask.make(**arguments)


def test_thirds_share_the_test_sentences_by_length(task: TranslationTask) -> None:
    thirds = translation_task.thirds(task.test)
    assert sorted(p.source for pairs in thirds.values() for p in pairs) == sorted(
        p.source for p in task.test
    )
    lengths = [[len(pair.source_tokens) for pair in pairs] for pairs in thirds.values()]
    assert len(lengths) == 3
    assert all(max(a) < min(b) for a, b in itertools.pairwise(lengths))
    assert all(10 <= len(group) <= 30 for group in lengths)
    bounds = [tuple(map(int, name.split()[0].split("-"))) for name in thirds]
    assert all(a[1] + 1 == b[0] for a, b in itertools.pairwise(bounds))
    for (low, high), group in zip(bounds, lengths, strict=True):
        assert low <= min(group) <= max(group) <= high


# --------------------------------------------------------------------------- training


def test_adam_is_the_papers() -> None:
    adam = translation_task.adam([nn.Parameter(torch.zeros(2))], 0.5)
    assert adam.defaults["betas"] == (0.9, 0.98)
    assert (adam.defaults["eps"], adam.defaults["lr"]) == (1e-9, 0.5)


# --------------------------------------------------------------------------- rivals


def rival(kind: str, source: int = 20, target: int = 15) -> translation_task.Rival:
    torch.manual_seed(0)
    if kind == "seq2seq":
        return translation_task.Rival(Seq2Seq(source, target, 8, 8)).eval()
    look = AttentionDecoderStep(8, 8, 8, 8) if kind == "attention" else None
    return translation_task.recurrent_rival(source, target, 8, look).eval()


KINDS = pytest.mark.parametrize("kind", ["fixed", "attention", "seq2seq"])


@KINDS
def test_a_rival_says_the_same_at_once_and_step_by_step(kind: str) -> None:
    model = rival(kind)
    source, target = torch.randint(4, 20, (3, 6)), torch.randint(4, 15, (3, 5))
    source[1, 4:] = PAD
    log_probs = model(source, target)  # (B, U, V)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(3, 5))
    state = model.start(source)
    for t in range(5):
        logits, state = model.step(target[:, t], state)
        torch.testing.assert_close(logits.log_softmax(-1), log_probs[:, t])


@KINDS
def test_padding_does_not_change_a_rival(kind: str) -> None:
    model = rival(kind)
    source, target = torch.randint(4, 20, (1, 4)), torch.randint(4, 15, (1, 5))
    longer = torch.cat([source, torch.full((1, 3), PAD)], 1)
    torch.testing.assert_close(model(longer, target), model(source, target))


@KINDS
def test_greedy_search_takes_the_most_probable_token_each_time(kind: str) -> None:
    model = rival(kind)
    source = torch.randint(4, 20, (4, 6))
    with torch.no_grad():  # so that some rows end early
        bias = model.core.decoder.output.bias if kind == "seq2seq" else model.core.output.bias
        bias[EOS] += 0.35
    ids = translation_task.greedy_recurrent(model, source, 7)
    assert ids.shape[1] <= 7
    for row, written in zip(source, ids.tolist(), strict=True):
        read = [BOS]
        for token in written:
            if read[-1] == EOS or (len(read) > 1 and read[-1] == PAD and EOS in read):
                assert token == PAD
                continue
            best = int(model(row[None], torch.tensor([read]))[0, -1].argmax())
            assert token == best
            read.append(token)


def test_only_attention_sees_the_states_one_by_one() -> None:
    """The gradient of the last output reaches the states through the context alone, or directly."""
    for kind in ("fixed", "attention"):
        core = rival(kind).core
        context, first, states, mask = core.start(
            torch.randint(4, 20, (1, 6)), torch.ones(1, 6, dtype=torch.bool)
        )
        logits, _ = core.step(torch.tensor([5]), (context, first, states, mask))
        (gradient,) = torch.autograd.grad(logits.sum(), states, allow_unused=True)
        assert (gradient is not None) == (kind == "attention")


def test_an_odd_width_is_refused() -> None:
    with pytest.raises(ValueError, match="even"):
        translation_task.recurrent_rival(9, 9, 7)


def test_a_beam_searches_row_by_row(task: TranslationTask) -> None:
    model = small(task)
    rows = [task.source.encode(p.source_tokens) for p in task.test[:3]]
    source = nn.utils.rnn.pad_sequence(list(map(torch.tensor, rows)), batch_first=True)
    ids = translation_task.by_beam(beam_search, 3, 0.6)(model, source, 6)
    at_once = translation_task.by_cached_beam(cached_beam_search, 3, 0.6)(model, source, 6)
    assert torch.equal(at_once, ids)
    for row, written in zip(rows, ids, strict=True):
        best = beam_search(model, torch.tensor([row]), 3, 6, 0.6)[0][0]
        assert written.tolist() == best + [PAD] * (ids.shape[1] - len(best))


# --------------------------------------------------------------------------- scores


def test_scores_of_all_and_of_each_third(task: TranslationTask) -> None:
    perfect = translation_task.scores(task.test, [pair.target for pair in task.test])
    assert list(perfect) == ["all", *translation_task.thirds(task.test)]
    assert all(score.exact == 1 and score.bleu == pytest.approx(100) for score in perfect.values())
    longest = {pair.source for pair in list(translation_task.thirds(task.test).values())[-1]}
    texts = ["?" if pair.source in longest else pair.target for pair in task.test]
    scores = translation_task.scores(task.test, texts)
    *shorter, last = list(scores.values())[1:]
    assert last.exact == 0
    assert last.bleu < 1
    assert all(score.exact == 1 for score in shorter)
    assert scores["all"].exact == pytest.approx(1 - len(longest) / 60)
    assert sum(score.sentences for score in [*shorter, last]) == scores["all"].sentences == 60


def test_scores_need_a_text_for_each_sentence(task: TranslationTask) -> None:
    with pytest.raises(ValueError, match="1 translations of 60"):
        translation_task.scores(task.test, ["x"])


# --------------------------------------------------------------------------- maps


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_maps_are_the_weights_that_make_the_output(
    task: TranslationTask, fast: bool, norm_first: bool
) -> None:
    """Weights times values, merged and projected, is what each attention returned."""
    model = small(task, norm_first=norm_first, dropout=0.2).train()
    model = fused(model) if fast else model
    source, target = torch.randint(4, 30, (2, 6)), torch.randint(4, 30, (2, 5))
    source[1, 4:] = PAD
    target[1, 3:] = PAD
    maps = translation_task.attention_maps(model, source, target)
    assert model.training
    assert maps.encoder.shape == (2, 2, 4, 6, 6)
    assert maps.decoder.shape == (2, 2, 4, 5, 5)
    assert maps.cross.shape == (2, 2, 4, 5, 6)
    groups = [
        (maps.encoder, [layer.self_attn for layer in model.encoder.layers]),
        (maps.decoder, [layer.self_attn for layer in model.decoder.layers]),
        (maps.cross, [layer.src_attn for layer in model.decoder.layers]),
    ]
    seen = {}
    for _, attentions in groups:
        for attention in attentions:
            attention.register_forward_hook(lambda m, a, r: seen.__setitem__(m, (a[2], r)))
    with torch.no_grad():
        model.eval()(source, target)
        for weights, attentions in groups:
            torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
            for mine, attention in zip(weights, attentions, strict=True):
                value, result = seen[attention]
                values = attention.v_proj(value).unflatten(-1, (4, 4)).transpose(1, 2)
                merged = (mine @ values).transpose(1, 2).flatten(2)
                torch.testing.assert_close(attention.out_proj(merged), result)
    assert (maps.encoder[:, 1, :, :, 4:] == 0).all()  # nobody looks at padding
    assert (maps.cross[:, 1, :, :, 4:] == 0).all()
    assert (maps.decoder.triu(1) == 0).all()  # or ahead


def test_a_query_that_may_attend_to_nothing_has_weights_of_zero(task: TranslationTask) -> None:
    target = torch.tensor([[PAD, BOS, 5]])  # padding on the left: the first query sees nothing
    maps = translation_task.attention_maps(small(task), torch.tensor([[4, 5]]), target).decoder
    assert (maps[:, :, :, 0] == 0).all()
    torch.testing.assert_close(maps[:, :, :, 1:].sum(-1), torch.ones(*maps.shape[:3], 2))


def test_maps_leave_no_hook_behind(task: TranslationTask) -> None:
    model = small(task)
    source = torch.randint(4, 30, (1, 3))
    translation_task.attention_maps(model, source, source)
    with pytest.raises(IndexError):
        translation_task.attention_maps(model, source + 10_000, source)
    assert not any(module._forward_hooks for module in model.modules())


def test_maps_of_another_model_are_refused() -> None:
    with pytest.raises(ValueError, match=r"encoder\.layers"):
        translation_task.attention_maps(nn.Linear(1, 1), torch.ones(1, 1), torch.ones(1, 1))


# --------------------------------------------------------------------------- distance


def reached(encoder: nn.Module, length: int = 12, width: int = 8) -> list[bool]:
    """Which inputs the output at position 6 depends on."""
    x = torch.randn(1, length, width, requires_grad=True)
    (gradient,) = torch.autograd.grad(encoder(x, None)[0, 6].sum(), x)
    return (gradient[0].abs().sum(-1) > 0).tolist()


@pytest.mark.parametrize(("layers", "kernel"), [(1, 3), (3, 3), (1, 5), (2, 1)])
def test_a_convolution_reaches_as_far_as_it_says(layers: int, kernel: int) -> None:
    encoder = translation_task.ConvEncoder(8, layers, kernel)
    assert encoder(torch.randn(2, 5, 8), None).shape == (2, 5, 8)
    assert reached(encoder) == [abs(t - 6) <= encoder.reach for t in range(12)]


def test_a_convolution_is_gated() -> None:
    encoder = translation_task.ConvEncoder(2, 1, 1)
    weight, bias = encoder.layers[0].weight[..., 0], encoder.layers[0].bias
    x = torch.randn(1, 1, 2)
    value, gate = (x[0, 0] @ weight.T + bias).split(2)
    expected = (x[0, 0] + value * torch.sigmoid(gate)) * math.sqrt(0.5)
    torch.testing.assert_close(encoder(x, None)[0, 0], expected)


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_a_recurrent_encoder_reads_from_left_to_right(kind: str) -> None:
    encoder = translation_task.RecurrentEncoder(8, kind)
    assert reached(encoder) == [t <= 6 for t in range(12)]


def test_encoders_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match="kind"):
        translation_task.RecurrentEncoder(8, "CNN")
    for layers, kernel in ((0, 3), (1, 2), (1, 0)):
        with pytest.raises(ValueError, match="kernel must be odd"):
            translation_task.ConvEncoder(8, layers, kernel)


def test_the_width_of_equal_size() -> None:
    def make(width: int) -> nn.Module:
        return nn.Linear(width, width, bias=False)

    assert translation_task.matching_width(make, 144) == 12
    assert translation_task.matching_width(make, 150) == 12
    assert translation_task.matching_width(make, 250) == 16
    assert translation_task.matching_width(make, 1) == 4
    assert translation_task.matching_width(make, 10**9, most=32) == 32
    shared = nn.Linear(3, 3)
    assert translation_task.parameters(nn.Sequential(shared, shared)) == 12


def test_the_gradient_of_a_known_memory() -> None:
    """Half of what was is kept at each step, so the gradient halves with each step back."""

    class Halving(nn.Module):
        def forward(self, x: Tensor, mask: None) -> Tensor:
            state, states = torch.zeros_like(x[:, 0]), []
            for t in range(x.shape[1]):
                state = 0.5 * state + x[:, t]
                states.append(state)
            return torch.stack(states, 1)

    reach = translation_task.gradient_reach(Halving(), 6, width=4)
    torch.testing.assert_close(reach, 0.5 ** torch.arange(6.0))


# --------------------------------------------------------------------------- curves


def test_where_curves_cross() -> None:
    xs = [1, 10, 100, 1000]
    assert translation_task.crossover(xs, [1, 10, 100, 1000], [30, 30, 30, 30]) == pytest.approx(30)
    assert translation_task.crossover(xs, [1, 10, 100, 1000], [10] * 4) == pytest.approx(10)
    assert translation_task.crossover(xs, [1, 2, 3, 4], [5] * 4) is None
    assert translation_task.crossover(xs, [6, 7, 8, 9], [5] * 4) is None
    with pytest.raises(ValueError, match="4 places"):
        translation_task.crossover(xs, [1, 2], [3, 4])
