"""Applying: what is in a window handed to the optimizer, once a window."""

import tensorflow.compat.v1 as tf

from tf1accum import ancestry
from tf1accum import arguments
from tf1accum import cluster
from tf1accum import gate
from tf1accum import gradients
from tf1accum import recorder
from tf1accum import replicas
from tf1accum import scopes
from tf1accum import workers


def apply_gradients(who, optimizer, grads_and_vars, global_step):
    """Hands `grads_and_vars` to the optimizer, and counts it.

    The global step is not left to the optimizer: some ignore it, and some move
    it without being asked to. One that waits for other workers needs it.

    Args:
      who: name of the function that the program called.
      optimizer: object with `apply_gradients`.
      grads_and_vars: list of (gradient, variable) pairs.
      global_step: integer variable to move by one when all is applied, or None.

    Returns:
      An op.
    """
    waits = workers.wait_for_each_other(optimizer)
    op = (_apply_with_others(optimizer, grads_and_vars, global_step) if waits
          else optimizer.apply_gradients(grads_and_vars))
    if op is None:
        raise TypeError(
            "{}: apply_gradients must return the op that applies; {!r} "
            "returned None.".format(who, optimizer))
    op = tf.group(op, name="applied")
    if global_step is not None and not waits:
        # It may be on another task, and others may move it at the same time.
        with tf.control_dependencies([op]), tf.device(global_step.device):
            op = replicas.update(global_step, lambda variable: (
                variable.assign_add(
                    tf.ones([], variable.dtype.base_dtype, name="one"),
                    use_locking=True, name="global_step", read_value=False)))
    return op


def _apply_with_others(optimizer, grads_and_vars, global_step):
    """What this worker gives to all, and its wait until that is applied.

    The op that applies is run by a thread of the chief, by itself: it must not
    be ordered after anything of this run. What this worker does has no value,
    and so does not happen, where its gradients have none: where the gate that
    this is called in is shut.
    """
    ordered = [
        (gradients.from_parts(**{
            part: None if tensor is None else tf.identity(tensor, part)
            for part, tensor in gradients.parts(grad).items()}), variable)
        for grad, variable in grads_and_vars]
    with tf.control_dependencies(None):
        return optimizer.apply_gradients(ordered, global_step=global_step)


class Application:
    """The mean, the transform, the optimizer, and what comes after.

    Built as often as there are ops that apply; all move the same variables.
    """

    def __init__(self, who, window, optimizer, settings, read_window=None):
        """Builds nothing yet.

        Args:
          who: name of the function that the program called.
          window: `Window`.
          optimizer: object with `apply_gradients`.
          settings: `arguments.Settings`.
          read_window: function of a scope, ending in "/", that reads the window
            there, for `settings.summarize`; None where that is None.
        """
        self._who = who
        self._window = window
        self._optimizer = optimizer
        self._settings = settings
        self._read_window = read_window
        self._transform = recorder.Recorder()
        self._apply = recorder.Recorder()
        self._after_apply = recorder.Recorder()

    @property
    def made(self):
        """The variables that were made on the way."""
        return (self._transform.variables + self._apply.variables
                + self._after_apply.variables)

    @property
    def made_for_model(self):
        """Those of them that are the model's."""
        return self._after_apply.variables

    def build(self, scope, predicate):
        """An op that applies where `predicate`, a scalar bool tensor, holds.

        Args:
          scope: name scope to build in, ending in "/".
          predicate: scalar bool tensor.
        """
        # The optimizer lists its own op as a train op, and that one is dead in
        # the runs where the gate is shut: it cannot be fetched.
        before = tf.get_collection(tf.GraphKeys.TRAIN_OP)
        with tf.name_scope(scope + "apply/"):
            op = gate.run_if(
                predicate, lambda live: self._run_once_a_window(scope, live))
        if tf.get_collection(tf.GraphKeys.TRAIN_OP) != before:
            tf.get_collection_ref(tf.GraphKeys.TRAIN_OP)[:] = before
        return op

    def _run_once_a_window(self, scope, live):
        settings = self._settings
        with tf.name_scope(scope + "mean/"):
            grads_and_vars = self._window.read_reduced()
        if settings.transform is not None:
            with tf.name_scope(scope + "transform/"), \
                    self._transform.record([live]):
                grads_and_vars = self._transformed(grads_and_vars)
        with tf.name_scope(scope + "apply/"):
            op = replicas.together(
                self._apply_in_each, live, grads_and_vars)
        if settings.after_apply is not None:
            with tf.control_dependencies([op]), tf.device(
                    settings.worker_device and cluster.beside_inputs), \
                    tf.name_scope(scope + "after_apply/"), \
                    self._after_apply.record([live]):
                op = self._checked_after_apply(settings.after_apply(), live)
        if settings.summarize is not None:
            inside = scope + "summarize/"
            with tf.control_dependencies([op]), tf.name_scope(inside):
                op = replicas.together(
                    lambda reads: self._checked_summary(
                        settings.summarize(reads[0])),
                    self._read_window(inside))
        return op

    def _apply_in_each(self, lives, grads_and_vars):
        """What is called once for all replicas, with what each has."""
        # What the optimizer makes, it makes for all replicas at once, in a
        # thread that has not counted yet.
        if tf.distribute.has_strategy():
            scopes.count_slots()
        with self._apply.record(lives):
            return replicas.in_each(lambda pairs: apply_gradients(
                self._who, self._optimizer, pairs,
                self._settings.global_step), grads_and_vars, lives)

    def _checked_summary(self, returned):
        parts = returned if isinstance(returned, (list, tuple)) else [returned]
        if not all(isinstance(part, (tf.Tensor, tf.Operation))
                   for part in parts):
            raise TypeError(
                "{}: summarize must return what is to run, a tensor, an op or "
                "a list of them; got {!r}. tf1accum.add_summaries does.".format(
                    self._who, returned))
        return tf.group(*parts)

    def _checked_after_apply(self, returned, live):
        ops = [getattr(op, "op", op) for op in (
            returned if isinstance(returned, (list, tuple)) else [returned])]
        for op in ops:
            if not isinstance(op, tf.Operation) or (
                    live not in ancestry.ancestors([op])):
                raise ValueError(
                    "{}: after_apply must return an op, or a list of them, "
                    "that it makes when it is called; got {!r}. One made "
                    "before would not wait for the apply.".format(
                        self._who, op))
        return tf.group(*ops, name="done")

    def _transformed(self, grads_and_vars):
        returned = list(self._settings.transform(grads_and_vars) or [])
        who = "{}: what transform returned".format(self._who)
        arguments.check_pairs(who, returned)
        variables = {variable.op for _, variable in grads_and_vars}
        for grad, variable in returned:
            if grad is None or variable.op not in variables:
                raise ValueError(
                    "{}: must be pairs of a gradient and a variable of the "
                    "window; got {} for {}.".format(who, grad, variable.name))
        return returned


def state(optimizer, created, models_own):
    """The optimizer's state: what was made for it, and what it knows.

    Args:
      optimizer: object with `apply_gradients`.
      created: list of the variables that were made for it.
      models_own: list of variables that are the model's, should it list them.
    """
    names = {variable.op.name for variable in models_own}
    # It may list the weights that it trains, among its own. What it makes is
    # its own, also where it forgot to say that it is not to be trained.
    weights = names | {
        variable.op.name for variable in tf.trainable_variables()}
    return [variable for variable in created
            if variable.op.name not in names] + [
                variable for variable in _known(optimizer)
                if variable.op.name not in weights]


def _known(optimizer):
    known = []
    for one in workers.each_wrapped(optimizer):
        try:
            variables = getattr(one, "variables", [])
            known += variables() if callable(variables) else variables
        except AttributeError:
            # A wrapper of tf.contrib that has no slots of its own.
            pass
    return known
