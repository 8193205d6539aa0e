"""What `inspection` found, and what is stripped, for people to read."""


def lines_of(found):
    """Lines about a dict of `inspection.inspect`."""
    return _lines(found, True, set())


def _lines(found, with_keys, said):
    """The same.

    Args:
      found: the dict.
      with_keys: whether to list each key of a checkpoint.
      said: set of the lines about windows so far, a tuple for each.
    """
    if found["kind"] == "error":
        return []
    if found["kind"] == "folder":
        return [line for file in found["files"]
                for line in _lines(file, False, said)]
    if found["kind"] == "event_file":
        lines = ["{}: event file, {}".format(found["path"], _many(
            len(found["graphs"]), "graph"))]
        lines += [line for graph in found["graphs"]
                  for line in _lines(graph, with_keys, said)]
        return lines + (["  ends early: " + found["ends_early"]]
                        if found["ends_early"] else [])
    lines = ["{}: {}".format(found["path"], found["kind"].replace("_", " "))]
    for window in found["windows"]:
        about = tuple(_window_lines(window))
        lines += ["  window {}: as above".format(window["name"])] if (
            about in said) else about
        said.add(about)
    if not found["windows"] and found.get("meta_graph", "") is not None:
        lines.append("  no window")
    if found["kind"] == "checkpoint":
        lines += ["  " + line for line in judged_lines(
            found["keys"], found["meta_graph"],
            ", as there is no MetaGraph beside it",
            "model's", "not the model's", lambda key: with_keys)]
        verb = "holds", "the model alone"
    else:
        verb = "a default Saver saves", "a model-only checkpoint"
    return lines + ["  {} {}, {} {}".format(
        verb[0], _saved(found["saves"]["default"]),
        verb[1], _saved(found["saves"]["model"]))]


def judged_lines(keys, meta_graph, without, of_model, of_rest, is_listed):
    """By what the "keys" of an inspection were judged, and a line for each.

    Args:
      keys: the list.
      meta_graph: path of the graph, or None.
      without: what to say where there is none.
      of_model: word for those that are the model's; they come first.
      of_rest: word for the others.
      is_listed: function of one of `keys`, whether it has a line.
    """
    lines = []
    for by, judge in (("graph", "the graph in {}".format(meta_graph)),
                      ("structure", "the structure of the keys" + (
                          ", as that graph does not tell" if meta_graph
                          else without))):
        judged = [key for key in keys if key["by"] == by]
        if judged:
            lines.append("judged by " + judge)
            lines += _key_lines(
                [key for key in judged if is_listed(key)], of_model, of_rest)
    return lines


def _key_lines(keys, of_model, of_rest):
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
