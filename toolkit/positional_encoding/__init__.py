"""What the pages on tokens and positions are given: pictures, measures, stored experiments."""
