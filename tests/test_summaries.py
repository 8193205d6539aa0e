"""What is summarised of a window, against NumPy, and who gets to see it."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import events
import models
import tf1accum

K = 4
TAGS = events.TAGS


def sgd():
    return tf.train.GradientDescentOptimizer(0.1)


@pytest.fixture
def model(graph):
    return models.Regression()


class Lookup:
    """Least squares on rows that are looked up, some of them twice."""

    ROWS, SIZE = 6, 2

    def __init__(self):
        random = np.random.RandomState(0)
        self.start = random.randn(self.ROWS, self.SIZE).astype(np.float32)
        self.ids = tf.placeholder(tf.int64, [None])
        self.y = tf.placeholder(tf.float32, [None, self.SIZE])
        self.table = tf.get_variable(
            "table", initializer=tf.constant(self.start), use_resource=True)
        self.loss = tf.reduce_mean(
            tf.square(tf.gather(self.table, self.ids) - self.y))

    def batches(self, number):
        random = np.random.RandomState(1)
        # Of five rows out of four, one at least is there twice.
        return [(random.randint(0, 4, size=5), random.randn(5, self.SIZE))
                for _ in range(number)]

    def feed(self, batch):
        return {self.ids: batch[0], self.y: batch[1]}

    def gradient(self, batch):
        """By NumPy, dense."""
        ids, y = batch
        gradient = np.zeros([self.ROWS, self.SIZE])
        for row, target in zip(ids, y):
            gradient[row] += 2. * (self.start[row] - target) / y.size
        return gradient

    def numpy_loss(self, batch):
        return np.mean(np.square(self.start[batch[0]] - batch[1]))


# What is summarised.

@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("k_is_a_tensor", [False, True])
@pytest.mark.parametrize("number", [1, 3, K])
def test_it_is_of_the_mean_of_what_the_window_holds(
        model, number, k_is_a_tensor, reduction):
    """In full windows and in short ones, whatever is applied."""
    k = tf.placeholder_with_default(K, []) if k_is_a_tensor else K
    ops = tf1accum.build(model.loss, optimizer=sgd(), k=k, reduction=reduction)
    summary = tf1accum.add_summaries(ops)
    batches = model.batches(number)
    with models.session() as sess:
        for batch in batches:
            sess.run(ops.accumulate, model.feed(batch))
        got = events.values(sess.run(summary))
    loss, mean = events.numpy_window(model, model.start, batches)
    assert list(got) == TAGS
    events.assert_summarises(got, loss, events.norm(mean), number)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_weights_weigh_and_their_sum_is_shown(model, reduction):
    weight = tf.placeholder(tf.float32, [])
    ops = tf1accum.build(model.loss, optimizer=sgd(), k=K, weight=weight,
                         reduction=reduction)
    summary = tf1accum.add_summaries(ops)
    batches, weights = model.batches(3), [2., .5, 3.]
    with models.session() as sess:
        for batch, value in zip(batches, weights):
            sess.run(ops.accumulate, {**model.feed(batch), weight: value})
        got = events.values(sess.run(summary))
    loss, mean = events.numpy_window(model, model.start, batches, weights)
    assert got.pop("accumulation/weight") == 5.5
    events.assert_summarises(got, loss, events.norm(mean), 3)


@pytest.mark.parametrize("sparse", ["rows", "dense"])
def test_rows_of_one_index_are_added_up_before_they_are_squared(sparse):
    model = Lookup()
    ops = tf1accum.build(model.loss, optimizer=sgd(), k=K, sparse=sparse)
    summary = tf1accum.add_summaries(ops, histograms=True)
    batches = model.batches(3)
    with models.session() as sess:
        for batch in batches:
            sess.run(ops.accumulate, model.feed(batch))
        got = events.values(sess.run(summary))
    mean = np.mean([model.gradient(batch) for batch in batches], axis=0)
    loss = np.mean([model.numpy_loss(batch) for batch in batches])
    events.assert_summarises(got, loss, events.norm([mean]), 3)
    rows = mean if sparse == "dense" else mean[
        np.unique([batch[0] for batch in batches])]
    histogram = got["accumulation/gradient/table"]
    assert histogram.num == rows.size
    np.testing.assert_allclose(
        [histogram.sum, histogram.sum_squares],
        [rows.sum(), np.square(rows).sum()], rtol=1e-4)


def test_histograms_are_of_the_mean_gradients(model):
    ops = tf1accum.build(model.loss, optimizer=sgd(), k=K)
    summary = tf1accum.add_summaries(ops, histograms=True)
    batches = model.batches(3)
    with models.session() as sess:
        for batch in batches:
            sess.run(ops.accumulate, model.feed(batch))
        got = events.values(sess.run(summary))
    _, mean = events.numpy_window(model, model.start, batches)
    assert list(got) == ["accumulation/gradient/model/w",
                         "accumulation/gradient/model/b"] + TAGS
    for histogram, gradient in zip(got.values(), mean):
        assert histogram.num == gradient.size
        np.testing.assert_allclose(
            [histogram.min, histogram.max, histogram.sum,
             histogram.sum_squares],
            [gradient.min(), gradient.max(), gradient.sum(),
             np.square(gradient).sum()], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [tf.float16, tf.float64])
def test_types_of_other_widths_are_summarised(dtype):
    model = models.Regression(dtype=dtype)
    ops = tf1accum.build(model.loss, optimizer=sgd(), k=K)
    summary = tf1accum.add_summaries(ops, histograms=True)
    batches = model.batches(2)
    with models.session() as sess:
        for batch in batches:
            sess.run(ops.accumulate, model.feed(batch))
        got = events.values(sess.run(summary))
    loss, mean = events.numpy_window(model, model.start, batches)
    np.testing.assert_allclose(
        [got["accumulation/average_loss"], got["accumulation/mean_gradient_norm"]],
        [loss, events.norm(mean)], rtol=1e-2 if dtype == tf.float16 else 1e-6)


def test_skipped_micro_batches_are_counted(model):
    ops = tf1accum.build(model.loss, optimizer=sgd(), k=K, nonfinite="skip")
    summary = tf1accum.add_summaries(ops)
    batches = model.batches(3)
    batches[1] = (batches[1][0] * np.nan, batches[1][1])
    with models.session() as sess:
        for batch in batches:
            sess.run(ops.accumulate, model.feed(batch))
        got = events.values(sess.run(summary))
    loss, mean = events.numpy_window(model, model.start, batches[::2])
    assert got.pop("accumulation/skipped") == 1.
    events.assert_summarises(got, loss, events.norm(mean), 2)


def test_a_nan_in_a_gradient_is_shown_and_fails_no_run(model):
    """TensorFlow's histograms raise for it."""
    ops = tf1accum.build(model.loss, optimizer=sgd(), k=K)
    summary = tf1accum.add_summaries(ops, histograms=True)
    x, y = model.batches(1)[0]
    with models.session() as sess:
        sess.run(ops.accumulate, model.feed((x, y * np.nan)))
        got = events.values(sess.run(summary))
    assert np.isnan(got["accumulation/mean_gradient_norm"])
    assert np.isnan(got["accumulation/average_loss"])
    # TensorBoard would draw a histogram of nothing at infinity.
    assert list(got) == TAGS


def test_a_histogram_of_no_rows_is_left_out():
    model = Lookup()
    ops = tf1accum.build(model.loss, optimizer=sgd(), k=K)
    summary = tf1accum.add_summaries(ops, histograms=True)
    with models.session() as sess:
        assert list(events.values(sess.run(summary))) == TAGS


def test_an_empty_window_is_all_zeros(model):
    ops = tf1accum.build(model.loss, optimizer=sgd(), k=K)
    summary = tf1accum.add_summaries(ops)
    with models.session() as sess:
        got = events.values(sess.run(summary))
    assert list(got.values()) == [0., 0., 0.]


def test_what_the_ops_do_not_have_is_left_out(model):
    ops = tf1accum.build_from_gradients(
        tf.train.GradientDescentOptimizer(0.1).compute_gradients(model.loss),
        optimizer=sgd(), k=K)
    summary = tf1accum.add_summaries(ops)
    with models.session() as sess:
        got = events.values(sess.run(summary))
    assert list(got) == TAGS[1:]


def test_ops_that_a_graph_was_asked_for_are_summarised(model):
    """As a program does that finds the window in a graph it has loaded."""
    tf1accum.build(model.loss, optimizer=sgd(), k=K)
    ops = tf1accum.recover()
    summary = tf1accum.add_summaries(ops)
    batches = model.batches(3)
    with models.session() as sess:
        for batch in batches:
            sess.run(ops.accumulate, model.feed(batch))
        got = events.values(sess.run(summary))
    loss, mean = events.numpy_window(model, model.start, batches)
    events.assert_summarises(got, loss, events.norm(mean), 3)


# When it may be run.

def test_it_is_right_in_the_run_of_apply(model, tmp_path):
    """And each window is at its global step in the file."""
    step = tf.train.get_or_create_global_step()
    ops = tf1accum.build(
        model.loss, optimizer=sgd(), k=K, global_step=step)
    summary = tf1accum.add_summaries(ops)
    batches = model.batches(3 * K)
    with models.session() as sess, tf.summary.FileWriter(
            str(tmp_path)) as writer:
        for first in range(0, len(batches), K):
            for batch in batches[first:first + K]:
                sess.run(ops.accumulate, model.feed(batch))
            _, value = sess.run([ops.apply, summary])
            writer.add_summary(value, sess.run(step))
            sess.run(ops.reset)
    got = events.written(tmp_path)
    assert [at for at, _ in got] == [1, 2, 3]
    for (_, shown), (loss, gradient_norm) in zip(
            got, events.numpy_windows(model, batches, K)):
        events.assert_summarises(shown, loss, gradient_norm, K)


def test_it_moves_nothing(model):
    ops = tf1accum.build(model.loss, optimizer=sgd(), k=K)
    summary = tf1accum.add_summaries(ops, histograms=True)
    with models.session() as sess:
        sess.run(ops.accumulate, model.feed(model.batches(1)[0]))
        before = sess.run(tf.global_variables())
        sess.run(summary)
        for value, expected in zip(sess.run(tf.global_variables()), before):
            np.testing.assert_array_equal(value, expected)


# Where it is in the graph.

def test_all_that_is_added_is_in_one_scope_of_the_box(model):
    ops = tf1accum.build(model.loss, optimizer=sgd(), k=K)
    before = set(tf.get_default_graph().get_operations())
    with tf.name_scope("mine"), tf.device("/cpu:0"), tf.control_dependencies(
            [tf.no_op()]):
        before |= set(tf.get_default_graph().get_operations())
        summary = tf1accum.add_summaries(ops, histograms=True)
    assert summary.op.name == "accumulation/summaries/merged"
    added = set(tf.get_default_graph().get_operations()) - before
    for op in added:
        assert op.name.startswith("accumulation/summaries/"), op.name
        assert "_1" not in op.name, op.name
        assert not [control for control in op.control_inputs
                    if control not in added], op.name


def test_the_merged_one_is_in_the_collections_and_nothing_is_there_twice(
        model):
    ops = tf1accum.build(model.loss, optimizer=sgd(), k=K)
    summary = tf1accum.add_summaries(ops)
    tf.summary.scalar("loss", model.loss)
    assert tf.get_collection(tf.GraphKeys.SUMMARIES)[0] is summary
    merged = tf.summary.merge_all()
    with models.session() as sess:
        got = tf.Summary.FromString(
            sess.run(merged, model.feed(model.batches(1)[0])))
    assert [value.tag for value in got.value] == TAGS + ["loss"]


def test_other_collections_are_taken_instead(model):
    ops = tf1accum.build(model.loss, optimizer=sgd(), k=K)
    summary = tf1accum.add_summaries(ops, collections=["mine", "yours"])
    assert tf.get_collection("mine") == [summary]
    assert tf.get_collection("yours") == [summary]
    assert tf.get_collection(tf.GraphKeys.SUMMARIES) == []


def test_two_windows_have_a_section_each(model):
    other = models.Regression("other")
    for loss, variables in ((model.loss, model.variables),
                            (other.loss, other.variables)):
        tf1accum.add_summaries(tf1accum.build(
            loss, variables, optimizer=sgd(), k=K))
    merged = tf.summary.merge_all()
    with models.session() as sess:
        got = events.values(sess.run(merged))
    assert list(got) == TAGS + [
        tag.replace("accumulation", "accumulation_1") for tag in TAGS]


def test_a_graph_without_summaries_has_no_op_for_them(model):
    tf1accum.build(model.loss, optimizer=sgd(), k=K)
    tf1accum.AccumulatingOptimizer(sgd(), K).minimize(model.loss)
    assert [op.name for op in tf.get_default_graph().get_operations()
            if "Summary" in op.type or "summar" in op.name] == []


# Those who run it by themselves.

def train_monitored(model, train, batches, folder, save_steps, **hooks):
    with tf.train.MonitoredTrainingSession(
            checkpoint_dir=str(folder), save_summaries_steps=save_steps,
            log_step_count_steps=None, **hooks) as sess:
        for batch in batches:
            sess.run(train, model.feed(batch))


def assert_shows_each_window_but_the_last(model, batches, k, folder):
    got = events.written(folder)
    expected = events.numpy_windows(model, batches, k)
    assert [step for step, _ in got] == list(range(1, len(expected)))
    for (_, shown), (loss, gradient_norm) in zip(got, expected):
        events.assert_summarises(shown, loss, gradient_norm, k)


@pytest.mark.parametrize("k", [3, K])
def test_a_monitored_session_writes_each_window_that_the_hook_closes(
        model, k, tmp_path):
    ops = tf1accum.build(model.loss, optimizer=sgd(), k=k,
                         global_step=tf.train.get_or_create_global_step())
    tf1accum.add_summaries(ops)
    batches = model.batches(4 * k)
    train_monitored(model, model.loss, batches, tmp_path, 3,
                    chief_only_hooks=[tf1accum.AccumulationHook(ops)])
    assert_shows_each_window_but_the_last(model, batches, k, tmp_path)


@pytest.mark.parametrize("k", [1, 2])
def test_where_each_request_closes_a_window_it_comes_a_step_late(
        model, k, tmp_path):
    ops = tf1accum.build(model.loss, optimizer=sgd(), k=k,
                         global_step=tf.train.get_or_create_global_step())
    tf1accum.add_summaries(ops)
    batches = model.batches(5 * k)
    train_monitored(model, model.loss, batches, tmp_path, 3 if k == 2 else 1,
                    chief_only_hooks=[tf1accum.AccumulationHook(ops)])
    got = events.written(tmp_path)
    expected = events.numpy_windows(model, batches, k)
    assert len(got) >= 2
    for step, shown in got:
        loss, gradient_norm = expected[step - 2]
        events.assert_summarises(shown, loss, gradient_norm, k)


def test_a_saver_hook_takes_the_merged_summary_itself(model, tmp_path):
    step = tf.train.get_or_create_global_step()
    ops = tf1accum.build(model.loss, optimizer=sgd(), k=K, global_step=step)
    summary = tf1accum.add_summaries(ops, collections=[])
    batches = model.batches(3 * K)
    train_monitored(
        model, model.loss, batches, tmp_path, None, chief_only_hooks=[
            tf1accum.AccumulationHook(ops), tf.train.SummarySaverHook(
                3, output_dir=str(tmp_path), summary_op=summary)])
    assert_shows_each_window_but_the_last(model, batches, K, tmp_path)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("flush", [False, True])
def test_a_hook_writes_each_window_once_at_its_step(
        model, k, flush, tmp_path):
    """The last one too; and what the session writes is empty then."""
    ops = tf1accum.build(model.loss, optimizer=sgd(), k=k,
                         global_step=tf.train.get_or_create_global_step())
    tf1accum.add_summaries(ops)
    batches = model.batches(3 * k + k // 2)
    train_monitored(
        model, model.loss, batches, tmp_path, 1, chief_only_hooks=[
            tf1accum.AccumulationHook(
                ops, flush, tf.summary.FileWriterCache.get(str(tmp_path)))])
    got = events.written(tmp_path)
    expected = events.numpy_windows(model, batches, k)
    number = len(expected) if flush else 3
    assert [step for step, _ in got] == list(range(1, number + 1))
    for place, (_, shown) in enumerate(got):
        loss, gradient_norm = expected[place]
        events.assert_summarises(shown, loss, gradient_norm,
                                 k if place < 3 else k // 2)


def test_a_hook_shows_each_run_the_window_that_it_closed_last(model):
    ops = tf1accum.build(model.loss, optimizer=sgd(), k=2)
    summary = tf1accum.add_summaries(ops, collections=[])
    batches = model.batches(6)
    tf.train.get_or_create_global_step()
    with tf.train.MonitoredTrainingSession(
            hooks=[tf1accum.AccumulationHook(ops)]) as sess:
        got = [events.values(sess.run(summary, model.feed(batch)))
               for batch in batches]
    assert got[:2] == [{}, {}]
    expected = events.numpy_windows(model, batches, 2)
    for run, shown in enumerate(got[2:], 2):
        loss, gradient_norm = expected[run // 2 - 1]
        events.assert_summarises(shown, loss, gradient_norm, 2)


def test_a_hook_shows_the_windows_of_a_graph_that_was_imported(
        model, tmp_path):
    tf1accum.add_summaries(tf1accum.build(
        model.loss, optimizer=sgd(), k=K,
        global_step=tf.train.get_or_create_global_step()))
    exported = tf.train.export_meta_graph()
    batches = model.batches(3 * K)
    with tf.Graph().as_default():
        tf.train.import_meta_graph(exported)
        ops = tf1accum.recover()
        feeds = [{"model_x:0": x, "model_y:0": y} for x, y in batches]
        with tf.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path), save_summaries_steps=3,
                log_step_count_steps=None, chief_only_hooks=[
                    tf1accum.AccumulationHook(ops)]) as sess:
            for feed in feeds:
                sess.run(ops.accumulate, feed)
    assert_shows_each_window_but_the_last(model, batches, K, tmp_path)


def test_two_hooks_show_a_window_each(model):
    other = models.Regression("other")
    tf.train.get_or_create_global_step()
    every = [tf1accum.build(one.loss, one.variables, optimizer=sgd(), k=k)
             for one, k in ((model, 1), (other, 2))]
    summaries = [tf1accum.add_summaries(ops) for ops in every]
    batches = model.batches(3)
    with tf.train.MonitoredTrainingSession(hooks=[
            tf1accum.AccumulationHook(ops) for ops in every]) as sess:
        for batch in batches:
            got = sess.run(summaries,
                           {**model.feed(batch), **other.feed(batch)})
    for shown, one, k, box in zip(
            got, (model, other), (1, 2), ("accumulation", "accumulation_1")):
        loss, gradient_norm = events.numpy_windows(one, batches[:2], k)[-1]
        events.assert_summarises(
            events.values(shown), loss, gradient_norm, k, box)


# The train op.

def minimize(model, k, **options):
    optimizer = tf1accum.AccumulatingOptimizer(
        sgd(), k, summarize=tf1accum.add_summaries, **options)
    return optimizer, optimizer.minimize(
        model.loss, tf.train.get_or_create_global_step())


def test_a_train_op_keeps_the_summary_of_the_window_it_closed_last(
        model, behaviour):
    _, train_op = minimize(model, k=2)
    merged = tf.summary.merge_all()
    batches = model.batches(6)
    expected = events.numpy_windows(model, batches, 2)
    with models.session() as sess:
        assert events.values(sess.run(merged)) == {}
        for run, batch in enumerate(batches, 1):
            sess.run(train_op, model.feed(batch))
            got = events.values(sess.run(merged))
            if run < 2:
                assert got == {}
            else:
                loss, gradient_norm = expected[run // 2 - 1]
                events.assert_summarises(got, loss, gradient_norm, 2)


def test_a_flushed_window_is_kept_too(model):
    optimizer, train_op = minimize(model, k=K)
    merged = tf.summary.merge_all()
    batches = model.batches(3)
    with models.session() as sess:
        for batch in batches:
            sess.run(train_op, model.feed(batch))
        sess.run(optimizer.flush)
        got = events.values(sess.run(merged))
    loss, mean = events.numpy_window(model, model.start, batches)
    events.assert_summarises(got, loss, events.norm(mean), 3)


def test_the_summary_of_a_train_op_is_listed_once_and_has_options(model):
    optimizer = tf1accum.AccumulatingOptimizer(
        sgd(), 2, summarize=lambda ops: tf1accum.add_summaries(
            ops, histograms=True, collections=["mine"]))
    train_op = optimizer.minimize(model.loss)
    assert tf.get_collection(tf.GraphKeys.SUMMARIES) == []
    summary, = tf.get_collection("mine")
    assert sorted(op.name for op in tf.get_default_graph().get_operations()
                  if op.name.startswith("accumulation/summaries/")) == [
                      "accumulation/summaries/" + name for name in (
                          "key", "last_window", "last_window/default_value",
                          "table")]
    assert summary.shape.rank == 0
    batches = model.batches(2)
    with models.session() as sess:
        for batch in batches:
            sess.run(train_op, model.feed(batch))
        got = events.values(sess.run(summary))
    assert list(got) == ["accumulation/gradient/model/w",
                         "accumulation/gradient/model/b"] + TAGS
    _, mean = events.numpy_window(model, model.start, batches)
    np.testing.assert_allclose(
        got["accumulation/gradient/model/w"].sum, mean[0].sum(), rtol=1e-4)


def test_a_train_op_keeps_summaries_of_several_names_apart(model):
    optimizer = tf1accum.AccumulatingOptimizer(
        sgd(), 1, summarize=lambda ops: [
            tf1accum.add_summaries(ops),
            tf1accum.add_summaries(ops, histograms=True, collections=["rare"],
                                   name="histograms")])
    train_op = optimizer.minimize(model.loss)
    often, = tf.get_collection(tf.GraphKeys.SUMMARIES)
    rare, = tf.get_collection("rare")
    with models.session() as sess:
        sess.run(train_op, model.feed(model.batches(1)[0]))
        assert list(events.values(sess.run(often))) == TAGS
        assert list(events.values(sess.run(rare)))[-3:] == TAGS
        assert len(events.values(sess.run(rare))) == 2 + len(TAGS)


def test_a_train_op_in_a_branch_keeps_its_summary(model, behaviour):
    wanted = tf.placeholder(tf.bool, [])
    optimizer = tf1accum.AccumulatingOptimizer(
        sgd(), 2, summarize=tf1accum.add_summaries)

    def train():
        with tf.control_dependencies([optimizer.minimize(model.loss)]):
            return tf.constant(1)

    train_op = tf.cond(wanted, train, lambda: tf.constant(0))
    merged = tf.summary.merge_all()
    batches = model.batches(2)
    with models.session() as sess:
        for batch in batches:
            for is_wanted in (False, True):
                sess.run(train_op, {wanted: is_wanted, **model.feed(batch)})
        got = events.values(sess.run(merged))
    loss, mean = events.numpy_window(model, model.start, batches)
    events.assert_summarises(got, loss, events.norm(mean), 2)


def test_a_monitored_session_writes_each_window_of_a_train_op(
        model, tmp_path):
    _, train_op = minimize(model, K)
    batches = model.batches(4 * K)
    train_monitored(model, train_op, batches, tmp_path, 3)
    assert_shows_each_window_but_the_last(model, batches, K, tmp_path)


def test_what_is_kept_is_in_no_checkpoint_and_needs_no_initializer(
        model, tmp_path):
    optimizer, train_op = minimize(model, 1)
    merged = tf.summary.merge_all()
    names = {variable.op.name for variable in tf.global_variables()}
    assert not [name for name in names if "summar" in name]
    assert tf.local_variables() == []
    with models.session() as sess:
        sess.run(train_op, model.feed(model.batches(1)[0]))
        path = tf.train.Saver().save(sess, str(tmp_path / "model"))
    assert {name for name, _ in tf.train.list_variables(path)} == names
    with tf.Session() as sess:
        tf.train.Saver().restore(sess, path)
        assert sess.run(merged) == b""


# What is refused.

def assert_refused(error, parts, call, who="tf1accum.add_summaries"):
    before = len(tf.get_default_graph().get_operations())
    with pytest.raises(error) as refused:
        call()
    for part in [who + ": "] + parts:
        assert part in str(refused.value)
    assert len(tf.get_default_graph().get_operations()) == before


def test_what_is_not_a_record_is_refused(model):
    assert_refused(
        TypeError, ["must be an AccumulationOps", "tf1accum.build"],
        lambda: tf1accum.add_summaries(model.loss))


def test_a_train_op_that_was_built_without_them_is_refused(model):
    optimizer = tf1accum.AccumulatingOptimizer(sgd(), K)
    optimizer.minimize(model.loss)
    assert_refused(
        ValueError, ["must be those of a builder", "'accumulation'",
                     "summarize=tf1accum.add_summaries"],
        lambda: tf1accum.add_summaries(optimizer.ops))


def test_a_hook_refuses_a_writer_that_would_get_nothing(model, tmp_path):
    ops = tf1accum.build(model.loss, optimizer=sgd(), k=K)
    writer = tf.summary.FileWriter(str(tmp_path))

    def refuses(error, parts, writer=writer):
        assert_refused(error, parts, lambda: tf1accum.AccumulationHook(
            ops, summary_writer=writer), "tf1accum.AccumulationHook")

    refuses(TypeError, [
        "an object with add_summary and flush", repr(str(tmp_path)),
        "tf.summary.FileWriterCache.get(folder)"], str(tmp_path))
    refuses(ValueError, [
        "needs a summary", "'accumulation'", "add_summaries(ops)"])
    tf1accum.add_summaries(ops)
    refuses(ValueError, [
        "needs a global step", "'accumulation'",
        "tf.train.get_or_create_global_step()"])


@pytest.mark.parametrize("collections", ["summaries", [1]])
def test_collections_that_are_no_list_of_names_are_refused(
        model, collections):
    ops = tf1accum.build(model.loss, optimizer=sgd(), k=K)
    assert_refused(
        TypeError, ["collections must be a list", repr(collections)],
        lambda: tf1accum.add_summaries(ops, collections=collections))


def test_a_summarize_that_is_no_function_is_refused(model):
    with pytest.raises(TypeError) as refused:
        tf1accum.AccumulatingOptimizer(sgd(), K, summarize=True).minimize(
            model.loss)
    assert "summarize must be a function or None; got True" in str(
        refused.value)


@pytest.mark.parametrize("returned", [None, "summaries", [None]])
def test_a_summarize_that_returns_nothing_to_run_is_refused(model, returned):
    with pytest.raises(TypeError) as refused:
        tf1accum.AccumulatingOptimizer(
            sgd(), K, summarize=lambda ops: returned).minimize(model.loss)
    for part in ["tf1accum.AccumulatingOptimizer: summarize must return",
                 "a tensor, an op", repr(returned), "add_summaries does"]:
        assert part in str(refused.value)


def test_a_second_summary_in_a_collection_is_refused(model, tmp_path):
    """Two of one tag can't be merged: training would stop, some runs later."""
    ops = tf1accum.build(model.loss, optimizer=sgd(), k=K)
    tf1accum.add_summaries(ops)
    path = str(tmp_path / "graph")
    tf.train.export_meta_graph(path)
    tf1accum.add_summaries(ops, collections=["mine"])
    with tf.Graph().as_default():
        tf.train.import_meta_graph(path, import_scope="again")
        again = tf1accum.recover()
        for record in (ops, again):
            with pytest.raises(ValueError) as error:
                tf1accum.add_summaries(record, histograms=True)
            assert "a collection may list one summary of a window; " in str(
                error.value)
        tf1accum.add_summaries(again, collections=["mine"])
        names = {op.name.split("/")[2]
                 for op in tf.get_default_graph().get_operations()
                 if op.name.startswith("again/accumulation/summaries")}
        assert names == {"summaries", "summaries_1"}


@pytest.mark.parametrize("name", ["", None, "s/", "a b", 3, "a/b"])
def test_a_name_that_is_none_is_refused(model, name):
    ops = tf1accum.build(model.loss, optimizer=sgd(), k=K)
    number = len(tf.get_default_graph().get_operations())
    with pytest.raises(ValueError) as error:
        tf1accum.add_summaries(ops, name=name)
    assert "name must be that of one scope" in str(error.value)
    assert len(tf.get_default_graph().get_operations()) == number


def every_run(summarize=tf1accum.add_summaries):
    """The train op that closes a window in each run, of loss `c`."""
    c = tf.placeholder(tf.float32, [], "c")
    w = tf.get_variable("w", [], use_resource=True,
                        initializer=tf.zeros_initializer())
    optimizer = tf1accum.AccumulatingOptimizer(sgd(), 1, summarize=summarize)
    return optimizer.minimize(w * 0. + c), c


def test_a_run_shows_the_window_before_it_always():
    train_op, c = every_run()
    merged = tf.summary.merge_all()
    with models.session() as session:
        shown = [events.values(session.run([train_op, merged], {c: i})[1])
                 for i in range(400)]
    assert shown[0] == {}
    assert [got["accumulation/average_loss"] for got in shown[1:]] == list(
        range(399))


def test_an_imported_train_op_keeps_a_summary_of_its_own():
    train_op, c = every_run()
    tf.train.import_meta_graph(
        tf.train.export_meta_graph(), import_scope="other")
    other = tf1accum.recover(name="other/accumulation")
    with models.session() as session:
        session.run(train_op, {c: 1.})
        session.run(other.step, {"other/c:0": 2.})
        shown = [events.values(session.run(summary))
                 for summary in tf.get_collection(tf.GraphKeys.SUMMARIES)]
    assert [got["accumulation/average_loss"] for got in shown] == [1., 2.]


@pytest.mark.parametrize("size", [1e20, 1e-25])
def test_a_norm_is_right_where_squares_are_not_in_float32(size):
    w = tf.get_variable("w", [2], use_resource=True,
                        initializer=tf.zeros_initializer())
    ops = tf1accum.build(tf.reduce_sum(w) * size, optimizer=sgd(), k=1)
    summary = tf1accum.add_summaries(ops)
    with models.session() as session:
        session.run(ops.accumulate)
        got = events.values(session.run(summary))
    np.testing.assert_allclose(got["accumulation/mean_gradient_norm"],
                               size * np.sqrt(2.), rtol=1e-6)
