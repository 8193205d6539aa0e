"""Trains in a MonitoredTrainingSession, with a hook that applies at each k-th.

The program fetches the loss; the hook adds the rest. The session is stopped in
the middle of a window, and goes on from its checkpoint.

    python examples/monitored_session.py --help
"""

import argparse
import itertools
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

import digits
import tf1accum


def train(k, steps, folder, limit=None):
    """Trains up to `steps` windows, or for `limit` runs; all starts anew."""
    with tf.Graph().as_default():
        tf.set_random_seed(0)
        images, labels = digits.placeholders()
        loss = digits.mean_loss(
            digits.network(images, training=True, normalise=False), labels)
        step = tf.train.get_or_create_global_step()
        ops = tf1accum.build(
            loss, optimizer=tf.train.MomentumOptimizer(0.1, 0.9), k=k,
            global_step=step)

        with tf.train.MonitoredTrainingSession(
                checkpoint_dir=folder,
                # First, so that the session's own saver sees what it did.
                chief_only_hooks=[tf1accum.AccumulationHook(ops)],
                hooks=[tf.train.StopAtStepHook(last_step=steps)]) as sess:
            start, count = sess.run_step_fn(
                lambda step_context: step_context.session.run(
                    [step, ops.count]))
            print("starts at window {}, micro-batch {}".format(start, count))
            micro_batches = itertools.islice(
                digits.batches(digits.load_digits()[0], digits.MICRO_BATCH,
                               seed=2), start * k + count, limit)
            losses = []
            while not sess.should_stop():
                image_batch, label_batch = next(micro_batches)
                losses.append(sess.run(loss, feed_dict={
                    images: image_batch, labels: label_batch}))
        print("mean loss of its {} runs {:.4f}".format(
            len(losses), np.sum(losses) / max(len(losses), 1)))
        checkpoint = tf.train.load_checkpoint(folder)
        return [checkpoint.get_tensor(variable.op.name)
                for variable in tf.trainable_variables()]


def main():
    parser = argparse.ArgumentParser(
        description="Trains on handwritten digits in a monitored session.")
    parser.add_argument("--k", type=digits.positive, default=4,
                        help="micro-batches in a window (default: 4)")
    parser.add_argument("--steps", type=digits.positive, default=20,
                        help="windows to train for (default: 20)")
    arguments = parser.parse_args()
    k, steps = arguments.k, arguments.steps

    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        train(k, steps, folder, limit=(k * steps - 1) // 2)
        accumulated = train(k, steps, folder)
    whole = digits.weights_after(steps, k, whole_batches=True)
    print("{0} windows of {1} micro-batches against {0} whole batches:\n"
          "largest difference between weights {2:.1e}".format(steps, k, max(
              np.max(np.abs(a - b)) for a, b in zip(accumulated, whole))))


if __name__ == "__main__":
    main()
