"""The graders of `bert-relatives`: right answers in any style earn full marks."""

from __future__ import annotations

from tests.autograder.unit_graders import EarlierParts, Styles, UnitGraders

UNIT = "bert-relatives"

# Right answers that look unlike the reference and unlike those in autograder/demo.
STYLES = Styles()
style = STYLES.add


style(
    "SharedEncoder",
    "reduce over a repeated layer",
    """
    import itertools
    from functools import reduce

    class SharedEncoder(nn.Module):
        def __init__(self, num_layers, d_model, num_heads, d_ff, dropout=0.0):
            super().__init__()
            self.times = num_layers
            self.layer = BertLayer(d_model, num_heads, d_ff, dropout)

        def forward(self, x, mask=None):
            layers = itertools.repeat(self.layer, self.times)
            return reduce(lambda value, layer: layer(value, mask=mask), layers, x)
    """,
)
style(
    "SharedEncoder",
    "recursion, a list that holds no parameters",
    """
    class SharedEncoder(nn.Module):
        def __init__(self, num_layers, d_model, num_heads, d_ff, dropout=0.0):
            super().__init__()
            sizes = dict(d_model=d_model, num_heads=num_heads, d_ff=d_ff)
            self.layer = BertLayer(**sizes, dropout=dropout)
            self.stack = (self.layer,) * num_layers

        def run(self, layers, x, mask):
            return self.run(layers[1:], layers[0](x, mask), mask) if layers else x

        def forward(self, x, mask=None):
            return self.run(self.stack, x, mask)
    """,
)
style(
    "permutation_masks",
    "step by step along the order",
    """
    def permutation_masks(order):
        places = order.tolist()
        if sorted(places) != list(range(len(places))):
            raise ValueError(places)
        query = torch.zeros(len(places), len(places), dtype=torch.bool)
        for k, i in enumerate(places):
            for j in places[:k]:
                query[i, j] = True
        return query | torch.eye(len(places), dtype=torch.bool), query
    """,
)
style(
    "permutation_masks",
    "triangles, rows and columns put in their places",
    """
    def permutation_masks(order):
        T = order.numel()
        if len(set(order.tolist()) & set(range(T))) < T:
            raise ValueError("not a permutation")
        rank = torch.empty_like(order)
        rank[order] = torch.arange(T)
        content = torch.ones(T, T).tril()[rank][:, rank] > 0
        return [content, content & ~torch.eye(T).bool()]
    """,
)
style(
    "RelativeAttention",
    "the shift of Transformer-XL",
    """
    class RelativeAttention(nn.Module):
        def __init__(self, d_model, num_heads, dropout=0.0):
            if d_model % num_heads != 0:
                raise ValueError(num_heads)
            super().__init__()
            self.H, self.d = num_heads, d_model // num_heads
            for name in "qkvr":
                setattr(self, f"{name}_proj", nn.Linear(d_model, d_model, bias=False))
            self.out_proj = nn.Linear(d_model, d_model, bias=False)
            self.content_bias = nn.Parameter(torch.zeros(self.H, self.d))
            self.position_bias = nn.Parameter(torch.zeros(self.H, self.d))
            self.drop = nn.Dropout(dropout)

        def heads(self, x):
            return x.unflatten(-1, (self.H, self.d)).transpose(-3, -2)

        def forward(self, x, memory=None):
            seen = x if memory is None else torch.cat((memory.detach(), x), 1)
            T, S = x.shape[1], seen.shape[1]
            q, k = self.heads(self.q_proj(x)), self.heads(self.k_proj(seen))
            v = self.heads(self.v_proj(seen))
            codes = relative_code(torch.arange(S - 1, -1, -1), x.shape[2]).to(x.dtype)
            r = self.heads(self.r_proj(codes))
            content = (q + self.content_bias[:, None]) @ k.mT
            by_place = (q + self.position_bias[:, None]) @ r.mT
            # Row i belongs S - T + i places into the sequence: move it left by T - 1 - i.
            by_place = F.pad(by_place, (1, 0)).flatten(2)[..., T:].unflatten(2, (T, S))
            future = torch.ones(T, S).triu(S - T + 1).bool()
            scores = (content + by_place) * self.d ** -0.5
            attn_weights = scores.masked_fill(future, -1e9).softmax(-1)
            return self.out_proj((self.drop(attn_weights) @ v).transpose(1, 2).flatten(2))
    """,
)
style(
    "RelativeAttention",
    "query by query, head by head",
    """
    class RelativeAttention(nn.Module):
        def __init__(self, d_model, num_heads, dropout=0.0):
            super().__init__()
            if d_model % num_heads:
                raise ValueError("heads")
            self.q_proj, self.k_proj, self.v_proj, self.r_proj, self.out_proj = (
                nn.Linear(d_model, d_model, bias=False) for _ in range(5)
            )
            self.content_bias, self.position_bias = (
                nn.Parameter(torch.zeros(num_heads, d_model // num_heads)) for _ in range(2)
            )
            self.dropout = dropout

        def forward(self, x, memory=None):
            M = 0 if memory is None else memory.shape[1]
            with torch.no_grad():
                old = x[:, :0] if memory is None else memory.clone()
            seen = torch.cat([old.detach(), x], dim=1)
            H, d = self.content_bias.shape
            rows = []
            for i in range(x.shape[1]):
                upto = seen[:, : M + i + 1]
                r = self.r_proj(relative_code(M + i - torch.arange(M + i + 1), H * d).to(x.dtype))
                q, k, v = self.q_proj(x[:, i]), self.k_proj(upto), self.v_proj(upto)
                heads = []
                for h in range(H):
                    part = slice(h * d, (h + 1) * d)
                    one = ((q[:, part] + self.content_bias[h])[:, None] * k[..., part]).sum(-1)
                    two = (q[:, part] + self.position_bias[h]) @ r[:, part].T
                    attn_weights = F.softmax((one + two) / d**0.5, dim=-1)
                    attn_weights = F.dropout(attn_weights, self.dropout, self.training)
                    heads.append((attn_weights.unsqueeze(-1) * v[..., part]).sum(1))
                rows.append(torch.cat(heads, -1))
            return self.out_proj(torch.stack(rows, 1))
    """,
)
style(
    "update_memory",
    "flip, a copy",
    """
    def update_memory(memory, hidden, length):
        if length < 0:
            raise ValueError(length)
        both = [hidden] if memory is None else [memory, hidden]
        return torch.cat([part.data for part in both], 1).flip(1)[:, :length].flip(1)
    """,
)
style(
    "update_memory",
    "narrow without gradient",
    """
    @torch.no_grad()
    def update_memory(memory, hidden, length):
        if length <= -1:
            raise ValueError("negative")
        if memory is None:
            memory = hidden.new_empty(hidden.shape[0], 0, hidden.shape[2])
        joined = torch.cat([memory, hidden], dim=1)
        keep = min(length, joined.shape[1])
        return joined.narrow(1, joined.shape[1] - keep, keep).clone()
    """,
)
style(
    "replace_tokens",
    "multinomial over the chosen places only",
    """
    def replace_tokens(ids, labels, logits):
        chosen = labels.ne(IGNORE)
        replaced = ids.clone()
        if chosen.any():
            probabilities = logits[chosen].detach().softmax(-1)
            replaced[chosen] = torch.multinomial(probabilities, 1).flatten()
        return replaced, replaced.ne(ids)
    """,
)
style(
    "replace_tokens",
    "Gumbel noise and the highest score",
    """
    def replace_tokens(ids, labels, logits):
        with torch.no_grad():
            noise = -torch.log(-torch.log(torch.rand(logits.shape).clamp(1e-12, 1 - 1e-7)))
            guesses = (logits + noise).argmax(-1)
        replaced = torch.where(labels == IGNORE, ids, guesses)
        return replaced, (labels != IGNORE) & (guesses != ids)
    """,
)
style(
    "replace_tokens",
    "cumulative sums and a uniform number, Python's choices elsewhere",
    """
    import random

    def replace_tokens(ids, labels, logits):
        replaced = ids.tolist()
        weights = logits.detach().double().softmax(-1)
        for b, t in (labels != IGNORE).nonzero().tolist():
            replaced[b][t] = random.choices(range(logits.shape[-1]), weights[b, t].tolist())[0]
        replaced = torch.tensor(replaced)
        return replaced, ~replaced.eq(ids)
    """,
)
style(
    "replaced_token_loss",
    "log-sigmoids, weights of 0 at padding",
    """
    def replaced_token_loss(scores, is_replaced, mask):
        signs = torch.where(is_replaced, 1.0, -1.0).to(scores.dtype)
        each = -F.logsigmoid(signs * scores)
        return (each * mask).sum() / mask.sum()
    """,
)
style(
    "replaced_token_loss",
    "softplus, token by token",
    """
    def replaced_token_loss(scores, is_replaced, mask):
        losses = [
            F.softplus(-score if replaced else score)
            for row in zip(scores, is_replaced, mask)
            for score, replaced, real in zip(*row)
            if real
        ]
        return sum(losses) / len(losses)
    """,
)
style(
    "TwoDirections",
    "rows turned round one by one",
    """
    class TwoDirections(nn.Module):
        def __init__(self, vocab_size, embed_dim, hidden_size):
            super().__init__()
            self.embedding = nn.Embedding(vocab_size, embed_dim)
            self.forward_lstm, self.backward_lstm = (
                nn.LSTM(embed_dim, hidden_size, batch_first=True) for _ in range(2)
            )
            self.output = nn.Linear(hidden_size, vocab_size)

        def rows(self, ids, mask):
            for b in range(len(ids)):
                yield ids[b] if mask is None else ids[b][mask[b]]

        def states(self, row):
            x = self.embedding(row)[None]
            return self.forward_lstm(x)[0][0], self.backward_lstm(x.flip(1))[0][0].flip(0)

        def forward(self, ids, mask=None):
            made = [torch.cat(self.states(row), -1) for row in self.rows(ids, mask)]
            return torch.stack([F.pad(one, (0, 0, 0, ids.size(1) - len(one))) for one in made])

        def loss(self, ids, mask=None):
            after, before = [], []
            for row in self.rows(ids, mask):
                one, two = self.states(row)
                after.append(F.cross_entropy(self.output(one[:-1]), row[1:], reduction="none"))
                before.append(F.cross_entropy(self.output(two[1:]), row[:-1], reduction="none"))
            return torch.cat(after).mean() + torch.cat(before).mean()
    """,
)
style(
    "TwoDirections",
    "padding moved to the front by rolling, IGNORE as target",
    """
    class TwoDirections(nn.Module):
        def __init__(self, vocab_size, embed_dim, hidden_size):
            super().__init__()
            self.backward_lstm = nn.LSTM(embed_dim, hidden_size, batch_first=True)
            self.forward_lstm = nn.LSTM(embed_dim, hidden_size, batch_first=True)
            self.output = nn.Linear(hidden_size, vocab_size)
            self.embedding = nn.Embedding(vocab_size, embed_dim)

        def turned(self, x, lengths):
            return torch.stack([
                torch.cat([row[:n].flip(0), row[n:]]) for row, n in zip(x, lengths)
            ])

        def forward(self, ids, mask=None):
            B, T = ids.shape
            lengths = [T] * B if mask is None else mask.sum(-1).tolist()
            x = self.embedding(ids)
            back, _ = self.backward_lstm(self.turned(x, lengths))
            return torch.cat((self.forward_lstm(x)[0], self.turned(back, lengths)), dim=-1)

        def loss(self, ids, mask=None):
            targets = ids if mask is None else ids.masked_fill(~mask, IGNORE)
            H = self.output.in_features
            states = self(ids, mask)
            total = 0
            for part, wanted in (
                (states[:, :-1, :H], targets[:, 1:]),
                (states[:, 1:, H:], targets[:, :-1].masked_fill(targets[:, 1:] == IGNORE, IGNORE)),
            ):
                logits = self.output(part).flatten(0, 1)
                total = total + F.cross_entropy(logits, wanted.flatten(), ignore_index=IGNORE)
            return total
    """,
)


class TestGraders(UnitGraders):
    unit = UNIT
    styles = STYLES


# What becomes of an early mistake in the exercises that use it: those that must still pass.
KEPT = {
    "attention_unscaled": ["SharedEncoder"],
    "layer_pre_norm": ["SharedEncoder"],
    "layer_relu": ["SharedEncoder"],
    "mask_always": ["replace_tokens"],
}


class TestEarlierParts(EarlierParts):
    unit = UNIT
    kept = KEPT
    unexcused = (("layer_pre_norm", "shared_encoder_applied_once"),)
