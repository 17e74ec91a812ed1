// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// A filter on the agent's own ctnetlink socket. The kernel runs it for each message when it sends one
// (net/netlink/af_netlink.c, do_one_broadcast). The filter puts the message and the time, which it lacks, into the ring buffer
// and rejects it for the socket, so that no message waits there and none wakes the reader.
// match-proto: int filter(struct __sk_buff *skb)
#include "stream.h"

// include/uapi/linux/bpf.h; only the first field is used.
struct __sk_buff {
	uint32_t len;
};

SEC("socket")
int on_message(struct __sk_buff *skb)
{
	uint64_t waiting = waiting_bytes();
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
