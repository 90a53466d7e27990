"""What every other package may use: paths, files, escaping, cells, cards, errors.

Imports nothing of ours.
"""

__all__ = ["cards", "cells", "definitions", "errors", "escaping", "files", "paths", "progress"]
