"""Known mistakes of `positional_encoding-tokens`: merges, pieces of words, embeddings.

Merges applied in the order of the text, a word cut up as far as it goes.
"""

from __future__ import annotations

from autograder.units.variants import Misconception, mistakes_in

MISCONCEPTIONS: list[Misconception] = []


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
    "by two positions after a merge.",
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
    "The last id is lost when it belongs to no pair; a loop over pairs ends one position before "
    "the end, so add what is left.",
    ("while position < len(ids):", "while position < len(ids) - 1:"),
)
add(
    "merge_last_pair_missed",
    "A pair at the very end of the list is never found; the last position where one can begin is "
    "len(ids) - 2.",
    (
        "if tuple(ids[position : position + 2]) == pair:",
        "if position < len(ids) - 2 and tuple(ids[position : position + 2]) == pair:",
    ),
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
    "You count (a, a) in aaa once; every position where the two are adjacent counts, and "
    "there are two.",
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
    "bpe_stale_counts",
    "You add the pairs that a merge makes, but still count the neighbours that it breaks up: after "
    "ab, the pairs (x, a) and (b, y) beside it are gone. Take them off, or count anew.",
    code=_train("""
    words = [list(chunk.encode("utf-8")) for chunk in chunks(text)]
    counts = Counter(pair for ids in words for pair in itertools.pairwise(ids))
    merges = []
    for new_id in range(256, 256 + num_merges):
        if not counts:
            break
        best, _ = min(counts.items(), key=lambda item: (-item[1], item[0]))
        merges.append(best)
        del counts[best]
        words = [merge_pair(ids, best, new_id) for ids in words]
        for ids in words:
            counts.update(pair for pair in itertools.pairwise(ids) if new_id in pair)
    return merges
"""),
)
add(
    "bpe_ids_from_257",
    "Your first merge makes the id 257; the bytes end at 255, so it makes 256.",
    ("range(256, 256 + num_merges)", "range(257, 257 + num_merges)"),
)
add(
    "bpe_longest_chunks",
    "You choose the pair that stands in most chunks; count every position where it stands, several "
    "times in one chunk too.",
    ("for pair in itertools.pairwise(ids):", "for pair in set(itertools.pairwise(ids)):"),
)
add(
    "bpe_negative_accepted",
    "A negative num_merges is not refused; raise a ValueError.",
    ("if num_merges < 0:", "if False:"),
)
add(
    "bpe_limited",
    "You stop at a number of merges of your own; go on until there are num_merges or no pair is "
    "left.",
    ("range(256, 256 + num_merges)", "range(256, 256 + min(num_merges, 100))"),
)
add(
    "bpe_line_ends",
    "You write the text's line ends anew; \\r is a byte like any other, so leave the text as it "
    "is.",
    ("Counter(chunks(text))", 'Counter(chunks(text.replace("\\r\\n", "\\n")))'),
)
add(
    "bpe_one_too_many",
    "You learn one merge more than num_merges; the ids run from 256 to 255 + num_merges.",
    ("range(256, 256 + num_merges)", "range(256, 257 + num_merges)"),
)
add(
    "bpe_one_too_few",
    "You learn one merge less than num_merges; the ids run from 256 to 255 + num_merges.",
    ("range(256, 256 + num_merges)", "range(256, 255 + num_merges)"),
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
    "encode_backwards",
    "You go through the merges from the last one learned to the first; go through them in the "
    "order of learning.",
    code=_encode("""
        for number in reversed(range(len(merges))):
            ids = merge_pair(ids, merges[number], 256 + number)
"""),
)
add(
    "encode_smallest_pair",
    "You apply the smallest pair, which decides between equals in training only; the merge that "
    "was learned first goes first.",
    (EARLIEST, "min(itertools.pairwise(ids), key=lambda pair: (pair not in rank, pair))"),
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
    "You take the longest known token at each position; BPE replays its merges in the order of "
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
    "encode_line_ends",
    "You write the text's line ends anew, so that it doesn't come back from its ids; \\r is a byte "
    "like any other.",
    ("in chunks(text):", 'in chunks(text.replace("\\r\\n", "\\n")):'),
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
    "decode_stripped",
    "You strip white space at the start of the text; it is text as well, so return all of it.",
    (f"return {JOINED}", f"return {JOINED}.lstrip('\\n')"),
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


def _wordpiece(body: str) -> str:
    """A wordpiece_encode that refuses the empty word, knows its limit and goes on with `body`."""
    return f"""
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
{body}
"""


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
    "wordpiece_no_single_characters",
    "Pieces of a single character are never found; the smallest end is start + 1.",
    ("range(len(word), start, -1)", "range(len(word), start + 1, -1)"),
)
add(
    "wordpiece_in_order",
    "You take the first piece in the order of the vocabulary; the longest that fits comes first.",
    code=_wordpiece("""
    pieces, rest, lead = [], word, ""
    while rest:
        for piece in vocabulary:
            if len(piece) > len(lead) and (lead + rest).startswith(piece):
                break
        else:
            return [unknown]
        pieces.append(piece)
        rest, lead = rest[len(piece) - len(lead) :], prefix
    return pieces
"""),
)
add(
    "wordpiece_from_the_end",
    "You cut the word from its end, the longest last piece first; begin at its beginning.",
    code=_wordpiece("""
    pieces, end = [], len(word)
    while end > 0:
        for start in range(end):
            piece = (prefix if start > 0 else "") + word[start:end]
            if piece in vocabulary:
                break
        else:
            return [unknown]
        pieces.insert(0, piece)
        end = start
    return pieces
"""),
)
add(
    "wordpiece_prefix_optional",
    "After the first piece you also take pieces without the prefix; those begin a word, and only "
    "those with the prefix continue it.",
    code=_wordpiece("""
    pieces, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = (prefix if start > 0 else "") + word[start:end]
            if piece not in vocabulary:
                piece = word[start:end]
            if piece in vocabulary:
                break
        else:
            return [unknown]
        pieces.append(piece)
        start = end
    return pieces
"""),
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
    code=_wordpiece("""
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
"""),
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
    "wordpiece_blank_refused",
    "A word of white space is refused; only a word without any character is empty.",
    ("if not word:", "if not word.strip():"),
)
add(
    "wordpiece_words_kept",
    "You keep the pieces of a word and give them out again, though the vocabulary is another one; "
    "cut each word anew.",
    ("def wordpiece_encode(", "WORDS = {}\n\n\ndef wordpiece_encode("),
    (
        "    known = set(vocabulary)\n",
        "    known = set(vocabulary)\n    if word in WORDS:\n        return list(WORDS[word])\n",
    ),
    ("    return pieces\n", "    WORDS[word] = tuple(pieces)\n    return pieces\n"),
)
add(
    "wordpiece_changes_its_vocabulary",
    "You change the vocabulary in place, as sort and append do; a piece's index in it is its id, "
    "so leave it as it is.",
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
    "Your embeddings are right, but no gradient reaches the table; don't detach or freeze it.",
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
    "embedding_int64_only",
    "You refuse ids of every dtype but torch.int64; int32 is an integer type as well.",
    (
        "if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:",
        "if ids.dtype != torch.int64:",
    ),
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
