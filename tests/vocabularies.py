"""Vocabularies in the layout and with the ids of those that BERT, GPT-1 and GPT-2 were released
with: the same sizes, the same special ids, other words."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

BERT_SIZE, GPT1_SIZE, GPT2_SIZE = 30522, 40478, 50257
SENTENCES = (
    "The capital of France is Paris, and the river that flows through it is the Seine.",
    "A masked language model predicts the words that are missing in a sentence.",
    "Two children play in the garden behind the old house; their dog sleeps.",
    "The committee will publish its report next week, won't it?",
)
TEXTS = (
    *SENTENCES,
    "Déjà vu: the naïve café owner's MENU costs 3.50!",
    "  spaces \t and\nlines\r\n and a zero\u200bwidth  ",
    "東京 is a city, \U0001f642 is none; ﬁne ligatures, İstanbul.",
    "unbelievably-hyphenated_words and e-mail@example.org (v2.0)",
    "the model reads [unused1] and <unk> and <|endoftext|> and </w>",
    "a" * 120,
    "",
)


def write_bert(folder: Path) -> None:
    """vocab.txt: padding is 0, the other special tokens are 100 to 103, all 30,522 ids taken."""
    rules = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    rules.normalizer = normalizers.BertNormalizer(lowercase=True)
    rules.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=300, show_progress=False)
    rules.train_from_iterator(SENTENCES * 4, trainer)
    learned = rules.get_vocab()
    names = ["[PAD]", *(f"[unused{i}]" for i in range(99)), "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    names += [f"[unused{i}]" for i in range(99, 994)]
    names += sorted(learned, key=learned.__getitem__)
    names += [f"filler{i}" for i in range(BERT_SIZE - len(names))]
    (folder / "vocab.txt").write_text("".join(f"{n}\n" for n in names), encoding="utf-8")


def write_gpt(folder: Path, kind: str) -> None:
    """vocab.json and merges.txt: <|endoftext|> is 50256 in GPT-2, <unk> is 0 in GPT-1."""
    if kind == "gpt2":
        rules = Tokenizer(models.BPE())
        rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet, suffix = pre_tokenizers.ByteLevel.alphabet(), ""
    else:
        rules = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
        rules.normalizer = normalizers.BertNormalizer(lowercase=True)
        rules.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        alphabet, suffix = [], "</w>"
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        show_progress=False,
        initial_alphabet=alphabet,
        end_of_word_suffix=suffix,
    )
    rules.train_from_iterator(SENTENCES * 4, trainer)
    rules.model.save(str(folder))
    learned = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    names = sorted(learned, key=learned.__getitem__)
    if kind == "gpt2":
        names += [f"filler{i}" for i in range(GPT2_SIZE - 1 - len(names))] + ["<|endoftext|>"]
    else:
        names = ["<unk>", *names]
        names += [f"filler{i}</w>" for i in range(GPT1_SIZE - len(names))]
    ids = {name: number for number, name in enumerate(names)}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
