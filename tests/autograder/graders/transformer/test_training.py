"""The graders of `transformer-training`: right answers in any style earn full marks."""

from __future__ import annotations

from tests.autograder.unit_graders import Styles, UnitGraders

UNIT = "transformer-training"

# Right answers that look unlike the reference and unlike those in autograder/demo.
STYLES = Styles()
style = STYLES.add


style(
    "shift_targets",
    "unbind and stack, a named tuple",
    """
    from collections import namedtuple

    Shifted = namedtuple("Shifted", "read say count")

    def shift_targets(target, pad=PAD):
        columns = target.unbind(1)
        if len(columns) <= 1:
            raise ValueError
        say = torch.stack(columns[1:], 1)
        count = sum(v != pad for v in say.ravel().tolist())
        return Shifted(torch.stack(columns[:-1], 1), say, count)
    """,
)
style(
    "token_batches",
    "groupby is no help: a generator, tuples",
    """
    class TooLong(ValueError):
        pass

    def token_batches(lengths, max_tokens):
        if not max_tokens > 0:
            raise ValueError("max_tokens")
        for i, (s, t) in enumerate(lengths):
            if not max(s, t) <= max_tokens:
                raise TooLong(f"number {i}: {s} and {t} tokens")

        def batches():
            batch = ()
            for i in sorted(range(len(lengths)), key=lambda i: tuple(lengths[i])):
                grown = (*batch, i)
                sides = [len(grown) * max(lengths[j][k] for j in grown) for k in (0, 1)]
                if max(sides) <= max_tokens:
                    batch = grown
                else:
                    yield batch
                    batch = (i,)
            if batch:
                yield batch

        return tuple(batches())
    """,
)
style(
    "label_smoothing_loss",
    "cross entropy of chosen places, by logsumexp again",
    """
    def label_smoothing_loss(log_probs, target, smoothing=0.1, pad=PAD):
        if smoothing < 0 or smoothing >= 1:
            raise ValueError
        places = (target != pad).nonzero(as_tuple=True)
        if not len(places[0]):
            raise ValueError
        logits = log_probs[places]
        logits = logits - logits.logsumexp(-1, keepdim=True)  # changes nothing
        right = torch.take_along_dim(logits, target[places][:, None], 1)[:, 0]
        V = logits.size(1)
        others = logits.sum(1) - right
        keep = 1 - smoothing + smoothing / V
        return torch.neg(torch.mean(keep * right + smoothing / V * others))
    """,
)
style(
    "label_smoothing_loss",
    "kl_div plus the entropy of the target",
    """
    import torch.nn.functional as F

    def label_smoothing_loss(log_probs, target, smoothing=0.1, pad=PAD):
        if not (smoothing >= 0 and smoothing < 1) or bool((target == pad).all()):
            raise ValueError("input")
        real = target != pad
        V = log_probs.shape[-1]
        wanted = torch.full_like(log_probs, smoothing / V).detach()
        wanted.scatter_(2, torch.where(real, target, 0)[..., None], 1 - smoothing + smoothing / V)
        wanted = wanted * real[..., None]
        entropy = -torch.special.xlogy(wanted, wanted).sum()
        apart = F.kl_div(log_probs, wanted, reduction="sum")
        return (apart + entropy) / real.sum()
    """,
)
style(
    "learning_rate",
    "logarithms, a float of NumPy",
    """
    import numpy as np

    def learning_rate(step, d_model=512, warmup_steps=4000, factor=1.0):
        if step <= 0 or warmup_steps <= 0:
            raise ValueError
        falling = -0.5 * np.log(step)
        rising = np.log(step) - 1.5 * np.log(warmup_steps)
        return factor * np.exp(np.minimum(falling, rising) - 0.5 * np.log(d_model))
    """,
)
style(
    "adam_step",
    "clones changed in place, the correction in the rate",
    """
    import math


    def adam_step(parameter, gradient, exp_avg, exp_avg_sq, step, lr, betas=(0.9, 0.98), eps=1e-9):
        if step < 1:
            raise ValueError
        b1, b2 = betas
        exp_avg = exp_avg.clone().mul_(b1).add_(gradient, alpha=1 - b1)
        exp_avg_sq = exp_avg_sq.clone().mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
        root = exp_avg_sq.sqrt().div_(math.sqrt(1 - b2**step)).add_(eps)
        return (
            parameter.clone().addcdiv_(exp_avg, root, value=-lr / (1 - b1**step)),
            exp_avg,
            exp_avg_sq,
        )
    """,
)
style(
    "adam_step",
    "torch.optim with a state of its own",
    """
    def adam_step(parameter, gradient, exp_avg, exp_avg_sq, step, lr, betas=(0.9, 0.98), eps=1e-9):
        if step < 1:
            raise ValueError
        with torch.enable_grad():
            copy_ = nn.Parameter(parameter.detach().clone())
        copy_.grad = gradient.detach().clone()
        adam = torch.optim.Adam([copy_], lr=lr, betas=betas, eps=eps, foreach=False)
        adam.state[copy_] = {
            "step": torch.tensor(float(step - 1)),
            "exp_avg": exp_avg.clone(),
            "exp_avg_sq": exp_avg_sq.clone(),
        }
        adam.step()
        state = adam.state[copy_]
        return copy_.detach(), state["exp_avg"], state["exp_avg_sq"]
    """,
)
style(
    "train_step",
    "the whole target is read and the last place cut off, functional_call, fused dicts",
    """
    from torch.func import functional_call, grad_and_value

    def train_step(model, source, target, moments, step, lr, smoothing=0.1):
        free = {n: p for n, p in model.named_parameters() if p.requires_grad}
        said = shift_targets(target)[1]

        def loss_of(parameters):
            log_probs = functional_call(model, parameters, (source, target))[:, :-1]
            return label_smoothing_loss(log_probs, said, smoothing)

        with torch.enable_grad():
            leaves = {n: p.detach().clone().requires_grad_() for n, p in free.items()}
            loss = loss_of(leaves)
            gradients = torch.autograd.grad(loss, tuple(leaves.values()), allow_unused=True)
        after = {}
        for (name, parameter), gradient in zip(free.items(), gradients):
            if gradient is None:
                continue
            zero = torch.zeros_like(gradient)
            old = moments[name] if name in moments else (zero, zero.clone())
            new, *means = adam_step(parameter.detach(), gradient, *old, step, lr)
            parameter.data = new
            after[name] = list(means)
        return float(loss), after
    """,
)
style(
    "train_step",
    "gradients cleared at the end as well",
    """
    def train_step(model, source, target, moments, step, lr, smoothing=0.1):
        for p in model.parameters():
            if p.grad is not None:
                p.grad.zero_()
        read, said, _ = shift_targets(target)
        loss = label_smoothing_loss(model(source, read), said, smoothing=smoothing)
        loss.backward()
        moments = {name: tuple(pair) for name, pair in moments.items()}
        for name, p in model.named_parameters():
            if p.grad is None:
                continue
            m, v = moments.get(name) or (p.new_zeros(p.shape), p.new_zeros(p.shape))
            with torch.no_grad():
                new, m, v = adam_step(p.detach(), p.grad, m, v, step=step, lr=lr)
                p[...] = new
            moments[name] = (m, v)
        model.zero_grad()
        return loss.detach().item(), moments
    """,
)


class TestGraders(UnitGraders):
    unit = UNIT
    styles = STYLES
