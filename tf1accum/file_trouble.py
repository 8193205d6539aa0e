"""The error of a file that cannot be read or written."""


class FileTrouble(Exception):
    """What is wrong with a file, in one line that names it."""


def cannot_be_read(path, error):
    """The `FileTrouble` of an `OSError` that `path` was met with."""
    return FileTrouble("{} cannot be read: {}.".format(
        path, in_one_line(error)))


def in_one_line(error):
    """What `error`, of TensorFlow's or of the system, says in its first line.

    Newer TensorFlow says before that where the op was made, up to its node.
    """
    text = getattr(error, "strerror", None) or getattr(
        error, "message", None) or str(error) or type(error).__name__
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    nodes = [number for number, line in enumerate(lines[:-1])
             if line.startswith("Node: ")]
    return lines[nodes[0] + 1 if nodes else 0]
