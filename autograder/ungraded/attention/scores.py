"""Your decoder step translates with the trained weights of the shipped recurrent translator, and
you see which source token it looks at while it writes."""

from solutions.attention.scores import AttentionDecoderStep

# isort: split
# %%
from toolkit import own_models

shipped = own_models.read("recurrent-en-zh")
width = shipped.sizes["width"]
step = AttentionDecoderStep(width, width, width, width)
step.load_state_dict(own_models.look_tensors(shipped))
translator = own_models.RecurrentTranslator(shipped, look=step)
own_models.alignment(translator, shipped, "March 5, 2021 and 13 days")
