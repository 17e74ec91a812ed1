// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// When the runtime received a request to make a sandbox (RunPodSandbox of the CRI) and when it responded: the begin and the end of
// what it does for a sandbox, most of which starts no process.
//
// sock_recv_length and sock_send_length (see daemons.h) are called inside of the runtime's read(2) and write(2). The buffer is the
// second argument of the system call, whose registers bpf_task_pt_regs() shows (Linux 5.15); so the message can be read where the
// runtime has just got it. A socket that accept(2) returned has the path of the one that listens (net/unix/af_unix.c,
// unix_stream_connect), and a client's has none: the inode of that path is compared with those of the CRI sockets. Every other
// socket costs that comparison, or that of its family.
//
// The stream is HTTP/2 (RFC 9113) with gRPC's messages in DATA frames. Headers are compressed with a table that both ends have built
// since the connection began, so the method is not read: RunPodSandboxRequest is known by its shape, as the only request of the CRI
// whose first field is a message whose first field is a message with a text in front. UpdateRuntimeConfigRequest has that shape too,
// and no uid, which user space looks for. Of a request only the sandbox's metadata is copied: name, uid, namespace and
// attempt. What a message has in its further frames is not looked at: a pod's author may have written it.
//
// Believed is only a process that could set up the node's networks (trust.h).
#pragma once

#include "current.h"
#include "daemons.h"
#include "registers.h"

static void *(*const bpf_skc_to_unix_sock)(void *sk) = (void *)178;
static void (*const discard_record)(void *data, uint64_t flags) = (void *)133;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct inode___number {
	unsigned long i_ino;
};

struct dentry___inode {
	struct inode___number *d_inode;
};

struct path___dentry {
	struct dentry___inode *dentry;
};

struct unix_sock___path {
	struct path___dentry path;
};

#pragma clang attribute pop

#if defined(__TARGET_ARCH_x86)
// arch/x86/entry/syscalls/syscall_64.tbl
#define SYSCALL_READ 0
#define SYSCALL_WRITE 1
#define SYSCALL_SENDTO 44
#define SYSCALL_RECVFROM 45
#else
// include/uapi/asm-generic/unistd.h
#define SYSCALL_READ 63
#define SYSCALL_WRITE 64
#define SYSCALL_SENDTO 206
#define SYSCALL_RECVFROM 207
#endif

// RFC 9113, section 6
#define FRAME_DATA 0
#define FRAME_HEADERS 1
#define FRAME_RST_STREAM 3
#define FRAME_LAST_TYPE 9
#define FRAME_END_STREAM 1
#define FRAME_PADDED 8
// RFC 9113, section 3.4: what a client sends first, "PRI * HTTP/2.0", two ends of lines, "SM", and two more.
#define PREFACE_LEN 24
#define PREFACE_0 FOUR('P', 'R', 'I', ' ')
#define PREFACE_4 FOUR('*', ' ', 'H', 'T')
#define PREFACE_8 FOUR('T', 'P', '/', '2')
#define PREFACE_16 FOUR('\r', '\n', 'S', 'M')
// gRPC's prefix of a message: whether it is compressed, and its length.
#define GRPC_PREFIX 5
// The prefix, two fields with their lengths, and the key of a third one.
#define SHAPE_LEN 16
// Frames of one message that are walked in one loop.
#define FRAMES_STEP 16
// Protocol buffers: field 1 with a length.
#define FIELD_1 0x0a

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, uint32_t);
	__type(value, struct CriSockets);
} cri_sockets SEC(".maps");

// Where one direction of a connection stands in its stream of frames.
struct position {
	// Bytes of the last frame that are still to come.
	uint64_t skip;
	// The request whose metadata is still to come: when it arrived, its stream, the length of the metadata, and how much was reported.
	uint64_t requested_ns;
	uint32_t stream, metadata_len, reported;
	// How much of a frame's head has come: all of it where nothing of its content has.
	uint32_t head_len;
	uint8_t head[24];
};

// By the address of the socket, with 1 added for what is sent.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 2 * CRI_CONNECTIONS_MAX);
	__type(key, uint64_t);
	__type(value, struct position);
} cri_positions SEC(".maps");

struct cri_stream {
	uint64_t socket;
	uint32_t stream, unused;
};

// When requests to make a sandbox arrived that have no response yet.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, CRI_STREAMS_MAX);
	__type(key, struct cri_stream);
	__type(value, uint64_t);
} cri_requests SEC(".maps");

// Streams whose message goes on in another frame.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, CRI_STREAMS_MAX);
	__type(key, struct cri_stream);
	__type(value, uint32_t);
} cri_long_messages SEC(".maps");

// One read or write, and how far it was looked through. On the stack of the program, passed to functions that the verifier checks
// once.
struct walk {
	uint64_t socket, buffer, bytes, offset;
	uint32_t is_sent, has_lost;
	struct position at;
	// The frame that the walk has come to: its stream, and what is there of its content.
	struct cri_stream stream;
	uint32_t type, flags, length, there;
	// What a message begins with.
	uint8_t start[SHAPE_LEN];
};

always_inline void report_response(struct cri_stream *stream, uint32_t outcome, uint64_t id, uint32_t id_len)
{
	uint64_t *requested = bpf_map_lookup_elem(&cri_requests, stream);
	if (!requested)
		return;
	struct SandboxResponseRecord record = { .outcome = outcome };
	record.requested_ns = *requested;
	record.stream = stream->stream;
	bpf_map_delete_elem(&cri_requests, stream);
	opaque(id_len);
	if (id_len <= SANDBOX_ID_MAX && bpf_probe_read_user(record.id, id_len, (void *)id) == 0)
		record.id_len = id_len;
	put_current(&record.header, KIND_SANDBOX_RESPONSE);
	emit(&record.header, sizeof(record));
}

// Reports metadata that lies at `from` in the buffer; it may be cut by the end of what was read.
noinline int report_request(struct walk *walk, uint64_t from, uint64_t there)
{
	if (!walk)
		return 0;
	struct position *at = &walk->at;
	uint64_t len = at->metadata_len - at->reported;
	len = min(len, there);
	struct SandboxRequestRecord *record = reserve_record(&records, sizeof(*record), 0);
	if (!record) {
		count_lost(LOST_RING);
		at->metadata_len = 0;
		return 0;
	}
	opaque(len);
	if (len > METADATA_MAX || bpf_probe_read_user(record->metadata, len, (void *)from)) {
		discard_record(record, 0);
		at->metadata_len = 0;
		return 0;
	}
	put_current(&record->header, KIND_SANDBOX_REQUEST);
	if (!at->reported)
		at->requested_ns = record->header.at_ns;
	record->requested_ns = at->requested_ns;
	record->stream = at->stream;
	record->metadata_len = at->metadata_len;
	record->offset = at->reported;
	record->len = len;
	submit_record(record, wake_flags(record->header.ring_bytes));
	at->reported += len;
	if (at->reported >= at->metadata_len)
		at->metadata_len = 0;
	return 0;
}

// Looks whether the first frame of a message is a RunPodSandboxRequest.
noinline int on_first_data(struct walk *walk)
{
	if (!walk || walk->length < SHAPE_LEN || walk->there < SHAPE_LEN)
		return 0;
	if (bpf_probe_read_user(walk->start, SHAPE_LEN, (void *)(walk->buffer + walk->offset)))
		return 0;
	uint8_t *start = walk->start;
	if (start[0] != 0 || start[GRPC_PREFIX] != FIELD_1)
		return 0;
	// The configuration's length: seven bits a byte, up to three bytes.
	uint32_t place = GRPC_PREFIX + 1;
	if (start[place] & 0x80)
		place = start[place + 1] & 0x80 ? GRPC_PREFIX + 3 : GRPC_PREFIX + 2;
	if (start[place & (SHAPE_LEN - 1)] & 0x80)
		return 0;
	place++;
	if (start[place & (SHAPE_LEN - 1)] != FIELD_1)
		return 0;
	place++;
	// The metadata's length: up to two bytes.
	uint32_t len = start[place & (SHAPE_LEN - 1)];
	place++;
	if (len & 0x80) {
		uint32_t more = start[place & (SHAPE_LEN - 1)];
		len = (len & 0x7f) | more << 7;
		place++;
		if (more & 0x80)
			return 0;
	}
	if (start[place & (SHAPE_LEN - 1)] != FIELD_1 || len == 0 || len > METADATA_MAX || place + len > walk->length)
		return 0;
	if (judge(CLAIM_RUNTIME) != TRUSTED)
		return 0;
	walk->at.metadata_len = len;
	walk->at.reported = 0;
	walk->at.stream = walk->stream.stream;
	report_request(walk, walk->buffer + walk->offset + place, walk->there - place);
	if (!walk->at.reported)
		return 0;
	uint64_t requested = walk->at.requested_ns;
	bpf_map_update_elem(&cri_requests, &walk->stream, &requested, BPF_ANY);
	return 0;
}

always_inline void on_received_frame(struct walk *walk)
{
	if (walk->type == FRAME_RST_STREAM)
		report_response(&walk->stream, RESPONSE_WITHDRAWN, 0, 0);
	if (walk->type != FRAME_DATA)
		return;
	uint32_t goes_on = 1;
	int is_first = !bpf_map_lookup_elem(&cri_long_messages, &walk->stream);
	if (!(walk->flags & FRAME_END_STREAM))
		bpf_map_update_elem(&cri_long_messages, &walk->stream, &goes_on, BPF_ANY);
	else if (!is_first)
		bpf_map_delete_elem(&cri_long_messages, &walk->stream);
	if (is_first && !(walk->flags & FRAME_PADDED))
		on_first_data(walk);
}

always_inline void on_sent_frame(struct walk *walk)
{
	// Few streams have an entry, and one that has its response has none any more.
	if (walk->type == FRAME_DATA) {
		// RunPodSandboxResponse has one field, the id.
		uint8_t start[8] = {};
		uint32_t len = 0;
		if (walk->there >= sizeof(start) &&
		    bpf_probe_read_user(start, sizeof(start), (void *)(walk->buffer + walk->offset)) == 0 &&
		    start[0] == 0 && start[GRPC_PREFIX] == FIELD_1)
			len = start[GRPC_PREFIX + 1];
		if (GRPC_PREFIX + 2 + len > walk->there)
			len = 0;
		report_response(&walk->stream, RESPONSE_MADE, walk->buffer + walk->offset + GRPC_PREFIX + 2, len);
	} else if (walk->type == FRAME_RST_STREAM || (walk->type == FRAME_HEADERS && walk->flags & FRAME_END_STREAM)) {
		report_response(&walk->stream, RESPONSE_FAILED, 0, 0);
	}
}

// Goes to the next frame and looks at it. 0 when there is none, or what is there is no frame.
noinline int next_frame(struct walk *walk)
{
	if (!walk || walk->offset >= walk->bytes)
		return 0;
	struct position *at = &walk->at;
	uint64_t left = walk->bytes - walk->offset;
	uint32_t have = at->head_len;
	if (have < FRAME_HEAD) {
		uint64_t len = FRAME_HEAD - have;
		len = min(len, left);
		opaque(len);
		if (len > FRAME_HEAD)
			return 0;
		if (bpf_probe_read_user(&at->head[have], len, (void *)(walk->buffer + walk->offset))) {
			walk->has_lost = 1;
			return 0;
		}
		walk->offset += len;
		at->head_len = have + len;
		if (have + len < FRAME_HEAD)
			return 0;
	}
	uint8_t *head = at->head;
	walk->length = (uint32_t)head[0] << 16 | (uint32_t)head[1] << 8 | head[2];
	walk->type = head[3];
	walk->flags = head[4];
	uint32_t stream = (uint32_t)head[5] << 24 | (uint32_t)head[6] << 16 | (uint32_t)head[7] << 8 | head[8];
	// A connection whose begin was not seen, or that was read in another way meanwhile: only what can be a frame is one. Clients' streams
	// have odd numbers (RFC 9113, section 5.1.1).
	int is_stream = walk->type <= FRAME_HEADERS;
	if (walk->length > FRAME_MAX || walk->type > FRAME_LAST_TYPE || stream >> 31 || (is_stream && !(stream & 1))) {
		walk->has_lost = 1;
		return 0;
	}
	walk->stream.stream = stream;
	left = walk->bytes - walk->offset;
	// Some write a head by itself: its content is looked at when the first of it comes.
	if (!left && walk->length)
		return 0;
	at->head_len = 0;
	walk->there = min(left, (uint64_t)walk->length);
	if (walk->is_sent)
		on_sent_frame(walk);
	else
		on_received_frame(walk);
	if (walk->length > left) {
		at->skip = walk->length - left;
		walk->offset = walk->bytes;
		return 0;
	}
	// What was to come of a request's metadata would have been in this frame.
	at->metadata_len = 0;
	walk->offset += walk->length;
	return 1;
}

// As many calls of next_frame() as there are frames, FRAMES_STEP at most. 0 when there are no more. The verifier walks a loop's rounds one by
// one: so it walks two short ones.
noinline int next_frames(struct walk *walk)
{
	if (!walk)
		return 0;
#pragma clang loop unroll(disable)
	for (uint32_t frames = 0; frames < FRAMES_STEP; frames++) {
		if (!next_frame(walk))
			return 0;
	}
	return 1;
}

// The number of the inode of the socket's path; 0 where it has none.
always_inline uint64_t inode_of_path(struct sock *sk)
{
	struct unix_sock___path *socket = bpf_skc_to_unix_sock(sk);
	if (!socket)
		return 0;
	struct dentry___inode *dentry = socket->path.dentry;
	return dentry ? dentry->d_inode->i_ino : 0;
}

always_inline int is_cri_socket(struct sock *sk)
{
	uint64_t inode = inode_of_path(sk);
	if (!inode)
		return 0;
	uint32_t zero = 0;
	struct CriSockets *sockets = bpf_map_lookup_elem(&cri_sockets, &zero);
	if (!sockets)
		return 0;
	return inode == sockets->inodes[0] || inode == sockets->inodes[1] || inode == sockets->inodes[2] ||
	       inode == sockets->inodes[3];
}

// Where the system call that runs now has its data; 0 for one that has it elsewhere.
always_inline uint64_t buffer_of_call(void)
{
#if defined(__TARGET_ARCH_x86) || defined(__TARGET_ARCH_arm64)
	struct pt_regs *registers = bpf_task_pt_regs(bpf_get_current_task_btf());
#if defined(__TARGET_ARCH_x86)
	uint64_t call = registers->orig_ax, buffer = registers->si;
#else
	uint64_t call = registers->syscallno, buffer = registers->regs[1];
#endif
	if (call == SYSCALL_READ || call == SYSCALL_WRITE || call == SYSCALL_SENDTO || call == SYSCALL_RECVFROM)
		return buffer;
#endif
	return 0;
}

// A connection begins with what lies at `buffer`. Where its first read is short, the first word of the preface counts, but not within
// a frame that is known.
always_inline int is_preface(uint64_t buffer, int bytes, int is_within_frame)
{
	uint32_t words[5] = {};
	if (bytes < PREFACE_LEN)
		return !is_within_frame && bytes >= 4 && bpf_probe_read_user(words, 4, (void *)buffer) == 0 &&
		       words[0] == PREFACE_0;
	return bpf_probe_read_user(words, sizeof(words), (void *)buffer) == 0 && words[0] == PREFACE_0 &&
	       words[1] == PREFACE_4 && words[2] == PREFACE_8 && words[4] == PREFACE_16;
}

always_inline int on_cri(struct sock *sk, int bytes, uint32_t is_sent)
{
	struct walk walk = {
		.socket = (uint64_t)sk,
		.is_sent = is_sent,
		.stream = { .socket = (uint64_t)sk },
	};
	uint64_t key = (uint64_t)sk + is_sent;
	// An error, such as that there is nothing to read, moves nothing; 0 is the end.
	if (bytes <= 0) {
		if (bytes == 0)
			bpf_map_delete_elem(&cri_positions, &key);
		return 0;
	}
	walk.buffer = buffer_of_call();
	walk.bytes = bytes;
	struct position *known = bpf_map_lookup_elem(&cri_positions, &key);
	if (!walk.buffer) {
		bpf_map_delete_elem(&cri_positions, &key);
		return 0;
	}
	if (known)
		walk.at = *known;
	if (!is_sent && is_preface(walk.buffer, bytes, walk.at.skip != 0)) {
		// Another connection may have had a socket at this address before.
		walk.at = (struct position){ .skip = PREFACE_LEN };
	}
	if (walk.at.metadata_len && walk.at.skip) {
		uint64_t there = walk.at.skip;
		report_request(&walk, walk.buffer, min(there, walk.bytes));
	}
	if (walk.at.skip > walk.bytes) {
		walk.at.skip -= walk.bytes;
	} else {
		walk.offset = walk.at.skip;
		walk.at.skip = 0;
		walk.at.metadata_len = 0;
		uint32_t frames = 0;
#pragma clang loop unroll(disable)
		for (; frames < CRI_FRAMES_MAX; frames += FRAMES_STEP) {
			if (!next_frames(&walk))
				break;
		}
		if (frames >= CRI_FRAMES_MAX)
			walk.has_lost = 1;
	}
	if (walk.has_lost)
		bpf_map_delete_elem(&cri_positions, &key);
	else
		bpf_map_update_elem(&cri_positions, &key, &walk.at, BPF_ANY);
	return 0;
}

TRACEPOINT("sock_recv_length")
int on_cri_receive(uint64_t *ctx)
{
	struct sock *sk = (void *)ctx[0];
	if (sk->__sk_common.skc_family != AF_UNIX || !is_cri_socket(sk) || ctx[2] & MSG_PEEK)
		return 0;
	return on_cri(sk, ctx[1], 0);
}

TRACEPOINT("sock_send_length")
int on_cri_send(uint64_t *ctx)
{
	struct sock *sk = (void *)ctx[0];
	if (sk->__sk_common.skc_family != AF_UNIX || !is_cri_socket(sk))
		return 0;
	return on_cri(sk, ctx[1], 1);
}
