// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// Which thread of a tracked process, or of a daemon that has a request, tried to lock a file that another process has locked: it waits,
// or it was refused and tries again later, as `iptables -w N` before 1.8.9 does. And who that other process is. Attached together with
// the programs of waits.h.
//
// flock_lock_inode and posix_lock_inode (include/trace/events/filelock.h) are called in the process that locks or unlocks, at the end
// of the functions of these names (fs/locks.c), with what the call returns: 0, FILE_LOCK_DEFERRED while it waits for another
// lock, -EAGAIN when it does not want to wait.
// The locks that are held are in the lists of the inode's file_lock_context, whenever they were taken; those that wait
// are not. The lists are read without their lock: an entry that is freed meanwhile gives a wrong process id, which user space
// finds to be none, or the name of who had the lock a moment before.
// match-proto: flock_lock_inode(struct inode *inode, struct file_lock *fl, int ret)
// match-proto: posix_lock_inode(struct inode *inode, struct file_lock *fl, int ret)
#pragma once

#include "current.h"

// include/linux/filelock.h (include/linux/fs.h before Linux 6.3)
#define FILE_LOCK_DEFERRED 1
// include/uapi/asm-generic/fcntl.h
#define F_WRLCK 1
#define F_UNLCK 2

// Entries of a list that are looked at: locks for reading may have many holders.
#define HOLDERS_MAX 8

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct list_head {
	struct list_head *next;
};

struct file_lock_context {
	struct list_head flc_flock, flc_posix;
};

// Since Linux 6.9.
struct file_lock_core {
	struct list_head flc_list;
	void *flc_owner;
	unsigned char flc_type;
	int flc_pid;
	struct file___path *flc_file;
};

struct file_lock {
	struct file_lock_core c;
	long long fl_start, fl_end;
};

// Before Linux 6.9.
struct file_lock___plain {
	struct list_head fl_list;
	void *fl_owner;
	unsigned char fl_type;
	unsigned int fl_pid;
	struct file___path *fl_file;
	long long fl_start, fl_end;
};

struct qstr {
	const unsigned char *name;
};

struct dentry {
	struct dentry *d_parent;
	struct qstr d_name;
};

struct path {
	struct dentry *dentry;
};

struct file___path {
	struct path f_path;
};

struct super_block {
	unsigned int s_dev;
};

// `inode` of kernel.h has no more than a pipe's.
struct inode___locked {
	struct super_block *i_sb;
	unsigned long i_ino;
	struct file_lock_context *i_flctx;
};

#pragma clang attribute pop

struct lock_file {
	uint64_t inode;
	uint32_t device;
	uint32_t unused;
};

struct taker {
	uint32_t pid;
	char comm[16];
};

// Who locked a file last, of the files that a tracked process has wanted to lock. Others cost a look-up.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, LOCK_FILES_MAX);
	__type(key, struct lock_file);
	__type(value, struct taker);
} lock_files SEC(".maps");

// By process, the inode of the file that it found locked, until it has it.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, LOCK_FILES_MAX);
	__type(key, uint32_t);
	__type(value, uint64_t);
} busy_files SEC(".maps");

// What of a lock matters here.
struct lock {
	void *owner;
	long long start, end;
	uint32_t pid;
	uint32_t type;
};

static long (*const bpf_get_current_comm)(void *buf, uint32_t size) = (void *)16;

always_inline void read_lock(struct lock *lock, void *from)
{
	unsigned char type = 0;
	if (FIELD_EXISTS(((struct file_lock *)0)->c)) {
		struct file_lock *fl = from;
		int pid = 0;
		READ(type, fl->c.flc_type);
		READ(pid, fl->c.flc_pid);
		READ(lock->owner, fl->c.flc_owner);
		READ(lock->start, fl->fl_start);
		READ(lock->end, fl->fl_end);
		lock->pid = pid;
	} else {
		struct file_lock___plain *fl = from;
		unsigned int pid = 0;
		READ(type, fl->fl_type);
		READ(pid, fl->fl_pid);
		READ(lock->owner, fl->fl_owner);
		READ(lock->start, fl->fl_start);
		READ(lock->end, fl->fl_end);
		lock->pid = pid;
	}
	lock->type = type;
}

// From an entry of the list of locks to the lock.
always_inline void *lock_of_entry(struct list_head *entry)
{
	uint64_t offset;
	if (FIELD_EXISTS(((struct file_lock *)0)->c))
		offset = FIELD_OFFSET(((struct file_lock *)0)->c) + FIELD_OFFSET(((struct file_lock_core *)0)->flc_list);
	else
		offset = FIELD_OFFSET(((struct file_lock___plain *)0)->fl_list);
	return (void *)entry - offset;
}

// The process that has a lock in the list at `head` which excludes the wanted one; 0 when there is none any more. As
// posix_locks_conflict() and flock_locks_conflict() (fs/locks.c) decide; of flock(2) the owner is the open file, and all locks cover
// the whole file. Global, and with numbers only, so that the verifier walks the list once and not for each way that leads here.
noinline uint32_t holder_of(uint64_t head, uint64_t owner, uint32_t type, int64_t start, int64_t end)
{
	struct list_head *entry = 0;
	READ(entry, ((struct list_head *)head)->next);
	for (int i = 0; i < HOLDERS_MAX; i++) {
		struct lock held = {};
		if (!entry || (uint64_t)entry == head)
			return 0;
		read_lock(&held, lock_of_entry(entry));
		if ((uint64_t)held.owner != owner && (held.type == F_WRLCK || type == F_WRLCK) && held.start <= end &&
		    start <= held.end)
			return held.pid;
		READ(entry, entry->next);
	}
	return 0;
}

// The names of the locked file's path within its file system: the process may have ended when user space looks. A path of which a part
// is renamed meanwhile is read wrong, once.
always_inline void put_names(uint8_t *names, void *request)
{
	struct file___path *open = 0;
	struct dentry *entry = 0;
	if (FIELD_EXISTS(((struct file_lock *)0)->c))
		READ(open, ((struct file_lock *)request)->c.flc_file);
	else
		READ(open, ((struct file_lock___plain *)request)->fl_file);
	READ(entry, open->f_path.dentry);
	for (int i = 0; i < LOCK_NAMES; i++) {
		const unsigned char *name = 0;
		struct dentry *parent = 0;
		names[i * LOCK_NAME_MAX] = 0;
		READ(parent, entry->d_parent);
		if (!parent || parent == entry)
			continue;
		READ(name, entry->d_name.name);
		bpf_probe_read_kernel_str(&names[i * LOCK_NAME_MAX], LOCK_NAME_MAX, name);
		entry = parent;
	}
}

always_inline int on_file_lock(uint64_t *ctx, int is_flock)
{
	struct inode___locked *inode = (void *)ctx[0];
	void *request = (void *)ctx[1];
	int ret = ctx[2];
	struct super_block *super = 0;
	READ_TYPED(super, inode->i_sb);
	uint32_t pid = current_pid(), role = role_of(pid);
	struct daemon *daemon = role == ROLE_DAEMON ? bpf_map_lookup_elem(&daemons, &pid) : 0;
	int is_tracked = role == ROLE_TRACKED || daemon;
	struct lock_file file = {};
	struct lock wanted = {};
	if (!request)
		return 0;
	READ_TYPED(file.inode, inode->i_ino);
	READ_TYPED(file.device, super->s_dev);
	struct taker *known = bpf_map_lookup_elem(&lock_files, &file);
	if (!is_tracked && !known)
		return 0;
	read_lock(&wanted, request);
	if (wanted.type == F_UNLCK)
		return 0;
	struct taker taker = {};
	if (ret == 0) {
		taker.pid = pid;
		bpf_get_current_comm(taker.comm, sizeof(taker.comm));
	}
	if (ret == 0 || !known)
		bpf_map_update_elem(&lock_files, &file, &taker, BPF_ANY);
	if (!is_tracked)
		return 0;

	uint32_t outcome, holder_pid = 0;
	if (ret == 0) {
		uint64_t *busy = bpf_map_lookup_elem(&busy_files, &pid);
		if (!busy || *busy != file.inode)
			return 0;
		bpf_map_delete_elem(&busy_files, &pid);
		outcome = FILE_LOCK_TAKEN;
	} else if (ret == FILE_LOCK_DEFERRED) {
		outcome = FILE_LOCK_BLOCKED;
	} else if (ret == -EAGAIN) {
		bpf_map_update_elem(&busy_files, &pid, &file.inode, BPF_ANY);
		outcome = FILE_LOCK_BUSY;
	} else {
		return 0;
	}
	if (ret != 0) {
		struct file_lock_context *locks = 0;
		READ(locks, inode->i_flctx);
		if (locks) {
			uint64_t offset = is_flock ? FIELD_OFFSET(((struct file_lock_context *)0)->flc_flock)
						   : FIELD_OFFSET(((struct file_lock_context *)0)->flc_posix);
			holder_pid = holder_of((uint64_t)locks + offset, (uint64_t)wanted.owner, wanted.type, wanted.start, wanted.end);
		}
		if (known && known->pid == holder_pid)
			taker = *known;
	}
	// Who waits for a lock does so once; only this record names the file. Whoever does not wait may try again and again.
	if (!has_room_for_remark(daemon, outcome != FILE_LOCK_BLOCKED))
		return 0;
	uint64_t waiting = waiting_bytes();
	struct FileLockRecord *record = reserve_record(&records, sizeof(*record), 0);
	if (!record) {
		count_lost(LOST_RING);
		return 0;
	}
	put_current(&record->header, KIND_FILE_LOCK);
	record->header.ring_bytes = waiting;
	record->inode = file.inode;
	record->device = file.device;
	record->tid = bpf_get_current_pid_tgid();
	record->outcome = outcome;
	record->holder_pid = holder_pid;
	__builtin_memcpy(record->holder_comm, taker.comm, sizeof(record->holder_comm));
	put_names(record->names, request);
	submit_record(record, wake_flags(waiting));
	return 0;
}

TRACEPOINT("flock_lock_inode")
int on_flock(uint64_t *ctx)
{
	return on_file_lock(ctx, 1);
}

TRACEPOINT("posix_lock_inode")
int on_posix_lock(uint64_t *ctx)
{
	return on_file_lock(ctx, 0);
}
