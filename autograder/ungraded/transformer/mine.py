"""Your Transformer loads the shipped weights and translates with your searches; then a smaller one
of yours trains for 40 seconds with your batches, schedule and optimiser."""

from solutions import transformer as mine

# isort: split
# %%
# The shipped weights in your model
import torch

from toolkit import own_models
from toolkit.transformer import translation_task

shipped = own_models.read("transformer-en-de")
model = mine.make_model(**shipped.sizes, tie_embeddings=True).eval()
model.load_state_dict(shipped.tensors())
for text in ("8:15 PM", "Germany and Japan", "March 5, 2021 and 13 days"):
    source = shipped.source(text)
    written = own_models.write_greedily(model, source)
    print(text, "→", shipped.tokenizer.decode(written))

# %%
# Where the heads of its last layer look in the source
target = torch.tensor([[own_models.BOS, *written]])
maps = translation_task.attention_maps(model, source, target)
rows = [*shipped.tokenizer.tokens(written), "<eos>"]
own_models.attention_maps(maps.cross[1, 0], rows, shipped.words(text))

# %%
# Your searches
print(shipped.tokenizer.decode(mine.greedy_decode(model, source, max_length=40)[0]))
for ids, score in mine.beam_search(model, source, beam_size=4, max_length=40):
    print(f"{score:7.3f}  {shipped.tokenizer.decode(ids)}")

# %%
# A smaller model from random weights
sizes = {**shipped.sizes, "d_model": 64, "d_ff": 128, "num_layers": 1}
small = mine.make_model(**sizes, tie_embeddings=True)
moments, losses = {}, []
seconds = 40  # longer learns more
batches = own_models.translation_pairs(shipped, mine.token_batches)
for source, target in own_models.for_seconds(seconds, batches):
    step = len(losses) + 1
    lr = mine.learning_rate(step, d_model=64, warmup_steps=200)
    loss, moments = mine.train_step(small, source, target, moments, step, lr)
    losses.append(loss)
own_models.loss_curve(losses, "your translator, from random weights")

# %%
# What it has learned of sentences that it was trained on
small.eval()
for pair in shipped.held_out()[:5]:
    written = own_models.write_greedily(small, shipped.source(pair.source))
    print(f"{pair.source}\n  → {shipped.tokenizer.decode(written)}\n  = {pair.target}")
