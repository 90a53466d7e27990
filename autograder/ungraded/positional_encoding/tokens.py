"""Your byte-pair encoding learns its merges from a file, take one of your own; and the shipped
BERT's embeddings in your class know which tokens are alike."""

import torch

from solutions.positional_encoding.tokens import (
    TokenEmbedding,
    bpe_decode,
    bpe_encode,
    train_bpe,
    wordpiece_encode,
)

# isort: split
# %%
from pathlib import Path

from toolkit import own_models

file = Path(own_models.__file__)  # or Path("the name of a text of yours")
text = file.read_text("utf-8")[:12_000]
merges = train_bpe(text, 200)
ids = bpe_encode(text, merges)
print(f"{len(text.encode())} bytes become {len(ids)} tokens. The first:")
print(" | ".join(bpe_decode([i], merges) for i in ids[:40]))

# %%
shipped = own_models.read("bert")
names = shipped.tokenizer.names
embedding = TokenEmbedding(len(names), 96)
embedding.load_state_dict({"table.weight": shipped.state["bert.embeddings.token.weight"]})
table = torch.nn.functional.normalize(embedding(torch.arange(len(names))[None])[0], dim=1)
for word in ("file", "true", "error", "unreadable"):
    pieces = wordpiece_encode(word, names)
    best = (table @ table[names.index(pieces[0])]).topk(6).indices[1:]
    print(f"{word} = {' '.join(pieces)}; like {pieces[0]}: {', '.join(names[i] for i in best)}")
