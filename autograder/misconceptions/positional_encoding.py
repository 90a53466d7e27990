"""Known mistakes of the chapter `positional_encoding`: the reference with one cell changed.

Each says to the student which mistake it is and what to do. Many stand in circulating notes and
code: i where 2i belongs, p/100 where p belongs, a table indexed by the row of the batch, merges
applied in the order of the text, a word cut up as far as it goes, offsets without the + k.

Within an exercise the order matters only where two mistakes give the same answers to everything
that a test asked: the first is then named.
"""

from __future__ import annotations

from autograder.units.variants import Misconception, Swap, mistakes_in

MISCONCEPTIONS: list[Misconception] = []


# --------------------------------------------------------------------------------------------
# Tokens
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "merge_pair", "pos-tokens")


def _merge(body: str) -> str:
    """A merge_pair with another body."""
    return "def merge_pair(ids: list[int], pair: tuple[int, int], new_id: int) -> list[int]:" + body


add(
    "merge_in_place",
    "Your merge_pair writes into the list that it was given; build a new list and return that.",
    code=_merge(
        """
    position = 0
    while position < len(ids):
        if tuple(ids[position : position + 2]) == pair:
            ids[position : position + 2] = [new_id]
        position += 1
    return ids
"""
    ),
)
add(
    "merge_second_kept",
    "The second id of a merged pair stays behind the new id; the new id replaces both, so move on "
    "by two places after a merge.",
    ("position += 2", "position += 1"),
)
add(
    "merge_overlapping",
    "Occurrences that overlap are both replaced, so aaa becomes two new ids; an id belongs to one "
    "pair only: go on behind the pair that you replaced.",
    code=_merge("""
    starts = [
        place for place in range(len(ids) - 1) if (ids[place], ids[place + 1]) == tuple(pair)
    ]
    merged = []
    for place, value in enumerate(ids):
        if place in starts:
            merged.append(new_id)
        elif place - 1 not in starts:
            merged.append(value)
    return merged
"""),
)
add(
    "merge_from_right",
    "Overlapping occurrences are taken from the right: aaa becomes [a, new]. Go through the list "
    "from left to right.",
    code=_merge("""
    merged = []
    place = len(ids) - 1
    while place >= 0:
        if place > 0 and (ids[place - 1], ids[place]) == tuple(pair):
            merged.insert(0, new_id)
            place -= 2
        else:
            merged.insert(0, ids[place])
            place -= 1
    return merged
"""),
)
add(
    "merge_first_only",
    "Only the first occurrence is replaced; go on to the end of the list.",
    code=_merge("""
    for place in range(len(ids) - 1):
        if (ids[place], ids[place + 1]) == tuple(pair):
            return ids[:place] + [new_id] + ids[place + 2 :]
    return list(ids)
"""),
)
add(
    "merge_either_order",
    "The pair is replaced in the reverse order too; (a, b) and (b, a) are two different pairs.",
    ("== pair", "in (pair, pair[::-1])"),
)
add(
    "merge_last_lost",
    "The last id is lost when it belongs to no pair; a loop over pairs ends one place before the "
    "end, so add what is left.",
    ("while position < len(ids):", "while position < len(ids) - 1:"),
)
add(
    "merge_without_new_id",
    "The pair is taken out, but the new id isn't put in its place.",
    ("merged.append(new_id)", "pass"),
)
add(
    "merge_set",
    "Any neighbours out of the two ids are merged, (a, a) for the pair (a, b) too; compare both "
    "ids with the pair, each in its place.",
    (
        "tuple(ids[position : position + 2]) == pair",
        "len(ids[position : position + 2]) == 2 and set(ids[position : position + 2]) <= set(pair)",
    ),
)
add(
    "merge_of_digits",
    "The ids are joined to a text and replaced there, where the pair (1, 2) is also found inside "
    "11 and 2; compare numbers.",
    code=_merge("""
    text = " ".join(map(str, ids)).replace(f"{pair[0]} {pair[1]}", str(new_id))
    return [int(part) for part in text.split()]
"""),
)
add(
    "merge_again",
    "A new id is merged again at once when it is one of the pair itself; what was used for one "
    "replacement is not there for the next, so go on behind it.",
    (
        "            merged.append(new_id)\n            position += 2",
        "            ids = [*ids[:position], new_id, *ids[position + 2 :]]",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "train_bpe", "pos-bpe")


def _train(body: str) -> str:
    """A train_bpe that refuses negative numbers and goes on with `body`."""
    return f"""
def train_bpe(text: str, num_merges: int) -> list[tuple[int, int]]:
    if num_merges < 0:
        raise ValueError("num_merges must be at least 0")
{body}
"""


BEST = "min(counts.items(), key=lambda item: (-item[1], item[0]))"
add(
    "bpe_across_chunks",
    "Your merges match a text that isn't cut; count pairs within each chunk of chunks(text) only, "
    "so that no token reaches over a border.",
    ("Counter(chunks(text))", "Counter([text])"),
)
add(
    "bpe_spaces_lost",
    "Your merges match text.split(), which throws the spaces away; chunks(text) keeps them, in "
    "front of the word.",
    ("Counter(chunks(text))", "Counter(text.split())"),
)
add(
    "bpe_ties_larger",
    "Among equally frequent pairs you take the larger one; the smaller tuple wins, for example by "
    "min over (-count, pair).",
    (BEST, "max(counts.items(), key=lambda item: (item[1], item[0]))"),
)
add(
    "bpe_ties_first_seen",
    "Among equally frequent pairs you take the one seen first, as max and most_common do; the "
    "smaller tuple wins.",
    (BEST, "counts.most_common(1)[0]"),
)
add(
    "bpe_ties_last_seen",
    "Among equally frequent pairs you take the one seen last; the smaller tuple wins.",
    (BEST, "min(reversed(list(counts.items())), key=lambda item: -item[1])"),
)
add(
    "bpe_chunk_once",
    "You count each different chunk once; a chunk counts as often as it occurs in the text.",
    ("counts[pair] += n", "counts[pair] += 1"),
)
add(
    "bpe_overlaps_once",
    "You count (a, a) in aaa once; every place where the two stand side by side counts, and there "
    "are two.",
    code=_train("""
    words = [list(chunk.encode("utf-8")) for chunk in chunks(text)]
    merges = []
    for new_id in range(256, 256 + num_merges):
        counts = Counter()
        for ids in words:
            place = {}
            for start, pair in enumerate(itertools.pairwise(ids)):
                if place.get(pair, -2) < start - 1:
                    counts[pair] += 1
                    place[pair] = start
        if not counts:
            break
        best, _ = min(counts.items(), key=lambda item: (-item[1], item[0]))
        merges.append(best)
        words = [merge_pair(ids, best, new_id) for ids in words]
    return merges
"""),
)
add(
    "bpe_characters",
    "Your tokens start as characters (ord); this is byte-level BPE, so start from "
    "chunk.encode('utf-8').",
    ('list(chunk.encode("utf-8"))', "[ord(character) for character in chunk]"),
)
add(
    "bpe_stops_at_single_pairs",
    "You stop when no pair occurs twice; training ends only when no pair is left at all or "
    "num_merges is reached.",
    ("if not counts:", "if not counts or max(counts.values()) < 2:"),
)
add(
    "bpe_never_stops",
    "When no pair is left, choosing the most frequent one fails; end the loop there and return "
    "the merges so far.",
    ("if not counts:", "if False:"),
)
add(
    "bpe_counts_once",
    "You count pairs in the raw text only; after every merge the text has changed, so count anew, "
    "with the new id in it.",
    code=_train("""
    counts = Counter()
    for chunk in chunks(text):
        counts.update(itertools.pairwise(chunk.encode("utf-8")))
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [pair for pair, _ in ranked[:num_merges]]
"""),
)
add(
    "bpe_ids_from_257",
    "Your first merge makes the id 257; the bytes end at 255, so it makes 256.",
    ("range(256, 256 + num_merges)", "range(257, 257 + num_merges)"),
)
add(
    "bpe_longest_chunks",
    "You choose the pair that stands in most chunks; count every place where it stands, several "
    "times in one chunk too.",
    ("for pair in itertools.pairwise(ids):", "for pair in set(itertools.pairwise(ids)):"),
)
add(
    "bpe_negative_accepted",
    "A negative num_merges is not refused; raise a ValueError.",
    ("if num_merges < 0:", "if False:"),
)
add(
    "bpe_one_too_many",
    "You learn one merge more than num_merges; the ids run from 256 to 255 + num_merges.",
    ("range(256, 256 + num_merges)", "range(256, 257 + num_merges)"),
)

add = mistakes_in(MISCONCEPTIONS, "bpe_encode", "pos-bpe")


def _encode(body: str) -> str:
    """A bpe_encode with another treatment of a chunk's ids."""
    return f"""
def bpe_encode(text: str, merges: list[tuple[int, int]]) -> list[int]:
    rank = {{pair: number for number, pair in enumerate(merges)}}
    encoded = []
    for chunk in chunks(text):
        ids = list(chunk.encode("utf-8"))
{body}
        encoded += ids
    return encoded
"""


EARLIEST = "min(itertools.pairwise(ids), key=lambda pair: rank.get(pair, math.inf))"
add(
    "encode_text_order",
    "You apply merges in the order of the text; the merge that was learned first goes first, "
    "wherever it stands.",
    (EARLIEST, "next((pair for pair in itertools.pairwise(ids) if pair in rank), None)"),
)
add(
    "encode_latest_first",
    "You apply the merge that was learned last first; begin with the earliest, the smallest rank.",
    (EARLIEST, "max(itertools.pairwise(ids), key=lambda pair: rank.get(pair, -1))"),
)
add(
    "encode_frequent_first",
    "You apply the merge that is most frequent in this text; frequency decides in training only. "
    "Here the order of learning does.",
    (
        EARLIEST,
        "min(Counter(itertools.pairwise(ids)).items(), "
        "key=lambda item: (item[0] not in rank, -item[1]))[0]",
    ),
)
add(
    "encode_across_chunks",
    "You merge across the borders of chunks; cut the text by chunks(text), as in training.",
    ("for chunk in chunks(text):", "for chunk in [text]:"),
)
add(
    "encode_spaces_lost",
    "The white space is lost, as by text.split(); chunks(text) keeps it.",
    ("for chunk in chunks(text):", "for chunk in text.split():"),
)
add(
    "encode_characters",
    "You start from characters (ord); start from the bytes of UTF-8.",
    ('list(chunk.encode("utf-8"))', "[ord(character) for character in chunk]"),
)
add(
    "encode_first_occurrence",
    "Each merge is applied to one occurrence in a chunk only; apply it to all of them.",
    code=_encode("""
        for number, pair in enumerate(merges):
            for place, found in enumerate(itertools.pairwise(ids)):
                if found == pair:
                    ids = ids[:place] + [256 + number] + ids[place + 2 :]
                    break
"""),
)
add(
    "encode_one_merge",
    "You stop after one merge in each chunk; go on while any merge is present.",
    code=_encode("""
        if len(ids) > 1:
            earliest = min(itertools.pairwise(ids), key=lambda pair: rank.get(pair, math.inf))
            if earliest in rank:
                ids = merge_pair(ids, earliest, 256 + rank[earliest])
"""),
)
add(
    "encode_not_merged",
    "Your ids are the bytes of the text; the merges are not applied.",
    ("while len(ids) > 1:", "while False:"),
)
add(
    "encode_rank_as_id",
    "Your new ids are 0, 1, 2, ...; these are bytes. Merge number m makes the id 256 + m.",
    ("256 + rank[earliest]", "rank[earliest]"),
)
add(
    "encode_ids_from_257",
    "Your new ids begin at 257; merge number m makes the id 256 + m, counted from 0.",
    ("256 + rank[earliest]", "257 + rank[earliest]"),
)
add(
    "encode_longest_match",
    "You take the longest known token at each place; BPE replays its merges in the order of "
    "learning, which may cut a chunk otherwise.",
    code=_encode("""
        pieces = [bytes([value]) for value in range(256)]
        for left, right in merges:
            pieces.append(pieces[left] + pieces[right])
        known = {piece: number for number, piece in reversed(list(enumerate(pieces)))}
        data, ids = bytes(ids), []
        while data:
            size = max(n for n in range(1, len(data) + 1) if data[:n] in known)
            ids.append(known[data[:size]])
            data = data[size:]
"""),
)
add(
    "encode_list_of_chunks",
    "Your result is a list for each chunk; put the ids of all chunks into one list.",
    ("encoded += ids", "encoded.append(ids)"),
)

add = mistakes_in(MISCONCEPTIONS, "bpe_decode", "pos-bpe")
JOINED = 'b"".join(pieces[number] for number in ids).decode("utf-8", errors="replace")'
CHECKED = "if not 0 <= number < len(pieces):"
add(
    "decode_strict",
    "Bytes that are no UTF-8 raise an error; decode with errors='replace'.",
    ('errors="replace"', 'errors="strict"'),
)
add(
    "decode_ignore",
    "Bytes that are no UTF-8 vanish; errors='replace' shows them as U+FFFD.",
    ('errors="replace"', 'errors="ignore"'),
)
add(
    "decode_token_by_token",
    "You decode each token by itself; a character's bytes may lie in several tokens. Join all "
    "bytes first, then decode once.",
    (JOINED, '"".join(pieces[number].decode("utf-8", errors="replace") for number in ids)'),
)
add(
    "decode_characters",
    "You turn each byte into the character of that number; a byte is not a character. Decode the "
    "joined bytes as UTF-8.",
    (JOINED, 'b"".join(pieces[number] for number in ids).decode("latin-1")'),
)
add(
    "decode_swapped",
    "The two parts of a merge come out in the wrong order; the left part first.",
    ("pieces[left] + pieces[right]", "pieces[right] + pieces[left]"),
)
add(
    "decode_unchecked",
    "Ids without a meaning are not refused with a ValueError; test that each is between 0 and "
    "255 + len(merges).",
    (CHECKED, "if False:"),
)
add(
    "decode_negative_accepted",
    "Negative ids are accepted: Python counts them from the end. Raise a ValueError.",
    (CHECKED, "if not number < len(pieces):"),
)
add(
    "decode_unknown_skipped",
    "Ids without a meaning are skipped silently; raise a ValueError, or a wrong id goes unnoticed.",
    (CHECKED, "if False:"),
    (JOINED, JOINED.replace("for number in ids", "for number in ids if 0 <= number < len(pieces)")),
)
add(
    "decode_spaces_between",
    "There is a space between the tokens; their bytes follow each other directly.",
    (JOINED, JOINED.replace('b""', 'b" "')),
)

add = mistakes_in(MISCONCEPTIONS, "wordpiece_encode", "pos-wordpiece")
TOO_LONG = "if len(word) > max_chars:\n        return [unknown]"
NO_PIECE = "else:\n            return [unknown]"
LEAD = 'lead = prefix if start > 0 else ""'
PIECE = "pieces.append(lead + word[start:end])"
add(
    "wordpiece_shortest",
    "You take the shortest piece that fits; WordPiece takes the longest first.",
    ("range(len(word), start, -1)", "range(start + 1, len(word) + 1)"),
)
add(
    "wordpiece_partial",
    "You keep the pieces found so far when the rest can't be cut; the whole word is then "
    "[unknown].",
    (NO_PIECE, "else:\n            return [*pieces, unknown]"),
)
add(
    "wordpiece_partial_silent",
    "You return the pieces found so far when the rest can't be cut; the whole word is then "
    "[unknown].",
    (NO_PIECE, "else:\n            return pieces"),
)
add(
    "wordpiece_unknown_character",
    "A character without a piece becomes one [UNK] among the pieces; the whole word is then "
    "[unknown].",
    (
        NO_PIECE,
        "else:\n            pieces.append(unknown)\n            start += 1\n            continue",
    ),
)
add(
    "wordpiece_backtracks",
    "You go back and try a shorter piece when the rest can't be cut; WordPiece is greedy, so the "
    "word is unknown then.",
    code="""
def wordpiece_encode(
    word: str,
    vocabulary: list[str],
    unknown: str = "[UNK]",
    prefix: str = "##",
    max_chars: int = 100,
) -> list[str]:
    if not word:
        raise ValueError("word is empty")
    if len(word) > max_chars:
        return [unknown]
    known = set(vocabulary)

    def cut(start):
        if start == len(word):
            return []
        lead = prefix if start > 0 else ""
        for end in range(len(word), start, -1):
            if lead + word[start:end] in known:
                rest = cut(end)
                if rest is not None:
                    return [lead + word[start:end], *rest]
        return None

    pieces = cut(0)
    return [unknown] if pieces is None else pieces
""",
)
add(
    "wordpiece_prefix_first",
    "You look for the prefix on the first piece as well; only pieces inside the word carry it.",
    (LEAD, "lead = prefix"),
)
add(
    "wordpiece_without_prefix",
    "You look for all pieces without the prefix; those after the first carry it.",
    (LEAD, 'lead = ""'),
)
add(
    "wordpiece_prefix_stripped",
    "Your pieces lack the prefix; return them as they stand in the vocabulary.",
    (PIECE, "pieces.append(word[start:end])"),
)
add(
    "wordpiece_prefix_fixed",
    "The prefix is always ##; use the argument `prefix`.",
    (LEAD, 'lead = "##" if start > 0 else ""'),
)
add(
    "wordpiece_unknown_fixed",
    "The unknown token is always [UNK]; use the argument `unknown`.",
    (TOO_LONG, TOO_LONG.replace("[unknown]", '["[UNK]"]')),
    (NO_PIECE, NO_PIECE.replace("[unknown]", '["[UNK]"]')),
)
add(
    "wordpiece_unknown_bare",
    "An unknown word gives a string; return a list that holds it: [unknown].",
    (TOO_LONG, TOO_LONG.replace("[unknown]", "unknown")),
    (NO_PIECE, NO_PIECE.replace("[unknown]", "unknown")),
)
add(
    "wordpiece_length_ignored",
    "max_chars is ignored; a longer word is [unknown] without being tried.",
    ("if len(word) > max_chars:", "if False:"),
)
add(
    "wordpiece_length_one_off",
    "A word of exactly max_chars characters is refused; only longer ones are.",
    ("if len(word) > max_chars:", "if len(word) >= max_chars:"),
)
add(
    "wordpiece_cut_to_length",
    "A word that is too long is shortened to max_chars; it is [unknown] instead.",
    (TOO_LONG, "word = word[:max_chars]"),
)
add(
    "wordpiece_whole_words",
    "A word that isn't in the vocabulary is unknown at once; cut it into pieces.",
    ("range(len(word), start, -1)", "[len(word)]"),
)
add(
    "wordpiece_empty_accepted",
    "An empty word is not refused; raise a ValueError.",
    ("if not word:", "if False:"),
)
add(
    "wordpiece_changes_its_vocabulary",
    "The vocabulary is sorted in place; a piece's place in it is its id, so leave it as it is.",
    ("known = set(vocabulary)", "vocabulary.sort(key=len)\n    known = set(vocabulary)"),
)
add(
    "wordpiece_length_in_bytes",
    "The word's length is counted in bytes; max_chars is a number of characters.",
    ("len(word) > max_chars", "len(word.encode()) > max_chars"),
)

add = mistakes_in(MISCONCEPTIONS, "TokenEmbedding", "pos-embedding")
SCALED = "self.table(ids.long()) * math.sqrt(width)"
OUTSIDE = "if lowest < 0 or highest >= size:"
add(
    "embedding_not_scaled",
    "Your embeddings lack the factor √d_model; multiply the rows of the table by it.",
    (SCALED, "self.table(ids.long())"),
)
add(
    "embedding_divided",
    "Your embeddings are divided by √d_model; they are multiplied by it (attention scores are what "
    "is divided).",
    (SCALED, "self.table(ids.long()) / math.sqrt(width)"),
)
add(
    "embedding_times_d_model",
    "Your embeddings are multiplied by d_model; the factor is its square root.",
    (SCALED, "self.table(ids.long()) * width"),
)
add(
    "embedding_scaled_by_vocabulary",
    "Your embeddings are multiplied by √vocab_size; the factor is √d_model.",
    (SCALED, "self.table(ids.long()) * math.sqrt(size)"),
)
add(
    "embedding_normalised",
    "Your embeddings all have the length √d_model; don't normalise the rows, only scale them.",
    (SCALED, "nn.functional.normalize(self.table(ids.long()), dim=-1) * math.sqrt(width)"),
)
add(
    "embedding_padding_index",
    "Row 0 of your table gets no gradient (padding_idx=0); every id of the vocabulary is learned "
    "here.",
    (
        "self.table = nn.Embedding(vocab_size, d_model)",
        "self.table = nn.Embedding(vocab_size, d_model, padding_idx=0)",
    ),
)
add(
    "embedding_zero_width",
    "A table of width 0 or without tokens is made without complaint; raise a ValueError in "
    "__init__.",
    ("if vocab_size < 1 or d_model < 1:", "if vocab_size < 0 or d_model < 0:"),
)
add(
    "embedding_detached",
    "Your embeddings are right, but no gradient reaches the table; don't detach it or use .data.",
    (SCALED, "self.table(ids.long()).detach() * math.sqrt(width)"),
)
add(
    "embedding_transposed",
    "Your table has d_model rows of vocab_size numbers; it is nn.Embedding(vocab_size, d_model).",
    (
        "self.table = nn.Embedding(vocab_size, d_model)",
        "self.table = nn.Embedding(d_model, vocab_size)",
    ),
)
add(
    "embedding_unchecked",
    "Bad ids are not refused with a ValueError; test type, size and range before the table is "
    "asked, which raises other errors or none.",
    code="""
class TokenEmbedding(nn.Module):
    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, d_model)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids) * math.sqrt(self.table.embedding_dim)
""",
)
add(
    "embedding_range_unchecked",
    "Ids outside the vocabulary end in an IndexError of the table; raise a ValueError yourself.",
    (OUTSIDE, "if False:"),
)
add(
    "embedding_negative_unchecked",
    "Negative ids are not refused with a ValueError; the vocabulary begins at 0.",
    (OUTSIDE, "if highest >= size:"),
)
add(
    "embedding_last_id",
    "The id vocab_size is not refused; the last id is vocab_size - 1.",
    (OUTSIDE, "if lowest < 0 or highest > size:"),
)
add(
    "embedding_floats_accepted",
    "Ids that are no integers are accepted; raise a ValueError for floats and bools.",
    ("if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:", "if False:"),
)
add(
    "embedding_bools_accepted",
    "A mask of True and False is accepted as ids; raise a ValueError for bools.",
    (" or ids.dtype == torch.bool:", ":"),
)
add(
    "embedding_empty_accepted",
    "An empty batch is not refused; raise a ValueError if there is no sequence or no token.",
    (
        "if ids.numel() == 0:",
        "if ids.numel() == 0:\n            return self.table(ids)\n        if False:",
    ),
)

# --------------------------------------------------------------------------------------------
# Codes of positions
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "binary_code", "pos-binary")
DIGITS = "torch.arange(bits, device=positions.device)"
BITS = "(positions.long()[:, None] >> digits & 1).float()"
add(
    "binary_most_significant_first",
    "Your columns are in the order in which numbers are written; column 0 is the least significant "
    "bit, which alternates fastest.",
    (DIGITS, "torch.arange(bits - 1, -1, -1)"),
)
add(
    "binary_integers",
    "Your code is made of integers; the result is float32.",
    (BITS, "positions.long()[:, None] >> digits & 1"),
)
add(
    "binary_bools",
    "Your code is made of True and False; the result is float32, 0 and 1.",
    (BITS, "(positions.long()[:, None] >> digits & 1).bool()"),
)
add(
    "binary_signs",
    "Your code is made of -1 and 1; this exercise asks for 0 and 1.",
    (BITS, "(positions.long()[:, None] >> digits & 1).float() * 2 - 1"),
)
add(
    "binary_gray",
    "Your code is a Gray code, in which neighbours differ in one bit; the exercise asks for the "
    "ordinary binary digits.",
    (BITS, "((positions.long() ^ (positions.long() >> 1))[:, None] >> digits & 1).float()"),
)
add(
    "binary_first_bit_lost",
    "Your column 0 has the period 4; the lowest bit, of period 2, is missing: count columns from "
    "0.",
    (DIGITS, "torch.arange(1, bits + 1)"),
)
add(
    "binary_not_reduced",
    "Your columns hold p // 2^k; take this modulo 2 to get the digit.",
    (BITS, "(positions.long()[:, None] >> digits).float()"),
)
add(
    "binary_transposed",
    "Your result has a row for each bit; positions belong in rows: (T, bits).",
    (BITS, "(positions.long()[:, None] >> digits & 1).float().T"),
)
add(
    "binary_too_large_accepted",
    "Positions of 2^bits and more are accepted, and collide with smaller ones; raise a ValueError.",
    ("if not 0 <= position < 2**bits:", "if not 0 <= position:"),
)
add(
    "binary_negative_accepted",
    "Negative positions are accepted; raise a ValueError.",
    ("if not 0 <= position < 2**bits:", "if not position < 2**bits:"),
)
add(
    "binary_floats_accepted",
    "Positions that are no integers are accepted; raise a ValueError.",
    (
        "if positions.is_floating_point() or positions.is_complex() or "
        "positions.dtype == torch.bool:",
        "if False:",
    ),
)
add(
    "binary_bits_unchecked",
    "A number of bits below 1 is not refused with a ValueError.",
    ("if bits < 1:", "if False:"),
)
add(
    "binary_bools_accepted",
    "Positions of type bool are accepted; a mask is no list of positions: refuse it with a "
    "ValueError.",
    (" or positions.dtype == torch.bool", ""),
)

add = mistakes_in(MISCONCEPTIONS, "angular_frequencies", "pos-frequencies")
EXPONENTS = "torch.arange(0, d_model, 2, dtype=torch.float64) / d_model"
POWER = "(base**-exponents).float()"
COUNT = "(d_model + 1) // 2"
add(
    "frequencies_i_not_2i",
    "Your frequencies are base^(-k/d_model); the exponent is -2k/d_model, or the last wavelength "
    "is only √base and not base.",
    (EXPONENTS, f"torch.arange({COUNT}, dtype=torch.float64) / d_model"),
)
add(
    "frequencies_half_width",
    "Your frequencies are base^(-2k/(d_model/2)); with 2k in the exponent divide by d_model, or "
    "use k/(d_model/2).",
    (EXPONENTS, "torch.arange(0, d_model, 2, dtype=torch.float64) / (d_model / 2)"),
)
add(
    "frequencies_from_one_to_d",
    "Your frequencies are base^(-i/d_model) for i = 1 to d_model; there is one for each pair, "
    "base^(-2k/d_model), and the first, k = 0, is exactly 1.",
    (EXPONENTS, "torch.arange(1, d_model + 1, dtype=torch.float64) / d_model"),
)
add(
    "frequencies_first_missing",
    "Your first frequency is base^(-2/d_model); k starts at 0, so the first is 1.",
    (EXPONENTS, f"(2 * torch.arange({COUNT}, dtype=torch.float64) + 2) / d_model"),
)
add(
    "frequencies_inverse",
    "You return base^(+2k/d_model), by which positions are divided; the frequency is its inverse, "
    "with a minus in the exponent.",
    (POWER, "(base**exponents).float()"),
)
add(
    "frequencies_wavelengths",
    "You return the wavelengths 2π/ω; the frequencies ω are asked for.",
    (POWER, "(2 * math.pi * base**exponents).float()"),
)
add(
    "frequencies_per_turn",
    "Your frequencies are divided by 2π, turns per position; ω is an angle per position, 2π/T.",
    (POWER, "(base**-exponents / (2 * math.pi)).float()"),
)
add(
    "frequencies_up_to_base",
    "Your frequencies end at 1/base exactly, dividing by their number minus 1 as tensor2tensor "
    "does; this exercise asks for base^(-2k/d_model).",
    (EXPONENTS, f"torch.arange({COUNT}, dtype=torch.float64) / max({COUNT} - 1, 1)"),
)
add(
    "frequencies_one_too_many",
    "You count k up to d_model/2; the last is d_model/2 - 1, since columns end at d_model - 1.",
    (EXPONENTS, "torch.arange(0, d_model + 1, 2, dtype=torch.float64) / d_model"),
)
add(
    "frequencies_linear",
    "Your frequencies fall by equal steps; they fall by equal factors, a geometric sequence.",
    (POWER, f"torch.linspace(1.0, 1.0 / base, {COUNT})"),
)
add(
    "frequencies_twice",
    "You return each frequency twice, one for each dimension; return one for each pair.",
    (POWER, "(base**-exponents).float().repeat_interleave(2)[:d_model]"),
)
add(
    "frequencies_base_ignored",
    "The base is always 10000; use the argument `base`.",
    (POWER, "(10000.0**-exponents).float()"),
)
add(
    "frequencies_odd_short",
    "With an odd width the last frequency is missing; there are ceil(d_model / 2).",
    (POWER, "(base**-exponents).float()[: max(d_model // 2, 1)]"),
)
add(
    "frequencies_odd_rounded",
    "With an odd width you divide by d_model + 1; the exponent is -2k/d_model for every width.",
    (EXPONENTS, "torch.arange(0, d_model, 2, dtype=torch.float64) / (d_model + d_model % 2)"),
)
add(
    "frequencies_double",
    "Your frequencies are float64; the result is float32.",
    (POWER, "base**-exponents"),
)
add(
    "frequencies_width_unchecked",
    "A width below 1, or of no integer type, is not refused with a ValueError.",
    ("if not isinstance(d_model, int) or d_model < 1:", "if False:"),
)
add(
    "frequencies_floats_accepted",
    "A width such as 4.0 is accepted; raise a ValueError unless it is an int.",
    ("if not isinstance(d_model, int) or d_model < 1:", "if d_model < 1:"),
)
add(
    "frequencies_base_unchecked",
    "A base of 1 or less is not refused; it would give equal or growing frequencies.",
    ("if base <= 1:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "position_vector", "pos-sinusoid")
ANGLE = "position * base ** (-2 * pair / d_model)"
ENTRY = "math.sin(angle) if dimension % 2 == 0 else math.cos(angle)"
add(
    "vector_i_not_2i",
    "Your angles are p · base^(-i/d_model) for pair i; the exponent is -2i/d_model.",
    (ANGLE, "position * base ** (-pair / d_model)"),
    read="pos-frequencies",
)
add(
    "vector_own_frequency",
    "Your cosines have a frequency of their own, base^(-(2i+1)/d_model); sine and cosine of a pair "
    "share the angle p · base^(-2i/d_model).",
    (ANGLE, "position * base ** (-dimension / d_model)"),
)
add(
    "vector_dimension_doubled",
    "Your exponent is -2j/d_model with j the dimension; in the formula i counts pairs, so use "
    "i = j // 2.",
    (ANGLE, "position * base ** (-2 * dimension / d_model)"),
)
add(
    "vector_half_width",
    "Your exponent is divided by d_model/2 although it already holds 2i; it is -2i/d_model.",
    (ANGLE, "position * base ** (-4 * pair / d_model)"),
    read="pos-frequencies",
)
add(
    "vector_first_pair_slow",
    "For d_model = 4 your first angle is p/100 instead of p; pairs are counted from i = 0, so the "
    "first denominator is 10000^0 = 1.",
    (ANGLE, "position * base ** (-2 * (pair + 1) / d_model)"),
)
add(
    "vector_angle_to_the_power",
    "Your angle is (p / base^(1/d_model))^2i, so the position is raised to a power too; only the "
    "base has the exponent: p · base^(-2i/d_model).",
    (ANGLE, "(position / base ** (1 / d_model)) ** (2 * pair)"),
)
add(
    "vector_wavelengths",
    "Your angles grow with the dimension: the position is multiplied by base^(2i/d_model), and "
    "should be divided by it.",
    (ANGLE, "position * base ** (2 * pair / d_model)"),
)
add(
    "vector_swapped",
    "Sine and cosine have changed places; even dimensions are sines.",
    (ENTRY, "math.cos(angle) if dimension % 2 == 0 else math.sin(angle)"),
)
add(
    "vector_sines_only",
    "All your dimensions are sines; the odd ones are cosines of the same angle.",
    (ENTRY, "math.sin(angle)"),
    read="pos-rotation",
)
add(
    "vector_half_and_half",
    "Your sines stand in the first half and your cosines in the second; here they alternate.",
    (
        "return vector",
        "return vector[0::2] + vector[1::2]",
    ),
    read="pos-layouts",
)
add(
    "vector_from_one",
    "Your positions start at 1: position p gets the vector of p + 1. Position 0 is (0, 1, 0, 1, "
    "...).",
    (ANGLE, "(position + 1) * base ** (-2 * pair / d_model)"),
)
add(
    "vector_degrees",
    "Your angles are taken for degrees; math.sin expects radians, so leave them as they are.",
    (ENTRY, ENTRY.replace("(angle)", "(math.radians(angle))")),
)
add(
    "vector_base_ignored",
    "The base is always 10000; use the argument `base`.",
    (ANGLE, "position * 10000.0 ** (-2 * pair / d_model)"),
)
add(
    "vector_odd_longer",
    "With an odd width your vector is one too long; it ends with a sine.",
    ("for dimension in range(d_model):", "for dimension in range(d_model + d_model % 2):"),
)
add(
    "vector_odd_shorter",
    "With an odd width your vector is one too short; it ends with a sine of its own.",
    ("for dimension in range(d_model):", "for dimension in range(d_model - d_model % 2):"),
)
add(
    "vector_tensor",
    "Your result is a tensor; a list of Python floats is asked for.",
    ("return vector", "return torch.tensor(vector)"),
)
add(
    "vector_position_unchecked",
    "A position that is negative or no integer is not refused; raise a ValueError.",
    ("if not isinstance(position, int) or position < 0:", "if False:"),
)
add(
    "vector_floats_accepted",
    "A position such as 1.5 is accepted; raise a ValueError unless it is an int.",
    ("if not isinstance(position, int) or position < 0:", "if position < 0:"),
)
add(
    "vector_width_unchecked",
    "A width below 1 is not refused; raise a ValueError.",
    ("if not isinstance(d_model, int) or d_model < 1:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "sinusoidal_table", "pos-sinusoid")
POSITIONS = "torch.arange(length, dtype=torch.float64)"
ANGLES = "positions[:, None] * base**-exponents"
SINES = "table[:, 0::2] = torch.sin(angles)"
COSINES = "table[:, 1::2] = torch.cos(angles[:, : d_model // 2])"
add(
    "table_i_not_2i",
    "Your angles are p · base^(-i/d_model) for pair i; the exponent is -2i/d_model.",
    (EXPONENTS, f"torch.arange({COUNT}, dtype=torch.float64) / d_model"),
    read="pos-frequencies",
)
add(
    "table_half_width",
    "Your exponent is divided by d_model/2 although it already holds 2i; it is -2i/d_model.",
    (EXPONENTS, "torch.arange(0, d_model, 2, dtype=torch.float64) / (d_model / 2)"),
    read="pos-frequencies",
)
add(
    "table_first_pair_slow",
    "For d_model = 4 your first column is sin(p/100) instead of sin(p); pairs are counted from "
    "i = 0, so the first denominator is 10000^0 = 1.",
    (EXPONENTS, f"(2 * torch.arange({COUNT}, dtype=torch.float64) + 2) / d_model"),
)
add(
    "table_up_to_base",
    "Your last frequency is 1/base, dividing by the number of pairs minus 1 as tensor2tensor does; "
    "this exercise asks for base^(-2i/d_model).",
    (EXPONENTS, f"torch.arange({COUNT}, dtype=torch.float64) / max({COUNT} - 1, 1)"),
    read="pos-frequencies",
)
add(
    "table_own_frequency",
    "Your cosines have a frequency of their own, base^(-(2i+1)/d_model); sine and cosine of a pair "
    "share one angle.",
    (
        COSINES,
        "odd = torch.arange(1, d_model, 2, dtype=torch.float64) / d_model\n"
        "    table[:, 1::2] = torch.cos(positions[:, None] * base**-odd)",
    ),
)
add(
    "table_angle_to_the_power",
    "Your angle is (p / base^(1/d_model))^2i, so the position is raised to a power too; only the "
    "base has the exponent: p · base^(-2i/d_model).",
    (ANGLES, "(positions[:, None] / base ** (1 / d_model)) ** (exponents * d_model)"),
)
add(
    "table_wavelengths",
    "Your angles grow with the dimension: the position is multiplied by base^(2i/d_model), and "
    "should be divided by it.",
    (ANGLES, "positions[:, None] * base**exponents"),
)
add(
    "table_swapped",
    "Sine and cosine have changed places; even columns are sines.",
    (SINES, "table[:, 0::2] = torch.cos(angles)"),
    (COSINES, "table[:, 1::2] = torch.sin(angles[:, : d_model // 2])"),
)
add(
    "table_sines_only",
    "All your columns are sines; the odd ones are cosines of the same angle.",
    (COSINES, "table[:, 1::2] = torch.sin(angles[:, : d_model // 2])"),
    read="pos-rotation",
)
add(
    "table_half_and_half",
    "Your sines stand in the first half and your cosines in the second; here they alternate.",
    ("return table", "return torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)"),
    read="pos-layouts",
)
add(
    "table_from_one",
    "Your positions start at 1; row 0 is position 0, (0, 1, 0, 1, ...).",
    (POSITIONS, "torch.arange(1, length + 1, dtype=torch.float64)"),
)
add(
    "table_relative_positions",
    "Your positions are divided by the length; the table of a longer sequence must begin with the "
    "same rows, so use p itself.",
    (POSITIONS, f"{POSITIONS} / length"),
    read="pos-requirements",
)
add(
    "table_transposed",
    "Your table has a row for each dimension; positions belong in rows: (length, d_model).",
    ("return table", "return table.T"),
)
add(
    "table_base_ignored",
    "The base is always 10000; use the argument `base`.",
    (ANGLES, "positions[:, None] * 10000.0**-exponents"),
)
add(
    "table_odd_fails",
    "An odd width fails: there is one sine more than there are cosines, so cut the angles to "
    "d_model // 2 columns for the cosines.",
    (COSINES, "table[:, 1::2] = torch.cos(angles)"),
)
add(
    "table_odd_rounded",
    "With an odd width you take the frequencies of d_model + 1; the exponent is -2i/d_model for "
    "every width.",
    (EXPONENTS, "torch.arange(0, d_model, 2, dtype=torch.float64) / (d_model + d_model % 2)"),
)
add(
    "table_odd_refused",
    "An odd width is refused; it works, and the last column is a sine.",
    ("if length < 1 or d_model < 1:", "if length < 1 or d_model < 1 or d_model % 2:"),
)
add(
    "table_double",
    "Your table is float64; the result is float32.",
    ("torch.empty(length, d_model)", "torch.empty(length, d_model, dtype=torch.float64)"),
)
add(
    "table_half_precision",
    "Far positions are wrong: your angles are rounded too coarsely. Multiply position and "
    "frequency in float32 at least.",
    (ANGLES, "(positions.bfloat16()[:, None] * base ** -exponents.bfloat16()).double()"),
)
add(
    "table_sizes_unchecked",
    "A length or a width below 1 is not refused with a ValueError.",
    ("if length < 1 or d_model < 1:", "if False:"),
)
add(
    "table_base_unchecked",
    "A base of 1 or less is not refused with a ValueError.",
    ("if base <= 1:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "PositionalEncoding", "pos-module")
BUFFER = 'self.register_buffer("table", sinusoidal_table(max_length, d_model), persistent=False)'
CODES = "self.table[: x.shape[1]].to(x.dtype)"
SUM = "self.dropout(x + codes)"
TOO_FAR = "if x.shape[1] > max_length:"
add(
    "encoding_batch_row",
    "The table is indexed by the row of the batch: all tokens of example b get the code of "
    "position b. The batch comes first, so cut the table to x.shape[1].",
    (CODES, "self.table[: x.shape[0]].unsqueeze(1).to(x.dtype)"),
    (TOO_FAR, "if False:"),
)
add(
    "encoding_batch_size",
    "The table is cut to the size of the batch, x.size(0); the positions are dimension 1.",
    (CODES, "self.table[: x.shape[0]].to(x.dtype)"),
    (TOO_FAR, "if False:"),
)
add(
    "encoding_parameter",
    "Your table is a parameter and would be trained; it is fixed, so register it as a buffer.",
    (BUFFER, "self.table = nn.Parameter(sinusoidal_table(max_length, d_model))"),
)
add(
    "encoding_frozen_parameter",
    "Your table is a parameter, if one without gradient; register it as a buffer, which is not "
    "saved with the parameters.",
    (
        BUFFER,
        "self.table = nn.Parameter(sinusoidal_table(max_length, d_model), requires_grad=False)",
    ),
)
add(
    "encoding_plain_attribute",
    "Your table is a plain attribute, so it doesn't follow the module to another dtype or device; "
    "use register_buffer.",
    (BUFFER, "self.table = sinusoidal_table(max_length, d_model)"),
    (CODES, "self.table[: x.shape[1]]"),
)
add(
    "encoding_saved",
    "Your table is saved in the state dict, so a module with another max_length could not load it; "
    "register the buffer with persistent=False.",
    (", persistent=False", ""),
)
add(
    "encoding_extra_dimension",
    "Your buffer has a dimension of size 1 too many; its shape is (max_length, d_model).",
    (
        BUFFER,
        'self.register_buffer("table", sinusoidal_table(max_length, d_model)[None], '
        "persistent=False)",
    ),
    ("max_length, d_model = self.table.shape", "_, max_length, d_model = self.table.shape"),
    (CODES, "self.table[:, : x.shape[1]].to(x.dtype)"),
)
add(
    "encoding_without_dropout",
    "There is no dropout in train mode; apply it to the sum of embeddings and codes.",
    (SUM, "x + codes"),
)
add(
    "encoding_dropout_before_sum",
    "Dropout acts on the embeddings before the codes are added; it acts on the sum.",
    (SUM, "self.dropout(x) + codes"),
)
add(
    "encoding_dropout_on_codes",
    "Dropout acts on the codes only; it acts on the sum of embeddings and codes.",
    (SUM, "x + self.dropout(codes)"),
)
add(
    "encoding_dropout_in_eval",
    "Dropout acts in eval mode too; tell it whether the module is training, as nn.Dropout does.",
    (SUM, "nn.functional.dropout(x + codes, self.dropout.p, True)"),
)
add(
    "encoding_dropout_by_default",
    "Your module drops a tenth by default; the default is dropout=0.0.",
    ("dropout: float = 0.0", "dropout: float = 0.1"),
)
add(
    "encoding_keep_probability",
    "Your argument `dropout` is the share that is kept; it is the share that is dropped.",
    ("nn.Dropout(dropout)", "nn.Dropout(1.0 - dropout if dropout else 0.0)"),
)
add(
    "encoding_token_dropout",
    "Dropout takes all features of a token at once; every entry is dropped on its own.",
    (SUM, "nn.functional.dropout1d(x + codes, self.dropout.p, self.training)"),
)
add(
    "encoding_scaled",
    "Your embeddings are multiplied by √d_model here; TokenEmbedding has done that already.",
    (SUM, "self.dropout(x * math.sqrt(d_model) + codes)"),
    read="pos-embedding",
)
add(
    "encoding_codes_only",
    "You return the codes without the embeddings; add them to x.",
    (SUM, "self.dropout(codes.expand(x.shape))"),
)
add(
    "encoding_concatenated",
    "You put the codes beside the embeddings; they are added, and the width stays the same.",
    (SUM, "self.dropout(torch.cat([x, codes.expand(x.shape)], dim=-1))"),
)
add(
    "encoding_multiplied",
    "You multiply embeddings and codes; they are added.",
    (SUM, "self.dropout(x * codes)"),
)
add(
    "encoding_from_one",
    "Your first token gets the code of position 1; positions start at 0.",
    (
        CODES,
        "sinusoidal_table(x.shape[1] + 1, d_model)[1:].to(x.dtype)",
    ),
)
add(
    "encoding_from_the_end",
    "You use the last rows of the table; use the first ones.",
    (CODES, "self.table[max_length - x.shape[1] :].to(x.dtype)"),
)
add(
    "encoding_in_place",
    "You add to x in place, which changes the caller's tensor; write x + ... instead of x += ....",
    (SUM, "self.dropout(x.add_(codes))"),
)
add(
    "encoding_detached",
    "No gradient passes to the embeddings; don't detach x and don't compute under no_grad.",
    (SUM, "self.dropout(x.detach() + codes)"),
)
add(
    "encoding_length_unchecked",
    "A sequence longer than the table ends in another error or none; raise a ValueError.",
    (TOO_FAR, "if False:"),
)
add(
    "encoding_full_length_refused",
    "A sequence of exactly max_length is refused; the table has a row for each of its tokens.",
    (TOO_FAR, "if x.shape[1] >= max_length:"),
)
add(
    "encoding_truncated",
    "A sequence longer than the table is cut; raise a ValueError.",
    (TOO_FAR, "x = x[:, :max_length]\n        if False:"),
)
add(
    "encoding_wraps_around",
    "Positions beyond the table start again at 0; raise a ValueError.",
    (TOO_FAR, "if False:"),
    (CODES, "self.table[torch.arange(x.shape[1]) % max_length].to(x.dtype)"),
)
add(
    "encoding_width_unchecked",
    "An x of another width is not refused with a ValueError; width 1 would even be broadcast.",
    ("if x.shape[-1] != d_model:", "if False:"),
)
add(
    "encoding_type_of_table",
    "The sum takes the type of the table; it should keep that of x: convert the rows with "
    ".to(x.dtype) before you add them.",
    (".to(x.dtype)", ""),
)
add(
    "encoding_sizes_unchecked",
    "A table without rows or columns is accepted; refuse a d_model or max_length below 1 with a "
    "ValueError when the module is made.",
    (
        "sinusoidal_table(max_length, d_model)",
        "sinusoidal_table(max(1, max_length), max(1, d_model))",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "half_and_half_table", "pos-layouts")
HALVES = "torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)"
RATES = "torch.arange(d_model // 2, dtype=torch.float64)"


def _halves(exponents: str, cosines: str = "") -> Swap:
    """The two halves with exponents of their own."""
    angles = "torch.arange(length, dtype=torch.float64)[:, None] * base**-({})"
    return (
        HALVES,
        f"torch.cat([torch.sin({angles.format(exponents)}), "
        f"torch.cos({angles.format(cosines or exponents)})], dim=1).float()",
    )


add(
    "half_interleaved",
    "Your columns alternate; here all sines come first, then all cosines.",
    (HALVES, "table"),
)
add(
    "half_cosines_first",
    "Your cosines come first; the sines do.",
    (HALVES, "torch.cat([table[:, 1::2], table[:, 0::2]], dim=1)"),
)
add(
    "half_i_not_2i",
    "Your exponents are -k/d_model; the frequencies are those of the interleaved table, "
    "base^(-2k/d_model), k = 0 to d_model/2 - 1.",
    _halves(f"{RATES} / d_model"),
    read="pos-frequencies",
)
add(
    "half_up_to_base",
    "Your last frequency is 1/base, dividing by d_model/2 - 1 as tensor2tensor does; use the "
    "frequencies of the interleaved table.",
    _halves(f"{RATES} / max(d_model // 2 - 1, 1)"),
    read="pos-frequencies",
)
add(
    "half_own_frequencies",
    "Your cosines go on with the frequencies where the sines end; both halves have the same.",
    _halves(f"{RATES} / d_model", f"({RATES} + d_model // 2) / d_model"),
)
add(
    "half_odd_exponents",
    "Your cosines have the exponents (2k+1)/d_model; both halves have 2k/d_model.",
    _halves(f"2 * {RATES} / d_model", f"(2 * {RATES} + 1) / d_model"),
)
add(
    "half_of_the_interleaved",
    "You cut the interleaved table in the middle; sines are the even columns, cosines the odd.",
    (
        HALVES,
        "torch.cat([table[:, d_model // 2 :], table[:, : d_model // 2]], dim=1)",
    ),
)
add(
    "half_base_ignored",
    "The base is always 10000; hand the argument `base` on.",
    ("sinusoidal_table(length, d_model, base)", "sinusoidal_table(length, d_model)"),
)
add(
    "half_odd_accepted",
    "An odd width is not refused; it has no halves, so raise a ValueError.",
    ("if d_model < 2 or d_model % 2 != 0:", "if d_model < 2:"),
)
add(
    "half_transposed",
    "Your halves are stacked as rows; put them side by side: torch.cat(..., dim=1).",
    (HALVES, "torch.cat([table[:, 0::2], table[:, 1::2]], dim=0)"),
)

add = mistakes_in(MISCONCEPTIONS, "interleaved_to_half", "pos-layouts")
COLUMNS = "torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])"
EVEN_WIDTH = "if d_model < 2 or d_model % 2 != 0:"
add(
    "columns_inverse",
    "Your columns lead the other way, from half and half to interleaved; entry c says which "
    "interleaved column comes to place c.",
    (COLUMNS, f"{COLUMNS}.argsort()"),
)
add(
    "columns_odd_first",
    "Your odd columns come first; the sines, in the even ones, do.",
    (COLUMNS, "torch.cat([torch.arange(1, d_model, 2), torch.arange(0, d_model, 2)])"),
)
add(
    "columns_unchanged",
    "Your columns are 0, 1, 2, ... and reorder nothing.",
    (COLUMNS, "torch.arange(d_model)"),
)
add(
    "columns_as_floats",
    "Your columns are floats and can't be an index; make them int64.",
    (COLUMNS, f"{COLUMNS}.float()"),
)
add(
    "columns_int32",
    "Your columns are int32; int64 is asked for.",
    (COLUMNS, f"{COLUMNS}.int()"),
)
add(
    "columns_matrix",
    "You return a permutation matrix; return the d_model column numbers.",
    (COLUMNS, f"torch.eye(d_model)[{COLUMNS}]"),
)
add(
    "columns_list",
    "You return a list; return an int64 tensor.",
    (COLUMNS, f"{COLUMNS}.tolist()"),
)
add(
    "columns_swapped_pairs",
    "You swap the columns of each pair; the even columns belong in the first half.",
    (COLUMNS, "torch.arange(d_model).view(-1, 2).flip(1).flatten()"),
)
add(
    "columns_odd_accepted",
    "An odd width is not refused; raise a ValueError.",
    (EVEN_WIDTH, "if d_model < 2:"),
)
add(
    "columns_too_small_accepted",
    "A width below 2 is not refused; raise a ValueError.",
    (EVEN_WIDTH, "if d_model % 2 != 0:"),
)

add = mistakes_in(MISCONCEPTIONS, "offset_rotation", "pos-rotation")
TURN = "offset * base ** (-even.double() / d_model)"
UPPER = "matrix[even, even + 1] = torch.sin(angles).float()"
LOWER = "matrix[even + 1, even] = -torch.sin(angles).float()"
DIAGONAL = "matrix[even, even] = matrix[even + 1, even + 1] = torch.cos(angles).float()"
add(
    "rotation_transposed",
    "Your matrix moves positions back by the offset: it is the transpose. sin(a + b) = sin a cos b "
    "+ cos a sin b puts +sin into the first row of a block.",
    (UPPER, UPPER.replace("= torch", "= -torch")),
    (LOWER, LOWER.replace("= -torch", "= torch")),
)
add(
    "rotation_without_minus",
    "Your blocks are [[cos, sin], [sin, cos]]; cos(a + b) = cos a cos b - sin a sin b, so the "
    "lower left entry is -sin.",
    (LOWER, LOWER.replace("= -torch", "= torch")),
)
add(
    "rotation_swapped",
    "Sine and cosine have changed places in your blocks; an offset of 0 must give the identity.",
    (DIAGONAL, DIAGONAL.replace("cos(", "sin(")),
    (UPPER, UPPER.replace("sin(", "cos(")),
    (LOWER, LOWER.replace("sin(", "cos(")),
)
add(
    "rotation_diagonal_only",
    "Your matrix multiplies each dimension by one number; no dimension is a multiple of itself "
    "further on. Only sine and cosine together are, by a 2 x 2 block.",
    (UPPER, "pass"),
    (LOWER, "pass"),
)
add(
    "rotation_half_layout",
    "Your blocks fit the table with all sines first; here sine and cosine of a pair are "
    "neighbours.",
    (
        "return matrix",
        "order = torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])\n"
        "    return matrix[order][:, order]",
    ),
    read="pos-layouts",
)
add(
    "rotation_one_angle",
    "All your blocks turn by the same angle; block k turns by offset · ω_k.",
    (TURN, "offset * base ** (-0.0 * even.double())"),
)
add(
    "rotation_i_not_2i",
    "Your angles are offset · base^(-k/d_model); the frequencies are base^(-2k/d_model), as in the "
    "table.",
    (TURN, "offset * base ** (-even.double() / 2 / d_model)"),
    read="pos-frequencies",
)
add(
    "rotation_half_width",
    "Your exponents are divided by d_model/2; they are -2k/d_model, as in the table.",
    (TURN, "offset * base ** (-2 * even.double() / d_model)"),
    read="pos-frequencies",
)
add(
    "rotation_offset_ignored",
    "Your angles are those of an offset of 1, whatever the offset is; multiply the frequencies by "
    "it.",
    (TURN, "base ** (-even.double() / d_model)"),
)
add(
    "rotation_absolute",
    "A negative offset moves forward as a positive one does; keep its sign.",
    (TURN, f"abs({TURN})"),
)
add(
    "rotation_base_ignored",
    "The base is always 10000; use the argument `base`.",
    (TURN, "offset * 10000.0 ** (-even.double() / d_model)"),
)
add(
    "rotation_odd_accepted",
    "An odd width is not refused with a ValueError; its last sine has no cosine to turn with.",
    ("if d_model < 2 or d_model % 2 != 0:", "if d_model < 2:"),
)
add(
    "rotation_floats_accepted",
    "An offset such as 1.5 is accepted; raise a ValueError unless it is an int.",
    ("if not isinstance(offset, int):", "if False:"),
)
add(
    "rotation_base_unchecked",
    "A base of 1 or less is not refused; raise a ValueError.",
    ("if base <= 1:", "if False:"),
)

# --------------------------------------------------------------------------------------------
# Learned and relative positions
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "LearnedPositions", "pos-learned")
LEARNED = "x + self.table.weight[: x.shape[1]]"
LEARNED_TOO_FAR = "if x.shape[1] > max_length:"
add(
    "learned_from_the_end",
    "You use the last rows of the table; token t gets row t, counted from the beginning.",
    (LEARNED, "x + self.table.weight[max_length - x.shape[1] :]"),
)
add(
    "learned_batch_row",
    "The table is indexed by the row of the batch: all tokens of example b get row b. The batch "
    "comes first, so cut the table to x.shape[1].",
    (LEARNED, "x + self.table.weight[: x.shape[0]].unsqueeze(1)"),
    (LEARNED_TOO_FAR, "if False:"),
)
add(
    "learned_batch_size",
    "The table is cut to the size of the batch; the positions are dimension 1.",
    (LEARNED, "x + self.table.weight[: x.shape[0]]"),
)
add(
    "learned_from_one",
    "Your first token gets row 1; positions start at row 0.",
    (LEARNED, "x + self.table.weight.roll(-1, 0)[: x.shape[1]]"),
)
add(
    "learned_one_row",
    "Every token gets row 0; token t gets row t.",
    (LEARNED, "x + self.table.weight[0]"),
)
add(
    "learned_scaled",
    "Your positions are multiplied by √d_model; they are added as they are.",
    (LEARNED, "x + self.table.weight[: x.shape[1]] * math.sqrt(d_model)"),
)
add(
    "learned_only",
    "You return the positions without the embeddings; add them to x.",
    (LEARNED, "self.table.weight[: x.shape[1]].expand(x.shape)"),
)
add(
    "learned_concatenated",
    "You put the positions beside the embeddings; they are added.",
    (LEARNED, "torch.cat([x, self.table.weight[: x.shape[1]].expand(x.shape)], dim=-1)"),
)
add(
    "learned_sinusoidal",
    "You add the sinusoidal table; here the rows are learned, so add those of self.table.",
    (LEARNED, "x + sinusoidal_table(x.shape[1], d_model).to(x.dtype)"),
)
add(
    "learned_plain_parameter",
    "Your table is a parameter called `table`; it is an nn.Embedding, whose parameter is called "
    "table.weight.",
    (
        "self.table = nn.Embedding(max_length, d_model)",
        "self.table = nn.Parameter(torch.randn(max_length, d_model))",
    ),
    ("max_length, d_model = self.table.weight.shape", "max_length, d_model = self.table.shape"),
    (LEARNED, "x + self.table[: x.shape[1]]"),
)
add(
    "learned_transposed",
    "Your table has d_model rows; it has one for each position: nn.Embedding(max_length, d_model).",
    (
        "self.table = nn.Embedding(max_length, d_model)",
        "self.table = nn.Embedding(d_model, max_length)",
    ),
)
add(
    "learned_detached",
    "The sum is right, but no gradient reaches the table, so it would never be learned; don't use "
    ".data or detach().",
    (LEARNED, "x + self.table.weight.detach()[: x.shape[1]]"),
)
add(
    "learned_in_place",
    "You add to x in place, which changes the caller's tensor; write x + ... instead of x += ....",
    (LEARNED, "x.add_(self.table.weight[: x.shape[1]])"),
)
add(
    "learned_length_unchecked",
    "A sequence longer than the table ends in another error or none; raise a ValueError.",
    (LEARNED_TOO_FAR, "if False:"),
)
add(
    "learned_full_length_refused",
    "A sequence of exactly max_length is refused; the table has a row for each of its tokens.",
    (LEARNED_TOO_FAR, "if x.shape[1] >= max_length:"),
)
add(
    "learned_wraps_around",
    "Positions beyond the table start again at 0; raise a ValueError, since no such position was "
    "learned.",
    (LEARNED_TOO_FAR, "if False:"),
    (LEARNED, "x + self.table.weight[torch.arange(x.shape[1]) % max_length]"),
)
add(
    "learned_last_row_repeated",
    "Positions beyond the table get its last row; raise a ValueError.",
    (LEARNED_TOO_FAR, "if False:"),
    (LEARNED, "x + self.table.weight[torch.arange(x.shape[1]).clamp(max=max_length - 1)]"),
)
add(
    "learned_width_unchecked",
    "An x of another width is not refused with a ValueError; width 1 would even be broadcast.",
    ("if x.shape[-1] != d_model:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "relative_indices", "pos-relative")
OFFSETS = "positions[None, :] - positions[:, None]"
CLIPPED = "offsets.clamp(-max_distance, max_distance) + max_distance"
add(
    "indices_i_minus_j",
    "Your entries are i - j; entry [i, j] looks from i to j, so it is j - i.",
    (OFFSETS, "positions[:, None] - positions[None, :]"),
)
add(
    "indices_not_clipped",
    "Your entries are not clipped; beyond max_distance there is no further vector, so cut j - i to "
    "-k..k.",
    (CLIPPED, "offsets + max_distance"),
)
add(
    "indices_not_shifted",
    "Your entries run from -k to k; add k, or Python reads the negative ones from the end of the "
    "table.",
    (CLIPPED, "offsets.clamp(-max_distance, max_distance)"),
)
add(
    "indices_absolute",
    "Your entries forget the direction; keep the sign of j - i.",
    (CLIPPED, "offsets.abs().clamp(max=max_distance)"),
)
add(
    "indices_absolute_shifted",
    "Left and right get the same entry; keep the sign of j - i before you add k.",
    (CLIPPED, "offsets.abs().clamp(max=max_distance) + max_distance"),
)
add(
    "indices_only_to_the_right",
    "All positions to the left get one entry: you clip to 0..k. Clip j - i to -k..k, then add k.",
    (CLIPPED, "offsets.clamp(0, max_distance)"),
)
add(
    "indices_clipped_to_2k",
    "You clip j - i to 0..2k; clip it to -k..k first and add k afterwards.",
    (CLIPPED, "offsets.clamp(0, 2 * max_distance)"),
)
add(
    "indices_upper_only",
    "You clip on one side only; far to the left the entry is cut to -k as well.",
    (CLIPPED, "offsets.clamp(max=max_distance) + max_distance"),
)
add(
    "indices_lower_only",
    "You clip on one side only; far to the right the entry is cut to k as well.",
    (CLIPPED, "offsets.clamp(min=-max_distance) + max_distance"),
)
add(
    "indices_one_less",
    "You clip to -(k-1)..k-1; the distance k itself still has a vector of its own.",
    (CLIPPED, "offsets.clamp(-max(max_distance - 1, 0), max(max_distance - 1, 0)) + max_distance"),
)
add(
    "indices_from_one",
    "Your entries are one too large: they run from 0 to 2k, the rows of the table.",
    (CLIPPED, "offsets.clamp(-max_distance, max_distance) + max_distance + 1"),
)
add(
    "indices_wrapped",
    "Your entries start again beyond 2k, as by a modulo; cut them instead.",
    (CLIPPED, "(offsets + max_distance) % (2 * max_distance + 1)"),
)
add(
    "indices_as_floats",
    "Your entries are floats and can't be an index; make them int64.",
    (CLIPPED, f"({CLIPPED}).float()"),
)
add(
    "indices_length_shift",
    "You add length - 1, as for a table with a row for each possible offset; after clipping to "
    "-k..k add k.",
    (CLIPPED, "offsets.clamp(-max_distance, max_distance) + length - 1"),
)
add(
    "indices_zero_refused",
    "max_distance=0 is refused; it is allowed, and all entries are 0.",
    ("if max_distance < 0:", "if max_distance < 1:"),
)
add(
    "indices_distance_unchecked",
    "A negative max_distance is not refused; raise a ValueError.",
    ("if max_distance < 0:", "if False:"),
)
add(
    "indices_length_unchecked",
    "A length below 1 is not refused with a ValueError.",
    ("if length < 1:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "RelativeSelfAttention", "pos-relative")
CONTENT = "scores = q @ k.transpose(-2, -1)  # (B, H, T, T)"
RELATIVE = 'scores = scores + torch.einsum("bhid,ijd->bhij", q, key_offsets)  # (B, H, T, T)'
SCALE = "scores = scores / math.sqrt(q.shape[-1])"
INDEX = "relative_indices(length, self.max_distance).to(x.device)"
CONTEXT = 'z = z + torch.einsum("bhij,ijd->bhid", weights, value_offsets)  # (B, H, T, Dh)'
HIDDEN = "~mask.broadcast_to(batch, length, length).unsqueeze(1)"
FILL = "scores.masked_fill(hidden, torch.finfo(scores.dtype).min)"
ZEROED = "torch.softmax(scores, dim=-1).masked_fill(hidden, 0.0)"
PLAIN = "weights = torch.softmax(scores, dim=-1)  # (B, H, T, T)\n        else:"
KEY_TABLE = "self.key_offsets[index]"
VALUE_TABLE = "self.value_offsets[index]"
KEY_PARAMETER = "self.key_offsets = nn.Parameter(torch.randn(distances, head_dim)"
VALUE_PARAMETER = "self.value_offsets = nn.Parameter(torch.randn(distances, head_dim)"
JOIN = "z.transpose(1, 2).reshape(batch, length, width)"
add(
    "relative_offsets_unscaled",
    "Only the content part of your scores is divided by √d_head; the product with the key offset "
    "is divided as well: add first, then scale.",
    (CONTENT, "scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])"),
    (SCALE, "pass"),
)
add(
    "relative_content_unscaled",
    "Only the offset part of your scores is divided by √d_head; add the two parts first, then "
    "scale the sum.",
    (RELATIVE, RELATIVE.replace("q, key_offsets", "q, key_offsets / math.sqrt(q.shape[-1])")),
    (SCALE, "pass"),
)
add(
    "relative_not_scaled",
    "Your scores are not divided by √d_head; divide the sum of both parts.",
    (SCALE, "pass"),
)
add(
    "relative_scaled_by_d_model",
    "Your scores are divided by √d_model; a head scales by the root of its own width, "
    "d_model / num_heads.",
    (SCALE, "scores = scores / math.sqrt(width)"),
)
add(
    "relative_scaled_by_width",
    "Your scores are divided by d_head; divide by its square root.",
    (SCALE, "scores = scores / q.shape[-1]"),
)
add(
    "relative_without_key_offsets",
    "Your scores lack the key offsets: nothing tells the query how far away a key is. Add q · a to "
    "q · k.",
    (RELATIVE, "pass"),
)
add(
    "relative_without_value_offsets",
    "Your output lacks the value offsets; what is averaged is v_j + a_ij, not v_j alone.",
    (CONTEXT, "pass"),
)
add(
    "relative_without_offsets",
    "Your result is that of attention without positions; both offset tables are unused.",
    (RELATIVE, "pass"),
    (CONTEXT, "pass"),
)
add(
    "relative_reversed",
    "Your offsets look the wrong way: pair (i, j) gets the vector of i - j. Use "
    "relative_indices(...)[i, j] for query i and key j.",
    (INDEX, f"{INDEX}.T"),
)
add(
    "relative_values_reversed",
    "Your value offsets look the wrong way: value j seen from i gets the vector of i - j.",
    (CONTEXT, CONTEXT.replace("ijd", "jid")),
)
add(
    "relative_keys_reversed",
    "Your key offsets look the wrong way: key j seen from i gets the vector of i - j.",
    (RELATIVE, RELATIVE.replace("ijd", "jid")),
)
add(
    "relative_offsets_swapped",
    "Your two tables have changed places; key_offsets belong into the scores and value_offsets "
    "into the output.",
    (KEY_TABLE, "nn.functional.embedding(index, self.value_offsets)"),
    (f"= {VALUE_TABLE}", "= self.key_offsets[index]"),
)
add(
    "relative_one_table",
    "You use key_offsets for the values too; they have a table of their own, value_offsets.",
    (VALUE_TABLE, "self.key_offsets[index]"),
)
add(
    "relative_offset_meets_key",
    "You multiply the offset by the key; the query i is what meets k_j + a_ij.",
    (
        RELATIVE,
        'scores = scores + torch.einsum("bhjd,ijd->bhij", k, key_offsets)',
    ),
)
add(
    "relative_values_not_weighted",
    "You add all value offsets of a row, each with weight 1; weigh them by the attention weights.",
    (CONTEXT, "z = z + value_offsets.sum(dim=1)"),
)
add(
    "relative_values_averaged",
    "You add the plain mean of the value offsets; weigh them by the attention weights.",
    (CONTEXT, "z = z + value_offsets.mean(dim=1)"),
)
add(
    "relative_softmax_over_queries",
    "Your weights sum to 1 over the queries; the softmax runs over the keys, dim=-1.",
    (PLAIN, PLAIN.replace("dim=-1", "dim=-2")),
    (ZEROED, ZEROED.replace("dim=-1", "dim=-2")),
)
add(
    "relative_mask_ignored",
    "Your result matches ignoring the mask; where it is False the weight is 0.",
    (FILL, "scores"),
    (ZEROED, "torch.softmax(scores, dim=-1)"),
)
add(
    "relative_mask_inverted",
    "Your mask is read the wrong way round; True means may attend.",
    (HIDDEN, HIDDEN.removeprefix("~")),
)
add(
    "relative_mask_zero_before",
    "You write 0 over masked scores; exp(0) is 1, so they still get weight. Write -inf or a very "
    "large negative number.",
    (FILL, "scores.masked_fill(hidden, 0.0)"),
    (ZEROED, "torch.softmax(scores, dim=-1)"),
)
add(
    "relative_mask_zero_after",
    "You write 0 over masked weights after the softmax only; the rest of the row then sums to less "
    "than 1. Mask the scores first.",
    (FILL, "scores"),
)
add(
    "relative_mask_per_head",
    "A (B, T, T) mask lacks the axis of the heads, so example b's mask falls on head b or fails; "
    "unsqueeze it at dimension 1.",
    (HIDDEN, "~mask"),
)
add(
    "relative_mask_on_queries",
    "Your mask hides rows where it should hide columns: it is transposed. mask[i, j] says whether "
    "i may attend to j.",
    (HIDDEN, f"({HIDDEN}).transpose(-2, -1)"),
)
add(
    "relative_nan_rows",
    "A fully masked row becomes NaN; a softmax of nothing but -inf has no value. Give such rows "
    "the weight 0.",
    (FILL, 'scores.masked_fill(hidden, float("-inf"))'),
    (ZEROED, "torch.softmax(scores, dim=-1)"),
)
add(
    "relative_uniform_rows",
    "A fully masked row becomes uniform, since all its scores are the same large negative number; "
    "set masked weights to 0 after the softmax.",
    (ZEROED, "torch.softmax(scores, dim=-1)"),
)
add(
    "relative_masked_row_zero",
    "The output of a fully masked row is 0 in your answer; it passes out_proj like the others, so "
    "its bias is what remains.",
    (
        "return self.out_proj(z), weights",
        "output = self.out_proj(z)\n"
        "        if mask is not None:\n"
        "            output = output.masked_fill(hidden[:, 0].all(-1, keepdim=True), 0.0)\n"
        "        return output, weights",
    ),
)
add(
    "relative_mask_unchecked",
    "A mask that is not bool is not refused; raise a ValueError, since ~ and masked_fill need "
    "True and False.",
    ("if mask.dtype != torch.bool:", "if False:"),
    (HIDDEN, HIDDEN.replace("mask.", "mask.bool().")),
)
add(
    "relative_offsets_per_head",
    "Each of your heads has offsets of its own; the tables are shared by the heads, "
    "(2k + 1, d_model / num_heads).",
    (KEY_PARAMETER, KEY_PARAMETER.replace("(distances", "(num_heads, distances")),
    (VALUE_PARAMETER, VALUE_PARAMETER.replace("(distances", "(num_heads, distances")),
    (KEY_TABLE, "self.key_offsets[:, index]"),
    (VALUE_TABLE, "self.value_offsets[:, index]"),
    (RELATIVE, RELATIVE.replace("ijd", "hijd")),
    (CONTEXT, CONTEXT.replace(",ijd", ",hijd")),
)
add(
    "relative_too_few_offsets",
    "Your tables have 2k rows; offsets from -k to k are 2k + 1, with 0 among them.",
    ("distances = 2 * max_distance + 1", "distances = 2 * max_distance"),
)
add(
    "relative_one_sided_offsets",
    "Your tables have k + 1 rows, for distances without direction; offsets from -k to k are "
    "2k + 1.",
    ("distances = 2 * max_distance + 1", "distances = max_distance + 1"),
    (INDEX, f"({INDEX} - self.max_distance).abs()"),
)
add(
    "relative_offsets_of_full_width",
    "Your offsets are d_model wide; they meet the queries of one head, so they are "
    "d_model / num_heads wide.",
    (KEY_PARAMETER, KEY_PARAMETER.replace("head_dim)", "d_model)")),
    (VALUE_PARAMETER, VALUE_PARAMETER.replace("head_dim)", "d_model)")),
)
add(
    "relative_offsets_detached",
    "No gradient reaches your offset tables, so they would never be learned; don't detach them.",
    (KEY_TABLE, "self.key_offsets.detach()[index]"),
    (VALUE_TABLE, "self.value_offsets.detach()[index]"),
)
add(
    "relative_split_by_view",
    "Your heads match view(B, H, T, Dh) of the projections, which mixes positions and features; "
    "view as (B, T, H, Dh), then swap the two.",
    ("q = self.q_proj(x).view(heads).transpose(1, 2)", "q = self.q_proj(x).view(split)"),
    ("k = self.k_proj(x).view(heads).transpose(1, 2)", "k = self.k_proj(x).view(split)"),
    ("v = self.v_proj(x).view(heads).transpose(1, 2)", "v = self.v_proj(x).view(split)"),
    (
        "heads = (batch, length, self.num_heads, -1)",
        "split = (batch, self.num_heads, length, -1)",
    ),
)
add(
    "relative_merged_without_transpose",
    "Your heads are joined without swapping heads and positions back; transpose(1, 2) before the "
    "reshape.",
    (JOIN, "z.reshape(batch, length, width)"),
)
add(
    "relative_weights_averaged",
    "You return the mean of the weights over the heads; return those of every head, (B, H, T, T).",
    ("return self.out_proj(z), weights", "return self.out_proj(z), weights.mean(dim=1)"),
)
add(
    "relative_without_out_proj",
    "Your output lacks out_proj; it mixes the heads and is always applied.",
    ("return self.out_proj(z), weights", "return z, weights"),
)
add(
    "relative_output_only",
    "You return the output only; return the pair (output, weights).",
    ("return self.out_proj(z), weights", "return self.out_proj(z)"),
)
add(
    "relative_without_biases",
    "Your projections have no biases; all four have one.",
    *(
        (
            f"self.{name} = nn.Linear(d_model, d_model)",
            f"self.{name} = nn.Linear(d_model, d_model, bias=False)",
        )
        for name in ("q_proj", "k_proj", "v_proj", "out_proj")
    ),
)
add(
    "relative_heads_unchecked",
    "Heads that don't divide d_model are not refused; test the remainder when the module is "
    "created.",
    ("if d_model % num_heads != 0:", "if False:"),
)
add(
    "relative_width_unchecked",
    "An x of another width than d_model is not refused with a ValueError.",
    ("if width != self.q_proj.in_features:", "if False:"),
)
add(
    "relative_nan_gradients",
    "The gradients of a fully masked row are NaN: its softmax is taken over -inf only, and what is "
    "added to the scores keeps the NaN. Fill with the smallest finite number instead.",
    (
        "scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)",
        "scores = scores + torch.zeros_like(scores).masked_fill(hidden, -torch.inf)",
    ),
    (
        "torch.softmax(scores, dim=-1).masked_fill(hidden, 0.0)",
        "torch.nan_to_num(torch.softmax(scores, dim=-1)).masked_fill(hidden, 0.0)",
    ),
)
