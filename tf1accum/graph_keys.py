"""The collections in which a graph remembers what was added to it.

They hold ops and tensors only: those come back from a MetaGraph as what they
were, a variable would come back as a bare handle. Each is called
`tf1accum/<name>/<role>`.
"""

import tensorflow.compat.v1 as tf

PREFIX = "tf1accum"
# The ops of the variables that are not the model's.
STATE = "state"
# The constant that says what the window is made of.
RECORD = "record"
# The merged summaries of the window.
SUMMARIES = "summaries"


def remember(graph, name, role, entries):
    """Adds `entries` to the collection of `name` that holds `role`."""
    for entry in entries:
        graph.add_to_collection("/".join([PREFIX, name, role]), entry)


def recall(graph, role):
    """The entries of `role`, of every window in `graph` or imported into it."""
    return [entry for key in graph.get_all_collection_keys()
            if isinstance(key, str) and key.startswith(PREFIX + "/")
            and key.endswith("/" + role)
            for entry in graph.get_collection(key)]


def state_names(graph):
    """The names of all variables in `graph` that are not the model's, a set."""
    return {op.name for op in recall(graph, STATE)}


def recall_of(graph, name, role):
    """The entries of `role` that are in the scope of that name alone."""
    return [entry for entry in recall(graph, role)
            if entry.name.startswith(name + "/")]
