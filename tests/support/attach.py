"""Stands where mpiexec starts a rank, and has the process that forks for tests (`support.preload`) fork it.

``python -I -S attach.py SOCKET WORDS...``: hands its environment, its standard descriptors and that of PMI on, and ends
as the rank does; when it is killed, so is the rank.
"""

import json
import os
import signal
import socket
import sys


def main():
    path, *words = sys.argv[1:]
    environ, descriptors = dict(os.environ), [0, 1, 2]
    if "PMI_FD" in environ:
        descriptors.append(int(environ["PMI_FD"]))
    umask = os.umask(0o077)
    request = {"words": words, "folder": os.getcwd(), "environment": environ, "umask": umask, "ignored": []}
    text = json.dumps({**request, "bound": True}).encode()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    socket.send_fds(connection, [len(text).to_bytes(8, "little")], descriptors)
    connection.sendall(text)
    # PMI's descriptor stays open: mpiexec ends all ranks where it closes before the rank has an exit code.
    connection.recv(4, socket.MSG_WAITALL)
    code = os.waitstatus_to_exitcode(int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "little"))
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
