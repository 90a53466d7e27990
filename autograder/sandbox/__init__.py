"""Where student code runs: launcher, fork server, session, worker, wire format, limits.

Imports `common`. What is copied into the sandbox imports only what is copied with it.
"""

__all__ = [
    "batch",
    "executor",
    "forbidden_calls",
    "launcher",
    "limits",
    "meter",
    "nesting",
    "session",
    "side_effects",
    "timelimit",
    "wire",
]
