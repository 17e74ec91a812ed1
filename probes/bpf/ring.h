// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// The way of records to user space: the ring buffer of an object, its counters of loss, and the policy of when a record
// wakes the reader. Every object includes it once; agent/src/sources/linux/feed.rs is the other end.
//
// A wake-up costs several times what the record does, on both sides, and often on the processor of the very process that
// is observed. So a record wakes the reader in two cases only: the reader sleeps, or an eighth of the ring is full (for waits a
// smaller part: waits.h). An awake reader polls by its own clock. A record cannot be missed: the reader polls once more after it has set `reader`.
#pragma once

#include "kernel.h"

#include "wire.h"

// Part of the ring that is full when an awake reader is woken.
#define WAKE_SHARE 8
// Beyond that part, only records within so many bytes wake it: by then it has been woken. Wider than several records, since
// several processors may fill the ring at the same time. An object with large records defines a wider band.
#ifndef WAKE_BAND
#define WAKE_BAND 2048
#endif

// User space sets the size at load.
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} records SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LOST_SLOTS);
	__type(key, uint32_t);
	__type(value, uint64_t);
} lost SEC(".maps");

// 1 while the reader sleeps without a timeout of its own. User space sets it; the side that wakes the reader clears it. Two
// records that both clear it wake the reader twice, which is harmless.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, uint32_t);
	__type(value, uint32_t);
} reader SEC(".maps");

always_inline void count_lost(uint32_t slot)
{
	uint64_t *count = bpf_map_lookup_elem(&lost, &slot);
	// Atomic, since an interrupt of the program may count as well.
	if (count)
		__sync_fetch_and_add(count, 1);
}

// Bytes that wait in the ring.
always_inline uint64_t waiting_bytes(void)
{
	return bpf_ringbuf_query(&records, BPF_RB_AVAIL_DATA);
}

// The flags to submit a record with when `waiting` bytes are in the ring before it.
always_inline uint64_t wake_flags(uint64_t waiting)
{
	uint32_t zero = 0;
	uint32_t *asleep = bpf_map_lookup_elem(&reader, &zero);
	if (asleep && *asleep) {
		*asleep = 0;
		return BPF_RB_FORCE_WAKEUP;
	}
	uint64_t share = bpf_ringbuf_query(&records, BPF_RB_RING_SIZE) / WAKE_SHARE;
	return waiting > share && waiting <= share + WAKE_BAND ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
}

// Copies a record into the ring, or counts it as lost.
always_inline void output(void *record, uint32_t size, uint64_t waiting)
{
	if (bpf_ringbuf_output(&records, record, size, wake_flags(waiting)))
		count_lost(LOST_RING);
}

// As output(), and wakes the reader.
always_inline void output_now(void *record, uint32_t size)
{
	if (bpf_ringbuf_output(&records, record, size, BPF_RB_FORCE_WAKEUP))
		count_lost(LOST_RING);
}
