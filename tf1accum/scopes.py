"""The root of the graph, whatever scopes the caller stands in."""

import contextlib

import tensorflow.compat.v1 as tf

@contextlib.contextmanager
def root_scope():
    """Builds as if the caller stood in no scope at all.

    Inside, the name scope, `variable_scope`, reuse, partitioner,
    `custom_getter`, device and control dependencies of the caller are out of
    force, so that the same call builds the same graph anywhere.
    """
    with tf.control_dependencies(None), tf.device(None), \
            tf.get_default_graph().colocate_with(None, ignore_existing=True), \
            tf.name_scope(None), _root_variable_scope():
        _count_slots()
        yield


@contextlib.contextmanager
def _root_variable_scope():
    scope, root = tf.get_variable_scope(), tf.VariableScope(
        reuse=False, name="")
    if all(getattr(scope, attribute) == getattr(root, attribute)
           for attribute in ("name", "reuse", "initializer", "regularizer",
                             "caching_device", "partitioner", "custom_getter",
                             "dtype", "constraint")):
        # Not entered: TensorFlow forgets names counted in a scope object, and
        # the script's next optimizer would ask for a slot name that is taken.
        yield
    else:
        with tf.variable_scope(root, auxiliary_name_scope=False):
            yield


@contextlib.contextmanager
def new_box(name):
    """A name scope at the root that holds nothing yet, and its ops only.

    Yields:
      The scope, ending in "/".
    """
    graph = tf.get_default_graph()
    # TensorFlow does not know the scopes of ops that were imported.
    taken = {op.name.partition("/")[0] for op in graph.get_operations()}
    root = graph.unique_name(name)
    while root in taken:
        root = graph.unique_name(name)
    with tf.name_scope(root + "/") as scope:
        yield scope


def named_group(scope, op_name, build_ops):
    """One op of that name of the list that `build_ops` builds in its scope."""
    with tf.name_scope(scope + op_name + "/") as op_scope:
        return tf.group(*build_ops(), name=op_scope)


def _count_slots():
    """Has TensorFlow count the slots that exist, so that new ones are new.

    It forgets them whenever a scope around their variable is left.
    """
    names = sorted(variable.op.name for variable in tf.global_variables())
    variables = set(names)
    for name in names:
        if name.rpartition("/")[0] in variables:
            with tf.variable_scope(name, auxiliary_name_scope=False):
                pass


@contextlib.contextmanager
def created_variables(after=()):
    """Lists the variables made inside, and names them as at the root.

    Optimizers make plain variables (Adam's beta powers) under the name scope
    they are called in, with initial values made under its control
    dependencies. Those keep the name that `Optimizer.minimize` gives them, so
    that checkpoints stay interchangeable, and can be initialised by themselves.

    Yields:
      A list, filled with each variable as it is made.
    """
    created = []
    graph = tf.get_default_graph()
    scope = graph.get_name_scope() or ""

    def creator(next_creator, **kwargs):
        if isinstance(kwargs.get("initial_value"), tf.Tensor):
            with tf.control_dependencies(None):
                kwargs["initial_value"] = _copy_unordered(
                    kwargs["initial_value"], after, {})
        inner = graph.get_name_scope() or ""
        if inner.startswith(scope):
            inner = inner[len(scope):].strip("/")
        with tf.name_scope(inner + "/" if inner else None):
            variable = next_creator(**kwargs)
        created.append(variable)
        return variable

    with tf.variable_creator_scope(creator):
        yield created


def _copy_unordered(tensor, after, copies):
    """`tensor` as if it were not ordered after any op: a copy if it is."""
    return _copy_op(tensor.op, after, copies).outputs[tensor.value_index]


def _copy_op(op, after, copies):
    if op in copies or op.type in ("VariableV2", "VarHandleOp"):
        return copies.get(op, op)
    inputs = [_copy_unordered(source, after, copies) for source in op.inputs]
    # The pivot of a branch says when the branch runs, not only after what.
    pivots = [_copy_op(control, after, copies) for control in op.control_inputs
              if control not in after and _is_pivot(control)]
    if set(pivots) != set(op.control_inputs) or any(
            copy is not source for copy, source in zip(inputs, op.inputs)):
        with tf.control_dependencies(pivots):
            copies[op] = tf.get_default_graph().create_op(
                op.type, inputs, [output.dtype for output in op.outputs],
                name=op.name.rpartition("/")[2],
                attrs={key: value for key, value in op.node_def.attr.items()
                       if key != "_class"})
    return copies.setdefault(op, op)


def _is_pivot(op):
    return op.type == "Identity" and op.inputs[0].op.type == "Switch"
