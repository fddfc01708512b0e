r"""The "python version" of CIFAR-10 without running it.

Its files are pickles, programs that a loader carries out. Here a file is only disassembled (`pickletools.genops` names
each instruction and its literal, and does nothing): the images are the one string of bytes beside the key "data", row
by row 3 × 32 × 32 as in the binary version, and the labels are the integers between the key "labels" and the next key.
Nothing else in the program is executed.
"""

import pickletools
from collections.abc import Iterator

import numpy as np

KEYS = ("batch_label", "labels", "data", "filenames")
_KEY_LENGTH = max(map(len, KEYS))
_INTEGERS = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1")
"""Instructions whose argument is a value; others number the program's notes."""
MOST_INSTRUCTIONS = 1_000_000
"""A published file has some 60,000."""


def records(content: bytes, image: int) -> bytes:
    """The batch as records of the binary version, a byte with the label and `image` bytes; ValueError if it is none."""
    labels, planes = [], b""
    key = None
    for literal in _literals(content):
        if isinstance(literal, int):
            if key == "labels":
                labels.append(literal)
            continue
        name = literal.decode("latin-1") if len(literal) <= _KEY_LENGTH else ""
        if name in KEYS:
            key = name
        elif key == "data" and len(literal) > len(planes):
            planes = literal
    if not labels or min(labels) < 0 or max(labels) > 255:
        raise ValueError("it holds no labels")
    if len(planes) != len(labels) * image:
        raise ValueError(
            f"it holds {len(labels):,} labels and {len(planes):,} bytes of images, not {image:,} for each label"
        )
    first = np.array(labels, np.uint8)[:, None]
    pixels = np.frombuffer(planes, np.uint8).reshape(len(labels), image)
    return np.concatenate([first, pixels], axis=1).tobytes()


def _literals(content: bytes) -> Iterator[bytes | int]:
    """Integers and strings in the order in which the program names them."""
    try:
        for number, (instruction, literal, _) in enumerate(pickletools.genops(content)):
            if number > MOST_INSTRUCTIONS:
                raise ValueError(f"more than {MOST_INSTRUCTIONS:,} instructions")
            if isinstance(literal, str):
                yield literal.encode("latin-1", "replace")
            elif isinstance(literal, bytes | bytearray):
                yield bytes(literal)
            elif instruction.name in _INTEGERS and literal is not None:
                yield int(literal)
    except Exception as error:  # whatever the disassembler makes of bytes that are no program
        raise ValueError(f"it is not a batch of the python version ({str(error)[:200]})") from error
