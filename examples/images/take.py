"""Takes the pictures beside it: what TensorBoard shows of a training run.

It trains as `examples/summaries.py` does, serves what that wrote by a real
TensorBoard, looks at it in a real browser, without a screen, and saves what is
to be seen. To take them again, when names in the graph have changed:

    apt-get install chromium chromium-driver
    python examples/images/take.py
"""

import argparse
import base64
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
SECONDS, TRIES = 60, 4  # for anything to come up

# TensorBoard's pages are made of elements with trees of their own.
_ALL = """
    function* all(root) {
        for (const element of root.querySelectorAll('*')) {
            yield element;
            if (element.shadowRoot) yield* all(element.shadowRoot);
        }
    }
    const where = test => [...all(document)].filter(test);
"""
_NODES = _ALL + """
    const nodes = where(element => element.matches('g.node'));
    const name = node => node.getAttribute('data-name');
"""


def missing():
    """What this machine lacks to take pictures, for people, or None."""
    lacking = [program for program in ("chromium", "chromedriver")
               if not shutil.which(program)]
    return lacking and "no {} on this machine: apt-get install chromium " \
        "chromium-driver".format(" and no ".join(lacking)) or None


@contextlib.contextmanager
def started(command, pattern, cwd=None):
    """Runs a server, and ends it and what it started.

    Args:
      command: list of strings.
      pattern: regular expression for what it prints once it is up.
      cwd: folder to run it in.

    Yields:
      The first group of the pattern.
    """
    with tempfile.NamedTemporaryFile() as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=cwd,
            start_new_session=True)
        try:
            yield wait(lambda: _printed(output.name, pattern, process),
                       "{} to start".format(" ".join(command)))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _printed(path, pattern, process):
    with open(path) as output:
        printed = output.read()
    if process.poll() is not None:
        raise RuntimeError("ended at once, and printed:\n" + printed)
    found = re.search(pattern, printed)
    return found and found.group(1)


def wait(look, what, act=lambda: None):
    """What `look` returns, once it is something.

    Where it takes long, what `act` does is done again: a page that is still
    being drawn may miss a click.
    """
    for _ in range(TRIES):
        act()
        until = time.time() + SECONDS / TRIES
        while time.time() < until:
            seen = look()
            if seen:
                return seen
            time.sleep(.1)
    raise RuntimeError("waited {} s for {}".format(SECONDS, what))


def tensorboard(folder):
    """Serves `folder`; yields the address, which ends in "/"."""
    above, name = os.path.split(os.path.abspath(folder))
    return started(
        [sys.executable, "-m", "tensorboard.main", "--logdir", name, "--host",
         "127.0.0.1", "--port", "0"], r"at (http://\S+:\d+/)", cwd=above)


@contextlib.contextmanager
def browser(width=1600, height=1000):
    """A `Browser` without a screen, whose page is of that size."""
    with started(["chromedriver", "--port=0"],
                 r"successfully on port (\d+)") as port:
        server = "http://127.0.0.1:{}/session".format(port)
        options = {"args": [
            "--headless=new", "--no-sandbox", "--disable-gpu",
            "--disable-dev-shm-usage", "--force-device-scale-factor=1"]}
        session = "{}/{}".format(server, _ask(server, {"capabilities": {
            "alwaysMatch": {"goog:chromeOptions": options}}})["sessionId"])
        try:
            page = Browser(session)
            page.resize(width, height)
            yield page
        finally:
            _ask(session, method="DELETE")


def _ask(url, body=None, method=None):
    request = urllib.request.Request(
        url, None if body is None else json.dumps(body).encode("utf-8"),
        {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return json.loads(answer.read().decode("utf-8"))["value"]


class Browser:
    """A page in a browser, by the WebDriver protocol."""

    def __init__(self, session):
        self._session = session

    def open(self, url):
        """Goes to `url`, anew even if only what is behind "#" changes."""
        _ask(self._session + "/url", {"url": "about:blank"})
        _ask(self._session + "/url", {"url": url})

    def run(self, script, *values):
        """What the script returns."""
        return _ask(self._session + "/execute/sync",
                    {"script": script, "args": list(values)})

    def resize(self, width, height):
        """Makes the page itself of that size, whatever is around it."""
        around = self.run("return [outerWidth - innerWidth, "
                          "outerHeight - innerHeight]")
        _ask(self._session + "/window/rect", {
            "width": width + around[0], "height": height + around[1]})

    def click(self, x, y, times):
        """Presses the button of the mouse that often."""
        _ask(self._session + "/actions", {"actions": [{
            "type": "pointer", "id": "mouse", "actions": [
                {"type": "pointerMove", "x": int(x), "y": int(y)}] + times * [
                    {"type": "pointerDown", "button": 0},
                    {"type": "pointerUp", "button": 0}]}]})

    def save(self, path):
        """Saves a picture of the page."""
        with open(path, "wb") as file:
            file.write(base64.b64decode(_ask(self._session + "/screenshot")))

    def nodes(self):
        """The names of the nodes of the graph that are to be seen."""
        return self.run(_NODES + "return nodes.map(name)")

    def labels(self):
        """What is written on them."""
        return self.run(_NODES + """
            return nodes.map(node => node.querySelector(':scope > text'))
                .filter(text => text).map(text => text.firstChild.textContent);
        """)

    def open_graph(self, address, run, node):
        """Shows the graph of a run, once `node` is in it."""
        url = "{}#graphs&run={}".format(address, urllib.parse.quote(run))
        wait(lambda: node in self.nodes(), "the graph to be drawn",
             lambda: self.open(url))

    def expand(self, node):
        """Opens a box of the graph."""
        wait(lambda: any(seen.startswith(node + "/") for seen in self.nodes()),
             "{} to open".format(node),
             lambda: self.click(*self._place(node), times=2))

    def _place(self, node):
        """The middle of a box, once it does not move any more."""
        last = None
        while True:
            place = self.run(_NODES + """
                const box = nodes.find(node => name(node) == arguments[0])
                    .querySelector('.nodeshape rect').getBoundingClientRect();
                return [box.left + box.width / 2, box.top + box.height / 2];
            """, node)
            if place == last:
                return place
            last = place
            time.sleep(.5)

    def fit_graph(self):
        """Gives all of the page to the graph, and shows all of it."""
        time.sleep(1.)  # until it has stopped moving
        self.run(_ALL + """
            const seen = 'tf-dashboard-layout #sidebar, #sidebar, ' +
                'tf-graph-info, #minimap, tf-graph-minimap';
            for (const one of where(element => element.matches(seen)))
                one.style.display = 'none';
            dispatchEvent(new Event('resize'));
        """)
        # On nothing: what was clicked on to open it has a red frame.
        width, height = self.run("return [innerWidth, innerHeight]")
        self.click(width - 5, height - 5, times=1)
        time.sleep(.5)
        self.run(_ALL + """
            where(element => element.matches('[alt="Fit to screen"]'))
                .forEach(button => button.click());
        """)
        time.sleep(1.)


def take(folder, run, out, box="accumulation"):
    """Takes the pictures of a run in `folder`, and saves them in `out`."""
    with tensorboard(folder) as address, browser() as page:
        page.open_graph(address, run, box)
        page.fit_graph()
        page.save(os.path.join(out, "graph.png"))
        page.expand(box)
        page.fit_graph()
        page.save(os.path.join(out, "box.png"))
        wait(lambda: page.run(_ALL + """
            return where(element => element.matches('vz-line-chart2, svg g'))
                .length"""), "the scalars to be drawn",
             lambda: page.open(address + "#scalars"))
        time.sleep(3.)
        page.save(os.path.join(out, "scalars.png"))


def main():
    parser = argparse.ArgumentParser(
        description="Takes the pictures of a training run in TensorBoard.")
    parser.add_argument("--out", default=HERE, help="folder to save them in "
                        "(default: that of this program)")
    arguments = parser.parse_args()
    if missing():
        parser.error(missing())
    with tempfile.TemporaryDirectory() as folder:
        folder, run = os.path.join(folder, "digits"), "k=4"
        subprocess.check_call([
            sys.executable, os.path.join(HERE, os.pardir, "summaries.py"),
            "--log_dir", os.path.join(folder, run)])
        take(folder, run, arguments.out)


if __name__ == "__main__":
    main()
