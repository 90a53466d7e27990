"""Translation pairs that every reader already has, exactly right and unlimited in number.

The Unicode CLDR says how each language writes dates, times, quantities, prices, names of countries
and languages, and lists; Babel carries this data. The same date written in two locales is a
translation pair: «March 5, 2021» is «5. März 2021» in German and «2021年3月5日» in Chinese. Word
order, plurals and cases differ as they really do, and for many tokens the true alignment is known.

    pairs = make_pairs(1000, "en", "de", length=3, seed=0)
    parts = splits(5000, "en", "zh", length=(1, 6))
    source = Vocabulary.build([p.source_tokens for p in parts.train])

Everything is drawn from `random.Random(seed)`: the same seed gives the same pairs on every machine
with the same version of Babel. Non-breaking spaces are written as ordinary spaces.
"""

from __future__ import annotations

import datetime
import functools
import random
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

import torch
from babel import Locale, UnknownLocaleError, dates, lists, numbers, units
from torch import Tensor

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ["<pad>", "<bos>", "<eos>", "<unk>"]

SPACE = "␣"  # a token: a space where `detokenize` would set none
TIGHT = "‿"  # at the end of a token: no space where `detokenize` would set one

# --------------------------------------------------------------------------- pairs


@dataclass(frozen=True)
class Pair:
    """A sentence and its translation.

    source, target: the two texts.
    kind: the kind of its items (see `kinds`); "mixed" if they are of several kinds.
    locales: the locales of source and target.
    alignment: for each token of the target the index of the source token that it renders: digit
        for digit, month for month, name for name. Of several source tokens that one target token
        renders (12月 as «December») it is the first. -1 where there is none (punctuation, 年) or
        where it is not known exactly (of two words by two words). None if it was not asked for.
    """

    source: str
    target: str
    kind: str
    locales: tuple[str, str] = ("en", "de")
    alignment: tuple[int, ...] | None = None

    @property
    def source_tokens(self) -> list[str]:
        """The tokens of the source."""
        return tokenize(self.source, self.locales[0])

    @property
    def target_tokens(self) -> list[str]:
        """The tokens of the target."""
        return tokenize(self.target, self.locales[1])


@dataclass(frozen=True)
class Splits:
    """Three lists of pairs; no source sentence occurs twice, in one list or in two."""

    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]


# A text in pieces: (component, text). Equal components of the two sides mean the same thing;
# a piece with the component "" belongs to its language only (a comma, «and», 年).
_Pieces = list[tuple[str, str]]
_Render = Callable[[Locale], _Pieces]

_UNITS = (
    "length-kilometer", "length-meter", "length-centimeter", "length-mile", "area-square-meter",
    "area-square-kilometer", "volume-liter", "mass-kilogram", "mass-gram", "duration-second",
    "duration-minute", "duration-hour", "duration-day", "duration-week", "duration-month",
    "duration-year", "speed-kilometer-per-hour", "temperature-celsius", "digital-megabyte",
    "digital-gigabyte", "power-watt", "energy-kilowatt-hour", "frequency-hertz",
)  # fmt: skip
_CURRENCIES = (
    "AUD", "BRL", "CAD", "CHF", "CNY", "CZK", "DKK", "EUR", "GBP", "HUF", "INR", "JPY", "KRW",
    "MXN", "NOK", "NZD", "PLN", "SEK", "SGD", "TRY", "USD", "ZAR",
)  # fmt: skip
_NO_COUNTRIES = {"AC", "CP", "CQ", "DG", "EA", "EU", "EZ", "IC", "QO", "TA", "UN", "XA", "XB", "ZZ"}
_SPANS = (  # seconds, smallest and largest count that Babel writes in this unit
    (60, 2, 40), (3600, 2, 18), (86400, 2, 5), (7 * 86400, 2, 3), (30 * 86400, 2, 9),
    (365 * 86400, 2, 60),
)  # fmt: skip


def kinds() -> tuple[str, ...]:
    """The kinds of items that `make_pairs` can draw."""
    return tuple(_DRAW)


def make_pairs(
    count: int,
    source: str = "en",
    target: str = "de",
    *,
    length: int | tuple[int, int] = 1,
    kinds: Sequence[str] | None = None,
    seed: int = 0,
    with_alignment: bool = False,
) -> list[Pair]:
    """Random translation pairs. They may repeat; for disjoint parts use `splits`.

    Args:
        count: how many.
        source, target: any locales of Babel, such as "en", "de", "fr", "zh", "ja" or "pt_BR".
        length: how many items are joined into one sentence by the language's list pattern
            («a, b, and c»), or (smallest, largest) to draw this number for each sentence. In
            English an item has 6 tokens on average: 1 item about 5, 10 items about 60.
        kinds: which kinds of items (see `kinds()`); None for all that both locales have.
        seed: the same seed gives the same pairs.
        with_alignment: whether to say which source token each target token renders.

    Raises:
        ValueError: an unknown locale or kind, a kind that CLDR does not have for one of the
            locales, count below 0 or length below 1.
    """
    if count < 0:
        raise ValueError(f"count must be 0 or more, not {count}")
    draw = _drawer(source, target, length, kinds, random.Random(seed), with_alignment)
    return [draw() for _ in range(count)]


def splits(
    count: int,
    source: str = "en",
    target: str = "de",
    *,
    length: int | tuple[int, int] = 1,
    kinds: Sequence[str] | None = None,
    seed: int = 0,
    shares: tuple[float, float, float] = (0.8, 0.1, 0.1),
    with_alignment: bool = False,
) -> Splits:
    """`count` pairs with different source sentences, divided into three lists by `shares`.

    Raises:
        ValueError: as `make_pairs`; shares that are not three numbers from 0 on with the sum 1;
            or more pairs than there are different sentences of these kinds.
    """
    if len(shares) != 3 or min(shares) < 0 or abs(sum(shares) - 1) > 1e-9:
        raise ValueError(f"shares must be three numbers from 0 on with the sum 1, not {shares}")
    if count < 0:
        raise ValueError(f"count must be 0 or more, not {count}")
    draw = _drawer(source, target, length, kinds, random.Random(seed), with_alignment)
    different: dict[str, Pair] = {}
    misses = 0
    while len(different) < count:
        pair = draw()
        misses = misses + 1 if pair.source in different else 0
        different.setdefault(pair.source, pair)
        if misses > 1000:
            raise ValueError(
                f"there are only about {len(different)} different sentences of these kinds and "
                f"this length, not {count}; ask for fewer, for more kinds or a larger length"
            )
    pairs = list(different.values())
    first, second = round(count * shares[0]), round(count * (shares[0] + shares[1]))
    return Splits(pairs[:first], pairs[first:second], pairs[second:])


def _drawer(
    source: str,
    target: str,
    length: int | tuple[int, int],
    wanted: Sequence[str] | None,
    rng: random.Random,
    with_alignment: bool,
) -> Callable[[], Pair]:
    """A function that draws one pair after the other."""
    shortest, longest = (length, length) if isinstance(length, int) else length
    if not 1 <= shortest <= longest:
        raise ValueError(f"length must be 1 or more, or (smallest, largest), not {length}")
    here, there = _locale(source), _locale(target)
    names = _choose(wanted, here, there)

    def draw() -> Pair:
        items = rng.randint(shortest, longest)
        drawn = [rng.choice(names) for _ in range(items)]
        renders = [_DRAW[name](rng, here, there, items == 1) for name in drawn]
        kind = drawn[0] if len(set(drawn)) == 1 else "mixed"
        sides = []
        for locale in (here, there):
            parts = [render(locale) for render in renders]
            sides.append(parts[0] if items == 1 else _join(parts, locale, "standard"))
        left, right = (_text(side) for side in sides)
        alignment = None
        if with_alignment:
            alignment = _align(sides[0], str(here), sides[1], str(there))
        return Pair(left, right, kind, (str(here), str(there)), alignment)

    return draw


def _locale(name: str) -> Locale:
    try:
        return Locale.parse(str(name).replace("-", "_"))
    except (UnknownLocaleError, ValueError, TypeError):
        raise ValueError(
            f"unknown locale {name!r}: use a language such as 'en', 'de', 'fr', 'zh' or 'ja', with "
            "a script or country where it matters, such as 'zh_Hant' or 'pt_BR'"
        ) from None


def _choose(wanted: Sequence[str] | None, here: Locale, there: Locale) -> list[str]:
    """The kinds to draw from: those asked for, or all that both locales have."""
    if wanted is None:
        names = [name for name in _DRAW if _has(name, here, there)]
        if not names:
            raise ValueError(f"CLDR has too little data to translate {here} into {there}")
        return names
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    if not names:
        raise ValueError(f"kinds must name at least one of {', '.join(_DRAW)}")
    for name in names:
        if name not in _DRAW:
            raise ValueError(f"unknown kind {name!r}; the kinds are {', '.join(_DRAW)}")
        if not _has(name, here, there):
            raise ValueError(f"CLDR has no {name!r} for both {here} and {there}; leave it out")
    return names


def _has(kind: str, here: Locale, there: Locale) -> bool:
    """Whether items of this kind can be written in both locales."""
    try:
        rng = random.Random(0)
        for locale in (here, there):
            _text(_DRAW[kind](rng, here, there, True)(locale))
    except (KeyError, IndexError, ValueError, AttributeError, TypeError):
        return False  # Babel has no common error for data that a locale lacks
    return True


def _plain(text: str) -> str:
    return text.replace("\u00a0", " ").replace("\u202f", " ")


def _text(pieces: _Pieces) -> str:
    return "".join(text for _, text in pieces)


# --------------------------------------------------------------------------- kinds of items


def _pattern(pattern: str, moment: datetime.date | datetime.time, locale: Locale) -> _Pieces:
    """A date or time by a CLDR pattern, one piece for each field."""
    fields = dates.DateTimeFormat(moment, locale)
    pieces = []
    for what, value in dates.tokenize_pattern(pattern):
        if what == "chars":
            pieces.append(("", _plain(value)))
        else:
            letter, width = value
            name = {"L": "M", "c": "E", "e": "E", "H": "h", "k": "h", "K": "h"}.get(letter, letter)
            pieces.append((name, _plain(fields[letter * width])))
    return pieces


def _form(rng: random.Random, what: str, here: Locale, first: str, second: str) -> str:
    """One of two formats, or the first if the source would not tell them apart."""
    formats = here.date_formats if what == "date" else here.time_formats
    chosen = rng.choice((first, second))
    return first if formats[first].pattern == formats[second].pattern else chosen


def _date(rng: random.Random, here: Locale, there: Locale, alone: bool) -> _Render:
    day = datetime.date(1900, 1, 1) + datetime.timedelta(days=rng.randrange(73049))  # to 2099
    form = _form(rng, "date", here, "long", "full")
    return lambda locale: _pattern(locale.date_formats[form].pattern, day, locale)


def _time(rng: random.Random, here: Locale, there: Locale, alone: bool) -> _Render:
    moment = datetime.time(rng.randrange(24), rng.randrange(60), rng.randrange(60))
    form = _form(rng, "time", here, "short", "medium")
    return lambda locale: _pattern(locale.time_formats[form].pattern, moment, locale)


def _around_number(text: str, number: str, rest: str) -> _Pieces:
    """The text cut at its number; the rest is the component `rest`."""
    text, number = _plain(text), _plain(number)
    if text.count(number) != 1:  # some languages write one and two as words
        return [(rest, text)]
    before, after = text.split(number)
    return [piece for piece in ((rest, before), ("n", number), (rest, after)) if piece[1]]


def _relative(rng: random.Random, here: Locale, there: Locale, alone: bool) -> _Render:
    seconds, least, most = rng.choice(_SPANS)
    count = rng.randint(least, most)
    span = datetime.timedelta(seconds=rng.choice((-1, 1)) * count * seconds)

    def render(locale: Locale) -> _Pieces:
        text = dates.format_timedelta(span, add_direction=True, locale=locale)
        if not text:
            raise ValueError("no relative time in this locale")
        return _around_number(text, numbers.format_decimal(count, locale=locale), "words")

    return render


def _amount(rng: random.Random) -> int | Decimal:
    """A number as it stands before a unit: small, large or with a decimal."""
    shape = rng.randrange(4)
    if shape == 0:
        return rng.randint(1, 12)
    if shape == 1:
        return rng.randint(2, 999)
    if shape == 2:
        return rng.randint(1000, 99999)
    return Decimal(10 * rng.randint(1, 99) + rng.randint(1, 9)) / 10


def _unit_width(unit: str, locale: Locale) -> str | None:
    """The width "long", or "short" where CLDR has no longer form; None if it has neither."""
    forms = locale.unit_display_names  # (loads the locale)
    patterns = locale._data["unit_patterns"].get(unit, {})
    for width in ("long", "short"):
        if unit in forms and "other" in patterns.get(width, {}):
            return width
    return None


@functools.cache
def _units(here: Locale, there: Locale) -> list[str]:
    return [u for u in _UNITS if _unit_width(u, here) and _unit_width(u, there)]


def _quantity(rng: random.Random, here: Locale, there: Locale, alone: bool) -> _Render:
    unit, amount = rng.choice(_units(here, there)), _amount(rng)

    def render(locale: Locale) -> _Pieces:
        text = units.format_unit(amount, unit, _unit_width(unit, locale), locale=locale)
        return _around_number(text, numbers.format_decimal(amount, locale=locale), "unit")

    return render


@functools.cache
def _currencies(here: Locale, there: Locale) -> list[str]:
    return [c for c in _CURRENCIES if c in here.currencies and c in there.currencies]


def _currency(rng: random.Random, here: Locale, there: Locale, alone: bool) -> _Render:
    code = rng.choice(_currencies(here, there))
    digits = min(numbers.get_currency_precision(code), 2)
    whole = rng.randint(1, 10 ** rng.randint(1, 5))
    amount = Decimal(whole) + Decimal(rng.randrange(10**digits)) / 10**digits

    def render(locale: Locale) -> _Pieces:
        text = numbers.format_currency(amount, code, locale=locale, format_type="name")
        number = locale.decimal_formats[None].apply(amount, locale, force_frac=(digits, digits))
        return _around_number(text, number, "unit")

    return render


def _percent(rng: random.Random, here: Locale, there: Locale, alone: bool) -> _Render:
    share = Decimal(rng.randint(1, 1000)) / 1000
    # one decimal where there is one: 12.5%, but 12%
    decimals = 0 if (share * 100) % 1 == 0 else 1

    def render(locale: Locale) -> _Pieces:
        pattern = locale.percent_formats[None]
        text = pattern.apply(share, locale, force_frac=(decimals, decimals))
        number = locale.decimal_formats[None].apply(
            share * 100, locale, force_frac=(decimals, decimals)
        )
        return _around_number(text, number, "unit")

    return render


@functools.cache
def _names(here: Locale, there: Locale, what: str) -> list[str]:
    """Codes of the countries or languages whose names stand for nothing else in both locales.

    English calls a country and its language Nauru: which is meant could not be translated.
    """
    codes, counts = {}, []
    for table in ("territories", "languages"):
        shared = sorted(set(getattr(here, table)) & set(getattr(there, table)))
        two_letters = [code for code in shared if len(code) == 2 and code.isalpha()]
        codes[table] = [c for c in two_letters if table == "languages" or c not in _NO_COUNTRIES]
    for locale in (here, there):
        names = [getattr(locale, t)[code] for t, chosen in codes.items() for code in chosen]
        counts.append(Counter(_plain(name).casefold() for name in names))
    return [
        code
        for code in codes[what]
        if all(
            count[_plain(getattr(locale, what)[code]).casefold()] == 1
            for locale, count in zip((here, there), counts, strict=True)
        )
    ]


def _country(rng: random.Random, here: Locale, there: Locale, alone: bool) -> _Render:
    code = rng.choice(_names(here, there, "territories"))
    return lambda locale: [("name", _plain(locale.territories[code]))]


def _language(rng: random.Random, here: Locale, there: Locale, alone: bool) -> _Render:
    code = rng.choice(_names(here, there, "languages"))
    return lambda locale: [("name", _plain(locale.languages[code]))]


def _list(rng: random.Random, here: Locale, there: Locale, alone: bool) -> _Render:
    # Inside a longer list only «a or b»: with three members one could not tell where it begins.
    count = rng.randint(2, 5) if alone else 2
    codes = rng.sample(_names(here, there, "territories"), count)

    def render(locale: Locale) -> _Pieces:
        return _join([[("name", _plain(locale.territories[c]))] for c in codes], locale, "or")

    return render


_DRAW: dict[str, Callable[[random.Random, Locale, Locale, bool], _Render]] = {
    "date": _date,
    "time": _time,
    "relative": _relative,
    "quantity": _quantity,
    "currency": _currency,
    "percent": _percent,
    "country": _country,
    "language": _language,
    "list": _list,
}


def _join(parts: list[_Pieces], locale: Locale, style: str) -> _Pieces:
    """Items joined by the list pattern of the locale; components get the item's number."""
    marks = [chr(0xE000 + i) for i in range(len(parts))]  # private use: in no text of CLDR
    joined = _plain(lists.format_list(marks, style=style, locale=locale))
    pieces: _Pieces = []
    literal = ""
    for letter in joined:
        if letter not in marks:
            literal += letter
            continue
        part = parts[ord(letter) - 0xE000]
        pieces.append(("", _before(literal, _text(part), locale.language)))
        pieces += [(f"{letter}{name}" if name else "", text) for name, text in part]
        literal = ""
    pieces.append(("", literal))
    return [piece for piece in pieces if piece[1]]


def _before(literal: str, following: str, language: str) -> str:
    """The words between two list items where they depend on what follows.

    Spanish «y» and «o» turn into «e» and «u» before the same sound; a Hebrew «and» is tied to
    digits and foreign letters by a hyphen. CLDR's patterns leave both to the program.
    """
    sound = unicodedata.normalize("NFD", following.lower())
    if language == "es":
        if literal == " y " and sound.startswith(("i", "hi")) and sound[:3] not in ("hia", "hie"):
            return " e "
        if literal == " o " and sound.startswith(("o", "ho", "8")):
            return " u "
        if literal == " o " and sound.startswith("11") and not sound[2:3].isdigit():
            return " u "
    if language == "he" and literal.endswith("ו") and not "א" <= following[:1] <= "ת":
        return literal + "-"
    return literal


# --------------------------------------------------------------------------- alignment


def _align(left: _Pieces, here: str, right: _Pieces, there: str) -> tuple[int, ...]:
    """For each token of the target the source token that it renders, or -1."""
    source = _components(left, here)
    target = _components(right, there)
    where: dict[str, list[int]] = {}
    for index, (name, token) in enumerate(source):
        if name and _says_something(token):
            where.setdefault(name, []).append(index)
    aligned = []
    for index, (name, token) in enumerate(target):
        places = where.get(name, [])
        if not places and name.endswith("a"):  # PM, where the source counts 24 hours
            places = where.get(name[:-1] + "h", [])
        if not places or not _says_something(token):
            aligned.append(-1)
            continue
        mine = [i for i, (n, t) in enumerate(target) if n == name and _says_something(t)]
        digits = [p for p in places if source[p][1].isdigit()]
        same = [i for i in mine if target[i][1].isdigit()]
        if digits and [target[i][1] for i in same] == [source[p][1] for p in digits]:
            aligned.append(digits[same.index(index)] if index in same else -1)
        elif len(places) == 1 or len(mine) == 1 or len(digits) == len(places):
            aligned.append(places[0])  # one word for several; 3 PM for 15: the first of them
        else:
            aligned.append(-1)  # several words for several: which renders which is not known
    return tuple(aligned)


def _says_something(token: str) -> bool:
    """Whether a token is a word or a digit, no punctuation and no space."""
    return any(letter.isalnum() for letter in token)


def _components(pieces: _Pieces, locale: str) -> list[tuple[str, str]]:
    """Each token of the text with the component in which it begins."""
    starts = []
    for name, text in pieces:
        starts += [name] * len(text)
    result = []
    for begin, token in _tokens_at(_text(pieces), locale):
        result.append((starts[begin], token))
    return result


# --------------------------------------------------------------------------- tokens


_UNSPACED = {"zh", "yue", "ja", "th", "lo", "km", "my", "bo", "dz"}
_NO_SPACE_BEFORE = set(",.;:!?%)]}’'-/°،؛、。·᠂")
_NO_SPACE_AFTER = set("([{’'-/·\u200f\u200e\u061c")
_INSIDE_NUMBERS = set(".:/-’'")  # between digits these set no space; a comma does


def tokenize(text: str, locale: str) -> list[str]:
    """The tokens of a text: words, digits one by one, punctuation marks.

    In languages without spaces each character is a token. Spaces are not tokens: `detokenize` sets
    them by rule. Where the text differs from the rule, a token says so: `SPACE` stands for a space
    that the rule does not set, and a token that ends in `TIGHT` has none after it (the comma in
    «1,234» is «,‿», the one in «March 5, 2021» is «,»).

    Raises:
        ValueError: the text contains one of these two signs, or the locale is unknown.
    """
    return [token for _, token in _tokens_at(text, locale)]


def detokenize(tokens: Iterable[str], locale: str) -> str:
    """The text of tokens: the inverse of `tokenize`."""
    language = _language_of(locale)
    text = ""
    before: str | None = None  # None: no space may follow
    for token in tokens:
        if token == SPACE:
            text, before = text + " ", None
            continue
        word = token.removesuffix(TIGHT)
        if before is not None and _spaced(before, word, language):
            text += " "
        text += word
        before = None if token.endswith(TIGHT) else word
    return text


def _tokens_at(text: str, locale: str) -> list[tuple[int, str]]:
    """Each token with the place in the text where it begins."""
    if SPACE in text or TIGHT in text:
        raise ValueError(f"the signs {SPACE} and {TIGHT} mark spaces here; take them out: {text!r}")
    language = _language_of(locale)
    words: list[tuple[int, str]] = []  # with the spaces
    for index, letter in enumerate(text):
        if words and _continues(words[-1][1], letter, language):
            words[-1] = (words[-1][0], words[-1][1] + letter)
        else:
            words.append((index, letter))
    tokens: list[tuple[int, str]] = []
    before: str | None = None
    spaces: list[int] = []
    for index, word in words:
        if word == " ":
            spaces.append(index)
            continue
        rule = before is not None and _spaced(before, word, language)
        if rule and not spaces:
            tokens[-1] = (tokens[-1][0], tokens[-1][1] + TIGHT)
        elif rule and len(spaces) == 1:
            pass
        else:
            tokens += [(place, SPACE) for place in spaces]
        tokens.append((index, word))
        before, spaces = word, []
    tokens += [(place, SPACE) for place in spaces]
    return tokens


@functools.cache
def _language_of(locale: str) -> str:
    return _locale(locale).language


def _is_letter(letter: str) -> bool:
    return unicodedata.category(letter)[0] in "LM" or letter in "\u200c\u200d"


def _continues(word: str, letter: str, language: str) -> bool:
    """Whether a letter belongs to the word before it."""
    if not (_is_letter(word[-1]) and _is_letter(letter)):
        return False
    if unicodedata.category(letter)[0] == "M" or letter in "\u200c\u200d":
        return True
    return language not in _UNSPACED or (letter < "\u0530" and word[-1] < "\u0530")


def _spaced(before: str, after: str, language: str) -> bool:
    """Whether the rule sets a space between two tokens."""
    if language in _UNSPACED or not after:
        return False
    left, right = before[-1], after[0]
    digits = left.isdigit(), right.isdigit()
    if all(digits) or right in _NO_SPACE_BEFORE or left in _NO_SPACE_AFTER:
        return False
    if language == "ko" and digits[0] and _is_letter(right):
        return False
    return not (left in _INSIDE_NUMBERS and digits[1])


# --------------------------------------------------------------------------- ids


class Vocabulary:
    """Tokens and their ids; the first four are `SPECIALS`.

    Attributes:
        words: id to token.
        index: token to id.
    """

    def __init__(self, words: Sequence[str]) -> None:
        """Raises ValueError if the words do not begin with the specials, or repeat."""
        self.words = list(words)
        if self.words[: len(SPECIALS)] != SPECIALS:
            raise ValueError(f"a vocabulary begins with {SPECIALS}, not with {self.words[:4]}")
        self.index = {word: i for i, word in enumerate(self.words)}
        if len(self.index) != len(self.words):
            raise ValueError("a word occurs twice in the vocabulary")

    @classmethod
    def build(
        cls, sentences: Iterable[Sequence[str]], min_count: int = 1, max_size: int | None = None
    ) -> Vocabulary:
        """The tokens that occur at least `min_count` times, most frequent first.

        Ties are in the order of code points; `max_size` counts the specials.

        Raises:
            ValueError: min_count below 1, max_size below 4, no sentences.
        """
        if min_count < 1:
            raise ValueError(f"min_count must be 1 or more, not {min_count}")
        if max_size is not None and max_size < len(SPECIALS):
            raise ValueError(f"max_size must be {len(SPECIALS)} or more, not {max_size}")
        counts: Counter[str] = Counter()
        sentence = None
        for sentence in sentences:
            counts.update(sentence)
        if sentence is None:
            raise ValueError("a vocabulary needs at least one sentence")
        words = [w for w, n in counts.items() if n >= min_count and w not in SPECIALS]
        words.sort(key=lambda word: (-counts[word], word))
        return cls([*SPECIALS, *words][:max_size])

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self.index

    def encode(
        self, tokens: Iterable[str], add_bos: bool = False, add_eos: bool = False
    ) -> list[int]:
        """The ids of tokens; `UNK` for those that are not in the vocabulary."""
        ids = [self.index.get(token, UNK) for token in tokens]
        return [BOS] * add_bos + ids + [EOS] * add_eos

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The tokens of ids up to the first `EOS`, without `PAD` and `BOS`.

        Args:
            ids: a list or a tensor (T,).

        Raises:
            ValueError: an id outside the vocabulary.
        """
        tokens = []
        for i in map(int, ids):
            if i == EOS:
                break
            if not 0 <= i < len(self.words):
                raise ValueError(f"id {i} is outside the vocabulary of {len(self.words)} words")
            if i not in (PAD, BOS):
                tokens.append(self.words[i])
        return tokens


@dataclass(frozen=True)
class Batch:
    """Padded ids of B pairs.

    source: (B, S) int64.
    source_mask: (B, S) bool, True at real tokens.
    target_in: (B, U) int64, begins with `BOS`.
    target_out: (B, U) int64, the same moved by one: ends with `EOS`, then padding.
    """

    source: Tensor
    source_mask: Tensor
    target_in: Tensor
    target_out: Tensor

    @property
    def target_mask(self) -> Tensor:
        """(B, U) bool, True at real tokens of `target_out`."""
        return self.target_out != PAD

    @property
    def tokens(self) -> int:
        """Real tokens of `target_out`: what the loss is averaged over."""
        return int(self.target_mask.sum())

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        parts = (self.source, self.source_mask, self.target_in, self.target_out)
        return Batch(*(part.to(device) for part in parts))


def collate(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Batch:
    """A batch from lists of ids without start and end.

    Raises:
        ValueError: no rows, or not as many targets as sources.
    """
    if not sources or len(sources) != len(targets):
        raise ValueError(f"{len(sources)} sources and {len(targets)} targets are not one batch")
    source = _padded(sources)  # (B, S)
    real = torch.tensor([len(row) for row in sources])  # (B,)
    mask = torch.arange(source.shape[1]) < real[:, None]  # (B, S)
    target_in = _padded([[BOS, *row] for row in targets])  # (B, U)
    target_out = _padded([[*row, EOS] for row in targets])  # (B, U)
    return Batch(source, mask, target_in, target_out)


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows], dtype=torch.int64)


def batches(
    pairs: Sequence[Pair],
    source_vocabulary: Vocabulary,
    target_vocabulary: Vocabulary,
    batch_size: int,
    generator: torch.Generator | None = None,
    *,
    forever: bool = False,
) -> Iterator[Batch]:
    """The pairs as padded batches; the last batch of a pass may be smaller.

    Args:
        generator: draws a new order for every pass; None for the order of the list.
        forever: begin again after each pass instead of ending.

    Raises:
        ValueError: batch_size below 1, or no pairs.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be 1 or more, not {batch_size}")
    if not pairs:
        raise ValueError("there are no pairs to make batches of")
    sources = [source_vocabulary.encode(pair.source_tokens) for pair in pairs]
    targets = [target_vocabulary.encode(pair.target_tokens) for pair in pairs]

    def passes() -> Iterator[Batch]:
        while True:
            order = list(range(len(pairs)))
            if generator is not None:
                order = torch.randperm(len(pairs), generator=generator).tolist()
            for begin in range(0, len(order), batch_size):
                rows = order[begin : begin + batch_size]
                yield collate([sources[i] for i in rows], [targets[i] for i in rows])
            if not forever:
                return

    return passes()
