"""Which keys of a checkpoint are not the model's, by their structure alone.

No word inside a name decides, but how keys lie under each other, their shapes,
and the exact names that TensorFlow gives to what stands alone.
"""

import re

_POWER = re.compile(r"beta[12]_power(_\d+)?$")
# What `tf.train.ExponentialMovingAverage` calls its averages.
_AVERAGE = "ExponentialMovingAverage"
_SPARSE_PARTS = ("values", "indices", "used")
_PART = re.compile(r"/part_(\d+)$")


def find_slots(keys):
    """Dict of the keys under another of their shape, each with why.

    Args:
      keys: dict of `checkpoint_files.Key` by name.
    """
    return _explain(keys, _why_slot)


def find_by_name(keys):
    """Dict of optimizers' scalars and of whole windows, each with why.

    Args:
      keys: dict of `checkpoint_files.Key` by name.
    """
    found = _explain(keys, _why_beta_power)
    for name in keys:
        root, _, last = name.rpartition("/")
        if root and last == "count":
            found.update(
                (part, "looks like the window {}: all under that name are a "
                 "window's".format(root)) for part in _window(root, keys))
    return found


def _explain(keys, why):
    reasons = ((name, why(name, keys)) for name in keys)
    return {name: reason for name, reason in reasons if reason}


def _why_beta_power(name, keys):
    key = keys[name]
    if (_POWER.match(name.rpartition("/")[2]) and key.shape == []
            and "float" in key.dtype):
        return "looks like an optimizer's scalar: by its exact name"
    return None


def _why_slot(name, keys):
    parent, _, last = name.rpartition("/")
    while parent and last != _AVERAGE:
        if parent in keys and _same_shape(keys[parent], keys[name]):
            return ("looks like a slot of {}: of its shape, under its "
                    "name".format(parent))
        parent = parent.rpartition("/")[0]
    return None


def _same_shape(one, other):
    return one.shape is not None and one.shape == other.shape


def _window(root, keys):
    """The keys of the window in `root`, or [] if it is none.

    Every key in `root` has to be one of a window's.
    """
    inside = {name[len(root) + 1:]: key for name, key in keys.items()
              if name.startswith(root + "/")}
    scalars = {name for name in inside if _is_scalar(name, inside[name])}
    others = set(inside) - scalars
    if "count" not in scalars or not others:
        return []
    scope = root.rpartition("/")[0]
    while True:
        # Imported under a scope, the window and the model both have it.
        outer = {name[len(scope) + 1 if scope else 0:]: key
                 for name, key in keys.items()
                 if not name.startswith(root + "/")
                 and (not scope or name.startswith(scope + "/"))}
        if all(_accumulates(name, inside, outer) for name in others):
            return [root + "/" + name for name in inside]
        if not scope:
            return []
        scope = scope.rpartition("/")[0]


def _is_scalar(name, key):
    return key.shape == [] and key.dtype in {
        "count": ("int64",), "skipped": ("int64",), "weight": ("float64",),
        "average_loss": ("bfloat16", "float32", "float64"),
    }.get(name, ())


def _accumulates(name, inside, outer):
    """Whether a key of a window is the accumulator of one outside, or of it."""
    variable, _, part = name.rpartition("/")
    rows = variable and part in _SPARSE_PARTS and _sparse_rows(
        variable, inside)
    if rows:
        weight = outer.get(variable) or outer.get(_PART.sub("", variable))
        return bool(weight and weight.shape
                    and weight.shape[1:] == rows.shape[1:])
    if name in outer:
        return _same_shape(outer[name], inside[name])
    whole = _PART.sub("", name)
    return whole != name and whole in outer and _are_parts(
        [inside[part] for part in inside if _PART.sub("", part) == whole
         and part != whole], outer[whole])


def _sparse_rows(variable, inside):
    """The key of the rows of a sparse accumulator, if that is what it is."""
    parts = [inside.get(variable + "/" + part) for part in _SPARSE_PARTS]
    if None in parts:
        return None
    values, indices, used = parts
    if not (values.shape and indices.dtype == used.dtype == "int64"
            and used.shape == [] and len(indices.shape or []) == 1
            and indices.shape[0] == values.shape[0]):
        return None
    return values


def _are_parts(parts, whole):
    """Whether arrays of these shapes, laid end to end, are as large."""
    if whole.shape is None or any(
            part.shape is None or len(part.shape) != len(whole.shape)
            for part in parts):
        return False
    return any(
        sum(part.shape[axis] for part in parts) == whole.shape[axis]
        and all(part.shape[:axis] + part.shape[axis + 1:]
                == whole.shape[:axis] + whole.shape[axis + 1:]
                for part in parts)
        for axis in range(len(whole.shape)))
