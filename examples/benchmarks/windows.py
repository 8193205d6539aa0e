"""Measures what a window costs by each way there is, against the gradients.

In each round, each contestant trains on one window, and its time is divided by
that of the k bare gradient runs of the same round: runs that compute every
gradient and do nothing with it. Before they are timed, all are checked to lead
to the weights that NumPy's mean of the gradients leads to.

    python examples/benchmarks/windows.py --help

The limit of a way is what it would cost if nothing but memory held it up:

    limit = k bare gradient runs + one bare apply + passes * seconds of a pass

Bare apply hands the optimizer gradients that are there already. A pass reads
or writes as many bytes as there are parameters, at the bandwidth that the same
round has for what accumulating does: `assign_add` (two reads and one write) of
six resource variables of 2048 x 2048 to six others, in one run, less a run of
nothing. No cache holds these. What can't be avoided:

    adding to zeros (3 k + 1)    each of k gradients is read, and the total is
                                 read and written; once, zeros are written.
                                 The recipe, the wrapper, `build`,
                                 `AccumulatingOptimizer`
    taking over (3 (k - 1))      the first gradient's buffer becomes the total:
                                 `microbatch_gradients`, a loop
    in NumPy (3 (k - 1) + 2)     likewise; the total is read and written once
                                 more, to divide it. Fetching and feeding need
                                 no copy. The NumPy recipe, `build_host`

What has just been computed may still be in a cache, so that a way can beat its
limit, if by little. Gradients that are rows have no limit here: see
`embedding.py`.
"""

import argparse
import gc
import json
import os
import time

import numpy as np
import tensorflow.compat.v1 as tf

import contestants as contestants_lib
import workloads as workloads_lib
from embedding import in_turn, positive, spread

CONTESTANTS = contestants_lib.CONTESTANTS
WORKLOADS = workloads_lib.WORKLOADS
BUFFERS = [[2048, 2048]] * 6
BUFFER_BYTES = 6 * 4 * 2048 ** 2


class Bench:
    """One workload and k, in the default graph, and who trains it."""

    def __init__(self, workload, k, names):
        self.model = model = contestants_lib.Model(workload, k)
        # First, since it makes what the optimizer keeps outside of any branch.
        self.bare = contestants_lib.Bare(model)
        self.trainers = {name: CONTESTANTS[name].build(model)
                         for name in names}
        self._bare_runs = {
            "bare": contestants_lib.bare(model, self.bare.ops),
            "bare_callable": contestants_lib.bare_callable(
                model, self.bare.ops)}
        self.addition = tf.group(*[
            contestants_lib.random_variable(shape).assign_add(
                contestants_lib.random_variable(shape), read_value=False)
            for shape in BUFFERS])
        self.nothing = tf.no_op()
        model.initialize()
        self.bare.remember_start()

    def check_equal(self, number=2):
        """How far apart contestants are from NumPy after `number` windows.

        Each weight is compared, and each statistic of batch norm.

        Returns:
          A dict from name to the largest distance, in parts of how far the
          variable moved.

        Raises:
          RuntimeError: when one does not lead to the same values.
        """
        model = self.model
        windows = [model.draw() for _ in range(number)]
        steps = {
            "window": [window.micro_batches for window in windows],
            "micro-batch": [[feed] for window in windows
                            for feed in window.micro_batches],
            "whole": [[window.whole] for window in windows]}
        if not model.update_ops:
            # Nothing makes batch norm's results equal; all else is.
            steps["whole"] = steps["window"]
        wanted = {CONTESTANTS[name].steps for name in self.trainers}
        expected = {name: self.bare.trained(steps[name]) for name in wanted}
        apart = {}
        for name, train in self.trainers.items():
            self.bare.restart()
            for window in windows:
                train(window)
            apart[name] = farthest(
                self.bare.start, expected[CONTESTANTS[name].steps],
                model.values())
            if not apart[name] < 1e-3:
                raise RuntimeError(
                    "{} must lead to the values that the mean of the "
                    "gradients leads to; some are {:.1e} of their way apart."
                    .format(name, apart[name]))
        self.bare.restart()
        return apart

    def seconds(self, rounds):
        """Seconds of everyone's windows, a dict of arrays [rounds]."""
        model = self.model
        window = model.draw()

        def timed(function, *arguments):
            start = time.perf_counter()
            function(*arguments)
            return time.perf_counter() - start

        measures = {}
        for trainers in (self._bare_runs, self.trainers):
            for name, train in trainers.items():
                measures[name] = lambda train=train: timed(train, window)
        for name, op in (("apply", self.bare.apply),
                         ("addition", self.addition),
                         ("nothing", self.nothing)):
            measures[name] = lambda op=op: timed(model.session.run, op)
        return in_turn(measures, rounds)


def farthest(start, expected, values):
    """The largest distance of a variable, in parts of how far it moved.

    Of its norms: among the millions of units of a large batch there are some
    that rounding alone turns on or off, for all who add up in another order.
    """
    parts = []
    for before, wanted, value in zip(start, expected, values):
        moved = np.linalg.norm(wanted - before)
        apart = np.linalg.norm(value - wanted)
        parts.append(apart / moved if moved else apart and np.inf)
    return float(np.max(parts))


def measure(name, k, names, rounds):
    """All that is printed of one workload and k."""
    load = os.getloadavg()[0]
    with tf.Graph().as_default():
        bench = Bench(WORKLOADS[name](), k, names)
        try:
            apart = bench.check_equal()
            seconds = bench.seconds(rounds)
        finally:
            bench.model.session.close()
        found = summary(bench, seconds, names, apart)
    found.update(workload=name, title=bench.model.workload.title, load=load)
    # A model and its accumulators, before the next one's are made.
    del bench
    gc.collect()
    return found


def summary(bench, seconds, names, apart):
    """Milliseconds and ratios, with their quartiles."""
    model, bare = bench.model, seconds["bare"]
    bandwidth = 3 * BUFFER_BYTES / (seconds["addition"] - seconds["nothing"])
    one_pass = model.bytes / bandwidth
    found = {
        "k": model.k, "bytes": model.bytes, "rows": bench.bare.sparse,
        "bare_ms": spread(1e3 * bare),
        "bare_callable": spread(seconds["bare_callable"] / bare),
        "apply_ms": spread(1e3 * seconds["apply"]),
        "gigabytes_per_second": spread(bandwidth / 1e9), "contestants": {}}
    for name in names:
        entry = {"ms": spread(1e3 * seconds[name]),
                 "ratio": spread(seconds[name] / bare), "apart": apart[name]}
        passes = CONTESTANTS[name].passes
        if passes is not None and not bench.bare.sparse:
            limit = bare + seconds["apply"] + passes(model.k) * one_pass
            entry.update(passes=passes(model.k), limit=spread(limit / bare),
                         of_limit=spread(seconds[name] / limit))
        found["contestants"][name] = entry
    return found


def print_found(found):
    """Prints the table of one workload and k."""
    def ratio(quartiles):
        form = "{:.2f}" if quartiles[1] < 100 else "{:.0f}"
        return "{1} [{0}, {2}]".format(*map(form.format, quartiles))

    print("\n{}, k = {}: parameters of {:.3g} MB, load average {:.1f}".format(
        found["title"], found["k"], found["bytes"] / 1e6, found["load"]))
    bandwidth = found["gigabytes_per_second"][1]
    print("  bare apply {:.2f} ms, a pass over the parameters {:.3g} ms "
          "({:.2f} GB/s)".format(
              found["apply_ms"][1], found["bytes"] / bandwidth / 1e6,
              bandwidth))
    line = "  {:22}{:>10}  {:20} {:20}"
    print(line.format("", "ms", "times bare", "times its limit").rstrip())
    print(line.format("bare gradients, k runs", "{:.2f}".format(
        found["bare_ms"][1]), "", "").rstrip())
    print(line.format("  make_callable", "", ratio(found["bare_callable"]), "")
          .rstrip())
    for name, entry in found["contestants"].items():
        print(line.format(
            CONTESTANTS[name].title, "{:.2f}".format(entry["ms"][1]),
            ratio(entry["ratio"]), ratio(entry["of_limit"])
            if "of_limit" in entry else "").rstrip(), flush=True)


def main():
    parser = argparse.ArgumentParser(
        description="Measures what a window costs by each way there is, "
        "against k runs that only compute the gradients.")
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS),
                        default=list(WORKLOADS), metavar="NAME",
                        help="of {} (default: all)".format(
                            ", ".join(WORKLOADS)))
    parser.add_argument("--k", nargs="+", type=positive, default=[2, 4, 8, 32],
                        help="micro-batches in a window (default: 2 4 8 32)")
    parser.add_argument("--rounds", type=positive, default=15,
                        help="windows of each contestant (default: 15)")
    parser.add_argument("--contestants", nargs="+",
                        choices=list(CONTESTANTS),
                        default=list(CONTESTANTS), metavar="NAME",
                        help="of {} (default: all)".format(
                            ", ".join(CONTESTANTS)))
    parser.add_argument("--resource-variables", action="store_true",
                        help="the model's variables are resource variables, "
                        "not the reference variables of TensorFlow 1")
    parser.add_argument("--json", action="store_true",
                        help="print [first quartile, median, third quartile] "
                        "of all as JSON")
    settings = parser.parse_args()

    tf.disable_v2_behavior()
    if settings.resource_variables:
        tf.enable_resource_variables()
    tf.logging.set_verbosity(tf.logging.ERROR)
    if not settings.json:
        print("TensorFlow {}, {} CPUs, {} rounds\n"
              "medians of milliseconds of a window, and of times the k bare "
              "gradient\nruns and of times the way's own limit [quartiles]"
              .format(tf.__version__, os.cpu_count(), settings.rounds))
    results = []
    for name in settings.workloads:
        for k in settings.k:
            results.append(measure(
                name, k, settings.contestants, settings.rounds))
            if not settings.json:
                print_found(results[-1])
    if settings.json:
        print(json.dumps({
            "tensorflow": tf.__version__, "cpus": os.cpu_count(),
            "settings": vars(settings), "results": results}, indent=2,
                         sort_keys=True))


if __name__ == "__main__":
    main()
