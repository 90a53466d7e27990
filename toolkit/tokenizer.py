"""WordPiece and byte-pair tokenizers from the files that others publish, with their special ids.

    tokenizer = WordPieceTokenizer.read(folder)     # vocab.txt
    tokenizer.special.mask                          # 103 in bert-base-uncased, 4 in the course
    tokenizer.encode("The capital is [MASK].")      # without [CLS] and [SEP]
    tokenizer.build_input("A question?", "A text.") # with them, and the segments

    tokenizer = BytePairTokenizer.read(folder, "gpt2")  # vocab.json and merges.txt
    tokenizer.decode(tokenizer.encode("Hello"))

The library `tokenizers` cuts the text. What stands here are the rules that BERT, GPT-1 and GPT-2
have before and after it, and what each of them calls special.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

NAMES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
END_OF_TEXT = "<|endoftext|>"
UNKNOWN = "<unk>"


@dataclass(frozen=True)
class SpecialIds:
    """The ids of BERT's five special tokens; the defaults are those of the course."""

    pad: int = 0
    unk: int = 1
    cls: int = 2
    sep: int = 3
    mask: int = 4

    def __iter__(self) -> Iterator[int]:
        return iter(astuple(self))


class WordPieceTokenizer:
    """BERT's tokenizer: words, cut into the longest known pieces.

    Words are split at spaces and punctuation first: `max_workers` is three. A later piece of a word
    begins with ##. A word that can't be put together from pieces is [UNK].

    Attributes:
        names: id to piece.
        special: the ids of the five special tokens.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        special_names: Sequence[str] = NAMES,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        chinese: bool = True,
        special_in_text: bool = True,
    ) -> None:
        """Make a tokenizer of its vocabulary.

        Args:
            names: id to piece.
            special_names: of padding, unknown word, beginning, end of a sentence and mask.
            lowercase: whether a text is read in lower case.
            strip_accents: whether accents are taken off; None: if it is read in lower case.
            chinese: whether each Chinese character is a word.
            special_in_text: whether "[MASK]" in a text is the special token, or three words.

        Raises:
            ValueError: if a piece stands there twice, or a special one not at all.
        """
        self.names = list(names)
        self._rules: dict[str, Any] = {
            "special_names": tuple(special_names),
            "lowercase": lowercase,
            "strip_accents": strip_accents,
            "chinese": chinese,
            "special_in_text": special_in_text,
        }
        ids = _numbered(self.names)
        for name in special_names:
            if name not in ids:
                raise ValueError(f"the vocabulary lacks the special token {name}")
        self.special = SpecialIds(*(ids[name] for name in special_names))
        self._tokenizer = Tokenizer(models.WordPiece(ids, unk_token=special_names[1]))
        cut_words(self._tokenizer, lowercase, strip_accents, chinese)
        if special_in_text:
            _add_special(self._tokenizer, special_names)

    @classmethod
    def read(cls, folder: str | Path) -> WordPieceTokenizer | None:
        """The tokenizer of a folder with a BERT checkpoint; None if the folder holds none.

        Args:
            folder: holds vocab.txt, a piece a line, and perhaps tokenizer_config.json. Without
                vocab.txt, what newer programs write is read: tokenizer.json.

        Raises:
            ValueError: if a file is damaged or belongs to another kind of tokenizer, tokenizer.json
                has other tokens than vocab.txt beside it, or as when a tokenizer is made.
        """
        folder = Path(folder)
        said = _settings(folder)
        if (folder / "vocab.txt").is_file():
            with _blaming("vocab.txt"):
                # Not models.WordPiece.read_file, in which the later of two equal lines wins.
                lines = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
            names = [line.rstrip() for line in lines]
            names = names[:-1] if names[-1] == "" else names
            _agreeing(folder, names, "vocab.txt")
            return cls(names, **_wordpiece_rules(said))
        whole = _whole(folder, "WordPiece", "BertNormalizer", "BertPreTokenizer")
        if whole is None:
            return None
        names, rules = _names(whole), whole["normalizer"]
        more = {
            "do_lower_case": rules.get("lowercase", True),
            "strip_accents": rules.get("strip_accents"),
            "tokenize_chinese_chars": rules.get("handle_chinese_chars", True),
        }
        return cls(names, **_wordpiece_rules(said | more))

    def in_course_order(self) -> tuple[WordPieceTokenizer, list[int]]:
        """The same tokenizer with the special tokens first, in the order of the course.

        Returns:
            The tokenizer, in which the special ids are 0 to 4, and for each new id the old one.
            What stood at 0 to 4 takes the ids that became free; all others stay.
        """
        special = list(self.special)
        course = range(len(special))
        moved = iter([i for i in course if i not in special])
        order = [
            special[i] if i in course else next(moved) if i in special else i
            for i in range(len(self))
        ]
        names = [self.names[i] for i in order]
        return WordPieceTokenizer(names, **self._rules), order

    def __len__(self) -> int:
        return len(self.names)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without [CLS] and [SEP] around it."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of several texts."""
        made = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [one.ids for one in made]

    def build_input(self, text: str, second: str | None = None) -> tuple[list[int], list[int]]:
        """[CLS] text [SEP], or [CLS] text [SEP] second [SEP], and the segments: as BERT reads it.

        Nothing is cut off; an input may be too long for a model.
        """
        ids = [self.special.cls, *self.encode(text), self.special.sep]
        segments = [0] * len(ids)
        if second is not None:
            more = [*self.encode(second), self.special.sep]
            ids, segments = ids + more, segments + [1] * len(more)
        return ids, segments

    def spans(self, text: str) -> list[tuple[int, int]]:
        """For each piece of `encode(text)` where it begins and ends in the text."""
        return self._tokenizer.encode(text, add_special_tokens=False).offsets

    def encode_words(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """The ids of words, and for each id the number of the word it is a piece of."""
        made = self._tokenizer.encode_batch(list(words), add_special_tokens=False)
        ids = [i for one in made for i in one.ids]
        numbers = [number for number, one in enumerate(made) for _ in one.ids]
        return ids, numbers

    def starts(self, ids: Iterable[int]) -> list[bool]:
        """For each id whether it is the first piece of a word; False for special tokens."""
        special = set(self.special)
        return [i not in special and not self.names[i].startswith("##") for i in map(int, ids)]

    def decode(self, ids: Iterable[int]) -> str:
        """Pieces put together, a space between words; padding is left out."""
        kept = (self.names[i] for i in map(int, ids) if i != self.special.pad)
        return " ".join(kept).replace(" ##", "")

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The pieces of ids."""
        return [self.names[int(i)] for i in ids]


class BytePairTokenizer:
    """The tokenizer of GPT-1 or GPT-2: byte-pair encoding.

    GPT-1 reads words in lower case, split at spaces and punctuation; the last piece of a word ends
    with </w>, and a character that it doesn't know is <unk>. GPT-2 reads bytes, and loses nothing.

    Attributes:
        names: id to token.
        end: the id of GPT-2's <|endoftext|>, which begins and ends documents; None in GPT-1.
        unk: the id of GPT-1's <unk>; None in GPT-2.
    """

    def __init__(
        self,
        names: Sequence[str],
        merges: Iterable[tuple[str, str]],
        kind: str,
        add_prefix_space: bool = False,
    ) -> None:
        """Make a tokenizer of its vocabulary and merges.

        Args:
            names: id to token.
            merges: the pairs that are joined, in their order.
            kind: "gpt2" or "openai-gpt", as a checkpoint's configuration says it.
            add_prefix_space: whether GPT-2's begins each text with a space.

        Raises:
            ValueError: if the kind is unknown, a token stands there twice, the special one not at
                all, or a merge makes or needs a token that isn't there.
        """
        if kind not in ("gpt2", "openai-gpt"):
            raise ValueError(f"kind must be 'gpt2' or 'openai-gpt', but is {kind!r}")
        self.names = list(names)
        ids = _numbered(self.names)
        special = END_OF_TEXT if kind == "gpt2" else UNKNOWN
        if special not in ids:
            raise ValueError(f"the vocabulary lacks the special token {special}")
        self.end = ids[special] if kind == "gpt2" else None
        self.unk = None if kind == "gpt2" else ids[special]
        merges = list(merges)
        for first, second in merges:
            for token in (first, second, first + second):
                if token not in ids:
                    raise ValueError(f"the merge {first} {second} needs the unknown token {token}")
        if kind == "gpt2":
            self._tokenizer = Tokenizer(models.BPE(ids, merges))
            self._tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space)
            self._tokenizer.decoder = decoders.ByteLevel()
        else:
            self._tokenizer = Tokenizer(
                models.BPE(ids, merges, unk_token=UNKNOWN, end_of_word_suffix="</w>")
            )
            self._tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
            self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
            self._tokenizer.decoder = decoders.BPEDecoder("</w>")
        _add_special(self._tokenizer, [special])

    @classmethod
    def read(cls, folder: str | Path, kind: str) -> BytePairTokenizer | None:
        """The tokenizer of a folder with a GPT checkpoint; None if the folder holds none.

        Args:
            folder: holds vocab.json, from token to id, and merges.txt, a pair a line; perhaps
                tokenizer_config.json. Without these two, what newer programs write is read:
                tokenizer.json.
            kind: "gpt2" or "openai-gpt".

        Raises:
            ValueError: if one of the two is missing, a file is damaged or belongs to another kind
                of tokenizer, tokenizer.json has other tokens than vocab.json beside it, or as when
                a tokenizer is made.
        """
        folder = Path(folder)
        space = bool(_settings(folder).get("add_prefix_space", False))
        there = [name for name in ("vocab.json", "merges.txt") if (folder / name).is_file()]
        if len(there) == 1:
            raise ValueError(f"vocab.json and merges.txt belong together; there is only {there[0]}")
        if there:
            names = _in_order(_json(folder / "vocab.json"), "vocab.json")
            _agreeing(folder, names, "vocab.json")
            with _blaming("merges.txt"):
                lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
            lines = [line for line in lines if line and not line.startswith("#version")]
            merges = [tuple(line.split(" ")) for line in lines]
        else:
            if kind == "gpt2":
                whole = _whole(folder, "BPE", None, "ByteLevel")
            else:
                whole = _whole(folder, "BPE", "BertNormalizer", "BertPreTokenizer")
            if whole is None:
                return None
            names = _names(whole)
            found = whole["model"].get("merges", [])
            merges = [tuple(m.split(" ") if isinstance(m, str) else m) for m in found]
            space = bool(whole["pre_tokenizer"].get("add_prefix_space", False))
        for merge in merges:
            if len(merge) != 2:
                raise ValueError(f"a merge is two tokens with a space between, not {merge[0]!r}")
        return cls(names, merges, kind, space)

    def __len__(self) -> int:
        return len(self.names)

    def encode(self, text: str) -> list[int]:
        """The ids of a text; nothing is put before or after it."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, special tokens by name; bytes that are no text become "�"."""
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The tokens of ids, as the vocabulary writes them."""
        return [self.names[int(i)] for i in ids]


# --------------------------------------------------------------------------- rules


def cut_words(
    tokenizer: Tokenizer, lowercase: bool, strip_accents: bool | None, chinese: bool
) -> None:
    """Give a tokenizer BERT's rules before the pieces; words are split at punctuation."""
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=chinese
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()


# --------------------------------------------------------------------------- files


def _add_special(tokenizer: Tokenizer, names: Sequence[str]) -> None:
    """Let the names of special tokens stand for them in a text."""
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])


def _numbered(names: Sequence[str]) -> dict[str, int]:
    """From token to id. ValueError if a token stands there twice."""
    ids: dict[str, int] = {}
    for number, name in enumerate(names):
        if ids.setdefault(name, number) != number:
            raise ValueError(f"the vocabulary has {name!r} twice, as {ids[name]} and {number}")
    return ids


def _in_order(ids: Any, file: str) -> list[str]:
    """From id to token. ValueError unless the ids are 0, 1, 2 and so on, each once."""
    if not isinstance(ids, dict) or not all(type(i) is int for i in ids.values()):
        raise ValueError(f"{file} must hold a table from token to id, but doesn't")
    names = sorted(ids, key=ids.__getitem__)
    for number, name in enumerate(names):
        if ids[name] != number:
            raise ValueError(f"the ids in {file} must be 0 to {len(ids) - 1}, each once")
    return names


@contextlib.contextmanager
def _blaming(file: str) -> Iterator[None]:
    """Whatever is wrong with the text of a file is a ValueError that names it."""
    try:
        yield
    except ValueError as error:  # UnicodeDecodeError is one
        raise ValueError(f"{file} is no text in UTF-8") from error


def _json(path: Path) -> Any:
    """What a JSON file holds. ValueError if it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name} is no JSON, or it is cut off") from error


def _settings(folder: Path) -> dict[str, Any]:
    """What tokenizer_config.json says; nothing if there is none."""
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return {}
    said = _json(path)
    if not isinstance(said, dict):
        raise ValueError("tokenizer_config.json must hold a table of settings, but doesn't")
    return said


def _wordpiece_rules(said: Mapping[str, Any]) -> dict[str, Any]:
    """The rules of a WordPieceTokenizer from the settings of a file."""
    special = []
    for role, name in zip(ROLES, NAMES, strict=True):
        value = said.get(role) or name
        special.append(value["content"] if isinstance(value, dict) else value)
    return {
        "special_names": special,
        "lowercase": bool(said.get("do_lower_case", True)),
        "strip_accents": said.get("strip_accents"),
        "chinese": bool(said.get("tokenize_chinese_chars", True)),
    }


def _whole(
    folder: Path, model: str, normalizer: str | None, pre_tokenizer: str
) -> dict[str, Any] | None:
    """tokenizer.json, or None if there is none. ValueError if its parts are of other types."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    whole = _parts(path)
    wanted = {"model": model, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer}
    for part, kind in wanted.items():
        found = (whole.get(part) or {}).get("type")
        if found != kind:
            raise ValueError(f"{part} in tokenizer.json must be {kind!r}, but is {found!r}")
    return whole


def _parts(path: Path) -> dict[str, Any]:
    """What tokenizer.json holds. ValueError if that is no tokenizer."""
    whole = _json(path)
    if not isinstance(whole, dict) or not isinstance(whole.get("model"), dict):
        raise ValueError("tokenizer.json must hold the parts of a tokenizer, but doesn't")
    return whole


def _agreeing(folder: Path, names: Sequence[str], file: str) -> None:
    """Refuse a vocabulary beside which tokenizer.json has another one: which is the model's?"""
    path = folder / "tokenizer.json"
    if path.is_file() and _names(_parts(path)) != list(names):
        raise ValueError(f"{file} and tokenizer.json have different vocabularies")


def _names(whole: Mapping[str, Any]) -> list[str]:
    """From id to token, of what tokenizer.json holds; added tokens are tokens like others."""
    added = {token["content"]: token["id"] for token in whole.get("added_tokens") or ()}
    return _in_order({**whole["model"].get("vocab", {}), **added}, "tokenizer.json")
