"""Every generator against its dense Jacobian: determinant, orientation, blocks, inverse."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from scipy import stats

import gpvi
from cases import (
    CONDITIONINGS,
    INJECTIVE,
    INVERTIBLE,
    KINDS,
    Shape,
    built,
    example,
    perturbed,
    seeds,
    shapes,
)
from gpvi import generators
from gpvi.errors import InputError, NotAvailableError, UnknownOptionError
from gpvi.generators import Preconditioned, SplineFlow
from gpvi.generators.bijections import HEAVIEST, STEEPNESS, BentHead
from gpvi.generators.triangular import TriangularMap
from gpvi.targets.coordinates import Affine
from selection import some_slow

pytestmark = pytest.mark.usefixtures("x64")


@eqx.filter_jit
def described(generator, invertible, z, elsewhere, y_tail):
    """What a generator says of its own Jacobian at z, beside that Jacobian."""
    z_head, z_tail = generator.split(z)
    x, sign, log_det = generator.transform_and_log_det(z)
    found = {
        "J": jax.jacobian(generator)(z),
        "f": generator(z),
        "parts": jnp.concatenate([generator.head(z_head), generator.tail(z_head, z_tail)]),
        "A": generator.head_jacobian(z_head).as_matrix(),
        "head_log_det": jnp.stack(generator.head_log_det(z_head)),
        "tail_scale": generator.tail_scale(z_head),
        "tail_product": generator.tail_transposed_product(z, y_tail),
        "log_det": jnp.stack(generator.log_det(z)),
        "x": x,
        "log_det_with_x": jnp.stack([sign, log_det]),
    }
    if invertible:
        found["inverse"] = generator.inverse(x)
    if generator.constant_head:
        found["A_elsewhere"] = generator.head_jacobian(generator.split(elsewhere)[0]).as_matrix()
    return found


@pytest.mark.parametrize("how", some_slow(CONDITIONINGS, fast=("bare",)))
@pytest.mark.parametrize("kind", KINDS)
def test_against_the_dense_jacobian(kind, how):
    @settings(max_examples=3)
    @given(shapes(kind, how), seeds)
    def check(shape, seed):
        rng = np.random.default_rng(seed)
        generator = example(kind, shape, how, rng)
        k = generator.latent
        z, elsewhere = jnp.asarray(rng.standard_normal((2, shape.dim)))
        y_tail = jnp.asarray(rng.standard_normal(shape.dim - k))
        found = jax.tree.map(
            np.asarray, described(generator, kind in INVERTIBLE, z, elsewhere, y_tail)
        )
        J = found["J"]
        assume(np.linalg.cond(J) < 1e5)
        A, B, tail_block = J[:k, :k], J[k:, :k], J[k:, k:]
        wanted = {
            "parts": found["f"],
            "x": found["f"],
            "A": A,
            "A_elsewhere": A,
            "head_log_det": np.stack(np.linalg.slogdet(A)),
            "tail_scale": np.abs(np.diagonal(tail_block)),
            "tail_product": B.T @ y_tail,
            "log_det": np.stack(np.linalg.slogdet(J)),
            "log_det_with_x": np.stack(np.linalg.slogdet(J)),
            "inverse": z,
        }
        for name in wanted.keys() & found.keys():
            np.testing.assert_allclose(found[name], wanted[name], 1e-9, 1e-9, err_msg=name)
        assert not J[:k, k:].any()
        assert not np.triu(tail_block, 1).any()
        if how != "dense":
            assert not np.tril(tail_block, -1).any()

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_inverse_is_refused_where_there_is_none(kind):
    generator = built(kind, Shape(3, 1, (4,)))
    assert generator.injective == (kind in INJECTIVE)
    if kind not in INVERTIBLE:
        with pytest.raises(NotAvailableError, match=r"no exact inverse.*Triangular"):
            generator.inverse(jnp.zeros(3))


@pytest.mark.parametrize(
    ("hidden", "activation", "constant"),
    [((), "tanh", True), ((4,), "identity", True), ((4,), "tanh", False)],
)
@pytest.mark.parametrize("spec", [generators.MLP, generators.Residual])
def test_a_linear_network_has_a_constant_jacobian(spec, hidden, activation, constant, getkey):
    generator = spec(hidden=hidden, activation=activation).build(3, key=getkey(), dtype=jnp.float64)
    here, there = jax.vmap(jax.jacobian(generator))(jax.random.normal(getkey(), (2, 3)))
    assert generator.constant_head == constant
    assert (np.abs(here - there).max() < 1e-12) == constant


@pytest.mark.parametrize("degrees", [1.0, 2.0, 5.0])
def test_learned_tails_are_those_of_student(degrees):
    """Of the right weight, p/q is even in the middle and falls far out, to where 10⁻⁸ of the draws lie."""
    built = generators.FullRank(tails=True).build(1, key=jax.random.key(0), dtype=jnp.float64)
    raw = -np.log(HEAVIEST * degrees - 1) / STEEPNESS
    generator = eqx.tree_at(lambda g: g.flow.raw, built, jnp.full(1, raw))
    student: Any = stats.t(degrees)
    x = student.ppf(np.linspace(1e-8, 1 - 1e-8, 2_001))
    log_q = jax.vmap(generator.log_prob)(jnp.asarray(x)[:, None])
    weights = np.exp(student.logpdf(x) - log_q)
    assert weights.max() < 1.08
    assert weights[20:-20].min() > 0.8
    assert 1 / weights.mean() > 0.99, "the effective share of draws of q, 1 / E_p[p/q]"


def test_a_copula_bends_each_coordinate_of_a_gaussian_by_itself():
    """x − b = D T(D⁻¹Lz) with D² = diag(LLᵀ), whatever the coordinates of training, and the Gaussian at the start."""
    rng = np.random.default_rng(0)
    location, z = jnp.asarray(rng.standard_normal((2, 4)))
    scale = jnp.asarray(np.tril(rng.standard_normal((4, 4))) + 2 * np.eye(4))
    affine = Affine(location, scale)
    started = built("copula", Shape(4, 4, ())).around(scale)
    np.testing.assert_allclose(Preconditioned(started, affine)(z), location + scale @ z, 1e-12)

    bent = eqx.tree_at(lambda g: g.marginals, started, perturbed(started.marginals, rng))
    deviations = jnp.sqrt(jnp.diag(scale @ scale.T))
    alone = jax.tree.map(lambda leaf: leaf[:, None], bent.marginals)
    wanted = jax.vmap(BentHead.__call__)(alone, (scale @ z / deviations)[:, None])[:, 0]
    x = Preconditioned(bent, affine)(z)
    np.testing.assert_allclose((x - location) / deviations, wanted, 1e-12)


def test_bent_coordinates_are_the_sinh_arcsinh_of_normal_ones():
    """The density of one coordinate integrates to one, and a skewness of ε gives it slopes of e^ε and e^−ε far out."""
    head = BentHead(*(jnp.asarray([each]) for each in (0.3, -0.2, 0.7, 0.1)))
    generator = TriangularMap(head, None)
    x = np.linspace(-60, 60, 200_001)
    density = np.exp(jax.vmap(generator.log_prob)(jnp.asarray(x)[:, None]))
    np.testing.assert_allclose(density.sum() * (x[1] - x[0]), 1, 1e-8)
    skewed = BentHead(*(jnp.asarray([each]) for each in (0.0, 0.0, 0.7, 0.0)))
    for far, slope in ((1e5, np.exp(0.7)), (-1e5, np.exp(-0.7))):
        found = np.exp(skewed.log_slopes(jnp.asarray([far])))
        np.testing.assert_allclose(found, slope, 1e-8)


def test_linear_starts_at_the_identity(getkey):
    z = jax.random.normal(getkey(), (4,))
    generator = generators.Linear().build(4, key=getkey(), dtype=jnp.float64)
    np.testing.assert_array_equal(generator(z), z)


@pytest.mark.parametrize("dim", [1, 3])
def test_planar_starts_at_the_identity_and_autoregressive_at_a_permutation(dim, getkey):
    z = jax.random.normal(getkey(), (dim,))
    planar, autoregressive = (
        built(kind, Shape(dim, dim, ())) for kind in ("planar", "autoregressive")
    )
    np.testing.assert_allclose(planar(z), z, atol=1e-6)
    np.testing.assert_allclose(np.sort(autoregressive(z)), np.sort(z), atol=1e-12)


@pytest.mark.parametrize("latent", [1, 3])
def test_spline_starts_at_a_permutation(latent, getkey):
    shape = Shape(3, latent, (4,))
    z = jax.random.normal(getkey(), (3,))
    x_head = built("spline", shape).head(z[:latent])
    np.testing.assert_allclose(np.sort(x_head), np.sort(z[:latent]), atol=1e-12)


@pytest.mark.parametrize("kind", ["residual-learned", "affine", "affine-conditional"])
def test_scale_parameters_set_the_scale_and_nothing_else(kind, getkey):
    generator = perturbed(built(kind, Shape(4, 2, (3,))), np.random.default_rng(0))
    scales, others = eqx.partition(generator, generator.scale_parameters())
    z_head = jax.random.normal(getkey(), (2,))

    def outputs(scales):
        model = eqx.combine(scales, others)
        return model.tail(z_head, jnp.zeros(2)), jnp.log(model.tail_scale(z_head))

    location, log_scale = jax.jacobian(outputs)(scales)
    assert all(not leaf.any() for leaf in jax.tree.leaves(location))
    slopes = [np.abs(leaf).reshape(2, -1).sum(1) for leaf in jax.tree.leaves(log_scale)]
    assert slopes
    assert (np.sum(slopes, 0) > 0.99).all()


@pytest.mark.parametrize("kind", ["linear", "mlp", "residual"])
def test_nothing_to_scale(kind):
    assert not any(jax.tree.leaves(built(kind, Shape(4, 2, (3,))).scale_parameters()))


@pytest.mark.parametrize("kind", some_slow(KINDS, fast=("residual", "affine", "spline")))
def test_single_precision_stays_single(kind):
    spec = KINDS[kind](Shape(3, 1, (4,)))
    with jax.enable_x64(False):
        generator = spec.build(3, key=jax.random.key(0), dtype=jnp.float32)
        outputs = eqx.filter_eval_shape(generator.transform_and_log_det, jnp.zeros(3))
    floats = jax.tree.leaves(eqx.filter(generator, eqx.is_inexact_array)) + jax.tree.leaves(outputs)
    assert {leaf.dtype for leaf in floats} == {np.dtype("float32")}


@pytest.mark.parametrize("spec", [generators.Residual, generators.Triangular])
def test_latent_must_fit_the_target(spec, getkey):
    for latent in (0, -1):
        with pytest.raises(InputError, match=rf"latent is {latent}; it must be a whole number ≥ 1"):
            spec(latent=latent)
    too_many = spec(latent=4, hidden=(2,))
    with pytest.raises(InputError, match=r"latent is 4.*between 1 and .* 3"):
        too_many.build(3, key=getkey(), dtype=jnp.float64)
    target = gpvi.Target(lambda x: NotImplemented, dim=3)
    with pytest.raises(InputError, match=r"latent is 4.*between 1 and .* 3"):
        gpvi.fit(target, gpvi.GPVI(generator=too_many), key=getkey())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: generators.Residual(hidden=(3, 0)), r"hidden is \(3, 0\).*widths ≥ 1"),
        (lambda: generators.MLP(hidden=3), "hidden is 3.*a tuple"),  # pyright: ignore
        (lambda: generators.MLP(activation="tan"), "'tan'.*Did you mean 'tanh'"),
        (lambda: generators.Residual(scale=0.0), r"scale \(λ\) is 0.0.*> 0"),
        (lambda: generators.Residual(scale=float("nan")), r"scale \(λ\) is nan.*> 0"),
        (lambda: generators.Triangular(scale=-1.0), "-1.0.*> 0"),
        (lambda: generators.Triangular(head="splin"), "'splin'.*Did you mean 'spline'"),
        (lambda: generators.Triangular(scale_form="fixed"), "scale_form 'fixed'.*conditional"),
        (lambda: generators.Diagonal(0.0), "scale .* is 0.0.*> 0"),
        (lambda: generators.FullRank(-1.0), "scale .* is -1.0.*> 0"),
        (lambda: generators.Planar(0), "depth is 0.*≥ 1"),
        (lambda: generators.Autoregressive(width=0), "width of the flow is 0.*≥ 1"),
        (lambda: SplineFlow(layers=0), "layers of the spline flow is 0"),
        (lambda: SplineFlow(interval=-5.0), "interval of the spline flow is -5.0"),
        (lambda: generators.Residual(latnt=2), "latnt.*Did you mean 'latent'"),  # pyright: ignore
    ],
)
def test_bad_options_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_an_unknown_option_is_also_a_type_error():
    with pytest.raises(TypeError) as caught:
        generators.Triangular(depth=3)  # pyright: ignore
    assert isinstance(caught.value, UnknownOptionError)


@pytest.mark.parametrize(
    ("head", "dim", "k"),
    [
        ("spline", 64, 64),
        ("spline", 128, 128),
        ("spline", 129, 64),
        ("affine", 64, 64),
        ("affine", 100, 64),
    ],
)
def test_how_many_coordinates_the_head_has(head, dim, k):
    """All, as long as a spline can have them; an affine head alone would be a Gaussian."""
    chosen = generators.Triangular(head=head)
    assert chosen.head_size(dim) == k
    assert f"a head of {k} coordinates" in chosen.choices(dim)
    assert generators.Triangular(latent=3, head=head).head_size(dim) == 3
