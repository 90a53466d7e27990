"""The shipped models in classes of one's own: what the ungraded cells of the units are given.

    shipped = read("gpt")
    model = GPT(**shipped.sizes)
    model.load_state_dict(shipped.tensors())

`toolkit.models` loads a model into a whole module of classes; here a student has written some of
them. What is missing of a translator is done by plain functions of PyTorch: a unit that asks for
cells gets the attention, one that asks for positions the rest of the Transformer.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit import device, models, plots, training, widgets
from toolkit.bert import fine_tuning
from toolkit.corpora import code_corpus, docstrings, tasks
from toolkit.corpora.code_corpus import END, START
from toolkit.corpora.translation import BOS, EOS, PAD, collate, tokenize
from toolkit.positional_encoding import measures
from toolkit.pretrain import bert, common, gpt, translator
from toolkit.transformer import translation_task

Item = TypeVar("Item")
MAX_LENGTH = 60  # tokens of a translation at most
# Names of one tensor: the file holds it once, and a model's state all of them.
TIED = {
    "tgt_embed.lut.weight": "src_embed.lut.weight",
    "generator.proj.weight": "src_embed.lut.weight",
    "mlm.token.weight": "bert.embeddings.token.weight",
}


# --------------------------------------------------------------------------- weights


@dataclass(frozen=True)
class ShippedWeights:
    """A folder of `models/`, without classes.

    sizes: arguments of the class that the weights are for. tokenizer: as of `models.Shipped`.
    """

    name: str
    sizes: dict[str, Any]
    tokenizer: Any = field(repr=False)
    state: dict[str, Tensor] = field(repr=False)

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """The tensors in float32 whose names begin with `prefix`, which is taken off."""
        return {n.removeprefix(prefix): t for n, t in self.state.items() if n.startswith(prefix)}

    def held_out(self) -> list[Any]:
        """Text it was not trained on: documents (BERT), functions (GPT) or pairs."""
        part, _, _ = models.KINDS[self.name]
        return part.read_held_out(models.FOLDER / self.name / part.HELD_OUT)

    def source(self, text: str) -> Tensor:
        """A sentence for a translator: ids (1, S). ValueError: words that it does not know."""
        return torch.tensor([self.tokenizer.encode(text)])

    def words(self, text: str) -> list[str]:
        """The source sentence's tokens, one for each id."""
        return tokenize(" ".join(text.split()), self.tokenizer.locales[0])


def read(name: str) -> ShippedWeights:
    """Read one of the models that come with the book: "bert", "gpt" or a translator.

    Raises:
        ValueError: there is no such model.
        FileNotFoundError: its folder is not here.
    """
    from safetensors.torch import load

    if name not in models.KINDS:
        raise ValueError(f"there is no model {name!r}; there are {', '.join(models.KINDS)}")
    folder = models.FOLDER / name
    if not (folder / common.WEIGHTS).is_file():
        raise FileNotFoundError(
            f"models/{name} is not beside toolkit/; the unit's zip and the repository have it"
        )
    config = json.loads((folder / common.CONFIG).read_text(encoding="utf-8"))
    part, _, _ = models.KINDS[name]
    tokens = folder / common.TOKENIZER
    if part is translator:
        tokenizer: Any = translator.Words.load(tokens, (config["source"], config["target"]))
    else:
        tokenizer = gpt.Tokens.load(tokens) if part is gpt else bert.pieces(tokens)
    state = {n: t.float() for n, t in load((folder / common.WEIGHTS).read_bytes()).items()}
    state |= {name: state[other] for name, other in TIED.items() if other in state}
    rest = {"kind", "source", "target", "tie_embeddings"}
    sizes = {key: value for key, value in config.items() if key not in rest}
    if "tie_embeddings" in config:  # both sides have one vocabulary
        words = sizes.pop("vocab_size")
        sizes = {"src_vocab_size": words, "tgt_vocab_size": words} | sizes
    return ShippedWeights(name, sizes, tokenizer, state)


# --------------------------------------------------------------------------- recurrent translator


class RecurrentTranslator(nn.Module):
    """The recurrent translator with parts of one's own: `start` and `step` of the chapter.

    Args:
        shipped: "recurrent-en-zh".
        encoder: ids (B, S) and mask (B, S) -> states (B, S, W) and the first state (B, W).
        cell: input (B, 2 W) and state (B, W) -> state (B, W).
        look: embedding (B, W), state, states and mask -> new state, context (B, W), weights (B, S);
            then `cell` is part of it.

    Each has its weights from `encoder_tensors`, `cell_tensors` and `look_tensors`. What is not
    given is PyTorch's.
    """

    def __init__(
        self,
        shipped: ShippedWeights,
        encoder: nn.Module | None = None,
        cell: nn.Module | None = None,
        look: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.weights = shipped.tensors("core.")
        width, words = shipped.sizes["width"], shipped.sizes["vocab_size"]
        if encoder is None:
            encoder = _Reader(words, width)
            encoder.load_state_dict(_plain_tensors(self.weights))
        if cell is None and look is None:
            cell = nn.GRUCell(2 * width, width)
            cell.load_state_dict(cell_tensors(shipped))
        self.encoder, self.cell, self.look = encoder, cell, look
        self.attn_weights: list[Tensor] = []  # (B, S) of each step since `start`

    def start(self, source: Tensor, source_mask: Tensor | None = None) -> tuple[Tensor, ...]:
        """source (B, S) -> the state before the first token; each of its parts has B rows."""
        mask = source != PAD if source_mask is None else source_mask  # (B, S)
        states, s = self.encoder(source, mask)  # (B, S, W), (B, W)
        self.attn_weights = []
        return s, states, mask

    def step(self, previous: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple]:
        """previous (B,) and the state -> logits (B, V) of the next token and the new state."""
        s, states, mask = state
        y = self.weights["target.weight"][previous]  # (B, W)
        if self.look is not None:
            s, context, attn_weights = self.look(y, s, states, mask)  # (B, W) both, (B, S)
        else:
            attn_weights = self._attend(s, states, mask)  # (B, S)
            context = torch.einsum("bs,bsw->bw", attn_weights, states)  # (B, W)
            s = self.cell(torch.cat([y, context], -1), s)  # (B, W)
        self.attn_weights.append(attn_weights)
        output = self.weights["output.weight"], self.weights["output.bias"]
        return F.linear(torch.cat([s, context], -1), *output), (s, states, mask)

    def _attend(self, s: Tensor, states: Tensor, mask: Tensor) -> Tensor:
        """The weights (B, S) of additive attention (Bahdanau et al. 2015, A.1.2)."""
        at = {n.removeprefix("look.score."): t for n, t in self.weights.items()}
        both = (s @ at["query_projection.weight"].T)[:, None] + states @ at[
            "key_projection.weight"
        ].T
        scores = (both.tanh() @ at["energy.weight"].T)[..., 0]  # (B, S)
        return scores.masked_fill(~mask, -torch.inf).softmax(-1)


class _Reader(nn.Module):
    """PyTorch's GRU in both directions."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.source = nn.Embedding(words, width)
        self.encoder = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(width, width)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.source(ids), mask.sum(1).cpu(), batch_first=True, enforce_sorted=False
        )
        packed, last = self.encoder(packed)  # last (2, B, W/2)
        states, _ = nn.utils.rnn.pad_packed_sequence(
            packed, batch_first=True, total_length=ids.shape[1]
        )  # (B, S, W)
        return states, torch.tanh(self.bridge(last.transpose(0, 1).flatten(1)))  # (B, W)


def _plain_tensors(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: t for n, t in weights.items() if n.startswith(("source.", "encoder.", "bridge."))}


def encoder_tensors(shipped: ShippedWeights) -> dict[str, Tensor]:
    """The weights of the chapter's `BidirectionalEncoder(V, W, W / 2, W)`."""
    weights = shipped.tensors("core.")
    made = {"embedding.weight": weights["source.weight"]}
    made |= {n: weights[n] for n in ("bridge.weight", "bridge.bias")}
    for cell, end in (("forward_cell", ""), ("backward_cell", "_reverse")):
        for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            made[f"{cell}.{part}"] = weights[f"encoder.{part}_l0{end}"]
    return made


def cell_tensors(shipped: ShippedWeights) -> dict[str, Tensor]:
    """The weights of the decoder's cell, `GRUCell(2 W, W)`."""
    return shipped.tensors("core.look.cell.")


def look_tensors(shipped: ShippedWeights) -> dict[str, Tensor]:
    """The weights of attention and cell, `AttentionDecoderStep(W, W, W, W)`."""
    return shipped.tensors("core.look.")


def translate_recurrently(translator: nn.Module, shipped: ShippedWeights, text: str) -> str:
    """A translation by greedy search, with a translator that has `start` and `step`."""
    ids = translation_task.greedy_recurrent(translator, shipped.source(text), MAX_LENGTH)  # (1, n)
    return shipped.tokenizer.decode(ids[0])


def alignment(translator: RecurrentTranslator, shipped: ShippedWeights, text: str) -> Any:
    """A translation, and where each of its tokens looks in the source, as a table to display."""
    from IPython.display import HTML

    ids = translation_task.greedy_recurrent(translator, shipped.source(text), MAX_LENGTH)[0]  # (n,)
    weights = torch.stack(translator.attn_weights, 1)[0]  # (n, S)
    rows = [*shipped.tokenizer.tokens(ids), "<eos>"][: len(weights)]
    caption = f"{text} → {shipped.tokenizer.decode(ids)}"
    return HTML(
        widgets.side_by_side(widgets.heat_table(weights, rows, shipped.words(text), caption))
    )


# --------------------------------------------------------------------------- Transformer


class PlainTransformer:
    """The shipped Transformer by functions of PyTorch, with parts of one's own in their places.

    Args:
        shipped: a Transformer.
        position: vectors (B, T, D) -> vectors with positions; None for the paper's sines.
        embeddings, attention, norm, feed_forward: the chapter's classes `Embeddings`,
            `MultiHeadAttention`, `LayerNorm` and `PositionwiseFeedForward`. One is made for each
            place where the model has such a part, with the shipped weights. The attention's
            result may be the output alone or a tuple that begins with it.

    Raises:
        RuntimeError: a class has other parameters than the chapter's.
    """

    def __init__(
        self,
        shipped: ShippedWeights,
        position: Callable[[Tensor], Tensor] | None = None,
        *,
        embeddings: type[nn.Module] | None = None,
        attention: type[nn.Module] | None = None,
        norm: type[nn.Module] | None = None,
        feed_forward: type[nn.Module] | None = None,
    ) -> None:
        self.shipped, self.sizes = shipped, shipped.sizes
        self.layers, self.first = (shipped.sizes[n] for n in ("num_layers", "norm_first"))
        self.position = _add_sines if position is None else position
        self.classes = {
            "embed": (embeddings, ("src_vocab_size", "d_model")),
            "attn": (attention, ("d_model", "num_heads")),
            "norm": (norm, ("d_model",)),
            "feed_forward": (feed_forward, ("d_model", "d_ff")),
        }
        self.made: dict[str, nn.Module] = {}

    def __call__(self, src: Tensor, tgt: Tensor) -> Tensor:
        """src (B, S), tgt (B, U) -> log-probabilities (B, U, V)."""
        x, _, _ = self.inputs(src, tgt, self.layers)
        at = self.shipped.tensors("generator.")
        return F.linear(x, at["proj.weight"], at["proj.bias"]).log_softmax(-1)

    def inputs(self, src: Tensor, tgt: Tensor, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """What the attention from target to source of a layer is given.

        Returns:
            The queries' vectors (B, U, D), the memory (B, S, D) and the mask (B, 1, S). After the
            last layer, the decoder's result in place of the first.
        """
        mask = (src != PAD).unsqueeze(1)  # (B, 1, S)
        memory = self._embed(src)  # (B, S, D)
        for number in range(self.layers):
            memory = self._layer(f"encoder.layers.{number}.", memory, mask)
        memory = self._norm("encoder.norm.", memory) if self.first else memory
        x = self._embed(tgt)  # (B, U, D)
        past = torch.ones(1, tgt.shape[1], tgt.shape[1], dtype=torch.bool).tril()  # (1, U, U)
        for number in range(layer):
            x = self._layer(f"decoder.layers.{number}.", x, past, memory, mask)
        if layer == self.layers:
            return self._norm("decoder.norm.", x) if self.first else x, memory, mask
        at = f"decoder.layers.{layer}."
        x = self._residual(f"{at}sublayer.0.norm.", x,
                           lambda y: self._attend(f"{at}self_attn.", y, y, past))  # fmt: skip
        return self._norm(f"{at}sublayer.1.norm.", x) if self.first else x, memory, mask

    def _layer(
        self, at: str, x: Tensor, mask: Tensor,
        memory: Tensor | None = None, memory_mask: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        parts: list[Callable[[Tensor], Tensor]] = [
            lambda y: self._attend(f"{at}self_attn.", y, y, mask)
        ]
        if memory is not None:
            parts.append(lambda y: self._attend(f"{at}src_attn.", y, memory, memory_mask))
        parts.append(lambda y: self._feed_forward(f"{at}feed_forward.", y))
        for number, part in enumerate(parts):
            x = self._residual(f"{at}sublayer.{number}.norm.", x, part)
        return x

    def _residual(self, norm: str, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        return x + part(self._norm(norm, x)) if self.first else self._norm(norm, x + part(x))

    def _own(self, kind: str, prefix: str) -> nn.Module | None:
        """The module of one's own at a place, if there is a class for it."""
        made, names = self.classes[kind]
        if made is not None and prefix not in self.made:
            module = made(*(self.sizes[name] for name in names))
            module.load_state_dict(self.shipped.tensors(prefix))
            self.made[prefix] = module.eval()
        return self.made.get(prefix)

    def _embed(self, ids: Tensor) -> Tensor:
        own = self._own("embed", "src_embed.")  # of both languages
        if own is not None:
            return self.position(own(ids))  # (B, T, D)
        table = self.shipped.state["src_embed.lut.weight"]  # (V, D)
        return self.position(table[ids] * math.sqrt(table.shape[1]))  # (B, T, D)

    def _attend(self, at: str, query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
        own = self._own("attn", at)
        if own is not None:
            result = own(query, key, key, mask)
            return result[0] if isinstance(result, tuple) else result  # (B, Tq, D)
        return attend(self.shipped.tensors(at), query, key, self.sizes["num_heads"], mask)

    def _feed_forward(self, at: str, x: Tensor) -> Tensor:
        own = self._own("feed_forward", at)
        return _feed_forward(self.shipped.tensors(at), x, F.relu) if own is None else own(x)

    def _norm(self, at: str, x: Tensor) -> Tensor:
        own = self._own("norm", at)
        if own is not None:
            return own(x)
        found = self.shipped.tensors(at)
        return F.layer_norm(x, x.shape[-1:], found["gamma"], found["beta"], 1e-5)


def attend(
    at: dict[str, Tensor], query: Tensor, key: Tensor, heads: int, mask: Tensor | None = None
) -> Tensor:
    """Multi-head attention with the tensors `q_proj.weight` …: (B, Tq, D)."""
    q, k, v = (
        F.linear(x, at[f"{name}_proj.weight"], at[f"{name}_proj.bias"])
        .unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, H, T, D/H)
        for name, x in (("q", query), ("k", key), ("v", key))
    )  # fmt: skip
    if mask is not None:
        mask = mask.unsqueeze(1)  # (B, 1, 1 or Tq, Tk)
    joined = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
    return F.linear(joined, at["out_proj.weight"], at["out_proj.bias"])


def _feed_forward(
    at: dict[str, Tensor], x: Tensor, activation: Callable[[Tensor], Tensor]
) -> Tensor:
    inner = activation(F.linear(x, at["w_1.weight"], at["w_1.bias"]))
    return F.linear(inner, at["w_2.weight"], at["w_2.bias"])


def _add_sines(x: Tensor) -> Tensor:
    length, width = x.shape[1:]
    places = torch.arange(length, dtype=torch.float64)[:, None]  # (T, 1)
    angles = places / 10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    return x + torch.stack((angles.sin(), angles.cos()), 2).flatten(1)[:, :width].to(x.dtype)


@torch.no_grad()
def write_greedily(
    model: Callable[[Tensor, Tensor], Tensor], source: Tensor, max_length: int = MAX_LENGTH
) -> list[int]:
    """Greedy search with a Transformer that is only called as a whole.

    Args:
        model: source (1, S) and target so far (1, U) -> log-probabilities (1, U, V).

    Returns:
        The ids up to the end, which is left out.
    """
    target = torch.tensor([[BOS]])  # (1, 1)
    while target.shape[1] <= max_length:
        token = int(model(source, target)[0, -1].argmax())
        if token == EOS:
            break
        target = torch.cat([target, torch.tensor([[token]])], 1)  # (1, U + 1)
    return target[0, 1:].tolist()


# --------------------------------------------------------------------------- BERT


@torch.no_grad()
def layer_inputs(shipped: ShippedWeights, text: str) -> tuple[list[str], list[Tensor]]:
    """What each layer of the shipped BERT is given for a sentence.

    Returns:
        The pieces with [CLS] and [SEP], T of them, and for each layer (1, T, D).
    """
    pieces = shipped.tokenizer
    ids = [pieces.special.cls, *pieces.encode(text), pieces.special.sep]
    at = shipped.tensors("bert.embeddings.")
    x = at["token.weight"][ids] + at["position.weight"][: len(ids)] + at["segment.weight"][0]
    x = _bert_norm(at, "norm.", x[None])  # (1, T, D)
    inputs = []
    for number in range(shipped.sizes["num_layers"]):
        inputs.append(x)
        prefix = f"bert.layers.{number}."
        at, inside = shipped.tensors(prefix), shipped.tensors(f"{prefix}attention.")
        x = _bert_norm(at, "attention_norm.", x + attend(inside, x, x, shipped.sizes["num_heads"]))
        x = _bert_norm(at, "output_norm.", x + _feed_forward(at, x, F.gelu))
    return [pieces.names[i] for i in ids], inputs


def _bert_norm(at: dict[str, Tensor], prefix: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], at[prefix + "weight"], at[prefix + "bias"], 1e-12)


def with_one(x: Tensor) -> Tensor:
    """Vectors (..., D) with a 1 at their end, which a layer without bias can add a bias by."""
    return torch.cat([x, torch.ones_like(x[..., :1])], -1)  # (..., D + 1)


def head_tensors(shipped: ShippedWeights, layer: int, head: int) -> dict[str, Tensor]:
    """The projections of one head of the shipped BERT for inputs from `with_one`.

    Returns:
        "q_proj.weight", "k_proj.weight" and "v_proj.weight", each (D / H, D + 1).
    """
    at = shipped.tensors(f"bert.layers.{layer}.attention.")
    size = shipped.sizes["d_model"] // shipped.sizes["num_heads"]
    rows = slice(head * size, (head + 1) * size)
    return {
        f"{name}_proj.weight": torch.cat(
            [at[f"{name}_proj.weight"][rows], at[f"{name}_proj.bias"][rows, None]], 1
        )
        for name in ("q", "k", "v")
    }


def gaps(model: nn.Module, shipped: ShippedWeights, text: str, k: int = 5) -> str:
    """The best pieces for each [MASK] of a text, a line a gap.

    Args:
        model: with `bert` and `mlm`.
    """
    lines = []
    for blank in fine_tuning.fill_mask(model, shipped.tokenizer, text, k):
        guesses = (f"{piece} {share:.0%}" for piece, share in blank.guesses)
        lines.append(f"position {blank.position}: {', '.join(guesses)}")
    return "\n".join(lines)


# --------------------------------------------------------------------------- text to train on


def for_seconds(seconds: float, items: Iterable[Item], at_least: int = 20) -> Iterator[Item]:
    """The items, until the time is up and there were `at_least` of them."""
    end = time.monotonic() + seconds
    for count, item in enumerate(items, 1):
        yield item
        if count >= at_least and time.monotonic() >= end:
            break


def sentence_pairs(
    shipped: ShippedWeights, next_sentence_pairs: Callable[[Any], Sequence[tuple]], size: int = 16
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Batches of pairs of sentences without end, from the text that lies beside the shipped BERT.

    Args:
        next_sentence_pairs: documents -> triples (first, second, 0 or 1); called once a pass.

    Yields:
        input_ids, token_type_ids (B, T) int64, mask (B, T) bool, is_random (B,) int64.
    """
    documents = bert.encode(shipped.held_out(), shipped.tokenizer)
    special = shipped.tokenizer.special
    while True:
        pairs = list(next_sentence_pairs(documents))
        random.shuffle(pairs)
        for begin in range(0, len(pairs), size):
            part = pairs[begin : begin + size]
            rows = []
            for first, second, _ in part:
                a, b = first[:28], second[:28]
                ids = [special.cls, *a, special.sep, *b, special.sep]
                rows.append((ids, [0] * (len(a) + 2) + [1] * (len(b) + 1)))
            made = fine_tuning.Rows.of(rows)
            labels = torch.tensor([label for *_, label in part])
            yield made.ids, made.token_type_ids, made.mask, labels


def functions(shipped: ShippedWeights) -> Tensor:
    """The functions that lie beside the shipped GPT as a stream (M,), START and END around each."""
    rows = ([START, *shipped.tokenizer.encode(f), END]
            for f in shipped.held_out())  # fmt: skip
    return torch.tensor(list(itertools.chain.from_iterable(rows)))


@torch.no_grad()
def write_on(model: nn.Module, shipped: ShippedWeights, prompt: str, most: int = 60) -> str:
    """What a GPT goes on with after the beginning of a function, the most probable token each time.

    Args:
        model: ids (1, T) -> logits (1, T, V); is in eval mode meanwhile.
        most: tokens of the whole at most.
    """
    mode = model.training
    model.eval()
    ids = torch.tensor([[START, *shipped.tokenizer.encode(prompt)]])  # (1, T)
    while ids[0, -1] != END and ids.shape[1] < most:
        ids = torch.cat([ids, model(ids)[:, -1].argmax(-1, keepdim=True)], 1)  # (1, T + 1)
    model.train(mode)
    return shipped.tokenizer.decode(ids[0].tolist())


def translation_pairs(
    shipped: ShippedWeights, token_batches: Callable[[Any, int], list[list[int]]], most: int = 600
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of the sentences that lie beside a shipped translator, without end.

    Args:
        token_batches: lengths (source, target) of all pairs, and how many tokens a batch may have
            -> batches of indices.
        most: tokens of a batch on either side.

    Yields:
        source (B, S) and target (B, U), from BOS to EOS.
    """
    words = shipped.tokenizer
    pairs = [(words.ids(p.source_tokens), words.ids(p.target_tokens)) for p in shipped.held_out()]
    rows = token_batches([(len(s), len(t) + 1) for s, t in pairs], most)
    while True:
        for row in random.sample(rows, len(rows)):
            batch = collate(*zip(*(pairs[i] for i in row), strict=True))
            target = torch.cat([batch.target_in[:, :1], batch.target_out], 1)  # (B, U)
            yield batch.source, target


def documentation_task(shipped: ShippedWeights, name: str = "tagging") -> docstrings.Task:
    """A task of `docstrings.make_tasks` in the pieces of the shipped BERT."""
    return docstrings.make_tasks(docstrings.Corpus(docstrings.read(), shipped.tokenizer))[name]


def function_task(shipped: ShippedWeights, name: str = "name") -> code_corpus.Task:
    """A task of `code_corpus.make_tasks` in the tokens of the shipped GPT."""
    corpus = code_corpus.Corpus(code_corpus.read(), shipped.tokenizer, shipped.sizes["max_length"])
    return code_corpus.make_tasks(corpus)[name]


def tagged(
    task: docstrings.Task, align_labels: Callable[[Any, Any], list[int]], size: int = 16
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Batches of the task "tagging" without end.

    Args:
        align_labels: labels of words and the word of each token -> labels of tokens.

    Yields:
        input_ids (B, T), mask (B, T) bool, labels (B, T).
    """
    while True:
        for part in _shuffled(task.train, size):
            rows = [bert_input(example) for example in part]
            labels = [align_labels(e.word_labels, words)
                      for e, (_, words) in zip(part, rows, strict=True)]  # fmt: skip
            ids = _padded([ids for ids, _ in rows], docstrings.PAD)
            yield ids, ids != docstrings.PAD, _padded(labels, docstrings.IGNORE)


def bert_input(example: docstrings.Example) -> tuple[list[int], list[int | None]]:
    """The ids of an example of "tagging" with [CLS] and [SEP], and the word of each or None."""
    ids = [docstrings.CLS, *example.first, docstrings.SEP]
    return ids, [None, *example.word_ids, None]


def labelled_functions(task: code_corpus.Task, size: int = 8) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of a task whose examples have one text, without end: ids (B, T) and labels (B,)."""
    while True:
        for part in _shuffled(task.train, size):
            rows = [gpt_input(example) for example in part]
            yield _padded(rows, code_corpus.PAD), torch.tensor([e.label for e in part])


def gpt_input(example: code_corpus.Example) -> list[int]:
    """The ids of an example that has one text, between START and EXTRACT."""
    return [START, *example.first, code_corpus.EXTRACT]


def _shuffled(items: Sequence[Item], size: int) -> list[list[Item]]:
    order = random.sample(list(items), len(items))
    return [order[begin : begin + size] for begin in range(0, len(order), size)]


def _padded(rows: Sequence[Sequence[int]], pad: int) -> Tensor:
    tensors = [torch.tensor(row) for row in rows]
    return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=pad)  # (B, T)


def sentences(shipped: ShippedWeights, size: int = 16) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of sentences from the text beside the shipped BERT: ids (B, T) and mask (B, T)."""
    rows = [s[:40] for d in bert.encode(shipped.held_out(), shipped.tokenizer) for s in d]
    while True:
        for part in _shuffled([row for row in rows if len(row) > 3], size):
            ids = _padded(part, docstrings.PAD)
            yield ids, ids != docstrings.PAD


def learn_to_look_back(
    encoder: nn.Module, steps: int, back: int = 3, length: int = 16, symbols: int = 8
) -> Tensor:
    """Train an encoder to name the token some positions before, on rows of one length.

    Args:
        encoder: ids (B, T) -> logits (B, T, symbols), such as `measures.Encoder`.
        back: how far back the token stands.

    Returns:
        (2 length,): the share of right answers at each position of rows twice as long; NaN at the
        first `back`.
    """
    draw = torch.Generator().manual_seed(0)

    def loss(_: int) -> Tensor:
        rows = tasks.recall_back(64, length, back, symbols, draw)
        return F.cross_entropy(encoder(rows.tokens).flatten(0, 1), rows.targets.flatten(),
                               ignore_index=-1)  # fmt: skip

    preset = device.preset("cpu")
    training.fit(encoder, loss, steps, lr=5e-3, preset=preset, progress=False)
    return measures.right_by_position(
        encoder, *tasks.recall_back(200, 2 * length, back, symbols, draw)
    )


# --------------------------------------------------------------------------- pictures


def loss_curve(losses: Sequence[float], title: str = "") -> None:
    """Draw the loss of every step, averaged over neighbours where there are many."""
    plots.use_style()
    every = max(1, len(losses) // 60)
    means = [sum(losses[i : i + every]) / len(losses[i : i + every])
             for i in range(0, len(losses), every)]  # fmt: skip
    _, ax = plt.subplots(figsize=(5.5, 3))
    ax.plot([every * i for i in range(len(means))], means)
    ax.set_xlabel("step")
    ax.set_ylabel("loss")
    ax.set_title(title)


def attention_maps(
    weights: Tensor, rows: Sequence[str], columns: Sequence[str], titles: Sequence[str] = ()
) -> None:
    """Draw where queries look: weights (Tq, Tk), or a map for each head of (H, Tq, Tk)."""
    plots.use_style()
    stack = weights.detach()[None] if weights.dim() == 2 else weights.detach()
    across = min(2, len(stack))
    down = -(-len(stack) // across)
    size = (2.2 + 0.32 * len(columns), 1.6 + 0.27 * len(rows))
    _, axes = plt.subplots(down, across, figsize=(across * size[0], down * size[1]), squeeze=False)
    for head, ax in enumerate(axes.flat):
        if head >= len(stack):
            ax.set_visible(False)
            continue
        title = titles[head] if titles else f"head {head}"
        plots.attention_map(ax, stack[head], rows, columns, title=title)


def similarity_map(vectors: Tensor, labels: Sequence[str] | None = None, title: str = "") -> None:
    """Draw the cosine of each two of n vectors (n, D), with their labels if there are some."""
    plots.use_style()
    unit = F.normalize(vectors.detach(), dim=-1)  # (n, D)
    cosines = (unit @ unit.T).numpy()  # (n, n)
    _, ax = plt.subplots(figsize=(5.5, 4.2) if labels is None else (7, 2.6))
    image = ax.imshow(cosines, cmap="RdBu_r", vmin=-1, vmax=1)
    if labels is not None:
        ax.set_yticks(range(len(labels)), labels)
        ax.set_xticks(range(len(labels)), [str(i + 1) for i in range(len(labels))])
    ax.set_title(title)
    plt.colorbar(image, ax=ax, label="cosine")


def by_position(shares: dict[str, Tensor], title: str = "") -> None:
    """Draw shares of right answers by position, a line a name."""
    plots.use_style()
    _, ax = plt.subplots(figsize=(5.5, 3))
    places = range(len(next(iter(shares.values()))))
    plots.curves(ax, list(places), shares, x_label="position", y_label="right", title=title)
    ax.set_ylim(-0.05, 1.05)
