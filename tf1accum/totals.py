"""Totals that last for one session run, added to in a loop of its graph.

As loop variables they would have to be known before the loop is built, and only
what is in it knows the gradients. So they are buffers that each run has of its
own, made outside of the loop while its body is built: runs may overlap.
"""

import tensorflow.compat.v1 as tf

from tf1accum import accumulators
from tf1accum import gate
from tf1accum import gradients


def make(grad, variable, number):
    """The total of gradients such as `grad`, in the current name scope.

    Args:
      grad: tensor or `IndexedSlices` of the gradient in one micro-batch.
      variable: the model's variable.
      number: micro-batches to come, an integer or a scalar tensor.
    """
    dtype = gradients.wide_dtype(grad.dtype.base_dtype)
    if gradients.is_rows(grad):
        return _RowsTotal(variable, dtype, number)
    return Total(variable.op.name, dtype, variable)


def times(values, dtype, scale):
    """`values` in `dtype`, times `scale`, a Python float or a scalar tensor."""
    return gradients.scaled(
        values, dtype, gradients.factor(scale, dtype, "scale"))


class Total:
    """The total of tensors of one shape, added to in place."""

    def __init__(self, name, dtype, variable=None):
        """Makes the buffer, zeros of the shape of `variable`, or one zero."""
        with tf.init_scope(), tf.name_scope(name) as scope:
            # Runs do not share it, but the ops that share this name do.
            self._key = scope[:-1]
            shape = [] if variable is None else variable.shape
            if not tf.TensorShape(shape).is_fully_defined():
                shape = tf.shape(variable)
            self._buffer = tf.raw_ops.Assign(
                ref=tf.raw_ops.TemporaryVariable(
                    shape=[], dtype=dtype, var_name=self._key),
                value=tf.zeros(shape, dtype), validate_shape=False)

    def add(self, value, scale, at, include):
        """An op that adds `value * scale`.

        Args:
          value: tensor.
          scale: Python float or scalar tensor.
          at: number of the micro-batch, a scalar tensor of int32.
          include: scalar bool tensor, whether to add it, or None for always.
        """
        del at
        value = times(value, self._buffer.dtype.base_dtype, scale)

        def add(_):
            return tf.raw_ops.AssignAdd(ref=self._buffer, value=value).op

        return add(None) if include is None else gate.run_if(include, add)

    def read(self, end):
        """The total, taken out of the buffer.

        Args:
          end: scalar tensor of int32 that the loop returned.
        """
        # Not by tf.identity: TensorFlow's graph rewriting takes a cast of it
        # to the front, and forgets what it was to wait for.
        with tf.control_dependencies([end]):
            return tf.raw_ops.DestroyTemporaryVariable(
                ref=self._buffer, var_name=self._key)


class _RowsTotal:
    """The total of sparse gradients: the rows of all, each index once."""

    def __init__(self, variable, dtype, number):
        self._variable = variable
        self._dtypes = (dtype, tf.int64)
        with tf.init_scope(), tf.name_scope(variable.op.name):
            self._arrays = [
                tf.raw_ops.TensorArrayV3(size=number, dtype=each).handle
                for each in self._dtypes]

    def add(self, grad, scale, at, include):
        """As for a tensor; what is not included adds no rows."""
        rows = [times(grad.values, self._dtypes[0], scale),
                tf.cast(grad.indices, tf.int64)]
        if include is not None:
            number = tf.size(rows[1]) * tf.cast(include, tf.int32)
            rows = [part[:number] for part in rows]
        return tf.group(*[
            tf.raw_ops.TensorArrayWriteV3(
                handle=array, index=at, value=part,
                flow_in=tf.cast(at, tf.float32))
            for array, part in zip(self._arrays, rows)])

    def read(self, end):
        """The rows, `IndexedSlices`."""
        values, indices = [
            tf.raw_ops.TensorArrayConcatV3(
                handle=array, dtype=dtype,
                flow_in=tf.cast(end, tf.float32)).value
            for array, dtype in zip(self._arrays, self._dtypes)]
        values.set_shape([None] + self._variable.shape[1:].as_list())
        indices.set_shape([None])
        return accumulators.sum_duplicates(accumulators.rows_of(
            self._variable, values, indices))
