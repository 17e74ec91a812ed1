// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// The set-up of TCP connections on the side that connects: started, established, failed. Every other change of a socket's
// state costs two comparisons in each of the two programs. The tracepoint (include/trace/events/sock.h) is called by inet_sk_set_state()
// (net/ipv4/af_inet.c) before the new state is stored.
// match-proto: inet_sock_set_state(const struct sock *sk, const int oldstate, const int newstate)
#include "recursion.h"
#include "stream.h"

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

// The process, which the kernel knows at the first step only: later steps happen in an interrupt.
always_inline void put_process(struct ConnectRecord *record)
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
	// Zero at the first step unless the program has bound the socket: the kernel chooses a port after it has set the state
	// (net/ipv4/tcp_ipv4.c, tcp_v4_connect).
	READ_TYPED(port, sk->__sk_common.skc_num);
	record->local_port = port;
	READ_TYPED(port, sk->__sk_common.skc_dport);
	record->remote_port = __builtin_bswap16(port);
	if (family == AF_INET6) {
		READ(record->local, sk->__sk_common.skc_v6_rcv_saddr);
		READ(record->remote, sk->__sk_common.skc_v6_daddr);
	}
	// An IPv4-mapped IPv6 address (RFC 4291, section 2.5.5.2) is reported as IPv4.
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
	READ(net, sk->__sk_common.skc_net.net);
	READ(record->netns, net->ns.inum);
#ifdef RAW_TP
	// A raw tracepoint cannot make a cookie, and a cookie that something else makes between two steps would not join them.
	// The address is used instead; user space never lets it out.
	record->socket = (uint64_t)sk;
	record->flags |= CONNECT_SOCKET_IS_ADDRESS;
#else
	record->socket = bpf_get_socket_cookie(sk);
#endif
}

// The reason of a failure. The kernel sets the socket's error before its state; an ICMP error that came while a process held
// the socket is only the soft error (net/ipv4/tcp_ipv4.c, tcp_v4_err). Neither is set when the program closed the socket, nor
// when connect(2) itself could not send: then nothing was shut down, and only connect(2) returns the error.
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

always_inline int is_set_up(uint64_t *ctx)
{
	return (int)ctx[2] == TCP_SYN_SENT || (int)ctx[1] == TCP_SYN_SENT;
}

always_inline void report(uint64_t *ctx)
{
	int to = ctx[2];
	struct sock *sk = (void *)ctx[0];
	uint16_t protocol = 0;
	READ_TYPED(protocol, sk->sk_protocol);
	if (protocol != IPPROTO_TCP)
		return;
	struct ConnectRecord record = {};
	struct tcp_sock *tcp = (void *)sk;
	if (to == TCP_SYN_SENT) {
		record.header.kind = KIND_CONNECT_STARTED;
		put_process(&record);
	} else if (to == TCP_CLOSE) {
		record.header.kind = KIND_CONNECT_FAILED;
		put_failure(&record, sk);
	} else {
		// ESTABLISHED, or SYN_RECV: both ends connected at the same time (RFC 9293, section 3.5), and the other has answered.
		record.header.kind = KIND_CONNECT_ESTABLISHED;
	}
	record.header.at_ns = bpf_ktime_get_boot_ns();
	put_addresses(&record, sk);
	put_socket(&record, sk);
	READ(record.retransmits, tcp->total_retrans);
	record.header.ring_bytes = waiting_bytes();
	output(&record, sizeof(record), record.header.ring_bytes);
}

// The new state and the local port: a new socket may have the address of one that was just freed.
always_inline uint64_t detail_of(uint64_t *ctx)
{
	struct sock *sk = (void *)ctx[0];
	uint16_t port = 0;
	READ_TYPED(port, sk->__sk_common.skc_num);
	return (uint32_t)ctx[2] << 16 | port;
}

TRACEPOINT("inet_sock_set_state")
int on_set_state(uint64_t *ctx)
{
	if (!is_set_up(ctx))
		return 0;
	mark_reported(ctx[0], detail_of(ctx));
	report(ctx);
	return 0;
}

// Reports what came in an interrupt of the program above: most failures come on a timer, most answers in a received packet.
TRACEPOINT("inet_sock_set_state")
int on_set_state_within(uint64_t *ctx)
{
	if (is_set_up(ctx) && is_unreported(ctx[0], detail_of(ctx)))
		report(ctx);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
