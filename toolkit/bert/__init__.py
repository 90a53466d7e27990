"""What the pages on BERT are given: pictures, fine-tuning, attention heads, stored experiments."""
