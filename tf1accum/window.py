"""The window: what has been added up since the last reset."""

import tensorflow.compat.v1 as tf

from tf1accum import accumulators
from tf1accum import gate
from tf1accum import gradients
from tf1accum import replicas


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

        def scalar(name, dtype, wanted=True, is_shared=False):
            return accumulators.ScalarAccumulator(
                name, dtype, settings.collections,
                is_shared) if wanted else None

        # The scalars come first: a model's variable of that name gives way.
        self._count = scalar("count", tf.int64, is_shared=True)
        self._weight = scalar("weight", tf.float64,
                              settings.weight is not None)
        # The sum of loss / k: the mean loss, once the window is full.
        self._loss_total = scalar(
            "average_loss",
            loss is not None and gradients.wide_dtype(loss.dtype),
            loss is not None)
        self._skipped = scalar("skipped", tf.int64,
                               settings.nonfinite == "skip", is_shared=True)
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
        """Names of those, and a bool tensor of which are finite.

        In all replicas: a micro-batch is good in all of them or in none. Costs
        a pass over each gradient.
        """
        names, flags = [], []
        for variable, grad in zip(self.model_variables, self._grads):
            names.append(variable.name)
            flags.append(_all_finite(
                getattr(grad, "values", grad), replicas.name_of(variable)))
        if self._loss is not None:
            names.append("the loss " + self._loss.name)
            flags.append(_all_finite(self._loss, "average_loss"))
        weight = self._settings.weight
        if weight is not None:
            names.append("the weight " + weight.name)
            flags.append(_all_finite(
                tf.cast(weight, tf.float64, name="weight/cast"), "weight"))
        return names, replicas.all_true(tf.stack(flags, name="each"))

    def add(self, scale, loss_scale, good=None, after=()):
        """Ops that add one micro-batch.

            total += weight * g / unit

        Args:
          scale: what the gradients are still to be multiplied by, a Python
            float or a scalar tensor.
          loss_scale: likewise, of the loss.
          good: scalar bool tensor, whether the micro-batch is to count, or None
            for always.
          after: list of ops that have to have run before anything is added.
        """
        counts, scalars, grads, include = self._make_ready(
            scale, loss_scale, good)

        # A run that fails counts nothing; one that fails before it knows the
        # loss (its input has ended) adds nothing. To wait for all gradients
        # before the first is added would hold all of them in memory at once.
        # That goes for what fails in another replica too.
        complete = replicas.all_of(tf.group(*self.needed, name="complete"))
        # TensorFlow may make something else of a loss that is divided by the
        # replicas, but not of what is added for it.
        first = complete if self._loss is None else replicas.all_of(
            scalars[-1][1] if replicas.inside() else self._loss)

        def add(terms):
            return [accumulator.add(value, scope)
                    for accumulator, value, scope in terms]

        def add_terms():
            with tf.control_dependencies([first]):
                ops = add(grads)
            with tf.control_dependencies([complete]):
                return ops + add(scalars)

        with tf.control_dependencies(after):
            with tf.control_dependencies([complete]):
                ops = add(counts)
            if include is None:
                return ops + add_terms()
            return ops + [gate.run_if(
                include, lambda _: tf.group(*add_terms(), name="included"))]

    def _make_ready(self, scale, loss_scale, good):
        """What is to be added: lists of (accumulator, value, scope).

        It is made ready outside of the gate and of what it waits for, so that
        the op that adds depends on them itself: TensorFlow leaves that to an
        input that is made inside, and its optimizers may take such an input
        away.

        Returns:
          Those that count the micro-batch, those of its scalars, those of its
          gradients, and whether to add these two: a scalar bool tensor, or None
          for always.
        """
        def ready(accumulator, value, by=None):
            with tf.name_scope(accumulator.name) as scope:
                return accumulator, accumulator.ready(value, by), scope

        scalars, include = [], good
        counts = [ready(self._count, tf.ones([], tf.int64, name="one")
                        if good is None else good)]
        if self._skipped is not None:
            counts.append(ready(
                self._skipped, tf.logical_not(good, name="not_good")))
        if self._weight is not None:
            scalars.append(ready(self._weight, self._settings.weight))
            # What weighs nothing is left out: 0 * NaN is NaN.
            include = tf.not_equal(scalars[0][1], 0., name="weighs_something")
            if good is not None:
                include = tf.logical_and(good, include, name="is_included")
        if self._loss_total is not None:
            loss = (self._loss if self._loss.shape.rank == 0
                    else tf.reshape(self._loss, [], name="scalar_loss"))
            scalars.append(ready(self._loss_total, loss, gradients.factor(
                loss_scale, self._loss_total.dtype, "loss_scale")))
        factors = self._in_each_dtype(scale, "scale")
        grads = [ready(accumulator, grad, factors[accumulator.dtype])
                 for accumulator, grad in zip(self._accumulators, self._grads)]
        return counts, scalars, grads, include

    def _in_each_dtype(self, scale, name):
        """A dict from each type that is added up in to `scale` as its factor.

        Made here, each once, and not for each accumulator.
        """
        return {dtype: gradients.factor(scale, dtype, name + "/" + dtype.name)
                for dtype in dict.fromkeys(
                    accumulator.dtype for accumulator in self._accumulators)}

    def reset(self):
        """Ops that empty the window."""
        ops = []
        for accumulator in self._reset_with_window():
            with tf.name_scope(accumulator.name) as scope:
                ops.append(accumulator.reset(scope))
        return ops

    def holds_something(self):
        """Whether there is anything to apply, a scalar bool tensor."""
        with tf.name_scope("holds_something") as scope:
            return tf.not_equal(self._read_weight(), 0., name=scope)

    def is_full(self):
        """Whether it holds k micro-batches, a scalar bool tensor."""
        with tf.name_scope("is_full") as scope:
            return replicas.first_of(tf.greater_equal(
                self._count.read("count"),
                tf.cast(self._settings.k, tf.int64, name="k"), name=scope))

    def read_count(self):
        """The count, read where it is called."""
        return replicas.first_of(self._count.read("count"))

    def read_weight(self):
        """The sum of the weights, None when there are none."""
        return None if self._weight is None else replicas.mean_of(
            self._weight.read("weight"))

    def read_skipped(self):
        """The micro-batches skipped so far, None when none ever are."""
        return None if self._skipped is None else replicas.first_of(
            self._skipped.read("skipped"))

    def read_accumulators(self):
        """What the accumulators hold, read where it is called."""
        totals = []
        for accumulator in self._accumulators:
            with tf.name_scope(accumulator.name) as scope:
                totals.append(replicas.together(
                    accumulators.sum_of, accumulator.read(scope)))
        return totals

    def read_average_loss(self, name):
        """The mean loss, 0 in an empty window; None without a loss."""
        if self._loss_total is None:
            return None
        with tf.name_scope(name) as scope:
            total = self._loss_total.read("total")
            return replicas.sum_of_losses(tf.multiply(total, tf.cast(
                self._rescale(), total.dtype, name="cast"), name=scope))

    def read_reduced(self):
        """The pairs for the optimizer: mean or sum, read where it is called.

            mean = (w_1 g_1 + ... + w_r g_r) / unit * (unit / (w_1 + ... + w_r))
        """
        if self._settings.reduction == "mean":
            rescale = self._rescale()
            full = tf.equal(rescale, 1., name="full")
            factors = self._in_each_dtype(rescale, "rescale")

        def reduced(values):
            if self._settings.reduction == "sum":
                # The loss was divided by the replicas: a sum of losses, as
                # weighted, is no mean over them.
                number = 1 if self._weight is None else replicas.in_sync()
                return values if number == 1 else tf.multiply(
                    values, tf.cast(number, values.dtype), name="sum")
            return gate.scale_unless(
                full, values, factors[values.dtype], name="mean")

        pairs = []
        for accumulator, variable in zip(
                self._accumulators, self.model_variables):
            with tf.name_scope(accumulator.name):
                pairs.append((self._as_gradient(accumulators.map_values(
                    reduced, accumulator.read("total")), variable), variable))
        return pairs

    def _as_gradient(self, total, variable):
        dtype = variable.dtype.base_dtype
        # Optimizers add up the rows of one index themselves; but a norm must
        # not see them apart, nor must they be rounded before they are added,
        # nor sent apart.
        if (self._settings.transform is not None or total.dtype != dtype
                or self._settings.worker_device is not None):
            total = accumulators.sum_duplicates(total)
        return accumulators.map_values(
            lambda values: tf.cast(values, dtype, name="cast"), total)

    def _rescale(self):
        """What turns a window's totals into means: unit / sum of weights."""
        with tf.name_scope("rescale") as scope:
            return tf.math.divide_no_nan(
                tf.constant(self._settings.unit, tf.float64, name="unit"),
                self._read_weight(), name=scope)

    def _read_weight(self):
        # What one of the replicas has, in the mean: the optimizer adds up what
        # they hand it. The same in all, so that they apply together.
        accumulator = self._weight or self._count
        return replicas.mean_of(tf.cast(
            accumulator.read(accumulator.name), tf.float64, name="cast"))

    def _reset_with_window(self):
        scalars = [self._count, self._weight, self._loss_total]
        return [accumulator for accumulator in scalars + self._accumulators
                if accumulator is not None]


def _all_finite(values, name):
    rank = values.shape.rank
    if rank == 0:
        return tf.math.is_finite(values, name=name)
    with tf.name_scope(name) as scope:
        axes = (list(range(rank)) if rank is not None
                else tf.range(tf.rank(values, name="rank"), name="axes"))
        return tf.reduce_all(tf.math.is_finite(values, name="is_finite"),
                             axis=axes, name=scope)
