// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// What the probes of packets share: kernel types of the network, helpers, and the ports of DNS.
#pragma once

#include "kernel.h"

#include "stream.h"

static struct task_struct *(*const bpf_get_current_task_btf)(void) = (void *)158;

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
#define htonl(x) __builtin_bswap32(x)

// Ports in the node's byte order; unused places repeat the first. User space writes them before the object is loaded, so
// that the verifier sees constants.
volatile const uint16_t dns_ports[DNS_PORTS_MAX] SEC(".rodata") = { 53, 53, 53, 53, 53, 53, 53, 53 };

always_inline int is_dns_port(uint16_t port)
{
	int found = 0;
#pragma unroll
	for (int i = 0; i < DNS_PORTS_MAX; i++)
		found |= port == dns_ports[i];
	return found;
}

always_inline uint16_t load_two(const uint8_t *from)
{
	return (uint16_t)(from[0] << 8 | from[1]);
}
