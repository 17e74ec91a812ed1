// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// A filter on the agent's own ctnetlink socket. It runs where the kernel tells of a conntrack entry, gives the message the
// time it lacks, puts it into the ring buffer, and lets nothing through to the socket: no message waits there for a
// reader, and none wakes it.
// match-proto: int filter(struct __sk_buff *skb)
#include "kernel.h"

#include "wire.h"

#include "stream.h"

// include/uapi/linux/bpf.h; only the first field is used.
struct __sk_buff {
	uint32_t len;
};

SEC("socket")
int on_message(struct __sk_buff *skb)
{
	uint64_t waiting = bpf_ringbuf_query(&records, BPF_RB_AVAIL_DATA);
	struct FlowRecord *record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	if (!record) {
		count_lost(LOST_RING);
		return 0;
	}
	record->at_ns = bpf_ktime_get_boot_ns();
	record->ring_bytes = waiting;
	record->unused = 0;
	record->len = load_bytes(skb, 0, record->message, skb->len, FLOW_MESSAGE_MAX);
	bpf_ringbuf_submit(record, wake_flags(waiting));
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
