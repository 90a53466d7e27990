"""Known mistakes of `transformer-model`: layers, stacks, the model.

Queries from the encoder, attention without dropout, layers with equal initialisation, Xavier on the
embeddings.
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
    "Your list holds one copy n times, so all layers share their parameters; call "
    "copy.deepcopy(module) for every entry.",
    (COPIES, "nn.ModuleList([copy.deepcopy(module)] * n)"),
)
add(
    "clones_the_original",
    "Your list holds the original n times, or shallow copies that share its parameters; call "
    "copy.deepcopy(module) for every entry.",
    (COPIES, "nn.ModuleList([module] * n)"),
)
add(
    "clones_original_first",
    "Your first entry is the original itself; make all n entries copies.",
    (COPIES, "nn.ModuleList([module] + [copy.deepcopy(module) for _ in range(n - 1)])"),
)
add(
    "clones_one_too_many",
    "Your list holds n + 1 modules; return n copies, without the original.",
    (COPIES, "nn.ModuleList(copy.deepcopy(module) for _ in range(n + 1))"),
)
add(
    "clones_sequential",
    "Your copies are in an nn.Sequential, which runs one after the other; put them into an "
    "nn.ModuleList, which only holds them.",
    (COPIES, "nn.Sequential(*[copy.deepcopy(module) for _ in range(n)])"),
)
add(
    "clones_unchecked",
    "Your clones accepts an n below 1, so a stack without layers would go unnoticed; raise a "
    "ValueError.",
    ("if n < 1:", "if False:"),
)
add(
    "clones_zero_accepted",
    "Your clones accepts n = 0; raise a ValueError for every n below 1.",
    ("if n < 1:", "if n < 0:"),
)

add = mistakes_in(MISCONCEPTIONS, "EncoderLayer", "trf-encoder")
SELF = "x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))"
FEED = "self.sublayer[1](x, self.feed_forward)"
MADE = "clones(SublayerConnection(d_model, dropout, norm_first), 2)"
add(
    "encoder_layer_order",
    "You apply the feed-forward network before self-attention; apply self-attention first.",
    (
        f"{SELF}  # (B, S, D)\n        return {FEED}",
        "x = self.sublayer[1](x, self.feed_forward)\n"
        "        return self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))",
    ),
)
add(
    "encoder_layer_feed_forward_first",
    "Your first sub-layer is the feed-forward network, your second self-attention; begin with "
    "self-attention.",
    (
        f"{SELF}  # (B, S, D)\n        return {FEED}",
        "x = self.sublayer[0](x, self.feed_forward)\n"
        "        return self.sublayer[1](x, lambda x: self.self_attn(x, x, x, mask))",
    ),
)
add(
    "encoder_layer_mask_kept",
    "Where no mask is given, your layer uses that of an earlier call; keep no mask in the module.",
    (
        SELF,
        "self.mask = getattr(self, 'mask', None) if mask is None else mask\n"
        "        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, self.mask))",
    ),
    read="trf-mask-errors",
)
add(
    "encoder_layer_result_dropped",
    "Your layer drops entries of its result; dropout acts on what a sub-layer adds, within its "
    "connection.",
    (FEED, f"self.feed_forward.dropout({FEED})"),
)
add(
    "encoder_layer_attention_before_norm",
    "With norm_first your self-attention reads x as it was before the norm; in the lambda, use its "
    "own argument for queries, keys and values.",
    (SELF, "x = self.sublayer[0](x, lambda y: self.self_attn(x, x, x, mask))"),
    read="trf-norm-order",
)
add(
    "encoder_layer_always_norm_first",
    "Your layer is pre-norm whatever norm_first is; pass it to the connections.",
    (MADE, "clones(SublayerConnection(d_model, dropout, True), 2)"),
    read="trf-norm-order",
)
add(
    "encoder_layer_one_connection",
    "You use sublayer[0] for both sub-layers, so sublayer[1] learns nothing; use sublayer[1] for "
    "the feed-forward network.",
    (FEED, "self.sublayer[0](x, self.feed_forward)"),
)
add(
    "encoder_layer_connections_shared",
    "Your two connections are one module, so they share one norm; create a separate "
    "SublayerConnection for each sub-layer, for example with clones.",
    (MADE, "nn.ModuleList([SublayerConnection(d_model, dropout, norm_first)] * 2)"),
)
add(
    "encoder_layer_mask_ignored",
    "You call self_attn without the mask, so it attends to padding; pass the mask on.",
    (SELF, "x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x))"),
    read="trf-mask-errors",
)
add(
    "encoder_layer_keys_before_norm",
    "With norm_first you normalise the queries but not keys and values; in the lambda, use its own "
    "argument for all three.",
    (SELF, "x = self.sublayer[0](x, lambda y: self.self_attn(y, x, x, mask))"),
)
add(
    "encoder_layer_query_before_norm",
    "With norm_first you normalise keys and values but not the queries; in the lambda, use its own "
    "argument for all three.",
    (SELF, "x = self.sublayer[0](x, lambda y: self.self_attn(x, y, y, mask))"),
)
add(
    "encoder_layer_without_feed_forward",
    "Your layer ends after self-attention; apply the feed-forward sub-layer, too.",
    (f"return {FEED}", "return x"),
)
add(
    "encoder_layer_without_connections",
    "You apply the sub-layers without residual connection and norm; pass each to its connection in "
    "self.sublayer.",
    (SELF, "x = self.self_attn(x, x, x, mask)"),
    (FEED, "self.feed_forward(x)"),
)
add(
    "encoder_layer_feed_forward_of_input",
    "You apply the feed-forward sub-layer to the layer's input; apply it to the output of the "
    "self-attention sub-layer.",
    (SELF, "y = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))"),
)
add(
    "encoder_layer_parallel",
    "You apply both sub-layers to the layer's input and add their results; apply the second to the "
    "output of the first.",
    (SELF, "y = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))"),
    (FEED, "y + self.sublayer[1](x, self.feed_forward) - x"),
)
add(
    "encoder_layer_norm_order_not_passed",
    "Your layer is post-norm whatever norm_first is; pass it to the connections.",
    (MADE, "clones(SublayerConnection(d_model, dropout), 2)"),
    read="trf-norm-order",
)
add(
    "encoder_layer_attention_without_dropout",
    "You don't pass dropout to self_attn, so no attention weight is dropped; make it the third "
    "argument of MultiHeadAttention.",
    ("MultiHeadAttention(d_model, num_heads, dropout)", "MultiHeadAttention(d_model, num_heads)"),
)
add(
    "encoder_layer_feed_forward_without_dropout",
    "You don't pass dropout to feed_forward; make it the third argument of "
    "PositionwiseFeedForward.",
    ("PositionwiseFeedForward(d_model, d_ff, dropout)", "PositionwiseFeedForward(d_model, d_ff)"),
)
add(
    "encoder_layer_connections_without_dropout",
    "You don't pass dropout to the connections; make it the second argument of SublayerConnection.",
    (MADE, "clones(SublayerConnection(d_model, norm_first=norm_first), 2)"),
)
add(
    "encoder_layer_dropout_fixed",
    "Your attention drops weights with probability 0.1 whatever dropout is; pass the argument on.",
    (
        "MultiHeadAttention(d_model, num_heads, dropout)",
        "MultiHeadAttention(d_model, num_heads, 0.1)",
    ),
)
add(
    "encoder_layer_d_ff_ignored",
    "The inner layer of your feed-forward network is always 4 * d_model wide; pass d_ff on.",
    (
        "PositionwiseFeedForward(d_model, d_ff, dropout)",
        "PositionwiseFeedForward(d_model, 4 * d_model, dropout)",
    ),
)
add(
    "encoder_layer_changes_x",
    "Your layer changes the caller's x in place; create new tensors.",
    (SELF, "x.copy_(self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask)))"),
)

add = mistakes_in(MISCONCEPTIONS, "Encoder", "trf-encoder")
LAYER = "EncoderLayer(d_model, num_heads, d_ff, dropout, norm_first)"
LOOP = "        for layer in self.layers:\n            x = layer(x, mask)"
FINAL = "x if self.norm is None else self.norm(x)"
NORM = "LayerNorm(d_model) if norm_first else None"
add(
    "encoder_norm_never",
    "Your pre-norm stack has no final norm, so its output is an unnormalised sum; with norm_first, "
    "create self.norm = LayerNorm(d_model) and apply it after the last layer.",
    (NORM, "None"),
    read="trf-norm-order",
)
add(
    "encoder_norm_always",
    "Your post-norm stack has a final norm, but its layers already end with one; create it only if "
    "norm_first.",
    (NORM, "LayerNorm(d_model)"),
    read="trf-norm-order",
)
add(
    "encoder_norm_unused",
    "You create the final norm but don't apply it; apply it to the output of the last layer.",
    (f"return {FINAL}", "return x"),
    read="trf-norm-order",
)
add(
    "encoder_norm_first_of_all",
    "You apply the final norm to the input of the stack; apply it to the output of the last layer.",
    (LOOP, f"        x = {FINAL}\n{LOOP}"),
    (f"return {FINAL}", "return x"),
    read="trf-norm-order",
)
add(
    "encoder_norm_after_every_layer",
    "You apply the final norm after every layer; apply it once, after the last.",
    (LOOP, f"{LOOP}\n            x = {FINAL}"),
    (f"        return {FINAL}  # (B, S, D)\n        ### END", "        return x\n        ### END"),
    read="trf-norm-order",
)
add(
    "encoder_drops_by_itself",
    "Your stack drops entries itself; all its dropout is within the layers, so pass it to them and "
    "use none besides.",
    (NORM, f"{NORM}\n        self.dropout = nn.Dropout(dropout)"),
    (LOOP, f"        x = self.dropout(x)\n{LOOP}"),
)
add(
    "encoder_number_fixed",
    "Your stack has six layers whatever num_layers is; pass it to clones.",
    ("clones(layer, num_layers)", "clones(layer, 6)"),
)
add(
    "encoder_one_layer_again_and_again",
    "You run the first layer num_layers times and never the others; run each layer once.",
    (LOOP, "        for _ in self.layers:\n            x = self.layers[0](x, mask)"),
)
add(
    "encoder_layers_shared",
    "All your layers are one module; create num_layers copies with clones.",
    ("clones(layer, num_layers)", "nn.ModuleList([layer] * num_layers)"),
)
add(
    "encoder_first_layer_only",
    "You run only the first layer; run all, each on the output of the one before.",
    (LOOP, "        for layer in self.layers[:1]:\n            x = layer(x, mask)"),
)
add(
    "encoder_layers_side_by_side",
    "Each of your layers reads the input of the stack, so only the last one counts; run each on "
    "the output of the one before.",
    (
        LOOP,
        "        start = x\n        for layer in self.layers:\n            x = layer(start, mask)",
    ),
)
add(
    "encoder_layers_backwards",
    "You run the layers from last to first; begin with layers[0].",
    (LOOP, "        for layer in reversed(self.layers):\n            x = layer(x, mask)"),
)
add(
    "encoder_mask_not_passed",
    "You call the layers without the mask, so they attend to padding; pass it to every layer.",
    ("x = layer(x, mask)", "x = layer(x)"),
    read="trf-mask-errors",
)
add(
    "encoder_mask_for_first_layer",
    "You pass the mask only to the first layer; pass it to every layer.",
    ("x = layer(x, mask)", "x, mask = layer(x, mask), None"),
    read="trf-mask-errors",
)
add(
    "encoder_dropout_not_passed",
    "You don't pass dropout to the layers; pass it on to EncoderLayer.",
    (LAYER, "EncoderLayer(d_model, num_heads, d_ff, norm_first=norm_first)"),
)
add(
    "encoder_norm_order_not_passed",
    "Your layers are post-norm whatever norm_first is; pass it on to EncoderLayer.",
    (LAYER, "EncoderLayer(d_model, num_heads, d_ff, dropout)"),
    read="trf-norm-order",
)
add(
    "encoder_layers_unchecked",
    "Your Encoder accepts a num_layers below 1; raise a ValueError.",
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
    "Your cross-attention takes queries and keys from memory and values from the decoder, which "
    "fails as soon as the lengths differ; take queries from the decoder, keys and values from "
    "memory.",
    (LOOK, "self.src_attn(memory, memory, x, src_mask)"),
)
add(
    "decoder_layer_query_from_memory",
    "Your cross-attention takes queries from memory, keys and values from the decoder; take "
    "queries from the decoder, keys and values from memory.",
    (LOOK, "self.src_attn(memory, x, x, src_mask)"),
)
add(
    "decoder_layer_value_from_decoder",
    "Your cross-attention takes values from the decoder; take both keys and values from memory.",
    (LOOK, "self.src_attn(x, memory, x, src_mask)"),
)
add(
    "decoder_layer_all_from_memory",
    "Your cross-attention takes its queries from memory, too; take them from the decoder.",
    (LOOK, "self.src_attn(memory, memory, memory, src_mask)"),
)
add(
    "decoder_layer_memory_unused",
    "Your second attention is self-attention again, so the source is never read; take keys and "
    "values from memory.",
    (LOOK, "self.src_attn(x, x, x, tgt_mask)"),
)
add(
    "decoder_layer_src_mask_ignored",
    "You call src_attn without a mask, so it attends to padding of the source; pass src_mask.",
    (LOOK, "self.src_attn(x, memory, memory)"),
    read="trf-mask-errors",
)
add(
    "decoder_layer_tgt_mask_ignored",
    "You call self_attn without a mask, so positions see what they should predict; pass tgt_mask.",
    (SELF, "self.self_attn(x, x, x)"),
    read="trf-mask-errors",
)
add(
    "decoder_layer_masks_swapped",
    "Your masks are swapped; pass tgt_mask to self-attention and src_mask to cross-attention.",
    (SELF, "self.self_attn(x, x, x, src_mask)"),
    (LOOK, "self.src_attn(x, memory, memory, tgt_mask)"),
    read="trf-mask-errors",
)
add(
    "decoder_layer_memory_normalised",
    "Your layer normalises memory; use it as it is, since the encoder has already normalised it.",
    (LOOK, "self.src_attn(x, *[self.sublayer[1].norm(memory)] * 2, src_mask)"),
)
add(
    "decoder_layer_source_first",
    "You apply cross-attention before self-attention; apply self-attention first.",
    (
        "x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, tgt_mask))  # (B, U, D)\n"
        "        x = self.sublayer[1](x, lambda x: self.src_attn(x, memory, memory, src_mask))",
        "x = self.sublayer[1](x, lambda x: self.src_attn(x, memory, memory, src_mask))\n"
        "        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, tgt_mask))",
    ),
)
add(
    "decoder_layer_source_attention_first",
    "Your first sub-layer is cross-attention, your second self-attention; begin with "
    "self-attention.",
    (
        "x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, tgt_mask))  # (B, U, D)\n"
        "        x = self.sublayer[1](x, lambda x: self.src_attn(x, memory, memory, src_mask))",
        "x = self.sublayer[0](x, lambda x: self.src_attn(x, memory, memory, src_mask))\n"
        "        x = self.sublayer[1](x, lambda x: self.self_attn(x, x, x, tgt_mask))",
    ),
)
add(
    "decoder_layer_src_mask_for_both",
    "Where no tgt_mask is given, your self-attention uses src_mask; without a mask of its own "
    "every position may be attended to.",
    (SELF, "self.self_attn(x, x, x, src_mask if tgt_mask is None else tgt_mask)"),
    read="trf-mask-errors",
)
add(
    "decoder_layer_result_dropped",
    "Your layer drops entries of its result; dropout acts on what a sub-layer adds, within its "
    "connection.",
    (
        "return self.sublayer[2](x, self.feed_forward)",
        "return self.feed_forward.dropout(self.sublayer[2](x, self.feed_forward))",
    ),
)
add(
    "decoder_layer_attention_before_norm",
    "With norm_first your self-attention reads x as it was before the norm; in the lambda, use its "
    "own argument for queries, keys and values.",
    (f"lambda x: {SELF}", f"lambda y: {SELF}"),
    read="trf-norm-order",
)
add(
    "decoder_layer_always_norm_first",
    "Your layer is pre-norm whatever norm_first is; pass it to the connections.",
    (MADE, "clones(SublayerConnection(d_model, dropout, True), 3)"),
    read="trf-norm-order",
)
add(
    "decoder_layer_attention_shared",
    "You use self_attn for both attentions; use src_attn, with projections of its own, for "
    "cross-attention.",
    (LOOK, "self.self_attn(x, memory, memory, src_mask)"),
)
add(
    "decoder_layer_without_feed_forward",
    "Your layer ends after cross-attention; apply the feed-forward sub-layer, too.",
    ("return self.sublayer[2](x, self.feed_forward)", "return x"),
)
add(
    "decoder_layer_without_source",
    "You leave out cross-attention, so the source is never read; apply src_attn as the second "
    "sub-layer.",
    ("x = self.sublayer[1](x, lambda x: self.src_attn(x, memory, memory, src_mask))", "pass"),
)
add(
    "decoder_layer_one_connection",
    "You use sublayer[0] for all three sub-layers; use a connection of its own for each.",
    ("x = self.sublayer[1](x, lambda", "x = self.sublayer[0](x, lambda"),
    ("self.sublayer[2](x,", "self.sublayer[0](x,"),
)
add(
    "decoder_layer_connections_shared",
    "Your three connections are one module, so they share one norm; create a separate "
    "SublayerConnection for each sub-layer, for example with clones.",
    (MADE, "nn.ModuleList([SublayerConnection(d_model, dropout, norm_first)] * 3)"),
)
add(
    "decoder_layer_attentions_are_one",
    "Your self_attn and src_attn are one module; create two.",
    (
        "self.src_attn = MultiHeadAttention(d_model, num_heads, dropout)",
        "self.src_attn = self.self_attn",
    ),
)
add(
    "decoder_layer_keys_before_norm",
    "With norm_first your self-attention normalises the queries but not keys and values; in the "
    "lambda, use its own argument for all three.",
    (f"lambda x: {SELF}", "lambda y: self.self_attn(y, x, x, tgt_mask)"),
)
add(
    "decoder_layer_source_query_before_norm",
    "With norm_first the queries of your cross-attention are not normalised; in the lambda, use "
    "its own argument for them.",
    (f"lambda x: {LOOK}", "lambda y: self.src_attn(x, memory, memory, src_mask)"),
)
add(
    "decoder_layer_norm_order_not_passed",
    "Your layer is post-norm whatever norm_first is; pass it to the connections.",
    (MADE, "clones(SublayerConnection(d_model, dropout), 3)"),
    read="trf-norm-order",
)
add(
    "decoder_layer_self_attention_without_dropout",
    "You don't pass dropout to self_attn; make it the third argument of MultiHeadAttention.",
    (
        "self.self_attn = MultiHeadAttention(d_model, num_heads, dropout)",
        "self.self_attn = MultiHeadAttention(d_model, num_heads)",
    ),
)
add(
    "decoder_layer_source_attention_without_dropout",
    "You don't pass dropout to src_attn; make it the third argument of MultiHeadAttention.",
    (
        "self.src_attn = MultiHeadAttention(d_model, num_heads, dropout)",
        "self.src_attn = MultiHeadAttention(d_model, num_heads)",
    ),
)
add(
    "decoder_layer_feed_forward_without_dropout",
    "You don't pass dropout to feed_forward; make it the third argument of "
    "PositionwiseFeedForward.",
    ("PositionwiseFeedForward(d_model, d_ff, dropout)", "PositionwiseFeedForward(d_model, d_ff)"),
)
add(
    "decoder_layer_connections_without_dropout",
    "You don't pass dropout to the connections; make it the second argument of SublayerConnection.",
    (MADE, "clones(SublayerConnection(d_model, norm_first=norm_first), 3)"),
)
add(
    "decoder_layer_memory_detached",
    "You cut memory out of the graph, so the encoder learns nothing; leave out detach().",
    (LOOK, "self.src_attn(x, *[memory.detach()] * 2, src_mask)"),
)

add = mistakes_in(MISCONCEPTIONS, "Decoder", "trf-decoder")
LAYER = "DecoderLayer(d_model, num_heads, d_ff, dropout, norm_first)"
LOOP = "        for layer in self.layers:\n            x = layer(x, memory, src_mask, tgt_mask)"
add(
    "decoder_memory_from_layer_before",
    "From the second layer on, you pass the output of the layer before as memory; pass the "
    "encoder's output to every layer.",
    (LOOP, f"{LOOP}\n            memory, src_mask = x, tgt_mask"),
)
add(
    "decoder_memory_for_first_layer",
    "Only your first layer reads memory; pass it to every layer.",
    (LOOP, f"{LOOP}\n            memory = torch.zeros_like(memory)"),
)
add(
    "decoder_memory_normalised",
    "You apply the final norm to memory, too; pass memory on as it is.",
    (LOOP, f"        memory = memory if self.norm is None else self.norm(memory)\n{LOOP}"),
)
add(
    "decoder_norm_never",
    "Your pre-norm stack has no final norm; with norm_first, create self.norm = LayerNorm(d_model) "
    "and apply it after the last layer.",
    (NORM, "None"),
    read="trf-norm-order",
)
add(
    "decoder_norm_always",
    "Your post-norm stack has a final norm, but its layers already end with one; create it only if "
    "norm_first.",
    (NORM, "LayerNorm(d_model)"),
    read="trf-norm-order",
)
add(
    "decoder_norm_unused",
    "You create the final norm but don't apply it; apply it to the output of the last layer.",
    (f"return {FINAL}", "return x"),
    read="trf-norm-order",
)
add(
    "decoder_one_layer_again_and_again",
    "You run the first layer num_layers times and never the others; run each layer once.",
    (
        LOOP,
        "        for _ in self.layers:\n"
        "            x = self.layers[0](x, memory, src_mask, tgt_mask)",
    ),
)
add(
    "decoder_layers_shared",
    "All your layers are one module; create num_layers copies with clones.",
    ("clones(layer, num_layers)", "nn.ModuleList([layer] * num_layers)"),
)
add(
    "decoder_src_mask_not_passed",
    "You don't pass src_mask to the layers, so they attend to padding of the source; pass it on.",
    ("layer(x, memory, src_mask, tgt_mask)", "layer(x, memory, None, tgt_mask)"),
    read="trf-mask-errors",
)
add(
    "decoder_tgt_mask_not_passed",
    "You don't pass tgt_mask to the layers, so positions see what they should predict; pass it on.",
    ("layer(x, memory, src_mask, tgt_mask)", "layer(x, memory, src_mask)"),
    read="trf-mask-errors",
)
add(
    "decoder_masks_swapped",
    "You pass src_mask and tgt_mask to the layers in the wrong order; src_mask comes first.",
    ("layer(x, memory, src_mask, tgt_mask)", "layer(x, memory, tgt_mask, src_mask)"),
    read="trf-mask-errors",
)
add(
    "decoder_tgt_mask_for_first_layer",
    "You pass tgt_mask only to the first layer, so in the others positions attend to later ones; "
    "pass it to every layer.",
    (LOOP, f"{LOOP}\n            tgt_mask = None"),
    read="trf-mask-errors",
)
add(
    "decoder_src_mask_for_first_layer",
    "You pass src_mask only to the first layer, so the others attend to padding of the source; "
    "pass it to every layer.",
    (LOOP, f"{LOOP}\n            src_mask = None"),
    read="trf-mask-errors",
)
add(
    "decoder_layers_backwards",
    "You run the layers from last to first; begin with layers[0].",
    ("for layer in self.layers:", "for layer in reversed(self.layers):"),
)
add(
    "decoder_drops_by_itself",
    "Your stack drops entries itself; all its dropout is within the layers, so pass it to them and "
    "use none besides.",
    (NORM, f"{NORM}\n        self.dropout = nn.Dropout(dropout)"),
    (LOOP, f"        x = self.dropout(x)\n{LOOP}"),
)
add(
    "decoder_number_fixed",
    "Your stack has six layers whatever num_layers is; pass it to clones.",
    ("clones(layer, num_layers)", "clones(layer, 6)"),
)
add(
    "decoder_of_encoder_layers",
    "Your decoder is a stack of EncoderLayers, which never read memory; use DecoderLayers.",
    (LAYER, "EncoderLayer(d_model, num_heads, d_ff, dropout, norm_first)"),
    ("layer(x, memory, src_mask, tgt_mask)", "layer(x, tgt_mask)"),
)
add(
    "decoder_dropout_not_passed",
    "You don't pass dropout to the layers; pass it on to DecoderLayer.",
    (LAYER, "DecoderLayer(d_model, num_heads, d_ff, norm_first=norm_first)"),
)
add(
    "decoder_norm_order_not_passed",
    "Your layers are post-norm whatever norm_first is; pass it on to DecoderLayer.",
    (LAYER, "DecoderLayer(d_model, num_heads, d_ff, dropout)"),
    read="trf-norm-order",
)
add(
    "decoder_layers_unchecked",
    "Your Decoder accepts a num_layers below 1; raise a ValueError.",
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
    "Your generator returns probabilities; return log-probabilities with log_softmax.",
    (SCORED, "torch.softmax(self.proj(hidden), dim=-1)"),
)
add(
    "generator_logits",
    "Your generator returns logits; apply log_softmax to them.",
    (SCORED, "self.proj(hidden)"),
)
add(
    "generator_over_positions",
    "Your log_softmax runs over the positions; use the last axis, the vocabulary.",
    (SCORED, "torch.log_softmax(self.proj(hidden), dim=max(hidden.dim() - 2, 0))"),
)
add(
    "generator_over_batch",
    "Your log_softmax runs over the first axis; use the last one, the vocabulary.",
    (SCORED, "torch.log_softmax(self.proj(hidden), dim=0)"),
)
add(
    "generator_axis_left_out",
    "You leave out dim, so that PyTorch chooses the axis, the first of three; write dim=-1, the "
    "vocabulary.",
    (SCORED, "nn.functional.log_softmax(self.proj(hidden))"),
)
add(
    "generator_exp_overflows",
    "You take exp of the logits as they are, which is infinite for large ones; use log_softmax, or "
    "logsumexp, which subtract the largest first.",
    (
        SCORED,
        "self.proj(hidden) - self.proj(hidden).exp().sum(dim=-1, keepdim=True).log()",
    ),
)
add(
    "generator_log_of_softmax",
    "You take the logarithm of softmax, which is -inf where a probability is rounded to 0; use "
    "log_softmax.",
    (SCORED, "torch.log(torch.softmax(self.proj(hidden), dim=-1))"),
)
add(
    "generator_log_with_eps",
    "You add a small number before the logarithm, which distorts small probabilities; use "
    "log_softmax, which needs none.",
    (SCORED, "torch.log(torch.softmax(self.proj(hidden), dim=-1) + 1e-9)"),
)
add(
    "generator_negative",
    "Your generator returns negative log-probabilities; return them without the minus, which "
    "belongs to the loss.",
    (SCORED, "-torch.log_softmax(self.proj(hidden), dim=-1)"),
)
add(
    "generator_relu",
    "You apply ReLU to the logits; apply log_softmax to them as they are.",
    (SCORED, "torch.log_softmax(torch.relu(self.proj(hidden)), dim=-1)"),
)
add(
    "generator_without_bias",
    "Your proj has no bias; create it as nn.Linear(d_model, vocab_size).",
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
    "Your encoder gets no positions, so it reads a bag of words; apply `position` to the source "
    "embeddings.",
    (ENCODED, "self.encoder(self.src_embed(src), src_mask)"),
)
add(
    "model_target_without_positions",
    "Your decoder gets no positions; apply `position` to the target embeddings.",
    (X, "x = self.tgt_embed(tgt)"),
)
add(
    "model_without_positions",
    "Neither side of your model gets positions; apply `position` to both embeddings.",
    (ENCODED, "self.encoder(self.src_embed(src), src_mask)"),
    (X, "x = self.tgt_embed(tgt)"),
)
add(
    "model_scaled_after_positions",
    "You multiply the positional encodings by sqrt(d_model), too; scale only the embeddings, then "
    "apply `position`.",
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
    "model_drops_twice",
    "What your stacks read is dropped twice, by `position` and once more by you; leave it to "
    "`position`.",
    (ENCODED, "self.encoder(self.position.dropout(self.position(self.src_embed(src))), src_mask)"),
    (X, "x = self.position.dropout(self.position(self.tgt_embed(tgt)))"),
)
add(
    "model_source_table_for_target",
    "You embed the target with src_embed; use tgt_embed.",
    (X, "x = self.position(self.src_embed(tgt))"),
)
add(
    "model_embeddings_are_one",
    "Your src_embed and tgt_embed are one module; create two, since only make_model ties them, if "
    "asked to.",
    ("self.tgt_embed = Embeddings(tgt_vocab_size, d_model)", "self.tgt_embed = self.src_embed"),
)
add(
    "model_vocabularies_swapped",
    "Your vocabulary sizes are swapped; src_embed takes src_vocab_size, tgt_embed and generator "
    "take tgt_vocab_size.",
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
    "Your encode ignores src_mask; pass it to the encoder.",
    (ENCODED, "self.encoder(self.position(self.src_embed(src)))"),
    read="trf-mask-errors",
)
add(
    "model_forward_encodes_without_mask",
    "Your forward encodes the source without its padding mask; pass pad_mask(src) to encode.",
    ("memory = self.encode(src, src_mask)", "memory = self.encode(src)"),
    read="trf-mask-errors",
)
add(
    "model_forward_decodes_without_src_mask",
    "Your forward passes no src_mask to decode, so cross-attention attends to the padding of the "
    "source; pass pad_mask(src).",
    (FORWARD, "self.decode(memory, None, tgt, make_std_mask(tgt))"),
    read="trf-mask-errors",
)
add(
    "model_forward_without_std_mask",
    "Your forward passes no target mask to decode, so every position sees what it should predict; "
    "pass make_std_mask(tgt).",
    (FORWARD, "self.decode(memory, src_mask, tgt, None)"),
    read="trf-mask-errors",
)
add(
    "model_forward_cuts_padding",
    "Your forward leaves out columns in which every target is padding; return log-probabilities "
    "for all U positions.",
    (
        "        src_mask = pad_mask(src)",
        "        tgt = tgt[:, : int((tgt != 0).sum(dim=1).max())]\n"
        "        src_mask = pad_mask(src)",
    ),
)
add(
    "model_forward_padding_mask_for_target",
    "Your forward masks only the padding of the target; mask later positions, too: "
    "make_std_mask(tgt).",
    (FORWARD, "self.decode(memory, src_mask, tgt, pad_mask(tgt))"),
    read="trf-mask-errors",
)
add(
    "model_forward_triangle_for_target",
    "Your forward masks only later positions of the target; mask its padding, too: "
    "make_std_mask(tgt).",
    ("src_mask = pad_mask(src)", "src_mask, n = pad_mask(src), tgt.shape[1]"),
    (FORWARD, "self.decode(memory, src_mask, tgt, torch.ones(1, n, n).tril().bool())"),
    read="trf-mask-errors",
)
add(
    "model_forward_without_masks",
    "Your forward makes no masks; use pad_mask(src) and make_std_mask(tgt).",
    ("src_mask = pad_mask(src)", "src_mask = None"),
    (FORWARD, "self.decode(memory, src_mask, tgt, None)"),
    read="trf-mask-errors",
)
add(
    "model_forward_source_as_memory",
    "Your decoder reads the embedded source; pass it the encoder's output as memory.",
    ("memory = self.encode(src, src_mask)", "memory = self.position(self.src_embed(src))"),
)
add(
    "model_decode_generates",
    "Your decode applies the generator; return the decoder's vectors (B, U, D) and apply the "
    "generator in forward.",
    (f"return {DECODED}", f"return self.generator({DECODED})"),
    ("return self.generator(hidden)", "return hidden"),
)
add(
    "model_forward_without_generator",
    "Your forward returns the decoder's vectors; apply the generator to them.",
    ("return self.generator(hidden)", "return hidden"),
)
add(
    "model_decode_swaps_masks",
    "Your decode passes the masks on in the wrong order; src_mask comes before tgt_mask.",
    (DECODED, "self.decoder(x, memory, tgt_mask, src_mask)"),
    read="trf-mask-errors",
)
add(
    "model_decode_ignores_src_mask",
    "Your decode ignores src_mask; pass it to the decoder.",
    (DECODED, "self.decoder(x, memory, None, tgt_mask)"),
    read="trf-mask-errors",
)
add(
    "model_decode_makes_its_own_mask",
    "Your decode makes its own target mask; pass tgt_mask to the decoder, as the caller chose it.",
    (DECODED, "self.decoder(x, memory, src_mask, make_std_mask(tgt))"),
)
add(
    "model_position_without_dropout",
    "You don't pass dropout to `position`, which should drop entries of the sum of embedding and "
    "position; pass it on.",
    ("PositionalEncoding(d_model, max_length, dropout)", "PositionalEncoding(d_model, max_length)"),
)
add(
    "model_encoder_without_dropout",
    "You don't pass dropout to the encoder; pass it on.",
    (
        MAKE_ENCODER,
        "Encoder(num_layers, d_model, num_heads, d_ff, norm_first=norm_first)\n"
        "        self.decoder",
    ),
)
add(
    "model_decoder_without_dropout",
    "You don't pass dropout to the decoder; pass it on.",
    (
        MAKE_DECODER,
        "Decoder(num_layers, d_model, num_heads, d_ff, norm_first=norm_first)\n        self.gen",
    ),
)
add(
    "model_norm_order_not_passed",
    "Your stacks are post-norm whatever norm_first is; pass it to both.",
    (MAKE_ENCODER, "Encoder(num_layers, d_model, num_heads, d_ff, dropout)\n        self.decoder"),
    (MAKE_DECODER, "Decoder(num_layers, d_model, num_heads, d_ff, dropout)\n        self.gen"),
    read="trf-norm-order",
)
add(
    "model_max_length_not_passed",
    "You don't pass max_length to `position`, which keeps its default; pass it on.",
    (
        "PositionalEncoding(d_model, max_length, dropout)",
        "PositionalEncoding(d_model, dropout=dropout)",
    ),
)
add(
    "model_d_ff_and_heads_swapped",
    "You pass num_heads and d_ff to the stacks in the wrong order; num_heads comes before d_ff.",
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
    "Your layers all have the same initialisation, because clones copies one layer; draw every "
    "linear weight anew in a loop over the finished model.",
    (DRAW, ""),
)
add(
    "make_model_xavier_on_embeddings",
    "You initialise every matrix by Xavier's rule, embedding matrices included, so scaled "
    "embeddings of a large vocabulary are far too short; leave these matrices as Embeddings draws "
    "them.",
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
    "You initialise every matrix by Xavier's rule, embedding matrices included, and keep the "
    "biases of nn.Linear; redraw only linear weights, and set their biases to 0.",
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
    "You keep the biases that nn.Linear draws; set them to 0.",
    ("            nn.init.zeros_(module.bias)\n", ""),
)
add(
    "make_model_xavier_normal",
    "You draw linear weights from a normal distribution; use nn.init.xavier_uniform_.",
    ("nn.init.xavier_uniform_(module.weight)", "nn.init.xavier_normal_(module.weight)"),
)
add(
    "make_model_kaiming",
    "You initialise linear weights by Kaiming's rule; use nn.init.xavier_uniform_.",
    ("nn.init.xavier_uniform_(module.weight)", "nn.init.kaiming_uniform_(module.weight)"),
)
add(
    "make_model_normal_weights",
    "You draw linear weights from N(0, 1/D), like embeddings; use nn.init.xavier_uniform_.",
    (
        "nn.init.xavier_uniform_(module.weight)",
        "nn.init.normal_(module.weight, std=d_model**-0.5)",
    ),
)
add(
    "make_model_attention_gain",
    "The weights of q_proj, k_proj and v_proj have half the variance, as in nn.MultiheadAttention, "
    "which draws all three as one matrix; here each is drawn by itself, without gain.",
    (
        "            nn.init.xavier_uniform_(module.weight)",
        "            square = module.in_features == module.out_features\n"
        "            nn.init.xavier_uniform_(module.weight, gain=0.5**0.5 if square else 1.0)",
    ),
)
add(
    "make_model_embeddings_unit_variance",
    "You draw the embedding matrices from N(0, 1), as nn.Embedding does; draw them from N(0, 1/D).",
    (
        "    if tie_embeddings:\n",
        "    nn.init.normal_(model.src_embed.lut.weight)\n"
        "    nn.init.normal_(model.tgt_embed.lut.weight)\n"
        "    if tie_embeddings:\n",
    ),
    read="trf-embeddings",
)
add(
    "make_model_embeddings_std",
    "You draw the embedding matrices with a standard deviation of 1/D; 1/D is the variance, the "
    "standard deviation is its root.",
    (
        "    if tie_embeddings:\n",
        "    nn.init.normal_(model.src_embed.lut.weight, std=1.0 / d_model)\n"
        "    nn.init.normal_(model.tgt_embed.lut.weight, std=1.0 / d_model)\n"
        "    if tie_embeddings:\n",
    ),
    read="trf-embeddings",
)
add(
    "make_model_padding_zero",
    "You set the embedding of PAD to 0; no row of an embedding is special, masks say what is "
    "padding.",
    (
        "    if tie_embeddings:\n",
        "    with torch.no_grad():\n"
        "        model.src_embed.lut.weight[0] = 0.0\n"
        "        model.tgt_embed.lut.weight[0] = 0.0\n"
        "    if tie_embeddings:\n",
    ),
    read="trf-embeddings",
)
add(
    "make_model_generator_left_out",
    "Your loop leaves out the generator; draw its weight by nn.init.xavier_uniform_ and set its "
    "bias to 0, too.",
    (
        "    for module in model.modules():\n",
        "    for module in [*model.encoder.modules(), *model.decoder.modules()]:\n",
    ),
)
add(
    "make_model_shared_ignored",
    "You ignore tie_embeddings; if it is True, make both embedding matrices and the generator's "
    "weight one parameter.",
    ("    if tie_embeddings:\n", "    if False:\n"),
)
add(
    "make_model_shared_always",
    "You tie the weights whatever tie_embeddings is; tie them only if it is True.",
    ("    if tie_embeddings:\n", "    if src_vocab_size == tgt_vocab_size:\n"),
)
add(
    "make_model_shared_by_copying",
    "Your three weights are equal at initialisation but are three parameters, each with a gradient "
    "of its own; assign the same nn.Parameter to all three modules.",
    (
        SHARED,
        "        with torch.no_grad():\n"
        "            model.tgt_embed.lut.weight.copy_(model.src_embed.lut.weight)\n"
        "            model.generator.proj.weight.copy_(model.src_embed.lut.weight)\n",
    ),
)
add(
    "make_model_generator_apart",
    "You tie only the two embedding matrices; tie the generator's weight to them, too.",
    ("        model.generator.proj.weight = model.src_embed.lut.weight\n", ""),
)
add(
    "make_model_source_apart",
    "You tie only the target's embedding matrix and the generator's weight; tie the source's "
    "embedding matrix, too.",
    (
        SHARED,
        "        model.generator.proj.weight = model.tgt_embed.lut.weight\n",
    ),
)
add(
    "make_model_target_apart",
    "You tie only the source's embedding matrix and the generator's weight; tie the target's "
    "embedding matrix, too.",
    ("        model.tgt_embed.lut.weight = model.src_embed.lut.weight\n", ""),
)
add(
    "make_model_shared_by_xavier",
    "You draw the shared weight by Xavier's rule; assign the embedding matrix to the generator "
    "after the loop, so that it stays drawn from N(0, 1/D).",
    (
        SHARED,
        SHARED + "        nn.init.xavier_uniform_(model.generator.proj.weight)\n",
    ),
)
add(
    "make_model_shared_twice_scaled",
    "You draw the shared weight from N(0, 1); draw it from N(0, 1/D).",
    (SHARED, SHARED + "        nn.init.normal_(model.generator.proj.weight)\n"),
)
add(
    "make_model_made_once",
    "You return the model of an earlier call with the same sizes; make a new one in each call.",
    ("def make_model(", "import functools\n\n\n@functools.cache\ndef make_model("),
)
add(
    "make_model_vocabularies_unchecked",
    "With tie_embeddings=True you accept vocabularies of different sizes; raise a ValueError.",
    ("if tie_embeddings and src_vocab_size != tgt_vocab_size:", "if False:"),
)
add(
    "make_model_dropout_not_passed",
    "You don't pass dropout to EncoderDecoder, which keeps its default of 0.1; pass it on.",
    (
        CALL,
        "src_vocab_size, tgt_vocab_size, num_layers, d_model, d_ff, num_heads, "
        "norm_first=norm_first\n    )\n    for",
    ),
)
add(
    "make_model_norm_order_not_passed",
    "Your model is post-norm whatever norm_first is; pass it to EncoderDecoder.",
    (
        CALL,
        "src_vocab_size, tgt_vocab_size, num_layers, d_model, d_ff, num_heads, dropout\n    )\n    "
        "for",
    ),
    read="trf-norm-order",
)
add(
    "make_model_sizes_swapped",
    "You pass d_ff and num_heads to EncoderDecoder in the wrong order; d_ff comes before "
    "num_heads.",
    (
        CALL,
        "src_vocab_size, tgt_vocab_size, num_layers, d_model, num_heads, d_ff, dropout, "
        "norm_first\n    )\n    for",
    ),
)
