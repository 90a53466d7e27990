"""Training of the models that come with the book.

    python -m toolkit.pretrain bert
    python -m toolkit.pretrain gpt --model my_gpt.py --out build/my-gpt

A module for each kind of model (`bert`, `gpt`, `translator`), what they share (`common`), what is
measured beyond the held-out text (`measures`) and the cards (`cards`). `toolkit.models` loads what
they make.
"""
