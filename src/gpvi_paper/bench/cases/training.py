"""A training step of GPVI in every form, beside one of amortised SVGD with the same generator."""

import dataclasses
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


def results(setting: Setting) -> Iterator[Result]:
    """Time all forms at one size. Forms that have a baseline in common take turns with it."""
    name = setting.case.removeprefix("steps-")
    wanted = {
        label: row for label, row in ROWS.items() if name in row.sizes and setting.wants(label)
    }
    if not wanted:
        return
    size = _small(SIZES[name]) if setting.quick else SIZES[name]
    target, length = size.target(), turn_length(size, "smoke" if setting.quick else "best")
    key = jax.random.key(0)
    for (head, batches), group in itertools.groupby(
        sorted(wanted, key=lambda label: _group(wanted[label])), lambda label: _group(wanted[label])
    ):
        labels = list(group)
        methods: dict[str, Method] = {label: wanted[label].method(size) for label in labels}
        baseline = f"{BASELINE}, {head}, {batches} batch{'es' * (batches > 1)}"
        methods[baseline] = wanted[labels[0]].baseline(size)
        steps = {
            label: Steps(method, target, size.batch, length, key=key)
            for label, method in methods.items()
        }
        timings = in_turns(steps, setting.seconds)
        yield setting.timed(size.title, baseline, timings)
        for label in labels:
            more = {}
            if label == HELPER and BLOCK in timings:
                more["over block"] = timings[label].over(timings[BLOCK])
            timed = setting.timed(size.title, label, timings, baseline, more)
            yield dataclasses.replace(timed, contender=f"GPVI ({label})")


def _group(row: Row) -> tuple[str, int]:
    """Return what the baseline of a row depends on: the generator's head, and the number of batches of noise."""
    return row.head, 2 if row.gradient == "functional" else 1


def _small(size: Size) -> Size:
    hidden = (8,) if size.hidden else ()
    return size._replace(particles=4, latent=min(size.latent, 4), hidden=hidden, helper=8)
