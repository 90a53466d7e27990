"""One implementation against one exercise: runner, proxy, expectations, diagnosis, results.

Imports `sandbox`, `units` and `common`.
"""
