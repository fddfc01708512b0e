"""Several devices and several processes give the result of one device, and move no more than they must.

A process has one number of devices for life, so every run is a process of its own (`mesh_runs.py`).
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as Spec

import gpvi
from cases import regression
from gpvi.errors import InputError, NotAvailableError, UnknownOptionError
from gpvi.parallel import hosts
from gpvi.parallel.mesh import Layout, as_mesh, for_seeds
from gpvi_paper.bench.limits.communication import collectives, summary

HERE = Path(__file__).parents[1] / "support"
TOLERANCE = 1e-10
FEW = ("gpvi-functional", "svgd", "ensemble")
PROMISED = (*FEW, "gpvi-pathwise", "amortised-svgd", "mean-field")
OTHERS = (
    "gpvi-l2", "gpvi-helper", "gpvi-default", "uneven", "many", "gfsd", "gfsf", "ksd", "full-rank", "planar",
    "hmc", "nuts",
)  # fmt: skip


def run(out: Path, *arguments: str, processes: int = 1) -> dict[str, np.ndarray]:
    """Run the script in so many processes, and return what it wrote."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    source = str(Path(gpvi.__file__).parents[1])
    command = [sys.executable, str(HERE / "mesh_runs.py"), str(out), *arguments]
    command += ["--processes", str(processes), "--port", str(port)]
    started = [
        subprocess.Popen(
            [*command, "--process", str(process)],
            env=os.environ | {"PYTHONPATH": source},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for process in range(processes)
    ]
    try:
        for process in started:
            said, _ = process.communicate(timeout=3_000)
            assert process.returncode == 0, said[-3_000:]
    finally:
        for process in started:
            process.kill()
    with np.load(out) as found:
        return dict(found)


def same(found: dict[str, np.ndarray], alone: dict[str, np.ndarray], names) -> None:
    for name in names:
        np.testing.assert_allclose(
            found[name], alone[f"{name}/alone"], atol=TOLERANCE, rtol=TOLERANCE, err_msg=name
        )


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    out = tmp_path_factory.mktemp("mesh") / "few.npz"
    return run(out, "--alone", "--methods", *FEW)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    out = tmp_path_factory.mktemp("mesh") / "all.npz"
    return run(out, "--alone", "--draws", "--methods", *PROMISED)


def test_eight_devices_find_what_one_finds(few):
    same(few, few, FEW)
    assert not np.array_equal(few["svgd/alone"], np.zeros_like(few["svgd/alone"]))


def test_no_step_gathers_its_draws(few):
    """Of n = 16 draws in d = 24 dimensions, k = 4 of them in the head: z_head and the kernel are gathered, no more.

    (A Residual head is factorised by LU, whose permutations the compiler gathers, n·k² numbers.)
    """
    n, d, k = 16, 24, 4
    assert few["svgd/gathered"] <= n
    assert few["ensemble/gathered"] == 0
    assert n * k <= few["gpvi-functional/gathered"] <= max(n * n, n * k**2) < n * d


def test_a_step_of_svgd_moves_what_its_mathematics_needs(few):
    """Positions to rows and scores to columns, n·d/P float64 each, and the sum of n×n distances over the columns."""
    n, d, parts = 16, 24, 8
    moved = dict(zip(few["svgd/operations"].tolist(), few["svgd/bytes"], strict=True))
    assert moved["all-to-all"] == 2 * n * d // parts * 8
    assert n * n * 8 <= moved["all-reduce"] <= n * n * 8 + 512


def test_the_text_of_a_program_is_counted_loop_by_loop():
    text = """
%body (p: (f32[4])) -> (f32[4]) {
  %ar = f32[4,2]{1,0} all-reduce(%x), to_apply=%add
}
%other (p: f32[4]) -> f32[8] {
  ROOT %ag = (f32[8]{0}, bf16[2,2]{1,0}) all-gather(%x, %y), dimensions={0}
}
ENTRY %main (p: f32[4]) -> f32[4] {
  %w = (f32[4]) while(%t), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"10"}}
  %c = f32[8] call(%t), to_apply=%other
  %s = f32[6]{0} all-to-all(%t), dimensions={0}
}
"""
    found = collectives(text, steps=5)
    assert summary(found) == pytest.approx({"all-reduce": 64, "all-gather": 8, "all-to-all": 4.8})
    (reduction,) = (each for each in found if each.operation == "all-reduce")
    assert reduction.sent(8) == 2 * 64 * 7 / 8


def test_meshes_that_cannot_be_are_refused():
    target, key = regression().target(), jax.random.key(0)
    devices = np.asarray(jax.devices())
    with pytest.raises(InputError, match=f"there are {len(devices)} devices"):
        gpvi.fit(target, key=key, mesh=len(devices) + 1)
    with pytest.raises(InputError, match="axes named 'particles' and 'data'"):
        gpvi.fit(target, key=key, mesh=True)
    with pytest.raises(NotAvailableError, match="one path at a time"):
        gpvi.fit(target, gpvi.Pathfinder(), key=key, mesh=1)
    with pytest.raises(UnknownOptionError, match="Did you mean 'particles'"):
        gpvi.fit(target, key=key, mesh=Mesh(devices[:1], ("particle",)))


class Device:
    """Stands for a device where a mesh only counts them."""

    platform = device_kind = "cpu"
    process_index = 0


def devices(count: int, *axes: str) -> Mesh:
    return Mesh(np.array([Device() for _ in range(count)]), axes)


def test_data_that_cannot_be_distributed_are_refused():
    one = as_mesh(1)
    assert one is not None and hosts.share(6, one) == slice(0, 6)
    with pytest.raises(InputError, match="it is to read the 6 rows"):
        hosts.distribute(np.zeros((5, 2)), one, size=6)
    for axis in ("data", "particles"):
        with pytest.raises(InputError, match=f"axis '{axis}'.*so that there are 8 or 12"):
            hosts.share(10, devices(4, axis))
    with pytest.raises(InputError, match=r"so that there are 4\."):
        hosts.share(3, devices(4, "data"))


def test_parts_lie_along_the_longest_axis_that_divides():
    mesh = Mesh(np.asarray(jax.devices()[:1]), ("particles",))
    layout = Layout(mesh, ("particles",), least=10)
    parts = ("particles",)
    assert layout.sharding(np.zeros((2, 3))).spec == Spec()
    assert layout.sharding(np.zeros((4, 9))).spec == Spec(None, parts)
    assert layout.sharding(np.zeros((9, 4))).spec == Spec(parts)


def test_seeds_take_as_many_devices_as_divide_them(monkeypatch):
    assert for_seeds(None, 3) is None
    mesh = devices(8, "particles")
    sizes = {seeds: for_seeds(mesh, seeds).size for seeds in (1, 3, 7, 8, 12, 16)}  # pyright: ignore[reportOptionalMemberAccess]
    assert sizes == {1: 1, 3: 3, 7: 7, 8: 8, 12: 6, 16: 8}
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(InputError, match="pass 8 or 16"):
        for_seeds(mesh, 12)


@pytest.mark.slow
def test_eight_devices_find_what_one_finds_for_every_method(alone, tmp_path):
    same(alone, alone, PROMISED)
    assert all(alone[f"{name}/gathered"] < 16 * 24 for name in PROMISED)
    others = run(tmp_path / "others.npz", "--alone", "--methods", *OTHERS)
    same(others, others, OTHERS)


@pytest.mark.slow
@pytest.mark.parametrize(("axes", "shape"), [(("particles", "data"), (4, 2)), (("data",), (8,))])
def test_data_are_distributed_too(alone, axes, shape, tmp_path):
    where = ["--axes", *axes, "--shape", *map(str, shape), "--draws"]
    same(run(tmp_path / "found.npz", *where, "--methods", *PROMISED), alone, PROMISED)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_several_processes_find_what_one_finds(alone, processes, tmp_path):
    found = run(tmp_path / "found.npz", "--draws", "--methods", *PROMISED, processes=processes)
    same(found, alone, PROMISED)


@pytest.mark.slow
def test_two_processes_look_for_the_start_that_one_finds(tmp_path):
    looking = ["--methods", "mean-field", "--init", "auto"]
    found = run(tmp_path / "two.npz", *looking, processes=2)
    same(found, run(tmp_path / "one.npz", "--alone", *looking), ["mean-field"])


@pytest.mark.slow
def test_a_run_of_two_processes_goes_on_in_one(tmp_path):
    saved = ["--checkpoint", str(tmp_path / "saved"), "--methods", "svgd"]
    run(tmp_path / "begun.npz", *saved, "--stop", "5", "--replicated", processes=2)
    ended = run(tmp_path / "ended.npz", *saved)
    whole = run(tmp_path / "whole.npz", "--alone", "--methods", "svgd")
    same(ended, whole, ["svgd"])
