"""A training step of GPVI in every form, beside one of amortised SVGD with the same generator."""

import itertools
from collections.abc import Iterator

import jax

from gpvi.methods import Method
from gpvi_paper.bench.results import Result, Setting
from gpvi_paper.bench.timing import in_turns
from gpvi_paper.experiments.overhead import SIZES, SMALL, Row, Size, Steps, turn_length

ROWS: dict[str, Row] = {
    "functional, block": Row("functional"),
    "functional, helper": Row("functional", "helper"),
    "functional, dense": Row("functional", "dense", sizes=SMALL),
    "pathwise": Row("pathwise"),
    "l2": Row("l2"),
    **{
        f"{gradient}, {head} head": Row(gradient, head=head, sizes=tuple(SIZES)[1:])
        for head in ("affine", "spline")
        for gradient in ("functional", "pathwise", "l2")
    },
}
BASELINE = "amortised SVGD"
HELPER, BLOCK = "functional, helper", "functional, block"


def results(setting: Setting, name: str) -> Iterator[Result]:
    """One size; what shares a baseline takes turns with it."""
    size = _small(SIZES[name]) if setting.quick else SIZES[name]
    target, length = size.target(), turn_length(size, "smoke" if setting.quick else "best")
    wanted = {
        label: row for label, row in ROWS.items() if name in row.sizes and setting.wants(label)
    }
    key = jax.random.key(0)
    for (head, batches), group in itertools.groupby(
        sorted(wanted, key=lambda label: _group(wanted[label])), lambda label: _group(wanted[label])
    ):
        labels = list(group)
        methods: dict[str, Method] = {label: wanted[label].method(size) for label in labels}
        beside = f"{BASELINE}, {head}, {batches} batch{'es' * (batches > 1)}"
        methods[beside] = wanted[labels[0]].baseline(size)
        steps = {
            label: Steps(method, target, size.batch, length, key=key)
            for label, method in methods.items()
        }
        timings = in_turns(steps, setting.seconds)
        yield Result(f"steps-{name}", size.title, beside, timings[beside].values())
        for label in labels:
            values = timings[label].values() | {"ratio": timings[label].over(timings[beside])}
            if label == HELPER and BLOCK in timings:
                values["over block"] = timings[label].over(timings[BLOCK])
            yield Result(f"steps-{name}", size.title, f"GPVI ({label})", values, beside)


def _group(row: Row) -> tuple[str, int]:
    """What a baseline depends on: the generator, and the batches of noise."""
    return row.head, 2 if row.gradient == "functional" else 1


def _small(size: Size) -> Size:
    hidden = (8,) if size.hidden else ()
    return size._replace(particles=4, latent=min(size.latent, 4), hidden=hidden, helper=8)
