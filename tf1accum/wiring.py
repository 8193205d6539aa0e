"""One window, wired: accumulate, apply and reset in the order that is right."""

import tensorflow.compat.v1 as tf

from tf1accum import accumulators
from tf1accum import applying
from tf1accum import arguments
from tf1accum import gate
from tf1accum import gradients
from tf1accum import scopes
from tf1accum import train_ops
from tf1accum.window import Window

_OP_NAMES = ("accumulate", "apply", "reset", "apply_and_reset", "initializer",
             "mean", "transform", "after_apply", "read")


def build_window(who, compute, optimizer, loss, update_ops, settings):
    """Builds an `AccumulationOps`; every argument has been checked.

    Args:
      who: name of the function that the program called.
      compute: function of the scale that gradients are to come in with. Returns
        `grads_and_vars` and the scale that is still to be applied to them.
      optimizer: object with `apply_gradients`.
      loss: scalar tensor to average, or None.
      update_ops: list of ops.
      settings: `arguments.Settings`.
    """
    graph = tf.get_default_graph()
    with scopes.root_scope(), scopes.new_box(settings.name) as scope:
        for op_name in _OP_NAMES:
            # A model's variable of that name gives way, not the op.
            graph.unique_name(op_name)
        with scopes.created_variables() as state:
            grads_and_vars, scale = compute(settings.scale)
        grads_and_vars = gradients.drop_none(who, grads_and_vars)
        window = Window(grads_and_vars, loss, settings)
        accumulate = scopes.named_group(
            scope, "accumulate", lambda: update_ops + _build_accumulate(
                scope, window, grads_and_vars, scale, loss, settings))
        apply, made_by_apply, models_own = _build_apply(
            who, scope, window, optimizer, settings)
        created = state + made_by_apply + models_own
        reset = scopes.named_group(scope, "reset", window.reset)
        # Grouped side by side, reset would overtake apply.
        with tf.control_dependencies([apply]):
            apply_and_reset = scopes.named_group(
                scope, "apply_and_reset", window.reset)
        initializer = scopes.named_group(scope, "initializer", lambda: [
            variable.initializer for variable in window.variables + created])
        with tf.name_scope(scope + "read/"):
            ops = train_ops.AccumulationOps(
                name=scope[:-1], graph=graph, accumulate=accumulate,
                apply=apply, reset=reset, apply_and_reset=apply_and_reset,
                initializer=initializer,
                average_loss=_named("average_loss", window.read_average_loss()),
                count=_named("count", window.read_count()),
                weight=_named("weight", window.read_weight()),
                skipped=_named("skipped", window.read_skipped()),
                accumulators=[
                    _named(variable.op.name, read) for variable, read in zip(
                        window.model_variables, window.read_accumulators())],
                variables=window.model_variables, update_ops=update_ops)
    train_ops.remember(ops, window.variables + applying.state(
        optimizer, created, models_own + ops.variables))
    return ops


def _build_accumulate(scope, window, grads_and_vars, scale, loss, settings):
    """Ops that add one micro-batch, if it is one to add."""
    if settings.nonfinite == "propagate":
        return window.add(scale, good=None)
    names, flags = gradients.finite(grads_and_vars, loss, settings.weight)
    good = tf.reduce_all(flags)
    if settings.nonfinite == "skip":
        return window.add(scale, good)
    check = tf.raw_ops.Assert(
        condition=good, summarize=len(names), data=[
            "tf1accum: the micro-batch was not added to the window {}, since "
            "these are not all finite:".format(scope[:-1]),
            tf.boolean_mask(tf.constant(names), tf.logical_not(flags))])
    with tf.control_dependencies([check]):
        return window.add(scale, good=None)


def _build_apply(who, scope, window, optimizer, settings):
    """The op that hands what the window holds to the optimizer, if anything.

    Returns:
      The op, and two lists of variables: those of the optimizer and of the
      transform, and those of `after_apply`, which are the model's.
    """
    state, models_own = [], []

    def run_once_a_window(live):
        with tf.name_scope(scope + "mean/"):
            grads_and_vars = window.read_reduced()
        if settings.transform is not None:
            with tf.name_scope(scope + "transform/"), \
                    scopes.created_variables([live]) as made:
                grads_and_vars = _transformed(who, settings, grads_and_vars)
            state.extend(made)
        op, made = applying.apply_gradients(
            who, optimizer, grads_and_vars, settings.global_step, [live])
        state.extend(made)
        if settings.after_apply is not None:
            with tf.control_dependencies([op]), \
                    tf.name_scope(scope + "after_apply/"), \
                    scopes.created_variables([live]) as made:
                op = tf.group(settings.after_apply())
            models_own.extend(made)
        return op

    # The optimizer lists its own op as a train op, and that one is dead in the
    # runs where the gate is shut: it cannot be fetched.
    train_ops_before = tf.get_collection(tf.GraphKeys.TRAIN_OP)
    op = scopes.named_group(scope, "apply", lambda: [gate.run_if(
        window.holds_something(), run_once_a_window)])
    if tf.get_collection(tf.GraphKeys.TRAIN_OP) != train_ops_before:
        tf.get_collection_ref(tf.GraphKeys.TRAIN_OP)[:] = train_ops_before
    return op, state, models_own


def _transformed(who, settings, grads_and_vars):
    returned = list(settings.transform(grads_and_vars) or [])
    arguments.check_pairs("{}: what transform returned".format(who), returned)
    variables = {variable.op for _, variable in grads_and_vars}
    for grad, variable in returned:
        if grad is None or variable.op not in variables:
            raise ValueError(
                "{}: transform must return pairs of a gradient and a variable "
                "of the window; got {} for {}.".format(
                    who, grad, variable.name))
    return returned


def _named(name, value):
    return None if value is None else accumulators.map_values(
        lambda tensor: tf.identity(tensor, name=name), value)
