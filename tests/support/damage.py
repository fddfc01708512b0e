"""Changes to saved files, for tests of what reads them."""

import hashlib
import json
import struct


def put(*path, value):
    """Set one value deep in the document."""

    def change(document, arrays):
        *outer, last = path
        for step in outer:
            document = document[step]
        document[last] = value

    return change


def drop(*path):
    """Delete an entry of the document."""

    def change(document, arrays):
        *outer, last = path
        for step in outer:
            document = document[step]
        del document[last]

    return change


def array(name, value):
    """Set an array, or delete it if the value is None."""

    def change(document, arrays):
        if value is None:
            del arrays[name]
        else:
            arrays[name] = value

    return change


def split(content):
    """The header of a safetensors file, and the bytes of its arrays."""
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def joined(header, data=b"", length=None):
    """A safetensors file with this header, as JSON or bytes, whose length may be a lie."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def sealed(header, data):
    """A file with this header whose checksum is right, as an attacker would make it."""
    metadata = {k: v for k, v in header["__metadata__"].items() if k != "sha256"}
    header = {**header, "__metadata__": metadata}
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode() + data).hexdigest()
    return joined({**header, "__metadata__": {**metadata, "sha256": digest}}, data)


def resealed(content):
    """A damaged file with its checksum made right, if it still is a save at all."""
    try:
        return sealed(*split(content))
    except (ValueError, struct.error, RecursionError, TypeError, KeyError, AttributeError):
        return content
