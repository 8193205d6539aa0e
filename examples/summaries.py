"""Trains on handwritten digits, and writes for TensorBoard how it goes.

It writes the graph, the scalars and histograms of each window, and what each
op of a micro-batch and of an apply costs. At the end it prints the command
that shows them.

    python examples/summaries.py --help
"""

import argparse
import shlex
import tempfile

import tensorflow.compat.v1 as tf

import digits
import tf1accum


def build(k):
    """The model and its window, each in a scope of its own."""
    images, labels = digits.placeholders()
    scores = digits.network(images, training=True)
    with tf.name_scope("loss"):
        loss = digits.mean_loss(scores, labels)
    ops = tf1accum.build(
        loss, optimizer=tf.train.AdamOptimizer(2e-3), k=k,
        global_step=tf.train.get_or_create_global_step())
    return images, labels, ops


def train(k, steps, folder):
    """Trains for `steps` windows of `k` micro-batches, and writes in `folder`.

    Returns:
      The mean loss of the last window.
    """
    with tf.Graph().as_default() as graph:
        tf.set_random_seed(0)
        images, labels, ops = build(k)
        summary = tf1accum.add_summaries(ops, histograms=True)
        initializer = tf.global_variables_initializer()
        micro_batches = digits.batches(
            digits.load_digits()[0], digits.MICRO_BATCH, seed=1)

        def feed():
            return dict(zip((images, labels), next(micro_batches)))

        with tf.Session() as sess, tf.summary.FileWriter(
                folder, graph) as writer:
            sess.run(initializer)
            for step in range(1, steps + 1):
                for _ in range(k):
                    sess.run(ops.accumulate, feed())
                _, value = sess.run([ops.apply, summary])
                writer.add_summary(value, step)
                loss = sess.run(ops.average_loss)
                sess.run(ops.reset)
            for op, fed in ((ops.accumulate, feed()), (ops.apply, None)):
                profile(sess, op, fed, writer)
        return loss


def profile(sess, op, feed_dict, writer):
    """Writes what each op that `op` runs costs, under the name of `op`."""
    metadata = tf.RunMetadata()
    sess.run(op, feed_dict, tf.RunOptions(
        trace_level=tf.RunOptions.FULL_TRACE), metadata)
    writer.add_run_metadata(metadata, op.name)


def main():
    parser = argparse.ArgumentParser(
        description="Trains on handwritten digits, and writes for TensorBoard.")
    parser.add_argument("--k", type=digits.positive, default=4,
                        help="micro-batches in a window (default: 4)")
    parser.add_argument("--steps", type=digits.positive, default=100,
                        help="windows to train for (default: 100)")
    parser.add_argument("--log_dir", help="folder to write in (default: a new "
                        "temporary one)")
    arguments = parser.parse_args()

    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    folder = arguments.log_dir or tempfile.mkdtemp()
    loss = train(arguments.k, arguments.steps, folder)
    print("{} windows of {} micro-batches; mean loss of the last {:.4f}".format(
        arguments.steps, arguments.k, loss))
    print("to look at them: tensorboard --logdir {}".format(
        shlex.quote(folder)))


if __name__ == "__main__":
    main()
