"""The graders of `gpt-transfer`: right answers in any style earn full marks."""

from __future__ import annotations

from tests.autograder.unit_graders import EarlierParts, Styles, UnitGraders

UNIT = "gpt-transfer"

# Right answers that look unlike the reference and unlike those in autograder/demo.
STYLES = Styles()
style = STYLES.add

style(
    "rename_parameters",
    "regular expressions",
    """
    import re

    def rename_parameters(state):
        rules = [
            (r"(?:wte|tokens_embed)\\.weight", "token.weight"),
            (r"(?:wpe|positions_embed)\\.weight", "position.weight"),
            (r"h\\.(\\d+)\\.attn\\.c_attn\\.(weight|bias)", r"blocks.\\1.attention.qkv.\\2"),
            (r"h\\.(\\d+)\\.attn\\.c_proj\\.(weight|bias)", r"blocks.\\1.attention.out_proj.\\2"),
            (r"h\\.(\\d+)\\.mlp\\.c_fc\\.(weight|bias)", r"blocks.\\1.feed_forward.w_1.\\2"),
            (r"h\\.(\\d+)\\.mlp\\.c_proj\\.(weight|bias)", r"blocks.\\1.feed_forward.w_2.\\2"),
            (r"h\\.(\\d+)\\.ln_([12])\\.(weight|bias)", r"blocks.\\1.norm_\\2.\\3"),
            (r"ln_f\\.(weight|bias)", r"final_norm.\\1"),
            (r"lm_head\\.weight|position_ids|h\\.\\d+\\.attn\\.(?:masked_)?bias", ""),
        ]
        result = {}
        for name, tensor in state.items():
            short = re.sub(r"^transformer\\.", "", name)
            for pattern, new in rules:
                if re.fullmatch(pattern, short):
                    ours = re.sub(pattern, new, short)
                    break
            else:
                raise ValueError(name)
            if ours:
                turned = re.search(r"\\.c_\\w+\\.weight", short)
                result[ours] = tensor.t().contiguous() if turned else tensor
        return result
    """,
)
style(
    "rename_parameters",
    "replacements, axes exchanged, names checked at the end",
    """
    def rename_parameters(state):
        known = {"token.weight", "position.weight", "final_norm.weight", "final_norm.bias"}
        parts = ("attention.qkv", "attention.out_proj", "feed_forward.w_1", "feed_forward.w_2",
                 "norm_1", "norm_2")
        result = {}
        for old, tensor in state.items():
            name = old[len("transformer."):] if old.startswith("transformer.") else old
            if name in ("lm_head.weight", "position_ids"):
                continue
            if name.startswith("h.") and name.endswith((".attn.bias", ".attn.masked_bias")):
                continue
            conv = ".c_" in name and name.endswith(".weight")
            for a, b in (
                ("tokens_embed", "token"), ("positions_embed", "position"), ("wte", "token"),
                ("wpe", "position"), ("ln_f", "final_norm"), ("attn.c_attn", parts[0]),
                ("attn.c_proj", parts[1]), ("mlp.c_fc", parts[2]), ("mlp.c_proj", parts[3]),
                ("ln_", "norm_"),
            ):
                name = name.replace(a, b)
            if name.startswith("h."):
                name = "blocks." + name[2:]
                number, rest = name[7:].split(".", 1)
                good = number.isdigit() and rest.rsplit(".", 1)[0] in parts
                if not (good and rest.rsplit(".", 1)[1] in ("weight", "bias")):
                    raise ValueError(f"what is {old}?")
            elif name not in known:
                raise ValueError(f"what is {old}?")
            result[name] = torch.transpose(tensor, 0, 1).contiguous() if conv else tensor
        return result
    """,
)


style(
    "prompt_and_response",
    "the mask by places, joined lists",
    """
    def prompt_and_response(prompt, response):
        if len(prompt) == 0 or len(response) == 0:
            raise ValueError("nothing to learn from")
        ids = [START] + prompt + [DELIMITER] + response + [END]
        return ids, [place > len(prompt) + 1 for place in range(len(ids))]
    """,
)
style(
    "prompt_and_response",
    "token by token, a list as the result",
    """
    def prompt_and_response(prompt, response):
        for part in (prompt, response):
            if not part:
                raise ValueError("empty")
        pairs = [(START, False)]
        pairs.extend((token, False) for token in prompt)
        pairs.append((DELIMITER, False))
        pairs.extend((token, True) for token in response)
        pairs.append((END, True))
        ids, mask = zip(*pairs)
        return [list(ids), list(mask)]
    """,
)
style(
    "prompt_and_response",
    "behind the DELIMITER, found by search in a tensor",
    """
    def prompt_and_response(prompt, response):
        if min(len(prompt), len(response)) < 1:
            raise ValueError("too short")
        ids = torch.tensor([START, *prompt, DELIMITER, *response, END])
        behind = (ids == DELIMITER).long().cumsum(0).bool() & (ids != DELIMITER)
        return ids.tolist(), behind.tolist()
    """,
)
style(
    "entailment_input",
    "joined lists",
    """
    def entailment_input(premise, hypothesis):
        if len(premise) < 1 or len(hypothesis) < 1:
            raise ValueError("an empty text")
        return [START] + list(premise) + [DELIMITER] + list(hypothesis) + [EXTRACT]
    """,
)
style(
    "entailment_input",
    "a copy that grows",
    """
    def entailment_input(premise, hypothesis):
        row = [START]
        for text, mark in ((premise, DELIMITER), (hypothesis, EXTRACT)):
            if not text:
                raise ValueError("an empty text")
            row.extend(text)
            row.append(mark)
        return row
    """,
)
style(
    "similarity_inputs",
    "without the earlier exercise, refused by itself",
    """
    def similarity_inputs(first, second):
        if not (first and second):
            raise ValueError("an empty text")
        rows = []
        for a, b in ((first, second), (second, first)):
            rows.append([START] + a + [DELIMITER] + b + [EXTRACT])
        return rows
    """,
)
style(
    "similarity_inputs",
    "a tuple of two inputs",
    """
    def similarity_inputs(first, second):
        return entailment_input(first, second), entailment_input(second, first)
    """,
)
style(
    "choice_inputs",
    "without the earlier exercise, a common beginning",
    """
    def choice_inputs(context, answers):
        if not context or not answers or any(len(answer) == 0 for answer in answers):
            raise ValueError("something is empty")
        beginning = [START] + list(context) + [DELIMITER]
        return [beginning + list(answer) + [EXTRACT] for answer in answers]
    """,
)
style(
    "choice_inputs",
    "mapped, and looked at afterwards",
    """
    def choice_inputs(context, answers):
        inputs = list(map(lambda answer: entailment_input(context, answer), answers))
        if inputs:
            return inputs
        raise ValueError("no answers")
    """,
)
style(
    "GPTClassifier",
    "the place by argmax, gathered; F.dropout",
    """
    class GPTClassifier(nn.Module):
        def __init__(self, gpt, num_labels, dropout=0.1):
            super().__init__()
            self.gpt = gpt
            self.p = dropout
            self.classifier = nn.Linear(gpt.token.weight.shape[1], num_labels)

        def forward(self, ids):
            here = (ids == EXTRACT).long()
            counts = here.sum(-1)
            if counts.min() < 1 or counts.max() > 1:
                raise ValueError("one EXTRACT per row, please")
            x = self.gpt.features(ids)
            index = here.argmax(-1)[:, None, None].expand(-1, 1, x.shape[-1])
            read = F.dropout(x.gather(1, index)[:, 0], self.p, self.training)
            return self.classifier(read), F.linear(x, self.gpt.token.weight)
    """,
)
style(
    "GPTClassifier",
    "a sum weighted by one-hot places, dropout over all places before it",
    """
    class GPTClassifier(nn.Module):
        def __init__(self, gpt, num_labels, dropout=0.1):
            super().__init__()
            self.gpt, self.drop = gpt, nn.Dropout(dropout)
            self.classifier = nn.Linear(gpt.position.embedding_dim, num_labels)

        def forward(self, ids):
            for row in ids.tolist():
                if row.count(EXTRACT) != 1:
                    raise ValueError(f"{row.count(EXTRACT)} EXTRACT in {row}")
            x = self.gpt.features(ids)
            weights = (ids == EXTRACT).to(x.dtype)
            scores = self.classifier(torch.einsum("bt,btd->bd", weights, self.drop(x)))
            return scores, torch.einsum("btd,vd->btv", x, self.gpt.token.weight)
    """,
)
style(
    "GPTClassifier",
    "every place classified, one of them kept; rows one by one",
    """
    class GPTClassifier(nn.Module):
        def __init__(self, gpt, num_labels, dropout=0.1):
            super().__init__()
            self.gpt = gpt
            self.head = nn.Dropout(p=dropout)
            self.classifier = nn.Linear(gpt.token.embedding_dim, num_labels)

        def forward(self, ids):
            if not torch.equal((ids == EXTRACT).sum(1), torch.ones(len(ids), dtype=torch.long)):
                raise ValueError("exactly one EXTRACT")
            x = self.gpt.features(ids)
            every = self.classifier(self.head(x))
            scores = [row[ids[i].tolist().index(EXTRACT)] for i, row in enumerate(every)]
            return [torch.stack(scores), torch.matmul(x, self.gpt.token.weight.t())]
    """,
)
style(
    "joint_loss",
    "PyTorch's ignore_index",
    """
    def joint_loss(scores, labels, logits, ids, weight=0.5):
        if weight < 0:
            raise ValueError("negative weight")
        l2 = F.cross_entropy(scores, labels)
        l1 = F.cross_entropy(
            logits[:, :-1].reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1), ignore_index=PAD
        )
        return l2 + weight * l1, l2, l1
    """,
)
style(
    "joint_loss",
    "by log_likelihood; the parts are detached, since L3 is what trains",
    """
    def joint_loss(scores, labels, logits, ids, weight=0.5):
        if not weight >= 0:
            raise ValueError("negative weight")
        real = ids.ne(PAD)
        l1 = -log_likelihood(logits, ids, real).sum() / real[:, 1:].sum()
        l2 = -scores.log_softmax(1)[torch.arange(len(labels)), labels].mean()
        return torch.add(l2, l1, alpha=weight), l2.detach(), l1.detach()
    """,
)
style(
    "joint_loss",
    "row by row, place by place",
    """
    def joint_loss(scores, labels, logits, ids, weight=0.5):
        if weight < 0.0:
            raise ValueError("weight")
        terms = []
        for row, tokens in zip(logits, ids.tolist()):
            for t in range(1, len(tokens)):
                if tokens[t] != PAD:
                    terms.append(torch.logsumexp(row[t - 1], 0) - row[t - 1, tokens[t]])
        text = torch.stack(terms).mean()
        task = torch.stack(
            [torch.logsumexp(row, 0) - row[label] for row, label in zip(scores, labels)]
        ).mean()
        return [task + text * weight, task, text]
    """,
)
style(
    "build_prompt",
    "text that grows, line by line",
    """
    def build_prompt(task, examples, query, arrow=" =>"):
        text = ""
        if task != "":
            text += task + "\\n"
        for example in examples:
            text += example[0] + arrow + " " + example[1] + "\\n"
        return text + query + arrow
    """,
)
style(
    "build_prompt",
    "everything is filtered and joined",
    """
    def build_prompt(task, examples, query, arrow=" =>"):
        def line(*parts):
            return " ".join(parts)

        shots = (line(x + arrow, y) for (x, y) in examples)
        return "\\n".join(filter(None, (task, *shots, line(query + arrow))))
    """,
)
style(
    "answer_scores",
    "one answer at a time, the last token not shown to the model",
    """
    @torch.no_grad()
    def answer_scores(model, prompt, answers, per_token=True):
        if len(prompt) == 0 or len(answers) == 0:
            raise ValueError("nothing")
        for answer in answers:
            if not answer or len(prompt) + len(answer) > model.max_length:
                raise ValueError("empty or too long")
        found = []
        for answer in answers:
            ids = torch.tensor(prompt + answer[:-1]).unsqueeze(0)
            log_probs = model(ids)[0].log_softmax(-1)
            terms = [log_probs[len(prompt) - 1 + i, token] for i, token in enumerate(answer)]
            total = torch.stack(terms).sum()
            found.append(total / len(answer) if per_token else total)
        return torch.stack(found)
    """,
)
style(
    "answer_scores",
    "by cross-entropy with ignored targets, padded by the answer's last token",
    """
    def answer_scores(model, prompt, answers, per_token=True):
        if not prompt or not answers or min(map(len, answers)) == 0:
            raise ValueError("empty")
        most = max(map(len, answers))
        if len(prompt) + most > model.max_length:
            raise ValueError("too long")
        rows = [[*prompt, *answer, *answer[-1:] * (most - len(answer))] for answer in answers]
        first = [-100] * (len(prompt) - 1)
        goals = [first + answer + [-100] * (most - len(answer)) for answer in answers]
        with torch.inference_mode():
            logits = model(torch.tensor(rows))[:, :-1]
            each = -F.cross_entropy(logits.mT, torch.tensor(goals), reduction="none").sum(1)
        each = each.clone()
        return each / torch.tensor([len(answer) for answer in answers]) if per_token else each
    """,
)
style(
    "answer_scores",
    "detached at the end, token after token",
    """
    def answer_scores(model, prompt, answers, per_token=True):
        if [] in (prompt, answers) or [] in answers:
            raise ValueError("empty")
        if max(len(prompt) + len(answer) for answer in answers) > model.max_length:
            raise ValueError("too long")
        scores = []
        for answer in answers:
            text, terms = list(prompt), []
            for token in answer:
                logits = model(torch.tensor([text]))[0, -1].detach()
                terms.append(logits[token] - logits.logsumexp(0))
                text.append(token)
            scores.append(sum(terms) / (len(terms) if per_token else 1))
        return torch.stack(scores)
    """,
)


class TestGraders(UnitGraders):
    unit = UNIT
    styles = STYLES


USERS = ["GPTClassifier", "answer_scores"]
# What becomes of an early mistake in the exercises that use it: those that must still pass.
KEPT = {
    "mask_upper": USERS,
    "mask_one_ahead": USERS,
    "attention_unscaled": USERS,
    "attention_not_masked": USERS,
    "attention_parts_within_heads": USERS,
    "attention_without_output": USERS,
    "attention_result_not_dropped": USERS,
    "gelu_exact": USERS,
    "gelu_relu": USERS,
    "gelu_mirrored": USERS,
    "ffn_residual_inside": USERS,
    "ffn_not_dropped": USERS,
    "ffn_not_wider": USERS,
    "pre_post_norm": USERS,
    "pre_without_shortcuts": USERS,
    "gpt_head_untied": USERS,
    "gpt_final_norm_missing": USERS,
    "gpt_blocks_backwards": ["GPTClassifier"],
    "likelihood_without_shift": ["joint_loss", "answer_scores"],
    "likelihood_mask_ignored": ["joint_loss", "answer_scores"],
    "likelihood_overflows": ["joint_loss", "answer_scores"],
    "lm_loss_summed": ["joint_loss"],
    "lm_loss_number": ["joint_loss"],
    "lm_loss_without_gradient": ["joint_loss"],
    "entailment_without_start": ["similarity_inputs", "choice_inputs"],
    "entailment_empty_accepted": ["similarity_inputs", "choice_inputs"],
}


class TestEarlierParts(EarlierParts):
    unit = UNIT
    kept = KEPT
    unexcused = (
        ("attention_unscaled", "classifier_reads_last_column"),
        ("attention_not_masked", "classifier_reads_first"),
        ("gpt_head_untied", "classifier_without_dropout"),
        ("gpt_blocks_backwards", "classifier_reads_mean"),
        ("likelihood_without_shift", "joint_weight_on_task"),
        ("likelihood_mask_ignored", "joint_convex"),
        ("lm_loss_summed", "joint_task_summed"),
        ("likelihood_without_shift", "answers_sum_for_mean"),
        ("likelihood_mask_ignored", "answers_negative"),
        ("entailment_without_start", "similarity_same_order"),
        ("entailment_empty_accepted", "choice_no_answers_accepted"),
        ("entailment_end_for_extract", "choice_answer_first"),
    )
