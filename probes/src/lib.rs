//! The kernel side: wire records shared with the C probes, and the compiled BPF objects.
//!
//! Used by `sandglass::sources::linux` only. One object per family and rung, because a loader rejects a whole object
//! for one part of it that a kernel does not know.
//! Does not: load, attach or decode anything.

pub mod wire;

use wire::asleep::{AsleepRecord, SOCKET_PATH_MAX, SocketRecord};
use wire::connect::ConnectRecord;
use wire::conntrack::{FLOW_MESSAGE_MAX, FlowRecord};
use wire::cri::{
    CRI_SOCKETS_MAX, CriSockets, METADATA_MAX, SANDBOX_ID_MAX, SandboxRequestRecord, SandboxResponseRecord,
};
use wire::daemons::MessageRecord;
use wire::dns::{DnsRecord, DropRecord};
use wire::extack::{EXTACK_MAX, ExtackRecord};
use wire::locks::{ContentionRecord, FileLockRecord, LOCK_NAME_MAX, LOCK_NAMES};
use wire::trust::{REFUSED_PATH_MAX, RefusedRecord, TRUSTED_CGROUPS_MAX, TRUSTED_USERS_MAX, TrustedOwners};
use wire::waits::{RunRecord, STACK_MAX, ThreadTimes, WakeRecord};
use wire::{Calibration, ExecRecord, ExitRecord, ForkRecord, RecordHeader};

/// Compiled objects from the build's directory, each aligned for the loader.
macro_rules! objects {
    ($($(#[$about:meta])* $name:ident = $file:literal;)*) => {
        $(
            $(#[$about])*
            pub static $name: &[u8] = {
                static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/", $file)));
                &OBJECT.0
            };
        )*

        /// All of them.
        pub static OBJECTS: &[&[u8]] = &[$($name),*];
    };
}

objects! {
    /// The process probe on BTF-typed tracepoints.
    EXEC_TP_BTF = "exec.tp_btf.o";
    /// The process probe on raw tracepoints.
    EXEC_RAW_TP = "exec.raw_tp.o";
    /// The DNS probe on the root of the cgroup tree.
    DNS_CGROUP_SKB = "dns.cgroup_skb.o";
    /// The same for kernels whose helpers do not know the current task's type (before 5.11).
    DNS_OLD_TASK = "dns.old_task.o";
    /// The drop probe.
    DROP_TP_BTF = "drop.tp_btf.o";
    /// The drop probe for kernels that give no reason (before 5.17).
    DROP_NO_REASON = "drop.no_reason.o";
    /// The connection probe on BTF-typed tracepoints.
    CONNECT_TP_BTF = "connect.tp_btf.o";
    /// The connection probe on raw tracepoints.
    CONNECT_RAW_TP = "connect.raw_tp.o";
    /// The filter on the ctnetlink socket.
    CONNTRACK = "conntrack.o";
    /// The program that names functions of the kernel.
    SYMBOLS = "symbols.o";
}

/// A record that may be read from any bytes of its length.
///
/// # Safety
/// Only for `#[repr(C)]` structures of integers and byte arrays without padding: every bit pattern must be valid.
pub unsafe trait Record: Copy {
    /// Reads the record from the front of `bytes`; `None` when they are too few. Alignment does not matter.
    fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = bytes.split_at_checked(size_of::<Self>())?;
        // SAFETY: `head` has exactly the length of `Self`, for which every bit pattern is valid (trait contract).
        let record = unsafe { head.as_ptr().cast::<Self>().read_unaligned() };
        Some((record, rest))
    }

    /// The record's bytes, as the kernel side would write them.
    fn bytes(&self) -> &[u8] {
        // SAFETY: `self` is readable for its size and has no padding (trait contract).
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast::<u8>(), size_of::<Self>()) }
    }
}

// SAFETY: integers only, no padding (size asserted below).
unsafe impl Record for RecordHeader {}
// SAFETY: as above.
unsafe impl Record for ForkRecord {}
// SAFETY: integers and a byte array, no padding (size asserted below).
unsafe impl Record for ExecRecord {}
// SAFETY: as for `RecordHeader`.
unsafe impl Record for ExitRecord {}
// SAFETY: as for `RecordHeader`.
unsafe impl Record for Calibration {}
// SAFETY: as for `ExecRecord`.
unsafe impl Record for DnsRecord {}
// SAFETY: as for `ExecRecord`.
unsafe impl Record for DropRecord {}
// SAFETY: as for `ExecRecord`.
unsafe impl Record for ConnectRecord {}
// SAFETY: as for `ExecRecord`.
unsafe impl Record for FlowRecord {}
// SAFETY: as for `ExecRecord`.
unsafe impl Record for TrustedOwners {}
// SAFETY: as for `ExecRecord`.
unsafe impl Record for RefusedRecord {}
// SAFETY: as for `ExecRecord`.
unsafe impl Record for ThreadTimes {}
// SAFETY: as for `ExecRecord`.
unsafe impl Record for WakeRecord {}
// SAFETY: as for `ExecRecord`.
unsafe impl Record for RunRecord {}
// SAFETY: as for `ExecRecord`.
unsafe impl Record for AsleepRecord {}
// SAFETY: as for `ExecRecord`.
unsafe impl Record for SocketRecord {}
// SAFETY: as for `ExecRecord`.
unsafe impl Record for ExtackRecord {}
// SAFETY: as for `ExecRecord`.
unsafe impl Record for FileLockRecord {}
// SAFETY: as for `ExecRecord`.
unsafe impl Record for ContentionRecord {}
// SAFETY: as for `ExecRecord`.
unsafe impl Record for MessageRecord {}
// SAFETY: as for `RecordHeader`.
unsafe impl Record for CriSockets {}
// SAFETY: as for `ExecRecord`.
unsafe impl Record for SandboxRequestRecord {}
// SAFETY: as for `ExecRecord`.
unsafe impl Record for SandboxResponseRecord {}

const _: () = assert!(size_of::<RecordHeader>() == 4 * 2 + 8 * 3);
const _: () = assert!(size_of::<ForkRecord>() == 32 + 8 * 2 + 4 * 4 + 8 * 4);
const _: () = assert!(size_of::<ExecRecord>() == 32 + 8 * 4 + 4 * 8 + 16);
const _: () = assert!(size_of::<ExitRecord>() == 32 + 4 * 4);
const _: () = assert!(size_of::<Calibration>() == 8 * 5 + 4 * 4);
const _: () = assert!(size_of::<DnsRecord>() == 8 * 4 + 4 * 5 + 2 * 2 + 8 + 16 * 3 + 4 * 2);
const _: () = assert!(size_of::<DropRecord>() == 8 * 3 + 4 * 2 + 2 * 3 + 2 + 16 * 2 + 4 * 2);
const _: () = assert!(size_of::<ConnectRecord>() == 32 + 8 + 4 * 5 + 2 * 2 + 16 * 3);
const _: () = assert!(size_of::<TrustedOwners>() == 8 * TRUSTED_CGROUPS_MAX as usize + 4 * TRUSTED_USERS_MAX as usize);
const _: () = assert!(size_of::<RefusedRecord>() == 8 * 2 + 4 * 6 + REFUSED_PATH_MAX as usize);
const _: () = assert!(size_of::<ThreadTimes>() == 8 * 3 + 4 * 2);
const _: () = assert!(size_of::<WakeRecord>() == 32 + 32 + 8 * 4 + 4 * 6 + 16 + 32 + 2 * 8 * STACK_MAX as usize);
const _: () = assert!(size_of::<RunRecord>() == 32 + 32 + 8 * 2 + 4 * 2);
const _: () = assert!(size_of::<AsleepRecord>() == 32 + 32 + 8 + 4 * 2 + 8 * STACK_MAX as usize);
const _: () = assert!(size_of::<SocketRecord>() == 32 + 4 + 2 * 2 + 16 + 2 * 2 + SOCKET_PATH_MAX as usize);
const _: () = assert!(size_of::<ExtackRecord>() == 32 + EXTACK_MAX as usize);
const _: () = assert!(size_of::<FileLockRecord>() == 32 + 8 + 4 * 4 + 16 + (LOCK_NAMES * LOCK_NAME_MAX) as usize);
const _: () = assert!(size_of::<ContentionRecord>() == 32 + 8 * 5 + 4 * 6 + 16 + 8 * STACK_MAX as usize);
const _: () = assert!(size_of::<MessageRecord>() == 32 + 8 * 3 + 4 * 6 + 16 + 8 * 4);
const _: () = assert!(size_of::<CriSockets>() == 8 * CRI_SOCKETS_MAX as usize);
const _: () = assert!(size_of::<SandboxRequestRecord>() == 32 + 8 + 4 * 4 + METADATA_MAX as usize);
const _: () = assert!(size_of::<SandboxResponseRecord>() == 32 + 8 + 4 * 4 + SANDBOX_ID_MAX as usize);
const _: () = assert!(size_of::<FlowRecord>() == 8 * 2 + 4 * 2 + FLOW_MESSAGE_MAX as usize);

/// Object files must lie aligned for the ELF reader, which casts in place.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

#[cfg(test)]
mod tests {
    use super::*;

    /// The loader must accept every object without a kernel: names of sections, maps and programs are right.
    #[test]
    fn objects_parse_and_hold_what_the_loader_asks_for() {
        for (name, object) in [("tp_btf", EXEC_TP_BTF), ("raw_tp", EXEC_RAW_TP)] {
            assert_eq!(object.as_ptr() as usize % 8, 0, "{name} is aligned");
            let object = aya_obj::Object::parse(object).unwrap_or_else(|error| panic!("{name}: {error}"));
            for program in ["on_fork", "on_exec", "on_exit", "on_exit_stdio"] {
                assert!(object.programs.contains_key(program), "{name} has program {program}");
            }
            for map in [
                "records",
                "roles",
                "lost",
                "calibration",
                "reader",
                "trusted_owners",
                "refused",
                "refused_processes",
            ] {
                assert!(object.maps.contains_key(map), "{name} has map {map}");
            }
        }
    }

    #[test]
    fn objects_of_packets_parse_and_hold_what_the_loader_asks_for() {
        for (name, object, programs) in [
            ("dns", DNS_CGROUP_SKB, &["on_send", "on_receive"][..]),
            ("dns with old tasks", DNS_OLD_TASK, &["on_send", "on_receive"]),
            ("drop", DROP_TP_BTF, &["on_drop", "on_drop_within"]),
            ("drop without reason", DROP_NO_REASON, &["on_drop", "on_drop_within"]),
        ] {
            let object = aya_obj::Object::parse(object).unwrap_or_else(|error| panic!("{name}: {error}"));
            for program in programs {
                assert!(object.programs.contains_key(*program), "{name} has program {program}");
            }
            for map in ["records", "lost", "reader", ".rodata"] {
                assert!(object.maps.contains_key(map), "{name} has map {map}");
            }
        }
    }

    #[test]
    fn objects_of_traffic_parse_and_hold_what_the_loader_asks_for() {
        let set_state = &["on_set_state", "on_set_state_within"][..];
        for (object, programs) in [
            (CONNECT_TP_BTF, set_state),
            (CONNECT_RAW_TP, set_state),
            (CONNTRACK, &["on_message"]),
        ] {
            let program = programs[0];
            let object = aya_obj::Object::parse(object).unwrap_or_else(|error| panic!("{program}: {error}"));
            for program in programs {
                assert!(object.programs.contains_key(*program), "{program} is there");
            }
            for map in ["records", "lost", "reader"] {
                assert!(object.maps.contains_key(map), "{program} has map {map}");
            }
        }
    }

    #[test]
    fn records_are_read_only_from_enough_bytes() {
        let record = ExitRecord {
            header: RecordHeader {
                kind: wire::KIND_EXIT,
                pid: 7,
                at_ns: 2,
                start_ns: 1,
                ring_bytes: 0,
            },
            status: 256,
            role: wire::ROLE_TRACKED,
            stdin_len: 0,
            stdout_len: 0,
        };
        let mut bytes = vec![0xff];
        bytes.extend_from_slice(record.bytes());
        bytes.push(9);
        assert_eq!(ExitRecord::read(&bytes[1..]), Some((record, &[9][..])));
        assert_eq!(
            ExitRecord::read(&bytes[2..]),
            Some((ExitRecord::read(&bytes[2..]).unwrap().0, &[][..]))
        );
        assert_eq!(ExitRecord::read(&bytes[3..]), None);
    }
}
