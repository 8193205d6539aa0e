"""The law: k micro-batches and one apply equal one step on the whole batch."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import models
import tf1accum

WINDOWS = 20
# How many micro-batches, and of which type. Each number is tried in float64
# below, and whatever of both in test_differential.py.
CELLS = [(1, tf.float32), (2, tf.float64), (5, tf.float32)]
LONGEST = 5


class Twins:
    """Two models from one start: one trained by windows, one by batches."""

    def __init__(self, optimizer, k, use_resource, dtype):
        scope = "k%d_%s" % (k, dtype.name)
        self.k, self.dtype = k, dtype
        self.windows = models.Regression(scope + "_windows", use_resource,
                                         dtype)
        self.wholes = models.Regression(scope + "_wholes", use_resource, dtype)
        self._optimizers = [models.OPTIMIZERS[optimizer]() for _ in range(2)]
        self.ops = tf1accum.build(
            self.windows.loss, self.windows.variables, self._optimizers[0], k)
        self.step = self._optimizers[1].minimize(
            self.wholes.loss, var_list=self.wholes.variables)
        batches = self.windows.batches(WINDOWS * k)
        self.batches = [batches[i:i + k] for i in range(0, len(batches), k)]

    def values(self, session):
        """Weights, slots and beta powers, of the one and of the other."""
        return session.run([
            model.variables + optimizer.variables() for model, optimizer in
            zip((self.windows, self.wholes), self._optimizers)])


@pytest.mark.parametrize("optimizer", sorted(models.OPTIMIZERS))
def test_k_micro_batches_and_an_apply_equal_one_step_on_the_whole_batch(
        behaviour, use_resource, optimizer):
    # TensorFlow's proximal optimizers take no float64 variables.
    cells = [Twins(optimizer, k, use_resource, tf.float32 if
                   optimizer.startswith("proximal") else dtype)
             for k, dtype in CELLS]
    with models.session() as session:
        for window in range(WINDOWS):
            for i in range(LONGEST):
                running = [cell for cell in cells if i < cell.k]
                session.run([cell.ops.accumulate for cell in running], {
                    key: value for cell in running for key, value in
                    cell.windows.feed(cell.batches[window][i]).items()})
            session.run([cell.ops.apply for cell in cells])
            session.run([cell.ops.reset for cell in cells])
            session.run([cell.step for cell in cells], {
                key: value for cell in cells for key, value in
                cell.wholes.feed(models.whole(cell.batches[window])).items()})
        for cell in cells:
            rounding = 2e-5 if cell.dtype == tf.float32 else 1e-12
            for one, other in zip(*cell.values(session)):
                if cell.k == 1:
                    np.testing.assert_array_equal(one, other)
                np.testing.assert_allclose(
                    one, other, rtol=rounding, atol=rounding,
                    err_msg="k=%d, %s" % (cell.k, cell.dtype.name))


@pytest.mark.parametrize("k", [1, 2, 5])
def test_sgd_by_windows_gives_the_numbers_of_numpy(
        behaviour, use_resource, k):
    model = models.Regression(use_resource=use_resource, dtype=tf.float64)
    ops = tf1accum.build(
        model.loss, optimizer=tf.train.GradientDescentOptimizer(0.1), k=k)
    values = list(model.start)
    batches = model.batches(3 * k)
    with models.session() as session:
        for start in range(0, len(batches), k):
            window = batches[start:start + k]
            for batch in window:
                session.run(ops.accumulate, model.feed(batch))
            session.run(ops.apply_and_reset)
            mean = [np.mean(grads, axis=0) for grads in zip(
                *[model.gradients(values, batch) for batch in window])]
            # The optimizer holds its rate as a float32.
            values = [v - np.float64(np.float32(0.1)) * g for v, g in zip(values, mean)]
            for got, expected in zip(session.run(model.variables), values):
                np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_adagrad_da_which_counts_its_own_steps_obeys_the_law(use_resource):
    results = []
    for scope in ("windows", "wholes"):
        with tf.Graph().as_default():
            model = models.Regression(scope, use_resource)
            step = tf.train.get_or_create_global_step()
            optimizer = tf.train.AdagradDAOptimizer(0.1, step)
            whole = optimizer.minimize(model.loss, global_step=step) \
                if scope == "wholes" else None
            ops = whole or tf1accum.build(
                model.loss, optimizer=optimizer, k=2, global_step=step)
            batches = model.batches(20)
            with models.session() as session:
                for pair in zip(batches[::2], batches[1::2]):
                    if whole is not None:
                        session.run(whole, model.feed(models.whole(pair)))
                        continue
                    for batch in pair:
                        session.run(ops.accumulate, model.feed(batch))
                    session.run(ops.apply_and_reset)
                results.append(session.run(model.variables + [step]))
    for one, other in zip(*results):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
