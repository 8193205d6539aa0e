"""Trains on handwritten digits, with k micro-batches to each step.

The network is a small one with batch normalisation. The program shows the
loss as it goes, and ends with the accuracy on digits it has not seen, with
what the checkpoint holds, and with a check that k micro-batches do what one
whole batch does.

    python examples/digits.py --help
"""

import argparse
import os
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

import tf1accum

DATA = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "data", "digits.csv.gz")
HELD_OUT = 360
MICRO_BATCH = 32


def load_digits():
    """The (images, labels) to train on, and those held out for the test.

    The held-out ones are the last 360 of the 1,797 after a shuffle that is
    always the same.
    """
    rows = np.loadtxt(DATA, delimiter=",", dtype=np.float32)
    rows = rows[np.random.RandomState(0).permutation(len(rows))]
    images = rows[:, :64].reshape([-1, 8, 8, 1]) / 16.
    labels = rows[:, 64].astype(np.int64)
    return ((images[:-HELD_OUT], labels[:-HELD_OUT]),
            (images[-HELD_OUT:], labels[-HELD_OUT:]))


def batches(data, size, seed):
    """Batches of `size` examples, each example once an epoch, without end."""
    images, labels = data
    random = np.random.RandomState(seed)
    order = np.zeros([0], np.int64)
    while True:
        while len(order) < size:
            order = np.append(order, random.permutation(len(labels)))
        chosen, order = order[:size], order[size:]
        yield images[chosen], labels[chosen]


def placeholders():
    return (tf.placeholder(tf.float32, [None, 8, 8, 1], name="images"),
            tf.placeholder(tf.int64, [None], name="labels"))


def batch_norm(inputs, training, name, decay=0.9):
    """Normalises `inputs` by the statistics of the batch, or of the past."""
    size = [inputs.shape[-1]]
    zeros, ones = tf.zeros_initializer(), tf.ones_initializer()
    with tf.variable_scope(name):
        beta = tf.get_variable("beta", size, initializer=zeros)
        gamma = tf.get_variable("gamma", size, initializer=ones)
        moving_mean = tf.get_variable(
            "moving_mean", size, initializer=zeros, trainable=False)
        moving_variance = tf.get_variable(
            "moving_variance", size, initializer=ones, trainable=False)
    mean, variance = moving_mean, moving_variance
    if training:
        mean, variance = tf.nn.moments(
            inputs, axes=list(range(inputs.shape.rank - 1)))
        # The accumulate op finds these here, and runs them.
        for moving, batch in ((moving_mean, mean),
                              (moving_variance, variance)):
            tf.add_to_collection(
                tf.GraphKeys.UPDATE_OPS,
                moving.assign_sub((1. - decay) * (moving - batch),
                                  read_value=False))
    return tf.nn.batch_normalization(
        inputs, mean, variance, beta, gamma, variance_epsilon=1e-3)


def network(images, training, normalise=True):
    """Scores of the ten digits, [batch, 10], for images of [batch, 8, 8, 1]."""

    def conv(inputs, channels, name):
        kernel = tf.get_variable(
            name + "/kernel", [3, 3, inputs.shape[-1], channels])
        outputs = tf.nn.conv2d(
            inputs, kernel, strides=[1, 1, 1, 1], padding="SAME")
        if normalise:
            outputs = batch_norm(outputs, training, name + "_norm")
        return tf.nn.relu(outputs)

    with tf.variable_scope("network", reuse=tf.AUTO_REUSE):
        hidden = conv(images, 16, "conv1")
        hidden = tf.nn.max_pool(
            hidden, [1, 2, 2, 1], [1, 2, 2, 1], padding="VALID")
        hidden = conv(hidden, 32, "conv2")
        hidden = tf.reshape(hidden, [-1, 4 * 4 * 32])
        kernel = tf.get_variable("scores/kernel", [4 * 4 * 32, 10])
        bias = tf.get_variable(
            "scores/bias", [10], initializer=tf.zeros_initializer())
        return tf.matmul(hidden, kernel) + bias


def mean_loss(scores, labels):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=labels, logits=scores))


def train(k, steps, logdir):
    """Trains, prints the progress, and leaves a checkpoint in `logdir`."""
    train_data, test_data = load_digits()
    print("{:,} images to train on, {} held out; a window is {} micro-batches "
          "of {}".format(len(train_data[1]), HELD_OUT, k, MICRO_BATCH))
    with tf.Graph().as_default():
        tf.set_random_seed(0)
        images, labels = placeholders()
        loss = mean_loss(network(images, training=True), labels)
        scores = network(images, training=False)
        accuracy = tf.reduce_mean(tf.cast(
            tf.equal(tf.argmax(scores, axis=1), labels), tf.float32))

        ops = tf1accum.build(
            loss, optimizer=tf.train.AdamOptimizer(2e-3), k=k,
            global_step=tf.train.get_or_create_global_step())
        saver = tf1accum.model_saver()
        default_saver = tf.train.Saver()

        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            micro_batches = batches(train_data, MICRO_BATCH, seed=1)
            for step in range(1, steps + 1):
                for _ in range(k):
                    image_batch, label_batch = next(micro_batches)
                    sess.run(ops.accumulate, feed_dict={
                        images: image_batch, labels: label_batch})
                sess.run(ops.apply)
                if step % max(steps // 10, 1) == 0 or step == steps:
                    print("window {:4d} of {}: mean loss {:.4f}".format(
                        step, steps, sess.run(ops.average_loss)), flush=True)
                sess.run(ops.reset)
            print("test accuracy: {:.4f}".format(sess.run(accuracy, feed_dict={
                images: test_data[0], labels: test_data[1]})))

            path = saver.save(
                sess, os.path.join(logdir, "model.ckpt"), global_step=steps)
            with tempfile.TemporaryDirectory() as folder:
                print_checkpoints(path, default_saver.save(
                    sess, os.path.join(folder, "default.ckpt")))


def sizes(path):
    """The bytes of each variable in the checkpoint at `path`, by name."""
    checkpoint = tf.train.load_checkpoint(path)
    dtypes = checkpoint.get_variable_to_dtype_map()
    return {name: int(np.prod(shape)) * dtypes[name].size
            for name, shape in tf.train.list_variables(path)}


def print_checkpoints(path, default_path):
    """Prints what the checkpoint holds, and what a default one holds more."""
    held, held_by_default = sizes(path), sizes(default_path)
    print("\ncheckpoint: {}".format(path))
    for name in sorted(held_by_default, key=lambda name: (name not in held,
                                                          name)):
        print("  {:45} {:9,} bytes{}".format(
            name, held_by_default[name],
            "" if name in held else "  left out"))
    print("it holds {:,} bytes in {} variables; a default Saver would have put "
          "in\n{:,} bytes in {} variables".format(
              sum(held.values()), len(held), sum(held_by_default.values()),
              len(held_by_default)))


def weights_after(windows, k, whole_batches):
    """Weights after a few windows, or after as many steps on whole batches.

    Without batch normalisation: a micro-batch has other statistics than the
    whole batch, and so another loss.
    """
    with tf.Graph().as_default():
        tf.set_random_seed(0)
        images, labels = placeholders()
        loss = mean_loss(
            network(images, training=True, normalise=False), labels)
        # Not Adam: where the gradient is next to nothing, Adam makes a step
        # of what is left of it, the rounding.
        optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
        if whole_batches:
            step = optimizer.minimize(loss)
        else:
            ops = tf1accum.build(loss, optimizer=optimizer, k=k)

        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            whole = batches(load_digits()[0], k * MICRO_BATCH, seed=2)
            for _ in range(windows):
                image_batch, label_batch = next(whole)
                if whole_batches:
                    sess.run(step, feed_dict={
                        images: image_batch, labels: label_batch})
                    continue
                for i in range(0, k * MICRO_BATCH, MICRO_BATCH):
                    sess.run(ops.accumulate, feed_dict={
                        images: image_batch[i:i + MICRO_BATCH],
                        labels: label_batch[i:i + MICRO_BATCH]})
                sess.run(ops.apply_and_reset)
            return sess.run(tf.trainable_variables())


def check_law(k, windows=10):
    """Prints how far windows and whole batches are from each other."""
    accumulated = weights_after(windows, k, whole_batches=False)
    whole = weights_after(windows, k, whole_batches=True)
    print("\nwithout batch norm, {0} windows of {1} micro-batches against {0} "
          "whole batches:\nlargest difference between weights {2:.1e}".format(
              windows, k, max(np.max(np.abs(a - b))
                              for a, b in zip(accumulated, whole))))


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def main():
    parser = argparse.ArgumentParser(
        description="Trains on handwritten digits, with k micro-batches to "
        "each step.")
    parser.add_argument("--k", type=positive, default=4,
                        help="micro-batches in a window (default: 4)")
    parser.add_argument("--steps", type=positive, default=200,
                        help="windows to train for (default: 200)")
    parser.add_argument("--logdir", help="folder for the checkpoint (default: "
                        "a new temporary one)")
    arguments = parser.parse_args()

    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    logdir = arguments.logdir or tempfile.mkdtemp()
    os.makedirs(logdir, exist_ok=True)
    train(arguments.k, arguments.steps, logdir)
    check_law(arguments.k)


if __name__ == "__main__":
    main()
