"""Known mistakes of `transformer-decoding`: greedy decoding, beam search, the cache.

A search that stops with the first row, lengths without EOS, a cache that starts again at position
0.
"""

from __future__ import annotations

from autograder.units.variants import Misconception, mistakes_in

MISCONCEPTIONS: list[Misconception] = []

# --------------------------------------------------------------------------------------------
# Decoding
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "greedy_decode", "trf-greedy")
ENCODE = "memory = model.encode(source, src_mask)"
LOOP = "while target.shape[1] <= max_length and not finished.all():"
LAST = "log_probs = model.generator(hidden[:, -1])"
TOKEN = "token = log_probs.argmax(dim=-1).masked_fill(finished, PAD)"
OVER = "finished = finished | (token == EOS)"
RESULT = "return target[:, 1:]"
add(
    "greedy_first_position",
    "You read the first position's distribution at every step; read the last position's, which "
    "predicts the next token.",
    (LAST, "log_probs = model.generator(hidden[:, 0])"),
)
add(
    "greedy_all_positions_again",
    "You replace the whole target by the argmax of all positions; append only the last position's "
    "token.",
    (
        "target = torch.cat([target, token.unsqueeze(1)], dim=1)",
        "best = model.generator(hidden).argmax(dim=-1)\n"
        "        target = torch.cat([target[:, :1], best[:, :-1], token.unsqueeze(1)], dim=1)",
    ),
)
add(
    "greedy_begins_with_source",
    "Your target begins with the first token of the source; begin it with BOS.",
    ("target = torch.full_like(source[:, :1], BOS)", "target = source[:, :1]"),
)
add(
    "greedy_begins_with_pad",
    "Your target begins with PAD; begin it with BOS.",
    ("target = torch.full_like(source[:, :1], BOS)", "target = torch.zeros_like(source[:, :1])"),
)
add(
    "greedy_begins_with_eos",
    "Your target begins with EOS; begin it with BOS.",
    (
        "target = torch.full_like(source[:, :1], BOS)",
        "target = torch.full_like(source[:, :1], EOS)",
    ),
)
add(
    "greedy_encodes_the_target",
    "You don't encode the source; compute the memory once with encode(source, src_mask).",
    (ENCODE, "memory = model.encode(torch.full_like(source, BOS), src_mask)"),
)
add(
    "greedy_encodes_each_step",
    "You encode the source at every step; call encode once, before the first one: the memory stays "
    "the same.",
    (
        "hidden = model.decode(memory, src_mask, target, tgt_mask)",
        "hidden = model.decode(model.encode(source, src_mask), src_mask, target, tgt_mask)",
    ),
)
add(
    "greedy_bos_kept",
    "You return BOS; feed it to the model, but leave it out of the result.",
    (RESULT, "return target"),
)
add(
    "greedy_eos_dropped",
    "Your rows lack EOS; keep it in the result.",
    (
        RESULT,
        "ids = target[:, 1:].masked_fill(target[:, 1:] == EOS, PAD)\n"
        "    return ids[:, : max(1, int((ids != PAD).sum(dim=1).max()))]",
    ),
)
add(
    "greedy_tokens_after_eos",
    "Your rows continue after EOS; fill them with PAD from then on.",
    (TOKEN, "token = log_probs.argmax(dim=-1)"),
)
add(
    "greedy_eos_repeated",
    "Your finished rows get more EOS; fill them with PAD.",
    (TOKEN, TOKEN.replace("PAD", "EOS")),
)
add(
    "greedy_stops_with_the_first",
    "You stop when the first row is finished; continue until every row is.",
    (LOOP, "while target.shape[1] <= max_length and not finished.any():"),
)
add(
    "greedy_never_stops",
    "You always take max_length steps; stop when every row is finished, so that no column is "
    "padding alone.",
    (LOOP, "while target.shape[1] <= max_length:"),
)
add(
    "greedy_stops_on_read",
    "You stop one step late, when EOS has been read; a row is finished as soon as EOS is produced.",
    (
        LOOP,
        "while target.shape[1] <= max_length and not (target == EOS).any(dim=1).logical_and("
        "target[:, -1] != EOS).all():",
    ),
)
add(
    "greedy_one_short",
    "Your rows get at most max_length - 1 tokens; allow max_length, since BOS doesn't count.",
    (LOOP, "while target.shape[1] < max(2, max_length) and not finished.all():"),
)
add(
    "greedy_one_too_many",
    "Your rows get up to max_length + 1 tokens; stop at max_length, since EOS counts.",
    (LOOP, "while target.shape[1] <= max_length + 1 and not finished.all():"),
)
add(
    "greedy_capped",
    "You stop after a number of tokens that you chose yourself; only max_length limits a row "
    "without EOS, however large it is.",
    (LOOP, "while target.shape[1] <= min(max_length, 50) and not finished.all():"),
)
add(
    "greedy_ends_at_pad",
    "Your rows end at PAD; end a row only at EOS.",
    (OVER, "finished = finished | (token == EOS) | (token == PAD)"),
)
add(
    "greedy_source_not_masked",
    "Your model attends to the padding of the source; pass pad_mask(source) to encode and decode.",
    ("src_mask = pad_mask(source)", "src_mask = torch.ones_like(pad_mask(source))"),
)
add(
    "greedy_encoder_not_masked",
    "Your encoder attends to padding; pass pad_mask(source) to encode, too.",
    (ENCODE, "memory = model.encode(source)"),
    read="trf-mask-errors",
)
add(
    "greedy_decoder_not_masked",
    "Your decoder attends to the padding of the source; pass src_mask to decode, too.",
    (
        "model.decode(memory, src_mask, target, tgt_mask)",
        "model.decode(memory, torch.ones_like(src_mask), target, tgt_mask)",
    ),
    read="trf-mask-errors",
)
add(
    "greedy_one_source_not_masked",
    "You mask the source only where the batch has several rows; one source may be padded, too, so "
    "always pass pad_mask(source).",
    ("src_mask = pad_mask(source)", "src_mask = pad_mask(source) | (len(source) == 1)"),
    read="trf-mask-errors",
)
add(
    "greedy_target_not_masked",
    "Your earlier positions see later ones; pass subsequent_mask to decode at inference, too, "
    "since it matters as soon as there are two layers.",
    (
        "tgt_mask = subsequent_mask(target.shape[1]).to(target.device)",
        "tgt_mask = None",
    ),
    read="trf-mask-errors",
)
add(
    "greedy_last_token_only",
    "You feed only the last token; without a cache, feed the whole target so far.",
    (
        "model.decode(memory, src_mask, target, tgt_mask)",
        "model.decode(memory, src_mask, target[:, -1:], tgt_mask[:, -1:, -1:])",
    ),
)
add(
    "greedy_sampled",
    "You sample the token; take the most probable one with argmax.",
    (TOKEN, TOKEN.replace("argmax(dim=-1)", "exp().multinomial(1).squeeze(1)")),
)
for name, forbidden in (
    ("greedy_specials_forbidden", "[PAD, BOS, 3]"),
    ("greedy_pad_and_bos_forbidden", "[PAD, BOS]"),
    ("greedy_pad_forbidden", "[PAD]"),
):
    add(
        name,
        "You never choose some of the special tokens; take the argmax over all ids, PAD, BOS and "
        "UNK included.",
        (LAST, f"{LAST}.clone()\n        log_probs[:, {forbidden}] = -math.inf"),
    )
add(
    "greedy_same_token_for_all",
    "You give all rows the first row's token; take the argmax of each row.",
    (TOKEN, TOKEN.replace("argmax(dim=-1)", "argmax(dim=-1)[:1].expand(len(source))")),
)
add(
    "greedy_log_probs",
    "You return log-probabilities; return the ids.",
    (RESULT, "return log_probs"),
)
add(
    "greedy_eos_forced",
    "You write EOS into rows that have produced none; after max_length tokens, leave a row as it "
    "is.",
    (
        RESULT,
        "target = torch.cat([target[:, :-1], target[:, -1:].masked_fill(~finished[:, None], EOS)], "
        "dim=1)\n"
        f"    {RESULT}",
    ),
)
add(
    "greedy_length_unchecked",
    "You accept a max_length below 1; raise a ValueError.",
    ("if max_length < 1:", "max_length = max(1, max_length)\n    if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "beam_search", "trf-beam")
WIDTH = "width = min(beam_size - len(finished), totals.numel())"
TOTALS = "totals = so_far.unsqueeze(1) + log_probs"
SCORE = "total / ((5 + len(ids)) / 6) ** alpha"
SCORED = f"scored = [(ids, {SCORE}) for ids, total in finished + live]"
SORTED = "sorted(scored, key=lambda pair: pair[1], reverse=True)"
AT_EOS = "(finished if token == EOS else extended).append(hypothesis)"
ON = "while live and len(live[0][0]) < max_length:"
add(
    "beam_encodes_each_step",
    "You encode the source at every step; call encode once, before the first one: the memory stays "
    "the same.",
    (
        "memory.expand(len(live), -1, -1),",
        "model.encode(source, src_mask).expand(len(live), -1, -1),",
    ),
)
add(
    "beam_no_penalty",
    "Your score is the log-probability itself; divide it by ((5 + len(ids)) / 6) ** alpha.",
    (SCORE, "total"),
)
add(
    "beam_plain_length",
    "You divide by len(ids) ** alpha, as in the chapter on sequence-to-sequence models; divide by "
    "((5 + len(ids)) / 6) ** alpha.",
    (SCORE, "total / len(ids) ** alpha"),
)
add(
    "beam_sixth_missing",
    "You divide by (5 + len(ids)) ** alpha; divide by ((5 + len(ids)) / 6) ** alpha, which is 1 "
    "for one token.",
    (SCORE, "total / (5 + len(ids)) ** alpha"),
)
add(
    "beam_sixth_outside",
    "You divide by (5 + len(ids)) ** alpha / 6, with alpha on one factor only; divide by ((5 + "
    "len(ids)) / 6) ** alpha.",
    (SCORE, "total / ((5 + len(ids)) ** alpha / 6)"),
)
add(
    "beam_penalty_multiplied",
    "You multiply by the penalty; divide by it, so that long hypotheses lose less.",
    (SCORE, "total * ((5 + len(ids)) / 6) ** alpha"),
)
add(
    "beam_alpha_factor",
    "You multiply by alpha; make it the exponent: ((5 + len(ids)) / 6) ** alpha.",
    (SCORE, "total / (alpha * (5 + len(ids)) / 6 if alpha else 1)"),
)
add(
    "beam_alpha_fixed",
    "You always use 0.6; use the argument alpha.",
    (SCORE, SCORE.replace("alpha", "0.6")),
)
add(
    "beam_length_with_bos",
    "Your length counts BOS; use len(ids), which counts EOS but not BOS.",
    (SCORE, SCORE.replace("5 + len(ids)", "6 + len(ids)")),
)
add(
    "beam_length_without_eos",
    "Your length leaves out EOS; use len(ids), which counts it.",
    (SCORE, SCORE.replace("len(ids)", "len(ids) - (ids[-1] == EOS)")),
)
add(
    "beam_same_length_for_all",
    "You divide every score by the penalty of max_length; use each hypothesis's own length.",
    (SCORE, SCORE.replace("len(ids)", "max_length")),
)
add(
    "beam_sorted_before_penalty",
    "You sort by log-probability; sort by score.",
    (
        f"return {SORTED}",
        "by_total = sorted(finished + live, key=lambda pair: pair[1], reverse=True)\n"
        f"    return [(ids, {SCORE}) for ids, total in by_total]",
    ),
)
add(
    "beam_penalty_during_search",
    "You choose the survivors by score; choose them by log-probability, and apply the penalty only "
    "at the end.",
    (
        WIDTH,
        f"{WIDTH}\n"
        "        steps = len(live[0][0]) + 1\n"
        "        ended = torch.arange(totals.shape[1]) == EOS\n"
        "        real = totals\n"
        "        totals = torch.where(ended, totals / ((5 + steps) / 6) ** alpha, totals)",
    ),
    (
        "row, token = divmod(place, totals.shape[1])",
        "row, token = divmod(place, totals.shape[1])\n            total = real[row, token].item()",
    ),
)
add(
    "beam_penalty_every_step",
    "You divide by the penalty at every step, so it counts again and again; divide once, at the "
    "end.",
    (TOTALS, f"{TOTALS}\n        totals = totals / ((6 + len(live[0][0])) / 6) ** alpha"),
    (SCORE, "total"),
)
add(
    "beam_greedy",
    "You keep one hypothesis whatever beam_size is; keep the beam_size best.",
    ("    src_mask = pad_mask(source)", "    beam_size = 1\n    src_mask = pad_mask(source)"),
)
add(
    "beam_each_extended_once",
    "You keep only the best extension of each hypothesis; take the best among the extensions of "
    "all hypotheses together.",
    (
        "best, places = totals.flatten().topk(width)",
        "if len(live) > 1:\n"
        "            keep = torch.full_like(totals, -math.inf)\n"
        "            top = totals.argmax(dim=-1, keepdim=True)\n"
        "            totals = keep.scatter(1, top, totals.gather(1, top))\n"
        "        best, places = totals.flatten().topk(width)",
    ),
)
add(
    "beam_never_shrinks",
    "Your beam keeps its width when hypotheses finish; keep beam_size minus the number of finished "
    "ones.",
    (WIDTH, "width = min(beam_size, totals.numel())"),
    (SORTED, f"{SORTED}[:beam_size]"),
)
add(
    "beam_too_many_results",
    "You return more than beam_size hypotheses; let the beam shrink by one for each that finishes.",
    (WIDTH, "width = min(beam_size, totals.numel())"),
)
add(
    "beam_stops_with_the_first",
    "You stop when the first hypothesis finishes; continue until nothing is live or max_length is "
    "reached.",
    (ON, "while live and not finished and len(live[0][0]) < max_length:"),
)
add(
    "beam_stops_at_the_best",
    "You stop when the best finished hypothesis is better than every live one; continue until "
    "nothing is live or max_length is reached, since all of them are to be returned.",
    (
        ON,
        "while (\n"
        "        live\n"
        "        and len(live[0][0]) < max_length\n"
        "        and not any(\n"
        f"            {SCORE} >= live[0][1] / ((5 + len(live[0][0])) / 6) ** alpha\n"
        "            for ids, total in finished\n"
        "        )\n"
        "    ):",
    ),
)
add(
    "beam_begins_with_copies",
    "You begin with beam_size copies of the empty hypothesis, so copies of the best one fill the "
    "beam; begin with one.",
    ("= [([], 0.0)]\n", "= [([], 0.0)] * beam_size\n"),
)
add(
    "beam_shared_out",
    "You give each live hypothesis the same number of extensions; take the best among the "
    "extensions of all hypotheses together.",
    (
        "best, places = totals.flatten().topk(width)",
        "share = max(1, min(width // len(live), totals.shape[1]))\n"
        "        kept = torch.full_like(totals, -math.inf)\n"
        "        best, places = totals.topk(share, dim=-1)\n"
        "        kept.scatter_(1, places, best)\n"
        "        best, places = kept.flatten().topk(share * len(live))",
    ),
)
add(
    "beam_no_wider_than_the_vocabulary",
    "You keep at most V extensions; keep the best of all K * V, as many as the beam has room for.",
    (WIDTH, "width = min(beam_size - len(finished), totals.shape[1])"),
)
for name, forbidden in (
    ("beam_specials_forbidden", "[PAD, BOS, 3]"),
    ("beam_pad_and_bos_forbidden", "[PAD, BOS]"),
    ("beam_pad_forbidden", "[PAD]"),
):
    add(
        name,
        "You never extend by some of the special tokens; extend by every token, PAD, BOS and UNK "
        "included.",
        (TOTALS, f"{TOTALS}\n        totals[:, {forbidden}] = -math.inf"),
    )
add(
    "beam_finished_dropped",
    "You lose finished hypotheses; put them aside and return them, too.",
    (
        AT_EOS,
        "if token != EOS:\n"
        "                extended.append(hypothesis)\n"
        "            elif not extended and not finished:\n"
        "                finished.append(hypothesis)",
    ),
)
add(
    "beam_finished_extended",
    "You extend hypotheses after EOS; put those that end with EOS aside as finished.",
    (AT_EOS, "extended.append(hypothesis)"),
)
add(
    "beam_unfinished_dropped",
    "You drop what is still live after max_length tokens; add it to the result as it is.",
    ("for ids, total in finished + live]", "for ids, total in finished]"),
)
add(
    "beam_unfinished_only_without_finished",
    "You return live hypotheses only if none has finished; after max_length tokens, add them to "
    "the finished ones.",
    ("for ids, total in finished + live]", "for ids, total in finished or live]"),
)
add(
    "beam_eos_appended",
    "You append EOS to what is still live after max_length tokens; add it to the result as it is.",
    (
        "for ids, total in finished + live]",
        "for ids, total in finished + [([*ids, EOS], total) for ids, total in live]]",
    ),
    (SCORE, SCORE.replace("len(ids)", "min(len(ids), max_length)")),
)
add(
    "beam_live_not_penalised",
    "You divide only finished hypotheses by the penalty; divide those that are still live, too.",
    (SCORE, f"total if ids[-1] != EOS else {SCORE}"),
)
add(
    "beam_eos_dropped",
    "Your finished hypotheses lack EOS; keep it in the ids.",
    (
        SCORED,
        f"scored = [(ids[:-1] if ids[-1] == EOS else ids, {SCORE}) "
        "for ids, total in finished + live]",
    ),
)
add(
    "beam_bos_included",
    "Your ids begin with BOS; feed it to the model, but leave it out of the ids.",
    (SCORED, f"scored = [([BOS, *ids], {SCORE}) for ids, total in finished + live]"),
)
add(
    "beam_bos_not_fed",
    "You don't feed BOS before the other tokens; begin every target with it.",
    ("[[BOS, *ids] for ids, _ in live]", "[ids or [BOS] for ids, _ in live]"),
)
add(
    "beam_worst_first",
    "You return the worst hypothesis first; sort by score, best first.",
    (SORTED, "sorted(scored, key=lambda pair: pair[1])"),
)
add(
    "beam_not_sorted",
    "You return the hypotheses in the order in which they finished; sort by score, best first.",
    (f"return {SORTED}", "return scored"),
)
add(
    "beam_finished_first",
    "You return finished hypotheses before those that are still live; sort all of them together by "
    "score.",
    (
        f"return {SORTED}",
        "parts = scored[: len(finished)], scored[len(finished) :]\n"
        f"    return [pair for part in parts for pair in {SORTED.replace('scored', 'part')}]",
    ),
)
add(
    "beam_best_only",
    "You return only the best hypothesis; return all finished and live ones.",
    (SORTED, f"{SORTED}[:1]"),
)
add(
    "beam_log_probs_not_added",
    "Your scores are those of the last step; add up the log-probabilities of all tokens.",
    (TOTALS, "totals = 0 * so_far.unsqueeze(1) + log_probs"),
)
add(
    "beam_probabilities_added",
    "You add probabilities, but the probability of a sequence is a product; add log-probabilities.",
    (TOTALS, "totals = (so_far.unsqueeze(1) + log_probs.exp())"),
)
add(
    "beam_product",
    "You multiply probabilities, which become 0 for improbable hypotheses; add log-probabilities.",
    (TOTALS, "totals = (so_far.exp().unsqueeze(1) * log_probs.exp()).log()"),
)
add(
    "beam_probabilities",
    "Your scores are probabilities; return log-probabilities divided by the penalty.",
    (SCORE, f"math.exp({SCORE})"),
)
add(
    "beam_impossible_kept",
    "You keep hypotheses of probability 0; drop them, even if fewer than beam_size are left.",
    ("if total == -math.inf:", "if False:"),
)
add(
    "beam_one_short",
    "Your search ends one token early; allow max_length tokens, since BOS doesn't count.",
    (ON, "while live and len(live[0][0]) < max(1, max_length - 1):"),
)
add(
    "beam_capped",
    "Your search stops after a number of tokens that you chose yourself; only max_length limits "
    "it, however large it is.",
    (ON, "while live and len(live[0][0]) < min(max_length, 20):"),
)
add(
    "beam_one_too_many",
    "Your hypotheses have up to max_length + 1 tokens; stop at max_length, since EOS counts.",
    (ON, "while live and len(live[0][0]) < max_length + 1:"),
)
add(
    "beam_first_position",
    "You read the first position's distribution at every step; read the last position's, which "
    "predicts the next token.",
    ("model.generator(hidden[:, -1])", "model.generator(hidden[:, 0])"),
)
add(
    "beam_last_token_only",
    "You feed only the last token of each hypothesis; without a cache, feed all of them.",
    ("[[BOS, *ids] for ids, _ in live]", "[[BOS, *ids][-1:] for ids, _ in live]"),
)
add(
    "beam_source_not_masked",
    "Your model attends to the padding of the source; pass pad_mask(source) to encode and decode.",
    ("src_mask = pad_mask(source)", "src_mask = torch.ones_like(pad_mask(source))"),
)
add(
    "beam_encoder_not_masked",
    "Your encoder attends to padding; pass pad_mask(source) to encode, too.",
    (ENCODE, "memory = model.encode(source)"),
    read="trf-mask-errors",
)
add(
    "beam_decoder_not_masked",
    "Your decoder attends to the padding of the source; pass src_mask to decode, too.",
    ("src_mask.expand(len(live), -1, -1)", "None"),
    read="trf-mask-errors",
)
add(
    "beam_memory_not_repeated",
    "You pass decode one row of memory for several hypotheses; give memory and source mask as many "
    "rows as the target.",
    ("memory.expand(len(live), -1, -1)", "memory"),
    ("src_mask.expand(len(live), -1, -1)", "src_mask"),
)
add(
    "beam_mask_not_repeated",
    "You pass decode one row of the source mask for several hypotheses; give it as many rows as "
    "the target.",
    ("src_mask.expand(len(live), -1, -1)", "src_mask"),
)
add(
    "beam_target_not_masked",
    "Your earlier positions see later ones; pass subsequent_mask to decode at inference, too, "
    "since it matters as soon as there are two layers.",
    (
        "            target,\n            tgt_mask,\n",
        "            target,\n            None,\n",
    ),
    read="trf-mask-errors",
)
add(
    "beam_tensor_ids",
    "Your ids are tensors; return lists of ints with .tolist().",
    (SCORED, f"scored = [(torch.tensor(ids), {SCORE}) for ids, total in finished + live]"),
)
add(
    "beam_score_first",
    "You return (score, ids); return (ids, score).",
    (f"return {SORTED}", f"return [(score, ids) for ids, score in {SORTED}]"),
)
add(
    "beam_settings_unchecked",
    "You accept a beam_size or max_length below 1, or a negative alpha; raise a ValueError.",
    ("if value < least:", "if False:"),
    (
        "    src_mask = pad_mask(source)",
        "    beam_size, max_length = max(1, beam_size), max(1, max_length)\n"
        "    src_mask = pad_mask(source)",
    ),
)
add(
    "beam_batch_accepted",
    "You accept more than one source; raise a ValueError.",
    ("if len(source) != 1:", "source = source[:1]\n    if False:"),
)

# --------------------------------------------------------------------------------------------
# The cache
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "start_cache", "trf-cache")
KEPT = "kept = [LayerCache(keys, values) for keys, values in pairs]"
EMPTY = "empty = [LayerCache(keys[:, :, :0], values[:, :, :0]) for keys, values in pairs]"
STARTED = "return DecoderCache(src_mask, KVCache(kept), KVCache(empty))"
PAIRS = "pairs = [layer.src_attn.project(memory, memory) for layer in model.decoder.layers]"
add(
    "start_projected_by_self_attn",
    "You project the memory with self_attn; use each layer's src_attn.",
    (PAIRS, PAIRS.replace("src_attn", "self_attn")),
)
add(
    "start_not_projected",
    "You split the memory into heads without k_proj and v_proj; call src_attn.project.",
    (
        PAIRS,
        "whole = memory.unflatten(-1, (model.decoder.layers[0].src_attn.num_heads, -1))\n"
        "    whole = whole.transpose(1, 2)\n"
        "    pairs = [(whole, whole) for _ in model.decoder.layers]",
    ),
)
add(
    "start_one_layer_for_all",
    "You use the first layer's keys and values for all layers; project the memory with each "
    "layer's own src_attn.",
    (
        PAIRS,
        "pairs = [model.decoder.layers[0].src_attn.project(memory, memory)] "
        "* len(model.decoder.layers)",
    ),
)
add(
    "start_memory_normalised",
    "You normalise the memory before you project it; project it as encode returns it.",
    (PAIRS, PAIRS.replace("(memory, memory)", "(*2 * (layer.sublayer[1].norm(memory),))")),
)
add(
    "start_embedding_projected",
    "You project the embedded source; project the memory, the output of the encoder.",
    (ENCODE, "memory = model.position(model.src_embed(source))"),
)
add(
    "start_encoder_not_masked",
    "Your encoder attends to padding; pass src_mask to encode.",
    (ENCODE, "memory = model.encode(source)"),
    read="trf-mask-errors",
)
add(
    "start_mask_missing",
    "Your src_mask is None; store pad_mask(source), which every later step needs.",
    (STARTED, STARTED.replace("src_mask", "None")),
)
add(
    "start_mask_flat",
    "Your src_mask has shape (B, S); store (B, 1, S), as pad_mask returns it.",
    (STARTED, STARTED.replace("src_mask", "src_mask.squeeze(1)")),
)
add(
    "start_mask_inverted",
    "Your src_mask is inverted: it is True at padding, but True means «may attend». Store "
    "pad_mask(source) as it is.",
    (STARTED, STARTED.replace("src_mask", "~src_mask")),
)
add(
    "start_memory_instead",
    "You store the memory itself; store each layer's keys and values of it.",
    (STARTED, STARTED.replace("KVCache(kept)", "memory")),
)
add(
    "start_keys_and_values_swapped",
    "You swap keys and values of the memory; project returns (keys, values).",
    (KEPT, KEPT.replace("(keys, values)", "(values, keys)")),
)
add(
    "start_values_are_keys",
    "You store the keys of the memory as its values, too; project returns (keys, values).",
    (KEPT, "kept = [LayerCache(keys, keys) for keys, _ in pairs]"),
)
add(
    "start_not_empty",
    "Your target holds the keys and values of the memory; before the first step it should be "
    "empty.",
    (EMPTY, "empty = [LayerCache(keys, values) for keys, values in pairs]"),
)
add(
    "start_zero_position",
    "Your target begins with one position of zeros, which would be attended to; begin with none.",
    (
        EMPTY,
        "empty = [LayerCache(0 * keys[:, :, :1], 0 * values[:, :, :1]) for keys, values in pairs]",
    ),
)
add(
    "start_none",
    "The keys and values of your target are None; use empty tensors (B, H, 0, D/H), to which a "
    "step can append.",
    (EMPTY, "empty = [LayerCache(None, None) for _ in pairs]"),
)
add(
    "start_empty_lists",
    "Your target has no layers; give it one LayerCache with empty tensors for each layer.",
    (EMPTY, "empty = []"),
)
add(
    "start_heads_merged",
    "Your tensors have shape (B, S, D); keep them split into heads, (B, H, S, D/H).",
    (
        PAIRS,
        f"{PAIRS}\n"
        "    pairs = [tuple(x.transpose(1, 2).flatten(2) for x in pair) for pair in pairs]",
    ),
    (EMPTY, "empty = [LayerCache(keys[:, :0], values[:, :0]) for keys, values in pairs]"),
)
add(
    "start_stacked",
    "You stack the layers in one LayerCache; give KVCache a list with one LayerCache for each "
    "layer.",
    (
        STARTED,
        "stacked = [torch.stack(parts) for parts in zip(*pairs)]\n"
        "    return DecoderCache(src_mask, LayerCache(*stacked), KVCache(empty))",
    ),
)
add(
    "start_plain_lists",
    "Your memory and target are lists; make a KVCache of each.",
    (STARTED, "return DecoderCache(src_mask, kept, empty)"),
)
add(
    "start_dict",
    "You return a dict; return a DecoderCache.",
    (STARTED, "return dict(src_mask=src_mask, memory=KVCache(kept), target=KVCache(empty))"),
)

add = mistakes_in(MISCONCEPTIONS, "decode_step", "trf-cache")
POSITION = "past=cache.past"
EMBED = "x = model.position(model.tgt_embed(token.unsqueeze(1)), past=cache.past)"
PROJECT = "new_keys, new_values = layer.self_attn.project(x, x)"
OLD = "old = cache.target.layers[n]"
KEYS = "keys = torch.cat([old.keys, new_keys], dim=2)"
VALUES = "values = torch.cat([old.values, new_values], dim=2)"
ATTEND = "return layer.self_attn.attend(x, keys, values)"
MEMORY = "memory = cache.memory.layers[n]"
LOOK = "return layer.src_attn.attend(x, memory.keys, memory.values, cache.src_mask)"
GROWN = "grown = DecoderCache(cache.src_mask, cache.memory, KVCache(kept))"
CLOSE = "return model.generator(x[:, 0]), grown"
add(
    "step_position_zero",
    "You always put the token at position 0; its position is the number of tokens fed before, "
    "cache.past.",
    (POSITION, "past=0"),
)
add(
    "step_position_from_one",
    "Your positions begin at 1; the first token is at position 0, so use cache.past.",
    (POSITION, "past=cache.past + 1"),
)
add(
    "step_position_late",
    "Your position is one too small from the second step on; use cache.past.",
    (POSITION, "past=max(0, cache.past - 1)"),
)
add(
    "step_position_missing",
    "You don't add the positional encoding; call model.position with past=cache.past.",
    (EMBED, "x = model.tgt_embed(token.unsqueeze(1))"),
)
add(
    "step_position_of_the_source",
    "You take the position from the length of the source; use cache.past, the length of the target "
    "so far.",
    (POSITION, "past=cache.memory.past"),
)
add(
    "step_keys_overwritten",
    "Your new keys and values replace the cached ones; append them.",
    (KEYS, "keys = new_keys"),
    (VALUES, "values = new_values"),
)
add(
    "step_keys_in_front",
    "You put the new keys and values before the cached ones; append them at the end.",
    (KEYS, "keys = torch.cat([new_keys, old.keys], dim=2)"),
    (VALUES, "values = torch.cat([new_values, old.values], dim=2)"),
)
add(
    "step_values_not_appended",
    "You append the keys but not the values; append the new values to the cached ones, too.",
    (VALUES, "values = new_values.expand_as(keys)"),
)
add(
    "step_itself_not_seen",
    "Your token attends only to cached positions; append its own key and value before it attends.",
    (
        ATTEND,
        f"if old.past == 0:\n                {ATTEND}\n"
        "            return layer.self_attn.attend(x, old.keys, old.values)",
    ),
)
add(
    "step_cache_unused",
    "Your token attends only to itself; let it attend to all cached keys and values, too.",
    (ATTEND, "return layer.self_attn.attend(x, new_keys, new_values)"),
)
add(
    "step_one_layer_for_all",
    "You use the first layer's cached keys and values in all layers; use each layer's own.",
    (OLD, OLD.replace("[n]", "[0]")),
)
add(
    "step_memory_of_the_first_layer",
    "You use the first layer's keys and values of the memory in all layers; use each layer's own.",
    (MEMORY, MEMORY.replace("[n]", "[0]")),
)
add(
    "step_memory_from_x",
    "Your src_attn gets keys and values from the new token; use those of the memory, from the "
    "cache.",
    (LOOK, "return layer.src_attn(x, x, x)"),
)
add(
    "step_memory_swapped",
    "You swap keys and values of the memory; attend takes the keys first.",
    (LOOK, LOOK.replace("memory.keys, memory.values", "memory.values, memory.keys")),
)
add(
    "step_source_not_masked",
    "Your token attends to the padding of the source; pass cache.src_mask to src_attn.attend.",
    (LOOK, LOOK.replace(", cache.src_mask", "")),
    read="trf-mask-errors",
)
add(
    "step_norm_order_ignored",
    "You always normalise after the sum; call the layer's connections in `sublayer`, which know "
    "their order.",
    (
        "x = layer.sublayer[0](x, attend_to_target)",
        "first, second, third = layer.sublayer\n        x = first.norm(x + attend_to_target(x))",
    ),
    (
        "x = layer.sublayer[1](x, attend_to_source)",
        "x = second.norm(x + attend_to_source(x))",
    ),
    (
        "x = layer.sublayer[2](x, layer.feed_forward)",
        "x = third.norm(x + layer.feed_forward(x))",
    ),
    read="trf-norm-order",
)
add(
    "step_norm_first_always",
    "You always normalise before the sub-layer; call the layer's connections in `sublayer`, which "
    "know their order.",
    (
        "x = layer.sublayer[0](x, attend_to_target)",
        "first, second, third = layer.sublayer\n        x = x + attend_to_target(first.norm(x))",
    ),
    (
        "x = layer.sublayer[1](x, attend_to_source)",
        "x = x + attend_to_source(second.norm(x))",
    ),
    (
        "x = layer.sublayer[2](x, layer.feed_forward)",
        "x = x + layer.feed_forward(third.norm(x))",
    ),
    read="trf-norm-order",
)
add(
    "step_final_norm_missing",
    "You leave out the decoder's final norm in pre-norm models; apply it before the generator.",
    ("if model.decoder.norm is not None:", "if False:"),
    read="trf-norm-order",
)
add(
    "step_keys_not_normalised",
    "You compute keys and values from the input before the norm; project what the connection "
    "passes to the sub-layer.",
    (
        "        def attend_to_target(",
        "        before = x\n\n        def attend_to_target(",
    ),
    (PROJECT, "new_keys, new_values = layer.self_attn.project(before, before)"),
    read="trf-norm-order",
)
add(
    "step_no_residual",
    "You leave out residual connection and norm; call each sub-layer through its connection in "
    "`sublayer`.",
    ("x = layer.sublayer[0](x, attend_to_target)", "x = attend_to_target(x)"),
    ("x = layer.sublayer[1](x, attend_to_source)", "x = attend_to_source(x)"),
    ("x = layer.sublayer[2](x, layer.feed_forward)", "x = layer.feed_forward(x)"),
)
add(
    "step_source_attention_missing",
    "You leave out cross-attention; call src_attn as the second sub-layer.",
    ("x = layer.sublayer[1](x, attend_to_source)", "pass"),
)
add(
    "step_feed_forward_missing",
    "You leave out the feed-forward network; call it as the third sub-layer.",
    ("x = layer.sublayer[2](x, layer.feed_forward)", "pass"),
)
add(
    "step_first_layer_only",
    "You run only the first layer; run all of them.",
    ("enumerate(model.decoder.layers)", "enumerate(model.decoder.layers[:1])"),
)
add(
    "step_cache_changed",
    "You change the given cache; put the longer keys and values into a new one.",
    (GROWN, "cache.target.layers[:] = kept\n    grown = cache"),
)
add(
    "step_cache_not_grown",
    "You return the cache as it was; return one whose keys and values are one position longer.",
    (GROWN, "grown = DecoderCache(cache.src_mask, cache.memory, cache.target)"),
)
add(
    "step_memory_dropped",
    "Your new cache holds only the target; keep src_mask and memory, which the next step needs.",
    (GROWN, "grown = DecoderCache(None, None, KVCache(kept))"),
)
add(
    "step_target_alone_returned",
    "You return only the KVCache of the target; return a DecoderCache with src_mask and memory, "
    "too.",
    (GROWN, "grown = KVCache(kept)"),
)
add(
    "step_source_mask_grown",
    "You make src_mask one position longer; leave it as it is, since the source doesn't grow.",
    (
        GROWN,
        "mask = torch.cat([cache.src_mask, cache.src_mask[:, :, :1]], dim=2)\n"
        "    grown = DecoderCache(mask, cache.memory, KVCache(kept))",
    ),
)
add(
    "step_three_axes",
    "Your log-probabilities have shape (B, 1, V); return (B, V), since there is only one position.",
    (CLOSE, CLOSE.replace("x[:, 0]", "x")),
)
add(
    "step_hidden_returned",
    "You return the decoder's vector; apply the generator to it.",
    (CLOSE, CLOSE.replace("model.generator(x[:, 0])", "x[:, 0]")),
)
add(
    "step_logits_returned",
    "You return logits; call model.generator, which returns log-probabilities.",
    (CLOSE, CLOSE.replace("model.generator(", "model.generator.proj(")),
)
add(
    "step_source_embedding",
    "You embed the token with src_embed; it is a token of the target, so use tgt_embed.",
    (EMBED, EMBED.replace("tgt_embed", "src_embed").replace("token.", "(token % 7).")),
)
add(
    "step_embedding_not_scaled",
    "You look up the embedding without the factor sqrt(D); call tgt_embed itself.",
    (EMBED, EMBED.replace("model.tgt_embed(", "model.tgt_embed.lut(")),
    read="trf-embeddings",
)
