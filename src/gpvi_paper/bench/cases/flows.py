"""Spline couplings beside the same map by FlowJAX, with the same parameters."""

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray, Scalar

from gpvi.generators import SplineFlow
from gpvi.generators.bijections import FlowHead, elementwise_flow, scalar_affine, stacked_flow
from gpvi.generators.spline import SplineHead
from gpvi_paper.bench.results import Result, Setting
from gpvi_paper.bench.timing import Compiled, in_turns

SIZES = ((3, 1_024), (10, 409))
"""Dimensions and numbers of draws, as in a training step."""
TOLERANCE = 1e-3
"""How far the two maps may differ, relative to the largest value, in float32."""


def results(setting: Setting) -> Iterator[Result]:
    """Time the map with its log|det|, the gradient of a training step, and the Jacobian. It needs --peers."""
    if not setting.peers:
        return
    wanted = [name for name in ("map and log|det|", "gradient", "Jacobian") if setting.wants(name)]
    if not wanted:
        return
    spec = SplineFlow(layers=2, knots=2, width=4) if setting.quick else SplineFlow()
    for dim, draws in ((2, 8),) if setting.quick else SIZES:
        row = f"d = {dim}, {draws:,} draws"
        theirs = moved(by_flowjax(spec, dim, key=jax.random.key(0), dtype=jnp.float32))
        ours = converted(theirs, spec)
        z = jax.random.normal(jax.random.key(1), (draws, dim), jnp.float32)
        for name in wanted:
            pair = {
                who: _program(head, z, name) for who, head in (("gpvi", ours), ("FlowJAX", theirs))
            }
            if name != "gradient":
                _same(pair["gpvi"].result, pair["FlowJAX"].result, name)
            timings = in_turns(pair, setting.seconds)
            yield setting.timed(f"{row}, {name}", "gpvi", timings)
            yield setting.timed(f"{row}, {name}", "FlowJAX", timings, "gpvi")


def _program(head: FlowHead | SplineHead, z: Float[Array, "n k"], name: str) -> Compiled:
    parameters, static = eqx.partition(head, eqx.is_inexact_array)

    def both(p: Any, z: Array) -> tuple[Array, Array]:
        return jax.vmap(eqx.combine(p, static).transform_and_log_det)(z)

    def loss(p: Any, z: Array) -> Scalar:
        x, log_det = both(p, z)
        return (0.5 * (x**2).sum(1) - log_det).mean()

    def jacobians(p: Any, z: Array) -> Array:
        return jax.vmap(lambda point: eqx.combine(p, static).jacobian(point).as_matrix())(z)

    functions: dict[str, Callable] = {
        "map and log|det|": both,
        "gradient": jax.grad(loss),
        "Jacobian": jacobians,
    }
    return Compiled(functions[name], parameters, z)


def _same(ours: Any, theirs: Any, name: str) -> None:
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        apart = float(jnp.abs(a - b).max() / jnp.abs(b).max())
        if not apart <= TOLERANCE:
            raise AssertionError(f"FlowJAX has another {name}: {apart:.2g} apart.")


def by_flowjax(spec: SplineFlow, dim: int, *, key: PRNGKeyArray, dtype: DTypeLike) -> FlowHead:
    """Build the map of `spec` from FlowJAX's parts."""
    from flowjax.bijections import Chain, Coupling, RationalQuadraticSpline

    def spline() -> Chain:
        warp = RationalQuadraticSpline(knots=spec.knots, interval=spec.interval)
        return Chain([warp, scalar_affine()])

    def layer(key: PRNGKeyArray) -> Coupling:
        return Coupling(
            key,
            transformer=spline(),
            untransformed_dim=dim // 2,
            dim=dim,
            nn_width=spec.width,
            nn_depth=spec.depth,
        )

    if dim == 1:
        return elementwise_flow(spline, dim, dtype, scale=spec.scale)
    return stacked_flow(layer, dim, spec.layers, key=key, dtype=dtype, scale=spec.scale)


def moved(head: FlowHead, scale: float = 0.1) -> FlowHead:
    """Add noise to all parameters, so that no bin or branch is special."""
    rng = np.random.default_rng(head.dim)
    shaken = lambda a: a + jnp.asarray(scale * rng.standard_normal(a.shape), a.dtype)  # noqa: E731
    return jax.tree.map(lambda a: shaken(a) if eqx.is_inexact_array(a) else a, head)


def converted(head: FlowHead, spec: SplineFlow) -> SplineHead:
    """Return the library's head with the parameters of FlowJAX's."""
    from flowjax.bijections import RationalQuadraticSpline

    bins, k = spec.knots + 1, head.dim
    stack, affine = head.bijection.bijections

    def rows(array: Array) -> Array:
        """Reorder the parameters of a spline from FlowJAX's (…, t, rows) to the library's (…, rows, t)."""
        order = np.arange(array.shape[-1])
        order[: 2 * bins] = order[: 2 * bins].reshape(2, bins).T.ravel()
        return jnp.swapaxes(array[..., order], -1, -2)

    if k == 1:
        untrained: Any = RationalQuadraticSpline(knots=spec.knots, interval=spec.interval)
        warp, scalar = stack.bijection.bijections
        slopes = warp.derivatives.args[0] - untrained.derivatives.args[0]
        parts = [warp.x_pos.arr, warp.y_pos.arr, slopes]
        parts += [scalar.loc[:, None], scalar.scale.args[0][:, None]]
        hidden, output = (), rows(jnp.concatenate(parts, -1)[None])[..., None]
        permutations = jnp.zeros((1, 1), int)
    else:
        coupling, permute = stack.bijection.bijections
        columns = [
            jnp.concatenate([linear.weight, linear.bias[..., None]], -1)
            for linear in coupling.conditioner.layers
        ]
        layers, _, inputs = columns[-1].shape
        last = jnp.moveaxis(columns[-1].reshape(layers, k - k // 2, -1, inputs), -1, 1)
        hidden, output = tuple(columns[:-1]), jnp.moveaxis(rows(last), 1, -1)
        permutations = permute.permutation[0]
    return SplineHead(
        hidden=hidden,
        output=output,
        permutations=permutations,
        shift=affine.loc,
        raw_scale=affine.scale.args[0],
        orientation=head.orientation,
        interval=spec.interval,
    )
