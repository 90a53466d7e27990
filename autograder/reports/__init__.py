"""What people read of a class: class report, feedback pages, charts, what to teach again.

Imports `gradebook` and what that may import.
"""

__all__ = ["class_report", "feedback"]
