"""Known mistakes of `seq2seq-text`: words, ids, padding.

Special tokens that come twice, sequences that lose their end, a mask read off the ids.
"""

from __future__ import annotations

from autograder.units.variants import Misconception, mistakes_in

MISCONCEPTIONS: list[Misconception] = []


# --------------------------------------------------------------------------------------------
# Words and ids
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "build_vocabulary", "seq-vocabulary")
ORDER = "key=lambda token: (-counts[token], token)"
RESULT = "(SPECIALS + frequent)[:max_size]"
add(
    "vocabulary_ties_by_appearance",
    "Your words of equal frequency stand in the order of their first appearance; ties go "
    "alphabetically, so sort by (-count, word).",
    (ORDER, "key=lambda token: -counts[token]"),
)
add(
    "vocabulary_ties_backwards",
    "Your words of equal frequency stand in reverse alphabetical order: reverse=True turns both "
    "keys; sort by (-count, word) instead.",
    (ORDER, "key=lambda token: (counts[token], token), reverse=True"),
)
add(
    "vocabulary_ties_ignore_case",
    "Your ties are sorted without regard to upper and lower case; alphabetical means by code point "
    "here, which is what sorting strings does.",
    (ORDER, "key=lambda token: (-counts[token], token.lower())"),
)
add(
    "vocabulary_rarest_first",
    "Your rarest words come first; sort by descending count, so that a limit on the size keeps the "
    "frequent words.",
    (ORDER, "key=lambda token: (counts[token], token)"),
)
add(
    "vocabulary_alphabetical",
    "Your words are sorted alphabetically only; the most frequent come first, and the alphabet "
    "decides among equals.",
    (ORDER, "key=lambda token: token"),
)
add(
    "vocabulary_not_sorted",
    "Your words stand in the order of their first appearance; sort them by descending count, then "
    "alphabetically.",
    (f"frequent.sort({ORDER})", "frequent = list(frequent)"),
)
add(
    "vocabulary_specials_last",
    "Your special tokens stand at the end; they come first, so that PAD, BOS, EOS and UNK have the "
    "ids 0 to 3 in every vocabulary.",
    (RESULT, "(frequent[: None if max_size is None else max_size - 4] + SPECIALS)"),
)
add(
    "vocabulary_without_specials",
    "Your vocabulary lacks the special tokens; it begins with <pad>, <bos>, <eos>, <unk>.",
    (RESULT, "frequent[:max_size]"),
)
add(
    "vocabulary_specials_twice",
    "A special token that stands in the text is entered twice; leave its string out when you "
    "collect the words, as it already has an id.",
    ("counts.pop(special, None)", "pass"),
)
add(
    "vocabulary_specials_take_a_place",
    "A special token in the text takes an entry among the max_size entries; leave specials out "
    "before you cut the list, not after.",
    ("counts.pop(special, None)", "pass"),
    (
        RESULT,
        "list(dict.fromkeys(SPECIALS + frequent[: None if max_size is None else max_size - 4]))",
    ),
)
add(
    "vocabulary_extends_specials",
    "Your vocabulary holds words of the text before: something outlives the call, such as SPECIALS "
    "itself, which append and += change. Begin a new list in each call, with list(SPECIALS), and "
    "run the cell that gives you SPECIALS again.",
    (
        f"return {RESULT}",
        "vocabulary = SPECIALS\n    vocabulary += frequent\n    return vocabulary[:max_size]",
    ),
)
add(
    "vocabulary_drops_angle_brackets",
    "Words in angle brackets, such as <b>, are left out of your vocabulary; only the four strings "
    "in SPECIALS are special.",
    ("if count >= min_count", 'if count >= min_count and token[:1] + token[-1:] != "<>"'),
)
add(
    "vocabulary_size_without_specials",
    "Your max_size counts the words without the special tokens; it is the length of the whole "
    "list, the four specials included.",
    (RESULT, "SPECIALS + frequent[:max_size]"),
)
add(
    "vocabulary_size_ignored",
    "Your vocabulary ignores max_size; cut the sorted list to that many entries.",
    (RESULT, "SPECIALS + frequent"),
)
add(
    "vocabulary_min_count_exclusive",
    "A word that occurs exactly min_count times is missing from your vocabulary; it belongs in: "
    "compare with >=.",
    ("if count >= min_count", "if count > min_count"),
)
add(
    "vocabulary_min_count_ignored",
    "Your vocabulary ignores min_count; leave out what occurs less often.",
    (" if count >= min_count", ""),
)
add(
    "vocabulary_counts_sentences",
    "You count in how many sentences a word occurs; its frequency is how often it occurs, several "
    "times in one sentence included.",
    (
        "Counter(token for sentence in sentences for token in sentence)",
        "Counter(token for sentence in sentences for token in set(sentence))",
    ),
)
add(
    "vocabulary_limits_unchecked",
    "A min_count below 1 or a max_size below 4 is not refused; raise a ValueError for both.",
    ("if min_count < 1:", "if False:"),
    ("if max_size is not None and max_size < len(SPECIALS):", "if False:"),
)
add(
    "vocabulary_empty_accepted",
    "An empty list of sentences is not refused; raise a ValueError, since nothing can be counted.",
    ("if not sentences:", "if False:"),
)
add(
    "vocabulary_no_words_refused",
    "Sentences without words are refused, though there are sentences; the vocabulary is then the "
    "four special tokens alone.",
    ("if not sentences:", "if not any(sentences):"),
)

add = mistakes_in(MISCONCEPTIONS, "encode", "seq-vocabulary")
REFUSED = "if vocabulary[: len(SPECIALS)] != SPECIALS:"
LOOKUP = "[position.get(token, UNK) for token in tokens]"
MARKED = "[BOS] * add_bos + ids + [EOS] * add_eos"
add(
    "encode_unknown_dropped",
    "Your code drops unknown words; each becomes UNK, so that the sentence keeps its length.",
    (LOOKUP, "[position[token] for token in tokens if token in position]"),
)
add(
    "encode_unknown_is_pad",
    "Your unknown words become 0, which is PAD; they become UNK, the id 3, or the model would take "
    "them for padding.",
    ("position.get(token, UNK)", "position.get(token, PAD)"),
)
add(
    "encode_unknown_raises",
    "Your code stops at an unknown word; look it up with a default: UNK.",
    ("position.get(token, UNK)", "position[token]"),
)
add(
    "encode_lower_case",
    "Your code changes words to lower case before it looks them up; take the tokens as they are.",
    ("position.get(token, UNK)", "position.get(token.lower(), UNK)"),
)
add(
    "encode_marks_always",
    "Your ids carry BOS and EOS whether or not they were asked for; both are off by default.",
    (MARKED, "[BOS] + ids + [EOS]"),
)
add(
    "encode_marks_never",
    "Your code ignores add_bos and add_eos; put BOS in front and EOS behind where they are True.",
    (MARKED, "ids"),
)
add(
    "encode_marks_swapped",
    "Your BOS and EOS have changed places; BOS begins a sentence and EOS ends it.",
    (MARKED, "[EOS] * add_bos + ids + [BOS] * add_eos"),
)
add(
    "encode_marks_at_one_end",
    "Your EOS stands in front of the sentence; it marks the end and goes behind the last token.",
    (MARKED, "[BOS] * add_bos + [EOS] * add_eos + ids"),
)
add(
    "encode_without_specials_offset",
    "Your ids are 4 too small: they count from the first ordinary word. A token's id is its index "
    "in the whole vocabulary, specials included.",
    ("enumerate(vocabulary)", "enumerate(vocabulary[4:])"),
)
add(
    "encode_vocabulary_unchecked",
    "A vocabulary that does not begin with the special tokens is not refused; compare its first "
    "four entries with SPECIALS and raise a ValueError.",
    (REFUSED, "if False:"),
)
add(
    "encode_vocabulary_membership",
    "You check that the special tokens occur in the vocabulary; they must be its first four "
    "entries in their order, or PAD, BOS, EOS and UNK would be other words.",
    (REFUSED, "if not set(SPECIALS) <= set(vocabulary):"),
)
add(
    "encode_bare_vocabulary_refused",
    "A vocabulary of the four special tokens alone is refused, though it begins with them; every "
    "other token becomes UNK.",
    (REFUSED, "if vocabulary[:4] != SPECIALS or len(vocabulary) == 4:"),
)
add(
    "encode_marks_not_doubled",
    "BOS or EOS is missing where the tokens already begin or end with its string; add_bos and "
    "add_eos put it there whatever the tokens are.",
    (
        MARKED,
        "[BOS] * (add_bos and ids[:1] != [BOS]) + ids + [EOS] * (add_eos and ids[-1:] != [EOS])",
    ),
)
add(
    "encode_changes_its_input",
    "BOS and EOS are written into the list of tokens itself, so that the caller's sentence grows; "
    "make a new list.",
    (
        "    ids = [",
        '    if add_bos:\n        tokens.insert(0, "<bos>")\n'
        '    if add_eos:\n        tokens.append("<eos>")\n'
        "    add_bos = add_eos = False\n    ids = [",
    ),
)
add(
    "encode_specials_unknown",
    "A special token that stands among the tokens becomes UNK; it has an id in the vocabulary like "
    "every other token.",
    ("enumerate(vocabulary)}", "enumerate(vocabulary) if i > UNK}"),
)
add(
    "encode_table_kept",
    "You keep the table from tokens to ids and use it for another vocabulary of the same length; "
    "make it anew in each call.",
    ("def encode(", "TABLES = {}\n\n\ndef encode("),
    (
        "position = {token: i for i, token in enumerate(vocabulary)}",
        "position = TABLES.setdefault(\n"
        "        len(vocabulary), {token: i for i, token in enumerate(vocabulary)}\n    )",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "decode", "seq-vocabulary")
STOP = """            break
"""
add(
    "decode_past_eos",
    "Your text goes on after EOS; the sentence ends there, and what follows is padding or noise.",
    (STOP, "            continue\n"),
)
add(
    "decode_eos_ignored",
    "Your text shows <eos> as a word; stop before it.",
    ("if i == EOS:", "if False:"),
)
add(
    "decode_keeps_eos",
    "Your text stops after EOS and shows it; stop before it.",
    (STOP, "            tokens.append(vocabulary[i])\n            break\n"),
)
add(
    "decode_last_eos",
    "Your text ends at the last EOS; the first one ends the sentence.",
    (
        "for i in ids:",
        "for place, i in enumerate(ids):",
    ),
    (
        "if i == EOS:",
        "if i == EOS and EOS in ids[place + 1 :]:\n            continue\n        if i == EOS:",
    ),
)
add(
    "decode_stops_at_pad",
    "Your text stops at the first PAD; only EOS ends it, PAD is left out wherever it stands.",
    ("if i == EOS:", "if i in (EOS, PAD):"),
)
add(
    "decode_drops_unknown",
    "Your text leaves <unk> out; it stands for a word and must stay visible.",
    ("if i not in (PAD, BOS):", "if i not in (PAD, BOS, UNK):"),
)
add(
    "decode_bare_vocabulary_refused",
    "A vocabulary of the four special tokens alone is refused; every id below its length is a "
    "token of it.",
    ("    tokens = []", "    if len(vocabulary) == 4:\n        raise ValueError\n    tokens = []"),
)
add(
    "decode_drops_angle_brackets",
    "Your text leaves out words such as <b>, which begin like a special token; PAD and BOS are "
    "told by their ids.",
    ("if i not in (PAD, BOS):", 'if i == UNK or not vocabulary[i].startswith("<"):'),
)
add(
    "decode_keeps_marks",
    "Your text shows <pad> or <bos>; they carry no meaning for a reader and are left out.",
    ("if i not in (PAD, BOS):", "if True:"),
)
add(
    "decode_keeps_bos",
    "Your text shows <bos>; leave it out as you do with padding.",
    ("if i not in (PAD, BOS):", "if i != PAD:"),
)
add(
    "decode_keeps_pad",
    "Your text shows <pad>; leave it out as you do with BOS.",
    ("if i not in (PAD, BOS):", "if i != BOS:"),
)
add(
    "decode_bos_in_front_only",
    "You drop the first id whatever it is, as if every sequence began with BOS; drop BOS where it "
    "stands, and nothing else.",
    ("for i in ids:", "for i in ids[1:]:"),
)
add(
    "decode_negative_accepted",
    "A negative id counts from the end of the list in Python, so -1 becomes the last word; refuse "
    "it with a ValueError.",
    ("if not 0 <= i < len(vocabulary):", "if i >= len(vocabulary):"),
)
add(
    "decode_unchecked",
    "Ids outside the vocabulary are not refused with a ValueError; a list answers with an "
    "IndexError, or with a wrong word for a negative id.",
    ("if not 0 <= i < len(vocabulary):", "if False:"),
)
add(
    "decode_unknown_for_wrong_ids",
    "An id outside the vocabulary becomes <unk>; that hides a bug: raise a ValueError.",
    (
        'raise ValueError(f"id {i} is outside the vocabulary of {len(vocabulary)} tokens")',
        "i = UNK",
    ),
)
add(
    "decode_checks_past_eos",
    "An id behind EOS is refused, though nobody reads it; stop at EOS before you look further.",
    (
        "    tokens = []",
        "    if any(not 0 <= i < len(vocabulary) for i in ids):\n        raise ValueError\n"
        "    tokens = []",
    ),
)
add(
    "decode_changes_its_input",
    "Ids are taken out of the list that you are given, as remove and pop do; leave it as it is and "
    "collect the tokens in a new one.",
    (
        "    tokens = []",
        "    for mark in (PAD, BOS):\n        while mark in ids:\n            ids.remove(mark)\n"
        "    tokens = []",
    ),
)

# --------------------------------------------------------------------------------------------
# Padding
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "pad_to_length", "seq-padding")
KEPT = 'sequence[:length] if keep == "start" else sequence[-length:]'
FILL_IDS = "ids[row, : len(kept)] = torch.tensor(kept, dtype=torch.int64)"
FILL_MASK = "mask[row, : len(kept)] = True"
add(
    "pad_keep_swapped",
    'Your keep is the wrong way round: keep="start" keeps the first ids, keep="end" the last.',
    (KEPT, 'sequence[:length] if keep == "end" else sequence[-length:]'),
)
add(
    "pad_keep_ignored",
    'Your code always keeps the first ids; with keep="end" the last ones stay.',
    (KEPT, "sequence[:length]"),
)
add(
    "pad_on_the_left",
    "Your padding stands on the left; this exercise pads on the right.",
    (FILL_IDS, "ids[row, length - len(kept) :] = torch.tensor(kept, dtype=torch.int64)"),
    (FILL_MASK, "mask[row, length - len(kept) :] = True"),
)
add(
    "pad_mask_from_ids",
    "Your mask is ids != PAD, which takes a real id 0 for padding; the mask follows the lengths of "
    "the sequences.",
    (FILL_MASK, "mask[row] = ids[row] != PAD"),
)
add(
    "pad_mask_inverted",
    "Your mask is True at the padding; True means real token in this course.",
    ("    return ids, mask\n", "    return ids, ~mask\n"),
)
add(
    "pad_mask_as_numbers",
    "Your mask holds the numbers 0 and 1; a mask is a torch.bool tensor of True and False.",
    ("    return ids, mask\n", "    return ids, mask.long()\n"),
)
add(
    "pad_ids_as_floats",
    "Your ids are floating-point numbers; ids are torch.int64, or an embedding can't look them up.",
    ("    return ids, mask\n", "    return ids.float(), mask\n"),
)
add(
    "pad_order_of_results",
    "You return the mask first; the result is (ids, mask).",
    ("    return ids, mask\n", "    return mask, ids\n"),
)
add(
    "pad_repeats_last",
    "Your padding repeats the last id; it is PAD, the id 0.",
    (
        FILL_IDS,
        f"{FILL_IDS}\n        if kept:\n            ids[row, len(kept) :] = kept[-1]",
    ),
)
add(
    "pad_with_eos",
    "Your padding is EOS; it is PAD, the id 0.",
    ("torch.full((len(sequences), length), PAD)", "torch.full((len(sequences), length), EOS)"),
)
add(
    "pad_never_cut",
    "Longer sequences are not cut; every row has exactly `length` ids.",
    (
        "    ids = torch.full",
        "    length = max(length, max(map(len, sequences)))\n    ids = torch.full",
    ),
)
add(
    "pad_to_the_longest",
    "Your rows are as long as the longest sequence; here every row has `length` ids, even if none "
    "of the sequences is as long.",
    (
        "    ids = torch.full",
        "    length = min(length, max(1, max(map(len, sequences))))\n    ids = torch.full",
    ),
)
add(
    "pad_bool_accepted",
    "True and False are accepted as ids, because isinstance(True, int) holds in Python; look at "
    "type(i), or exclude bool.",
    ("type(i) is not int", "not isinstance(i, int)"),
)
add(
    "pad_false_accepted",
    "Of the two bools you refuse True only; False is no id either, though it equals 0. Look at "
    "type(i), or exclude bool.",
    ("type(i) is not int", "(not isinstance(i, int) or i is True)"),
)
add(
    "pad_ids_unchecked",
    "An id that is no int is not refused with a ValueError; look at the type of every id of every "
    "sequence, as torch.tensor(..., dtype=torch.int64) silently cuts 4.5 to 4.",
    ("if any(type(i) is not int for sequence in sequences for i in sequence):", "if False:"),
    (FILL_IDS, "ids[row, : len(kept)] = torch.tensor([int(i) for i in kept], dtype=torch.int64)"),
)
add(
    "pad_keep_unchecked",
    'A keep other than "start" and "end" is not refused; raise a ValueError, also where nothing '
    "is cut.",
    ('if keep not in ("start", "end"):', "if False:"),
)
add(
    "pad_length_unchecked",
    "A length below 1 is not refused; raise a ValueError.",
    ("if length < 1:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "pad_batch", "seq-padding")
LONGEST = "max((len(sequence) for sequence in sequences), default=0)"
PADDED = "pad_to_length(sequences, longest)"
add(
    "batch_padded_in_place",
    "Your pad_batch appends the padding to the lists that it was given; leave them as they are and "
    "write into a tensor of your own.",
    (
        f"return {PADDED}",
        f"padded = {PADDED}\n"
        "    for sequence in sequences:\n"
        "        sequence += [PAD] * (longest - len(sequence))\n"
        "    return padded",
    ),
)
add(
    "batch_to_the_shortest",
    "Your rows are as long as the shortest sequence, so ids are lost; take the longest.",
    (
        PADDED,
        "pad_to_length(sequences, max(1, min(len(sequence) for sequence in sequences)))",
    ),
)
add(
    "batch_to_the_first",
    "Your rows are as long as the first sequence; take the longest of all.",
    (PADDED, "pad_to_length(sequences, max(1, len(sequences[0])))"),
)
add(
    "batch_longest_is_limited",
    "Your rows end at a length that you have chosen; the longest sequence decides, however long.",
    (PADDED, "pad_to_length(sequences, min(longest, 512))"),
)
add(
    "batch_one_too_long",
    "Your rows are one longer than the longest sequence; no column should be padding only.",
    (PADDED, "pad_to_length(sequences, longest + 1)"),
)
add(
    "batch_drops_empty",
    "An empty sequence is dropped, so the rows no longer match the input; it becomes a row of "
    "padding.",
    (PADDED, "pad_to_length([sequence for sequence in sequences if sequence], longest)"),
)
add(
    "batch_sorted",
    "Your rows are sorted by length; keep the order of the sequences, or sources and targets come "
    "apart.",
    (PADDED, "pad_to_length(sorted(sequences, key=len, reverse=True), longest)"),
)
add(
    "batch_mask_from_ids",
    "Your mask is ids != PAD, which takes a real id 0 for padding; the mask follows the lengths.",
    (
        f"return {PADDED}",
        f"ids = {PADDED}[0]\n    return ids, ids != PAD",
    ),
)
add(
    "batch_on_the_left",
    "Your padding stands on the left; this exercise pads on the right.",
    (
        f"return {PADDED}",
        "rows = [[PAD] * (longest - len(sequence)) + sequence for sequence in sequences]\n"
        "    lengths = torch.tensor([len(sequence) for sequence in sequences]).unsqueeze(1)\n"
        "    pad_to_length(sequences, longest)\n"
        "    return torch.tensor(rows), torch.arange(longest) >= longest - lengths",
    ),
)
add(
    "batch_mask_inverted",
    "Your mask is True at the padding; True means real token in this course.",
    (f"return {PADDED}", f"ids, mask = {PADDED}\n    return ids, ~mask"),
)
add(
    "batch_empty_accepted",
    "A batch of nothing but empty sequences is not refused; raise a ValueError.",
    (
        "    if longest == 0:",
        "    if sequences and longest == 0:\n"
        "        return torch.zeros(len(sequences), 0, dtype=torch.int64), "
        "torch.zeros(len(sequences), 0, dtype=torch.bool)\n"
        "    if longest == 0:",
    ),
)
add(
    "batch_refuses_empty",
    "You refuse a batch in which one sequence is empty; only a batch of nothing but empty "
    "sequences is an error.",
    (LONGEST, "min((len(sequence) for sequence in sequences), default=0)"),
    (PADDED, "pad_to_length(sequences, max(map(len, sequences)))"),
)

add = mistakes_in(MISCONCEPTIONS, "sliding_windows", "seq-padding")
FURTHER = "math.ceil(max(0, len(sequence) - length) / stride)"
STARTS = "[stride * w for w in range(further + 1)]"
add(
    "windows_lose_the_tail",
    "Your windows lose the ids at the end: you keep full windows only. The last window may be "
    "padded, but no id is lost.",
    (FURTHER, "max(0, len(sequence) - length) // stride"),
)
add(
    "windows_one_too_many",
    "You have windows that start after the end was already reached; the last window is the first "
    "one whose end reaches the end of the sequence.",
    (STARTS, "list(range(0, len(sequence), stride))"),
)
add(
    "windows_extra_at_a_fit",
    "When the last window ends exactly with the sequence, you add another one; it would hold "
    "nothing new.",
    (FURTHER, "(len(sequence) - length) // stride + 1 if len(sequence) >= length else 0"),
)
add(
    "windows_stride_is_overlap",
    "Your windows overlap by `stride` ids; the stride is the distance from one start to the next.",
    (
        "further = math.ceil(max(0, len(sequence) - length) / stride)",
        "stride = max(1, length - stride)\n"
        "    further = math.ceil(max(0, len(sequence) - length) / stride)",
    ),
)
add(
    "windows_without_overlap",
    "Your windows start every `length` ids; they start every `stride` ids and so may overlap.",
    (
        "further = math.ceil(max(0, len(sequence) - length) / stride)",
        "stride = length\n    further = math.ceil(max(0, len(sequence) - length) / stride)",
    ),
)
add(
    "windows_last_moved_back",
    "Your last window is moved back so that it ends with the sequence; it starts at a multiple of "
    "the stride and is padded on the right.",
    (STARTS, f"[max(0, min(s, len(sequence) - length)) for s in {STARTS}]"),
)
add(
    "windows_limited",
    "You make no more windows than a number of your own, so that the rest of a long sequence is "
    "lost; go on until a window reaches the end.",
    (STARTS, f"{STARTS}[:100]"),
)
add(
    "windows_mask_all_real",
    "Your mask is True in the padding of the last window; only real ids are True.",
    (
        "return pad_to_length([sequence[s : s + length] for s in starts], length)",
        "windows, mask = pad_to_length([sequence[s : s + length] for s in starts], length)\n"
        "    return windows, torch.ones_like(mask)",
    ),
)
add(
    "windows_mask_from_ids",
    "Your mask is windows != PAD, which takes a real id 0 for padding; the mask follows the length "
    "of the sequence.",
    (
        "return pad_to_length([sequence[s : s + length] for s in starts], length)",
        "windows, mask = pad_to_length([sequence[s : s + length] for s in starts], length)\n"
        "    return windows, windows != PAD",
    ),
)
add(
    "windows_mask_new_only",
    "Your mask is True only at the ids that the window before did not hold; every real id is True, "
    "overlap included.",
    (
        "return pad_to_length([sequence[s : s + length] for s in starts], length)",
        "windows, mask = pad_to_length([sequence[s : s + length] for s in starts], length)\n"
        "    mask[1:, : length - stride] = False\n"
        "    return windows, mask",
    ),
)
add(
    "windows_gaps_accepted",
    "A stride larger than the length is not refused, though ids between two windows would be lost; "
    "raise a ValueError.",
    ("if not 1 <= stride <= length:", "if stride < 1:"),
)
add(
    "windows_stride_of_length_refused",
    "A stride equal to the length is refused; such windows touch without a gap and lose nothing.",
    ("if not 1 <= stride <= length:", "if not 1 <= stride < length:"),
)
add(
    "windows_empty_accepted",
    "An empty sequence is not refused; raise a ValueError.",
    ("if not sequence:", "if False:"),
)
