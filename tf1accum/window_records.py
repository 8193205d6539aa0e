"""The windows of a graph, by what the builders left in it."""

import collections
import json

from tf1accum import graph_keys
from tf1accum import graph_variables

# name: with the scope that the graph was imported under. k: an integer, the
# name of a tensor, or None where the graph has no record of it, as for
# `reduction`. variables: list of (name, whether its gradients stay rows).
# state: list of the names of the variables that are not the model's.
WindowRecord = collections.namedtuple(
    "WindowRecord", "name recorded k reduction variables state")


def read(graph_file):
    """List of the `WindowRecord`s of a `graph_files.GraphFile`."""
    windows = []
    for node in graph_file.graph_def.node:
        if node.op == "Const" and node.name.rpartition("/")[2] == "record":
            for text in graph_variables.constant_strings(node)[:1]:
                window = _parse(node.name, text)
                if window is not None:
                    windows.append(window)
    known = {name for window in windows for name in window.state}
    for key, state in sorted(_state_collections(graph_file).items()):
        if not state or not known.issuperset(state):
            name = key[len(graph_keys.PREFIX) + 1:-len(graph_keys.STATE) - 1]
            windows.append(WindowRecord(name, False, None, None, [], state))
    return windows


def _parse(node_name, text):
    """The record in the op `node_name`, or None if it is something else's."""
    try:
        record = json.loads(text)
        if not isinstance(record["tf1accum"], int) or not node_name.endswith(
                record["name"] + "/record"):
            return None
        scope = node_name[:-len(record["name"] + "/record")]
        k = record["k"]
        return WindowRecord(
            scope + record["name"], True,
            k if isinstance(k, int) else scope + k, record["reduction"],
            [(scope + variable["name"], variable["indices"] is not None)
             for variable in record["variables"]],
            [scope + name for name in record["state"]])
    except (KeyError, TypeError, ValueError):
        return None


def _state_collections(graph_file):
    return {
        key: [name.partition(":")[0]
              for name in graph_file.collections[key].node_list.value]
        for key in graph_file.collections or {}
        if key.startswith(graph_keys.PREFIX + "/")
        and key.endswith("/" + graph_keys.STATE)}
