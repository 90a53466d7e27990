"""Records, such as caches, among what graders hand over and what comes back.

In requests and outcomes a dict stands for each (`sandbox.executor.RECORD`), because only plain
values cross the border; graders see the records themselves.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

from autograder.sandbox.executor import RECORD
from toolkit.kv_cache import DecoderCache, KVCache, LayerCache

_FIELDS = {
    kind.__name__: (kind, [field.name for field in dataclasses.fields(kind)])
    for kind in (DecoderCache, KVCache, LayerCache)
}


def restored(value: Any) -> Any:
    """The same nesting with the record itself wherever a dict stands for one.

    What says that it is a record of an unknown type, or has other fields, stays a dict, and what
    holds no record stays the same object.
    """
    if isinstance(value, (list, tuple)):
        items = [restored(item) for item in value]
        return value if all(map(operator.is_, items, value)) else type(value)(items)
    if not isinstance(value, dict):
        return value
    fields = {key: restored(item) for key, item in value.items()}
    name = fields.get(RECORD)
    if isinstance(name, str) and name in _FIELDS:
        kind, wanted = _FIELDS[name]
        if list(fields) == [RECORD, *wanted]:
            return kind(**{key: fields[key] for key in wanted})
    return value if all(map(operator.is_, fields.values(), value.values())) else fields
