"""Stand-ins for what old scripts import: the sum, as there, not the mean.

Change the import, change nothing else:

    from tf1accum.ports import AccumGradOptimizer        # tensorpack's
    from tf1accum.ports import AccumulatingOptimizer     # the GPT-2 scripts'

They are for scripts that are to give the numbers they gave, and hand the
optimizer the sum of the gradients: its rate is k times that of a whole batch. A
new script uses `tf1accum.build`, or `tf1accum.AccumulatingOptimizer`.

Horovod's `backward_passes_per_step=k` needs no stand-in. Whoever drives the
window, the reduction over workers is its transform, once a window:

    opt = tf1accum.AccumulatingOptimizer(
        tf.train.AdamOptimizer(1e-3), k, transform=lambda pairs: [
            (hvd.allreduce(g), v) for g, v in pairs])
    train_op = opt.minimize(loss, global_step)

It takes the place of `hvd.DistributedOptimizer`, which reduces with each
micro-batch, and is refused where nothing would be: it does so in its
`compute_gradients` alone. This is the mean over passes that Horovod makes when
`average_aggregated_gradients` is set; without, it applies the sum over passes:
`reduction="sum"`. The global step counts windows, Horovod's counts passes. Rows
(of lookups) stay rows; Horovod asks for `sparse_as_dense` there, which is
`sparse="dense"`. All workers need the same k, and to run `flush`, if they do,
together: each reduction waits for all of them.

`hvd.broadcast_global_variables(0)` sends the window too, which is empty at the
start; where the first worker restores one that is not, have it kept out of the
checkpoint and the broadcast: `collections=[tf.GraphKeys.LOCAL_VARIABLES]`.
"""

import tensorflow.compat.v1 as tf

from tf1accum import applying
from tf1accum import arguments
from tf1accum import cluster
from tf1accum import gradients
from tf1accum import graph_keys
from tf1accum import optimizer
from tf1accum import recorder
from tf1accum import scopes
from tf1accum import update_ops
from tf1accum import window
from tf1accum import workers

_NOT_IN_STRATEGIES = (
    "In the function that each replica runs, use "
    "tf1accum.AccumulatingOptimizer or tf1accum.build.")
_OP_NAMES = ("accumulate", "apply", "reset", "mean", "apply_gradients")


class AccumGradOptimizer(optimizer.AccumulatingOptimizer):
    """tensorpack's optimizer: applies the sum, not the mean, at each k-th run.

        run 1 ... k - 1 of the train op: accumulate
        run k: accumulate, apply g_1 + ... + g_k, reset
        each run, when all that is done: global_step += 1

    It gives what tensorpack's gives in the runs in which that one decides from
    the counter that it has just moved; nothing orders its read after the write.

    It differs from `build` in what a new script does not want:

      - The sum is applied: with the rate of a whole batch, it steps k times as
        far.
      - The global step counts runs, so that schedules and `max_steps` given in
        steps come to an end k times too soon. At the n-th apply a schedule
        reads n k - 1.
      - Gradients of lookups become tables. An optimizer with momentum moves
        rows that nobody looked up.
      - No update ops are run but those that `tf.control_dependencies` around
        `minimize` asks for.

    The one thing to know: its slots are the optimizer's own, its accumulators
    are not slots of it, and what it adds is in a box of its own. A checkpoint
    that tensorpack's left in the middle of a window is not read.

    References:
      https://github.com/tensorpack/tensorpack, `tfutils/optimizer.py`.
    """

    def __init__(self, opt, niter):
        """Wraps `opt`.

        Args:
          opt: a `tf.train.Optimizer`, or an object with its methods.
          niter: the micro-batches in a window; `int(niter)` is used.

        Raises:
          TypeError, ValueError: `opt` is no optimizer, `niter` is no number, or
            is below one.
        """
        who = "tf1accum.ports.AccumGradOptimizer"
        arguments.check_optimizer(
            who, opt, ("compute_gradients", "apply_gradients"))
        try:
            niter = int(niter)
        except (TypeError, ValueError):
            raise TypeError(
                "{}: niter, the micro-batches in a window, must be a positive "
                "integer; got {!r}.".format(who, niter))
        if niter < 1:
            raise ValueError(
                "{}: niter, the micro-batches in a window, must be a positive "
                "integer; got {}. Use niter=1 for a window of one.".format(
                    who, niter))
        super().__init__(opt, niter, update_ops=[], reduction="sum",
                         sparse="dense")
        self._who = who

    def _build(self, compute, variables, losses, global_step, name,
               finish=None):
        arguments.check_graph_mode(self._who, _NOT_IN_STRATEGIES)
        arguments.check_settings(self._who, self._settings._replace(
            global_step=global_step, name=name or self._settings.name))

        def count_too(ops):
            in_control_flow = ops.accumulate is None
            # What is built there is under the caller's dependencies anyway.
            asked_for = [] if in_control_flow else _asked_for(
                self._who, ops.name + "/step/")
            if global_step is None and not asked_for:
                return
            step = ops.step
            with scopes.root_scope(in_control_flow):
                ops.step = scopes.named_group(
                    ops.name + "/", "step_and_count",
                    lambda: count(step, asked_for))

        def count(step, asked_for):
            if global_step is None:
                return [step] + asked_for
            # A schedule's read, which the apply waits for, comes before.
            with tf.control_dependencies([step] + asked_for):
                return [global_step.assign_add(
                    1, use_locking=True, read_value=False,
                    name="global_step")]

        return super()._build(
            compute, variables, losses, None, name, count_too)


class AccumulatingOptimizer:
    """The GPT-2 fine-tuning scripts' optimizer: the sum, not the mean.

        sess.run(opt_reset)
        for _ in range(k):
            sess.run(opt_compute, feed)     # total += g, total loss += loss
        loss = sess.run(opt_apply)          # apply total; mean of the losses

    It is what `nshepperd/gpt-2` and `gpt-2-simple` have in `accumulate.py`, and
    no `tf.train.Optimizer`. The methods may be called in any order and as often
    as one likes; the ops are built once.

    It differs from `build` in what a new script does not want:

      - The sum is applied: with the rate of a whole batch, it steps k times as
        far. (With Adam that goes unnoticed, until its epsilon matters or
        gradients are clipped.)
      - There is no global step.
      - Gradients of lookups become tables. An optimizer with momentum moves
        rows that nobody looked up.
      - No update ops are run but those that `tf.control_dependencies` around
        `compute_gradients` asks for.

    It differs from the published class where that one fails: with nothing in
    the window, nothing is applied and the loss is 0, not NaN; accumulators are
    in a box of their own, not named `Variable_1`; the two scalars are not
    trainable; and `tf1accum.model_saver()` leaves all of them out.

    The one thing to know: `apply_gradients()` leaves the window as it is. Run
    what `reset()` returns before the next one.

    Attributes:
      opt: the optimizer that it was given.
      var_list: list of the variables that it trains.

    References:
      https://github.com/nshepperd/gpt-2, branch finetuning, `accumulate.py`.
    """

    def __init__(self, opt, var_list):
        """Makes the accumulators.

        Args:
          opt: a `tf.train.Optimizer`, or an object with its methods.
          var_list: list of the variables to train.

        Raises:
          TypeError, ValueError: an argument is not that.
          RuntimeError: eager execution is on.
        """
        self._who = "tf1accum.ports.AccumulatingOptimizer"
        arguments.check_graph_mode(self._who, _NOT_IN_STRATEGIES)
        arguments.check_optimizer(
            self._who, opt, ("compute_gradients", "apply_gradients"))
        self.opt = opt
        self.var_list = arguments.checked_variables(self._who, var_list)
        self._settings = arguments.Settings(
            k=1, reduction="sum", sparse="dense")
        cluster.placed(self._who, self._settings, self.var_list)
        workers.check_synchronous(self._who, opt, self._settings)
        workers.check_reduces(self._who, opt, lambda: True)
        self._made = recorder.Recorder()
        self._loss = self._accumulate = self._average_loss = None
        # The scripts ask for reset before anything else.
        with scopes.root_scope(), scopes.new_box(
                self._settings.name) as self._scope:
            self._graph = tf.get_default_graph()
            for op_name in _OP_NAMES:
                # A model's variable of that name gives way.
                self._graph.unique_name(op_name)
            self._window = _OpenWindow(self.var_list, self._settings)
            self._reset = scopes.named_group(
                self._scope, "reset", self._window.reset)
        self._remember(self._window.variables)

    def reset(self):
        """The op, a `tf.Operation`, that empties the window."""
        return self._reset

    def compute_gradients(self, loss):
        """The op, a `tf.Operation`, that adds a micro-batch to the window.

        Args:
          loss: scalar tensor of a float type, the mean loss of a micro-batch.
            The same in each call.

        Raises:
          TypeError, ValueError: it is something else, another loss than
            before, or has no gradient for one of the variables.
        """
        if self._loss is not None and loss is self._loss:
            return self._accumulate
        with self._graph.as_default():
            arguments.check_loss(self._who, loss)
            arguments.check_always_run(self._who, "loss", loss)
        if self._loss is not None:
            raise ValueError(
                "{}: compute_gradients must get the same loss each time; got "
                "{} after {}. Make another {} for another loss.".format(
                    self._who, loss.name, self._loss.name,
                    type(self).__name__))
        gradients.check_reached(self._who, loss, self.var_list)
        with self._graph.as_default():
            asked_for = _asked_for(self._who, self._scope + "accumulate/")
            with scopes.root_scope(), tf.name_scope(self._scope):
                self._window.fill_with(self._gradients(loss), loss)
                self._accumulate = scopes.named_group(
                    self._scope, "accumulate",
                    lambda: asked_for + self._window.add(
                        1., self._settings.loss_scale))
        self._loss = loss
        return self._accumulate

    def apply_gradients(self):
        """The mean loss of the window, a tensor that applies when it is run.

        A float32 scalar tensor; 0 with nothing in the window, and then nothing
        moves. The window stays as it is.
        """
        if self._average_loss is None:
            with self._graph.as_default(), scopes.root_scope(), \
                    tf.name_scope(self._scope):
                self._average_loss = self._apply_and_read_loss()
        return self._average_loss

    def _gradients(self, loss):
        with gradients.scope_of(self.opt, self._scope), \
                self._made.record():
            pairs, _ = gradients.compute(self.opt, loss, self.var_list, 1.)
        grads = {variable.op.name: grad for grad, variable in pairs
                 if grad is not None}
        without = [variable.name for variable in self.var_list
                   if variable.op.name not in grads]
        if without:
            raise ValueError(
                "{}: each variable must have a gradient; the loss has none for "
                "{}. Leave them out of var_list.".format(
                    self._who, ", ".join(without)))
        return [grads[variable.op.name] for variable in self.var_list]

    def _apply_and_read_loss(self):
        application = applying.Application(
            self._who, self._window, self.opt, self._settings)
        apply = scopes.named_group(self._scope, "apply", lambda: [
            application.build(self._scope, self._window.holds_something())])
        self._remember(applying.state(
            self.opt, self._made.variables + application.made, self.var_list))
        with tf.control_dependencies([apply]):
            return self._window.read_average_loss(
                self._scope + "apply_gradients/")

    def _remember(self, variables):
        graph_keys.remember(
            self._graph, self._scope[:-1], graph_keys.STATE,
            [variable.op for variable in variables])


class _OpenWindow(window.Window):
    """A window that is made before the gradients are that go into it."""

    def __init__(self, variables, settings):
        """Makes its variables, a float32 one for the loss among them."""
        super().__init__([(None, variable) for variable in variables],
                         tf.TensorSpec([], tf.float32), settings)

    def fill_with(self, grads, loss):
        """Has it add `grads`, one for each variable, and `loss`."""
        self._grads = grads
        self._loss = loss


def _asked_for(who, scope):
    """The ops that `tf.control_dependencies` around the caller asks for.

    Scripts run their update ops that way. What is built at the root of the
    graph leaves them out.

    Args:
      who: name of the function that the program called.
      scope: name scope for the op that it adds to see, ending in "/".
    """
    with tf.name_scope(scope):
        probe = tf.no_op(name="asked_for")
    return update_ops.checked_or_reached(who, probe.control_inputs, [])
