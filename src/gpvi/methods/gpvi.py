"""GPVI: a generator trained by the functional gradient of the KL (Algorithm 1), or by its two exact relatives."""

from collections.abc import Mapping
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from gpvi._compute.outer_products import added_up, norm
from gpvi.directions import functional_direction
from gpvi.directions.functional import restricted
from gpvi.errors import InputError, NotAvailableError
from gpvi.generators import AbstractGenerator, Generator, Mixture, Triangular
from gpvi.generators.noise import standard_normal
from gpvi.kernels import Kernel, OnNoise
from gpvi.methods.base import About, Info, Learner, Method, State, built, require_batches
from gpvi.methods.carriers import Sampler
from gpvi.methods.pullback import push, scale_gradient
from gpvi.methods.reverse_kl import (
    default_draws,
    l2_gradient,
    mixture_gradient,
    pathwise_gradient,
)
from gpvi.solvers import ExactSolver, Solver, as_solver
from gpvi.specs import (
    is_number,
    require_choice,
    require_count,
    require_instance,
    require_positive,
    resolve,
    spec,
)
from gpvi.targets.density import Density, Evaluation, evaluate

ROUNDS = (500, 1_000, 2_000, 4_000)
"""Steps in each round if `steps` is not given."""
Gradient = tuple[PyTree, PyTree, Info]
"""The gradient, what the solver has learned, and values to report."""


@spec
class GPVI(Method):
    """Generative particle variational inference.

    Parameters
    ----------
    generator
        f_θ; injective splines by default. The paper's is `gpvi.generators.Residual`.
    gradient
        "pathwise" is the gradient of the KL itself (App. A.3, cheap here), "functional" the paper's Thm 3.1, and "l2"
        Thm 3.1 without smoothing.
    solver
        For "functional" and "l2", how J^{-T}v is computed: "block", "dense", "bicgstab", "gmres", the paper's "helper",
        or a `gpvi.solvers.Solver`.
    kernel
        For "functional", where the kernel acts: on the "head" of the noise or on all of it ("full"); or a
        `gpvi.kernels.Kernel` on the head, or a `gpvi.kernels.OnNoise`.
    particles
        Draws of noise per step; by default 4096/d, clipped to between 256 and 1024. With fewer, the gradient is so
        noisy that a separate mode may be lost early and for good.
    batches
        For "functional": 2 draws z and z′ independently, as in the paper; 1 takes z′ = z.
    pathwise_share
        For "functional", the share of steps that use the pathwise gradient instead; by default a quarter for a spline
        head and none for any other generator. Pulled back through a flexible T the functional gradient need not
        descend, and on its own it drifts until J is singular (docs/functional-gradient.md).
    learning_rate
        Of the default optimiser, before decay.
    first_round
        Steps of the first round if `steps` is not given, 500 by default; each later round has twice as many.

    Examples
    --------
    >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
    >>> method = gpvi.GPVI(generator=gpvi.generators.FullRank(), particles=32)
    >>> posterior = gpvi.fit(target, method, key=key, steps=10, init=None, progress=False)
    >>> posterior.sample(5, key=key).shape
    (5, 2)
    """

    generator: Generator = Triangular()
    gradient: Literal["pathwise", "functional", "l2"] = "pathwise"
    solver: Solver | str = "block"
    kernel: OnNoise | Kernel | str = "head"
    particles: int | None = None
    batches: int = 2
    pathwise_share: float | None = None
    learning_rate: float = 2e-3
    first_round: int | None = None

    about: ClassVar[About] = About(
        "as many new draws as you like, with exact densities; the default",
        "n (G + generator); functional adds n k³ + n² k",
        "Ratzlaff et al. 2021",
    )

    def __post_init__(self):
        require_instance("generator", self.generator, Generator)
        require_choice(self.gradient, ("pathwise", "functional", "l2"), "gradient")
        if self.particles is not None:
            require_count("particles", self.particles, "The paper uses 100.")
        require_positive("learning_rate", self.learning_rate, "Try 2e-3.")
        if self.first_round is not None:
            require_count("first_round", self.first_round, "Leave it out for 500 steps.")
        require_batches(self.batches)
        solver = as_solver(self.solver)
        if self.gradient == "l2" and not isinstance(solver, ExactSolver):
            raise NotAvailableError(
                f"solver is {self.solver!r}, which gives J^{{-T}}∇k for kernel gradients only, so gradient='l2' cannot "
                "use it. Use solver='block' (exact and faster), 'dense', 'bicgstab' or 'gmres'."
            )
        if isinstance(self.generator, Mixture) and self.gradient != "pathwise":
            raise NotAvailableError(
                f"gradient is {self.gradient!r}, which is pulled back through one map, and a mixture has several. Use "
                "gradient='pathwise' for a mixture."
            )
        share = self.pathwise_share
        if share is not None and (not is_number(share) or not 0 <= share <= 1):
            raise InputError(f"pathwise_share is {share!r}; it must be a number from 0 to 1.")
        self._noise_kernel()

    def rounds(self, dim: int) -> tuple[int, ...]:
        """Return rounds of doubling length for `Triangular`, and none for other generators.

        A nearly Gaussian posterior converges in the first round.
        """
        if not isinstance(self.generator, Triangular):
            return ()
        if self.first_round is None:
            return ROUNDS
        return tuple(self.first_round * 2**number for number in range(len(ROUNDS)))

    def choices(self, dim: int) -> str:
        """Describe the generator, if it has something to say, and the draws per step."""
        generator = self.generator.choices(dim)
        draws = f"{self._draws(dim)} draws per step"
        return f"{generator}, {draws}" if generator else draws

    def gradients(self, history: Mapping[str, np.ndarray], dim: int) -> int:
        """Return the number of draws of all steps."""
        return self._draws(dim) * history["gradient_norm"].shape[-1]

    def init(
        self, target: Density, optimizer: optax.GradientTransformation, *, key: PRNGKeyArray
    ) -> State:
        """Build the generator, and the solver's helper if it has one (the first line of Algorithm 1)."""
        build_key, solver_key = jax.random.split(key)
        generator = built(self.generator, target.dim, target.dtype, key=build_key)
        part = restricted(generator, self._noise_kernel())
        auxiliary = as_solver(self.solver).init(part, key=solver_key)
        return State(Learner.start(generator, optimizer, target.dtype), auxiliary)

    def step(
        self,
        target: Density,
        optimizer: optax.GradientTransformation,
        state: State,
        batch: PyTree,
        *,
        key: PRNGKeyArray,
    ) -> tuple[State, Info]:
        """Descend along the chosen gradient once."""
        gradient_of = {"pathwise": self._pathwise, "functional": self._mixed, "l2": self._l2}
        gradient, auxiliary, info = gradient_of[self.gradient](target, state, batch, key)
        info["gradient_norm"] = norm(gradient)
        return State(state.learner.descend(optimizer, gradient), auxiliary), info

    def _functional(
        self, target: Density, state: State, batch: PyTree, key: PRNGKeyArray
    ) -> Gradient:
        """Return the gradient of Algorithm 1."""
        generator, kernel = state.learner.model, self._noise_kernel()
        n = self._draws(generator.dim)
        z_key, z_prime_key = jax.random.split(key)
        z = standard_normal(generator, n, key=z_key)
        z_prime = z if self.batches == 1 else standard_normal(generator, n, key=z_prime_key)
        at = evaluate(target, jax.vmap(generator)(z_prime), batch)
        functional = functional_direction(
            generator, kernel, as_solver(self.solver), state.auxiliary, z_prime, at.score, z
        )
        _, pull = push(Sampler(generator), z)
        gradient = pull.products(functional.direction / n).generator
        if kernel.coordinates == "head":
            gradient = _with_scales(gradient, generator, z_prime, at, functional.inverse)
        info = {
            "log_density": at.mean(at.log_density),
            "direction": jnp.sqrt((functional.direction**2).sum(1).mean()),
            "residual": functional.residual,
            "stretch": functional.stretch,
            "rejected": at.rejected,
        }
        return gradient, functional.solver_state, info

    def _mixed(self, target: Density, state: State, batch: PyTree, key: PRNGKeyArray) -> Gradient:
        """Return the functional gradient, or in a share of the steps the pathwise one."""
        share = self._pathwise_share()
        if share == 0:
            return self._functional(target, state, batch, key)
        coin_key, key = jax.random.split(key)

        def pathwise_step() -> Gradient:
            gradient, auxiliary, info = self._pathwise(target, state, batch, key)
            absent = {
                name: jnp.zeros_like(info["elbo"]) for name in ("direction", "residual", "stretch")
            }
            return (
                added_up(gradient),
                auxiliary,
                {"log_density": info["log_density"], "rejected": info["rejected"], **absent},
            )

        def functional_step() -> Gradient:
            gradient, auxiliary, info = self._functional(target, state, batch, key)
            return added_up(gradient), auxiliary, info

        coin = jax.random.bernoulli(coin_key, share)
        return jax.lax.cond(coin, pathwise_step, functional_step)

    def _pathwise(
        self, target: Density, state: State, batch: PyTree, key: PRNGKeyArray
    ) -> Gradient:
        """Return the gradient of Eq. 3."""
        generator = state.learner.model
        draws = self._draws(generator.dim)
        if isinstance(self.generator, Mixture):
            gradient, info = mixture_gradient(generator, target, draws, batch, key=key)
        else:
            z = standard_normal(generator, draws, key=key)
            gradient, info = pathwise_gradient(generator, target, z, batch)
        return gradient, state.auxiliary, info

    def _l2(self, target: Density, state: State, batch: PyTree, key: PRNGKeyArray) -> Gradient:
        """Return the gradient of Eq. 4 with φ = s_p − s_q."""
        generator, solver = state.learner.model, as_solver(self.solver)
        assert isinstance(solver, ExactSolver)
        z = standard_normal(generator, self._draws(generator.dim), key=key)
        gradient, info = l2_gradient(generator, solver, target, z, batch)
        return gradient, state.auxiliary, info

    def _draws(self, dim: int) -> int:
        return default_draws(dim) if self.particles is None else self.particles

    @property
    def _flexible(self) -> bool:
        return isinstance(self.generator, Triangular) and self.generator.flexible

    def _pathwise_share(self) -> float:
        if self.pathwise_share is not None:
            return self.pathwise_share
        return 0.25 if self._flexible else 0.0

    def _noise_kernel(self) -> OnNoise:
        if isinstance(self.kernel, Kernel):
            return OnNoise("head", self.kernel)
        shorthands = {"head": OnNoise, "full": lambda: OnNoise("full")}
        return resolve(self.kernel, shorthands, "kernel", OnNoise)


def _with_scales(
    gradient: PyTree,
    generator: AbstractGenerator,
    z_prime: Float[Array, "n d"],
    at: Evaluation,
    inverse: Float[Array, "n k k"] | None,
) -> PyTree:
    """Replace the gradient of the tail's scales by the pathwise one, since a kernel on the head gives them none."""
    by_path = scale_gradient(generator, z_prime, at.weight[:, None] * at.score, at.weight, inverse)
    return jax.tree.map(
        lambda is_scale, along, by: by if is_scale else along,
        generator.scale_parameters(),
        gradient,
        by_path,
    )
