"""Your encoder, your cell and your searches run the shipped recurrent translator; then a whole
model of yours, from vocabulary to loss, trains for 40 seconds, and translates."""

from solutions import seq2seq as mine

# isort: split
# %%
# The shipped weights in your encoder and your cell
import random

import torch

from toolkit import own_models

shipped = own_models.read("recurrent-en-zh")
words, width = shipped.sizes["vocab_size"], shipped.sizes["width"]
encoder = mine.BidirectionalEncoder(words, width, width // 2, width)
encoder.load_state_dict(own_models.encoder_tensors(shipped))
cell = mine.GRUCell(2 * width, width)
cell.load_state_dict(own_models.cell_tensors(shipped))
translator = own_models.RecurrentTranslator(shipped, encoder, cell)
for text in ("March 5, 2021 and 13 days", "8:15 PM", "Germany and Japan", "24.1%"):
    print(text, "→", own_models.translate_recurrently(translator, shipped, text))

# %%
# Your searches, with your translator
source = shipped.source("March 5, 2021 and 13 days")
print(shipped.tokenizer.decode(mine.greedy_decode(translator, source, max_length=40)[0]))
for ids, score in mine.beam_search(translator, source, beam_size=4, max_length=40):
    print(f"{score:7.3f}  {shipped.tokenizer.decode(ids)}")

# %%
# Your vocabularies and your batches
pairs = [p for p in shipped.held_out() if len(p.source_tokens) < 9]
vocabulary = mine.build_vocabulary([p.source_tokens for p in pairs])
written = mine.build_vocabulary([p.target_tokens for p in pairs])


def batch(chosen):
    source, mask = mine.pad_batch([mine.encode(p.source_tokens, vocabulary) for p in chosen])
    target = [mine.encode(p.target_tokens, written, add_bos=True, add_eos=True) for p in chosen]
    return source, mask, mine.pad_batch(target)[0]


print(f"{len(pairs)} pairs, {len(vocabulary)} tokens in English, {len(written)} in Chinese")

# %%
# Your whole model, from random weights
model = mine.Seq2Seq(len(vocabulary), len(written), embed_dim=64, hidden_size=128)
optimiser = torch.optim.Adam(model.parameters(), lr=4e-3)
losses = []
seconds = 40  # longer learns more
for chosen in own_models.for_seconds(seconds, iter(lambda: random.sample(pairs, 32), None)):
    source, mask, target = batch(chosen)
    loss = mine.sequence_loss(model(source, target[:, :-1], mask), target[:, 1:])
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    losses.append(loss.item())
own_models.loss_curve(losses, "your translator, from random weights")

# %%
# What it has learned of sentences that it was trained on
for pair in pairs[:5]:
    source, _, _ = batch([pair])
    ids = mine.greedy_decode(model, source, max_length=20)[0]
    print(pair.source, "→", "".join(mine.decode(ids, written)))
