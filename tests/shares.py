"""What several workers train on, each on its share; and NumPy on the whole."""

import numpy as np
import tensorflow.compat.v1 as tf

import models
import numpy_window

K, WORKERS, WINDOWS = 3, 2, 3
RULES = {
    "adam": lambda: tf.train.AdamOptimizer(
        numpy_window.Adam.rate, numpy_window.BETA1, numpy_window.BETA2,
        numpy_window.EPSILON),
    "momentum": lambda: tf.train.MomentumOptimizer(
        numpy_window.RATE, numpy_window.MOMENTUM),
    "sgd": lambda: tf.train.GradientDescentOptimizer(numpy_window.RATE),
}
START = [np.float32([[.5, -.25], [1., .5], [-.75, 0.]]),
         np.linspace(-1., 1., 10).reshape([5, 2]).astype(np.float32)]


class Model:
    """Least squares with a table: loss = mean((x w + table[ids] - y)^2)."""

    def __init__(self, use_resource, start=START):
        self.x = tf.placeholder(tf.float32, [None, 3])
        self.ids = tf.placeholder(tf.int32, [None])
        self.y = tf.placeholder(tf.float32, [None, 2])
        with tf.variable_scope("", use_resource=use_resource):
            self.variables = [
                tf.get_variable(name, initializer=tf.constant(value))
                for name, value in zip(("w", "table"), start)]
        w, table = self.variables
        self.loss = tf.reduce_mean(tf.square(
            tf.matmul(self.x, w) + tf.nn.embedding_lookup(table, self.ids)
            - self.y))

    def feed(self, batch):
        """The feed of `batch`, a tuple of arrays."""
        return dict(zip((self.x, self.ids, self.y), batch))


def batches_of(worker, number=WINDOWS * K):
    """The micro-batches of a worker, of a few rows of the table each."""
    random = np.random.RandomState(worker)
    return [(random.randn(4, 3), random.choice(random.randint(0, 5, 2), 4),
             random.randn(4, 2)) for _ in range(number)]


def on_whole_batches(rule, rows, ends=range(K, K * WINDOWS + 1, K)):
    """The weights after each step on all that the workers have, by NumPy.

    Args:
      rule: key of `RULES`.
      rows: whether the gradient of the table is given as rows.
      ends: micro-batches of each worker that are done after each step.
    """
    window = numpy_window.Window(
        START, [False, rows], numpy_window.OPTIMIZERS[rule](), unit=1)
    shares = [batches_of(worker, max(ends)) for worker in range(WORKERS)]
    after, start = [], 0
    for end in ends:
        x, ids, y = models.whole(
            batch for share in shares for batch in share[start:end])
        w, table = window.values
        error = 2. * (x.dot(w) + table[ids] - y) / y.size
        window.accumulate(numpy_window.MicroBatch(
            [x.T.dot(error), numpy_window.Rows(ids, error)], 0., None))
        window.apply()
        window.reset()
        after.append([value.copy() for value in window.values])
        start = end
    return after


def assert_close(values, expected):
    """Raises unless both lists hold the same arrays, to rounding."""
    assert len(values) == len(expected)
    for value, wanted in zip(values, expected):
        np.testing.assert_allclose(value, wanted, rtol=2e-5, atol=2e-6)
