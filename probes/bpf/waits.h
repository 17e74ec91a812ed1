// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// Why the threads of tracked processes did not run: sleeps with the kernel functions they slept in and who woke them, and
// times in which a thread was runnable and had no processor. User space attaches these programs only while an operation
// lasts longer than `waits.after`, so a fast operation costs nothing.
//
// sched_switch is called in __schedule() (kernel/sched/core.c) with the run queue's lock held, after the next task was chosen and
// before it runs. sched_waking is called in try_to_wake_up() by the waker, while the task still sleeps. The kernel stack of a task
// that does not run stays as it was, so it is read only when a sleep turned out long.
//
// User space also empties `sleeps` then: what a thread did while they were detached is not known.
//
// on_switch is attached first, and detached last: a thread that on_waking has seen become runnable, and not seen to sleep again, would
// seem to run all through its next sleep. A wake-up that comes before on_waking is attached leaves an entry whose thread runs although
// it was not seen to be woken: see put_unseen_wake().
//
// A thread that slept before these programs were attached has no entry in `sleeps`. The begin of its sleep is then taken from
// se.exec_start, the run queue's clock when the task ran last (kernel/sched/fair.c, update_curr), but it lies before the attachment in
// any case: see slept_since().
//
// The threads of a daemon are followed too, while it has a request (daemons.h). What one of them did before is not known either, so an
// entry of an earlier request counts as none. A daemon may have many threads, which work for others: they have half of the room that
// waits have, and what is left out of them is counted by itself.
// match-proto: sched_switch(bool preempt, struct task_struct *prev, struct task_struct *next, ..)
// match-proto: sched_waking(struct task_struct *p)
#pragma once

#include "goroutine.h"
#include "process.h"

// include/linux/sched.h. TASK_FROZEN (Linux 6.1) is among them: a thread that is frozen for a suspend is not runnable.
#define TASK_STATE_MASK 0x80ff
#define TASK_DEAD 0x80

static long (*const bpf_get_stack)(void *ctx, void *buf, uint32_t size, uint64_t flags) = (void *)67;
static long (*const bpf_get_task_stack)(struct task_struct *task, void *buf, uint32_t size, uint64_t flags) = (void *)141;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

// With CONFIG_SMP. One byte on Linux 7.2, with another field behind it, and an int before; 0 or 1 in either, and this project's
// architectures have the low byte first.
struct task_struct___smp {
	uint8_t on_cpu;
};

#pragma clang attribute pop

struct sleep {
	// When the thread left the processor, boot clock.
	uint64_t out_ns;
	// When it became runnable again; 0 while it sleeps.
	uint64_t runnable_ns;
	// Of its run queue, when it left the processor: time for which the group was throttled so far.
	uint64_t throttled_ns;
	// When it was woken while its entry said that it runs; 0 if it was not since it ran last. See on_in().
	uint64_t early_wake_ns;
	// Its time on a processor so far, when it left the processor.
	uint64_t ran_ns;
	// Of a daemon's thread, since when the daemon was followed then; else 0.
	uint64_t followed_ns;
	// Of a daemon's thread, the goroutine whose system call it sleeps in.
	struct GoroutineWords goroutine;
	uint32_t flags;
	// 1 since it was seen to run again.
	uint32_t runs;
};

// The thread that was seen longest ago is forgotten: one that ends after its process is not tracked any more leaves its entry behind.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SLEEPS_MAX);
	__type(key, uint32_t);
	__type(value, struct sleep);
} sleeps SEC(".maps");

// A daemon that has a request.
struct daemon {
	// When it received from a tracked process last.
	uint64_t newest_ns;
	// Since when it is followed.
	uint64_t since_ns;
	// Its threads that have an entry in `sleeps` since then.
	uint32_t threads;
	uint32_t unused;
};

// By process id. User space removes an entry with the role.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, DAEMONS_MAX);
	__type(key, uint32_t);
	__type(value, struct daemon);
} daemons SEC(".maps");

struct attachment {
	// Boot clock minus the run queues' clock. The boot clock is slewed and the other is not.
	uint64_t clock_offset_ns;
	// Boot clock. Since then each switch was seen.
	uint64_t since_ns;
};

// User space resets it to zeros whenever it attaches or has detached the programs, and the first switch fills it in.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, uint32_t);
	__type(value, struct attachment);
} attachments SEC(".maps");

// Records that were left out on purpose: see has_room().
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, uint32_t);
	__type(value, uint64_t);
} limited SEC(".maps");

// The same, of threads of daemons.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, uint32_t);
	__type(value, uint64_t);
} limited_daemons SEC(".maps");

// Part of the ring that waits may fill. A record of a process must find room whatever threads do: fifty sandboxes at once on two
// processors filled a ring of 1 MiB with waits, and processes were lost.
#define WAITS_SHARE 16
// Part of that part that those of daemons may fill: an operation's own threads say more about it.
#define DAEMONS_SHARE 2

// Part of the ring that is full when a wait wakes an awake reader: half of what the waits of daemons may fill. Other records wake it
// only when twice the part of waits is full (WAKE_SHARE in ring.h).
#define WAITS_WAKE_SHARE (WAITS_SHARE * DAEMONS_SHARE * 2)
// Several records wide: several processors may pass the mark at the same time.
#define WAITS_WAKE_BAND (4 << 10)

// A record is larger than a program's stack. sched_waking may interrupt itself: an interrupt wakes a task too.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, uint32_t);
	__type(value, struct WakeRecord);
} wake_scratch SEC(".maps");

// Counts a record of a tracked process that was left out, or of a daemon.
always_inline void count_limited(struct daemon *daemon)
{
	uint32_t zero = 0;
	uint64_t *count = daemon ? bpf_map_lookup_elem(&limited_daemons, &zero) : bpf_map_lookup_elem(&limited, &zero);
	if (count)
		*count += 1;
}

// Is there room for the record of a wait? If not, it is counted as limited. `daemon` is 0 for a tracked process.
always_inline int has_room(struct daemon *daemon)
{
	uint64_t share = bpf_ringbuf_query(&records, BPF_RB_RING_SIZE) / WAITS_SHARE;
	if (daemon)
		share /= DAEMONS_SHARE;
	if (waiting_bytes() <= share)
		return 1;
	count_limited(daemon);
	return 0;
}

// Emits the record of a wait. The reader is to come before waits are left out: on a busy node they fill their part between two of its
// polls.
always_inline void emit_wait(struct RecordHeader *record, uint32_t size)
{
	uint64_t mark = bpf_ringbuf_query(&records, BPF_RB_RING_SIZE) / WAITS_WAKE_SHARE;
	if (record->ring_bytes > mark && record->ring_bytes <= mark + WAITS_WAKE_BAND)
		output_now(record, size);
	else
		emit(record, size);
}

// The waits of this process are recorded. `daemon` becomes its entry if it is one.
always_inline int has_waits(uint32_t pid, struct daemon **daemon)
{
	uint32_t role = role_of(pid), zero = 0;
	*daemon = 0;
	if (role != ROLE_DAEMON)
		return role != 0;
	*daemon = bpf_map_lookup_elem(&daemons, &pid);
	if (*daemon)
		return 1;
	// User space removes the entry and then the role.
	uint64_t *count = bpf_map_lookup_elem(&limited_daemons, &zero);
	if (count)
		*count += 1;
	return 0;
}

// What is remembered of a thread: nothing where the entry is of an earlier one of that id, whose last switch was not reported.
always_inline struct sleep *sleep_of(struct task_struct *task, uint32_t tid, struct daemon *daemon)
{
	struct sleep *sleep = bpf_map_lookup_elem(&sleeps, &tid);
	uint64_t followed_ns = daemon ? daemon->since_ns : 0, begin = 0;
	if (!sleep || sleep->followed_ns != followed_ns)
		return 0;
	READ_TYPED(begin, task->start_boottime);
	return sleep->out_ns >= begin ? sleep : 0;
}

// Remembers a thread. `is_new` if nothing is remembered of it.
always_inline void remember(uint32_t tid, struct sleep *sleep, struct daemon *daemon, int is_new)
{
	if (daemon) {
		sleep->followed_ns = daemon->since_ns;
		if (is_new && daemon->threads >= DAEMON_THREADS_MAX) {
			count_limited(daemon);
			return;
		}
		if (is_new)
			__sync_fetch_and_add(&daemon->threads, 1);
	}
	if (bpf_map_update_elem(&sleeps, &tid, sleep, BPF_ANY))
		count_limited(daemon);
}

always_inline uint32_t state_of(struct task_struct *task)
{
	if (FIELD_EXISTS(task->__state)) {
		unsigned int state = 0;
		READ_TYPED(state, task->__state);
		return state & TASK_STATE_MASK;
	}
	// Before Linux 5.14.
	long state = 0;
	READ(state, ((struct task_struct___long_state *)task)->state);
	return state & TASK_STATE_MASK;
}

always_inline struct cfs_rq *group_queue(struct task_struct *task)
{
	struct cfs_rq *queue = 0;
	if (FIELD_EXISTS(task->se.cfs_rq))
		READ(queue, task->se.cfs_rq);
	return queue;
}

// Time for which the task's group was throttled on this processor so far (kernel/sched/fair.c, tg_unthrottle_up).
always_inline uint64_t throttled_of(struct task_struct *task)
{
	struct cfs_rq *queue = group_queue(task);
	uint64_t time = 0;
	if (queue && FIELD_EXISTS(queue->throttled_clock_pelt_time))
		READ(time, queue->throttled_clock_pelt_time);
	return time;
}

// What the run queue's clock of tasks leaves out: interrupts and time stolen by a hypervisor.
always_inline int rq_clocks(struct task_struct *task, uint64_t *clock, uint64_t *skew)
{
	struct cfs_rq *queue = group_queue(task);
	struct rq *rq = 0;
	uint64_t clock_task = 0;
	if (!queue)
		return 0;
	READ(rq, queue->rq);
	if (!rq)
		return 0;
	READ(*clock, rq->clock);
	READ(clock_task, rq->clock_task);
	*skew = *clock - clock_task;
	return 1;
}

// The boot clock's time until which the scheduler has counted a task: of one that sleeps, when it ran last. 0 where that is not known.
always_inline uint64_t counted_until(struct task_struct *task, struct attachment *attachment)
{
	uint64_t clock = 0, skew = 0, start = 0;
	if (!rq_clocks(task, &clock, &skew))
		return 0;
	READ_TYPED(start, task->se.exec_start);
	return start ? start + skew + attachment->clock_offset_ns : 0;
}

// 0 while the programs are not attached, or have seen no switch yet.
always_inline struct attachment *attachment_in_use(void)
{
	uint32_t zero = 0;
	struct attachment *attachment = bpf_map_lookup_elem(&attachments, &zero);
	return attachment && attachment->since_ns ? attachment : 0;
}

// When a task that sleeps and of which nothing is remembered left the processor; 0 where that is not known.
//
// The skew of counted_until() is that of now: interrupts since then make the time later than it was (seen: by 1.4 s of a sleep of 6 s,
// in an emulated machine beside others). And a task that the scheduler moved to another run queue while it slept has no exec_start
// (kernel/sched/fair.c, enqueue_entity with ENQUEUE_MIGRATED; since Linux 6.12 a task may sleep on its run queue, see sched_delayed).
// But if it is older than the attachment, it sleeps since before that: it would be remembered otherwise.
always_inline uint64_t slept_since(struct task_struct *task, struct daemon *daemon)
{
	struct attachment *attachment = attachment_in_use();
	uint64_t begin = 0;
	if (!attachment)
		return 0;
	uint64_t start = counted_until(task, attachment);
	uint64_t seen = attachment->since_ns;
	if (daemon) {
		// Not all of its threads are remembered.
		if (daemon->threads >= DAEMON_THREADS_MAX)
			return start;
		if (daemon->since_ns > seen)
			seen = daemon->since_ns;
	}
	READ_TYPED(begin, task->start_boottime);
	if (begin > seen)
		return start;
	return start && start < seen ? start : seen;
}

always_inline void learn_attachment(struct task_struct *prev)
{
	uint32_t zero = 0;
	struct attachment *attachment = bpf_map_lookup_elem(&attachments, &zero);
	uint64_t clock = 0, skew = 0;
	if (!attachment || attachment->since_ns || !rq_clocks(prev, &clock, &skew))
		return;
	uint64_t now = bpf_ktime_get_boot_ns();
	attachment->clock_offset_ns = now - clock;
	attachment->since_ns = now;
}

always_inline void put_times(struct ThreadTimes *times, struct task_struct *task)
{
	int tid = 0;
	READ_TYPED(tid, task->pid);
	times->tid = tid;
	READ_TYPED(times->begin_ns, task->start_boottime);
	times->processor_ns = processor_time_of(task);
	times->run_delay_ns = run_delay_of(task);
}

always_inline uint32_t tgid_of(struct task_struct *task)
{
	int tgid = 0;
	READ_TYPED(tgid, task->tgid);
	return tgid;
}

always_inline uint32_t tid_of(struct task_struct *task)
{
	int tid = 0;
	READ_TYPED(tid, task->pid);
	return tid;
}

// Emits the wait for a processor that ended at `ran_at`, if it was long enough. If the thread `has_run` since, the kernel has counted it.
always_inline void put_run(struct task_struct *task, struct sleep *sleep, uint64_t ran_at, int has_run, struct daemon *daemon)
{
	if (!sleep->runnable_ns || ran_at < sleep->runnable_ns + WAIT_MIN_NS || !has_room(daemon))
		return;
	struct task_struct *leader = 0;
	struct RunRecord record = { .runnable_ns = sleep->runnable_ns, .flags = sleep->flags };
	uint64_t throttled = throttled_of(task);
	if (throttled > sleep->throttled_ns)
		record.throttled_ns = throttled - sleep->throttled_ns;
	READ(leader, task->group_leader);
	put_header(&record.header, KIND_RUN, leader);
	record.header.at_ns = ran_at;
	put_times(&record.times, task);
	// As it was when the thread left the processor: it may have run since, see on_out().
	record.times.processor_ns = sleep->ran_ns;
	uint64_t waited = ran_at - sleep->runnable_ns;
	if (has_run)
		record.times.run_delay_ns = record.times.run_delay_ns > waited ? record.times.run_delay_ns - waited : 0;
	emit_wait(&record.header, sizeof(record));
}

// Emits what the scheduler has counted of a thread that ends, if the programs are attached. It counted last up to a tick ago
// (kernel/sched/fair.c, update_curr): what the thread has run since then is added.
static noinline void put_end(struct task_struct *task)
{
	struct attachment *attachment = attachment_in_use();
	struct task_struct *leader = 0;
	struct RunRecord record = { .flags = WAIT_ENDED };
	if (!attachment || !has_room(0))
		return;
	READ(leader, task->group_leader);
	put_header(&record.header, KIND_RUN, leader);
	record.runnable_ns = record.header.at_ns;
	put_times(&record.times, task);
	uint64_t counted = counted_until(task, attachment);
	if (counted && record.header.at_ns > counted)
		record.times.processor_ns += record.header.at_ns - counted;
	emit_wait(&record.header, sizeof(record));
}

// Begins the record of a sleep from `out` to `woken`: all but who ended it. `sleep` is 0 where nothing is remembered of the thread. 0 if
// the sleep is too short or has no room. The thread does not run yet.
always_inline struct WakeRecord *begin_wake(struct task_struct *task, struct sleep *sleep, uint64_t out, uint64_t woken,
					    uint32_t flags, struct daemon *daemon)
{
	uint32_t zero = 0;
	struct task_struct *leader = 0;
	if (woken < out + WAIT_MIN_NS || !has_room(daemon))
		return 0;
	struct WakeRecord *record = bpf_map_lookup_elem(&wake_scratch, &zero);
	if (!record)
		return 0;
	READ(leader, task->group_leader);
	put_header(&record->header, KIND_WAKE, leader);
	record->header.at_ns = woken;
	record->out_ns = out;
	record->flags = flags;
	record->goroutine = sleep ? sleep->goroutine : (struct GoroutineWords){};
	put_times(&record->times, task);
	long got = bpf_get_task_stack(task, record->stack, sizeof(record->stack), 0);
	record->stack_len = got > 0 ? (uint64_t)got / 8 : 0;
	return record;
}

// A thread runs, or has run since `woken`, whose wake-up was not seen: it came before on_waking was attached, or the kernel did not report
// it. Who woke it is not known; that it slept until about then is. What it slept in is known unless it `has_run`.
always_inline void put_unseen_wake(struct task_struct *task, struct sleep *sleep, uint64_t woken, int has_run,
				   struct daemon *daemon)
{
	struct WakeRecord *record = begin_wake(task, sleep, sleep->out_ns, woken, sleep->flags, daemon);
	if (!record)
		return;
	if (has_run)
		record->stack_len = 0;
	record->waker_pid = record->waker_tid = record->waker_stack_len = 0;
	record->waker_start_ns = record->waker_begin_ns = record->waker_cgroup_id = 0;
	__builtin_memset(record->waker_comm, 0, sizeof(record->waker_comm));
	emit_wait(&record->header, sizeof(*record));
}

// Since when a thread runs of which no switch to it was reported: after `out`, and for at least as long as it was on a processor, without
// interrupts (kernel/sched/stats.h, sched_info_arrive).
always_inline uint64_t arrival_of(struct task_struct *task, uint64_t out, uint64_t ran_ns, uint64_t now)
{
	uint32_t zero = 0;
	struct attachment *attachment = bpf_map_lookup_elem(&attachments, &zero);
	unsigned long long arrival = 0;
	if (attachment && attachment->since_ns && FIELD_EXISTS(task->sched_info.last_arrival))
		READ_TYPED(arrival, task->sched_info.last_arrival);
	if (arrival)
		arrival += attachment->clock_offset_ns;
	return arrival > out && arrival < now - ran_ns ? arrival : now - ran_ns;
}

// A thread runs, or has run since `ran_at`: its sleep or its wait for a processor is over.
always_inline void put_wait_end(struct task_struct *task, struct sleep *sleep, uint64_t ran_at, int has_run, struct daemon *daemon)
{
	// __schedule() takes a thread off its run queue before it reports the switch. A wake-up by another processor in between finds the
	// entry of the time before, and the thread is runnable from the switch on.
	if (!sleep->runnable_ns && sleep->early_wake_ns)
		sleep->runnable_ns = sleep->out_ns;
	else if (!sleep->runnable_ns && !sleep->runs)
		put_unseen_wake(task, sleep, ran_at, has_run, daemon);
	put_run(task, sleep, ran_at, has_run, daemon);
}

always_inline void on_out(struct task_struct *prev, int preempted, uint64_t now, struct daemon *daemon)
{
	uint32_t tid = tid_of(prev), state = state_of(prev);
	struct sleep sleep = { .out_ns = now, .throttled_ns = throttled_of(prev), .ran_ns = processor_time_of(prev) };
	struct sleep *before = sleep_of(prev, tid, daemon);
	if (before) {
		sleep.early_wake_ns = before->early_wake_ns;
		// Some kernels do not report every switch, also not in their own trace (seen on 6.18 without preemption), and some run no program in
		// the time of process 1, nor in interrupts of it (agent/tests/lab/tracefs.rs): the thread ran although it was not seen to.
		if (!before->runs && !(before->flags & WAIT_RECOVERED))
			put_wait_end(prev, before, arrival_of(prev, before->out_ns, sleep.ran_ns - before->ran_ns, now), 1, daemon);
	}
	if (state & TASK_DEAD) {
		bpf_map_delete_elem(&sleeps, &tid);
		if (daemon && before)
			__sync_fetch_and_add(&daemon->threads, -1);
		return;
	}
	if (preempted || state == 0) {
		sleep.runnable_ns = now;
		sleep.flags = WAIT_PREEMPTED;
		// Since Linux 6.18 a throttled task leaves the processor by itself (kernel/sched/fair.c, throttle_cfs_rq_work).
		if (FIELD_EXISTS(((struct task_struct___throttled *)prev)->throttled)) {
			_Bool throttled = 0;
			READ(throttled, ((struct task_struct___throttled *)prev)->throttled);
			if (throttled)
				sleep.flags |= WAIT_THROTTLED;
		}
	} else {
		if (state & 2)
			sleep.flags = WAIT_UNINTERRUPTIBLE;
		// It is still the current one: context_switch() comes behind the tracepoint (kernel/sched/core.c, __schedule).
		if (daemon)
			put_goroutine(&sleep.goroutine);
	}
	remember(tid, &sleep, daemon, !before);
}

always_inline void on_in(struct task_struct *next, uint64_t now, struct daemon *daemon)
{
	uint32_t tid = tid_of(next);
	struct sleep *sleep = sleep_of(next, tid, daemon);
	if (!sleep) {
		// A new thread was runnable from its creation on, which no wake-up shows (kernel/sched/core.c, wake_up_new_task).
		struct sleep created = { .flags = 0 };
		if (processor_time_of(next))
			return;
		READ_TYPED(created.runnable_ns, next->start_boottime);
		put_run(next, &created, now, 0, daemon);
		return;
	}
	put_wait_end(next, sleep, now, 0, daemon);
	sleep->early_wake_ns = 0;
	sleep->runs = 1;
}

// It has not left the processor: no sleep that nobody saw begin.
always_inline int is_on_processor(struct task_struct *task)
{
	uint8_t on_cpu = 0;
	if (FIELD_EXISTS(((struct task_struct___smp *)task)->on_cpu))
		READ(on_cpu, ((struct task_struct___smp *)task)->on_cpu);
	return on_cpu;
}

TRACEPOINT("sched_switch")
int on_switch(uint64_t *ctx)
{
	struct task_struct *prev = (void *)ctx[1], *next = (void *)ctx[2];
	struct daemon *daemon = 0;
	uint64_t now = 0;
	learn_attachment(prev);
	if (has_waits(tgid_of(prev), &daemon)) {
		now = bpf_ktime_get_boot_ns();
		on_out(prev, ctx[0] & 1, now, daemon);
	}
	if (has_waits(tgid_of(next), &daemon))
		on_in(next, now ? now : bpf_ktime_get_boot_ns(), daemon);
	return 0;
}

TRACEPOINT("sched_waking")
int on_waking(uint64_t *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	struct daemon *daemon = 0;
	if (!has_waits(tgid_of(task), &daemon))
		return 0;
	uint32_t tid = tid_of(task), flags = 0;
	uint64_t now = bpf_ktime_get_boot_ns(), out = 0;
	struct sleep *sleep = sleep_of(task, tid, daemon);
	if (sleep) {
		if (sleep->runnable_ns || sleep->runs) {
			sleep->early_wake_ns = now;
			return 0;
		}
		sleep->runnable_ns = now;
		out = sleep->out_ns;
		flags = sleep->flags;
	} else {
		out = slept_since(task, daemon);
		flags = WAIT_RECOVERED;
		// It runs since before on_switch was attached, and is about to sleep: its last sleep is over.
		if (!out || is_on_processor(task))
			return 0;
		struct sleep found = { .out_ns = out, .runnable_ns = now, .ran_ns = processor_time_of(task), .flags = flags };
		remember(tid, &found, daemon, 1);
	}
	struct WakeRecord *record = begin_wake(task, sleep, out, now, flags, daemon);
	if (!record)
		return 0;
	uint64_t current = bpf_get_current_pid_tgid();
	record->waker_pid = current >> 32;
	record->waker_tid = current;
	struct task_struct *waker = (void *)bpf_get_current_task(), *waker_leader = 0;
	READ(waker_leader, waker->group_leader);
	READ(record->waker_start_ns, waker_leader->start_boottime);
	READ(record->waker_begin_ns, waker->start_boottime);
	READ(record->waker_comm, waker->comm);
	record->waker_cgroup_id = bpf_get_current_cgroup_id();
	long got = bpf_get_stack(ctx, record->waker_stack, sizeof(record->waker_stack), 0);
	record->waker_stack_len = got > 0 ? (uint64_t)got / 8 : 0;
	emit_wait(&record->header, sizeof(*record));
	return 0;
}
