"""Host gradients: fetched as arrays, fed back by variable."""

import tensorflow.compat.v1 as tf

from tf1accum import applying
from tf1accum import arguments
from tf1accum import feeds as feeds_lib
from tf1accum import gradients
from tf1accum import graph_keys
from tf1accum import recorder
from tf1accum import running_mean
from tf1accum import scopes
from tf1accum import train_ops
from tf1accum import workers

_OP_NAMES = ("apply", "initializer", "placeholders")


def build_host(loss, var_list=None, optimizer=None, global_step=None,
               name="accumulation"):
    """Builds ops for a window that NumPy keeps: the mean, not the sum.

        mean = host.running_mean()
        for batch in window:
            mean.add(sess.run(host.gradients, feed_dict={x: batch}))
        sess.run(host.apply, host.feed_dict(mean.value()))

    For who wants to look at the gradients, change them, or send them
    elsewhere. They are copied out of the session and back; `build` keeps them
    where they are.

    The one thing to know: fetching gradients runs nothing else. Where the model
    has batch norm, fetch its update ops in the same run.

    Args:
      loss: scalar tensor of a float type, the mean loss of one micro-batch.
      var_list: list of the variables to train, or None for all trainable ones,
        as in `Optimizer.minimize`. Of a partitioned variable, all parts.
      optimizer: object with `compute_gradients` and `apply_gradients`, such as
        any in `tf.train`.
      global_step: integer variable that moves by one with each apply, or None.
      name: scope of all that is added, made unique by TensorFlow.

    Returns:
      A `HostOps`.

    Raises:
      TypeError: an argument is of the wrong type.
      ValueError: an argument has a wrong value, or no variable has a gradient.
      RuntimeError: eager execution is on.

    References:
      The second answer to "How to feed the list of gradients, or (grad,
      variable name) pairs, to my model" on Stack Overflow, which feeds by
      position in a list, and rows in a number that is fixed.
    """
    who = "tf1accum.build_host"
    arguments.check_graph_mode(who, (
        "Feed the gradients of all devices outside of one, or call "
        "tf1accum.build in the function that each replica runs."))
    arguments.check_loss(who, loss)
    arguments.check_always_run(who, "loss", loss)
    variables = arguments.checked_variables(
        who, tf.trainable_variables() if var_list is None else var_list)
    arguments.check_optimizer(
        who, optimizer, ("compute_gradients", "apply_gradients"))
    settings = arguments.Settings(k=1, global_step=global_step, name=name)
    arguments.check_settings(who, settings)
    workers.check_synchronous(who, optimizer, settings)
    workers.check_reduces(who, optimizer, lambda: True)
    gradients.check_reached(who, loss, variables)
    return _build_ops(who, loss, variables, optimizer, global_step, name)


def _build_ops(who, loss, variables, optimizer, global_step, name):
    """Builds what `build_host` returns; every argument has been checked."""
    graph = tf.get_default_graph()
    with scopes.root_scope(), scopes.new_box(name) as scope:
        for op_name in _OP_NAMES:
            # Whatever the optimizer adds of that name gives way.
            graph.unique_name(op_name)
        made = recorder.Recorder()
        with gradients.scope_of(optimizer, scope), made.record():
            pairs, _ = gradients.compute(
                optimizer, loss, variables, 1.)
        workers.check_no_rows(who, optimizer, pairs)
        pairs = gradients.drop_none(who, pairs)
        with tf.name_scope(scope + "placeholders/"):
            feeds = [feeds_lib.make(grad, variable)
                     for grad, variable in pairs]

        def apply_fed():
            with made_by_apply.record():
                return [applying.apply_gradients(who, optimizer, [
                    (feed.grad, variable)
                    for feed, (_, variable) in zip(feeds, pairs)],
                                                 global_step)]

        made_by_apply = recorder.Recorder()
        apply = scopes.named_group(scope, "apply", apply_fed)
        created = made.variables + made_by_apply.variables
        initializer = scopes.named_group(scope, "initializer", lambda: [
            variable.initializer for variable in created])
    graph_keys.remember(graph, scope[:-1], graph_keys.STATE, [
        variable.op
        for variable in applying.state(optimizer, created, variables)])
    return HostOps(
        name=scope[:-1], graph=graph, gradients={
            feed.name: grad for feed, (grad, _) in zip(feeds, pairs)},
        apply=apply, initializer=initializer,
        variables=[variable for _, variable in pairs], feeds=feeds)


class HostOps:
    """What `build_host` returns: what to fetch, and what to feed.

    Attributes:
      name: scope that holds all that was added, a string.
      gradients: dict from the name of a variable, without ":0", to the tensor
        of its gradient. `sess.run` of it gives the same dict with arrays; for
        sparse gradients with tuples of `values` [rows, ...], `indices` [rows]
        and `dense_shape`, where an index may repeat.
      apply: `tf.Operation`. Hands what is fed by `feed_dict` to the optimizer.
      initializer: `tf.Operation`. Initialises the optimizer's state.
      variables: list of the model's variables that have a gradient.
      graph: the `tf.Graph` of all these.
    """

    def __init__(self, name, graph, gradients, apply, initializer, variables,
                 feeds):
        # pylint: disable=redefined-outer-name
        self.name = name
        self.graph = graph
        self.gradients = gradients
        self.apply = apply
        self.initializer = initializer
        self.variables = variables
        self._feeds = feeds

    def running_mean(self):
        """An empty `RunningMean` of what `gradients` fetches."""
        return running_mean.RunningMean(self._feeds)

    def feed_dict(self, values):
        """What to feed to `apply`: a dict from placeholder to array.

        The one thing to know: what is fed is applied as it is. Divide a sum
        first, or let `running_mean()` do it.

        Args:
          values: dict with one entry for each in `gradients`: an array of the
            variable's shape, or a tuple such as was fetched. Arrays of another
            float type are cast. What is not finite is fed as it is.

        Returns:
          A dict for the `feed_dict` of `sess.run`, to which a program may add.

        Raises:
          TypeError: a value is of the wrong type, dense where the gradient is
            sparse, or the reverse.
          ValueError: a value is missing, unknown or of the wrong shape, or an
            index is not one of a row.
        """
        checked = feeds_lib.checked_values(
            "tf1accum.HostOps.feed_dict", self._feeds, values)
        return {placeholder: array
                for feed, value in zip(self._feeds, checked)
                for placeholder, array in feed.feed(value)}

    # One rule for what belongs to a model, whoever built the ops.
    model_saver = train_ops.AccumulationOps.model_saver

    def __repr__(self):
        return "<HostOps {!r} of {} variables>".format(
            self.name, len(self.variables))
