"""Your BERT loads the shipped weights, fills gaps and says which sentence is more likely;
fine-tuned for half a minute it finds the names of parameters; then it draws tokens for your
function to put in place of others."""

from solutions import bert as mine

# isort: split
# %%
# The shipped weights in your model
import torch

from toolkit import own_models

shipped = own_models.read("bert")
model = mine.BertForPreTraining(**shipped.sizes).eval()
model.load_state_dict(shipped.tensors())
text = "Return the [MASK] of items in the list."
print(text)
print(own_models.gaps(model, shipped, text))

# %%
# Which of them does it hold for more likely?
special = shipped.tokenizer.special
for text in ("Return the number of items.", "Return the items of number."):
    ids = torch.tensor([special.cls, *shipped.tokenizer.encode(text), special.sep])  # (T,)
    print(f"{mine.pseudo_log_likelihood(model, ids):7.2f}  {text}")

# %%
# Fine-tuning
task = own_models.documentation_task(shipped, "tagging")
tagger = mine.Tagger(model.bert, len(task.labels)).train()
optimiser = torch.optim.Adam(tagger.parameters(), lr=5e-4)
losses = []
seconds = 30  # longer learns more
batches = own_models.tagged(task, mine.align_labels)
for ids, mask, labels in own_models.for_seconds(seconds, batches):
    loss = tagger.loss(tagger(ids, mask=mask), labels)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    losses.append(loss.item())
own_models.loss_curve(losses, task.question)

# %%
# What it has learned; a question mark where it is wrong
tagger.eval()
for example in [e for e in task.test if sum(e.word_labels)][:6]:
    ids, word_ids = own_models.bert_input(example)
    tags = mine.word_tags(tagger(torch.tensor([ids]))[0], word_ids)
    words = zip(example.words, tags, example.word_labels, strict=True)
    print(" ".join(f"[{w}]{'' if right else '?'}" if tag else w for w, tag, right in words))

# %%
# Tokens that it would put in place of every third
model.load_state_dict(shipped.tensors())
names = shipped.tokenizer.names
ids = torch.tensor([shipped.tokenizer.encode("Return the number of items in the list.")])
labels = ids.masked_fill(torch.arange(ids.shape[1]) % 3 != 2, mine.IGNORE)
masked = ids.masked_fill(labels != mine.IGNORE, special.mask)
for _ in range(3):
    replaced, is_replaced = mine.replace_tokens(ids, labels, model(masked)[0])
    pairs = zip(replaced[0].tolist(), is_replaced[0].tolist(), strict=True)
    print(" ".join(f"[{names[i]}]" if new else names[i] for i, new in pairs))
