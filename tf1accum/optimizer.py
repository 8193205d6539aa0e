"""An optimizer that applies at every k-th run of its train op."""

import tensorflow.compat.v1 as tf

from tf1accum import arguments
from tf1accum import gradients
from tf1accum import update_ops as update_ops_lib
from tf1accum import wiring


class AccumulatingOptimizer(tf.train.Optimizer):
    """Applies the mean of k micro-batches, not their sum, at each k-th run.

        run 1 ... k - 1 of the train op: accumulate
        run k: accumulate, apply the mean (g_1 + ... + g_k) / k, reset

    For programs that run one train op, such as those of
    `MonitoredTrainingSession` and of Estimators. A program that owns its loop
    has more to say with `build`, and runs less: there, nothing has to decide
    whether to apply, and nothing is locked while it is done.

    Runs of the train op from many threads lose nothing: each adds, counts and
    if it is the k-th applies, while the others wait; gradients are computed
    side by side.

    The one thing to know: the global step counts applies. What is given in
    steps (learning-rate schedules, `max_steps`, hooks) counts windows. And
    `ops.average_loss` is that of the open window: 0 after the k-th run.

    A wrapper that does something of its own with each step, such as one that
    keeps moving averages or scales the loss, goes inside: outside, it does so
    in each run, and the loss that is averaged is the scaled one. Where an apply
    failed, `flush` or `reset` closes the window, which is full by then.

    It can stand in a `tf.cond` branch or a `tf.while_loop` body, as wrappers
    that skip steps and training loops in the graph do.
    """

    def __init__(self, optimizer, k, update_ops=None, reduction="mean",
                 weight=None, transform=None, after_apply=None,
                 nonfinite="propagate", sparse="rows", accumulator_dtype=None,
                 accumulator_device=None, collections=None, summarize=None,
                 name="accumulation"):
        """Wraps `optimizer`.

        Args:
          optimizer: object with `compute_gradients` and `apply_gradients`. It
            is not called in the runs that do not apply.
          k: as for `build`; a tensor is read in each run.
          update_ops: as for `build`.
          reduction: as for `build`.
          weight: as for `build`.
          transform: as for `build`, and called twice: for the train op, and for
            `flush`.
          after_apply: likewise.
          nonfinite: as for `build`.
          sparse: as for `build`.
          accumulator_dtype: as for `build`.
          accumulator_device: as for `build`.
          collections: as for `build`.
          summarize: function of the window, called to build what runs once a
            window, after the apply and before the reset, such as
            `tf1accum.add_summaries`; called twice, as `transform` is. It is
            given an `AccumulationOps` whose tensors are read there, and whose
            ops are None. None for nothing.
          name: as for `build`.

        Raises:
          TypeError, ValueError: as for `build`, here or by `minimize`.
        """
        self._who = "tf1accum.AccumulatingOptimizer"
        arguments.check_optimizer(
            self._who, optimizer, ("compute_gradients", "apply_gradients"))
        super().__init__(use_locking=False, name=name)
        self._optimizer = optimizer
        self._update_ops = update_ops
        self._settings = arguments.Settings(
            k, None, reduction, weight, transform, after_apply, nonfinite,
            sparse, accumulator_dtype, accumulator_device, collections, name,
            summarize)
        self._losses = []
        self._ops = None

    @property
    def ops(self):
        """The `AccumulationOps` of the train op that was built last.

        Raises:
          RuntimeError: none was.
        """
        if self._ops is None:
            raise RuntimeError(
                "{}: has ops once minimize or apply_gradients was called; "
                "neither was.".format(self._who))
        return self._ops

    @property
    def flush(self):
        """`tf.Operation` that applies an unfinished window, and empties it."""
        return self.ops.apply_and_reset

    @property
    def reset(self):
        """`tf.Operation` that drops what is in the window."""
        return self.ops.reset

    def minimize(self, loss, global_step=None, var_list=None,
                 gate_gradients=tf.train.Optimizer.GATE_OP,
                 aggregation_method=None, colocate_gradients_with_ops=False,
                 name=None, grad_loss=None):
        """As `Optimizer.minimize`: returns the train op, a `tf.Operation`."""
        if (gate_gradients != self.GATE_OP or aggregation_method is not None
                or colocate_gradients_with_ops or grad_loss is not None):
            return super().minimize(
                loss, global_step, var_list, gate_gradients,
                aggregation_method, colocate_gradients_with_ops, name,
                grad_loss)
        # The same, with gradients that come in scaled: see gradients.compute.
        arguments.check_graph_mode(self._who)
        arguments.check_loss(self._who, loss)
        variables = arguments.checked_variables(
            self._who, tf.trainable_variables() if var_list is None
            else var_list)
        return self._build(
            lambda scale: gradients.compute(
                self._optimizer, loss, variables, scale),
            [loss], global_step, name)

    def compute_gradients(self, loss, *args, **kwargs):
        """As that of the wrapped optimizer."""
        if isinstance(loss, tf.Tensor):
            self._losses.append(loss)
        return self._optimizer.compute_gradients(loss, *args, **kwargs)

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """As `Optimizer.apply_gradients`: returns the train op."""
        arguments.check_graph_mode(self._who)
        grads_and_vars = arguments.listed(
            self._who, "grads_and_vars", grads_and_vars)
        arguments.check_pairs(self._who, grads_and_vars)
        gradients.check_some(self._who, grads_and_vars)
        # Those that compute_gradients was called for since, in this graph.
        losses, self._losses = self._losses, []
        graphs = [tf.get_default_graph()] + [
            variable.graph for _, variable in grads_and_vars]
        losses = [loss for loss in losses if loss.graph in graphs]
        for loss in losses:
            arguments.check_loss(self._who, loss)
        return self._build(lambda scale: (grads_and_vars, scale), losses,
                           global_step, name)

    def get_slot(self, var, name):
        """As that of the wrapped optimizer."""
        return self._optimizer.get_slot(var, name)

    def get_slot_names(self):
        """As that of the wrapped optimizer."""
        return self._optimizer.get_slot_names()

    def variables(self):
        """As those of the wrapped optimizer."""
        return self._optimizer.variables()

    def _build(self, compute, losses, global_step, name, finish=None):
        settings = self._settings._replace(
            global_step=global_step, name=name or self._settings.name)
        arguments.check_settings(self._who, settings)
        update_ops = update_ops_lib.checked_or_reached(
            self._who, self._update_ops, losses)
        # Of several losses (of towers), it is not known how they belong
        # together.
        self._ops = wiring.build_window(
            self._who, compute, self._optimizer,
            losses[0] if len(losses) == 1 else None, update_ops, settings,
            every_k=True, finish=finish)
        if self._ops.step.graph is self._ops.graph:
            tf.add_to_collection(tf.GraphKeys.TRAIN_OP, self._ops.step)
        return self._ops.step
