"""A cache of compiled programs on disk, so that the next process need not compile them again.

This is JAX's own compilation cache, told to keep everything: by default it leaves out programs that compile in less
than a second, and a fit has about a hundred of those. It changes the settings of JAX for the whole process, so nothing
in the library does this unless the user asks.
"""

import os
from pathlib import Path

import jax

from gpvi.errors import StorageError


def default_directory() -> Path:
    """Return the directory that `use` takes by default.

    Returns
    -------
    Path
        The value of JAX_COMPILATION_CACHE_DIR if it is set, else `gpvi/programs` in the user's directory for caches.

    Examples
    --------
    >>> gpvi.cache.default_directory().name
    'programs'
    """
    chosen = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(caches) / "gpvi" / "programs"


def use(directory: str | os.PathLike[str] | None = None) -> Path:
    """Keep compiled programs in a directory from now on, and use those that are already there.

    Call it before the first fit. Programs are compiled for one kind of processor, so machines of different kinds need
    different directories. Entries may be deleted at any time; JAX_COMPILATION_CACHE_MAX_SIZE limits their total bytes.

    Parameters
    ----------
    directory
        The directory, which is created if it is missing; by default `default_directory()`.

    Returns
    -------
    Path
        The directory.

    Raises
    ------
    gpvi.errors.StorageError
        If the directory cannot be created.

    Examples
    --------
    >>> gpvi.cache.use()  # doctest: +SKIP
    """
    path = default_directory() if directory is None else Path(directory).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"compiled programs cannot be kept in {path}: {error.strerror}. Pass another directory."
        ) from error
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    return path
