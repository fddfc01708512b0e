"""`gpvi fit` trains on what a file defines, and says in one line what is wrong with it."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import gpvi
from gpvi.cli import load_app
from gpvi.cli.application import wrapped
from gpvi.errors import StorageError

pytestmark = pytest.mark.usefixtures("unexplored")

GAUSSIAN = """
import jax.numpy as jnp

SPREAD = jnp.array([1.0, 2.0])


def log_density(x):
    return -0.5 * (((x - 3) / SPREAD) ** 2).sum()


def two(x, y):
    return x.sum() + y


def late(x):
    return undefined * x.sum()


def ignoring(x):
    return -0.5 * x[0] ** 2


def thin(x):
    return -0.5 * ((x[0] - x[1]) / 0.01) ** 2 - 0.5 * (x[0] + x[1]) ** 2


def walled(x):
    return jnp.where(abs(x[0]) < 4.0, -0.5 * (x**2).sum(), -jnp.inf)
"""
MODEL = """
import numpyro
import numpyro.distributions as dist


def model():
    rate = numpyro.sample("rate", dist.Exponential(1.0))
    numpyro.sample("file", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Poisson(rate), obs=4)
"""


def call(*words):
    return CliRunner().invoke(load_app(), ["fit", *map(str, words)])


def arrays(out) -> dict[str, np.ndarray]:
    with np.load(out / "draws.npz", allow_pickle=False) as found:
        return dict(found)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "posterior of mine.py"
    path.write_text(GAUSSIAN)
    return path


def test_a_log_density(file, tmp_path):
    out = tmp_path / "out"
    words = (f"{file}:log_density", "--dim", 2, "--method", "svgd", "--steps", 30)
    result = call(*words, "--out", out, "--draws", 50)
    assert result.exit_code == 0, result.output
    assert "SVGD; 30 steps" in result.stdout
    assert "Stein" in result.stdout
    assert [Path(line).name for line in result.stdout.splitlines()[-3:]] == [
        "posterior.gpvi",
        "draws.npz",
        "draws.csv",
    ]
    draws = arrays(out)["x"]
    assert draws.shape == (50, 2)
    lines = (out / "draws.csv").read_text().splitlines()
    assert (lines[0], len(lines)) == ("x[0],x[1]", 51)
    np.testing.assert_allclose(np.array(lines[1].split(","), float), draws[0], rtol=1e-6)
    assert gpvi.load(out / "posterior.gpvi").dim == 2
    result = call(*words, "--out", tmp_path / "other", "--json")
    assert result.exit_code == 0, result.output
    again = json.loads(result.stdout)
    assert set(again) == {
        "verdict",
        "because",
        "diagnosis",
        "summary",
        "steps",
        "seconds",
        "notes",
        "files",
    }
    assert set(again["summary"]) == {"x[0]", "x[1]"}
    assert again["steps"] == 30
    assert arrays(tmp_path / "other")["x"].shape == (100, 2), "all particles by default"


def test_a_numpyro_model_needs_no_dimension(tmp_path):
    pytest.importorskip("numpyro")
    (tmp_path / "model.py").write_text(MODEL)
    words = (f"{tmp_path / 'model.py'}:model", "--method", "svgd", "--steps", 20)
    result = call(*words, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    draws = arrays(tmp_path / "out")
    rate = draws["rate"]
    assert rate.shape == draws["file"].shape == (100,)
    names = {"posterior.gpvi", "draws.npz", "draws.csv"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    assert (rate > 0).all(), "in its support"


NEEDY = """
import functools
import numpy as np
import numpyro
import numpyro as npr
import numpyro.distributions as dist
from numpyro import sample

SPREAD = np.ones(2)


def plain(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(mu, 1), obs=y)


def renamed(y):
    npr.sample("mu", dist.Normal(0, 1))


def imported(y):
    sample("mu", dist.Normal(0, 1))


def inside(y):
    import numpyro

    numpyro.sample("mu", dist.Normal(0, 1))


def two(x, y):
    n, d = x.shape
    numpyro.sample("mu", dist.Normal(0, 1).expand([d]))


part = functools.partial(two, y=1.0)


def log_density(x):
    return numpyro.distributions.Normal(0, SPREAD).log_prob(x).sum()
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:PyTensor could not link:UserWarning")
def test_a_pymc_model(tmp_path):
    pytest.importorskip("pymc")
    (tmp_path / "model.py").write_text(
        "import pymc as pm\n\n"
        "with pm.Model() as schools:\n"
        "    scale = pm.HalfNormal('scale', 1)\n"
        "    pm.Normal('y', 0, scale, observed=[0.5, -1.0])\n"
    )
    place, out = tmp_path / "model.py", tmp_path / "out"
    result = call(f"{place}:schools", "--method", "svgd", "--steps", 5, "--out", out)
    assert result.exit_code == 0, result.output
    assert "scale" in result.stdout
    assert (np.load(out / "draws.npz")["scale"] > 0).all()
    result = call(f"{place}:school", "--out", out)
    assert "Did you mean 'schools'?" in result.stderr


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("plain", "y"),
        ("renamed", "y"),
        ("imported", "y"),
        ("inside", "y"),
        ("two", "x, y"),
        ("part", "x"),
    ],
)
@pytest.mark.parametrize("options", [(), ("--dim", 2)], ids=["", "dim"])
def test_a_numpyro_model_with_open_arguments(tmp_path, name, needs, options):
    pytest.importorskip("numpyro")
    (tmp_path / "model.py").write_text(NEEDY)
    result = call(f"{tmp_path / 'model.py'}:{name}", *options, "--out", tmp_path / "out")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"looks like a NumPyro model that needs {needs}. Bind" in result.stderr
    assert f"functools.partial({name}, {needs.split(', ')[0]}=…" in result.stderr


@pytest.mark.slow
def test_a_log_density_may_use_numpyros_distributions(tmp_path):
    pytest.importorskip("numpyro")
    (tmp_path / "model.py").write_text(NEEDY)
    words = (tmp_path / "model.py", "--dim", 2, "--method", "svgd", "--steps", 5)
    result = call(*words, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("ignoring", ("--dim", 2), "the gradient is zero everywhere in x[1]: log p ignores it"),
        ("log_density", (), "--dim is missing: the length of the vector"),
        ("log_density", ("--dim", 3), "line 8: the log-density fails on a vector of shape (3,)"),
        ("log_density", ("--dim", 0), "it must be a whole number"),
        ("log_densty", ("--dim", 2), "Did you mean 'log_density'?"),
        ("SPREAD", ("--dim", 2), "it must be a function of one point"),
        ("two", ("--dim", 2), "needs 2 arguments"),
        ("late", ("--dim", 2), "shape (2,): NameError: name 'undefined' is not defined"),
        ("late", ("--dim", 2), "line 16: the log-density fails"),
        ("log_density", ("--dim", 2, "--method", "svdg"), "Did you mean 'svgd'?"),
        ("log_density", ("--dim", 2, "--draws", 0), "give 1 or more"),
        ("log_density", ("--dim", 2, "--draws", 101, "--method", "svgd"), "SVGD ends with 100"),
        ("log_density", ("--dim", 2, "--draws", 11, "--method", "deep-ensemble"), "ends with 10"),
        ("log_density", ("--dim", 2, "--draws", 4_001, "--method", "nuts"), "NUTS ends with 4,000"),
        ("log_density", ("--dim", 2, "--seed", 2**32), "--seed is 4294967296; give a whole"),
        ("log_density", ("--dim", 2, "--seed", 10**20), "from 0 to 4,294,967,295"),
        ("log_density", ("--dim", 2, "--seed", -1), "--seed is -1; give a whole number"),
        ("log_density", ("--dim", 10**20), "it may be 2,147,483,647 at most"),
        ("log_density", ("--dim", 2, "--steps", 0), "steps is 0"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(file, tmp_path, name, options, said):
    result = call(f"{file}:{name}", *options, "--out", tmp_path / "out")
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    assert said in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "does not exist"),
        ("def log_density(x:\n    return 1\n", "line 1: "),
        ("import jax\n\nraise KeyError('lost')\n", "line 3: KeyError: 'lost'"),
        ("import no_such_module\n", "line 1: ModuleNotFoundError"),
        ("x = 1\n", "unknown name in"),
        ("def log_density(x):\n    return x\n", "it must return a scalar"),
        (
            "def log_density(x):\n    return -x[0] if x[0] > 0 else x[0]\n",
            "line 2: the function needs the value",
        ),
        (
            "import numpy as np\ndef log_density(x):\n    return -np.sum(np.asarray(x))\n",
            "arrays instead of pandas columns (.values)",
        ),
        ("import math\ndef log_density(x):\n    return math.log(x[0])\n", "jax.numpy instead of"),
        (
            "import jax.numpy as jnp\ndef log_density(x):\n    return jnp.log(x[0])\n",
            "dim=2, initial=…)`",
        ),
        (
            "import sys\ndef log_density(x): return -x@x\nsys.exit(0)\n",
            "line 3: the program is ended",
        ),
        ("def log_density(x):\n    raise SystemExit(0)\n", "line 2: the program is ended here"),
        ("def log_density(x, *, y):\n    return y * x.sum()\n", "needs 2 arguments"),
    ],
)
def test_what_is_wrong_with_the_file(tmp_path, content, said):
    path = tmp_path / "mine.py"
    if content is not None:
        path.write_text(content)
    result = call(path, "--dim", 2, "--out", tmp_path / "out")
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    assert said in result.stderr
    assert "mine.py" in result.stderr or content == "def log_density(x):\n    return x\n"


@pytest.mark.parametrize(
    ("inside", "said"),
    [
        ("posterior.gpvi/.DS_Store", "contains '.DS_Store', which is not part of a save"),
        ("draws.npz/mine", "draws.npz is a directory"),
        ("draws.csv/mine", "draws.csv is a directory"),
    ],
)
def test_what_is_in_the_way_is_refused_before_training(file, tmp_path, monkeypatch, inside, said):
    monkeypatch.setattr(importlib.import_module("gpvi.training.fit"), "compile_chunk", None)
    place = tmp_path / "out" / inside
    place.parent.mkdir(parents=True)
    place.touch()
    result = call(file, "--dim", 2, "--method", "mean-field-vi", "--out", tmp_path / "out")
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    assert said in result.stderr


def test_the_diagnosis_is_printed_where_the_draws_cannot_be_written(file, tmp_path, monkeypatch):
    def full(*_):
        raise StorageError("the draws cannot be written: No space left on device.")

    monkeypatch.setattr("gpvi.cli.fit._write", full)
    words = ("--dim", 2, "--method", "svgd", "--steps", 5, "--out", tmp_path / "out")
    result = call(file, *words)
    assert result.exit_code == 2
    assert "SVGD; 5 steps" in result.stdout
    assert "Stein" in result.stdout
    assert "No space left" in result.stderr
    assert gpvi.load(tmp_path / "out" / "posterior.gpvi").dim == 2


def test_an_error_of_another_kind_does_not_blame_the_dimension(file, tmp_path):
    result = call(f"{file}:late", "--dim", 2, "--out", tmp_path / "out")
    assert "Check dim" not in result.stderr
    assert "Correct the function" in result.stderr


@pytest.mark.slow
def test_do_not_trust_has_an_exit_code_of_its_own(file, tmp_path):
    """A factorised q cannot lie along a thin diagonal; what there is is written all the same."""
    words = (
        f"{file}:thin",
        "--dim",
        2,
        "--method",
        "mfvi",
        "--steps",
        50,
        "--out",
        tmp_path / "out",
    )
    result = call(*words)
    assert "Do not trust: " in result.stdout
    assert result.exit_code == 3
    assert gpvi.load(tmp_path / "out" / "posterior.gpvi").dim == 2
    again = call(*words, "--json")
    assert again.exit_code == 3
    assert json.loads(again.stdout)["verdict"] == "do not trust"


def test_what_the_checks_find_beside_errors_is_said_before_training(file, tmp_path):
    words = (f"{file}:walled", "--dim", 2, "--method", "svgd", "--steps", 3)
    result = call(*words, "--out", tmp_path / "out")
    assert result.exit_code in (0, 3)
    assert "gpvi: " in result.stderr
    assert "not finite" in result.stderr


@pytest.mark.parametrize("width", [40, 80, 120])
def test_lines_are_broken_between_words(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    sentence = "Do not trust: " + "importance weights are not reliable here " * 6
    table = f"{'k̂':<12}  {'0.51':<8}  " + "importance weights are usable " * 5
    lines = wrapped(f"{sentence}\n{table}").splitlines()
    assert all(len(line) <= width for line in lines)
    assert " ".join(" ".join(lines).split()) == " ".join(f"{sentence} {table}".split())
    if width >= 80:
        assert lines[-1].startswith(" " * 24), "below its own column"


def test_a_directory_is_no_file(tmp_path):
    result = call(tmp_path, "--dim", 2)
    assert result.exit_code == 2
    assert "is a directory" in result.stderr
