"""Jupyter kernels for the book's pages that begin with PyTorch and matplotlib imported.

    with forked():
        single_nb_execution(...)

Most pages compute for less time than these imports take. So one process imports them once, and each
page's kernel is a fork of it: a process of its own all the same. This is done where forking is safe
(Linux); elsewhere, and for a single page, kernels begin as always.

Run as a script, this module is the process that imports and forks: for each line of its standard
input, `{"arguments": [...], "cwd": ..., "env": {...}}`, it writes the new kernel's process id.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, NoReturn

NAME = "forked"
PRELOADED = ("torch", "matplotlib.pyplot", "ipywidgets", "ipykernel.kernelapp")


class Forked:
    """A forked kernel, with what `jupyter_client` asks of a `subprocess.Popen`."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        """None while it runs. How it ended only its parent knows, so 1 stands for any end."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 1
        return None

    def wait(self) -> int:
        """1, as soon as it has ended."""
        while (ended := self.poll()) is None:
            time.sleep(0.02)
        return ended

    def send_signal(self, number: int) -> None:
        """Nothing happens if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


class Server:
    """The process that has imported everything and forks kernels."""

    def __init__(self) -> None:
        # -P: the kernels shall find modules where every kernel finds them, not beside this file
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).resolve())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, "MPLBACKEND": "module://matplotlib_inline.backend_inline"},
        )  # fmt: skip
        self._turn = threading.Lock()

    def fork(self, arguments: list[str], cwd: str, env: dict[str, str]) -> Forked:
        """Begin a kernel with these arguments of `ipykernel_launcher`.

        Raises:
            OSError: the server has ended.
        """
        asked = json.dumps({"arguments": arguments, "cwd": cwd, "env": env})
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with self._turn:
            print(asked, file=stdin, flush=True)
            pid = stdout.readline()
        if not pid:
            raise OSError("the process that starts the pages' kernels has ended")
        return Forked(int(pid))

    def stop(self) -> None:
        """End it; kernels that still run notice, and end too."""
        self._process.communicate()


@contextlib.contextmanager
def forked() -> Iterator[None]:
    """Within it, every kernel that this process starts is a fork."""
    from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner

    if sys.platform != "linux":
        yield
        return
    server = Server()

    class Provisioner(LocalProvisioner):
        async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
            arguments = cmd[cmd.index("ipykernel_launcher") + 1 :]
            kernel = server.fork(arguments, str(kwargs["cwd"]), kwargs["env"])
            self.process, self.cwd = kernel, kwargs["cwd"]
            self.pid = self.pgid = kernel.pid
            return self.connection_info

    class Entry(EntryPoint):
        def load(self) -> type:
            return Provisioner

    factory = KernelProvisionerFactory.instance()
    factory.provisioners[NAME] = Entry(NAME, NAME, factory.GROUP_NAME)
    before, factory.default_provisioner_name = factory.default_provisioner_name, NAME
    try:
        yield
    finally:
        factory.default_provisioner_name = before
        server.stop()


def _become_kernel(asked: dict[str, Any]) -> NoReturn:
    from ipykernel.kernelapp import IPKernelApp

    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # the server's output is for process ids alone
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    parent = f"--IPKernelApp.parent_handle={os.getppid()}"  # it ends when the server does
    try:
        IPKernelApp.launch_instance(argv=[*asked["arguments"], parent])
    finally:
        os._exit(0)


def _serve() -> None:
    for name in PRELOADED:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody has to wait for those that end
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            _become_kernel(json.loads(line))
        print(pid, flush=True)


if __name__ == "__main__":
    _serve()
