"""A hook that drives a window from the runs of a `MonitoredSession`."""

import tensorflow.compat.v1 as tf

from tf1accum import graph_keys
from tf1accum import train_ops


class AccumulationHook(tf.train.SessionRunHook):
    """Accumulates with each run of the session, and applies once k are in.

        each run: what the program fetches, and `ops.accumulate`
        once the window holds k: `ops.apply_and_reset`, in a run of its own

    For programs that run in a `MonitoredTrainingSession` and fetch what they
    like, such as the loss of the same micro-batch. What is in the window is
    read from `ops.count` after each run, so it is right after a restore in the
    middle of a window, after a run that failed and after one that was not
    counted.

    The one thing to know: give it first, in `chief_only_hooks` (in an
    `EstimatorSpec`, `training_chief_hooks`). Hooks are called in their order,
    and `MonitoredTrainingSession` calls `chief_only_hooks`, then its own savers
    and counters, then `hooks`. One that comes later sees the step that this
    one has moved, and at the end the weights that it has flushed. One that
    comes before sees it a run later: it stops late, or saves the first
    micro-batch of the next window too, and it misses what is flushed.

    In a cluster (`worker_device`) each worker has a window, and a hook for it.
    `chief_only_hooks` are those of the chief, `hooks` are of all:

        hook = tf1accum.AccumulationHook(ops)
        session = tf.train.MonitoredTrainingSession(
            server.target, is_chief, checkpoint_dir=folder,
            chief_only_hooks=[hook], hooks=[] if is_chief else [hook],
            config=tf.ConfigProto(device_filters=["/job:ps", worker_device]))

    Every `run` of the session is a micro-batch. To run what is not one, or to
    read `ops.average_loss` between two of them, go past the hooks:

        sess.run_step_fn(
            lambda step_context: step_context.session.run(accuracy))

    An unfinished window at the end, if it is not flushed, is in the checkpoint
    that is saved then, and the next session goes on with it: micro-batch
    `global_step * k + count` is the next. But a `CheckpointSaverHook` saves at
    the end only if the global step has moved since it last saved; if not, the
    unfinished window is dropped, and those two still say which is the next.

    Summaries that `add_summaries` made are run for each window that is closed.
    A `summary_writer` gets each of them once, at the step that the window led
    to; what fetches them in the runs of the session gets those of the last one.

    For one thread: runs from several lose what one accumulates while another
    applies. `AccumulatingOptimizer` is made for them, and for Estimators.

    What a number given to TensorFlow counts (the global step counts applies):

        StopAtStepHook last_step, num_steps             windows
        Estimator.train max_steps, steps                windows
        learning-rate schedules, decay_steps            windows
        CheckpointSaverHook save_steps                  windows
        CheckpointSaverHook save_secs                   seconds, and at most
                                                        one for each window
        StepCounterHook every_n_steps, steps per sec    windows; it warns that
                                                        the step stands still
        SummarySaverHook save_steps                     n + 2 for n windows, as
                                                        it looks two ahead (if
                                                        k > 2); 1 for each run
        LoggingTensorHook every_n_iter                  runs
        NanTensorHook                                   looks at each run
    """

    def __init__(self, ops, flush_at_end=False, summary_writer=None):
        """Makes a hook for one window; give several for several windows.

        Args:
          ops: `AccumulationOps`, as `build` returns it. Its `k`, where it is a
            tensor, is read after each run.
          flush_at_end: whether the end of the session applies an unfinished
            window, as the mean of what is in it. Not after a run that raised
            another error than the end of the input.
          summary_writer: object with `add_summary` and `flush`, such as
            `tf.summary.FileWriterCache.get(folder)` (the session's own for that
            folder), for the summaries of each window, also of one that is
            flushed; what fetches them in the runs of the session then gets
            nothing. It needs a global step. None for none.

        Raises:
          TypeError: `ops` or `summary_writer` are something else.
          ValueError: `ops` are those of a train op, which counts and applies
            itself; or there is nothing for the `summary_writer`.
        """
        who = "tf1accum.AccumulationHook"
        _check_ops(who, ops)
        if summary_writer is not None:
            _check_writer(who, ops, summary_writer)
        self._who = who
        self._ops = ops
        self._flush_at_end = flush_at_end
        self._summary_writer = summary_writer
        self._known_open = False
        self._shown = {}

    def begin(self):
        """Checks that the session will be one of the graph of the ops."""
        if tf.get_default_graph() is not self._ops.graph:
            raise RuntimeError(
                "{}: the session must be of the graph of the ops; the default "
                "graph is another than that of {!r}. Create the session inside "
                "`with ops.graph.as_default():`.".format(self._who, self._ops))
        # Until a window is closed, an empty summary.
        self._shown = {
            summary.name: b"" for summary in _summaries(self._ops)}

    def after_create_session(self, session, coord):
        """Forgets what it knew: variables may have been restored."""
        self._known_open = False

    def before_run(self, run_context):
        """Adds the accumulate op to the run, and what it shows to the others.

        In the run itself, the summary would be of the open window.
        """
        # The last run may have counted its micro-batch and then failed, or a
        # saver have saved between the two; one more must not be added to it.
        if not self._known_open:
            self._apply_if_full(run_context.session)
        self._known_open = False
        return tf.train.SessionRunArgs(
            self._ops.accumulate, feed_dict=dict(self._shown))

    def after_run(self, run_context, run_values):
        """Closes the window if the run has filled it."""
        self._apply_if_full(run_context.session)
        self._known_open = True

    def end(self, session):
        """Closes the window if it is full, or if asked to flush."""
        if not self._flush_at_end:
            self._apply_if_full(session)
        elif session.run(self._ops.count):
            self._close(session)
        if self._summary_writer is not None:
            self._summary_writer.flush()

    def _apply_if_full(self, session):
        # In a run of its own, which is after the accumulate op for sure.
        ops = self._ops
        count, k = session.run([ops.count, ops.k]) if tf.is_tensor(
            ops.k) else (session.run(ops.count), ops.k)
        if count >= k:
            self._close(session)

    def _close(self, session):
        # In a run before, or the window might be read when it is empty.
        names = list(self._shown)
        summaries = session.run(names) if names else []
        session.run(self._ops.apply_and_reset)
        if self._summary_writer is None:
            self._shown = dict(zip(names, summaries))
            return
        step = session.run(tf.train.get_global_step(self._ops.graph))
        for summary in summaries:
            self._summary_writer.add_summary(summary, step)


def _check_ops(who, ops):
    train_ops.check(who, ops)
    if ops.step is not None:
        raise ValueError(
            "{}: ops must be those of a builder; got {!r}, whose train op "
            "counts and applies itself: with the hook, each micro-batch would "
            "be added twice. Run the train op without the hook; "
            "tf.train.FinalOpsHook(optimizer.flush), in chief_only_hooks, "
            "flushes at the end.".format(who, ops))


def _check_writer(who, ops, summary_writer):
    if not all(callable(getattr(summary_writer, method, None))
               for method in ("add_summary", "flush")):
        raise TypeError(
            "{}: summary_writer must be an object with add_summary and flush, "
            "or None; got {!r}. Use "
            "tf.summary.FileWriterCache.get(folder).".format(
                who, summary_writer))
    if not _summaries(ops):
        raise ValueError(
            "{}: a summary_writer needs a summary to write; {!r} has none. "
            "Call tf1accum.add_summaries(ops) first.".format(who, ops))
    if tf.train.get_global_step(ops.graph) is None:
        raise ValueError(
            "{}: a summary_writer needs a global step to write at; the graph "
            "of {!r} has none. Call tf.train.get_or_create_global_step(), and "
            "give it to the builder.".format(who, ops))


def _summaries(ops):
    return graph_keys.recall_of(ops.graph, ops.name, graph_keys.SUMMARIES)
