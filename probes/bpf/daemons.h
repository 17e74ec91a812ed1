// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// Requests of tracked processes to daemons: who sends to whom and when, over unix sockets and over TCP within the node, and which
// daemon has a request, so that what it forks is tracked meanwhile. User space attaches these programs only while a plugin runs that
// is slow or known to be a shim.
//
// sock_send_length and sock_recv_length (include/trace/events/sock.h, since Linux 6.3) are called in sock_sendmsg_nosec() and
// sock_recvmsg_nosec() (net/socket.c) in the process that sends or receives, after it was done: a message may be received before
// its sending is reported.
//
// The other end of a unix socket is known by SO_PEERCRED: connect(2) notes the process that connects in the socket that accept(2)
// returns, and the one that called listen(2) in its own (net/unix/af_unix.c, unix_stream_connect). Of TCP the tracked process' end is
// remembered by its ports, and is seen first, since the client sends first.
//
// The waits of a daemon's threads are recorded from the receipt of a request on, as those of a plugin are (waits.h).
//
// In the object of the process probe, whose table of roles it shares; a kernel without these tracepoints does not load these
// programs and loads the others.
// match-proto: sock_send_length(struct sock *sk, int ret, int flags)
// match-proto: sock_recv_length(struct sock *sk, int ret, int flags)
#pragma once

#include "goroutine.h"
#include "process.h"
#include "trust.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	struct net *net;
} possible_net_t;

struct in6_addr {
	uint8_t in6_u[16];
};

struct sock_common {
	uint32_t skc_daddr, skc_rcv_saddr;
	// The peer's in network byte order, the own one in the node's.
	uint16_t skc_dport, skc_num;
	unsigned short skc_family;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr, skc_v6_rcv_saddr;
};

struct sock {
	struct sock_common __sk_common;
	uint16_t sk_type, sk_protocol;
	struct pid *sk_peer_pid;
};

struct unix_sock {
	struct sock *peer;
};

struct upid {
	int nr;
};

// The first number is that of the initial pid namespace.
struct pid___numbers {
	struct upid numbers[1];
};

#pragma clang attribute pop

// include/linux/socket.h
#define AF_UNIX 1
#define AF_INET 2
#define AF_INET6 10
#define MSG_PEEK 2
// include/linux/net.h
#define SOCK_STREAM 1
#define SOCK_SEQPACKET 5
// include/uapi/linux/in.h
#define IPPROTO_TCP 6

struct last_message {
	uint64_t at_ns, goroutine;
	uint32_t flags;
	uint32_t unused;
};

// By connection, the last message that has a record.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, CONNECTIONS_MAX);
	__type(key, uint64_t);
	__type(value, struct last_message);
} last_messages SEC(".maps");

// By connection, the tracked process at one end of a TCP connection within the node.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, CONNECTIONS_MAX);
	__type(key, uint64_t);
	__type(value, uint32_t);
} tcp_clients SEC(".maps");

// A bit for each port that a tracked process has at its end of such a connection. Most messages have none, and this table costs less
// than a bucket of a hash table. User space empties it before it attaches the programs.
struct client_ports {
	uint32_t bits[PORT_WORDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, uint32_t);
	__type(value, struct client_ports);
} client_ports SEC(".maps");

// By process id, when a daemon that was refused began: it is counted once, however many requests it receives.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, DAEMONS_MAX);
	__type(key, uint32_t);
	__type(value, uint64_t);
} refused_daemons SEC(".maps");

// What is known of one end of a connection.
struct end {
	uint64_t connection;
	uint32_t client_pid, listener_pid, flags;
};

always_inline uint32_t peer_pid(struct sock *sk)
{
	struct pid *pid = 0;
	int number = 0;
	READ(pid, sk->sk_peer_pid);
	READ(number, ((struct pid___numbers *)pid)->numbers[0].nr);
	return number;
}

// Fills in `end`; 0 when this is no connection between a tracked process and one that is not.
always_inline int unix_end(struct end *end, struct sock *sk, uint32_t self)
{
	uint16_t type = 0;
	READ_TYPED(type, sk->sk_type);
	if (type != SOCK_STREAM && type != SOCK_SEQPACKET)
		return 0;
	uint32_t peer = peer_pid(sk);
	if (!peer || peer == self)
		return 0;
	int is_tracked = role_of(self) == ROLE_TRACKED;
	// Between two tracked processes there is no daemon.
	if (is_tracked == (role_of(peer) == ROLE_TRACKED))
		return 0;
	if (is_tracked) {
		end->connection = (uint64_t)sk;
		end->client_pid = self;
		end->listener_pid = peer;
		return 1;
	}
	struct sock *other = 0;
	READ(other, ((struct unix_sock *)sk)->peer);
	end->connection = (uint64_t)other;
	end->client_pid = peer;
	end->flags |= MESSAGE_AT_DAEMON;
	return other != 0;
}

always_inline int is_within_node(struct sock *sk, unsigned short family)
{
	if (family == AF_INET) {
		uint32_t from = 0, to = 0;
		READ_TYPED(from, sk->__sk_common.skc_rcv_saddr);
		READ_TYPED(to, sk->__sk_common.skc_daddr);
		return from == to || ((from & 0xff) == 127 && (to & 0xff) == 127);
	}
	uint32_t from[4] = {}, to[4] = {};
	READ(from, sk->__sk_common.skc_v6_rcv_saddr);
	READ(to, sk->__sk_common.skc_v6_daddr);
	// The last byte of the upper three words is 127 where an IPv4 address of the loopback network is mapped.
	return from[0] == to[0] && from[1] == to[1] && from[2] == to[2] &&
	       (from[3] == to[3] || (from[2] == __builtin_bswap32(0xffff) && (from[3] & 0xff) == 127 && (to[3] & 0xff) == 127));
}

// As unix_end().
always_inline int tcp_end(struct end *end, struct sock *sk, uint32_t self, unsigned short family)
{
	uint16_t protocol = 0, own = 0, other = 0;
	READ_TYPED(protocol, sk->sk_protocol);
	if (protocol != IPPROTO_TCP || !is_within_node(sk, family))
		return 0;
	uint32_t zero = 0;
	struct client_ports *ports = bpf_map_lookup_elem(&client_ports, &zero);
	if (!ports)
		return 0;
	READ_TYPED(own, sk->__sk_common.skc_num);
	READ_TYPED(other, sk->__sk_common.skc_dport);
	other = __builtin_bswap16(other);
	int is_tracked = role_of(self) == ROLE_TRACKED;
	// The verifier of Linux 6.12 does not know how large a number is whose bytes were swapped.
	uint32_t port = other;
	opaque(port);
	port &= 0xffff;
	if (!is_tracked && !(ports->bits[port / 32] & 1u << port % 32))
		return 0;
	struct net *net = 0;
	unsigned int inode = 0;
	READ(net, sk->__sk_common.skc_net.net);
	READ(inode, net->ns.inum);
	end->flags |= MESSAGE_TCP;
	if (is_tracked) {
		end->connection = (uint64_t)inode << 32 | (uint32_t)own << 16 | other;
		end->client_pid = self;
		bpf_map_update_elem(&tcp_clients, &end->connection, &self, BPF_ANY);
		__sync_fetch_and_or(&ports->bits[own / 32], 1u << own % 32);
		return 1;
	}
	end->connection = (uint64_t)inode << 32 | (uint32_t)other << 16 | own;
	uint32_t *client = bpf_map_lookup_elem(&tcp_clients, &end->connection);
	if (!client || role_of(*client) != ROLE_TRACKED)
		return 0;
	end->client_pid = *client;
	end->flags |= MESSAGE_AT_DAEMON;
	return 1;
}

// A daemon that could not set up the node's networks itself is refused: what it forks is not followed, since a plugin may have
// connected to a socket that a pod serves. It is judged by what it holds when it receives.
noinline int is_refused_daemon(uint32_t self)
{
	int verdict = judge(CLAIM_DAEMON);
	if (verdict == TRUSTED)
		return 0;
	struct task_struct *task = (void *)bpf_get_current_task(), *leader = 0;
	uint64_t start_ns = 0;
	READ(leader, task->group_leader);
	READ(start_ns, leader->start_boottime);
	uint64_t *counted = bpf_map_lookup_elem(&refused_daemons, &self);
	if (counted && *counted == start_ns)
		return 1;
	bpf_map_update_elem(&refused_daemons, &self, &start_ns, BPF_ANY);
	refuse((uint64_t)&leader->comm, CLAIM_DAEMON, verdict);
	return 1;
}

// The daemon has a request: what it forks from now on is tracked, and what its threads wait for. A process that has a role keeps it.
always_inline void follow_daemon(uint32_t self, uint64_t now)
{
	uint32_t role = role_of(self);
	if ((role && role != ROLE_DAEMON) || is_refused_daemon(self))
		return;
	struct daemon *known = role ? bpf_map_lookup_elem(&daemons, &self) : 0;
	if (known) {
		if (now > known->newest_ns)
			known->newest_ns = now;
		return;
	}
	struct daemon daemon = { .newest_ns = now, .since_ns = now };
	if (bpf_map_update_elem(&daemons, &self, &daemon, BPF_ANY)) {
		count_lost(LOST_TABLE);
		return;
	}
	if (!role)
		set_role(self, ROLE_DAEMON);
}

// A message that follows another one of the same kind and goroutine closely has no record.
always_inline int is_repeated(struct end *end, uint64_t goroutine, uint64_t now)
{
	struct last_message *last = bpf_map_lookup_elem(&last_messages, &end->connection);
	if (last && last->flags == end->flags && last->goroutine == goroutine && now - last->at_ns < MESSAGE_GAP_NS)
		return 1;
	struct last_message this = { .at_ns = now, .goroutine = goroutine, .flags = end->flags };
	bpf_map_update_elem(&last_messages, &end->connection, &this, BPF_ANY);
	return 0;
}

// Of a connection with a request, another goroutine than that of the last message waits for what comes next. With grpc-go one goroutine
// may read a whole request with the preface, and a second one, which has read nothing yet, creates the one that handles it.
always_inline int is_new_reader(struct end *end, uint64_t goroutine)
{
	struct last_message *last = bpf_map_lookup_elem(&last_messages, &end->connection);
	if (!last || !goroutine || last->goroutine == goroutine)
		return 0;
	last->goroutine = goroutine;
	return 1;
}

// `bytes` is what the call returned: an error is negative.
always_inline int on_message(struct sock *sk, int bytes, uint32_t sent)
{
	unsigned short family = 0;
	uint32_t self = bpf_get_current_pid_tgid() >> 32;
	int awaits = bytes == -EAGAIN && !sent;
	if (bytes <= 0 && !(awaits && role_of(self) == ROLE_DAEMON))
		return 0;
	struct end end = { .flags = sent };
	if (awaits)
		end.flags |= MESSAGE_AWAITED;
	// An answer that follows an acknowledgement closely has a record.
	else if (bytes <= CONTROL_MAX)
		end.flags |= MESSAGE_CONTROL;
	READ_TYPED(family, sk->__sk_common.skc_family);
	if (family == AF_UNIX) {
		if (!unix_end(&end, sk, self))
			return 0;
	} else if (family == AF_INET || family == AF_INET6) {
		if (!tcp_end(&end, sk, self, family))
			return 0;
	} else {
		return 0;
	}
	struct task_struct *task = (void *)bpf_get_current_task(), *leader = 0;
	struct MessageRecord record = {
		.connection = end.connection,
		.client_pid = end.client_pid,
		.listener_pid = end.listener_pid,
		.tid = bpf_get_current_pid_tgid(),
		.bytes = awaits ? 0 : bytes,
		.flags = end.flags,
	};
	READ(leader, task->group_leader);
	record.header.kind = KIND_MESSAGE;
	record.header.pid = self;
	record.header.at_ns = bpf_ktime_get_boot_ns();
	if ((end.flags & MESSAGE_AT_DAEMON) && !sent && !awaits)
		follow_daemon(self, record.header.at_ns);
	uint64_t goroutine = 0;
	if ((end.flags & MESSAGE_AT_DAEMON) && role_of(self) == ROLE_DAEMON) {
		record.flags |= MESSAGE_FOLLOWED;
		goroutine = put_goroutine(&record.goroutine);
	}
	int is_new = awaits ? is_new_reader(&end, goroutine) : !is_repeated(&end, goroutine, record.header.at_ns);
	if (!is_new || !has_room(0))
		return 0;
	READ(record.thread_begin_ns, task->start_boottime);
	READ(record.header.start_ns, leader->start_boottime);
	READ(record.comm, leader->comm);
	record.cgroup_id = bpf_get_current_cgroup_id();
	record.header.ring_bytes = waiting_bytes();
	emit(&record.header, sizeof(record));
	return 0;
}

TRACEPOINT("sock_send_length")
int on_sock_send(uint64_t *ctx)
{
	return on_message((void *)ctx[0], ctx[1], MESSAGE_SENT);
}

TRACEPOINT("sock_recv_length")
int on_sock_receive(uint64_t *ctx)
{
	// What is only looked at is received later.
	if (ctx[2] & MSG_PEEK)
		return 0;
	return on_message((void *)ctx[0], ctx[1], 0);
}
