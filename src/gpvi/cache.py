"""Compiled programs kept on disk, so that the next process need not compile them again.

This is JAX's own compilation cache, told to keep everything: by default it leaves out what compiles in less than a
second, and a fit has some hundred such programs. It changes the settings of JAX for the whole process, which is why
nothing here does it unasked.
"""

import os
from pathlib import Path

import jax

from gpvi.errors import StorageError


def default_directory() -> Path:
    """Where JAX is told to keep programs (JAX_COMPILATION_CACHE_DIR), else the user's directory for caches."""
    told = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(told) if told else Path(base) / "gpvi" / "programs"


def use(directory: str | os.PathLike[str] | None = None) -> Path:
    """Keep compiled programs in `directory` from now on, and take those that are there.

    Give each kind of machine its own: programs are compiled for the processor at hand. Entries may be deleted at any
    time; JAX_COMPILATION_CACHE_MAX_SIZE bounds their bytes.
    """
    path = default_directory() if directory is None else Path(directory)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"compiled programs cannot be kept in {path}: {error.strerror}. Give another directory."
        ) from error
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    return path
