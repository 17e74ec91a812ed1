// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// Processes: CNI plugins (CNI_COMMAND in their environment) and their descendants, what they execute and how they end; and
// the exec and exit of known runtimes' own processes, and what these fork until it executes a container's program; all only of
// trusted processes (trust.h). Every other process costs a lookup in a map, and at exec a search of its environment, and nothing of
// it leaves the kernel.
//
// The tracepoints (include/trace/events/sched.h) are called for every thread of the node: sched_process_fork in
// kernel_clone() (kernel/fork.c), sched_process_exec in exec_binprm() (fs/exec.c) when the new image is in place,
// sched_process_exit in do_exit() (kernel/exit.c), where the files of the task are still open.
// match-proto: sched_process_fork(struct task_struct *parent, struct task_struct *child)
// match-proto: sched_process_exec(struct task_struct *p, pid_t old_pid, struct linux_binprm *bprm)
// match-proto: sched_process_exit(struct task_struct *p, ..)
#include "environment.h"
#include "goroutine.h"
#include "process.h"
#include "stdio.h"
#include "trust.h"

// Names of plugins, as comm has them, whose requests to daemons are followed from their begin. User space writes them.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SHIMS_MAX);
	__type(key, char[16]);
	__type(value, uint32_t);
} shims SEC(".maps");

// --- runtimes ---

always_inline int is_runtime(struct task_struct *task)
{
	union {
		char comm[16];
		uint32_t word[4];
		uint64_t half[2];
	} name = {};
#ifdef RAW_TP
	READ(name.comm, task->comm);
#else
	// bpf_get_current_comm() took 130 of the 1,068 ns that the exec of an unrelated process cost.
	const volatile uint64_t *comm = (const volatile void *)task->comm;
	name.half[0] = comm[0];
	name.half[1] = comm[1];
#endif
	switch (name.word[0]) {
	case FOUR('r', 'u', 'n', 'c'):
	case FOUR('c', 'r', 'u', 'n'):
		return name.comm[4] == 0;
	case FOUR('r', 'u', 'n', 's'):
		return name.word[1] == FOUR('c', 0, 0, 0);
	case FOUR('y', 'o', 'u', 'k'):
		return name.word[1] == FOUR('i', 0, 0, 0);
	case FOUR('c', 'o', 'n', 'm'):
		return name.word[1] == FOUR('o', 'n', 0, 0);
	case FOUR('c', 'o', 'n', 't'):
		// containerd-shim, containerd-shim-runc-v2 (cut to 15 bytes), ..
		return name.word[1] == FOUR('a', 'i', 'n', 'e') && name.word[2] == FOUR('r', 'd', '-', 's') &&
		       name.word[3] == FOUR('h', 'i', 'm', 0);
	}
	return 0;
}

// Shims and monitors run as long as their pods: a node has hundreds. containerd-shim.., conmon.
always_inline int is_monitor(struct task_struct *leader)
{
	char comm[4] = {};
	READ(comm, leader->comm);
	return comm[0] == 'c' && comm[1] == 'o' && comm[2] == 'n';
}

// --- programs ---

// With `within`, of what the first program has not seen (process.h).
always_inline int on_any_fork(uint64_t *ctx, int within)
{
	struct task_struct *parent = (void *)ctx[0], *child = (void *)ctx[1], *leader = 0;
	int pid = 0, tgid = 0;
	// Most forks make a thread: nothing is looked up for them.
	READ_TYPED(pid, child->pid);
	READ_TYPED(tgid, child->tgid);
	if (pid != tgid)
		return 0;
	int parent_pid = 0;
	READ_TYPED(parent_pid, parent->tgid);
	uint32_t role = role_of(parent_pid);
	if (!role)
		return 0;
	// The first program gives the child its role.
	if (within && role_of(tgid))
		return 0;
	READ(leader, parent->group_leader);
	struct ForkRecord record = { .role = ROLE_TRACKED };
	if (role == ROLE_RUNTIME || role == ROLE_RUNTIME_FORK) {
#ifdef RAW_TP
		// What is reported of a runtime's fork is what it waits for, which is not recorded here.
		return 0;
#endif
		// What these execute is reported where it is a runtime's step.
		if (is_monitor(leader))
			return 0;
		record.role = ROLE_RUNTIME_FORK;
	}
	set_role(tgid, record.role);
	uint64_t start = 0;
	READ_TYPED(start, child->start_boottime);
	put_head(&record.header, KIND_FORK, tgid, start);
	READ(record.parent_start_ns, leader->start_boottime);
	record.parent_pid = parent_pid;
	int tid = 0;
	READ_TYPED(tid, parent->pid);
	record.parent_tid = tid;
	READ_TYPED(record.parent_thread_start_ns, parent->start_boottime);
#ifndef RAW_TP
	if (role == ROLE_DAEMON)
		put_goroutine(&record.goroutine);
#endif
	emit(&record.header, sizeof(record));
	return 0;
}

TRACEPOINT("sched_process_fork")
int on_fork(uint64_t *ctx)
{
	return on_any_fork(ctx, 0);
}

TRACEPOINT("sched_process_fork")
int on_fork_within(uint64_t *ctx)
{
	return on_any_fork(ctx, 1);
}

// The process that runs now. Its one thread is the first one: any other has taken the place of that (fs/exec.c, de_thread).
always_inline void put_process(struct scratch *s, struct task_struct *task, uint32_t pid)
{
	struct task_struct *leader = 0, *parent = 0;
	uint64_t start = 0;
	READ_TYPED(start, task->start_boottime);
	put_head(&s->exec.header, KIND_EXEC, pid, start);
	READ(parent, task->real_parent);
	READ(leader, parent->group_leader);
	int parent_pid = 0;
	READ(parent_pid, leader->tgid);
	s->exec.parent_pid = parent_pid;
	READ(s->exec.parent_start_ns, leader->start_boottime);
	READ(s->exec.parent_comm, leader->comm);
	struct nsproxy *namespaces = 0;
	struct net *net = 0;
	unsigned int inode = 0;
	READ(namespaces, task->nsproxy);
	READ(net, namespaces->net_ns);
	READ(inode, net->ns.inum);
	s->exec.netns = inode;
	s->exec.cgroup_id = bpf_get_current_cgroup_id();
}

always_inline void put_path(struct scratch *s, struct linux_binprm *bprm)
{
	const char *path = 0;
	READ_TYPED(path, bprm->filename);
	long got = bpf_probe_read_kernel_str(s->room, PATH_MAX, path);
	s->exec.path_len = got > 0 ? got - 1 : 0;
}

always_inline void put_args(struct scratch *s, uint64_t start, uint64_t end)
{
	uint64_t len = end > start ? end - start : 0;
	if (len > ARGS_MAX) {
		s->exec.flags |= FLAG_ARGS_CUT;
		len = ARGS_MAX;
	}
	uint32_t path_len = s->exec.path_len;
	opaque(len);
	opaque(path_len);
	if (len > ARGS_MAX || path_len > PATH_MAX)
		return;
	if (bpf_probe_read_user(&s->room[path_len], len, (void *)start) == 0)
		s->exec.args_len = len;
}

// A file that the process has by itself, as runc executes a copy of runc (CVE-2019-5736): /proc/self/exe, and then a descriptor,
// which execveat() calls /dev/fd/N (fs/exec.c, alloc_bprm).
always_inline int is_own_file(struct linux_binprm *bprm)
{
	union {
		char text[16];
		uint64_t half[2];
	} name = {};
	const char *path = 0;
	READ(path, bprm->filename);
	bpf_probe_read_kernel_str(name.text, sizeof(name.text), path);
	if (name.half[0] == EIGHT_OF('/', 'd', 'e', 'v', '/', 'f', 'd', '/'))
		return 1;
	return name.half[0] == EIGHT_OF('/', 'p', 'r', 'o', 'c', '/', 's', 'e') && name.text[8] == 'l' &&
	       name.text[9] == 'f' && name.text[10] == '/';
}

// What a runtime forked executes a container's program: it is not followed any more. The program's arguments are its own affair.
always_inline int on_container_exec(struct task_struct *task, struct linux_binprm *bprm)
{
	struct scratch *s = scratch();
	int pid = 0;
	if (!s)
		return 0;
	READ_TYPED(pid, task->tgid);
	set_role(pid, 0);
	s->exec = (struct ExecRecord){ .role = ROLE_RUNTIME_FORK };
	put_process(s, task, pid);
	put_path(s, bprm);
	uint64_t size = sizeof(s->exec) + s->exec.path_len;
	opaque(size);
	if (size <= sizeof(s->exec) + PATH_MAX)
		emit(&s->exec.header, size);
	return 0;
}

always_inline int on_any_exec(uint64_t *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	struct mm_struct *mm = 0;
	uint64_t args_start = 0, args_end = 0;
	struct scratch *s = scratch();
	READ_TYPED(mm, task->mm);
	if (!mm || !s)
		return 0;
	READ_TYPED(s->env_start, mm->env_start);
	READ_TYPED(s->env_end, mm->env_end);

	int pid = 0;
	READ_TYPED(pid, task->tgid);
	uint32_t was = role_of(pid), role = was;
	// The fork of a tracked process has tracked its child already: what a trusted plugin starts is followed, whatever it holds.
	if (was != ROLE_TRACKED) {
		uint32_t claim = is_plugin(s);
		if (claim == 1)
			role = ROLE_TRACKED;
		else
			role = is_runtime(task) ? ROLE_RUNTIME : 0;
		// What was a runtime keeps its entry, and its exit is reported, when it executes a copy of another name, as crun does.
		if (!role && was != ROLE_RUNTIME_FORK && claim != UNREADABLE)
			return 0;
		if (!role && was == ROLE_RUNTIME_FORK) {
			if (is_own_file((void *)ctx[2]) && judge(CLAIM_RUNTIME) == TRUSTED)
				return 0;
			return on_container_exec(task, (void *)ctx[2]);
		}
		int verdict = judge(claim == 1 ? CLAIM_PLUGIN : CLAIM_RUNTIME);
		// Only what could be a plugin may have been missed: a pod whose environment cannot be read provokes no loss.
		if (claim == UNREADABLE && verdict == TRUSTED)
			count_lost(LOST_ENVIRONMENT);
		if (!role)
			return 0;
		if (verdict != TRUSTED) {
			const char *path = 0;
			struct linux_binprm *bprm = (void *)ctx[2];
			READ(path, bprm->filename);
			refuse((uint64_t)path, role == ROLE_TRACKED ? CLAIM_PLUGIN : CLAIM_RUNTIME, verdict);
			// A container's program that claims to be one is that container's program all the same.
			return was == ROLE_RUNTIME_FORK ? on_container_exec(task, bprm) : 0;
		}
	}
	set_role(pid, role);

	s->exec = (struct ExecRecord){ .role = role };
	put_process(s, task, pid);
	// The counts of its later records hold what it did before its exec too: user space subtracts these.
	s->exec.processor_ns = processor_time_of(task);
	s->exec.run_delay_ns = run_delay_of(task);
	put_path(s, (void *)ctx[2]);
	READ_TYPED(args_start, mm->arg_start);
	READ_TYPED(args_end, mm->arg_end);
	put_args(s, args_start, args_end);
	if (role == ROLE_TRACKED)
		put_environment();
	uint64_t size = sizeof(s->exec) + s->exec.path_len + s->exec.args_len + s->exec.env_len;
	opaque(size);
	if (size > sizeof(s->exec) + EXEC_ROOM)
		return 0;
	char comm[16] = {};
	if (role == ROLE_TRACKED)
		READ(comm, task->comm);
	// A shim sends its request some milliseconds after it began: the reader, which polls less often, has to be there before.
	if (role == ROLE_TRACKED && bpf_map_lookup_elem(&shims, comm))
		output_now(&s->exec.header, size);
	else
		emit(&s->exec.header, size);
	return 0;
}

TRACEPOINT("sched_process_exec")
int on_exec(uint64_t *ctx)
{
	if (preemptible)
		mark_exec_seen((void *)ctx[0]);
	begin_first_run(RUN_EXEC);
	on_any_exec(ctx);
	end_first_run(RUN_EXEC);
	return 0;
}

// Of what the first program has not seen.
TRACEPOINT("sched_process_exec")
int on_exec_within(uint64_t *ctx)
{
	return is_exec_seen((void *)ctx[0]) ? 0 : on_any_exec(ctx);
}

#ifdef RAW_TP
#define attachment_in_use() 0
#else
#include "waits.h"
#endif

// The record of a process that ends, which has no role any more.
always_inline void put_exit(struct task_struct *task, struct signal_struct *signal, uint32_t role, int with_stdio)
{
	struct scratch *s = scratch();
	struct task_struct *leader = 0;
	int status = 0, pid = 0;
	unsigned int flags = 0;
	uint64_t start = 0;
	if (!s)
		return;
	READ_TYPED(pid, task->tgid);
	READ(leader, task->group_leader);
	READ(start, leader->start_boottime);
	READ_TYPED(flags, signal->flags);
	if (flags & SIGNAL_GROUP_EXIT)
		READ_TYPED(status, signal->group_exit_code);
	else
		READ_TYPED(status, task->exit_code);
	s->exit = (struct ExitRecord){ .status = status, .role = role };
	if (with_stdio && role == ROLE_TRACKED)
		put_stdio();
	put_head(&s->exit.header, KIND_EXIT, pid, start);
	uint64_t size = sizeof(s->exit) + s->exit.stdin_len + s->exit.stdout_len;
	opaque(size);
	if (size <= sizeof(s->exit) + sizeof(s->streams))
		emit(&s->exit.header, size);
}

// With `within`, of what the first program has not seen: it takes the role of a process whose last thread ends.
always_inline int on_any_exit(uint64_t *ctx, int with_stdio, int within)
{
	struct task_struct *task = (void *)ctx[0];
	struct signal_struct *signal = 0;
	int live = 0, pid = 0, tid = 0;
	READ_TYPED(signal, task->signal);
	READ_TYPED(live, signal->live.counter);
	READ_TYPED(pid, task->tgid);
	READ_TYPED(tid, task->pid);
	// Most exits are of a thread whose process goes on: nothing is looked up for them. Only the first one's counts are reported.
	if (live != 0 && (within || tid != pid || !attachment_in_use()))
		return 0;
	uint32_t role = role_of(pid);
	if (!role)
		return 0;
#ifndef RAW_TP
	if (role != ROLE_DAEMON)
		put_end(task);
#endif
	// Threads that end at the same time may all see zero live threads: the one that takes the role reports. Where two do, the second
	// report finds a process that has ended. User space followed a daemon for requests, which end with it.
	if (live != 0 || !take_role(pid) || role == ROLE_DAEMON)
		return 0;
	if (!within)
		begin_first_run(RUN_EXIT);
	put_exit(task, signal, role, with_stdio);
	if (!within)
		end_first_run(RUN_EXIT);
	return 0;
}

// Two programs for one hook: user space attaches the plain one where the kernel rejects the one that reads pipes.
TRACEPOINT("sched_process_exit")
int on_exit(uint64_t *ctx)
{
	return on_any_exit(ctx, 0, 0);
}

TRACEPOINT("sched_process_exit")
int on_exit_stdio(uint64_t *ctx)
{
	return on_any_exit(ctx, 1, 0);
}

TRACEPOINT("sched_process_exit")
int on_exit_within(uint64_t *ctx)
{
	return on_any_exit(ctx, 0, 1);
}

TRACEPOINT("sched_process_exit")
int on_exit_stdio_within(uint64_t *ctx)
{
	return on_any_exit(ctx, 1, 1);
}

// Attached while user space waits for a token to be found.
TRACEPOINT("sched_process_exit")
int on_exit_calibrate(uint64_t *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	int pid = 0;
	READ_TYPED(pid, task->tgid);
	calibrate(pid);
	return 0;
}

#ifndef RAW_TP
#include "asleep.h"
#include "extack.h"
#include "file_locks.h"
#include "locks.h"
#include "daemons.h"
#include "cri.h"
#endif

char LICENSE[] SEC("license") = "Dual MIT/GPL";
