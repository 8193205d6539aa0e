"""A batch, and where to cut it into micro-batches."""

import numpy as np
import tensorflow.compat.v1 as tf

from tf1accum import arguments

_SAME_SIZE = ("{}: all inputs must hold as many examples, in their first "
              "dimension; got")
_NO_EXAMPLE = "{}: the batch must hold an example; got none."


class Batch:
    """The whole batch, and where to cut it.

    Attributes:
      number: micro-batches in it, an integer or a scalar tensor of int32.
    """

    def __init__(self, who, inputs, k):
        self._inputs = tf.nest.map_structure(tf.convert_to_tensor, inputs)
        leaves = tf.nest.flatten(self._inputs)
        sizes = list(map(_static_size, leaves))
        checks = []
        if None in sizes:
            sizes = tf.stack([tf.shape(leaf)[0] for leaf in leaves])
            checks += [
                _check(_SAME_SIZE.format(who), tf.reduce_all(
                    tf.equal(sizes, sizes[0])), sizes),
                _check(_NO_EXAMPLE.format(who), sizes[0] > 0)]
        if tf.is_tensor(k):
            k = tf.reshape(tf.convert_to_tensor(k), [])
            checks.append(_check(
                "{}: k must be positive; got".format(who), k > 0, k))
        with tf.control_dependencies(checks):
            self._size = sizes[0] if isinstance(sizes, list) else (
                tf.identity(sizes[0]))
            if tf.is_tensor(k) or tf.is_tensor(self._size):
                self.number = tf.cast(tf.minimum(tf.cast(k, tf.int64), tf.cast(
                    self._size, tf.int64)), tf.int32)
            else:
                self.number = min(k, self._size)
        self._each = self._size // self.number
        # So many micro-batches hold one more.
        self._larger = self._size - self._each * self.number
        self._is_even = not tf.is_tensor(self._larger) and self._larger == 0

    def micro_batch(self, at):
        """That one, in the structure of the inputs, and its share of all.

        Args:
          at: its number, a scalar tensor of int32.
        """
        begin, end = [each * self._each + tf.minimum(each, self._larger)
                      for each in (at, at + 1)]

        def cut(tensor):
            part = tensor[begin:end]
            if tensor.shape.rank is not None:
                part.set_shape([self._each if self._is_even else None]
                               + tensor.shape.as_list()[1:])
            return part

        share = 1. / self.number if self._is_even else (
            tf.cast(end - begin, tf.float64) / tf.cast(self._size, tf.float64))
        return tf.nest.map_structure(cut, self._inputs), share


def check_inputs(who, inputs):
    """Raises unless `inputs` is a structure of tensors of as many examples."""
    leaves = tf.nest.flatten(inputs)
    if not leaves:
        raise ValueError(
            "{}: inputs must hold a tensor; got an empty structure.".format(
                who))
    for leaf in leaves:
        if not isinstance(leaf, (tf.Tensor, np.ndarray)):
            raise TypeError(
                "{}: inputs must be tensors [examples, ...], or a list, tuple "
                "or dict of them; got {!r}. Make sparse and ragged ones dense "
                "before.".format(who, leaf))
        if _shape(leaf).rank == 0:
            raise ValueError(
                "{}: inputs must have examples in their first dimension; got "
                "the scalar {}. Use it in loss_fn without handing it "
                "in.".format(who, _label(leaf)))
    tensors = [leaf for leaf in leaves if isinstance(leaf, tf.Tensor)]
    for tensor in tensors:
        arguments.check_graph(who, "inputs", tensor)
    arguments.check_always_run(who, "inputs", *tensors)
    sizes = {size for size in map(_static_size, leaves) if size is not None}
    if len(sizes) > 1:
        raise ValueError("{} {}.".format(_SAME_SIZE.format(who), ", ".join(
            "{} of shape {}".format(_label(leaf), _shape(leaf))
            for leaf in leaves)))
    if 0 in sizes:
        raise ValueError(_NO_EXAMPLE.format(who))


def _shape(leaf):
    return tf.TensorShape(leaf.shape)


def _label(leaf):
    return leaf.name if isinstance(leaf, tf.Tensor) else "an array"


def _static_size(leaf):
    shape = _shape(leaf)
    return None if shape.rank is None else shape.as_list()[0]


def _check(rule, condition, *values):
    return tf.raw_ops.Assert(condition=condition, data=[rule] + list(values),
                             summarize=100)
