"""The stored experiment on [MASK]: its language, its corruption, its file."""

import torch

from toolkit.bert import mask_token_pictures
from toolkit.bert import masking_experiments as masking


def test_the_rule_knows_more_than_the_word_alone() -> None:
    language = masking.Language()
    words, classes = language.sentences(200, torch.Generator().manual_seed(0))
    assert torch.allclose(language.follows.sum(-1), torch.ones(masking.SEEDS, masking.CLASSES))
    assert torch.allclose(language.emits.sum(-1), torch.ones(masking.SEEDS, masking.CLASSES))
    best, alone = ((rule(words) == classes).float().mean() for rule in
                   (language.best_possible, language.by_word))  # fmt: skip
    assert 0.95 < best < 1
    assert 0.6 < alone < 0.75


def test_corruption_has_the_shares_that_were_asked_for() -> None:
    words = torch.randint(masking.WORDS, (5, 2000, 10), generator=torch.Generator().manual_seed(0))
    way = masking.Masking((0.5, 0.3, 0.2), 0.4)
    read, asked = masking.corrupt(words, way, torch.Generator().manual_seed(1))
    assert torch.equal(read[~asked], words[~asked])
    assert abs(asked.float().mean() - 0.4) < 0.01
    assert abs((read[asked] == masking.MASK).float().mean() - 0.5) < 0.01
    kept = 0.2 + 0.3 / masking.WORDS
    assert abs((read[asked] == words[asked]).float().mean() - kept) < 0.01


def test_models_are_independent_of_each_other() -> None:
    torch.manual_seed(0)
    at = masking.fresh(5)
    ids = torch.randint(masking.WORDS, (5, 3, masking.LENGTH))
    before = masking.logits(at, masking.hidden(at, ids))
    at["0.qkv"][2] += 1
    after = masking.logits(at, masking.hidden(at, ids))
    changed = (before != after).flatten(1).any(1)
    assert changed.tolist() == [False, False, True, False, False]


def test_no_stored_learning_rate_was_best_at_an_end() -> None:
    found = masking.read()
    assert {name for name, _ in found} == {masking.NONE, *masking.CONTESTANTS}
    for (_, stage), one in found.items():
        lrs = masking.LRS if stage == "pre-training" else masking.TUNE_LRS.get(stage)
        assert lrs is None or lrs[0] < one.lr < lrs[-1]
    names = {name: name for name in masking.CONTESTANTS}
    mask_token_pictures.compared(found, names, {"best": 0.97})
