"""The shipped translators run with your attention in place of theirs; then two layers of your
self-attention train for half a minute to find out what "it" stands for, and you see where they
look."""

from solutions import attention as mine

# isort: split
# %%
# Your decoder step, which looks back, in the recurrent translator
import torch
from torch.nn.functional import cross_entropy

from toolkit import own_models
from toolkit.attention import heads
from toolkit.positional_encoding import measures

shipped = own_models.read("recurrent-en-zh")
width = shipped.sizes["width"]
step = mine.AttentionDecoderStep(width, width, width, width)
step.load_state_dict(own_models.look_tensors(shipped))
translator = own_models.RecurrentTranslator(shipped, look=step)
own_models.alignment(translator, shipped, "March 5, 2021 and 13 days")

# %%
# Your multi-head attention in all places of the Transformer
shipped = own_models.read("transformer-en-de")
translator = own_models.PlainTransformer(shipped, attention=mine.MultiHeadAttention)
for text in ("March 5, 2021 and 13 days", "8:15 PM", "Germany and Japan"):
    written = own_models.write_greedily(translator, shipped.source(text))
    print(text, "→", shipped.tokenizer.decode(written))
print(len(translator.made), "attentions of yours")

# %%
# Two layers of your self-attention, from random weights
task, draw = heads.Referents(), torch.Generator().manual_seed(0)
words = len(task.words)
model = measures.Encoder(words, words, 32, attention=lambda: mine.SelfAttention(32, 32))
optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
losses = []
seconds = 30  # longer learns more
rows = torch.arange(64)
for batch in own_models.for_seconds(seconds, iter(lambda: task.sample(64, draw), None)):
    answers = model(batch.tokens)[rows, batch.it]  # (B, V)
    loss = cross_entropy(answers, batch.tokens[rows, batch.referent])
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    losses.append(loss.item())
own_models.loss_curve(losses, "what does it stand for?")

# %%
# Where each layer looks; the row to read is that of "it"
sentence = "the animal did not cross the street because it was too tired"
maps = []
for layer in model.attentions:
    layer.register_forward_hook(lambda _, inputs, outputs: maps.append(outputs[1][0]))  # (T, T)
answer = model(task.sentence(sentence))[0, sentence.split().index("it")].argmax()
print("it =", task.words[answer])
words = sentence.split()
own_models.attention_maps(torch.stack(maps), words, words, ["first layer", "second layer"])
