"""Your searches translate with the shipped Transformer, you see which other sentences your beam has
kept, and what your cache saves."""

import torch

from solutions.transformer.decoding import (
    BOS,
    EOS,
    EncoderDecoder,
    beam_search,
    decode_step,
    greedy_decode,
    start_cache,
)

# isort: split
# %%
import time

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


# %%
@torch.no_grad()
def greedy_with_cache(model, source, max_length):
    cache, token, ids = start_cache(model, source), torch.tensor([BOS]), []
    while len(ids) < max_length and EOS not in ids:
        log_probs, cache = decode_step(model, token, cache)
        token = log_probs.argmax(dim=-1)
        ids.append(token.item())
    return torch.tensor([ids])


print("the same with a cache:", torch.equal(greedy_with_cache(model, source, 40), written))
wide = EncoderDecoder(100, 100, num_layers=3, d_model=256, d_ff=1024, num_heads=4).eval()
wide.generator.proj.bias.data[EOS] = -1e4  # random weights, and it never ends by itself
for tokens in (8, 32, 128):
    begin = time.perf_counter()
    greedy_decode(wide, source, tokens)
    middle = time.perf_counter()
    greedy_with_cache(wide, source, tokens)
    anew, kept = middle - begin, time.perf_counter() - middle
    print(f"{tokens:4} tokens: {anew:.2f} s without a cache, {kept:.2f} s with yours")
