"""The graders of `gpt-training`: right answers in any style earn full marks."""

from __future__ import annotations

from tests.autograder.unit_graders import EarlierParts, Styles, UnitGraders

UNIT = "gpt-training"

# Right answers that look unlike the reference and unlike those in autograder/demo.
STYLES = Styles()
style = STYLES.add

style(
    "init_weights",
    "by name, in place on the data",
    """
    def init_weights(model):
        scaled = isinstance(model.final_norm, nn.LayerNorm)
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.data.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
                continue
            std = 0.02
            if scaled and name.endswith(("out_proj.weight", "w_2.weight")):
                std /= (2 * len(model.blocks)) ** 0.5
            parameter.data.normal_(mean=0.0, std=std)
        return model
    """,
)
style(
    "init_weights",
    "apply, then the last layers of branches multiplied, all under no_grad",
    """
    def init_weights(model):
        def fresh(module):
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif hasattr(module, "weight"):
                module.weight.copy_(0.02 * torch.randn(module.weight.shape))
                if getattr(module, "bias", None) is not None:
                    module.bias.zero_()

        with torch.no_grad():
            model.apply(fresh)
            if type(model.final_norm) is not nn.Identity:
                for block in model.blocks:
                    for layer in (block.attention.out_proj, block.feed_forward.w_2):
                        layer.weight.mul_(1 / math.sqrt(2 * len(model.blocks)))
        return model
    """,
)
style(
    "init_weights",
    "new parameters",
    """
    def init_weights(model):
        N = len(list(model.blocks))
        small = 0.02 if isinstance(model.final_norm, nn.Identity) else 0.02 * (2 * N) ** -0.5
        for path, module in list(model.named_modules()):
            if isinstance(module, (nn.Linear, nn.Embedding)):
                std = small if path.split(".")[-1] in ("out_proj", "w_2") else 0.02
                module.weight = nn.Parameter(torch.empty_like(module.weight).normal_(0.0, std))
                if isinstance(module, nn.Linear):
                    module.bias = nn.Parameter(torch.zeros_like(module.bias))
            elif isinstance(module, nn.LayerNorm):
                module.weight = nn.Parameter(torch.ones_like(module.weight))
                module.bias = nn.Parameter(torch.zeros_like(module.bias))
        return model
    """,
)
style(
    "count_parameters",
    "a polynomial",
    """
    def count_parameters(vocab_size, max_length, d_model, num_layers, norm_first=True):
        D = d_model
        total = D * (vocab_size + max_length + num_layers * (12 * D + 13))
        return total + 2 * D * int(norm_first)
    """,
)
style(
    "count_parameters",
    "a model that takes no memory",
    """
    from given import PreNormBlock

    def count_parameters(vocab_size, max_length, d_model, num_layers, norm_first=True):
        with torch.device("meta"):
            block = PreNormBlock(d_model, 1)
        count = sum(p.numel() for p in block.parameters()) * num_layers
        count += (vocab_size + max_length) * d_model
        return count + (2 * d_model if norm_first else 0)
    """,
)
style(
    "count_parameters",
    "shapes in a list",
    """
    def count_parameters(vocab_size, max_length, d_model, num_layers, norm_first=True):
        D = d_model
        shapes = [(D, 3 * D), (3 * D,), (D, D), (D,), (D, 4 * D), (4 * D,), (4 * D, D), (D,)]
        shapes = (shapes + 4 * [(D,)]) * num_layers + [(vocab_size, D), (max_length, D)]
        if norm_first:
            shapes += [(D,), (D,)]
        return sum(map(math.prod, shapes))
    """,
)
style(
    "log_likelihood",
    "cross-entropy",
    """
    def log_likelihood(logits, ids, mask=None):
        B, T = ids.shape
        if T < 2:
            raise ValueError("nothing to predict")
        terms = F.cross_entropy(
            logits[:, :-1].reshape(B * (T - 1), -1), ids[:, 1:].reshape(-1), reduction="none"
        ).view(B, T - 1)
        weights = torch.ones_like(terms) if mask is None else mask[:, 1:].to(terms.dtype)
        return -(terms * weights).sum(-1)
    """,
)
style(
    "log_likelihood",
    "loops over rows and places",
    """
    def log_likelihood(logits, ids, mask=None):
        if ids.size(1) <= 1:
            raise ValueError("T")
        totals = []
        for b in range(len(ids)):
            total = logits.new_zeros(())
            for t in range(1, ids.size(1)):
                if mask is None or bool(mask[b, t]):
                    row = logits[b, t - 1]
                    total = total + row[ids[b, t]] - torch.logsumexp(row, 0)
            totals.append(total)
        return torch.stack(totals)
    """,
)
style(
    "log_likelihood",
    "one-hot targets, IGNORE where none counts",
    """
    def log_likelihood(logits, ids, mask=None):
        if logits.shape[1] < 2:
            raise ValueError("T")
        targets = ids.clone()
        targets[:, 0] = -100
        if mask is not None:
            targets[~mask] = -100
        log_probs = logits.log_softmax(-1).transpose(1, 2)[:, :, :-1]
        terms = F.nll_loss(log_probs, targets[:, 1:], ignore_index=-100, reduction="none")
        return terms.sum(dim=1).neg()
    """,
)
style(
    "language_model_loss",
    "one cross-entropy, zero where nothing counts",
    """
    def language_model_loss(logits, ids, mask=None):
        if ids.shape[1] < 2:
            raise ValueError("T")
        targets = ids[:, 1:]
        if mask is not None:
            if not mask[:, 1:].any():
                return 0.0 * logits.sum()
            targets = torch.where(mask[:, 1:], targets, -100)
        return F.cross_entropy(logits[:, :-1].transpose(1, 2), targets)
    """,
)
style(
    "language_model_loss",
    "chosen terms and their mean",
    """
    def language_model_loss(logits, ids, mask=None):
        if ids.shape[1] < 2:
            raise ValueError("T")
        log_probs = F.log_softmax(logits[:, :-1], dim=-1)
        picked = torch.take_along_dim(log_probs, ids[:, 1:, None], dim=-1)[..., 0]
        if mask is not None:
            picked = picked[mask[:, 1:]]
        if picked.numel() == 0:
            return logits.new_zeros(())
        return -picked.mean()
    """,
)
style(
    "language_model_loss",
    "a weighted mean of log_likelihood",
    """
    def language_model_loss(logits, ids, mask=None):
        keep = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
        n = int(keep[:, 1:].sum())
        return -log_likelihood(logits, ids, mask=keep).sum() / (n if n else 1)
    """,
)


style(
    "sample_blocks",
    "windows by unfold, one index for each row",
    """
    def sample_blocks(stream, length, batch_size):
        if length < 1 or batch_size < 1 or stream.numel() <= length:
            raise ValueError("no block")
        windows = stream.unfold(0, length + 1, 1)
        chosen = windows[torch.randint(0, windows.size(0), (batch_size,))]
        return chosen[:, :-1], chosen[:, 1:]
    """,
)
style(
    "sample_blocks",
    "slices in a loop, starts by torch.rand, a list as the result",
    """
    def sample_blocks(stream, length, batch_size):
        if min(length, batch_size) < 1:
            raise ValueError("sizes")
        places = len(stream) - length
        if places < 1:
            raise ValueError("short")
        starts = (torch.rand(batch_size, dtype=torch.float64) * places).long().tolist()
        rows = [stream[s : s + length + 1] for s in starts]
        return [torch.stack([r[:length] for r in rows]), torch.stack([r[1:] for r in rows])]
    """,
)
style(
    "sample_blocks",
    "starts by multinomial",
    """
    def sample_blocks(stream, length, batch_size):
        if length < 1 or batch_size < 1:
            raise ValueError("sizes")
        if stream.shape[0] - length <= 0:
            raise ValueError("short")
        even = torch.ones(stream.shape[0] - length)
        starts = torch.multinomial(even, batch_size, replacement=True)
        index = starts[:, None] + torch.arange(length + 1)[None]
        both = torch.take(stream, index)
        return both.narrow(1, 0, length), both.narrow(1, 1, length)
    """,
)
style(
    "decay_groups",
    "a loop, groups as a tuple of tuples",
    """
    def decay_groups(model, weight_decay):
        if weight_decay < 0:
            raise ValueError("negative")
        many, few = [], []
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            (few if parameter.ndim <= 1 else many).append(parameter)
        first = dict(params=tuple(many), weight_decay=weight_decay)
        return (first, dict(params=tuple(few), weight_decay=0))
    """,
)
style(
    "decay_groups",
    "generators and filters",
    """
    def decay_groups(model, weight_decay):
        if not weight_decay >= 0:
            raise ValueError("negative")
        return [
            {
                "params": (p for p in model.parameters() if p.requires_grad and p.dim() > 1),
                "weight_decay": weight_decay,
            },
            {
                "params": filter(lambda p: p.requires_grad and p.dim() < 2, model.parameters()),
                "weight_decay": 0.0,
            },
        ]
    """,
)
style(
    "adamw_step",
    "in place on copies",
    """
    def adamw_step(parameter, gradient, exp_avg, exp_avg_sq, step, lr, betas=(0.9, 0.95), eps=1e-8,
                   weight_decay=0.1):
        if step <= 0:
            raise ValueError("steps count from 1")
        p, m, v = parameter.clone(), exp_avg.clone(), exp_avg_sq.clone()
        p.mul_(1 - lr * weight_decay)
        m.lerp_(gradient, 1 - betas[0])
        v.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
        size = lr / (1 - betas[0] ** step)
        root = v.sqrt() / math.sqrt(1 - betas[1] ** step)
        p.addcdiv_(m, root.add_(eps), value=-size)
        return [p, m, v]
    """,
)
style(
    "adamw_step",
    "the change first, decay as part of it",
    """
    def adamw_step(parameter, gradient, exp_avg, exp_avg_sq, step, lr, betas=(0.9, 0.95), eps=1e-8,
                   weight_decay=0.1):
        if step < 1:
            raise ValueError(step)
        (a, b), g = betas, gradient
        exp_avg = exp_avg + (1 - a) * (g - exp_avg)
        exp_avg_sq = exp_avg_sq + (1 - b) * (g * g - exp_avg_sq)
        change = (exp_avg / (1 - a**step)) / (torch.sqrt(exp_avg_sq / (1 - b**step)) + eps)
        return parameter - lr * (change + weight_decay * parameter), exp_avg, exp_avg_sq
    """,
)
style(
    "cosine_lr",
    "cut off fractions",
    """
    def cosine_lr(step, max_lr, warmup_steps, total_steps, min_lr=0.0):
        if step < 1 or warmup_steps < 0 or warmup_steps >= total_steps:
            raise ValueError("no such step")
        if step < warmup_steps:
            return step / warmup_steps * max_lr
        f = min(1.0, (step - warmup_steps) / (total_steps - warmup_steps))
        share = 0.5 + 0.5 * math.cos(f * math.pi)
        return share * max_lr + (1 - share) * min_lr
    """,
)
style(
    "cosine_lr",
    "half-angle form",
    """
    def cosine_lr(step, max_lr, warmup_steps, total_steps, min_lr=0.0):
        if step < 1:
            raise ValueError("steps count from 1")
        if warmup_steps not in range(total_steps):
            raise ValueError("warmup_steps")
        if warmup_steps and step <= warmup_steps:
            return float(max_lr * (step / warmup_steps))
        left = max(total_steps - step, 0) / (total_steps - warmup_steps)
        return float(min_lr + (max_lr - min_lr) * math.sin(math.pi / 2 * left) ** 2)
    """,
)
style(
    "train",
    "adamw_step by hand, gradients by autograd.grad, clipped by hand",
    """
    def train(
        model,
        stream,
        total_steps,
        length,
        batch_size,
        max_lr,
        warmup_steps,
        weight_decay=0.1,
        clip=1.0,
    ):
        model.train()
        groups = decay_groups(model, weight_decay)
        decay = [(p, g["weight_decay"]) for g in groups for p in g["params"]]
        means = [(torch.zeros_like(p), torch.zeros_like(p)) for p, _ in decay]
        losses = []
        for step in range(1, total_steps + 1):
            x, y = sample_blocks(stream, length, batch_size)
            loss = -model(x).log_softmax(-1).gather(-1, y.unsqueeze(-1)).mean()
            grads = torch.autograd.grad(loss, [p for p, _ in decay], allow_unused=True)
            grads = [torch.zeros_like(p) if g is None else g for g, (p, _) in zip(grads, decay)]
            norm = sum(g.pow(2).sum() for g in grads).sqrt().item()
            if norm > clip:
                grads = [g * (clip / norm) for g in grads]
            lr = cosine_lr(step, max_lr, warmup_steps, total_steps)
            for i, ((p, d), g) in enumerate(zip(decay, grads)):
                new, *means[i] = adamw_step(p.detach(), g, *means[i], step, lr, weight_decay=d)
                with torch.no_grad():
                    p.copy_(new)
            losses.append(float(loss))
        return losses
    """,
)
style(
    "train",
    "a scheduler of PyTorch, the loss of the chapter, gradients cleared at the end",
    """
    def train(
        model,
        stream,
        total_steps,
        length,
        batch_size,
        max_lr,
        warmup_steps,
        weight_decay=0.1,
        clip=1.0,
    ):
        model.train(True)
        opt = torch.optim.AdamW(
            decay_groups(model, weight_decay), lr=1.0, betas=(0.9, 0.95), eps=1e-8, foreach=True
        )
        opt.zero_grad(set_to_none=False)
        rates = torch.optim.lr_scheduler.LambdaLR(
            opt, lambda n: cosine_lr(n + 1, max_lr, warmup_steps, total_steps)
        )
        losses = torch.zeros(total_steps, dtype=torch.float64)
        for n in range(total_steps):
            x, y = sample_blocks(stream, length, batch_size)
            whole = torch.cat([x[:, :1], y], dim=1)
            logits = model(x)
            logits = torch.cat([logits, logits[:, -1:]], dim=1)
            loss = language_model_loss(logits, whole)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(list(model.parameters()), max_norm=clip)
            opt.step()
            rates.step()
            opt.zero_grad()
            losses[n] = loss.detach()
        return losses.tolist()
    """,
)


class TestGraders(UnitGraders):
    unit = UNIT
    styles = STYLES


# What becomes of an early mistake in the exercises that use it: those that must still pass.
KEPT = {
    "gpt_block_missing": ["init_weights"],
    "gpt_final_norm_always": ["init_weights"],
    "gpt_blocks_backwards": ["init_weights"],
    "groups_matrices_only": ["train"],
    "likelihood_without_shift": ["language_model_loss"],
    "likelihood_mask_ignored": ["language_model_loss"],
    "likelihood_overflows": ["language_model_loss"],
    "likelihood_without_gradient": ["language_model_loss"],
    "likelihood_length_unchecked": ["language_model_loss"],
}


class TestEarlierParts(EarlierParts):
    unit = UNIT
    kept = KEPT
    unexcused = (
        ("gpt_block_missing", "init_residual_not_scaled"),
        ("gpt_final_norm_always", "init_variance"),
        ("likelihood_without_shift", "lm_loss_divided_by_rows"),
        ("likelihood_mask_ignored", "lm_loss_nan_without_targets"),
        ("likelihood_negative", "lm_loss_mean_of_means"),
    )
