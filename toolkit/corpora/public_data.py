"""The public data sets of the papers, for readers who want to train on them.

    from toolkit.corpora import public_data

    pairs = list(public_data.multi30k("train"))                   # from the Hugging Face Hub
    pairs = list(public_data.multi30k("train", folder="multi30k"))  # from files of one's own

No cell of the book needs them. From the Hub they are fetched once by the library `datasets` and
kept in its cache; with `folder` nothing is fetched. A folder holds a file for each split, its name
containing train, validation (also valid, val or dev) or test: Parquet, JSON, JSON lines or CSV with
the same columns as on the Hub, or the plain files in which the set was first published. What
`datasets` wrote with `save_to_disk` is read too.
"""

from __future__ import annotations

import contextlib
import csv
import gc
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from toolkit.corpora.translation import Pair

Folder = str | os.PathLike[str]

TAGS = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC")

_SPLITS = {
    "train": ("train",),
    "validation": ("validation", "valid", "val", "dev", "testa"),
    "test": ("test", "testb"),
}
_WAIT = 10.0  # seconds for a first answer of the Hub


@dataclass(frozen=True)
class Question:
    """A question about a text. SQuAD 1.1: every answer is a piece of the text.

    answers: accepted answers; starts: the character of `context` at which each of them begins.
    """

    context: str
    question: str
    answers: tuple[str, ...]
    starts: tuple[int, ...]


@dataclass(frozen=True)
class Review:
    """A sentence and its class: 1 positive, 0 negative, -1 not published."""

    text: str
    label: int


@dataclass(frozen=True)
class Tagged:
    """A sentence in words and a tag for each word, one of `TAGS`."""

    tokens: tuple[str, ...]
    tags: tuple[str, ...]


# --------------------------------------------------------------------------- the data sets


def wmt14(
    split: str = "train",
    source: str = "en",
    target: str = "de",
    *,
    folder: Folder | None = None,
    limit: int | None = None,
) -> Iterator[Pair]:
    """News and parliament: the sentence pairs on which the Transformer was first trained.

    Args:
        split: "train" (4.5 million pairs with German), "validation" or "test".
        source, target: one of them "en", the other "de", "fr", "cs", "hi" or "ru".
        folder: files of one's own: tables with a column `translation` ({"en": …, "de": …}) or a
            column for each language; or two text files with the same name and the languages as
            endings (train.en, train.de), line by line.
        limit: how many records at most; they are then read without fetching the rest.

    Yields:
        `toolkit.corpora.translation.Pair` of kind "wmt14".

    Raises:
        ValueError: an unknown split, files that are missing or have other columns, and when there
            is neither a network nor a folder.
    """
    others = {source, target} - {"en"}
    if (
        "en" not in (source, target)
        or len(others) != 1
        or not others <= {"de", "fr", "cs", "hi", "ru"}
    ):
        raise ValueError(
            f"WMT14 has English with de, fr, cs, hi or ru, not {source!r} with {target!r}"
        )
    name = f"{others.pop()}-en"
    plain = _parallel(source, target)
    rows = _rows("wmt14", split, folder, limit, "wmt/wmt14", name, plain=plain)
    return (_pair(row, source, target, "wmt14") for row in rows)


def multi30k(
    split: str = "train",
    source: str = "en",
    target: str = "de",
    *,
    folder: Folder | None = None,
    limit: int | None = None,
) -> Iterator[Pair]:
    """Descriptions of pictures in English and German: 29000, 1014 and 1000 pairs.

    Arguments, records (of kind "multi30k") and errors as `wmt14`; from the Hub only English and
    German.
    """
    if folder is None and {source, target} != {"en", "de"}:
        raise ValueError(
            f"Multi30k comes with en and de, not with {source!r} and {target!r}; give a folder "
            "with files in these languages"
        )
    plain = _parallel(source, target)
    rows = _rows("multi30k", split, folder, limit, "bentrevett/multi30k", plain=plain)
    return (_pair(row, source, target, "multi30k") for row in rows)


def squad(
    split: str = "train", *, folder: Folder | None = None, limit: int | None = None
) -> Iterator[Question]:
    """Questions about Wikipedia, SQuAD 1.1: 87599 to train on, 10570 for validation.

    Args:
        split: "train" or "validation"; the test set is not public.
        folder: tables with the columns context, question and answers ({"text": […],
            "answer_start": […]}), or the files train-v1.1.json and dev-v1.1.json.
        limit: how many records at most.

    Raises:
        ValueError: as `wmt14`.
    """
    if split == "test":
        raise ValueError('the test set of SQuAD is not public; use split="validation"')

    def record(row: dict[str, Any]) -> Question:
        answers = row["answers"]
        return Question(
            row["context"], row["question"], tuple(answers["text"]), tuple(answers["answer_start"])
        )

    rows = _rows("squad", split, folder, limit, "rajpurkar/squad", plain={".json": _squad_json})
    return _records("squad", rows, record)


def sst2(
    split: str = "train", *, folder: Folder | None = None, limit: int | None = None
) -> Iterator[Review]:
    """Sentences of film reviews, positive or negative: 67349, 872 and 1821 (without labels).

    Args:
        split: "train", "validation" or "test".
        folder: tables with the columns sentence and label, or the files train.tsv and so on.
        limit: how many records at most.

    Raises:
        ValueError: as `wmt14`.
    """

    def record(row: dict[str, Any]) -> Review:
        label = row.get("label")
        return Review(row["sentence"].strip(), -1 if label is None else int(label))

    rows = _rows("sst2", split, folder, limit, "stanfordnlp/sst2", plain={".tsv": _tsv})
    return _records("sst2", rows, record)


def conll2003(
    split: str = "train", *, folder: Folder | None = None, limit: int | None = None
) -> Iterator[Tagged]:
    """News with the names of persons, organisations and places: 14041, 3250 and 3453 sentences.

    Args:
        split: "train", "validation" or "test".
        folder: tables with the columns tokens and ner_tags (names or numbers of `TAGS`), or the
            files in columns (word, part of speech, chunk, tag) with empty lines between
            sentences.
        limit: how many records at most.

    Raises:
        ValueError: as `wmt14`.
    """

    def record(row: dict[str, Any]) -> Tagged:
        tags = tuple(tag if isinstance(tag, str) else TAGS[tag] for tag in row["ner_tags"])
        if isinstance(row["tokens"], str) or len(tags) != len(row["tokens"]):
            raise TypeError("tokens and ner_tags must be lists of the same length")
        return Tagged(tuple(row["tokens"]), tags)

    plain = {".txt": _columns, ".conll": _columns, ".train": _columns}
    plain |= {".testa": _columns, ".testb": _columns}
    rows = _rows("conll2003", split, folder, limit, "lhoestq/conll2003", plain=plain)
    return _records("conll2003", rows, record)


def wikitext(
    split: str = "train", *, size: int = 2, folder: Folder | None = None, limit: int | None = None
) -> str:
    """Good articles of Wikipedia as one text, WikiText-2 (11 MB) or WikiText-103 (540 MB), raw.

    Args:
        split: "train", "validation" or "test".
        size: 2 or 103.
        folder: tables with a column text, or text files (wiki.train.raw, train.txt).
        limit: how many characters at most.

    Raises:
        ValueError: as `wmt14`, or another size.
    """
    _check_limit(limit)
    if size not in (2, 103):
        raise ValueError(f"WikiText has the sizes 2 and 103, not {size}")
    plain = dict.fromkeys((".txt", ".raw", ".tokens"), _whole)
    repository, name = "Salesforce/wikitext", f"wikitext-{size}-raw-v1"
    rows = _rows("wikitext", split, folder, None, repository, name, plain=plain)
    return _text("wikitext", rows, limit)


def tiny_shakespeare(
    split: str = "train", *, folder: Folder | None = None, limit: int | None = None
) -> str:
    """40000 lines of Shakespeare as one text: 1.0 million characters to train on.

    Args:
        split: "train", "validation" or "test".
        folder: tables with a column text or text files, one for each split; or one text file (or
            a folder with a single one), of which the first 90 % are train, the next 5 %
            validation, the rest test.
        limit: how many characters at most.

    Raises:
        ValueError: as `wmt14`.
    """
    _check_split(split)
    _check_limit(limit)
    single = None if folder is None else _only_text(Path(folder))
    if single is not None:
        whole = single.read_text(encoding="utf-8")
        first, second = int(0.9 * len(whole)), int(0.95 * len(whole))
        parts = {"train": whole[:first], "validation": whole[first:second], "test": whole[second:]}
        return parts[split][:limit]
    rows = _rows(
        "tiny_shakespeare", split, folder, None, "karpathy/tiny_shakespeare",
        revision="refs/convert/parquet", plain={".txt": _whole},
    )  # fmt: skip
    return _text("tiny_shakespeare", rows, limit)


# --------------------------------------------------------------------------- records


def _pair(row: dict[str, Any], source: str, target: str, kind: str) -> Pair:
    texts = row.get("translation") or row
    if isinstance(texts, str):  # a cell of a CSV file
        texts = json.loads(texts)
    for language in (source, target):
        if not isinstance(texts.get(language), str):
            raise ValueError(f"{kind} needs texts in {language!r}; there are only {sorted(texts)}")
    return Pair(texts[source].strip(), texts[target].strip(), kind, (source, target))


def _records(
    name: str, rows: Iterable[dict[str, Any]], record: Callable[[dict[str, Any]], Any]
) -> Iterator[Any]:
    for row in rows:
        try:
            yield record(row)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise ValueError(
                f"a row of {name} has the columns {', '.join(sorted(row))} in a form that is not "
                f"that of the data set ({error}); see help(public_data.{name})"
            ) from None


def _text(name: str, rows: Iterable[dict[str, Any]], limit: int | None) -> str:
    pieces: list[str] = []
    length = 0
    for piece in _records(name, rows, lambda row: row["text"] + ""):
        pieces.append(piece)
        length += len(piece)
        if limit is not None and length >= limit:
            break
    return "".join(pieces)[:limit]


# --------------------------------------------------------------------------- rows

_Plain = dict[str, Callable[[Path], Iterator[dict[str, Any]] | None]]


def _check_split(split: str) -> None:
    if split not in _SPLITS:
        raise ValueError(f"split must be one of {', '.join(_SPLITS)}, not {split!r}")


def _check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be 1 or more, not {limit}")


def _rows(
    name: str,
    split: str,
    folder: Folder | None,
    limit: int | None,
    repository: str,
    config: str | None = None,
    *,
    revision: str | None = None,
    plain: _Plain,
) -> Iterator[dict[str, Any]]:
    """The rows of a split, from files or from the Hub."""
    _check_split(split)
    _check_limit(limit)
    if folder is None:
        return _from_hub(name, split, repository, config, revision, limit)
    return islice(_from_files(name, split, Path(folder), config, plain), limit)


def _from_hub(
    name: str,
    split: str,
    repository: str,
    config: str | None,
    revision: str | None,
    limit: int | None,
) -> Iterator[dict[str, Any]]:
    import datasets  # slow to import, and not needed for files
    import huggingface_hub
    from huggingface_hub import errors

    arguments = {"name": config, "revision": revision, "split": split}
    try:  # one question first: `datasets` would try for half a minute
        huggingface_hub.HfApi().dataset_info(repository, revision=revision, timeout=_WAIT)
        if limit is None:
            return iter(datasets.load_dataset(repository, **arguments))
        stream = datasets.load_dataset(repository, streaming=True, **arguments)
        rows = list(islice(stream, limit))
        del stream
        gc.collect()  # or Arrow's threads outlive the interpreter and abort it at its end
        return iter(rows)
    except Exception as error:  # the kinds of network errors differ from version to version
        with contextlib.suppress(Exception), _offline():
            cached = datasets.load_dataset(repository, **arguments)
            return islice(iter(cached), limit)
        answered = isinstance(error, errors.HfHubHTTPError)
        raise ValueError(
            f"{repository} cannot be fetched ({type(error).__name__}) and is not in the cache: "
            f"{'see whether the Hub still has it' if answered else 'connect to the network'}, or "
            f"call public_data.{name}({split!r}, folder=...) with files of your own"
        ) from None


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Lets `datasets` look into its cache without asking the network first."""
    import datasets
    from huggingface_hub import constants

    places = (datasets.config, constants)
    before = [place.HF_HUB_OFFLINE for place in places]
    try:
        for place in places:
            place.HF_HUB_OFFLINE = True
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value


def _from_files(
    name: str, split: str, folder: Path, config: str | None, plain: _Plain
) -> Iterator[dict[str, Any]]:
    if not folder.exists():
        raise ValueError(f"there is no file or folder {folder}; folder= names where the files are")
    if (folder / "dataset_dict.json").is_file():
        return _saved(folder, split)
    candidates = (
        [folder] if folder.is_file() else sorted(p for p in folder.rglob("*") if p.is_file())
    )
    known = [path for path in candidates if path.suffix in _TABLES or path.suffix in plain]
    if config is not None and any(config in path.parts for path in known):
        known = [path for path in known if config in path.parts]
    chosen = [p for p in known if folder.is_file() or _of_split(p.relative_to(folder), split)]
    if not chosen:
        endings = ", ".join(sorted({*_TABLES, *plain}))
        found = ", ".join(path.name for path in candidates[:5]) or "nothing"
        raise ValueError(
            f"no file for the split {split!r} of {name} in {folder}, which holds {found}: its name "
            f"must contain {' or '.join(_SPLITS[split])} and end in {endings}"
        )
    return _read_all(name, chosen, plain)


def _of_split(path: Path, split: str) -> bool:
    """Whether a word of the file's name, or else of its folders' names, says the split."""
    for part in reversed(path.parts):
        words = set(re.split(r"[^a-z]+", part.lower()))
        said = [name for name, aliases in _SPLITS.items() if words & set(aliases)]
        if said:
            return split in said
    return False


def _read_all(name: str, paths: list[Path], plain: _Plain) -> Iterator[dict[str, Any]]:
    for path in paths:
        rows = None
        try:
            if path.suffix in plain:
                rows = plain[path.suffix](path)
            yield from _TABLES[path.suffix](path) if rows is None else rows
        except (OSError, ValueError, KeyError, csv.Error) as error:
            raise ValueError(f"{path} cannot be read as a file of {name}: {error}") from None


def _saved(folder: Path, split: str) -> Iterator[dict[str, Any]]:
    """The rows of a split that `datasets` wrote with `save_to_disk`."""
    import datasets

    saved = datasets.load_from_disk(str(folder))
    if split not in saved:
        raise ValueError(f"{folder} holds the splits {', '.join(saved)}, not {split}")
    return iter(saved[split])


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    from pyarrow import parquet  # comes with `datasets`

    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches():
            yield from batch.to_pylist()


def _json(path: Path) -> Iterator[dict[str, Any]]:
    """One list of rows, or a row on each line."""
    with path.open(encoding="utf-8") as file:
        if file.read(1) == "[":
            file.seek(0)
            rows = json.load(file)
        else:
            file.seek(0)
            rows = (json.loads(line) for line in file if line.strip())
        for row in rows:
            if not isinstance(row, dict):
                raise ValueError(f"a row must be an object with named columns, not {row!r:.40}")
            yield row


def _csv(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


_TABLES = {".parquet": _parquet, ".json": _json, ".jsonl": _json, ".csv": _csv}


# --------------------------------------------------------------------------- plain files


def _parallel(source: str, target: str) -> _Plain:
    """Two text files, a sentence on each line: train.en beside train.de."""

    def read(path: Path) -> Iterator[dict[str, Any]]:
        other = path.with_suffix(f".{target}")
        if not other.is_file():
            raise OSError(f"there is no {other.name} beside it")
        left, right = (p.read_text(encoding="utf-8").splitlines() for p in (path, other))
        if len(left) != len(right):
            raise OSError(f"it has {len(left)} lines, {other.name} has {len(right)}")
        for one, two in zip(left, right, strict=True):
            yield {source: one, target: two}

    return {f".{source}": read}


def _squad_json(path: Path) -> Iterator[dict[str, Any]] | None:
    """The form in which SQuAD was published; None if the file is a table of rows instead."""
    with path.open(encoding="utf-8") as file:
        if '"paragraphs"' not in file.read(100_000):
            return None
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    return (
        {
            "context": paragraph["context"],
            "question": question["question"],
            "answers": {
                "text": [answer["text"] for answer in question["answers"]],
                "answer_start": [answer["answer_start"] for answer in question["answers"]],
            },
        }
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    )


def _tsv(path: Path) -> Iterator[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").split("\n")
    names = lines[0].split("\t")
    for line in lines[1:]:
        if line:
            yield dict(zip(names, line.split("\t"), strict=False))


def _columns(path: Path) -> Iterator[dict[str, Any]]:
    tokens: list[str] = []
    tags: list[str] = []
    for line in [*path.read_text(encoding="utf-8").splitlines(), ""]:
        fields = line.split()
        if fields and fields[0] != "-DOCSTART-":
            tokens.append(fields[0])
            tags.append(fields[-1])
        elif tokens:
            yield {"tokens": tokens, "ner_tags": tags}
            tokens, tags = [], []


def _whole(path: Path) -> Iterator[dict[str, Any]]:
    yield {"text": path.read_text(encoding="utf-8")}


def _only_text(folder: Path) -> Path | None:
    """The file, or the only text file of a folder, if its name says no split."""
    texts = [folder] if folder.is_file() else sorted(folder.glob("*.txt"))
    if len(texts) != 1 or texts[0].suffix != ".txt":
        return None
    return None if any(_of_split(Path(texts[0].name), split) for split in _SPLITS) else texts[0]
