"""A class is marked: collect, repair, worker pool, several machines, journal, settings.

Imports `assignments` and what that may import; neither `checking` nor `verification`.
"""

__all__ = [
    "cluster",
    "collect",
    "doctor",
    "journal",
    "marker",
    "regrade_diff",
    "repair",
    "settings",
    "settings_file",
    "worker_pool",
]
