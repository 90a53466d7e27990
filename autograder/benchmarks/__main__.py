"""What things cost on this machine, measured in one run: `make bench`.

A class graded beside stock nbgrader on the same honest submissions, with the marks compared; the
latency of `check`; the kill rate of `verify`; the speed of our Transformer beside
`torch.nn.Transformer`, and of our GPT beside Hugging Face's, `torch.nn.TransformerEncoder` and one
as nanoGPT writes it; seconds to build the book, and until a page of it answers. Printed as a table
and written to build/bench.json.

Grading a class of 100 beside stock nbgrader takes ten minutes, most of them stock nbgrader's; how
the cost grows from 10 to 1,000 submissions is measured only when asked for (`--only growth`).

The Transformers take turns, so that whatever else the machine does meets all of them; a ratio is
the median of the ratios within a round. On a CPU they get one thread, and processor time counts.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from autograder.benchmarks.classes import grading, growth
from autograder.benchmarks.gpt import gpt_speed
from autograder.benchmarks.pages import page_seconds
from autograder.benchmarks.timing import (
    Figure,
    compared,
    one_thread,
    refuse_other_ids,
    refuse_other_values,
    taking_turns,
)
from autograder.common import paths
from toolkit import book

if TYPE_CHECKING:
    from torch import Tensor, nn

# The unit whose class is graded, by us and by stock nbgrader, when none is named: stock nbgrader
# takes minutes for it.
GRADED = "attention-multi_head"
# Hypotheses of a beam search, as many as in Vaswani et al. (2017), 6.1.
BEAM = 4


def check_latency(unit: str) -> list[Figure]:
    """Seconds that a student waits for `check`, on right and on wrong code."""
    from autograder import checks_for
    from autograder.assignments import recorder
    from autograder.units import variants

    recorder.record(unit)
    mistakes = variants.misconceptions(unit)
    tasks = [(variants.source_of(unit), mistakes[0].exercise)]
    tasks += [(variants.changed_source(unit, item), item.exercise) for item in mistakes]
    seconds = []
    for source, exercise in tasks:
        namespace = variants.load_variant(source, "student")
        namespace["check"] = checks_for(unit)
        started = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            exec(f"check({exercise!r})", namespace)
        seconds.append(time.perf_counter() - started)
    first, *later = seconds
    return [
        Figure("check, first", first, "s", "imports and recorded answers included"),
        Figure("check, median", statistics.median(later), "s", f"{len(later)} wrong answers"),
        Figure(
            "check, 99 of 100",
            statistics.quantiles(later, n=100)[98],
            "s",
            f"{len(later)} wrong answers",
        ),
        Figure("check, slowest", max(later), "s", f"{len(later)} wrong answers"),
    ]


def kill_rate(unit: str) -> list[Figure]:
    """What `verify` finds, and how long it takes."""
    from autograder.verification.verify import verify

    started = time.perf_counter()
    (verdict,) = verify([unit], jobs=os.cpu_count() or 1)
    seconds = time.perf_counter() - started
    return [
        Figure(
            "mutants killed",
            100 * verdict.killed / max(verdict.mutants - verdict.equivalent, 1),
            "%",
            f"{verdict.killed} of {verdict.mutants}, {verdict.equivalent} equivalent",
        ),
        Figure(
            "misconceptions named",
            100 * verdict.diagnosed / max(verdict.misconceptions, 1),
            "%",
            f"{verdict.rejected} of {verdict.misconceptions} rejected",
        ),
        Figure("verify", seconds, "s", f"{os.cpu_count()} processes"),
    ]


@dataclass(frozen=True)
class Sizes:
    """A Transformer to be timed, and on what.

    batch and length: sentences of a batch, tokens of the longest one; others have 3/4 of it or
    more. written: sentences that are generated, each as many tokens long. rounds: of forward
    passes, of training steps, of generations.
    """

    vocabulary: int = 1000
    num_layers: int = 3
    d_model: int = 128
    d_ff: int = 512
    num_heads: int = 4
    batch: int = 32
    length: int = 32
    written: int = 16
    rounds: tuple[int, int, int] = (21, 15, 7)


ON_GPU = Sizes(32_000, 6, 512, 2048, 8, batch=128, length=64, written=64)


def library_twin(model: Any, dropout: float = 0.1) -> nn.Module:
    """`torch.nn.Transformer` with embeddings, positions and output, and the weights of `model`.

    Args:
        model: a post-norm EncoderDecoder of `solutions.transformer`.

    Returns:
        A module with the same `encode`, `decode`, `generator` and `forward`. The target mask is
        always the causal one: targets are padded on the right.
    """
    import torch
    from torch import nn
    from torch.nn import functional as F

    vocabulary, width = model.src_embed.lut.weight.shape
    first = model.encoder.layers[0]
    options: dict[str, Any] = {"dropout": dropout, "batch_first": True}
    sizes = width, first.self_attn.num_heads, first.feed_forward.w_1.out_features
    count = len(model.encoder.layers)

    class Twin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.src_embed = nn.Embedding(vocabulary, width)
            self.tgt_embed = nn.Embedding(model.tgt_embed.lut.num_embeddings, width)
            self.position = copy.deepcopy(model.position)
            # Made here, because those of nn.Transformer end with a norm in post-norm too
            encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(*sizes, **options), count)
            decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(*sizes, **options), count)
            self.core = nn.Transformer(
                *sizes[:2], custom_encoder=encoder, custom_decoder=decoder, batch_first=True
            )
            self.proj = nn.Linear(width, model.generator.proj.out_features)

        def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
            x = self.position(self.src_embed(src) * width**0.5)  # (B, S, D)
            return self.core.encoder(x, src_key_padding_mask=~src_mask[:, 0])  # (B, S, D)

        def decode(self, memory: Tensor, src_mask: Tensor, tgt: Tensor, _: object) -> Tensor:
            x = self.position(self.tgt_embed(tgt) * width**0.5)  # (B, U, D)
            size = tgt.shape[1]
            future = torch.ones(size, size, dtype=torch.bool, device=tgt.device).triu(1)  # (U, U)
            return self.core.decoder(
                x, memory, tgt_mask=future, tgt_is_causal=True,
                memory_key_padding_mask=~src_mask[:, 0],
            )  # (B, U, D)  # fmt: skip

        def generator(self, hidden: Tensor) -> Tensor:
            return F.log_softmax(self.proj(hidden), dim=-1)  # (B, U, V)

        def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
            src_mask = (src != 0).unsqueeze(1)  # (B, 1, S)
            return self.generator(self.decode(self.encode(src, src_mask), src_mask, tgt, None))

    twin = Twin().to(model.src_embed.lut.weight)
    pairs: list[tuple[Any, Any]] = [
        (twin.src_embed.weight, model.src_embed.lut.weight),
        (twin.tgt_embed.weight, model.tgt_embed.lut.weight),
        (twin.proj.weight, model.generator.proj.weight),
        (twin.proj.bias, model.generator.proj.bias),
    ]
    theirs = [*twin.core.encoder.layers, *twin.core.decoder.layers]
    ours = [*model.encoder.layers, *model.decoder.layers]
    for their, our in zip(theirs, ours, strict=True):
        attentions = [(their.self_attn, our.self_attn)]
        if hasattr(our, "src_attn"):
            attentions.append((their.multihead_attn, our.src_attn))
        for joined, parts in attentions:
            projections = parts.q_proj, parts.k_proj, parts.v_proj
            pairs += [
                (joined.in_proj_weight, torch.cat([part.weight for part in projections])),
                (joined.in_proj_bias, torch.cat([part.bias for part in projections])),
                (joined.out_proj.weight, parts.out_proj.weight),
                (joined.out_proj.bias, parts.out_proj.bias),
            ]
        for index, linear in enumerate((our.feed_forward.w_1, our.feed_forward.w_2), 1):
            same = getattr(their, f"linear{index}")
            pairs += [(same.weight, linear.weight), (same.bias, linear.bias)]
        for index, connection in enumerate(our.sublayer, 1):
            norm = getattr(their, f"norm{index}")
            pairs += [(norm.weight, connection.norm.gamma), (norm.bias, connection.norm.beta)]
    with torch.no_grad():
        for target, source in pairs:
            target.copy_(source)
    return twin


def transformer_speed(sizes: Sizes | None = None) -> list[Figure]:
    """Our Transformer, on its clear and its fast path, beside `torch.nn.Transformer`.

    A forward pass in evaluation mode, a training step with dropout and Adam, greedy generation,
    with and without a cache, and beam search, sentence by sentence and all at once with a cache.
    Generation with `torch.nn.Transformer` runs the whole prefix through the decoder at each step.
    All have the same weights, and are compared before they are timed.

    Args:
        sizes: those for this machine if not given.

    Raises:
        RuntimeError: if the models do not say the same.
    """
    import torch

    from solutions import transformer
    from toolkit.device import preset

    machine = preset()
    on_gpu = machine.name == "gpu"
    sizes = sizes or (ON_GPU if on_gpu else Sizes())

    def clock() -> float:
        if not on_gpu:
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def sentences() -> Tensor:
        ids = torch.randint(4, sizes.vocabulary, (sizes.batch, sizes.length))  # (B, T)
        lengths = torch.randint(3 * sizes.length // 4, sizes.length + 1, (sizes.batch, 1))
        lengths[0] = sizes.length
        return ids.masked_fill(torch.arange(sizes.length) >= lengths, transformer.PAD)  # (B, T)

    with torch.random.fork_rng(), warnings.catch_warnings(), one_thread():
        warnings.filterwarnings("ignore", message=".*nested tensors")
        torch.manual_seed(0)
        clear: Any = transformer.make_model(
            sizes.vocabulary, sizes.vocabulary, sizes.num_layers, sizes.d_model, sizes.d_ff,
            sizes.num_heads,
        ).to(machine.device)  # fmt: skip
        source = sentences().to(machine.device)  # (B, T)
        starts = torch.full((sizes.batch, 1), transformer.BOS)
        target = torch.cat([starts, sentences()], dim=1).to(machine.device)  # (B, T + 1)
        tgt_in, tgt_out, _ = transformer.shift_targets(target)  # (B, T) each
        fast: Any = transformer.fused(copy.deepcopy(clear))
        library = library_twin(clear)
        models: dict[str, Any] = {
            "clear path": clear,
            "fast path": fast,
            "torch.nn.Transformer": library,
        }
        pairs = [("fast path", "torch.nn.Transformer"), ("fast path", "clear path")]

        def forward(model: Any) -> Tensor:
            return model(source, tgt_in)

        def generate(model: Any, decode: Callable[..., Tensor]) -> Tensor:
            return decode(model, source[: sizes.written], sizes.length)

        generations = {
            "clear path": (clear, transformer.greedy_decode),
            "clear path, cache": (clear, transformer.cached_greedy_decode),
            "fast path": (fast, transformer.greedy_decode),
            "fast path, cache": (fast, transformer.cached_greedy_decode),
            "torch.nn.Transformer": (library, transformer.greedy_decode),
        }
        for model in models.values():
            model.eval()
        with torch.no_grad():
            # No sentence ends by itself, so that each is as long as the others.
            heads: list[Any] = [clear.generator.proj, fast.generator.proj, library.proj]
            for bias in heads:
                bias.bias[transformer.EOS] = -1e4
            refuse_other_values(
                {name: forward(model)[tgt_out != transformer.PAD] for name, model in models.items()}
            )
            refuse_other_ids({name: generate(*how) for name, how in generations.items()})

        optimisers = {
            name: torch.optim.Adam(model.parameters(), 1e-4, betas=(0.9, 0.98), eps=1e-9)
            for name, model in models.items()
        }

        def train(name: str) -> None:
            optimisers[name].zero_grad()
            with machine.autocast():
                said = forward(models[name])  # (B, T, V)
            transformer.label_smoothing_loss(said.float(), tgt_out).backward()
            optimisers[name].step()

        # Searches, whose ties may fall either way, are compared in their scores.
        few = source[: max(1, sizes.written // 4)]  # (R, T)
        searches = {
            "one by one": lambda: [
                transformer.beam_search(fast, row[None], BEAM, sizes.length) for row in few
            ],
            "fast path, cache": lambda: transformer.cached_beam_search(
                fast, few, BEAM, sizes.length
            ),
        }
        with torch.no_grad():
            refuse_other_values(
                {
                    name: torch.tensor([found[0][1] for found in search()])
                    for name, search in searches.items()
                }
            )

        passes, steps, writings = sizes.rounds
        where = "GPU" if on_gpu else "one thread"
        shape = (
            f"N={sizes.num_layers}, D={sizes.d_model}, {sizes.batch} x {sizes.length} tokens, "
            f"{where}"
        )
        with torch.no_grad(), machine.autocast():
            looked = {name: lambda model=model: forward(model) for name, model in models.items()}
            figures = compared("forward", taking_turns(looked, passes, clock), pairs, shape)
        for model in models.values():
            model.train()
        trained = {name: lambda name=name: train(name) for name in models}
        figures += compared("training step", taking_turns(trained, steps, clock), pairs, shape)
        for model in models.values():
            model.eval()
        with torch.no_grad(), machine.autocast():
            written = {name: lambda how=how: generate(*how) for name, how in generations.items()}
            figures += compared(
                "generation", taking_turns(written, writings, clock),
                [
                    *pairs, ("clear path, cache", "clear path"),
                    ("fast path, cache", "torch.nn.Transformer"),
                ],
                f"{sizes.written} sentences of {sizes.length} tokens, {where}",
            )  # fmt: skip
            figures += compared(
                "beam search", taking_turns(searches, writings, clock),
                [("fast path, cache", "one by one")],
                f"{len(few)} sentences of {sizes.length} tokens, beam of {BEAM}, {where}",
            )  # fmt: skip
    return figures


def book_seconds() -> list[Figure]:
    """Build the book cold, and again with nothing changed."""
    figures = []
    with tempfile.TemporaryDirectory(prefix="bench-book-") as name:
        for label in ("book, cold", "book, cached"):
            started = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "toolkit.book", "--out", name],
                cwd=paths.ROOT,
                check=True,
                stdout=subprocess.DEVNULL,
            )
            figures.append(Figure(label, time.perf_counter() - started, "s", "all pages"))
    return figures


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write build/bench.json."""
    parser = argparse.ArgumentParser(prog="python -m autograder.benchmarks", description=__doc__)
    parser.add_argument(
        "--only",
        choices=("grading", "growth", "check", "verify", "transformer", "gpt", "book", "pages"),
    )
    parser.add_argument(
        "--page",
        action="append",
        metavar="NAME",
        help="a page of the built book, such as attention/index (those that are done)",
    )
    parser.add_argument("--unit", choices=paths.units(), metavar="UNIT", help="only this unit")
    parser.add_argument("--count", type=int, default=100, help="submissions for the comparison")
    options = parser.parse_args(arguments)
    console = Console()
    parts: dict[str, Callable[[str], list[Figure]]] = {
        "grading": lambda unit: grading(unit, options.count),
        "check": check_latency,
        "verify": kill_rate,
    }
    report: dict[str, Any] = {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "load": os.getloadavg()[0],
        },
        "figures": [],
    }
    table = Table(title="Measured on this machine, in one run")
    for heading in ("what", "value", "unit", "on what"):
        table.add_column(heading, justify="right" if heading == "value" else "left")

    def add(where: str, figures: list[Figure]) -> None:
        for figure in figures:
            report["figures"].append({"of": where, **asdict(figure)})
            table.add_row(
                f"{where}: {figure.name}", f"{figure.value:.3g}", figure.unit, figure.detail
            )

    units = [options.unit] if options.unit else paths.units()
    graded = options.unit or GRADED
    for unit in units:
        for name, measure in parts.items():
            if options.only in (None, name) and (name != "grading" or unit == graded):
                console.print(f"measuring {name} of {unit} ...")
                add(unit, measure(unit))
    if options.only == "growth":
        console.print(f"measuring classes of {graded} ...")
        add(graded, growth(graded))
    models: dict[str, Callable[[], list[Figure]]] = {
        "transformer": transformer_speed,
        "gpt": gpt_speed,
    }
    chapters = {paths.chapter_of(unit) for unit in units}
    for name, speed in models.items():
        if options.only == name or (options.only is None and name in chapters):
            console.print(f"measuring the model of {name} ...")
            add(name, speed())
    if options.only in (None, "book"):
        console.print("measuring the book ...")
        add("book", book_seconds())
    if options.only in (None, "pages") and (names := options.page or book.done()):
        console.print("measuring pages of the built book ...")
        add("page", page_seconds(book.OUT / "_build" / "html", names))
    console.print(table)
    target = paths.BUILD / "bench.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    console.print(f"written to {target.relative_to(paths.ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
