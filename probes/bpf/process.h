// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// What the process programs share: which processes have a role, the head of a record, and memory of a processor for one run, since a
// record is larger than a program's stack (512 bytes). No lock: no interrupt hits these tracepoints, and before Linux 7.0 the kernel
// calls the programs of a tracepoint with preemption off (include/linux/tracepoint.h, __DO_TRACE).
//
// Since Linux 7.0 (a46023d5616e) a run can be preempted, and only stays on its processor. What another thread does there meanwhile the
// program does not see: the kernel skips a run of a program within another one (kernel/trace/bpf_trace.c, __bpf_trace_run). So the
// tracepoints of forks, execs and exits have two programs there, the second one behind the first (`_within`), which reports what the first has
// not seen. Each has memory of its own. Both are preempted at once only where two threads are, on one processor.
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
// Execs at the same time, many times over: they last microseconds.
#define EXECS_SEEN 1024

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

// 1 where a run can be preempted. User space sets it at load, and `scratches` to two entries.
volatile const uint8_t preemptible SEC(".rodata") = 0;

// The first one is of the first programs.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, uint32_t);
	__type(value, struct scratch);
} scratches SEC(".maps");

// The threads that are in a run of a first program on this processor, as bpf_get_current_pid_tgid() has them, and 0 for none. An exec and
// an exit use different parts of the memory.
enum { RUN_EXEC, RUN_EXIT };
struct first_runs {
	uint64_t thread[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, uint32_t);
	__type(value, struct first_runs);
} first_runs SEC(".maps");

always_inline void set_first_run(uint32_t which, uint64_t thread)
{
	uint32_t zero = 0;
	struct first_runs *runs = bpf_map_lookup_elem(&first_runs, &zero);
	if (runs)
		*(volatile uint64_t *)&runs->thread[which] = thread;
}

// Of a first program, before it asks for memory, and when it does not use it any more.
always_inline void begin_first_run(uint32_t which)
{
	if (preemptible)
		set_first_run(which, bpf_get_current_pid_tgid());
}

always_inline void end_first_run(uint32_t which)
{
	if (preemptible)
		set_first_run(which, 0);
}

always_inline int is_first_run(void)
{
	uint32_t zero = 0;
	const volatile struct first_runs *runs = bpf_map_lookup_elem(&first_runs, &zero);
	uint64_t thread = bpf_get_current_pid_tgid();
	return runs && (runs->thread[RUN_EXEC] == thread || runs->thread[RUN_EXIT] == thread);
}

always_inline struct scratch *scratch(void)
{
	uint32_t number = preemptible && !is_first_run();
	return bpf_map_lookup_elem(&scratches, &number);
}

// The newest exec that the first program has seen, of the processes whose ids have this remainder. Not a mark of a processor, as those of
// recursion.h are: between both programs a thread can be moved to another one.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, EXECS_SEEN);
	__type(key, uint32_t);
	__type(value, uint64_t);
} execs_seen SEC(".maps");

// Identifies an exec of the process that runs now: its id, and how many execs it and its ancestors had (fs/exec.c, setup_new_exec).
always_inline uint64_t exec_id(struct task_struct *task)
{
	int pid = 0;
	uint64_t execs = 0;
	READ_TYPED(pid, task->tgid);
	READ_TYPED(execs, task->self_exec_id);
	return (uint64_t)(uint32_t)pid << 32 | (uint32_t)execs;
}

always_inline volatile uint64_t *place_of_exec(uint64_t exec)
{
	uint32_t place = (exec >> 32) % EXECS_SEEN;
	return bpf_map_lookup_elem(&execs_seen, &place);
}

// Of the first program, before it reports.
always_inline void mark_exec_seen(struct task_struct *task)
{
	uint64_t exec = exec_id(task);
	volatile uint64_t *seen = place_of_exec(exec);
	if (seen)
		*seen = exec;
}

// Of the second program.
always_inline int is_exec_seen(struct task_struct *task)
{
	uint64_t exec = exec_id(task);
	volatile uint64_t *seen = place_of_exec(exec);
	return seen && *seen == exec;
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
