"""The demonstration class: right answers in many styles, mistakes, damage, cheats.

Imports `judging` and what that may import, and the reference modules.
"""

__all__ = ["make_class"]
