"""Lists the events of an .etl file with the package dissect.etl: provider, id, time in milliseconds, payload."""

import sys
from uuid import UUID

from dissect.etl import ETL

with open(sys.argv[1], "rb") as file:
    for buffer in ETL(file).buffers():
        for record in buffer:
            event = record.event
            descriptor = getattr(record.header, "descriptor", None)
            provider = event.provider_id()
            if descriptor is not None:
                # It reads these in text order.
                provider = UUID(bytes_le=provider.bytes)
            try:
                # It computes with floating point.
                time = round(event.ts().timestamp() * 1000)
            except TypeError:
                time = "no time"
            print(provider, getattr(descriptor, "id", "-"), time, bytes(record.header.payload))
