"""The record of the ops that a program runs."""

from tf1accum import graph_keys
from tf1accum import savers


class AccumulationOps:
    """What a builder returns: the ops of one window.

    Attributes:
      name: scope that holds all that was added, a string.
      accumulate: `tf.Operation`. Adds one micro-batch to the window.
      apply: `tf.Operation`. Hands the mean of what is in the window to the
        optimizer; with an empty window it moves nothing. It leaves the window
        as it is.
      reset: `tf.Operation`. Empties the window.
      apply_and_reset: `tf.Operation`. `apply`, and `reset` strictly after it.
      initializer: `tf.Operation`. Initialises what the builder added: the
        window and the optimizer's state.
      average_loss: scalar tensor, the mean loss of the open window, 0 in an
        empty one; None when the builder was given no loss. Fetch it in a run
        of its own, after `accumulate` and before `reset`.
      count: scalar int64 tensor, the micro-batches in the open window.
      accumulators: list of tensors, what each accumulator holds. After k
        micro-batches, the mean gradient of the variable at the same place in
        `variables`.
      variables: list of the model's variables that the window is for.
      update_ops: list of the ops that `accumulate` runs besides.
      graph: the `tf.Graph` of all these.
    """

    def __init__(self, name, graph, accumulate, apply, reset, apply_and_reset,
                 initializer, average_loss, count, accumulators, variables,
                 update_ops):
        self.name = name
        self.graph = graph
        self.accumulate = accumulate
        self.apply = apply
        self.reset = reset
        self.apply_and_reset = apply_and_reset
        self.initializer = initializer
        self.average_loss = average_loss
        self.count = count
        self.accumulators = accumulators
        self.variables = variables
        self.update_ops = update_ops

    def model_saver(self, **saver_kwargs):
        """A saver of the model alone: see `tf1accum.model_saver`."""
        with self.graph.as_default():
            return savers.model_saver(**saver_kwargs)

    def __repr__(self):
        return "<AccumulationOps {!r} of {} variables>".format(
            self.name, len(self.variables))


def remember(ops, state):
    """Leaves in the graph what `ops` is, for savers and other programs.

    Args:
      ops: an `AccumulationOps`.
      state: list of the variables that are not the model's: accumulators,
        window scalars and the optimizer's state.
    """
    for role in ("accumulate", "apply", "reset", "apply_and_reset",
                 "initializer", "average_loss", "count"):
        entry = getattr(ops, role)
        graph_keys.remember(
            ops.graph, ops.name, role, [] if entry is None else [entry])
    graph_keys.remember(
        ops.graph, ops.name, "accumulators", ops.accumulators)
    graph_keys.remember(
        ops.graph, ops.name, "variables",
        [variable.op for variable in ops.variables])
    graph_keys.remember(
        ops.graph, ops.name, graph_keys.STATE,
        [variable.op for variable in state])
