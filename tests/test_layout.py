"""Who imports whom: one way, leaves first."""

import ast
import os

import tf1accum

PACKAGE = os.path.dirname(tf1accum.__file__)

# What each module may import of the package.
ALLOWED = {
    "__init__": {"accumulation", "gradients", "hooks", "host", "microbatch",
                 "optimizer", "ports", "recovery", "restoring",
                 "running_mean", "savers", "summaries", "train_ops"},
    # Leaves.
    "ancestry": set(),
    "cluster": {"replicas"},
    "gate": set(),
    "graph_keys": set(),
    "graph_variables": {"replicas"},
    "mutex": set(),
    "recorder": set(),
    "replicas": set(),
    "scopes": {"ancestry", "replicas"},
    # Build: the stages.
    "arguments": {"ancestry", "replicas"},
    "gradients": {"ancestry", "arguments", "scopes"},
    "update_ops": {"ancestry", "arguments"},
    "accumulators": {"gate", "gradients", "mutex", "replicas"},
    "window": {"accumulators", "gate", "gradients", "replicas"},
    "workers": {"ancestry", "gradients", "replicas"},
    "applying": {"ancestry", "arguments", "cluster", "gate", "gradients",
                 "recorder", "replicas", "scopes", "workers"},
    # Build: one window, and the ways to ask for one.
    "wiring": {"applying", "gate", "gradients", "mutex", "recorder",
               "recovery", "replicas", "scopes", "train_ops", "window",
               "workers"},
    "accumulation": {"arguments", "cluster", "gradients", "update_ops",
                     "wiring", "workers"},
    "optimizer": {"arguments", "cluster", "gradients", "replicas", "scopes",
                  "update_ops", "wiring", "workers"},
    "ports": {"applying", "arguments", "cluster", "gradients", "graph_keys",
              "optimizer", "recorder", "scopes", "update_ops", "window",
              "workers"},
    # Build: a window that is one run.
    "totals": {"accumulators", "gate", "gradients"},
    "batch": {"arguments"},
    "microbatch": {"accumulators", "ancestry", "arguments", "batch",
                   "gradients", "recorder", "scopes", "totals", "update_ops",
                   "workers"},
    # Build: a window that NumPy keeps.
    "feeds": {"accumulators"},
    "running_mean": {"feeds", "gradients"},
    "host": {"applying", "arguments", "feeds", "gradients", "graph_keys",
             "recorder", "running_mean", "scopes", "train_ops", "workers"},
    # Waist.
    "train_ops": {"savers"},
    "recovery": {"gradients", "graph_keys", "graph_variables", "replicas",
                 "scopes", "train_ops"},
    # Run.
    "savers": {"graph_keys", "graph_variables", "replicas"},
    "restoring": {"graph_keys", "replicas", "savers"},
    "hooks": {"graph_keys", "train_ops"},
    "summaries": {"graph_keys", "train_ops"},
    # Run: the command line, on files.
    "file_trouble": set(),
    "checkpoint_files": {"file_trouble"},
    "graph_files": {"file_trouble"},
    "variable_nodes": {"checkpoint_files", "graph_files"},
    "window_records": {"graph_keys", "recovery"},
    "key_structure": set(),
    "optimizer_edges": {"variable_nodes"},
    "model_keys": {"checkpoint_files", "file_trouble", "graph_files",
                   "key_structure", "optimizer_edges", "variable_nodes",
                   "window_records"},
    "stripping": {"checkpoint_files", "file_trouble", "model_keys"},
    "inspection": {"checkpoint_files", "file_trouble", "graph_files",
                   "model_keys"},
    "inspection_text": set(),
    "__main__": {"file_trouble", "inspection", "inspection_text", "stripping"},
}


def source(module):
    with open(os.path.join(PACKAGE, module + ".py")) as file:
        return file.read()


def imports(module):
    """(modules of the package, other modules) that `module` imports."""
    own, others = set(), set()
    for node in ast.walk(ast.parse(source(module))):
        if isinstance(node, ast.Import):
            others |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.module == "tf1accum":
                own |= {alias.name for alias in node.names}
            elif node.module.startswith("tf1accum."):
                own.add(node.module.split(".")[1])
            else:
                others.add(node.module)
    return own, others


def test_every_module_is_listed_and_lies_flat():
    found = {name[:-3] for name in os.listdir(PACKAGE)
             if name.endswith(".py")}
    assert found == set(ALLOWED)
    assert not [name for name in os.listdir(PACKAGE)
                if os.path.isdir(os.path.join(PACKAGE, name))
                and name != "__pycache__"]


def test_modules_import_what_they_may_and_nothing_else():
    assert {module: imports(module)[0] for module in ALLOWED} == ALLOWED


def test_imports_go_one_way():
    order = []
    while len(order) < len(ALLOWED):
        free = [module for module in ALLOWED if module not in order
                and ALLOWED[module] <= set(order)]
        assert free, "an import cycle among " + str(set(ALLOWED) - set(order))
        order += free


def test_only_the_public_api_of_tensorflow_is_used():
    """Row D18: nor what newer TensorFlow refuses for resource variables."""
    for module in ALLOWED:
        for name in imports(module)[1]:
            assert not name.startswith("tensorflow.python"), (module, name)
            assert name in (
                "tensorflow", "tensorflow.compat.v1", "argparse",
                "collections", "collections.abc", "contextlib", "glob",
                "google.protobuf", "hashlib", "itertools", "json", "numbers",
                "numpy", "os", "re", "shutil", "signal", "sys", "tempfile",
                "threading", "warnings"), (module, name)
        for forbidden in ("initialized_value(", "tensorflow.python"):
            assert forbidden not in source(module), module


def test_only_two_modules_know_of_sparse_gradients():
    knowing = {module for module in ALLOWED
               for node in ast.walk(ast.parse(source(module)))
               if isinstance(node, ast.Attribute)
               and node.attr == "IndexedSlices"}
    assert knowing <= {"gradients", "accumulators"}


def test_lines_are_at_most_80_columns():
    for module in ALLOWED:
        for number, line in enumerate(source(module).split("\n"), 1):
            assert len(line) <= 80, "%s.py:%d" % (module, number)


def test_every_public_name_has_a_docstring():
    for name in tf1accum.__all__:
        assert getattr(tf1accum, name).__doc__, name
