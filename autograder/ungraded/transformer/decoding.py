"""Your searches translate with the shipped Transformer, and you see which other sentences your beam
has kept."""

from solutions.transformer.decoding import EncoderDecoder, beam_search, greedy_decode

# isort: split
# %%
from toolkit import own_models

shipped = own_models.read("transformer-en-de")
model = EncoderDecoder(**shipped.sizes).eval()
model.load_state_dict(shipped.tensors())
text = "March 5, 2021 and 13 days"  # dates, times, prices, quantities, countries, languages
source = shipped.source(text)
written = greedy_decode(model, source, max_length=40)
print(text, "→", shipped.tokenizer.decode(written[0]))

# %%
for ids, score in beam_search(model, source, beam_size=4, max_length=40):
    print(f"{score:7.3f}  {shipped.tokenizer.decode(ids)}")
