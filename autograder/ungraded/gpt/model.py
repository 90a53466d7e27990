"""Your GPT loads the trained weights of the shipped one and goes on from the first line of a
function, each time with the most probable token."""

import torch

from solutions.gpt.model import GPT

# isort: split
# %%
from toolkit import own_models

shipped = own_models.read("gpt")
gpt = GPT(**shipped.sizes).eval()
gpt.load_state_dict(shipped.tensors())
prompt = "def __len__(self):"  # begin another function
ids = torch.tensor([[own_models.START, *shipped.tokenizer.encode(prompt)]])
while ids[0, -1] != own_models.END and ids.shape[1] < 60:
    token = gpt(ids)[:, -1].argmax(-1, keepdim=True)  # (1, 1)
    ids = torch.cat([ids, token], dim=1)
print(shipped.tokenizer.decode(ids[0].tolist()))

# %%
chances = gpt(ids[:, :-1])[0].softmax(-1)  # (T, V), after each token
for row, token in zip(chances[-12:], ids[0, -12:], strict=True):
    best = shipped.tokenizer.names(row.topk(4).indices)
    print(f"{row[token]:4.0%}  {shipped.tokenizer.names([token])[0]:12}  of {'  '.join(best)}")
