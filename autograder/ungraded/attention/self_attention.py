"""Your self-attention loads two heads of the shipped BERT, of which one looks at the token before
and one at the token after; the causal one can't look ahead."""

import torch

from solutions.attention.self_attention import MaskedSelfAttention, SelfAttention

# isort: split
# %%
from toolkit import own_models

shipped = own_models.read("bert")
pieces, inputs = own_models.layer_inputs(shipped, "If the file does not exist, return False.")
x = own_models.with_one(inputs[0])  # (1, T, 97): BERT's heads have a bias, and yours have none
maps = []
for attention, number in ((SelfAttention, 2), (SelfAttention, 3), (MaskedSelfAttention, 3)):
    head = attention(input_dim=97, head_dim=24)
    head.load_state_dict(own_models.head_tensors(shipped, layer=0, head=number))
    maps.append(head(x)[1][0])  # (T, T)
titles = ["before", "after", "after, causal"]
own_models.attention_maps(torch.stack(maps), pieces, pieces, titles)
