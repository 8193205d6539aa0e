"""The error of a file that cannot be read or written."""


class FileTrouble(Exception):
    """What is wrong with a file, in one line that names it."""


def in_one_line(error):
    """The first line of what `error` says, for an error of TensorFlow's."""
    text = getattr(error, "strerror", None) or getattr(
        error, "message", None) or str(error) or type(error).__name__
    return " ".join(str(text).split("\n")[0].split())
