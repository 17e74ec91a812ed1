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

// The address of the pipe behind a descriptor of a task; 0 when there is none. Global functions that take addresses as
// numbers: the verifier walks them once, and a typed pointer would make it search names (READ_TYPED in kernel.h).
noinline uint64_t pipe_of(uint64_t of_task, uint32_t fd)
{
	struct task_struct *task = (void *)of_task;
	struct files_struct *files = 0;
	struct fdtable *table = 0;
	struct file **slots = 0, *file = 0;
	struct inode *inode = 0;
	struct pipe_inode_info *pipe = 0;
	unsigned int max = 0;
	unsigned short mode = 0;
	// Null once exit_files() has run.
	READ(files, task->files);
	if (!files)
		return 0;
	READ(table, files->fdt);
	if (!table)
		return 0;
	READ(max, table->max_fds);
	READ(slots, table->fd);
	if (!slots || fd >= max || bpf_probe_read_kernel(&file, sizeof(file), &slots[fd]) || !file)
		return 0;
	READ(inode, file->f_inode);
	READ(mode, inode->i_mode);
	if ((mode & S_IFMT) != S_IFIFO)
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

// Where the bytes of a slot lie, offset << 32 | length: the same in two looks, and not the empty slot that no write makes. Like
// pipe_of() it takes an address as a number, and is walked once: where it is inlined, the verifier of Linux 6.1 follows every way
// through its loop, since the result bounds a copy.
noinline uint64_t settled_extent(uint64_t of_buffer)
{
	struct pipe_buffer *buffer = (void *)of_buffer;
	uint64_t before = 0, extent = 0;
#pragma clang loop unroll(disable)
	for (uint32_t i = 0; i < LOOKS_MAX; i++) {
		unsigned int offset = 0, len = 0;
		READ(offset, buffer->offset);
		READ(len, buffer->len);
		extent = (uint64_t)offset << 32 | len;
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
	offset = extent >> 32;
	len = extent;
	if (!page || offset > page_bytes || len > page_bytes || offset + len > page_bytes)
		return 0;
	if (len == 0 && !is_soon_kept((uint64_t)pipe, (uint64_t)page))
		return 0;
	*page_address = (uint64_t)page;
	return offset + len;
}

// Copies what was last written to a pipe of the exiting task to this place of `streams`, STDIO_MAX bytes at most; returns how
// many.
noinline uint32_t read_pipe(uint32_t fd, uint32_t place)
{
	uint32_t zero = 0;
	struct Calibration *where = bpf_map_lookup_elem(&calibration, &zero);
	struct scratch *s = scratch();
	struct task_struct *task = (void *)bpf_get_current_task(), *parent = 0;
	uint64_t page = 0;
	if (!s || !where || place > STDIO_MAX)
		return 0;
	uint64_t pipe = pipe_of((uint64_t)task, fd);
	if (!pipe)
		return 0;
	// A command inherits the pipe of its plugin: the content belongs to the plugin.
	READ(parent, task->real_parent);
	if (!parent || pipe_of((uint64_t)parent, fd) == pipe)
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

static noinline int emit_stdio(struct task_struct *task)
{
	uint32_t zero = 0;
	struct Calibration *where = bpf_map_lookup_elem(&calibration, &zero);
	struct scratch *s = scratch();
	if (!s || !where || where->outcome != CALIBRATION_FOUND)
		return 0;
	struct task_struct *leader = 0;
	uint32_t in = read_pipe(0, 0);
	opaque(in);
	if (in > STDIO_MAX)
		return 0;
	uint32_t out = read_pipe(1, in);
	opaque(out);
	if (out > STDIO_MAX || (!in && !out))
		return 0;
	READ(leader, task->group_leader);
	put_header(&s->stdio.header, KIND_STDIO, leader);
	s->stdio.stdin_len = in;
	s->stdio.stdout_len = out;
	emit(&s->stdio.header, sizeof(s->stdio) + in + out);
	return 0;
}

// Does user space wait for a token to be found? Then the exits of the agent's own threads matter.
always_inline int is_calibrating(void)
{
	uint32_t zero = 0;
	struct Calibration *where = bpf_map_lookup_elem(&calibration, &zero);
	return where && where->token[0] && where->outcome == CALIBRATION_PENDING;
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
	uint64_t page = 0, task = bpf_get_current_task();
	uint64_t pipe = pipe_of(task, where->fd);
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

always_inline void calibrate(void)
{
	uint32_t zero = 0;
	struct Calibration *where = bpf_map_lookup_elem(&calibration, &zero);
	// Last: user space reads `bias` once `outcome` is set.
	if (where)
		where->outcome = find_bias(where);
}
