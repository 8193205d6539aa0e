"""Which keys are the model's: by identity in a graph, else by structure."""

import collections

from tf1accum import checkpoint_files
from tf1accum import graph_files
from tf1accum import key_structure
from tf1accum import optimizer_edges
from tf1accum import variable_nodes
from tf1accum import window_records
from tf1accum.file_trouble import FileTrouble

BY_GRAPH = "graph"
BY_STRUCTURE = "structure"

# is_model: whether the key stays in a checkpoint of the model. why: in words.
# by: BY_GRAPH, or BY_STRUCTURE for a guess.
Verdict = collections.namedtuple("Verdict", "is_model why by")


def of_checkpoint(checkpoint, meta_graph=None):
    """How the keys of a checkpoint are told: by which graph, if by one.

    Args:
      checkpoint: the `checkpoint_files.Checkpoint`.
      meta_graph: path of the graph that it was saved from, or None for the
        MetaGraph beside it, if there is one.

    Returns:
      (path of the graph or None, the `ModelKeys`).

    Raises:
      FileTrouble: the graph cannot be read, or has none of the keys.
    """
    beside = checkpoint_files.meta_graph_beside(checkpoint.prefix)
    path = beside if meta_graph is None else _graph_path(meta_graph)
    if path is None:
        return None, ModelKeys()
    cure = "Name the graph that {} was saved from.".format(checkpoint.prefix)
    if meta_graph is None:
        cure = ("Give strip the right one by --meta-graph FILE, or move {} "
                "away: then the structure of the keys decides.".format(path))
    try:
        model = ModelKeys(graph_files.read(path))
    except FileTrouble as trouble:
        raise trouble if meta_graph else FileTrouble(
            "{} {}".format(trouble, cure))
    if not model.knows_any(checkpoint.keys):
        raise FileTrouble("none of the keys of {} is as in the graph of {}. "
                          "{}".format(checkpoint.prefix, path, cure))
    return path, model


def _graph_path(path):
    """The file of a graph at `path`, which may be a checkpoint's prefix."""
    if checkpoint_files.is_checkpoint(path):
        prefix = checkpoint_files.prefix_of(path)
        beside = checkpoint_files.meta_graph_beside(prefix)
        if beside is None:
            raise FileTrouble("{} is a checkpoint, and there is no {}.meta. "
                              "Name a MetaGraph or a GraphDef.".format(
                                  path, prefix))
        return beside
    if graph_files.is_event_file(path):
        raise FileTrouble("{} is an event file. Name a MetaGraph or a "
                          "GraphDef.".format(path))
    return path


class ModelKeys:
    """Tells the keys of the model from the rest.

    Attributes:
      windows: list of `window_records.WindowRecord`.
      graph: the `variable_nodes.VariableNodes`, None without a graph.
    """

    def __init__(self, graph_file=None):
        """Reads a `graph_files.GraphFile`, or None to go by structure."""
        self.windows = []
        self.graph = None
        if graph_file is not None:
            self.windows = window_records.read(graph_file)
            self.graph = variable_nodes.VariableNodes(graph_file)
            self._edges = optimizer_edges.OptimizerEdges(self.graph)
        self._recorded = {name: "of the window " + window.name
                          for window in self.windows for name in window.state}

    def judge(self, keys):
        """Dict of a `Verdict` for each of the dict `keys`.

        Args:
          keys: dict of `checkpoint_files.Key` by name.
        """
        if checkpoint_files.OBJECT_GRAPH in keys:
            return {name: Verdict(True, "in a file of tf.train.Checkpoint, "
                                  "where all stays", BY_STRUCTURE)
                    for name in keys}
        slots = key_structure.find_slots(keys)
        by_name = key_structure.find_by_name(keys)
        verdicts = collections.OrderedDict()
        for name in keys:
            variables = self._variables_of(name, keys[name])
            if variables:
                verdicts[name] = self._by_graph(
                    variables, slots.get(name), by_name.get(name))
            else:
                verdicts[name] = _by_structure(
                    by_name.get(name) or slots.get(name))
        return verdicts

    def knows_any(self, keys):
        """Whether one of `keys`, if there are any, is in the graph."""
        return (not keys or checkpoint_files.OBJECT_GRAPH in keys or any(
            self._variables_of(name, key) for name, key in keys.items()))

    def default_keys(self):
        """Dict of the keys that a default `Saver` of the graph would save."""
        return collections.OrderedDict(
            (name, self.graph.default_key(name))
            for name in sorted(self.graph.default_keys))

    def _variables_of(self, name, key):
        """Names of the variables that a key is of, where its shape agrees."""
        variables = [] if self.graph is None else self.graph.of_key(name)
        return variables if variables and self._agree(
            name, key, variables) else []

    def _agree(self, name, key, variables):
        """Whether a key is of the shape that the graph has for it."""
        if name in self.graph.default_keys:
            expected = self.graph.default_key(name).shape
        else:
            expected = self.graph.variables[variables[0]].shape
        return (expected is None or key.shape is None or len(variables) > 1
                or len(expected) == len(key.shape) and all(
                    None in pair or pair[0] == pair[1]
                    for pair in zip(expected, key.shape)))

    def _by_graph(self, variables, slot, by_name):
        """All variables that are saved as one key must go for it to go."""
        verdicts = [self._of_variable(variable, slot, by_name)
                    for variable in variables]
        for verdict in verdicts:
            if verdict.is_model:
                return verdict
        return verdicts[0]

    def _of_variable(self, name, slot, by_name):
        edges = self._edges
        if name in self._recorded:
            # The window's list holds the optimizer's state too.
            return Verdict(
                False, edges.state.get(name, self._recorded[name]), BY_GRAPH)
        if edges.is_trained(name):
            return Verdict(True, "trained", BY_GRAPH)
        if name in edges.state:
            return Verdict(False, edges.state[name], BY_GRAPH)
        if by_name or (slot and name in edges.hidden):
            return Verdict(False, by_name or slot, BY_STRUCTURE)
        return Verdict(True, "not a slot nor an accumulator of any update",
                       BY_GRAPH)


def _by_structure(why):
    return Verdict(not why, why or "a key of its own", BY_STRUCTURE)
