"""Which keys are the model's: by identity in a graph, else by structure."""

import collections

from tf1accum import checkpoint_files
from tf1accum import key_structure
from tf1accum import optimizer_edges
from tf1accum import variable_nodes
from tf1accum import window_records

# is_model: whether the key stays in a checkpoint of the model. why: in words.
Verdict = collections.namedtuple("Verdict", "is_model why")


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
                                  "where all stays") for name in keys}
        slots = key_structure.find_slots(keys)
        by_name = key_structure.find_by_name(keys)
        verdicts = collections.OrderedDict()
        for name in keys:
            variables = [] if self.graph is None else self.graph.of_key(name)
            if variables and self._agree(name, keys[name], variables):
                verdicts[name] = self._by_graph(
                    variables, slots.get(name), by_name.get(name))
            else:
                verdicts[name] = _by_structure(
                    by_name.get(name) or slots.get(name))
        return verdicts

    def default_keys(self):
        """Dict of the keys that a default `Saver` of the graph would save."""
        return collections.OrderedDict(
            (name, self.graph.default_key(name))
            for name in sorted(self.graph.default_keys))

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
                False, edges.state.get(name, self._recorded[name]))
        if edges.is_trained(name):
            return Verdict(True, "trained")
        if name in edges.state:
            return Verdict(False, edges.state[name])
        if by_name or (slot and name in edges.hidden):
            return Verdict(False, by_name or slot)
        return Verdict(True, "no update of a weight computes with it")


def _by_structure(why):
    return Verdict(False, why) if why else Verdict(True, "a key of its own")
