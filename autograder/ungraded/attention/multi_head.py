"""Your multi-head attention loads the attention between the two languages of the shipped
translator, and you see where each head looks."""

import torch

from solutions.attention.multi_head import MultiHeadAttention

# isort: split
# %%
from toolkit import own_models

shipped = own_models.read("transformer-en-de")
attention = MultiHeadAttention(d_model=96, num_heads=4)
attention.load_state_dict(shipped.tensors("decoder.layers.1.src_attn."))
text = "March 5, 2021 and 13 days"
source = shipped.source(text)
transformer = own_models.PlainTransformer(shipped)
written = own_models.write_greedily(transformer, source)
target = torch.tensor([[own_models.BOS, *written]])
query, memory, mask = transformer.inputs(source, target, layer=1)
_, attn_weights = attention(query, memory, memory, mask)  # (1, H, U, S)
rows = [*shipped.tokenizer.tokens(written), "<eos>"]  # what each query is about to write
own_models.attention_maps(attn_weights[0], rows, shipped.words(text))
