"""What is killed, or dropped, in mid-window goes on as if it never had been."""

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import models
import tf1accum

PROGRAM = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples",
    "benchmarks", "restart.py")
K = 4


@pytest.fixture(scope="module")
def restart():
    """The program as a module."""
    spec = importlib.util.spec_from_file_location("restart", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def environment():
    package = os.path.dirname(os.path.dirname(tf1accum.__file__))
    return dict(os.environ, PYTHONPATH=package)


@pytest.fixture
def has_path(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])


# Each kill costs the start of a process.
@pytest.mark.parametrize("way, kills", [("loop", 2), ("monitored", 5)])
def test_kills_of_several_kinds_lose_nothing(way, kills):
    """Its processes end with it, so the time that it has is theirs too."""
    run = subprocess.run(
        [sys.executable, PROGRAM, "--kills", str(kills), "--seed", "1", "--way", way,
         "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        universal_newlines=True, env=environment(), timeout=600)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)["ways"][way]
    kinds = ("between", "accumulate", "apply", "save", "random")
    assert sorted(found[kind] for kind in kinds) == (
        [0] * (5 - kills) + [1] * kills)
    assert found["kills"] == kills
    assert [found["values"], found["losses"], found["means"]] == [0, 0, 0]


def test_a_process_that_fails_is_an_error_and_leaves_none_behind(
        restart, has_path, tmp_path):
    with pytest.raises(RuntimeError) as error:
        with restart.Children() as children:
            children.run({"folder": str(tmp_path / "missing"), "plan": {}})
    assert "FileNotFoundError" in str(error.value)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_process_ends_when_nobody_holds_its_input(tmp_path):
    process = subprocess.Popen(
        [sys.executable, PROGRAM, "--child"], stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=environment())
    try:
        process.communicate(json.dumps({
            "folder": str(tmp_path), "driver": "loop", "policy": "continue",
            "start": 1, "plan": {}}).encode() + b"\n", timeout=300)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert tf.train.latest_checkpoint(str(tmp_path)) is None


def test_plans_are_the_same_for_a_seed_and_each_kind_comes_as_often(restart):
    plans, same, other = (restart.make_plans(50, np.random.RandomState(seed))
                          for seed in (3, 3, 4))
    assert plans == same != other
    for kind in restart.KINDS:
        assert sum(plan["kind"] == kind for plan in plans) == 10


def test_values_that_differ_in_a_bit_are_counted(restart):
    right = {"a": np.float32([0., np.nan, 1.]), "b": np.int64(3),
             "c": np.float32([1., 2.])}
    wrong = {"a": np.float32([-0., np.nan, 1.]), "b": np.int64(3),
             "d": np.float32([1.])}
    assert restart.count_different(right, right) == {}
    assert restart.count_different(right, wrong) == {"a": 1, "c": 2, "d": 1}


def test_the_stage_of_a_save_is_the_first_file_that_is_still_old(
        restart, tmp_path):
    prefix = str(tmp_path / "model-1")
    names = ["model-1.data-00000-of-00001", "model-1.index", "checkpoint"]
    for _ in range(2):  # Where there was nothing, and where there was a save.
        was = restart.versions(prefix)
        for name, stage in zip(names, restart.STAGES):
            assert restart.stage(prefix, was) == stage
            (tmp_path / "new").write_text("new")
            os.replace(str(tmp_path / "new"), str(tmp_path / name))
        assert restart.stage(prefix, was) == "rest"


def test_help_names_each_option_and_no_kills_are_refused(
        restart, monkeypatch, capsys):
    for arguments, code, words in (
            (["--help"], 0, ["--kills", "--seed", "--way", "--policy",
                             "--json"]),
            (["--kills", "0"], 2, ["must be 1 or more"])):
        monkeypatch.setattr(sys, "argv", [PROGRAM] + arguments)
        with pytest.raises(SystemExit) as end:
            restart.main()
        assert end.value.code == code
        printed = "".join(capsys.readouterr())
        assert [word for word in words if word not in printed] == []


def test_the_table_fits_80_columns(restart, capsys):
    found = restart.collections.Counter(values=12345678)
    restart.print_results(
        {"loop": found, "monitored": found},
        restart.argparse.Namespace(seed=0, policy="drop"))
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert [line.split()[-2:] for line in lines if line.startswith(
        "wrong values")] == [["12345678", "12345678"]]


class Training:
    """A graph of one start of a program, with Adam and an op that counts.

    Ways: "loop"; and monitored sessions that drop the window in a
    "local_init_op" of the scaffold, or in a "step_fn", once they are there.
    """

    def __init__(self, way, folder, policy="continue"):
        self.way = way
        self.folder = str(folder)
        self.policy = policy
        self.model = models.Regression()
        self.seen = tf.get_variable(
            "seen", [], tf.int64, tf.zeros_initializer(), trainable=False)
        self.step = tf.train.get_or_create_global_step()
        self.ops = tf1accum.build(
            self.model.loss, optimizer=tf.train.AdamOptimizer(0.1), k=K,
            global_step=self.step,
            update_ops=[tf.assign_add(self.seen, 1).op])
        self.saver = tf1accum.resumable_saver()

    @contextlib.contextmanager
    def start(self):
        """Yields a function that does a micro-batch, and where to begin."""
        with (self._loop if self.way == "loop" else self._monitored)() as (
                run, (step, count)):
            yield run, int(step) * K + int(count)

    @contextlib.contextmanager
    def _loop(self):
        ops = self.ops
        with models.session() as session:
            latest = tf.train.latest_checkpoint(self.folder)
            if latest:
                self.saver.restore(session, latest)
                if self.policy == "drop":
                    session.run(ops.reset)

            def run(batch):
                session.run(ops.accumulate, self.model.feed(batch))
                if session.run(ops.count) == K:
                    session.run(ops.apply)
                    session.run(ops.reset)

            yield run, session.run([self.step, ops.count])
            self.saver.save(session, os.path.join(self.folder, "model"))

    @contextlib.contextmanager
    def _monitored(self):
        ops, drop = self.ops, self.policy == "drop"
        local = {}
        if drop and self.way == "local_init_op":
            local["local_init_op"] = tf.group(
                tf.train.Scaffold.default_local_init_op(), ops.reset)
        with tf.train.MonitoredTrainingSession(
                checkpoint_dir=self.folder,
                scaffold=tf.train.Scaffold(saver=self.saver, **local),
                chief_only_hooks=[tf1accum.AccumulationHook(ops)],
                save_checkpoint_steps=100) as session:

            def look(fetches):
                return session.run_step_fn(
                    lambda step_context: step_context.session.run(fetches))

            if drop and self.way == "step_fn":
                look(ops.reset)
            yield (lambda batch: session.run([], self.model.feed(batch)),
                   look([self.step, ops.count]))


def train(way, folder, first, last, policy="continue"):
    """Micro-batches up to `last` in a fresh graph; what is saved then."""
    with tf.Graph().as_default():
        training = Training(way, folder, policy)
        with training.start() as (run, begin):
            assert begin == first
            for batch in training.model.batches(last)[first:]:
                run(batch)
    reader = tf.train.load_checkpoint(str(folder))
    return {key: reader.get_tensor(key)
            for key in reader.get_variable_to_shape_map()}


@pytest.fixture(params=["loop", "local_init_op", "step_fn"])
def way(request):
    return request.param


@pytest.mark.parametrize("policy, second", [("continue", 6), ("drop", 4)])
def test_a_window_goes_on_or_is_done_again_to_the_same_bits(
        way, policy, second, tmp_path):
    """In mid-window of the second, after micro-batch 5."""
    unbroken = train(way, tmp_path / "one", 0, 11)
    assert [unbroken["global_step"], unbroken["accumulation/count"]] == [2, 3]
    broken = train(way, tmp_path / "many", 0, 6)
    assert [broken["global_step"], broken["accumulation/count"]] == [1, 2]
    broken = train(way, tmp_path / "many", second, 11, policy)
    # Update ops, such as those of batch norm, have run for what is dropped.
    assert unbroken.pop("seen") == 11
    assert broken.pop("seen") == 11 + 6 - second
    models.assert_same_bits(unbroken, broken)


def contents(folder):
    """The data and the index of the checkpoint that is there, as bytes."""
    path = tf.train.latest_checkpoint(str(folder))
    found = []
    for end in (".data-00000-of-00001", ".index"):
        with open(path + end, "rb") as file:
            found.append(file.read())
    return found


def start_and_save(way, folder, policy):
    """A start of which the saver saves at once what was restored."""
    with tf.Graph().as_default():
        with Training(way, folder, policy).start():
            return contents(folder)


@pytest.mark.parametrize("way, policy, same", [
    ("step_fn", "continue", True), ("step_fn", "drop", True),
    ("local_init_op", "drop", False)])
def test_a_monitored_session_replaces_what_it_restored_by_the_same_bytes(
        way, policy, same, tmp_path):
    """So a kill while it does, which leaves both halves mixed, loses nothing.

    A `local_init_op` that drops the window is the exception.
    """
    train(way, tmp_path, 0, 6)
    before = contents(tmp_path)
    after = start_and_save(way, tmp_path, policy)
    assert (before == after) == same


def test_new_data_with_the_index_of_another_save_cannot_be_restored(tmp_path):
    """What a kill leaves that hits a save under the name of another one."""
    for name, last in (("old", 6), ("new", 7)):
        train("loop", tmp_path / name, 0, last)
    shutil.copy(str(tmp_path / "new" / "model.data-00000-of-00001"),
                str(tmp_path / "old"))
    training = Training("loop", tmp_path / "old")
    with pytest.raises(tf.errors.DataLossError):
        with training.start():
            pass
