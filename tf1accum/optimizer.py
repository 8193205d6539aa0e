"""An optimizer that applies at every k-th run of its train op."""

import tensorflow.compat.v1 as tf

from tf1accum import arguments
from tf1accum import cluster
from tf1accum import gradients
from tf1accum import replicas
from tf1accum import scopes
from tf1accum import update_ops as update_ops_lib
from tf1accum import wiring
from tf1accum import workers


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

    In a `tf.distribute.MirroredStrategy`, use it in the function that each
    replica runs, outside of branches and loops, as any optimizer: what the
    replicas hold is reduced at every k-th run alone. Divide the loss by their
    number; not in an Estimator (`train_distribute`), which does so itself. The
    function can return `flush` and `reset` with the train op.

    Around `tf.train.SyncReplicasOptimizer`, at each k-th run each of W workers
    gives the mean of its window, and waits until the mean of all is applied:
    one step on k W micro-batches. (In it, it would wait for ever: refused.)

        opt = tf.train.SyncReplicasOptimizer(opt, W, total_num_replicas=W)
        train_op = tf1accum.AccumulatingOptimizer(
            opt, k, worker_device="/job:worker/task:0").minimize(loss, step)
        hook = opt.make_session_run_hook(is_chief, num_tokens=0)

    - Without `num_tokens=0` no worker waits for the first step, and what it
      gives next is counted twice or dropped.
    - Lookups need `sparse="dense"`: TensorFlow divides a row by the number of
      the workers that have it.
    - `transform` runs on each worker, and is given the mean of its window.
    - k is the same for all, and so is their number of micro-batches: one that
      stops early leaves the others waiting. There is no `flush`.
    - The chief's session ends when a thread of TensorFlow's does, that waits
      for the next gradients, or after the 120 seconds that
      `MonitoredTrainingSession` has as `stop_grace_period_secs`: pass 1.

    With Horovod, the reduction is the transform, once a window:

        transform=lambda pairs: [
            (hvd.allreduce(grad), variable) for grad, variable in pairs]

    Its `DistributedOptimizer` would reduce with each micro-batch, or, where
    only its `apply_gradients` is called, nothing: then it is refused. `flush`
    is run by all workers or by none. See `tf1accum.ports` for the broadcast.
    """

    def __init__(self, optimizer, k, update_ops=None, reduction="mean",
                 weight=None, transform=None, after_apply=None,
                 nonfinite="propagate", sparse="rows", accumulator_dtype=None,
                 accumulator_device=None, worker_device=None, collections=None,
                 summarize=None, name="accumulation"):
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
          worker_device: as for `build`. In an Estimator's model function,
            "/job:{}/task:{}".format(config.task_type, config.task_id), where
            `config.num_ps_replicas` is not 0.
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
            sparse, accumulator_dtype, accumulator_device, worker_device,
            collections, name, summarize)
        self._losses = []
        self._computed = []
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
        """`tf.Operation` that applies an unfinished window, and empties it.

        Raises:
          RuntimeError: there is none, as with `SyncReplicasOptimizer` inside.
        """
        if self.ops.apply_and_reset is None:
            raise RuntimeError(
                "{}: has no flush around SyncReplicasOptimizer; {!r} got none. "
                "It would wait until every worker flushes. Run `reset` to drop "
                "what is left, or give each worker a number of micro-batches "
                "that k divides.".format(self._who, self.ops))
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
        workers.check_reduces(self._who, self._optimizer, lambda: True)
        return self._build(
            lambda scale: gradients.compute(
                self._optimizer, loss, variables, scale,
                colocate=self._settings.worker_device is None),
            variables, [loss], global_step, name)

    def compute_gradients(self, loss, *args, **kwargs):
        """As that of the wrapped optimizer."""
        if isinstance(loss, tf.Tensor):
            self._losses.append((tf.distribute.get_replica_context(), loss))
        pairs = self._optimizer.compute_gradients(loss, *args, **kwargs)
        self._computed += [grad for grad, _ in pairs if grad is not None]
        return pairs

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """As `Optimizer.apply_gradients`: returns the train op."""
        arguments.check_graph_mode(self._who)
        grads_and_vars = arguments.listed(
            self._who, "grads_and_vars", grads_and_vars)
        arguments.check_pairs(self._who, grads_and_vars)
        gradients.check_some(self._who, grads_and_vars)
        workers.check_not_aggregated(self._who, grads_and_vars)
        # Those that compute_gradients was called for since, in this graph.
        own = tf.distribute.get_replica_context()
        losses = [loss for replica, loss in self._losses if replica is own]
        self._losses = [each for each in self._losses if each[0] is not own]
        computed, self._computed = self._computed, []
        workers.check_reduces(
            self._who, self._optimizer, lambda: workers.come_from(
                [grad for grad, _ in grads_and_vars if grad is not None],
                computed))
        graphs = [tf.get_default_graph()] + [
            variable.graph for _, variable in grads_and_vars]
        losses = [loss for loss in losses if loss.graph in graphs]
        for loss in losses:
            arguments.check_loss(self._who, loss)
        return self._build(
            lambda scale: (grads_and_vars, scale),
            [variable for _, variable in grads_and_vars], losses, global_step,
            name)

    def get_slot(self, var, name):
        """As that of the wrapped optimizer."""
        return self._optimizer.get_slot(var, name)

    def get_slot_names(self):
        """As that of the wrapped optimizer."""
        return self._optimizer.get_slot_names()

    def variables(self):
        """As those of the wrapped optimizer."""
        return self._optimizer.variables()

    def _check_place(self):
        # Before replicas meet: it would mix up the branches they are in.
        if replicas.inside() and scopes.in_control_flow(
                tf.get_default_graph().unique_name(
                    scopes.free_box(self._settings.name) + scopes.TOWER_MEAN)
                + "/"):
            replicas.check_outside(self._who, (
                "In the function of a replica, call it outside of every "
                "tf.cond branch and tf.while_loop body: all replicas have to "
                "run it together."))

    def _build(self, compute, variables, losses, global_step, name,
               finish=None):
        settings = self._settings._replace(
            global_step=global_step, name=name or self._settings.name)
        arguments.check_settings(self._who, settings)
        settings = cluster.placed(self._who, settings, variables, losses)
        workers.check_synchronous(self._who, self._optimizer, settings)
        update_ops = update_ops_lib.checked_or_reached(
            self._who, self._update_ops, losses)
        self._check_place()
        # Of several losses (of towers), it is not known how they belong
        # together.
        self._ops = wiring.build_window(
            self._who, compute, self._optimizer,
            losses[0] if len(losses) == 1 else None, update_ops, settings,
            every_k=True, finish=finish)
        if self._ops.step.graph is self._ops.graph and (
                replicas.number() == 0):
            tf.add_to_collection(tf.GraphKeys.TRAIN_OP, self._ops.step)
        return self._ops.step
