"""Known mistakes of `gpt-generation`: sampling and the cache.

Nuclei that lose the token which crosses the threshold, filters in the wrong order, a cache without
its past.
"""

from __future__ import annotations

from autograder.units.variants import Misconception, mistakes_in

MISCONCEPTIONS: list[Misconception] = []

# --------------------------------------------------------------------------------------------
# Sampling
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "scale_temperature", "gpt-temperature")
DIVIDE = "return logits / temperature"
add(
    "temperature_multiplied",
    "You multiply by the temperature; divide, so that a high one makes all tokens more alike.",
    (DIVIDE, "return logits * temperature"),
)
add(
    "temperature_after_softmax",
    "You divide probabilities; the logits are divided, before any softmax.",
    (DIVIDE, "return torch.softmax(logits, dim=-1) / temperature"),
)
add(
    "temperature_softmax",
    "You return probabilities; the result is the scaled logits.",
    (DIVIDE, "return torch.softmax(logits / temperature, dim=-1)"),
)
add(
    "temperature_root",
    "You divide by the root of the temperature; divide by the temperature itself.",
    (DIVIDE, "return logits / math.sqrt(temperature)"),
)
add(
    "temperature_in_place",
    "You change the logits that were given; return new ones.",
    (DIVIDE, "return logits.div_(temperature)"),
)
add(
    "temperature_clipped",
    "You cut large results off; a low temperature may make the logits as large as it likes.",
    (DIVIDE, "return (logits / temperature).clamp(-10.0, 10.0)"),
)
add(
    "temperature_zero_accepted",
    "A temperature of 0 or less is not refused; raise a ValueError.",
    ("if temperature <= 0:", "if False:"),
)
add(
    "temperature_negative_accepted",
    "A negative temperature is not refused, which would turn the order of the tokens round.",
    ("if temperature <= 0:", "if temperature == 0:"),
)

add = mistakes_in(MISCONCEPTIONS, "keep_top_k", "gpt-top-k")
BEST = "best = logits.topk(min(k, logits.shape[-1]), dim=-1).values"
KEPT = "return logits.masked_fill(logits < best[..., -1:], -math.inf)"
add(
    "top_k_smallest",
    "You keep the k smallest logits; keep the largest.",
    (BEST, "best = logits.topk(min(k, logits.shape[-1]), dim=-1, largest=False).values"),
    (KEPT, "return logits.masked_fill(logits > best[..., -1:], -math.inf)"),
)
add(
    "top_k_zeros",
    "You set the others to 0, which is an ordinary logit and often not a small one; -inf makes "
    "their probability 0.",
    (KEPT, "return logits.masked_fill(logits < best[..., -1:], 0.0)"),
)
add(
    "top_k_large_negative",
    "You set the others to a large negative number; -inf is right whatever the logits are.",
    (KEPT, "return logits.masked_fill(logits < best[..., -1:], -1e9)"),
)
add(
    "top_k_one_fewer",
    "You keep one token fewer than k: the k-th largest stays too.",
    (KEPT, "return logits.masked_fill(logits <= best[..., -1:], -math.inf)"),
)
add(
    "top_k_one_more",
    "You keep k + 1 tokens.",
    ("min(k, logits.shape[-1])", "min(k + 1, logits.shape[-1])"),
)
add(
    "top_k_ties_cut",
    "Of equal logits you keep some and drop others; what equals the k-th largest stays.",
    (BEST, "best = logits.topk(min(k, logits.shape[-1]), dim=-1)"),
    (
        KEPT,
        "kept = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, best.indices, True)\n"
        "    return logits.masked_fill(~kept, -math.inf)",
    ),
)
add(
    "top_k_whole_batch",
    "Your threshold is that of all rows together; each row has its own.",
    (BEST, "best = logits.flatten().topk(min(k, logits.shape[-1])).values"),
    (KEPT, "return logits.masked_fill(logits < best[-1], -math.inf)"),
)
add(
    "top_k_first_axis",
    "You compare along the first axis; the vocabulary is the last.",
    (BEST, "best = logits.topk(min(k, logits.shape[0]), dim=0).values"),
    (KEPT, "return logits.masked_fill(logits < best[-1:], -math.inf)"),
)
add(
    "top_k_sorted_result",
    "You return the k largest logits in order; every logit stays at its position, and the shape as "
    "it is.",
    (KEPT, "return best"),
)
add(
    "top_k_too_large_fails",
    "A k larger than the vocabulary ends in an error; all tokens stay then.",
    ("min(k, logits.shape[-1])", "k"),
)
add(
    "top_k_large_refused",
    "A k larger than the vocabulary is refused; all tokens stay then.",
    ("if k < 1:", "if k < 1 or k > logits.shape[-1]:"),
)
add(
    "top_k_in_place",
    "You change the logits that were given; return new ones.",
    (KEPT, "return logits.masked_fill_(logits < best[..., -1:], -math.inf)"),
)
add(
    "top_k_zero_accepted",
    "A k below 1 is not refused; raise a ValueError.",
    ("if k < 1:", "if False:"),
    ("min(k, logits.shape[-1])", "min(max(k, 1), logits.shape[-1])"),
)

add = mistakes_in(MISCONCEPTIONS, "keep_top_p", "gpt-top-p")
SORT = "logits.sort(dim=-1, descending=True, stable=True)"
SUMS = "before = probabilities.cumsum(dim=-1) - probabilities"
OUT = "kept = sorted_logits.masked_fill(before >= p, -math.inf)"
BACK = "return torch.empty_like(logits).scatter(-1, order, kept)"
add(
    "top_p_crossing_dropped",
    "You drop the token with which the sum reaches p; it belongs to the set, which otherwise stays "
    "below p.",
    (SUMS, "before = probabilities.cumsum(dim=-1)"),
    (OUT, "kept = sorted_logits.masked_fill(before > p, -math.inf)"),
)
add(
    "top_p_crossing_dropped_but_first",
    "You drop the token with which the sum reaches p unless it is the only one; it always stays.",
    (SUMS, "before = probabilities.cumsum(dim=-1)\n    before[..., 0] = 0.0"),
    (OUT, "kept = sorted_logits.masked_fill(before > p, -math.inf)"),
)
add(
    "top_p_ascending",
    "You sort from the least probable token on and keep those; begin with the most probable.",
    (SORT, "logits.sort(dim=-1, descending=False, stable=True)"),
)
add(
    "top_p_not_sorted_back",
    "You return the logits in the order of their probabilities; put each back to its token's "
    "position.",
    (BACK, "return kept"),
)
add(
    "top_p_mask_not_sorted_back",
    "Your mask belongs to the sorted logits, but you apply it to the unsorted ones; put it back "
    "into the order of the tokens.",
    (BACK, "return logits.masked_fill(before >= p, -math.inf)"),
)
add(
    "top_p_gathered_back",
    "You put the logits back by gather with the order of the sort, which sorts once more; scatter "
    "is its inverse.",
    (BACK, "return kept.gather(-1, order)"),
)
add(
    "top_p_not_sorted",
    "You add the probabilities up in the order of the vocabulary; sort them first.",
    ("sorted_logits, order = " + SORT, "sorted_logits = logits"),
    (BACK, "return kept"),
)
add(
    "top_p_single_threshold",
    "You compare single probabilities with p; it is their sum that decides.",
    (OUT, "kept = sorted_logits.masked_fill(probabilities < p, -math.inf)"),
)
add(
    "top_p_share_of_largest",
    "You keep what has at least the share p of the largest probability; the sum of the largest "
    "decides.",
    (
        OUT,
        "least = p * probabilities[..., :1]\n"
        "    kept = sorted_logits.masked_fill(probabilities < least, -math.inf)",
    ),
)
add(
    "top_p_one_more",
    "You keep one token more than needed: the set is the smallest that reaches p.",
    (
        OUT,
        "kept = sorted_logits.masked_fill(before - probabilities.roll(1, -1).masked_fill("
        "probabilities == probabilities[..., :1], 0.0) >= p, -math.inf)",
    ),
)
add(
    "top_p_with_slack",
    "You end a little below p; the probabilities must add up to at least p, without a margin.",
    ("before >= p,", "before >= p - 1e-4,"),
)
add(
    "top_p_in_float32",
    "You compute the probabilities in float32, too coarse for float64 logits near p; keep the "
    "dtype of the logits.",
    (
        "probabilities = torch.softmax(sorted_logits, dim=-1)",
        "probabilities = torch.softmax(sorted_logits.float(), dim=-1)",
    ),
)
add(
    "top_p_without_softmax",
    "You add up logits; they are no probabilities yet.",
    ("probabilities = torch.softmax(sorted_logits, dim=-1)", "probabilities = sorted_logits"),
)
add(
    "top_p_whole_batch",
    "You sort and add up all rows together; each row has its own set.",
    (SORT, "logits.flatten().sort(descending=True, stable=True)"),
    (BACK, "return torch.empty_like(kept).scatter(-1, order, kept).reshape(logits.shape)"),
)
add(
    "top_p_first_axis",
    "You work along the first axis; the vocabulary is the last.",
    (SORT, "logits.sort(dim=0, descending=True, stable=True)"),
    ("torch.softmax(sorted_logits, dim=-1)", "torch.softmax(sorted_logits, dim=0)"),
    (SUMS, "before = probabilities.cumsum(dim=0) - probabilities"),
    (BACK, "return torch.empty_like(logits).scatter(0, order, kept)"),
)
add(
    "top_p_count_of_first_row",
    "Every row keeps as many tokens as the first needs; each has its own number.",
    (
        OUT,
        "count = int((before.flatten(0, -2)[0] < p).sum()) if logits.dim() > 1 else "
        "int((before < p).sum())\n    kept = sorted_logits.clone()\n"
        "    kept[..., count:] = -math.inf",
    ),
)
add(
    "top_p_softmax_first_axis",
    "Your softmax runs along the first axis; the probabilities of a row are those of the last.",
    ("torch.softmax(sorted_logits, dim=-1)", "torch.softmax(sorted_logits, dim=0)"),
)
add(
    "top_p_one_rounded",
    "With p = 1 you drop tokens, since the rounded sum reaches 1 before the last of them; all "
    "stay.",
    ("if p == 1:", "if False:"),
)
add(
    "top_p_zeros",
    "You set the others to 0, an ordinary logit; -inf makes their probability 0.",
    (OUT, "kept = sorted_logits.masked_fill(before >= p, 0.0)"),
)
add(
    "top_p_probabilities_returned",
    "You return probabilities; what stays keeps its logit.",
    (OUT, "kept = probabilities.masked_fill(before >= p, -math.inf)"),
)
add(
    "top_p_in_place",
    "You change the logits that were given; return new ones.",
    (BACK, "return logits.scatter_(-1, order, kept)"),
)
add(
    "top_p_zero_accepted",
    "A p of 0 or less, or above 1, is not refused; raise a ValueError.",
    ("if not 0 < p <= 1:", "if False:"),
)
add(
    "top_p_one_refused",
    "p = 1 is allowed and keeps all tokens.",
    ("if not 0 < p <= 1:", "if not 0 < p < 1:"),
)

add = mistakes_in(MISCONCEPTIONS, "sample_token", "gpt-sampling")
SCALE = "logits = scale_temperature(logits, temperature)"
ONLY_K = "    if top_k is not None:\n        logits = keep_top_k(logits, top_k)  # (B, V)\n"
ONLY_P = "    if top_p is not None:\n        logits = keep_top_p(logits, top_p)  # (B, V)\n"
SHARES = "probabilities = torch.softmax(logits, dim=1)"
DRAW = "return torch.multinomial(probabilities, 1, generator=generator).squeeze(1)"
GREEDY = "return logits.argmax(dim=1)"
add(
    "sample_always_greedy",
    "You always take the most probable token; only temperature 0 does, otherwise one is drawn.",
    (DRAW, "return probabilities.argmax(dim=1)"),
)
add(
    "sample_uniform",
    "You draw among the tokens that are left with equal probabilities; draw from the softmax.",
    (
        DRAW,
        "return torch.multinomial((probabilities > 0).float(), 1, generator=generator).squeeze(1)",
    ),
)
add(
    "sample_temperature_ignored",
    "Your temperature has no effect; scale the logits first.",
    ("    " + SCALE + "  # (B, V)\n", ""),
)
add(
    "sample_temperature_last",
    "You apply the temperature after top_p; it comes first, so that top_p sees the scaled "
    "probabilities.",
    ("    " + SCALE + "  # (B, V)\n", ""),
    (SHARES, "probabilities = torch.softmax(logits / temperature, dim=1)"),
)
add(
    "sample_top_p_first",
    "Your top_p counts the probabilities of all tokens; it comes after top_k, on those of what "
    "that "
    "has left.",
    (ONLY_K, ONLY_P),
    (ONLY_P + "    " + SHARES, ONLY_K + "    " + SHARES),
)
add(
    "sample_top_fifty",
    "Without a top_k you keep 50 tokens; None means that all stay.",
    (ONLY_K, "    logits = keep_top_k(logits, 50 if top_k is None else top_k)\n"),
)
add(
    "sample_top_k_ignored",
    "Your top_k has no effect.",
    ("if top_k is not None:", "if False:"),
)
add(
    "sample_top_p_ignored",
    "Your top_p has no effect.",
    ("if top_p is not None:", "if False:"),
)
add(
    "sample_either_filter",
    "With top_k given, your top_p has no effect; both act, top_k first.",
    ("    if top_p is not None:", "    elif top_p is not None:"),
)
add(
    "sample_generator_ignored",
    "You draw from PyTorch's own generator although another one is given; pass it to "
    "torch.multinomial.",
    ("probabilities, 1, generator=generator", "probabilities, 1"),
)
add(
    "sample_seeded",
    "Your draws are the same at every call; set no seed.",
    ("generator=generator", "generator=generator or torch.Generator().manual_seed(0)"),
)
add(
    "sample_one_for_all",
    "All rows get the token of the first one's draw; each row draws by itself.",
    (
        DRAW,
        "return torch.multinomial(probabilities[:1], len(logits), replacement=True, "
        "generator=generator).squeeze(0)",
    ),
)
add(
    "sample_same_noise",
    "All rows share one random number, so that equal rows get equal tokens; draw for each row.",
    (
        DRAW,
        "r = torch.rand(1, 1, generator=generator)\n    return (probabilities.cumsum(1) < r)"
        ".sum(1).clamp(max=logits.shape[1] - 1)",
    ),
)
add(
    "sample_squeezed",
    "A batch of one loses its axis; squeeze the axis of the draws alone.",
    (".squeeze(1)", ".squeeze()"),
)
add(
    "sample_sigmoid",
    "You take the sigmoid of each logit; the probabilities are the softmax of the row.",
    (SHARES, "probabilities = torch.sigmoid(logits)"),
)
add(
    "sample_greedy_without_filters_only",
    "With top_k or top_p given you don't treat temperature 0 as a case of its own; it takes the "
    "largest logit then too.",
    ("if temperature == 0:", "if temperature == 0 and top_k is None and top_p is None:"),
)
add(
    "sample_softmax_overflows",
    "Your softmax overflows for large logits; take torch.softmax, which subtracts the largest "
    "first.",
    (SHARES, "probabilities = logits.exp() / logits.exp().sum(dim=1, keepdim=True)"),
)
add(
    "sample_rank_returned",
    "You return the rank of a token in the sorted row; the result is its id.",
    (
        SHARES,
        "probabilities = torch.softmax(logits, dim=1).sort(dim=1, descending=True).values",
    ),
)
add(
    "sample_temperature_twice",
    "You apply the temperature twice; once is enough.",
    (SHARES, "probabilities = torch.softmax(logits / temperature, dim=1)"),
)
add(
    "sample_tiny_temperature",
    "At temperature 0 you draw with a tiny temperature instead, so that chance decides among equal "
    "logits; take the first of the largest.",
    (GREEDY, "temperature = 1e-6"),
)
add(
    "sample_column",
    "Your result is (B, 1); it is (B,).",
    (DRAW, "return torch.multinomial(probabilities, 1, generator=generator)"),
)
add(
    "sample_greedy_last_tie",
    "At temperature 0 you take the last of equal logits; take the first.",
    (GREEDY, "return logits.shape[1] - 1 - logits.flip(1).argmax(dim=1)"),
)
add(
    "sample_zero_refused",
    "Temperature 0 is allowed here: it takes the largest logit.",
    ("    if temperature == 0:\n        " + GREEDY + "  # (B,)\n", ""),
)
add(
    "sample_negative_accepted",
    "A negative temperature is not refused; raise a ValueError.",
    ("if temperature < 0:", "if False:"),
    ("if temperature == 0:", "if temperature <= 0:"),
)

add = mistakes_in(MISCONCEPTIONS, "generate", "gpt-sampling")
LOGITS = "logits = model(ids[:, -model.max_length :])[:, -1]"
TOKEN = "token = sample_token(logits, temperature, top_k, top_p, generator)"
FILL = "                token = token.masked_fill(stopped, stop)  # (B,)\n"
SEEDED = "generator = torch.Generator(device=ids.device).manual_seed(seed)"
APPEND = "ids = torch.cat([ids, token.unsqueeze(1)], dim=1)"
add(
    "generate_not_cropped",
    "Your text outgrows the model's context; show it the last model.max_length tokens only.",
    (LOGITS, "logits = model(ids)[:, -1]"),
)
add(
    "generate_first_tokens",
    "You show the model the first tokens of a long text; it needs the last model.max_length.",
    (LOGITS, "logits = model(ids[:, : model.max_length])[:, -1]"),
)
add(
    "generate_crops_too_much",
    "You show the model one token fewer than its context holds.",
    (LOGITS, "logits = model(ids[:, -max(model.max_length - 1, 1) :])[:, -1]"),
)
add(
    "generate_last_token_only",
    "You show the model the last token alone; it needs all that its context holds.",
    (LOGITS, "logits = model(ids[:, -1:])[:, -1]"),
)
add(
    "generate_first_logits",
    "You read the logits at the first position; those for the next token stand at the last.",
    (LOGITS, "logits = model(ids[:, -model.max_length :])[:, 0]"),
)
add(
    "generate_frozen_prompt",
    "Every new token is made from the beginning alone; show the model what it has written too.",
    ("    stopped = torch.zeros", "    prompt = ids\n    stopped = torch.zeros"),
    (LOGITS, "logits = model(prompt[:, -model.max_length :])[:, -1]"),
)
add(
    "generate_only_new",
    "You return the new tokens only; the result begins with ids.",
    ("    stopped = torch.zeros", "    prompt = ids.shape[1]\n    stopped = torch.zeros"),
    ("    return ids\n", "    return ids[:, prompt:]\n"),
)
add(
    "generate_prepended",
    "You put new tokens in front; they go to the end.",
    (APPEND, "ids = torch.cat([token.unsqueeze(1), ids], dim=1)"),
)
add(
    "generate_stop_goes_on",
    "A row that has written stop goes on with other tokens; fill it with stop.",
    (FILL, ""),
)
add(
    "generate_stops_at_first",
    "You end as soon as one row has written stop; the others go on until all have.",
    ("stopped.all()", "stopped.any()"),
)
add(
    "generate_never_ends_early",
    "You go on after all rows have written stop; end then.",
    ("if stop is not None and stopped.all():", "if False:"),
)
add(
    "generate_stop_left_out",
    "You leave the last stop out; a row that ends has written it.",
    (
        "            " + APPEND + "  # (B, T + 1)\n"
        "            if stop is not None and stopped.all():\n                break\n",
        "            if stop is not None and stopped.all():\n                break\n            "
        + APPEND
        + "\n",
    ),
)
add(
    "generate_stop_in_prompt",
    "A row whose beginning holds stop counts as ended; only what is written counts.",
    (
        "            if stop is not None:\n",
        "            if stop is not None:\n"
        "                stopped = stopped | (ids == stop).any(1)\n",
    ),
)
add(
    "generate_stop_zero_ignored",
    "stop = 0 counts as no stop; ask whether it is None.",
    ("            if stop is not None:\n", "            if stop:\n"),
    ("if stop is not None and stopped.all():", "if stop and stopped.all():"),
)
add(
    "generate_stop_hard_coded",
    "You stop at END whatever stop is; stop says which id it is, and None that there is none.",
    ("    stopped = torch.zeros", "    stop = END\n    stopped = torch.zeros"),
)
add(
    "generate_stop_forgotten",
    "You look at the newest tokens alone, so that writing ends only where all rows write stop at "
    "once; remember which rows have written it.",
    (FILL, ""),
    ("stopped = stopped | (token == stop)", "stopped = token == stop"),
)
add(
    "generate_ends_at_max_length",
    "You end when the text is as long as max_length; the model then reads the last tokens of it.",
    (
        "            " + LOGITS,
        "            if ids.shape[1] >= model.max_length:\n                break\n            "
        + LOGITS,
    ),
)
add(
    "generate_long_refused",
    "You refuse a text longer than max_length; the model reads the last tokens of it.",
    (
        "    stopped = torch.zeros",
        "    if ids.shape[1] > model.max_length:\n        raise ValueError('too long')\n"
        "    stopped = torch.zeros",
    ),
)
add(
    "generate_records_gradients",
    "You record gradients while the model runs; call it under torch.no_grad().",
    ("with torch.no_grad():", "if True:"),
)
add(
    "generate_freezes",
    "You take requires_grad from the model's weights and leave it so; use torch.no_grad().",
    (
        "    with torch.no_grad():\n",
        "    for weight in model.parameters():\n"
        "        weight.requires_grad_(False)\n"
        "    with torch.no_grad():\n",
    ),
)
add(
    "generate_pads",
    "A row that has ended is filled with 0; fill it with stop.",
    ("token.masked_fill(stopped, stop)", "token.masked_fill(stopped, 0)"),
)
add(
    "generate_seed_ignored",
    "Your seed has no effect; draw from a torch.Generator that is seeded with it.",
    (SEEDED, "pass"),
)
add(
    "generate_seeds_globally",
    "With a seed your draws still come from PyTorch's own generator, or you seed it; make one of "
    "your "
    "own.",
    (SEEDED, "torch.manual_seed(seed)"),
)
add(
    "generate_seed_zero_ignored",
    "seed = 0 counts as no seed; ask whether it is None.",
    ("if seed is not None:", "if seed:"),
)
add(
    "generate_seeded_each_step",
    "You seed the generator anew for each token, so that the draws repeat; do it once, before the "
    "loop.",
    (TOKEN, "if seed is not None:\n                " + SEEDED + "\n            " + TOKEN),
)
add(
    "generate_seed_of_step",
    "You seed the generator with seed and the step, so that one seed's text is another's shifted; "
    "seed it once, before the loop.",
    (
        TOKEN,
        "if seed is not None:\n                generator.manual_seed(seed + ids.shape[1])\n"
        "            " + TOKEN,
    ),
)
add(
    "generate_seeded_temperature_ignored",
    "With a seed your temperature has no effect; pass it on to sample_token.",
    (
        TOKEN,
        "temperature = temperature if seed is None or temperature == 0 else 1.0\n            "
        + TOKEN,
    ),
)
add(
    "generate_temperature_ignored",
    "Your temperature has no effect; pass it on to sample_token.",
    (TOKEN, "token = sample_token(logits, 1.0, top_k, top_p, generator)"),
)
add(
    "generate_filters_ignored",
    "top_k and top_p have no effect; pass them on to sample_token.",
    (TOKEN, "token = sample_token(logits, temperature, generator=generator)"),
)
add(
    "generate_top_p_ignored",
    "top_p has no effect; pass it on to sample_token.",
    (TOKEN, "token = sample_token(logits, temperature, top_k, generator=generator)"),
)
add(
    "generate_top_fifty",
    "Without a top_k you keep 50 tokens; hand top_k on as it is: None means that all stay.",
    (TOKEN, "top_k = 50 if top_k is None else top_k\n            " + TOKEN),
)
add(
    "generate_greedy",
    "You always take the most probable token; draw by sample_token.",
    (TOKEN, "token = logits.argmax(dim=1)"),
)
add(
    "generate_eval_mode",
    "You switch the model to evaluation mode; its mode is the caller's business.",
    (
        "    with torch.no_grad():\n",
        "    if hasattr(model, 'eval'):\n        model.eval()\n    with torch.no_grad():\n",
    ),
)
add(
    "generate_at_most_fifty",
    "You write no more than a fixed number of tokens; max_new_tokens alone says how many.",
    ("range(max_new_tokens)", "range(min(max_new_tokens, 50))"),
)
add(
    "generate_zero_refused",
    "max_new_tokens = 0 is refused; the text then stays as it is.",
    ("if max_new_tokens < 0:", "if max_new_tokens < 1:"),
)
add(
    "generate_bad_input_accepted",
    "A negative max_new_tokens is not refused; raise a ValueError.",
    ("if max_new_tokens < 0:", "if False:"),
)
add(
    "generate_empty_accepted",
    "A text without any token is not refused; raise a ValueError.",
    ("if ids.shape[1] < 1:", "if False:"),
)

# --------------------------------------------------------------------------------------------
# The cache
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "attend_cached", "gpt-cache")
JOIN_K = "keys = torch.cat([cache.keys, keys], dim=2)"
JOIN_V = "values = torch.cat([cache.values, values], dim=2)"
VISIBLE = "visible = causal_mask(x.shape[1], keys.shape[2] - x.shape[1]).to(x.device)"
RESULT = "return attention.out_proj(mixed), LayerCache(keys, values)"
add(
    "cache_mask_without_past",
    "Your mask takes the new positions for the first ones, so that they don't see all of the past; "
    "count from P on.",
    (VISIBLE, "visible = torch.ones(x.shape[1], keys.shape[2], dtype=torch.bool).tril()"),
)
add(
    "cache_no_mask",
    "The new positions see each other without a mask; among several the later are hidden.",
    (VISIBLE, "visible = torch.ones(x.shape[1], keys.shape[2], dtype=torch.bool)"),
)
add(
    "cache_mask_strict",
    "A new position doesn't see itself; its own key belongs to what it sees.",
    (
        VISIBLE,
        "visible = torch.ones(x.shape[1], keys.shape[2], dtype=torch.bool)"
        ".tril(keys.shape[2] - x.shape[1] - 1)\n    visible[:, 0] = True",
    ),
)
add(
    "cache_mask_strict_after_past",
    "With a cache a new position doesn't see itself; its own key belongs to what it sees.",
    (
        VISIBLE,
        "past = keys.shape[2] - x.shape[1]\n"
        "    visible = torch.ones(x.shape[1], keys.shape[2], dtype=torch.bool)"
        ".tril(past - int(past > 0))",
    ),
)
add(
    "cache_mask_left_out",
    "With a cache you leave the mask out; several new positions are masked among each other then "
    "too.",
    (
        VISIBLE,
        VISIBLE + "\n    visible = visible | (cache is not None)",
    ),
)
add(
    "cache_mask_after_softmax",
    "You mask the weights after the softmax, so that they don't add up to 1; hide the scores "
    "before it.",
    (
        "torch.softmax(scores.masked_fill(~visible, -math.inf), dim=3)",
        "torch.softmax(scores, dim=3) * visible",
    ),
)
add(
    "cache_heads_by_reshape",
    "You cut the heads out by a reshape to (B, H, T, D/H), which mixes positions with features; "
    "split "
    "the last axis, and then transpose.",
    (
        "    heads = [part.unflatten(-1, (attention.num_heads, -1)) for part in parts]",
        "    shape = (len(x), attention.num_heads, x.shape[1], -1)\n"
        "    heads = [part.reshape(shape).transpose(1, 2) for part in parts]",
    ),
)
add(
    "cache_heads_not_transposed_back",
    "You join the heads by a reshape of (B, H, T, D/H); transpose first, so that the heads of one "
    "position stand side by side.",
    (".transpose(1, 2).flatten(2)  # (B, T, D)", ".reshape(x.shape)  # (B, T, D)"),
)
add(
    "cache_appended_in_front",
    "You put the new keys and values in front of the old ones; they come behind.",
    (JOIN_K, "keys = torch.cat([keys, cache.keys], dim=2)"),
    (JOIN_V, "values = torch.cat([values, cache.values], dim=2)"),
)
add(
    "cache_only_new_returned",
    "Your cache holds the new positions only; the next step needs the old ones too.",
    (
        "    if cache is not None:\n",
        "    new = LayerCache(keys, values)\n    if cache is not None:\n",
    ),
    (RESULT, "return attention.out_proj(mixed), new"),
)
add(
    "cache_past_ignored",
    "Your new positions see each other alone; join the old keys and values.",
    ("if cache is not None:", "if False:"),
)
add(
    "cache_values_not_joined",
    "You join the keys alone; the values belong to them, position by position.",
    (JOIN_V, "values = torch.cat([torch.zeros_like(cache.values), values], dim=2)"),
)
add(
    "cache_exchanged",
    "Keys and values of your cache are exchanged; LayerCache takes the keys first.",
    (RESULT, "return attention.out_proj(mixed), LayerCache(values, keys)"),
    (JOIN_K, "keys = torch.cat([cache.values, keys], dim=2)"),
    (JOIN_V, "values = torch.cat([cache.keys, values], dim=2)"),
)
add(
    "cache_plain_pair",
    "Your new cache is a pair; make a LayerCache(keys, values) of it.",
    (RESULT, "return attention.out_proj(mixed), (keys, values)"),
)
add(
    "cache_not_split",
    "Your cache holds keys and values before they are split into heads; it is (B, H, P + T, D/H).",
    (
        RESULT,
        "joined = tuple(part.transpose(1, 2).flatten(2) for part in (keys, values))\n"
        "    return attention.out_proj(mixed), LayerCache(*joined)",
    ),
    (
        JOIN_K,
        "cache = LayerCache(*(part.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) "
        "if part.dim() == 3 else part for part in (cache.keys, cache.values)))\n        " + JOIN_K,
    ),
)
add(
    "cache_not_transposed",
    "Your cache is (B, positions, H, D/H); the heads come before the positions.",
    (
        RESULT,
        "turned = LayerCache(keys.transpose(1, 2), values.transpose(1, 2))\n"
        "    return attention.out_proj(mixed), turned",
    ),
    (
        JOIN_K,
        "cache = LayerCache(cache.keys.transpose(1, 2), cache.values.transpose(1, 2))\n        "
        + JOIN_K,
    ),
)
add(
    "cache_wrong_axis",
    "You join along the axis of the features; the positions are the third axis.",
    (JOIN_K, "keys = torch.cat([cache.keys, keys], dim=3)"),
    (JOIN_V, "values = torch.cat([cache.values, values], dim=3)"),
)
add(
    "cache_in_place",
    "You write into the cache that was given; other continuations still need it, so make new "
    "tensors.",
    (JOIN_K, "cache.keys.mul_(1.0 + 1e-3)\n        " + JOIN_K),
)
add(
    "cache_queries_stored",
    "You store queries in place of the keys; past queries are never needed again.",
    (
        RESULT,
        "stored = torch.cat([keys[:, :, : -x.shape[1]], queries], dim=2)\n"
        "    return attention.out_proj(mixed), LayerCache(stored, values)",
    ),
)
add(
    "cache_without_out_proj",
    "You return the joined heads; out_proj comes after them.",
    (RESULT, "return mixed, LayerCache(keys, values)"),
)
add(
    "cache_scale_of_width",
    "You divide the scores by the root of the whole width; it is that of one head, as in your "
    "attention.",
    ("math.sqrt(queries.shape[3])", "math.sqrt(x.shape[2])"),
)
add(
    "cache_dropout_applied",
    "Dropout acts in your result; with a cache it is left out.",
    (
        RESULT,
        "mixed = nn.functional.dropout(attention.out_proj(mixed), 0.6, attention.training)\n"
        "    return mixed, LayerCache(keys, values)",
    ),
)
add(
    "cache_dropout_on_weights",
    "Dropout acts on your attention weights; with a cache it is left out.",
    (
        "mixed = (attn_weights @ values)",
        "mixed = (attention.dropout(attn_weights) @ values)",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "cached_forward", "gpt-cache")
PLACES = "positions = torch.arange(past, end, device=ids.device)"
OLD = "before = None if cache is None else cache.layers[number]"
CLOSE = "return model.final_norm(x) @ model.token.weight.T, KVCache(layers)"
KIND = "norm_first = isinstance(block, PreNormBlock)"
add(
    "cached_positions_restart",
    "Your positions begin at 0 in every step; they go on after the P cached ones.",
    (PLACES, "positions = torch.arange(ids.shape[1])"),
)
add(
    "cached_positions_one_late",
    "Your positions with a cache are one too high; the first new one is P.",
    (
        PLACES,
        "positions = torch.arange(past, end).add(int(past > 0)).clamp(max=model.max_length - 1)",
    ),
)
add(
    "cached_position_repeated",
    "All new tokens of a step get the same position; they are P, P + 1 and so on.",
    (PLACES, "positions = torch.full((ids.shape[1],), past)"),
)
add(
    "cached_one_cache_for_all",
    "All blocks use the first one's cache; each has its own.",
    (OLD, OLD.replace("[number]", "[0]")),
)
add(
    "cached_caches_reversed",
    "The layers of your cache run from the last block to the first.",
    ("layers.append(layer)", "layers.insert(0, layer)"),
    (OLD, OLD.replace("[number]", "[-1 - number]")),
)
add(
    "cached_last_cache_only",
    "You return the cache of the last block only; there is one for each.",
    ("layers.append(layer)", "layers = [layer]"),
    (OLD, OLD.replace("[number]", "[min(number, len(cache.layers) - 1)]")),
)
add(
    "cached_past_appended",
    "You put the new layers into the list that was given; make a KVCache of a new list.",
    ("    layers = []\n", "    layers = [] if cache is None else cache.layers\n"),
    ("layers.append(layer)", "layers[number:number + 1] = [layer]"),
)
add(
    "cached_plain_list",
    "Your new cache is a list; make a KVCache(layers) of it.",
    (CLOSE, "return model.final_norm(x) @ model.token.weight.T, layers"),
)
add(
    "cached_in_float32",
    "Your cache holds float32 whatever the model's type; keep the keys and values as they are.",
    (
        "layers.append(layer)",
        "layers.append(LayerCache(layer.keys.float(), layer.values.float()))",
    ),
)
add(
    "cached_no_position",
    "Your tokens have no positions; add their vectors.",
    ("x = model.token(ids) + model.position(positions)", "x = model.token(ids)"),
)
add(
    "cached_always_pre_norm",
    "Your cached model has its norms before each part whatever the model; with post-norm they "
    "stand after the sums.",
    (KIND, "norm_first = True"),
)
add(
    "cached_always_post_norm",
    "Your cached model has its norms after each sum whatever the model; with pre-norm they stand "
    "before each part.",
    (KIND, "norm_first = False"),
)
add(
    "cached_no_final_norm",
    "The last norm is missing before the logits.",
    ("model.final_norm(x) @", "x @"),
)
add(
    "cached_no_shortcut",
    "The residual connection around the attention is missing.",
    (
        "x = x + attended if norm_first else block.norm_1(x + attended)",
        "x = attended if norm_first else block.norm_1(attended)",
    ),
)
add(
    "cached_last_logits_only",
    "You return the logits of the last position only; each new position has its own.",
    (
        CLOSE,
        "return (model.final_norm(x) @ model.token.weight.T)[:, -1:], KVCache(layers)",
    ),
)
add(
    "cached_features_returned",
    "You return features; the logits are those times the transposed token embedding.",
    ("model.final_norm(x) @ model.token.weight.T", "model.final_norm(x)"),
)
add(
    "cached_dropout_applied",
    "Dropout acts in your cached model when it is in training mode; with a cache it is left out.",
    (
        "added = block.feed_forward.w_2(gelu(block.feed_forward.w_1(inner)))",
        "added = block.feed_forward(inner)",
    ),
)
add(
    "cached_post_norm_dropout",
    "With post-norm dropout still acts in your cached model when it is in training mode; with a "
    "cache it is left out, whatever the kind of block.",
    (
        "added = block.feed_forward.w_2(gelu(block.feed_forward.w_1(inner)))",
        "added = block.feed_forward.w_2(gelu(block.feed_forward.w_1(inner)))\n"
        "        added = added if norm_first else block.feed_forward(inner)",
    ),
)
add(
    "cached_embedding_dropout",
    "Dropout acts on your embeddings when the model is in training mode; with a cache it is left "
    "out.",
    (
        "x = model.token(ids) + model.position(positions)",
        "x = model.dropout(model.token(ids) + model.position(positions))",
    ),
)
add(
    "cached_gelu_exact",
    "Your GELU is the exact one; the model's is the given gelu, by tanh.",
    ("gelu(block.feed_forward.w_1(inner))", "nn.functional.gelu(block.feed_forward.w_1(inner))"),
)
add(
    "cached_norm_twice",
    "You use norm_1 for the feed-forward network too; it has norm_2.",
    (
        "inner = block.norm_2(x) if norm_first else x",
        "inner = block.norm_1(x) if norm_first else x",
    ),
    ("else block.norm_2(x + added)", "else block.norm_1(x + added)"),
)
add(
    "cached_context_of_new_only",
    "Cached and new tokens together are longer than the context, and you don't refuse them; count "
    "both.",
    ("if end > model.max_length:", "if ids.shape[1] > model.max_length:"),
    (PLACES, "positions = torch.arange(past, end).clamp(max=model.max_length - 1)"),
)
add(
    "cached_long_accepted",
    "More tokens than the context holds are not refused; raise a ValueError.",
    ("if end > model.max_length:", "if False:"),
)
add(
    "cached_full_context_refused",
    "A full context is refused; P + T may be as large as the context.",
    ("if end > model.max_length:", "if end >= model.max_length:"),
)
