"""What every other package may use: paths, files, words made harmless, cells, cards, errors.

Imports nothing of ours.
"""
