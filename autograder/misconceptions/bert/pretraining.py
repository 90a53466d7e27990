"""Known mistakes of `bert-pretraining`: masking, pairs, heads, losses.

A mask drawn once for all epochs, labels of 0 where nothing counts, a loss that ignores one of the
two NSP classes.
"""

from __future__ import annotations

from autograder.units.variants import Misconception, mistakes_in

MISCONCEPTIONS: list[Misconception] = []

# --------------------------------------------------------------------------------------------
# Masking
# --------------------------------------------------------------------------------------------

# What both ways to mask have in common; each cell has these lines once.
LABELS = "labels = ids.masked_fill(~chosen, IGNORE)  # (B, T)"
FATE = "fate = torch.rand(ids.shape, device=ids.device)  # (B, T)"
OTHERS = "others = torch.randint_like(ids, SPECIAL, vocab_size)  # (B, T)"
HIDDEN = "corrupted = ids.masked_fill(chosen & (fate < 0.8), MASK)  # (B, T)"
REPLACED = "corrupted = torch.where(chosen & (fate >= 0.9), others, corrupted)  # (B, T)"
RESULT = "    return corrupted, labels\n"
RATE_CHECKED = "if not 0 <= mask_prob <= 1:"
VOCABULARY_CHECKED = "if vocab_size <= SPECIAL:"

add = mistakes_in(MISCONCEPTIONS, "mask_tokens", "brt-masking")
CHOSEN = (
    "chosen = (ids >= SPECIAL) & (torch.rand(ids.shape, device=ids.device) < mask_prob)  # (B, T)"
)
add(
    "mask_always",
    "Every chosen token becomes MASK; 10 percent should become a random token and 10 percent stay, "
    "since fine-tuning never shows a MASK.",
    (HIDDEN, "corrupted = ids.masked_fill(chosen, MASK)"),
    (REPLACED, ""),
    read="brt-mismatch",
)
add(
    "mask_never_kept",
    "No chosen token stays as it is; of the 20 percent that do not become MASK one half stays.",
    ("fate >= 0.9", "fate >= 0.8"),
)
add(
    "mask_never_random",
    "No chosen token becomes a random one; of the 20 percent that do not become MASK one half "
    "does.",
    (REPLACED, ""),
)
add(
    "mask_rest_drawn_twice",
    "You draw again for the tokens that do not become MASK and replace 10 percent of those, which "
    "is 2 percent of the chosen; it should be 10, half of the rest.",
    ("chosen & (fate >= 0.9)", "chosen & (fate >= 0.8) & (torch.rand(ids.shape) < 0.1)"),
)
add(
    "mask_chosen_without_kept",
    "A chosen token that stays as it is has no label in your result; it is to be predicted like "
    "the others, so keep its original id in labels.",
    (RESULT, "    return corrupted, ids.masked_fill(corrupted == ids, IGNORE)\n"),
)
add(
    "mask_all_tokens",
    "You corrupt tokens that were not chosen: the 80, 10 and 10 percent are shares of the chosen "
    "tokens, not of all.",
    (HIDDEN, "corrupted = ids.masked_fill((ids >= SPECIAL) & (fate < 0.8), MASK)"),
    ("chosen & (fate >= 0.9)", "(ids >= SPECIAL) & (fate >= 0.9)"),
)
add(
    "mask_one_draw_per_row",
    "One draw decides for a whole row, so that all of its tokens are chosen or none; draw a number "
    "for each token.",
    ("torch.rand(ids.shape, device=ids.device) < mask_prob", "torch.rand(len(ids), 1) < mask_prob"),
)
add(
    "mask_one_fate_per_row",
    "One draw decides what becomes of all the chosen tokens of a row; draw a number for each "
    "token.",
    (FATE, "fate = torch.rand(len(ids), 1)"),
)
add(
    "mask_fixed_number",
    "You choose the same number of tokens in every row; each token is to be chosen on its own, so "
    "that the number is left to chance.",
    (
        CHOSEN,
        "lots = torch.rand(ids.shape).masked_fill(ids < SPECIAL, 2.0)\n"
        "    count = ((ids >= SPECIAL).sum(1, keepdim=True) * mask_prob).round()\n"
        "    chosen = lots.argsort(1).argsort(1) < count",
    ),
)
add(
    "mask_rows_alike",
    "All rows of your batch share their draws, so that the same positions are chosen in each; draw "
    "a number for each token of each row.",
    (
        "torch.rand(ids.shape, device=ids.device) < mask_prob",
        "torch.rand(ids.shape[1]) < mask_prob",
    ),
)
add(
    "mask_never_none",
    "Where chance chooses no token, you choose one all the same; each token is chosen on its own, "
    "so that now and then none is.",
    (
        LABELS,
        "ordinary = (ids >= SPECIAL).nonzero()\n"
        "    if mask_prob > 0 and len(ordinary) and not chosen.any():\n"
        "        row, column = ordinary[torch.randint(len(ordinary), ())]\n"
        "        chosen[row, column] = True\n"
        "    " + LABELS,
    ),
)
add(
    "mask_specials_chosen",
    "Special tokens such as CLS, SEP or padding are chosen too; only ids of SPECIAL and above may "
    "be.",
    (CHOSEN, "chosen = torch.rand(ids.shape) < mask_prob"),
)
add(
    "mask_labels_everywhere",
    "Your labels hold every token, chosen or not; put IGNORE wherever nothing was chosen, or the "
    "model is trained to copy what it sees.",
    (LABELS, "labels = ids.clone()"),
)
add(
    "mask_labels_zero",
    "Your labels hold 0 where nothing was chosen; that is the id of PAD, which the loss would "
    "count. Put IGNORE there.",
    (LABELS, "labels = ids.masked_fill(~chosen, 0)"),
)
add(
    "mask_labels_corrupted",
    "Your labels hold the tokens after corruption, MASK among them; they should hold the original "
    "ones.",
    (RESULT, "    return corrupted, corrupted.masked_fill(~chosen, IGNORE)\n"),
)
add(
    "mask_random_special",
    "Your random tokens are drawn from all ids, special ones among them; draw from SPECIAL to "
    "vocab_size - 1.",
    (OTHERS, "others = torch.randint_like(ids, 0, vocab_size)"),
)
add(
    "mask_last_id_missing",
    "The last id of the vocabulary is never drawn at random: the upper bound of torch.randint is "
    "not drawn itself, so give it vocab_size.",
    (OTHERS, "others = torch.randint_like(ids, SPECIAL, vocab_size - 1)"),
)
add(
    "mask_one_random_id",
    "All tokens that are replaced at random get the same id; draw one for each.",
    (OTHERS, "others = torch.randint(SPECIAL, vocab_size, (1,))"),
)
add(
    "mask_in_place",
    "You write into the ids that you were given; the caller still needs them, so work on a copy.",
    (LABELS, LABELS + "\n    ids[chosen] = ids[chosen]"),
    (HIDDEN, "corrupted = ids.masked_fill_(chosen & (fate < 0.8), MASK)"),
)
add(
    "mask_rate_unchecked",
    "A mask_prob below 0 or above 1 is not refused; raise a ValueError.",
    (RATE_CHECKED, "if False:"),
)
add(
    "mask_vocabulary_unchecked",
    "A vocabulary without ordinary ids is not refused; raise a ValueError if vocab_size is SPECIAL "
    "or less.",
    (VOCABULARY_CHECKED, "if False:"),
    (OTHERS, "others = torch.randint_like(ids, SPECIAL, max(vocab_size, SPECIAL + 1))"),
)

add = mistakes_in(MISCONCEPTIONS, "mask_whole_words", "brt-whole-words")
DRAWN = "chosen = drawn[word] & ordinary  # (B, T)"
BEGINS = "begins = ordinary & (starts | alone)  # (B, T)"
add(
    "words_by_pieces",
    "Pieces of one word are chosen apart from one another, as in mask_tokens; draw once for a word "
    "and choose all its pieces or none.",
    (DRAWN, "chosen = (torch.rand(ids.shape) < mask_prob) & ordinary"),
)
add(
    "words_first_piece_only",
    "Only the first piece of a chosen word is chosen; its later pieces, where starts is False, "
    "belong to it.",
    (DRAWN, "chosen = drawn[word] & begins"),
)
add(
    "words_one_fate",
    "One draw decides what becomes of all the pieces of a word; the 80, 10 and 10 percent are "
    "drawn for each piece.",
    (FATE, "fate = torch.rand(words + 1)[word]"),
)
add(
    "words_across_rows",
    "A word goes on at the beginning of the next row, or after a special token; both end a word.",
    (BEGINS, "begins = ordinary & starts"),
)
add(
    "words_across_specials",
    "A word goes on after a special token; that ends a word, and what follows is another.",
    ("alone[:, 1:] &= ~ordinary[:, :-1]", "alone[:, 1:] = False"),
)
add(
    "words_across_unknown",
    "A word goes on after UNK; that is a special token, which ends a word, and what follows is "
    "another.",
    (
        "alone[:, 1:] &= ~ordinary[:, :-1]",
        "alone[:, 1:] &= ~(ordinary[:, :-1] | (ids[:, :-1] == 1))",
    ),
)
add(
    "words_rows_alike",
    "The words of all rows share their draws, the first with the first and so on; number the words "
    "through the whole batch, or draw for each row.",
    (
        "word = begins.flatten().cumsum(0).reshape(ids.shape)  # (B, T)",
        "word = begins.cumsum(1)",
    ),
    ("words = int(begins.sum())", "words = ids.shape[1]"),
)
add(
    "words_one_random_id",
    "All pieces of a word that are replaced at random get the same id; draw one for each piece.",
    (OTHERS, "others = torch.randint(SPECIAL, vocab_size, (words + 1,))[word]"),
)
add(
    "words_one_draw_per_row",
    "One draw decides for all words of a row; draw once for each word.",
    (DRAWN, "chosen = (torch.rand(len(ids), 1) < mask_prob) & ordinary"),
)
add(
    "words_fixed_number",
    "You choose a fixed number of words in a batch; each word is to be chosen on its own.",
    (
        "drawn = torch.rand(words + 1, device=ids.device) < mask_prob",
        "drawn = torch.cat([torch.tensor([False]), torch.randperm(words) < round(mask_prob * "
        "words)])",
    ),
)
add(
    "words_always",
    "Every piece of a chosen word becomes MASK; 10 percent should become a random token and 10 "
    "percent stay.",
    (HIDDEN, "corrupted = ids.masked_fill(chosen, MASK)"),
    (REPLACED, ""),
    read="brt-masking",
)
add(
    "words_never_kept",
    "No piece of a chosen word stays as it is; of the 20 percent that do not become MASK one half "
    "stays.",
    ("fate >= 0.9", "fate >= 0.8"),
    read="brt-masking",
)
add(
    "words_never_random",
    "No piece of a chosen word becomes a random token; of the 20 percent that do not become MASK "
    "one half does.",
    (REPLACED, ""),
    read="brt-masking",
)
add(
    "words_specials_chosen",
    "Special tokens are chosen too, such as one after a chosen word; they belong to no word.",
    (DRAWN, "chosen = drawn[word]"),
)
add(
    "words_all_tokens",
    "You corrupt pieces that are not chosen by your labels; each piece of a chosen word has its "
    "original id there, and no other piece changes.",
    (LABELS, "labels = ids.masked_fill(~(chosen & begins), IGNORE)"),
)
add(
    "words_labels_everywhere",
    "Your labels hold every token, chosen or not; put IGNORE wherever no word was chosen.",
    (LABELS, "labels = ids.clone()"),
    read="brt-masking",
)
add(
    "words_labels_zero",
    "Your labels hold 0 where no word was chosen; that is the id of PAD. Put IGNORE there.",
    (LABELS, "labels = ids.masked_fill(~chosen, 0)"),
    read="brt-masking",
)
add(
    "words_labels_corrupted",
    "Your labels hold the tokens after corruption; they should hold the original ones.",
    (RESULT, "    return corrupted, corrupted.masked_fill(~chosen, IGNORE)\n"),
    read="brt-masking",
)
add(
    "words_random_special",
    "Your random tokens are drawn from all ids, special ones among them; draw from SPECIAL to "
    "vocab_size - 1.",
    (OTHERS, "others = torch.randint_like(ids, 0, vocab_size)"),
    read="brt-masking",
)
add(
    "words_last_id_missing",
    "The last id of the vocabulary is never drawn at random: the upper bound of torch.randint is "
    "not drawn itself.",
    (OTHERS, "others = torch.randint_like(ids, SPECIAL, vocab_size - 1)"),
    read="brt-masking",
)
add(
    "words_in_place",
    "You write into the ids that you were given; the caller still needs them, so work on a copy.",
    (HIDDEN, "corrupted = ids.masked_fill_(chosen & (fate < 0.8), MASK)"),
)
add(
    "words_unchecked",
    "A mask_prob outside 0 to 1, or a vocabulary of special ids alone, is not refused; raise a "
    "ValueError.",
    (RATE_CHECKED, "if False:"),
    (VOCABULARY_CHECKED, "if False:"),
    (OTHERS, "others = torch.randint_like(ids, SPECIAL, max(vocab_size, SPECIAL + 1))"),
)

add = mistakes_in(MISCONCEPTIONS, "masking_epochs", "brt-roberta")
ANEW = "return [mask_tokens(ids, vocab_size, mask_prob) for _ in range(epochs)]"
STORE = "store = [mask_tokens(ids, vocab_size, mask_prob) for _ in range(duplicates)]"
IN_TURN = "store[epoch % duplicates]"
add(
    "epochs_drawn_once",
    "Without duplicates all your epochs share one masking; draw it anew for each.",
    (ANEW, "return [mask_tokens(ids, vocab_size, mask_prob)] * epochs"),
)
add(
    "epochs_always_anew",
    "With duplicates=k every epoch is masked anew; draw k maskings once and use them in turn.",
    (IN_TURN, "mask_tokens(ids, vocab_size, mask_prob)"),
)
add(
    "epochs_in_blocks",
    "You use each masking for a run of epochs before the next one comes; epoch e takes number "
    "e mod k.",
    (IN_TURN, "store[epoch * duplicates // epochs]"),
)
add(
    "epochs_store_exhausted",
    "After k epochs you stay with the last masking; begin again with the first: epoch e takes "
    "number e mod k.",
    (IN_TURN, "store[min(epoch, duplicates - 1)]"),
)
add(
    "epochs_drawn_from_store",
    "You draw one of the k maskings for each epoch; they are used in turn, epoch e takes number "
    "e mod k.",
    (IN_TURN, "random.choice(store)"),
)
add(
    "epochs_store_too_small",
    "You keep one masking too few, so that they come round too early; there are k of them.",
    (IN_TURN, "store[epoch % max(duplicates - 1, 1)]"),
)
add(
    "epochs_times_duplicates",
    "Your list has epochs times duplicates entries; it has one for each epoch.",
    (
        "return [store[epoch % duplicates] for epoch in range(epochs)]",
        "return store * epochs",
    ),
)
add(
    "epochs_masked_again",
    "An epoch masks what the one before has already corrupted; begin from the original ids each "
    "time.",
    (
        ANEW,
        "found = []\n        for _ in range(epochs):\n"
        "            found.append(mask_tokens(found[-1][0] if found else ids, vocab_size, "
        "mask_prob))\n        return found",
    ),
)
add(
    "epochs_labels_apart",
    "corrupted and labels of an epoch come from two maskings; take both from one call of "
    "mask_tokens.",
    (
        ANEW,
        "return [(mask_tokens(ids, vocab_size, mask_prob)[0], mask_tokens(ids, vocab_size, "
        "mask_prob)[1]) for _ in range(epochs)]",
    ),
)
add(
    "epochs_rate_forgotten",
    "mask_prob is not passed on to mask_tokens, which then takes its own default.",
    (ANEW, "return [mask_tokens(ids, vocab_size) for _ in range(epochs)]"),
    (STORE, "store = [mask_tokens(ids, vocab_size) for _ in range(duplicates)]"),
)
add(
    "epochs_unchecked",
    "Fewer than one epoch, or than one duplicate, is not refused; raise a ValueError.",
    ("if epochs < 1:", "if False:"),
    ("if duplicates < 1:", "if duplicates < 1:\n        duplicates = 1\n    if False:"),
)

# --------------------------------------------------------------------------------------------
# Pairs
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "next_sentence_pairs", "brt-pairs")
ELSEWHERE = "[s for n, other in enumerate(documents) if n != number for s in other]"
COIN = "if random.random() < 0.5:"
TRUE_PAIR = "pairs.append((first, second, 0))"
RANDOM_PAIR = "pairs.append((first, random.choice(others), 1))"
add(
    "pairs_same_document",
    "Your random sentences are drawn from all documents, the sentence's own among them; a random "
    "one may then be the true next one. Leave its own document out.",
    (ELSEWHERE, "[s for other in documents for s in other]"),
)
add(
    "pairs_labels_swapped",
    "Your label is 1 for a true next sentence; in BERT 0 means is next and 1 means random.",
    (TRUE_PAIR, "pairs.append((first, second, 1))"),
    (RANDOM_PAIR, "pairs.append((first, random.choice(others), 0))"),
    read="brt-nsp",
)
add(
    "pairs_document_first",
    "You draw a document and then one of its sentences, which favours those of short documents; "
    "draw evenly from all sentences of the other documents.",
    (
        ELSEWHERE,
        "[other for n, other in enumerate(documents) if n != number and other]",
    ),
    ("random.choice(others)", "random.choice(random.choice(others))"),
)
add(
    "pairs_from_next_document",
    "Your random sentences come from one other document only; draw from all the others.",
    (
        ELSEWHERE,
        "next(\n            other\n"
        "            for other in [*documents[number + 1 :], *documents[:number]]\n"
        "            if other\n        )",
    ),
)
add(
    "pairs_first_sentence_only",
    "Your random sentences are the first ones of other documents; draw from all their sentences.",
    (ELSEWHERE, "[o[0] for n, o in enumerate(documents) if n != number and o]"),
)
add(
    "pairs_always_next",
    "All your pairs are true ones; half of them should have a random second sentence.",
    (COIN, "if True:"),
)
add(
    "pairs_never_next",
    "All your second sentences are random; half of them should be the true next ones.",
    (COIN, "if False:"),
)
add(
    "pairs_alternate",
    "True and random pairs take turns; toss a coin for each pair.",
    (COIN, "if len(pairs) % 2 == 0:"),
)
add(
    "pairs_fixed_number",
    "A fixed number of your pairs is random; toss a coin for each pair, so that the number is left "
    "to chance.",
    (
        "pairs = []",
        "pairs, count = [], sum(max(len(document) - 1, 0) for document in documents)\n"
        "    coins = random.sample(range(count), count)",
    ),
    (COIN, "if coins[len(pairs)] < count // 2:"),
)
add(
    "pairs_equal_once",
    "Sentences that are equal count once when you draw; draw evenly from all sentences, so that "
    "one that stands twice is drawn twice as often.",
    (ELSEWHERE, f"[list(s) for s in {{tuple(s) for s in {ELSEWHERE}}}]"),
)
add(
    "pairs_coin_per_document",
    "One coin decides for all pairs of a document; toss one for each pair.",
    (f"others = {ELSEWHERE}", f"others, coin = {ELSEWHERE}, random.random()"),
    (COIN, "if coin < 0.5:"),
)
add(
    "pairs_across_documents",
    "The last sentence of a document is paired with the first one of the next; a sentence without "
    "a next one in its own document makes no pair.",
    (
        "for first, second in itertools.pairwise(document):",
        "rest = [s for other in documents[number + 1 :] for s in other][:1]\n"
        "        for first, second in itertools.pairwise([*document, *rest] if document else []):",
    ),
)
add(
    "pairs_random_first",
    "In your random pairs the first sentence is the random one; the first stays, and the second is "
    "drawn.",
    (RANDOM_PAIR, "pairs.append((random.choice(others), second, 1))"),
)
add(
    "pairs_unchecked",
    "Fewer than two documents with sentences are not refused; there is then nothing to draw a "
    "random sentence from, so raise a ValueError.",
    ("if sum(bool(document) for document in documents) < 2:", "if False:"),
    ("random.choice(others)", "random.choice(others or [[]])"),
)

# --------------------------------------------------------------------------------------------
# Heads
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "MaskedLanguageHead", "brt-heads")
TRANSFORMED = "self.norm(gelu(self.dense(hidden)))"
SCORED = "transformed @ self.token.weight.T + self.bias"
TIED = "self.token = token"
add(
    "head_untied",
    "Your head works on a copy of the embedding, which goes its own way in training; keep the very "
    "nn.Embedding that you are given.",
    (
        TIED,
        "self.token = nn.Embedding.from_pretrained(token.weight.detach().clone(), freeze=False)",
    ),
)
add(
    "head_weight_alone",
    "Your head has an nn.Embedding of its own, though with the weight of the given one; keep the "
    "very object that you are given.",
    (
        TIED,
        "self.token = nn.Embedding(vocab_size, hidden)\n        self.token.weight = token.weight",
    ),
)
add(
    "head_table_detached",
    "No gradient of the logits reaches the embedding; use its weight without detach or .data.",
    (SCORED, "transformed @ self.token.weight.detach().T + self.bias"),
)
add(
    "head_without_bias",
    "You do not add the bias; every token of the vocabulary has one of its own.",
    (SCORED, "transformed @ self.token.weight.T + 0 * self.bias.sum()"),
)
add(
    "head_without_activation",
    "There is no gelu between dense and norm.",
    (TRANSFORMED, "self.norm(self.dense(hidden))"),
)
add(
    "head_relu",
    "You use relu; the head's activation is gelu, as in the encoder.",
    (TRANSFORMED, "self.norm(torch.relu(self.dense(hidden)))"),
)
add(
    "head_gelu_by_tanh",
    "You use the approximation of gelu by tanh; use the exact gelu.",
    (TRANSFORMED, 'self.norm(F.gelu(self.dense(hidden), approximate="tanh"))'),
)
add(
    "head_without_norm",
    "You leave out the norm after gelu.",
    (TRANSFORMED, "gelu(self.dense(hidden)) + 0 * self.norm(hidden)"),
)
add(
    "head_norm_before_gelu",
    "You normalise before gelu; the order is dense, gelu, norm.",
    (TRANSFORMED, "gelu(self.norm(self.dense(hidden)))"),
)
add(
    "head_without_dense",
    "You leave out the layer dense; it comes first, before gelu and norm.",
    (TRANSFORMED, "self.norm(gelu(hidden)) + 0 * self.dense(hidden)"),
)
add(
    "head_eps",
    "Your norm keeps PyTorch's eps of 1e-5; BERT's is 1e-12.",
    ("nn.LayerNorm(hidden, eps=1e-12)", "nn.LayerNorm(hidden)"),
)
add(
    "head_decoder_layer",
    "Your head has a linear layer of its own to the vocabulary; its parameters are dense, norm, "
    "bias and the embedding token that it is given.",
    (TIED, "self.decoder = nn.Linear(hidden, vocab_size)"),
    (SCORED, "self.decoder(transformed)"),
)

add = mistakes_in(MISCONCEPTIONS, "BertForPreTraining", "brt-loss")
HEAD = "self.mlm = MaskedLanguageHead(self.bert.embeddings.token)"
ENCODED = "hidden, pooled = self.bert(input_ids, token_type_ids, mask)"
BOTH = "return self.mlm(hidden), self.nsp(pooled)"
add(
    "pretraining_untied",
    "The head has an embedding of its own, with as many numbers again; give it the model's own "
    "bert.embeddings.token.",
    (HEAD, "self.mlm = MaskedLanguageHead(nn.Embedding(vocab_size, d_model))"),
)
add(
    "pretraining_nsp_not_pooled",
    "You score the pair from the first token's vector as it is; nsp works on pooled, which has "
    "been through the pooler and tanh.",
    (BOTH, "return self.mlm(hidden), self.nsp(hidden[:, 0])"),
)
add(
    "pretraining_nsp_on_mean",
    "You score the pair from the mean over all positions; nsp takes pooled, from the first token.",
    (BOTH, "return self.mlm(hidden), self.nsp(hidden.mean(dim=1))"),
)
add(
    "pretraining_segments_lost",
    "The segments never reach the encoder; pass token_type_ids on.",
    (ENCODED, "hidden, pooled = self.bert(input_ids, None, mask)"),
)
add(
    "pretraining_segments_guessed",
    "Where token_type_ids is None you begin segment 1 after SEP; None means segment 0 everywhere.",
    (
        ENCODED,
        "if token_type_ids is None:\n"
        "            token_type_ids = (input_ids == 3).cumsum(1).clamp(max=1)\n"
        "        " + ENCODED,
    ),
)
add(
    "pretraining_mask_lost",
    "The mask never reaches the encoder, so that padding is attended to; pass it on.",
    (ENCODED, "hidden, pooled = self.bert(input_ids, token_type_ids)"),
)
add(
    "pretraining_scores_exchanged",
    "You return the logits of the pair first; the logits of the tokens come first.",
    (BOTH, "return self.nsp(pooled), self.mlm(hidden)"),
)
add(
    "pretraining_softmaxed",
    "You return log-probabilities; return the logits as they are, the loss normalises them.",
    (
        BOTH,
        "return self.mlm(hidden).log_softmax(-1), self.nsp(pooled).log_softmax(-1)",
    ),
    read="brt-loss",
)
add(
    "pretraining_one_nsp_score",
    "Your nsp gives one logit; it gives two, one for each answer.",
    ("self.nsp = nn.Linear(d_model, 2)", "self.nsp = nn.Linear(d_model, 1)"),
    read="brt-nsp",
)
add(
    "pretraining_segments_fixed",
    "type_vocab_size is not passed on to BertModel, nor is dropout.",
    ("max_length, type_vocab_size, dropout", "max_length"),
)
add(
    "pretraining_dropout_lost",
    "dropout is not passed on to BertModel, which then takes its own default or none.",
    ("max_length, type_vocab_size, dropout", "max_length, type_vocab_size, 0.0"),
)

# --------------------------------------------------------------------------------------------
# Pre-training
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "pretraining_loss", "brt-loss")
IGNORED = "ignore_index=IGNORE,"
COUNTED = "mlm = total / (labels != IGNORE).sum().clamp(min=1)"
SUMMED = "return mlm + F.cross_entropy(nsp_logits, is_random)"
add(
    "loss_nsp_ignores_zero",
    "Your loss of the pairs leaves out class 0, so true pairs teach nothing: ignore_index=0 is "
    "meant for padding. Give the pairs a loss of their own.",
    (SUMMED, "return mlm + F.cross_entropy(nsp_logits, is_random, ignore_index=0)"),
    read="brt-codertimo",
)
add(
    "loss_nsp_adds_no_zero",
    "Pairs of class 0 add nothing to your loss of the pairs; class 0 counts like class 1.",
    (
        SUMMED,
        "return mlm + F.cross_entropy(nsp_logits, is_random, ignore_index=0, reduction='sum') / "
        "len(is_random)",
    ),
    read="brt-nsp",
)
add(
    "loss_mlm_ignores_zero",
    "Labels of 0 are left out; what is left out is IGNORE, and 0 is a token like others here.",
    (
        IGNORED,
        "ignore_index=IGNORE,\n"
        "        weight=torch.arange(mlm_logits.shape[-1]).clamp(max=1).to(mlm_logits),",
    ),
    ("(labels != IGNORE)", "(labels > 0)"),
    read="brt-codertimo",
)
add(
    "loss_over_all_places",
    "You divide by all positions; the mean goes over the positions with a label only.",
    (COUNTED, "mlm = total / labels.numel()"),
)
add(
    "loss_nan_without_labels",
    "Without any label your loss is 0 / 0, which is NaN; that part must then be 0.",
    (COUNTED, "mlm = total / (labels != IGNORE).sum()"),
)
add(
    "loss_skips_without_labels",
    "Without any label you return 0 altogether; the pairs still count.",
    (SUMMED, "return (mlm + F.cross_entropy(nsp_logits, is_random)) * bool((labels >= 0).any())"),
)
add(
    "loss_mlm_summed",
    "You add up the losses of the masked positions; take their mean.",
    (COUNTED, "mlm = total"),
)
add(
    "loss_nsp_summed",
    "You add up the losses of the pairs; take their mean over the batch.",
    (SUMMED, 'return mlm + F.cross_entropy(nsp_logits, is_random, reduction="sum")'),
)
add(
    "loss_by_rows",
    "You take the mean of each sequence and then of the sequences, so that a masked position "
    "counts less where there are many; every position counts the same.",
    (
        COUNTED,
        "each = F.cross_entropy(mlm_logits.mT, labels, ignore_index=IGNORE, reduction='none')\n"
        "    mlm = (each.sum(1) / (labels != IGNORE).sum(1).clamp(min=1)).mean()",
    ),
)
add(
    "loss_halved",
    "You take the mean of the two losses; BERT's is their sum.",
    (SUMMED, "return (mlm + F.cross_entropy(nsp_logits, is_random)) / 2"),
)
add(
    "loss_one_mean",
    "You take one mean over masked positions and pairs together; take the mean of each, and add "
    "them.",
    (
        SUMMED,
        "count = (labels != IGNORE).sum()\n"
        "    nsp = F.cross_entropy(nsp_logits, is_random, reduction='sum')\n"
        "    return (total + nsp) / (count + len(is_random))",
    ),
)
add(
    "loss_without_pairs",
    "The loss of the pairs is missing from your sum.",
    (SUMMED, "return mlm + 0 * nsp_logits.sum()"),
    read="brt-nsp",
)
add(
    "loss_classes_exchanged",
    "You exchange the classes of the pairs: is_random is the class itself, 0 for a true next one.",
    (SUMMED, "return mlm + F.cross_entropy(nsp_logits, 1 - is_random)"),
    read="brt-nsp",
)
add(
    "loss_softmax_twice",
    "You apply softmax before F.cross_entropy, which does it itself; give it the logits.",
    ("mlm_logits.flatten(0, 1),", "mlm_logits.flatten(0, 1).softmax(-1),"),
)

add = mistakes_in(MISCONCEPTIONS, "pretraining_step", "brt-loss")
GRADIENTS = "gradients = torch.autograd.grad(loss, parameters, allow_unused=True)"
NORM = "norm = math.sqrt(sum(g.double().square().sum().item() for _, g in pairs))"
SCALE = "scale = clip / norm if norm > clip else 1.0"
DESCENT = "parameter -= lr * scale * gradient"
PARAMETERS = "parameters = [p for p in model.parameters() if p.requires_grad]"
FORWARD = "mlm_logits, nsp_logits = model(input_ids, token_type_ids, mask)"
add(
    "step_gradients_accumulate",
    "Gradients of earlier batches are still in .grad when you go backward, and add up; clear them "
    "before each step.",
    (GRADIENTS, "loss.backward()\n    gradients = [p.grad for p in parameters]"),
)
add(
    "step_not_clipped",
    "The gradient is not clipped; where its norm exceeds clip, scale it by clip / norm.",
    (SCALE, "scale = 1.0"),
)
add(
    "step_clipped_by_parameter",
    "You clip each parameter's gradient by its own norm, which changes the direction; there is one "
    "norm, over all parameters together.",
    (
        DESCENT,
        "parameter -= lr * gradient * min(1.0, clip / max(float(gradient.norm()), 1e-30))",
    ),
)
add(
    "step_clipped_by_value",
    "You clamp every number of the gradient to clip; scale all of it by clip / norm instead.",
    (DESCENT, "parameter -= lr * gradient.clamp(-clip, clip)"),
)
add(
    "step_lr_in_norm",
    "You compare clip with lr times the norm; clip bounds the norm of the gradient itself, before "
    "lr comes in.",
    (SCALE, "scale = clip / (lr * norm) if lr * norm > clip else 1.0"),
)
add(
    "step_always_scaled",
    "You scale the gradient to the norm clip even where it is shorter; leave a shorter one as it "
    "is.",
    (SCALE, "scale = clip / norm"),
)
add(
    "step_norm_after_clipping",
    'Your "norm" is that after clipping; return the one before, which tells whether a step was '
    "clipped.",
    ('"norm": norm}', '"norm": min(norm, clip)}'),
)
add(
    "step_norms_added",
    "You add up the parameters' norms; the norm of all together is the root of the sum of all "
    "squares.",
    (NORM, "norm = sum(g.double().norm().item() for _, g in pairs)"),
)
add(
    "step_norm_squared",
    "Your norm is the sum of squares; take its square root.",
    (NORM, "norm = sum(g.double().square().sum().item() for _, g in pairs)"),
)
add(
    "step_shared_twice",
    "The embedding that input and head share is counted and updated twice; take every parameter "
    "once.",
    (
        PARAMETERS,
        "parameters = [p for _, p in model.named_parameters(remove_duplicate=False)]",
    ),
)
add(
    "step_numbers_after",
    "Your losses are those after the step; return what they were before it.",
    (
        "both, second = loss.item(), nsp.item()",
        "with torch.no_grad():\n        mlm_logits, nsp_logits = model(input_ids, token_type_ids, "
        "mask)\n        both = pretraining_loss(mlm_logits, nsp_logits, labels, is_random).item()\n"
        "        second = F.cross_entropy(nsp_logits, is_random).item()",
    ),
)
add(
    "step_uphill",
    "You add the gradient, so that the loss grows; subtract it.",
    (DESCENT, "parameter += lr * scale * gradient"),
)
add(
    "step_unused_parameters",
    "A parameter that the loss does not depend on has no gradient, and stops your step; leave it "
    "as it is.",
    (GRADIENTS, "gradients = torch.autograd.grad(loss, parameters)"),
)
add(
    "step_mode_train",
    "Your step puts the model into train mode; the mode is the caller's business.",
    (FORWARD, "model.train()\n    " + FORWARD),
)
add(
    "step_mode_eval",
    "Your step puts the model into eval mode, so that dropout never acts; the mode is the caller's "
    "business.",
    (FORWARD, "model.eval()\n    " + FORWARD),
)
add(
    "step_mlm_is_loss",
    'Your "mlm" is the whole loss; it is the part of the masked positions, without the pairs.',
    ('"mlm": both - second', '"mlm": both'),
)

# --------------------------------------------------------------------------------------------
# Scores
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "pseudo_log_likelihood", "brt-scores")
POSITIONS = "positions = (ids >= SPECIAL).nonzero().squeeze(1)"
MASKED = "masked[rows, positions] = MASK"
SUM = "log_probs[rows, ids[positions]].sum().item()"
add(
    "likelihood_all_at_once",
    "You mask all tokens at once, so that the model sees none of them; mask one at a time, with "
    "all others as they are.",
    (MASKED, "masked[:, positions] = MASK"),
)
add(
    "likelihood_unmasked",
    "You score tokens that the model can see; put MASK in place of the one to be scored.",
    (MASKED, ""),
)
add(
    "likelihood_left_to_right",
    "You mask all tokens after the scored one too; BERT may see both sides, so mask one only.",
    (MASKED, "masked[(ids >= SPECIAL) & (torch.arange(len(ids)) >= positions[:, None])] = MASK"),
)
add(
    "likelihood_masks_stay",
    "The masks of earlier tokens stay; put each token back before you mask the next one.",
    (MASKED, "masked[(ids >= SPECIAL) & (torch.arange(len(ids)) <= positions[:, None])] = MASK"),
)
add(
    "likelihood_specials_scored",
    "Special tokens are scored too; the sum goes over ordinary tokens only.",
    (
        POSITIONS,
        "positions = torch.arange(len(ids)) if (ids >= SPECIAL).any() else ids[:0]",
    ),
)
add(
    "likelihood_mean",
    "You take the mean over the tokens; the pseudo-log-likelihood is the sum.",
    (SUM, "log_probs[rows, ids[positions]].mean().item()"),
)
add(
    "likelihood_of_scores",
    "You add up the logits as they are; apply log_softmax over the vocabulary first.",
    ("torch.log_softmax(logits, dim=-1)", "logits"),
)
add(
    "likelihood_of_probabilities",
    "You add up probabilities; add up their logarithms.",
    ("torch.log_softmax(logits, dim=-1)", "torch.softmax(logits, dim=-1)"),
)
add(
    "likelihood_negative",
    "Your sum has the other sign: it is the sum of log-probabilities, which are negative.",
    (SUM, "-log_probs[rows, ids[positions]].sum().item()"),
)
add(
    "likelihood_of_mask",
    "You score the token MASK itself; score the original token that stood there.",
    (SUM, "log_probs[:, MASK].sum().item()"),
)
add(
    "likelihood_tensor",
    "You return a tensor; .item() makes a float of it.",
    (SUM, "log_probs[rows, ids[positions]].sum()"),
)
add(
    "likelihood_nothing_accepted",
    "An input without ordinary tokens is not refused; raise a ValueError.",
    ("if len(positions) == 0:", "if False:"),
)
