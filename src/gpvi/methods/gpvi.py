"""GPVI: a generator trained by the functional gradient of the KL (Algorithm 1), or by its two exact relatives."""

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PRNGKeyArray, PyTree

from gpvi.carriers import Sampler, standard_normal
from gpvi.directions import functional, l2
from gpvi.directions.functional import restricted
from gpvi.errors import InputError, NotAvailableError
from gpvi.generators import Generator, Triangular
from gpvi.jacobian import Helper, Solver, as_solver
from gpvi.kernels import Kernel, OnNoise
from gpvi.methods.base import Info, Learner, State, decaying_adam, log_standard_normal, norm
from gpvi.pullback import push, push_with_log_det
from gpvi.specs import require_choice, require_positive, resolve, spec
from gpvi.target import Density, evaluate


@spec
class GPVI:
    """Generative particle variational inference.

    Parameters
    ----------
    generator: f_θ; injective splines by default. The paper's is `Residual(...)`.
    gradient: "pathwise", the gradient of the KL itself (App. A.3, cheap here); "functional", the paper's Thm 3.1;
        "l2", Thm 3.1 without smoothing.
    solver: J^{-T}v for "functional" and "l2": "block", "dense", "bicgstab", "gmres", or the paper's "helper".
    kernel: for "functional": on the "head" of the noise or on all of it ("full"), or an `OnNoise`.
    particles: draws of noise in each step; by default 4096/d, kept between 256 and 1024. Fewer make the gradient
        so noisy that a separate mode may be lost early and for good.
    batches: for "functional": 2 (z and z′ drawn apart, the paper's) or 1 (z′ = z).
    learning_rate: of the default optimiser, before it decays.
    """

    generator: Generator = Triangular()
    gradient: Literal["pathwise", "functional", "l2"] = "pathwise"
    solver: Solver | str = "block"
    kernel: OnNoise | Kernel | str = "head"
    particles: int | None = None
    batches: int = 2
    learning_rate: float = 2e-3

    generative: ClassVar[bool] = True
    density: ClassVar[bool] = True
    headline: ClassVar[str] = "elbo"

    def __post_init__(self):
        require_choice(self.gradient, ("pathwise", "functional", "l2"), "gradient")
        if self.particles is not None:
            require_positive("particles", self.particles, "The paper uses 100.")
        if self.batches not in (1, 2):
            raise InputError(
                f"batches is {self.batches!r}; it must be 1 (z′ = z) or 2 (drawn apart)."
            )
        if self.gradient == "l2" and isinstance(as_solver(self.solver), Helper):
            raise NotAvailableError(
                "solver='helper' learns J^{-T}∇k for kernel gradients only, so gradient='l2' cannot use it. "
                "Use solver='block' (exact and faster), 'dense', 'bicgstab' or 'gmres'."
            )
        self._noise_kernel()

    def default_steps(self, dim: int) -> int:
        """Enough for the decaying schedule to settle a spline flow."""
        return 5_000

    def default_optimizer(self, steps: int) -> optax.GradientTransformation:
        """Adam, warmed up and decayed to zero."""
        return decaying_adam(self.learning_rate, steps)

    def init(
        self, target: Density, optimizer: optax.GradientTransformation, *, key: PRNGKeyArray
    ) -> State:
        """Algorithm 1's first line: a generator, and a helper where the solver has one."""
        build_key, solver_key = jax.random.split(key)
        generator = self.generator.build(target.dim, key=build_key, dtype=target.dtype)
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
        gradient_of = {"pathwise": self._pathwise, "functional": self._functional, "l2": self._l2}
        gradient, auxiliary, info = gradient_of[self.gradient](target, state, batch, key)
        info["gradient_norm"] = norm(gradient)
        return State(state.learner.descend(optimizer, gradient), auxiliary), info

    def _functional(self, target, state, batch, key):
        """Algorithm 1. The tail's scales, where learned, take the pathwise gradient: a head kernel gives them none."""
        generator, kernel = state.learner.model, self._noise_kernel()
        z_key, z_prime_key = jax.random.split(key)
        z = standard_normal(generator, self._draws(generator.dim), key=z_key)
        z_prime = (
            z
            if self.batches == 1
            else standard_normal(generator, self._draws(generator.dim), key=z_prime_key)
        )
        scales = generator.scale_parameters()
        x_prime, _, _, pull_scales = push_with_log_det(generator, z_prime, scales)
        at = evaluate(target, x_prime, batch)
        found = functional(
            generator, kernel, as_solver(self.solver), state.auxiliary, z_prime, at.score, z
        )
        _, pull = push(Sampler(generator), z)
        gradient = pull(found.direction / len(z)).generator
        if kernel.coordinates == "head":
            by_path = pull_scales(at.weight[:, None] * at.score, at.weight)
            gradient = jax.tree.map(
                lambda is_scale, along, by: by if is_scale else along, scales, gradient, by_path
            )
        info = {
            "log_density": at.mean(at.log_density),
            "direction": jnp.sqrt((found.direction**2).sum(1).mean()),
            "residual": found.residual,
            "rejected": at.rejected,
        }
        return gradient, found.solver_state, info

    def _pathwise(self, target, state, batch, key):
        """The gradient of Eq. 3: one vjp takes the scores on x and the weight of log|det J|."""
        generator = state.learner.model
        z = standard_normal(generator, self._draws(generator.dim), key=key)
        x, _, log_det, pull = push_with_log_det(generator, z)
        at = evaluate(target, x, batch)
        gradient = pull(at.weight[:, None] * at.score, at.weight)
        return gradient, state.auxiliary, self._bound(at, log_det, z)

    def _l2(self, target, state, batch, key):
        """Eq. 4 with φ = s_p − s_q."""
        generator = state.learner.model
        z = standard_normal(generator, self._draws(generator.dim), key=key)
        x, _, log_det, pull = push_with_log_det(generator, z)
        at = evaluate(target, x, batch)
        solver = as_solver(self.solver)
        assert not isinstance(solver, Helper)
        direction = l2(generator, solver, z, at.score)
        gradient = pull(at.weight[:, None] * direction, jnp.zeros_like(log_det))
        return gradient, state.auxiliary, self._bound(at, log_det, z)

    def _draws(self, dim: int) -> int:
        return min(1024, max(256, 4096 // dim)) if self.particles is None else self.particles

    def _bound(self, at, log_det, z) -> Info:
        entropy = log_det - jax.vmap(log_standard_normal)(z)
        return {
            "log_density": at.mean(at.log_density),
            "entropy": at.mean(entropy),
            "elbo": at.mean(at.log_density + entropy),
            "rejected": at.rejected,
        }

    def _noise_kernel(self) -> OnNoise:
        if isinstance(self.kernel, Kernel):
            return OnNoise("head", self.kernel)
        return resolve(self.kernel, {"head": OnNoise, "full": lambda: OnNoise("full")}, "kernel")
