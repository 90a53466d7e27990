"""What the pages on GPT are given: pictures, samples, a modern GPT, stored experiments."""
