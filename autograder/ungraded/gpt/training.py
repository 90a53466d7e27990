"""Your training trains a small GPT on Python functions for about half a minute, and the loss falls;
then it writes what it has learned."""

from solutions.gpt.training import GPT, init_weights, train

# isort: split
# %%
from toolkit import own_models

shipped = own_models.read("gpt")
stream = own_models.functions(shipped)  # (M,), functions one after the other
vocab_size = shipped.sizes["vocab_size"]
gpt = init_weights(GPT(vocab_size, max_length=128, d_model=64, num_layers=2, num_heads=4))
steps = 800  # more learn more
losses = train(gpt, stream, steps, length=64, batch_size=8, max_lr=5e-3, warmup_steps=steps // 20)
own_models.loss_curve(losses, "your GPT, from random weights")

# %%
for prompt in ("def __init__(self, name", "def close(self", "def get("):
    print(own_models.write_on(gpt, shipped, prompt))
    print("-" * 40)
