"""Small models, and what the tests compare them by."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

OPTIMIZERS = {
    "sgd": lambda: tf.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf.train.MomentumOptimizer(0.1, 0.9),
    "nesterov": lambda: tf.train.MomentumOptimizer(
        0.1, 0.9, use_nesterov=True),
    # An epsilon of this size shows a wrong scale, which plain Adam hides.
    "adam": lambda: tf.train.AdamOptimizer(0.1, epsilon=1.),
    "adagrad": lambda: tf.train.AdagradOptimizer(0.1),
    "adadelta": lambda: tf.train.AdadeltaOptimizer(1., epsilon=1e-2),
    "rmsprop": lambda: tf.train.RMSPropOptimizer(
        0.05, momentum=0.5, epsilon=1e-2),
    "centered_rmsprop": lambda: tf.train.RMSPropOptimizer(
        0.05, momentum=0.5, epsilon=1e-2, centered=True),
    "ftrl": lambda: tf.train.FtrlOptimizer(
        0.1, l1_regularization_strength=0.01),
    "proximal_adagrad": lambda: tf.train.ProximalAdagradOptimizer(
        0.1, l1_regularization_strength=0.01),
    "proximal_sgd": lambda: tf.train.ProximalGradientDescentOptimizer(
        0.1, l2_regularization_strength=0.01),
}


class Regression:
    """Least squares: loss = mean((x w + b - y)^2), a mean over examples."""

    def __init__(self, scope="model", use_resource=True, dtype=tf.float32,
                 seed=0, features=3, outputs=2):
        random = np.random.RandomState(seed)
        numpy_dtype = dtype.as_numpy_dtype
        self.start = [random.randn(features, outputs).astype(numpy_dtype),
                      random.randn(outputs).astype(numpy_dtype)]
        self.x = tf.placeholder(dtype, [None, features], scope + "_x")
        self.y = tf.placeholder(dtype, [None, outputs], scope + "_y")
        with tf.variable_scope(scope, use_resource=use_resource):
            self.w = tf.get_variable(
                "w", initializer=tf.constant(self.start[0]))
            self.b = tf.get_variable(
                "b", initializer=tf.constant(self.start[1]))
        self.variables = [self.w, self.b]
        self.loss = tf.reduce_mean(
            tf.square(tf.matmul(self.x, self.w) + self.b - self.y))

    def feed(self, batch):
        """The feed of `batch`, a pair of arrays."""
        return {self.x: batch[0], self.y: batch[1]}

    def batches(self, number, size=4, seed=1):
        """`number` pairs of arrays of `size` examples each."""
        random = np.random.RandomState(seed)
        return [(random.randn(size, int(self.x.shape[1])),
                 random.randn(size, int(self.y.shape[1])))
                for _ in range(number)]

    def gradients(self, values, batch):
        """The gradients at `values`, by NumPy.

            d loss / d w = 2 x^T (x w + b - y) / (size * outputs)
        """
        x, y = batch
        error = 2. * (x.dot(values[0]) + values[1] - y) / y.size
        return [x.T.dot(error), error.sum(axis=0)]

    def numpy_loss(self, values, batch):
        """The loss at `values`, by NumPy."""
        x, y = batch
        return np.mean(np.square(x.dot(values[0]) + values[1] - y))


def whole(batches):
    """The examples of `batches` as one batch."""
    return tuple(np.concatenate(part) for part in zip(*batches))


def session():
    """A session whose globals have been initialised."""
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    return session


def outside_values(session, ops):
    """All global variables that are not the window's own, by name.

    The optimizer's slots and beta powers included.
    """
    return dict(zip(
        [v.name for v in outside(ops)], session.run(outside(ops))))


def outside(ops):
    """The global variables outside of the box of `ops`."""
    return [variable for variable in tf.global_variables()
            if not variable.name.startswith(ops.name + "/")]


def assert_same_bits(before, after):
    """Raises unless both map the same names to bit-equal arrays."""
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)


def refuses(error_class, words, call):
    """Checks the error and its words, and that no op was added."""
    graph = tf.get_default_graph()
    before = graph.as_graph_def(), graph.get_all_collection_keys()
    with pytest.raises(error_class) as error:
        call()
    for word in words:
        assert word in str(error.value), str(error.value)
    assert (graph.as_graph_def(), graph.get_all_collection_keys()) == before
