// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// What a plugin read from standard input and wrote to standard output, where these are pipes: the pages are still there when
// it exits. A pipe keeps the last pages that were read to their end (pipe_inode_info::tmp_page), content untouched, and a
// slot keeps its page, offset and length (fs/pipe.c: anon_pipe_buf_release, pipe_read; one page until Linux 6.14, two since).
// No function is hooked for it. Only the newest slot of each pipe is read, one page at most, and never a page that the pipe
// has given back.
#pragma once

#include "process.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, uint32_t);
	__type(value, struct Calibration);
} calibration SEC(".maps");

#define GIB (1ull << 30)
#define STEPS_AT_ONCE 16

// The address of a task's table of open files, by descriptor; 0 when it has none. A table has at least 64 places (include/linux/fdtable.h,
// NR_OPEN_DEFAULT). Global functions take addresses as numbers: the verifier walks them once, and a typed pointer would make it search
// names (READ_TYPED in kernel.h).
noinline uint64_t open_files_of(uint64_t of_task)
{
	struct task_struct *task = (void *)of_task;
	struct files_struct *files = 0;
	struct fdtable *table = 0;
	struct file **slots = 0;
	// Null once exit_files() has run.
	READ(files, task->files);
	if (!files)
		return 0;
	READ(table, files->fdt);
	if (!table)
		return 0;
	READ(slots, table->fd);
	return (uint64_t)slots;
}

// The address of the pipe that a file is; 0 if it is none, or the one that `other` is too.
noinline uint64_t pipe_of(uint64_t of_file, uint64_t other)
{
	struct file *file = (void *)of_file, *other_file = (void *)other;
	struct inode *inode = 0, *other_inode = 0;
	struct pipe_inode_info *pipe = 0;
	unsigned short mode = 0;
	if (!file || file == other_file)
		return 0;
	READ(inode, file->f_inode);
	READ(mode, inode->i_mode);
	if ((mode & S_IFMT) != S_IFIFO)
		return 0;
	if (other_file)
		READ(other_inode, other_file->f_inode);
	if (inode == other_inode)
		return 0;
	READ(pipe, inode->i_pipe);
	return (uint64_t)pipe;
}

// Not inlined: in the loop that calls it, clang would compute the place of a field ahead of the question whether the kernel has it.
noinline uint32_t is_kept(uint64_t of_pipe, uint64_t of_page)
{
	struct pipe_inode_info *pipe = (void *)of_pipe;
	struct page *page = (void *)of_page, *kept = 0;
	if (FIELD_EXISTS(pipe->tmp_page[1])) {
		READ(kept, pipe->tmp_page[1]);
		if (kept == page)
			return 1;
		READ(kept, pipe->tmp_page[0]);
	} else {
		struct pipe_inode_info___one_page *older = (void *)pipe;
		READ(kept, older->tmp_page);
	}
	return kept == page;
}

// A plugin often exits while its last write is being read. The reader moves the slot's offset, then its length, and then gives the
// page back (fs/pipe.c, pipe_read): a look in between finds no bytes, or a page that is not kept yet. Of plugins that exit right
// after they have written, 1 in 3,000 was met there. So looks are repeated; one takes some tens of nanoseconds.
#define LOOKS_MAX 32

// Where the bytes of a slot lie, length << 32 | offset: the same in two looks, and not the empty slot that no write makes. Like
// pipe_of() it takes an address as a number, and is walked once: where it is inlined, the verifier of Linux 6.1 follows every way
// through its loop, since the result bounds a copy.
noinline uint64_t settled_extent(uint64_t of_buffer)
{
	struct pipe_buffer *buffer = (void *)of_buffer;
	uint64_t before = 0, extent = 0;
	// The length lies behind the offset (include/linux/pipe_fs_i.h, struct pipe_buffer).
#pragma clang loop unroll(disable)
	for (uint32_t i = 0; i < LOOKS_MAX; i++) {
		bpf_probe_read_kernel(&extent, sizeof(extent), __builtin_preserve_access_index(&buffer->offset));
		if (extent && extent == before)
			break;
		before = extent;
	}
	return extent;
}

noinline uint32_t is_soon_kept(uint64_t of_pipe, uint64_t page)
{
#pragma clang loop unroll(disable)
	for (uint32_t i = 0; i < LOOKS_MAX; i++)
		if (is_kept(of_pipe, page))
			return 1;
	return 0;
}

// The page of the pipe's newest slot and how many of its bytes were written; 0 when there is none that may be read. A page has
// `page_bytes`.
always_inline uint32_t newest_page(struct pipe_inode_info *pipe, uint32_t page_bytes, uint64_t *page_address)
{
	unsigned int head = 0, slots = 0, offset = 0, len = 0;
	struct pipe_buffer *buffers = 0, *buffer;
	struct page *page = 0;
	READ(head, pipe->head);
	READ(slots, pipe->ring_size);
	READ(buffers, pipe->bufs);
	if (!head || !slots || !buffers)
		return 0;
	buffer = (void *)buffers + TYPE_SIZE(struct pipe_buffer) * (uint64_t)((head - 1) & (slots - 1));
	READ(page, buffer->page);
	uint64_t extent = settled_extent((uint64_t)buffer);
	offset = extent;
	len = extent >> 32;
	if (!page || offset > page_bytes || len > page_bytes || offset + len > page_bytes)
		return 0;
	if (len == 0 && !is_soon_kept((uint64_t)pipe, (uint64_t)page))
		return 0;
	*page_address = (uint64_t)page;
	return offset + len;
}

// Copies what was last written to a pipe to this place of `streams`, STDIO_MAX bytes at most; returns how many.
noinline uint32_t read_pipe(uint64_t pipe, uint32_t place)
{
	uint32_t zero = 0;
	struct Calibration *where = bpf_map_lookup_elem(&calibration, &zero);
	struct scratch *s = scratch();
	uint64_t page = 0;
	if (!s || !where || !pipe || place > STDIO_MAX)
		return 0;
	uint32_t len = newest_page((void *)pipe, where->scale * STRUCT_PAGE_BYTES, &page);
	uint64_t address = page * where->scale + where->bias;
	if (len > STDIO_MAX) {
		// Of a page of more than 4 KiB.
		address += len - STDIO_MAX;
		len = STDIO_MAX;
	}
	// Both again: the verifier of Linux 6.1 forgets the bound of what lay on the stack during the calls.
	opaque(len);
	opaque(place);
	if (len == 0 || len > STDIO_MAX || place > STDIO_MAX)
		return 0;
	return bpf_probe_read_kernel(&s->streams[place], len, (void *)address) ? 0 : len;
}

// Puts what the process that exits now has read and written behind its ExitRecord, whose lengths are 0 before.
noinline int put_stdio(void)
{
	uint32_t zero = 0;
	struct Calibration *where = bpf_map_lookup_elem(&calibration, &zero);
	struct scratch *s = scratch();
	struct task_struct *task = (void *)bpf_get_current_task(), *parent = 0;
	// Standard input and output: its own, and the parent's. A command inherits the pipes of its plugin: their content belongs to
	// the plugin.
	uint64_t own[2] = {}, inherited[2] = {};
	if (!s || !where || where->outcome != CALIBRATION_FOUND)
		return 0;
	READ(parent, task->real_parent);
	if (!parent)
		return 0;
	uint64_t from = open_files_of((uint64_t)task);
	if (!from || bpf_probe_read_kernel(own, sizeof(own), (void *)from))
		return 0;
	from = open_files_of((uint64_t)parent);
	if (from)
		bpf_probe_read_kernel(inherited, sizeof(inherited), (void *)from);
	uint32_t in = read_pipe(pipe_of(own[0], inherited[0]), 0);
	opaque(in);
	if (in > STDIO_MAX)
		return 0;
	uint32_t out = read_pipe(pipe_of(own[1], inherited[1]), in);
	opaque(out);
	if (out > STDIO_MAX)
		return 0;
	s->exit.stdin_len = in;
	s->exit.stdout_len = out;
	return 0;
}

// The first of STEPS_AT_ONCE addresses, each one GiB below the one before, that holds the token; 0 when none does.
noinline uint64_t find_token(uint64_t address)
{
	uint32_t zero = 0;
	struct Calibration *where = bpf_map_lookup_elem(&calibration, &zero);
	uint64_t token[2];
	if (!where)
		return 0;
#pragma clang loop unroll(disable)
	for (uint32_t i = 0; i < STEPS_AT_ONCE; i++, address -= GIB) {
		if (bpf_probe_read_kernel(token, sizeof(token), (void *)address))
			continue;
		if (token[0] == where->token[0] && token[1] == where->token[1])
			return address;
	}
	return 0;
}

// Searches the token at every possible address. The linear mapping and the array of struct page both begin at a multiple of
// 1 GiB (arch/x86/mm/kaslr.c, kernel_randomize_memory; arch/arm64/include/asm/memory.h, PAGE_OFFSET and VMEMMAP_START) and a
// task lies in the linear mapping, so only whole GiB are unknown. A page of 4 KiB is 64 times as long as its struct page, one of
// 16 KiB 256 times (`scale`).
static noinline int find_bias(struct Calibration *where)
{
	uint64_t task = bpf_get_current_task(), page = 0, file = 0;
	uint64_t from = open_files_of(task);
	if (!from || bpf_probe_read_kernel(&file, sizeof(file), (void *)(from + 8 * (uint64_t)where->fd)))
		return CALIBRATION_ELSEWHERE;
	uint64_t pipe = pipe_of(file, 0);
	if (!pipe || !newest_page((void *)pipe, where->scale * STRUCT_PAGE_BYTES, &page) ||
	    TYPE_SIZE(struct page) != STRUCT_PAGE_BYTES)
		return CALIBRATION_ELSEWHERE;
	uint64_t guess = (task & ~(GIB - 1)) + (page & (GIB - 1)) * where->scale + where->from_gib * GIB;
#pragma clang loop unroll(disable)
	for (uint32_t i = 0; i < CALIBRATION_STEPS; i += STEPS_AT_ONCE, guess -= STEPS_AT_ONCE * GIB) {
		uint64_t address = find_token(guess);
		if (address) {
			where->bias = address - page * where->scale;
			return CALIBRATION_FOUND;
		}
	}
	return CALIBRATION_ELSEWHERE;
}

// A thread of process `pid` exits. Looks for the token if user space waits for such an exit.
always_inline void calibrate(uint32_t pid)
{
	uint32_t zero = 0;
	struct Calibration *where = bpf_map_lookup_elem(&calibration, &zero);
	// Last: user space reads `bias` once `outcome` is set.
	if (where && where->pid == pid && where->outcome == CALIBRATION_PENDING)
		where->outcome = find_bias(where);
}
