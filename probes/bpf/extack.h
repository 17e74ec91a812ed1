// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// The kernel's own words about a netlink request that it refused or remarked on (include/linux/netlink.h, NL_SET_ERR_MSG and
// its variants), of tracked processes: why `ip link` failed, where the error number says only "invalid argument".
//
// netlink_extack is called in the process that sent the request, while sendmsg(2) handles it (include/trace/events/netlink.h, since
// Linux 5.12). It is rare, so the program is always attached; of any other process it costs the look at its role.
// match-proto: netlink_extack(const char *msg)
#pragma once

#include "current.h"

TRACEPOINT("netlink_extack")
int on_extack(uint64_t *ctx)
{
	if (role_of(current_pid()) != ROLE_TRACKED)
		return 0;
	struct ExtackRecord record = {};
	// What does not fit is cut.
	if (bpf_probe_read_kernel_str(record.message, sizeof(record.message), (void *)ctx[0]) <= 1)
		return 0;
	// A program that repeats a refused request takes no room from the records of processes.
	if (!has_room_for_remark(0, 0))
		return 0;
	put_current(&record.header, KIND_EXTACK);
	emit(&record.header, sizeof(record));
	return 0;
}
