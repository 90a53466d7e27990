"""What the pages on sequence to sequence are given: an example, diagrams, measures, experiments."""
