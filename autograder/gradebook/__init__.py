"""The nbgrader plug-in, the gradebook, due dates and penalties, a class from end to end.

Imports `grading` and what that may import.
"""
