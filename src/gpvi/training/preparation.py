"""What is decided before the first step: the plan, the coordinates of training, and the first state.

`fit` and `fit_seeds` share all of it: one target is a list of one.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray

from gpvi.diagnostics.missing_mass import InitialEvidence
from gpvi.errors import TrainingWarning, warn
from gpvi.exploration.search import Exploration
from gpvi.generators import Copula
from gpvi.generators.gaussian import CopulaMap
from gpvi.generators.triangular import ALL_HEAD, TriangularMap
from gpvi.methods import GPVI, Method, as_method
from gpvi.methods.base import Learner, State
from gpvi.methods.carriers import Sampler
from gpvi.methods.mcmc import MarkovChains
from gpvi.methods.particle import AmortizedMethod
from gpvi.methods.smc import SMC
from gpvi.posterior.posterior import Posterior
from gpvi.posterior.start import Start
from gpvi.targets.coordinates import Affine, Whitened, preimages
from gpvi.targets.density import expensive
from gpvi.targets.preflight import rounded
from gpvi.targets.semiseparable import Semiseparable
from gpvi.targets.target import Target
from gpvi.training import stopping
from gpvi.training.arguments import check_arguments, checked_mesh
from gpvi.training.checkpoint import Checkpoints
from gpvi.training.program import LONGEST_CHUNK, Plan

THRIFTY = GPVI(gradient="l2", particles=128, first_round=250)
"""The default where log p is expensive: few draws, by the gradient whose noise vanishes as q comes near p."""
THRIFTY_DIMENSIONS = 20
"""The largest dimension for that default: its gradient takes d times the generator's work for each draw."""
BENT = GPVI(generator=Copula(), gradient="l2", particles=128, learning_rate=0.02)
"""The default where a head cannot have all coordinates, and enough of what is missed lies in the marginals."""
BENT_SHARE = 0.25
"""The least share of what the Gaussian misses that bent coordinates must be expected to remove. At 0.3 they still do
better in 250 steps than a head of 64 coordinates in 5,000."""
WHITENED_DIMENSIONS = 200_000
"""The largest dimension in which `init="auto"` searches for a Gaussian; beyond 3,000 its covariance is low rank."""


def planned(
    target: Target,
    method: Method | str | None,
    steps: int | None,
    optimizer: optax.GradientTransformation | None,
    batch_size: int | None,
    init: Any,
    mesh: Mesh | int | None = None,
) -> Plan:
    """Return what `fit` will run with these arguments; refuse arguments that cannot be used."""
    method = _default_method(target, init, batch_size) if method is None else as_method(method)
    check_arguments(target, method, steps, batch_size, init, optimizer)
    batch_size = default_batch_size(target, method, batch_size)
    rounds = stopping.rounds(target, method, steps, optimizer, batch_size, init)
    if rounds:
        steps, optimizer = sum(rounds), method.default_optimizer(*rounds)
    steps = method.default_steps() if steps is None else int(steps)
    optimizer = method.default_optimizer(steps) if optimizer is None else optimizer
    devices = checked_mesh(mesh, method)
    longest = LONGEST_CHUNK
    if target.stream is not None and batch_size is not None:
        longest = min(longest, target.stream.batches(batch_size))
    return Plan(method, optimizer, steps, batch_size, rounds=rounds, longest=longest, mesh=devices)


def _default_method(target: Target, init: Any, batch_size: int | None) -> Method:
    """Return the method of the posterior to continue, or the target's suggestion, or GPVI by the cost of log p."""
    if isinstance(init, Posterior):
        return init.method
    if not isinstance(target, Target):
        return GPVI()
    suggested = target.suggestion()
    if suggested is not None:
        return suggested.method
    full_data = batch_size is None and target.batch_size is None
    if not full_data or target.draws_its_start or target.dim > THRIFTY_DIMENSIONS:
        return GPVI()
    with target.precision():
        return THRIFTY if expensive(target) else GPVI()


def should_bend(plan: Plan, density: Whitened, init: Any, *, key: PRNGKeyArray) -> bool:
    """Whether `BENT` would remove enough of what the Gaussian at the start misses, where `GPVI()` is the default."""
    from gpvi.initialization import DENSE_DIMENSIONS, share_of_marginals

    usual = plan.method == GPVI() and plan.batch_size is None and searches(init, density.target)
    if not usual or not ALL_HEAD < density.dim <= DENSE_DIMENSIONS:
        return False
    return share_of_marginals(density, key=key) >= BENT_SHARE


def default_batch_size(target: Target, method: Method, batch_size: int | None) -> int | None:
    """Return the given batch size, or the target's own if the method takes batches."""
    if batch_size is not None:
        return int(batch_size)
    return None if method.full_data else target.batch_size


class Prepared(NamedTuple):
    """Targets that are ready to be trained, with the start of each."""

    targets: list[Target]
    starts: list[Start]
    notes: list[tuple[str, ...]]
    """What the target's float type cannot resolve, for each target."""

    @property
    def densities(self) -> list[Whitened]:
        """The targets in the coordinates of training."""
        pairs = zip(self.targets, self.starts, strict=True)
        return [Whitened(target, start.affine) for target, start in pairs]


def prepare(
    targets: Sequence[Target],
    method: Method,
    batch_size: int | None,
    inits: Sequence[Any],
    saves: Checkpoints | None,
    *,
    keys: Sequence[PRNGKeyArray],
    seeds: int | None = None,
) -> Prepared:
    """Check the targets, find where the training of each starts, and warn of what their float type cannot resolve.

    A start that a checkpoint holds is not searched for again. `seeds` is their number if they train side by side.
    """
    targets = _checked(targets, batch_size)
    searched = [searches(init, target) for init, target in zip(inits, targets, strict=True)]
    starts = saves.starts(targets[0], seeds) if saves is not None and searched[0] else None
    if starts is None:
        each = zip(targets, inits, keys, strict=True)
        starts = [find_start(target, method, init, key=key) for target, init, key in each]
    notes = [
        _unresolved(target, start) if search else ()
        for target, start, search in zip(targets, starts, searched, strict=True)
    ]
    for note in dict.fromkeys(note for own in notes for note in own):
        warn(note, TrainingWarning)
    return Prepared(targets, starts, notes)


def _checked(targets: Sequence[Target], batch_size: int | None) -> list[Target]:
    """Return the targets after validation; a target that is passed several times is validated once and shared."""
    distinct = {id(target): target for target in targets}
    checked = {each: target.checked(batch_size) for each, target in distinct.items()}
    return [checked[id(target)] for target in targets]


def keeps_its_coordinates(target: Target) -> bool:
    """Whether `init="auto"` trains in the target's own coordinates, without a search."""
    return target.draws_its_start or target.dim > WHITENED_DIMENSIONS


def searches(init: Any, target: Target) -> bool:
    """Whether this `init` searches for a Gaussian to start from."""
    return isinstance(init, str) and not (init == "auto" and keeps_its_coordinates(target))


def find_start(target: Target, method: Method, init: Any, *, key: PRNGKeyArray) -> Start:
    """Find the coordinates to train in: those of a posterior, the target's own, or those of a Gaussian near it."""
    if isinstance(init, Posterior):
        return init.start._replace(report="continued from a posterior")
    if not searches(init, target):
        at = target.starting_points(1, key=key)[0] if target.draws_its_start else target.initial
        scale = Affine.identity(target.dim, target.dtype).scale
        return Start(Affine(at, scale), "the target's own coordinates, around its initial point")
    from gpvi import initialization

    assert isinstance(init, str)
    search = {
        "auto": initialization.automatic,
        "variational": initialization.variational,
        "laplace": initialization.laplace,
    }[init]
    sample, log_density = target.subsample(), target.log_density
    if sample is not None:
        log_density = jax.tree_util.Partial(log_density, batch=sample)
    gaussian = search(log_density, target.initial, key=key)
    affine = _coordinates(method, gaussian.location, gaussian.scale, target.dtype)
    report = gaussian.report
    if sample is not None:
        size = jax.tree.leaves(sample)[0].shape[0]
        return Start(affine, f"{report}, of {size:,} of {target.size:,} data")
    evidence = InitialEvidence.measured(
        Whitened(target, affine), report.log_evidence, report.log_evidence_se
    )
    return Start(affine, str(report), evidence)


def _coordinates(
    method: Method,
    location: Float[Array, " d"],
    scale: Float[Array, "d d"] | Semiseparable,
    dtype: np.dtype,
) -> Affine:
    """Return the coordinates that whiten a Gaussian, or each coordinate given the others if they must be diagonal."""
    if method.coordinates == "diagonal" and isinstance(scale, Semiseparable):
        scale = scale.conditional_deviations()
    elif method.coordinates == "diagonal":
        precise = np.linalg.inv(np.asarray(scale, np.float64))
        scale = jnp.asarray((precise**2).sum(0) ** -0.5, dtype)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), Affine(location, scale))


def like_the_coordinates(method: Method, target: Target) -> Affine:
    """Return the identity, with the structure of the coordinates that `init="auto"` finds."""
    from gpvi.initialization import DENSE_DIMENSIONS, RANK

    kind = "diagonal"
    if method.coordinates == "dense" and not keeps_its_coordinates(target):
        kind = "dense" if target.dim <= DENSE_DIMENSIONS else "semiseparable"
    return Affine.form(kind, target.dim, rank=RANK, dtype=target.dtype)


def first_state(
    method: Method,
    density: Whitened,
    optimizer: optax.GradientTransformation,
    init: Any,
    explored: Callable[[], Exploration | None] = lambda: None,
    *,
    key: PRNGKeyArray,
) -> State:
    """Return the state in which training begins: fresh, or with the model or the particles that `init` gives.

    Where the coordinates were searched for, a generator starts as the Gaussian that was found, and chains start in the
    modes that `explored` returns. Islands of particles start as far out as a pilot run finds necessary.
    """
    state = method.init(density, optimizer, key=key)
    model = state.learner.model
    if searches(init, density.target):
        if isinstance(model, TriangularMap):
            model = model.at_rest()
        if isinstance(model, CopulaMap):
            model = model.around(density.affine.matrix)
        state = state._replace(learner=state.learner._replace(model=model))
    if isinstance(method, SMC) and not isinstance(init, Posterior):
        return method.from_afar(density, optimizer, key=key)
    if isinstance(method, MarkovChains) and isinstance(init, str):
        found = explored()
        if found is None:
            return state
        u = preimages(density.affine, jnp.asarray(found.starts(method.chains), density.dtype))
        return method.moved(state, density, u)
    if isinstance(init, Posterior):
        learner = Learner.start(_as_trained(init), optimizer, density.dtype)
        return State(learner, state.auxiliary if init.auxiliary is None else init.auxiliary)
    if isinstance(init, jax.Array | np.ndarray):
        return _from_points(init, state, density)
    return state


def _as_trained(posterior: Posterior) -> Any:
    """Return the model of a posterior as its method's `step` holds it."""
    amortized = isinstance(posterior.method, AmortizedMethod)
    return Sampler(posterior.model) if amortized else posterior.model  # pyright: ignore[reportArgumentType]


def _from_points(
    points: Float[Array | np.ndarray, "n d"], state: State, density: Whitened
) -> State:
    """Return the state with its particles moved to the given points, in the coordinates of training."""
    positions = preimages(density.affine, jnp.asarray(points, density.dtype))
    model = eqx.tree_at(lambda model: model.positions, state.learner.model, positions)
    return state._replace(learner=state.learner._replace(model=model))


def _unresolved(target: Target, start: Start) -> tuple[str, ...]:
    """Describe what the target's float type is too coarse for."""
    log_p = None if start.evidence is None else start.evidence.log_density
    return rounded(start.affine.location, start.affine.deviations, log_p, lambda: target.names)
