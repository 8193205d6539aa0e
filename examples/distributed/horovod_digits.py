"""Trains on handwritten digits on several processes, with Horovod.

Each process accumulates k micro-batches of its own; then their means are
reduced, once a window, and all apply the same. The program ends with how far
the processes are from each other, and from one that takes the whole batches.

    horovodrun -np 2 python examples/distributed/horovod_digits.py
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

try:
    import horovod.tensorflow as hvd
except ImportError:
    hvd = None


def reduce_over_workers(pairs):
    """The mean of each gradient over the processes."""
    return [(hvd.allreduce(grad), variable) for grad, variable in pairs]


def train(k, steps):
    """The weights after `steps` windows of k micro-batches a process."""
    with tf.Graph().as_default():
        # Other weights in each process, until those of the first are sent.
        tf.set_random_seed(hvd.rank())
        images, labels = digits.placeholders()
        loss = digits.mean_loss(
            digits.network(images, training=True, normalise=False), labels)
        opt = tf1accum.AccumulatingOptimizer(
            tf.train.MomentumOptimizer(0.1, 0.9), k,
            transform=reduce_over_workers)
        train_op = opt.minimize(loss, tf.train.get_or_create_global_step())

        variables = tf.trainable_variables()
        of_first = [hvd.broadcast(tf.identity(variable), 0)
                    for variable in variables]

        # Every so many micro-batches one is for this process.
        micro_batches = itertools.islice(
            digits.batches(digits.load_digits()[0], digits.MICRO_BATCH,
                           seed=2), hvd.rank(), None, hvd.size())
        with tf.train.MonitoredTrainingSession(
                hooks=[hvd.BroadcastGlobalVariablesHook(0)]) as sess:
            for image_batch, label_batch in itertools.islice(
                    micro_batches, steps * k):
                sess.run(train_op, feed_dict={
                    images: image_batch, labels: label_batch})
            return sess.run_step_fn(lambda step_context:
                                    step_context.session.run(
                                        [variables, of_first]))


def furthest(some, others):
    """The largest difference between the arrays of two lists."""
    return max(np.max(np.abs(one - other))
               for one, other in zip(some, others))


def main():
    parser = argparse.ArgumentParser(
        description="Trains on handwritten digits on several processes.")
    parser.add_argument("--k", type=digits.positive, default=4,
                        help="micro-batches in a window (default: 4)")
    parser.add_argument("--steps", type=digits.positive, default=20,
                        help="windows to train for (default: 20)")
    arguments = parser.parse_args()
    k, steps = arguments.k, arguments.steps
    if hvd is None:
        sys.exit("needs Horovod: HOROVOD_WITH_TENSORFLOW=1 pip install "
                 "--no-build-isolation horovod (and TensorFlow 1.15 or 2.15)")

    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    hvd.init()
    weights, of_first = train(k, steps)
    print("process {} of {}: {} micro-batches; largest difference from the "
          "weights of process 0: {:.1e}".format(
              hvd.rank(), hvd.size(), k * steps, furthest(weights, of_first)))
    if hvd.rank() == 0:
        whole = digits.weights_after(
            steps, k * hvd.size(), whole_batches=True)
        print("{} windows, {} micro-batches in each of them, against {} whole "
              "batches:\nlargest difference between weights {:.1e}".format(
                  steps, k * hvd.size(), steps, furthest(weights, whole)))


if __name__ == "__main__":
    main()
