"""Small data sets in the formats of the real ones, for what reads files."""

import gzip
import json
import struct
import zipfile

import numpy as np

from gpvi_paper.data import cifar10

LINE_NAME = "kilpisjarvi_mod-kilpisjarvi"
LINE = {
    "x": [1, 2, 3, 4, 5, 6],
    "y": [1.2, 1.9, 3.4, 3.8, 5.1, 6.3],
    "pmualpha": 0,
    "psalpha": 10,
    "pmubeta": 0,
    "psbeta": 5,
}
ROWS, FEATURES, TESTED = 40, 3, 8
"""Of a set of the UCI splits."""


def idx(array):
    array = np.asarray(array, np.uint8)
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def write_mnist(folder, train=40, test=20, side=28, zipped=True):
    """Noise with a bright row at the height of the label."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    made = {}
    for part, n in (("train", train), ("t10k", test)):
        labels = np.arange(n) % 10
        images = rng.integers(0, 256, (n, side, side)) // 4
        images[np.arange(n), labels, :] = 255
        made[f"{part}-images-idx3-ubyte"], made[f"{part}-labels-idx1-ubyte"] = images, labels
    for name, array in made.items():
        content = idx(array)
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)
    return made


def cifar_records(n, first=0):
    rng = np.random.default_rng(first)
    labels = (first + np.arange(n)) % 10
    pixels = rng.integers(0, 256, (n, 3, 32, 32))
    planes = pixels.reshape(n, -1)
    return np.concatenate([labels[:, None], planes], 1).astype(np.uint8), labels, pixels


def write_cifar(folder, each=4):
    """Noise, in the binary version."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, file in enumerate(cifar10.FILES):
        (folder / file).write_bytes(cifar_records(each, i * each)[0].tobytes())


def write_uci(folder, splits=2, seed=0):
    """A line, its features in columns 2, 0, 3 and its target in column 1."""
    rng = np.random.default_rng(seed)
    table = rng.standard_normal((ROWS, 4))
    table[:, 1] = 5 + 3 * table[:, 2] + 0.1 * rng.standard_normal(ROWS)
    folder.mkdir(parents=True)
    with gzip.open(folder / "data.txt.gz", "wt") as file:
        np.savetxt(file, table)
    np.savetxt(folder / "index_features.txt", [2, 0, 3])
    np.savetxt(folder / "index_target.txt", [1])
    np.savetxt(folder / "n_splits.txt", [splits])
    for i in range(splits):
        order = rng.permutation(ROWS)
        np.savetxt(folder / f"index_test_{i}.txt", order[:TESTED])
        np.savetxt(folder / f"index_train_{i}.txt", order[TESTED:])
    return table


def write_posteriordb(root):
    """One posterior with two chains of reference draws, which are not its own."""
    (root / "posteriors").mkdir(parents=True)
    entry = {"name": LINE_NAME, "data_name": "years", "reference_posterior_name": "line"}
    (root / "posteriors" / f"{LINE_NAME}.json").write_text(json.dumps(entry))
    write_zip(root / "data" / "years.json.zip", json.dumps(LINE))
    rng = np.random.default_rng(0)
    names = ("alpha", "beta", "sigma")
    write_draws(root, [{name: rng.gamma(2, size=50).tolist() for name in names} for _ in range(2)])


def write_draws(root, chains):
    write_zip(root / "reference_draws" / "line.json.zip", json.dumps(chains))


def write_zip(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(path.name.removesuffix(".zip"), content)
