"""The 17 models of the posteriordb bench in NumPyro (Magnusson et al., "posteriordb", 2021-2024).

Each is a function of its data alone; sites carry the names of the reference draws, so that
`PosteriorModel.quantities` says which of them are compared. Flat priors are improper uniforms.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float
from numpyro.distributions import constraints

Data = Mapping[str, Any]
Input = Array | np.ndarray
Values = dict[str, Array]
Arguments = dict[str, np.ndarray]

SUBSTEPS = 2
"""Steps between two measurements in the coarsest of the four integrations of the elimination."""


@dataclasses.dataclass(frozen=True)
class PosteriorModel:
    """A NumPyro model, its arguments from the data, and its relation to the reference draws."""

    model: Callable[..., None]
    arguments: Callable[[Data], Arguments]
    quantities: tuple[str, ...]
    """The sites that have reference draws, in their order."""
    recover: Callable[[Values, Arguments], Values] = lambda values, arguments: values
    """Reference quantities → values of the latent sites."""

    def flatten(self, values: Mapping[str, Array]) -> Float[Array, " q"]:
        """One draw of the sites as a vector in the order of the reference draws."""
        return jnp.concatenate([jnp.ravel(values[name]) for name in self.quantities])


def _sample(name: str, distribution: dist.Distribution) -> Array:
    return jnp.asarray(numpyro.sample(name, distribution))


def _flat(name: str, support: Any, shape: tuple[int, ...] = ()) -> Array:
    """A site with an improper uniform prior."""
    return _sample(name, dist.ImproperUniform(support, (), shape))


def _design(data: Data, *names: str) -> np.ndarray:
    """A design matrix: a constant, then these columns."""
    columns = [np.asarray(data[name], float) for name in names]
    return np.stack([np.ones_like(columns[0]), *columns], 1)


def eight_schools_centered(y: Input, sigma: Input) -> None:
    """School effects drawn around a mean: a funnel in (θ, τ)."""
    mu = _sample("mu", dist.Normal(0, 5))
    tau = _sample("tau", dist.HalfCauchy(5))
    theta = _sample("theta", dist.Normal(mu, tau).expand(y.shape).to_event(1))
    numpyro.sample("y", dist.Normal(theta, sigma).to_event(1), obs=y)


def eight_schools_noncentered(y: Input, sigma: Input) -> None:
    """The same with standardised effects, θ = μ + τ η."""
    mu = _sample("mu", dist.Normal(0, 5))
    tau = _sample("tau", dist.HalfCauchy(5))
    eta = _sample("eta", dist.Normal(0, 1).expand(y.shape).to_event(1))
    theta = numpyro.deterministic("theta", mu + tau * eta)
    numpyro.sample("y", dist.Normal(theta, sigma).to_event(1), obs=y)


def flat_regression(X: Input, y: Input) -> None:
    """A regression with flat priors on the coefficients and on σ."""
    beta = _flat("beta", constraints.real_vector, X.shape[1:])
    sigma = _flat("sigma", constraints.positive)
    numpyro.sample("y", dist.Normal(X @ beta, sigma).to_event(1), obs=y)


def kidscore(X: Input, y: Input) -> None:
    """A regression with flat coefficients and σ ~ Cauchy⁺(0, 2.5)."""
    beta = _flat("beta", constraints.real_vector, X.shape[1:])
    sigma = _sample("sigma", dist.HalfCauchy(2.5))
    numpyro.sample("y", dist.Normal(X @ beta, sigma).to_event(1), obs=y)


def autoregression(lagged: Input, y: Input) -> None:
    """y_t on its K predecessors."""
    alpha = _sample("alpha", dist.Normal(0, 10))
    beta = _sample("beta", dist.Normal(0, 10).expand(lagged.shape[1:]).to_event(1))
    sigma = _sample("sigma", dist.HalfCauchy(2.5))
    numpyro.sample("y", dist.Normal(alpha + lagged @ beta, sigma).to_event(1), obs=y)


def _squared_exponential(x: Input, alpha: Array, rho: Array) -> Float[Array, "n n"]:
    return alpha**2 * jnp.exp(-0.5 * ((x[:, None] - x[None]) / rho) ** 2)


def gp_poisson(x: Input, k: Input) -> None:
    """Counts with a Gaussian process as log-rate, f = chol(Σ) z."""
    rho = _sample("rho", dist.Gamma(25.0, 4.0))
    alpha = _sample("alpha", dist.HalfNormal(2.0))
    z = _sample("z", dist.Normal(0, 1).expand(x.shape).to_event(1))
    f = numpyro.deterministic("f", _gp_factor(x, alpha, rho) @ z)
    numpyro.sample("k", dist.Poisson(jnp.exp(f)).to_event(1), obs=k)


def _gp_factor(x: Input, alpha: Array, rho: Array) -> Float[Array, "n n"]:
    covariance = _squared_exponential(x, alpha, rho) + 1e-10 * jnp.eye(len(x))
    return jnp.linalg.cholesky(covariance)


def gp_regression(x: Input, y: Input) -> None:
    """A Gaussian process with noise of *variance* σ."""
    rho = _sample("rho", dist.Gamma(25.0, 4.0))
    alpha = _sample("alpha", dist.HalfNormal(2.0))
    sigma = _sample("sigma", dist.HalfNormal(1.0))
    covariance = _squared_exponential(x, alpha, rho) + sigma * jnp.eye(len(x))
    numpyro.sample("y", dist.MultivariateNormal(0.0, covariance_matrix=covariance), obs=y)


def hidden_markov(u: Input, v: Input, alpha: Input) -> None:
    """Two hidden states with exponential emissions, summed out by the forward recursion."""
    theta = [_sample(f"theta{i + 1}", dist.Dirichlet(alpha[i])) for i in range(2)]
    phi, rate = (_ordered_rates(name) for name in ("phi", "lambda"))
    of_u = dist.Exponential(phi).log_prob(u[:, None])
    of_v = dist.Exponential(rate).log_prob(v[:, None])
    numpyro.factor("observations", forward(jnp.log(jnp.stack(theta)), of_u + of_v))


def _ordered_rates(name: str) -> Float[Array, " 2"]:
    """0 < r₁ < r₂ with N(r₁; 0, 1) N(r₂; 3, 1)."""
    rates = _flat(name, constraints.positive_ordered_vector, (2,))
    numpyro.factor(f"{name} prior", dist.Normal(jnp.array([0.0, 3.0]), 1.0).log_prob(rates).sum())
    return rates


def forward(
    log_transition: Float[Array, "k k"], log_emission: Float[Array, "t k"]
) -> Float[Array, ""]:
    """log p(observations), every initial state with weight one: the forward recursion in logs."""

    def one(message: Array, emission: Array) -> tuple[Array, None]:
        return logsumexp(message[:, None] + log_transition, axis=0) + emission, None

    last, _ = jax.lax.scan(one, log_emission[0], log_emission[1:])
    return logsumexp(last)


def bayesian_regression(X: Input, y: Input) -> None:
    """A regression with β ~ N(0, 10²), σ ~ N⁺(0, 10) and no intercept."""
    beta = _sample("beta", dist.Normal(0, 10).expand(X.shape[1:]).to_event(1))
    sigma = _sample("sigma", dist.HalfNormal(10.0))
    numpyro.sample("y", dist.Normal(X @ beta, sigma).to_event(1), obs=y)


def elimination(dose: Input, volume: Input, times: Input, y: Input) -> None:
    """First-order absorption, Michaelis-Menten elimination."""
    k_a, K_m, V_m, sigma = (
        _sample(name, dist.HalfCauchy(1.0)) for name in ("k_a", "K_m", "V_m", "sigma")
    )
    location = log_concentration(times, dose / volume, k_a, K_m, V_m / volume)
    numpyro.sample("y", dist.LogNormal(location, sigma).to_event(1), obs=y)


def log_concentration(
    times: Float[Input, " t"], dose: Input | float, k_a: Array, K_m: Array, v: Array
) -> Float[Array, " t"]:
    """log C of dC/dt = dose k_a e^(−k_a t) − v C / (K_m + C), C(0) = 0, at increasing `times`.

    An implicit Euler step of length h is C₁ = b − h v C₁ / (K_m + C₁) with b = C₀ + ∫ absorption > 0: a
    quadratic with one positive root, however stiff. Its logarithms with 1, 2, 4 and 8 times as many steps are
    extrapolated to h = 0 (Deuflhard 1983), which has order four and keeps C positive. Before the first of
    `times` the steps grow, as C passes K_m within a moment where K_m is small.
    """

    def solution(substeps: int) -> Float[Array, " t"]:
        edges = jnp.concatenate([jnp.zeros(1), times])
        shares = jnp.arange(substeps) / substeps
        shares = jnp.stack([shares**3, *([shares] * (len(times) - 1))])
        grid = (edges[:-1, None] + jnp.diff(edges)[:, None] * shares).ravel()
        grid = jnp.append(grid, times[-1])
        absorbed = jnp.diff(-dose * jnp.expm1(-k_a * grid))

        def step(C: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
            gain, h = inputs
            b = C + gain
            B = b - K_m - h * v
            q = 0.5 * (jnp.abs(B) + jnp.sqrt(B**2 + 4 * b * K_m))
            C = jnp.where(B > 0, q, b * K_m / q)
            return C, C

        _, C = jax.lax.scan(step, jnp.zeros(()), (absorbed, jnp.diff(grid)))
        return jnp.log(C.reshape(len(times), substeps)[:, -1])

    levels = [solution(SUBSTEPS * 2**i) for i in range(4)]
    for order in range(1, 4):
        levels = [b + (b - a) / (2**order - 1) for a, b in itertools.pairwise(levels)]
    return levels[0]


def diamonds(X: Input, y: Input) -> None:
    """Log prices on a centred design of 24 columns."""
    b = _sample("b", dist.Normal(0, 1).expand(X.shape[1:]).to_event(1))
    intercept = _sample("Intercept", dist.StudentT(3.0, 8.0, 10.0))
    sigma = _flat("sigma", constraints.positive)
    numpyro.factor("sigma prior", dist.StudentT(3.0, 0.0, 10.0).log_prob(sigma))
    numpyro.sample("y", dist.Normal(intercept + X @ b, sigma).to_event(1), obs=y)


def kilpisjarvi(x: Input, y: Input, location: Input, scale: Input) -> None:
    """A line over uncentred calendar years: α and β are almost collinear."""
    alpha = _sample("alpha", dist.Normal(location[0], scale[0]))
    beta = _sample("beta", dist.Normal(location[1], scale[1]))
    sigma = _flat("sigma", constraints.positive)
    numpyro.sample("y", dist.Normal(alpha + beta * x, sigma).to_event(1), obs=y)


def _standardised(values: Values, arguments: Arguments) -> Values:
    eta = (values["theta"] - values["mu"]) / values["tau"]
    return {"mu": values["mu"], "tau": values["tau"], "eta": eta}


def _whitened(values: Values, arguments: Arguments) -> Values:
    factor = _gp_factor(jnp.asarray(arguments["x"]), values["alpha"], values["rho"])
    z = jax.scipy.linalg.solve_triangular(factor, values["f"], lower=True)
    return {"rho": values["rho"], "alpha": values["alpha"], "z": z}


def _floats(*names: str, **renamed: str) -> Callable[[Data], Arguments]:
    """These fields of the data as arrays, under these names."""
    fields = dict(zip(names, names, strict=True)) | renamed
    return lambda data: {ours: np.asarray(data[theirs], float) for ours, theirs in fields.items()}


def _lags(data: Data) -> Arguments:
    y, K = np.asarray(data["y"], float), data["K"]
    return {"lagged": np.stack([y[K - k : len(y) - k] for k in range(1, K + 1)], 1), "y": y[K:]}


def _kidiq(*columns: str) -> Callable[[Data], Arguments]:
    def arguments(data: Data) -> Arguments:
        both = np.multiply(data["mom_hs"], data["mom_iq"])
        return {
            "X": _design(dict(data) | {"product": both}, *columns),
            "y": np.asarray(data["kid_score"], float),
        }

    return arguments


def _earnings(data: Data) -> Arguments:
    return {"X": _design(data, "height"), "y": np.asarray(data["earn"], float)}


def _log_earnings(data: Data) -> Arguments:
    arguments = _earnings(data)
    return arguments | {"y": np.log(arguments["y"])}


def _nes(data: Data) -> Arguments:
    age = np.asarray(data["age_discrete"])
    ages = {f"age{level}": age == level for level in (2, 3, 4)}
    columns = ("real_ideo", "race_adj", *ages, "educ1", "gender", "income")
    return {"X": _design(dict(data) | ages, *columns), "y": np.asarray(data["partyid7"], float)}


def _mesquite(data: Data) -> Arguments:
    sizes = ("diam1", "diam2", "canopy_height", "total_height", "density")
    logs = {name: np.log(data[name]) for name in sizes}
    X = _design(dict(data) | logs, *sizes, "group")
    return {"X": X, "y": np.log(np.asarray(data["weight"], float))}


def _diamonds(data: Data) -> Arguments:
    X = np.asarray(data["X"], float)[:, 1:]
    return {"X": X - X.mean(0), "y": np.asarray(data["Y"], float)}


def _kilpisjarvi(data: Data) -> Arguments:
    pairs = {"location": ("pmualpha", "pmubeta"), "scale": ("psalpha", "psbeta")}
    return _floats("x", "y")(data) | {
        name: np.array([data[field] for field in fields], float) for name, fields in pairs.items()
    }


_REGRESSION = ("beta", "sigma")

MODELS: dict[str, PosteriorModel] = {
    "eight_schools-eight_schools_centered": PosteriorModel(
        eight_schools_centered, _floats("y", "sigma"), ("theta", "mu", "tau")
    ),
    "eight_schools-eight_schools_noncentered": PosteriorModel(
        eight_schools_noncentered, _floats("y", "sigma"), ("theta", "mu", "tau"), _standardised
    ),
    "kidiq-kidscore_momiq": PosteriorModel(kidscore, _kidiq("mom_iq"), _REGRESSION),
    "kidiq-kidscore_momhsiq": PosteriorModel(kidscore, _kidiq("mom_hs", "mom_iq"), _REGRESSION),
    "kidiq-kidscore_interaction": PosteriorModel(
        kidscore, _kidiq("mom_hs", "mom_iq", "product"), _REGRESSION
    ),
    "earnings-earn_height": PosteriorModel(flat_regression, _earnings, _REGRESSION),
    "earnings-logearn_height": PosteriorModel(flat_regression, _log_earnings, _REGRESSION),
    "arK-arK": PosteriorModel(autoregression, _lags, ("alpha", "beta", "sigma")),
    "gp_pois_regr-gp_pois_regr": PosteriorModel(
        gp_poisson, _floats("x", "k"), ("rho", "alpha", "f"), _whitened
    ),
    "gp_pois_regr-gp_regr": PosteriorModel(
        gp_regression, _floats("x", "y"), ("rho", "alpha", "sigma")
    ),
    "bball_drive_event_0-hmm_drive_0": PosteriorModel(
        hidden_markov, _floats("u", "v", "alpha"), ("theta1", "theta2", "phi", "lambda")
    ),
    "nes1980-nes": PosteriorModel(flat_regression, _nes, _REGRESSION),
    "sblrc-blr": PosteriorModel(bayesian_regression, _floats("X", "y"), _REGRESSION),
    "one_comp_mm_elim_abs-one_comp_mm_elim_abs": PosteriorModel(
        elimination,
        _floats("times", dose="D", volume="V", y="C_hat"),
        ("k_a", "K_m", "V_m", "sigma"),
    ),
    "diamonds-diamonds": PosteriorModel(diamonds, _diamonds, ("b", "Intercept", "sigma")),
    "mesquite-logmesquite": PosteriorModel(flat_regression, _mesquite, _REGRESSION),
    "kilpisjarvi_mod-kilpisjarvi": PosteriorModel(
        kilpisjarvi, _kilpisjarvi, ("alpha", "beta", "sigma")
    ),
}
