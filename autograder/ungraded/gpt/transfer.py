"""Your classifier turns the shipped GPT, in half a minute of fine-tuning, into a model that says
what a function was called; and your scores say which line the GPT itself would rather write."""

import torch

from solutions.gpt.transfer import GPT, START, GPTClassifier, answer_scores, joint_loss

# isort: split
# %%
from toolkit import own_models

shipped = own_models.read("gpt")
task = own_models.function_task(shipped, "name")
gpt = GPT(**shipped.sizes)
gpt.load_state_dict(shipped.tensors())
classifier = GPTClassifier(gpt, len(task.labels))
optimiser = torch.optim.Adam(classifier.parameters(), lr=5e-4)
losses = []
seconds = 30  # longer learns more
for ids, labels in own_models.for_seconds(seconds, own_models.labelled_functions(task)):
    scores, logits = classifier(ids)
    loss, task_loss, _ = joint_loss(scores, labels, logits, ids)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    losses.append(task_loss.item())
own_models.loss_curve(losses, task.question)

# %%
classifier.eval()
for example in task.test[:3]:
    scores, _ = classifier(torch.tensor([own_models.gpt_input(example)]))
    print(example.text, "\n  was called", task.labels[scores.argmax()], end="\n\n")
prompt = [START, *shipped.tokenizer.encode("def __len__(self):\n    return ")]
answers = ["len(self._data)", "self.name", "True", "None"]
scores = answer_scores(gpt, prompt, [shipped.tokenizer.encode(a) for a in answers])
for answer, score in zip(answers, scores.tolist(), strict=True):
    print(f"{score:7.2f} a token  {answer}")
