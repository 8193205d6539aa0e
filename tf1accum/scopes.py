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
def created_variables():
    """Lists the variables made inside, and names them as at the root.

    Optimizers make plain variables (Adam's beta powers) under the name scope
    they are called in. Those keep the name that `Optimizer.minimize` gives
    them, so that checkpoints stay interchangeable.

    Yields:
      A list, filled with each variable as it is made.
    """
    created = []

    def creator(next_creator, **kwargs):
        with tf.name_scope(None):
            variable = next_creator(**kwargs)
        created.append(variable)
        return variable

    with tf.variable_creator_scope(creator):
        yield created
