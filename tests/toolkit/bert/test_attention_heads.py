"""What is measured of the shipped BERT's heads, on rows small enough to check."""

import torch

from toolkit.attention.heads import without_head
from toolkit.bert import attention_head_pictures, attention_heads
from toolkit.bert.fine_tuning import masked_input
from toolkit.models import load


def test_attn_weights_rebuild_the_layers_output() -> None:
    shipped = load("bert")
    bert = shipped.model.bert
    ids, segments = masked_input(shipped.tokenizer, "Open the file.", "Close it.")
    with torch.no_grad():
        x = bert.embeddings(ids, segments)
        attention = bert.layers[0].attention
        value = attention.v_proj(x).unflatten(-1, (4, -1)).transpose(1, 2)
        weights = attention_heads.attn_weights(bert, ids, segments)[:, 0]
        mixed = attention.out_proj((weights @ value).transpose(1, 2).flatten(2))
        torch.testing.assert_close(mixed, attention(x), atol=1e-5, rtol=1e-4)


def test_kinds_of_keys_by_hand() -> None:
    found = attention_heads.kinds(torch.tensor([[2, 7, 8, 7, 3]]))  # [CLS] a b a [SEP]
    assert found["previous"][0].nonzero().tolist() == [[1, 0], [2, 1], [3, 2], [4, 3]]
    assert found["same token"][0].nonzero().tolist() == [[1, 3], [3, 1]]
    assert found["[SEP]"][0].nonzero()[:, 1].unique().tolist() == [4]


def test_a_head_that_is_cut_comes_back() -> None:
    model = load("bert").model.bert
    weight = model.layers[1].attention.out_proj.weight
    before = weight.detach().clone()
    with without_head(model, 1, 2):
        assert not weight[:, 48:72].any()
        assert torch.equal(weight[:, :48], before[:, :48])
    assert torch.equal(weight, before)


def test_stored_heads_are_all_there_and_can_be_drawn() -> None:
    heads, even, loss, tokens = attention_heads.read()
    assert len(heads) == 16
    assert set(even) == set(attention_heads.TARGETS)
    assert loss > 3
    assert tokens > 5000
    attention_head_pictures.looks(heads, even)


def test_stored_cuts_agree_with_the_heads_and_can_be_drawn() -> None:
    heads, _, loss, tokens = attention_heads.read()
    cuts = attention_heads.read_cuts()
    names = [f"{layer}.{head}" for layer, head in heads]
    assert {task for _, task in cuts} == set(attention_heads.TASKS)
    assert abs(cuts["none", "masked tokens"]["loss"] - loss) < 1e-3
    assert cuts["none", "masked tokens"]["count"] == tokens
    for name, head in zip(names, heads.values(), strict=True):
        assert abs(cuts[name, "masked tokens"]["change"] - head.change) < 1e-3
    drawn = attention_head_pictures.cuts(cuts, names)
    assert [ax.get_title(loc="left") for ax in drawn.axes] == list(attention_heads.TASKS)


def test_losses_of_both_tasks_agree_with_the_model() -> None:
    shipped = load("bert")
    rows, is_random = attention_heads.held_out_pairs(shipped, 4)
    torch.manual_seed(0)
    corrupted, labels = shipped.module.mask_tokens(rows.ids, 3000)
    found = attention_heads.task_losses(shipped.model, rows, corrupted, labels, is_random)
    mlm, nsp = (losses.mean() for losses, _ in found.values())
    with torch.no_grad():
        logits = shipped.model(corrupted, rows.token_type_ids, rows.mask)
        whole = shipped.module.pretraining_loss(*logits, labels, is_random)
    torch.testing.assert_close(mlm + nsp, whole, atol=1e-5, rtol=1e-5)
    same = attention_heads.token_losses(shipped.model, rows, corrupted, labels)
    torch.testing.assert_close(found["masked tokens"][0], same)


def test_the_last_position_is_split_by_its_token() -> None:
    sep = attention_heads.read_sep()
    last, stop, another = (
        sep["closing [SEP]", "", name] for name in ("last", "last, full stop", "last, another")
    )
    assert last["count"] == stop["count"] + another["count"]
    mean = stop["change"] * stop["count"] + another["change"] * another["count"]
    assert abs(mean / last["count"] - last["change"]) < 1e-3
