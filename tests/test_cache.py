"""Compiled programs are kept where the user says."""

from typing import Any

import jax
import pytest

from gpvi import cache
from gpvi.errors import StorageError


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
