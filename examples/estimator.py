"""Trains an Estimator, whose train op applies at every k-th run.

The optimizer of the model function is wrapped; `max_steps` counts windows.

    python examples/estimator.py --help
"""

import argparse
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

import digits
import tf1accum


def input_fn(size):
    """Batches of `size` of the images to train on, in one order, endless."""
    images, labels = digits.load_digits()[0]
    return tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(
        len(labels), seed=2).repeat().batch(size)


def model_fn(features, labels, mode, params):
    """The network, without batch normalisation, by momentum."""
    training = mode == tf.estimator.ModeKeys.TRAIN
    loss = digits.mean_loss(
        digits.network(features, training, normalise=False), labels)
    optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
    if params["k"] > 1:
        optimizer = tf1accum.AccumulatingOptimizer(optimizer, params["k"])
    return tf.estimator.EstimatorSpec(
        mode, loss=loss, train_op=optimizer.minimize(
            loss, tf.train.get_global_step()) if training else None)


def train(k, size, steps, folder):
    """Trains for `steps` windows of `k` batches; returns the weights."""
    estimator = tf.estimator.Estimator(
        model_fn, folder, tf.estimator.RunConfig(tf_random_seed=0), {"k": k})
    estimator.train(lambda: input_fn(size), max_steps=steps)
    result = estimator.evaluate(lambda: input_fn(size), steps=10)
    print("{} windows of {} x {} images: global step {}, loss {:.4f}".format(
        steps, k, size, result["global_step"], result["loss"]))
    return [estimator.get_variable_value(name)
            for name in estimator.get_variable_names()
            if name.startswith("network/") and "Momentum" not in name]


def main():
    parser = argparse.ArgumentParser(
        description="Trains an Estimator on handwritten digits.")
    parser.add_argument("--k", type=digits.positive, default=4,
                        help="micro-batches in a window (default: 4)")
    parser.add_argument("--steps", type=digits.positive, default=20,
                        help="windows to train for (default: 20)")
    arguments = parser.parse_args()
    k, steps = arguments.k, arguments.steps

    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    if not hasattr(tf, "estimator"):
        print("TensorFlow {} has no Estimators; 2.15 is the last that "
              "has.".format(tf.__version__))
        return
    size = digits.MICRO_BATCH
    with tempfile.TemporaryDirectory() as folder:
        accumulated = train(k, size, steps, folder + "/windows")
        whole = train(1, k * size, steps, folder + "/whole")
    print("{0} windows of {1} micro-batches against {0} whole batches:\n"
          "largest difference between weights {2:.1e}".format(steps, k, max(
              np.max(np.abs(a - b)) for a, b in zip(accumulated, whole))))


if __name__ == "__main__":
    main()
