// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// Helpers of the programs that see packets, whose records are made in the ring itself.
#pragma once

#include "ring.h"

static uint64_t (*const bpf_get_socket_cookie)(void *socket) = (void *)46;
static long (*const bpf_skb_load_bytes)(const void *skb, uint32_t offset, void *to, uint32_t size) = (void *)26;
static void *(*const bpf_ringbuf_reserve)(void *ring, uint64_t size, uint64_t flags) = (void *)131;
static void (*const bpf_ringbuf_submit)(void *record, uint64_t flags) = (void *)132;

// Copies the packet's bytes from `offset` on, `room` at most; returns how many, 0 when it has not so many. The length is from 1
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
