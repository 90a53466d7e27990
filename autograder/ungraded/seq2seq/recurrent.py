"""Your GRU cells and your encoder run the shipped recurrent translator, with its trained
weights."""

from solutions.seq2seq.recurrent import BidirectionalEncoder, GRUCell

# isort: split
# %%
from toolkit import own_models

shipped = own_models.read("recurrent-en-zh")
words, width = shipped.sizes["vocab_size"], shipped.sizes["width"]
encoder = BidirectionalEncoder(words, width, width // 2, width)
encoder.load_state_dict(own_models.encoder_tensors(shipped))
cell = GRUCell(2 * width, width)
cell.load_state_dict(own_models.cell_tensors(shipped))
translator = own_models.RecurrentTranslator(shipped, encoder, cell)
for text in ("March 5, 2021 and 13 days", "8:15 PM", "Germany and Japan", "24.1%"):
    print(text, "→", own_models.translate_recurrently(translator, shipped, text))
