"""Changes to a saved document and its arrays, for tests of what reads them."""


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
    """Set an array, or delete it where the value is None."""

    def change(document, arrays):
        if value is None:
            del arrays[name]
        else:
            arrays[name] = value

    return change
