"""Frames of HTTP/2 (RFC 9113, 4.1) as daemon.py and shim.py send and read them. Does not: decode what is in one."""

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def read_exactly(connection, count):
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def read_frame(connection):
    head = read_exactly(connection, 9)
    return head[3], read_exactly(connection, int.from_bytes(head[:3], "big"))
