"""The bench: its timer, counts and fits against values known beforehand. Timings themselves are never tested."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpvi import cache
from gpvi.cli import load_app
from gpvi.errors import StorageError, UnknownOptionError
from gpvi_paper import records
from gpvi_paper.bench import CASES, Report, Result, Setting, counting, measure, results
from gpvi_paper.bench.cases.particles import check_same_step
from gpvi_paper.bench.chart import chart
from gpvi_paper.bench.exponents import exponent, last_exponent
from gpvi_paper.bench.limits.roofline import LENET5, PROBLEMS, SMALL_CONVOLUTIONAL, methods
from gpvi_paper.bench.timing import Compiled, Contender, Timing, in_turns
from gpvi_paper.cli import bench as benching


class Clockwork:
    """Takes what it is told to."""

    compile_seconds, peak_bytes = 1.5, 2**20

    def __init__(self, *seconds):
        self.left = list(seconds)

    def turn(self):
        return self.left.pop(0)


def test_a_ratio_is_the_median_of_turns_side_by_side():
    ours, theirs = Clockwork(1.0, 4.0, 2.0, 9.0, 2.0), Clockwork(0.5, 2.0, 1.0, 0.1, 1.0)
    assert isinstance(ours, Contender)
    timings = in_turns({"ours": ours, "theirs": theirs}, seconds=0.0, least=5)
    assert timings["ours"].over(timings["theirs"]) == 2
    assert timings["ours"].seconds == 2
    values = timings["ours"].values()
    known = {"ms": 2000, "least ms": 1000, "compile s": 1.5, "peak MiB": 1}
    assert values == known | {"processor ms": values["processor ms"]}


def test_turns_stop_at_their_number():
    timings = in_turns({"one": Clockwork(*range(9))}, seconds=1e9, most=4)
    assert timings["one"].turns == (0, 1, 2, 3)


def test_a_function_is_compiled_once_and_keeps_its_result():
    traced = []

    def double(x):
        traced.append(1)
        return 2 * x

    program = Compiled(double, jnp.arange(3.0))
    assert program.turn() >= 0 and program.turn() >= 0
    assert len(traced) == 1
    np.testing.assert_array_equal(program.result, [0, 2, 4])
    assert program.peak_bytes is not None and program.peak_bytes >= 24


@pytest.mark.parametrize("power", [0.0, 1.0, 2.5])
def test_exponents_of_made_up_costs(power):
    sizes = (10, 100, 1_000, 10_000)
    assert exponent(sizes, [3 * s**power for s in sizes]) == pytest.approx(power)


def test_a_constant_beside_it_lowers_the_exponent_and_the_last_one_least():
    sizes = (10, 100, 1_000, 10_000)
    costs = [100 + s for s in sizes]
    assert exponent(sizes, costs) < last_exponent(sizes, costs) < 1


def test_the_least_bytes_and_sums_by_hand():
    """7 parameters, 2 particles of 3 numbers: 8·7 + 8·2·3 numbers of 4 bytes; 3·(2·7·2) + 2·5·3 operations."""
    found = counting.least(counting.Work(7, 2, 3, network_flops=5))
    assert found.bytes == 4 * (56 + 48)
    assert found.flops == 84 + 30


def test_sums_of_the_networks():
    """LeNet-5: 117,600 + 240,000 + 58,920 multiplications; the CIFAR net: 777,600 + 3,115,008 + 589,824 + 34,048."""
    assert LENET5 == 2 * (117_600 + 240_000 + 58_920)
    assert SMALL_CONVOLUTIONAL == 2 * (777_600 + 3_115_008 + 589_824 + 34_048)


def test_the_compiler_counts_a_product_alike():
    a = jnp.ones((8, 16))
    program = jax.jit(lambda a: a @ a.T).lower(a).compile()
    counted = counting.compiled(program)
    assert counted is not None
    assert counted.flops == pytest.approx(2 * 8 * 16 * 8, rel=0.1)
    assert counted.bytes >= a.nbytes


def test_the_compiler_counts_a_loop_once():
    """So that a chunk of steps counts as one step."""

    def chunk(length):
        def body(x, _):
            return jnp.tanh(x @ x), None

        return jax.lax.scan(body, jnp.ones((16, 16)), length=length)[0]

    one, many = (
        counting.compiled(jax.jit(lambda n=n: chunk(n)).lower().compile()) for n in (2, 20)
    )
    assert one is not None and many is not None
    assert many.flops == pytest.approx(one.flops, rel=0.01)


def test_the_generator_of_mnist_is_the_papers():
    method = methods(PROBLEMS["mnist"])["Amortized SVGD"]
    shapes = jax.eval_shape(
        lambda: method.generator.build(61_706, key=jax.random.key(0), dtype=jnp.float32)
    )
    sizes = [np.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)]
    hidden = 257 * 256 + 257 * 512 + 513 * 1024
    assert sum(sizes) == hidden + 1025 * 61_706


def test_other_steps_are_not_compared():
    start, ours = jnp.zeros((2, 2)), jnp.ones((2, 2))
    check_same_step(ours, ours * (1 + 1e-5), start, "a peer")
    with pytest.raises(AssertionError, match="a peer takes another step"):
        check_same_step(ours, 1.1 * ours, start, "a peer")


def report():
    made = Report("gpvi bench", records.environment(), records.now())
    made.results += [
        Result("svgd", "n = 10, d = 100", "gpvi", {"ms": 1.0}),
        Result("svgd", "n = 10, d = 1,000", "gpvi", {"ms": 9.0}),
        Result("svgd", "n = 10, d = 1,000", "a peer", {"ms": 90.0, "ratio": np.nan}, "gpvi"),
        Result("steps-blr", "d = 3", "GPVI", {"ms": 1.0, "ratio": 0.5}, "amortised SVGD"),
        Result("growth", "pathwise, d", "1,000", {"ms": 1.0}),
        Result("growth", "pathwise, d", "10,000", {"ms": 8.0}),
        Result("growth", "pathwise, d", "fitted", {"exponent": 0.9}),
        Result("roofline-mnist", "LeNet-5", "GPVI", {"ms": 2.0, "over floor": 1.7}),
    ]
    return made


def test_reports_are_read_as_written(tmp_path):
    made = report()
    found = results.read(made.write(tmp_path))
    assert found.environment == made.environment
    assert [r.values for r in found.results[:2]] == [r.values for r in made.results[:2]]
    assert np.isnan(found.results[2].values["ratio"])
    (tmp_path / "bench.json").write_text("{}")
    with pytest.raises(StorageError, match="no report of gpvi bench"):
        results.read(tmp_path / "bench.json")


def test_a_picture_of_every_kind(tmp_path):
    path = chart(report().results, tmp_path)
    assert path is not None and path.read_bytes().startswith(b"\x89PNG")
    assert chart([Result("startup", "", "cold", {"s": 1.0})], tmp_path) is None


def test_which_rows_are_wanted():
    wanted = benching._wanted(["svgd/n = 10, d = 100", "growth", "growth/pathwise, d"], list(CASES))
    assert wanted == {"svgd": {"n-10-d-100"}, "growth": frozenset()}
    assert Setting("svgd", only=wanted["svgd"]).wants("n = 10, d = 100")
    assert not Setting("svgd", only=wanted["svgd"]).wants("n = 10, d = 1,000")
    with pytest.raises(UnknownOptionError, match="svgd"):
        benching._wanted(["svg"], list(CASES))


@pytest.mark.slow
def test_through_the_command_line(tmp_path, capsys):
    """Tiny sizes; a peer's step is checked to be ours before it is timed."""
    rows = ["ceilings", "svgd/n-5-d-8", "steps-blr/pathwise"]
    command = ["bench", "--quick", "--peers", "--json", "--seconds", "0", "--out", str(tmp_path)]
    for row in rows:
        command += ["--case", row]
    with pytest.raises(SystemExit, match="0"):
        load_app()(command)
    printed = capsys.readouterr()
    shown = json.loads(printed.out)
    assert "no row" not in printed.err
    kept = results.read(tmp_path / "bench.json")
    assert len(shown["results"]) == len(kept.results)
    contenders = {(r.case, r.contender) for r in kept.results}
    assert ("svgd", "BlackJAX SVGD") in contenders and ("svgd", "NumPyro SteinVI") in contenders
    assert ("steps-blr", "GPVI (pathwise)") in contenders
    assert {r.case for r in kept.results} == {"ceilings", "svgd", "steps-blr"}
    assert all(np.isfinite(list(r.values.values())).all() for r in kept.results)
    assert (tmp_path / "bench.png").exists()


def test_a_row_that_is_not_there_is_named_and_nothing_is_overwritten(tmp_path, capsys):
    (tmp_path / "bench.json").write_text("former results")
    with pytest.raises(SystemExit, match="2"):
        load_app()(["bench", "--quick", "--case", "svgd/no-such-row", "--out", str(tmp_path)])
    assert "svgd has no row 'no-such-row'" in capsys.readouterr().err
    assert (tmp_path / "bench.json").read_text() == "former results"


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_case_runs(name):
    found = list(measure(Setting(name, quick=True, peers=True, seconds=0.0)))
    assert found and all(r.case == name for r in found)


def test_a_cache_that_is_used(tmp_path):
    settings: Any = jax.config
    before = settings.jax_compilation_cache_dir
    limit = settings.jax_persistent_cache_min_compile_time_secs
    try:
        assert cache.use(tmp_path / "programs") == tmp_path / "programs"
        assert settings.jax_compilation_cache_dir == str(tmp_path / "programs")
        (tmp_path / "file").touch()
        with pytest.raises(StorageError, match="cannot be kept"):
            cache.use(tmp_path / "file" / "programs")
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", limit)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def test_the_users_directory_for_caches(monkeypatch, tmp_path):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.default_directory() == tmp_path / "gpvi" / "programs"
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    assert str(cache.default_directory()) == "elsewhere"


def test_timings_of_a_chunk_are_of_its_steps():
    assert Timing((1.0, 3.0, 2.0), 0.0, None).values() == {
        "ms": 2000,
        "least ms": 1000,
        "compile s": 0,
    }
