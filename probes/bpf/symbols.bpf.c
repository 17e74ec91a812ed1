// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// Names the kernel functions of addresses, without CAP_SYSLOG: the kernel does it in bpf_seq_printf() (`%pB`; since Linux 5.9,
// kernel/trace/bpf_trace.c, later kernel/bpf/helpers.c, bpf_bprintf_prepare). That helper is for iterators, so this is one over the
// node's maps (kernel/bpf/map_iter.c, since 5.8), of which there is at least the one below; it writes at the first of them.
// Attached nowhere: user space writes addresses into the map and reads the iterator's file, a line for each address.
#include "kernel.h"

#include "wire.h"

static long (*const bpf_seq_printf)(void *seq, const char *format, uint32_t size, const void *values, uint32_t len) =
	(void *)126;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct bpf_iter_meta {
	void *seq;
	uint64_t session_id;
	uint64_t seq_num;
};

#pragma clang attribute pop

struct addresses {
	// The unused ones at the end are 0.
	uint64_t at[SYMBOLS_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, uint32_t);
	__type(value, struct addresses);
} addresses SEC(".maps");

static const char format[] = "%pB\n";

SEC("iter/bpf_map")
int name_all(uint64_t *ctx)
{
	struct bpf_iter_meta *meta = (void *)ctx[0];
	uint32_t zero = 0;
	if (meta->seq_num)
		return 0;
	struct addresses *asked = bpf_map_lookup_elem(&addresses, &zero);
	if (!asked)
		return 0;
	for (uint32_t each = 0; each < SYMBOLS_MAX; each++) {
		// `%pB` is for the address that a call returns to, and names what lies before it (kernel/kallsyms.c, sprint_backtrace).
		uint64_t after = asked->at[each] + 1;
		if (after == 1)
			return 0;
		bpf_seq_printf(meta->seq, format, sizeof(format), &after, sizeof(after));
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
