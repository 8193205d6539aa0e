"""Random programs, compared after each step with a plain NumPy model.

`--sequences N` runs the sequences 0 to N - 1, and `--seed S` runs S alone. All
that is random in a sequence comes from its seed.
"""

import collections
import contextlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import conftest
import models
import numpy_window
import tf1accum

SEQUENCES_A_CASE = 10

# How far what is computed in a type may be off. The model adds up in float64.
TOLERANCE = {"float16": 1e-2, "float32": 3e-5, "float64": 1e-9}

Setup = collections.namedtuple("Setup", (
    "behaviour", "use_resource", "scope", "variables", "real_loss", "loss",
    "optimizer", "k", "k_kind", "reduction", "weight", "nonfinite", "transform",
    "sparse", "accumulator_dtype", "global_step"))

# A variable of the model; `ids` is the type of the ids of its gradient, or None
# when that is dense.
Variable = collections.namedtuple("Variable", ("shape", "dtype", "grad", "ids"))

DENSE_SHAPES = [(), (0,), (3,), (4, 2)]
TABLE_SHAPES = [(5,), (6, 3), (1, 2), (0, 2), (4, 2, 2)]

TRANSFORMS = {
    "none": (None, None),
    "clip": (lambda pairs: list(zip(
        tf.clip_by_global_norm([grad for grad, _ in pairs], 1.)[0],
        [variable for _, variable in pairs])), numpy_window.clipped),
    "decay": (lambda pairs: [
        (decayed(grad, variable), variable) for grad, variable in pairs],
              numpy_window.decayed),
}

SCOPES = {
    "none": contextlib.ExitStack,
    "name": lambda: tf.name_scope("outer"),
    "variable": lambda: tf.variable_scope("outer"),
    "reuse": lambda: tf.variable_scope("model", reuse=True),
    "control": lambda: tf.control_dependencies([tf.no_op()]),
}

OPTIMIZERS = {
    "adagrad": tf.train.AdagradOptimizer,
    "adam": lambda rate: tf.train.AdamOptimizer(
        rate, numpy_window.BETA1, numpy_window.BETA2, numpy_window.EPSILON),
    "momentum": lambda rate: tf.train.MomentumOptimizer(
        rate, numpy_window.MOMENTUM),
    "nesterov": lambda rate: tf.train.MomentumOptimizer(
        rate, numpy_window.MOMENTUM, use_nesterov=True),
    "sgd": tf.train.GradientDescentOptimizer,
}


def decayed(grad, variable):
    """Weight decay; of a table, that of the rows that were looked up."""
    if not isinstance(grad, tf.IndexedSlices):
        return grad + 0.25 * variable
    return tf.IndexedSlices(
        grad.values + 0.25 * tf.gather(variable, grad.indices), grad.indices,
        grad.dense_shape)


def pytest_generate_tests(metafunc):
    if "seeds" in metafunc.fixturenames:
        seed = metafunc.config.getoption("--seed")
        number = metafunc.config.getoption("--sequences")
        chunks = [range(start, min(start + SEQUENCES_A_CASE, number))
                  for start in range(0, number, SEQUENCES_A_CASE)
                  ] if seed is None else [range(seed, seed + 1)]
        metafunc.parametrize("seeds", chunks, ids=[
            "{}-{}".format(chunk[0], chunk[-1]) for chunk in chunks])


def test_random_sequences_of_steps_do_what_numpy_does(seeds, tmp_path):
    for seed in seeds:
        run_sequence(seed, str(tmp_path))


def test_a_sequence_that_diverges_names_its_seed_and_step(
        tmp_path, monkeypatch):
    monkeypatch.setattr(numpy_window.Window, "apply", lambda self: None)
    with pytest.raises(AssertionError) as error:
        for seed in range(20):
            run_sequence(seed, str(tmp_path))
    words = str(error.value)
    for word in ("sequence {} diverged at step ".format(seed), "apply",
                 "expected:", "got:", "Setup(behaviour=", "the steps: ",
                 "tests/test_differential.py --seed {}".format(seed)):
        assert word in words, words


def test_the_sequences_reach_every_choice():
    drawn = collections.defaultdict(collections.Counter)
    for seed in range(300):
        random = np.random.RandomState(seed)
        setup = draw_setup(random)
        for field, value in setup._asdict().items():
            for choice in value if field == "variables" else [value]:
                drawn[field][choice] += 1
        for variable in setup.variables:
            for field, value in variable._asdict().items():
                drawn[field][value] += 1
    rare = {(field, choice): number for field, counter in drawn.items()
            for choice, number in counter.items() if field != "variables"
            and number < 5}
    assert not rare
    assert set(drawn["optimizer"]) == set(OPTIMIZERS)
    assert set(drawn["shape"]) == set(DENSE_SHAPES + TABLE_SHAPES)


# What is drawn.


def pick(random, *choices):
    return choices[random.randint(len(choices))]


def draw_setup(random):
    """A `Setup`; the first of several equal choices is the usual one."""
    real_loss = random.rand() < 0.2
    transform = pick(random, "none", "none", "clip", "decay")
    dtype = pick(random, "float32", "float32", "float64", "float16", "mixed")
    if dtype == "mixed" and (real_loss or transform == "clip"):
        # One loss, or one norm, is of one type.
        dtype = "float32"
    variables = tuple(
        draw_variable(random, dtype, real_loss)
        for _ in range(pick(random, 1, 1, 1, 2, 2, 3, 4)))
    return Setup(
        behaviour=pick(random, "v1", "eager_off"),
        use_resource=pick(random, False, True),
        scope=pick(random, *sorted(SCOPES)),
        variables=variables,
        real_loss=real_loss,
        loss=None if not real_loss and random.rand() < 0.1
        else pick(random, *variables).dtype,
        optimizer=pick(random, *sorted(OPTIMIZERS)),
        k=random.randint(1, 6),
        k_kind=pick(random, "number", "number", "variable", "tensor"),
        reduction=pick(random, "mean", "mean", "sum"),
        weight=pick(random, None, None, None, "int32", "int64", "float16",
                    "float32", "float64"),
        nonfinite=pick(random, "propagate", "skip", "raise"),
        transform=transform,
        sparse=pick(random, "rows", "rows", "rows", "dense"),
        accumulator_dtype=pick(random, None, None, None, "float32", "float64"),
        global_step=pick(random, None, "int32", "int64"))


def draw_variable(random, dtype, real_loss):
    if dtype == "mixed":
        dtype = pick(random, "float16", "float32", "float64")
    grad = dtype if real_loss else pick(
        random, dtype, dtype, dtype, "float16", "float32", "float64")
    ids = pick(random, None, None, "int32", "int64")
    shape = pick(random, *(TABLE_SHAPES if ids else DENSE_SHAPES))
    return Variable(shape, dtype, grad, ids)


def draw_values(random, shape, dtype):
    return np.asarray(random.randn(*shape), dtype)


def draw_fed(random, setup):
    """What is fed for each variable: an array, or `Rows`."""
    fed = []
    for variable in setup.variables:
        shape, ids = variable.shape, None
        if variable.ids:
            # Few ids of few rows repeat.
            number = random.randint(7) if shape[0] else 0
            ids = random.randint(max(shape[0], 1), size=number).astype(
                variable.ids)
            shape = (number,) + shape[1:]
        values = draw_values(random, shape, variable.grad)
        fed.append(numpy_window.Rows(ids, values) if variable.ids else values)
    return fed


def draw_micro_batch(random, setup, bad):
    """A `MicroBatch` of what is fed. With a real loss, that isn't a gradient.

    A bad one has one number in it that is not finite.
    """
    fed = draw_fed(random, setup)
    loss = draw_values(random, (), setup.loss or "float32")
    weight = None
    if setup.weight is not None:
        weight = np.array(pick(random, 0, 1, 2, 3), setup.weight)
        if weight.dtype.kind == "f" and weight != 0:
            weight = np.array(random.uniform(0.1, 3.), setup.weight)
    if bad:
        spoil(random, [getattr(values, "values", values) for values in fed] + [
            loss] * (setup.loss is not None and not setup.real_loss) + [
                weight] * (weight is not None and weight.dtype.kind == "f"))
    return numpy_window.MicroBatch(fed, loss, weight)


def spoil(random, arrays):
    """Puts one number that is not finite in one of `arrays`, if any is there.

    None is negative: weights are not.
    """
    arrays = [array for array in arrays if array.size]
    if arrays:
        array = pick(random, *arrays)
        array.flat[random.randint(array.size)] = pick(random, np.nan, np.inf)


def draw_steps(random, setup):
    """The names of 8 to 20 steps."""
    steps = []
    # A saver and what it runs take a third of the time of a sequence.
    with_checkpoints = random.rand() < 0.5
    for _ in range(random.randint(8, 21)):
        steps.append(draw_step(random, setup, with_checkpoints,
                               saved="save" in steps))
    return steps


def draw_step(random, setup, with_checkpoints, saved):
    bad = {"propagate": 0.04, "skip": 0.25, "raise": 0.25}[setup.nonfinite]
    if setup.transform == "clip" and setup.nonfinite == "propagate":
        # What TensorFlow's clipping makes of a norm that is not finite is its
        # own affair, and has changed.
        bad = 0.
    step = random.choice(
        ["accumulate", "apply", "reset", "apply_and_reset", "save", "restore"],
        p=[0.56, 0.1, 0.06, 0.12, 0.08, 0.08] if with_checkpoints
        else [0.64, 0.14, 0.08, 0.14, 0., 0.])
    if step == "accumulate" and random.rand() < bad:
        return "accumulate a bad one"
    if step == "restore":
        return pick(random, "restore", "restore", "restore in a new session"
                    ) if saved else "save"
    return step


# The program under test.


class Program:
    """The graph and the session of a `Setup`."""

    def __init__(self, setup, start, path):
        """Builds it.

        Args:
          setup: a `Setup`.
          start: list of arrays, the first values of the variables.
          path: where it is to save, or None when it never does.
        """
        self._setup = setup
        self._path = path
        with tf.variable_scope("model", use_resource=setup.use_resource):
            self._variables = [
                tf.get_variable("v%d" % i, initializer=tf.constant(value))
                for i, value in enumerate(start)]
            # Not the first k, so that it is read when it is used, if at all.
            self._k = setup.k if setup.k_kind == "number" else (
                tf.get_variable("k", initializer=setup.k, trainable=False)
                if setup.k_kind == "variable" else tf.constant(setup.k))
        self._step = setup.global_step and tf.Variable(
            np.array(0, setup.global_step), trainable=False, name="step",
            use_resource=setup.use_resource)
        self._weight = setup.weight and tf.placeholder(setup.weight, [])
        self._optimizer = OPTIMIZERS[setup.optimizer](
            numpy_window.OPTIMIZERS[setup.optimizer].rate)
        with SCOPES[setup.scope]():
            self._ops = self._build()
        self._fetches = self._build_fetches()
        self._saver = path and tf.train.Saver()
        self._session = models.session()

    def _build(self):
        setup = self._setup
        # Of a real loss, what is fed are targets and not gradients.
        self._fed = [
            tf.placeholder(variable.grad, ([None] + list(variable.shape[1:])
                                           if variable.ids else variable.shape))
            for variable in setup.variables]
        self._ids = [variable.ids and tf.placeholder(variable.ids, [None])
                     for variable in setup.variables]
        settings = dict(
            optimizer=self._optimizer, k=self._k, global_step=self._step,
            reduction=setup.reduction, weight=self._weight,
            transform=TRANSFORMS[setup.transform][0], sparse=setup.sparse,
            nonfinite=setup.nonfinite,
            accumulator_dtype=setup.accumulator_dtype)
        if setup.real_loss:
            return tf1accum.build(
                self._real_loss(), self._variables, **settings)
        self._loss = setup.loss and tf.placeholder(setup.loss, [])
        return tf1accum.build_from_gradients(
            [(fed if ids is None else tf.IndexedSlices(fed, ids), variable)
             for fed, ids, variable in zip(
                 self._fed, self._ids, self._variables)],
            loss=self._loss, **settings)

    def _real_loss(self):
        """The sum of (looked up - target)^2 / 8."""
        return tf.add_n([tf.reduce_sum(tf.square(
            (variable if ids is None else tf.gather(variable, ids)) - fed) / 8.)
                         for fed, ids, variable in zip(
                             self._fed, self._ids, self._variables)])

    def _build_fetches(self):
        """Tensors by the names that `quantities` gives what they should be."""
        ops, fetches = self._ops, {}
        assert ops.variables == self._variables
        for i, variable in enumerate(self._variables):
            fetches["variable", i] = variable
            fetches["total", i] = ops.accumulators[i]
            for name in numpy_window.OPTIMIZERS[self._setup.optimizer].slots:
                fetches[name, i] = self._optimizer.get_slot(variable, name)
        for variable in self._optimizer.variables():
            if "_power" in variable.op.name:
                fetches[variable.op.name] = variable
        fetches.update({
            "count": ops.count, "weight": ops.weight, "skipped": ops.skipped,
            "average loss": ops.average_loss, "global step": self._step})
        return {name: tensor for name, tensor in fetches.items()
                if tensor is not None}

    def quantities(self):
        """All that can be seen of it, by name, in one run."""
        got = self._session.run(self._fetches)
        for name, value in list(got.items()):
            if hasattr(value, "indices"):
                variable = self._setup.variables[name[1]]
                total = np.zeros(variable.shape, value.values.dtype)
                np.add.at(total, value.indices, value.values)
                got[name] = total
                got["touched", name[1]] = np.unique(value.indices)
        return got

    def run(self, step, micro_batch=None):
        """Runs a step that `draw_steps` names."""
        if step == "save":
            self._saver.save(self._session, self._path, write_state=False,
                             write_meta_graph=False)
        elif step.startswith("restore"):
            if step == "restore in a new session":
                self._session.close()
                self._session = tf.Session()
            self._saver.restore(self._session, self._path)
        elif step.startswith("accumulate"):
            self._accumulate(micro_batch)
        else:
            self._session.run(getattr(self._ops, step))

    def _accumulate(self, micro_batch):
        feed = {}
        for fed, ids, grad in zip(self._fed, self._ids, micro_batch.grads):
            feed[fed] = getattr(grad, "values", grad)
            if ids is not None:
                feed[ids] = grad.ids
        if self._weight is not None:
            feed[self._weight] = micro_batch.weight
        if not self._setup.real_loss and self._loss is not None:
            feed[self._loss] = micro_batch.loss
        try:
            self._session.run(self._ops.accumulate, feed)
        except tf.errors.InvalidArgumentError as error:
            if "tf1accum: the micro-batch was not added" in str(error):
                raise numpy_window.NotFinite
            raise

    def close(self):
        self._session.close()


# What should be there.


def numpy_model(setup, start):
    optimizer = numpy_window.OPTIMIZERS[setup.optimizer]()
    return numpy_window.Window(
        start, [variable.ids is not None and setup.sparse == "rows"
                for variable in setup.variables],
        optimizer, unit=setup.k if setup.k_kind == "number" else 1,
        reduction=setup.reduction, nonfinite=setup.nonfinite,
        transform=TRANSFORMS[setup.transform][1])


def real_gradients(values, micro_batch):
    """The `MicroBatch` of gradients and loss, where targets were fed.

        loss = sum((looked up - target)^2) / 8
        gradient of what was looked up = (looked up - target) / 4
    """
    loss, grads = 0., []
    for value, fed in zip(values, micro_batch.grads):
        rows = isinstance(fed, numpy_window.Rows)
        error = (value[fed.ids] - fed.values if rows else value - fed).astype(
            np.float64)
        loss += np.sum(np.square(error)) / 8.
        grads.append(numpy_window.Rows(fed.ids, error / 4.) if rows
                     else error / 4.)
    return micro_batch._replace(grads=grads, loss=loss)


def quantities(setup, model):
    """What `Program.quantities` should be."""
    wanted = {"count": np.array(model.count, np.int64)}
    for i, variable in enumerate(setup.variables):
        wanted["variable", i] = model.values[i]
        wanted["total", i] = model.accumulators()[i].astype(
            setup.accumulator_dtype or wide(variable.dtype))
        for name, slot in model.slots[i].items():
            wanted[name, i] = slot
        if model.touched()[i] is not None:
            wanted["touched", i] = model.touched()[i]
    wanted.update(model.optimizer.powers)
    if setup.weight is not None:
        wanted["weight"] = np.array(model.weight, np.float64)
    if setup.loss is not None:
        wanted["average loss"] = np.array(
            model.average_loss(), wide(setup.loss))
    if setup.nonfinite == "skip":
        wanted["skipped"] = np.array(model.skipped, np.int64)
    if setup.global_step is not None:
        wanted["global step"] = np.array(model.global_step, setup.global_step)
    return wanted


def wide(dtype):
    return "float32" if dtype == "float16" else dtype


# The comparison.


def run_sequence(seed, folder):
    """Raises AssertionError at the first step after which they differ."""
    random = np.random.RandomState(seed)
    setup = draw_setup(random)
    start = [draw_values(random, variable.shape, variable.dtype)
             for variable in setup.variables]
    steps = draw_steps(random, setup)
    taken = ["build"]
    conftest.set_behaviour(setup.behaviour)
    program = None
    try:
        with tf.Graph().as_default(), np.errstate(all="ignore"):
            program = Program(
                setup, start, folder + "/saved" if "save" in steps else None)
            run_steps(random, setup, program, numpy_model(setup, start), steps,
                      taken)
    except Exception as error:
        raise AssertionError(
            "sequence {seed} diverged at step {number} ({step}):\n{error}\n\n"
            "{setup}\nthe steps: {steps}\nRun it alone: python3 -m pytest "
            "tests/test_differential.py --seed {seed}".format(
                seed=seed, number=len(taken) - 1, step=taken[-1], error=error,
                setup=setup, steps=", ".join(taken))) from error
    finally:
        if program is not None:
            program.close()
        conftest.set_behaviour("v1")


def run_steps(random, setup, program, model, steps, taken):
    """Runs `steps`, and adds to `taken` the name of each that was begun."""
    saved = None
    check(setup, program, model)
    for step in steps:
        taken.append(step)
        if step == "save":
            program.run(step)
            saved = model.copy()
        elif step.startswith("restore"):
            program.run(step)
            model = saved.copy()
        elif step.startswith("accumulate"):
            micro_batch = draw_micro_batch(
                random, setup, step == "accumulate a bad one")
            assert outcome(model.accumulate, real_gradients(
                model.values, micro_batch) if setup.real_loss else micro_batch
                           ) == outcome(program.run, step, micro_batch)
        else:
            program.run(step)
            if step.startswith("apply"):
                model.apply()
            if step.endswith("reset"):
                model.reset()
        check(setup, program, model)


def outcome(function, *args):
    try:
        function(*args)
    except numpy_window.NotFinite:
        return "refused"
    return "taken"


def check(setup, program, model):
    got, wanted = program.quantities(), quantities(setup, model)
    assert got.keys() == wanted.keys(), "expected: {}\ngot: {}".format(
        sorted(map(str, wanted)), sorted(map(str, got)))
    coarse = max(TOLERANCE[dtype] for dtype in [
        setup.accumulator_dtype or "float64", setup.loss or "float64"] + [
            variable.dtype for variable in setup.variables])
    for name, value in wanted.items():
        finite = np.abs(value[np.isfinite(value)])
        scale = max(1., finite.max() if finite.size else 0.)
        same = (got[name].dtype == value.dtype
                and got[name].shape == value.shape and np.allclose(
                    got[name], value, equal_nan=True, rtol=0.,
                    atol=coarse * scale if value.dtype.kind == "f" else 0.))
        assert same, "{}\nexpected: {}\ngot: {}".format(
            name if isinstance(name, str) else "{} of v{}".format(*name),
            shown(value), shown(got[name]))


def shown(value):
    """`value` with all its digits, which is what may differ."""
    return "{} of {}".format(np.array_repr(
        np.asarray(value), precision=17), value.dtype)
