"""The shipped Transformer translates with your embeddings, attention, norms and feed-forward
networks in place of theirs, all with its trained weights."""

from solutions.transformer.parts import (
    Embeddings,
    LayerNorm,
    MultiHeadAttention,
    PositionwiseFeedForward,
)

# isort: split
# %%
from toolkit import own_models

shipped = own_models.read("transformer-en-de")
translator = own_models.PlainTransformer(
    shipped,
    embeddings=Embeddings,
    attention=MultiHeadAttention,
    norm=LayerNorm,
    feed_forward=PositionwiseFeedForward,
)
for text in ("March 5, 2021 and 13 days", "8:15 PM", "Germany and Japan", "24.1%"):
    written = own_models.write_greedily(translator, shipped.source(text))
    print(text, "→", shipped.tokenizer.decode(written))
print(len(translator.made), "modules of yours")
