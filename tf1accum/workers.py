"""Optimizers that work over several workers, and what each needs to be right.

`tf.train.SyncReplicasOptimizer` applies on the chief what all workers gave it.
Horovod's `DistributedOptimizer` reduces in its `compute_gradients` alone. It is
known by its name: this package does not import Horovod.
"""

import warnings

import tensorflow.compat.v1 as tf

from tf1accum import ancestry
from tf1accum import gradients
from tf1accum import replicas

_ONCE_A_WINDOW = (
    "Pass the optimizer that it wraps, and reduce once a window: "
    "transform=lambda pairs: [(hvd.allreduce(grad), variable) for grad, "
    "variable in pairs].")


def each_wrapped(optimizer):
    """`optimizer`, and those that it wraps, at any depth, each once."""
    seen, queue = [], [optimizer]
    while queue:
        one = queue.pop(0)
        if any(one is other for other in seen):
            continue
        seen.append(one)
        for value in getattr(one, "__dict__", {}).values():
            queue.extend(
                inner for inner in (
                    value if isinstance(value, (list, tuple)) else [value])
                if hasattr(inner, "apply_gradients"))
    return seen


def wait_for_each_other(optimizer):
    """Whether an apply of `optimizer` waits for those of other workers."""
    return any(isinstance(one, tf.train.SyncReplicasOptimizer)
               for one in each_wrapped(optimizer))


def check_synchronous(who, optimizer, settings):
    """Raises ValueError where an optimizer that waits lacks what it needs.

    RuntimeError in the replicas of a strategy.

    Args:
      who: name of the function that the program called.
      optimizer: object with `apply_gradients`.
      settings: `arguments.Settings`.
    """
    if not wait_for_each_other(optimizer):
        return
    _check_no_strategy(who, "tf.train.SyncReplicasOptimizer")
    if settings.global_step is None:
        raise ValueError(
            "{}: with SyncReplicasOptimizer the global step must count "
            "applies, as it moves that itself and tells stale gradients by "
            "it; here there is none that does. Pass global_step to "
            "tf1accum.build, or to the minimize of "
            "tf1accum.AccumulatingOptimizer.".format(who))
    if settings.after_apply is not None:
        raise ValueError(
            "{}: after_apply must be None with SyncReplicasOptimizer; got "
            "{!r}. Each worker would run it, once for each of them. For a "
            "moving average, pass variable_averages to SyncReplicasOptimizer; "
            "else let the optimizer that it wraps do it.".format(
                who, settings.after_apply))


def check_no_rows(who, optimizer, grads_and_vars):
    """Raises ValueError for rows given to an optimizer that waits.

    TensorFlow's `SparseConditionalAccumulator` divides each row by the number
    of workers that gave it. And only what is sorted does it merge.

    Args:
      who: name of the function that the program called.
      optimizer: object with `apply_gradients`.
      grads_and_vars: list of (gradient, variable) pairs, as they are added up.
    """
    rows = [variable.name for grad, variable in grads_and_vars
            if gradients.is_rows(grad)]
    if rows and wait_for_each_other(optimizer):
        raise ValueError(
            "{}: sparse must be \"dense\" with SyncReplicasOptimizer, which "
            "would divide each row by the number of workers that looked it up, "
            "not by that of all; the gradients of {} are rows. Pass "
            "sparse=\"dense\" to tf1accum.build or "
            "tf1accum.AccumulatingOptimizer.".format(who, ", ".join(rows)))


def check_not_aggregated(who, grads_and_vars):
    """Raises ValueError for gradients that SyncReplicasOptimizer took.

    Args:
      who: name of the function that the program called.
      grads_and_vars: list of (gradient, variable) pairs.
    """
    for grad, variable in grads_and_vars:
        if grad is not None and grad.op.type.endswith(
                "AccumulatorTakeGradient"):
            raise ValueError(
                "{}: SyncReplicasOptimizer must be inside; got it outside, "
                "where it waits for ever, as a window does not move the global "
                "step in each run ({} took the gradient of {}). Write "
                "tf1accum.AccumulatingOptimizer(tf.train."
                "SyncReplicasOptimizer(optimizer, ...), k).".format(
                    who, grad.op.name, variable.name))


def check_reduces(who, optimizer, computed):
    """Raises ValueError where nothing would be reduced over the workers.

    RuntimeError in the replicas of a strategy. Warns where it is with each
    micro-batch. To be called by what the program called.

    Args:
      who: name of the function that the program called.
      optimizer: object with `apply_gradients`.
      computed: function of no arguments: whether the gradients are from its
        `compute_gradients`.
    """
    for one in each_wrapped(optimizer):
        if not _reduces_what_it_computes(one):
            continue
        name = type(one).__name__
        _check_no_strategy(who, "Horovod's " + name)
        # Horovod's name for what counts backward_passes_per_step.
        if getattr(one, "_agg_helper", None) is not None:
            raise ValueError(
                "{}: optimizer must not accumulate by itself; got Horovod's {} "
                "with backward_passes_per_step, a window in a window. "
                "{}".format(who, name, _ONCE_A_WINDOW))
        if not computed():
            raise ValueError(
                "{}: optimizer must not be Horovod's {}, which reduces in its "
                "compute_gradients: that is not called here, nothing would be "
                "reduced, and the workers would drift apart. {}".format(
                    who, name, _ONCE_A_WINDOW))
        warnings.warn(
            "{}: Horovod's {} reduces in its compute_gradients, with each "
            "micro-batch. That is right, but k times the traffic. {}".format(
                who, name, _ONCE_A_WINDOW), stacklevel=3)


def _check_no_strategy(who, name):
    if replicas.inside():
        raise RuntimeError(
            "{}: in a tf.distribute strategy, optimizer must not be one that "
            "reduces over workers; got {} in the replica function of a {}. "
            "The strategy reduces, once a window: pass the optimizer that it "
            "wraps.".format(
                who, name, type(tf.distribute.get_strategy()).__name__))


def come_from(grads, sources):
    """Whether each of `grads` is computed from one of `sources`.

    Args:
      grads: list of tensors or `IndexedSlices`.
      sources: list of such.
    """
    ops = {source.op for source in sources}
    return all(grad.op in ops or ops & ancestry.ancestors([grad.op])
               for grad in grads)


def _reduces_what_it_computes(optimizer):
    return any(cls.__module__.split(".")[0] == "horovod"
               and cls.__name__.endswith("DistributedOptimizer")
               for cls in type(optimizer).__mro__)
