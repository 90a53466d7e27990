"""A class is marked: collect, repair, worker pool, several machines, journal, settings.

Imports `assignments` and what that may import; neither `checking` nor `verification`.
"""
