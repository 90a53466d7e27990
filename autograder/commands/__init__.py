"""The command line: one file a command; arguments in, one call, words out.

Imports any package but `benchmarks`, and nothing imports it.
"""

__all__ = []
