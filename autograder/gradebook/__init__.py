"""The nbgrader plug-in, the gradebook, due dates and penalties, a class from end to end.

Imports `grading` and what that may import.
"""

__all__ = ["classroom", "course", "database", "due_dates", "plugin", "standing"]
