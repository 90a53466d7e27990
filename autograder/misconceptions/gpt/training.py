"""Known mistakes of `gpt-training`: initial weights, losses, the optimiser.

A residual path scaled by the wrong root, a loss without the shift, padding that counts, decay
within the gradient.
"""

from __future__ import annotations

from autograder.units.variants import Misconception, mistakes_in

MISCONCEPTIONS: list[Misconception] = []

# --------------------------------------------------------------------------------------------
# Initial weights
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "init_weights", "gpt-init")
DRAW = "nn.init.normal_(module.weight, std=0.02)"
KINDS = "if isinstance(module, (nn.Linear, nn.Embedding)):"
SMALL = "small = 0.02 / math.sqrt(2 * len(model.blocks))"
WHEN = "if isinstance(model.final_norm, nn.LayerNorm):"
OUTER = "nn.init.normal_(block.attention.out_proj.weight, std=small)"
SECOND = "nn.init.normal_(block.feed_forward.w_2.weight, std=small)"
add(
    "init_residual_by_root_of_n",
    "You divide by sqrt(N); every block adds to the sum twice, so divide by sqrt(2N).",
    (SMALL, "small = 0.02 / math.sqrt(len(model.blocks))"),
)
add(
    "init_residual_without_root",
    "You divide by 2N; variances add up, so divide the deviation by its root.",
    (SMALL, "small = 0.02 / (2 * len(model.blocks))"),
)
add(
    "init_residual_not_scaled",
    "In a pre-norm model out_proj and w_2 begin smaller: their deviation is 0.02 / sqrt(2N).",
    (OUTER, "pass"),
    (SECOND, "pass"),
)
add(
    "init_residual_enlarged",
    "You multiply by sqrt(2N); divide by it, so that the sum of all branches stays small.",
    (SMALL, "small = 0.02 * math.sqrt(2 * len(model.blocks))"),
)
add(
    "init_w_1_scaled",
    "You scale w_1; it is w_2, the last layer of the branch, that begins smaller.",
    (SECOND, "nn.init.normal_(block.feed_forward.w_1.weight, std=small)"),
)
add(
    "init_qkv_scaled",
    "You scale qkv; it is out_proj, the last layer of the branch, that begins smaller.",
    (OUTER, "nn.init.normal_(block.attention.qkv.weight, std=small)"),
)
add(
    "init_only_attention_scaled",
    "You scale out_proj only; w_2 ends a branch too.",
    (SECOND, "pass"),
)
add(
    "init_only_feed_forward_scaled",
    "You scale w_2 only; out_proj ends a branch too.",
    (OUTER, "pass"),
)
add(
    "init_all_scaled",
    "You scale every linear layer; only those that end a branch, out_proj and w_2, begin smaller.",
    (OUTER, OUTER + "\n            nn.init.normal_(block.attention.qkv.weight, std=small)"),
    (SECOND, SECOND + "\n            nn.init.normal_(block.feed_forward.w_1.weight, std=small)"),
)
add(
    "init_one_block_scaled",
    "You scale the last block only; every block ends in two branches.",
    ("for block in model.blocks:", "for block in model.blocks[-1:]:"),
)
add(
    "init_by_block_number",
    "You scale each block by its own number; N is the number of all blocks, the same for each.",
    (
        "for block in model.blocks:",
        "for number, block in enumerate(model.blocks, start=1):\n"
        "            small = 0.02 / math.sqrt(2 * number)",
    ),
)
add(
    "init_post_norm_scaled",
    "You scale the last layers of branches in a post-norm model too; GPT-1 has 0.02 everywhere.",
    (WHEN, "if True:"),
)
add(
    "init_pre_and_post_exchanged",
    "You scale in post-norm models and not in pre-norm ones; it is the other way round.",
    (WHEN, "if not isinstance(model.final_norm, nn.LayerNorm):"),
)
add(
    "init_variance",
    "0.02 is the standard deviation, not the variance.",
    (DRAW, "nn.init.normal_(module.weight, std=math.sqrt(0.02))"),
)
add(
    "init_squared",
    "You take 0.02 squared for the deviation; N(0, 0.02^2) has the deviation 0.02.",
    (DRAW, "nn.init.normal_(module.weight, std=0.02**2)"),
)
add(
    "init_uniform",
    "You draw from a uniform distribution; the weights are normally distributed.",
    (DRAW, "nn.init.uniform_(module.weight, -0.02 * math.sqrt(3), 0.02 * math.sqrt(3))"),
)
add(
    "init_by_width",
    "You choose the deviation by the width of the layer; here it is 0.02 everywhere.",
    (DRAW, "nn.init.normal_(module.weight, std=module.weight.shape[1] ** -0.5)"),
)
add(
    "init_tables_left",
    "You leave both embeddings as they were; they are drawn with 0.02 as well.",
    (KINDS, "if isinstance(module, nn.Linear):"),
)
add(
    "init_positions_left",
    "You leave the position embedding as it was; it is drawn with 0.02 as well.",
    (KINDS, "if isinstance(module, (nn.Linear, nn.Embedding)) and module is not model.position:"),
)
add(
    "init_linear_left",
    "You leave the linear layers as they were; only the embeddings are drawn anew.",
    (KINDS, "if isinstance(module, nn.Embedding):"),
)
add(
    "init_biases_random",
    "Your biases are drawn at random; they are 0.",
    ("nn.init.zeros_(module.bias)", "nn.init.normal_(module.bias, std=0.02)"),
)
add(
    "init_biases_left",
    "You leave the biases as they were; they become 0.",
    ("nn.init.zeros_(module.bias)", "pass"),
)
add(
    "init_norm_biases_left",
    "You leave the biases of the norms as they were; they become 0.",
    ("if isinstance(module, (nn.Linear, nn.LayerNorm)):", "if isinstance(module, nn.Linear):"),
)
add(
    "init_norms_zero",
    "You set the weights of the norms to 0, so that nothing passes; they are 1.",
    ("nn.init.ones_(module.weight)", "nn.init.zeros_(module.weight)"),
)
add(
    "init_norms_random",
    "You draw the weights of the norms; they are 1.",
    ("nn.init.ones_(module.weight)", "nn.init.normal_(module.weight, std=0.02)"),
)
add(
    "init_norms_left",
    "You leave the weights of the norms as they were; they become 1.",
    ("nn.init.ones_(module.weight)", "pass"),
)
add(
    "init_nothing_returned",
    "You return nothing; return the model, so that init_weights(GPT(...)) can be written in one "
    "line.",
    ("return model", "return None"),
)
add(
    "init_copy",
    "You draw the weights of a copy; change the model that is given.",
    (
        "for module in model.modules():",
        "import copy\n\n    model = copy.deepcopy(model)\n    for module in model.modules():",
    ),
)
add(
    "init_single_block_left",
    "You scale only where there are several blocks; one block ends in two branches, so that its "
    "last layers have 0.02 / sqrt(2).",
    (WHEN, "if isinstance(model.final_norm, nn.LayerNorm) and len(model.blocks) > 1:"),
)
add(
    "init_blocks_alike",
    "You draw one block and copy it into the others; every block is drawn by itself.",
    (
        "    return model",
        "    for block in model.blocks[1:]:\n"
        "        block.load_state_dict(model.blocks[0].state_dict())\n"
        "    return model",
    ),
)
add(
    "init_seeded",
    "You set a seed, so that every model begins with the same numbers; that is for the caller.",
    (
        "    for module in model.modules():",
        "    torch.manual_seed(0)\n    for module in model.modules():",
    ),
)
add(
    "init_padding_zero",
    "You set the vector of PAD to 0; no row of a table is special.",
    ("    return model", "    nn.init.zeros_(model.token.weight.detach()[0])\n    return model"),
)
add(
    "init_frozen_left",
    "You leave frozen parameters as they were; all are drawn anew.",
    (KINDS, KINDS[:-1] + " and module.weight.requires_grad:"),
)

add = mistakes_in(MISCONCEPTIONS, "count_parameters", "gpt-parameters")
NORM = "norm = 2 * d_model"
ATTENTION = "attention = (d_model + 1) * 3 * d_model + (d_model + 1) * d_model"
INNER = "feed_forward = (d_model + 1) * 4 * d_model + (4 * d_model + 1) * d_model"
BLOCK = "block = attention + feed_forward + 2 * norm"
EMBEDDINGS = "embeddings = (vocab_size + max_length) * d_model"
TOTAL = "return embeddings + num_layers * block + (norm if norm_first else 0)"
add(
    "count_head_twice",
    "You count the output matrix for itself; it is the token embedding, which counts once.",
    (EMBEDDINGS, "embeddings = (2 * vocab_size + max_length) * d_model"),
)
add(
    "count_without_final_norm",
    "You forget the norm after the last block of a pre-norm model.",
    (TOTAL, "return embeddings + num_layers * block"),
)
add(
    "count_final_norm_always",
    "You count a last norm for post-norm too; GPT-1 has none.",
    (TOTAL, "return embeddings + num_layers * block + norm"),
)
add(
    "count_final_norm_with_post",
    "You count the last norm with post-norm; it is pre-norm that has one.",
    (TOTAL, "return embeddings + num_layers * block + (0 if norm_first else norm)"),
)
add(
    "count_without_biases",
    "You count the matrices of linear layers and forget their biases.",
    (ATTENTION, "attention = 4 * d_model * d_model"),
    (INNER, "feed_forward = 8 * d_model * d_model"),
)
add(
    "count_feed_forward_without_biases",
    "You forget the biases of w_1 and w_2: 4 D and D numbers.",
    (INNER, "feed_forward = 8 * d_model * d_model"),
)
add(
    "count_w_1_bias_short",
    "You count D numbers for the bias of w_1; it has 4 D.",
    (INNER, "feed_forward = 8 * d_model * d_model + 2 * d_model"),
)
add(
    "count_w_2_bias_long",
    "You count 4 D numbers for the bias of w_2; it has D.",
    (INNER, "feed_forward = 8 * d_model * d_model + 8 * d_model"),
)
add(
    "count_without_positions",
    "You forget the position embedding, which has max_length rows of width D.",
    (EMBEDDINGS, "embeddings = vocab_size * d_model"),
)
add(
    "count_without_tokens",
    "You forget the token embedding, which has a row of width D for each token.",
    (EMBEDDINGS, "embeddings = max_length * d_model"),
)
add(
    "count_without_norms",
    "You forget the norms in the blocks: two in each, with a weight and a bias.",
    (BLOCK, "block = attention + feed_forward"),
)
add(
    "count_one_norm_per_block",
    "Each of your blocks lacks 2 D numbers: it has two norms of 2 D each, and the bias of qkv has "
    "3 D.",
    (BLOCK, "block = attention + feed_forward + norm"),
)
add(
    "count_norms_without_bias",
    "You count D numbers for a norm; it has a weight and a bias, 2 D.",
    (NORM, "norm = d_model"),
)
add(
    "count_without_out_proj",
    "You forget out_proj, a linear layer from D to D.",
    (ATTENTION, "attention = (d_model + 1) * 3 * d_model"),
)
add(
    "count_feed_forward_once",
    "You count one of the two linear layers of the feed-forward network.",
    (INNER, "feed_forward = (d_model + 1) * 4 * d_model"),
)
add(
    "count_one_block",
    "You count the parameters of one block; there are num_layers of them.",
    (TOTAL, "return embeddings + block + (norm if norm_first else 0)"),
)
add(
    "count_by_rule_of_thumb",
    "You count 12 D^2 for a block, the rule of thumb; biases and norms count too.",
    (BLOCK, "block = 12 * d_model * d_model"),
)
add(
    "count_float",
    "Your number is a float; use whole numbers only, so // for /.",
    (TOTAL, "return (embeddings + num_layers * block + (norm if norm_first else 0)) / 1"),
)

# --------------------------------------------------------------------------------------------
# Losses
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "log_likelihood", "gpt-loss")
TARGETS = "targets = ids[:, 1:].unsqueeze(2)"
PROBS = "log_probs = torch.log_softmax(logits[:, :-1], dim=2)"
COUNT = "terms = terms.masked_fill(~mask[:, 1:], 0.0)"
SUM = "return terms.sum(dim=1)"
add(
    "likelihood_without_shift",
    "Position t has seen token t: its logits are for token t + 1. Shift one against the other.",
    (TARGETS, "targets = ids.unsqueeze(2)"),
    (PROBS, "log_probs = torch.log_softmax(logits, dim=2)"),
    (COUNT, "terms = terms.masked_fill(~mask, 0.0)"),
)
add(
    "likelihood_not_shifted_but_cut",
    "You leave out the first token and its logits; the logits before token t are those at t - 1.",
    (PROBS, "log_probs = torch.log_softmax(logits[:, 1:], dim=2)"),
)
add(
    "likelihood_shifted_the_wrong_way",
    "You shift the wrong way, so that position t predicts token t - 1.",
    (TARGETS, "targets = ids[:, :-1].unsqueeze(2)"),
    (PROBS, "log_probs = torch.log_softmax(logits[:, 1:], dim=2)"),
)
add(
    "likelihood_shifted_twice",
    "You shift by two: position t predicts token t + 1.",
    (
        PROBS,
        "log_probs = torch.log_softmax(logits.roll(1, dims=1)[:, :-1], dim=2)",
    ),
)
add(
    "likelihood_rolled",
    "You roll the ids, so that the last position has the first token for a target; it has none.",
    (TARGETS, "targets = ids.roll(-1, dims=1).unsqueeze(2)"),
    (PROBS, "log_probs = torch.log_softmax(logits, dim=2)"),
    (COUNT, "terms = terms.masked_fill(~mask.roll(-1, dims=1), 0.0)"),
)
add(
    "likelihood_mask_by_inputs",
    "You read the mask at the position that predicts; it marks targets, so read it one further.",
    (COUNT, "terms = terms.masked_fill(~mask[:, :-1], 0.0)"),
)
add(
    "likelihood_mask_ignored",
    "The mask changes nothing; targets where it is False do not count.",
    (COUNT, "pass"),
)
add(
    "likelihood_mask_inverted",
    "You count the targets where the mask is False; True marks those that count.",
    (COUNT, "terms = terms.masked_fill(mask[:, 1:], 0.0)"),
)
add(
    "likelihood_masked_logits",
    "You set logits to 0 where a target does not count; that still is a prediction. Leave the term "
    "out.",
    (
        PROBS,
        PROBS.replace(
            "logits[:, :-1]",
            "logits[:, :-1] if mask is None else "
            "logits[:, :-1].masked_fill(~mask[:, 1:, None], 0.0)",
        ),
    ),
    (COUNT, "pass"),
)
add(
    "likelihood_sum_over_batch",
    "You add up all rows; each row has a sum of its own, so the result is (B,).",
    (SUM, "return terms.sum()"),
)
add(
    "likelihood_sum_over_rows",
    "You add up over the batch; add up over the positions of each row.",
    (SUM, "return terms.sum(dim=0)"),
)
add(
    "likelihood_mean",
    "You take the mean over the positions; the log-probability of a text is the sum.",
    (SUM, "return terms.mean(dim=1)"),
)
add(
    "likelihood_terms",
    "You return each token's term; add up those of a row.",
    (SUM, "return terms"),
)
add(
    "likelihood_negative",
    "Your sign is that of a loss; a log-probability is 0 at most.",
    (SUM, "return -terms.sum(dim=1)"),
)
add(
    "likelihood_of_probabilities",
    "You add up probabilities; it is their logarithms that are added.",
    (PROBS, "log_probs = torch.softmax(logits[:, :-1], dim=2)"),
)
add(
    "likelihood_product",
    "You multiply the probabilities and return the product; return its logarithm, a sum.",
    (SUM, "return terms.sum(dim=1).exp()"),
)
add(
    "likelihood_of_logits",
    "You add up logits; log_softmax makes log-probabilities of them.",
    (PROBS, "log_probs = logits[:, :-1]"),
)
add(
    "likelihood_over_places",
    "Your softmax runs over the positions; it runs over the vocabulary, the last axis.",
    (PROBS, "log_probs = torch.log_softmax(logits[:, :-1], dim=1)"),
)
add(
    "likelihood_overflows",
    "Large logits make infinities: you take exp before log. torch.log_softmax does both safely.",
    (
        PROBS,
        "log_probs = logits[:, :-1] - logits[:, :-1].exp().sum(dim=2, keepdim=True).log()",
    ),
)
add(
    "likelihood_logarithm_of_zero",
    "You take the logarithm of softmax, which is -inf where a probability rounds to 0; use "
    "torch.log_softmax.",
    (PROBS, "log_probs = torch.softmax(logits[:, :-1], dim=2).log()"),
)
add(
    "likelihood_base_two",
    "You take logarithms to the base 2; they are natural ones.",
    (SUM, "return terms.sum(dim=1) / math.log(2)"),
)
add(
    "likelihood_without_gradient",
    "You cut the graph: no gradient reaches the logits. Look for detach(), .data or no_grad().",
    (SUM, "return terms.sum(dim=1).detach()"),
)
add(
    "likelihood_length_unchecked",
    "A row of one token, which has no target, is not refused; raise a ValueError.",
    ("if ids.shape[1] < 2:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "language_model_loss", "gpt-loss")
SUM = "total = log_likelihood(logits, ids, mask).sum()"
COUNT = "count = ids[:, 1:].numel() if mask is None else mask[:, 1:].sum().clamp(min=1)"
MEAN = "return -total / count"
add(
    "lm_loss_without_shift",
    "Position t has seen token t: its logits are for token t + 1. Shift one against the other.",
    (
        SUM,
        "if ids.shape[1] < 2:\n        raise ValueError('T < 2')\n"
        "    terms = -F.cross_entropy(logits.mT, ids, reduction='none')\n"
        "    total = (terms if mask is None else terms * mask).sum()",
    ),
    (COUNT, "count = ids.numel() if mask is None else mask.sum().clamp(min=1)"),
)
add(
    "lm_loss_shifted_the_wrong_way",
    "You shift the wrong way, so that position t predicts token t - 1.",
    (SUM, SUM.replace("logits, ids, mask", "logits.flip(1), ids.flip(1), mask")),
)
add(
    "lm_loss_mask_by_inputs",
    "You read the mask at the position that predicts; it marks targets, so read it one further.",
    (SUM, SUM.replace("mask)", "None if mask is None else mask.roll(1, dims=1))")),
    (COUNT, COUNT.replace("mask[:, 1:]", "mask[:, :-1]")),
)
add(
    "lm_loss_mask_ignored",
    "The mask changes nothing; targets where it is False do not count.",
    (SUM, SUM.replace(", mask)", ")")),
    (COUNT, "count = ids[:, 1:].numel()"),
)
add(
    "lm_loss_divided_by_all",
    "You divide by the number of all targets; divide by the number of those that count.",
    (COUNT, "count = ids[:, 1:].numel()"),
)
add(
    "lm_loss_first_token_counted",
    "You count the mask at the first token, which is never a target.",
    (COUNT, COUNT.replace("mask[:, 1:].sum()", "mask.sum()")),
)
add(
    "lm_loss_divided_by_tokens",
    "You divide by the number of tokens; T tokens have T - 1 targets.",
    (COUNT, COUNT.replace("ids[:, 1:].numel()", "ids.numel()")),
)
add(
    "lm_loss_divided_by_rows",
    "You divide by the number of rows; divide by the number of targets.",
    (MEAN, "return -total / len(ids)"),
)
add(
    "lm_loss_mean_of_means",
    "You average each row and then the rows, so that targets of short rows weigh more; divide one "
    "sum by one number.",
    (SUM, "total = log_likelihood(logits, ids, mask)"),
    (
        COUNT,
        "count = (torch.ones_like(ids) if mask is None else mask)[:, 1:].sum(dim=1).clamp(min=1)",
    ),
    (MEAN, "return (-total / count).mean()"),
)
add(
    "lm_loss_summed",
    "You return the sum; divide it by the number of targets that count.",
    (MEAN, "return -total"),
)
add(
    "lm_loss_positive_logs",
    "Your loss has the wrong sign: it falls when predictions get worse.",
    (MEAN, "return total / count"),
)
add(
    "lm_loss_nan_without_targets",
    "Where no target counts your loss is NaN, 0 divided by 0; it is 0.",
    (COUNT, COUNT.replace(".clamp(min=1)", "")),
)
add(
    "lm_loss_one_added",
    "You add 1 to the number of targets to avoid dividing by 0, which changes every loss; divide "
    "by at least 1 instead.",
    (COUNT, COUNT.replace(".clamp(min=1)", " + 1")),
)
add(
    "lm_loss_perplexity",
    "You return the perplexity; the loss is its logarithm.",
    (MEAN, "return torch.exp(-total / count)"),
)
add(
    "lm_loss_bits",
    "You measure in bits; the logarithm is the natural one.",
    (MEAN, "return -total / count / math.log(2)"),
)
add(
    "lm_loss_padding_left_out",
    "You leave out targets with the id 0 unasked; what counts is said by the mask alone.",
    (
        SUM,
        "mask = (ids != 0) & (mask if mask is not None else ids == ids)\n    " + SUM,
    ),
)
add(
    "lm_loss_number",
    "You return a number; return a tensor, so that gradients can flow.",
    (MEAN, "return (-total / count).item()"),
)
add(
    "lm_loss_without_gradient",
    "You cut the graph: no gradient reaches the logits. Look for detach(), .data or no_grad().",
    (MEAN, "return (-total / count).detach()"),
)
add(
    "lm_loss_one_row_only",
    "You use the first sequence only; the loss is over the whole batch.",
    (SUM, SUM.replace(".sum()", "[0]")),
    (COUNT, "count = len(ids[0]) - 1 if mask is None else mask[0, 1:].sum().clamp(min=1)"),
)

# --------------------------------------------------------------------------------------------
# Training
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "sample_blocks", "gpt-batches")
STARTS = "torch.randint(len(stream) - length, (batch_size, 1), device=stream.device)"
BLOCKS = "return stream[positions], stream[positions + 1]"
add(
    "blocks_last_start_left_out",
    "The last possible block never comes: there are M - T starts, 0 to M - T - 1, and the end of "
    "torch.randint's range is left out already.",
    (STARTS, "torch.randint(max(len(stream) - length - 1, 1), (batch_size, 1))"),
)
add(
    "blocks_first_start_left_out",
    "No block begins at the first token; starts count from 0.",
    (
        STARTS,
        "torch.randint(min(1, len(stream) - length - 1), len(stream) - length, (batch_size, 1))",
    ),
)
add(
    "blocks_start_too_late",
    "Some of your blocks begin so late that their last target lies beyond the stream: there are "
    "M - T starts, not M - T + 1.",
    (STARTS, "torch.randint(len(stream) - length + 1, (batch_size, 1))"),
)
add(
    "blocks_targets_are_inputs",
    "Your targets are the inputs themselves; the target of a position is the token after it, one "
    "further.",
    (BLOCKS, "return stream[positions], stream[positions].clone()"),
)
add(
    "blocks_targets_behind",
    "Your targets stand one token before the inputs; they are the tokens after them.",
    (BLOCKS, "return stream[positions + 1], stream[positions]"),
)
add(
    "blocks_targets_rolled",
    "The target of a row's last position is its first token; it is the token behind the block, so "
    "take length + 1 tokens.",
    (BLOCKS, "return stream[positions], stream[positions].roll(-1, dims=1)"),
)
add(
    "blocks_one_start",
    "All rows of a batch are the same block; draw a start for each row.",
    (STARTS, "torch.randint(len(stream) - length, (1, 1)).expand(batch_size, 1)"),
)
add(
    "blocks_side_by_side",
    "Your rows follow one another in the stream; each row draws its start by itself.",
    (
        STARTS,
        "(torch.randint(len(stream) - length, (1, 1)) + length * torch.arange(batch_size)"
        ".unsqueeze(1)) % (len(stream) - length)",
    ),
)
add(
    "blocks_without_repeats",
    "No two rows begin at the same position, as in a permutation; each row draws its start by "
    "itself.",
    (
        STARTS,
        STARTS + " if batch_size > len(stream) - length else "
        "torch.randperm(len(stream) - length)[:batch_size].unsqueeze(1)",
    ),
)
add(
    "blocks_whole_multiples",
    "Your blocks begin at multiples of their length only; every position of the stream is a start.",
    (STARTS, "torch.randint((len(stream) - 1) // length, (batch_size, 1)) * length"),
)
add(
    "blocks_scattered",
    "Your rows are made of tokens from all over the stream; a block is contiguous.",
    (STARTS, "torch.randint(len(stream) - length, (batch_size, length)) - torch.arange(length)"),
)
add(
    "blocks_same_every_call",
    "Your blocks are the same at every call; don't set a seed.",
    (
        STARTS,
        "torch.randint(len(stream) - length, (batch_size, 1), "
        "generator=torch.Generator().manual_seed(0))",
    ),
)
add(
    "blocks_from_the_front",
    "Your blocks are the first of the stream; their starts are drawn.",
    (STARTS, "torch.arange(batch_size).unsqueeze(1) % (len(stream) - length)"),
)
add(
    "blocks_one_too_long",
    "Your inputs have length + 1 tokens; the last one is a target only.",
    ("torch.arange(length, device=stream.device)", "torch.arange(length + 1)"),
    (BLOCKS, "return stream[positions], stream[positions]"),
)
add(
    "blocks_short_stream_accepted",
    "A stream that is as long as a block has no target for the last position; refuse it with a "
    "ValueError.",
    ("if len(stream) < length + 1:", "if False:"),
)
add(
    "blocks_sizes_accepted",
    "A length or batch_size below 1 is not refused; raise a ValueError.",
    ("if value < 1:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "decay_groups", "gpt-optimiser")
MATRICES = "[p for p in trained if p.dim() >= 2]"
OTHERS = "[p for p in trained if p.dim() < 2]"
TRAINED = "[parameter for parameter in model.parameters() if parameter.requires_grad]"
add(
    "groups_exchanged",
    "Your groups have changed positions: what has two or more axes decays and stands first.",
    ("p.dim() >= 2", "not p.dim() >= 2"),
    ("p.dim() < 2", "not p.dim() < 2"),
)
add(
    "groups_matrices_only",
    "A parameter with three axes is no bias; two or more axes decay.",
    ("p.dim() >= 2", "p.dim() == 2"),
    ("p.dim() < 2", "p.dim() != 2"),
)
add(
    "groups_by_name_bias",
    "The weights of your norms decay: only parameters called bias are left out. Ask for the number "
    "of axes.",
    (
        MATRICES,
        '[p for n, p in model.named_parameters() if p.requires_grad and not n.endswith("bias")]',
    ),
    (OTHERS, '[p for n, p in model.named_parameters() if p.requires_grad and n.endswith("bias")]'),
)
add(
    "groups_everything_decays",
    "Biases and norm weights decay too; they belong to the second group.",
    (MATRICES, "trained"),
    (OTHERS, "[]"),
)
add(
    "groups_embeddings_left_out",
    "Your embeddings don't decay; here everything with two or more axes does.",
    (
        TRAINED,
        TRAINED
        + "\n    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}",
    ),
    (MATRICES, "[p for p in trained if p.dim() >= 2 and id(p) not in tables]"),
    (OTHERS, "[p for p in trained if p.dim() < 2 or id(p) in tables]"),
)
add(
    "groups_frozen_included",
    "A parameter that requires no gradient is in a group; leave it out.",
    (TRAINED, "list(model.parameters())"),
)
add(
    "groups_frozen_vectors",
    "A frozen vector is in the second group; what requires no gradient is in neither.",
    (OTHERS, "[p for p in model.parameters() if p.dim() < 2]"),
)
add(
    "groups_without_scalars",
    "A parameter without any axis is in neither group; the second has all that do not decay.",
    (OTHERS, "[p for p in trained if p.dim() == 1]"),
)
add(
    "groups_by_longer_axes",
    "You leave axes of length 1 out of the number; a weight (1, n) has two axes and decays.",
    (MATRICES, "[p for p in trained if p.squeeze().dim() >= 2]"),
    (OTHERS, "[p for p in trained if p.squeeze().dim() < 2]"),
)
add(
    "groups_equal_merged",
    "You take parameters with equal values for one; new norms all have equal ones. Only the same "
    "object is the same parameter.",
    (
        TRAINED,
        TRAINED + "\n    trained = [p for i, p in enumerate(trained) "
        "if not any(torch.equal(p, q) for q in trained[:i])]",
    ),
)
add(
    "groups_of_copies",
    "Your groups hold copies or detached tensors: an optimiser would change those, and the model "
    "never learns.",
    (TRAINED, "[p.detach() for p in model.parameters() if p.requires_grad]"),
)
add(
    "groups_shared_twice",
    "A parameter that the model uses twice is in its group twice; model.parameters() "
    "names it once.",
    (
        TRAINED,
        "[p for _, p in model.named_parameters(remove_duplicate=False) if p.requires_grad]",
    ),
)
add(
    "groups_all_decay_alike",
    "Both groups have the same weight_decay; that of the second is 0.",
    ('"weight_decay": 0.0}', '"weight_decay": weight_decay}'),
)
add(
    "groups_empty_left_out",
    "A group without parameters is missing; there are always two.",
    ("    return [\n", "    groups = [\n"),
    (
        '"weight_decay": 0.0},\n    ]',
        '"weight_decay": 0.0},\n    ]\n    return [group for group in groups if group["params"]]',
    ),
)
add(
    "groups_own_order",
    "Your parameters are not in the order of model.parameters().",
    (TRAINED, TRAINED + "[::-1]"),
)
add(
    "groups_decay_fixed",
    "The weight_decay of your first group is not the one that was given.",
    ('"weight_decay": weight_decay}', '"weight_decay": 0.1}'),
)
add(
    "groups_negative_accepted",
    "A negative weight_decay is not refused; raise a ValueError.",
    ("if weight_decay < 0:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "adamw_step", "gpt-optimiser")
NEW = "return shrunk - lr * first_corrected / (second_corrected.sqrt() + eps), exp_avg, exp_avg_sq"
SHRUNK = "shrunk = (1 - lr * weight_decay) * parameter"
MEANS = "exp_avg = beta_1 * exp_avg + (1 - beta_1) * gradient"
add(
    "adamw_decay_in_gradient",
    "Your decay is added to the gradient (L2): it passes through both means and is divided by the "
    "root. AdamW shrinks the parameter beside them.",
    (MEANS, "gradient = gradient + weight_decay * parameter\n    " + MEANS),
    (SHRUNK, "shrunk = parameter"),
)
add(
    "adamw_decay_not_times_rate",
    "The parameter shrinks by weight_decay of itself; it is lr * weight_decay.",
    (SHRUNK, "shrunk = (1 - weight_decay) * parameter"),
)
add(
    "adamw_decay_of_new",
    "You shrink the parameter after Adam's step; it is the old one that shrinks.",
    (SHRUNK, "shrunk = parameter"),
    (
        NEW,
        "new = shrunk - lr * first_corrected / (second_corrected.sqrt() + eps)\n"
        "    return (1 - lr * weight_decay) * new, exp_avg, exp_avg_sq",
    ),
)
add(
    "adamw_no_decay",
    "Your parameter does not shrink: lr * weight_decay of the old one goes, besides Adam's step.",
    (SHRUNK, "shrunk = parameter"),
)
add(
    "adamw_decay_grows",
    "Your decay makes the parameter larger; subtract it.",
    (SHRUNK, "shrunk = (1 + lr * weight_decay) * parameter"),
)
add(
    "adamw_no_correction",
    "You use both means as they are; divide each by 1 - beta ** step, since they began at 0.",
    ("first_corrected = exp_avg / (1 - beta_1**step)", "first_corrected = exp_avg"),
    ("second_corrected = exp_avg_sq / (1 - beta_2**step)", "second_corrected = exp_avg_sq"),
)
add(
    "adamw_first_correction_missing",
    "The mean of the gradients is not corrected; divide it by 1 - beta_1 ** step.",
    ("first_corrected = exp_avg / (1 - beta_1**step)", "first_corrected = exp_avg"),
)
add(
    "adamw_second_correction_missing",
    "The mean of the squares is not corrected; divide it by 1 - beta_2 ** step.",
    ("second_corrected = exp_avg_sq / (1 - beta_2**step)", "second_corrected = exp_avg_sq"),
)
add(
    "adamw_corrected_returned",
    "You return the corrected means; the next step needs them as they are before the correction.",
    (
        NEW,
        "return (\n        shrunk - lr * first_corrected / (second_corrected.sqrt() + eps),\n"
        "        first_corrected,\n        second_corrected,\n    )",
    ),
)
add(
    "adamw_eps_inside_root",
    "Your eps stands under the root; add it to the root.",
    ("(second_corrected.sqrt() + eps)", "(second_corrected + eps).sqrt()"),
)
add(
    "adamw_no_root",
    "You divide by the mean of the squares itself; divide by its root.",
    ("(second_corrected.sqrt() + eps)", "(second_corrected + eps)"),
)
add(
    "adamw_betas_exchanged",
    "Your betas have changed positions: the first belongs to the mean of gradients, the second to "
    "that of their squares.",
    ("beta_1, beta_2 = betas", "beta_2, beta_1 = betas"),
)
add(
    "adamw_transformer_betas",
    "Your betas are those of the Transformer's Adam by default; GPT's are 0.9 and 0.95.",
    ("betas: tuple[float, float] = (0.9, 0.95)", "betas: tuple[float, float] = (0.9, 0.98)"),
)
add(
    "adamw_eps_default",
    "Your eps is larger by default; it is 1e-8.",
    ("eps: float = 1e-8", "eps: float = 1e-6"),
)
add(
    "adamw_gradient_not_squared",
    "The second moment is one of squared gradients; yours takes the gradients as they are.",
    (
        "exp_avg_sq = beta_2 * exp_avg_sq + (1 - beta_2) * gradient**2",
        "exp_avg_sq = beta_2 * exp_avg_sq + (1 - beta_2) * gradient.abs()",
    ),
)
add(
    "adamw_means_add_up",
    "The new gradient enters your means with its full weight; it gets 1 - beta.",
    (MEANS, "exp_avg = beta_1 * exp_avg + gradient"),
    ("+ (1 - beta_2) * gradient**2", "+ gradient**2"),
)
add(
    "adamw_changes_inputs",
    "You change the tensors that were given; return new ones.",
    (MEANS, "exp_avg.mul_(beta_1).add_((1 - beta_1) * gradient)"),
    (
        "exp_avg_sq = beta_2 * exp_avg_sq + (1 - beta_2) * gradient**2",
        "exp_avg_sq.mul_(beta_2).add_((1 - beta_2) * gradient**2)",
    ),
)
add(
    "adamw_step_0_accepted",
    "A step below 1 is not refused; steps count from 1, and at 0 the correction divides by 0.",
    ("if step < 1:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "cosine_lr", "gpt-schedule")
RISE = "return max_lr * step / warmup_steps"
COSINE = "return min_lr + (max_lr - min_lr) * (1 + math.cos(math.pi * fraction)) / 2"
FRACTION = "fraction = (step - warmup_steps) / (total_steps - warmup_steps)"
add(
    "rate_no_warmup",
    "Your learning rate does not rise; the first `warmup_steps` steps lead in a line up to max_lr.",
    ("    if step <= warmup_steps:\n        return max_lr * step / warmup_steps\n", ""),
)
add(
    "rate_whole_period",
    "Your cosine runs through a whole period and rises again; it is half of one, from pi * 0 to "
    "pi * 1.",
    ("math.cos(math.pi * fraction)", "math.cos(2 * math.pi * fraction)"),
)
add(
    "rate_quarter_period",
    "Your learning rate follows a quarter of a period, cos(pi / 2 f); it is (1 + cos(pi f)) / 2.",
    (COSINE, "return min_lr + (max_lr - min_lr) * math.cos(math.pi / 2 * fraction)"),
)
add(
    "rate_linear_decay",
    "After the warm-up your learning rate falls in a line; it follows half a cosine.",
    (COSINE, "return min_lr + (max_lr - min_lr) * (1 - fraction)"),
)
add(
    "rate_fraction_from_0",
    "Your cosine counts from the first step; it begins where the warm-up ends: "
    "(step - warmup_steps) / (total_steps - warmup_steps).",
    (FRACTION, "fraction = step / total_steps"),
)
add(
    "rate_total_after_warmup",
    "Your cosine takes total_steps steps after the warm-up; those of the warm-up are among them.",
    (FRACTION, "fraction = (step - warmup_steps) / total_steps"),
)
add(
    "rate_restarts",
    "Your learning rate rises again after `total_steps`; it stays at min_lr.",
    ("if step >= total_steps:", "if step == total_steps:"),
)
add(
    "rate_counts_from_0",
    "Your steps count from 0; the first step is 1, and its learning rate is max_lr / warmup_steps.",
    (RISE, "return max_lr * (step - 1) / warmup_steps"),
    (FRACTION, "fraction = (step - 1 - warmup_steps) / (total_steps - warmup_steps)"),
)
add(
    "rate_warmup_from_0",
    "Your first step has the learning rate 0; it is max_lr / warmup_steps, since steps count from "
    "1.",
    (RISE, "return max_lr * (step - 1) / warmup_steps"),
)
add(
    "rate_floor_added",
    "You add min_lr to the cosine of the whole max_lr, so that it begins above max_lr; scale "
    "by max_lr - min_lr.",
    (COSINE, "return min_lr + max_lr * (1 + math.cos(math.pi * fraction)) / 2"),
)
add(
    "rate_floor_cut_off",
    "You cut the learning rate off at min_lr; the cosine itself ends there.",
    (COSINE, "return max(min_lr, max_lr * (1 + math.cos(math.pi * fraction)) / 2)"),
)
add(
    "rate_warmup_from_floor",
    "Your warm-up begins at min_lr; it rises from 0, whatever min_lr is.",
    (RISE, "return min_lr + (max_lr - min_lr) * step / warmup_steps"),
)
add(
    "rate_floor_ignored",
    "Your learning rate goes down to 0 whatever min_lr is.",
    ("        return min_lr\n", "        return 0.0\n"),
    (COSINE, "return max_lr * (1 + math.cos(math.pi * fraction)) / 2"),
)
add(
    "rate_not_halved",
    "Your cosine begins at twice max_lr; (1 + cos) goes from 2 to 0, so halve it.",
    (COSINE, "return min_lr + (max_lr - min_lr) * (1 + math.cos(math.pi * fraction))"),
)
add(
    "rate_sine_up",
    "Your learning rate rises after the warm-up: 1 - cos instead of 1 + cos.",
    (COSINE, "return min_lr + (max_lr - min_lr) * (1 - math.cos(math.pi * fraction)) / 2"),
)
add(
    "rate_step_accepted",
    "A step below 1 is not refused; raise a ValueError.",
    ("if step < 1:", "if False:"),
)
add(
    "rate_warmup_accepted",
    "A warm-up that is negative, or as long as the whole, is not refused; raise a ValueError.",
    ("if not 0 <= warmup_steps < total_steps:", "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "train", "gpt-training")
ZERO = "        optimiser.zero_grad()\n"
CLIP = "nn.utils.clip_grad_norm_(model.parameters(), clip)"
RATE = 'group["lr"] = cosine_lr(step, max_lr, warmup_steps, total_steps)'
GROUPS = "groups = decay_groups(model, weight_decay)"
OPTIMISER = "optimiser = torch.optim.AdamW(groups, lr=max_lr, betas=(0.9, 0.95), eps=1e-8)"
LOSS = "F.cross_entropy(logits.flatten(0, 1), targets.flatten())"
add(
    "train_gradients_accumulate",
    "Your gradients add up from step to step; clear them before each backward pass.",
    (ZERO, ""),
)
add(
    "train_no_clipping",
    "Your gradients are not clipped; scale them to the norm `clip` where they are longer.",
    (CLIP, "pass"),
)
add(
    "train_clips_values",
    "You clip every number of the gradients by itself, which changes their direction; scale all of "
    "them by the same factor.",
    (CLIP, "nn.utils.clip_grad_value_(model.parameters(), clip)"),
)
add(
    "train_clips_each",
    "You clip each parameter's gradient by itself; it is the norm of all of them together that is "
    "bounded.",
    (CLIP, "[nn.utils.clip_grad_norm_([p], clip) for p in model.parameters()]"),
)
add(
    "train_always_scaled",
    "You scale short gradients up to `clip`; only longer ones are scaled.",
    (
        CLIP,
        "norm = nn.utils.clip_grad_norm_(model.parameters(), math.inf)\n"
        "        for p in model.parameters():\n            p.grad *= clip / norm",
    ),
)
add(
    "train_constant_rate",
    "Your learning rate is max_lr at every step; set that of cosine_lr before each.",
    (RATE, 'group["lr"] = max_lr'),
)
add(
    "train_rate_from_0",
    "Your steps count from 0 where cosine_lr is asked; they count from 1.",
    (RATE, 'group["lr"] = cosine_lr(max(step - 1, 1), max_lr, warmup_steps, total_steps)'),
)
add(
    "train_unfreezes",
    "You make all parameters require gradients; what is frozen stays so.",
    (
        "    return losses",
        "    for parameter in model.parameters():\n"
        "        parameter.requires_grad_(True)\n"
        "    return losses",
    ),
)
add(
    "train_no_warmup",
    "Your training does not warm up; pass warmup_steps on to cosine_lr.",
    (RATE, 'group["lr"] = cosine_lr(step, max_lr, 0, total_steps)'),
)
add(
    "train_rate_of_one_group",
    "You set the learning rate of the first group only; biases and norms keep max_lr.",
    ("for group in optimiser.param_groups:", "for group in optimiser.param_groups[:1]:"),
)
add(
    "train_all_decay",
    "Biases and norms decay too; give the groups of decay_groups to the optimiser.",
    (GROUPS, 'groups = [{"params": model.parameters(), "weight_decay": weight_decay}]'),
)
add(
    "train_no_decay",
    "Your training does not use weight_decay.",
    (GROUPS, "groups = decay_groups(model, 0.0)"),
)
add(
    "train_adam",
    "Your optimiser is Adam, whose decay goes through the gradient; use AdamW.",
    ("torch.optim.AdamW(groups", "torch.optim.Adam(groups"),
)
add(
    "train_sgd",
    "Your optimiser is plain gradient descent; use AdamW.",
    (OPTIMISER, "optimiser = torch.optim.SGD(groups, lr=max_lr)"),
)
add(
    "train_default_betas",
    "Your betas are AdamW's own; GPT's are 0.9 and 0.95.",
    ("betas=(0.9, 0.95), ", ""),
)
add(
    "train_new_optimiser",
    "You make a new optimiser in every step, which forgets the running means; make one before the "
    "loop.",
    (
        "        inputs, targets =",
        "        " + OPTIMISER + "\n        for group in "
        "optimiser.param_groups:\n            " + RATE + "\n        inputs, targets =",
    ),
)
add(
    "train_summed_loss",
    "Your loss is the sum over the batch; it is the mean.",
    (LOSS, 'F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")'),
)
add(
    "train_targets_are_inputs",
    "Your model learns to repeat its input; compare its logits with the targets.",
    (LOSS, "F.cross_entropy(logits.flatten(0, 1), inputs.flatten())"),
)
add(
    "train_shifted_twice",
    "Your loss shifts the targets once more; those of sample_blocks stand one token further "
    "already.",
    (
        LOSS,
        "F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten()) "
        "if length > 1 else " + LOSS,
    ),
)
add(
    "train_last_place_only",
    "Your loss uses the last position of each sequence only; every position is trained.",
    (LOSS, "F.cross_entropy(logits[:, -1], targets[:, -1])"),
)
add(
    "train_eval_mode",
    "Your model is trained in evaluation mode, without dropout; call model.train().",
    ("    model.train()\n", "    model.eval()\n"),
)
add(
    "train_mode_as_it_came",
    "Your model is trained in whichever mode it came; call model.train().",
    ("    model.train()\n", ""),
)
add(
    "train_one_batch",
    "You draw one batch and train on it in every step; draw a new one each time.",
    (
        "    losses = []\n",
        "    losses = []\n    inputs, targets = sample_blocks(stream, length, batch_size)\n",
    ),
    ("        inputs, targets = sample_blocks(stream, length, batch_size)  # (B, T) each\n", ""),
)
add(
    "train_first_block",
    "You train on the beginning of the stream alone; draw blocks by sample_blocks.",
    (
        "inputs, targets = sample_blocks(stream, length, batch_size)",
        "inputs, targets = sample_blocks(stream[: 5 * length + 1], length, batch_size)",
    ),
)
add(
    "train_loss_after_step",
    "You return the losses after each update; they are those before it.",
    (
        "losses.append(loss.item())",
        "with torch.no_grad():\n"
        "            after = model(inputs)\n"
        "        losses.append(F.cross_entropy(after.flatten(0, 1), targets.flatten()).item())",
    ),
)
add(
    "train_losses_as_tensors",
    "Your losses are tensors, each of which keeps its whole graph alive; .item() makes floats.",
    ("losses.append(loss.item())", "losses.append(loss)"),
)
add(
    "train_mean_loss_only",
    "You return one number; the result is a list with the loss of each step.",
    ("return losses", "return sum(losses) / len(losses)"),
)
