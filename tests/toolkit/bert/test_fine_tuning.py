"""Pre-training, fine-tuning, rivals, pages and measurements of the BERT chapter."""

from __future__ import annotations

import math
from types import SimpleNamespace

import ipywidgets
import matplotlib.pyplot as plt
import pytest
import torch
from torch import nn

from solutions import bert as parts
from toolkit import device
from toolkit.bert import fine_tuning
from toolkit.corpora import docstrings as d

CPU = device.preset("cpu")
MODULES = (
    "_pydecimal", "difflib", "email.message", "inspect", "ipaddress", "logging", "statistics",
    "threading", "turtle", "typing",
)  # fmt: skip
TINY = {"d_model": 16, "num_layers": 1, "num_heads": 2, "d_ff": 24, "max_length": 64,
        "dropout": 0.0}  # fmt: skip


@pytest.fixture(scope="module")
def corpus() -> d.Corpus:
    return d.Corpus.make(MODULES, vocabulary=800)


@pytest.fixture(scope="module")
def tasks(corpus: d.Corpus) -> dict[str, d.Task]:
    return d.make_tasks(corpus)


def tiny(corpus: d.Corpus, seed: int = 0) -> nn.Module:
    return fine_tuning.start(parts.BertForPreTraining(len(corpus.pieces), **TINY), seed).eval()


@pytest.fixture(scope="module")
def model(corpus: d.Corpus) -> nn.Module:
    return tiny(corpus)


@pytest.fixture(autouse=True)
def _close_figures() -> None:
    yield
    plt.close("all")


# --------------------------------------------------------------------------- inputs and weights


def test_rows_are_padded_and_taken() -> None:
    rows = fine_tuning.Rows.of([([2, 9, 3], [0, 0, 0]), ([2, 9, 9, 3, 8, 3], [0, 0, 0, 0, 1, 1])])
    assert rows.ids.tolist() == [[2, 9, 3, 0, 0, 0], [2, 9, 9, 3, 8, 3]]
    assert rows.token_type_ids.tolist() == [[0] * 6, [0, 0, 0, 0, 1, 1]]
    assert rows.mask.sum(1).tolist() == [3, 6]
    assert rows.take(torch.tensor([0]), torch.device("cpu")).ids.tolist() == [[2, 9, 3]]


def test_batches_have_every_row_once_and_rows_of_similar_length() -> None:
    torch.manual_seed(0)
    lengths = torch.randint(5, 60, (203,))
    orders = fine_tuning._orders(lengths, 10)
    assert sorted(torch.cat(orders).tolist()) == list(range(203))
    assert max(len(order) for order in orders) == 10
    spread = [int(lengths[o].max() - lengths[o].min()) for o in orders]
    assert sum(spread) / len(spread) < 10


def test_new_weights_are_as_wide_as_the_model_needs(corpus: d.Corpus) -> None:
    first, again, other = (tiny(corpus, seed) for seed in (0, 0, 1))
    weights = first.bert.embeddings.token.weight
    assert weights.std().item() == pytest.approx(0.02 * math.sqrt(768 / 16), rel=0.05)
    assert weights.mean().abs() < 0.01
    assert torch.equal(weights, again.bert.embeddings.token.weight)
    assert not torch.equal(weights, other.bert.embeddings.token.weight)
    layer = first.bert.layers[0]
    assert layer.w_1.bias.abs().sum() == 0
    assert layer.output_norm.weight.eq(1).all()
    state = torch.get_rng_state()
    fine_tuning.start(first, 3)
    assert torch.equal(state, torch.get_rng_state())


# --------------------------------------------------------------------------- pre-training


# --------------------------------------------------------------------------- fine-tuning


def test_heads_are_on_copies(model: nn.Module, tasks: dict[str, d.Task]) -> None:
    kinds = {"module": "SequenceClassifier", "pair": "SequenceClassifier", "span": "SpanFinder",
             "tagging": "Tagger"}  # fmt: skip
    for name, task in tasks.items():
        head = fine_tuning.make_head(parts, model.bert, task)
        assert type(head).__name__ == kinds[name]
        token = head.bert.embeddings.token.weight
        assert token is not model.bert.embeddings.token.weight
        assert torch.equal(token, model.bert.embeddings.token.weight)
        assert head.classifier.out_features == (len(task.labels) or 2)
    new = fine_tuning.fresh(model.bert, 1)
    assert not torch.equal(new.embeddings.token.weight, model.bert.embeddings.token.weight)


@pytest.mark.parametrize("name", ["module", "pair", "span", "tagging"])
def test_few_examples_are_learned(name: str, model: nn.Module, tasks: dict[str, d.Task]) -> None:
    task = tasks[name]
    head = fine_tuning.make_head(parts, model.bert, task)
    before = model.bert.embeddings.token.weight.clone()
    made = fine_tuning.fine_tune(
        head, task, parts, labelled=8, steps=60, lr=1e-2, batch=8, most_test=30, preset=CPU
    )
    assert torch.equal(before, model.bert.embeddings.token.weight)
    assert made.loss[-1] < 0.5 * made.loss[0]
    assert made.metric == fine_tuning.METRICS[task.kind]
    assert made.score == made.scores[made.metric]
    assert all(0 <= value <= 1 for value in made.scores.values())
    assert (made.labelled, made.steps, len(made.loss)) == (8, 60, 60)
    # What was learned by heart is right when asked again.
    same = SimpleNamespace(**{**vars(task), "test": fine_tuning.few_examples(task, 8, 0)})
    assert fine_tuning.score(head, same, parts)[made.metric] > 0.7


@pytest.mark.parametrize("name", ["module", "pair", "span", "tagging"])
def test_bags_of_words_learn_by_heart_and_beat_one_answer(
    name: str, corpus: d.Corpus, tasks: dict[str, d.Task]
) -> None:
    task = tasks[name]
    same = SimpleNamespace(**{**vars(task), "test": fine_tuning.few_examples(task, 20, 0)})
    made = fine_tuning.bag_of_words(same, corpus, labelled=20)
    assert made.score > 0.9
    more = fine_tuning.bag_of_words(task, corpus, labelled=120)
    assert more.score < 1
    if name != "pair":  # there the words say nearly nothing
        assert more.score > (1.0 if name == "tagging" else 1.2) * fine_tuning.majority(task)
    if name == "span":
        blind = fine_tuning.bag_of_words(task, corpus, labelled=120, compare=False)
        assert blind.score < more.score - 0.1


def test_answers_are_compared_where_they_stand(tasks: dict[str, d.Task]) -> None:
    task = tasks["span"]
    data = fine_tuning._labelled(task, task.test, parts)
    for e, ids, (i, j) in zip(
        task.test, data.rows.ids.tolist(), data.targets.tolist(), strict=True
    ):
        right = [d.CLS] if e.span is None else e.second[e.span[0] : e.span[1] + 1]
        assert ids[i : j + 1] == right
    perfect = [tuple(t) for t in data.targets.tolist()]
    assert fine_tuning._metrics(task, task.test, perfect, data.targets)["exact"] == 1
    none = fine_tuning._metrics(task, task.test, [(0, 0)] * len(perfect), data.targets)
    assert none["exact"] == pytest.approx(fine_tuning.majority(task))
    assert (none["found"], none["none"]) == (0, 1)


def test_f1_is_of_the_parameters(tasks: dict[str, d.Task]) -> None:
    task = tasks["tagging"]
    everything = [[1] * len(e.words) for e in task.test]
    scores = fine_tuning._metrics(task, task.test, everything, torch.zeros(0))
    assert scores["recall"] == 1
    assert scores["precision"] == scores["accuracy"]
    assert scores["f1"] == pytest.approx(fine_tuning.majority(task))
    right = [e.word_labels for e in task.test]
    assert fine_tuning._metrics(task, task.test, right, torch.zeros(0))["f1"] == 1


def test_more_labels_than_there_are_are_refused(model: nn.Module, tasks: dict[str, d.Task]) -> None:
    for number in (0, 10**6):
        with pytest.raises(ValueError, match="training examples"):
            fine_tuning.few_examples(tasks["module"], number, 0)
    with pytest.raises(ValueError, match="there is a head for"):
        fine_tuning.make_head(parts, model.bert, SimpleNamespace(kind="other"))


def test_a_comparison_has_every_way(
    model: nn.Module, corpus: d.Corpus, tasks: dict[str, d.Task]
) -> None:
    two = {name: tasks[name] for name in ("module", "tagging")}
    made = fine_tuning.compare(
        model, corpus, two, parts, seeds=(0, 1), labelled={"module": 12, "tagging": 6}, steps=3,
        most_test=20, preset=CPU,
    )  # fmt: skip
    assert made.tasks == ["module", "tagging"]
    assert made.ways == list(fine_tuning.WAYS)
    assert made.labelled == {"module": 12, "tagging": 6}
    scores = made.scores["module", "bag of words"]
    assert made.mean("module", "bag of words") == pytest.approx(sum(scores) / 2)
    assert made.spread("module", "bag of words") == pytest.approx(
        abs(scores[0] - scores[1]) / math.sqrt(2)
    )
    with pytest.raises(ValueError, match="ways are"):
        fine_tuning.compare(model, corpus, two, parts, ways=("magic",))


# --------------------------------------------------------------------------- pages


def test_masks_are_filled(model: nn.Module, corpus: d.Corpus) -> None:
    blanks = fine_tuning.fill_mask(model, corpus.pieces, "Return the [MASK] of [MASK].", 3)
    assert [blank.position for blank in blanks] == [3, 5]
    for blank in blanks:
        shares = [share for _, share in blank.guesses]
        assert len(shares) == 3
        assert shares == sorted(shares, reverse=True)
        assert not {piece for piece, _ in blank.guesses} & set(d.NAMES)
    second = fine_tuning.fill_mask(model, corpus.pieces, "Return it.", 800, second="It is [MASK].")
    assert sum(share for _, share in second[0].guesses) == pytest.approx(1, abs=1e-4)
    ids, segments = parts.build_input(
        corpus.pieces.encode("Return it."), [*corpus.pieces.encode("It is"), d.MASK,
                                             *corpus.pieces.encode(".")]
    )  # fmt: skip
    scores = model(torch.tensor([ids]), torch.tensor([segments]))[0][0, second[0].position]
    scores[: d.SPECIAL] = -torch.inf
    assert second[0].guesses[0][0] == corpus.pieces.names[int(scores.argmax())]


def _frames(widget: ipywidgets.Widget) -> list[str]:
    if isinstance(widget, ipywidgets.HTML):
        return [widget.value]
    return [frame for child in getattr(widget, "children", ()) for frame in _frames(child)]


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "nothing in the sentence"), ("no mask", r"put \[MASK\]"),
     ("word " * 80 + "[MASK]", "64 positions")],
)  # fmt: skip
def test_what_cannot_be_filled_is_refused(
    text: str, message: str, model: nn.Module, corpus: d.Corpus
) -> None:
    with pytest.raises(ValueError, match=message):
        fine_tuning.fill_mask(model, corpus.pieces, text)
