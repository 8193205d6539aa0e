"""The root of the graph, whatever scopes the caller stands in."""

import contextlib
import itertools

import tensorflow.compat.v1 as tf

from tf1accum import ancestry
from tf1accum import replicas

# The scope in a window's box of what is averaged before it is built.
TOWER_MEAN = "tower_mean"


@contextlib.contextmanager
def root_scope(in_control_flow=False, device=None):
    """Builds as if the caller stood in no scope at all.

    Inside, the name scope, `variable_scope`, reuse, partitioner,
    `custom_getter`, device and control dependencies of the caller are out of
    force, so that the same call builds the same graph anywhere.

    Args:
      in_control_flow: whether to stay inside of the branch or the loop that the
        caller stands in, and then also under its control dependencies.
      device: what `tf.device` takes, for all that is built inside.
    """
    graph = tf.get_default_graph()
    with contextlib.ExitStack() as stack:
        if not in_control_flow:
            stack.enter_context(tf.control_dependencies(None))
        stack.enter_context(tf.device(None))
        # This forgets all devices, too.
        stack.enter_context(graph.colocate_with(None, ignore_existing=True))
        stack.enter_context(tf.device(device or replicas.device()))
        stack.enter_context(tf.name_scope(None))
        stack.enter_context(_root_variable_scope())
        count_slots()
        yield


@contextlib.contextmanager
def _root_variable_scope():
    # In all replicas but the first, what the first has made is used again.
    scope, root = tf.get_variable_scope(), tf.VariableScope(
        reuse=replicas.number() > 0, name="")
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
    """A name scope at the root that holds nothing else, and its ops only.

    Yields:
      The scope, ending in "/".
    """
    scope = replicas.together(lambda: _claim_box(name))
    with tf.name_scope(scope):
        yield scope


def _claim_box(name):
    with tf.init_scope(), tf.name_scope(None):
        scope = free_box(name)
        tf.get_default_graph().unique_name(scope[:-1])
    return scope


def free_box(name):
    """The scope at the root, ending in "/", that `new_box` will open next.

    It holds nothing yet but what towers have computed for it.
    """
    graph = tf.get_default_graph()
    # TensorFlow does not know the scopes of ops that were imported.
    paths = {tuple(op.name.split("/", 2)[:2]) for op in graph.get_operations()}
    taken = {path[0] for path in paths
             if not path[-1].startswith(TOWER_MEAN) or len(path) == 1}
    # Nor the names by which variables go that came under an import scope.
    taken.update(op.get_attr("shared_name").decode("utf-8").partition("/")[0]
                 for op in graph.get_operations() if op.type == "VarHandleOp")
    with tf.name_scope(None):
        for number in itertools.count():
            root = "{}_{}".format(name, number) if number else name
            if root not in taken and root == graph.unique_name(
                    root, mark_as_used=False):
                return root + "/"


@contextlib.contextmanager
def outside_of_control_flow(scope, device=None):
    """Builds in `scope` of the main graph, out of any branch or loop."""
    with tf.init_scope(), root_scope(device=device), tf.name_scope(scope):
        yield


def in_control_flow(scope):
    """Whether the caller stands in a branch or a loop. Adds an op to see.

    Args:
      scope: name scope for that op, ending in "/".
    """
    with tf.init_scope():
        outermost = tf.get_default_graph()
    if outermost is not tf.get_default_graph():
        return True
    # What is built in a branch depends on what decides whether it is run.
    with tf.device(None):
        probe = tf.no_op(name=scope + "caller/")
    return ancestry.first_sometimes_skipped([probe]) is not None


def named_group(scope, op_name, build_ops):
    """One op of that name of the list that `build_ops` builds in its scope."""
    with tf.name_scope(scope + op_name + "/") as op_scope:
        return tf.group(*build_ops(), name=op_scope)


def count_slots():
    """Has TensorFlow count the slots that exist, so that new ones are new.

    It forgets them whenever a scope around their variable is left.
    """
    names = sorted(variable.op.name for variable in tf.global_variables())
    variables = set(names)
    for name in names:
        if name.rpartition("/")[0] in variables:
            with tf.variable_scope(name, auxiliary_name_scope=False):
                pass
