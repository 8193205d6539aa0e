"""Feeds: the placeholders of gradients, and the rules for what is fed."""

import numpy as np
import tensorflow.compat.v1 as tf

from tf1accum import accumulators


def make(grad, variable):
    """What can be fed for `grad`, in the current name scope."""
    return (RowsFeed if hasattr(grad, "indices") else ArrayFeed)(grad, variable)


class ArrayFeed:
    """A dense gradient that is fed: a placeholder, and the rule for it."""

    def __init__(self, grad, variable):
        self.name = variable.op.name
        self.dtype = grad.dtype.base_dtype
        self._numpy_dtype = _numpy(self.dtype)
        self._shape = variable.shape
        self._sizes = (tuple(self._shape.as_list())
                       if self._shape.is_fully_defined() else None)
        self.grad = tf.placeholder(self.dtype, self._shape, self.name)

    def check(self, who, value, total):
        """The array that `value` is; it may be of another float type.

        Args:
          who: name of the method that the program called.
          value: what was given for the variable.
          total: `_ArrayTotal` that it is to be added to, or None.
        """
        # To find out what is wrong takes longer than to add a small array.
        if isinstance(value, np.ndarray) and (
                value.dtype == self._numpy_dtype and value.shape == (
                    self._sizes if total is None else total.sizes)):
            return value
        what = "the gradient of " + self.name
        if _is_rows(value):
            raise TypeError(
                "{}: {} must be a dense array; got sparse rows. Add them up in "
                "one: array = np.zeros({}); np.add.at(array, value.indices, "
                "value.values).".format(who, what, self._shape))
        array = _as_array(who, what, value, self.dtype)
        _check_shape(who, what, array,
                     self._shape if total is None else total.sizes)
        return array

    def feed(self, array):
        """Pairs of a placeholder and its array."""
        return [(self.grad, array.astype(self._numpy_dtype, copy=False))]


class RowsFeed:
    """A sparse gradient that is fed: two placeholders, and the rule."""

    def __init__(self, grad, variable):
        self.name = variable.op.name
        self.dtype = grad.dtype.base_dtype
        self._shape = variable.shape
        # The number of rows is that of the lookups, another in each window.
        with tf.name_scope(self.name):
            self._values = tf.placeholder(
                self.dtype, tf.TensorShape([None]).concatenate(
                    self._shape[1:]), "values")
            self._indices = tf.placeholder(tf.int64, [None], "indices")
            self.grad = accumulators.rows_of(
                variable, self._values, self._indices)

    def check(self, who, value, total):
        """`value` with arrays of the right kind: see `ArrayFeed.check`."""
        what = "the gradient of " + self.name
        if not _is_rows(value):
            array = _as_array(who, what, value, self.dtype)
            raise TypeError(
                "{}: {} must be sparse, a tuple of values and indices such as "
                "sess.run(host.gradients) returns; got an array of shape {}. "
                "Put the rows that are not zero into one: fetched._replace("
                "values=table[rows], indices=rows).".format(
                    who, what, array.shape))
        values = _as_array(who, "the values of " + what, value.values,
                           self.dtype)
        indices = _as_array(who, "the indices of " + what, value.indices,
                            tf.int64)
        _check_shape(who, "the indices of " + what, indices, [None])
        row = self._shape[1:] if total is None else total.row_shape
        _check_shape(who, "the values of " + what, values,
                     tf.TensorShape([indices.size]).concatenate(row))
        self._check_range(who, what, indices)
        return value._replace(
            values=values, indices=indices.astype(np.int64, copy=False))

    def _check_range(self, who, what, indices):
        # None where the shape is left open.
        number = self._shape.rank and self._shape.as_list()[0]
        wrong = (indices < 0) | (indices >= (
            np.inf if number is None else number))
        if wrong.any():
            raise ValueError(
                "{}: {}, of shape {}, must have indices of its rows, from 0 "
                "on; got {}. Check the ids that are looked up.".format(
                    who, what, self._shape, indices[wrong][0]))

    def feed(self, value):
        """Pairs of a placeholder and its array."""
        return [(self._values,
                 value.values.astype(_numpy(self.dtype), copy=False)),
                (self._indices, value.indices)]


def checked_values(who, feeds, values, totals=None):
    """What `values` holds for each of `feeds`, in that order.

    Args:
      who: name of the method that the program called.
      feeds: list of `ArrayFeed` and `RowsFeed`.
      values: what the program gave.
      totals: dict from name to the total that a value is to be added to, or
        None.
    """
    if not hasattr(values, "keys"):
        raise TypeError(
            "{}: values must be a dict from the names of variables to arrays; "
            "got a {}. Pass what sess.run(host.gradients) returned.".format(
                who, type(values).__name__))
    names = [entry.name for entry in feeds]
    missing = [name for name in names if name not in values]
    known = set(names)
    unknown = [str(name) for name in values if name not in known]
    if missing or unknown:
        raise ValueError(
            "{}: values must have one entry for each variable; missing: {}; "
            "unknown: {}. The names are those in host.gradients, without "
            "':0'.".format(who, ", ".join(missing) or "none",
                           ", ".join(unknown) or "none"))
    return [entry.check(who, values[entry.name],
                        (totals or {}).get(entry.name)) for entry in feeds]


def _as_array(who, what, value, dtype):
    """`value` as an array that casts to `dtype` without changing its kind."""
    # TensorFlow takes longer to say so than to add up a small array.
    if not isinstance(value, (np.ndarray, np.generic)) and tf.is_tensor(value):
        raise TypeError(
            "{}: {} must be an array; got a tensor, {}. Fetch it first: "
            "sess.run(host.gradients).".format(who, what, value))
    try:
        array = np.asarray(value)
    except ValueError:  # Lists of unequal length.
        array = np.asarray(None)
    if _kind(array.dtype) != _kind(_numpy(dtype)):
        raise TypeError(
            "{}: {} must be an array of {}, or one that casts to it without "
            "loss of meaning; got one of {}. Make it one: np.asarray(value, "
            "np.{}).".format(who, what, dtype.name, array.dtype, dtype.name))
    return array


def _check_shape(who, what, array, shape):
    if not tf.TensorShape(shape).is_compatible_with(array.shape):
        raise ValueError(
            "{}: {} must be of shape {}; got an array of shape {}. Pass it as "
            "it was fetched.".format(who, what, tf.TensorShape(shape),
                                     array.shape))


def _is_rows(value):
    # TensorFlow has no public name for the class of what was fetched.
    return {"values", "indices"} <= set(getattr(value, "_fields", ()))


def _kind(dtype):
    # NumPy does not know that it is a float.
    return "f" if dtype == _numpy(tf.bfloat16) else dtype.kind


def _numpy(dtype):
    return np.dtype(dtype.as_numpy_dtype)
