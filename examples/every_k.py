"""Trains by one train op, which applies at every k-th run.

For programs that run `train_op` and nothing else. The optimizer is wrapped,
and the rest of the program stays as it is; the global step counts applies.

    python examples/every_k.py --help
"""

import argparse

import numpy as np
import tensorflow.compat.v1 as tf

import digits
import tf1accum


def train(k, steps):
    """Trains for `steps` windows, and returns the weights after them."""
    with tf.Graph().as_default():
        tf.set_random_seed(0)
        images, labels = digits.placeholders()
        # Without batch normalisation: a micro-batch has other statistics than
        # the whole batch, and so another loss.
        loss = digits.mean_loss(
            digits.network(images, training=True, normalise=False), labels)
        global_step = tf.train.get_or_create_global_step()

        optimizer = tf1accum.AccumulatingOptimizer(
            tf.train.MomentumOptimizer(0.1, 0.9), k)
        train_op = optimizer.minimize(loss, global_step)

        micro_batches = digits.batches(
            digits.load_digits()[0], digits.MICRO_BATCH, seed=2)
        losses = []
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            for run in range(1, k * steps + 1):
                image_batch, label_batch = next(micro_batches)
                losses.append(sess.run([loss, train_op], feed_dict={
                    images: image_batch, labels: label_batch})[0])
                if run % (k * max(steps // 5, 1)) == 0:
                    print("run {:4d}, global step {:3d}: mean loss {:.4f}"
                          .format(run, sess.run(global_step),
                                  np.mean(losses[-k:])))
            return sess.run(tf.trainable_variables())


def main():
    parser = argparse.ArgumentParser(
        description="Trains on handwritten digits by a train op that applies "
        "at every k-th run.")
    parser.add_argument("--k", type=digits.positive, default=4,
                        help="micro-batches in a window (default: 4)")
    parser.add_argument("--steps", type=digits.positive, default=20,
                        help="windows to train for (default: 20)")
    arguments = parser.parse_args()

    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    accumulated = train(arguments.k, arguments.steps)
    whole = digits.weights_after(
        arguments.steps, arguments.k, whole_batches=True)
    print("{0} windows of {1} micro-batches against {0} whole batches:\n"
          "largest difference between weights {2:.1e}".format(
              arguments.steps, arguments.k, max(
                  np.max(np.abs(a - b)) for a, b in zip(accumulated, whole))))


if __name__ == "__main__":
    main()
