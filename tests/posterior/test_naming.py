"""Names of draws without the target: what a file keeps, and what needs the model."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import gpvi
from gpvi import Target
from gpvi.errors import NotAvailableError, StorageError
from gpvi.persistence import format as storage
from gpvi.posterior import naming
from gpvi.specs import spec
from gpvi.supports import Positive, Simplex, Support, Supports
from known_posteriors import gaussian, target


def log_density(x):
    return -0.5 * jnp.sum(x**2)


def of_unknowns(p):
    return -0.5 * p["sd"] ** 2


def targets():
    unknowns = {"sd": "positive", "mix": Simplex(3)}
    return {
        "vector": Target(log_density, dim=2, dtype="float64"),
        "names": Target(log_density, dim=2, dtype="float64", names=("a", "b")),
        "supports": Target.from_supports(of_unknowns, unknowns, dtype="float64"),
    }


def saved(of, tmp_path):
    one = gaussian(of, mean=0.1, variance=0.5)
    one.save(tmp_path / "saved")
    return one, gpvi.load(tmp_path / "saved")


@pytest.mark.parametrize("name", targets())
def test_a_loaded_posterior_names_draws_as_before(name, tmp_path):
    before, loaded = saved(targets()[name], tmp_path)
    assert loaded.target is None
    first, second = before.draws(7, key=1), loaded.draws(7, key=1)
    assert first.keys() == second.keys()
    for each in first:
        np.testing.assert_array_equal(first[each], second[each])
    assert str(loaded.summary()) == str(before.summary())
    np.testing.assert_array_equal(loaded.sample(7, key=1), before.sample(7, key=1))
    again = loaded.with_target(targets()[name]).draws(7, key=1)
    assert again.keys() == first.keys()
    with pytest.raises(NotAvailableError, match="diagnose needs the target"):
        loaded.diagnose()
    loaded.save(tmp_path / "again")
    assert gpvi.load(tmp_path / "again").naming == loaded.naming


def test_draws_of_supports_lie_in_them(tmp_path):
    _, loaded = saved(targets()["supports"], tmp_path)
    draws = loaded.draws(500, key=0)
    assert draws["sd"].shape == (500,)
    assert (np.asarray(draws["sd"]) > 0).all()
    assert draws["mix"].shape == (500, 3)
    np.testing.assert_allclose(np.asarray(draws["mix"]).sum(1), 1)
    assert loaded.summary().names == ("sd", "mix[0]", "mix[1]", "mix[2]")


def test_a_model_is_code_and_needs_the_target(tmp_path):
    _, loaded = saved(target(), tmp_path)
    assert loaded.naming == naming.MODEL
    for ask in (lambda: loaded.draws(3, key=0), loaded.summary):
        with pytest.raises(NotAvailableError, match="needs the target"):
            ask()


def test_supports_of_an_own_class_that_files_cannot_hold_need_the_target(tmp_path):
    class Shifted(Support):
        shape = ()
        words = "any"

        def transform(self, x):
            return x + 1

        def log_det(self, x):
            return jnp.zeros(())

        def inverse(self, value):
            return value - 1

    of = Target.from_supports(lambda p: -(p["a"] ** 2), {"a": Shifted()}, dtype="float64")
    before, loaded = saved(of, tmp_path)
    assert set(before.draws(2, key=0)) == {"a"}
    assert loaded.naming == naming.MODEL


def test_files_of_earlier_versions(tmp_path):
    """They do not say how draws are named: `x[0], x[1], …` is a vector, and all else asks for the target."""
    for name, how in (("vector", naming.VECTOR), ("names", naming.MODEL)):
        saved(targets()[name], tmp_path)
        document, arrays = storage.read(tmp_path / "saved")
        del document["naming"]
        storage.write(tmp_path / "saved", document, arrays)
        assert gpvi.load(tmp_path / "saved").naming == how


@pytest.mark.parametrize(
    "wrong",
    [
        "other",
        3,
        None,
        ["vector"],
        {"type": "Supports", "unknowns": ["a"], "supports": []},
        {"type": "Supports", "unknowns": ["a"], "supports": [{"type": "Positive", "shape": 3}]},
        {"type": "Supports", "unknowns": [1], "supports": [{"type": "Positive", "shape": 2}]},
        {"type": "Supports", "unknowns": ["a"], "supports": [{"type": "Student"}]},
        {"type": "Positive", "shape": 2},
    ],
    ids=json.dumps,
)
def test_a_naming_that_does_not_fit_is_refused(wrong, tmp_path):
    saved(targets()["vector"], tmp_path)
    document, arrays = storage.read(tmp_path / "saved")
    storage.write(tmp_path / "saved", document | {"naming": wrong}, arrays)
    with pytest.raises(StorageError, match=r"naming does not fit|does not know"):
        gpvi.load(tmp_path / "saved")


def test_an_own_support_with_a_name_is_saved(tmp_path):
    @spec
    class Doubled(Positive):
        def transform(self, x):
            return 2 * jnp.exp(x)

        def log_det(self, x):
            return x.sum() + x.size * jnp.log(2.0)

    of = Target.from_supports(lambda p: -(p["a"] ** 2), {"a": Doubled()}, dtype="float64")
    before, loaded = saved(of, tmp_path)
    assert loaded.naming == Supports.of({"a": Doubled()})
    np.testing.assert_array_equal(loaded.draws(5, key=0)["a"], before.draws(5, key=0)["a"])
