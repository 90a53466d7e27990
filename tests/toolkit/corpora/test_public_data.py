"""The loaders read files in the forms of the data sets, and say what is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import datasets
import pytest

from toolkit.corpora import public_data as data
from toolkit.corpora.translation import Pair, Vocabulary, batches

TRANSLATIONS = [
    {"en": "Two dogs run.", "de": "Zwei Hunde rennen."},
    {"en": "null", "de": "NA"},  # texts, even if a table reader takes them for nothing
    {"en": "A girl, 5, reads.", "de": "Ein Mädchen, 5, liest."},
]
QUESTIONS = [
    {
        "id": "1",
        "title": "River",
        "context": "The river is long.",
        "question": "What is long?",
        "answers": {"text": ["The river", "river"], "answer_start": [0, 4]},
    }
]
REVIEWS = [
    {"idx": 0, "sentence": "a delight ", "label": 1},
    {"idx": 1, "sentence": "so dull", "label": 0},
]
TAGGED = [
    {"id": "0", "tokens": ["EU", "rejects", "German"], "ner_tags": [3, 0, 7]},
    {"id": "1", "tokens": ["Peter", "Blackburn"], "ner_tags": [1, 2]},
]
TEXTS = [{"text": " = Title = \n"}, {"text": ""}, {"text": "A line.\n"}]


def write(rows: list[dict], path: Path) -> None:
    """The rows as the library for the data sets writes them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = datasets.Dataset.from_list(rows)
    if path.suffix == ".parquet":
        table.to_parquet(path)
    elif path.suffix == ".csv":
        table.to_csv(path)
    elif path.suffix == ".jsonl":
        table.to_json(path)
    else:
        path.write_text(json.dumps(rows), encoding="utf-8")


# --------------------------------------------------------------------------- records


@pytest.mark.parametrize("ending", ["parquet", "json", "jsonl", "csv"])
def test_translations_are_read_from_tables(tmp_path: Path, ending: str) -> None:
    write(TRANSLATIONS, tmp_path / f"train.{ending}")
    pairs = list(data.multi30k("train", folder=tmp_path))
    assert pairs == [Pair(row["en"], row["de"], "multi30k", ("en", "de")) for row in TRANSLATIONS]
    back = next(data.multi30k("train", "de", "en", folder=tmp_path))
    assert (back.source, back.target) == ("Zwei Hunde rennen.", "Two dogs run.")
    assert back.locales == ("de", "en")


@pytest.mark.parametrize("ending", ["parquet", "json", "jsonl"])
def test_nested_translations_are_read_from_the_folder_of_their_languages(
    tmp_path: Path, ending: str
) -> None:
    write([{"translation": row} for row in TRANSLATIONS], tmp_path / "de-en" / f"test-0.{ending}")
    french = [{"translation": {"en": "Yes.", "fr": "Oui."}}]
    write(french, tmp_path / "fr-en" / f"test-0.{ending}")
    assert [p.target for p in data.wmt14("test", folder=tmp_path)] == [
        row["de"] for row in TRANSLATIONS
    ]
    assert list(data.wmt14("test", "fr", "en", folder=tmp_path)) == [
        Pair("Oui.", "Yes.", "wmt14", ("fr", "en"))
    ]


def test_translations_are_read_from_two_text_files(tmp_path: Path) -> None:
    for language in ("en", "de"):
        lines = "".join(row[language] + "\n" for row in TRANSLATIONS)
        (tmp_path / f"val.{language}").write_text(lines, encoding="utf-8")
    pairs = list(data.multi30k("validation", folder=tmp_path))
    assert [(p.source, p.target) for p in pairs] == [(r["en"], r["de"]) for r in TRANSLATIONS]
    (tmp_path / "val.de").write_text("only one\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"val\.en .*3 lines, val\.de has 1"):
        list(data.multi30k("validation", folder=tmp_path))
    (tmp_path / "val.de").unlink()
    with pytest.raises(ValueError, match=r"no val\.de beside it"):
        list(data.multi30k("validation", folder=tmp_path))


def test_pairs_of_a_data_set_make_batches_like_those_of_the_corpus(tmp_path: Path) -> None:
    write(TRANSLATIONS, tmp_path / "train.json")
    pairs = list(data.multi30k(folder=tmp_path))
    sources = Vocabulary.build([pair.source_tokens for pair in pairs])
    targets = Vocabulary.build([pair.target_tokens for pair in pairs])
    [batch] = batches(pairs, sources, targets, 8)
    assert batch.source.shape[0] == 3
    assert sources.decode(batch.source[0]) == ["Two", "dogs", "run", "."]


def published_squad() -> dict:
    row = QUESTIONS[0]
    answers = [
        {"text": text, "answer_start": start}
        for text, start in zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
    ]
    question = {"id": "1", "question": row["question"], "answers": answers}
    paragraph = {"context": row["context"], "qas": [question]}
    return {"version": "1.1", "data": [{"title": "River", "paragraphs": [paragraph]}]}


@pytest.mark.parametrize("name", ["dev.parquet", "dev.json", "dev.jsonl", "dev-v1.1.json"])
def test_questions_are_read_as_rows_and_as_published(tmp_path: Path, name: str) -> None:
    if "v1.1" in name:
        (tmp_path / name).write_text(json.dumps(published_squad()), encoding="utf-8")
    else:
        write(QUESTIONS, tmp_path / name)
    [record] = data.squad("validation", folder=tmp_path)
    assert record == data.Question(
        "The river is long.", "What is long?", ("The river", "river"), (0, 4)
    )
    for answer, start in zip(record.answers, record.starts, strict=True):
        assert record.context[start : start + len(answer)] == answer


@pytest.mark.parametrize("ending", ["parquet", "json", "jsonl", "csv"])
def test_reviews_are_read_from_tables(tmp_path: Path, ending: str) -> None:
    write(REVIEWS, tmp_path / f"sst2-train.{ending}")
    assert list(data.sst2(folder=tmp_path)) == [
        data.Review("a delight", 1),
        data.Review("so dull", 0),
    ]


def test_reviews_are_read_as_published(tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text('sentence\tlabel\na "delight"\t1\nso dull\t0\n')
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\tunknown\n")
    assert [r.label for r in data.sst2("validation", folder=tmp_path)] == [1, 0]
    assert next(data.sst2("validation", folder=tmp_path)).text == 'a "delight"'
    assert list(data.sst2("test", folder=tmp_path)) == [data.Review("unknown", -1)]


EXPECTED_TAGS = [
    data.Tagged(("EU", "rejects", "German"), ("B-ORG", "O", "B-MISC")),
    data.Tagged(("Peter", "Blackburn"), ("B-PER", "I-PER")),
]


@pytest.mark.parametrize("ending", ["parquet", "json", "jsonl"])
def test_tagged_sentences_are_read_from_tables(tmp_path: Path, ending: str) -> None:
    write(TAGGED, tmp_path / f"train.{ending}")
    named = [{**row, "ner_tags": [data.TAGS[i] for i in row["ner_tags"]]} for row in TAGGED]
    write(named, tmp_path / f"test.{ending}")
    assert list(data.conll2003("train", folder=tmp_path)) == EXPECTED_TAGS
    assert list(data.conll2003("test", folder=tmp_path)) == EXPECTED_TAGS


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("eng.train", "train"),
        ("eng.testa", "validation"),
        ("eng.testb", "test"),
        ("dev.txt", "validation"),
    ],
)
def test_tagged_sentences_are_read_as_published(tmp_path: Path, name: str, split: str) -> None:
    (tmp_path / name).write_text(
        "-DOCSTART- -X- O O\n\nEU NNP I-NP B-ORG\nrejects VBZ I-VP O\nGerman JJ I-NP B-MISC\n\n"
        "Peter NNP I-NP B-PER\nBlackburn NNP I-NP I-PER"
    )
    assert list(data.conll2003(split, folder=tmp_path)) == EXPECTED_TAGS


@pytest.mark.parametrize("name", ["train.parquet", "train.json", "train.csv", "wiki.train.raw"])
def test_a_text_is_put_together_again(tmp_path: Path, name: str) -> None:
    if name.endswith("raw"):
        (tmp_path / name).write_text("".join(row["text"] for row in TEXTS))
    else:
        write(TEXTS, tmp_path / name)
    assert data.wikitext(folder=tmp_path) == " = Title = \nA line.\n"
    assert data.wikitext(folder=tmp_path, limit=14) == " = Title = \nA "


def test_one_file_of_shakespeare_is_split(tmp_path: Path) -> None:
    whole = "".join(chr(97 + i % 26) for i in range(1000))
    (tmp_path / "input.txt").write_text(whole)
    for folder in (tmp_path, tmp_path / "input.txt"):
        parts = [data.tiny_shakespeare(s, folder=folder) for s in ("train", "validation", "test")]
        assert [len(part) for part in parts] == [900, 50, 50]
        assert "".join(parts) == whole
    assert data.tiny_shakespeare(folder=tmp_path, limit=7) == "abcdefg"


def test_files_of_shakespeare_for_each_split_are_read(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("to be")
    (tmp_path / "test.txt").write_text("or not")
    assert data.tiny_shakespeare("test", folder=tmp_path) == "or not"
    (tmp_path / "test.txt").unlink()
    assert data.tiny_shakespeare("train", folder=tmp_path) == "to be"
    with pytest.raises(ValueError, match="no file for the split 'test'"):
        data.tiny_shakespeare("test", folder=tmp_path)


# --------------------------------------------------------------------------- files


def test_what_the_library_saved_is_read(tmp_path: Path) -> None:
    saved = {"train": datasets.Dataset.from_list(TRANSLATIONS)}
    datasets.DatasetDict(saved).save_to_disk(tmp_path / "saved")
    assert len(list(data.multi30k(folder=tmp_path / "saved"))) == 3
    with pytest.raises(ValueError, match="splits train, not test"):
        data.multi30k("test", folder=tmp_path / "saved")


def test_a_single_file_needs_no_split_in_its_name(tmp_path: Path) -> None:
    write(REVIEWS, tmp_path / "mine.jsonl")
    assert len(list(data.sst2(folder=tmp_path / "mine.jsonl"))) == 2


def test_shards_are_read_in_order_and_a_limit_ends_early(tmp_path: Path) -> None:
    for shard in (0, 1):
        rows = [{"sentence": f"{shard} {i}", "label": 0} for i in range(3)]
        write(rows, tmp_path / f"train-0000{shard}-of-00002.parquet")
    write(REVIEWS, tmp_path / "validation-00000-of-00001.parquet")
    texts = [record.text for record in data.sst2(folder=tmp_path, limit=4)]
    assert texts == ["0 0", "0 1", "0 2", "1 0"]
    assert len(list(data.sst2(folder=tmp_path))) == 6


# --------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: data.sst2("dev", folder=f), "split must be one of train"),
        (lambda f: data.squad("test", folder=f), "not public"),
        (lambda f: data.sst2(folder=f, limit=0), "limit"),
        (lambda f: data.wikitext(folder=f, limit=0), "limit"),
        (lambda f: data.wikitext(folder=f, size=5), "2 and 103"),
        (lambda f: data.wmt14("train", "de", "fr", folder=f), "WMT14 has English"),
        (lambda f: data.wmt14("train", "en", "en", folder=f), "WMT14 has English"),
        (lambda f: data.multi30k("train", "en", "fr"), "folder"),
        (lambda f: data.sst2(folder=f / "nowhere"), "no file or folder .*nowhere"),
        (
            lambda f: data.sst2("test", folder=f),
            "'test' of sst2 .*holds .*train.json.*must contain",
        ),
        (lambda f: list(data.sst2(folder=f)), "columns en .*help"),
        (lambda f: list(data.multi30k(folder=f)), "needs texts in 'de'.*'en'"),
        (lambda f: list(data.conll2003(folder=f / "string.jsonl")), "same length"),
        (lambda f: list(data.squad(folder=f / "broken.json")), "broken.json cannot be read"),
        (lambda f: list(data.sst2(folder=f / "broken.parquet")), "broken.parquet cannot be read"),
    ],
)
def test_a_refusal_names_what_is_wrong(
    tmp_path: Path, call: Callable[[Path], object], message: str
) -> None:
    write([{"en": "only English"}], tmp_path / "train.json")
    write([{"tokens": "EU rejects", "ner_tags": [0, 0]}], tmp_path / "string.jsonl")
    (tmp_path / "broken.json").write_text('{"paragraphs"')
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(ValueError, match=message) as raised:
        call(tmp_path)
    assert "\n" not in str(raised.value)


NO_NETWORK = """
import json, sys
from toolkit.corpora import public_data
assert len(list(public_data.sst2(folder=sys.argv[1]))) == 2
calls = {name: getattr(public_data, name) for name in sys.argv[2:]}
said = {}
for name, call in calls.items():
    for limit in (None, 5):
        try:
            call("train", limit=limit)
        except ValueError as error:
            said[f"{name} {limit}"] = str(error)
print(json.dumps(said))
"""


@pytest.mark.parametrize("way", ["switched off", "unreachable"])
def test_without_a_network_one_sentence_says_what_to_do(tmp_path: Path, way: str) -> None:
    """Port 9 of this machine answers nobody; the library alone would try for half a minute."""
    names = ("wmt14", "multi30k", "squad", "sst2", "conll2003", "wikitext", "tiny_shakespeare")
    write(REVIEWS, tmp_path / "files" / "train.parquet")
    cache = tmp_path / "cache"
    environment = {**os.environ, "HF_HOME": str(cache)}
    environment |= (
        {"HF_HUB_OFFLINE": "1"} if way == "switched off" else {"HF_ENDPOINT": "http://127.0.0.1:9"}
    )
    run = subprocess.run(
        [sys.executable, "-c", NO_NETWORK, str(tmp_path / "files"), *names],
        capture_output=True, text=True, env=environment, check=True,
    )  # fmt: skip
    said = json.loads(run.stdout)
    assert len(said) == 2 * len(names)
    for call, sentence in said.items():
        assert "connect to the network" in sentence
        assert f"public_data.{call.split()[0]}('train', folder=...)" in sentence
        assert "\n" not in sentence
    assert "Retrying" not in run.stderr
    assert list(cache.rglob("*.arrow")) == []  # files are read where they are
