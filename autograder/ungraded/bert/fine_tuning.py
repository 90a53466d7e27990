"""Your tagger turns the shipped BERT, in half a minute of fine-tuning, into a model that finds the
names of parameters in sentences of documentation."""

import torch

from solutions.bert.fine_tuning import BertModel, Tagger, align_labels, word_tags

# isort: split
# %%
from toolkit import own_models

shipped = own_models.read("bert")
task = own_models.documentation_task(shipped, "tagging")
bert = BertModel(**shipped.sizes)
bert.load_state_dict(shipped.tensors("bert."))
tagger = Tagger(bert, len(task.labels))
optimiser = torch.optim.Adam(tagger.parameters(), lr=5e-4)
losses = []
seconds = 30  # longer learns more
for ids, mask, labels in own_models.for_seconds(seconds, own_models.tagged(task, align_labels)):
    loss = tagger.loss(tagger(ids, mask=mask), labels)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    losses.append(loss.item())
own_models.loss_curve(losses, task.question)

# %%
tagger.eval()
for example in [e for e in task.test if sum(e.word_labels)][:6]:
    ids, word_ids = own_models.bert_input(example)
    tags = word_tags(tagger(torch.tensor([ids]))[0], word_ids)
    words = zip(example.words, tags, example.word_labels, strict=True)
    print(" ".join(f"[{w}]{'' if right else '?'}" if tag else w for w, tag, right in words))
