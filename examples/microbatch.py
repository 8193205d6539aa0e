"""Trains on batches that one run splits inside of the graph.

For programs that have the batch as a whole, and no memory to train on it so.

    python examples/microbatch.py --help
"""

import argparse

import numpy as np
import tensorflow.compat.v1 as tf

import digits
import tf1accum


def loss_fn(batch):
    """The mean loss of a dict of images [batch, 8, 8, 1] and labels [batch]."""
    # Without batch normalisation: a micro-batch has other statistics than the
    # whole batch, and so another loss.
    return digits.mean_loss(digits.network(
        batch["images"], training=True, normalise=False), batch["labels"])


def train(k, steps, batch_size):
    """Trains for `steps` runs, and looks at the gradient after them."""
    images, labels = digits.placeholders()
    inputs = {"images": images, "labels": labels}
    global_step = tf.train.get_or_create_global_step()

    pairs, average_loss = tf1accum.microbatch_gradients(loss_fn, inputs, k)
    grads, variables = zip(*pairs)
    clipped, _ = tf.clip_by_global_norm(grads, 5.)
    train_op = tf.train.AdamOptimizer(3e-3).apply_gradients(
        list(zip(clipped, variables)), global_step)

    of_whole_batch = tf.gradients(loss_fn(inputs), variables)
    batches = digits.batches(digits.load_digits()[0], batch_size, seed=2)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(1, steps + 1):
            image_batch, label_batch = next(batches)
            feed = {images: image_batch, labels: label_batch}
            loss, _ = sess.run([average_loss, train_op], feed_dict=feed)
            if step % max(steps // 5, 1) == 0:
                print("step {:3d}: mean loss {:.4f}".format(
                    sess.run(global_step), loss))
        ours, wholes = sess.run([grads, of_whole_batch], feed_dict=feed)
    print("{} micro-batches against one batch of {}:\n"
          "largest gradient {:.1e}, largest difference {:.1e}".format(
              k, batch_size, max(np.max(np.abs(grad)) for grad in wholes),
              max(np.max(np.abs(a - b)) for a, b in zip(ours, wholes))))


def main():
    parser = argparse.ArgumentParser(
        description="Trains on handwritten digits, each batch split inside of "
        "the graph.")
    parser.add_argument("--k", type=digits.positive, default=4,
                        help="micro-batches of a batch (default: 4)")
    parser.add_argument("--steps", type=digits.positive, default=60,
                        help="batches to train on (default: 60)")
    # The default k does not divide it, and need not.
    parser.add_argument("--batch", type=digits.positive, default=150,
                        help="examples in a batch (default: 150)")
    arguments = parser.parse_args()

    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    with tf.Graph().as_default():
        tf.set_random_seed(0)
        train(arguments.k, arguments.steps, arguments.batch)


if __name__ == "__main__":
    main()
