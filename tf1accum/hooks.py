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

    Every `run` of the session is a micro-batch. To run what is not one, or to
    read `ops.average_loss` between two of them, go past the hooks:

        sess.run_step_fn(
            lambda step_context: step_context.session.run(accuracy))

    An unfinished window at the end, if it is not flushed, is in the checkpoint
    that is saved then, and the next session goes on with it: micro-batch
    `global_step * k + count` is the next. But a `CheckpointSaverHook` saves at
    the end only if the global step has moved since it last saved; if not, the
    unfinished window is dropped, and those two still say which is the next.

    Summaries that `add_summaries` made are run for each window that is closed;
    what fetches them in the runs of the session gets those of the last one.

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

    def __init__(self, ops, flush_at_end=False):
        """Makes a hook for one window; give several for several windows.

        Args:
          ops: `AccumulationOps`, as `build` returns it. Its `k`, where it is a
            tensor, is read after each run.
          flush_at_end: whether the end of the session applies an unfinished
            window, as the mean of what is in it. Not after a run that raised
            another error than the end of the input.

        Raises:
          TypeError: `ops` are something else.
          ValueError: `ops` are those of a train op, which counts and applies
            itself.
        """
        who = "tf1accum.AccumulationHook"
        _check_ops(who, ops)
        self._who = who
        self._ops = ops
        self._flush_at_end = flush_at_end
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
            summary.name: b"" for summary in graph_keys.recall_of(
                self._ops.graph, self._ops.name, graph_keys.SUMMARIES)}

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
        if self._flush_at_end:
            self._close(session)
        else:
            self._apply_if_full(session)

    def _apply_if_full(self, session):
        # In a run of its own, which is after the accumulate op for sure.
        ops = self._ops
        count, k = session.run([ops.count, ops.k]) if tf.is_tensor(
            ops.k) else (session.run(ops.count), ops.k)
        if count >= k:
            self._close(session)

    def _close(self, session):
        if self._shown:
            # In a run before, or the window might be read when it is empty.
            summaries = list(self._shown)
            self._shown = dict(zip(summaries, session.run(summaries)))
        session.run(self._ops.apply_and_reset)


def _check_ops(who, ops):
    train_ops.check(who, ops)
    if ops.step is not None:
        raise ValueError(
            "{}: ops must be those of a builder; got {!r}, whose train op "
            "counts and applies itself: with the hook, each micro-batch would "
            "be added twice. Run the train op without the hook; "
            "tf.train.FinalOpsHook(optimizer.flush), in chief_only_hooks, "
            "flushes at the end.".format(who, ops))
