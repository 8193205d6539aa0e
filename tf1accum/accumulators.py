"""Accumulators: the variables that hold a total."""

import tensorflow.compat.v1 as tf

_NARROW = (tf.float16, tf.bfloat16)


class _Accumulator:
    """A variable that holds a scaled total, and the ops on it.

    A resource variable, whatever the model's are: `assign_add` on it is exact
    from many threads.
    """

    def __init__(self, name, dtype, shape, collections):
        # Many small half-precision terms stop adding up.
        dtype = tf.float32 if dtype in _NARROW else dtype
        self._shape = shape
        self.total = tf.Variable(
            lambda: tf.zeros(shape, dtype), trainable=False, name=name,
            dtype=dtype, use_resource=True, collections=collections)
        self._op_name = name

    def add(self, value, scale):
        """An op that adds `scale * value`.

        Args:
          value: tensor of the total's shape.
          scale: Python float.
        """
        value = tf.cast(value, self.total.dtype.base_dtype)
        return self.total.assign_add(
            value if scale == 1. else value * scale, name=self._op_name,
            read_value=False)

    def read(self):
        """The scaled total, read where it is called."""
        return self.total.read_value()

    def reset(self):
        """An op that assigns zeros: `a - a` would keep a NaN."""
        return self.total.assign(
            tf.zeros(self._shape, self.total.dtype.base_dtype),
            name=self._op_name, read_value=False)


class ScalarAccumulator(_Accumulator):
    """The total of a number."""

    def __init__(self, name, dtype, collections):
        super().__init__(name, dtype, [], collections)


class DenseAccumulator(_Accumulator):
    """The total of the gradients of one variable, beside it."""

    def __init__(self, variable, collections):
        with tf.get_default_graph().colocate_with(variable.op):
            super().__init__(variable.op.name, variable.dtype.base_dtype,
                             variable.shape, collections)

    def add(self, value, scale):
        """As for any; `value` may be `IndexedSlices`."""
        return super().add(tf.convert_to_tensor(value), scale)
