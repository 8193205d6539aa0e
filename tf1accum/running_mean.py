"""A running mean, in NumPy, of gradients that were fetched."""

import numbers

import numpy as np
import tensorflow.compat.v1 as tf

from tf1accum import feeds
from tf1accum import gradients


class RunningMean:
    """The mean of gradients that were fetched: the mean, not the sum.

        value = (w_1 g_1 + ... + w_r g_r) / (w_1 + ... + w_r)

    It needs no session, and memory for one micro-batch's gradients: sparse
    ones are kept as rows, each index once. Half-precision ones are added up in
    float32.

    The one thing to know: `value` leaves it as it is. Run `reset` before the
    next window, or take a new one.

    Attributes:
      count: int, the micro-batches added since it was empty.
    """

    def __init__(self, entries):
        """Made by `HostOps.running_mean`, of the feeds of its gradients."""
        self._feeds = entries
        self.reset()

    def add(self, values, weight=1.):
        """Adds one micro-batch.

        Args:
          values: dict, what `sess.run(host.gradients)` returned.
          weight: number, what the micro-batch counts for (its examples, its
            tokens), not negative. One that weighs 0 adds nothing, whatever its
            gradients are.

        Raises:
          TypeError: a value or the weight is of the wrong type.
          ValueError: a value or the weight has a wrong value, as for
            `HostOps.feed_dict`. The mean stays as it was.
        """
        who = "tf1accum.RunningMean.add"
        weight = _checked_weight(who, weight)
        checked = feeds.checked_values(who, self._feeds, values, self._totals)
        self.count += 1
        if weight == 0.:
            return
        self._weight += weight
        for feed, value in zip(self._feeds, checked):
            if feed.name not in self._totals:
                self._totals[feed.name] = _make_total(feed, value)
            self._totals[feed.name].add(value, weight)

    def value(self):
        """The mean, for `HostOps.feed_dict`.

        Returns:
          A dict from name to array, float32 for half-precision gradients; for
          sparse ones to a tuple such as was added, each index once.

        Raises:
          RuntimeError: nothing that weighs anything was added.
        """
        if not self._totals:
            raise RuntimeError(
                "tf1accum.RunningMean.value: a mean needs a micro-batch that "
                "weighs something; got nothing since it was empty. Call "
                "add(sess.run(host.gradients)) first.")
        return {name: total.divided_by(self._weight)
                for name, total in self._totals.items()}

    def reset(self):
        """Empties it."""
        self.count = 0
        self._weight = 0.
        self._totals = {}

    def __repr__(self):
        return "<RunningMean of {} micro-batches>".format(self.count)


def _make_total(feed, value):
    """A total of zeros, for values such as `value`."""
    dtype = np.dtype(gradients.wide_dtype(feed.dtype).as_numpy_dtype)
    if hasattr(value, "indices"):
        return _RowsTotal(value, dtype)
    return _ArrayTotal(value.shape, dtype)


class _ArrayTotal:
    """The total of arrays, in place."""

    def __init__(self, shape, dtype):
        self._total = np.zeros(shape, dtype)
        self.sizes = shape

    def add(self, array, weight):
        """Adds `array * weight`."""
        np.add(self._total, _weighted(array, self._total.dtype, weight),
               out=self._total)

    def divided_by(self, weight):
        """The mean, where `weight` is the sum of the weights."""
        return np.asarray(self._total / weight, self._total.dtype)


class _RowsTotal:
    """The total of rows.

    Those that came lately wait in a list until they are more than the rows
    already summed, so that a row is sorted few times, however long the window.
    """

    def __init__(self, value, dtype):
        self._like = value
        self._dtype = dtype
        self.row_shape = tf.TensorShape(value.values.shape[1:])
        self._pieces = [(value.indices[:0], value.values[:0].astype(dtype))]
        self._summed = self._waiting = 0

    def add(self, value, weight):
        """Adds the rows of `value`, times `weight`."""
        self._pieces.append((
            value.indices.copy(),
            _weighted(value.values, self._dtype, weight).copy()))
        self._waiting += value.indices.size
        if self._waiting > self._summed:
            self._sum_duplicates()

    def _sum_duplicates(self):
        indices, values = (np.concatenate(part)
                           for part in zip(*self._pieces))
        if indices.size:
            # Sorted rows are added up much faster than by np.add.at.
            order = np.argsort(indices, kind="mergesort")
            indices, first = np.unique(indices[order], return_index=True)
            values = np.add.reduceat(values[order], first, axis=0)
        self._pieces = [(indices, values)]
        self._summed, self._waiting = indices.size, 0

    def divided_by(self, weight):
        """The mean, where `weight` is the sum of the weights."""
        self._sum_duplicates()
        indices, values = self._pieces[0]
        return self._like._replace(
            values=np.asarray(values / weight, self._dtype),
            indices=indices.copy())


def _weighted(array, dtype, weight):
    array = array.astype(dtype, copy=False)
    return array if weight == 1. else np.asarray(array * weight, dtype)


def _checked_weight(who, weight):
    number = weight.item() if getattr(weight, "shape", None) == () else weight
    if isinstance(number, bool) or not isinstance(number, numbers.Real):
        raise TypeError(
            "{}: weight must be a number; got {!r}.".format(who, weight))
    if not 0. <= number < float("inf"):
        raise ValueError(
            "{}: weight must be finite and not negative; got {!r}.".format(
                who, weight))
    return float(number)
