"""Your masking and your loss train a small BERT for half a minute, and the loss falls; with the
weights of the shipped BERT your model fills gaps."""

import torch

from solutions.bert.pretraining import (
    BertForPreTraining,
    mask_tokens,
    next_sentence_pairs,
    pretraining_loss,
)

# isort: split
# %%
from toolkit import own_models

shipped = own_models.read("bert")
vocab_size = shipped.sizes["vocab_size"]
model = BertForPreTraining(vocab_size, d_model=64, num_layers=2, num_heads=4, d_ff=256)
optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
losses = []
seconds = 30  # longer learns more
batches = own_models.sentence_pairs(shipped, next_sentence_pairs)
for ids, token_type_ids, mask, is_random in own_models.for_seconds(seconds, batches):
    corrupted, labels = mask_tokens(ids, vocab_size)
    loss = pretraining_loss(*model(corrupted, token_type_ids, mask), labels, is_random)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    losses.append(loss.item())
own_models.loss_curve(losses, "your BERT, from random weights")

# %%
model = BertForPreTraining(**shipped.sizes)
model.load_state_dict(shipped.tensors())  # trained for 33,000 steps
text = "Return the [MASK] of items in the list."
print(text)
print(own_models.gaps(model, shipped, text))
