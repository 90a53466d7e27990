"""What the pages on attention are given: the small example, its pictures, and heads."""
