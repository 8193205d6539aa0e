"""What a worker keeps itself, in a cluster with parameter servers."""

import tensorflow.compat.v1 as tf

from tf1accum import replicas

# The job of the parameter servers, as `replica_device_setter` names it.
_PS = "ps"


def placed(who, settings, variables, computed=()):
    """`settings` with what follows from `worker_device` filled in.

    Args:
      who: name of the function that the program called.
      settings: `arguments.Settings`, checked.
      variables: list of the model's variables.
      computed: list of tensors that this worker computes: losses, gradients.

    Returns:
      `arguments.Settings`.

    Raises:
      TypeError, ValueError: the window would be shared by the workers, or what
        they share would be kept by one of them.
      RuntimeError: in the replicas of a strategy.
    """
    for name in ("worker_device", "accumulator_device"):
        if replicas.inside() and getattr(settings, name) is not None:
            raise RuntimeError(
                "{}: in a tf.distribute strategy, {} must be None, as each "
                "replica keeps its window on its own device; got {!r} in the "
                "replica function of a {}. Leave it out.".format(
                    who, name, getattr(settings, name),
                    type(tf.distribute.get_strategy()).__name__))
    if settings.worker_device is None:
        _check_private(who, variables)
        return settings
    _check_worker(who, settings, computed)
    collections = settings.collections
    if collections is None:
        collections = [tf.GraphKeys.LOCAL_VARIABLES]
    return settings._replace(
        collections=collections,
        device=_device(settings.worker_device, variables))


def beside_inputs(op):
    """The device of what `op` reads, if it is a parameter server.

    For what is to see an apply: of a variable that is no resource, a worker is
    sent the value as it was when the run began.
    """
    for tensor in op.inputs:
        if tf.DeviceSpec.from_string(tensor.device or "").job == _PS:
            return tensor.device
    return op.device


def _check_private(who, variables):
    for variable in variables:
        if tf.DeviceSpec.from_string(variable.device or "").job == _PS:
            raise ValueError(
                "{}: in a cluster with parameter servers, worker_device must "
                "name the worker that keeps the window, or all workers would "
                "add to one; got None, and {} is on {}. Pass "
                "worker_device=\"/job:worker/task:N\", N the number of this "
                "worker, to tf1accum.build or "
                "tf1accum.AccumulatingOptimizer.".format(
                    who, variable.name, variable.device))


def _check_worker(who, settings, computed):
    worker = _parsed(settings.worker_device)
    if worker is None or worker.job in (None, _PS) or (
            worker.task is None or worker.device_type is not None):
        raise (ValueError if isinstance(settings.worker_device, str)
               else TypeError)(
                   "{}: worker_device must be the job and the task of this "
                   "worker, such as \"/job:worker/task:0\", or None without "
                   "parameter servers; got {!r}. (Which of its devices has the "
                   "accumulators is for accumulator_device.)".format(
                       who, settings.worker_device))
    for tensor in computed:
        other = tf.DeviceSpec.from_string(tensor.device or "")
        if other.job not in (None, _PS) and other.task is not None and (
                (other.job, other.task) != (worker.job, worker.task)):
            raise ValueError(
                "{}: worker_device must be the worker that computes the "
                "gradients, or two of them would share a window; got {!r}, and "
                "{} is on {}. Pass the same device as to "
                "tf.train.replica_device_setter.".format(
                    who, settings.worker_device, tensor.name, tensor.device))
    accumulators = worker.make_merged_spec(
        tf.DeviceSpec.from_string(settings.accumulator_device or ""))
    if (accumulators.job, accumulators.task) != (worker.job, worker.task):
        raise ValueError(
            "{}: accumulator_device must be a device of the worker, such as "
            "\"/cpu:0\", or None; got {!r}, and {!r} as worker_device.".format(
                who, settings.accumulator_device, settings.worker_device))
    if tf.GraphKeys.GLOBAL_VARIABLES in (settings.collections or ()):
        raise ValueError(
            "{}: collections must not hold GLOBAL_VARIABLES with "
            "worker_device; got {!r}. The chief alone initialises those, so "
            "every other worker would wait for ever. Leave it out for "
            "LOCAL_VARIABLES.".format(who, settings.collections))


def _parsed(device):
    """The `tf.DeviceSpec` of that name, or None where it is no name."""
    try:
        return tf.DeviceSpec.from_string(device)
    except (AttributeError, TypeError, ValueError):
        return None


def _device(worker_device, variables):
    """What gives an op its device: that of the worker, for most.

    What optimizers, transforms and `after_apply` make without saying where is
    for all workers: beside the first of the model's variables, as Adam's beta
    powers are, whatever device the caller stands in.
    """
    specs = [tf.DeviceSpec.from_string(variable.device or "")
             for variable in variables]
    first = next((spec for spec in specs if spec.job), None)
    if first is None:
        return worker_device
    return tf.train.replica_device_setter(
        ps_tasks=1, ps_device=tf.DeviceSpec(job=first.job).to_string(),
        worker_device=worker_device, ps_strategy=lambda op: first.task)
