"""Keep compiled programs on disk, so that the next process need not compile them again.

This is JAX's own compilation cache, set to keep every program. By default JAX leaves out programs that compile in less
than a second, and a fit has about a hundred of those. The settings apply to the whole process, so the library changes
them only when `use` is called.
"""

import os
from pathlib import Path

import jax

from gpvi.errors import StorageError


def default_directory() -> Path:
    """Return the directory in which `use` keeps compiled programs if it is given none.

    Returns
    -------
    pathlib.Path
        The value of the environment variable JAX_COMPILATION_CACHE_DIR if it is set. Otherwise `gpvi/programs` in the
        user's directory for caches, which is XDG_CACHE_HOME or `~/.cache`.

    Examples
    --------
    >>> gpvi.cache.default_directory().name
    'programs'
    """
    chosen = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(base) / "gpvi" / "programs"


def use(directory: str | os.PathLike[str] | None = None) -> Path:
    """Keep compiled programs in a directory from now on, and reuse those that are already there.

    Programs are compiled for one kind of processor: give each kind of machine a directory of its own. Entries may be
    deleted at any time, and JAX_COMPILATION_CACHE_MAX_SIZE limits their total size in bytes.

    Parameters
    ----------
    directory
        Where to keep the programs; it is created if it does not exist. None chooses `default_directory()`.

    Returns
    -------
    pathlib.Path
        The directory.

    Raises
    ------
    gpvi.errors.StorageError
        If the directory cannot be created.

    Examples
    --------
    >>> gpvi.cache.use("programs").name
    'programs'
    >>> jax.config.update("jax_compilation_cache_dir", None)  # stop using it
    """
    path = default_directory() if directory is None else Path(directory).expanduser()
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
