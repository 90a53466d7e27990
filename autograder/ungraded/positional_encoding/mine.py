"""Your tokens and positions make what the shipped BERT reads; the shipped Transformer translates
with your positions, and without any; then three encoders with positions of yours train for some
seconds each, and you see which still know the order in longer rows."""

from solutions import positional_encoding as mine

# isort: split
# %%
# Your pieces, embeddings and positions: the input of BERT's first layer
import torch
from torch.nn.functional import layer_norm

from toolkit import own_models
from toolkit.positional_encoding import measures

shipped = own_models.read("bert")
names, at = shipped.tokenizer.names, shipped.tensors("bert.embeddings.")
embedding = mine.TokenEmbedding(len(names), 96)
embedding.load_state_dict({"table.weight": at["token.weight"] / 96**0.5})  # yours scales by √D
positions = mine.LearnedPositions(128, 96)
positions.load_state_dict({"table.weight": at["position.weight"]})
words = ["return", "the", "unreadable", "file"]
pieces = ["[CLS]", *(p for word in words for p in mine.wordpiece_encode(word, names)), "[SEP]"]
ids = torch.tensor([[names.index(piece) for piece in pieces]])
x = positions(embedding(ids)) + at["segment.weight"][0]  # (1, T, D)
x = layer_norm(x, (96,), at["norm.weight"], at["norm.bias"], 1e-12)
read, inputs = own_models.layer_inputs(shipped, " ".join(words))
print("yours:  ", " ".join(pieces))
print("BERT's: ", " ".join(read))
print(f"largest difference of the vectors: {(x - inputs[0]).abs().max():.1e}")

# %%
# The Transformer with your positions, and without
shipped = own_models.read("transformer-en-de")
source = shipped.source("March 5, 2021 and 13 days")
for name, position in (("yours", mine.PositionalEncoding(96)), ("none", torch.nn.Identity())):
    translator = own_models.PlainTransformer(shipped, position)
    written = own_models.write_greedily(translator, source)
    print(f"{name}: {shipped.tokenizer.decode(written)}")

# %%
# Three ways to tell the order, trained on rows of 16
steps = 400  # more learn more
encoders = {
    "sinusoidal": measures.Encoder(8, 8, 32, mine.PositionalEncoding(32)),
    "learned": measures.Encoder(8, 8, 32, mine.LearnedPositions(32, 32)),
    "relative": measures.Encoder(8, 8, 32, attention=lambda: mine.RelativeSelfAttention(32, 4, 4)),
}
found = {name: own_models.learn_to_look_back(one, steps) for name, one in encoders.items()}
own_models.by_position(found, "which token stood three back?")
