"""Your two language models, one in each direction, train for half a minute, and the loss falls;
then they draw the tokens that your function puts in place of others, for a discriminator to
find."""

import torch

from solutions.bert.relatives import IGNORE, TwoDirections, replace_tokens

# isort: split
# %%
from toolkit import own_models

shipped = own_models.read("bert")
names = shipped.tokenizer.names
elmo = TwoDirections(len(names), embed_dim=64, hidden_size=96)
optimiser = torch.optim.Adam(elmo.parameters(), lr=5e-3)
losses = []
seconds = 30  # longer learns more
for ids, mask in own_models.for_seconds(seconds, own_models.sentences(shipped)):
    loss = elmo.loss(ids, mask)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    losses.append(loss.item())
own_models.loss_curve(losses, "both directions together")

# %%
ids = torch.tensor([shipped.tokenizer.encode("Return the number of items in the list.")])
before, after = elmo(ids).chunk(2, dim=2)  # (1, T, H): what each direction has read
logits = elmo.output(before[:, :-2]) + elmo.output(after[:, 2:])  # of tokens 1 to T - 2
logits = torch.nn.functional.pad(logits, (0, 0, 1, 1))  # (1, T, V)
labels = ids.masked_fill(torch.arange(ids.shape[1]) % 3 != 2, IGNORE)
for _ in range(3):
    replaced, is_replaced = replace_tokens(ids, labels, logits)
    pairs = zip(replaced[0].tolist(), is_replaced[0].tolist(), strict=True)
    print(" ".join(f"[{names[i]}]" if new else names[i] for i, new in pairs))
