"""Your BERT loads the trained weights of the shipped one, and a map shows which sentences it takes
for similar."""

from solutions.bert.model import BertModel, build_input, pad_batch

# isort: split
# %%
from toolkit import own_models

shipped = own_models.read("bert")
bert = BertModel(**shipped.sizes).eval()
bert.load_state_dict(shipped.tensors("bert."))
texts = [
    "Return the number of items.",
    "Return the length of the list.",
    "Raise ValueError if the argument is negative.",
    "An exception is raised if the value is invalid.",
    "Open the file for reading.",
    "Close the file.",
]
ids, segments, mask = pad_batch([build_input(shipped.tokenizer.encode(t)) for t in texts])
hidden, _ = bert(ids, segments, mask)  # (B, T, D)
means = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)  # (B, D)
own_models.similarity_map(means - means.mean(0), texts, "mean vectors, centred")
