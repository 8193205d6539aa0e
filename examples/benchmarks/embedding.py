"""Measures what sparse accumulation costs, against the bare gradients.

The model looks rows of a large table up, and has one dense layer and a squared
loss. In each round, each contestant trains on one window of fresh random ids,
and its time is divided by that of the k bare gradient runs of the same round:
runs that compute every gradient and do nothing with it. Beside tf1accum,
`conditional` are TensorFlow's own `SparseConditionalAccumulator` (of the table)
and `ConditionalAccumulator` (of the layer).

    python examples/benchmarks/embedding.py --help
"""

import argparse
import collections
import json
import os
import time

import numpy as np
import tensorflow.compat.v1 as tf

import tf1accum

SIZE = 64
LOOKUPS = 4096
LONGER = 8  # times as many micro-batches, to see what a long window costs
SMALLER = 10  # times fewer rows, to see what a large table costs
FEW = 5  # rounds with long windows, or with a dense accumulator

# Functions: `accumulate` of the ids of a micro-batch, `apply` of nothing.
Contestant = collections.namedtuple("Contestant", ["accumulate", "apply"])


class Model:
    """A table, a layer unless `lookups_only`, and the loss of one micro-batch.

    Its variables are shared by all who train it.
    """

    def __init__(self, rows, lookups_only, name):
        self.rows = rows
        self.ids = tf.placeholder(tf.int32, [LOOKUPS], name=name + "/ids")
        with tf.variable_scope(name):
            self.variables = [tf.get_variable("table", [rows, SIZE])]
            outputs = tf.nn.embedding_lookup(self.variables[0], self.ids)
            if not lookups_only:
                kernel = tf.get_variable("kernel", [SIZE, SIZE])
                bias = tf.get_variable(
                    "bias", [SIZE], initializer=tf.zeros_initializer())
                self.variables += [kernel, bias]
                outputs = tf.matmul(outputs, kernel) + bias
        self.loss = tf.reduce_mean(
            tf.reduce_sum(tf.square(outputs - 1.), axis=1))
        self.optimizer = tf.train.AdagradOptimizer(1.)

    def draw(self, number, random):
        """The ids of `number` micro-batches."""
        return random.randint(
            self.rows, size=[number, LOOKUPS]).astype(np.int32)


def bare_gradients(model):
    """The ops that compute the gradients of a micro-batch, a list.

    They are to be run as they are. Behind a `tf.group`, of which nobody uses
    the values, TensorFlow's graph optimizer leaves the work out.
    """
    pairs = model.optimizer.compute_gradients(model.loss, model.variables)
    parts = []
    for grad, _ in pairs:
        parts += ([grad.values, grad.indices]
                  if isinstance(grad, tf.IndexedSlices) else [grad])
    return [part.op for part in parts]


def bare_apply(model, k):
    """An op that applies k micro-batches of rows that are there already.

    Nobody who hands all rows of a window to the optimizer can do it faster.
    """
    random = np.random.RandomState(0)
    ids, rows = (tf.get_variable(
        name, initializer=initial, trainable=False, use_resource=True)
                 for name, initial in (
                     ("given/ids", model.draw(k, random).reshape([-1])),
                     ("given/rows", tf.zeros([k * LOOKUPS, SIZE]))))
    pairs = [(tf.IndexedSlices(rows, ids), model.variables[0])]
    pairs += [(tf.zeros(variable.shape), variable)
              for variable in model.variables[1:]]
    return model.optimizer.apply_gradients(pairs)


def conditional_accumulators(model, k):
    """The ops `accumulate` and `apply` of TensorFlow's own accumulators.

    They add up, since their mean of a row is over the micro-batches that had
    the row; the gradients come in divided by k.
    """
    latest = tf.constant(tf.int64.max, tf.int64)  # too late for no window
    added, taken = [], []
    for grad, variable in model.optimizer.compute_gradients(
            model.loss, model.variables, grad_loss=tf.constant(1. / k)):
        settings = dict(dtype=grad.dtype, shape=variable.shape,
                        reduction_type="SUM")
        if isinstance(grad, tf.IndexedSlices):
            total = tf.SparseConditionalAccumulator(**settings)
            added.append(total.apply_indexed_slices_grad(grad, latest))
            taken.append((total.take_indexed_slices_grad(k), variable))
        else:
            total = tf.ConditionalAccumulator(**settings)
            added.append(total.apply_grad(grad, latest))
            taken.append((total.take_grad(k), variable))
    return tf.group(*added), model.optimizer.apply_gradients(taken)


class Bench:
    """One session, and the contestants in it."""

    def __init__(self, k, rows, lookups_only, dense):
        self.k = k
        self.random = np.random.RandomState(1)
        tf.set_random_seed(0)
        self.model = model = Model(rows, lookups_only, "model")
        self.small = small = Model(
            max(rows // SMALLER, 1), lookups_only, "small")
        built = {
            "rows": self._tf1accum(model, k),
            "conditional": conditional_accumulators(model, k),
            "long": self._tf1accum(model, LONGER * k),
            "small": self._tf1accum(small, k)}
        if dense:
            built["dense"] = self._tf1accum(model, k, sparse="dense")
        bare = {"rows": bare_gradients(model),
                "small": bare_gradients(small)}
        own_apply = bare_apply(model, k)

        self.session = tf.Session()
        self.initialize = self.session.make_callable(
            tf.global_variables_initializer())
        self.initialize()
        self.contestants = {
            name: Contestant(self._of_ids(accumulate, name),
                             self.session.make_callable(apply))
            for name, (accumulate, apply) in built.items()}
        self.bare = {name: self._of_ids(op, name) for name, op in bare.items()}
        self.own_apply = self.session.make_callable(own_apply)

    def _tf1accum(self, model, k, sparse="rows"):
        ops = tf1accum.build(model.loss, model.variables, model.optimizer, k,
                             sparse=sparse)
        return ops.accumulate, ops.apply_and_reset

    def _of_ids(self, op, name):
        return self.session.make_callable(
            op, feed_list=[self._model(name).ids])

    def _model(self, name):
        return self.small if name == "small" else self.model

    def check_equal(self, windows=2):
        """How far two ways of accumulating get, and are from each other.

        Raises:
          RuntimeError: when they do not lead to the same weights.
        """
        windows = [self.model.draw(self.k, self.random)
                   for _ in range(windows)]
        start = self.session.run(self.model.variables)
        ends = []
        for name in ("rows", "conditional"):
            self.restart(start)
            for window in windows:
                for ids in window:
                    self.contestants[name].accumulate(ids)
                self.contestants[name].apply()
            ends.append(self.session.run(self.model.variables))
        moved, apart = ([float(np.max(np.abs(a - b))) for a, b in zip(*pair)]
                        for pair in ((start, ends[0]), ends))
        if not all(1e4 * a < m for a, m in zip(apart, moved)):
            raise RuntimeError(
                "tf1accum and SparseConditionalAccumulator must lead to the "
                "same weights; they moved by up to {}, and are {} apart."
                .format(moved, apart))
        return {"moved": moved, "apart": apart}

    def restart(self, values):
        """Gives the model these values, and its optimizer no past."""
        optimizer = self.model.optimizer
        for variable, value in zip(self.model.variables, values):
            variable.load(value, self.session)
            for name in optimizer.get_slot_names():
                slot = optimizer.get_slot(variable, name)
                self.session.run(slot.initializer)

    def seconds_of_runs(self, run, name, number):
        """Seconds of `number` runs of `run`, each of its own ids."""
        drawn = self._model(name).draw(number, self.random)
        start = time.perf_counter()
        for ids in drawn:
            run(ids)
        return time.perf_counter() - start

    def seconds_of_window(self, name, k):
        """Seconds of the k accumulates of a window, and those of its apply."""
        contestant = self.contestants[name]
        accumulate = self.seconds_of_runs(contestant.accumulate, name, k)
        start = time.perf_counter()
        contestant.apply()
        return accumulate, time.perf_counter() - start

    def seconds_of_own_apply(self):
        start = time.perf_counter()
        self.own_apply()
        return time.perf_counter() - start


def in_turn(measures, rounds):
    """Calls each of `measures` once a round, a dict of functions.

    Each round starts with another one, so that what one leaves in the caches
    is not always for the same next one. The first round does not count.

    Returns:
      A dict of arrays of what they returned, [rounds, ...].
    """
    names = list(measures)
    measured = {name: [] for name in names}
    for i in range(rounds + 1):
        turn = i % len(names)
        for name in names[turn:] + names[:turn]:
            measured[name].append(measures[name]())
    return {name: np.array(measured[name][1:]) for name in names}


def measure(bench, rounds, dense):
    """All that is printed: milliseconds, and ratios, with their quartiles."""
    k = bench.k
    results = {"tensorflow": tf.__version__, "load": os.getloadavg()[0],
               "equal": bench.check_equal()}

    def windows(names):
        measures = {name: lambda name=name: bench.seconds_of_window(name, k)
                    for name in names}
        measures["bare"] = lambda: (
            bench.seconds_of_runs(bench.bare["rows"], "rows", k), 0.)
        return measures

    def summary(seconds, bare, own=None):
        accumulate, apply = seconds.T
        found = {"accumulate_ms": spread(1e3 * accumulate / k),
                 "apply_ms": spread(1e3 * apply),
                 "window": spread((accumulate + apply) / bare),
                 "accumulates": spread(accumulate / bare)}
        if own is not None:
            found["without_own_apply"] = spread(
                (accumulate + apply - own) / bare)
        return found

    measures = windows(["rows", "conditional"])
    measures["own"] = bench.seconds_of_own_apply
    seconds = in_turn(measures, rounds)
    bare = seconds["bare"][:, 0]
    results["bare_ms"] = spread(1e3 * bare / k)
    results["own_apply_ms"] = spread(1e3 * seconds["own"])
    for name in ("rows", "conditional"):
        results[name] = summary(seconds[name], bare, seconds["own"])
    few = min(rounds, FEW)
    if dense:
        seconds = in_turn(windows(["dense"]), few)
        results["dense"] = summary(seconds["dense"], seconds["bare"][:, 0])
    results["length"] = measure_length(bench, few)
    results["size"] = measure_size(bench, rounds)
    return results


def measure_length(bench, rounds):
    """What a micro-batch costs in a window, and in a LONGER one."""
    k = bench.k
    seconds = in_turn({
        "short": lambda: sum(np.array(bench.seconds_of_window("rows", k))
                             for _ in range(LONGER)),
        "long": lambda: bench.seconds_of_window("long", LONGER * k)}, rounds)
    each = {name: 1e3 * seconds[name] / (LONGER * k) for name in seconds}
    return {
        "k": [k, LONGER * k],
        "accumulate_ms": [spread(each[name][:, 0])
                          for name in ("short", "long")],
        "accumulate_ratio": spread(each["long"][:, 0] / each["short"][:, 0]),
        "window_ms": [spread(each[name].sum(axis=1))
                      for name in ("short", "long")],
        "window_ratio": spread(
            each["long"].sum(axis=1) / each["short"].sum(axis=1))}


def measure_size(bench, rounds):
    """What a micro-batch costs with a table, and with a SMALLER one."""
    measures = {}
    for name in ("small", "rows"):
        measures[name] = lambda name=name: (
            bench.seconds_of_window(name, bench.k)[0],
            bench.seconds_of_runs(bench.bare[name], name, bench.k))
    seconds = in_turn(measures, rounds)
    each = {name: 1e3 * seconds[name] / bench.k for name in seconds}
    return {
        "rows": [bench.small.rows, bench.model.rows],
        "accumulate_ms": [spread(each[name][:, 0]) for name in measures],
        "bare_ms": [spread(each[name][:, 1]) for name in measures],
        "ratio": spread(each["rows"][:, 0] / each["small"][:, 0]),
        "bare_ratio": spread(each["rows"][:, 1] / each["small"][:, 1])}


def spread(values):
    """The quartiles, the median in the middle."""
    return [float(value) for value in np.percentile(values, [25, 50, 75])]


def print_results(results, settings):
    """Prints the tables."""
    def median(quartiles):
        return "{:8.2f}".format(quartiles[1])

    def ratio(quartiles):
        form = "{:.2f}" if quartiles[1] < 100 else "{:.0f}"
        return "{1} [{0}, {2}]".format(*map(form.format, quartiles))

    print("TensorFlow {}, {} CPUs, load average {:.1f} at the start\n"
          "{:,} lookups in a table of {:,} x {}{}; k = {}, {} rounds\n"
          "medians of milliseconds, and of times the k bare gradient runs "
          "[quartiles]\n".format(
              results["tensorflow"], os.cpu_count(), results["load"], LOOKUPS,
              settings.rows, SIZE,
              "" if settings.lookups_only else ", one dense layer",
              settings.k, settings.rounds))
    line = "{:21} {:>8} {:>8}  {:20} {}"
    print(line.format("", "one run", "apply", "k and apply, times",
                      "k, times").rstrip())
    print(line.format("bare gradients", median(results["bare_ms"]), "", "", "")
          .rstrip())
    print(line.format("the optimizer's apply", "",
                      median(results["own_apply_ms"]), "", "").rstrip())
    for title, name in (("tf1accum", "rows"), ("tf1accum, dense", "dense"),
                        ("conditional", "conditional")):
        if name in results:
            found = results[name]
            print(line.format(
                title, median(found["accumulate_ms"]),
                median(found["apply_ms"]), ratio(found["window"]),
                ratio(found["accumulates"])))
    print("\nk and apply, less the optimizer's own apply, which nobody is "
          "spared:\n  tf1accum {}, conditional {}".format(*[
              ratio(results[name]["without_own_apply"])
              for name in ("rows", "conditional")]))

    found = results["length"]
    print("\none micro-batch in windows of {} and of {}".format(*found["k"]))
    for title, what in (("accumulate", "accumulate"),
                        ("with its share of apply", "window")):
        print("  {:24}{} and {} ms, ratio {}".format(
            title, *[median(found[what + "_ms"][i]) for i in (0, 1)],
            ratio(found[what + "_ratio"])))
    found = results["size"]
    print("one micro-batch in tables of {:,} and of {:,} rows".format(
        *found["rows"]))
    for title, what in (("accumulate", ""), ("bare gradients", "bare_")):
        print("  {:24}{} and {} ms, ratio {}".format(
            title, *[median(found[(what or "accumulate_") + "ms"][i])
                     for i in (0, 1)], ratio(found[what + "ratio"])))
    print("\ntf1accum and conditional after two windows: tables {:.1e} apart, "
          "moved {:.1e}".format(*[results["equal"][what][0]
                                  for what in ("apart", "moved")]))


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def main():
    parser = argparse.ArgumentParser(
        description="Measures what sparse accumulation costs, against k runs "
        "that only compute the gradients.")
    parser.add_argument("--k", type=positive, default=8,
                        help="micro-batches in a window (default: 8)")
    parser.add_argument("--rounds", type=positive, default=30,
                        help="windows of each contestant (default: 30)")
    parser.add_argument("--rows", type=positive, default=1000000,
                        help="rows of the table (default: 1000000)")
    parser.add_argument("--lookups-only", action="store_true",
                        help="leave the dense layer out: the harshest case")
    parser.add_argument("--dense", action="store_true",
                        help='measure sparse="dense" too, for a few rounds')
    parser.add_argument("--json", action="store_true",
                        help="print [first quartile, median, third quartile] "
                        "of all as JSON")
    settings = parser.parse_args()

    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    with tf.Graph().as_default():
        bench = Bench(settings.k, settings.rows, settings.lookups_only,
                      settings.dense)
        results = measure(bench, settings.rounds, settings.dense)
    if settings.json:
        print(json.dumps(dict(results, settings=vars(settings)), indent=2,
                         sort_keys=True))
    else:
        print_results(results, settings)


if __name__ == "__main__":
    main()
