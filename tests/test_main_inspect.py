"""`python -m tf1accum inspect`: what it says of graphs and checkpoints."""

import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import checkpoints
import models
import tf1accum
from checkpoints import zeros


@pytest.fixture
def inspect(capsys):
    """A function that inspects a path: what `--json` says of it."""

    def run(path):
        assert checkpoints.run("inspect", path, "--json") == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        return json.loads(printed.out)

    return run


@pytest.fixture
def text(capsys):
    """A function that inspects a path: the lines it says of it."""

    def run(path, status=0):
        assert checkpoints.run("inspect", path) == status
        return capsys.readouterr().out.splitlines()

    return run


class Lookups:
    """A window on a table, sparse, and on two parts of a weight."""

    def __init__(self, **kwargs):
        self.table = tf.get_variable("table", [5, 2])
        self.weight = tf.get_variable(
            "weight", [3, 4], partitioner=tf.fixed_size_partitioner(3))
        self.loss = tf.reduce_sum(tf.nn.embedding_lookup(
            self.table, [1, 3])) + tf.reduce_sum(
                tf.square(tf.convert_to_tensor(self.weight)))
        tf.get_variable("norm/mean", [4], tf.float16, trainable=False)
        self.ops = tf1accum.build(self.loss, **dict(
            dict(optimizer=tf.train.AdamOptimizer(), k=4), **kwargs))


VARIABLES = [
    {"name": "table", "dtype": "float32", "shape": [5, 2], "bytes": 40,
     "gradient": "sparse"}] + [
         {"name": "weight/part_%d" % part, "dtype": "float32", "shape": [1, 4],
          "bytes": 16, "gradient": "dense"} for part in range(3)]
# table, weight, and a mean in half precision.
MODEL = {"keys": 3, "bytes": 40 + 48 + 8}
# Slots; beta powers; accumulators, of the table [0, 2] values, [0] indices and
# how many there are; count, loss.
REST = 2 * (40 + 48) + 2 * 4 + (48 + 8) + 8 + 4


def writers(tmp_path):
    """Writes the default graph in all forms of one graph, and their kinds."""
    graph = tf.get_default_graph()
    for name, as_text in ("graph.pb", False), ("graph.pbtxt", True):
        tf.io.write_graph(graph, str(tmp_path), name, as_text=as_text)
    tf.train.export_meta_graph(str(tmp_path / "any.name"))
    tf.train.export_meta_graph(str(tmp_path / "text.meta"), as_text=True)
    return [("graph.pb", "graph_def"), ("graph.pbtxt", "graph_def"),
            ("any.name", "meta_graph"), ("text.meta", "meta_graph")]


def test_every_form_of_a_graph_says_the_same_of_its_windows(
        behaviour, inspect, tmp_path):
    lookups = Lookups(reduction="sum")
    for name, kind in writers(tmp_path):
        found = inspect(tmp_path / name)
        assert found["path"] == str(tmp_path / name)
        assert found["kind"] == kind
        window, = found["windows"]
        state = window.pop("state")
        assert window == {"name": "accumulation", "recorded": True, "k": 4,
                          "reduction": "sum", "variables": VARIABLES}
        assert set(state) == {
            variable.op.name for variable in tf.global_variables()
            if variable not in tf1accum.model_variables()}
        if kind == "meta_graph":
            assert found["saves"]["model"] == MODEL
            assert found["saves"]["default"]["bytes"] >= (
                MODEL["bytes"] + 2 * (40 + 48) + 48)
    assert lookups.ops.k == 4


def test_a_window_for_people(text, tmp_path):
    Lookups()
    writers(tmp_path)
    lines = text(tmp_path / "any.name")
    assert lines[:6] == [
        "{}: meta graph".format(tmp_path / "any.name"),
        "  window accumulation: k = 4, mean, 4 variables",
        "    table          float32  [5, 2]  40 B  sparse",
        "    weight/part_0  float32  [1, 4]  16 B  dense",
        "    weight/part_1  float32  [1, 4]  16 B  dense",
        "    weight/part_2  float32  [1, 4]  16 B  dense"]
    assert len(lines) == 7
    assert lines[6].endswith(" a model-only checkpoint 3 keys of 96 B")


def test_several_windows_under_an_import_scope(inspect, tmp_path):
    size = tf.get_variable("size", [], tf.int32, trainable=False,
                           initializer=tf.ones_initializer())
    for scope in "one", "two":
        model = models.Regression(scope)
        checkpoints.build_adam(model, k=size, name="window_of_" + scope)
    exported = tf.train.export_meta_graph()
    with tf.Graph().as_default():
        tf.train.import_meta_graph(exported, import_scope="outer")
        tf.train.export_meta_graph(str(tmp_path / "graph.meta"))
    found = inspect(tmp_path / "graph.meta")
    assert [window["name"] for window in found["windows"]] == [
        "outer/window_of_one", "outer/window_of_two"]
    for window, scope in zip(found["windows"], ("one", "two")):
        assert [variable["name"] for variable in window["variables"]] == [
            "outer/{}/w".format(scope), "outer/{}/b".format(scope)]
        assert window["k"].startswith("outer/")
        assert "outer/{}/w/Adam".format(scope) in window["state"]
        assert [variable["shape"] for variable in window["variables"]] == [
            [3, 2], [2]]


def test_what_is_not_recorded_is_listed_by_its_state(inspect, text, tmp_path):
    model = models.Regression()
    tf1accum.build_host(model.loss, model.variables, name="host",
                        optimizer=tf.train.MomentumOptimizer(0.1, 0.9))
    tf.train.export_meta_graph(str(tmp_path / "graph.meta"))
    window, = inspect(tmp_path / "graph.meta")["windows"]
    assert window.pop("state") == ["model/b/Momentum", "model/w/Momentum"]
    assert window == {"name": "host", "recorded": False, "k": None,
                      "reduction": None, "variables": []}
    assert ("  window host: not recorded, its state is 2 variables"
            in text(tmp_path / "graph.meta"))


def test_a_graph_without_windows_is_fine(inspect, text, tmp_path):
    model = models.Regression()
    tf.train.AdamOptimizer().minimize(model.loss)
    tf.train.export_meta_graph(str(tmp_path / "graph.meta"))
    assert inspect(tmp_path / "graph.meta")["windows"] == []
    assert text(tmp_path / "graph.meta") == [
        "{}: meta graph".format(tmp_path / "graph.meta"), "  no window",
        "  a default Saver saves 8 keys of 104 B, a model-only checkpoint "
        "2 keys of 32 B"]


@pytest.mark.parametrize("as_text", [False, True])
def test_a_graph_with_ops_that_are_not_known_is_read(
        as_text, inspect, tmp_path):
    Lookups()
    graph_def = tf.get_default_graph().as_graph_def()
    graph_def.node.add(name="x", op="NoOpOfThisName", input=["gone:7", "^y"])
    graph_def.node.add(name="v", op="VarHandleOp").attr["dtype"].type = 9999
    graph_def.node.add(name="u", op="VariableV2", input=["x"])
    for name in "record", "x/record":
        node = graph_def.node.add(name=name, op="Const")
        node.attr["dtype"].type = tf.string.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto("{}"))
    tf.io.write_graph(graph_def, str(tmp_path), "graph", as_text=as_text)
    found = inspect(tmp_path / "graph")
    assert [window["name"] for window in found["windows"]] == ["accumulation"]
    assert {"key": "v", "dtype": "unknown", "shape": None, "bytes": None,
            "model": True, "by": "graph",
            "why": "not a slot nor an accumulator of any update"
            } in found["keys"]


def test_an_event_file_says_what_each_of_its_graphs_holds(
        inspect, text, tmp_path):
    Lookups()
    graph = tf.get_default_graph()
    with tf.summary.FileWriter(str(tmp_path / "log"), graph) as writer:
        writer.add_meta_graph(tf.train.export_meta_graph())
        for step in range(3):
            writer.add_summary(tf.Summary(), step)
        # A restart writes it again.
        writer.add_graph(graph)
    path, = (tmp_path / "log").iterdir()
    found = inspect(path)
    assert found["kind"] == "event_file"
    assert sorted(graph["kind"] for graph in found["graphs"]) == [
        "graph_def", "meta_graph"]
    for graph in found["graphs"]:
        assert graph["windows"][0]["variables"] == VARIABLES
    assert text(path)[0] == "{}: event file, 2 graphs".format(path)
    assert inspect(tmp_path / "log")["files"] == [found]


def test_an_event_file_that_is_being_written_shows_what_it_has(
        inspect, text, tmp_path):
    Lookups()
    with tf.summary.FileWriter(str(tmp_path),
                               tf.get_default_graph()) as writer:
        writer.add_summary(tf.Summary(), 1)
    path, = tmp_path.iterdir()
    whole = inspect(path)
    path.write_bytes(path.read_bytes()[:-3])
    found = inspect(path)
    assert whole["ends_early"] is None
    assert found["ends_early"] == (
        "after 3 events it is cut off, damaged, or still being written")
    assert found["graphs"] == whole["graphs"]
    assert len(found["graphs"]) == 2
    assert "  ends early: {}".format(found["ends_early"]) in text(path)
    assert inspect(tmp_path)["files"] == [found]


def test_a_window_that_several_files_have_is_said_once(text, tmp_path):
    Lookups()
    for name in "model-1", "model-2":
        checkpoints.save(tmp_path / name)
    with tf.summary.FileWriter(str(tmp_path), tf.get_default_graph()):
        pass
    lines = text(tmp_path)
    assert len([line for line in lines if "k = 4" in line]) == 1
    assert len([line for line in lines if "weight/part_1" in line]) == 1
    assert lines.count("  window accumulation: as above") == 3
    path, = tmp_path.glob("*.tfevents.*")
    assert len([line for line in text(path) if "k = 4" in line]) == 1


def test_an_event_file_of_summaries_alone_is_fine(text, tmp_path):
    with tf.summary.FileWriter(str(tmp_path)) as writer:
        writer.add_summary(tf.Summary(), 1)
    path, = tmp_path.iterdir()
    assert text(path) == ["{}: event file, 0 graphs".format(path)]


@pytest.mark.parametrize("end", ["", ".index", ".data-00000-of-00001"])
def test_a_checkpoint_says_which_keys_are_the_models(end, inspect, tmp_path):
    Lookups()
    path = checkpoints.save(tmp_path / "model")
    found = inspect(path + end)
    assert (found["path"], found["kind"]) == (path, "checkpoint")
    assert found["meta_graph"] == path + ".meta"
    assert found["windows"][0]["variables"] == VARIABLES
    assert [each["key"] for each in found["keys"]] == checkpoints.keys(path)
    keys = {each.pop("key"): each for each in found["keys"]}
    assert keys["weight"] == {
        "dtype": "float32", "shape": [3, 4], "bytes": 48, "model": True,
        "by": "graph", "why": "trained"}
    assert keys["norm/mean"] == {
        "dtype": "float16", "shape": [4], "bytes": 8, "model": True,
        "by": "graph", "why": "not a slot nor an accumulator of any update"}
    assert keys["accumulation/count"] == {
        "dtype": "int64", "shape": [], "bytes": 8, "model": False,
        "by": "graph", "why": "of the window accumulation"}
    assert {name for name in keys if keys[name]["model"]} == {
        "table", "weight", "norm/mean"}
    assert found["saves"]["model"] == MODEL
    assert found["saves"]["default"]["keys"] == len(keys)
    # An empty buffer of rows has no bytes.
    assert found["saves"]["default"]["bytes"] == MODEL["bytes"] + REST


def test_a_checkpoint_alone_is_judged_by_its_structure(text, tmp_path):
    checkpoints.write_raw(tmp_path / "model", {
        "w": zeros(2, 3), "w/Adam": zeros(2, 3), "beta1_power": zeros(),
        "names": np.array([b"one", b"two"], object)})
    assert text(tmp_path / "model") == [
        "{}: checkpoint".format(tmp_path / "model"),
        "  judged by the structure of the keys, as there is no MetaGraph "
        "beside it",
        "      model's          names        string   [2]     ? B   a key of "
        "its own",
        "      model's          w            float32  [2, 3]  24 B  a key of "
        "its own",
        "      not the model's  beta1_power  float32  []      4 B   looks like "
        "an optimizer's scalar: by its exact name",
        "      not the model's  w/Adam       float32  [2, 3]  24 B  looks like "
        "a slot of w: of its shape, under its name",
        "  holds 4 keys of 52 B, the model alone 2 keys of 24 B"]


def test_a_partly_saved_variable_is_no_damage(inspect, tmp_path):
    """Adam in a scope saves its slots of partitions under odd keys, halved."""
    parts = tf.get_variable("w", [8, 64],
                            partitioner=tf.fixed_size_partitioner(2))
    with tf.variable_scope("train"):
        tf.train.AdamOptimizer().minimize(
            tf.reduce_sum(tf.square(tf.convert_to_tensor(parts))))
    path = checkpoints.save(tmp_path / "model")
    found = inspect(path)
    assert [each["key"] for each in found["keys"] if each["model"]] == ["w"]
    assert checkpoints.run("strip", path, tmp_path / "out") == 0
    assert checkpoints.keys(tmp_path / "out") == ["w"]


def test_a_graph_of_another_model_does_not_decide(inspect, tmp_path):
    model = models.Regression()
    tf.train.AdamOptimizer().minimize(model.loss)
    path = checkpoints.save(tmp_path / "model")
    checkpoints.write_raw(tmp_path / "model", {
        "model/w": zeros(9), "model/w/Adam": zeros(7), "other": zeros(),
        "other/Adam": zeros(), "model/b": zeros(2)})
    keys = inspect(path)["keys"]
    assert [each["key"] for each in keys if not each["model"]] == [
        "other/Adam"]
    assert [each["key"] for each in keys if each["by"] == "graph"] == [
        "model/b"]


def test_a_log_folder_says_what_all_its_files_hold(inspect, text, tmp_path):
    Lookups()
    paths = [checkpoints.save(tmp_path / name)
             for name in ("model-1", "model-2")]
    checkpoints.forget_the_graph(paths[0])
    tf.io.write_graph(tf.get_default_graph(), str(tmp_path), "graph.pbtxt")
    (tmp_path / "notes.txt").write_text("not read")
    found = inspect(tmp_path)
    assert found["kind"] == "folder"
    assert [(file["path"], file["kind"]) for file in found["files"]] == [
        (str(tmp_path / "graph.pbtxt"), "graph_def"),
        (paths[0], "checkpoint"), (paths[1], "checkpoint")]
    # One line for all keys of a checkpoint.
    assert not [line for line in text(tmp_path) if "beta1_power" in line]


def test_a_damaged_file_in_a_folder_hides_no_other(tmp_path, capsys):
    checkpoints.write_raw(tmp_path / "good", {"w": zeros()})
    (tmp_path / "bad.meta").write_bytes(b"\xff\xff\xff")
    assert checkpoints.run("inspect", tmp_path, "--json") == 1
    printed = capsys.readouterr()
    bad, good = json.loads(printed.out)["files"]
    assert sorted(bad) == ["error", "kind", "path"]
    assert bad["kind"] == "error"
    assert good["saves"]["model"] == {"keys": 1, "bytes": 4}
    assert printed.err == "tf1accum: {}\n".format(bad["error"])
    (tmp_path / "good.index").unlink()
    assert checkpoints.run("inspect", tmp_path) == 1
    assert capsys.readouterr().out == ""


def png(path):
    path.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\1\0\0\0\1\0\x08\2")


def saved_model(path):
    path.mkdir()
    (path / "saved_model.pb").write_bytes(b"\x08\x01")


def shard(make):
    def bring_about(path):
        checkpoints.write_raw(path, {"w": zeros(3)})
        data = path.with_name("file.data-00000-of-00001")
        data.unlink()
        make(data)
    return bring_about


def foreign_meta(path):
    checkpoints.write_raw(path, {"w": zeros(3)})
    models.Regression()
    tf.train.export_meta_graph(str(path) + ".meta")


def looped(path):
    """A name that cannot be followed, as below a folder of someone else."""
    path.symlink_to("file")


def damaged_graph(path):
    models.Regression()
    data = tf.get_default_graph().as_graph_def().SerializeToString()
    path.write_bytes(data[:len(data) // 2])


def missing_shard(path):
    checkpoints.write_raw(path, {"w": zeros(3)})
    path.with_name("file.data-00000-of-00001").rename(
        path.with_name("file.data-00001-of-00003"))


def dangling(path):
    path.symlink_to("gone")


FOREIGN = ("{} is not a MetaGraph, a GraphDef, a checkpoint or an event file, "
           "or is damaged.")
TROUBLE = [
    # (what is there, how to bring it about, what is said of it)
    ("nothing", lambda path: None, "{} does not exist."),
    ("an empty file", lambda path: path.touch(), "{} is empty."),
    ("a PNG", png, FOREIGN),
    ("a text", lambda path: path.write_text("loss 0.1\n" * 9), FOREIGN),
    ("an empty text", lambda path: path.write_text("\n"), FOREIGN),
    ("a graph of no node", lambda path: path.write_text(
        "versions { producer: 27 }"), FOREIGN),
    ("a graph cut off", damaged_graph, FOREIGN),
    ("a table of text", lambda path: path.write_text(
        "node { name: 'a b' op: 'x' }"), FOREIGN),
    ("a table of nothing", lambda path: path.write_bytes(
        bytes(100) + bytes.fromhex("57fb808b247547db")),
     "{} is not a checkpoint, or is damaged: "),
    ("a SavedModel", saved_model, "{} is a SavedModel, which is for serving "
     "and not read here."),
    ("an empty folder", lambda path: path.mkdir(),
     "{} holds no checkpoint, graph or event file."),
    ("a dangling link", dangling, "{} cannot be read: No such file or"),
    ("a missing shard", missing_shard, "a shard of {} is missing: "),
    ("a folder as shard", shard(lambda data: data.mkdir()),
     "{}.data-00000-of-00001 cannot be read: Is a directory."),
    ("a dangling shard", shard(lambda data: data.symlink_to("gone")),
     "{}.data-00000-of-00001 cannot be read: No such file or directory."),
    ("the graph of another", foreign_meta,
     "none of the keys of {0} is as in the graph of {0}.meta. Give strip the "
     "right one by --meta-graph FILE, or move {0}.meta away"),
    ("a list of checkpoints", lambda path: path.write_text(
        'model_checkpoint_path: "model-1"\n'),
     "{} is a list of checkpoints. Name the folder or the prefix of one."),
    ("a loop", looped, "{} cannot be read: Too many levels of symbolic"),
]


def test_a_file_that_cannot_be_reached_is_not_missing(tmp_path, capsys):
    """A folder that may not be entered looks so; a test may be root."""
    (tmp_path / "loop").symlink_to("loop")
    for command in (["inspect", tmp_path / "loop" / "model"],
                    ["strip", tmp_path / "loop" / "model", "out"]):
        assert checkpoints.run(*command) == 1
        assert "cannot be read: Too many levels" in capsys.readouterr().err


@pytest.mark.parametrize("bring_about, words", [case[1:] for case in TROUBLE],
                         ids=[case[0] for case in TROUBLE])
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_trouble_is_one_line(flags, bring_about, words, tmp_path, capsys):
    path = tmp_path / "file"
    bring_about(path)
    assert checkpoints.run("inspect", path, *flags) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("tf1accum: " + words.format(path))
    assert len(printed.err.splitlines()) == 1
