"""Gradients that go through NumPy: fetched, averaged, fed back by name."""

import collections
import contextlib
import warnings

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import models
from conftest import in_pairs
from models import refuses
from tf1accum import accumulation
from tf1accum import host as host_lib

ROWS, WIDTH = 6, 2
# Row 5 is never looked up, and the number of lookups varies.
LOOKUPS = [[1, 1, 3], [0], [3, 4, 1, 1, 1], [2, 0]]

Sparse = collections.namedtuple("Sparse", "values indices dense_shape")


def build_host(model, optimizer=None, **kwargs):
    return host_lib.build_host(
        model.loss, model.variables,
        optimizer=optimizer or tf.train.GradientDescentOptimizer(0.1),
        **kwargs)


def fetch(session, host, model, batches):
    return [session.run(host.gradients, feed_dict=model.feed(batch))
            for batch in batches]


def apply_mean(session, host, model, batches, weights=None):
    """One window by way of NumPy."""
    mean = host.running_mean()
    for batch, weight in zip(batches, weights or [1.] * len(batches)):
        mean.add(session.run(host.gradients, model.feed(batch)), weight)
    session.run(host.apply, host.feed_dict(mean.value()))


class Embedding:
    """loss = mean over ids of dot(table[id], (1, 2)) * 3."""

    def __init__(self, use_resource=True, dtype=tf.float32, scope="words"):
        self.start = np.random.RandomState(0).randn(ROWS, WIDTH).astype(
            dtype.as_numpy_dtype)
        self.ids = tf.placeholder(tf.int32, [None], scope + "_ids")
        with tf.variable_scope(scope, use_resource=use_resource):
            self.table = tf.get_variable(
                "table", initializer=tf.constant(self.start, dtype))
        self.variables = [self.table]
        rows = tf.nn.embedding_lookup(self.table, self.ids)
        self.loss = tf.reduce_mean(tf.reduce_sum(
            rows * tf.constant([3., 6.], dtype), axis=1))

    def feed(self, ids):
        return {self.ids: ids}

    def gradient(self, ids):
        """The gradient as a table, by NumPy."""
        table = np.zeros([ROWS, WIDTH])
        for row in ids:
            table[row] += np.array([3., 6.]) / len(ids)
        return table


def as_table(value):
    table = np.zeros([ROWS, WIDTH])
    np.add.at(table, value.indices, value.values)
    return table


@pytest.fixture
def model(use_resource):
    return models.Regression(use_resource=use_resource)


@pytest.fixture
def words(use_resource):
    return Embedding(use_resource)


@pytest.fixture
def host():
    """One dense gradient, `model/w` and `model/b`, and one sparse one."""
    dense, sparse = models.Regression(), Embedding()
    return host_lib.build_host(
        dense.loss + sparse.loss, dense.variables + sparse.variables,
        optimizer=tf.train.GradientDescentOptimizer(0.1))


def given(**changes):
    """Arrays that `host` takes, with `changes` by the end of their names."""
    values = {
        "model/w": np.zeros([3, 2], np.float32),
        "model/b": np.zeros([2], np.float32),
        "words/table": Sparse(np.zeros([3, WIDTH], np.float32),
                              np.array([1, 1, 5]), None)}
    for name, value in changes.items():
        values[[key for key in values if key.endswith("/" + name)][0]] = value
    return values


# The numbers.


def test_the_gradients_come_by_name_and_are_those_of_one_micro_batch(
        behaviour, model):
    host = build_host(model)
    batch = model.batches(1)[0]
    with models.session() as session:
        values = session.run(host.gradients, feed_dict=model.feed(batch))
    assert sorted(values) == ["model/b", "model/w"]
    for name, expected in zip(["model/w", "model/b"],
                              model.gradients(model.start, batch)):
        np.testing.assert_allclose(values[name], expected, rtol=1e-5,
                                   atol=1e-6)


@pytest.mark.parametrize("optimizer", sorted(models.OPTIMIZERS))
@in_pairs
def test_two_windows_do_what_the_graph_does(behaviour, use_resource,
                                            optimizer):
    """Row F6: the same as the mean that is made in the graph."""
    results = []
    for in_graph in (True, False):
        with tf.Graph().as_default():
            model = models.Regression(use_resource=use_resource)
            make, batches = models.OPTIMIZERS[optimizer], model.batches(6)
            if in_graph:
                ops = accumulation.build(
                    model.loss, model.variables, optimizer=make(), k=3)
            else:
                host = build_host(model, make())
            with models.session() as session:
                for window in (batches[:3], batches[3:]):
                    if not in_graph:
                        apply_mean(session, host, model, window)
                        continue
                    for batch in window:
                        session.run(ops.accumulate, model.feed(batch))
                    session.run(ops.apply_and_reset)
                results.append(session.run(model.variables))
    for in_graph, by_host in zip(*results):
        np.testing.assert_allclose(by_host, in_graph, rtol=1e-5, atol=1e-6)


def test_a_step_of_sgd_is_start_less_rate_times_mean(behaviour, model):
    host, batches = build_host(model), model.batches(3)
    with models.session() as session:
        apply_mean(session, host, model, batches)
        results = session.run(model.variables)
    for index, (got, start) in enumerate(zip(results, model.start)):
        mean = np.mean([model.gradients(model.start, batch)[index]
                        for batch in batches], axis=0)
        np.testing.assert_allclose(got, start - 0.1 * mean, rtol=1e-5)


def test_weights_make_the_mean_of_the_whole_batch(model):
    """mean = sum(w g) / sum(w), micro-batches of 1, 2 and 5 examples."""
    host = build_host(model)
    sizes = [1, 2, 5]
    batches = [model.batches(1, size, seed=size)[0] for size in sizes]
    with models.session() as session:
        mean = host.running_mean()
        for values, size in zip(fetch(session, host, model, batches), sizes):
            mean.add(values, size)
    whole = model.gradients(model.start, models.whole(batches))
    for name, expected in zip(["model/w", "model/b"], whole):
        np.testing.assert_allclose(mean.value()[name], expected, rtol=1e-5,
                                   atol=1e-6)
    assert mean.count == 3


def test_what_weighs_nothing_adds_nothing_not_even_nan(host):
    mean = host.running_mean()
    mean.add(given(b=np.float32([2., 4.])), weight=2)
    mean.add(given(b=np.float32([np.nan, np.inf])), weight=0)
    np.testing.assert_array_equal(mean.value()["model/b"], [2., 4.])
    assert mean.count == 2


def test_a_mean_can_be_read_in_between_and_started_again(host):
    mean = host.running_mean()
    mean.add(given(b=np.float32([2., 4.])))
    np.testing.assert_array_equal(mean.value()["model/b"], [2., 4.])
    mean.add(given(b=np.float32([4., 8.])))
    for _ in range(2):
        np.testing.assert_array_equal(mean.value()["model/b"], [3., 6.])
    mean.reset()
    assert mean.count == 0
    mean.add(given(b=np.float32([7., 7.])))
    np.testing.assert_array_equal(mean.value()["model/b"], [7., 7.])


def test_the_mean_neither_changes_nor_keeps_what_it_is_given(host):
    b = np.float32([2., 4.])
    rows = Sparse(np.ones([1, WIDTH], np.float32), np.array([0]), None)
    mean = host.running_mean()
    for _ in range(2):
        mean.add(given(b=b, table=rows))
    np.testing.assert_array_equal(b, [2., 4.])
    b[:], rows.values[:], rows.indices[:] = 100., 100., 1
    value = mean.value()
    np.testing.assert_array_equal(value["model/b"], [2., 4.])
    np.testing.assert_array_equal(as_table(value["words/table"])[:2],
                                  [[1., 1.], [0., 0.]])


def test_the_mean_of_dense_gradients_is_kept_in_one_array(host):
    mean = host.running_mean()
    mean.add(given())
    kept = mean._totals["model/w"]._total  # pylint: disable=protected-access
    for _ in range(3):
        mean.add(given(w=np.ones([3, 2], np.float32)), 2.)
    assert mean._totals["model/w"]._total is kept
    np.testing.assert_allclose(kept, np.full([3, 2], 6.))


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16],
                         ids=["float16", "bfloat16"])
def test_half_precision_adds_up_in_float32(dtype):
    """Row E1's sum: 4,096 times 0.001 stays at 4 or below in float16."""
    variable = tf.get_variable("v", [2], dtype, tf.zeros_initializer(),
                               use_resource=True)
    table = tf.get_variable("t", [3, 1], dtype, tf.zeros_initializer(),
                            use_resource=True)
    host = host_lib.build_host(
        tf.reduce_sum(variable) + tf.reduce_sum(tf.gather(table, [1, 1])),
        [variable, table], optimizer=tf.train.GradientDescentOptimizer(1.))
    numpy_dtype = dtype.as_numpy_dtype
    small = np.float32([1e-3, 1e-3]).astype(numpy_dtype)
    exact = float(small[0])
    mean = host.running_mean()
    for _ in range(4096):
        mean.add({"v": small, "t": Sparse(
            small.reshape([2, 1]), np.array([1, 1]), None)})
    value = mean.value()
    assert value["v"].dtype == value["t"].values.dtype == np.float32
    np.testing.assert_allclose(value["v"], [exact] * 2, rtol=1e-3)
    np.testing.assert_allclose(value["t"].values, [[2 * exact]], rtol=1e-3)
    with models.session() as session:
        assert session.run(host.gradients)["v"].dtype == numpy_dtype
        feed = host.feed_dict(value)
        assert {array.dtype for array in feed.values()} == {
            np.dtype(numpy_dtype), np.dtype(np.int64)}
        session.run(host.apply, feed)
        np.testing.assert_allclose(
            session.run(tf.cast(variable, tf.float32)), [-exact] * 2,
            rtol=1e-2)


def test_values_that_are_not_finite_are_passed_on(host):
    with models.session() as session:
        bad = given(b=np.float32([np.nan, np.inf]))
        mean = host.running_mean()
        mean.add(bad)
        session.run(host.apply, host.feed_dict(mean.value()))
        np.testing.assert_array_equal(
            session.run(host.variables[1]), [np.nan, -np.inf])


def test_means_of_float64_are_fed_to_float32(host):
    """NumPy's own arithmetic gives float64 soon enough."""
    feed = host.feed_dict(given(
        w=np.full([3, 2], 1. / 3), b=[0.5, 1.],
        table=Sparse(np.ones([1, WIDTH]), np.array([2], np.int32), None)))
    assert sorted(str(array.dtype) for array in feed.values()) == [
        "float32", "float32", "float32", "int64"]
    with models.session() as session:
        session.run(host.apply, feed)


@in_pairs
@pytest.mark.parametrize("shape", [[], [0], [4, 0], [0, 3]])
def test_scalars_and_variables_of_no_size(behaviour, use_resource, shape):
    """One variable, too: what is fetched stays a dict."""
    variable = tf.get_variable("v", shape, use_resource=use_resource,
                               initializer=tf.ones_initializer())
    host = host_lib.build_host(
        tf.reduce_sum(variable * 2.), [variable],
        optimizer=tf.train.GradientDescentOptimizer(0.25))
    mean = host.running_mean()
    with models.session() as session:
        for weight in (1., 2.):
            mean.add(session.run(host.gradients), weight)
        assert mean.value()["v"].dtype == np.float32
        session.run(host.apply, host.feed_dict(mean.value()))
        np.testing.assert_array_equal(
            session.run(variable), np.full(shape, 0.5))


# Sparse.


def test_sparse_gradients_come_as_rows_however_many(behaviour, words):
    """Row F7: the number of rows is that of the lookups."""
    host = build_host(words)
    with models.session() as session:
        for ids in LOOKUPS:
            value = session.run(host.gradients, words.feed(ids))[
                "words/table"]
            assert value.values.shape == (len(ids), WIDTH)
            np.testing.assert_array_equal(value.indices, ids)
            # Fed back as it was fetched, ids that repeat included.
            session.run(host.apply, host.feed_dict({"words/table": value}))
        np.testing.assert_allclose(
            session.run(words.table), words.start - 0.1 * sum(
                words.gradient(ids) for ids in LOOKUPS), rtol=1e-5, atol=1e-6)


def test_the_mean_of_rows_is_rows_with_each_index_once(words):
    """Row F7."""
    host, weights = build_host(words), [1., 2., 0.5, 3.]
    with models.session() as session:
        mean = host.running_mean()
        for values, weight in zip(
                fetch(session, host, words, LOOKUPS), weights):
            mean.add(values, weight)
    value = mean.value()["words/table"]
    assert type(value) is type(values["words/table"])
    assert sorted(value.indices) == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(as_table(value), sum(
        weight * words.gradient(ids) for weight, ids in zip(weights, LOOKUPS)
    ) / sum(weights), rtol=1e-5)


def test_the_mean_of_rows_costs_the_rows_and_not_the_micro_batches(host):
    mean = host.running_mean()
    for _ in range(1000):
        mean.add(given())
    kept = mean._totals["words/table"]  # pylint: disable=protected-access
    assert sum(len(indices) for indices, _ in kept._pieces) <= 8


def test_a_micro_batch_without_lookups_has_no_rows(words):
    host = build_host(words)
    nothing = {"words/table": Sparse(
        np.zeros([0, WIDTH], np.float32), np.zeros([0], np.int64), None)}
    mean = host.running_mean()
    mean.add(nothing)
    assert mean.value()["words/table"].values.shape == (0, WIDTH)
    with models.session() as session:
        session.run(host.apply, host.feed_dict(mean.value()))
        np.testing.assert_array_equal(session.run(words.table), words.start)


@pytest.mark.parametrize("optimizer", ["momentum", "rmsprop", "ftrl", "adam"])
@in_pairs
def test_sparse_windows_do_what_one_step_on_the_whole_batch_does(
        behaviour, use_resource, optimizer):
    """Row F7: rows of no lookup are left to the optimizer's own rule."""
    results = []
    for whole in (True, False):
        with tf.Graph().as_default():
            words = Embedding(use_resource)
            make = models.OPTIMIZERS[optimizer]
            if whole:
                step = make().minimize(words.loss, var_list=words.variables)
            else:
                host = build_host(words, make())
            windows = [[[1, 1], [3, 0]], [[4, 1], [1, 1]]]
            with models.session() as session:
                for window in windows:
                    if whole:
                        session.run(step, words.feed(sum(window, [])))
                    else:
                        apply_mean(session, host, words, window)
                results.append(session.run(words.table))
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-6)


def test_momentum_leaves_rows_that_no_one_touched_alone(
        behaviour, words):
    """Row F7: a dense placeholder would move row 1 again, by its momentum."""
    optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
    host = build_host(words, optimizer)
    with models.session() as session:
        apply_mean(session, host, words, [[1], [1, 1]])
        after_one, slot = session.run(
            [words.table, optimizer.get_slot(words.table, "momentum")])
        apply_mean(session, host, words, [[2], [2]])
        after_two = session.run(words.table)
    np.testing.assert_allclose(slot[1], [3., 6.], rtol=1e-6)
    np.testing.assert_array_equal(after_two[[0, 1, 3, 4, 5]],
                                  after_one[[0, 1, 3, 4, 5]])
    np.testing.assert_allclose(after_two[2], words.start[2] - [0.3, 0.6],
                               rtol=1e-5)


def test_variables_of_a_shape_left_open_are_taken_as_they_come(behaviour):
    start = np.float32([[1., 2.], [3., 4.]])
    dense = tf.Variable(tf.placeholder_with_default(start, None), name="d",
                        validate_shape=False, use_resource=True)
    table = tf.Variable(tf.placeholder_with_default(start, [None, 2]),
                        name="t", validate_shape=False, use_resource=True)
    host = host_lib.build_host(
        tf.reduce_sum(dense) + tf.reduce_sum(tf.gather(table, [1, 1])),
        [dense, table], optimizer=tf.train.GradientDescentOptimizer(1.))
    mean = host.running_mean()
    with models.session() as session:
        for _ in range(2):
            mean.add(session.run(host.gradients))
        session.run(host.apply, host.feed_dict(mean.value()))
        np.testing.assert_array_equal(session.run(dense), start - 1.)
        np.testing.assert_array_equal(
            session.run(table), start - [[0., 0.], [2., 2.]])
    values = mean.value()
    values["d"] = np.float32([1., 1.])
    with pytest.raises(ValueError) as error:
        mean.add(values)
    assert "the gradient of d" in str(error.value)
    assert mean.count == 2


def test_the_parts_of_a_partitioned_variable_come_by_their_names(behaviour):
    table = tf.get_variable(
        "p", [4, 2], partitioner=tf.fixed_size_partitioner(2),
        use_resource=True, initializer=tf.zeros_initializer())
    loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [0, 1, 1]))
    host = host_lib.build_host(
        loss, [table], optimizer=tf.train.GradientDescentOptimizer(1.))
    assert sorted(host.gradients) == ["p/part_0", "p/part_1"]
    with models.session() as session:
        session.run(host.apply, host.feed_dict(session.run(host.gradients)))
        np.testing.assert_array_equal(
            session.run(table.as_tensor()).sum(), -6.)


# The graph.


def test_the_names_in_the_graph(behaviour, host):
    graph = tf.get_default_graph()
    assert host.name == "accumulation"
    assert isinstance(host.apply, tf.Operation)
    assert isinstance(host.initializer, tf.Operation)
    assert host.apply.name == "accumulation/apply"
    assert host.initializer.name == "accumulation/initializer"
    assert host.graph is graph
    assert "3 variables" in repr(host)
    assert [v.op.name for v in host.variables] == list(host.gradients)
    fed = {key.op.name: (key.dtype, key.shape.as_list())
           for key in host.feed_dict(given())}
    assert fed == {
        "accumulation/placeholders/model/w": (tf.float32, [3, 2]),
        "accumulation/placeholders/model/b": (tf.float32, [2]),
        "accumulation/placeholders/words/table/values":
            (tf.float32, [None, WIDTH]),
        "accumulation/placeholders/words/table/indices": (tf.int64, [None])}


def test_all_that_is_added_lies_in_one_box(behaviour, model):
    before = {op.name for op in tf.get_default_graph().get_operations()}
    trainable = tf.trainable_variables()
    host = build_host(model, name="by_host")
    added = {op.name for op in tf.get_default_graph().get_operations()}
    assert not [name for name in added - before
                if not name.startswith("by_host/")]
    assert host.apply.name == "by_host/apply"
    assert tf.trainable_variables() == trainable
    assert not [v for v in tf.global_variables()
                if v.name.startswith("by_host/")]


def test_a_variable_of_the_name_of_an_op_gives_way():
    variables = [tf.get_variable(name, [2], use_resource=True) for name in (
        "apply", "initializer", "placeholders", "gradients")]
    host = host_lib.build_host(
        tf.add_n([tf.reduce_sum(v) for v in variables]), variables,
        optimizer=tf.train.MomentumOptimizer(0.1, 0.9), name="box")
    assert host.apply.name == "box/apply"
    assert host.initializer.name == "box/initializer"
    assert sorted(key.op.name for key in host.feed_dict({
        v.op.name: np.zeros(2) for v in variables})) == [
            "box/placeholders/apply", "box/placeholders/gradients",
            "box/placeholders/initializer", "box/placeholders/placeholders"]


@contextlib.contextmanager
def everything_ambient():
    def getter(*_, **__):
        raise AssertionError("the caller's getter was asked")

    with tf.variable_scope(
            "outer", reuse=tf.AUTO_REUSE, custom_getter=getter,
            partitioner=tf.fixed_size_partitioner(2)), \
            tf.name_scope("inner"), tf.device("/cpu:1"), \
            tf.control_dependencies([tf.no_op()]):
        yield


@in_pairs
def test_the_scopes_around_the_call_change_nothing(behaviour, use_resource):
    graphs = []
    for ambient in (False, True):
        with tf.Graph().as_default() as graph:
            model = models.Regression(use_resource=use_resource)
            before = set(graph.get_operations())
            with everything_ambient() if ambient else tf.name_scope(None):
                known = set(graph.get_operations()) - before
                build_host(model, tf.train.AdamOptimizer(0.1))
            graphs.append({
                op.name: (op.device, sorted(
                    o.name for o in op.control_inputs))
                for op in graph.get_operations() if op not in known})
    assert graphs[0] == graphs[1]


def test_the_initializer_initialises_the_optimizers_state_alone(
        behaviour, model):
    optimizer = tf.train.AdamOptimizer(0.1)
    host = build_host(model, optimizer)
    with tf.Session() as session:
        session.run(tf.variables_initializer(model.variables))
        session.run(host.initializer)
        assert not len(session.run(tf.report_uninitialized_variables()))
        before = session.run(optimizer.variables())
        apply_mean(session, host, model, model.batches(2))
        moved = session.run(model.variables)
        session.run(host.initializer)
        for got, expected in zip(session.run(optimizer.variables()), before):
            np.testing.assert_array_equal(got, expected)
        for got, expected in zip(session.run(model.variables), moved):
            np.testing.assert_array_equal(got, expected)


def test_the_global_step_moves_by_one_with_each_apply_after_the_optimizer(
        behaviour, model):
    step = tf.train.get_or_create_global_step()
    # The last step's rate is used, not the next one's.
    rate = tf.train.piecewise_constant(step, [0], [0.1, 0.])
    host = build_host(
        model, tf.train.GradientDescentOptimizer(rate), global_step=step)
    batches = model.batches(2)
    with models.session() as session:
        values = fetch(session, host, model, batches)
        assert session.run(step) == 0
        session.run(host.apply, host.feed_dict(values[0]))
        assert session.run(step) == 1
        grad = model.gradients(model.start, batches[0])
        for got, start, expected in zip(
                session.run(model.variables), model.start, grad):
            np.testing.assert_allclose(got, start - 0.1 * expected, rtol=1e-5)
        session.run(host.apply, host.feed_dict(values[1]))
        assert session.run(step) == 2


def test_the_optimizer_is_not_asked_to_move_the_global_step(model):
    class Counting(tf.train.GradientDescentOptimizer):
        def apply_gradients(self, grads_and_vars, global_step=None,
                            name=None):
            assert global_step is None
            return super().apply_gradients(grads_and_vars)

    build_host(model, Counting(0.1),
               global_step=tf.train.get_or_create_global_step())


def test_a_loop_on_a_finalised_graph_adds_nothing(behaviour, words):
    step = tf.train.get_or_create_global_step()
    host = build_host(words, tf.train.MomentumOptimizer(0.1, 0.9),
                      global_step=step)
    with models.session() as session:
        tf.get_default_graph().finalize()
        for window in (LOOKUPS[:2], LOOKUPS[2:]):
            apply_mean(session, host, words, window)
        assert session.run(step) == 2


def test_a_checkpoint_of_the_model_holds_no_optimizer_state(
        behaviour, model, tmp_path):
    step = tf.train.get_or_create_global_step()
    # Made once before: known to the optimizer, not made by this call.
    optimizer = tf.train.AdamOptimizer(0.1)
    host = build_host(model, optimizer, global_step=step)
    again = build_host(model, optimizer, global_step=step)
    assert again.name == "accumulation_1"
    with models.session() as session:
        path = again.model_saver(max_to_keep=1).save(
            session, str(tmp_path / "model"))
    assert sorted(name for name, _ in tf.train.list_variables(path)) == [
        "global_step", "model/b", "model/w"]
    with pytest.raises(TypeError):
        host.model_saver(var_list=[])


class OwnState(tf.train.GradientDescentOptimizer):
    """Keeps its state where `variables()` does not list it."""

    def compute_gradients(self, loss, var_list):
        return [(tf.identity(grad, name="apply"), variable) for grad, variable
                in zip(tf.gradients(loss, var_list), var_list)]

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        self.weights = [variable for _, variable in grads_and_vars]
        steps = tf.Variable(0., trainable=False, name="steps")
        with tf.control_dependencies([steps.assign_add(1.)]):
            return super().apply_gradients(grads_and_vars)

    def variables(self):
        return self.weights


def test_an_optimizer_with_state_and_names_of_its_own(
        behaviour, model, tmp_path):
    host = build_host(model, OwnState(0.1))
    assert host.apply.name == "accumulation/apply"
    steps, = [v for v in tf.global_variables() if v.op.name == "steps"]
    with models.session() as session:
        apply_mean(session, host, model, model.batches(2))
        moved = session.run(model.variables)
        assert session.run(steps) == 1.
        session.run(host.initializer)
        assert session.run(steps) == 0.
        models.assert_same_bits(
            dict(enumerate(moved)),
            dict(enumerate(session.run(model.variables))))
        path = host.model_saver().save(session, str(tmp_path / "model"))
    assert sorted(name for name, _ in tf.train.list_variables(path)) == [
        "model/b", "model/w"]


def test_host_gradients_beside_a_window_in_the_graph(behaviour, model):
    ops = accumulation.build(
        model.loss, model.variables, k=1,
        optimizer=tf.train.MomentumOptimizer(0.1, 0.9))
    host = build_host(model)
    assert (ops.name, host.name) == ("accumulation", "accumulation_1")
    with models.session() as session:
        before = models.outside_values(session, ops)
        fetch(session, host, model, model.batches(2))
        models.assert_same_bits(before, models.outside_values(session, ops))


def test_a_variable_without_a_gradient_is_named_and_left_out(model):
    unused = tf.get_variable("unused", [3])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        host = host_lib.build_host(
            model.loss, model.variables + [unused],
            optimizer=tf.train.GradientDescentOptimizer(0.1))
    caught = [w for w in caught if "tf1accum" in str(w.message)]
    assert "tf1accum.build_host: the loss has no gradient for unused:0" in str(
        caught[0].message)
    assert caught[0].filename == __file__
    assert sorted(host.gradients) == ["model/b", "model/w"]
    assert host.variables == model.variables


def test_all_trainable_variables_are_the_default(model):
    tf.get_variable("fixed", [3], trainable=False)
    host = host_lib.build_host(
        model.loss, optimizer=tf.train.GradientDescentOptimizer(0.1))
    assert list(host.gradients) == ["model/w", "model/b"]


def test_a_loss_of_one_number_in_any_shape_is_a_loss():
    w = tf.get_variable("w", [3, 1], use_resource=True)
    host = host_lib.build_host(
        tf.matmul(tf.constant([[1., 2., 3.]]), w), [w],
        optimizer=tf.train.GradientDescentOptimizer(0.1))
    with models.session() as session:
        np.testing.assert_array_equal(
            session.run(host.gradients)["w"], [[1.], [2.], [3.]])


# What is refused.


@pytest.mark.parametrize("changes, error_class, words", [
    (dict(loss=None), TypeError, ["loss must be a tensor"]),
    (dict(var_list=[]), ValueError, ["var_list holds no variable"]),
    (dict(optimizer=None), TypeError, ["optimizer must be an object"]),
    (dict(global_step=3), TypeError, ["global_step must be a variable"]),
    (dict(name="_x"), ValueError, ["name must be one scope", "'_x'"])])
def test_wrong_arguments_leave_the_graph_as_it_was(
        model, changes, error_class, words):
    arguments = dict(loss=model.loss, var_list=model.variables,
                     optimizer=tf.train.GradientDescentOptimizer(0.1))
    arguments.update(changes)
    refuses(error_class, ["tf1accum.build_host: "] + words,
            lambda: host_lib.build_host(**arguments))


def test_a_loss_that_reaches_no_variable_is_refused(model):
    unused = tf.get_variable("unused", [3])
    refuses(ValueError, ["tf1accum.build_host: ", "unused:0"],
            lambda: host_lib.build_host(
                model.loss, [unused],
                optimizer=tf.train.GradientDescentOptimizer(0.1)))


def test_eager_execution_is_refused(model, monkeypatch):
    monkeypatch.setattr(tf, "executing_eagerly", lambda: True)
    refuses(RuntimeError, ["tf1accum.build_host: needs a graph"],
            lambda: build_host(model))


def without(name):
    values = given()
    del values[name]
    return values


def rows(values=((1., 1.),), indices=(1,)):
    return Sparse(np.array(values), np.array(indices), None)


REFUSED = {
    "missing": (
        without("model/b"), ValueError,
        ["missing: model/b", "unknown: none", "host.gradients"]),
    "extra": (
        dict(given(), other=1.), ValueError,
        ["missing: none", "unknown: other"]),
    "name of a tensor": (
        dict(without("model/b"), **{"model/b:0": np.zeros(2)}), ValueError,
        ["missing: model/b", "unknown: model/b:0", "without ':0'"]),
    "list": (
        list(given().values()), TypeError,
        ["must be a dict", "got a list", "sess.run(host.gradients)"]),
    "none": (None, TypeError, ["must be a dict", "got a NoneType"]),
    "shape": (
        given(w=np.zeros([2, 3], np.float32)), ValueError,
        ["the gradient of model/w", "(3, 2)", "got an array of shape (2, 3)"]),
    "shape that would broadcast": (
        given(w=np.zeros([2], np.float32)), ValueError,
        ["the gradient of model/w", "got an array of shape (2,)"]),
    "integers": (
        given(b=np.array([1, 2])), TypeError,
        ["the gradient of model/b", "float32", "of int64",
         "np.asarray(value, np.float32)"]),
    "booleans": (
        given(b=np.array([True, False])), TypeError,
        ["the gradient of model/b", "of bool"]),
    "strings": (
        given(b=np.array(["a", "b"])), TypeError,
        ["the gradient of model/b", "of <U1"]),
    "objects": (
        given(b=np.array([None, None])), TypeError,
        ["the gradient of model/b", "of object"]),
    "complex": (
        given(b=np.zeros([2], np.complex64)), TypeError,
        ["the gradient of model/b", "of complex64"]),
    "lists of unequal length": (
        given(w=[[1.], [1., 2.]]), TypeError, ["the gradient of model/w"]),
    "dense for sparse": (
        given(table=np.zeros([ROWS, WIDTH], np.float32)), TypeError,
        ["the gradient of words/table", "sparse", "got an array of shape",
         "_replace(values=table[rows], indices=rows)"]),
    "dense list for sparse": (
        given(table=[[1., 2.]]), TypeError,
        ["the gradient of words/table", "sparse", "got an array of shape"]),
    "sparse for dense": (
        given(w=rows()), TypeError,
        ["the gradient of model/w", "dense", "got sparse rows",
         "np.add.at(array, value.indices, value.values)"]),
    "negative index": (
        given(table=rows(indices=[-1])), ValueError,
        ["the gradient of words/table", "of shape (6, 2)", "from 0 on",
         "got -1"]),
    "index out of range": (
        given(table=rows(indices=[6])), ValueError,
        ["the gradient of words/table", "of shape (6, 2)", "from 0 on",
         "got 6"]),
    "float indices": (
        given(table=rows(indices=[1.])), TypeError,
        ["the indices of the gradient of words/table", "int64",
         "of float64"]),
    "integer rows": (
        given(table=rows(values=[[1, 1]])), TypeError,
        ["the values of the gradient of words/table", "float32"]),
    "another row shape": (
        given(table=rows(values=[[1., 1., 1.]])), ValueError,
        ["the gradient of words/table", "(1, 2)", "(1, 3)"]),
    "more indices than rows": (
        given(table=rows(indices=[1, 2])), ValueError,
        ["the gradient of words/table", "(2, 2)", "(1, 2)"]),
    "indices of two dimensions": (
        given(table=rows(indices=[[1, 2]])), ValueError,
        ["the indices of the gradient of words/table", "(1, 2)"]),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_wrong_values_are_refused_by_the_variables_name(host, case):
    """Rows F6 and F7."""
    values, error_class, words = REFUSED[case]
    mean = host.running_mean()
    for who, call in (("RunningMean.add", mean.add),
                      ("HostOps.feed_dict", host.feed_dict)):
        refuses(error_class, ["tf1accum.%s: " % who] + words,
                lambda: call(values))
    assert mean.count == 0


def test_tensors_are_to_be_fetched_first(host):
    """Row F6: what is to be fetched is not what was fetched."""
    for name in host.gradients:
        values = given()
        values[name] = host.gradients[name]
        refuses(TypeError, ["the gradient of " + name, "a tensor",
                            "sess.run(host.gradients)"],
                lambda: host.feed_dict(values))


def test_a_refused_micro_batch_leaves_the_mean_as_it_was(host):
    mean = host.running_mean()
    mean.add(given(w=np.ones([3, 2], np.float32)))
    for values in (given(table=rows(indices=[9])), without("words/table")):
        with pytest.raises(ValueError):
            mean.add(values)
    assert mean.count == 1
    np.testing.assert_array_equal(mean.value()["model/w"], np.ones([3, 2]))


@pytest.mark.parametrize("weight, error_class", [
    (-1., ValueError), (np.nan, ValueError), (np.inf, ValueError),
    (True, TypeError), ("2", TypeError), (None, TypeError),
    (np.ones([2]), TypeError)])
def test_a_weight_is_one_number_not_negative(host, weight, error_class):
    mean = host.running_mean()
    refuses(error_class, ["tf1accum.RunningMean.add: weight", "got "],
            lambda: mean.add(given(), weight))
    assert mean.count == 0


@pytest.mark.parametrize("weight", [3, np.float32(3), np.int64(3),
                                    np.array(3.), np.float16(3)])
def test_a_weight_may_be_any_number_that_was_fetched(host, weight):
    mean = host.running_mean()
    mean.add(given(b=np.float32([1., 1.])), weight)
    mean.add(given(b=np.float32([5., 5.])))
    value = mean.value()["model/b"]
    assert value.dtype == np.float32
    np.testing.assert_array_equal(value, [2., 2.])


def test_an_empty_mean_has_no_value(host):
    mean = host.running_mean()
    words = ["tf1accum.RunningMean.value: ", "nothing", "add"]
    refuses(RuntimeError, words, mean.value)
    mean.add(given(), weight=0)
    refuses(RuntimeError, words, mean.value)
    mean.add(given())
    mean.reset()
    refuses(RuntimeError, words, mean.value)


def test_an_array_is_added_and_fed_without_asking_tensorflow_what_it_is(
        host, monkeypatch):
    """TensorFlow takes longer to say so than to add up a small array."""
    monkeypatch.setattr(tf, "is_tensor", None)
    mean = host.running_mean()
    mean.add(given())
    assert len(host.feed_dict(mean.value())) >= len(host.gradients)
