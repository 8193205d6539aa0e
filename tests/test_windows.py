"""Windows: weights, tails, a k that changes, transforms, several at once."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import models
import tf1accum
from conftest import in_pairs


def sgd(rate=0.1):
    return tf.train.GradientDescentOptimizer(rate)


@pytest.fixture
def model(use_resource):
    return models.Regression(use_resource=use_resource)


def build(model, optimizer=None, k=3, **kwargs):
    return tf1accum.build(model.loss, model.variables,
                          optimizer=optimizer or sgd(), k=k, **kwargs)


def run_all(session, ops, model, batches):
    for batch in batches:
        session.run(ops.accumulate, model.feed(batch))


def assert_stepped(session, model, grads, rate=0.1, start=None):
    """Checks that the variables made one step of SGD from `start`."""
    for got, value, grad in zip(session.run(model.variables),
                                start or model.start, grads):
        np.testing.assert_allclose(
            got, value - rate * grad, rtol=1e-5, atol=1e-6)


def mean_gradients(model, batches, weights=None, values=None):
    return [np.average(grads, axis=0, weights=weights) for grads in zip(*[
        model.gradients(values or model.start, batch) for batch in batches])]


# Weights.


@pytest.mark.parametrize("optimizer", ["adagrad", "adam", "ftrl", "momentum"])
@in_pairs
def test_weighted_by_examples_unequal_micro_batches_equal_the_whole_batch(
        behaviour, use_resource, optimizer):
    """Row B4: the token mean of the whole batch."""
    windows = models.Regression("windows", use_resource)
    wholes = models.Regression("wholes", use_resource)
    step = models.OPTIMIZERS[optimizer]().minimize(
        wholes.loss, var_list=wholes.variables)
    ops = build(windows, models.OPTIMIZERS[optimizer](),
                weight=tf.shape(windows.x)[0])
    with models.session() as session:
        for window in range(20):
            batches = [windows.batches(1, size, 10 * window + size)[0]
                       for size in (1, 2, 7)]
            expected = windows.numpy_loss(
                session.run(windows.variables), models.whole(batches))
            run_all(session, ops, windows, batches)
            np.testing.assert_allclose(
                session.run(ops.average_loss), expected, rtol=1e-4)
            assert session.run(ops.weight) == 10.
            session.run(ops.apply_and_reset)
            session.run(step, wholes.feed(models.whole(batches)))
        for one, other in zip(session.run(windows.variables),
                              session.run(wholes.variables)):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64, tf.float32,
                                   tf.float64, tf.float16])
def test_a_weight_may_be_of_any_number_type(dtype):
    model = models.Regression()
    weight = tf.placeholder(dtype, [])
    ops = build(model, weight=weight)
    batches = model.batches(3)
    with models.session() as session:
        for w, batch in zip((3, 1, 2), batches):
            session.run(ops.accumulate, {**model.feed(batch), weight: w})
        session.run(ops.apply)
        assert_stepped(session, model, mean_gradients(
            model, batches, [3, 1, 2]))


def test_weights_with_a_sum_apply_the_weighted_sum(model):
    weight = tf.placeholder(tf.float32, [])
    ops = build(model, weight=weight, reduction="sum")
    batches = model.batches(2)
    with models.session() as session:
        for w, batch in zip((3., 0.5), batches):
            session.run(ops.accumulate, {**model.feed(batch), weight: w})
        session.run(ops.apply)
        assert_stepped(session, model, [
            3.5 * grad for grad in mean_gradients(model, batches, [3., 0.5])])


def token_mean(model):
    """A loss and a weight, of which the mean over no token is NaN."""
    tokens = tf.placeholder(tf.float32, [None])
    weight = tf.reduce_sum(tokens)
    loss = tf.reduce_sum(tokens * tf.reduce_mean(tf.square(
        tf.matmul(model.x, model.w) + model.b - model.y), 1)) / weight
    return tokens, loss, weight


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "momentum"])
@in_pairs
def test_a_window_without_weight_moves_nothing_and_stays_finite(
        behaviour, model, optimizer):
    tokens, loss, weight = token_mean(model)
    step = tf.train.get_or_create_global_step()
    ops = tf1accum.build(loss, model.variables, models.OPTIMIZERS[optimizer](),
                         k=2, weight=weight, global_step=step)
    batch = model.batches(1)[0]
    with models.session() as session:
        before = models.outside_values(session, ops)
        for _ in range(2):
            session.run(ops.accumulate, {**model.feed(batch), tokens: 4 * [0]})
        assert session.run(ops.average_loss) == 0.
        assert session.run([ops.count, ops.weight]) == [2, 0.]
        session.run(ops.apply_and_reset)
        models.assert_same_bits(before, models.outside_values(session, ops))


def test_a_micro_batch_without_weight_is_left_out_of_the_mean(model):
    tokens, loss, weight = token_mean(model)
    ops = tf1accum.build(loss, model.variables, sgd(), k=2, weight=weight)
    batch = model.batches(1)[0]
    with models.session() as session:
        for mask in ([0, 0, 0, 0], [1, 0, 1, 1]):
            session.run(ops.accumulate, {**model.feed(batch), tokens: mask})
        kept = tuple(part[[0, 2, 3]] for part in batch)
        np.testing.assert_allclose(
            session.run(ops.average_loss),
            model.numpy_loss(model.start, kept), rtol=1e-5)
        session.run(ops.apply)
        assert_stepped(session, model, model.gradients(model.start, kept))


# Tails, and a k that changes.


def test_a_tail_is_applied_dropped_or_carried_over_as_the_caller_says(model):
    """Row B7: an epoch of five with k = 3, and one of three."""
    ops = build(model)
    epoch = model.batches(5)
    with models.session() as session:
        for choice in ("apply", "drop", "carry"):
            session.run([v.initializer for v in model.variables])
            session.run(ops.reset)
            run_all(session, ops, model, epoch[:3])
            session.run(ops.apply_and_reset)
            values = session.run(model.variables)
            run_all(session, ops, model, epoch[3:])
            if choice == "apply":
                session.run(ops.apply_and_reset)
                assert_stepped(session, model, mean_gradients(
                    model, epoch[3:], values=values), start=values)
            elif choice == "drop":
                session.run(ops.reset)
                assert_stepped(session, model, [0., 0.], start=values)
            else:
                run_all(session, ops, model, epoch[:1])
                session.run(ops.apply_and_reset)
                assert_stepped(session, model, mean_gradients(
                    model, epoch[3:] + epoch[:1], values=values),
                               start=values)


@pytest.mark.parametrize("kind", ["tensor", "ref", "resource"])
def test_k_may_grow_during_training(behaviour, kind):
    """Row F8: the mean is over what was really accumulated."""
    model = models.Regression()
    if kind == "tensor":
        k = tf.placeholder_with_default(2, [])
    else:
        k = tf.get_variable("k", [], tf.int32, tf.zeros_initializer(),
                            trainable=False, use_resource=kind == "resource")
    ops = build(model, k=k)
    with models.session() as session:
        for size in (1, 2, 4):
            values = session.run(model.variables)
            batches = model.batches(size, seed=size)
            run_all(session, ops, model, batches)
            np.testing.assert_allclose(
                session.run(ops.average_loss),
                np.mean([model.numpy_loss(values, b) for b in batches]),
                rtol=1e-5)
            session.run(ops.apply_and_reset)
            assert_stepped(session, model, mean_gradients(
                model, batches, values=values), start=values)


def test_a_tensor_k_must_be_one_integer():
    model = models.Regression()
    for k in (tf.constant(2.), tf.constant([2, 3])):
        with pytest.raises(TypeError) as error:
            build(model, k=k)
        assert "k, as a tensor, must be one integer; got " + k.name in str(
            error.value)


# Transforms, and what runs after an apply.


@pytest.mark.parametrize("size", [2, 3])
def test_a_transform_runs_once_on_the_mean(behaviour, model, size):
    """Row B3: each micro-batch by itself would be clipped to something else."""
    ops = build(model, transform=lambda pairs: list(zip(
        tf.clip_by_global_norm([g for g, _ in pairs], 0.5)[0],
        [v for _, v in pairs])))
    batches = model.batches(size)
    with models.session() as session:
        run_all(session, ops, model, batches)
        session.run(ops.apply)
        mean = mean_gradients(model, batches)
        norm = np.sqrt(sum(np.sum(np.square(grad)) for grad in mean))
        assert norm > 0.5
        assert_stepped(session, model, [0.5 * grad / norm for grad in mean])


@in_pairs
def test_the_norm_of_rows_that_repeat_is_that_of_the_dense_gradient(
        behaviour, use_resource):
    """Row E8: the norm of the rows as they came would be 2, and not 4."""
    table = tf.get_variable("table", [3, 1], initializer=tf.zeros_initializer(),
                            use_resource=use_resource)
    norms = []

    def transform(pairs):
        norms.append(tf.global_norm([grad for grad, _ in pairs]))
        return pairs

    loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [1, 1]))
    ops = tf1accum.build(loss, [table], sgd(1.), k=2, reduction="sum",
                         transform=transform)
    with models.session() as session:
        for _ in range(2):
            session.run(ops.accumulate)
        assert session.run(norms[0]) == 4.
        session.run(ops.apply)
        np.testing.assert_array_equal(
            session.run(table), [[0.], [-4.], [0.]])


def test_weight_decay_is_one_line_and_runs_once_a_window(model):
    """Row B12."""
    ops = build(model, transform=lambda pairs: [
        (g + 0.5 * v, v) for g, v in pairs])
    batches = model.batches(3)
    with models.session() as session:
        run_all(session, ops, model, batches)
        session.run(ops.apply)
        assert_stepped(session, model, [
            grad + 0.5 * value for grad, value in zip(
                mean_gradients(model, batches), model.start)])


def test_a_transform_may_leave_variables_out_and_must_return_pairs(model):
    ops = build(model, transform=lambda pairs: pairs[:1])
    batches = model.batches(3)
    with models.session() as session:
        run_all(session, ops, model, batches)
        session.run(ops.apply)
        grads = mean_gradients(model, batches)
        assert_stepped(session, model, [grads[0], 0.])
    other = tf.get_variable("other", [2])
    for transform, words in (
            (lambda pairs: None, "what transform returned"),
            (lambda pairs: [(g, other) for g, _ in pairs[1:]],
             "a variable of the window; got"),
            (lambda pairs: [(None, v) for _, v in pairs],
             "a variable of the window; got None for model/w:0")):
        with pytest.raises(ValueError) as error:
            build(model, transform=transform)
        assert words in str(error.value)
    with pytest.raises(TypeError) as error:
        build(model, transform=[])
    assert "transform must be a function or None; got []" in str(error.value)


@in_pairs
def test_moving_averages_of_the_weights_run_once_an_apply(
        behaviour, use_resource):
    """Row C10: and a checkpoint of the model holds them."""
    model = models.Regression(use_resource=use_resource)
    average = tf.train.ExponentialMovingAverage(0.5)
    ops = build(model, models.OPTIMIZERS["adam"](),
                after_apply=lambda: average.apply(model.variables))
    shadow = [average.average(v) for v in model.variables]
    with tf.Session() as session:
        # All at once, TensorFlow may read a reference variable for its shadow
        # before it has a value.
        session.run(tf.variables_initializer(model.variables))
        session.run(tf.variables_initializer(
            tf.global_variables()[len(model.variables):]))
        expected = session.run(shadow)
        for window in range(3):
            run_all(session, ops, model, model.batches(3, seed=window))
            session.run(ops.apply)
            values = session.run(model.variables)
            expected = [0.5 * e + 0.5 * v for e, v in zip(expected, values)]
            for got, value in zip(session.run(shadow), expected):
                np.testing.assert_allclose(got, value, rtol=1e-5)
            session.run(ops.reset)
            session.run(ops.apply)
            for got, value in zip(session.run(shadow), expected):
                np.testing.assert_allclose(got, value, rtol=1e-5)
    assert [v.op.name for v in tf1accum.model_variables()] == [
        "model/w", "model/b", "model/w/ExponentialMovingAverage",
        "model/b/ExponentialMovingAverage"]


@in_pairs
def test_a_constraint_runs_once_with_each_apply(behaviour, use_resource):
    """Row B12."""
    calls = tf.get_variable("calls", [], initializer=tf.zeros_initializer(),
                            trainable=False, use_resource=True)

    def non_negative(value):
        with tf.control_dependencies([calls.assign_add(1.)]):
            return tf.maximum(value, 0.)

    v = tf.get_variable("v", initializer=[1., 1.], constraint=non_negative,
                        use_resource=use_resource)
    ops = tf1accum.build(tf.reduce_sum(v * [1., -1.]), [v], sgd(2.), k=2)
    with models.session() as session:
        for _ in range(2):
            session.run(ops.accumulate)
            assert session.run(calls) == 0.
        session.run(ops.apply_and_reset)
        assert session.run(calls) == 1.
        np.testing.assert_array_equal(session.run(v), [0., 3.])
        session.run(ops.apply)
        assert session.run(calls) == 1.


# Several at once.


@in_pairs
def test_windows_in_one_graph_know_nothing_of_each_other(
        behaviour, use_resource):
    """Row F5: while one side accumulates and moves, the other keeps still."""
    one = models.Regression("one", use_resource)
    two = models.Regression("two", use_resource, seed=5)
    shared = tf.train.AdamOptimizer(0.1)
    first = build(one, shared)
    second = tf1accum.build(one.loss + two.loss, two.variables, shared, k=2)
    third = build(one, sgd(), k=1)
    assert [first.name, second.name, third.name] == [
        "accumulation", "accumulation_1", "accumulation_2"]
    with models.session() as session:
        batches = one.batches(3)
        feed = {**one.feed(batches[0]), **two.feed(batches[0])}
        session.run(second.accumulate, feed)
        kept = session.run([second.accumulators, second.count,
                            second.average_loss] + two.variables)
        before = session.run(two.variables + [
            shared.get_slot(two.w, "m"), shared.get_slot(two.b, "v")])
        run_all(session, first, one, batches)
        session.run(first.apply_and_reset)
        run_all(session, third, one, batches[:1])
        session.run(third.apply_and_reset)
        after = session.run(two.variables + [
            shared.get_slot(two.w, "m"), shared.get_slot(two.b, "v")])
        for a, b in zip(before, after):
            np.testing.assert_array_equal(a, b)
        for a, b in zip(kept[0], session.run(second.accumulators)):
            np.testing.assert_array_equal(a, b)
        one_before = session.run(one.variables)
        session.run(second.accumulate, feed)
        session.run(second.apply_and_reset)
        for a, b in zip(one_before, session.run(one.variables)):
            np.testing.assert_array_equal(a, b)
        assert session.run([first.count, second.count]) == [0, 0]


def test_a_loss_that_couples_examples_is_not_that_of_the_whole_batch():
    """Row B13: no accumulation makes it so; the difference is shown here."""
    v = tf.get_variable("v", initializer=1., use_resource=True)
    x = tf.placeholder(tf.float32, [None])
    h = v * x
    # The variance of a batch is not the mean of its parts' variances.
    loss = tf.reduce_mean(tf.square(h - tf.reduce_mean(h)))
    ops = tf1accum.build(loss, [v], sgd(), k=2)
    whole = tf.gradients(loss, [v])
    with models.session() as session:
        for part in ([0., 2.], [10., 12.]):
            session.run(ops.accumulate, {x: part})
        assert session.run(ops.accumulators) == [2.]
        assert session.run(whole, {x: [0., 2., 10., 12.]}) == [52.]


# Towers.


@in_pairs
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_towers_times_micro_batches_equal_one_batch(
        behaviour, use_resource, optimizer, sparse):
    """Row B14: neither factor is counted twice or left out."""
    def tower(scope, feeds):
        with tf.variable_scope(scope, reuse=tf.AUTO_REUSE,
                               use_resource=use_resource):
            w = tf.get_variable("w", [6, 2], initializer=tf.ones_initializer())
            b = tf.get_variable("b", [2], initializer=tf.ones_initializer())
        ids = tf.placeholder(tf.int32, [None])
        feeds.append(ids)
        rows = (tf.nn.embedding_lookup(w, ids) if sparse
                else tf.matmul(tf.one_hot(ids, 6), w))
        return tf.reduce_mean(tf.square(rows * b - 0.5)), [w, b]

    feeds, whole_feeds, towers, computed = [], [], [], []
    opt = models.OPTIMIZERS[optimizer]()
    for device in ("/cpu:0", "/cpu:1"):
        with tf.device(device):
            towers.append(tower("towers", feeds))
            computed.append(opt.compute_gradients(*towers[-1]))
    pairs = tf1accum.average_tower_gradients(computed)
    ops = tf1accum.build_from_gradients(
        pairs, opt, k=3, loss=tf.add_n([loss for loss, _ in towers]) / 2.)
    whole_loss, whole_variables = tower("whole", whole_feeds)
    step = models.OPTIMIZERS[optimizer]().minimize(
        whole_loss, var_list=whole_variables)
    config = tf.ConfigProto(device_count={"CPU": 2})
    with tf.Session(config=config) as session:
        session.run(tf.global_variables_initializer())
        for window in range(10):
            ids = np.random.RandomState(window).randint(0, 4, [3, 2, 5])
            expected = session.run(
                whole_loss, {whole_feeds[0]: ids.reshape(-1)})
            for part in ids:
                session.run(ops.accumulate, dict(zip(feeds, part)))
            np.testing.assert_allclose(
                session.run(ops.average_loss), expected, rtol=1e-4)
            session.run(ops.apply_and_reset)
            session.run(step, {whole_feeds[0]: ids.reshape(-1)})
        for one, other in zip(session.run(towers[0][1]),
                              session.run(whole_variables)):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_towers_keep_rows_as_rows_and_count_no_gradient_as_zero():
    w = tf.get_variable("w", [4, 1])
    b = tf.get_variable("b", [1])
    unused = tf.get_variable("unused", [1])
    rows = tf.gradients(tf.reduce_sum(tf.gather(w, [1, 1])), [w])[0]
    mean = tf1accum.average_tower_gradients([
        [(rows, w), (None, b), (None, unused)],
        [(tf.constant([3.]), b), (rows, w), (None, unused)]])
    assert [v.name for _, v in mean] == ["w:0", "b:0", "unused:0"]
    assert mean[2][0] is None
    with tf.Session() as session:
        got = session.run([mean[0][0], mean[1][0]])
    np.testing.assert_array_equal(got[0].indices, [1, 1, 1, 1])
    np.testing.assert_array_equal(got[0].values[:, 0], 4 * [0.5])
    np.testing.assert_array_equal(got[1], [1.5])


def test_towers_must_be_some_and_for_the_same_variables():
    w, b = tf.get_variable("w", [1]), tf.get_variable("b", [1])
    grad = tf.constant([1.])
    with pytest.raises(ValueError) as error:
        tf1accum.average_tower_gradients([])
    assert "at least one tower; got none" in str(error.value)
    with pytest.raises(ValueError) as error:
        tf1accum.average_tower_gradients([[(grad, w)], [(grad, b)]])
    assert "tower 1 differs from tower 0 in b, w" in str(error.value)


def test_towers_may_differ_in_how_they_look_up():
    w = tf.get_variable("w", [4, 1])
    slices = [tf.IndexedSlices(tf.ones([2, 1]), tf.constant([1, 1], dtype))
              for dtype in (tf.int32, tf.int64)]
    rows, = tf1accum.average_tower_gradients([[(s, w)] for s in slices])
    dense, = tf1accum.average_tower_gradients(
        [[(slices[0], w)], [(tf.ones([4, 1]), w)]])
    with tf.Session() as session:
        np.testing.assert_array_equal(
            session.run(rows[0].indices), [1, 1, 1, 1])
        np.testing.assert_array_equal(
            session.run(dense[0])[:, 0], [0.5, 1.5, 0.5, 0.5])


def test_after_apply_must_make_what_it_returns():
    model = models.Regression()
    calls = tf.get_variable("calls", [], trainable=False)
    early = calls.assign_add(1.)
    for after_apply in (lambda: early, lambda: [early.op], lambda: None):
        with pytest.raises(ValueError) as error:
            build(model, after_apply=after_apply)
        assert "after_apply must return an op, or a list of them" in str(
            error.value)


def test_a_weight_inside_of_a_branch_is_refused():
    model = models.Regression()
    inside = []

    def branch():
        inside.append(tf.reduce_sum(model.x))
        return inside[0]

    tf.cond(tf.placeholder_with_default(True, []), branch, lambda: 0.)
    with pytest.raises(ValueError) as error:
        build(model, weight=inside[0])
    assert "weight must be outside of every tf.cond branch" in str(error.value)


def test_a_variable_that_after_apply_starts_by_a_loop_is_refused():
    """Under control flow v2 a loop is one op, and is copied."""
    model = models.Regression()
    with pytest.raises(ValueError) as error:
        build(model, after_apply=lambda: tf.Variable(tf.map_fn(
            lambda r: r * 2., tf.ones([3])), trainable=False).assign_add(
                tf.ones([3])))
    assert "Pass a function that makes it" in str(error.value)


# Memory.


@pytest.mark.parametrize("name", ["reset", "apply_and_reset", "step"])
@in_pairs
def test_a_reset_keeps_no_zeros_that_the_next_micro_batch_would_copy(
        behaviour, use_resource, name):
    """A constant is held by the session beside the accumulator it went to."""
    v = tf.get_variable("v", [40, 50], use_resource=use_resource,
                        initializer=tf.zeros_initializer())
    loss = tf.reduce_sum(tf.square(v - 1.))
    if name == "step":
        optimizer = tf1accum.AccumulatingOptimizer(sgd(), k=1)
        run = optimizer.minimize(loss)
        ops = optimizer.ops
    else:
        ops = tf1accum.build(loss, [v], sgd(), k=1)
        run = getattr(ops, name)
    metadata = tf.RunMetadata()
    with models.session() as session:
        session.run(ops.accumulate)
        session.run(run, options=tf.RunOptions(output_partition_graphs=True),
                    run_metadata=metadata)
        assert not session.run(ops.accumulators[0]).any()
    ran = [node for graph in metadata.partition_graphs for node in graph.node]
    assert [node.name for node in ran if "AssignVariableOp" in node.op]
    assert [node.name for node in ran if node.op == "Const" and 2000 == np.prod(
        [dim.size for dim in node.attr["value"].tensor.tensor_shape.dim])] == []
