"""Replicas of a strategy: k micro-batches in each are one whole batch."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import models
import tf1accum
from conftest import run_example

# What a strategy needs of a machine: two devices.
TWO = tf.ConfigProto(device_count={"CPU": 2})
K = 3


def mirrored():
    return tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])


def run(strategy, function):
    """What `function` returns in the replicas of `strategy`."""
    with strategy.scope():
        # As it is called in TensorFlow 1.15.
        return (getattr(strategy, "run", None)
                or strategy.experimental_run_v2)(function)


def replica():
    """The number of the replica that calls it."""
    return int(tf.get_static_value(
        tf.distribute.get_replica_context().replica_id_in_sync_group))


def parts(strategy, variable):
    return list(strategy.experimental_local_results(variable))


def session():
    session = tf.Session(config=TWO)
    session.run(tf.global_variables_initializer())
    return session


class Lookups:
    """A dense weight and a table, and a mean loss: a model for any device."""

    ROWS = 5

    def __init__(self, replicas=1):
        self.replicas = replicas
        self.x = [tf.placeholder(tf.float32, [None, 3])
                  for _ in range(replicas)]
        self.ids = [tf.placeholder(tf.int32, [None, 4])
                    for _ in range(replicas)]

    def loss(self):
        """That of the replica, divided by their number as programs do."""
        number = replica() if self.replicas > 1 else 0
        with tf.variable_scope("model"):
            w = tf.get_variable("w", [3, 2], initializer=tf.ones_initializer())
            table = tf.get_variable(
                "table", [self.ROWS, 2], initializer=tf.ones_initializer())
        rows = tf.reduce_mean(tf.gather(table, self.ids[number]), axis=1)
        return tf.reduce_mean(tf.square(
            tf.matmul(self.x[number], w) * rows - 3.)) / self.replicas

    def feed(self, examples):
        """Feeds the replicas a share of `examples` each."""
        feed = {}
        for places, arrays in zip((self.x, self.ids), examples):
            feed.update(zip(places, np.split(arrays, self.replicas)))
        return feed

    @classmethod
    def micro_batches(cls, number, size=4):
        random = np.random.RandomState(0)
        return [(random.randn(size, 3), random.randint(
            0, cls.ROWS, [size, 4])) for _ in range(number)]


def on_one_device(make_optimizer, windows):
    """The weights after steps on whole batches, without accumulation."""
    with tf.Graph().as_default():
        model = Lookups()
        train_op = make_optimizer().minimize(model.loss())
        with models.session() as sess:
            for window in windows:
                sess.run(train_op, model.feed(models.whole(window)))
            return sess.run(tf.trainable_variables())


def windows_of(micro_batches):
    return [micro_batches[i:i + K] for i in range(0, len(micro_batches), K)]


@pytest.mark.parametrize("behaviour, name, way", [
    ("v1", "sgd", "build"), ("eager_off", "momentum", "AccumulatingOptimizer"),
    ("v1", "adam", "AccumulatingOptimizer"), ("eager_off", "adam", "build")],
                         indirect=["behaviour"])
def test_windows_in_replicas_are_steps_on_one_device(behaviour, name, way):
    """Rows A14, B14: and nothing moves between applies, in no replica."""
    windows = windows_of(Lookups.micro_batches(3 * K))
    strategy, model = mirrored(), Lookups(replicas=2)
    make = models.OPTIMIZERS[name]

    def train():
        if way == "build":
            return tf1accum.build(
                model.loss(), optimizer=make(), k=K,
                global_step=tf.train.get_or_create_global_step())
        optimizer = tf1accum.AccumulatingOptimizer(make(), K)
        optimizer.minimize(model.loss(), tf.train.get_or_create_global_step())
        return optimizer.ops

    ops = run(strategy, train)
    others = [part for variable in tf.global_variables()
              for part in parts(strategy, variable)
              if not part.name.startswith("accumulation/")]
    with session() as sess:
        for window in windows:
            before = sess.run(others)
            for number, micro_batch in enumerate(window, 1):
                sess.run(ops.step or ops.accumulate, model.feed(micro_batch))
                if number < K or ops.step is None:
                    np.testing.assert_equal(sess.run(others), before)
            if ops.step is None:
                sess.run(ops.apply)
                sess.run(ops.reset)
        trained = [sess.run(parts(strategy, variable))
                   for variable in tf.trainable_variables()]
        assert sess.run(tf.train.get_global_step()) == 3
    for one, (first, second) in zip(on_one_device(make, windows), trained):
        np.testing.assert_array_equal(first, second)
        np.testing.assert_allclose(first, one, rtol=1e-5, atol=1e-6)


class Line:
    """A weight whose gradient is the input's mean: arithmetic is exact."""

    def __init__(self, shape=(), replicas=2):
        self.replicas = replicas
        self.x = [tf.placeholder(tf.float32, [None]) for _ in range(replicas)]
        self.shape = shape

    def loss(self):
        w = tf.get_variable("w", self.shape,
                            initializer=tf.zeros_initializer())
        return w * tf.reduce_mean(self.x[replica()]) / self.replicas

    def feed(self, *values):
        return {place: np.reshape(value, [-1])
                for place, value in zip(self.x, values)}


SGD = tf.train.GradientDescentOptimizer


@pytest.fixture
def strategy():
    return mirrored()


def build_line(strategy, line, k=2, **options):
    """The ops of a window, and the plain variables that `w` is."""
    ops = run(strategy, lambda: tf1accum.build(
        line.loss(), optimizer=SGD(1.), k=k, **options))
    return ops, parts(strategy, ops.variables[0])


def test_the_mean_is_over_the_micro_batches_of_all_replicas(strategy):
    line = Line()
    ops, w = build_line(strategy, line, k=2)
    with session() as sess:
        sess.run(ops.accumulate, line.feed(1., 3.))
        sess.run(ops.accumulate, line.feed(5., 7.))
        assert sess.run(ops.count) == 2
        np.testing.assert_array_equal(sess.run(ops.accumulators), [4.])
        sess.run(ops.apply_and_reset)
        assert sess.run(w) == [-4., -4.]
        # One micro-batch is the mean of one; none is nothing.
        sess.run(ops.accumulate, line.feed(2., 4.))
        sess.run(ops.apply_and_reset)
        sess.run(ops.apply_and_reset)
        assert sess.run(w) == [-7., -7.]
        sess.run(ops.accumulate, line.feed(2., 4.))
        # As the script has divided it, it is summed up: -7 * 3.
        assert sess.run(ops.average_loss) == -7. * 3.
        sess.run(ops.reset)
        assert sess.run([ops.count] + ops.accumulators) == [0, 0.]


def test_ready_gradients_are_windows_in_replicas_too(strategy):
    line = Line()

    def train():
        optimizer = SGD(1.)
        pairs = optimizer.compute_gradients(line.loss())
        return tf1accum.build_from_gradients(
            [(2. * grad, variable) for grad, variable in pairs], optimizer,
            k=2)

    ops = run(strategy, train)
    with session() as sess:
        for values in ((1., 3.), (5., 7.)):
            sess.run(ops.accumulate, line.feed(*values))
        sess.run(ops.apply)
        assert sess.run(parts(strategy, ops.variables[0])) == [-8., -8.]


@pytest.mark.parametrize("way", ["build", "AccumulatingOptimizer"])
def test_hundreds_of_windows_lose_no_update_and_no_order(strategy, way):
    line = Line()

    def train():
        step = tf.train.get_or_create_global_step()
        if way == "build":
            return tf1accum.build(line.loss(), optimizer=SGD(1.), k=2,
                                  global_step=step)
        optimizer = tf1accum.AccumulatingOptimizer(SGD(1.), 2)
        optimizer.minimize(line.loss(), step)
        return optimizer.ops

    ops = run(strategy, train)
    w = parts(strategy, ops.variables[0])
    with session() as sess:
        for window in range(300):
            for value in (window, window + 2.):
                sess.run(ops.step or ops.accumulate,
                         line.feed(value, value + 2.))
            if ops.step is None:
                sess.run(ops.apply_and_reset)
        # Sum of window + 2 over the windows.
        assert sess.run(w) == [-(300 * 299 / 2 + 2 * 300)] * 2
        assert sess.run(tf.train.get_global_step()) == 300


def constant_line(way):
    """The ops of a window that is fed nothing: what is sent is its own."""
    def train():
        loss = tf.get_variable("w", [], initializer=tf.zeros_initializer()) * (
            replica() + 1.) / 2.
        if way == "build":
            return tf1accum.build(loss, optimizer=SGD(1.), k=K)
        optimizer = tf1accum.AccumulatingOptimizer(SGD(1.), K)
        optimizer.minimize(loss)
        return optimizer.ops

    return train


def traced(sess, op):
    """What TensorFlow tells of a run of `op`."""
    metadata = tf.RunMetadata()
    sess.run(op, options=tf.RunOptions(
        trace_level=tf.RunOptions.FULL_TRACE, output_partition_graphs=True),
             run_metadata=metadata)
    return metadata


def reductions():
    """The names of the ops that add up gradients of replicas."""
    return {op.name for op in tf.get_default_graph().get_operations()
            if op.type == "AddN" and op.outputs[0].dtype == tf.float32
            and "/apply/" in op.name}


def number_sent(metadata):
    """How many values a device is to send to another one."""
    # What only orders is sent as a constant of no elements.
    nodes = {node.name: node for graph in metadata.partition_graphs
             for node in graph.node}
    sources = [nodes[node.input[0].partition(":")[0]]
               for node in nodes.values()
               if node.op in ("_Send", "_HostSend") and (
                   node.attr["send_device"] != node.attr["recv_device"])]
    return sum(source.op != "Const" or 0 not in [
        dim.size for dim in source.attr["value"].tensor.tensor_shape.dim]
               for source in sources)


def test_replicas_send_each_other_nothing_between_applies(strategy):
    ops = run(strategy, constant_line("build"))
    with session() as sess:
        for _ in range(2):
            for _ in range(K):
                assert number_sent(traced(sess, ops.accumulate)) == 0
            # What tells that the tests above would see it.
            assert number_sent(traced(sess, ops.apply)) > 0
            sess.run(ops.reset)


@pytest.mark.parametrize("way", ["build", "AccumulatingOptimizer"])
def test_gradients_are_reduced_once_a_window(strategy, way):
    """Row B14."""
    ops = run(strategy, constant_line(way))
    runs = ([ops.step] * K if ops.step
            else [ops.accumulate] * K + [ops.apply_and_reset])
    # As they are, not as TensorFlow would rewrite them.
    config = tf.ConfigProto()
    config.CopyFrom(TWO)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Session(config=config) as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(2):
            reduced = []
            for op in runs:
                ran = [stats.node_name for device in traced(
                    sess, op).step_stats.dev_stats
                       for stats in device.node_stats]
                reduced.append(len(reductions().intersection(ran)))
            assert reduced == [0] * (len(runs) - 1) + [1]
        assert sess.run(parts(strategy, ops.variables[0])) == [-3., -3.]


def test_weights_of_all_replicas_make_one_mean(strategy):
    line = Line()
    weight = [tf.placeholder(tf.float32, []) for _ in range(2)]
    ops = run(strategy, lambda: tf1accum.build(
        line.loss(), optimizer=SGD(1.), k=2, weight=weight[replica()]))
    w = parts(strategy, ops.variables[0])

    def add(values, weights):
        feed = line.feed(*values)
        feed.update(zip(weight, weights))
        sess.run(ops.accumulate, feed)

    with session() as sess:
        add((1., 3.), (2., 4.))
        # What weighs nothing is left out, in one replica or in both.
        add((5., np.nan), (10., 0.))
        add((np.nan, np.nan), (0., 0.))
        sess.run(ops.apply_and_reset)
        assert sess.run(w) == [-(2. + 12. + 50.) / 16.] * 2
        add((1., 1.), (0., 0.))
        sess.run(ops.apply_and_reset)
        assert sess.run(w) == [-4., -4.]
        # All of it in one replica.
        add((6., np.nan), (3., 0.))
        sess.run(ops.apply_and_reset)
        assert sess.run(w) == [-10., -10.]


def test_a_weighted_sum_is_that_of_all_replicas(strategy):
    line = Line()
    weight = [tf.placeholder(tf.float32, []) for _ in range(2)]
    ops = run(strategy, lambda: tf1accum.build(
        line.loss(), optimizer=SGD(1.), k=2, weight=weight[replica()],
        reduction="sum"))
    w = parts(strategy, ops.variables[0])
    with session() as sess:
        for values, weights in (((1., 3.), (2., 4.)), ((5., 7.), (10., 0.))):
            feed = line.feed(*values)
            feed.update(zip(weight, weights))
            sess.run(ops.accumulate, feed)
        sess.run(ops.apply_and_reset)
        assert sess.run(w) == [-(2. + 12. + 50.)] * 2


def test_a_micro_batch_is_skipped_in_all_replicas_or_in_none(strategy):
    line = Line()
    ops, w = build_line(strategy, line, nonfinite="skip")
    with session() as sess:
        for _ in range(20):
            sess.run(ops.accumulate, line.feed(1., 3.))
            sess.run(ops.accumulate, line.feed(100., np.nan))
            sess.run(ops.accumulate, line.feed(np.inf, 100.))
            sess.run(ops.accumulate, line.feed(5., 7.))
            assert sess.run(ops.count) == 2
            sess.run(ops.apply_and_reset)
        assert sess.run(w) == [-80., -80.]
        assert sess.run(ops.skipped) == 40


def test_a_micro_batch_that_fails_in_one_replica_is_added_in_none(strategy):
    line = Line()
    ops, w = build_line(strategy, line, nonfinite="raise")
    with session() as sess:
        sess.run(ops.accumulate, line.feed(1., 3.))
        for values in ((100., np.nan), (np.nan, 100.)) * 10:
            with pytest.raises(tf.errors.InvalidArgumentError) as error:
                sess.run(ops.accumulate, line.feed(*values))
            assert "not all finite" in str(error.value)
        assert sess.run([ops.count] + ops.accumulators) == [1, 1.]
        sess.run(ops.apply)
        assert sess.run(w) == [-2., -2.]


def test_input_that_ends_in_one_replica_is_added_in_none(strategy):
    def train():
        w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
        data = tf.data.Dataset.range(2 + 3 * replica()).map(
            lambda x: tf.cast(x, tf.float32))
        iterator = tf.data.make_initializable_iterator(data)
        tf.add_to_collection("iterators", iterator.initializer)
        return tf1accum.build(w * iterator.get_next() / 2.,
                              optimizer=SGD(1.), k=4)

    ops = run(strategy, train)
    with session() as sess:
        for _ in range(20):
            sess.run(ops.reset)
            sess.run(tf.get_collection("iterators"))
            for _ in range(2):
                sess.run(ops.accumulate)
            with pytest.raises(tf.errors.OutOfRangeError):
                sess.run(ops.accumulate)
            assert sess.run([ops.count] + ops.accumulators) == [2, .25]


def test_batch_norm_statistics_move_as_the_strategy_moves_them(strategy):
    def statistics(train):
        with tf.Graph().as_default():
            x = [tf.placeholder(tf.float32, [None, 1]) for _ in range(2)]

            def function():
                def variable(name, **options):
                    return tf.get_variable(
                        name, [1], initializer=tf.ones_initializer(),
                        **options)

                moving = variable(
                    "moving_mean", trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.MEAN)
                batch = tf.reduce_mean(x[replica()], axis=0)
                update = moving.assign_sub(.5 * (moving - batch))
                tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
                return train(tf.reduce_sum(variable("gamma") * batch))

            op = run(strategy, function)
            moving, = [variable for variable in tf.global_variables()
                       if variable.name == "moving_mean:0"]
            with session() as sess:
                for value in (2., 4.):
                    sess.run(op, {x[0]: [[value]], x[1]: [[value + 6.]]})
                return sess.run(parts(strategy, moving))

    def without(loss):
        with tf.control_dependencies(tf.get_collection(
                tf.GraphKeys.UPDATE_OPS)[-1:]):
            return SGD(1.).minimize(loss)

    moved = statistics(lambda loss: tf1accum.build(
        loss, optimizer=SGD(1.), k=2).accumulate)
    np.testing.assert_array_equal(moved, statistics(without))
    # ((1 + 2) / 2 + 4) / 2, and ((1 + 8) / 2 + 10) / 2.
    np.testing.assert_array_equal(moved, [[2.75], [7.25]])


def test_transform_and_after_apply_run_once_a_window_in_each_replica(strategy):
    """As they would without accumulation: on what the replica hands on."""
    line = Line()
    average = tf.train.ExponentialMovingAverage(.5)

    def train():
        loss = line.loss()
        return tf1accum.build(
            loss, optimizer=SGD(1.), k=2, after_apply=lambda: average.apply(
                tf.trainable_variables()), transform=lambda pairs: [
                    (tf.minimum(grad, 2.), variable)
                    for grad, variable in pairs])

    ops = run(strategy, train)
    w = ops.variables[0]
    with session() as sess:
        for _ in range(2):
            for values in ((1., 3.), (1., 13.)):
                sess.run(ops.accumulate, line.feed(*values))
            sess.run(ops.apply_and_reset)
        # 0.5 of the first replica; of the second 4, clipped to 2. The average
        # starts at 0: .5 * -2.5, then that and -5.
        assert sess.run(parts(strategy, w)) == [-5., -5.]
        assert sess.run(parts(strategy, average.average(w))) == [
            -3.125] * 2


def build_lookups(strategy, model, make=models.OPTIMIZERS["adam"], **options):
    return run(strategy, lambda: tf1accum.build(
        model.loss(), optimizer=make(), k=K,
        global_step=tf.train.get_or_create_global_step(), **options))


def all_values(sess, strategy):
    """What every plain variable in every replica holds, by name."""
    plain = [part for variable in tf.global_variables()
             for part in parts(strategy, variable)]
    return dict(zip([part.name for part in plain], sess.run(plain)))


@pytest.mark.parametrize("make_saver", [
    tf1accum.resumable_saver, tf.train.Saver])
def test_a_window_restored_in_the_middle_goes_on_in_all_replicas(
        strategy, make_saver, tmp_path):
    model, micro_batches = Lookups(replicas=2), Lookups.micro_batches(2 * K)
    ops = build_lookups(strategy, model)
    saver = make_saver()
    with session() as sess:
        for number, micro_batch in enumerate(micro_batches, 1):
            sess.run(ops.accumulate, model.feed(micro_batch))
            if number == K:
                sess.run(ops.apply_and_reset)
            if number == K + 2:
                path = saver.save(sess, str(tmp_path / "model"))
                before = all_values(sess, strategy)
                in_window = sess.run(ops.accumulators)
        sess.run(ops.apply_and_reset)
        want = all_values(sess, strategy)
    with session() as sess:
        saver.restore(sess, path)
        assert sess.run(ops.count) == 2
        after = all_values(sess, strategy)
        for now, then in zip(sess.run(ops.accumulators), in_window):
            # Of a sum, each replica gets its part.
            np.testing.assert_allclose(getattr(now, "values", now),
                                       getattr(then, "values", then), 1e-6)
        for name in after:
            if not name.startswith("accumulation/model/w") and (
                    "average_loss" not in name):
                np.testing.assert_array_equal(after[name], before[name], name)
        sess.run(ops.accumulate, model.feed(micro_batches[-1]))
        sess.run(ops.apply_and_reset)
        got = all_values(sess, strategy)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-6,
                                   err_msg=name)


def test_the_model_saver_leaves_windows_and_slots_of_all_replicas_out(
        strategy, tmp_path):
    build_lookups(strategy, Lookups(replicas=2))
    saver = tf1accum.model_saver()
    left_out = {variable.name for variable in saver.left_out}
    slots = {"model/%s/Adam%s:0" % (name, end)
             for name in ("w", "table") for end in ("", "_1")}
    own = {"accumulation/%s:0" % name for name in (
        "count", "average_loss", "model/w")}
    # Rows are saved for each replica, and say for how many.
    rows = {"accumulation/model/table/of_2/%s%s:0" % (part, end)
            for part in ("values", "indices", "used")
            for end in ("", "/replica_1")}
    assert left_out == slots | own | rows | {"beta1_power:0", "beta2_power:0"}
    number = len(tf.get_default_graph().get_operations())
    with session() as sess:
        path = saver.save(sess, str(tmp_path / "model"))
        assert {name for name, _ in tf.train.list_variables(path)} == {
            "model/w", "model/table", "global_step"}
    with tf.Session(config=TWO) as sess:
        tf.get_default_graph().finalize()
        saver.restore(sess, path)
        values = all_values(sess, strategy)
        assert values["model/w/Adam/replica_1:0"].tolist() == [[0., 0.]] * 3
        assert values["model/w/replica_1:0"].tolist() == [[1., 1.]] * 3


def test_savers_can_be_made_in_a_replica_too(strategy, tmp_path):
    """As in the model_fn of an Estimator, for its Scaffold."""
    model = Lookups(replicas=2)

    def train():
        tf1accum.build(model.loss(), optimizer=SGD(1.), k=K)
        return tf1accum.model_saver(), tf1accum.resumable_saver()

    savers = run(strategy, train)
    with session() as sess:
        keys = [{name for name, _ in tf.train.list_variables(saver.save(
            sess, str(tmp_path / "model")))} for saver in savers]
    assert keys[0] == {"model/w", "model/table"}
    assert keys[1] > {"accumulation/model/w", "accumulation/count"}


def test_a_model_is_restored_in_all_replicas(strategy, tmp_path):
    with tf.Graph().as_default():
        Lookups().loss()
        tf.train.get_or_create_global_step()
        with models.session() as sess:
            sess.run([variable.assign_add(tf.ones_like(variable))
                      for variable in tf.global_variables()])
            path = tf.train.Saver().save(sess, str(tmp_path / "model"))
    build_lookups(strategy, Lookups(replicas=2))
    tf.get_default_graph().finalize()
    with tf.Session(config=TWO) as sess:
        done = tf1accum.restore_model(sess, path)
        assert set(done.restored) == {"model/w", "model/table", "global_step"}
        assert {"model/w/Adam", "accumulation/model/w",
                "accumulation/count"} <= set(done.initialized)
        values = {part.name: sess.run(part) for variable in
                  tf.get_default_graph().get_collection("variables")
                  for part in parts(strategy, variable)}
    for name in ("model/w:0", "model/w/replica_1:0", "model/table:0",
                 "model/table/replica_1:0", "global_step/replica_1:0"):
        assert np.all(values[name] == (1 if "step" in name else 2)), name
    assert np.all(values["accumulation/model/w/replica_1:0"] == 0.)


def test_one_box_is_added_and_tells_the_replicas_apart(strategy):
    model = Lookups(replicas=2)

    def nodes(train):
        with tf.Graph().as_default():
            run(strategy, lambda: train(Lookups(replicas=2).loss()))
            # TensorFlow 1.15 adds a constant for each replica that it starts.
            return {op.name.partition("/")[0] for op in
                    tf.get_default_graph().get_operations()
                    if op.type != "Const" or "/" in op.name}, [
                        [variable.name for variable in variables] for variables
                        in (tf.trainable_variables(), tf.global_variables())]

    for train in (
            lambda loss: tf1accum.build(
                loss, optimizer=tf.train.AdamOptimizer(), k=2),
            lambda loss: tf1accum.AccumulatingOptimizer(
                tf.train.AdamOptimizer(), 2).minimize(loss)):
        without, names = nodes(tf.train.AdamOptimizer().minimize)
        with_accumulation, names_with = nodes(train)
        assert with_accumulation - without == {"accumulation"}
        assert names_with[0] == names[0]
        # Slots have the names that they have without accumulation.
        assert {name for name in names_with[1] if not name.startswith(
            "accumulation/")} == set(names[1])
    ops = build_lookups(strategy, model)
    inside = {op.name.split("/")[1] for op in
              tf.get_default_graph().get_operations()
              if op.name.startswith("accumulation/")}
    assert inside == {
        "replica_0", "replica_1", "model", "count", "average_loss", "record",
        "accumulate", "apply", "apply_and_reset", "reset", "initializer"}
    # Each replica works on its own device.
    for number in range(2):
        assert {op.device for op in tf.get_default_graph().get_operations()
                if op.name.startswith("accumulation/replica_%d/accumulate/"
                                      "model" % number)} == {
                    "/replica:0/task:0/device:CPU:%d" % number}
    assert [ops.accumulate.name, ops.apply.name, ops.name] == [
        "accumulation/accumulate", "accumulation/apply", "accumulation"]


def test_two_windows_in_replicas_have_boxes_and_slots_of_their_own(strategy):
    line = Line()

    def train():
        loss = line.loss()
        return [tf1accum.build(loss, optimizer=tf.train.MomentumOptimizer(
            1., .5), k=k) for k in (1, 2)]

    ops = run(strategy, train)
    assert [each.name for each in ops] == ["accumulation", "accumulation_1"]
    with session() as sess:
        for each in ops:
            sess.run(each.accumulate, line.feed(1., 3.))
            sess.run(each.apply_and_reset)
        assert sess.run(parts(strategy, ops[0].variables[0])) == [-4., -4.]


def test_one_replica_is_a_strategy_too():
    for strategy in (tf.distribute.OneDeviceStrategy("/cpu:0"),
                     tf.distribute.MirroredStrategy(["/cpu:0"])):
        with tf.Graph().as_default():
            line = Line(replicas=1)
            ops, w = build_line(strategy, line, weight=None, k=2)
            with session() as sess:
                for value in (1., 3.):
                    sess.run(ops.accumulate, line.feed(value))
                sess.run(ops.apply_and_reset)
                assert sess.run(w) == [-2.]


def test_summaries_are_of_the_window_of_all_replicas(strategy):
    line = Line()
    ops = run(strategy, lambda: tf1accum.build(
        line.loss(), optimizer=SGD(1.), k=2))
    summary = tf1accum.add_summaries(ops)
    with session() as sess:
        for values in ((1., 3.), (5., 7.)):
            sess.run(ops.accumulate, line.feed(*values))
        found = {value.tag: value.simple_value for value in
                 tf.Summary.FromString(sess.run(summary)).value}
    assert found["accumulation/count"] == 2.
    assert found["accumulation/mean_gradient_norm"] == 4.


def test_a_train_op_summarises_the_window_of_all_replicas(strategy):
    line = Line()

    def train():
        optimizer = tf1accum.AccumulatingOptimizer(
            SGD(1.), 2, summarize=tf1accum.add_summaries)
        return optimizer.minimize(line.loss())

    step = run(strategy, train)
    summary, = tf.get_collection(tf.GraphKeys.SUMMARIES)
    with session() as sess:
        for values in ((1., 3.), (5., 7.)):
            sess.run(step, line.feed(*values))
        found = {value.tag: value.simple_value for value in
                 tf.Summary.FromString(sess.run(summary)).value}
    assert found["accumulation/mean_gradient_norm"] == 4.


def test_a_batch_is_split_inside_of_a_run_in_each_replica(strategy):
    line = Line()

    def train():
        w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
        optimizer = SGD(1.)
        pairs, _ = tf1accum.microbatch_gradients(
            lambda x: w * tf.reduce_mean(x) / 2., line.x[replica()], k=2)
        return optimizer.apply_gradients(pairs), w

    op, w = run(strategy, train)
    with session() as sess:
        sess.run(op, line.feed([1., 3.], [5., 7., 9., 11.]))
        assert sess.run(parts(strategy, w)) == [-5., -5.]


@pytest.mark.parametrize("way", ["hook", "train op"])
def test_a_monitored_session_drives_all_replicas_and_resumes(
        strategy, way, tmp_path):
    """It is ended in mid-window, and goes on there."""
    def train(values):
        def function():
            step = tf.train.get_or_create_global_step()
            if way == "hook":
                return tf1accum.build(
                    line.loss(), optimizer=SGD(1.), k=K, global_step=step)
            optimizer = tf1accum.AccumulatingOptimizer(SGD(1.), K)
            optimizer.minimize(line.loss(), step)
            return optimizer.ops

        with tf.Graph().as_default():
            line = Line()
            ops = run(strategy, function)
            fetched = parts(strategy, ops.variables[0]) + [
                tf.train.get_global_step(), ops.count]
            with tf.train.MonitoredTrainingSession(
                    checkpoint_dir=str(tmp_path), config=TWO, hooks=[]
                    if ops.step else [tf1accum.AccumulationHook(ops)]) as sess:
                for value in values:
                    sess.run(ops.step or [], line.feed(value, value + 2.))
                return sess.run_step_fn(
                    lambda step_context: step_context.session.run(fetched))

    # The mean of 2, 3 and 4, and then that of 5, 6 and 7.
    assert train([1., 2., 3., 4.]) == [-3., -3., 1, 1]
    assert train([5., 6.]) == [-9., -9., 2, 0]


@pytest.mark.skipif(not hasattr(tf, "estimator"), reason=(
    "TensorFlow has no tf.estimator from 2.16 on"))
def test_an_estimator_trains_on_all_devices_as_on_one(behaviour, tmp_path):
    """Where it is interrupted in mid-window too."""
    random = np.random.RandomState(0)
    data = [random.randn(3 * K * 8, size).astype(np.float32)
            for size in (3, 2)]

    def input_fn(size, number=None, skip=0):
        return lambda: tf.data.Dataset.from_tensor_slices(tuple(data)).batch(
            size).skip(skip).take(-1 if number is None else number)

    def model_fn(features, labels, mode, params):
        w = tf.get_variable("w", [3, 2], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.square(tf.matmul(features, w) - labels))
        optimizer = models.OPTIMIZERS["adam"]()
        if params["k"] is not None:
            optimizer = tf1accum.AccumulatingOptimizer(optimizer, params["k"])
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
        if params["k"] is not None:
            # Not divided by the program: the mean over replicas.
            losses.append(optimizer.ops.average_loss)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def estimator(name, k=None, strategy=None):
        return tf.estimator.Estimator(
            model_fn, str(tmp_path / name), tf.estimator.RunConfig(
                session_config=TWO, train_distribute=strategy,
                save_summary_steps=None, log_step_count_steps=None), {"k": k})

    losses = []
    whole = estimator("whole")
    whole.train(input_fn(8 * K))
    replicas = estimator("replicas", K, mirrored())
    # Two batches a run, one for each replica: 4, and the 5 others.
    replicas.train(input_fn(4, number=8))
    assert replicas.get_variable_value("accumulation/count") == 1
    replicas.train(input_fn(4, skip=8))
    assert replicas.get_variable_value("accumulation/count") == 0
    for name in whole.get_variable_names():
        np.testing.assert_allclose(
            replicas.get_variable_value(name), whole.get_variable_value(name),
            rtol=1e-5, atol=1e-6, err_msg=name)


def test_the_example_trains_on_two_devices_as_on_one():
    printed = run_example("distributed/mirrored.py")
    assert "50 windows of 4 micro-batches on each of /cpu:0, /cpu:1" in printed
    accuracy, difference = [float(line.split()[-1])
                            for line in printed.splitlines()[-2:]]
    assert accuracy > .9
    assert difference < 5e-4


def refused(words, call):
    models.refuses(RuntimeError, words, call)


def test_a_window_in_the_scope_of_a_strategy_is_refused(strategy):
    model = models.Regression()
    grad = model.w + 0.
    words = ["in a strategy, must be called in the function that each replica "
             "runs; got the scope of a MirroredStrategy", "strategy.run",
             "experimental_run_v2", "model_fn"]
    with strategy.scope():
        refused(words, lambda: tf1accum.build(
            model.loss, model.variables, optimizer=SGD(1.), k=2))
        refused(words, lambda: tf1accum.build_from_gradients(
            [(grad, model.w)], optimizer=SGD(1.), k=2))
        refused(words, lambda: tf1accum.AccumulatingOptimizer(
            SGD(1.), 2).minimize(model.loss, var_list=model.variables))
        refused(words, lambda: tf1accum.microbatch_gradients(
            lambda x: model.loss, model.x, k=2))


def test_other_strategies_are_refused_by_name():
    model = models.Regression()
    strategy = tf.distribute.experimental.CentralStorageStrategy(["/cpu:0"])
    words = ["works in a tf.distribute.MirroredStrategy or OneDeviceStrategy",
             "got CentralStorageStrategy", "average_tower_gradients"]
    run(strategy, lambda: refused(words, lambda: tf1accum.build(
        model.loss, model.variables, optimizer=SGD(1.), k=2)))


def test_what_no_replica_can_do_is_refused_with_what_does(strategy):
    model = models.Regression()

    def train():
        words = ["works outside of tf.distribute strategies; got Mirrored"]
        refused(words + ["tf1accum.build_host", "call tf1accum.build in"],
                lambda: tf1accum.build_host(model.loss, optimizer=SGD(1.)))
        for port in (
                lambda: tf1accum.ports.AccumulatingOptimizer(
                    SGD(1.), model.variables),
                lambda: tf1accum.ports.AccumGradOptimizer(
                    SGD(1.), 2).minimize(model.loss)):
            refused(words + ["use tf1accum.AccumulatingOptimizer or "
                             "tf1accum.build"], port)

    run(tf.distribute.MirroredStrategy(["/cpu:0"]), train)


def calls(model, optimizer, **options):
    """What would make a window."""
    grad = tf.ones_like(model.w)
    return [
        lambda: tf1accum.build(
            model.loss, model.variables, optimizer=optimizer, k=2, **options),
        lambda: tf1accum.build_from_gradients(
            [(grad, model.w)], optimizer=optimizer, k=2, **options),
        lambda: tf1accum.AccumulatingOptimizer(
            optimizer, 2, **options).minimize(
                model.loss, var_list=model.variables),
        lambda: tf1accum.AccumulatingOptimizer(
            optimizer, 2, **options).apply_gradients([(grad, model.w)])]


class DistributedOptimizer(tf.train.Optimizer):
    """Has the name of Horovod's."""

    def __init__(self):
        super().__init__(False, "Distributed")
        self._optimizer = SGD(1.)


DistributedOptimizer.__module__ = "horovod.tensorflow"


def test_other_ways_to_reduce_are_refused_in_a_replica():
    model = models.Regression()

    def train():
        for name, optimizer in (
                ("tf.train.SyncReplicasOptimizer",
                 tf.train.SyncReplicasOptimizer(SGD(1.), 2)),
                ("Horovod's DistributedOptimizer", DistributedOptimizer())):
            for call in calls(model, optimizer):
                refused(["in a tf.distribute strategy, optimizer must not be "
                         "one that reduces over workers; got " + name,
                         "replica function of a MirroredStrategy",
                         "pass the optimizer that it wraps"], call)

    run(tf.distribute.MirroredStrategy(["/cpu:0"]), train)


def test_a_place_is_refused_in_a_replica():
    model = models.Regression()

    def train():
        for name, device in (("worker_device", "/job:worker/task:0"),
                             ("accumulator_device", "/cpu:0")):
            for call in calls(model, SGD(1.), **{name: device}):
                refused(["in a tf.distribute strategy, %s must be None" % name,
                         "got %r in the replica function of a "
                         "MirroredStrategy" % device, "Leave it out"], call)

    run(tf.distribute.MirroredStrategy(["/cpu:0"]), train)


def test_a_train_op_in_a_branch_of_a_replica_is_refused(behaviour, strategy):
    line = Line()

    def train():
        loss = line.loss()
        with pytest.raises(RuntimeError) as error:
            tf.cond(tf.constant(True), lambda: (
                tf1accum.AccumulatingOptimizer(SGD(1.), 2).minimize(loss)),
                    tf.no_op)
        assert "outside of every tf.cond branch" in str(error.value)

    run(strategy, train)


def test_windows_of_replicas_are_not_recovered(strategy, tmp_path):
    build_line(strategy, Line())
    path = str(tmp_path / "graph.meta")
    tf.train.export_meta_graph(path)
    with tf.Graph().as_default():
        tf.train.import_meta_graph(path)
        models.refuses(ValueError, [
            "tf1accum.recover: a window must be of one device",
            "'accumulation' is that of 2 replicas"], tf1accum.recover)
