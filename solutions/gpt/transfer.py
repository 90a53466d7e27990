# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # GPT: transfer
#
# At the end of this unit a pre-trained GPT is loaded, fine-tuned on labelled texts, and asked
# with examples in its prompt.

# %%
"""Weights under other names, inputs of fine-tuning, a classifier, the joint loss, prompts."""

# The options of a cell must stand on one line, however long it gets.
# ruff: noqa: E501

# %%
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from solutions.gpt.generation import (
    DELIMITER,
    END,
    EXTRACT,
    PAD,
    START,
    TableModel,  # noqa: F401 - to try answer_scores with
)
from solutions.gpt.model import GPT
from solutions.gpt.training import language_model_loss, log_likelihood

# %% tags=["instructor"]
# isort: split
from pathlib import Path
from typing import TYPE_CHECKING, Any

from solutions.gpt.generation import generate
from solutions.gpt.model import CausalSelfAttention, FeedForward, PreNormBlock
from solutions.gpt.training import decay_groups
from toolkit.kv_cache import KVCache, LayerCache
from toolkit.module_swap import swap_modules

if TYPE_CHECKING:
    from toolkit.tokenizer import BytePairTokenizer

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("gpt-transfer")

# %% [markdown]
# ### Exercise 1: A checkpoint's names
#
# A checkpoint is a dictionary from names to tensors. Those of GPT-1 and GPT-2 on Hugging Face name the
# same numbers differently, and store some of them transposed. Write `rename_parameters(state)`.
#
# | theirs | ours |
# |---|---|
# | `wte.weight` or `tokens_embed.weight` | `token.weight` |
# | `wpe.weight` or `positions_embed.weight` | `position.weight` |
# | `h.i.attn.c_attn.*` | `blocks.i.attention.qkv.*` |
# | `h.i.attn.c_proj.*` | `blocks.i.attention.out_proj.*` |
# | `h.i.mlp.c_fc.*` | `blocks.i.feed_forward.w_1.*` |
# | `h.i.mlp.c_proj.*` | `blocks.i.feed_forward.w_2.*` |
# | `h.i.ln_1.*` and `h.i.ln_2.*` | `blocks.i.norm_1.*` and `blocks.i.norm_2.*` |
# | `ln_f.*` | `final_norm.*` |
#
# <!-- id: names -->
#
# * `state` is a `dict` from name to tensor, and so is the result. `*` is `weight` or `bias`; `i` is
#   the number of a block, which may have two digits. <!-- id: block-numbers -->
# * All names may begin with `transformer.`; ours never do. <!-- id: prefix -->
# * Their four `c_` layers keep the weight as `(in, out)`, an `nn.Linear` as `(out, in)`: these
#   **weights** are transposed, and the result is contiguous. <!-- id: transposed -->
#    Everything else is the **same**
#   tensor. <!-- id: same-tensor -->
# * Left out: `lm_head.weight` (the tied embedding, which is there already), `h.i.attn.bias` and
#   `h.i.attn.masked_bias` (the mask, no parameters), `position_ids`. <!-- id: left-out -->
# * `ValueError` for any other name; the message says which. <!-- id: unknown-name -->
#
# *Example.* `transformer.h.11.mlp.c_fc.weight` `(768, 3072)` becomes
# `blocks.11.feed_forward.w_1.weight` `(3072, 768)`, and `h.0.attn.c_attn.bias` becomes
# `blocks.0.attention.qkv.bias`, the same tensor.
#
# Book: `gpt-checkpoint`.
#
# <details><summary>Hint 1</summary>
#
# Take the prefix off first (`str.removeprefix`). Names of the first, second and last row of the
# table can be looked up whole, in a `dict`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A name of a block falls apart at its dots: `h`, the number, what it is, and `weight` or `bias`.
# `str.partition` cuts at the first dot, `str.rpartition` at the last.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `.T` is only another view of the same memory; `.contiguous()` copies it into the new order. A bias
# has one axis and is not turned. And `attn.bias` is a mask, while `attn.c_attn.bias` is a bias.
#
# </details>


# %% exercise="rename_parameters" points=3 section="gpt-checkpoint"
def rename_parameters(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Give the tensors of a Hugging Face GPT-1 or GPT-2 checkpoint our names and shapes.

    Args:
        state: name -> tensor; a name may begin with ``transformer.``.

    Returns:
        Our name -> tensor. The weights of ``c_attn``, ``c_proj`` and ``c_fc`` are transposed and
        contiguous, all others the same tensors. ``lm_head.weight``, the masks ``attn.bias`` and
        ``attn.masked_bias``, and ``position_ids`` are left out.

    Raises:
        ValueError: if a name is not one of these; the message says which.
    """
    ### BEGIN SOLUTION
    tables = {
        "wte.weight": "token.weight",
        "tokens_embed.weight": "token.weight",
        "wpe.weight": "position.weight",
        "positions_embed.weight": "position.weight",
        "ln_f.weight": "final_norm.weight",
        "ln_f.bias": "final_norm.bias",
    }
    parts = {
        "attn.c_attn": "attention.qkv",
        "attn.c_proj": "attention.out_proj",
        "mlp.c_fc": "feed_forward.w_1",
        "mlp.c_proj": "feed_forward.w_2",
        "ln_1": "norm_1",
        "ln_2": "norm_2",
    }
    renamed = {}
    for name, tensor in state.items():
        short = name.removeprefix("transformer.")
        if short in ("lm_head.weight", "position_ids"):
            continue
        if short in tables:
            renamed[tables[short]] = tensor
            continue
        first, _, rest = short.partition(".")
        number, _, rest = rest.partition(".")
        part, _, ending = rest.rpartition(".")
        in_block = first == "h" and number.isdecimal()
        if in_block and rest in ("attn.bias", "attn.masked_bias"):  # the mask, no parameter
            continue
        if not in_block or part not in parts or ending not in ("weight", "bias"):
            raise ValueError(f"{name} is no parameter of GPT-1 or GPT-2 that we know")
        if ".c_" in part and ending == "weight":
            tensor = tensor.T.contiguous()  # (in, out) -> (out, in)
        renamed[f"blocks.{number}.{parts[part]}.{ending}"] = tensor
    return renamed
    ### END SOLUTION


# %% check="rename_parameters" tags=["active-ipynb"]
# check("rename_parameters")

# %% [markdown]
# ## Fine-tuning
#
# ### Exercise 2: Prompt and response
#
# A decoder-only model has no second input for the question. Question and answer stand in **one**
# sequence, and the loss counts the answer alone. Write
# `prompt_and_response(prompt, response)`:
#
# | ids | `START` | prompt | `DELIMITER` | response | `END` |
# |---|---|---|---|---|---|
# | mask | `False` | `False` | `False` | `True` | `True` |
#
# <!-- id: one-sequence -->
#
# * Both arguments are lists of ids. Returns `(ids, mask)`, two lists of the same length; the mask
#   has `bool`s.
# * The mask is one over targets, as `language_model_loss` takes it: the response counts, and so
#   does `END`, from which the model learns to stop. <!-- id: end-counts -->
# * The lists that come in stay as they are. <!-- id: lists-unchanged -->
# * `ValueError` if `prompt` or `response` is empty. <!-- id: empty -->
#
# *Example.* `prompt_and_response([9], [8, 7])` is `[1, 9, 2, 8, 7, 4]` and
# `[False, False, False, True, True, True]`.
#
# Book: `gpt-response`.
#
# <details><summary>Hint 1</summary>
#
# `[a, *b, c]` makes a new list with the entries of `b` in the middle.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Count what is `True` from the end: the response, and one more.
#
# </details>


# %% exercise="prompt_and_response" points=2 section="gpt-response"
def prompt_and_response(prompt: list[int], response: list[int]) -> tuple[list[int], list[bool]]:
    """A question and its answer in one row, and which targets count.

    Args:
        prompt: ids, at least one.
        response: ids, at least one.

    Returns:
        The ids [START] prompt [DELIMITER] response [END], and a mask of the same length: True at
        the response and at END.

    Raises:
        ValueError: if prompt or response is empty.
    """
    ### BEGIN SOLUTION
    if not prompt or not response:
        raise ValueError("prompt and response must have at least one token each")
    ids = [START, *prompt, DELIMITER, *response, END]
    counted = len(response) + 1  # the response and END
    return ids, [False] * (len(ids) - counted) + [True] * counted
    ### END SOLUTION


# %% check="prompt_and_response" tags=["active-ipynb"]
# check("prompt_and_response")

# %% [markdown]
# ### Exercise 3: Two texts with an order
#
# For its tasks GPT-1 changes the input, not the model. Write `entailment_input(premise,
# hypothesis)`, the input for the question whether the first text implies the second:
#
# $$\texttt{START}\;\text{premise}\;\texttt{DELIMITER}\;\text{hypothesis}\;\texttt{EXTRACT}$$
#
# <!-- id: format -->
#
# * Both are lists of ids, and so is the result. At `EXTRACT` the model has seen both texts; there a
#   classifier reads.
# * `ValueError` if one of the two is empty. <!-- id: empty -->
#
# *Example.* `entailment_input([7, 8], [9])` is `[1, 7, 8, 2, 9, 3]`.
#
# Book: `gpt-inputs`.
#
# <details><summary>Hint 1</summary>
#
# The order matters: the model reads from left to right.
#
# </details>
# <details><summary>Hint 2</summary>
#
# It is one list. An empty list is `False` in a condition.
#
# </details>


# %% exercise="entailment_input" points=1 section="gpt-inputs"
def entailment_input(premise: list[int], hypothesis: list[int]) -> list[int]:
    """A pair of texts, one after the other (Radford et al. 2018, section 3.3, figure 1).

    Args:
        premise: ids, at least one.
        hypothesis: ids, at least one.

    Returns:
        [START] premise [DELIMITER] hypothesis [EXTRACT].

    Raises:
        ValueError: if premise or hypothesis is empty.
    """
    ### BEGIN SOLUTION
    if not premise or not hypothesis:
        raise ValueError("each of the two texts must have at least one token")
    return [START, *premise, DELIMITER, *hypothesis, EXTRACT]
    ### END SOLUTION


# %% check="entailment_input" tags=["active-ipynb"]
# check("entailment_input")

# %% [markdown]
# ### Exercise 4: Two texts without an order
#
# Whether two texts say the same doesn't depend on which stands first, but a causal model reads one
# of them before the other. Write `similarity_inputs(first, second)`, which gives it both orders.
#
# * The result is a list of two inputs of the form of exercise 3: `first` before
#   `second`, then `second` before `first`. <!-- id: both-orders -->
#   (The model's vectors at both `EXTRACT`s are added.)
# * `ValueError` if one of the two is empty. <!-- id: empty -->
#
# *Example.* `similarity_inputs([7, 8], [9])` is `[[1, 7, 8, 2, 9, 3], [1, 9, 2, 7, 8, 3]]`.
#
# Book: `gpt-inputs`.
#
# <details><summary>Hint 1</summary>
#
# You have a function for one of the two.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Its checks do for both.
#
# </details>


# %% exercise="similarity_inputs" points=1 section="gpt-inputs"
def similarity_inputs(first: list[int], second: list[int]) -> list[list[int]]:
    """A pair without an order, in both orders (Radford et al. 2018, section 3.3, figure 1).

    Args:
        first: ids, at least one.
        second: ids, at least one.

    Returns:
        Two inputs of the same form, the first text first in one, the second in the other.

    Raises:
        ValueError: if first or second is empty.
    """
    ### BEGIN SOLUTION
    return [entailment_input(first, second), entailment_input(second, first)]
    ### END SOLUTION


# %% check="similarity_inputs" tags=["active-ipynb"]
# check("similarity_inputs")

# %% [markdown]
# ### Exercise 5: One input for each answer
#
# A question with several answers: write `choice_inputs(context, answers)`. Each answer gets an
# input of its own, each input will get a score, and a softmax over the scores compares them.
#
# * `context` is a list of ids, the document and the question, one after the other. `answers` is a
#   list of lists of ids.
# * The result is a list with one input for each answer, in order:
#   `START`, context, `DELIMITER`, answer, `EXTRACT`. <!-- id: one-for-each -->
# * `ValueError` if `context`, `answers` or one of the answers is empty. <!-- id: empty -->
#
# *Example.* `choice_inputs([7, 8], [[9], [10]])` is
# `[[1, 7, 8, 2, 9, 3], [1, 7, 8, 2, 10, 3]]`.
#
# Book: `gpt-inputs`.
#
# <details><summary>Hint 1</summary>
#
# Each input has the form of exercise 3.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Without any answer a loop over the answers checks nothing: that case needs a check of its own.
#
# </details>


# %% exercise="choice_inputs" points=1 section="gpt-inputs"
def choice_inputs(context: list[int], answers: list[list[int]]) -> list[list[int]]:
    """One input for each answer (Radford et al. 2018, section 3.3, figure 1).

    Args:
        context: ids of the document and the question, at least one.
        answers: the ids of each answer, at least one; at least one answer.

    Returns:
        For each answer [START] context [DELIMITER] answer [EXTRACT].

    Raises:
        ValueError: if context, answers or one of the answers is empty.
    """
    ### BEGIN SOLUTION
    if not answers:
        raise ValueError("there must be at least one answer")
    return [entailment_input(context, answer) for answer in answers]
    ### END SOLUTION


# %% check="choice_inputs" tags=["active-ipynb"]
# check("choice_inputs")

# %% [markdown]
# ### Exercise 6: A classifier
#
# Write `GPTClassifier(gpt, num_labels, dropout=0.1)`: a GPT with two heads. One is the language
# model's; the other reads the last block's vector at `EXTRACT`:
#
# $$\text{scores} =
# W_y\,\operatorname{dropout}\bigl(\text{features}_{\,t(\texttt{EXTRACT})}\bigr) + b_y,\qquad
# \text{logits} = \text{features}\; W_e^{\mathsf T}$$
#
# <!-- id: formula -->
#
# * Submodules: `gpt`, the model that is given (the very same, so that fine-tuning trains it too);
#   <!-- id: the-very-gpt -->
#   `classifier`, an `nn.Linear` from $D$ to `num_labels`, with bias. <!-- id: classifier -->
# * `forward(ids)`: `(B, T)`, each row with exactly one `EXTRACT`, padded with `PAD` behind it. The
#   position may differ from row to row. <!-- id: own-position -->
#   Returns `(scores, logits)`: `(B, L)` and `(B, T, V)`.
# * **One** pass through the blocks serves both heads. <!-- id: one-pass -->
# * Dropout acts on the vector that the classifier reads, not on the features of the language model.
#   <!-- id: dropout -->
# * `ValueError` if a row has no `EXTRACT`, or more than one. <!-- id: one-extract -->
#
# *Example.* In evaluation mode, append columns of `PAD`: the scores stay the same, though nothing
# masks the padding.
#
# Book: `gpt-classifier`.
#
# <details><summary>Hint 1</summary>
#
# `gpt.features` gives the vectors, and the logits are only one product away. Calling `gpt` as well
# would be a second pass.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `ids == EXTRACT` is a bool tensor `(B, T)`. Its sum over each row is what must be checked.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Where each row has exactly one `True`, such a bool tensor used as an index picks one vector for
# each row, in order. The width of a GPT is the `embedding_dim` of its `token`.
#
# </details>


# %% exercise="GPTClassifier" points=4 section="gpt-classifier"
class GPTClassifier(nn.Module):
    """A label for an input, read at its EXTRACT (Radford et al. 2018, section 3.2).

    Submodules: ``gpt`` = the model that is given, ``classifier`` = nn.Linear(D, num_labels).
    """

    def __init__(self, gpt: GPT, num_labels: int, dropout: float = 0.1) -> None:
        """Keep the model and create ``classifier``.

        Args:
            gpt: a GPT.
            num_labels: L.
            dropout: acts on the vector that the classifier reads, in training mode.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.gpt = gpt
        self.classifier = nn.Linear(gpt.token.embedding_dim, num_labels)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.classifier.weight, std=0.02)
        nn.init.zeros_(self.classifier.bias)
        ### END SOLUTION

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Score the labels, and every token as the next one: one pass for both heads.

        Args:
            ids: (B, T) int64, each row with exactly one EXTRACT; padding stands after it.

        Returns:
            The scores of the labels (B, L), and the logits (B, T, V) of the language model.

        Raises:
            ValueError: if a row has no EXTRACT, or several.
        """
        ### BEGIN SOLUTION
        found = ids == EXTRACT  # (B, T)
        if (found.sum(dim=1) != 1).any():
            raise ValueError("every row must have exactly one EXTRACT")
        hidden = self.gpt.features(ids)  # (B, T, D)
        read = self.dropout(hidden[found])  # (B, D), one position of each row
        logits = hidden @ self.gpt.token.weight.T  # (B, T, V)
        return self.classifier(read), logits  # (B, L), (B, T, V)
        ### END SOLUTION


# %% check="GPTClassifier" tags=["active-ipynb"]
# check("GPTClassifier")


# %% tags=["instructor"]
class SimilarityClassifier(GPTClassifier):
    """A label for two texts without an order (Radford et al. 2018, section 3.3).

    Submodules as in GPTClassifier. The vectors of both orders are added before the classifier.
    """

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """ids (B, 2, T), both orders, each with one EXTRACT -> (B, L) and (B, 2, T, V)."""
        found = ids == EXTRACT  # (B, 2, T)
        if (found.sum(dim=2) != 1).any():
            raise ValueError("every row must have exactly one EXTRACT")
        hidden = self.gpt.features(ids.flatten(0, 1))  # (2 B, T, D)
        both = hidden[found.flatten(0, 1)].unflatten(0, (-1, 2)).sum(dim=1)  # (B, D)
        logits = hidden @ self.gpt.token.weight.T  # (2 B, T, V)
        return self.classifier(self.dropout(both)), logits.unflatten(0, (-1, 2))


class ChoiceClassifier(GPTClassifier):
    """One score for each of several answers (Radford et al. 2018, section 3.3).

    Submodules as in GPTClassifier, with one label.
    """

    def __init__(self, gpt: GPT, dropout: float = 0.1) -> None:
        """Keep the model and create ``classifier``, a linear layer from D to 1."""
        super().__init__(gpt, 1, dropout)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """ids (B, A, T), a row with one EXTRACT for each answer -> (B, A) and (B, A, T, V)."""
        scores, logits = super().forward(ids.flatten(0, 1))  # (B A, 1), (B A, T, V)
        return scores.reshape(ids.shape[:2]), logits.unflatten(0, ids.shape[:2])


# %% [markdown]
# ### Exercise 7: The joint loss
#
# In fine-tuning GPT-1 goes on predicting tokens, as an auxiliary task. Write
# `joint_loss(scores, labels, logits, ids, weight=0.5)`:
#
# $$L_3 = L_2 + \lambda\, L_1,\qquad
# L_2 = -\frac1B \sum_b \log P(y_b \mid u_b),\qquad
# L_1 = -\frac1n \sum_{(b,t)\,:\,t \ge 1,\; u_{b,t} \ne \texttt{PAD}}
# \log P(u_{b,t} \mid u_{b,0}, \dots, u_{b,t-1})$$
#
# * `scores` `(B, L)` and `logits` `(B, T, V)` come from `GPTClassifier`; `labels` `(B,)`, `ids`
#   `(B, T)`; `weight` is $\lambda$. The paper maximises sums of logarithms; here all three are
#   **losses**, means to be minimised. <!-- id: means -->
# * $L_1$ is `language_model_loss` over the targets that are not `PAD`, special ones like `EXTRACT`
#   included; $n$ is their number. <!-- id: no-padding -->
# * Returns `(L3, L2, L1)`, three scalars in this order. <!-- id: three-scalars -->
# * `ValueError` if `weight` is negative. <!-- id: negative-weight -->
#
# *Example.* Three labels, $V = 4$, and all scores and logits are 0: $L_2 = \log 3 \approx 1.099$,
# $L_1 = \log 4 \approx 1.386$, and $L_3 \approx 1.792$.
#
# Book: `gpt-joint`.
#
# <details><summary>Hint 1</summary>
#
# `language_model_loss` takes a mask over targets, with the columns of `ids`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `F.cross_entropy` of `(B, L)` and `(B,)` is a mean over the batch already.
#
# </details>


# %% exercise="joint_loss" points=3 section="gpt-joint"
def joint_loss(
    scores: Tensor, labels: Tensor, logits: Tensor, ids: Tensor, weight: float = 0.5
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of fine-tuning, with the language model's (Radford et al. 2018, equation 5).

    Args:
        scores: (B, L).
        labels: (B,) int64.
        logits: (B, T, V).
        ids: (B, T) int64, padded with PAD.
        weight: of the language model's loss, at least 0.

    Returns:
        Three scalars to be made small: L3 = L2 + weight * L1; L2, the mean cross-entropy of the
        labels; L1, the mean of -log P over all targets that are not PAD.

    Raises:
        ValueError: if weight < 0.
    """
    ### BEGIN SOLUTION
    if weight < 0:
        raise ValueError(f"weight must be at least 0, but is {weight}")
    task = F.cross_entropy(scores, labels)  # scalar
    text = language_model_loss(logits, ids, ids != PAD)  # scalar
    return task + weight * text, task, text
    ### END SOLUTION


# %% check="joint_loss" tags=["active-ipynb"]
# check("joint_loss")

# %% [markdown]
# ## Prompting
#
# ### Exercise 8: Examples in the prompt
#
# GPT-3 is not fine-tuned: the task is described in the prompt, perhaps with examples, and the model
# goes on from there. Write `build_prompt(task, examples, query, arrow=" =>")`, which makes one
# text:
#
# * First the description `task`, on a line of its own; if it is empty, there is no such line.
#   <!-- id: task -->
# * Then one line for each of `examples`, a list of pairs of strings: the question, `arrow`, a
#   space, the answer. <!-- id: examples -->
# * At last a line with `query` and `arrow`. **Nothing** stands after it, not even a space: the
#   answer is what the model writes. <!-- id: query-last -->
# * The lines are joined by newlines; there is none at the end. <!-- id: newlines -->
#   Without examples it is a *zero-shot*
#   prompt, with one a *one-shot*, with more a *few-shot* prompt.
#
# *Example.* `build_prompt("Translate English to French:", [("sea otter", "loutre de mer")],
# "cheese")` is
#
# ```
# Translate English to French:
# sea otter => loutre de mer
# cheese =>
# ```
#
# Book: `gpt-prompting`.
#
# <details><summary>Hint 1</summary>
#
# Collect the lines in a list; `"\n".join(lines)` puts newlines between them, and only there.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The default of `arrow` begins with a space. The one behind it stands only where an answer follows.
#
# </details>


# %% exercise="build_prompt" points=2 section="gpt-prompting"
def build_prompt(task: str, examples: list[tuple[str, str]], query: str, arrow: str = " =>") -> str:
    """A task, examples of it and a question as one text (Brown et al. 2020, figure 2.1).

    Args:
        task: a description; left out if it is empty.
        examples: pairs of question and answer, as many as there are shots.
        query: the question that the model is to answer.
        arrow: what stands after a question; a space follows before the answer.

    Returns:
        The description, a line for each example, and the query with its arrow, joined by newlines.
        Nothing stands after the last arrow.
    """
    ### BEGIN SOLUTION
    lines = [task] if task else []
    lines += [f"{question}{arrow} {answer}" for question, answer in examples]
    return "\n".join([*lines, f"{query}{arrow}"])
    ### END SOLUTION


# %% check="build_prompt" tags=["active-ipynb"]
# check("build_prompt")

# %% [markdown]
# ### Exercise 9: Which answer fits best
#
# To choose among given answers, a language model need not write anything: we compute how likely
# each of them is. Write `answer_scores(model, prompt, answers, per_token=True)`. For the answer
# $a = a_1 \dots a_m$ after the prompt $q$:
#
# $$\text{score}(a) = \frac1m \sum_{k=1}^{m} \log P(a_k \mid q, a_1, \dots, a_{k-1})$$
#
# <!-- id: mean -->
#
# * `prompt` is a list of ids, `answers` a list of lists of ids; `model` maps ids `(B, T)` to logits
#   `(B, T, V)` and has an attribute `max_length`. The result is a tensor `(A,)`, one score for each
#   of the $A$ answers, without a gradient. <!-- id: one-score-each -->
# * `per_token=False`: the sum in place of the mean. <!-- id: sum --> Sums favour short answers.
# * Only the answer's tokens are scored, **all** of them, the first included: it is predicted from
#   the prompt's last token. <!-- id: all-of-the-answer -->
# * `ValueError` if `prompt`, `answers` or one of the answers is empty, or if the prompt and an
#   answer together are longer than `model.max_length`. <!-- id: bad-input -->
#
# *Example.* A `TableModel` of 8 tokens with the table 0: the answers `[6]` and `[6, 7]` both have
# $-\log 8 \approx -2.079$ by token; their sums are $-2.079$ and $-4.159$.
#
# Book: `gpt-prompting`.
#
# <details><summary>Hint 1</summary>
#
# Apply the model to prompt and answer as one row. The answer's tokens are the targets that count.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `log_likelihood` with a mask gives the sum. The mask belongs to the targets: it is `True` where
# the answer stands.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A loop with one call for each answer is fine. For a single call pad the rows on the right: no
# token of an answer can see what stands behind it.
#
# </details>


# %% exercise="answer_scores" points=3 section="gpt-prompting"
def answer_scores(
    model: nn.Module, prompt: list[int], answers: list[list[int]], per_token: bool = True
) -> Tensor:
    """How well each answer goes on from the prompt (Brown et al. 2020, section 2.4).

    Args:
        model: ids (B, T) -> logits (B, T, V), with ``max_length``, the longest input.
        prompt: ids, at least one.
        answers: the ids of each of A answers, at least one.
        per_token: the mean over the answer's tokens, which doesn't favour short answers; False:
            the sum.

    Returns:
        (A,): log P(answer | prompt), by token or whole. No gradient.

    Raises:
        ValueError: if prompt, answers or one of the answers is empty, or a prompt with an answer is
            longer than the model's context.
    """
    ### BEGIN SOLUTION
    if not prompt or not answers or not all(answers):
        raise ValueError("the prompt and every answer must have at least one token")
    lengths = [len(answer) for answer in answers]
    longest = len(prompt) + max(lengths)
    if longest > model.max_length:
        raise ValueError(f"{longest} tokens are too many for a max_length of {model.max_length}")
    # Padding stands on the right, where no token of the answer can see it.
    rows = [prompt + answer + [PAD] * (longest - len(prompt + answer)) for answer in answers]
    device = next((part.device for part in (*model.parameters(), *model.buffers())), None)
    ids = torch.tensor(rows, device=device)  # (A, T)
    counts = torch.tensor(lengths, device=device)  # (A,)
    positions = torch.arange(longest, device=device) - len(prompt)  # (T,), from the answer's first
    mask = (positions >= 0) & (positions < counts.unsqueeze(1))  # (A, T)
    with torch.no_grad():
        scores = log_likelihood(model(ids), ids, mask)  # (A,)
    return scores / counts if per_token else scores  # (A,)
    ### END SOLUTION


# %% check="answer_scores" tags=["active-ipynb"]
# check("answer_scores")

# %% [markdown]
# ### Question: What changes inside the model when a prompt holds examples?
#
# GPT-3 is often said to *learn* a task from a few examples in its prompt. Compare that with
# fine-tuning on the same examples: what changes in the model, and what stays as it is? Where is
# what the examples tell kept while the answer is written, and what is left of it afterwards? What
# limits how many examples can be used, and what do more of them cost? And what may make a prompt
# with examples work better than one without, although not every such gain shows that a new task was
# learned?
#
# Book: `gpt-prompting`. 3 points, marked by a person.
#

# %% [markdown] question="what_few_shot_learns" points=3 section="gpt-prompting" title="What changes inside the model when a prompt holds examples?"
# **Your answer:**
#
# ### BEGIN SOLUTION
# *What changes.* No parameter does. There is no loss, no gradient and no step of an optimiser; the
# examples are input, read like any other text. What differs from a prompt without them are the
# *activations*: at each position, in every block, keys and values are made of what stands there, and
# the later positions attend to them. The function $f(\text{tokens})$ is the same, its argument is
# another one. Fine-tuning changes the function: gradients of the examples' loss move the weights,
# and the examples themselves are gone afterwards.
#
# *Where it is kept, and for how long.* In the context alone: in the keys and values of the
# examples' tokens (the cache holds just these). They act through attention as long as they stand in
# the context. With the next prompt, or when the context moves past them, nothing is left; a second
# query must bring the examples again. A fine-tuned model has the task in its weights, and needs no
# examples in its input.
#
# *Limits and cost.* The context $C$ limits how many examples fit (2048 tokens in GPT-3, some 10 to
# 100 examples). Each token of the prompt has to go through all blocks for each new prompt, and the
# attention grows with the square of its length; keys and values take memory in proportion to it. In
# fine-tuning the cost is paid once, in training, and there may be any number of examples.
#
# *Why it can help.* The prompt changes the conditional distribution of what follows: examples show
# the format, which labels there are, and which of the tasks that the model met in pre-training is
# meant. Text with such patterns stood in the training data, and predicting the next token well in
# it rewards making use of earlier lines. So a gain may be *recognition* of a known task (a format,
# a list of labels, a language) rather than a rule that was new. To tell them apart one must test:
# with wrong labels in the examples, with an invented task or with meaningless names for the labels,
# against a prompt with the description alone. The paper itself (Brown et al., 2020, section 5)
# leaves open whether tasks are learned anew or recognised.
#
# *Points by part, and what commonly goes wrong:* `solutions/marking_guides.md`.
# ### END SOLUTION


# %% tags=["instructor"]
def from_pretrained(folder: str | Path, **more: Any) -> tuple[GPT, "BytePairTokenizer | None"]:
    """Build a GPT and its tokenizer from a folder with a Hugging Face GPT-1 or GPT-2 checkpoint.

    The ids are the checkpoint's. It has none for PAD, START, DELIMITER and EXTRACT of the course;
    GPT-2's <|endoftext|>, which stands where the course has START and END, is the tokenizer's
    ``end``: ``generate(model, ids, 50, stop=tokenizer.end)``.

    Args:
        folder: holds config.json and model.safetensors, and for the tokenizer vocab.json and
            merges.txt (or tokenizer.json).
        **more: ``dropout`` (else the configuration's).

    Returns:
        The model in evaluation mode, in the floating type of the checkpoint, and the tokenizer;
        None if the folder has no file of one.

    Raises:
        ValueError: if an option is unknown; a file is missing or damaged; the checkpoint is neither
            GPT-1 nor GPT-2, or has a part that our model hasn't (another activation, norm, width
            inside, scale or output matrix, several rates of dropout unless one is given); a name is
            foreign, missing or there twice; a shape or a type of numbers does not fit; or the
            vocabulary lacks its special token, or does not go with the configuration.
    """
    # Needed here only: the rest of the chapter works without these.
    from toolkit import checkpoint
    from toolkit.tokenizer import BytePairTokenizer

    config = checkpoint.read_config(folder, ("gpt2", "openai-gpt"))
    kind = config["model_type"]
    # The "gelu" of GPT-1's code is the form with tanh, which GPT-2's calls "gelu_new".
    if kind == "gpt2":
        checkpoint.only(config, "activation_function", "gelu_new", "gelu_pytorch_tanh")
    else:
        checkpoint.only(config, "afn", "gelu", "gelu_new")
    width = checkpoint.positive(config, "n_embd", "hidden_size", default=768)
    for key, value in (
        ("n_inner", 4 * width),
        ("layer_norm_epsilon", 1e-5),
        ("scale_attn_weights", True),
        ("scale_attn_by_inverse_layer_idx", False),
        ("add_cross_attention", False),
        ("tie_word_embeddings", True),
    ):
        checkpoint.only(config, key, value)
    dropout = more.pop("dropout", None)
    if dropout is None:
        rates = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
        dropout = checkpoint.probability(config, *rates, default=0.1)
    if more:
        raise ValueError(f"there is no option {', '.join(sorted(more))}")

    default = (50257, 1024) if kind == "gpt2" else (40478, 512)
    vocab_size = checkpoint.positive(config, "vocab_size", default=default[0])
    tokenizer = BytePairTokenizer.read(folder, kind)
    if tokenizer is not None:
        checkpoint.room(vocab_size, len(tokenizer))
        for key in ("bos_token_id", "eos_token_id"):
            checkpoint.agree(config, key, tokenizer.end, "<|endoftext|>")
    model = GPT(
        vocab_size,
        checkpoint.positive(config, "n_positions", "max_position_embeddings", default=default[1]),
        width,
        checkpoint.positive(config, "n_layer", "num_hidden_layers", default=12),
        checkpoint.positive(config, "n_head", "num_attention_heads", default=12),
        dropout,
        norm_first=kind == "gpt2",
    )
    stored = checkpoint.read_weights(folder)
    found = checkpoint.renamed(stored, rename_parameters)
    wanted = model.state_dict()
    checkpoint.fit(found, wanted)
    for name in wanted:
        if name not in found:
            raise ValueError(f"the checkpoint lacks {name}")
    table = found["token.weight"]
    checkpoint.same(stored, "lm_head.weight", table, "token.weight")
    model.to(table.dtype)
    model.load_state_dict(found)
    return model.eval(), tokenizer


# %% tags=["instructor"]
class FusedAttention(CausalSelfAttention):
    """CausalSelfAttention by ``scaled_dot_product_attention``."""

    def __init__(self, attention: CausalSelfAttention) -> None:
        """Share the layers, the dropout and the mode of ``attention``."""
        nn.Module.__init__(self)
        self.num_heads = attention.num_heads
        self.qkv, self.out_proj = attention.qkv, attention.out_proj
        self.dropout = attention.dropout
        self.training = attention.training

    def forward(self, x: Tensor) -> Tensor:
        """As in CausalSelfAttention."""
        parts = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))  # (B, T, 3, H, D/H)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4).unbind(0)  # (B, H, T, D/H) each
        rate = self.dropout.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(
            queries, keys, values, dropout_p=rate, is_causal=True
        )  # (B, H, T, D/H)
        return self.dropout(self.out_proj(mixed.transpose(1, 2).flatten(2)))  # (B, T, D)


class FusedFeedForward(FeedForward):
    """FeedForward with the GELU of PyTorch, one kernel in place of eight."""

    def __init__(self, network: FeedForward) -> None:
        """Share the layers, the dropout and the mode of ``network``."""
        nn.Module.__init__(self)
        self.w_1, self.w_2 = network.w_1, network.w_2
        self.dropout = network.dropout
        self.training = network.training

    def forward(self, x: Tensor) -> Tensor:
        """As in FeedForward."""
        return self.dropout(self.w_2(F.gelu(self.w_1(x), approximate="tanh")))  # (..., D)


def fused(model: nn.Module) -> nn.Module:
    """A model that computes attention and GELU by fused kernels, with the same parameters.

    Args:
        model: any module; it stays as it is. Move it to its device first.

    Returns:
        A copy that holds the parameters and buffers of ``model`` themselves, so that training the
        one trains the other, and a fused module for each CausalSelfAttention and FeedForward.
        Results agree up to rounding; with dropout, in distribution.
    """
    return swap_modules(model, {CausalSelfAttention: FusedAttention, FeedForward: FusedFeedForward})


class _Remembering(nn.Module):
    """A GPT that computes the last token alone if it has seen all others; dropout is left out."""

    def __init__(self, model: GPT, batch: int, length: int) -> None:
        """Lay out keys and values of every block for ``length`` positions of ``batch`` rows."""
        super().__init__()
        self.model = model
        self.max_length = model.max_length
        self.seen = 0
        layers = []
        for block in model.blocks:
            heads = block.attention.num_heads
            size = (batch, heads, length, model.token.embedding_dim // heads)
            empty = model.token.weight.new_empty
            layers.append(LayerCache(empty(size), empty(size)))  # (B, H, length, D/H) each
        # Its tensors are as long as they will ever be, and written to: nothing else reads them.
        self.cache = KVCache(layers)

    def forward(self, ids: Tensor) -> Tensor:
        """ids (B, T), one more than before, or others -> the last logits (B, 1, V)."""
        model, end = self.model, ids.shape[1]
        # Else the row is new, or the context is full, and every token has another position.
        start = self.seen if end == self.seen + 1 else 0
        self.seen = end
        x = model.token(ids[:, start:]) + model.position.weight[start:end]  # (B, T - start, D)
        for block, kept in zip(model.blocks, self.cache.layers, strict=True):
            norm_first = isinstance(block, PreNormBlock)
            attention, network = block.attention, block.feed_forward
            parts = attention.qkv(block.norm_1(x) if norm_first else x)  # (B, T - start, 3 D)
            parts = parts.unflatten(-1, (3, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)
            queries, kept.keys[:, :, start:end], kept.values[:, :, start:end] = parts.unbind(0)
            mixed = F.scaled_dot_product_attention(
                queries, kept.keys[:, :, :end], kept.values[:, :, :end], is_causal=start == 0
            )  # (B, H, T - start, D/H)
            x = x + attention.out_proj(mixed.transpose(1, 2).flatten(2))  # (B, T - start, D)
            x = x if norm_first else block.norm_1(x)
            inside = network.w_1(block.norm_2(x) if norm_first else x)  # (B, T - start, 4 D)
            x = x + network.w_2(F.gelu(inside, approximate="tanh"))  # (B, T - start, D)
            x = x if norm_first else block.norm_2(x)
        return model.final_norm(x[:, -1:]) @ model.token.weight.T  # (B, 1, V)


def fast_generate(
    model: GPT,
    ids: Tensor,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: int | None = None,
    seed: int | None = None,
) -> Tensor:
    """The result of ``generate`` with a cache that is laid out once; dropout is left out.

    Args:
        model: a GPT.
        ids: (B, T) int64.
        max_new_tokens: as for ``generate``, and so are all others.
        temperature: of the draws.
        top_k: how many tokens stay.
        top_p: how much probability stays.
        stop: ends a row.
        seed: of the draws.

    Returns:
        (B, T + n) int64. When the context is full every token's position changes with each new one:
        from then on each step computes the last ``max_length`` tokens anew, as ``generate`` does.

    Raises:
        ValueError: as ``generate`` does.
    """
    length = min(model.max_length, ids.shape[1] + max(max_new_tokens, 0))
    remembering = _Remembering(model, len(ids), length)
    return generate(remembering, ids, max_new_tokens, temperature, top_k, top_p, stop, seed)


def fast_optimiser(model: nn.Module, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW over ``decay_groups``, all parameters in one kernel (CPU and CUDA).

    Args:
        model: any module.
        lr: the learning rate.
        weight_decay: as for ``decay_groups``.

    Returns:
        The optimiser, with the betas and eps of ``train``.
    """
    groups = decay_groups(model, weight_decay)
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8, fused=True)


def flops_per_token(model: GPT, length: int) -> int:
    """Operations of a training step for each token (Chowdhery et al. 2022, appendix B).

    Args:
        model: a GPT.
        length: T, of the blocks on which it is trained.

    Returns:
        6 for each number in a matrix that tokens are multiplied by (2 forward, 4 backward; the
        token embedding once, as output matrix), and 12 N D T for the scores and the weighted sums
        of the attention, the masked ones included.
    """
    width = model.token.embedding_dim
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    matrices = sum(layer.weight.numel() for layer in layers) + model.token.weight.numel()
    return 6 * matrices + 12 * len(model.blocks) * width * length
