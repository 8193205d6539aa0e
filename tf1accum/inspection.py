"""What a file holds of a model and of its windows, as a dict.

Every dict has "path" and "kind", and what the kind has besides. A size in bytes
is null where no file says it: of strings, and of shapes that are open.

    "meta_graph", "graph_def"
      "windows"   list of
        "name"       with the scope that the graph was imported under
        "recorded"   false where the graph lists the window's state alone (by
                     `build_host` and the ports): the rest is null or empty
        "k"          integer, or the name of a tensor, or null
        "reduction"  "mean", "sum" or null
        "variables"  list of "name", "dtype", "shape" (null if unknown, in it
                     null for an open size), "bytes", and "gradient": "sparse"
                     where it is added up as rows, else "dense"
        "state"      names of the variables that are not the model's
      "saves"     "model" and "default", what a saver of the model alone and a
                  default `Saver` would save; each "keys", "bytes". A graph_def
                  has no list of what is saved: there, all variables are
      "keys"      list of "key", "dtype", "shape", "bytes", "model" (true or
                  false: whether it is the model's), "why", and "by": "graph",
                  or "structure" where that is a guess by how the keys lie
                  under each other
    "checkpoint"  the same, of what is in the file, and
      "meta_graph"  path of the MetaGraph beside it, which tells the model from
                    the rest; or null, when the structure of the keys does
    "event_file"
      "graphs"      list of dicts as of "meta_graph" and "graph_def"
      "ends_early"  null, or in words that it is cut off, and after what
    "folder"
      "files"     list of dicts of the above, and of
    "error"       a file in the folder that cannot be read
      "error"     why, in one line that names it
"""

import os

from tf1accum import checkpoint_files
from tf1accum import graph_files
from tf1accum import model_keys
from tf1accum.file_trouble import FileTrouble
from tf1accum.file_trouble import cannot_be_read


def inspect(path):
    """What is in a file, a checkpoint or a log folder: see this module.

    Raises:
      FileTrouble: it cannot be read, or is something else.
    """
    if checkpoint_files.is_checkpoint(path):
        return _inspect_checkpoint(path)
    if os.path.isdir(path):
        return _inspect_folder(path)
    if graph_files.is_event_file(path):
        return _inspect_events(path)
    checkpoint_files.check_name(path)
    return _inspect_graph(path, graph_files.read(
        path, "a MetaGraph, a GraphDef, a checkpoint or an event file"))


def describe_keys(keys, verdicts):
    """The "keys" of this module, of a dict of keys and one of verdicts."""
    return [dict(_size(key), key=name, model=verdicts[name].is_model,
                 by=verdicts[name].by, why=verdicts[name].why)
            for name, key in keys.items()]


def _inspect_checkpoint(path):
    checkpoint = checkpoint_files.read(path)
    meta_graph, model = model_keys.of_checkpoint(checkpoint)
    return dict({"path": checkpoint.prefix, "kind": "checkpoint",
                 "meta_graph": meta_graph},
                **_describe(model, checkpoint.keys))


def _inspect_events(path):
    graphs, ends_early = [], None
    try:
        for graph_file in graph_files.read_events(path):
            graphs.append(_inspect_graph(path, graph_file))
    except graph_files.EndsEarly as end:
        ends_early = str(end)
    return {"path": path, "kind": "event_file", "graphs": graphs,
            "ends_early": ends_early}


def _inspect_graph(path, graph_file):
    model = model_keys.ModelKeys(graph_file)
    return dict({"path": path, "kind": graph_file.kind},
                **_describe(model, model.default_keys()))


def _inspect_folder(path):
    if os.path.exists(os.path.join(path, "saved_model.pb")) or os.path.exists(
            os.path.join(path, "saved_model.pbtxt")):
        raise FileTrouble(
            "{} is a SavedModel, which is for serving and not read "
            "here.".format(path))
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        raise cannot_be_read(path, error)
    found = []
    for name in names:
        # A checkpoint is read with the MetaGraph beside it.
        if name.endswith(".index") or ".tfevents." in name or (
                name.endswith((".meta", ".pb", ".pbtxt")) and not (
                    name.endswith(".meta")
                    and name[:-len(".meta")] + ".index" in names)):
            found.append(_inspect_or_error(os.path.join(path, name)))
    if not found:
        raise FileTrouble(
            "{} holds no checkpoint, graph or event file.".format(path))
    return {"path": path, "kind": "folder", "files": found}


def _inspect_or_error(path):
    try:
        return inspect(path)
    except FileTrouble as trouble:
        return {"path": path, "kind": "error", "error": str(trouble)}


def _describe(model, keys):
    verdicts = model.judge(keys)
    return {
        "windows": [_window(window, model.graph) for window in model.windows],
        "saves": {
            "model": _total([key for name, key in keys.items()
                             if verdicts[name].is_model]),
            "default": _total(list(keys.values()))},
        "keys": describe_keys(keys, verdicts)}


def _window(window, graph):
    unknown = checkpoint_files.make_key(None, None)
    return {
        "name": window.name, "recorded": window.recorded, "k": window.k,
        "reduction": window.reduction, "state": window.state,
        "variables": [
            dict(_size(graph.variables.get(name, unknown)), name=name,
                 gradient="sparse" if is_sparse else "dense")
            for name, is_sparse in window.variables]}


def _size(key):
    return {"dtype": key.dtype, "shape": key.shape, "bytes": key.bytes}


def _total(keys):
    return {"keys": len(keys), "bytes": sum(key.bytes or 0 for key in keys)}
