// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// DNS messages, as the client's socket sends and receives them: programs on the root of the cgroup tree see each packet
// of each socket of the node once on its way out and once on its way in, whatever network namespace the socket is in.
// What goes to other ports costs a few loads. Always lets the packet pass.
//
// Out: behind the netfilter hooks of the socket's own network namespace (ip_finish_output), in: before the socket's queue.
// So addresses are the socket's own where it is connected: a packet may carry translated ones on its way out.
#include "kernel.h"

#include "wire.h"

#include "traffic.h"

// include/uapi/linux/bpf.h; every access becomes one of the real sk_buff, or of its socket.
struct __sk_buff {
	uint32_t len, pkt_type, mark, queue_mapping, protocol, vlan_present, vlan_tci, vlan_proto, priority;
	uint32_t ingress_ifindex, ifindex, tc_index, cb[5], hash, tc_classid, data, data_end, napi_id;
	uint32_t family, remote_ip4, local_ip4, remote_ip6[4], local_ip6[4];
	// The first as 32 bits in network byte order, the second in the node's.
	uint32_t remote_port, local_port;
	uint32_t data_meta;
	uint64_t flow_keys, tstamp;
	uint32_t wire_len, gso_segs;
	const void *sk;
};

// include/uapi/linux/bpf.h, likewise: its beginning.
struct bpf_tcp_sock {
	uint32_t snd_cwnd, srtt_us, rtt_min, snd_ssthresh, rcv_nxt, snd_nxt, snd_una, mss_cache, ecn_flags;
	uint32_t rate_delivered, rate_interval_us, packets_out, retrans_out, total_retrans;
	uint32_t segs_in, data_segs_in, segs_out, data_segs_out, lost_out, sacked_out;
	uint64_t bytes_received, bytes_acked;
};

static struct bpf_tcp_sock *(*const bpf_tcp_sock)(const void *socket) = (void *)96;

#define PASS 1
// Holds the network namespace: so much of a socket's beginning has been the same since Linux 3.13.
#define SOCK_BEGIN 64

struct packet {
	// Where the message (UDP) or the payload (TCP) begins, and how long it is.
	uint32_t offset, len;
	uint32_t transport;
	uint32_t tcp_seq;
	uint16_t source_port, destination_port;
	uint8_t family, protocol, tcp_flags;
};

// `size` bytes of the packet: in place where they lie in its linear part, else copied to `buffer`. 0 beyond its end.
always_inline uint8_t *bytes_at(struct __sk_buff *skb, uint32_t offset, uint8_t *buffer, uint32_t size)
{
	uint8_t *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (offset > 0x3fff)
		return 0;
	if (data + offset + size <= end)
		return data + offset;
	return bpf_skb_load_bytes(skb, offset, buffer, size) ? 0 : buffer;
}

// Where the transport header begins, with its protocol and the packet's family in the upper two bytes. 0 when it is not UDP or
// TCP. Not inlined: the verifier walks a global function once and learns nothing of its result, so it does not walk all that
// follows once for each combination of headers.
noinline uint32_t transport_of(struct __sk_buff *skb)
{
	uint8_t buffer[8];
	uint32_t transport, protocol, family;
	if (skb->protocol == ETH_IP) {
		uint8_t *ip = bytes_at(skb, 0, buffer, 1);
		if (!ip)
			return 0;
		transport = (ip[0] & 15) * 4;
		ip = bytes_at(skb, 9, buffer, 1);
		if (!ip)
			return 0;
		protocol = ip[0];
		family = FAMILY_V4;
	} else if (skb->protocol == ETH_IPV6) {
		uint8_t *ip = bytes_at(skb, 6, buffer, 1);
		if (!ip)
			return 0;
		protocol = ip[0];
		transport = 40;
		family = FAMILY_V6;
#pragma unroll
		for (int i = 0; i < EXTENSIONS_MAX; i++) {
			if (protocol == PROTOCOL_UDP || protocol == PROTOCOL_TCP)
				break;
			uint32_t next = protocol;
			if (next != HOP_OPTIONS && next != ROUTING && next != DESTINATION_OPTIONS && next != FRAGMENT)
				return 0;
			uint8_t *extension = bytes_at(skb, transport, buffer, 2);
			if (!extension)
				return 0;
			protocol = extension[0];
			transport += next == FRAGMENT ? 8 : (extension[1] + 1) * 8;
		}
	} else {
		return 0;
	}
	if (protocol != PROTOCOL_UDP && protocol != PROTOCOL_TCP)
		return 0;
	return family << 24 | protocol << 16 | transport;
}

// Finds the message. 0 when it is not reported.
always_inline int find_message(struct __sk_buff *skb, int out, struct packet *packet)
{
	uint8_t buffer[16];
	uint32_t transport = transport_of(skb);
	if (!transport)
		return 0;
	packet->transport = transport & 0xffff;
	packet->protocol = transport >> 16;
	packet->family = transport >> 24;
	uint8_t *header = bytes_at(skb, packet->transport, buffer, 8);
	if (!header)
		return 0;
	packet->source_port = load_two(header);
	packet->destination_port = load_two(header + 2);
	// The socket's port counts where it has one: see above.
	if (!skb->remote_port && !is_dns_port(out ? packet->destination_port : packet->source_port))
		return 0;
	uint32_t header_len = 8, end = skb->len;
	if (packet->protocol == PROTOCOL_UDP) {
		uint32_t stated = packet->transport + load_two(header + 4);
		end = stated < end ? stated : end;
	} else {
		header = bytes_at(skb, packet->transport, buffer, 14);
		if (!header)
			return 0;
		packet->tcp_seq = (uint32_t)load_two(header + 4) << 16 | load_two(header + 6);
		packet->tcp_flags = header[13];
		// SYN has a number of its own, before those of what it brings along (TCP Fast Open, RFC 7413 4.2).
		packet->tcp_seq += (header[13] & TCP_SYN) != 0;
		header_len = (header[12] >> 4) * 4;
	}
	packet->offset = packet->transport + header_len;
	// An empty datagram has a record as well: user space counts it as malformed. A close has one because a message may
	// be incomplete then.
	packet->len = packet->offset < end ? end - packet->offset : 0;
	return packet->len > 0 || packet->protocol == PROTOCOL_UDP || packet->tcp_flags & (TCP_FIN | TCP_RST);
}

// Both addresses, first as the packet has them, then as the socket does.
always_inline void put_addresses(struct __sk_buff *skb, int out, const struct packet *packet, struct DnsRecord *record)
{
	int connected = skb->remote_port != 0;
	record->local_port = skb->local_port;
	record->remote_port = connected ? htonl(skb->remote_port) :
			      out	? packet->destination_port :
					  packet->source_port;
	if (packet->family == FAMILY_V4) {
		uint32_t local = skb->local_ip4, remote = connected ? skb->remote_ip4 : 0;
		if (!local)
			bpf_skb_load_bytes(skb, out ? 12 : 16, &local, 4);
		if (!remote)
			bpf_skb_load_bytes(skb, out ? 16 : 12, &remote, 4);
		*(uint32_t *)record->local = local;
		*(uint32_t *)record->remote = remote;
		return;
	}
	uint32_t *local = (uint32_t *)record->local, *remote = (uint32_t *)record->remote;
	local[0] = skb->local_ip6[0];
	local[1] = skb->local_ip6[1];
	local[2] = skb->local_ip6[2];
	local[3] = skb->local_ip6[3];
	if (!(local[0] | local[1] | local[2] | local[3]))
		bpf_skb_load_bytes(skb, out ? 8 : 24, record->local, 16);
	if (connected) {
		remote[0] = skb->remote_ip6[0];
		remote[1] = skb->remote_ip6[1];
		remote[2] = skb->remote_ip6[2];
		remote[3] = skb->remote_ip6[3];
	}
	if (!(remote[0] | remote[1] | remote[2] | remote[3]))
		bpf_skb_load_bytes(skb, out ? 24 : 8, record->remote, 16);
}

// The process that sends. A datagram leaves in the system call that sends it. A TCP segment does where the socket is held
// by a process; what leaves on an answer or a timer leaves without.
always_inline void put_process(struct __sk_buff *skb, const struct packet *packet, struct DnsRecord *record)
{
	if (packet->protocol == PROTOCOL_TCP) {
		// The context is the kernel's own sk_buff behind an address that the verifier rewrites; read as memory it is that.
		struct sock *sk = 0;
		int owned = 0;
		READ(sk, ((struct sk_buff *)skb)->sk);
		READ(owned, sk->sk_lock.owned);
		if (!owned)
			return;
	}
#ifdef OLD_TASK
	struct task_struct *task = (void *)bpf_get_current_task(), *leader = 0;
	int pid = 0;
	READ(leader, task->group_leader);
	READ(pid, leader->tgid);
	READ(record->start_ns, leader->start_boottime);
	READ(record->comm, leader->comm);
	record->pid = pid;
#else
	struct task_struct *leader = bpf_get_current_task_btf()->group_leader;
	record->pid = leader->tgid;
	record->start_ns = leader->start_boottime;
	const uint64_t *comm = (const uint64_t *)leader->comm;
	((uint64_t *)record->comm)[0] = comm[0];
	((uint64_t *)record->comm)[1] = comm[1];
#endif
}

// How far both streams of the connection had come before this segment, as the socket knows it. So user space can distinguish
// bytes that are still on their way from bytes that it will never see.
always_inline void put_progress(struct __sk_buff *skb, struct DnsRecord *record)
{
	const void *sk = skb->sk;
	if (!sk)
		return;
	struct bpf_tcp_sock *tcp = bpf_tcp_sock(sk);
	if (!tcp)
		return;
	record->tcp_received = tcp->rcv_nxt;
	record->tcp_acknowledged = tcp->snd_una;
	// The acknowledgement of the SYN counts as a byte (tcp_snd_una_update() in net/ipv4/tcp_input.c, Linux 6.12).
	if (tcp->bytes_acked <= 1)
		record->tcp_fresh |= DNS_NOTHING_ACKNOWLEDGED;
	if (tcp->bytes_received == 0)
		record->tcp_fresh |= DNS_NOTHING_RECEIVED;
}

// The network namespace of a socket, whose beginning is copied in one go: to the verifier it is no memory that may be read
// here, or calculated with, but its address may be passed to a helper.
always_inline uint32_t netns_of(const void *sock)
{
	uint8_t begin[SOCK_BEGIN];
	uint32_t offset = FIELD_OFFSET(((struct sock *)0)->__sk_common.skc_net.net);
	struct net *net;
	uint32_t inode = 0;
	if (offset > SOCK_BEGIN - 8 || bpf_probe_read_kernel(begin, SOCK_BEGIN, sock))
		return 0;
	net = *(struct net **)(begin + offset);
	READ(inode, net->ns.inum);
	return inode;
}

// One record with so much room: a size known to the verifier. Not through a buffer of the processor: a program in a system
// call may be interrupted by one that receives.
always_inline void emit(struct __sk_buff *skb, const struct DnsRecord *head, uint32_t offset, uint32_t len,
			uint32_t room)
{
	struct DnsRecord *record = bpf_ringbuf_reserve(&records, sizeof(*record) + room, 0);
	if (!record) {
		count_lost(LOST_RING);
		return;
	}
	*record = *head;
	record->captured = load_bytes(skb, offset, (uint8_t *)record + sizeof(*record), len, room);
	bpf_ringbuf_submit(record, wake_flags(head->ring_bytes));
}

// The largest record. A function of its own for the verifier, as transport_of(): the pieces of a segment are a loop. Global
// functions take pointers to memory since Linux 5.12.
#ifdef OLD_TASK
always_inline
#else
noinline
#endif
int emit_large(struct __sk_buff *skb, const struct DnsRecord *head, uint32_t offset, uint32_t len)
{
	if (head)
		emit(skb, head, offset, len, DNS_ROOM_LARGE);
	return 0;
}

// All of a TCP segment: full pieces, then the rest in a record of its size. Each piece has its own number and length. Of a
// datagram as much as one record holds.
always_inline void emit_all(struct __sk_buff *skb, struct packet *packet, struct DnsRecord *head)
{
	uint32_t offset = packet->offset, len = packet->len;
	if (packet->protocol == PROTOCOL_TCP) {
		head->wire_len = DNS_ROOM_LARGE;
		// The stream begins with the first piece and ends with the last.
		head->tcp_flags &= ~TCP_FIN;
#pragma clang loop unroll(disable)
		for (uint32_t i = 1; i < DNS_PIECES_MAX; i++) {
			if (len <= DNS_ROOM_LARGE)
				break;
			emit_large(skb, head, offset, DNS_ROOM_LARGE);
			head->tcp_flags &= ~TCP_SYN;
			head->tcp_seq += DNS_ROOM_LARGE;
			offset += DNS_ROOM_LARGE;
			len -= DNS_ROOM_LARGE;
		}
	}
	head->wire_len = len;
	head->tcp_flags |= packet->tcp_flags & TCP_FIN;
	if (len <= DNS_ROOM_SMALL)
		emit(skb, head, offset, len, DNS_ROOM_SMALL);
	else if (len <= DNS_ROOM_MIDDLE)
		emit(skb, head, offset, len, DNS_ROOM_MIDDLE);
	else
		emit_large(skb, head, offset, len);
}

always_inline int look_at(struct __sk_buff *skb, int out)
{
	// A connected socket shows at once whether this is of interest.
	uint32_t port = skb->remote_port;
	if (port && !is_dns_port(htonl(port)))
		return PASS;
	struct packet packet = {};
	if (!find_message(skb, out, &packet))
		return PASS;
	struct DnsRecord record = {
		.at_ns = bpf_ktime_get_boot_ns(),
		.socket = bpf_get_socket_cookie(skb),
		.ring_bytes = bpf_ringbuf_query(&records, BPF_RB_AVAIL_DATA),
		.tcp_seq = packet.tcp_seq,
		.tcp_flags = packet.tcp_flags,
		.family = packet.family,
		.protocol = packet.protocol,
		.direction = out ? DNS_OUT : DNS_IN,
	};
	put_addresses(skb, out, &packet, &record);
	record.netns = netns_of(skb->sk);
	if (out)
		put_process(skb, &packet, &record);
	if (packet.protocol == PROTOCOL_TCP)
		put_progress(skb, &record);
	emit_all(skb, &packet, &record);
	return PASS;
}

SEC("cgroup_skb/egress")
int on_send(struct __sk_buff *skb)
{
	return look_at(skb, 1);
}

SEC("cgroup_skb/ingress")
int on_receive(struct __sk_buff *skb)
{
	return look_at(skb, 0);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
