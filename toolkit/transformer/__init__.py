"""What the pages on the Transformer are given: pictures, a translation task, stored experiments."""
