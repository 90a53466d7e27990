"""The graders of `seq2seq-text`: right answers in any style earn full marks."""

from __future__ import annotations

from tests.autograder.unit_graders import Styles, UnitGraders

UNIT = "seq2seq-text"

# Right answers that look unlike the reference and unlike those in autograder/demo.
STYLES = Styles()
style = STYLES.add

style(
    "build_vocabulary",
    "most_common of a sorted text",
    """
    def build_vocabulary(sentences, min_count=1, max_size=None):
        if not sentences or min_count < 1 or (max_size is not None and max_size < 4):
            raise ValueError("limits")
        text = sorted(token for sentence in sentences for token in sentence)
        ranked = Counter(text).most_common()
        words = [token for token, count in ranked if count >= min_count and token not in SPECIALS]
        room = len(words) if max_size is None else max_size - 4
        return [*SPECIALS, *words[:room]]
    """,
)
style(
    "encode",
    "index and insert",
    """
    def encode(tokens, vocabulary, add_bos=False, add_eos=False):
        if tuple(vocabulary[:4]) != tuple(SPECIALS):
            raise ValueError("specials")
        ids = []
        for token in tokens:
            try:
                ids.append(vocabulary.index(token))
            except ValueError:
                ids.append(UNK)
        if add_bos:
            ids.insert(0, BOS)
        if add_eos:
            ids.append(EOS)
        return ids
    """,
)
style(
    "decode",
    "everything checked first",
    """
    def decode(ids, vocabulary):
        if EOS in ids:
            ids = ids[: ids.index(EOS)]
        if ids and not (min(ids) >= 0 and max(ids) < len(vocabulary)):
            raise ValueError("ids")
        return [vocabulary[i] for i in ids if vocabulary[i] not in ("<pad>", "<bos>")]
    """,
)
style(
    "pad_to_length",
    "rows concatenated",
    """
    def pad_to_length(sequences, length, keep="start"):
        if len(sequences) == 0 or length <= 0 or keep not in ("start", "end"):
            raise ValueError("input")
        rows, masks = [], []
        for sequence in sequences:
            if not all(isinstance(i, int) and not isinstance(i, bool) for i in sequence):
                raise ValueError("ids")
            row = torch.tensor(sequence, dtype=torch.long)
            row = row[:length] if keep == "start" else row[max(len(row) - length, 0) :]
            gap = length - len(row)
            rows.append(torch.cat([row, torch.full((gap,), PAD)]))
            masks.append(torch.cat([torch.ones(len(row)), torch.zeros(gap)]).bool())
        return [torch.stack(rows), torch.vstack(masks)]
    """,
)
style(
    "sliding_windows",
    "range and break",
    """
    def sliding_windows(sequence, length, stride):
        if not len(sequence) or length < 1 or stride < 1 or stride > length:
            raise ValueError("input")
        windows, masks = [], []
        for start in range(0, len(sequence), stride):
            window = list(sequence[start : start + length])
            masks.append([True] * len(window) + [False] * (length - len(window)))
            windows.append(window + [PAD] * (length - len(window)))
            if start + length >= len(sequence):
                break
        return torch.LongTensor(windows), torch.BoolTensor(masks)
    """,
)
style(
    "build_vocabulary",
    "a heap, a list of its own type, an exception of its own",
    """
    import heapq

    class Vocabulary(list):
        pass

    class Refused(ValueError):
        pass

    def build_vocabulary(sentences, min_count=1, max_size=None):
        if len(sentences) == 0 or not min_count >= 1 or (max_size is not None and max_size <= 3):
            raise Refused
        counts = {}
        for token in sum(sentences, []):
            counts[token] = counts.get(token, 0) + 1
        heap = [(-n, t) for t, n in counts.items() if t not in SPECIALS and n >= min_count]
        heapq.heapify(heap)
        words = Vocabulary(SPECIALS)
        while heap and (max_size is None or len(words) < max_size):
            words.append(heapq.heappop(heap)[1])
        return words
    """,
)
style(
    "decode",
    "strings of NumPy",
    """
    import itertools
    import numpy as np

    def decode(ids, vocabulary):
        read = list(itertools.takewhile(lambda i: i != EOS, ids))
        if any(i not in range(len(vocabulary)) for i in read):
            raise ValueError
        words = np.array(vocabulary)
        return [words[i] for i in read if i > BOS]
    """,
)
style(
    "pad_to_length",
    "pad_sequence, a named tuple",
    """
    from torch import nn
    from collections import namedtuple

    Padded = namedtuple("Padded", "ids mask")

    def pad_to_length(sequences, length, keep="start"):
        cut = {"start": slice(None, length), "end": slice(-length, None)}.get(keep)
        if len(sequences) < 1 or length < 1 or cut is None:
            raise ValueError
        if {type(i) for s in sequences for i in s} - {int}:
            raise ValueError
        rows = [torch.tensor(s[cut], dtype=torch.int64) for s in sequences]
        rows.append(torch.zeros(length, dtype=torch.int64))
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)[:-1]
        lengths = torch.tensor([len(row) for row in rows[:-1]])
        return Padded(ids, torch.arange(length) < lengths[:, None])
    """,
)
style(
    "sliding_windows",
    "unfold: windows that share memory",
    """
    from torch import nn

    def sliding_windows(sequence, length, stride):
        n = len(sequence)
        if n == 0 or length < 1 or stride < 1 or stride > length:
            raise ValueError
        total = -(-max(0, n - length) // stride) * stride + length
        padded = nn.functional.pad(torch.tensor(sequence), (0, total - n))
        real = torch.arange(total) < n
        return padded.unfold(0, length, stride), real.unfold(0, length, stride)
    """,
)


class TestGraders(UnitGraders):
    unit = UNIT
    styles = STYLES
