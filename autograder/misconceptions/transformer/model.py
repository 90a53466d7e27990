"""Known mistakes of `transformer-model`: layers, stacks, the model.

Queries from the encoder, an attention that never hears of dropout, layers that begin as copies of
one another, Xavier on the embeddings.
"""

from __future__ import annotations

from autograder.units.variants import Misconception, mistakes_in

MISCONCEPTIONS: list[Misconception] = []

# --------------------------------------------------------------------------------------------
# Encoder
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "clones", "trf-encoder")
COPIES = "nn.ModuleList(copy.deepcopy(module) for _ in range(n))"
add(
    "clones_one_module",
    "Your list holds one module n times, so that all layers share their parameters; copy it anew "
    "for every place.",
    (COPIES, "nn.ModuleList([copy.deepcopy(module)] * n)"),
)
add(
    "clones_the_original",
    "Your list holds the original n times, or shallow copies around its parameters; every place "
    "needs its own copy.deepcopy(module).",
    (COPIES, "nn.ModuleList([module] * n)"),
)
add(
    "clones_original_first",
    "Your first entry is the original itself; all n entries are copies.",
    (COPIES, "nn.ModuleList([module] + [copy.deepcopy(module) for _ in range(n - 1)])"),
)
add(
    "clones_one_too_many",
    "Your list holds n + 1 modules; the original is no part of it.",
    (COPIES, "nn.ModuleList(copy.deepcopy(module) for _ in range(n + 1))"),
)
add(
    "clones_unchecked",
    "n below 1 is not refused with a ValueError; a stack without layers would pass unnoticed.",
    ("if n < 1:", "if False:"),
)
add(
    "clones_zero_accepted",
    "n = 0 is accepted; at least one copy is asked for.",
    ("if n < 1:", "if n < 0:"),
)

add = mistakes_in(MISCONCEPTIONS, "EncoderLayer", "trf-encoder")
SELF = "x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))"
FEED = "self.sublayer[1](x, self.feed_forward)"
MADE = "clones(SublayerConnection(d_model, dropout, norm_first), 2)"
add(
    "encoder_layer_order",
    "Your feed-forward network comes before self-attention; attention comes first.",
    (
        f"{SELF}  # (B, S, D)\n        return {FEED}",
        "x = self.sublayer[1](x, self.feed_forward)\n"
        "        return self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))",
    ),
)
add(
    "encoder_layer_one_connection",
    "Both sub-layers go through sublayer[0], and sublayer[1] learns nothing; each has its own.",
    (FEED, "self.sublayer[0](x, self.feed_forward)"),
)
add(
    "encoder_layer_connections_shared",
    "Your two connections are one module, with one norm; make copies.",
    (MADE, "nn.ModuleList([SublayerConnection(d_model, dropout, norm_first)] * 2)"),
)
add(
    "encoder_layer_mask_ignored",
    "Your self-attention gets no mask, so that padding is attended to; hand it on.",
    (SELF, "x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x))"),
    read="trf-mask-errors",
)
add(
    "encoder_layer_keys_before_norm",
    "With norm_first your queries are normalised, but keys and values are not: the inner function "
    "must use its own argument for all three.",
    (SELF, "x = self.sublayer[0](x, lambda y: self.self_attn(y, x, x, mask))"),
)
add(
    "encoder_layer_query_before_norm",
    "With norm_first your keys and values are normalised, but queries are not: the inner function "
    "must use its own argument for all three.",
    (SELF, "x = self.sublayer[0](x, lambda y: self.self_attn(x, y, y, mask))"),
)
add(
    "encoder_layer_without_feed_forward",
    "Your layer ends after self-attention; the feed-forward sub-layer follows.",
    (f"return {FEED}", "return x"),
)
add(
    "encoder_layer_without_connections",
    "Your sub-layers follow each other without shortcut and norm; pass each through its "
    "connection.",
    (SELF, "x = self.self_attn(x, x, x, mask)"),
    (FEED, "self.feed_forward(x)"),
)
add(
    "encoder_layer_feed_forward_of_input",
    "Your feed-forward sub-layer gets the layer's input; it gets what self-attention made of it.",
    (SELF, "y = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))"),
)
add(
    "encoder_layer_parallel",
    "Both sub-layers of yours read the layer's input, and their results are added; the second "
    "reads what the first returned.",
    (SELF, "y = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))"),
    (FEED, "y + self.sublayer[1](x, self.feed_forward) - x"),
)
add(
    "encoder_layer_norm_order_not_passed",
    "Your layer is post-norm whatever norm_first says; hand it on to the connections.",
    (MADE, "clones(SublayerConnection(d_model, dropout), 2)"),
    read="trf-norm-order",
)
add(
    "encoder_layer_attention_without_dropout",
    "dropout does not reach self_attn: no attention weight is dropped. Hand it on as the third "
    "argument of MultiHeadAttention.",
    ("MultiHeadAttention(d_model, num_heads, dropout)", "MultiHeadAttention(d_model, num_heads)"),
)
add(
    "encoder_layer_feed_forward_without_dropout",
    "dropout does not reach feed_forward; hand it on.",
    ("PositionwiseFeedForward(d_model, d_ff, dropout)", "PositionwiseFeedForward(d_model, d_ff)"),
)
add(
    "encoder_layer_connections_without_dropout",
    "dropout does not reach the connections; hand it on.",
    (MADE, "clones(SublayerConnection(d_model, norm_first=norm_first), 2)"),
)
add(
    "encoder_layer_dropout_fixed",
    "Your attention drops weights with probability 0.1 whatever dropout says, as the printed "
    "make_model does; hand the argument on.",
    (
        "MultiHeadAttention(d_model, num_heads, dropout)",
        "MultiHeadAttention(d_model, num_heads, 0.1)",
    ),
)
add(
    "encoder_layer_d_ff_ignored",
    "Your feed-forward network is 4 d_model wide inside; d_ff says how wide.",
    (
        "PositionwiseFeedForward(d_model, d_ff, dropout)",
        "PositionwiseFeedForward(d_model, 4 * d_model, dropout)",
    ),
)
add(
    "encoder_layer_changes_x",
    "Your layer writes into the caller's x; make new tensors.",
    (SELF, "x.copy_(self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask)))"),
)

add = mistakes_in(MISCONCEPTIONS, "Encoder", "trf-encoder")
LAYER = "EncoderLayer(d_model, num_heads, d_ff, dropout, norm_first)"
LOOP = "        for layer in self.layers:\n            x = layer(x, mask)"
FINAL = "x if self.norm is None else self.norm(x)"
NORM = "LayerNorm(d_model) if norm_first else None"
add(
    "encoder_norm_never",
    "Your pre-norm stack has no final norm: the last layer's sum goes out as it is. With "
    "norm_first add self.norm = LayerNorm(d_model).",
    (NORM, "None"),
    read="trf-norm-order",
)
add(
    "encoder_norm_always",
    "Your post-norm stack has a final norm, though its layers end with one already; only with "
    "norm_first there is one.",
    (NORM, "LayerNorm(d_model)"),
    read="trf-norm-order",
)
add(
    "encoder_norm_unused",
    "Your final norm exists but is not applied.",
    (f"return {FINAL}", "return x"),
    read="trf-norm-order",
)
add(
    "encoder_norm_first_of_all",
    "Your final norm acts on the input of the stack; it acts on the output of the last layer.",
    (LOOP, f"        x = {FINAL}\n{LOOP}"),
    (f"return {FINAL}", "return x"),
    read="trf-norm-order",
)
add(
    "encoder_norm_after_every_layer",
    "Your final norm acts after every layer; it acts once, after the last.",
    (LOOP, f"{LOOP}\n            x = {FINAL}"),
    (f"        return {FINAL}  # (B, S, D)\n        ### END", "        return x\n        ### END"),
    read="trf-norm-order",
)
add(
    "encoder_one_layer_again_and_again",
    "Your first layer runs num_layers times and the others never; the stack has num_layers layers "
    "with parameters of their own.",
    (LOOP, "        for _ in self.layers:\n            x = self.layers[0](x, mask)"),
)
add(
    "encoder_layers_shared",
    "All your layers are one module, as in ALBERT; make copies with clones.",
    ("clones(layer, num_layers)", "nn.ModuleList([layer] * num_layers)"),
)
add(
    "encoder_first_layer_only",
    "Only your first layer runs; each reads what the one before returned.",
    (LOOP, "        for layer in self.layers[:1]:\n            x = layer(x, mask)"),
)
add(
    "encoder_layers_side_by_side",
    "Every layer of yours reads the input of the stack, and the last one wins; each reads what the "
    "one before returned.",
    (
        LOOP,
        "        start = x\n        for layer in self.layers:\n            x = layer(start, mask)",
    ),
)
add(
    "encoder_layers_backwards",
    "Your layers run from the last to the first; layers[0] comes first.",
    (LOOP, "        for layer in reversed(self.layers):\n            x = layer(x, mask)"),
)
add(
    "encoder_mask_not_passed",
    "Your layers get no mask, so that padding is attended to; hand it to every layer.",
    ("x = layer(x, mask)", "x = layer(x)"),
    read="trf-mask-errors",
)
add(
    "encoder_mask_for_first_layer",
    "Only your first layer gets the mask; padding must be hidden from every layer.",
    ("x = layer(x, mask)", "x, mask = layer(x, mask), None"),
    read="trf-mask-errors",
)
add(
    "encoder_dropout_not_passed",
    "dropout does not reach the layers; hand it on.",
    (LAYER, "EncoderLayer(d_model, num_heads, d_ff, norm_first=norm_first)"),
)
add(
    "encoder_norm_order_not_passed",
    "Your layers are post-norm whatever norm_first says; hand it on.",
    (LAYER, "EncoderLayer(d_model, num_heads, d_ff, dropout)"),
    read="trf-norm-order",
)
add(
    "encoder_layers_unchecked",
    "A stack without layers is not refused; raise a ValueError for num_layers below 1.",
    (
        "clones(layer, num_layers)",
        "nn.ModuleList(copy.deepcopy(layer) for _ in range(num_layers))",
    ),
)

# --------------------------------------------------------------------------------------------
# Decoder
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "DecoderLayer", "trf-decoder")
SELF = "self.self_attn(x, x, x, tgt_mask)"
LOOK = "self.src_attn(x, memory, memory, src_mask)"
MADE = "clones(SublayerConnection(d_model, dropout, norm_first), 3)"
add(
    "decoder_layer_query_and_key_from_memory",
    "Your cross-attention takes queries and keys from the encoder and values from the decoder: "
    "that can't even work when the lengths differ. Queries come from the decoder, keys and values "
    "from memory.",
    (LOOK, "self.src_attn(memory, memory, x, src_mask)"),
)
add(
    "decoder_layer_query_from_memory",
    "Your cross-attention takes queries from memory, keys and values from the decoder; it is the "
    "other way round.",
    (LOOK, "self.src_attn(memory, x, x, src_mask)"),
)
add(
    "decoder_layer_value_from_decoder",
    "Your cross-attention takes values from the decoder; keys and values both come from memory.",
    (LOOK, "self.src_attn(x, memory, x, src_mask)"),
)
add(
    "decoder_layer_all_from_memory",
    "Your cross-attention takes queries, keys and values from memory; queries come from the "
    "decoder.",
    (LOOK, "self.src_attn(memory, memory, memory, src_mask)"),
)
add(
    "decoder_layer_memory_unused",
    "Your second attention is self-attention again and the source is never read; keys and values "
    "come from memory.",
    (LOOK, "self.src_attn(x, x, x, tgt_mask)"),
)
add(
    "decoder_layer_src_mask_ignored",
    "Your cross-attention gets no mask, so that padding of the source is attended to; hand it "
    "src_mask.",
    (LOOK, "self.src_attn(x, memory, memory)"),
    read="trf-mask-errors",
)
add(
    "decoder_layer_tgt_mask_ignored",
    "Your self-attention gets no mask, so that positions see what they are to predict; hand it "
    "tgt_mask.",
    (SELF, "self.self_attn(x, x, x)"),
    read="trf-mask-errors",
)
add(
    "decoder_layer_masks_swapped",
    "Your masks have changed places: tgt_mask belongs to self-attention, src_mask to "
    "cross-attention.",
    (SELF, "self.self_attn(x, x, x, src_mask)"),
    (LOOK, "self.src_attn(x, memory, memory, tgt_mask)"),
    read="trf-mask-errors",
)
add(
    "decoder_layer_memory_normalised",
    "Your layer normalises memory; it is used as it is, for the encoder's last norm is behind it.",
    (LOOK, "self.src_attn(x, *[self.sublayer[1].norm(memory)] * 2, src_mask)"),
)
add(
    "decoder_layer_source_first",
    "Your cross-attention comes before self-attention; the decoder looks at its own words first.",
    (
        "x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, tgt_mask))  # (B, U, D)\n"
        "        x = self.sublayer[1](x, lambda x: self.src_attn(x, memory, memory, src_mask))",
        "x = self.sublayer[1](x, lambda x: self.src_attn(x, memory, memory, src_mask))\n"
        "        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, tgt_mask))",
    ),
)
add(
    "decoder_layer_attention_shared",
    "Both attentions of yours use self_attn; cross-attention has its own projections, src_attn.",
    (LOOK, "self.self_attn(x, memory, memory, src_mask)"),
)
add(
    "decoder_layer_without_feed_forward",
    "Your layer ends after cross-attention; the feed-forward sub-layer follows.",
    ("return self.sublayer[2](x, self.feed_forward)", "return x"),
)
add(
    "decoder_layer_without_source",
    "Your layer leaves cross-attention out, so that the source is never read.",
    ("x = self.sublayer[1](x, lambda x: self.src_attn(x, memory, memory, src_mask))", "pass"),
)
add(
    "decoder_layer_one_connection",
    "All three sub-layers go through sublayer[0]; each has its own connection.",
    ("x = self.sublayer[1](x, lambda", "x = self.sublayer[0](x, lambda"),
    ("self.sublayer[2](x,", "self.sublayer[0](x,"),
)
add(
    "decoder_layer_connections_shared",
    "Your three connections are one module, with one norm; make copies.",
    (MADE, "nn.ModuleList([SublayerConnection(d_model, dropout, norm_first)] * 3)"),
)
add(
    "decoder_layer_attentions_are_one",
    "self_attn and src_attn are one module of yours; make two.",
    (
        "self.src_attn = MultiHeadAttention(d_model, num_heads, dropout)",
        "self.src_attn = self.self_attn",
    ),
)
add(
    "decoder_layer_keys_before_norm",
    "With norm_first your self-attention normalises queries, but not keys and values: the inner "
    "function must use its own argument for all three.",
    (f"lambda x: {SELF}", "lambda y: self.self_attn(y, x, x, tgt_mask)"),
)
add(
    "decoder_layer_source_query_before_norm",
    "With norm_first the queries of your cross-attention are not normalised: the inner function "
    "must use its own argument.",
    (f"lambda x: {LOOK}", "lambda y: self.src_attn(x, memory, memory, src_mask)"),
)
add(
    "decoder_layer_norm_order_not_passed",
    "Your layer is post-norm whatever norm_first says; hand it on to the connections.",
    (MADE, "clones(SublayerConnection(d_model, dropout), 3)"),
    read="trf-norm-order",
)
add(
    "decoder_layer_self_attention_without_dropout",
    "dropout does not reach self_attn; hand it on.",
    (
        "self.self_attn = MultiHeadAttention(d_model, num_heads, dropout)",
        "self.self_attn = MultiHeadAttention(d_model, num_heads)",
    ),
)
add(
    "decoder_layer_source_attention_without_dropout",
    "dropout does not reach src_attn; hand it on.",
    (
        "self.src_attn = MultiHeadAttention(d_model, num_heads, dropout)",
        "self.src_attn = MultiHeadAttention(d_model, num_heads)",
    ),
)
add(
    "decoder_layer_feed_forward_without_dropout",
    "dropout does not reach feed_forward; hand it on.",
    ("PositionwiseFeedForward(d_model, d_ff, dropout)", "PositionwiseFeedForward(d_model, d_ff)"),
)
add(
    "decoder_layer_connections_without_dropout",
    "dropout does not reach the connections; hand it on.",
    (MADE, "clones(SublayerConnection(d_model, norm_first=norm_first), 3)"),
)
add(
    "decoder_layer_memory_detached",
    "Memory is cut out of the graph, so that the encoder learns nothing; leave detach() out.",
    (LOOK, "self.src_attn(x, *[memory.detach()] * 2, src_mask)"),
)

add = mistakes_in(MISCONCEPTIONS, "Decoder", "trf-decoder")
LAYER = "DecoderLayer(d_model, num_heads, d_ff, dropout, norm_first)"
LOOP = "        for layer in self.layers:\n            x = layer(x, memory, src_mask, tgt_mask)"
add(
    "decoder_memory_from_layer_before",
    "From the second layer on, your layers read the layer before as memory; every layer reads the "
    "encoder's output.",
    (LOOP, f"{LOOP}\n            memory, src_mask = x, tgt_mask"),
)
add(
    "decoder_memory_for_first_layer",
    "Only your first layer reads memory, the others read zeros; every layer reads it.",
    (LOOP, f"{LOOP}\n            memory = torch.zeros_like(memory)"),
)
add(
    "decoder_memory_normalised",
    "Your final norm is applied to memory as well; memory comes from the encoder as it is.",
    (LOOP, f"        memory = memory if self.norm is None else self.norm(memory)\n{LOOP}"),
)
add(
    "decoder_norm_never",
    "Your pre-norm stack has no final norm; with norm_first add self.norm = LayerNorm(d_model).",
    (NORM, "None"),
    read="trf-norm-order",
)
add(
    "decoder_norm_always",
    "Your post-norm stack has a final norm, though its layers end with one already; only with "
    "norm_first there is one.",
    (NORM, "LayerNorm(d_model)"),
    read="trf-norm-order",
)
add(
    "decoder_norm_unused",
    "Your final norm exists but is not applied.",
    (f"return {FINAL}", "return x"),
    read="trf-norm-order",
)
add(
    "decoder_one_layer_again_and_again",
    "Your first layer runs num_layers times and the others never; the stack has num_layers layers "
    "with parameters of their own.",
    (
        LOOP,
        "        for _ in self.layers:\n"
        "            x = self.layers[0](x, memory, src_mask, tgt_mask)",
    ),
)
add(
    "decoder_layers_shared",
    "All your layers are one module; make copies with clones.",
    ("clones(layer, num_layers)", "nn.ModuleList([layer] * num_layers)"),
)
add(
    "decoder_src_mask_not_passed",
    "Your layers get no src_mask, so that padding of the source is attended to; hand it on.",
    ("layer(x, memory, src_mask, tgt_mask)", "layer(x, memory, None, tgt_mask)"),
    read="trf-mask-errors",
)
add(
    "decoder_tgt_mask_not_passed",
    "Your layers get no tgt_mask, so that positions see what they are to predict; hand it on.",
    ("layer(x, memory, src_mask, tgt_mask)", "layer(x, memory, src_mask)"),
    read="trf-mask-errors",
)
add(
    "decoder_masks_swapped",
    "You hand src_mask and tgt_mask on in the wrong order.",
    ("layer(x, memory, src_mask, tgt_mask)", "layer(x, memory, tgt_mask, src_mask)"),
    read="trf-mask-errors",
)
add(
    "decoder_tgt_mask_for_first_layer",
    "Only your first layer gets tgt_mask; through the second, positions see what follows.",
    (LOOP, f"{LOOP}\n            tgt_mask = None"),
    read="trf-mask-errors",
)
add(
    "decoder_of_encoder_layers",
    "Your decoder is a stack of EncoderLayers and never reads memory; it is made of DecoderLayers.",
    (LAYER, "EncoderLayer(d_model, num_heads, d_ff, dropout, norm_first)"),
    ("layer(x, memory, src_mask, tgt_mask)", "layer(x, tgt_mask)"),
)
add(
    "decoder_dropout_not_passed",
    "dropout does not reach the layers; hand it on.",
    (LAYER, "DecoderLayer(d_model, num_heads, d_ff, norm_first=norm_first)"),
)
add(
    "decoder_norm_order_not_passed",
    "Your layers are post-norm whatever norm_first says; hand it on.",
    (LAYER, "DecoderLayer(d_model, num_heads, d_ff, dropout)"),
    read="trf-norm-order",
)
add(
    "decoder_layers_unchecked",
    "A stack without layers is not refused; raise a ValueError for num_layers below 1.",
    (
        "clones(layer, num_layers)",
        "nn.ModuleList(copy.deepcopy(layer) for _ in range(num_layers))",
    ),
)

# --------------------------------------------------------------------------------------------
# The model
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "Generator", "trf-generator")
SCORED = "torch.log_softmax(self.proj(hidden), dim=-1)"
add(
    "generator_softmax",
    "Your generator returns probabilities; it returns their logarithms: log_softmax.",
    (SCORED, "torch.softmax(self.proj(hidden), dim=-1)"),
)
add(
    "generator_logits",
    "Your generator returns logits, the scores before softmax; apply log_softmax to them.",
    (SCORED, "self.proj(hidden)"),
)
add(
    "generator_over_positions",
    "Your log_softmax runs over the positions; it runs over the vocabulary, the last axis.",
    (SCORED, "torch.log_softmax(self.proj(hidden), dim=max(hidden.dim() - 2, 0))"),
)
add(
    "generator_over_batch",
    "Your log_softmax runs over the first axis; it runs over the vocabulary, the last one.",
    (SCORED, "torch.log_softmax(self.proj(hidden), dim=0)"),
)
add(
    "generator_log_of_softmax",
    "You take the logarithm of softmax, which is -inf where a probability is rounded to 0; "
    "log_softmax works it out in one step.",
    (SCORED, "torch.log(torch.softmax(self.proj(hidden), dim=-1))"),
)
add(
    "generator_log_with_eps",
    "You add a small number before the logarithm, which spoils the small probabilities; "
    "log_softmax needs none.",
    (SCORED, "torch.log(torch.softmax(self.proj(hidden), dim=-1) + 1e-9)"),
)
add(
    "generator_negative",
    "Your generator returns the negative logarithm; the loss changes the sign.",
    (SCORED, "-torch.log_softmax(self.proj(hidden), dim=-1)"),
)
add(
    "generator_relu",
    "Your logits pass a ReLU; log_softmax takes them as they are.",
    (SCORED, "torch.log_softmax(torch.relu(self.proj(hidden)), dim=-1)"),
)
add(
    "generator_without_bias",
    "Your proj has no bias; nn.Linear(d_model, vocab_size) has one.",
    (
        "self.proj = nn.Linear(d_model, vocab_size)",
        "self.proj = nn.Linear(d_model, vocab_size, bias=False)",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "EncoderDecoder", "trf-model")
ENCODED = "self.encoder(self.position(self.src_embed(src)), src_mask)"
X = "x = self.position(self.tgt_embed(tgt))"
DECODED = "self.decoder(x, memory, src_mask, tgt_mask)"
FORWARD = "self.decode(memory, src_mask, tgt, make_std_mask(tgt))"
MAKE_ENCODER = (
    "Encoder(num_layers, d_model, num_heads, d_ff, dropout, norm_first)\n        self.decoder"
)
MAKE_DECODER = (
    "Decoder(num_layers, d_model, num_heads, d_ff, dropout, norm_first)\n        self.gen"
)
add(
    "model_source_without_positions",
    "Your source has no positions: the encoder reads a bag of words. Apply `position` to the "
    "embeddings.",
    (ENCODED, "self.encoder(self.src_embed(src), src_mask)"),
)
add(
    "model_target_without_positions",
    "Your target has no positions; apply `position` to its embeddings.",
    (X, "x = self.tgt_embed(tgt)"),
)
add(
    "model_without_positions",
    "Neither side of your model has positions; apply `position` to both embeddings.",
    (ENCODED, "self.encoder(self.src_embed(src), src_mask)"),
    (X, "x = self.tgt_embed(tgt)"),
)
add(
    "model_scaled_after_positions",
    "Your scaling by sqrt(d_model) acts on the positions too; Embeddings scales, then position "
    "adds.",
    (
        ENCODED,
        "self.encoder(\n"
        "            self.position(self.src_embed.lut(src)) * self.src_embed.d_model**0.5,\n"
        "            src_mask,\n"
        "        )",
    ),
    (
        X,
        "x = self.position(self.tgt_embed.lut(tgt)) * self.tgt_embed.d_model**0.5",
    ),
)
add(
    "model_source_table_for_target",
    "Your target is looked up in the source's table; it has its own, tgt_embed.",
    (X, "x = self.position(self.src_embed(tgt))"),
)
add(
    "model_embeddings_are_one",
    "src_embed and tgt_embed are one module of yours; make two. make_model shares them if it is "
    "asked to.",
    ("self.tgt_embed = Embeddings(tgt_vocab_size, d_model)", "self.tgt_embed = self.src_embed"),
)
add(
    "model_vocabularies_swapped",
    "Your vocabularies have changed places: src_vocab_size is the source's, tgt_vocab_size the "
    "target's.",
    (
        "self.src_embed = Embeddings(src_vocab_size, d_model)",
        "self.src_embed = Embeddings(tgt_vocab_size, d_model)",
    ),
    (
        "self.tgt_embed = Embeddings(tgt_vocab_size, d_model)",
        "self.tgt_embed = Embeddings(src_vocab_size, d_model)",
    ),
    ("Generator(d_model, tgt_vocab_size)", "Generator(d_model, src_vocab_size)"),
)
add(
    "model_src_mask_not_used",
    "encode ignores src_mask; hand it to the encoder.",
    (ENCODED, "self.encoder(self.position(self.src_embed(src)))"),
    read="trf-mask-errors",
)
add(
    "model_forward_encodes_without_mask",
    "forward encodes the source without its padding mask; hand pad_mask(src) to encode.",
    ("memory = self.encode(src, src_mask)", "memory = self.encode(src)"),
    read="trf-mask-errors",
)
add(
    "model_forward_decodes_without_src_mask",
    "forward hands no src_mask to decode, so that cross-attention reads the source's padding.",
    (FORWARD, "self.decode(memory, None, tgt, make_std_mask(tgt))"),
    read="trf-mask-errors",
)
add(
    "model_forward_without_std_mask",
    "forward hands no mask of the target to decode, so that every position sees what it is to "
    "predict; use make_std_mask(tgt).",
    (FORWARD, "self.decode(memory, src_mask, tgt, None)"),
    read="trf-mask-errors",
)
add(
    "model_forward_padding_mask_for_target",
    "forward masks only the padding of the target; later positions must be hidden too: "
    "make_std_mask(tgt).",
    (FORWARD, "self.decode(memory, src_mask, tgt, pad_mask(tgt))"),
    read="trf-mask-errors",
)
add(
    "model_forward_triangle_for_target",
    "forward masks only what follows in the target; its padding is masked too: make_std_mask(tgt).",
    ("src_mask = pad_mask(src)", "src_mask, n = pad_mask(src), tgt.shape[1]"),
    (FORWARD, "self.decode(memory, src_mask, tgt, torch.ones(1, n, n).tril().bool())"),
    read="trf-mask-errors",
)
add(
    "model_forward_without_masks",
    "forward makes no masks at all; it needs pad_mask(src) and make_std_mask(tgt).",
    ("src_mask = pad_mask(src)", "src_mask = None"),
    (FORWARD, "self.decode(memory, src_mask, tgt, None)"),
    read="trf-mask-errors",
)
add(
    "model_forward_source_as_memory",
    "Your decoder reads the embedded source; memory is the encoder's output.",
    ("memory = self.encode(src, src_mask)", "memory = self.position(self.src_embed(src))"),
)
add(
    "model_decode_generates",
    "Your decode applies the generator; it returns the decoder's vectors (B, U, D), for decoding "
    "may want those of the last position only.",
    (f"return {DECODED}", f"return self.generator({DECODED})"),
    ("return self.generator(hidden)", "return hidden"),
)
add(
    "model_forward_without_generator",
    "forward returns the decoder's vectors; apply the generator to them.",
    ("return self.generator(hidden)", "return hidden"),
)
add(
    "model_decode_swaps_masks",
    "decode hands the masks on in the wrong order: src_mask comes before tgt_mask.",
    (DECODED, "self.decoder(x, memory, tgt_mask, src_mask)"),
    read="trf-mask-errors",
)
add(
    "model_decode_ignores_src_mask",
    "decode ignores src_mask; hand it to the decoder.",
    (DECODED, "self.decoder(x, memory, None, tgt_mask)"),
    read="trf-mask-errors",
)
add(
    "model_decode_makes_its_own_mask",
    "decode makes a mask of its own and ignores tgt_mask; the caller decides.",
    (DECODED, "self.decoder(x, memory, src_mask, make_std_mask(tgt))"),
)
add(
    "model_position_without_dropout",
    "dropout does not reach `position`; it acts on the sum of embeddings and positions too.",
    ("PositionalEncoding(d_model, max_length, dropout)", "PositionalEncoding(d_model, max_length)"),
)
add(
    "model_encoder_without_dropout",
    "dropout does not reach the encoder; hand it on.",
    (
        MAKE_ENCODER,
        "Encoder(num_layers, d_model, num_heads, d_ff, norm_first=norm_first)\n"
        "        self.decoder",
    ),
)
add(
    "model_decoder_without_dropout",
    "dropout does not reach the decoder; hand it on.",
    (
        MAKE_DECODER,
        "Decoder(num_layers, d_model, num_heads, d_ff, norm_first=norm_first)\n        self.gen",
    ),
)
add(
    "model_norm_order_not_passed",
    "Your stacks are post-norm whatever norm_first says; hand it to both.",
    (MAKE_ENCODER, "Encoder(num_layers, d_model, num_heads, d_ff, dropout)\n        self.decoder"),
    (MAKE_DECODER, "Decoder(num_layers, d_model, num_heads, d_ff, dropout)\n        self.gen"),
    read="trf-norm-order",
)
add(
    "model_max_length_not_passed",
    "max_length does not reach `position`, which keeps its default; hand it on.",
    (
        "PositionalEncoding(d_model, max_length, dropout)",
        "PositionalEncoding(d_model, dropout=dropout)",
    ),
)
add(
    "model_d_ff_and_heads_swapped",
    "You hand num_heads and d_ff to the stacks in the wrong order.",
    (
        MAKE_ENCODER,
        "Encoder(num_layers, d_model, d_ff, num_heads, dropout, norm_first)\n        self.decoder",
    ),
    (
        MAKE_DECODER,
        "Decoder(num_layers, d_model, d_ff, num_heads, dropout, norm_first)\n        self.gen",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "make_model", "trf-model")
CALL = """src_vocab_size, tgt_vocab_size, num_layers, d_model, d_ff, num_heads, dropout, norm_first
    )
    for"""
LINEAR = """        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
"""
SHARED = """        model.tgt_embed.lut.weight = model.src_embed.lut.weight
        model.generator.proj.weight = model.src_embed.lut.weight
"""
DRAW = "    for module in model.modules():\n" + LINEAR
add(
    "make_model_layers_begin_alike",
    "Your layers begin as copies of one another, because clones copies one layer; draw every "
    "weight anew in a loop over the finished model.",
    (DRAW, ""),
)
add(
    "make_model_xavier_on_embeddings",
    "Your loop draws every matrix by Xavier's rule, embedding tables too; after scaling by "
    "sqrt(d_model) they are far too short. Leave the tables as Embeddings drew them.",
    (
        DRAW,
        "    for parameter in model.parameters():\n"
        "        if parameter.dim() > 1:\n"
        "            nn.init.xavier_uniform_(parameter)\n"
        "    for module in model.modules():\n"
        "        if isinstance(module, nn.Linear):\n"
        "            nn.init.zeros_(module.bias)\n",
    ),
    read="trf-embeddings",
)
add(
    "make_model_annotated",
    "Your loop draws every matrix by Xavier's rule, embedding tables too, and leaves biases as "
    "nn.Linear drew them; draw linear weights only, and set their biases to 0.",
    (
        DRAW,
        "    for parameter in model.parameters():\n"
        "        if parameter.dim() > 1:\n"
        "            nn.init.xavier_uniform_(parameter)\n",
    ),
    read="trf-embeddings",
)
add(
    "make_model_biases_kept",
    "Your biases keep the values that nn.Linear drew; set them to 0.",
    ("            nn.init.zeros_(module.bias)\n", ""),
)
add(
    "make_model_xavier_normal",
    "Your weights are drawn from a normal distribution; Xavier's uniform one is asked for.",
    ("nn.init.xavier_uniform_(module.weight)", "nn.init.xavier_normal_(module.weight)"),
)
add(
    "make_model_kaiming",
    "Your weights are drawn by the rule of He et al.; Xavier's uniform one is asked for.",
    ("nn.init.xavier_uniform_(module.weight)", "nn.init.kaiming_uniform_(module.weight)"),
)
add(
    "make_model_normal_weights",
    "Your linear weights are drawn from N(0, 1/D) like the tables; Xavier's uniform distribution "
    "is asked for.",
    (
        "nn.init.xavier_uniform_(module.weight)",
        "nn.init.normal_(module.weight, std=d_model**-0.5)",
    ),
)
add(
    "make_model_generator_left_out",
    "Your loop leaves the generator out; its weight is drawn by Xavier's rule and its bias is 0.",
    (
        "    for module in model.modules():\n",
        "    for module in [*model.encoder.modules(), *model.decoder.modules()]:\n",
    ),
)
add(
    "make_model_shared_ignored",
    "tie_embeddings=True changes nothing; let both tables and the generator's weight be one "
    "parameter.",
    ("    if tie_embeddings:\n", "    if False:\n"),
)
add(
    "make_model_shared_always",
    "Your weights are shared whether or not tie_embeddings is True.",
    ("    if tie_embeddings:\n", "    if src_vocab_size == tgt_vocab_size:\n"),
)
add(
    "make_model_shared_by_copying",
    "Your three weights begin with equal values but are three parameters, which training drives "
    "apart; assign the same nn.Parameter.",
    (
        SHARED,
        "        with torch.no_grad():\n"
        "            model.tgt_embed.lut.weight.copy_(model.src_embed.lut.weight)\n"
        "            model.generator.proj.weight.copy_(model.src_embed.lut.weight)\n",
    ),
)
add(
    "make_model_generator_apart",
    "Only your two tables are one; the generator's weight belongs to them.",
    ("        model.generator.proj.weight = model.src_embed.lut.weight\n", ""),
)
add(
    "make_model_source_apart",
    "Only your target's table and the generator's weight are one; the source's table belongs to "
    "them.",
    (
        SHARED,
        "        model.generator.proj.weight = model.tgt_embed.lut.weight\n",
    ),
)
add(
    "make_model_target_apart",
    "Only your source's table and the generator's weight are one; the target's table belongs to "
    "them.",
    ("        model.tgt_embed.lut.weight = model.src_embed.lut.weight\n", ""),
)
add(
    "make_model_shared_by_xavier",
    "The weight in common is drawn by Xavier's rule: share after the loop, or leave it out of the "
    "loop, so that it stays N(0, 1/D).",
    (
        SHARED,
        SHARED + "        nn.init.xavier_uniform_(model.generator.proj.weight)\n",
    ),
)
add(
    "make_model_shared_twice_scaled",
    "The weight in common is drawn from N(0, 1); its variance is 1/D.",
    (SHARED, SHARED + "        nn.init.normal_(model.generator.proj.weight)\n"),
)
add(
    "make_model_vocabularies_unchecked",
    "Vocabularies of two sizes with tie_embeddings=True are not refused with a ValueError.",
    ("if tie_embeddings and src_vocab_size != tgt_vocab_size:", "if False:"),
)
add(
    "make_model_dropout_not_passed",
    "dropout does not reach the model, which keeps its 0.1; hand it on.",
    (
        CALL,
        "src_vocab_size, tgt_vocab_size, num_layers, d_model, d_ff, num_heads, "
        "norm_first=norm_first\n    )\n    for",
    ),
)
add(
    "make_model_norm_order_not_passed",
    "Your model is post-norm whatever norm_first says; hand it on.",
    (
        CALL,
        "src_vocab_size, tgt_vocab_size, num_layers, d_model, d_ff, num_heads, dropout\n    )\n    "
        "for",
    ),
    read="trf-norm-order",
)
add(
    "make_model_sizes_swapped",
    "You hand d_ff and num_heads on in the wrong order.",
    (
        CALL,
        "src_vocab_size, tgt_vocab_size, num_layers, d_model, num_heads, d_ff, dropout, "
        "norm_first\n    )\n    for",
    ),
)
