"""What a window should hold, and what it should do, in plain NumPy.

Written from what the docstrings say and from the published rules of the
optimizers, never from the code under test. Everything is kept dense, so that no
trick of the library's is in here: of a sparse gradient, a table of zeros with
the rows added in, and a mark for each row that was touched.
"""

import collections
import copy

import numpy as np

MicroBatch = collections.namedtuple("MicroBatch", ["grads", "loss", "weight"])

# The numbers of the optimizers are exact in every type: TensorFlow's own
# versions differ in the type that they are rounded to.
RATE = 0.125
MOMENTUM = 0.875
BETA1, BETA2 = 0.875, 0.984375
# Of this size it shows a wrong scale, which plain Adam hides.
EPSILON = 1.

# A sparse gradient; a dense one is an array.
Rows = collections.namedtuple("Rows", ["ids", "values"])


class NotFinite(Exception):
    """A micro-batch was refused."""


class Sgd:
    """value -= rate * grad."""

    slots = {}
    # Whether rows that nobody looked up keep still. Zeros do nothing here.
    lazy = False
    rate = RATE

    def __init__(self):
        self.powers = {}

    def new_value(self, value, grad, slots):
        """The new value; slots, arrays by name, are replaced in `slots`.

        All is computed in the type of `value`, as in TensorFlow's kernels.
        """
        del slots
        return value - value.dtype.type(self.rate) * grad

    def end_step(self):
        """What happens once a step, after all variables."""


class Momentum(Sgd):
    """momentum = decay * momentum + grad; value -= rate * momentum."""

    slots = {"momentum": 0.}
    lazy = True

    def new_value(self, value, grad, slots):
        number = value.dtype.type
        slots["momentum"] = number(MOMENTUM) * slots["momentum"] + grad
        return value - number(self.rate) * self.direction(
            grad, number(MOMENTUM), slots["momentum"])

    def direction(self, grad, decay, momentum):
        """What the value moves along."""
        del grad, decay
        return momentum


class Nesterov(Momentum):
    """As momentum; value -= rate * (grad + decay * momentum)."""

    def direction(self, grad, decay, momentum):
        return grad + decay * momentum


class Adagrad(Sgd):
    """accumulator += grad^2; value -= rate * grad / sqrt(accumulator)."""

    slots = {"accumulator": 0.1}

    def new_value(self, value, grad, slots):
        slots["accumulator"] = slots["accumulator"] + grad * grad
        return value - value.dtype.type(self.rate) * grad / np.sqrt(
            slots["accumulator"])


class Adam(Sgd):
    """m and v decay, and the value moves, in all rows, also with rows.

        m = b1 m + (1 - b1) grad; v = b2 v + (1 - b2) grad^2
        value -= rate sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + epsilon)
    """

    slots = {"m": 0., "v": 0.}
    # The betas take most of it away in the first steps.
    rate = 16. * RATE

    def __init__(self):
        self.powers = {"beta1_power": np.float32(BETA1),
                       "beta2_power": np.float32(BETA2)}

    def new_value(self, value, grad, slots):
        number = value.dtype.type
        one, beta1, beta2 = number(1.), number(BETA1), number(BETA2)
        rate = number(self.rate) * np.sqrt(
            one - number(self.powers["beta2_power"])) / (
                one - number(self.powers["beta1_power"]))
        slots["m"] = beta1 * slots["m"] + (one - beta1) * grad
        slots["v"] = beta2 * slots["v"] + (one - beta2) * grad * grad
        return value - rate * slots["m"] / (
            np.sqrt(slots["v"]) + number(EPSILON))

    def end_step(self):
        self.powers["beta1_power"] *= np.float32(BETA1)
        self.powers["beta2_power"] *= np.float32(BETA2)


OPTIMIZERS = {"adagrad": Adagrad, "adam": Adam, "momentum": Momentum,
              "nesterov": Nesterov, "sgd": Sgd}


def clipped(means, values, norm=1.):
    """All scaled by one factor, to a global norm of `norm` at most."""
    del values
    now = np.sqrt(sum(np.sum(np.square(mean.astype(np.float64)))
                      for mean in means))
    return [mean * mean.dtype.type(min(1., norm / now) if now else 1.)
            for mean in means]


def decayed(means, values, decay=0.25):
    """The gradient of an added decay / 2 * |value|^2."""
    return [mean + mean.dtype.type(decay) * value
            for mean, value in zip(means, values)]


class Window:
    """The program as a whole: model, optimizer and window."""

    def __init__(self, values, kept_as_rows, optimizer, unit, reduction="mean",
                 nonfinite="propagate", transform=None):
        """Starts with an empty window.

        Args:
          values: list of arrays, the variables of the model.
          kept_as_rows: list of bools, whose gradients are kept as rows.
          optimizer: an instance of one of `OPTIMIZERS`.
          unit: what a total is divided by when it is a mean: k, or 1 where k is
            not known when the graph is built.
          reduction: as for `tf1accum.build`.
          nonfinite: as for `tf1accum.build`.
          transform: function of the lists of means and values that returns
            the list of what to apply, or None.
        """
        self.values = [np.array(value) for value in values]
        self.optimizer = optimizer
        self.slots = [
            {name: np.full_like(value, start)
             for name, start in optimizer.slots.items()} for value in values]
        self.global_step = 0
        self.skipped = 0
        self._kept_as_rows = kept_as_rows
        self._unit = unit
        self._reduction = reduction
        self._nonfinite = nonfinite
        self._transform = transform
        self.reset()

    def copy(self):
        """All of it as it is now, as a checkpoint keeps it."""
        return copy.deepcopy(self)

    def reset(self):
        """Empties the window."""
        self.count = 0
        self.weight = 0.
        self._loss = 0.
        self._totals = [np.zeros(value.shape) for value in self.values]
        self._touched = [
            np.zeros(value.shape[0], bool) if rows else None
            for value, rows in zip(self.values, self._kept_as_rows)]

    def accumulate(self, micro_batch):
        """Adds a `MicroBatch`.

        Raises:
          NotFinite: it is not, and is to be refused; nothing was changed.
        """
        if self._nonfinite != "propagate" and not is_finite(micro_batch):
            if self._nonfinite == "raise":
                raise NotFinite
            self.skipped += 1
            return
        weight = 1. if micro_batch.weight is None else float(
            micro_batch.weight)
        self.count += 1
        self.weight += weight
        if weight == 0.:
            return
        self._loss += weight * float(micro_batch.loss)
        for i, grad in enumerate(micro_batch.grads):
            if isinstance(grad, Rows):
                np.add.at(self._totals[i], grad.ids,
                          weight * grad.values.astype(np.float64))
                if self._touched[i] is not None:
                    self._touched[i][grad.ids] = True
            else:
                self._totals[i] += weight * grad.astype(np.float64)

    def apply(self):
        """One step of the optimizer, if the window holds something."""
        if self.weight == 0.:
            return
        divisor = self.weight if self._reduction == "mean" else 1.
        grads = [(total / divisor).astype(value.dtype)
                 for total, value in zip(self._totals, self.values)]
        if self._transform is not None:
            grads = self._transform(grads, self.values)
        for value, grad, slots, touched in zip(
                self.values, grads, self.slots, self._touched):
            rows = Ellipsis
            if touched is not None:
                # What a transform adds, it adds to the rows that are there.
                grad[~touched] = 0.
                rows = touched if self.optimizer.lazy else Ellipsis
            picked = {name: slot[rows] for name, slot in slots.items()}
            value[rows] = self.optimizer.new_value(
                value[rows], grad[rows], picked)
            for name, slot in slots.items():
                slot[rows] = picked[name]
        self.optimizer.end_step()
        self.global_step += 1

    def average_loss(self):
        """The mean loss of the open window, 0 in one that holds nothing."""
        return self._loss / self.weight if self.weight else 0.

    def accumulators(self):
        """What each accumulator holds, as a dense array."""
        unit = self._unit if self._reduction == "mean" else 1
        return [total / unit for total in self._totals]

    def touched(self):
        """For each variable kept as rows the ids that came, else None."""
        return [None if touched is None else np.flatnonzero(touched)
                for touched in self._touched]


def is_finite(micro_batch):
    """Whether all of it is."""
    parts = [getattr(grad, "values", grad) for grad in micro_batch.grads]
    parts.append(micro_batch.loss)
    if micro_batch.weight is not None:
        parts.append(micro_batch.weight)
    return all(np.isfinite(part).all() for part in parts)
