"""The models that the benchmarks train.

A model is a function of the tensors of a batch that returns its mean loss; its
variables are there once, however often it is called.
"""

import collections

import numpy as np
import tensorflow.compat.v1 as tf


class Workload(collections.namedtuple(
        "Workload", ["title", "loss_fn", "draw", "batch", "optimizer"])):
    """A model, and what it is trained on.

    Attributes:
      title: string, for tables.
      loss_fn: function of a list of tensors [examples, ...], returns the mean
        loss, a scalar tensor.
      draw: function of a number of examples and a `RandomState`, returns the
        list of arrays.
      batch: int, the examples of a micro-batch.
      optimizer: function that makes the optimizer.
    """

    def placeholders(self):
        """One for each array of `draw`, of any number of examples."""
        return [tf.placeholder(array.dtype, (None,) + array.shape[1:])
                for array in self.draw(1, np.random.RandomState(0))]


def adam():
    # With the default epsilon, rounding alone decides in which direction a
    # weight goes that has next to no gradient: results could not be compared.
    return tf.train.AdamOptimizer(1e-3, epsilon=1e-3)


def normal(name, shape, deviation):
    return tf.get_variable(
        name, shape, initializer=tf.random_normal_initializer(0., deviation))


def zeros(name, shape, **settings):
    return tf.get_variable(
        name, shape, initializer=tf.zeros_initializer(), **settings)


def model_scope():
    return tf.variable_scope("model", reuse=tf.AUTO_REUSE)


def layers(number, size, batch, bias=False, title=None):
    """`number` layers of [size, size], one after the other."""

    def loss_fn(inputs):
        hidden, = inputs
        with model_scope():
            for i in range(number):
                kernel = normal("kernel%d" % i, [size, size],
                                (2. / size) ** .5)
                hidden = tf.matmul(hidden, kernel)
                if bias:
                    hidden += zeros("bias%d" % i, [size])
                hidden = tf.nn.relu(hidden)
        return tf.reduce_mean(tf.reduce_sum(tf.square(hidden - 1.), axis=1))

    def draw(examples, random):
        return [random.randn(examples, size).astype(np.float32)]

    return Workload(title or "{} layers of {}".format(number, size), loss_fn,
                    draw, batch, adam)


def convolutional(side, channels, batch, depth=2, dense=64):
    """`depth` convolutions with batch norm, and two layers on their result.

    The first layer after the convolutions is [side * side * channels / 4,
    `dense`], and holds most of the parameters.
    """

    def loss_fn(inputs):
        images, labels = inputs
        with model_scope():
            hidden = images
            for i in range(depth):
                before = hidden.shape.as_list()[-1]
                kernel = normal("conv%d" % i, [3, 3, before, channels],
                                (2. / (9 * before)) ** .5)
                hidden = tf.nn.conv2d(
                    hidden, kernel, strides=[1, 1, 1, 1], padding="SAME")
                hidden = tf.nn.relu(_batch_norm(hidden, "norm%d" % i))
            hidden = tf.nn.avg_pool(
                hidden, [1, 2, 2, 1], [1, 2, 2, 1], padding="VALID")
            inner = (side // 2) ** 2 * channels
            hidden = tf.nn.relu(tf.matmul(
                tf.reshape(hidden, [-1, inner]),
                normal("dense", [inner, dense], (2. / inner) ** .5)))
            scores = tf.matmul(
                hidden, normal("scores", [dense, 10], dense ** -.5))
            return tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(
                    labels=labels, logits=scores))

    def draw(examples, random):
        return [random.randn(examples, side, side, 3).astype(np.float32),
                random.randint(10, size=[examples]).astype(np.int32)]

    return Workload("convolutions with batch norm", loss_fn, draw, batch, adam)


def _batch_norm(hidden, name, decay=.99):
    """Batch norm, whose statistics' moves are in `tf.GraphKeys.UPDATE_OPS`."""
    size = hidden.shape.as_list()[-1:]
    with tf.variable_scope(name):
        gamma = tf.get_variable("gamma", size,
                                initializer=tf.ones_initializer())
        beta = zeros("beta", size)
        moving = [zeros("mean", size, trainable=False),
                  zeros("variance", size, trainable=False)]
    outputs, mean, variance = tf.nn.fused_batch_norm(
        hidden, gamma, beta, epsilon=1e-3, is_training=True)
    for variable, value in zip(moving, (mean, variance)):
        tf.add_to_collection(
            tf.GraphKeys.UPDATE_OPS,
            variable.assign_sub((1. - decay) * (variable - value)).op)
    return outputs


def lstm(size, steps, batch):
    """A cell of `size` units, unrolled over `steps`."""

    def loss_fn(inputs):
        sequences, = inputs
        with model_scope():
            kernel = normal("kernel", [2 * size, 4 * size], size ** -.5)
            bias = zeros("bias", [4 * size])
        output = cell = tf.zeros_like(sequences[:, 0])
        loss = 0.
        for i in range(steps):
            gates = tf.matmul(
                tf.concat([sequences[:, i], output], 1), kernel) + bias
            write, forget, read, new = tf.split(gates, 4, axis=1)
            cell = (tf.sigmoid(forget + 1.) * cell
                    + tf.sigmoid(write) * tf.tanh(new))
            output = tf.sigmoid(read) * tf.tanh(cell)
            loss += tf.reduce_mean(tf.square(output - 1.))
        return loss

    def draw(examples, random):
        return [random.randn(examples, steps, size).astype(np.float32)]

    return Workload("LSTM, {} units, {} steps".format(size, steps), loss_fn,
                    draw, batch, adam)


def embedding(rows, size, batch):
    """`batch` lookups in a table, and a layer."""

    def loss_fn(inputs):
        ids, = inputs
        with model_scope():
            table = normal("table", [rows, size], 1.)
            kernel = normal("kernel", [size, size], size ** -.5)
        outputs = tf.matmul(tf.nn.embedding_lookup(table, ids), kernel)
        return tf.reduce_mean(tf.reduce_sum(tf.square(outputs - 1.), axis=1))

    def draw(examples, random):
        return [random.randint(rows, size=[examples]).astype(np.int32)]

    return Workload("embedding {:,} x {}".format(rows, size), loss_fn, draw,
                    batch, lambda: tf.train.AdagradOptimizer(.1))


# Functions that make them, by the names that the command line knows.
WORKLOADS = collections.OrderedDict([
    ("tiny", lambda: layers(40, 32, 8, title="40 variables of 32x32")),
    ("layers512", lambda: layers(8, 512, 32)),
    ("layers2048", lambda: layers(6, 2048, 32)),
    ("conv", lambda: convolutional(32, 32, 16)),
    ("lstm", lambda: lstm(128, 16, 16)),
    ("embedding", lambda: embedding(1000000, 64, 4096)),
    ("many", lambda: layers(250, 16, 8, bias=True, title="500 variables")),
])
