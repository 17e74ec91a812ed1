// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// Which goroutine of a program in Go runs now. While code of Go runs, and so at its system calls, a register has the address of the
// goroutine's `runtime.g`: R14 on amd64, R28 on arm64 (Go 1.17 and newer, src/cmd/compile/abi-internal.md). The first two words of a
// `runtime.g` bound its stack (src/runtime/runtime2.go), and the stack pointer lies between them: what is no such program, or runs on
// another stack, has no goroutine. Where the ids lie depends on the version, which user space knows.
#pragma once

#include "registers.h"

// include/uapi/linux/bpf.h
enum bpf_func_id { BPF_FUNC_task_pt_regs = 175 };

// Before Linux 5.15 the helper is not there: the branch is dead then, and the verifier does not walk it.
#define HAS_REGISTERS __builtin_preserve_enum_value(*(enum bpf_func_id *)BPF_FUNC_task_pt_regs, 0)

// The address of its `runtime.g`; 0 where no goroutine runs.
always_inline uint64_t put_goroutine(struct GoroutineWords *words)
{
#if defined(__TARGET_ARCH_x86) || defined(__TARGET_ARCH_arm64)
	if (!HAS_REGISTERS)
		return 0;
	struct pt_regs *registers = bpf_task_pt_regs(bpf_get_current_task_btf());
#if defined(__TARGET_ARCH_x86)
	uint64_t goroutine = registers->r14;
#else
	uint64_t goroutine = registers->regs[28];
#endif
	uint64_t bounds[2] = {}, stack_pointer = registers->sp;
	if (bpf_probe_read_user(bounds, sizeof(bounds), (void *)goroutine) || stack_pointer < bounds[0] ||
	    stack_pointer >= bounds[1])
		return 0;
	bpf_probe_read_user(&words->at_152, 16, (void *)(goroutine + 152));
	bpf_probe_read_user(&words->at_272, 16, (void *)(goroutine + 272));
	return goroutine;
#else
	return 0;
#endif
}
