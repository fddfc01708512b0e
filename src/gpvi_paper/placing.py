"""Which recipe a record is a run of: the one it states, whatever preset it was made under.

Recipes change. A record says in its `specification` all that was chosen, so that a record of the preset `paper` whose
specification is today that of `authors` is shown there, and one that no published recipe has any more as `earlier`.
"""

import dataclasses
import functools
import json
from collections.abc import Iterable
from typing import Any

from gpvi import specs
from gpvi.errors import StorageError
from gpvi_paper.experiments import EXPERIMENTS, PRESETS
from gpvi_paper.records import Record

PUBLISHED = ("paper", "authors")
"""The presets that repeat what was published; `best`, `demo` and `smoke` follow this library's advice as it changes."""
EARLIER = "earlier"
SHOWN = PRESETS | {EARLIER: "runs of paper before its recipe was changed; never compared"}
"""What a record can be shown as, in order."""


def placed(records: Iterable[Record]) -> list[Record]:
    """Return the records, those of `PUBLISHED` with the preset whose recipe they state, or `EARLIER`.

    Parameters
    ----------
    records
        Records as they were read.

    Returns
    -------
    list of Record
        As many records.
    """
    return [dataclasses.replace(record, preset=_preset(record)) for record in records]


def _preset(record: Record) -> str:
    if record.preset not in PUBLISHED or record.experiment not in EXPERIMENTS:
        return record.preset
    try:
        stated = specs.completed(record.specification)
    except StorageError:
        return EARLIER
    own_first = sorted(PUBLISHED, key=lambda preset: preset != record.preset)
    matches = (p for p in own_first if _recipes(record.experiment, p).get(record.method) == stated)
    return next(matches, EARLIER)


@functools.cache
def _recipes(experiment: str, preset: str) -> dict[str, Any]:
    """Return what the recipes of today state, as a file would hold it."""
    recipes = EXPERIMENTS[experiment].recipes(preset)
    return {label: json.loads(json.dumps(r.to_json())) for label, r in recipes.items()}
