"""What a unit asks for, its wrong versions, the files its marks depend on, where the book explains.

Imports `common`.
"""

__all__ = ["assignment", "dependencies", "promises", "sections", "variants"]
