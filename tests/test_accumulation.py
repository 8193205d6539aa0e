"""What the ops of a window do, between applies and at the edges."""

import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import models
import tf1accum
from conftest import in_pairs


@pytest.fixture
def model(use_resource):
    return models.Regression(use_resource=use_resource)


def build(model, optimizer=None, k=3, **kwargs):
    return tf1accum.build(
        model.loss, model.variables,
        optimizer=optimizer or tf.train.GradientDescentOptimizer(0.1), k=k,
        **kwargs)


def accumulate(session, ops, model, batches):
    for batch in batches:
        session.run(ops.accumulate, model.feed(batch))


def mean_gradients(model, batches):
    return [np.mean(grads, axis=0) for grads in zip(
        *[model.gradients(model.start, batch) for batch in batches])]


@pytest.mark.parametrize("optimizer", sorted(models.OPTIMIZERS))
@in_pairs
def test_between_applies_no_variable_outside_of_the_window_moves(
        behaviour, model, optimizer):
    step = tf.train.get_or_create_global_step()
    ops = build(model, models.OPTIMIZERS[optimizer](), global_step=step)
    with models.session() as session:
        for _ in range(2):
            before = models.outside_values(session, ops)
            for batch in model.batches(3):
                session.run(ops.accumulate, model.feed(batch))
                models.assert_same_bits(
                    before, models.outside_values(session, ops))
            session.run(ops.apply)
            before = models.outside_values(session, ops)
            session.run(ops.reset)
            models.assert_same_bits(
                before, models.outside_values(session, ops))


@pytest.mark.parametrize("optimizer, op", [("adam", "apply_and_reset")] + [
    (optimizer, "apply") for optimizer in sorted(models.OPTIMIZERS)])
def test_apply_with_nothing_accumulated_moves_nothing(
        behaviour, model, optimizer, op):
    step = tf.train.get_or_create_global_step()
    ops = build(model, models.OPTIMIZERS[optimizer](), global_step=step)
    with models.session() as session:
        before = models.outside_values(session, ops)
        for _ in range(3):
            session.run(getattr(ops, op))
        models.assert_same_bits(before, models.outside_values(session, ops))
        # Nor after slots have come to hold something, and a reset.
        accumulate(session, ops, model, model.batches(3))
        session.run(ops.apply_and_reset)
        before = models.outside_values(session, ops)
        session.run(getattr(ops, op))
        models.assert_same_bits(before, models.outside_values(session, ops))


def test_after_k_micro_batches_the_accumulators_hold_the_mean_gradient(
        behaviour, model):
    ops = build(model)
    batches = model.batches(3)
    with models.session() as session:
        accumulate(session, ops, model, batches)
        for got, expected in zip(
                session.run(ops.accumulators), mean_gradients(model, batches)):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
        assert session.run(ops.count) == 3
        np.testing.assert_allclose(
            session.run(ops.average_loss),
            np.mean([model.numpy_loss(model.start, b) for b in batches]),
            rtol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@in_pairs
def test_apply_uses_the_mean_of_what_was_really_accumulated(
        behaviour, model, size):
    """Rows B6, B8, A15 and A16.

    A short window is not divided by k, and does not wait for more; a long one
    counts exactly, and drops nothing.
    """
    ops = build(model, k=3)
    batches = model.batches(size)
    with models.session() as session:
        accumulate(session, ops, model, batches)
        np.testing.assert_allclose(
            session.run(ops.average_loss),
            np.mean([model.numpy_loss(model.start, b) for b in batches]),
            rtol=1e-6)
        session.run(ops.apply)
        mean = mean_gradients(model, batches)
        for got, start, grad in zip(
                session.run(model.variables), model.start, mean):
            np.testing.assert_allclose(got, start - 0.1 * grad, rtol=1e-5)


@pytest.mark.parametrize("size", [2, 3])
def test_sum_applies_the_sum_and_still_averages_the_loss(model, size):
    """Row B1: a sum is there for who asks for it."""
    ops = build(model, k=3, reduction="sum")
    batches = model.batches(size)
    with models.session() as session:
        accumulate(session, ops, model, batches)
        total = [size * grad for grad in mean_gradients(model, batches)]
        for got, expected in zip(session.run(ops.accumulators), total):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            session.run(ops.average_loss),
            np.mean([model.numpy_loss(model.start, b) for b in batches]),
            rtol=1e-6)
        session.run(ops.apply)
        for got, start, grad in zip(
                session.run(model.variables), model.start, total):
            np.testing.assert_allclose(got, start - 0.1 * grad, rtol=1e-5)


def test_average_loss_is_zero_in_an_empty_window(model):
    """Row B9: no NaN at the start."""
    ops = build(model)
    with models.session() as session:
        assert session.run(ops.average_loss) == 0.
        accumulate(session, ops, model, model.batches(1))
        session.run(ops.reset)
        assert session.run(ops.average_loss) == 0.
        assert session.run(ops.count) == 0


def test_average_loss_is_valid_right_after_apply(model):
    """Row B10: the window's loss, not the last micro-batch's."""
    ops = build(model)
    batches = model.batches(3)
    with models.session() as session:
        accumulate(session, ops, model, batches)
        session.run(ops.apply)
        np.testing.assert_allclose(
            session.run(ops.average_loss),
            np.mean([model.numpy_loss(model.start, b) for b in batches]),
            rtol=1e-6)


class BumpsGlobalStep(tf.train.GradientDescentOptimizer):
    """Like many hand-written optimizers: what it is given, it ignores."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        return super().apply_gradients(grads_and_vars)


@pytest.mark.parametrize(
    "optimizer_class", [tf.train.GradientDescentOptimizer, BumpsGlobalStep])
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
@in_pairs
def test_global_step_moves_by_one_with_each_apply(
        behaviour, model, use_resource, optimizer_class, dtype):
    """Row C4: neither two nor none."""
    step = tf.get_variable("step", [], dtype, tf.zeros_initializer(),
                           trainable=False, use_resource=use_resource)
    ops = build(model, optimizer_class(0.1), global_step=step)
    with models.session() as session:
        for window in range(1, 4):
            accumulate(session, ops, model, model.batches(3))
            assert session.run(step) == window - 1
            session.run(ops.apply_and_reset)
            assert session.run(step) == window


def test_update_sees_the_global_step_before_it_moves(behaviour, model):
    """Row C6: rate, step and update agree within a run."""
    step = tf.train.get_or_create_global_step()
    rate = tf.train.piecewise_constant(step, [0], [0.5, 0.])
    ops = build(model, tf.train.GradientDescentOptimizer(rate),
                global_step=step)
    with tf.Session() as session:
        for _ in range(50):
            session.run(tf.global_variables_initializer())
            batches = model.batches(3)
            accumulate(session, ops, model, batches)
            session.run(ops.apply)
            for got, start, grad in zip(
                    session.run(model.variables), model.start,
                    mean_gradients(model, batches)):
                np.testing.assert_allclose(
                    got, start - 0.5 * grad, rtol=1e-4, atol=1e-6)


class CountingOptimizer:
    """Any object with the two methods; here, one that adds the gradient."""

    def compute_gradients(self, loss, var_list):
        return list(zip(tf.gradients(loss, var_list), var_list))

    def apply_gradients(self, grads_and_vars):
        return tf.group(*[v.assign_add(g) for g, v in grads_and_vars])


def test_hundreds_of_windows_lose_nothing_and_tear_nothing(
        behaviour, use_resource):
    """Row A4: reset strictly after every variable's apply has read."""
    variables = [tf.get_variable("v%d" % i, [64], tf.float64,
                                 tf.zeros_initializer(),
                                 use_resource=use_resource)
                 for i in range(8)]
    x = tf.placeholder(tf.float64, [])
    ops = tf1accum.build_from_gradients(
        [(tf.fill([64], x * (i + 1)), v) for i, v in enumerate(variables)],
        optimizer=CountingOptimizer(), k=2, reduction="sum")
    with models.session() as session:
        for window in range(1, 251):
            for _ in range(2):
                session.run(ops.accumulate, {x: 1.})
            session.run(ops.apply_and_reset)
            if window % 50 == 0:
                for i, value in enumerate(session.run(variables)):
                    np.testing.assert_array_equal(
                        value, np.full(64, 2. * window * (i + 1)))


def test_eight_threads_lose_no_micro_batch(behaviour, use_resource):
    v = tf.get_variable("v", [100], tf.float64, tf.zeros_initializer(),
                        use_resource=use_resource)
    x = tf.placeholder(tf.float64, [])
    ops = tf1accum.build_from_gradients(
        [(tf.fill([100], x), v)], optimizer=CountingOptimizer(), k=4,
        loss=x * 2., reduction="sum")
    with models.session() as session:
        def run(thread):
            for _ in range(200):
                session.run(ops.accumulate, {x: float(thread)})
        threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # 200 * (0 + 1 + ... + 7), a whole number and so exact.
        np.testing.assert_array_equal(
            session.run(ops.accumulators[0]), np.full(100, 5600.))
        assert session.run(ops.count) == 1600
        assert session.run(ops.average_loss) == 2. * 5600. / 1600.


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_the_window_after_a_bad_one_and_a_reset_is_clean(
        behaviour, model, bad):
    """Row E13: a - a and a * 0 would keep the NaN."""
    ops = build(model)
    batches = model.batches(3)
    with models.session() as session:
        accumulate(session, ops, model, [(batches[0][0] * bad, batches[0][1])])
        assert not np.isfinite(session.run(ops.accumulators[0])).all()
        session.run(ops.reset)
        accumulate(session, ops, model, batches)
        for got, expected in zip(
                session.run(ops.accumulators), mean_gradients(model, batches)):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
        assert np.isfinite(session.run(ops.average_loss))


def test_nothing_is_added_to_a_finalised_graph(model):
    ops = build(model, tf.train.AdamOptimizer())
    saver = ops.model_saver()
    init = tf.global_variables_initializer()
    tf.get_default_graph().finalize()
    with tf.Session() as session:
        session.run(init)
        accumulate(session, ops, model, model.batches(3))
        session.run(ops.apply)
        session.run([ops.average_loss, ops.count, ops.accumulators])
        session.run(ops.reset)
        session.run(ops.apply_and_reset)
        session.run(ops.initializer)
    assert saver is not None


def test_the_initializer_starts_what_the_builder_added(model):
    """Row D12: the builder may be called after the script's own init ran."""
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(model.b.assign([7., 8.]))
        ops = build(model, tf.train.AdamOptimizer())
        session.run(ops.initializer)
        assert session.run(tf.report_uninitialized_variables()).size == 0
        np.testing.assert_array_equal(session.run(model.b), [7., 8.])
        accumulate(session, ops, model, model.batches(3))
        session.run(ops.apply)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_half_precision_gradients_add_up_in_float32(use_resource, dtype):
    """Rows E11 and E12: in half precision the sum stalls."""
    v = tf.get_variable("v", [1], dtype, tf.zeros_initializer(),
                        use_resource=use_resource)
    ops = tf1accum.build_from_gradients(
        [(tf.constant([0.5], dtype), v)],
        optimizer=tf.train.GradientDescentOptimizer(1.), k=1,
        reduction="sum")
    assert ops.accumulators[0].dtype == tf.float32
    with models.session() as session:
        for _ in range(4096):
            session.run(ops.accumulate)
        assert session.run(ops.accumulators[0]) == [2048.]
        session.run(ops.apply)
        assert session.run(tf.cast(v, tf.float32)) == [-2048.]


class WeightDecay(tf.train.GradientDescentOptimizer):
    """Not linear in the loss: adds 0.5 * variable to each gradient."""

    def compute_gradients(self, loss, var_list=None, **kwargs):
        return [(g + 0.5 * v, v) for g, v in super().compute_gradients(
            loss, var_list, **kwargs)]


def test_gradients_of_an_own_compute_gradients_are_averaged_as_they_are(
        model):
    ops = build(model, WeightDecay(0.1))
    batches = model.batches(3)
    with models.session() as session:
        accumulate(session, ops, model, batches)
        for got, start, grad in zip(
                session.run(ops.accumulators), model.start,
                mean_gradients(model, batches)):
            np.testing.assert_allclose(
                got, grad + 0.5 * start, rtol=1e-5, atol=1e-6)


def test_one_variable_gives_ops_as_many_do(use_resource):
    v = tf.get_variable("v", [], use_resource=use_resource)
    ops = tf1accum.build(
        v * v, v, optimizer=tf.train.GradientDescentOptimizer(0.1), k=1)
    for name in ("accumulate", "apply", "reset", "apply_and_reset",
                 "initializer"):
        assert isinstance(getattr(ops, name), tf.Operation)


@pytest.mark.parametrize("shape", [[], [1], None])
def test_a_loss_of_one_number_may_have_any_shape(shape):
    v = tf.get_variable("v", initializer=3.)
    loss = tf.placeholder_with_default(
        tf.reshape(v * v, shape or []), shape)
    ops = tf1accum.build(
        loss, [v], optimizer=tf.train.GradientDescentOptimizer(0.1), k=1)
    with models.session() as session:
        session.run(ops.accumulate)
        assert session.run([ops.average_loss] + ops.accumulators) == [9., 6.]


def test_build_from_gradients_takes_gradients_from_anywhere(model):
    """Row E16: gradients of another function than the optimizer's."""
    grads = tf.gradients(model.loss, model.variables)
    ops = tf1accum.build_from_gradients(
        list(zip(grads, model.variables)),
        optimizer=tf.train.GradientDescentOptimizer(0.1), k=3)
    assert ops.average_loss is None
    batches = model.batches(3)
    with models.session() as session:
        accumulate(session, ops, model, batches)
        for got, expected in zip(
                session.run(ops.accumulators), mean_gradients(model, batches)):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_a_run_whose_input_has_ended_adds_and_counts_nothing(behaviour):
    """The usual loop over an epoch ends in an error inside of a window."""
    w = tf.get_variable("w", initializer=0.)
    data = tf.data.Dataset.range(3)
    element = tf.cast(
        tf.data.make_one_shot_iterator(data).get_next(), tf.float32)
    # A part of the gradients does not need the input.
    b = tf.get_variable("b", initializer=0.)
    ops = tf1accum.build(
        w * element + b, optimizer=tf.train.GradientDescentOptimizer(1.), k=4)
    with models.session() as session:
        for run in range(3):
            session.run(ops.accumulate)
        for _ in range(100):
            with pytest.raises(tf.errors.OutOfRangeError):
                session.run(ops.accumulate)
        assert session.run(ops.count) == 3
        session.run(ops.apply_and_reset)
        np.testing.assert_allclose(session.run([w, b]), [-1., -1.])


def test_a_gradient_that_fails_is_not_counted(behaviour):
    v = tf.get_variable("v", initializer=[0., 0.])
    x = tf.placeholder(tf.float32, [2])
    grad = tf.check_numerics(x, "bad feed")
    ops = tf1accum.build_from_gradients(
        [(grad, v)], optimizer=tf.train.GradientDescentOptimizer(1.), k=2)
    with models.session() as session:
        session.run(ops.accumulate, {x: [1., 2.]})
        for _ in range(100):
            with pytest.raises(tf.errors.InvalidArgumentError):
                session.run(ops.accumulate, {x: [np.nan, 1.]})
        assert session.run(ops.count) == 1
        session.run(ops.apply)
        np.testing.assert_allclose(session.run(v), [-1., -2.])


@tf.custom_gradient
def clipped_on_the_way_back(x):
    return tf.identity(x), lambda grad: tf.clip_by_value(grad, -0.1, 0.1)


def in_a_function(x):
    """The same inside of what is one op to the outer graph."""
    return tf.while_loop(lambda i, x: i < 1, lambda i, x: (
        i + 1, clipped_on_the_way_back(x)), [0, x])[1]


@pytest.mark.parametrize("clip", [clipped_on_the_way_back, in_a_function])
def test_gradients_that_a_model_clips_itself_are_averaged_as_they_are(
        behaviour, clip):
    w = tf.get_variable("w", initializer=1., use_resource=True)
    ops = tf1accum.build(
        clip(w * 1.) * 3., [w],
        optimizer=tf.train.GradientDescentOptimizer(0.1), k=4)
    with models.session() as session:
        for _ in range(4):
            session.run(ops.accumulate)
        np.testing.assert_allclose(session.run(ops.accumulators), [0.1])


def test_an_override_on_the_object_is_averaged_as_it_is(model):
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    plain = optimizer.compute_gradients
    optimizer.compute_gradients = lambda *args, **kwargs: [
        (grad + 0.5 * v, v) for grad, v in plain(*args, **kwargs)]
    ops = build(model, optimizer)
    batches = model.batches(3)
    with models.session() as session:
        accumulate(session, ops, model, batches)
        for got, start, grad in zip(
                session.run(ops.accumulators), model.start,
                mean_gradients(model, batches)):
            np.testing.assert_allclose(
                got, grad + 0.5 * start, rtol=1e-5, atol=1e-6)


INITIAL_VALUES = {
    "zeros": lambda v: tf.zeros(v.shape),
    "zeros_like": lambda v: tf.zeros_like(v),
    "sum": lambda v: tf.constant(1.) + tf.zeros(v.shape) * 2. - 1.,
    "random": lambda v: tf.random_normal(v.shape) * 0.,
    "cond": lambda v: tf.cond(tf.constant(True), lambda: tf.zeros(v.shape),
                              lambda: tf.ones(v.shape)),
}


@pytest.mark.parametrize("initial_value", sorted(INITIAL_VALUES))
@in_pairs
def test_state_made_from_tensors_while_applying_can_be_initialised(
        behaviour, model, initial_value):

    class Optimizer(CountingOptimizer):
        def apply_gradients(self, grads_and_vars):
            ops = []
            for grad, v in grads_and_vars:
                total = tf.Variable(
                    INITIAL_VALUES[initial_value](v), trainable=False)
                ops += [total.assign_add(grad), v.assign_sub(0.1 * grad)]
            return ops

    ops = build(model, Optimizer())
    batches = model.batches(3)
    with models.session() as session:
        accumulate(session, ops, model, batches)
        session.run(ops.apply)
        for got, start, grad in zip(
                session.run(model.variables), model.start,
                mean_gradients(model, batches)):
            np.testing.assert_allclose(got, start - 0.1 * grad, rtol=1e-5)
    assert len(tf1accum.model_variables()) == 2
