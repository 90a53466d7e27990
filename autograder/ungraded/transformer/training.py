"""Your batches, schedule and training step train a small translator for 40 seconds, and the loss
falls; then it translates sentences that it was trained on."""

from solutions.transformer.training import learning_rate, make_model, token_batches, train_step

# isort: split
# %%
from toolkit import own_models

shipped = own_models.read("transformer-en-de")
sizes = {**shipped.sizes, "d_model": 64, "d_ff": 128, "num_layers": 1}
model = make_model(**sizes, tie_embeddings=True)
moments, losses = {}, []
seconds = 40  # longer learns more
batches = own_models.translation_pairs(shipped, token_batches)
for source, target in own_models.for_seconds(seconds, batches):
    step = len(losses) + 1
    lr = learning_rate(step, d_model=64, warmup_steps=200)
    loss, moments = train_step(model, source, target, moments, step, lr)
    losses.append(loss)
own_models.loss_curve(losses, "your translator, from random weights")

# %%
model.eval()
for pair in shipped.held_out()[:5]:
    written = own_models.write_greedily(model, shipped.source(pair.source))
    print(f"{pair.source}\n  → {shipped.tokenizer.decode(written)}\n  = {pair.target}")
