"""What things cost on this machine: `python -m autograder.benchmarks`.

Imports any package but `commands` and `lms`.
"""

__all__ = []
