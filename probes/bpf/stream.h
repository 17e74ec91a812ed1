// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// The way of a family's records to user space: its ring buffer, its count of what found that full, and the word by which
// the reader says that it sleeps. Included once by each object that tells of traffic; sandglass::sources::linux::stream is
// the other end.
#pragma once

static uint64_t (*const bpf_get_socket_cookie)(void *socket) = (void *)46;
static long (*const bpf_skb_load_bytes)(const void *skb, uint32_t offset, void *to, uint32_t size) = (void *)26;
static void *(*const bpf_ringbuf_reserve)(void *ring, uint64_t size, uint64_t flags) = (void *)131;
static void (*const bpf_ringbuf_submit)(void *record, uint64_t flags) = (void *)132;

// The reader is woken when more than one part in so many of the ring is filled.
#define RING_SHARE 8
// .. but not for what comes when so many bytes more are filled: by then it has been woken. Several records wide, since many
// processors may fill the ring at the same time.
#define WAKE_BAND 2048

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

// One word that user space sets to 1 before it blocks without a clock of its own.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, uint32_t);
	__type(value, uint32_t);
} reader SEC(".maps");

always_inline void count_lost(uint32_t slot)
{
	uint64_t *count = bpf_map_lookup_elem(&lost, &slot);
	if (count)
		*count += 1;
}

// With which flags the next record is to be handed over, when so many bytes wait already: nobody is woken for a record but
// a reader that sleeps, and one that lets an eighth of the ring fill (see emit() in exec.bpf.c), once: a wake-up costs
// several times the record.
always_inline uint64_t wake_flags(uint64_t waiting)
{
	uint32_t zero = 0;
	uint32_t *sleeps = bpf_map_lookup_elem(&reader, &zero);
	if (sleeps && *sleeps) {
		*sleeps = 0;
		return BPF_RB_FORCE_WAKEUP;
	}
	uint64_t share = bpf_ringbuf_query(&records, BPF_RB_RING_SIZE) / RING_SHARE;
	return waiting > share && waiting <= share + WAKE_BAND ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
}

// Copies the packet's bytes from `offset` on, `room` at most; gives how many, 0 when it has not so many. The length is from 1
// to `room` in the one form that all verifiers understand: before Linux 6.8 or so they learn nothing from a test against 0,
// or of one register from the test of its copy.
always_inline uint32_t load_bytes(const void *skb, uint32_t offset, uint8_t *to, uint32_t len, uint32_t room)
{
	if (len > room)
		len = room;
	uint32_t behind_first = len - 1;
	opaque(behind_first);
	return behind_first < room && !bpf_skb_load_bytes(skb, offset, to, behind_first + 1) ? len : 0;
}
