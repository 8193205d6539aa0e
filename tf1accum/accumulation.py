"""One window: accumulate, apply, reset, wired in the order that is right."""

import tensorflow.compat.v1 as tf

from tf1accum import arguments
from tf1accum import gate
from tf1accum import gradients
from tf1accum import scopes
from tf1accum import train_ops
from tf1accum import update_ops as update_ops_lib
from tf1accum.window import Window

_OP_NAMES = ("accumulate", "apply", "reset", "apply_and_reset", "initializer",
             "mean")


def build(loss, var_list=None, optimizer=None, k=None, global_step=None,
          update_ops=None, reduction="mean", collections=None,
          name="accumulation"):
    """Builds the ops of a window for `loss`: the mean, not the sum.

        mean gradient = (g_1 + ... + g_k) / k

    k runs of `accumulate` and one of `apply` do what one step on the k
    micro-batches as one batch does, when the loss is a mean over examples and
    the micro-batches are of equal size. In between, no variable of the model
    or the optimizer moves.

    The one thing to know: `apply` leaves the window as it is. Run `reset`
    before the next window, or use `apply_and_reset`.

    Args:
      loss: scalar tensor of a float type, the mean loss of one micro-batch.
      var_list: list of the variables to train, or None for all trainable ones,
        as in `Optimizer.minimize`.
      optimizer: object with `compute_gradients` and `apply_gradients`, such as
        any in `tf.train`.
      k: positive integer, the micro-batches in a window.
      global_step: integer variable that moves by one with each apply, or None.
      update_ops: list of ops to run with each `accumulate`, or None for those
        in `tf.GraphKeys.UPDATE_OPS` that the forward pass of `loss` reaches.
      reduction: "mean", or "sum" to apply g_1 + ... + g_k. The average loss is
        a mean with both.
      collections: list of the graph collections that list the toolkit's own
        variables, or None for `[tf.GraphKeys.GLOBAL_VARIABLES]`.
      name: scope of all that is added, made unique by TensorFlow.

    Returns:
      An `AccumulationOps`.

    Raises:
      TypeError: an argument is of the wrong type.
      ValueError: an argument has a wrong value, or no variable has a gradient.
      RuntimeError: eager execution is on.

    References:
      https://stackoverflow.com/questions/42156957, the recipe that this call
      replaces.
    """
    who = "tf1accum.build"
    arguments.check_graph_mode(who)
    arguments.check_loss(who, loss)
    variables = (tf.trainable_variables() if var_list is None
                 else arguments.listed(var_list))
    arguments.check_variables(who, variables)
    arguments.check_optimizer(
        who, optimizer, ("compute_gradients", "apply_gradients"))
    _check_window(who, k, global_step, reduction, name)
    gradients.check_reached(who, loss, variables)
    update_ops = _checked_update_ops(who, update_ops, loss)

    return _build_window(
        who, lambda scale: gradients.compute(
            optimizer, _scalar(loss), variables, scale),
        optimizer, k, loss, global_step, update_ops, reduction, collections,
        name)


def build_from_gradients(grads_and_vars, optimizer=None, k=None, loss=None,
                         global_step=None, update_ops=None, reduction="mean",
                         collections=None, name="accumulation"):
    """Builds the ops of a window for ready gradients: the mean, not the sum.

        mean gradient = (g_1 + ... + g_k) / k

    For gradients that come from elsewhere: another function (rematerialised
    gradients), several towers, or a change made to each micro-batch's own.

    The one thing to know: gradients are those of one micro-batch, unscaled.

    Args:
      grads_and_vars: list of (gradient, variable) pairs, as
        `Optimizer.compute_gradients` returns them: gradients of the shapes of
        the variables, or None.
      optimizer: object with `apply_gradients`.
      k: positive integer, the micro-batches in a window.
      loss: scalar tensor of a float type to average, or None for no
        `average_loss`; its forward pass also says which update ops to run.
      global_step: as for `build`.
      update_ops: as for `build`; without a loss, None means no op.
      reduction: as for `build`.
      collections: as for `build`.
      name: as for `build`.

    Returns:
      An `AccumulationOps`.

    Raises:
      TypeError: an argument is of the wrong type.
      ValueError: an argument has a wrong value, or every gradient is None.
      RuntimeError: eager execution is on.
    """
    who = "tf1accum.build_from_gradients"
    arguments.check_graph_mode(who)
    grads_and_vars = list(grads_and_vars)
    arguments.check_pairs(who, grads_and_vars)
    if loss is not None:
        arguments.check_loss(who, loss)
    arguments.check_optimizer(who, optimizer, ("apply_gradients",))
    _check_window(who, k, global_step, reduction, name)
    gradients.check_some(who, grads_and_vars)
    update_ops = _checked_update_ops(who, update_ops, loss)
    return _build_window(
        who, lambda scale: (grads_and_vars, scale), optimizer, k, loss,
        global_step, update_ops, reduction, collections, name)


def _check_window(who, k, global_step, reduction, name):
    arguments.check_k(who, k)
    arguments.check_global_step(who, global_step)
    arguments.check_reduction(who, reduction)
    arguments.check_name(who, name)


def _checked_update_ops(who, update_ops, loss):
    if update_ops is None:
        update_ops = [] if loss is None else update_ops_lib.reached_update_ops(
            loss)
    return update_ops_lib.checked_ops(who, update_ops)


def _scalar(loss):
    return loss if loss.shape.rank == 0 else tf.reshape(loss, [])


def _build_window(who, compute, optimizer, k, loss, global_step,
                  update_ops, reduction, collections, name):
    """Builds what `build` returns; every argument has been checked.

    Args:
      who: name of the function that the program called.
      compute: function of the scale that gradients are to come in with. Returns
        `grads_and_vars` and the scale that is still to be applied to them.
      others: as for `build`.
    """
    graph = tf.get_default_graph()
    with scopes.root_scope(), tf.name_scope(name) as scope:
        for op_name in _OP_NAMES:
            # A model's variable of that name gives way, not the op.
            graph.unique_name(op_name)
        scale = 1. if reduction == "sum" else 1. / k
        with scopes.created_variables() as optimizer_state:
            grads_and_vars, scale = compute(scale)
        grads_and_vars = gradients.drop_none(who, grads_and_vars)
        window = Window(grads_and_vars, loss, k, reduction, collections)
        accumulate = _group(
            scope, "accumulate", lambda: window.add(scale) + update_ops)
        with scopes.created_variables() as made_by_apply:
            apply = _build_apply(scope, window, optimizer, global_step)
        optimizer_state += made_by_apply
        reset = _group(scope, "reset", window.reset)
        # Grouped side by side, reset would overtake apply.
        with tf.control_dependencies([apply]):
            apply_and_reset = _group(scope, "apply_and_reset", window.reset)
        initializer = _group(scope, "initializer", lambda: [
            variable.initializer
            for variable in window.variables + optimizer_state])
        with tf.name_scope("read"):
            ops = train_ops.AccumulationOps(
                name=scope[:-1], graph=graph, accumulate=accumulate,
                apply=apply, reset=reset, apply_and_reset=apply_and_reset,
                initializer=initializer,
                average_loss=window.read_average_loss(),
                count=window.read_count(),
                accumulators=window.read_accumulators(),
                variables=window.model_variables, update_ops=update_ops)
    train_ops.remember(
        ops, window.variables + optimizer_state + _known_state(optimizer))
    return ops


def _build_apply(scope, window, optimizer, global_step):
    """The op that hands what the window holds to the optimizer, if anything."""

    def run_optimizer():
        with tf.name_scope(scope + "mean/"):
            grads_and_vars = window.read_reduced()
        op = optimizer.apply_gradients(grads_and_vars)
        if global_step is None:
            return op
        with tf.control_dependencies([op]):
            return global_step.assign_add(1, name="global_step")

    # The optimizer lists its own op as a train op, and that one is dead in the
    # runs where the gate is shut: it cannot be fetched.
    train_ops_before = tf.get_collection(tf.GraphKeys.TRAIN_OP)
    op = _group(scope, "apply", lambda: [gate.run_if(
        tf.greater(window.read_count(), 0, name="holds_something"),
        run_optimizer)])
    if tf.get_collection(tf.GraphKeys.TRAIN_OP) != train_ops_before:
        tf.get_collection_ref(tf.GraphKeys.TRAIN_OP)[:] = train_ops_before
    return op


def _group(scope, op_name, build_ops):
    """One op named `op_name` of what `build_ops` builds, in a scope of it."""
    with tf.name_scope(scope + op_name + "/") as op_scope:
        return tf.group(*build_ops(), name=op_scope)


def _known_state(optimizer):
    """The state that the optimizer knows, whenever it was made."""
    variables = getattr(optimizer, "variables", None)
    return list(variables()) if callable(variables) else []
