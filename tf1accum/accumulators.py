"""Accumulators: the variables that hold a total."""

import contextlib

import tensorflow.compat.v1 as tf

from tf1accum import gate
from tf1accum import gradients
from tf1accum import mutex
from tf1accum import replicas


def make(grad, variable, settings):
    """The accumulator for gradients such as `grad` of `variable`.

    Args:
      grad: tensor or `IndexedSlices`.
      variable: the model's variable.
      settings: `arguments.Settings`.
    """
    dtype = settings.accumulator_dtype or gradients.wide_dtype(
        variable.dtype.base_dtype)
    rows = (settings.sparse == "rows" and isinstance(grad, tf.IndexedSlices)
            and variable.shape[1:].is_fully_defined())
    accumulator = SparseAccumulator if rows else DenseAccumulator
    return accumulator(
        variable, dtype, settings.accumulator_device or settings.worker_device,
        settings.collections)


def _placed(variable, device):
    """Beside `variable`, or on `device` if that is not None."""
    if replicas.inside():
        # The strategy places it, in each replica.
        return contextlib.ExitStack()
    if device is not None:
        return tf.device(device)
    return tf.get_default_graph().colocate_with(variable.op)


class _Accumulator:
    """One variable that holds a total.

    It is a resource variable, whatever the model's are: `assign_add` on it is
    exact from many threads.
    """

    def __init__(self, name, total):
        self.name = name
        self.dtype = total.own.dtype.base_dtype
        self._total = total.own
        self._whole = total.whole

    @property
    def variables(self):
        """The variables that hold it."""
        return [self._whole]

    def add(self, value, name):
        """An op of that name that adds what `ready` returned."""
        return self._total.assign_add(value, name=name, read_value=False)

    def read(self, name):
        """The total, read where it is called."""
        return _read(self._total, name)

    def reset(self, name):
        """An op that assigns zeros: `a - a` would keep a NaN."""
        return self._total.assign(
            self._zeros(), name=name, read_value=False)

    def _zeros(self):
        zeros = self._total.initial_value
        # In all replicas but the first, it is a copy of that one's.
        return zeros.op.inputs[0] if zeros.op.type == "Identity" else zeros


class ScalarAccumulator(_Accumulator):
    """The total of a number."""

    def __init__(self, name, dtype, collections, is_shared=False):
        """`is_shared` is whether all replicas have the same total."""
        super().__init__(name, _make_variable(
            name, dtype, [], collections,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA if is_shared
            else tf.VariableAggregation.SUM))

    def ready(self, value, by):
        """`value` times `by`, scalar tensors, as `add` takes it."""
        return gradients.scaled(value, self.dtype, by)


class DenseAccumulator(_Accumulator):
    """The total of the gradients of one variable, beside it."""

    def __init__(self, variable, dtype, device, collections):
        """Makes its variable.

        Args:
          variable: the model's variable.
          dtype: type to add up in.
          device: device to make it on, or None for that of `variable`.
          collections: list of collections, or None for the default.
        """
        shape = (variable.shape if variable.shape.is_fully_defined()
                 else tf.shape(variable.initial_value))
        with _placed(variable, device):
            name = replicas.name_of(variable)
            super().__init__(name, _make_variable(
                name, dtype, shape, collections, variable.shape,
                tf.VariableAggregation.SUM))
            with tf.name_scope(self._total.op.name + "/"):
                self._read_sizes = None if self._has_few() else (
                    tf.raw_ops.VariableShape(
                        input=self._total.handle, name="sizes"))

    def ready(self, grad, by):
        """`grad` times `by`, of the variable's shape, as `add` takes it."""
        return gradients.scaled(
            gradients.dense(grad, self.dtype, self._sizes()), self.dtype, by)

    def _has_few(self):
        return (self._total.shape.is_fully_defined()
                and super()._zeros().op.type == "Const")

    def _sizes(self):
        if self._total.shape.is_fully_defined():
            return self._total.shape.as_list()
        return self._read_sizes

    def _zeros(self):
        zeros = super()._zeros()
        if self._has_few():
            return zeros
        # Many zeros are made where they are wanted, or they would take up
        # memory from the start of the run; and of sizes that are read, or
        # TensorFlow's optimizers would make a constant of them, which the
        # session keeps and the next micro-batch has to copy.
        return tf.fill(self._read_sizes, zeros.op.inputs[1], name="zeros")


def sum_duplicates(grad):
    """`IndexedSlices` with each index once, values summed; tensors as is."""
    if not isinstance(grad, tf.IndexedSlices):
        return grad
    indices, place = tf.unique(grad.indices, name="unique")
    values = tf.math.unsorted_segment_sum(
        grad.values, place, tf.size(indices, name="number_of_unique"),
        name="summed")
    return tf.IndexedSlices(values, indices, grad.dense_shape)


def rows_of(variable, values, indices):
    """`IndexedSlices` of `values`, the rows of `variable` at `indices`."""
    # Asked of the variable, the whole table might be copied for it.
    shape = (tf.constant(variable.shape.as_list(), tf.int64, name="shape")
             if variable.shape.is_fully_defined()
             else tf.shape(variable, out_type=tf.int64, name="shape"))
    return tf.IndexedSlices(values, indices, shape)


def sum_of(grads):
    """The sum of `grads`, a list; of `IndexedSlices`, the rows of all."""
    if len(grads) == 1:
        return grads[0]
    if not isinstance(grads[0], tf.IndexedSlices):
        return tf.add_n(grads, name="sum")
    return tf.IndexedSlices(
        tf.concat([grad.values for grad in grads], 0, name="values"),
        tf.concat([grad.indices for grad in grads], 0, name="indices"),
        grads[0].dense_shape)


def map_values(function, grad):
    """`function` of a tensor, or of the values of `IndexedSlices`."""
    if not isinstance(grad, tf.IndexedSlices):
        return function(grad)
    return tf.IndexedSlices(
        function(grad.values), grad.indices, grad.dense_shape)


def _make_variable(name, dtype, initial_shape, collections, shape=None,
                   aggregation=None):
    """A variable of zeros that is not trained, a resource variable.

    `shape` is what it is declared as, where that leaves a size open;
    `aggregation` is for replicas, as `make_variable` there takes it.
    """
    shape = tf.TensorShape(initial_shape if shape is None else shape)
    return replicas.make_variable(
        lambda: tf.zeros(initial_shape, dtype), aggregation, collections,
        trainable=False, name=name, dtype=dtype,
        use_resource=True, shape=shape,
        validate_shape=shape.is_fully_defined())


def _read(variable, name):
    """What `variable` holds: `read_value()`, in one op of that name."""
    return tf.raw_ops.ReadVariableOp(
        resource=variable.handle, dtype=variable.dtype.base_dtype, name=name)


class SparseAccumulator:
    """The rows of one variable's sparse gradients, in the order they came.

        total[i] = sum of values[j] over all j with indices[j] = i

    Rows are written into a buffer with room to spare, so that the cost of a
    micro-batch is that of its own rows: not of the table, nor of the window.
    When the room is used up, rows of the same index are added up, and only if
    that frees less than half is the buffer made larger.
    """

    def __init__(self, variable, dtype, device, collections):
        """As for a dense one; `variable` is [rows, ...]."""
        self.name = replicas.name_of(variable)
        self._variable = variable
        row = variable.shape[1:].as_list()
        with tf.name_scope(self.name) as scope:
            with _placed(variable, device):
                made = [_make_variable(
                    replicas.apart(part), part_dtype, initial_shape,
                    collections, shape)
                        for part, part_dtype, initial_shape, shape in (
                            ("values", dtype, [0] + row, [None] + row),
                            ("indices", tf.int64, [0], [None]),
                            ("used", tf.int64, [], None))]
            self._mutex = replicas.one_each(
                lambda end: mutex.Mutex(scope + "mutex" + end))
        self._values, self._indices, self._used = (each.own for each in made)
        self._wholes = [each.whole for each in made]
        self.dtype = self._values.dtype.base_dtype

    @property
    def variables(self):
        """The variables that hold it."""
        return self._wholes

    def ready(self, grad, by):
        """`grad` times `by`, `IndexedSlices`, as `add` takes it."""
        return tf.IndexedSlices(
            gradients.scaled(grad.values, self.dtype, by),
            tf.cast(grad.indices, tf.int64, name="indices"))

    def add(self, grad, name):
        """An op that appends the rows that `ready` returned.

        TensorFlow's own scatter ops lose rows when two threads run them at
        once, hence the lock.

        Args:
          grad: the rows.
          name: name scope to build in, ending in "/", and the op's name.
        """
        with tf.name_scope(name):
            return self._mutex.run_alone(
                lambda: self._append(grad.indices, grad.values),
                after=[grad.indices, grad.values], name=name)

    def _append(self, indices, values):
        number = tf.size(indices, out_type=tf.int64, name="number")
        used = _read(self._used, "used")
        with tf.name_scope("make_room"):
            room = tf.reduce_prod(tf.raw_ops.VariableShape(
                input=self._indices.handle, out_type=tf.int64, name="shape"),
                                  axis=0, name="room")
            made_room = gate.run_if(
                tf.greater(tf.add(used, number, name="needed"), room,
                           name="is_full"),
                lambda _: self._make_room(number, room))
        with tf.control_dependencies([made_room]):
            start = _read(self._used, "start")
            at = tf.range(start, tf.add(start, number, name="end"),
                          dtype=tf.int64, name="at")
            written = [
                tf.raw_ops.ResourceScatterUpdate(
                    resource=variable.handle, indices=at, updates=rows,
                    name=name)
                for variable, rows, name in (
                    (self._values, values, "write_values"),
                    (self._indices, indices, "write_indices"))]
        with tf.control_dependencies(written):
            return self._used.assign_add(
                number, name="write_used", read_value=False)

    def _make_room(self, number, room):
        """Adds up rows of one index, and makes room for `number` and more."""
        summed = sum_duplicates(self._read_held())
        used = tf.size(summed.indices, out_type=tf.int64, name="still_used")
        double = tf.multiply(
            tf.add(used, number, name="then_used"), 2, name="double")
        spare = tf.subtract(
            tf.maximum(room, double, name="new_room"), used, name="spare")
        parts = list(zip((self._values, self._indices, self._used),
                         ("values", "indices", "used")))
        padded = [
            tf.pad(rows, tf.multiply(
                spare, [[0, 1]] + [[0, 0]] * (rows.shape.rank - 1),
                name="spare_" + part), name="padded_" + part)
            for rows, (_, part) in zip((summed.values, summed.indices), parts)]
        # Both are read before either is written.
        with tf.control_dependencies(padded):
            return tf.group(*[
                variable.assign(value, name="write_" + part, read_value=False)
                for (variable, part), value in zip(parts, padded + [used])],
                            name="written")

    def read(self, name):
        """The rows as `IndexedSlices`, read where it is called.

        An index may repeat, as in any gradient of a lookup.
        """
        # Not while a micro-batch is half written.
        lock = self._mutex.take(after=[])
        with tf.control_dependencies([lock]):
            rows = self._read_held()
        released = mutex.give_back(
            lock, after=[rows.values, rows.indices])
        with tf.control_dependencies([released]):
            return rows_of(self._variable, tf.identity(rows.values, name=name),
                           tf.identity(rows.indices, name="indices"))

    def _read_held(self):
        at = tf.range(_read(self._used, "used"), dtype=tf.int64, name="at")
        # A gather, since reading the variable would copy the spare room too.
        return tf.IndexedSlices(*[
            tf.raw_ops.ResourceGather(
                resource=variable.handle, indices=at,
                dtype=variable.dtype.base_dtype, name=name)
            for variable, name in ((self._values, "gather_values"),
                                   (self._indices, "gather_indices"))])

    def reset(self, name):
        """An op that forgets the rows; their room stays."""
        # A micro-batch that is half written would bring them back.
        return self._mutex.run_alone(lambda: self._used.assign(
            self._used.initial_value, name="used", read_value=False),
                                     after=[], name=name)
