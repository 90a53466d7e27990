"""The shipped Transformer translates with your positional encoding, and without any; a map shows
which positions your code takes for neighbours."""

import torch

from solutions.positional_encoding.sinusoidal import PositionalEncoding, sinusoidal_table

# isort: split
# %%
from toolkit import own_models

shipped = own_models.read("transformer-en-de")
source = shipped.source("March 5, 2021 and 13 days")
for name, position in (("yours", PositionalEncoding(96)), ("none", torch.nn.Identity())):
    translator = own_models.PlainTransformer(shipped, position)
    written = own_models.write_greedily(translator, source)
    print(f"{name}: {shipped.tokenizer.decode(written)}")

# %%
own_models.similarity_map(sinusoidal_table(60, 96), title="positions 0 to 59")
