"""How a unit's notebook is generated, its recorded answers, the student's bundle.

Imports `judging` and what that may import.
"""

__all__ = ["builder", "bundle", "given", "recorded", "recorder"]
