// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// The registers of the process that runs now, as they were at its system call (bpf_task_pt_regs(), since Linux 5.15).
#pragma once

#include "kernel.h"

static void *(*const bpf_get_current_task_btf)(void) = (void *)158;
static void *(*const bpf_task_pt_regs)(void *task) = (void *)175;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

#if defined(__TARGET_ARCH_x86)
// arch/x86/include/asm/ptrace.h
struct pt_regs {
	unsigned long r14, si, orig_ax, sp;
};
#elif defined(__TARGET_ARCH_arm64)
// arch/arm64/include/asm/ptrace.h
struct pt_regs {
	uint64_t regs[31], sp;
	int syscallno;
};
#endif

#pragma clang attribute pop
