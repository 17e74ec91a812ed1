// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// The environment of a process at its exec: is CNI_COMMAND set, and which variables user space gets.
//
// Every exec of the node is searched, so the search has no branch per byte: it looks for "CN" at eight places at once, 64
// bytes a branch, and compares the whole name only where "CN" stands. Functions are global (noinline) so that the verifier
// walks each loop once; what they share lies in `scratch`, not in registers, so that it sees all rounds as one.
#pragma once

#include "process.h"

// Bytes searched with one branch.
#define BLOCK 64
// Bytes that one function searches for variables to keep: the verifier walks a loop's rounds one by one.
#define STRETCH 512
// Bytes of a chunk that the next chunk holds again: longer than "CNI_COMMAND=" and the byte before it.
#define OVERLAP 16
// 32 chunks are 127.5 KiB of environment.
#define CHUNKS_MAX 32
// Instead of the length of a chunk, and of whether a process is a plugin: the environment could not be read.
#define UNREADABLE 0xffffffff
// Instead of whether a process is a plugin: the next chunk is to be searched.
#define SEARCH_ON 2

// Four bytes as a number; all supported machines are little-endian.
#define FOUR(a, b, c, d) ((uint32_t)(a) | (uint32_t)(b) << 8 | (uint32_t)(c) << 16 | (uint32_t)(d) << 24)
// Eight bytes as a number.
#define EIGHT_OF(a, b, c, d, e, f, g, h) ((uint64_t)FOUR(a, b, c, d) | (uint64_t)FOUR(e, f, g, h) << 32)
// A byte in all eight places.
#define EIGHT(byte) (0x0101010101010101ull * (byte))

// The volatile casts keep clang from splitting a load into bytes, which the type of the array would make it do.
always_inline uint32_t load_four(const uint8_t *from)
{
	return *(const volatile uint32_t *)from;
}

always_inline uint64_t load_eight(const uint8_t *from)
{
	return *(const volatile uint64_t *)from;
}

// Sets the top bit of every byte that is zero, and perhaps of a byte 1 above a zero byte; 0 when no byte is zero (H. Warren,
// Hacker's Delight, 2nd edition, 6-1).
always_inline uint64_t zero_bytes(uint64_t eight)
{
	return (eight - EIGHT(1)) & ~eight & EIGHT(0x80);
}

// Byte n of the result is zero where "CN" stands at from + n. Few names of variables and few addresses hold these two.
always_inline uint64_t differs_from_cn(const uint8_t *from)
{
	return (load_eight(from) ^ EIGHT('C')) | (load_eight(from + 1) ^ EIGHT('N'));
}

// Clears the lowest flag of zero_bytes() and gives the number of its byte.
always_inline uint32_t take_lowest(uint64_t *flags)
{
	uint64_t lowest = *flags & -*flags;
	*flags ^= lowest;
	// The flag is the top bit of byte n. Moved to that byte's bottom, it is 256^n, and the product's top byte is n.
	return (lowest >> 7) * 0x0001020304050607 >> 56;
}

// Does "CNI_COMMAND=" begin a variable at this place of the chunk?
noinline int is_command_at(uint32_t i, uint32_t len)
{
	struct scratch *s = scratch();
	if (!s || i > CHUNK - 1 || i + 12 > len)
		return 0;
	// From the byte before the variable on.
	uint8_t *at = &s->before[BEFORE - 1 + i];
	return at[0] == 0 && load_four(at + 1) == FOUR('C', 'N', 'I', '_') &&
	       load_four(at + 5) == FOUR('C', 'O', 'M', 'M') && load_four(at + 9) == FOUR('A', 'N', 'D', '=');
}

noinline int is_command_in_eight(uint64_t flags, uint32_t i, uint32_t len)
{
#pragma clang loop unroll(disable)
	for (uint32_t found = 0; found < 8 && flags; found++) {
		if (is_command_at(i + take_lowest(&flags), len))
			return 1;
	}
	return 0;
}

noinline int is_command_in_block(uint32_t i, uint32_t len)
{
	struct scratch *s = scratch();
	if (!s || i > CHUNK - BLOCK)
		return 0;
#pragma clang loop unroll(disable)
	for (uint32_t place = 0; place < BLOCK; place += 8) {
		uint64_t flags = zero_bytes(differs_from_cn(&s->chunk[i + place]));
		if (flags && is_command_in_eight(flags, i + place, len))
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

// Keeps the variable that begins at place `i` of the chunk, if one begins there and user space may want it.
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

noinline int keep_variables_in_eight(uint64_t flags, uint64_t from, uint32_t i, uint32_t len)
{
#pragma clang loop unroll(disable)
	for (uint32_t found = 0; found < 8 && flags; found++)
		keep_variable_at(from, i + take_lowest(&flags), len);
	return 0;
}

// A variable begins behind a zero byte.
noinline int keep_variables_in_stretch(uint64_t from, uint32_t stretch, uint32_t len)
{
	struct scratch *s = scratch();
	if (!s || stretch > CHUNK - STRETCH)
		return 0;
#pragma clang loop unroll(disable)
	for (uint32_t place = 0; place < STRETCH; place += 8) {
		if (stretch + place >= len)
			break;
		uint64_t flags = zero_bytes(load_eight(&s->before[BEFORE - 1 + stretch + place]));
		if (flags)
			keep_variables_in_eight(flags, from, stretch + place, len);
	}
	return 0;
}

// Keeps the variables of the chunk whose names begin with "CNI_" or "TRAC"; user space keeps CNI_*, TRACEPARENT and
// TRACESTATE of them. Those that begin in the overlap come with the next chunk.
noinline int keep_variables(uint64_t from, uint32_t len)
{
	if (len > CHUNK - OVERLAP)
		len = CHUNK - OVERLAP;
#pragma clang loop unroll(disable)
	for (uint32_t stretch = 0; stretch < CHUNK; stretch += STRETCH) {
		if (stretch >= len)
			break;
		keep_variables_in_stretch(from, stretch, len);
	}
	return 0;
}

// Copies the next chunk of the environment; returns its length, 0 at the end. The pages are resident right after an exec:
// create_elf_tables() has just touched each string (fs/binfmt_elf.c, as in Linux 6.12). UNREADABLE where one is not, which
// takes a node that swaps.
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
	if (bpf_probe_read_user(s->chunk, len, (void *)from))
		return UNREADABLE;
	return len;
}

// Copies the next chunk and searches it for CNI_COMMAND: 1, 0 at the end of the environment, SEARCH_ON, or UNREADABLE. One
// function for both: the verifier walks it once for all chunks, and returns are expensive where the kernel guards them (SRSO).
noinline uint32_t next_chunk_has_command(void)
{
	struct scratch *s = scratch();
	if (!s)
		return 0;
	s->chunk_len = load_chunk(s);
	// Read back, so that the verifier knows one length and walks the loop once.
	uint32_t len = *(volatile uint64_t *)&s->chunk_len;
	if (!len || len == UNREADABLE)
		return len;
#pragma clang loop unroll(disable)
	for (uint32_t i = 0; i < CHUNK; i += BLOCK) {
		if (i >= len)
			break;
		uint64_t any = 0;
#pragma clang loop unroll(full)
		for (uint32_t place = 0; place < BLOCK; place += 8)
			any |= zero_bytes(differs_from_cn(&s->chunk[i + place]));
		if (any && is_command_in_block(i, len))
			return 1;
	}
	return SEARCH_ON;
}

// A plugin has CNI_COMMAND in its environment (CNI specification 1.1.0, section 2, "Parameters"): 1, 0, or UNREADABLE.
always_inline uint32_t is_plugin(struct scratch *s)
{
	s->env_next = s->env_start;
#pragma clang loop unroll(disable)
	for (uint32_t i = 0; i < CHUNKS_MAX; i++) {
		uint32_t found = next_chunk_has_command();
		if (found != SEARCH_ON)
			return found;
	}
	return 0;
}

// The next chunk of the environment of a plugin: its exec may cost one call more.
noinline uint32_t next_chunk(void)
{
	struct scratch *s = scratch();
	return s ? load_chunk(s) : 0;
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
		uint32_t len = next_chunk();
		if (len == UNREADABLE)
			count_lost(LOST_ENVIRONMENT);
		if (!len || len == UNREADABLE)
			return 0;
		keep_variables(from, len);
	}
	if (s->env_next < s->env_end)
		s->exec.flags |= FLAG_ENV_CUT;
	return 0;
}
