"""Odd variables, and models with loops and branches."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import models
import tf1accum
from conftest import in_pairs


def sgd(rate=0.5):
    return tf.train.GradientDescentOptimizer(rate)


def train(ops, runs=2):
    """The global variables after `runs` micro-batches and an apply."""
    with models.session() as session:
        for _ in range(runs):
            session.run(ops.accumulate)
        session.run(ops.apply_and_reset)
        return session.run(ops.variables)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("listed", [False, True])
@in_pairs
def test_partitioned_variables_are_the_list_of_their_parts(
        behaviour, use_resource, listed, sparse):
    """Row D16."""
    w = tf.get_variable("w", [6, 2], initializer=tf.ones_initializer(),
                        partitioner=tf.fixed_size_partitioner(3),
                        use_resource=use_resource)
    rows = tf.nn.embedding_lookup(w, [0, 2, 2], partition_strategy="div")
    loss = tf.reduce_sum(rows if sparse else tf.convert_to_tensor(w) * 2.)
    ops = tf1accum.build(loss, [w] if listed else None, sgd(), k=2)
    assert [v.op.name for v in ops.variables] == [
        "w/part_0", "w/part_1", "w/part_2"]
    expected = np.zeros([6, 2])
    if sparse:
        expected = np.array([[.5, .5], [1, 1], [0, 0], [1, 1], [1, 1], [1, 1]])
    np.testing.assert_array_equal(np.concatenate(train(ops)), expected)


def test_a_partitioned_variable_may_be_the_whole_var_list():
    w = tf.get_variable("w", [4], initializer=tf.ones_initializer(),
                        partitioner=tf.fixed_size_partitioner(2))
    ops = tf1accum.build(tf.reduce_sum(tf.convert_to_tensor(w)), w, sgd(), k=2)
    np.testing.assert_array_equal(np.concatenate(train(ops)), np.full(4, 0.5))


@in_pairs
@pytest.mark.parametrize("sparse", [False, True])
def test_a_variable_whose_shape_is_known_at_run_time_alone(
        behaviour, use_resource, sparse):
    """Row D17."""
    size = tf.placeholder_with_default(3, [])
    v = tf.Variable(tf.ones([size, 2]), validate_shape=False, name="v",
                    use_resource=use_resource)
    loss = tf.reduce_sum(
        tf.gather(v, [1]) if sparse else tf.convert_to_tensor(v))
    ops = tf1accum.build(loss, [v], sgd(), k=2)
    expected = np.ones([3, 2])
    expected[[1] if sparse else slice(None)] = 0.5
    with models.session() as session:
        for _ in range(2):
            for _ in range(2):
                session.run(ops.accumulate)
            session.run(ops.apply)
            np.testing.assert_array_equal(session.run(v), expected)
            session.run(ops.reset)
            session.run(ops.apply)
            np.testing.assert_array_equal(session.run(v), expected)
            expected = expected - 0.5 * (expected < 1.)


@pytest.mark.parametrize("shape", [[], [0], [0, 4], [1], [2, 0, 3]])
@in_pairs
def test_scalars_and_variables_without_elements(behaviour, use_resource, shape):
    v = tf.get_variable("v", shape, initializer=tf.ones_initializer(),
                        use_resource=use_resource)
    b = tf.get_variable("b", initializer=1., use_resource=use_resource)
    ops = tf1accum.build(tf.reduce_sum(v) + b, [v, b], sgd(), k=2)
    got = train(ops)
    np.testing.assert_array_equal(got[0], np.full(shape, 0.5))
    assert got[1] == 0.5


def test_a_table_without_rows(behaviour):
    table = tf.get_variable("table", [0, 3], use_resource=True)
    ids = tf.placeholder_with_default(tf.zeros([0], tf.int32), [None])
    loss = tf.reduce_sum(tf.gather(table, ids))
    ops = tf1accum.build(loss, [table], sgd(), k=2)
    assert train(ops)[0].shape == (0, 3)


def test_variables_on_several_devices():
    config = tf.ConfigProto(device_count={"CPU": 2})
    variables = []
    for device in ("/cpu:0", "/cpu:1"):
        with tf.device(device):
            variables.append(tf.get_variable(
                "v" + device[-1], initializer=[1., 2.]))
            table = tf.get_variable(
                "t" + device[-1], [4, 2], initializer=tf.ones_initializer())
            variables.append(table)
    loss = tf.add_n([tf.reduce_sum(variables[0] * variables[2]),
                     tf.reduce_sum(tf.gather(variables[1], [1, 1])),
                     tf.reduce_sum(tf.gather(variables[3], [2]))])
    ops = tf1accum.build(loss, variables, sgd(), k=1)
    own = {v.op.name: v.device for v in tf.global_variables()
           if v.op.name.startswith("accumulation/")}
    assert own["accumulation/v1"] == "/device:CPU:1"
    assert own["accumulation/t1/values"] == "/device:CPU:1"
    with tf.Session(config=config) as session:
        session.run(tf.global_variables_initializer())
        session.run(ops.accumulate)
        session.run(ops.apply_and_reset)
        got = session.run(variables)
    np.testing.assert_array_equal(got[0], [0.5, 1.])
    np.testing.assert_array_equal(got[1][1], [0., 0.])
    np.testing.assert_array_equal(got[3][2], [0.5, 0.5])


def test_five_hundred_variables():
    variables = [tf.get_variable("v%d" % i, initializer=float(i))
                 for i in range(500)]
    loss = tf.add_n([v * (i + 1.) for i, v in enumerate(variables)])
    ops = tf1accum.build(loss, variables, sgd(1.), k=2)
    np.testing.assert_array_equal(train(ops), np.full(500, -1.))


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
@pytest.mark.parametrize("asked", [None, tf.float64])
def test_the_type_to_add_up_in(use_resource, dtype, asked):
    """Row E11."""
    v = tf.get_variable("v", [2], dtype, tf.ones_initializer(),
                        use_resource=use_resource)
    ops = tf1accum.build(
        tf.reduce_sum(tf.cast(v, tf.float32) * [1., 2.]), [v],
        sgd(), k=2, accumulator_dtype=asked)
    assert ops.accumulators[0].dtype == (asked or tf.float32)
    got = np.asarray(train(ops)[0]).astype(np.float32)
    np.testing.assert_array_equal(got, [0.5, 0.])


def test_a_half_precision_loss(behaviour):
    v = tf.get_variable("v", initializer=tf.constant([1., 2.], tf.float16))
    ops = tf1accum.build(tf.reduce_sum(v * v), [v], sgd(0.25), k=2)
    assert ops.average_loss.dtype == tf.float32
    np.testing.assert_array_equal(train(ops)[0], [0.5, 1.])


def loss_scale_optimizers():
    return {
        "fixed": lambda opt: tf.train.experimental
                 .MixedPrecisionLossScaleOptimizer(opt, 128.),
        "dynamic": lambda opt: tf.train.experimental
                   .MixedPrecisionLossScaleOptimizer(opt, "dynamic"),
    }


@pytest.mark.parametrize("kind", ["fixed", "dynamic"])
def test_gradients_of_a_loss_scaling_optimizer_are_added_unscaled(
        behaviour, kind):
    """Row E15, and B11: nor is the average loss the scaled one."""
    model = models.Regression(use_resource=True)
    optimizer = loss_scale_optimizers()[kind](sgd(0.1))
    ops = tf1accum.build(model.loss, model.variables, optimizer, k=2)
    batches = model.batches(2)
    with models.session() as session:
        for batch in batches:
            session.run(ops.accumulate, model.feed(batch))
        np.testing.assert_allclose(
            session.run(ops.average_loss),
            np.mean([model.numpy_loss(model.start, b) for b in batches]),
            rtol=1e-5)
        session.run(ops.apply)
        for got, start, grads in zip(
                session.run(model.variables), model.start,
                zip(*[model.gradients(model.start, b) for b in batches])):
            np.testing.assert_allclose(
                got, start - 0.1 * np.mean(grads, axis=0), rtol=1e-5)


def looped(w):
    return tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, h * w),
                         [0, tf.constant(1.)])[1]


def branched(w):
    return tf.cond(tf.placeholder_with_default(True, []),
                   lambda: w * w * w, lambda: w)


def scanned(w):
    return tf.scan(lambda h, _: h * w, tf.zeros([3]), tf.constant(1.))[-1]


def mapped(w):
    return tf.reduce_sum(tf.map_fn(lambda x: x * w * w * w, tf.ones([1])))


@pytest.mark.parametrize("cube", [looped, branched, scanned, mapped])
@pytest.mark.parametrize("ready", [False, True])
def test_models_with_loops_and_branches(behaviour, cube, ready):
    """Row A8: gradients are computed outside, however the loss comes about."""
    w = tf.get_variable("w", initializer=2., use_resource=True)
    loss = cube(w)
    ops = (tf1accum.build_from_gradients(
        [(tf.gradients(loss, w)[0], w)], sgd(), k=2, loss=loss) if ready
           else tf1accum.build(loss, [w], sgd(), k=2))
    # d w^3 / d w = 12 at 2.
    assert train(ops) == [2. - 0.5 * 12.]


@pytest.mark.parametrize("weight, k", [(8192., 1), (None, 4096)])
def test_scales_do_not_pass_through_half_precision(weight, k):
    """Rows E11 and E12: the float32 gradient of half-precision activations."""
    w = tf.get_variable("w", [4], initializer=tf.ones_initializer())
    y = tf.ones([8, 4], tf.float16) * tf.cast(w, tf.float16)
    loss = tf.reduce_mean(tf.cast(y, tf.float32)) * (300. if weight else .01)
    ops = tf1accum.build(
        loss, [w], sgd(1.), k=k,
        weight=None if weight is None else tf.constant(weight))
    expected = 75. if weight else 0.0025
    with models.session() as session:
        session.run(ops.accumulate)
        np.testing.assert_allclose(
            session.run(ops.accumulators)[0],
            np.full(4, expected * (weight or 1.) / k), rtol=1e-3)
        session.run(ops.apply)
        np.testing.assert_allclose(
            session.run(w), np.full(4, 1. - expected), rtol=1e-3)


@pytest.mark.parametrize("sparse", ["rows", "dense"])
def test_half_precision_lookups_of_one_row_add_up_in_float32(sparse):
    """Row E12: within one micro-batch too."""
    table = tf.get_variable("table", [2, 1], tf.float16,
                            tf.zeros_initializer(), use_resource=True)
    loss = tf.reduce_sum(tf.cast(tf.gather(
        table, tf.zeros([8192], tf.int32)), tf.float32)) / 1024.
    ops = tf1accum.build(loss, [table], sgd(1.), k=1, sparse=sparse)
    np.testing.assert_array_equal(train(ops, 1)[0][:, 0], [-8., 0.])


def test_branches_of_which_one_looks_up_and_one_does_not(behaviour):
    """Row E4: the gradient of a cond is one kind, whatever the branches are."""
    table = tf.get_variable("table", [3, 2], initializer=tf.ones_initializer(),
                            use_resource=True)
    looks_up = tf.placeholder(tf.bool, [])
    loss = tf.cond(looks_up, lambda: tf.reduce_sum(tf.gather(table, [1, 1])),
                   lambda: tf.reduce_sum(table * table))
    ops = tf1accum.build(loss, [table], sgd(0.5), k=2)
    with models.session() as session:
        for fed in (True, False):
            session.run(ops.accumulate, {looks_up: fed})
        session.run(ops.apply)
        # Half of 2 in the middle, and half of 2 everywhere.
        np.testing.assert_array_equal(
            session.run(table), [[.5, .5], [0., 0.], [.5, .5]])


def ops_that_run_with(op):
    seen, stack = set(), [op]
    while stack:
        op = stack.pop()
        if op not in seen:
            seen.add(op)
            stack += [t.op for t in op.inputs] + list(op.control_inputs)
    return seen


def test_a_micro_batch_keeps_one_buffer_and_makes_no_zeros():
    """Row F9."""
    v = tf.get_variable("v", [2000])
    ops = tf1accum.build(tf.reduce_sum(v * v), [v], sgd(), k=2)
    assert [a.op.name for a in tf.global_variables()] == [
        "v", "accumulation/count", "accumulation/average_loss",
        "accumulation/v"]
    added = [op for op in ops_that_run_with(ops.accumulate)
             if op.name.startswith("accumulation/accumulate")]
    assert not [op.name for op in added if op.type in (
        "Fill", "ZerosLike", "ReadVariableOp")]


def test_with_a_k_of_one_a_gradient_is_added_and_nothing_else():
    """Row F10: no scale, and no pass but the one that adds."""
    model = models.Regression()
    grads = tf.gradients(model.loss, model.variables)
    tf1accum.build_from_gradients(
        list(zip(grads, model.variables)), sgd(), k=1, loss=model.loss)
    for grad in grads:
        assert {op.type for op in grad.consumers()} == {"AssignAddVariableOp"}


def test_variables_are_told_apart_by_identity(behaviour):
    """Row D19: where `==` compares values, and variables have no hash."""
    variables = [tf.get_variable("v%d" % i, initializer=1.)
                 for i in range(3)]
    ops = tf1accum.build(
        variables[0] + 2. * variables[1] + 3. * variables[2], variables,
        tf.train.AdamOptimizer(), k=1, transform=lambda pairs: pairs[::-1])
    assert [v is w for v, w in zip(ops.variables, variables)] == 3 * [True]
    assert len(tf1accum.model_variables()) == 3


def test_accumulators_may_be_elsewhere_than_their_variables():
    """Row D22: on the host, where the accelerator has no room for them."""
    config = tf.ConfigProto(device_count={"CPU": 2})
    with tf.device("/cpu:0"):
        v = tf.get_variable("v", initializer=[1., 2.])
        table = tf.get_variable("table", [3, 1],
                                initializer=tf.ones_initializer())
    ops = tf1accum.build(
        tf.reduce_sum(v * v) + tf.reduce_sum(tf.gather(table, [2])),
        [v, table], sgd(0.5), k=2, accumulator_device="/cpu:1")
    assert {a.op.name: a.device for a in tf.global_variables()
            if a.op.name.startswith(("accumulation/v", "accumulation/t"))} == {
                "accumulation/" + name: "/device:CPU:1" for name in (
                    "v", "table/values", "table/indices", "table/used")}
    with tf.Session(config=config) as session:
        session.run(tf.global_variables_initializer())
        for _ in range(2):
            session.run(ops.accumulate)
        session.run(ops.apply_and_reset)
        got = session.run([v, table])
    np.testing.assert_array_equal(got[0], [0., 0.])
    np.testing.assert_array_equal(got[1][:, 0], [1., 1., 0.5])
