"""Tokenizers of published checkpoints: the ids of Hugging Face, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests import vocabularies
from toolkit.tokenizer import BytePairTokenizer, SpecialIds, WordPieceTokenizer

BERT = SpecialIds(0, 100, 101, 102, 103)
SMALL = ["[PAD]", "x", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "cafe", "café"]


@pytest.fixture(scope="module")
def hf() -> Iterator[ModuleType]:
    """Hugging Face's library, imported late because it takes seconds, and told to stay offline."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        import transformers

        transformers.utils.logging.set_verbosity_error()
        yield transformers


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {kind: tmp_path_factory.mktemp(kind) for kind in ("bert", "gpt2", "openai-gpt")}
    vocabularies.write_bert(made["bert"])
    vocabularies.write_gpt(made["gpt2"], "gpt2")
    vocabularies.write_gpt(made["openai-gpt"], "openai-gpt")
    return made


def written(folder: Path, names: list[str], **settings: object) -> Path:
    (folder / "vocab.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


# --------------------------------------------------------------------------- BERT


def test_bert_gives_the_ids_of_hugging_face(hf: ModuleType, folders: dict[str, Path]) -> None:
    ours = WordPieceTokenizer.read(folders["bert"])
    theirs = hf.BertTokenizer.from_pretrained(folders["bert"])
    assert ours.special == BERT
    assert len(ours) == len(theirs) == vocabularies.BERT_SIZE
    texts = [*vocabularies.TEXTS, "The [MASK] of[MASK]France [SEP] [CLS] [PAD].", "[mask]"]
    for text in texts:
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"], text
        whole = theirs(text)
        assert ours.build_input(text) == (whole["input_ids"], whole["token_type_ids"])
        for second in texts[:6]:
            pair = theirs(text, second)
            assert ours.build_input(text, second) == (pair["input_ids"], pair["token_type_ids"])
    assert ours.encode_all(texts) == [ours.encode(text) for text in texts]


@pytest.mark.parametrize(
    "settings",
    [
        {"do_lower_case": False},
        {"do_lower_case": False, "strip_accents": True},
        {"strip_accents": False},
        {"tokenize_chinese_chars": False},
    ],
)
def test_the_files_settings_hold(
    hf: ModuleType, folders: dict[str, Path], tmp_path: Path, settings: dict[str, bool]
) -> None:
    names = (folders["bert"] / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
    changed = [*names[:-3], "café", "東京", "Café"]
    ours = WordPieceTokenizer.read(written(tmp_path, changed, **settings))
    theirs = hf.BertTokenizer.from_pretrained(tmp_path)
    plain = WordPieceTokenizer(changed)
    texts = [*vocabularies.TEXTS, "café", "Café", "東京"]
    for text in texts:
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"], text
    assert any(ours.encode(text) != plain.encode(text) for text in texts)


def test_special_tokens_may_have_other_names(tmp_path: Path) -> None:
    names = ["<pad>", "<s>", "</s>", "<unk>", "<mask>", "a"]
    settings = {
        "pad_token": "<pad>", "cls_token": "<s>", "sep_token": {"content": "</s>"},
        "unk_token": "<unk>", "mask_token": "<mask>",
    }  # fmt: skip
    tokenizer = WordPieceTokenizer.read(written(tmp_path, names, **settings))
    assert tokenizer.special == SpecialIds(pad=0, cls=1, sep=2, unk=3, mask=4)
    assert tokenizer.build_input("a <mask> b") == ([1, 5, 4, 3, 2], [0] * 5)


def test_the_order_of_the_course_moves_only_what_must_move() -> None:
    tokenizer = WordPieceTokenizer(SMALL)
    moved, order = tokenizer.in_course_order()
    assert moved.special == SpecialIds()
    assert moved.names == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "x", *SMALL[6:]]
    assert [SMALL[i] for i in order] == moved.names
    for text in ("the cats [MASK] x dog", "café"):
        assert [order[i] for i in moved.encode(text)] == tokenizer.encode(text)
    again, same = moved.in_course_order()
    assert (again.names, same) == (moved.names, list(range(len(SMALL))))
    cased = WordPieceTokenizer([*SMALL, "The"], lowercase=False)
    assert cased.in_course_order()[0].encode("The") == [len(SMALL)]


def test_what_a_vocabulary_says_of_its_pieces() -> None:
    tokenizer = WordPieceTokenizer(SMALL)
    ids = tokenizer.encode("the cats [MASK] dog")
    assert tokenizer.tokens(ids) == ["the", "cat", "##s", "[MASK]", "[UNK]"]
    assert tokenizer.starts(ids) == [True, True, False, False, False]
    assert tokenizer.decode([*ids, 0, 0]) == "the cats [MASK] [UNK]"
    assert tokenizer.encode_words(["the", "cats"]) == ([6, 7, 8], [0, 1, 1])
    assert tokenizer.spans("the cats") == [(0, 3), (4, 7), (7, 8)]
    literal = WordPieceTokenizer([*SMALL, "[", "]", "mask"], special_in_text=False)
    assert literal.tokens(literal.encode("[MASK]")) == ["[", "mask", "]"]


# --------------------------------------------------------------------------- GPT


@pytest.mark.parametrize(
    ("kind", "name"), [("gpt2", "GPT2Tokenizer"), ("openai-gpt", "OpenAIGPTTokenizer")]
)
def test_gpt_gives_the_ids_and_texts_of_hugging_face(
    hf: ModuleType, folders: dict[str, Path], kind: str, name: str
) -> None:
    ours = BytePairTokenizer.read(folders[kind], kind)
    theirs = getattr(hf, name).from_pretrained(folders[kind])
    assert len(ours) == len(theirs)
    assert (ours.end, ours.unk) == ((50256, None) if kind == "gpt2" else (None, 0))
    for text in vocabularies.TEXTS:
        ids = theirs(text)["input_ids"]
        assert ours.encode(text) == ids, text
        assert ours.decode(ids) == theirs.decode(ids)
        assert ours.tokens(ids) == theirs.convert_ids_to_tokens(ids)
        if kind == "gpt2":
            assert ours.decode(ids) == text


def test_a_prefix_space_is_put_where_the_settings_ask_for_it(
    hf: ModuleType, folders: dict[str, Path], tmp_path: Path
) -> None:
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((folders["gpt2"] / name).read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    ours = BytePairTokenizer.read(tmp_path, "gpt2")
    theirs = hf.GPT2Tokenizer.from_pretrained(tmp_path)
    assert ours.encode("the river") == theirs("the river")["input_ids"]
    assert ours.decode(ours.encode("the river")) == " the river"


# --------------------------------------------------------------------------- files


def read(folder: Path, kind: str) -> WordPieceTokenizer | BytePairTokenizer | None:
    if kind == "bert":
        return WordPieceTokenizer.read(folder)
    return BytePairTokenizer.read(folder, kind)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("bert", "BertTokenizer"), ("gpt2", "GPT2Tokenizer"), ("openai-gpt", "OpenAIGPTTokenizer")],
)
def test_what_newer_programs_write_is_the_same_tokenizer(
    hf: ModuleType, folders: dict[str, Path], tmp_path: Path, kind: str, name: str
) -> None:
    getattr(hf, name).from_pretrained(folders[kind]).save_pretrained(tmp_path)
    assert not list(tmp_path.glob("vocab*"))
    plain, new = read(folders[kind], kind), read(tmp_path, kind)
    assert new.names == plain.names
    for text in vocabularies.TEXTS:
        assert new.encode(text) == plain.encode(text)
    other = "gpt2" if kind == "bert" else "bert"
    with pytest.raises(ValueError, match=r"in tokenizer\.json must be"):
        read(tmp_path, other)
    # Beside the old files it must hold the same vocabulary.
    for path in folders[kind].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert read(tmp_path, kind).names == plain.names
    text = (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text(text.replace("filler7", "other7"), encoding="utf-8")
    with pytest.raises(ValueError, match="different vocabularies"):
        read(tmp_path, kind)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "openai-gpt"])
def test_a_folder_without_files_of_a_tokenizer_has_none(tmp_path: Path, kind: str) -> None:
    assert read(tmp_path, kind) is None


BAD = {
    "twice": (lambda f: written(f, [*SMALL, "cat"]), "bert", "'cat' twice, as 7 and 11"),
    "no mask": (lambda f: written(f, SMALL[:5]), "bert", r"lacks the special token \[MASK\]"),
    "no text": (lambda f: (f / "vocab.txt").write_bytes(b"\xff\n"), "bert", r"vocab\.txt is no"),
    "settings": (lambda f: written(f, SMALL) and (f / "tokenizer_config.json").write_text("[]"),
                 "bert", "tokenizer_config"),
    "settings cut": (
        lambda f: written(f, SMALL) and (f / "tokenizer_config.json").write_text("{"),
        "bert", r"tokenizer_config\.json is no JSON"),
    "no parts": (lambda f: (f / "tokenizer.json").write_text("{}"), "bert", "parts of a tokenizer"),
    "no merges": (lambda f: (f / "vocab.json").write_text("{}"), "gpt2", r"only vocab\.json"),
    "a list": (lambda f: pairs(f, "[]", ""), "gpt2", "from token to id"),
    "a hole": (lambda f: pairs(f, '{"a": 0, "b": 2}', ""), "gpt2", "0 to 1, each once"),
    "one id twice": (lambda f: pairs(f, '{"a": 0, "b": 0}', ""), "gpt2", "each once"),
    "no end": (lambda f: pairs(f, '{"a": 0}', ""), "gpt2", r"special token <\|endoftext\|>"),
    "no unk": (lambda f: pairs(f, '{"a": 0}', ""), "openai-gpt", "special token <unk>"),
    "three": (lambda f: pairs(f, '{"<unk>": 0}', "a b c\n"), "openai-gpt", "two tokens"),
    "foreign": (lambda f: pairs(f, '{"<unk>": 0, "a": 1, "b": 2}', "#version: 0.2\na b\n"),
                "openai-gpt", "a b needs the unknown token ab"),
}  # fmt: skip


def pairs(folder: Path, vocabulary: str, merges: str) -> None:
    (folder / "vocab.json").write_text(vocabulary)
    (folder / "merges.txt").write_text(merges)


@pytest.mark.parametrize("case", BAD)
def test_damaged_and_incomplete_files_are_refused(tmp_path: Path, case: str) -> None:
    write: Callable[[Path], object]
    write, kind, words = BAD[case]
    write(tmp_path)
    with pytest.raises(ValueError, match=words):
        read(tmp_path, kind)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="'bloom'"):
        BytePairTokenizer(["a"], [], "bloom")
