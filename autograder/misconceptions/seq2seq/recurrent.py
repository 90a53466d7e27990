"""Known mistakes of `seq2seq-recurrent`: cells, encoders, the decoder.

The update gate the other way round, a reset gate before the product, halves of a sentence for the
two directions, a final state taken from the padding.
"""

from __future__ import annotations

from autograder.units.variants import Misconception, mistakes_in

MISCONCEPTIONS: list[Misconception] = []

# --------------------------------------------------------------------------------------------
# Cells
# --------------------------------------------------------------------------------------------

CHECK_X = "if x.shape[-1] != input_size:"
CHECK_H = "if h.shape != (x.shape[0], hidden_size):"
FROM_INPUT = "x @ self.weight_ih.T + self.bias_ih"
FROM_STATE = "h @ self.weight_hh.T + self.bias_hh"

add = mistakes_in(MISCONCEPTIONS, "RNNCell", "seq-rnn")
RNN = "torch.tanh(from_input + from_state)"
add(
    "rnn_without_input_bias",
    "Your state lacks b_ih; both biases are added, that of the input and that of the state.",
    (FROM_INPUT, "x @ self.weight_ih.T"),
)
add(
    "rnn_without_state_bias",
    "Your state lacks b_hh; both biases are added, that of the input and that of the state.",
    (FROM_STATE, "h @ self.weight_hh.T"),
)
add(
    "rnn_one_bias",
    "Your cell has one bias; as in PyTorch there are two, bias_ih and bias_hh, though their sum "
    "would do.",
    ("self.bias_hh = nn.Parameter(torch.empty(hidden_size).uniform_(-bound, bound))", "pass"),
    (FROM_STATE, "h @ self.weight_hh.T"),
)
add(
    "rnn_sigmoid",
    "Your state matches a sigmoid; the plain cell uses tanh.",
    (RNN, "torch.sigmoid(from_input + from_state)"),
)
add(
    "rnn_relu",
    "Your state matches a ReLU; the plain cell uses tanh.",
    (RNN, "torch.relu(from_input + from_state)"),
)
add(
    "rnn_linear",
    "Your state has no tanh around it; without it the state can grow without bound, and many steps "
    "are no more than one linear map.",
    (RNN, "from_input + from_state"),
)
add(
    "rnn_two_tanh",
    "You take the tanh of the input's part and of the state's part; add them first, then take one "
    "tanh.",
    (RNN, "torch.tanh(from_input) + torch.tanh(from_state)"),
)
add(
    "rnn_state_ignored",
    "Your new state does not depend on the old one; add W_hh h + b_hh.",
    (RNN, "torch.tanh(from_input)"),
)
add(
    "rnn_state_not_transposed",
    "Your state is multiplied by W_hh without a transpose; vectors are rows here, so it is "
    "h @ weight_hh.T.",
    (FROM_STATE, "h @ self.weight_hh + self.bias_hh"),
)
add(
    "rnn_adds_old_state",
    "Your cell adds the old state to the tanh; that is a residual connection, which the plain cell "
    "has not.",
    (RNN, f"h + {RNN}"),
)
add(
    "rnn_weight_shapes",
    "Your weight_ih has the shape (I, H); as in PyTorch it is (H, I), one row for each unit of the "
    "state.",
    (
        "torch.empty(hidden_size, input_size).uniform_(-bound, bound)",
        "torch.empty(input_size, hidden_size).uniform_(-bound, bound)",
    ),
    (
        "hidden_size, input_size = self.weight_ih.shape",
        "input_size, hidden_size = self.weight_ih.shape",
    ),
    (FROM_INPUT, "x @ self.weight_ih + self.bias_ih"),
)
add(
    "rnn_batch_unchecked",
    "An h of another batch size or width is not refused with a ValueError; one of batch size 1 "
    "would silently be used for every row.",
    (CHECK_H, "if False:"),
)
add(
    "rnn_input_unchecked",
    "An x of another width is not refused with a ValueError; compare it with input_size first.",
    (CHECK_X, "if False:"),
)
add(
    "rnn_detached",
    "Your values are right, but the state is detached, so no gradient reaches earlier steps; a "
    "recurrent network learns through its states.",
    (FROM_STATE, "h.detach() @ self.weight_hh.T + self.bias_hh"),
)

add = mistakes_in(MISCONCEPTIONS, "GRUCell", "seq-gru")
MIX = "(1 - z) * n + z * h"
CANDIDATE = "torch.tanh(x_n + r * h_n)"
X_GATES = "x_r, x_z, x_n = from_input.chunk(3, dim=-1)"
H_GATES = "h_r, h_z, h_n = from_state.chunk(3, dim=-1)"
W_N = "self.weight_hh[2 * hidden_size :].T"
B_N = "self.bias_hh[2 * hidden_size :]"
add(
    "gru_z_swapped",
    "Your z and 1 - z have changed places; here z is the share of the old state: "
    "(1 - z) * n + z * h. Some books write it the other way round.",
    (MIX, "z * n + (1 - z) * h"),
)
add(
    "gru_order_z_r_n",
    "Your gates are in the order z, r, n; the rows of the parameters are in the order r, z, n.",
    (X_GATES, "x_z, x_r, x_n = from_input.chunk(3, dim=-1)"),
    (H_GATES, "h_z, h_r, h_n = from_state.chunk(3, dim=-1)"),
)
add(
    "gru_order_n_r_z",
    "Your candidate's rows come first; the rows of the parameters are in the order r, z, n.",
    (X_GATES, "x_n, x_r, x_z = from_input.chunk(3, dim=-1)"),
    (H_GATES, "h_n, h_r, h_z = from_state.chunk(3, dim=-1)"),
)
add(
    "gru_order_n_z_r",
    "Your gates are in the order n, z, r; the rows of the parameters are in the order r, z, n.",
    (X_GATES, "x_n, x_z, x_r = from_input.chunk(3, dim=-1)"),
    (H_GATES, "h_n, h_z, h_r = from_state.chunk(3, dim=-1)"),
)
add(
    "gru_reset_before_product",
    "Your reset gate multiplies the state before W_hn, as in Cho et al.; here it multiplies the "
    "product, bias included: r * (W_hn h + b_hn).",
    (CANDIDATE, f"torch.tanh(x_n + (r * h) @ {W_N} + {B_N})"),
)
add(
    "gru_reset_without_bias",
    "Your reset gate leaves the bias b_hn out; it multiplies the whole W_hn h + b_hn.",
    (CANDIDATE, f"torch.tanh(x_n + r * (h_n - {B_N}) + {B_N})"),
)
add(
    "gru_reset_on_both",
    "Your reset gate multiplies the input's part too; it resets only what comes from the old "
    "state: x_n + r * h_n.",
    (CANDIDATE, "torch.tanh(r * (x_n + h_n))"),
)
add(
    "gru_reset_on_input",
    "Your reset gate multiplies the input's part; it resets what comes from the old state: "
    "x_n + r * h_n.",
    (CANDIDATE, "torch.tanh(r * x_n + h_n)"),
)
add(
    "gru_reset_missing",
    "Your candidate does not use the reset gate; the state's part is multiplied by r.",
    (CANDIDATE, "torch.tanh(x_n + h_n)"),
)
add(
    "gru_candidate_sigmoid",
    "Your candidate is a sigmoid; it is a tanh, since a state may be negative.",
    (CANDIDATE, "torch.sigmoid(x_n + r * h_n)"),
)
add(
    "gru_gates_tanh",
    "Your gates are tanh; a gate is a sigmoid, a share between 0 and 1.",
    ("r = torch.sigmoid(x_r + h_r)", "r = torch.tanh(x_r + h_r)"),
    ("z = torch.sigmoid(x_z + h_z)", "z = torch.tanh(x_z + h_z)"),
)
add(
    "gru_without_input_bias",
    "Your cell lacks b_ih; both biases are added.",
    (FROM_INPUT, "x @ self.weight_ih.T"),
)
add(
    "gru_without_state_bias",
    "Your cell lacks b_hh; both biases are added, and that of the candidate inside the reset gate.",
    (FROM_STATE, "h @ self.weight_hh.T"),
)
add(
    "gru_candidate_only",
    "Your new state is the candidate alone; the update gate mixes it with the old state.",
    (MIX, "n"),
)
add(
    "gru_not_complementary",
    "Your shares do not add up to 1: n is added whole; it is (1 - z) * n + z * h.",
    (MIX, "n + z * h"),
)
add(
    "gru_tanh_of_result",
    "You take a tanh of the new state; the mixture of candidate and old state is the new state.",
    (MIX, f"torch.tanh({MIX})"),
)
add(
    "gru_batch_unchecked",
    "An h of another batch size or width is not refused with a ValueError; one of batch size 1 "
    "would silently be used for every row.",
    (CHECK_H, "if False:"),
)
add(
    "gru_input_unchecked",
    "An x of another width is not refused with a ValueError; compare it with input_size first.",
    (CHECK_X, "if False:"),
)

add = mistakes_in(MISCONCEPTIONS, "LSTMCell", "seq-lstm")
SPLIT = "i, f, g, o = (from_input + from_state).chunk(4, dim=-1)"
MEMORY = "torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)"
OUT = "torch.sigmoid(o) * torch.tanh(c)"
add(
    "lstm_input_and_forget_swapped",
    "Your input and forget gates have changed places; the rows are in the order i, f, g, o.",
    (SPLIT, SPLIT.replace("i, f, g, o", "f, i, g, o")),
)
add(
    "lstm_order_i_f_o_g",
    "Your gates are in the order i, f, o, g, as in several papers; PyTorch's rows are in the order "
    "i, f, g, o.",
    (SPLIT, SPLIT.replace("i, f, g, o", "i, f, o, g")),
)
add(
    "lstm_order_f_i_o_g",
    "Your gates are in the order f, i, o, g; the rows are in the order i, f, g, o.",
    (SPLIT, SPLIT.replace("i, f, g, o", "f, i, o, g")),
)
add(
    "lstm_order_i_g_f_o",
    "Your gates are in the order i, g, f, o; the rows are in the order i, f, g, o.",
    (SPLIT, SPLIT.replace("i, f, g, o", "i, g, f, o")),
)
add(
    "lstm_output_without_tanh",
    "Your h is o * c; the output gate opens tanh(c), not c itself.",
    (OUT, "torch.sigmoid(o) * c"),
)
add(
    "lstm_output_of_old_memory",
    "Your h shows the old memory; it is o * tanh of the new c.",
    (f"c = {MEMORY}", f"old, c = c, {MEMORY}"),
    (OUT, "torch.sigmoid(o) * torch.tanh(old)"),
)
add(
    "lstm_candidate_sigmoid",
    "Your candidate g is a sigmoid; it is a tanh, since the memory must be able to fall.",
    ("torch.tanh(g)", "torch.sigmoid(g)"),
)
add(
    "lstm_candidate_linear",
    "Your candidate lacks its tanh: it is tanh(g).",
    ("torch.tanh(g)", "g"),
)
add(
    "lstm_output_gate_tanh",
    "Your output gate is a tanh; gates are sigmoids, shares between 0 and 1.",
    ("torch.sigmoid(o)", "torch.tanh(o)"),
)
add(
    "lstm_coupled_gates",
    "Your input share is 1 - f, as in a GRU; an LSTM has an input gate of its own.",
    (MEMORY, "torch.sigmoid(f) * c + (1 - torch.sigmoid(f)) * torch.tanh(g)"),
)
add(
    "lstm_without_forgetting",
    "Your memory is never forgotten: the old c is added whole. The forget gate multiplies it.",
    (MEMORY, "c + torch.sigmoid(i) * torch.tanh(g)"),
)
add(
    "lstm_forget_inverted",
    "Your forget gate is inverted; f is the share of the memory that is kept.",
    (MEMORY, "(1 - torch.sigmoid(f)) * c + torch.sigmoid(i) * torch.tanh(g)"),
)
add(
    "lstm_forget_bias_added",
    "You add 1 to the forget gate in forward; some libraries do that by initialising its bias, and "
    "then it is part of the parameter.",
    (MEMORY, "torch.sigmoid(f + 1.0) * c + torch.sigmoid(i) * torch.tanh(g)"),
)
add(
    "lstm_returns_c_first",
    "You return (c, h); the result is (h, c).",
    ("return h, c", "return c, h"),
)
add(
    "lstm_state_is_c_h",
    "You read the state as (c, h); it is (h, c).",
    ("h, c = state", "c, h = state"),
)
add(
    "lstm_gates_see_the_memory",
    "Your gates read the memory c; they read the input x and the output h of the step before.",
    (FROM_STATE, "c @ self.weight_hh.T + self.bias_hh"),
)
add(
    "lstm_without_input_bias",
    "Your cell lacks b_ih; both biases are added.",
    (FROM_INPUT, "x @ self.weight_ih.T"),
)
add(
    "lstm_without_state_bias",
    "Your cell lacks b_hh; both biases are added.",
    (FROM_STATE, "h @ self.weight_hh.T"),
)
add(
    "lstm_memory_unchecked",
    "A c of another width or batch size is not refused with a ValueError; it is part of the state "
    "as h is.",
    ('(("h", h), ("c", c))', '(("h", h),)'),
)
add(
    "lstm_memory_clipped",
    "You clip the memory; it may grow without a limit, so leave c as the formula makes it.",
    (MEMORY, f"({MEMORY}).clamp(-10.0, 10.0)"),
)
add(
    "lstm_state_of_one_accepted",
    "A state whose h and c both have the batch size 1 is stretched to the whole batch; only equal "
    "batch sizes are right, so raise a ValueError.",
    ("wanted = (x.shape[0], hidden_size)", "wanted = (1 if len(h) == 1 else len(x), hidden_size)"),
)
add(
    "lstm_state_unchecked",
    "States of another width or batch size are not refused with a ValueError; compare the shapes "
    "of h and c with (batch of x, hidden_size).",
    ("if part.shape != wanted:", "if False:"),
)
add(
    "lstm_input_unchecked",
    "An x of another width is not refused with a ValueError; compare it with input_size first.",
    (CHECK_X, "if False:"),
)

# --------------------------------------------------------------------------------------------
# Encoders
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "Encoder", "seq-encoder")
CARRY = "torch.where(real, a, b) for a, b in zip(new, state, strict=True)"
KEEP = "states.append(torch.where(real, state[0], zeros))"
FINAL = "final = state if lstm else state[0]"
TOGETHER = "return torch.stack(states, dim=1), final"
IDS_EMPTY = "if ids.numel() == 0:"
IDS_TYPE = "if ids.dtype != torch.int64:"
IDS_RANGE = "if ids.min() < 0 or ids.max() >= vocab_size:"
MASK_FORM = "if mask.dtype != torch.bool or mask.shape != ids.shape:"
MASK_ROWS = "if not mask.any(dim=1).all():"
NO_MASK = "if mask is None:\n            mask = torch.ones_like(ids, dtype=torch.bool)"
add(
    "encoder_mask_ignored",
    "Your states go on through the padding; where the mask is False the state is carried over "
    "unchanged, and its row of `states` is 0.",
    (CARRY, "a for a in new"),
    (KEEP, "states.append(state[0])"),
)
add(
    "encoder_final_after_padding",
    "Your final state has gone on through the padding: it is the one at the last column. Carry the "
    "state over unchanged where the mask is False.",
    (CARRY, "a for a in new"),
)
add(
    "encoder_final_column_of_states",
    "Your final state is the last column of `states`, which is 0 in a padded row; it is the state "
    "after the row's last real token.",
    (FINAL, "final = (states[-1], state[1] * real) if lstm else states[-1]"),
)
add(
    "encoder_final_first",
    "Your final state is the one after the first token; it is the one after the last real token.",
    (
        "states.append(torch.where(real, state[0], zeros))",
        KEEP + "\n            if t == 0:\n                first = state",
    ),
    (FINAL, "final = first if lstm else first[0]"),
)
add(
    "encoder_reset_in_padding",
    "Your state becomes 0 at padding; it is carried over unchanged, so that the final state is the "
    "one after the last real token.",
    (CARRY, "torch.where(real, a, zeros) for a in new"),
)
add(
    "encoder_states_not_zero",
    "Your states repeat the last real state in the padding; there the rows of `states` are 0.",
    (KEEP, "states.append(state[0])"),
)
add(
    "encoder_padding_embedded_as_zero",
    "Your code only zeroes the embeddings of the padding, and the cell goes on with them; carry "
    "the state over instead.",
    ("x = self.embedding(ids)", "x = self.embedding(ids) * mask.unsqueeze(-1)"),
    (CARRY, "a for a in new"),
    (KEEP, "states.append(state[0] * real)"),
)
add(
    "encoder_mask_from_ids",
    "You take the id 0 for padding whatever the mask says; the mask tells which tokens are real.",
    (NO_MASK, "if True:\n            mask = ids != 0"),
    (MASK_ROWS, "if False:"),
)
add(
    "encoder_pad_taken_for_padding",
    "You take the id PAD for padding; only a mask says what is padding, and without one all tokens "
    "are real.",
    ("mask = torch.ones_like(ids, dtype=torch.bool)", "mask = ids != 0"),
)
add(
    "encoder_mask_inverted",
    "You read the mask the wrong way round; True means real token.",
    ("real = mask[:, t, None]", "real = ~mask[:, t, None]"),
)
add(
    "encoder_state_not_carried",
    "Each of your steps starts from zeros; hand the state on from step to step.",
    (
        "new = self.cell(x[:, t], state) if lstm else (self.cell(x[:, t], *state),)",
        "fresh = (zeros, zeros)\n"
        "            new = self.cell(x[:, t], fresh) if lstm else (self.cell(x[:, t], zeros),)",
    ),
)
add(
    "encoder_starts_from_ones",
    "Your first state is not 0; an encoder starts from zeros.",
    (
        "zeros = x.new_zeros(len(ids), self.hidden_size)",
        "zeros = x.new_zeros(len(ids), self.hidden_size) + 1",
    ),
    (KEEP, "states.append(state[0] * real)"),
)
add(
    "encoder_state_kept",
    "Your next call starts from the state in which the last one ended; every sequence starts from "
    "zeros.",
    (
        "        states = []\n",
        "        last = getattr(self, 'last', state)\n"
        "        if self.training and last[0].shape == zeros.shape:\n"
        "            state = last\n"
        "        states = []\n",
    ),
    (FINAL, f"self.last = tuple(part.detach() for part in state)\n        {FINAL}"),
)
add(
    "encoder_truncated",
    "Every so many steps you detach the state, so that no gradient reaches the words before: "
    "truncated backpropagation, which nobody asked for here.",
    (
        f"            {KEEP}",
        f"            {KEEP}\n"
        "            if t % 35 == 34:\n"
        "                state = tuple(part.detach() for part in state)",
    ),
)
add(
    "encoder_reversed",
    "You read the sentence from right to left, as Sutskever et al. did with their sources; this "
    "encoder reads from left to right.",
    ("for t in range(ids.shape[1]):", "for t in reversed(range(ids.shape[1])):"),
    (TOGETHER, "return torch.stack(states[::-1], dim=1), final"),
)
add(
    "encoder_time_first",
    "Your states have the shape (T, B, H); batches come first here: stack along dim=1.",
    (TOGETHER, "return torch.stack(states, dim=0), final"),
)
add(
    "encoder_lstm_states_hold_c",
    "Your LSTM's states are the memories c; `states` holds h, what the cell shows at each step.",
    (KEEP, "states.append(torch.where(real, state[-1], zeros))"),
)
add(
    "encoder_lstm_final_h_only",
    "Your LSTM's final state is h alone; it is the pair (h, c), or a decoder could not go on.",
    (FINAL, "final = state[0]"),
)
add(
    "encoder_lstm_final_c_first",
    "Your LSTM's final state is (c, h); the pair is (h, c), the state before the memory.",
    (FINAL, "final = state[::-1] if lstm else state[0]"),
)
add(
    "encoder_lstm_memory_in_padding",
    "Your LSTM's memory c goes on through the padding while h is carried over; carry both.",
    (
        CARRY,
        "torch.where(real, a, b) if k == 0 else a\n"
        "                for k, (a, b) in enumerate(zip(new, state, strict=True))",
    ),
)
add(
    "encoder_order_of_results",
    "You return the final state first; the result is (states, final).",
    (TOGETHER, "return final, torch.stack(states, dim=1)"),
)
add(
    "encoder_always_gru",
    "Your encoder has a GRUCell whatever `cell` says; choose among the three.",
    ("self.kind = cell", 'cell = self.kind = "gru"'),
)
add(
    "encoder_other_cells_accepted",
    "A cell that is none of the three is not refused; raise a ValueError.",
    ("if cell not in cells:", "if False:"),
    ("cells[cell](embed_dim, hidden_size)", "cells.get(cell, GRUCell)(embed_dim, hidden_size)"),
)
add(
    "encoder_padding_idx",
    "Your embedding has padding_idx=0, so that the id 0 gets no gradient; it is a plain "
    "nn.Embedding(vocab_size, embed_dim).",
    (
        "self.embedding = nn.Embedding(vocab_size, embed_dim)",
        "self.embedding = nn.Embedding(vocab_size, embed_dim, padding_idx=0)",
    ),
)
add(
    "encoder_empty_rows_accepted",
    "A row without a real token is not refused; it has no last real token, so raise a ValueError.",
    (MASK_ROWS, "if False:"),
)
add(
    "encoder_mask_unchecked",
    "A mask of another type or shape is not refused with a ValueError; broadcasting would hide the "
    "mistake.",
    (MASK_FORM, "mask = mask.bool().expand(ids.shape)\n        if False:"),
)
add(
    "encoder_ids_unchecked",
    "Ids outside the vocabulary are not refused with a ValueError; nn.Embedding answers with an "
    "IndexError, and on a GPU with a crash.",
    (IDS_RANGE, "if False:"),
)
add(
    "encoder_id_of_size_accepted",
    "An id equal to vocab_size is not refused; the last valid id is vocab_size - 1.",
    (IDS_RANGE, "if ids.min() < 0 or ids.max() > vocab_size:"),
)
add(
    "encoder_type_unchecked",
    "Ids that are no integers are not refused with a ValueError; look at their dtype first.",
    (IDS_TYPE, "ids = ids.long()\n        if False:"),
)
add(
    "encoder_empty_accepted",
    "An empty batch is not refused with a ValueError; it is an error of the caller.",
    (IDS_EMPTY, "if False:"),
)
add(
    "encoder_padded_ids_unchecked",
    "An id outside the vocabulary is accepted where the mask is False; padded positions count too, "
    "so check all ids.",
    (
        "        vocab_size = self.embedding.num_embeddings",
        "        if mask is not None and mask.dtype == torch.bool and mask.shape == ids.shape:\n"
        "            ids = ids.masked_fill(~mask, 0)\n"
        "        vocab_size = self.embedding.num_embeddings",
    ),
)
add(
    "encoder_int32_accepted",
    "Ids of other integer types than torch.int64 are accepted; refuse them with a ValueError.",
    (
        "if ids.dtype != torch.int64:",
        "if ids.is_floating_point() or ids.dtype == torch.bool:",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "BidirectionalEncoder", "seq-bidirectional")
STEP = "h = torch.where(mask[:, t, None], cell(x[:, t], h), h)"
BRIDGED = "torch.tanh(self.bridge(torch.cat(finals, dim=-1)))"
add(
    "bidirectional_halves",
    "Your forward direction reads one half of the sentence and your backward direction the other; "
    "each reads the whole sentence, in opposite orders.",
    (
        STEP,
        "here = t < (length + 1) // 2 if cell is self.forward_cell else t >= (length + 1) // 2\n"
        "                if here:\n"
        f"                    {STEP}",
    ),
)
add(
    "bidirectional_backward_in_padding",
    "Your backward direction starts in the padding; it starts at the last real token of each row, "
    "from zeros.",
    (
        STEP,
        "new = cell(x[:, t], h)\n"
        "                back = cell is self.backward_cell\n"
        "                h = new if back else torch.where(mask[:, t, None], new, h)",
    ),
)
add(
    "bidirectional_mask_ignored",
    "Your cells go on through the padding; where the mask is False a state is carried over "
    "unchanged.",
    (STEP, "h = cell(x[:, t], h)"),
)
add(
    "bidirectional_not_aligned",
    "Your backward states stand in the order in which they were computed; at position t belongs "
    "the one that has read from the end up to t.",
    (
        "directions.append(torch.stack(states, dim=1))",
        "turned = states[::-1] if cell is self.backward_cell else states\n"
        "            directions.append(torch.stack(turned, dim=1))",
    ),
)
add(
    "bidirectional_backward_final_last",
    "Your bridge gets the backward state at the last token, which has read one word only; the "
    "final backward state is the one at position 0.",
    (
        "finals.append(h)",
        "last = mask.sum(dim=1) - 1\n"
        "            back = torch.stack(states, dim=1)[torch.arange(len(ids)), last]\n"
        "            finals.append(back if cell is self.backward_cell else h)",
    ),
)
add(
    "bidirectional_final_last_column",
    "Your bridge gets the states of the last column, which are 0 in a padded row; take each "
    "direction's own final state.",
    ("torch.cat(finals, dim=-1)", "states[:, -1]"),
)
add(
    "bidirectional_backward_first",
    "Your backward part comes first; the forward part does, in `states` and before the bridge.",
    ("torch.cat(directions, dim=-1)", "torch.cat(directions[::-1], dim=-1)"),
    ("torch.cat(finals, dim=-1)", "torch.cat(finals[::-1], dim=-1)"),
)
add(
    "bidirectional_states_backward_first",
    "In `states` your backward half comes first; the forward half does.",
    ("torch.cat(directions, dim=-1)", "torch.cat(directions[::-1], dim=-1)"),
)
add(
    "bidirectional_pad_taken_for_padding",
    "You take the id PAD for padding; only a mask says what is padding, and without one all tokens "
    "are real.",
    ("mask = torch.ones_like(ids, dtype=torch.bool)", "mask = ids != 0"),
)
add(
    "bidirectional_tanh_before_bridge",
    "Your tanh stands before the bridge; it comes after it, around the sum with the bias.",
    (BRIDGED, "self.bridge(torch.tanh(torch.cat(finals, dim=-1)))"),
)
add(
    "bidirectional_bridge_order",
    "Your bridge gets [backward; forward]; the final forward state comes first.",
    ("torch.cat(finals, dim=-1)", "torch.cat(finals[::-1], dim=-1)"),
)
add(
    "bidirectional_summed",
    "You add the two directions; they stand side by side, which makes 2H features.",
    ("torch.cat(directions, dim=-1)", "(directions[0] + directions[1])"),
)
add(
    "bidirectional_both_forward",
    "Both of your directions read from left to right; the backward one reads from right to left.",
    ("reversed(range(length))", "range(length)"),
)
add(
    "bidirectional_one_cell",
    "Both directions use the forward cell; each has a cell with parameters of its own.",
    (
        "(self.backward_cell, reversed(range(length)))",
        "(self.forward_cell, reversed(range(length)))",
    ),
)
add(
    "bidirectional_backward_reads_forward",
    "Your backward direction starts from the final forward state; both directions start from "
    "zeros.",
    (
        "h = x.new_zeros(len(ids), self.hidden_size)  # (B, H)",
        "h = finals[0] if finals else x.new_zeros(len(ids), self.hidden_size)",
    ),
)
add(
    "bidirectional_bridge_without_tanh",
    "Your decoder's state lacks the tanh around the bridge.",
    (BRIDGED, "self.bridge(torch.cat(finals, dim=-1))"),
)
add(
    "bidirectional_bridge_ignored",
    "Your decoder's state is not made by the bridge; both final states go through bridge and tanh.",
    (BRIDGED, "torch.cat(finals, dim=-1)"),
)
add(
    "bidirectional_bridge_over_states",
    "You pass every state through the bridge; only the two final states go through it, and "
    "`states` keep their width 2H.",
    ("return states, ", "return torch.tanh(self.bridge(states)), "),
)
add(
    "bidirectional_mean_state",
    "Your bridge gets the mean of the states; it gets the final state of each direction.",
    (
        "torch.cat(finals, dim=-1)",
        "states.sum(dim=1) / mask.sum(dim=1, keepdim=True)",
    ),
)
add(
    "bidirectional_states_not_zero",
    "Your states are not 0 in the padding, where carried states still stand; fill with 0 where the "
    "mask is False.",
    (".masked_fill(~mask[:, :, None], 0.0)", ""),
)
add(
    "bidirectional_state_kept",
    "Your next call starts from the states in which the last one ended; both directions start from "
    "zeros.",
    (
        "            states = [h] * length\n",
        "            last = getattr(cell, 'last', h)\n"
        "            h = last if self.training and last.shape == h.shape else h\n"
        "            states = [h] * length\n",
    ),
    (
        "            finals.append(h)",
        "            finals.append(h)\n            cell.last = h.detach()",
    ),
)
add(
    "bidirectional_truncated",
    "Every so many steps you detach the state, so that no gradient passes on: truncated "
    "backpropagation, which nobody asked for here.",
    (
        "                states[t] = h\n",
        "                states[t] = h\n                h = h.detach() if t % 35 == 34 else h\n",
    ),
)
add(
    "bidirectional_empty_rows_accepted",
    "A row without a real token is not refused; raise a ValueError.",
    (MASK_ROWS, "if False:"),
)
add(
    "bidirectional_mask_unchecked",
    "A mask of another type or shape is not refused with a ValueError.",
    (MASK_FORM, "mask = mask.bool().expand(ids.shape)\n        if False:"),
)
add(
    "bidirectional_ids_unchecked",
    "Ids outside the vocabulary are not refused with a ValueError; nn.Embedding answers with an "
    "IndexError.",
    (IDS_RANGE, "if False:"),
)
add(
    "bidirectional_padded_ids_unchecked",
    "An id outside the vocabulary is accepted where the mask is False; padded positions count too, "
    "so check all ids.",
    (
        "        vocab_size = self.embedding.num_embeddings",
        "        if mask is not None and mask.dtype == torch.bool and mask.shape == ids.shape:\n"
        "            ids = ids.masked_fill(~mask, 0)\n"
        "        vocab_size = self.embedding.num_embeddings",
    ),
)
add(
    "bidirectional_int32_accepted",
    "Ids of other integer types than torch.int64 are accepted; refuse them with a ValueError.",
    (
        "if ids.dtype != torch.int64:",
        "if ids.is_floating_point() or ids.dtype == torch.bool:",
    ),
)
add(
    "bidirectional_padding_idx",
    "padding_idx freezes the row of id 0, so that it never learns; the mask is what says what "
    "padding is: leave padding_idx out.",
    (
        "self.embedding = nn.Embedding(vocab_size, embed_dim)",
        "self.embedding = nn.Embedding(vocab_size, embed_dim, padding_idx=0)",
    ),
)

# --------------------------------------------------------------------------------------------
# Decoder and training
# --------------------------------------------------------------------------------------------

add = mistakes_in(MISCONCEPTIONS, "DecoderStep", "seq-decoder")
CELL_INPUT = "torch.cat([self.embedding(previous), context], dim=-1)"
OUTPUT = "self.output(torch.cat([state, context], dim=-1))"
NEW_STATE = "state = self.cell(cell_input, state)"
add(
    "step_context_first",
    "Your cell is fed [context; embedding]; the embedding of the previous token comes first.",
    (CELL_INPUT, "torch.cat([context, self.embedding(previous)], dim=-1)"),
)
add(
    "step_output_context_first",
    "Your output layer is fed [context; state]; the new state comes first.",
    (OUTPUT, "self.output(torch.cat([context, state], dim=-1))"),
)
add(
    "step_old_state_to_output",
    "Your logits come from the old state; update the state first, then feed the new one to the "
    "output layer.",
    (NEW_STATE, "old, state = state, self.cell(cell_input, state)"),
    (OUTPUT, "self.output(torch.cat([old, context], dim=-1))"),
)
add(
    "step_waits_at_pad",
    "Your state stays as it is where the previous token is PAD; a step takes PAD like any token.",
    (
        NEW_STATE,
        "new = self.cell(cell_input, state)\n"
        "        state = torch.where((previous == 0)[:, None], state, new)",
    ),
)
add(
    "step_returns_old_state",
    "You return the old state; the next step needs the new one.",
    (NEW_STATE, "old, state = state, self.cell(cell_input, state)"),
    ("return logits, state", "return logits, old"),
)
add(
    "step_state_ignored",
    "Your cell starts from zeros at each step; hand it the state that the step before returned.",
    (NEW_STATE, "state = self.cell(cell_input, torch.zeros_like(state))"),
)
add(
    "step_context_only_in_output",
    "Your cell does not see the context; it is fed [embedding; context].",
    (CELL_INPUT, "torch.cat([self.embedding(previous), torch.zeros_like(context)], dim=-1)"),
)
add(
    "step_context_only_in_cell",
    "Your output layer does not see the context; it is fed [new state; context].",
    (OUTPUT, "self.output(torch.cat([state, torch.zeros_like(context)], dim=-1))"),
)
add(
    "step_narrow_cell",
    "Your cell has inputs of width embed_dim, without the context; it is "
    "GRUCell(embed_dim + context_size, hidden_size).",
    ("self.cell = GRUCell(embed_dim + context_size,", "self.cell = GRUCell(embed_dim,"),
    (CELL_INPUT, "self.embedding(previous)"),
)
add(
    "step_narrow_output",
    "Your output layer reads the state alone; it is nn.Linear(hidden_size + context_size, "
    "vocab_size), fed [new state; context].",
    ("self.output = nn.Linear(hidden_size + context_size,", "self.output = nn.Linear(hidden_size,"),
    (OUTPUT, "self.output(state)"),
)
add(
    "step_softmax",
    "You return probabilities; the logits are asked for, before any softmax.",
    (OUTPUT, f"torch.softmax({OUTPUT}, dim=-1)"),
)
add(
    "step_log_softmax",
    "You return log-probabilities; the logits are asked for, before any softmax.",
    (OUTPUT, f"torch.log_softmax({OUTPUT}, dim=-1)"),
)
add(
    "step_tanh_before_output",
    "You take a tanh before the output layer; it is fed [new state; context] as they are.",
    (OUTPUT, "self.output(torch.tanh(torch.cat([state, context], dim=-1)))"),
)
add(
    "step_order_of_results",
    "You return (state, logits); the result is (logits, state).",
    ("return logits, state", "return state, logits"),
)
add(
    "step_relu_on_embedding",
    "You pass the embedding through a ReLU, as a well-known tutorial does; here it goes to the "
    "cell as it is.",
    (CELL_INPUT, "torch.cat([torch.relu(self.embedding(previous)), context], dim=-1)"),
)
add(
    "step_ids_unchecked",
    "Tokens outside the vocabulary are not refused with a ValueError; nn.Embedding answers with an "
    "IndexError.",
    ("if ((previous < 0) | (previous >= vocab_size)).any():", "if False:"),
)
add(
    "step_widths_unchecked",
    "A state or context of another width or batch size is not refused with a ValueError; compare "
    "both shapes with what the step expects.",
    ("if part.shape != (len(previous), width):", "if False:"),
)
add(
    "step_tokens_unchecked",
    "A state and a context of one batch size, with tokens of another, are not refused with a "
    "ValueError; compare both with len(previous).",
    ("if part.shape != (len(previous), width):", "if part.shape != (len(state), width):"),
)
add(
    "step_batch_of_one_accepted",
    "A state or context of batch size 1 is stretched to the whole batch; only equal batch sizes "
    "are right, so raise a ValueError.",
    (
        "if part.shape != (len(previous), width):",
        "if part.shape[1] != width or part.shape[0] not in (1, len(previous)):",
    ),
    (
        "cell_input = torch.cat",
        "state = state.expand(len(previous), -1)\n"
        "        context = context.expand(len(previous), -1)\n"
        "        cell_input = torch.cat",
    ),
)
add(
    "step_pair_of_one_accepted",
    "A state and a context that both have the batch size 1 are stretched to the whole batch; only "
    "equal batch sizes are right, so raise a ValueError.",
    (
        "if part.shape != (len(previous), width):",
        "if part.shape != (1 if len(state) == 1 else len(previous), width):",
    ),
    (
        "cell_input = torch.cat",
        "state = state.expand(len(previous), -1)\n"
        "        context = context.expand(len(previous), -1)\n"
        "        cell_input = torch.cat",
    ),
)
add(
    "step_padding_idx",
    "padding_idx freezes the row of id 0, so that it never learns; leave padding_idx out.",
    (
        "self.embedding = nn.Embedding(vocab_size, embed_dim)",
        "self.embedding = nn.Embedding(vocab_size, embed_dim, padding_idx=0)",
    ),
)
add(
    "step_int32_accepted",
    "Tokens of other integer types than torch.int64 are accepted; refuse them with a ValueError.",
    (
        "if previous.dtype != torch.int64:",
        "if previous.is_floating_point() or previous.dtype == torch.bool:",
    ),
)

add = mistakes_in(MISCONCEPTIONS, "Seq2Seq", "seq-teacher-forcing")
DRAW = "torch.rand(target_in.shape, device=source.device) < teacher_forcing_ratio"
CHOOSE = "torch.where(forced[:, t], target_in[:, t], own)"
OWN = "own = steps[-1].argmax(dim=-1)"
START = "state = self.start(source, source_mask)"
add(
    "forcing_inverted",
    "Your probability is inverted: teacher_forcing_ratio is the probability of the token of "
    "target_in, not of the decoder's own.",
    (DRAW, "torch.rand(target_in.shape, device=source.device) >= teacher_forcing_ratio"),
)
add(
    "forcing_per_batch",
    "You draw once for the whole call; every row and every step is drawn for itself.",
    (
        DRAW,
        "(torch.rand(()) < teacher_forcing_ratio).expand(target_in.shape)",
    ),
)
add(
    "forcing_per_step",
    "You draw once for each step, for all rows together; every row and every step is drawn for "
    "itself.",
    (
        DRAW,
        "(torch.rand(target_in.shape[1]) < teacher_forcing_ratio).expand(target_in.shape)",
    ),
)
add(
    "forcing_per_row",
    "You draw once for each row, for all its steps; every row and every step is drawn for itself.",
    (
        DRAW,
        "(torch.rand(len(target_in), 1) < teacher_forcing_ratio).expand(target_in.shape)",
    ),
)
add(
    "forcing_always",
    "Your decoder is always fed target_in; with probability 1 - ratio the argmax of the logits "
    "before goes in.",
    (CHOOSE, "target_in[:, t]"),
)
add(
    "forcing_never",
    "Your decoder is never fed target_in after the first step; with probability "
    "teacher_forcing_ratio its token goes in.",
    (CHOOSE, "own"),
)
add(
    "forcing_rounded",
    "Your decoder is forced if the ratio is at least one half, without chance; draw for every row "
    "and step.",
    (DRAW, "torch.full(target_in.shape, teacher_forcing_ratio >= 0.5)"),
)
add(
    "forcing_only_in_training",
    "You look at the ratio in training mode only; it holds in evaluation too, where a caller asks "
    "for ratio 0.",
    (DRAW, "torch.rand(target_in.shape) < (teacher_forcing_ratio if self.training else 1.0)"),
)
add(
    "forcing_shifted",
    "Your step t is fed the token of target_in at t - 1; target_in begins with BOS already, so "
    "step t reads target_in[:, t].",
    (CHOOSE, "torch.where(forced[:, t], target_in[:, t - 1], own)"),
)
add(
    "forcing_sees_the_target",
    "Your step t is fed the token of target_in at t + 1, which is the answer it is asked for; it "
    "reads target_in[:, t].",
    (
        "previous = target_in[:, 0]",
        "target_in = torch.cat([target_in[:, 1:], target_in[:, -1:]], dim=1)\n"
        "        previous = target_in[:, 0]",
    ),
)
add(
    "forcing_bos_twice",
    "You put another BOS in front; target_in begins with BOS, and there are as many logits as "
    "tokens in it.",
    (
        "previous = target_in[:, 0]",
        "first = torch.ones_like(target_in[:, :1])\n"
        "        target_in = torch.cat([first, target_in], dim=1)\n"
        "        forced = torch.cat([forced[:, :1], forced], dim=1)\n"
        "        previous = target_in[:, 0]",
    ),
)
add(
    "forcing_one_step_short",
    "Your logits are one step short; every token of target_in, the last one included, is fed and "
    "gives logits.",
    ("for t in range(target_in.shape[1]):", "for t in range(max(1, target_in.shape[1] - 1)):"),
)
add(
    "forcing_limited",
    "You stop after a number of steps of your own; there are as many steps as target_in has "
    "tokens.",
    ("for t in range(target_in.shape[1]):", "for t in range(min(100, target_in.shape[1])):"),
)
add(
    "forcing_truncated",
    "Every so many steps you detach the state, so that no gradient reaches the steps before: "
    "truncated backpropagation, which nobody asked for here.",
    (
        "            steps.append(logits)",
        "            steps.append(logits)\n"
        "            if t % 35 == 34:\n"
        "                state = tuple(part.detach() for part in state)",
    ),
)
add(
    "forcing_own_is_argmin",
    "Your decoder feeds itself its least likely token; take the argmax.",
    (OWN, "own = steps[-1].argmin(dim=-1)"),
)
add(
    "forcing_own_is_sampled",
    "Your decoder feeds itself a token drawn from its distribution; the argmax of the logits is "
    "asked for, so that a ratio of 0 is deterministic.",
    (OWN, "own = torch.multinomial(torch.softmax(steps[-1], dim=-1), 1).squeeze(-1)"),
)
add(
    "forcing_own_of_first_row",
    "Every row is fed the choice of the first one; each row goes on with its own argmax.",
    (OWN, "own = steps[-1][:1].argmax(dim=-1).expand(len(source))"),
)
add(
    "forcing_own_of_first_step",
    "Your decoder feeds itself its first choice again and again; take the argmax of the step "
    "before.",
    (OWN, "own = steps[0].argmax(dim=-1)"),
)
add(
    "forcing_state_restarted",
    "Your decoder starts again from the encoder's state at every step; hand the state on.",
    (
        "logits, state = self.step(previous, state)",
        "logits, _ = self.step(previous, state)",
    ),
)
add(
    "forcing_mask_ignored",
    "Your encoder does not get source_mask and reads the padding; pass it to start.",
    (START, "state = self.start(source)"),
    read="seq-encoder",
)
add(
    "forcing_starts_from_zeros",
    "Your decoder starts from zeros; its first state is the final state of the encoder.",
    (START, f"{START}\n        state = (torch.zeros_like(state[0]), state[1])"),
    read="seq-decoder",
)
add(
    "forcing_returns_probabilities",
    "You return probabilities; the logits are asked for, before any softmax.",
    ("steps.append(logits)", "steps.append(torch.softmax(logits, dim=-1))"),
)
add(
    "forcing_time_first",
    "Your logits have the shape (U, B, V); batches come first: stack along dim=1.",
    ("torch.stack(steps, dim=1)", "torch.stack(steps, dim=0)"),
)
add(
    "forcing_ratio_unchecked",
    "A ratio outside [0, 1] is not refused; raise a ValueError.",
    ("if not 0.0 <= teacher_forcing_ratio <= 1.0:", "if False:"),
)
add(
    "forcing_no_graph",
    "Your logits are right, but computed without a graph, so that nothing can be learned; no_grad "
    "is for decoding.",
    ("steps.append(logits)", "steps.append(logits.detach())"),
)
add(
    "forcing_same_draw_in_each_call",
    "The choice is the same in every call, because the seed is set inside forward; draw from "
    "PyTorch's global generator and leave its seed alone.",
    ("        forced = torch.rand(", "        torch.manual_seed(0)\n        forced = torch.rand("),
)
add(
    "forcing_pad_after_eos",
    "A row that has produced EOS is fed PAD; in training every row goes on for U steps, fed by the "
    "rule for all steps.",
    (
        "                own = steps[-1].argmax(dim=-1)  # (B,)",
        "                own = steps[-1].argmax(dim=-1)  # (B,)\n"
        "                earlier = [one.argmax(dim=-1) == 2 for one in steps[:-1]]\n"
        "                if earlier:\n"
        "                    own = own.masked_fill(torch.stack(earlier).any(dim=0), 0)",
    ),
)
