"""The variables that other code makes: an optimizer's, a transform's."""

import collections
import contextlib

import tensorflow.compat.v1 as tf

_ENTERS = ("Enter", "RefEnter")
_VARIABLES = ("VarHandleOp", "VariableV2")


class Recorder:
    """Lists the variables made under it, and makes none of them twice.

    Attributes:
      variables: list of the variables.
    """

    def __init__(self):
        self.variables = []
        self._requested = []

    @contextlib.contextmanager
    def record(self, after=(), outer=""):
        """Lists the variables made inside, and names them as at the root.

        Optimizers make plain variables (Adam's beta powers) under the name
        scope they are called in, with initial values made under its control
        dependencies. Those keep the name that `Optimizer.minimize` gives them,
        so that checkpoints stay interchangeable, and can be initialised by
        themselves. The second time that it records, the same code finds the
        variables that it made the first time.

        Args:
          after: list of ops that what is made inside is ordered after;
            variables are not.
          outer: name scope that they are named in, instead of the root.
        """
        graph = tf.get_default_graph()
        scope = graph.get_name_scope() or ""
        earlier = list(self._requested)

        def creator(next_creator, **kwargs):
            for entry in earlier:
                if entry[0] == kwargs.get("name"):
                    earlier.remove(entry)
                    return entry[1]
            self._requested.append(
                (kwargs.get("name"), _make(next_creator, kwargs)))
            self.variables.append(self._requested[-1][1])
            return self.variables[-1]

        def _make(next_creator, kwargs):
            if isinstance(kwargs.get("initial_value"), tf.Tensor):
                with tf.control_dependencies(None):
                    kwargs["initial_value"] = _copy_unordered(
                        kwargs["initial_value"], after)
            inner = graph.get_name_scope() or ""
            if inner.startswith(scope):
                inner = (outer + inner[len(scope):]).strip("/")
            with tf.name_scope(inner + "/" if inner else None):
                return next_creator(**kwargs)

        root = tf.VariableScope(reuse=tf.AUTO_REUSE, name="")
        with contextlib.ExitStack() as stack:
            stack.enter_context(tf.variable_creator_scope(creator))
            if earlier:
                stack.enter_context(tf.variable_scope(
                    root, auxiliary_name_scope=False))
            yield


def _copy_unordered(tensor, after):
    """`tensor` as if it were not ordered after any op: a copy if it is."""
    copies = {}
    for op in _inputs_first(tensor.op, after):
        inputs = [copies[source.op][source.value_index]
                  for source in op.inputs]
        pivots = [copies[pivot][0].op for pivot in _pivots(op, after)]
        copies[op] = op.outputs
        if op.type in _ENTERS:
            # The way into a loop, for what does not change there.
            copies[op] = inputs
        elif op.type not in _VARIABLES and (
                set(pivots) != set(op.control_inputs) or any(
                    copy is not source
                    for copy, source in zip(inputs, op.inputs))):
            with tf.control_dependencies(pivots):
                copies[op] = tf.get_default_graph().create_op(
                    op.type, inputs, [output.dtype for output in op.outputs],
                    name=op.name.rpartition("/")[2],
                    attrs={key: value
                           for key, value in op.node_def.attr.items()
                           if key != "_class"}).outputs
    return copies[tensor.op][tensor.value_index]


def _inputs_first(op, after):
    """The ops that `op` is computed from and `op`, each after its inputs."""
    ordered, stack = collections.OrderedDict(), [(op, False)]
    while stack:
        op, has_inputs = stack.pop()
        if op.type == "NextIteration" or any(
                source.op.type in _ENTERS for source in op.inputs
                if op.type == "Merge"):
            raise ValueError(
                "tf1accum: the initial value of a variable must not come out "
                "of a loop, such as that over micro-batches; got {}. Pass a "
                "function that makes it.".format(op.name))
        if has_inputs:
            ordered[op] = None
        elif op not in ordered:
            stack.append((op, True))
            if op.type not in _VARIABLES:
                stack.extend((source, False) for source in [
                    tensor.op for tensor in op.inputs] + _pivots(op, after))
    return ordered


def _pivots(op, after):
    # The pivot of a branch says when the branch runs, not only after what. That
    # of a loop says how often.
    return [control for control in op.control_inputs
            if control not in after and control.type == "Identity"
            and control.inputs[0].op.type == "Switch"
            and control.inputs[0].op.inputs[1].op.type != "LoopCond"]
