// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// What programs that run in a tracked process share: the head of a record about the process that runs now. Such a program
// has no typed pointer to it, so its fields are read with READ.
#pragma once

#include "process.h"

// A record that is made in the ring, for what may be interrupted by a program of its own kind.
static void *(*const reserve_record)(void *ring, uint64_t size, uint64_t flags) = (void *)131;
static void (*const submit_record)(void *data, uint64_t flags) = (void *)132;

// Part of the ring that records of what happened to a process may fill: they are few, and more is lost with one of them than with a
// wait. The rest is for the processes themselves. What a daemon repeats has the room of its waits: it is not few.
#define REMARKS_SHARE 4

always_inline int has_room_for_remark(struct daemon *daemon, int is_repeated)
{
	if (daemon && is_repeated)
		return has_room(daemon);
	if (waiting_bytes() <= bpf_ringbuf_query(&records, BPF_RB_RING_SIZE) / REMARKS_SHARE)
		return 1;
	count_limited(daemon);
	return 0;
}

always_inline uint32_t current_pid(void)
{
	return bpf_get_current_pid_tgid() >> 32;
}

// As put_header() in process.h, for the process that runs now.
always_inline void put_current(struct RecordHeader *header, uint32_t kind)
{
	struct task_struct *task = (void *)bpf_get_current_task(), *leader = 0;
	uint64_t start = 0;
	READ(leader, task->group_leader);
	READ(start, leader->start_boottime);
	put_head(header, kind, current_pid(), start);
}
