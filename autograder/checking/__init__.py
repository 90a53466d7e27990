"""The student's `check`, in the notebook and on the command line.

Imports `assignments` and what that may import; never `verification`.
"""

__all__ = ["check", "notebook", "progress"]
