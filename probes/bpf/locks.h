// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// How long threads of tracked processes wait for locks of the kernel, asleep or spinning, and who was seen to hold them. Attached together
// with the programs of waits.h.
//
// contention_begin and contention_end (include/trace/events/lock.h, since Linux 5.19) are called by the thread that waits. A mutex
// reports several begins of one wait: while it spins, when it goes to sleep, and when it is the first in the queue
// (kernel/locking/mutex.c, __mutex_lock_common). Each is a chance to see who holds it now: the last one counts.
// The owner is read as perf's lock profiler does (tools/perf/util/bpf_skel/lock_contention.bpf.c): the word of a mutex or semaphore
// with its low bits cleared is the owner's task. Semaphores that are held for reading name one of their readers at most. PREEMPT_RT
// has other structures: no owner there.
// Spinning locks are left out by their flags before anything else, also because the tables of this very program take some.
// match-proto: contention_begin(void *lock, unsigned int flags)
// match-proto: contention_end(void *lock, int ret)
#pragma once

#include "current.h"

// include/linux/mutex.h (MUTEX_FLAGS), kernel/locking/rwsem.c (RWSEM_OWNER_FLAGS_MASK is less)
#define OWNER_FLAGS 7UL

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	long long counter;
} atomic64_t;

struct mutex {
	atomic64_t owner;
};

struct rw_semaphore {
	atomic64_t owner;
};

#pragma clang attribute pop

struct contention {
	uint64_t lock, begin_ns, holder_start_ns, holder_begin_ns;
	uint32_t flags, holder_pid, holder_tid, unused;
	char holder_comm[16];
};

// By thread. A thread that ends takes its entry with it; user space empties the table when it attaches the programs.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CONTENTIONS_MAX);
	__type(key, uint32_t);
	__type(value, struct contention);
} contentions SEC(".maps");

always_inline struct task_struct *owner_of(uint64_t lock, uint32_t flags)
{
	long long owner = 0;
	if (flags & LCB_F_MUTEX) {
		struct mutex *mutex = (void *)lock;
		if (FIELD_EXISTS(mutex->owner))
			READ(owner, mutex->owner.counter);
	} else if (flags == LCB_F_READ || flags == LCB_F_WRITE) {
		struct rw_semaphore *semaphore = (void *)lock;
		if (FIELD_EXISTS(semaphore->owner))
			READ(owner, semaphore->owner.counter);
	}
	return (void *)(owner & ~OWNER_FLAGS);
}

always_inline void put_holder(struct contention *contention, uint64_t lock, uint32_t flags)
{
	struct task_struct *owner = owner_of(lock, flags), *leader = 0;
	int pid = 0, tid = 0;
	if (!owner || owner == (void *)bpf_get_current_task())
		return;
	READ(pid, owner->tgid);
	READ(tid, owner->pid);
	READ(leader, owner->group_leader);
	contention->holder_pid = pid;
	contention->holder_tid = tid;
	READ(contention->holder_begin_ns, owner->start_boottime);
	READ(contention->holder_start_ns, leader->start_boottime);
	READ(contention->holder_comm, owner->comm);
}

// What is remembered of a thread. Of a daemon's, only what began since it is followed: the end of another one was not seen.
always_inline struct contention *contention_of(uint32_t tid, struct daemon *daemon)
{
	struct contention *known = bpf_map_lookup_elem(&contentions, &tid);
	return known && daemon && known->begin_ns < daemon->since_ns ? 0 : known;
}

TRACEPOINT("contention_begin")
int on_contention_begin(uint64_t *ctx)
{
	uint64_t lock = ctx[0];
	uint32_t flags = ctx[1];
	if ((flags & LCB_F_SPIN) && !(flags & LCB_F_MUTEX))
		return 0;
	uint64_t current = bpf_get_current_pid_tgid();
	struct daemon *daemon = 0;
	if (!has_waits(current >> 32, &daemon))
		return 0;
	uint32_t tid = current;
	struct contention *known = contention_of(tid, daemon);
	if (known && known->lock == lock) {
		put_holder(known, lock, flags);
		return 0;
	}
	struct contention contention = { .lock = lock, .begin_ns = bpf_ktime_get_boot_ns(), .flags = flags };
	put_holder(&contention, lock, flags);
	if (bpf_map_update_elem(&contentions, &tid, &contention, BPF_ANY))
		count_limited(daemon);
	return 0;
}

TRACEPOINT("contention_end")
int on_contention_end(uint64_t *ctx)
{
	uint64_t lock = ctx[0], current = bpf_get_current_pid_tgid();
	struct daemon *daemon = 0;
	if (!has_waits(current >> 32, &daemon))
		return 0;
	uint32_t tid = current;
	struct contention *known = contention_of(tid, daemon);
	if (!known || known->lock != lock)
		return 0;
	struct contention contention = *known;
	bpf_map_delete_elem(&contentions, &tid);
	if (bpf_ktime_get_boot_ns() - contention.begin_ns < WAIT_MIN_NS || !has_room_for_remark(daemon, 1))
		return 0;
	// In the ring, not in memory of the processor: what runs here may be interrupted by a thread that waited too.
	uint64_t waiting = waiting_bytes();
	struct ContentionRecord *record = reserve_record(&records, sizeof(*record), 0);
	if (!record) {
		count_lost(LOST_RING);
		return 0;
	}
	struct task_struct *task = (void *)bpf_get_current_task();
	put_current(&record->header, KIND_CONTENTION);
	record->header.ring_bytes = waiting;
	record->begin_ns = contention.begin_ns;
	READ(record->thread_begin_ns, task->start_boottime);
	record->lock = lock;
	record->holder_start_ns = contention.holder_start_ns;
	record->holder_begin_ns = contention.holder_begin_ns;
	record->tid = tid;
	record->flags = contention.flags;
	record->holder_pid = contention.holder_pid;
	record->holder_tid = contention.holder_tid;
	record->unused = 0;
	__builtin_memcpy(record->holder_comm, contention.holder_comm, sizeof(record->holder_comm));
	long got = bpf_get_stack(ctx, record->stack, sizeof(record->stack), 0);
	record->stack_len = got > 0 ? (uint64_t)got / 8 : 0;
	submit_record(record, wake_flags(waiting));
	return 0;
}
