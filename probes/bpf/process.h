// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// What the process programs share: which processes have a role, the head of a record, and memory of a processor for one run, since a
// record is larger than a program's stack (512 bytes). No lock: the kernel calls the programs of a tracepoint with preemption off
// (include/linux/tracepoint.h, __DO_TRACE, as in Linux 6.12), and no interrupt hits these tracepoints.
#pragma once

// Records of processes are up to 15 KiB long.
#define WAKE_BAND (64 << 10)
#include "ring.h"

// Bytes of environment copied and searched at once.
#define CHUNK 4096
// Room behind the chunk for the comparison that begins at its last byte.
#define SLACK 16
// Room before the chunk: one byte is used, the others align the chunk.
#define BEFORE 8

struct scratch {
	// The environment, and where its next chunk begins.
	uint64_t env_start, env_end, env_next;
	// Bytes in the chunk.
	uint64_t chunk_len;
	// The last of these is the byte before the chunk; zero where the chunk begins with a variable.
	uint8_t before[BEFORE];
	uint8_t chunk[CHUNK + SLACK];
	struct ExecRecord exec;
	// Path, arguments and kept environment behind the ExecRecord.
	uint8_t room[EXEC_ROOM];
	struct ExitRecord exit;
	// Standard input and standard output behind the ExitRecord.
	uint8_t streams[2 * STDIO_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, uint32_t);
	__type(value, struct scratch);
} scratches SEC(".maps");

always_inline struct scratch *scratch(void)
{
	uint32_t zero = 0;
	return bpf_map_lookup_elem(&scratches, &zero);
}

// What the scheduler has counted of a thread since its creation: time on a processor, until its last tick if it is on one now.
always_inline uint64_t processor_time_of(struct task_struct *task)
{
	uint64_t time = 0;
	READ_TYPED(time, task->se.sum_exec_runtime);
	return time;
}

// The same for the time in which it was runnable and waited for a processor.
always_inline uint64_t run_delay_of(struct task_struct *task)
{
	unsigned long long delay = 0;
	if (FIELD_EXISTS(task->sched_info.run_delay))
		READ_TYPED(delay, task->sched_info.run_delay);
	return delay;
}

// `pid` and `start_ns` are the process's: its id, and when its first thread began.
always_inline void put_head(struct RecordHeader *header, uint32_t kind, uint32_t pid, uint64_t start_ns)
{
	header->kind = kind;
	header->pid = pid;
	header->at_ns = bpf_ktime_get_boot_ns();
	header->start_ns = start_ns;
	header->ring_bytes = waiting_bytes();
}

always_inline void put_header(struct RecordHeader *header, uint32_t kind, struct task_struct *leader)
{
	int pid = 0;
	uint64_t start = 0;
	READ(pid, leader->tgid);
	READ(start, leader->start_boottime);
	put_head(header, kind, pid, start);
}

always_inline void emit(struct RecordHeader *record, uint32_t size)
{
	output(record, size, record->ring_bytes);
}

// The role of each process by its id, a ROLE_ constant, or 0 for a process that has none: a byte each, in entries of 4 KiB. Ids are
// assigned one after the other (kernel/pid.c, alloc_pid), so that what every fork, exec and exit looks up lies in few cache lines.
struct roles_entry {
	uint8_t role[ROLES_ENTRY];
};

// User space writes single bytes too, in a page that it maps into its memory.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, PIDS_MAX / ROLES_ENTRY);
	__type(key, uint32_t);
	__type(value, struct roles_entry);
} roles SEC(".maps");

always_inline volatile uint8_t *place_of_role(uint32_t pid)
{
	uint32_t number = pid / ROLES_ENTRY;
	struct roles_entry *entry = bpf_map_lookup_elem(&roles, &number);
	return entry ? &entry->role[pid % ROLES_ENTRY] : 0;
}

always_inline uint32_t role_of(uint32_t pid)
{
	volatile uint8_t *role = place_of_role(pid);
	return role ? *role : 0;
}

always_inline void set_role(uint32_t pid, uint32_t role)
{
	volatile uint8_t *place = place_of_role(pid);
	if (place)
		*place = role;
}

// 0 when the process had none. Two that call it within the same few nanoseconds may both get its role: an exchange that tells them
// apart needs Linux 5.12 (BPF_CMPXCHG).
always_inline uint32_t take_role(uint32_t pid)
{
	volatile uint8_t *place = place_of_role(pid);
	uint32_t role = place ? *place : 0;
	if (role)
		*place = 0;
	return role;
}
