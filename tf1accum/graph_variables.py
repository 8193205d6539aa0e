"""The variables of a graph, as objects, however the graph came about."""

import tensorflow.compat.v1 as tf

from tf1accum import replicas


def listed(graph):
    """The variables that any collection of `graph` lists, by op name.

    Of one that comes from a MetaGraph, those of TensorFlow's own collections:
    it takes the entries of others for tensors.
    """
    return {
        replicas.name_of(entry): entry
        for key in graph.get_all_collection_keys()
        for entry in graph.get_collection(key)
        if replicas.is_distributed(entry)
        or hasattr(entry, "initializer") and hasattr(entry, "op")}


def find(ops):
    """The variables whose ops are `ops`, a list of one graph; adds no op.

    Raises:
      KeyError: one is no variable that `tf.Variable` made.
    """
    known = listed(ops[0].graph) if ops else {}
    known.update(remade([op for op in ops if op.name not in known]))
    return [known[op.name] for op in ops]


def remade(ops):
    """The variables of `ops` as new objects, by op name; adds no op.

    Of those that `tf.Variable` made: each has an op that assigns its initial
    value, of a name that has not changed since TensorFlow 1.15.
    """
    types, variables = {}, {}
    for op in ops:
        is_resource = op.type == "VarHandleOp"
        if is_resource not in types:
            types[is_resource] = _types(is_resource)
        kind, definition = types[is_resource]
        try:
            with op.graph.as_default():
                variables[op.name] = kind.from_proto(definition(
                    variable_name=op.outputs[0].name,
                    initializer_name=op.name + "/Assign",
                    snapshot_name=op.name + (
                        "/Read/ReadVariableOp:0" if is_resource
                        else "/read:0"),
                    is_resource=is_resource, trainable=False))
        except KeyError:
            # Made by something else.
            pass
    return variables


def _types(resource):
    # Those of a variable and of its proto, which have no public names.
    with tf.Graph().as_default():
        variable = tf.Variable(0., use_resource=resource)
        return type(variable), type(variable.to_proto())
