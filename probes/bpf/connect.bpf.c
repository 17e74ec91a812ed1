// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// TCP connections as the side that connects sees their set-up: begun, established, failed. Every other change of a
// socket's state costs two comparisons.
// match-proto: inet_sock_set_state(const struct sock *sk, const int oldstate, const int newstate)
#include "kernel.h"

#include "wire.h"

#include "stream.h"

// As in exec.bpf.c: behind a typed tracepoint a plain load does.
#ifdef RAW_TP
#define TRACEPOINT(name) SEC("raw_tp/" name)
#define READ_TYPED(dst, field) READ(dst, field)
#else
#define TRACEPOINT(name) SEC("tp_btf/" name)
#define READ_TYPED(dst, field) ((dst) = (field))
#endif

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	struct net *net;
} possible_net_t;

struct in6_addr {
	uint8_t bytes[16];
};

struct sock_common {
	uint32_t skc_daddr, skc_rcv_saddr;
	uint16_t skc_dport, skc_num, skc_family;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr, skc_v6_rcv_saddr;
};

struct sock {
	struct sock_common __sk_common;
	int sk_err, sk_err_soft;
	uint16_t sk_protocol;
	uint8_t sk_shutdown;
};

struct tcp_sock {
	uint32_t total_retrans;
};

#pragma clang attribute pop

// include/net/tcp_states.h
enum { TCP_ESTABLISHED = 1, TCP_SYN_SENT = 2, TCP_SYN_RECV = 3, TCP_CLOSE = 7 };
// include/linux/socket.h, include/uapi/linux/in.h, include/net/sock.h
enum { AF_INET = 2, AF_INET6 = 10, IPPROTO_TCP = 6, SHUTDOWN_MASK = 3 };

// What the kernel knows of the process when it connects; later steps happen in an interrupt.
always_inline void put_asker(struct ConnectRecord *record)
{
	struct task_struct *task = (void *)bpf_get_current_task(), *leader = 0;
	READ(leader, task->group_leader);
	READ(record->header.start_ns, leader->start_boottime);
	READ(record->comm, leader->comm);
	record->header.pid = bpf_get_current_pid_tgid() >> 32;
}

always_inline void put_addresses(struct ConnectRecord *record, struct sock *sk)
{
	uint16_t family = 0, port = 0;
	READ_TYPED(family, sk->__sk_common.skc_family);
	record->family = family;
	// Zero at the first step, unless the program chose one: the kernel looks for a free one after it has set the state.
	READ_TYPED(port, sk->__sk_common.skc_num);
	record->local_port = port;
	READ_TYPED(port, sk->__sk_common.skc_dport);
	record->remote_port = __builtin_bswap16(port);
	if (family == AF_INET6) {
		READ(record->local, sk->__sk_common.skc_v6_rcv_saddr);
		READ(record->remote, sk->__sk_common.skc_v6_daddr);
	}
	// IPv4 within IPv6 (::ffff:a.b.c.d) is IPv4 in all that follows.
	const uint32_t *words = (const uint32_t *)record->remote;
	if (family == AF_INET || (words[0] == 0 && words[1] == 0 && words[2] == __builtin_bswap32(0xffff))) {
		record->family = AF_INET;
		READ_TYPED(*(uint32_t *)record->local, sk->__sk_common.skc_rcv_saddr);
		READ_TYPED(*(uint32_t *)record->remote, sk->__sk_common.skc_daddr);
	}
}

always_inline void put_socket(struct ConnectRecord *record, struct sock *sk)
{
	struct net *net = 0;
	READ_TYPED(net, sk->__sk_common.skc_net.net);
	READ_TYPED(record->netns, net->ns.inum);
#ifdef RAW_TP
	// Here the kernel makes no cookie, and one that somebody asks for between two steps would not join them. The address
	// stands for it; user space does not let that out.
	record->socket = (uint64_t)sk;
	record->flags |= CONNECT_SOCKET_IS_ADDRESS;
#else
	record->socket = bpf_get_socket_cookie(sk);
#endif
}

// Why it failed. The kernel sets the socket's error before its state; what ICMP said while the program was busy with the
// socket is only noted (soft). None is set when the program gave up (it closed the socket), and when connect(2) itself
// could not send: then nothing was shut down, and the error is in the hands of connect(2) alone.
always_inline void put_failure(struct ConnectRecord *record, struct sock *sk)
{
	int error = 0;
	uint8_t shut = 0;
	READ_TYPED(error, sk->sk_err);
	if (!error)
		READ_TYPED(error, sk->sk_err_soft);
	READ_TYPED(shut, sk->sk_shutdown);
	record->error = error;
	if (shut == SHUTDOWN_MASK)
		record->flags |= CONNECT_CLOSED;
}

TRACEPOINT("inet_sock_set_state")
int on_set_state(uint64_t *ctx)
{
	int from = ctx[1], to = ctx[2];
	if (to != TCP_SYN_SENT && from != TCP_SYN_SENT)
		return 0;
	struct sock *sk = (void *)ctx[0];
	uint16_t protocol = 0;
	READ_TYPED(protocol, sk->sk_protocol);
	if (protocol != IPPROTO_TCP)
		return 0;
	struct ConnectRecord record = {};
	struct tcp_sock *tcp = (void *)sk;
	if (to == TCP_SYN_SENT) {
		record.header.kind = KIND_CONNECT_STARTED;
		put_asker(&record);
	} else if (to == TCP_CLOSE) {
		record.header.kind = KIND_CONNECT_FAILED;
		put_failure(&record, sk);
	} else {
		// SYN_RECV: both ends connected to each other at the same time; the other one has answered.
		record.header.kind = KIND_CONNECT_ESTABLISHED;
	}
	record.header.at_ns = bpf_ktime_get_boot_ns();
	put_addresses(&record, sk);
	put_socket(&record, sk);
	READ(record.retransmits, tcp->total_retrans);
	record.header.ring_bytes = bpf_ringbuf_query(&records, BPF_RB_AVAIL_DATA);
	if (bpf_ringbuf_output(&records, &record, sizeof(record), wake_flags(record.header.ring_bytes)))
		count_lost(LOST_RING);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
