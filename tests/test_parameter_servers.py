"""A window on each worker of a cluster, and the model on a parameter server.

The servers are real and in this process; where one is killed, the workers are
processes, which end with their input, and so with this one.
"""

import concurrent.futures
import contextlib
import copy
import itertools
import json
import os
import queue
import re
import select
import socket
import subprocess
import sys
import threading
import time

# This is also the program of a worker, without what pytest sets.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import cluster as cluster_lib
import models
import numpy_window
import tf1accum
from conftest import in_pairs, run_example, set_behaviour
from models import refuses
from tf1accum import ports

WORKER = "/job:worker/task:%d"
K = 3
RULES = {
    "sgd": lambda: tf.train.GradientDescentOptimizer(numpy_window.RATE),
    "momentum": lambda: tf.train.MomentumOptimizer(
        numpy_window.RATE, numpy_window.MOMENTUM),
    "adam": lambda: tf.train.AdamOptimizer(
        numpy_window.Adam.rate, numpy_window.BETA1, numpy_window.BETA2,
        numpy_window.EPSILON)}


def part_of(value):
    """An initializer of the parts of a partitioned variable."""
    def initialize(shape, dtype, partition_info):
        del dtype
        start, = partition_info.var_offset[:1]
        return tf.constant(value[start:start + shape[0]])

    return initialize


class Model:
    """loss = mean((x w + table[ids] - y)^2), a mean over examples.

    Built where TensorFlow's guide says: variables on the parameter servers, all
    else on the worker.
    """

    start = [np.float32([[1, -1], [2, 0], [-1, 1]]),
             np.float32(np.arange(12).reshape(6, 2)) / 8.]

    def __init__(self, use_resource=True, task=0, servers=1, partitions=None):
        self.place = WORKER % task
        with tf.device(tf.train.replica_device_setter(
                servers, worker_device=self.place)), tf.variable_scope(
                    "model", use_resource=use_resource,
                    partitioner=partitions and tf.fixed_size_partitioner(
                        partitions)):
            self.x = tf.placeholder(tf.float32, [None, 3], "x")
            self.y = tf.placeholder(tf.float32, [None, 2], "y")
            self.ids = tf.placeholder(tf.int32, [None], "ids")
            w, table = [
                tf.get_variable(name, initializer=tf.constant(value))
                if not partitions else tf.get_variable(
                    name, value.shape, initializer=part_of(value))
                for name, value in zip(("w", "table"), self.start)]
            self.step = tf.train.get_or_create_global_step()
            self.variables = tf.trainable_variables()
            self.loss = tf.reduce_mean(tf.square(
                tf.matmul(self.x, w) - self.y
                + tf.nn.embedding_lookup(table, self.ids, "div")))

    def feed(self, batch):
        """The feed of `batch`, a tuple of x, ids and y."""
        return dict(zip((self.x, self.ids, self.y), batch))

    def build(self, optimizer=None, k=K, **kwargs):
        """A window of it on the worker."""
        kwargs.setdefault("worker_device", self.place)
        return tf1accum.build(
            self.loss, self.variables, optimizer=optimizer or RULES["adam"](),
            k=k, global_step=self.step, **kwargs)

    def every_k(self, optimizer=None, k=K, **kwargs):
        """As `build`, one that applies at every k-th run of its train op."""
        opt = tf1accum.AccumulatingOptimizer(
            optimizer or RULES["adam"](), k, worker_device=self.place, **kwargs)
        opt.minimize(self.loss, self.step)
        return opt.ops

    @staticmethod
    def batches(number, seed=0):
        """`number` tuples of x, ids and y, of four examples each."""
        random = np.random.RandomState(seed)
        return [(np.float32(random.randint(-2, 3, [4, 3])),
                 random.randint(0, 6, [4]),
                 np.float32(random.randint(-2, 3, [4, 2])))
                for _ in range(number)]

    @staticmethod
    def micro_batch(values, batch, weight=None):
        """What NumPy knows of `batch` at `values`."""
        (w, table), (x, ids, y) = values, batch
        error = x.dot(w) + table[ids] - y
        grads = [x.T.dot(2. * error / error.size),
                 numpy_window.Rows(ids, 2. * error / error.size)]
        return numpy_window.MicroBatch(grads, np.mean(error ** 2), weight)


class Wire:
    """A port before that of a server, which counts what the server sends."""

    def __init__(self, address):
        self.sent = 0
        host, port = address.split(":")
        self._behind = host, int(port)
        self._listener = socket.socket()
        self._listener.bind(("localhost", 0))
        self._listener.listen(8)
        self.address = "localhost:%d" % self._listener.getsockname()[1]
        self._start(self._accept)

    @staticmethod
    def _start(target, *arguments):
        threading.Thread(target=target, args=arguments, daemon=True).start()

    def _accept(self):
        while True:
            front, _ = self._listener.accept()
            back = socket.create_connection(self._behind)
            for end in (front, back):
                # Or small messages wait 40 ms for each other.
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._start(self._pass_on, front, back, 0)
            self._start(self._pass_on, back, front, 1)

    def _pass_on(self, source, target, counts):
        with contextlib.suppress(OSError):
            while True:
                data = source.recv(1 << 16)
                self.sent += len(data) * counts
                if not data:
                    break
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Cluster(cluster_lib.Cluster):
    """The parameter server hears of worker 0 by a port that counts."""

    def __init__(self):
        # Two of this process, and two that are killed.
        super().__init__(workers=4)
        own = self.addresses
        self.wire = Wire(own["worker"][0])
        self.addresses = dict(
            own, worker=[self.wire.address] + own["worker"][1:])
        self.start("ps", 0)
        self.addresses = own
        self.targets = {task: self.start("worker", task) for task in range(2)}
        self.containers = ("test%d" % i for i in itertools.count())

    def session(self, model, initialise=True):
        """A session of the worker that `model` is built for."""
        task = int(model.place[-1])
        session = tf.Session(
            self.targets[task], config=cluster_lib.config(task))
        if initialise:
            session.run(tf.global_variables_initializer())
        session.run(tf.local_variables_initializer())
        return session


@pytest.fixture(scope="module")
def servers():
    cluster = Cluster()
    with contextlib.ExitStack() as stack:
        # Two to be killed: they start, which takes seconds, beside other tests.
        cluster.processes = [Process() for _ in range(2)]
        for process in cluster.processes:
            stack.callback(process.end)
        yield cluster


@pytest.fixture
def container(servers):
    """The name of what is a test's own on the servers."""
    return next(servers.containers)


@pytest.fixture
def cluster(servers, container):
    with tf.container(container):
        yield servers


def devices(variables):
    return {variable.op.name: variable.device for variable in variables}


# What the graph says.


@pytest.mark.parametrize("rule", ["adam", "ftrl"])
def test_the_window_is_on_the_worker_and_all_else_on_the_parameter_server(
        rule, use_resource):
    model = Model(use_resource, task=1)
    ops = model.build(models.OPTIMIZERS[rule](), weight=tf.constant(1.),
                      nonfinite="skip")
    own = ["count", "weight", "average_loss", "skipped", "model/w",
           "model/table/values", "model/table/indices", "model/table/used"]
    assert devices(tf.local_variables()) == {
        "accumulation/" + name: "/job:worker/task:1" for name in own}
    assert set(devices(tf.global_variables()).values()) == {
        "/job:ps/task:0"}
    assert not [op for op in tf.get_default_graph().get_operations()
                if op.name.startswith(ops.name + "/")
                and op.device not in ("/job:worker/task:1", "/job:ps/task:0")
                # These are where their variable is, always.
                and op.type != "ReadVariableOp"
                and not op.name.endswith(("/record", "/zeros", "/Const"))]


class Counting(tf.train.GradientDescentOptimizer):
    """Makes a variable and does not say where."""

    def _prepare(self):
        super()._prepare()
        self.steps = tf.Variable(0., trainable=False, name="steps")


def count_applies():
    return tf.assign_add(tf.get_variable("applies", [], tf.float32,
                                         tf.zeros_initializer()), 1.)


def kept(pairs):
    tf.Variable(1., trainable=False, name="kept")
    return pairs


@in_pairs
@pytest.mark.parametrize("how", ["build", "every_k"])
def test_what_is_made_without_a_place_is_beside_the_first_of_the_model(
        how, behaviour, use_resource):
    """A global variable on a worker, the others would wait for, for ever."""
    model = Model(use_resource, servers=3)
    average = tf.train.ExponentialMovingAverage(.5)
    before = set(tf.global_variables())
    getattr(model, how)(
        Counting(.1), transform=kept, after_apply=lambda: [
            count_applies(), average.apply(model.variables)])
    first, second = [variable.device for variable in model.variables]
    assert first != second
    made = devices([variable for variable in tf.global_variables()
                    if variable not in before])
    assert {name.rpartition("/")[2]: device
            for name, device in made.items() if "model" not in name} == {
                "steps": first, "kept": first, "applies": first}
    assert {device for name, device in made.items()
            if name.startswith("model/table/")} == {second}


def fingerprint(scope, **kwargs):
    """All that the builder adds inside `scope`."""
    with tf.Graph().as_default() as graph:
        model = Model(servers=2)
        known = set(graph.get_operations())
        with scope():
            model.build(**kwargs)
        return [(op.name, op.type, op.device, [t.name for t in op.inputs],
                 sorted(control.name for control in op.control_inputs))
                for op in graph.get_operations() if op not in known]


@pytest.mark.parametrize("scope", [
    lambda: tf.device("/job:worker/task:7"),
    lambda: tf.device(tf.train.replica_device_setter(
        2, worker_device=WORKER % 1)),
    lambda: tf.variable_scope("p", partitioner=tf.fixed_size_partitioner(2))])
def test_the_scopes_of_a_cluster_change_nothing(scope):
    assert fingerprint(scope) == fingerprint(contextlib.ExitStack)


def test_the_names_are_those_of_a_window_without_a_cluster():
    """Checkpoints of the optimizer's state stay interchangeable, say.

    A group of ops on several devices has one for each, which does nothing.
    """
    def names(place):
        with tf.Graph().as_default() as graph:
            model = models.Regression()
            with tf.device(place):
                tf1accum.build(
                    model.loss, optimizer=tf.train.AdamOptimizer(), k=K,
                    worker_device=place)
            return [op.name for op in graph.get_operations()
                    if op.type != "NoOp"]

    assert names(WORKER % 0) == names(None)


def test_all_parts_of_a_partitioned_variable_are_accumulated_on_the_worker():
    model = Model(servers=2, partitions=2)
    model.build()
    assert sorted(devices(model.variables).values()) == [
        "/job:ps/task:%d" % task for task in (0, 0, 1, 1)]
    accumulated = devices(tf.local_variables())
    assert {"accumulation/model/w/part_1",
            "accumulation/model/table/part_1/values"} <= set(accumulated)
    assert set(accumulated.values()) == {"/job:worker/task:0"}
    slots = devices(tf.global_variables())
    for variable in model.variables:
        assert slots[variable.op.name + "/Adam"] == variable.device


def test_accumulators_may_be_on_another_device_of_the_worker():
    model = Model()
    model.build(accumulator_device="/cpu:1", sparse="dense")
    assert devices(tf.local_variables()) == {
        "accumulation/count": "/job:worker/task:0",
        "accumulation/average_loss": "/job:worker/task:0",
        "accumulation/model/w": "/job:worker/task:0/device:CPU:1",
        "accumulation/model/table": "/job:worker/task:0/device:CPU:1"}


def test_collections_may_be_others_and_the_window_is_on_the_worker_still():
    model = Model()
    model.build(collections=["mine"])
    assert tf.local_variables() == []
    assert set(devices(tf.get_collection("mine")).values()) == {model.place}


# What is refused.


@pytest.mark.parametrize("call, who", [
    (lambda model: model.build(worker_device=None), "tf1accum.build"),
    (lambda model: tf1accum.build_from_gradients(
        model.grads_and_vars, optimizer=RULES["sgd"](), k=K),
     "tf1accum.build_from_gradients"),
    (lambda model: tf1accum.AccumulatingOptimizer(
        RULES["sgd"](), K).minimize(model.loss),
     "tf1accum.AccumulatingOptimizer"),
    (lambda model: tf1accum.AccumulatingOptimizer(
        RULES["sgd"](), K).apply_gradients(model.grads_and_vars),
     "tf1accum.AccumulatingOptimizer"),
    (lambda model: ports.AccumGradOptimizer(
        RULES["sgd"](), K).minimize(model.loss),
     "tf1accum.ports.AccumGradOptimizer"),
    (lambda model: ports.AccumulatingOptimizer(
        RULES["sgd"](), model.variables),
     "tf1accum.ports.AccumulatingOptimizer")])
def test_a_window_that_all_workers_would_share_is_refused(
        call, who, use_resource):
    model = Model(use_resource)
    model.grads_and_vars = [(variable + 0., variable)
                            for variable in model.variables]
    refuses(ValueError, [
        who + ": in a cluster with parameter servers, worker_device must name",
        "or all workers would add to one; got None, and model/w:0 is on "
        "/job:ps/task:0",
        "Pass worker_device=\"/job:worker/task:N\""], lambda: call(model))


@pytest.mark.parametrize("place", [
    "/job:ps/task:0", "/job:worker", "/task:0", "/cpu:0", "", "worker",
    "/job:worker/task:0/gpu:0", 0])
def test_a_place_that_is_no_worker_is_refused(place):
    model = Model()
    refuses(TypeError if place == 0 else ValueError, [
        "tf1accum.build: worker_device must be the job and the task of this "
        "worker, such as \"/job:worker/task:0\", or None", "got %r" % (place,),
        "accumulator_device"], lambda: model.build(worker_device=place))


@pytest.mark.parametrize("call, who, what", [
    (lambda model, place: model.build(worker_device=place), "tf1accum.build",
     "Mean"),
    (lambda model, place: tf1accum.build_from_gradients(
        model.grads_and_vars, optimizer=RULES["sgd"](), k=K,
        worker_device=place), "tf1accum.build_from_gradients", "grad"),
    (lambda model, place: tf1accum.AccumulatingOptimizer(
        RULES["sgd"](), K, worker_device=place).minimize(model.loss),
     "tf1accum.AccumulatingOptimizer", "Mean")])
def test_the_window_of_another_worker_is_refused(call, who, what):
    """Two workers would add to it."""
    model = Model(task=1)
    with tf.device(model.place):
        model.grads_and_vars = [
            (tf.identity(variable, "grad"), variable)
            for variable in model.variables]
    refuses(ValueError, [
        who + ": worker_device must be the worker that computes the gradients",
        "got '/job:worker/task:0', and ", what, "is on /job:worker/task:1",
        "replica_device_setter"], lambda: call(model, WORKER % 0))


@pytest.mark.parametrize("device", [
    "/job:ps/task:0", "/job:worker/task:1/cpu:0", "/task:1"])
def test_accumulators_on_another_task_are_refused(device):
    model = Model()
    refuses(ValueError, [
        "tf1accum.build: accumulator_device must be a device of the worker",
        "got %r, and '/job:worker/task:0' as worker_device" % device],
            lambda: model.build(accumulator_device=device))


def test_a_global_window_of_a_worker_is_refused():
    model = Model()
    refuses(ValueError, [
        "tf1accum.build: collections must not hold GLOBAL_VARIABLES with "
        "worker_device", "got ['mine', 'variables']",
        "every other worker would wait for ever", "LOCAL_VARIABLES"],
            lambda: model.build(collections=["mine", "variables"]))


def test_gradients_on_the_host_and_in_one_run_need_no_worker():
    """They keep nothing between runs."""
    model = Model()
    tf1accum.build_host(model.loss, optimizer=RULES["adam"]())
    assert tf.local_variables() == []
    assert set(devices(tf.global_variables()).values()) == {"/job:ps/task:0"}


# What one worker does.


class OneWorker:
    """A worker's program, and beside it NumPy's: see `run`."""

    def __init__(self, cluster, model, rule="adam", **kwargs):
        self.cluster = cluster
        self.model = model
        self.expected = numpy_window.Window(
            model.start, [False, True], numpy_window.OPTIMIZERS[rule](), K,
            **kwargs)

    def run(self, ops, batches, weights=None, weight=None):
        """Each of `batches` accumulated, and applied at each k-th."""
        every_k = ops.step is not None
        with self.cluster.session(self.model) as session:
            for number, batch in enumerate(batches, 1):
                feed = self.model.feed(batch)
                if weights:
                    feed[weight] = weights[number - 1]
                session.run(ops.step if every_k else ops.accumulate, feed)
                self.expected.accumulate(self.model.micro_batch(
                    self.expected.values, batch,
                    weights and weights[number - 1]))
                if number % K == 0:
                    self.expected.apply()
                    if not every_k:
                        np.testing.assert_allclose(
                            session.run(ops.average_loss),
                            self.expected.average_loss(), rtol=1e-5)
                        session.run(ops.apply)
                        session.run(ops.reset)
                    self.expected.reset()
                self.check(session)
            return session.run([ops.count] + (
                [] if ops.skipped is None else [ops.skipped]))

    def check(self, session):
        values = session.run([self.model.step] + self.model.variables)
        assert values[0] == self.expected.global_step
        for value, expected in zip(values[1:], self.expected.values):
            np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


@in_pairs
@pytest.mark.parametrize("how, rule", [
    ("build", "sgd"), ("every_k", "momentum"), ("build", "adam"),
    ("every_k", "adam")])
def test_a_worker_moves_the_model_as_numpy_does(
        rule, how, behaviour, use_resource, cluster):
    model = Model(use_resource)
    ops = getattr(model, how)(RULES[rule]())
    assert OneWorker(cluster, model, rule).run(ops, model.batches(7)) == [1]


def test_weights_count_and_what_is_not_finite_is_skipped(cluster):
    model = Model()
    weight = tf.placeholder(tf.float32, [])
    ops = model.build(weight=weight, nonfinite="skip")
    batches = model.batches(7)
    batches[1][0][0, 0] = np.nan
    assert OneWorker(cluster, model, nonfinite="skip").run(
        ops, batches, [1., 2., 3., 0., 4., 5., 6.], weight) == [1, 1]


@in_pairs
def test_a_transform_and_what_comes_after_work_across_the_tasks(
        behaviour, use_resource, cluster):
    model = Model(use_resource)
    average = tf.train.ExponentialMovingAverage(.5)
    ops = model.build(
        Counting(numpy_window.RATE), transform=lambda pairs: list(zip(
            tf.clip_by_global_norm([grad for grad, _ in pairs], 1.)[0],
            [variable for _, variable in pairs])),
        after_apply=lambda: [count_applies(), average.apply(model.variables)])
    worker = OneWorker(cluster, model, "sgd", transform=numpy_window.clipped)
    shadow, check = model.start[0].copy(), worker.check

    def check_averages(session):
        check(session)
        if worker.expected.global_step != check_averages.seen:
            check_averages.seen += 1
            shadow[:] = (shadow + worker.expected.values[0]) / 2.
        found, applies = session.run(
            [average.average(model.variables[0]), check_averages.applies])
        np.testing.assert_allclose(found, shadow, rtol=1e-4, atol=1e-5)
        assert applies == check_averages.seen

    check_averages.seen = 0
    check_averages.applies, = [variable for variable in tf.global_variables()
                               if variable.op.name.endswith("applies")]
    worker.check = check_averages
    worker.run(ops, model.batches(7))


def test_a_partitioned_model_is_trained_as_one_that_is_not(cluster):
    model = Model(partitions=2)
    worker = OneWorker(cluster, model, "momentum")

    def check(session):
        parts = session.run(model.variables)
        for value, expected in zip(
                (np.concatenate(parts[:2]), np.concatenate(parts[2:])),
                worker.expected.values):
            np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)

    worker.check = check
    worker.run(model.build(RULES["momentum"]()), model.batches(7))
    assert worker.expected.global_step == 2


def test_a_worker_that_starts_its_window_leaves_the_shared_state(cluster):
    """One that joins late runs its `initializer`: Adam's state is all's."""
    first = Model()
    ops, batch = first.build(), first.batches(1)[0]
    with cluster.session(first) as session:
        session.run(ops.accumulate, first.feed(batch))
        session.run(ops.apply)
        before = session.run(tf.global_variables())
        session.run(ops.initializer)
        assert session.run(ops.count) == 0
        for value, expected in zip(
                session.run(tf.global_variables()), before):
            np.testing.assert_array_equal(value, expected)


# Bytes.


class Wide:
    """A model of one matrix, 400 kB, or of the rows of one."""

    size = 400000

    def __init__(self, rows, place=WORKER % 0):
        self.place = place
        with tf.device(tf.train.replica_device_setter(
                1, worker_device=place)):
            self.x = tf.placeholder(tf.int32 if rows else tf.float32,
                                    [1000] if rows else [None, 1000])
            w = tf.get_variable("w", [2000 if rows else 1000, 100])
            self.loss = tf.reduce_mean(tf.square(
                tf.nn.embedding_lookup(w, self.x) if rows
                else tf.matmul(self.x, w)))
            self.plain = tf.train.GradientDescentOptimizer(.1).minimize(
                self.loss)
        self.feed = {self.x: np.arange(1000) if rows else np.ones([2, 1000])}

    def settings(self):
        return dict(k=8, worker_device=self.place)


@in_pairs
@pytest.mark.parametrize("rows", [False, True])
def test_bytes_to_the_parameter_server_fall_to_one_of_k(
        rows, behaviour, use_resource, cluster):
    """Measured on the wire; rows are those of the same ids each time."""
    model = Wide(rows)
    ops = tf1accum.build(
        model.loss, optimizer=RULES["momentum"](), **model.settings())
    train_op = tf1accum.AccumulatingOptimizer(
        RULES["adam"](), **model.settings()).minimize(model.loss)

    def sent(*runs):
        start = cluster.wire.sent
        for run in runs:
            session.run(run, model.feed)
        return cluster.wire.sent - start

    with cluster.session(model) as session:
        # The ids go there with each micro-batch, to look the rows up.
        without = sent(*[model.plain] * 8)
        assert without > 8 * model.size
        ids = 8 * 4000 if rows else 0
        assert sent(*[ops.accumulate] * 8) < ids + 8 * 500
        # Those of the gradient are of 8 bytes.
        assert model.size < sent(ops.apply) < model.size + 2 * ids + 2000
        assert sent(ops.reset) == 0
        window = sent(*[train_op] * 8)
        assert model.size < window < without / 8. + 2 * ids + 16000
        assert sent(*[train_op] * 7) < ids + 16000


# Several workers.


def side_by_side(work):
    """What `work(task, ready)` returns for both workers, in two threads.

    The chief sets the event `ready`: others look every 30 seconds only.
    """
    ready = threading.Event()

    def in_graph(task):
        with tf.Graph().as_default():
            try:
                return work(task, ready)
            finally:
                ready.set()

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return [done.result(300) for done in [
            pool.submit(in_graph, task) for task in range(2)]]


TRUE = np.float32([[1.], [-2.], [3.]])


@pytest.mark.parametrize("way, behaviour, use_resource", [
    ("hook", "v1", "ref"), ("train_op", "eager_off", "resource")],
                         indirect=["behaviour", "use_resource"])
def test_900_micro_batches_of_two_workers_are_300_applies_and_converge(
        way, behaviour, use_resource, servers, container):
    def work(task, ready):
        place = WORKER % task
        with tf.container(container), tf.device(
                tf.train.replica_device_setter(1, worker_device=place)):
            x = tf.placeholder(tf.float32, [None, 3])
            with tf.variable_scope("", use_resource=use_resource):
                w = tf.get_variable(
                    "w", [3, 1], initializer=tf.zeros_initializer())
                applies = tf.get_variable(
                    "applies", [], initializer=tf.zeros_initializer())
            # Optimizers move a ref variable without locking it.
            with tf.variable_scope("", use_resource=True):
                step = tf.train.get_or_create_global_step()
            loss = tf.reduce_mean(tf.square(tf.matmul(x, w - TRUE)))
            # Two workers write: without locking, an update may be lost.
            settings = dict(worker_device=place, after_apply=lambda: (
                applies.assign_add(1., use_locking=True)))
            optimizer = tf.train.GradientDescentOptimizer(
                .05, use_locking=True)
            if way == "hook":
                ops = tf1accum.build(loss, [w], optimizer=optimizer, k=K,
                                     global_step=step, **settings)
                op, hooks = loss, [tf1accum.AccumulationHook(ops)]
            else:
                opt = tf1accum.AccumulatingOptimizer(
                    optimizer, K, **settings)
                op, hooks = opt.minimize(loss, step, [w]), []
        if task:
            assert ready.wait(120)
        with monitored(servers.targets[task], task, task == 0,
                       hooks) as session:
            ready.set()
            random = np.random.RandomState(task)
            for _ in range(450):
                session.run(op, {x: random.randn(4, 3)})
        barrier.wait(120)
        with tf.Session(servers.targets[task],
                        config=cluster_lib.config(task)) as session:
            return session.run([step, applies, w])

    barrier = threading.Barrier(2)
    for step, applies, w in side_by_side(work):
        assert [step, applies] == [300, 300.]
        np.testing.assert_allclose(w, TRUE, atol=1e-3)



# Workers that come, go and come back.

BATCHES = Model.batches(24, seed=1)


def monitored(target, task, is_chief, hooks, **kwargs):
    """A session that fails rather than to wait long."""
    return tf.train.MonitoredTrainingSession(
        target, is_chief, hooks=hooks, config=cluster_lib.config(task),
        max_wait_secs=60, log_step_count_steps=None, **kwargs)


class Member:
    """A worker with a hook, in a session that saves at each second step."""

    def __init__(self, target, container, task, is_chief, folder=None):
        with tf.Graph().as_default(), tf.container(container):
            self._model = Model(task=task)
            ops = self._model.build()
            self._state = [self._model.step, ops.count] + self._model.variables
            self._session = monitored(
                target, task, is_chief, [] if is_chief else [
                    tf1accum.AccumulationHook(ops)],
                chief_only_hooks=[tf1accum.AccumulationHook(ops)],
                checkpoint_dir=folder, save_checkpoint_steps=2)

    def run(self, numbers):
        """Accumulates those of `BATCHES`; returns the step, count and model."""
        for number in numbers:
            self._session.run(
                self._model.loss, self._model.feed(BATCHES[number]))
        return [value.tolist() for value in self._session.run_step_fn(
            lambda step_context: step_context.session.run(self._state))]

    def end(self):
        self._session.close()


class Process:
    """A `Member` in a process of its own: a run of this file."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__)],
            env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            universal_newlines=True)

    def _ask(self, what):
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        answers, _, _ = select.select([self._process.stdout], [], [], 60)
        assert answers, "no answer in a minute"
        return json.loads(self._process.stdout.readline())

    def begin(self, **settings):
        assert self._ask(settings) == "ready"
        return self

    def run(self, numbers):
        return self._ask(list(numbers))

    def end(self):
        """Kills it, with a signal that it cannot know of."""
        self._process.kill()
        self._process.wait(60)
        self._process.stdout.close()
        with contextlib.suppress(OSError):
            self._process.stdin.close()


def main():
    """What `Process` runs: one line asks, and one line answers."""
    asked = queue.Queue()

    def listen():
        for line in sys.stdin:
            asked.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    set_behaviour("v1")
    settings = asked.get()
    server = tf.train.Server(
        settings.pop("addresses"), job_name="worker",
        task_index=settings["task"])
    answer, member = "ready", Member(server.target, **settings)
    while True:
        print(json.dumps(answer), flush=True)
        answer = member.run(asked.get())


@pytest.fixture
def team(servers, container):
    """Makes workers, all of which end with the test."""
    with contextlib.ExitStack() as stack:

        class Team:
            @staticmethod
            def process(**kwargs):
                process = servers.processes.pop()
                stack.callback(process.end)
                return process.begin(addresses=servers.addresses,
                                     container=container, **kwargs)

            @staticmethod
            def member(task, is_chief, folder=None):
                member = Member(
                    servers.targets[task], container, task, is_chief, folder)
                stack.callback(member.end)
                return member

            @classmethod
            def again(cls, task, **kwargs):
                """In this process, at the address of one that was killed."""
                servers.targets[task] = servers.start("worker", task)
                return cls.member(task, **kwargs)

        yield Team


def in_numpy():
    """The windows of two workers on one model, with one optimizer."""
    one, other = windows = [
        numpy_window.Window(Model.start, [False, True], numpy_window.Adam(), K)
        for _ in range(2)]
    other.values, other.slots, other.optimizer = (
        one.values, one.slots, one.optimizer)
    return windows


def run(worker, windows, own, numbers):
    """Runs `worker`, as NumPy does that one of `windows`, and compares."""
    window = windows[own]
    for number in numbers:
        window.accumulate(Model.micro_batch(window.values, BATCHES[number]))
        if window.count == K:
            window.apply()
            window.reset()
    step, count, *values = worker.run(numbers)
    assert [step, count] == [
        sum(window.global_step for window in windows), window.count]
    for value, expected in zip(values, window.values):
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


def test_workers_apply_each_at_its_own_pace(team):
    """A gradient is of the values of its time, which others move."""
    chief, other = team.member(0, True), team.member(1, False)
    windows = in_numpy()
    for worker, numbers in [
            (chief, [0]), (other, range(1, 6)), (chief, [6]), (other, [7]),
            (chief, [8, 9]), (other, [10, 11, 12])]:
        run(worker, windows, worker is other, numbers)
    assert [window.global_step for window in windows] == [1, 3]


def test_a_worker_that_comes_first_waits_for_the_chief(team, monkeypatch):
    """TensorFlow looks for the chief every 30 seconds, here more often."""
    sleep, waits = time.sleep, threading.Event()

    def nap(seconds):
        waits.set()
        sleep(min(seconds, .1))

    monkeypatch.setattr(time, "sleep", nap)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        coming = pool.submit(team.member, 1, False)
        assert waits.wait(60)
        assert not coming.done()
        chief = team.member(0, True)
        other = coming.result(90)
    windows = in_numpy()
    for worker, numbers in [(other, range(4)), (chief, range(4, 9))]:
        run(worker, windows, worker is other, numbers)


def test_a_killed_worker_loses_its_open_window_and_nothing_else(team):
    chief = team.member(0, True)
    windows = in_numpy()
    run(chief, windows, 0, [0])
    first = team.process(task=2, is_chief=False)
    run(first, windows, 1, range(1, 6))
    assert [window.count for window in windows] == [1, 2]
    first.end()
    run(chief, windows, 0, [])
    windows[1].reset()
    second = team.again(2, is_chief=False)
    run(second, windows, 1, [])
    run(second, windows, 1, range(6, 10))
    run(chief, windows, 0, range(10, 13))
    assert [window.global_step for window in windows] == [1, 2]


def test_a_killed_chief_resumes_from_the_checkpoint(team, tmp_path):
    """The model goes back to it for all; the other's window stays."""
    settings = dict(is_chief=True, folder=str(tmp_path))
    windows = in_numpy()
    first = team.process(task=3, **settings)
    other = team.member(1, False)
    run(first, windows, 0, range(6))
    saved = copy.deepcopy(windows)
    run(other, windows, 1, [6])
    run(first, windows, 0, range(7, 12))
    assert [window.global_step for window in windows] == [3, 0]
    first.end()
    run(other, windows, 1, [])
    # As in the checkpoint, but for the window of the other.
    windows[0] = saved[0]
    for name in ("values", "slots", "optimizer"):
        setattr(windows[1], name, getattr(saved[0], name))
    second = team.again(3, **settings)
    run(second, windows, 0, [])
    run(other, windows, 1, [12, 13])
    run(second, windows, 0, range(14, 18))
    assert [window.global_step for window in windows] == [3, 1]


# The example.


def test_the_example_kills_a_worker_and_goes_on():
    printed = run_example("distributed/parameter_servers.py",
                          "--k", "2", "--windows", "6")
    assert re.findall("worker 1, step .*: (begins|is killed, .*)\n|"
                      "(worker 1 is started again)", printed) == [
                          ("begins", ""),
                          ("is killed, 1 of 2 micro-batches in its window", ""),
                          ("", "worker 1 is started again"), ("begins", "")]
    sent, without = map(int, re.search(
        "sent (.*) bytes to the server for each micro-batch; "
        "without windows (.*)",
        printed).groups())
    # The weights of the network; what TensorFlow says besides is less.
    trained = 4 * (9 * 16 + 9 * 16 * 32 + 512 * 10 + 10)
    assert trained < without < 1.1 * trained
    assert trained / 2. < sent < 1.1 * trained / 2.
    # Of each of the two workers, all windows but the lost one.
    assert re.search("step 12: test accuracy: 0", printed)


if __name__ == "__main__":
    main()
