"""Records as the experiments make them, with made-up numbers, for what shows records."""

import math

import numpy as np

from gpvi_paper.experiments import experiment
from gpvi_paper.records import Curve, Environment, Record


def made(
    name: str, label: str, preset: str, seeds: int = 3, *, fold: float = 0.0, value: float = 0.125
) -> Record:
    """A complete record; seed i measures `value` · (1 + i) everywhere, and `fold` is the share folded."""
    found = experiment(name)
    rng = np.random.default_rng(0)
    rows, curves, arrays = {}, {}, {}
    for case in found.cases:
        prefix = f"{case}/" if case else ""
        for metric in found.metrics:
            rows[prefix + metric.key] = tuple(value * (1 + i) for i in range(seeds))
        if "fold" in {metric.key for metric in found.metrics}:
            rows[f"{prefix}fold"] = (fold,) * seeds
        line = tuple(-math.exp(-i / 10) for i in range(40))
        curves[f"{prefix}log_density"] = Curve(tuple(range(10, 410, 10)), (line,) * seeds)
        if case:
            arrays[f"{prefix}draws"] = rng.standard_normal((200, 2)).round(3)
            arrays[f"{prefix}target"] = np.outer(np.hanning(20), np.hanning(20)).round(3)
            arrays[f"{prefix}half_width"] = np.array(5.5)
    return Record(
        experiment=name,
        preset=preset,
        method=label,
        specification=found.recipes(preset)[label].to_json(),
        seeds=tuple(range(seeds)),
        command=f"gpvi run {name} --preset {preset}",
        started="2021-07-18T12:00:00+00:00",
        seconds=12.5,
        environment=Environment(
            "0.1.0", "0123456789ab", "3.11.2", "0.10.2", "Linux x86_64", 2, "cpu"
        ),
        rows=rows,
        curves=curves,
        arrays=arrays,
        notes=("a <note> & more",) if fold else (),
    )
