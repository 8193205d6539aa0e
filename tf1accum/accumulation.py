"""Two ways to ask for a window: by its loss, or by ready gradients."""

import tensorflow.compat.v1 as tf

from tf1accum import arguments
from tf1accum import cluster
from tf1accum import gradients
from tf1accum import update_ops as update_ops_lib
from tf1accum import wiring
from tf1accum import workers


def build(loss, var_list=None, optimizer=None, k=None, global_step=None,
          update_ops=None, reduction="mean", weight=None, transform=None,
          after_apply=None, nonfinite="propagate", sparse="rows",
          accumulator_dtype=None, accumulator_device=None, worker_device=None,
          collections=None, name="accumulation"):
    """Builds the ops of a window for `loss`: the mean, not the sum.

        mean gradient = (g_1 + ... + g_k) / k
        with weights:   (w_1 g_1 + ... + w_k g_k) / (w_1 + ... + w_k)

    k runs of `accumulate` and one of `apply` do what one step on the k
    micro-batches as one batch does, when the loss is a mean over examples and
    the micro-batches are of equal size, or `weight` is their size. In between,
    no variable of the model or the optimizer moves.

    The one thing to know: `apply` leaves the window as it is. Run `reset`
    before the next window, or use `apply_and_reset`. `accumulate` may be run
    from many threads at once, the others while it is not.

    In a `tf.distribute.MirroredStrategy`, call it in the function that each
    replica runs: each has a window, and what they hold is reduced once, when it
    is applied. Divide the loss by the number of replicas, as the strategy adds
    their gradients up; not in an Estimator, which does so itself. The ops that
    it returns, the same in all replicas, run them all: `count` is that of each
    replica, `average_loss` of all. `transform` is given the part of
    each: a clip by norm is one of each part, and not that of the whole.

    Args:
      loss: scalar tensor of a float type, the mean loss of one micro-batch.
      var_list: list of the variables to train, or None for all trainable ones,
        as in `Optimizer.minimize`. Of a partitioned variable, all parts.
      optimizer: object with `compute_gradients` and `apply_gradients`, such as
        any in `tf.train`.
      k: positive integer, the micro-batches in a window; or an integer scalar
        tensor or variable, when the window is to grow. The mean is over what
        was really accumulated either way.
      global_step: integer variable that moves by one with each apply, or None.
      update_ops: list of ops to run with each `accumulate`, or None for those
        in `tf.GraphKeys.UPDATE_OPS` that the forward pass of `loss` reaches.
      reduction: "mean", or "sum" to apply w_1 g_1 + ... + w_k g_k. The average
        loss is a mean with both.
      weight: scalar tensor, what the micro-batch counts for (its examples, its
        tokens), not negative; or None for one each. One that weighs 0 adds
        nothing, whatever its gradients are.
      transform: function of the `grads_and_vars` list of means that returns
        such a list, called once to build what runs once a window: to clip, to
        decay, to reduce over workers. None for no change. Sparse gradients
        come with each index once.
      after_apply: function of no arguments that makes and returns an op, or a
        list of them, to run once after each apply: a moving average of the
        weights, a constraint. What variables it makes are the model's.
      nonfinite: what becomes of a micro-batch whose loss, weight or gradients
        are not all finite. "propagate": it is added as it is. "skip": it is as
        if it had never been, but for its update ops, and is counted in
        `skipped`. "raise": the run fails with `InvalidArgumentError` and names
        what was not finite; the window stays as it was.
      sparse: "rows" to keep sparse gradients (of lookups) as rows, from the
        gradient to the optimizer, at the cost of the rows; or "dense" to add
        them up in a table of the variable's shape.
      accumulator_dtype: float type to add up in, or None for the variable's
        own, float32 where that is a half-precision one.
      accumulator_device: device for the accumulators, such as "/cpu:0" where an
        accelerator has no room for them, or None for that of their variables;
        None in a strategy, where each replica has its own.
      worker_device: job and task of this worker, such as
        "/job:worker/task:0", in a cluster with parameter servers; None
        elsewhere. The worker keeps the window, for itself: an apply is all that
        sends gradients to the servers. A worker that is killed loses its open
        window, and nothing else. Those variables of the window are local ones,
        which no checkpoint holds: `MonitoredTrainingSession` initialises them,
        other sessions with `ops.initializer`.
      collections: list of the graph collections that list the toolkit's own
        variables, or None for `[tf.GraphKeys.GLOBAL_VARIABLES]`; with
        `worker_device` for `[tf.GraphKeys.LOCAL_VARIABLES]`.
      name: scope of all that is added, made unique by TensorFlow.

    Returns:
      An `AccumulationOps`.

    Raises:
      TypeError: an argument is of the wrong type.
      ValueError: an argument has a wrong value, or no variable has a gradient.
      RuntimeError: eager execution is on; or a strategy is in scope, and this
        is not the function of a replica.

    References:
      https://stackoverflow.com/questions/42156957, the recipe that this call
      replaces.
    """
    who = "tf1accum.build"
    arguments.check_graph_mode(who)
    arguments.check_loss(who, loss)
    arguments.check_always_run(who, "loss", loss)
    variables = arguments.checked_variables(
        who, tf.trainable_variables() if var_list is None else var_list)
    arguments.check_optimizer(
        who, optimizer, ("compute_gradients", "apply_gradients"))
    settings = arguments.Settings(
        k, global_step, reduction, weight, transform, after_apply, nonfinite,
        sparse, accumulator_dtype, accumulator_device, worker_device,
        collections, name)
    arguments.check_settings(who, settings)
    settings = cluster.placed(who, settings, variables, [loss])
    workers.check_synchronous(who, optimizer, settings)
    workers.check_reduces(who, optimizer, lambda: True)
    if weight is not None:
        arguments.check_always_run(who, "weight", weight)
    gradients.check_reached(who, loss, variables)
    return wiring.build_window(
        who, lambda scale: gradients.compute(
            optimizer, loss, variables, scale,
            colocate=worker_device is None), optimizer, loss,
        update_ops_lib.checked_or_reached(who, update_ops, [loss]), settings)


def build_from_gradients(grads_and_vars, optimizer=None, k=None, loss=None,
                         global_step=None, update_ops=None, reduction="mean",
                         weight=None, transform=None, after_apply=None,
                         nonfinite="propagate", sparse="rows",
                         accumulator_dtype=None, accumulator_device=None,
                         worker_device=None, collections=None,
                         name="accumulation"):
    """Builds the ops of a window for ready gradients: the mean, not the sum.

        mean gradient = (g_1 + ... + g_k) / k
        with weights:   (w_1 g_1 + ... + w_k g_k) / (w_1 + ... + w_k)

    For gradients that come from elsewhere: another function (rematerialised
    gradients), several towers, or a change made to each micro-batch's own.

    The one thing to know: gradients are those of one micro-batch, unscaled.

    Args:
      grads_and_vars: list of (gradient, variable) pairs, as
        `Optimizer.compute_gradients` returns them: gradients of the shapes of
        the variables, `IndexedSlices` for sparse ones, or None.
      optimizer: object with `apply_gradients`.
      k: as for `build`.
      loss: scalar tensor of a float type to average, or None for no
        `average_loss`; its forward pass also says which update ops to run.
      global_step: as for `build`.
      update_ops: as for `build`; without a loss, None means no op.
      reduction: as for `build`.
      weight: as for `build`.
      transform: as for `build`.
      after_apply: as for `build`.
      nonfinite: as for `build`.
      sparse: as for `build`.
      accumulator_dtype: as for `build`.
      accumulator_device: as for `build`.
      worker_device: as for `build`.
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
    grads_and_vars = arguments.listed(who, "grads_and_vars", grads_and_vars)
    arguments.check_pairs(who, grads_and_vars)
    if loss is not None:
        arguments.check_loss(who, loss)
        arguments.check_always_run(who, "loss", loss)
    arguments.check_optimizer(who, optimizer, ("apply_gradients",))
    settings = arguments.Settings(
        k, global_step, reduction, weight, transform, after_apply, nonfinite,
        sparse, accumulator_dtype, accumulator_device, worker_device,
        collections, name)
    arguments.check_settings(who, settings)
    settings = cluster.placed(
        who, settings, [variable for _, variable in grads_and_vars],
        [grad for grad, _ in grads_and_vars if grad is not None])
    workers.check_synchronous(who, optimizer, settings)
    workers.check_reduces(who, optimizer, lambda: False)
    if weight is not None:
        arguments.check_always_run(who, "weight", weight)
    gradients.check_some(who, grads_and_vars)
    arguments.check_always_run(who, "each gradient", *[
        grad for grad, _ in grads_and_vars if grad is not None])
    return wiring.build_window(
        who, lambda scale: (grads_and_vars, scale), optimizer, loss,
        update_ops_lib.checked_or_reached(
            who, update_ops, [] if loss is None else [loss]), settings)
