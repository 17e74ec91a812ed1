"""A daemon behind shims, as tests start it: HTTP on a unix socket, or frames of HTTP/2 as gRPC sends them on loopback TCP.

A request is a JSON object: its id, and for how long to wait, what to run and which files to lock, in order. Each connection has a
thread, which does that, or hands the request over to one of a few workers. What was received and answered when, on the boot clock,
which processes ran for it, and since when and until when it waited for locks, goes to the log, one JSON object a line.
"""

import fcntl
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time

from frames import PREFACE, frame, read_exactly, read_frame

CLOCK_BOOTTIME = 7
LOCK = threading.Lock()
WORKERS = 4
HANDED_OVER = queue.Queue()


def now():
    return time.clock_gettime_ns(CLOCK_BOOTTIME)


def work(request):
    """Does what a request says. Returns the processes that ran for it."""
    pids = []
    request["locked"] = []
    for step in request["steps"]:
        if isinstance(step, dict):
            with open(step["lock"], "w") as file:
                wanted = now()
                fcntl.flock(file, fcntl.LOCK_EX)
                request["locked"].append([step["lock"], wanted, now()])
            continue
        if isinstance(step, list):
            child = subprocess.Popen(step)
            pids.append(child.pid)
            child.wait()
        else:
            time.sleep(step)
    return pids


def log(into, request, received, answered, pids):
    line = {"id": request["id"], "received": received, "answered": answered, "pids": pids, "locked": request["locked"]}
    with LOCK:
        into.write(json.dumps(line) + "\n")
        into.flush()


def serve_http(connection, into):
    data = connection.recv(65536)
    received = now()
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, body = data.split(b"\r\n\r\n", 1)
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    while len(body) < length:
        body += connection.recv(65536)
    request = json.loads(body)
    if request.get("hand_over"):
        done = threading.Event()
        HANDED_OVER.put((connection, into, request, received, done))
        done.wait()
    else:
        answer_http(connection, into, request, received)


def answer_http(connection, into, request, received):
    pids = work(request)
    answer = b'{"result": "done"}'
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer)
    answered = now()
    connection.sendall(answer)
    log(into, request, received, answered, pids)


def serve_handed_over():
    while True:
        connection, into, request, received, done = HANDED_OVER.get()
        try:
            answer_http(connection, into, request, received)
        except OSError:
            pass
        done.set()


def serve_frames(connection, into):
    connection.sendall(frame(4, 0, 0, b"\0\3\0\0\0\x64" * 4))
    read_exactly(connection, len(PREFACE))
    body = None
    while body is None:
        kind, payload = read_frame(connection)
        if kind == 1:
            received = now()
        if kind == 0:
            body = payload
    # A window update and a ping pass while the request is in flight.
    connection.sendall(frame(8, 0, 0, b"\0\0\1\0") + frame(6, 0, 0, b"12345678"))
    request = json.loads(body[5:])
    pids = work(request)
    answer = frame(1, 4, 1, b"h" * 20) + frame(0, 0, 1, b"\0\0\0\0\4done") + frame(1, 5, 1, b"t" * 20)
    answered = now()
    connection.sendall(answer)
    log(into, request, received, answered, pids)


def serve(handler, connection, into):
    try:
        with connection:
            handler(connection, into)
            # Until the client closes.
            while connection.recv(4096):
                pass
    except (EOFError, OSError):
        pass


def main():
    place, log_path = sys.argv[1:]
    if place.startswith("/"):
        listener, handler = socket.socket(socket.AF_UNIX), serve_http
        listener.bind(place)
    else:
        listener, handler = socket.socket(socket.AF_INET), serve_frames
        listener.bind(("127.0.0.1", int(place)))
    listener.listen(64)
    into = open(log_path, "a")
    for _ in range(WORKERS):
        threading.Thread(target=serve_handed_over, daemon=True).start()
    print(listener.getsockname()[1] if handler is serve_frames else place, flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(handler, connection, into), daemon=True).start()


main()
