"""Trains on handwritten digits on several devices, with MirroredStrategy.

Each device accumulates k micro-batches of its own; then their means are
reduced, once a window, and all apply the same. The devices are the GPUs, or two
logical CPUs where there are none. The program ends with the accuracy on digits
it has not seen, and with how far the weights are from those of one device that
takes the whole batches: rounding, which grows as it trains (see `--steps 10`).

    python examples/distributed/mirrored.py --help
"""

import argparse
import itertools
import os
import sys

import numpy as np
import tensorflow.compat.v1 as tf

import tf1accum

# The network is that of the example one folder up.
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import digits


def find_devices():
    """The GPUs, or two logical CPUs."""
    gpus = tf.config.experimental.list_physical_devices("GPU")
    return ["/gpu:%d" % i for i in range(len(gpus))] or ["/cpu:0", "/cpu:1"]


def mean_loss(images, labels):
    scores = digits.network(images, training=True, normalise=False)
    return digits.mean_loss(scores, labels)


def on_one_device(images, labels):
    """The op that takes a step on a whole batch."""
    return tf.train.MomentumOptimizer(0.1, 0.9).minimize(
        mean_loss(images, labels))


def on_all_devices(strategy, k, images, labels):
    """The op that takes a micro-batch on each device, and each k-th time a
    step."""

    def replica():
        context = tf.distribute.get_replica_context()
        number, replicas = (context.replica_id_in_sync_group,
                            context.num_replicas_in_sync)
        loss = mean_loss(images[number::replicas], labels[number::replicas])
        opt = tf1accum.AccumulatingOptimizer(
            tf.train.MomentumOptimizer(0.1, 0.9), k)
        # What the replicas hand to the optimizer is added up.
        return opt.minimize(loss / replicas,
                            tf.train.get_or_create_global_step())

    # TensorFlow 1.15 has it by another name.
    run = getattr(strategy, "run", None) or strategy.experimental_run_v2
    with strategy.scope():
        return run(replica)


def train(build, runs, size):
    """The weights and the test accuracy after `runs` batches of `size`.

    Args:
      build: function of images and labels that returns the train op.
    """
    train_data, test_data = digits.load_digits()
    with tf.Graph().as_default():
        images, labels = digits.placeholders()
        # The same weights to start with, whatever else the graph holds.
        with tf.variable_scope("", initializer=tf.glorot_uniform_initializer(
                seed=0)):
            train_op = build(images, labels)
            scores = digits.network(images, training=False, normalise=False)
        accuracy = tf.reduce_mean(tf.cast(
            tf.equal(tf.argmax(scores, axis=1), labels), tf.float32))

        with tf.Session(config=tf.ConfigProto(
                device_count={"CPU": 2}, allow_soft_placement=True)) as sess:
            sess.run(tf.global_variables_initializer())
            batches = digits.batches(train_data, size, seed=2)
            for image_batch, label_batch in itertools.islice(batches, runs):
                sess.run(train_op, feed_dict={
                    images: image_batch, labels: label_batch})
            return sess.run([tf.trainable_variables(), accuracy], feed_dict={
                images: test_data[0], labels: test_data[1]})


def main():
    parser = argparse.ArgumentParser(
        description="Trains on handwritten digits on several devices.")
    parser.add_argument("--k", type=digits.positive, default=4,
                        help="micro-batches in a window (default: 4)")
    parser.add_argument("--steps", type=digits.positive, default=50,
                        help="windows to train for (default: 50)")
    arguments = parser.parse_args()
    k, steps = arguments.k, arguments.steps

    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    devices = find_devices()
    strategy = tf.distribute.MirroredStrategy(devices)
    size = digits.MICRO_BATCH * len(devices)
    weights, accuracy = train(
        lambda *batch: on_all_devices(strategy, k, *batch), steps * k, size)
    whole, _ = train(on_one_device, steps, k * size)
    print("{} windows of {} micro-batches on each of {}\ntest accuracy: {:.4f}"
          "\nlargest difference from the weights of one device, that takes the "
          "whole batches: {:.1e}".format(
              steps, k, ", ".join(devices), accuracy, max(
                  np.max(np.abs(one - other))
                  for one, other in zip(weights, whole))))


if __name__ == "__main__":
    main()
