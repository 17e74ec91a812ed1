// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// Packets that the kernel dropped: DNS messages over UDP, and TCP segments with SYN. Other drops cost a few loads. The tracepoint
// (include/trace/events/skb.h) is called by kfree_skb_reason() (net/core/skbuff.c; with a reason since Linux 5.17); a packet
// that is freed after use takes consume_skb() instead.
// match-proto: kfree_skb(struct sk_buff *skb, void *location, enum skb_drop_reason reason, ..)
#include "recursion.h"
#include "traffic.h"

#define SECOND 1000000000

// The records since a time, and whether one of them announced that the others are left out.
struct rate {
	uint64_t since_ns, records, announced;
};

// Of a processor.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, uint32_t);
	__type(value, struct rate);
} rates SEC(".maps");

// The owner of packets: the namespace alone does not identify it in the node's own, through which all pods' packets go.
struct owner {
	uint32_t netns;
	uint8_t source[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, DROP_OWNERS);
	__type(key, struct owner);
	__type(value, struct rate);
} owner_rates SEC(".maps");

// Drops that were left out.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, uint32_t);
	__type(value, uint64_t);
} limited SEC(".maps");

enum verdict { REPORT, ANNOUNCE, LEAVE_OUT };

// Several processors may count at the same time: then a few more are reported, or two of them announce.
always_inline enum verdict count_in(struct rate *rate, uint64_t now, uint64_t most)
{
	if (now - rate->since_ns > SECOND) {
		rate->since_ns = now;
		rate->records = 0;
		rate->announced = 0;
	}
	__sync_fetch_and_add(&rate->records, 1);
	if (rate->records <= most)
		return REPORT;
	if (rate->announced)
		return LEAVE_OUT;
	rate->announced = 1;
	return ANNOUNCE;
}

always_inline enum verdict count_owner(struct DropRecord *record)
{
	struct owner owner = { .netns = record->netns };
	__builtin_memcpy(owner.source, record->source, sizeof(owner.source));
	struct rate *rate = bpf_map_lookup_elem(&owner_rates, &owner);
	if (rate)
		return count_in(rate, record->at_ns, OWNER_DROPS_PER_SECOND);
	struct rate first = { .since_ns = record->at_ns, .records = 1 };
	bpf_map_update_elem(&owner_rates, &owner, &first, BPF_ANY);
	return REPORT;
}

// A flood must not keep the agent busy, and that of one owner must not leave out the drops of others: those above an owner's
// limit do not count towards the processor's. Returns whether the drop is reported.
always_inline int is_within_limits(struct DropRecord *record)
{
	uint32_t zero = 0;
	enum verdict verdict = count_owner(record);
	struct rate *rate = bpf_map_lookup_elem(&rates, &zero);
	record->limited = verdict == ANNOUNCE ? LIMITED_OWNER : LIMITED_NOT;
	if (rate && verdict != LEAVE_OUT) {
		verdict = count_in(rate, record->at_ns, DROPS_PER_SECOND);
		if (verdict == ANNOUNCE)
			record->limited = LIMITED_ALL;
	}
	if (verdict != LEAVE_OUT)
		return 1;
	uint64_t *count = bpf_map_lookup_elem(&limited, &zero);
	if (count)
		__sync_fetch_and_add(count, 1);
	return 0;
}

// Finds the transport header behind the IP header; returns its protocol, 0 when there is none.
always_inline uint8_t find_transport(const uint8_t *ip, struct DropRecord *record, const uint8_t **transport)
{
	uint8_t head[40];
	if (bpf_probe_read_kernel(head, 20, ip))
		return 0;
	if (head[0] >> 4 == 4) {
		// Only the first fragment has ports.
		if (load_two(head + 6) & 0x1fff)
			return 0;
		record->family = FAMILY_V4;
		*(uint32_t *)record->source = *(uint32_t *)(head + 12);
		*(uint32_t *)record->destination = *(uint32_t *)(head + 16);
		*transport = ip + (head[0] & 15) * 4;
		return head[9];
	}
	if (head[0] >> 4 != 6 || bpf_probe_read_kernel(head, 40, ip))
		return 0;
	record->family = FAMILY_V6;
	__builtin_memcpy(record->source, head + 8, 16);
	__builtin_memcpy(record->destination, head + 24, 16);
	uint8_t next = head[6];
	ip += 40;
#pragma unroll
	for (int i = 0; i < EXTENSIONS_MAX; i++) {
		if (next != HOP_OPTIONS && next != ROUTING && next != DESTINATION_OPTIONS && next != FRAGMENT)
			break;
		if (bpf_probe_read_kernel(head, 2, ip))
			return 0;
		ip += next == FRAGMENT ? 8 : (head[1] + 1) * 8;
		next = head[0];
	}
	*transport = ip;
	return next;
}

// Is it a DNS message or a SYN?
always_inline int is_wanted(uint8_t protocol, const uint8_t *transport, struct DropRecord *record)
{
	uint8_t head[14];
	if (protocol == PROTOCOL_UDP) {
		if (bpf_probe_read_kernel(head, 10, transport))
			return 0;
		record->packet = DROP_DNS;
		record->dns_id = load_two(head + 8);
	} else if (protocol == PROTOCOL_TCP) {
		if (bpf_probe_read_kernel(head, 14, transport))
			return 0;
		record->packet = DROP_SYN;
	} else {
		return 0;
	}
	record->source_port = load_two(head);
	record->destination_port = load_two(head + 2);
	if (protocol == PROTOCOL_TCP)
		return head[13] & TCP_SYN;
	return is_dns_port(record->source_port) || is_dns_port(record->destination_port);
}

// The network namespace of the packet's device, else of its socket: in a socket's queue other fields share the place of the
// device (include/linux/skbuff.h, dev_scratch).
always_inline uint32_t netns_of(struct sk_buff *skb)
{
	struct net_device *dev = 0;
	struct sock *sk = 0;
	struct net *net = 0;
	uint32_t inode = 0;
	READ(dev, skb->dev);
	if (dev) {
		READ(net, dev->nd_net.net);
		READ(inode, net->ns.inum);
	}
	if (inode)
		return inode;
	READ(sk, skb->sk);
	READ(net, sk->__sk_common.skc_net.net);
	READ(inode, net->ns.inum);
	return inode;
}

always_inline int is_ip(struct sk_buff *skb)
{
	return skb->protocol == ETH_IP || skb->protocol == ETH_IPV6;
}

always_inline void report(uint64_t *ctx)
{
	struct sk_buff *skb = (void *)ctx[0];
	uint16_t network = skb->network_header;
	struct DropRecord record = {};
	const uint8_t *transport = 0;
	uint8_t next = find_transport((const uint8_t *)skb->head + network, &record, &transport);
	if (!is_wanted(next, transport, &record))
		return;
	record.at_ns = bpf_ktime_get_boot_ns();
	record.netns = netns_of(skb);
	if (!is_within_limits(&record))
		return;
	record.location = ctx[1];
#ifndef NO_REASON
	record.reason = ctx[2];
#endif
	record.ring_bytes = waiting_bytes();
	output(&record, sizeof(record), record.ring_bytes);
}

SEC("tp_btf/kfree_skb")
int on_drop(uint64_t *ctx)
{
	if (!is_ip((void *)ctx[0]))
		return 0;
	mark_reported(ctx[0], 0);
	report(ctx);
	return 0;
}

// Reports what came in an interrupt of the program above: most packets are dropped when they are received.
SEC("tp_btf/kfree_skb")
int on_drop_within(uint64_t *ctx)
{
	if (is_ip((void *)ctx[0]) && is_unreported(ctx[0], 0))
		report(ctx);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
