// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// Names the kernel function of an address, without CAP_SYSLOG: the kernel does it in bpf_snprintf() (kernel/bpf/helpers.c,
// bpf_bprintf_prepare: `%ps`; since Linux 5.13). Attached nowhere: user space runs it with the address as its argument
// (BPF_PROG_TEST_RUN of a raw tracepoint program, net/bpf/test_run.c, bpf_prog_test_run_raw_tp; since Linux 5.10).
#include "kernel.h"

#include "wire.h"

static long (*const bpf_snprintf)(char *to, uint32_t size, const char *format, const uint64_t *values, uint32_t len) =
	(void *)165;

struct symbol {
	char name[SYMBOL_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, uint32_t);
	__type(value, struct symbol);
} symbol SEC(".maps");

static const char format[] = "%ps";

SEC("raw_tp/sys_enter")
int name_of(uint64_t *ctx)
{
	uint32_t zero = 0;
	uint64_t address = ctx[0];
	struct symbol *found = bpf_map_lookup_elem(&symbol, &zero);
	if (!found)
		return 0;
	return bpf_snprintf(found->name, sizeof(found->name), format, &address, sizeof(address));
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
