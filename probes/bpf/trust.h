// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// Whether a process may claim to be a plugin or a runtime, and whether a daemon is followed. The environment and the name of a process are its own choice, so
// an exec that carries such a claim is followed only if the process could set up the node's networks anyway: in the initial
// user and pid namespaces, with CAP_NET_ADMIN or CAP_SYS_ADMIN effective, and holding them before this exec. Further cgroups and
// users are configured. What is refused is counted, and the newest are kept to be shown.
//
// A daemon is judged by the same rule when it receives a request (daemons.h), except that it may live in a pid namespace of its
// own, as most daemons of networks do in their pods. It has no exec then: of its name there is only that of its process.
//
// Runs only after a claim was found; the exec of every other process costs nothing more. At sched_process_exec the new
// credentials are committed (fs/exec.c: begin_new_exec() calls commit_creds()). The task is the current one, as a number: see
// pipe_of() in stdio.h.
#pragma once

#include "environment.h"
#include "process.h"

// include/uapi/linux/capability.h
#define CAP_NET_ADMIN 12
#define CAP_SYS_ADMIN 21
#define NETWORK_CAPS (1ull << CAP_NET_ADMIN | 1ull << CAP_SYS_ADMIN)

#define TRUSTED -1
// Depth of the cgroup tree that is searched upwards. systemd and the kubelet stay below 8.
#define CGROUP_DEPTH 16

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, uint32_t);
	__type(value, struct TrustedOwners);
} trusted_owners SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REFUSED_COUNTERS);
	__type(key, uint32_t);
	__type(value, uint64_t);
} refused SEC(".maps");

// Two processors may write one slot at the same time and mix their paths: it is shown and nothing depends on it.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, REFUSED_SLOTS);
	__type(key, uint32_t);
	__type(value, struct RefusedRecord);
} refused_processes SEC(".maps");

// Fibonacci hashing (Knuth, The Art of Computer Programming, volume 3, 6.4): the upper bits are the good ones.
always_inline uint64_t scramble(uint64_t value)
{
	return value * 0x9e3779b97f4a7c15ull;
}

noinline int is_trusted_user(uint32_t uid)
{
	uint32_t zero = 0;
	struct TrustedOwners *owners = bpf_map_lookup_elem(&trusted_owners, &zero);
	// Before user space has written the map all places are 0. Root is judged by what it holds.
	if (!owners || uid == 0 || uid == NO_USER)
		return 0;
#pragma clang loop unroll(disable)
	for (uint32_t i = 0; i < TRUSTED_USERS_MAX; i++) {
		if (owners->users[i] == uid)
			return 1;
	}
	return 0;
}

noinline int is_trusted_cgroup(uint64_t id)
{
	uint32_t zero = 0;
	struct TrustedOwners *owners = bpf_map_lookup_elem(&trusted_owners, &zero);
	if (!owners || !id)
		return 0;
#pragma clang loop unroll(disable)
	for (uint32_t i = 0; i < TRUSTED_CGROUPS_MAX; i++) {
		if (owners->cgroups[i] == id)
			return 1;
	}
	return 0;
}

// Is the task's cgroup, or one above it, configured? bpf_get_current_ancestor_cgroup_id() is not there for tracing programs of
// the oldest supported kernels.
noinline int in_trusted_cgroup(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct css_set *groups = 0;
	struct cgroup *group = 0;
	READ(groups, task->cgroups);
	READ(group, groups->dfl_cgrp);
#pragma clang loop unroll(disable)
	for (uint32_t level = 0; level < CGROUP_DEPTH; level++) {
		struct cgroup_subsys_state *parent = 0;
		struct kernfs_node *node = 0;
		uint64_t id = 0;
		if (!group)
			return 0;
		READ(node, group->kn);
		READ(id, node->id);
		if (is_trusted_cgroup(id))
			return 1;
		READ(parent, group->self.parent);
		if (!parent)
			return 0;
		READ(group, parent->cgroup);
	}
	return 0;
}

// Why the namespaces and capabilities of the task are not those of a plugin; TRUSTED when they are.
always_inline int judge_privileges(struct task_struct *task, const struct cred *cred, uint32_t uid, uint32_t claim)
{
	struct user_namespace *users = 0;
	struct pid *pid = 0;
	int user_level = 1;
	unsigned int pid_level = 1;
	// Plain numbers: a field of kernel_cap_t would be relocated, and its name is another one before Linux 6.3.
	uint64_t effective = 0, ambient = 0;
	READ(users, cred->user_ns);
	READ(user_level, users->level);
	// Only init_user_ns has level 0 (kernel/user_namespace.c, create_user_ns).
	if (user_level != 0)
		return REFUSED_USER_NAMESPACE;
	READ(pid, task->thread_pid);
	READ(pid_level, pid->level);
	// The level of the innermost namespace that has a number for the task (kernel/pid.c, alloc_pid).
	if (pid_level != 0 && claim != CLAIM_DAEMON)
		return REFUSED_PID_NAMESPACE;
	READ(effective, cred->cap_effective);
	if (!(effective & NETWORK_CAPS))
		return REFUSED_CAPABILITIES;
	// capabilities(7): a process that is not root by its real user id, and does not inherit them as ambient ones, has
	// got its capabilities from the file, which anybody may execute.
	READ(ambient, cred->cap_ambient);
	if (uid != 0 && !(effective & ambient & NETWORK_CAPS))
		return REFUSED_FILE_PRIVILEGES;
	return TRUSTED;
}

noinline int judge(uint32_t claim)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	const struct cred *cred = 0;
	struct pid *pid = 0;
	unsigned int pid_level = 1;
	kuid_t uid = { .val = NO_USER };
	READ(cred, task->cred);
	READ(uid, cred->uid);
	int verdict = judge_privileges(task, cred, uid.val, claim);
	if (verdict == TRUSTED)
		return TRUSTED;
	// A configured user's containers have a pid namespace of their own: their processes are not the user's plugins.
	READ(pid, task->thread_pid);
	READ(pid_level, pid->level);
	if (pid_level == 0 && is_trusted_user(uid.val))
		return TRUSTED;
	return in_trusted_cgroup() ? TRUSTED : verdict;
}

// Counts a refused process and keeps it as the newest of its slot.
noinline int refuse(uint64_t path, uint32_t claim, uint32_t reason)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	const struct cred *cred = 0;
	kuid_t uid = { .val = NO_USER };
	uint32_t counter = claim * REFUSED_REASONS + reason;
	uint64_t *count = bpf_map_lookup_elem(&refused, &counter);
	if (count)
		*count += 1;
	struct scratch *s = scratch();
	if (!s)
		return 0;
	__builtin_memset(s->room, 0, REFUSED_PATH_MAX);
	long got = bpf_probe_read_kernel_str(s->room, REFUSED_PATH_MAX, (void *)path);
	uint64_t cgroup_id = bpf_get_current_cgroup_id(), hash = 0;
#pragma clang loop unroll(disable)
	for (uint32_t i = 0; i < REFUSED_PATH_MAX; i += 8)
		hash = scramble(hash ^ load_eight(&s->room[i]));
	uint32_t slot = (scramble(cgroup_id) >> 32) % REFUSED_GROUPS * REFUSED_GROUP + (hash >> 32) % REFUSED_GROUP;
	struct RefusedRecord *kept = bpf_map_lookup_elem(&refused_processes, &slot);
	if (!kept)
		return 0;
	READ(cred, task->cred);
	READ(uid, cred->uid);
	kept->cgroup_id = cgroup_id;
	kept->pid = bpf_get_current_pid_tgid() >> 32;
	kept->uid = uid.val;
	kept->claim = claim;
	kept->reason = reason;
	__builtin_memcpy(kept->path, s->room, REFUSED_PATH_MAX);
	kept->path_len = got > 0 ? got - 1 : 0;
	kept->at_ns = bpf_ktime_get_boot_ns();
	return 0;
}
