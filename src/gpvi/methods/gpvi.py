"""GPVI: a generator trained by the functional gradient of the KL (Algorithm 1), or by its two exact relatives."""

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from gpvi._compute.outer_products import added_up, norm
from gpvi.directions import functional_direction
from gpvi.directions.functional import FunctionalDirection, restricted
from gpvi.errors import InputError, NotAvailableError
from gpvi.generators import AbstractGenerator, Generator, Triangular
from gpvi.generators.noise import standard_normal
from gpvi.kernels import Kernel, OnNoise
from gpvi.methods.base import About, Info, Learner, Method, State, built, require_batches
from gpvi.methods.carriers import Sampler
from gpvi.methods.pullback import push, scale_gradient
from gpvi.methods.reverse_kl import default_draws, l2_gradient, pathwise_gradient
from gpvi.solvers import AbstractSolver, ExactSolver, as_solver
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
Found = tuple[PyTree, PyTree, Info]
"""The gradient, what the solver has learned, and what to report."""


@spec
class GPVI(Method):
    """Generative particle variational inference.

    Parameters
    ----------
    generator: f_θ; injective splines by default. The paper's is `Residual(...)`.
    gradient: "pathwise", the gradient of the KL itself (App. A.3, cheap here); "functional", the paper's Thm 3.1;
        "l2", Thm 3.1 without smoothing.
    solver: J^{-T}v for "functional" and "l2": "block", "dense", "bicgstab", "gmres", or the paper's "helper".
    kernel: for "functional": on the "head" of the noise or on all of it ("full"), or an `OnNoise`.
    particles: draws of noise per step; by default 4096/d, clipped to between 256 and 1024. With fewer, the gradient
        is so noisy that a separate mode may be lost early and for good.
    batches: for "functional": 2 (z and z′ drawn independently, as in the paper) or 1 (z′ = z).
    pathwise_share: for "functional": the share of steps that use the pathwise gradient instead. Pulled back through a
        flexible T the functional gradient need not descend, and on its own drifts until J is singular
        (docs/functional-gradient.md); default: a quarter for a spline head, none for any other generator.
    learning_rate: of the default optimiser, before decay.
    first_round: steps of the first round where `steps` is not given, 500 by default; each later one has twice as many.
    """

    generator: Generator = Triangular()
    gradient: Literal["pathwise", "functional", "l2"] = "pathwise"
    solver: AbstractSolver | str = "block"
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
                "solver='helper' learns J^{-T}∇k for kernel gradients only, so gradient='l2' cannot use it. "
                "Use solver='block' (exact and faster), 'dense', 'bicgstab' or 'gmres'."
            )
        share = self.pathwise_share
        if share is not None and (not is_number(share) or not 0 <= share <= 1):
            raise InputError(f"pathwise_share is {share!r}; it must be a number from 0 to 1.")
        self._noise_kernel()

    def rounds(self, dim: int) -> tuple[int, ...]:
        """Doubling rounds: a nearly Gaussian posterior converges in the first."""
        if not isinstance(self.generator, Triangular):
            return ()
        if self.first_round is None:
            return ROUNDS
        return tuple(self.first_round * 2**number for number in range(len(ROUNDS)))

    def choices(self, dim: int) -> str:
        """The head, the rest and the draws per step."""
        draws = f"{self._draws(dim)} draws per step"
        return (
            f"{self.generator.choices(dim)}, {draws}"
            if isinstance(self.generator, Triangular)
            else draws
        )

    def init(
        self, target: Density, optimizer: optax.GradientTransformation, *, key: PRNGKeyArray
    ) -> State:
        """Algorithm 1's first line: a generator, and a helper where the solver has one."""
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
        """One step of the chosen gradient."""
        gradient_of = {"pathwise": self._pathwise, "functional": self._mixed, "l2": self._l2}
        gradient, auxiliary, info = gradient_of[self.gradient](target, state, batch, key)
        info["gradient_norm"] = norm(gradient)
        return State(state.learner.descend(optimizer, gradient), auxiliary), info

    def _functional(self, target: Density, state: State, batch: PyTree, key: PRNGKeyArray) -> Found:
        """Algorithm 1."""
        generator, kernel = state.learner.model, self._noise_kernel()
        n = self._draws(generator.dim)
        z_key, z_prime_key = jax.random.split(key)
        z = standard_normal(generator, n, key=z_key)
        z_prime = z if self.batches == 1 else standard_normal(generator, n, key=z_prime_key)
        at = evaluate(target, jax.vmap(generator)(z_prime), batch)
        found = functional_direction(
            generator, kernel, as_solver(self.solver), state.auxiliary, z_prime, at.score, z
        )
        _, pull = push(Sampler(generator), z)
        gradient = pull.products(found.direction / n).generator
        if kernel.coordinates == "head":
            gradient = _with_scales(gradient, generator, z_prime, at, found)
        info = {
            "log_density": at.mean(at.log_density),
            "direction": jnp.sqrt((found.direction**2).sum(1).mean()),
            "residual": found.residual,
            "stretch": found.stretch,
            "rejected": at.rejected,
        }
        return gradient, found.solver_state, info

    def _mixed(self, target: Density, state: State, batch: PyTree, key: PRNGKeyArray) -> Found:
        """The functional gradient, with a share of pathwise steps."""
        share = self._pathwise_share()
        if share == 0:
            return self._functional(target, state, batch, key)
        coin_key, key = jax.random.split(key)

        def pathwise_step() -> Found:
            gradient, auxiliary, info = self._pathwise(target, state, batch, key)
            unmoved = {
                name: jnp.zeros_like(info["elbo"]) for name in ("direction", "residual", "stretch")
            }
            return (
                added_up(gradient),
                auxiliary,
                {"log_density": info["log_density"], "rejected": info["rejected"], **unmoved},
            )

        def functional_step() -> Found:
            gradient, auxiliary, info = self._functional(target, state, batch, key)
            return added_up(gradient), auxiliary, info

        coin = jax.random.bernoulli(coin_key, share)
        return jax.lax.cond(coin, pathwise_step, functional_step)

    def _pathwise(self, target: Density, state: State, batch: PyTree, key: PRNGKeyArray) -> Found:
        """The gradient of Eq. 3."""
        generator = state.learner.model
        z = standard_normal(generator, self._draws(generator.dim), key=key)
        gradient, info = pathwise_gradient(generator, target, z, batch)
        return gradient, state.auxiliary, info

    def _l2(self, target: Density, state: State, batch: PyTree, key: PRNGKeyArray) -> Found:
        """Eq. 4 with φ = s_p − s_q."""
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
    found: FunctionalDirection,
) -> PyTree:
    """The gradient, with pathwise terms for the scales of the tail: a kernel on the head gives them none."""
    by_path = scale_gradient(
        generator, z_prime, at.weight[:, None] * at.score, at.weight, found.inverse
    )
    return jax.tree.map(
        lambda is_scale, along, by: by if is_scale else along,
        generator.scale_parameters(),
        gradient,
        by_path,
    )
