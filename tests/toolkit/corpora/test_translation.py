"""Pairs are right, tokens lose nothing, alignments are true, splits are disjoint."""

from __future__ import annotations

import datetime
import itertools
import random
import re
import subprocess
import sys

import pytest
import torch
from babel import dates
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.corpora import translation as tr
from toolkit.corpora.translation import Pair, Vocabulary, detokenize, make_pairs, splits, tokenize

LOCALES = ("en", "de", "fr", "zh", "ja", "es", "ru", "ko", "ar", "he", "hi", "th", "pt_BR", "de_CH")


def one(kind: str, source: str, target: str, seed: int, **more) -> Pair:
    return make_pairs(1, source, target, kinds=[kind], seed=seed, **more)[0]


def aligned(pair: Pair) -> list[tuple[str, str | None]]:
    """Target tokens with the source tokens they are aligned to."""
    assert pair.alignment is not None
    assert len(pair.alignment) == len(pair.target_tokens)
    places = [None if i < 0 else pair.source_tokens[i] for i in pair.alignment]
    return list(zip(pair.target_tokens, places, strict=True))


# --------------------------------------------------------------------------- pairs


@pytest.mark.parametrize("target", ["de", "fr", "zh", "ja"])
def test_dates_are_those_that_babel_writes(target: str) -> None:
    """The English text says which day it is; Babel writes that day by its own function."""
    months = [dates.get_month_names(locale="en")[i] for i in range(1, 13)]
    for pair in make_pairs(200, "en", target, kinds=["date"], seed=1):
        month, day, year = re.search(r"(\w+) (\d+), (\d+)$", pair.source).groups()
        moment = datetime.date(int(year), months.index(month) + 1, int(day))
        form = "full" if pair.source.count(",") == 2 else "long"
        assert pair.source == dates.format_date(moment, form, locale="en")
        assert pair.target == dates.format_date(moment, form, locale=target)


def test_every_kind_is_what_the_languages_write() -> None:
    def found(kind: str, text: str, target: str) -> set[str]:
        pairs = make_pairs(3000, "en", target, kinds=[kind], seed=2)
        return {pair.target for pair in pairs if pair.source == text}

    assert found("relative", "3 days ago", "de") == {"vor 3 Tagen"}
    assert found("relative", "in 3 days", "zh") == {"3天后"}
    assert found("quantity", "1 hour", "fr") == {"1 heure"}
    assert found("quantity", "5 hours", "fr") == {"5 heures"}
    assert found("quantity", "3 square meters", "zh") == {"3平方米"}
    assert found("country", "Germany", "ja") == {"ドイツ"}
    assert found("language", "German", "es") == {"alemán"}
    assert found("percent", "50%", "fr") == {"50 %"}


@pytest.mark.parametrize("locale", LOCALES)
def test_no_unit_shows_its_identifier(locale: str) -> None:
    """Babel writes «12 length-kilometer» where a locale has no long form of its own."""
    for pair in make_pairs(500, "en", locale, kinds=["quantity"], seed=3):
        assert not re.search(r"(length|area|volume|mass|duration|speed|digital)-", pair.target)


def test_numbers_and_times_follow_the_locale() -> None:
    for pair in make_pairs(300, "en", "de", kinds=["currency", "time"], seed=4):
        if pair.kind == "time":
            hour, rest, half = re.fullmatch(r"(\d+)(:[\d:]+) ([AP]M)", pair.source).groups()
            expected = int(hour) % 12 + 12 * (half == "PM")
            assert pair.target == f"{expected:02}{rest}"
        else:
            number = pair.source.split()[0]
            assert pair.target.split()[0] == number.translate(str.maketrans(",.", ".,"))


@pytest.mark.parametrize(("source", "target"), [("en", "de"), ("zh", "en"), ("fr", "ja")])
def test_a_sentence_has_one_translation(source: str, target: str) -> None:
    """Otherwise no model could be right."""
    known: dict[str, str] = {}
    for length in (1, 2, 3):
        for pair in make_pairs(1500, source, target, length=length, seed=length):
            assert known.setdefault(pair.source, pair.target) == pair.target


def test_a_name_of_two_things_is_not_asked_for() -> None:
    """English calls a country and a language Nauru."""
    for pair in make_pairs(4000, "en", "de", kinds=["country", "language"], seed=5):
        assert pair.source != "Nauru"


def test_spanish_and_hebrew_connectives_depend_on_what_follows() -> None:
    pairs = make_pairs(3000, "en", "es", kinds=["country", "list"], length=2, seed=6)
    texts = [pair.target for pair in pairs]
    assert any(" e Italia" in text for text in texts)
    assert not any(re.search(r" y (I|Í|Hi)(?!a|e)", text) for text in texts)
    assert any(" u Omán" in text for text in texts)
    assert not any(" o Omán" in text for text in texts)
    hebrew = make_pairs(500, "en", "he", kinds=["quantity"], length=2, seed=7)
    assert all(re.search(r" ו-\d| ו[א-ת]", pair.target) for pair in hebrew)


def test_the_source_length_is_swept_by_the_number_of_items() -> None:
    means = []
    for length in range(1, 12):
        pairs = make_pairs(100, length=length, seed=8)
        means.append(sum(len(pair.source_tokens) for pair in pairs) / 100)
    assert all(short + 3 < long for short, long in itertools.pairwise(means))
    assert means[0] < 8
    assert means[-1] > 60


def test_a_range_of_lengths_gives_sentences_of_each() -> None:
    pairs = make_pairs(300, kinds=["country"], length=(1, 3), seed=9)
    assert {pair.source.count(" and ") + pair.source.count(",") for pair in pairs} >= {0, 1, 3}


def test_the_kind_of_a_sentence_is_named() -> None:
    assert set(tr.kinds()) >= {"date", "time", "quantity", "currency", "country", "list"}
    assert {pair.kind for pair in make_pairs(300, seed=10)} == set(tr.kinds())
    assert {pair.kind for pair in make_pairs(50, length=4, kinds=["time"])} == {"time"}
    assert "mixed" in {pair.kind for pair in make_pairs(50, length=4)}


def test_no_sentence_has_non_breaking_spaces() -> None:
    pairs = make_pairs(500, "en", "fr", seed=11)
    assert not any(set("\u00a0\u202f") & set(pair.source + pair.target) for pair in pairs)
    assert any(re.search(r"\d \d{3}", pair.target) for pair in pairs)


def test_the_seed_decides_in_every_process() -> None:
    first = make_pairs(50, "en", "ja", length=2, seed=12)
    assert first == make_pairs(50, "en", "ja", length=2, seed=12)
    assert first != make_pairs(50, "en", "ja", length=2, seed=13)
    program = (
        "from toolkit.corpora.translation import make_pairs;"
        "print(ascii([p.target for p in make_pairs(50, 'en', 'ja', length=2, seed=12)]))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == ascii([pair.target for pair in first])


def test_the_seed_does_not_touch_the_common_generator() -> None:
    random.seed(1)
    expected = random.random()
    random.seed(1)
    make_pairs(5)
    assert random.random() == expected


@pytest.mark.parametrize("locale", ["xx", "", "klingon", "en_us_oops_x", None])
def test_an_unknown_locale_is_named_with_examples(locale: str) -> None:
    with pytest.raises(ValueError, match=r"unknown locale .*'de'"):
        make_pairs(1, "en", locale)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kinds": ["poem"]}, "poem.*date"),
        ({"kinds": []}, "kinds"),
        ({"length": 0}, "length"),
        ({"length": (3, 2)}, "length"),
        ({"count": -1}, "count"),
        ({"target": "gn", "kinds": ["currency"]}, "currency.*gn"),
    ],
)
def test_bad_requests_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_pairs(**{"count": 1, **arguments})


def test_a_kind_that_a_locale_lacks_is_left_out() -> None:
    drawn = {pair.kind for pair in make_pairs(200, "en", "gn", seed=14)}
    assert "currency" not in drawn
    assert "date" in drawn


# --------------------------------------------------------------------------- splits


def test_splits_share_no_source_sentence() -> None:
    parts = splits(1000, "en", "zh", length=(1, 3), seed=15, shares=(0.7, 0.2, 0.1))
    lists = (parts.train, parts.validation, parts.test)
    assert [len(part) for part in lists] == [700, 200, 100]
    assert len({pair.source for part in lists for pair in part}) == 1000


def test_every_split_has_every_kind() -> None:
    parts = splits(1000, seed=16)
    for part in (parts.train, parts.validation, parts.test):
        assert {pair.kind for pair in part} == set(tr.kinds())


def test_too_many_different_sentences_are_refused() -> None:
    with pytest.raises(ValueError, match=r"only about 2.. different sentences"):
        splits(2000, kinds=["country"])


@pytest.mark.parametrize("shares", [(0.5, 0.5, 0.5), (1.2, -0.1, -0.1), (0.5, 0.5)])
def test_shares_that_are_none_are_refused(shares: tuple) -> None:
    with pytest.raises(ValueError, match="shares"):
        splits(10, shares=shares)


# --------------------------------------------------------------------------- alignment


def test_the_alignment_of_a_date_follows_the_change_of_order() -> None:
    german, chinese = (
        next(
            pair
            for pair in make_pairs(500, "en", target, kinds=["date"], seed=17, with_alignment=True)
            if re.fullmatch(r"August \d\d, \d{4}", pair.source)
        )
        for target in ("de", "zh")
    )
    assert german.source == chinese.source
    month, *day, _, y, e, a, r = german.source_tokens
    assert month == "August"
    assert german.target_tokens == [*day, ".", "August", y, e, a, r]
    assert german.alignment == (1, 2, -1, 0, 4, 5, 6, 7)
    assert chinese.target_tokens == [y, e, a, r, "年", "8", "月", *day, "日"]
    assert chinese.alignment == (4, 5, 6, 7, -1, 0, -1, 1, 2, -1)


@pytest.mark.parametrize("target", ["de", "fr", "zh", "ja", "es", "ko", "ar"])
def test_every_digit_of_a_date_is_aligned_to_itself_or_to_the_month(target: str) -> None:
    for pair in make_pairs(200, "en", target, kinds=["date"], seed=18, with_alignment=True):
        months = dates.get_month_names(locale="en").values()
        for token, origin in aligned(pair):
            if token.isdigit():
                assert origin == token or origin in months
        assert len({i for i in pair.alignment if i >= 0}) >= 6  # day, month, four of the year


def test_a_number_is_rendered_by_the_month_it_names() -> None:
    pair = next(
        pair
        for pair in make_pairs(200, "zh", "en", kinds=["date"], seed=19, with_alignment=True)
        if "年12月" in pair.source
    )
    december = dict(aligned(pair))["December"]
    place = pair.alignment[pair.target_tokens.index("December")]
    assert december == "1"
    assert pair.source_tokens[place + 1 : place + 3] == ["2", "月"]


def test_items_keep_their_alignment_in_a_list() -> None:
    for pair in make_pairs(
        100, "en", "zh", kinds=["country", "date"], length=3, seed=20, with_alignment=True
    ):
        origins: list[int] = []
        for token, place in zip(pair.target_tokens, pair.alignment, strict=True):
            if token in "、年":
                assert place == -1
            elif place >= 0:
                origins.append(place)
        assert set(origins) <= set(range(len(pair.source_tokens)))
        for place in {i for i in origins if pair.source_tokens[i].isdigit()}:
            assert pair.target_tokens[pair.alignment.index(place)] == pair.source_tokens[place]


def test_separators_of_numbers_are_aligned_to_nothing() -> None:
    for pair in make_pairs(100, "en", "de", kinds=["quantity"], seed=21, with_alignment=True):
        for token, origin in aligned(pair):
            if token.isdigit():
                assert origin == token
            elif not token[0].isalnum():
                assert origin is None


def test_the_alignment_does_not_change_the_pairs() -> None:
    plain = make_pairs(50, "en", "fr", length=2, seed=22)
    rich = make_pairs(50, "en", "fr", length=2, seed=22, with_alignment=True)
    assert [(p.source, p.target) for p in plain] == [(p.source, p.target) for p in rich]
    assert all(pair.alignment is None for pair in plain)


# --------------------------------------------------------------------------- tokens


@pytest.mark.parametrize("locale", LOCALES)
def test_tokens_of_the_corpus_lose_nothing(locale: str) -> None:
    for length in (1, 4):
        for pair in make_pairs(400, "en", locale, length=length, seed=23):
            assert detokenize(tokenize(pair.source, "en"), "en") == pair.source
            assert detokenize(tokenize(pair.target, locale), locale) == pair.target


@given(
    st.text(
        st.one_of(
            st.sampled_from(list(" ,.:;%()-'’/ab1234€\u00a0\u202f\u200fé年ก้")),
            st.characters(exclude_categories=("Cs",), exclude_characters=tr.SPACE + tr.TIGHT),
        ),
        max_size=40,
    ),
    st.sampled_from(LOCALES),
)
@settings(max_examples=400, deadline=None, derandomize=True)
def test_tokens_of_any_text_lose_nothing(text: str, locale: str) -> None:
    tokens = tokenize(text, locale)
    assert detokenize(tokens, locale) == text
    assert "" not in tokens


def test_tokens_are_words_digits_and_marks() -> None:
    assert tokenize("March 5, 2021", "en") == ["March", "5", ",", "2", "0", "2", "1"]
    assert tokenize("5. März 2021", "de") == ["5", ".", "März", "2", "0", "2", "1"]
    assert tokenize("2021年3月5日", "zh") == list("2021年3月5日")
    assert tokenize("3:07 PM", "en") == ["3", ":", "0", "7", "PM"]
    assert tokenize("Côte d’Ivoire", "fr") == ["Côte", "d", "’", "Ivoire"]
    assert tokenize("हिन्दी", "hi") == ["हिन्दी"]


def test_spaces_against_the_rule_are_marked() -> None:
    assert tokenize("1,234.5 km", "en") == ["1", ",‿", "2", "3", "4", ".", "5", "km"]
    assert tokenize("1 234 km", "fr") == ["1", "␣", "2", "3", "4", "km"]
    assert tokenize("12 キロ", "ja") == ["1", "2", "␣", "キ", "ロ"]
    assert tokenize("3:07\u202fPM", "en") == ["3", ":", "0", "7‿", "\u202f‿", "PM"]


def test_marked_sentences_are_rare() -> None:
    """Spaces are set by rule nearly everywhere, or the sentences would be longer than they are."""
    tokens = [t for p in make_pairs(1000, length=3, seed=24) for t in p.source_tokens]
    assert tokens.count(tr.SPACE) / len(tokens) < 0.02


def test_a_text_with_the_signs_for_spaces_is_refused() -> None:
    with pytest.raises(ValueError, match="␣"):
        tokenize("a␣b", "en")
    with pytest.raises(ValueError, match="unknown locale"):
        tokenize("a", "xx")


# --------------------------------------------------------------------------- ids


def test_a_vocabulary_is_sorted_by_frequency_then_by_code_point() -> None:
    built = Vocabulary.build([["b", "a", "c"], ["b", "a", "<eos>"]])
    assert built.words == ["<pad>", "<bos>", "<eos>", "<unk>", "a", "b", "c"]
    assert Vocabulary.build([["b", "a", "c"], ["b"]], min_count=2).words[4:] == ["b"]
    assert Vocabulary.build([["b", "a", "c"], ["b"]], max_size=6).words[4:] == ["b", "a"]
    assert len(built) == 7
    assert "c" in built
    assert "d" not in built


def test_encoding_and_decoding_are_inverse() -> None:
    built = Vocabulary.build([["a", "b"]])
    ids = built.encode(["b", "a", "z"], add_bos=True, add_eos=True)
    assert ids == [1, 5, 4, 3, 2]
    assert built.decode([*ids, 4, 4]) == ["b", "a", "<unk>"]
    assert built.decode(torch.tensor([1, 5, 0, 4])) == ["b", "a"]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Vocabulary(["a"]),
        lambda: Vocabulary([*tr.SPECIALS, "a", "a"]),
        lambda: Vocabulary.build([]),
        lambda: Vocabulary.build([["a"]], min_count=0),
        lambda: Vocabulary.build([["a"]], max_size=3),
        lambda: Vocabulary(tr.SPECIALS).decode([4]),
        lambda: Vocabulary(tr.SPECIALS).decode([-1]),
    ],
)
def test_a_vocabulary_refuses_what_it_is_not(wrong) -> None:
    with pytest.raises(ValueError, match=r"vocabulary|min_count|max_size"):
        wrong()


@pytest.fixture(scope="module")
def corpus() -> tuple[list[Pair], Vocabulary, Vocabulary]:
    pairs = make_pairs(50, "en", "de", length=(1, 3), seed=25)
    sources = Vocabulary.build([pair.source_tokens for pair in pairs])
    return pairs, sources, Vocabulary.build([pair.target_tokens for pair in pairs])


def test_batches_hold_every_pair_once(corpus: tuple) -> None:
    pairs, sources, targets = corpus
    generator = torch.Generator().manual_seed(0)
    found, sizes = [], []
    for batch in tr.batches(pairs, sources, targets, 16, generator):
        sizes.append(len(batch.source))
        assert torch.equal(batch.source_mask, batch.source != tr.PAD)
        assert torch.equal(batch.target_mask, batch.target_in != tr.PAD)
        assert (batch.target_in[:, 0] == tr.BOS).all()
        assert torch.equal(
            (batch.target_out == tr.EOS).sum(1), torch.ones(len(batch.source)).long()
        )
        assert batch.tokens == int((batch.target_out != 0).sum())
        moved = batch.target_in[:, 1:]
        real = moved != tr.PAD
        assert torch.equal(moved[real], batch.target_out[:, :-1][real])
        for source, target in zip(batch.source, batch.target_out, strict=True):
            found.append(
                (
                    detokenize(sources.decode(source), "en"),
                    detokenize(targets.decode(target), "de"),
                )
            )
    assert sizes == [16, 16, 16, 2]
    assert sorted(found) == sorted((pair.source, pair.target) for pair in pairs)
    assert found != [(pair.source, pair.target) for pair in pairs]


def test_batches_without_a_generator_keep_the_order(corpus: tuple) -> None:
    pairs, sources, targets = corpus
    first = next(tr.batches(pairs, sources, targets, 4))
    texts = [detokenize(sources.decode(row), "en") for row in first.source]
    assert texts == [pair.source for pair in pairs[:4]]
    assert first.to("cpu").source.dtype == torch.int64


def test_endless_batches_begin_again_in_a_new_order(corpus: tuple) -> None:
    pairs, sources, targets = corpus
    stream = tr.batches(pairs, sources, targets, 50, torch.Generator().manual_seed(1), forever=True)
    first, second = next(stream), next(stream)
    assert not torch.equal(first.source, second.source)
    assert torch.equal(first.source.sort(0)[0], second.source.sort(0)[0])


def test_batches_of_nothing_are_refused_at_once(corpus: tuple) -> None:
    pairs, sources, targets = corpus
    with pytest.raises(ValueError, match="no pairs"):
        tr.batches([], sources, targets, 4)
    with pytest.raises(ValueError, match="batch_size"):
        tr.batches(pairs, sources, targets, 0)
    with pytest.raises(ValueError, match="batch"):
        tr.collate([[4]], [])
