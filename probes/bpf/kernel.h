// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// The little of the kernel and of BPF that the probes use: types, map and program syntax, helpers by number.
// Own and minimal, so that neither kernel headers nor libbpf are needed to build, and nothing is pinned to one kernel:
// field offsets are relocated at load (CO-RE). Helper numbers are kernel ABI (include/uapi/linux/bpf.h).
#pragma once

typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef int int32_t;
typedef long long int64_t;

#define SEC(name) __attribute__((section(name), used))
#define always_inline static inline __attribute__((always_inline))
#define noinline __attribute__((noinline))
#define min(a, b) ((a) < (b) ? (a) : (b))

// Map syntax of BTF-defined maps.
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27
};
enum { BPF_ANY = 0 };
// Since Linux 5.5.
enum { BPF_F_MMAPABLE = 1024 };
enum { BPF_RB_AVAIL_DATA = 0, BPF_RB_RING_SIZE = 1 };
enum { BPF_RB_NO_WAKEUP = 1, BPF_RB_FORCE_WAKEUP = 2 };

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, uint64_t flags) = (void *)2;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static uint64_t (*const bpf_get_current_pid_tgid)(void) = (void *)14;
static uint64_t (*const bpf_get_current_task)(void) = (void *)35;
static uint64_t (*const bpf_get_current_cgroup_id)(void) = (void *)80;
static long (*const bpf_probe_read_user)(void *dst, uint32_t size, const void *src) = (void *)112;
static long (*const bpf_probe_read_kernel)(void *dst, uint32_t size, const void *src) = (void *)113;
static long (*const bpf_probe_read_user_str)(void *dst, uint32_t size, const void *src) = (void *)114;
static long (*const bpf_probe_read_kernel_str)(void *dst, uint32_t size, const void *src) = (void *)115;
static uint64_t (*const bpf_ktime_get_boot_ns)(void) = (void *)125;
static long (*const bpf_ringbuf_output)(void *ring, void *from, uint64_t size, uint64_t flags) = (void *)130;
static uint64_t (*const bpf_ringbuf_query)(void *ring, uint64_t what) = (void *)134;

// Reads a kernel field through a relocated address, in typed and in raw tracepoints.
#define READ(dst, field) bpf_probe_read_kernel(&(dst), sizeof(dst), __builtin_preserve_access_index(&(field)))

// READ_TYPED is for fields that hang on an argument of the tracepoint: a BTF-typed tracepoint lets the program load them,
// a raw one does not. READ serves both.
//
// READ_TYPED saves the call of a helper, 10 to 20 ns. A pointer that it loads from an argument costs the start of the agent about a
// millisecond for each path that the verifier walks there: up to four times it searches all names of the kernel's types for whether
// such a pointer is trusted (kernel/bpf/btf.c, btf_nested_type_is_trusted, since Linux 6.4). So pointers are loaded with it only
// where most runs of a program come by, and before its branches; others, and what hangs on them, with READ.
#ifdef RAW_TP
#define TRACEPOINT(name) SEC("raw_tp/" name)
#define READ_TYPED(dst, field) READ(dst, field)
#else
#define TRACEPOINT(name) SEC("tp_btf/" name)
#define READ_TYPED(dst, field) ((dst) = (field))
#endif

// 1 when the kernel has this field, with this kind of type.
#define FIELD_EXISTS(field) __builtin_preserve_field_info(field, 2)
// Where a field lies in this kernel.
#define FIELD_OFFSET(field) __builtin_preserve_field_info(field, 0)
// Size of a structure in this kernel.
#define TYPE_SIZE(type) __builtin_preserve_type_info(*(type *)0, 1)

// Keeps the compiler from reasoning about a value, so that the bound check after it stays where the verifier sees it.
#define opaque(x) asm volatile("" : "+r"(x))

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

struct nsproxy {
	struct net *net_ns;
};

struct pid {
	unsigned int level;
};

struct user_namespace {
	int level;
};

typedef struct {
	unsigned int val;
} kuid_t;

// Two 32-bit words before Linux 6.3 (f122a08b197d), the lower one first.
typedef struct {
	uint64_t val;
} kernel_cap_t;

struct cred {
	kuid_t uid;
	kernel_cap_t cap_effective, cap_ambient;
	struct user_namespace *user_ns;
};

struct kernfs_node {
	uint64_t id;
};

struct cgroup;

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
};

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

struct mm_struct {
	unsigned long arg_start, arg_end, env_start, env_end;
};

typedef struct {
	int counter;
} atomic_t;

struct signal_struct {
	atomic_t live;
	int group_exit_code;
	unsigned int flags;
};

struct page {
	unsigned long flags;
};

struct pipe_buffer {
	struct page *page;
	unsigned int offset, len;
};

struct pipe_inode_info {
	unsigned int head, ring_size;
	struct page *tmp_page[2];
	struct pipe_buffer *bufs;
};

// Before Linux 6.15 one page is kept.
struct pipe_inode_info___one_page {
	struct page *tmp_page;
};

struct inode {
	unsigned short i_mode;
	struct pipe_inode_info *i_pipe;
};

struct file {
	struct inode *f_inode;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct rq {
	uint64_t clock, clock_task;
};

// With CONFIG_FAIR_GROUP_SCHED and CONFIG_CFS_BANDWIDTH.
struct cfs_rq {
	struct rq *rq;
	uint64_t throttled_clock_pelt_time;
};

struct sched_entity {
	uint64_t exec_start, sum_exec_runtime;
	struct cfs_rq *cfs_rq;
};

struct sched_info {
	unsigned long long run_delay, last_arrival;
};

// Before Linux 5.14.
struct task_struct___long_state {
	long state;
};

// Since Linux 6.18.
struct task_struct___throttled {
	_Bool throttled;
};

struct task_struct {
	unsigned int __state;
	struct sched_entity se;
	struct sched_info sched_info;
	struct files_struct *files;
	int pid, tgid, exit_code;
	struct task_struct *real_parent, *group_leader;
	uint64_t start_boottime, self_exec_id;
	struct mm_struct *mm;
	struct nsproxy *nsproxy;
	struct signal_struct *signal;
	struct pid *thread_pid;
	const struct cred *cred;
	struct css_set *cgroups;
	char comm[16];
};

struct linux_binprm {
	const char *filename;
};

#pragma clang attribute pop

// include/linux/sched/signal.h: the whole thread group is exiting, with signal_struct::group_exit_code.
#define SIGNAL_GROUP_EXIT 4
// include/uapi/asm-generic/errno-base.h
#define EAGAIN 11
// include/uapi/linux/stat.h
#define S_IFMT 0170000
#define S_IFIFO 0010000
