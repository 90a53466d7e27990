"""Known mistakes of the chapter `seq2seq`: the reference with one cell changed.

Each says to the student which mistake it is and what to do. Many stand in circulating notes and
code: the update gate the other way round, a reset gate before the product, halves of a sentence
for the two directions, a final state taken from the padding, a loss that averages averages, a beam
that forgets whose state is whose.

Within an exercise the order matters only where two mistakes give the same answers to everything
that a test asked: the first is then named.
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
    "A special token in the text takes a place among the max_size entries; leave specials out "
    "before you cut the list, not after.",
    ("counts.pop(special, None)", "pass"),
    (
        RESULT,
        "list(dict.fromkeys(SPECIALS + frequent[: None if max_size is None else max_size - 4]))",
    ),
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
    "Your ids are 4 too small: they count from the first ordinary word. A token's id is its place "
    "in the whole vocabulary, specials included.",
    ("enumerate(vocabulary)", "enumerate(vocabulary[4:])"),
)
add(
    "encode_vocabulary_unchecked",
    "A vocabulary that does not begin with the special tokens is not refused; compare its first "
    "four entries with SPECIALS and raise a ValueError.",
    ("if vocabulary[: len(SPECIALS)] != SPECIALS:", "if False:"),
)
add(
    "encode_vocabulary_membership",
    "You check that the special tokens occur in the vocabulary; they must be its first four "
    "entries in their order, or PAD, BOS, EOS and UNK would be other words.",
    (
        "if vocabulary[: len(SPECIALS)] != SPECIALS:",
        "if not set(SPECIALS) <= set(vocabulary):",
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
    "PAD and BOS are removed from the list of ids itself; leave it as it is and collect the tokens "
    "in a new one.",
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
    "pad_ids_unchecked",
    "Ids that are no ints are not refused with a ValueError; torch.tensor(..., dtype=torch.int64) "
    "silently cuts 4.5 to 4.",
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
    (FURTHER, "max(0, len(sequence) - length) // stride + 1 if len(sequence) > length else 0"),
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
    ("if not 1 <= stride <= length:", "if not 1 <= stride < max(2, length):"),
)
add(
    "windows_empty_accepted",
    "An empty sequence is not refused; raise a ValueError.",
    ("if not sequence:", "if False:"),
)

# --------------------------------------------------------------------------------------------
# Cells
# --------------------------------------------------------------------------------------------

CHECK_X = "if x.shape[-1] != input_size:"
CHECK_H = "if h.shape != (x.shape[0], hidden_size):"
FROM_INPUT = "x @ self.weight_ih.T + self.bias_ih"
FROM_STATE = "h @ self.weight_hh.T + self.bias_hh"

add = mistakes_in(MISCONCEPTIONS, "RNNCell", "seq-rnn")
RNN = "torch.tanh(from_input + from_state)"
add(
    "rnn_without_input_bias",
    "Your state lacks b_ih; both biases are added, that of the input and that of the state.",
    (FROM_INPUT, "x @ self.weight_ih.T"),
)
add(
    "rnn_without_state_bias",
    "Your state lacks b_hh; both biases are added, that of the input and that of the state.",
    (FROM_STATE, "h @ self.weight_hh.T"),
)
add(
    "rnn_one_bias",
    "Your cell has one bias; as in PyTorch there are two, bias_ih and bias_hh, though their sum "
    "would do.",
    ("self.bias_hh = nn.Parameter(torch.empty(hidden_size).uniform_(-bound, bound))", "pass"),
    (FROM_STATE, "h @ self.weight_hh.T"),
)
add(
    "rnn_sigmoid",
    "Your state matches a sigmoid; the plain cell uses tanh.",
    (RNN, "torch.sigmoid(from_input + from_state)"),
)
add(
    "rnn_relu",
    "Your state matches a ReLU; the plain cell uses tanh.",
    (RNN, "torch.relu(from_input + from_state)"),
)
add(
    "rnn_linear",
    "Your state has no tanh around it; without it the state can grow without bound, and many steps "
    "are no more than one linear map.",
    (RNN, "from_input + from_state"),
)
add(
    "rnn_two_tanh",
    "You take the tanh of the input's part and of the state's part; add them first, then take one "
    "tanh.",
    (RNN, "torch.tanh(from_input) + torch.tanh(from_state)"),
)
add(
    "rnn_state_ignored",
    "Your new state does not depend on the old one; add W_hh h + b_hh.",
    (RNN, "torch.tanh(from_input)"),
)
add(
    "rnn_state_not_transposed",
    "Your state is multiplied by W_hh without a transpose; vectors are rows here, so it is "
    "h @ weight_hh.T.",
    (FROM_STATE, "h @ self.weight_hh + self.bias_hh"),
)
add(
    "rnn_adds_old_state",
    "Your cell adds the old state to the tanh; that is a residual connection, which the plain cell "
    "has not.",
    (RNN, f"h + {RNN}"),
)
add(
    "rnn_weight_shapes",
    "Your weight_ih has the shape (I, H); as in PyTorch it is (H, I), one row for each unit of the "
    "state.",
    (
        "torch.empty(hidden_size, input_size).uniform_(-bound, bound)",
        "torch.empty(input_size, hidden_size).uniform_(-bound, bound)",
    ),
    (
        "hidden_size, input_size = self.weight_ih.shape",
        "input_size, hidden_size = self.weight_ih.shape",
    ),
    (FROM_INPUT, "x @ self.weight_ih + self.bias_ih"),
)
add(
    "rnn_batch_unchecked",
    "An h of another batch size or width is not refused with a ValueError; one of batch size 1 "
    "would silently be used for every row.",
    (CHECK_H, "if False:"),
)
add(
    "rnn_input_unchecked",
    "An x of another width is not refused with a ValueError; compare it with input_size first.",
    (CHECK_X, "if False:"),
)
add(
    "rnn_detached",
    "Your values are right, but the state is detached, so no gradient reaches earlier steps; a "
    "recurrent network learns through its states.",
    (FROM_STATE, "h.detach() @ self.weight_hh.T + self.bias_hh"),
)

add = mistakes_in(MISCONCEPTIONS, "GRUCell", "seq-gru")
MIX = "(1 - z) * n + z * h"
CANDIDATE = "torch.tanh(x_n + r * h_n)"
X_GATES = "x_r, x_z, x_n = from_input.chunk(3, dim=-1)"
H_GATES = "h_r, h_z, h_n = from_state.chunk(3, dim=-1)"
W_N = "self.weight_hh[2 * hidden_size :].T"
B_N = "self.bias_hh[2 * hidden_size :]"
add(
    "gru_z_swapped",
    "Your z and 1 - z have changed places; here z is the share of the old state: "
    "(1 - z) * n + z * h. Some books write it the other way round.",
    (MIX, "z * n + (1 - z) * h"),
)
add(
    "gru_order_z_r_n",
    "Your gates are in the order z, r, n; the rows of the parameters are in the order r, z, n.",
    (X_GATES, "x_z, x_r, x_n = from_input.chunk(3, dim=-1)"),
    (H_GATES, "h_z, h_r, h_n = from_state.chunk(3, dim=-1)"),
)
add(
    "gru_order_n_r_z",
    "Your candidate's rows come first; the rows of the parameters are in the order r, z, n.",
    (X_GATES, "x_n, x_r, x_z = from_input.chunk(3, dim=-1)"),
    (H_GATES, "h_n, h_r, h_z = from_state.chunk(3, dim=-1)"),
)
add(
    "gru_order_n_z_r",
    "Your gates are in the order n, z, r; the rows of the parameters are in the order r, z, n.",
    (X_GATES, "x_n, x_z, x_r = from_input.chunk(3, dim=-1)"),
    (H_GATES, "h_n, h_z, h_r = from_state.chunk(3, dim=-1)"),
)
add(
    "gru_reset_before_product",
    "Your reset gate multiplies the state before W_hn, as in Cho et al.; here it multiplies the "
    "product, bias included: r * (W_hn h + b_hn).",
    (CANDIDATE, f"torch.tanh(x_n + (r * h) @ {W_N} + {B_N})"),
)
add(
    "gru_reset_without_bias",
    "Your reset gate leaves the bias b_hn out; it multiplies the whole W_hn h + b_hn.",
    (CANDIDATE, f"torch.tanh(x_n + r * (h_n - {B_N}) + {B_N})"),
)
add(
    "gru_reset_on_both",
    "Your reset gate multiplies the input's part too; it resets only what comes from the old "
    "state: x_n + r * h_n.",
    (CANDIDATE, "torch.tanh(r * (x_n + h_n))"),
)
add(
    "gru_reset_on_input",
    "Your reset gate multiplies the input's part; it resets what comes from the old state: "
    "x_n + r * h_n.",
    (CANDIDATE, "torch.tanh(r * x_n + h_n)"),
)
add(
    "gru_reset_missing",
    "Your candidate does not use the reset gate; the state's part is multiplied by r.",
    (CANDIDATE, "torch.tanh(x_n + h_n)"),
)
add(
    "gru_candidate_sigmoid",
    "Your candidate is a sigmoid; it is a tanh, since a state may be negative.",
    (CANDIDATE, "torch.sigmoid(x_n + r * h_n)"),
)
add(
    "gru_gates_tanh",
    "Your gates are tanh; a gate is a sigmoid, a share between 0 and 1.",
    ("r = torch.sigmoid(x_r + h_r)", "r = torch.tanh(x_r + h_r)"),
    ("z = torch.sigmoid(x_z + h_z)", "z = torch.tanh(x_z + h_z)"),
)
add(
    "gru_without_input_bias",
    "Your cell lacks b_ih; both biases are added.",
    (FROM_INPUT, "x @ self.weight_ih.T"),
)
add(
    "gru_without_state_bias",
    "Your cell lacks b_hh; both biases are added, and that of the candidate inside the reset gate.",
    (FROM_STATE, "h @ self.weight_hh.T"),
)
add(
    "gru_candidate_only",
    "Your new state is the candidate alone; the update gate mixes it with the old state.",
    (MIX, "n"),
)
add(
    "gru_not_complementary",
    "Your shares do not add up to 1: n is added whole; it is (1 - z) * n + z * h.",
    (MIX, "n + z * h"),
)
add(
    "gru_tanh_of_result",
    "You take a tanh of the new state; the mixture of candidate and old state is the new state.",
    (MIX, f"torch.tanh({MIX})"),
)
add(
    "gru_batch_unchecked",
    "An h of another batch size or width is not refused with a ValueError; one of batch size 1 "
    "would silently be used for every row.",
    (CHECK_H, "if False:"),
)
add(
    "gru_input_unchecked",
    "An x of another width is not refused with a ValueError; compare it with input_size first.",
    (CHECK_X, "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "LSTMCell", "seq-lstm")
SPLIT = "i, f, g, o = (from_input + from_state).chunk(4, dim=-1)"
MEMORY = "torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)"
OUT = "torch.sigmoid(o) * torch.tanh(c)"
add(
    "lstm_input_and_forget_swapped",
    "Your input and forget gates have changed places; the rows are in the order i, f, g, o.",
    (SPLIT, SPLIT.replace("i, f, g, o", "f, i, g, o")),
)
add(
    "lstm_order_i_f_o_g",
    "Your gates are in the order i, f, o, g, as in several papers; PyTorch's rows are in the order "
    "i, f, g, o.",
    (SPLIT, SPLIT.replace("i, f, g, o", "i, f, o, g")),
)
add(
    "lstm_order_f_i_o_g",
    "Your gates are in the order f, i, o, g; the rows are in the order i, f, g, o.",
    (SPLIT, SPLIT.replace("i, f, g, o", "f, i, o, g")),
)
add(
    "lstm_order_i_g_f_o",
    "Your gates are in the order i, g, f, o; the rows are in the order i, f, g, o.",
    (SPLIT, SPLIT.replace("i, f, g, o", "i, g, f, o")),
)
add(
    "lstm_output_without_tanh",
    "Your h is o * c; the output gate opens tanh(c), not c itself.",
    (OUT, "torch.sigmoid(o) * c"),
)
add(
    "lstm_output_of_old_memory",
    "Your h shows the old memory; it is o * tanh of the new c.",
    (f"c = {MEMORY}", f"old, c = c, {MEMORY}"),
    (OUT, "torch.sigmoid(o) * torch.tanh(old)"),
)
add(
    "lstm_candidate_sigmoid",
    "Your candidate g is a sigmoid; it is a tanh, since the memory must be able to fall.",
    ("torch.tanh(g)", "torch.sigmoid(g)"),
)
add(
    "lstm_candidate_linear",
    "Your candidate lacks its tanh: it is tanh(g).",
    ("torch.tanh(g)", "g"),
)
add(
    "lstm_output_gate_tanh",
    "Your output gate is a tanh; gates are sigmoids, shares between 0 and 1.",
    ("torch.sigmoid(o)", "torch.tanh(o)"),
)
add(
    "lstm_coupled_gates",
    "Your input share is 1 - f, as in a GRU; an LSTM has an input gate of its own.",
    (MEMORY, "torch.sigmoid(f) * c + (1 - torch.sigmoid(f)) * torch.tanh(g)"),
)
add(
    "lstm_without_forgetting",
    "Your memory is never forgotten: the old c is added whole. The forget gate multiplies it.",
    (MEMORY, "c + torch.sigmoid(i) * torch.tanh(g)"),
)
add(
    "lstm_forget_inverted",
    "Your forget gate is inverted; f is the share of the memory that is kept.",
    (MEMORY, "(1 - torch.sigmoid(f)) * c + torch.sigmoid(i) * torch.tanh(g)"),
)
add(
    "lstm_forget_bias_added",
    "You add 1 to the forget gate in forward; some libraries do that by initialising its bias, and "
    "then it is part of the parameter.",
    (MEMORY, "torch.sigmoid(f + 1.0) * c + torch.sigmoid(i) * torch.tanh(g)"),
)
add(
    "lstm_returns_c_first",
    "You return (c, h); the result is (h, c).",
    ("return h, c", "return c, h"),
)
add(
    "lstm_state_is_c_h",
    "You read the state as (c, h); it is (h, c).",
    ("h, c = state", "c, h = state"),
)
add(
    "lstm_gates_see_the_memory",
    "Your gates read the memory c; they read the input x and the output h of the step before.",
    (FROM_STATE, "c @ self.weight_hh.T + self.bias_hh"),
)
add(
    "lstm_without_input_bias",
    "Your cell lacks b_ih; both biases are added.",
    (FROM_INPUT, "x @ self.weight_ih.T"),
)
add(
    "lstm_without_state_bias",
    "Your cell lacks b_hh; both biases are added.",
    (FROM_STATE, "h @ self.weight_hh.T"),
)
add(
    "lstm_memory_unchecked",
    "A c of another width or batch size is not refused with a ValueError; it is part of the state "
    "as h is.",
    ('(("h", h), ("c", c))', '(("h", h),)'),
)
add(
    "lstm_state_unchecked",
    "States of another width or batch size are not refused with a ValueError; compare the shapes "
    "of h and c with (batch of x, hidden_size).",
    ("if part.shape != wanted:", "if False:"),
)
add(
    "lstm_input_unchecked",
    "An x of another width is not refused with a ValueError; compare it with input_size first.",
    (CHECK_X, "if False:"),
)

# --------------------------------------------------------------------------------------------
# Encoders
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "Encoder", "seq-encoder")
CARRY = "torch.where(real, a, b) for a, b in zip(new, state, strict=True)"
KEEP = "states.append(torch.where(real, state[0], zeros))"
FINAL = "final = state if lstm else state[0]"
TOGETHER = "return torch.stack(states, dim=1), final"
IDS_EMPTY = "if ids.numel() == 0:"
IDS_TYPE = "if ids.dtype != torch.int64:"
IDS_RANGE = "if ids.min() < 0 or ids.max() >= vocab_size:"
MASK_FORM = "if mask.dtype != torch.bool or mask.shape != ids.shape:"
MASK_ROWS = "if not mask.any(dim=1).all():"
NO_MASK = "if mask is None:\n            mask = torch.ones_like(ids, dtype=torch.bool)"
add(
    "encoder_mask_ignored",
    "Your states go on through the padding; where the mask is False the state is carried over "
    "unchanged, and its row of `states` is 0.",
    (CARRY, "a for a in new"),
    (KEEP, "states.append(state[0])"),
)
add(
    "encoder_final_after_padding",
    "Your final state has gone on through the padding: it is the one at the last column. Carry the "
    "state over unchanged where the mask is False.",
    (CARRY, "a for a in new"),
)
add(
    "encoder_final_column_of_states",
    "Your final state is the last column of `states`, which is 0 in a padded row; it is the state "
    "after the row's last real token.",
    (FINAL, "final = (states[-1], state[1] * real) if lstm else states[-1]"),
)
add(
    "encoder_final_first",
    "Your final state is the one after the first token; it is the one after the last real token.",
    (
        "states.append(torch.where(real, state[0], zeros))",
        KEEP + "\n            if t == 0:\n                first = state",
    ),
    (FINAL, "final = first if lstm else first[0]"),
)
add(
    "encoder_reset_in_padding",
    "Your state becomes 0 at padding; it is carried over unchanged, so that the final state is the "
    "one after the last real token.",
    (CARRY, "torch.where(real, a, zeros) for a in new"),
)
add(
    "encoder_states_not_zero",
    "Your states repeat the last real state in the padding; there the rows of `states` are 0.",
    (KEEP, "states.append(state[0])"),
)
add(
    "encoder_padding_embedded_as_zero",
    "Your code only zeroes the embeddings of the padding, and the cell goes on with them; carry "
    "the state over instead.",
    ("x = self.embedding(ids)", "x = self.embedding(ids) * mask.unsqueeze(-1)"),
    (CARRY, "a for a in new"),
    (KEEP, "states.append(state[0] * real)"),
)
add(
    "encoder_mask_from_ids",
    "You take the id 0 for padding whatever the mask says; the mask tells which tokens are real.",
    (NO_MASK, "if True:\n            mask = ids != PAD"),
    (MASK_ROWS, "if False:"),
)
add(
    "encoder_mask_inverted",
    "You read the mask the wrong way round; True means real token.",
    ("real = mask[:, t, None]", "real = ~mask[:, t, None]"),
)
add(
    "encoder_state_not_carried",
    "Each of your steps starts from zeros; hand the state on from step to step.",
    (
        "new = self.cell(x[:, t], state) if lstm else (self.cell(x[:, t], *state),)",
        "fresh = (zeros, zeros)\n"
        "            new = self.cell(x[:, t], fresh) if lstm else (self.cell(x[:, t], zeros),)",
    ),
)
add(
    "encoder_starts_from_ones",
    "Your first state is not 0; an encoder starts from zeros.",
    (
        "zeros = x.new_zeros(len(ids), self.hidden_size)",
        "zeros = x.new_zeros(len(ids), self.hidden_size) + 1",
    ),
    (KEEP, "states.append(state[0] * real)"),
)
add(
    "encoder_reversed",
    "You read the sentence from right to left, as Sutskever et al. did with their sources; this "
    "encoder reads from left to right.",
    ("for t in range(ids.shape[1]):", "for t in reversed(range(ids.shape[1])):"),
    (TOGETHER, "return torch.stack(states[::-1], dim=1), final"),
)
add(
    "encoder_time_first",
    "Your states have the shape (T, B, H); batches come first here: stack along dim=1.",
    (TOGETHER, "return torch.stack(states, dim=0), final"),
)
add(
    "encoder_lstm_states_hold_c",
    "Your LSTM's states are the memories c; `states` holds h, what the cell shows at each step.",
    (KEEP, "states.append(torch.where(real, state[-1], zeros))"),
)
add(
    "encoder_lstm_final_h_only",
    "Your LSTM's final state is h alone; it is the pair (h, c), or a decoder could not go on.",
    (FINAL, "final = state[0]"),
)
add(
    "encoder_lstm_memory_in_padding",
    "Your LSTM's memory c goes on through the padding while h is carried over; carry both.",
    (
        CARRY,
        "torch.where(real, a, b) if k == 0 else a\n"
        "                for k, (a, b) in enumerate(zip(new, state, strict=True))",
    ),
)
add(
    "encoder_order_of_results",
    "You return the final state first; the result is (states, final).",
    (TOGETHER, "return final, torch.stack(states, dim=1)"),
)
add(
    "encoder_always_gru",
    "Your encoder has a GRUCell whatever `cell` says; choose among the three.",
    ("self.kind = cell", 'cell = self.kind = "gru"'),
)
add(
    "encoder_other_cells_accepted",
    "A cell that is none of the three is not refused; raise a ValueError.",
    ("if cell not in cells:", "if False:"),
    ("cells[cell](embed_dim, hidden_size)", "cells.get(cell, GRUCell)(embed_dim, hidden_size)"),
)
add(
    "encoder_padding_idx",
    "Your embedding has padding_idx=0, so that the id 0 gets no gradient; it is a plain "
    "nn.Embedding(vocab_size, embed_dim).",
    (
        "self.embedding = nn.Embedding(vocab_size, embed_dim)",
        "self.embedding = nn.Embedding(vocab_size, embed_dim, padding_idx=PAD)",
    ),
)
add(
    "encoder_empty_rows_accepted",
    "A row without a real token is not refused; it has no last real token, so raise a ValueError.",
    (MASK_ROWS, "if False:"),
)
add(
    "encoder_mask_unchecked",
    "A mask of another type or shape is not refused with a ValueError; broadcasting would hide the "
    "mistake.",
    (MASK_FORM, "mask = mask.bool().expand(ids.shape)\n        if False:"),
)
add(
    "encoder_ids_unchecked",
    "Ids outside the vocabulary are not refused with a ValueError; nn.Embedding answers with an "
    "IndexError, and on a GPU with a crash.",
    (IDS_RANGE, "if False:"),
)
add(
    "encoder_id_of_size_accepted",
    "An id equal to vocab_size is not refused; the last valid id is vocab_size - 1.",
    (IDS_RANGE, "if ids.min() < 0 or ids.max() > vocab_size:"),
)
add(
    "encoder_type_unchecked",
    "Ids that are no integers are not refused with a ValueError; look at their dtype first.",
    (IDS_TYPE, "ids = ids.long()\n        if False:"),
)
add(
    "encoder_empty_accepted",
    "An empty batch is not refused with a ValueError; it is an error of the caller.",
    (IDS_EMPTY, "if False:"),
)
add(
    "encoder_padded_ids_unchecked",
    "An id outside the vocabulary is accepted where the mask is False; padded places count too, "
    "so check all ids.",
    (
        "        vocab_size = self.embedding.num_embeddings",
        "        if mask is not None and mask.dtype == torch.bool and mask.shape == ids.shape:\n"
        "            ids = ids.masked_fill(~mask, PAD)\n"
        "        vocab_size = self.embedding.num_embeddings",
    ),
)
add(
    "encoder_int32_accepted",
    "Ids of other integer types than torch.int64 are accepted; refuse them with a ValueError.",
    (
        "if ids.dtype != torch.int64:",
        "if ids.is_floating_point() or ids.dtype == torch.bool:",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "BidirectionalEncoder", "seq-bidirectional")
STEP = "h = torch.where(mask[:, t, None], cell(x[:, t], h), h)"
ORDERS = """            (self.forward_cell, range(length)),
            (self.backward_cell, reversed(range(length))),
"""
JOINED = "torch.cat(directions, dim=-1).masked_fill(~mask[:, :, None], 0.0)"
BRIDGED = "torch.tanh(self.bridge(torch.cat(finals, dim=-1)))"
add(
    "bidirectional_halves",
    "Your forward direction reads one half of the sentence and your backward direction the other; "
    "each reads the whole sentence, in opposite orders.",
    (
        STEP,
        "here = t < (length + 1) // 2 if cell is self.forward_cell else t >= (length + 1) // 2\n"
        "                if here:\n"
        f"                    {STEP}",
    ),
)
add(
    "bidirectional_backward_in_padding",
    "Your backward direction starts in the padding; it starts at the last real token of each row, "
    "from zeros.",
    (
        STEP,
        "new = cell(x[:, t], h)\n"
        "                back = cell is self.backward_cell\n"
        "                h = new if back else torch.where(mask[:, t, None], new, h)",
    ),
)
add(
    "bidirectional_mask_ignored",
    "Your cells go on through the padding; where the mask is False a state is carried over "
    "unchanged.",
    (STEP, "h = cell(x[:, t], h)"),
)
add(
    "bidirectional_not_aligned",
    "Your backward states stand in the order in which they were computed; at position t belongs "
    "the one that has read from the end up to t.",
    (
        "directions.append(torch.stack(states, dim=1))",
        "turned = states[::-1] if cell is self.backward_cell else states\n"
        "            directions.append(torch.stack(turned, dim=1))",
    ),
)
add(
    "bidirectional_backward_final_last",
    "Your bridge gets the backward state at the last token, which has read one word only; the "
    "final backward state is the one at position 0.",
    (
        "finals.append(h)",
        "last = mask.sum(dim=1) - 1\n"
        "            back = torch.stack(states, dim=1)[torch.arange(len(ids)), last]\n"
        "            finals.append(back if cell is self.backward_cell else h)",
    ),
)
add(
    "bidirectional_final_last_column",
    "Your bridge gets the states of the last column, which are 0 in a padded row; take each "
    "direction's own final state.",
    ("torch.cat(finals, dim=-1)", "states[:, -1]"),
)
add(
    "bidirectional_backward_first",
    "Your backward part comes first; the forward part does, in `states` and before the bridge.",
    ("torch.cat(directions, dim=-1)", "torch.cat(directions[::-1], dim=-1)"),
    ("torch.cat(finals, dim=-1)", "torch.cat(finals[::-1], dim=-1)"),
)
add(
    "bidirectional_bridge_order",
    "Your bridge gets [backward; forward]; the final forward state comes first.",
    ("torch.cat(finals, dim=-1)", "torch.cat(finals[::-1], dim=-1)"),
)
add(
    "bidirectional_summed",
    "You add the two directions; they stand side by side, which makes 2H features.",
    ("torch.cat(directions, dim=-1)", "(directions[0] + directions[1])"),
)
add(
    "bidirectional_both_forward",
    "Both of your directions read from left to right; the backward one reads from right to left.",
    ("reversed(range(length))", "range(length)"),
)
add(
    "bidirectional_one_cell",
    "Both directions use the forward cell; each has a cell with parameters of its own.",
    (
        "(self.backward_cell, reversed(range(length)))",
        "(self.forward_cell, reversed(range(length)))",
    ),
)
add(
    "bidirectional_backward_reads_forward",
    "Your backward direction starts from the final forward state; both directions start from "
    "zeros.",
    (
        "h = x.new_zeros(len(ids), self.hidden_size)  # (B, H)",
        "h = finals[0] if finals else x.new_zeros(len(ids), self.hidden_size)",
    ),
)
add(
    "bidirectional_bridge_without_tanh",
    "Your decoder's state lacks the tanh around the bridge.",
    (BRIDGED, "self.bridge(torch.cat(finals, dim=-1))"),
)
add(
    "bidirectional_bridge_ignored",
    "Your decoder's state is not made by the bridge; both final states go through bridge and tanh.",
    (BRIDGED, "torch.cat(finals, dim=-1)"),
)
add(
    "bidirectional_bridge_over_states",
    "You pass every state through the bridge; only the two final states go through it, and "
    "`states` keep their width 2H.",
    ("return states, ", "return torch.tanh(self.bridge(states)), "),
)
add(
    "bidirectional_mean_state",
    "Your bridge gets the mean of the states; it gets the final state of each direction.",
    (
        "torch.cat(finals, dim=-1)",
        "states.sum(dim=1) / mask.sum(dim=1, keepdim=True)",
    ),
)
add(
    "bidirectional_states_not_zero",
    "Your states are not 0 in the padding, where carried states still stand; fill with 0 where the "
    "mask is False.",
    (".masked_fill(~mask[:, :, None], 0.0)", ""),
)
add(
    "bidirectional_empty_rows_accepted",
    "A row without a real token is not refused; raise a ValueError.",
    (MASK_ROWS, "if False:"),
)
add(
    "bidirectional_mask_unchecked",
    "A mask of another type or shape is not refused with a ValueError.",
    (MASK_FORM, "mask = mask.bool().expand(ids.shape)\n        if False:"),
)
add(
    "bidirectional_ids_unchecked",
    "Ids outside the vocabulary are not refused with a ValueError; nn.Embedding answers with an "
    "IndexError.",
    (IDS_RANGE, "if False:"),
)
add(
    "bidirectional_padded_ids_unchecked",
    "An id outside the vocabulary is accepted where the mask is False; padded places count too, "
    "so check all ids.",
    (
        "        vocab_size = self.embedding.num_embeddings",
        "        if mask is not None and mask.dtype == torch.bool and mask.shape == ids.shape:\n"
        "            ids = ids.masked_fill(~mask, PAD)\n"
        "        vocab_size = self.embedding.num_embeddings",
    ),
)
add(
    "bidirectional_int32_accepted",
    "Ids of other integer types than torch.int64 are accepted; refuse them with a ValueError.",
    (
        "if ids.dtype != torch.int64:",
        "if ids.is_floating_point() or ids.dtype == torch.bool:",
    ),
)
add(
    "bidirectional_padding_idx",
    "padding_idx freezes the row of id 0, so that it never learns; the mask is what says what "
    "padding is: leave padding_idx out.",
    (
        "self.embedding = nn.Embedding(vocab_size, embed_dim)",
        "self.embedding = nn.Embedding(vocab_size, embed_dim, padding_idx=PAD)",
    ),
)

# --------------------------------------------------------------------------------------------
# Decoder and training
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "DecoderStep", "seq-decoder")
CELL_INPUT = "torch.cat([self.embedding(previous), context], dim=-1)"
OUTPUT = "self.output(torch.cat([state, context], dim=-1))"
NEW_STATE = "state = self.cell(cell_input, state)"
add(
    "step_context_first",
    "Your cell is fed [context; embedding]; the embedding of the previous token comes first.",
    (CELL_INPUT, "torch.cat([context, self.embedding(previous)], dim=-1)"),
)
add(
    "step_output_context_first",
    "Your output layer is fed [context; state]; the new state comes first.",
    (OUTPUT, "self.output(torch.cat([context, state], dim=-1))"),
)
add(
    "step_old_state_to_output",
    "Your logits come from the old state; update the state first, then feed the new one to the "
    "output layer.",
    (NEW_STATE, "old, state = state, self.cell(cell_input, state)"),
    (OUTPUT, "self.output(torch.cat([old, context], dim=-1))"),
)
add(
    "step_returns_old_state",
    "You return the old state; the next step needs the new one.",
    (NEW_STATE, "old, state = state, self.cell(cell_input, state)"),
    ("return logits, state", "return logits, old"),
)
add(
    "step_state_ignored",
    "Your cell starts from zeros at each step; hand it the state that the step before returned.",
    (NEW_STATE, "state = self.cell(cell_input, torch.zeros_like(state))"),
)
add(
    "step_context_only_in_output",
    "Your cell does not see the context; it is fed [embedding; context].",
    (CELL_INPUT, "torch.cat([self.embedding(previous), torch.zeros_like(context)], dim=-1)"),
)
add(
    "step_context_only_in_cell",
    "Your output layer does not see the context; it is fed [new state; context].",
    (OUTPUT, "self.output(torch.cat([state, torch.zeros_like(context)], dim=-1))"),
)
add(
    "step_narrow_cell",
    "Your cell has inputs of width embed_dim, without the context; it is "
    "GRUCell(embed_dim + context_size, hidden_size).",
    ("self.cell = GRUCell(embed_dim + context_size,", "self.cell = GRUCell(embed_dim,"),
    (CELL_INPUT, "self.embedding(previous)"),
)
add(
    "step_narrow_output",
    "Your output layer reads the state alone; it is nn.Linear(hidden_size + context_size, "
    "vocab_size), fed [new state; context].",
    ("self.output = nn.Linear(hidden_size + context_size,", "self.output = nn.Linear(hidden_size,"),
    (OUTPUT, "self.output(state)"),
)
add(
    "step_softmax",
    "You return probabilities; the logits are asked for, before any softmax.",
    (OUTPUT, f"torch.softmax({OUTPUT}, dim=-1)"),
)
add(
    "step_log_softmax",
    "You return log-probabilities; the logits are asked for, before any softmax.",
    (OUTPUT, f"torch.log_softmax({OUTPUT}, dim=-1)"),
)
add(
    "step_tanh_before_output",
    "You take a tanh before the output layer; it is fed [new state; context] as they are.",
    (OUTPUT, "self.output(torch.tanh(torch.cat([state, context], dim=-1)))"),
)
add(
    "step_order_of_results",
    "You return (state, logits); the result is (logits, state).",
    ("return logits, state", "return state, logits"),
)
add(
    "step_relu_on_embedding",
    "You pass the embedding through a ReLU, as a well-known tutorial does; here it goes to the "
    "cell as it is.",
    (CELL_INPUT, "torch.cat([torch.relu(self.embedding(previous)), context], dim=-1)"),
)
add(
    "step_ids_unchecked",
    "Tokens outside the vocabulary are not refused with a ValueError; nn.Embedding answers with an "
    "IndexError.",
    ("if ((previous < 0) | (previous >= vocab_size)).any():", "if False:"),
)
add(
    "step_widths_unchecked",
    "A state or context of another width or batch size is not refused with a ValueError; compare "
    "both shapes with what the step expects.",
    ("if part.shape != (len(previous), width):", "if False:"),
)
add(
    "step_batch_of_one_accepted",
    "A state or context of batch size 1 is stretched to the whole batch; only equal batch sizes "
    "are right, so raise a ValueError.",
    (
        "if part.shape != (len(previous), width):",
        "if part.shape[1] != width or part.shape[0] not in (1, len(previous)):",
    ),
    (
        "cell_input = torch.cat",
        "state = state.expand(len(previous), -1)\n"
        "        context = context.expand(len(previous), -1)\n"
        "        cell_input = torch.cat",
    ),
)
add(
    "step_padding_idx",
    "padding_idx freezes the row of id 0, so that it never learns; leave padding_idx out.",
    (
        "self.embedding = nn.Embedding(vocab_size, embed_dim)",
        "self.embedding = nn.Embedding(vocab_size, embed_dim, padding_idx=PAD)",
    ),
)
add(
    "step_int32_accepted",
    "Tokens of other integer types than torch.int64 are accepted; refuse them with a ValueError.",
    (
        "if previous.dtype != torch.int64:",
        "if previous.is_floating_point() or previous.dtype == torch.bool:",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "Seq2Seq", "seq-teacher-forcing")
DRAW = "torch.rand(target_in.shape, device=source.device) < teacher_forcing_ratio"
CHOOSE = "torch.where(forced[:, t], target_in[:, t], own)"
OWN = "own = steps[-1].argmax(dim=-1)"
START = "state = self.start(source, source_mask)"
add(
    "forcing_inverted",
    "Your probability is inverted: teacher_forcing_ratio is the probability of the token of "
    "target_in, not of the decoder's own.",
    (DRAW, "torch.rand(target_in.shape, device=source.device) >= teacher_forcing_ratio"),
)
add(
    "forcing_per_batch",
    "You draw once for the whole call; every row and every step is drawn for itself.",
    (
        DRAW,
        "(torch.rand(()) < teacher_forcing_ratio).expand(target_in.shape)",
    ),
)
add(
    "forcing_per_step",
    "You draw once for each step, for all rows together; every row and every step is drawn for "
    "itself.",
    (
        DRAW,
        "(torch.rand(target_in.shape[1]) < teacher_forcing_ratio).expand(target_in.shape)",
    ),
)
add(
    "forcing_per_row",
    "You draw once for each row, for all its steps; every row and every step is drawn for itself.",
    (
        DRAW,
        "(torch.rand(len(target_in), 1) < teacher_forcing_ratio).expand(target_in.shape)",
    ),
)
add(
    "forcing_always",
    "Your decoder is always fed target_in; with probability 1 - ratio the argmax of the logits "
    "before goes in.",
    (CHOOSE, "target_in[:, t]"),
)
add(
    "forcing_never",
    "Your decoder is never fed target_in after the first step; with probability "
    "teacher_forcing_ratio its token goes in.",
    (CHOOSE, "own"),
)
add(
    "forcing_rounded",
    "Your decoder is forced if the ratio is at least one half, without chance; draw for every row "
    "and step.",
    (DRAW, "torch.full(target_in.shape, teacher_forcing_ratio >= 0.5)"),
)
add(
    "forcing_only_in_training",
    "You look at the ratio in training mode only; it holds in evaluation too, where a caller asks "
    "for ratio 0.",
    (DRAW, "torch.rand(target_in.shape) < (teacher_forcing_ratio if self.training else 1.0)"),
)
add(
    "forcing_shifted",
    "Your step t is fed the token of target_in at t - 1; target_in begins with BOS already, so "
    "step t reads target_in[:, t].",
    (CHOOSE, "torch.where(forced[:, t], target_in[:, t - 1], own)"),
)
add(
    "forcing_sees_the_target",
    "Your step t is fed the token of target_in at t + 1, which is the answer it is asked for; it "
    "reads target_in[:, t].",
    (
        "previous = target_in[:, 0]",
        "target_in = torch.cat([target_in[:, 1:], target_in[:, -1:]], dim=1)\n"
        "        previous = target_in[:, 0]",
    ),
)
add(
    "forcing_bos_twice",
    "You put another BOS in front; target_in begins with BOS, and there are as many logits as "
    "tokens in it.",
    (
        "previous = target_in[:, 0]",
        "first = torch.full_like(target_in[:, :1], BOS)\n"
        "        target_in = torch.cat([first, target_in], dim=1)\n"
        "        forced = torch.cat([forced[:, :1], forced], dim=1)\n"
        "        previous = target_in[:, 0]",
    ),
)
add(
    "forcing_one_step_short",
    "Your logits are one step short; every token of target_in, the last one included, is fed and "
    "gives logits.",
    ("for t in range(target_in.shape[1]):", "for t in range(max(1, target_in.shape[1] - 1)):"),
)
add(
    "forcing_own_is_argmin",
    "Your decoder feeds itself its least likely token; take the argmax.",
    (OWN, "own = steps[-1].argmin(dim=-1)"),
)
add(
    "forcing_own_is_sampled",
    "Your decoder feeds itself a token drawn from its distribution; the argmax of the logits is "
    "asked for, so that a ratio of 0 is deterministic.",
    (OWN, "own = torch.multinomial(torch.softmax(steps[-1], dim=-1), 1).squeeze(-1)"),
)
add(
    "forcing_own_of_first_row",
    "Every row is fed the choice of the first one; each row goes on with its own argmax.",
    (OWN, "own = steps[-1][:1].argmax(dim=-1).expand(len(source))"),
)
add(
    "forcing_own_of_first_step",
    "Your decoder feeds itself its first choice again and again; take the argmax of the step "
    "before.",
    (OWN, "own = steps[0].argmax(dim=-1)"),
)
add(
    "forcing_state_restarted",
    "Your decoder starts again from the encoder's state at every step; hand the state on.",
    (
        "logits, state = self.step(previous, state)",
        "logits, _ = self.step(previous, state)",
    ),
)
add(
    "forcing_mask_ignored",
    "Your encoder does not get source_mask and reads the padding; pass it to start.",
    (START, "state = self.start(source)"),
    read="seq-encoder",
)
add(
    "forcing_starts_from_zeros",
    "Your decoder starts from zeros; its first state is the final state of the encoder.",
    (START, f"{START}\n        state = (torch.zeros_like(state[0]), state[1])"),
    read="seq-decoder",
)
add(
    "forcing_returns_probabilities",
    "You return probabilities; the logits are asked for, before any softmax.",
    ("steps.append(logits)", "steps.append(torch.softmax(logits, dim=-1))"),
)
add(
    "forcing_time_first",
    "Your logits have the shape (U, B, V); batches come first: stack along dim=1.",
    ("torch.stack(steps, dim=1)", "torch.stack(steps, dim=0)"),
)
add(
    "forcing_ratio_unchecked",
    "A ratio outside [0, 1] is not refused; raise a ValueError.",
    ("if not 0.0 <= teacher_forcing_ratio <= 1.0:", "if False:"),
)
add(
    "forcing_no_graph",
    "Your logits are right, but computed without a graph, so that nothing can be learned; no_grad "
    "is for decoding.",
    ("steps.append(logits)", "steps.append(logits.detach())"),
)
add(
    "forcing_same_draw_in_each_call",
    "The choice is the same in every call, because the seed is set inside forward; draw from "
    "PyTorch's global generator and leave its seed alone.",
    ("        forced = torch.rand(", "        torch.manual_seed(0)\n        forced = torch.rand("),
)
add(
    "forcing_pad_after_eos",
    "A row that has produced EOS is fed PAD; in training every row goes on for U steps, fed by the "
    "rule for all steps.",
    (
        "                own = steps[-1].argmax(dim=-1)  # (B,)",
        "                own = steps[-1].argmax(dim=-1)  # (B,)\n"
        "                earlier = [one.argmax(dim=-1) == EOS for one in steps[:-1]]\n"
        "                if earlier:\n"
        "                    own = own.masked_fill(torch.stack(earlier).any(dim=0), PAD)",
    ),
)

# --------------------------------------------------------------------------------------------
# Likelihood and loss
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "sequence_log_prob", "seq-likelihood")
LOG = "torch.log_softmax(logits, dim=-1)"
CHOSEN = "log_probs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)"
TOTAL = "chosen.masked_fill(~mask, 0.0).sum(dim=-1)"
add(
    "log_prob_negative",
    "Your result is minus the log-probability; that is a loss. The log-probability itself is at "
    "most 0.",
    (TOTAL, f"-{TOTAL}"),
)
add(
    "log_prob_mean",
    "Your result is divided by the number of steps; the log-probability of a sequence is the sum "
    "over its steps.",
    (TOTAL, f"{TOTAL} / mask.sum(dim=-1).clamp(min=1)"),
)
add(
    "log_prob_over_all_steps",
    "Your mean counts masked steps too; neither they nor any division belong here: sum over the "
    "real steps.",
    (TOTAL, "chosen.masked_fill(~mask, 0.0).mean(dim=-1)"),
)
add(
    "log_prob_mask_ignored",
    "Your sum counts masked steps; only steps where the mask is True belong to the sequence.",
    (TOTAL, "chosen.sum(dim=-1)"),
)
add(
    "log_prob_mask_inverted",
    "You read the mask the wrong way round; True means real step.",
    (TOTAL, "chosen.masked_fill(mask, 0.0).sum(dim=-1)"),
)
add(
    "log_prob_pads_by_id",
    "You leave out targets that are 0, whatever the mask says; the mask tells which steps are "
    "real.",
    (TOTAL, "chosen.masked_fill(~mask | (targets == PAD), 0.0).sum(dim=-1)"),
)
add(
    "log_prob_one_number",
    "Your result is one number for the batch; each row has a log-probability of its own, shape "
    "(B,).",
    (TOTAL, "chosen.masked_fill(~mask, 0.0).sum()"),
)
add(
    "log_prob_per_step",
    "Your result has one number for each step; add them up along the steps, shape (B,).",
    (TOTAL, "chosen.masked_fill(~mask, 0.0)"),
)
add(
    "log_prob_over_the_batch",
    "You add up over the batch; the sum goes over the steps of each row.",
    (TOTAL, "chosen.masked_fill(~mask, 0.0).sum(dim=0)"),
)
add(
    "log_prob_without_softmax",
    "You add up the logits of the targets; they are not probabilities yet: take log_softmax over "
    "the vocabulary first.",
    (LOG, "logits"),
)
add(
    "log_prob_probability",
    "Your result is the product of the probabilities; take the sum of their logarithms.",
    (LOG, "torch.softmax(logits, dim=-1)"),
    (TOTAL, "chosen.masked_fill(~mask, 1.0).prod(dim=-1)"),
)
add(
    "log_prob_sum_of_probabilities",
    "You add up probabilities; it is their logarithms that are added.",
    (LOG, "torch.softmax(logits, dim=-1)"),
)
add(
    "log_prob_log_of_product",
    "You take the logarithm of a product of probabilities; for long sequences the product is 0 and "
    "its logarithm -inf. Add logarithms instead.",
    (LOG, "torch.softmax(logits, dim=-1)"),
    (TOTAL, "chosen.masked_fill(~mask, 1.0).prod(dim=-1).log()"),
)
add(
    "log_prob_log_of_softmax",
    "You take the logarithm of a softmax, which is -inf where a probability rounds to 0; "
    "log_softmax avoids that.",
    (LOG, "torch.softmax(logits, dim=-1).log()"),
)
add(
    "log_prob_log_with_epsilon",
    "You add a small number before the logarithm, which changes the value of improbable tokens; "
    "use log_softmax.",
    (LOG, "(torch.softmax(logits, dim=-1) + 1e-9).log()"),
)
add(
    "log_prob_softmax_over_steps",
    "Your softmax goes over the steps; it goes over the vocabulary, the last dimension.",
    (LOG, "torch.log_softmax(logits, dim=1)"),
)
add(
    "log_prob_base_2",
    "Your logarithms are to the base 2; natural logarithms are asked for.",
    (LOG, f"{LOG} / math.log(2)"),
)
add(
    "log_prob_best_token",
    "You add up the log-probability of the best token at each step; that of the target is asked "
    "for.",
    (CHOSEN, "log_probs.max(dim=-1).values"),
)
add(
    "log_prob_mask_multiplied",
    "You multiply by the mask, and 0 times -inf is NaN; replace masked terms by 0 with masked_fill "
    "or torch.where.",
    (TOTAL, "(chosen * mask).sum(dim=-1)"),
)
add(
    "log_prob_masked_targets_looked_up",
    "Your code stumbles over numbers at masked steps; replace them by any valid id before you look "
    "them up, since they do not count.",
    ("ids = targets.masked_fill(~mask, 0)", "ids = targets"),
)
add(
    "log_prob_targets_unchecked",
    "Real targets outside the vocabulary are not refused with a ValueError.",
    (
        "if ((ids < 0) | (ids >= vocab_size)).any():",
        "ids = ids.clamp(0, vocab_size - 1)\n    if False:",
    ),
)
add(
    "log_prob_shapes_unchecked",
    "Targets or masks whose shape does not fit are not refused with a ValueError.",
    ("if logits.shape[:-1] != targets.shape:", "if False:"),
    ("if mask.dtype != torch.bool or mask.shape != targets.shape:", "if False:"),
)
add(
    "log_prob_ends_at_first_gap",
    "A row ends at its first masked step; the mask may be False anywhere, and the steps behind it "
    "that are real count.",
    ("chosen.masked_fill(~mask, 0.0)", "chosen.masked_fill(~mask.cumprod(dim=1).bool(), 0.0)"),
)

add = mistakes_in(MISCONCEPTIONS, "sequence_loss", "seq-likelihood")
LOSS = "-sequence_log_prob(logits, targets, real).sum() / real.sum()"
add(
    "loss_mean_of_means",
    "Your loss is the mean of the sentences' means, in which a token of a short sentence weighs "
    "more; divide the sum over all tokens by their number in the batch.",
    (
        LOSS,
        "-(sequence_log_prob(logits, targets, real)[real.any(dim=1)]"
        " / real.sum(dim=1)[real.any(dim=1)]).mean()",
    ),
)
add(
    "loss_padding_counted",
    "Padding counts in your loss; leave it out of the sum and of the number of tokens.",
    (
        LOSS,
        "-sequence_log_prob(logits, targets.clamp(0, logits.shape[-1] - 1)).sum() / real.numel()",
    ),
)
add(
    "loss_divided_by_all_steps",
    "Your loss is divided by the number of all steps, padding included; divide by the number of "
    "real targets.",
    (LOSS, "-sequence_log_prob(logits, targets, real).sum() / real.numel()"),
)
add(
    "loss_per_sentence",
    "Your loss is divided by the number of sentences; divide by the number of real targets in the "
    "batch.",
    (LOSS, "-sequence_log_prob(logits, targets, real).sum() / len(targets)"),
)
add(
    "loss_summed",
    "Your loss is the sum over the batch; divide it by the number of real targets.",
    (LOSS, "-sequence_log_prob(logits, targets, real).sum()"),
)
add(
    "loss_positive_likelihood",
    "Your loss lacks its minus sign: it would be lowest for the worst model.",
    (LOSS, "sequence_log_prob(logits, targets, real).sum() / real.sum()"),
)
add(
    "loss_per_row",
    "Your loss is a number for each row; one number for the batch is asked for.",
    (LOSS, "-sequence_log_prob(logits, targets, real) / real.sum()"),
)
add(
    "loss_pad_fixed",
    "Your loss takes 0 for padding whatever `pad` says; compare the targets with `pad`.",
    ("real = targets != pad", "real = targets != PAD"),
)
add(
    "loss_pad_inverted",
    "Your loss counts the padding only; real targets are those that differ from `pad`.",
    ("real = targets != pad", "real = targets == pad"),
)
add(
    "loss_ignores_eos",
    "Your loss leaves EOS out; it is a target like others, or the model never learns to stop.",
    ("real = targets != pad", "real = (targets != pad) & (targets != EOS)"),
)
add(
    "loss_shifted",
    "You shift the targets by one step inside the loss; the logits of step t are about "
    "targets[:, t] already.",
    (
        "real = targets != pad",
        "if targets.shape[1] > 1:\n"
        "        logits, targets = logits[:, :-1], targets[:, 1:]\n"
        "    real = targets != pad",
    ),
)
add(
    "loss_bits",
    "Your loss is in bits; natural logarithms are asked for.",
    (LOSS, f"{LOSS} / math.log(2)"),
)
add(
    "loss_perplexity",
    "Your result is the perplexity, exp of the loss; the loss itself is asked for.",
    (LOSS, f"torch.exp({LOSS})"),
)
add(
    "loss_nothing_accepted",
    "A batch of padding only is not refused; there is nothing to divide by, so raise a ValueError.",
    ("if not real.any():", "if False:"),
)
add(
    "loss_nothing_is_zero",
    "A batch of padding only gives a loss of 0; it is an error of the caller: raise a ValueError.",
    (
        'raise ValueError(f"every target is padding ({pad}); there is nothing to learn from")',
        "return logits.sum() * 0",
    ),
)
add(
    "loss_ends_at_first_pad",
    "A row ends at its first padding; every target that is not `pad` counts, wherever it stands.",
    ("real = targets != pad", "real = (targets != pad).cumprod(dim=1).bool()"),
)

# --------------------------------------------------------------------------------------------
# Decoding
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "greedy_decode", "seq-greedy")
BEST = "previous = logits.argmax(dim=-1).masked_fill(finished, PAD)"
ENDED = "finished = finished | (previous == EOS)"
LOOP = "while len(ids) < max_length and not finished.all():"
IDS = "torch.stack(ids, dim=1)"
FIRST = "previous = torch.full_like(source[:, 0], BOS)"
add(
    "greedy_rows_go_on",
    "Your rows go on after their EOS; from then on a row gets PAD.",
    (BEST, "previous = logits.argmax(dim=-1)"),
)
add(
    "greedy_eos_repeated",
    "Your rows repeat EOS after their end; what follows the first EOS is PAD.",
    (BEST, "previous = logits.argmax(dim=-1).masked_fill(finished, EOS)"),
)
add(
    "greedy_stops_with_the_first",
    "Your decoding stops as soon as one row has finished; it stops when all have.",
    (LOOP, "while len(ids) < max_length and not finished.any():"),
)
add(
    "greedy_never_stops_early",
    "Your result always has max_length columns; stop when every row has produced EOS.",
    (LOOP, "while len(ids) < max_length:"),
)
add(
    "greedy_all_eos_at_once",
    "You stop only when all rows produce EOS at the same step; remember which rows have finished.",
    (ENDED, "finished = previous == EOS"),
    (BEST, "previous = logits.argmax(dim=-1)"),
)
add(
    "greedy_eos_dropped",
    "Your result lacks EOS; it is the last token of a finished row.",
    (IDS, "torch.stack(ids, dim=1).masked_fill(torch.stack(ids, dim=1) == EOS, PAD)"),
)
add(
    "greedy_eos_cut_off",
    "Your last column is missing: you stop before the EOS is written; it belongs to the result.",
    (
        IDS,
        "torch.stack(ids[:-1] if finished.all() else ids, dim=1) if len(ids) > 1 else "
        "torch.stack(ids, dim=1)[:, : 0 if finished.all() else 1]",
    ),
)
add(
    "greedy_bos_included",
    "Your result begins with BOS; it is fed to the model but is no part of the result.",
    ("    ids = []\n", "    ids = [previous]\n"),
    (LOOP, "while len(ids) <= max_length and not finished.all():"),
)
add(
    "greedy_starts_with_eos",
    "You feed EOS first; decoding begins with BOS.",
    (FIRST, "previous = torch.full_like(source[:, 0], EOS)"),
)
add(
    "greedy_starts_with_pad",
    "You feed PAD first; decoding begins with BOS.",
    (FIRST, "previous = torch.full_like(source[:, 0], PAD)"),
)
add(
    "greedy_starts_with_source",
    "You feed the source's first token first; decoding begins with BOS, the source is the "
    "encoder's business.",
    (FIRST, "previous = source[:, 0].clamp(max=5)"),
)
add(
    "greedy_feeds_bos",
    "Your model is fed BOS at every step; feed back what the step before produced.",
    (
        "logits, state = model.step(previous, state)",
        "logits, state = model.step(torch.full_like(previous, BOS), state)",
    ),
)
add(
    "greedy_state_not_kept",
    "Your model is asked with its first state at every step; hand on the state that it returns.",
    ("logits, state = model.step(previous, state)", "logits, _ = model.step(previous, state)"),
)
add(
    "greedy_samples",
    "You draw the next token at random; greedy decoding takes the argmax.",
    (
        "logits.argmax(dim=-1)",
        "torch.multinomial(torch.softmax(logits, dim=-1), 1).squeeze(-1)",
    ),
)
add(
    "greedy_pad_ends",
    "You take PAD for an end; a row ends with EOS only.",
    (ENDED, "finished = finished | (previous == EOS) | (previous == PAD)"),
)
add(
    "greedy_specials_forbidden",
    "Your decoding never chooses PAD, BOS or UNK; the argmax goes over all ids.",
    (
        BEST,
        "logits = logits.clone()\n"
        '        logits[:, [PAD, BOS, UNK]] = float("-inf")\n'
        f"        {BEST}",
    ),
)
add(
    "greedy_mask_ignored",
    "Your model does not get source_mask; pass it to start.",
    ("model.start(source, source_mask)", "model.start(source)"),
)
add(
    "greedy_one_step_short",
    "Your result may have max_length - 1 tokens only; max_length tokens are allowed, BOS not "
    "counted.",
    (LOOP, "while len(ids) < max(1, max_length - 1) and not finished.all():"),
)
add(
    "greedy_time_first",
    "Your result has the shape (n, B); rows are sentences: stack along dim=1.",
    (IDS, "torch.stack(ids, dim=0)"),
)
add(
    "greedy_lists",
    "Your result is a list of lists; a tensor (B, n), padded with PAD, is asked for.",
    (IDS, "torch.stack(ids, dim=1).tolist()"),
)
add(
    "greedy_length_unchecked",
    "A max_length below 1 is not refused; raise a ValueError.",
    ("if max_length < 1:", "max_length = max(1, max_length)\n    if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "exhaustive_search", "seq-beam")
EXTEND = "total[:, EOS] = -math.inf"
PICK = "if finished > best:"
NO_END = "if not best_ids:"
ADVANCE = "state = tuple(part[rows] for part in state)"
SUM = "total = log_prob[:, None] + torch.log_softmax(logits, dim=-1)"
add(
    "exhaustive_greedy",
    "Your search takes the likeliest token at each step; that is greedy search, and the best "
    "sequence may begin with a less likely token. Look at all of them.",
    (
        "rows, previous = (total > -math.inf).nonzero(as_tuple=True)",
        "rows, previous = (total >= total.max()).nonzero(as_tuple=True)",
    ),
)
add(
    "exhaustive_probability",
    "You return the probability; its logarithm is asked for.",
    ("return best_ids, best", "return best_ids, math.exp(best)"),
)
add(
    "exhaustive_negative",
    "You return minus the log-probability; the log-probability itself, at most 0, is asked for.",
    ("return best_ids, best", "return best_ids, -best"),
)
add(
    "exhaustive_product",
    "You multiply probabilities; tiny ones become 0. Add log-probabilities instead.",
    ("best_ids, best = [], -math.inf", "best_ids, best = [], 0.0"),
    (
        "zip(prefixes, total[:, EOS].tolist(), strict=True)",
        "zip(prefixes, total[:, EOS].exp().tolist(), strict=True)",
    ),
    ("return best_ids, best", "return best_ids, math.log(best)"),
)
add(
    "exhaustive_logits_added",
    "You add up logits; they are not log-probabilities: take log_softmax over the vocabulary "
    "first.",
    (SUM, "total = log_prob[:, None] + logits"),
)
add(
    "exhaustive_last_step_only",
    "Your score is the log-probability of the last token alone; add up those of all tokens.",
    (SUM, "total = 0 * log_prob[:, None] + torch.log_softmax(logits, dim=-1)"),
)
add(
    "exhaustive_eos_dropped",
    "Your sequence lacks EOS; it belongs to the result.",
    ("return best_ids, best", "return best_ids[:-1], best"),
)
add(
    "exhaustive_eos_not_counted",
    "Your score leaves out the probability of EOS; ending is a choice like any other.",
    (
        "zip(prefixes, total[:, EOS].tolist(), strict=True)",
        "zip(prefixes, log_prob.tolist(), strict=True)",
    ),
)
add(
    "exhaustive_bos_included",
    "Your sequence begins with BOS; it is fed to the model but is no part of the result.",
    ("return best_ids, best", "return [BOS, *best_ids], best"),
)
add(
    "exhaustive_unfinished_counted",
    "Your search takes sequences without EOS into account; only what ends in EOS counts.",
    (
        "    if not best_ids:",
        "    for prefix, value in zip(prefixes, log_prob.tolist(), strict=True):\n"
        "        if value > best:\n"
        "            best_ids, best = prefix, value\n"
        "    if not best_ids:",
    ),
)
add(
    "exhaustive_exact_length",
    "Your search looks at sequences of exactly max_length tokens; shorter ones that end in EOS "
    "count too.",
    (PICK, "if finished > best and len(prefix) == max_length - 1:"),
)
add(
    "exhaustive_one_step_more",
    "Your search allows max_length tokens before EOS; EOS is counted, so the last token to choose "
    "may be EOS only.",
    ("len(prefixes[0]) < max_length:", "len(prefixes[0]) < max_length + 1:"),
)
add(
    "exhaustive_one_step_short",
    "Your search ends one token early; max_length tokens are allowed, EOS counted and BOS not.",
    ("len(prefixes[0]) < max_length:", "len(prefixes[0]) < max(1, max_length - 1):"),
)
add(
    "exhaustive_specials_forbidden",
    "Your search never uses PAD, BOS and UNK; every id of the vocabulary may occur.",
    (EXTEND, "total[:, [PAD, BOS, EOS, UNK]] = -math.inf"),
)
add(
    "exhaustive_length_normalised",
    "Your search divides by the length; the most probable sequence is asked for, without any "
    "normalisation.",
    (PICK, "finished = finished / (len(prefix) + 1)\n            if finished > best:"),
)
add(
    "exhaustive_states_mixed_up",
    "Your states no longer belong to their prefixes; choose the same rows of every part of the "
    "state as of the prefixes.",
    (ADVANCE, "state = tuple(part[torch.zeros_like(rows)] for part in state)"),
)
add(
    "exhaustive_mask_ignored",
    "Your model does not get source_mask; pass it to start.",
    ("model.start(source, source_mask)", "model.start(source)"),
)
add(
    "exhaustive_tensor_ids",
    "Your ids are a tensor; a list of ints is asked for, .tolist() makes one.",
    ("return best_ids, best", "return torch.tensor(best_ids), best"),
)
add(
    "exhaustive_nothing_found",
    "If no sequence can end you return an empty one; raise a ValueError.",
    (NO_END, "if False:"),
)
add(
    "exhaustive_batch_accepted",
    "More than one source is not refused; raise a ValueError.",
    ("if len(source) != 1:", "source = source[:1]\n    if False:"),
)
add(
    "exhaustive_pruned",
    "Your search drops beginnings that look improbable, as a beam does; a rare beginning may still "
    "lead to the most probable sequence, so drop none but those of probability 0.",
    (
        "        log_prob = total[rows, previous]  # (P',)",
        "        log_prob = total[rows, previous]  # (P',)\n"
        "        keep = log_prob.topk(min(50, len(log_prob))).indices\n"
        "        rows, previous, log_prob = rows[keep], previous[keep], log_prob[keep]\n"
        "        prefixes = [prefixes[place] for place in keep.tolist()]",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "beam_search", "seq-beam")
TOTALS = "totals = log_prob[:, None] + torch.log_softmax(logits, dim=-1)"
WIDTH = "width = min(beam_size - len(finished), totals.numel())"
SCORE = "total / len(ids) ** alpha"
SCORED = f"scored = [(ids, {SCORE}) for ids, total in finished + live]"
SORTED = "sorted(scored, key=lambda pair: pair[1], reverse=True)"
REORDER = "state = tuple(part[rows] for part in state)"
AT_EOS = "if token == EOS:"
add(
    "beam_state_not_reordered",
    "Your states no longer belong to their hypotheses; after choosing the survivors, choose the "
    "same rows of every part of the state.",
    (REORDER, "state = tuple(part[[k % len(part) for k in range(len(rows))]] for part in state)"),
)
add(
    "beam_state_of_the_best",
    "All of your hypotheses go on with the state of the first one; each needs the state of the "
    "hypothesis it extends.",
    (REORDER, "state = tuple(part[[0] * len(rows)] for part in state)"),
)
add(
    "beam_token_not_fed",
    "Your hypotheses are all fed the token of the best one; each is fed its own last token.",
    (
        "source.new_tensor([ids[-1] for ids, _ in live])",
        "source.new_tensor([live[0][0][-1] for _ in live])",
    ),
)
add(
    "beam_each_extended_once",
    "You take the best extension of each hypothesis; the survivors are the best among the "
    "extensions of all hypotheses together.",
    (
        "best, places = totals.flatten().topk(width)",
        "if len(live) > 1:\n"
        "            keep = torch.full_like(totals, -math.inf)\n"
        "            top = totals.argmax(dim=-1, keepdim=True)\n"
        "            totals = keep.scatter(1, top, totals.gather(1, top))\n"
        "        best, places = totals.flatten().topk(width)",
    ),
)
add(
    "beam_never_shrinks",
    "Your beam stays as wide as before when hypotheses finish; those that end leave it, and it "
    "shrinks by as many.",
    (WIDTH, "width = min(beam_size, totals.numel())"),
    (SORTED, f"{SORTED}[:beam_size]"),
)
add(
    "beam_too_many_results",
    "You return more than beam_size hypotheses: the beam must shrink by as many as have finished.",
    (WIDTH, "width = min(beam_size, totals.numel())"),
)
add(
    "beam_stops_with_the_first",
    "Your search ends when the first hypothesis finishes; go on until nothing is live or "
    "max_length is reached.",
    (
        "while live and len(live[0][0]) < max_length:",
        "while live and not finished and len(live[0][0]) < max_length:",
    ),
)
add(
    "beam_unfinished_dropped",
    "You drop what is still live after max_length tokens; it joins the result as it is.",
    ("for ids, total in finished + live]", "for ids, total in finished]"),
)
add(
    "beam_unfinished_only_without_finished",
    "You use live hypotheses only if none has finished; what is live after max_length tokens joins "
    "the finished ones.",
    ("for ids, total in finished + live]", "for ids, total in finished or live]"),
)
add(
    "beam_eos_appended",
    "You append EOS to what is still live at the end; it joins as it is, without an EOS that the "
    "model did not choose.",
    (
        "for ids, total in finished + live]",
        "for ids, total in finished + [([*ids, EOS], total) for ids, total in live]]",
    ),
    (SCORE, "total / max(1, min(len(ids), max_length)) ** alpha"),
)
add(
    "beam_goes_on_after_eos",
    "Your hypotheses go on after EOS; those that end are finished and leave the beam.",
    (AT_EOS, "if False:"),
)
add(
    "beam_eos_dropped",
    "Your finished hypotheses lack EOS; it belongs to the ids.",
    (
        SCORED,
        f"scored = [(ids[:-1] if ids[-1] == EOS else ids, {SCORE}) "
        "for ids, total in finished + live]",
    ),
)
add(
    "beam_bos_included",
    "Your hypotheses begin with BOS; it is fed to the model but is no part of the ids.",
    (SCORED, f"scored = [([BOS, *ids], {SCORE}) for ids, total in finished + live]"),
)
add(
    "beam_length_with_bos",
    "Your length counts BOS; len(ids) counts the tokens of the result, EOS included.",
    (SCORE, "total / (len(ids) + 1) ** alpha"),
)
add(
    "beam_length_without_eos",
    "Your length leaves EOS out; len(ids) counts it.",
    (SCORE, "total / max(1, len(ids) - (ids[-1] == EOS)) ** alpha"),
)
add(
    "beam_multiplied_by_length",
    "You multiply by the length; a score is the log-probability divided by len(ids) ** alpha.",
    (SCORE, "total * len(ids) ** alpha"),
)
add(
    "beam_alpha_times_length",
    "You divide by alpha * len(ids); alpha is an exponent: len(ids) ** alpha.",
    (SCORE, "total / (alpha * len(ids) if alpha else 1)"),
)
add(
    "beam_always_mean",
    "You always divide by the length; with alpha = 0 the score is the log-probability itself.",
    (SCORE, "total / len(ids)"),
)
add(
    "beam_alpha_ignored",
    "Your score ignores alpha; divide the log-probability by len(ids) ** alpha.",
    (SCORE, "total"),
)
add(
    "beam_google_penalty",
    "Your score uses ((5 + length) / 6) ** alpha, as Wu et al. do; here it is the plain "
    "len(ids) ** alpha.",
    (SCORE, "total / ((5 + len(ids)) / 6) ** alpha"),
)
add(
    "beam_same_length_for_all",
    "You divide every score by max_length ** alpha; each hypothesis has a length of its own.",
    (SCORE, "total / max_length ** alpha"),
)
add(
    "beam_sorted_before_normalising",
    "Your hypotheses are sorted by log-probability; the order follows the normalised score.",
    (
        f"return {SORTED}",
        "by_total = sorted(finished + live, key=lambda pair: pair[1], reverse=True)\n"
        f"    return [(ids, {SCORE}) for ids, total in by_total]",
    ),
)
add(
    "beam_worst_first",
    "Your worst hypothesis comes first; the best score does.",
    (SORTED, "sorted(scored, key=lambda pair: pair[1])"),
)
add(
    "beam_not_sorted",
    "Your hypotheses stand in the order in which they finished; sort them by score, best first.",
    (f"return {SORTED}", "return scored"),
)
add(
    "beam_best_only",
    "You return the best hypothesis only; all finished and remaining ones are asked for.",
    (SORTED, f"{SORTED}[:1]"),
)
add(
    "beam_log_probs_not_added",
    "Your scores are those of the last step; add up the log-probabilities of all tokens.",
    (TOTALS, "totals = 0 * log_prob[:, None] + torch.log_softmax(logits, dim=-1)"),
)
add(
    "beam_logits_added",
    "You add up logits; they are not log-probabilities: take log_softmax over the vocabulary "
    "first.",
    (TOTALS, "totals = log_prob[:, None] + logits"),
)
add(
    "beam_product",
    "You multiply probabilities, which vanish in long hypotheses; add log-probabilities instead.",
    (TOTALS, "totals = (log_prob.exp()[:, None] * torch.softmax(logits, dim=-1)).log()"),
)
add(
    "beam_probabilities",
    "Your scores are probabilities; log-probabilities are asked for.",
    (SCORE, "math.exp(total / len(ids) ** alpha)"),
)
add(
    "beam_impossible_kept",
    "Hypotheses of probability 0 stay in your beam; drop them, even if fewer than beam_size are "
    "left.",
    ("if total == -math.inf:", "if False:"),
)
add(
    "beam_one_step_short",
    "Your search ends one token early; max_length tokens are allowed, BOS not counted.",
    ("len(live[0][0]) < max_length:", "len(live[0][0]) < max(1, max_length - 1):"),
)
add(
    "beam_one_step_more",
    "Your hypotheses may have max_length + 1 tokens; EOS is counted.",
    ("len(live[0][0]) < max_length:", "len(live[0][0]) < max_length + 1:"),
)
add(
    "beam_greedy",
    "Your search keeps one hypothesis whatever beam_size says; keep the beam_size best.",
    ("    state = model.start", "    beam_size = 1\n    state = model.start"),
)
add(
    "beam_normalised_during_search",
    "Your survivors are chosen by the normalised score; during the search the log-probability "
    "decides, and alpha only counts at the end.",
    (
        WIDTH,
        f"{WIDTH}\n"
        "        steps = len(live[0][0]) + 1\n"
        "        ended = torch.arange(totals.shape[1]) == EOS\n"
        "        real = totals\n"
        "        totals = torch.where(ended, totals / steps**alpha, totals)",
    ),
    (
        "row, token = divmod(place, totals.shape[1])",
        "row, token = divmod(place, totals.shape[1])\n            total = real[row, token].item()",
    ),
)
add(
    "beam_mask_ignored",
    "Your model does not get source_mask; pass it to start.",
    ("model.start(source, source_mask)", "model.start(source)"),
)
add(
    "beam_tensor_ids",
    "Your ids are tensors; lists of ints are asked for, .tolist() makes them.",
    (SCORED, f"scored = [(torch.tensor(ids), {SCORE}) for ids, total in finished + live]"),
)
add(
    "beam_score_first",
    "Your pairs are (score, ids); they are (ids, score).",
    (f"return {SORTED}", f"return [(score, ids) for ids, score in {SORTED}]"),
)
add(
    "beam_settings_unchecked",
    "A beam_size or max_length below 1, or a negative alpha, is not refused; raise a ValueError.",
    ("if value < least:", "if False:"),
    (
        "    state = model.start",
        "    beam_size, max_length = max(1, beam_size), max(1, max_length)\n"
        "    state = model.start",
    ),
)
add(
    "beam_batch_accepted",
    "More than one source is not refused; raise a ValueError.",
    ("if len(source) != 1:", "source = source[:1]\n    if False:"),
)
