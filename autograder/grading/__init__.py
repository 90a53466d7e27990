"""A class is marked: collect, repair, worker pool, several machines, result cache, settings.

Imports `assignments` and what that may import; neither `checking` nor `verification`.
"""

__all__ = [
    "cluster",
    "collect",
    "doctor",
    "marker",
    "regrade_diff",
    "repair",
    "result_cache",
    "settings",
    "settings_file",
    "worker_pool",
]
