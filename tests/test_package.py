"""The package, as it is installed and imported."""

import configparser
import fnmatch
import os
import re
import subprocess
import sys
import textwrap

import pytest

import tf1accum

try:
    from importlib import metadata
except ImportError:  # Python 3.7, where pytest brings it.
    import importlib_metadata as metadata

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CARD = {"tf1accum", "tests", "examples", "setup.cfg", "setup.py", "README.md"}


def run_python(program, *path):
    """Runs `program` with the folders `path` first on the import path."""
    package = os.path.dirname(os.path.dirname(tf1accum.__file__))
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        universal_newlines=True,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(
            [str(folder) for folder in path] + [package])))


def last_line(run):
    return run.stderr.strip().splitlines()[-1]


@pytest.fixture
def fake_tensorflow(tmp_path):
    """A function that makes a `tensorflow` of one line, and its folder."""

    def make(line):
        (tmp_path / "tensorflow.py").write_text(line + "\n")
        return tmp_path

    return make


def test_the_version_stands_in_one_place():
    assert re.match(r"\d+\.\d+\.\d+$", tf1accum.__version__)
    config = configparser.ConfigParser()
    config.read(os.path.join(ROOT, "setup.cfg"))
    assert config["metadata"]["version"] == "attr: tf1accum.__version__"
    for name in ("setup.cfg", "setup.py", "README.md"):
        with open(os.path.join(ROOT, name)) as text:
            assert tf1accum.__version__ not in text.read()


def test_the_installed_metadata_is_that_of_the_package():
    installed = metadata.distribution("tf1accum")
    assert installed.version == tf1accum.__version__
    assert "Apache-2.0" in (installed.metadata["License"],
                            installed.metadata["License-Expression"])
    assert installed.metadata["Requires-Python"] == ">=3.7"
    assert set(installed.metadata.get_all("Provides-Extra")) == {
        "tensorflow", "test"}
    assert {re.sub(r"[\s'\"()]", "", requirement)
            for requirement in installed.requires} == {
                "numpy", "tensorflow>=1.15;extra==tensorflow",
                "pytest;extra==test"}


def test_setup_py_is_two_lines():
    with open(os.path.join(ROOT, "setup.py")) as text:
        assert text.read().splitlines() == [
            "from setuptools import setup", "setup()"]


def test_the_top_level_holds_what_the_design_lists_and_no_more():
    with open(os.path.join(ROOT, ".gitignore")) as text:
        ignored = [line.strip().rstrip("/") for line in text]
    names = {name for name in os.listdir(ROOT) if not name.startswith(".")
             and not any(fnmatch.fnmatch(name, rule) for rule in ignored)}
    # Where the tests run against a wheel, the sources are not beside them.
    assert names | {"tf1accum"} == CARD


def test_without_tensorflow_the_import_says_what_to_install(fake_tensorflow):
    folder = fake_tensorflow(
        "raise ImportError(\"No module named 'tensorflow'\")")
    run = run_python("import tf1accum", folder)
    assert run.returncode == 1
    assert last_line(run) == (
        "ImportError: tf1accum needs TensorFlow 1.15 or newer, and `import "
        "tensorflow` failed (No module named 'tensorflow'). Install it with "
        "`pip install tensorflow`.")


@pytest.mark.parametrize("version", ["0.12.1", "1.9.0", "1.14.0", "1.14.1-rc0"])
def test_a_tensorflow_older_than_1_15_is_refused(fake_tensorflow, version):
    folder = fake_tensorflow("__version__ = {!r}".format(version))
    run = run_python("import tf1accum", folder)
    assert run.returncode == 1
    assert last_line(run) == (
        "ImportError: tf1accum needs TensorFlow 1.15 or newer, and found {}. "
        "Install a newer one with `pip install --upgrade "
        "tensorflow`.".format(version))


def test_tensorflow_1_15_or_newer_is_not_refused():
    run = run_python("""
        import sys
        import tensorflow
        for version in ("1.15.0-rc1", "1.15.5", "2.0.0", "2.21.0", "3.0.0",
                        "2.22.0-dev20990101"):
            tensorflow.__version__ = version
            for name in [name for name in sys.modules
                         if name.split(".")[0] == "tf1accum"]:
                del sys.modules[name]
            import tf1accum
            print(version)
        """)
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.splitlines()) == 6


def test_each_public_name_is_there_and_described():
    for name in tf1accum.__all__:
        assert getattr(tf1accum, name).__doc__
