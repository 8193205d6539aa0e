"""The ways to train on a window, and what none of them can do without.

Each way is a function of a `Model` that adds to its graph what it needs, and
returns a function of a `Window` that trains on it, as a program would. All
train the same variables with the same optimizer, one after the other. Those
that people use instead of tf1accum are told here in words of our own; what
their authors fetch, we fetch.
"""

import collections

import numpy as np
import tensorflow.compat.v1 as tf

import tf1accum

# Feeds: of each micro-batch a dict, and of all of them as one batch.
Window = collections.namedtuple("Window", ["micro_batches", "whole"])

# `build` as above; `steps`: what is one step of the optimizer, a "window", a
# "micro-batch" or the "whole" batch; `passes`: function of k, see `windows.py`.
Contestant = collections.namedtuple(
    "Contestant", ["title", "build", "steps", "passes"])


class Model:
    """A workload's graph and session, to which ways to train it are added.

    Made in a graph of its own.
    """

    def __init__(self, workload, k):
        self.k = k
        self.workload = workload
        tf.set_random_seed(0)
        self.session = tf.Session()
        self.inputs = workload.placeholders()
        self.loss = workload.loss_fn(self.inputs)
        self.variables = tf.trainable_variables()
        self.statistics = [variable for variable in tf.global_variables()
                           if not variable.trainable]
        self.update_ops = list(tf.get_collection(tf.GraphKeys.UPDATE_OPS))
        self.optimizer = workload.optimizer()
        self._random = np.random.RandomState(1)

    @property
    def bytes(self):
        """The bytes of all parameters."""
        return sum(variable.dtype.base_dtype.size
                   * variable.shape.num_elements()
                   for variable in self.variables)

    def initialize(self):
        """Gives all variables, the model's and others, their first values."""
        self.session.run(tf.global_variables_initializer())

    def draw(self):
        """A window of new examples."""
        size = self.workload.batch
        arrays = self.workload.draw(self.k * size, self._random)
        return Window([
            self._feed([array[i * size:(i + 1) * size] for array in arrays])
            for i in range(self.k)], self._feed(arrays))

    def _feed(self, arrays):
        return dict(zip(self.inputs, arrays))

    def values(self):
        """The values of the model's variables."""
        return self.session.run(self.variables + self.statistics)


class Bare:
    """What no way to train can do without, and what all must lead to.

    Attributes:
      ops: list of the ops that compute the gradients of a micro-batch.
      apply: op that applies gradients that are there already.
      sparse: bool, whether some of them are rows.
    """

    def __init__(self, model):
        self._model = model
        pairs = model.optimizer.compute_gradients(model.loss, model.variables)
        self._parts = [parts_of(grad) for grad, _ in pairs]
        # To be run as they are. Behind a tf.group, of which nobody uses the
        # values, TensorFlow's graph optimizer leaves the work out.
        self.ops = [part.op for parts in self._parts
                    for part in parts] + model.update_ops
        self._given = [self._make_given(*pair) for pair in pairs]
        self.apply = model.optimizer.apply_gradients([
            (tf.IndexedSlices(*given) if len(given) > 1 else given[0],
             variable) for given, (_, variable) in zip(self._given, pairs)])
        self.sparse = any(len(parts) > 1 for parts in self._parts)

    def _make_given(self, grad, variable):
        """The parts of a gradient that is there; a feed may replace them.

        Of rows, there are those of a whole window.
        """
        shape = variable.shape.as_list()
        if not isinstance(grad, tf.IndexedSlices):
            return [tf.placeholder_with_default(random_variable(shape), shape)]
        rows = self._model.k * self._model.workload.batch
        return [tf.placeholder_with_default(given, [None] + shape[1:])
                for shape, given in (
                    (shape, random_variable([rows] + shape[1:])),
                    ([None], random_variable(
                        [rows], grad.indices.dtype, shape[0])))]

    def remember_start(self):
        """Has the model start from where it is."""
        model = self._model
        self.start = model.values()
        # One run for all: each that is new costs a pass over the graph.
        variables = model.variables + model.statistics
        self._placeholders = [
            tf.placeholder(variable.dtype.base_dtype, variable.shape)
            for variable in variables]
        self._back = tf.group(
            *[variable.assign(value) for variable, value in zip(
                variables, self._placeholders)],
            tf.variables_initializer(model.optimizer.variables()))

    def restart(self):
        """Brings the model back to there, and its optimizer to no past."""
        self._model.session.run(
            self._back, dict(zip(self._placeholders, self.start)))

    def trained(self, steps):
        """The values that training leads to: the mean is NumPy's.

        Args:
          steps: list of lists of feeds, the micro-batches of each step.
        """
        run = self._model.session.run
        self.restart()
        for step in steps:
            fetched = [run([self._parts, self._model.update_ops], feed)[0]
                       for feed in step]
            feed = {}
            for given, parts in zip(self._given, zip(*fetched)):
                feed.update(zip(given, mean_of_parts(parts)))
            run(self.apply, feed)
        return self._model.values()


def random_variable(shape, dtype=tf.float32, highest=1):
    """A resource variable with memory of its own.

    Equal zeros would be made once, and shared by all who start with them.
    """
    return tf.Variable(
        lambda: tf.random_uniform(shape, 0, highest, dtype), trainable=False,
        use_resource=True, dtype=dtype, name="random")


def parts_of(grad):
    """A tensor or its value, or what the rows are and where: a list."""
    if hasattr(grad, "indices"):
        return [grad.values, grad.indices]
    return [grad]


def mean_of_parts(grads):
    """The mean of what was fetched of one gradient, as its parts."""
    if len(grads[0]) > 1:
        return [np.concatenate([values for values, _ in grads]) / len(grads),
                np.concatenate([indices for _, indices in grads])]
    return [np.mean([values for values, in grads], axis=0)]


def bare(model, ops):
    """k runs of `ops`, the gradients, with which nothing is done."""
    return _every_run(model, ops)


def bare_callable(model, ops):
    """The same, by what `make_callable` makes of them."""
    run = model.session.make_callable(ops, feed_list=model.inputs)

    def train(window):
        for feed in window.micro_batches:
            run(*feed.values())
    return train


def each(model):
    """No accumulation: a step of the optimizer on each micro-batch."""
    return _every_run(model, _minimize(model))


def whole(model):
    """No accumulation: one step on the whole batch."""
    train_op = _minimize(model)

    def train(window):
        model.session.run(train_op, window.whole)
    return train


def _minimize(model):
    with tf.control_dependencies(model.update_ops):
        return model.optimizer.minimize(model.loss, var_list=model.variables)


def _every_run(model, fetches):
    def train(window):
        for feed in window.micro_batches:
            model.session.run(fetches, feed)
    return train


def recipe(model):
    """The first Stack Overflow answer: ops run by hand.

    The lists of tensors are fetched, so that each run brings all accumulators
    to Python. (What the answer takes from `initialized_value` is zeros of
    known shapes: newer TensorFlow does not have it.)
    """
    totals = [tf.Variable(tf.zeros(variable.shape), trainable=False)
              for variable in model.variables]
    zero = [total.assign(tf.zeros_like(total)) for total in totals]
    pairs = model.optimizer.compute_gradients(model.loss, model.variables)
    add = [total.assign_add(tf.convert_to_tensor(grad) / model.k)
           for total, (grad, _) in zip(totals, pairs)]
    apply = model.optimizer.apply_gradients(
        list(zip(totals, model.variables)))
    average_loss = tf.Variable(0., trainable=False)
    add_loss = average_loss.assign_add(model.loss / model.k)
    zero_loss = average_loss.assign(0.)

    def train(window):
        run = model.session.run
        for feed in window.micro_batches:
            run([add, add_loss, model.update_ops], feed)
        run(apply)
        run(average_loss)
        run([zero, zero_loss])
    return train


def numpy_mean(model):
    """The second answer: gradients are fetched, averaged, fed in their place.
    """
    pairs = model.optimizer.compute_gradients(model.loss, model.variables)
    parts = [parts_of(grad) for grad, _ in pairs]
    apply = model.optimizer.apply_gradients(pairs)

    def train(window):
        fetched = [model.session.run([parts, model.update_ops], feed)[0]
                   for feed in window.micro_batches]
        feed = {}
        for tensors, values in zip(parts, zip(*fetched)):
            feed.update(zip(tensors, mean_of_parts(values)))
        model.session.run(apply, feed)
    return train


def wrapper(model):
    """An optimizer of the published shape: `tf.cond` around its apply.

    As published it applies the sum; the loss is divided by k, as its users do.
    """
    totals = [tf.Variable(tf.zeros(variable.shape), trainable=False)
              for variable in model.variables]
    counter = tf.Variable(0, trainable=False)
    pairs = model.optimizer.compute_gradients(
        model.loss / model.k, model.variables)
    added = [total.assign_add(tf.convert_to_tensor(grad))
             for total, (grad, _) in zip(totals, pairs)]
    with tf.control_dependencies(added + model.update_ops):
        count = counter.assign_add(1)

    def apply_and_zero():
        applied = model.optimizer.apply_gradients([
            (total.read_value(), variable)
            for total, variable in zip(totals, model.variables)])
        with tf.control_dependencies([applied]):
            return tf.group(*[total.assign(tf.zeros_like(total))
                              for total in totals])

    train_op = tf.cond(
        tf.equal(count % model.k, 0), apply_and_zero, tf.no_op)
    return _every_run(model, train_op)


def build(model):
    """`tf1accum.build`, its ops run by `session.run`."""
    ops = tf1accum.build(model.loss, model.variables, model.optimizer, model.k)

    def train(window):
        for feed in window.micro_batches:
            model.session.run(ops.accumulate, feed)
        model.session.run(ops.apply_and_reset)
    return train


def build_callable(model):
    """`tf1accum.build`, its ops run by what `make_callable` makes of them."""
    ops = tf1accum.build(model.loss, model.variables, model.optimizer, model.k)
    accumulate = model.session.make_callable(
        ops.accumulate, feed_list=model.inputs)
    apply_and_reset = model.session.make_callable(ops.apply_and_reset)

    def train(window):
        for feed in window.micro_batches:
            accumulate(*feed.values())
        apply_and_reset()
    return train


def accumulating_optimizer(model):
    """`tf1accum.AccumulatingOptimizer`: one train op."""
    return _every_run(model, tf1accum.AccumulatingOptimizer(
        model.optimizer, model.k).minimize(
            model.loss, var_list=model.variables))


def host(model):
    """`tf1accum.build_host`: gradients fetched, added up, and fed."""
    ops = tf1accum.build_host(model.loss, model.variables, model.optimizer)
    mean = ops.running_mean()

    def train(window):
        for feed in window.micro_batches:
            mean.add(model.session.run(
                [ops.gradients, model.update_ops], feed)[0])
        model.session.run(ops.apply, ops.feed_dict(mean.value()))
        mean.reset()
    return train


def microbatch(model):
    """`tf1accum.microbatch_gradients`: the whole batch, split in the graph."""
    pairs, _ = tf1accum.microbatch_gradients(
        model.workload.loss_fn, model.inputs, model.k)
    train_op = model.optimizer.apply_gradients(pairs)

    def train(window):
        model.session.run(train_op, window.whole)
    return train


def from_zeros(k):
    """Each gradient added to what is there, and zeros written once."""
    return 3 * k + 1


def first_taken_over(k):
    """The first gradient's buffer kept, each other one added to it."""
    return 3 * (k - 1)


def in_numpy(k):
    """Likewise, and all divided by k."""
    return 3 * (k - 1) + 2


CONTESTANTS = collections.OrderedDict([
    ("each", Contestant("minimize each", each, "micro-batch", None)),
    ("whole", Contestant("whole batch", whole, "whole", None)),
    ("recipe", Contestant("session recipe", recipe, "window", from_zeros)),
    ("numpy", Contestant("NumPy recipe", numpy_mean, "window", in_numpy)),
    ("wrapper", Contestant("tf.cond wrapper", wrapper, "window", from_zeros)),
    ("build", Contestant("tf1accum.build", build, "window", from_zeros)),
    ("callable", Contestant("  make_callable", build_callable, "window",
                            from_zeros)),
    ("optimizer", Contestant("AccumulatingOptimizer", accumulating_optimizer,
                             "window", from_zeros)),
    ("host", Contestant("build_host", host, "window", in_numpy)),
])
if hasattr(tf1accum, "microbatch_gradients"):
    CONTESTANTS["microbatch"] = Contestant(
        "microbatch_gradients", microbatch, "window", first_taken_over)
