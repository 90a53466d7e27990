"""The graders of `positional_encoding-tokens`: right answers in any style earn full marks."""

from __future__ import annotations

import pytest

from autograder.sandbox.executor import Executor
from autograder.units.variants import (
    reference_namespace,
)
from tests.autograder.graders.positional_encoding.common import PositionalGraders
from tests.autograder.unit_graders import Styles

UNIT = "positional_encoding-tokens"

# Right answers that look unlike the reference and unlike those in autograder/demo.
STYLES = Styles()
style = STYLES.add


# Tokens -------------------------------------------------------------------------------------------

style(
    "merge_pair",
    "a stack with a flag",
    """
def merge_pair(ids, pair, new_id):
    out, free = [], False
    for value in ids:
        if free and (out[-1], value) == pair:
            out[-1], free = new_id, False
        else:
            out.append(value)
            free = True
    return out
""",
)
style(
    "merge_pair",
    "list.index and slices",
    """
def merge_pair(ids, pair, new_id):
    out, start = [], 0
    while True:
        try:
            place = ids.index(pair[0], start)
        except ValueError:
            return out + ids[start:]
        if ids[place + 1 : place + 2] == [pair[1]]:
            out += ids[start:place] + [new_id]
            start = place + 2
        else:
            out += ids[start : place + 1]
            start = place + 1
""",
)
style(
    "train_bpe",
    "ties by sorting",
    """
def train_bpe(text, num_merges):
    if num_merges < 0:
        raise ValueError("num_merges")
    parts = [list(bytearray(chunk, "utf8")) for chunk in chunks(text)]
    merges = []
    for m in range(num_merges):
        counts = Counter(pair for part in parts for pair in zip(part, part[1:]))
        ranked = sorted(counts, key=lambda pair: (-counts[pair], pair[0], pair[1]))
        if not ranked:
            break
        merges.append(ranked[0])
        parts = [merge_pair(part, ranked[0], m + 256) for part in parts]
    return merges
""",
)
style(
    "bpe_encode",
    "one occurrence at a time, the leftmost of the earliest merge",
    """
def bpe_encode(text, merges):
    ids = []
    for chunk in chunks(text):
        part = [*chunk.encode()]
        while True:
            places = [
                (merges.index(pair), place)
                for place, pair in enumerate(zip(part, part[1:]))
                if pair in merges
            ]
            if not places:
                break
            number, place = min(places)
            part[place : place + 2] = [256 + number]
        ids.extend(part)
    return ids
""",
)
style(
    "bpe_decode",
    "a dict of bytes that grows",
    """
def bpe_decode(ids, merges):
    table = {n: n.to_bytes(1, "big") for n in range(256)}
    for m, (left, right) in enumerate(merges):
        table[256 + m] = table[left] + table[right]
    data = b""
    for n in ids:
        if n not in table:
            raise ValueError(n)
        data += table[n]
    return str(data, "utf-8", "replace")
""",
)
style(
    "wordpiece_encode",
    "as BERT's own code has it, with is_bad",
    """
def wordpiece_encode(word, vocabulary, unknown="[UNK]", prefix="##", max_chars=100):
    chars = list(word)
    if not chars:
        raise ValueError("empty")
    if len(chars) > max_chars:
        return [unknown]
    is_bad, start, sub_tokens = False, 0, []
    while start < len(chars):
        end, cur = len(chars), None
        while start < end:
            substr = "".join(chars[start:end])
            if start > 0:
                substr = prefix + substr
            if substr in vocabulary:
                cur = substr
                break
            end -= 1
        if cur is None:
            is_bad = True
            break
        sub_tokens.append(cur)
        start = end
    return [unknown] if is_bad else sub_tokens
""",
)

# Embeddings and codes -----------------------------------------------------------------------------

style(
    "TokenEmbedding",
    "index_select, a small initialisation, errors of the table turned into a ValueError",
    """
class TokenEmbedding(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        if vocab_size < 1 or d_model < 1:
            raise ValueError("sizes")
        self.table = nn.Embedding(vocab_size, d_model)
        nn.init.uniform_(self.table.weight, -0.1, 0.1)

    def forward(self, ids):
        if torch.is_floating_point(ids) or ids.dtype is torch.bool or not ids.numel():
            raise ValueError("ids")
        try:
            rows = torch.index_select(self.table.weight, 0, ids.reshape(-1))
        except (IndexError, RuntimeError) as error:
            raise ValueError("range") from error
        return rows.view(*ids.shape, -1) * rows.shape[-1] ** 0.5
""",
)

style(
    "TokenEmbedding",
    "a table whose gradient is sparse",
    """
class TokenEmbedding(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        if vocab_size < 1 or d_model < 1:
            raise ValueError("sizes")
        self.table = nn.Embedding(vocab_size, d_model, sparse=True)

    def forward(self, ids):
        if ids.dtype.is_floating_point or ids.dtype == torch.bool or ids.numel() == 0:
            raise ValueError("ids")
        if ids.amin() < 0 or ids.amax() >= self.table.num_embeddings:
            raise ValueError("range")
        return math.sqrt(self.table.embedding_dim) * self.table(ids)
""",
)

# Answers as unlike all others as the texts allow --------------------------------------------------

style(
    "merge_pair",
    "characters of a string",
    """
def merge_pair(ids, pair, new_id):
    text = "".join(map(chr, ids))
    return [ord(ch) for ch in text.replace(chr(pair[0]) + chr(pair[1]), chr(new_id))]
""",
)
style(
    "bpe_encode",
    "the merges one after the other",
    """
def bpe_encode(text, merges):
    out = []
    for c in chunks(text):
        ids = list(c.encode("utf-8"))
        for m, pair in enumerate(merges):
            ids = merge_pair(ids, tuple(pair), 256 + m)
        out.extend(ids)
    return out
""",
)
style(
    "bpe_decode",
    "a stack and a bytearray",
    """
def bpe_decode(ids, merges):
    top = 255 + len(merges)
    if ids and (min(ids) < 0 or max(ids) > top):
        raise ValueError
    stack, out = list(reversed(ids)), bytearray()
    while stack:
        i = stack.pop()
        if i > 255:
            stack += reversed(merges[i - 256])
        else:
            out.append(i)
    return str(out, "utf-8", "replace")
""",
)
style(
    "wordpiece_encode",
    "recursion over the pieces that fit",
    """
def wordpiece_encode(word, vocabulary, unknown="[UNK]", prefix="##", max_chars=100):
    if word == "":
        raise ValueError
    if len(word) > max_chars:
        return [unknown]

    def cut(rest, mark):
        if not rest:
            return []
        fits = [p for p in vocabulary if len(p) > len(mark) and (mark + rest).startswith(p)]
        if not fits:
            return None
        best = max(fits, key=len)
        tail = cut(rest[len(best) - len(mark) :], prefix)
        return None if tail is None else [best] + tail

    return cut(word, "") or [unknown]
""",
)
style(
    "TokenEmbedding",
    "indexing, a scale held as a tensor",
    """
class TokenEmbedding(nn.Module):
    def __init__(self, vocab_size, d_model):
        if min(vocab_size, d_model) < 1:
            raise ValueError
        super().__init__()
        self.table = nn.Embedding(vocab_size, d_model)
        self.scale = torch.sqrt(torch.tensor(d_model))

    def forward(self, ids):
        if ids.dtype not in {torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8}:
            raise ValueError
        if 0 in ids.shape:
            raise ValueError
        if ((ids < 0) | (ids >= self.table.num_embeddings)).any():
            raise ValueError
        return self.table.weight[ids.long()] * self.scale
""",
)


@pytest.mark.parametrize(
    ("exercise", "source", "name"),
    [
        (
            "train_bpe",
            """
def train_bpe(text, num_merges):
    if num_merges < 0:
        raise ValueError
    parts = [list(chunk.encode()) for chunk in chunks(text)]
    merges = []
    for m in range(num_merges):
        stats = {}
        for part in parts:
            for pair in zip(part, part[1:]):
                stats[pair] = stats.get(pair, 0) + 1
        if not stats:
            break
        merges.append(max(stats, key=stats.get))
        parts = [merge_pair(part, merges[-1], 256 + m) for part in parts]
    return merges
""",
            "bpe_ties_first_seen",
        ),
        (
            "bpe_decode",
            """
def bpe_decode(ids, merges):
    def data(n):
        if n < 0 or n > 255 + len(merges):
            raise ValueError
        return bytes([n]) if n < 256 else b"".join(map(data, merges[n - 256]))

    return "".join(data(n).decode("utf-8", "replace") for n in ids)
""",
            "decode_token_by_token",
        ),
    ],
)
def test_a_mistake_in_code_of_its_own_is_named(graders, exercise, source, name):
    namespace = dict(reference_namespace(UNIT))
    exec(source, namespace)
    result = graders.run(Executor(namespace).execute, exercises=[exercise])[exercise]
    assert result.points < result.max_points
    assert result.misconception == name


class TestGraders(PositionalGraders):
    unit = UNIT
    styles = STYLES
