"""The window: what has been added up since the last reset."""

import tensorflow.compat.v1 as tf

from tf1accum import accumulators
from tf1accum import gate
from tf1accum import gradients


class Window:
    """The variables of an open window, made in the current name scope."""

    def __init__(self, grads_and_vars, loss, settings):
        """Makes the variables.

        Args:
          grads_and_vars: list of (gradient, variable) pairs of one micro-batch.
          loss: scalar tensor to average, or None.
          settings: `arguments.Settings`.
        """
        self._grads = [grad for grad, _ in grads_and_vars]
        self.model_variables = [variable for _, variable in grads_and_vars]
        self._loss = loss
        self._settings = settings

        def scalar(name, dtype, wanted=True):
            return accumulators.ScalarAccumulator(
                name, dtype, settings.collections) if wanted else None

        # The scalars come first: a model's variable of that name gives way.
        self._count = scalar("count", tf.int64)
        self._weight = scalar("weight", tf.float64,
                              settings.weight is not None)
        # The sum of loss / k: the mean loss, once the window is full.
        self._loss_total = scalar(
            "average_loss",
            loss is not None and gradients.wide_dtype(loss.dtype),
            loss is not None)
        self._skipped = scalar("skipped", tf.int64,
                               settings.nonfinite == "skip")
        self._accumulators = [
            accumulators.make(grad, variable, settings)
            for grad, variable in grads_and_vars]

    @property
    def variables(self):
        """All variables that hold the window, and those that outlive it."""
        return [variable for accumulator in self._reset_with_window() + [
            self._skipped] if accumulator is not None
                for variable in accumulator.variables]

    @property
    def needed(self):
        """All tensors that a micro-batch is made of."""
        return self._grads + [
            value for value in (self._loss, self._settings.weight)
            if value is not None]

    def finite(self):
        """Names of those, and a bool tensor of which are finite."""
        return gradients.finite(
            list(zip(self._grads, self.model_variables)), self._loss,
            self._settings.weight)

    def add(self, scale, good=None, after=()):
        """Ops that add one micro-batch.

            total += weight * g / unit

        Args:
          scale: what the gradients are still to be multiplied by, a Python
            float or a scalar tensor.
          good: scalar bool tensor, whether the micro-batch is to count, or None
            for always.
          after: list of ops that have to have run before anything is added.
        """
        settings = self._settings
        # What is added is made ready outside of the gate and of what it waits
        # for, so that the op that adds depends on them itself: TensorFlow
        # leaves that to an input that is made inside, and its optimizers may
        # take such an input away.
        terms = [(accumulator, accumulator.ready(grad, scale))
                 for accumulator, grad in zip(self._accumulators, self._grads)]
        scalars = []
        if self._loss_total is not None:
            scalars.append((self._loss_total, self._loss_total.ready(
                tf.reshape(self._loss, []), settings.loss_scale)))
        if self._weight is not None:
            scalars.append(
                (self._weight, self._weight.ready(settings.weight)))
        counts = [(self._count, self._count.ready(
            tf.constant(1) if good is None else good))]
        if self._skipped is not None:
            counts.append((self._skipped, self._skipped.ready(
                tf.logical_not(good))))
        # What weighs nothing is left out: 0 * NaN is NaN.
        included = [] if good is None else [good]
        if settings.weight is not None:
            included.append(tf.not_equal(
                tf.cast(settings.weight, tf.float64), 0.))
        include = tf.reduce_all(included) if included else None

        # A run that fails counts nothing; one that fails before it knows the
        # loss (its input has ended) adds nothing. To wait for all gradients
        # before the first is added would hold all of them in memory at once.
        complete = tf.group(*self.needed, name="complete")
        first = complete if self._loss is None else self._loss

        def add_terms():
            with tf.control_dependencies([first]):
                ops = [accumulator.add(term) for accumulator, term in terms]
            with tf.control_dependencies([complete]):
                return ops + [
                    accumulator.add(term) for accumulator, term in scalars]

        with tf.control_dependencies(after):
            with tf.control_dependencies([complete]):
                ops = [accumulator.add(term) for accumulator, term in counts]
            if include is None:
                return ops + add_terms()
            return ops + [gate.run_if(
                include, lambda _: tf.group(*add_terms()))]

    def reset(self):
        """Ops that empty the window."""
        return [accumulator.reset()
                for accumulator in self._reset_with_window()]

    def holds_something(self):
        """Whether there is anything to apply, a scalar bool tensor."""
        return tf.not_equal(self._read_weight(), 0., name="holds_something")

    def is_full(self):
        """Whether it holds k micro-batches, a scalar bool tensor."""
        return tf.greater_equal(
            self._count.read(), tf.cast(self._settings.k, tf.int64),
            name="is_full")

    def read_count(self):
        """The count, read where it is called."""
        return self._count.read()

    def read_weight(self):
        """The sum of the weights, None when there are none."""
        return None if self._weight is None else self._weight.read()

    def read_skipped(self):
        """The micro-batches skipped so far, None when none ever are."""
        return None if self._skipped is None else self._skipped.read()

    def read_accumulators(self):
        """What the accumulators hold, read where it is called."""
        return [accumulator.read() for accumulator in self._accumulators]

    def read_average_loss(self):
        """The mean loss, 0 in an empty window; None without a loss."""
        if self._loss_total is None:
            return None
        total = self._loss_total.read()
        return tf.multiply(total, tf.cast(self._rescale(), total.dtype),
                           name="mean")

    def read_reduced(self):
        """The pairs for the optimizer: mean or sum, read where it is called.

            mean = (w_1 g_1 + ... + w_r g_r) / unit * (unit / (w_1 + ... + w_r))
        """
        totals = self.read_accumulators()
        if self._settings.reduction == "mean":
            rescale = self._rescale()
            full = tf.equal(rescale, 1., name="full")
            totals = [accumulators.map_values(
                lambda values: gate.scale_unless(
                    full, values, tf.cast(rescale, values.dtype)), total)
                      for total in totals]
        return [(self._as_gradient(total, variable), variable)
                for total, variable in zip(totals, self.model_variables)]

    def _as_gradient(self, total, variable):
        dtype = variable.dtype.base_dtype
        # Optimizers add up the rows of one index themselves; but a norm must
        # not see them apart, nor must they be rounded before they are added.
        if self._settings.transform is not None or total.dtype != dtype:
            total = accumulators.sum_duplicates(total)
        return accumulators.map_values(
            lambda values: tf.cast(values, dtype), total)

    def _rescale(self):
        """What turns a window's totals into means: unit / sum of weights."""
        return tf.math.divide_no_nan(
            tf.constant(self._settings.unit, tf.float64), self._read_weight(),
            name="rescale")

    def _read_weight(self):
        return tf.cast((self._weight or self._count).read(), tf.float64)

    def _reset_with_window(self):
        scalars = [self._count, self._weight, self._loss_total]
        return [accumulator for accumulator in scalars + self._accumulators
                if accumulator is not None]
