"""Every solver of Jᵀy = v against dense LU, its transpose, and the mean over pairs that Thm 3.1 needs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import assume, given, settings

from cases import CONDITIONINGS, FLOWS, KINDS, Shape, built, example, perturbed, seeds
from gpvi.errors import InputError
from gpvi.generators import Head
from gpvi.generators.gaussian import LinearMap
from gpvi.kernels import RBF, Gram
from gpvi.solvers import ExactSolver, as_solver, base
from gpvi.solvers.base import largest_ratio, transposed_product
from gpvi.solvers.block import Block
from gpvi.solvers.dense import Dense
from gpvi.solvers.helper import Helper, HelperNetwork
from gpvi.solvers.iterative import Iterative
from selection import some_slow

pytestmark = pytest.mark.usefixtures("x64")

DIRECT = {"block": Block(), "dense": Dense()}
KRYLOV = {
    "bicgstab": Iterative("bicgstab", tolerance=1e-13, max_steps=200),
    "gmres": Iterative("gmres", tolerance=1e-13, max_steps=200),
}


@eqx.filter_jit
def solved(generator, z, v, solvers):
    """The dense Jacobian, and what each solver answers."""
    answers = {name: solver.solve(generator, z, v) for name, solver in solvers.items()}
    return jax.jacobian(generator)(z), answers


def check_solvers(generator, rng, solvers):
    """Each answer must solve Jᵀy = v as LU does, to 1e-9; J's condition number comes back."""
    z = jnp.asarray(rng.standard_normal(generator.dim))
    v = rng.standard_normal((3, generator.dim))
    J, answers = solved(generator, z, jnp.asarray(v), solvers)
    condition = np.linalg.cond(J)
    if condition < 1e4:
        expected = np.linalg.solve(np.asarray(J).T, v.T).T
        for name, answer in answers.items():
            np.testing.assert_allclose(answer, expected, rtol=1e-9, atol=1e-9, err_msg=name)
    return condition


def against_lu(kind, shape, how, solvers):
    @settings(max_examples=10)
    @given(seeds)
    def check(seed):
        rng = np.random.default_rng(seed)
        assume(check_solvers(example(kind, shape, how, rng), rng, solvers) < 1e4)

    check()


SOLVED = [kind for kind in KINDS if kind not in FLOWS or kind == "spline"]
"""To a solver all flows are the same: a dense head."""


@pytest.mark.parametrize("how", CONDITIONINGS)
@pytest.mark.parametrize("kind", SOLVED)
def test_direct_solvers_against_lu(kind, how):
    against_lu(kind, Shape(3, 1, (4,)) if kind in FLOWS else Shape(4, 2, (4,)), how, DIRECT)


@pytest.mark.parametrize("kind", some_slow(SOLVED, fast={*SOLVED} - {"spline"}))
def test_krylov_solvers_against_lu(kind):
    """They see f as a black box, so its coordinates do not matter."""
    against_lu(kind, Shape(3, 1, (4,)), "diagonal", KRYLOV)


@pytest.mark.parametrize("kind", ["residual-learned", "affine-conditional"])
@pytest.mark.parametrize("how", ["bare", "dense"])
def test_the_head_alone_has_jacobian_a(kind, how):
    rng = np.random.default_rng(0)
    generator = example(kind, Shape(4, 2, (4,)), how, rng)
    z = jnp.asarray(rng.standard_normal(4))
    assert check_solvers(Head(generator), rng, DIRECT) < 1e4
    of_head, whole = eqx.filter_jit(
        lambda g: (jax.jacobian(Head(g))(z[:2]), jax.jacobian(g)(z)[:2, :2])
    )(generator)
    np.testing.assert_allclose(of_head, whole, rtol=1e-12)


class Untransposed(ExactSolver):
    """J^{-1}v, as the paper's running text has it."""

    def solve(self, generator, z, v):
        return jnp.linalg.solve(jax.jacobian(generator)(z), v.T).T


@pytest.mark.parametrize("kind", ["linear", "residual-learned", "affine-conditional"])
def test_the_transpose_is_guarded(kind):
    rng = np.random.default_rng(0)
    generator = example(kind, Shape(4, 2, (4,)), "bare", rng)
    with pytest.raises(AssertionError, match="without the transpose"):
        check_solvers(generator, rng, {"without the transpose": Untransposed()})


@pytest.mark.parametrize("number", [3, 4, 9])
def test_transposed_product(number):
    rng = np.random.default_rng(0)
    generator = example("residual", Shape(4, 2, (4,)), "dense", rng)
    z, y = jnp.asarray(rng.standard_normal(4)), jnp.asarray(rng.standard_normal((number, 4)))
    found, expected = eqx.filter_jit(
        lambda g: (transposed_product(g, z, y), y @ jax.jacobian(g)(z))
    )(generator)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_the_helper_is_one_network_of_both_inputs():
    """What it computes once for each z′ is what a plain network of (z′, v) would compute for every pair."""
    rng = np.random.default_rng(0)
    network = HelperNetwork(3, 8, key=jax.random.key(0), dtype=jnp.float64)
    z, v = jnp.asarray(rng.standard_normal(3)), jnp.asarray(rng.standard_normal((5, 3)))

    def plain(row):
        branches = network.noise_branch(z), network.vector_branch(row)
        return network.body(jax.nn.relu(jnp.concatenate(branches)))

    np.testing.assert_allclose(network(z, v), jax.vmap(plain)(v), rtol=1e-12)


def mean_by_pairs(generator, z_prime, z, h):
    """(1/n) Σ_j J(z′_j)^{-T} ∇_{z′_j} k(z′_j, z_i), pair by pair."""
    J = np.asarray(eqx.filter_jit(lambda g: jax.vmap(jax.jacobian(g))(z_prime))(generator))
    mean = np.zeros(z.shape)
    for i, target in enumerate(np.asarray(z)):
        for j, point in enumerate(np.asarray(z_prime)):
            difference = point - target
            gradient = -2 / h * np.exp(-difference @ difference / h) * difference
            mean[i] += np.linalg.solve(J[j].T, gradient) / len(z_prime)
    return mean


PAIRED = {
    "constant: linear": lambda rng: example("linear", Shape(3, 3, ()), "dense", rng),
    "constant: mlp": lambda rng: example("mlp", Shape(3, 3, ()), "bare", rng),
    "constant: affine head": lambda rng: Head(example("affine", Shape(5, 3, (4,)), "dense", rng)),
    "constant head, moving tail": lambda rng: example("affine", Shape(3, 2, (4,)), "bare", rng),
    "moving": lambda rng: example("residual-learned", Shape(3, 2, (4,)), "dense", rng),
    "Eq. 6": lambda rng: example("residual-learned", Shape(3, 1, (4,)), "bare", rng),
    "moving head alone": lambda rng: Head(example("residual", Shape(5, 3, (4,)), "dense", rng)),
}


@pytest.mark.parametrize("case", PAIRED)
def test_mean_product_is_the_mean_over_pairs(case):
    rng = np.random.default_rng(1)
    generator = PAIRED[case](rng)
    z_prime, z = jnp.asarray(rng.standard_normal((5, 3))), jnp.asarray(rng.standard_normal((4, 3)))

    solvers = DIRECT | KRYLOV if case == "moving" else DIRECT

    @eqx.filter_jit
    def products(generator, gram):
        return {
            name: solver.mean_product(None, generator, gram) for name, solver in solvers.items()
        }

    expected = mean_by_pairs(generator, z_prime, z, h=1.3)
    for name, (product, state) in products(generator, RBF(1.3)(z_prime, z)).items():
        np.testing.assert_allclose(product.value, expected, rtol=1e-9, atol=1e-9, err_msg=name)
        assert state is None
        assert product.residual < 1e-20


@pytest.mark.parametrize("case", some_slow(("moving", "moving head alone"), fast=("moving",)))
def test_pairs_that_are_too_many_to_hold_are_summed_one_by_one(case, monkeypatch):
    rng = np.random.default_rng(1)
    generator = PAIRED[case](rng)
    gram = RBF(1.3)(*jnp.asarray(rng.standard_normal((2, 5, 3))))

    def products():
        solvers = (DIRECT | KRYLOV).values()
        found = jax.jit(lambda g: [each.mean_product(None, generator, g)[0] for each in solvers])
        return found(gram)

    held = products()
    monkeypatch.setattr(base, "PAIRED", 5 * 5 * 3 - 1)
    monkeypatch.setattr(Gram, "gradients", None)
    for one_by_one, all_at_once in zip(products(), held, strict=True):
        np.testing.assert_allclose(one_by_one.value, all_at_once.value, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(one_by_one.stretch, all_at_once.stretch, rtol=1e-12)


def test_the_helper_learns_the_same_from_pairs_that_are_too_many_to_hold(monkeypatch, getkey):
    generator = PAIRED["moving"](np.random.default_rng(1))
    gram = RBF(1.3)(*jnp.asarray(np.random.default_rng(2).standard_normal((2, 5, 3))))
    state = Helper(width=4).init(generator, key=getkey())
    held = eqx.filter_jit(lambda: Helper(width=4).mean_product(state, generator, gram))()
    monkeypatch.setattr(base, "PAIRED", 5 * 5 * 3 - 1)
    monkeypatch.setattr(Gram, "gradients", None)
    one_by_one = eqx.filter_jit(lambda: Helper(width=4).mean_product(state, generator, gram))()
    arrays = (jax.tree.leaves(eqx.filter(each, eqx.is_array)) for each in (one_by_one, held))
    for found, expected in zip(*arrays, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.slow
def test_the_residual_is_that_of_all_systems():
    """One iteration is not enough anywhere, and worse at some z′ than at the first."""
    generator = PAIRED["moving"](np.random.default_rng(1))
    gram = RBF(1.3)(*jnp.asarray(np.random.default_rng(2).standard_normal((2, 5, 3))))
    solver = Iterative("bicgstab", max_steps=1)
    found = eqx.filter_jit(lambda: solver.mean_product(None, generator, gram)[0].residual)()
    v = gram.gradients()
    errors = [
        transposed_product(generator, z, solver.solve(generator, z, rows)) - rows
        for z, rows in zip(gram.x, v, strict=True)
    ]
    each = np.asarray([(error**2).sum() for error in errors])
    np.testing.assert_allclose(found, each.sum() / (v**2).sum(), rtol=1e-9)
    assert each[1:].max() > each[0] > 0


@pytest.mark.parametrize("solver", some_slow(("bicgstab", "gmres", "helper"), fast=("gmres",)))
def test_a_kernel_that_reaches_nobody_is_no_failure(solver, getkey):
    generator = built("linear", Shape(2, 2, ()))
    z = jnp.asarray([[0.0, 0.0], [1e3, 0.0]])
    chosen = as_solver(solver)
    state = chosen.init(generator, key=getkey())
    product, _ = chosen.mean_product(state, generator, RBF(1e-3)(z, z))
    assert product.residual == 0
    assert np.isfinite(product.value).all()


@pytest.mark.parametrize("solver", ["bicgstab", "gmres"])
def test_krylov_solvers_are_exact_at_the_start_of_training(solver):
    """J = I is solved in half a step, and v = 0 in none; neither may divide zero by zero."""
    identity = built("linear", Shape(3, 3, ()))
    v = jnp.asarray([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0]])
    answer = eqx.filter_jit(KRYLOV[solver].solve)(identity, jnp.zeros(3), v)
    np.testing.assert_allclose(answer, v, atol=1e-12)


def test_breakdown_shows_in_the_residual():
    """BiCGStab cannot start where v·Jᵀv = 0, as for a quarter turn; GMRES can."""
    turn = LinearMap(jnp.asarray([[0.0, -1.0], [1.0, 0.0]]), jnp.zeros(2))
    gram = RBF(1.3)(*jnp.asarray(np.random.default_rng(0).standard_normal((2, 5, 2))))

    @jax.jit
    def residuals():
        return [KRYLOV[s].mean_product(None, turn, gram)[0].residual for s in KRYLOV]

    stuck, solved = residuals()
    assert stuck == pytest.approx(1)
    assert solved < 1e-20


def helper_problem(getkey):
    """A fixed linear generator, and kernel gradients between fixed batches."""
    generator = perturbed(built("linear", Shape(2, 2, ())), np.random.default_rng(2))
    gram = RBF(2.0)(jax.random.normal(getkey(), (8, 2)), jax.random.normal(getkey(), (8, 2)))
    return generator, gram


def test_one_helper_step_is_adam_on_equation_10(getkey):
    generator, gram = helper_problem(getkey)
    solver, adam = Helper(width=6, learning_rate=0.01), optax.adam(0.01)
    J = generator.weight

    def by_hand(state):
        params, static = eqx.partition(state.network, eqx.is_inexact_array)
        v = gram.gradients()

        def equation_10(params):
            h = jax.vmap(eqx.combine(params, static))(gram.x, v)
            errors = jnp.einsum("ba,nmb->nma", J, h) - v
            return (errors**2).sum() / (8 * 8), h

        (loss, h), gradient = jax.value_and_grad(equation_10, has_aux=True)(params)
        params = eqx.apply_updates(params, adam.update(gradient, adam.init(params))[0])
        return h.mean(0), loss / (v**2).sum(-1).mean(), params

    @eqx.filter_jit
    def both(state):
        product, new = solver.mean_product(state, generator, gram)
        found = product.value, product.residual, eqx.filter(new.network, eqx.is_inexact_array)
        return found, by_hand(state)

    found, expected = map(jax.tree.leaves, both(solver.init(generator, key=getkey())))
    assert len(found) == len(expected) == 2 + 2 * 6
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_helper_learns_the_inverse_product(getkey):
    """2,000 Adam steps at 1e-3 on one batch: 5 % of the exact answer, a residual 1,000 times smaller."""
    generator, gram = helper_problem(getkey)
    solver = Helper(width=32, learning_rate=1e-3)
    arrays, static = eqx.partition(solver.init(generator, key=getkey()), eqx.is_array)

    def step(arrays, _):
        product, state = solver.mean_product(eqx.combine(arrays, static), generator, gram)
        return eqx.filter(state, eqx.is_array), product

    _, history = jax.jit(lambda arrays: jax.lax.scan(step, arrays, length=2_000))(arrays)
    exact = Block().mean_product(None, generator, gram)[0].value
    errors = np.linalg.norm(history.value - exact, axis=(1, 2)) / np.linalg.norm(exact)
    assert errors[0] > 0.5
    assert errors[-50:].mean() < 0.05
    assert history.residual[-50:].mean() < 1e-3 * history.residual[0]


def test_far_apart_the_helper_answers_something_that_counts_for_nothing():
    """h(z′, v) of a network with biases is not small where v is, and |h/v|² would overflow in single precision."""
    v = jnp.array([[1.0, 1.0], [1e-21, 0.0], [0.0, 0.0]], jnp.float32)
    assert largest_ratio(jnp.full((3, 2), 3.0, jnp.float32), v) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: as_solver("blok"), "'blok'.*Did you mean 'block'"),
        (lambda: Iterative("cg"), "iterative algorithm 'cg'.*bicgstab, gmres"),  # pyright: ignore
        (lambda: Iterative(tolerance=0.0), "tolerance is 0.0"),
        (lambda: Helper(width=0), "width of the helper is 0"),
        (lambda: Helper(learning_rate=-1.0), "learning_rate of the helper is -1.0"),
    ],
)
def test_bad_options_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_shorthands():
    assert as_solver("gmres") == Iterative("gmres")
    assert as_solver(Dense()) == Dense()
    assert as_solver("helper") == Helper()
