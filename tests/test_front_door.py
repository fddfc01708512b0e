"""What a user sees of the package: its public names."""

import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest

import gpvi
from gpvi.errors import InputError
from gpvi.specs import SEEDS, as_key


def test_all_and_dir_show_the_public_names():
    assert set(gpvi.__all__) == set(dir(gpvi)) - {"__doc__", "__version__"}
    assert len(gpvi.__all__) == len(set(gpvi.__all__))
    for name in gpvi.__all__:
        value = getattr(gpvi, name)
        assert not name.startswith("_")
        assert not isinstance(value, ModuleType) or value.__name__.startswith("gpvi.")
    assert {"fit", "load", "Target", "NUTS", "bnn"} <= set(gpvi.__all__)
    assert not {"training", "persistence", "cli", "annotations"} & set(dir(gpvi))


@pytest.mark.parametrize("seed", [0, 7, SEEDS - 1, np.int64(7), np.uint32(3)])
def test_a_seed_is_its_key(seed):
    import jax

    assert (as_key(seed) == jax.random.key(int(seed))).all()
    key = jax.random.key(int(seed))
    assert as_key(key) is key


@pytest.mark.parametrize("wrong", [-1, SEEDS, 0.0, "0", None, True, np.zeros(2, np.uint32), [0]])
def test_anything_else_is_no_key(wrong):
    with pytest.raises(InputError, match=r"key is .*seed"):
        as_key(wrong)


def test_estimators_without_scikit_learn_name_the_remedy():
    code = """
import sys
sys.modules["sklearn"] = None
import gpvi
assert hasattr(gpvi.bnn, "fit")
try:
    from gpvi.bnn import BayesianMLPRegressor
except gpvi.errors.NotAvailableError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "BayesianMLPRegressor needs sklearn" in done.stdout, done.stderr
    assert "pip install 'gpvi[sklearn]'" in done.stdout
