"""What a unit asks for, its wrong versions, and the files that its marks depend on.

Imports `common`.
"""

__all__ = ["assignment", "dependencies", "variants"]
