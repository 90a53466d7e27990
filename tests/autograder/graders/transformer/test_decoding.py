"""The graders of `transformer-decoding`: right answers in any style earn full marks."""

from __future__ import annotations

from tests.autograder.unit_graders import Styles, UnitGraders

UNIT = "transformer-decoding"

# Right answers that look unlike the reference and unlike those in autograder/demo.
STYLES = Styles()
style = STYLES.add

style(
    "greedy_decode",
    "make_std_mask, max_length steps for all, cut afterwards",
    """
    from given import UNK, make_std_mask

    @torch.inference_mode()
    def greedy_decode(model, source, max_length):
        if max_length <= 0:
            raise ValueError
        source_mask = (source != PAD)[:, None, :]
        memory = model.encode(source, source_mask)
        # A PAD that a row writes itself must not be hidden: another id stands for it in the mask.
        written = torch.full((source.shape[0], 1), BOS)
        for _ in range(max_length):
            shown = written.masked_fill(written == PAD, UNK)
            out = model.decode(memory, source_mask, written, make_std_mask(shown))
            scores = model.generator(out).select(1, -1)
            written = torch.cat((written, scores.max(-1, keepdim=True).indices), 1)
        ids = written[:, 1:]
        ended = (ids == EOS).long()
        ids = torch.where(ended.cumsum(1) - ended > 0, PAD, ids)
        lengths = (ended.cumsum(1) - ended == 0).sum(1)
        return ids[:, : lengths.max()].contiguous().clone()
    """,
)
style(
    "greedy_decode",
    "only the rows that still write go through the model",
    """
    def greedy_decode(model, source, max_length):
        if max_length < 1:
            raise ValueError
        with torch.no_grad():
            mask = pad_mask(source)
            memory = model.encode(source, mask)
            texts = [[BOS] for _ in source]
            alive = list(range(len(source)))
            while alive and max(map(len, texts)) <= max_length:
                tgt = torch.tensor([texts[row] for row in alive])
                causal = subsequent_mask(tgt.shape[1])
                hidden = model.decode(memory[alive], mask[alive], tgt, causal)
                best = model.generator(hidden[:, -1:]).argmax(-1)[:, 0]
                for row, token in zip(alive, best.tolist()):
                    texts[row].append(token)
                alive = [row for row in alive if texts[row][-1] != EOS]
            return nn.utils.rnn.pad_sequence(
                [torch.tensor(text[1:]) for text in texts], batch_first=True, padding_value=PAD
            )
    """,
)
style(
    "beam_search",
    "a heap of tuples, floats of NumPy, the memory not repeated",
    """
    import heapq
    import numpy as np

    @torch.no_grad()
    def beam_search(model, source, beam_size, max_length, alpha=0.6):
        if min(beam_size, max_length) < 1 or alpha < 0 or source.shape[0] != 1:
            raise ValueError
        mask = pad_mask(source)
        memory = model.encode(source, mask)

        def after(ids):
            tgt = torch.tensor([[BOS, *ids]])
            hidden = model.decode(memory, mask, tgt, subsequent_mask(len(ids) + 1))
            return model.generator(hidden)[0, -1].double().numpy()

        live, done = [(np.float64(0), ())], []
        for _ in range(max_length):
            grown = [(s + p, (*ids, v)) for s, ids in live for v, p in enumerate(after(ids))]
            grown = [one for one in grown if np.isfinite(one[0])]
            best = heapq.nlargest(beam_size - len(done), grown)
            done += [one for one in best if one[1][-1] == EOS]
            live = [one for one in best if one[1][-1] != EOS]
        scored = [(s / np.power((5 + len(ids)) / 6, alpha), list(ids)) for s, ids in done + live]
        return [(ids, score) for score, ids in sorted(scored, reverse=True)]
    """,
)
style(
    "beam_search",
    "the finished stay in the beam and make no copies of themselves",
    """
    from given import make_std_mask

    def beam_search(model, source, beam_size, max_length, alpha=0.6):
        for wrong in (len(source) != 1, beam_size < 1, max_length < 1, alpha < 0):
            if wrong:
                raise ValueError("input")
        src = (source != PAD).unsqueeze(-2)
        memory = model.encode(source, src)
        beam = [([], 0.0)]

        def over(ids):
            return bool(ids) and ids[-1] == EOS

        for _ in range(max_length):
            done = [one for one in beam if over(one[0])]
            grown = []
            for ids, total in beam:
                if over(ids):
                    continue
                target = torch.tensor([[BOS] + ids])
                hidden = model.decode(memory, src, target, make_std_mask(target.clamp(min=1)))
                row = model.generator(hidden[0, -1])
                grown += [(ids + [v], total + p) for v, p in enumerate(row.tolist())]
            grown = [one for one in grown if one[1] != float("-inf")]
            grown.sort(key=lambda one: one[1])
            beam = done + grown[::-1][: beam_size - len(done)]
        result = []
        for ids, total in beam:
            result.append((ids, total / math.exp(alpha * math.log((5 + len(ids)) / 6))))
        return sorted(result, key=lambda pair: -pair[1])
    """,
)
style(
    "start_cache",
    "projections by hand, layers as tuples",
    """
    import torch.nn.functional as F

    def start_cache(model, source):
        mask = torch.ne(source, PAD)[:, None]
        memory = model.encode(source, mask)
        heads = model.decoder.layers[0].src_attn
        _, H, _, width = heads.project(memory, memory)[0].shape

        def of(name):
            linears = [getattr(layer.src_attn, name) for layer in model.decoder.layers]
            made = [F.linear(memory, one.weight, one.bias) for one in linears]
            return tuple(x.view(*x.shape[:2], H, width).movedim(2, 1).contiguous() for x in made)

        kept = tuple(map(LayerCache, of("k_proj"), of("v_proj")))
        nothing = torch.zeros(len(source), H, 0, width).to(memory)
        empty = tuple(LayerCache(nothing, nothing) for _ in kept)
        return DecoderCache(memory=KVCache(kept), target=KVCache(empty), src_mask=mask)
    """,
)
style(
    "decode_step",
    "attention by hand, norm order asked of the model",
    """
    @torch.no_grad()
    def decode_step(model, token, cache):
        B, H, past, width = cache.target.layers[0].keys.shape
        x = model.tgt_embed(token[:, None])
        # The code of a place: what is added to nothing.
        x = model.position(x, past)
        probe = torch.randn(1, 1, x.shape[-1], dtype=x.dtype)
        connection = model.decoder.layers[0].sublayer[0]
        first = not torch.allclose(connection(probe, torch.zeros_like), connection.norm(probe))
        grown = []

        def split(y):
            return y.view(B, 1, H, width).transpose(1, 2)

        def attend(attention, y, keys, values, mask):
            scores = split(attention.q_proj(y)) @ keys.mT / width**0.5
            scores = scores.masked_fill(~mask[:, None], float("-inf"))
            mixed = torch.softmax(scores, -1) @ values
            return attention.out_proj(mixed.transpose(1, 2).reshape(B, 1, H * width))

        for n, layer in enumerate(model.decoder.layers):
            def own(y):
                old = cache.target.layers[n]
                keys = torch.cat([old.keys, split(layer.self_attn.k_proj(y))], 2)
                values = torch.cat([old.values, split(layer.self_attn.v_proj(y))], 2)
                grown.append(LayerCache(keys, values))
                every = torch.ones(B, 1, past + 1).bool()
                return attend(layer.self_attn, y, keys, values, every)

            def other(y):
                kept = cache.memory.layers[n]
                return attend(layer.src_attn, y, kept.keys, kept.values, cache.src_mask)

            for connection, part in zip(layer.sublayer, (own, other, layer.feed_forward)):
                if first:
                    x = x + part(connection.norm(x))
                else:
                    x = connection.norm(x + part(x))
        if first:
            x = model.decoder.norm(x)
        return model.generator(x)[:, 0, :], DecoderCache(
            cache.src_mask, cache.memory, KVCache(grown)
        )
    """,
)
style(
    "decode_step",
    "tensors of the right length filled in, the whole cache copied",
    """
    import copy as copying
    import dataclasses

    def decode_step(model, token, cache):
        cache = copying.deepcopy(cache)
        position = cache.target.layers[-1].values.size(2)
        layers = list(cache.target.layers)
        x = model.position(model.tgt_embed(token).unsqueeze(1), past=position)
        for n, layer in enumerate(model.decoder.layers):
            def longer(old, new):
                whole = new.new_empty(*old.shape[:2], position + 1, old.shape[3])
                whole[:, :, :position] = old
                whole[:, :, position:] = new
                return whole

            def self_attention(y):
                both = layer.self_attn.project(y, y)
                old = dataclasses.astuple(layers[n])
                layers[n] = LayerCache(*map(longer, old, both))
                return layer.self_attn.attend(y, layers[n].keys, layers[n].values)

            x = layer.sublayer[0](x, self_attention)
            x = layer.sublayer[1](
                x,
                lambda y: layer.src_attn.attend(
                    y, *dataclasses.astuple(cache.memory.layers[n]), mask=cache.src_mask
                ),
            )
            x = layer.sublayer[2](x, layer.feed_forward)
        for name, module in model.decoder.named_children():
            if name == "norm":
                x = module(x)
        return model.generator(x.squeeze(1)), dataclasses.replace(cache, target=KVCache(layers))
    """,
)


class TestGraders(UnitGraders):
    unit = UNIT
    styles = STYLES
