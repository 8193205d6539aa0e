"""What is in event files, and what of a window ought to be, by NumPy."""

import collections
import glob
import os

import numpy as np
import tensorflow.compat.v1 as tf

TAGS = ["accumulation/average_loss", "accumulation/mean_gradient_norm",
        "accumulation/count"]


def events(folder):
    """All events in `folder`, in the order in which they were written."""
    for path in sorted(glob.glob(os.path.join(str(folder), "*tfevents*"))):
        for event in tf.train.summary_iterator(path):
            yield event


def written(folder):
    """A list of (step, {tag: value}) of the summaries that hold anything."""
    return [(event.step, values(event.summary)) for event in events(folder)
            if event.summary.value]


def values(summary):
    """{tag: float, or histogram} of a summary, or of its bytes."""
    if isinstance(summary, bytes):
        summary = tf.Summary.FromString(summary)
    return collections.OrderedDict(
        (value.tag, value.histo if value.HasField("histo")
         else value.simple_value) for value in summary.value)


def norm(gradients):
    """The norm of all of `gradients` as one vector."""
    return np.sqrt(sum(np.sum(np.square(gradient)) for gradient in gradients))


def numpy_window(model, current, batches, weights=None):
    """The mean loss and the mean gradients of a window, by NumPy."""
    weights = weights or [1.] * len(batches)
    losses = [model.numpy_loss(current, batch) for batch in batches]
    gradients = [model.gradients(current, batch) for batch in batches]
    mean = [sum(weight * gradient for weight, gradient in zip(weights, parts))
            / sum(weights) for parts in zip(*gradients)]
    return np.dot(weights, losses) / sum(weights), mean


def numpy_windows(model, batches, k):
    """[(mean loss, gradient norm)] of windows, by SGD at a rate of 0.1."""
    current, seen = [value.astype(np.float64) for value in model.start], []
    for first in range(0, len(batches), k):
        loss, mean = numpy_window(model, current, batches[first:first + k])
        seen.append((loss, norm(mean)))
        current = [value - .1 * grad for value, grad in zip(current, mean)]
    return seen


def assert_summarises(got, loss, gradient_norm, count, box="accumulation"):
    """Raises unless `got` ends with these values, under the tags of `box`."""
    assert list(got)[-3:] == [tag.replace("accumulation", box)
                              for tag in TAGS]
    np.testing.assert_allclose(
        list(got.values())[-3:], [loss, gradient_norm, count], rtol=1e-4)
