"""Lists the events of an .etl file with the package etl-parser (Apache-2.0): provider, id, and texts in the payload."""

import sys

from etl.etl import IEtlFileObserver, build_from_stream


class Lister(IEtlFileObserver):
    def on_system_trace(self, event):
        print("system", bytes(event.source.mof_data))

    def on_perfinfo_trace(self, event):
        print("perfinfo")

    def on_trace_record(self, event):
        print("trace")

    def on_event_record(self, event):
        header = event.source.event_header
        guid = header.provider_id
        print(event_guid(guid), header.event_descriptor.Id)

    def on_win_trace(self, event):
        print("win")


def event_guid(guid):
    rest = bytes(guid.inner.data4).hex()
    return f"{guid.inner.data1:08x}-{guid.inner.data2:04x}-{guid.inner.data3:04x}-{rest[:4]}-{rest[4:]}"


with open(sys.argv[1], "rb") as file:
    build_from_stream(file.read()).parse(Lister())
