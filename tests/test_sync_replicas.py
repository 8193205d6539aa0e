"""SyncReplicasOptimizer in a window: k micro-batches on each of W workers.

The servers are real and in this process, the workers threads of it.
"""

import concurrent.futures
import itertools
import json
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import cluster as cluster_lib
import models
import numpy_window
import tf1accum
from conftest import in_pairs
from shares import (
    K, RULES, START, WINDOWS, WORKERS, Model, assert_close, batches_of,
    on_whole_batches)
from tf1accum import ports

HERE = os.path.dirname(os.path.abspath(__file__))
# The chief's thread is stopped in the middle of a run, always.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning")
_containers = ("test%d" % i for i in itertools.count())


@pytest.fixture(scope="module")
def cluster():
    cluster = cluster_lib.Cluster(WORKERS + 1)
    cluster.start("ps", 0)
    cluster.targets = [cluster.start("worker", i) for i in range(WORKERS)]
    return cluster


def side_by_side(cluster, work):
    """What `work(task, place, ready)` returns for each worker.

    Args:
      work: function of the number of the worker, of a context that the worker's
        graph is to be built in, and of an event: worker 0 sets it when the
        others may start.
    """
    container, ready = next(_containers), threading.Event()

    def in_graph(task):
        device = "/job:worker/task:%d" % task
        with tf.Graph().as_default(), tf.container(container), tf.device(
                tf.train.replica_device_setter(
                    cluster=cluster.addresses, worker_device=device)):
            try:
                return work(task, device, ready)
            finally:
                ready.set()

    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        return [done.result() for done in [
            pool.submit(in_graph, task) for task in range(WORKERS)]]


def synchronous(rule, workers=WORKERS, **kwargs):
    return tf.train.SyncReplicasOptimizer(
        RULES[rule](), workers, total_num_replicas=workers, **kwargs)


def own(device):
    """What a window needs that is to be a worker's own."""
    return dict(worker_device=device, sparse="dense")


def session_of(cluster, task, ready, hooks):
    if task:
        ready.wait(30)
    session = tf.train.MonitoredTrainingSession(
        cluster.targets[task], is_chief=task == 0, hooks=hooks,
        config=cluster_lib.config(task), stop_grace_period_secs=0.1)
    if not task:
        ready.set()
    return session


@pytest.mark.parametrize(
    "behaviour, use_resource, rule", [("v1", "ref", "adam")] + [
        ("eager_off", "resource", rule) for rule in sorted(RULES)],
    indirect=["behaviour", "use_resource"])
def test_k_runs_on_each_worker_equal_one_step_on_the_whole_batch(
        behaviour, use_resource, rule, cluster):
    def work(task, device, ready):
        model = Model(use_resource)
        step = tf.train.get_or_create_global_step()
        sync = synchronous(rule)
        opt = tf1accum.AccumulatingOptimizer(sync, K, **own(device))
        train_op = opt.minimize(model.loss, step)
        hook = sync.make_session_run_hook(task == 0, num_tokens=0)
        seen = []
        with session_of(cluster, task, ready, [hook]) as session:
            for number, batch in enumerate(batches_of(task)):
                session.run(train_op, model.feed(batch))
                if number % K == K - 1:
                    # Nobody can apply the next before this worker is at it.
                    seen.append(past_hooks(session, lambda bare: bare.run(
                        model.variables + [step, opt.ops.count])))
        return seen

    for seen in side_by_side(cluster, work):
        assert [values[-2:] for values in seen] == [
            [number, 0] for number in range(1, WINDOWS + 1)]
        for values, expected in zip(seen, on_whole_batches(rule, rows=False)):
            assert_close(values[:-2], expected)


def test_builders_and_hooks_do_the_same(cluster):
    """`build` on both workers, one with a hook, one with a loop of its own."""
    def work(task, device, ready):
        model = Model(use_resource=True)
        step = tf.train.get_or_create_global_step()
        average = tf.train.ExponentialMovingAverage(0.5)
        sync = synchronous("momentum", variable_averages=average,
                           variables_to_average=model.variables[:1])
        ops = tf1accum.build(model.loss, optimizer=sync, k=K,
                             global_step=step, **own(device))
        hooks = [sync.make_session_run_hook(task == 0, num_tokens=0)]
        if task:
            hooks.append(tf1accum.AccumulationHook(ops))
        with session_of(cluster, task, ready, hooks) as session:
            for number, batch in enumerate(batches_of(task), 1):
                session.run(model.loss if task else ops.accumulate,
                            model.feed(batch))
                if number % K == 0 and not task:
                    session.run(ops.apply)
                    session.run(ops.reset)
            return past_hooks(session, lambda bare: bare.run(
                model.variables + [step, ops.count]) + [
                    last_of(bare, average.average(model.variables[0]))])

    expected = on_whole_batches("momentum", rows=False)
    shadow = START[0]
    for values in expected:
        shadow = 0.5 * shadow + 0.5 * values[0]
    for *weights, step, count, averaged in side_by_side(cluster, work):
        assert [step, count] == [WINDOWS, 0]
        assert_close(weights + [averaged], expected[-1] + [shadow])


def past_hooks(session, function):
    """What `function` of a bare session returns, with nothing else run."""
    return session.run_step_fn(
        lambda step_context: function(step_context.session))


def last_of(session, variable):
    """What it is when it has not moved for a while.

    The chief's thread averages when it has let the workers go on.
    """
    value = None
    while value is None or not np.array_equal(value, session.run(variable)):
        value = session.run(variable)
        time.sleep(0.2)
    return value


def of_type(ending):
    return [op for op in tf.get_default_graph().get_operations()
            if op.type.endswith(ending)]


@in_pairs
def test_runs_that_do_not_apply_leave_nothing_with_the_others(
        behaviour, use_resource, cluster):
    """No gradient, no token, no local step that moved."""
    def work(task, device, ready):
        if task:
            return None
        model = Model(use_resource)
        step = tf.train.get_or_create_global_step()
        sync = synchronous("adam", workers=1)
        opt = tf1accum.AccumulatingOptimizer(sync, K, **own(device))
        train_op = opt.minimize(model.loss, step)
        given = [
            getattr(tf.raw_ops, prefix + "AccumulatorNumAccumulated")(
                handle=op.outputs[0])
            for prefix in ("", "Resource") for op in of_type(
                "ConditionalAccumulator")
            if op.type == prefix + "ConditionalAccumulator"]
        queue, = [op for op in of_type("FIFOQueueV2")
                  if "sync_token_q" in op.name]
        tokens = tf.raw_ops.QueueSizeV2(handle=queue.outputs[0])
        local_step, = [variable for variable in tf.local_variables()
                       if "sync_rep_local_step" in variable.op.name]
        assert len(given) == 2
        with tf.Session(cluster.targets[0], config=cluster_lib.config(
                0)) as session:
            session.run(tf.global_variables_initializer())
            session.run(tf.local_variables_initializer())
            session.run(sync.chief_init_op)
            session.run(step.assign(7))
            session.run(sync.get_init_tokens_op(1))
            before = session.run(
                [given, tokens, local_step] + model.variables)
            for batch in batches_of(0)[:K - 1]:
                session.run(train_op, model.feed(batch))
            after = session.run([given, tokens, local_step] + model.variables)
            session.run(train_op, model.feed(batches_of(0)[K - 1]))
            return before, after, session.run([given, tokens, local_step])

    (before, after, at_last), _ = side_by_side(cluster, work)
    assert before[:3] == after[:3] == [[0, 0], 1, 0]
    for one, other in zip(before[3:], after[3:]):
        np.testing.assert_array_equal(one, other)
    # The k-th run gave one gradient for each variable, and took the token.
    assert at_last == [[1, 1], 0, 7]


def test_a_chief_ends_when_it_is_done(cluster):
    """A process of its own: TensorFlow would have it wait for two minutes."""
    package = os.path.dirname(os.path.dirname(tf1accum.__file__))
    chief = subprocess.Popen(
        [sys.executable, os.path.join(HERE, "sync_chief.py"),
         json.dumps(cluster.addresses), str(WORKERS)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        universal_newlines=True, env=dict(os.environ, PYTHONPATH=package))
    try:
        assert chief.stdout.readline() == "ready\n", chief.communicate()[1]
        with tf.device(tf.train.replica_device_setter(
                cluster=cluster.addresses,
                worker_device="/job:worker/task:1")):
            model = Model(use_resource=True)
            step = tf.train.get_or_create_global_step()
            sync = synchronous("momentum")
            train_op = tf1accum.AccumulatingOptimizer(
                sync, K, **own("/job:worker/task:1")).minimize(
                    model.loss, step)
        with tf.train.MonitoredTrainingSession(
                cluster.targets[1], is_chief=False, hooks=[
                    sync.make_session_run_hook(False, num_tokens=0)],
                config=cluster_lib.config(1)) as session:
            for batch in batches_of(1):
                session.run(train_op, model.feed(batch))
            seen = past_hooks(session, lambda bare: bare.run(model.variables))
        printed, said = chief.communicate(timeout=60)
        assert (chief.returncode, printed) == (0, "done\n"), said
    finally:
        if chief.poll() is None:
            chief.kill()
            chief.wait()
    assert_close(seen, on_whole_batches("momentum", rows=False)[-1])


@pytest.fixture
def model():
    return Model(use_resource=True)


def test_it_is_refused_where_it_lacks_what_it_needs(model):
    step = tf.train.get_or_create_global_step()
    pairs = [(tf.ones([3, 2]), model.variables[0])]

    def refuses(words, call):
        models.refuses(ValueError, words, call)

    for who, call in (
            ("build", lambda: tf1accum.build(
                model.loss, optimizer=synchronous("sgd"), k=2)),
            ("build_from_gradients", lambda: tf1accum.build_from_gradients(
                pairs,
                optimizer=synchronous("sgd"), k=2)),
            ("build_host", lambda: tf1accum.build_host(
                model.loss, optimizer=synchronous("sgd"))),
            ("AccumulatingOptimizer", lambda: tf1accum.AccumulatingOptimizer(
                synchronous("sgd"), 2).minimize(model.loss)),
            ("ports.AccumulatingOptimizer", lambda:
             ports.AccumulatingOptimizer(
                 synchronous("sgd"), model.variables)),
            ("ports.AccumGradOptimizer", lambda: ports.AccumGradOptimizer(
                synchronous("sgd"), 2).minimize(model.loss, step))):
        refuses(["tf1accum.{}: ".format(who), "the global step must count",
                 "Pass global_step to"], call)
    refuses(["tf1accum.build: after_apply must be None", "variable_averages"],
            lambda: tf1accum.build(
                model.loss, optimizer=synchronous("sgd"), k=2,
                global_step=step, after_apply=tf.no_op))


def test_rows_are_refused_that_it_would_average_otherwise(model):
    step = tf.train.get_or_create_global_step()
    for call in (
            lambda: tf1accum.AccumulatingOptimizer(
                synchronous("sgd"), 2).minimize(model.loss, step),
            lambda: tf1accum.build(
                model.loss, optimizer=synchronous("sgd"), k=2,
                global_step=step),
            lambda: tf1accum.build_host(
                model.loss, optimizer=synchronous("sgd"), global_step=step)):
        with pytest.raises(ValueError) as error:
            call()
        assert "sparse must be \"dense\"" in str(error.value)
        assert "table:0 are rows" in str(error.value)


def test_there_is_no_flush_around_it_and_reset_drops_what_is_left(model):
    opt = tf1accum.AccumulatingOptimizer(
        synchronous("sgd"), 2, sparse="dense")
    train_op = opt.minimize(
        model.loss, tf.train.get_or_create_global_step())
    assert opt.ops.apply is None and opt.ops.apply_and_reset is None
    with pytest.raises(RuntimeError) as error:
        opt.flush
    for words in ("tf1accum.AccumulatingOptimizer: has no flush",
                  "until every worker flushes", "Run `reset`"):
        assert words in str(error.value)
    assert tf1accum.recover().apply is None
    assert tf.get_collection(tf.GraphKeys.TRAIN_OP) == [train_op]
    assert [variable.op.name for variable in tf1accum.model_variables()] == [
        "w", "table", "global_step"]
    with models.session() as session:
        session.run(tf.local_variables_initializer())
        session.run(train_op, model.feed(batches_of(0)[0]))
        assert session.run(opt.ops.count) == 1
        session.run(opt.reset)
        assert session.run(opt.ops.count) == 0


@pytest.mark.parametrize("make", [
    tf1accum.AccumulatingOptimizer, ports.AccumGradOptimizer])
def test_around_the_window_it_is_refused_with_the_right_order(model, make):
    """It would hang: to it, each gradient after the first is stale.

    Around tensorpack's it would compute the loss in a thread of the chief.
    """
    opt = make(RULES["sgd"](), 2)
    sync = tf.train.SyncReplicasOptimizer(opt, 2)
    for pairs in (sync.compute_gradients(model.loss, model.variables[:1]),
                  sync.compute_gradients(model.loss, model.variables[1:])):
        with pytest.raises(ValueError) as error:
            sync.apply_gradients(
                pairs, tf.train.get_or_create_global_step())
        # Or TensorFlow complains when the process ends.
        sync.ready_for_local_init_op.mark_used()
        assert "SyncReplicasOptimizer must be inside" in str(error.value)
        assert ("tf1accum.AccumulatingOptimizer(tf.train."
                "SyncReplicasOptimizer(optimizer, ...), k)") in str(
                    error.value)
