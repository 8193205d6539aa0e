"""Gradient accumulation for TensorFlow 1 style graphs: mean, not sum."""

__version__ = "0.1.0"

try:
    import tensorflow as _tensorflow
except ImportError as error:
    raise ImportError(
        "tf1accum needs TensorFlow 1.15 or newer, and `import tensorflow` "
        "failed ({}). Install it with `pip install tensorflow`.".format(error))

# Compared as numbers: as text, "1.9" would be newer than "1.15".
if tuple(int(part) for part in
         _tensorflow.__version__.split(".")[:2]) < (1, 15):
    raise ImportError(
        "tf1accum needs TensorFlow 1.15 or newer, and found {}. Install a "
        "newer one with `pip install --upgrade tensorflow`.".format(
            _tensorflow.__version__))

# pylint: disable=wrong-import-position
from tf1accum import ports
from tf1accum.accumulation import build
from tf1accum.accumulation import build_from_gradients
from tf1accum.gradients import average_tower_gradients
from tf1accum.hooks import AccumulationHook
from tf1accum.host import build_host
from tf1accum.host import HostOps
from tf1accum.microbatch import microbatch_gradients
from tf1accum.optimizer import AccumulatingOptimizer
from tf1accum.recovery import recover
from tf1accum.restoring import restore_model
from tf1accum.restoring import Restored
from tf1accum.running_mean import RunningMean
from tf1accum.savers import model_saver
from tf1accum.savers import model_variables
from tf1accum.savers import resumable_saver
from tf1accum.summaries import add_summaries
from tf1accum.train_ops import AccumulationOps

__all__ = [
    "AccumulatingOptimizer",
    "AccumulationHook",
    "AccumulationOps",
    "HostOps",
    "Restored",
    "RunningMean",
    "add_summaries",
    "average_tower_gradients",
    "build",
    "build_from_gradients",
    "build_host",
    "microbatch_gradients",
    "model_saver",
    "model_variables",
    "ports",
    "recover",
    "restore_model",
    "resumable_saver",
]
