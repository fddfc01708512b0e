"""The same work by other libraries, each as a function with its arguments. A library is imported when it is used."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Scalar

from gpvi_paper.experiments.reference.peers import require_numpyro

LogDensity = Callable[[Float[Array, " d"]], Scalar]
Work = tuple[Callable, tuple[Any, ...]]


class Stein(NamedTuple):
    """One step of SVGD on given particles: plain gradient ascent at `rate`."""

    log_density: LogDensity
    start: Float[Array, "n d"]
    rate: float


def blackjax_svgd(task: Stein, bandwidth: float) -> Work:
    """Return a step of BlackJAX at a fixed bandwidth: its `length_scale` is the library's h."""
    from blackjax.vi import svgd

    optimizer = optax.sgd(task.rate)
    kernel = svgd.build_kernel(optimizer)
    state = svgd.init(task.start, {"length_scale": bandwidth}, optimizer)

    def step(state: Any) -> Float[Array, "n d"]:
        return jnp.asarray(kernel(state, jax.grad(task.log_density), svgd.rbf_kernel).particles)

    return step, (state,)


def numpyro_stein(task: Stein) -> Work:
    """Return a step of NumPyro's SteinVI with a point-mass guide and its median bandwidth.

    SteinVI sums the attraction over the particles and averages the repulsion. With `repulsion_temperature` = n and a
    rate of 1/n its step is that of SVGD.
    """
    require_numpyro()
    import numpyro
    from numpyro.contrib.einstein import RBFKernel, SteinVI
    from numpyro.infer.autoguide import AutoDelta

    n, dim = task.start.shape

    def model() -> None:
        flat = numpyro.distributions.Normal(jnp.zeros(dim)).mask(False).to_event(1)
        numpyro.factor("log_density", task.log_density(numpyro.sample("x", flat)))  # pyright: ignore

    optimizer = numpyro.optim.optax_to_numpyro(optax.sgd(task.rate / n))
    stein = SteinVI(
        model,
        AutoDelta(model, init_loc_fn=numpyro.infer.init_to_uniform),
        optimizer,
        RBFKernel(),
        num_stein_particles=n,
        num_elbo_particles=1,
        repulsion_temperature=float(n),
    )
    state = stein.init(jax.random.key(0))
    state = state._replace(optim_state=optimizer.init({"x_auto_loc": task.start}))

    def step(state: Any) -> Float[Array, "n d"]:
        after: Any = stein.update(state)
        return stein.get_params(after[0])["x_auto_loc"]

    return step, (state,)


def numpyro_guide(
    model: Callable[..., None],
    name: str,
    optimizer: optax.GradientTransformation,
    particles: int,
    steps: int,
) -> tuple[Work, Callable[[Any], tuple[Array, Array]]]:
    """Return `steps` steps of NumPyro's SVI with an automatic guide, with their losses, as `SVI.run` keeps them.

    Returned beside them is a function that reads mean and standard deviation from their result.
    """
    require_numpyro()
    from numpyro.infer import SVI, Trace_ELBO, autoguide

    guide = getattr(autoguide, name)(model)
    svi = SVI(model, guide, optimizer, Trace_ELBO(num_particles=particles))
    state = svi.init(jax.random.key(0))

    def train(state: Any) -> Any:
        return jax.lax.scan(lambda s, _: svi.update(s), state, length=steps)

    def moments(result: Any) -> tuple[Array, Array]:
        params = svi.get_params(result[0])
        if name == "AutoNormal":
            return params["x_auto_loc"], params["x_auto_scale"]
        factor = params["auto_scale_tril"]
        return params["auto_loc"], jnp.sqrt((factor**2).sum(1))

    return (train, (state,)), moments
