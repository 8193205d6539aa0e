"""The gradients of a batch, one micro-batch after the other, in one run."""

import contextlib

import tensorflow.compat.v1 as tf

from tf1accum import accumulators
from tf1accum import ancestry
from tf1accum import arguments
from tf1accum import batch as batch_lib
from tf1accum import gradients
from tf1accum import recorder
from tf1accum import scopes
from tf1accum import totals
from tf1accum import update_ops as update_ops_lib
from tf1accum import workers


def microbatch_gradients(loss_fn, inputs, k, var_list=None, optimizer=None,
                         name="microbatch"):
    """The gradients of a batch that is too large: the mean, not the sum.

        mean gradient = (w_1 g_1 + ... + w_k g_k) / (w_1 + ... + w_k)

    One run of the session splits the batch into k micro-batches and takes one
    after the other, in the memory of one and of the gradients. `w_i` is the
    number of examples of each: the result is the gradient of the whole batch
    when the loss is a mean over examples.

        pairs, loss = tf1accum.microbatch_gradients(
            lambda batch: model_loss(batch["x"], batch["y"]),
            {"x": x, "y": y}, k=4)
        train_op = optimizer.apply_gradients(pairs, global_step)

    What is to be done to the mean (clip it, decay, reduce over workers) is done
    to the pairs.

    The one thing to know: `loss_fn` is called once, and what it builds is in a
    loop. Only what it returns comes out: of its summaries, metrics and losses
    in collections none stays there, and what it leaves in
    `tf.GraphKeys.UPDATE_OPS` is run with each micro-batch and leaves it too.
    Keras layers leave nothing there: have `loss_fn` add their `updates` to it.
    While it is called, loops and branches are those of version 1, which take
    reference variables.

    Args:
      loss_fn: function of a micro-batch, of the structure of `inputs`. Returns
        its mean loss, a scalar tensor of a float type; or that and its weight,
        a scalar tensor, not negative (its tokens). A micro-batch that weighs 0
        adds nothing, whatever its gradients are; if all do, the mean is 0. It
        may make variables: each is there once, under its own name.
      inputs: tensor [examples, ...], or a structure of them (list, tuple,
        dict, nested), all of as many examples.
      k: positive integer, or integer scalar tensor: how many micro-batches to
        split into, the first ones larger by one example where k does not
        divide the batch. Of fewer than k examples, each is a micro-batch.
      var_list: list of the variables to train, or None for all that are
        trainable when `loss_fn` has been called. Of a partitioned variable, all
        parts.
      optimizer: object whose `compute_gradients` is to be used (one that scales
        the loss), or None for TensorFlow's own.
      name: scope of all that is added, in the current name scope.

    Returns:
      The `grads_and_vars` list of the means, sparse ones as `IndexedSlices`
      with each index once; and the mean loss, a scalar tensor.

    Raises:
      TypeError: an argument, or what `loss_fn` returned, is of the wrong type.
      ValueError: one has a wrong value, or no variable has a gradient.
      RuntimeError: eager execution is on.
      tf.errors.InvalidArgumentError: in a run, where the batch is empty, k is
        not positive, or the inputs are of different sizes.
    """
    who = "tf1accum.microbatch_gradients"
    arguments.check_graph_mode(who)
    if not callable(loss_fn):
        raise TypeError(
            "{}: loss_fn must be a function of a micro-batch that returns its "
            "loss; got {!r}. Build the model in it.".format(who, loss_fn))
    batch_lib.check_inputs(who, inputs)
    settings = arguments.Settings(k=k, name=name)
    arguments.check_settings(who, settings)
    if tf.is_tensor(k):
        arguments.check_always_run(who, "k", k)
    if var_list is not None:
        var_list = arguments.checked_variables(who, var_list)
    if optimizer is None:
        optimizer = tf.train.GradientDescentOptimizer(1.)
    arguments.check_optimizer(who, optimizer, ("compute_gradients",))
    workers.check_reduces(who, optimizer, lambda: True)
    return _build(who, loss_fn, inputs, settings, var_list, optimizer)


def _build(who, loss_fn, inputs, settings, var_list, optimizer):
    """Builds the loop; every argument has been checked."""
    outer = tf.get_default_graph().get_name_scope()
    with _control_flow_of_version_1(), tf.name_scope(settings.name) as scope:
        if scopes.in_control_flow(scope):
            raise ValueError(
                "{}: call it outside of every tf.cond branch and tf.while_loop "
                "body; a batch is split in a loop of its own.".format(who))
        batch = batch_lib.Batch(who, inputs, settings.k)
        loop = _Loop(
            who, loss_fn, batch, var_list, optimizer, scope, outer)
        end = tf.while_loop(
            lambda at: at < batch.number, loop.add_micro_batch,
            [tf.constant(0)], parallel_iterations=1, back_prop=False,
            name="loop")
        with tf.name_scope("mean"):
            pairs, average_loss = loop.read_means(end)
    return gradients.drop_none(who, pairs), average_loss


@contextlib.contextmanager
def _control_flow_of_version_1():
    """Loops and branches are built in the main graph, as ops of it.

    The loops of version 2 are functions, which refuse reference variables.
    """
    if not tf.control_flow_v2_enabled():
        yield
        return
    tf.disable_control_flow_v2()
    try:
        yield
    finally:
        tf.enable_control_flow_v2()


class _Loop:
    """What is in the loop, and the totals that come out of it."""

    def __init__(self, who, loss_fn, batch, var_list, optimizer, scope, outer):
        self._who = who
        self._loss_fn = loss_fn
        self._batch = batch
        self._var_list = var_list
        self._optimizer = optimizer
        self._scope = scope
        self._outer = outer
        # Known when the body has been built, as it is once.
        self._grads_and_vars = self._totals = None
        self._loss = self._loss_total = self._weight_total = None

    def add_micro_batch(self, at):
        """The body of the loop; returns the number of the next micro-batch.

        Args:
          at: number of the micro-batch, a scalar tensor of int32.
        """
        with tf.name_scope("inputs"):
            micro_batch, share = self._batch.micro_batch(at)
        before = _collections()
        try:
            with recorder.Recorder().record(outer=self._outer):
                self._loss, weight = self._loss_and_weight(micro_batch)
                scale = share if weight is None else tf.cast(
                    weight, tf.float64)
                self._grads_and_vars, rest = gradients.compute(
                    self._optimizer, self._loss, self._variables(), scale)
        except Exception:
            # The caller may try again: merging all summaries, say, is not to
            # fail then.
            _take_out_of_collections(before)
            raise
        update_ops = update_ops_lib.checked_or_reached(
            self._who, _take_out_of_collections(before), [], loops=1)
        added = self._add(at, scale, rest, weight is not None)
        # The next micro-batch reads what the update ops of this one wrote.
        with tf.control_dependencies(added + update_ops):
            return at + 1

    def _loss_and_weight(self, micro_batch):
        loss, weight = self._loss_fn(micro_batch), None
        if isinstance(loss, (tuple, list)) and len(loss) == 2:
            loss, weight = loss
        arguments.check_loss(self._who, loss)
        arguments.check_weight(self._who, weight)
        for what, tensor in (("loss", loss), ("weight", weight)):
            if tensor is not None:
                arguments.check_always_run(self._who, what, tensor, loops=1)
        return tf.reshape(loss, []), weight

    def _variables(self):
        variables = self._var_list or arguments.checked_variables(
            self._who, tf.trainable_variables())
        gradients.check_reached(self._who, self._loss, variables)
        return variables

    def _add(self, at, scale, rest, is_weighted):
        """Makes the totals; returns the ops that add a micro-batch to them."""
        with tf.name_scope(self._scope + "totals/"):
            self._loss_total = totals.Total(
                "loss", gradients.wide_dtype(self._loss.dtype))
            self._weight_total = (
                totals.Total("weight", tf.float64) if is_weighted else None)
            self._totals = [
                None if grad is None else totals.make(
                    grad, variable, self._batch.number)
                for grad, variable in self._grads_and_vars]
        terms = [(self._loss_total, self._loss, scale)] + [
            (total, grad, rest) for total, (grad, _) in zip(
                self._totals, self._grads_and_vars) if grad is not None]
        if is_weighted:
            terms.append((self._weight_total, scale, 1.))
        with tf.name_scope("add"):
            include = tf.not_equal(scale, 0.) if is_weighted else None
            return [total.add(value, factor, at, include)
                    for total, value, factor in terms]

    def read_means(self, end):
        """The pairs of means, None where there is no gradient; the mean loss.

        Args:
          end: scalar tensor of int32 that the loop returned.
        """
        rescale = 1. if self._weight_total is None else tf.math.divide_no_nan(
            tf.constant(1., tf.float64), self._weight_total.read(end))

        def mean(total, dtype, name):
            return accumulators.map_values(
                lambda values: tf.identity(tf.cast(totals.times(
                    values, values.dtype, rescale), dtype), name=name),
                total.read(end))

        return [(None if total is None else mean(
            total, variable.dtype.base_dtype, variable.op.name), variable)
                for total, (_, variable) in zip(
                    self._totals, self._grads_and_vars)], mean(
                        self._loss_total, self._loss.dtype, "loss")


def _collections():
    """A copy of all graph collections, a dict of lists."""
    return {key: tf.get_collection(key)
            for key in tf.get_default_graph().get_all_collection_keys()}


def _take_out_of_collections(before):
    """Takes what is in a loop, and was not there `before`, out of them all.

    Nothing outside of the loop can use it: merging all summaries would fail.

    Returns:
      What was in `tf.GraphKeys.UPDATE_OPS`, a list.
    """
    taken = {}
    for key in _collections():
        known = {id(entry) for entry in before.get(key, ())}
        entries = tf.get_collection_ref(key)
        taken[key] = [entry for entry in entries if id(entry) not in known
                      and _is_in_loop(entry)]
        gone = {id(entry) for entry in taken[key]}
        entries[:] = [entry for entry in entries if id(entry) not in gone]
    return taken.get(tf.GraphKeys.UPDATE_OPS, [])


def _is_in_loop(entry):
    # What `assign` returns may pass for a variable. A loss of a regularizer
    # does not exist yet, and would be made in the loop if it was asked.
    return isinstance(entry, (
        tf.Tensor, tf.Operation, arguments.VARIABLE)) and (
            ancestry.first_sometimes_skipped([getattr(entry, "op", entry)])
            is not None)
