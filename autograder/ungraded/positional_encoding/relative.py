"""Your learned positions load those of the shipped BERT; and your relative attention, after some
seconds of training, still finds the token three back in rows longer than any it has seen."""

from solutions.positional_encoding.relative import LearnedPositions, RelativeSelfAttention

# isort: split
# %%
from toolkit import own_models
from toolkit.positional_encoding import measures

shipped = own_models.read("bert")
positions = LearnedPositions(128, 96)
positions.load_state_dict({"table.weight": shipped.state["bert.embeddings.position.weight"]})
own_models.similarity_map(positions.table.weight[:60], title="positions 0 to 59 of BERT")

# %%
learned = measures.Encoder(8, 8, 32, positions=LearnedPositions(32, 32))
relative = measures.Encoder(8, 8, 32, attention=lambda: RelativeSelfAttention(32, 4, 4))
steps = 400
found = {
    "learned": own_models.learn_to_look_back(learned, steps),
    "relative": own_models.learn_to_look_back(relative, steps),
}
own_models.by_position(found, "trained on 16 positions")
