"""The graders' own test: misconceptions, answers without work, mutants.

Imports `assignments` and what that may import; never `checking`.
"""

__all__ = ["seeds", "verify"]
