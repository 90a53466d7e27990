"""One implementation against one exercise: runner, proxy, expectations, diagnosis, results.

Imports `sandbox`, `units` and `common`.
"""

__all__ = [
    "asked_again",
    "diagnosis",
    "expectations",
    "grader_marks",
    "proxy",
    "recording",
    "results",
    "runner",
]
