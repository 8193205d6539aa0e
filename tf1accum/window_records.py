"""The windows of a graph that is read, not imported."""

import collections

import tensorflow.compat.v1 as tf

from tf1accum import graph_keys
from tf1accum import recovery

# name: with the scope that the graph was imported under. k: an integer, the
# name of a tensor, or None where the graph has no record of it, as for
# `reduction`. variables: list of (name, whether its gradients stay rows).
# state: list of the names of the variables that are not the model's.
WindowRecord = collections.namedtuple(
    "WindowRecord", "name recorded k reduction variables state")


def read(graph_file):
    """List of the `WindowRecord`s of a `graph_files.GraphFile`."""
    windows = list(_recorded(graph_file.graph_def))
    known = {name for window in windows for name in window.state}
    for key, state in sorted(_state_collections(graph_file).items()):
        if not state or not known.issuperset(state):
            name = key[len(graph_keys.PREFIX) + 1:-len(graph_keys.STATE) - 1]
            windows.append(WindowRecord(name, False, None, None, [], state))
    return windows


def _recorded(graph_def):
    """The windows that a constant records."""
    for node in graph_def.node:
        if (node.op == "Const" and node.name.endswith("/record")
                and node.attr["dtype"].type == tf.string.as_datatype_enum):
            content = recovery.parsed(node.attr["value"].tensor, node.name)
            if content is not None:
                yield _window(node.name, content)


def _window(node_name, content):
    # The scope that the graph was imported under stands before every name.
    scope = node_name[:-len(content["name"] + "/record")]
    k = content["k"]
    return WindowRecord(
        name=scope + content["name"], recorded=True,
        k=k if isinstance(k, int) else scope + k,
        reduction=content["reduction"],
        variables=[(scope + variable["name"], variable["indices"] is not None)
                   for variable in content["variables"]],
        state=[scope + name for name in content["state"]])


def _state_collections(graph_file):
    return {
        key: sorted({
            name.partition(":")[0]
            for name in graph_file.collections[key].node_list.value})
        for key in graph_file.collections or {}
        if key.startswith(graph_keys.PREFIX + "/")
        and key.endswith("/" + graph_keys.STATE)}
