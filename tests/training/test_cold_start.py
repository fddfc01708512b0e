"""A first fit compiles few programs, however small: each takes tens of milliseconds."""

import jax
import pytest

import gpvi

PROGRAMS = 80
"""For training, search, exploration and judging, 10,000 draws and a diagnosis."""


@pytest.mark.slow
def test_a_first_fit_compiles_few_programs():
    names: list[str] = []

    def note(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if "backend_compile" in event:
            names.append(str(kwargs.get("fun_name")))

    def log_density(x):
        return -0.5 * (x[0] / 2) ** 2 - 0.5 * ((x[1] - 0.25 * x[0] ** 2) / 0.5) ** 2

    jax.clear_caches()
    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        posterior = gpvi.fit(gpvi.Target(log_density, dim=2), key=0, progress=False)
        posterior.sample(10_000, key=1)
        diagnosis = posterior.diagnose(key=2)
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert diagnosis.verdict.level == "good"
    assert len(names) <= PROGRAMS, names
