"""Savers that know the model's variables from the rest."""

import tensorflow.compat.v1 as tf

from tf1accum import graph_keys
from tf1accum import graph_variables
from tf1accum import replicas


def model_variables(graph=None):
    """The variables that a checkpoint of the model alone holds.

    All global variables (weights, batch-norm moving statistics, the global
    step, whatever the script made itself) less those of the windows built in
    the graph: accumulators, window scalars, and the state of their optimizers,
    found by identity and never by name.

    The one thing to know: call it after the builders. An optimizer used
    without them is not known here, and its state stays in.

    Args:
      graph: a `tf.Graph`, or None for the default graph.

    Returns:
      A list of variables, in the order in which they were made.
    """
    graph = graph or tf.get_default_graph()
    left_out = graph_keys.state_names(graph)
    return [variable
            for variable in graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
            if replicas.name_of(variable) not in left_out]


def known_variables(graph):
    """All variables of `graph` that it lists, or that a window is made of."""
    known = graph_variables.listed(graph)
    return dict(known, **{
        replicas.name_of(variable): variable
        for variable in graph_variables.find([
            op for op in graph_keys.recall(graph, graph_keys.STATE)
            if op.name not in known])})


def model_saver(**saver_kwargs):
    """A `tf.train.Saver` of the model alone.

    Saves and restores `model_variables()`, and what else the graph lists as
    saveable (lookup tables, iterators), as the default `Saver` would. What it
    leaves out is in its `left_out`, a list of variables. Windows and optimizers
    that have no value when it restores get their initial one then: training can
    go on from the weights, also as `Scaffold(saver=tf1accum.model_saver())`.

    The one thing to know: call it after the builders, as any saver is made
    when the graph is complete. `restore` leaves the windows and optimizers that
    have been in use as they are: run the `initializer` of each window, or use
    `restore_model`, which says what it did besides.

    Args:
      **saver_kwargs: arguments of `tf.train.Saver`, but `var_list` (and
        `defer_build`, which TensorFlow refuses where the variables are given).

    Returns:
      A `tf.train.Saver`.

    Raises:
      TypeError: for `var_list`.
      ValueError: when the graph holds nothing to save.
    """
    return _make("model_saver", _ModelSaver, {
        replicas.name_of(variable)
        for variable in model_variables()}, saver_kwargs)


def resumable_saver(**saver_kwargs):
    """A `tf.train.Saver` of all that a restart needs.

    Saves and restores the model, the state of the optimizers, the global step
    and the open windows, whatever they hold: that of the default `Saver`, and
    windows whose `collections` it does not look in. Its `left_out`, a list of
    variables, holds the local variables of others, and the windows of workers
    (`worker_device`): a restart of a cluster loses those that are open.

    A process that is killed and restored from the last checkpoint goes on with
    micro-batch `global_step * k + count`, and ends with the bits that it would
    have ended with. To start the open window again instead, run `reset` after
    the restore, and go on with micro-batch `global_step * k`; what update ops
    did for its micro-batches stays. In a `MonitoredTrainingSession`, which
    restores by itself, that is the first thing to do:

        sess.run_step_fn(
            lambda step_context: step_context.session.run(ops.reset))

    (Not in `Scaffold(local_init_op=...)`: a `CheckpointSaverHook` writes the
    file that it has restored from anew when it starts, and a kill in between
    two files of different contents leaves neither.)

    The one thing to know: give each save a name of its own, such as the number
    of the micro-batch, and save before `apply` or after `reset`, not in
    between. A `CheckpointSaverHook`, and the end of a
    `MonitoredTrainingSession`, save only if the global step has moved since
    they saved last. With `save_steps` that is at the end of a window, with
    `save_secs` in the middle of one too. And such a session gives local
    variables their initial values after a restore: a window in
    `LOCAL_VARIABLES` starts empty there. `reshape=True` can't restore the rows
    of lookups: their number is not known beforehand.

    Args:
      **saver_kwargs: arguments of `tf.train.Saver`, but `var_list` (and
        `defer_build`, which TensorFlow refuses where the variables are given).

    Returns:
      A `tf.train.Saver`.

    Raises:
      TypeError: for `var_list`.
      ValueError: when the graph holds nothing to save.
    """
    names = graph_keys.state_names(tf.get_default_graph())
    # What a worker of a cluster keeps for itself, the next one starts anew.
    names.difference_update(
        variable.op.name for variable in tf.local_variables()
        if tf.DeviceSpec.from_string(variable.device or "").job)
    names.update(map(replicas.name_of, tf.global_variables()))
    return _make("resumable_saver", _LeanSaver, names, saver_kwargs)


def _make(what, kind, names, saver_kwargs):
    """A saver of class `kind` for the variables of those op names."""
    if "var_list" in saver_kwargs:
        raise TypeError(
            "tf1accum.{}: knows which variables it is for; got var_list. Use "
            "tf.train.Saver(var_list) for a list of your own, or filter "
            "tf1accum.model_variables().".format(what))

    def make():
        known = known_variables(tf.get_default_graph())
        with tf.name_scope(None):
            return kind([known[name] for name in sorted(names)],
                        [known[name] for name in sorted(set(known) - names)],
                        saver_kwargs)

    # One for all replicas: a strategy saves what they hold together.
    return replicas.together(make)


class _LeanSaver(tf.train.Saver):
    """A saver that says what it leaves out."""

    def __init__(self, saved, left_out, saver_kwargs):
        self.left_out = left_out
        super().__init__(saved + tf.get_collection(
            tf.GraphKeys.SAVEABLE_OBJECTS), **saver_kwargs)


class _ModelSaver(_LeanSaver):
    """A saver that gives windows and optimizers their initial value."""

    def __init__(self, saved, left_out, saver_kwargs):
        super().__init__(saved, left_out, saver_kwargs)
        state = graph_keys.state_names(tf.get_default_graph())
        self._state = [part for variable in left_out
                       if replicas.name_of(variable) in state
                       for part in replicas.parts(variable)]
        # Beside the saver's own ops, if there is anything to save.
        scope = (self.saver_def.restore_op_name.rpartition("/")[0]
                 if self.saver_def else "save")
        with tf.name_scope(scope + "/" if scope else None):
            self._without_value = tf.identity(
                tf.report_uninitialized_variables(self._state),
                name="without_value")

    def restore(self, sess, save_path):
        """As that of `tf.train.Saver`; then initialises what has no value."""
        super().restore(sess, save_path)
        names = sess.run(self._without_value)
        sess.run([variable.initializer for variable in self._state
                  if variable.op.name.encode() in names])
