"""What `inspection` found, and what is stripped, for people to read."""


def lines_of(found, with_keys=True):
    """Lines about a dict of `inspection.inspect`.

    Args:
      found: the dict.
      with_keys: whether to list each key of a checkpoint.
    """
    kind = found["kind"].replace("_", " ")
    if found["kind"] == "folder":
        return [line for file in found["files"] if "error" not in file
                for line in lines_of(file, with_keys=False)]
    if found["kind"] == "event_file":
        lines = ["{}: {}, {}".format(found["path"], kind, _many(
            len(found["graphs"]), "graph"))]
        return lines + [line for graph in found["graphs"]
                        for line in lines_of(graph)]
    lines = ["{}: {}".format(found["path"], kind)]
    for window in found["windows"]:
        lines += _window_lines(window)
    if not found["windows"] and found.get("meta_graph", "") is not None:
        lines.append("  no window")
    if found["kind"] == "checkpoint":
        lines.append("  what is the model's: by {}".format(
            "the graph in " + found["meta_graph"] if found["meta_graph"]
            else "the structure of the keys (no MetaGraph beside it)"))
        if with_keys:
            lines += key_lines(found["keys"], "model's", "not the model's")
        verb = "holds", "the model alone"
    else:
        verb = "a default Saver saves", "a model-only checkpoint"
    return lines + ["  {} {}, {} {}".format(
        verb[0], _saved(found["saves"]["default"]),
        verb[1], _saved(found["saves"]["model"]))]


def key_lines(keys, of_model, of_rest):
    """A line for each of the "keys" of an inspection, the model's first."""
    rows = [(of_model if key["model"] else of_rest, key["key"], key["dtype"],
             _shape(key["shape"]), _bytes(key["bytes"]), key["why"])
            for key in sorted(keys, key=lambda key: not key["model"])]
    return _table(rows)


def saved_line(keys):
    """How much `keys` are, in words."""
    return _saved({"keys": len(keys),
                   "bytes": sum(key["bytes"] or 0 for key in keys)})


def _window_lines(window):
    if not window["recorded"]:
        return ["  window {}: not recorded, its state is {}".format(
            window["name"], _many(len(window["state"]), "variable"))]
    return ["  window {}: k = {}, {}, {}".format(
        window["name"], window["k"], window["reduction"],
        _many(len(window["variables"]), "variable"))] + _table([
            (variable["name"], variable["dtype"], _shape(variable["shape"]),
             _bytes(variable["bytes"]), variable["gradient"])
            for variable in window["variables"]])


def _table(rows):
    widths = [max(len(row[column]) for row in rows)
              for column in range(len(rows[0]))] if rows else []
    return ["    " + "  ".join(cell.ljust(width) for cell, width in zip(
        row, widths)).rstrip() for row in rows]


def _shape(shape):
    if shape is None:
        return "[...]"
    return "[{}]".format(", ".join(
        "?" if size is None else str(size) for size in shape))


def _bytes(size):
    return "? B" if size is None else "{:,} B".format(size)


def _saved(total):
    return "{} of {:,} B".format(_many(total["keys"], "key"), total["bytes"])


def _many(number, noun):
    return "{} {}{}".format(number, noun, "" if number == 1 else "s")
