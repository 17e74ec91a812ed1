// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// What the probes of packets share: kernel types of the network, helpers, their maps, and how a record leaves.
#pragma once

#include "kernel.h"

static uint64_t (*const bpf_get_current_task)(void) = (void *)35;
static long (*const bpf_skb_load_bytes)(const void *skb, uint32_t offset, void *to, uint32_t len) = (void *)26;
static uint64_t (*const bpf_get_socket_cookie)(void *ctx) = (void *)46;
static void *(*const bpf_ringbuf_reserve)(void *ring, uint64_t size, uint64_t flags) = (void *)131;
static void (*const bpf_ringbuf_submit)(void *data, uint64_t flags) = (void *)132;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	possible_net_t skc_net;
};

typedef struct {
	int owned;
} socket_lock_t;

struct sock {
	struct sock_common __sk_common;
	socket_lock_t sk_lock;
};

struct net_device {
	possible_net_t nd_net;
};

struct sk_buff {
	struct net_device *dev;
	struct sock *sk;
	uint16_t protocol, network_header;
	unsigned char *head;
};

#pragma clang attribute pop

// include/uapi/linux/if_ether.h, in network byte order on a little-endian machine.
#define ETH_IP 0x0008
#define ETH_IPV6 0xdd86
// include/uapi/linux/in.h, in6.h
#define HOP_OPTIONS 0
#define ROUTING 43
#define FRAGMENT 44
#define DESTINATION_OPTIONS 60
// So many extension headers are looked behind.
#define EXTENSIONS_MAX 4
// The reader is woken when more than one part in so many of the ring is filled.
#define RING_SHARE 8

#define htons(x) __builtin_bswap16(x)
#define htonl(x) __builtin_bswap32(x)

// Ports in the node's byte order; unused places repeat the first. User space writes them before the object is loaded, so
// that the verifier sees constants.
volatile const uint16_t dns_ports[DNS_PORTS_MAX] SEC(".rodata") = { 53, 53, 53, 53, 53, 53, 53, 53 };

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20);
} records SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TRAFFIC_SLOTS);
	__type(key, uint32_t);
	__type(value, uint64_t);
} lost SEC(".maps");

// One word that user space sets to 1 before it blocks without a clock of its own; see exec.bpf.c, emit().
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, uint32_t);
	__type(value, uint32_t);
} reader SEC(".maps");

always_inline void count(uint32_t slot)
{
	uint64_t *counter = bpf_map_lookup_elem(&lost, &slot);
	if (counter)
		*counter += 1;
}

always_inline int is_dns_port(uint16_t port)
{
	int found = 0;
#pragma unroll
	for (int i = 0; i < DNS_PORTS_MAX; i++)
		found |= port == dns_ports[i];
	return found;
}

// Nobody waits for these records, so only a reader that sleeps, or a ring that fills, is worth a wake-up.
always_inline uint64_t wake_up(uint64_t ring_bytes)
{
	uint32_t zero = 0;
	uint32_t *sleeps = bpf_map_lookup_elem(&reader, &zero);
	if (sleeps && *sleeps) {
		*sleeps = 0;
		return BPF_RB_FORCE_WAKEUP;
	}
	if (ring_bytes * RING_SHARE > bpf_ringbuf_query(&records, BPF_RB_RING_SIZE))
		return BPF_RB_FORCE_WAKEUP;
	return BPF_RB_NO_WAKEUP;
}

always_inline uint16_t load_two(const uint8_t *from)
{
	return (uint16_t)(from[0] << 8 | from[1]);
}
