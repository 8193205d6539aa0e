"""What a graph says of its windows: written by builders, read by others.

Each window leaves a string constant, `<name>/record`, that names what it is
made of in JSON. Unlike the collections it is in a bare `GraphDef` too, and can
be read where the graph can't be imported.

    {"tf1accum": 1, "name": "accumulation", "k": 4, "reduction": "mean",
     "ops": {"accumulate": "accumulation/accumulate", ..., "step": null},
     "reads": {"average_loss": "accumulation/read/average_loss:0", ...},
     "variables": [{"name": "w", "values": "accumulation/read/w:0",
                    "indices": null}],
     "state": ["accumulation/count", ..., "w/Adam"],
     "update_ops": ["bn/AssignMovingAvg"]}

`k` is the name of a tensor where it is one, `indices` the name of one where
the gradient is sparse; `state` lists the variables that are not the model's.
In a `tf.distribute` strategy, `replicas` says how many there are.
Names are those of the graph that the window was built in: what stands before
`<name>/record` in the name of the constant itself stands before all of them.
"""

import collections
import json

import tensorflow.compat.v1 as tf

from tf1accum import gradients
from tf1accum import graph_keys
from tf1accum import graph_variables
from tf1accum import replicas
from tf1accum import scopes
from tf1accum import train_ops

_FORMAT = 1
_OPS = ("accumulate", "apply", "reset", "apply_and_reset", "initializer",
        "step")
_READS = ("average_loss", "count", "weight", "skipped")
_VARIABLES = ("VarHandleOp", "VariableV2")


def remember(ops, state):
    """Leaves in the graph what `ops` is, for savers and other programs.

    Args:
      ops: an `AccumulationOps`.
      state: list of the ops of the variables that are not the model's:
        accumulators, window scalars and the optimizer's state.
    """
    names = {role: entry.name for role, entry in _fetchable(ops).items()}
    content = {
        "tf1accum": _FORMAT,
        "name": ops.name,
        "k": ops.k.name if tf.is_tensor(ops.k) else int(ops.k),
        "reduction": ops.reduction,
        "ops": {role: names.get(role) for role in _OPS},
        "reads": {role: names.get(role) for role in _READS},
        "variables": [dict(name=variable.op.name, **{
            part: None if tensor is None else tensor.name
            for part, tensor in gradients.parts(read).items()})
                      for variable, read in zip(
                          ops.variables, ops.accumulators)],
        "state": [op.name for op in state],
        "update_ops": [op.name for op in ops.update_ops
                       if op.graph is ops.graph],
    }
    if tf.distribute.has_strategy():
        content["replicas"] = replicas.in_sync()
    with scopes.outside_of_control_flow(ops.name + "/"):
        # A name that ends in "/" is taken as it is.
        record = tf.constant(
            json.dumps(content), name=ops.name + "/record/")
    _list(ops, state, record.op)


def _fetchable(ops):
    # A part that is inside of a branch or a loop is not.
    entries = {role: getattr(ops, role) for role in _OPS + _READS}
    return {role: entry for role, entry in entries.items()
            if entry is not None and entry.graph is ops.graph
            and ops.graph.is_fetchable(entry)}


def _list(ops, state, record):
    """Lists in the graph's collections what `ops` is made of."""
    entries = {role: [entry] for role, entry in _fetchable(ops).items()}
    entries["accumulators"] = [
        part for read in ops.accumulators
        for part in gradients.parts(read).values() if part is not None]
    entries["variables"] = [
        replicas.parts(variable)[0].op for variable in ops.variables]
    entries[graph_keys.STATE] = state
    entries[graph_keys.RECORD] = [record]
    for role in sorted(entries):
        graph_keys.remember(ops.graph, ops.name, role, entries[role])


def recover(graph=None, name=None):
    """The `AccumulationOps` of a window that is in the graph already.

    For a program that did not build the graph: one that `import_meta_graph` or
    `import_graph_def` brought, under an import scope too. What it returns is
    what the builder returned: run `accumulate`, `apply`, `reset`, read the
    loss, save.

    The one thing to know: under an import scope, the keys of a checkpoint have
    the scope before them too. The files that the graph came with are restored
    by the saver that `import_meta_graph` returned.

    A `GraphDef` does not say which of its variables are trained, local, or
    parts of one that is saved whole. They are all listed as global variables
    then, each by itself, so that savers and initialisers know them.

    Args:
      graph: a `tf.Graph`, or None for the default graph.
      name: `ops.name` of the window, such as "accumulation", import scope
        included; or None for the only one.

    Returns:
      An `AccumulationOps`. What can't be fetched, inside of a branch or a
      loop, is None.

    Raises:
      TypeError: `graph` or `name` is something else.
      ValueError: there is no window of that name, or more than one to choose
        from (says which are there), or a part of it is not in the graph, or
        another window of the graph shares its accumulators.
      RuntimeError: a `GraphDef` brought it, and the graph is finalized.
    """
    graph = tf.get_default_graph() if graph is None else graph
    if not isinstance(graph, tf.Graph) or not isinstance(
            name, (str, type(None))):
        raise TypeError(
            "tf1accum.recover: graph must be a tf.Graph and name a string, or "
            "None; got {!r} and {!r}.".format(graph, name))
    records = _records(graph)
    if name is None and len(records) == 1:
        name = list(records)[0]
    if name not in records:
        raise ValueError(
            "tf1accum.recover: name must be that of a window in the graph; got "
            "{!r}. In the graph: {}.".format(
                name, ", ".join(map(repr, sorted(records))) or "none. (Those "
                "of build_host and of ports.AccumulatingOptimizer, and what "
                "was pruned, can't be recovered)"))
    if "replicas" in records[name].content:
        raise ValueError(
            "tf1accum.recover: a window must be of one device; {!r} is that of "
            "{} replicas of a tf.distribute strategy, which TensorFlow does "
            "not bring back. Build the graph anew in one.".format(
                name, records[name].content["replicas"]))
    try:
        _list_all(graph, records)
        ops = _rebuilt(graph, name, records[name].content)
    except KeyError as error:
        raise ValueError(
            "tf1accum.recover: the graph must hold all of the window {!r}; "
            "missing: {}. Export the whole graph.".format(
                name, error.args[0]))
    _check_not_shared(ops, _prefixed(name, records[name].content))
    return ops


_Record = collections.namedtuple("_Record", "op content")


def _records(graph):
    """The `_Record`s in `graph`, by the names of the windows."""
    records = {}
    for op in graph.get_operations():
        if op.type == "Const" and op.name.endswith("/record"):
            content = parsed(op.get_attr("value"), op.name)
            if content is not None:
                records[op.name.rpartition("/")[0]] = _Record(op, content)
    return records


def parsed(tensor_proto, op_name):
    """What a record says, or None if it is a constant of somebody else's.

    Args:
      tensor_proto: the value of a constant.
      op_name: its name, a string.
    """
    value = tf.make_ndarray(tensor_proto)
    try:
        content = json.loads(value.item().decode("utf-8"))
        ours = ("/" + op_name).endswith(
            "/{}/record".format(content["name"]))
        return content if ours and content["tf1accum"] == _FORMAT else None
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _prefix(name, content):
    """What stands before all names of `content` in this graph."""
    return name[:len(name) - len(content["name"])]


def _prefixed(name, content):
    """The names of the variables that are not the model's, in this graph."""
    return [_prefix(name, content) + each for each in content["state"]]


def _rebuilt(graph, name, content):
    prefix = _prefix(name, content)

    def tensor(tensor_name):
        return tensor_name and graph.get_tensor_by_name(prefix + tensor_name)

    def op(op_name):
        return op_name and graph.get_operation_by_name(prefix + op_name)

    k = content["k"]
    return train_ops.AccumulationOps(
        name=name, graph=graph, k=k if isinstance(k, int) else tensor(k),
        reduction=content["reduction"],
        accumulators=[gradients.from_parts(**{
            part: tensor(read) for part, read in entry.items()
            if part != "name"}) for entry in content["variables"]],
        variables=graph_variables.find([
            op(entry["name"]) for entry in content["variables"]]),
        update_ops=[op(entry) for entry in content["update_ops"]],
        **{role: op(entry) for role, entry in content["ops"].items()},
        **{role: tensor(entry) for role, entry in content["reads"].items()})


def _list_all(graph, records):
    """Lists what a `GraphDef` brought: it has no collections."""
    listed = graph_keys.recall(graph, graph_keys.RECORD)
    new = {name: record for name, record in records.items()
           if record.op not in listed}
    if new and graph.finalized:
        raise RuntimeError(
            "tf1accum.recover: lists what a GraphDef brought in the graph's "
            "collections; the graph is finalized. Recover {!r} once before "
            "that.".format(sorted(new)[0]))
    _list_variables(graph, {
        _prefix(name, record.content) for name, record in new.items()})
    for name, record in sorted(new.items()):
        _list(_rebuilt(graph, name, record.content), [
            graph.get_operation_by_name(each)
            for each in _prefixed(name, record.content)], record.op)


def _list_variables(graph, prefixes):
    """Lists the variables below `prefixes` that no collection lists."""
    listed = graph_variables.listed(graph)
    unlisted = [op for op in graph.get_operations()
                if op.type in _VARIABLES and op.name not in listed
                and any(op.name.startswith(prefix) for prefix in prefixes)]
    for variable in graph_variables.remade(unlisted).values():
        graph.add_to_collection(tf.GraphKeys.GLOBAL_VARIABLES, variable)


def _check_not_shared(ops, state):
    """Raises where another import has the same accumulators, alone.

    TensorFlow finds a resource variable by a name that an import scope does
    not change. All of two imports is shared then, unless the model's variables
    are reference variables.
    """
    handles = {op.name: op.get_attr("shared_name")
               for op in ops.graph.get_operations()
               if op.type == "VarHandleOp"}
    number = collections.Counter(handles.values())
    shared = [name for name in state if number[handles.get(name)] > 1]
    own = [variable.op.name for variable in ops.variables
           if number[handles.get(variable.op.name)] < 2]
    if shared and own:
        raise ValueError(
            "tf1accum.recover: each window of a graph must have accumulators "
            "of its own; those of {!r} are also those of another import or "
            "build, while {} is not ({} goes by the name {!r} twice). Import "
            "it into a graph of its own.".format(
                ops.name, own[0], shared[0],
                handles[shared[0]].decode("utf-8")))
