"""Your GPT loads the shipped weights and writes functions with your sampler; a smaller one trains
for about half a minute with your training and goes on from a first line; then your scores say which
line the shipped one would rather write."""

from solutions import gpt as mine

# isort: split
# %%
# The shipped weights in your model: the same function each time, then two by chance
import torch

from toolkit import own_models

shipped = own_models.read("gpt")
gpt = mine.GPT(**shipped.sizes).eval()
gpt.load_state_dict(shipped.tensors())
begin = [mine.START, *shipped.tokenizer.encode("def is_empty(self):")]
ids = torch.tensor([begin])
written = mine.generate(gpt, ids, 60, temperature=0, stop=mine.END)
print(shipped.tokenizer.decode(written[0].tolist()))
starts = torch.full((2, 1), mine.START)  # from nothing
for row in mine.generate(gpt, starts, 80, temperature=0.8, top_p=0.9, stop=mine.END).tolist():
    print("-" * 40)
    print(shipped.tokenizer.decode(row))

# %%
# A smaller one from random weights
stream = own_models.functions(shipped)  # (M,), functions one after the other
vocab_size = shipped.sizes["vocab_size"]
small = mine.GPT(vocab_size, max_length=128, d_model=64, num_layers=2, num_heads=4)
mine.init_weights(small)
steps = 800  # more learn more
losses = mine.train(
    small, stream, steps, length=64, batch_size=8, max_lr=5e-3, warmup_steps=steps // 20
)
own_models.loss_curve(losses, "your GPT, from random weights")

# %%
# What it has learned
for prompt in ("def __init__(self, name", "def close(self", "def get("):
    print(own_models.write_on(small, shipped, prompt))
    print("-" * 40)

# %%
# Which line would the shipped one rather write?
prompt = [mine.START, *shipped.tokenizer.encode("def __len__(self):\n    return ")]
answers = ["len(self._data)", "self.name", "True", "None"]
scores = mine.answer_scores(gpt, prompt, [shipped.tokenizer.encode(a) for a in answers])
for answer, score in zip(answers, scores.tolist(), strict=True):
    print(f"{score:7.2f} a token  {answer}")
