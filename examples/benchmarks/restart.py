"""Kills training with SIGKILL, again and again, and looks for what is lost.

A lineage is a run that is killed, started again from the last complete
checkpoint, killed, ... until it ends. Each start is a process of its own. What
it ends with (weights, moving statistics, slots and beta powers of Adam, global
step, window) is compared, bit by bit, with what a run that nobody killed ends
with, and so is each loss on the way, those of micro-batches done again too.

A lineage loses nothing when the data can seek: the next micro-batch is number
`global_step * k + count` of what was restored. Or the window is dropped and
done again, from number `global_step * k`.

    python examples/benchmarks/restart.py --help
"""

import argparse
import collections
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import tensorflow.compat.v1 as tf

import tf1accum

K = 4
WINDOWS = 40
ROWS = 20000  # of the table: a save takes long enough to be killed in
SIZE = 32
EXAMPLES = 16
LOOKUPS = 3  # of an example
SAVE_EVERY = 3  # micro-batches of the loop, so that windows are open
PAUSE = 1.  # seconds between the saves of a monitored session
KILLS_OF_LINEAGE = 25
LIMIT = 300.  # seconds that a process may take

KINDS = ("between", "accumulate", "apply", "save", "random")
# What a save writes, in this order, under names that readers see.
STAGES = ("data", "index", "state", "rest")
DRIVERS = {"loop": ["loop"], "monitored": ["optimizer", "hook"]}


class Log:
    """A file that outlives the process, of one JSON value a line.

    A line is written by one system call, and so is whole or not there.
    """

    def __init__(self, folder):
        self._file = os.open(os.path.join(folder, "log"),
                             os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, what, *values):
        os.write(self._file, (json.dumps([what] + list(values)) + "\n")
                 .encode())


def read_log(folder):
    with open(os.path.join(folder, "log")) as file:
        return [json.loads(line) for line in file]


class Killer:
    """Ends its process at the n-th visit of a place, if that is the plan.

    The plan is a dict: `kind`, one of KINDS; `place`; `n`; and for a save
    `wait`, how far into the place.
    """

    def __init__(self, plan, log):
        self._plan = plan
        self._left = plan.get("n")
        self._log = log

    def visit(self, place):
        """Whether this is the visit that is to be the last."""
        if place != self._plan.get("place"):
            return False
        self._left -= 1
        return self._left == 0

    def pass_by(self, place):
        if self.visit(place):
            os.kill(os.getpid(), signal.SIGKILL)

    def tensor(self, place, tensor):
        """The same tensor, of which the computation is a visit."""

        def look(value):
            self.pass_by(place)
            return value

        same = tf.py_func(look, [tensor], tensor.dtype)
        same.set_shape(tensor.shape)
        return same

    def watch(self, saver):
        """Logs the saves of a saver, and kills in one of them."""
        save = saver.save

        def watched(sess, save_path, global_step=None, **kwargs):
            prefix = "{}-{}".format(save_path, global_step)
            was = versions(prefix)
            self._log.write("save", prefix, was)
            if not any(self.visit(place) for place in ("data", "index",
                                                       "python")):
                path = save(sess, save_path, global_step, **kwargs)
                self._log.write("saved")
                return path
            if self._plan["place"] == "python":
                sys.setprofile(self._counter(prefix, was))
            else:
                threading.Thread(target=self._poll, args=[prefix, was],
                                 daemon=True).start()
            save(sess, save_path, global_step, **kwargs)
            return os.kill(os.getpid(), signal.SIGKILL)

        saver.save = watched

    def _poll(self, prefix, was):
        """Kills while TensorFlow writes the data, or just before the index."""
        folder, name = os.path.split(prefix)
        before = set(os.listdir(folder))
        while stage(prefix, was) == "data" and (
                self._plan["place"] == "index" or not any(
                    other.startswith(name)
                    for other in set(os.listdir(folder)) - before)):
            pass
        time.sleep(self._plan["wait"])
        os.kill(os.getpid(), signal.SIGKILL)

    def _counter(self, prefix, was):
        """Kills in what Python does of a save, once data and index are there:
        it writes the state file, deletes old files, writes the MetaGraph."""
        left = [self._plan["wait"]]

        def count(*_):
            if stage(prefix, was) not in ("data", "index"):
                left[0] -= 1
                if left[0] <= 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        return count


def versions(prefix):
    """Which files are there under the names that a save writes, in order."""
    found = []
    for path in (prefix + ".data-00000-of-00001", prefix + ".index",
                 os.path.join(os.path.dirname(prefix), "checkpoint")):
        try:
            status = os.stat(path)
            found.append([status.st_ino, status.st_mtime_ns])
        except FileNotFoundError:
            found.append(None)
    return found


def stage(prefix, was):
    """Which of STAGES a save is at; `was` is `versions` before it."""
    for name, old, new in zip(STAGES, was, versions(prefix)):
        if new == old:
            return name
    return STAGES[-1]


class Program:
    """The graph of one process: lookups, batch norm, two layers; and Adam.

    Micro-batches have a weight, the number of their examples.
    """

    def __init__(self, driver, killer):
        tf.set_random_seed(0)
        self.ids = tf.placeholder(tf.int32, [EXAMPLES, LOOKUPS])
        self.labels = tf.placeholder(tf.float32, [EXAMPLES])
        self.mask = tf.placeholder(tf.float32, [EXAMPLES])
        weight = tf.reduce_sum(self.mask)
        self.loss = tf.reduce_sum(self.mask * tf.square(
            self._outputs(killer) - self.labels)) / weight
        self.step = tf.train.get_or_create_global_step()

        def transform(grads_and_vars):
            # Only one gradient is held up: others may be applied by then.
            grads, variables = zip(*grads_and_vars)
            last = killer.tensor("before applied", grads[-1])
            return list(zip(grads[:-1] + (last,), variables))

        settings = dict(
            k=K, weight=weight, transform=transform,
            after_apply=lambda: tf.py_func(
                lambda: killer.pass_by("applied"), [], []))
        adam = tf.train.AdamOptimizer(0.01)
        if driver == "optimizer":
            optimizer = tf1accum.AccumulatingOptimizer(adam, **settings)
            self.train_op = optimizer.minimize(self.loss, self.step)
            self.ops = optimizer.ops
        else:
            self.train_op = None
            self.ops = tf1accum.build(self.loss, optimizer=adam,
                                      global_step=self.step, **settings)

    def _outputs(self, killer):

        @tf.custom_gradient
        def killable(inputs):
            # In the midst of the gradients: of later layers they are added.
            return tf.identity(inputs), lambda grad: killer.tensor(
                "gradients", grad)

        with tf.variable_scope("model"):
            table = tf.get_variable("table", [ROWS, SIZE])
            words = killable(tf.reduce_mean(
                tf.nn.embedding_lookup(table, self.ids), axis=1))
            hidden = tf.matmul(words, tf.get_variable("kernel", [SIZE, SIZE]))
            mean, variance = tf.nn.moments(hidden, axes=[0])
            for name, start, batch in (("moving_mean", 0., mean),
                                       ("moving_variance", 1., variance)):
                moving = tf.get_variable(
                    name, [SIZE], trainable=False,
                    initializer=tf.constant_initializer(start))
                tf.add_to_collection(
                    tf.GraphKeys.UPDATE_OPS, moving.assign_sub(
                        .1 * (moving - batch), read_value=False))
            hidden = tf.nn.relu(tf.nn.batch_normalization(
                hidden, mean, variance, tf.get_variable(
                    "beta", [SIZE], initializer=tf.zeros_initializer()),
                None, variance_epsilon=1e-3))
            return tf.squeeze(tf.matmul(
                hidden, tf.get_variable("scores", [SIZE, 1])), axis=1)

    def feed(self, number):
        """Micro-batch `number` of data that can seek."""
        random = np.random.RandomState(number)
        # Some rows are in every micro-batch, some in hardly any.
        ids = random.randint(ROWS, size=[EXAMPLES, LOOKUPS])
        ids[:, 0] %= 10
        return {self.ids: ids, self.labels: np.sin(ids[:, 0]),
                self.mask: np.arange(EXAMPLES) < random.randint(
                    1, EXAMPLES + 1)}


def config():
    # Nothing promises that threads add the parts of a sum up in one order. (To
    # four of them these sums are too small to be split: they made the same.)
    return tf.ConfigProto(intra_op_parallelism_threads=1,
                          inter_op_parallelism_threads=1)


def run_loop(program, settings, saver, log, killer):
    """From the last complete checkpoint to the end, in a session."""
    ops, folder = program.ops, settings["folder"]
    # No two saves have the same name: one that is killed while it replaces the
    # data and the index of another, which is complete, leaves neither.
    path = os.path.join(folder, "start{}".format(settings["start"]))

    def save(number):
        saver.save(sess, path, global_step=number, write_meta_graph=False)

    with tf.Session(config=config()) as sess:
        state = tf.train.get_checkpoint_state(folder)
        if state is None:
            sess.run(tf.global_variables_initializer())
        else:
            saver.restore(sess, state.model_checkpoint_path)
            # It goes on deleting the old ones.
            saver.recover_last_checkpoints(state.all_model_checkpoint_paths)
            if settings["policy"] == "drop":
                sess.run(ops.reset)
        step, count = sess.run([program.step, ops.count])
        log.write("restored", int(step), int(count))
        while step < WINDOWS:
            while count < K:
                number = int(step * K + count)
                log.write("micro-batch", number)
                _, loss = sess.run([ops.accumulate, program.loss],
                                   program.feed(number))
                count += 1
                log_losses(log, loss, sess.run(ops.average_loss))
                killer.pass_by("between")
                if (number + 1) % SAVE_EVERY == 0:
                    save(number + 1)
            # Not a place to save: the step has moved, the window is still full.
            sess.run(ops.apply)
            killer.pass_by("between")
            sess.run(ops.reset)
            step, count = step + 1, 0
        save(WINDOWS * K)


class LossLogger(tf.train.SessionRunHook):
    """Logs the losses of each run, before the session's saver sees the run.

    A program that is killed in a save never sees what the run returned; but
    the micro-batch is in the checkpoint, and is not done again.
    """

    def __init__(self, program, log):
        self._program = program
        self._log = log

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._program.loss)

    def after_run(self, run_context, run_values):
        log_losses(self._log, run_values.results, run_context.session.run(
            self._program.ops.average_loss))


def run_monitored(program, settings, saver, log, killer):
    """From the last complete checkpoint to the end, monitored."""
    ops = program.ops
    by_time = settings["start"] % 2 == 0
    saves = (dict(save_checkpoint_secs=PAUSE, save_checkpoint_steps=None)
             if by_time else dict(save_checkpoint_steps=2))
    with tf.train.MonitoredTrainingSession(
            checkpoint_dir=settings["folder"], config=config(),
            scaffold=tf.train.Scaffold(saver=saver),
            chief_only_hooks=([] if program.train_op is not None else [
                tf1accum.AccumulationHook(ops)]) + [
                    LossLogger(program, log)],
            log_step_count_steps=0, save_summaries_steps=None,
            save_summaries_secs=None, **saves) as sess:

        def look(fetches):
            return sess.run_step_fn(
                lambda step_context: step_context.session.run(fetches))

        if settings["policy"] == "drop":
            # Not in a local_init_op, which comes before the saver: it saves
            # what was restored at once, under the name that it has already.
            # What it replaces has to be the same: see `run_loop`.
            look(ops.reset)
        step, count = look([program.step, ops.count])
        log.write("restored", int(step), int(count))
        # A StopAtStepHook would run one more, where all was done already.
        for number in range(int(step * K + count), WINDOWS * K):
            if by_time and number == (step + 1) * K + 1:
                time.sleep(PAUSE)  # The saver's time comes in mid-window.
            log.write("micro-batch", number)
            sess.run(program.loss if program.train_op is None
                     else program.train_op, program.feed(number))
            killer.pass_by("between")


def log_losses(log, *values):
    log.write("losses", *[float(value).hex() for value in values])


def train(settings):
    """What a process does: it builds, restores, and trains until it dies."""
    log = Log(settings["folder"])
    killer = Killer(settings["plan"], log)
    with tf.Graph().as_default():
        program = Program(settings["driver"], killer)
        saver = tf1accum.resumable_saver()
        killer.watch(saver)
        log.write("start")
        (run_loop if settings["driver"] == "loop" else run_monitored)(
            program, settings, saver, log, killer)


def be_child():
    """Trains as the parent says, and ends with it at the latest."""
    settings = sys.stdin.readline()
    if settings:
        threading.Thread(target=lambda: [sys.stdin.read(), os._exit(1)],
                         daemon=True).start()
        train(json.loads(settings))


class Children:
    """Processes that train, one at a time; none outlives a `with` block.

    The next one is started early: it takes seconds to import TensorFlow.
    """

    def __enter__(self):
        self._errors = tempfile.TemporaryFile()
        self._next = self._start()
        return self

    def __exit__(self, *_):
        self._end(self._next)
        self._errors.close()

    def _start(self):
        return subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--child"],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=self._errors)

    def _end(self, child):
        child.kill()
        child.wait()
        child.stdin.close()

    def run(self, settings):
        """Runs one until its end.

        Returns:
          Whether it was killed, and the seconds from its start line on.

        Raises:
          RuntimeError: it failed, or took longer than LIMIT.
        """
        child, self._next = self._next, self._start()
        try:
            size = log_size(settings["folder"])
            child.stdin.write((json.dumps(settings) + "\n").encode())
            child.stdin.flush()
            deadline = time.time() + LIMIT
            while (log_size(settings["folder"]) == size
                   and child.poll() is None and time.time() < deadline):
                time.sleep(.001)
            start = time.time()
            if settings["plan"].get("kind") == "random":
                wait = start + settings["plan"]["wait"]
                while child.poll() is None and time.time() < wait:
                    time.sleep(.001)
                child.kill()
            try:
                status = child.wait(max(0., deadline - time.time()))
            except subprocess.TimeoutExpired:
                status = "none after {} s".format(LIMIT)
        finally:
            self._end(child)
        if status not in (0, -signal.SIGKILL):
            self._errors.seek(0)
            raise RuntimeError(
                "restart.py: a process must end or be killed; this one had "
                "status {}, from {}: {}".format(
                    status, settings,
                    self._errors.read().decode(errors="replace")[-4000:]))
        return status != 0, time.time() - start


def log_size(folder):
    path = os.path.join(folder, "log")
    return os.path.getsize(path) if os.path.exists(path) else 0


def make_plans(kills, random):
    """A plan for each kill, each kind as often as the others."""
    plans = []
    for kind in (KINDS * (kills // len(KINDS) + 1))[:kills]:
        plan = {"kind": kind, "n": int(random.randint(1, 13))}
        if kind == "random":
            plan["wait"] = random.uniform()  # times what a run takes
        elif kind == "save":
            plan["place"] = ["data", "index", "python"][random.randint(3)]
            plan["n"] = int(random.randint(1, 4))
            plan["wait"] = {"data": random.uniform(0., .005), "index": 0.,
                            "python": int(random.randint(1, 400))}[
                                plan["place"]]
        elif kind == "apply":
            plan["place"] = ["before applied", "applied"][random.randint(2)]
            plan["n"] = int(random.randint(1, 3))
        else:
            plan["place"] = {"accumulate": "gradients"}.get(kind, kind)
        plans.append(plan)
    random.shuffle(plans)
    return plans


def final_values(folder):
    """All that the last checkpoint holds, arrays by their keys."""
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(folder))
    return {key: reader.get_tensor(key)
            for key in reader.get_variable_to_shape_map()}


def count_different(values, others):
    """How many numbers of arrays differ in a bit, by their keys."""
    different = {}
    for key in set(values) | set(others):
        a, b = (np.atleast_1d(arrays.get(key, ())) for arrays in (
            values, others))
        if a.shape != b.shape or a.dtype != b.dtype:
            different[key] = max(a.size, b.size)
        elif a.tobytes() != b.tobytes():
            bits = "u{}".format(a.itemsize)
            different[key] = int(np.sum(a.view(bits) != b.view(bits)))
    return different


def losses(lines):
    """Pairs of a number, and the losses that a log has for it, in order."""
    return [(before[1], line[1:]) for before, line in zip(lines, lines[1:])
            if line[0] == "losses"]


def window_means(losses_by_number):
    """The mean loss of each window, of what its micro-batches had last."""
    return [np.mean([float.fromhex(losses_by_number[number][0])
                     for number in range(i, i + K)])
            for i in range(0, WINDOWS * K, K)]


class Lineage:
    """One folder: what was done in it, and what was found of each kill."""

    def __init__(self, driver, policy, children, folder):
        self.settings = {"driver": driver, "policy": policy, "folder": folder,
                         "start": 0}
        self._children = children
        self.seconds = None

    def run(self, plan):
        """Starts it (again); returns whether it was killed."""
        self.settings["start"] += 1
        killed, self.seconds = self._children.run(
            dict(self.settings, plan=plan))
        return killed

    def place_of_kill(self):
        """The stage of the save that was killed, or None."""
        last = read_log(self.settings["folder"])[-1]
        return stage(*last[1:]) if last[0] == "save" else None

    def restarts_in_mid_window(self):
        return sum(line[2] > 0 for line in read_log(self.settings["folder"])
                   if line[0] == "restored")

    def compare(self, unbroken):
        """How it differs from the lineage that nobody killed: a dict."""
        folders = [lineage.settings["folder"] for lineage in (self, unbroken)]
        done, right = (losses(read_log(folder)) for folder in folders)
        right = dict(right)
        if sorted(dict(done)) != list(range(WINDOWS * K)):
            raise RuntimeError(
                "restart.py: each micro-batch must be done; these were: {}."
                .format(sorted(dict(done))))
        different = count_different(*map(final_values, folders))
        # With a dropped window, batch norm sees its micro-batches once more.
        moving = [key for key in different if "/moving_" in key
                  and self.settings["policy"] == "drop"]
        return {
            "again": len(done) - WINDOWS * K,
            "moved": sum(different.pop(key) for key in moving),
            "values": sum(different.values()),
            "losses": sum(value != right[number] for number, value in done),
            "means": sum(bool(a != b) for a, b in zip(
                window_means(dict(done)), window_means(right)))}


def measure(way, kills, seed, policy):
    """Kills one way of working that often; returns what was found, counts."""
    random = np.random.RandomState(seed)
    plans = make_plans(kills, random)
    drivers = DRIVERS[way]
    most = min(KILLS_OF_LINEAGE, -(-kills // len(drivers)))
    found = collections.Counter()
    unbroken = {}
    with tempfile.TemporaryDirectory() as root, Children() as children:

        def new_lineage(driver):
            return Lineage(driver, policy, children, tempfile.mkdtemp(dir=root))

        while plans:
            driver = drivers[found["lineages"] % len(drivers)]
            if driver not in unbroken:
                unbroken[driver] = new_lineage(driver)
                unbroken[driver].run({})
            lineage = new_lineage(driver)
            run_lineage(lineage, plans, most, unbroken[driver].seconds, found)
            found["lineages"] += 1
            found["mid-window"] += lineage.restarts_in_mid_window()
            found.update(lineage.compare(unbroken[driver]))
    return found


def run_lineage(lineage, plans, most, seconds, found):
    """Kills it by the next of `plans`, `most` times at most; lets it end.

    Args:
      lineage: a new `Lineage`.
      plans: list; the plans that were carried out are taken away.
      most: integer.
      seconds: what a run takes that is not killed.
      found: a Counter to add to.
    """
    kills = 0
    while True:
        plan = dict(plans[0]) if plans and kills < most else {}
        if plan.get("kind") == "random":
            # A part of a run, so that there is something left to be killed.
            plan["wait"] *= seconds / 4
        if not lineage.run(plan):
            return
        kills += 1
        plans.pop(0)
        found[plan["kind"]] += 1
        place = lineage.place_of_kill()
        if place is not None:
            found["{} {}".format(plan["kind"], place)] += 1
            found["{} saving".format(plan["kind"])] += 1


RESULTS = [
    ("between two runs of ops", "between"),
    ("inside accumulate", "accumulate"),
    ("inside apply", "apply"),
    ("while a checkpoint was saved", "save"),
    ("  its data", "save data"),
    ("  its data there, its index not", "save index"),
    ("  both there, the state file old", "save state"),
    ("  that new, old files there", "save rest"),
    ("at a random instant", "random"),
    ("  while a checkpoint was saved", "random saving"),
    ("restarts", "kills"),
    ("  in the middle of a window", "mid-window"),
    ("lineages", "lineages"),
    ("micro-batches done again", "again"),
    ("wrong values at the end", "values"),
    ("wrong losses of micro-batches", "losses"),
    ("wrong mean losses of windows", "means")]


def rows_of(settings):
    return RESULTS + (
        [("moving statistics that moved again", "moved")]
        if settings.policy == "drop" else [])


def print_results(results, settings):
    """Prints the table."""
    print("TensorFlow {}; {} windows of {}; seed {}; after a restart, {} the "
          "window\n".format(tf.__version__, WINDOWS, K, settings.seed,
                            settings.policy))
    line = "{:36}" + "{:>12}" * len(results)
    print(line.format("killed", *results))
    for title, key in rows_of(settings):
        print(line.format(title, *[found[key] for found in results.values()]))


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def main():
    parser = argparse.ArgumentParser(
        description="Kills training with SIGKILL, starts it again from its "
        "last complete checkpoint, and compares, bit by bit, what it ends with "
        "with what a run ends with that was not killed.")
    parser.add_argument("--kills", type=positive, default=50,
                        help="kills of each way (default: 50)")
    parser.add_argument("--seed", type=int, default=0,
                        help="of the moments to kill at (default: 0)")
    parser.add_argument("--way", choices=["loop", "monitored", "both"],
                        default="both", help="how the program trains: in a "
                        "loop around a session, or in monitored sessions, half "
                        "of them with an AccumulatingOptimizer and half with "
                        "an AccumulationHook (default: both)")
    parser.add_argument("--policy", choices=["continue", "drop"],
                        default="continue", help="what becomes of the window "
                        "that was restored (default: continue)")
    parser.add_argument("--json", action="store_true",
                        help="print the counts as JSON")
    parser.add_argument("--child", action="store_true",
                        help=argparse.SUPPRESS)
    settings = parser.parse_args()

    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    if settings.child:
        be_child()
        return
    ways = list(DRIVERS) if settings.way == "both" else [settings.way]
    results = collections.OrderedDict()
    for way in ways:
        results[way] = measure(
            way, settings.kills, settings.seed, settings.policy)
        results[way]["kills"] = sum(results[way][kind] for kind in KINDS)
    if settings.json:
        print(json.dumps({
            "tensorflow": tf.__version__, "ways": {
                way: {key: found[key] for _, key in rows_of(settings)}
                for way, found in results.items()},
            "settings": {name: value for name, value in vars(settings).items()
                         if name not in ("json", "child")}},
                         indent=2, sort_keys=True))
    else:
        print_results(results, settings)


if __name__ == "__main__":
    main()
