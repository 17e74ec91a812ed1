// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// Events that come within a run of the program that is to report them. An interrupt that comes while a program runs may call the
// program's tracepoint again: on a timer, on received packets, and the waking of the reader by a record is itself an interrupt.
// The kernel skips that run and counts a recursion miss (kernel/trace/bpf_trace.c, __bpf_trace_run, since Linux 6.1). So a
// tracepoint that interrupts call has two programs, attached in this order. The first one marks what it reports; the second one
// reports what has no mark. Softirqs do not nest, so that a third is not needed.
#pragma once

#include "kernel.h"

// Of so many events the mark is kept between the two programs. Only interrupts between the two bring more; an event that has lost
// its mark is reported twice.
#define MARKS 4

// Identifies an event for a moment: the kernel's object that the tracepoint is called with, and what else tells its events apart.
struct mark {
	uint64_t object, detail;
};

struct marks {
	struct mark last[MARKS];
	uint32_t next;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, uint32_t);
	__type(value, struct marks);
} reported SEC(".maps");

// Of the first program, before it reports.
always_inline void mark_reported(uint64_t object, uint64_t detail)
{
	uint32_t zero = 0;
	struct marks *marks = bpf_map_lookup_elem(&reported, &zero);
	if (!marks)
		return;
	struct mark *mark = &marks->last[marks->next++ % MARKS];
	mark->object = object;
	mark->detail = detail;
}

// Of the second program: whether the first one has not run. Removes the mark, since a later event may have the same one.
always_inline int is_unreported(uint64_t object, uint64_t detail)
{
	uint32_t zero = 0;
	struct marks *marks = bpf_map_lookup_elem(&reported, &zero);
	if (!marks)
		return 0;
#pragma unroll
	for (int i = 0; i < MARKS; i++) {
		struct mark *mark = &marks->last[i];
		if (mark->object == object && mark->detail == detail) {
			mark->object = 0;
			return 0;
		}
	}
	return 1;
}
