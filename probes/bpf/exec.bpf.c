// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// Processes: which are CNI plugins (CNI_COMMAND in their environment) or descend from one, what they execute, how they
// end; and the exec and exit of known runtimes' own processes. Everything else costs a map lookup, and at exec a scan
// of the environment, and never leaves the kernel.
// match-proto: sched_process_fork(struct task_struct *parent, struct task_struct *child)
// match-proto: sched_process_exec(struct task_struct *p, pid_t old_pid, struct linux_binprm *bprm)
// match-proto: sched_process_exit(struct task_struct *p, ..)
#include "kernel.h"

#include "wire.h"

// READ_TYPED is for what hangs on a task that the tracepoint gave: behind a typed tracepoint the verifier knows the
// structures, and a plain load does. READ serves both.
#ifdef RAW_TP
#define TRACEPOINT(name) SEC("raw_tp/" name)
#define READ_TYPED(dst, field) READ(dst, field)
#else
#define TRACEPOINT(name) SEC("tp_btf/" name)
#define READ_TYPED(dst, field) ((dst) = (field))
#endif

// Bytes of environment copied in one go.
#define CHUNK 4096
// Bytes of it searched with one branch.
#define BLOCK 64
// Bytes of it looked through by one function for variables to keep: the verifier walks a loop's rounds one by one.
#define STRETCH 512
// So much of a chunk is looked at again with the next one: longer than any needle, and its neighbour.
#define OVERLAP 16
// 32 chunks are 127.5 KiB of environment.
#define CHUNKS_MAX 32
// Behind the chunk: room to compare a needle that begins at its last byte.
#define SLACK 16
// The reader is woken when more than one part in so many of the ring is filled.
#define RING_SHARE 8
// Before the chunk: room for one byte, and alignment.
#define BEFORE 8

struct scratch {
	// The environment, and where its next chunk begins.
	uint64_t env_start, env_end, env_next;
	// The last of these is the byte before the chunk: zero where the chunk begins with a variable.
	uint8_t before[BEFORE];
	uint8_t chunk[CHUNK + SLACK];
	struct ExecRecord exec;
	uint8_t room[EXEC_ROOM];
	struct StdioRecord stdio;
	uint8_t spoken[2 * STDIO_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20);
} records SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PROCESSES_MAX);
	__type(key, uint32_t);
	__type(value, uint32_t);
} processes SEC(".maps");

// How many entries of `processes` have a pid of these low bits. Almost every process has none, and this table is small and
// in order of the pids: it stays in the cache, where the bucket that a hash leads to hardly ever is.
struct marks {
	uint32_t count[MARKS];
};

// The kernel side's marks, and user space's: each side writes its own, and their sum counts.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, uint32_t);
	__type(value, struct marks);
} marks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, uint32_t);
	__type(value, struct scratch);
} scratches SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LOST_SLOTS);
	__type(key, uint32_t);
	__type(value, uint64_t);
} lost SEC(".maps");

// One word that user space sets to 1 before it blocks without a clock of its own; see emit().
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, uint32_t);
	__type(value, uint32_t);
} reader SEC(".maps");

always_inline void count_lost(uint32_t slot)
{
	uint64_t *count = bpf_map_lookup_elem(&lost, &slot);
	if (count)
		*count += 1;
}

always_inline struct scratch *scratch(void)
{
	uint32_t zero = 0;
	return bpf_map_lookup_elem(&scratches, &zero);
}

always_inline uint32_t role_of(uint32_t pid)
{
	uint32_t kernels = MARKS_OF_KERNEL, users = MARKS_OF_USER;
	struct marks *ours = bpf_map_lookup_elem(&marks, &kernels), *theirs = bpf_map_lookup_elem(&marks, &users);
	if (!ours || !theirs || ours->count[pid % MARKS] + theirs->count[pid % MARKS] == 0)
		return 0;
	uint32_t *role = bpf_map_lookup_elem(&processes, &pid);
	return role ? *role : 0;
}

always_inline void mark(uint32_t pid, int32_t difference)
{
	uint32_t kernels = MARKS_OF_KERNEL;
	struct marks *ours = bpf_map_lookup_elem(&marks, &kernels);
	if (ours)
		__sync_fetch_and_add(&ours->count[pid % MARKS], difference);
}

// Waking the reader costs several times what the record does, on this side and on the other, and often on the processor
// of the very plugin that is observed, so it is done once per burst: when the reader sleeps. Awake it looks by the clock,
// every few hundredths of a second, and only needs to be told of a ring that fills. Whoever wakes it clears the word; that
// two do is harmless.
// A record cannot be missed: the reader looks once more, that long after it has set the word (ring.rs).
always_inline void emit(struct RecordHeader *record, uint32_t size)
{
	uint32_t zero = 0;
	uint64_t flags = BPF_RB_NO_WAKEUP;
	uint32_t *sleeps = bpf_map_lookup_elem(&reader, &zero);
	if (sleeps && *sleeps) {
		*sleeps = 0;
		flags = BPF_RB_FORCE_WAKEUP;
	}
	if (record->ring_bytes * RING_SHARE > bpf_ringbuf_query(&records, BPF_RB_RING_SIZE))
		flags = BPF_RB_FORCE_WAKEUP;
	if (bpf_ringbuf_output(&records, record, size, flags))
		count_lost(LOST_RING);
}

always_inline void put_header(struct RecordHeader *header, uint32_t kind, struct task_struct *leader)
{
	int pid = 0;
	uint64_t start = 0;
	READ_TYPED(pid, leader->tgid);
	READ_TYPED(start, leader->start_boottime);
	header->kind = kind;
	header->pid = pid;
	header->at_ns = bpf_ktime_get_boot_ns();
	header->start_ns = start;
	header->ring_bytes = bpf_ringbuf_query(&records, BPF_RB_AVAIL_DATA);
}

// --- the environment ---

// Four bytes as a number, in the byte order of all supported machines (little endian).
#define FOUR(a, b, c, d) ((uint32_t)(a) | (uint32_t)(b) << 8 | (uint32_t)(c) << 16 | (uint32_t)(d) << 24)

// One load: left to itself clang makes four of bytes, for the array's type.
always_inline uint32_t load_four(const uint8_t *from)
{
	return *(const volatile uint32_t *)from;
}

// Where in "CNI_COMMAND=" these four bytes stand; 8 when nowhere in its first eleven bytes.
always_inline uint32_t place_in_needle(uint32_t four)
{
	switch (four) {
	case FOUR('C', 'N', 'I', '_'): return 0;
	case FOUR('N', 'I', '_', 'C'): return 1;
	case FOUR('I', '_', 'C', 'O'): return 2;
	case FOUR('_', 'C', 'O', 'M'): return 3;
	case FOUR('C', 'O', 'M', 'M'): return 4;
	case FOUR('O', 'M', 'M', 'A'): return 5;
	case FOUR('M', 'M', 'A', 'N'): return 6;
	case FOUR('M', 'A', 'N', 'D'): return 7;
	}
	return 8;
}

// Below NEAR for the needle's places, and for one in five hundred of what else an environment holds (names in capitals: one
// in four hundred): multiplied by this number the squares of all its eight places lie that close together. Found by
// reducing a lattice; of those found, the one that names and addresses meet least. No table and no branch.
#define NEAR_BITS 55
#define NEAR (1ull << NEAR_BITS)
always_inline uint64_t distance(const uint8_t *from)
{
	uint64_t four = load_four(from);
	return four * four * 0xd9e2e46d18f12a46 + 0xd574477db7351e8a;
}

// Does CNI_COMMAND= begin a variable where these four bytes of the chunk say it could?
noinline int is_command_around(uint32_t i, uint32_t len)
{
	struct scratch *s = scratch();
	if (!s || i > CHUNK - 4)
		return 0;
	uint32_t place = place_in_needle(load_four(&s->chunk[i]));
	if (place > 7 || i + 12 > len + place)
		return 0;
	// From the byte before the variable on; `before` has room for the needle to begin outside of the chunk.
	uint8_t *at = &s->before[BEFORE - 1 + i - place];
	return at[0] == 0 && load_four(at + 1) == FOUR('C', 'N', 'I', '_') &&
	       load_four(at + 5) == FOUR('C', 'O', 'M', 'M') && load_four(at + 9) == FOUR('A', 'N', 'D', '=');
}

noinline int is_command_in_block(uint32_t i, uint32_t len)
{
	struct scratch *s = scratch();
	if (!s || i > CHUNK - BLOCK)
		return 0;
#pragma clang loop unroll(disable)
	for (uint32_t place = 0; place < BLOCK; place += 8) {
		if (distance(&s->chunk[i + place]) < NEAR && is_command_around(i + place, len))
			return 1;
	}
	return 0;
}

// Is there a variable CNI_COMMAND in the chunk? Looks at four bytes in eight only: the needle's twelve bytes cover at least
// one such place whatever their alignment. Only a block with a place that may be one is looked at closely. Functions of
// their own: the verifier walks each loop once.
noinline int chunk_has_command(uint32_t len)
{
	struct scratch *s = scratch();
	if (!s)
		return 0;
#pragma clang loop unroll(disable)
	for (uint32_t i = 0; i < CHUNK; i += BLOCK) {
		if (i >= len)
			break;
		// Of these, only zero has its top bit set when one is taken away.
		uint64_t any = 0;
#pragma clang loop unroll(full)
		for (uint32_t place = 0; place < BLOCK; place += 8)
			any |= (distance(&s->chunk[i + place]) >> NEAR_BITS) - 1;
		if (any >> 63 && is_command_in_block(i, len))
			return 1;
	}
	return 0;
}

// Appends the variable at this address to the kept environment.
noinline int keep_variable(uint64_t address)
{
	struct scratch *s = scratch();
	if (!s)
		return 0;
	uint32_t path_len = s->exec.path_len, args_len = s->exec.args_len, env_len = s->exec.env_len;
	opaque(path_len);
	opaque(args_len);
	opaque(env_len);
	if (path_len > PATH_MAX || args_len > ARGS_MAX)
		return 0;
	if (env_len > ENV_FULL) {
		s->exec.flags |= FLAG_ENV_CUT;
		return 0;
	}
	uint8_t *to = &s->room[path_len + args_len + env_len];
	long got = bpf_probe_read_user_str(to, VARIABLE_MAX, (void *)address);
	if (got <= 0)
		return 0;
	if (got == VARIABLE_MAX)
		s->exec.flags |= FLAG_ENV_CUT;
	s->exec.env_len = env_len + got;
	return 0;
}

// The top bits of those of these eight bytes that are zero, and perhaps of a 1 behind one that is.
always_inline uint64_t zeros_of(const uint8_t *from)
{
	uint64_t eight = *(const volatile uint64_t *)from;
	return (eight - 0x0101010101010101) & ~eight & 0x8080808080808080;
}

// Keeps the variable that begins here, if one does that is wanted. Functions of their own: see chunk_has_command.
noinline int keep_variable_at(uint64_t from, uint32_t i, uint32_t len)
{
	struct scratch *s = scratch();
	if (!s || i >= len || i > CHUNK - 4 || s->before[BEFORE - 1 + i] != 0)
		return 0;
	uint32_t four = load_four(&s->chunk[i]);
	if (four == FOUR('C', 'N', 'I', '_') || four == FOUR('T', 'R', 'A', 'C'))
		keep_variable(from + i);
	return 0;
}

// Looks at the variables that begin behind these zero bytes of the eight before place `i`.
noinline int keep_variables_behind(uint64_t zeros, uint64_t from, uint32_t i, uint32_t len)
{
#pragma clang loop unroll(disable)
	for (uint32_t found = 0; found < 8 && zeros; found++) {
		// The lowest set bit is the top one of its byte; moved to the bottom, the product's top byte is the byte's number.
		uint64_t lowest = zeros & -zeros;
		uint32_t place = (lowest >> 7) * 0x0001020304050607 >> 56;
		keep_variable_at(from, i + place, len);
		zeros ^= lowest;
	}
	return 0;
}

// Keeps those of one stretch of the chunk.
noinline int keep_variables_in(uint64_t from, uint32_t stretch, uint32_t len)
{
	struct scratch *s = scratch();
	if (!s || stretch > CHUNK - STRETCH)
		return 0;
#pragma clang loop unroll(disable)
	for (uint32_t place = 0; place < STRETCH; place += 8) {
		if (stretch + place >= len)
			break;
		uint64_t zeros = zeros_of(&s->before[BEFORE - 1 + stretch + place]);
		if (zeros)
			keep_variables_behind(zeros, from, stretch + place, len);
	}
	return 0;
}

// Keeps the variables of the chunk that begin with "CNI_" or "TRAC"; user space keeps CNI_*, TRACEPARENT and TRACESTATE of
// them. Those that begin in the overlap come with the next chunk.
noinline int keep_variables(uint64_t from, uint32_t len)
{
	if (len > CHUNK - OVERLAP)
		len = CHUNK - OVERLAP;
#pragma clang loop unroll(disable)
	for (uint32_t stretch = 0; stretch < CHUNK; stretch += STRETCH) {
		if (stretch >= len)
			break;
		keep_variables_in(from, stretch, len);
	}
	return 0;
}

// Loads the next chunk of the environment; gives its length, 0 at the end. Where it stands is in memory, not in
// registers: the verifier then sees all rounds of the loops below as one.
always_inline uint32_t load_chunk(struct scratch *s)
{
	uint64_t from = s->env_next, end = s->env_end;
	if (from >= end)
		return 0;
	s->before[BEFORE - 1] = from == s->env_start ? 0 : s->chunk[CHUNK - OVERLAP - 1];
	s->env_next = from + CHUNK - OVERLAP;
	uint64_t len = end - from;
	if (len > CHUNK)
		len = CHUNK;
	opaque(len);
	if (len > CHUNK)
		return 0;
	return bpf_probe_read_user(s->chunk, len, (void *)from) ? 0 : len;
}

always_inline int is_plugin(struct scratch *s)
{
	s->env_next = s->env_start;
#pragma clang loop unroll(disable)
	for (uint32_t i = 0; i < CHUNKS_MAX; i++) {
		uint32_t len = load_chunk(s);
		if (!len)
			return 0;
		if (chunk_has_command(len))
			return 1;
	}
	return 0;
}

noinline int put_environment(void)
{
	struct scratch *s = scratch();
	if (!s)
		return 0;
	s->env_next = s->env_start;
#pragma clang loop unroll(disable)
	for (uint32_t i = 0; i < CHUNKS_MAX; i++) {
		uint64_t from = s->env_next;
		uint32_t len = load_chunk(s);
		if (!len)
			return 0;
		keep_variables(from, len);
	}
	if (s->env_next < s->env_end)
		s->exec.flags |= FLAG_ENV_CUT;
	return 0;
}

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
	// The helper for it took an eighth of what an exec costs that is nobody's business.
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

#include "stdio.h"

// --- programs ---

// An entry left behind by a lost exit is taken over, and marked twice: that costs a look into the table, no more.
always_inline void follow(uint32_t pid, uint32_t role)
{
	mark(pid, 1);
	if (bpf_map_update_elem(&processes, &pid, &role, BPF_ANY) == 0)
		return;
	mark(pid, -1);
	count_lost(LOST_TABLE);
}

// False when somebody else did.
always_inline int forget(uint32_t pid)
{
	if (bpf_map_delete_elem(&processes, &pid))
		return 0;
	mark(pid, -1);
	return 1;
}

TRACEPOINT("sched_process_fork")
int on_fork(uint64_t *ctx)
{
	struct task_struct *parent = (void *)ctx[0], *child = (void *)ctx[1], *leader = 0;
	int pid = 0, tgid = 0;
	// A new thread, as most are: told before anything is looked up.
	READ_TYPED(pid, child->pid);
	READ_TYPED(tgid, child->tgid);
	if (pid != tgid)
		return 0;
	int parent_pid = 0;
	READ_TYPED(parent_pid, parent->tgid);
	if (role_of(parent_pid) != ROLE_TRACKED)
		return 0;
	follow(tgid, ROLE_TRACKED);
	struct ForkRecord record = {};
	put_header(&record.header, KIND_FORK, child);
	READ_TYPED(leader, parent->group_leader);
	READ_TYPED(record.parent_start_ns, leader->start_boottime);
	record.parent_pid = parent_pid;
	emit(&record.header, sizeof(record));
	return 0;
}

always_inline void put_process(struct scratch *s, struct task_struct *task)
{
	struct task_struct *leader = 0, *parent = 0;
	READ_TYPED(parent, task->real_parent);
	READ_TYPED(leader, task->group_leader);
	put_header(&s->exec.header, KIND_EXEC, leader);
	READ_TYPED(leader, parent->group_leader);
	int pid = 0;
	READ_TYPED(pid, leader->tgid);
	s->exec.parent_pid = pid;
	READ_TYPED(s->exec.parent_start_ns, leader->start_boottime);
	READ(s->exec.parent_comm, leader->comm);
	struct nsproxy *namespaces = 0;
	struct net *net = 0;
	unsigned int inode = 0;
	READ_TYPED(namespaces, task->nsproxy);
	READ_TYPED(net, namespaces->net_ns);
	READ_TYPED(inode, net->ns.inum);
	s->exec.netns = inode;
	s->exec.cgroup_id = bpf_get_current_cgroup_id();
}

always_inline void put_path(struct scratch *s, struct linux_binprm *bprm)
{
	const char *path = 0;
	READ(path, bprm->filename);
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

TRACEPOINT("sched_process_exec")
int on_exec(uint64_t *ctx)
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
	// A child of a tracked process is tracked since its fork.
	if (was != ROLE_TRACKED) {
		if (is_plugin(s))
			role = ROLE_TRACKED;
		else
			role = is_runtime(task) ? ROLE_RUNTIME : 0;
	}
	// A runtime that runs itself again from a copy of another name (crun does) is followed to its exit all the same.
	if (!role)
		return 0;
	if (!was)
		follow(pid, role);
	else if (role != was)
		bpf_map_update_elem(&processes, &pid, &role, BPF_EXIST);

	s->exec = (struct ExecRecord){ .role = role };
	put_process(s, task);
	put_path(s, (void *)ctx[2]);
	READ_TYPED(args_start, mm->arg_start);
	READ_TYPED(args_end, mm->arg_end);
	put_args(s, args_start, args_end);
	if (role == ROLE_TRACKED)
		put_environment();
	uint64_t size = sizeof(s->exec) + s->exec.path_len + s->exec.args_len + s->exec.env_len;
	opaque(size);
	if (size <= sizeof(s->exec) + EXEC_ROOM)
		emit(&s->exec.header, size);
	return 0;
}

always_inline int exits(uint64_t *ctx, int with_stdio)
{
	struct task_struct *task = (void *)ctx[0], *leader = 0;
	struct signal_struct *signal = 0;
	int live = 0, status = 0;
	unsigned int flags = 0;
	// A thread that others outlive, as most are: told before anything is looked up.
	READ_TYPED(signal, task->signal);
	READ_TYPED(live, signal->live.counter);
	if (live != 0 && !(with_stdio && is_calibrating()))
		return 0;
	int pid = 0;
	READ_TYPED(pid, task->tgid);
	uint32_t role = role_of(pid);
	if (!role)
		return 0;
	if (role == ROLE_CALIBRATING) {
		if (with_stdio)
			calibrate();
		return 0;
	}
	// Threads that end at the same time may all see zero: the one that removes the entry reports.
	if (live != 0 || !forget(pid))
		return 0;
	if (with_stdio && role == ROLE_TRACKED)
		emit_stdio(task);
	READ_TYPED(flags, signal->flags);
	if (flags & SIGNAL_GROUP_EXIT)
		READ_TYPED(status, signal->group_exit_code);
	else
		READ_TYPED(status, task->exit_code);
	struct ExitRecord record = { .status = status, .role = role };
	READ_TYPED(leader, task->group_leader);
	put_header(&record.header, KIND_EXIT, leader);
	emit(&record.header, sizeof(record));
	return 0;
}

// Two programs for one hook: where the kernel does not take the one that reads pipes, the plain one does.
TRACEPOINT("sched_process_exit")
int on_exit(uint64_t *ctx)
{
	return exits(ctx, 0);
}

TRACEPOINT("sched_process_exit")
int on_exit_stdio(uint64_t *ctx)
{
	return exits(ctx, 1);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
