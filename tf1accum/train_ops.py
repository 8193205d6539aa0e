"""The record of the ops that a program runs."""

from tf1accum import savers


class AccumulationOps:
    """What a builder returns: the ops of one window.

    The one thing to know: run each op in a `sess.run` of its own. TensorFlow
    does not order what is fetched in one run.

    Attributes:
      name: scope that holds all that was added, a string.
      k: the micro-batches in a window: the integer that the builder was given,
        or an integer scalar tensor that reads it.
      reduction: "mean" or "sum", what is applied.
      accumulate: `tf.Operation`. Adds one micro-batch to the window.
      apply: `tf.Operation`. Hands the mean of what is in the window to the
        optimizer; with an empty window it moves nothing. It leaves the window
        as it is: without a `reset`, what comes next is added to it.
      reset: `tf.Operation`. Empties the window.
      apply_and_reset: `tf.Operation`. `apply`, and `reset` strictly after it.
      initializer: `tf.Operation`. Initialises what the builder added: the
        window and the state of the optimizer. Not to be run after that state
        was restored. In a cluster (`worker_device`) the window alone: the state
        is for all workers, and among the global variables.
      step: `tf.Operation`, of an every-k-th optimizer. `accumulate`, and at
        every k-th run `apply` and `reset` after it; None of a builder.
      average_loss: scalar tensor, the mean loss of the open window, 0 in an
        empty one; None when the builder was given no loss. Fetch it in a run
        of its own, after `accumulate` and before `reset`.
      count: scalar int64 tensor, the micro-batches in the open window.
      weight: scalar float64 tensor, the sum of the weights in the open window;
        None when micro-batches have none.
      skipped: scalar int64 tensor, the micro-batches skipped since the start,
        which no reset clears; None unless `nonfinite` is "skip".
      accumulators: list of tensors, or `IndexedSlices` where an index may
        repeat: what each accumulator holds for the variable at the same place
        in `variables`, (w_1 g_1 + ... + w_r g_r) / k after r micro-batches. The
        mean gradient, where r is k and there are no weights. Not divided by k
        with `reduction="sum"`, or where k is a tensor.
      variables: list of the model's variables that the window is for.
      update_ops: list of the ops that `accumulate` runs besides.
      graph: the `tf.Graph` of all these.
    """

    def __init__(self, name, graph, k, reduction, accumulate, apply, reset,
                 apply_and_reset, initializer, step, average_loss, count,
                 weight, skipped, accumulators, variables, update_ops):
        self.name = name
        self.graph = graph
        self.k = k
        self.reduction = reduction
        self.accumulate = accumulate
        self.apply = apply
        self.reset = reset
        self.apply_and_reset = apply_and_reset
        self.initializer = initializer
        self.step = step
        self.average_loss = average_loss
        self.count = count
        self.weight = weight
        self.skipped = skipped
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


def check(who, ops):
    """Raises TypeError unless `ops` is an `AccumulationOps`."""
    if not isinstance(ops, AccumulationOps):
        raise TypeError(
            "{}: ops must be an AccumulationOps; got {!r}. Pass what "
            "tf1accum.build returns.".format(who, ops))

