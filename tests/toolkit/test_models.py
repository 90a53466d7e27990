"""The shipped models load, keep what their cards say, and beat counting on the reader's library.

The held-out text lies beside each model, so that these numbers don't depend on the Python that
runs. A part of it is enough here; the tolerances allow for what a part differs from the whole.
"""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from toolkit import models
from toolkit.bert import fine_tuning
from toolkit.corpora import code_corpus, docstrings, library_prose
from toolkit.gpt import measures as gpt_measures
from toolkit.pretrain import bert, common, gpt, measures, translator
from toolkit.transformer.translation_task import scores

SHIPPED = sorted(path.name for path in models.FOLDER.iterdir() if path.is_dir())
TRANSLATORS = [name for name in SHIPPED if models.KINDS[name][0] is translator]
LIMIT = {"bert": 4_000_000, "gpt": 4_000_000}  # parameters; 2.5 million for the others


@pytest.fixture(scope="module", params=SHIPPED)
def shipped(request: pytest.FixtureRequest) -> models.Shipped:
    return models.load(request.param)


class TestFiles:
    def test_every_kind_is_shipped(self) -> None:
        assert set(SHIPPED) == set(models.KINDS)

    def test_all_together_stay_small(self) -> None:
        files = [path for path in models.FOLDER.rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in files) <= 24_000_000
        held = [path for path in files if path.name.startswith("held_out")]
        assert sum(path.stat().st_size for path in held) <= 320_000

    def test_a_model_is_no_larger_than_its_limit(self, shipped: models.Shipped) -> None:
        size = sum(p.numel() for p in shipped.model.parameters())
        assert size <= LIMIT.get(shipped.name, 2_500_000)

    def test_weights_are_half_and_cast_at_load(self, shipped: models.Shipped) -> None:
        stored = load_file(shipped.folder / common.WEIGHTS)
        assert {t.dtype for t in stored.values() if t.is_floating_point()} == {torch.float16}
        assert {p.dtype for p in shipped.model.parameters()} == {torch.float32}
        assert not shipped.model.training

    def test_the_tokenizer_is_one_of_hugging_face(self, shipped: models.Shipped) -> None:
        tokenizer = Tokenizer.from_file(str(shipped.folder / common.TOKENIZER))
        assert tokenizer.get_vocab_size() == shipped.config["vocab_size"]
        assert len(shipped.tokenizer) == shipped.config["vocab_size"]

    def test_the_card_tells_data_command_metrics_and_limits(self, shipped: models.Shipped) -> None:
        card = (shipped.folder / common.CARD).read_text(encoding="utf-8")
        for heading in ("## Data", "## Training", "## Metrics", "## Limits", "icense"):
            assert heading in card
        assert f"python -m toolkit.pretrain {shipped.name}" in card

    def test_the_loss_fell(self, shipped: models.Shipped) -> None:
        column = "mlm_loss" if shipped.name == "bert" else "loss"
        first = shipped.curves[0]["model"]
        losses = [float(r[column]) for r in shipped.curves if r["model"] == first and r[column]]
        assert len(losses) > 20
        assert losses[-1] < 0.8 * losses[0]


class TestMetrics:
    @pytest.mark.parametrize("name", TRANSLATORS)
    def test_translators_translate_as_exactly_as_their_cards_say(self, name: str) -> None:
        made = models.load(name)
        assert models.measure(made, 80)["exact"] >= made.metrics["exact"] - 0.06

    def test_figures_by_length_are_those_of_the_weights(self) -> None:
        shipped = models.load("recurrent-en-zh")
        pairs = shipped.held_out()
        found = scores(pairs, shipped.translate([pair.source for pair in pairs]))
        (row,) = [r for r in shipped.curves if r["model"] == "recurrent" and r["bleu"]]
        stored = [row["averaged_exact"], *(row[f"exact_{n}"] for n in translator.LENGTHS)]
        assert [score.exact for score in found.values()] == pytest.approx([*map(float, stored)])
        stored = [row["bleu"], *(row[f"bleu_{n}"] for n in translator.LENGTHS)]
        exact = pytest.approx([*map(float, stored)], abs=0.1)
        assert [score.bleu for score in found.values()] == exact

    def test_bert_predicts_as_its_card_says(self) -> None:
        made = models.load("bert")
        found = models.measure(made, 300)
        for metric in ("mlm_accuracy", "nsp_accuracy", "single_mlm_accuracy"):
            assert found[metric] == pytest.approx(made.metrics[metric], abs=0.07), metric
        assert found["mlm_accuracy"] > 3 * made.metrics["counting_share"]

    def test_gpt_compresses_as_its_card_says(self) -> None:
        made = models.load("gpt")
        found = models.measure(made, 150)["bits_per_byte"]
        assert found == pytest.approx(made.metrics["bits_per_byte"], abs=0.15)
        assert made.metrics["bits_per_byte"] < made.metrics["counting_bits"]

    def test_what_gpt_writes_ends_and_mostly_compiles(self) -> None:
        made = models.load("gpt")
        corpus = code_corpus.Corpus((), made.tokenizer, gpt.LENGTH)
        samples = gpt_measures.sample(made.model, corpus, made.module, 40, temperature=0.7, seed=1)
        ended = [sample for sample in samples if sample.finished]
        assert len(ended) >= 0.8 * len(samples)
        assert sum(gpt_measures.compiles(s.text) for s in ended) >= 0.6 * len(ended)

    def test_a_head_of_bert_has_a_pattern(self) -> None:
        made = models.load("bert")
        held = bert.encode(made.held_out()[:30], made.tokenizer)
        found = measures.patterns(made.model, held, made.module, 20)
        assert max(weight for _, _, weight in found.values()) > 0.4

    def test_attention_of_the_recurrent_translator_aligns(self) -> None:
        assert measures.of_recurrent(models.load("recurrent-en-zh"), 20)["aligned_share"] > 0.5


class TestReadersLibrary:
    """Modules that no model was trained on, as the Python that runs has them."""

    def test_gpt_beats_counting(self) -> None:
        made = models.load("gpt")
        held = [f.text for f in code_corpus.read(code_corpus.HELD_OUT["test"][:6])]
        train = [f.text for f in code_corpus.read(("json.decoder", "csv", "shlex", "tempfile"))]
        counted = gpt.counted(train, held, made.tokenizer)
        assert gpt.bits_per_byte(made.model, held[:150], made.tokenizer) < counted

    def test_bert_beats_counting(self) -> None:
        made = models.load("bert")
        documents = library_prose.read(("argparse", "datetime", "difflib", "mailbox", "statistics"))
        held = bert.encode(library_prose.split(documents, "test"), made.tokenizer)
        train = bert.encode(library_prose.split(documents, "train"), made.tokenizer)
        found = bert.evaluate(made.model, held, made.module, len(made.tokenizer), most=150)
        assert found["mlm_accuracy"] > 2 * bert.unigram(train, held, len(made.tokenizer))
        assert found["nsp_accuracy"] > 0.55


class TestAnswers:
    @pytest.mark.parametrize(("name", "asked"), [("bert", "questions"), ("gpt", "prompts")])
    def test_there_are_ten_after_each_share_of_the_steps(self, name: str, asked: str) -> None:
        made = models.load(name).answers
        assert len(made[asked]) == 10
        assert list(made["answers"]) == ["1%", "10%", "100%"]
        assert all(len(answers) == 10 for answers in made["answers"].values())

    def test_the_last_are_those_of_the_shipped_model(self) -> None:
        made = models.load("bert")
        again = bert.answers(made.model, made.tokenizer)
        best = [answers[0][0] for answers in again]
        assert best == [answers[0][0] for answers in made.answers["answers"]["100%"]]

    def test_gaps_are_filled_with_sense(self) -> None:
        made = models.load("bert")
        for text, sense in (
            ("This method should [MASK] called from a subclass.", {"be"}),
            ("The default value is [MASK].", {"none", "false", "true", "0", "1", "used"}),
        ):
            guesses = fine_tuning.fill_mask(made.model, made.tokenizer, text, 5)[0].guesses
            assert sense & {piece for piece, _ in guesses}


class TestRefusals:
    def test_an_unknown_name(self) -> None:
        with pytest.raises(ValueError, match="no model 'llama'"):
            models.load("llama")

    def test_a_folder_without_a_model(self, tmp_path) -> None:
        with pytest.raises(FileNotFoundError, match=r"python -m toolkit\.pretrain gpt"):
            models.load("gpt", folder=tmp_path)

    def test_a_module_without_the_classes(self, tmp_path) -> None:
        path = tmp_path / "empty.py"
        path.write_text("x = 1\n")
        with pytest.raises(ValueError, match="has no GPT"):
            models.load("gpt", str(path))

    def test_weights_of_another_shape(self, tmp_path) -> None:
        made = models.load("gpt")
        for name in (common.WEIGHTS, common.TOKENIZER):
            (tmp_path / name).write_bytes((made.folder / name).read_bytes())
        config = made.config | {"d_model": 64}
        (tmp_path / common.CONFIG).write_text(json.dumps(config))
        with pytest.raises(ValueError, match="does not fit this model"):
            models.load("gpt", folder=tmp_path)

    def test_words_that_a_translator_does_not_know(self) -> None:
        with pytest.raises(ValueError, match="«dragons»"):
            models.load("transformer-en-zh").translate(["13 dragons"])

    def test_what_is_no_translator_does_not_translate(self) -> None:
        with pytest.raises(ValueError, match="no translator"):
            models.load("gpt").translate(["13 days"])


def test_pieces_are_cut_as_when_the_vocabulary_was_learned() -> None:
    made = models.load("bert").tokenizer
    tokenizer = Tokenizer.from_file(str(models.FOLDER / "bert" / common.TOKENIZER))
    text = "Return the number of max_workers, or raise ValueError."
    assert made.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids
    whole = tokenizer.encode(text).ids
    assert (whole[0], whole[-1]) == (docstrings.CLS, docstrings.SEP)
