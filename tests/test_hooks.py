"""Windows in a `MonitoredTrainingSession`: by the hook, and by a train op."""

import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import models
import tf1accum
from conftest import in_pairs

K = 4


@pytest.fixture(params=["train op", "hook"])
def way(request):
    return request.param


class Program:
    """What a program fetches in each run, and the hooks that it gives first."""

    def __init__(self, way, loss, k=K, optimizer=None, flush=False, **kwargs):
        self.step = tf.train.get_or_create_global_step()
        optimizer = optimizer or tf.train.GradientDescentOptimizer(0.1)
        if way == "hook":
            self.ops = tf1accum.build(
                loss, optimizer=optimizer, k=k, global_step=self.step,
                **kwargs)
            self.fetches = [loss]
            self.first = [tf1accum.AccumulationHook(
                self.ops, flush_at_end=flush)]
        else:
            optimizer = tf1accum.AccumulatingOptimizer(optimizer, k, **kwargs)
            self.fetches = [loss, optimizer.minimize(loss, self.step)]
            self.ops = optimizer.ops
            self.first = [tf.train.FinalOpsHook(
                optimizer.flush)] if flush else []

    def session(self, folder=None, hooks=(), **kwargs):
        """A `MonitoredTrainingSession` without the savers not asked for."""
        settings = dict(save_checkpoint_secs=None, save_summaries_steps=None,
                        save_summaries_secs=None, log_step_count_steps=None)
        settings.update(kwargs)
        return tf.train.MonitoredTrainingSession(
            checkpoint_dir=folder and str(folder), hooks=list(hooks),
            chief_only_hooks=self.first, **settings)

    def state(self, session):
        """The step and the count, in no micro-batch."""
        return list(look(session, [self.step, self.ops.count]))


def look(session, fetches):
    """Fetches past the hooks."""
    return session.run_step_fn(
        lambda step_context: step_context.session.run(fetches))


def saved(folder):
    """The arrays in the newest checkpoint, by name."""
    reader = tf.train.load_checkpoint(str(folder))
    return {name: reader.get_tensor(name)
            for name in reader.get_variable_to_shape_map()}


def after_windows(model, windows):
    """The variables after one step on each window, by NumPy.

        value -= 0.1 * mean of the gradients of the window
    """
    values = [value.astype(np.float64) for value in model.start]
    for window in windows:
        grads = zip(*[model.gradients(values, batch) for batch in window])
        values = [value - 0.1 * np.mean(grad, axis=0)
                  for value, grad in zip(values, grads)]
    return values


def assert_model_is(model, got, windows):
    for name, expected in zip(("model/w", "model/b"),
                              after_windows(model, windows)):
        np.testing.assert_allclose(got[name], expected, rtol=1e-4, atol=1e-5)


def run_until_stop(session, program, model, batches):
    """Runs until a hook stops it; returns the losses."""
    losses = []
    while not session.should_stop():
        losses.append(session.run(
            program.fetches, model.feed(batches[len(losses)]))[0])
    return losses


@in_pairs
def test_it_stops_at_the_step_and_equals_whole_batches(
        behaviour, use_resource, way, tmp_path):
    """Rows A2, C2 and C3: last_step=3 with k=4 is twelve runs."""
    model = models.Regression(use_resource=use_resource)
    program = Program(way, model.loss)
    batches = model.batches(20)
    with program.session(tmp_path, [tf.train.StopAtStepHook(last_step=3)],
                         save_checkpoint_steps=100) as session:
        assert tf.get_default_graph().finalized
        losses = run_until_stop(session, program, model, batches)
    assert len(losses) == 12
    np.testing.assert_allclose(losses[:K], [
        model.numpy_loss(model.start, batch) for batch in batches[:K]],
                               rtol=1e-4)
    got = saved(tmp_path)
    assert got["global_step"] == 3
    assert got["accumulation/count"] == 0
    assert_model_is(model, got, [batches[:4], batches[4:8], batches[8:12]])


def test_num_steps_counts_windows(way):
    model = models.Regression()
    program = Program(way, model.loss)
    with program.session(hooks=[tf.train.StopAtStepHook(
            num_steps=2)]) as session:
        assert len(run_until_stop(
            session, program, model, model.batches(20))) == 8


class Listener(tf.train.CheckpointSaverListener):
    """Notes what is saved."""

    def __init__(self, count):
        self._count = count
        self.saved = []

    def after_save(self, session, global_step_value):
        self.saved.append((global_step_value, session.run(self._count)))


@pytest.mark.parametrize("first", [True, False])
def test_a_checkpoint_is_saved_once_for_each_value_of_the_step(
        way, first, tmp_path):
    """Row C2. A hook after the saver leaves it a micro-batch more."""
    model = models.Regression()
    program = Program(way, model.loss)
    listener = Listener(program.ops.count)
    saver = tf.train.CheckpointSaverHook(
        str(tmp_path), save_steps=1, listeners=[listener])
    hooks = [saver, tf.train.StopAtStepHook(last_step=3)]
    if not first:
        hooks[1:1], program.first = program.first, []
    with program.session(hooks=hooks) as session:
        assert len(run_until_stop(
            session, program, model, model.batches(20))) == 12
    late = way == "hook" and not first
    assert listener.saved == [(0, 0), (1, int(late)), (2, int(late)), (3, 0)]


class Writer:
    """A summary writer that notes the steps."""

    def __init__(self):
        self.steps = []
        self.tags = set()

    def add_summary(self, summary, step):
        if isinstance(summary, bytes):
            summary = tf.Summary.FromString(summary)
        self.tags |= {value.tag for value in summary.value}
        self.steps.append(step)

    def add_session_log(self, session_log, step):
        pass

    def flush(self):
        pass


def test_counters_and_loggers_count_what_the_table_says(way):
    """Row C2: steps per second are windows; logging counts runs."""
    model = models.Regression()
    program = Program(way, model.loss)
    logged, writer = [], Writer()
    final = tf.train.FinalOpsHook([program.step, program.ops.count])
    hooks = [
        tf.train.LoggingTensorHook(
            {"loss": model.loss}, every_n_iter=5,
            formatter=lambda values: logged.append(values["loss"]) or ""),
        tf.train.StepCounterHook(every_n_steps=2, summary_writer=writer),
        final, tf.train.StopAtStepHook(last_step=6)]
    with program.session(hooks=hooks) as session:
        losses = run_until_stop(session, program, model, model.batches(24))
    assert len(losses) == 24
    assert logged == losses[::5]
    assert writer.steps == [2, 4, 6]
    assert writer.tags == {"global_step/sec"}
    assert final.final_ops_values == [6, 0]


@pytest.mark.parametrize("k, save_steps, steps", [
    (4, 1, [0, 0, 0] + [s for s in range(1, 12) for _ in range(4)] + [12]),
    (4, 3, list(range(12))), (4, 4, [0, 2, 4, 6, 8, 10]), (4, 6, [0, 4, 8]),
    (2, 6, [0, 5, 10]), (1, 4, [1, 5, 9])])
def test_the_summary_saver_looks_two_steps_ahead(k, save_steps, steps):
    """Its save_steps of n + 2 make a summary of every n windows, if k > 2."""
    model = models.Regression()
    program = Program("hook", model.loss, k)
    writer = Writer()
    hooks = [tf.train.SummarySaverHook(
        save_steps, summary_writer=writer,
        summary_op=tf.summary.scalar("loss", model.loss)),
             tf.train.StopAtStepHook(last_step=12)]
    with program.session(hooks=hooks) as session:
        run_until_stop(session, program, model, model.batches(48))
    assert writer.tags == {"loss"}
    assert writer.steps == steps


def test_with_a_train_op_each_step_has_a_summary():
    """The step may be read before or after it moves, as with any train op."""
    model = models.Regression()
    program = Program("train op", model.loss)
    writer = Writer()
    hooks = [tf.train.SummarySaverHook(
        3, summary_writer=writer,
        summary_op=tf.summary.scalar("loss", model.loss)),
             tf.train.StopAtStepHook(last_step=12)]
    with program.session(hooks=hooks) as session:
        run_until_stop(session, program, model, model.batches(48))
    assert len(writer.steps) <= 13
    assert set(range(12)) <= set(writer.steps) <= set(range(13))


@pytest.mark.parametrize("fail", [True, False])
def test_the_nan_hook_looks_at_each_micro_batch(way, fail):
    model = models.Regression()
    program = Program(way, model.loss, nonfinite="skip")
    batches = model.batches(12)
    batches[5][0][0] = np.nan
    hook = tf.train.NanTensorHook(model.loss, fail_on_nan_loss=fail)
    losses = []
    try:
        with program.session(hooks=[hook]) as session:
            while not session.should_stop():
                losses.append(session.run(program.fetches, model.feed(
                    batches[len(losses)]))[0])
            assert program.state(session) == [1, 1]
    except tf.train.NanLossDuringTrainingError:
        assert fail and len(losses) == 5
    else:
        assert not fail and len(losses) == 6


@pytest.mark.parametrize("flush", [True, False])
def test_the_end_flushes_a_short_window_or_leaves_it_in_the_checkpoint(
        way, flush, tmp_path):
    model = models.Regression(use_resource=True)
    program = Program(way, model.loss, flush=flush)
    batches = model.batches(6)
    with program.session(tmp_path, save_checkpoint_steps=100) as session:
        for batch in batches:
            session.run(program.fetches, model.feed(batch))
    got = saved(tmp_path)
    assert got["global_step"] == 1 + flush
    assert got["accumulation/count"] == (0 if flush else 2)
    assert_model_is(model, got, [batches[:4], batches[4:]][:1 + flush])


def test_an_error_flushes_nothing(tmp_path):
    model = models.Regression()
    program = Program("hook", model.loss, flush=True)
    with pytest.raises(KeyError):
        with program.session(tmp_path, save_checkpoint_steps=100) as session:
            for batch in model.batches(6):
                session.run(program.fetches, model.feed(batch))
            raise KeyError
    assert saved(tmp_path)["global_step"] == 0


def run_some(way, use_resource, folder, first, last, **kwargs):
    """Micro-batches `first` to `last` in a fresh graph; what is saved then."""
    with tf.Graph().as_default():
        model = models.Regression(use_resource=use_resource)
        program = Program(way, model.loss, optimizer=tf.train.AdamOptimizer(
            0.1), **kwargs)
        with program.session(folder, save_checkpoint_steps=100) as session:
            step, count = program.state(session)
            assert step * K + count == first
            for batch in model.batches(last)[first:]:
                session.run(program.fetches, model.feed(batch))
    return saved(folder)


def test_a_restart_in_mid_window_goes_on_bit_equal(
        use_resource, way, tmp_path):
    unbroken = run_some(way, use_resource, tmp_path / "one", 0, 11)
    assert unbroken["global_step"] == 2
    assert unbroken["accumulation/count"] == 3
    for first, last in ((0, 6), (6, 11)):
        broken = run_some(
            way, use_resource, tmp_path / "many", first, last)
    models.assert_same_bits(unbroken, broken)


def test_what_has_been_saved_already_is_not_saved_again_at_the_end(
        way, tmp_path):
    """An unfinished window is dropped then; step and count say so."""
    model = models.Regression()
    program = Program(way, model.loss)
    with program.session(tmp_path, save_checkpoint_steps=1) as session:
        for batch in model.batches(6):
            session.run(program.fetches, model.feed(batch))
    got = saved(tmp_path)
    assert [got["global_step"], got["accumulation/count"]] == [1, 0]


@pytest.mark.parametrize("stop_there", [True, False])
def test_a_full_window_in_a_checkpoint_is_closed_before_the_next_run(
        stop_there, tmp_path):
    model = models.Regression()
    program = Program("hook", model.loss)
    batches = model.batches(5)
    folder = str(tmp_path / "model")
    saver = tf.train.Saver()
    with models.session() as session:
        for batch in batches[:4]:
            session.run(program.ops.accumulate, model.feed(batch))
        saver.save(session, folder)
    hooks = [tf.train.StopAtStepHook(last_step=1)] if stop_there else []
    with program.session(tmp_path, hooks) as session:
        session.run(program.fetches, model.feed(batches[4]))
        assert program.state(session) == [1, 1]
        assert session.should_stop() == stop_there
        got = dict(zip(("model/w", "model/b"), look(session, model.variables)))
    assert_model_is(model, got, [batches[:4]])


def test_a_scaffold_saves_the_model_alone_and_restarts(
        use_resource, way, tmp_path):
    for start, steps in ((0, 1), (1, 2)):
        with tf.Graph().as_default():
            model = models.Regression(use_resource=use_resource)
            program = Program(way, model.loss,
                              optimizer=tf.train.AdamOptimizer(0.1))
            batches = model.batches(12)
            with program.session(
                    tmp_path, scaffold=tf.train.Scaffold(
                        saver=program.ops.model_saver()),
                    save_checkpoint_steps=100) as session:
                values = dict(zip(
                    ("model/w", "model/b"), look(session, model.variables)))
                if start:
                    for name in values:
                        np.testing.assert_array_equal(
                            values[name], before[name])
                assert program.state(session) == [start, 0]
                for batch in batches[:6]:
                    session.run(program.fetches, model.feed(batch))
            before = saved(tmp_path)
            assert set(before) == {"model/w", "model/b", "global_step"}
            assert before["global_step"] == steps


def test_a_window_of_local_variables_starts_empty_with_the_default_scaffold(
        way, tmp_path):
    local = dict(collections=[tf.GraphKeys.LOCAL_VARIABLES])
    first = run_some(way, True, tmp_path, 0, 6, **local)
    assert "model/w/Adam" in first
    assert not [name for name in first if name.startswith("accumulation/")]
    second = run_some(way, True, tmp_path, 4, 8, **local)
    assert second["global_step"] == 2


def scalar_model(values):
    """A loss v * x whose gradient is x, each x given out once."""
    x = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(
        np.array(values, np.float32))).get_next()
    v = tf.get_variable("v", initializer=0., use_resource=True)
    return x, v, v * x


@pytest.mark.parametrize("flush", [True, False])
def test_each_micro_batch_is_one_element_and_the_end_ends_it(
        way, flush):
    """Row F1: fetched in the same run, the input is that of the gradient."""
    x, v, loss = scalar_model(range(10))
    program = Program(way, loss, flush=flush,
                      optimizer=tf.train.GradientDescentOptimizer(1.))
    final = tf.train.FinalOpsHook([v, program.step, program.ops.count])
    seen = []
    with program.session(hooks=[final]) as session:
        while not session.should_stop():
            seen.append(session.run(program.fetches + [x]))
    assert [run[-1] for run in seen] == list(range(10))
    # Each loss is v times the element of its own run.
    assert [run[0] for run in seen] == 4 * [0.] + [
        -1.5 * x for x in (4, 5, 6, 7)] + [-7. * x for x in (8, 9)]
    assert final.final_ops_values == ([-15.5, 3, 0] if flush else [-7., 2, 2])


def test_a_run_that_fails_on_its_way_counts_nothing(way):
    model = models.Regression()
    program = Program(way, model.loss)
    batches = model.batches(4)
    with program.session() as session:
        for batch in batches[:3]:
            session.run(program.fetches, model.feed(batch))
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.run(program.fetches, model.feed(
                (batches[3][0], batches[3][1][:3])))
        assert program.state(session) == [0, 3]
        session.run(program.fetches, model.feed(batches[3]))
        assert program.state(session) == [1, 0]
        got = dict(zip(("model/w", "model/b"), look(session, model.variables)))
    assert_model_is(model, got, [batches])


def failing_after(op):
    """An op that fails once `op` has been run."""
    with tf.control_dependencies([op]):
        return tf.group(tf.raw_ops.Assert(
            condition=tf.constant(False), data=["as the test wants"]))


@pytest.mark.parametrize("runs", [4, 5])
def test_a_run_that_fails_once_counted_is_not_counted_again(runs):
    """The window of k is closed as one of k, by the next run or at the end."""
    model = models.Regression()
    program = Program("hook", model.loss)
    failing = failing_after(program.ops.accumulate)
    batches = model.batches(5)
    final = tf.train.FinalOpsHook(
        [model.w, model.b, program.step, program.ops.count])
    with program.session(hooks=[final]) as session:
        for batch in batches[:3]:
            session.run(program.fetches, model.feed(batch))
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.run(failing, model.feed(batches[3]))
        assert program.state(session) == [0, 4]
        for batch in batches[4:runs]:
            session.run(program.fetches, model.feed(batch))
    w, b, step, count = final.final_ops_values
    assert [step, count] == [1, runs - 4]
    assert_model_is(model, {"model/w": w, "model/b": b}, [batches[:4]])


class Preempted(tf.train.SessionRunHook):
    """Fails as a lost connection does, once, after some run."""

    def __init__(self, run):
        self.runs = 0
        self._run = run

    def after_run(self, run_context, run_values):
        self.runs += 1
        if self.runs == self._run:
            raise tf.errors.AbortedError(None, None, "as the test wants")


@pytest.mark.parametrize("at", [4, 6])
def test_a_recovered_session_goes_on_from_the_checkpoint(way, at, tmp_path):
    model = models.Regression()
    program = Program(way, model.loss)
    hook = Preempted(at)
    program.first.append(hook)
    batches = model.batches(12)
    with program.session(tmp_path, save_checkpoint_steps=1) as session:
        given = iter(batches)
        for _ in range(at):
            session.run(program.fetches, model.feed(next(given)))
        # At 4 the step moved but was not saved; at 6, two are lost. The run
        # that failed is made again.
        assert program.state(session) == [0 if at == 4 else 1, 1]
        for _ in range(3):
            session.run(program.fetches, model.feed(next(given)))
        assert program.state(session) == [1 if at == 4 else 2, 0]
        got = dict(zip(("model/w", "model/b"), look(session, model.variables)))
    assert_model_is(model, got, [batches[3:7]] if at == 4 else [
        batches[:4], batches[5:9]])


def test_runs_past_the_hooks_are_no_micro_batches():
    model = models.Regression()
    program = Program("hook", model.loss)
    batches = model.batches(4)

    def step(step_context):
        """Three micro-batches, a look between, and the fourth with hooks."""
        for batch in batches[:3]:
            step_context.session.run(
                program.ops.accumulate, model.feed(batch))
        mean = step_context.session.run(program.ops.average_loss)
        loss = step_context.run_with_hooks(
            model.loss, model.feed(batches[3]))
        return mean, loss

    with program.session() as session:
        look(session, program.step)
        assert program.state(session) == [0, 0]
        mean, loss = session.run_step_fn(step)
        assert program.state(session) == [1, 0]
    losses = [model.numpy_loss(model.start, batch) for batch in batches]
    np.testing.assert_allclose([mean, loss], [np.mean(losses[:3]), losses[3]],
                               rtol=1e-4)


@pytest.mark.parametrize("as_variable", [True, False])
def test_k_may_be_a_tensor_that_grows(use_resource, as_variable):
    model = models.Regression(use_resource=use_resource)
    k = tf.get_variable("k", initializer=1, trainable=False,
                        use_resource=use_resource)
    larger = k.assign(3)
    read = k if as_variable else k + 0
    step = tf.train.get_or_create_global_step()
    ops = tf1accum.build(
        model.loss, optimizer=tf.train.GradientDescentOptimizer(0.1), k=read,
        global_step=step)
    hook = tf1accum.AccumulationHook(ops)
    states = []
    with tf.train.MonitoredSession(hooks=[hook]) as session:
        for number, batch in enumerate(model.batches(6)):
            if number == 2:
                look(session, larger)
            session.run(model.loss, model.feed(batch))
            states.append(list(look(session, [step, ops.count])))
    assert states == [[1, 0], [2, 0], [2, 1], [2, 2], [3, 0], [3, 1]]


def test_two_windows_have_a_hook_each():
    one, two = models.Regression("one"), models.Regression("two")
    windows = [tf1accum.build(
        model.loss, model.variables, tf.train.GradientDescentOptimizer(0.1), k,
        name=name) for model, k, name in ((one, 2, "a"), (two, 3, "b"))]
    hooks = [tf1accum.AccumulationHook(ops) for ops in windows]
    with tf.train.MonitoredSession(hooks=hooks) as session:
        for batch in one.batches(5):
            session.run([], {**one.feed(batch), **two.feed(batch)})
        assert look(session, [ops.count for ops in windows]) == [1, 2]


def test_it_refuses_what_it_cannot_drive():
    model = models.Regression()
    sgd = tf.train.GradientDescentOptimizer(0.1)
    ops = tf1accum.build(model.loss, optimizer=sgd, k=2)
    every_k = tf1accum.AccumulatingOptimizer(sgd, 2)
    train_op = every_k.minimize(model.loss)
    hook = tf1accum.AccumulationHook
    for error, words, argument in (
            (TypeError, "ops must be an AccumulationOps; got <tf.Operation",
             train_op),
            (ValueError, "Run the train op without the hook", every_k.ops)):
        with pytest.raises(error) as raised:
            hook(argument)
        assert str(raised.value).startswith("tf1accum.AccumulationHook: ")
        assert words in str(raised.value)
    with tf.Graph().as_default(), pytest.raises(RuntimeError) as raised:
        tf.train.MonitoredSession(hooks=[hook(ops)])
    assert "the session must be of the graph of the ops" in str(raised.value)


def test_the_module_is_on_the_run_side():
    with open(os.path.join(
            os.path.dirname(tf1accum.__file__), "hooks.py")) as file:
        imports = [line for line in file if "import" in line.split()]
    assert imports[-1] == "from tf1accum import train_ops\n"
