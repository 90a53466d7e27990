"""Your searches translate a date and a list with the shipped recurrent translator, and you see
which other sentences your beam has kept."""

from solutions.seq2seq.decoding import beam_search, greedy_decode

# isort: split
# %%
from toolkit import own_models

shipped = own_models.read("recurrent-en-zh")
translator = own_models.RecurrentTranslator(shipped)  # with `start` and `step`
text = "March 5, 2021 and 13 days"  # dates, times, prices, quantities, countries, languages
source = shipped.source(text)
written = greedy_decode(translator, source, max_length=40)
print(text, "→", shipped.tokenizer.decode(written[0]))

# %%
for ids, score in beam_search(translator, source, beam_size=4, max_length=40, alpha=1.0):
    print(f"{score:7.3f}  {shipped.tokenizer.decode(ids)}")
