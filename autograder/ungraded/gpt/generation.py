"""Your sampler lets the shipped GPT write Python functions: at temperature 0 the same one each
time, then four with nucleus sampling."""

import torch

from solutions.gpt.generation import END, GPT, START, generate

# isort: split
# %%
from toolkit import own_models

shipped = own_models.read("gpt")
gpt = GPT(**shipped.sizes).eval()
gpt.load_state_dict(shipped.tensors())
prompt = "def is_empty(self):"  # begin another function
ids = torch.tensor([[START, *shipped.tokenizer.encode(prompt)]])
written = generate(gpt, ids, 60, temperature=0, stop=END)
print(shipped.tokenizer.decode(written[0].tolist()))

# %%
starts = torch.full((4, 1), START)  # four functions from nothing
for row in generate(gpt, starts, 80, temperature=0.8, top_p=0.9, stop=END, seed=3).tolist():
    print(shipped.tokenizer.decode(row))
    print("-" * 40)
