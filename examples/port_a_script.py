"""Ports a script that accumulates gradients by hand: before, and after.

Both train from the same start on the same digits. The program shows how many
lines accumulation takes in each, and how far the weights are apart.

    python examples/port_a_script.py --help
"""

import argparse
import inspect

import numpy as np
import tensorflow.compat.v1 as tf

import digits
import tf1accum

K = 4


def before(loss, optimizer):
    """What scripts have: variables for the totals, and three lists of ops."""
    variables = tf.trainable_variables()
    totals = [tf.Variable(tf.zeros(variable.shape), trainable=False)
              for variable in variables]
    grads_and_vars = optimizer.compute_gradients(loss, variables)
    accumulate = [total.assign_add(grad / K)
                  for total, (grad, _) in zip(totals, grads_and_vars)]
    apply = optimizer.apply_gradients(list(zip(totals, variables)))
    reset = [total.assign(tf.zeros(total.shape)) for total in totals]
    return accumulate, apply, reset


def after(loss, optimizer):
    """The same, ported."""
    ops = tf1accum.build(loss, optimizer=optimizer, k=K)
    return ops.accumulate, ops.apply, ops.reset


def weights_of(script, steps):
    """The weights after `steps` windows of `script`; its loop stays."""
    with tf.Graph().as_default(), tf.Session() as sess:
        tf.set_random_seed(0)
        images, labels = digits.placeholders()
        loss = digits.mean_loss(
            digits.network(images, training=True, normalise=False), labels)
        accumulate, apply, reset = script(
            loss, tf.train.MomentumOptimizer(0.1, 0.9))
        sess.run(tf.global_variables_initializer())
        whole = digits.batches(
            digits.load_digits()[0], K * digits.MICRO_BATCH, seed=2)
        for _ in range(steps):
            sess.run(reset)
            for batch in zip(*[np.split(part, K) for part in next(whole)]):
                sess.run(accumulate, dict(zip((images, labels), batch)))
            sess.run(apply)
        return sess.run(tf.trainable_variables())


def main():
    parser = argparse.ArgumentParser(description="Ports a script.")
    parser.add_argument("--steps", type=digits.positive, default=50,
                        help="windows to train for (default: 50)")
    steps = parser.parse_args().steps
    tf.disable_v2_behavior()
    for script in (before, after):
        print("lines that accumulate, {:7} {}".format(
            script.__name__ + ":", len(inspect.getsourcelines(script)[0]) - 2))
    print("largest difference of weights, {} windows of {}".format(steps, K))
    ported = weights_of(after, steps)
    for name, weights in (
            ("before", weights_of(before, steps)),
            ("whole batches", digits.weights_after(steps, K, True))):
        print("  after and {:14} {:.1e}".format(name + ":", max(
            np.max(np.abs(a - b)) for a, b in zip(ported, weights))))


if __name__ == "__main__":
    main()
