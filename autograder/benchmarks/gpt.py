"""GPT's part of the bench: training and generation beside two libraries, in tokens per second.

Our GPT on its clear and its fast path, Hugging Face's `GPT2LMHeadModel`, a plain
`torch.nn.TransformerEncoder` and a GPT as nanoGPT writes it get the same weights, the same tokens
and the same optimiser, say the same before they are timed, and take turns. Without dropout, as
large language models are trained.

On a CPU they get one thread, and processor time counts. On a GPU the model is GPT-2's smallest at
1024 tokens, in bf16, compiled, and the share of the hardware's speed that our fast path reaches is
measured too: operations of a token by formula, times tokens per second, over what the maker states
for the chip, and over what one large matrix product reaches in the same run.
"""

from __future__ import annotations

import copy
import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autograder.benchmarks.timing import (
    Figure,
    compared,
    one_thread,
    refuse_other_ids,
    refuse_other_values,
    taking_turns,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

# Dense bf16 operations per second that the makers state, by a part of the chip's name.
STATED = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12, "RTX 4090": 165e12}


@dataclass(frozen=True)
class Sizes:
    """A GPT to be timed, and on what.

    batch, context: rows of a training batch and tokens of each. rows, prompt: rows that are
    written at a time, and how many tokens they begin with; they are written until the context is
    full. rounds: of training steps and of generations.
    """

    vocabulary: int = 1024
    num_layers: int = 4
    width: int = 256
    num_heads: int = 4
    context: int = 128
    batch: int = 8
    rows: int = 4
    prompt: int = 16
    rounds: tuple[int, int] = (15, 7)


ON_GPU = Sizes(50_257, 12, 768, 12, context=1024, batch=16, rows=4, prompt=32, rounds=(10, 3))


def library_twin(model: Any) -> nn.Module:
    """A plain `torch.nn.TransformerEncoder` with the weights of a pre-norm GPT, without dropout.

    Args:
        model: a `GPT` of `solutions.gpt` with norm_first=True.

    Returns:
        A module from ids (B, T) to logits (B, T, V), its output tied to its embedding.
    """
    import torch
    from torch import nn
    from torch.nn import functional as F

    width, block = model.token.weight.shape[1], model.blocks[0]

    class Twin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.max_length = model.max_length
            self.token = nn.Embedding(*model.token.weight.shape)
            self.position = nn.Embedding(*model.position.weight.shape)
            layer = nn.TransformerEncoderLayer(
                width, block.attention.num_heads, 4 * width, dropout=0.0, batch_first=True,
                activation=functools.partial(F.gelu, approximate="tanh"), norm_first=True,
            )  # fmt: skip
            self.core = nn.TransformerEncoder(
                layer, len(model.blocks), norm=nn.LayerNorm(width), enable_nested_tensor=False
            )
            mask = nn.Transformer.generate_square_subsequent_mask(model.max_length)  # (C, C)
            self.register_buffer("mask", mask, persistent=False)

        def forward(self, ids: Tensor) -> Tensor:
            size = ids.shape[1]
            x = self.token(ids) + self.position.weight[:size]  # (B, T, D)
            x = self.core(
                x, mask=self.get_buffer("mask")[:size, :size], is_causal=True
            )  # (B, T, D)
            return x @ self.token.weight.T  # (B, T, V)

    twin = Twin().to(model.token.weight)
    pairs = [
        (twin.token, model.token),
        (twin.position, model.position),
        (twin.core.norm, model.final_norm),
    ]
    with torch.no_grad():
        for their, our in zip(twin.core.layers, model.blocks, strict=True):
            their.self_attn.in_proj_weight.copy_(our.attention.qkv.weight)
            their.self_attn.in_proj_bias.copy_(our.attention.qkv.bias)
            pairs += [
                (their.self_attn.out_proj, our.attention.out_proj),
                (their.linear1, our.feed_forward.w_1),
                (their.linear2, our.feed_forward.w_2),
                (their.norm1, our.norm_1),
                (their.norm2, our.norm_2),
            ]
        for target, source in pairs:
            assert target is not None
            target.load_state_dict(source.state_dict())
    return twin


def hugging_face_twin(model: Any) -> nn.Module:
    """`GPT2LMHeadModel` with the weights of a pre-norm GPT, without dropout."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=model.token.num_embeddings, n_positions=model.max_length,
        n_embd=model.token.embedding_dim, n_layer=len(model.blocks),
        n_head=model.blocks[0].attention.num_heads, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=None, eos_token_id=None, attn_implementation="sdpa",  # type: ignore[call-arg]
    )  # fmt: skip
    twin = GPT2LMHeadModel(config).to(model.token.weight)
    core = twin.transformer
    pairs = [(core.wte, model.token), (core.wpe, model.position), (core.ln_f, model.final_norm)]
    joined = []
    for their, our in zip(core.h, model.blocks, strict=True):
        pairs += [(their.ln_1, our.norm_1), (their.ln_2, our.norm_2)]
        joined += [
            (their.attn.c_attn, our.attention.qkv),
            (their.attn.c_proj, our.attention.out_proj),
            (their.mlp.c_fc, our.feed_forward.w_1),
            (their.mlp.c_proj, our.feed_forward.w_2),
        ]
    with torch.no_grad():
        for target, source in pairs:
            assert target is not None
            target.load_state_dict(source.state_dict())
        for target, source in joined:
            target.weight.copy_(source.weight.T)  # its layers keep their weights the other way
            target.bias.copy_(source.bias)
    return twin


def plain_twin(model: Any) -> nn.Module:
    """A GPT as short as nanoGPT's (Karpathy 2022), with the weights of a pre-norm GPT.

    Fused attention and GELU, no dropout; it writes without a cache.

    Args:
        model: a `GPT` of `solutions.gpt` with norm_first=True.

    Returns:
        A module from ids (B, T) to logits (B, T, V), its output tied to its embedding.
    """
    from torch import nn
    from torch.nn import functional as F

    heads = model.blocks[0].attention.num_heads

    class Block(nn.Module):
        def __init__(self, block: Any) -> None:
            super().__init__()
            self.ln_1, self.ln_2 = block.norm_1, block.norm_2
            self.c_attn, self.c_proj = block.attention.qkv, block.attention.out_proj
            self.c_fc, self.mlp_proj = block.feed_forward.w_1, block.feed_forward.w_2

        def forward(self, x: Tensor) -> Tensor:
            batch, size, width = x.shape
            parts = self.c_attn(self.ln_1(x)).split(width, dim=2)  # 3 x (B, T, D)
            q, k, v = (part.view(batch, size, heads, -1).transpose(1, 2) for part in parts)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, H, T, D/H)
            x = x + self.c_proj(y.transpose(1, 2).reshape(batch, size, width))  # (B, T, D)
            return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))

    class Plain(nn.Module):
        def __init__(self, parts: Any) -> None:
            super().__init__()
            self.max_length = parts.max_length
            self.token, self.position = parts.token, parts.position
            self.h = nn.ModuleList(map(Block, parts.blocks))
            self.ln_f = parts.final_norm

        def forward(self, ids: Tensor) -> Tensor:
            x = self.token(ids) + self.position.weight[: ids.shape[1]]  # (B, T, D)
            for block in self.h:
                x = block(x)  # (B, T, D)
            return F.linear(self.ln_f(x), self.token.weight)  # (B, T, V)

    return Plain(copy.deepcopy(model))


def product_speed(device: torch.device, dtype: torch.dtype, size: int, rounds: int = 9) -> float:
    """Operations per second of one large matrix product, the best of several rounds."""
    import torch

    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    clock = _clock(device)
    best = float("inf")
    for _ in range(rounds):
        started = clock()
        a @ b
        best = min(best, clock() - started)
    return 2 * size**3 / best


def stated_speed(name: str) -> float | None:
    """What the maker states for a chip, in dense bf16 operations per second; None if unknown."""
    return next((speed for part, speed in STATED.items() if part in name), None)


def gpt_speed(sizes: Sizes | None = None) -> list[Figure]:
    """Tokens per second of training and of generation, ours beside the libraries'.

    Args:
        sizes: those for this machine if not given.

    Raises:
        RuntimeError: if the models do not say or write the same.
    """
    import torch
    from torch.nn import functional as F

    from solutions import gpt
    from toolkit.device import preset

    machine = preset()
    on_gpu = machine.name == "gpu"
    sizes = sizes or (ON_GPU if on_gpu else Sizes())
    clock = _clock(machine.device)
    shape = (
        f"N={sizes.num_layers}, D={sizes.width}, V={sizes.vocabulary}, "
        f"{sizes.batch} x {sizes.context} tokens, {'bf16' if on_gpu else 'one thread'}"
    )
    with torch.random.fork_rng(), one_thread():
        torch.manual_seed(0)
        clear = gpt.make_model(
            sizes.vocabulary, sizes.context, sizes.width, sizes.num_layers, sizes.num_heads,
            dropout=0.0,
        ).to(machine.device)  # fmt: skip
        fast: Any = gpt.fused(copy.deepcopy(clear))
        models: dict[str, Any] = {
            "clear path": clear,
            "fast path": fast,
            "Hugging Face": hugging_face_twin(clear),
            "torch.nn": library_twin(clear),
            "nanoGPT": plain_twin(clear),
        }
        ids = torch.randint(sizes.vocabulary, (sizes.batch, sizes.context + 1))  # (B, T + 1)
        inputs, targets = ids.to(machine.device)[:, :-1], ids.to(machine.device)[:, 1:]  # (B, T)
        prompt = inputs[: sizes.rows, : sizes.prompt]  # (R, P)
        count = sizes.context - sizes.prompt

        def logits(model: Any, given: Tensor = inputs) -> Tensor:
            said = model(given)
            return said if isinstance(said, torch.Tensor) else said.logits  # (B, T, V)

        writers: dict[str, Callable[[], Tensor]] = {
            "clear path": lambda: gpt.generate(clear, prompt, count, temperature=0),
            "fast path": lambda: gpt.fast_generate(fast, prompt, count, temperature=0),
            "Hugging Face": lambda: models["Hugging Face"].generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count,
                do_sample=False, pad_token_id=0,
            ),
            "torch.nn": lambda: gpt.generate(models["torch.nn"], prompt, count, temperature=0),
            "nanoGPT": lambda: gpt.generate(models["nanoGPT"], prompt, count, temperature=0),
        }  # fmt: skip
        for model in models.values():
            model.eval()
        with torch.no_grad():
            refuse_other_values({name: logits(m, inputs[:1]) for name, m in models.items()})
            # One near tie in a thousand steps, and a text goes another way: look at its beginning.
            begun = sizes.prompt + 32
            refuse_other_ids({name: write()[:, :begun] for name, write in writers.items()})
            with machine.autocast():
                written = taking_turns(writers, sizes.rounds[1], clock)

        optimisers = {}
        for name, model in models.items():
            model.train()
            optimisers[name] = gpt.fast_optimiser(model, 1e-4, 0.1)
            if machine.compile:
                model.compile()

        def step(name: str) -> None:
            optimisers[name].zero_grad()
            with machine.autocast():
                said = logits(models[name])  # (B, T, V)
            F.cross_entropy(said.flatten(0, 1).float(), targets.flatten()).backward()
            optimisers[name].step()

        trained = taking_turns(
            {name: functools.partial(step, name) for name in models}, sizes.rounds[0], clock
        )
        flops = gpt.flops_per_token(fast, sizes.context)
        matmul = product_speed(
            machine.device, machine.amp_dtype or torch.float32, 8192 if on_gpu else 1024
        )
    figures = _by_tokens("training", trained, sizes.batch * sizes.context, shape)
    speed = figures[list(models).index("fast path")].value * flops
    figures.append(
        Figure(
            "training, share of a matrix product's speed",
            100 * speed / matmul,
            "%",
            f"{flops / 1e6:.3g} million operations a token",
        )
    )
    if on_gpu and (stated := stated_speed(torch.cuda.get_device_name())):
        figures.append(
            Figure(
                "training, share of the stated peak",
                100 * speed / stated,
                "%",
                f"{stated / 1e12:.0f} TFLOP/s, dense bf16",
            )
        )
    where = f"{sizes.rows} rows, {sizes.prompt} tokens given, {count} written"
    return figures + _by_tokens("generation", written, sizes.rows * count, where)


def _by_tokens(
    what: str, seconds: dict[str, list[float]], tokens: int, detail: str
) -> list[Figure]:
    """Tokens per second of each, and how many times faster the fast path is than each."""
    rates = [
        Figure(f"{what}, {name}", tokens / statistics.median(times), "tokens/s", detail)
        for name, times in seconds.items()
    ]
    pairs = [("fast path", name) for name in seconds if name != "fast path"]
    ratios = [f for f in compared(what, seconds, pairs, detail) if f.unit == "times faster"]
    return rates + ratios


def _clock(device: torch.device) -> Callable[[], float]:
    """Processor time on a CPU; on a GPU the time when it has done what it was given."""
    if device.type != "cuda":
        return time.process_time

    def now() -> float:
        import torch

        torch.cuda.synchronize()
        return time.perf_counter()

    return now
