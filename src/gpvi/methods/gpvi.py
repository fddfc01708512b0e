"""GPVI: a generator trained by the functional gradient of the KL (Algorithm 1), or by its two exact relatives."""

import dataclasses
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from gpvi._compute.noise import divided
from gpvi._compute.outer_products import added_up, norm
from gpvi.directions import functional_direction
from gpvi.directions.functional import restricted
from gpvi.errors import InputError, NotAvailableError
from gpvi.generators import AbstractGenerator, Copula, Generator, Mixture, Residual, Triangular
from gpvi.generators.noise import standard_normal
from gpvi.kernels import Kernel, OnNoise
from gpvi.methods.base import About, Info, Learner, Method, State, built, require_batches
from gpvi.methods.carriers import Sampler
from gpvi.methods.pullback import push, scale_gradient
from gpvi.methods.reverse_kl import (
    default_draws,
    draws_of_each,
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
COPULA_STEPS = 250
"""Steps for `Copula`, which has four parameters for a coordinate and starts as the best Gaussian."""
PAPER_PARTICLES = 100
"""The paper's draws per step, and the default for "functional", whose time grows with their square."""
UNUSED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "pathwise": ("solver", "kernel", "batches", "pathwise_share"),
        "functional": (),
        "l2": ("kernel", "batches", "pathwise_share"),
    }
)
"""The options that a gradient does not read."""
LARGEST_RESIDUAL, LARGEST_STRETCH, LARGEST_FOLD = 0.3, 1e3, 0.0
"""Beyond these values a finished run ends with a warning."""
START_SCALE = 0.05
"""Where `GPVI.paper` starts a learned λ."""
FOLD_DRAWS, FOLD_LATENT = 256, 1_024
"""Draws by which a map is tested for folds, and the largest k for which it is: det A costs k³."""
Gradient = tuple[PyTree, PyTree, Info]
"""The gradient, what the solver has learned, and values to report."""


@spec
class GPVI(Method):
    """Generative particle variational inference.

    `GPVI()` is what this library recommends, and `GPVI.paper()` the paper's algorithm. An option that the chosen
    gradient would not use is refused.

    Parameters
    ----------
    generator
        f_θ; injective splines by default. The paper's is `gpvi.generators.Residual`.
    gradient
        "pathwise" is the gradient of the KL itself (App. A.3, cheap here), "functional" the paper's Thm 3.1, and "l2"
        Thm 3.1 without smoothing.
    solver
        For "functional" and "l2", how J^{-T}v is computed: "block", "dense", "bicgstab", "gmres", the paper's "helper",
        or a `gpvi.solvers.Solver`. "least_squares" is for a generator whose noise is much shorter than the posterior's
        dimension: the entropy is that of the surface which its draws fill, and acts on every coordinate.
    kernel
        For "functional", where the kernel acts: on the "head" of the noise or on all of it ("full"); or a
        `gpvi.kernels.Kernel` on the head, or a `gpvi.kernels.OnNoise`.
    particles
        Draws of noise per step; by default 4096/d, clipped to between 256 and 1024, and 100 for "functional", whose
        time grows with their square. With fewer, the gradient is so noisy that a separate mode may be lost early and
        for good.
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
        for name in self._unused():
            raise InputError(
                f"{name} is {getattr(self, name)!r}, which gradient={self.gradient!r} does not use. Omit it, or pass "
                "gradient='functional'; gpvi.GPVI.paper() is the paper's algorithm."
            )

    @classmethod
    def paper(
        cls,
        *,
        inverse: Solver | str = "exact",
        scale: float | str = 1.0,
        latent: int | None = None,
        hidden: tuple[int, ...] = (64, 64),
        particles: int = PAPER_PARTICLES,
        learning_rate: float = 1e-3,
    ) -> "GPVI":
        """Return the paper's algorithm: Eq. 6 trained by Thm 3.1 with a kernel on all of the noise (Algorithm 1).

        Parameters
        ----------
        inverse
            J^{-T}∇k by elimination ("exact"), by the paper's network ("helper"), or by a solver of `gpvi.solvers`. The
            helper takes some ten times as long.
        scale
            λ, 1 in the paper. No coordinate but the first k can be known better than ±λ. Where `gpvi.fit` searches for
            a start, a posterior has about unit scale and 1 suits it; for a network, whose posterior has not, use 0.05.
            "learned" starts there and learns one λ for each coordinate.
        latent, hidden
            k and the layers of g, as for `gpvi.generators.Residual`.
        particles
            Draws of z and of z′ in each step.
        learning_rate
            Of Adam, which decays to zero; for the paper's constant rate pass `optimizer=optax.adam(1e-3)` to
            `gpvi.fit`.

        Returns
        -------
        GPVI
            The method, for `gpvi.fit`.

        Raises
        ------
        gpvi.errors.InputError
            If an option cannot be used.

        Examples
        --------
        >>> target = gpvi.Target(lambda x: -0.5 * x @ x, dim=2)
        >>> posterior = gpvi.fit(target, gpvi.GPVI.paper(), key=0, steps=20, progress=False)
        >>> network = gpvi.GPVI.paper(scale=0.05, latent=32)
        """
        if isinstance(scale, str):
            require_choice(scale, ("learned",), "scale")
        start = START_SCALE if isinstance(scale, str) else scale
        return cls(
            generator=Residual(latent, hidden, scale=start, learn_scale=isinstance(scale, str)),
            gradient="functional",
            solver="block" if inverse == "exact" else inverse,
            kernel="full",
            particles=particles,
            learning_rate=learning_rate,
        )

    @classmethod
    def current_options(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a saved method without those that its gradient does not use, which were once ignored.

        Parameters
        ----------
        options
            The options by name.

        Returns
        -------
        dict
            Options that the class accepts.
        """
        unused = UNUSED.get(str(options.get("gradient", cls.gradient)), ())
        if (
            unused
        ):  # what no gradient accepts is refused; the generator is looked at with its own gradient
            cls(**{**options, "gradient": "functional", "generator": cls.generator})
        return {name: value for name, value in options.items() if name not in unused}

    def default_steps(self) -> int:
        """Return the number of steps if none is given: 5,000, and 250 for `Copula`."""
        return COPULA_STEPS if isinstance(self.generator, Copula) else super().default_steps()

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
        draws = self._draws(dim)
        if isinstance(self.generator, Mixture):
            components = self.generator.components
            draws = components * draws_of_each(draws, components)
        return draws * history["gradient_norm"].shape[-1]

    def init(
        self, target: Density, optimizer: optax.GradientTransformation, *, key: PRNGKeyArray
    ) -> State:
        """Build the generator, and the solver's helper if it has one (the first line of Algorithm 1)."""
        build_key, solver_key = divided(key, 2)
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

    def concerns(self, state: State, history: Mapping[str, np.ndarray]) -> tuple[str, ...]:
        """Return a note where the inverse or the map of a finished run is at fault, each with its remedy."""
        exact = isinstance(as_solver(self.solver), ExactSolver)
        return (*_of_the_inverse(history, exact), *_of_folds(state.learner.model))

    def _unused(self) -> list[str]:
        """Return the options that were given although the gradient does not read them."""
        plain = {field.name: field.default for field in dataclasses.fields(self)}
        meant = {"solver": as_solver, "kernel": _as_noise_kernel}

        def read(name: str, value: Any) -> Any:
            return meant.get(name, lambda value: value)(value)

        return [
            name
            for name in UNUSED[self.gradient]
            if read(name, getattr(self, name)) != read(name, plain[name])
        ]

    def _draws(self, dim: int) -> int:
        if self.particles is not None:
            return self.particles
        return PAPER_PARTICLES if self.gradient == "functional" else default_draws(dim)

    @property
    def _flexible(self) -> bool:
        return isinstance(self.generator, Triangular) and self.generator.flexible

    def _pathwise_share(self) -> float:
        if self.pathwise_share is not None:
            return self.pathwise_share
        return 0.25 if self._flexible else 0.0

    def _noise_kernel(self) -> OnNoise:
        return _as_noise_kernel(self.kernel)


def _as_noise_kernel(value: Any) -> OnNoise:
    if isinstance(value, Kernel):
        return OnNoise("head", value)
    return resolve(value, {"head": OnNoise, "full": lambda: OnNoise("full")}, "kernel", OnNoise)


def _of_the_inverse(history: Mapping[str, np.ndarray], exact: bool) -> Iterator[str]:
    """Yield what is wrong with J^{-T}∇k in the last tenth of the steps; pathwise steps in between report 0.

    A helper answers nearly vanishing ∇k with some small vector, so that its stretch says nothing of J.
    """

    def at_the_end(name: str) -> float:
        values = history.get(name, np.zeros(1))
        values = values[-max(20, len(values) // 10) :]
        return float(np.median(values[values > 0])) if (values > 0).any() else 0.0

    residual, stretch = at_the_end("residual"), at_the_end("stretch")
    if residual > LARGEST_RESIDUAL:
        yield (
            f"the solver leaves a residual of {residual:.2f} (E‖Jᵀy − ∇k‖² / E‖∇k‖², 0 is exact), so that the entropy "
            "term is mostly wrong. Use solver='block', which is exact, or give a helper more width, a higher "
            "learning rate or more steps: gpvi.solvers.Helper(width=200, learning_rate=1e-3)"
        )
    if exact and stretch > LARGEST_STRETCH:
        yield (
            f"J^{{-T}} stretches some ∇k {stretch:.0e} times: J is nearly singular, and the entropy term is noise. Use "
            "a larger λ (scale=), a learned one (learn_scale=True), or gradient='pathwise'"
        )


def _of_folds(generator: AbstractGenerator) -> Iterator[str]:
    """Yield the share of draws at which det J has the minority's sign, if it is not 0."""
    if generator.injective or generator.latent > FOLD_LATENT:
        return
    signs = _orientations(generator)
    fold = 1 - max(float((signs > 0).mean()), float((signs < 0).mean()))
    if fold > LARGEST_FOLD:
        yield (
            f"the generator folds: det J has the other sign at {fold:.1%} of the draws, so that the densities, the "
            "ELBO and k̂ are invalid (the draws are not). Use a generator that cannot fold, gpvi.generators.Triangular, "
            "or a larger λ (scale=)"
        )


@eqx.filter_jit
def _orientations(generator: AbstractGenerator) -> Float[Array, " n"]:
    """Return the sign of det J at some draws."""
    z = standard_normal(generator, FOLD_DRAWS, key=jax.random.key(0))
    return jax.lax.map(lambda point: generator.head_log_det(generator.split(point)[0])[0], z)


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
