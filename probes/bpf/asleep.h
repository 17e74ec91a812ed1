// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// What the threads of tracked processes do now: a sleep that lasts has no wake-up that could be recorded, so user space looks.
// Attached nowhere: user space reads the iterator's file while an operation is slow, and the kernel calls the program for every
// thread of the node. Of one that is not tracked it costs the look-ups of role_of() and nothing leaves the kernel.
//
// A task iterator (kernel/bpf/task_iter.c, since Linux 5.8) runs in the context of the reader, with the thread it looks at held but
// not stopped: a thread may run meanwhile, and files may be closed, so what is read may be a moment old. The stack is what
// bpf_get_task_stack() finds (in iterators since Linux 5.9).
#pragma once

#include "waits.h"

static long (*const bpf_seq_write)(void *seq, const void *data, uint32_t size) = (void *)127;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct bpf_iter_meta {
	void *seq;
};

struct file___look {
	void *private_data;
};

struct look_in6_addr {
	uint8_t bytes[16];
};

struct sock_common___look {
	uint32_t skc_daddr;
	uint16_t skc_dport, skc_family;
	uint8_t skc_state;
	struct look_in6_addr skc_v6_daddr;
};

struct upid___look {
	int nr;
};

struct pid___look {
	struct upid___look numbers[1];
};

struct sock___look {
	struct sock_common___look __sk_common;
	uint16_t sk_protocol;
	struct pid___look *sk_peer_pid;
};

struct socket___look {
	struct sock___look *sk;
};

struct sockaddr_un {
	uint16_t sun_family;
};

struct unix_address___look {
	int len;
	struct sockaddr_un name[];
};

struct unix_sock___look {
	struct unix_address___look *addr;
	struct sock___look *peer;
};

#pragma clang attribute pop

// include/uapi/linux/stat.h, include/linux/socket.h
enum { S_IFSOCK = 0140000, LOOK_AF_UNIX = 1, LOOK_AF_INET = 2, LOOK_AF_INET6 = 10 };
// include/net/tcp_states.h: a datagram socket that is connected is ESTABLISHED too.
enum { LOOK_ESTABLISHED = 1, LOOK_SYN_SENT = 2 };
// The path in struct sockaddr_un (include/uapi/linux/un.h).
#define SUN_PATH 2

// Both records are larger than a program's stack. One reader at a time: user space has one file open.
struct look_scratch {
	struct AsleepRecord thread;
	struct SocketRecord socket;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, uint32_t);
	__type(value, struct look_scratch);
} look_scratches SEC(".maps");

// Of the sleep or the wait for a processor that lasts. `sleeps` knows it if it began while the wait programs were attached.
always_inline uint64_t since_of(struct task_struct *task, uint32_t flags)
{
	uint32_t tid = tid_of(task);
	struct sleep *sleep = sleep_of(task, tid, 0);
	if (flags & LOOK_RUNS)
		return 0;
	if (!sleep)
		return flags ? 0 : slept_since(task, 0);
	if (flags & LOOK_RUNNABLE)
		return sleep->runnable_ns;
	// An entry that was woken is of a sleep before this one.
	return sleep->runnable_ns ? 0 : sleep->out_ns;
}

always_inline void look_at_thread(void *seq, struct task_struct *task, struct AsleepRecord *record)
{
	uint32_t state = state_of(task), flags = 0;
	struct task_struct *leader = 0;
	if (state & TASK_DEAD)
		return;
	if (state == 0) {
		uint8_t on_cpu = 1;
		if (FIELD_EXISTS(((struct task_struct___smp *)task)->on_cpu))
			READ(on_cpu, ((struct task_struct___smp *)task)->on_cpu);
		flags = on_cpu ? LOOK_RUNS : LOOK_RUNNABLE;
	}
	READ(leader, task->group_leader);
	put_header(&record->header, KIND_ASLEEP, leader);
	put_times(&record->times, task);
	record->since_ns = since_of(task, flags);
	record->flags = flags;
	record->stack_len = 0;
	if (!flags) {
		long got = bpf_get_task_stack(task, record->stack, sizeof(record->stack), 0);
		record->stack_len = got > 0 ? (uint64_t)got / 8 : 0;
	}
	bpf_seq_write(seq, record, sizeof(*record));
}

// Where a unix socket is connected to: the path that the other end was bound to, and who called listen() there.
always_inline int put_unix_peer(struct SocketRecord *record, struct sock___look *sk)
{
	struct sock___look *peer = 0;
	struct unix_address___look *address = 0;
	struct pid___look *pid = 0;
	int len = 0;
	READ(peer, ((struct unix_sock___look *)sk)->peer);
	if (!peer)
		return 0;
	READ(address, ((struct unix_sock___look *)peer)->addr);
	READ(pid, sk->sk_peer_pid);
	if (pid)
		bpf_probe_read_kernel(&record->peer_pid, sizeof(record->peer_pid), (void *)pid + FIELD_OFFSET(pid->numbers));
	if (!address)
		return 0;
	READ(len, address->len);
	if (len <= SUN_PATH)
		return 0;
	len -= SUN_PATH;
	record->path_len = min(len, SOCKET_PATH_MAX);
	bpf_probe_read_kernel(record->path, sizeof(record->path),
			      (void *)address + FIELD_OFFSET(address->name) + SUN_PATH);
	return 1;
}

// 0 where the socket is not connected, or of another family.
always_inline int put_peer(struct SocketRecord *record, struct sock___look *sk)
{
	uint8_t state = 0;
	uint16_t family = 0, port = 0;
	READ(family, sk->__sk_common.skc_family);
	READ(state, sk->__sk_common.skc_state);
	record->family = family;
	if (family == LOOK_AF_UNIX)
		return put_unix_peer(record, sk);
	if ((family != LOOK_AF_INET && family != LOOK_AF_INET6) || (state != LOOK_ESTABLISHED && state != LOOK_SYN_SENT))
		return 0;
	READ(record->protocol, sk->sk_protocol);
	READ(port, sk->__sk_common.skc_dport);
	record->port = __builtin_bswap16(port);
	if (family == LOOK_AF_INET6)
		READ(record->remote, sk->__sk_common.skc_v6_daddr);
	else
		READ(*(uint32_t *)record->remote, sk->__sk_common.skc_daddr);
	return port != 0;
}

// Puts the peer of a file that is a connected socket into the record; 0 where it is none. Global, so that the verifier examines it
// once and not at each of the descriptors: inlined, the program took 160 ms of the 640 that the agent took to be ready.
noinline int put_socket(uint64_t address)
{
	uint32_t zero = 0;
	struct file *file = (void *)address;
	struct inode *inode = 0;
	struct socket___look *socket = 0;
	struct sock___look *sk = 0;
	unsigned short mode = 0;
	struct look_scratch *scratch = bpf_map_lookup_elem(&look_scratches, &zero);
	if (!scratch)
		return 0;
	READ(inode, file->f_inode);
	READ(mode, inode->i_mode);
	if ((mode & S_IFMT) != S_IFSOCK)
		return 0;
	READ(socket, ((struct file___look *)file)->private_data);
	READ(sk, socket->sk);
	if (!sk)
		return 0;
	scratch->socket = (struct SocketRecord){};
	return put_peer(&scratch->socket, sk);
}

always_inline void look_at_sockets(void *seq, struct task_struct *task, struct SocketRecord *record)
{
	struct files_struct *files = 0;
	struct fdtable *table = 0;
	struct file **descriptors = 0;
	unsigned int max = 0;
	READ(files, task->files);
	READ(table, files->fdt);
	READ(max, table->max_fds);
	READ(descriptors, table->fd);
	// Standard input, output and error are no request: a service's are connected with the journal.
	for (unsigned int at = 3; at < LOOK_DESCRIPTORS_MAX; at++) {
		uint64_t file = 0;
		if (at >= max)
			return;
		bpf_probe_read_kernel(&file, sizeof(file), &descriptors[at]);
		if (!file || !put_socket(file))
			continue;
		put_header(&record->header, KIND_SOCKET, task);
		bpf_seq_write(seq, record, sizeof(*record));
	}
}

// A plugin, what it started, or a step of the runtime.
always_inline int is_looked_at(struct task_struct *task)
{
	uint32_t role = role_of(tgid_of(task));
	if (role != ROLE_RUNTIME)
		return role == ROLE_TRACKED || role == ROLE_RUNTIME_FORK;
	struct task_struct *leader = 0;
	READ(leader, task->group_leader);
	return !is_monitor(leader);
}

SEC("iter/task")
int look(uint64_t *ctx)
{
	struct bpf_iter_meta *meta = (void *)ctx[0];
	struct task_struct *task = (void *)ctx[1];
	uint32_t zero = 0;
	if (!task || !is_looked_at(task))
		return 0;
	struct look_scratch *scratch = bpf_map_lookup_elem(&look_scratches, &zero);
	if (!scratch)
		return 0;
	void *seq = meta->seq;
	look_at_thread(seq, task, &scratch->thread);
	if (tid_of(task) == tgid_of(task))
		look_at_sockets(seq, task, &scratch->socket);
	return 0;
}
