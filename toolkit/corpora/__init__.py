"""Text and tasks to train on, without a download: Python's library, translation pairs, rules."""
