"""Methods of other libraries on the same model, with settings that a careful user would choose."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key, PRNGKeyArray, PyTree, Scalar

from gpvi import specs
from gpvi.errors import DivergenceError, NotAvailableError
from gpvi.specs import spec

Model = Callable[..., None]
Arguments = dict[str, Any]
Sites = dict[str, Array]

BATCH = 1_000
"""Number of draws made at a time."""


class Draws(NamedTuple):
    """Draws of every site, deterministic ones included, and log p − log q if q is known."""

    sites: Sites
    log_ratios: Float[Array, " n"] | None


@runtime_checkable
class Fitted(Protocol):
    """A fitted method."""

    @property
    def draws(self) -> Draws | None:
        """The draws that the fit consists of, if it is a set of draws."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the record."""
        ...

    def sample(self, n: int, *, key: PRNGKeyArray) -> Sites:
        """n further draws."""
        ...

    def weighed(self, n: int, *, key: PRNGKeyArray) -> Draws:
        """n further draws, with log p − log q if q is known."""
        ...


@runtime_checkable
class Peer(Protocol):
    """A method of another library."""

    def to_json(self) -> dict[str, Any]:
        """Everything that was chosen."""
        ...

    def fit(self, model: Model, arguments: Arguments, *, key: PRNGKeyArray) -> Fitted:
        """Infer the latent sites of `model(**arguments)`."""
        ...


@spec
class NumPyroGuide:
    """An automatic guide of NumPyro, trained by its SVI.

    One setting for all models: Adam at 0.01 with a cosine decay to zero, 10 draws of the ELBO to a step, from the
    prior's medians (where a prior is flat, uniform on [−2, 2] in unconstrained coordinates).
    """

    guide: str
    steps: int = 10_000
    learning_rate: float = 1e-2
    particles: int = 10

    def to_json(self) -> dict[str, Any]:
        """Everything that was chosen."""
        return {"library": "numpyro", "method": specs.to_json(self)}

    def fit(self, model: Model, arguments: Arguments, *, key: PRNGKeyArray) -> "GuideFit":
        """Train the guide; non-finite updates are skipped."""
        require_numpyro()
        from numpyro.infer import SVI, Trace_ELBO, autoguide, init_to_median

        guide = getattr(autoguide, self.guide)(model, init_loc_fn=init_to_median)
        rate = optax.cosine_decay_schedule(self.learning_rate, self.steps)
        svi = SVI(model, guide, optax.adam(rate), Trace_ELBO(num_particles=self.particles))

        @jax.jit
        def train(state: PyTree) -> tuple[PyTree, Float[Array, " s"]]:
            def step(state: PyTree, _: None) -> tuple[PyTree, Scalar]:
                return svi.stable_update(state, **arguments)

            return jax.lax.scan(step, state, length=self.steps)

        state, losses = train(_started(lambda: svi.init(key, **arguments), self.guide))
        bad = int((~jnp.isfinite(losses)).sum())
        notes = (f"{bad} of {self.steps} updates were not finite",) if bad else ()
        return GuideFit(model, guide, arguments, svi.get_params(state), notes)


class GuideFit:
    """A trained guide; log p − log q is the ELBO of one draw."""

    draws = None

    def __init__(
        self,
        model: Model,
        guide: Any,
        arguments: Arguments,
        params: PyTree,
        notes: tuple[str, ...] = (),
    ):
        from numpyro.handlers import replay, seed, substitute
        from numpyro.infer.util import log_density

        def one(params: PyTree, key: PRNGKeyArray) -> tuple[Sites, Scalar]:
            trained = substitute(seed(guide, key), data=params)
            log_q, drawn = log_density(trained, (), arguments, {})
            log_p, trace = log_density(replay(seed(model, key), drawn), (), arguments, {})
            return _unobserved(trace), jnp.asarray(log_p - log_q)

        def many(params: PyTree, keys: Key[Array, " n"]) -> tuple[Sites, Float[Array, " n"]]:
            return jax.lax.map(partial(one, params), keys, batch_size=BATCH)

        self.notes = notes
        self._params = jax.block_until_ready(params)
        self._weighed = jax.jit(many)
        self._sample = jax.jit(lambda params, keys: many(params, keys)[0])

    def sample(self, n: int, *, key: PRNGKeyArray) -> Sites:
        """n independent draws."""
        return self._sample(self._params, jax.random.split(key, n))

    def weighed(self, n: int, *, key: PRNGKeyArray) -> Draws:
        """The same draws with log p − log q."""
        return Draws(*self._weighed(self._params, jax.random.split(key, n)))


@spec
class NumPyroNUTS:
    """NumPyro's NUTS, the chains side by side in one program (on two cores faster than one after the other)."""

    chains: int = 4
    warmup: int = 1_000
    samples: int = 1_000
    """Draws of each chain."""

    def to_json(self) -> dict[str, Any]:
        """Everything that was chosen."""
        return {"library": "numpyro", "method": specs.to_json(self)}

    def fit(self, model: Model, arguments: Arguments, *, key: PRNGKeyArray) -> "ChainFit":
        """Warm up and sample."""
        require_numpyro()
        from numpyro.infer import NUTS

        kernel = NUTS(model)
        chains = self._chains(kernel, self.samples)
        _started(lambda: chains.run(key, **arguments), "NUTS")
        return ChainFit(chains, lambda samples: self._chains(kernel, samples), arguments)

    def _chains(self, kernel: Any, samples: int) -> Any:
        from numpyro.infer import MCMC

        return MCMC(
            kernel,
            num_warmup=self.warmup,
            num_samples=samples,
            num_chains=self.chains,
            chain_method="vectorized",
            progress_bar=False,
        )


class ChainFit:
    """Chains that have been sampled and can be continued."""

    def __init__(self, chains: Any, again: Callable[[int], Any], arguments: Arguments):
        self._chains, self._again, self._arguments = chains, again, arguments
        self._further: dict[int, Any] = {}
        self.draws = Draws(jax.block_until_ready(chains.get_samples()), None)
        divergent = int(chains.get_extra_fields()["diverging"].sum())
        self.notes = (f"{divergent} divergent transitions",) if divergent else ()

    def sample(self, n: int, *, key: PRNGKeyArray) -> Sites:
        """The chains continue from where they ended, each by its share of n."""
        samples = math.ceil(n / self._chains.num_chains)
        if samples not in self._further:
            self._further[samples] = self._again(samples)
        further = self._further[samples]
        further.post_warmup_state = self._chains.last_state
        further.run(key, **self._arguments)
        return {name: values[:n] for name, values in further.get_samples().items()}

    def weighed(self, n: int, *, key: PRNGKeyArray) -> Draws:
        """The same draws; they have no density."""
        return Draws(self.sample(n, key=key), None)

    def effective_share(self) -> float:
        """The least effective sample size of all sites, as a share of the draws."""
        from numpyro.diagnostics import effective_sample_size

        samples = self._chains.get_samples(group_by_chain=True).values()
        sizes = [np.ravel(effective_sample_size(np.asarray(values))) for values in samples]
        drawn = self._chains.num_chains * self._chains.num_samples
        return float(np.nanmin(np.concatenate(sizes)) / drawn)


def require_numpyro() -> None:
    """Refuse to go on without NumPyro, and say how to install it."""
    try:
        import numpyro  # noqa: F401
    except ImportError as error:
        raise NotAvailableError(
            "NumPyro is not installed, but its methods are compared here: pip install 'gpvi[numpyro]'."
        ) from error


def _started(run: Callable[[], Any], name: str) -> Any:
    """`run()`, with an error of ours if NumPyro finds no point to start from."""
    try:
        return run()
    except RuntimeError as error:
        raise DivergenceError(f"NumPyro's {name} did not start: {error}") from error


def _unobserved(trace: Mapping[str, Mapping[str, Any]]) -> Sites:
    """The values of latent and deterministic sites."""
    return {
        name: jnp.asarray(site["value"])
        for name, site in trace.items()
        if site["type"] == "deterministic" or (site["type"] == "sample" and not site["is_observed"])
    }
