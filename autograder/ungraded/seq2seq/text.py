"""Your functions turn a file into a vocabulary, ids and a padded batch, and back into words: take a
file of your own."""

from solutions.seq2seq.text import build_vocabulary, decode, encode, pad_batch

# isort: split
# %%
import re
from pathlib import Path

file = Path(re.__file__)  # or Path("the name of a text of yours")
lines = [re.findall(r"\w+|[^\w\s]", line) for line in file.read_text("utf-8").splitlines()]
lines = [words for words in lines if len(words) > 4]
vocabulary = build_vocabulary(lines, min_count=3)
print(f"{len(lines)} lines, {len(vocabulary)} entries, the first: {vocabulary[:12]}")
batch, real = pad_batch([encode(words, vocabulary, add_eos=True) for words in lines[:6]])
print(batch)
for row, count in zip(batch.tolist(), real.sum(1).tolist(), strict=True):
    print(f"{count:2} tokens: {' '.join(decode(row, vocabulary))}")
