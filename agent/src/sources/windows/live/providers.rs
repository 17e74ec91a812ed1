//! The ETW providers that the agent enables, with level and keywords of each.
//!
//! Levels and keywords are those of Microsoft's own scripts: microsoft/SDN `Kubernetes/windows/debug/starthnstrace.ps1`, and
//! MicrosoftDocs/Virtualization-Documentation `HcsTraceProfile.wprp`. Does not: decode (`normalize` does).

use ferrisetw::GUID;
use ferrisetw::provider::{Provider, TraceFlags};
use sandglass_etw::Guid;

use super::intake::Intake;
use crate::sources::windows::normalize;

/// One provider to enable.
pub(super) struct Wanted {
    pub(super) provider: Guid,
    /// Events up to this level: 4 is information, 5 verbose (winmeta.h, WINEVENT_LEVEL_INFO, .._VERBOSE).
    pub(super) level: u8,
    /// Any of these; 0 enables all.
    pub(super) keywords: u64,
    /// Whether to receive its events from inside containers too.
    pub(super) of_containers: bool,
}

/// One line of the table below.
const fn wanted(provider: Guid, level: u8, keywords: u64, of_containers: bool) -> Wanted {
    Wanted {
        provider,
        level,
        keywords,
        of_containers,
    }
}

/// All of them. Activities of HNS and of the container library are at level 5. Of Kernel-Process only jobs (keyword 0x400)
/// and silos (0x4000); of TCPIP only connections and interfaces.
pub(super) const WANTED: &[Wanted] = &[
    wanted(normalize::HNS, 5, 0, false),
    wanted(normalize::HCS, 4, 0x3_0000, false),
    wanted(normalize::HYPER_V_COMPUTE, 4, 0, false),
    wanted(normalize::CONTAINERS_LIBRARY, 5, 0, false),
    wanted(normalize::CONTAINERD, 4, 0, false),
    wanted(normalize::RUN_HCS, 4, 0, false),
    wanted(normalize::KERNEL_PROCESS, 4, 0x4400, false),
    wanted(normalize::DNS_CLIENT, 5, 0, true),
    wanted(normalize::WINSOCK, 4, 0, true),
    wanted(normalize::TCPIP, 4, 0x4_0000_0015, true),
    wanted(normalize::WIN_NAT, 4, 0x1, false),
];

/// New and removed flows of the virtual switch. They are many (138 MB in 30 s on a busy node), so this is enabled only for
/// the configured time. Keywords: microsoft/SDN, AppMana/cloud-provisioning.
pub(super) const FLOWS: Wanted = wanted(normalize::VFP, 4, 0x00c8_0000, false);

/// `EnableProperty` of ENABLE_TRACE_PARAMETERS: data that Windows adds to each event, and whether events from inside
/// containers are delivered.
pub(super) fn enable_property(wanted: &Wanted) -> u32 {
    let start_key = TraceFlags::EVENT_ENABLE_PROPERTY_PROCESS_START_KEY.bits();
    if wanted.of_containers {
        start_key | ENABLE_SILOS | SOURCE_CONTAINER_TRACKING
    } else {
        start_key
    }
}

/// The provider as ferrisetw enables it.
pub(super) fn provider(wanted: &Wanted, intake: &Intake) -> Provider {
    // SAFETY: the type has bits for named flags only, yet passes any on to EnableTraceEx2, for which all of these are
    // valid bits of EnableProperty (evntrace.h).
    let flags = unsafe { TraceFlags::from_bits_unchecked(enable_property(wanted)) };
    Provider::by_guid(GUID::from_u128(wanted.provider.0))
        .level(wanted.level)
        .any(wanted.keywords)
        .trace_flags(flags)
        .add_callback(intake.callback())
        .build()
}

/// `EVENT_ENABLE_PROPERTY_ENABLE_SILOS` (evntrace.h): delivers events from inside containers. ferrisetw has no name for it.
const ENABLE_SILOS: u32 = 0x400;
/// `EVENT_ENABLE_PROPERTY_SOURCE_CONTAINER_TRACKING` (evntrace.h): adds the container's GUID to each event.
const SOURCE_CONTAINER_TRACKING: u32 = 0x800;
