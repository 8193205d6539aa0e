"""The window: what has been added up since the last reset."""

import tensorflow.compat.v1 as tf

from tf1accum import accumulators
from tf1accum import gate


class Window:
    """The variables of an open window, made in the current name scope."""

    def __init__(self, grads_and_vars, loss, k, reduction, collections):
        """Makes the variables.

        Args:
          grads_and_vars: list of (gradient, variable) pairs of one micro-batch.
          loss: scalar tensor to average, or None.
          k: Python integer, the micro-batches in a full window.
          reduction: "mean" or "sum".
          collections: list of collections, or None for the default.
        """
        self._grads = [grad for grad, _ in grads_and_vars]
        self.model_variables = [variable for _, variable in grads_and_vars]
        self._loss = loss
        self._k = k
        self._reduction = reduction
        # The scalars come first: a model's variable of that name gives way.
        self._count = accumulators.ScalarAccumulator(
            "count", tf.int64, collections)
        # The sum of loss / k: the mean loss, once the window is full.
        self._loss_total = None if loss is None else (
            accumulators.ScalarAccumulator(
                "average_loss", loss.dtype.base_dtype, collections))
        self._accumulators = [
            accumulators.DenseAccumulator(variable, collections)
            for variable in self.model_variables]

    @property
    def variables(self):
        """All variables that hold the window."""
        return [accumulator.total for accumulator in self._all()]

    def add(self, scale):
        """Ops that add one micro-batch, gradients times `scale`, a float."""
        ops = [accumulator.add(grad, scale)
               for accumulator, grad in zip(self._accumulators, self._grads)]
        if self._loss_total is not None:
            ops.append(self._loss_total.add(
                tf.reshape(self._loss, []), 1. / self._k))
        return ops + [self._count.add(tf.constant(1, tf.int64), 1.)]

    def reset(self):
        """Ops that empty the window."""
        return [accumulator.reset() for accumulator in self._all()]

    def read_count(self):
        """The count, read where it is called."""
        return self._count.read()

    def read_accumulators(self):
        """What the accumulators hold, read where it is called."""
        return [accumulator.read() for accumulator in self._accumulators]

    def read_average_loss(self):
        """The mean loss, 0 in an empty window; None without a loss."""
        if self._loss_total is None:
            return None
        total = self._loss_total.read()
        return tf.multiply(
            total, self._rescale(self.read_count(), total.dtype), name="mean")

    def read_reduced(self):
        """The pairs for the optimizer: mean or sum, read where it is called.

            mean = (g_1 / k + ... + g_r / k) * (k / r)
        """
        totals = self.read_accumulators()
        if self._reduction == "mean":
            count = self.read_count()
            full = tf.equal(count, self._k, name="full")
            factors = {dtype: self._rescale(count, dtype)
                       for dtype in {total.dtype for total in totals}}
            totals = [gate.scale_unless(full, total, factors[total.dtype])
                      for total in totals]
        return [(tf.cast(total, variable.dtype.base_dtype), variable)
                for total, variable in zip(totals, self.model_variables)]

    def _rescale(self, count, dtype):
        """k / r, what turns a window of r micro-batches into their mean."""
        return tf.divide(tf.cast(self._k, dtype),
                         tf.cast(tf.maximum(count, 1), dtype), name="rescale")

    def _all(self):
        scalars = [self._count, self._loss_total]
        return [accumulator for accumulator in scalars + self._accumulators
                if accumulator is not None]
