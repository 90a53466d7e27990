"""Your Transformer loads the weights of the shipped translator and translates; maps show where the
heads of its decoder look in the source."""

import torch

from solutions.transformer.model import make_model

# isort: split
# %%
from toolkit import own_models
from toolkit.transformer import translation_task

shipped = own_models.read("transformer-en-de")
model = make_model(**shipped.sizes, tie_embeddings=True).eval()
model.load_state_dict(shipped.tensors())
for text in ("March 5, 2021 and 13 days", "8:15 PM", "Germany and Japan"):
    written = own_models.write_greedily(model, shipped.source(text))
    print(text, "→", shipped.tokenizer.decode(written))

# %%
target = torch.tensor([[own_models.BOS, *written]])
maps = translation_task.attention_maps(model, shipped.source(text), target)
rows = [*shipped.tokenizer.tokens(written), "<eos>"]
own_models.attention_maps(maps.cross[1, 0], rows, shipped.words(text))  # of the last layer
